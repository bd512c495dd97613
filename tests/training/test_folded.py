"""Training through the folded copy is training the adapter: same gradients, same loss, same curve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import demo_search, tiny_model, tiny_recipe

from parallelsearch.errors import UsageError
from parallelsearch.training.metrics import read_metrics
from parallelsearch.training.recipe import ModelSettings
from parallelsearch.training.run import run
from parallelsearch.training.smoke import questions
from parallelsearch.training.weights import Weights, load_weights


def weights_of(fold: bool | None, **settings: Any) -> Weights:
    model, tokenizer = tiny_model(0.7)
    wanted = ModelSettings(name="x", lora_rank=4, fold=fold, **settings)
    return load_weights(wanted, torch.device("cpu"), needs_reference=False, seed=3, model=model, tokenizer=tokenizer)


def stir(model: Any) -> None:
    """An adapter in the middle of its training: neither of its matrices is zero."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if "lora_" in name:
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))


def lora_grads(model: Any) -> dict[str, Any]:
    return {name: parameter.grad for name, parameter in model.named_parameters() if "lora_" in name}


def test_the_chain_rule_gives_peft_s_own_gradients() -> None:
    ids = torch.randint(5, 60, (3, 17), generator=torch.Generator().manual_seed(1))
    plain, through = weights_of(False), weights_of(True)
    stir(plain.model)
    stir(through.model)
    assert plain.folded is None
    assert through.folded is not None
    for _ in range(2):  # gradients of several micro-batches add up
        plain.model(input_ids=ids, labels=ids).loss.backward()
        through.folded.refresh()
        through.folded.copy(input_ids=ids, labels=ids).loss.backward()
        through.folded.collect()
    expected, found = lora_grads(plain.model), lora_grads(through.model)
    assert len(found) == len(expected) > 0
    for name, grad in expected.items():
        assert grad.abs().max() > 0
        torch.testing.assert_close(found[name], grad, rtol=1e-4, atol=1e-6)
    assert all(parameter.grad is None for parameter in through.folded.copy.parameters())


def test_only_the_folded_matrices_ask_for_gradients_and_the_adapter_stays_in_float32() -> None:
    weights = weights_of(True, precision="bfloat16")
    assert weights.folded is not None
    assert weights.sampler is weights.folded.copy
    asking = [name for name, parameter in weights.sampler.named_parameters() if parameter.requires_grad]
    assert asking
    assert all("proj" in name for name in asking)
    lora = [parameter for name, parameter in weights.model.named_parameters() if "lora_" in name]
    assert {parameter.dtype for parameter in lora} == {torch.float32}


def test_folding_is_for_plain_lora_on_a_gpu_unless_asked_for() -> None:
    assert weights_of(None).folded is None, "a CPU gains nothing from it"
    with pytest.raises(UsageError, match="lora_dropout"):
        weights_of(True, lora_dropout=0.1)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"train.updates_per_step": 2, "train.passes_per_step": 2, "rollout.temperature": 0.7},
    ],
)
def test_a_run_through_the_copy_has_the_curve_of_a_run_through_peft(tmp_path: Path, changes: dict[str, Any]) -> None:
    curves = []
    for fold in (False, True):
        model, tokenizer = tiny_model(0.7)
        values = {"model.lora_rank": 4, "model.fold": fold, "train.steps": 3, "train.lr": 0.02, **changes}
        recipe = tiny_recipe(tmp_path / str(fold), values)
        run(recipe, [questions(24)], questions(4), demo_search(), model=model, tokenizer=tokenizer, with_plot=False)
        records = read_metrics(recipe.out / "metrics.jsonl")
        curves.append([(record["loss"], record["grad_norm"], record["reward/total"]) for record in records])
    assert len(curves[0]) == 3
    assert max(abs(loss) for loss, _, _ in curves[0]) > 0
    for one, other in zip(*curves, strict=True):
        assert other == pytest.approx(one, rel=2e-3, abs=1e-5)


def test_an_adapter_is_saved_without_asking_a_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each checkpoint did, of a base that is known by a name: a warning without a network, a wait behind a firewall."""
    from peft.utils import save_and_load

    def asked(model_id: str, name: str) -> None:
        raise AssertionError(f"asked for {name} of {model_id}")

    monkeypatch.setattr(save_and_load, "check_file_exists_on_hf_hub", asked)
    model = weights_of(False).model
    model.peft_config["default"].base_model_name_or_path = "somebody/some-model"
    model.save_pretrained(tmp_path)
    from safetensors.torch import load_file

    names = list(load_file(tmp_path / "adapter_model.safetensors"))
    assert names
    assert all("lora_" in name for name in names)

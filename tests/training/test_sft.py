"""SFT on a tiny model: only the model's tokens are learned, a kill costs nothing, bad data is refused."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from parallelsearch import grammar
from parallelsearch.coldstart.run import TokenizerEncoder
from parallelsearch.errors import UsageError
from parallelsearch.policy import models
from parallelsearch.training import sft
from parallelsearch.training.batches import pieces_of
from parallelsearch.training.folded import Folded
from parallelsearch.training.metrics import read_metrics
from parallelsearch.training.recipe import Recipe, parse_recipe
from parallelsearch.training.smoke import make_model, make_tokenizer
from parallelsearch.trajectory import Segment, Trajectory, write_trajectories

torch = pytest.importorskip("torch")
pytest.importorskip("trl")


NAMES = ("ash", "birch", "cedar", "elm", "fir", "hazel", "larch", "lime")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tokenizer()


def trajectory_of(name: str, encoder: TokenizerEncoder) -> Trajectory:
    segments = [
        encoder.prompt(f"What is {name}?\n", name),
        encoder.insert(grammar.render_turn(f"I look for {name}", [f"{name} tree"]), "model"),
        encoder.insert(f"\n[1] {name}: a tree of the north\n", "search"),
        encoder.insert(grammar.render_turn(f"[1] {name}: a tree", answer=f"tree {name[::-1]}"), "model"),
    ]
    return Trajectory(f"What is {name}?", segments, ["tree"], id=name, kind="single", answer="tree", stop="answer")


@pytest.fixture(scope="module")
def trajectories(tokenizer: Any) -> list[Trajectory]:
    return [trajectory_of(name, TokenizerEncoder(tokenizer)) for name in NAMES]


@pytest.fixture
def file(trajectories: list[Trajectory], tmp_path: Path) -> Path:
    write_trajectories(tmp_path / "cold.jsonl", trajectories)
    return tmp_path / "cold.jsonl"


def recipe_for(file: Path, out: Path, **changes: Any) -> Recipe:
    values = {
        "model": {"name": "smoke"},
        "data": {"train": str(file)},
        "train": {
            "algorithm": "sft",
            "out": str(out),
            "steps": 8,
            "batch_size": 4,
            "micro_batch_tokens": 400,
            "max_length": 1024,
            "lr": 1e-2,
            "save_every": 2,
            "eval_every": 0,
        },
    }
    return parse_recipe(values, changes)


def run(recipe: Recipe, tokenizer: Any, **options: Any) -> sft.SftResult:
    return sft.run_sft(recipe, model=make_model(tokenizer), tokenizer=tokenizer, **options)


# ---- rows ------------------------------------------------------------------------------------------------------------


def test_labels_stand_on_the_models_tokens_and_nowhere_else(trajectories: list[Trajectory]) -> None:
    trajectory = trajectories[0]
    row = sft.labelled_row(trajectory)
    expected: list[int] = []
    for segment in trajectory.segments:
        ids = segment.token_ids or []
        expected += ids if segment.author == "model" else [sft.IGNORED] * len(ids)
    assert row.labels == expected
    assert row.input_ids == trajectory.prompt_ids() + trajectory.response_ids()


def test_rows_survive_the_file_without_being_tokenised_again(trajectories: list[Trajectory], file: Path) -> None:
    assert sft.load_rows([str(file)], 1024).rows == [sft.labelled_row(trajectory) for trajectory in trajectories]


def test_what_cannot_be_a_row_is_counted_or_refused(trajectories: list[Trajectory], tmp_path: Path) -> None:
    only_prompt = Trajectory("q", [Segment("prompt", "q", [1, 2])])
    found = sft.rows_of([*trajectories, only_prompt], max_length=len(sft.labelled_row(trajectories[0]).input_ids))
    assert found.num_untrainable == 1
    assert found.num_too_long + len(found.rows) == len(trajectories)
    with pytest.raises(UsageError, match="no token ids"):
        sft.rows_of([Trajectory("q", [Segment("model", "text")])], 100)
    write_trajectories(tmp_path / "cold.jsonl", trajectories)
    with pytest.raises(UsageError, match=r"train\.max_length = 64"):
        sft.load_rows([str(tmp_path / "cold.jsonl")], 64)
    with pytest.raises(UsageError, match=r"Did you mean 'cold\.jsonl'"):
        sft.load_rows([str(tmp_path / "cold.json")], 64)


@pytest.mark.parametrize(
    ("batch_size", "longest", "max_tokens", "expected"),
    [(32, 1000, 16_000, 16), (32, 1000, 20_000, 16), (32, 1000, 10, 1), (6, 100, 500, 3), (7, 100, 300, 1)],
)
def test_micro_batches_divide_the_batch(batch_size: int, longest: int, max_tokens: int, expected: int) -> None:
    assert sft.micro_batch(batch_size, longest, max_tokens) == expected


# ---- the loss --------------------------------------------------------------------------------------------------------


def trainer_for(rows: sft.SftRows, tokenizer: Any, tmp_path: Path) -> Any:
    from parallelsearch.training.weights import load_weights

    recipe = recipe_for(tmp_path / "none", tmp_path / "run")
    weights = load_weights(
        recipe.model, torch.device("cpu"), needs_reference=False, model=make_model(tokenizer), tokenizer=tokenizer
    )
    return sft._make_trainer(recipe, rows, weights, sft._config(recipe, rows), callbacks=())


def loss_of(trainer: Any, rows: list[sft.SftRow]) -> Any:
    batch = trainer.data_collator([{"input_ids": row.input_ids, "labels": row.labels} for row in rows])
    return trainer.compute_loss(trainer.model, batch)


def test_the_loss_is_the_mean_over_the_models_tokens(
    trajectories: list[Trajectory], tokenizer: Any, tmp_path: Path
) -> None:
    rows = [sft.labelled_row(trajectory) for trajectory in trajectories[:3]]
    trainer = trainer_for(sft.SftRows(rows), tokenizer, tmp_path)
    total, count = 0.0, 0
    with torch.no_grad():
        found = loss_of(trainer, rows).item()
        for row in rows:
            logits = trainer.model(torch.tensor([row.input_ids])).logits[0]
            logps = torch.log_softmax(logits.float(), -1)
            for place, label in enumerate(row.labels):
                if label != sft.IGNORED:
                    total, count = total - logps[place - 1, label].item(), count + 1
    assert found == pytest.approx(total / count, abs=1e-4)


def test_a_token_that_is_not_the_models_gets_a_gradient_of_exactly_zero(
    trajectories: list[Trajectory], tokenizer: Any, tmp_path: Path
) -> None:
    """The output layer learns a token only where it is a label: with labels on one token, no logit elsewhere matters."""
    trajectory = trajectories[0]
    row = sft.labelled_row(trajectory)
    place = row.labels.index(next(label for label in row.labels if label != sft.IGNORED))
    lone = sft.SftRow(
        row.input_ids, [sft.IGNORED] * place + [row.labels[place]] + [sft.IGNORED] * (len(row.labels) - place - 1)
    )
    trainer = trainer_for(sft.SftRows([lone]), tokenizer, tmp_path)
    hidden: list[Any] = []
    hook = trainer.model.model.register_forward_hook(
        lambda module, inputs, output: (
            output.last_hidden_state.retain_grad(),
            hidden.append(output.last_hidden_state),
        )[1]
    )
    loss_of(trainer, [lone]).backward()
    hook.remove()
    gradient = hidden[0].grad[0]
    assert gradient[place - 1].abs().sum() > 0
    rest = torch.cat([gradient[: place - 1], gradient[place:]])
    assert torch.count_nonzero(rest) == 0
    masked = sft.SftRow(row.input_ids, [sft.IGNORED] * len(row.labels))
    trainer.model.zero_grad()
    loss_of(trainer, [masked]).backward()
    assert all(p.grad is None or torch.count_nonzero(p.grad) == 0 for p in trainer.model.parameters())


# ---- runs ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_eight_trajectories_are_learned_by_heart(
    trajectories: list[Trajectory], tokenizer: Any, file: Path, tmp_path: Path
) -> None:
    recipe = recipe_for(file, tmp_path / "run", **{"train.steps": 75, "train.batch_size": 8, "train.save_every": 75})
    result = run(recipe, tokenizer)
    assert result.final is not None
    losses = [record["loss"] for record in read_metrics(tmp_path / "run" / "metrics.jsonl")]
    assert losses[-1] < 0.1 * losses[0]
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(result.final)
    row = sft.labelled_row(trajectories[3])
    start = row.labels.index(next(label for label in row.labels if label != sft.IGNORED))
    turn = trajectories[3].segments[1].token_ids or []
    with torch.no_grad():
        written = model.generate(torch.tensor([row.input_ids[:start]]), max_new_tokens=len(turn), do_sample=False)
    assert written[0, start:].tolist() == turn


class Killed(BaseException):
    """As sudden as a signal for the code that runs."""


def killer(step: int) -> Any:
    from transformers import TrainerCallback

    class Killer(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == step:
                raise Killed

    return Killer()


def curve(folder: Path) -> list[tuple[int, float, float]]:
    return [(r["step"], r["loss"], r["grad_norm"]) for r in read_metrics(folder / "metrics.jsonl")]


def test_a_killed_run_goes_on_as_if_nothing_had_happened(tokenizer: Any, file: Path, tmp_path: Path) -> None:
    whole = run(recipe_for(file, tmp_path / "whole"), tokenizer)
    with pytest.raises(Killed):
        run(recipe_for(file, tmp_path / "cut"), tokenizer, callbacks=[killer(5)])
    again = run(recipe_for(file, tmp_path / "cut"), tokenizer)
    assert curve(tmp_path / "cut") == curve(tmp_path / "whole")
    assert (again.step, whole.step) == (8, 8)
    lines: list[str] = []
    run(recipe_for(file, tmp_path / "cut"), tokenizer, say=lines.append)
    assert any("done" in line for line in lines)


def test_a_run_killed_in_the_middle_of_a_later_pass_goes_on_with_its_rows(
    tokenizer: Any, file: Path, tmp_path: Path
) -> None:
    changes = {"train.batch_size": 2, "train.save_every": 3, "train.steps": 9}  # four steps are a pass
    run(recipe_for(file, tmp_path / "whole", **changes), tokenizer)
    with pytest.raises(Killed):
        run(recipe_for(file, tmp_path / "cut", **changes), tokenizer, callbacks=[killer(7)])
    run(recipe_for(file, tmp_path / "cut", **changes), tokenizer)
    assert curve(tmp_path / "cut") == curve(tmp_path / "whole")


def test_a_longer_run_continues_a_shorter_one_exactly(tokenizer: Any, file: Path, tmp_path: Path) -> None:
    run(recipe_for(file, tmp_path / "whole", **{"train.steps": 5}), tokenizer)
    run(recipe_for(file, tmp_path / "parts", **{"train.steps": 3}), tokenizer)
    assert run(recipe_for(file, tmp_path / "parts", **{"train.steps": 5}), tokenizer).step == 5
    assert curve(tmp_path / "parts") == curve(tmp_path / "whole")
    weights = [tmp_path / name / "final" / "model.safetensors" for name in ("whole", "parts")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_a_time_limit_saves_and_stops(tokenizer: Any, file: Path, tmp_path: Path) -> None:
    result = run(recipe_for(file, tmp_path / "run"), tokenizer, time_limit_s=1e-3)
    assert result.final is None
    assert result.step == 1
    assert (tmp_path / "run" / "checkpoints" / "checkpoint-1" / "complete.json").is_file()


def test_lora_trains_and_saves_only_the_adapter(tokenizer: Any, file: Path, tmp_path: Path) -> None:
    recipe = recipe_for(file, tmp_path / "run", **{"model.lora_rank": 4, "train.steps": 3})
    result = run(recipe, tokenizer)
    assert result.final is not None
    config = json.loads((result.final / "adapter_config.json").read_text(encoding="utf-8"))
    assert config["r"] == 4
    assert not (result.final / "model.safetensors").exists()


def test_a_second_stage_goes_on_from_the_adapter_of_the_first(tokenizer: Any, file: Path, tmp_path: Path) -> None:
    changes = {"model.lora_rank": 4, "train.steps": 4, "train.lr": 1e-2}
    first = run(recipe_for(file, tmp_path / "first", **changes), tokenizer)
    second = run(recipe_for(file, tmp_path / "second", **changes, **{"model.adapter": str(first.final)}), tokenizer)
    losses = [
        float(row["loss"]) for name in ("first", "second") for row in read_metrics(tmp_path / name / "metrics.jsonl")
    ]
    assert second.step == 4
    assert losses[4] < losses[0] - 0.1, "it began where the first ended"


def test_an_adapter_of_sft_knows_its_base_and_trls_own_keys_pass_through(
    tokenizer: Any, file: Path, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    make_model(tokenizer).save_pretrained(base)
    tokenizer.save_pretrained(base)
    changes = {"model.lora_rank": 4, "train.steps": 2, "train.save_every": 1, "model.name": str(base)}
    recipe = recipe_for(file, tmp_path / "run", **changes, **{"trl.adam_epsilon": 1.0})
    result = sft.run_sft(recipe)
    assert result.final is not None
    for folder in (result.final, tmp_path / "run" / "checkpoints" / "checkpoint-1"):
        note = json.loads((folder / "parallelsearch.json").read_text(encoding="utf-8"))
        assert note == {"base_hash": models.base_hash(base), "base": str(base)}
    plain = sft.run_sft(recipe_for(file, tmp_path / "plain", **changes))
    assert plain.loss != result.loss, "TRL took the value"


def test_folding_changes_nothing_but_the_speed(tokenizer: Any, file: Path, tmp_path: Path) -> None:
    curves = []
    for fold in (False, True):
        changes = {"model.lora_rank": 4, "model.fold": fold, "train.batch_size": 8}
        run(recipe_for(file, tmp_path / str(fold), **changes), tokenizer)
        curves.append([number for row in curve(tmp_path / str(fold)) for number in row])
    assert curves[1] == pytest.approx(curves[0], rel=1e-3)
    assert curves[0][1] > curves[0][-2], "the loss falls"


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch's compiler asks for it, and warns itself
def test_pieces_and_compiled_layers_change_nothing_but_the_speed(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the compiler only the first half runs here: tracing the layers, for any shape. Making kernels takes a minute."""
    monkeypatch.setattr(Folded, "compile", functools.partialmethod(Folded.compile, backend="eager"))
    curves = []
    file = tmp_path / "unlike.jsonl"  # rows of one length would hide a piece that counts too much
    names = [name if number % 4 else " ".join([name] * 20) for number, name in enumerate(NAMES)]
    write_trajectories(file, [trajectory_of(name, TokenizerEncoder(tokenizer)) for name in names])
    for changes in (
        {"train.micro_batch_tokens": 100_000},  # all rows in one piece
        {"train.micro_batch_tokens": 400},
        {"train.micro_batch_tokens": 400, "model.compile": True},
    ):
        out = tmp_path / str(len(curves))
        shared = {"model.lora_rank": 4, "model.fold": True, "train.batch_size": 8, "train.steps": 4}
        run(recipe_for(file, out, **shared, **changes), tokenizer)
        figures = [(row["entropy"], row["mean_token_accuracy"]) for row in read_metrics(out / "metrics.jsonl")]
        curves.append([number for row in [*curve(out), *figures] for number in row])
    assert curves[1] == pytest.approx(curves[0], rel=1e-3)
    assert curves[2] == pytest.approx(curves[0], rel=1e-3)
    longer = {"model.lora_rank": 4, "model.fold": True, "train.batch_size": 8, "train.steps": 5}
    run(recipe_for(file, tmp_path / "2", **longer), tokenizer)  # goes on where the compiled one ended
    assert [row[0] for row in curve(tmp_path / "2")] == [1, 2, 3, 4, 5]
    said: list[str] = []
    run(recipe_for(file, tmp_path / "plain", **{"model.compile": True, "train.steps": 1}), tokenizer, say=said.append)
    assert "model.compile does nothing here" in said[0]


def test_a_padded_batch_is_cut_into_pieces_as_wide_as_they_have_to_be() -> None:
    lengths = [2, 7, 3, 7, 1]
    mask = torch.tensor([[int(place < length) for place in range(9)] for length in lengths])
    ids = torch.arange(45).view(5, 9) * mask
    pieces = list(pieces_of({"input_ids": ids, "attention_mask": mask}, max_tokens=14))
    assert [tuple(piece["input_ids"].shape) for piece in pieces] == [(2, 7), (3, 3)]
    assert sorted(int(row[0]) for piece in pieces for row in piece["input_ids"]) == [0, 9, 18, 27, 36]
    assert sum(int(piece["attention_mask"].sum()) for piece in pieces) == sum(lengths)


@pytest.mark.parametrize("wrong", [{"model.name": "/no/such/model"}, {"model.adapter": "/no/such/adapter"}])
def test_a_start_without_its_model_leaves_nothing_behind(
    tokenizer: Any, file: Path, tmp_path: Path, wrong: dict[str, str]
) -> None:
    make_model(tokenizer).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    right = {"model.name": str(tmp_path / "model"), "train.steps": 1}
    with pytest.raises(UsageError, match="/no/such"):
        sft.run_sft(recipe_for(file, tmp_path / "run", **{**right, **wrong}))
    assert not (tmp_path / "run").exists()
    assert sft.run_sft(recipe_for(file, tmp_path / "run", **right)).final is not None
    with pytest.raises(UsageError, match=r"model\.name"):
        sft.run_sft(recipe_for(file, tmp_path / "run", **{**right, "model.name": "/no/such/model"}))


def test_data_for_another_tokenizer_leaves_nothing_behind(tokenizer: Any, file: Path, tmp_path: Path) -> None:
    rows = sft.SftRows([sft.SftRow([1, 70_000], [1, 70_000])])
    with pytest.raises(UsageError, match="another tokenizer"):
        run(recipe_for(file, tmp_path / "run"), tokenizer, rows=rows)
    assert not (tmp_path / "run").exists()


def test_a_recipe_that_changed_or_is_not_for_sft_is_refused(tokenizer: Any, file: Path, tmp_path: Path) -> None:
    run(recipe_for(file, tmp_path / "run", **{"train.steps": 1}), tokenizer)
    with pytest.raises(UsageError, match=r"train\.lr"):
        run(recipe_for(file, tmp_path / "run", **{"train.steps": 1, "train.lr": 0.5}), tokenizer)
    with pytest.raises(UsageError, match="for grpo"):
        run(
            recipe_for(file, tmp_path / "other", **{"train.algorithm": "grpo", "train.micro_batch_tokens": 8000}),
            tokenizer,
        )

"""SFT in two processes (gloo) is SFT in one: the same rows in every step, the same loss, the same weights, one set of files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from ranks import Ranks
from tiny_runs import curve

from parallelsearch import grammar
from parallelsearch.coldstart.run import TokenizerEncoder
from parallelsearch.training import checkpoints
from parallelsearch.training.batches import RowOrder
from parallelsearch.training.metrics import read_metrics
from parallelsearch.training.recipe import load_recipe
from parallelsearch.training.sft import run_sft
from parallelsearch.training.smoke import make_model, make_tokenizer
from parallelsearch.trajectory import Trajectory, write_trajectories

pytest.importorskip("trl")
safetensors = pytest.importorskip("safetensors.torch")

NAMES = ("ash", "birch and beech", "cedar", "elm", "the fir of the far north")
"""Of many lengths, and too few for whole batches: the last step of a pass has one row, so one process has none."""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """A model and its trajectories on disk, as sections of a recipe."""
    folder = tmp_path_factory.mktemp("inputs")
    tokenizer = make_tokenizer()
    encoder = TokenizerEncoder(tokenizer)
    make_model(tokenizer).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    trajectories = []
    for name in NAMES:
        segments = [
            encoder.prompt(f"What is {name}?\n", name),
            encoder.insert(grammar.render_turn(f"I look for {name}", [f"{name} tree"]), "model"),
            encoder.insert(f"\n[1] {name}: a tree\n", "search"),
            encoder.insert(grammar.render_turn(f"[1] {name}", answer=name[::-1]), "model"),
        ]
        trajectories.append(Trajectory(name, segments, ["tree"], id=name, answer="tree", stop="answer"))
    write_trajectories(folder / "cold.jsonl", trajectories)
    return {"model": {"name": str(folder / "model")}, "data": {"train": str(folder / "cold.jsonl")}}


def write_recipe(inputs: dict[str, dict[str, str]], out: Path, changes: dict[str, Any]) -> Path:
    train = {"algorithm": "sft", "out": str(out), "steps": 8, "batch_size": 4, "max_length": 1024, "lr": 1e-2}
    train |= {"micro_batch_tokens": 600, "save_every": 3, "keep_checkpoints": 9}
    sections: dict[str, dict[str, Any]] = {**{name: dict(values) for name, values in inputs.items()}, "train": train}
    for key, value in changes.items():
        section, name = key.split(".")
        sections[section][name] = value
    lines = []
    for section, values in sections.items():
        lines += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    path = out.with_suffix(".toml")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def weights_of(out: Path) -> dict[str, Any]:
    [file] = (out / "final").glob("*.safetensors")
    return dict(safetensors.load_file(file))


@pytest.mark.slow
@pytest.mark.timeout(1_500)
@pytest.mark.parametrize(
    "changes",
    [
        {"train.micro_batch_tokens": 300},
        {"model.lora_rank": 4},
        {"model.lora_rank": 4, "model.fold": True, "train.micro_batch_tokens": 300},
    ],
    ids=["all weights", "adapter", "folded adapter"],
)
def test_two_processes_learn_what_one_does(
    inputs: dict[str, dict[str, str]], tmp_path: Path, changes: dict[str, Any]
) -> None:
    run_sft(load_recipe(write_recipe(inputs, tmp_path / "one", changes)))
    ranks = Ranks(write_recipe(inputs, tmp_path / "two", changes))
    assert ranks.wait(400) == [0, 0], ranks.said()[-4000:]
    one, two = (curve(read_metrics(tmp_path / name / "metrics.jsonl")) for name in ("one", "two"))
    assert [record["step"] for record in two] == list(range(1, 9)), "only the first process writes"
    for single, double in zip(one, two, strict=True):
        for name in ("loss", "grad_norm", "learning_rate"):
            assert double[name] == pytest.approx(single[name], rel=1e-4), (name, single["step"])
    assert one[-1]["loss"] < one[0]["loss"]
    after_one, after_two = weights_of(tmp_path / "one"), weights_of(tmp_path / "two")
    assert after_one.keys() == after_two.keys()
    for name, tensor in after_one.items():
        assert (after_two[name] - tensor).abs().max() < 1e-5, name
    files = [{path.name for path in (tmp_path / name / "final").iterdir()} for name in ("one", "two")]
    assert files[0] == files[1]


@pytest.mark.slow
@pytest.mark.timeout(1_500)
def test_two_processes_stop_together_and_go_on_exactly(inputs: dict[str, dict[str, str]], tmp_path: Path) -> None:
    changes = {"train.batch_size": 2, "train.save_every": 4, "model.lora_rank": 4}  # three steps are a pass

    def metrics(name: str) -> list[dict[str, Any]]:
        return curve(read_metrics(tmp_path / name / "metrics.jsonl"))

    whole = Ranks(write_recipe(inputs, tmp_path / "whole", changes))
    assert whole.wait(400) == [0, 0], whole.said()[-4000:]

    recipe = write_recipe(inputs, tmp_path / "stopped", changes)
    first = Ranks(recipe, "--time-limit-s", "0.001")
    assert first.wait(400) == [0, 0], first.said()[-4000:]
    assert [step for step, _ in checkpoints.completed(tmp_path / "stopped" / "checkpoints")] == [1]
    again = Ranks(recipe)
    assert again.wait(400) == [0, 0], again.said()[-4000:]
    assert "going on from step 1" in again.said()
    assert metrics("stopped") == metrics("whole")

    # As if killed after step 4 was saved, in the second pass.
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    shutil.rmtree(tmp_path / "killed" / "final")
    shutil.rmtree(tmp_path / "killed" / "checkpoints" / "checkpoint-8")
    last = Ranks(write_recipe(inputs, tmp_path / "killed", changes))
    assert last.wait(400) == [0, 0], last.said()[-4000:]
    assert "going on from step 4" in last.said()
    assert metrics("killed") == metrics("whole")
    for name, tensor in weights_of(tmp_path / "whole").items():
        assert tensor.equal(weights_of(tmp_path / "killed")[name]), name


def test_every_pass_has_all_rows_in_an_order_of_its_own_that_processes_do_not_change() -> None:
    lengths = [5, 90, 7, 80, 6, 70, 8, 60, 9, 50, 10]
    passes = []
    for round_size in (1, 2, 4):
        order = RowOrder(lengths, 4, round_size, seed=3, number_of_pass=iter(range(6)).__next__)
        found = [list(order) for _ in range(6)]
        assert all(sorted(one) == list(range(len(order))) for one in found)
        assert all(one[11:] == list(range(11, len(order))) for one in found), "fillers come last"
        assert len(order) == {1: 11, 2: 12, 4: 12}[round_size]
        passes.append([one[:11] for one in found])
    assert passes[0] == passes[1] == passes[2]
    assert len({tuple(one) for one in passes[0]}) == 6, "passes differ"
    assert passes[0][0] != list(RowOrder(lengths, 4, 1, seed=4, number_of_pass=lambda: 0)), "seeds differ"

"""One decision for every way to start a run: which recipe is for which trainer, and what does not fit it."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from parallelsearch.errors import UsageError
from parallelsearch.training.start import start

RECIPES = Path(__file__).parents[2] / "recipes"
CLUSTER = str(RECIPES / "verl-7b-grpo.toml")
HERE = str(RECIPES / "cpu-smoke.toml")
SWEEP = str(RECIPES / "sweep-smoke.toml")


def main(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """What `python -m parallelsearch train ...` does, and its exit status."""
    monkeypatch.setattr("sys.argv", ["parallelsearch", "train", *arguments])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("parallelsearch", run_name="__main__")
    return int(ended.value.code or 0)


def test_of_several_processes_the_first_speaks(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = [CLUSTER, f"train.out={tmp_path / 'run'}", "search.address=demo", "train.steps=7", "--dry-run"]
    assert main(arguments, monkeypatch) == 0
    assert "total_training_steps=7" in capsys.readouterr().out
    monkeypatch.setenv("RANK", "1")
    assert main(arguments, monkeypatch) == 0
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([CLUSTER, "--time-limit-s", "60"], "for runs on one machine"),
        ([CLUSTER, "verl.nodes=2"], "Did you mean 'num_nodes'"),
        ([HERE, "--dry-run"], "has no [verl] section"),
        ([SWEEP, "--dry-run"], "has no [verl] section"),
        ([str(RECIPES / "coldstart-wide.toml")], "a recipe of another command: parallelsearch coldstart "),
    ],
)
def test_what_does_not_fit_a_recipe_is_a_message_and_a_status(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(arguments, monkeypatch) == UsageError.exit_status
    assert message in capsys.readouterr().err


def test_a_launcher_of_several_processes_starts_no_verl(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert main([CLUSTER, "--dry-run"], monkeypatch) == UsageError.exit_status
    assert "without 'accelerate launch'" in capsys.readouterr().err


@pytest.mark.parametrize("algorithm", ["grpo", "sft"])
def test_a_sweep_is_not_one_run(algorithm: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="use sweep instead of train"):
        start(SWEEP, [f"train.algorithm={algorithm}", f"train.out={tmp_path / 'run'}"], say=lambda line: None)
    assert not (tmp_path / "run").exists()

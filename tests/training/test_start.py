"""One decision for every way to start a run: which recipe is for which trainer, and what does not fit it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from parallelsearch.cli import app
from parallelsearch.errors import UsageError
from parallelsearch.training.__main__ import main
from parallelsearch.training.start import start

RECIPES = Path(__file__).parents[2] / "recipes"
CLUSTER = str(RECIPES / "verl-7b-grpo.toml")
HERE = str(RECIPES / "cpu-smoke.toml")
SWEEP = str(RECIPES / "sweep-smoke.toml")


def test_the_module_prints_the_command_that_the_command_line_prints(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = [CLUSTER, f"train.out={tmp_path / 'run'}", "search.address=demo", "--dry-run"]
    expected = CliRunner().invoke(app, ["train", *arguments], catch_exceptions=False).stdout
    assert main([*arguments, "--steps", "7"]) == 0
    printed = capsys.readouterr().out
    assert "-m verl.trainer.main_ppo" in expected
    command = printed[printed.index(expected.splitlines()[0]) :]
    changed = set(command.splitlines()) ^ set(expected.splitlines())
    assert any("total_training_steps=7" in line for line in changed)
    assert all("steps" in line for line in changed), changed
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([CLUSTER, "--time-limit-s", "60"], "for runs on one machine"),
        ([CLUSTER, "verl.nodes=2"], "Did you mean 'num_nodes'"),
        ([HERE, "--dry-run"], "has no [verl] section"),
        ([SWEEP, "--dry-run"], "has no [verl] section"),
    ],
)
def test_what_does_not_fit_a_recipe_is_a_message_and_a_status(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == UsageError.exit_status
    assert message in capsys.readouterr().err


def test_a_launcher_of_several_processes_starts_no_verl(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert main([CLUSTER, "--dry-run"]) == UsageError.exit_status
    assert "without 'accelerate launch'" in capsys.readouterr().err


@pytest.mark.parametrize("algorithm", ["grpo", "sft"])
def test_a_sweep_is_not_one_run(algorithm: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="use sweep instead of train"):
        start(SWEEP, [f"train.algorithm={algorithm}", f"train.out={tmp_path / 'run'}"], say=lambda line: None)
    assert not (tmp_path / "run").exists()

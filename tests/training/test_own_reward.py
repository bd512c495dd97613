"""A recipe with a reward of one's own: it is what the steps learn from, and a run goes on only with the one it began with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import tiny_recipe

from parallelsearch.errors import RewardError, UsageError
from parallelsearch.training.recipe import Recipe, parse_recipe
from parallelsearch.training.run import train
from parallelsearch.trajectory import read_trajectories

MINE = """
from parallelsearch import Reward

COST = 0.25

def frugal(trajectory):
    return Reward(trajectory.is_right, 0.0, -COST * trajectory.num_subqueries, 0.0)

def breaks(trajectory):
    raise LookupError("no such page")
"""


def recipe_in(folder: Path, **changes: Any) -> Recipe:
    return tiny_recipe(
        folder / "run", {"reward.preset": "mine:frugal", "train.steps": 1, "train.save_every": 1, **changes}
    )


def test_steps_are_scored_by_it_and_a_changed_one_is_seen(own_folder: Path) -> None:
    mine = own_folder / "mine.py"
    mine.write_text(MINE)
    assert train(recipe_in(own_folder)).is_finished
    (path,) = (own_folder / "run" / "trajectories").glob("*.jsonl*")
    for trajectory in read_trajectories(path):
        assert trajectory.rewards is not None
        assert trajectory.rewards["search_count"] == -0.25 * trajectory.num_subqueries
        assert trajectory.rewards["decomposition"] == 0.0
    (step,) = [json.loads(line) for line in (own_folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert step["reward/search_count"] < 0.0
    noted = json.loads((own_folder / "run" / "run.json").read_text())["reward"]
    assert (noted["preset"], len(noted["sha256"])) == ("mine:frugal", 64)

    mine.write_text(MINE.replace("COST = 0.25", "COST = 0.5"))
    again = {"train.steps": 2}
    with pytest.raises(UsageError, match=r"reward\.sha256: '.* against '.*(.|\n)*add: train\.reward_changed=true"):
        train(recipe_in(own_folder, **again))
    assert train(recipe_in(own_folder, **again, **{"train.reward_changed": True})).step == 2


def test_one_that_breaks_ends_the_run_and_names_the_question(own_folder: Path) -> None:
    (own_folder / "mine.py").write_text(MINE)
    with pytest.raises(
        RewardError, match=r"'mine:breaks' broke on the trajectory '.+': LookupError: no such page \(mine.py, li"
    ):
        train(recipe_in(own_folder, **{"reward.preset": "mine:breaks"}))


def test_a_recipe_says_what_is_wrong_with_it_before_anything_is_loaded(own_folder: Path) -> None:
    (own_folder / "mine.py").write_text(MINE)
    values = tiny_recipe(own_folder / "run").model_dump(exclude={"sweep"})
    for preset, message in [
        ("mine:frugle", r"'reward': 'mine' \(.*mine.py\) has no 'frugle'. Did you mean 'frugal'\?"),
        ("mien:frugal", "there is no module 'mien' for the reward"),
        ("mine:COST", "a function of a trajectory is wanted"),
    ]:
        with pytest.raises(UsageError, match=message):
            parse_recipe(values, {"reward.preset": preset})

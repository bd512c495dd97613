"""From a recipe file to the run it asks for: SFT, GRPO or PPO on this machine, or verl on a cluster.

The one place that decides. It prints nothing: what came of the run goes back to the caller, as a record and as text.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parallelsearch.errors import UsageError
from parallelsearch.http import without_login
from parallelsearch.policy.models import ADAPTER_CONFIG
from parallelsearch.training.recipe import Recipe, load_recipe
from parallelsearch.training.run import train
from parallelsearch.training.sft import run_sft
from parallelsearch.training.verl import launch
from parallelsearch.training.verl.recipe import VerlRecipe, is_cluster_recipe, load_cluster_recipe

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a start: `record` for programs (it is JSON), `text` for people."""

    record: Any
    text: str


def start(
    path: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    *,
    say: Say,
    time_limit_s: float | None = None,
    dry_run: bool = False,
) -> Outcome:
    """Run what the recipe says, to its end. `dry_run` checks a recipe for a cluster and gives the command of its run."""
    if is_cluster_recipe(path):
        if time_limit_s is not None:
            raise UsageError("--time-limit-s is for runs on one machine; verl saves every train.save_every steps")
        _refuse_launcher()
        return _start_on_cluster(load_cluster_recipe(path, overrides), say, dry_run)
    if dry_run:
        raise UsageError(f"--dry-run prints the command of a cluster run, and '{path}' has no [verl] section")
    return _start_here(load_recipe(path, overrides), say, time_limit_s)


def _start_here(recipe: Recipe, say: Say, time_limit_s: float | None) -> Outcome:
    if recipe.sweep is not None:
        raise UsageError("this recipe has a [sweep] section: it stands for several runs; use sweep instead of train")
    if recipe.train.algorithm == "sft":
        tuned = run_sft(recipe, say=say, time_limit_s=time_limit_s)
        outcome = _outcome(out=str(tuned.out), step=tuned.step, final=None if tuned.final is None else str(tuned.final))
        return _with_address(outcome, recipe, tuned.final)
    run = train(recipe, say=say, time_limit_s=time_limit_s)
    best = None if run.best is None else str(run.best)
    outcome = _outcome(out=str(run.out), step=run.step, best=best, best_accuracy=run.best_accuracy)
    return _with_address(outcome, recipe, run.best or run.last)


def _with_address(outcome: Outcome, recipe: Recipe, trained: Path | None) -> Outcome:
    """With the address of what was trained, and the command that asks it."""
    if trained is None:
        return outcome
    model, search = recipe.model, without_login(recipe.search.address)
    address, first = f"hf:{trained}", ""
    if (trained / ADAPTER_CONFIG).is_file():
        base = model.name
        if model.adapter is not None and model.merge_adapter:  # the weights it stands on are in no folder yet
            base = str(recipe.out / "base")
            first = f"first write its base with: parallelsearch export hf:{model.name}+{model.adapter} {base}\n"
        address = f"hf:{base}+{trained}"
    where = "" if search == "demo" else f" --search {search}"
    told = f'{first}ask it with: parallelsearch ask "..." --policy {address}{where}'
    return Outcome({**outcome.record, "address": address}, f"{outcome.text}\n{told}")


def _start_on_cluster(recipe: VerlRecipe, say: Say, dry_run: bool) -> Outcome:
    if dry_run:
        return Outcome(launch.command(recipe), launch.dry_run(recipe, say))
    launch.launch(recipe, say)
    return _outcome(out=str(recipe.out), checkpoints=str(recipe.out / "checkpoints"))


def _refuse_launcher() -> None:
    """A launcher of torch's would start verl once for each of its processes. It is known by LOCAL_RANK: some clusters set
    WORLD_SIZE without any launcher."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if "LOCAL_RANK" in os.environ and world > 1:
        raise UsageError(
            f"this is one of {world} processes, and verl starts its own: run 'parallelsearch train RECIPE' on "
            "one node, without 'accelerate launch' or torchrun"
        )


def _outcome(**record: Any) -> Outcome:
    return Outcome(record, "\n".join(f"{name}: {value}" for name, value in record.items()))

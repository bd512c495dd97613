"""`coldstart`, `train` and `sweep`: a recipe and its overrides to a run, one line a step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from parallelsearch.commands.options import JsonOption

RecipeArgument = Annotated[Path, typer.Argument(help="A recipe: one TOML file.")]
OverridesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="section.key=value", help="What to change in it.")
]
TimeLimitOption = Annotated[float | None, typer.Option(help="Save and stop before so many seconds have passed.")]


def _say(line: str) -> None:
    typer.echo(line, err=True)


def coldstart(recipe: RecipeArgument, overrides: OverridesArgument = None, as_json: JsonOption = False) -> None:
    """Build trajectories for the cold start from questions with known evidence, with real search results.

    Example: parallelsearch coldstart coldstart-own-questions.toml
    """
    from parallelsearch.training.coldstart_run import load_coldstart_recipe, run_coldstart

    report = run_coldstart(load_coldstart_recipe(recipe, overrides or ()), _say)
    typer.echo(json.dumps(report, ensure_ascii=False, indent=None if as_json else 1))


def train(
    recipe: RecipeArgument,
    overrides: OverridesArgument = None,
    time_limit_s: TimeLimitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train as a recipe says (SFT, GRPO or PPO), or go on with a run that was stopped.

    Example: parallelsearch train cpu-smoke.toml train.steps=2 train.eval_every=0
    """
    from parallelsearch.training.loop import train as train_policy
    from parallelsearch.training.recipe import load_recipe
    from parallelsearch.training.sft import train_sft

    settings = load_recipe(recipe, overrides or ())
    if settings.train.algorithm == "sft":
        tuned = train_sft(settings, say=_say, time_limit_s=time_limit_s)
        result = {"out": str(tuned.out), "step": tuned.step, "final": None if tuned.final is None else str(tuned.final)}
    else:
        run = train_policy(settings, say=_say, time_limit_s=time_limit_s)
        result = {
            "out": str(run.out),
            "step": run.step,
            "best": None if run.best is None else str(run.best),
            "best_accuracy": run.best_accuracy,
        }
    if as_json:
        typer.echo(json.dumps(result))
    else:
        typer.echo("\n".join(f"{name}: {value}" for name, value in result.items()))


def sweep(
    recipe: RecipeArgument,
    overrides: OverridesArgument = None,
    time_limit_s: TimeLimitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run the grid in a recipe's [sweep] section, one run after another, into one table.

    Example: parallelsearch sweep sweep-smoke.toml
    """
    from parallelsearch.training.sweep import sweep as run_sweep

    records = run_sweep(recipe, overrides or (), say=_say, time_limit_s=time_limit_s)
    for record in records:
        typer.echo(json.dumps(record) if as_json else "  ".join(f"{key}={value}" for key, value in record.items()))

"""`coldstart`, `train` and `sweep`: a recipe and its overrides to a run, one line a step; `export`: a plain model folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from parallelsearch.commands.options import JsonOption
from parallelsearch.errors import UsageError

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
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Of a recipe for a cluster: check it and print the command.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Train as a recipe says (SFT, GRPO or PPO), or go on with a run that was stopped.

    A recipe with a [verl] section is run by verl on a Ray cluster.

    Example: parallelsearch train cpu-smoke.toml train.steps=2 train.eval_every=0

    Example: parallelsearch train verl-7b-grpo.toml --dry-run
    """
    from parallelsearch.training.verl.recipe import is_cluster_recipe

    if is_cluster_recipe(recipe):
        if time_limit_s is not None:
            raise UsageError("--time-limit-s is for runs on one machine; verl saves every train.save_every steps")
        _train_on_cluster(recipe, overrides or (), dry_run, as_json)
        return
    if dry_run:
        raise UsageError(f"--dry-run prints the command of a cluster run, and '{recipe}' has no [verl] section")
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


def _train_on_cluster(recipe: Path, overrides: Sequence[str], dry_run: bool, as_json: bool) -> None:
    from parallelsearch.training.verl import launch
    from parallelsearch.training.verl.recipe import load_cluster_recipe

    settings = load_cluster_recipe(recipe, overrides)
    if dry_run:
        shown = launch.dry_run(settings, _say)
        typer.echo(json.dumps(launch.command(settings)) if as_json else shown)
        return
    launch.launch(settings, _say)
    result = {"out": str(settings.out), "checkpoints": str(settings.out / "checkpoints")}
    typer.echo(json.dumps(result) if as_json else "\n".join(f"{name}: {value}" for name, value in result.items()))


def export(
    source: Annotated[
        str,
        typer.Argument(
            help="hf:BASE+ADAPTER to merge; or a verl run's folder (its newest checkpoint), or a global_step_N."
        ),
    ],
    out: Annotated[Path, typer.Argument(help="The folder to write.")],
    as_json: JsonOption = False,
) -> None:
    """Write a plain model folder that ask, eval, serve and other programs take.

    Example: parallelsearch export hf:smollm2-135m+parallel merged
    """
    if source.startswith("hf:"):
        from parallelsearch.policy.models import parse_spec, write_merged

        folder = write_merged(parse_spec(source.removeprefix("hf:")), out)
        result = {"folder": str(folder), "address": f"hf:{folder}"}
        typer.echo(json.dumps(result) if as_json else f"{source} is now in {folder}\nuse it with: --policy hf:{folder}")
        return
    from parallelsearch.training.verl.export import export as export_checkpoint

    done = export_checkpoint(Path(source), out)
    if as_json:
        typer.echo(
            json.dumps({"folder": str(done.folder), "address": done.address, "checkpoint": str(done.checkpoint)})
        )
    else:
        typer.echo(f"{done.checkpoint} is now in {done.folder}\nuse it with: --policy {done.address}")


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

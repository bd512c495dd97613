"""`coldstart`, `train` and `sweep`: a recipe and its overrides to a run; `export`: a plain model folder, or a GGUF file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from parallelsearch.cli.options import JsonOption, say
from parallelsearch.errors import UsageError

RecipeArgument = Annotated[Path, typer.Argument(help="A recipe: one TOML file.")]
OverridesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="section.key=value", help="What to change in it.")
]
TimeLimitOption = Annotated[float | None, typer.Option(help="Save and stop before so many seconds have passed.")]


def _is_first() -> bool:
    """Of the processes that a launcher started, or the only one: it speaks for all."""
    return int(os.environ.get("RANK", "0")) == 0


def _say(line: str) -> None:
    if _is_first():
        say(line, err=True)


def coldstart(recipe: RecipeArgument, overrides: OverridesArgument = None, as_json: JsonOption = False) -> None:
    """Build trajectories to learn the first turns from.

    They come from questions with known evidence, and hold real search results.

    Example: parallelsearch coldstart coldstart-own-questions.toml
    """
    from parallelsearch.coldstart.recipe import load_coldstart_recipe
    from parallelsearch.coldstart.run import run_coldstart

    report = run_coldstart(load_coldstart_recipe(recipe, overrides or ()), _say)
    say(json.dumps(report, ensure_ascii=False, indent=None if as_json else 1))


def train(
    recipe: RecipeArgument,
    overrides: OverridesArgument = None,
    time_limit_s: TimeLimitOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Of a recipe for a cluster: check it and print the command.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Train as a recipe says (SFT, GRPO or PPO).

    A run that was stopped goes on. A recipe with a [verl] section is run by verl on a Ray cluster.

    Example: parallelsearch train cpu-smoke.toml train.steps=2 train.eval_every=0

    Example: parallelsearch train verl-7b-grpo.toml --dry-run
    """
    from parallelsearch.training.start import start

    outcome = start(recipe, overrides or (), say=_say, time_limit_s=time_limit_s, dry_run=dry_run)
    if _is_first():
        say(json.dumps(outcome.record) if as_json else outcome.text)


def export(
    source: Annotated[
        str,
        typer.Argument(
            help="hf:BASE+ADAPTER to merge; or a verl run's folder (its newest checkpoint), or a global_step_N."
        ),
    ],
    out: Annotated[
        Path,
        typer.Argument(help="The folder to write; a name that ends in .gguf is one file for llama.cpp and its kin."),
    ],
    dtype: Annotated[
        str | None, typer.Option(metavar="TYPE", help="Of a .gguf file: f16 (if not said), bf16, f32 or q8_0.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a trained model as a plain folder, or as a GGUF file.

    ask, eval, serve and other programs take the folder; llama.cpp and its kin take the file.

    Example: parallelsearch export hf:smollm2-135m+parallel merged

    Example: parallelsearch export hf:smollm2-135m+parallel parallel.gguf
    """
    from parallelsearch.policy.models import ADAPTER_CONFIG

    if (Path(source) / ADAPTER_CONFIG).is_file():  # what teach and train leave behind
        raise UsageError(
            f"'{source}' holds an adapter, which goes on top of a model; try: parallelsearch export hf:BASE+{source} {out}"
        )
    if out.suffix == ".gguf":
        _export_gguf(source, out, dtype or "f16", as_json)
        return
    if dtype is not None:
        raise UsageError(
            f"--dtype is for a file, and '{out}' does not end in .gguf; a folder keeps the base's own type"
        )
    if source.startswith("hf:"):
        from parallelsearch.policy.models import parse_spec, write_merged

        folder = write_merged(parse_spec(source.removeprefix("hf:")), out)
        result = {"folder": str(folder), "address": f"hf:{folder}"}
        say(json.dumps(result) if as_json else f"{source} is now in {folder}\nuse it with: --policy hf:{folder}")
        return
    from parallelsearch.training.verl.export import export as export_checkpoint

    done = export_checkpoint(Path(source), out)
    if as_json:
        say(json.dumps({"folder": str(done.folder), "address": done.address, "checkpoint": str(done.checkpoint)}))
    else:
        say(f"{done.checkpoint} is now in {done.folder}\nuse it with: --policy {done.address}")


def _export_gguf(source: str, out: Path, dtype: str, as_json: bool) -> None:
    if source.startswith("gguf:"):
        raise UsageError(f"a .gguf file is made of a model, hf:MODEL; try: parallelsearch export hf:{source[5:]} {out}")
    if not source.startswith("hf:"):
        raise UsageError(
            f"a .gguf file is made of a model, hf:MODEL. Merge a checkpoint first: parallelsearch export {source} FOLDER, "
            f"then: parallelsearch export hf:FOLDER {out}"
        )
    from parallelsearch.policy.gguf_export import write_gguf
    from parallelsearch.policy.models import parse_spec

    file = write_gguf(parse_spec(source.removeprefix("hf:")), out, dtype)
    result = {"file": str(file), "num_bytes": file.stat().st_size, "address": f"hf:{file}"}
    if as_json:
        say(json.dumps(result))
    else:
        say(f"{source} is now in {file}\nuse it with: --policy gguf:{file}, or llama-server -m {file}")


def sweep(
    recipe: RecipeArgument,
    overrides: OverridesArgument = None,
    time_limit_s: TimeLimitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run the grid of a recipe, one run after another.

    The grid is the section [sweep]; the runs come into one table.

    Example: parallelsearch sweep sweep-smoke.toml
    """
    from parallelsearch.training.sweep import sweep as run_sweep

    records = run_sweep(recipe, overrides or (), say=_say, time_limit_s=time_limit_s)
    for record in records if _is_first() else ():
        say(json.dumps(record) if as_json else "  ".join(f"{key}={value}" for key, value in record.items()))

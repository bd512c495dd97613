"""`python -m parallelsearch.training RECIPE [section.key=value ...]`: a run of any algorithm, or a sweep, from a recipe.

For `accelerate launch -m parallelsearch.training ...` and machines where the command line is not installed. One line a step
on standard output; a mistake of the user's prints its message and no traceback.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from parallelsearch.errors import ParallelSearchError
from parallelsearch.training.recipe import load_recipe
from parallelsearch.training.start import start
from parallelsearch.training.sweep import sweep
from parallelsearch.training.verl.recipe import is_cluster_recipe


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m parallelsearch.training", description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    parser.add_argument("--steps", type=int, help="the same as train.steps=N")
    parser.add_argument("--time-limit-s", type=float, help="save and stop before so many seconds have passed")
    parser.add_argument("--dry-run", action="store_true", help="of a recipe for a cluster: check it, print the command")
    options = parser.parse_args(arguments)
    overrides = [*options.overrides, *([f"train.steps={options.steps}"] if options.steps else [])]
    try:
        say(_run(options.recipe, overrides, options.time_limit_s, options.dry_run))
    except ParallelSearchError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_status
    return 0


def _run(path: str, overrides: Sequence[str], time_limit_s: float | None, dry_run: bool) -> str:
    if not is_cluster_recipe(path) and not dry_run:
        recipe = load_recipe(path, overrides)
        if recipe.sweep is not None:
            records = sweep(path, overrides, say=say, time_limit_s=time_limit_s)
            return f"{len(records)} runs finished, side by side in {recipe.out / 'sweep.csv'}"
    return start(path, overrides, say=say, time_limit_s=time_limit_s, dry_run=dry_run).text


def say(line: str) -> None:
    """The first process speaks for all."""
    if int(os.environ.get("RANK", "0")) == 0:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

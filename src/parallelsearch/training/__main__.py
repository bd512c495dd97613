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
from parallelsearch.training.loop import train
from parallelsearch.training.recipe import load_recipe
from parallelsearch.training.sft import train_sft
from parallelsearch.training.sweep import sweep


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m parallelsearch.training", description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    parser.add_argument("--steps", type=int, help="the same as train.steps=N")
    parser.add_argument("--time-limit-s", type=float, help="save and stop before so many seconds have passed")
    options = parser.parse_args(arguments)
    overrides = [*options.overrides, *([f"train.steps={options.steps}"] if options.steps else [])]
    try:
        recipe = load_recipe(options.recipe, overrides)
        if recipe.sweep is not None:
            records = sweep(options.recipe, overrides, say=say, time_limit_s=options.time_limit_s)
            say(f"{len(records)} runs finished, side by side in {recipe.out / 'sweep.csv'}")
        elif recipe.train.algorithm == "sft":
            train_sft(recipe, say=say, time_limit_s=options.time_limit_s)
        else:
            result = train(recipe, say=say, time_limit_s=options.time_limit_s)
            say(f"step {result.step}, best validation accuracy {result.best_accuracy}, in {result.out}")
    except ParallelSearchError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_status
    return 0


def say(line: str) -> None:
    """The first process speaks for all."""
    if int(os.environ.get("RANK", "0")) == 0:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

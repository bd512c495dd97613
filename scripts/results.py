"""The published tables, from rows that anybody can check: docs/results/*.jsonl.zst to docs/results.md and other pages.

    python scripts/results.py                             # write the tables between their marks anew
    python scripts/results.py --check                     # exit 1 if a table is not what the rows say
    python scripts/results.py keep NAME RUN... --search A # keep a policy's rows: verdicts, calls, gold, parts, places
    python scripts/results.py keep-whole --search A       # the same for the arms that need no model
    python scripts/results.py plot                        # docs/images/wide.png and undecided-steps.png

`kept_rows.py` has what a row is, the files ending in `_tables.py` have the tables. A policy of several seeds has a file
for each: NAME.SEED.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import base_tables
import result_tables
import reward_tables
from kept_rows import ROWS, Kept, keep, keep_whole, read_all
from marked import filled, write
from result_tables import SHIPPED, wide_figures
from reward_tables import steps_figures

from parallelsearch.errors import ParallelSearchError, UsageError
from parallelsearch.evaluation.plots import save_grid

PAGE, IMAGES = ROWS.parent / "results.md", ROWS.parent / "images"
TABLES = {**result_tables.TABLES, **reward_tables.TABLES, **base_tables.TABLES}
ROOT = ROWS.parents[1]
HISTORY = PAGE.with_name("results-history.md")
CARD = ROOT / "src" / "parallelsearch" / "adapters" / SHIPPED / "README.md"
PAGES = (PAGE, HISTORY, *map(PAGE.with_name, ("larger-base.md", "rewards.md")), ROOT / "README.md", CARD)
"""Where tables stand between marks."""


def page_with_tables(text: str, kept: Kept | None = None) -> str:
    """The page with every marked table as the rows have it."""
    rows = read_all() if kept is None else kept
    return filled(text, "rows", lambda name: TABLES[name](rows))


def write_plots(folder: Path, kept: Kept | None = None) -> None:
    wide = wide_figures(read_all() if kept is None else kept)
    if all(one.is_empty for one in wide):
        raise UsageError("no run on the wide set is kept yet: there is nothing to draw")
    for name, figures in (("wide.png", wide), ("undecided-steps.png", steps_figures())):
        save_grid(figures, folder / name, num_columns=len(figures))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 if a table is not what the rows say"
    )
    commands = parser.add_subparsers(dest="command")
    kept = commands.add_parser("keep", help="keep the rows of a policy's runs")
    kept.add_argument("name", help="of the policy; several seeds are NAME.s1, NAME.s2")
    kept.add_argument("runs", type=Path, nargs="+")
    kept.add_argument("--search", help="for the places of gold, where the sets have them")
    kept.add_argument("--add", action="store_true", help="leave the sets that the file has and these runs have not")
    kept.add_argument("--rows", type=Path, help="the folder to write to, if not docs/results")
    commands.add_parser("keep-whole", help="keep the arms without a model").add_argument("--search", required=True)
    commands.add_parser("plot", help="draw the plots of docs/images").add_argument("--out", type=Path, default=IMAGES)
    options = parser.parse_args(arguments)
    try:
        return _run(options)
    except ParallelSearchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _run(options: argparse.Namespace) -> int:
    if options.command == "keep":
        _say([asyncio.run(keep(options.name, options.runs, options.search, adds=options.add, rows=options.rows))])
    elif options.command == "keep-whole":
        _say(asyncio.run(keep_whole(options.search)))
    elif options.command == "plot":
        write_plots(options.out)
    else:
        rows = read_all()
        return write(PAGES, lambda text: page_with_tables(text, rows), only_checks=options.check)
    return 0


def _say(paths: Sequence[Path]) -> None:
    for path in paths:
        print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    sys.exit(main())

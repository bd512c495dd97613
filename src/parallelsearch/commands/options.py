"""Options that mean the same in every command, and the progress bar they share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

PolicyOption = Annotated[
    str, typer.Option("--policy", metavar="ADDRESS", help="Who answers; 'demo', hf:..., openai:...")
]
SearchOption = Annotated[
    str, typer.Option("--search", metavar="ADDRESS", help="Where to look; 'demo', bm25:DIR, http://...")
]
KOption = Annotated[int, typer.Option("--k", help="Hits for each sub-query.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of everything that draws at random.")]
HostOption = Annotated[str, typer.Option("--host", help="Where to listen; the default is this machine alone.")]
AllowedHostOption = Annotated[
    list[str] | None,
    typer.Option("--allowed-host", metavar="NAME", help="A name the server goes by, behind a proxy; may be repeated."),
]
PortOption = Annotated[int, typer.Option("--port", help="0 takes any free port.")]


def console(stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)


@contextmanager
def progress(what: str, show: bool = True) -> Iterator[Callable[[int, int | None], None]]:
    """A progress bar on standard error for work that takes longer than a second."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(
        *columns, TimeRemainingColumn(), console=console(stderr=True), disable=not show, transient=True
    ) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)

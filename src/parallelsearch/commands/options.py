"""Options that mean the same in every command, and the progress bar they share."""

from __future__ import annotations

import time
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


Update = Callable[[int, int | None, str], None]
"""How many are done, of how many if that is known, and what else there is to say."""
SECONDS_BETWEEN_LINES = 30.0
MIN_SHARE_TO_JUDGE = 0.05
"""Of what there was to do, this much must be done before the time left is worth saying."""


@contextmanager
def progress(what: str, show: bool = True) -> Iterator[Update]:
    """Long work on standard error: a bar on a terminal; elsewhere, as in a log file, a line every half minute."""
    where = console(stderr=True)
    if not show:
        yield lambda done, total, detail: None
    elif where.is_terminal:
        yield from _bar(what, where)
    else:
        yield lines(what, lambda line: typer.echo(line, err=True))


def _bar(what: str, where: Console) -> Iterator[Update]:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[detail]}"))
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=where, transient=True) as bar:
        task = bar.add_task(what, total=None, detail="")
        yield lambda done, total, detail: bar.update(task, completed=done, total=total, detail=detail)


def lines(what: str, say: Callable[[str], None], now: Callable[[], float] = time.monotonic) -> Update:
    """Progress as lines of text, so few that they can be kept. The time left is that of what is done since the start: a run
    that goes on begins with what it had."""
    start = last = now()
    had: int | None = None

    def update(done: int, total: int | None, detail: str) -> None:
        nonlocal last, had
        had = done if had is None else had
        at = now()
        if at - last < SECONDS_BETWEEN_LINES:
            return
        last = at
        parts = [f"{done:,} of {total:,}" if total is not None else f"{done:,}", detail, f"after {_clock(at - start)}"]
        if total is not None and done - had >= max(1, MIN_SHARE_TO_JUDGE * (total - had)):
            parts.append(f"about {_clock((at - start) * (total - done) / (done - had))} left")
        say(f"{what}: {', '.join(part for part in parts if part)}")

    return update


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"

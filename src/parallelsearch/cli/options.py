"""Options that mean the same in every command, and the progress bar they share."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, TypeVar, get_type_hints

import typer

from parallelsearch.untrusted import printable

if TYPE_CHECKING:
    from rich.console import Console

    from parallelsearch.limits import Limits, Prices
    from parallelsearch.retrieval.live_files import LiveFiles

QuestionArgument = Annotated[
    list[str], typer.Argument(metavar="QUESTION", help="What you want to know, best in quotes.", show_default=False)
]
PolicyOption = Annotated[
    str,
    typer.Option(
        "--policy",
        metavar="ADDRESS",
        help="Who answers; 'auto', 'demo', gguf:..., hf:..., openai:..., anthropic:..., python:MODULE:NAME",
    ),
]
SearchOption = Annotated[
    str | None,
    typer.Option(
        "--search",
        metavar="ADDRESS",
        help="Where to look; files:PATH, wikipedia:, bm25:DIR, http://..., python:MODULE:NAME, ... Default: demo, the "
        "embedded corpus.",
    ),
]
DialectOption = Annotated[
    str | None,
    typer.Option(
        "--dialect",
        metavar="NAME",
        help="How the model talks: parallel, sequential, search-r1, rag, ... Default: what it was trained on.",
    ),
]
AnswerWithOption = Annotated[
    str | None,
    typer.Option(
        "--answer-with",
        metavar="ADDRESS",
        help="Another model that reads what the policy found and answers: hf:..., openai:..., anthropic:...",
    ),
]
WrittenOption = Annotated[
    bool,
    typer.Option(
        "--written",
        help="A text with the numbers of its sources rather than a short answer; of a chat model, or with --answer-with.",
    ),
]
ForceAnswerOption = Annotated[
    bool,
    typer.Option("--force-answer", help="Give the answer also where nothing that was found holds it; default: say so."),
]
RecordOption = Annotated[
    Path | None, typer.Option("--record", metavar="FILE", help="Record the searches to this file, for replay:FILE.")
]
CacheOption = Annotated[
    Path | None, typer.Option("--cache", metavar="FILE", help="Keep search results in this SQLite file.")
]
CacheDaysOption = Annotated[
    float | None, typer.Option("--cache-days", help="How long --cache keeps a result; default: for ever.")
]
KOption = Annotated[int, typer.Option("--k", help="Hits for each sub-query.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of everything that draws at random.")]
LimitOption = Annotated[
    int | None, typer.Option("--limit", help="Only so many questions of each set, drawn at random.")
]
LimitSeedOption = Annotated[
    int, typer.Option("--limit-seed", help="Another number draws others for --limit; --seed does not.")
]
HostOption = Annotated[str, typer.Option("--host", help="Where to listen; the default is this machine alone.")]
AllowedHostOption = Annotated[
    list[str] | None,
    typer.Option("--allowed-host", metavar="NAME", help="A name the server goes by, behind a proxy; may be repeated."),
]
PortOption = Annotated[int, typer.Option("--port", help="0 takes any free port.")]


AUTO = "auto"
"""`addresses.DEFAULT_POLICY`, which a test holds to it: to import that here would slow `--help` down."""


DEMO = "demo"
"""The policy that replays written turns, and the corpus that they were written over."""


def chosen(policy: str) -> str:
    """The address to open; what `auto` takes is told on standard error."""
    if policy != AUTO:
        return policy
    from parallelsearch.policy.auto import choose

    choice = choose()
    note(str(choice))
    return choice.address


def searched(search: str | None, policy: str | None = None) -> str:
    """The address to look in. Who named none may have forgotten it, and would take the embedded corpus for theirs, so that is
    told on standard error; the demo policy, which replays turns over it, needs no such word."""
    if search is None and policy != DEMO:
        note(
            f"search: {DEMO} (the embedded corpus, because no --search was given); for Wikipedia: --search wikipedia:; "
            "for your own pages: --search files:FOLDER_OR_CORPUS"
        )
    if search is not None:
        _index_files(search)
    return DEMO if search is None else search


def _index_files(search: str) -> None:
    """Index the files of `files:` here, where a bar can show it, and what is left out be said."""
    from parallelsearch.addresses import files_of

    for files in files_of(search):
        report = _indexed(files)
        if report is not None:
            passages = "passage" if report["num_passages"] == 1 else "passages"
            say(f"search: '{files.path}' was indexed anew, {report['num_passages']} {passages}", err=True)
            tell_left_out(report)


def _indexed(files: LiveFiles) -> dict[str, Any] | None:
    with progress("passages", show=console(stderr=True).is_terminal) as update:
        return files.refresh(lambda done, total: update(done, total, ""))


def asked(words: Sequence[str], command: str) -> str:
    """The question, also of who typed it without quotes."""
    from parallelsearch.errors import UsageError
    from parallelsearch.trajectory import Question

    question = " ".join(words)
    if Question(question).is_empty:
        example = f'parallelsearch {command} "Who wrote Emma?"'
        raise UsageError(f"the question is empty, there is no word in it; type one, for example: {example}")
    return question


# Limits and weights have their defaults in `limits.Limits` and `rewards.Weights`; to import these here would double the time
# that `--help` takes. An option that was not typed is None, and `given` leaves it to them.


def given(**options: Any) -> dict[str, Any]:
    """The options that were typed."""
    return {name: value for name, value in options.items() if value is not None}


class LimitOptions(TypedDict, total=False):
    """The options on where a question ends and what it costs: a command takes them as `**limits` and is `limited`."""

    max_turns: Annotated[int | None, typer.Option(help="Turns that may search; one more must answer.")]
    max_tokens_per_turn: Annotated[int | None, typer.Option(help="Tokens the model may write in a turn.")]
    max_observation_tokens: Annotated[int | None, typer.Option(help="Tokens of results in a round.")]
    tokens_per_subquery: Annotated[
        int | None, typer.Option(help="The same for each sub-query of a wide round, where that is more.")
    ]
    max_tokens: Annotated[int | None, typer.Option(help="Prompt, turns and results together.")]
    timeout_s: Annotated[float | None, typer.Option(help="Seconds until the best answer so far is given.")]
    prices: Annotated[
        str | None,
        typer.Option(
            metavar="READ,WRITTEN,SEARCHED",
            help="What a million tokens read, a million written and a thousand queries cost: gives the cost of a question.",
        ),
    ]
    max_cost: Annotated[
        float | None, typer.Option(help="What one question may cost, by --prices; the last call must answer.")
    ]


Command = TypeVar("Command", bound=Callable[..., None])


def limited(command: Command) -> Command:
    """Spells `**limits` out for typer, which makes an option of each parameter."""
    own = inspect.signature(command, eval_str=True)
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint)
        for name, hint in get_type_hints(LimitOptions, include_extras=True).items()
    ]
    parameters = [one for one in own.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    command.__signature__ = own.replace(parameters=[*parameters, *options])  # type: ignore[attr-defined]
    return command


def limits_of(typed: LimitOptions, usual: Limits | None = None) -> Limits:
    """The limits that were typed, the others as usual."""
    from parallelsearch.limits import Limits

    return replace(usual or Limits(), **{**given(**typed), "prices": prices_of(typed.get("prices"))})


def prices_of(text: str | None) -> Prices | None:
    """Prices as they are typed."""
    from parallelsearch.errors import UsageError
    from parallelsearch.limits import Prices

    if text is None:
        return None
    try:
        read, written, searched = map(float, text.split(","))
    except ValueError:
        raise UsageError(f"--prices takes three numbers with commas, such as 0.15,0.6,1, not '{text}'") from None
    return Prices(read, written, searched)


# Everything the commands print goes through these two, because much of it is from outside: error bodies, records, answers.


def say(text: str, err: bool = False) -> None:
    """Print a line, or JSON, with nothing in it that a terminal would obey."""
    typer.echo(printable(text), err=err)


def note(text: str) -> None:
    """Say on standard error what a command chose. A terminal that is too narrow gets a line for each part, or it would tear
    the commands in them."""
    where = console(stderr=True)
    say(text.replace("; ", "\n  ") if where.is_terminal and len(text) > where.width else text, err=True)


def tell_left_out(report: Mapping[str, Any]) -> None:
    """What of a corpus is not in its index."""
    if report["num_skipped"]:
        number, shown = report["num_skipped"], len(report["problems"])
        some = f", the first {shown} of them" if shown < number else ""
        say(f"{number} {'record was' if number == 1 else 'records were'} skipped{some}:", err=True)
        for problem in report["problems"]:
            say(f"  {problem}", err=True)
    if others := report["not_read"]:
        number, kinds = sum(others.values()), ", ".join(f"{kind} {count}" for kind, count in others.items())
        files = "file of another kind was" if number == 1 else "files of other kinds were"
        say(f"{number} {files} not read: {kinds}", err=True)
        if table := next((kind for kind in (".csv", ".tsv", ".parquet") if kind in others), None):
            both = f"index FOLDER FILE{table}, or --search 'all:files:FOLDER|files:FILE{table}'"
            say(f"  a table is read where it is named itself: {both}", err=True)


def console(stderr: bool = False) -> Console:
    """For tables and colour: what it writes to the terminal is its own commands and printable text. Strings are what they
    are: `[b]` or `:dog:` in somebody's id is no markup."""
    from rich.console import Console
    from rich.segment import Segment

    class SafeConsole(Console):
        def render(self, *arguments: Any, **options: Any) -> Iterable[Segment]:
            for text, style, control in super().render(*arguments, **options):
                yield Segment(text if control else printable(text), style, control)

    return SafeConsole(stderr=stderr, highlight=False, markup=False, emoji=False)


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
        yield lines(what, lambda line: say(line, err=True))


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

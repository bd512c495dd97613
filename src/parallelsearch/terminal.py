"""What a person sees in the terminal: a trajectory with its sub-queries side by side, and a rollout while it happens.

Everything from outside (questions, passages, answers) goes through `Text`, which takes no markup, and loses its control
characters first.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from parallelsearch import grammar
from parallelsearch.answers import exact_match
from parallelsearch.rollout import Event
from parallelsearch.trajectory import Query, Trajectory, Turn

_WATERFALL_WIDTH = 48


def safe(text: str) -> str:
    """Text from outside without escape sequences and invisible characters."""
    return grammar.defuse(text)


def _shorten(text: str, max_chars: int) -> str:
    text = " ".join(safe(text).split())
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"


def trajectory_view(trajectory: Trajectory, width: int = 100) -> RenderableType:
    """A whole trajectory: turns, sub-queries side by side, hits, answer, timing."""
    parts: list[RenderableType] = [Text(safe(trajectory.question), style="bold")]
    texts = [segment.text for segment in trajectory.segments if segment.author == "model"]
    written = iter(texts)
    for number, turn in enumerate(trajectory.turns, start=1):
        text = next(written, "") if turn.finish != "timeout" else ""
        parts.append(_turn_view(number, turn, text, width))
    parts.append(_answer_line(trajectory))
    parts.append(_figures_line(trajectory))
    if any(turn.generate_s for turn in trajectory.turns):
        parts.append(_waterfall(trajectory))
    return Group(*parts)


def _turn_view(number: int, turn: Turn, text: str, width: int) -> RenderableType:
    parsed = grammar.parse_turn(text)
    parts: list[RenderableType] = []
    if parsed.thought:
        parts.append(Text(safe(parsed.thought), style="italic"))
    if turn.queries:
        across = min(len(turn.queries), max(1, width // 36))
        panels = [_query_panel(query, (width - 4) // across - 1) for query in turn.queries]
        parts.append(Columns(panels, padding=(0, 1), expand=False))
    if turn.dropped_queries:
        parts.append(Text(f"{len(turn.dropped_queries)} sub-queries over the limit were not asked", style="yellow"))
    problems = [problem for problem in turn.problems if problem]
    if problems:
        parts.append(Text("problems: " + ", ".join(problems), style="yellow"))
    if turn.finish == "timeout":
        parts.append(Text("cut off by the deadline", style="yellow"))
    if not parts:
        parts.append(Text(_shorten(text, 400)))
    title = f"turn {number}" + (f" · {len(turn.queries)} searches at once" if len(turn.queries) > 1 else "")
    return Panel(Group(*parts), title=title, title_align="left", border_style="dim")


def _query_panel(query: Query, width: int) -> RenderableType:
    body = Text()
    if query.error is not None:
        body.append(_shorten(query.error, 200), style="red")
    elif not query.hits:
        body.append("nothing found", style="dim")
    for hit in query.hits:
        body.append(_shorten(hit.title or hit.id, width - 6) + "\n", style="cyan")
        body.append(_shorten(hit.text, 2 * (width - 6)) + "\n", style="dim")
    took = "cached" if query.cached else f"{(query.end_s - query.start_s) * 1000:.0f} ms"
    body.rstrip()
    return Panel(
        body,
        title=Text(_shorten(query.text, width - 6)),
        subtitle=took,
        width=width,
        title_align="left",
        border_style="green",
    )


def _answer_line(trajectory: Trajectory) -> Text:
    if trajectory.answer is None:
        line = Text("no answer", style="bold red")
        line.append(f" ({trajectory.error or trajectory.stop})", style="red")
        return line
    line = Text("answer: ", style="bold")
    line.append(safe(trajectory.answer), style="bold green")
    if trajectory.golden_answers:
        is_right = exact_match(trajectory.answer, trajectory.golden_answers)
        golden = " or ".join(safe(golden) for golden in trajectory.golden_answers[:3])
        line.append("  right" if is_right else f"  wrong, expected {golden}", style="green" if is_right else "red")
    return line


def _figures_line(trajectory: Trajectory) -> Text:
    took = f", {trajectory.elapsed_s:.2f} s" if trajectory.elapsed_s is not None else ""
    return Text(
        f"{_count(trajectory.num_llm_calls, 'LLM call')}, {_count(trajectory.num_searches, 'round')} of search, "
        f"{trajectory.num_subqueries} {'sub-query' if trajectory.num_subqueries == 1 else 'sub-queries'}{took}",
        style="dim",
    )


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _waterfall(trajectory: Trajectory) -> RenderableType:
    """When the model wrote and when each search ran, on one time axis."""
    end_s = max(
        [trajectory.elapsed_s or 0.0]
        + [turn.start_s + turn.generate_s for turn in trajectory.turns]
        + [query.end_s for turn in trajectory.turns for query in turn.queries]
    )
    table = Table.grid(padding=(0, 1))
    for number, turn in enumerate(trajectory.turns, start=1):
        table.add_row(
            f"turn {number}", _bar(turn.start_s, turn.start_s + turn.generate_s, end_s, "blue"), _ms(turn.generate_s)
        )
        for query in turn.queries:
            name = Text("  " + _shorten(query.text, 30), style="dim")
            table.add_row(name, _bar(query.start_s, query.end_s, end_s, "green"), _ms(query.end_s - query.start_s))
    return table


def _bar(start_s: float, end_s: float, whole_s: float, colour: str) -> Text:
    scale = _WATERFALL_WIDTH / max(whole_s, 1e-9)
    left = min(_WATERFALL_WIDTH - 1, int(start_s * scale))
    size = max(1, min(_WATERFALL_WIDTH - left, round((end_s - start_s) * scale)))
    return Text(" " * left) + Text("━" * size, style=colour)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"


class LiveNarrator:
    """Tells what a rollout does as it happens, a line each, for people who wait at a terminal."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def __call__(self, event: Event) -> None:
        if event.kind == "turn":
            self._line(event, f"turn {event.turn + 1}: the model writes", "dim")
        elif event.kind == "query":
            self._line(event, f"  search  {_shorten(event.text, 90)}", "cyan")
        elif event.kind == "result" and event.query is not None:
            found = "failed" if event.query.error is not None else f"{len(event.query.hits)} hits"
            self._line(
                event, f"  {found:<7} {_shorten(event.text, 90)}", "green" if event.query.error is None else "red"
            )
        elif event.kind == "notice":
            self._line(event, "  the turn could not be used; the model is told why", "yellow")

    def _line(self, event: Event, text: str, style: str) -> None:
        self.console.print(Text(f"{event.time_s:6.2f} s  {text}", style=style))


def score_table(rows: Iterable[dict[str, object]], preset: str) -> Table:
    table = Table(title=f"reward preset '{preset}'", title_justify="left")
    for name in ("id", "outcome", "decomposition", "search_count", "format", "total"):
        table.add_column(name, justify="left" if name == "id" else "right")
    for row in rows:
        table.add_row(
            *(f"{value:.2f}" if isinstance(value, float) else Text(safe(str(value))) for value in row.values())
        )
    return table

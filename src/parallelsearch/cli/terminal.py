"""What a person sees in the terminal: a trajectory with its sub-queries side by side, and a rollout while it happens.

Everything from outside (questions, passages, answers) goes through `Text`, which takes no markup, and loses its control
characters first.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from types import TracebackType

from markdown_it import MarkdownIt
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.markdown import Markdown
from rich.padding import Padding
from rich.panel import Panel
from rich.status import Status
from rich.table import Table
from rich.text import Text

from parallelsearch import grammar
from parallelsearch.grounding import Citation, Cited, cite, nearest, sentence_of, sources_of
from parallelsearch.retrieval.base import Hit
from parallelsearch.retrieval.metadata import place_of
from parallelsearch.retrieving import Retrieval
from parallelsearch.rewards import PARTS
from parallelsearch.rollout import Event
from parallelsearch.trajectory import MANY_CUT, Query, Reading, Trajectory, Turn
from parallelsearch.untrusted import finite, printable

_WATERFALL_WIDTH, _NAME_WIDTH, _LENGTH_WIDTH = 48, 32, 8
_PANEL_WIDTH = 4
"""What a panel's border and padding take of a line."""
_LIVE_CHARS = 1_000
_WIDE = 4
"""So many searches at once, and of each is listed only what the model was first shown with it."""
_MAX_S = 1e7
_MAX_DOUBTS = 3
_CHATS = ("tools", "tools-answer", "tools-sequential", "tools-written")


def safe(text: str) -> str:
    """Text from outside without escape sequences and invisible characters."""
    return printable(grammar.defuse(text))


def _shorten(text: str, max_chars: int) -> str:
    text = safe(" ".join(text[: 4 * max_chars + 1].split()))  # in this order: a carriage return is a blank, no escape
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"


def trajectory_view(trajectory: Trajectory, width: int = 100, *, tells_error: bool = True) -> RenderableType:
    """A whole trajectory: turns, sub-queries side by side, hits, answer, timing. Who tells its error elsewhere leaves that
    out."""
    parts: list[RenderableType] = [Text(safe(trajectory.question), style="bold")]
    for number, turn in enumerate(trajectory.turns, start=1):
        if trajectory.stop != "error" or turn.text or turn.queries:  # a model that was not reached wrote no turn
            is_below = bool(trajectory.written) and turn.action == "answer" and trajectory.answer is not None
            parts.append(_turn_view(number, turn, width, is_below))
    if trajectory.reading is not None:
        parts.append(_reading_view(trajectory.reading, bool(trajectory.written) and trajectory.answer is not None))
    cited = cite(trajectory)
    if trajectory.written and trajectory.answer is not None:
        parts += _written_answer(trajectory, cited)
    else:
        parts.append(_answer_line(trajectory, tells_error))
        if cited.citations:
            parts.append(Text(f"rests on: {'; '.join(map(_citation, cited.citations))}"))
    if trajectory.abstained is not None:
        parts += _abstained_lines(trajectory, width)
    parts.append(_figures_line(trajectory))
    if note := _cut_note(trajectory):
        parts.append(Text(note, style="yellow"))
    if any(turn.generate_s for turn in trajectory.turns):
        parts.append(_waterfall(trajectory, width))
    return Group(*parts)


def _turn_view(number: int, turn: Turn, width: int, is_below: bool = False) -> RenderableType:
    """One turn. `is_below`: what it wrote is shown below, as the answer."""
    parts: list[RenderableType] = []
    if turn.thought:
        parts.append(Text(safe(turn.thought), style="italic"))
    if turn.queries:
        across = min(len(turn.queries), max(1, width // 36))
        shown = {(one.query, one.id) for one in turn.shown} if len(turn.queries) >= _WIDE else set()
        panels = []
        for place, query in enumerate(turn.queries):
            hits = [hit for hit in query.hits if (place, hit.id) in shown] or query.hits[: 1 if shown else None]
            panels.append(_query_panel(query, (width - _PANEL_WIDTH) // across - 1, hits))
        parts.append(Columns(panels, padding=(0, 1), expand=False))
    if turn.dropped_queries:
        parts.append(Text(f"{len(turn.dropped_queries)} sub-queries over the limit were not asked", style="yellow"))
    problems = [problem for problem in turn.problems if problem]
    if problems and not parts and turn.text.strip():
        parts.append(Text(_shorten(turn.text.strip().splitlines()[0], width - _PANEL_WIDTH)))
    if problems:
        parts.append(Text("problems: " + _shorten(", ".join(problems), 400), style="yellow"))
    if turn.finish == "timeout":
        parts.append(Text("cut off by the deadline", style="yellow"))
    if not parts:
        parts.append(Text("writes the text below", style="dim") if is_below else Text(_shorten(turn.text, 400)))
    title = f"turn {number}" + (f" · {len(turn.queries)} searches at once" if len(turn.queries) > 1 else "")
    return Panel(Group(*parts), title=title, title_align="left", border_style="dim")


def _query_panel(query: Query, width: int, hits: Sequence[Hit]) -> RenderableType:
    """One search with these of its hits; the others are counted."""
    body = Text()
    if query.error is not None:
        body.append(_shorten(query.error, 200), style="red")
    elif not query.hits:
        body.append("nothing found", style="dim")
    for hit in hits:
        body.append(_shorten(hit.title or hit.id, width - 6) + "\n", style="cyan")
        if place := place_of(hit):
            body.append(_shorten(place, width - 6) + "\n")
        body.append(_shorten(hit.text, 2 * (width - 6)) + "\n", style="dim")
    if num_left := len(query.hits) - len(hits):
        body.append(f"and {num_left} more\n", style="dim")
    took = "cached" if query.cached else _ms(query.end_s - query.start_s)
    body.rstrip()
    return Panel(
        body,
        title=Text(_shorten(query.text, width - 6)),
        subtitle=took,
        width=width,
        title_align="left",
        border_style="green",
    )


def _reading_view(reading: Reading, is_below: bool = False) -> RenderableType:
    """What another model made of the passages."""
    who = _shorten(str(reading.policy.get("model") or reading.policy.get("kind") or "another model"), 60)
    lines = [Text(_shorten(reading.text, 400))] if reading.text and not is_below else []
    if reading.error is not None:
        lines.append(
            Text(f"it failed, so the policy's own answer stands: {_shorten(reading.error, 300)}", style="yellow")
        )
    elif reading.own_answer:
        lines.append(Text(f"the policy's own answer: {_shorten(reading.own_answer, 200)}", style="dim"))
    return Panel(Group(*lines), title=Text(f"read by {who}"), title_align="left", border_style="dim")


def retrieval_view(found: Retrieval) -> RenderableType:
    """The merged passages, each with the sub-queries that found it."""
    parts: list[RenderableType] = [Text(safe(found.question), style="bold")]
    for query in found.queries:
        line = Text(f"  {_shorten(query.text, 200)}", style="green" if query.error is None else "red")
        line.append(f"  {_count(len(query.hits), 'hit')}" if query.error is None else "  failed", style="dim")
        parts.append(line)
    for passage in found.passages:
        head = Text(f"{passage.rank:>3}  ")
        head.append(_shorten(passage.title or passage.id, 200), style="cyan")
        if place := place_of(passage):
            head.append(f"  {_shorten(place, 200)}", style="dim")
        parts += [head, Padding(Text(_shorten(passage.text, 600)), (0, 0, 0, 5))]
        parts.append(Text(f"     found by: {_shorten('; '.join(passage.queries), 300)}", style="dim"))
    calls = _count(found.trajectory.num_llm_calls, "LLM call")
    took = f"{_count(len(found.passages), 'passage')}, {calls}, {found.elapsed_s:.2f} s"
    return Group(*parts, Text(took, style="dim"))


def _answer_line(trajectory: Trajectory, tells_error: bool) -> Text:
    if trajectory.abstained is not None:
        return Text(sentence_of(trajectory), style="bold yellow")
    if trajectory.answer is None:
        line = Text("no answer", style="bold red")
        if tells_error or trajectory.stop != "error":
            line.append(f" ({safe(trajectory.why_no_answer or '')})", style="red")
        return line
    line = Text("answer: ", style="bold")
    line.append(safe(trajectory.answer), style="bold green")
    if trajectory.golden_answers:
        is_right = trajectory.is_right
        golden = " or ".join(safe(golden) for golden in trajectory.golden_answers[:3])
        line.append("  right" if is_right else f"  wrong, expected {golden}", style="green" if is_right else "red")
    return line


def _written_answer(trajectory: Trajectory, cited: Cited) -> list[RenderableType]:
    """A text as its Markdown means it, its sources, and what a person should look at."""
    text = "\n".join(safe(line) for line in cited.text.splitlines())
    parts: list[RenderableType] = [_markdown(text), Text("sources", style="bold")]
    parts += [Text(f"  {_citation(one)}") for one in cited.citations]
    for doubt in cited.doubts[:_MAX_DOUBTS]:
        missing = ", ".join(doubt.missing)
        parts.append(
            Text(f'look again: "{_shorten(doubt.text, 120)}", and [{doubt.number}] has no {missing}', style="yellow")
        )
    last = trajectory.reading or (trajectory.turns[-1] if trajectory.turns else None)
    if last is not None and last.finish == "length":
        parts.append(Text("the text was cut off where a turn ends; for more: --max-tokens-per-turn", style="yellow"))
    return parts


def _markdown(text: str) -> Markdown:
    """Links would hide where they lead, and their definitions would make one of `[1]`. HTML would not be shown; entities
    would bring back what `safe` has taken out."""
    drawn = Markdown("", hyperlinks=False)
    parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
    drawn.parsed = parser.disable(["reference", "entity"]).parse(text)
    return drawn


def _citation(one: Citation) -> str:
    # Each by itself: behind a long title nobody would see where it stands.
    words = (_shorten(one.title or one.id, 150), _shorten(one.place or "", 220), _shorten(one.url or "", 200))
    return f"[{one.number}] {', '.join(filter(None, words))}"


def _abstained_lines(trajectory: Trajectory, width: int) -> list[RenderableType]:
    """What came nearest, and what the model would have said."""
    lines: list[RenderableType] = []
    sources = nearest(sources_of(trajectory))
    if sources:
        lines.append(Text("what came nearest:", style="dim"))
        lines += [Text(_shorten(f"  [{one.number}] {one.title}: {one.text}", width), style="dim") for one in sources]
    said = trajectory.abstained.answer if trajectory.abstained is not None else None
    if said:
        lines.append(Text(f"the model's own guess: {_shorten(said, width)} (--force-answer gives it)", style="dim"))
    return lines


def _figures_line(trajectory: Trajectory) -> Text:
    took = f", {_sane(trajectory.elapsed_s):.2f} s" if trajectory.elapsed_s is not None else ""
    return Text(
        f"{_count(trajectory.num_llm_calls, 'LLM call')}, {_count(trajectory.num_searches, 'round')} of search, "
        f"{trajectory.num_subqueries} {'sub-query' if trajectory.num_subqueries == 1 else 'sub-queries'}{took}",
        style="dim",
    )


def _cut_note(trajectory: Trajectory) -> str:
    """For a model that was not trained on how much it is shown, and may well read more."""
    shown, cut = trajectory.num_passages_shown, trajectory.num_passages_cut
    limits = trajectory.limits or {}
    if not (trajectory.dialect in _CHATS and shown and cut / shown >= MANY_CUT):
        return ""
    return (
        f"{cut} of {shown} passages were cut to fit into {limits.get('max_observation_tokens')} tokens a round; for a model "
        "with a long context: --max-observation-tokens 4000 --tokens-per-subquery 800 --max-tokens 32000"
    )


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _waterfall(trajectory: Trajectory, width: int) -> RenderableType:
    """When the model wrote and when each search ran, on one time axis; names and axis share the width."""
    name_width = min(_NAME_WIDTH, 2 * width // 5)
    axis_width = max(1, min(_WATERFALL_WIDTH, width - name_width - _LENGTH_WIDTH - 2))
    end_s = max(
        [_sane(trajectory.elapsed_s)]
        + [_sane(turn.start_s) + _sane(turn.generate_s) for turn in trajectory.turns]
        + [_sane(query.end_s) for turn in trajectory.turns for query in turn.queries]
    )
    table = Table.grid(padding=(0, 1))
    for number, turn in enumerate(trajectory.turns, start=1):
        bar = _bar(turn.start_s, turn.start_s + turn.generate_s, end_s, axis_width, "blue")
        table.add_row(f"turn {number}", bar, _ms(turn.generate_s))
        for query in turn.queries:
            name = Text("  " + _shorten(query.text, name_width - 2), style="dim")
            bar = _bar(query.start_s, query.end_s, end_s, axis_width, "green")
            table.add_row(name, bar, _ms(query.end_s - query.start_s))
    return table


def _sane(seconds: float | None) -> float:
    """A time of a record, which may say what no clock says: NaN, a century, less than nothing."""
    return min(max(finite(seconds) or 0.0, 0.0), _MAX_S)


def _bar(start_s: float, end_s: float, whole_s: float, width: int, colour: str) -> Text:
    start_s, end_s = _sane(start_s), _sane(end_s)
    scale = width / max(whole_s, 1e-9)
    left = min(width - 1, int(start_s * scale))
    size = max(1, min(width - left, round((end_s - start_s) * scale)))
    return Text(" " * left) + Text("━" * size, style=colour)


def _ms(seconds: float) -> str:
    seconds = _sane(seconds)
    return f"{seconds * 1000:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"


class LiveNarrator:
    """Tells what a rollout does as it happens, for people who wait at a terminal: a line for each thing, and below them, for
    as long as the model writes, the end of what it has written. In a `with` block, which takes that last line away."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._status = Status("", console=console, spinner="dots", spinner_style="dim")
        self._written, self._num_pieces = "", 0
        self._lock, self._is_over = threading.Lock(), False

    def __enter__(self) -> LiveNarrator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:  # a rollout that was stopped may still tell something, in its own thread
            self._is_over = True
            self._status.stop()

    def __call__(self, event: Event) -> None:
        with self._lock:
            if not self._is_over:
                self._tell(event)

    def _tell(self, event: Event) -> None:
        if event.kind == "text":
            self._written = (self._written + event.text)[-_LIVE_CHARS:]
            self._num_pieces += 1
            self._status.update(self._last_line())
            self._status.start()
        elif event.kind == "turn":
            self._written, self._num_pieces = "", 0
            self._line(event, f"turn {event.turn + 1}: the model writes", "dim")
        elif event.kind in ("answer", "abstained"):
            self._status.stop()
        elif event.kind == "query":
            self._line(event, f"  search  {_shorten(event.text, 90)}", "cyan")
        elif event.kind == "result" and event.query is not None:
            found = "failed" if event.query.error is not None else f"{len(event.query.hits)} hits"
            self._line(
                event, f"  {found:<7} {_shorten(event.text, 90)}", "green" if event.query.error is None else "red"
            )
        elif event.kind == "reading":
            self._line(event, f"read by {_shorten(event.text, 60)}", "dim")
        elif event.kind == "notice":
            self._line(event, "  the turn could not be used; the model is told why", "yellow")

    def _last_line(self) -> Text:
        """How much was written, and the end of it, on one line. Engines give a piece for each token, about."""
        head = f"{self._num_pieces} tokens  "
        room = max(10, self.console.width - len(head) - 4)
        tail = " ".join(safe(self._written).split())
        return Text(head + (tail if len(tail) <= room else f"…{tail[1 - room :]}"), style="dim", no_wrap=True)

    def _line(self, event: Event, text: str, style: str) -> None:
        self.console.print(Text(f"{event.time_s:6.2f} s  {text}", style=style))


def score_table(rows: Iterable[dict[str, object]], preset: str) -> Table:
    table = Table(title=f"reward preset '{preset}'", title_justify="left")
    for name in ("id", *PARTS):
        table.add_column(name, justify="left" if name == "id" else "right")
    for row in rows:
        table.add_row(
            *(f"{value:.2f}" if isinstance(value, float) else Text(safe(str(value))) for value in row.values())
        )
    return table

"""A record as a piece of HTML: what a notebook shows of a trajectory or a retrieval, and a report of its examples.

One piece with its own style, no script, and nothing that is fetched. Every text goes through `_text`, which escapes it. It
has no colours of its own for text and paper, so that it takes those of the page it stands in, light or dark: a notebook's
theme need not be that of the system. It reads records and imports nothing that makes them, so that a record can show itself.
What an answer rests on is found out further up, and not said here.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from parallelsearch.retrieval.base import Hit
from parallelsearch.retrieval.metadata import place_of
from parallelsearch.untrusted import finite, printable, web_url

if TYPE_CHECKING:
    from parallelsearch.retrieving import MergedHit, Retrieval
    from parallelsearch.trajectory import Query, Reading, Shown, Trajectory, Turn

_MAX_TEXT, _MAX_WRITTEN = 4_000, 20_000
"""Of a passage, a thought and the like; of a text that was written for an answer."""
_WRITES = "writes the text of the answer"
_CLASSES = "parallelsearch tex2jax_ignore mathjax_ignore"
"""Jupyter would set what stands between two dollars as a formula."""
# Lines and bars alone have a colour, of a middle brightness: they are seen on white and on black.
STYLE = """
.parallelsearch { font: 14px/1.45 system-ui, sans-serif; color: inherit; max-width: 76rem; overflow-wrap: anywhere; }
.parallelsearch p { margin: .3em 0; white-space: pre-wrap; }
.parallelsearch .asked { font-weight: 600; font-size: 1.1em; }
.parallelsearch .soft { opacity: .75; font-size: .9em; }
.parallelsearch .thought { font-style: italic; }
.parallelsearch .turn { border-left: 3px solid #8a6fc4; padding: 0 0 .1em .8em; margin: .7em 0; }
.parallelsearch .queries { display: grid; gap: .6em; margin: .4em 0;
  grid-template-columns: repeat(auto-fit, minmax(min(13rem, 100%), 1fr)); }
.parallelsearch .query { border: 1px solid rgba(128, 128, 128, .5); border-top: 3px solid #23967f; border-radius: .5em;
  padding: .4em .7em; min-width: 0; }
.parallelsearch .query.failed { border-top-color: #d9622b; }
.parallelsearch .query > .name { font-weight: 600; }
.parallelsearch ol.hits { margin: .2em 0 0; padding: 0; list-style: none; }
.parallelsearch ol.hits > li { margin: .15em 0; }
.parallelsearch summary { cursor: pointer; }
.parallelsearch .answer { border-left: 3px solid #23967f; padding-left: .8em; }
.parallelsearch .answer.none { border-left-color: #d9622b; }
.parallelsearch pre { white-space: pre-wrap; overflow-wrap: anywhere; font-size: 12.5px; margin: .4em 0; padding: 0 0 0 .8em;
  background: none; color: inherit; border: 0; border-left: 3px solid rgba(128, 128, 128, .5); }
.parallelsearch pre.model { border-left-color: #8a6fc4; }
.parallelsearch pre.search { border-left-color: #23967f; }
.parallelsearch pre.notice { border-left-color: #d9622b; }
"""


def trajectory_html(trajectory: Trajectory) -> str:
    """A whole trajectory: the question, what happened, the answer."""
    counts = (
        _count(trajectory.num_llm_calls, "LLM call"),
        f"{_count(trajectory.num_searches, 'round')} of search",
        f"{trajectory.num_subqueries} {'sub-query' if trajectory.num_subqueries == 1 else 'sub-queries'}",
        f"{finite(trajectory.elapsed_s) or 0.0:.2f} s",
    )
    return _piece(
        [
            _line("asked", trajectory.question),
            _steps(trajectory),
            *_answer(trajectory),
            _line("soft", ", ".join(counts[: None if trajectory.elapsed_s is not None else -1])),
            _as_written(trajectory),
        ]
    )


def steps_html(trajectory: Trajectory) -> str:
    """What happened, for a page that says question and answer itself, and has `STYLE`."""
    return f'<div class="{_CLASSES}">{_steps(trajectory)}{_as_written(trajectory)}</div>'


def text_html(trajectory: Trajectory) -> str:
    """A written answer, for such a page."""
    return f'<div class="{_CLASSES}">{"".join(_answer(trajectory))}</div>'


def retrieval_html(found: Retrieval) -> str:
    """The sub-queries side by side, and the merged passages with those that found them."""
    cards = [
        _card(query, _count(len(query.hits), "hit") if query.error is None else f"failed: {query.error}", "")
        for query in found.queries
    ]
    took = f"{_count(len(found.passages), 'passage')}, {_count(found.trajectory.num_llm_calls, 'LLM call')}"
    return _piece(
        [
            _line("asked", found.question),
            _grid(cards),
            f'<ol class="hits">{"".join(map(_passage, found.passages))}</ol>' if found.passages else "",
            *(_line("soft", word) for word in (*found.notes, *found.failures)),
            _line("soft", f"{took}, {finite(found.elapsed_s) or 0.0:.2f} s"),
        ]
    )


# ---- the parts -------------------------------------------------------------------------------------------------------


def _piece(parts: Iterable[str]) -> str:
    return f'<div class="{_CLASSES}"><style>{STYLE}</style>{"".join(parts)}</div>'


def _text(text: str | None, most: int = _MAX_TEXT) -> str:
    """A text from outside as HTML shows it: nothing in it is markup, nothing turns the direction of what follows."""
    text = text or ""
    return html.escape(printable(text[:most])) + (" …" if len(text) > most else "")


def _line(kind: str, text: str) -> str:
    return f'<p class="{kind}">{_text(text)}</p>'


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _steps(trajectory: Trajectory) -> str:
    """The turns. A model that was not reached wrote none."""
    is_text = bool(trajectory.written) and trajectory.answer is not None
    turns = [
        _turn(number, turn, is_text and turn.action == "answer")
        for number, turn in enumerate(trajectory.turns, start=1)
        if trajectory.stop != "error" or turn.text or turn.queries
    ]
    return "".join(turns) + ("" if trajectory.reading is None else _reading(trajectory.reading, is_text))


def _turn(number: int, turn: Turn, is_told: bool) -> str:
    """One turn. `is_told`: what it wrote is the answer, which stands elsewhere."""
    title = f"turn {number}" + (f" · {len(turn.queries)} searches at once" if turn.is_split else "")
    parts = [_line("thought", turn.thought)] if turn.thought else []
    if turn.queries:
        shown = [{one.id: one for one in turn.shown if one.query == place} for place in range(len(turn.queries))]
        parts.append(_grid([_query(query, marks) for query, marks in zip(turn.queries, shown, strict=True)]))
    elif not parts and turn.text:
        parts.append(_line("soft", _WRITES) if is_told else f"<p>{_text(turn.text.strip())}</p>")
    notes = [f"{len(turn.dropped_queries)} sub-queries over the limit were not asked"] if turn.dropped_queries else []
    notes += [f"problems: {', '.join(filter(None, turn.problems))}"] if any(turn.problems) else []
    notes += [] if turn.was_written else ["cut off by the deadline"]
    return (
        f'<div class="turn">{_line("soft", title)}{"".join(parts)}{"".join(_line("soft", one) for one in notes)}</div>'
    )


def _grid(cards: Sequence[str]) -> str:
    return f'<div class="queries">{"".join(cards)}</div>' if cards else ""


def _card(query: Query, state: str, inside: str) -> str:
    kind = "query" if query.error is None else "query failed"
    return f'<div class="{kind}">{_line("name", query.text)}{_line("soft", state)}{inside}</div>'


def _query(query: Query, shown: dict[str, Shown]) -> str:
    took_s = max(0.0, (finite(query.end_s) or 0.0) - (finite(query.start_s) or 0.0))
    took = "cached" if query.cached else f"{took_s * 1000:.0f} ms" if took_s < 10 else f"{took_s:.1f} s"
    state = f"{_count(len(query.hits), 'hit')}, {took}" if query.error is None else f"failed: {query.error}"
    state += f"; no answer from: {', '.join(query.missing)}" if query.missing else ""
    hits = "".join(_hit(hit, _shown_as(shown.get(hit.id))) for hit in query.hits)
    return _card(query, state, f'<ol class="hits">{hits}</ol>' if hits else "")


def _shown_as(shown: Shown | None) -> str:
    return "" if shown is None else f"shown as [{shown.number}]" + (", cut" if shown.is_cut else "")


def _hit(hit: Hit, note: str, is_open: bool = False) -> str:
    """A passage that unfolds."""
    beside = ", ".join(filter(None, (place_of(hit), note)))
    summary = f'{_text(hit.title or hit.id)} <span class="soft">{_text(beside)}</span>'
    url = web_url(hit.url)
    link = "" if url is None else f'<p><a href="{_text(url)}" rel="noopener noreferrer nofollow">{_text(url)}</a></p>'
    opened = " open" if is_open else ""
    return f"<li><details{opened}><summary>{summary}</summary>{_line('soft', hit.text)}{link}</details></li>"


def _passage(passage: MergedHit) -> str:
    return _hit(passage, f"found by: {'; '.join(passage.queries)}", is_open=True)


def _reading(reading: Reading, is_told: bool) -> str:
    """What another model made of the passages."""
    who = str(reading.policy.get("model") or reading.policy.get("kind") or "another model")
    parts = [_line("soft", f"read by {who}")]
    if is_told:
        parts.append(_line("soft", _WRITES))
    elif reading.text:
        parts.append(f"<p>{_text(reading.text.strip())}</p>")
    if reading.error is not None:
        parts.append(_line("soft", f"it failed, so the policy's own answer stands: {reading.error}"))
    elif reading.own_answer:
        parts.append(_line("soft", f"the policy's own answer: {reading.own_answer}"))
    return f'<div class="turn">{"".join(parts)}</div>'


def _answer(trajectory: Trajectory) -> list[str]:
    if trajectory.answer is None:
        guess = None if trajectory.abstained is None else trajectory.abstained.answer
        line = f'<p class="answer none"><strong>no answer</strong>: {_text(trajectory.why_no_answer)}</p>'
        return [line, *([_line("soft", f"the model's own guess: {guess}")] if guess else [])]
    judged = ""
    if trajectory.golden_answers:
        golden = " or ".join(trajectory.golden_answers[:3])
        judged = " (right)" if trajectory.is_right else f" (wrong, expected {golden})"
    if trajectory.written:  # Markdown, as it was written: every line by itself
        return [f'<p class="answer">{_text(trajectory.answer, _MAX_WRITTEN)}</p>']
    said = f"<strong>{_text(trajectory.answer)}</strong>"
    return [f'<p class="answer">answer: {said}{_text(judged)}</p>']


def _as_written(trajectory: Trajectory) -> str:
    """Everything after the prompt, letter by letter, folded."""
    said = "".join(
        f'<pre class="{_text(segment.author)}">{_text(segment.text.strip())}</pre>'
        for segment in trajectory.segments
        if segment.author != "prompt" and segment.text.strip()
    )
    return f'<details><summary class="soft">as it was written</summary>{said}</details>' if said else ""

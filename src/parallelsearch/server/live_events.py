"""A rollout's events as JSON objects a page can follow: what the model writes, split into thought, search and answer.

Times are seconds since the question was taken; `at_ms` is the server's clock, so that a watcher can tell how late it is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import Any

from parallelsearch import grammar
from parallelsearch.retrieval.base import Hit
from parallelsearch.rollout import Event
from parallelsearch.server.citing import web_url

_PARTS = {grammar.THINK: "thought", grammar.SEARCH: "search", grammar.ANSWER: "answer"}


class TurnText:
    """Says of each piece of a turn being written to which part it belongs; tags themselves are left out."""

    def __init__(self) -> None:
        self._held = ""  # may be the beginning of a tag
        self._tag: str | None = None

    def feed(self, piece: str) -> list[tuple[str, str]]:
        """The parts of everything that is certain by now, in order."""
        text, found = self._held + piece, []
        while True:
            mark, at = self._next_mark(text)
            if mark is None:
                break
            found.append((self._part, text[:at]))
            text = text[at + len(mark) :]
            self._tag = None if mark.startswith("</") else mark.strip("<>")
        keep = self._tail(text)
        found.append((self._part, text[: len(text) - keep]))
        self._held = text[len(text) - keep :]
        return [(part, text) for part, text in found if text]

    def flush(self) -> list[tuple[str, str]]:
        """The turn is over: what was held back was no tag."""
        held, self._held = self._held, ""
        return [(self._part, held)] if held else []

    @property
    def _part(self) -> str:
        return "other" if self._tag is None else _PARTS[self._tag]

    @property
    def _marks(self) -> list[str]:
        return [grammar.opening(tag) for tag in _PARTS] if self._tag is None else [grammar.closing(self._tag)]

    def _next_mark(self, text: str) -> tuple[str | None, int]:
        found = [(at, mark) for mark in self._marks if (at := text.find(mark)) >= 0]
        return (min(found)[1], min(found)[0]) if found else (None, -1)

    def _tail(self, text: str) -> int:
        """How many characters at the end may begin a mark."""
        start = text.rfind("<")
        tail = text[start:] if start >= 0 else ""
        return len(tail) if tail and any(mark.startswith(tail) for mark in self._marks) else 0


class EventWriter:
    """Turns events into objects; text of one part that arrives together is joined."""

    def __init__(self, max_hit_chars: int, started_unix_s: float | None = None) -> None:
        self._max_hit_chars = max_hit_chars
        self._started_unix_s = time.time() if started_unix_s is None else started_unix_s
        self._text = TurnText()

    def write(self, events: Iterable[Event]) -> list[dict[str, Any]]:
        written: list[dict[str, Any]] = []
        for event in events:
            pieces = self._text.feed(event.text) if event.kind == "text" else []
            if event.kind in ("turn", "notice", "answer"):
                pieces = self._text.flush()
            for part, text in pieces:
                last = written[-1] if written else {}
                if last.get("type") == "text" and last["part"] == part and last["turn"] == event.turn:
                    last["text"] += text
                else:
                    written.append(self._event(event, "text") | {"part": part, "text": text})
            if event.kind == "turn":
                self._text = TurnText()
            if event.kind != "text":
                written.append(self._object(event))
        return written

    def _event(self, event: Event, kind: str) -> dict[str, Any]:
        at_ms = round((self._started_unix_s + event.time_s) * 1000, 1)
        return {"type": kind, "turn": event.turn, "time_s": round(event.time_s, 4), "at_ms": at_ms}

    def _object(self, event: Event) -> dict[str, Any]:
        record = self._event(event, event.kind)
        if event.text:
            record["text"] = event.text
        if event.query is not None:
            query = event.query
            record |= {"start_s": round(query.start_s, 4), "end_s": round(query.end_s, 4), "cached": query.cached}
            record |= {"error": query.error, "hits": [hit_object(hit, self._max_hit_chars) for hit in query.hits]}
        return record


def hit_object(hit: Hit, max_chars: int) -> dict[str, Any]:
    """A hit for people: its text shortened, its address only if it is one of the web."""
    return {
        "id": hit.id,
        "title": hit.title,
        "text": shortened(hit.text, max_chars),
        "url": web_url(hit.url),
        "score": round(hit.score, 4) if math.isfinite(hit.score) else None,
        "rank": hit.rank,
    }


def shortened(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else text[:max_chars].rstrip() + " ..."

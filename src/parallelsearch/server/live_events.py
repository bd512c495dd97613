"""A rollout's events as JSON objects a page can follow: what the model writes, split into thought, search and answer as its
dialect reads them.

Times are seconds since the question was taken; `at_ms` is the server's clock, so that a watcher can tell how late it is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from parallelsearch.dialect import PartsReader, PlainText
from parallelsearch.grammar import TurnParts
from parallelsearch.retrieval.base import Hit
from parallelsearch.retrieval.metadata import place_of
from parallelsearch.rollout import Event
from parallelsearch.untrusted import web_url


class EventWriter:
    """Turns events into objects; text of one part that arrives together is joined. `parts` gives a reader for each turn:
    that of the dialect."""

    def __init__(
        self, max_hit_chars: int, parts: Callable[[], PartsReader], started_unix_s: float | None = None
    ) -> None:
        self._max_hit_chars, self._parts = max_hit_chars, parts
        self._started_unix_s = time.time() if started_unix_s is None else started_unix_s
        self._reader: PartsReader = PlainText()  # until the first turn begins

    def write(self, events: Iterable[Event]) -> list[dict[str, Any]]:
        written: list[dict[str, Any]] = []
        for event in events:
            pieces = self._reader.feed(event.text) if event.kind == "text" else []
            if event.kind in ("turn", "notice", "reading", "answer"):
                pieces = self._reader.flush()
            for part, text in pieces:
                last = written[-1] if written else {}
                if last.get("type") == "text" and last["part"] == part and last["turn"] == event.turn:
                    last["text"] += text
                else:
                    written.append(self._event(event, "text") | {"part": part, "text": text})
            if event.kind == "turn":
                self._reader = self._parts()
            elif event.kind == "reading":
                self._reader = TurnParts()
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
        if event.kind == "shown":
            record["passages"] = [asdict(one) for one in event.shown]
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
        "place": place_of(hit),
        "score": round(hit.score, 4) if math.isfinite(hit.score) else None,
        "rank": hit.rank,
    }


def shortened(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else text[:max_chars].rstrip() + " ..."

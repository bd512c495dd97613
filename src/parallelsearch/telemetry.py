"""OpenTelemetry spans for questions, turns and searches, made from a rollout's events.

    with traced() as on_event:
        agent.ask(question, on_event)

One span for the question, in it one for each turn, in that one for each sub-query, with the times the rollout measured, so
that parallel searches overlap as they did. The parent is the span that is current where `traced` was called, or else the
one a request's headers name. Without OpenTelemetry, or without its SDK, the events pass through and nothing else happens.
What was asked and found is not recorded unless `records_text` says so.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from parallelsearch.rollout import Event, OnEvent

if TYPE_CHECKING:
    from opentelemetry.trace import Span


def traced(
    on_event: OnEvent | None = None, *, records_text: bool = False, headers: Mapping[str, str] | None = None
) -> SpanWriter:
    """An event handler that makes spans and passes each event on. It is for one question at a time.

    A question's span ends with its answer. One that ends without an answer (a limit, an error, a cancelled rollout) ends
    when the handler is closed: by its `with` block or `close`. `headers` are those of the request that brought the
    question (`traceparent`), where no span is current already.
    """
    return SpanWriter(on_event, records_text, headers)


def is_traced() -> bool:
    """Whether spans go anywhere: a program that set no tracer provider need not follow events for them."""
    try:
        from opentelemetry import trace
    except ImportError:
        return False
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


class SpanWriter:
    """The handler that `traced` makes."""

    def __init__(
        self,
        on_event: OnEvent | None = None,
        records_text: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._on_event, self._records_text = on_event, records_text
        self._begin_ns = self._last_ns = 0
        self._question: Span | None = None
        self._turn: Span | None = None
        self._searches: dict[str, Span] = {}
        self._num_turns = self._num_searches = 0
        try:
            from opentelemetry import context, propagate, trace
        except ImportError:
            self._is_on = False
        else:
            self._is_on = True
            self._trace, self._parent = trace, context.get_current()
            if headers is not None and not trace.get_current_span().get_span_context().is_valid:
                self._parent = propagate.extract(headers)
            self._tracer = trace.get_tracer("parallelsearch")

    def __call__(self, event: Event) -> None:
        if self._is_on:
            self._write(event)
        if self._on_event is not None:
            self._on_event(event)

    # ---- from events to spans ----------------------------------------------------------------------------------------

    def _write(self, event: Event) -> None:
        if event.kind == "turn" and event.turn == 0:
            self.close()  # of the question before, if it had no answer
            self._begin_ns = time.time_ns() - _ns(event.time_s)
            self._question = self._start("parallelsearch.question", None, 0.0)
        if self._question is None:
            return
        self._last_ns = self._begin_ns + _ns(event.time_s)
        if event.kind == "turn":
            self._end_turn()
            self._turn = self._start("parallelsearch.turn", self._question, event.time_s, {"turn": event.turn})
            self._num_turns += 1
        elif event.kind == "query":
            self._searches[event.text] = self._start(
                "parallelsearch.search",
                self._turn,
                event.time_s,
                {"turn": event.turn, **self._text("query", event.text)},
            )
            self._num_searches += 1
        elif event.kind == "result":
            self._end_search(event)
        elif event.kind == "notice" and self._turn is not None:
            self._turn.add_event("turn could not be used", timestamp=self._last_ns)
        elif event.kind == "answer":
            self._question.set_attributes(_named({"answered": True, **self._text("answer", event.text)}))
            self.close()

    def _end_search(self, event: Event) -> None:
        span, query = self._searches.pop(event.text, None), event.query
        if span is None or query is None:
            return
        span.set_attributes(_named({"num_hits": len(query.hits), "cached": query.cached}))
        if query.error is not None:
            span.set_status(self._trace.StatusCode.ERROR, query.error if self._records_text else "the search failed")
        span.end(self._begin_ns + _ns(query.end_s))

    def _end_turn(self) -> None:
        for span in self._searches.values():  # started early for a turn that then did not use them, or cut off
            span.set_attributes(_named({"withdrawn": True}))
            span.end(self._last_ns)
        self._searches.clear()
        if self._turn is not None:
            self._turn.end(self._last_ns)
            self._turn = None

    def _start(self, name: str, parent: Span | None, time_s: float, about: dict[str, Any] | None = None) -> Span:
        context = self._parent if parent is None else self._trace.set_span_in_context(parent, self._parent)
        return self._tracer.start_span(
            name, context, attributes=_named(about or {}), start_time=self._begin_ns + _ns(time_s)
        )

    def _text(self, name: str, text: str) -> dict[str, str]:
        return {name: text} if self._records_text else {}

    # ---- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End what is still open, at the time of the last event."""
        if self._question is None:
            return
        self._end_turn()
        self._question.set_attributes(_named({"num_turns": self._num_turns, "num_subqueries": self._num_searches}))
        self._question.end(self._last_ns)
        self._question, self._num_turns, self._num_searches = None, 0, 0

    def __enter__(self) -> SpanWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._question is not None and isinstance(error, Exception):
            about = str(error) if self._records_text else type(error).__name__
            self._question.set_status(self._trace.StatusCode.ERROR, about)
        self.close()


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _named(about: dict[str, Any]) -> dict[str, Any]:
    return {f"parallelsearch.{name}": value for name, value in about.items()}

"""One question on its way: run while somebody waits for it, answered whole or streamed, counted and logged once.

The question is a task of its own. A watcher beside it sees the client leave and cancels it; a client that stops reading
counts as gone. How an answer is written is the API's business: a `Wire` for each (`chat_api`, `responses_api`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from parallelsearch.events import EventStream, Pace
from parallelsearch.http import without_asked
from parallelsearch.limits import Limits
from parallelsearch.policy.base import Sampling
from parallelsearch.rollout import OnEvent
from parallelsearch.server.answering import Answered, Answering, Reply
from parallelsearch.server.asking import Asked
from parallelsearch.server.endpoints import API_HEADERS, json_response
from parallelsearch.server.limits import RefusalError
from parallelsearch.server.live_events import EventWriter

if TYPE_CHECKING:
    from starlette.responses import Response

    from parallelsearch.server.agent_metrics import AgentMetrics

_log = logging.getLogger("parallelsearch.server")
T = TypeVar("T")

_CLIENT_GONE = 499


TEXT_INTERVAL_S = 0.03
"""Text being written goes out this often; nobody reads faster."""
MAX_TEXTS_PER_S = 300
"""Over all streams together: with many of them each gets its text less often, so that what happens still goes out at once
(a send costs more than everything else a piece of text needs)."""
RESULT_WAIT_S = 0.01
"""The results of searches that end together go out together."""
KEEP_ALIVE = b": still working\n\n"


Streamed = Callable[[Any, Any, Any], Awaitable[None]]
"""An answer that is sent while it is made: ASGI's own shape, which a route takes like a response."""


class ClientGoneError(Exception):
    """Nobody waits for the answer any more."""


def pace_for(num_streams: int) -> Pace:
    """A search goes out at once, everything else with it or a little later."""
    text_s = max(TEXT_INTERVAL_S, num_streams / MAX_TEXTS_PER_S)
    waits_s = {"query": 0.0, "result": RESULT_WAIT_S}
    return lambda event: waits_s.get(event.kind, text_s)


class Wire(Protocol):
    """How one API writes an answer: whole, or in pieces of a stream."""

    def whole(self, answered: Answered) -> dict[str, Any]: ...

    def opening(self) -> bytes:
        """The first piece."""
        ...

    def happened(self, events: Sequence[dict[str, Any]]) -> bytes:
        """What is sent of events, which `EventWriter` made; perhaps nothing."""
        ...

    def closing(self, answered: Answered) -> bytes:
        """The last piece, with the answer."""
        ...

    def failure(self, error: RefusalError) -> bytes:
        """The last piece, where there is no answer."""
        ...


class Chat:
    """One question on its way: whole or streamed, counted and logged once."""

    def __init__(self, answering: Answering, metrics: AgentMetrics, headers: Mapping[str, str], name: str) -> None:
        self.headers, self.name = headers, name
        self.answering, self.settings, self.metrics = answering, answering.settings, metrics
        self.start_s, self.started_unix_s = time.perf_counter(), time.time()
        self.question = ""

    def answer(self, asked: Asked, limits: Limits, on_event: OnEvent | None) -> Coroutine[Any, Any, Reply]:
        self.question = asked.question
        default, given = self.settings.sampling, asked.sampled
        sampling = Sampling(
            default.temperature if given.temperature is None else given.temperature,
            default.top_p if given.top_p is None else given.top_p,
            default.seed if given.seed is None else given.seed,
        )
        return self.answering.answer(
            asked.question,
            asked.options,
            limits=limits,
            earlier=asked.earlier,
            system=asked.system,
            sampling=sampling,
            on_event=on_event,
            headers=self.headers,
        )

    def answered(self, asked: Asked, reply: Reply) -> Answered:
        return Answered(reply, self.answering.policy, asked.ignored, self.settings.max_hit_chars)

    async def whole(self, asked: Asked, wire: Wire, limits: Limits, receive: Callable[[], Awaitable[Any]]) -> Response:
        with self.answering.place():
            try:
                reply = await _while_wanted(self.answer(asked, limits, None), receive)
            except ClientGoneError:
                raise RefusalError(_CLIENT_GONE, "the client left") from None
        body = wire.whole(self.answered(asked, reply))
        self.end(200, reply)
        return json_response(body)

    def streamed(self, asked: Asked, wire: Wire, limits: Limits) -> Streamed:
        """What runs the question while it is sent. The place is taken now, so that a full server can say so."""
        place = contextlib.ExitStack()
        place.enter_context(self.answering.place())

        async def send_all(_: Any, receive: Any, send: Any) -> None:
            with place:
                await self.stream(asked, wire, limits, receive, send, place.close)

        return send_all

    async def stream(
        self, asked: Asked, wire: Wire, limits: Limits, receive: Any, send: Any, leave: Callable[[], None]
    ) -> None:
        self.started_unix_s = time.time()

        async def answered(tell: OnEvent) -> Reply:
            try:
                return await self.answer(asked, limits, tell)
            finally:
                # The place is free when the question is answered: who has read the answer may ask again at once, however
                # busy the server is.
                leave()

        events = EventStream(answered, pace_for(self.answering.pending.num_pending))
        events.start()
        gone = asyncio.create_task(_client_gone(receive))
        gone.add_done_callback(lambda _: events.cancel())
        try:
            await self.send_all(asked, wire, events, send)
        except TimeoutError:
            self.end(_CLIENT_GONE, refusal="the client stopped reading")
        finally:
            await events.aclose()
            await _cancel(gone)

    async def send_all(self, asked: Asked, wire: Wire, stream: EventStream[Reply], send: Any) -> None:
        settings = self.settings
        writer = EventWriter(
            settings.max_hit_chars, lambda: self.answering.dialect_for(asked.options).parts(), self.started_unix_s
        )

        async def out(content: bytes, more: bool = True) -> None:
            async with asyncio.timeout(settings.send_timeout_s):
                await send({"type": "http.response.body", "body": content, "more_body": more})

        headers = {**API_HEADERS, "Content-Type": "text/event-stream; charset=utf-8", "X-Accel-Buffering": "no"}
        raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        waiting, due_s = wire.opening(), time.monotonic() + settings.keep_alive_s
        while not stream.is_over:
            events = await stream.take(max(0.0, due_s - time.monotonic()))
            waiting += wire.happened(writer.write(events))
            # A long text may be written for minutes of which nothing is sent, for all that happens.
            is_due = time.monotonic() >= due_s
            if (waiting or is_due) and not stream.is_over:  # else it goes with the answer
                await out(waiting or KEEP_ALIVE)
                waiting, due_s = b"", time.monotonic() + settings.keep_alive_s
        try:
            reply = stream.outcome()
        except RefusalError as error:
            await out(waiting + wire.failure(error), more=False)
            self.end(error.status, refusal=str(error))
            return
        if reply is None:
            self.end(_CLIENT_GONE, refusal="the client left")
            return
        await out(waiting + wire.closing(self.answered(asked, reply)), more=False)
        self.end(200, reply)

    def end(self, status: int, reply: Reply | None = None, refusal: str | None = None) -> None:
        """Count it and log counts and times; what was asked is logged only if that was asked for."""
        elapsed_s = time.perf_counter() - self.start_s
        self.metrics.request(status, elapsed_s)
        fields: dict[str, Any] = {"status": status, "elapsed_ms": round(elapsed_s * 1000, 2)}
        level = logging.ERROR if status >= 500 else logging.INFO
        if refusal is not None:
            fields["refusal"] = self.told(refusal, [self.question])
        if reply is not None:
            trajectory = reply.trajectory
            self.metrics.answered(reply)
            num_input, num_output = trajectory.billed_tokens
            fields |= {
                "rollout_ms": round((trajectory.elapsed_s or 0.0) * 1000, 2),
                "stop": trajectory.stop,
                "num_llm_calls": trajectory.num_llm_calls,
                "num_searches": trajectory.num_searches,
                "num_subqueries": trajectory.num_subqueries,
                "num_failed_queries": trajectory.num_failed_queries,
                "num_input_tokens": num_input,
                "num_output_tokens": num_output,
                "num_citations": len(reply.citations),
                "abstained": reply.abstained,
            }
            if reply.cost is not None:
                fields["cost"] = reply.cost
            failed = next((query for query in trajectory.queries if query.error is not None), None)
            if failed is not None:
                level = logging.WARNING
                asked = [failed.text, self.question, *(query.text for query in trajectory.queries)]
                fields["first_error"] = self.told(failed.error or "", asked)
            if self.settings.logs_queries:
                fields["question"] = trajectory.question
        _log.log(level, self.name, extra={"fields": fields})

    def told(self, message: str, asked: Sequence[str]) -> str:
        """The message for the log; it may quote what was asked."""
        return (message if self.settings.logs_queries else without_asked(message, asked))[:300]


# ---- waiting and answering -------------------------------------------------------------------------------------------


async def _client_gone(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _while_wanted(work: Coroutine[Any, Any, T], receive: Callable[[], Awaitable[Any]]) -> T:
    """The result of `work`, or `ClientGoneError` and nothing left running."""
    task, gone = asyncio.create_task(work), asyncio.create_task(_client_gone(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError
        return task.result()
    finally:
        await _cancel(task, gone)


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

"""One chat request on its way: run while somebody waits for it, answered whole or streamed, counted and logged once.

The question is a task of its own. A watcher beside it sees the client leave and cancels it; a client that stops reading
counts as gone. A stream carries the thought as it is written, every event as it happens, and the answer once it is sure.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from parallelsearch.policy.base import Sampling
from parallelsearch.rollout import Event, Limits
from parallelsearch.server import chat_api
from parallelsearch.server.answering import Answering, Reply, summary_of, usage_of
from parallelsearch.server.chat_api import ChatRequest, ChunkWriter
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


class ClientGoneError(Exception):
    """Nobody waits for the answer any more."""


class Feed:
    """Events on their way to one client: a search goes out at once, everything else with it or a little later."""

    def __init__(self, text_interval_s: float) -> None:
        self._text_interval_s = text_interval_s
        self._events: list[Event] = []
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    @property
    def is_over(self) -> bool:
        return self._is_closed and not self._events

    def put(self, event: Event) -> None:
        self._events.append(event)
        if event.kind == "query":
            self._ring()
        else:
            self._ring_within(RESULT_WAIT_S if event.kind == "result" else self._text_interval_s)

    async def take(self) -> list[Event]:
        """What has come since the last time; waits until there is something, or the end."""
        await self._wake.wait()
        self._wake.clear()
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        self._is_closed = True
        self._ring()

    def _ring_within(self, wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        at_s = loop.time() + wait_s
        if self._timer is not None and self._timer.when() <= at_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(at_s, self._ring)

    def _ring(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wake.set()


class Chat:
    """One question on its way: whole or streamed, counted and logged once."""

    def __init__(self, answering: Answering, metrics: AgentMetrics, headers: Mapping[str, str]) -> None:
        self.headers = headers
        self.answering, self.settings, self.metrics = answering, answering.settings, metrics
        self.start_s, self.started_unix_s = time.perf_counter(), time.time()
        self.question = ""
        self.id, self.created = f"chatcmpl-{uuid.uuid4().hex}", int(time.time())

    def answer(
        self, asked: ChatRequest, limits: Limits, on_event: Callable[[Event], None] | None
    ) -> Coroutine[Any, Any, Reply]:
        self.question = asked.question
        default, body = self.settings.sampling, asked.body
        sampling = Sampling(
            default.temperature if body.temperature is None else body.temperature,
            default.top_p if body.top_p is None else body.top_p,
            default.seed if body.seed is None else body.seed,
        )
        return self.answering.answer(
            asked.question,
            asked.options,
            limits=limits,
            context=asked.context,
            sampling=sampling,
            on_event=on_event,
            headers=self.headers,
        )

    async def whole(self, asked: ChatRequest, limits: Limits, receive: Callable[[], Awaitable[Any]]) -> Response:
        with self.answering.place():
            try:
                reply = await _while_wanted(self.answer(asked, limits, None), receive)
            except ClientGoneError:
                raise RefusalError(_CLIENT_GONE, "the client left") from None
        message: dict[str, Any] = {"content": reply.content, "refusal": None, "reasoning_content": reply.reasoning}
        if annotations := chat_api.url_annotations(reply.content, reply.citations):
            message["annotations"] = annotations
        message[chat_api.EXTRA] = self.summary(asked, reply)
        usage = usage_of(reply.trajectory, self.answering.policy_for(asked.options))
        self.end(200, reply)
        return json_response(chat_api.completion(self.id, asked.body.model, self.created, message, reply.finish, usage))

    def streamed(self, asked: ChatRequest, limits: Limits) -> Response:
        """A response that runs the question while it is sent. The place is taken now, so that a full server can say so."""
        from starlette.responses import Response

        place = contextlib.ExitStack()
        place.enter_context(self.answering.place())
        chat = self

        class Streamed(Response):
            async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
                with place:
                    await chat.stream(asked, limits, receive, send, place.close)

        return Streamed()

    async def stream(
        self, asked: ChatRequest, limits: Limits, receive: Any, send: Any, leave: Callable[[], None]
    ) -> None:
        feed = Feed(max(TEXT_INTERVAL_S, self.answering.pending.num_pending / MAX_TEXTS_PER_S))
        self.started_unix_s = time.time()
        task: asyncio.Task[Reply] = asyncio.create_task(self.answer(asked, limits, feed.put))
        # The place is free when the question is answered: who has read the answer may ask again at once, however busy
        # the server is.
        task.add_done_callback(lambda _: leave())
        task.add_done_callback(lambda _: feed.close())
        gone = asyncio.create_task(_client_gone(receive))
        gone.add_done_callback(lambda _: task.cancel())
        try:
            await self.send_all(asked, task, feed, send)
        except TimeoutError:
            self.end(_CLIENT_GONE, refusal="the client stopped reading")
        finally:
            await _cancel(task, gone)
            feed.close()

    async def send_all(self, asked: ChatRequest, task: asyncio.Task[Reply], feed: Feed, send: Any) -> None:
        settings, chunks = self.settings, ChunkWriter(self.id, asked.body.model, self.created)
        writer = EventWriter(settings.max_hit_chars, self.started_unix_s)

        async def out(content: bytes, more: bool = True) -> None:
            async with asyncio.timeout(settings.send_timeout_s):
                await send({"type": "http.response.body", "body": content, "more_body": more})

        headers = {**API_HEADERS, "Content-Type": "text/event-stream; charset=utf-8", "X-Accel-Buffering": "no"}
        raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        pieces = [chunks.chunk({"role": "assistant", "content": ""})]
        thought_in: int | None = None
        while not feed.is_over:
            try:
                async with asyncio.timeout(settings.keep_alive_s):
                    events = await feed.take()
            except TimeoutError:
                await out(ChunkWriter.KEEP_ALIVE)
                continue
            for event in writer.write(events):
                delta: dict[str, Any] = {}
                if event["type"] == "text" and event["part"] == "thought":
                    is_new = thought_in is not None and thought_in != event["turn"]
                    delta["reasoning_content"] = ("\n\n" if is_new else "") + event["text"]
                    thought_in = event["turn"]
                if asked.options.events:
                    pieces.append(chunks.chunk(delta, extra={"event": event}))
                elif delta:
                    pieces.append(chunks.chunk(delta))
            if pieces and not feed.is_over:  # else they go with the answer
                await out(b"".join(pieces))
                pieces = []
        if task.cancelled():
            self.end(_CLIENT_GONE, refusal="the client left")
            return
        try:
            reply = task.result()
        except RefusalError as error:
            await out(b"".join([*pieces, chunks.error(error.status, str(error)), ChunkWriter.DONE]), more=False)
            self.end(error.status, refusal=str(error))
            return
        await out(b"".join(pieces) + self.last_chunks(asked, reply, chunks), more=False)
        self.end(200, reply)

    def last_chunks(self, asked: ChatRequest, reply: Reply, chunks: ChunkWriter) -> bytes:
        delta: dict[str, Any] = {"content": reply.content}
        if annotations := chat_api.url_annotations(reply.content, reply.citations):
            delta["annotations"] = annotations
        pieces = [chunks.chunk(delta), chunks.chunk({}, reply.finish, self.summary(asked, reply))]
        if asked.wants_usage:
            pieces.append(chunks.usage(usage_of(reply.trajectory, self.answering.policy_for(asked.options))))
        return b"".join([*pieces, ChunkWriter.DONE])

    def summary(self, asked: ChatRequest, reply: Reply) -> dict[str, Any]:
        return {**summary_of(reply, self.settings.max_hit_chars), "ignored": asked.ignored}

    def end(self, status: int, reply: Reply | None = None, refusal: str | None = None) -> None:
        """Count it and log counts and times; what was asked is logged only if that was asked for."""
        elapsed_s = time.perf_counter() - self.start_s
        self.metrics.request(status, elapsed_s)
        fields: dict[str, Any] = {"status": status, "elapsed_ms": round(elapsed_s * 1000, 2)}
        if refusal is not None:
            is_private = self.question and not self.settings.logs_queries  # a policy's message may quote the question
            fields["refusal"] = (refusal.replace(self.question, "...") if is_private else refusal)[:300]
        if reply is not None:
            trajectory = reply.trajectory
            self.metrics.answered(trajectory, reply.abstained is not None)
            fields |= {
                "rollout_ms": round((trajectory.elapsed_s or 0.0) * 1000, 2),
                "stop": trajectory.stop,
                "num_llm_calls": trajectory.num_llm_calls,
                "num_searches": trajectory.num_searches,
                "num_subqueries": trajectory.num_subqueries,
                "num_citations": len(reply.citations),
            }
            if self.settings.logs_queries:
                fields["question"] = trajectory.question
        _log.info("chat", extra={"fields": fields})


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

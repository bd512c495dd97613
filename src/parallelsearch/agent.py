"""The Python front door: an agent that answers questions, blocking or async.

    agent = Agent(policy="openai:http://localhost:8000/v1#MODEL", search="bm25:my-index")
    print(agent.ask("Who is older, Claude Monet or Camille Pissarro?").answer)

Blocking calls run in an event loop of the agent's own thread, so they also work in a notebook, and connections are kept
between questions. `stream` gives the events of a rollout as they happen; who stops reading cancels the rollout.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar

from parallelsearch.addresses import open_policy, open_search
from parallelsearch.policy.base import Policy, Sampling
from parallelsearch.rollout import Event, Limits, rollout
from parallelsearch.search import Search
from parallelsearch.trajectory import Question, Trajectory

T = TypeVar("T")
OnEvent = Callable[[Event], None]


class LoopThread:
    """An event loop in a thread of its own, started when first used: how blocking callers reach async code."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def is_running(self) -> bool:
        return self._loop is not None

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start the work; a cancelled future cancels it."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name=self.name, daemon=True)
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do the work and wait for it. Ctrl-C cancels it."""
        future = self.submit(work)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def stop(self) -> None:
        """End loop and thread. Used again, it starts anew."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(timeout=30)
            loop.close()


class EventStream(AsyncIterator[Event]):
    """The events of one rollout as they happen; afterwards `trajectory` is what came of it.

    The rollout begins with the first event asked for. It is cancelled, searches included, when the stream is closed or
    dropped or the task that reads it is cancelled; `trajectory` is then None. A slow reader does not hold it up: events
    wait in memory, and the rollout's limits bound them.
    """

    def __init__(self, start: Callable[[OnEvent], Coroutine[Any, Any, Trajectory]]) -> None:
        self.trajectory: Trajectory | None = None
        self._start = start
        self._waiting: asyncio.Queue[Event | None] = asyncio.Queue()
        self._task: asyncio.Task[Trajectory] | None = None
        self.is_over = False

    async def __anext__(self) -> Event:
        event = await self.next_event()
        if event is None:
            raise StopAsyncIteration
        return event

    async def next_event(self) -> Event | None:
        """The next event, or None when there are no more. Raises what the rollout raised: a question used wrongly."""
        if self.is_over:
            return None
        if self._task is None:
            waiting = self._waiting  # not self: a stream that is dropped must be seen to be
            self._task = asyncio.get_running_loop().create_task(self._start(waiting.put_nowait))
            self._task.add_done_callback(lambda _: waiting.put_nowait(None))
        try:
            event = await self._waiting.get()
        except asyncio.CancelledError:
            self.is_over = True
            self._task.cancel()
            raise
        if event is None:
            self.is_over = True
            if not self._task.cancelled():
                self.trajectory = self._task.result()
        return event

    async def aclose(self) -> None:
        """Cancel the rollout if it still runs, and wait until it is gone."""
        self.is_over = True
        task = self._task
        if task is None or task.done():
            return
        if (loop := task.get_loop()) is asyncio.get_running_loop():
            task.cancel()
            await asyncio.wait([task])
        else:  # a blocking stream of an agent that is closed from another loop; it ends there
            loop.call_soon_threadsafe(task.cancel)

    async def __aenter__(self) -> EventStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        # The last reference may go in any thread, and after the loop.
        task = self._task
        if task is not None and not task.done() and not (loop := task.get_loop()).is_closed():
            loop.call_soon_threadsafe(task.cancel)


class BlockingEventStream(Iterator[Event]):
    """The same for a blocking caller: `for event in stream: ...`, then `stream.trajectory`."""

    def __init__(self, events: EventStream, loop: LoopThread) -> None:
        self._events, self._loop = events, loop

    @property
    def trajectory(self) -> Trajectory | None:
        return self._events.trajectory

    def __next__(self) -> Event:
        event = None if self._events.is_over else self._loop.run(self._events.next_event())
        if event is None:
            raise StopIteration
        return event

    def close(self) -> None:
        """Cancel the rollout if it still runs, and wait until it is gone."""
        if not self._events.is_over and self._loop.is_running:
            self._loop.run(self._events.aclose())

    def __enter__(self) -> BlockingEventStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Agent:
    """Answers questions with a policy and a search, given as addresses or as objects."""

    def __init__(
        self,
        policy: Policy | str = "demo",
        search: Search | str = "demo",
        *,
        limits: Limits | None = None,
        sampling: Sampling | None = None,
        k: int = 3,
        **rollout_options: Any,
    ) -> None:
        """`rollout_options` are those of `rollout`: mode, layout, streaming_dispatch."""
        self.policy = open_policy(policy) if isinstance(policy, str) else policy
        self.search = open_search(search, k=k) if isinstance(search, str) else search
        self.limits, self.sampling = limits or Limits(), sampling or Sampling()
        self._options = rollout_options
        self._loop = LoopThread("parallelsearch-agent")
        self._streams: weakref.WeakSet[EventStream] = weakref.WeakSet()

    async def ask_async(self, question: Question | str, on_event: OnEvent | None = None, **options: Any) -> Trajectory:
        """Answer one question in the running event loop."""
        settings: dict[str, Any] = {"sampling": self.sampling, **self._options, **options}
        return await rollout(question, self.policy, self.search, self.limits, on_event=on_event, **settings)

    async def ask_many_async(
        self, questions: Iterable[Question | str], max_concurrent: int = 64, **options: Any
    ) -> list[Trajectory]:
        """Answer many questions at once; the order is kept. Each gets a seed of its own."""
        gate = asyncio.Semaphore(max_concurrent)

        async def one(number: int, question: Question | str) -> Trajectory:
            async with gate:
                sampling = replace(self.sampling, seed=self.sampling.seed + number)
                return await self.ask_async(question, **{"sampling": sampling, **options})

        return list(await asyncio.gather(*(one(number, question) for number, question in enumerate(questions))))

    def stream_async(self, question: Question | str, on_event: OnEvent | None = None, **options: Any) -> EventStream:
        """Answer one question in the running event loop and give the events as they happen: `async for event in ...`.
        `on_event` is told of each as well, at once."""

        def start(tell: OnEvent) -> Coroutine[Any, Any, Trajectory]:
            def both(event: Event) -> None:
                if on_event is not None:
                    on_event(event)
                tell(event)

            return self.ask_async(question, both, **options)

        stream = EventStream(start)
        self._streams.add(stream)
        return stream

    def ask(self, question: Question | str, on_event: OnEvent | None = None, **options: Any) -> Trajectory:
        """Answer one question."""
        return self._loop.run(self.ask_async(question, on_event, **options))

    def stream(self, question: Question | str, on_event: OnEvent | None = None, **options: Any) -> BlockingEventStream:
        """Answer one question and give the events as they happen; the stream's `trajectory` is there at its end."""
        return BlockingEventStream(self.stream_async(question, on_event, **options), self._loop)

    def ask_many(
        self, questions: Iterable[Question | str], max_concurrent: int = 64, **options: Any
    ) -> list[Trajectory]:
        """Answer many questions at once; the order is kept."""
        return self._loop.run(self.ask_many_async(questions, max_concurrent, **options))

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run something in the agent's own event loop, where its blocking calls run too."""
        return self._loop.submit(work)

    def close(self) -> None:
        """Release connections, threads and memory. An agent used in a `with` block closes itself."""
        if self._loop.is_running:
            self._loop.submit(self.aclose()).result(timeout=30)
            self._loop.stop()

    async def aclose(self) -> None:
        for stream in list(self._streams):
            await stream.aclose()
        await self.search.aclose()
        await self.policy.aclose()

    def __enter__(self) -> Agent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

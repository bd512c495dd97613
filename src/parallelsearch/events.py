"""The events of a rollout for whoever reads along: in order, as they happen, one by one or in batches.

Agent and server read the same stream. The rollout has a task of its own, so a slow reader holds nothing up: what is not
read yet waits in memory, and the rollout's limits bound it. A reader who leaves cancels the rollout, searches included. A
stream can be given a pace, how long an event may wait for others to go with it, since to send one costs more than to make
it. What events mean is the rollout's business; how they look outside is the reader's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from parallelsearch.rollout import Event, OnEvent

T = TypeVar("T")
Pace = Callable[[Event], float]
"""How many seconds an event may wait for others."""


class EventStream(AsyncIterator[Event], Generic[T]):
    """The events of some work, a rollout or what has one inside; afterwards `outcome` is what came of it.

    The work begins with `start`, or else with the first event asked for. It is cancelled when the stream is closed or
    dropped or the task that reads it is cancelled.
    """

    def __init__(self, work: Callable[[OnEvent], Coroutine[Any, Any, T]], pace: Pace | None = None) -> None:
        self._work = work
        self._box = _Box(pace)
        self._task: asyncio.Task[T] | None = None
        self.is_over = False
        """It was read to its end, or closed."""

    # ---- reading -----------------------------------------------------------------------------------------------------

    async def __anext__(self) -> Event:
        event = await self.next_event()
        if event is None:
            raise StopAsyncIteration
        return event

    async def next_event(self) -> Event | None:
        """The next event, or None when there are no more. Raises what the work raised: a question used wrongly."""
        if self.is_over:
            return None
        await self._wait()
        event = self._box.pop()
        if event is None:
            self.is_over = True
            self.outcome()
        return event

    async def take(self, timeout_s: float | None = None) -> list[Event]:
        """All that has come since the last time. Waits until something is due or the work has ended; nothing came if
        `timeout_s` was over first."""
        if self.is_over or not await self._wait(timeout_s):
            return []
        self.is_over = self._box.is_closed
        return self._box.empty()

    def outcome(self) -> T | None:
        """What came of it: None while it runs and where it was cancelled. Raises what the work raised."""
        task = self._task
        return None if task is None or not task.done() or task.cancelled() else task.result()

    async def _wait(self, timeout_s: float | None = None) -> bool:
        self.start()
        try:
            async with asyncio.timeout(timeout_s):
                return await self._box.due.wait()
        except TimeoutError:
            return False
        except asyncio.CancelledError:
            self.is_over = True
            self.cancel()
            raise

    # ---- the work ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin in the running event loop, if it has not begun."""
        if self._task is None:
            box = self._box  # not self: a stream that is dropped must be seen to be
            self._task = asyncio.get_running_loop().create_task(self._work(box.put))
            self._task.add_done_callback(lambda _: box.close())

    def cancel(self) -> None:
        """End the work. Who reads is told of what came before, and that it is over."""
        if self._task is not None:
            self._task.cancel()

    async def aclose(self) -> None:
        """Cancel the work if it still runs, and wait until it is gone."""
        self.is_over = True
        task = self._task
        if task is None or task.done():
            return
        if (loop := task.get_loop()) is asyncio.get_running_loop():
            task.cancel()
            await asyncio.wait([task])
        else:  # a blocking stream of an agent that is closed from another loop; it ends there
            loop.call_soon_threadsafe(task.cancel)

    async def __aenter__(self) -> Self:
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


class _Box:
    """Events on their way from the rollout to the reader. `due` is set while it is time to read."""

    def __init__(self, pace: Pace | None) -> None:
        self._pace = pace
        self._events: deque[Event] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.due = asyncio.Event()
        self.is_closed = False

    def put(self, event: Event) -> None:
        self._events.append(event)
        wait_s = 0.0 if self._pace is None else self._pace(event)
        if wait_s <= 0:
            self.due.set()
        elif not self.due.is_set():
            self._ring_within(wait_s)

    def pop(self) -> Event | None:
        event = self._events.popleft() if self._events else None
        if not self._events:
            self._rest()
        return event

    def empty(self) -> list[Event]:
        events = list(self._events)
        self._events.clear()
        self._rest()
        return events

    def close(self) -> None:
        self.is_closed = True
        self.due.set()

    def _rest(self) -> None:
        """Nothing is left: wait for more, unless no more will come."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.is_closed:
            self.due.clear()

    def _ring_within(self, wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        at_s = loop.time() + wait_s
        if self._timer is not None and self._timer.when() <= at_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(at_s, self.due.set)

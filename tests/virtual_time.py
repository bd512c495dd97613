"""Time that stands still while code runs and leaps to the next alarm when all wait: for tests of waits, deadlines and rates.

`@in_virtual_time` on an asynchronous test makes every second of `asyncio.sleep`, of time-outs and of the functions of
`time` one of a made-up clock. A loaded machine cannot make such a test fail, and a wait of an hour costs
nothing. It is for code of one event loop alone: threads, processes and sockets take time that this clock does not see.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
import time
from collections.abc import Awaitable, Callable
from unittest import mock


class _Leaping(selectors.DefaultSelector):
    """Never waits: what an event loop would have slept is added to the clock, and a microsecond for each of its rounds, so
    that a wait too short for a float to show ends too."""

    now_s = 1_000.0

    def time(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        assert ready or timeout is not None, "everything waits, and nothing is left that could end it"
        self.sleep(1e-6 if ready or not timeout else max(timeout, 1e-6))
        return ready


def in_virtual_time(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def wrapped(*args: object, **kwargs: object) -> None:
        selector = _Leaping()
        with (
            mock.patch.multiple(time, monotonic=selector.time, perf_counter=selector.time, sleep=selector.sleep),
            asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner,
        ):
            runner.run(test(*args, **kwargs))

    return wrapped

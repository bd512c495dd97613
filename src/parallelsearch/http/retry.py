"""Which failed calls are repeated, when, and how often: one answer for every client of this package.

`TransientError` and its subclasses are worth repeating, everything else is not. `retrying` repeats them with exponential
back-off and jitter; the server's own Retry-After wins over back-off, and one that is longer than the caller is willing to
wait fails at once instead of sleeping. Nothing here opens a connection.

    async for attempt in retrying(attempts=4):   # a new one for each call: it holds state
        with attempt:
            response = await client.request("POST", url, content=body, timeout_s=10)
            if (error := client.error_of(response)) is not None:
                raise error

A backend under `search.py` raises the same errors and leaves the repeating to that layer.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, TypeVar

from parallelsearch.errors import TransientError

T = TypeVar("T")


class retrying:
    """Try up to `attempts` times, as long as `error` is raised; the wait doubles from `first_wait_s` to `max_wait_s`.

    Use it as `async for attempt in retrying(4): with attempt: ...` or `await retrying(4)(function, argument)`. The last
    error comes out with the number of attempts in its message; other errors come out at once and unchanged. No attempt
    begins after `deadline_s`, a time of the event loop's clock: then `TimeoutError` is raised.

    A limit of calls a minute turns many away who come together, some of them again and again. So an attempt that the server
    put off does not count while the waits that it asked for are `patience_s` together; who is put off again comes later than
    asked by a while that grows, so that not all come back at once.
    """

    def __init__(
        self,
        attempts: int,
        max_wait_s: float = 30.0,
        first_wait_s: float = 0.5,
        error: type[TransientError] = TransientError,
        deadline_s: float | None = None,
        patience_s: float = 0.0,
    ) -> None:
        self._attempts, self._max_wait_s, self._first_wait_s, self._error = attempts, max_wait_s, first_wait_s, error
        self._deadline_s, self._patience_s = deadline_s, patience_s
        self._number = self._num_put_off = 0
        self._last: TransientError | None = None
        self._is_done = False

    async def __call__(self, function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        async for attempt in self:
            with attempt:
                return await function(*arguments)
        raise RuntimeError("gave up without a failure")  # not reached: the last failure is raised by the attempt

    def __aiter__(self) -> retrying:
        return self

    async def __anext__(self) -> retrying:
        if self._is_done:
            raise StopAsyncIteration
        if self._last is not None:
            wait_s = self._wait_s(self._last.retry_after_s)
            if self._deadline_s is not None:
                left_s = self._deadline_s - asyncio.get_running_loop().time()
                if left_s <= wait_s:
                    await asyncio.sleep(max(0.0, left_s))
                    raise TimeoutError from self._last
            await asyncio.sleep(wait_s)
            if self._num_put_off:
                self._patience_s -= wait_s
        self._number += 1
        return self

    def _wait_s(self, asked_s: float | None) -> float:
        is_put_off = asked_s is not None and self._num_put_off > 0
        number = self._num_put_off if is_put_off else self._number - self._num_put_off
        ceiling_s = min(self._max_wait_s, self._first_wait_s * 2.0 ** min(number - 1, 32))
        if asked_s is None:
            return ceiling_s * random.uniform(0.5, 1.0)
        later_s = ceiling_s if is_put_off else 0.1 * asked_s  # many rollouts are told the same second
        return asked_s + later_s * random.random()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, self._error):
            self._is_done = True
            return False
        asked_s = error.retry_after_s
        if asked_s is not None and asked_s > self._max_wait_s:
            why = f"; the server asks to wait {asked_s:.0f} s, more than the {self._max_wait_s:.0f} s allowed"
        elif asked_s is not None and self._patience_s > 0:
            self._num_put_off += 1
            self._last = error
            return True
        elif self._number - self._num_put_off >= self._attempts:
            why = f" (after {self._number} attempts)" if self._number > 1 else ""
        else:
            self._last = error
            return True
        raise type(error)(f"{error}{why}", asked_s) from error


def retry_after_s(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """The seconds a server asks to wait: `retry-after-ms`, or `Retry-After` as seconds or as an HTTP date.

    None if there is no such header or it makes no sense. `headers` is case-insensitive, as a response's, or lower-case.
    """
    milliseconds = _seconds(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    seconds = _seconds(value)
    if seconds is not None or value is None:
        return seconds
    try:
        date = parsedate_to_datetime(value.strip())
    except (ValueError, OverflowError):
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, (date - (now or datetime.now(UTC))).total_seconds())


def _seconds(value: str | None) -> float | None:
    try:
        number = float(value) if value is not None else math.nan
    except ValueError:
        return None
    return max(0.0, number) if math.isfinite(number) else None

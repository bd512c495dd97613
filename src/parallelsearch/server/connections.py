"""What a connection may cost before any token is looked at: its head, the time to send it, requests in advance, its number.

uvicorn bounds none of these. Its protocol is subclassed here: heads that are too long or too slow and requests sent far in
advance end their connection; when there are too many connections the one that has been idle longest makes room, so that
those who only hold connections open cannot keep others out. What bites is counted, and said in the log, not more often than
every few seconds. Bodies, queues and answers are bounded by the applications (`limits`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from parallelsearch.errors import UsageError, require

_log = logging.getLogger("parallelsearch.server")
_SECONDS_BETWEEN_LINES = 5.0
_TOO_LONG = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Of one server. `max_connections` None: as many as the process may have files, less a reserve."""

    max_connections: int | None = None
    max_head_bytes: int = 64 * 1024
    """Address and headers of a request."""
    head_timeout_s: float = 20.0
    """From the connection, or a request's first byte, to the end of its head."""
    max_pipelined: int = 16
    """Requests sent in advance of an answer."""
    keep_alive_s: int = 75

    def __post_init__(self) -> None:
        for name in ("max_head_bytes", "head_timeout_s", "max_pipelined", "keep_alive_s"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} must be above 0, not {getattr(self, name)}")

    @property
    def num_connections(self) -> int:
        if self.max_connections is not None:
            return self.max_connections
        import resource

        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return 65_536 if files == resource.RLIM_INFINITY else max(64, min(65_536, files * 3 // 4))


class _Bites:
    """How often each limit has bitten, for the log."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._said_s = -_SECONDS_BETWEEN_LINES

    def count(self, what: str) -> None:
        self._counts[what] += 1
        now = time.monotonic()
        if now - self._said_s >= _SECONDS_BETWEEN_LINES:
            self._said_s = now
            _log.warning("connections ended at a limit", extra={"fields": dict(self._counts)})
            self._counts.clear()


def limited_protocol(limits: ConnectionLimits) -> type[asyncio.Protocol]:
    """uvicorn's protocol with these limits: the value of its option `http`."""
    base: Any = require("uvicorn.protocols.http.httptools_impl", "serve").HttpToolsProtocol
    bites, max_connections = _Bites(), limits.num_connections

    class LimitedProtocol(base):  # type: ignore[misc]  # uvicorn's class is imported at run time
        """One connection. `_head_bytes` is None while no head is being read."""

        _head_bytes: int | None = None
        _head_timer: asyncio.TimerHandle | None = None
        _parsed_bytes = 0
        _idle_since_s = 0.0

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._begin_head()
            if len(self.connections) > max_connections:
                idle = [one for one in self.connections if one is not self and one.is_idle]
                bites.count("too_many")
                min(idle, key=lambda one: one._idle_since_s, default=self).drop()

        def connection_lost(self, error: Exception | None) -> None:
            self._end_head()
            super().connection_lost(error)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._head_bytes is not None:  # all of it was head, and there is more to come
                self._count_head(len(data))

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._parsed_bytes = 0
            self._begin_head()

        def on_url(self, url: bytes) -> None:
            super().on_url(url)
            self._count_parsed(len(url))

        def on_header(self, name: bytes, value: bytes) -> None:
            super().on_header(name, value)
            self._count_parsed(len(name) + len(value) + 4)

        def on_headers_complete(self) -> None:
            self._end_head()
            super().on_headers_complete()
            if len(self.pipeline) > limits.max_pipelined:
                bites.count("pipelined")
                self.drop()
                raise ValueError("too many requests in advance")  # stops the parser in the middle of what has arrived

        def on_response_complete(self) -> None:
            self._idle_since_s = time.monotonic()
            super().on_response_complete()

        @property
        def is_idle(self) -> bool:
            return self.cycle is None or bool(self.cycle.response_complete)

        def drop(self) -> None:
            self._end_head()
            self.transport.abort()

        def _begin_head(self) -> None:
            self._end_head()
            self._head_bytes, self._idle_since_s = 0, time.monotonic()
            self._head_timer = self.loop.call_later(limits.head_timeout_s, self._too_late)

        def _end_head(self) -> None:
            self._head_bytes = None
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

        def _count_parsed(self, size: int) -> None:
            self._parsed_bytes += size
            if self._parsed_bytes > limits.max_head_bytes:
                self._refuse("long_head")
                raise ValueError("the head is too long")  # stops the parser: no application sees it

        def _count_head(self, size: int) -> None:
            self._head_bytes = (self._head_bytes or 0) + size
            if self._head_bytes > limits.max_head_bytes:
                self._refuse("long_head")

        def _refuse(self, what: str) -> None:
            bites.count(what)
            self._end_head()
            if not self.transport.is_closing():
                self.transport.write(_TOO_LONG)
                self.transport.close()

        def _too_late(self) -> None:
            self._head_timer = None
            if self.is_idle:
                bites.count("slow_head")
                self.drop()

    return LimitedProtocol

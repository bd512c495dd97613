"""Asynchronous work for callers that are not: one event loop in a daemon thread, for the whole process, started when first
used.

A connection belongs to an event loop, so that a loop for each call (`asyncio.run`) would open a new connection for each
request to a server. Here they stay open, whichever thread asks. What runs in the loop must not block it.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def submit(work: Coroutine[Any, Any, T]) -> Future[T]:
    """Start the work; a cancelled future cancels it."""
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="parallelsearch-http", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(work, _loop)


def wait_for(work: Coroutine[Any, Any, T]) -> T:
    """Do the work and wait for it. Ctrl-C cancels it."""
    future = submit(work)
    try:
        return future.result()
    except KeyboardInterrupt:
        future.cancel()
        raise


def _forget() -> None:
    """A forked process has the loop and not its thread: whoever waited for it would wait for ever."""
    global _lock, _loop
    _lock, _loop = threading.Lock(), None


os.register_at_fork(after_in_child=_forget)

"""One of our ASGI applications as a process: its socket, its log as JSON Lines, and a clean end on SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.util
import json
import logging
import math
import signal
import socket
import sys
import threading
from collections.abc import Coroutine, Iterator
from typing import Any

from parallelsearch.errors import UsageError, require
from parallelsearch.http import is_loopback
from parallelsearch.server.connections import ConnectionLimits, limited_protocol
from parallelsearch.server.limits import TOKEN_ENV, ServerSettings

_log = logging.getLogger("parallelsearch.server")


_COLLECTOR_THRESHOLDS = (5_000, 2, 100)
"""`gc.set_threshold`: short looks at what is new, and one at everything about once a minute under load."""
_ENCODER = json.JSONEncoder(default=str)  # made once: `json.dumps` with a default makes one for each call


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, event, and the fields of the event."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return _ENCODER.encode(line)


def _log_to_stderr() -> None:
    """Send the logs of this package and of uvicorn there, as JSON Lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("parallelsearch", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, or a `UsageError` that says why there is none."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # With the protocol named, asyncio turns Nagle's algorithm off; without, every answer waits 40 ms for an ACK.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except (OSError, UnicodeError) as error:
        raise UsageError(f"cannot listen on '{host}': {error}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        hint = "choose another with --port, or 0 for any free one"
        raise UsageError(f"cannot listen on {host} port {port}: {error.strerror or error}; {hint}") from None
    listener.set_inheritable(True)
    return listener


def warn_if_open(settings: ServerSettings) -> None:
    """Anybody on the network may ask: that should be somebody's decision."""
    if settings.token is None and not is_loopback(settings.host):
        _log.warning(
            "open to the network without a token",
            extra={"fields": {"host": settings.host, "hint": f"set {TOKEN_ENV}, or listen on 127.0.0.1"}},
        )


def serve_app(app: Any, settings: ServerSettings, *, path: str) -> None:
    """Run an ASGI application with this package's socket, logs and shutdown."""
    require("uvicorn", "serve")
    import uvicorn

    connections = ConnectionLimits()
    listener = listen(settings.host, settings.port)
    _log_to_stderr()
    warn_if_open(settings)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"http://{host}:{listener.getsockname()[1]}{path}"
    config = uvicorn.Config(
        app,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        log_config=None,
        lifespan="on",
        timeout_graceful_shutdown=math.ceil(settings.shutdown_s),
        http=limited_protocol(connections),
        ws="none",
        timeout_keep_alive=connections.keep_alive_s,
        backlog=2048,
    )
    server = uvicorn.Server(config)

    async def serve() -> None:
        # The socket already listens: who connects from now on is answered.
        _log.info("listening", extra={"fields": {"url": address}})
        await server.serve(sockets=[listener])

    with _stop_signals_end_quietly(), _short_collections():
        _run(serve())
    if not server.started:
        raise UsageError(f"the server at {address} could not start; see the log")
    _log.info("stopped")


def _run(main: Coroutine[Any, Any, None]) -> None:
    """On uvloop where it is installed (not on Windows): a request takes up to a tenth less of the processor."""
    if importlib.util.find_spec("uvloop") is None:
        asyncio.run(main)
    else:
        require("uvloop", "serve").run(main)


@contextlib.contextmanager
def _short_collections() -> Iterator[None]:
    """While Python's garbage collector looks through all objects, nobody is answered: a tenth of a second on a busy machine,
    every few seconds. So what is there when a server starts is not looked at again, and all of the rest seldom; requests
    are made to leave nothing to it (`tests/server/test_garbage.py`)."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTOR_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


@contextlib.contextmanager
def _stop_signals_end_quietly() -> Iterator[None]:
    """uvicorn raises the signal that stopped it once more when it is done; a clean stop is exit status 0."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

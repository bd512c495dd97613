"""Connections that cost much before any token is looked at: each limit bites, and honest clients are served meanwhile."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from parallelsearch.errors import UsageError
from parallelsearch.server.connections import ConnectionLimits, limited_protocol
from parallelsearch.server.running import listen

uvicorn = pytest.importorskip("uvicorn")
LIMITS = ConnectionLimits(max_connections=20, max_head_bytes=8_192, head_timeout_s=2.0, max_pipelined=4, keep_alive_s=5)


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    if scope["path"] == "/slow":
        import asyncio

        await asyncio.sleep(1.0)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@contextmanager
def served(limits: ConnectionLimits = LIMITS) -> Iterator[int]:
    listener = listen("127.0.0.1", 0)
    config = uvicorn.Config(
        app, http=limited_protocol(limits), ws="none", lifespan="off", log_config=None, access_log=False, loop="asyncio"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = server.force_exit = True
        thread.join(timeout=60)


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=400)


def is_served(port: int) -> bool:
    with connect(port) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return sock.recv(100).startswith(b"HTTP/1.1 200")


def received(sock: socket.socket) -> bytes:
    """All until the server ends the connection."""
    data = b""
    try:
        while piece := sock.recv(65_536):
            data += piece
    except ConnectionError:
        pass
    return data


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"x" * 20_000,
        b"GET / HTTP/1.1\r\nX: " + b"y" * 20_000,
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 4_000,
        b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"y" * 20_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 4_000 + b"\r\n",
    ],
)
def test_a_head_that_is_too_long_is_refused(head: bytes) -> None:
    with served() as port, connect(port) as sock:
        sock.sendall(head)
        assert received(sock).startswith(b"HTTP/1.1 4")
        assert is_served(port)


@pytest.mark.parametrize("start", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\n"])
def test_a_head_that_never_comes_is_not_waited_for(start: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "parallelsearch.server"), served() as port, connect(port) as sock:
        sock.sendall(start)
        assert received(sock) == b""  # before the socket's own patience ends
        assert is_served(port)
    assert "connections ended at a limit" in caplog.text


def test_a_head_that_drips_is_not_waited_for() -> None:
    with served() as port, connect(port) as sock:

        def drip() -> None:
            for _ in range(200):
                sock.sendall(b"X")
                time.sleep(0.05)

        with pytest.raises(ConnectionError):
            drip()
        assert is_served(port)


def test_requests_in_advance_end_the_connection() -> None:
    with served() as port, connect(port) as sock:
        try:
            sock.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n" * 5_000)
        except ConnectionError:
            pass
        assert received(sock).count(b"HTTP/1.1 200") <= LIMITS.max_pipelined + 1
        assert is_served(port)


def test_a_few_requests_in_advance_are_answered() -> None:
    with served() as port, connect(port) as sock:
        request = b"GET / HTTP/1.1\r\nHost: x\r\n"
        sock.sendall((request + b"\r\n") * 2 + request + b"Connection: close\r\n\r\n")
        assert received(sock).count(b"HTTP/1.1 200") == 3


def test_those_who_only_hold_connections_keep_nobody_out() -> None:
    with served(ConnectionLimits(max_connections=20, head_timeout_s=60)) as port:
        held = [connect(port) for _ in range(60)]
        time.sleep(0.2)
        assert all(is_served(port) for _ in range(10))
        for sock in held:
            sock.close()


def test_limits_that_cannot_be_are_refused() -> None:
    with pytest.raises(UsageError, match="head_timeout_s"):
        ConnectionLimits(head_timeout_s=float("nan"))

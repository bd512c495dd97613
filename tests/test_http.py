"""The one HTTP client, against real sockets: errors, limits while bytes arrive, proxies, certificates, event loops."""

from __future__ import annotations

import asyncio
import base64
import gc
import gzip
import logging
import resource
import socket
import ssl
import subprocess
import threading
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from parallelsearch.errors import ParallelSearchError, SearchError, SearchTimeoutError, TransientSearchError, UsageError
from parallelsearch.http import HttpClient, Response, checked_url, get_now, is_loopback, without_secrets
from parallelsearch.http import client as http_client
from parallelsearch.http.address import proxy_for


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "ssl_cert_file", "requests_ca_bundle"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def client(what: str = "search server", **options: object) -> HttpClient:
    return HttpClient(what, permanent=SearchError, transient=TransientSearchError, late=SearchTimeoutError, **options)  # type: ignore[arg-type]


Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter, bytes], object]


@asynccontextmanager
async def served(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server on loopback that hands each request's head to `answer`. Gives its address and the heads."""
    heads: list[bytes] = []
    tasks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                heads.append(head)
                result = answer(reader, writer, head)
                if asyncio.iscoroutine(result):
                    await result
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{port}/x", heads
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def says(body: bytes, **headers: str) -> Answer:
    def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n{lines}\r\n".encode() + body)

    return answer


# ---- addresses -------------------------------------------------------------------------------------------------------


def test_addresses_are_checked_and_shown_without_secrets() -> None:
    assert checked_url(" http://h:1/ ", "x") == "http://h:1"
    for bad in ("h:1", "ftp://h", "http://", "http://[::1", "http://h:0", "http://h:x"):
        with pytest.raises(UsageError, match="needs an address such as"):
            checked_url(bad, "x")
    assert without_secrets("https://me:pw@h:1/p?key=k#f") == "https://h:1/p"
    assert [
        is_loopback(host) for host in ("localhost", "a.localhost", "127.3.2.1", "::1", "[::1]", "h", "10.0.0.1")
    ] == [
        *[True] * 5,
        False,
        False,
    ]


# ---- a response that is an error -------------------------------------------------------------------------------------


def response(status: int, body: str = "", **headers: str) -> Response:
    return Response(status, {400: "Bad Request"}.get(status, "X"), headers, body.encode(), "http://host:1/path")


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 529])
def test_statuses_that_pass(status: int) -> None:
    error = client().error_of(response(status, **{"retry-after": "4"}))
    assert isinstance(error, TransientSearchError)
    assert error.retry_after_s == 4.0
    assert f"search server http://host:1/path answered {status}" in str(error)


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 413, 422, 501, 505])
def test_statuses_that_stay(status: int) -> None:
    assert type(client().error_of(response(status))) is SearchError


def test_good_statuses_are_no_error() -> None:
    assert client().error_of(response(200)) is None
    assert client().error_of(response(204)) is None


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ('{"error": {"message": "too many", "code": 1}}', ": too many"),
        ('{"error": "too many"}', ": too many"),
        ('{"detail": "too many"}', ": too many"),
        ('{"detail": [{"loc": ["body"], "msg": "bad"}]}', ": [{'loc': ['body'], 'msg': 'bad'}]"),
        ('{"message": "too\\n many"}', ": too many"),
        ("plain\n text", ": plain text"),
        ("", "Bad Request"),
        ("x" * 5000, "x" * 297 + "..."),
        ("[1, 2", ": [1, 2"),
        ('{"error": null, "detail": "d"}', ": d"),
        ("[" * 100_000, "[..."),
        (f"<html><head><style>{'p {color: red} ' * 2000}</style></head><body>Busy</body></html>", ": Busy"),
        (f"<style>{'p {color: red} ' * 9000}</style>Busy", "400 Bad Request"),
        ("<html><head><title>x</title><body>Busy</body></html>", ": Busy"),
    ],
)
def test_message_quotes_what_the_server_said(body: str, detail: str) -> None:
    assert str(client().error_of(response(400, body))).endswith(detail)


def test_a_secret_that_a_server_quotes_is_not_shown() -> None:
    error = client(secrets=["sk-1", ""]).error_of(response(500, "bad key sk-1"))
    assert str(error).endswith("bad key ***")
    assert isinstance(error, TransientSearchError)


async def test_user_and_password_of_an_address_are_sent_and_not_shown() -> None:
    async with served(says(b"ok")) as (url, heads):
        asking = client(headers={"Authorization": "Bearer other"})
        found = await asking.request("GET", url.replace("://", "://me:p%40ss@") + "?key=secret", timeout_s=60)
        await asking.aclose()
    assert f"Authorization: Basic {base64.b64encode(b'me:p@ss').decode()}".encode() in heads[0]
    assert heads[0].startswith(b"GET /x?key=secret HTTP/1.1")
    assert found.where == url


# ---- no response at all ----------------------------------------------------------------------------------------------


async def error_of(url: str, **options: object) -> ParallelSearchError:
    asking = client(**options)
    try:
        with pytest.raises(ParallelSearchError) as caught:
            await asking.request("POST", url, timeout_s=60)  # aiohttp itself repeats a GET that was cut off
    finally:
        await asking.aclose()
    return caught.value


def serve(act: Callable[[socket.socket], None]) -> tuple[str, socket.socket]:
    """A socket on loopback that accepts one connection and does something to it."""
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):  # the client may be gone already
            connection.recv(65536)
            act(connection)

    Thread(target=run, daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}/x", listener


async def test_refused_connection_is_worth_repeating() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    error = await error_of(f"http://me:hidden@127.0.0.1:{port}/x?key=secret")
    assert isinstance(error, TransientSearchError)
    assert f"search server http://127.0.0.1:{port}/x refused the connection; is it running?" in str(error)
    assert "secret" not in str(error)
    assert "hidden" not in str(error)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nha",
    ],
)
async def test_lost_connection_is_worth_repeating(data: bytes) -> None:
    url, listener = serve(lambda connection: connection.sendall(data))
    with listener:
        error = await error_of(url)
    assert isinstance(error, TransientSearchError)
    assert "broke the connection off" in str(error)


async def test_what_is_not_http_stays_wrong() -> None:
    url, listener = serve(lambda connection: connection.sendall(b"SSH-2.0-x\r\n\r\n"))
    with listener:
        error = await error_of(url)
    assert type(error) is SearchError
    assert f"search server {url} failed" in str(error)


async def test_slow_answer_is_not_asked_for_again() -> None:
    url, listener = serve(lambda connection: time.sleep(1))
    with listener:
        error = await error_of(url, read_timeout_s=0.1)
    assert type(error) is SearchTimeoutError
    assert "did not answer in time" in str(error)


async def test_a_byte_now_and_then_does_not_hold_the_call() -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        for _ in range(1000):
            writer.write(b"x")
            await asyncio.sleep(0.1)

    async with served(drip) as (url, _):
        asking = client(read_timeout_s=1.0)
        start_s = time.monotonic()
        with pytest.raises(SearchTimeoutError, match=r"did not answer within 0\.2 s"):
            await asking.request("GET", url, timeout_s=0.2)
        assert time.monotonic() - start_s < 60  # all of it would take 100 s
        await asking.aclose()


async def test_unknown_host_and_bad_address_stay_wrong() -> None:
    for url, words in [
        ("http://no-such-host.invalid/", "unknown host name"),
        ("ftp://host/", "bad address"),
        ("http://[::1", "bad address"),
        ("http://host:99999/", "bad address"),
    ]:
        error = await error_of(url)
        assert type(error) is SearchError
        assert words in str(error)


async def test_plain_server_asked_for_tls_stays_wrong() -> None:
    server = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    Thread(target=server.handle_request, daemon=True).start()
    try:
        error = await error_of(f"https://127.0.0.1:{server.server_port}/")
    finally:
        server.server_close()
    assert type(error) is SearchError
    assert "no valid TLS connection" in str(error)


async def test_connection_not_made_in_time_is_worth_repeating() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:  # nobody accepts: the queue is soon full
        port = full.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        error = await error_of(f"http://127.0.0.1:{port}/", connect_timeout_s=0.2)
        for one in waiting:
            one.close()
    assert isinstance(error, TransientSearchError)
    assert "could not be reached in time" in str(error)


async def test_redirects_are_not_followed() -> None:
    def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        writer.write(b"HTTP/1.1 302 Found\r\nLocation: http://elsewhere/\r\nContent-Length: 0\r\n\r\n")

    async with served(answer) as (url, heads):
        asking = client()
        found = await asking.request("POST", url, content=b"{}", timeout_s=60)
        await asking.aclose()
    assert len(heads) == 1
    assert "It redirects to http://elsewhere/: use that address" in str(asking.error_of(found))


# ---- bytes while they arrive -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [
        ("gzip", gzip.compress),
        ("x-gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", lambda data: zlib.compress(data)[2:-4]),
        ("gzip, gzip", lambda data: gzip.compress(gzip.compress(data))),
        ("deflate, gzip", lambda data: gzip.compress(zlib.compress(data))),
        ("identity", bytes),
    ],
)
async def test_packed_bodies_are_unpacked(encoding: str, pack: Callable[[bytes], bytes]) -> None:
    body = b"".join(b"%d," % number for number in range(50_000))
    async with served(says(pack(body), Content_Encoding=encoding)) as (url, heads):
        asking = client()
        assert (await asking.request("GET", url, timeout_s=60)).content == body
        await asking.aclose()
    assert b"Accept-Encoding: gzip, deflate\r\n" in heads[0]


def bomb(gigabytes: int, times: int) -> bytes:
    """So many gigabytes of zeros: after a full flush a megabyte looks like the one before it, so it can be repeated."""
    packer = zlib.compressobj(9, wbits=31)
    start = packer.compress(b"") + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    data = start + block * (gigabytes << 10)
    for _ in range(times - 1):
        data = gzip.compress(data)
    return data


@pytest.mark.parametrize("times", [1, 2])
async def test_a_compression_bomb_is_refused_at_the_limit(times: int) -> None:
    packed = bomb(8, times)
    assert len(packed) < 20_000_000
    async with served(says(packed, Content_Encoding=", ".join(["gzip"] * times))) as (url, _):
        before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start_s = time.process_time()
        error = await error_of(url, max_body_bytes=8 << 20)
        assert time.process_time() - start_s < 20  # to unpack it all takes a minute
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 100_000
    assert type(error) is SearchError
    assert "sent over 8 MiB; the answer was dropped" in str(error)


async def test_an_inner_layer_that_comes_to_nothing_counts_too() -> None:
    empty_blocks = b"\x00\x00\x00\xff\xff" * (4 << 20)  # 20 MiB of deflate that stand for no byte at all
    packed = gzip.compress(empty_blocks)
    async with served(says(packed, Content_Encoding="deflate, gzip")) as (url, _):
        assert "sent over 8 MiB" in str(await error_of(url, max_body_bytes=8 << 20))


async def test_an_endless_body_is_refused_at_the_limit() -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"10000\r\n" + bytes(65536) + b"\r\n")
            await writer.drain()

    async with served(endless) as (url, _):
        assert "sent over 1 MiB" in str(await error_of(url, max_body_bytes=1 << 20))


@pytest.mark.parametrize(
    ("encoding", "words"),
    [
        ("gzip", "cannot be unpacked"),
        ("br", "packed its answer as 'br', which it was not asked for"),
        (", ".join(["gzip"] * 9), "packed its answer 9 times"),
    ],
)
async def test_bodies_that_cannot_be_unpacked(encoding: str, words: str) -> None:
    async with served(says(b"plain", Content_Encoding=encoding)) as (url, _):
        error = await error_of(url)
    assert type(error) is SearchError
    assert words in str(error)


async def test_large_bodies_are_sent() -> None:
    sizes: list[int] = []

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        sizes.append(len(await reader.readexactly(3_000_000)))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with served(count) as (url, heads):
        asking = client()
        assert (await asking.request("POST", url, content=bytes(3_000_000), timeout_s=60)).content == b"ok"
        await asking.aclose()
    assert b"Content-Length: 3000000" in heads[0]
    assert sizes == [3_000_000]


# ---- connections -----------------------------------------------------------------------------------------------------


async def test_connections_are_used_again_unless_an_answer_was_left_early() -> None:
    connections: list[object] = []

    def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        connections.append(writer.get_extra_info("peername"))
        says(bytes(1_000_000))(reader, writer, head)

    async with served(answer) as (url, _):
        asking = client()
        for _ in range(3):
            await asking.request("GET", url, timeout_s=60)
        assert len(set(connections)) == 1
        async with asking.stream("GET", url) as stream:
            assert await stream.chunk()
        await asking.request("GET", url, timeout_s=60)
        assert len(set(connections)) == 2
        await asking.aclose()


async def test_pieces_come_together_while_many_streams_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = [b"%d\n" % number for number in range(20)]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for piece in pieces:
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await asyncio.sleep(0.01)
        writer.write(b"0\r\n\r\n")

    async def read(url: str) -> list[bytes]:
        found = []
        async with own.stream("GET", url) as stream:
            while piece := await stream.events():
                found.append(piece)
        return found

    monkeypatch.setattr(http_client, "GATHER_S", 1.0)
    monkeypatch.setattr(http_client, "GATHER_PER_STREAM_S", 1.0)
    monkeypatch.setattr(http_client, "GATHER_FROM", 2)
    own = client()
    async with served(answer) as (url, heads):
        for number in (2, 3, 3):  # the third finds the connections of the second, and they are awake
            read_all = await asyncio.gather(*(read(url) for _ in range(number)))
            assert [b"".join(found) for found in read_all] == [b"".join(pieces)] * number
            if number == 2:  # as they come; a busy machine may join some
                few = min(len(found) for found in read_all)
            else:
                assert max(len(found) for found in read_all) < few
        response = await own.request("GET", url, timeout_s=60)
        assert response.content == b"".join(pieces)
        await own.aclose()
    assert len(heads) == 9


async def test_a_stream_that_rests_can_be_left(monkeypatch: pytest.MonkeyPatch) -> None:
    left = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
        await writer.drain()
        await reader.read(1)
        left.set()

    monkeypatch.setattr(http_client, "GATHER_S", 0.05)
    monkeypatch.setattr(http_client, "GATHER_PER_STREAM_S", 1.0)
    monkeypatch.setattr(http_client, "GATHER_FROM", 0)
    own = client()
    async with served(answer) as (url, _):
        async with own.stream("GET", url) as stream:
            assert await stream.events() == b"a"
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await stream.events()
        await asyncio.wait_for(left.wait(), 60)
        await asyncio.sleep(0.1)  # the beat finds a connection that is gone
        await own.aclose()


async def test_cancelling_closes_the_connection() -> None:
    asked, closed = asyncio.Event(), asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        asked.set()
        await reader.read()
        closed.set()

    async with served(answer) as (url, _):
        asking = client()
        task = asyncio.ensure_future(asking.request("GET", url, timeout_s=120))
        await asyncio.wait_for(asked.wait(), 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(closed.wait(), 60)
        await asking.aclose()


async def test_more_calls_than_connections_wait_their_turn() -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        await asyncio.sleep(1.0)
        says(b"ok")(reader, writer, head)

    async with served(slow) as (url, _):
        asking = client(max_connections=2, connect_timeout_s=2.0)
        start_s = time.monotonic()
        found = await asyncio.gather(*(asking.request("GET", url, timeout_s=120) for _ in range(8)))
        assert time.monotonic() - start_s > 3.5
        assert {one.content for one in found} == {b"ok"}
        await asking.aclose()


def test_one_client_serves_many_event_loops_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """Four threads with a loop each, calls interleaved; nothing is closed by hand, and nobody complains."""
    clients = [client()]
    found: list[bytes] = []

    async def many() -> None:
        async with served(says(b"ok")) as (url, _):
            for _ in range(50):
                found.append((await clients[0].request("GET", url, timeout_s=60)).content)

    threads = [threading.Thread(target=lambda: asyncio.run(many())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    asyncio.run(many())
    assert found == [b"ok"] * 250
    with caplog.at_level(logging.DEBUG, "asyncio"):
        clients.clear()
        gc.collect()
    assert not [record for record in caplog.records if "nclosed" in record.getMessage()]


async def test_another_thread_may_let_go_of_a_pool_first() -> None:
    class Gone(asyncio.SelectorEventLoop):
        def is_closed(self) -> bool:
            own._pools.pop(self, None)  # as another thread would, between the look and the taking
            return super().is_closed()

    class Emptied(dict[Any, Any]):
        def __len__(self) -> int:
            return 1  # what was seen before another thread took the last one

    own = client()
    gone = Gone()
    gone.close()
    async with served(says(b"ok")) as (url, _):
        await own.request("GET", url, timeout_s=60)
        own._pools[gone] = own._pools.pop(asyncio.get_running_loop())
        assert (await own.request("GET", url, timeout_s=60)).content == b"ok"
        await own.aclose()
    http_client._close_all(Emptied())


def test_one_call_from_code_that_is_not_asynchronous() -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(self.path)))
            self.end_headers()
            self.wfile.write(self.path.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/a"

    async def inside() -> str:
        return get_now(client(), url, timeout_s=60, params={"q": "x y"}).text

    try:
        assert get_now(client(), url, timeout_s=60).text == "/a"
        assert asyncio.run(inside()) == "/a?q=x+y"
    finally:
        server.shutdown()
        server.server_close()
    with pytest.raises(TransientSearchError, match="refused the connection"):
        get_now(client(), url, timeout_s=60)


# ---- proxies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "address", "expected"),
    [
        ({}, ("http", "h", None), None),
        ({"HTTP_PROXY": "http://p:1"}, ("http", "h", None), "http://p:1"),
        ({"http_proxy": "p:1"}, ("http", "h", None), "http://p:1"),
        ({"HTTP_PROXY": "http://p:1"}, ("https", "h", None), None),
        ({"HTTPS_PROXY": "http://p:1"}, ("https", "h", None), "http://p:1"),
        ({"ALL_PROXY": "http://p:1"}, ("https", "h", None), "http://p:1"),
        ({"HTTP_PROXY": "http://p:1"}, ("http", "127.0.0.1", 8000), None),
        ({"HTTP_PROXY": "http://p:1"}, ("http", "localhost", 8000), None),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "h, example.org"}, ("http", "h", None), None),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "h, example.org"}, ("http", "a.example.org", 80), None),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "h, example.org"}, ("http", "other", 80), "http://p:1"),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "*"}, ("http", "other", 80), None),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "h:8000"}, ("http", "h", 8000), None),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "10.0.0.0/8, x/y"}, ("http", "10.1.2.3", 8000), None),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "10.0.0.0/8"}, ("http", "11.1.2.3", 8000), "http://p:1"),
    ],
)
def test_which_proxy(
    environment: dict[str, str],
    address: tuple[str, str, int | None],
    expected: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert proxy_for(*address) == expected


async def test_another_machine_is_asked_through_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(says(b"through the proxy")) as (url, heads):
        monkeypatch.setenv("HTTP_PROXY", url.replace("://", "://me:pw@").removesuffix("/x"))
        asking = client()
        assert (await asking.request("GET", "http://search.example/retrieve", timeout_s=60)).text == "through the proxy"
        await asking.aclose()
    assert heads[0].startswith(b"GET http://search.example/retrieve HTTP/1.1")
    assert f"Proxy-Authorization: Basic {base64.b64encode(b'me:pw').decode()}".encode() in heads[0]


async def test_https_goes_through_the_proxy_as_a_tunnel(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(*certificate)
    async with served(says(b"secret matter"), tls) as (url, inner):
        port = int(url.rpartition(":")[2].removesuffix("/x"))

        async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
            there, back = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")

            async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
                while data := await source.read(65536):
                    sink.write(data)
                    await sink.drain()
                sink.close()

            await asyncio.gather(pump(reader, back), pump(there, writer))

        async with served(tunnel) as (proxy, outer):
            monkeypatch.setenv("HTTPS_PROXY", proxy.removesuffix("/x"))
            monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
            asking = client(headers={"X-Key": "hidden"})
            assert (await asking.request("GET", "https://search.example/a", timeout_s=60)).text == "secret matter"
            await asking.aclose()
    assert outer[0].startswith(b"CONNECT search.example:443 HTTP/1.1")
    assert b"hidden" not in outer[0]
    assert inner[0].startswith(b"GET /a HTTP/1.1")


async def test_a_proxy_that_is_down_or_of_another_kind_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setenv("HTTP_PROXY", f"http://me:hidden@127.0.0.1:{port}")
    error = await error_of("http://search.example/a")
    assert isinstance(error, TransientSearchError)
    assert "the proxy refused the connection" in str(error)
    assert "hidden" not in str(error)
    monkeypatch.setenv("HTTP_PROXY", "socks5://me:hidden@h:1")
    error = await error_of("http://search.example/a")
    assert isinstance(error, UsageError)
    assert "the proxy socks5://h:1 is of a kind that is not supported" in str(error)


# ---- certificates ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate of one's own for 127.0.0.1 and search.example, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    made, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test"]
    names = "subjectAltName=IP:127.0.0.1,DNS:search.example"
    subprocess.run([*command, "-addext", names, "-keyout", key, "-out", made], check=True, capture_output=True)
    return made, key


@contextmanager
def variable(name: str, value: Path | None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        if value is not None:
            patch.setenv(name, str(value))
        yield


async def test_certificates_are_checked_against_what_the_environment_names(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(*certificate)
    async with served(says(b"ok"), tls) as (url, _):
        error = await error_of(url)
        assert type(error) is SearchError
        assert "no valid TLS connection" in str(error)
        assert "For a certificate authority of your own set SSL_CERT_FILE to a file with" in str(error)
        for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
            with variable(name, certificate[0], monkeypatch):
                asking = client()
                assert (await asking.request("GET", url, timeout_s=60)).content == b"ok"
                await asking.aclose()
            with variable(name, certificate[0].with_name("none.pem"), monkeypatch):
                error = await error_of(url)
                assert isinstance(error, UsageError)
                assert f"the certificates that {name} names cannot be read" in str(error)


async def test_a_client_for_public_addresses_checks_the_name_and_connects_to_the_number(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(*certificate)
    asked_for: list[str | None] = []
    tls.sni_callback = lambda _, name, __: asked_for.append(name)
    real = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *rest, **more: real("127.0.0.1", *rest, **more))
    async with served(says(b"ok"), tls) as (url, heads):
        asking = client(public_only=True)
        with pytest.raises(SearchError, match="only public addresses are opened") as caught:
            await asking.request("GET", url.replace("127.0.0.1", "search.example"), timeout_s=60)
        assert not isinstance(caught.value, TransientSearchError)
        assert not heads
        monkeypatch.setattr(http_client, "is_public", lambda address: address == "127.0.0.1")
        with variable("SSL_CERT_FILE", certificate[0], monkeypatch):
            trusting = client(public_only=True)
            got = await trusting.request("GET", url.replace("127.0.0.1", "search.example"), timeout_s=60)
            with pytest.raises(SearchError, match="no valid TLS connection"):
                await trusting.request("GET", url.replace("127.0.0.1", "other.example"), timeout_s=60)
        await asking.aclose()
        await trusting.aclose()
    assert got.content == b"ok"
    assert asked_for == ["search.example", "other.example"]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://user:pa/ss@host:8000/retrieve", "http://host:8000/retrieve"),
        ("http://user:pa?ss@host/x", "http://host/x"),
        ("http://user:p#a/s?s@host/x?key=1#f", "http://host/x"),
        ("http://user:pass@host/x", "http://host/x"),
        ("http://host/x?mail=a@b", "http://host/x"),
        ("http://[::1]:80/x?mail=a@b", "http://[::1]:80/x"),
        ("host:1/x", "host:1/x"),
    ],
)
def test_no_part_of_a_password_is_shown(url, shown):
    assert without_secrets(url) == shown

"""Which failures are repeated, when, and what the errors say."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallelsearch.errors import (
    ParallelSearchError,
    PolicyError,
    SearchError,
    TransientError,
    TransientSearchError,
)
from parallelsearch.retry import response_error, retry_after_s, retrying, transport_error

NOW = datetime(2026, 11, 15, 12, 0, 0, tzinfo=UTC)


class Flaky:
    """Fails with the given errors, one after the other, then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.times_s: list[float] = []

    async def __call__(self) -> str:
        self.times_s.append(time.perf_counter())
        if self.errors:
            raise self.errors.pop(0)
        return "answer"

    @property
    def waits_s(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.times_s, self.times_s[1:], strict=False)]


async def test_transient_errors_are_repeated_with_growing_waits() -> None:
    call = Flaky(*(TransientError("busy") for _ in range(3)))
    assert await retrying(4, first_wait_s=0.1)(call) == "answer"
    assert len(call.waits_s) == 3
    for wait_s, ceiling_s in zip(call.waits_s, (0.1, 0.2, 0.4), strict=True):
        assert ceiling_s / 2 - 0.01 <= wait_s <= ceiling_s + 1.0  # the upper bound leaves room for a busy machine


async def test_waits_never_grow_beyond_the_limit() -> None:
    call = Flaky(*(TransientError("busy") for _ in range(6)))
    assert await retrying(7, max_wait_s=0.02, first_wait_s=0.01)(call) == "answer"
    assert sum(call.waits_s) < 1


async def test_last_error_keeps_its_type_and_says_how_often_it_was_tried() -> None:
    call = Flaky(*(TransientSearchError("busy") for _ in range(9)))
    with pytest.raises(TransientSearchError, match=r"^busy \(after 3 attempts\)$"):
        await retrying(3, first_wait_s=0.01)(call)
    assert len(call.times_s) == 3
    with pytest.raises(TransientError, match=r"^busy$"):
        await retrying(1)(Flaky(TransientError("busy")))


async def test_other_errors_come_out_at_once() -> None:
    for error in (SearchError("bad query"), ValueError("bug"), TransientError("not the kind asked for")):
        call = Flaky(error)
        with pytest.raises(type(error), match=str(error)):
            await retrying(5, error=TransientSearchError)(call)
        assert len(call.times_s) == 1


async def test_retry_after_wins_over_back_off() -> None:
    call = Flaky(TransientError("busy", 0.2), TransientError("busy", 0.0))
    await retrying(3, first_wait_s=20.0)(call)
    assert 0.19 <= call.waits_s[0] < 5
    assert call.waits_s[1] < 5


async def test_retry_after_beyond_the_limit_is_not_slept() -> None:
    call = Flaky(TransientError("busy", 31.0))
    with pytest.raises(
        TransientError, match=r"busy; the server asks to wait 31 s, more than the 30 s allowed"
    ) as caught:
        await retrying(5, max_wait_s=30.0)(call)
    assert caught.value.retry_after_s == 31.0
    assert len(call.times_s) == 1


async def test_loop_form() -> None:
    call = Flaky(TransientError("busy"))
    async for attempt in retrying(2, first_wait_s=0.01):
        with attempt:
            result = await call()
    assert result == "answer"


async def test_cancelling_ends_the_waiting() -> None:
    call = Flaky(TransientError("busy", 20.0))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await retrying(2)(call)
    assert len(call.times_s) == 1


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": " 0.25 "}, 0.25),
        ({"Retry-After": "-3"}, 0.0),
        ({"Retry-After": format_datetime(NOW + timedelta(seconds=90), usegmt=True)}, 90.0),
        ({"Retry-After": "Sun, 15 Nov 2026 13:00:00 +0100"}, 0.0),
        ({"Retry-After": "Sun, 15 Nov 2026 11:00:00 GMT"}, 0.0),
        ({"Retry-After": "Sun, 15 Nov 2026 12:00:05 -0000"}, 5.0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": ""}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "inf"}, None),
        ({"Retry-After": "Sun, 99 Nov 2026 12:00:05 GMT"}, None),
        ({"Retry-After": "9", "retry-after-ms": "1500"}, 1.5),
        ({"Retry-After": "9", "retry-after-ms": "x"}, 9.0),
    ],
)
def test_retry_after(headers: dict[str, str], expected: float | None) -> None:
    assert retry_after_s(httpx.Headers(headers), now=NOW) == expected


@given(st.text(st.characters(max_codepoint=255, exclude_characters="\r\n\0")))
def test_retry_after_never_raises(value: str) -> None:
    seconds = retry_after_s({"retry-after": value})
    assert seconds is None or seconds >= 0


# ---- from a response to an error -------------------------------------------------------------------------------------


def response(status: int, body: str = "", **headers: str) -> httpx.Response:
    request = httpx.Request("POST", "http://me:hidden@host:1/path?key=secret")
    return httpx.Response(status, text=body, headers=headers, request=request)


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 529])
def test_statuses_that_pass(status: int) -> None:
    error = response_error(response(status, **{"retry-after": "4"}), "search server", SearchError, TransientSearchError)
    assert isinstance(error, TransientSearchError)
    assert error.retry_after_s == 4.0
    assert f"search server http://host:1/path answered {status}" in str(error)


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 413, 422, 501, 505])
def test_statuses_that_stay(status: int) -> None:
    error = response_error(response(status), "search server", SearchError, TransientSearchError)
    assert type(error) is SearchError
    for secret in ("hidden", "secret"):
        assert secret not in str(error)


def test_good_statuses_are_no_error() -> None:
    assert response_error(response(200), "x", SearchError) is None
    assert response_error(response(204), "x", SearchError) is None


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
    ],
)
def test_message_quotes_what_the_server_said(body: str, detail: str) -> None:
    assert str(response_error(response(400, body), "x", SearchError)).endswith(detail)


# ---- no response at all ----------------------------------------------------------------------------------------------


async def error_of(url: str, **options: float) -> ParallelSearchError:
    async with httpx.AsyncClient(timeout=httpx.Timeout(5.0, **options)) as client:
        with pytest.raises((httpx.HTTPError, httpx.InvalidURL)) as caught:
            await client.get(url)
    return transport_error(caught.value, "search server", SearchError, TransientSearchError)


def serve(act: Callable[[socket.socket], None]) -> tuple[str, socket.socket]:
    """A socket on loopback that accepts one connection and does something to it."""
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            act(connection)

    Thread(target=run, daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}/x", listener


async def test_refused_connection_is_worth_repeating() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    error = await error_of(f"http://127.0.0.1:{port}/x?key=secret")
    assert isinstance(error, TransientSearchError)
    assert f"search server http://127.0.0.1:{port}/x refused the connection; is it running?" in str(error)
    assert "secret" not in str(error)


@pytest.mark.parametrize("data", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhalf"])
async def test_lost_connection_is_worth_repeating(data: bytes) -> None:
    url, listener = serve(lambda connection: connection.sendall(data))
    with listener:
        error = await error_of(url)
    assert isinstance(error, TransientSearchError)
    assert "broke the connection off" in str(error)


async def test_slow_answer_is_not_asked_for_again() -> None:
    url, listener = serve(lambda connection: time.sleep(1))
    with listener:
        error = await error_of(url, read=0.1)
    assert type(error) is SearchError
    assert "did not answer in time" in str(error)


async def test_unknown_host_and_bad_address_stay_wrong() -> None:
    for url, words in [
        ("http://no-such-host.invalid/", "unknown host name"),
        ("ftp://host/", "bad address"),
        ("http://[::1", "bad address"),
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


def test_connection_not_made_in_time_is_worth_repeating() -> None:
    request = httpx.Request("GET", "http://host/")
    for cause in (httpx.ConnectTimeout("x", request=request), httpx.PoolTimeout("x", request=request)):
        assert "could not be reached in time" in str(transport_error(cause, "s", PolicyError))
        assert type(transport_error(cause, "s", PolicyError)) is TransientError
    assert type(transport_error(httpx.DecodingError("bad gzip"), "s", PolicyError)) is PolicyError

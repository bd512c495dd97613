"""What the endpoints of all servers share: a body within its limits, JSON out, the headers of pages and of refusals."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from parallelsearch import __version__
from parallelsearch.server.limits import FEWER, RefusalError, ServerSettings, check_caller, check_values, read_body

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from parallelsearch.server.agent_metrics import AgentMetrics
    from parallelsearch.server.metrics import ServerMetrics

# ASGI's own shapes.
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

API_HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Of a page: it may load its own files and talk to its own server, and nothing else."""


CUT_SHORT = "the connection was closed before the body was complete"


async def body_of(request: Request, settings: ServerSettings, hint: str = FEWER) -> bytes:
    """The body, JSON within the limits of size, time and number of values, or `RefusalError`."""
    from starlette.requests import ClientDisconnect

    try:
        return await body_in_time(request.stream(), request.headers.get("content-length"), settings, hint)
    except ClientDisconnect:
        raise RefusalError(400, CUT_SHORT) from None


async def body_in_time(
    chunks: AsyncIterator[bytes], declared: str | None, settings: ServerSettings, hint: str = FEWER
) -> bytes:
    """The same of a body that arrives in chunks; `declared` is its length as the client said it."""
    try:
        async with asyncio.timeout(settings.body_timeout_s):
            body = await read_body(chunks, declared, settings.max_body_bytes, hint)
    except TimeoutError:
        raise RefusalError(408, f"the body did not arrive within {settings.body_timeout_s:g} s") from None
    await check_values(body, settings.max_values, hint)
    return body


async def chunks_of(receive: Receive) -> AsyncIterator[bytes]:
    """The body as it arrives, or `RefusalError` if the client leaves before its end."""
    is_more = True
    while is_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RefusalError(400, CUT_SHORT)
        yield message.get("body", b"")
        is_more = message.get("more_body", False)


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    from starlette.responses import Response

    content = json.dumps(value, default=str).encode("ascii")
    return Response(content, status, {**API_HEADERS, **(headers or {})}, media_type="application/json")


def refusal_headers(error: RefusalError) -> dict[str, str]:
    """How to come in, or when to come again."""
    headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    return headers


class Endpoints(ABC):
    """What a server of searches and one of answers have alike: whether it lives, what it counts, and who may ask."""

    metrics: ServerMetrics | AgentMetrics

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.started_s = time.monotonic()

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """What `health` says to those who may ask."""

    @abstractmethod
    def refused(self, error: RefusalError) -> Response:
        """A refusal in the words of this API."""

    async def health(self, request: Request) -> Response:
        """Alive or not is for everybody, the rest for those who may ask."""
        state: dict[str, Any] = {"status": "ok", "uptime_s": round(time.monotonic() - self.started_s, 1)}
        with contextlib.suppress(RefusalError):
            self.check(request)
            state |= {**self.state(), "version": __version__}
        return json_response(state)

    async def metrics_text(self, request: Request) -> Response:
        from starlette.responses import Response

        from parallelsearch.server.metrics import CONTENT_TYPE

        try:
            self.check(request)
        except RefusalError as error:
            return self.refused(error)
        return Response(self.metrics.text(), media_type=CONTENT_TYPE)

    def guarded(self, request: Request, make: Callable[[], Any]) -> Response:
        """What is made for those who may ask, as JSON."""
        try:
            self.check(request)
            return json_response(make())
        except RefusalError as error:
            return self.refused(error)

    def check(self, request: Request) -> None:
        """`RefusalError` for a name the server does not go by, or a missing token."""
        check_caller(request.headers.get("host", ""), request.headers.get("authorization"), self.settings)

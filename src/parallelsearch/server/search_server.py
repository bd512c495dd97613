"""Search over HTTP: `POST /retrieve`, which Search-R1's client speaks too, `GET /health` and `GET /metrics`.

Queries of all clients meet in one `Search`, which makes micro-batches of them, so the handler only checks, waits and
writes JSON. What is beyond a limit is refused at once and says why; a query that fails leaves an empty list in its place
and its cause under "errors". On SIGTERM no new request is taken and those that were are answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import math
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TextIO

from parallelsearch import __version__
from parallelsearch.errors import UsageError, require
from parallelsearch.retrieval.http_client import is_loopback
from parallelsearch.retrieval.remote import document_of, error_of
from parallelsearch.search import Found, Search
from parallelsearch.server.limits import (
    TOKEN_ENV,
    PendingQueries,
    RefusalError,
    RetrieveRequest,
    ServerSettings,
    is_authorized,
    read_body,
    read_request,
)

if TYPE_CHECKING:
    from fastapi import FastAPI, Request, Response

_log = logging.getLogger("parallelsearch.server")

_BODY_SCHEMA = {
    "type": "object",
    "required": ["queries"],
    "properties": {
        "queries": {"type": "array", "items": {"type": "string"}},
        "topk": {"type": ["integer", "null"], "description": "hits for each query; null or 0: the server's default"},
        "return_scores": {"type": "boolean", "default": False},
    },
    "example": {"queries": ["capital of France", "capital of Italy"], "topk": 3, "return_scores": True},
}


def reply_of(found: list[Found], return_scores: bool) -> dict[str, Any]:
    """The body of an answer. With scores `{"document", "score"}`, without them the bare documents."""
    reply: dict[str, Any] = {}
    if return_scores:
        # JSON has no NaN and no infinity.
        reply["result"] = [
            [
                {"document": document_of(hit), "score": hit.score if math.isfinite(hit.score) else None}
                for hit in one.hits
            ]
            for one in found
        ]
    else:
        reply["result"] = [[document_of(hit) for hit in one.hits] for one in found]
    errors = {str(i): error_of(one.error) for i, one in enumerate(found) if one.error is not None}
    if errors:
        reply["errors"] = errors
    return reply


def create_search_app(search: Search, *, settings: ServerSettings | None = None) -> FastAPI:
    """The application. It closes `search` when it shuts down."""
    require("fastapi", "serve")
    require("prometheus_client", "serve")
    from fastapi import FastAPI, Request, Response
    from fastapi.routing import APIRoute

    from parallelsearch.server.metrics import CONTENT_TYPE, ServerMetrics

    settings = settings or ServerSettings()
    pending = PendingQueries(settings.max_pending_queries)
    metrics = ServerMetrics(search, pending)
    started_s = time.monotonic()
    numbers = itertools.count(1)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await search.aclose()

    app = FastAPI(title="parallelsearch", version=__version__, lifespan=lifespan)

    async def answer(request: Request) -> tuple[RetrieveRequest, list[Found]]:
        if not is_authorized(request.headers.get("authorization"), settings.token):
            raise RefusalError(401, f"a bearer token is needed: Authorization: Bearer <the value of {TOKEN_ENV}>")
        asked = read_request(await body_of(request, settings), settings)
        pending.take(len(asked.queries))
        try:
            return asked, await search.search_many(asked.queries, asked.k)
        finally:
            pending.answered(len(asked.queries))

    async def retrieve(request: Request) -> Response:
        start_s = time.perf_counter()
        asked: RetrieveRequest | None = None
        found: list[Found] = []
        refusal: str | None = None
        try:
            asked, found = await answer(request)
            content = json.dumps(reply_of(found, asked.return_scores)).encode("ascii")
            response = Response(content, media_type="application/json")
        except RefusalError as error:
            refusal = str(error)
            response = _refused(error)
        elapsed_s = time.perf_counter() - start_s
        metrics.request(response.status_code, elapsed_s, found)
        if _log.isEnabledFor(logging.INFO):
            _log.info(
                "retrieve",
                extra={
                    "fields": _log_fields(asked, found, refusal, settings)
                    | {
                        "request": next(numbers),
                        "status": response.status_code,
                        "elapsed_ms": round(elapsed_s * 1000, 2),
                    }
                },
            )
        return response

    async def health(request: Request) -> Response:
        state: dict[str, Any] = {"status": "ok", "uptime_s": round(time.monotonic() - started_s, 1)}
        if is_authorized(request.headers.get("authorization"), settings.token):
            state |= {"pending_queries": pending.num_pending, "search": search.describe(), "version": app.version}
        return Response(json.dumps(state, default=str), media_type="application/json")

    async def show_metrics(request: Request) -> Response:
        if not is_authorized(request.headers.get("authorization"), settings.token):
            return _refused(RefusalError(401, "a bearer token is needed"))
        return Response(metrics.text(), media_type=CONTENT_TYPE)

    class PlainRoute(APIRoute):
        """A route whose handler takes the request and gives the response: no parameters to solve, nothing to serialise."""

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            return self.endpoint

    body_docs = {"requestBody": {"required": True, "content": {"application/json": {"schema": _BODY_SCHEMA}}}}
    # Annotations in this module are strings; the framework must see the classes.
    for handler in (retrieve, health, show_metrics):
        handler.__annotations__ = {"request": Request, "return": Response}
    app.router.route_class = PlainRoute
    app.post("/retrieve", openapi_extra=body_docs, response_class=Response)(retrieve)
    app.get("/health", response_class=Response)(health)
    app.get("/metrics", response_class=Response)(show_metrics)
    return app


async def body_of(request: Request, settings: ServerSettings, hint: str = "send fewer queries at a time") -> bytes:
    """The body within the limits of size and time, or `RefusalError`."""
    from starlette.requests import ClientDisconnect

    declared = request.headers.get("content-length")
    try:
        async with asyncio.timeout(settings.body_timeout_s):
            return await read_body(request.stream(), declared, settings.max_body_bytes, hint)
    except ClientDisconnect:
        raise RefusalError(400, "the connection was closed before the body was complete") from None
    except TimeoutError:
        raise RefusalError(408, f"the body did not arrive within {settings.body_timeout_s:g} s") from None


def _refused(error: RefusalError) -> Response:
    from fastapi import Response

    headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    body = json.dumps({"detail": str(error)})
    return Response(body, error.status, headers, media_type="application/json")


# ---- logs ------------------------------------------------------------------------------------------------------------


def _log_fields(
    asked: RetrieveRequest | None, found: list[Found], refusal: str | None, settings: ServerSettings
) -> dict[str, Any]:
    """Counts and times. What people ask is not logged unless that was asked for."""
    if asked is None:
        return {"refusal": refusal}
    fields: dict[str, Any] = {"num_queries": len(found), "k": asked.k}
    failed = [one for one in found if one.error is not None]
    fields |= {"num_failed": len(failed), "num_cached": sum(one.cached for one in found)}
    if failed:
        fields["first_error"] = str(failed[0].error)[:300]
    if settings.logs_queries:
        fields["queries"] = asked.queries
    return fields


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
        return json.dumps(line, default=str)


def log_to(stream: TextIO) -> None:
    """Send the logs of this package and of uvicorn to `stream` as JSON Lines."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    for name in ("parallelsearch", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)


# ---- running ---------------------------------------------------------------------------------------------------------


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


def run_search_server(
    search: Search, settings: ServerSettings | None = None, *, log_stream: TextIO | None = None
) -> None:
    """Serve until SIGTERM or Ctrl-C; then answer what was taken and return."""
    settings = settings or ServerSettings()
    # A query that was taken may use its whole time-out, and is waited for.
    settings = replace(settings, shutdown_s=max(settings.shutdown_s, search.timeout_s + 1))
    app = create_search_app(search, settings=settings)
    serve_app(app, settings, log_stream=log_stream, path="/retrieve")


def serve_app(app: Any, settings: ServerSettings, *, path: str, log_stream: TextIO | None = None) -> None:
    """Run an ASGI application with this package's socket, logs and shutdown."""
    require("uvicorn", "serve")
    import uvicorn

    listener = listen(settings.host, settings.port)
    log_to(log_stream or sys.stderr)
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
        timeout_keep_alive=75,
        backlog=2048,
    )
    server = uvicorn.Server(config)

    async def serve() -> None:
        # The socket already listens: who connects from now on is answered.
        _log.info("listening", extra={"fields": {"url": address}})
        await server.serve(sockets=[listener])

    with _stop_signals_end_quietly():
        asyncio.run(serve())
    if not server.started:
        raise UsageError(f"the server at {address} could not start; see the log")
    _log.info("stopped")


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

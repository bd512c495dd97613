"""Search over HTTP: `POST /retrieve`, which Search-R1's client speaks too, `GET /health` and `GET /metrics`.

Over a search that splits, a query is a whole question and its hits are the merged passages of all its parts.

Queries of all clients meet in one `Search`, which makes micro-batches of them, so the handler only checks, waits and
writes JSON. It speaks ASGI itself: for a keyword search the layers of a framework would cost a third of the time. What is
beyond a limit is refused at once and says why; a query that fails leaves an empty list in its place and its cause under
"errors". On SIGTERM no new request is taken and those that were are answered.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import math
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from parallelsearch.errors import require
from parallelsearch.http import without_asked
from parallelsearch.retrieval.base import DegradedHits, Hit
from parallelsearch.retrieval.remote import document_of, error_of
from parallelsearch.retrieving import MergedHit, SplitRetriever
from parallelsearch.search import Found, Search
from parallelsearch.server.endpoints import (
    API_HEADERS,
    App,
    Endpoints,
    Message,
    Receive,
    Send,
    body_in_time,
    chunks_of,
    json_response,
    refusal_headers,
)
from parallelsearch.server.limits import (
    PendingQueries,
    RefusalError,
    RetrieveRequest,
    ServerSettings,
    check_caller,
    check_content,
    read_request,
)
from parallelsearch.server.openapi import search_openapi
from parallelsearch.server.running import serve_app

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from parallelsearch.server.metrics import ServerMetrics

_log = logging.getLogger("parallelsearch.server")


def reply_of(found: list[Found], return_scores: bool) -> dict[str, Any]:
    """The body of an answer. With scores `{"document", "score"}`, without them the bare documents."""
    reply: dict[str, Any] = {}
    if return_scores:
        # JSON has no NaN and no infinity.
        reply["result"] = [
            [{"document": _document(hit), "score": hit.score if math.isfinite(hit.score) else None} for hit in one.hits]
            for one in found
        ]
    else:
        reply["result"] = [[_document(hit) for hit in one.hits] for one in found]
    errors = {str(i): error_of(one.error) for i, one in enumerate(found) if one.error is not None}
    if errors:
        reply["errors"] = errors
    degraded = {str(i): list(one.hits.failures) for i, one in enumerate(found) if isinstance(one.hits, DegradedHits)}
    if degraded:
        reply["degraded"] = degraded
    return reply


def _document(hit: Hit) -> dict[str, Any]:
    """A hit as clients know it. One of a question that was split also says which sub-queries found it."""
    document = document_of(hit)
    if isinstance(hit, MergedHit):
        document["queries"] = hit.queries
    return document


def reply_bytes(found: list[Found], return_scores: bool) -> bytes:
    """The same as JSON."""
    reply = reply_of(found, return_scores)
    try:
        return cast(bytes, require("orjson", "serve").dumps(reply))
    except TypeError:  # half a surrogate pair is no UTF-8; escaped, it is still JSON
        return json.dumps(reply).encode("ascii")


def create_search_app(search: Search, *, settings: ServerSettings | None = None) -> App:
    """The ASGI application. It closes `search` when it shuts down."""
    for module in ("starlette", "prometheus_client", "orjson"):
        require(module, "serve")
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.routing import Route

    server = _Handlers(search, settings or ServerSettings())

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await search.aclose()

    others = Starlette(
        routes=[
            Route("/retrieve", server.retrieve, methods=["POST"]),
            Route("/health", server.health),
            Route("/metrics", server.metrics_text),
            Route("/openapi.json", server.openapi),
        ],
        lifespan=lifespan,
        exception_handlers={HTTPException: _no_such_route},
    )

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        # Where nearly all requests go, without a walk through the routes.
        if scope["type"] == "http" and scope["path"] == "/retrieve" and scope["method"] == "POST":
            await server.retrieve(scope, receive, send)
        else:
            await others(scope, receive, send)

    return app


def run_search_server(search: Search, settings: ServerSettings | None = None) -> None:
    """Serve until SIGTERM or Ctrl-C; then answer what was taken and return."""
    settings = settings or ServerSettings()
    # A query that was taken may use its whole time-out, and is waited for.
    settings = replace(settings, shutdown_s=max(settings.shutdown_s, search.timeout_s + 1))
    app = create_search_app(search, settings=settings)
    serve_app(app, settings, path="/retrieve")


class _Retrieve:
    """`POST /retrieve` as an ASGI application."""

    def __init__(
        self, search: Search, settings: ServerSettings, pending: PendingQueries, metrics: ServerMetrics
    ) -> None:
        self._search, self._settings, self._pending, self._metrics = search, settings, pending, metrics
        self._numbers = itertools.count(1)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        start_s = time.perf_counter()
        asked: RetrieveRequest | None = None
        found: list[Found] = []
        refusal: str | None = None
        status, headers = 200, [(b"content-type", b"application/json")]
        try:
            given = dict(scope["headers"])
            check_caller(_text(given.get(b"host")) or "", _text(given.get(b"authorization")), self._settings)
            check_content(
                _text(given.get(b"content-type")), _text(given.get(b"origin")), _text(given.get(b"host")) or ""
            )
            body = await body_in_time(chunks_of(receive), _text(given.get(b"content-length")), self._settings)
            asked = read_request(body, self._settings)
            found = await self._find(asked)
            content = reply_bytes(found, asked.return_scores)
        except RefusalError as error:
            refusal, status = str(error), error.status
            content = json.dumps({"detail": refusal}).encode("ascii")
            more = {**API_HEADERS, **refusal_headers(error)}
            headers += [(name.lower().encode(), value.encode()) for name, value in more.items()]
        headers.append((b"content-length", str(len(content)).encode()))
        elapsed_s = time.perf_counter() - start_s
        self._metrics.request(status, elapsed_s, found)
        if _log.isEnabledFor(logging.INFO):
            fields = _log_fields(asked, found, refusal, self._settings)
            fields |= {"request": next(self._numbers), "status": status, "elapsed_ms": round(elapsed_s * 1000, 2)}
            _log.info("retrieve", extra={"fields": fields})
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    async def _find(self, asked: RetrieveRequest) -> list[Found]:
        self._pending.take(len(asked.queries))
        try:
            return await self._search.search_many(asked.queries, asked.k)
        finally:
            self._pending.answered(len(asked.queries))


def _text(header: bytes | None) -> str | None:
    return None if header is None else header.decode("latin-1")


class _Handlers(Endpoints):
    """The endpoints of one server."""

    def __init__(self, search: Search, settings: ServerSettings) -> None:
        from parallelsearch.server.metrics import ServerMetrics

        super().__init__(settings)
        self.search = search
        self.pending = PendingQueries(settings.max_pending_queries)
        self.metrics = ServerMetrics(search, self.pending)
        self.retrieve = _Retrieve(search, settings, self.pending, self.metrics)

    def state(self) -> dict[str, Any]:
        return {"pending_queries": self.pending.num_pending, "search": self.search.describe()}

    def refused(self, error: RefusalError) -> Response:
        return json_response({"detail": str(error)}, error.status, refusal_headers(error))

    async def openapi(self, request: Request) -> Response:
        splits = isinstance(self.search.retriever, SplitRetriever)
        return self.guarded(request, lambda: search_openapi(self.settings, splits))


async def _no_such_route(request: Request, error: Any) -> Response:
    return json_response({"detail": error.detail}, error.status_code, error.headers)


def _log_fields(
    asked: RetrieveRequest | None, found: list[Found], refusal: str | None, settings: ServerSettings
) -> dict[str, Any]:
    """Counts and times. What people ask is not logged unless that was asked for."""
    if asked is None:
        return {"refusal": refusal}

    def told(message: str) -> str:
        return (message if settings.logs_queries else without_asked(message, asked.queries))[:300]

    fields: dict[str, Any] = {"num_queries": len(found), "k": asked.k}
    failed = [one for one in found if one.error is not None]
    fields |= {"num_failed": len(failed), "num_cached": sum(one.cached for one in found)}
    in_part = [one.hits for one in found if isinstance(one.hits, DegradedHits)]
    if in_part:
        fields |= {"num_in_part": len(in_part), "first_missing": told(in_part[0].failures[0])}
    if failed:
        fields["first_error"] = told(str(failed[0].error))
    if settings.logs_queries:
        fields["queries"] = asked.queries
    return fields

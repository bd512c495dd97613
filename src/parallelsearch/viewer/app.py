"""The viewer as a server: the page, rows from the index, and one trajectory at a time by its byte offset.

It listens at once and indexes in a thread; the page shows rows as they come. No request names a file: runs and rows are
numbers, and the page's own files are held in memory. Whoever asks needs the token, where there is one, and a name of this
machine in the Host header, so that a web page elsewhere cannot read runs through the visitor's browser.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from parallelsearch.errors import DataError, UsageError, require
from parallelsearch.evaluation.metrics import ERROR_CLASSES
from parallelsearch.server.endpoints import PAGE_HEADERS, refusal_headers
from parallelsearch.server.limits import NOT_MY_NAME, RefusalError, ServerSettings, check_caller, is_own_name
from parallelsearch.server.running import serve_app
from parallelsearch.viewer.index import FIELDS, RunIndex, encode, open_runs
from parallelsearch.viewer.record import record_view
from parallelsearch.viewer.template import SCRIPTS, STYLE, read_asset, served_page

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

MAX_ROWS = 5_000
"""Rows in one answer."""
HEADERS = {**PAGE_HEADERS, "Cache-Control": "no-store"}
Runs = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def run_viewer(runs: Runs, settings: ServerSettings | None = None, *, reward: str | None = None) -> None:
    """Serve the viewer of these runs until SIGTERM or Ctrl-C."""
    settings = settings or ServerSettings()
    serve_app(create_viewer_app(runs, settings, reward=reward), settings, path="/")


def create_viewer_app(runs: Runs, settings: ServerSettings | None = None, *, reward: str | None = None) -> Starlette:
    """The application. Runs are found now and read from when it starts."""
    require("starlette", "serve")
    from starlette.applications import Starlette
    from starlette.routing import Route

    paths = [runs] if isinstance(runs, (str, os.PathLike)) else list(runs)
    viewer = _Handlers(open_runs(paths, reward), settings or ServerSettings())

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        viewer.read_on()
        yield
        await viewer.aclose()

    assets = {"/": (served_page(), "text/html"), f"/{STYLE}": (read_asset(STYLE), "text/css")}
    assets |= {f"/{name}": (read_asset(name), "text/javascript") for name in SCRIPTS}
    return Starlette(
        routes=[
            *(Route(path, viewer.asset(text, kind)) for path, (text, kind) in assets.items()),
            Route("/favicon.ico", viewer.asset("", "image/x-icon", 204)),
            Route("/health", viewer.guarded(viewer.health)),
            Route("/api/runs", viewer.guarded(viewer.runs)),
            Route("/api/rows", viewer.guarded(viewer.rows)),
            Route("/api/record", viewer.guarded(viewer.record)),
        ],
        lifespan=lifespan,
    )


Handler = Callable[["Request"], Awaitable["Response"]]


class _Handlers:
    """The endpoints of one viewer."""

    def __init__(self, indexes: list[RunIndex], settings: ServerSettings) -> None:
        self.indexes, self.settings = indexes, settings
        self._reading: asyncio.Task[None] | None = None

    def read_on(self) -> None:
        """Take in what was added to the runs, in a thread; the answers meanwhile are of what is known."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        for index in self.indexes:
            with contextlib.suppress(UsageError, OSError):  # moved away meanwhile: what was read stays
                await asyncio.to_thread(index.refresh)

    async def aclose(self) -> None:
        for index in self.indexes:
            index.close()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    # ---- endpoints ---------------------------------------------------------------------------------------------------

    async def health(self, request: Request) -> bytes:
        return encode({"status": "ok", "num_rows": sum(map(len, self.indexes))})

    async def runs(self, request: Request) -> bytes:
        """Every load of the page looks for what is new on disk."""
        self.read_on()
        described = [index.describe() for index in self.indexes]
        return encode({"fields": FIELDS, "error_classes": ERROR_CLASSES, "max_rows": MAX_ROWS, "runs": described})

    async def rows(self, request: Request) -> bytes:
        index = self.index_of(request)
        start = _whole(request, "start")
        # Whether it is complete is asked before the rows are taken: what comes in between is then asked for again.
        state: dict[str, Any] = {
            "is_complete": index.is_complete,
            "is_judged": index.is_judged,
            "generation": index.generation,
            "num_bytes": index.num_bytes,
            "num_bytes_read": index.num_bytes_read,
        }
        rows = index.rows(start, start + MAX_ROWS)
        return encode(state)[:-1] + b',"rows":[' + b",".join(rows) + b"]}"

    async def record(self, request: Request) -> bytes:
        index = self.index_of(request)
        number = _whole(request, "row")
        if number >= len(index):
            raise RefusalError(404, f"there is no row {number}")
        return await asyncio.to_thread(lambda: encode(record_view(index.trajectory(number))))

    def index_of(self, request: Request) -> RunIndex:
        number = _whole(request, "run")
        if number >= len(self.indexes):
            raise RefusalError(404, f"there is no run {number}")
        return self.indexes[number]

    # ---- who may ask -------------------------------------------------------------------------------------------------

    def guarded(self, make: Callable[[Request], Awaitable[bytes]]) -> Handler:
        async def answer(request: Request) -> Response:
            from starlette.responses import Response

            try:
                check_caller(request.headers.get("host", ""), request.headers.get("authorization"), self.settings)
                return Response(await make(request), headers=HEADERS, media_type="application/json")
            except RefusalError as error:
                headers = {**HEADERS, **refusal_headers(error)}
                return Response(encode({"detail": str(error)}), error.status, headers, "application/json")
            except (DataError, UsageError) as error:
                return Response(encode({"detail": str(error)}), 409, HEADERS, "application/json")

        return answer

    def asset(self, text: str, kind: str, status: int = 200) -> Handler:
        """A file of the page. It holds nothing of a run, so it needs no token: the page itself asks for it."""
        content = text.encode()

        async def send(request: Request) -> Response:
            from starlette.responses import Response

            if not is_own_name(request.headers.get("host", ""), self.settings):
                return Response(NOT_MY_NAME, 421, HEADERS)
            return Response(content, status, HEADERS, f"{kind}; charset=utf-8" if content else None)

        return send


def _whole(request: Request, name: str) -> int:
    """A parameter that is a whole number from 0, or `RefusalError` 400."""
    text = request.query_params.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise RefusalError(400, f"{name} must be a whole number from 0")
    return int(text)

"""The agent over HTTP: `/v1/chat/completions`, `/v1/responses` and `/v1/models` for any OpenAI client, a page at `/`, MCP
tools at `/mcp`.

A question is a task that lives as long as somebody waits for it. A client that leaves cancels it, searches included. A
streamed answer carries the thought while it is written, what happens as it happens, and the answer whole, once it is
certain and its citations are checked. The page is a few files held in memory; nothing else can be fetched.
"""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from parallelsearch.errors import require
from parallelsearch.policy.base import Policy
from parallelsearch.search import Search
from parallelsearch.server.answering import GRACE_S, AgentSettings, Answering
from parallelsearch.server.asking import (
    SEQUENTIAL_SUFFIX,
    Asked,
    AskOptions,
    ChatLimits,
    error_body,
    model_object,
)
from parallelsearch.server.chat_api import ChatWire, read_chat_request
from parallelsearch.server.chatting import Chat, Streamed, Wire
from parallelsearch.server.endpoints import PAGE_HEADERS, Endpoints, body_of, json_response, refusal_headers
from parallelsearch.server.limits import NOT_MY_NAME, RefusalError, is_own_name
from parallelsearch.server.openapi import agent_openapi
from parallelsearch.server.responses_api import ResponsesWire, read_responses_request
from parallelsearch.server.running import serve_app

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

    from parallelsearch.server.agent_metrics import AgentMetrics

PAGE_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/markdown.js": ("markdown.js", "text/javascript; charset=utf-8"),
    "/lane.js": ("lane.js", "text/javascript; charset=utf-8"),
    "/waterfall.js": ("waterfall.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_EXAMPLES_OF_EACH_KIND = 2
A = TypeVar("A", bound=Asked)


def create_agent_app(
    policy: Policy,
    search: Search,
    settings: AgentSettings | None = None,
    reader: Policy | None = None,
) -> Starlette:
    """The application. `reader` is another model that reads what the policy found and answers. It closes policy, reader and
    search when it shuts down."""
    require("starlette", "serve")
    require("prometheus_client", "serve")
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.routing import BaseRoute, Route

    settings = settings or AgentSettings()
    answering = Answering(policy, search, settings, reader)
    server = _Handlers(answering)
    routes: list[BaseRoute] = [
        Route("/v1/chat/completions", server.chat, methods=["POST"]),
        Route("/v1/responses", server.responses, methods=["POST"]),
        Route("/v1/responses/{rest:path}", server.stored_response, methods=["GET", "POST", "DELETE"]),
        Route("/v1/models", server.models),
        Route("/v1/models/{model}", server.model),
        Route("/health", server.health),
        Route("/metrics", server.metrics_text),
        Route("/page.json", server.page_facts),
        Route("/openapi.json", server.openapi),
        *(Route(path, server.page_file(name, kind)) for path, (name, kind) in PAGE_FILES.items()),
    ]
    mcp_app: Any = None
    if importlib.util.find_spec("mcp") is not None:
        from parallelsearch.server.mcp_server import Gate, create_mcp_server, http_app

        mcp_app = http_app(create_mcp_server(search, settings=settings, answering=answering), settings)
        routes.append(Route("/mcp", Gate(mcp_app, settings)))

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(answering.aclose)
            if mcp_app is not None:
                await stack.enter_async_context(mcp_app.router.lifespan_context(mcp_app))
            yield

    return Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _no_such_route})


def run_agent_server(
    policy: Policy, search: Search, settings: AgentSettings | None = None, *, reader: Policy | None = None
) -> None:
    """Serve until SIGTERM or Ctrl-C; then finish the questions that were taken and return."""
    settings = settings or AgentSettings()
    settings = replace(settings, shutdown_s=max(settings.shutdown_s, settings.timeout_s + GRACE_S + 1))
    app = create_agent_app(policy, search, settings, reader)
    serve_app(app, settings, path="/")


# ---- requests --------------------------------------------------------------------------------------------------------


class _Handlers(Endpoints):
    """The endpoints of one server."""

    settings: AgentSettings
    metrics: AgentMetrics

    def __init__(self, answering: Answering) -> None:
        from parallelsearch.server.agent_metrics import AgentMetrics

        super().__init__(answering.settings)
        self.answering = answering
        self.metrics = AgentMetrics(answering.search, answering.pending)
        self.created = int(time.time())
        name = self.settings.model_name
        self.model_names = (name, name + SEQUENTIAL_SUFFIX)
        self._page = files("parallelsearch.server") / "page"

    async def chat(self, request: Request) -> Response | Streamed:
        return await self.asked(request, read_chat_request, ChatWire, "chat")

    async def responses(self, request: Request) -> Response | Streamed:
        return await self.asked(request, read_responses_request, ResponsesWire, "responses")

    async def stored_response(self, request: Request) -> Response:
        def none() -> NoReturn:
            raise RefusalError(404, "nothing is stored here: a response is sent once, by POST /v1/responses; ask again")

        return self.guarded(request, none)

    async def asked(
        self, request: Request, read: Callable[[bytes, ChatLimits], A], make_wire: Callable[[A], Wire], name: str
    ) -> Response | Streamed:
        """Answer a question that came by one of the APIs."""
        work = Chat(self.answering, self.metrics, request.headers, name)
        try:
            self.check(request)
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":  # another site's page can send a form without asking, but not this
                raise RefusalError(415, f"send Content-Type: application/json, not {kind[:80]!r}")
            body = await body_of(request, self.settings, "shorten the conversation")
            asked = self.known_model(read(body, self.settings.chat))
            limits, wire = self.answering.limits_for(asked.options, asked.max_turn_tokens), make_wire(asked)
            if asked.is_streamed:
                return work.streamed(asked, wire, limits)
            return await work.whole(asked, wire, limits, request.receive)
        except RefusalError as error:
            work.end(error.status, refusal=str(error))
            return self.refused(error)

    def known_model(self, asked: A) -> A:
        plain, sequential = self.model_names
        if asked.model not in self.model_names:
            raise RefusalError(404, f"there is no model {asked.model[:80]!r} here; ask for {plain!r}")
        if asked.model == sequential:
            dialect = asked.options.dialect or self.answering.sequential
            return replace(asked, options=asked.options.model_copy(update={"dialect": dialect}))
        return asked

    async def models(self, request: Request) -> Response:
        data = [model_object(name, self.created) for name in self.model_names]
        return self.guarded(request, lambda: {"object": "list", "data": data})

    async def model(self, request: Request) -> Response:
        def one() -> dict[str, Any]:
            if (name := request.path_params["model"]) not in self.model_names:
                raise RefusalError(404, f"there is no model {name[:80]!r} here")
            return model_object(name, self.created)

        return self.guarded(request, one)

    def state(self) -> dict[str, Any]:
        return {
            "pending_questions": self.answering.pending.num_pending,
            "policy": self.answering.policy.describe(),
            "search": self.answering.search.describe(),
        }

    def refused(self, error: RefusalError) -> Response:
        return json_response(error_body(error.status, str(error), error.param), error.status, refusal_headers(error))

    async def page_facts(self, request: Request) -> Response:
        """What the page needs to know: example questions, who answers, the limits."""
        settings = self.settings
        return self.guarded(
            request,
            lambda: {
                "model": settings.model_name,
                "policy": self.answering.policy.title,
                "search": self.answering.search.retriever.name,
                "reader": None if self.answering.agent.reader is None else self.answering.agent.reader.title,
                "can_write": self.answering.can_write(),
                "written": settings.written,
                "latency_s": self.answering.search.describe().get("latency_s", 0),
                "k": min(self.answering.search.k, settings.max_k),
                "max_k": settings.max_k,
                "max_turns": settings.max_turns,
                "default_max_turns": settings.limits.max_turns,
                "max_question_chars": settings.chat.max_question_chars,
                "examples": list(settings.examples) or _demo_examples(self.answering),
            },
        )

    async def openapi(self, request: Request) -> Response:
        answering = self.answering
        writers = [reads for reads in (True, False) if answering.can_write(AskOptions(read=reads))]
        return self.guarded(
            request, lambda: agent_openapi(self.settings, self.model_names, answering.dialects, writers)
        )

    def page_file(self, name: str, kind: str) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        content = (self._page / name).read_bytes()

        async def send(request: Request) -> Response:
            from starlette.responses import Response

            if not is_own_name(request.headers.get("host", ""), self.settings):
                return self.refused(RefusalError(421, NOT_MY_NAME))
            return Response(content, headers={**PAGE_HEADERS, "Cache-Control": "no-cache", "Content-Type": kind})

        return send


# ---- answers ----------------------------------------------------------------------------------------------------------


async def _no_such_route(request: Request, error: Any) -> Response:
    return json_response(error_body(error.status_code, error.detail), error.status_code, error.headers)


def _demo_examples(answering: Answering) -> list[str]:
    """A few demo questions of each kind, where the demo's corpus is searched or its policy answers."""
    from parallelsearch.data.questions import demo_questions

    if answering.policy.name != "demo" and answering.search.describe().get("corpus_sha256") != _demo_sha256():
        return []
    chosen: dict[str | None, list[str]] = {}
    for question in demo_questions():
        of_kind = chosen.setdefault(question.kind, [])
        if len(of_kind) < _EXAMPLES_OF_EACH_KIND:
            of_kind.append(question.question)
    return [question for questions in chosen.values() for question in questions]


@cache
def _demo_sha256() -> str:
    from parallelsearch.data import demo
    from parallelsearch.retrieval.store import corpus_sha256

    return corpus_sha256(demo.passages())


__all__ = ["AgentSettings", "AskOptions", "create_agent_app", "run_agent_server"]

"""Our search as MCP tools: `search` for one query, `search_batch` for many, over stdio or streamable HTTP; with an agent
also `answer`, which takes a question and comes back with its answer and what that rests on. Where there is a policy,
`retrieve` takes a whole question and gives the passages for all its parts in one list.

A batch answers in the order of its queries, one entry each, with an error in the place of a query that failed; so a model
that splits a question gets every part in one call. The concurrent work is `Search`'s.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field

from parallelsearch import __version__
from parallelsearch.errors import UsageError, require
from parallelsearch.retrieving import DEFAULT_K, Retrieval, SplitRetriever
from parallelsearch.search import Found, Search
from parallelsearch.server.endpoints import Receive, Send, body_in_time, chunks_of, json_response, refusal_headers
from parallelsearch.server.limits import RefusalError, ServerSettings, check_caller
from parallelsearch.server.running import serve_app

if TYPE_CHECKING:
    from mcp.server import MCPServer

    from parallelsearch.server.answering import Answering

_INSTRUCTIONS = (
    "Find passages of text. Split a question into independent queries and send them together with search_batch: "
    "they run at the same time and come back in order."
)


class FoundPassage(BaseModel):
    """One hit."""

    id: str
    title: str
    text: str
    url: str | None
    date: str | None
    score: float
    rank: int
    metadata: Annotated[dict[str, Any] | None, Field(exclude_if=lambda value: value is None)] = None


class SearchAnswer(BaseModel):
    """What one query came to: its hits, or why there are none."""

    query: str
    hits: list[FoundPassage]
    error: str | None


class BatchAnswer(BaseModel):
    """One entry for each query, in order."""

    results: list[SearchAnswer]


class MergedPassage(FoundPassage):
    """A passage for a whole question, and the sub-queries that found it."""

    queries: list[str]


class SubQuery(BaseModel):
    """A part of the question that was looked up, or why it could not be."""

    text: str
    num_hits: int
    error: str | None


class RetrieveAnswer(BaseModel):
    """The passages for all parts of a question, best first; notes and failures say what did not go as it should."""

    queries: list[SubQuery]
    passages: list[MergedPassage]
    notes: list[str]
    failures: list[str]


class CitedPassage(BaseModel):
    """A passage the answer rests on, and how one knows (`basis`)."""

    number: int
    id: str
    title: str
    text: str
    url: str | None
    basis: str
    place: Annotated[str | None, Field(exclude_if=lambda value: value is None)] = None


class Doubt(BaseModel):
    """A statement of a text with words that the passage it names there, `number`, has not got."""

    number: int
    text: str
    missing: list[str]


class AgentAnswer(BaseModel):
    """The answer to a question, or a sentence that says why there is none."""

    answer: str
    abstained: str | None
    citations: list[CitedPassage]
    doubts: Annotated[list[Doubt], Field(exclude_if=lambda value: not value)] = []
    num_llm_calls: int
    num_searches: int
    num_subqueries: int
    elapsed_s: float


def create_mcp_server(
    search: Search, *, settings: ServerSettings | None = None, answering: Answering | None = None
) -> MCPServer[None]:
    """An MCP server with the tools `search` and `search_batch`, `retrieve` where `search` splits or there is an agent, and
    `answer` where there is an agent."""
    require("mcp", "mcp")
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.types import ToolAnnotations

    limits = settings or ServerSettings()
    splitter = search.retriever if isinstance(search.retriever, SplitRetriever) else None
    if splitter is not None:
        search = splitter.search  # who sends single queries wants them as they are
    server: MCPServer[None] = MCPServer(
        "parallelsearch", instructions=_INSTRUCTIONS, version=__version__, log_level="WARNING"
    )
    Query = Annotated[str, Field(description="what to look for", max_length=limits.max_query_chars)]
    Queries = Annotated[
        list[Query], Field(description="independent queries, run at the same time", max_length=limits.max_queries)
    ]
    K = Annotated[int, Field(description="how many passages for each query", ge=1, le=limits.max_k)]

    async def find_one(query: str, k: int = search.k) -> SearchAnswer:
        found = (await search.search_many([query], k))[0]
        if found.error is not None:
            raise ToolError(str(found.error))
        return _answer(query, found)

    async def find_many(queries: list[str], k: int = search.k) -> BatchAnswer:
        found = await search.search_many(queries, k)
        return BatchAnswer(results=[_answer(query, one) for query, one in zip(queries, found, strict=True)])

    # Annotations in this module are strings, and the limits are known only here.
    find_one.__annotations__ = {"query": Query, "k": K, "return": SearchAnswer}
    find_many.__annotations__ = {"queries": Queries, "k": K, "return": BatchAnswer}
    harmless = ToolAnnotations(read_only_hint=True, idempotent_hint=True)
    server.add_tool(
        find_one,
        name="search",
        description="Find passages for one query.",
        annotations=harmless,
        structured_output=True,
    )
    server.add_tool(
        find_many,
        name="search_batch",
        description="Find passages for several independent queries at once. The results are in the order of the "
        "queries; a query that failed has an error in its place.",
        annotations=harmless,
        structured_output=True,
    )
    if answering is not None:
        _add_retrieve_tool(server, _placed(answering), limits)
        _add_answer_tool(server, answering)
    elif splitter is not None:
        _add_retrieve_tool(server, splitter.retrieve, limits)
    return server


def _placed(answering: Answering) -> Callable[[str, int], Awaitable[Retrieval]]:
    """The agent's own retrieve, within what the server takes at once."""

    async def retrieve(question: str, k: int) -> Retrieval:
        with answering.place():
            return await answering.agent.retrieve_async(question, k)

    return retrieve


def _add_retrieve_tool(
    server: MCPServer[None], find: Callable[[str, int], Awaitable[Retrieval]], limits: ServerSettings
) -> None:
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.types import ToolAnnotations

    Question = Annotated[str, Field(description="the whole question", min_length=1, max_length=limits.max_query_chars)]
    K = Annotated[int, Field(description="how many passages in all", ge=1, le=limits.max_k)]

    async def retrieve(question: str, k: int = min(DEFAULT_K, limits.max_k)) -> RetrieveAnswer:
        try:
            found = await find(question, k)
        except (RefusalError, UsageError) as error:
            raise ToolError(str(error)) from error
        return RetrieveAnswer(
            queries=[SubQuery(text=one.text, num_hits=len(one.hits), error=one.error) for one in found.queries],
            passages=[
                MergedPassage(
                    queries=list(one.queries), **{name: getattr(one, name) for name in FoundPassage.model_fields}
                )
                for one in found.passages
            ],
            notes=found.notes,
            failures=found.failures,
        )

    retrieve.__annotations__ = {"question": Question, "k": K, "return": RetrieveAnswer}
    server.add_tool(
        retrieve,
        name="retrieve",
        description="Find passages for a whole question: it is split into independent parts, all are looked up at the same "
        "time, and the passages of all parts come back in one list, best first.",
        annotations=ToolAnnotations(read_only_hint=True),
        structured_output=True,
    )


def _add_answer_tool(server: MCPServer[None], answering: Answering) -> None:
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.types import ToolAnnotations

    from parallelsearch.server.asking import AskOptions

    Question = Annotated[
        str, Field(description="what to find out", min_length=1, max_length=answering.settings.chat.max_question_chars)
    ]

    async def answer(
        question: str, sequential: bool = False, written: bool = answering.settings.written
    ) -> AgentAnswer:
        try:
            with answering.place():
                # A sentence in place of a missing answer: the caller is a program that would take "" for one.
                dialect = answering.sequential if sequential else None
                reply = await answering.answer(question, AskOptions(dialect=dialect, abstain=True, written=written))
        except RefusalError as error:
            raise ToolError(str(error)) from error
        texts = {source.number: source.text for source in reply.sources}
        trajectory = reply.trajectory
        return AgentAnswer(
            answer=reply.content,
            abstained=reply.abstained,
            citations=[
                CitedPassage(text=texts[citation.number], **dataclasses.asdict(citation))
                for citation in reply.citations
            ],
            doubts=[Doubt(**dataclasses.asdict(doubt)) for doubt in reply.doubts],
            num_llm_calls=trajectory.num_llm_calls,
            num_searches=trajectory.num_searches,
            num_subqueries=trajectory.num_subqueries,
            elapsed_s=round(trajectory.elapsed_s or 0.0, 4),
        )

    async def short(question: str, sequential: bool = False) -> AgentAnswer:
        """Where nobody can write a text, none is offered."""
        return await answer(question, sequential)

    Sequential = Annotated[bool, Field(description="search for one thing at a time")]
    Written = Annotated[
        bool, Field(description="a text in Markdown with the numbers of its sources, in place of a short answer")
    ]
    short.__annotations__ = {"question": Question, "sequential": Sequential, "return": AgentAnswer}
    answer.__annotations__ = {**short.__annotations__, "written": Written}
    server.add_tool(
        answer if answering.can_write() else short,
        name="answer",
        description="Answer a question: it is split into independent parts, all are searched at once, and the answer "
        "comes with the passages it rests on.",
        annotations=ToolAnnotations(read_only_hint=True),
        structured_output=True,
    )


def _answer(query: str, found: Found) -> SearchAnswer:
    hits = [
        # JSON has no NaN and no infinity.
        FoundPassage(**{**dataclasses.asdict(hit), "score": hit.score if math.isfinite(hit.score) else 0.0})
        for hit in found.hits
    ]
    return SearchAnswer(query=query, hits=hits, error=None if found.error is None else str(found.error))


async def run_mcp_stdio(
    search: Search, *, settings: ServerSettings | None = None, answering: Answering | None = None
) -> None:
    """Serve one client over standard input and output, until it closes them."""
    try:
        await create_mcp_server(search, settings=settings, answering=answering).run_stdio_async()
    finally:
        await (search if answering is None else answering).aclose()


def create_mcp_app(search: Search, *, settings: ServerSettings | None = None) -> Any:
    """The tools as an ASGI application at `/mcp`, with the bearer token of the settings, if there is one."""
    settings = settings or ServerSettings()
    app = http_app(create_mcp_server(search, settings=settings), settings)
    inner = app.router.lifespan_context

    @contextlib.asynccontextmanager
    async def lifespan(scope: Any) -> AsyncIterator[Any]:
        async with inner(scope) as state:
            yield state
        await search.aclose()

    app.router.lifespan_context = lifespan
    return Gate(app, settings)


def http_app(server: MCPServer[None], settings: ServerSettings) -> Any:
    """The server as an ASGI application without state, for behind a `Gate`. On loopback the SDK refuses other names and
    origins as well; names that were allowed are the gate's business alone."""
    from mcp.server.transport_security import TransportSecuritySettings

    names_are_checked = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    return server.streamable_http_app(
        json_response=True,
        stateless_http=True,
        max_request_body_size=settings.max_body_bytes,
        host=settings.host,
        transport_security=names_are_checked if settings.allowed_hosts else None,
    )


def run_mcp_http(search: Search, settings: ServerSettings | None = None) -> None:
    """Serve the tools over streamable HTTP until SIGTERM or Ctrl-C."""
    settings = settings or ServerSettings()
    settings = dataclasses.replace(settings, shutdown_s=max(settings.shutdown_s, search.timeout_s + 1))
    serve_app(create_mcp_app(search, settings=settings), settings, path="/mcp")


class Gate:
    """Lets HTTP requests through that name this server and carry its token, their bodies read and within the limits, and
    everything that is not HTTP."""

    def __init__(self, app: Callable[..., Awaitable[None]], settings: ServerSettings) -> None:
        self._app, self._settings = app, settings

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            try:
                check_caller(headers.get("host", ""), headers.get("authorization"), self._settings)
                if scope["method"] == "POST":
                    body = await body_in_time(chunks_of(receive), headers.get("content-length"), self._settings)
                    receive = _read_already(body, receive)
            except RefusalError as error:
                response = json_response({"detail": str(error)}, error.status, refusal_headers(error))
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _read_already(body: bytes, receive: Receive) -> Receive:
    """A body that was read, for an application that has not seen it; whatever comes afterwards is passed on."""
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def again() -> Any:
        return next(messages, None) or await receive()

    return again

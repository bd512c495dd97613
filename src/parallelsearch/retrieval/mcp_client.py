"""Any MCP server's search tool as a backend, over the official SDK: a command to start, or a URL.

One task opens the connection, holds it and closes it, as the SDK wants; calls of the same event loop go through it, and
each event loop has a connection of its own. A connection that was lost is made again once within the call. The tool is the
one named, or the one that looks most like a search; a tool that takes a list of queries is preferred. How hits are found
in an answer is in `mcp_answers.py`, how large one may be in `mcp_transport.py` for HTTP and in `mcp_stdio.py` for a command.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import re
import shlex
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from parallelsearch.errors import (
    ParallelSearchError,
    SearchError,
    SearchTimeoutError,
    TransientSearchError,
    UsageError,
    nearest,
    require,
)
from parallelsearch.http import MAX_BODY_BYTES, Credentials, checked_url, cleaned, without_secrets
from parallelsearch.http.address import CA_HINT
from parallelsearch.retrieval.base import Result, Retriever, checked_seconds
from parallelsearch.retrieval.mcp_answers import read_answer, read_batch_answer
from parallelsearch.retrieval.mcp_stdio import bounded_lines
from parallelsearch.untrusted import whole

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import CallToolResult, Tool

_QUERY_NAMES = ("query", "q", "search_query", "searchQuery", "question", "text", "input", "keyword", "keywords")
_QUERIES_NAMES = ("queries", "questions", "search_queries")
_FLOODED = f"the MCP server sent a line of over {MAX_BODY_BYTES >> 20} MiB; it was dropped"
_MAX_ERROR_CHARS = 300
_K_NAMES = (
    *("k", "top_k", "topk", "topK", "num_results", "numResults", "max_results", "maxResults"),
    *("count", "limit", "num", "n", "size"),
)


@dataclass(frozen=True, slots=True)
class SearchTool:
    """How to call a tool: its name, the parameter that takes the query (or the queries), and the one for k."""

    name: str
    query_parameter: str
    k_parameter: str | None
    takes_many: bool
    max_k: int | None = None

    def arguments(self, query: str | list[str], k: int) -> dict[str, Any]:
        arguments: dict[str, Any] = {self.query_parameter: query}
        if self.k_parameter is not None:
            arguments[self.k_parameter] = k if self.max_k is None else min(k, self.max_k)
        return arguments


def choose_tool(tools: Sequence[Tool], wanted: str | None) -> SearchTool:
    """The tool to search with, or a `UsageError` that lists what there is."""
    names = [tool.name for tool in tools]
    if wanted is not None:
        if wanted not in names:
            raise UsageError(f"the MCP server has no tool '{wanted}', only {_listed(names)}.{nearest(wanted, names)}")
        usable = _as_search_tool(next(tool for tool in tools if tool.name == wanted))
        if usable is None:
            raise UsageError(f"the MCP tool '{wanted}' cannot be called with a query alone")
        return usable
    usable_tools = [usable for tool in tools if (usable := _as_search_tool(tool)) is not None]
    best = max(usable_tools, key=_likeness, default=None)
    if best is None or (_likeness(best) <= 0 and len(usable_tools) > 1):
        hint = ". Name the one to use: mcp?tool=NAME:COMMAND_OR_URL (in Python: tool=)" if usable_tools else ""
        raise UsageError(f"the MCP server has no tool that looks like a search, only {_listed(names)}{hint}")
    return best


def _likeness(tool: SearchTool) -> int:
    """How much a tool looks like a search; one that takes many queries wins over its single sister."""
    words = [word for word in re.split(r"[^a-z]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", tool.name).lower()) if word]
    score = 0
    if "search" in words or "retrieve" in words:
        score = 10 - min(len([word for word in words if word not in ("search", "retrieve", "batch", "web")]), 5)
    elif any(word.startswith(("search", "retriev", "lookup", "query", "find")) for word in words):
        score = 3
    return score * 2 + (1 if tool.takes_many and score else 0)


def _as_search_tool(tool: Tool) -> SearchTool | None:
    properties = tool.input_schema.get("properties")
    if not isinstance(properties, dict):
        return None
    strings = [name for name, schema in properties.items() if "string" in _types(schema)]
    lists = [name for name in _QUERIES_NAMES if "array" in _types(properties.get(name))]
    required = tool.input_schema.get("required") or []
    query = next((name for name in _QUERY_NAMES if name in strings), None)
    if query is None and len(strings) == 1:
        query = strings[0]
    k = next((name for name in _K_NAMES if _types(properties.get(name)) & {"integer", "number"}), None)
    maximum = properties[k].get("maximum") if k is not None else None
    max_k = int(maximum) if isinstance(maximum, int | float) else None
    for parameter, takes_many in [(lists[0] if lists else None, True), (query, False)]:
        if parameter is not None and set(required) <= {parameter, k}:
            return SearchTool(tool.name, parameter, k, takes_many, max_k)
    return None


def _types(schema: Any) -> set[str]:
    """The JSON types a parameter may have; `str | None` is written with anyOf."""
    if not isinstance(schema, dict):
        return set()
    kind = schema.get("type")
    found = {kind} if isinstance(kind, str) else set(kind or ())
    for option in schema.get("anyOf") or ():
        found |= _types(option)
    return found


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) if names else "nothing"


class McpRetriever(Retriever):
    """Searches with a tool of an MCP server. `target` is a command line or an `http(s)://` address."""

    name = "mcp"
    max_batch = 16
    max_concurrency = 4

    def __init__(
        self,
        target: str,
        tool: str | None = None,
        *,
        timeout_s: float = 20.0,
        connect_timeout_s: float = 30.0,
        token_env: str = "PARALLELSEARCH_TOKEN",
        headers_env: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """A command gets the environment of this process (keys are in it), or `env` instead. A URL gets the bearer token
        in `token_env`, if there is one, and the headers in `headers_env`."""
        require("mcp", "mcp")
        # What the SDK logs comes back as an error too; without this, a program that logs nothing prints its tracebacks.
        logging.getLogger("mcp").addHandler(logging.NullHandler())
        self.tool, self.timeout_s = tool, checked_seconds(timeout_s, "an MCP server")
        self.connect_timeout_s = checked_seconds(connect_timeout_s, "the connection to an MCP server")
        self._is_url = target.strip().startswith(("http://", "https://"))
        self.target = checked_url(target, "an MCP server") if self._is_url else target.strip()
        try:
            self._command = [] if self._is_url else shlex.split(self.target)
        except ValueError as error:
            raise UsageError(f"the MCP command '{self.target}' cannot be split into words: {error}") from None
        if not self._is_url and not self._command:
            raise UsageError(
                "an MCP search needs a command or an address: mcp:'npx some-server' or mcp:http://HOST/mcp"
            )
        self._env = dict(os.environ if env is None else env)
        if headers_env is not None and not self._is_url:
            raise UsageError(
                "headers_env is for an MCP server at an address; a command gets the whole environment, and sends what it does"
            )
        self._credentials = Credentials(token_env, headers_env)
        self._credentials.check()
        self._chosen: str | None = None
        self._lanes: dict[asyncio.AbstractEventLoop, _Lane] = {}
        self._lock = threading.Lock()

    def _lane(self) -> _Lane:
        """What belongs to the running event loop; loops that are over are forgotten."""
        loop = asyncio.get_running_loop()
        with self._lock:
            for other in [other for other in self._lanes if other.is_closed()]:
                del self._lanes[other]
            return self._lanes.setdefault(loop, _Lane())

    async def search_many(self, queries: Sequence[str], k: int) -> list[Result]:
        connection = await self.open()
        try:
            if connection.tool.takes_many:
                results = await self._search_batch(list(queries), k)
            else:
                results = list(await asyncio.gather(*(self._search_one(query, k) for query in queries)))
        except SearchError as error:
            raise cleaned(error, self.clean) from None
        return [cleaned(one, self.clean) if isinstance(one, SearchError) else one for one in results]

    @property
    def login_hint(self) -> str:
        """What to do about a server at an address that does not know who asks."""
        headers_env = self._credentials.headers_env
        other = "name headers of its own: mcp?headers_env=NAME:URL"
        other = other if headers_env is None else f"the headers in {headers_env} to what it wants"
        return f"set {self._credentials.key_env} to its token, or {other}"

    def clean(self, message: str) -> str:
        """The message without what a server at an address was sent."""
        return self._credentials.clean(message) if self._is_url else message

    async def _search_batch(self, queries: list[str], k: int) -> list[Result]:
        return read_batch_answer(await self._call(queries, k), queries, k)

    async def _search_one(self, query: str, k: int) -> Result:
        try:
            async with self._lane().slots:
                return read_answer(await self._call(query, k), k)
        except SearchError as error:
            return error

    async def _call(self, query: str | list[str], k: int) -> CallToolResult:
        from mcp import MCPError
        from mcp.types import INVALID_PARAMS, REQUEST_TIMEOUT

        is_flooded = False
        for _ in range(2):
            # Nobody knows whose answer a line without an end is: the second time each call has the server to itself.
            async with self._lane().alone if is_flooded else contextlib.nullcontext():
                connection = await self.open()
                tool = connection.tool
                try:
                    async with asyncio.timeout(self.timeout_s + 1.0):
                        return await connection.client.call_tool(
                            tool.name, tool.arguments(query, k), read_timeout_seconds=self.timeout_s
                        )
                except TimeoutError:
                    raise self._late(tool) from None
                except MCPError as error:
                    if error.code == REQUEST_TIMEOUT:
                        raise self._late(tool) from None
                    if error.code == INVALID_PARAMS:
                        raise SearchError(f"MCP tool '{tool.name}' refused the call: {_short(str(error))}") from None
                    problem = _short(str(error))
                except Exception as error:  # transports fail in ways of their own when the other side is gone
                    problem = _short(f"{type(error).__name__}: {error}")
                await self._drop(connection)
                is_flooded = connection.is_flooded
        if is_flooded:
            raise SearchError(_FLOODED)
        raise TransientSearchError(f"the connection to the MCP server was lost ({problem})")

    def _late(self, tool: SearchTool) -> SearchTimeoutError:
        return SearchTimeoutError(f"MCP tool '{tool.name}' gave no answer in {self.timeout_s:g} s")

    async def open(self) -> _Connection:
        """Connect and choose the tool, unless that is done. Raises `UsageError` if there is no such tool."""
        lane = self._lane()
        async with lane.opening:
            if lane.connection is not None and not lane.connection.is_usable():
                await self._drop(lane.connection)
            if lane.connection is None:
                connection = _Connection(self)
                await connection.open(self.connect_timeout_s)
                lane.connection, self._chosen = connection, connection.tool.name
            return lane.connection

    async def check(self) -> None:
        """Connect, and so find the tool, once for all who ask at the same time."""
        lane = self._lane()
        if lane.check is None:
            lane.check = asyncio.create_task(self._try_open(), name="mcp-check")
        check = lane.check
        try:
            await asyncio.shield(check)
        except UsageError:
            if lane.check is check:
                lane.check = None  # who asks later may have mended it
            raise

    async def _try_open(self) -> None:
        with contextlib.suppress(SearchError):
            await self.open()

    async def _drop(self, connection: _Connection) -> None:
        lane = self._lane()
        if lane.connection is connection:
            lane.connection = None
        await connection.aclose()

    @contextlib.asynccontextmanager
    async def client(
        self, last_words: deque[str], on_flood: Callable[[], None], on_refusal: Callable[[int], None]
    ) -> AsyncIterator[Client]:
        """A connected client of the SDK; what a command writes to stderr goes to `last_words`, and `on_flood` is told when it
        writes a line that is too long. `on_refusal` is told the status where a server at an address asks for a login."""
        from mcp import Client, StdioServerParameters
        from mcp.client.stdio import stdio_client
        from mcp.client.streamable_http import streamable_http_client

        async with contextlib.AsyncExitStack() as stack:
            if self._is_url:
                httpx2 = require("httpx2", "mcp")
                from parallelsearch.retrieval.mcp_transport import BoundedTransport

                timeout = httpx2.Timeout(self.connect_timeout_s, read=max(self.timeout_s, self.connect_timeout_s) + 5)
                transport = BoundedTransport(self.target, self._credentials, on_refusal)
                http = httpx2.AsyncClient(timeout=timeout, transport=transport, trust_env=False)
                await stack.enter_async_context(http)
                streams = streamable_http_client(self.target, http_client=http)
            else:
                errors = stack.enter_context(_last_lines(last_words))
                server = StdioServerParameters(
                    command=self._command[0],
                    args=self._command[1:],
                    env=self._env,
                    encoding=stack.enter_context(bounded_lines(on_flood)),
                )
                streams = stdio_client(server, errlog=errors)
            yield await stack.enter_async_context(Client(streams, read_timeout_seconds=self.timeout_s))

    def describe(self) -> dict[str, Any]:
        chosen = self.tool or self._chosen
        if self._is_url:
            url = without_secrets(self.target)
            return {"kind": self.name, "url": url, "tool": chosen, **self._credentials.describe()}
        # Arguments may hold keys: the program's name, and a hash to tell one command from another.
        digest = hashlib.sha256(self.target.encode()).hexdigest()[:16]
        return {"kind": self.name, "command": PurePath(self._command[0]).name, "command_hash": digest, "tool": chosen}

    async def aclose(self) -> None:
        """Close the connection of this event loop, and tell those of others that still run to close theirs."""
        lane = self._lane()
        if lane.check is not None:
            lane.check.cancel()
        if lane.connection is not None:
            await self._drop(lane.connection)
        with self._lock:
            others = [(loop, lane) for loop, lane in self._lanes.items() if loop is not asyncio.get_running_loop()]
        for loop, other in others:
            if (connection := other.connection) is not None:
                with contextlib.suppress(RuntimeError):  # the loop ended meanwhile
                    loop.call_soon_threadsafe(connection.end)


class _Lane:
    """What one event loop has of a server: its connection, and how many calls are under way."""

    def __init__(self) -> None:
        self.connection: _Connection | None = None
        self.opening = asyncio.Lock()
        self.check: asyncio.Task[None] | None = None
        self.slots = asyncio.Semaphore(8)
        self.alone = asyncio.Lock()


class _Connection:
    """A task that holds one open client until it is told to close it."""

    client: Client
    tool: SearchTool

    def __init__(self, owner: McpRetriever) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._is_closing = asyncio.Event()
        self._last_words: deque[str] = deque(maxlen=5)
        self._task: asyncio.Task[None] | None = None
        self.is_flooded = False
        """The server sent a line that is too long, and nothing after it is read."""
        self._refusal: int | None = None

    async def open(self, timeout_s: float) -> None:
        self._task = asyncio.create_task(self._hold(), name="mcp-connection")
        what = f"the MCP server '{without_secrets(self._owner.target) if self._owner._is_url else self._owner._command[0]}'"
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self._opened)
        except TimeoutError:
            await self.aclose()
            raise TransientSearchError(f"{what} did not answer within {timeout_s:g} s{self._said()}") from None
        except ParallelSearchError:
            await self.aclose()
            raise
        except Exception as error:
            await self.aclose()
            cause = _root(error)
            if isinstance(cause, FileNotFoundError | PermissionError):
                raise UsageError(f"{what} cannot be started: {cause.strerror}") from None
            if self._refusal is not None:
                raise UsageError(f"{what} answered {self._refusal}: {self._owner.login_hint}") from None
            told = self._owner.clean(f"{type(cause).__name__}: {cause}")
            told += f". {CA_HINT}" if "CERTIFICATE_VERIFY_FAILED" in told else ""
            raise TransientSearchError(f"{what} could not be connected to ({told}){self._said()}") from None
        except BaseException:
            await self.aclose()
            raise

    async def _hold(self) -> None:
        try:
            async with self._owner.client(self._last_words, self._flooded, self._refused) as client:
                self.client = client
                self.tool = choose_tool(await _all_tools(client), self._owner.tool)
                if not self._opened.done():
                    self._opened.set_result(None)
                await self._is_closing.wait()
        except asyncio.CancelledError:
            if not self._opened.done():
                self._opened.set_exception(ConnectionError("the connection was closed"))
            raise
        except BaseException as error:
            # Once open, a broken transport shows in the calls; its noise at the end is no news.
            if not self._opened.done():
                self._opened.set_exception(_root(error))

    def _refused(self, status: int) -> None:
        self._refusal = status

    def _flooded(self) -> None:
        self.is_flooded = True
        self.end()
        if not self._opened.done() and self._task is not None:
            self._opened.set_exception(SearchError(_FLOODED))
            self._task.cancel()

    def is_usable(self) -> bool:
        is_held = self._task is not None and not self._task.done() and not self.is_flooded
        return is_held and self._loop is asyncio.get_running_loop()

    def end(self) -> None:
        """Let the task that holds the connection close it; called in its own event loop."""
        self._is_closing.set()

    async def aclose(self) -> None:
        if self._task is None or self._loop is not asyncio.get_running_loop():
            return
        self._is_closing.set()
        if not self._opened.done():
            self._task.cancel()
        _, late = await asyncio.wait([self._task], timeout=10.0)
        if late:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=5.0)
        if self._opened.done() and not self._opened.cancelled():
            self._opened.exception()

    def _said(self) -> str:
        return f". It said: {' | '.join(self._last_words)}" if self._last_words else ""


async def _all_tools(client: Client) -> list[Tool]:
    tools: list[Tool] = []
    cursor: str | None = None
    for _ in range(20):  # pages; a server that never ends them is cut off
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if not cursor:
            break
    return tools


def _short(message: str) -> str:
    """What the SDK says of an answer it cannot read goes on for a page."""
    return " ".join(whole(message[:1000]).split())[:_MAX_ERROR_CHARS]


def _root(error: BaseException) -> BaseException:
    """The one error inside the groups that task groups make of it."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return error


@contextlib.contextmanager
def _last_lines(lines: deque[str]) -> Any:
    """A file for a child's stderr, of which only the last lines are kept."""
    read_fd, write_fd = os.pipe()

    def drain() -> None:
        with os.fdopen(read_fd, "r", errors="replace") as pipe:
            while piece := pipe.readline(_MAX_ERROR_CHARS):  # of a longer line, what fits beside the others
                if piece.strip():
                    lines.append(piece.strip())

    threading.Thread(target=drain, name="mcp-stderr", daemon=True).start()
    with os.fdopen(write_fd, "w") as errors:
        yield errors

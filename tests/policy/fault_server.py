"""An OpenAI-like HTTP server on loopback that goes wrong on purpose, down to the byte.

It speaks HTTP/1.1 over plain asyncio streams, so that a test decides where an answer is cut, split or left hanging. Each
request takes the next behaviour of a script; the last one stays. The JSON it sends is built by the `openai` package's own
types, so its shapes are the real ones. What it received is in `requests`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from parallelsearch import grammar
from parallelsearch.errors import PolicyError
from parallelsearch.policy.base import Generation, Sampling
from parallelsearch.policy.openai import OpenAIPolicy
from parallelsearch.retrieval.base import Passage
from parallelsearch.trajectory import Segment

SEARCH = "<think> Two people. </think>\n<search> Monet born ## Pissarro born </search>"
ANSWER = "<think> Done. </think>\n<answer> Pissarro </answer>"
QUESTION = "Who is older, Monet or Pissarro?"
PASSAGES = [
    Passage("1", "Claude Monet", "Monet was born in 1840."),
    Passage("2", "Camille Pissarro", "Pissarro was born in 1830."),
]


@dataclass
class Request:
    """What the client sent."""

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    connection: int
    time_s: float
    is_cut_off: bool = False
    """The client closed the connection before the answer was complete."""


@dataclass
class Exchange:
    """One request and the way to answer it."""

    request: Request
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    is_chunked: bool = field(default=False, init=False)

    async def head(
        self, status: int, content_type: str, headers: dict[str, str] | None = None, length: int | None = None
    ) -> None:
        self.is_chunked = length is None
        lines = [f"HTTP/1.1 {status} X", f"Content-Type: {content_type}"]
        lines += [f"{key}: {value}" for key, value in (headers or {}).items()]
        lines.append("Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}")
        await self.raw("\r\n".join([*lines, "", ""]).encode())

    async def send(self, data: bytes) -> None:
        await self.raw(f"{len(data):x}\r\n".encode() + data + b"\r\n" if self.is_chunked else data)

    async def end(self) -> None:
        if self.is_chunked:
            await self.raw(b"0\r\n\r\n")

    async def raw(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def body(
        self, data: bytes, status: int = 200, headers: dict[str, str] | None = None, kind: str = "application/json"
    ) -> None:
        await self.head(status, kind, headers, len(data))
        await self.raw(data)


Behaviour = Callable[[Exchange], Awaitable[None]]


class FaultServer:
    """`async with FaultServer(behaviour, ...) as server:` then `server.url`."""

    def __init__(self, *script: Behaviour) -> None:
        self.script = list(script)
        self.requests: list[Request] = []
        self.num_connections = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [request.body for request in self.requests]

    async def __aenter__(self) -> FaultServer:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.num_connections += 1
        try:
            await self._serve(reader, writer, self.num_connections)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # cancelled: the server closes, and asyncio's own callback (3.11) trips over a cancelled task
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int) -> None:
        early = b""  # the first byte of the next request, where it came before the answer's task was seen to be done
        while head := early + await reader.readuntil(b"\r\n\r\n"):
            first, *lines = head.decode("latin-1").strip().split("\r\n")
            method, path, _ = first.split(" ")
            headers = {key.lower(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
            data = await reader.readexactly(int(headers.get("content-length", "0")))
            body = json.loads(data) if data else {}
            request = Request(method, path, headers, body, connection, asyncio.get_running_loop().time())
            self.requests.append(request)
            behaviour = self.script.pop(0) if len(self.script) > 1 else self.script[0]
            # The client's end of the connection is watched while the answer is under way: it sends nothing then.
            answer = asyncio.ensure_future(behaviour(Exchange(request, reader, writer)))
            gone = asyncio.ensure_future(reader.read(1))
            try:
                await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
                if not answer.done():
                    request.is_cut_off = True
                    return
                answer.result()
                gone.cancel()
                await asyncio.gather(gone, return_exceptions=True)
                early = b"" if gone.cancelled() else gone.result()
            finally:
                answer.cancel()
                gone.cancel()


# ---- behaviours ------------------------------------------------------------------------------------------------------


def status(code: int, body: object = None, **headers: str) -> Behaviour:
    async def behave(exchange: Exchange) -> None:
        data = (
            body
            if isinstance(body, str)
            else json.dumps(body if body is not None else {"error": {"message": "no luck"}})
        )
        await exchange.body(data.encode(), code, {key.replace("_", "-"): value for key, value in headers.items()})

    return behave


def raw(data: bytes, kind: str = "application/json") -> Behaviour:
    """Status 200 and these bytes."""

    async def behave(exchange: Exchange) -> None:
        await exchange.body(data, kind=kind)

    return behave


async def hang(exchange: Exchange) -> None:
    """Never answers."""
    await asyncio.Event().wait()


async def hang_up(exchange: Exchange) -> None:
    """Closes the connection instead of answering."""
    raise ConnectionError


async def half_body(exchange: Exchange) -> None:
    """Promises more than it sends."""
    await exchange.head(200, "application/json", length=5000)
    await exchange.raw(b'{"id": "x", "object": "chat.completion", "choi')
    raise ConnectionError


def events(
    *data: str, after: Literal["end", "hang", "hang_up"] = "end", newline: str = "\n", size: int = 0
) -> Behaviour:
    """These events; `size` splits them into chunks of so many bytes. `after` is what happens then."""

    async def behave(exchange: Exchange) -> None:
        await exchange.head(200, "text/event-stream; charset=utf-8")
        for item in data:
            await send_split(exchange, (item + newline * 2).encode(), size)
        if after == "hang":
            await asyncio.Event().wait()
        elif after == "hang_up":
            raise ConnectionError
        await exchange.end()

    return behave


async def send_split(exchange: Exchange, data: bytes, size: int) -> None:
    for start in range(0, len(data), size or len(data)):
        await exchange.send(data[start : start + (size or len(data))])
        if size:
            await asyncio.sleep(0)


def chunk(text: str | None = None, finish: str | None = None, delta: dict[str, Any] | None = None, **extra: Any) -> str:
    """One event of a chat stream. `extra` goes into the choice; `usage` and `prompt_token_ids` belong beside it."""
    outer = {key: extra.pop(key) for key in ("usage", "prompt_token_ids") if key in extra}
    record = {
        "id": "c-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "tiny",
        "choices": [{"index": 0, "delta": {"content": text, **(delta or {})}, "finish_reason": finish, **extra}],
        **outer,
    }
    return "data: " + ChatCompletionChunk.model_validate(record).model_dump_json(exclude_none=True)


def usage_chunk(completion_tokens: int) -> str:
    usage = {"prompt_tokens": 10, "completion_tokens": completion_tokens, "total_tokens": 10 + completion_tokens}
    record = {
        "id": "c-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "tiny",
        "choices": [],
        "usage": usage,
    }
    return "data: " + ChatCompletionChunk.model_validate(record).model_dump_json(exclude_none=True)


DONE = "data: [DONE]"


def engine(
    text: str,
    at_stop: Literal["strip", "keep", "ignore"] = "strip",
    finish: str = "stop",
    piece: int = 4,
    choice: dict[str, Any] | None = None,
    pause_s: float = 0.0,
) -> Behaviour:
    """A server whose model always says `text`, of the kind the path asks for, streamed if asked for.

    `at_stop`: what it does with the stop strings of the request. `choice` is merged into the (last) choice.
    """

    async def behave(exchange: Exchange) -> None:
        body = exchange.request.body
        is_chat = exchange.request.path.endswith("/chat/completions")
        said = said_until(text, body.get("stop") or [], at_stop)
        num_tokens = -(-len(said) // piece)
        usage = {"prompt_tokens": 10, "completion_tokens": num_tokens, "total_tokens": 10 + num_tokens}
        if not body.get("stream"):
            await exchange.body(whole(said, is_chat, finish, usage, choice or {}).encode())
            return
        await exchange.head(200, "text/event-stream")
        for start in range(0, len(said), piece):
            await exchange.send((streamed(said[start : start + piece], is_chat, None, {}) + "\n\n").encode())
            await asyncio.sleep(pause_s)
        await exchange.send((streamed("", is_chat, finish, choice or {}) + "\n\n").encode())
        if (body.get("stream_options") or {}).get("include_usage"):
            await exchange.send((usage_chunk(num_tokens) + "\n\n").encode())
        await exchange.send(b"data: [DONE]\n\n")
        await exchange.end()

    return behave


def said_until(text: str, stop: Sequence[str], at_stop: str) -> str:
    starts = [(text.find(string), string) for string in stop if string in text]
    if at_stop == "ignore" or not starts:
        return text
    start, string = min(starts)
    return text[:start] if at_stop == "strip" else text[: start + len(string)]


def whole(text: str, is_chat: bool, finish: str, usage: dict[str, int], choice: dict[str, Any]) -> str:
    if is_chat:
        message = {"role": "assistant", "content": text, **choice.pop("message", {})}
        choices = [{"index": 0, "message": message, "finish_reason": finish, **choice}]
        record = {
            "id": "c",
            "object": "chat.completion",
            "created": 1,
            "model": "tiny",
            "choices": choices,
            "usage": usage,
        }
        return ChatCompletion.model_validate(record).model_dump_json(exclude_none=True)
    choices = [{"index": 0, "text": text, "finish_reason": finish, **choice}]
    record = {"id": "c", "object": "text_completion", "created": 1, "model": "tiny", "choices": choices, "usage": usage}
    return Completion.model_validate(record).model_dump_json(exclude_none=True)


def streamed(text: str, is_chat: bool, finish: str | None, choice: dict[str, Any]) -> str:
    if is_chat:
        return chunk(text, finish, **choice)
    record = {
        "id": "c",
        "object": "text_completion",
        "created": 1,
        "model": "tiny",
        "choices": [{"index": 0, "text": text, "finish_reason": finish, **choice}],
    }
    # The package's type wants a finish reason in every chunk; servers send null until the last one.
    data = Completion.model_construct(**record).model_dump(exclude_none=False, warnings=False)
    return "data: " + json.dumps({key: value for key, value in data.items() if value is not None})


def models(*names: str, **extra: Any) -> Behaviour:
    data = [{"id": name, "object": "model", "created": 1, "owned_by": "me", **extra} for name in names]
    return status(200, {"object": "list", "data": data})


# ---- the client under test -------------------------------------------------------------------------------------------


def policy_for(server: FaultServer, **options: Any) -> OpenAIPolicy:
    # Waits between attempts are short; a server's Retry-After of up to this is still obeyed.
    return OpenAIPolicy(server.url, "tiny", **{"max_wait_s": 0.05, "timeout_s": 20.0, **options})


async def ask(
    policy: OpenAIPolicy,
    segments: list[Segment] | None = None,
    pieces: list[str] | None = None,
    sampling: Sampling | None = None,
    max_tokens: int = 100,
) -> Generation:
    try:
        return await policy.generate(
            segments or [policy.prompt("Who is older?", "Who is older?")],
            stop=grammar.STOP_STRINGS,
            max_tokens=max_tokens,
            sampling=sampling or Sampling(),
            session="s",
            on_text=None if pieces is None else pieces.append,
        )
    finally:
        await policy.aclose()


async def failure(policy: OpenAIPolicy, pieces: list[str] | None = None) -> str:
    with pytest.raises(PolicyError) as caught:
        await ask(policy, pieces=pieces)
    return str(caught.value)

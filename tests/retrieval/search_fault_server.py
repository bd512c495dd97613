"""A search server on loopback that goes wrong on purpose, over plain sockets, so that a test decides every byte.

Each request takes the next reply of `script`; the last one stays. A reply may also be a function of the request. What
was received is in `requests`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Request:
    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Reply:
    """One answer, and how it goes wrong: cut after some bytes, dripping, late, never coming, connection closed."""

    body: bytes | str | dict[str, Any] | list[Any] = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    cut_after: int | None = None
    drip_s: float = 0.0
    delay_s: float = 0.0
    hangs: bool = False
    closes: bool = False

    def content(self) -> bytes:
        if isinstance(self.body, bytes):
            return self.body
        return (self.body if isinstance(self.body, str) else json.dumps(self.body)).encode()


Script = Reply | Callable[[Request], Reply]


def good(request: Request) -> Reply:
    """What a `/retrieve` server with scores says."""
    asked = request.json
    return Reply(
        {
            "result": [
                [
                    {"document": {"id": f"{q}-{n}", "contents": f'"Title of {q}"\nbody {n}'}, "score": 1.0 / n}
                    for n in range(1, asked["topk"] + 1)
                ]
                for q in asked["queries"]
            ]
        }
    )


class FaultServer:
    def __init__(self, *script: Script, port: int = 0, host: str = "127.0.0.1") -> None:
        self.script: list[Script] = list(script) or [good]
        self.requests: list[Request] = []
        self.num_connections = 0
        self.num_now = self.most_at_once = 0
        self.reached: set[str] = set()
        """Under which addresses."""
        self._port, self._host = port, host
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> FaultServer:
        self._is_over = asyncio.Event()
        self._server = await asyncio.start_server(self._serve, self._host, self._port)
        self.port = self._server.sockets[0].getsockname()[1]
        self.base_url = f"http://127.0.0.1:{self.port}"
        self.url = f"{self.base_url}/retrieve"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self._is_over.set()
        for writer in self._writers:
            writer.transport.abort()
        await self._server.wait_closed()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        self.reached.add(writer.get_extra_info("sockname")[0])
        self._writers.add(writer)
        try:
            while await self._exchange(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = head[0].split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        request = Request(method, target, headers, body)
        self.requests.append(request)
        self.num_now += 1
        self.most_at_once = max(self.most_at_once, self.num_now)
        try:
            return await self._answer(request, writer)
        finally:
            self.num_now -= 1

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        reply = step(request) if callable(step) else step
        if reply.closes:
            return False
        if reply.hangs:
            await self._is_over.wait()
            return False
        await asyncio.sleep(reply.delay_s)
        content = reply.content()
        lines = [f"HTTP/1.1 {reply.status} Whatever", f"Content-Length: {len(content)}"]
        lines += [f"{name}: {value}" for name, value in reply.headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        if reply.drip_s:
            for byte in content:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(reply.drip_s)
        writer.write(content[: reply.cut_after] if reply.cut_after is not None else content)
        await writer.drain()
        return reply.cut_after is None

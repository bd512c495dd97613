"""Our HTTP client under load: the policy `openai:` streaming short answers, beside bare aiohttp reading the same stream.

    python benchmarks/client.py [--rounds 5] [--seconds 2] [--json FILE]

The server is a process of its own: an asyncio protocol that answers every request at once with the same bytes, a streamed
chat answer of eight events as vLLM writes them. Its busy share (processor time by the clock) shows that it is not the
limit. Bare aiohttp posts the same body and reads the stream to its end; it parses nothing. "Parsed" does the least that a
client has to: it cuts the stream into events and reads each with `json.loads`. Ours builds the body, parses every event,
finds the stop string and gives a `Generation`. They take turns, round by round, because the machine is shared; a ratio is
the median of the rounds' ratios. "CPU" is the ratio to bare aiohttp for requests in a second of this process's own time,
which other work on the machine disturbs less.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import socket
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp

from parallelsearch import grammar
from parallelsearch.policy.base import Sampling
from parallelsearch.policy.openai import OpenAIPolicy
from parallelsearch.trajectory import Segment

CONNECTIONS = (16, 256, 1024)
TEXT = "<search> Monet born ## Pissarro born"
GOAL = 0.65


def _event(delta: dict[str, Any], finish: str | None = None, stop: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, "stop_reason": stop}
    record = {
        "id": "c-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "tiny",
        "choices": [choice],
        **more,
    }
    return b"data: " + json.dumps(record).encode() + b"\n\n"


def _answer() -> bytes:
    pieces = [TEXT[at : at + 8] for at in range(0, len(TEXT), 8)]
    events = [_event({"content": piece}) for piece in pieces]
    events += [
        _event({}, "stop", "</search>"),
        _event({}, usage={"prompt_tokens": 9, "completion_tokens": 9}),
        b"data: [DONE]\n\n",
    ]
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events) + b"0\r\n\r\n"


class _Server(asyncio.Protocol):
    """Counts bytes until a request is whole, and answers."""

    answer = _answer()

    def connection_made(self, transport: Any) -> None:
        self.transport, self.held, self.wanted = transport, b"", 0

    def data_received(self, data: bytes) -> None:
        self.held += data
        while True:
            if not self.wanted:
                end = self.held.find(b"\r\n\r\n")
                if end < 0:
                    return
                lower = self.held[:end].lower()
                start = lower.index(b"content-length:") + 15
                self.wanted = end + 4 + int(lower[start:].split(b"\r\n", 1)[0])
            if len(self.held) < self.wanted:
                return
            self.held, self.wanted = self.held[self.wanted :], 0
            self.transport.write(self.answer)


def _serve(listener: socket.socket) -> None:
    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(_Server, sock=listener)
        await server.serve_forever()

    asyncio.run(run())


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _load(ask: Callable[[], Awaitable[None]], connections: int, seconds: float, server: int) -> dict[str, float]:
    count, end_s = 0, 0.0

    async def one() -> None:
        nonlocal count
        while time.monotonic() < end_s:
            await ask()
            count += 1

    await asyncio.gather(*(ask() for _ in range(connections)))  # all connections are made before the clock starts
    count, start_s, own_s, its_s = 0, time.monotonic(), time.process_time(), _cpu_s(server)
    end_s = start_s + seconds
    await asyncio.gather(*(one() for _ in range(connections)))
    wall_s = time.monotonic() - start_s
    own_s, its_s = time.process_time() - own_s, _cpu_s(server) - its_s
    return {"rate": count / wall_s, "cpu_rate": count / own_s, "client": own_s / wall_s, "server": its_s / wall_s}


async def measure(url: str, connections: int, rounds: int, seconds: float, server: int) -> dict[str, float]:
    policy = OpenAIPolicy(url, "tiny")
    segments = [Segment("prompt", "Who was born first, Monet or Pissarro?")]
    fields = policy._fields(segments, grammar.STOP_STRINGS, 64, Sampling())
    body, headers = json.dumps(fields).encode(), {"Content-Type": "application/json"}
    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    async def bare() -> None:
        async with session.post(f"{url}/chat/completions", data=body, headers=headers) as response:
            async for _ in response.content.iter_any():
                pass

    async def parsed() -> None:
        pieces = []
        async with session.post(f"{url}/chat/completions", data=body, headers=headers) as response:
            async for piece in response.content.iter_any():
                pieces.append(piece)
        for event in b"".join(pieces).split(b"\n\n"):
            if event.startswith(b"data: {"):
                json.loads(event[6:])

    async def ours() -> None:
        generation = await policy.generate(
            segments, stop=grammar.STOP_STRINGS, max_tokens=64, sampling=Sampling(), session="s"
        )
        if not generation.text.endswith("</search>"):
            raise SystemExit(f"not the turn that was sent: {generation}")

    turns = []
    for _ in range(rounds):
        turns.append([await _load(ask, connections, seconds, server) for ask in (bare, parsed, ours)])
    await policy.aclose()
    await session.close()
    row: dict[str, float] = {"connections": connections}
    for name, at in (("bare", 0), ("parsed", 1), ("ours", 2)):
        for key in ("rate", "client", "server"):
            row[f"{name}_{key}"] = statistics.median(turn[at][key] for turn in turns)
    row["ratio"] = statistics.median(turn[2]["rate"] / turn[0]["rate"] for turn in turns)
    row["parsed_ratio"] = statistics.median(turn[2]["rate"] / turn[1]["rate"] for turn in turns)
    row["cpu_ratio"] = statistics.median(turn[2]["cpu_rate"] / turn[0]["cpu_rate"] for turn in turns)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    server = multiprocessing.get_context("fork").Process(target=_serve, args=(listener,), daemon=True)
    server.start()
    assert server.pid is not None
    rows = []
    print("| connections | bare aiohttp /s | parsed /s | ours /s | ours to bare | CPU | ours to parsed | server busy |")
    print("|---|---|---|---|---|---|---|---|")
    for connections in CONNECTIONS:
        row = asyncio.run(measure(url, connections, arguments.rounds, arguments.seconds, server.pid))
        rows.append(row)
        print(
            f"| {connections:,} | {row['bare_rate']:,.0f} | {row['parsed_rate']:,.0f} | {row['ours_rate']:,.0f} "
            f"| {row['ratio']:.2f} | {row['cpu_ratio']:.2f} | {row['parsed_ratio']:.2f} | {row['bare_server']:.0%} |",
            flush=True,
        )
    server.terminate()
    print(f"\ngoal: {GOAL:.2f}; smallest ratio: {min(row['ratio'] for row in rows):.2f}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""Our HTTP client under load: the policy `openai:` beside bare aiohttp reading the same bytes.

    python benchmarks/client.py [--rounds 5] [--seconds 2] [--json FILE]
    python benchmarks/client.py --paced [--rounds 3] [--seconds 4] [--pace-ms 20]

The server is a process of its own: an asyncio protocol that answers every request at once with the same bytes, a streamed
chat answer of eight events as vLLM writes them. Its busy share (processor time by the clock) shows that it is not the
limit. Bare aiohttp posts the same body and reads the stream to its end; it parses nothing. "Parsed" does the least that a
client has to: it cuts the stream into events and reads each with `json.loads`. Ours builds the body, parses every event,
finds the stop string and gives a `Generation`. They take turns, round by round, because the machine is shared; a ratio is
the median of the rounds' ratios. "CPU" is the ratio to bare aiohttp for requests in a second of this process's own time,
which other work on the machine disturbs less.

`--paced` is the case of a server that works: turns of 48 tokens, written at the pace of one token for every turn under way,
as vLLM does it, each token in an event and a write of its own. What counts there is the processor time of a turn:

| way | what it is |
|---|---|
| bare | aiohttp reads the stream of one token an event and parses nothing |
| heard | ours, streamed, somebody listens to each piece |
| unheard | ours, streamed although nobody listens (`?stream=1`) |
| eight | ours, heard, eight tokens an event |
| whole | ours, the answer in one piece |
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
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
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
NUM_TOKENS = 48
WAYS = ("bare", "heard", "unheard", "eight", "whole")


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


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def _chunk(event: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(event), event)


def _answer(pieces: list[str]) -> list[bytes]:
    """The writes of a streamed answer: the head, each piece, the end."""
    usage = {"prompt_tokens": 9, "completion_tokens": len(pieces)}
    last = [_event({}, "stop", "</search>"), _event({}, usage=usage), b"data: [DONE]\n\n"]
    end = b"".join(map(_chunk, last)) + b"0\r\n\r\n"
    return [HEAD, *(_chunk(_event({"content": piece})) for piece in pieces), end]


def _whole(text: str) -> bytes:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop", "stop_reason": "</search>"}
    usage = {"prompt_tokens": 9, "completion_tokens": NUM_TOKENS}
    record = {"id": "c-1", "object": "chat.completion", "created": 1, "model": "tiny", "choices": [choice]}
    body = json.dumps({**record, "usage": usage}).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    return head + body


TOKENS = ["<search>", *(" word" for _ in range(NUM_TOKENS - 1))]


class _Pace:
    """Writes what each turn under way writes at this tick, all in one go, as an engine that works in steps does."""

    def __init__(self, pace_s: float) -> None:
        self.pace_s = pace_s
        self.under_way: list[tuple[Any, int, int]] = []
        self.tick = 0
        self.scripts = [
            dict(enumerate(_answer(TOKENS))),
            {
                min(at * 8, NUM_TOKENS + 1): data
                for at, data in enumerate(_answer(["".join(TOKENS[at : at + 8]) for at in range(0, NUM_TOKENS, 8)]))
            },
            {NUM_TOKENS + 1: _whole("".join(TOKENS))},
        ]

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        next_s = loop.time()
        while True:
            next_s = max(next_s + self.pace_s, loop.time())
            await asyncio.sleep(next_s - loop.time())
            self.tick += 1
            left = []
            for transport, script, start in self.under_way:
                step = self.tick - start - 1
                if data := self.scripts[script].get(step):
                    transport.write(data)
                if step <= NUM_TOKENS:
                    left.append((transport, script, start))
            self.under_way = left


class _Server(asyncio.Protocol):
    """Counts bytes until a request is whole, and answers."""

    answer = b"".join(_answer([TEXT[at : at + 8] for at in range(0, len(TEXT), 8)]))

    def __init__(self, pace: _Pace) -> None:
        self.pace = pace

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
            asked = self.held[: self.wanted]
            self.held, self.wanted = self.held[self.wanted :], 0
            if asked.startswith(b"POST /v1/"):
                self.transport.write(self.answer)
            else:
                script = 2 if b'"stream":false' in asked else int(asked.startswith(b"POST /eight/"))
                self.pace.under_way.append((self.transport, script, self.pace.tick))


def _serve(listener: socket.socket, pace_s: float) -> None:
    async def run() -> None:
        pace = _Pace(pace_s)
        server = await asyncio.get_running_loop().create_server(lambda: _Server(pace), sock=listener)
        await asyncio.gather(server.serve_forever(), pace.run())

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
    return {
        "rate": count / wall_s,
        "cpu_rate": count / own_s,
        "turn_ms": 1000 * own_s / count,
        "client": own_s / wall_s,
        "server": its_s / wall_s,
    }


async def measure(url: str, connections: int, rounds: int, seconds: float, server: int) -> dict[str, float]:
    policy = OpenAIPolicy(f"{url}/v1", "tiny", stream=True)
    segments = [Segment("prompt", "Who was born first, Monet or Pissarro?")]
    fields = policy._body(policy._fields(segments, grammar.STOP_STRINGS, 64, Sampling()), True)
    body, headers = json.dumps(fields).encode(), {"Content-Type": "application/json"}
    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    async def bare() -> None:
        async with session.post(f"{url}/v1/chat/completions", data=body, headers=headers) as response:
            async for _ in response.content.iter_any():
                pass

    async def parsed() -> None:
        pieces = []
        async with session.post(f"{url}/v1/chat/completions", data=body, headers=headers) as response:
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


async def measure_paced(
    url: str, connections: int, rounds: int, seconds: float, server: int, ways: Sequence[str]
) -> list[dict[str, float]]:
    """Each way's processor time of a turn, round by round."""
    policies = {
        "heard": OpenAIPolicy(f"{url}/paced/v1", "tiny"),
        "unheard": OpenAIPolicy(f"{url}/paced/v1", "tiny", stream=True),
        "eight": OpenAIPolicy(f"{url}/eight/v1", "tiny"),
        "whole": OpenAIPolicy(f"{url}/paced/v1", "tiny", stream=False),
    }
    segments = [Segment("prompt", "Who was born first, Monet or Pissarro?")]
    body = b'{"model":"tiny","stream":true,"messages":[{"role":"user","content":"Who was born first?"}]}'
    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    async def bare() -> None:
        headers = {"Content-Type": "application/json"}
        async with session.post(f"{url}/paced/v1/chat/completions", data=body, headers=headers) as response:
            async for _ in response.content.iter_any():
                pass

    async def ours(way: str) -> None:
        heard: list[str] = []
        generation = await policies[way].generate(
            segments,
            stop=grammar.STOP_STRINGS,
            max_tokens=64,
            sampling=Sampling(),
            session="s",
            on_text=heard.append if way in ("heard", "eight") else None,
        )
        if generation.num_tokens not in (NUM_TOKENS, NUM_TOKENS // 8) or not generation.text.endswith("</search>"):
            raise SystemExit(f"not the turn that was sent: {generation}")

    found = []
    for _ in range(rounds):
        row: dict[str, float] = {"connections": connections}
        for way in ways:
            load = await _load(bare if way == "bare" else partial(ours, way), connections, seconds, server)
            row |= {f"{way}_{key}": value for key, value in load.items()}
        found.append(row)
    for policy in policies.values():
        await policy.aclose()
    await session.close()
    return found


def main_paced(url: str, server: int, arguments: argparse.Namespace) -> list[dict[str, float]]:
    rows = []
    print(f"| connections | {' | '.join(f'{way} ms' for way in arguments.ways)} | client busy | server busy |")
    print("|---" * (len(arguments.ways) + 3) + "|")
    for connections in arguments.connections or (256, 1024):
        found = asyncio.run(
            measure_paced(url, connections, arguments.rounds, arguments.seconds, server, arguments.ways)
        )
        rows += found
        cells = [f"{statistics.median(row[f'{way}_turn_ms'] for row in found):.2f}" for way in arguments.ways]
        for who in ("client", "server"):
            cells.append(
                " ".join(f"{statistics.median(row[f'{way}_{who}'] for row in found):.0%}" for way in arguments.ways)
            )
        print(f"| {connections:,} | {' | '.join(cells)} |", flush=True)
    return rows


def main_instant(url: str, server: int, arguments: argparse.Namespace) -> list[dict[str, float]]:
    rows = []
    print("| connections | bare aiohttp /s | parsed /s | ours /s | ours to bare | CPU | ours to parsed | server busy |")
    print("|---|---|---|---|---|---|---|---|")
    for connections in arguments.connections or CONNECTIONS:
        row = asyncio.run(measure(url, connections, arguments.rounds, arguments.seconds, server))
        rows.append(row)
        print(
            f"| {connections:,} | {row['bare_rate']:,.0f} | {row['parsed_rate']:,.0f} | {row['ours_rate']:,.0f} "
            f"| {row['ratio']:.2f} | {row['cpu_ratio']:.2f} | {row['parsed_ratio']:.2f} | {row['bare_server']:.0%} |",
            flush=True,
        )
    print(f"\ngoal: {GOAL:.2f}; smallest ratio: {min(row['ratio'] for row in rows):.2f}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--paced", action="store_true", help="a server that writes one token at a time")
    parser.add_argument("--pace-ms", type=float, default=20.0, help="milliseconds between two tokens of a turn")
    parser.add_argument("--ways", type=lambda text: text.split(","), default=WAYS, help=f"of {','.join(WAYS)}")
    parser.add_argument("--connections", type=int, nargs="*", help="how many turns are under way at once")
    arguments = parser.parse_args()
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = multiprocessing.get_context("fork").Process(
        target=_serve, args=(listener, arguments.pace_ms / 1000), daemon=True
    )
    server.start()
    assert server.pid is not None
    rows = main_paced(url, server.pid, arguments) if arguments.paced else main_instant(url, server.pid, arguments)
    server.terminate()
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()

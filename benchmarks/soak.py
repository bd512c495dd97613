"""Honest clients of the agent server, with hostile ones beside them: what the hostile cost the honest.

    python benchmarks/soak.py --seconds 60        # 200 honest clients alone, then the same with 20 hostile ones

Twenty hostile clients go on for as long as the honest ones ask, each in one of ten ways: heads that drip, heads that never
end, addresses and headers without end, requests piled up in advance, connections that say nothing, bodies that never come
or are not what they say, ends that are half closed, answers that are never read. One more process asks `/health` ten times
a second, and the server's event loop counts how late it is and how long it was held by its own work (`Beats`): where
clients and server share two cores, only the latter is the server's. Server, honest, hostile and watching clients are
processes of their own. Exit status 1 where an aim is missed: the honest p95 at most twice that without hostile clients,
`/health` under 100 ms throughout, the loop held for less than 50 ms, memory flat.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from agent_server import Load, at_share, client, resident_mib, running_server

MAX_SLOWDOWN, MAX_HEALTH_MS, MAX_HELD_MS, MAX_GROWTH = 2.0, 100.0, 50.0, 1.25
Attack = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


# ---- hostile clients -------------------------------------------------------------------------------------------------


async def slow_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    for byte in b"GET / HTTP/1.1\r\nX: " + b"y" * 10_000:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.05)


async def endless_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"GET / HTTP/1.1\r\n")
    for _ in range(10_000):
        writer.write(b"X: " + b"y" * 8_000 + b"\r\n")
        await writer.drain()


async def long_address(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    for _ in range(1_000):
        writer.write((b"GET /" if _ == 0 else b"") + b"x" * 60_000)
        await writer.drain()


async def piled_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    for _ in range(1_000):
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
        await writer.drain()


async def idle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asyncio.wait_for(reader.read(), 30)


async def body_that_never_comes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(POST + b"Content-Length: 100000\r\n\r\n{")
    await asyncio.wait_for(reader.read(), 35)


async def packed_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    import gzip

    data = gzip.compress(b'{"model": "' + b"x" * 50_000_000)
    writer.write(POST + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    await asyncio.wait_for(reader.read(1 << 16), 30)


async def deep_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    data = b"[" * 100_000
    writer.write(POST + b"Content-Length: %d\r\n\r\n" % len(data) + data)
    await asyncio.wait_for(reader.read(1 << 16), 30)


async def half_closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    body = json.dumps({"model": "parallelsearch", "messages": [{"role": "user", "content": "Question number 1?"}]})
    writer.write(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body.encode())
    writer.write_eof()
    await asyncio.wait_for(reader.read(), 30)


async def never_reads(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    body = {"model": "parallelsearch", "stream": True, "messages": [{"role": "user", "content": "Question number 2?"}]}
    data = json.dumps(body).encode()
    writer.write(POST + b"Content-Length: %d\r\n\r\n" % len(data) + data)
    await asyncio.sleep(30)


ATTACKS: list[Attack] = [
    slow_head, endless_head, long_address, piled_up, idle, body_that_never_comes, packed_body, deep_body, half_closed,
    never_reads,
]  # fmt: skip


async def attack(url: str, number: int, counts: dict[str, int]) -> None:
    parts, one = urlsplit(url), ATTACKS[number % len(ATTACKS)]
    while True:
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            counts[one.__name__] = counts.get(one.__name__, 0) + 1
            try:
                await one(reader, writer)
            finally:
                writer.close()
        await asyncio.sleep(random.uniform(0.02, 0.1))


async def attack_for(url: str, num_clients: int, seconds: float) -> dict[str, int]:
    counts: dict[str, int] = {}
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.gather(*(attack(url, number, counts) for number in range(num_clients)))
    return counts


# ---- who watches -----------------------------------------------------------------------------------------------------


def watch(url: str, seconds: float) -> list[float]:
    """What `/health` took, in ms, each time over a new connection."""
    import http.client

    parts, took, until_s = urlsplit(url), [], time.perf_counter() + seconds
    while time.perf_counter() < until_s:
        start_s = time.perf_counter()
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        connection.request("GET", "/health")
        connection.getresponse().read()
        connection.close()
        took.append((time.perf_counter() - start_s) * 1000)
        time.sleep(0.1)
    return took


# ---- the measurement -------------------------------------------------------------------------------------------------


async def put_load(url: str, num_clients: int, seconds: float) -> Load:
    load, until_s = Load(), time.perf_counter() + seconds
    await asyncio.gather(*(client(url, number, bool(number % 2), until_s, load) for number in range(num_clients)))
    return load


def start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True)


def measure(num_honest: int, num_hostile: int, seconds: float, latency_s: float, folder: Path) -> dict[str, float]:
    beats_file = folder / "beats.json"
    with running_server(latency_s, beats_file) as (url, pid, _):
        asyncio.run(put_load(url, num_honest, 5.0))  # warm
        helpers = {"watch": start("--watch", url, "--seconds", str(seconds))}
        if num_hostile:
            helpers["attack"] = start("--attack", url, "--hostile", str(num_hostile), "--seconds", str(seconds))
        memory, waited, num_failed = [resident_mib(pid)], [], 0
        for _ in range(6):
            load = asyncio.run(put_load(url, num_honest, seconds / 6))
            memory.append(resident_mib(pid))
            waited += load.waited
            num_failed += load.num_failed
        said = {name: json.loads(helper.communicate()[0]) for name, helper in helpers.items()}
    health = said["watch"]
    figures = {
        "answers": float(len(waited)),
        "failed": float(num_failed),
        "p50 ms": at_share(waited, 0.5) * 1000,
        "p95 ms": at_share(waited, 0.95) * 1000,
        "health p95 ms": at_share(health, 0.95),
        "health max ms": max(health),
        **json.loads(beats_file.read_text()),
        "memory first MiB": memory[1],
        "memory last MiB": memory[-1],
        "load average": os.getloadavg()[0],
    }
    print(
        f"{num_honest} honest, {num_hostile} hostile: "
        + ", ".join(f"{name} {value:.1f}" for name, value in figures.items())
    )
    if num_hostile:
        print("attacks: " + ", ".join(f"{name} {count}" for name, count in sorted(said["attack"].items())), flush=True)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--honest", type=int, default=200)
    parser.add_argument("--hostile", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of each of the two measurements")
    parser.add_argument("--latency-s", type=float, default=1.0, help="what a search takes")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--attack", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--watch", metavar="URL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.attack:
        print(json.dumps(asyncio.run(attack_for(options.attack, options.hostile, options.seconds))))
        return
    if options.watch:
        print(json.dumps(watch(options.watch, options.seconds)))
        return
    with tempfile.TemporaryDirectory() as folder:
        alone, beside = (
            measure(options.honest, num_hostile, options.seconds, options.latency_s, Path(folder))
            for num_hostile in (0, options.hostile)
        )
    if options.json:
        options.json.write_text(json.dumps({"alone": alone, "beside": beside}, indent=2) + "\n")
    missed = [
        what
        for what, is_met in {
            f"p95 at most {MAX_SLOWDOWN:g} times": beside["p95 ms"] <= MAX_SLOWDOWN * alone["p95 ms"],
            f"/health under {MAX_HEALTH_MS:g} ms": beside["health max ms"] < MAX_HEALTH_MS,
            f"loop held under {MAX_HELD_MS:g} ms": beside["loop held max ms"] < MAX_HELD_MS,
            "memory flat": beside["memory last MiB"] <= MAX_GROWTH * beside["memory first MiB"],
            "nothing lost": not beside["failed"],
        }.items()
        if not is_met
    ]
    if missed:
        sys.exit(f"missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()

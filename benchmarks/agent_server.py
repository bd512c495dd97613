"""What the agent server itself costs, and whether it stays as it is under load.

    python benchmarks/agent_server.py                  # 100 clients: own overhead of a request, whole and streamed
    python benchmarks/agent_server.py --soak-s 120     # 200 clients and a slow search: nothing lost, memory flat

The policy is a script at the pace of a model and the search a wait, so what is left is the server. Overhead is the time a
request took minus the time the rollout took by its own clock: once as the server's log has it, once as the client waited,
which counts the clients' own share of the processor, too. The same rollouts without a server, as many at once, show what
the load alone does to them. Server and clients are processes of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from parallelsearch import grammar
from parallelsearch.policy.scripted import ScriptedPolicy
from parallelsearch.retrieval.base import Hit, Result, Retriever
from parallelsearch.rollout import rollout
from parallelsearch.search import Search

NUM_QUESTIONS = 200
TOKENS_PER_S = 60.0
MAX_GROWTH = 1.1
"""Memory in the last quarter of a soak against the first one, warming up not counted."""


class Beats:
    """How late an event loop is, and how much of that is its own: a beat every few ms, each with the processor time of the
    loop's thread since the one before. That time is what one turn of the loop did, garbage collection included; the rest
    of the wait is that of a thread which other programs kept from a core."""

    interval_s = 0.005

    def __init__(self) -> None:
        self.late_ms: list[float] = []
        self.held_ms: list[float] = []
        self._last: tuple[float, float] | None = None

    def beat(self, loop: asyncio.AbstractEventLoop) -> None:
        now = time.perf_counter(), time.thread_time()
        if self._last is not None:
            self.late_ms.append((now[0] - self._last[0] - self.interval_s) * 1000)
            self.held_ms.append((now[1] - self._last[1]) * 1000)
        self._last = now
        loop.call_later(self.interval_s, self.beat, loop)

    def summary(self) -> dict[str, float]:
        return {
            f"loop {what} {name} ms": at_share(values, share)
            for what, values in (("late", self.late_ms), ("held", self.held_ms))
            for name, share in (("p99", 0.99), ("max", 1.0))
        }


class Waiting(Retriever):
    """Three passages for any query, after a wait. Its first search starts the beats."""

    name = "waiting"
    max_concurrency = 1000

    def __init__(self, latency_s: float, beats: Beats | None = None) -> None:
        self.latency_s, self._beats = latency_s, beats

    async def search_many(self, queries: Sequence[str], k: int) -> list[Result]:
        if self._beats is not None:
            self._beats.beat(asyncio.get_running_loop())
            self._beats = None
        await asyncio.sleep(self.latency_s)
        text = "A passage of the usual length, about one hundred words or so. " * 9
        return [[Hit(f"{query}-{n}", query, text, score=1.0, rank=n) for n in range(1, k + 1)] for query in queries]


def questions() -> list[str]:
    return [f"Question number {n}?" for n in range(NUM_QUESTIONS)]


def script() -> dict[str, list[str]]:
    return {
        question: [
            grammar.render_turn(
                "Two facts are needed and neither depends on the other.", queries=[f"{n} one", f"{n} two"]
            ),
            grammar.render_turn("Both are there, and the first one is the greater [1].", answer=f"answer {n}"),
        ]
        for n, question in enumerate(questions())
    }


def make(latency_s: float, beats: Beats | None = None) -> tuple[ScriptedPolicy, Search]:
    # Without a cache: every question searches, as it would in life.
    return ScriptedPolicy(script(), TOKENS_PER_S), Search(Waiting(latency_s, beats), cache_size=0)


def serve(latency_s: float, beats_file: Path | None) -> None:
    from parallelsearch.server.agent_server import run_agent_server
    from parallelsearch.server.answering import AgentSettings

    beats = Beats() if beats_file is not None else None
    run_agent_server(*make(latency_s, beats), AgentSettings(port=0, token=None))
    if beats is not None and beats_file is not None:
        beats_file.write_text(json.dumps(beats.summary()))


@contextlib.contextmanager
def running_server(latency_s: float, beats_file: Path | None = None) -> Iterator[tuple[str, int, Path]]:
    with tempfile.NamedTemporaryFile("r", suffix=".log") as log, open(log.name, "w") as stderr:
        command = [sys.executable, __file__, "--serve", "--latency-s", str(latency_s)]
        command += ["--beats", str(beats_file)] if beats_file is not None else []
        process = subprocess.Popen(command, stderr=stderr, env={**os.environ, "JAX_PLATFORMS": "cpu"})
        try:
            while not (lines := [line for line in Path(log.name).read_text().splitlines() if '"listening"' in line]):
                if process.poll() is not None:
                    sys.exit(f"the server did not start: {Path(log.name).read_text()}")
                time.sleep(0.05)
            yield json.loads(lines[0])["url"], process.pid, Path(log.name)
        finally:
            process.terminate()
            process.wait()


@dataclass
class Load:
    """What clients saw: seconds waited, seconds of it that were not the rollout's own."""

    waited: list[float] = field(default_factory=list)
    overhead: list[float] = field(default_factory=list)
    num_failed: int = 0


def at_share(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def head_start_s(number: int) -> float:
    """People do not all press the button at once, nor in step with the model's tokens."""
    return random.Random(number).uniform(0.0, 1.5)


async def client(url: str, number: int, is_streamed: bool, until_s: float, load: Load) -> None:
    """Asks, waits for the answer, asks again, over one connection."""
    parts, asked = urlsplit(url), questions()
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=1 << 24)
    try:
        await asyncio.sleep(head_start_s(number))
        while time.perf_counter() < until_s:
            question = asked[number % NUM_QUESTIONS]
            number += 7
            body = json.dumps(
                {"model": "parallelsearch", "messages": [{"role": "user", "content": question}], "stream": is_streamed}
            ).encode()
            head = (
                "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n"
            )
            start_s = time.perf_counter()
            writer.write(head.encode() + body)
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            if b"transfer-encoding: chunked" in answer:
                content = await reader.readuntil(b"0\r\n\r\n")
            else:  # an answer that is not streamed, or a refusal
                content = await reader.readexactly(int(answer.partition(b"content-length:")[2].split(b"\r\n")[0]))
            waited_s = time.perf_counter() - start_s
            load.waited.append(waited_s)
            if answer.startswith(b"http/1.1 200") and b'"answer ' in content:
                elapsed_s = float(content.rpartition(b'"elapsed_s": ')[2].split(b",")[0])
                load.overhead.append(waited_s - elapsed_s)
            else:
                load.num_failed += 1
    finally:
        writer.close()


async def put_load(url: str, num_clients: int, is_streamed: bool, seconds: float) -> Load:
    load, until_s = Load(), time.perf_counter() + seconds
    await asyncio.gather(*(client(url, number, is_streamed, until_s, load) for number in range(num_clients)))
    return load


def overhead_in_server(log: Path, num_last: int) -> list[float]:
    """Seconds of the last requests in a server's log that were not the rollout's."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    answered = [line for line in lines if "rollout_ms" in line][-num_last:]
    return [(line["elapsed_ms"] - line["rollout_ms"]) / 1000 for line in answered]


async def bare(latency_s: float, num_at_once: int, seconds: float) -> list[float]:
    """The same rollouts without a server."""
    policy, search = make(latency_s)
    until_s, taken = time.perf_counter() + seconds, []

    async def one(number: int) -> None:
        await asyncio.sleep(head_start_s(number))
        while time.perf_counter() < until_s:
            trajectory = await rollout(questions()[number % NUM_QUESTIONS], policy, search)
            taken.append(trajectory.elapsed_s or 0.0)
            number += 7

    await asyncio.gather(*(one(number) for number in range(num_at_once)))
    return taken


def resident_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")) / 1024


def cpu_s(pid: int) -> float:
    """Processor time of a process so far: what it costs, whoever else uses the machine."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def compare(num_clients: int, latency_s: float, seconds: float) -> dict[str, float]:
    start_cpu_s = time.process_time()
    alone = await bare(latency_s, num_clients, seconds)
    alone_cpu_ms = (time.process_time() - start_cpu_s) / len(alone) * 1000
    figures = {"rollout without a server, p50 ms": at_share(alone, 0.5) * 1000}
    print(
        f"{num_clients} rollouts at once, no server: p50 {at_share(alone, 0.5) * 1000:.1f} ms, {alone_cpu_ms:.2f} ms CPU"
    )
    head = "".join(f"{name:>7}" for name in ("p50", "mean", "p95"))
    print(f"{'(ms)':<10} {'':>9} {'overhead in the server':>23}{'overhead for a client':>23} {'CPU':>6}")
    print(f"{'':<10} {'requests':>9}  {head}  {head} {'more':>6}")
    with running_server(latency_s) as (url, pid, log):
        await put_load(url, 4, False, 1.0)
        for name, is_streamed in (("whole", False), ("streamed", True)):
            start_cpu_s = cpu_s(pid)
            load = await put_load(url, num_clients, is_streamed, seconds)
            more_ms = (cpu_s(pid) - start_cpu_s) / len(load.waited) * 1000 - alone_cpu_ms
            if load.num_failed:
                sys.exit(f"{load.num_failed} requests failed")
            columns = ""
            for where, over in (("server", overhead_in_server(log, len(load.waited))), ("client", load.overhead)):
                spread = [at_share(over, 0.5) * 1000, statistics.mean(over) * 1000, at_share(over, 0.95) * 1000]
                columns += "  " + "".join(f"{value:>7.2f}" for value in spread)
                figures |= {
                    f"{name}: overhead, {where}, p50 ms": spread[0],
                    f"{name}: overhead, {where}, p95 ms": spread[2],
                }
            print(f"{name:<10} {len(load.waited):>9}{columns} {more_ms:>6.2f}", flush=True)
            figures[f"{name}: CPU ms"] = more_ms
    return figures


async def soak(num_clients: int, latency_s: float, soak_s: float, interval_s: float) -> dict[str, float]:
    rows: list[tuple[float, float]] = []
    num_failed = num_answered = 0
    print(f"{'s':>6} {'answers/s':>10} {'p50 ms':>8} {'p95 ms':>8} {'memory MiB':>11} {'failed':>7}")
    with running_server(latency_s) as (url, pid, _):
        start_s = time.perf_counter()
        while (passed_s := time.perf_counter() - start_s) < soak_s:
            begin_s = time.perf_counter()
            load = await put_load(url, num_clients, bool(len(rows) % 2), min(interval_s, soak_s - passed_s))
            num_failed, num_answered = num_failed + load.num_failed, num_answered + len(load.waited)
            rows.append((at_share(load.waited, 0.95) * 1000, resident_mib(pid)))
            print(
                f"{time.perf_counter() - start_s:>6.0f} {len(load.waited) / (time.perf_counter() - begin_s):>10.1f}"
                f" {at_share(load.waited, 0.5) * 1000:>8.1f} {rows[-1][0]:>8.1f} {rows[-1][1]:>11.1f} {load.num_failed:>7}",
                flush=True,
            )
    # The first rows warm the server up; from there on nothing may grow.
    settled = rows[min(2, len(rows) - 1) :]
    quarter = max(1, len(settled) // 4)
    figures = {
        "answered": float(num_answered),
        "failed": float(num_failed),
        "p95 ms": statistics.mean(row[0] for row in rows),
        "memory last quarter / first": statistics.mean(row[1] for row in settled[-quarter:])
        / statistics.mean(row[1] for row in settled[:quarter]),
    }
    for name, value in figures.items():
        print(f"{name}: {value:.2f}")
    if num_failed or figures["memory last quarter / first"] > MAX_GROWTH:
        sys.exit(f"the soak failed: {num_failed} requests lost, or memory grew")
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, help="how many at once (default 100; 200 for a soak)")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each measurement")
    parser.add_argument("--latency-s", type=float, default=0.3, help="what a search takes")
    parser.add_argument("--soak-s", type=float, help="put load on the server for so long and watch latency and memory")
    parser.add_argument("--interval-s", type=float, default=10.0, help="how often the soak prints")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--beats", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.latency_s, options.beats)
        return
    if options.soak_s:
        figures = asyncio.run(soak(options.clients or 200, options.latency_s, options.soak_s, options.interval_s))
    else:
        figures = asyncio.run(compare(options.clients or 100, options.latency_s, options.seconds))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""The search server over HTTP against bare bm25s in batches, its latency with 64 clients, and a soak.

    PARALLELSEARCH_DATA=... python benchmarks/search_server.py --index DIR [--seconds 8] [--passages N] [--json FILE]
    PARALLELSEARCH_DATA=... python benchmarks/search_server.py --index DIR --soak-s 600

The server is a process of its own with its cache off; the clients are in this one: plain sockets, requests written
beforehand, answers counted and not parsed, so that they cost little ("client CPU": milliseconds of it for a query, beside
the server's). Bare bm25s is its own tokenizer and scoring, one thread, batches of 64, and the texts of the hits; the best k
are taken with argmax, the fastest way for three, because its own `retrieve` is many times slower here (numpy 2's argpartition
of an array that is mostly zeros); that rate is printed once and not used. The machine is shared, so bare bm25s is
measured before, between and after, and only ratios count. "CPU" is the ratio of processor time for a query, which other
work disturbs less than the clock. Indexes are built in DIR once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from parallelsearch.addresses import open_search
from parallelsearch.files import read_jsonl
from parallelsearch.retrieval.base import Passage
from parallelsearch.retrieval.bm25 import BM25Retriever, build_bm25
from parallelsearch.retrieval.corpus import read_passages

CORPORA = ("multihop_passages.jsonl.zst", "wiki_background_chunks.jsonl.zst")
K = 3


def data_dir() -> Path:
    folder = os.environ.get("PARALLELSEARCH_DATA")
    if not folder:
        sys.exit("set PARALLELSEARCH_DATA to the folder with corpus/")
    return Path(folder)


def passages(limit: int | None) -> Iterator[Passage]:
    every = itertools.chain.from_iterable(read_passages(data_dir() / "corpus" / name) for name in CORPORA)
    return itertools.islice(every, limit)


def queries() -> list[str]:
    """Questions and the titles their answers are under: what agents ask."""
    records = [record for _, record in read_jsonl(data_dir() / "corpus" / "questions_with_gold.jsonl.zst")]
    found = [record["question"] for record in records]
    found += [title for record in records for title in record.get("supporting_titles") or ()]
    found = list(dict.fromkeys(found))
    random.Random(0).shuffle(found)
    return found


# ---- bare bm25s ------------------------------------------------------------------------------------------------------


class Bare:
    """bm25s as its README uses it."""

    def __init__(self, folder: Path, limit: int | None) -> None:
        import bm25s
        import Stemmer

        self._bm25s, self._stemmer = bm25s, Stemmer.Stemmer("english")
        self._texts = [f"{passage.title}\n{passage.text}" for passage in passages(limit)]
        if not folder.exists():
            tokens = bm25s.tokenize(self._texts, stopwords="en", stemmer=self._stemmer, show_progress=False)
            index = bm25s.BM25()
            index.index(tokens, show_progress=False)
            index.save(folder)
        self._index = bm25s.BM25.load(folder, mmap=True)

    def answer(self, batch: list[str]) -> list[list[str]]:
        tokens = self._bm25s.tokenize(
            batch, stopwords="en", stemmer=self._stemmer, show_progress=False, return_ids=False
        )
        answers: list[list[str]] = []
        for words in tokens:
            answers.append([])
            if not words:  # stop words alone, which bm25s itself does not survive
                continue
            scores = self._index.get_scores(words)
            for _ in range(K):
                row = scores.argmax()
                answers[-1].append(self._texts[row])
                scores[row] = -1.0
        return answers

    def answer_with_retrieve(self, batch: list[str]) -> list[list[str]]:
        tokens = self._bm25s.tokenize(batch, stopwords="en", stemmer=self._stemmer, show_progress=False)
        rows, _ = self._index.retrieve(tokens, k=K, show_progress=False)
        return [[self._texts[row] for row in line] for line in rows]


@dataclass
class Rate:
    """How fast queries were answered, by the clock and by processor time."""

    per_s: float
    cpu_s: float
    """Processor seconds for one query."""


def rate_of(answer: Any, pool: list[str], seconds: float, batch: int = 64) -> Rate:
    """The rate of a blocking function that takes batches."""
    answer(pool[:batch])
    rounds = itertools.cycle(range(0, len(pool) - batch, batch))
    start_s, start_cpu_s, count = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - start_s < seconds:
        at = next(rounds)
        answer(pool[at : at + batch])
        count += batch
    return Rate(count / (time.perf_counter() - start_s), (time.process_time() - start_cpu_s) / count)


def family(pid: int) -> list[int]:
    """A process and its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(int(child) for child in children)]


def cpu_s(pid: int) -> float:
    """Processor seconds another process and its children have used."""
    used = 0
    for one in family(pid):
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        used += int(fields[11]) + int(fields[12])
    return used / os.sysconf("SC_CLK_TCK")


# ---- the server ------------------------------------------------------------------------------------------------------


def serve(folder: Path, workers: int) -> None:
    from parallelsearch.server.limits import ServerSettings
    from parallelsearch.server.search_server import run_search_server

    search = open_search(f"bm25:{folder}", cache_size=0, workers=workers)
    run_search_server(search, ServerSettings(port=0, token=None))


@contextlib.contextmanager
def running_server(folder: Path, workers: int = 0) -> Iterator[tuple[str, int]]:
    """The address and the process id of a server over the index."""
    with tempfile.NamedTemporaryFile("r", suffix=".log") as log, open(log.name, "w") as stderr:
        command = [sys.executable, __file__, "--index", str(folder), "--serve", "--workers", str(workers)]
        process = subprocess.Popen(command, stderr=stderr, env={**os.environ, "JAX_PLATFORMS": "cpu"})
        try:
            while not (lines := [line for line in Path(log.name).read_text().splitlines() if '"listening"' in line]):
                if process.poll() is not None:
                    sys.exit(f"the server did not start: {Path(log.name).read_text()}")
                time.sleep(0.05)
            yield json.loads(lines[0])["url"], process.pid
        finally:
            process.terminate()
            process.wait()


@dataclass
class Load:
    """What clients saw."""

    seconds: list[float] = field(default_factory=list)
    num_queries: int = 0
    num_failed: int = 0
    elapsed_s: float = 0.0
    client_cpu_s: float = 0.0

    @property
    def queries_per_s(self) -> float:
        return self.num_queries / self.elapsed_s

    def latency_ms(self, share: float) -> float:
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000


class Client:
    """One connection that asks, waits for the whole answer and asks again. The requests are made beforehand and an answer
    is counted, not parsed: on a machine with two cores the clients must not be what is measured."""

    def __init__(self, address: tuple[str, int], requests: list[bytes], per_request: int, load: Load) -> None:
        self.requests, self.per_request, self.load = itertools.cycle(requests), per_request, load
        self.socket = socket.create_connection(address, timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.chunks: list[bytes] = []
        self.num_missing, self.start_s = 0, 0.0

    def ask(self) -> None:
        self.start_s = time.perf_counter()
        self.socket.sendall(next(self.requests))

    def read(self) -> bool:
        """Whether the answer is complete."""
        chunk = self.socket.recv(1 << 20)
        if not chunk:
            sys.exit("the server closed a connection")
        if not self.chunks:
            head, _, body = chunk.partition(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            self.num_missing = length - len(body)
        else:
            self.num_missing -= len(chunk)
        self.chunks.append(chunk)
        if self.num_missing > 0:
            return False
        self.load.seconds.append(time.perf_counter() - self.start_s)
        self.load.num_queries += self.per_request
        is_good = self.chunks[0].startswith(b"HTTP/1.1 200") and b'"errors"' not in self.chunks[-1][-2000:]
        self.load.num_failed += not is_good
        self.chunks = []
        return True


def request_bytes(address: tuple[str, int], path: str, queries: list[str]) -> bytes:
    body = json.dumps({"queries": queries, "topk": K, "return_scores": True}).encode()
    host = f"{address[0]}:{address[1]}"
    return f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def put_load(url: str, pool: list[str], num_clients: int, per_request: int, seconds: float) -> Load:
    """So many clients at the same time, each with its own order of the queries, in this one thread."""
    parts, load = urlsplit(url), Load()
    address = (parts.hostname or "", parts.port or 80)
    waiting = selectors.DefaultSelector()
    clients: list[Client] = []
    num_requests = min(len(pool) // per_request, max(64, 20_000 // (num_clients * per_request)))
    for seed in range(num_clients):
        order = random.Random(seed).sample(pool, num_requests * per_request)
        batches = [order[at : at + per_request] for at in range(0, len(order), per_request)]
        clients.append(Client(address, [request_bytes(address, parts.path, one) for one in batches], per_request, load))
        waiting.register(clients[-1].socket, selectors.EVENT_READ, clients[-1])
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    for one in clients:
        one.ask()
    num_open = num_clients
    while num_open:
        for key, _ in waiting.select(timeout=60) or sys.exit("no answer within 60 s"):
            if key.data.read():
                if time.perf_counter() - start_s < seconds:
                    key.data.ask()
                else:
                    waiting.unregister(key.data.socket)
                    key.data.socket.close()
                    num_open -= 1
    load.elapsed_s = time.perf_counter() - start_s
    load.client_cpu_s = time.process_time() - start_cpu_s
    return load


def resident_mib(pid: int) -> float:
    """Memory of the server's own (mapped index files left out), its workers with it, in MiB."""
    lines = [line for one in family(pid) for line in Path(f"/proc/{one}/status").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


# ---- measuring -------------------------------------------------------------------------------------------------------


def compare(index: Path, bare_folder: Path, limit: int | None, seconds: float, workers: int) -> dict[str, float]:
    pool = queries()
    bare = Bare(bare_folder, limit)
    ours = BM25Retriever(index)
    figures: dict[str, float] = {}
    retrieve = rate_of(bare.answer_with_retrieve, pool, min(seconds, 5.0), batch=16)
    print(f"bm25s.retrieve as it is: {retrieve.per_s:.0f} queries/s (not used below)")

    def measure(length_s: float) -> tuple[Rate, Rate]:
        return rate_of(bare.answer, pool, length_s), rate_of(
            lambda batch: ours.search_blocking(batch, K), pool, length_s
        )

    before = measure(seconds / 2)
    print(f"bare bm25s {before[0].per_s:.0f} queries/s; our index without a server {before[1].per_s:.0f}")
    print("share of bare bm25s and of our index, by the clock and by CPU:")
    head = f"{'queries/s':>10} {'of bare':>8} {'CPU':>5} {'of index':>9} {'CPU':>5} {'server, client CPU ms':>22}"
    print(f"{'clients':>8} {'queries each':>13} {head} {'p50 ms':>8} {'p95 ms':>8} {'p95/p50':>8}")
    with running_server(index, workers) as (url, pid):
        put_load(url, pool, 4, 16, 1.0)
        for num_clients, per_request in [(4, 64), (8, 32), (64, 4), (64, 1)]:
            start_cpu_s = cpu_s(pid)
            load = put_load(url, pool, num_clients, per_request, seconds)
            server = Rate(load.queries_per_s, (cpu_s(pid) - start_cpu_s) / load.num_queries)
            after = measure(seconds / 2)
            name, shares = f"{num_clients} clients x {per_request}", []
            for what, one, two in zip(("bare bm25s", "our index"), before, after, strict=True):
                clock = server.per_s / ((one.per_s + two.per_s) / 2)
                cpu = (one.cpu_s + two.cpu_s) / 2 / server.cpu_s
                shares.append(f"{clock:.0%} {cpu:>5.0%}")
                figures |= {f"{name}: of {what}": clock, f"{name}: of {what}, CPU": cpu}
            before = after
            p50, p95 = load.latency_ms(0.5), load.latency_ms(0.95)
            figures[f"{name}: p95/p50"] = p95 / p50
            client_cpu_s = load.client_cpu_s / load.num_queries
            used = f"{server.cpu_s * 1000:.3f}, {client_cpu_s * 1000:.3f}"
            rates = f"{server.per_s:>10.0f} {shares[0]:>14} {shares[1]:>15} {used:>22}"
            print(f"{num_clients:>8} {per_request:>13} {rates} {p50:>8.1f} {p95:>8.1f} {p95 / p50:>8.2f}", flush=True)
            if load.num_failed:
                sys.exit(f"{load.num_failed} requests failed")
    asyncio.run(ours.aclose())
    return figures


def soak(index: Path, soak_s: float, interval_s: float, workers: int) -> dict[str, float]:
    pool = queries()
    rows: list[tuple[float, float, float]] = []
    print(f"{'s':>6} {'queries/s':>10} {'p50 ms':>8} {'p95 ms':>8} {'memory MiB':>11} {'failed':>7}")
    with running_server(index, workers) as (url, pid):
        put_load(url, pool, 64, 4, min(5.0, interval_s))
        start_s, num_failed = time.perf_counter(), 0
        while (passed_s := time.perf_counter() - start_s) < soak_s:
            load = put_load(url, pool, 64, 4, min(interval_s, soak_s - passed_s))
            num_failed += load.num_failed
            rows.append((load.latency_ms(0.5), load.latency_ms(0.95), resident_mib(pid)))
            print(
                f"{time.perf_counter() - start_s:>6.0f} {load.queries_per_s:>10.0f} {rows[-1][0]:>8.1f}"
                f" {rows[-1][1]:>8.1f} {rows[-1][2]:>11.1f} {load.num_failed:>7}",
                flush=True,
            )
    quarter = max(1, len(rows) // 4)
    first, last = rows[:quarter], rows[-quarter:]
    figures = {
        "failed requests": float(num_failed),
        "p50 last quarter / first": statistics.mean(r[0] for r in last) / statistics.mean(r[0] for r in first),
        "p95 last quarter / first": statistics.mean(r[1] for r in last) / statistics.mean(r[1] for r in first),
        "memory last quarter / first": statistics.mean(r[2] for r in last) / statistics.mean(r[2] for r in first),
    }
    for name, value in figures.items():
        print(f"{name}: {value:.2f}")
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", type=Path, required=True, help="folder for the indexes; built if they are missing")
    parser.add_argument("--passages", type=int, help="only so many passages of the corpus")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of each measurement")
    parser.add_argument("--workers", type=int, default=0, help="search processes of the server; 0: none of their own")
    parser.add_argument("--soak-s", type=float, help="put load on the server for so long and watch latency and memory")
    parser.add_argument("--interval-s", type=float, default=10.0, help="how often the soak prints")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.index, options.workers)
        return
    options.index.mkdir(parents=True, exist_ok=True)
    size = options.passages or "all"
    index, bare_folder = options.index / f"bm25-{size}", options.index / f"bare-{size}"
    if not index.exists():
        start_s = time.perf_counter()
        report = build_bm25(passages(options.passages), index, skip_bad=True)  # a few ids occur twice
        print(f"index of {report.num_passages} passages built in {time.perf_counter() - start_s:.0f} s", flush=True)
    if options.soak_s:
        figures = soak(index, options.soak_s, options.interval_s, options.workers)
    else:
        figures = compare(index, bare_folder, options.passages, options.seconds, options.workers)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""Run as a script: one of our servers in a process of its own, over BM25 and a few passages. Imported: starts that script.

    python search_process.py '{"kind": "http", "settings": {"port": 0}, "latency_s": 0}'

`kind` is `http`, `mcp-http` or `mcp-stdio`. A query with the word "fails" fails; the search takes `latency_s`, in
`workers` processes if there are any. No search ends while there is a file `hold`: a test that must see the server busy
makes one (`holding`), so that it need not be quick.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from parallelsearch.errors import SearchError
from parallelsearch.retrieval.base import Passage, Result, Retriever
from parallelsearch.retrieval.bm25 import BM25Retriever
from parallelsearch.retrieval.processes import ProcessRetriever
from parallelsearch.search import Search

PASSAGES = [
    Passage("paris", "Paris", "Paris is the capital of France, on the river Seine."),
    Passage("rome", "Rome", "Rome is the capital of Italy, on the river Tiber."),
    Passage("madrid", "Madrid", "Madrid is the capital of Spain, on the river Manzanares."),
    Passage(
        "odd",
        'The "odd" one',
        "Zürich is no capital.\nIt lies on the Limmat 😀.",
        "https://z.ch",
        "2020-02-02",
        metadata={"source": "/maps/Zürich.pdf", "page": 3},
    ),
]


class FewPassages(Retriever):
    """BM25, slower than it is, and failing where it is told to."""

    name = "few"

    def __init__(self, latency_s: float, max_batch: int, max_concurrency: int, hold: str | None = None) -> None:
        self._bm25 = BM25Retriever.from_passages(PASSAGES)
        self._hold = None if hold is None else Path(hold)
        self._latency_s, self.max_batch, self.max_concurrency = latency_s, max_batch, max_concurrency

    async def search_many(self, queries: Sequence[str], k: int) -> list[Result]:
        await asyncio.sleep(self._latency_s)
        while self._hold is not None and self._hold.exists():  # noqa: ASYNC110 (it is another process's file)
            await asyncio.sleep(0.01)
        results = await self._bm25.search_many(queries, k)
        return [
            SearchError("told to fail") if "fails" in query else result
            for query, result in zip(queries, results, strict=True)
        ]

    async def aclose(self) -> None:
        await self._bm25.aclose()


def main(options: dict[str, Any]) -> None:
    from parallelsearch.server.limits import ServerSettings
    from parallelsearch.server.mcp_server import run_mcp_http, run_mcp_stdio
    from parallelsearch.server.search_server import run_search_server

    open_few = functools.partial(
        FewPassages,
        options.get("latency_s", 0),
        options.get("max_batch", 64),
        options.get("max_concurrency", 1),
        options.get("hold"),
    )
    workers = options.get("workers", 0)
    retriever: Retriever = ProcessRetriever(open_few, workers) if workers else open_few()
    search = Search(retriever, **options.get("search", {}))
    given = dict(options.get("settings", {}))
    given["allowed_hosts"] = tuple(given.get("allowed_hosts", ()))
    settings = ServerSettings(**given)
    kind = options.get("kind", "http")
    if kind == "mcp-stdio":
        asyncio.run(run_mcp_stdio(search, settings=settings))
    else:
        (run_mcp_http if kind == "mcp-http" else run_search_server)(search, settings)


class SearchProcess:
    """A running server: its address, its log, and plain HTTP to it."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process, self.log_file = process, log
        self.url = ""

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log_file.read_text().split("\n")[:-1]]

    @property
    def base_url(self) -> str:
        return self.url.rpartition("/")[0]

    def post(self, body: Any, headers: dict[str, str] | None = None) -> tuple[int, Any, dict[str, str]]:
        """What any client does; nothing of this package is involved."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url, data, {"Content-Type": "application/json", **(headers or {})})
        return _open(request)

    def get(self, path: str, headers: dict[str, str] | None = None) -> tuple[int, Any, dict[str, str]]:
        return _open(urllib.request.Request(self.base_url + path, headers=headers or {}))


def _open(request: urllib.request.Request) -> tuple[int, Any, dict[str, str]]:
    try:
        with urllib.request.urlopen(request, timeout=400) as response:
            status, headers, text = response.status, response.headers, response.read()
    except urllib.error.HTTPError as error:
        with error:
            status, headers, text = error.code, error.headers, error.read()
    lower = {name.lower(): value for name, value in headers.items()}
    is_json = lower.get("content-type", "").startswith("application/json")
    return status, json.loads(text) if is_json else text.decode(), lower


def search_r1_client(url: str, queries: list[str], topk: int) -> list[str]:
    """What Search-R1's rollout does with the answer: POST, `.json()["result"]`, contents with title and text."""
    payload = json.dumps({"queries": queries, "topk": topk, "return_scores": True}).encode()
    request = urllib.request.Request(url, payload, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        results = json.load(response)["result"]
    texts = []
    for documents in results:
        text = ""
        for number, item in enumerate(documents):
            content = item["document"]["contents"]
            title, body = content.split("\n")[0], "\n".join(content.split("\n")[1:])
            text += f"Doc {number + 1}(Title: {title}) {body}\n"
        texts.append(text)
    return texts


@contextlib.contextmanager
def holding(file: Path) -> Iterator[Callable[[], None]]:
    """While in the block, no search of a server with `hold=str(file)` ends, unless what this gives was called."""
    file.touch()

    def let_go() -> None:
        file.unlink(missing_ok=True)

    try:
        yield let_go
    finally:
        let_go()


def eventually(condition: Callable[[], bool], wait_s: float = 120.0) -> None:
    """Wait for a condition that only a fault keeps from coming true."""
    deadline_s = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < deadline_s, f"it did not come to pass within {wait_s:g} s"
        time.sleep(0.02)


def refuses_connections(url: str) -> bool:
    """Whether nobody listens any more; questions that were taken may still be on their way."""
    parts = urllib.parse.urlsplit(url)
    try:
        socket.create_connection((parts.hostname, parts.port), timeout=400).close()
    except ConnectionRefusedError:
        return True
    return False


def running(folder: Path, script: str = __file__, **options: Any) -> contextlib.AbstractContextManager[SearchProcess]:
    """A server that listens, until the end of the block."""
    options["settings"] = {"port": 0, "token": None, **options.get("settings", {})}
    return started([sys.executable, script, json.dumps(options)], folder)


@contextlib.contextmanager
def started(command: Sequence[str], folder: Path) -> Iterator[SearchProcess]:
    """The same for a command that writes our log."""
    log = folder / f"server-{len(list(folder.iterdir()))}.log"
    with log.open("w") as stderr:
        process = subprocess.Popen(command, stderr=stderr, text=True)
    server = SearchProcess(process, log)
    try:
        for _ in range(10_000):  # 200 s or more
            lines = [line for line in log.read_text().split("\n")[:-1] if '"listening"' in line]
            if lines or process.poll() is not None:
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.02)
        assert lines, f"the server did not start: {log.read_text()}"
        server.url = json.loads(lines[0])["url"]
        server.get("/health")  # it listens before it is ready; clients with less patience come after this
        yield server
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

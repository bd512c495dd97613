"""Backends in processes of their own: the same answers, and what happens when a process dies, hangs or does not start."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from parallelsearch.addresses import open_retriever, open_search
from parallelsearch.errors import (
    IndexDamagedError,
    SearchError,
    SearchTimeoutError,
    TransientSearchError,
    UsageError,
)
from parallelsearch.retrieval.base import BlockingRetriever, DegradedHits, Hit, Passage, Result
from parallelsearch.retrieval.bm25 import BM25Retriever, build_bm25
from parallelsearch.retrieval.processes import ProcessRetriever
from parallelsearch.search import Search

PASSAGES = [Passage(f"p{n}", f"Town {n}", f"The town number {n} has a tower \ud800.") for n in range(300)]


class Told(BlockingRetriever):
    """Does what the query says. Opened in the worker."""

    name = "told"
    max_batch = 8

    def search_blocking(self, queries: Sequence[str], k: int) -> list[Result]:
        if queries[0].startswith("die once ") and not (path := Path(queries[0].removeprefix("die once "))).exists():
            path.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if queries[0] == "hang":
            time.sleep(600)
        if queries[0] == "break":
            raise ZeroDivisionError("oh")
        if queries[0] == "refuse":
            raise TransientSearchError("busy", 2.5)
        return [self._one(query) for query in queries]

    def _one(self, query: str) -> Result:
        return {
            "late": SearchTimeoutError("too late"),
            "again": TransientSearchError("come again", 7.0),
            "part": DegradedHits([Hit("a", "A", "b", score=1.5, rank=1)], ["dense: down"]),
        }.get(query) or [Hit(str(os.getpid()), "T", query, "https://a.b", "2020", 0.25, 1, metadata={"page": 3})]


@pytest.fixture
async def told() -> AsyncIterator[ProcessRetriever]:
    retriever = ProcessRetriever(Told, 1, timeout_s=300.0)
    yield retriever
    await retriever.aclose()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pids: Sequence[int], within_s: float = 120.0) -> bool:
    for _ in range(int(within_s / 0.05)):
        if not any(is_running(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


async def test_the_answers_are_those_of_the_backend_itself(tmp_path: Path) -> None:
    build_bm25(PASSAGES, tmp_path / "index")
    here = BM25Retriever(tmp_path / "index")
    there = ProcessRetriever(functools.partial(open_retriever, f"bm25:{tmp_path / 'index'}"), 2)
    queries = [f"town {n} tower" for n in range(50)] + ["", "nowhere"]
    assert await there.search_many(queries, 3) == await here.search_many(queries, 3)
    assert (there.name, there.describe()) == ("bm25", here.describe())
    apart = await asyncio.gather(*(there.search_many([query], 2) for query in queries))
    assert [hits for [hits] in apart] == await here.search_many(queries, 2)
    await here.aclose()
    await there.aclose()


async def test_failures_and_partial_answers_travel(told: ProcessRetriever) -> None:
    late, again, part, hits = await told.search_many(["late", "again", "part", "x"], 1)
    assert (type(late), str(late)) == (SearchTimeoutError, "too late")
    assert isinstance(again, TransientSearchError)
    assert again.retry_after_s == 7.0
    assert isinstance(part, DegradedHits)
    assert part.failures == ("dense: down",)
    assert isinstance(hits, list)
    assert hits[0] == Hit(hits[0].id, "T", "x", "https://a.b", "2020", 0.25, 1, metadata={"page": 3})
    [refused] = await told.search_many(["refuse"], 1)
    assert isinstance(refused, TransientSearchError)
    with pytest.raises(SearchError, match="told failed: ZeroDivisionError: oh"):
        await told.search_many(["break"], 1)
    assert isinstance((await told.search_many(["x"], 1))[0], list)  # and it goes on


async def test_a_process_that_dies_is_replaced_and_its_batch_asked_again(tmp_path: Path) -> None:
    search = Search(ProcessRetriever(Told, 1, timeout_s=300.0), timeout_s=300.0, first_wait_s=0.01)
    [before] = (await search.find("who")).hits
    asked_again = await search.find(f"die once {tmp_path / 'died'}")
    assert (asked_again.error, search.stats.num_retries) == (None, 1)
    assert asked_again.hits[0].id != before.id  # another process
    os.kill(int(asked_again.hits[0].id), signal.SIGKILL)  # while it waits for work
    after = await search.find("who else")
    assert after.error is None
    assert after.hits[0].id != asked_again.hits[0].id
    await search.aclose()


async def test_a_process_that_hangs_is_replaced() -> None:
    retriever = ProcessRetriever(Told, 1, timeout_s=300.0)
    [[before]] = await retriever.search_many(["who"], 1)
    retriever._timeout_s = 0.3
    with pytest.raises(TransientSearchError, match="took too long"):
        await retriever.search_many(["hang"], 1)
    retriever._timeout_s = 300.0
    [[after]] = await retriever.search_many(["who"], 1)
    assert after.id != before.id
    assert gone([int(before.id)])
    await retriever.aclose()


async def test_closing_ends_the_processes(told: ProcessRetriever) -> None:
    [[hit]] = await told.search_many(["who"], 1)
    assert is_running(int(hit.id))
    await told.aclose()
    assert gone([int(hit.id)])


def test_a_backend_that_does_not_open_says_so_in_its_own_words(tmp_path: Path) -> None:
    with pytest.raises(IndexDamagedError, match="nothing-here"):
        open_search(f"bm25:{tmp_path / 'nothing-here'}", workers=2)
    with pytest.raises(UsageError, match="at least 1"):
        ProcessRetriever(Told, 0)
    with pytest.raises(UsageError, match="index on this machine"):
        open_search("http://127.0.0.1:1/retrieve", workers=1)


def test_processes_end_with_a_parent_that_is_killed() -> None:
    code = """
import functools, sys
from parallelsearch.addresses import open_retriever
from parallelsearch.retrieval.processes import ProcessRetriever
retriever = ProcessRetriever(functools.partial(open_retriever, "demo"), 2)
print(*(retriever._idle.get()._process.pid for _ in range(2)), flush=True)
sys.stdin.read()
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    assert all(is_running(pid) for pid in pids)
    parent.kill()
    parent.communicate()
    assert gone(pids)

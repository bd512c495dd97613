"""The cache on disk: hits and misses, age and size, several processes, kill -9, damage."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import textwrap
import time

import pytest
from killed_writers import run_and_kill

from parallelsearch.errors import SearchError, TransientSearchError, UsageError
from parallelsearch.retrieval.base import DegradedHits, Hit, Retriever
from parallelsearch.retrieval.cache import CachedRetriever
from parallelsearch.retrieval.own import as_retriever
from parallelsearch.retrieval.replay import RecordingRetriever
from parallelsearch.search import Search


class Counting(Retriever):
    name = "counting"
    max_batch, max_concurrency = 5, 7

    def __init__(self, version: int = 1) -> None:
        self.version = version
        self.asked: list[str] = []

    async def search_many(self, queries, k):
        self.asked += queries
        if "down" in queries:
            raise TransientSearchError("down")
        return [self._answer(query, k) for query in queries]

    def _answer(self, query, k):
        if query == "fails":
            return SearchError("no")
        if query == "empty":
            return []
        return [
            Hit(f"{query}{n}", query, "x\x00\n😀", None, "2020", 0.1 * n, n, metadata={"page": n})
            for n in range(1, k + 1)
        ]

    def describe(self):
        return {"kind": "counting", "version": self.version}


async def test_who_asks_afresh_is_not_answered_from_the_file(tmp_path):
    inner = Counting()
    search = Search(CachedRetriever(inner, tmp_path / "cache.sqlite"), k=1, cache_size=0)
    await search.find("a")
    await asyncio.gather(search.find("a"), search.find("a", scope="one"), search.find("b", scope="two"))
    assert inner.asked == ["a", "a", "b"]
    await search.find("b")  # nor was it put there, as with the cache in memory
    assert inner.asked == ["a", "a", "b", "b"]
    await search.aclose()


async def test_an_answer_is_found_again_by_another_run_and_in_order(tmp_path):
    path = tmp_path / "deep" / "cache.sqlite"
    first = CachedRetriever(Counting(), path)
    live = await first.search_many(["a", "b"], 2)
    await first.aclose()
    inner = Counting()
    second = CachedRetriever(inner, path)
    results = await second.search_many(["c", "b", "a", "b", "\ud800"], 2)
    assert inner.asked == ["c", "\ud800"]
    assert results[1] == results[3] == live[1]
    assert results[2] == live[0]
    assert [result[0].title for result in results] == ["c", "b", "a", "b", "\ud800"]
    assert (second.num_found, second.num_faults) == (3, 0)
    assert (second.name, second.max_batch, second.max_concurrency) == ("counting", 5, 7)
    assert second.describe() == inner.describe()
    await second.search_many(["\ud800"], 2)
    assert inner.asked == ["c", "\ud800"]
    await second.aclose()


async def test_what_came_from_the_file_is_said_to_be_cached(tmp_path):
    class Odd(Counting):
        def _answer(self, query, k):
            return [Hit("1", query, "half a pair: \ud800", score=float("nan"))]  # mended on its way

    for inner in (Counting(), Odd(2)):
        cached = []
        for _ in range(2):
            kept = RecordingRetriever(CachedRetriever(inner, tmp_path / "c"), tmp_path / f"record-{inner.version}")
            search = Search(kept, k=1)
            cached += [(await search.find("a")).cached, (await search.find("a")).cached]
            await search.aclose()
        assert cached == [False, True, True, True]


async def test_k_and_the_backend_are_part_of_the_key(tmp_path):
    path = tmp_path / "c"
    for version, k in [(1, 2), (1, 3), (2, 3)]:
        inner = Counting(version)
        cached = CachedRetriever(inner, path)
        assert len((await cached.search_many(["a"], k))[0]) == k
        assert inner.asked == ["a"]
        await cached.aclose()


async def test_what_has_but_a_name_is_refused_and_what_describes_itself_is_kept_apart(tmp_path):
    def made(passage):
        def find(query):
            return [passage]

        return find

    class Named(Counting):
        describe = Retriever.describe

    for nameless in (as_retriever(made("one")), as_retriever(lambda query: []), Named()):
        with pytest.raises(UsageError, match=rf"the answers of '{nameless.name}' cannot be kept.*describe\(\)"):
            CachedRetriever(nameless, tmp_path / "c")
    for passage in ("one", "other"):
        find = made(passage)
        find.describe = lambda passage=passage: {"kind": "find", "corpus": passage}
        cached = CachedRetriever(as_retriever(find), tmp_path / "c")
        assert (await cached.search_many(["q"], 1))[0][0].text == passage
        await cached.aclose()


async def test_failures_and_empty_answers_are_asked_again(tmp_path):
    inner = Counting()
    cached = CachedRetriever(inner, tmp_path / "c")
    for _ in range(2):
        results = await cached.search_many(["fails", "empty", "a"], 1)
        assert isinstance(results[0], SearchError)
        assert results[1] == []
        with pytest.raises(TransientSearchError):
            await cached.search_many(["down"], 1)
    assert inner.asked == ["fails", "empty", "a", "down", "fails", "empty", "down"]
    await cached.aclose()


async def test_an_answer_in_part_is_asked_again(tmp_path):
    class Half(Counting):
        def _answer(self, query, k):
            return DegradedHits(super()._answer(query, k), ["dense: out of memory"])

    half = Half()
    broken = CachedRetriever(half, tmp_path / "c.db")
    (found,) = await broken.search_many(["a"], 2)
    assert found.failures == ("dense: out of memory",)
    await broken.aclose()
    whole = Counting()
    healed = CachedRetriever(whole, tmp_path / "c.db")
    await healed.search_many(["a"], 2)
    assert whole.asked == ["a"]
    await healed.aclose()


async def test_old_answers_are_asked_again(tmp_path, monkeypatch):
    inner = Counting()
    cached = CachedRetriever(inner, tmp_path / "c", ttl_s=600)
    begun_s = time.time()
    for later_s in (0, 0, 601):
        monkeypatch.setattr("time.time", lambda later_s=later_s: begun_s + later_s)
        await cached.search_many(["a"], 1)
    assert inner.asked == ["a", "a"]
    await cached.aclose()


async def test_the_least_used_answers_go_first(tmp_path):
    inner = Counting()
    cached = CachedRetriever(inner, tmp_path / "c", max_entries=10)
    for n in range(30):
        await cached.search_many(["kept", f"q{n}"], 1)
    assert inner.asked.count("kept") == 1
    await cached.search_many(["q0"], 1)
    assert inner.asked.count("q0") == 2
    await cached.aclose()
    with sqlite3.connect(tmp_path / "c") as connection:
        assert connection.execute("SELECT count(*) FROM answers").fetchone()[0] <= 10
    connection.close()


async def test_a_damaged_file_is_moved_aside_and_the_search_goes_on(tmp_path, caplog):
    path = tmp_path / "c"
    await CachedRetriever(Counting(), path).aclose()
    path.write_bytes(path.read_bytes()[:100] + b"rubbish " * 1000)
    with caplog.at_level(logging.WARNING):
        cached = CachedRetriever(Counting(), path)
    assert "damaged" in caplog.text
    (aside,) = tmp_path.glob("c.damaged-*")
    assert aside.read_bytes().endswith(b"rubbish ")
    assert len((await cached.search_many(["a"], 1))[0]) == 1
    await cached.aclose()


def test_a_file_of_somebody_else_is_refused_and_left_as_it_is(tmp_path):
    notes, small, empty, tables = (tmp_path / name for name in ("notes.txt", "small", "empty", "other.db"))
    notes.write_text("the thesis, chapter one\n" * 1000)
    small.write_text("x")
    empty.touch()
    with sqlite3.connect(tables) as connection:
        connection.execute("CREATE TABLE people (name TEXT)")
    connection.close()
    for path in (notes, small, tables):
        before = path.read_bytes()
        with pytest.raises(
            UsageError, match=r"is there and is no search cache; it is left as it is. Give another file"
        ):
            CachedRetriever(Counting(), path)
        assert path.read_bytes() == before
    assert not list(tmp_path.glob("*damaged*"))
    asyncio.run(CachedRetriever(Counting(), empty).aclose())
    assert empty.read_bytes().startswith(b"SQLite format 3")


async def test_damage_found_while_running_costs_no_answer(tmp_path, caplog):
    path = tmp_path / "c"
    cached = CachedRetriever(Counting(), path)
    for n in range(200):
        await cached.search_many([f"q{n}"], 3)
    await cached.aclose()
    with path.open("r+b") as file:  # a good first page, rubbish after it
        size = file.seek(0, 2)
        file.seek(4096)
        file.write(b"\xa5" * (size - 4096))
    cached = CachedRetriever(Counting(), path)
    with caplog.at_level(logging.WARNING):
        results = [(await cached.search_many([f"q{n}"], 3))[0] for n in range(20)]
    assert all(len(result) == 3 for result in results)
    assert cached.num_faults >= 1
    assert list(tmp_path.glob("c.damaged-*"))
    again = [(await cached.search_many([f"q{n}"], 3))[0] for n in range(20)]
    assert again == results
    assert cached.num_found > 0
    await cached.aclose()


async def test_a_locked_file_is_passed_over(tmp_path):
    inner = Counting()
    cached = CachedRetriever(inner, tmp_path / "c", lock_timeout_s=0.1)
    other = sqlite3.connect(tmp_path / "c")
    other.execute("BEGIN EXCLUSIVE")
    assert len((await cached.search_many(["a"], 1))[0]) == 1
    assert cached.num_faults == 1
    other.rollback()
    other.close()
    await cached.search_many(["a"], 1)
    await cached.search_many(["a"], 1)
    assert inner.asked == ["a", "a"]
    await cached.aclose()


def test_bad_settings_and_places_are_said(tmp_path):
    with pytest.raises(UsageError, match="ttl_s"):
        CachedRetriever(Counting(), tmp_path / "c", ttl_s=0)
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="cannot keep a search cache"):
        CachedRetriever(Counting(), tmp_path / "file" / "c")
    with sqlite3.connect(tmp_path / "v") as connection:
        connection.execute("PRAGMA user_version = 9")
    connection.close()
    with pytest.raises(UsageError, match="version 9"):
        CachedRetriever(Counting(), tmp_path / "v")


WRITER = textwrap.dedent(
    """
    import asyncio, sys
    from parallelsearch.retrieval.base import Hit, Retriever
    from parallelsearch.retrieval.cache import CachedRetriever

    class Many(Retriever):
        name = "many"
        async def search_many(self, queries, k):
            return [[Hit(q, q, "text " * 500, score=len(q), rank=1)] for q in queries]
        def describe(self):
            return {"kind": "many", "corpus": "made up"}

    async def main(path, name):
        cached = CachedRetriever(Many(), path)
        for n in range(1_000_000):
            batch = [f"{name}-{n}-{i}" for i in range(4)] + [f"both-{n}"]
            await cached.search_many(batch, 1)
            print("\\n".join(batch), cached.num_faults, flush=True)

    asyncio.run(main(sys.argv[1], sys.argv[2]))
    """
)


async def test_two_processes_share_it_and_kill_9_loses_nothing_that_was_stored(tmp_path):
    path = tmp_path / "c"
    lines = run_and_kill(WRITER, path, ("one", "two"))
    assert {line.split()[1] for line in lines if " " in line} == {"0"}  # no faults under concurrency
    answered = [line.split()[0] for line in lines]
    assert len(answered) > 100

    class Nobody(Retriever):
        name = "many"

        async def search_many(self, queries, k):
            raise AssertionError(f"not in the cache: {queries}")

        def describe(self):
            return {"kind": "many", "corpus": "made up"}

    cached = CachedRetriever(Nobody(), path)
    results = await cached.search_many(answered, 1)
    assert [result[0].id for result in results] == answered
    assert cached._thread.submit(lambda: cached._connection.execute("PRAGMA integrity_check").fetchone()).result() == (
        "ok",
    )
    await cached.aclose()

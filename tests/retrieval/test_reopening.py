"""An index that is built again while it is searched: the new one answers soon, the old one until then, and no cache stays."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from parallelsearch import Search, open_search
from parallelsearch.addresses import open_retriever
from parallelsearch.errors import UsageError
from parallelsearch.joined import JoinedRetriever
from parallelsearch.policy.scripted import ScriptedPolicy
from parallelsearch.retrieval import reopening
from parallelsearch.retrieval.base import Passage, Result
from parallelsearch.retrieval.bm25 import BM25Retriever, build_bm25
from parallelsearch.retrieval.cache import CachedRetriever
from parallelsearch.retrieval.own import OwnRetriever
from parallelsearch.retrieval.reopening import ReopeningRetriever


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reopening, "CHECK_S", 0.02)


def build(folder: Path, text: str, **metadata: str) -> None:
    build_bm25([Passage("1", "Onyx", text, metadata=metadata or None)], folder, overwrite=True)


async def text(search: Search) -> str:
    found = await search.find("onyx")
    assert found.error is None
    return found.hits[0].text


async def until(search: Search, wanted: str) -> None:
    async with asyncio.timeout(20):
        while await text(search) != wanted:  # noqa: ASYNC110 - another thread, which tells nobody
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def opened(address: str, **options: object) -> AsyncIterator[Search]:
    search = open_search(address, reopen=True, **options)
    try:
        yield search
    finally:
        await search.aclose()


@pytest.mark.parametrize("form", ["bm25:{}", "all:bm25:{}|demo", "bm25?where=group=a:{}"])
async def test_an_index_that_is_built_again_is_searched_and_no_cache_stays(tmp_path: Path, form: str) -> None:
    build(tmp_path / "live", "Onyx is run by Ada.", group="a")
    async with opened(form.format(tmp_path / "live"), cache=tmp_path / "cache.db") as search:
        assert [await text(search) for _ in range(2)] == ["Onyx is run by Ada."] * 2
        before = search.describe()
        build(tmp_path / "live", "Onyx is run by Bob.", group="a")
        await until(search, "Onyx is run by Bob.")
        assert search.describe() != before
        build(tmp_path / "live", "Onyx is run by Ada.", group="a")
        await until(search, "Onyx is run by Ada.")


async def test_one_in_processes_and_one_that_splits(tmp_path: Path) -> None:
    build(tmp_path / "live", "Onyx is run by Ada.")
    split = ScriptedPolicy({"onyx": ["<think>I look.</think><search>onyx</search>"]})
    async with (
        opened(f"bm25:{tmp_path / 'live'}", workers=1) as processes,
        opened(f"bm25:{tmp_path / 'live'}", split=split) as splitting,
    ):
        assert [await text(one) for one in (processes, splitting)] == ["Onyx is run by Ada."] * 2
        build(tmp_path / "live", "Onyx is run by Bob.")
        for one in (processes, splitting):
            await until(one, "Onyx is run by Bob.")


async def test_one_that_cannot_be_opened_leaves_the_old_one_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    folder = tmp_path / "live"
    build(folder, "Onyx is run by Ada.", group="a")
    async with opened(f"bm25?where=group=a:{folder}", cache_size=0) as search:
        build(folder, "Onyx is run by Bob.")  # has no field 'group'
        async with asyncio.timeout(20):
            while "answers on" not in caplog.text:
                assert await text(search) == "Onyx is run by Ada."
                await asyncio.sleep(0.01)
        assert "no passage of the index has a field 'group'" in caplog.text
        await asyncio.sleep(0.1)
        assert caplog.text.count("answers on") == 1  # once for each change
        folder.rename(tmp_path / "gone")
        await asyncio.sleep(0.1)
        assert await text(search) == "Onyx is run by Ada."
        build(folder, "Onyx is run by Carl.", group="a")
        await until(search, "Onyx is run by Carl.")


async def test_one_that_could_not_be_opened_is_tried_again_where_the_reason_was_elsewhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reopening, "RETRY_S", 0.02)
    build(tmp_path / "live", "Onyx is run by Ada.")
    is_full = threading.Event()

    def open_index() -> BM25Retriever:
        if is_full.is_set():
            raise OSError(28, "No space left on device")
        return BM25Retriever(tmp_path / "live")

    search = Search(ReopeningRetriever(open_index, tmp_path / "live", lambda: None), cache_size=0)
    is_full.set()
    build(tmp_path / "live", "Onyx is run by Bob.")
    async with asyncio.timeout(20):
        while "No space left" not in caplog.text:  # noqa: ASYNC110 - another thread, which tells nobody
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert await text(search) == "Onyx is run by Ada."
    assert caplog.text.count("No space left") == 1
    is_full.clear()
    await until(search, "Onyx is run by Bob.")
    await search.aclose()


@pytest.mark.parametrize("words", ["Onyx is run by Bob.", "Onyx is no longer run by Ada but by Bob."])
async def test_one_that_is_copied_into_the_folder_file_by_file_is_searched_in_the_end(
    tmp_path: Path, words: str
) -> None:
    build(tmp_path / "live", "Onyx is run by Ada.")
    build(tmp_path / "new", words)
    async with opened(f"bm25:{tmp_path / 'live'}") as search:
        assert await text(search) == "Onyx is run by Ada."
        for file in sorted((tmp_path / "new").iterdir()):  # as rsync does; the manifest comes before the passages
            shutil.copy2(file, tmp_path / "live" / f".{file.name}.x")
            (tmp_path / "live" / f".{file.name}.x").rename(tmp_path / "live" / file.name)
            await asyncio.sleep(0.05)
        await until(search, words)


async def test_the_old_one_is_closed_after_its_last_call(tmp_path: Path) -> None:
    build(tmp_path / "live", "Onyx is run by Ada.")
    indexes: list[Slow] = []

    class Slow(BM25Retriever):
        is_closed = False

        def __init__(self) -> None:
            super().__init__(tmp_path / "live")
            self.go = asyncio.Event()
            indexes.append(self)

        async def search_many(self, queries: list[str], k: int) -> list[Result]:
            await self.go.wait()
            return await super().search_many(queries, k)

        async def aclose(self) -> None:
            self.is_closed = True
            await super().aclose()

    changed = asyncio.Event()
    loop = asyncio.get_running_loop()
    index = ReopeningRetriever(Slow, tmp_path / "live", lambda: loop.call_soon_threadsafe(changed.set))
    call = asyncio.create_task(index.search_many(["onyx"], 1))
    await asyncio.sleep(0)
    build(tmp_path / "live", "Onyx is run by Bob.")
    await asyncio.wait_for(changed.wait(), 20)
    assert not indexes[0].is_closed
    indexes[0].go.set()
    ((hit,),) = await call
    assert hit.text == "Onyx is run by Ada."
    assert [one.is_closed for one in indexes] == [True, False]
    await index.aclose()
    assert indexes[1].is_closed


async def test_nothing_is_held_of_the_indexes_before(tmp_path: Path) -> None:
    folder = tmp_path / "live"
    build(folder, "Onyx 0")

    def opened_now() -> int:
        gc.collect()
        return sum(isinstance(one, BM25Retriever) for one in gc.get_objects())

    async with opened(f"bm25:{folder}") as search:
        assert await text(search) == "Onyx 0"
        before = opened_now()
        for number in range(1, 6):
            build(folder, f"Onyx {number}")
            await until(search, f"Onyx {number}")
        async with asyncio.timeout(20):
            while opened_now() > before:  # noqa: ASYNC110 - the thread closes the last one after the new one answers
                await asyncio.sleep(0.01)


async def test_what_was_on_its_way_is_not_kept(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def slow(query: str) -> list[str]:
        await go.wait()
        return ["old"]

    search = Search(slow)
    asked = asyncio.create_task(search.find("onyx"))
    await asyncio.sleep(0.01)
    search.forget()
    go.set()
    assert (await asked).hits[0].text == "old"
    assert not (await search.find("onyx")).cached
    assert (await search.find("onyx")).cached
    await search.aclose()


async def test_who_asks_after_the_change_does_not_share_what_was_on_its_way(tmp_path: Path) -> None:
    # A search above this one would keep the old answer: it was forgotten, too, and is asked for the first time.
    answers, busy = [asyncio.get_running_loop().create_future() for _ in range(2)], []

    async def slow(query: str) -> list[str]:
        return [await answers[len(asked) - 1]]

    search = Search(slow)
    search.on_busy = busy.append
    asked = [asyncio.create_task(search.find("onyx"))]
    await asyncio.sleep(0.01)
    search.forget()
    asked.append(asyncio.create_task(search.find("onyx")))
    await asyncio.sleep(0.01)
    answers[1].set_result("new")
    assert (await asked[1]).hits[0].text == "new"
    answers[0].set_result("old")
    assert (await asked[0]).hits[0].text == "old"
    assert (await search.find("onyx")).hits[0].text == "new"
    assert sorted(busy) == [False, False, True, True]
    await search.aclose()


async def test_nor_does_a_search_of_several(tmp_path: Path) -> None:
    answers = [asyncio.get_running_loop().create_future() for _ in range(2)]

    async def slow(query: str) -> list[str]:
        return [await answers[len(asked) - 1]]

    class Inner(OwnRetriever):
        def describe(self) -> dict[str, str]:
            return {"kind": "slow", "corpus": "one"}

    parts = [Inner(slow, slow, takes_many=False), open_retriever("demo")]
    search = Search(CachedRetriever(JoinedRetriever(parts), tmp_path / "cache.db"))
    asked = [asyncio.create_task(search.find("onyx"))]
    await asyncio.sleep(0.05)
    search.forget()
    asked.append(asyncio.create_task(search.find("onyx")))
    await asyncio.sleep(0.05)
    answers[1].set_result("new")
    answers[0].set_result("old")
    assert (await asked[1]).hits[0].text == "new"
    await asked[0]
    await search.aclose()


def test_without_it_nothing_is_watched_and_a_recording_is_of_one_index(tmp_path: Path) -> None:
    build(tmp_path / "live", "Onyx is run by Ada.")
    assert type(open_retriever(f"bm25:{tmp_path / 'live'}")) is BM25Retriever
    with pytest.raises(UsageError, match="a recording is of one index"):
        open_search(f"bm25:{tmp_path / 'live'}", reopen=True, record=tmp_path / "r.jsonl")


def test_a_server_notices_that_its_index_was_built_again(tmp_path: Path) -> None:
    build(tmp_path / "live", "Onyx is run by Ada.")
    command = [sys.executable, "-m", "parallelsearch", "serve", "search", "--search", "bm25:live", "--port", "0"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stderr=log, cwd=tmp_path)
    try:
        until_s = time.monotonic() + 60
        while not (lines := [one for one in (tmp_path / "log").read_text().splitlines() if '"listening"' in one]):
            assert process.poll() is None
            assert time.monotonic() < until_s
            time.sleep(0.05)
        url = json.loads(lines[0])["url"]

        def found() -> str:
            body = json.dumps({"queries": ["onyx"]}).encode()
            request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=20) as answer:
                return str(json.load(answer)["result"])

        assert "Ada" in found()
        build(tmp_path / "live", "Onyx is run by Bob.")
        while "Bob" not in found():
            assert time.monotonic() < until_s
            time.sleep(0.1)
    finally:
        process.terminate()
        process.wait(60)

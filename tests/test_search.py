import asyncio
import threading
import time
from collections.abc import Sequence

import numpy as np
import pytest

from parallelsearch.errors import SearchError, SearchTimeoutError, TransientSearchError, UsageError
from parallelsearch.retrieval.base import DegradedHits, Hit, Result, Retriever
from parallelsearch.search import Search
from virtual_time import in_virtual_time


@in_virtual_time
async def test_all_queries_of_a_turn_run_at_the_same_time(echo):
    retriever = echo(latency_s=0.1, max_batch=1, max_concurrency=16)
    search = Search(retriever)
    start = time.perf_counter()
    found = await search.search_many([f"q{n}" for n in range(16)])
    assert time.perf_counter() - start == pytest.approx(0.1, abs=0.01)
    assert [f.text for f in found] == [f"q{n}" for n in range(16)]
    assert retriever.max_running == 16


@in_virtual_time
async def test_waiting_queries_of_different_callers_share_a_call(echo):
    retriever = echo(latency_s=0.02)
    search = Search(retriever)
    await asyncio.gather(*(search.search_many([f"{n}a", f"{n}b"]) for n in range(10)))
    assert len(retriever.calls) == 1
    assert len(retriever.calls[0]) == 20


@in_virtual_time
async def test_what_arrives_while_the_backend_is_busy_goes_out_together(echo):
    retriever = echo(latency_s=0.05)
    search = Search(retriever)
    first = asyncio.create_task(search.find("first"))
    await asyncio.sleep(0.02)
    await asyncio.gather(first, *(search.find(f"later {n}") for n in range(8)))
    assert [len(call) for call in retriever.calls] == [1, 8]


@in_virtual_time
async def test_identical_queries_in_flight_are_asked_once_and_answers_are_cached(echo):
    retriever = echo(latency_s=0.02)
    search = Search(retriever)
    found = await search.search_many(["same", " same  ", "same"])
    again = await search.find("same")
    assert retriever.calls == [["same"]]
    assert all(f.hits == found[0].hits for f in [*found, again])
    assert (again.cached, found[0].cached) == (True, False)
    assert (search.stats.num_shared, search.stats.num_cached) == (2, 1)


@in_virtual_time
async def test_the_cache_forgets_the_oldest(echo):
    search = Search(echo(), cache_size=2)
    for query in ("a", "b", "a", "c", "a"):
        await search.find(query)
    assert (await search.find("a")).cached
    assert not (await search.find("b")).cached


@in_virtual_time
async def test_an_answer_with_a_part_missing_is_not_cached(echo):
    retriever = echo()
    retriever._answer = lambda query, k: DegradedHits([], failures=["dense: down"])
    search = Search(retriever)
    await search.find("a")
    assert not (await search.find("a")).cached


@in_virtual_time
async def test_a_failed_query_is_a_value_and_the_others_count(echo):
    search = Search(echo(fails=lambda query: SearchError("no") if query == "bad" else None))
    found = await search.search_many(["a", "bad", "b"])
    assert [f.error is None for f in found] == [True, False, True]
    assert str(found[1].error) == "no"


@in_virtual_time
async def test_a_bug_in_a_backend_is_a_value_too(echo):
    search = Search(echo(fails=lambda query: ValueError("boom")))
    found = await search.search_many(["a", "b"])
    assert all("echo failed: ValueError: boom" in str(f.error) for f in found)


@in_virtual_time
async def test_transient_failures_are_repeated_alone(echo):
    tries = {"flaky": 0}

    def fails(query):
        if query == "flaky":
            tries["flaky"] += 1
            return TransientSearchError("busy") if tries["flaky"] < 3 else None
        return None

    retriever = echo(fails=fails)
    search = Search(retriever, first_wait_s=0.01)
    found = await search.search_many(["a", "flaky", "b"])
    assert all(f.error is None for f in found)
    assert retriever.calls == [["a", "flaky", "b"], ["flaky"], ["flaky"]]
    assert search.stats.num_retries == 2


@in_virtual_time
async def test_attempts_run_out(echo):
    retriever = echo(fails=lambda query: TransientSearchError("busy"))
    found = await Search(retriever, attempts=2, first_wait_s=0.01).find("a")
    assert str(found.error) == "busy"
    assert len(retriever.calls) == 2


@in_virtual_time
async def test_retry_after_wins_over_back_off(echo):
    times = []

    def fails(query):
        times.append(time.perf_counter())
        return TransientSearchError("busy", retry_after_s=0.3) if len(times) == 1 else None

    await Search(echo(fails=fails), first_wait_s=0.001).find("a")
    assert times[1] - times[0] == pytest.approx(0.3, abs=0.01)


@in_virtual_time
async def test_a_retry_after_beyond_the_time_out_fails_at_once(echo):
    search = Search(echo(fails=lambda query: TransientSearchError("busy", retry_after_s=60)), timeout_s=1)
    start = time.perf_counter()
    found = await search.find("a")
    assert time.perf_counter() - start < 0.01
    assert "asks for 60 s" in str(found.error)


@in_virtual_time
async def test_the_time_out_is_per_query_and_frees_the_backend(echo):
    slow = {"slow"}
    retriever = echo(latency_s=0)
    original = retriever.search_many

    async def search_many(queries, k):
        if slow & set(queries):
            await asyncio.sleep(30)
        return await original(queries, k)

    retriever.search_many = search_many
    retriever.max_batch = 1
    search = Search(retriever, timeout_s=0.1, max_batch=1)
    start = time.perf_counter()
    found = await search.find("slow")
    assert isinstance(found.error, SearchTimeoutError)
    assert (await search.find("fast")).error is None
    assert time.perf_counter() - start == pytest.approx(0.1, abs=0.01)


@in_virtual_time
async def test_a_backend_that_may_take_longer_is_waited_for(echo):
    patient = echo(latency_s=50)
    patient.timeout_s = 60.0
    assert (await Search(patient).find("q")).error is None
    assert isinstance((await Search(echo(latency_s=50)).find("q")).error, SearchTimeoutError)
    assert isinstance((await Search(patient, timeout_s=5).find("q")).error, SearchTimeoutError)  # the caller's own word


@in_virtual_time
async def test_a_wrong_number_of_results_is_an_error(echo):
    retriever = echo()

    async def search_many(queries, k):
        return []

    retriever.search_many = search_many
    found = await Search(retriever).search_many(["a", "b"])
    assert all("gave 0 results for 2 queries" in str(f.error) for f in found)


@in_virtual_time
async def test_the_rate_is_kept(echo):
    retriever = echo(max_batch=1, max_concurrency=20)
    search = Search(retriever, rate_per_s=20)
    start = time.perf_counter()
    await search.search_many([f"q{n}" for n in range(30)])
    assert time.perf_counter() - start == pytest.approx(0.5, abs=0.06)  # 20 at once, the other 10 at 20 a second


@in_virtual_time
async def test_concurrency_is_bounded(echo):
    retriever = echo(latency_s=0.01, max_batch=1, max_concurrency=3)
    await Search(retriever).search_many([f"q{n}" for n in range(20)])
    assert retriever.max_running == 3


@pytest.mark.parametrize(
    ("query", "k", "words"),
    [("", 3, "empty"), ("x" * 5000, 3, "5000 characters"), ("a", 0, "k is"), ("a", 10**6, "k is")],
)
@in_virtual_time
async def test_bad_queries_are_values(echo, query, k, words):
    assert words in str((await Search(echo()).find(query, k)).error)


@in_virtual_time
async def test_a_full_queue_refuses(echo):
    search = Search(echo(latency_s=0.05), max_waiting=3)
    found = await search.search_many([f"q{n}" for n in range(6)])
    assert sum(f.error is not None for f in found) == 3
    assert "queue is full" in str(found[-1].error)


@in_virtual_time
async def test_cancelling_one_caller_leaves_the_other_its_answer(echo):
    search = Search(echo(latency_s=0.05))
    first, second = asyncio.create_task(search.find("same")), asyncio.create_task(search.find("same"))
    await asyncio.sleep(0.01)
    first.cancel()
    assert (await second).error is None


@in_virtual_time
async def test_an_abandoned_query_is_not_sent(echo):
    retriever = echo(latency_s=0.05)
    search = Search(retriever)
    running = asyncio.create_task(search.find("first"))
    await asyncio.sleep(0.01)
    gone = asyncio.create_task(search.find("gone"))
    await asyncio.sleep(0.01)
    gone.cancel()
    await running
    await search.find("last")
    assert retriever.calls == [["first"], ["last"]]


def test_a_search_outlives_its_event_loop(echo):
    search = Search(echo(latency_s=0.01), rate_per_s=100)
    for query in ("a", "b"):
        assert asyncio.run(search.find(query)).error is None


def test_wrong_settings_are_refused(echo):
    for settings in (
        {"k": 0},
        {"timeout_s": 0},
        {"timeout_s": "5"},
        {"attempts": 0},
        {"attempts": 1.5},
        {"max_k": "9"},
    ):
        with pytest.raises(UsageError):
            Search(echo(), **settings)


async def test_a_search_that_was_closed_says_so_also_for_what_it_has_kept(echo):
    search = Search(echo())
    assert (await search.find("a")).error is None
    await search.aclose()
    await search.aclose()
    for call in (search.find("a"), search.find("b"), search.search_many(["a"])):
        with pytest.raises(UsageError, match="this search was closed and answers no more; make another one"):
            await call


async def test_closing_ends_the_waiting_at_once_in_every_loop(echo):
    """What is being asked, what waits for room, and what waits for another try: each with a failure as its value."""

    class Slow:
        max_concurrency = 1

        async def search_many(self, queries, k):
            if queries != ["again"]:
                await asyncio.sleep(60)
            return [TransientSearchError("not now", 20.0)]

    search = Search(Slow(), max_batch=1, max_concurrency=2)
    busy = []
    search.on_busy = busy.append
    elsewhere = []
    thread = threading.Thread(target=lambda: elsewhere.append(asyncio.run(search.find("there"))))
    thread.start()
    tasks = [asyncio.create_task(search.find(query)) for query in ("again", "here", "and here", "queued")]
    await asyncio.sleep(0.3)
    start_s = time.perf_counter()
    await search.aclose()
    found = await asyncio.gather(*tasks)
    await asyncio.to_thread(thread.join, 20)
    assert time.perf_counter() - start_s < 5
    assert [str(one.error) for one in [*found, *elsewhere]] == ["the search was closed while it was asked"] * 5
    assert busy.count(True) == busy.count(False) == 5


async def test_metadata_that_cannot_be_compared_costs_no_query() -> None:
    class Vectors(Retriever):
        name = "vectors"

        async def search_many(self, queries: Sequence[str], k: int) -> list[Result]:
            return [[Hit("1", "T", "text", metadata={"vector": np.array([1.0, 2.0]), "page": 3})] for _ in queries]

    async with asyncio.timeout(5):
        found = await Search(Vectors()).find("q")
    assert [hit.metadata for hit in found.hits] == [{"vector": "[1. 2.]", "page": 3}]

"""Backends of the caller's own: objects and functions, blocking and async, whatever their hits look like."""

import asyncio
import functools
import threading
import time

import pytest

from parallelsearch import Agent, Hit, Passage, Retriever, Search, SearchError
from parallelsearch.errors import UsageError
from parallelsearch.retrieval.own import as_retriever

Q = "Who is older, Claude Monet or Camille Pissarro?"


class AsyncObject:
    async def search_many(self, queries, k):
        return [[("Title", f"about {query}")] * k for query in queries]


class BlockingObject:
    name = "shelf"
    closed = False

    def search_many(self, queries, k):
        return [[f"about {query}"] for query in queries]

    def describe(self):
        return {"kind": "shelf", "size": 3}

    def close(self):
        self.closed = True


class Callable:
    def __call__(self, queries: list[str], k: int):
        return [[{"text": f"about {query}", "title": "Title"}] for query in queries]


async def many_async(queries, k):
    return [[Hit("1", "Title", f"about {query}")] for query in queries]


def many(queries, k):
    return [[Passage("1", "Title", f"about {query}")] for query in queries]


def one(query, k):
    return [{"text": f"about {query}", "id": 7, "score": 2, "url": "https://example.org"}]


async def one_async(query: str, top: int = 3):
    return [f"about {query}"]


def without_k(query):
    return [f"about {query}", "more", "and more", "and still more"]


def odd_name(wanted: str, k):
    return [f"about {wanted}"]


ALL = [AsyncObject(), BlockingObject(), Callable(), many_async, many, one, one_async, without_k, odd_name]
ALL += [functools.partial(one, k=2), AsyncObject().search_many, lambda queries, k: many(queries, k)]


@pytest.mark.parametrize("backend", ALL, ids=lambda backend: getattr(backend, "__name__", type(backend).__name__))
async def test_objects_and_functions_are_backends(backend):
    search = Search(backend, k=3)
    founds = await search.search_many(["Monet", "Pissarro"])
    assert [found.error for found in founds] == [None, None]
    assert [found.hits[0].text for found in founds] == ["about Monet", "about Pissarro"]
    assert all(hit.rank == place for found in founds for place, hit in enumerate(found.hits, 1))
    assert all(isinstance(hit.id, str) and hit.id for found in founds for hit in found.hits)
    assert all(len(found.hits) <= 3 for found in founds)
    await search.aclose()


def test_an_agent_takes_them_as_they_are():
    with Agent("demo", AsyncObject()) as agent:
        assert agent.ask(Q).answer == "Camille Pissarro"
    shelf = BlockingObject()
    with Agent("demo", shelf, k=2) as agent:
        trajectory = agent.ask(Q)
    assert trajectory.search == {"kind": "shelf", "size": 3, "k": 2}
    assert shelf.closed
    with Agent("demo", one) as agent:
        assert [hit.url for hit in agent.ask(Q).queries[0].hits] == ["https://example.org"]


async def test_blocking_functions_of_one_query_run_at_once_and_off_the_loop():
    together, threads = threading.Barrier(3, timeout=400), set()

    def slow(query, k):
        threads.add(threading.current_thread())
        together.wait()  # only if all three are under way at once does this end
        return [query]

    search = Search(slow)
    assert [found.error for found in await search.search_many(["a", "b", "c"])] == [None] * 3
    assert threading.main_thread() not in threads
    await search.aclose()


async def test_one_that_must_not_run_twice_at_once_is_not():
    at_once = most = 0

    def careful(query, k):
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        time.sleep(0.002)
        at_once -= 1
        return []

    search = Search(careful, max_concurrency=1)
    await search.search_many([str(number) for number in range(20)])
    assert most == 1
    await search.aclose()


async def test_the_same_passage_has_the_same_id():
    first, second = await Search(lambda query, k: [("Title", "the same")]).search_many(["a", "b"])
    assert first.hits[0].id == second.hits[0].id


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (3.5, "a float where the hits of a query belong"),
        ("text", "a str where the hits of a query belong"),
        ([3], "an int as a hit; a hit is a Hit, a dict with 'text', a pair (title, text) or a string"),
        ([{"body": "x", "name": "y"}], "a hit without a 'text' (it has: body, name)"),
        ([("a", "b", "c")], "a tuple as a hit"),
        ([{"text": "x", "score": "high"}], "could not convert string to float"),
        (SearchError("closed today"), "closed today"),
        (OSError("gone"), "gone"),
    ],
)
async def test_what_is_no_hit_is_the_error_of_its_query_alone(given, said):
    def backend(queries, k):
        return [given if query == "bad" else [query] for query in queries]

    bad, good = await Search(backend, attempts=1).search_many(["bad", "good"])
    assert said in str(bad.error)
    assert [hit.text for hit in good.hits] == ["good"]


async def test_one_failing_query_of_a_function_leaves_the_others():
    def backend(query, k):
        if query == "bad":
            raise LookupError("no such thing")
        return [query]

    bad, good = await Search(backend).search_many(["bad", "good"])
    assert "LookupError: no such thing" in str(bad.error)
    assert good.hits


@pytest.mark.parametrize("error", [StopIteration("none"), SystemExit("quota")])
async def test_what_would_end_a_loop_is_the_error_of_its_query(error):
    def find(query):
        raise error

    search = Search(as_retriever(find), timeout_s=20)
    found = await asyncio.wait_for(search.find("a"), 10)
    assert f"find failed: {type(error).__name__}" in str(found.error)
    await search.aclose()


async def test_a_backend_that_cancels_itself_has_failed():
    class Tired:
        async def search_many(self, queries, k):
            raise asyncio.CancelledError

    search = Search(as_retriever(Tired()), timeout_s=20)
    found = await asyncio.wait_for(search.find("a"), 10)
    assert "cancelled its own search" in str(found.error)
    await search.aclose()


async def test_too_few_results_are_said():
    (found, _) = await Search(lambda queries, k: [[]]).search_many(["a", "b"])
    assert "gave 1 results for 2 queries" in str(found.error)
    (found,) = await Search(lambda queries, k: "text").search_many(["a"])
    assert "gave a str, not a list with the hits of each query" in str(found.error)


class NoMethod:
    pass


@pytest.mark.parametrize(
    ("backend", "said"),
    [
        (NoMethod(), "a NoMethod is no search backend: it has no method search_many and cannot be called"),
        (AsyncObject, "AsyncObject is a class; give one of it"),
        (lambda: None, "takes nothing; a search function takes (queries, k) or (query, k)"),
        (lambda x, k: [], "does not say whether it takes one query or all of them"),
        (lambda query, k, index: [], "cannot be called as (query, k)"),
        (3, "an int is no search backend"),
    ],
)
def test_what_cannot_be_a_backend_is_told_what_it_lacks(backend, said):
    with pytest.raises(UsageError) as error:
        Agent("demo", backend)
    assert said in str(error.value)


def test_a_retriever_stays_what_it_is():
    class Own(Retriever):
        async def search_many(self, queries, k):
            return [[] for _ in queries]

    own = Own()
    assert as_retriever(own) is own


async def test_what_looks_blocking_and_is_not_is_awaited():
    def wrapped(queries, k):
        async def later():
            await asyncio.sleep(0)
            return [[query] for query in queries]

        return later()

    (found,) = await Search(wrapped).search_many(["a"])
    assert [hit.text for hit in found.hits] == ["a"]

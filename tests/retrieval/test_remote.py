"""The client for `/retrieve` servers against a real server on loopback that answers well, badly, or not at all."""

from __future__ import annotations

import asyncio
import json
import time

import pytest
from search_fault_server import FaultServer, Reply, Request, good

from free_ports import free_port
from parallelsearch.errors import SearchError, SearchTimeoutError, TransientSearchError, UsageError
from parallelsearch.retrieval.base import DegradedHits, Hit
from parallelsearch.retrieval.remote import RemoteRetriever, document_of, error_of, read_reply
from parallelsearch.search import Found, Search
from parallelsearch.server.search_server import reply_of


async def ask(retriever: RemoteRetriever, *queries: str, k: int = 2) -> list:
    try:
        return await retriever.search_many(queries, k)
    finally:
        await retriever.aclose()


# ---- shapes ----------------------------------------------------------------------------------------------------------


async def test_asks_in_one_post_and_reads_search_r1_documents_with_scores():
    async with FaultServer() as server:
        results = await ask(RemoteRetriever(server.url), "a", "b")
        assert [request.json for request in server.requests] == [
            {"queries": ["a", "b"], "topk": 2, "return_scores": True}
        ]
    assert results[0] == [
        Hit("a-1", "Title of a", "body 1", score=1.0, rank=1),
        Hit("a-2", "Title of a", "body 2", score=0.5, rank=2),
    ]
    assert results[1][0].id == "b-1"


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({"id": 7, "title": "T", "text": "x", "contents": '"T"\nx'}, Hit("7", "T", "x", rank=1)),
        ({"document": {"id": "7", "title": "T", "text": "x"}, "score": 2}, Hit("7", "T", "x", score=2.0, rank=1)),
        ({"document": {"id": "7", "title": "T", "text": "x"}, "score": None}, Hit("7", "T", "x", rank=1)),
        (
            {"document": {"id": "u", "title": "T", "text": "x", "url": "http://u", "date": "2020"}},
            Hit("u", "T", "x", "http://u", "2020", rank=1),
        ),
    ],
)
def test_reads_documents_with_and_without_scores(item, expected):
    assert read_reply(json.dumps({"result": [[item]]}).encode(), 1, 3) == [[expected]]


@pytest.mark.parametrize("item", [{"document": {"contents": '"Tea"\nhot'}}, {"document": '"Tea"\nhot', "score": 1.0}])
def test_a_document_without_id_gets_one_that_does_not_change(item):
    (first,), (second,) = (read_reply(json.dumps({"result": [[item]]}).encode(), 1, 3) for _ in range(2))
    assert first == second
    assert (first[0].title, first[0].text) == ("Tea", "hot")
    assert len(first[0].id) == 16


def test_more_items_than_asked_for_are_cut_as_serpapi_needs():
    items = [{"document": {"contents": f'"T"\n{n}'}} for n in range(7)]
    (hits,) = read_reply(json.dumps({"result": [items]}).encode(), 1, 3)
    assert [(hit.text, hit.rank) for hit in hits] == [("0", 1), ("1", 2), ("2", 3)]


def test_failures_that_our_server_puts_beside_the_results_stand_in_their_places():
    body = {
        "result": [[], [], [], []],
        "errors": {"1": error_of(TransientSearchError("busy")), "2": error_of(SearchTimeoutError("late")), "3": "odd"},
    }
    results = read_reply(json.dumps(body).encode(), 4, 3)
    assert results[0] == []
    assert [type(result) for result in results[1:]] == [TransientSearchError, SearchTimeoutError, SearchError]
    assert [str(result) for result in results[1:]] == ["busy", "late", "odd"]


def test_an_unreadable_passage_fails_its_query_only():
    body = {"result": [[{"document": {"id": "1"}}], [{"document": {"contents": '"T"\nx'}}], "what", [3]]}
    results = read_reply(json.dumps(body).encode(), 4, 3)
    assert isinstance(results[0], SearchError)
    assert "text" in str(results[0])
    assert results[1][0].title == "T"
    assert all(isinstance(result, SearchError) for result in results[2:])


def test_what_the_server_writes_is_what_the_client_reads():
    hit = Hit(
        "1", 'The "Big" One', "line 1\nline 2", "http://u", "2021-01-01", 0.25, 1, metadata={"page": 3, "by": ["A"]}
    )
    body = {"result": [[{"document": document_of(hit), "score": hit.score}]]}
    assert read_reply(json.dumps(body).encode(), 1, 1) == [[hit]]


async def test_an_answer_in_part_is_said_and_not_kept():
    """As our server sends it: what was missing travels, and the next time the query is asked again."""
    hit = Hit("1", "Paris", "Paris is a city.", None, None, 1.0, 1)
    half = reply_of([Found("a", DegradedHits([hit], ["dense: out of memory"])), Found("b", [hit])], True)
    assert half["degraded"] == {"0": ["dense: out of memory"]}
    assert "degraded" not in reply_of([Found("b", [hit])], True)
    first, second = read_reply(json.dumps(half).encode(), 2, 3)
    assert (first.failures, type(second)) == (("dense: out of memory",), list)
    for odd in ([], {"0": "x"}, {"0": []}, {"7": ["x"]}):
        (found,) = read_reply(json.dumps({"result": [[]], "degraded": odd}).encode(), 1, 3)
        assert type(found) is list

    one = {key: value[:1] if key == "result" else value for key, value in half.items()}
    async with FaultServer(Reply(one)) as server:
        search = Search(RemoteRetriever(server.url))
        answers = [await search.find("a") for _ in range(2)]
        await search.aclose()
    assert [answer.cached for answer in answers] == [False, False]
    assert all(isinstance(answer.hits, DegradedHits) for answer in answers)


# ---- faults ----------------------------------------------------------------------------------------------------------

FAULTS = {
    "429": (Reply({"detail": "slow down"}, 429, {"Retry-After": "7"}), TransientSearchError, "429"),
    "500": (Reply("Internal Server Error", 500), TransientSearchError, "500"),
    "503": (
        Reply({"detail": "the queue is full"}, 503, {"Retry-After": "0.05"}),
        TransientSearchError,
        "queue is full",
    ),
    "404": (Reply({"detail": "Not Found"}, 404), SearchError, "404"),
    "redirect": (Reply("", 302, {"Location": "http://elsewhere/"}), SearchError, "redirects to http://elsewhere/"),
    "garbage": (Reply(b"\x00\xff<html>"), TransientSearchError, "not JSON"),
    "no body": (Reply(b""), TransientSearchError, "empty"),
    "other JSON": (Reply({"results": []}), TransientSearchError, 'no list "result"'),
    "deep JSON": (Reply(b"[" * 200_000), TransientSearchError, "not JSON"),
    "half a body": (Reply({"result": [[], []]}, cut_after=9), TransientSearchError, "broke the connection off"),
    "too few results": (Reply({"result": [[]]}), TransientSearchError, "1 results for 2 queries"),
    "too many results": (Reply({"result": [[], [], []]}), TransientSearchError, "3 results for 2 queries"),
    "closes the socket": (Reply(closes=True), TransientSearchError, "broke the connection off"),
    "hangs": (Reply(hangs=True), SearchTimeoutError, "within 1 s"),
    "drips": (Reply({"result": [[], []]}, drip_s=0.2), SearchTimeoutError, "within 1 s"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_each_fault_is_an_error_that_names_it(fault):
    reply, error_type, message = FAULTS[fault]
    timeout_s = 1 if error_type is SearchTimeoutError else 60
    async with FaultServer(reply) as server:
        with pytest.raises(error_type) as caught:
            await ask(RemoteRetriever(server.url, timeout_s=timeout_s), "a", "b")
    assert type(caught.value) is error_type
    assert message in str(caught.value)
    if fault == "429":
        assert caught.value.retry_after_s == 7


@pytest.mark.parametrize(
    "fault", [name for name, row in FAULTS.items() if row[1] is TransientSearchError and name != "429"]
)
async def test_a_passing_fault_costs_a_retry_and_no_query(fault):
    async with FaultServer(FAULTS[fault][0], good) as server:
        search = Search(RemoteRetriever(server.url, timeout_s=30), timeout_s=90, first_wait_s=0.01)
        found = await search.search_many(["a", "b"])
        await search.aclose()
    assert [one.error for one in found] == [None, None]
    assert [one.hits[0].id for one in found] == ["a-1", "b-1"]


async def test_an_unknown_host_and_a_closed_port_fail_at_once():
    with pytest.raises(SearchError, match=r"no-such-host\.invalid"):
        await ask(RemoteRetriever("http://no-such-host.invalid/retrieve", timeout_s=5), "a")
    with pytest.raises(TransientSearchError, match="refused the connection"):
        await ask(RemoteRetriever(f"http://127.0.0.1:{free_port()}/retrieve"), "a")


async def test_one_query_of_fifty_fails_and_the_others_count():
    def one_fails(request: Request) -> Reply:
        reply = good(request).body
        bad = request.json["queries"].index("q13")
        reply["result"][bad] = []
        return Reply({**reply, "errors": {str(bad): {"kind": "failed", "message": "index shard 3 is gone"}}})

    async with FaultServer(one_fails) as server:
        search = Search(RemoteRetriever(server.url))
        found = await search.search_many([f"q{n}" for n in range(50)])
        await search.aclose()
    assert [one.text for one in found if one.error] == ["q13"]
    assert "shard 3" in str(found[13].error)
    assert all(one.hits for one in found if one.text != "q13")


def refuses_long(request: Request) -> Reply:
    too_long = [i for i, query in enumerate(request.json["queries"]) if len(query) > 1000]
    return Reply({"detail": f"query number {too_long[0]} is too long"}, 422) if too_long else good(request)


async def test_a_query_the_server_refuses_does_not_sink_its_batch():
    queries = [f"q{n}" for n in range(50)]
    queries[31] = "x" * 100_000
    async with FaultServer(refuses_long) as server:
        results = await ask(RemoteRetriever(server.url), *queries)
        assert len(server.requests) <= 2 * 6 + 1
    assert [i for i, result in enumerate(results) if isinstance(result, SearchError)] == [31]
    assert "too long" in str(results[31])
    assert [result[0].id for i, result in enumerate(results) if i != 31] == [f"q{n}-1" for n in range(50) if n != 31]


async def test_a_server_that_refuses_everything_is_not_asked_for_ever():
    async with FaultServer(Reply({"detail": "topk must be from 1 to 10"}, 422)) as server:
        results = await ask(RemoteRetriever(server.url), *(f"q{n}" for n in range(64)))
        assert len(server.requests) < 24
    assert len(results) == 64
    assert all("topk" in str(result) for result in results)


@pytest.mark.parametrize("query", ["\x00\x01\x1b[31m", "\ud800 alone", "😀" * 500, "a ## b </search>", "x" * 100_000])
async def test_odd_queries_arrive_as_they_are(query):
    async with FaultServer() as server:
        results = await ask(RemoteRetriever(server.url), query)
        assert server.requests[0].json["queries"] == [query]
    assert len(results[0]) == 2


# ---- replicas --------------------------------------------------------------------------------------------------------


async def test_calls_go_round_the_replicas():
    async with FaultServer() as one, FaultServer() as two:
        retriever = RemoteRetriever(f"{one.url}, {two.url}")
        for n in range(6):
            await retriever.search_many([f"q{n}"], 1)
        await retriever.aclose()
        assert (len(one.requests), len(two.requests)) == (3, 3)
        assert (one.num_connections, two.num_connections) == (1, 1)  # connections are kept


async def test_a_dead_replica_rests_longer_each_time_and_is_taken_back_when_it_lives():
    port = free_port()
    async with FaultServer() as alive:
        retriever = RemoteRetriever([f"http://127.0.0.1:{port}", alive.url], first_rest_s=10, max_rest_s=500)
        for n in range(8):
            assert (await retriever.search_many([f"q{n}"], 1))[0][0].id == f"q{n}-1"
        dead = retriever._replicas[0]
        assert dead.num_failures == 1  # the other seven calls did not try it
        for failures in (2, 3):
            dead.rests_until_s = start_s = time.monotonic()  # as if it had rested
            await retriever.search_many(["again"], 1)
            assert dead.num_failures == failures
            rest_s = 10 * 2 ** (failures - 1)
            assert start_s + rest_s <= dead.rests_until_s <= time.monotonic() + rest_s
        async with FaultServer(port=port) as back:
            dead.rests_until_s = time.monotonic()
            for n in range(4):
                await retriever.search_many([f"r{n}"], 1)
            assert len(back.requests) >= 2
            assert dead.num_failures == 0
        await retriever.aclose()


async def test_a_resting_replica_is_probed_by_one_call_at_a_time():
    async with FaultServer(Reply(status=500), Reply(hangs=True)) as sick, FaultServer() as healthy:
        retriever = RemoteRetriever([sick.url, healthy.url], timeout_s=6, first_rest_s=0.05)
        await asyncio.gather(*(retriever.search_many([f"q{n}"], 1) for n in range(2)))
        num_before = len(sick.requests)
        await asyncio.sleep(0.1)
        results = await asyncio.gather(*(retriever.search_many([f"r{n}"], 1) for n in range(8)))
        assert all(result[0][0].id.startswith("r") for result in results)
        assert len(sick.requests) == num_before + 1
        await retriever.aclose()


async def test_a_replica_that_hangs_leaves_time_for_the_next():
    async with FaultServer(Reply(hangs=True)) as hangs, FaultServer() as works:
        retriever = RemoteRetriever([hangs.url, works.url], timeout_s=4.0)
        results = [await retriever.search_many([f"q{n}"], 1) for n in range(3)]
        assert len(hangs.requests) == 1  # it rests; each call has a time-out of its own, too
        assert [result[0][0].id for result in results] == ["q0-1", "q1-1", "q2-1"]
        await retriever.aclose()


async def test_a_caller_with_less_patience_still_marks_the_replica_that_hangs():
    async with FaultServer(Reply(hangs=True)) as hangs, FaultServer() as works:
        retriever = RemoteRetriever([hangs.url, works.url], timeout_s=8)  # half of it for the first server
        retriever._turn = 1  # the next call begins with the first replica
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(retriever.search_many(["a"], 1), 2.5)
        retriever._turn = 1
        assert (await retriever.search_many(["b"], 1))[0][0].id == "b-1"
        assert len(hangs.requests) == 1
        await retriever.aclose()


async def test_when_all_fail_the_error_names_all_and_when_all_ask_for_a_pause_nobody_is_asked():
    busy = Reply({"detail": "busy"}, 429, {"Retry-After": "60"})
    async with FaultServer(busy) as one, FaultServer(busy) as two:
        retriever = RemoteRetriever([one.url, two.url])
        with pytest.raises(TransientSearchError, match="all 2 search servers failed") as caught:
            await retriever.search_many(["a"], 1)
        assert caught.value.retry_after_s == 60
        assert one.url in str(caught.value)
        assert two.url in str(caught.value)
        with pytest.raises(TransientSearchError, match="pause") as caught:
            await retriever.search_many(["a"], 1)
        assert 0 < caught.value.retry_after_s <= 60
        assert len(one.requests) + len(two.requests) == 2
        await retriever.aclose()


# ---- use -------------------------------------------------------------------------------------------------------------


async def test_the_token_is_sent_and_never_shown(monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "s3cret-token")
    async with FaultServer(Reply({"detail": "bad token s3cret-token"}, 401)) as server:
        url = server.url.replace("http://", "http://user:pa55@")
        retriever = RemoteRetriever(url, token_env="MY_TOKEN")
        with pytest.raises(SearchError, match="MY_TOKEN") as caught:
            await retriever.search_many(["a"], 1)
        assert server.requests[0].headers["authorization"].startswith(("Bearer s3cret-token", "Basic"))
        shown = f"{caught.value} {retriever.describe()}"
        assert "s3cret" not in shown
        assert "pa55" not in shown
        await retriever.aclose()


@pytest.mark.parametrize("url", ["", " , ", "ftp://host/", "127.0.0.1:8000", "http://", "http://host:notaport/"])
def test_a_bad_address_is_said_at_once(url):
    with pytest.raises(UsageError, match="http://127"):
        RemoteRetriever(url)


def test_a_retriever_outlives_an_event_loop():
    async def once(retriever: RemoteRetriever) -> None:
        async with FaultServer(port=port):
            assert (await retriever.search_many(["a"], 1))[0][0].id == "a-1"
            await retriever.aclose()

    port = free_port()
    retriever = RemoteRetriever(f"http://127.0.0.1:{port}")
    for _ in range(2):
        asyncio.run(once(retriever))

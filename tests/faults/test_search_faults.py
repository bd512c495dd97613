"""Every client of a search server against every fault: the rollout ends in time, the fault stands in its place, the other
queries' results are there, memory stays below a bound, and the record can be read back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from payloads import BODIES, ITEMS, WAYS, dumped
from search_fault_server import FaultServer, Reply, Request

from memory import bounded_memory
from parallelsearch import grammar
from parallelsearch.limits import Limits
from parallelsearch.policy.scripted import ScriptedPolicy
from parallelsearch.retrieval.base import Retriever
from parallelsearch.retrieval.elastic import ElasticRetriever
from parallelsearch.retrieval.mcp_client import McpRetriever
from parallelsearch.retrieval.remote import RemoteRetriever
from parallelsearch.retrieval.web import (
    BraveRetriever,
    ExaRetriever,
    SearxngRetriever,
    SerperRetriever,
    TavilyRetriever,
)
from parallelsearch.retrieval.wikipedia import WikipediaRetriever
from parallelsearch.rollout import rollout
from parallelsearch.search import Search
from parallelsearch.trajectory import Trajectory, read_trajectories, write_trajectories

DEADLINE_S = 120.0
SEARCH_S = 90.0
SOON_S = 2.5  # for answers that never come, which are waited for
QUESTION = "Who is older?"
TURNS = [grammar.render_turn("Two.", ["a good one", "a bad one"]), grammar.render_turn("Done.", answer="Monet")]

Body = Callable[[list[Any]], Any]


def _fields(**names: str) -> Callable[[Any], Any]:
    """An item in the words of an engine; what is no object stays as it is."""
    return lambda one: {names.get(key, key): value for key, value in one.items()} if isinstance(one, dict) else one


def _document(one: Any) -> Any:
    """An item as a document of an index."""
    return {"_id": one.get("id"), "_score": one.get("score"), "_source": one} if isinstance(one, dict) else one


def _retrieve(items: list[Any]) -> Any:
    hits = [{"document": one, "score": one.get("score")} if isinstance(one, dict) else one for one in items]
    return {"result": [hits]}


CLIENTS: dict[str, tuple[Callable[[str, float], Retriever], Body]] = {
    "retrieve": (
        lambda url, timeout_s: RemoteRetriever(f"{url}/retrieve", timeout_s=timeout_s, max_batch=1),
        _retrieve,
    ),
    "serper": (
        lambda url, timeout_s: SerperRetriever(url, timeout_s=timeout_s),
        lambda items: {"organic": list(map(_fields(url="link", text="snippet"), items))},
    ),
    "tavily": (
        lambda url, timeout_s: TavilyRetriever(url, timeout_s=timeout_s),
        lambda items: {"results": list(map(_fields(text="content"), items))},
    ),
    "brave": (
        lambda url, timeout_s: BraveRetriever(url, timeout_s=timeout_s),
        lambda items: {"web": {"results": list(map(_fields(text="description"), items))}},
    ),
    "exa": (
        lambda url, timeout_s: ExaRetriever(url, timeout_s=timeout_s),
        lambda items: {"results": items},
    ),
    "wikipedia": (
        lambda url, timeout_s: WikipediaRetriever(f"{url}/w/api.php", timeout_s=timeout_s),
        lambda items: {"query": {"pages": list(map(_fields(url="fullurl", text="extract"), items))}},
    ),
    "searxng": (
        lambda url, timeout_s: SearxngRetriever(url, timeout_s=timeout_s),
        lambda items: {"results": list(map(_fields(text="content"), items))},
    ),
    "elastic": (
        lambda url, timeout_s: ElasticRetriever(f"{url}#pages", timeout_s=timeout_s),
        lambda items: {"responses": [{"hits": {"hits": list(map(_document, items))}, "status": 200}]},
    ),
    "mcp": (
        lambda url, timeout_s: McpRetriever(f"{url}/mcp", "web_search", timeout_s=timeout_s, connect_timeout_s=120),
        lambda items: {"structuredContent": {"results": items}, "content": []},
    ),
}


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SERPER_API_KEY", "TAVILY_API_KEY", "BRAVE_API_KEY", "EXA_API_KEY"):
        monkeypatch.setenv(name, "a-key")


def in_mcp(request: Request, reply: Reply) -> Reply:
    """The conversation around a tool call is that of an honest server; `reply` answers the call itself."""
    if request.method != "POST":
        return Reply(b"", 405)
    asked = request.json
    schema = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
    results = {
        "initialize": {
            "protocolVersion": asked.get("params", {}).get("protocolVersion"),
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "faults", "version": "1"},
        },
        "tools/list": {"tools": [{"name": "web_search", "inputSchema": schema}]},
    }
    if "id" not in asked:
        return Reply(b"", 202)
    if asked["method"] == "tools/call":
        own = reply.body
        if isinstance(own, bytes) and own.startswith(
            b'{"structuredContent"'
        ):  # an answer, right or wrong, in its envelope
            own = b'{"jsonrpc": "2.0", "id": %d, "result": %s}' % (asked["id"], own)
        return replace(reply, body=own, headers={"Content-Type": "application/json", **reply.headers})
    if asked["method"] not in results:
        error = {"code": -32601, "message": "no such method"}
        return Reply({"jsonrpc": "2.0", "id": asked["id"], "error": error}, 404, {"Content-Type": "application/json"})
    answer = {"jsonrpc": "2.0", "id": asked["id"], "result": results[asked["method"]]}
    return Reply(answer, headers={"Content-Type": "application/json"})


def is_bad(request: Request) -> bool:
    asked = parse_qs(urlsplit(request.target).query)
    return "bad" in (request.body.decode() or " ".join((*asked.get("q", ()), *asked.get("gsrsearch", ()))))


async def survive(client: str, fault: Reply, tmp_path: Path, timeout_s: float = SEARCH_S) -> Trajectory:
    make, body = CLIENTS[client]
    good = Reply(
        dumped(body([{"id": "good", "title": "Good", "text": "A good text.", "url": "http://good", "score": 1}]))
    )

    def answer(request: Request) -> Reply:
        if "_field_caps" in request.target:
            return Reply({"fields": {name: {"text": {}} for name in ("title", "text", "url")}})
        reply = fault if is_bad(request) else good
        return in_mcp(request, reply) if client == "mcp" else reply

    async with FaultServer(answer) as server:
        retriever = make(server.base_url, timeout_s)
        if isinstance(retriever, McpRetriever):
            await retriever.open()
        search = Search(retriever, k=3, timeout_s=timeout_s, attempts=1, max_batch=1, max_concurrency=2)
        trajectory = await rollout(QUESTION, ScriptedPolicy({QUESTION: TURNS}), search, Limits(timeout_s=DEADLINE_S))
        await search.aclose()
    check_sound(trajectory, tmp_path)
    first, second = trajectory.turns[0].queries
    assert [hit.title for hit in first.hits] == ["Good"], "the other query keeps its results"
    assert first.error is None
    assert second.error is not None or all(hit.text or hit.title for hit in second.hits)
    return trajectory


def check_sound(trajectory: Trajectory, tmp_path: Path) -> None:
    assert (trajectory.elapsed_s or 0) < DEADLINE_S
    assert trajectory.stop == "answer"
    assert trajectory.answer == "Monet"
    path = tmp_path / "record.jsonl"
    write_trajectories(path, [trajectory])
    assert [one.to_dict() for one in read_trajectories(path)] == [json.loads(trajectory.to_json())]
    shown = "".join(segment.text for segment in trajectory.segments if segment.author == "search")
    assert shown.count(grammar.opening(grammar.INFORMATION)) == 1
    assert shown.count(grammar.closing(grammar.INFORMATION)) == 1
    inside = shown.replace(grammar.opening(grammar.INFORMATION), "").replace(grammar.closing(grammar.INFORMATION), "")
    assert not grammar._disarmer(frozenset()).pattern.search(inside)
    assert all(char.isprintable() or char == "\n" for char in inside if ord(char) < 0xA0)
    assert len(shown) < 40_000, "no passage is shown beyond the budget"


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("name", ITEMS)
async def test_a_fault_in_an_item_stays_in_its_place(client: str, name: str, tmp_path: Path) -> None:
    with bounded_memory():
        await survive(client, Reply(dumped(CLIENTS[client][1](ITEMS[name]))), tmp_path)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("name", BODIES)
async def test_a_body_that_makes_no_sense_costs_its_query_alone(client: str, name: str, tmp_path: Path) -> None:
    with bounded_memory():
        trajectory = await survive(client, BODIES[name], tmp_path, SOON_S if client == "mcp" else SEARCH_S)
    query = trajectory.turns[0].queries[1]
    assert query.hits == []
    assert len(query.error or "") < 1_000


@pytest.mark.parametrize("name", WAYS)
async def test_an_answer_that_never_comes_whole_costs_its_query_alone(name: str, tmp_path: Path) -> None:
    """All clients at the same time: each waits for seconds."""
    for client in CLIENTS:
        (tmp_path / client).mkdir()
    with bounded_memory():
        found = await asyncio.gather(*(survive(client, WAYS[name], tmp_path / client, SOON_S) for client in CLIENTS))
    for client, trajectory in zip(CLIENTS, found, strict=True):
        assert trajectory.turns[0].queries[1].error, client

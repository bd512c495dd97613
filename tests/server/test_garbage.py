"""A request leaves nothing to Python's garbage collector, which answers nobody while it works."""

from __future__ import annotations

import asyncio
import gc
import json
from typing import Any

import pytest

pytest.importorskip("starlette")

from parallelsearch import grammar
from parallelsearch.policy.scripted import ScriptedPolicy
from parallelsearch.retrieval.base import Hit, Result, Retriever
from parallelsearch.search import Search
from parallelsearch.server import running
from parallelsearch.server.agent_server import create_agent_app
from parallelsearch.server.answering import AgentSettings
from parallelsearch.server.search_server import create_search_app

NUM_REQUESTS = 20
QUESTION = "Who is older?"
TURNS = [grammar.render_turn("Two.", ["one", "other"]), grammar.render_turn("The first [1].", answer="Monet")]
ASKED = {"model": "parallelsearch", "messages": [{"role": "user", "content": QUESTION}]}


class Ready(Retriever):
    name = "ready"

    async def search_many(self, queries: Any, k: int) -> list[Result]:
        await asyncio.sleep(0)
        return [[Hit(query, query, "A passage.", score=1.0, rank=1)] for query in queries]


@pytest.fixture(scope="module", autouse=True)
def _small_heap() -> None:
    """What earlier tests left is looked through once, not twice a case: a million objects take most of a second."""
    gc.collect()
    gc.freeze()


async def post(app: Any, path: str, value: Any) -> bytes:
    """What an ASGI application answers to one request."""
    is_sent, left = False, asyncio.Event()
    answer: list[bytes] = []

    async def receive() -> dict[str, Any]:
        nonlocal is_sent
        if is_sent:
            await left.wait()
            return {"type": "http.disconnect"}
        is_sent = True
        return {"type": "http.request", "body": json.dumps(value).encode(), "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        answer.append(message.get("body", b""))

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b"", "root_path": ""}
    await app(scope, receive, send)
    return b"".join(answer)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("/v1/chat/completions", ASKED, b"Monet"),
        ("/v1/chat/completions", {**ASKED, "stream": True}, b"Monet"),
        ("/v1/responses", {"model": "parallelsearch", "input": QUESTION}, b"Monet"),
        ("/v1/responses", {"model": "parallelsearch", "input": QUESTION, "stream": True}, b"Monet"),
        ("/v1/chat/completions", {**ASKED, "temperature": 9}, b"temperature"),
        ("/retrieve", {"queries": ["a", "b"]}, b"A passage"),
        ("/retrieve", {"queries": "a"}, b"must be a list"),
    ],
)
async def test_a_request_leaves_no_garbage(path: str, value: Any, says: bytes) -> None:
    search = Search(Ready(), cache_size=0)
    settings = AgentSettings(token=None)
    app: Any = (
        create_search_app(search, settings=settings)
        if path == "/retrieve"
        else create_agent_app(ScriptedPolicy({QUESTION: TURNS}), search, settings)
    )
    for _ in range(3):  # what is imported and made once
        assert says in await post(app, path, value)
    gc.collect()
    gc.disable()
    try:
        for _ in range(NUM_REQUESTS):
            await post(app, path, value)
        num_left = gc.collect()
    finally:
        gc.enable()
    assert num_left < NUM_REQUESTS, f"{num_left / NUM_REQUESTS:g} objects of each request refer to each other"


def test_a_server_is_not_looked_through_again_and_again() -> None:
    before = gc.get_threshold()
    with running._short_collections():
        assert len(gc.get_objects()) < 10_000 < gc.get_freeze_count()
        assert gc.get_threshold() == running._COLLECTOR_THRESHOLDS
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
    gc.freeze()  # as the tests' own start has it

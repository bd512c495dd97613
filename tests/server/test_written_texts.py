"""A written answer at the doors of the agent server: whole and streamed, in both APIs, as an MCP tool, and in the document."""

from __future__ import annotations

import asyncio
import json
import re
import time
from dataclasses import replace
from itertools import pairwise
from typing import Any

import httpx
import jsonschema
import pytest
from mcp import Client
from openai.types.chat import ChatCompletion
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from search_process import PASSAGES

from parallelsearch.grammar import render_turn
from parallelsearch.limits import WRITTEN_TOKENS, Limits
from parallelsearch.policy.base import Generation
from parallelsearch.policy.scripted import ScriptedPolicy
from parallelsearch.retrieval.bm25 import BM25Retriever
from parallelsearch.search import Search
from parallelsearch.server.agent_server import create_agent_app
from parallelsearch.server.answering import AgentSettings, Answering
from parallelsearch.server.mcp_server import create_mcp_server

QUESTION = "How do Paris and Zürich differ?"
TURNS = {
    QUESTION: [
        render_turn("Two things.", queries=["capital of France", "Zürich capital"]),
        render_turn("I have both.", answer="Paris"),
    ]
}
TEXT = (
    "# Two cities\n\nOne is a **capital** [1], *one* is not [77].\n\n"
    "| city | capital |\n|---|---|\n| Paris | yes, of France [1] |\n| Zürich | no [2] |"
)
PATH = {"chat": "/v1/chat/completions", "responses": "/v1/responses"}
EVENT = TypeAdapter(ResponseStreamEvent)


class Short(ScriptedPolicy):
    """Answers in a few words alone."""

    may_write = False


class Writer(ScriptedPolicy):
    """Writes a text, and keeps how much it was allowed."""

    name = "writer"

    def __init__(self, tokens_per_s: float | None = None, finish: str = "stop", end: str = "") -> None:
        self.text, self.max_tokens, self._finish = TEXT + end, 0, finish
        super().__init__({QUESTION: [self.text]}, tokens_per_s)

    async def generate(self, segments: Any, **options: Any) -> Generation:
        self.max_tokens = options["max_tokens"]
        return replace(await super().generate(segments, **options), finish=self._finish)

    @property
    def told(self) -> str:
        """What a client is to get."""
        return self.text.replace(" [77]", "")


class Served:
    """An application in this process."""

    def __init__(self, reader: Any = None, **settings: Any) -> None:
        self.settings = AgentSettings(token=None, **settings)
        self.search = Search(BM25Retriever.from_passages(PASSAGES), k=1)
        self.app = create_agent_app(Short(TURNS), self.search, self.settings, reader)

    async def get(self, path: str) -> httpx.Response:
        return await self._send("GET", path)

    async def ask(self, api: str, options: dict[str, Any] | None = None, **body: Any) -> httpx.Response:
        asked = {"messages": [{"role": "user", "content": QUESTION}]} if api == "chat" else {"input": QUESTION}
        beside = {"parallelsearch": {"written": True, **(options or {})}}
        return await self._send("POST", PATH[api], {"model": "parallelsearch", **asked, **beside, **body})

    async def _send(self, method: str, path: str, body: Any = None) -> httpx.Response:
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, json=body, timeout=60)


def named(text: str, number: int) -> list[tuple[int, int]]:
    """Where a text names a passage."""
    return [(found.start(), found.end()) for found in re.finditer(rf"\[{number}\]", text)]


async def test_a_chat_gets_the_text_line_by_line_with_each_place_that_names_a_page() -> None:
    writer = Writer()
    served = Served(writer)
    reply = await served.ask("chat")
    completion = ChatCompletion.model_validate(reply.json())
    (choice,) = completion.choices
    assert (choice.message.content, choice.finish_reason) == (writer.told, "stop")
    pages = [(one.url_citation.start_index, one.url_citation.end_index) for one in choice.message.annotations or ()]
    assert pages == named(writer.told, 2)
    assert {one.url_citation.url for one in choice.message.annotations or ()} == {"https://z.ch"}
    beside = reply.json()["choices"][0]["message"]["parallelsearch"]
    assert (beside["written"], beside["invalid_citations"], beside["reading"]["own_answer"]) == (True, [77], "Paris")
    assert completion.usage is not None
    assert completion.usage.completion_tokens > len(writer.text) // 4
    streamed = await served.ask("chat", stream=True)
    chunks = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert [delta["content"] for delta in deltas if delta.get("content")] == [writer.told]
    (annotated,) = [delta["annotations"] for delta in deltas if "annotations" in delta]
    assert annotated == [one.model_dump() for one in choice.message.annotations or ()]
    events = [chunk["parallelsearch"]["event"] for chunk in chunks if "event" in chunk.get("parallelsearch", {})]
    said = "".join(event["text"] for event in events if event["type"] == "text" and event["turn"] == 2)
    assert said == writer.text  # to be read while it is written


async def test_a_response_names_each_place_too() -> None:
    writer = Writer()
    served = Served(writer)
    whole = Response.model_validate((await served.ask("responses")).json())
    assert (whole.output_text, whole.status) == (writer.told, "completed")
    (part,) = whole.output[-1].content
    found = [
        (one.index - 3, one.index) if one.type == "file_citation" else (one.start_index, one.end_index)
        for one in part.annotations
    ]
    assert found == sorted(named(writer.told, 1) + named(writer.told, 2))
    assert [one.type for one in part.annotations] == ["file_citation", "file_citation", "url_citation"]
    streamed = (await served.ask("responses", stream=True)).text
    events = [EVENT.validate_json(line[6:]) for line in streamed.splitlines() if line.startswith("data: ")]
    assert [event.delta for event in events if event.type == "response.output_text.delta"] == [writer.told]
    added = [event.annotation for event in events if event.type == "response.output_text.annotation.added"]
    assert [one.model_dump() for one in added] == [one.model_dump() for one in part.annotations]
    assert events[-1].response.parallelsearch["written"] is True


@pytest.mark.parametrize("stream", [False, True])
async def test_a_text_that_was_cut_off_says_so(stream: bool) -> None:
    served = Served(Writer(finish="length"))
    chat, response = await served.ask("chat", stream=stream), await served.ask("responses", stream=stream)
    assert '"finish_reason": "length"' in chat.text or '"finish_reason":"length"' in chat.text
    record = json.loads(response.text.rstrip("\n").rpartition("data: ")[2]) if stream else response.json()
    record = record.get("response", record)
    assert (record["status"], record["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})


@pytest.mark.parametrize(
    ("asked", "room"), [(None, WRITTEN_TOKENS), (4_000, WRITTEN_TOKENS), (1_000, 1_000), (500, 499), (100, 100)]
)
async def test_a_client_says_how_long_a_text_may_be(asked: int | None, room: int) -> None:
    writer = Writer()
    await Served(writer).ask("chat", **({} if asked is None else {"max_tokens": asked}))
    assert writer.max_tokens == room


async def test_a_server_that_was_told_how_long_a_turn_is_keeps_to_it() -> None:
    writer = Writer()
    await Served(writer, limits=Limits(max_tokens_per_turn=300)).ask("chat", max_tokens=1_000)
    assert writer.max_tokens == 300


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_nobody_hangs_up_while_a_long_text_is_written(api: str) -> None:
    """Text arrives all the time, and nothing of it is sent."""
    writer = Writer(tokens_per_s=40, end=" It is so." * 20)
    sent: list[tuple[float, bytes]] = []
    served = Served(writer, keep_alive_s=0.1)

    async def send(message: dict[str, Any]) -> None:
        sent.append((time.monotonic(), message.get("body", b"")))

    asked = {"messages": [{"role": "user", "content": QUESTION}]} if api == "chat" else {"input": QUESTION}
    options = {"written": True, "events": False}
    body = json.dumps({"model": "parallelsearch", "stream": True, "parallelsearch": options, **asked}).encode()
    headers = [(b"content-type", b"application/json"), (b"host", b"localhost")]
    scope = {"type": "http", "method": "POST", "path": PATH[api], "raw_path": PATH[api].encode(), "query_string": b""}
    scope |= {"headers": headers, "http_version": "1.1", "scheme": "http", "server": ("localhost", 80), "root_path": ""}
    requests = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        return requests.pop() if requests else await asyncio.Event().wait()

    await served.app({**scope, "client": ("127.0.0.1", 1)}, receive, send)
    quiet = [later - before for (before, _), (later, _) in pairwise(sent)]
    assert sent[-1][0] - sent[0][0] > 1.0
    assert sum(body == b": still working\n\n" for _, body in sent) >= 5
    assert max(quiet) < 0.8


async def test_who_has_no_writer_is_refused_and_its_document_says_so() -> None:
    served = Served()
    for api in PATH:
        reply = await served.ask(api)
        assert (reply.status_code, reply.json()["error"]["param"]) == (422, "parallelsearch.written")
        assert (await served.ask(api, {"written": False})).status_code == 200
    options = (await served.get("/openapi.json")).json()["components"]["schemas"]["AskOptions"]
    assert options["properties"]["written"]["enum"] == [False, None]


async def test_what_the_reader_alone_can_write_is_not_asked_of_the_policy() -> None:
    served = Served(Writer(), written=True)
    assert (await served.ask("chat", {"read": False})).status_code == 422
    short = await served.ask(
        "chat", {"read": False, "written": None, "abstain": False}
    )  # the server's own choice gives way
    assert (short.status_code, short.json()["choices"][0]["message"]["content"]) == (200, "Paris")
    document = (await served.get("/openapi.json")).json()
    schema = {"$ref": "#/components/schemas/AskOptions", "components": document["components"]}
    for options, is_right in (
        ({"read": False, "written": True}, False),
        ({"read": False}, True),
        ({"written": True}, True),
    ):
        assert jsonschema.Draft202012Validator(schema).is_valid(options) is is_right


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_a_text_has_the_shape_of_the_document(api: str) -> None:
    served = Served(Writer(end="\n\nIt has 4711 bridges [1]."))
    document = (await served.get("/openapi.json")).json()
    reply = (await served.ask(api)).json()
    good = document["paths"][PATH[api]]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    jsonschema.validate(reply, {**good, "components": document["components"]})
    beside = reply["choices"][0]["message"]["parallelsearch"] if api == "chat" else reply["parallelsearch"]
    assert beside["doubts"][-1]["missing"] == ["4711"]


async def test_what_a_text_took_is_counted() -> None:
    served = Served(Writer())
    reply = (await served.ask("chat")).json()["choices"][0]["message"]["parallelsearch"]
    counted = (await served.get("/metrics")).text
    assert f'parallelsearch_tokens_total{{kind="written"}} {reply["num_output_tokens"]:.1f}' in counted
    assert reply["num_output_tokens"] > len(TEXT) // 4


async def test_the_mcp_tool_writes_where_somebody_can() -> None:
    policy, search = Short(TURNS), Search(BM25Retriever.from_passages(PASSAGES), k=1)
    writer = Writer(end="\n\nIt has 4711 bridges [1].")
    async with Client(
        create_mcp_server(search, answering=Answering(policy, search, AgentSettings(), writer))
    ) as client:
        written = (await client.call_tool("answer", {"question": QUESTION, "written": True})).structured_content
        short = (await client.call_tool("answer", {"question": QUESTION, "written": False})).structured_content
    assert written["answer"] == writer.told
    assert {one["basis"] for one in written["citations"]} == {"cited"}
    assert [one["missing"] for one in written["doubts"]] == [["4711"]]
    assert "doubts" not in short
    async with Client(create_mcp_server(search, answering=Answering(policy, search))) as client:
        (tool,) = [one for one in (await client.list_tools()).tools if one.name == "answer"]
        assert "written" not in tool.input_schema["properties"]

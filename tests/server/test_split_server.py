"""`serve search --split`: whole questions in, merged passages out, for clients that know nothing of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from search_process import SearchProcess, search_r1_client, started

from parallelsearch.retrieval.remote import RemoteRetriever
from parallelsearch.search import Search

COMMAND = [sys.executable, "-m", "parallelsearch", "serve", "search", "--search", "demo", "--split"]
OLDER = "Who is older, Claude Monet or Camille Pissarro?"
UNKNOWN = "Where was Claude Monet born?"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with started([*COMMAND, "demo", "--port", "0"], tmp_path_factory.mktemp("split")) as running_server:
        yield running_server


def test_a_search_r1_client_gets_all_parts_without_a_change(server: SearchProcess):
    older, unknown = search_r1_client(server.url, [OLDER, UNKNOWN], 3)
    assert older.startswith('Doc 1(Title: "Claude Monet")')
    assert 'Doc 2(Title: "Camille Pissarro")' in older
    assert 'Doc 3(Title: "' in older
    assert 'Doc 1(Title: "Claude Monet")' in unknown  # the policy has no turns for it: the question itself was asked


def test_the_answer_has_the_form_it_always_had_and_says_who_found_what(server: SearchProcess):
    status, reply, _ = server.post({"queries": [OLDER, "  "], "topk": 2, "return_scores": True})
    assert status == 200
    first, second = reply["result"][0]
    assert set(first) == {"document", "score"}
    assert first["document"]["contents"].startswith('"Claude Monet"\n')
    assert first["document"]["queries"] == ["When was Claude Monet born?"]
    assert first["score"] > second["score"] > 0
    assert reply["result"][1] == []
    assert reply["errors"] == {"1": {"kind": "failed", "message": "the query is empty"}}
    _, bare, _ = server.post({"queries": [OLDER], "topk": 1})
    assert bare["result"][0][0]["queries"] == ["When was Claude Monet born?"]


async def test_our_own_client_reads_it_too(server: SearchProcess):
    search = Search(RemoteRetriever(server.url), k=2)
    found = await search.find(OLDER)
    assert [hit.title for hit in found.hits] == ["Claude Monet", "Camille Pissarro"]
    await search.aclose()


def test_the_schema_has_what_a_tool_server_needs(server: SearchProcess):
    """Open WebUI makes a tool of every operation with an operationId, from its description and its JSON body."""
    _, schema, _ = server.get("/openapi.json")
    operations = {
        operation["operationId"]: (path, method, operation)
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
        if "operationId" in operation
    }
    assert list(operations) == ["retrieve"]
    path, method, operation = operations["retrieve"]
    assert (path, method) == ("/retrieve", "post")
    assert "whole questions" in operation["description"]
    body = operation["requestBody"]["content"]["application/json"]["schema"]
    assert (body["type"], body["required"], body["properties"]["queries"]["type"]) == ("object", ["queries"], "array")
    assert "$ref" not in json.dumps(body)
    # What such a client then sends is served.
    arguments = {name: value for name, value in body["example"].items() if name in body["properties"]}
    assert server.post(arguments)[0] == 200
    _, health, _ = server.get("/health")
    assert (health["search"]["kind"], health["search"]["policy"]["kind"]) == ("split", "demo")


async def test_as_mcp_tools_retrieve_stands_beside_the_plain_searches():
    pytest.importorskip("mcp")
    from mcp import Client, StdioServerParameters

    program, *arguments = [*COMMAND, "demo", "--mcp", "stdio"]
    command = StdioServerParameters(command=program, args=arguments, env=dict(os.environ))
    async with Client(command, read_timeout_seconds=400) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {"search", "search_batch", "retrieve"}
        assert tools["retrieve"].input_schema["required"] == ["question"]
        assert tools["retrieve"].input_schema["properties"]["k"]["default"] == 8
        answer = (await client.call_tool("retrieve", {"question": OLDER, "k": 2})).structured_content
        assert [query["text"] for query in answer["queries"]] == [
            "When was Claude Monet born?",
            "When was Camille Pissarro born?",
        ]
        assert [(one["title"], one["rank"]) for one in answer["passages"]] == [
            ("Claude Monet", 1),
            ("Camille Pissarro", 2),
        ]
        unknown = (await client.call_tool("retrieve", {"question": UNKNOWN})).structured_content
        assert "the question itself is the query" in unknown["notes"][0]
        assert "is no model" in unknown["failures"][0]
        assert (await client.call_tool("retrieve", {"question": "  "})).is_error
        plain = (await client.call_tool("search", {"query": OLDER, "k": 1})).structured_content
        assert len(plain["hits"]) == 1


def test_a_policy_that_is_none_is_refused_before_anything_listens():
    result = subprocess.run([*COMMAND, "nothing", "--port", "0"], capture_output=True, text=True, timeout=400)
    assert result.returncode == 2
    assert "'nothing' is no policy address" in result.stderr

"""Our MCP server, asked by the official SDK's client, over stdio and streamable HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

pytest.importorskip("mcp")

import httpx
import search_process
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from search_process import running

from parallelsearch.errors import SearchError
from parallelsearch.retrieval.mcp_client import McpRetriever


def over_stdio(**options: object) -> Client:
    arguments = [search_process.__file__, json.dumps({"kind": "mcp-stdio", **options})]
    return Client(stdio_client(StdioServerParameters(command=sys.executable, args=arguments)), read_timeout_seconds=400)


async def check_tools(client: Client) -> None:
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert set(tools) == {"search", "search_batch"}
    assert tools["search"].input_schema["required"] == ["query"]
    assert tools["search"].input_schema["properties"]["k"]["default"] == 3
    assert tools["search_batch"].input_schema["properties"]["queries"]["type"] == "array"
    assert tools["search_batch"].annotations.read_only_hint is True

    one = await client.call_tool("search", {"query": "capital of Italy", "k": 1})
    assert not one.is_error
    (hit,) = one.structured_content["hits"]
    assert (hit["id"], hit["title"], hit["rank"]) == ("rome", "Rome", 1)
    assert "metadata" not in hit
    assert json.loads(one.content[0].text) == one.structured_content  # for clients that read text only

    failed = await client.call_tool("search", {"query": "this fails"})
    assert failed.is_error
    assert "told to fail" in failed.content[0].text

    queries = ["Tiber", "this fails", "Seine", "zzz", "", "Tiber"]
    many = await client.call_tool("search_batch", {"queries": queries, "k": 1})
    assert not many.is_error
    results = many.structured_content["results"]
    assert [result["query"] for result in results] == queries
    assert [[hit["id"] for hit in result["hits"]] for result in results] == [["rome"], [], ["paris"], [], [], ["rome"]]
    assert [result["error"] for result in results] == [None, "told to fail", None, None, "the query is empty", None]


async def test_the_official_client_over_stdio():
    async with over_stdio() as client:
        await check_tools(client)


async def test_the_agent_over_stdio_as_desktop_programs_start_it(tmp_path):
    older = "Who is older, Claude Monet or Camille Pissarro?"
    serve = ["-m", "parallelsearch", "serve", "agent", "--mcp", "stdio", "--policy", "demo", "--search", "demo"]
    command = StdioServerParameters(command=sys.executable, args=serve, env=dict(os.environ), cwd=tmp_path)
    async with Client(stdio_client(command), read_timeout_seconds=400) as client:
        tools = {tool.name for tool in (await client.list_tools()).tools}
        assert tools == {"search", "search_batch", "retrieve", "answer"}
        answer = (await client.call_tool("answer", {"question": older})).structured_content
        assert (answer["answer"], answer["num_subqueries"]) == ("Camille Pissarro", 2)
        assert "Camille Pissarro" in [citation["title"] for citation in answer["citations"]]
        retrieved, searched = await asyncio.gather(
            client.call_tool("retrieve", {"question": older, "k": 2}), client.call_tool("search", {"query": "Monet"})
        )
        assert len(retrieved.structured_content["passages"]) == 2
        assert searched.structured_content["hits"][0]["title"] == "Claude Monet"
        unknown = await client.call_tool("answer", {"question": "Who wrote Emma?"})
        assert unknown.is_error
        assert "is no model" in unknown.content[0].text


def test_the_agents_tools_over_http_need_no_option():
    command = [sys.executable, "-m", "parallelsearch", "serve", "agent", "--mcp", "http"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert result.returncode == 2
    assert "--mcp is 'stdio', not 'http'; over HTTP the tools are at /mcp" in result.stderr


REFUSED = [
    {"queries": ["a"] * 5},
    {"queries": ["a" * 300]},
    {"queries": ["a"], "k": 0},
    {"queries": ["a"], "k": 1000},
    {"queries": [3]},
    {},
]


async def test_limits_are_kept_and_the_server_goes_on():
    async with over_stdio(settings={"max_queries": 4, "max_query_chars": 200, "max_k": 10}) as client:
        for arguments in REFUSED:
            refused = await client.call_tool("search_batch", arguments)
            assert refused.is_error, arguments
        good = await client.call_tool("search_batch", {"queries": ["Seine"]})
        assert good.structured_content["results"][0]["hits"][0]["id"] == "paris"


async def test_the_official_client_over_http(tmp_path):
    with running(tmp_path, kind="mcp-http") as server:
        async with Client(server.url, read_timeout_seconds=400) as client:
            await check_tools(client)
        async with Client(server.url, read_timeout_seconds=400, mode="legacy") as client:
            await check_tools(client)
        server.process.terminate()
        assert server.process.wait(20) == 0


async def test_a_token_guards_the_tools_over_http(tmp_path, monkeypatch):
    monkeypatch.setenv("PARALLELSEARCH_TOKEN", "sesame")
    with running(tmp_path, kind="mcp-http", settings={"token": "sesame"}) as server:
        async with httpx.AsyncClient() as http:
            refused = await http.post(server.url, json={})
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        retriever = McpRetriever(server.url)
        results = await retriever.search_many(["Tiber", "this fails", "Limmat"], 1)
        assert results[0][0].id == "rome"
        assert isinstance(results[1], SearchError)
        assert results[2][0].metadata == {"source": "/maps/Zürich.pdf", "page": 3}
        await retriever.aclose()


async def test_a_body_is_within_its_limits_before_the_tools_see_it(tmp_path):
    with running(tmp_path, kind="mcp-http", settings={"body_timeout_s": 1.0}) as server:
        async with httpx.AsyncClient(timeout=60) as http:
            many = await http.post(server.url, content=b"[" + b"[]," * 20_000 + b"[]]")
            assert (many.status_code, "values" in many.text) == (422, True)

            async def never() -> AsyncIterator[bytes]:
                yield b"{"
                await asyncio.sleep(8)  # the client reads no answer before it has sent all

            late = await http.post(server.url, content=never())
            assert late.status_code == 408
        async with Client(server.url, read_timeout_seconds=20) as client:
            assert (await client.call_tool("search_batch", {"queries": ["Seine"]})).structured_content

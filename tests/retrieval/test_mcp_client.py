"""MCP servers as backends: real processes over stdio and HTTP, ours and others', which also die, hang and fail."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
import os
import shlex
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")

from mcp.types import CallToolResult, TextContent, Tool

from free_ports import free_port
from memory import bounded_memory
from parallelsearch.addresses import open_search
from parallelsearch.agent import Agent
from parallelsearch.errors import SearchError, SearchTimeoutError, TransientSearchError, UsageError
from parallelsearch.policy import ScriptedPolicy
from parallelsearch.retrieval import mcp_stdio
from parallelsearch.retrieval.mcp_answers import read_answer, read_batch_answer
from parallelsearch.retrieval.mcp_client import McpRetriever, _last_lines, choose_tool
from parallelsearch.search import Search

HERE = Path(__file__).parent
FOREIGN = str(HERE / "foreign_mcp_server.py")
OURS = str(HERE.parent / "server" / "search_process.py")


def command(*words: str) -> str:
    return shlex.join([sys.executable, *words])


def patient(target: str, **options: Any) -> McpRetriever:
    """A retriever that waits for a server as long as a busy machine takes to start one."""
    return McpRetriever(target, **{"timeout_s": 100, "connect_timeout_s": 150, **options})


def children() -> set[int]:
    """The processes this one has started and not yet seen the end of."""
    return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


@pytest.fixture
def no_leaks():
    """No process and no task is left behind."""
    before = children()
    yield
    for _ in range(3_000):  # one that has just ended is still to be waited for by the event loop's watcher
        if not children() - before:
            break
        time.sleep(0.01)
    assert children() - before == set()


# ---- choosing a tool -------------------------------------------------------------------------------------------------


def tool(name: str, required: tuple[str, ...] = (), **properties: str) -> Tool:
    schema = {
        "type": "object",
        "properties": {n: {"type": kind} for n, kind in properties.items()},
        "required": list(required),
    }
    return Tool(name=name, input_schema=schema)


@pytest.mark.parametrize(
    ("tools", "chosen"),
    [
        ([tool("fetch", url="string"), tool("web_search", query="string")], "web_search"),
        ([tool("search_issues", query="string"), tool("search", query="string")], "search"),
        ([tool("search", query="string"), tool("search_batch", queries="array")], "search_batch"),
        ([tool("search", ("query", "tenant"), query="string", tenant="string"), tool("find", q="string")], "find"),
        ([tool("ask_anything", prompt="string")], "ask_anything"),
        ([tool("tavilySearch", query="string"), tool("tavilyExtract", query="string")], "tavilySearch"),
    ],
)
def test_the_most_search_like_tool_is_chosen(tools, chosen):
    assert choose_tool(tools, None).name == chosen


def test_the_number_of_hits_goes_into_the_right_parameter():
    schema = {
        "properties": {
            "query": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "count": {"type": "integer", "maximum": 20},
        }
    }
    chosen = choose_tool([Tool(name="s", input_schema=schema)], "s")
    assert chosen.arguments("x", 50) == {"query": "x", "count": 20}


@pytest.mark.parametrize(
    ("tools", "wanted", "message"),
    [
        ([], None, "only nothing"),
        ([tool("add", ("a", "b"), a="integer", b="integer")], None, "only 'add'"),
        ([tool("read", path="string"), tool("write", text="string")], None, "Name the one"),
        ([tool("web_search", query="string")], "websearch", "Did you mean 'web_search'"),
        ([tool("search", ("query", "tenant"), query="string", tenant="string")], "search", "with a query alone"),
    ],
)
def test_no_fitting_tool_is_said_with_what_there_is(tools, wanted, message):
    with pytest.raises(UsageError, match=message):
        choose_tool(tools, wanted)


async def test_the_tool_is_named_in_the_address_and_looked_for_before_the_model_is_asked(no_leaks, tmp_path):
    server = command(FOREIGN, "no-search")
    policy = ScriptedPolicy({"Who?": ["<search> Monet </search>", "<answer> T1 </answer>"]})
    for address, message in [
        (f"mcp:{server}", r"only 'fetch_page', 'delete_everything', 'ask_docs'. Name the one to use: mcp\?tool=NAME:"),
        (f"mcp?tool=ask_doc:{server}", r"has no tool 'ask_doc', only .* Did you mean 'ask_docs'\?"),
        ("mcp?tool=x:no-such-program", "'no-such-program' cannot be started"),
    ]:
        search = open_search(address, cache=str(tmp_path / "cache"), record=str(tmp_path / f"{len(address)}.jsonl"))
        agent = Agent(policy, search)
        with pytest.raises(UsageError, match=message):
            await agent.ask_async("Who?")
        several = await asyncio.gather(*(agent.ask_async("Who?") for _ in range(2)), return_exceptions=True)
        assert [type(one) for one in several] == [UsageError, UsageError]
        await agent.aclose()
    async with Agent(policy, open_search(f"mcp?tool=ask_docs&timeout_s=100&connect_timeout_s=150:{server}")) as agent:
        done = await agent.ask_async("Who?", abstain=False)
        assert [hit.text for hit in done.turns[0].queries[0].hits] == ["Monet 1", "Monet 2", "Monet 3"]


async def test_a_server_that_is_down_is_left_to_the_queries(no_leaks):
    retriever = McpRetriever(f"http://127.0.0.1:{free_port()}/mcp?key=secret", connect_timeout_s=5)
    await retriever.check()
    await retriever.aclose()


# ---- reading answers -------------------------------------------------------------------------------------------------


def text_answer(*texts: str, is_error: bool = False) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=text) for text in texts], is_error=is_error)


def test_answers_of_many_shapes():
    item = {"title": "T", "url": "u", "content": "c", "score": float("nan")}
    for value in (
        [item],
        {"results": [item]},
        {"data": {"items": [item]}},
        {"result": [item]},
        item,
        {"result": json.dumps([item])},
    ):
        (hit,) = read_answer(CallToolResult(content=[], structured_content=value), 3)
        assert (hit.id, hit.title, hit.text, hit.url, hit.score, hit.rank) == ("u", "T", "c", "u", 0.0, 1)
    assert [hit.text for hit in read_answer(text_answer(json.dumps(item), json.dumps({**item, "url": "v"})), 3)] == [
        "c",
        "c",
    ]
    assert [hit.text for hit in read_answer(text_answer("one", "two", "three"), 2)] == ["one", "two"]
    assert read_answer(text_answer("see https://a.org/x."), 1)[0].url == "https://a.org/x."
    search_r1 = {"result": [{"document": {"id": 3, "contents": '"Tea"\nhot'}, "score": 0.5}]}
    (hit,) = read_answer(CallToolResult(content=[], structured_content=search_r1), 3)
    assert (hit.id, hit.title, hit.text, hit.score) == ("3", "Tea", "hot", 0.5)


@pytest.mark.parametrize("value", [{}, [], {"results": []}, {"results": [None, 3, {}]}, {"took": 3}, 7])
def test_an_answer_without_results_is_empty(value):
    assert read_answer(CallToolResult(content=[], structured_content=value), 3) == []


def test_failures_in_answers():
    assert type(read_answer(text_answer("boom", is_error=True), 3)) is SearchError
    assert type(read_answer(text_answer("HTTP 429", is_error=True), 3)) is TransientSearchError
    assert "no credit" in str(read_answer(text_answer('{"error": "no credit"}'), 3))
    with pytest.raises(TransientSearchError, match="1 results for 2 queries"):
        read_batch_answer(text_answer('[{"hits": []}]'), ["a", "b"], 3)
    assert isinstance(read_batch_answer(text_answer("[[], 3]"), ["a", "b"], 3)[1], SearchError)


@pytest.mark.parametrize(
    "note",
    [
        "No results found.",
        "No results found for 'Monet born'. Try another query.",
        "Sorry, no relevant documents were found.",
        "No web results found for your query",
        "0 results",
        "Found 0 results for Monet.",
        "There are no matches for this query.",
        "Nothing was found.",
        "Your search - Monet - did not match any documents.",
        "We couldn't find any results.",
    ],
)
def test_a_note_that_nothing_was_found_is_no_passage(note):
    assert read_answer(text_answer(note), 3) == []
    assert read_answer(CallToolResult(content=[], structured_content={"result": note}), 3) == []
    assert len(read_answer(text_answer(note, "Monet was born in 1840."), 3)) == 2  # not alone
    assert len(read_answer(text_answer(f"{note} {'The archive was searched twice. ' * 12}"), 3)) == 1  # not short
    assert len(read_answer(text_answer(f"{note} See https://example.org/monet"), 3)) == 1
    assert len(read_answer(text_answer(f"Title: {note}\nText: A song."), 3)) == 1
    assert read_answer(text_answer("Title:"), 3) == []


@pytest.mark.parametrize(
    ("note", "kind"),
    [
        ("Error: API key invalid", SearchError),
        ("ERROR 401: unauthorized", SearchError),
        ("Error performing search: no route to host", SearchError),
        ("An error occurred while searching", SearchError),
        ("Error: 429 Too Many Requests", TransientSearchError),
    ],
)
def test_a_note_that_tells_an_error_is_a_failure(note, kind):
    failure = read_answer(text_answer(note), 3)
    assert type(failure) is kind
    assert note in str(failure)


@pytest.mark.parametrize(
    "text",
    [
        "No pages of the codex survive.",
        "No remains were found at the site until 1922.",
        "No data for Tuvalu were published until 1990.",
        "No Country for Old Men was found on many lists of the best films.",
        "Nothing Found was an album of 1990.",
        "Error correction codes were invented by Richard Hamming in 1950.",
        "Errors and Expectations is a book by Mina Shaughnessy.",
        "Nothing Compares 2 U was written by Prince.",
    ],
)
def test_a_short_passage_that_begins_like_a_note_is_a_passage(text):
    (hit,) = read_answer(text_answer(text), 3)
    assert hit.text == text


# ---- real servers over stdio -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["structured", "json-text"])
async def test_a_foreign_server_answers_each_query_and_fails_alone(mode, no_leaks):
    retriever = patient(command(FOREIGN, mode))
    results = await retriever.search_many(["a", "fails", "b", "busy"], 2)
    assert [hit.url for hit in results[0]] == ["https://x.org/a/1", "https://x.org/a/2"]
    assert results[2][1].text == "b 2"
    assert (results[2][1].score, results[2][1].rank) == (0.5, 2)
    assert type(results[1]) is SearchError
    assert "said no" in str(results[1])
    assert type(results[3]) is TransientSearchError
    await retriever.aclose()


async def test_prose_is_read(no_leaks):
    retriever = patient(command(FOREIGN, "prose"))
    results = await retriever.search_many(["x", "nothing"], 5)
    first, second = results[0]
    assert (first.title, first.url, first.date) == ("Tower of x", "https://example.org/x/1", "2024-05-06")
    assert first.text == "The first thing about x, which goes on in a second line."
    assert second.text == "The second thing."
    assert results[1] == []  # "Nothing was found."
    await retriever.aclose()


async def test_a_batch_tool_is_used_and_keeps_order_and_failures(no_leaks):
    search = Search(patient(command(FOREIGN, "batch")), attempts=1, timeout_s=200)
    found = await search.search_many(["a", "unlucky", "b"], 2)
    assert [one.hits[0].text if one.hits else str(one.error) for one in found] == [
        "a 1",
        "the MCP tool failed: no luck",
        "b 1",
    ]
    (short,) = await search.search_many(["short"], 2)
    assert "0 results for 1 queries" in str(short.error)
    await search.aclose()


async def test_our_own_server_as_a_backend(no_leaks):
    retriever = patient(command(OURS, json.dumps({"kind": "mcp-stdio"})))
    results = await retriever.search_many(["capital of Italy", "this fails", "Limmat", ""], 1)
    assert results[0][0].id == "rome"
    assert "told to fail" in str(results[1])
    assert (results[2][0].url, results[2][0].date) == ("https://z.ch", "2020-02-02")
    assert "empty" in str(results[3])
    assert retriever.describe()["tool"] == "search_batch"
    await retriever.aclose()
    one_by_one = patient(command(OURS, json.dumps({"kind": "mcp-stdio"})), tool="search")
    results = await one_by_one.search_many(["Tiber", "this fails", "Seine"], 1)
    assert [results[0][0].id, results[2][0].id] == ["rome", "paris"]
    assert "told to fail" in str(results[1])
    await one_by_one.aclose()


async def test_a_server_that_dies_is_started_again(no_leaks):
    others = children()  # the resource tracker of `multiprocessing` may be one
    retriever = patient(command(FOREIGN, "structured"))
    await retriever.search_many(["a"], 1)
    with suppress(SearchError):
        assert isinstance((await retriever.search_many(["dies"], 1))[0], TransientSearchError)
    (hits,) = await retriever.search_many(["b"], 1)
    assert hits[0].text == "b 1"
    for pid in children() - others:
        os.kill(pid, 9)
    (hits,) = await retriever.search_many(["c"], 1)
    assert hits[0].text == "c 1"
    await retriever.aclose()


async def test_a_tool_that_hangs_times_out(no_leaks):
    retriever = patient(command(FOREIGN, "batch"), timeout_s=0.5)
    await retriever.open()
    start_s = time.perf_counter()
    with pytest.raises(SearchTimeoutError, match=r"0\.5 s"):
        await retriever.search_many(["slow"], 1)
    assert time.perf_counter() - start_s < 60  # the tool takes two minutes
    await retriever.aclose()


async def test_servers_that_do_not_start_say_why(no_leaks):
    with pytest.raises(TransientSearchError, match="no API key in FOREIGN_KEY"):
        await patient(command(FOREIGN, "crashes")).search_many(["a"], 1)
    start_s = time.perf_counter()
    with pytest.raises(TransientSearchError, match="did not answer within 1 s"):
        await McpRetriever(command(FOREIGN, "silent"), connect_timeout_s=1).search_many(["a"], 1)
    assert time.perf_counter() - start_s < 100  # it would say nothing for two minutes
    with pytest.raises(UsageError, match="cannot be started"):
        await McpRetriever("/no/such/program --flag").search_many(["a"], 1)
    with pytest.raises(UsageError, match="no tool 'find'"):
        await patient(command(FOREIGN, "prose"), tool="find").search_many(["a"], 1)
    for target in ("", "'unbalanced"):
        with pytest.raises(UsageError):
            McpRetriever(target)


async def test_a_line_without_an_end_costs_its_query_alone(no_leaks):
    """Memory is that of the limit, 64 MiB, held about twice, whatever a server goes on writing."""
    retriever = McpRetriever(command(FOREIGN, "structured"), timeout_s=120)
    search = Search(retriever, attempts=1, timeout_s=240, max_batch=1)
    with bounded_memory():
        found = await search.search_many(["a", "endless", "b"], 1)
    assert [hit.text for one in found for hit in one.hits] == ["a 1", "b 1"]
    assert type(found[1].error) is SearchError
    assert "over 64 MiB" in str(found[1].error)
    (again,) = await search.search_many(["c"], 1)
    assert again.hits[0].text == "c 1"
    await search.aclose()


async def test_a_server_that_begins_with_an_endless_line_is_given_up(no_leaks):
    with bounded_memory(), pytest.raises(SearchError, match="over 64 MiB"):
        await McpRetriever(command(FOREIGN, "endless"), connect_timeout_s=120).search_many(["a"], 1)


def test_of_what_a_server_complains_the_end_is_kept():
    lines: deque[str] = deque(maxlen=5)
    with bounded_memory(20), _last_lines(lines) as errors:
        for _ in range(500):
            errors.write("x" * 100_000)
        errors.write("\nthe end\n")
        errors.flush()
        for _ in range(6000):
            if lines and lines[-1] == "the end":
                break
            time.sleep(0.01)
    assert lines[-1] == "the end"
    assert all(len(line) <= 300 for line in lines)


def test_lines_are_handed_out_whole_and_only_a_long_one_is_refused(monkeypatch):
    monkeypatch.setattr(mcp_stdio, "MAX_BODY_BYTES", 10)
    calls: list[int] = []
    with mcp_stdio.bounded_lines(lambda: calls.append(1)) as encoding:
        decoder = codecs.getincrementaldecoder(encoding)()
        text = "é" * 5 + "\n" + "ab"
        data = text.encode()
        assert [decoder.decode(data[i : i + 1]) for i in range(len(data))] == [""] * 10 + ["ééééé\n", "", ""]
        assert decoder.decode(b"c\nd\ne") == "abc\nd\n"
        assert decoder.decode(b"", final=True) == "e"
        assert decoder.decode(b"1234567890") == ""
        assert calls == []
        with pytest.raises(ConnectionError):
            decoder.decode(b"1")
        assert calls == [1]
        assert "é".encode(encoding) == b"\xc3\xa9"
    with pytest.raises(LookupError):
        codecs.lookup(encoding)


async def test_a_command_gets_the_environment_and_the_manifest_holds_no_arguments(monkeypatch, no_leaks):
    monkeypatch.setenv("FOREIGN_KEY", "abc")
    retriever = patient(command(FOREIGN, "environment"))
    assert (await retriever.search_many(["FOREIGN_KEY"], 1))[0][0].text == "abc"
    assert "foreign" not in str(retriever.describe())
    assert retriever.describe()["command"].startswith("python")
    await retriever.aclose()


def test_a_retriever_outlives_an_event_loop(no_leaks):
    retriever = patient(command(FOREIGN, "prose"))

    async def once() -> None:
        assert len((await retriever.search_many(["x", "y"], 1))[1]) == 1
        await retriever.aclose()

    for _ in range(2):
        asyncio.run(once())


# ---- real servers over HTTP ------------------------------------------------------------------------------------------


@contextmanager
def http_server(mode: str, port: int):
    process = subprocess.Popen([sys.executable, FOREIGN, mode, str(port)])
    try:
        for _ in range(6000):
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.02)
        yield process
    finally:
        process.kill()
        process.wait()


async def test_over_http_a_lost_server_is_found_again_when_it_is_back():
    port = free_port()
    retriever = McpRetriever(f"http://127.0.0.1:{port}/mcp", timeout_s=20, connect_timeout_s=20)
    with http_server("structured", port):
        results = await retriever.search_many(["a", "fails"], 2)
        assert results[0][1].text == "a 2"
        assert isinstance(results[1], SearchError)
    start_s = time.perf_counter()
    gone: object
    try:
        (gone,) = await retriever.search_many(["b"], 1)
    except TransientSearchError as error:
        gone = error
    assert isinstance(gone, TransientSearchError)
    assert time.perf_counter() - start_s < 120
    with http_server("structured", port):
        (hits,) = await retriever.search_many(["c"], 1)
        assert hits[0].text == "c 1"
        assert retriever.describe() == {"kind": "mcp", "url": f"http://127.0.0.1:{port}/mcp", "tool": "web_search"}
        await retriever.aclose()
    assert [task.get_name() for task in asyncio.all_tasks() if task.get_name() == "mcp-connection"] == []


@pytest.mark.parametrize("is_url", [False, True])
def test_two_event_loops_use_one_retriever_at_the_same_time(is_url, no_leaks):
    """Each has a connection of its own; one that closes takes none of the others' answers away."""
    with contextlib.ExitStack() as stack:
        if is_url:
            port = free_port()
            stack.enter_context(http_server("structured", port))
        retriever = patient(f"http://127.0.0.1:{port}/mcp" if is_url else command(FOREIGN, "structured"))
        both = threading.Barrier(2)
        found: list[list[str]] = []

        async def ask(name: str) -> None:
            for turn in range(4):
                await asyncio.to_thread(both.wait, 60)  # in the middle of it, both at once
                queries = [f"{name}-{turn}-{number}" for number in range(3)]
                found.append([hits[0].text for hits in await retriever.search_many(queries, 1)])
            if name == "one":
                await retriever.aclose()  # the other may be in the middle of its last call
            await asyncio.to_thread(both.wait, 60)
            await retriever.aclose()

        threads = [threading.Thread(target=lambda name=name: asyncio.run(ask(name))) for name in ("one", "two")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    expected = [[f"{name}-{turn}-{n} 1" for n in range(3)] for name in ("one", "two") for turn in range(4)]
    assert sorted(found) == sorted(expected)


# ---- on the way to a server --------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def answering(reply: bytes, tls: ssl.SSLContext | None = None):
    """A server on loopback that gives each request the same answer; its address, and what it was sent."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 " + reply + b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    try:
        yield f"http{'' if tls is None else 's'}://127.0.0.1:{server.sockets[0].getsockname()[1]}", heads
    finally:
        server.close()


async def failure_of(target: str) -> str:
    retriever = patient(target)
    with pytest.raises((SearchError, UsageError)) as caught:
        await retriever.search_many(["x"], 1)
    await retriever.aclose()
    return str(caught.value)


async def test_a_server_that_wants_a_login_says_so_before_a_model_is_asked(monkeypatch):
    monkeypatch.setenv("CORP", "X-Pass: hidden-value")
    async with answering(b"401 Unauthorized") as (url, _):
        retriever = patient(f"{url}/mcp")
        with pytest.raises(UsageError, match=r"answered 401: set PARALLELSEARCH_TOKEN to its token, or name headers"):
            await retriever.check()
        await retriever.aclose()
        retriever = patient(f"{url}/mcp", headers_env="CORP")
        with pytest.raises(UsageError, match=r"answered 401: .* or the headers in CORP to what it wants"):
            await retriever.check()
        await retriever.aclose()


@pytest.fixture
def certificate(tmp_path):
    """A certificate of one's own for 127.0.0.1, and its key."""
    made, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*request, *names, "-keyout", key, "-out", made], check=True, capture_output=True)
    return made, key


async def test_the_proxy_and_the_certificates_of_the_environment_count(monkeypatch, certificate):
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(*certificate)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    async with answering(b"403 Forbidden", tls) as (url, _):
        assert "For a certificate authority of your own set SSL_CERT_FILE" in await failure_of(f"{url}/mcp")
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate[0]))
        assert "answered 403" in await failure_of(f"{url}/mcp")
    async with answering(b"403 Forbidden") as (url, heads):
        monkeypatch.setenv("HTTP_PROXY", url)
        monkeypatch.setenv("http_proxy", url)
        assert "answered 403" in await failure_of("http://mcp.example/mcp")
        assert heads[0].startswith(b"POST http://mcp.example/mcp HTTP/1.1")


async def test_token_and_headers_are_for_the_server_of_the_address_alone(monkeypatch):
    import httpx2

    from parallelsearch.http import Credentials
    from parallelsearch.retrieval.mcp_transport import BoundedTransport

    monkeypatch.setenv("CORP", "X-Pass: hidden-value")
    monkeypatch.setenv("TOKEN", "hidden-token")
    async with answering(b"200 OK") as (home, at_home), answering(b"200 OK") as (other, elsewhere):
        transport = BoundedTransport(f"{home}/mcp", Credentials("TOKEN", "CORP"), lambda status: None)
        async with httpx2.AsyncClient(transport=transport, trust_env=False) as client:
            for url in (f"{home}/other", f"{other}/mcp", home.replace("127.0.0.1", "localhost")):
                await client.get(url)
    assert [b"hidden-value" in head and b"Bearer hidden-token" in head for head in at_home] == [True, False]
    assert b"hidden" not in elsewhere[0]

"""The search server in a process of its own, asked over plain HTTP."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import search_process
from search_process import (
    PASSAGES,
    SearchProcess,
    eventually,
    holding,
    refuses_connections,
    running,
    search_r1_client,
)

from parallelsearch.errors import SearchError, SearchTimeoutError, UsageError
from parallelsearch.retrieval.remote import RemoteRetriever
from parallelsearch.search import Search
from parallelsearch.server.limits import PendingQueries, RefusalError, ServerSettings, is_authorized
from parallelsearch.server.running import listen


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    limits = {"max_queries": 60, "max_query_chars": 200, "max_k": 50, "max_body_bytes": 50_000}
    with running(tmp_path_factory.mktemp("server"), settings=limits) as running_server:
        yield running_server


# ---- the contract ----------------------------------------------------------------------------------------------------


def test_with_scores(server: SearchProcess):
    status, reply, _ = server.post({"queries": ["capital of France", "Tiber"], "topk": 2, "return_scores": True})
    assert status == 200
    assert list(reply) == ["result"]
    first = reply["result"][0][0]
    assert first["document"] == {
        "id": "paris",
        "title": "Paris",
        "text": PASSAGES[0].text,
        "contents": f'"Paris"\n{PASSAGES[0].text}',
    }
    assert first["score"] > 0
    assert [hit["document"]["id"] for hit in reply["result"][1]] == ["rome"]


@pytest.mark.parametrize("num_queries", [1, 2, 3])  # with two, Search-R1's own server answers wrongly without scores
def test_without_scores_which_is_the_default(server: SearchProcess, num_queries):
    queries = ["Seine", "Tiber", "Manzanares"][:num_queries]
    _, bare, _ = server.post({"queries": queries, "topk": 1})
    _, same, _ = server.post({"queries": queries, "topk": 1, "return_scores": False})
    assert bare == same
    assert [[document["id"] for document in documents] for documents in bare["result"]] == [
        ["paris"],
        ["rome"],
        ["madrid"],
    ][:num_queries]
    assert set(bare["result"][0][0]) == {"id", "title", "text", "contents"}


@pytest.mark.parametrize("topk", [None, 0, 3, 3.0])
def test_topk_may_be_left_to_the_server(server: SearchProcess, topk):
    _, reply, _ = server.post({"queries": ["capital"], "topk": topk})
    assert len(reply["result"][0]) == 3
    assert server.post({"queries": ["capital"]})[1] == reply


def test_edges_of_a_request(server: SearchProcess):
    assert server.post({"queries": []})[1] == {"result": []}
    assert len(server.post({"queries": ["capital"], "topk": 50})[1]["result"][0]) == len(PASSAGES)  # k > corpus
    _, reply, _ = server.post(
        {"queries": ["Zürich 😀", "capital\x00\x1b", "zzz"], "topk": 1, "return_scores": True, "other": 1}
    )
    assert reply["result"][0][0]["document"]["date"] == "2020-02-02"
    assert reply["result"][0][0]["document"]["metadata"] == PASSAGES[3].metadata
    assert "metadata" not in reply["result"][1][0]["document"]
    assert reply["result"][0][0]["document"]["contents"] == f'"The "odd" one"\n{PASSAGES[3].text}'
    assert reply["result"][1][0]["document"]["text"]
    assert reply["result"][2] == []


def test_one_query_of_fifty_fails_in_its_place(server: SearchProcess):
    queries = ["capital of Italy"] * 50
    queries[17], queries[18] = "this fails", "  "
    status, reply, _ = server.post({"queries": queries, "topk": 1, "return_scores": True})
    assert status == 200
    assert [len(hits) for hits in reply["result"]] == [0 if i in (17, 18) else 1 for i in range(50)]
    assert reply["errors"] == {
        "17": {"kind": "failed", "message": "told to fail"},
        "18": {"kind": "failed", "message": "the query is empty"},
    }


# ---- clients ---------------------------------------------------------------------------------------------------------


def test_a_search_r1_client_works_unchanged(server: SearchProcess):
    texts = search_r1_client(server.url, ["capital of Spain", "it fails", "Seine"], 1)
    assert texts == [f'Doc 1(Title: "Madrid") {PASSAGES[2].text}\n', "", f'Doc 1(Title: "Paris") {PASSAGES[0].text}\n']


async def test_our_own_client_gets_hits_failures_and_isolates_a_query_of_100_kb(server: SearchProcess):
    search = Search(RemoteRetriever(server.url), max_query_chars=200_000)
    found = await search.search_many(["Tiber", "this fails", "x" * 100_000, "Seine", "Zürich"], 2)
    await search.aclose()
    assert [one.hits[0].id if one.hits else None for one in found] == ["rome", None, None, "paris", "odd"]
    assert str(found[1].error) == "told to fail"
    assert "413" in str(found[2].error)
    assert found[4].hits[0].url == "https://z.ch"


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 400, "not JSON"),
        (b"\xff\xfe", 400, "not JSON"),
        (b"[" * 10_000, 400, "not JSON"),
        (b"[" * 40_000, 422, "over 16444 values"),
        (b'{"queries": [' + b"[]," * 9_000 + b"[]]}", 422, "over 16444 values"),
        ([], 422, "not a list"),
        ({}, 422, "missing"),
        ({"queries": "a"}, 422, "found a string"),
        ({"queries": ["a", 3]}, 422, "number 1 is a number"),
        ({"queries": ["a", None]}, 422, "number 1 is null"),
        ({"queries": ["a"] * 61}, 422, "61 entries, the limit is 60"),
        ({"queries": ["a", "b" * 201]}, 422, "query number 1 has 201 characters, the limit is 200"),
        ({"queries": ["a"], "topk": 51}, 422, "from 1 to 50, not 51"),
        ({"queries": ["a"], "topk": -1}, 422, "from 1 to 50, not -1"),
        ({"queries": ["a"], "topk": "3"}, 422, "a whole number or null, not a string"),
        ({"queries": ["a"], "filter": {"page": 3}}, 422, "'bm25?where=page=3:DIR'"),
        ({"queries": ["a"], "topk": 2.5}, 422, "a whole number"),
        ({"queries": ["a"], "topk": {}}, 422, "a whole number or null, not an object"),
        ({"queries": ["a"], "topk": False}, 422, "a whole number"),
        ({"queries": ["a"], "topk": True}, 422, "a whole number"),
        ({"queries": ["a"], "return_scores": "yes"}, 422, "true or false"),
        ({"queries": ["a" * 100_000]}, 413, "50000 bytes"),
    ],
)
def test_a_bad_request_is_told_why(server: SearchProcess, body, status, message):
    found_status, reply, _ = server.post(body)
    assert (found_status, list(reply)) == (status, ["detail"])
    assert message in reply["detail"]


def test_a_body_without_a_length_is_cut_off_too(server: SearchProcess):
    host, port = server.base_url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=400) as sock:
        sock.sendall(b"POST /retrieve HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(6):
            sock.sendall(b"2710\r\n" + b"x" * 10_000 + b"\r\n")
        assert b" 413 " in sock.recv(1000)


def test_a_client_that_leaves_in_the_middle_disturbs_nobody(server: SearchProcess):
    host, port = server.base_url.removeprefix("http://").split(":")
    for sent in (b"POST /retrieve HTTP/1.1\r\nContent-Length: 100\r\n\r\n{", b"POST /ret", b"\x00\x01\x02\r\n\r\n"):
        with socket.create_connection((host, int(port)), timeout=400) as sock:
            sock.sendall(sent)
    assert server.post({"queries": ["Seine"]})[0] == 200
    assert not [line for line in server.log() if "traceback" in line]


# ---- what it says of itself ------------------------------------------------------------------------------------------


def test_health_metrics_and_logs(server: SearchProcess):
    server.post({"queries": ["Seine", "Seine", "fails"], "topk": 1})
    server.post({"queries": ["Seine"], "topk": 1})
    server.post({})
    status, health, _ = server.get("/health")
    assert (status, health["status"], health["pending_queries"]) == (200, "ok", 0)
    assert health["search"]["k"] == 3
    _, metrics, headers = server.get("/metrics")
    assert headers["content-type"].startswith("text/plain")
    values = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if not line.startswith("#"))
    assert float(values['parallelsearch_requests_total{status="200"}']) >= 2
    assert float(values['parallelsearch_requests_total{status="422"}']) >= 1
    for outcome in ("found", "cached", "failed"):
        assert float(values[f'parallelsearch_queries_total{{outcome="{outcome}"}}']) >= 1
    assert float(values["parallelsearch_search_calls_total"]) >= 1
    assert float(values["parallelsearch_pending_queries"]) == 0
    refused, answered = server.log()[-1], server.log()[-2]
    assert (answered["event"], answered["status"], answered["num_queries"], answered["num_cached"]) == (
        "retrieve",
        200,
        1,
        1,
    )
    assert answered["elapsed_ms"] > 0
    assert refused["status"] == 422
    assert "Seine" not in server.log_file.read_text()  # what people ask is their own business


def test_the_routes_are_documented(server: SearchProcess):
    _, schema, _ = server.get("/openapi.json")
    body = schema["paths"]["/retrieve"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["required"] == ["queries"]


# ---- load, shutdown, access ------------------------------------------------------------------------------------------


def test_queries_of_many_clients_meet_in_batches(tmp_path):
    with (
        running(tmp_path, hold=str(tmp_path / "hold")) as server,
        ThreadPoolExecutor(64) as pool,
        holding(tmp_path / "hold") as let_go,
    ):
        asked = [pool.submit(server.post, {"queries": [f"capital {n}"], "topk": 1}) for n in range(64)]
        eventually(lambda: server.get("/health")[1]["pending_queries"] == 64)
        let_go()
        assert {one.result()[0] for one in asked} == {200}
        _, metrics, _ = server.get("/metrics")
    calls = float(
        next(line for line in metrics.splitlines() if line.startswith("parallelsearch_search_calls_total ")).split()[1]
    )
    assert calls <= 4  # those that found it free, and those that waited, together


def test_a_full_queue_says_when_to_come_again(tmp_path):
    options = {"hold": str(tmp_path / "hold"), "max_batch": 4, "settings": {"max_pending_queries": 8, "max_queries": 4}}
    with (
        running(tmp_path, **options) as server,
        ThreadPoolExecutor(6) as pool,
        holding(tmp_path / "hold") as let_go,
    ):
        bodies = [{"queries": [f"capital {n} {i}" for i in range(4)]} for n in range(6)]
        taken = [pool.submit(server.post, body) for body in bodies[:2]]
        eventually(lambda: server.get("/health")[1]["pending_queries"] == 8)
        refused = list(pool.map(server.post, bodies[2:]))
        assert [status for status, _, _ in refused] == [503] * 4
        assert all(int(headers["retry-after"]) >= 1 for _, _, headers in refused)
        assert "the limit is 8" in refused[0][1]["detail"]
        let_go()
        assert [one.result()[0] for one in taken] == [200, 200]
        assert server.post({"queries": ["Seine"]})[0] == 200  # there is room again


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_requests_that_were_taken_are_answered_before_the_server_ends(tmp_path, number):
    options = {"hold": str(tmp_path / "hold"), "max_batch": 8, "settings": {"max_queries": 4}}
    with running(tmp_path, **options) as server, holding(tmp_path / "hold") as let_go:
        replies: list = []
        clients = [
            threading.Thread(
                target=lambda n=n: replies.append(server.post({"queries": [f"Tiber {n}", f"Seine {n}"], "topk": 1}))
            )
            for n in range(3)
        ]
        for client in clients:
            client.start()
        eventually(lambda: server.get("/health")[1]["pending_queries"] == 6)
        server.process.send_signal(number)
        eventually(lambda: refuses_connections(server.url))  # it has seen the signal
        let_go()
        for client in clients:
            client.join(120)
        assert server.process.wait(120) == 0
        assert [status for status, _, _ in replies] == [200, 200, 200]
        assert all([hits[0]["id"] for hits in reply["result"]] == ["rome", "paris"] for _, reply, _ in replies)
        assert server.log()[-1]["event"] == "stopped"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_search_processes_are_replaced_when_they_die_and_end_with_the_server(tmp_path, number):
    with running(tmp_path, workers=2, latency_s=0.3, search={"cache_size": 0}) as server:
        children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
        searching = [pid for pid in children.read_text().split() if b"spawn_main" in _command(pid)]
        assert len(searching) == 2
        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(server.post, {"queries": [f"Seine {n}", "fails"], "topk": 1}) for n in range(8)]
            os.kill(int(searching[0]), signal.SIGKILL)
            replies = [one.result() for one in asked]
        assert [(status, reply["result"][0][0]["id"]) for status, reply, _ in replies] == [(200, "paris")] * 8
        assert all(reply["errors"]["1"]["message"] == "told to fail" for _, reply, _ in replies)
        if number == signal.SIGINT:  # Ctrl-C reaches every process of the terminal
            os.kill(int(searching[1]), number)
            assert server.post({"queries": ["Seine"], "topk": 1})[0] == 200
        left = children.read_text().split()
        server.process.send_signal(number)
        assert server.process.wait(120) == 0
        assert [pid for pid in left if b"spawn_main" in _command(pid)] == []


def _command(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_a_token_is_wanted_when_one_is_set(tmp_path):
    with running(tmp_path, settings={"token": "open sesame"}) as server:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic open sesame"}):
            status, reply, answered = server.post({"queries": ["a"]}, headers)
            assert (status, answered["www-authenticate"]) == (401, "Bearer")
            assert "PARALLELSEARCH_TOKEN" in reply["detail"]
            assert server.get("/metrics", headers)[0] == 401
        assert server.get("/health")[1].keys() == {"status", "uptime_s"}
        right = {"Authorization": "Bearer open sesame"}
        assert server.post({"queries": ["Seine"]}, right)[0] == 200
        assert "search" in server.get("/health", right)[1]
        assert "sesame" not in server.log_file.read_text()


def test_only_a_name_of_its_own_is_answered(tmp_path):
    """On loopback, a page of another site may have rebound its name to this machine."""
    with running(tmp_path) as server:
        for host, status in (("evil.example", 421), ("evil.example:80", 421), ("localhost:9", 200), ("[::1]", 200)):
            assert server.post({"queries": ["Seine"]}, {"Host": host})[0] == status
            assert server.get("/metrics", {"Host": host})[0] == status
            assert ("search" in server.get("/health", {"Host": host})[1]) == (status == 200)
        assert "--allowed-host" in server.post({"queries": ["Seine"]}, {"Host": "evil.example"})[1]["detail"]
    with running(tmp_path, settings={"allowed_hosts": ["Search.example"]}) as server:
        assert server.post({"queries": ["Seine"]}, {"Host": "search.example:443"})[0] == 200
        assert server.post({"queries": ["Seine"]})[0] == 421


def test_an_open_door_is_warned_about_and_a_taken_port_is_said(tmp_path):
    with running(tmp_path, settings={"host": "0.0.0.0"}) as server:
        warnings = [line for line in server.log() if line["level"] == "warning"]
        assert [line["event"] for line in warnings] == ["open to the network without a token"]
        port = int(server.base_url.rpartition(":")[2])
        with pytest.raises(UsageError, match=rf"port {port}: Address already in use; .*--port"):
            listen("127.0.0.1", port)
    with pytest.raises(UsageError, match="cannot listen on 'no-such-host"):
        listen("no-such-host.invalid", 0)


def test_the_port_in_use_ends_the_program_with_its_own_message(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        options = json.dumps({"settings": {"port": taken.getsockname()[1]}})
        ended = subprocess.run(
            [sys.executable, search_process.__file__, options], capture_output=True, text=True, timeout=400
        )
    assert ended.returncode == 1
    assert "UsageError: cannot listen on 127.0.0.1 port" in ended.stderr.splitlines()[-1]


async def test_a_search_goes_on_while_one_server_of_two_is_stopped(tmp_path: Path):
    with running(tmp_path, latency_s=0.02) as one, running(tmp_path, latency_s=0.02) as two:
        search = Search(RemoteRetriever([one.url, two.url]), cache_size=0, first_wait_s=0.01)
        failures = []
        for n in range(60):
            found = await search.search_many([f"Seine {n}", f"Tiber {n}"], 1)
            failures += [one.error for one in found if one.error]
            if n == 20:
                one.process.kill()
        await search.aclose()
    assert failures == []


# ---- small parts -----------------------------------------------------------------------------------------------------


def test_the_queue_estimates_when_there_is_room():
    pending = PendingQueries(10)
    pending.take(10)
    with pytest.raises(RefusalError) as caught:
        pending.take(1)
    assert (caught.value.status, caught.value.retry_after_s) == (503, 1)
    pending.answered(10)
    pending.take(10)


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(UsageError, match="max_pending_queries"):
        ServerSettings(max_queries=10, max_pending_queries=5)
    with pytest.raises(UsageError, match="port"):
        ServerSettings(port=70_000)
    with pytest.raises(UsageError, match="max_k"):
        ServerSettings(max_k=0)


def test_the_token_comes_from_the_environment_and_is_not_shown(monkeypatch):
    monkeypatch.setenv("PARALLELSEARCH_TOKEN", "s3cret")
    settings = ServerSettings()
    assert settings.token == "s3cret"
    assert "s3cret" not in repr(settings)
    assert is_authorized("bearer s3cret", settings.token)
    assert not is_authorized("s3cret", settings.token)
    assert not is_authorized(None, settings.token)


def test_error_kinds_cover_every_search_error():
    from parallelsearch.retrieval.remote import error_of

    assert error_of(SearchTimeoutError("x"))["kind"] == "timeout"
    assert error_of(SearchError("x"))["kind"] == "failed"

"""The viewer's server: pages of the index, one record at a time, and nothing that was not meant to be shown."""

from __future__ import annotations

import http.client
import json
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from viewer_process import viewer
from viewer_runs import NUM_QUESTIONS, evaluation_run, hostile_trajectory

from parallelsearch.trajectory import Trajectory, write_trajectories
from parallelsearch.viewer.app import MAX_ROWS
from parallelsearch.viewer.template import SCRIPTS


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return evaluation_run(tmp_path_factory.mktemp("served") / "parallel")


@pytest.fixture(scope="module")
def address(run):
    with viewer(run) as url:
        wait_until_read(url)
        yield url


def wait_until_read(url: str, **options) -> dict:
    for _ in range(4_000):
        head = httpx.get(f"{url}/api/runs", timeout=400, **options).json()
        if all(one["is_complete"] and one["is_judged"] for one in head["runs"]):
            return head
        time.sleep(0.05)
    raise AssertionError("the index is not complete after 200 s")


def raw(url: str, path: str, method: str = "GET", host: str | None = None) -> tuple[int, bytes]:
    """The path as it stands: no client tidies it up."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=400)
    connection.putrequest(method, path, skip_host=host is not None)
    if host is not None:
        connection.putheader("Host", host)
    connection.endheaders()
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, body


def test_rows_and_records(address, run):
    head = wait_until_read(address)
    assert head["runs"][0]["name"] == "parallel"
    page = httpx.get(f"{address}/api/rows?run=0&start=0").json()
    assert (len(page["rows"]), page["is_complete"]) == (NUM_QUESTIONS, True)
    assert httpx.get(f"{address}/api/rows?run=0&start={NUM_QUESTIONS}").json()["rows"] == []
    lines = (run / "trajectories.jsonl").read_text().splitlines()
    for number in (0, NUM_QUESTIONS - 1):
        record = httpx.get(f"{address}/api/record?run=0&row={number}").json()
        assert record["question"] == json.loads(lines[number])["question"]
        assert [s["text"] for s in record["segments"]] == [s["text"] for s in json.loads(lines[number])["segments"]]


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("run=0&row=99", 404),
        ("run=7&row=0", 404),
        ("run=0&row=-1", 400),
        ("run=0", 400),
        ("run=../../etc&row=0", 400),
        ("run=0&row=٣", 400),
        ("run=0&row=" + "9" * 400, 400),
        ("run=0&row=1.5", 400),
    ],
)
def test_wrong_numbers_are_refused(address, query, status):
    answer = httpx.get(f"{address}/api/record?{query}")
    assert answer.status_code == status
    assert answer.json()["detail"]


@pytest.mark.parametrize(
    "path",
    [
        "/../trajectories.jsonl",
        "/..%2f..%2fetc%2fpasswd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/viewer.html",
        "/viewer.js/../../index.py",
        "/assets/viewer.js",
        "/trajectories.jsonl",
        "/summary.json",
        "/api/record/../../manifest.json",
        "/viewer.css%00.jsonl",
        "/docs",
        "/openapi.json",
    ],
)
def test_there_are_no_other_files(address, path):
    status, body = raw(address, path)
    assert status == 404
    assert b"root:" not in body
    assert b"trajectories_bytes" not in body


def test_only_reading(address):
    for path in ("/", "/api/runs", "/api/record?run=0&row=0"):
        assert raw(address, path, "POST")[0] == 405
        assert raw(address, path, "DELETE")[0] == 405


def test_other_names_of_this_machine_are_refused(address):
    for path in ("/", "/viewer.js", "/api/runs", "/api/record?run=0&row=0", "/health"):
        assert raw(address, path, host="evil.example")[0] == 421
        assert raw(address, path, host="evil.example:80")[0] == 421
    assert raw(address, "/api/runs", host="localhost:1")[0] == 200
    assert raw(address, "/api/runs", host="[::1]:1")[0] == 200


def test_every_answer_has_its_policy(address):
    for path in ("/", "/viewer.css", *(f"/{name}" for name in SCRIPTS), "/api/runs", "/api/record?run=0&row=99"):
        headers = httpx.get(address + path).headers
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers
    assert httpx.get(f"{address}/api/runs").headers["content-type"].startswith("application/json")


def test_a_token_guards_what_is_in_the_runs(run):
    with viewer(run, token="s3cret") as url:
        assert httpx.get(f"{url}/").status_code == 200  # the page itself, which asks for the token
        for path in ("/api/runs", "/api/rows?run=0&start=0", "/api/record?run=0&row=0", "/health"):
            answer = httpx.get(url + path)
            assert answer.status_code == 401
            assert "s3cret" not in answer.text
            assert httpx.get(url + path, headers={"Authorization": "Bearer wrong"}).status_code == 401
        wait_until_read(url, headers={"Authorization": "Bearer s3cret"})


def test_a_run_that_grows_is_followed(tmp_path):
    path = tmp_path / "trajectories.jsonl"
    write_trajectories(path, [Trajectory(f"question {n}?", id=f"q{n}") for n in range(3)])
    with viewer(tmp_path) as url:
        assert wait_until_read(url)["runs"][0]["num_rows"] == 3
        with path.open("a") as file:
            file.write(hostile_trajectory().to_json() + '\n{"question": "torn')
        httpx.get(f"{url}/api/runs")
        for _ in range(100):
            head = wait_until_read(url)["runs"][0]
            if head["num_rows"] == 4 and head["notes"]:
                break
        assert head["num_rows"] == 4
        assert "not complete" in head["notes"][0]
        path.unlink()
        answer = httpx.get(f"{url}/api/record?run=0&row=0")
        assert answer.status_code == 409
        assert "cannot be read any more" in answer.json()["detail"]


def test_an_answer_holds_a_bounded_number_of_rows(tmp_path):
    path = tmp_path / "trajectories.jsonl"
    line = Trajectory("Q?").to_json() + "\n"
    path.write_text(line * (MAX_ROWS + 10))
    with viewer(path) as url:
        wait_until_read(url)
        assert len(httpx.get(f"{url}/api/rows?run=0&start=0").json()["rows"]) == MAX_ROWS
        assert len(httpx.get(f"{url}/api/rows?run=0&start={MAX_ROWS}").json()["rows"]) == 10

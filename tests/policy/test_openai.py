"""The policy behind an OpenAI-compatible server, against real servers on loopback that misbehave in every way known."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from fault_server import (
    ANSWER,
    DONE,
    SEARCH,
    Exchange,
    FaultServer,
    ask,
    chunk,
    engine,
    events,
    failure,
    half_body,
    hang,
    hang_up,
    models,
    policy_for,
    raw,
    status,
    usage_chunk,
)

from free_ports import free_port
from parallelsearch import grammar
from parallelsearch.errors import UsageError
from parallelsearch.policy.base import Generation, Sampling
from parallelsearch.policy.openai import OpenAIPolicy
from parallelsearch.trajectory import Segment

KEY = "sk-very-secret-1234"


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


# ---- what is sent ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_heard", [True, False])
async def test_chat_request_holds_the_turns_as_messages(is_heard: bool) -> None:
    segments = [
        Segment("prompt", "Who is older?"),
        Segment("model", SEARCH),
        Segment("search", "<information> a </information>"),
        Segment("notice", "\nAnswer now.\n"),
    ]
    async with FaultServer(engine(ANSWER)) as server:
        await ask(policy_for(server), segments, [] if is_heard else None, max_tokens=77)
    assert server.requests[0].path == "/v1/chat/completions"
    assert server.bodies[0] == {
        "model": "tiny",
        "messages": [
            {"role": "user", "content": "Who is older?"},
            {"role": "assistant", "content": SEARCH},
            {"role": "user", "content": "<information> a </information>\nAnswer now.\n"},
        ],
        "max_tokens": 77,
        "temperature": 0.0,
        "stop": ["</search>", "</answer>"],
        **({"stream": True, "stream_options": {"include_usage": True}} if is_heard else {"stream": False}),
    }


async def test_completions_request_holds_the_whole_text() -> None:
    segments = [Segment("prompt", "Q\n"), Segment("model", SEARCH), Segment("search", "\nR\n")]
    async with FaultServer(engine(ANSWER)) as server:
        policy = policy_for(server, api="completions", stream=False)
        await ask(policy, segments, sampling=Sampling(temperature=0.7, top_p=0.9, seed=5))
        assert policy.describe()["continuation"] == "text"
    body = server.bodies[0]
    assert server.requests[0].path == "/v1/completions"
    assert body["prompt"] == f"Q\n{SEARCH}\nR\n"
    assert (body["temperature"], body["top_p"], body["seed"], body["stream"]) == (0.7, 0.9, 5, False)
    assert "stream_options" not in body


async def test_extra_body_is_merged_and_none_leaves_a_field_out() -> None:
    async with FaultServer(engine(ANSWER)) as server:
        policy = policy_for(server, extra_body={"stop": None, "top_k": 5, "temperature": 0.3})
        await ask(policy)
    body = server.bodies[0]
    assert "stop" not in body
    assert (body["top_k"], body["temperature"]) == (5, 0.3)
    with pytest.raises(UsageError, match="extra_body goes into a JSON request"):
        OpenAIPolicy("http://h/v1", extra_body={"a": object()})


async def test_connections_are_used_again() -> None:
    async with FaultServer(engine(SEARCH)) as server:
        policy = policy_for(server)
        for _ in range(4):
            await policy.generate(
                [Segment("prompt", "Q")], stop=grammar.STOP_STRINGS, max_tokens=9, sampling=Sampling(), session="s"
            )
        await policy.aclose()
    assert server.num_connections == 1


async def test_many_rollouts_at_once_do_not_wait_for_each_other() -> None:
    all_are_there = asyncio.Event()

    async def when_all_are_there(exchange: Exchange) -> None:
        if len(server.requests) == 150:
            all_are_there.set()
        await all_are_there.wait()  # a pool of 100 connections would wait for ever
        await engine(SEARCH)(exchange)

    async with FaultServer(when_all_are_there) as server:
        policy = policy_for(server)
        all_of_them = await asyncio.gather(*(ask_open(policy) for _ in range(150)))
        await policy.aclose()
    assert [generation.text for generation in all_of_them] == [SEARCH] * 150


async def ask_open(policy: OpenAIPolicy) -> Generation:
    prompt = [Segment("prompt", "Q")]
    return await policy.generate(prompt, stop=grammar.STOP_STRINGS, max_tokens=9, sampling=Sampling(), session="s")


def test_one_policy_serves_several_event_loops() -> None:
    policy: OpenAIPolicy | None = None

    async def once() -> str:
        nonlocal policy
        async with FaultServer(engine(ANSWER)) as server:
            policy = policy or policy_for(server)
            policy._url = server.url
            return (await ask_open(policy)).text

    assert asyncio.run(once()) == asyncio.run(once()) == ANSWER


# ---- trouble that passes ---------------------------------------------------------------------------------------------


async def test_retry_after_in_seconds_is_obeyed() -> None:
    async with FaultServer(status(429, retry_after="0.3"), engine(ANSWER)) as server:
        generation = await ask(policy_for(server, max_wait_s=1.0))
    first, second = server.requests
    assert generation.text == ANSWER
    assert second.time_s - first.time_s >= 0.29


async def test_retry_after_as_a_date_is_obeyed() -> None:
    async def busy(exchange: Exchange) -> None:
        until = format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True)
        await status(503, retry_after=until)(exchange)

    async with FaultServer(busy, engine(ANSWER)) as server:
        generation = await ask(policy_for(server, max_wait_s=5.0))
    first, second = server.requests
    assert generation.text == ANSWER
    assert second.time_s - first.time_s >= 0.5  # a date has whole seconds only


async def test_retry_after_beyond_the_limit_fails_at_once() -> None:
    async with FaultServer(status(429, retry_after="3600")) as server:
        message = await failure(policy_for(server, max_wait_s=30.0))
    assert "asks to wait 3600 s, more than the 30 s allowed" in message
    assert "answered 429" in message
    assert "Write ?max_wait_s=3600 before the '#'" in message
    assert len(server.requests) == 1


async def test_the_page_of_a_proxy_is_quoted_without_its_markup() -> None:
    page = "<!DOCTYPE html>\n<html><head><title>x</title><style>p {color: red}</style></head><body><h1>529 Busy</h1>"
    async with FaultServer(status(529, page + "<p>Come back later &amp; relax.</p></body></html>")) as server:
        message = await failure(policy_for(server, max_attempts=1))
    assert message.endswith("answered 529 X: 529 Busy Come back later & relax.")


@pytest.mark.parametrize(
    "trouble",
    [
        status(500),
        status(502, "<html>bad gateway</html>"),
        status(408),
        hang_up,
        half_body,
        events(after="hang_up"),
        events(chunk(""), after="hang_up"),
        events(),
        status(200, {"error": {"message": "overloaded", "code": 503}}),
        status(200, {"error": {"message": "overloaded", "code": "503"}}),
    ],
)
async def test_passing_trouble_is_tried_again(trouble: Any) -> None:
    pieces: list[str] = []
    async with FaultServer(trouble, engine(ANSWER)) as server:
        generation = await ask(policy_for(server), pieces=pieces)
    assert generation.text == "".join(pieces) == ANSWER
    assert len(server.requests) == 2


async def test_trouble_that_stays_is_reported_with_the_number_of_attempts() -> None:
    async with FaultServer(status(500, {"error": {"message": "boom"}})) as server:
        message = await failure(policy_for(server, max_attempts=3))
    assert re.search(r"model server .*/chat/completions answered 500.*boom \(after 3 attempts\)", message)
    assert len(server.requests) == 3


async def test_broken_stream_is_begun_again_without_saying_anything_twice() -> None:
    pieces: list[str] = []
    broken = events(chunk(ANSWER[:9]), chunk(ANSWER[9:20]), after="hang_up")
    async with FaultServer(broken, engine(ANSWER)) as server:
        generation = await ask(policy_for(server), pieces=pieces)
    assert generation.text == "".join(pieces) == ANSWER
    assert len(server.requests) == 2


@pytest.mark.parametrize("cut", [b'{"', "Ü".encode()[:1], "Ü".encode(), b'"finish_reason":"stop"}]', b"data: [DO"])
async def test_a_stream_that_ends_inside_an_event_has_broken_off(cut: bytes) -> None:
    """Where a body ends with its connection, HTTP does not tell that it was cut."""
    text = "<answer> Ü"
    data = "\n\n".join([chunk("<answer> "), chunk("Ü", "stop"), DONE]).encode()
    data = data[: data.rindex(cut) + len(cut)]
    is_whole = b"[DO" in data

    async def broken(exchange: Exchange) -> None:
        await exchange.raw(b"HTTP/1.1 200 X\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n" + data)
        raise ConnectionError

    pieces: list[str] = []
    async with FaultServer(broken, engine(f"{text} </answer>")) as server:
        generation = await ask(policy_for(server), pieces=pieces)
    assert generation.text == "".join(pieces) == (f"{text}</answer>" if is_whole else f"{text} </answer>")
    assert len(server.requests) == (1 if is_whole else 2)


@pytest.mark.parametrize(("second", "words"), [(SEARCH, "something else"), (ANSWER[:12], "said less")])
async def test_broken_stream_that_cannot_be_repeated_is_an_error(second: str, words: str) -> None:
    pieces: list[str] = []
    broken = events(chunk(ANSWER[:20]), after="hang_up")
    async with FaultServer(broken, engine(second)) as server:
        assert words in await failure(policy_for(server), pieces)
    assert "".join(pieces) == ANSWER[:20]
    async with FaultServer(broken, engine(SEARCH)) as server:  # nobody has heard the first attempt: no harm done
        assert (await ask(policy_for(server))).text == SEARCH


# ---- trouble that stays ----------------------------------------------------------------------------------------------


async def test_silence_is_cut_short() -> None:
    async with FaultServer(hang) as server:
        assert "did not answer in time" in await failure(policy_for(server, read_timeout_s=1), [])
        assert len(server.requests) == 1
    async with FaultServer(events(chunk("half a"), after="hang")) as server:
        assert "did not answer in time" in await failure(policy_for(server, read_timeout_s=1), [])


@pytest.mark.parametrize("stream", [True, False])
async def test_turn_has_a_time_limit_of_its_own(stream: bool) -> None:
    async with FaultServer(engine("word " * 1000, pause_s=0.05) if stream else hang) as server:
        start_s = time.perf_counter()
        message = await failure(policy_for(server, timeout_s=0.4, stream=stream))
    assert time.perf_counter() - start_s < 30  # the whole turn would take a minute
    assert re.search(r"did not (finish the turn within 0.4 s|answer in time)", message)


@pytest.mark.parametrize("stream", [True, False])
async def test_cancelling_a_turn_closes_its_connection(stream: bool) -> None:
    async with FaultServer(engine("word " * 1000, pause_s=0.02) if stream else hang) as server:
        policy = policy_for(server, stream=stream)
        turn = asyncio.ensure_future(ask_open(policy))
        for _ in range(6_000):
            if server.requests:
                break
            await asyncio.sleep(0.01)
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        for _ in range(6_000):
            if server.requests[0].is_cut_off:
                break
            await asyncio.sleep(0.01)
        await policy.aclose()
    assert server.requests[0].is_cut_off


async def test_server_that_is_down() -> None:
    message = await failure(OpenAIPolicy(f"http://127.0.0.1:{free_port()}/v1", "tiny", max_attempts=2, max_wait_s=0.05))
    assert "refused the connection; is it running?" in message
    assert "(after 2 attempts)" in message


async def test_unknown_host_fails_at_once() -> None:
    assert "unknown host name" in await failure(OpenAIPolicy("http://no-such-host.invalid/v1", "tiny"))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{not json", "not JSON: '{not json'"),
        (b"<html>hello</html>", "not JSON: '<html>hello</html>'"),
        (b'"text"', "where a JSON object belongs"),
        (b"{}", "has no 'choices'"),
        (b'{"choices": []}', "empty list of 'choices'"),
        (b'{"choices": ["x"]}', "where a choice belongs"),
        (b'{"choices": [{"message": {"content": 5}, "finish_reason": "stop"}]}', "sent 5 where text belongs"),
        (b'{"choices": [{"message": "hello", "finish_reason": "stop"}]}', "where a message belongs"),
        (b'{"error": "out of memory"}', "reported an error: out of memory"),
        (b"\xff\xfe", "not JSON"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_answers_that_make_no_sense(body: bytes, words: str, stream: bool) -> None:
    behaviour = raw(b"data: " + body + b"\n\n", "text/event-stream") if stream else raw(body)
    async with FaultServer(behaviour) as server:
        assert words in await failure(policy_for(server, stream=stream))
    assert len(server.requests) == 1


async def test_a_stream_without_an_end_is_no_answer_without_choices() -> None:
    """The usage comes in an event without choices, also where the gateway has dropped the one that ends the turn."""
    async with FaultServer(events(chunk("Mon"), usage_chunk(3), DONE)) as server:
        assert "ended before the turn did (after 2 attempts)" in await failure(policy_for(server, max_attempts=2))


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_an_answer_that_grows_without_end_is_refused_at_the_limit(kind: str) -> None:
    async def bomb(exchange: Exchange) -> None:
        packed = gzip.compress(gzip.compress(b"data: " + bytes(200 << 20), 1))
        await exchange.body(packed, headers={"Content-Encoding": "gzip, gzip"}, kind=kind)

    async def endless(exchange: Exchange) -> None:
        await exchange.head(200, kind)
        while True:
            await exchange.send(b": nothing\n\n" * 50_000)

    for behaviour in (bomb, endless):
        async with FaultServer(behaviour) as server:
            message = await failure(policy_for(server))
        assert re.search(r"sent over 64 MiB; the answer was dropped|an event of more than", message)
        assert len(server.requests) == 1


async def test_context_that_is_too_long_is_named() -> None:
    detail = "This model's maximum context length is 2048 tokens, 'max_tokens' or 'max_completion_tokens' is too large"
    async with FaultServer(status(400, {"error": {"message": detail}})) as server:
        assert "no longer fits into the model's context" in await failure(policy_for(server))
    assert len(server.requests) == 1


async def test_empty_purse_is_not_waited_for() -> None:
    body = {"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}}
    async with FaultServer(status(429, body)) as server:
        assert "exceeded your quota" in await failure(policy_for(server))
    assert len(server.requests) == 1


async def test_redirect_is_told_not_followed() -> None:
    async with FaultServer(status(301, "", location="http://elsewhere/v1")) as server:
        assert "redirects to http://elsewhere/v1: use that address" in await failure(policy_for(server))


# ---- servers with other words ----------------------------------------------------------------------------------------


async def test_fields_a_server_does_not_know_are_left_out_from_then_on() -> None:
    unknown = "Unexpected fields in the request: {'stream_options', 'seed'}"
    async with FaultServer(status(422, {"detail": unknown}), engine(ANSWER)) as server:
        policy = policy_for(server, stream=True)
        for _ in range(2):
            generation = await ask(policy, sampling=Sampling(temperature=1.0, seed=3))
    assert generation.text == ANSWER
    assert [set(body) & {"stream_options", "seed"} for body in server.bodies] == [
        {"stream_options", "seed"},
        set(),
        set(),
    ]


async def test_field_that_was_asked_for_is_not_given_up_silently() -> None:
    async with FaultServer(status(422, {"detail": "Unexpected fields in the request: {'return_token_ids'}"})) as server:
        assert "return_token_ids" in await failure(policy_for(server, token_ids=True))
    assert len(server.requests) == 1


async def test_newer_name_of_max_tokens_is_learned() -> None:
    detail = (
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    )
    async with FaultServer(status(400, {"error": {"message": detail}}), engine(ANSWER)) as server:
        await ask(policy_for(server), max_tokens=50)
    assert server.bodies[1]["max_completion_tokens"] == 50
    assert "max_tokens" not in server.bodies[1]


# ---- keys ------------------------------------------------------------------------------------------------------------


async def test_key_is_sent_and_told_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", f" {KEY}\n")
    echo = status(401, {"error": {"message": f"Incorrect API key provided: {KEY}."}})
    async with FaultServer(echo, raw(b"nonsense " + KEY.encode()), engine(ANSWER)) as server:
        policy = policy_for(server, api_key_env="MY_KEY")
        refused, nonsense = await failure(policy), await failure(policy)
        await ask(policy)
    assert [request.headers["authorization"] for request in server.requests] == [f"Bearer {KEY}"] * 3
    assert ". It refused the key in MY_KEY" in refused
    assert ".." not in refused
    for text in (refused, nonsense, repr(policy), json.dumps(policy.describe()), str(vars(policy))):
        assert KEY not in text


async def test_a_key_that_is_changed_meanwhile_is_told_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)

    async def behave(exchange: Exchange) -> None:
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        await status(401, {"error": {"message": f"Incorrect API key provided: {KEY}"}})(exchange)

    async with FaultServer(behave, status(401)) as server:
        policy = policy_for(server)
        refused, missing = await failure(policy), await failure(policy)
    assert "It refused the key in OPENAI_API_KEY" in refused
    assert "No key was sent" in missing
    assert KEY not in refused


async def test_no_part_of_a_key_is_quoted(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A long answer is cut for the message, maybe inside the key; and what a server refuses is in the log."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    long = status(403, {"error": {"message": "x" * 290 + KEY}})
    no_stream = status(400, {"error": {"message": f"{KEY} must not stream"}})
    async with FaultServer(long, no_stream, engine(ANSWER)) as server:
        message = await failure(policy_for(server))
        assert (await ask(policy_for(server), pieces=[])).text == ANSWER
    assert "must not stream" in caplog.text
    assert KEY[:4] not in message + caplog.text


@pytest.mark.parametrize("key", ["x", "1", "token"])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_word_in_place_of_a_key_may_be_part_of_what_is_said(
    key: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers that check no key are given such words."""
    monkeypatch.setenv("OPENAI_API_KEY", key)
    text = "<answer> 1 box of tokens </answer>"
    newer = status(400, {"error": {"message": "Use 'max_completion_tokens' instead."}})
    async with FaultServer(models("tiny-1x"), newer, engine(text)) as server:
        policy = OpenAIPolicy(server.url, stream=stream)
        generation = await ask(policy)
    assert (policy.model, generation.text) == ("tiny-1x", text)


async def test_missing_key_is_named() -> None:
    async with FaultServer(status(401, {"error": {"message": "no key"}})) as server:
        message = await failure(policy_for(server))
    assert "No key was sent: set OPENAI_API_KEY, or name another variable: ?api_key_env=NAME before the '#'" in message
    assert "authorization" not in server.requests[0].headers


@pytest.mark.parametrize("key", ["sk-ключ", "sk-a\nb"])
async def test_key_that_cannot_be_sent_is_not_quoted(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    message = await failure(OpenAIPolicy("http://127.0.0.1:9/v1", "tiny"))
    assert "environment variable OPENAI_API_KEY has characters that no key has" in message
    assert key not in message


async def test_password_in_the_address_is_not_shown() -> None:
    async with FaultServer(status(500)) as server:
        address = server.url.replace("http://", "http://me:hidden@")
        policy = OpenAIPolicy(address, "tiny", max_attempts=1)
        message = await failure(policy)
    assert server.requests[0].headers["authorization"].startswith("Basic ")
    assert "hidden" not in message + repr(policy) + json.dumps(policy.describe())


# ---- which model -----------------------------------------------------------------------------------------------------


async def test_only_model_of_a_server_is_taken() -> None:
    async with FaultServer(models("solo", max_model_len=4096), engine(ANSWER)) as server:
        policy = OpenAIPolicy(server.url)
        await ask(policy)
        await ask(policy)
    assert [request.path for request in server.requests] == ["/v1/models", *["/v1/chat/completions"] * 2]
    assert (server.bodies[1]["model"], policy.describe()["model"], policy.max_context) == ("solo", "solo", 4096)


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        (models("one", "two"), "has 2 models: one, two. Name one, like http"),
        (models(), "has no model"),
        (status(200, {"x": 1}), "does not list its models"),
        (status(404), "answered 404.*name it, like http.*#MODEL"),
        (status(401), "No key was sent: set OPENAI_API_KEY"),
        (hang_up, r"broke the connection off.*\(after 2 attempts\)"),
    ],
)
async def test_model_that_cannot_be_guessed(behaviour: Any, words: str) -> None:
    async with FaultServer(behaviour) as server:
        assert re.search(words, await failure(OpenAIPolicy(server.url, max_attempts=2, max_wait_s=0.05)))


@pytest.mark.parametrize(
    ("listing", "words"),
    [
        (models("big", "small"), "has no model 'tiny'; it has: big, small"),
        (models("tiny"), "not this kind of call; write ?api=completions or ?api=responses before the"),
        (status(404), "Is it a model server? It does not list models either (http"),
        (hang_up, "Is it a model server?"),
    ],
)
async def test_not_found_says_what_there_is(listing: Any, words: str) -> None:
    async with FaultServer(status(404, {"error": {"message": "no such thing"}}), listing) as server:
        message = await failure(policy_for(server))
    assert "no such thing" in message
    assert words in message


async def test_an_address_that_ends_too_early_is_told_the_usual_end() -> None:
    async with FaultServer(status(404), status(404)) as server:
        short = OpenAIPolicy(server.url.removesuffix("/v1"), "tiny", max_attempts=1)
        assert "Most end in /v1, like http://127.0.0.1:8000/v1" in await failure(short)


# ---- addresses -------------------------------------------------------------------------------------------------------


def test_address_with_everything() -> None:
    address = (
        "https://host:8443/base/v1/?api=completions&token_ids=1&stream=false&timeout_s=7.5&max_attempts=2#org/Model:7b"
    )
    policy = OpenAIPolicy.from_address(address, connect_timeout_s=3.0, timeout_s=1.0)
    assert policy.describe() == {
        "kind": "openai",
        "base_url": "https://host:8443/base/v1",
        "model": "org/Model:7b",
        "api": "completions",
        "continuation": "text",
        "streams": False,
        "token_ids": True,
        "extra_body": {},
    }
    assert (policy.timeout_s, policy.connect_timeout_s, policy.max_attempts) == (7.5, 3.0, 2)
    plain = OpenAIPolicy.from_address("http://localhost:8000/v1")
    assert (plain.model, plain.streams, plain.describe()["continuation"]) == (None, True, "user-message")


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("localhost:8000/v1#m", "write it like http://localhost:8000/v1"),
        ("#m", "not an address of a server"),
        ("gpt-4o", "or https://api.openai.com/v1#MODEL for OpenAI's own"),
        ("http://[::1/v1", "not an address of a server"),
        ("http://h/v1?api=tools", "api is 'chat', 'completions' or 'responses', not 'tools'"),
        ("http://h/v1?timeout=5", r"a model server has no option 'timeout'. Did you mean 'timeout_s'\? It has: api"),
        ("http://h/v1?max_attempts=many", "max_attempts of a model server is a whole number, not 'many'"),
        ("http://h/v1?token_ids=perhaps", "token_ids of a model server is 0 or 1, not 'perhaps'"),
        ("http://h/v1?timeout_s=0", "greater than zero"),
    ],
)
def test_addresses_that_are_wrong(address: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        OpenAIPolicy.from_address(address)


async def test_a_limit_of_calls_costs_no_question() -> None:
    """Four calls in 0.3 s, and twenty questions at once: each is put off until its turn comes."""
    taken_s: list[float] = []

    async def behave(exchange: Exchange) -> None:
        now_s = asyncio.get_running_loop().time()
        taken_s[:] = [at_s for at_s in taken_s if at_s > now_s - 0.3]
        if len(taken_s) >= 4:
            await status(429, retry_after_ms=str(1000 * (taken_s[0] + 0.3 - now_s)))(exchange)
        else:
            taken_s.append(now_s)
            await engine(ANSWER)(exchange)

    async with FaultServer(behave) as server:
        policy = policy_for(server, max_wait_s=10.0)
        segments = [policy.prompt("Who is older?", "Who is older?")]
        turns = [
            policy.generate(
                segments, stop=grammar.STOP_STRINGS, max_tokens=99, sampling=Sampling(), session=f"{number}"
            )
            for number in range(20)
        ]
        said = await asyncio.gather(*turns)
        await policy.aclose()
    assert [one.text for one in said] == [ANSWER] * 20
    assert len(server.requests) > 20

"""The policy behind Anthropic's Messages API, against a server on loopback that speaks it and misbehaves."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from anthropic.types import MessageParam
from fault_server import Exchange, FaultServer, events, hang, hang_up, status
from messages_server import (
    PING,
    ask,
    block_events,
    claude,
    failure,
    policy_for,
    redacted,
    refused,
    search,
    start,
    stop,
    stream_of,
    text,
    thinking,
)
from pydantic import TypeAdapter

from parallelsearch import grammar
from parallelsearch.addresses import open_policy
from parallelsearch.dialects.tools import CallReader
from parallelsearch.errors import UsageError
from parallelsearch.limits import Limits
from parallelsearch.policy.anthropic import AnthropicPolicy
from parallelsearch.policy.base import Sampling
from parallelsearch.retrieval.base import Passage
from parallelsearch.retrieval.bm25 import BM25Retriever
from parallelsearch.rollout import Event, OnEvent, rollout
from parallelsearch.search import Search
from parallelsearch.trajectory import Call, Segment, Trajectory, trajectory_from_dict

KEY = "sk-ant-very-secret"
THOUGHT = thinking("Two people, both dates.")
TWO_CALLS = (THOUGHT, text("I look both up."), search("Monet born"), search("Pissarro born", id="toolu_2"))


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)


# ---- the request -----------------------------------------------------------------------------------------------------


async def test_request_is_one_of_the_messages_api() -> None:
    async with FaultServer(claude(text("Pissarro"))) as server:
        await ask(policy_for(server), sampling=Sampling(temperature=0.5, top_p=0.9), max_tokens=77)
    (request,) = server.requests
    assert (request.method, request.path) == ("POST", "/v1/messages")
    assert request.headers["anthropic-version"] == "2023-06-01"
    assert request.headers["x-api-key"] == KEY
    assert "authorization" not in request.headers
    tool = request.body.pop("tools")[0]
    assert request.body == {
        "model": "claude-test",
        "max_tokens": 77,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Who is older?"}]}],
        "stream": True,
        "temperature": 0.5,
        "top_p": 0.9,
    }
    assert (tool["name"], tool["input_schema"]["required"]) == ("search", ["queries"])
    assert tool["eager_input_streaming"] is True
    assert "tool_choice" not in request.body  # which is where parallel calls could be forbidden


async def test_a_dialect_of_one_search_a_turn_forbids_parallel_calls() -> None:
    script = (claude(search("Monet born")), claude(search("Pissarro born", id="toolu_2")), claude(text("Pissarro")))
    async with FaultServer(*script) as server:
        await answered(server, limits=Limits(max_turns=1), dialect="tools-sequential")
    one_call = {"type": "auto", "disable_parallel_tool_use": True}
    assert [body.get("tool_choice") for body in server.bodies] == [one_call, one_call, {"type": "none"}]


async def test_it_is_left_out_where_the_server_does_not_know_it() -> None:
    refusal = refused(
        400, "invalid_request_error", "tool_choice.disable_parallel_tool_use: Extra inputs are not permitted"
    )
    async with FaultServer(refusal, claude(text("Pissarro"))) as server:
        assert (await answered(server, dialect="tools-sequential")).answer == "Pissarro"
    assert ["tool_choice" in body for body in server.bodies] == [True, False]


@pytest.mark.parametrize("path", ["", "/v1", "/v1/", "/proxy"])
async def test_address_with_and_without_the_version(path: str) -> None:
    async with FaultServer(claude(text("x"))) as server:
        policy = AnthropicPolicy("m", f"http://127.0.0.1:{server.port}{path}")
        await ask(policy)
    assert server.requests[0].path == ("/proxy/v1/messages" if path == "/proxy" else "/v1/messages")


async def test_results_of_a_turn_go_back_in_one_message_and_notices_are_errors() -> None:
    calls = [Call("a", "search", '{"queries": ["x"]}'), Call("b", "browse", "{}"), Call("c", "search", '{"que')]
    segments = [
        Segment("prompt", "Question?"),
        Segment("model", "I look.", calls=calls),
        Segment("search", "found x", call_id="a"),
        Segment("notice", "there is no such tool.", call_id="b"),
        Segment("notice", "could not be read.", call_id="c"),
        Segment("notice", "Answer now."),
        Segment("model", ""),
        Segment("notice", "The message is empty."),
    ]
    async with FaultServer(claude(text("x"))) as server:
        await ask(policy_for(server), segments)
    first, said, told = server.bodies[0]["messages"]
    assert first["role"] == "user"
    assert said == {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "a", "name": "search", "input": {"queries": ["x"]}},
            {"type": "tool_use", "id": "b", "name": "browse", "input": {}},
            {"type": "tool_use", "id": "c", "name": "search", "input": {"INVALID_JSON": '{"que'}},
        ],
    }
    assert told == {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": "found x"},
            {"type": "tool_result", "tool_use_id": "b", "content": "there is no such tool.", "is_error": True},
            {"type": "tool_result", "tool_use_id": "c", "content": "could not be read.", "is_error": True},
            {"type": "text", "text": "Answer now."},
            {"type": "text", "text": "The message is empty."},
        ],
    }


async def test_thinking_is_asked_for_and_gets_room_of_its_own() -> None:
    async with FaultServer(claude(text("x"))) as server:
        await ask(policy_for(server, thinking="2048", reasoning_effort="low"), max_tokens=100)
        await ask(policy_for(server, thinking="adaptive", thinking_tokens=1000), max_tokens=100)
        await ask(policy_for(server, thinking="disabled"), max_tokens=100)
    budget, adaptive, disabled = server.bodies
    assert (budget["thinking"], budget["max_tokens"]) == ({"type": "enabled", "budget_tokens": 2048}, 2148)
    assert budget["output_config"] == {"effort": "low"}
    assert "temperature" not in budget
    assert (adaptive["thinking"], adaptive["max_tokens"]) == ({"type": "adaptive", "display": "summarized"}, 1100)
    assert (disabled["thinking"], disabled["max_tokens"], disabled["temperature"]) == ({"type": "disabled"}, 100, 0.0)


async def test_a_model_that_thinks_unasked_is_given_room_from_then_on(caplog: pytest.LogCaptureFixture) -> None:
    spent = claude(thinking("hm", ""), reason="max_tokens", output_tokens=100)
    async with FaultServer(spent, claude(THOUGHT, text("x"))) as server:
        policy = policy_for(server, thinking_tokens=900)
        generation = await ask(policy, max_tokens=100)
        await ask(policy, max_tokens=100)
    assert [body["max_tokens"] for body in server.bodies] == [100, 1000, 1000]
    assert generation.text == "x"
    assert generation.usage == {"prompt_tokens": 20, "completion_tokens": 120, "total_tokens": 140}
    assert not caplog.records
    async with FaultServer(spent) as server:
        generation = await ask(policy_for(server))
    assert (generation.text, generation.finish, generation.raw, len(server.bodies)) == ("", "length", None, 2)
    assert "raise thinking_tokens (4096)" in caplog.text


async def test_fields_a_model_does_not_take_are_left_out_from_then_on(caplog: pytest.LogCaptureFixture) -> None:
    async with FaultServer(
        refused(400, "invalid_request_error", "temperature and top_p cannot both be specified for this model."),
        refused(400, "invalid_request_error", "`temperature` is deprecated for this model."),
        refused(400, "invalid_request_error", "tools.0.eager_input_streaming: Extra inputs are not permitted"),
        refused(400, "invalid_request_error", "This model does not support the effort parameter."),
        claude(text("x")),
    ) as server:
        policy = policy_for(server, reasoning_effort="high")
        sampling = Sampling(temperature=1.0, top_p=0.9)
        await ask(policy, sampling=sampling)
        await ask(policy, sampling=Sampling(temperature=1.5))  # no longer sent, so no longer wrong
    assert ["top_p" in body for body in server.bodies] == [True, False, False, False, False, False]
    assert ["temperature" in body for body in server.bodies] == [True, True, False, False, False, False]
    assert ["eager_input_streaming" in body["tools"][0] for body in server.bodies] == [True] * 3 + [False] * 3
    assert ["output_config" in body for body in server.bodies] == [True] * 4 + [False] * 2
    assert len(caplog.records) == 4


async def test_thinking_that_a_model_does_not_have_is_told_not_given_up() -> None:
    detail = (
        '"thinking.type.enabled" is not supported for this model. Use "thinking.type.adaptive" and output_config.effort'
    )
    async with FaultServer(refused(400, "invalid_request_error", detail)) as server:
        message = await failure(policy_for(server, thinking=2048, reasoning_effort="low"))
    assert "thinking.type.adaptive" in message
    assert len(server.requests) == 1


async def test_temperature_out_of_range_is_not_sent() -> None:
    async with FaultServer(claude(text("x"))) as server:
        message = await failure(policy_for(server), sampling=Sampling(temperature=1.5))
    assert "takes temperatures from 0 to 1, not 1.5" in message
    assert not server.requests


# ---- the answer ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [True, False])
async def test_calls_text_and_thinking_of_a_turn(streamed: bool) -> None:
    blocks = (THOUGHT, redacted(), *TWO_CALLS[1:])
    pieces: list[str] = []
    calls: list[tuple[int, str, str]] = []
    async with FaultServer(claude(*blocks)) as server:
        generation = await ask(policy_for(server, stream=streamed), pieces=pieces, calls=calls)
    assert (generation.text, generation.finish) == ("I look both up.", "eos")
    assert "".join(pieces) == generation.text
    assert generation.reasoning == THOUGHT["thinking"]
    assert generation.calls == [
        Call("toolu_1", "search", '{"queries": ["Monet born"]}'),
        Call("toolu_2", "search", '{"queries": ["Pissarro born"]}'),
    ]
    for number, call in zip((3, 4), generation.calls, strict=True):
        assert "".join(piece for at, _, piece in calls if at == number) == call.arguments
    assert [_without_nulls(block) for block in generation.raw or ()] == list(blocks)
    assert generation.usage == {"prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 30}


def _without_nulls(block: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in block.items() if value is not None}


@pytest.mark.parametrize("piece", [1, 2, 3, 1000])
@pytest.mark.parametrize("size", [1, 7, 0])
async def test_arguments_split_anywhere_start_the_same_queries(size: int, piece: int) -> None:
    queries = ['Łódź "1890" \\ {[', "naïve 🜚 ## b", "c"]
    found: list[str] = []
    reader = CallReader(found.append, 5)
    calls: list[tuple[int, str, str]] = []
    blocks = (thinking("ähm 🜚"), text("Zwei – 🜚."), search(*queries))
    async with FaultServer(claude(*blocks, size=size, piece=piece)) as server:
        generation = await ask(policy_for(server), calls=calls)
    for call in calls:
        reader.feed_call(*call)
    assert found == queries
    assert (generation.text, generation.reasoning) == ("Zwei – 🜚.", "ähm 🜚")
    assert generation.calls is not None
    assert json.loads(generation.calls[0].arguments) == {"queries": queries}


async def test_cached_tokens_count_as_read() -> None:
    data = [start(cache_read_input_tokens=100, cache_creation_input_tokens=7), *block_events(0, text("x"))]
    async with FaultServer(events(*data, *stop("end_turn", output_tokens=3))) as server:
        generation = await ask(policy_for(server))
    assert generation.num_tokens == 3
    assert generation.usage == {
        "prompt_tokens": 117,
        "completion_tokens": 3,
        "total_tokens": 120,
        "cache_read_input_tokens": 100,
        "cache_creation_input_tokens": 7,
    }


async def test_what_is_not_known_is_skipped() -> None:
    strange = [
        'event: hologram\ndata: {"type": "hologram", "x": 1}',
        'data: {"type": "content_block_start", "index": 0, "content_block": {"type": "dream", "text": "no"}}',
        'data: {"type": "content_block_delta", "index": 0, "delta": {"type": "dream_delta", "dream": "no"}}',
        'data: {"type": "content_block_stop", "index": 0}',
        'data: {"type": "content_block_delta", "index": 1, "delta": {"type": "smell_delta", "text": "no"}}',
    ]
    opened, *rest = block_events(1, text("Pissarro"))
    data = [start(), *strange[:4], opened, strange[4], PING, *rest, *stop("end_turn")]
    async with FaultServer(events(*data)) as server:
        generation = await ask(policy_for(server))
    assert (generation.text, generation.raw) == ("Pissarro", None)


async def test_text_around_a_call_stays_apart() -> None:
    async with FaultServer(claude(text("Dates."), search("a"), text("So far."))) as server:
        generation = await ask(policy_for(server))
    assert generation.text == "Dates.\nSo far."


async def test_a_turn_that_runs_out_of_tokens_keeps_what_can_go_back() -> None:
    cut = [*block_events(0, THOUGHT), *block_events(1, search("a"), raw_input='{"queries": ["a", "b')[:-1]]
    unsigned = block_events(2, thinking("and th"))[:-2]
    async with FaultServer(events(start(), *cut, *unsigned, *stop("max_tokens"))) as server:
        generation = await ask(policy_for(server))
    assert generation.finish == "length"
    assert generation.calls == [Call("toolu_1", "search", '{"queries": ["a", "b')]
    assert [block["type"] for block in generation.raw or ()] == ["thinking", "tool_use"]
    assert (generation.raw or [])[1]["input"] == {"INVALID_JSON": '{"queries": ["a", "b'}


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        (claude(text("I"), reason="refusal"), "the model refused to answer; word the question in another way, or ask"),
        (
            claude(
                text("I"),
                reason="refusal",
                stop_details={"type": "refusal", "category": "bio", "explanation": "Not this."},
            ),
            "the model refused to answer (bio: Not this.)",
        ),
        (claude(text("I"), reason="pause_turn"), "paused the turn to use a tool of its own"),
    ],
)
@pytest.mark.parametrize("streamed", [True, False])
async def test_turns_that_end_in_no_answer(behaviour: Any, words: str, streamed: bool) -> None:
    async with FaultServer(behaviour) as server:
        message = await failure(policy_for(server, stream=streamed))
    assert words in message
    assert len(server.requests) == 1


async def test_context_that_fills_up_is_a_length() -> None:
    async with FaultServer(claude(text("The answer i"), reason="model_context_window_exceeded")) as server:
        assert (await ask(policy_for(server))).finish == "length"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ('{"choices": []}', "where an event or a message of the Messages API belongs"),
        ('{"type": "message"}', "has no 'content'"),
        ('{"type": "content_block_start", "content_block": {}}', "without its number"),
        ('{"type": "message_delta"}', "without its 'delta'"),
        ("<html>", "not JSON: '<html>'"),
        ('{"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}', "reported an error: no"),
    ],
)
async def test_answers_that_make_no_sense(data: str, words: str) -> None:
    async with FaultServer(status(200, data)) as server:
        assert words in await failure(policy_for(server))
    assert len(server.requests) == 1


# ---- tags ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "extra", "expected", "restored"),
    [
        ("<search> a ## b ", {"reason": "stop_sequence", "stop_sequence": "</search>"}, "<search> a ## b </search>", 1),
        ("<search> a </search> and on", {"reason": "end_turn"}, "<search> a </search>", 0),
        ("<search> a ", {"reason": "end_turn"}, "<search> a </search>", 1),  # a proxy that does not tell
    ],
)
@pytest.mark.parametrize("streamed", [True, False])
async def test_tags_end_at_their_stop_string(
    said: str, extra: dict[str, Any], expected: str, restored: int, streamed: bool
) -> None:
    pieces: list[str] = []
    async with FaultServer(claude(text(said), **extra)) as server:
        policy = policy_for(server, stream=streamed, dialect="parallel")
        generation = await ask(policy, stop=[*grammar.STOP_STRINGS, "\n"], tools=(), pieces=pieces)
    assert (generation.text, generation.finish) == (expected, "stop")
    assert generation.restored == ("</search>" if restored else None)
    assert "".join(pieces) == expected
    assert server.bodies[0]["stop_sequences"] == list(grammar.STOP_STRINGS)  # white space alone is refused by the API
    assert "tools" not in server.bodies[0]


async def test_thinking_in_tags_is_a_thought() -> None:
    async with FaultServer(claude(thinking("Easy </think>."), text("<answer> x </answer>"))) as server:
        generation = await ask(policy_for(server), stop=grammar.STOP_STRINGS, tools=())
    assert generation.text.startswith("<think> Easy ")
    assert generation.text.count("</think>") == 1
    assert generation.text.endswith("<answer> x </answer>")
    assert generation.raw is None


# ---- trouble ---------------------------------------------------------------------------------------------------------

OVERLOADED = 'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}'


@pytest.mark.parametrize(
    "trouble",
    [
        refused(529, "overloaded_error", "Overloaded"),
        refused(429, "rate_limit_error", "slow down", retry_after="0.01"),
        refused(500, "api_error", "oops"),
        refused(502, "api_error", "oops"),
        refused(503, "api_error", "oops"),
        refused(504, "timeout_error", "oops"),
        hang_up,
        events(*stream_of(*TWO_CALLS)[:9], after="hang_up"),
        events(*stream_of(*TWO_CALLS)[:9]),
        events(start(), OVERLOADED),
        events(*stream_of(*TWO_CALLS)[:14], OVERLOADED),
    ],
)
async def test_passing_trouble_is_tried_again(trouble: Any) -> None:
    pieces: list[str] = []
    async with FaultServer(trouble, claude(*TWO_CALLS)) as server:
        generation = await ask(policy_for(server), pieces=pieces)
    assert len(server.requests) == 2
    assert generation.calls is not None
    assert [call.id for call in generation.calls] == ["toolu_1", "toolu_2"]
    assert "".join(pieces) == generation.text == "I look both up."


async def test_trouble_that_stays_is_reported() -> None:
    async with FaultServer(refused(529, "overloaded_error", "Overloaded")) as server:
        message = await failure(policy_for(server, max_attempts=2))
    assert "529" in message
    assert "Overloaded (after 2 attempts)" in message


async def test_a_broken_call_is_not_handed_out_twice_and_an_untouched_one_is() -> None:
    whole = stream_of(search("Monet born"), piece=3)
    calls: list[tuple[int, str, str]] = []
    async with FaultServer(events(*whole[:8], after="hang_up"), claude(search("Monet born"))) as server:
        await ask(policy_for(server), calls=calls)
    assert "".join(piece for _, _, piece in calls) == '{"queries": '
    calls.clear()
    async with FaultServer(refused(529, "overloaded_error", "x"), claude(search("Monet born"))) as server:
        await ask(policy_for(server), calls=calls)
    assert "".join(piece for _, _, piece in calls) == '{"queries": ["Monet born"]}'


async def test_a_stream_that_breaks_after_its_end_is_whole() -> None:
    async with FaultServer(events(*stream_of(text("Pissarro"))[:-1], after="hang_up")) as server:
        assert (await ask(policy_for(server))).text == "Pissarro"
    assert len(server.requests) == 1


async def test_something_else_the_second_time_is_an_error() -> None:
    async with FaultServer(
        events(*stream_of(text("Pissarro was"))[:6], after="hang_up"), claude(text("Monet"))
    ) as server:
        message = await failure(policy_for(server), pieces=[])
    assert "said something else the second time" in message


async def test_a_turn_has_a_time_limit() -> None:
    async with FaultServer(hang) as server:
        message = await failure(policy_for(server, timeout_s=0.2))
    assert "did not finish the turn within 0.2 s" in message


async def test_a_whole_answer_that_extra_body_asks_for_may_be_silent_for_longer_than_a_stream() -> None:
    async def late(exchange: Exchange) -> None:
        await asyncio.sleep(0.5)
        await claude(text("Monet"))(exchange)

    async with FaultServer(late) as server:
        policy = policy_for(server, read_timeout_s=0.05, timeout_s=300, extra_body={"stream": False})
        assert (await ask(policy)).text == "Monet"


async def test_an_empty_purse_is_not_waited_for() -> None:
    error = {"type": "rate_limit_error", "message": "spend", "details": {"error_code": "enforced_spend_limit_reached"}}
    async with FaultServer(status(429, {"type": "error", "error": error})) as server:
        assert "429" in await failure(policy_for(server))
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "detail",
    [
        "prompt is too long: 215432 tokens > 200000 maximum",
        "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000",
    ],
)
async def test_context_that_is_too_long_is_named(detail: str) -> None:
    async with FaultServer(refused(400, "invalid_request_error", detail)) as server:
        message = await failure(policy_for(server))
    assert "the conversation no longer fits into the model's context" in message
    assert detail in message
    assert len(server.requests) == 1


async def test_a_model_that_does_not_exist() -> None:
    listing = status(200, {"data": [{"type": "model", "id": "claude-a"}, {"type": "model", "id": "claude-b"}]})
    async with FaultServer(refused(404, "not_found_error", "model: claude-test"), listing) as server:
        message = await failure(policy_for(server))
    assert "It has no model 'claude-test'; it has: claude-a, claude-b" in message
    assert server.requests[1].path == "/v1/models"


# ---- the key and the address -----------------------------------------------------------------------------------------


async def test_wrong_key_is_named_by_its_variable_and_never_shown() -> None:
    async with FaultServer(refused(401, "authentication_error", f"invalid x-api-key {KEY}")) as server:
        message = await failure(policy_for(server))
    assert (
        "It refused the key in ANTHROPIC_API_KEY: set that to another, or name another variable: ?api_key_env=NAME"
        in message
    )
    assert KEY not in message


async def test_missing_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    message = await failure(AnthropicPolicy("claude-test"))  # nothing is sent to the public API without one
    assert message == (
        "there is no key for https://api.anthropic.com: set ANTHROPIC_API_KEY, or name another variable with api_key_env"
    )
    async with FaultServer(refused(401, "authentication_error", "x-api-key header is required")) as server:
        message = await failure(policy_for(server))
    assert "No key was sent: set ANTHROPIC_API_KEY" in message
    assert "x-api-key" not in server.requests[0].headers


def test_addresses() -> None:
    policy = open_policy("anthropic:#claude-test")
    assert isinstance(policy, AnthropicPolicy)
    assert (policy.model, policy.base_url, policy.dialect) == ("claude-test", "https://api.anthropic.com", "tools")
    policy = open_policy(
        "anthropic:http://localhost:1/x?thinking=adaptive&timeout_s=5&dialect=parallel#a/b", stream=False
    )
    assert isinstance(policy, AnthropicPolicy)
    assert (policy.model, policy.base_url, policy.dialect) == ("a/b", "http://localhost:1/x", "parallel")
    assert (policy.timeout_s, policy.streams) == (5.0, False)
    assert policy.describe()["thinking"] == {"type": "adaptive", "display": "summarized"}


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("anthropic:", "it goes on like anthropic:#MODEL"),
        ("anthropic:claude-test", "the model stands after '#', like anthropic:#claude-test"),
        ("anthropic:https://host", "the model stands after '#', like anthropic:#MODEL"),
        ("anthropic:host#m", "write it like https://api.anthropic.com"),
        ("anthropic:?thinkin=1#m", "Did you mean 'thinking'?"),
        (
            "anthropic:?thinking=lots#m",
            "thinking is adaptive, between_tools, disabled or a number of tokens from 1024 on",
        ),
        ("anthropic:?thinking=100#m", "not '100'"),
        ("anthropic:?thinking_tokens=-1#m", "not -1"),
    ],
)
def test_addresses_that_are_wrong(address: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_policy(address)
    assert words in str(caught.value)


# ---- from end to end -------------------------------------------------------------------------------------------------

MESSAGES: TypeAdapter[list[MessageParam]] = TypeAdapter(list[MessageParam])
QUESTION = "Who is older, Claude Monet or Camille Pissarro?"
PASSAGES = [
    Passage("1", "Claude Monet", "Claude Monet was born on 14 November 1840 in Paris."),
    Passage("2", "Camille Pissarro", "Camille Pissarro was born on 10 July 1830 on Saint Thomas."),
]


async def answered(
    server: FaultServer, on_event: OnEvent | None = None, limits: Limits | None = None, **options: Any
) -> Trajectory:
    retriever = Search(BM25Retriever.from_passages(PASSAGES), k=1)
    policy = policy_for(server, **options)
    try:
        return await rollout(QUESTION, policy, retriever, limits=limits, on_event=on_event)
    finally:
        await policy.aclose()
        await retriever.aclose()


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_question_is_answered_and_the_thinking_goes_back_as_it_came(streamed: bool) -> None:
    async with FaultServer(claude(redacted(), *TWO_CALLS), claude(THOUGHT, text("Camille Pissarro"))) as server:
        trajectory = await answered(server, stream=streamed)
    assert (trajectory.answer, trajectory.stop, trajectory.dialect) == ("Camille Pissarro", "answer", "tools")
    assert trajectory.is_split
    first, second = server.bodies
    assert len(first["messages"]) == 1
    for message in MESSAGES.validate_python(second["messages"]):
        assert list(message["content"])  # which reads each block by its type
    _, said, told = second["messages"]
    assert [_without_nulls(block) for block in said["content"]] == [redacted(), *TWO_CALLS]
    assert [(block["type"], block["tool_use_id"]) for block in told["content"]] == [
        ("tool_result", "toolu_1"),
        ("tool_result", "toolu_2"),
    ]
    assert "1840" in told["content"][0]["content"]
    assert "1830" in told["content"][1]["content"]
    assert trajectory.turns[0].thought == "Two people, both dates. I look both up."
    assert trajectory.turns[0].usage == {"prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 30}
    read = trajectory_from_dict(json.loads(trajectory.to_json()))
    assert read == trajectory
    assert read.segments[1].raw == said["content"]


async def test_who_is_told_to_answer_cannot_call_search_again() -> None:
    script = (claude(*TWO_CALLS), claude(search("Monet born", id="toolu_3")), claude(text("Pissarro")))
    async with FaultServer(*script) as server:
        trajectory = await answered(server, limits=Limits(max_turns=1))
    assert (trajectory.answer, trajectory.num_searches) == ("Pissarro", 1)
    assert [body.get("tool_choice") for body in server.bodies] == [None, None, {"type": "none"}]


@pytest.mark.parametrize("thinks", [False, True])
async def test_the_tool_for_the_answer_is_forced_unless_the_model_thinks(thinks: bool) -> None:
    """The API refuses to force a tool upon a model that thinks."""
    answer = {"type": "tool_use", "id": "toolu_9", "name": "answer", "input": {"answer": "Pissarro"}}
    script = (claude(search("Monet born")), claude(search("Pissarro born", id="toolu_2")), claude(answer))
    async with FaultServer(*script) as server:
        options = {"thinking": "adaptive"} if thinks else {}
        trajectory = await answered(server, limits=Limits(max_turns=1), dialect="tools-answer", **options)
    assert trajectory.answer == "Pissarro"
    assert server.bodies[-1].get("tool_choice") == (None if thinks else {"type": "tool", "name": "answer"})


async def test_searches_are_done_before_the_message_is() -> None:
    whole = stream_of(text("I look."), search("Monet born", "Pissarro born"), piece=2)
    found: list[str] = []
    both = asyncio.Event()

    def watch(event: Event) -> None:
        if event.kind == "result":
            found.append(event.text)
            if len(found) == 2:
                both.set()

    async def slow(exchange: Exchange) -> None:
        await exchange.head(200, "text/event-stream")
        for event in whole[:-4]:  # the arguments without their last piece, and so without any end
            await exchange.send((event + "\n\n").encode())
        await asyncio.wait_for(both.wait(), 300)
        for event in whole[-4:]:
            await exchange.send((event + "\n\n").encode())
        await exchange.end()

    async with FaultServer(slow, claude(text("Camille Pissarro"))) as server:
        trajectory = await answered(server, watch)
    assert trajectory.answer == "Camille Pissarro"
    assert sorted(found) == ["Monet born", "Pissarro born"]
    assert trajectory.turns[0].queries[0].end_s < trajectory.turns[0].start_s + trajectory.turns[0].generate_s


async def test_a_refusal_keeps_the_trajectory() -> None:
    async with FaultServer(claude(*TWO_CALLS), claude(text("I can"), reason="refusal")) as server:
        trajectory = await answered(server)
    assert (trajectory.stop, trajectory.answer) == ("error", None)
    assert "the model refused to answer" in (trajectory.error or "")
    assert [segment.author for segment in trajectory.segments] == ["prompt", "model", "search", "search"]


async def test_tags_from_end_to_end() -> None:
    asked = "<think> Two. </think>\n<search> Claude Monet born ## Camille Pissarro born "
    async with FaultServer(
        claude(text(asked), reason="stop_sequence", stop_sequence="</search>"),
        claude(text("<think> So. </think>\n<answer> Pissarro "), reason="stop_sequence", stop_sequence="</answer>"),
    ) as server:
        trajectory = await answered(server, dialect="parallel")
    assert (trajectory.answer, trajectory.dialect, trajectory.num_subqueries) == ("Pissarro", "parallel", 2)
    assert [message["role"] for message in server.bodies[1]["messages"]] == ["user", "assistant", "user"]

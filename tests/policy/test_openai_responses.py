"""`openai:` at the Responses API, on the wire: items that go out and come back, thoughts, refusals, and turning to it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fault_server import PASSAGES, QUESTION, Behaviour, Exchange, FaultServer, policy_for, raw, status
from responses_server import call, message, refusal, says, thought

from parallelsearch.dialects.tools import SEARCH_TOOL
from parallelsearch.errors import PolicyError, UsageError
from parallelsearch.limits import Limits
from parallelsearch.policy.base import Generation, Sampling
from parallelsearch.policy.openai import OpenAIPolicy
from parallelsearch.retrieval.bm25 import BM25Retriever
from parallelsearch.rollout import rollout
from parallelsearch.search import Search
from parallelsearch.trajectory import Trajectory, trajectory_from_dict

ONLY_THERE = (
    "Function tools with reasoning_effort are not supported for tiny in /v1/chat/completions. To use function tools, use "
    "/v1/responses or set reasoning_effort to 'none'."
)
BOTH = call("a", ["Monet born", "Pissarro born"])


async def ask(policy: OpenAIPolicy, limits: Limits | None = None, **options: Any) -> Trajectory:
    search = Search(BM25Retriever.from_passages(PASSAGES), k=1)
    try:
        return await rollout(QUESTION, policy, search, limits, **options)
    finally:
        await search.aclose()
        await policy.aclose()


def refused(text: str, code: int = 400) -> Behaviour:
    return status(code, {"error": {"message": text, "type": "invalid_request_error", "param": None, "code": None}})


@pytest.mark.parametrize("streams", [True, False])
async def test_a_question_is_asked_in_items_and_its_thoughts_go_back_encrypted(streams: bool) -> None:
    first = says(thought(), message("Both dates."), BOTH, call("b", ["Manet born"]), written=60, hidden=30, size=11)
    async with FaultServer(first, says(thought(""), message("Pissarro"))) as server:
        policy = policy_for(server, api="responses", reasoning_effort="low")
        trajectory = await ask(policy, streaming_dispatch=streams)
    assert (trajectory.answer, trajectory.num_subqueries, trajectory.num_llm_calls) == ("Pissarro", 3, 2)
    asked, again = server.bodies
    assert [request.path for request in server.requests] == ["/v1/responses"] * 2
    assert (asked["max_output_tokens"], asked["store"], asked["include"]) == (
        500,
        False,
        ["reasoning.encrypted_content"],
    )
    assert asked["reasoning"] == {"effort": "low"}
    assert not {"max_tokens", "messages", "stop", "stream_options", "seed"} & set(asked)
    (tool,) = asked["tools"]
    assert (tool["type"], tool["name"], tool["parameters"]["required"]) == ("function", "search", ["queries"])
    assert [item["role"] for item in asked["input"]] == ["user"]
    kept, said, *rest = again["input"][1:]
    assert kept == {"type": "reasoning", "summary": thought()["summary"], "encrypted_content": "gAAA"}
    assert said == {"role": "assistant", "content": "Both dates."}
    assert [item["type"] for item in rest] == ["function_call", "function_call", *["function_call_output"] * 2]
    assert [item["call_id"] for item in rest] == ["a", "b", "a", "b"]
    assert "Monet was born in 1840" in rest[2]["output"]
    assert trajectory.turns[0].thought == "Two people. Both dates." or "Two people." in (
        trajectory.turns[0].thought or ""
    )
    assert trajectory.turns[0].usage == {"prompt_tokens": 100, "completion_tokens": 60, "total_tokens": 160}
    record = trajectory_from_dict(json.loads(trajectory.to_json()))
    assert record.segments[1].raw == trajectory.segments[1].raw is not None


async def test_a_dialect_of_one_search_a_turn_forbids_parallel_calls() -> None:
    async with FaultServer(says(message("Pissarro")), says(message("Pissarro"))) as server:
        await ask(policy_for(server, api="responses"))
        await ask(policy_for(server, api="responses"), dialect="tools-sequential")
    assert [body["parallel_tool_calls"] for body in server.bodies] == [True, False]


async def test_without_a_kept_thought_the_items_are_made_from_the_record() -> None:
    async with FaultServer(says(thought(encrypted=None), BOTH), says(message("Pissarro"))) as server:
        await ask(policy_for(server, api="responses"))
    said = server.bodies[1]["input"][1]
    assert said == {key: BOTH[key] for key in ("type", "call_id", "name", "arguments")}


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("encrypted", ["gAAA", None])
async def test_what_a_message_was_said_for_goes_back_with_it(encrypted: str | None, streams: bool) -> None:
    first = says(thought(encrypted=encrypted), {**message("Both dates."), "phase": "commentary"}, BOTH)
    async with FaultServer(first, says(message("Pissarro"))) as server:
        await ask(policy_for(server, api="responses"), streaming_dispatch=streams)
    said = next(item for item in server.bodies[1]["input"] if item.get("role") == "assistant")
    assert said == {"role": "assistant", "content": "Both dates.", "phase": "commentary"}


def streamed(*events: dict[str, Any]) -> Behaviour:
    async def behave(exchange: Exchange) -> None:
        await exchange.head(200, "text/event-stream")
        for event in events:
            await exchange.send(f"data: {json.dumps(event)}\n\n".encode())
        await exchange.end()

    return behave


async def test_items_that_are_numbered_in_another_way_at_the_end_are_not_taken_twice() -> None:
    """As LiteLLM does it: in the stream calls are numbered from 1, in the response thoughts come first."""
    items = [thought(), message("Both dates."), BOTH]
    done = {"type": "response.output_item.done"}
    events = [
        {"type": "response.output_item.added", "output_index": 0, "item": {**items[1], "content": []}},
        {"type": "response.output_text.delta", "output_index": 0, "delta": "Both dates."},
        {"type": "response.output_item.added", "output_index": 1, "item": {**BOTH, "arguments": ""}},
        {"type": "response.function_call_arguments.delta", "output_index": 1, "delta": BOTH["arguments"]},
        {**done, "output_index": 1, "item": BOTH},
        {"type": "response.completed", "response": {"object": "response", "status": "completed", "output": items}},
    ]
    async with FaultServer(streamed(*events), says(message("Pissarro"))) as server:
        trajectory = await ask(policy_for(server, api="responses"))
    said = trajectory.segments[1]
    assert said.text == "Both dates."
    assert [call.id for call in said.calls or ()] == ["a"]
    assert said.reasoning == "Two people."


@pytest.mark.parametrize(
    "error",
    [
        {"type": "error", "sequence_number": 2, "error": {"code": "rate_limit_exceeded", "message": "Slow."}},
        {"type": "error", "sequence_number": 2, "error": {"code": "too_many_requests", "message": "Slow."}},
        {"type": "error", "code": "rate_limit_exceeded", "message": "Slow."},
        {"error": {"type": "rate_limit_error", "message": "Slow."}},
        {"error": {"type": "InternalServerError", "code": 500, "message": "Oh."}},
    ],
)
async def test_an_error_that_passes_is_asked_again(error: dict[str, Any]) -> None:
    async with FaultServer(streamed(error), says(message("Pissarro"))) as server:
        trajectory = await ask(policy_for(server, api="responses"))
    assert trajectory.answer == "Pissarro", trajectory.error


async def test_queries_start_while_the_call_is_written() -> None:
    pieces: list[tuple[int, str, str]] = []
    async with FaultServer(says(BOTH)) as server:
        policy = policy_for(server, api="responses")
        await policy.generate(
            [policy.prompt("q", "q")],
            stop=(),
            max_tokens=100,
            sampling=Sampling(),
            session="s",
            tools=(SEARCH_TOOL,),
            on_call=lambda number, name, piece: pieces.append((number, name, piece)),
        )
        await policy.aclose()
    assert len(pieces) > 3
    assert "".join(piece for _, _, piece in pieces) == BOTH["arguments"]


def chat_then_responses(*items: dict[str, Any], at_chat: str = ONLY_THERE, code: int = 400) -> Behaviour:
    async def behave(exchange: Exchange) -> None:
        if exchange.request.path.endswith("/chat/completions"):
            await refused(at_chat, code)(exchange)
        elif any(item.get("type") == "function_call_output" for item in exchange.request.body["input"]):
            await says(message("Pissarro"))(exchange)
        else:
            await says(*items)(exchange)

    return behave


@pytest.mark.parametrize(
    ("at_chat", "code"),
    [(ONLY_THERE, 400), ("This model is only supported in v1/responses and not in v1/chat/completions.", 404)],
)
async def test_a_model_that_calls_functions_only_there_is_asked_there_from_then_on(
    at_chat: str, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with FaultServer(chat_then_responses(thought(), BOTH, at_chat=at_chat, code=code)) as server:
        policy = policy_for(server)
        before = policy.describe()
        trajectory = await ask(policy)
        assert policy.describe() == before  # a run that goes on has the set-up that it began with
    assert (trajectory.answer, trajectory.dialect) == ("Pissarro", "tools")
    ways = [request.path.removeprefix("/v1/") for request in server.requests]
    assert ways == ["chat/completions", "responses", "responses"]
    assert caplog.text.count("asked there from now on") == 1


async def test_thoughts_that_the_server_cannot_read_any_more_stay_behind() -> None:
    """As behind a gateway that asks one account first and then another."""
    unread = (
        "The encrypted content gAAA...Rg== could not be verified. Reason: Encrypted content could not be decrypted."
    )

    async def behave(exchange: Exchange) -> None:
        sent = exchange.request.body["input"]
        if any(item.get("type") == "reasoning" for item in sent):
            await refused(unread)(exchange)
        else:
            await (says(message("Pissarro")) if len(sent) > 1 else says(thought(), BOTH))(exchange)

    async with FaultServer(behave) as server:
        trajectory = await ask(policy_for(server, api="responses"))
    assert trajectory.answer == "Pissarro", trajectory.error
    assert all("include" in body for body in server.bodies)
    assert [item["type"] for item in server.bodies[-1]["input"][1:]] == ["function_call", "function_call_output"]


async def test_a_turn_of_tags_is_streamed_there_to_be_cut_where_it_ends() -> None:
    """That API knows no stop strings: a whole answer would be waited for and paid to its end."""
    turns = [
        message("<search> Monet born </search> and so on" + " and on" * 50),
        message("<answer> Pissarro </answer>"),
    ]
    async with FaultServer(*(says(turn) for turn in turns)) as server:
        trajectory = await ask(policy_for(server, api="responses"), dialect="parallel", streaming_dispatch=False)
    assert trajectory.answer == "Pissarro"
    assert [body["stream"] for body in server.bodies] == [True, True]


async def test_who_insists_on_the_chat_is_told_what_the_server_said() -> None:
    async with FaultServer(chat_then_responses(BOTH)) as server:
        policy = policy_for(server, api="chat")
        trajectory = await ask(policy)
    assert {request.path for request in server.requests} == {"/v1/chat/completions"}
    assert "/v1/responses" in (trajectory.error or "")


async def test_fields_that_a_model_does_not_take_there_are_left_out() -> None:
    async with FaultServer(
        refused("Unsupported parameter: 'temperature' is not supported with this model."),
        refused("Encrypted content is not supported with this model."),
        refused("Unsupported parameter: 'reasoning.effort' is not supported with this model."),
        says(message("Pissarro")),
    ) as server:
        trajectory = await ask(policy_for(server, api="responses", reasoning_effort="low"))
    assert trajectory.answer == "Pissarro"
    assert not {"temperature", "include", "reasoning"} & set(server.bodies[-1])


async def test_thinking_has_room_of_its_own_there() -> None:
    over = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    async with FaultServer(
        says(thought("", None), written=500, hidden=500, **over), says(BOTH), says(message("Pissarro"))
    ) as server:
        trajectory = await ask(policy_for(server, api="responses"))
    assert trajectory.answer == "Pissarro"
    assert [body["max_output_tokens"] for body in server.bodies] == [500, 4596, 4596]


FILTERED = {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}
WRONG = {
    "the model refused to answer (I cannot.);": says(refusal("I cannot.")),
    "content filter stopped the turn": says(message("x"), **FILTERED),
    "the server reported an error: Oh.": says(error={"code": "server_error", "message": "Oh."}),
    "the server ended the turn with 'failed'": says(status="failed"),
    "where an event or a response belongs": raw(b"[]"),
    "the server reported an error: Bad.": raw(b'{"type": "error", "message": "Bad.", "code": "invalid"}'),
    "without its number": raw(b'{"type": "response.output_text.delta", "delta": "x"}'),
    "where a response belongs": raw(b'{"type": "response.completed"}'),
}


async def turn_of(server: FaultServer, streams: bool) -> Generation:
    policy = policy_for(server, api="responses", max_attempts=1, stream=streams)
    try:
        return await policy.generate(
            [policy.prompt("q", "q")], stop=(), max_tokens=100, sampling=Sampling(), session="s"
        )
    finally:
        await policy.aclose()


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("said", list(WRONG))
async def test_what_goes_wrong_is_told(said: str, streams: bool) -> None:
    async with FaultServer(WRONG[said]) as server:
        with pytest.raises(PolicyError) as caught:
            await turn_of(server, streams)
    assert said in str(caught.value)


async def test_odd_items_are_passed_over() -> None:
    items = [7, {"type": "web_search_call"}, {"type": "reasoning", "summary": 3}, message("x")]
    async with FaultServer(raw(json.dumps({"object": "response", "output": items}).encode())) as server:
        assert (await turn_of(server, streams=False)).text == "x"


def test_how_it_is_asked_for() -> None:
    policy = OpenAIPolicy.from_address("https://localhost:1/v1?api=responses#m")
    assert (policy.describe()["api"], policy.describe()["continuation"], policy.dialect) == (
        "responses",
        "user-message",
        "tools",
    )
    with pytest.raises(UsageError, match="'chat', 'completions' or 'responses', not 'respones'"):
        OpenAIPolicy.from_address("https://localhost:1/v1?api=respones#m")
    with pytest.raises(UsageError, match="no token ids"):
        OpenAIPolicy("https://localhost:1/v1", "m", api="responses", token_ids=True)

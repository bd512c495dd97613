"""`openai:` with native tool calls, on the wire: what servers send, what goes back, what they refuse."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from fault_server import (
    ANSWER,
    DONE,
    PASSAGES,
    QUESTION,
    SEARCH,
    Behaviour,
    Exchange,
    FaultServer,
    chunk,
    engine,
    events,
    models,
    policy_for,
    status,
    usage_chunk,
    whole,
)

from parallelsearch.dialects import DIALECTS
from parallelsearch.limits import Limits
from parallelsearch.policy.openai import OpenAIPolicy
from parallelsearch.retrieval.bm25 import BM25Retriever
from parallelsearch.rollout import rollout
from parallelsearch.search import Search
from parallelsearch.trajectory import Trajectory

USAGE = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}
NONE = -1


def call(index: int, id: str | None = None, name: str | None = None, arguments: str = "") -> dict[str, Any]:
    function = {"arguments": arguments} | ({"name": name} if name else {})
    return {"index": index, "type": "function", "function": function} | ({"id": id} if id else {})


def piece_of(calls: list[dict[str, Any]]) -> str:
    """An event of a stream; `NONE` stands for an index that the server leaves out, which OpenAI's own types do not."""
    return chunk(delta={"tool_calls": calls}).replace(f'"index":{NONE},', "")


def calling(*pieces: dict[str, Any], text: str | None = None, reasoning: str = "", size: int = 0) -> Behaviour:
    """A streamed message with these pieces of calls, cut into chunks of `size` bytes."""
    start = [chunk(delta={"reasoning_content": reasoning})] if reasoning else []
    start += [chunk(text)] if text else []
    middle = [piece_of([piece]) for piece in pieces]
    return events(*start, *middle, chunk(finish="tool_calls"), usage_chunk(7), DONE, size=size)


def saying(text: str) -> Behaviour:
    return events(chunk(text), chunk(finish="stop"), usage_chunk(3), DONE)


BOTH = calling(call(0, "a", "search", '{"queries": ["Monet born", "Pissarro born"]}'))


async def ask(policy: OpenAIPolicy, **options: Any) -> Trajectory:
    search = Search(BM25Retriever.from_passages(PASSAGES), k=1)
    try:
        return await rollout(QUESTION, policy, search, **options)
    finally:
        await search.aclose()
        await policy.aclose()


async def test_calls_go_out_and_results_come_back_by_id() -> None:
    first = calling(
        call(0, "a", "search"),
        call(0, arguments='{"queries": ["Monet '),
        call(0, arguments='born"]}'),
        call(1, "b", "search", '{"queries": ["Pissarro born"]}'),
        call(2, "c", "browse", "not json"),
        text="Both at once.",
        reasoning="Two people.",
        size=7,
    )
    async with FaultServer(first, saying("Camille Pissarro")) as server:
        trajectory = await ask(policy_for(server))
    assert (trajectory.answer, trajectory.stop, trajectory.dialect) == ("Camille Pissarro", "answer", "tools")
    assert [query.text for query in trajectory.rounds[0].queries] == ["Monet born", "Pissarro born"]
    assert trajectory.turns[0].thought == "Two people. Both at once."
    assert trajectory.turns[0].usage == {"prompt_tokens": 10, "completion_tokens": 7, "total_tokens": 17}
    assert trajectory.turns[0].num_tokens == 7
    sent = server.bodies[0]
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["search"]
    assert sent["tools"][0]["function"]["parameters"]["required"] == ["queries"]
    assert sent["parallel_tool_calls"] is True
    assert "stop" not in sent
    user, assistant, *replies = server.bodies[1]["messages"]
    assert QUESTION in user["content"]
    assert assistant["content"] == "Both at once."
    assert [one["function"]["arguments"] for one in assistant["tool_calls"]][:2] == [
        '{"queries": ["Monet born"]}',
        '{"queries": ["Pissarro born"]}',
    ]
    assert "reasoning_content" not in assistant
    assert [(reply["role"], reply["tool_call_id"]) for reply in replies] == [
        ("tool", "a"),
        ("tool", "b"),
        ("tool", "c"),
    ]
    assert "1840" in replies[0]["content"]
    assert "1830" in replies[1]["content"]
    assert "no such tool" in replies[2]["content"]


async def test_a_dialect_of_one_search_a_turn_forbids_parallel_calls() -> None:
    async with FaultServer(saying("Camille Pissarro")) as server:
        await ask(policy_for(server), dialect="tools-sequential")
    assert server.bodies[0]["parallel_tool_calls"] is False


def test_who_may_not_split_says_so_of_its_tools() -> None:
    told = {name: [tool.one_at_a_time for tool in kind.tools] for name, kind in DIALECTS.items() if kind.tools}
    assert told == {name: [not DIALECTS[name].may_split] * len(marks) for name, marks in told.items()}
    assert any(marks[0] for marks in told.values())


MONET, PISSARRO = '{"queries": ["Monet born"]}', '{"queries": ["Pissarro born"]}'


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([call(0, "a", "search", MONET), call(0, "b", "search", PISSARRO)], id="index 0, whole (Ollama)"),
        pytest.param(
            [
                *(call(0, "a", "search"), call(0, arguments=MONET[:9]), call(0, arguments=MONET[9:])),
                *(call(0, "b", "search"), call(0, arguments=PISSARRO[:9]), call(0, arguments=PISSARRO[9:])),
            ],
            id="index 0, in pieces (LMDeploy)",
        ),
        pytest.param(
            [
                *(call(0, "a", "search", MONET[:9]), call(0, "a", arguments=MONET[9:])),
                *(call(0, "b", "search", PISSARRO[:9]), call(0, "b", arguments=PISSARRO[9:])),
                call(0, "a", "search"),
            ],
            id="index 0, id in every piece",
        ),
        pytest.param([call(0, None, "search", MONET), call(0, None, "search", PISSARRO)], id="index 0, no ids"),
        pytest.param([call(0, "a", "search", MONET), call(0, "a", "search", PISSARRO)], id="index 0, one id"),
        pytest.param(
            [
                *(call(0, None, "search"), call(0, arguments=MONET)),
                *(call(0, None, "search"), call(0, arguments=PISSARRO[:9]), call(0, arguments=PISSARRO[9:])),
            ],
            id="index 0, no ids, in pieces",
        ),
        pytest.param(
            [
                *(call(0, "a", "search", MONET[:9]), call(0, "x", "search", MONET[9:]), call(0, "y", "search")),
                *(call(1, "b", "search", PISSARRO), call(1, "z", "search", " ")),
            ],
            id="another id in every piece, the last one empty",
        ),
        pytest.param(
            [
                call(0, "a", "search", MONET),
                call(0, "b", "search", PISSARRO),
                call(1, "c", "search", '{"queries": []}'),
            ],
            id="an index that is taken again",
        ),
        pytest.param(
            [
                *(call(0, "a", "search", MONET[:9]), call(0, "a", "search", MONET[9:]), call(0, "a", "search")),
                *(call(1, "b", "search", PISSARRO[:9]), call(1, "b", "search", PISSARRO[9:])),
            ],
            id="name and id in every piece",
        ),
        pytest.param(
            [
                *(call(0, "a", "search", MONET[:9]), call(0, "x", arguments=MONET[9:])),
                *(call(1, "b", "search", PISSARRO[:9]), call(1, "y", "search", arguments=PISSARRO[9:])),
            ],
            id="another id in every piece",
        ),
        pytest.param(
            [
                *(call(0, "a", "functions.search", MONET[:9]), call(0, "a", "functions.search", MONET[9:])),
                *(call(1, "b", "functions"), call(1, None, ".search", PISSARRO)),
            ],
            id="namespace before the name",
        ),
        pytest.param([call(0, "a", "search", MONET), call(1, "a", "search", PISSARRO)], id="one id, two indices"),
        pytest.param([call(NONE, "a", "search", MONET), call(NONE, "a", "search", PISSARRO)], id="no index, one id"),
        pytest.param(
            [
                *(call(NONE, "a", "search", MONET[:9]), call(NONE, "a", arguments=MONET[9:])),
                *(call(NONE, "b", "search", PISSARRO[:9]), call(NONE, "b", "search", PISSARRO[9:])),
            ],
            id="no index, id in every piece",
        ),
        pytest.param(
            [
                *(call(NONE, "a", "search", MONET[:9]), call(NONE, arguments=MONET[9:])),
                *(call(NONE, "b", "search", PISSARRO[:9]), call(NONE, arguments=PISSARRO[9:])),
            ],
            id="no index, id in the first piece",
        ),
        pytest.param(
            [
                *(call(NONE, "a", "search", MONET[:9]), call(NONE, "b", "search", PISSARRO)),
                *(call(NONE, "a", arguments=MONET[9:12]), call(NONE, arguments=MONET[12:])),
            ],
            id="no index, back to the first",
        ),
        pytest.param(
            [
                call(NONE, None, "search", MONET),
                *(call(NONE, None, "search", PISSARRO[:9]), call(NONE, None, None, PISSARRO[9:])),
            ],
            id="no index, no ids, in pieces",
        ),
    ],
)
@pytest.mark.parametrize("together", [False, True])
async def test_calls_are_told_apart_however_servers_number_and_name_them(
    pieces: list[dict[str, Any]], together: bool
) -> None:
    streamed = events(piece_of(pieces), chunk(finish="tool_calls"), usage_chunk(7), DONE)
    async with FaultServer(streamed if together else calling(*pieces), saying("x")) as server:
        trajectory = await ask(policy_for(server))
    assert [query.text for query in trajectory.rounds[0].queries] == ["Monet born", "Pissarro born"]
    _, assistant, *replies = server.bodies[1]["messages"]
    sent = [(one["id"], one["function"]["name"], one["function"]["arguments"]) for one in assistant["tool_calls"]]
    given = list(dict.fromkeys(piece["id"] for piece in pieces if piece.get("id") in ("a", "b")))
    ids = [given[0], f"{given[0]}-1"] if len(given) == 1 else given or ["call-0", "call-1"]
    assert [reply["tool_call_id"] for reply in replies][:2] == ids  # each by an id of its own
    assert sent[:2] == [(ids[0], "search", MONET), (ids[1], "search", PISSARRO)]
    assert len(replies) == len(sent) == 2 + any(piece.get("id") == "c" for piece in pieces)
    assert ["1840" in replies[0]["content"], "1830" in replies[1]["content"]] == [True, True]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 11])
async def test_calls_split_at_any_byte(size: int) -> None:
    text = '{"queries": ["Monet \\u00e9t\\u00e9 \U0001f600", "Pissarro \\"born\\""]}'
    pieces = [call(0, "a", "search")] + [call(0, arguments=text[n : n + size]) for n in range(0, len(text), size)]
    async with FaultServer(calling(*pieces, size=size), saying("x")) as server:
        trajectory = await ask(policy_for(server))
    assert [query.text for query in trajectory.rounds[0].queries] == ["Monet été \U0001f600", 'Pissarro "born"']


async def test_a_server_that_answers_whole_and_gives_arguments_as_an_object() -> None:
    message = {"tool_calls": [{"id": "a", "type": "function", "function": {"name": "search", "arguments": "{}"}}]}
    body = json.loads(whole("", True, "tool_calls", USAGE, {"message": message}))
    body["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] = {"queries": ["Monet born"]}
    script = (status(200, body), status(200, json.loads(whole("Pissarro", True, "stop", USAGE, {}))))
    async with FaultServer(*script) as server:
        trajectory = await ask(policy_for(server, stream=False))
    assert (trajectory.answer, trajectory.num_subqueries) == ("Pissarro", 1)


LEGACY_CALL = {"function_call": {"name": "search", "arguments": '{"queries": ["Monet born"]}'}}
RESPONSES_REASONING = {"id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": "I know."}]}
GATEWAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one call, as before there could be several": (LEGACY_CALL, {"content": "Pissarro", "reasoning": "I know."}),
    "a thought as an object": (LEGACY_CALL, {"content": "Pissarro", "reasoning": RESPONSES_REASONING}),
    "a thought among the parts": (
        LEGACY_CALL,
        {"content": [{"type": "reasoning", "text": "I know."}, {"type": "text", "text": "Pissarro"}]},
    ),
    "Mistral's": (
        LEGACY_CALL,
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "I know."}]}, "Pissarro"]},
    ),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", GATEWAYS)
async def test_what_gateways_make_of_a_message_is_understood(name: str, stream: bool) -> None:
    """A thought that was taken for part of the answer made it rest on nothing, and a call of the old form was lost."""

    def saying_so(message: dict[str, Any], finish: str) -> Behaviour:
        if stream:
            piece = json.loads(chunk().removeprefix("data: "))
            piece["choices"][0]["delta"] = message
            return events(f"data: {json.dumps(piece)}", chunk(finish=finish), usage_chunk(3), DONE)
        body = json.loads(whole("", True, finish, USAGE, {}))
        body["choices"][0]["message"] = {"role": "assistant", **message}
        return status(200, body)

    call, answer = GATEWAYS[name]
    async with FaultServer(saying_so(call, "function_call"), saying_so(answer, "stop")) as server:
        trajectory = await ask(policy_for(server, stream=stream))
    assert [query.text for turn in trajectory.rounds for query in turn.queries] == ["Monet born"]
    assert (trajectory.answer, trajectory.turns[-1].thought) == ("Pissarro", "I know.")
    assert "Monet" in next(one["content"] for one in server.bodies[1]["messages"] if one["role"] == "tool")


async def test_the_calls_of_a_whole_answer_are_as_many_as_stand_there() -> None:
    """Also if one is broken, and whatever their ids and numbers are."""
    calls = [
        call(0, "a", "search", '{"queries": ["Mon'),
        call(0, "a", "search", PISSARRO),
        call(0, "b", "search", MONET),
    ]
    body = json.loads(whole("", True, "tool_calls", USAGE, {"message": {"tool_calls": calls}}))
    async with FaultServer(status(200, body), status(200, json.loads(whole("x", True, "stop", USAGE, {})))) as server:
        trajectory = await ask(policy_for(server, stream=False))
    assert [query.text for query in trajectory.rounds[0].queries] == ["Pissarro born", "Monet born"]
    assert [one["tool_call_id"] for one in server.bodies[1]["messages"] if one["role"] == "tool"] == ["a", "a-1", "b"]


async def test_calls_that_leak_into_the_content_are_read_and_answered_in_a_user_message() -> None:
    leaked = '<tool_call>\n{"name": "search", "arguments": {"queries": ["Monet born"]}}\n</tool_call>'
    async with FaultServer(saying(leaked), saying("Monet")) as server:
        trajectory = await ask(policy_for(server))
    assert (trajectory.answer, trajectory.num_searches) == ("Monet", 1)
    assert [message["role"] for message in server.bodies[1]["messages"]] == ["user", "assistant", "user"]


@pytest.mark.parametrize(
    ("dialect", "choice"),
    [("tools", "none"), ("tools-answer", {"type": "function", "function": {"name": "answer"}})],
)
async def test_who_is_told_to_answer_cannot_call_search_again(dialect: str, choice: Any) -> None:
    last = (
        calling(call(0, "z", "answer", '{"answer": "Pissarro"}')) if dialect == "tools-answer" else saying("Pissarro")
    )
    async with FaultServer(BOTH, BOTH, last) as server:
        trajectory = await ask(policy_for(server), dialect=dialect, limits=Limits(max_turns=1))
    assert (trajectory.answer, trajectory.num_searches) == ("Pissarro", 1)
    assert [body.get("tool_choice") for body in server.bodies] == [None, None, choice]
    assert len(server.bodies[-1]["tools"]) == len(server.bodies[0]["tools"])  # the earlier calls must be readable


async def test_a_server_that_knows_no_choice_of_tools_is_told_in_words_alone() -> None:
    last = refusing("tool_choice", saying("Pissarro"))
    async with FaultServer(BOTH, BOTH, last, last) as server:
        trajectory = await ask(policy_for(server), limits=Limits(max_turns=1))
    assert (trajectory.answer, trajectory.dialect) == ("Pissarro", "tools")
    assert ["tool_choice" in body for body in server.bodies] == [False, False, True, False]
    assert "No more searches" in server.bodies[-1]["messages"][-1]["content"]


# ---- what servers refuse ---------------------------------------------------------------------------------------------


def refusing(field: str, then: Behaviour) -> Behaviour:
    """As OpenAI's reasoning models do."""

    async def behave(exchange: Exchange) -> None:
        if field in exchange.request.body:
            message = f"Unsupported parameter: '{field}' is not supported with this model."
            await status(400, {"error": {"message": message, "code": "unsupported_parameter"}})(exchange)
        else:
            await then(exchange)

    return behave


async def test_a_model_that_refuses_stop_and_temperature_is_asked_without(caplog: pytest.LogCaptureFixture) -> None:
    model = refusing("stop", refusing("temperature", engine(SEARCH + " and on it goes", at_stop="ignore")))
    last = refusing("stop", refusing("temperature", engine(ANSWER + " ...", at_stop="ignore")))
    async with FaultServer(model, model, model, last) as server:
        with caplog.at_level(logging.WARNING):
            trajectory = await ask(policy_for(server, dialect="parallel"))
    assert (trajectory.answer, trajectory.num_llm_calls) == ("Pissarro", 2)
    assert len(server.requests) == 4  # learned once, not at every turn
    texts = [segment.text for segment in trajectory.segments if segment.author == "model"]
    assert texts == [SEARCH, ANSWER]  # cut by our own parser
    assert [record.message.count("from now on") for record in caplog.records] == [1, 1]


async def test_parallel_tool_calls_and_reasoning_effort_are_left_out_where_refused() -> None:
    model = refusing("parallel_tool_calls", refusing("reasoning_effort", saying("Pissarro")))
    async with FaultServer(model) as server:
        trajectory = await ask(policy_for(server, reasoning_effort="low"))
    assert trajectory.answer == "Pissarro"
    assert server.bodies[0]["reasoning_effort"] == "low"
    assert "reasoning_effort" not in server.bodies[-1]
    assert "tools" in server.bodies[-1]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'),
        (500, "tools param requires --jinja flag"),
        (400, "registry/tiny:latest does not support tools"),
        (422, "Extra inputs are not permitted: tools"),
    ],
)
async def test_a_server_without_tools_is_asked_in_tags_from_then_on(
    code: int, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    refusal = status(code, {"error": {"message": message}})
    async with FaultServer(refusal, engine(SEARCH), engine(ANSWER), engine(ANSWER)) as server:
        policy = policy_for(server)
        search = Search(BM25Retriever.from_passages(PASSAGES), k=1)
        with caplog.at_level(logging.WARNING):
            first = await rollout(QUESTION, policy, search)
            second = await rollout(QUESTION, policy, search)
        await search.aclose()
        await policy.aclose()
    assert (first.answer, first.dialect) == ("Pissarro", "parallel")
    assert second.dialect == "parallel"
    assert "tools" in server.bodies[0]
    assert all("tools" not in body for body in server.bodies[1:])
    assert len([record for record in caplog.records if "takes no tools" in record.message]) == 1


@pytest.mark.parametrize(
    "failure",
    [
        status(500, {"error": {"message": "error parsing tool call: raw='{\"quer' err=unexpected end of JSON input"}}),
        status(500, {"error": {"message": "Failed to parse tool call arguments as JSON: parse error at line 1"}}),
        status(500, {"error": {"message": "Failed to parse input at pos 9: <tool_call> {"}}),
        status(
            400, {"error": {"message": "Failed to call a function. See 'failed_generation' for more details. stop"}}
        ),
        status(400, {"error": {"message": "tool call validation failed: attempted to call tool 'find'"}}),
        events('data: {"error": {"message": "error parsing tool call: raw=x", "type": "api_error"}}', DONE),
    ],
)
async def test_a_call_that_the_server_cannot_read_is_tried_again_with_tools(failure: Behaviour) -> None:
    async with FaultServer(failure, BOTH, failure, saying("Pissarro")) as server:
        policy = policy_for(server)
        trajectory = await ask(policy)
    assert (trajectory.answer, trajectory.dialect, policy.dialect) == ("Pissarro", "tools", "tools")
    assert [("tools" in body, body.keys()) for body in server.bodies] == [(True, server.bodies[0].keys())] * 4


async def test_a_server_that_took_tools_once_is_not_taken_for_one_without() -> None:
    refusal = status(400, {"error": {"message": "tool calls and tool messages do not fit together"}})
    async with FaultServer(BOTH, refusal, BOTH, saying("Pissarro")) as server:
        policy = policy_for(server)
        search = Search(BM25Retriever.from_passages(PASSAGES), k=1)
        first, second = [await rollout(QUESTION, policy, search) for _ in range(2)]
        await search.aclose()
        await policy.aclose()
    assert first.stop == "error"
    assert "do not fit together" in (first.error or "")
    assert "takes no tools" not in (first.error or "")
    assert (second.answer, second.dialect) == ("Pissarro", "tools")


async def test_who_insists_on_tools_is_told() -> None:
    async with FaultServer(status(400, {"error": {"message": "this model does not support tools"}})) as server:
        trajectory = await ask(policy_for(server), dialect="tools")
    assert trajectory.stop == "error"
    assert "does not support tools" in (trajectory.error or "")
    assert "take the dialect 'parallel'" in (trajectory.error or "")


async def test_reasoning_goes_back_to_a_server_that_wants_it() -> None:
    first = calling(call(0, "a", "search", '{"queries": ["Monet born"]}'), reasoning="Two people.")
    want = status(400, {"error": {"message": "Missing reasoning_content in the assistant message at index 1"}})
    async with FaultServer(first, want, saying("Pissarro")) as server:
        trajectory = await ask(policy_for(server))
    assert trajectory.answer == "Pissarro"
    assert "reasoning_content" not in server.bodies[1]["messages"][1]
    assert server.bodies[2]["messages"][1]["reasoning_content"] == "Two people."


async def test_a_stream_cut_inside_a_call_is_begun_again() -> None:
    half = events(
        chunk(delta={"tool_calls": [call(0, "a", "search", '{"queries": ["Monet born", "Pis')]}), after="hang_up"
    )
    async with FaultServer(half, BOTH, saying("Pissarro")) as server:
        trajectory = await ask(policy_for(server))
    assert trajectory.answer == "Pissarro"
    assert [query.text for query in trajectory.rounds[0].queries] == ["Monet born", "Pissarro born"]


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        (events(chunk(finish="content_filter"), DONE), "content filter"),
        (status(400, {"error": {"message": "maximum context length is 100 tokens"}}), "no longer fits"),
        (status(401, {"error": {"message": "no"}}), "OPENAI_API_KEY"),
        (events(chunk(delta={"tool_calls": []}), "data: {}", DONE), "has no 'choices'"),
    ],
)
async def test_what_cannot_be_helped_says_what_to_do_and_keeps_the_trajectory(behaviour: Behaviour, words: str) -> None:
    async with FaultServer(BOTH, behaviour) as server:
        trajectory = await ask(policy_for(server, max_attempts=1))
    assert trajectory.stop == "error"
    assert words in (trajectory.error or "")
    assert trajectory.num_searches == 1  # what was found before is kept


# ---- which dialect ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "dialect"),
    [
        ("http://h/v1#gpt", "tools"),
        ("http://h/v1?dialect=parallel#gpt", "parallel"),
        ("http://h/v1?dialect=search-r1#gpt", "search-r1"),
        ("http://h/v1?api=completions#gpt", None),
        ("http://h/v1#smollm2-135m+parallel", None),
        ("http://h/v1#my-parallelsearch-7b", None),
        ("http://h/v1?token_ids=1#gpt", None),
        ("http://h/v1", "tools"),
    ],
)
def test_the_address_decides(address: str, dialect: str | None) -> None:
    assert OpenAIPolicy.from_address(address).dialect == dialect


async def test_a_model_that_is_found_out_to_be_trained_on_tags_is_asked_in_tags() -> None:
    async with FaultServer(models("tiny-parallelsearch"), engine(ANSWER)) as server:
        trajectory = await ask(OpenAIPolicy(server.url, max_wait_s=0.05))
    assert (trajectory.answer, trajectory.dialect) == ("Pissarro", "parallel")
    assert len(server.requests) == 2


async def test_an_endless_call_ends_with_the_turns_limits() -> None:
    pieces = [call(0, "a", "search", '{"queries": ["x')] + [call(0, arguments="y" * 1000) for _ in range(50)]
    async with FaultServer(calling(*pieces), saying("x")) as server:
        trajectory = await ask(policy_for(server), limits=Limits(max_turns=1))
    assert trajectory.stop == "answer"
    assert trajectory.turns[0].problems == ["bad_arguments"]

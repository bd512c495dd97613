"""Turns that come in one piece: when they are asked for, that the record is that of a streamed one, and what can go wrong."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Literal

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
    ask,
    chunk,
    engine,
    events,
    failure,
    half_body,
    hang,
    hang_up,
    policy_for,
    status,
    usage_chunk,
    whole,
)
from hypothesis import given
from hypothesis import strategies as st

from parallelsearch import grammar
from parallelsearch.errors import PolicyError, TransientError
from parallelsearch.limits import Limits
from parallelsearch.policy import server as server_module
from parallelsearch.policy.base import Generation
from parallelsearch.policy.openai_wire import Turn
from parallelsearch.policy.scripted import ScriptedPolicy
from parallelsearch.retrieval.bm25 import BM25Retriever
from parallelsearch.rollout import Event, rollout
from parallelsearch.search import Search
from parallelsearch.trajectory import Trajectory
from parallelsearch.trajectory import Turn as TurnRecord
from virtual_time import in_virtual_time

USAGE = {"prompt_tokens": 10, "completion_tokens": 7, "total_tokens": 17}


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


async def answered(server: FaultServer, stream: bool | None = None, **options: Any) -> Trajectory:
    search = Search(BM25Retriever.from_passages(PASSAGES), k=1)
    policy = policy_for(server, stream=stream, dialect=options.pop("dialect", "parallel"))
    try:
        return await rollout(QUESTION, policy, search, **options)
    finally:
        await search.aclose()
        await policy.aclose()


def ways(server: FaultServer) -> list[object]:
    return [body.get("stream") for body in server.bodies]


# ---- who listens -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stream", "options", "streamed"),
    [
        (None, {"streaming_dispatch": False}, [False, False]),
        (None, {"streaming_dispatch": True}, [True, True]),
        (None, {"streaming_dispatch": True, "limits": Limits(max_turns=1)}, [True, False]),  # the last may not search
        (None, {"streaming_dispatch": True, "dialect": "search-r1"}, [False, False]),  # it is read when it is whole
        (None, {"streaming_dispatch": False, "on_event": list[Event]().append}, [True, True]),
        (None, {"streaming_dispatch": False, "limits": Limits(timeout_s=None)}, [False, False]),
        (None, {"streaming_dispatch": False, "limits": Limits(timeout_s=50)}, [True, True]),  # an answer may be cut
        (True, {"streaming_dispatch": False}, [True, True]),
        (False, {"streaming_dispatch": True}, [False, False]),
    ],
)
async def test_a_turn_is_streamed_where_somebody_listens(
    stream: bool | None, options: dict[str, Any], streamed: list[bool]
) -> None:
    async with FaultServer(engine(SEARCH), engine(ANSWER)) as server:
        trajectory = await answered(server, stream, **options)
    assert trajectory.answer == "Pissarro"
    assert ways(server) == streamed


@in_virtual_time
async def test_near_its_end_a_rollout_listens_for_what_has_been_said() -> None:
    """The first turn takes longer than anybody thought, and is cut. The next one has little time, and is followed."""
    slow = "<think> t </think><answer> Pissarro" + " " * 90_000 + "</answer>"
    policy = ScriptedPolicy({QUESTION: [slow]}, tokens_per_s=60)
    search = Search(BM25Retriever.from_passages(PASSAGES), k=1)
    trajectory = await rollout(
        QUESTION,
        policy,
        search,
        Limits(timeout_s=300, max_tokens_per_turn=100_000, max_tokens=200_000),
        streaming_dispatch=False,
    )
    await search.aclose()
    assert [turn.finish for turn in trajectory.turns] == ["timeout", "timeout"]
    assert (trajectory.stop, trajectory.answer) == ("timeout", "Pissarro")


# ---- the same record -------------------------------------------------------------------------------------------------


def plain(record: TurnRecord) -> dict[str, Any]:
    """A turn without its times."""
    left_out = ("start_s", "generate_s", "queries")
    fields = {name: getattr(record, name) for name in TurnRecord.__dataclass_fields__ if name not in left_out}
    return {**fields, "queries": [(query.text, query.hits, query.error) for query in record.queries]}


def calling(usage: dict[str, int]) -> Behaviour:
    """A message with text, reasoning and two calls, streamed if asked for."""
    calls = [
        {"id": f"call-{name}", "type": "function", "function": {"name": "search", "arguments": arguments}}
        for name, arguments in (("a", '{"queries": ["Monet born", "Pissarro born"]}'), ("b", '{"queries": ["Monet"]}'))
    ]

    async def behave(exchange: Exchange) -> None:
        if not exchange.request.body.get("stream"):
            message = {"reasoning_content": "Two\npeople.", "tool_calls": calls}
            await exchange.body(whole("I look.", True, "tool_calls", usage, {"message": message}).encode())
            return
        pieces = [chunk(delta={"reasoning_content": "Two\npe"}), chunk(delta={"reasoning_content": "ople."})]
        pieces += [chunk("I l"), chunk("ook.")]
        for index, one in enumerate(calls):
            name, arguments = one["function"]["name"], one["function"]["arguments"]  # type: ignore[index]
            head = {"index": index, "id": one["id"], "type": "function", "function": {"name": name, "arguments": ""}}
            pieces.append(chunk(delta={"tool_calls": [head]}))
            for at in range(0, len(arguments), 5):
                piece = {"index": index, "function": {"arguments": arguments[at : at + 5]}}
                pieces.append(chunk(delta={"tool_calls": [piece]}))
        pieces += [chunk(finish="tool_calls"), usage_chunk(usage["completion_tokens"]), DONE]
        await events(*pieces)(exchange)

    return behave


@pytest.mark.parametrize(
    ("script", "options"),
    [
        ([engine(SEARCH), engine(ANSWER)], {}),
        ([engine(SEARCH, "keep"), engine(ANSWER, "keep")], {}),
        ([engine("<think> on and on", finish="length"), engine(SEARCH), engine(ANSWER)], {}),
        ([engine("no tags at all"), engine(ANSWER)], {}),
        ([calling(USAGE), engine("Pissarro")], {"dialect": "tools"}),
        ([engine("<search> the server stops by itself"), engine(ANSWER)], {}),
    ],
)
async def test_the_record_does_not_tell_how_a_turn_came(script: list[Behaviour], options: dict[str, Any]) -> None:
    records = []
    for stream in (True, False, None):
        for dispatches in (True, False):
            async with FaultServer(*script) as server:
                found = await answered(server, stream, streaming_dispatch=dispatches, **options)
            assert found.answer == "Pissarro"
            rest = (found.stop, found.num_llm_calls, found.num_searches, found.num_subqueries, found.error)
            records.append(([plain(turn) for turn in found.turns], found.segments, rest))
    for record in records[1:]:
        assert record == records[0]
    assert all(turn["usage"] is not None for turn in records[0][0])


TEXT = st.lists(
    st.sampled_from(
        ["a", " ", "\n", "é", "😀", "</", "</search>", "</answer>", "<search>", "##", "<think>", "</think>"]
    )
).map("".join)


@given(
    content=TEXT,
    tail=st.sampled_from(["", "</search>", "</answer> and on", "<search> a"]),
    reasoning=st.one_of(st.none(), TEXT),
    ids=st.one_of(st.none(), st.lists(st.integers(0, 9), min_size=1, max_size=4)),
    finish=st.sampled_from(["stop", "length", "eos", "content_filter", "abort", "tool_calls"]),
    matched=st.sampled_from([None, "</search>", 7]),
    with_calls=st.booleans(),
    arguments=st.lists(st.sampled_from(['{"queries": ["a", "b"]}', "{}", "half {"]), max_size=2),
    counted=st.booleans(),
    cuts=st.lists(st.integers(1, 7), min_size=1, max_size=5),
)
def test_whole_and_cut_into_any_pieces_is_the_same_generation(
    content: str,
    tail: str,
    reasoning: str | None,
    ids: list[int] | None,
    finish: str,
    matched: object,
    with_calls: bool,
    arguments: list[str],
    counted: bool,
    cuts: list[int],
) -> None:
    content += tail
    logprobs = None if ids is None else {"content": [{"logprob": -0.5} for _ in ids]}
    end = {"finish_reason": finish, "stop_reason": matched}
    calls = [{"id": f"c{at}", "function": {"name": "search", "arguments": one}} for at, one in enumerate(arguments)]
    usage = {"usage": USAGE} if counted else {}
    message = {"content": content, "reasoning_content": reasoning, "tool_calls": calls or None}
    answer = {"choices": [{"message": message, "token_ids": ids, "logprobs": logprobs, **end}], **usage}

    def pieces(text: str | None) -> list[str]:
        left, found = text or "", []
        for at in range(len(left)):
            if not left:
                break
            size = cuts[at % len(cuts)]
            found.append(left[:size])
            left = left[size:]
        return found

    deltas: list[dict[str, Any]] = [{"reasoning_content": piece} for piece in pieces(reasoning)]
    deltas += [{"content": piece} for piece in pieces(content)]
    for at, one in enumerate(calls):
        deltas.append({"tool_calls": [{"index": at, "id": one["id"], "function": {"name": "search"}}]})
        deltas += [{"tool_calls": [{"index": at, "function": {"arguments": piece}}]} for piece in pieces(arguments[at])]
    chunks: list[dict[str, Any]] = [{"choices": [{"delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({"choices": [{"delta": {}, "token_ids": ids, "logprobs": logprobs, **end}]})
    chunks += [{"choices": [], **usage}] if counted else []

    def read(payloads: list[dict[str, Any]]) -> Generation | str:
        turn = Turn(grammar.STOP_STRINGS, None, with_calls=with_calls)
        try:
            for payload in payloads:  # a client cuts a server off that runs on; this one has sent all the same
                turn.feed(payload)
            return turn.generation(len)
        except (PolicyError, TransientError) as error:
            return str(error)

    assert read(chunks) == read([answer])


# ---- servers that answer in one way only -----------------------------------------------------------------------------


def only(streamed: bool, text: str, message: str) -> Behaviour:
    """A server that answers in one way, and refuses the other."""

    async def behave(exchange: Exchange) -> None:
        if bool(exchange.request.body.get("stream")) == streamed:
            await engine(text)(exchange)
        else:
            await status(400, {"error": {"message": message}})(exchange)

    return behave


@pytest.mark.parametrize(
    ("streamed", "message"),
    [
        (True, "This model only supports stream mode, please enable the stream parameter"),
        (False, "streaming is not supported by this model"),
        (False, "'stream' must be false"),
    ],
)
async def test_a_server_with_one_way_is_asked_in_it_from_then_on(
    streamed: bool, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with FaultServer(only(streamed, ANSWER, message)) as server:
        policy = policy_for(server)
        pieces: list[str] | None = None if streamed else []
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                assert (await ask(policy, pieces=pieces)).text == ANSWER
        assert pieces is None or "".join(pieces) == ANSWER * 2
    assert [bool(way) for way in ways(server)] == [not streamed, streamed, streamed]
    assert len([record for record in caplog.records if "from now on" in record.message]) == 1
    assert policy.streams == streamed


async def test_a_server_that_does_not_know_the_field_is_asked_without() -> None:
    async def behave(exchange: Exchange) -> None:
        if "stream" in exchange.request.body:
            await status(422, {"detail": "Extra inputs are not permitted: stream"})(exchange)
        else:
            await engine(ANSWER)(exchange)

    async with FaultServer(behave) as server:
        policy = policy_for(server)
        assert (await ask(policy)).text == (await ask(policy, pieces=[])).text == ANSWER
    assert ways(server) == [False, True, None, None]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_way_that_was_asked_for_is_not_given_up(stream: bool) -> None:
    async with FaultServer(only(not stream, ANSWER, "stream has the wrong value")) as server:
        assert "stream has the wrong value" in await failure(policy_for(server, stream=stream))
    assert ways(server) == [stream]


async def test_a_server_that_refuses_both_ways_is_an_error() -> None:
    async with FaultServer(status(400, {"error": {"message": "bad stream"}})) as server:
        assert "bad stream" in await failure(policy_for(server))
    assert ways(server) == [False, True, None]


@pytest.mark.parametrize("after", ["end", "hang_up"])
async def test_events_that_nobody_asked_for_are_read(after: Literal["end", "hang_up"]) -> None:
    stream = events(chunk(ANSWER[:9]), chunk(ANSWER[9:]), chunk(finish="stop"), usage_chunk(5), DONE, after=after)
    async with FaultServer(stream) as server:
        generation = await ask(policy_for(server))
    assert (generation.text, generation.num_tokens) == (ANSWER, 5)
    assert ways(server) == [False]


async def test_a_server_that_runs_past_the_stop_strings_is_streamed_and_cut_off_from_then_on() -> None:
    on = engine(SEARCH + " and on" * 5000, "ignore", piece=7, pause_s=0.005)
    async with FaultServer(engine(SEARCH + " and on", "ignore"), on) as server:
        policy = policy_for(server)
        for _ in range(2):
            generation = await ask(policy)
            assert (generation.text, generation.finish) == (SEARCH, "stop")
        for _ in range(6_000):
            if server.requests[1].is_cut_off:
                break
            await asyncio.sleep(0.01)
    assert ways(server) == [False, True]
    assert server.requests[1].is_cut_off


async def test_without_stop_strings_turns_are_streamed_to_be_cut() -> None:
    async def behave(exchange: Exchange) -> None:
        if "stop" in exchange.request.body:
            await status(400, {"error": {"message": "Unsupported parameter: 'stop'"}})(exchange)
        else:
            await engine(SEARCH + " and on", "ignore")(exchange)

    async with FaultServer(behave) as server:
        assert (await ask(policy_for(server))).text == SEARCH
    assert ways(server) == [False, True]


# ---- silence ---------------------------------------------------------------------------------------------------------


async def test_a_whole_answer_may_be_silent_for_longer_than_a_stream() -> None:
    async def late(exchange: Exchange) -> None:
        await asyncio.sleep(0.5)
        await engine(ANSWER)(exchange)

    async with FaultServer(late) as server:
        policy = policy_for(server, read_timeout_s=0.05, timeout_s=300)
        assert (await ask(policy)).text == ANSWER
    assert ways(server) == [False]


async def test_the_time_limit_of_the_turn_ends_a_whole_answer() -> None:
    async with FaultServer(hang) as server:
        assert "did not" in await failure(policy_for(server, timeout_s=0.4))
        for _ in range(6_000):
            if server.requests[0].is_cut_off:
                break
            await asyncio.sleep(0.01)
    assert server.requests[0].is_cut_off


@pytest.mark.parametrize("trouble", [hang_up, half_body, status(500)])
async def test_a_whole_answer_that_breaks_off_is_asked_for_again(trouble: Behaviour) -> None:
    async with FaultServer(trouble, engine(ANSWER)) as server:
        assert (await ask(policy_for(server))).text == ANSWER
    assert ways(server) == [False, False]


@pytest.mark.parametrize(("trouble", "long_s"), [(status(504), 1e9), (status(524), 1e9), (hang_up, 0.0)])
async def test_what_gives_up_a_silent_connection_gets_a_stream_from_then_on(
    trouble: Behaviour, long_s: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_module, "_LONG_SILENCE_S", long_s)
    async with FaultServer(trouble, engine(ANSWER)) as server:
        policy = policy_for(server)
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                assert (await ask(policy)).text == ANSWER
    assert ways(server) == [False, True, True]
    assert len([record for record in caplog.records if "streamed from now on" in record.message]) == 1
    async with FaultServer(trouble, engine(ANSWER)) as server:
        assert (await ask(policy_for(server, stream=False))).text == ANSWER
    assert ways(server) == [False, False]


async def test_extra_body_decides_on_the_stream_too() -> None:
    async with FaultServer(engine(ANSWER)) as server:
        extra = {"stream": True, "stream_options": None}
        assert (await ask(policy_for(server, extra_body=extra))).text == ANSWER
    assert (ways(server), "stream_options" in server.bodies[0]) == ([True], False)


@pytest.mark.parametrize("stream", [None, False])
async def test_a_stream_that_extra_body_leaves_out_has_no_options(stream: bool | None) -> None:
    async with FaultServer(engine(ANSWER)) as server:
        assert (await ask(policy_for(server, extra_body={"stream": stream}), pieces=[])).text == ANSWER
    assert "stream_options" not in server.bodies[0]

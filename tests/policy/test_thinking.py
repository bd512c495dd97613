"""`openai:` with a model that thinks before it speaks, on the wire: the room for its thoughts, and what they cost.

The server keeps to the limit of tokens it is given, as real ones do: a model that thinks longer than that says nothing.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest
from fault_server import (
    DONE,
    PASSAGES,
    QUESTION,
    SEARCH,
    Behaviour,
    Exchange,
    FaultServer,
    chunk,
    engine,
    policy_for,
    status,
)

from parallelsearch.dialect import Tool
from parallelsearch.errors import UsageError
from parallelsearch.limits import Limits, Prices
from parallelsearch.policy.base import Generation, Policy, Sampling
from parallelsearch.policy.openai import OpenAIPolicy
from parallelsearch.retrieval.bm25 import BM25Retriever
from parallelsearch.rollout import rollout
from parallelsearch.search import Search
from parallelsearch.trajectory import Segment, Trajectory, trajectory_from_dict

How = Literal["hidden", "silent", "apart", "tags", "opened"]
"""A server tells only how long the model thought; not even that; gives the thought apart; leaves it in the text; or leaves
it there with the closing tag alone, because the chat template has opened it."""
SAYS = 20
"""Tokens that a turn of the model has beside its thought."""


def thinker(thinks: int = 1500, how: How = "apart", context: int | None = None) -> Behaviour:
    """A model that thinks so many tokens, then calls the search, and, once it has results, answers."""

    async def behave(exchange: Exchange) -> None:
        body = exchange.request.body
        room = body.get("max_completion_tokens") or body["max_tokens"]
        if context is not None and room > context:
            await status(400, {"error": {"message": f"max_tokens is too large: {room}. Context length: {context}"}})(
                exchange
            )
            return
        is_over = thinks + SAYS > room
        thought = "so " * min(thinks, room)
        has_results = any(message["role"] == "tool" for message in body["messages"])
        call = {"name": "search", "arguments": json.dumps({"queries": ["Monet born", "Pissarro born"]})}
        delta: dict[str, Any] = {}
        text = ""
        if how == "tags":
            text = f"<think>{thought}" + ("" if is_over else "</think>")
        elif how == "opened":
            text = thought + ("" if is_over else "</think>\n\n")
        elif how == "apart":
            delta["reasoning_content"] = thought
        if not is_over and has_results:
            text += "Pissarro"
        elif not is_over:
            delta["tool_calls"] = [{"index": 0, "id": "a", "type": "function", "function": call}]
        written = min(thinks + SAYS, room)
        usage: dict[str, Any] = {"prompt_tokens": 100, "completion_tokens": written, "total_tokens": 100 + written}
        if how == "hidden":
            usage["completion_tokens_details"] = {"reasoning_tokens": min(thinks, room)}
        finish = "length" if is_over else "stop" if has_results else "tool_calls"
        if body.get("stream"):
            await exchange.head(200, "text/event-stream")
            for event in (chunk(text or None, delta=delta), chunk(finish=finish, usage=usage), DONE):
                await exchange.send(f"{event}\n\n".encode())
            await exchange.end()
            return
        for one in delta.get("tool_calls", ()):
            one.pop("index")
        message = {"role": "assistant", "content": text, **delta}
        choice = {"index": 0, "message": message, "finish_reason": finish}
        await exchange.body(json.dumps({"id": "c", "choices": [choice], "usage": usage}).encode())

    return behave


async def ask(policy: Policy, limits: Limits | None = None, **options: Any) -> Trajectory:
    search = Search(BM25Retriever.from_passages(PASSAGES), k=1)
    try:
        return await rollout(QUESTION, policy, search, limits, **options)
    finally:
        await search.aclose()


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("how", ["hidden", "silent", "apart"])
async def test_who_thinks_longer_than_a_turn_is_asked_once_more_with_room(how: How, streams: bool) -> None:
    async with FaultServer(thinker(how=how)) as server:
        policy = policy_for(server)
        trajectory = await ask(policy, streaming_dispatch=streams)
        again = await ask(policy, streaming_dispatch=streams)
        await policy.aclose()
    assert (trajectory.answer, trajectory.stop, trajectory.is_split) == ("Pissarro", "answer", True)
    assert [body["max_tokens"] for body in server.bodies] == [500, 4596, 4596, 4596, 4596]
    # The call that brought nothing is billed with the one that took its place.
    assert trajectory.turns[0].usage == {"prompt_tokens": 200, "completion_tokens": 2020, "total_tokens": 2220}
    assert again.answer == "Pissarro"
    assert again.num_llm_calls == trajectory.num_llm_calls == 2


async def test_a_thought_in_tags_that_was_shown_gives_the_next_turn_room(caplog: pytest.LogCaptureFixture) -> None:
    async with FaultServer(thinker(how="tags")) as server:
        policy = policy_for(server)
        shown: list[str] = []
        trajectory = await ask(policy, on_event=lambda event: shown.append(event.text))
        await policy.aclose()
    assert trajectory.answer == "Pissarro"
    assert [body["max_tokens"] for body in server.bodies] == [500, 4596, 4596]
    assert [turn.action for turn in trajectory.turns] == [None, "search", "answer"]
    assert "raise thinking_tokens" not in caplog.text  # it has them now


@pytest.mark.parametrize("streams", [True, False])
async def test_a_thought_that_the_template_opened_is_no_answer_where_it_is_cut_off(streams: bool) -> None:
    """Nothing in the first turn tells that it is a thought."""
    async with FaultServer(thinker(how="opened")) as server:
        policy = policy_for(server, stream=streams)
        trajectory = await ask(policy, on_event=lambda event: None)
        again = await ask(policy)
        await policy.aclose()
    assert (trajectory.answer, trajectory.is_split, again.answer) == ("Pissarro", True, "Pissarro")
    assert [body["max_tokens"] for body in server.bodies] == [500, 4596, 4596, 4596, 4596]
    assert [turn.action for turn in again.turns] == ["search", "answer"]
    assert all("so so" not in segment.text for segment in again.segments)  # it is known now, and kept apart
    assert "so so" in (again.segments[1].reasoning or "")


MUSES = (
    'I could call search with {"queries": ["of a thought"]} or write <search> of a thought </search>.\nIf '
    "<answer> Monet </answer> were right, the answer is: Monet.\n"
)
"""A thought with everything in it that would be an action outside."""
LEAKED = '<tool_call>{"name": "search", "arguments": {"queries": ["Monet born", "Pissarro born"]}}</tool_call>'


def musing(search: str, answer: str, thought: str = MUSES, piece: int = 3) -> Behaviour:
    """A model that muses, and then searches or, once it has results, answers."""

    async def behave(exchange: Exchange) -> None:
        has_results = any("1840" in str(message["content"]) for message in exchange.request.body["messages"])
        await engine(f"{thought}</think>\n\n{answer if has_results else search}", piece=piece)(exchange)

    return behave


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("model", ["tiny", "DeepSeek-R1-Distill-Qwen-7B"])
async def test_with_tools_nothing_in_a_thought_is_an_action(model: str, streams: bool) -> None:
    started: list[str] = []
    async with FaultServer(musing(LEAKED, "Pissarro")) as server:
        policy = OpenAIPolicy(server.url, model, stream=streams, max_wait_s=0.05)
        trajectory = await ask(
            policy, on_event=lambda event: started.append(event.text) if event.kind == "query" else None
        )
        await policy.aclose()
    assert started == ["Monet born", "Pissarro born"]
    assert (trajectory.answer, trajectory.num_llm_calls) == ("Pissarro", 2)
    assert "of a thought" in (trajectory.turns[1].thought or "")
    assert server.bodies[-1]["max_tokens"] == 4596


@pytest.mark.parametrize("piece", [1, 3, 1000])
async def test_with_tags_nothing_in_a_thought_is_an_action(piece: int) -> None:
    """The server has no stop strings then: one of them in the thought would end the turn there."""
    started: list[str] = []
    search, answer = "<search> Monet born ## Pissarro born </search> and so on", "<answer> Pissarro </answer> and so on"
    async with FaultServer(musing(search, answer, piece=piece)) as server:
        policy = OpenAIPolicy(server.url, "deepseek-r1-distill-llama-8b", dialect="parallel", max_wait_s=0.05)
        trajectory = await ask(
            policy, on_event=lambda event: started.append(event.text) if event.kind == "query" else None
        )
        await policy.aclose()
    assert started == ["Monet born", "Pissarro born"]
    assert (trajectory.answer, trajectory.num_llm_calls) == ("Pissarro", 2)
    assert [turn.action for turn in trajectory.turns] == ["search", "answer"]
    assert all("stop" not in body and body["max_tokens"] == 4596 for body in server.bodies)
    said = [message["content"] for message in server.bodies[1]["messages"] if message["role"] == "assistant"]
    assert said == ["<search> Monet born ## Pissarro born </search>"]  # the next turn does not read the thought


async def test_with_tags_a_model_of_any_name_is_known_by_its_first_thought() -> None:
    """Its first turn is read as it stands; in the second one nothing that the thought says is searched any more."""
    first = "Two people.</think><search> Monet born </search>"
    second = f"{MUSES}</think><answer> Pissarro </answer>"
    started: list[str] = []
    async with FaultServer(engine(first), engine(second)) as server:
        policy = policy_for(server, dialect="parallel")
        trajectory = await ask(
            policy, on_event=lambda event: started.append(event.text) if event.kind == "query" else None
        )
        await policy.aclose()
    assert (started, trajectory.answer, trajectory.num_llm_calls) == (["Monet born"], "Pissarro", 2)


@pytest.mark.parametrize("dialect", ["tools", "parallel"])
async def test_long_thoughts_that_the_template_opened_fill_no_conversation(dialect: str) -> None:
    """Of the 6,000 tokens of a conversation two thoughts of 4,000 would leave nothing."""
    search = LEAKED if dialect == "tools" else "<search> Monet born ## Pissarro born </search>"
    answer = "Pissarro" if dialect == "tools" else "<answer> Pissarro </answer>"
    async with FaultServer(musing(search, answer, "so it is " * 1800, 4000)) as server:
        policy = OpenAIPolicy(server.url, "qwq-32b", dialect=dialect, max_wait_s=0.05)
        trajectory = await ask(policy)
        await policy.aclose()
    assert (trajectory.answer, trajectory.num_llm_calls) == ("Pissarro", 2), trajectory.why_no_answer
    assert len(json.dumps(server.bodies[1]["messages"])) < 8000


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("way", ["plain", "both", "apart"])
@pytest.mark.parametrize("dialect", ["tools", "parallel"])
async def test_a_name_that_says_too_much_costs_one_turn_at_most(dialect: str, way: str, streams: bool) -> None:
    """A model that its name is no true guide to: it does not think, opens its thought itself, or has a server that takes the
    thought out."""
    search = LEAKED if dialect == "tools" else "<search> Monet born ## Pissarro born </search>"
    answer = "Pissarro" if dialect == "tools" else "<answer> Pissarro </answer>"

    async def behave(exchange: Exchange) -> None:
        has_results = any("1840" in str(message["content"]) for message in exchange.request.body["messages"])
        text = answer if has_results else search
        if way == "apart":
            message = {"role": "assistant", "content": text, "reasoning_content": "so <search> x </search>"}
            if not exchange.request.body["stream"]:
                choice = {"index": 0, "message": message, "finish_reason": "stop"}
                await exchange.body(json.dumps({"id": "c", "choices": [choice]}).encode())
                return
            await exchange.head(200, "text/event-stream")
            events = (chunk(delta={"reasoning_content": "so <search> x </search>"}), chunk(text), chunk(finish="stop"))
            for event in (*events, DONE):
                await exchange.send(f"{event}\n\n".encode())
            await exchange.end()
            return
        await engine(f"<think> {MUSES} </think>\n{text}" if way == "both" else text)(exchange)

    async with FaultServer(behave) as server:
        policy = OpenAIPolicy(server.url, "x-thinking", dialect=dialect, stream=streams, max_wait_s=0.05)
        trajectory = await ask(policy, on_event=lambda event: None)
        again = await ask(policy)
        await policy.aclose()
    is_lost = (dialect, way, streams) == ("parallel", "plain", True)  # it had been passed on as a thought
    assert (trajectory.answer, trajectory.num_llm_calls) == ("Pissarro", 3 if is_lost else 2)
    assert (again.answer, again.num_llm_calls) == ("Pissarro", 2)
    assert (dialect, way) != ("tools", "both") or "of a thought" in (again.segments[-1].reasoning or "")
    assert [query.text for turn in again.rounds for query in turn.queries] == ["Monet born", "Pissarro born"]


async def test_a_long_answer_of_who_does_not_think_is_asked_for_once_more_and_then_as_ever() -> None:
    """Cut off, it could have been a thought. It was none: there is no more room, and what is cut off is the answer."""

    async def behave(exchange: Exchange) -> None:
        room = exchange.request.body["max_tokens"]
        text = "It was so. " * 200
        is_over = room < 600
        await engine(text[: 4 * room], finish="length" if is_over else "stop", piece=400)(exchange)

    async with FaultServer(behave) as server:
        policy = policy_for(server)
        first = await ask(policy, on_event=lambda event: None)
        second = await ask(policy, on_event=lambda event: None)
        await policy.aclose()
    assert [body["max_tokens"] for body in server.bodies] == [500, 4596, 500]
    assert len(first.answer or "") == len("It was so. " * 200) - 1
    assert (second.answer or "").startswith("It was so.")


@pytest.mark.parametrize("begun", ['{"name": "search", "arguments": {"queries": ["Monet born", "Piss', "<tool_call>{"])
async def test_a_call_in_the_text_that_is_cut_off_is_no_thought(begun: str) -> None:
    async with FaultServer(engine(begun, finish="length")) as server:
        policy = policy_for(server)
        trajectory = await ask(policy, Limits(max_turns=1), on_event=lambda event: None)
        await policy.aclose()
    assert {body["max_tokens"] for body in server.bodies} == {500}
    assert "</think>" not in trajectory.segments[1].text


async def test_questions_side_by_side_are_each_asked_again() -> None:
    async with FaultServer(thinker()) as server:
        policy = policy_for(server)
        done = await asyncio.gather(*(ask(policy) for _ in range(4)))
        await policy.aclose()
    assert [(one.answer, one.num_llm_calls) for one in done] == [("Pissarro", 2)] * 4


@pytest.mark.parametrize("how", ["hidden", "apart", "tags", "opened"])
async def test_thoughts_take_no_room_from_the_conversation(how: How) -> None:
    """Two turns of 4,000 tokens of thought: more than the 6,000 of a conversation."""
    async with FaultServer(thinker(4000, how)) as server:
        policy = policy_for(server)
        trajectory = await ask(policy)
        await policy.aclose()
    assert (trajectory.answer, trajectory.stop) == ("Pissarro", "answer")
    assert sum((turn.usage or {})["completion_tokens"] for turn in trajectory.turns) > 8000


async def test_thoughts_count_towards_what_may_be_billed() -> None:
    limits = Limits(max_cost=0.02, prices=Prices(1.0, 10.0))
    async with FaultServer(thinker(4000)) as server:
        policy = policy_for(server)
        trajectory = await ask(policy, limits)
        roomy = await ask(policy, replace(limits, max_cost=1.0))
        await policy.aclose()
    assert trajectory.answer is None
    assert limits.prices is not None
    assert trajectory.cost(limits.prices) <= 0.02  # it is not asked once more where that could pass the limit
    assert "max_cost=0.02 left no room" in (trajectory.why_no_answer or "")
    assert roomy.answer == "Pissarro"


async def test_the_call_that_brought_nothing_is_no_part_of_what_the_next_ones_are_expected_to_read() -> None:
    """Each call reads 4,000 tokens. The three of them are well below the limit."""

    async def behave(exchange: Exchange) -> None:
        inner = Rewritten(exchange)
        await thinker()(inner)  # type: ignore[arg-type]

    class Rewritten:
        def __init__(self, exchange: Exchange) -> None:
            self.request, self._exchange = exchange.request, exchange

        async def body(self, data: bytes) -> None:
            await self._exchange.body(data.replace(b'"prompt_tokens": 100', b'"prompt_tokens": 4000'))

    async with FaultServer(behave) as server:
        policy = policy_for(server, stream=False)
        trajectory = await ask(policy, Limits(max_billed_tokens=20_000))
        await policy.aclose()
    assert trajectory.answer == "Pissarro", trajectory.why_no_answer
    assert trajectory.billed_tokens == (12_000, 3_540)


def thinks_then(then: Behaviour) -> Behaviour:
    calls: list[Exchange] = []

    async def behave(exchange: Exchange) -> None:
        calls.append(exchange)
        await (thinker() if len(calls) == 1 else then)(exchange)

    return behave


async def hangs(exchange: Exchange) -> None:
    await asyncio.sleep(3)


@pytest.mark.parametrize("then", [status(403, {"error": {"message": "no"}}), hangs])
async def test_the_call_that_brought_nothing_is_billed_also_where_the_second_fails(then: Behaviour) -> None:
    async with FaultServer(thinks_then(then)) as server:
        policy = policy_for(server)
        trajectory = await ask(policy, Limits(timeout_s=1))
        await policy.aclose()
    assert trajectory.answer is None
    assert trajectory.billed_tokens[0] >= 100
    assert trajectory.billed_tokens[1] == 500


async def test_both_calls_are_billed_where_the_server_counts_nothing() -> None:
    async def behave(exchange: Exchange) -> None:
        is_over = exchange.request.body["max_tokens"] < 1520
        thought = "so so so so " * (100 if is_over else 300)
        message = {"role": "assistant", "content": "" if is_over else "Pissarro", "reasoning_content": thought}
        choice = {"index": 0, "message": message, "finish_reason": "length" if is_over else "stop"}
        await exchange.body(json.dumps({"id": "c", "choices": [choice]}).encode())

    async with FaultServer(behave) as server:
        policy = policy_for(server, stream=False)
        trajectory = await ask(policy)
        alone = await policy.generate(
            [policy.prompt(QUESTION, QUESTION)], stop=(), max_tokens=500, sampling=Sampling(), session="s"
        )
        policy = policy_for(server, stream=False)
        twice = await policy.generate(
            [policy.prompt(QUESTION, QUESTION)], stop=(), max_tokens=500, sampling=Sampling(), session="s"
        )
        await policy.aclose()
    assert trajectory.answer == "Pissarro"
    assert trajectory.billed_tokens[1] >= 1200
    assert alone.usage is None
    assert (twice.usage or {})["completion_tokens"] >= 1200


async def test_a_policy_around_another_is_told_of_both_calls() -> None:
    class Around(Policy):
        takes_tools, dialect = True, "tools"

        def __init__(self) -> None:
            self.spent: list[dict[str, int] | None] = []

        def prompt(self, text: str, question: str, tools: Sequence[Tool] = ()) -> Segment:
            return inner.prompt(text, question)

        async def generate(self, segments: Sequence[Segment], **options: Any) -> Generation:
            made = await inner.generate(segments, **options)
            self.spent.append(made.usage)
            return made

    async with FaultServer(thinker(how="hidden")) as server:
        inner = policy_for(server)
        around = Around()
        trajectory = await ask(around)
        await inner.aclose()
    assert trajectory.answer == "Pissarro", trajectory.error
    assert [(usage or {})["completion_tokens"] for usage in around.spent] == [2020, 1520]


async def test_a_reader_is_billed_for_both_of_its_calls() -> None:
    async def reads(exchange: Exchange) -> None:
        is_over = exchange.request.body["max_tokens"] < 1520
        message = {"role": "assistant", "content": "" if is_over else "<answer> Pissarro </answer>"}
        written = 500 if is_over else 1520
        usage = {"prompt_tokens": 100, "completion_tokens": written, "total_tokens": 100 + written}
        choice = {"index": 0, "message": message, "finish_reason": "length" if is_over else "stop"}
        await exchange.body(json.dumps({"id": "c", "choices": [choice], "usage": usage}).encode())

    async with FaultServer(engine(SEARCH, "<answer> Monet </answer>")) as one, FaultServer(reads) as other:
        policy, reader = policy_for(one, dialect="parallel"), policy_for(other)
        trajectory = await ask(policy, answer_with=reader)
        await policy.aclose()
        await reader.aclose()
    assert [body["max_tokens"] for body in other.bodies] == [500, 4596]
    assert trajectory.reading is not None
    assert (trajectory.reading.num_read, trajectory.reading.num_tokens) == (200, 2020)


async def test_who_writes_nothing_and_never_thought_is_given_room_once() -> None:
    """A server whose parser of calls swallows what a model writes on and on: more room only costs more."""

    async def behave(exchange: Exchange) -> None:
        room = exchange.request.body["max_tokens"]
        usage = {"prompt_tokens": 100, "completion_tokens": room, "total_tokens": 100 + room}
        choice = {"index": 0, "message": {"role": "assistant", "content": ""}, "finish_reason": "length"}
        await exchange.body(json.dumps({"id": "c", "choices": [choice], "usage": usage}).encode())

    async with FaultServer(behave) as server:
        policy = policy_for(server, stream=False)
        await ask(policy)
        await ask(policy)
        room = policy.thinking_room
        await policy.aclose()
    assert [body["max_tokens"] for body in server.bodies if body["max_tokens"] > 500] == [4596]
    assert room == 0


@pytest.mark.parametrize("how", [{"api": "completions"}, {"token_ids": True}])
async def test_where_all_that_is_written_comes_nothing_is_taken_for_a_hidden_thought(how: dict[str, Any]) -> None:
    """A policy in training that writes tokens without a text is sampled once, as it is."""
    async with FaultServer(engine("", finish="length")) as server:
        policy = policy_for(server, **how)
        trajectory = await ask(policy, Limits(max_turns=1))
        await policy.aclose()
    assert [body["max_tokens"] for body in server.bodies] == [500] * trajectory.num_llm_calls


@pytest.mark.parametrize("own", [{"max_tokens": 800}, {"max_tokens": None, "max_completion_tokens": 800}])
async def test_a_limit_of_the_callers_own_is_the_limit_and_nothing_is_asked_twice(own: dict[str, Any]) -> None:
    async with FaultServer(thinker()) as server:
        policy = policy_for(server, extra_body=own)
        trajectory = await ask(policy, Limits(max_turns=1))
        await policy.aclose()
    assert len(server.bodies) == trajectory.num_llm_calls == 3


async def test_what_was_started_early_is_not_started_again_by_a_turn_that_is_asked_anew() -> None:
    """The stream breaks in the middle of a call, the second try is all thought, and with room another call comes."""
    begun = {"index": 0, "id": "a", "function": {"name": "search", "arguments": '{"queries": ["Mo'}}
    tries: list[Exchange] = []

    async def behave(exchange: Exchange) -> None:
        tries.append(exchange)
        if len(tries) > 1:
            await thinker()(exchange)
            return
        await exchange.head(200, "text/event-stream")
        await exchange.send(f"{chunk(delta={'tool_calls': [begun]})}\n\n".encode())
        await exchange.end()

    started: list[str] = []
    async with FaultServer(behave) as server:
        policy = policy_for(server)
        trajectory = await ask(
            policy, on_event=lambda event: started.append(event.text) if event.kind == "query" else None
        )
        await policy.aclose()
    assert trajectory.answer == "Pissarro"
    assert started == ["Monet born", "Pissarro born"]


async def test_questions_side_by_side_find_the_room_of_a_short_context_together() -> None:
    async with FaultServer(thinker(1200, context=2048)) as server:
        policy = policy_for(server)
        done = await asyncio.gather(*(ask(policy) for _ in range(8)))
        await policy.aclose()
    assert [one.error for one in done] == [None] * 8
    assert {body["max_tokens"] for body in server.bodies} == {500, 4596, 2548, 1524}


async def test_a_long_conversation_takes_no_room_from_the_short_ones_after_it() -> None:
    long = "word " * 3000

    async def behave(exchange: Exchange) -> None:
        is_long = long in json.dumps(exchange.request.body)
        await thinker(600, context=1000 if is_long else None)(exchange)

    async with FaultServer(behave) as server:
        policy = policy_for(server)
        limits = Limits(max_tokens=8000)
        await ask(policy, limits)
        await ask(policy, limits, context=long)
        num_before = len(server.bodies)
        after = await ask(policy, limits)
        await policy.aclose()
    assert after.answer == "Pissarro"
    assert [body["max_tokens"] for body in server.bodies[num_before:]] == [4596, 4596]


GROQ = (
    "Request too large for model `m` on tokens per minute (TPM): Limit 3000, Requested 5000, please reduce your message"
)
OPENROUTER = (
    "This request requires more credits, or fewer max_tokens. You requested up to 4596 tokens, but can only afford 700"
)


@pytest.mark.parametrize(("code", "said"), [(413, GROQ), (402, OPENROUTER)])
async def test_room_that_cannot_be_had_or_paid_is_not_asked_for(code: int, said: str) -> None:
    async def behave(exchange: Exchange) -> None:
        is_large = exchange.request.body["max_tokens"] > 700
        await (status(code, {"error": {"message": said}}) if is_large else thinker(100))(exchange)

    async with FaultServer(behave) as server:
        policy = policy_for(server)
        done = [await ask(policy), await ask(policy)]
        await policy.aclose()
    assert [one.answer for one in done] == ["Pissarro"] * 2, done[0].error


async def test_a_refusal_that_asks_for_more_tokens_is_a_turn_that_was_all_thought() -> None:
    too_few = (
        "Could not finish the message because max_tokens or model output limit was reached. Please try again with "
    )
    message = {"error": {"message": f"{too_few}higher max_tokens."}}

    async def behave(exchange: Exchange) -> None:
        has_room = exchange.request.body["max_tokens"] > 1520
        await (thinker() if has_room else status(400, message))(exchange)

    async with FaultServer(behave) as server:
        policy = policy_for(server)
        trajectory = await ask(policy)
        await policy.aclose()
    assert trajectory.answer == "Pissarro", trajectory.error
    assert [body["max_tokens"] for body in server.bodies] == [500, 4596, 4596]


async def test_a_short_context_has_less_room_for_thoughts(caplog: pytest.LogCaptureFixture) -> None:
    async with FaultServer(thinker(1200, context=2048)) as server:
        policy = policy_for(server)
        trajectory = await ask(policy)
        manifest = policy.describe()
        await policy.aclose()
    assert trajectory.answer == "Pissarro"
    assert [body["max_tokens"] for body in server.bodies] == [500, 4596, 2548, 1524, 1524]
    assert "has no room for so much thinking: 1024 tokens a turn from now on" in caplog.text
    assert "thinking_tokens" not in manifest  # nobody set it


async def test_who_thinks_on_and_on_is_told_what_to_raise(caplog: pytest.LogCaptureFixture) -> None:
    async with FaultServer(thinker(100_000)) as server:
        policy = policy_for(server, thinking_tokens=700)
        trajectory = await ask(policy, Limits(max_turns=1))
        await policy.aclose()
    assert trajectory.answer is None
    assert {body["max_tokens"] for body in server.bodies[1:]} == {1200}
    assert "raise thinking_tokens (700), or set reasoning_effort=low" in caplog.text


async def test_who_does_not_think_has_no_more_room_and_is_asked_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with FaultServer(engine("<think> " + "so " * 400, finish="length")) as server:  # a policy of tags, cut off
        policy = policy_for(server, dialect="parallel")
        await ask(policy, Limits(max_turns=1))
        await policy.aclose()
    assert {body["max_tokens"] for body in server.bodies} == {500}
    async with FaultServer(engine(SEARCH)) as server:
        policy = policy_for(server, thinking_tokens=0)
        await ask(policy, Limits(max_turns=1))
        await policy.aclose()
    assert {body["max_tokens"] for body in server.bodies} == {500}
    assert not caplog.records


SIGNATURE = {"google": {"thought_signature": "AY89a18I/=="}}
CALLS = [
    {
        "id": name,
        "type": "function",
        "function": {"name": "search", "arguments": json.dumps({"queries": [f"{name} born"]})},
        **extra,
    }
    for name, extra in (("Monet", {"extra_content": SIGNATURE}), ("Pissarro", {}))
]
"""Of calls side by side, Gemini signs the first."""
DETAILS = [
    {"type": "reasoning.text", "text": "Two people.", "signature": "s1", "index": 0, "format": "f"},
    {"type": "reasoning.encrypted", "data": "xyz", "index": 1, "format": "f"},
]


def signing(wants: str, delta: dict[str, Any], pieces: list[dict[str, Any]]) -> Behaviour:
    """A server that refuses a chat without what it had put into `wants`, whole (`delta`) or streamed (`pieces`)."""

    async def behave(exchange: Exchange) -> None:
        body = exchange.request.body
        said = [message for message in body["messages"] if message["role"] == "assistant"]
        if said and wants not in json.dumps(said):
            error = {
                "error": {"code": 400, "message": "Function call is missing a thought_signature in functionCall parts"}
            }
            await exchange.body(json.dumps([error]).encode(), 400)
            return
        answer = {"content": "Pissarro"}
        if body.get("stream"):
            await exchange.head(200, "text/event-stream")
            for piece in [answer] if said else pieces:
                record = {"id": "c", "choices": [{"index": 0, "delta": piece, "finish_reason": None}]}
                await exchange.send(f"data: {json.dumps(record)}\n\n".encode())
            await exchange.send(f"{chunk(finish='stop' if said else 'tool_calls')}\n\n{DONE}\n\n".encode())
            await exchange.end()
            return
        message = {"role": "assistant", **(answer if said else delta)}
        choice = {"index": 0, "message": message, "finish_reason": "stop" if said else "tool_calls"}
        await exchange.body(json.dumps({"id": "c", "choices": [choice]}).encode())

    return behave


@pytest.mark.parametrize("streams", [True, False])
async def test_the_signature_of_a_call_goes_back_with_it(streams: bool) -> None:
    first, second = ({"index": number, **call} for number, call in enumerate(CALLS))
    late = {"index": 0, "function": {"arguments": ""}, "extra_content": SIGNATURE}
    for pieces in (
        [{"tool_calls": [first]}, {"tool_calls": [second]}],
        [{"tool_calls": [{**first, "extra_content": None}]}, {"tool_calls": [late]}, {"tool_calls": [second]}],
    ):
        async with FaultServer(signing("thought_signature", {"tool_calls": CALLS}, pieces)) as server:
            policy = policy_for(server)
            trajectory = await ask(policy, streaming_dispatch=streams)
            await policy.aclose()
        assert trajectory.answer == "Pissarro", trajectory.error
        sent = server.bodies[1]["messages"][1]["tool_calls"]
        assert [call.get("extra_content") for call in sent] == [SIGNATURE, None]
        again = trajectory_from_dict(json.loads(trajectory.to_json()))
        assert again.segments[1].calls == trajectory.segments[1].calls


@pytest.mark.parametrize("streams", [True, False])
async def test_the_details_of_a_thought_go_back_as_they_came(streams: bool) -> None:
    text, hidden = DETAILS
    pieces: list[dict[str, Any]] = [
        {"reasoning_details": [{**text, "text": "Two ", "signature": None}]},
        {"reasoning_details": [{**text, "text": "people.", "signature": "s1"}]},
        {"reasoning_details": [hidden]},
        *({"tool_calls": [{"index": number, **call}]} for number, call in enumerate(CALLS)),
    ]
    async with FaultServer(signing("xyz", {"tool_calls": CALLS, "reasoning_details": DETAILS}, pieces)) as server:
        policy = policy_for(server)
        trajectory = await ask(policy, streaming_dispatch=streams)
        await policy.aclose()
    assert trajectory.answer == "Pissarro", trajectory.error
    assert server.bodies[1]["messages"][1]["reasoning_details"] == DETAILS
    assert trajectory.turns[0].thought == "Two people."


async def test_a_signature_that_comes_last_without_a_word_belongs_to_its_thought() -> None:
    """As OpenRouter streams Claude, which refuses a thought whose signature is not its own."""
    kind = {"type": "reasoning.text", "index": 0, "format": "anthropic-claude-v1"}
    pieces: list[dict[str, Any]] = [
        {"reasoning_details": [{**kind, "text": "Two "}]},
        {"reasoning_details": [{**kind, "text": "people."}]},
        {"reasoning_details": [{**kind, "signature": "s1"}]},
        {"reasoning_details": [{**kind, "text": "More.", "index": 1}]},
        *({"tool_calls": [{"index": number, **call}]} for number, call in enumerate(CALLS)),
    ]
    async with FaultServer(signing("s1", {}, pieces)) as server:
        policy = policy_for(server)
        await ask(policy)
        await policy.aclose()
    sent = server.bodies[1]["messages"][1]["reasoning_details"]
    assert sent == [{**kind, "text": "Two people.", "signature": "s1"}, {**kind, "text": "More.", "index": 1}]


async def test_details_that_a_server_will_not_have_back_are_left_out() -> None:
    inner = signing("Monet", {"tool_calls": CALLS, "reasoning_details": DETAILS}, [])

    async def behave(exchange: Exchange) -> None:
        if any("reasoning_details" in message for message in exchange.request.body["messages"]):
            message = "messages.1: property 'reasoning_details' is unsupported"
            await exchange.body(json.dumps({"error": {"message": message}}).encode(), 400)
        else:
            await inner(exchange)

    async with FaultServer(behave) as server:
        policy = policy_for(server, stream=False)
        trajectory = await ask(policy)
        again = await ask(policy)
        await policy.aclose()
    assert [trajectory.answer, again.answer] == ["Pissarro", "Pissarro"]
    assert len(server.bodies) == 5


def test_the_room_is_an_option_of_the_address_and_told_where_it_was_set() -> None:
    policy = OpenAIPolicy.from_address("http://localhost:1/v1?thinking_tokens=9000&reasoning_effort=high#m")
    assert policy.thinking_tokens == 9000
    assert policy.describe()["thinking_tokens"] == 9000
    assert policy.describe()["reasoning_effort"] == "high"
    with pytest.raises(UsageError, match="not -1"):
        OpenAIPolicy.from_address("http://localhost:1/v1?thinking_tokens=-1#m")

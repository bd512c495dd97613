"""One meter: what the policy was asked and wrote, what the record says of it, and what a limit goes by."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from parallelsearch.errors import PolicyError
from parallelsearch.grammar import render_turn
from parallelsearch.limits import Limits, Prices
from parallelsearch.policy.base import Generation, Policy
from parallelsearch.policy.openai_wire import Turn
from parallelsearch.policy.scripted import ScriptedPolicy
from parallelsearch.rollout import rollout
from parallelsearch.search import Search
from parallelsearch.trajectory import trajectory_from_dict
from virtual_time import in_virtual_time

Q = "Who is older, Claude Monet or Camille Pissarro?"
SPLIT = render_turn("Two.", queries=["monet born", "pissarro born"])
LOOKED_UP = "I must look. <|begin_search_query|> monet born <|end_search_query|>"
ANSWER = render_turn("It was he.", answer="Camille Pissarro")


class Billed(Policy):
    """Says what it is told to, and keeps a bill. A turn that is an error is raised."""

    name = "billed"

    def __init__(self, *turns: str | Exception, counts: bool = True) -> None:
        self.turns, self.counts, self.bill = list(turns), counts, (0, 0)

    async def generate(self, segments: Any, **options: Any) -> Generation:
        text = self.turns.pop(0)
        if isinstance(text, Exception):
            raise text
        read, written = sum(self.count_tokens(segment.text) for segment in segments), self.count_tokens(text)
        if self.counts:  # as servers do: a chat template before it, thoughts that are not shown
            read, written = read + 3, written + 5
        self.bill = (self.bill[0] + read, self.bill[1] + written)
        return Generation(text, "stop", usage=self.usage(read, written) if self.counts else None)

    def usage(self, read: int, written: int) -> Mapping[str, Any] | None:
        return {"prompt_tokens": read, "completion_tokens": written}


@pytest.mark.parametrize(
    ("dialect", "turns"),
    [
        ("parallel", (SPLIT, ANSWER)),
        ("parallel", ("", SPLIT, ANSWER)),
        ("parallel", ("", SPLIT, PolicyError("down"))),
        ("rag", ("", "It is <answer> Monet </answer>")),
        ("rag", ("", PolicyError("down"))),
        ("ircot", ("One is older.\n", "", "So the answer is: Monet.\n")),
    ],
)
async def test_the_record_says_what_was_billed_with_empty_turns_and_failed_calls(echo, dialect, turns):
    policy = Billed(*turns)
    trajectory = await rollout(Q, policy, Search(echo()), dialect=dialect)
    assert trajectory.billed_tokens == policy.bill
    read = trajectory_from_dict(json.loads(trajectory.to_json()))
    assert read.billed_tokens == policy.bill
    written = [turn.text for turn in read.turns if turn.usage is not None]
    assert written == [text for text in turns if isinstance(text, str)]


@pytest.mark.parametrize("odd", ["12", None, -12, 1.5, 10**30, float("nan"), {"cached_tokens": 4}, True])
async def test_what_is_no_count_in_the_usage_of_a_policy_is_left_out(echo, odd):
    class Odd(Billed):
        def usage(self, read, written):
            return {"prompt_tokens": odd, "completion_tokens": written, "prompt_tokens_details": {"cached_tokens": odd}}

    policy = Odd(ANSWER)
    trajectory = await rollout(Q, policy, Search(echo()))
    assert (trajectory.error, trajectory.answer) == (None, "Camille Pissarro")
    assert trajectory.turns[0].usage == {"completion_tokens": policy.bill[1]}
    assert trajectory.billed_tokens == (policy.bill[0] - 3, policy.bill[1])  # what was read is counted here
    assert trajectory_from_dict(json.loads(trajectory.to_json())).turns[0].usage == trajectory.turns[0].usage


@pytest.mark.parametrize("counts", [True, False])
@pytest.mark.parametrize(
    "turns",
    [
        (LOOKED_UP, "He was born in 1840.", "It is <answer> Monet </answer>"),
        (LOOKED_UP, "He was born in 1840.", LOOKED_UP.replace("born", "died"), "He died.", "<answer> Monet </answer>"),
        (LOOKED_UP, "He was born in 1840.", PolicyError("down")),
        (LOOKED_UP, "He was born in 1840. " * 40),  # no room for another turn
    ],
)
async def test_what_condensing_reads_and_writes_is_billed_whatever_comes_after_it(echo, turns, counts):
    policy = Billed(*turns, counts=counts)
    trajectory = await rollout(Q, policy, Search(echo()), Limits(max_tokens=350), dialect="search-o1")
    assert not policy.turns
    assert trajectory.num_llm_calls == len(turns)
    assert trajectory.billed_tokens == policy.bill
    assert trajectory_from_dict(json.loads(trajectory.to_json())).billed_tokens == policy.bill


@in_virtual_time
async def test_a_call_that_the_deadline_cuts_off_is_billed_for_what_it_read_and_wrote(echo):
    policy = ScriptedPolicy({Q: [SPLIT, "<think> " + "hm " * 4000]}, tokens_per_s=50)
    trajectory = await rollout(Q, policy, Search(echo()), Limits(timeout_s=4, max_tokens_per_turn=2000))
    assert [turn.finish for turn in trajectory.turns] == ["stop", "timeout", "timeout"]
    searched, cut, told = (turn.usage for turn in trajectory.turns)
    assert searched is None
    assert told["prompt_tokens"] > cut["prompt_tokens"] > policy.count_tokens(trajectory.segments[0].text)
    assert cut["completion_tokens"] > 50
    assert trajectory.billed_tokens == (
        trajectory.segments[0].num_tokens + cut["prompt_tokens"] + told["prompt_tokens"],
        trajectory.turns[0].num_tokens + cut["completion_tokens"] + told["completion_tokens"],
    )


class Hanging(Billed):
    async def generate(self, segments: Any, **options: Any) -> Generation:
        self.bill = (sum(self.count_tokens(segment.text) for segment in segments), 0)
        await asyncio.sleep(1000)
        raise AssertionError


@in_virtual_time
async def test_a_reader_that_hangs_is_billed_for_what_it_read(echo):
    reader, policy = Hanging(), Billed(SPLIT, ANSWER)
    trajectory = await rollout(Q, policy, Search(echo()), Limits(timeout_s=4), answer_with=reader)
    assert "the time was over" in trajectory.reading.error
    assert trajectory.reading.num_read == reader.bill[0]
    assert trajectory.billed_tokens == (policy.bill[0] + reader.bill[0], policy.bill[1])


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("dialect", ["parallel", "rag", "ircot", "search-o1"])
async def test_searches_do_not_pass_what_a_question_may_cost(echo, dialect, streams):
    """With every sum from nothing on: never passed, and from the first answer on, always an answer."""
    turns = {
        "parallel": [SPLIT, render_turn("t", queries=["a", "b", "c"]), ANSWER],
        "rag": ["It is <answer> Monet </answer>"],
        "ircot": ["One is older.\n", "So the answer is: Monet.\n"],
        "search-o1": [LOOKED_UP, "He was born in 1840.", "It is <answer> Monet </answer>"],
    }[dialect]
    prices, stops, nums = Prices(1.0, 1.0, 0.5), [], []
    for most in (0.0001 * step for step in range(1, 150)):
        limits = Limits(max_cost=most, prices=prices, max_tokens_per_turn=60, max_observation_tokens=100)
        policy = ScriptedPolicy({Q: [*turns, *[turns[-1]] * 3]})
        search = Search(echo())
        trajectory = await rollout(Q, policy, search, limits, dialect=dialect, streaming_dispatch=streams)
        assert trajectory.cost(prices) <= most
        stops.append(trajectory.stop)
        nums.append(trajectory.num_subqueries)
    assert nums == sorted(nums)
    assert set(stops[stops.index("answer") :]) == {"answer"}


async def test_condensing_does_not_pass_what_may_be_billed(echo):
    long, nums = "He was born in 1840. " * 10, []
    for most in range(100, 1200, 10):
        policy = Billed(LOOKED_UP, long, "It is <answer> Monet </answer>", *["<answer> x </answer>"] * 3)
        limits = Limits(max_billed_tokens=most, max_tokens_per_turn=64, max_observation_tokens=100)
        trajectory = await rollout(Q, policy, Search(echo()), limits, dialect="search-o1")
        assert sum(trajectory.billed_tokens) <= most
        assert trajectory.billed_tokens == policy.bill
        nums.append(trajectory.num_llm_calls)
    assert nums == sorted(nums)
    assert (nums[0], nums[-1]) == (0, 3)


async def test_what_a_server_reads_beyond_the_text_is_expected_of_the_next_call(echo):
    """Tools, a template, another tokenizer: the first answer tells, and the limit holds from then on."""

    class Wordy(Billed):
        def usage(self, read, written):
            self.bill = (self.bill[0] + 400, self.bill[1])
            return super().usage(read + 400, written)

    nums = []
    for most in range(800, 4000, 50):
        policy = Wordy(SPLIT, render_turn("t", queries=["a"]), ANSWER, *[ANSWER] * 3)
        limits = Limits(
            max_billed_tokens=most, max_tokens_per_turn=64, max_observation_tokens=100, tokens_per_subquery=10
        )
        trajectory = await rollout(Q, policy, Search(echo()), limits)
        assert sum(policy.bill) == sum(trajectory.billed_tokens) <= most
        nums.append(trajectory.num_llm_calls)
    assert nums == sorted(nums)
    assert (nums[0], nums[-1]) == (1, 3)


@in_virtual_time
async def test_no_search_that_a_limit_must_pay_is_sent_for_a_turn_that_may_prove_invalid(echo):
    """One that was withdrawn stands in no record, and its engine was asked all the same."""
    broken = ["<think> t </think><search> first ## second" + " ## last" * 20, *[SPLIT, ANSWER] * 3]
    prices, retriever = Prices(0.0, 0.0, 1.0), echo(latency_s=0.01)
    policy = ScriptedPolicy({Q: broken}, tokens_per_s=100)
    trajectory = await rollout(Q, policy, Search(retriever), Limits(max_cost=0.002, prices=prices))
    assert (trajectory.stop, trajectory.cost(prices)) == ("answer", 0.002)
    assert sorted(query for call in retriever.calls for query in call) == ["monet born", "pissarro born"]
    free = echo(latency_s=0.01)
    policy = ScriptedPolicy({Q: broken}, tokens_per_s=100)
    await rollout(Q, policy, Search(free), Limits(max_cost=0.002, prices=Prices(0.001)))
    assert free.calls[0] == ["first"]  # where searches cost nothing, they begin early


async def test_calls_and_thoughts_that_a_server_does_not_count_are_counted_here():
    turn = Turn((), None, with_calls=True)
    function = {"name": "search", "arguments": json.dumps({"queries": ["monet born", "pissarro born"]})}
    calls = [{"id": "a", "type": "function", "function": function}]
    message = {"role": "assistant", "content": None, "reasoning_content": "Two things. " * 10, "tool_calls": calls}
    turn.feed({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]})
    made = turn.generation(lambda text: len(text))
    said = len("search") + len(function["arguments"])
    assert made.num_tokens == said + len(made.reasoning) > said
    assert made.segment().num_tokens == (said + 3) // 4

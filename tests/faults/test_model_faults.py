"""A model server against every fault, streamed and whole, chat and completions: the rollout ends in time with an error that
can be read, one bad question costs no other, and the record can be read back."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from payloads import BODIES, DEEP, HALF, SPACES, WAYS, dumped
from search_fault_server import FaultServer, Reply, good

from echoing import EchoRetriever
from memory import bounded_memory
from parallelsearch import grammar
from parallelsearch.agent import Agent
from parallelsearch.errors import UsageError
from parallelsearch.limits import Limits
from parallelsearch.policy.base import Generation, Sampling
from parallelsearch.policy.openai import OpenAIPolicy
from parallelsearch.policy.scripted import ScriptedPolicy
from parallelsearch.retrieval.remote import RemoteRetriever
from parallelsearch.rollout import Event, rollout
from parallelsearch.rollouts import rollout_many
from parallelsearch.search import Search
from parallelsearch.trajectory import Question, Trajectory, read_trajectories, write_trajectories

DEADLINE_S = 120.0
SOON_S = 6.0  # for answers that never come, which are waited for
STALL_S = 20.0  # a busy machine may stand still for so long
ANSWER = grammar.render_turn("Done.", answer="Monet")
SSE = {"Content-Type": "text/event-stream"}


def events(*payloads: Any) -> Reply:
    lines = b"".join(b"data: " + (one if isinstance(one, bytes) else dumped(one)) + b"\n\n" for one in payloads)
    return Reply(lines + b"data: [DONE]\n\n", headers=SSE)


def delta(content: Any, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": content}, **more}]}


def message(content: Any, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": {"content": content}, "finish_reason": "stop", **more}]}


STREAMS: dict[str, Reply] = {
    "no event": Reply(b"", headers=SSE),
    "only comments": Reply(b": hello\n\n" * 100, headers=SSE),
    "an event that is not JSON": events(b"nonsense"),
    "an event in depth": events(b"[" * DEEP),
    "an object in depth": events(b'{"choices":' * DEEP + b"1" + b"}" * DEEP),
    "a number of 5000 digits": events(b'{"choices": ' + b"9" * 5_000 + b"}"),
    "a list": events([1, 2]),
    "no choices": events({"id": "x"}),
    "choices that are numbers": events({"choices": [1]}),
    "a delta that is a list": events({"choices": [{"delta": [1]}]}),
    "content that is a number": events(delta(7)),
    "content that is an object": events(delta({"a": 1})),
    "an error inside": events({"error": {"message": "\x1b[2J boom", "code": 400}}),
    "an error of a type": events({"error": [1, 2, {"a": HALF}]}),
    "half a surrogate": events(delta("<think> a" + HALF), delta("b </think>\n"), delta("<answer> Monet </answer>")),
    "log-probabilities of 400 digits": events(
        delta(ANSWER, logprobs={"content": [{"logprob": 10**400}, {"logprob": float("nan")}]}, token_ids=[1, 2])
    ),
    "token ids that are words": events(delta(ANSWER, token_ids=["a"], logprobs=[1])),
    "a count of 400 digits": events({"usage": {"completion_tokens": 10**400}, "choices": []}, delta(ANSWER)),
    "a count below zero": events({"usage": {"completion_tokens": -5}, "choices": []}, delta(ANSWER)),
    "a count in words": events({"usage": {"completion_tokens": "many"}, "choices": []}, delta(ANSWER)),
    "no end": events(*[dumped(delta("word "))] * 60_000),
    "no end of thinking": events(*[dumped({"choices": [{"delta": {"reasoning_content": "hm " * 10}}]})] * 30_000),
    "a search that never ends": events(delta("<search> "), *[dumped(delta("x "))] * 30_000),
    "60 kB of spaces after a bracket": events(delta("<think> "), delta(SPACES), delta(" </think>"), delta(ANSWER)),
    "thoughts of 60 kB": events({"choices": [{"delta": {"reasoning_content": SPACES + "\n"}}]}, delta(ANSWER)),
    "content filter": events(delta("x", finish_reason="content_filter")),
    "a finish nobody knows": events(delta("x", finish_reason="tired")),
    "an event of 17 MB": events(b'"' + b"x" * (17 * 1024 * 1024) + b'"'),
    "bytes that are no UTF-8": events(b'{"choices": [{"delta": {"content": "\xff\xfe"}}]}'),
    "cut in the middle": Reply(dumped(delta("<think> a")), headers=SSE, cut_after=10),
}  # fmt: skip
WHOLE: dict[str, Reply] = {
    "content that is null": Reply(dumped(message(None))),
    "content that is a list of numbers": Reply(dumped(message([1, 2]))),
    "content that is true": Reply(dumped(message(True))),
    "a message that is a string": Reply(dumped({"choices": [{"message": "hi", "finish_reason": "stop"}]})),
    "an empty list of choices": Reply(dumped({"choices": []})),
    "a choice that is null": Reply(dumped({"choices": [None]})),
    "half a surrogate": Reply(dumped(message(f"<think> {HALF} </think>\n<answer> Mo{HALF}net </answer>"))),
    "terminal escapes": Reply(dumped(message("<think> \x1b[2J </think>\n<answer> \x1b]0;x\x07Monet\u2066 </answer>"))),
    "a finish of 400 digits": Reply(dumped(message(ANSWER, stop_reason=10**400))),
    "log-probabilities of 400 digits": Reply(
        dumped(message(ANSWER, logprobs={"content": [{"logprob": -(10**400)}]}, token_ids=[1]))
    ),
    "a megabyte": Reply(dumped(message("word " * 200_000))),
    "tags for ever": Reply(dumped(message("<search>" * 20_000))),
    "an answer in a thought": Reply(dumped(message("<think> <answer> no </answer>"))),
}  # fmt: skip


def called(*calls: Any) -> Reply:
    return Reply(
        dumped({"choices": [{"message": {"content": "", "tool_calls": list(calls)}, "finish_reason": "tool_calls"}]})
    )


def call(arguments: Any, name: Any = "search", **more: Any) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}, **more}


def deep(depth: int) -> dict[str, Any]:
    return {"a": deep(depth - 1)} if depth else {}


def detailed(details: Any) -> Reply:
    said = {"content": "", "tool_calls": [call('{"queries": ["a"]}')], "reasoning_details": details}
    return Reply(dumped({"choices": [{"message": said, "finish_reason": "tool_calls"}]}))


def counted(thoughts: Any) -> Reply:
    details = {"reasoning_tokens": thoughts}
    usage = {"completion_tokens": 5, "completion_tokens_details": details}
    return Reply(dumped({**message("Monet"), "usage": usage}))


CALLS: dict[str, Reply] = {
    "calls that are a number": Reply(dumped(message("", tool_calls=7))),
    "a call that is null": called(None),
    "a call without a function": called({"id": "c1"}),
    "a function that is a list": called({"id": "c1", "function": [1]}),
    "arguments that are no JSON": called(call("{")),
    "arguments in depth": called(call("[" * DEEP)),
    "arguments that are a list": called(call([1, 2])),
    "arguments of 5000 digits": called(call('{"queries": ' + "9" * 5_000 + "}")),
    "half a surrogate in a query": called(call('{"queries": ["\\ud800 a"]}'), call(f'{{"queries": ["{HALF}"]}}')),
    "a query that is an object": called(call('{"queries": [{"a": 1}]}')),
    "a thousand queries": called(call(json.dumps({"queries": [f"q{n}" for n in range(1_000)]}))),
    "a thousand calls": called(*[call('{"queries": ["a"]}', id=f"c{n}") for n in range(1_000)]),
    "a tool nobody has": called(call("{}", "rm -rf")),
    "a name that is a number": called(call("{}", 7)),
    "an id of 400 digits": called(call("{}", id=10**400)),
    "an index below zero": called(call("{}", index=-1)),
    "a signature that is a number": called(call('{"queries": ["a"]}', extra_content=7)),
    "a signature with half a surrogate": called(call('{"queries": ["a"]}', extra_content={f"a{HALF}": f"b{HALF}"})),
    "a signature of 400 digits, and none": called(call('{"queries": ["a"]}', extra_content={"a": [10**400, float("nan")]})),
    "a signature in depth": called(call('{"queries": ["a"]}', extra_content=deep(90))),
    "details that are numbers": detailed([1, None, {"text": 3}, {"type": [1], "text": "a"}]),
    "details with half a surrogate": detailed([{"type": "reasoning.text", "text": f"a{HALF}"}] * 2),
    "details of 400 digits, and none": detailed([{"data": 10**400, "index": float("nan")}] * 2),
    "details that are an object": detailed({"text": "a"}),
    "a count of thoughts below zero": counted(-5),
    "a count of thoughts beyond the turn's": counted(10**6),
    "a count of thoughts of 400 digits": counted(10**400),
}  # fmt: skip


def check_sound(trajectory: Trajectory, tmp_path: Path) -> None:
    assert (trajectory.elapsed_s or 0) < 1.1 * (trajectory.limits or {}).get("timeout_s", DEADLINE_S) + STALL_S
    assert trajectory.stop in ("answer", "error", "max_turns", "max_tokens", "timeout")
    assert trajectory.stop != "error" or trajectory.error
    assert len(trajectory.error or "") < 1_500
    path = tmp_path / "record.jsonl"
    write_trajectories(path, [trajectory])
    assert [one.to_dict() for one in read_trajectories(path)] == [json.loads(trajectory.to_json())]


def deadline_s(fault: Reply) -> float:
    """Of a rollout. A busy machine needs time for what comes; only what never comes is not waited for."""
    return SOON_S if fault.hangs or fault.drip_s else DEADLINE_S


def patience(fault: Reply) -> dict[str, float]:
    """The same of a turn, and of the next byte."""
    return {"timeout_s": deadline_s(fault) * 2 / 3, "read_timeout_s": deadline_s(fault) / 3}


async def ask(fault: Reply, tmp_path: Path, dialect: str = "parallel", **options: Any) -> Trajectory:
    with bounded_memory():
        async with FaultServer(fault) as server:
            url = f"{server.base_url}/v1"
            policy = OpenAIPolicy(url, "m", max_attempts=1, **patience(fault), **options)
            limits = Limits(timeout_s=deadline_s(fault), max_turns=2)
            trajectory = await rollout("Who?", policy, Search(EchoRetriever()), limits, dialect=dialect)
            await policy.aclose()
        check_sound(trajectory, tmp_path)
    return trajectory


@pytest.mark.parametrize(("api", "dialect"), [("chat", "parallel"), ("chat", "tools"), ("completions", "parallel")])
@pytest.mark.parametrize("name", STREAMS)
async def test_a_stream_that_makes_no_sense_ends_the_rollout_in_time(
    name: str, api: Any, dialect: str, tmp_path: Path
) -> None:
    await ask(STREAMS[name], tmp_path, dialect, api=api)


@pytest.mark.parametrize("dialect", ["parallel", "tools"])
@pytest.mark.parametrize("name", {**WHOLE, **CALLS})
async def test_an_answer_that_makes_no_sense_ends_the_rollout_in_time(name: str, dialect: str, tmp_path: Path) -> None:
    await ask({**WHOLE, **CALLS}[name], tmp_path, dialect, stream=False)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("name", BODIES)
async def test_a_body_that_makes_no_sense_is_an_error_in_the_record(name: str, streams: bool, tmp_path: Path) -> None:
    trajectory = await ask(BODIES[name], tmp_path, stream=streams)
    assert trajectory.stop == "error"


async def test_an_answer_that_never_comes_whole_is_an_error_in_the_record(tmp_path: Path) -> None:
    """All at the same time: most are waited for, for seconds."""
    asked = [(name, streams) for name in WAYS for streams in (False, True)]
    folders = [tmp_path / str(number) for number in range(len(asked))]
    for folder in folders:
        folder.mkdir()
    found = await asyncio.gather(
        *(ask(WAYS[name], folder, stream=streams) for (name, streams), folder in zip(asked, folders, strict=True))
    )
    for (name, streams), trajectory in zip(asked, found, strict=True):
        is_late = name in ("never", "a byte at a time") and trajectory.stop == "timeout"
        assert trajectory.stop == "error" or is_late, (name, streams)


async def test_a_stream_without_end_ends_at_the_limit_of_tokens(tmp_path: Path) -> None:
    trajectory = await ask(STREAMS["no end"], tmp_path)
    assert trajectory.turns[0].finish == "length"
    assert max(len(segment.text) for segment in trajectory.segments) < 500 * 128 + 1_000


async def test_a_key_that_is_echoed_in_pieces_is_not_in_the_record(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-0123456789")
    pieces = ["<think> your key is sk-sec", "ret-0123", "456789 </think>\n<answer> Monet </answer>"]
    trajectory = await ask(events(*map(delta, pieces)), tmp_path)
    assert trajectory.answer == "Monet"
    assert "sk-secret" not in trajectory.to_json()


# ---- one that breaks costs no other ------------------------------------------------------------------------------------


class Breaks(ScriptedPolicy):
    """A policy that raises on one question."""

    def __init__(self, error: BaseException | type[BaseException]) -> None:
        super().__init__({question: [ANSWER] for question in ("good 0", "bad", "good 1")})
        self.error = error

    async def generate(self, segments: Any, **options: Any) -> Generation:
        if "bad" in segments[0].text:
            raise self.error
        return await super().generate(segments, **options)


class AlwaysBreaks(ScriptedPolicy):
    def __init__(self, error: Exception) -> None:
        super().__init__({})
        self.error = error

    async def generate(self, segments: Any, **options: Any) -> Generation:
        raise self.error


@pytest.mark.parametrize(
    "error",
    [RecursionError("deep"), OverflowError("400 digits"), LookupError("charset"), UnicodeDecodeError("utf-8", b"x", 0, 1, "odd"),
     MemoryError(), RuntimeError("a bug"), OSError(5, "i/o"), TimeoutError("its own"), AssertionError(), KeyError("k")],
)  # fmt: skip
async def test_whatever_a_policy_raises_costs_one_question(error: Exception, tmp_path: Path) -> None:
    questions = [Question("good 0"), Question("bad", [f"{HALF}"], id=f"q{HALF}"), Question("good 1")]
    found = await rollout_many(questions, Breaks(error), Search(EchoRetriever()), Limits(timeout_s=DEADLINE_S))
    assert [one.answer for one in found] == ["Monet", None, "Monet"]
    for one in found:
        check_sound(one, tmp_path)


@pytest.mark.parametrize(
    "error", [RuntimeError("a bug"), OSError(5, "i/o"), TimeoutError("its own"), AssertionError("no")]
)
async def test_what_a_policy_of_ones_own_raises_is_in_the_record(error: Exception) -> None:
    """As with a backend of one's own: and what was found until then is in the record, too."""

    class BreaksLater(ScriptedPolicy):
        async def generate(self, segments: Any, **options: Any) -> Generation:
            if len(segments) > 1:
                raise error
            return await super().generate(segments, **options)

    said = f"the policy broke ({type(error).__name__}): {error} ({Path(__file__).name}, line "
    search = Search(EchoRetriever())
    policy = BreaksLater({"q": [grammar.render_turn("One.", ["x"])]})
    trajectory = await rollout("q", policy, search, Limits(timeout_s=DEADLINE_S))
    assert trajectory.stop == "error"
    assert (trajectory.error or "").startswith(said)
    assert len(trajectory.queries) == 1
    turns = ScriptedPolicy({"q": [grammar.render_turn("One.", ["x"]), ANSWER]})
    read = await rollout("q", turns, search, answer_with=AlwaysBreaks(error))
    assert read.answer == "Monet"
    assert read.reading is not None
    assert (read.reading.error or "").startswith(said)


async def test_wrong_use_that_a_policy_finds_is_raised() -> None:
    with pytest.raises(UsageError, match="not like this"):
        await rollout("q", AlwaysBreaks(UsageError("not like this")), Search(EchoRetriever()))


async def test_whatever_a_callback_raises_costs_one_question() -> None:
    def on_event(event: Event) -> None:
        if event.kind == "answer":
            raise ValueError("a bug of the caller")

    policy = ScriptedPolicy({"a": [ANSWER], "b": [ANSWER]})
    found = await rollout_many(["a", "b"], policy, Search(EchoRetriever()), on_event=on_event)
    assert [one.stop for one in found] == ["error", "error"]
    assert all("a bug of the caller" in (one.error or "") for one in found)


async def test_a_replica_that_answers_rubbish_is_passed_over() -> None:
    rubbish = [
        Reply({"result": ["nonsense"]}), Reply({"result": [[{"document": 7}]]}), Reply(b"<html>"), Reply(b"{}"),
        Reply({"detail": "I do not like it"}, 400), Reply({"result": []}), Reply(b"[" * DEEP),
    ]  # fmt: skip
    for reply in rubbish:
        async with FaultServer(reply) as bad, FaultServer(good) as fine:
            retriever = RemoteRetriever([bad.url, fine.url], timeout_s=120)
            for number in range(4):
                (result,) = await retriever.search_many([f"q{number}"], 1)
                assert isinstance(result, list), (reply, result)
            assert len(bad.requests) <= 2, "it rests"
            await retriever.aclose()


def test_asking_inside_a_callback_says_so_and_does_not_hang() -> None:
    agent = Agent(ScriptedPolicy({"q": [ANSWER]}), Search(EchoRetriever()), abstain=False)
    said: list[str] = []

    def on_event(event: Event) -> None:
        try:
            agent.ask("q")
        except UsageError as error:
            said.append(str(error))

    with agent:
        assert agent.ask("q", on_event=on_event).answer == "Monet"
    assert "for ever" in said[0]


def test_one_agent_serves_two_event_loops() -> None:
    turns = [grammar.render_turn("Two.", ["same query", "other query"]), ANSWER]
    agent = Agent(
        ScriptedPolicy({"q": turns}), Search(EchoRetriever(latency_s=0.002), cache_size=0, timeout_s=300), abstain=False
    )
    answers: list[Trajectory] = []

    def ask_many() -> None:
        answers.extend(asyncio.run(agent.ask_many_async(["q"] * 60, max_concurrent=8)))

    with agent:
        threads = [threading.Thread(target=ask_many) for _ in range(2)]
        for thread in threads:
            thread.start()
        answers += agent.ask_many(["q"] * 60, max_concurrent=8)
        for thread in threads:
            thread.join()
    assert len(answers) == 180
    assert all(one.answer == "Monet" and one.num_failed_queries == 0 for one in answers)


@pytest.mark.parametrize("bad", [{"temperature": -1}, {"temperature": float("nan")}, {"temperature": float("inf")},
                                 {"top_p": 0}, {"top_p": 1.1}, {"top_p": float("nan")}])  # fmt: skip
def test_sampling_that_cannot_be_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Sampling(**bad)


@pytest.mark.parametrize("name", ["max_turns", "max_tokens", "max_subqueries", "max_observation_tokens", "timeout_s", "max_tokens_per_turn"])  # fmt: skip
@pytest.mark.parametrize("value", [float("nan"), -1, 0])
def test_limits_that_cannot_be_are_refused(name: str, value: float) -> None:
    with pytest.raises(UsageError):
        Limits(**{name: value})


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think> a </think>\n<answer> Paris </answer>", "Paris"), ("<think> a </think>\n<answer> Paris", "Paris"),
        ("<think> a </think>\n<answer> Paris </ans", "Paris"), ("<think> maybe <answer> Paris", None),
        ("<think> maybe <answer> Paris </answer> or", None), ("<think> a </think> <search> x", None), ("", None),
        ("<think> a </think>\n<answer> A < B", "A < B"), ("<think> a </think>\n<answer> " + "<" * 50_000, "<" * 50_000),
    ],
)  # fmt: skip
def test_an_answer_that_was_cut_off_has_neither_tags_nor_thoughts(text: str, answer: str | None) -> None:
    assert grammar.partial_answer(text) == (
        answer if answer is None else answer[: len(answer) - text.endswith("<" * 9)]
    )

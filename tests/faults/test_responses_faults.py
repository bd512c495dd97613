"""The Responses API against every fault, streamed and whole: the rollout ends in time with an error that can be read, memory
stays below a bound, and the record can be read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from payloads import BODIES, DEEP, HALF, SPACES, dumped
from search_fault_server import FaultServer, Reply
from test_model_faults import ANSWER, check_sound, deadline_s, deep, patience

from echoing import EchoRetriever
from memory import bounded_memory
from parallelsearch.limits import Limits
from parallelsearch.policy.openai import OpenAIPolicy
from parallelsearch.rollout import rollout
from parallelsearch.search import Search
from parallelsearch.trajectory import Trajectory

SSE = {"Content-Type": "text/event-stream"}
USAGE = {"input_tokens": 10, "output_tokens": 5}


def end(**more: Any) -> dict[str, Any]:
    record = {"object": "response", "status": "completed", "output": [], "usage": USAGE, **more}
    return {"type": "response.completed", "response": record}


def events(*payloads: Any, ends: bool = True) -> Reply:
    """A stream whose middle goes wrong."""
    whole = [*payloads, *([end()] if ends else ())]
    lines = [one if isinstance(one, bytes) else dumped(one) for one in whole]
    return Reply(b"".join(b"event: x\ndata: " + line + b"\n\n" for line in lines), headers=SSE)


def added(kind: Any = "message", index: Any = 0, **more: Any) -> dict[str, Any]:
    return {"type": "response.output_item.added", "output_index": index, "item": {"type": kind, **more}}


def done(item: Any, index: Any = 0) -> dict[str, Any]:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def said(text: Any, index: Any = 0) -> dict[str, Any]:
    return {"type": "response.output_text.delta", "output_index": index, "delta": text}


def written(part: Any, index: Any = 0) -> dict[str, Any]:
    return {"type": "response.function_call_arguments.delta", "output_index": index, "delta": part}


def thought(text: Any) -> dict[str, Any]:
    return {"type": "response.reasoning_summary_text.delta", "output_index": 0, "delta": text}


TEXT = added(content=[])
CALL = added("function_call", call_id="c1", name="search", arguments="")
STREAMS: dict[str, Reply] = {
    "no event": Reply(b"", headers=SSE),
    "only comments": Reply(b": hello\n\n" * 100, headers=SSE),
    "only news": events(*[dumped({"type": "response.in_progress"})] * 5_000, ends=False),
    "an event that is not JSON": events(b"nonsense"),
    "an event in depth": events(b"[" * DEEP),
    "a number of 5000 digits": events(b'{"type": "x", "n": ' + b"9" * 5_000 + b"}"),
    "a list": events([1, 2]),
    "a type nobody knows": events({"type": "surprise", "delta": 7}, TEXT, said(ANSWER)),
    "a type that is a number": events({"type": 7}),
    "an item that is a list": events({"type": "response.output_item.added", "output_index": 0, "item": [1]}),
    "an item of a type": events(added([1])),
    "an item of a kind nobody knows": events(added("hologram"), said("a")),
    "an item that changes its kind": events(TEXT, said("a"), done({"type": "function_call", "arguments": "{}"})),
    "a call that becomes a thought": events(CALL, done({"type": "reasoning", "encrypted_content": "x"})),
    "text that is a number": events(TEXT, said(7)),
    "text without an item": events(said("a", 7)),
    "arguments without a call": events(TEXT, written("{")),
    "an index below zero": events(added(index=-1), said("a", -1)),
    "an index of 400 digits": events(added(index=10**400), said("a", 10**400)),
    "an index in words": events(added(index="one"), said("a", "one")),
    "an error inside": events({"type": "error", "message": "\x1b[2J boom", "code": "server_error"}),
    "an error of a type": events({"type": "error", "message": [1, {"a": HALF}], "code": [1]}),
    "half a surrogate": events(TEXT, said("<think> a" + HALF), said("b </think>\n<answer> Monet </answer>")),
    "half a surrogate in a thought": events(
        done({"type": "reasoning", "summary": [{"text": HALF}], "encrypted_content": HALF, HALF: HALF}), CALL, written("{}")
    ),
    "a thought of 400 digits, and none": events(
        done({"type": "reasoning", "summary": 10**400, "encrypted_content": "x", "a": float("nan")}),
        added("function_call", 1, call_id="c", name="search"), written('{"queries": ["a"]}', 1),
    ),
    "a thought in depth": events(
        done({"type": "reasoning", "encrypted_content": "x", "a": deep(90)}),
        added("function_call", 1, call_id="c", name="search"), written('{"queries": ["a"]}', 1),
    ),
    "no end": events(TEXT, *[dumped(said("word "))] * 60_000),
    "no end of thinking": events(*[dumped(thought("hm " * 10))] * 30_000),
    "no end of arguments": events(CALL, written('{"queries": ["'), *[dumped(written("x "))] * 60_000),
    "no end of items": events(*[added(index=number) for number in range(30_000)]),
    "no end of calls": events(*[added("function_call", n, call_id=f"c{n}", name="search") for n in range(5_000)]),
    "60 kB of spaces after a bracket": events(TEXT, said("<think> " + SPACES), said(" </think>" + ANSWER)),
    "arguments in depth": events(CALL, written("[" * DEEP)),
    "arguments that are a number": events(CALL, written(7)),
    "a tool nobody has": events(added("function_call", call_id="t", name="rm -rf"), written("{}")),
    "a name that is a number": events(added("function_call", call_id=1, name=7)),
    "calls of one id": events(*[added("function_call", n, call_id="c", name="search") for n in (0, 1)], written('{"queries": ["a"]}', 1)),
    "bytes that are no UTF-8": events(b'{"type": "response.output_text.delta", "delta": "\xff\xfe"}'),
    "an event of 17 MB": events(b'"' + b"x" * (17 * 1024 * 1024) + b'"'),
    "cut in the middle": Reply(dumped(TEXT), headers=SSE, cut_after=10),
}  # fmt: skip


def response(*output: Any, **more: Any) -> Reply:
    return Reply(dumped(end(**{"output": list(output), **more})["response"]))


def text(said: Any) -> dict[str, Any]:
    return {"type": "message", "content": [{"type": "output_text", "text": said}]}


WHOLE: dict[str, Reply] = {
    "output that is a string": response(output="hi"),
    "an item that is null": response(None),
    "an item without a type": response({"content": []}),
    "content that is a string": response({"type": "message", "content": "hi"}),
    "a part that is null": response({"type": "message", "content": [None]}),
    "a text that is a list": response(text(["a"])),
    "half a surrogate": response(text(f"<think> {HALF} </think>\n<answer> Mo{HALF}net </answer>")),
    "a megabyte": response(text("word " * 200_000)),
    "a thousand calls": response(
        *[{"type": "function_call", "call_id": f"c{n}", "name": "search", "arguments": '{"queries": ["a"]}'} for n in range(1_000)]
    ),
    "arguments that are an object": response({"type": "function_call", "call_id": "c", "name": "search", "arguments": {"a": 1}}),
    "a refusal that is a list": response({"type": "message", "content": [{"type": "refusal", "refusal": [1]}]}),
    "usage that is a list": response(text(ANSWER), usage=[1]),
    "usage of 400 digits": response(text(ANSWER), usage={"output_tokens": 10**400, "output_tokens_details": [1]}),
    "a status nobody knows": response(text("x"), status="tired"),
    "a status that is a list": response(text("x"), status=[1], incomplete_details=[1]),
    "a reason of a type": response(text("x"), incomplete_details={"reason": [1]}),
    "an error of a type": response(error=[1, {"a": HALF}]),
}  # fmt: skip


async def ask(fault: Reply, tmp_path: Path, dialect: str = "tools", stream: bool = True) -> Trajectory:
    with bounded_memory():
        async with FaultServer(fault) as server:
            url = f"{server.base_url}/v1"
            policy = OpenAIPolicy(url, "m", api="responses", max_attempts=1, **patience(fault), stream=stream)
            limits = Limits(timeout_s=deadline_s(fault), max_turns=2)
            trajectory = await rollout("Who?", policy, Search(EchoRetriever()), limits, dialect=dialect)
            await policy.aclose()
        check_sound(trajectory, tmp_path)
    return trajectory


@pytest.mark.parametrize("dialect", ["tools", "parallel"])
@pytest.mark.parametrize("name", STREAMS)
async def test_a_stream_that_makes_no_sense_ends_the_rollout_in_time(name: str, dialect: str, tmp_path: Path) -> None:
    await ask(STREAMS[name], tmp_path, dialect)


@pytest.mark.parametrize("name", WHOLE)
async def test_an_answer_that_makes_no_sense_ends_the_rollout_in_time(name: str, tmp_path: Path) -> None:
    await ask(WHOLE[name], tmp_path, stream=False)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", BODIES)
async def test_a_body_that_makes_no_sense_is_an_error_in_the_record(name: str, stream: bool, tmp_path: Path) -> None:
    trajectory = await ask(BODIES[name], tmp_path, stream=stream)
    assert trajectory.stop == "error"


@pytest.mark.parametrize("name", [name for name in STREAMS if name.startswith("no end")])
async def test_a_stream_without_end_ends_at_the_limit_of_tokens(name: str, tmp_path: Path) -> None:
    trajectory = await ask(STREAMS[name], tmp_path)
    assert trajectory.turns[0].finish == "length"
    assert len(trajectory.to_json()) < 5 * 2 * (500 + 4_096) * 128  # five turns, their thinking kept twice

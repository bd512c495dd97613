"""The Messages API against every fault, streamed and whole: the rollout ends in time with an error that can be read, memory
stays below a bound, and the record can be read back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from payloads import BODIES, DEEP, HALF, SPACES, WAYS, dumped
from search_fault_server import FaultServer, Reply
from test_model_faults import ANSWER, check_sound, deadline_s, patience

from echoing import EchoRetriever
from memory import bounded_memory
from parallelsearch.limits import Limits
from parallelsearch.policy.anthropic import AnthropicPolicy
from parallelsearch.rollout import rollout
from parallelsearch.search import Search
from parallelsearch.trajectory import Trajectory

SSE = {"Content-Type": "text/event-stream"}
USAGE = {"input_tokens": 10, "output_tokens": 5}
START = {"type": "message_start", "message": {"id": "m", "role": "assistant", "content": [], "usage": USAGE}}
END = ({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": USAGE}, {"type": "message_stop"})


def events(*payloads: Any, ends: bool = True) -> Reply:
    """A stream whose middle goes wrong."""
    whole = [START, *payloads, *(END if ends else ())]
    lines = [one if isinstance(one, bytes) else dumped(one) for one in whole]
    return Reply(b"".join(b"event: x\ndata: " + line + b"\n\n" for line in lines), headers=SSE)


def opened(kind: str = "text", index: Any = 0, **more: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": {"type": kind, **more}}


def delta(index: Any = 0, **more: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": more}


def said(text: Any, index: Any = 0) -> dict[str, Any]:
    return delta(index, type="text_delta", text=text)


def written(part: Any) -> dict[str, Any]:
    return delta(type="input_json_delta", partial_json=part)


TEXT = opened(text="")
CALL = opened("tool_use", id="t1", name="search", input={})
STREAMS: dict[str, Reply] = {
    "no event": Reply(b"", headers=SSE),
    "only comments": Reply(b": hello\n\n" * 100, headers=SSE),
    "only pings": events(*[dumped({"type": "ping"})] * 5_000, ends=False),
    "an event that is not JSON": events(b"nonsense"),
    "an event in depth": events(b"[" * DEEP),
    "an object in depth": events(b'{"type":' * DEEP + b"1" + b"}" * DEEP),
    "a number of 5000 digits": events(b'{"type": "ping", "n": ' + b"9" * 5_000 + b"}"),
    "a list": events([1, 2]),
    "a type nobody knows": events({"type": "surprise", "delta": 7}),
    "a type that is a number": events({"type": 7}),
    "a message that is a string": events({"type": "message_start", "message": "hi"}),
    "a block that is a list": events({"type": "content_block_start", "index": 0, "content_block": [1]}),
    "a block of a kind nobody knows": events(opened("hologram", data="x"), said("a")),
    "a delta that is a list": events(TEXT, {"type": "content_block_delta", "index": 0, "delta": [1]}),
    "text that is a number": events(TEXT, said(7)),
    "text that is an object": events(TEXT, said({"a": 1})),
    "a delta without a block": events(said("a", 7)),
    "an index below zero": events(opened(index=-1, text=""), said("a", -1)),
    "an index of 400 digits": events(opened(index=10**400, text=""), said("a", 10**400)),
    "an index in words": events(opened(index="one", text=""), said("a", "one")),
    "an error inside": events({"type": "error", "error": {"type": "overloaded_error", "message": "\x1b[2J boom"}}),
    "an error of a type": events({"type": "error", "error": [1, {"a": HALF}]}),
    "half a surrogate": events(TEXT, said("<think> a" + HALF), said("b </think>\n<answer> Monet </answer>")),
    "terminal escapes": events(TEXT, said("\x1b]0;x\x07\x9b31m\u2066")),
    "a count of 400 digits": events(TEXT, said(ANSWER), {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 10**400}}),
    "a count below zero": events(TEXT, said(ANSWER), {"type": "message_delta", "delta": {}, "usage": {"output_tokens": -5}}),
    "a count in words": events(TEXT, said(ANSWER), {"type": "message_delta", "delta": {}, "usage": {"output_tokens": "many"}}),
    "a stop nobody knows": events(TEXT, said("x"), {"type": "message_delta", "delta": {"stop_reason": "tired"}}),
    "a stop that is a list": events(TEXT, said("x"), {"type": "message_delta", "delta": {"stop_reason": [1]}}),
    "a refusal": events(TEXT, said("x"), {"type": "message_delta", "delta": {"stop_reason": "refusal"}}),
    "no end": events(TEXT, *[dumped(said("word "))] * 60_000),
    "no end of thinking": events(opened("thinking", thinking="", signature=""), *[dumped(delta(type="thinking_delta", thinking="hm " * 10))] * 30_000),
    "no end of arguments": events(CALL, written('{"queries": ["'), *[dumped(written("x "))] * 60_000),
    "no end of blocks": events(*[opened(index=number, text="") for number in range(30_000)]),
    "no end of calls": events(*[opened("tool_use", number, id=f"t{number}", name="search", input={}) for number in range(5_000)]),
    "60 kB of spaces after a bracket": events(TEXT, said("<think> " + SPACES), said(" </think>" + ANSWER)),
    "arguments that are no JSON": events(CALL, written("{")),
    "arguments in depth": events(CALL, written("[" * DEEP)),
    "arguments that are a list": events(CALL, written("[1]")),
    "arguments of 5000 digits": events(CALL, written('{"queries": ' + "9" * 5_000 + "}")),
    "arguments that are a number": events(CALL, written(7)),
    "half a surrogate in a query": events(CALL, written('{"queries": ["\\ud800 a"]}')),
    "a tool nobody has": events(opened("tool_use", id="t", name="rm -rf", input={}), written("{}")),
    "a name that is a number": events(opened("tool_use", id=1, name=7, input=3), written("{}")),
    "an event of 17 MB": events(b'"' + b"x" * (17 * 1024 * 1024) + b'"'),
    "bytes that are no UTF-8": events(b'{"type": "content_block_delta", "delta": {"text": "\xff\xfe"}}'),
    "cut in the middle": Reply(dumped(START), headers=SSE, cut_after=10),
}  # fmt: skip


def message(*content: Any, **more: Any) -> Reply:
    record = {"id": "m", "type": "message", "role": "assistant", "content": list(content), "stop_reason": "end_turn"}
    return Reply(dumped({**record, "usage": USAGE, **more}))


WHOLE: dict[str, Reply] = {
    "no content": message(content=None),
    "content that is a string": message(content="hi"),
    "content that is an object": message(content={"type": "text"}),
    "a block that is null": message(None),
    "a block without a type": message({"text": "hi"}),
    "a text that is a number": message({"type": "text", "text": 7}),
    "a text that is a list": message({"type": "text", "text": ["a"]}),
    "half a surrogate": message({"type": "text", "text": f"<think> {HALF} </think>\n<answer> Mo{HALF}net </answer>"}),
    "terminal escapes": message({"type": "text", "text": "\x1b[2J \x1b]0;x\x07 \u2066"}),
    "a megabyte": message({"type": "text", "text": "word " * 200_000}),
    "a call without an input": message({"type": "tool_use", "id": "t", "name": "search"}, stop_reason="tool_use"),
    "a call whose input is a list": message({"type": "tool_use", "id": "t", "name": "search", "input": [1]}),
    "a thousand calls": message(*[{"type": "tool_use", "id": f"t{n}", "name": "search", "input": {"queries": ["a"]}} for n in range(1_000)]),
    "usage that is a list": message({"type": "text", "text": ANSWER}, usage=[1]),
    "usage of 400 digits": message({"type": "text", "text": ANSWER}, usage={"output_tokens": 10**400}),
    "a stop of 400 digits": message({"type": "text", "text": ANSWER}, stop_reason=10**400),
}  # fmt: skip


async def ask(fault: Reply, tmp_path: Path, dialect: str = "tools", stream: bool = True) -> Trajectory:
    with bounded_memory():
        async with FaultServer(fault) as server:
            policy = AnthropicPolicy(
                "m", server.base_url, max_attempts=1, **patience(fault), stream=stream, dialect=dialect
            )
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


async def test_an_answer_that_never_comes_whole_is_an_error_in_the_record(tmp_path: Path) -> None:
    """All at the same time: most are waited for, for seconds."""
    asked = [(name, stream) for name in WAYS for stream in (False, True)]
    folders = [tmp_path / str(number) for number in range(len(asked))]
    for folder in folders:
        folder.mkdir()
    found = await asyncio.gather(
        *(ask(WAYS[name], folder, stream=stream) for (name, stream), folder in zip(asked, folders, strict=True))
    )
    for (name, stream), trajectory in zip(asked, found, strict=True):
        is_late = name in ("never", "a byte at a time") and trajectory.stop == "timeout"
        assert trajectory.stop == "error" or is_late, (name, stream)


@pytest.mark.parametrize("name", [name for name in STREAMS if name.startswith("no end")])
async def test_a_stream_without_end_ends_at_the_limit_of_tokens(name: str, tmp_path: Path) -> None:
    trajectory = await ask(STREAMS[name], tmp_path)
    assert trajectory.turns[0].finish == "length"
    assert len(trajectory.to_json()) < 5 * 2 * (500 + 4_096) * 128  # five turns, their thinking kept twice

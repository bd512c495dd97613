"""What Anthropic's Messages API sends, built by the types of its own package, over the HTTP of `fault_server`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from anthropic.types import (
    Message,
    RawContentBlockDeltaEvent,
    RawContentBlockStartEvent,
    RawContentBlockStopEvent,
    RawMessageDeltaEvent,
    RawMessageStartEvent,
    RawMessageStopEvent,
)
from fault_server import Behaviour, Exchange, FaultServer, send_split, status
from pydantic import BaseModel

from parallelsearch.dialect import Tool
from parallelsearch.dialects.tools import SEARCH_TOOL
from parallelsearch.errors import PolicyError
from parallelsearch.policy.anthropic import AnthropicPolicy
from parallelsearch.policy.base import Generation, Sampling
from parallelsearch.trajectory import Segment

Block = dict[str, Any]
PING = 'event: ping\ndata: {"type": "ping"}'


# ---- blocks ----------------------------------------------------------------------------------------------------------


def text(said: str) -> Block:
    return {"type": "text", "text": said}


def thinking(thought: str, signature: str = "c2lnbmVk") -> Block:
    return {"type": "thinking", "thinking": thought, "signature": signature}


def redacted(data: str = "ZW5jcnlwdGVk") -> Block:
    return {"type": "redacted_thinking", "data": data}


def search(*queries: str, id: str = "toolu_1") -> Block:
    return {"type": "tool_use", "id": id, "name": "search", "input": {"queries": list(queries)}}


# ---- events ----------------------------------------------------------------------------------------------------------


def _sent(event: BaseModel) -> str:
    return f"event: {event.type}\ndata: {event.model_dump_json()}"  # type: ignore[attr-defined]


def _message(content: list[Block], stop_reason: str | None, usage: dict[str, Any], **extra: Any) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-test",
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 1, **usage},
        **extra,
    }


def start(**usage: int) -> str:
    return _sent(RawMessageStartEvent.model_validate({"type": "message_start", "message": _message([], None, usage)}))


def stop(reason: str, **extra: Any) -> list[str]:
    usage = {"output_tokens": extra.pop("output_tokens", 20)}
    delta = {"stop_reason": reason, "stop_sequence": None, **extra}
    return [
        _sent(RawMessageDeltaEvent.model_validate({"type": "message_delta", "delta": delta, "usage": usage})),
        _sent(RawMessageStopEvent(type="message_stop")),
    ]


def block_events(number: int, block: Block, piece: int = 5, raw_input: str | None = None) -> list[str]:
    """One block as the API streams it. `raw_input` takes the place of a call's arguments."""
    kind = block["type"]
    empty = {"text": {"text": ""}, "thinking": {"thinking": "", "signature": ""}, "tool_use": {"input": {}}}.get(
        kind, {}
    )
    opened = {"type": "content_block_start", "index": number, "content_block": {**block, **empty}}
    deltas: list[dict[str, Any]] = []
    if kind == "text":
        deltas = [{"type": "text_delta", "text": part} for part in _split(block["text"], piece)]
    elif kind == "thinking":
        deltas = [{"type": "thinking_delta", "thinking": part} for part in _split(block["thinking"], piece)]
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
    elif kind == "tool_use":
        arguments = raw_input if raw_input is not None else json.dumps(block["input"], ensure_ascii=False)
        deltas = [{"type": "input_json_delta", "partial_json": part} for part in ["", *_split(arguments, piece)]]
    found = [_sent(RawContentBlockStartEvent.model_validate(opened))]
    for delta in deltas:
        event = {"type": "content_block_delta", "index": number, "delta": delta}
        found.append(_sent(RawContentBlockDeltaEvent.model_validate(event)))
    return [*found, _sent(RawContentBlockStopEvent(type="content_block_stop", index=number))]


def _split(said: str, piece: int) -> list[str]:
    return [said[start : start + piece] for start in range(0, len(said), piece)]


def stream_of(*blocks: Block, reason: str | None = None, piece: int = 5, **extra: Any) -> list[str]:
    """A whole stream, with a ping where the API sends one."""
    reason = reason or ("tool_use" if any(block["type"] == "tool_use" for block in blocks) else "end_turn")
    middle = [event for number, block in enumerate(blocks) for event in block_events(number, block, piece)]
    return [start(), PING, *middle, *stop(reason, **extra)]


def claude(*blocks: Block, reason: str | None = None, size: int = 0, piece: int = 5, **extra: Any) -> Behaviour:
    """The API with a model that always says this, streamed if asked for; `size` splits the bytes."""

    async def behave(exchange: Exchange) -> None:
        if not exchange.request.body.get("stream"):
            why = reason or ("tool_use" if any(block["type"] == "tool_use" for block in blocks) else "end_turn")
            record = _message(list(blocks), why, {"output_tokens": 20}, **extra)
            await exchange.body(Message.model_validate(record).model_dump_json().encode())
            return
        await exchange.head(200, "text/event-stream; charset=utf-8")
        for event in stream_of(*blocks, reason=reason, piece=piece, **extra):
            await send_split(exchange, (event + "\n\n").encode(), size)
        await exchange.end()

    return behave


def refused(code: int, kind: str, message: str, **headers: str) -> Behaviour:
    """An error as the API words it."""
    error = {"type": kind, "message": message}
    return status(code, {"type": "error", "error": error, "request_id": "req_1"}, **headers)


# ---- the client under test -------------------------------------------------------------------------------------------


def policy_for(server: FaultServer, **options: Any) -> AnthropicPolicy:
    return AnthropicPolicy("claude-test", server.url, **{"max_wait_s": 0.05, "timeout_s": 20.0, **options})


async def ask(
    policy: AnthropicPolicy,
    segments: list[Segment] | None = None,
    *,
    stop: Sequence[str] = (),
    tools: Sequence[Tool] = (SEARCH_TOOL,),
    pieces: list[str] | None = None,
    calls: list[tuple[int, str, str]] | None = None,
    sampling: Sampling | None = None,
    max_tokens: int = 100,
) -> Generation:
    try:
        return await policy.generate(
            segments or [Segment("prompt", "Who is older?")],
            stop=stop,
            max_tokens=max_tokens,
            sampling=sampling or Sampling(),
            session="s",
            on_text=None if pieces is None else pieces.append,
            tools=tools,
            on_call=None if calls is None else lambda *piece: calls.append(piece),
        )
    finally:
        await policy.aclose()


async def failure(policy: AnthropicPolicy, **options: Any) -> str:
    with pytest.raises(PolicyError) as caught:
        await ask(policy, **options)
    return str(caught.value)

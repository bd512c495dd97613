"""What OpenAI's Responses API sends, built by the types of its own package, over the HTTP of `fault_server`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fault_server import Behaviour, Exchange, send_split
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseCreatedEvent,
    ResponseFunctionCallArgumentsDeltaEvent,
    ResponseFunctionCallArgumentsDoneEvent,
    ResponseIncompleteEvent,
    ResponseOutputItemAddedEvent,
    ResponseOutputItemDoneEvent,
    ResponseReasoningSummaryTextDeltaEvent,
    ResponseTextDeltaEvent,
    ResponseTextDoneEvent,
)
from pydantic import BaseModel

Item = dict[str, Any]


def message(text: str) -> Item:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}


def refusal(text: str) -> Item:
    return {**message(""), "content": [{"type": "refusal", "refusal": text}]}


def call(id: str, queries: Sequence[str], name: str = "search") -> Item:
    arguments = json.dumps({"queries": list(queries)})
    kind = {"type": "function_call", "status": "completed"}
    return {"id": f"fc_{id}", "call_id": id, "name": name, "arguments": arguments, **kind}


def thought(summary: str = "Two people.", encrypted: str | None = "gAAA") -> Item:
    parts = [{"type": "summary_text", "text": summary}] if summary else []
    return {"id": "rs_1", "type": "reasoning", "summary": parts, "encrypted_content": encrypted}


def response(
    items: Sequence[Item], *, status: str = "completed", written: int = 20, hidden: int = 0, **extra: Any
) -> Item:
    usage = {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": hidden},
        "total_tokens": 100 + written,
    }
    record = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1.0,
        "model": "tiny",
        "output": list(items),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "status": status,
        "usage": usage,
        **extra,
    }
    return json.loads(Response.model_validate(record).model_dump_json(exclude_none=True))  # type: ignore[no-any-return]


def says(*items: Item, size: int = 0, **extra: Any) -> Behaviour:
    """A response with these items, whole or streamed as it is asked for; `size` cuts the stream into chunks."""

    async def behave(exchange: Exchange) -> None:
        record = response(items, **extra)
        if not exchange.request.body.get("stream"):
            await exchange.body(json.dumps(record).encode())
            return
        await exchange.head(200, "text/event-stream")
        for event in stream_of(record):
            await send_split(exchange, f"{event}\n\n".encode(), size)
        await exchange.end()

    return behave


def stream_of(record: Item) -> list[str]:
    """The events of a response, in the order in which the API sends them."""
    begun = {**record, "output": [], "status": "in_progress", "usage": None, "incomplete_details": None}
    events: list[BaseModel] = [_made(ResponseCreatedEvent, "response.created", response=begun)]
    for number, item in enumerate(record["output"]):
        place = {"output_index": number, "item_id": item["id"]}
        added = {**item, "status": "in_progress"}
        if item["type"] == "message":
            added["content"] = []
        elif item["type"] == "function_call":
            added["arguments"] = ""
        else:
            added |= {"summary": [], "encrypted_content": "half"}
        events.append(
            _made(ResponseOutputItemAddedEvent, "response.output_item.added", output_index=number, item=added)
        )
        if item["type"] == "message" and (text := item["content"][0].get("text")):
            spot = {**place, "content_index": 0, "logprobs": []}
            for piece in _pieces(text):
                events.append(_made(ResponseTextDeltaEvent, "response.output_text.delta", delta=piece, **spot))
            events.append(_made(ResponseTextDoneEvent, "response.output_text.done", text=text, **spot))
        elif item["type"] == "function_call":
            kind = "response.function_call_arguments"
            for piece in _pieces(item["arguments"]):
                events.append(_made(ResponseFunctionCallArgumentsDeltaEvent, f"{kind}.delta", delta=piece, **place))
            whole = {"arguments": item["arguments"], "name": item["name"]}
            events.append(_made(ResponseFunctionCallArgumentsDoneEvent, f"{kind}.done", **whole, **place))
        for part in item.get("summary", ()):
            for piece in _pieces(part["text"]):
                kind = "response.reasoning_summary_text.delta"
                events.append(
                    _made(ResponseReasoningSummaryTextDeltaEvent, kind, delta=piece, summary_index=0, **place)
                )
        events.append(_made(ResponseOutputItemDoneEvent, "response.output_item.done", output_index=number, item=item))
    is_whole = record["status"] == "completed"
    last = ResponseCompletedEvent if is_whole else ResponseIncompleteEvent
    events.append(_made(last, "response.completed" if is_whole else "response.incomplete", response=record))
    return [f"event: {event.type}\ndata: {event.model_dump_json(exclude_none=True)}" for event in events]  # type: ignore[attr-defined]


def _made(kind: type[BaseModel], type: str, **fields: Any) -> BaseModel:
    return kind.model_validate({"type": type, "sequence_number": 0, **fields})


def _pieces(text: str, size: int = 7) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]

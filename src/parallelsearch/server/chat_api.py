"""`/v1/chat/completions` on the wire: a checked request, and completions and chunks as OpenAI's clients read them.

A stream carries the thought as it is written, every event as it happens, and the answer once it is sure. Searches, sources
and times stand in the extra field, which their clients pass through. Nothing here runs.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from parallelsearch.grounding import Citation, places_of
from parallelsearch.server.answering import Answered
from parallelsearch.server.asking import (
    EXTRA,
    FIRST_ERROR,
    WHOLE,
    Asked,
    AskOptions,
    ChatLimits,
    SamplingFields,
    error_body,
    question_of,
    read_body,
    refuse_what_is_not_done,
)
from parallelsearch.server.limits import RefusalError

_KNOWN_PARTS = ("text", "refusal")


class ContentPart(BaseModel):
    """A piece of a message; only text is understood."""

    type: Annotated[str, Field(json_schema_extra={"enum": list(_KNOWN_PARTS)})]
    text: str | None = None


class ChatMessage(BaseModel):
    """One message of the conversation. What another agent's tools said in it is taken, and the model is not shown it."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Annotated[list[ContentPart], FIRST_ERROR] | None = None


class StreamOptions(BaseModel):
    """What a stream holds beside the answer."""

    model_config = ConfigDict(strict=True)

    include_usage: Annotated[bool, Field(description="end with a chunk that counts tokens")] = False


class ChatBody(SamplingFields):
    """The body of `POST /v1/chat/completions`. Fields that change nothing here are accepted and ignored."""

    messages: Annotated[list[ChatMessage], FIRST_ERROR] = Field(min_length=1)
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1, description="of one turn of the model"), WHOLE] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, description="of one turn of the model"), WHOLE] | None = None


CANNOT: dict[str, tuple[Any, ...]] = {
    # What would change the meaning of the answer and is not done here, with the values that ask for nothing.
    "n": (None, 1),
    "tools": (None, []),
    "functions": (None, []),
    "logprobs": (None, False),
    "stop": (None, []),
    "response_format": (None, {"type": "text"}),
    "modalities": (None, ["text"]),
}


@dataclass(frozen=True, slots=True)
class ChatRequest(Asked):
    """A checked request for a completion."""

    wants_usage: bool = False


def read_chat_request(body: bytes, limits: ChatLimits) -> ChatRequest:
    """The request in a body, or `RefusalError` 400 or 422."""
    parsed = read_body(ChatBody, body, '{"model": "...", "messages": [{"role": "user", "content": "..."}]}')
    refuse_what_is_not_done(parsed.model_extra or {}, CANNOT)
    if len(parsed.messages) > limits.max_messages:
        raise RefusalError(422, f"messages: there are {len(parsed.messages)}, the limit is {limits.max_messages}")
    texts = [
        (message.role, _text_of(message, number))
        for number, message in enumerate(parsed.messages)
        if message.role not in ("tool", "function")
    ]
    said = [(role, text) for role, text in texts if role in ("user", "assistant")]
    system = "\n".join(text for role, text in texts if role in ("system", "developer"))
    question, earlier = question_of(said, limits, "messages")
    return ChatRequest(
        parsed,
        question,
        earlier,
        system,
        parsed.parallelsearch or AskOptions(),
        parsed.max_completion_tokens or parsed.max_tokens,
        wants_usage=parsed.stream_options is not None and parsed.stream_options.include_usage,
    )


def _text_of(message: ChatMessage, number: int) -> str:
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    for part in message.content:
        if part.type not in _KNOWN_PARTS:
            raise RefusalError(422, f"messages.{number}.content: only text is understood, not {part.type[:40]!r}")
    return "\n".join(part.text or "" for part in message.content)


# ---- answers ---------------------------------------------------------------------------------------------------------


class ChatWire:
    """Writes one completion: whole, or in chunks as server-sent events."""

    def __init__(self, asked: ChatRequest) -> None:
        self._asked = asked
        self._head = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": asked.model,
        }
        self._chunk_head = "data: " + json.dumps({**self._head, "object": "chat.completion.chunk"})[:-1]
        self._thought_in: int | None = None

    def whole(self, answered: Answered) -> dict[str, Any]:
        reply = answered.reply
        message: dict[str, Any] = {
            "role": "assistant",
            "content": reply.content,
            "refusal": None,
            "reasoning_content": reply.reasoning,
        }
        if annotations := _annotations(reply.content, reply.citations):
            message["annotations"] = annotations
        message[EXTRA] = answered.summary
        choice = {"index": 0, "message": message, "finish_reason": reply.finish, "logprobs": None}
        return {**self._head, "choices": [choice], "usage": _usage(answered)}

    def opening(self) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def happened(self, events: Sequence[dict[str, Any]]) -> bytes:
        pieces = []
        for event in events:
            delta: dict[str, Any] = {}
            if event["type"] == "text" and event["part"] == "thought":
                is_new = self._thought_in is not None and self._thought_in != event["turn"]
                delta["reasoning_content"] = ("\n\n" if is_new else "") + event["text"]
                self._thought_in = event["turn"]
            if self._asked.options.events:
                pieces.append(self._chunk(delta, extra={"event": event}))
            elif delta:
                pieces.append(self._chunk(delta))
        return b"".join(pieces)

    def closing(self, answered: Answered) -> bytes:
        reply = answered.reply
        delta: dict[str, Any] = {"content": reply.content}
        if annotations := _annotations(reply.content, reply.citations):
            delta["annotations"] = annotations
        pieces = [self._chunk(delta), self._chunk({}, reply.finish, answered.summary)]
        if self._asked.wants_usage:
            usage = json.dumps(_usage(answered))
            pieces.append(f'{self._chunk_head},"choices":[],"usage":{usage}}}\n\n'.encode("ascii"))
        return b"".join([*pieces, _DONE])

    def failure(self, error: RefusalError) -> bytes:
        return f"data: {json.dumps(error_body(error.status, str(error), error.param))}\n\n".encode("ascii") + _DONE

    def _chunk(self, delta: dict[str, Any], finish: str | None = None, extra: dict[str, Any] | None = None) -> bytes:
        body = f',"choices":[{{"index":0,"delta":{json.dumps(delta)},"finish_reason":{json.dumps(finish)}}}]'
        beside = "" if extra is None else f',"{EXTRA}":{json.dumps(extra)}'
        return f"{self._chunk_head}{body}{beside}}}\n\n".encode("ascii")


_DONE = b"data: [DONE]\n\n"


def _usage(answered: Answered) -> dict[str, int]:
    usage = answered.usage
    return {
        "prompt_tokens": usage.num_given,
        "completion_tokens": usage.num_written,
        "total_tokens": usage.num_given + usage.num_written,
    }


def _annotations(content: str, citations: Sequence[Citation]) -> list[dict[str, Any]]:
    """OpenAI's form of a citation, for those with a web address: once for each place that names it, or for the whole answer
    where none does."""
    return [
        {
            "type": "url_citation",
            "url_citation": {"start_index": start, "end_index": end, "title": citation.title, "url": citation.url},
        }
        for citation, start, end in places_of(content, citations)
        if citation.url is not None
    ]

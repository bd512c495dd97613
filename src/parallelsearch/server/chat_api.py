"""The OpenAI wire shapes: a checked chat request, and completions, chunks, models and errors as their clients read them.

What OpenAI's format has no place for (searches, sources, times) stands in one extra field, `parallelsearch`, which their
clients pass through. Earlier turns of a conversation become a context block before the question. Nothing here runs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from parallelsearch import grammar
from parallelsearch.server.limits import RefusalError

EXTRA = "parallelsearch"
"""The extra field of requests, messages and chunks."""
SEQUENTIAL_SUFFIX = "-sequential"


_KNOWN_PARTS = ("text", "refusal")
# To JSON, and to a client in a language with one kind of number, 3.0 is a whole number.
_WHOLE = BeforeValidator(lambda value: int(value) if isinstance(value, float) and value.is_integer() else value)


class ContentPart(BaseModel):
    """A piece of a message; only text is understood."""

    type: Annotated[str, Field(json_schema_extra={"enum": list(_KNOWN_PARTS)})]
    text: str | None = None


class ChatMessage(BaseModel):
    """One message of the conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[ContentPart] | None = None


class AskOptions(BaseModel):
    """The `parallelsearch` field of a request. What is left out is the server's choice."""

    model_config = ConfigDict(extra="forbid", strict=True)

    sequential: Annotated[bool, Field(description="prompt for one search at a time")] = False
    k: Annotated[int, Field(ge=1, description="hits for each sub-query"), _WHOLE] | None = None
    max_turns: Annotated[int, Field(ge=1, description="turns that may search; one more must answer"), _WHOLE] | None = (
        None
    )
    timeout_s: Annotated[float | None, Field(gt=0, description="seconds until the best answer so far is given")] = None
    abstain: Annotated[bool | None, Field(description="say so instead of answering without evidence")] = None
    fresh: Annotated[bool, Field(description="ask the search backend itself, not the cache, to time it")] = False
    events: Annotated[bool, Field(description="stream what happens beside the answer")] = True


class StreamOptions(BaseModel):
    """What a stream holds beside the answer."""

    model_config = ConfigDict(strict=True)

    include_usage: Annotated[bool, Field(description="end with a chunk that counts tokens")] = False


class ChatBody(BaseModel):
    """The body of `POST /v1/chat/completions`. Fields that change nothing here are accepted and ignored."""

    model_config = ConfigDict(extra="allow", strict=True)

    model: str
    messages: list[ChatMessage] = Field(min_length=1)
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: Annotated[float | None, Field(ge=0, le=2)] = None
    top_p: Annotated[float | None, Field(gt=0, le=1)] = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63), _WHOLE] | None = None
    max_tokens: Annotated[int, Field(ge=1, description="of one turn of the model"), _WHOLE] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, description="of one turn of the model"), _WHOLE] | None = None
    parallelsearch: AskOptions | None = None


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
class ChatLimits:
    """How much of a conversation is taken, and how much of it the model sees."""

    max_messages: int = 200
    max_question_chars: int = 4_000
    max_context_pairs: int = 4
    max_context_chars: int = 300
    """Of each earlier question and of each earlier answer."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A checked request."""

    body: ChatBody
    question: str
    context: str
    options: AskOptions
    ignored: list[str] = field(default_factory=list)

    @property
    def wants_usage(self) -> bool:
        return self.body.stream_options is not None and self.body.stream_options.include_usage


def read_chat_request(body: bytes, limits: ChatLimits) -> ChatRequest:
    """The request in a body, or `RefusalError` 400 or 422."""
    try:
        parsed = ChatBody.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if first["type"] == "json_invalid":
            raise RefusalError(
                400, 'the body is not JSON; send {"model": "...", "messages": [{"role": "user", "content": "..."}]}'
            ) from None
        where = ".".join(str(part) for part in first["loc"])
        raise RefusalError(422, f"{where or 'the body'}: {first['msg']}") from None
    for name, harmless in CANNOT.items():
        asked = (parsed.model_extra or {}).get(name)
        if not any(type(asked) is type(value) and asked == value for value in harmless):  # 1 == True, in Python
            raise RefusalError(422, f"{name}: this server does not do that; leave it out")
    if len(parsed.messages) > limits.max_messages:
        raise RefusalError(422, f"messages: there are {len(parsed.messages)}, the limit is {limits.max_messages}")
    ignored = ["system message"] if any(m.role in ("system", "developer") for m in parsed.messages) else []
    said = [
        (m.role, _text_of(m, number))
        for number, m in enumerate(parsed.messages)
        if m.role not in ("system", "developer")
    ]
    if not said or said[-1][0] != "user":
        raise RefusalError(422, "messages: the last one must be the user's question")
    question = said[-1][1]
    if not question.strip():
        raise RefusalError(422, "messages: the question is empty")
    if len(question) > limits.max_question_chars:
        raise RefusalError(
            422, f"messages: the question has {len(question)} characters, the limit is {limits.max_question_chars}"
        )
    context = context_text(pairs_of(said[:-1]), limits)
    return ChatRequest(parsed, question, context, parsed.parallelsearch or AskOptions(), ignored)


def _text_of(message: ChatMessage, number: int) -> str:
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    for part in message.content:
        if part.type not in _KNOWN_PARTS:
            raise RefusalError(422, f"messages.{number}.content: only text is understood, not {part.type[:40]!r}")
    return "\n".join(part.text or "" for part in message.content)


# ---- conversations ---------------------------------------------------------------------------------------------------


def pairs_of(said: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Earlier questions, each with what was answered (nothing, if it was not)."""
    pairs: list[tuple[str, str]] = []
    for role, text in said:
        if role == "user":
            pairs.append((text, ""))
        elif pairs:
            question, answer = pairs[-1]
            pairs[-1] = (question, f"{answer} {text}".strip())
    return pairs


def context_text(pairs: Sequence[tuple[str, str]], limits: ChatLimits) -> str:
    """The latest pairs, shortened and harmless, one line each; empty where there are none."""
    recent = [pair for pair in pairs if pair[0].strip()][-limits.max_context_pairs :]
    if not recent:
        return ""
    lines = ["Asked and answered before, for context only:"]
    for question, answer in recent:
        lines.append(f"- {_short(question, limits)} -> {_short(answer, limits) or 'no answer'}")
    return "\n".join(lines) + "\n"


def _short(text: str, limits: ChatLimits) -> str:
    line = grammar.defuse(" ".join(text.split()))
    return line if len(line) <= limits.max_context_chars else line[: limits.max_context_chars].rstrip() + " ..."


# ---- answers ---------------------------------------------------------------------------------------------------------


def completion(
    id: str, model: str, created: int, message: dict[str, Any], finish: str, usage: dict[str, int]
) -> dict[str, Any]:
    """The body of an answer that is not streamed."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish, "logprobs": None}
    return {
        "id": id,
        "object": "chat.completion",
        "created": created,
        "model": model,
        "choices": [choice],
        "usage": usage,
    }


class ChunkWriter:
    """Writes the chunks of one streamed answer as server-sent events."""

    def __init__(self, id: str, model: str, created: int) -> None:
        head = {"id": id, "object": "chat.completion.chunk", "created": created, "model": model}
        self._head = "data: " + json.dumps(head)[:-1]

    def chunk(self, delta: dict[str, Any], finish: str | None = None, extra: dict[str, Any] | None = None) -> bytes:
        body = f',"choices":[{{"index":0,"delta":{json.dumps(delta)},"finish_reason":{json.dumps(finish)}}}]'
        beside = "" if extra is None else f',"{EXTRA}":{json.dumps(extra)}'
        return f"{self._head}{body}{beside}}}\n\n".encode("ascii")

    def usage(self, usage: dict[str, int]) -> bytes:
        return f'{self._head},"choices":[],"usage":{json.dumps(usage)}}}\n\n'.encode("ascii")

    @staticmethod
    def error(status: int, message: str) -> bytes:
        return f"data: {json.dumps(error_body(status, message))}\n\n".encode("ascii")

    DONE = b"data: [DONE]\n\n"
    KEEP_ALIVE = b": still working\n\n"


def error_body(status: int, message: str) -> dict[str, Any]:
    """An error as OpenAI's clients read it."""
    kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


def model_object(id: str, created: int) -> dict[str, Any]:
    return {"id": id, "object": "model", "created": created, "owned_by": "parallelsearch"}


def url_annotations(content: str, citations: Sequence[Any]) -> list[dict[str, Any]]:
    """OpenAI's form of a citation, for those with a web address; each stands for the whole answer."""
    return [
        {
            "type": "url_citation",
            "url_citation": {
                "start_index": 0,
                "end_index": len(content),
                "title": citation.title,
                "url": citation.url,
            },
        }
        for citation in citations
        if citation.url is not None
    ]

"""What goes to Anthropic's Messages API and what comes back for one turn: blocks of content, whole or streamed.

`messages_of` turns segments into messages: the calls of a turn stand in the assistant's message, and all their results in
the one user message after it. `MessageTurn` takes each event of a stream, or the whole message, and builds one `Generation`;
text, stop strings and early dispatch are those of every other server's turn. Events and blocks of kinds that are not known
are skipped, as the API asks its clients to.

Thinking has to go back as it came, signatures and order included, or a turn with calls is refused. So a turn that thought
keeps its blocks, in `Generation.raw` and from there in the record.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from parallelsearch.dialect import Tool
from parallelsearch.errors import PolicyError, TransientError
from parallelsearch.policy.base import Generation, is_count
from parallelsearch.policy.openai_wire import CallSoFar, Turn, short, string_of
from parallelsearch.trajectory import Segment

EAGER = "eager_input_streaming"
"""Asks for a call's arguments as they are written; without it they are held back until a value is whole."""
_THINKING = frozenset({"thinking", "redacted_thinking"})
_BLOCK_CHARS = 64  # what a block counts for, before anything is written into it
_BLOCKS = frozenset({"text", "tool_use", *_THINKING})
_USAGE = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
_PASSING = frozenset({"overloaded_error", "api_error", "rate_limit_error", "timeout_error"})
_FINISH = {"tool_use": "eos", "max_tokens": "length", "model_context_window_exceeded": "length"}
"""Its reasons in the words of `Turn`; every other one that is no failure is a plain stop."""


# ---- the request -----------------------------------------------------------------------------------------------------


def tools_of(tools: Sequence[Tool], is_eager: bool) -> list[dict[str, Any]]:
    eager = {EAGER: True} if is_eager else {}
    return [
        {"name": tool.name, "description": tool.description, "input_schema": dict(tool.parameters), **eager}
        for tool in tools
    ]


def messages_of(segments: Sequence[Segment]) -> list[dict[str, Any]]:
    """The conversation. Blocks of one side that follow each other are one message; one without any is left out, since the API
    takes no empty ones."""
    messages: list[dict[str, Any]] = []
    for segment in segments:
        is_model = segment.author == "model"
        blocks = _said(segment) if is_model else _told(segment)
        role = "assistant" if is_model else "user"
        if blocks and messages and messages[-1]["role"] == role:
            messages[-1]["content"] += blocks
        elif blocks:
            messages.append({"role": role, "content": blocks})
    return messages


def _said(segment: Segment) -> list[dict[str, Any]]:
    if segment.raw is not None:
        return list(segment.raw)
    calls = [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": _input_of(call.arguments)}
        for call in segment.calls or ()
    ]
    return [*_text(segment.text), *calls]


def _told(segment: Segment) -> list[dict[str, Any]]:
    if segment.call_id is None:
        return _text(segment.text)
    result: dict[str, Any] = {"type": "tool_result", "tool_use_id": segment.call_id, "content": segment.text}
    return [{**result, "is_error": True} if segment.author == "notice" else result]


def _text(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}] if text.strip() else []


def _input_of(arguments: str) -> dict[str, Any]:
    """The arguments of a call as the object that the API wants, even where the model wrote none."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"INVALID_JSON": arguments}


# ---- the answer ------------------------------------------------------------------------------------------------------


class MessageTurn(Turn):
    """One turn, as far as the server has sent it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._blocks: dict[int, dict[str, Any]] = {}
        self._pieces: dict[int, list[str]] = {}
        self._last_kind = ""
        self._counts: dict[str, int] = {}

    @property
    def has_thought(self) -> bool:
        return any(block["type"] in _THINKING for block in self._blocks.values())

    def text_alone(self, payload: Any) -> str | None:
        """None: a piece of text belongs to a block, and has to be fed."""
        return None

    def feed(self, payload: object) -> None:
        """One event of a stream, or the whole answer."""
        if not isinstance(payload, dict) or not isinstance(payload.get("type"), str):
            raise PolicyError(
                f"the server sent {short(payload)} where an event or a message of the Messages API belongs"
            )
        kind = payload["type"]
        if kind == "content_block_delta":
            self._add(_index(payload), _part(payload, "delta"))
        elif kind == "content_block_start":
            self._start(_index(payload), _part(payload, "content_block"))
        elif kind == "content_block_stop":
            self._close(_index(payload))
        elif kind == "message_start":
            self._count(_part(payload, "message").get("usage"))
        elif kind == "message_delta":
            self._count(payload.get("usage"))
            self._end(_part(payload, "delta"))
        elif kind == "message":
            content = payload.get("content")
            if not isinstance(content, list):
                raise PolicyError(f"the server's message has no 'content': {short(payload)}")
            for number, block in enumerate(content):
                self._start(number, block if isinstance(block, dict) else {})
                self._close(number)
            self._count(payload.get("usage"))
            self._end(payload)
        elif kind == "error":
            raise _reported_error(payload.get("error"))

    def _start(self, number: int, block: dict[str, Any]) -> None:
        kind = block.get("type")
        if kind not in _BLOCKS:
            return
        self._count_chars(_BLOCK_CHARS)
        self._blocks[number] = dict(block)
        self._pieces.pop(number, None)
        if kind == "text":
            # What stands on both sides of a call or a thought is two paragraphs, not one word.
            if self._with_calls and self._text and self._last_kind != "text":
                self._add_content("\n")
            self._pieces[number] = []
            self._add(number, {"type": "text_delta", "text": block.get("text")})
        elif kind == "tool_use":
            self._calls[number] = CallSoFar(string_of(block, "id"), string_of(block, "name"))
        elif kind == "thinking":
            self._pieces[number] = []
            self._add(number, {"type": "thinking_delta", "thinking": block.get("thinking")})
        self._last_kind = kind

    def _add(self, number: int, delta: dict[str, Any]) -> None:
        kind, block = delta.get("type"), self._blocks.get(number)
        if block is None:
            return
        if kind == "text_delta" and block["type"] == "text":
            piece = string_of(delta, "text")
            self._pieces[number].append(piece)
            self._add_content(piece)
        elif kind == "input_json_delta" and block["type"] == "tool_use":
            piece = string_of(delta, "partial_json")
            self._count_chars(len(piece))
            self._calls[number].arguments.append(piece)
            self._pass_on(number, self._calls[number].name, piece)
        elif kind == "thinking_delta" and block["type"] == "thinking":
            piece = string_of(delta, "thinking")
            self._count_chars(len(piece))
            self._pieces[number].append(piece)
            if self._with_calls:
                self._reasoning.append(piece)
            else:
                self._thought.add(piece)
        elif kind == "signature_delta" and block["type"] == "thinking":
            block["signature"] = string_of(delta, "signature")

    def _close(self, number: int) -> None:
        """A call whose arguments did not come in pieces has them in its block."""
        call = self._calls.get(number)
        if call is not None and not any(call.arguments):
            text = json.dumps(self._blocks[number].get("input") or {}, ensure_ascii=False)
            call.arguments.append(text)
            self._pass_on(number, call.name, text)

    def _count(self, usage: object) -> None:
        """Counts are running totals: a later one takes the place of an earlier one."""
        if isinstance(usage, dict):
            self._counts |= {name: usage[name] for name in _USAGE if is_count(usage.get(name))}
        if "output_tokens" not in self._counts:
            return
        asked = sum(self._counts.get(name, 0) for name in _USAGE[:3])
        said = self._num_tokens = self._counts["output_tokens"]
        cached = {name: self._counts[name] for name in _USAGE[1:3] if name in self._counts}
        self._usage = {"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said, **cached}

    def _end(self, message: dict[str, Any]) -> None:
        reason = message.get("stop_reason")
        if reason is None:
            return
        if reason == "refusal":
            details = message.get("stop_details")
            told = details if isinstance(details, dict) else {}
            why = ": ".join(str(told[key]) for key in ("category", "explanation") if told.get(key))
            raise PolicyError(
                f"the model refused to answer{f' ({why})' if why else ''}; word the question in another way, or "
                "ask another model"
            )
        if reason == "pause_turn":
            raise PolicyError(
                "the server paused the turn to use a tool of its own; leave such tools out of extra_body, this policy brings "
                "its own search"
            )
        if reason == "tool_use" and not self._with_calls:
            raise PolicyError("the model called a tool and was given none; leave tools out of extra_body")
        self._finish_reason = _FINISH.get(str(reason), "stop")
        self._matched = message.get("stop_sequence")
        self.is_whole = True

    def generation(self, count_tokens: Callable[[str], int]) -> Generation:
        """The turn, once the server has sent all of it."""
        generation = super().generation(count_tokens)
        generation.raw = self._raw()
        return generation

    def _count_thought(self, num_tokens: int, count_tokens: Callable[[str], int]) -> int:
        """What is shown of a thought may be a summary: it is what is left of the tokens."""
        if not (self._with_calls and self.has_thought):
            return 0
        calls = (part for call in self._calls.values() for part in (call.name, *call.arguments))
        return max(0, num_tokens - count_tokens("".join([self._text, *calls])))

    def _raw(self) -> list[dict[str, Any]] | None:
        """The blocks as they go back, where there is thinking among them. Thinking that was cut off has no signature and
        cannot go back, nor can thinking after which nothing was said."""
        if not (self._with_calls and self.has_thought):
            return None
        blocks: list[dict[str, Any]] = []
        for number, block in sorted(self._blocks.items()):
            if number in self._pieces:
                block = {**block, block["type"]: "".join(self._pieces[number])}
            if block["type"] == "tool_use":
                blocks.append({**block, "input": _input_of("".join(self._calls[number].arguments))})
            elif block["type"] == "text":
                blocks += [block] if block["text"].strip() else []
            elif self._finish_reason != "length" or block.get("signature") or block.get("data"):
                blocks.append(block)
        while blocks and blocks[-1]["type"] in _THINKING:
            blocks.pop()
        return blocks if any(block["type"] in _THINKING for block in blocks) else None


def _index(event: dict[str, Any]) -> int:
    number = event.get("index")
    if not isinstance(number, int):
        raise PolicyError(f"the server sent a piece of content without its number: {short(event)}")
    return number


def _part(event: dict[str, Any], name: str) -> dict[str, Any]:
    part = event.get(name)
    if not isinstance(part, dict):
        raise PolicyError(f"the server sent an event without its '{name}': {short(event)}")
    return part


def _reported_error(error: object) -> PolicyError | TransientError:
    """An error that came with status 200, inside the stream."""
    record = error if isinstance(error, dict) else {}
    message = f"the server reported an error: {short(record.get('message', error))}"
    return TransientError(message) if record.get("type") in _PASSING else PolicyError(message)

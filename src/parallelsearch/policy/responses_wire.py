"""What goes to OpenAI's Responses API and what comes back for one turn: items, whole or streamed.

OpenAI's reasoning models call functions here and refuse to at the chat API. `input_of` turns segments into items, and
`ResponseTurn` takes each event of a stream, or the whole response, and builds one `Generation`; text, stop strings and early
dispatch are those of every other server's turn. Events and items of kinds that are not known are skipped.

Nothing is left with the server (`store` is false), so that a thought has to go back as it came, encrypted: a turn that has
one keeps its items, in `Generation.raw` and from there in the record. Their ids stay out: a server would look them up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from parallelsearch.dialect import Tool
from parallelsearch.errors import PolicyError, TransientError
from parallelsearch.policy.base import Generation, is_count
from parallelsearch.policy.openai_wire import CallSoFar, Turn, short, words_of
from parallelsearch.trajectory import Segment

KEPT_THOUGHTS = "reasoning.encrypted_content"
"""What a response is asked to include, to be sent back."""
_ITEMS = frozenset({"message", "function_call", "reasoning"})
_ITEM_CHARS = 64  # what an item counts for, before anything is written into it
_PASSING = frozenset(
    {
        "server_error",
        "rate_limit_exceeded",
        "rate_limit_error",
        "too_many_requests",
        "server_is_overloaded",
        "slow_down",
    }
)
_OVER = frozenset({"response.completed", "response.incomplete", "response.failed"})
_LEFT_OUT = ("id", "status", "content")
"""Of a thought that goes back: its id would be looked up, and its plain words may not stand there."""


# ---- the request -----------------------------------------------------------------------------------------------------


def tools_of(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    return [{"type": "function", **tool.schema()["function"], "strict": False} for tool in tools]


def input_of(segments: Sequence[Segment]) -> list[dict[str, Any]]:
    """The conversation, item by item."""
    items: list[dict[str, Any]] = []
    for segment in segments:
        if segment.author == "model":
            items += _said(segment)
        elif segment.call_id is not None:
            items.append({"type": "function_call_output", "call_id": segment.call_id, "output": segment.text})
        else:
            items.append({"role": "user", "content": segment.text})
    return items


def _said(segment: Segment) -> list[dict[str, Any]]:
    if segment.raw is not None:
        return list(segment.raw)
    said = [{"role": "assistant", "content": segment.text}] if segment.text else []
    return said + [_call(call.id, call.name, call.arguments) for call in segment.calls or ()]


def _call(id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": id, "name": name, "arguments": arguments}


# ---- the answer ------------------------------------------------------------------------------------------------------


class ResponseTurn(Turn):
    """One turn, as far as the server has sent it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._items: dict[int, dict[str, Any]] = {}
        self._texts: dict[int, list[str]] = {}
        self._told: set[int] = set()  # items of which something came in pieces, or that were read whole
        self._refusal = ""

    def text_alone(self, payload: Any) -> str | None:
        """None: a piece of text belongs to an item, and has to be fed."""
        return None

    def feed(self, payload: object) -> None:
        """One event of a stream, or the whole response."""
        if not isinstance(payload, dict):
            raise PolicyError(f"the server sent {short(payload)} where an event or a response belongs")
        kind = payload.get("type")
        if kind is None and payload.get("object") == "response":
            self._end(payload)
        elif not isinstance(kind, str):
            if payload.get("error"):
                raise _reported_error(payload["error"])
            raise PolicyError(f"the server sent {short(payload)} where an event or a response belongs")
        elif kind == "response.output_item.added":
            self._start(_index(payload), payload.get("item"))
        elif kind == "response.output_text.delta":
            self._add_text(_index(payload), _string(payload, "delta"))
        elif kind == "response.function_call_arguments.delta":
            self._add_arguments(_index(payload), _string(payload, "delta"))
        elif kind in ("response.reasoning_summary_text.delta", "response.reasoning_text.delta"):
            self._told.add(_index(payload))
            self._add_thought(_string(payload, "delta"))
        elif kind == "response.output_item.done":
            self._close(_index(payload), payload.get("item"))
        elif kind in _OVER:
            self._end(payload.get("response"))
        elif kind == "response.refusal.delta":
            self._told.add(_index(payload))
            self._refusal += _string(payload, "delta")
        elif kind == "error":  # as it is documented, or, as it also comes, in an object of its own
            raise _reported_error(payload.get("error") or payload)

    def _start(self, number: int, item: object) -> None:
        if not isinstance(item, dict) or item.get("type") not in _ITEMS or number in self._items:
            return
        self._count_chars(_ITEM_CHARS)
        self._items[number] = item
        if item["type"] == "function_call":
            self._calls[number] = CallSoFar(_string(item, "call_id"), _string(item, "name"))
        elif item["type"] == "message":
            if self._with_calls and self._text:  # two messages are two paragraphs, not one word
                self._add_content("\n")
            self._texts[number] = []

    def _add_text(self, number: int, piece: str) -> None:
        if number in self._texts:
            self._told.add(number)
            self._texts[number].append(piece)
            self._add_content(piece)

    def _add_arguments(self, number: int, piece: str) -> None:
        if (call := self._calls.get(number)) is not None:
            self._told.add(number)
            self._count_chars(len(piece))
            call.arguments.append(piece)
            self._pass_on(number, call.name, piece)

    def _close(self, number: int, item: object) -> None:
        """The whole item. What came of it in pieces is not taken twice."""
        self._start(number, item)
        if not isinstance(item, dict) or number not in self._items or item.get("type") != self._items[number]["type"]:
            return
        self._items[number] = item
        if number in self._told:
            return
        self._told.add(number)
        if item["type"] == "function_call":
            self._add_arguments(number, _string(item, "arguments"))
        elif item["type"] == "reasoning":
            self._add_thought(words_of(item.get("summary")) or words_of(item.get("content")))
        for part in _parts(item) if item["type"] == "message" else ():
            self._refusal += words_of(part.get("refusal"))
            if part.get("type") == "output_text":
                self._add_text(number, _string(part, "text"))

    def _end(self, response: object) -> None:
        if not isinstance(response, dict):
            raise PolicyError(f"the server sent {short(response)} where a response belongs")
        if response.get("error"):
            raise _reported_error(response["error"])
        self._count(response.get("usage"))
        self._close_all(response.get("output"))
        details = response.get("incomplete_details")
        why = details.get("reason") if isinstance(details, dict) else None
        if response.get("status") == "incomplete" or why:
            self._finish_reason = "content_filter" if why == "content_filter" else "length"
        elif response.get("status") in ("failed", "cancelled"):
            raise TransientError(f"the server ended the turn with '{response['status']}'")
        else:
            self._finish_reason = self._finish_reason or "stop"
        self.is_whole = True

    def _close_all(self, output: object) -> None:
        """The items once more, after a stream. Gateways number them in another way here than there: a call is known by its
        id, and all else by being the next of its kind."""
        calls = {call.id: number for number, call in self._calls.items()}
        others = {kind: [n for n, one in sorted(self._items.items()) if one["type"] == kind] for kind in _ITEMS}
        new = max(self._items, default=-1) + 1
        for item in output if isinstance(output, list) else ():
            if self.ran_on or not isinstance(item, dict) or item.get("type") not in _ITEMS:
                continue
            if item["type"] == "function_call":
                number = calls.get(_string(item, "call_id"), new)
            else:
                number = others[item["type"]].pop(0) if others[item["type"]] else new
            self._close(number, item)
            new += number == new

    def _count(self, usage: object) -> None:
        if not isinstance(usage, dict) or not is_count(usage.get("output_tokens")):
            return
        said: int = usage["output_tokens"]
        told: Any = usage.get("input_tokens")
        asked: int = told if is_count(told) else 0
        self._num_tokens = said
        self._usage = {"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said}
        details = usage.get("output_tokens_details")
        hidden: Any = details.get("reasoning_tokens") if isinstance(details, dict) else None
        self._num_hidden = hidden if is_count(hidden) else 0

    def generation(self, count_tokens: Callable[[str], int]) -> Generation:
        """The turn, once the server has sent all of it."""
        if self._refusal and not self._content and not self._calls:
            raise PolicyError(
                f"the model refused to answer ({short(self._refusal)}); word the question in another way, or ask another "
                "model"
            )
        generation = super().generation(count_tokens)
        generation.raw = self._raw(generation)
        return generation

    def _raw(self, generation: Generation) -> list[dict[str, Any]] | None:
        """The items as they go back, where there is a thought among them, or a message whose phase a model wants to know
        again. A thought after which nothing was said cannot."""
        if not self._with_calls:
            return None
        calls = dict(zip(sorted(self._calls), generation.calls or (), strict=True))
        items: list[dict[str, Any]] = []
        for number, item in sorted(self._items.items()):
            if item["type"] == "function_call":
                items.append(_call(calls[number].id, calls[number].name, calls[number].arguments))
            elif item["type"] == "message":
                text = "".join(self._texts[number])
                phase = {"phase": item["phase"]} if item.get("phase") else {}  # what it was said for
                items += [{"role": "assistant", "content": text, **phase}] if text.strip() else []
            elif item.get("encrypted_content"):
                kept = {key: value for key, value in item.items() if key not in _LEFT_OUT}
                items.append({**kept, "summary": kept.get("summary") or []})
        while items and items[-1].get("type") == "reasoning":
            items.pop()
        return items if any(item.get("type") == "reasoning" or "phase" in item for item in items) else None


def _index(event: dict[str, Any]) -> int:
    number = event.get("output_index")
    if not isinstance(number, int):
        raise PolicyError(f"the server sent a piece of an item without its number: {short(event)}")
    return number


def _parts(item: dict[str, Any]) -> list[dict[str, Any]]:
    content = item.get("content")
    return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []


def _string(record: dict[str, Any], name: str) -> str:
    value = record.get(name)
    if value is not None and not isinstance(value, str):
        raise PolicyError(f"the server sent {short(value)} where text belongs")
    return value or ""


def _reported_error(error: object) -> PolicyError | TransientError:
    """An error that came with status 200, inside the answer."""
    record = error if isinstance(error, dict) else {}
    message = f"the server reported an error: {short(record.get('message') or error)}"
    code = str(record.get("code") or record.get("type"))
    is_passing = code in _PASSING or re.fullmatch(r"429|5\d\d", code) is not None  # vLLM sends a number
    return TransientError(message) if is_passing else PolicyError(message)

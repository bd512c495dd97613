"""`/v1/responses` on the wire: a checked request, and responses and events as OpenAI's clients read them.

A thought is a `reasoning` item with its text as the summary, a sub-query a `file_search_call` with its hits as results (so
those of one turn stand side by side), the answer a message whose citations are annotations. What the format has no place
for stands in the extra field. A stream opens and closes the same items while things happen; the answer comes as one delta,
once it is sure. Nothing is stored, and nothing here runs.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, Discriminator, Field, Tag

from parallelsearch.grounding import Citation, places_of
from parallelsearch.server.answering import Answered, Reply
from parallelsearch.server.asking import (
    EXTRA,
    FIRST_ERROR,
    WHOLE,
    Asked,
    AskOptions,
    ChatLimits,
    SamplingFields,
    question_of,
    read_body,
    refuse_what_is_not_done,
)
from parallelsearch.server.limits import RefusalError
from parallelsearch.server.live_events import hit_object

Item = dict[str, Any]
LeftOut = Literal[
    "reasoning",
    "file_search_call",
    "web_search_call",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "mcp_call",
]
_TEXT_PARTS = ("input_text", "output_text", "refusal")
_NOT_STORED = "nothing is stored here"

# ---- requests --------------------------------------------------------------------------------------------------------


def _only(known: Sequence[str], what: str) -> BeforeValidator:
    def check(value: Any) -> Any:
        if isinstance(value, str) and value not in known:
            raise ValueError(f"{what}; leave {value[:40]!r} out")
        return value

    return BeforeValidator(check)


class InputPart(BaseModel):
    """A piece of a message; only text is understood."""

    type: Annotated[
        str, _only(_TEXT_PARTS, "only text is understood"), Field(json_schema_extra={"enum": list(_TEXT_PARTS)})
    ]
    text: str | None = None
    refusal: str | None = None


class InputMessage(BaseModel):
    """One message of the conversation: typed in, or an earlier response's own."""

    type: Annotated[
        str,
        _only(("message",), f"only messages are read, and {_NOT_STORED}"),
        Field(json_schema_extra={"enum": ["message"]}),
    ] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[InputPart], FIRST_ERROR]


class OtherItem(BaseModel):
    """Another item of an earlier response, of this server or of an agent with tools: it is taken, and the model is not shown
    it."""

    type: LeftOut


def _kind_of(item: Any) -> str:
    return "Item" if isinstance(item, dict) and item.get("type") in get_args(LeftOut) else "Message"


InputItem = Annotated[
    Annotated[InputMessage, Tag("Message")] | Annotated[OtherItem, Tag("Item")], Discriminator(_kind_of)
]
Includable = Literal[
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "reasoning.encrypted_content",
]


class ResponsesBody(SamplingFields):
    """The body of `POST /v1/responses`. Fields that change nothing here are accepted and ignored."""

    input: str | Annotated[list[InputItem], Field(min_length=1), FIRST_ERROR]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1, description="of one turn of the model"), WHOLE] | None = None
    metadata: dict[str, str] | None = None
    include: Annotated[list[Includable], FIRST_ERROR] | None = None


CANNOT: dict[str, tuple[Any, ...]] = {
    # What would change the meaning of the answer and is not done here, with the values that ask for nothing.
    "previous_response_id": (None,),
    "conversation": (None,),
    "store": (None, False),
    "background": (None, False),
    "prompt": (None,),
    "tools": (None, []),
    "tool_choice": (None, "auto", "none"),
    "max_tool_calls": (None,),
    "parallel_tool_calls": (None, True),
    "text": (None, {}, {"format": {"type": "text"}}),
    "top_logprobs": (None, 0),
}
_HINTS = {
    "previous_response_id": "send the earlier messages in input",
    "conversation": "send the earlier messages in input",
    "tools": "let it search: it does so by itself",
    "max_tool_calls": f"say {EXTRA}.max_turns",
    "parallel_tool_calls": f"ask for the model whose name ends in -sequential, or say {EXTRA}.dialect",
}


@dataclass(frozen=True, slots=True)
class ResponsesRequest(Asked):
    """A checked request for a response, with what is said back."""

    instructions: str | None = None
    metadata: dict[str, str] | None = None


def read_responses_request(body: bytes, limits: ChatLimits) -> ResponsesRequest:
    """The request in a body, or `RefusalError` 400 or 422."""
    parsed = read_body(ResponsesBody, body, '{"model": "...", "input": "..."}')
    extra = parsed.model_extra or {}
    refuse_what_is_not_done(extra, CANNOT, _HINTS)
    given = [InputMessage(role="user", content=parsed.input)] if isinstance(parsed.input, str) else parsed.input
    if len(given) > limits.max_messages:
        raise RefusalError(422, f"input: there are {len(given)} items, the limit is {limits.max_messages}")
    messages = [item for item in given if isinstance(item, InputMessage)]
    said = [(item.role, _text_of(item)) for item in messages if item.role not in ("system", "developer")]
    told = [_text_of(item) for item in messages if item.role in ("system", "developer")]
    question, earlier = question_of(said, limits, "input")
    ignored = ["reasoning"] if extra.get("reasoning") else []
    return ResponsesRequest(
        parsed,
        question,
        earlier,
        "\n".join(filter(None, (parsed.instructions, *told))),
        parsed.parallelsearch or AskOptions(),
        parsed.max_output_tokens,
        ignored=ignored,
        instructions=parsed.instructions,
        metadata=parsed.metadata,
    )


def _text_of(message: InputMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    return "\n".join(part.text or part.refusal or "" for part in message.content)


# ---- items -----------------------------------------------------------------------------------------------------------


def reasoning_item(id: str, thought: str) -> Item:
    return {
        "id": id,
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": thought}],
        "status": "completed",
    }


def search_item(id: str, query: str, status: str, hits: Sequence[dict[str, Any]] | None) -> Item:
    """A sub-query. `hits` are as `hit_object` makes them."""
    results = None
    if hits is not None:
        results = [
            {
                "file_id": hit["id"],
                "filename": hit["title"],
                "text": hit["text"],
                "score": hit["score"],
                "attributes": {"rank": hit["rank"], **{name: hit[name] for name in ("url", "place") if hit[name]}},
            }
            for hit in hits
        ]
    return {"id": id, "type": "file_search_call", "queries": [query], "status": status, "results": results}


def message_item(id: str, status: str, content: list[Item]) -> Item:
    return {"id": id, "type": "message", "role": "assistant", "status": status, "content": content}


def text_part(text: str, annotations: list[Item]) -> Item:
    return {"type": "output_text", "text": text, "annotations": annotations, "logprobs": []}


def annotations_of(content: str, citations: Sequence[Citation]) -> list[Item]:
    """Each citation by its address where it has one of the web, else by the passage's id: once for each place that names it,
    or for the whole answer where none does."""
    return [
        {"type": "file_citation", "file_id": one.id, "filename": one.title, "index": end}
        if one.url is None
        else {"type": "url_citation", "start_index": start, "end_index": end, "title": one.title, "url": one.url}
        for one, start, end in places_of(content, citations)
    ]


# ---- answers ---------------------------------------------------------------------------------------------------------


class ResponsesWire:
    """Writes one response: whole, or as the events of a stream."""

    def __init__(self, asked: ResponsesRequest) -> None:
        self._asked = asked
        self._number, self._created = uuid.uuid4().hex, int(time.time())
        self._sequence = 0
        self._output: list[Item] = []
        self._thought: _Thought | None = None
        self._thought_turns: set[int] = set()
        self._searches: dict[tuple[int, str], int] = {}  # where in the output each open one stands

    def whole(self, answered: Answered) -> dict[str, Any]:
        for turn in answered.reply.trajectory.turns:
            if turn.thought:
                self._output.append(reasoning_item(self._id("rs"), turn.thought))
            for query in turn.queries:
                hits = [hit_object(hit, answered.max_hit_chars) for hit in query.hits]
                status = "completed" if query.error is None else "failed"
                self._output.append(search_item(self._id("fs"), query.text, status, hits))
        reply = answered.reply
        part = text_part(reply.content, annotations_of(reply.content, reply.citations))
        self._output.append(message_item(self._id("msg"), _status(reply), [part]))
        return self._response(_status(reply), answered)

    # ---- streams -----------------------------------------------------------------------------------------------------

    def opening(self) -> bytes:
        begun = self._response("in_progress")
        return self._event("response.created", response=begun) + self._event("response.in_progress", response=begun)

    def happened(self, events: Sequence[dict[str, Any]]) -> bytes:
        return b"".join(piece for event in events for piece in self._pieces(event))

    def _pieces(self, event: dict[str, Any]) -> list[bytes]:
        kind, turn = event["type"], event["turn"]
        if kind == "text" and event["part"] == "thought":
            return self._think(turn, event["text"])
        if kind == "text" and not event["text"].strip():
            return []
        pieces = self._end_thought()
        if kind == "query":
            pieces += self._search(turn, event["text"])
        elif kind == "result":
            status = "completed" if event["error"] is None else "failed"
            pieces += self._found((turn, event["text"]), status, event["hits"])
        elif kind in ("turn", "notice"):
            pieces += self._end_searches()
        return pieces

    def closing(self, answered: Answered) -> bytes:
        reply, status = answered.reply, _status(answered.reply)
        pieces = [*self._end_thought(), *self._end_searches()]
        for number, turn in enumerate(reply.trajectory.turns):
            if (
                turn.thought and number not in self._thought_turns
            ):  # its dialect did not tell it apart as it was written
                pieces += [*self._think(number, turn.thought), *self._end_thought()]
        pieces += self._message(reply, status)
        pieces.append(self._event(f"response.{status}", response=self._response(status, answered)))
        return b"".join(pieces)

    def failure(self, error: RefusalError) -> bytes:
        pieces = [*self._end_thought(), *self._end_searches()]
        response = self._response("failed") | {"error": {"code": "server_error", "message": str(error)}}
        return b"".join([*pieces, self._event("response.failed", response=response)])

    def _think(self, turn: int, text: str) -> list[bytes]:
        """A thought grows. Space at its ends is left out, as it is in the record."""
        if self._thought is not None and self._thought.turn != turn:
            return [*self._end_thought(), *self._think(turn, text)]
        if self._thought is None:
            if not (text := text.lstrip()):
                return []
            self._thought = _Thought(self._id("rs"), turn, len(self._output))
            self._thought_turns.add(turn)
            begun = {"id": self._thought.id, "type": "reasoning", "summary": [], "status": "in_progress"}
            pieces = [self._added(begun)]
            pieces.append(
                self._summary("response.reasoning_summary_part.added", part={"type": "summary_text", "text": ""})
            )
        else:
            pieces = []
        thought = self._thought
        whole = thought.text + thought.held + text
        delta = whole.rstrip()[len(thought.text) :]
        thought.held = whole[len(thought.text) + len(delta) :]
        thought.text += delta
        if delta:
            pieces.append(self._summary("response.reasoning_summary_text.delta", delta=delta))
        return pieces

    def _end_thought(self) -> list[bytes]:
        thought = self._thought
        if thought is None:
            return []
        item = reasoning_item(thought.id, thought.text)
        pieces = [
            self._summary("response.reasoning_summary_text.done", text=thought.text),
            self._summary("response.reasoning_summary_part.done", part=item["summary"][0]),
            self._done(thought.place, item),
        ]
        self._thought = None
        return pieces

    def _summary(self, kind: str, **fields: Any) -> bytes:
        thought = self._thought
        assert thought is not None
        return self._event(kind, item_id=thought.id, output_index=thought.place, summary_index=0, **fields)

    def _search(self, turn: int, query: str) -> list[bytes]:
        place, id = len(self._output), self._id("fs")
        self._searches[turn, query] = place
        pieces = [self._added(search_item(id, query, "in_progress", None))]
        for state in ("in_progress", "searching"):
            pieces.append(self._event(f"response.file_search_call.{state}", item_id=id, output_index=place))
        return pieces

    def _found(self, key: tuple[int, str], status: str, hits: Sequence[dict[str, Any]] | None) -> list[bytes]:
        place = self._searches.pop(key, None)
        if place is None:
            return []
        id = self._output[place]["id"]
        pieces = []
        if status == "completed":
            pieces.append(self._event("response.file_search_call.completed", item_id=id, output_index=place))
        return [*pieces, self._done(place, search_item(id, key[1], status, hits))]

    def _end_searches(self) -> list[bytes]:
        """Those that were begun and given up: the turn proved invalid, or the time was over."""
        return [piece for key in list(self._searches) for piece in self._found(key, "incomplete", None)]

    def _message(self, reply: Reply, status: str) -> list[bytes]:
        place, id = len(self._output), self._id("msg")
        annotations = annotations_of(reply.content, reply.citations)
        part = text_part(reply.content, annotations)
        at = {"item_id": id, "output_index": place, "content_index": 0}
        pieces = [
            self._added(message_item(id, "in_progress", [])),
            self._event("response.content_part.added", **at, part=text_part("", [])),
        ]
        if reply.content:
            pieces.append(self._event("response.output_text.delta", **at, delta=reply.content, logprobs=[]))
        pieces += [
            self._event("response.output_text.annotation.added", **at, annotation_index=number, annotation=one)
            for number, one in enumerate(annotations)
        ]
        return [
            *pieces,
            self._event("response.output_text.done", **at, text=reply.content, logprobs=[]),
            self._event("response.content_part.done", **at, part=part),
            self._done(place, message_item(id, status, [part])),
        ]

    # ---- pieces ------------------------------------------------------------------------------------------------------

    def _added(self, item: Item) -> bytes:
        self._output.append(item)
        return self._event("response.output_item.added", output_index=len(self._output) - 1, item=item)

    def _done(self, place: int, item: Item) -> bytes:
        self._output[place] = item
        return self._event("response.output_item.done", output_index=place, item=item)

    def _event(self, kind: str, **fields: Any) -> bytes:
        event = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return f"event: {kind}\ndata: {json.dumps(event)}\n\n".encode("ascii")

    def _id(self, kind: str) -> str:
        return f"{kind}_{self._number}_{len(self._output)}"

    def _response(self, status: str, answered: Answered | None = None) -> dict[str, Any]:
        asked = self._asked
        response: dict[str, Any] = {
            "id": f"resp_{self._number}",
            "object": "response",
            "created_at": self._created,
            "completed_at": None if answered is None else int(time.time()),
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": asked.model,
            "instructions": asked.instructions,
            "metadata": asked.metadata or {},
            "max_output_tokens": asked.max_turn_tokens,
            "temperature": asked.sampled.temperature,
            "top_p": asked.sampled.top_p,
            "output": list(self._output),
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "text": {"format": {"type": "text"}},
            "truncation": "disabled",
            "background": False,
            "store": False,
            "previous_response_id": None,
            "usage": None if answered is None else _usage(answered),
        }
        return response if answered is None else {**response, EXTRA: answered.summary}


@dataclass(slots=True)
class _Thought:
    """A thought being written. `held` is space that is left out if nothing follows it."""

    id: str
    turn: int
    place: int
    text: str = ""
    held: str = ""


def _status(reply: Reply) -> Literal["completed", "incomplete"]:
    return "completed" if reply.finish == "stop" else "incomplete"


def _usage(answered: Answered) -> dict[str, Any]:
    """Nothing is known of a cache: tokens that several turns read are counted once (`Usage`)."""
    usage = answered.usage
    return {
        "input_tokens": usage.num_given,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": usage.num_written,
        "output_tokens_details": {"reasoning_tokens": usage.num_thought},
        "total_tokens": usage.num_given + usage.num_written,
    }

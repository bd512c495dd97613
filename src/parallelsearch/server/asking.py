"""A question as it comes by an API: its options, what is taken of a conversation, and the checks all APIs share.

A system message, and earlier turns of a conversation where the question leans on them, become lines before the question.
What an API's format has no place for stands in one extra field, `parallelsearch`. Nothing here runs, and nothing here knows
an answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from parallelsearch.conversing.follow_ups import Pair
from parallelsearch.conversing.framing import ContextLimits
from parallelsearch.errors import nearest
from parallelsearch.server.chores import chore
from parallelsearch.server.limits import RefusalError
from parallelsearch.trajectory import Question

EXTRA = "parallelsearch"
"""The extra field of requests, answers and pieces of a stream."""
SEQUENTIAL = "sequential"
SEQUENTIAL_SUFFIX = f"-{SEQUENTIAL}"
"""A model of this name is the same one, asked for one search at a time."""

# To JSON, and to a client in a language with one kind of number, 3.0 is a whole number.
WHOLE = BeforeValidator(lambda value: int(value) if isinstance(value, float) and value.is_integer() else value)
# Of a list whose entries are all wrong, one error is told: to write down twenty thousand holds the server up.
FIRST_ERROR = Field(fail_fast=True)
Body = TypeVar("Body", bound=BaseModel)


class AskOptions(BaseModel):
    """The `parallelsearch` field of a request. What is left out is the server's choice."""

    model_config = ConfigDict(extra="forbid", strict=True)

    dialect: Annotated[
        str | None, Field(description="how the model is asked and read; sequential: one search at a time")
    ] = None
    k: Annotated[int, Field(ge=1, description="hits for each sub-query"), WHOLE] | None = None
    max_turns: Annotated[int, Field(ge=1, description="turns that may search; one more must answer"), WHOLE] | None = (
        None
    )
    timeout_s: Annotated[float | None, Field(gt=0, description="seconds until the best answer so far is given")] = None
    abstain: Annotated[bool | None, Field(description="say so instead of answering without evidence")] = None
    read: Annotated[
        bool | None,
        Field(description="let the second model read and answer, where the server has one; it does by default"),
    ] = None
    written: Annotated[
        bool | None,
        Field(description="a text with the numbers of its sources, in Markdown, in place of a short answer"),
    ] = None
    fresh: Annotated[bool, Field(description="ask the search backend itself, not the cache, to time it")] = False
    events: Annotated[bool, Field(description="stream what happens beside the answer")] = True


class SamplingFields(BaseModel):
    """What the bodies of all APIs share."""

    model_config = ConfigDict(extra="allow", strict=True)

    model: str
    stream: bool | None = False
    temperature: Annotated[float | None, Field(ge=0, le=2)] = None
    top_p: Annotated[float | None, Field(gt=0, le=1)] = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63), WHOLE] | None = None
    parallelsearch: AskOptions | None = None


@dataclass(frozen=True, slots=True)
class ChatLimits(ContextLimits):
    """How much of a conversation is taken, and how much of it the model sees."""

    max_messages: int = 200
    max_question_chars: int = 4_000


@dataclass(frozen=True, slots=True)
class Asked:
    """A checked request, whatever API it came by. `ignored` names what was taken and changes nothing."""

    sampled: SamplingFields
    question: str
    earlier: list[Pair]
    """What was asked and answered before."""
    system: str
    """What the system message, or several, tell the model."""
    options: AskOptions
    max_turn_tokens: int | None = None
    ignored: list[str] = field(default_factory=list)

    @property
    def model(self) -> str:
        return self.sampled.model

    @property
    def is_streamed(self) -> bool:
        return bool(self.sampled.stream)


# ---- checks ----------------------------------------------------------------------------------------------------------


def read_body(kind: type[Body], body: bytes, example: str) -> Body:
    """The body as `kind`, or `RefusalError` 400 or 422. The error told is the one that lies deepest: where a field takes
    several forms, that is the form that was meant."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        worst = max(error.errors(include_url=False), key=lambda one: len(one["loc"]))
        if worst["type"] == "json_invalid":
            raise RefusalError(400, f"the body is not JSON; send {example}") from None
        where = ".".join(str(part) for part in worst["loc"] if isinstance(part, int) or part.islower())
        why = worst["msg"].removeprefix("Value error, ")
        if worst["type"] == "extra_forbidden" and worst["loc"][:-1] == (EXTRA,):
            known, unknown = AskOptions.model_fields, str(worst["loc"][-1])[:80]
            where = f"{EXTRA}.{unknown}"
            why = f"there is no such option.{nearest(unknown, known)} There are: {', '.join(known)}"
        raise RefusalError(422, f"{where or 'the body'}: {why}", param=where or None) from None


_REASONS = {
    **dict.fromkeys(("tools", "functions"), "the agent searches by itself and cannot call tools of the caller"),
    **dict.fromkeys(
        ("response_format", "text"),
        "an answer is a short text with its sources beside it, and nothing here makes a model keep to a schema",
    ),
    **dict.fromkeys(
        ("logprobs", "top_logprobs"), "an answer comes out of several calls, so it has no probability to tell"
    ),
    "n": "one answer is given",
    "stop": "a turn ends at its own marks",
    "modalities": "answers are text",
}


def refuse_what_is_not_done(
    fields: Mapping[str, Any], cannot: Mapping[str, tuple[Any, ...]], hints: Mapping[str, str] | None = None
) -> None:
    """`RefusalError` 422 for a field that would change the meaning of the answer. `cannot` has the values that ask for
    nothing, `hints` what to do in its place."""
    for name, harmless in cannot.items():
        asked = fields.get(name)
        if not any(type(asked) is type(value) and asked == value for value in harmless):  # 1 == True, in Python
            hint, reason = (hints or {}).get(name), _REASONS.get(name, "this server does not do that")
            told = f"{name}: {reason}; leave it out" + (f", and {hint}" if hint else "")
            raise RefusalError(422, told, param=name)


def question_of(said: Sequence[Pair], limits: ChatLimits, name: str) -> tuple[str, list[Pair]]:
    """The question of a conversation, its last message, and what was asked and answered before; `name` is the field it came
    in."""
    if not said or said[-1][0] != "user":
        raise RefusalError(422, f"{name}: the last one must be the user's question")
    question = said[-1][1]
    if Question(question).is_empty:
        raise RefusalError(422, f"{name}: the question is empty")
    earlier = pairs_of(said[:-1])
    if len(question) > limits.max_question_chars and chore(question, earlier) is None:
        raise RefusalError(
            422, f"{name}: the question has {len(question)} characters, the limit is {limits.max_question_chars}"
        )
    return question, earlier


# ---- conversations ---------------------------------------------------------------------------------------------------


def pairs_of(said: Sequence[Pair]) -> list[Pair]:
    """Earlier questions, each with what was answered (nothing, if it was not)."""
    pairs: list[Pair] = []
    for role, text in said:
        if role == "user":
            pairs.append((text, ""))
        elif pairs:
            question, answer = pairs[-1]
            pairs[-1] = (question, f"{answer} {text}".strip())
    return pairs


# ---- what all APIs answer --------------------------------------------------------------------------------------------


def error_body(status: int, message: str, param: str | None = None) -> dict[str, Any]:
    """An error as OpenAI's clients read it; `param` is the field that is to blame. `code` is the status as a text: such is
    its type there, and in a stream there is no other place for it."""
    kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": str(status)}}


def model_object(id: str, created: int) -> dict[str, Any]:
    return {"id": id, "object": "model", "created": created, "owned_by": "parallelsearch"}

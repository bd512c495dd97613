"""The one record of what happened: a question, the segments of text in order, and the turns with their searches.

The rollout writes it; rewards, metrics, trainers and the viewer read it and nothing else. A segment keeps its token ids
as they were sampled; the loss mask is a property of the record. JSON Lines in and out; the reader names the line and the
field of a bad record and accepts files written by hand with only `question`, `golden_answers`, `kind` and `segments`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from parallelsearch import grammar
from parallelsearch.errors import DataError
from parallelsearch.retrieval.base import Hit

if TYPE_CHECKING:
    from pydantic import TypeAdapter

SCHEMA_VERSION = 1

Author = Literal["prompt", "model", "search", "notice"]
Kind = Literal["parallel", "sequential", "single", "mixed"]
Stop = Literal["answer", "max_turns", "max_tokens", "timeout", "error"]


@dataclass(slots=True)
class Question:
    """What a person asks. `kind` says how it splits, `type` is the data set's own word for it; both may be unknown."""

    question: str
    golden_answers: list[str] = field(default_factory=list)
    id: str = ""
    dataset: str | None = None
    type: str | None = None
    kind: Kind | None = None
    supporting_titles: list[str] | None = None
    metadata: dict[str, Any] | None = None


@dataclass(slots=True)
class Segment:
    """A stretch of text with one author. `restored` is the stop string a server had stripped: shown, never trained on."""

    author: Author
    text: str
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    restored: str | None = None


@dataclass(slots=True)
class Query:
    """One executed sub-query. Times are seconds since the rollout began."""

    text: str
    hits: list[Hit] = field(default_factory=list)
    error: str | None = None
    cached: bool = False
    start_s: float = 0.0
    end_s: float = 0.0


@dataclass(slots=True)
class Turn:
    """One call of the model and the searches it led to."""

    queries: list[Query] = field(default_factory=list)
    dropped_queries: list[str] = field(default_factory=list)
    finish: str | None = None
    num_tokens: int | None = None
    start_s: float = 0.0
    generate_s: float = 0.0
    problems: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Trajectory:
    """Everything that happened between a question and its answer."""

    question: str
    segments: list[Segment] = field(default_factory=list)
    golden_answers: list[str] = field(default_factory=list)
    id: str = ""
    dataset: str | None = None
    kind: Kind | None = None
    type: str | None = None
    group_id: str | None = None
    sample: int | None = None
    step: int | None = None
    turns: list[Turn] = field(default_factory=list)
    answer: str | None = None
    stop: Stop | None = None
    error: str | None = None
    num_llm_calls: int = 0
    num_searches: int = 0
    num_subqueries: int = 0
    elapsed_s: float | None = None
    rewards: dict[str, float] | None = None
    policy: dict[str, Any] | None = None
    sampling: dict[str, Any] | None = None
    search: dict[str, Any] | None = None
    limits: dict[str, Any] | None = None
    supporting_titles: list[str] | None = None
    schema_version: int = SCHEMA_VERSION

    @property
    def text(self) -> str:
        """Everything after the prompt, as one text."""
        return "".join(segment.text for segment in self.segments if segment.author != "prompt")

    @property
    def rounds(self) -> list[Turn]:
        """The turns that searched."""
        return [turn for turn in self.turns if turn.queries]

    @property
    def is_split(self) -> bool:
        """The first round asked at least two distinct sub-queries at once."""
        return bool(self.rounds) and len(self.rounds[0].queries) >= 2

    @property
    def has_token_ids(self) -> bool:
        return bool(self.segments) and all(segment.token_ids is not None for segment in self.segments)

    def prompt_ids(self) -> list[int]:
        return [i for segment in self.segments if segment.author == "prompt" for i in segment.token_ids or ()]

    def response_ids(self) -> list[int]:
        ids: list[int] = []
        for segment in self.segments:
            if segment.author != "prompt":
                ids += segment.token_ids or ()
        return ids

    def loss_mask(self) -> list[int]:
        """1 for each response token the model sampled, 0 for what search, notices or a restored stop string put there."""
        mask: list[int] = []
        for segment in self.segments:
            if segment.author != "prompt":
                mask += [int(segment.author == "model")] * len(segment.token_ids or ())
        return mask

    def response_logprobs(self) -> list[float]:
        """One per response token, 0.0 where the model did not sample."""
        result: list[float] = []
        for segment in self.segments:
            if segment.author != "prompt":
                ids = segment.token_ids or []
                result += segment.logprobs if segment.logprobs is not None else [0.0] * len(ids)
        return result

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of the `trajectories.jsonl` contract; fields that are unknown are left out."""
        record = {name: getattr(self, name) for name in _TRAJECTORY_FIELDS}
        record["segments"] = [_plain(segment, _SEGMENT_FIELDS) for segment in self.segments]
        record["turns"] = [
            {**_plain(turn, _TURN_FIELDS), "queries": [_query_dict(query) for query in turn.queries]}
            for turn in self.turns
        ]
        return {
            key: value
            for key, value in record.items()
            if value is not None or key in ("answer", "kind", "type", "dataset")
        }

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), ensure_ascii=False)


_TRAJECTORY_FIELDS = ("schema_version", *(f.name for f in fields(Trajectory) if f.name != "schema_version"))
_SEGMENT_FIELDS = tuple(f.name for f in fields(Segment))
_TURN_FIELDS = tuple(f.name for f in fields(Turn) if f.name != "queries")
_HIT_FIELDS = tuple(f.name for f in fields(Hit))


def _plain(record: object, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(record, name)) is not None}


def _query_dict(query: Query) -> dict[str, Any]:
    return {
        "text": query.text,
        "hits": [_plain(hit, _HIT_FIELDS) for hit in query.hits],
        "error": query.error,
        "cached": query.cached,
        "start_s": query.start_s,
        "end_s": query.end_s,
    }


# ---- reading and writing ---------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _adapter() -> TypeAdapter[Trajectory]:
    from pydantic import TypeAdapter

    # Unknown fields are let through: a later version's extra field must not make an old record unreadable.
    return TypeAdapter(Trajectory)


def trajectory_from_dict(record: object, path: str = "<record>", line: int | None = None) -> Trajectory:
    """Check and build a trajectory; counts that a hand-written record lacks are derived from its segments."""
    from pydantic import ValidationError

    if not isinstance(record, dict):
        raise DataError(path, line, f"expected a JSON object, found {type(record).__name__}")
    for name in ("question", "segments"):
        if name not in record:
            raise DataError(path, line, "is missing", field=name)
    version = record.get("schema_version", SCHEMA_VERSION)
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise DataError(
            path, line, f"found {version!r}, this release reads up to {SCHEMA_VERSION}", field="schema_version"
        )
    try:
        trajectory = _adapter().validate_python(record)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        found = repr(first["input"])
        raise DataError(
            path, line, f"{first['msg']}, found {found if len(found) < 80 else found[:77] + '...'}", field=where
        ) from error
    for number, segment in enumerate(trajectory.segments):
        if (
            segment.token_ids is not None
            and segment.logprobs is not None
            and len(segment.token_ids) != len(segment.logprobs)
        ):
            raise DataError(
                path,
                line,
                f"{len(segment.logprobs)} values for {len(segment.token_ids)} token ids",
                field=f"segments.{number}.logprobs",
            )
    if "turns" not in record:
        derive_turns(trajectory)
    return trajectory


def derive_turns(trajectory: Trajectory) -> None:
    """Fill turns, counts and answer from the segments: a search counts when the search engine's segment follows it."""
    turns: list[Turn] = []
    answer: str | None = None
    segments = trajectory.segments
    for number, segment in enumerate(segments):
        if segment.author != "model":
            continue
        parsed = grammar.parse_turn(segment.text)
        was_executed = number + 1 < len(segments) and segments[number + 1].author == "search"
        queries = [Query(text) for text in parsed.queries] if was_executed else []
        turns.append(
            Turn(queries, list(parsed.dropped) if was_executed else [], problems=[p.code for p in parsed.problems])
        )
        answer = parsed.answer if parsed.action == "answer" else answer
    trajectory.turns = turns
    trajectory.answer = trajectory.answer if trajectory.answer is not None else answer
    trajectory.num_llm_calls = len(turns)
    trajectory.num_searches = len(trajectory.rounds)
    trajectory.num_subqueries = sum(len(turn.queries) for turn in turns)
    if trajectory.stop is None:
        trajectory.stop = "answer" if trajectory.answer is not None else "max_turns"


def read_trajectories(path: str | os.PathLike[str]) -> Iterator[Trajectory]:
    """Trajectories of a JSON Lines file, one at a time; a bad line raises `DataError` with its number and field."""
    from parallelsearch.retrieval.corpus import read_jsonl

    for line, record in read_jsonl(Path(path)):
        yield trajectory_from_dict(record, str(path), line)


def write_trajectories(path: str | os.PathLike[str], trajectories: Iterable[Trajectory]) -> int:
    """Write one object a line; returns how many."""
    count = 0
    with open(path, "w", encoding="utf-8") as file:
        for trajectory in trajectories:
            file.write(trajectory.to_json() + "\n")
            count += 1
    return count

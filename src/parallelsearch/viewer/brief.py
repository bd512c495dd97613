"""The quick look at a line: everything of a trajectory but its long texts.

Most of a record is prompt, passages and token ids, and no row of the list needs them. Reading only the short fields takes a
seventh of the time of a whole trajectory with its metrics. Whatever is unusual about a line (fields missing, another
version, not JSON) gives None: the caller then reads it in full, and gets the message that names what is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import TYPE_CHECKING

from parallelsearch.trajectory import SCHEMA_VERSION, Author, Kind, Query, Stop, Trajectory, Turn

if TYPE_CHECKING:
    from pydantic import TypeAdapter


@dataclass(slots=True)
class _Segment:
    author: Author


@dataclass(slots=True)
class _Query:
    text: str


@dataclass(slots=True)
class _Turn:
    queries: list[_Query]


@dataclass(slots=True)
class _Brief:
    """Fields of a `Trajectory`, by the same names."""

    question: str
    segments: list[_Segment]
    turns: list[_Turn]
    golden_answers: list[str] = field(default_factory=list)
    id: str = ""
    dataset: str | None = None
    kind: Kind | None = None
    type: str | None = None
    sample: int | None = None
    step: int | None = None
    answer: str | None = None
    stop: Stop | None = None
    num_llm_calls: int = 0
    num_searches: int = 0
    num_subqueries: int = 0
    elapsed_s: float | None = None
    rewards: dict[str, float] | None = None
    schema_version: int = SCHEMA_VERSION


_SHORT = tuple(one.name for one in fields(_Brief) if one.name not in ("segments", "turns"))


@lru_cache(maxsize=1)
def _adapter() -> TypeAdapter[_Brief]:
    from pydantic import TypeAdapter

    return TypeAdapter(_Brief)


def brief_of(line: bytes) -> Trajectory | None:
    """A trajectory without segments and hits, or None where the line needs a whole look."""
    try:
        brief = _adapter().validate_json(line)
    except ValueError:
        return None
    if brief.schema_version > SCHEMA_VERSION:
        return None
    turns = [Turn([Query(query.text) for query in turn.queries]) for turn in brief.turns]
    return Trajectory(turns=turns, **{name: getattr(brief, name) for name in _SHORT})

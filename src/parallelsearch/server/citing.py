"""Which passages an answer rests on: the sources the model was shown, and the citations among them.

A source has the number under which the model saw it. A citation is a number the model wrote, `[2]`, that names a source
which was really shown, or a source that holds the answer, or a part of a list, word for word. A number that names nothing
is no citation: it is taken out of the answer and reported. Nothing here judges whether a passage proves the answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from parallelsearch import grammar
from parallelsearch.answers import normalise
from parallelsearch.observation import ObservationWriter
from parallelsearch.trajectory import Trajectory

_NUMBERS = re.compile(r"\s*\[(\d{1,4}(?:\s*,\s*\d{1,4})*)\]")
_BETWEEN_PARTS = re.compile(r"[,;&]|\band\b", re.IGNORECASE)
_NO_LIMIT = 1_000_000_000
_SAYS_NOTHING = ("yes", "no", "noanswer", "")


@dataclass(frozen=True, slots=True)
class Source:
    """A passage the model was shown, under the number it saw."""

    number: int
    id: str
    title: str
    text: str
    url: str | None
    queries: list[str]


@dataclass(frozen=True, slots=True)
class Citation:
    """A source the answer rests on, and how one knows: the model wrote its number, or it holds the answer's words."""

    number: int
    id: str
    title: str
    url: str | None
    basis: Literal["cited", "contains_answer"]


@dataclass(frozen=True, slots=True)
class Cited:
    """An answer's text without dead numbers, and what it cites. It is supported if a source holds its words, or if it names
    one itself: a number in a thought says only what the model looked at. Of yes and no nothing can be told."""

    text: str
    citations: list[Citation] = field(default_factory=list)
    invalid_numbers: list[int] = field(default_factory=list)
    is_supported: bool = True


def web_url(url: str | None) -> str | None:
    """The address if it is one of the web; anything else (javascript:, data:, file:) is dropped."""
    if url is None:
        return None
    try:
        parts = urlsplit(url.strip())
    except ValueError:
        return None
    return url.strip() if parts.scheme.lower() in ("http", "https") and parts.netloc else None


def sources_of(trajectory: Trajectory) -> list[Source]:
    """Every passage that the observations of a trajectory show, in the order of its numbers (layout `headed`)."""
    writer = ObservationWriter(len)  # numbers the passages as the rollout's own writer did
    for turn in trajectory.rounds:
        writer.write(turn.queries, _NO_LIMIT)
    # A passage's text is on one line, so that it cannot forge the beginning of another.
    shown = {
        int(number)
        for segment in trajectory.segments
        if segment.author == "search"
        for number in re.findall(r"^\[(\d+)\] ", segment.text, re.MULTILINE)
    }
    finders: dict[str, list[str]] = {}
    for turn in trajectory.rounds:
        for query in turn.queries:
            for hit in query.hits:
                finders.setdefault(hit.id, []).append(query.text)
    return [
        Source(number, hit.id, hit.title, hit.text, web_url(hit.url), finders[hit.id])
        for number, hit in enumerate(writer.passages, start=1)
        if number in shown
    ]


def cite(answer: str, trajectory: Trajectory, sources: list[Source]) -> Cited:
    """Check the numbers in the model's thoughts and answer against what it was shown."""
    known = {source.number: source for source in sources}
    texts = [segment.text for segment in trajectory.segments if segment.author == "model"]
    written = list(dict.fromkeys(number for text in texts for number in _numbers_in(text)))
    citations = [_citation(known[number], "cited") for number in written if number in known]
    plain = _NUMBERS.sub("", answer)
    holding = _holding(plain, sources)
    citations += [_citation(source, "contains_answer") for source in holding if source.number not in written]
    return Cited(
        _NUMBERS.sub(lambda match: _living(match, known), answer),
        citations,
        [number for number in written if number not in known],
        bool(holding) or normalise(plain) in _SAYS_NOTHING or any(number in known for number in _numbers_in(answer)),
    )


def _numbers_in(text: str) -> list[int]:
    return [int(number) for match in _NUMBERS.finditer(text) for number in match[1].split(",")]


def _holding(answer: str, sources: list[Source]) -> list[Source]:
    """The sources that hold the answer word for word, or else each a part of it (`Paris and Rome`), if none is missing."""
    parts = [normalise(part) for part in _BETWEEN_PARTS.split(answer)]
    for wanted in ([normalise(answer)], [part for part in parts if part]):
        found = {want: [source for source in sources if _holds(source, want)] for want in wanted}
        if wanted and not any(want in _SAYS_NOTHING or not found[want] for want in wanted):
            chosen = {source.number for some in found.values() for source in some}
            return [source for source in sources if source.number in chosen]
    return []


def _holds(source: Source, wanted: str) -> bool:
    return f" {wanted} " in f" {normalise(f'{source.title} {source.text}')} "


def _living(match: re.Match[str], known: dict[int, Source]) -> str:
    """A bracket with the numbers that exist, or nothing. In a trajectory without sources brackets mean something else."""
    if not known:
        return match[0]
    numbers = [number.strip() for number in match[1].split(",") if int(number) in known]
    space = match[0][: match[0].index("[")]
    return f"{space}[{', '.join(numbers)}]" if numbers else ""


def _citation(source: Source, basis: Literal["cited", "contains_answer"]) -> Citation:
    return Citation(source.number, source.id, source.title, source.url, basis)


def thoughts_of(trajectory: Trajectory) -> list[str]:
    """What the model thought, turn by turn."""
    parsed = (grammar.parse_turn(segment.text) for segment in trajectory.segments if segment.author == "model")
    return [turn.thought for turn in parsed if turn.thought]

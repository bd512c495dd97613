"""Which parts of a question were asked for, each in a query of its own, in the round that could first ask for it.

A part is covered if a query of its round names it and no other part of that round or a later one. So one query with every
name in it covers nothing, a query that names two parts covers neither, and a part asked for a round late is not covered: a
policy that goes one by one covers the first. A part of an earlier round may be named beside it ("Shawn Levy, director of
Free Guy"): that is how one says which is meant. A query covers one part at most. Parts that share their names (two facts of
one thing) need as many queries, with other words each. A round in which every search failed is not held against the
policy: the next one has its number. Names are compared word by word, without case, accents, articles and a genitive's
ending, and a name that only stands inside a longer name of another part ("York" in "New York") is not named there.

Pure functions of the record, for rewards and for measures. Nothing here guesses what the parts are: `data/parts.py` does,
for questions that do not say.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from parallelsearch.trajectory import QuestionPart, Trajectory, Turn

_APOSTROPHES = re.compile("[\u2018\u2019\u02bc\u00b4`]")
_GENITIVE = re.compile(r"(?<=\w)'s\b|(?<=s)'(?!\w)")
_WORD = re.compile(r"[^\W_]+")
_ARTICLES = frozenset({"a", "an", "the"})

Words = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Coverage:
    """What became of the parts of one question."""

    is_covered: tuple[bool, ...]
    """Of each part, in the question's order."""
    num_idle: int
    """Queries that covered no part: they name none, several, one that had its query already, or one out of its round. What
    failed, and what asks for it again, is none of these."""

    @property
    def num_covered(self) -> int:
        return sum(self.is_covered)

    @property
    def share(self) -> float:
        return self.num_covered / len(self.is_covered)

    @property
    def is_whole(self) -> bool:
        return all(self.is_covered)


def covered(trajectory: Trajectory, parts: Sequence[QuestionPart] | None = None) -> Coverage | None:
    """The coverage of the trajectory's own parts, or of those given; None where there are none."""
    wanted = trajectory.parts if parts is None else parts
    if not wanted:
        return None
    names = [_names_of(part) for part in wanted]
    is_covered = [False] * len(wanted)
    num_idle = 0
    has_failed = [False] * len(wanted)
    asked: set[tuple[int, frozenset[str]]] = set()
    for number, turn in numbered_rounds(trajectory):
        for query in turn.queries:
            words = words_of(query.text)
            named = _named(words, names)
            again = [at for at in named if has_failed[at]]
            if again and _is_one_thing(named, names):  # its search had failed: that is no query too many
                has_failed[again[0]] = query.error is not None
                continue
            found = [at for at in named if wanted[at].round >= number]
            free = [at for at in found if wanted[at].round == number and not is_covered[at]]
            key = (number, frozenset(words))  # of parts with the same names a query is for one, if its words are new
            if free and _is_one_thing(found, names) and key not in asked:
                is_covered[free[0]], has_failed[free[0]] = True, query.error is not None
                asked.add(key)
            else:
                num_idle += query.error is None
    return Coverage(tuple(is_covered), num_idle)


def numbered_rounds(trajectory: Trajectory) -> list[tuple[int, Turn]]:
    """The turns that searched, each with the number of its round. A round in which every search failed told the model
    nothing, so the next one has the same number."""
    number = 1
    rounds: list[tuple[int, Turn]] = []
    for turn in trajectory.rounds:
        rounds.append((number, turn))
        number += any(query.error is None for query in turn.queries)
    return rounds


def named_in(text: str, parts: Sequence[QuestionPart]) -> list[int]:
    """Which of the parts the text names, by their places."""
    return _named(words_of(text), [_names_of(part) for part in parts])


def words_of(text: str) -> Words:
    """The words by which names are compared. Articles do not count, unless there is nothing else."""
    text = unicodedata.normalize("NFKD", _APOSTROPHES.sub("'", text)).casefold()
    text = "".join(letter for letter in text if not unicodedata.combining(letter))
    words = tuple(_WORD.findall(_GENITIVE.sub(" ", text)))
    return tuple(word for word in words if word not in _ARTICLES) or words


def _names_of(part: QuestionPart) -> list[Words]:
    return [words for words in dict.fromkeys(map(words_of, part.names)) if words]


def _is_one_thing(parts: Sequence[int], names: Sequence[Sequence[Words]]) -> bool:
    """Whether these parts, by their places, have the same names."""
    return len({frozenset(names[at]) for at in parts}) == 1


def _named(words: Words, names: Sequence[Iterable[Words]]) -> list[int]:
    """Parts with a place in the words that does not lie inside a longer name of another part."""
    spans = [
        (start, start + len(name), at)
        for at, of_part in enumerate(names)
        for name in of_part
        for start in range(len(words) - len(name) + 1)
        if words[start : start + len(name)] == name
    ]
    return sorted(
        {
            at
            for start, end, at in spans
            if not any(s <= start and end <= e and e - s > end - start and other != at for s, e, other in spans)
        }
    )

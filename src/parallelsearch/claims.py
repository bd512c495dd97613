"""What a model says that passages say, held against them.

A model that reads before it answers notes what it reads: `[2] Georgia O'Keeffe: died 6 March 1986.` Such a note begins with
the number of a passage and goes on to the end of its first sentence; what follows (`1986 against 1946: after`) is its own
reckoning. `misread_notes` gives those whose passage has not got their numbers, or the names they are about. Whether a note
that stands in its passage was the right one to take, and what is concluded from it, is not seen.

A written answer names the passages behind what it states: `Monet was born in 1840 [1].` `doubts` gives the statements with a
number that none of the passages they name has. What is reckoned (a difference, a share) is among them: they are for people
to look at. Of a text that names none, `bearers` gives the passages that have what it states.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest

from parallelsearch.retrieval.terms import STOP_WORDS, split_words

_NOTE = re.compile(r"(?:^|(?<=[.:;>\n]))[ \t]*\[(\d{1,4})\][ \t]+(?=\S)", re.MULTILINE)
_SENTENCE_END = re.compile(r"(?<=[^\s.][^\s.])\.(?=\s|$)|\n|<|,? against \d")
"""Or where it begins to reckon."""
_TOKEN = re.compile(r"(?:[^\s,;:()\"“”«»]|(?<=\d),(?=\d))+")
_NAMED = re.compile(r"\[\d{1,4}(?:\s*+,\s*+\d{1,4})*\](?>(?:(?:,|;| and)?\s*+\[\d{1,4}(?:\s*+,\s*+\d{1,4})*\])*)")
"""Passages named behind a statement: `[1]`, `[1, 3]`, `[1][3]`, `[1] and [3]`."""
_MARK_OF_LINE = re.compile(r"^\s*(?:\d{1,3}[.)]\s|[-*+>#|]+\s)+")
"""What begins an item of a list, a heading or a row, and says nothing."""
_RULE = re.compile(r"[\s|:]*+-[\s|:-]*+")
"""The line below the head of a table."""
_EDGE = " \t.,;:|*_'’\"“”()"
_MONTH_AND_DAY = re.compile(r"\d\d-\d\d")
"""How a date is written to be compared with another; no page writes it so."""


@dataclass(frozen=True, slots=True)
class Note:
    """What a model says of a passage, and the words of it that the passage has not got."""

    number: int
    text: str
    missing: tuple[str, ...] = ()


def misread_notes(text: str, passages: Mapping[int, str]) -> list[Note]:
    """The notes in a model's turn that their passages do not bear out. `passages` has the title and text of each under the
    number it was shown under; a note about another number says nothing about any."""
    found = []
    for number, said in _notes(text):
        if number in passages and (missing := tuple(_missing(said, set(split_words(passages[number]))))):
            found.append(Note(number, said, missing))
    return found


def doubts(text: str, passages: Mapping[int, str], question: str = "") -> list[Note]:
    """What a written answer states with a number that stands neither in the passages named behind it nor in the question. A
    statement begins where the line does, or behind the passages named before it."""
    asked = set(split_words(question))
    found = []
    for line in text.splitlines():
        start = 0
        for named in _NAMED.finditer(line):
            said = _MARK_OF_LINE.sub("", line[start : named.start()]).strip(_EDGE)
            start = named.end()
            numbers = [int(number) for number in re.findall(r"\d+", named[0]) if int(number) in passages]
            if not numbers or not said:
                continue
            words = asked.union(*(split_words(passages[number]) for number in numbers))
            if missing := tuple(_numbers_without(said, words)):
                found.append(Note(numbers[0], said, missing))
    return found


def bearers(text: str, passages: Mapping[int, str]) -> list[int]:
    """The passages that bear out what a text states that names none: of some sentence, or row, with two names and numbers or
    more, each has the numbers and two thirds of all."""
    words = {number: set(split_words(passage)) for number, passage in passages.items()}
    found = set()
    lines = text.splitlines()
    for line, below in zip_longest(lines, lines[1:], fillvalue=""):
        if line.lstrip().startswith("#") or _RULE.fullmatch(below):
            continue  # what heads a text or a table states nothing
        for said in _SENTENCE_END.split(_MARK_OF_LINE.sub("", line)):
            tokens = [token.strip(_EDGE) for token in _TOKEN.findall(said)]
            capitals = {word for token in tokens if token[:1].isupper() for word in split_words(token)} - STOP_WORDS
            numbers = {word for token in tokens for word in _long_numbers(token)}
            told = capitals | numbers
            if len(told) > 1:
                found |= {
                    number
                    for number, known in words.items()
                    if numbers <= known and 3 * len(told & known) >= 2 * len(told)
                }
    return sorted(found)


def _long_numbers(token: str) -> list[str]:
    """Its numbers of two digits and more: of fewer a page may say `two`."""
    return [word for word in split_words(token) if word.isdigit() and len(word) > 1]


def _numbers_without(said: str, words: set[str]) -> Iterator[str]:
    """The numbers of a statement that are not among these words."""
    for token in _TOKEN.findall(said):
        if not words.issuperset(_long_numbers(token)):
            yield token.strip(_EDGE)


def _notes(text: str) -> Iterator[tuple[int, str]]:
    starts = list(_NOTE.finditer(text))
    for place, start in enumerate(starts):
        end = starts[place + 1].start() if place + 1 < len(starts) else len(text)
        said = text[start.end() : end]
        stops = _SENTENCE_END.search(said)
        yield int(start[1]), (said[: stops.start()] if stops else said).strip()


def _missing(said: str, words: set[str]) -> Iterator[str]:
    """Every number that the passage has not got; and, where it has not got more than a third of the names, those."""
    num_names, unknown = 0, []
    for token in _TOKEN.findall(said):
        plain = token.rstrip(".'’")
        if _MONTH_AND_DAY.fullmatch(plain):
            continue
        parts = [word for word in split_words(plain) if word not in STOP_WORDS]
        is_there = all(word in words for word in parts if word.isdigit() or token[0].isupper())
        if any(word.isdigit() for word in parts):
            if not is_there:
                yield plain
        elif parts and token[0].isupper():
            num_names += 1
            unknown += [] if is_there else [plain]
    if 3 * len(unknown) > num_names:
        yield from unknown

"""Works and their makers: the pages of a corpus whose first sentences name one maker who has a biography there.

A page that begins "... film directed by X" and a page of that very name which begins as a biography of someone of
that trade give a `Work`. What can be argued about is left out: a second maker, a name that several pages share, dates
that the lessons' rules would read otherwise. Rules for English encyclopedia text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from parallelsearch.answers import normalise
from parallelsearch.coldstart.english.evidence import (
    Date,
    birth_date,
    country,
    dates_in,
    death_date,
    homeland,
    nationalities,
    nationality,
    sentences,
)
from parallelsearch.coldstart.english.questions import base_title
from parallelsearch.coldstart.lesson import Seen
from parallelsearch.grammar import SEPARATOR
from parallelsearch.retrieval.base import Passage

MAX_OPENING_CHARS = 700
"""How much of a page is read."""


@dataclass(frozen=True, slots=True)
class Person:
    """What the beginning of a biography says. None where it does not say it, or not clearly."""

    name: str
    trade: str
    born: Date
    died: Date | None
    nation: str | None


@dataclass(frozen=True, slots=True)
class Work:
    """A thing, by the name a question would give it, and the one who made it."""

    noun: str
    name: str
    title: str
    maker: Person
    year: int | None = None
    """The first year its page tells."""


# ---- people ----------------------------------------------------------------------------------------------------------

_BRACKET = re.compile(
    r"[^().]{2,90}?(?:[A-Z]\.[^().]{0,60})*\(([^()]*\d{4}[^()]*)\)\s*,?\s*(?:is|was)\s+(?:a|an|the)\s"
)
_NAME = re.compile(r"[^\W\d_][\w.'’-]*(?: [\w.'’-]+){1,3}")


def read_person(passage: Passage) -> Person | None:
    """The person a page is about, if it is titled with a name and begins as a biography: name, dates in brackets, trade.

    The dates must be those that the cold start's rules find in the same text, or a lesson would contradict the question.
    """
    name, text = passage.title, passage.text[:MAX_OPENING_CHARS]
    if not _NAME.fullmatch(name):
        return None
    head = _BRACKET.match(text)
    if head is None or name.split()[-1] not in text[: head.start(1)]:
        return None
    dates = [date for date, _, _ in dates_in(head[1])]
    born, died = birth_date(text), death_date(text)
    is_damaged = re.search(r"\d{5}", head[1])  # "19408 December 1980": the dash is lost
    if is_damaged or not dates or born is None or born[0] != dates[0] or len(dates) > 2:
        return None
    is_dead = len(dates) == 2 and died is not None and died[0] == dates[1] and dates[1][0] - dates[0][0] > 14
    first = sentences(text)[0]
    if not is_dead and (len(dates) == 2 or "born" not in head[1]):
        return None
    return Person(name, first[head.end() :], dates[0], dates[1] if is_dead else None, _nation(name, text))


def _nation(name: str, text: str) -> str | None:
    """The nationality, where the first sentence tells one, the next no other, and the country is the same by every rule."""
    page = Seen(1, name, text)
    first, *rest = sentences(text)
    told, place = nationality(page), country(page)
    if told is None or place is None or nationalities(first) != [told[0]] or f"{told[0]}-" in first:
        return None
    is_sure = nationalities(" ".join([first, *rest[:1]])) == [told[0]] and place[0] == homeland(told[0])
    return told[0] if is_sure else None


# ---- things ----------------------------------------------------------------------------------------------------------

_FOUNDED = "company|record label|magazine|newspaper|band|theatre company|organization|organisation"
_ANOTHER = "based|remake|sequel|adaptation|version|name|of the|about|inspired"
_SORTS: tuple[tuple[str, str, str, str], ...] = (
    ("film", "directed by", f"{_ANOTHER}|novel", "director|filmmaker|film-maker|film maker"),
    (
        "album|song",
        "by",
        f"{_ANOTHER}|written|composed|produced|credited|tribute",
        "singer|musician|rapper|songwriter|pianist|guitarist|saxophonist|trumpeter|drummer|bassist|DJ|composer|vocalist",
    ),
    (
        "novel|book",
        "by",
        f"{_ANOTHER}|edited|illustrated|published|collected",
        "writer|author|novelist|poet|journalist|historian|playwright|essayist|philosopher|scientist|biographer",
    ),
    (
        _FOUNDED,
        r"(?:founded|established|started)(?: in [\w ,]{4,20})? by",
        _ANOTHER,
        "business|entrepreneur|founder|publisher|industrialist|executive|editor|musician|guitarist|producer|engineer|inventor"
        "|journalist|singer|designer|rapper|bassist|drummer|songwriter|investor|philanthropist|choreographer",
    ),
)
"""Words for the thing, words before the maker, words that lead elsewhere, and the trades: a maker's biography must
name one."""
# "X is a 1984 comedy film": words of description, and none that leads to another thing ("the soundtrack of the film").
_IS_A = (
    r"\b(?:is|was)\s+(?:a|an|the)\s+"
    r"(?:(?!(?:of|to|about|based|from|in|by|for|on|with|and)\b)[\w/’'-]+,?\s+){{0,9}}?({nouns})\b"
)
_SAME_SENTENCE = r"(?:(?!\b(?:{other})\b)[^.\"“]){{0,100}}?\b{by}\s+"
_NEXT_SENTENCE = (
    r"(?:It|The (?:{nouns}|label|group|paper|firm)) (?:is|was)(?: written and| co-written and| produced and)? {by}\s+"
)
_KINDS = tuple(
    (
        re.compile(_IS_A.format(nouns=nouns)),
        re.compile(_SAME_SENTENCE.format(by=by, other=other)),
        re.compile(_NEXT_SENTENCE.format(nouns=nouns, by=by)),
        re.compile(rf"\b(?:{trades})"),
    )
    for nouns, by, other, trades in _SORTS
)
_MAY_BE_A_WORK = re.compile(
    rf"\b(?:{'|'.join(nouns for nouns, *_ in _SORTS)})\b[^\n]* by "
)  # cheap, and enough for most
# What may stand between "by" and a name: "American country music singer".
_TRADE = r"(?:the )?(?:(?:[a-z][\w/-]*|[A-Z][a-z]+(?:n|sh|ch|se|ss|k|ek)|R&B|New Zealand),? ){0,6}?"
_MAKER = re.compile(rf"{_TRADE}([A-Z][\w.'’-]*(?: (?:de|van|von|der|la|le|di|da|del|[A-Z][\w.'’-]*)){{1,3}})")
# What may follow a name that stands alone; a comma and a capital, or "and" with anything else, may be a second maker.
_ALONE = re.compile(
    r"\s*(?:\.(?:\s|$)|$|[;(]|,\s+(?!and\b)(?:[a-z]|from the|based|released)[\w-]*"
    r"|(?:and\s+)?(?:starring|produced|written|released|based|published|distributed|stars|first|set|scripted|recorded)\b"
    r"|(?:for|from|in|on|at|about|that|which|as|who)\b)"
)
_SECOND = re.compile(r"\s*,\s+(?:his|her|their|with|together|along|co-|featuring|singer|rapper|author|writer|who)")


def read_work(passage: Passage, people: Mapping[str, Person]) -> Work | None:
    """The thing a page is about, if its first two sentences name one maker who has a biography of the right trade."""
    if not _MAY_BE_A_WORK.search(passage.text, 0, MAX_OPENING_CHARS):
        return None
    name = base_title(passage.title)
    if not 2 <= len(name) <= 60 or not re.fullmatch(r"[\w\s.,:!'’&()/-]+", name) or SEPARATOR in name:
        return None
    opening = sentences(passage.text[:MAX_OPENING_CHARS])[:2]
    if not opening or re.search(r"\bor\b", name) or not normalise(opening[0]).startswith(normalise(name)):
        return None
    first, second = opening[0], opening[1] if len(opening) > 1 else ""
    for is_a, by, then_by, trade in _KINDS:
        thing = is_a.search(first)
        if thing is None:
            continue
        found = by.match(first, thing.end())
        where = (first, found.end()) if found else None
        if where is None and (found := then_by.match(second)):
            where = (second, found.end())
        person = _maker(*where, people) if where else None
        if person is None or not trade.search(person.trade):
            return None
        if normalise(person.name).split()[-1] in normalise(name).split():  # the name of the thing would tell its maker
            return None
        year = next((date[0] for date, _, _ in dates_in(passage.text[:MAX_OPENING_CHARS])), None)
        return Work(thing[1], name, passage.title, person, year)
    return None


def _maker(sentence: str, start: int, people: Mapping[str, Person]) -> Person | None:
    """The one person named from `start` on; None if there is another, or no biography."""
    found = _MAKER.match(sentence, start)
    if found is None:
        return None
    said = found[1]
    person = people.get(said) or people.get(said.rstrip("."))
    if person is None:
        return None
    rest = sentence[found.start(1) + len(person.name) :]
    return person if _ALONE.match(rest) and not _SECOND.match(rest) else None


class _People(Mapping[str, Person]):
    """The people of a corpus by name, each biography read when it is first asked for: few pages name a maker."""

    def __init__(self, pages: Mapping[str, Passage]) -> None:
        self._pages = pages
        self._read: dict[str, Person | None] = {}

    def __getitem__(self, name: str) -> Person:
        if name not in self._read:
            page = self._pages.get(name)
            self._read[name] = read_person(page) if page is not None else None
        person = self._read[name]
        if person is None:
            raise KeyError(name)
        return person

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._pages if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def read_works(passages: Iterable[Passage], forbidden: Collection[str] = ()) -> list[Work]:
    """All works of a corpus whose names mean one thing only and stand in no forbidden text, in the corpus's order."""
    pages: dict[str, Passage] = {}
    for passage in passages:
        pages.setdefault(passage.title, passage)
    num_called = Counter(normalise(base_title(title)) for title in pages)
    people = _People({title: page for title, page in pages.items() if num_called[normalise(title)] == 1})
    works = [work for passage in pages.values() if (work := read_work(passage, people)) is not None]
    works = [work for work in works if normalise(work.name) and num_called[normalise(work.name)] == 1]
    named = names_in_texts(forbidden, {normalise(work.name) for work in works})
    return [work for work in works if normalise(work.name) not in named]


def names_in_texts(texts: Collection[str], names: Collection[str]) -> set[str]:
    """Which of the names stand in any of the texts (all normalised)."""
    wanted = set(names)
    longest = max((len(name.split()) for name in names), default=0)
    found: set[str] = set()
    for text in texts:
        words = text.split()
        for length in range(1, min(longest, len(words)) + 1):
            found |= {" ".join(words[n : n + length]) for n in range(len(words) - length + 1)} & wanted
    return found

"""Lessons of two parallel rounds: first who made each of two things, then what is asked about both makers.

"Which film has the older director, A or B?" cannot be asked in one round, and needs no more than two: both directors
at once, then both dates of birth at once. A `MixedLesson` teaches just that; its sequential twin makes the same
four searches one after the other. The comparison of the makers is `ComparisonLesson`'s. `from_pages/two_rounds.py`
writes the questions, with what the lesson must know in their metadata.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from parallelsearch.answers import normalise
from parallelsearch.coldstart.english import thoughts
from parallelsearch.coldstart.english.evidence import (
    Quote,
    birth_date,
    clause_with,
    country,
    death_date,
    find_phrase,
    nationality,
)
from parallelsearch.coldstart.english.lessons.comparison import ComparisonLesson
from parallelsearch.coldstart.english.questions import Ask, base_title
from parallelsearch.coldstart.lesson import Drop, Lesson, Seen
from parallelsearch.grammar import render_turn
from parallelsearch.trajectory import Question

METADATA = "mixed"
"""The key of a question's metadata under which its `Bridges` stand."""


@dataclass(frozen=True, slots=True)
class Craft:
    """How one sort of thing and its maker are spoken of."""

    role: str
    made: str
    """"X directed A", "A was directed by X"."""
    has_made: str = ""
    """Where the two differ: "X wrote A", "A was written by X"."""

    @property
    def verb(self) -> str:
        return self.has_made or self.made


_FOUNDER = Craft("founder", "founded")
CRAFTS: dict[str, Craft] = {
    "film": Craft("director", "directed"),
    "album": Craft("artist", "recorded"),
    "song": Craft("artist", "recorded"),
    "novel": Craft("author", "written", "wrote"),
    "book": Craft("author", "written", "wrote"),
    **dict.fromkeys(
        ("company", "record label", "magazine", "newspaper", "band", "theatre company", "organization", "organisation"),
        _FOUNDER,
    ),
}
"""By the word for the thing."""


@dataclass(frozen=True, slots=True)
class Bridges:
    """What a mixed question is made of: two things of one sort, who made each, and what is asked about the makers."""

    noun: str
    things: tuple[str, str]
    makers: tuple[str, str]
    ask: Ask
    asks_maker: bool = False
    """The answer is the maker, not the thing."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, record: dict[str, Any]) -> Bridges:
        return cls(
            record["noun"],
            tuple(record["things"]),
            tuple(record["makers"]),
            Ask(**record["ask"]),
            record["asks_maker"],
        )

    @property
    def craft(self) -> Craft:
        return CRAFTS[self.noun]


_ASKED: dict[str, tuple[str, Callable[[Seen], object]]] = {
    "birth": ("born", lambda page: birth_date(page.text)),
    "death": ("died", lambda page: death_date(page.text)),
    "nationality": ("nationality", nationality),
    "country": ("country", country),
}
"""By aspect: what is added to a maker's name in a query, and what finds the fact on a page."""
_LIFE = re.compile(r"\([^()]*\d{4}[^()]*\)")
_MAX_LIFE_CHARS = 220
"""A biography begins with a name and dates in brackets."""


def plan_two_rounds(question: Question, rng: random.Random, max_quote_words: int, at_once: bool) -> MixedLesson:
    """The lesson for a question that `from_pages/two_rounds.py` made."""
    record = (question.metadata or {}).get(METADATA)
    if not isinstance(record, dict):
        raise Drop("kind_needs_decomposition")
    return MixedLesson(question, rng, max_quote_words, Bridges.of(record), at_once)


@dataclass(slots=True)
class MixedLesson(Lesson):
    """Both makers, then both facts about them: two rounds, or four searches one after the other."""

    bridges: Bridges
    at_once: bool

    def turn(self, number: int, shown: Sequence[Seen]) -> str:
        rounds = [self.thing_queries, self.maker_queries]
        if self.at_once:
            steps = [
                (thought, tuple(queries)) for thought, queries in zip((self.start, self.go_on), rounds, strict=True)
            ]
        else:
            thoughts = (self.start, self.next_thing, self.go_on, self.next_maker)
            steps = [
                (thought, (query,))
                for thought, query in zip(thoughts, [query for queries in rounds for query in queries], strict=True)
            ]
        if number < len(steps):
            thought, queries = steps[number]
            return render_turn(thought(shown), queries)
        return render_turn(self.conclude(shown), answer=self.answer)

    # ---- what is searched for ----------------------------------------------------------------------------------------

    @property
    def thing_queries(self) -> list[str]:
        return [f"{thing} {self.bridges.noun} {self.bridges.craft.made} by" for thing in self.bridges.things]

    @property
    def maker_queries(self) -> list[str]:
        word, _ = _ASKED[self.bridges.ask.aspect]
        return [f"{maker} {self.bridges.craft.role} {word}" for maker in self.bridges.makers]

    # ---- what is thought ---------------------------------------------------------------------------------------------

    @property
    def topic(self) -> str:
        return thoughts.topic_of(self.bridges.ask, "")

    def start(self, _: Sequence[Seen]) -> str:
        one, other = self.bridges.things
        plan = thoughts.plan_makers if self.at_once else thoughts.plan_makers_one_by_one
        return plan(self.rng, self.bridges.craft.role, one, other, self.topic)

    def next_thing(self, shown: Sequence[Seen]) -> str:
        found = thoughts.quote(self.bridges.things[0], self.link(0, shown))
        return f"{found} {thoughts.next_of(self.rng, self.bridges.things[1], f'the {self.bridges.craft.role}')}"

    def go_on(self, shown: Sequence[Seen]) -> str:
        links = [thoughts.quote(thing, self.link(number, shown)) for number, thing in enumerate(self.bridges.things)]
        told = " ".join(links if self.at_once else links[1:])
        plan = thoughts.plan_facts if self.at_once else thoughts.plan_facts_one_by_one
        return f"{told} {plan(self.rng, self.bridges.craft.role, *self.bridges.makers, self.topic)}"

    def next_maker(self, shown: Sequence[Seen]) -> str:
        page = self.maker_page(0, shown)
        seen = self.comparison.glimpse(page)
        if seen is None:
            raise Drop("fact_not_shown")
        return (
            f"{thoughts.quote(self.bridges.makers[0], seen)} "
            f"{thoughts.next_of(self.rng, self.bridges.makers[1], self.topic)}"
        )

    def link(self, number: int, shown: Sequence[Seen]) -> Quote:
        """Where the page of a thing names its maker."""
        thing, maker = self.bridges.things[number], self.bridges.makers[number]
        titles = [title for title in self.question.supporting_titles or () if base_title(title) == thing]
        for page in shown:
            if page.title in titles:
                found = clause_with(page, maker, [self.bridges.craft.made], self.max_quote_words)
                place = find_phrase(found[0].words, maker) if found else None
                if found and place:
                    return Quote(_trimmed(found[0].words[: place[1]], thing), page.number)
        raise Drop("bridge_not_shown")

    def maker_page(self, number: int, shown: Sequence[Seen]) -> Seen:
        """The passage that begins a maker's biography. A later one of the same page may be shown as well, and what it says
        of dates and nations may be about others."""
        maker = self.bridges.makers[number]
        pages = [page for page in shown if page.title == maker]
        if not pages:
            raise Drop("page_not_found")
        _, find = _ASKED[self.bridges.ask.aspect]
        for page in pages:
            if _LIFE.search(page.text, 0, _MAX_LIFE_CHARS) and find(page) is not None:
                return page
        raise Drop("fact_not_shown")

    @property
    def comparison(self) -> ComparisonLesson:
        """The makers compared as if they had been asked for."""
        answer = self.answer
        for thing, maker in zip(self.bridges.things, self.bridges.makers, strict=True):
            if normalise(thing) == normalise(answer):
                answer = maker
        asked = replace(self.question, golden_answers=[answer])
        return ComparisonLesson(
            asked, self.rng, self.max_quote_words, self.bridges.makers, (), self.bridges.ask, "", self.at_once
        )

    def conclude(self, shown: Sequence[Seen]) -> str:
        pages = [self.maker_page(number, shown) for number in range(2)]
        decided = self.comparison.conclude(pages)
        if self.bridges.ask.is_polar or self.bridges.asks_maker:
            return decided
        number = [normalise(thing) for thing in self.bridges.things].index(normalise(self.answer))
        thing, maker = self.bridges.things[number], self.bridges.makers[number]
        return f"{decided} {maker} {self.bridges.craft.verb} {thing}, so {thing}."


def _trimmed(words: str, thing: str) -> str:
    """A quote that ends with the maker's name; it begins with the thing's own name or with "is a", not in between."""
    said = re.search(r"\b(?:is|was) (?:a|an|the)\b", words)
    return words if said is None or normalise(words).startswith(normalise(thing)) else words[said.start() :]

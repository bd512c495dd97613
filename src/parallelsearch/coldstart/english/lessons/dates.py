"""The lesson of one date of a person: what each date on the page is, then the one that is asked for.

A page gives both in brackets and does not say which is which ("(24 May 1819 – 22 January 1901)"). The question's metadata
does (`from_pages/dates.py`), and the lesson writes them out: "Asked for: when Ada Brenn died. [1] Ada Brenn: born 24 May
1819, died 22 January 1901. Died: 22 January 1901." So the date is found again by the word that stands before it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from parallelsearch.coldstart.english import thoughts
from parallelsearch.coldstart.english.evidence import Quote, find_phrase
from parallelsearch.coldstart.lesson import Drop, Lesson, Seen, as_query
from parallelsearch.grammar import render_turn
from parallelsearch.trajectory import Question

METADATA = "dates"
FACTS = {"born": "was born", "died": "died"}
"""The dates a page may give, in their order, and how a sentence says them."""


@dataclass(frozen=True, slots=True)
class Dates:
    """Whose dates a question is about, which of them it asks for, and the page's words for each."""

    name: str
    title: str
    fact: str
    words: Mapping[str, str]
    is_year: bool = False
    """The year alone is asked for."""


def dates_of(question: Question) -> Dates | None:
    """What the question says about itself; None for one that was not made as a question of one date."""
    found = (question.metadata or {}).get(METADATA)
    return Dates(**found) if isinstance(found, dict) else None


def plan_date(question: Question, dates: Dates, rng: random.Random, max_quote_words: int) -> DateLesson:
    """The lesson of such a question: one search, which is the question itself."""
    return DateLesson(question, rng, max_quote_words, as_query(question.question), dates)


@dataclass(slots=True)
class DateLesson(Lesson):
    """One person, one search, one of the page's dates."""

    query: str
    dates: Dates

    def turn(self, number: int, shown: Sequence[Seen]) -> str:
        if number == 0:
            return render_turn(thoughts.plan_single(self.rng), [self.query])
        name, fact, words = self.dates.name, self.dates.fact, self.dates.words
        pages = [page for page in shown if page.title == self.dates.title]
        if not pages:
            raise Drop("page_not_found")
        page = next((one for one in pages if all(find_phrase(one.text, date) for date in words.values())), None)
        if page is None:
            raise Drop("answer_not_shown")
        asked = thoughts.asked_for(f"{'the year when' if self.dates.is_year else 'when'} {name} {FACTS[fact]}")
        quote = thoughts.quote(name, Quote(", ".join(f"{key} {date}" for key, date in words.items()), page.number))
        found = f"{fact.capitalize()}: {words[fact]}."
        return render_turn(f"{asked} {quote} {found} {thoughts.gives(self.rng, self.answer)}", answer=self.answer)

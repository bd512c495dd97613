"""When one person was born, or died: the page shows both dates, and the question wants one of them.

"Ada Brenn (24 May 1819 – 22 January 1901)" says neither "born" nor "died", and whoever copies the first date answers "When
did Ada Brenn die?" with her birth. So both dates go into the question's metadata, and the lesson (`lessons/dates.py`) says
what each of them is before it takes one. The answer is the page's own words for the date, and the year alone is right as
well; where the year is asked for, it is the answer. Births and deaths take turns. The seed alone decides which come out.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Collection, Sequence
from dataclasses import asdict

from parallelsearch.answers import normalise
from parallelsearch.coldstart.english.evidence import has_day
from parallelsearch.coldstart.english.from_pages.reworded import possessive
from parallelsearch.coldstart.english.from_pages.told import OCCUPATIONS, Thing, is_known_date
from parallelsearch.coldstart.english.from_pages.wordings import as_typed, capital
from parallelsearch.coldstart.english.lessons.dates import FACTS, METADATA, Dates
from parallelsearch.trajectory import Question

MADE_DATE = "made-date"
"""The `dataset` of the questions made here."""
LIVING_SHARE = 0.25
"""Of the births so many are of somebody whose page gives no other date."""
YEAR_SHARE = 0.15
"""So often the year alone is asked for."""
DESCRIBED_SHARE = 0.1
"""So often a word stands before the name for what the person is."""
WHEN = {
    "born": (
        "When was {x} born?",
        "When was {x} born?",
        "When was {x} born?",
        "When was {x} born?",
        "When was {x} born",
        "{x} when born",
        "{x}: when born?",
        "When exactly was {x} born?",
        "Can you tell me when {x} was born?",
        "Do you know when {x} was born?",
        "Tell me when {x} was born.",
        "I'd like to know when {x} was born.",
    ),
    "died": (
        "When did {x} die?",
        "When did {x} die?",
        "When did {x} die?",
        "When did {x} die?",
        "When did {x} die",
        "{x} when died",
        "{x}: when died?",
        "When exactly did {x} die?",
        "When did {x} pass away?",
        "When was {own} death?",
        "Can you tell me when {x} died?",
        "Do you know when {x} died?",
        "Tell me when {x} died.",
        "I'd like to know when {x} died.",
    ),
}
"""What is most common stands several times."""
ON_WHAT_DAY = {
    "born": (
        "On what date was {x} born?",
        "On which day was {x} born?",
        "What day was {x} born on?",
        "{x} date of birth",
        "{own} date of birth?",
        "{own} birthday?",
        "{x} birth date",
        "When is {own} birthday?",
        "What is {own} date of birth?",
        "What is the date of birth of {x}?",
        "Birth date of {x}?",
    ),
    "died": (
        "On what date did {x} die?",
        "On which day did {x} die?",
        "What day did {x} die on?",
        "{x} date of death",
        "{own} date of death?",
        "{x} death date",
        "What is {own} date of death?",
        "What is the date of death of {x}?",
        "Date of death of {x}?",
    ),
}
"""Only where the page gives the day."""
IN_WHAT_YEAR = {
    "born": ("What year was {x} born?", "In which year was {x} born?", "In what year was {x} born?", "{x} birth year"),
    "died": ("What year did {x} die?", "In which year did {x} die?", "In what year did {x} die?", "{x} year of death"),
}


def make_dates(
    things: Sequence[Thing], count: int, *, seed: int = 0, forbidden: Collection[str] = ()
) -> list[Question]:
    """Up to `count` questions, each about another person. A corpus may give fewer."""
    rng = random.Random(f"dates/{seed}")
    people = [thing for thing in things if thing.is_person and "born" in thing.told and _is_plain(thing)]
    people = rng.sample(people, len(people))
    both = iter([thing for thing in people if "died" in thing.told])
    living = iter([thing for thing in people if "died" not in thing.told])
    made: list[Question] = []
    seen = set(forbidden)
    while len(made) < count:
        fact = "born" if len(made) % 2 else "died"
        alone = next(living, None) if fact == "born" and rng.random() < LIVING_SHARE else None
        thing = alone or next(both, None)
        if thing is None:
            break
        question = _question(thing, fact, rng)
        if normalise(question.question) not in seen:
            seen.add(normalise(question.question))
            made.append(question)
    return made


def _question(thing: Thing, fact: str, rng: random.Random) -> Question:
    year, words = thing.told[fact]
    is_year = rng.random() < YEAR_SHARE
    ways = IN_WHAT_YEAR[fact] if is_year else WHEN[fact]
    if not is_year and has_day(words):
        ways = (*ways, *ON_WHAT_DAY[fact])
    is_described = thing.head in OCCUPATIONS and rng.random() < DESCRIBED_SHARE
    name = f"the {thing.head} {thing.name}" if is_described else thing.name
    text = rng.choice(ways).format(x=name, own=possessive(name))
    text = as_typed(capital(text), rng)
    dates = Dates(thing.name, thing.title, fact, _words_of(thing), is_year)
    golden = [year] if is_year else list(dict.fromkeys((words, year)))
    return Question(
        text,
        golden,
        id=f"date-{hashlib.sha256(text.encode()).hexdigest()[:16]}",
        dataset=MADE_DATE,
        type=fact,
        kind="single",
        supporting_titles=[thing.title],
        gold_passage_ids={thing.title: list(thing.passage_ids)},
        metadata={METADATA: asdict(dates)},
    )


def _words_of(thing: Thing) -> dict[str, str]:
    return {fact: thing.told[fact][1] for fact in FACTS if fact in thing.told}


def _is_plain(thing: Thing) -> bool:
    """Whether the page gives all of its dates as such."""
    return all(is_known_date(thing.text, words) for words in _words_of(thing).values())

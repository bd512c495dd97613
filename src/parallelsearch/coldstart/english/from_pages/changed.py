"""Practice in reading numbers and dates: real pages, on which a value was changed, or told where the page tells none.

Pages give few numbers that can be set side by side, most of them small, and hardly two people born in one year; and what is
read often enough can be known by heart. So a value is drawn, written into a copy of a page's first passage, and asked for:
which river is longer, which of five is the highest, who of two was born first in one year, whether two died on the same day.
A date takes the place of the page's own, in its form; a measure is told in a sentence after the first, where the page says
nothing of it. The search finds the page by its own words, and the lesson reads the copy (`lesson.search_of`).

Two numbers have as many digits more often than not, and then often begin with the same ones; of two dates half are of one
year; a birthplace is another's. Yes and no, and the place of the right name, are drawn evenly. These questions are for
lessons alone: to RL the corpus shows what the pages say. The values are invented, so what a policy learns here is how to
read them, and no fact.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from parallelsearch.answers import normalise
from parallelsearch.coldstart.english.evidence import (
    MONTHS,
    Date,
    dates_in,
    number_near,
    sentences,
    trait_words,
)
from parallelsearch.coldstart.english.from_pages.measures import MEASURES, Measure
from parallelsearch.coldstart.english.from_pages.pages import Page
from parallelsearch.coldstart.english.from_pages.told import Thing
from parallelsearch.coldstart.english.questions import measure_words
from parallelsearch.coldstart.english.thoughts import day_of, listed
from parallelsearch.coldstart.english.wide import METADATA, Form, Step, Wide, answer_of
from parallelsearch.coldstart.lesson import CHANGED, Seen
from parallelsearch.retrieval.base import Passage
from parallelsearch.trajectory import Question, QuestionPart

MADE_CHANGED = "made-changed"
"""The `dataset` of the questions made here."""
MAX_USES = 4
"""A page is in this many questions at most."""
WIDTHS = (3, 3, 3, 4, 4, 5, 6)
"""Of those with more than two parts, drawn evenly."""
SAME_LENGTH = 0.6
SAME_BEGINNING = 0.4
"""Numbers with as many digits, and of those the ones that begin alike."""
SAME_YEAR = 0.6
NEAR_YEARS = 6
SMALL_LETTERS = 0.12
MIN_AGE = 18
"""So many years lie between a birth and a death that were drawn."""
MAX_QUOTE_WORDS = 16
_DRAWS = 60
_PLACES = 4  # the one that is asked for, and one for each of three who were born elsewhere
_LAST_YEAR = 2005


_ADJECTIVE = re.compile(r"^(?:more |most |less |least |the )?\w+$")
"""It takes an "is"; "has more seats" does not."""


def make_changed(
    people: Sequence[Thing],
    pages: Mapping[str, Page],
    passages: Iterable[Passage],
    count: int,
    *,
    seed: int = 0,
    forbidden: Collection[str] = (),
) -> list[Question]:
    """Up to `count` questions, the ways in turn. The seed alone decides which come out."""
    maker = _Maker(people, pages, passages, seed, forbidden)
    ways: Sequence[Callable[[], Question | None]] = (
        maker.two_numbers,
        maker.some_numbers,
        maker.two_dates,
        maker.two_numbers,
        maker.same_date,
        maker.some_numbers,
        maker.some_dates,
        maker.places,
    )
    made: list[Question] = []
    for number in range(count * 4):
        if len(made) == count:
            break
        question = ways[number % len(ways)]()
        if question is not None:
            made.append(question)
    return made


@dataclass(frozen=True, slots=True)
class _Told:
    """A thing with the value that was drawn for it and the text that says it."""

    name: str
    title: str
    id: str
    text: str
    value: str
    words: str
    date: Date = (0, 0, 0)


class _Maker:
    def __init__(
        self,
        people: Sequence[Thing],
        pages: Mapping[str, Page],
        passages: Iterable[Passage],
        seed: int,
        forbidden: Collection[str],
    ) -> None:
        self.rng = random.Random(f"changed/{seed}")
        self.seen = set(forbidden)
        self.uses: Counter[str] = Counter()
        self.first: dict[str, Passage] = {}
        for passage in passages:
            self.first.setdefault(passage.title, passage)
        self.people = {
            fact: [one for one in people if one.is_person and fact in one.told and _day_in(one.told[fact][1])]
            for fact in ("born", "died")
        }
        self.born_in = [one for one in people if one.is_person and "birthplace" in one.told]
        kinds: dict[tuple[int, str], list[Page]] = {}
        for title in sorted(pages):
            page = pages[title]
            head = page.noun.split()[-1]
            for number, measure in enumerate(MEASURES):
                if not page.is_open or head not in measure.heads or page.is_person != (measure.fact == "goals"):
                    continue
                if not re.search(measure.told, self.first[title].text):
                    kinds.setdefault((number, head), []).append(page)
        self.kinds = {key: kind for key, kind in kinds.items() if len(kind) >= max(WIDTHS)}

    # ---- numbers -----------------------------------------------------------------------------------------------------

    def two_numbers(self) -> Question | None:
        drawn = self._measured(2)
        if drawn is None:
            return None
        measure, head, told = drawn
        wants_more = self.rng.random() < 0.6
        asked = (measure.more if wants_more else measure.less)[0]
        winner = max(told, key=_number) if wants_more else min(told, key=_number)
        either = f"{told[0].name} or {told[1].name}"
        noun = "" if head in ("player", "forward") else f" {head}"
        if _ADJECTIVE.match(asked):
            texts = [
                f"Which{noun} is {asked}, {either}?",
                f"Which is {asked}: {either}?",
                f"{either}: which {head} is {asked}?",
                f"{either}, which is {asked}?",
                f"Is {either} {asked}?" if " " in asked else f"Which is the {asked} {head}, {either}?",
            ]
        else:
            who = "Who" if measure.fact == "goals" else f"Which{noun}"
            texts = [
                f"{who} {asked}, {either}?",
                f"{who} {asked}: {either}?",
                f"{either}: {'who' if who == 'Who' else 'which'} {asked}?",
            ]
        text = self.rng.choice(texts)
        words = [*trait_words(text, [one.name for one in told]), *measure_words(text)]
        for one in told:  # what a lesson will read
            found = number_near(Seen(1, one.title, one.text), words, MAX_QUOTE_WORDS)
            if found is None or found[0] != _number(one):
                return None
        return self._question(text, [winner.name], told)

    def some_numbers(self) -> Question | None:
        drawn = self._measured(self.rng.choice(WIDTHS))
        if drawn is None:
            return None
        measure, head, told = drawn
        wants_more = self.rng.random() < 0.6
        asked = (measure.more if wants_more else measure.less)[1]
        names = [one.name for one in told]
        those, any_of, listing = listed(names), _any_of(names), ", ".join(names)
        noun = "" if head in ("player", "forward") else f" {head}"
        if _ADJECTIVE.match(asked):
            texts = [
                f"Which of {those} is the {asked}?",
                f"Which{noun} is the {asked}: {any_of}?",
                f"Which is the {asked} {head}, {any_of}?",
                f"Of {those}, which is the {asked}?",
                f"{listing}: which one is the {asked}?",
                f"What is the {asked} {head} among {those}?",
            ]
        else:
            who = "Who" if measure.fact == "goals" else f"Which{noun}"
            texts = [
                f"Which of {those} {asked}?",
                f"{who} {asked}: {any_of}?",
                f"{who} {asked}, {any_of}?",
                f"Of {those}, which {asked}?",
                f"{listing}: which one {asked}?",
            ]
        form: Form = "most_of" if wants_more else "fewest_of"
        steps = tuple(Step(one.name, one.title, measure.fact, one.value, one.words) for one in told)
        return self._wide(self.rng.choice(texts), Wide(form, measure.fact, None, steps), told)

    def _measured(self, count: int) -> tuple[Measure, str, list[_Told]] | None:
        """Things of one kind, each with a sentence that tells a number of it."""
        if not self.kinds:
            return None
        number, head = self.rng.choice(sorted(self.kinds))
        measure = MEASURES[number]
        things = self._apart([(page.name, page.title) for page in self.kinds[number, head]], count)
        if things is None:
            return None
        unit = self.rng.choice(measure.units or ("",))
        told = []
        for (name, title), value in zip(things, self._numbers(measure.digits, count), strict=True):
            said = self.rng.choice(measure.said).format(value, unit)
            passage = self.first[title]
            parts = sentences(passage.text)
            text = " ".join([*parts[:1], said, *parts[1:]])
            told.append(_Told(name, title, passage.id, text, value, value))
        return measure, head, told

    def _numbers(self, digits: range, count: int) -> list[str]:
        """Different ones; with as many digits, and the same beginning, as often as that is wanted."""
        length = self.rng.choice(digits)
        is_even = self.rng.random() < SAME_LENGTH
        beginning = ""
        if is_even and length > 1 and self.rng.random() < SAME_BEGINNING:
            beginning = str(self.rng.randint(10 ** (length - 2), 10 ** (length - 1) - 1))[
                : self.rng.randint(1, length - 1)
            ]
        found: set[int] = set()
        for _ in range(1000):
            if len(found) == count:
                break
            size = length if is_even else self.rng.choice(digits)
            drawn = f"{beginning}{self.rng.randint(0, 10 ** (size - len(beginning)) - 1):0{size - len(beginning)}}"
            if not drawn.startswith("0"):
                found.add(int(drawn))
        while len(found) < count:  # so few digits do not tell so many apart
            found.add(self.rng.randint(1, 10 ** max(digits)))
        has_commas = self.rng.random() < 0.85
        values = [f"{one:,}" if has_commas or one >= 10000 else str(one) for one in sorted(found)]
        return self.rng.sample(values, count)

    # ---- dates -------------------------------------------------------------------------------------------------------

    def two_dates(self) -> Question | None:
        drawn = self._dated(2, self.rng.random() < SAME_YEAR)
        if drawn is None or drawn[1][0].date == drawn[1][1].date:
            return None
        fact, told = drawn
        wants_first = self.rng.random() < 0.5
        winner = (min if wants_first else max)(told, key=lambda one: one.date)
        either = f"{told[0].name} or {told[1].name}"
        verb = "was born" if fact == "born" else "died"
        word = self.rng.choice(("first", "earlier") if wants_first else ("later", "last"))
        texts = [f"Who {verb} {word}, {either}?", f"Who {verb} {word}: {either}?", f"{either}: who {verb} {word}?"]
        if fact == "born":
            texts += [f"Who is {'older' if wants_first else 'younger'}, {either}?"] * 2
        return self._question(self.rng.choice(texts), [winner.name], told)

    def same_date(self) -> Question | None:
        """Whether two were born, or died, in the same year, or on the same day of it."""
        asks_day, is_same = self.rng.random() < 0.35, self.rng.random() < 0.5
        drawn = self._dated(
            2, same_year=is_same if not asks_day else self.rng.random() < 0.5, same_day=asks_day and is_same
        )
        if drawn is None:
            return None
        fact, (one, other) = drawn
        same = one.date == other.date if asks_day else one.date[0] == other.date[0]
        if same != is_same:
            return None
        what = self.rng.choice(("on the same day", "on the same date")) if asks_day else "in the same year"
        differs = not asks_day and self.rng.random() < 0.15
        what = "in different years" if differs else what
        both = self.rng.choice(("", "", "both "))
        text = (
            f"Were {one.name} and {other.name} {both}born {what}?"
            if fact == "born"
            else f"Did {one.name} and {other.name} {both}die {what}?"
        )
        return self._question(text, ["yes" if is_same != differs else "no"], [one, other])

    def some_dates(self) -> Question | None:
        drawn = self._dated(self.rng.choice(WIDTHS), self.rng.random() < SAME_YEAR)
        if drawn is None or len({one.date for one in drawn[1]}) < len(drawn[1]):
            return None
        fact, told = drawn
        wants_first = self.rng.random() < 0.5
        names = [one.name for one in told]
        those, any_of, listing = listed(names), _any_of(names), ", ".join(names)
        verb = "was born" if fact == "born" else "died"
        word = self.rng.choice(("first", "earliest") if wants_first else ("last", "latest"))
        texts = [
            f"Which of {those} {verb} {word}?",
            f"Who {verb} {word}: {any_of}?",
            f"Who {verb} {word}, {any_of}?",
            f"{listing}: who {verb} {word}?",
            f"Of {those}, who was the {'first' if wants_first else 'last'} to {'be born' if fact == 'born' else 'die'}?",
        ]
        if fact == "born":
            texts.append(f"Who is the {'oldest' if wants_first else 'youngest'} of {those}?")
        steps = tuple(Step(one.name, one.title, fact, one.value, one.words, day=day_of(*one.date[1:])) for one in told)
        form: Form = "first_of" if wants_first else "last_of"
        return self._wide(self.rng.choice(texts), Wide(form, fact, None, steps), told)

    def places(self) -> Question | None:
        """Whether two were born in the same town, or two or three in one that is named."""
        count = self.rng.choice((2, 2, 3))
        by_title = {one.title: one for one in self.born_in}
        things = self._apart([(one.name, one.title) for one in self.born_in], count)
        if things is None:
            return None
        people = [by_title[title] for _, title in things]
        places = sorted({one.told["birthplace"][0] for one in self.born_in})
        if len(places) < _PLACES:
            return None
        place, *others = self.rng.sample(places, _PLACES)
        holds = [self.rng.random() < 0.35 for _ in people] if self.rng.random() < 0.5 else [True] * count
        told = [
            self._with_place(one, place if fits else other)
            for one, fits, other in zip(people, holds, others, strict=False)
        ]
        names = listed([one.name for one in told])
        if count == 2 and self.rng.random() < 0.5:
            what = self.rng.choice(("city", "town", "place", "city"))
            answer = "yes" if told[0].value == told[1].value else "no"
            return self._question(f"Were {names} born in the same {what}?", [answer], told)
        every = "both" if count == 2 else "all"
        texts = (f"Were {names} {every} born in {place}?", f"Were {every} of {names} born in {place}?",
                 f"{names}: were they {every} born in {place}?")  # fmt: skip
        steps = tuple(
            Step(one.name, one.title, "birthplace", one.value, one.words, fits)
            for one, fits in zip(told, holds, strict=True)
        )
        return self._wide(self.rng.choice(texts), Wide("all_of", "birthplace", place, steps), told)

    def _with_place(self, person: Thing, place: str) -> _Told:
        passage = self.first[person.title]
        text = re.sub(rf"\b{re.escape(person.told['birthplace'][1])}\b", place, passage.text)
        return _Told(person.name, person.title, passage.id, text, place, place)

    def _dated(self, count: int, same_year: bool, same_day: bool = False) -> tuple[str, list[_Told]] | None:
        """People with a date of birth, or of death, that was drawn."""
        fact = "born" if self.rng.random() < 0.6 else "died"
        by_title = {one.title: one for one in self.people[fact]}
        things = self._apart([(one.name, one.title) for one in self.people[fact]], count)
        if things is None:
            return None
        people = [by_title[title] for _, title in things]
        for _ in range(_DRAWS):
            year = int(self.rng.choice(people).told[fact][0])
            day: Date = (year, *self._day())
            dates: list[Date] = []
            for _ in people:
                drawn = (year if same_year else year + self.rng.randint(-NEAR_YEARS, NEAR_YEARS), *self._day())
                if self.rng.random() < 0.3:
                    drawn = (drawn[0], day[1], drawn[2])
                dates.append(drawn)
            if count > 2 and same_year:  # the others are of years nearby
                for place in self.rng.sample(range(count), self.rng.randint(0, count - 2)):
                    dates[place] = (year + self.rng.randint(-NEAR_YEARS, NEAR_YEARS), *dates[place][1:])
            if same_day:
                dates = [day for _ in people]
            elif count == 2 and not same_year and self.rng.random() < 0.3:
                dates[1] = (dates[1][0], *dates[0][1:])  # the same day of another year
            if all(map(_lived, people, [fact] * count, dates)):
                return fact, [self._with_date(one, fact, date) for one, date in zip(people, dates, strict=True)]
        return None

    def _day(self) -> tuple[int, int]:
        return self.rng.randint(1, 12), self.rng.randint(1, 28)

    def _with_date(self, person: Thing, fact: str, date: Date) -> _Told:
        old = person.told[fact][1]
        month, day = MONTHS[date[1] - 1], date[2]
        new = f"{day} {month} {date[0]}" if old[0].isdigit() else f"{month} {day}, {date[0]}"
        passage = self.first[person.title]
        text = re.sub(r"\s+".join(map(re.escape, old.split())), new, passage.text)
        return _Told(person.name, person.title, passage.id, text, str(date[0]), new, date)

    # ---- both --------------------------------------------------------------------------------------------------------

    def _apart(self, things: Sequence[tuple[str, str]], count: int) -> list[tuple[str, str]] | None:
        """So many of them, not used too often, without a word in common."""
        if len(things) < count:
            return None
        chosen: list[tuple[str, str]] = []
        words: set[str] = set()
        for _ in range(_DRAWS):
            name, title = self.rng.choice(things)
            own = set(normalise(name).split())
            if self.uses[title] < MAX_USES and own and not own & words:
                chosen.append((name, title))
                words |= own
            if len(chosen) == count:
                return chosen
        return None

    def _wide(self, text: str, wide: Wide, told: Sequence[_Told]) -> Question | None:
        question = self._question(text, answer_of(wide), told)
        if question is None:
            return None
        return replace(question, metadata={**(question.metadata or {}), METADATA: wide.to_dict()})

    def _question(self, text: str, answers: Sequence[str], told: Sequence[_Told]) -> Question | None:
        if normalise(text) in self.seen or any(one.words not in one.text for one in told):
            return None
        self.seen.add(normalise(text))
        self.uses.update(one.title for one in told)
        if self.rng.random() < SMALL_LETTERS:
            text = text.lower()
        key = f"{text}/{'/'.join(one.words for one in told)}"
        return Question(
            text,
            list(answers),
            id=f"changed-{hashlib.sha256(key.encode()).hexdigest()[:16]}",
            dataset=MADE_CHANGED,
            kind="parallel",
            supporting_titles=[one.title for one in told],
            parts=[QuestionPart(list(dict.fromkeys((one.name, one.title)))) for one in told],
            metadata={CHANGED: {one.id: one.text for one in told}},
        )


def _number(told: _Told) -> int:
    return int(told.value.replace(",", ""))


def _any_of(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _day_in(words: str) -> bool:
    """Whether a date has its day."""
    found = dates_in(words)
    return bool(found) and found[0][1] == words and 0 not in found[0][0]


def _lived(person: Thing, fact: str, date: Date) -> bool:
    """Whether a life could have this date."""
    other = person.told.get("died" if fact == "born" else "born")
    if date[0] > _LAST_YEAR:
        return False
    span = 0 if other is None else (int(other[0]) - date[0]) * (1 if fact == "born" else -1)
    return other is None or MIN_AGE <= span <= 105

"""Yes or no about two named things: "Was Ada Brenn older than Carl Dorn?", "Did the film A come out after B?".

Two things of one kind (`told.py`) whose pages tell a year or a number are set side by side, and what is asked is whether the
first is before or after, more or less than the second (the form `compared` of `wide.py` above this folder). Whoever has only
learned "Which of them ..." answers such a question with a name. Yes and no take turns, the direction is drawn, things of the
same year or number never meet, and half of the pairs are near to each other. The seed alone decides which come out.

A question is a clause ("was A born before B", "A was born before B") in a frame ("Is it true that ...?").
"""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from parallelsearch.answers import normalise
from parallelsearch.coldstart.english.from_pages.told import (
    KINDS,
    OCCUPATIONS,
    Thing,
    Things,
    is_known_date,
    one_name,
)
from parallelsearch.coldstart.english.from_pages.worded import NO_KIND, step_of
from parallelsearch.coldstart.english.from_pages.wordings import as_typed, capital
from parallelsearch.coldstart.english.wide import FACTS, METADATA, Wide, answer_of, number_of
from parallelsearch.trajectory import Question, QuestionPart

MADE_YES_NO = "made-yes-no"
"""The `dataset` of the questions made here."""
MAX_USES = 4
"""A thing is in this many questions at most."""
DRAWS = 40
"""Draws for each question wanted, at most."""
NEAR_SHARE = 0.5
NEAREST_OF = 8
"""Of so many pairs the second thing is the nearest of a few to the first, by its year or number."""
SAME_TRADE_SHARE = 0.6
DESCRIBED_SHARE = 0.25
"""Of so many pairs of people both have one occupation; so many questions say of each name what it is."""
_WEIGHTS = {
    "born": 4, "died": 3, "released": 4, "published": 1.5, "founded": 1.5, "formed": 1, "built": 0.5, "population": 1.5,
    "species": 1,
}  # fmt: skip
"""How often a fact is asked for."""
_PEOPLE = frozenset({"born", "died"})


@dataclass(frozen=True, slots=True)
class Clauses:
    """The ways to say one fact of two things, as questions and as statements."""

    asked: tuple[str, ...]
    stated: tuple[str, ...]


_OLDER = Clauses(("{is} {a} {older} than {b}",), ("{a} {is} {older} than {b}",))


def _of_an_event(*verbs: tuple[str, str, str], has_adjective: bool = True) -> Clauses:
    """From verbs as ("was", "born", "was born")."""
    asked = tuple(f"{opens} {{a}} {rest} {{before}} {{b}}" for opens, rest, _ in verbs)
    asked += tuple(f"{opens} {{a}} {rest} {{before_it}} {{b}} {opens}" for opens, rest, _ in verbs)
    stated = tuple(f"{{a}} {said} {{before}} {{b}}" for _, _, said in verbs)
    if not has_adjective:
        return Clauses(asked, stated)
    return Clauses((*asked, *_OLDER.asked * len(verbs)), (*stated, *_OLDER.stated))


_BORN, _DIED = ("was", "born", "was born"), ("did", "die", "died")
_CAME_OUT = ("did", "come out", "came out")
CLAUSES: dict[str, Clauses] = {
    "born": _of_an_event(_BORN),
    "died": _of_an_event(_DIED, ("did", "pass away", "passed away"), has_adjective=False),
    "released": _of_an_event(("was", "released", "was released"), _CAME_OUT),
    "published": _of_an_event(("was", "published", "was published"), _CAME_OUT),
    "founded": _of_an_event(("was", "founded", "was founded"), ("was", "established", "was established")),
    "formed": _of_an_event(("was", "formed", "was formed"), ("did", "get together", "got together")),
    "built": _of_an_event(("was", "built", "was built"), ("was", "put up", "was put up")),
    "population": Clauses(
        (
            "is {a} {larger} than {b}",
            "is {a} {populous} than {b}",
            "does {a} have {more} inhabitants than {b}",
            "does {a} have a {larger} population than {b}",
            "is the population of {a} {larger} than that of {b}",
            "do {more} people live in {a} than in {b}",
        ),
        (
            "{a} is {larger} than {b}",
            "{a} is {populous} than {b}",
            "{a} has {more} inhabitants than {b}",
            "{a} has a {larger} population than {b}",
            "{more} people live in {a} than in {b}",
        ),
    ),
    "species": Clauses(
        (
            "does {a} have {more} species than {b}",
            "does {a} contain {more} species than {b}",
            "are there {more} species in {a} than in {b}",
            "is the number of species in {a} {larger} than in {b}",
            "is {name_a} a {larger} genus than {name_b}",
        ),
        (
            "{a} has {more} species than {b}",
            "there are {more} species in {a} than in {b}",
            "{name_a} is a {larger} genus than {name_b}",
        ),
    ),
}
"""By fact. For a group of facts there are as many wordings as clauses times frames."""
ASKED = (
    "{Q}?",
    "{Q}?",
    "{Q}?",
    "{Q}?",
    "{Q}?",
    "{Q}?",
    "Yes or no: {q}?",
    "{Q}, yes or no?",
    "{Q} or not?",
    "Please tell me: {q}?",
    "Quick question: {q}?",
    "{name_a} vs {name_b}: {q}?",
)
STATED = (
    "Is it true that {s}?",
    "Is it true that {s}?",
    "Is it right that {s}?",
    "Is it correct that {s}?",
    "{S}, right?",
    "{S}?",
    "{S}, yes or no?",
    "I think {s}. Is that right?",
    "Someone told me that {s}. Is that so?",
    "Can you tell me whether {s}?",
    "I'd like to know if {s}.",
    "Do you know if {s}?",
    "Find out whether {s}.",
    "Would it be right to say that {s}?",
)
"""The frames. What is most common stands several times."""
_WORDS: dict[str, dict[str, tuple[str, ...]]] = {
    "before": {"before": ("before", "before", "earlier than"), "before_it": ("before",), "older": ("older",)},
    "after": {"before": ("after", "after", "later than"), "before_it": ("after",), "older": ("newer",)},
    "more": {"larger": ("larger", "bigger"), "populous": ("more populous",), "more": ("more",)},
    "less": {"larger": ("smaller",), "populous": ("less populous",), "more": ("fewer",)},
}
"""What a direction is called."""


def make_yes_or_no(
    things: Things, count: int, *, seed: int = 0, forbidden: Collection[str] = (), min_of_a_kind: int = 9
) -> list[Question]:
    """Up to `count` questions. A corpus may give fewer."""
    maker = _Maker(things, seed, min_of_a_kind)
    made: list[Question] = []
    seen = set(forbidden)
    for _ in range(DRAWS * count):
        if len(made) == count:
            break
        pair = maker.pair(is_yes=len(made) % 2 == 0)
        if pair is None:
            continue
        wide, both = pair
        text = text_of(wide, both, maker.rng)
        if normalise(text) in seen:
            continue
        seen.add(normalise(text))
        maker.uses.update(thing.title for thing in both)
        made.append(_question(text, wide, both))
    return made


class _Maker:
    """Draws pairs."""

    def __init__(self, things: Things, seed: int, min_of_a_kind: int) -> None:
        self.rng = random.Random(f"yes-or-no/{seed}")
        self.uses: Counter[str] = Counter()
        groups: dict[str, dict[str, list[Thing]]] = defaultdict(lambda: defaultdict(list))
        self.trades: dict[tuple[str, str], list[Thing]] = defaultdict(list)
        for thing in things.all:
            for fact in thing.told:
                if fact not in _WEIGHTS or thing.is_person != (fact in _PEOPLE) or not _is_sure(thing, fact):
                    continue
                if thing.is_person and thing.head not in NO_KIND:
                    self.trades[fact, thing.head].append(thing)
                groups[fact]["person" if thing.is_person else thing.head].append(thing)
        self.groups: dict[str, dict[str, list[Thing]]] = {}
        for fact in _WEIGHTS:
            kinds = {kind: group for kind, group in sorted(groups[fact].items()) if len(group) >= min_of_a_kind}
            if kinds:
                self.groups[fact] = kinds

    def pair(self, is_yes: bool) -> tuple[Wide, tuple[Thing, Thing]] | None:
        """Two things in the order of the question, so that the answer is the one that is wanted."""
        if not self.groups:
            return None
        fact = self.rng.choices(list(self.groups), [_WEIGHTS[fact] for fact in self.groups])[0]
        kinds = self.groups[fact]
        group = kinds[self.rng.choices(list(kinds), [len(group) ** 0.5 for group in kinds.values()])[0]]
        target = self.rng.choice(("before", "after") if FACTS[fact].is_year else ("more", "less"))
        one = self.rng.choice(group)
        other = self._beside(one, fact, group)
        if other is None or self.uses[one.title] >= MAX_USES:
            return None
        low, high = sorted((one, other), key=lambda thing: _number(thing, fact))
        both = (low, high) if is_yes == (target in ("before", "less")) else (high, low)
        wide = Wide("compared", fact, target, (step_of(both[0], fact), step_of(both[1], fact)))
        return wide, both

    def _beside(self, one: Thing, fact: str, group: Sequence[Thing]) -> Thing | None:
        """Something to compare it with: of people often one of the same trade, and often a near one."""
        same = self.trades.get((fact, one.head), [])
        if len(same) > NEAREST_OF and self.rng.random() < SAME_TRADE_SHARE:
            group = same
        drawn = self.rng.sample(group, min(len(group), NEAREST_OF if self.rng.random() < NEAR_SHARE else 1))
        others = [
            thing
            for thing in drawn
            if _number(thing, fact) != _number(one, fact)
            and one_name((one, thing))
            and self.uses[thing.title] < MAX_USES
        ]
        return min(others, key=lambda thing: abs(_number(thing, fact) - _number(one, fact)), default=None)


def _is_sure(thing: Thing, fact: str) -> bool:
    """Whether a date is known, and a number is not one end of a range, nor that of the species in one place ("only four
    species native to")."""
    if fact in _PEOPLE:
        return is_known_date(thing.text, thing.told[fact][1])
    if FACTS[fact].is_year:
        return True
    words = re.escape(thing.told[fact][1])
    part = rf"\b{words}(?:\s?[-–]\s?\d|(?: \w+)? species(?:\)| (?:native|found|occur\w*|endemic) ))"
    return re.search(part, thing.text) is None


def _number(thing: Thing, fact: str) -> float:
    return number_of(thing.told[fact][0])


def text_of(wide: Wide, both: tuple[Thing, Thing], rng: random.Random) -> str:
    """The question as somebody might type it."""
    assert wide.fact is not None
    assert wide.target is not None
    is_described = rng.random() < DESCRIBED_SHARE and all(_may_be_described(thing) for thing in both)
    a, b = (f"the {thing.head} {thing.name}" if is_described else thing.name for thing in both)
    names = {"name_a": both[0].name, "name_b": both[1].name}
    words = {"a": a, "b": b, **names, **{word: rng.choice(ways) for word, ways in _WORDS[wide.target].items()}}
    is_dead = all("died" in thing.told for thing in both)
    words["is"] = rng.choice(("was", "is")) if is_dead else "is"
    if wide.fact == "born" and wide.target == "after":
        words["older"] = "younger"
    clauses = CLAUSES[wide.fact]
    is_asked = rng.random() < 0.6
    clause = rng.choice(clauses.asked if is_asked else clauses.stated).format(**words)
    clause_at_start = capital(clause)
    frame = rng.choice(ASKED if is_asked else STATED)
    text = frame.format(q=clause, Q=clause_at_start, s=clause, S=clause_at_start, **names)
    return as_typed(text, rng)


def _may_be_described(thing: Thing) -> bool:
    """Not what says it already: nobody writes "the company Larkin Company"."""
    return thing.head in (OCCUPATIONS if thing.is_person else KINDS) and thing.head not in thing.name.lower().split()


def _question(text: str, wide: Wide, both: tuple[Thing, Thing]) -> Question:
    return Question(
        text,
        answer_of(wide),
        id=f"yes-no-{hashlib.sha256(text.encode()).hexdigest()[:16]}",
        dataset=MADE_YES_NO,
        type=wide.form,
        kind="parallel",
        supporting_titles=[thing.title for thing in both],
        gold_passage_ids={thing.title: list(thing.passage_ids) for thing in both},
        parts=[QuestionPart(thing.names) for thing in both],
        metadata={METADATA: wide.to_dict()},
    )

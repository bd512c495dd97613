"""Questions of two to eight parts, made from the pages of a corpus: which came first of five, how many of four are Polish.

Things of one kind (`told.py`) are set side by side, and a form says what is asked of them: the first or last, the most, how
many, which, all or none, a fact of each; or several facts of one thing; or several questions that have nothing to do with
each other. The mixed ones ask the same of those who made the things ("How many of the directors of A, B and C are French?"):
a round for the things, a round for their makers. The answer follows from what the pages tell by `answer_of`. The place of
the right name is drawn, yes and no and counts take turns; in mixed questions the years of the works are right by chance
only. Things with a word of their names in common are never in one question. The seed alone decides which come out.

Golden answers that are lists are written "A, B and C" in the order of the question (`answers.list_forms` has the other ways
to join them). `wide.py` above this folder is what a lesson is told.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from parallelsearch.answers import list_forms, normalise
from parallelsearch.coldstart.english.from_pages import wordings
from parallelsearch.coldstart.english.from_pages.told import Thing, Things, may_be, one_name
from parallelsearch.coldstart.english.from_pages.two_rounds import same_nation
from parallelsearch.coldstart.english.from_pages.worded import NO_KIND, Draft, step_of, text_of
from parallelsearch.coldstart.english.wide import FACTS, METADATA, Form, Wide, answer_of, number_of
from parallelsearch.trajectory import Question, QuestionPart

MADE_WIDE = "made-wide"
MADE_WIDE_MIXED = "made-wide-mixed"
"""The `dataset` of the questions made here."""
WIDTHS = range(2, 9)
MAX_LISTED = 4
"""An answer that lists names has so many at most."""
MAX_EACH = 5
"""So many things at most are asked for a fact of each: the answer lists one value a thing."""
MAX_USES = 4
"""A thing is in this many questions at most, unless more are asked for."""
DRAWS = 200
"""Draws for each question wanted, at most: many sets of things do not fit the form."""
_ROLES = {"film": "director", "album": "performer", "song": "performer", "novel": "author", "book": "author"}
_PARALLEL: dict[Form, dict[str, float]] = {
    "first_of": {"born": 3, "died": 2, "released": 3, "published": 1, "founded": 1, "formed": 1, "built": 0.5},
    "last_of": {"born": 3, "died": 2, "released": 3, "published": 1, "founded": 1, "formed": 1, "built": 0.5},
    "most_of": {"population": 1, "species": 1},
    "fewest_of": {"population": 1, "species": 1},
    "how_many_of": {"nation": 3, "born": 1.5, "released": 2, "country": 2, "is_a": 2, "died": 1, "family": 1},
    "which_of": {"nation": 3, "born": 1.5, "released": 2, "country": 2, "is_a": 2, "died": 1, "family": 1},
    "all_of": {"nation": 3, "born": 1.5, "released": 2, "country": 2, "is_a": 2, "died": 1, "family": 1},
    "none_of": {"nation": 3, "born": 1.5, "released": 2, "country": 2, "is_a": 2, "died": 1, "family": 1},
    "each": {
        "born": 2, "died": 1, "nation": 2, "released": 2, "country": 2, "director": 2, "author": 1, "family": 1,
        "birthplace": 1, "published": 1, "founded": 1, "population": 1,
    },
    "facts_of_one": {},
    "several_questions": {},
}  # fmt: skip
"""The facts that a form can ask for, and how often."""
_MIXED: dict[Form, dict[str, float]] = {
    "first_of": {"born": 2, "died": 1},
    "last_of": {"born": 2, "died": 1},
    "how_many_of": {"nation": 1},
    "which_of": {"nation": 1},
    "all_of": {"nation": 1},
    "each": {"born": 1, "nation": 1},
}
_IN_TURN: tuple[Form, ...] = (
    "first_of", "which_of", "how_many_of", "last_of", "all_of", "each", "most_of", "which_of", "first_of", "none_of",
    "how_many_of", "last_of", "each", "all_of", "fewest_of", "facts_of_one", "several_questions", "none_of",
)  # fmt: skip
_NEWER_IN_TURN: tuple[Form, ...] = (
    *_IN_TURN[:5], "several_questions", *_IN_TURN[5:10], "each", *_IN_TURN[10:15], "several_questions", *_IN_TURN[15:],
    "facts_of_one",
)  # fmt: skip
"""With the newer wordings: what asks for several things in words of their own is asked for more often."""
_MIXED_IN_TURN: tuple[Form, ...] = (
    "first_of", "how_many_of", "last_of", "which_of", "first_of", "each", "last_of", "all_of",
)  # fmt: skip
_OF_ONE = ("born", "died", "nation", "birthplace", "released", "published", "director", "author", "performer", "country",
           "population", "species", "family", "founded", "formed")  # fmt: skip
_PEOPLE = frozenset({"born", "died", "nation", "birthplace", "is_a"})


def make_wide(
    things: Things,
    counts: Mapping[int, int],
    *,
    seed: int = 0,
    forbidden: Collection[str] = (),
    min_of_a_kind: int = 9,
    ways: wordings.Ways = wordings.EVALUATED,
    max_uses: int = MAX_USES,
) -> list[Question]:
    """Parallel questions, so many of each number of parts. A corpus may give fewer."""
    maker = _Maker(things, seed, forbidden, min_of_a_kind, ways, max_uses)
    forms = _IN_TURN if ways.newer is None else _NEWER_IN_TURN
    return [question for width, count in counts.items() for question in maker.make(width, count, forms)]


def make_wide_mixed(
    things: Things,
    counts: Mapping[int, int],
    *,
    seed: int = 0,
    forbidden: Collection[str] = (),
    min_of_a_kind: int = 9,
    ways: wordings.Ways = wordings.EVALUATED,
    max_uses: int = MAX_USES,
) -> list[Question]:
    """Mixed questions, so many of each number of works (2 to 4: twice as many parts), and of those with one work, whose
    maker is asked for several facts."""
    maker = _Maker(things, seed, forbidden, min_of_a_kind, ways, max_uses)
    return [
        question
        for width, count in counts.items()
        for question in maker.make(width, count, _MIXED_IN_TURN if width > 1 else ("facts_of_one",), is_mixed=True)
    ]


class _Maker:
    """Draws things, balances answers, and words questions."""

    def __init__(
        self,
        things: Things,
        seed: int,
        forbidden: Collection[str],
        min_of_a_kind: int,
        ways: wordings.Ways,
        max_uses: int,
    ) -> None:
        self.rng = random.Random(f"wide/{seed}")
        self.ways, self.max_uses = ways, max_uses
        self.makers = things.makers
        self.min_of_a_kind = min_of_a_kind
        self.seen = set(forbidden)
        self.uses: Counter[str] = Counter()
        self.num_asked: Counter[tuple[Form, int, bool]] = Counter()
        self.num_suggested: Counter[tuple[int, bool]] = Counter()
        self.groups: dict[str, dict[str, list[Thing]]] = defaultdict(lambda: defaultdict(list))
        self.works: dict[str, list[Thing]] = defaultdict(list)
        for thing in things.all:
            for fact in thing.told:
                self.groups[fact]["person" if thing.is_person else thing.head].append(thing)
            if thing.maker is not None and thing.maker.name in things.makers and thing.head in _ROLES:
                self.works[thing.head].append(thing)
        self.of_one = [thing for thing in things.all if len(_facts_of(thing)) > 1]

    def make(self, width: int, count: int, forms: Sequence[Form], is_mixed: bool = False) -> list[Question]:
        fitting = [form for form in forms if is_mixed or width in widths_of(form)]
        made: list[Question] = []
        for number in range(DRAWS * count):
            if len(made) == count:
                break
            form = fitting[len(made) % len(fitting)] if number % 8 < 6 else self.rng.choice(fitting)
            draft = self._draft(form, width, is_mixed)
            if draft is None:
                continue
            question = self._question(draft, is_mixed)
            key = normalise(question.question)
            if key in self.seen:
                continue
            self.seen.add(key)
            self.num_asked[form, width, is_mixed] += 1
            self.uses.update({thing.title for thing in draft.things})
            made.append(question)
        return made

    # ---- drawing -----------------------------------------------------------------------------------------------------

    def _draft(self, form: Form, width: int, is_mixed: bool) -> Draft | None:
        if form == "facts_of_one":
            return self._facts_of_a_maker() if is_mixed else self._facts_of_one(width)
        if form == "several_questions":
            return self._several_questions(width)
        facts = (_MIXED if is_mixed else _PARALLEL)[form]
        fact = self.rng.choices(list(facts), list(facts.values()))[0]
        group = self._works_with(fact) if is_mixed else self._group(fact)
        turn = self.num_asked[form, width, is_mixed]
        if form in ("first_of", "last_of", "most_of", "fewest_of"):
            return self._choice(form, fact, group, width, is_mixed)
        if form == "each":
            drawn = self._sample(group, width, is_mixed)
            if (
                drawn is None
                or len({_value(thing, fact, self.makers if is_mixed else None)[0] for thing in drawn}) == 1
            ):
                return None
            return self._drafted(form, fact, None, drawn, None, is_mixed)
        return self._fitting(form, fact, group, width, _num_fitting(form, width, turn), is_mixed)

    def _group(self, fact: str) -> list[Thing]:
        """Things of one kind that tell a fact, larger kinds more often; people are one kind, and sometimes one occupation."""
        kinds = {kind: group for kind, group in self.groups[fact].items() if len(group) >= self.min_of_a_kind}
        kinds = {kind: group for kind, group in kinds.items() if (kind == "person") == (fact in _PEOPLE)}
        if not kinds:
            return []
        names = sorted(kinds)
        group = kinds[self.rng.choices(names, [len(kinds[name]) ** 0.5 for name in names])[0]]
        if fact in _PEOPLE and fact != "is_a" and self.rng.random() < 0.6:
            head = self.rng.choice(group).head
            same = [thing for thing in group if thing.head == head and head not in NO_KIND]
            return same if len(same) >= self.min_of_a_kind else group
        return group

    def _works_with(self, fact: str) -> list[Thing]:
        kinds = {
            kind: found
            for kind, works in self.works.items()
            if len(found := [work for work in works if fact in self._maker_of(work).told]) >= self.min_of_a_kind
        }
        names = sorted(kinds)
        return kinds[self.rng.choices(names, [len(kinds[name]) ** 0.5 for name in names])[0]] if names else []

    def _maker_of(self, work: Thing) -> Thing:
        assert work.maker is not None
        return self.makers[work.maker.name]

    def _sample(self, group: Sequence[Thing], count: int, is_mixed: bool) -> list[Thing] | None:
        free = [thing for thing in group if self.uses[thing.title] < self.max_uses]
        if len(free) < count:
            return None
        drawn = self.rng.sample(free, count)
        everyone = [*drawn, *(self._maker_of(work) for work in drawn)] if is_mixed else drawn
        return drawn if one_name(everyone) else None

    def _choice(self, form: Form, fact: str, group: Sequence[Thing], width: int, is_mixed: bool) -> Draft | None:
        """Things of which one is the first, last, most or fewest by itself, in an order that does not tell which."""
        drawn = self._sample(group, width, is_mixed)
        if drawn is None:
            return None
        makers = self.makers if is_mixed else None
        drawn.sort(key=lambda thing: number_of(_value(thing, fact, makers)[0]), reverse=form in ("last_of", "most_of"))
        if _value(drawn[0], fact, makers)[0] == _value(drawn[1], fact, makers)[0]:
            return None
        if is_mixed and not self._is_fair(form, drawn):
            return None
        self.rng.shuffle(drawn)
        return self._drafted(form, fact, None, drawn, None, is_mixed)

    def _is_fair(self, form: Form, ordered: Sequence[Thing]) -> bool:
        """Whether this one keeps the years of the works no better than chance: they suggest the right one once in `width`."""
        years = [_year_of(work) for work in ordered]
        if any(year is None for year in years):
            return False
        best = (min if form == "first_of" else max)(year for year in years if year is not None)
        if years.count(best) > 1:
            return False
        suggested, width = years[0] == best, len(ordered)
        right, wrong = self.num_suggested[width, True], self.num_suggested[width, False]
        if (right * (width - 1) > wrong) if suggested else (wrong > right * (width - 1)):
            return False
        self.num_suggested[width, suggested] += 1
        return True

    def _fitting(
        self, form: Form, fact: str, group: Sequence[Thing], width: int, count: int, is_mixed: bool
    ) -> Draft | None:
        """Things of which `count` fit a target."""
        makers = self.makers if is_mixed else None
        if FACTS[fact].is_year:
            drawn = self._sample(group, width, is_mixed)
            return self._by_year(form, fact, drawn, count, is_mixed) if drawn is not None else None
        values = Counter(_value(thing, fact, makers)[0] for thing in group)
        targets = sorted(value for value, number in values.items() if number >= max(count, 2))
        if not targets:
            return None
        target = self.rng.choice(targets)
        fits = [thing for thing in group if _value(thing, fact, makers)[0] == target]
        free = [thing for thing in fits if self.uses[thing.title] < self.max_uses]
        if len(free) < count:
            return None
        chosen = self.rng.sample(free, count)
        drawn = [*chosen, *self._of_other_values(group, width - count, fact, target, makers)]
        if len(drawn) < width:
            return None
        self.rng.shuffle(drawn)
        everyone = [*drawn, *(self._maker_of(work) for work in drawn)] if is_mixed else drawn
        if not one_name(everyone):
            return None
        return self._drafted(form, fact, target, drawn, {thing.title for thing in chosen}, is_mixed)

    def _of_other_values(
        self, group: Sequence[Thing], count: int, fact: str, target: str, makers: Mapping[str, Thing] | None
    ) -> list[Thing]:
        """Things that do not fit. Values first, so that the one most things have is not most of them; fewer where few are."""
        by_value: dict[str, list[Thing]] = defaultdict(list)
        for thing in group:
            value = _value(thing, fact, makers)[0]
            if value != target and self.uses[thing.title] < self.max_uses:
                by_value[value].append(thing)
        values = sorted(by_value)
        chosen: list[Thing] = []
        for _ in range(8 * count if values else 0):
            thing = self.rng.choice(by_value[self.rng.choice(values)])
            if len(chosen) < count and thing not in chosen and _differs(thing, fact, target, makers):
                chosen.append(thing)
        return chosen

    def _by_year(self, form: Form, fact: str, drawn: list[Thing], count: int, is_mixed: bool) -> Draft | None:
        """ "before 1920", "after 1950": a year between those that fit and those that do not, with a year to spare."""
        makers = self.makers if is_mixed else None
        is_before = self.rng.random() < 0.5
        ordered = sorted(drawn, key=lambda thing: number_of(_value(thing, fact, makers)[0]), reverse=not is_before)
        years = [int(number_of(_value(thing, fact, makers)[0])) for thing in ordered]
        step = 1 if is_before else -1
        inner = years[count - 1] if count else years[0] - step * self.rng.randint(4, 20)
        outer = years[count] if count < len(years) else years[-1] + step * self.rng.randint(4, 20)
        between = range(inner + step, outer, step)
        if not between or max(between) > LAST_YEAR:
            return None
        year = next((year for year in between if year % 10 == 0), None) or self.rng.choice(between)
        target = f"{'before' if is_before else 'after'} {year}"
        return self._drafted(form, fact, target, drawn, {thing.title for thing in ordered[:count]}, is_mixed)

    def _drafted(
        self,
        form: Form,
        fact: str,
        target: str | None,
        drawn: Sequence[Thing],
        fits: Collection[str] | None,
        is_mixed: bool,
    ) -> Draft:
        def holds(thing: Thing) -> bool | None:
            return None if fits is None else thing.title in fits

        if not is_mixed:
            steps = tuple(replace(step_of(thing, fact), holds=holds(thing)) for thing in drawn)
            return Draft(Wide(form, fact, target, steps), tuple(drawn))
        makers = [self._maker_of(work) for work in drawn]
        first = [step_of(work, _ROLES[work.head]) for work in drawn]
        then = [
            replace(step_of(maker, fact), holds=holds(work), round=2, of=work.name)
            for work, maker in zip(drawn, makers, strict=True)
        ]
        return Draft(Wide(form, fact, target, (*first, *then)), (*drawn, *makers))

    def _facts_of_one(self, width: int) -> Draft | None:
        thing = self.rng.choice(self.of_one) if self.of_one else None
        facts = _facts_of(thing) if thing is not None else []
        if thing is None or len(facts) < width or self.uses[thing.title] >= self.max_uses:
            return None
        chosen = self.rng.sample(facts, width)
        return Draft(Wide("facts_of_one", None, None, tuple(step_of(thing, fact) for fact in chosen)), (thing,) * width)

    def _facts_of_a_maker(self) -> Draft | None:
        """One work, and two facts of the one who made it: a round for one thing, then one that fans out."""
        works = [work for kind in sorted(self.works) for work in self.works[kind]]
        work = self.rng.choice(works) if works else None
        if work is None or self.uses[work.title] >= self.max_uses:
            return None
        maker = self._maker_of(work)
        facts = [fact for fact in _facts_of(maker) if fact in _PEOPLE]
        if len(facts) < 2:
            return None
        then = [replace(step_of(maker, fact), round=2, of=work.name) for fact in self.rng.sample(facts, 2)]
        return Draft(Wide("facts_of_one", None, None, (step_of(work, _ROLES[work.head]), *then)), (work, maker, maker))

    def _several_questions(self, width: int) -> Draft | None:
        facts = [fact for fact in wordings.CLAUSES if any(len(g) >= 2 for g in self.groups[fact].values())]
        if len(facts) < width:
            return None
        drawn: list[tuple[Thing, str]] = []
        for fact in self.rng.sample(facts, width):
            group = self.groups[fact]
            drawn.append((self.rng.choice(group[self.rng.choice(sorted(group))]), fact))
        things = [thing for thing, _ in drawn]
        if not one_name(things) or any(self.uses[thing.title] >= self.max_uses for thing in things):
            return None
        steps = tuple(step_of(thing, fact) for thing, fact in drawn)
        return Draft(Wide("several_questions", None, None, steps), tuple(things))

    # ---- wording -----------------------------------------------------------------------------------------------------

    def _question(self, draft: Draft, is_mixed: bool) -> Question:
        wide = draft.wide
        text = text_of(draft, is_mixed, self.ways, self.rng)
        items = answer_of(wide)
        titles = list(dict.fromkeys(thing.title for thing in draft.things))
        ids = {thing.title: list(thing.passage_ids) for thing in draft.things}
        return Question(
            text,
            golden_of(wide, items),
            id=f"wide-{hashlib.sha256(text.encode()).hexdigest()[:16]}",
            dataset=MADE_WIDE_MIXED if is_mixed else MADE_WIDE,
            type=wide.form,
            kind="mixed" if is_mixed else "parallel",
            supporting_titles=titles,
            gold_passage_ids=ids,
            parts=[QuestionPart(thing.names, step.round) for thing, step in zip(draft.things, wide.steps, strict=True)],
            metadata={METADATA: wide.to_dict(), **({"answer_raw": items} if len(items) > 1 else {})},
        )


LAST_YEAR = 2024
"""A question does not ask what was before a year that nobody has seen."""


def widths_of(form: Form) -> range:
    """How many parts a parallel question of this form may have."""
    return {"facts_of_one": range(2, 4), "several_questions": range(2, 5), "each": range(2, MAX_EACH + 1)}.get(
        form, WIDTHS
    )


def golden_of(wide: Wide, items: Sequence[str]) -> list[str]:
    """The golden answers: the first is the one a lesson writes."""
    if wide.form == "how_many_of":
        word = _COUNT_WORDS[int(items[0])]
        return [items[0], word, *(["none"] if items[0] == "0" else [])]
    return list_forms(items)


_COUNT_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight")


def _num_fitting(form: Form, width: int, turn: int) -> int:
    """How many of the things fit: counts, and yes and no, take turns."""
    if form == "how_many_of":
        return turn % (width + 1)
    if form == "which_of":
        return 1 + turn % min(width - 1, MAX_LISTED)
    is_yes = turn % 2 == 0
    off = 0 if is_yes else 1 + (turn // 2) % min(2, width - 1)
    return width - off if form == "all_of" else off


def _facts_of(thing: Thing) -> list[str]:
    return [fact for fact in _OF_ONE if fact in thing.told]


def _value(thing: Thing, fact: str, makers: Mapping[str, Thing] | None) -> tuple[str, str]:
    """What the thing tells, or with `makers` the one who made it."""
    if makers is None:
        return thing.told[fact]
    assert thing.maker is not None
    return makers[thing.maker.name].told[fact]


def _year_of(work: Thing) -> int | None:
    told = work.told.get("released") or work.told.get("published")
    return int(told[0]) if told is not None else None


def _differs(thing: Thing, fact: str, target: str, makers: Mapping[str, Thing] | None) -> bool:
    """Whether the thing certainly does not fit."""
    value = _value(thing, fact, makers)[0]
    if fact == "nation":
        return same_nation(value, target) is False
    if fact == "is_a":
        return value != target and not may_be(thing, target)
    return value != target

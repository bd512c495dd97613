"""Questions for two parallel rounds, made from the passages of a corpus: two things, their makers, a fact about both.

Two works of one sort (`works.py`) give a question. Nothing is taken from a question set: the wordings are our own,
the answer is what both biographies say. Things that a forbidden question (dev, test, validation) names are left out
altogether, so no evaluation question is met half-way either. Directions, the place of the right answer, and yes and
no are balanced, and so is what the years of the two things would suggest: of two films the older one mostly has the
older director, and a policy that is paid for answers finds that out. The seed alone decides which questions come out.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from parallelsearch.answers import normalise
from parallelsearch.coldstart.english.evidence import Date, later_of
from parallelsearch.coldstart.english.from_pages.works import Work, read_works
from parallelsearch.coldstart.english.lessons.two_rounds import CRAFTS, METADATA, Bridges
from parallelsearch.coldstart.english.questions import Ask, Aspect
from parallelsearch.retrieval.base import Passage
from parallelsearch.trajectory import Question, QuestionPart

MADE = "made-mixed"
"""The `dataset` of the questions made here."""
MIN_WORKS = 4
"""A sort of thing with fewer is left out: they would only meet each other."""
POLAR_SHARE = 0.25
DRAWS = 80
"""Pairs drawn for each question wanted, at most: most are left out because the years suggest the answer."""
MAX_USES = 5
"""A thing is in this many questions at most."""
SHARES = {"film": 0.55, "album": 0.12, "song": 0.08, "novel": 0.12, "book": 0.04}
"""How often a sort of thing is asked for, as long as there are enough; founded things share the rest."""


# ---- questions -------------------------------------------------------------------------------------------------------

_OLDER = (
    "Which {noun} was {made} by the older person, {a} or {b}?",
    "Of the {noun}s {a} and {b}, which one has the older {role}?",
    "Between {a} and {b}, which {noun}'s {role} was born earlier?",
    "{a} or {b}: which of these {noun}s had the {role} with the earlier date of birth?",
    "Take the {role}s of the {noun}s {a} and {b}. Which {noun} belongs to the one born first?",
    "Which of the two {noun}s, {a} or {b}, had the {role} who was born before the other?",
)
_YOUNGER = (
    "Which {noun} was {made} by the younger person, {a} or {b}?",
    "Of the {noun}s {a} and {b}, which one has the younger {role}?",
    "Between {a} and {b}, which {noun}'s {role} was born later?",
    "{a} or {b}: which of these {noun}s had the {role} with the later date of birth?",
    "Take the {role}s of the {noun}s {a} and {b}. Which {noun} belongs to the one born last?",
    "Which of the two {noun}s, {a} or {b}, had the {role} who was born after the other?",
)
_DIED_FIRST = (
    "Between {a} and {b}, which {noun}'s {role} died first?",
    "Of the {noun}s {a} and {b}, which one was {made} by the person who died earlier?",
    "{a} or {b}: which of these {noun}s had the {role} with the earlier date of death?",
    "Which of the two {noun}s, {a} or {b}, had the {role} who died before the other?",
)
_DIED_LAST = (
    "Between {a} and {b}, which {noun}'s {role} died later?",
    "Of the {noun}s {a} and {b}, which one was {made} by the person who died last?",
    "{a} or {b}: which of these {noun}s had the {role} with the later date of death?",
    "Which of the two {noun}s, {a} or {b}, had the {role} who died after the other?",
)
_SAME_NATION = (
    "Is the {role} of {a} of the same nationality as the {role} of {b}?",
    "Did people of the same nationality {make} the {noun}s {a} and {b}?",
    "The {noun}s {a} and {b}: do their {role}s have the same nationality?",
)
_OTHER_NATION = (
    "Is the {role} of {a} of a different nationality from the {role} of {b}?",
    "The {noun}s {a} and {b}: do their {role}s have different nationalities?",
)
_SAME_COUNTRY = (
    "Does the {role} of {a} come from the same country as the {role} of {b}?",
    "Were the {noun}s {a} and {b} {made} by people from the same country?",
    "Is the same country home to the {role} of {a} and the {role} of {b}?",
)
_OTHER_COUNTRY = ("Were the {noun}s {a} and {b} {made} by people from different countries?",)
_WHO: dict[tuple[Aspect, int], tuple[str, ...]] = {
    ("birth", -1): (
        "Who was born first, the {role} of {a} or the {role} of {b}?",
        "Who is older, the {role} of the {noun} {a} or the one of {b}?",
    ),
    ("birth", 1): (
        "Who was born later, the {role} of {a} or the {role} of {b}?",
        "Who is younger, the {role} of the {noun} {a} or the one of {b}?",
    ),
    ("death", -1): ("Who died first, the {role} of {a} or the {role} of {b}?",),
    ("death", 1): ("Who died later, the {role} of {a} or the {role} of {b}?",),
}
_MAKE = {"directed": "direct", "recorded": "record", "written": "write", "founded": "found"}


@dataclass(frozen=True, slots=True)
class _Form:
    """One way to ask: what, in which words, and whether the answer is the maker."""

    ask: Ask
    wordings: tuple[str, ...]
    asks_maker: bool = False


_CHOICES = (
    _Form(Ask("birth", -1), _OLDER),
    _Form(Ask("birth", 1), _YOUNGER),
    _Form(Ask("death", -1), _DIED_FIRST),
    _Form(Ask("death", 1), _DIED_LAST),
    *(_Form(Ask(aspect, direction), wordings, True) for (aspect, direction), wordings in _WHO.items()),
)
_POLAR = (
    _Form(Ask("nationality", 0, True), _SAME_NATION),
    _Form(Ask("nationality", 0, True, True), _OTHER_NATION),
    _Form(Ask("country", 0, True), _SAME_COUNTRY),
    _Form(Ask("country", 0, True, True), _OTHER_COUNTRY),
)
# In the order in which they are asked: each round of it has as many of one direction as of the other, and thrice as many
# that ask for a thing as for a person.
_FORMS = (*_CHOICES[:4], *_POLAR[:1], *_CHOICES[:4], *_POLAR[2:3], *_CHOICES[:4], *_CHOICES[4:], *_POLAR[:3], _POLAR[3])

# Not the same word, and yet not clearly another country.
_KIN = tuple(
    frozenset(group.split(", "))
    for group in (
        "British, English, Scottish, Welsh, Irish",
        "Soviet, Russian, Ukrainian, Georgian, Armenian, Estonian, Latvian, Lithuanian, Kazakh",
        "American, Puerto Rican",
        "Chinese, Taiwanese",
        "Czech, Slovak",
        "Argentine, Argentinian",
        "Yugoslav, Serbian, Croatian, Slovenian, Bosnian",
    )
)


def make_two_rounds(
    passages: Iterable[Passage],
    max_questions: int,
    *,
    seed: int = 0,
    forbidden: Collection[str] = (),
    kept_back: Collection[str] = (),
) -> list[Question]:
    """Up to `max_questions` questions. `forbidden` are normalised texts: none comes out, nor any thing they name. No page
    titled as one of `kept_back` is used."""
    kept = list(passages)
    works = [work for work in read_works(kept, forbidden) if not {work.title, work.maker.name} & set(kept_back)]
    ids: dict[str, str] = {}
    for passage in kept:
        ids.setdefault(passage.title, passage.id)
    return ask_two_rounds(works, ids, max_questions, seed=seed, forbidden=forbidden)


def ask_two_rounds(
    works: Iterable[Work], ids: Mapping[str, str], max_questions: int, *, seed: int = 0, forbidden: Collection[str] = ()
) -> list[Question]:
    """The same from works that are read already; `ids` has the passage that a page begins with, by title."""
    rng = random.Random(f"mixed/{seed}")
    groups: dict[str, list[Work]] = defaultdict(list)
    for work in works:
        groups[work.noun].append(work)
    groups = {noun: some for noun, some in groups.items() if len(some) >= MIN_WORKS}
    if not groups:
        return []
    nouns = sorted(groups)
    founded = [noun for noun in nouns if noun not in SHARES]
    weights = [SHARES.get(noun, (1 - sum(SHARES.values())) / max(1, len(founded))) for noun in nouns]
    made: list[Question] = []
    seen = set(forbidden)
    uses: Counter[str] = Counter()
    num_asked: Counter[_Form] = Counter()
    num_suggested: Counter[bool] = Counter()
    num_polar = 0
    for number in range(DRAWS * max_questions):  # pairs that do not fit are drawn again
        if len(made) == max_questions:
            break
        form = _FORMS[number % len(_FORMS)]
        if form.ask.is_polar and num_polar > POLAR_SHARE * len(made):
            continue
        pair = _draw(groups[rng.choices(nouns, weights)[0]], form, num_asked[form] % 2 == 0, rng, uses)
        if pair is None:
            continue
        suggested = _is_suggested(form.ask, *pair)
        question = _ask(form, *pair, ids, rng)
        key = normalise(question.question)
        if key in seen or (suggested is not None and num_suggested[suggested] > num_suggested[not suggested]):
            continue
        seen.add(key)
        num_suggested[suggested is True] += suggested is not None
        num_polar += form.ask.is_polar
        num_asked[form] += 1
        uses.update(work.title for work in pair)
        made.append(question)
    return made


def _draw(
    works: Sequence[Work], form: _Form, wants_first: bool, rng: random.Random, uses: Counter[str]
) -> tuple[Work, Work] | None:
    """Two works that the question can be asked of; the right answer is the first (or yes) as `wants_first` says."""
    ask = form.ask
    fit = [work for work in works if uses[work.title] < MAX_USES and _fact(work, ask.aspect) is not None]
    if len(fit) < 2:
        return None
    if ask.is_polar:
        wants_same = wants_first != ask.differs
        one = _of_any_nation(fit, rng)
        rest = [
            work
            for work in fit
            if work.maker.name != one.maker.name and same_nation(one.maker.nation, work.maker.nation) is wants_same
        ]
        return (one, _of_any_nation(rest, rng)) if rest else None
    one, other = rng.sample(fit, 2)
    order = _order(one, other, ask.aspect)
    if one.maker.name == other.maker.name or order == 0:
        return None
    return (one, other) if (order == ask.direction) == wants_first else (other, one)


def _is_suggested(ask: Ask, one: Work, other: Work) -> bool | None:
    """Whether the years of the things alone lead to the right answer; None where they lead nowhere."""
    if ask.is_polar or one.year is None or other.year is None or one.year == other.year:
        return None
    return (one.year > other.year) == (_order(one, other, ask.aspect) > 0)


def _of_any_nation(works: Sequence[Work], rng: random.Random) -> Work:
    """Nations first, so that one which most people belong to is not most of the answers."""
    nation = rng.choice(sorted({work.maker.nation or "" for work in works}))
    return rng.choice([work for work in works if work.maker.nation == nation])


def same_nation(one: str | None, other: str | None) -> bool | None:
    """None where it can be argued about."""
    if one == other:
        return True
    return None if any({one, other} <= kin for kin in _KIN) else False


def _fact(work: Work, aspect: Aspect) -> Date | str | None:
    maker = work.maker
    return maker.born if aspect == "birth" else maker.died if aspect == "death" else maker.nation


def _order(one: Work, other: Work, aspect: Aspect) -> int:
    """As `later_of`."""
    if aspect == "birth":
        return later_of(one.maker.born, other.maker.born)
    return later_of(one.maker.died, other.maker.died) if one.maker.died and other.maker.died else 0


def _answers(form: _Form, one: Work, other: Work) -> list[str]:
    ask = form.ask
    if ask.is_polar:
        return ["yes" if (one.maker.nation == other.maker.nation) != ask.differs else "no"]
    winner = one if _order(one, other, ask.aspect) == ask.direction else other
    return [winner.maker.name if form.asks_maker else winner.name]


def _ask(form: _Form, one: Work, other: Work, ids: Mapping[str, str], rng: random.Random) -> Question:
    craft = CRAFTS[one.noun]
    text = rng.choice(form.wordings).format(
        noun=one.noun, role=craft.role, made=craft.made, make=_MAKE[craft.made], a=one.name, b=other.name
    )
    text = text.replace("companys", "companies")
    bridges = Bridges(one.noun, (one.name, other.name), (one.maker.name, other.maker.name), form.ask, form.asks_maker)
    titles = [one.title, other.title, one.maker.name, other.maker.name]
    works = [QuestionPart(list(dict.fromkeys((work.name, work.title))), 1) for work in (one, other)]
    return Question(
        text,
        _answers(form, one, other),
        id=f"mixed-{hashlib.sha256(text.encode()).hexdigest()[:16]}",
        dataset=MADE,
        kind="mixed",
        supporting_titles=titles,
        gold_passage_ids={title: [ids[title]] for title in titles},
        parts=[*works, *(QuestionPart([work.maker.name], 2) for work in (one, other))],
        metadata={METADATA: bridges.to_dict()},
    )

"""Questions for two parallel rounds, made from the passages of a corpus: two things, their makers, a fact about both.

A page whose first sentences name one maker ("... film directed by X") and a page of that very name which begins as a
biography of someone of that trade give a `Work`; two works of one sort give a question. Nothing is taken from a question
set: the wordings are our own, the answer is what both biographies say. Things that a forbidden question (dev, test,
validation) names are left out altogether, so no evaluation question is met half-way either. Directions, the place of the
right answer, and yes and no are balanced, and so is what the years of the two things would suggest: of two films the older
one mostly has the older director, and a policy that is paid for answers finds that out. The seed alone decides which
questions come out.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from parallelsearch.answers import normalise
from parallelsearch.grammar import SEPARATOR
from parallelsearch.retrieval.base import Passage
from parallelsearch.training.decompose import Ask, Aspect, base_title
from parallelsearch.training.evidence import (
    Date,
    Shown,
    birth_date,
    country,
    dates_in,
    death_date,
    homeland,
    later_of,
    nationalities,
    nationality,
    sentences,
)
from parallelsearch.training.mixed import CRAFTS, METADATA, Bridges
from parallelsearch.trajectory import Question

MADE = "made-mixed"
"""The `dataset` of the questions made here."""
MAX_OPENING_CHARS = 700
"""How much of a page is read."""
MIN_WORKS = 4
"""A sort of thing with fewer is left out: they would only meet each other."""
POLAR_SHARE = 0.25
DRAWS = 80
"""Pairs drawn for each question wanted, at most: most are left out because the years suggest the answer."""
MAX_USES = 5
"""A thing is in this many questions at most."""
SHARES = {"film": 0.55, "album": 0.12, "song": 0.08, "novel": 0.12, "book": 0.04}
"""How often a sort of thing is asked for, as long as there are enough; founded things share the rest."""


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
    page = Shown(1, name, text)
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


def read_works(passages: Iterable[Passage], forbidden: Collection[str] = ()) -> list[Work]:
    """All works of a corpus whose names mean one thing only and stand in no forbidden text, in the corpus's order."""
    pages: dict[str, Passage] = {}
    for passage in passages:
        pages.setdefault(passage.title, passage)
    num_called = Counter(normalise(base_title(title)) for title in pages)
    people = {
        person.name: person
        for passage in pages.values()
        if num_called[normalise(passage.title)] == 1 and (person := read_person(passage)) is not None
    }
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


def make_mixed(
    passages: Iterable[Passage], max_questions: int, *, seed: int = 0, forbidden: Collection[str] = ()
) -> list[Question]:
    """Up to `max_questions` questions. `forbidden` are normalised texts: none comes out, nor any thing they name."""
    rng = random.Random(f"mixed/{seed}")
    groups: dict[str, list[Work]] = defaultdict(list)
    for work in read_works(passages, forbidden):
        groups[work.noun].append(work)
    groups = {noun: works for noun, works in groups.items() if len(works) >= MIN_WORKS}
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
        works = groups[rng.choices(nouns, weights)[0]]
        pair = _draw(works, form, num_asked[form] % 2 == 0, rng, uses)
        if pair is None:
            continue
        suggested = _is_suggested(form.ask, *pair)
        question = _ask(form, *pair, rng)
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
            if work.maker.name != one.maker.name and _same_nation(one.maker, work.maker) is wants_same
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


def _same_nation(one: Person, other: Person) -> bool | None:
    """None where it can be argued about."""
    if one.nation == other.nation:
        return True
    return None if any({one.nation, other.nation} <= kin for kin in _KIN) else False


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


def _ask(form: _Form, one: Work, other: Work, rng: random.Random) -> Question:
    craft = CRAFTS[one.noun]
    text = rng.choice(form.wordings).format(
        noun=one.noun, role=craft.role, made=craft.made, make=_MAKE[craft.made], a=one.name, b=other.name
    )
    text = text.replace("companys", "companies")
    bridges = Bridges(one.noun, (one.name, other.name), (one.maker.name, other.maker.name), form.ask, form.asks_maker)
    return Question(
        text,
        _answers(form, one, other),
        id=f"mixed-{hashlib.sha256(text.encode()).hexdigest()[:16]}",
        dataset=MADE,
        kind="mixed",
        supporting_titles=[one.title, other.title, one.maker.name, other.maker.name],
        metadata={METADATA: bridges.to_dict()},
    )

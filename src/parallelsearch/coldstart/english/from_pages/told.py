"""What the pages of a corpus tell in a form that can be set side by side: years, nations, countries, numbers, makers.

A *thing* is a page (`pages.py`) with the facts that two or eight pages of its kind can be asked for. Each fact has a value
in the form answers have and the page's own words for it. A fact is only taken where the page tells it once and plainly: a
film with two years, a village whose first sentence names two countries, a genus with two numbers have none. Rules for
English encyclopedia text; what they are not sure of they leave out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from parallelsearch.answers import normalise
from parallelsearch.coldstart.english.evidence import MONTHS, birthplace, country, dates_in, find_phrase, sentences
from parallelsearch.coldstart.english.from_pages.pages import BRACKETS, Fact, Page, is_somebody, is_thing, read_pages
from parallelsearch.coldstart.english.from_pages.works import Person, Work, read_person, read_works
from parallelsearch.coldstart.english.questions import base_title
from parallelsearch.coldstart.lesson import Seen
from parallelsearch.data.alternatives import words_of
from parallelsearch.retrieval.base import Passage

Told = tuple[str, str]
"""A value, and the page's words for it."""


@dataclass(frozen=True, slots=True)
class Thing:
    """A page, what it is in a word ("painter"), and what it tells by fact (the keys of `FACTS` in `wide.py`)."""

    title: str
    name: str
    head: str
    is_person: bool
    told: Mapping[str, Told]
    passage_ids: tuple[str, ...]
    text: str = ""
    maker: Person | None = None
    """Of a work: who made it, by a biography of its own."""

    @property
    def names(self) -> list[str]:
        """What a query may call it."""
        return list(dict.fromkeys((self.name, self.title)))


@dataclass(frozen=True, slots=True)
class Things:
    """Everything that questions of several parts are made from."""

    all: tuple[Thing, ...]
    makers: Mapping[str, Thing]
    """By name: the biographies of those who made a work."""


def read_things(
    passages: Iterable[Passage],
    forbidden: Collection[str] = (),
    needed: Collection[str] = (),
    works: Collection[Work] | None = None,
) -> Things:
    """The things of a corpus, in the order of their titles. As for `read_pages`, `needed` titles are left out, and so are
    pages that a forbidden question names. `works` are those of `read_works`, if they are read already."""
    kept = list(passages)
    ids: dict[str, list[str]] = {}
    for passage in kept:
        ids.setdefault(passage.title, []).append(passage.id)
    pages = read_pages(kept, forbidden, needed)
    avoided = {normalise(title) for title in needed}
    by_title = {
        work.title: work
        for work in (read_works(kept, forbidden) if works is None else works)
        if not {normalise(work.title), normalise(work.maker.name)} & avoided
    }
    found: list[Thing] = []
    for title in sorted(pages):
        page = pages[title]
        if not page.is_open or not _CALLED.fullmatch(page.name) or _JOINED.search(page.name):
            continue
        told = dict(_told(page))
        work = by_title.get(title)
        if work is not None:
            told[_MADE_BY[work.noun]] = (work.maker.name, work.maker.name)
        if told:
            maker = work.maker if work is not None else None
            first = ids[title][:1]  # the page's beginning: what is told stands there
            found.append(Thing(title, page.name, _head(page), page.is_person, told, tuple(first), page.text, maker))
    wanted = {thing.maker.name for thing in found if thing.maker is not None}
    makers = {thing.name: thing for thing in found if thing.name in wanted and thing.title == thing.name}
    return Things(tuple(found), makers)


_ABOUT_A_PERSON = re.compile(r"(?:Murder|Death|Killing|Assassination|Execution|Disappearance|Shooting|Trial|Life) of\b")


def sure_enough(things: Things) -> Things:
    """What questions to train on are made from: no pages on what happened to someone, which begin as that one's biography,
    no lists, nothing that was born and is nobody, and no fact that is likely to be misread (`_sure`). All these stand in the
    evaluation sets `wide` and `mixed-balanced`, which stay as they are."""
    kept: list[Thing] = []
    for thing in things.all:
        if not is_thing(thing.title) or _ABOUT_A_PERSON.match(thing.title):
            continue
        if thing.is_person and thing.head not in OCCUPATIONS and not is_somebody(thing.text):
            continue
        told = _sure(thing.told, thing.head, thing.text)
        if told:
            kept.append(replace(thing, told=told))
    by_title = {thing.title: thing for thing in kept}
    makers = {name: by_title[maker.title] for name, maker in things.makers.items() if maker.title in by_title}
    return Things(tuple(kept), makers)


def sure_facts(page: Page) -> dict[str, Told]:
    """What a page tells, by the same stricter rules."""
    return _sure(dict(_told(page)), _head(page), page.text)


def _sure(told: Mapping[str, Told], head: str, text: str) -> dict[str, Told]:
    """Without a nationality that is somebody else's, the country of a river or lake on a border, and the first half of a
    number ("a population of 154 100")."""
    unsure = set()
    if "nation" in told and not _is_said_to_be(text, told["nation"][0]):
        unsure.add("nation")
    if "country" in told and head in ("river", "lake") and _ON_A_BORDER.search(text):
        unsure.add("country")
    if "population" in told and re.search(rf"(?<!\d){told['population'][0]}\s\d{{3}}\b", text):
        unsure.add("population")
    return {fact: value for fact, value in told.items() if fact not in unsure}


def with_whole_places(things: Things) -> Things:
    """Without birthplaces of which only the first half was read ("St" of "St. Louis"). They stand in the set
    `wide-reworded`, which stays as it is; what is trained on has none."""
    kept = []
    for thing in things.all:
        place = thing.told.get("birthplace")
        if place and re.search(rf"\b(?:{_HALF_A_PLACE.format(re.escape(place[0]))})", thing.text):
            told = {fact: value for fact, value in thing.told.items() if fact != "birthplace"}
            thing = replace(thing, told=told)
        if thing.told:
            kept.append(thing)
    by_title = {thing.title: thing for thing in kept}
    makers = {name: by_title[maker.title] for name, maker in things.makers.items() if maker.title in by_title}
    return Things(tuple(kept), makers)


_HALF_A_PLACE = r"in {0} and (?=[A-Z])|in (?=(?:St|Mt|Ft|Pt)\.){0}\."
"""Around it stand the words that go on: "Bosnia and Herzegovina"."""
_ON_A_BORDER = re.compile(r"\b(?:borders?|boundary|countries)\b")


def _is_said_to_be(text: str, nation: str) -> bool:
    """ "is a former Croatian skier", but not "is a Montenegrin footballer who plays for Croatian club X"."""
    found = re.search(rf"\b(?:is|was) (?:a|an|the) (?P<before>(?:[\w'’-]+,? ){{0,3}}?){nation}\b", text)
    return found is not None and not set(found["before"].split()) & _LEADS_ELSEWHERE


_LEADS_ELSEWHERE = words_of("for of in at from by with who that which")


_CALLED = re.compile(r"[^\W\d_][\w.'’&-]*(?: [\w.'’&-]+){0,4}")
_JOINED = re.compile(r"\b(?:and|or|nor)\b")
"""A name with such a word cannot be told from two in a list."""
_MADE_BY = {
    "film": "director",
    "album": "performer",
    "song": "performer",
    "novel": "author",
    "book": "author",
    **dict.fromkeys(
        ("company", "record label", "magazine", "newspaper", "band", "theatre company", "organization", "organisation"),
        "founder",
    ),
}


def _head(page: Page) -> str:
    return page.noun.split()[-1]


def _told(page: Page) -> Iterator[tuple[str, Told]]:
    if page.is_person:
        yield from _of_a_person(page)
        return
    yield from _years(page)
    head = _head(page)
    if head in _PLACES:
        where = _country(page)
        if where is not None:
            yield "country", where
        people = _one(_POPULATION, page.text)
        if people is not None:
            yield "population", (people, people)
    if head == "genus":
        count = _one(_SPECIES, page.text)
        if count is not None:
            yield "species", (_DIGITS.get(count, count), count)
    if head in _LIVING:
        family = _one(_FAMILY, page.text)
        if family is not None:
            yield "family", (family, family)


# ---- people ----------------------------------------------------------------------------------------------------------


def _of_a_person(page: Page) -> Iterator[tuple[str, Told]]:
    person = read_person(Passage("", page.title, page.text))
    if person is None:
        return
    yield "born", (str(person.born[0]), _date_words(page.text, person.born[0]))
    if person.died is not None:
        yield "died", (str(person.died[0]), _date_words(page.text, person.died[0]))
    if person.nation is not None:
        yield "nation", (person.nation, person.nation)
    place = birthplace(page.text)
    if place is not None:
        yield "birthplace", (place, place)
    head = _head(page)
    if head in OCCUPATIONS and person.trade:
        yield "is_a", (head, head)


def _date_words(text: str, year: int) -> str:
    return next(words for date, words, _ in dates_in(text) if date[0] == year)


def _listed(text: str) -> tuple[frozenset[str], ...]:
    return tuple(words_of(line) for line in text.strip().splitlines())


_TRADES = _listed("""
writer author novelist poet journalist playwright essayist screenwriter historian philosopher critic dramatist biographer
musician singer composer pianist guitarist rapper drummer songwriter bassist violinist conductor saxophonist trumpeter
actor actress comedian model dancer
footballer player cricketer boxer cyclist rower skier swimmer athlete wrestler skater golfer bobsledder coach manager
politician lawyer diplomat attorney judge activist
painter sculptor artist photographer illustrator printmaker cartoonist
mathematician physicist chemist astronomer biologist botanist scientist physician engineer economist
architect
bishop priest theologian
director filmmaker producer
""")
"""Occupations that can be mistaken for each other stand on one line: of two on different lines, one page saying only the
one is not the other."""
OCCUPATIONS = frozenset().union(*_TRADES) - words_of(
    "player artist scientist model coach manager producer judge critic"
)


def may_be(thing: Thing, occupation: str) -> bool:
    """Whether the page has a word of the occupation's line anywhere: then a no would be open to argument."""
    return bool(_stems(next(trades for trades in _TRADES if occupation in trades)).search(thing.text))


@lru_cache
def _stems(words: frozenset[str]) -> re.Pattern[str]:
    return re.compile(
        r"\b(?:" + "|".join(sorted({re.sub(r"(?:er|or|ist|ian|ress)$", "", word) for word in words})) + r")",
        re.IGNORECASE,
    )


_UNSURE = re.compile(
    r"(?:\b(?:c|ca|circa|fl|flourished|active|about|around|before|after|or|by|between|possibly|probably|early|mid|late"
    r"|baptised|bapt|bap|christened|buried)\b\.?[\"”]?|[?/~])[\s-]*$"
    rf"|\b(?:{'|'.join(MONTHS)})\s*\d{{0,2}}\w{{0,2}}\s*,?\s*$"
)
"""What may stand before a date that is not quite known, or is longer than it was read ("October 19 , 1945")."""
_GOES_ON = re.compile(r"[?/]| or\b")


def is_known_date(text: str, words: str) -> bool:
    """Whether the page gives this date as such: not "c. 1460s", nor "active 1702"."""
    found = find_phrase(text, words)
    if found is None:
        return False
    start, end = found
    return not _UNSURE.search(text[max(0, start - 24) : start]) and not _GOES_ON.match(text, end)


# ---- years -----------------------------------------------------------------------------------------------------------

BEGINS: dict[str, frozenset[str]] = {
    "released": words_of("film album song single documentary movie game"),
    "published": words_of("novel book"),
    "founded": words_of("company university college school club organization airline newspaper magazine manufacturer"),
    "formed": words_of("band duo group trio"),
    "opened": words_of("museum mall hotel theatre zoo"),
    "built": words_of("building house church castle bridge lighthouse skyscraper"),
}
_BY_VERB = {
    "released": "released",
    "published": "published",
    "founded": "founded",
    "established": "founded",
    "formed": "formed",
    "opened": "opened",
    "built": "built",
    "constructed": "built",
}
_BEGAN = re.compile(
    r"(?:(?:a|an|the) (?:(?!\b(?:of|by|from|for|with|to|in)\b)[^,;.]){2,60}? (?:that was |which was )?)?"
    r"(?:first |originally |officially )?(?P<verb>"
    + "|".join(_BY_VERB)
    + r")(?: (?:in|by) [A-Z][\w. ]{2,30}?)? (?:in|on)"
)
_IS_OF_YEAR = re.compile(r"\b(?:is|was) (?:a|an) (?P<thing>(?:1[89]|20)\d\d) ")
_OTHER_YEAR = re.compile(
    r"\b(?:re-?released|reissued|re-?published|reformed|re-?opened|re-?built|restored|refounded)\b"
)


def _years(page: Page) -> Iterator[tuple[str, Told]]:
    """The year in which the thing began, where the page tells one year for it."""
    head = _head(page)
    wanted = next((verb for verb, heads in BEGINS.items() if head in heads), None)
    if wanted is None or _OTHER_YEAR.search(page.text):
        return
    said: dict[str, str] = {}
    for fact in page.facts:
        if _event(fact) == wanted:
            said.setdefault(fact.answer[-4:] if fact.answer[-4:].isdigit() else _year_in(fact.answer), fact.answer)
    first = BRACKETS.sub("", sentences(page.text)[0])
    adjective = _IS_OF_YEAR.search(first) if wanted in ("released", "published") else None
    if adjective:
        said.setdefault(adjective["thing"], adjective["thing"])
    if len(said) == 1:
        (year, words), *_ = said.items()
        yield wanted, (year, words)


def _event(fact: Fact) -> str | None:
    """What began, if the fact is the year or the date of a beginning."""
    if fact.asked not in ("what year", "what date"):
        return None
    if fact.verb == "opened" and fact.before in ("in", "on"):
        return "opened"
    began = _BEGAN.fullmatch(fact.before) if fact.verb in ("is", "was", "are", "were") else None
    return _BY_VERB[began["verb"]] if began else None


def _year_in(words: str) -> str:
    return str(dates_in(words)[0][0][0])


# ---- places and living things ----------------------------------------------------------------------------------------

_PLACES = words_of("village town city municipality settlement locality river lake airport stadium")
_LIVING = words_of("genus species moth plant beetle fly spider snail butterfly fish")
KINDS = _PLACES | _LIVING | frozenset().union(*BEGINS.values())
"""Words for what a thing is that a question may put before its name. Others may be no nouns: "a film made by ..."."""
_POPULATION = re.compile(
    r"\bpopulation (?:of|was|is)(?: about| approximately| around)? "
    r"(?P<thing>\d{1,3}(?:,\d{3})+|[1-9]\d{2,})(?![\d.,]\d| million)"
)
_NUMBER_WORDS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_DIGITS = {word: str(number) for number, word in enumerate(_NUMBER_WORDS, start=2)}
_SPECIES = re.compile(
    r"\b(?:contains|comprises|includes|has|with|consists of|comprising|containing|There are)"
    rf"(?: about| approximately| around| some| only| the)? (?P<thing>\d{{2,3}}|\d|{'|'.join(_DIGITS)})"
    r"(?: (?:known|described|accepted|recognized|living|extant))? species\b"
)
_FAMILY = re.compile(r"\bfamily (?P<thing>[A-Z][a-z]+(?:idae|aceae|inae))\b")
_ARGUED = words_of("Georgia England Scotland Wales Ireland Taiwan Palestine Kosovo Serbia Yugoslavia Bosnia") | {
    "United Kingdom",
    "Soviet Union",
    "Northern Ireland",
}
"""Countries by whose names one may mean another, or a part of one."""


def _one(pattern: re.Pattern[str], text: str) -> str | None:
    """What the pattern finds, if it finds one thing."""
    found = {match["thing"] for match in pattern.finditer(text)}
    return found.pop() if len(found) == 1 else None


def _country(page: Page) -> Told | None:
    """The country, where each of the first sentences that names one names the same."""
    named: dict[str, str] = {}
    for sentence in sentences(page.text)[:3]:
        for clause in re.split(r",\s+", BRACKETS.sub("", sentence)):
            found = country(Seen(1, page.title, clause))
            if found is not None:
                named.setdefault(found[0], found[1].words)
    if len(named) != 1:
        return None
    (place, _), *_ = named.items()
    return (place, place) if place not in _ARGUED and place in page.text else None


def one_name(things: Iterable[Thing]) -> bool:
    """Whether no two of the things share a word of their names: two Johns would be told apart by luck."""
    words = Counter(word for thing in things for word in set(normalise(base_title(thing.title)).split()))
    return all(count == 1 for count in words.values())

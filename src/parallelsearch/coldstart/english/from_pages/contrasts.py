"""Questions that look as if they had several parts and must not be split, made from the pages of a corpus.

Whoever is taught many ways to list things learns to see lists. So here is the other side of the newer wordings: one thing
whose name is joined by "and", one person named beside a work, one fact in keywords (all of them one search), and chains in
two sentences or joined by "and", whose second half can only be asked once the first is known. As elsewhere the words of a
fact and its answer are the page's own, and pages that a forbidden question names, or needs, are not used.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from parallelsearch.answers import normalise
from parallelsearch.coldstart.english.evidence import find_phrase
from parallelsearch.coldstart.english.from_pages.fact_words import ASKS, NOUNS, PHRASES
from parallelsearch.coldstart.english.from_pages.pages import Fact, Page
from parallelsearch.coldstart.english.from_pages.reworded import possessive
from parallelsearch.coldstart.english.from_pages.told import KINDS, sure_facts
from parallelsearch.coldstart.english.from_pages.wordings import a_or_an, capital
from parallelsearch.coldstart.english.from_pages.works import Work
from parallelsearch.coldstart.english.lessons.two_rounds import CRAFTS
from parallelsearch.trajectory import Kind, Question

MADE_CONTRAST = "made-contrast"
"""The `dataset` of the questions made here."""
LOWER_CASE_SHARE = 0.12
MAX_PER_PAGE = 3
"""In so many of them a page is the one that answers."""
_JOINED = re.compile(r" (?:and|&|or) ")
_OF_JOINED = (
    "{asked}?",
    "{asked}",
    "Tell me: {small}?",
    "{name}: {of_it}?",
    "Quick question: {small}?",
    "Do you know this? {asked}?",
)
_BESIDE_A_WORK = ("{maker}, the {role} of the {noun} {work},", "{maker}, who {verb} the {noun} {work},")
_OF_ONE_FACT = (
    "{x} {fact}",
    "{own} {fact}?",
    "{Fact} of {x}",
    "{Ask}?",
    "I'm trying to find out {phrase}",
    "{x} - {fact}?",
    "Tell me {phrase}.",
    "{x}: {fact}",
    "I need {phrase}, please.",
    "Can you look up {phrase}?",
)
_CHAINS = (
    "Find the {role} of the {noun} {work}, and then: what is the {fact} of that {person}?",
    "Somebody {verb} the {noun} {work}, and what is the {fact} of that {person}?",
    "Take the {noun} {work} and its {role}: what is the {fact} of that {person}?",
    "The {noun} {work} has {a_role}, and what is the {fact} of that {person}?",
    "{work}, {a_noun}, has {a_role}, and what is the {fact} of that {person}?",
    "First look for the {role} of the {noun} {work}, and second: what is the {fact} of that {person}?",
    "I know the {noun} {work} and want to know more of its {role}: what is the {fact} of that {person}?",
)
"""The lesson of a chain takes its second query from behind the first question word, so that no other stands before it."""
_T = TypeVar("_T", Page, Work)
Draft = tuple[str, str, list[str]]
"""A question, its answer, and the pages that have it."""


def make_single_contrasts(
    pages: Mapping[str, Page],
    works: Sequence[Work],
    max_questions: int,
    *,
    seed: int = 0,
    forbidden: Collection[str] = (),
) -> list[Question]:
    """Up to `max_questions` of one fact, the three sorts in turn as long as that goes."""
    rng = random.Random(f"contrasts/{seed}")
    open_pages = [pages[title] for title in sorted(pages) if pages[title].is_open]
    sorts = (
        _drafts(_of_a_joined_name, [page for page in open_pages if _JOINED.search(page.name)], rng),
        _drafts(_of_one_fact, [page for page in open_pages if page.name[0].isupper()], rng),
        _drafts(lambda work, draw: _beside_a_work(work, pages, draw), _shown(works, pages), rng),
    )
    return _made(_in_turn(sorts), "single", max_questions, forbidden, rng)


def make_chain_contrasts(
    pages: Mapping[str, Page],
    works: Sequence[Work],
    max_questions: int,
    *,
    seed: int = 0,
    forbidden: Collection[str] = (),
) -> list[Question]:
    """Up to `max_questions` chains from a work to its maker that do not look like one clause inside another."""
    rng = random.Random(f"contrasts/chains/{seed}")
    drafts = _drafts(lambda work, draw: _from_a_work(work, pages, draw), _shown(works, pages), rng)
    return _made(drafts, "sequential", max_questions, forbidden, rng)


def _shown(works: Sequence[Work], pages: Mapping[str, Page]) -> list[Work]:
    """Works that may be named, whose makers' pages are at hand."""
    return [work for work in works if work.title in pages and pages[work.title].is_open and work.maker.name in pages]


def _drafts(
    way: Callable[[_T, random.Random], Draft | None], some: Sequence[_T], rng: random.Random
) -> Iterable[Draft]:
    for one in rng.sample(some, len(some)):
        draft = way(one, rng)
        if draft is not None:
            yield draft


def _in_turn(sorts: Iterable[Iterable[Draft]]) -> Iterable[Draft]:
    left = [iter(sort) for sort in sorts]
    while left:
        for sort in list(left):
            draft = next(sort, None)
            if draft is None:
                left.remove(sort)
            else:
                yield draft


def _made(
    drafts: Iterable[Draft], kind: Kind, max_questions: int, forbidden: Collection[str], rng: random.Random
) -> list[Question]:
    made: list[Question] = []
    seen = set(forbidden)
    uses: Counter[str] = Counter()
    for text, answer, titles in drafts:
        if len(made) >= max_questions:
            break
        if normalise(text) in seen or normalise(answer) in normalise(text) or uses[titles[-1]] >= MAX_PER_PAGE:
            continue
        seen.add(normalise(text))
        uses[titles[-1]] += 1
        text = text.lower() if rng.random() < LOWER_CASE_SHARE else text
        name = f"made-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        made.append(Question(text, [answer], id=name, dataset=MADE_CONTRAST, kind=kind, supporting_titles=titles))
    return made


def _small(text: str) -> str:
    return text[0].lower() + text[1:]


def _fronted(page: Page, subject: str, rng: random.Random) -> tuple[str, Fact] | None:
    facts = [fact for fact in page.facts if fact.fronted(subject)]
    if not facts:
        return None
    fact = rng.choice(facts)
    text = fact.fronted(subject)
    return (text, fact) if text is not None else None


def _of_a_joined_name(page: Page, rng: random.Random) -> Draft | None:
    """ "In what year was the film Sense and Sense released?"."""
    head = page.noun.split()[-1]
    subject = f"the {head} {page.name}" if head in KINDS and not page.is_person and rng.random() < 0.5 else page.name
    found = _fronted(page, subject, rng)
    if found is None:
        return None
    text, fact = found
    of_it = fact.fronted("he or she" if page.is_person else "it" if fact.verb in ("was", "is") else "they") or text
    said = rng.choice(_OF_JOINED).format(asked=text, small=_small(text), name=page.name, of_it=_small(of_it))
    return said, fact.answer, [page.title]


def _beside_a_work(work: Work, pages: Mapping[str, Page], rng: random.Random) -> Draft | None:
    """ "In what year was Ira Moss, the director of the film Blue Gate, born?": the work is not looked up."""
    page = pages[work.maker.name]
    craft = CRAFTS[work.noun]
    words = {"maker": page.name, "role": craft.role, "verb": craft.verb, "noun": work.noun, "work": work.name}
    told = _told_apart_from(pages[work.title], page)  # or the work's page would be quoted
    if not page.is_open or not told:
        return None
    fact = rng.choice(sorted(told))
    subject = rng.choice(_BESIDE_A_WORK).format(**words)
    text = capital(f"{rng.choice(ASKS[fact]).format(x=subject)}?").replace(",?", "?")
    return text, told[fact], [page.title]


def _told_apart_from(first: Page, page: Page) -> dict[str, str]:
    """What a page tells that the first one does not."""
    told = {fact: value for fact, (value, _) in sure_facts(page).items() if fact in ASKS}
    return {fact: value for fact, value in told.items() if not find_phrase(first.text, value)}


def _of_one_fact(page: Page, rng: random.Random) -> Draft | None:
    """ "Ada Brenn birth year": keywords, and one thing all the same."""
    told = {fact: value for fact, (value, _) in sure_facts(page).items() if fact in ASKS}
    if not told:
        return None
    fact = rng.choice(sorted(told))
    noun = rng.choice(NOUNS[fact])[0]
    words = {"x": page.name, "own": possessive(page.name)}
    ask, phrase = (rng.choice(some[fact]).format(**words) for some in (ASKS, PHRASES))
    text = rng.choice(_OF_ONE_FACT).format(**words, fact=noun, Fact=capital(noun), Ask=capital(ask), phrase=phrase)
    return text, told[fact], [page.title]


def _from_a_work(work: Work, pages: Mapping[str, Page], rng: random.Random) -> Draft | None:
    """ "Take the film Blue Gate and its director: what is the year of birth of that person?"."""
    page = pages[work.maker.name]
    craft = CRAFTS[work.noun]
    told = _told_apart_from(pages[work.title], page)
    if not told:
        return None
    fact = rng.choice(sorted(told))
    text = rng.choice(_CHAINS).format(
        role=craft.role,
        a_role=a_or_an(craft.role),
        verb=craft.verb,
        noun=work.noun,
        a_noun=a_or_an(work.noun),
        work=work.name,
        fact=rng.choice(NOUNS[fact])[0],
        person=rng.choice(("person", craft.role)),
    )
    return text, told[fact], [work.title, page.title]

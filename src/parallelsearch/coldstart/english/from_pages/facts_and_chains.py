"""Questions of one fact and of two links, made from the pages of a corpus: practice in finding the sentence that answers.

A small model quotes the head of a page, because that is where most answers of its few training questions stand. Here a fact
(`pages.py`) from anywhere on a page becomes a question: "X was built in 1931" gives "In what year was X built?", or when
another page leads to X, the second link of a chain: "A was designed by an architect who was born in what city?". The words
are the pages' own, the answer is what was taken out. Pages that a forbidden question names, or needs, are not used.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from parallelsearch.answers import normalise
from parallelsearch.coldstart.english.evidence import MONTHS, find_phrase, sentences
from parallelsearch.coldstart.english.from_pages.pages import (
    BRACKETS,
    MAX_CLAUSE_WORDS,
    MAX_PAGE_CHARS,
    STOPS,
    Fact,
    Page,
    predicate,
)
from parallelsearch.coldstart.english.from_pages.works import Work
from parallelsearch.coldstart.english.lessons.two_rounds import CRAFTS
from parallelsearch.data.alternatives import words_of
from parallelsearch.retrieval.base import Passage
from parallelsearch.trajectory import Question

MADE_CHAIN = "made-chain"
MADE_FACT = "made-fact"
"""The `dataset` of the questions made here."""
MAX_QUESTION_WORDS = 42
MAX_FACTS_PER_PAGE = 8
"""In this many questions a page is the one that answers, at most."""
PREFERS_NAMES = 0.75
FACTS_PER_LINK = 4
MAX_SAME_ANSWER = 20
"""A place that everything is in would be guessed without reading."""


# ---- links -----------------------------------------------------------------------------------------------------------

_LEADS = words_of("by in for from at of near with to starring featuring on under")


@dataclass(frozen=True, slots=True)
class Link:
    """How one page leads to another: "Rage is the second album by a metalcore band", or "the director of the film A"."""

    first: str
    second: str
    opening: str = ""
    """The first page's words up to the second's name, for a question that begins with them."""
    role: str = ""
    """The second page's subject by what it did for the first, for a question that asks for it directly."""


def read_links(passages: Iterable[Passage], pages: Mapping[str, Page]) -> list[Link]:
    """Sentences of one page's subject that name another page."""
    heads = frozenset(page.noun.split()[-1] for page in pages.values())
    by_name = {
        page.name: title
        for title, page in pages.items()
        if (page.name == title or " " in page.name) and page.name not in MONTHS
    }
    found: list[Link] = []
    seen: set[str] = set()
    for passage in passages:
        page = pages.get(passage.title)
        if page is None or not page.is_open or passage.title in seen:
            continue
        seen.add(passage.title)
        for number, sentence in enumerate(sentences(passage.text[:MAX_PAGE_CHARS])):
            clause = predicate(" ".join(BRACKETS.sub("", sentence).split()), page.name, number)
            if clause is None:
                continue
            for start, name in _named(clause, by_name):
                opening = _opening(page, clause[:start], pages[by_name[name]], heads)
                if opening is not None and by_name[name] != passage.title:
                    found.append(Link(passage.title, by_name[name], opening))
    return found


def _named(clause: str, by_name: Mapping[str, str]) -> Iterable[tuple[int, str]]:
    """The names of pages in a clause, the longest where several begin at one place."""
    words = [(match.start(), match.end()) for match in re.finditer(r"[^\s,;:\"]+", clause)]
    for first, (start, _) in enumerate(words):
        if not clause[start].isupper() or (first and clause[words[first - 1][0]].isupper()):
            continue
        for last in range(min(len(words), first + 6) - 1, first - 1, -1):
            name = clause[start : words[last][1]].rstrip(".")
            if name in by_name:
                is_whole = last + 1 == len(words) or not clause[words[last + 1][0]].isupper()
                if is_whole:
                    yield start, name
                break


def _opening(page: Page, before: str, second: Page, heads: Collection[str]) -> str | None:
    """The words up to the other page's name, which a description takes the place of."""
    words = before.split()
    if not 2 <= len(words) <= MAX_CLAUSE_WORDS or before.count('"') % 2 or re.search(r"[;:]|\band\b", before):
        return None
    place = next((n for n in range(len(words) - 1, max(-1, len(words) - 7), -1) if words[n] in _LEADS), None)
    if place is None or set(normalise(second.name).split()) & set(normalise(page.name).split()):
        return None
    described = [word for word in words[place + 1 :] if word not in ("the", "The", "a", "an", "its", "his", "her")]
    if any(word.endswith((",", "'s", "’s")) for word in described):
        return None
    noun = " ".join(described)
    if not noun or noun.split()[-1] not in heads or set(described) & STOPS:
        noun = second.noun
    article = "an" if noun[0].lower() in "aeiou" else "a"
    return f"{page.name} {' '.join(words[: place + 1])} {article} {noun}"


def links_of_works(works: Iterable[Work], pages: Mapping[str, Page]) -> list[Link]:
    """ "the director of the film A", for films, records and books and the people who made them."""
    return [
        Link(work.title, work.maker.name, role=f"the {CRAFTS[work.noun].role} of the {work.noun} {work.name}")
        for work in works
        if work.maker.name in pages and work.title in pages and pages[work.title].is_open
    ]


# ---- questions -------------------------------------------------------------------------------------------------------


def make_facts(
    pages: Mapping[str, Page], max_questions: int, *, seed: int = 0, forbidden: Collection[str] = ()
) -> list[Question]:
    """Questions of one fact that begin with the question word. With it in its place ("X was built in what year?") they would
    look like chains, and a policy taught with them answers chains after one search (docs/results.md)."""
    rng = random.Random(f"facts/{seed}")
    made = _Made(max_questions, forbidden)
    for page, fact in _shuffled(pages, rng):
        text = fact.fronted(page.name)
        made.add(Question(f"{text}?", [fact.answer], dataset=MADE_FACT, kind="single", supporting_titles=[page.title]))
    return made.questions


def make_chains(
    pages: Mapping[str, Page],
    links: Sequence[Link],
    max_questions: int,
    *,
    seed: int = 0,
    forbidden: Collection[str] = (),
) -> list[Question]:
    """Questions of two links, as many that ask for the maker of a thing as there are, up to a third."""
    rng = random.Random(f"chains/{seed}")
    made = _Made(max_questions, forbidden)
    roles = [link for link in links if link.role]
    others = [link for link in links if link.opening]
    rng.shuffle(roles)
    rng.shuffle(others)
    for number in range(len(roles) + len(others)):
        if not others:
            break
        link = roles.pop() if roles and number % 3 == 0 else others.pop()
        second = pages[link.second]
        known = f"{pages[link.first].text} {link.opening} {link.role}"
        facts = [fact for fact in second.facts if not find_phrase(known, fact.answer) and _is_new(fact, second)]
        if not facts:
            continue
        for fact in _drawn(facts, FACTS_PER_LINK, rng):
            made.add(_chain(link, fact, pages))
    return made.questions


def _chain(link: Link, fact: Fact, pages: Mapping[str, Page]) -> Question:
    if link.role:
        text = fact.fronted(link.role) or f"{link.role[0].upper()}{link.role[1:]} {fact.in_place}"
    else:
        text = f"{link.opening} {_told(fact, pages[link.second])}"
    titles = [link.first, link.second]
    return Question(f"{text}?", [fact.answer], dataset=MADE_CHAIN, kind="sequential", supporting_titles=titles)


def _told(fact: Fact, page: Page) -> str:
    """The fact as a clause behind a description; what only repeats the description is left away."""
    for article in ("a", "an", "the"):
        rest = fact.before.removeprefix(f"{article} {page.noun} ")
        if rest != fact.before and _GOES_ON.match(rest):
            return f"{rest} {fact.asked}"
    return f"{'who' if page.is_person else 'that'} {fact.in_place}"


_GOES_ON = re.compile(
    r"(?:who|that|which|born|based|located|founded|formed|known|from|in|of|directed|written|published|released)\b"
)


def _is_new(fact: Fact, page: Page) -> bool:
    """The clause says more than what the subject is, or is told so that it does."""
    if fact.verb in ("is", "was", "are", "were") and re.match(r"(?:a|an|the|one)\b", fact.before):
        return _told(fact, page).split()[0] not in ("who", "that") or "who" in fact.before.split()
    return True


def _drawn(facts: Sequence[Fact], count: int, rng: random.Random) -> list[Fact]:
    """Some of the facts, names before years and numbers in most draws: most sentences have one of the latter."""
    order = rng.sample(facts, len(facts))
    if rng.random() < PREFERS_NAMES:
        order.sort(key=lambda fact: bool(re.search(r"\d", fact.answer)) or fact.asked.startswith("how many"))
    return order[:count]


def _shuffled(pages: Mapping[str, Page], rng: random.Random) -> list[tuple[Page, Fact]]:
    """Each page that may be named, and one of its facts that can be asked for up front."""
    drawn: list[tuple[Page, Fact]] = []
    for title in sorted(pages):
        page = pages[title]
        facts = [fact for fact in page.facts if fact.fronted(page.name)] if page.is_open else []
        if facts:
            drawn.append((page, _drawn(facts, 1, rng)[0]))
    rng.shuffle(drawn)
    return drawn


class _Made:
    """Questions as they come: each once, no forbidden one, no answer or page too often."""

    def __init__(self, max_questions: int, forbidden: Collection[str]) -> None:
        self.max_questions = max_questions
        self.questions: list[Question] = []
        self._seen = set(forbidden)
        self._answers: Counter[str] = Counter()
        self._pages: Counter[str] = Counter()

    def add(self, question: Question) -> None:
        key, answer = normalise(question.question), normalise(question.golden_answers[0])
        last = (question.supporting_titles or [""])[-1]
        too_often = self._answers[answer] >= MAX_SAME_ANSWER or self._pages[last] >= MAX_FACTS_PER_PAGE
        is_fit = answer and len(question.question.split()) <= MAX_QUESTION_WORDS
        if len(self.questions) >= self.max_questions or key in self._seen or too_often or not is_fit:
            return
        self._seen.add(key)
        self._answers[answer] += 1
        self._pages[last] += 1
        question.id = f"made-{hashlib.sha256(question.question.encode()).hexdigest()[:16]}"
        self.questions.append(question)

"""Comparisons made from the pages of a corpus: practice in reading two pages against each other.

HotpotQA train has some sixteen hundred comparisons whose pages are in the corpus, and of those that ask which of two things
fits a description only a few hundred. A policy taught with so few answers them no better than a coin. Here two pages of the
same kind, two bands or two films, are put side by side: which of them the words of one page fit, which came first, whether
both are something, what both are. The words are the pages' own, and the lesson that teaches a question checks its answer
against what the search brings. Pages that a forbidden question names, or needs, are not used (`pages.py`).
"""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence

from parallelsearch.answers import normalise
from parallelsearch.coldstart.english.evidence import (
    birth_date,
    event_date,
    find_phrase,
    later_of,
    number_near,
    overlap,
)
from parallelsearch.coldstart.english.from_pages.pages import STOPS, Fact, Page
from parallelsearch.coldstart.lesson import Seen
from parallelsearch.data.alternatives import words_of
from parallelsearch.trajectory import Question

MADE_COMPARISON = "made-comparison"
"""The `dataset` of the questions made here."""
MAX_QUESTION_WORDS = 36
MAX_PER_PAGE = 3
"""In so many questions a page may be compared."""
MAX_PER_HEAD = 0.08
"""Of all questions so many may be about one kind of thing, where there are others: most pages are films and footballers."""

COUNT_SHARE = 0.15
"""Of all questions so many at most are about more or fewer of something; of HotpotQA's comparisons one in eight is."""
MORE_SHARE = 0.7
"""The others ask for fewer, which is asked less often and must be told apart all the same."""
MAX_COUNT_WORDS = 16
YES_SHARE = 0.4
"""Most draws for a no find a page that might be one all the same, so that about half come out as yes."""
MIN_OF_A_KIND = 25
"""A word for what things are must be used of so many pages, or it says too little of what to look for."""

_NO_KIND = re.compile(r"(?:ed|able|ing)$|^(?:most|more)\b")
Draft = tuple[str, str]
"""A question and its answer."""


def make_comparisons(
    pages: Mapping[str, Page],
    max_questions: int,
    *,
    seed: int = 0,
    forbidden: Collection[str] = (),
    min_of_a_kind: int = MIN_OF_A_KIND,
) -> list[Question]:
    """Up to `max_questions`, the ways to compare in turn as long as that goes. The order depends on the seed alone."""
    rng = random.Random(f"comparisons/{seed}")
    kinds: dict[tuple[str, bool], list[Page]] = defaultdict(list)
    for title in sorted(pages):
        page = pages[title]
        if page.is_open and not _NO_KIND.search(page.noun):
            kinds[_head(page), page.is_person].append(page)
    pairs = [pair for kind in sorted(kinds) if len(kinds[kind]) >= min_of_a_kind for pair in _pairs(kinds[kind], rng)]
    rng.shuffle(pairs)
    counted = _counted_pairs([page for kind in sorted(kinds) for page in kinds[kind]], max(2, min_of_a_kind // 2), rng)
    made: list[Question] = []
    seen = set(forbidden)
    used: Counter[str] = Counter()
    heads: Counter[str] = Counter()
    fair = max(1, MAX_PER_HEAD * max_questions)
    # Two pages that count the same thing are rare, so they come first. Then a balanced mix; a corpus of few kinds, or without
    # dates, is used up all the same.
    for drawn, most, limit, ways_in_turn, num_ways in (
        (counted, COUNT_SHARE * max_questions, fair / 2, (which_has_more,), 1),
        (pairs, max_questions, fair, WAYS, 1),
        (pairs, max_questions, max_questions, WAYS, len(WAYS)),
    ):
        for one, other in drawn:
            if len(made) >= most:
                break
            if heads[_head(one)] >= limit or max(used[one.title], used[other.title]) >= MAX_PER_PAGE:
                continue
            ways = (ways_in_turn[(len(made) + number) % len(ways_in_turn)] for number in range(num_ways))
            draft = next((draft for way in ways if (draft := way(one, other, rng)) is not None), None)
            if draft is None or normalise(draft[0]) in seen or len(draft[0].split()) > MAX_QUESTION_WORDS:
                continue
            seen.add(normalise(draft[0]))
            used.update((one.title, other.title))
            heads[_head(one)] += 1
            made.append(
                Question(
                    draft[0],
                    [draft[1]],
                    id=f"made-{hashlib.sha256(draft[0].encode()).hexdigest()[:16]}",
                    dataset=MADE_COMPARISON,
                    kind="parallel",
                    supporting_titles=[one.title, other.title],
                )
            )
    return rng.sample(made, len(made))  # whoever takes the first few gets some of each


def _head(page: Page) -> str:
    return page.noun.split()[-1]


def _pairs(pages: Sequence[Page], rng: random.Random) -> list[tuple[Page, Page]]:
    """Each page with a few others of its kind, without a word in common: two Johns would be told apart by luck."""
    order = rng.sample(pages, len(pages))
    found = []
    for step in range(1, MAX_PER_PAGE + 1):
        for number, one in enumerate(order):
            other = order[(number + step) % len(order)]
            if other is not one and not set(normalise(one.name).split()) & set(normalise(other.name).split()):
                found.append((one, other))
    return found


# ---- ways to compare -------------------------------------------------------------------------------------------------


def which_fits(one: Page, other: Page, rng: random.Random) -> Draft | None:
    """ "Which band was formed in Askvik, A or B?": words of the first page that the second does not have."""
    facts = [fact for fact in one.facts if not fact.asked.startswith("how many") and _tells_apart(fact, other)]
    if not facts:
        return None
    fact = rng.choice(facts)
    asks = "Who" if one.is_person else f"Which {_head(one)}"
    return f"{asks} {fact.verb} {fact.before} {fact.answer}, {_either(one, other, rng)}?", one.name


def _tells_apart(fact: Fact, other: Page) -> bool:
    words = [word for word in normalise(f"{fact.before} {fact.answer}").split() if word not in STOPS]
    is_plain = (
        len(fact.before.split()) <= 10
        and _head(other) not in fact.before.split()[:5]
        and not re.search(r"[\"()]|\bor\b", f"{fact.before} {fact.answer}")
    )
    return is_plain and not find_phrase(other.text, fact.answer) and overlap(other.text, words) < 0.6 * len(words)


_BEGINS = {
    "formed": words_of("band group duo trio quartet orchestra"),
    "released": words_of("film album song single documentary movie comedy drama game"),
    "published": words_of("novel book magazine newspaper journal"),
    "founded": words_of("university college school company club city town organization airline museum"),
    "built": words_of("skyscraper building church castle bridge house"),
}
_FIRST = ("first", "earlier")
_LAST = ("last", "most recently", "later")


def which_came_first(one: Page, other: Page, rng: random.Random) -> Draft | None:
    """ "Who was born first, A or B?", "Which band was formed last, A or B?"."""
    verb = "born" if one.is_person else next((verb for verb, heads in _BEGINS.items() if _head(one) in heads), None)
    if verb is None:
        return None
    dates = [birth_date(page.text) if one.is_person else event_date(page.text, [verb]) for page in (one, other)]
    if dates[0] is None or dates[1] is None:
        return None
    order = later_of(dates[0][0], dates[1][0])
    if order == 0:
        return None
    wants_first = rng.random() < 0.5
    winner = (one if order < 0 else other) if wants_first else (other if order < 0 else one)
    word = rng.choice(_FIRST if wants_first else _LAST)
    asks = "Who" if one.is_person else f"Which {_head(one)}"
    return f"{asks} was {verb} {word}, {_either(one, other, rng)}?", winner.name


def are_both(one: Page, other: Page, rng: random.Random) -> Draft | None:
    """ "Are A and B both rock bands?": yes for the words that both pages use of their subjects, no for more of one."""
    shared = _shared(one.noun, other.noun)
    if not shared:
        return None
    if rng.random() < YES_SHARE:
        asked, answer = shared, "yes"
    else:
        asked, answer = one.noun, "no"
        told = [word for word in normalise(asked).split() if word not in normalise(shared).split()]
        if not told or any(overlap(other.text, [word]) for word in told):
            return None
    asked_of_both = plural(asked)
    first, second = _shuffled(one, other, rng)
    text = rng.choice(
        (f"Are {first} and {second} both {asked_of_both}?", f"Are both {first} and {second} {asked_of_both}?")
    )
    return (text, answer) if asked_of_both else None


def what_both_are(one: Page, other: Page, rng: random.Random) -> Draft | None:
    """ "What do A and B have in common?": the words in which both pages say what their subjects are, nationality aside."""
    shared = " ".join(word for word in _shared(one.noun, other.noun).split() if word.islower())
    if not shared or not all(find_phrase(page.text, shared) for page in (one, other)):
        return None
    first, second = _shuffled(one, other, rng)
    asks = (
        (f"What profession do {first} and {second} share?", f"{first} and {second} both had what occupation?")
        if one.is_person
        else (f"What kind of thing are both {first} and {second}?", f"{first} and {second} are both what?")
    )
    return rng.choice((*asks, f"What do {first} and {second} have in common?")), shared


_COUNTABLE = words_of(
    "species genera goals appearances students families people inhabitants residents films novels episodes acts members "
    "tracks songs stories storeys floors beds seats titles caps seasons chapters pages albums books games matches medals "
    "children schools stations islands branches employees volumes issues passengers rooms lanes tries wickets points"
)
_COUNT = re.compile(
    r"(?<![\w.,])(?:\d{1,3}(?:,\d{3})+|\d{1,4}|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve)"
    r"(?:\s+\w+)?[\s-](?P<noun>[a-z]+)\b"
)


def counts_of(page: Page) -> list[str]:
    """What the page gives numbers of: "species", "goals"; not more of its own kind ("one of two albums")."""
    nouns = (match["noun"] for match in _COUNT.finditer(page.text))
    return list(dict.fromkeys(noun for noun in nouns if noun in _COUNTABLE and noun != plural(_head(page))))


def which_has_more(one: Page, other: Page, rng: random.Random) -> Draft | None:
    """ "Which genus has more species, A or B?": a thing that both pages give a number of."""
    shared = [noun for noun in counts_of(one) if noun in counts_of(other)]
    for noun in shared:
        numbers = [number_near(Seen(1, page.title, page.text), [noun], MAX_COUNT_WORDS) for page in (one, other)]
        if numbers[0] is None or numbers[1] is None or numbers[0][0] == numbers[1][0]:
            continue
        wants_more = rng.random() < MORE_SHARE
        winner = one if (numbers[0][0] > numbers[1][0]) == wants_more else other
        asks = "Who" if one.is_person else f"Which {_head(one)}"
        return f"{asks} has {'more' if wants_more else 'fewer'} {noun}, {_either(one, other, rng)}?", winner.name
    return None


def _counted_pairs(pages: Sequence[Page], min_of_a_kind: int, rng: random.Random) -> list[tuple[Page, Page]]:
    """Pages of one kind that count the same thing. What is counted on few pages of a kind says little about it: stadiums have
    seats, and hardly one has seasons."""
    groups: dict[tuple[str, bool, str], list[Page]] = defaultdict(list)
    for page in pages:
        for noun in counts_of(page):
            groups[_head(page), page.is_person, noun].append(page)
    found = [pair for key in sorted(groups) if len(groups[key]) >= min_of_a_kind for pair in _pairs(groups[key], rng)]
    return rng.sample(found, len(found))


WAYS = (which_fits, which_came_first, which_fits, are_both, which_fits, what_both_are)
"""In turn; descriptions most often, because they are what real questions give least practice in."""


def _shared(one: str, other: str) -> str:
    """The words both end with: "rock band" for "American rock band" and "English indie rock band"."""
    first, second = one.split(), other.split()
    count = 0
    while count < min(len(first), len(second)) and first[-count - 1].lower() == second[-count - 1].lower():
        count += 1
    return " ".join(first[len(first) - count :])


def plural(noun: str) -> str:
    """The regular ones; empty for others."""
    if noun.endswith(("s", "man", "woman", "person", "series", "fish")):
        return ""
    if re.search(r"[^aeiou]y$", noun):
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("ch", "sh", "x")) else f"{noun}s"


def _shuffled(one: Page, other: Page, rng: random.Random) -> tuple[str, str]:
    return (one.name, other.name) if rng.random() < 0.5 else (other.name, one.name)


def _either(one: Page, other: Page, rng: random.Random) -> str:
    return " or ".join(_shuffled(one, other, rng))

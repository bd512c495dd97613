"""What the cold start writes: the thoughts of a trajectory, in several wordings of the same content.

The wording of a plan varies, so that a model learns what a thought is for and not one sentence. How evidence is quoted
does not vary: the passage's number, its name and the words, in the form in which passages are shown, because copying is
what a small model does best. Nothing here searches or decides.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from parallelsearch.training.decompose import Ask
from parallelsearch.training.evidence import Quote

_ASPECT = {
    "birth": "the date of birth",
    "death": "the date of death",
    "age": "the dates of birth and death",
    "nationality": "the nationality",
    "country": "the country",
    "year": "the year",
}


def topic_of(ask: Ask, relation: str) -> str:
    """The thing compared, in words: by the aspect, or the words that go into the query."""
    return _ASPECT.get(ask.aspect) or (f"the facts on {relation}" if relation else "the main facts")


def plan_parallel(rng: random.Random, names: Sequence[str], topic: str) -> str:
    listed = _listed(names)
    return rng.choice(
        (
            f"I need {topic} for {listed}. They do not depend on each other, so I search for them together.",
            f"The question compares {listed}. I can look up {topic} of each at the same time.",
            f"Two separate lookups: {topic} of {listed}. Neither needs the other, so one search is enough."
            if len(names) == 2
            else f"Separate lookups: {topic} of {listed}. None needs another, so one search is enough.",
            f"{listed}: for each of them I need {topic}. Independent parts, so I ask for all at once.",
            f"To answer this I look up {topic} of {listed}, all in one go, since they are independent.",
        )
    )


def plan_one_by_one(rng: random.Random, names: Sequence[str], topic: str) -> str:
    listed = _listed(names)
    return rng.choice(
        (
            f"I need {topic} for {listed}. I start with {names[0]}.",
            f"The question compares {listed}. First I look up {topic} of {names[0]}.",
            f"Two lookups: {topic} of {listed}. {names[0]} comes first."
            if len(names) == 2
            else f"Several lookups: {topic} of {listed}. {names[0]} comes first.",
            f"{listed}: for each of them I need {topic}. I begin with {names[0]}.",
            f"To answer this I look up {topic} of {listed}, one after the other, {names[0]} first.",
        )
    )


def next_of(rng: random.Random, name: str, topic: str) -> str:
    return rng.choice(
        (f"Next I look up {topic} of {name}.", f"Now {topic} of {name}.", f"Then I need {topic} of {name}.")
    )


def plan_chain(rng: random.Random, start: str | None) -> str:
    about = f" I start from {start}." if start else ""
    return rng.choice(
        (
            f"This is a chain: one fact leads to the next.{about} I search for the first link.",
            f"I must first find out what this is about.{about} What comes next depends on it.",
            f"The answer depends on something I do not know yet, so I go step by step.{about}",
            f"One thing has to be found before the other.{about} I look for it first.",
            f"I cannot ask for everything at once here.{about} The first step is to find the link.",
        )
    )


def plan_single(rng: random.Random) -> str:
    return rng.choice(
        (
            "This needs one fact. I search for it.",
            "One lookup should be enough here.",
            "A single search can answer this.",
            "I do not know this for sure, so I look it up.",
            "The question asks for one thing. I search for it directly.",
        )
    )


def next_link(rng: random.Random, name: str, topic: str) -> str:
    about = f" ({topic})" if topic else ""
    return rng.choice(
        (f"So the next step is {name}{about}.", f"That leads to {name}{about}.", f"Now I look up {name}{about}.")
    )


def quote(name: str, found: Quote) -> str:
    """The form in which a passage is shown, so that it can be copied."""
    words = found.words.rstrip(".,; ")
    return f"[{found.number}] {name}: {words}."


def gives(rng: random.Random, answer: str) -> str:
    return rng.choice((f"So the answer is {answer}.", f"This gives {answer}.", f"That is {answer}."))


def compare_values(names: Sequence[str], values: Sequence[str], numbers: Sequence[int], verb: str) -> str:
    """Two values side by side."""
    (first, second), (one, other) = names, values
    return f"[{numbers[0]}] {first} {verb} {one}. [{numbers[1]}] {second} {verb} {other}."


def asked_for(which: str) -> str:
    """Said before the evidence: the words that decide stand in the question, behind pages of results. Without them a yes or
    no question is answered with a noun (one in six of the parallel twin's, validation of the fourth runs)."""
    return f"Asked for: {which}."


def decide(high: str, low: str, which: str, value: str, name: str, relation: str = "after") -> str:
    """The comparison in steps of which each is a copy or a look at two numbers: the larger value always comes first, then
    the one that is asked for, then whose it is."""
    return f"{high} is {relation} {low}. The {which} is {value}: {name}."


def said_of(told: str, name: str) -> str:
    """The words that tell two things apart, copied from a quote, and whose quote it was."""
    return f"{told} is said of {name}. So {name}."


_STEM_EDGE = ' ?.,;:!"“”'
_NAME = "\0"
_NAMES_TOGETHER = re.compile(
    r"(?:\b(?:both|between|either|out of|of the two)\b[\s,:]*)*(?:\bthe\s+)?\0"
    r"(?:[\s,]*(?:\b(?:and|or)\b|&)?[\s,]*(?:\bthe\s+)?\0)+",
    re.IGNORECASE,
)
_NAME_ALONE = re.compile(r"[\s,]*(?:\b(?:and|or|both)\b\s*)?\0")
_OPENING = re.compile(
    r"^(?:(?:are|is|was|were|do|does|did|ha(?:ve|s|d)(?! in common)|can|could|both|in(?! common)|they|which|who|what)\b"
    r"[\s,:]*(?=\S*\s*\w))+",
    re.IGNORECASE,
)


def stem_of(question: str, names: Sequence[str], max_words: int = 14) -> str:
    """What is asked about the names, in the question's own words: the names left out, and what only leads up to it. Empty
    where the question does not name them."""
    rest = question
    for name in sorted(names, key=len, reverse=True):
        rest, count = re.subn(rf'["“”]?(?<!\w){re.escape(name)}(?!\w)["“”]?', _NAME, rest, flags=re.IGNORECASE)
        if not count:
            return ""
    rest = _NAME_ALONE.sub(" ", _NAMES_TOGETHER.sub(" ", rest))
    rest = " ".join(re.sub(r"\s*[,;:]?\s+([,;:?!.])", r"\1", rest).split()).strip(_STEM_EDGE)
    shorter = _OPENING.sub("", rest)
    return " ".join((shorter or rest).split()[:max_words]).strip(_STEM_EDGE)


MIN_ASKED_WORDS = 8
_ASKING = re.compile(r"\b(?:what|which|how (?:many|much|long|old|far|often)|when|where)\b", re.IGNORECASE)
_PREPOSITION = r"(?:in|on|at|for|from|by|of|to|with|during|under|after|before)"
_ASKING_WHO = re.compile(r"\b(?:who|whom|whose)\b", re.IGNORECASE)


def asked_words(question: str, max_words: int = 12) -> str:
    """The words that say what kind of answer is wanted, in the question's own wording; empty if there are none. Where the
    question word stands near the end, what it belongs to stands before it: "was founded on what date". Of several the last
    one asks ("the hospital at which he worked excels in which fields"), unless the question begins with one."""
    starts = re.match(
        rf"\W*(?:{_PREPOSITION}\s+)?(?=(?:who|whom|whose|what|which|how|when|where)\b)", question, re.IGNORECASE
    )
    asking = list(_ASKING.finditer(question))
    found = starts or (asking[-1] if asking else _ASKING_WHO.search(question))
    if found is None:
        return ""
    start = found.end() if starts else found.start()
    before, after = question[:start].split(), question[start:].split()[:max_words]
    missing = max(0, MIN_ASKED_WORDS - len(after))
    return " ".join([*before[len(before) - min(missing, len(before)) :], *after]).strip(' ?.,;:"')


def _listed(names: Sequence[str]) -> str:
    return " and ".join(names) if len(names) < 3 else ", ".join(names[:-1]) + " and " + names[-1]

"""The words of questions of several parts: for every form several ways to ask, and the ways people write.

A wording is a template over the list of names ("{some_and}", "{some_or}"), the things' kind ("{things}", "{thing}") and
what is said of them. Around it comes what people put around a question: a polite opening, small letters only, a word for
what each name is. Everything is our own; nothing here draws things or decides answers.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from parallelsearch.coldstart.english.from_pages.templates import TO_MEASURE, TO_TRAIN, Templates
from parallelsearch.coldstart.english.wide import FACTS
from parallelsearch.data.alternatives import words_of

LOWER_CASE_SHARE = 0.12
POLITE_SHARE = 0.12
DESCRIBED_SHARE = 0.15
"""Of the questions so many are in small letters, have a polite frame, or say of each name what it is."""
TYPED_SMALL_SHARE = 0.2
"""Of the questions worded as people type, so many are in small letters."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a question says of things, as the different clauses need it."""

    several: str
    """ "were born before 1920"."""
    one: str
    """ "was born before 1920"."""
    opens: str
    """What a question about several opens with: "Were"; `rest` is what follows them."""
    opens_one: str
    rest: str
    rest_one: str


_EVENTS = {
    "died": Said("died", "died", "Did", "Did", "die", "die"),
    **{
        verb: Said(f"were {verb}", f"was {verb}", "Were", "Was", verb, verb)
        for verb in ("born", "released", "published", "founded", "formed", "opened", "built")
    },
}


_WITH_ARTICLE = frozenset({"United States", "Netherlands", "Philippines", "Czech Republic", "Dominican Republic"})


def event(fact: str) -> Said:
    """What a fact with a year says: "was born"."""
    return _EVENTS[fact]


def said_of(fact: str, target: str, plural_target: str = "", *, with_article: bool = False) -> Said:
    """What is said of a thing that fits the target: "is Norwegian", "was born before 1920", "is a painter"; `with_article`
    also "is in the Netherlands"."""
    if fact in _EVENTS:
        verb = _EVENTS[fact]
        several, one, rest = (f"{words} {target}" for words in (verb.several, verb.one, verb.rest))
        return Said(several, one, verb.opens, verb.opens_one, rest, rest)
    if fact == "nation":
        return Said(f"are {target}", f"is {target}", "Are", "Is", target, target)
    if fact == "country":
        where = f"in the {target}" if with_article and target in _WITH_ARTICLE else f"in {target}"
        return Said(f"are {where}", f"is {where}", "Are", "Is", where, where)
    if fact == "family":
        words = f"to the family {target}"
        return Said(f"belong {words}", f"belongs {words}", "Do", "Does", f"belong {words}", f"belong {words}")
    one = a_or_an(target)
    return Said(f"are {plural_target}", f"is {one}", "Are", "Is", plural_target, one)


FIRST = (
    "{Which} {one} first: {some_or}?",
    "{Which} {one} first, {some_or}?",
    "Of {some_and}, {which} {one} first?",
    "Which of these {things} {one} first: {some_and}?",
    "{some_or}: {which} {one} {earliest}?",
    "Among {some_and}, {which} {one} before {the_others}?",
    "Compare {some_and}. Which one {one} {earliest}?",
    "Which one {one} {earliest}, {some_or}?",
    "Take the {things} {some_and}: which {one} first?",
)
LAST = (
    "{Which} {one} last: {some_or}?",
    "{Which} {one} last, {some_or}?",
    "Of {some_and}, {which} {one} last?",
    "Which of these {things} {one} last: {some_and}?",
    "{some_or}: {which} {one} {latest}?",
    "Among {some_and}, {which} {one} after {the_others}?",
    "Compare {some_and}. Which one {one} {latest}?",
    "Which one {one} most recently, {some_or}?",
    "Take the {things} {some_and}: which {one} last?",
)
OLDEST = ("Who is the {oldest}: {some_or}?", "Of {some_and}, who is the {oldest}?")
YOUNGEST = ("Who is the {youngest}: {some_or}?", "Of {some_and}, who is the {youngest}?")
_MORE = {
    "population": ("inhabitants", "the largest population", "the smallest population"),
    "species": ("species", "the largest number of species", "the smallest number of species"),
}
MOST = (
    "Which has the most {counted}: {some_or}?",
    "Which of {some_and} has {largest}?",
    "Of {some_and}, which one has the most {counted}?",
    "Which {thing} has the most {counted}, {some_or}?",
    "{some_or}: which of these {things} has {largest}?",
    "Compare {some_and}. Which one has more {counted} than {the_others}?",
)
FEWEST = (
    "Which has the fewest {counted}: {some_or}?",
    "Which of {some_and} has {smallest}?",
    "Of {some_and}, which one has the fewest {counted}?",
    "Which {thing} has the fewest {counted}, {some_or}?",
    "{some_or}: which of these {things} has {smallest}?",
    "Compare {some_and}. Which one has fewer {counted} than {the_others}?",
)
HOW_MANY = (
    "How many of {some_and} {several}?",
    "How many of these {things} {several}: {some_and}?",
    "Of {some_and}, how many {several}?",
    "{some_and}: how many of them {several}?",
    "Among {some_and}, how many {several}?",
    "What number of the following {several}: {some_and}?",
    "Look at {some_and}. How many of these {things} {several}?",
)
WHICH = (
    "Which of {some_and} {several}?",
    "Which of these {things} {several}: {some_and}?",
    "Of {some_and}, which {several}?",
    "{some_and}: which of them {several}?",
    "Among {some_and}, which ones {several}?",
    "Name those of {some_and} that {several}.",
    "Which of the following {several}: {some_and}?",
)
ALL = (
    "{Opens} all of {some_and} {rest}?",
    "{Opens} {some_and} all {rest}?",
    "Is it true that {some_and} all {several}?",
    "{some_and}: {opens} all of them {rest}?",
    "{Opens_one} each of {some_and} {rest_one}?",
    "{Opens_one} every one of these {things} {rest_one}: {some_and}?",
    "Is it right that every one of {some_and} {one}?",
)
BOTH = (
    "{Opens} both {some_and} {rest}?",
    "{Opens} {some_and} both {rest}?",
    "Is it true that both {some_and} {several}?",
    "{some_and}: {opens} both of them {rest}?",
    "{Opens_one} each of {some_and} {rest_one}?",
    "Is it right that {some_and} both {several}?",
)
NONE = (
    "{Opens_one} none of {some_and} {rest_one}?",
    "Is it true that none of {some_and} {one}?",
    "{some_and}: {opens_one} none of them {rest_one}?",
    "Is it right that not one of {some_and} {one}?",
    "Would it be right to say that none of {some_and} {one}?",
    "{Opens_one} none of these {things} {rest_one}: {some_and}?",
)
NEITHER = (
    "Is it true that neither {some_nor} {one}?",
    "Is it right that neither of {some_and} {one}?",
    "{Opens_one} neither {some_nor} {rest_one}?",
    "{some_and}: is it true that neither of them {one}?",
    "Would it be right to say that neither {some_nor} {one}?",
    "{Opens_one} neither of {some_and} {rest_one}?",
)
EACH_YEAR = (
    "In which years {were} {some_and} {rest}?",
    "In what year {was} each of {some_and} {rest}?",
    "Give the {noun} of each of {some_and}.",
    "List the {noun} of {some_and}.",
    "What is the {noun} of {some_and}, one after the other?",
    "{some_and}: what is the {noun} of each?",
)
EACH = (
    "Give the {noun} of each of {some_and}.",
    "What is the {noun} of {some_and}, one after the other?",
    "{some_and}: what is the {noun} of each?",
    "List the {noun} of {some_and}.",
    "Tell me the {noun} of each of these {things}: {some_and}.",
    "For each of {some_and}, what is the {noun}?",
)
_EACH_OWN = {
    "nation": ("What are the nationalities of {some_and}?", "Of which nationality is each of {some_and}?"),
    "country": ("In which countries are {some_and}?", "Which country is each of {some_and} in?"),
    "birthplace": ("Where were {some_and} born?", "In which places were {some_and} born?"),
    "family": ("To which families do {some_and} belong?", "Which family does each of {some_and} belong to?"),
    "director": ("Who directed {some_and}?", "Who are the directors of {some_and}?"),
    "author": ("Who wrote {some_and}?", "Who are the authors of {some_and}?"),
    "performer": ("Who recorded {some_and}?", "Who are the performers of {some_and}?"),
    "population": ("What are the populations of {some_and}?", "How many people live in each of {some_and}?"),
    "species": ("How many species has each of {some_and}?",),
}
OF_ONE = (
    "What are {facts_and} of {thing_named}?",
    "Give {facts_and} of {thing_named}.",
    "I need {facts_and} of {thing_named}.",
    "{thing_named}: {facts}?",
    "Tell me {count} things about {thing_named}: {facts_and}.",
    "Find {facts_and} of {thing_named}.",
    "About {thing_named}: what are {facts_and}?",
)
CLAUSES = {
    "born": "in which year was {x} born",
    "died": "in which year did {x} die",
    "nation": "what nationality is {x}",
    "birthplace": "where was {x} born",
    "released": "in which year was {x} released",
    "published": "in which year was {x} published",
    "founded": "in which year was {x} founded",
    "formed": "in which year was {x} formed",
    "built": "in which year was {x} built",
    "country": "which country is {x} in",
    "population": "how many people live in {x}",
    "species": "how many species has {x}",
    "family": "which family does {x} belong to",
    "director": "who directed {x}",
    "author": "who wrote {x}",
    "performer": "who recorded {x}",
}
"""One fact asked for in a clause of its own, for several questions in one."""
COUNTS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven", 8: "eight"}
_POLITE = (
    "Please tell me: {q}",
    "I'd like to know: {q}",
    "Could you look this up for me? {Q}",
    "{Q} Please look them all up.",
    "{Q} Thanks!",
    "Hello, a question: {q}",
    "Can you help me with this? {Q}",
    "Please find out: {q}",
)

CRAFT_FIRST = (
    "Which of the {works} {some_and} has the {role} who {one} first?",
    "Of the {works} {some_and}, which one has the {role} who {one} {earliest}?",
    "Take the {role}s of the {works} {some_and}: which {work} belongs to the one who {one} first?",
    "{some_or}: which of these {works} was {made} by the person who {one} first?",
    "Which {work} was {made} by the person who {one} {earliest}, {some_or}?",
    "Compare the {role}s of {some_and}. Which {work} belongs to the one who {one} before {the_others}?",
)
CRAFT_LAST = tuple(
    wording.replace("first", "last").replace("{earliest}", "{latest}").replace("before", "after")
    for wording in CRAFT_FIRST
)
CRAFT_HOW_MANY = (
    "How many of the {role}s of the {works} {some_and} {several}?",
    "Of the {role}s of {some_and}, how many {several}?",
    "{some_and}: how many of these {works} have {a_role} who {one}?",
    "How many of the {works} {some_and} were {made} by someone who {one}?",
    "Take the {role}s of the {works} {some_and}. How many of them {several}?",
    "Among the people who {verb} {some_and}, how many {several}?",
)
CRAFT_WHICH = (
    "Which of the {works} {some_and} have {a_role} who {one}?",
    "Of the {works} {some_and}, which were {made} by someone who {one}?",
    "{some_and}: which of these {works} have {a_role} who {one}?",
    "Name those of the {works} {some_and} whose {role} {one}.",
    "Which of these {works} were {made} by a person who {one}: {some_and}?",
    "Among the {works} {some_and}, which ones have {a_role} who {one}?",
)
CRAFT_ALL = (
    "{Opens} the {role}s of the {works} {some_and} all {rest}?",
    "{Opens} all of the {role}s of {some_and} {rest}?",
    "Is it true that the {role}s of the {works} {some_and} all {several}?",
    "The {works} {some_and}: {opens} their {role}s all {rest}?",
    "Were the {works} {some_and} all {made} by people who {several}?",
    "Is it right that every one of the {works} {some_and} has {a_role} who {one}?",
)
CRAFT_EACH = (
    "Give the {noun} of the {role} of each of the {works} {some_and}.",
    "What is the {noun} of the {role}s of {some_and}, one after the other?",
    "{some_and}: what is the {noun} of the {role} of each of these {works}?",
    "For each of the {works} {some_and}, what is the {noun} of its {role}?",
    "List the {noun} of the {role}s of the {works} {some_and}.",
    "Tell me the {noun} of the {role} of each of these {works}: {some_and}.",
)


@dataclass(frozen=True, slots=True)
class Ways:
    """The wordings that differ between the evaluation sets, whose every letter is fixed, and the questions to train on."""

    first: tuple[str, ...]
    last: tuple[str, ...]
    most: tuple[str, ...]
    fewest: tuple[str, ...]
    plurals: Mapping[str, str]
    """Of heads that have no regular one."""
    with_article: bool
    """ "in the Netherlands"."""
    newer: Templates | None = None
    """The newer wordings (`templates.py`), where they are used."""
    newer_share: float = 0.0
    """So often."""


EVALUATED = Ways(FIRST, LAST, MOST, FEWEST, {}, with_article=False)
TRAINED = Ways(
    (*FIRST, "{versus}: {which} {one} first?", "{versus}, {which} {one} {earliest}?"),
    (*LAST, "{versus}: {which} {one} last?", "{versus}, {which} {one} {latest}?"),
    (
        "Which has {most} {counted}: {some_or}?",
        "Which of {some_and} has the {larger} {amount}?",
        "Of {some_and}, which one has {most} {counted}?",
        "Which {thing} has {most} {counted}, {some_or}?",
        "{some_or}: which of these {things} has the {larger} {amount}?",
        "{versus}: which has {most} {counted}?",
        "Compare the {amount} of {some_and}. Which is the {larger}?",
        "Compare {some_and}. Which one has more {counted} than {the_others}?",
    ),
    (
        "Which has {fewest} {counted}: {some_or}?",
        "Which of {some_and} has the {smaller} {amount}?",
        "Of {some_and}, which one has {fewest} {counted}?",
        "Which {thing} has {fewest} {counted}, {some_or}?",
        "{some_or}: which of these {things} has the {smaller} {amount}?",
        "{versus}: which has {fewest} {counted}?",
        "Compare the {amount} of {some_and}. Which is the {smaller}?",
        "Compare {some_and}. Which one has fewer {counted} than {the_others}?",
    ),
    {"genus": "genera", "species": "species", "actress": "actresses"},
    with_article=True,
    newer=TO_TRAIN,
    newer_share=0.7,
)
REWORDED = replace(TRAINED, newer=TO_MEASURE, newer_share=1.0)
"""Wordings that no training question has: all that `wide-reworded` is made with."""


def each_wordings(fact: str) -> tuple[str, ...]:
    """Ways to ask a fact of each of several things."""
    if fact in _EVENTS:
        verb = _EVENTS[fact]
        asks = {"{were}": verb.opens.lower(), "{was}": verb.opens_one.lower()}
        return tuple(_replaced(wording, asks) for wording in EACH_YEAR)
    return (*EACH, *_EACH_OWN.get(fact, ()), *_EACH_OWN.get(fact, ()))


def _replaced(text: str, words: Mapping[str, str]) -> str:
    for old, new in words.items():
        text = text.replace(old, new)
    return text


def more_of(fact: str) -> dict[str, str]:
    """The words for a number of something."""
    counted, largest, smallest = _MORE[fact]
    amount = largest.removeprefix("the largest ")
    return {"counted": counted, "amount": amount, "largest": largest, "smallest": smallest}


def a_or_an(noun: str) -> str:
    """ "an author"."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def capital(text: str) -> str:
    """Its first letter large, the others as they are."""
    return text[:1].upper() + text[1:]


def listed(names: Sequence[str], word: str, rng: random.Random | None = None) -> str:
    """ "A, B and C"; with a comma before the last word every now and then where it is drawn."""
    if len(names) == 1:
        return names[0]
    comma = "," if rng is not None and len(names) > 2 and rng.random() < 0.3 else ""
    return f"{', '.join(names[:-1])}{comma} {word} {names[-1]}"


def fill(wording: str, names: Sequence[str], rng: random.Random, said: Said | None = None, **words: str) -> str:
    """A wording with its names and words in place."""
    is_pair = len(names) == 2
    values = {
        "some_and": listed(names, "and", rng),
        "some_or": listed(names, "or", rng),
        "some_nor": listed(names, "nor", rng),
        "the_others": "the other" if is_pair else "all the others",
        "earliest": "earlier" if is_pair else "the earliest",
        "latest": "later" if is_pair else "the latest",
        "oldest": "older" if is_pair else "oldest",
        "youngest": "younger" if is_pair else "youngest",
        "most": "more" if is_pair else "the most",
        "fewest": "fewer" if is_pair else "the fewest",
        "larger": "larger" if is_pair else "largest",
        "smaller": "smaller" if is_pair else "smallest",
        "versus": " vs ".join(names),
        "count": COUNTS.get(len(names), str(len(names))),
        **words,
    }
    if said is not None:
        values |= {
            "several": said.several,
            "one": said.one,
            "Opens": said.opens,
            "opens": said.opens.lower(),
            "Opens_one": said.opens_one,
            "opens_one": said.opens_one.lower(),
            "rest": said.rest,
            "rest_one": said.rest_one,
        }
    text = wording.format(**values)
    return capital(text)


def facts_listed(facts: Sequence[str], rng: random.Random) -> tuple[str, str]:
    """ "the year of birth and the nationality", "year of birth, nationality"."""
    nouns = [FACTS[fact].noun for fact in facts]
    return listed([f"the {noun}" for noun in nouns], "and", rng), ", ".join(nouns)


def several_in_one(clauses: Sequence[str], rng: random.Random) -> str:
    """Questions that have nothing to do with each other, in one."""
    first, *others = clauses
    capital = [f"{clause[0].upper()}{clause[1:]}" for clause in clauses]
    count = COUNTS[len(clauses)].capitalize()
    ways = (
        f"{capital[0]}{''.join(f', {clause}' for clause in others[:-1])}, and {others[-1]}?",
        f"{count} questions: {' '.join(f'{clause}?' for clause in capital)}",
        " ".join(f"{clause}?" for clause in capital),
        " ".join(f"({number}) {clause}?" for number, clause in enumerate(capital, start=1)),
        f"Tell me {'; '.join([first, *others[:-1]])}; and {others[-1]}.",
        f"First, {first}? Then, {'? And '.join(others)}?",
        f"I have {count.lower()} things to find out: {'; '.join(clauses)}.",
        f"{capital[0]}? And {'? And '.join(others)}?",
    )
    return rng.choice(ways)


def as_people_write(text: str, rng: random.Random) -> str:
    """The question, sometimes in small letters or in a polite frame."""
    if rng.random() < POLITE_SHARE:
        frame = rng.choice(_POLITE)
        opening = text.split()[0]
        small = text if opening not in _OPENS else f"{text[0].lower()}{text[1:]}"
        text = frame.format(q=small, Q=text)
    if rng.random() < LOWER_CASE_SHARE:
        text = text.lower()
        if rng.random() < 0.5:
            text = text.rstrip("?.! ")
    return text


def as_typed(text: str, rng: random.Random) -> str:
    """A question with frames of its own, sometimes in small letters, and then often without the mark at its end."""
    if rng.random() >= TYPED_SMALL_SHARE:
        return text
    return text.lower().rstrip("?. ") if rng.random() < 0.5 else text.lower()


_OPENS = words_of(
    "Who Which Of Among Compare Take How What Look Name Are Is Were Was Did Do Does Would In Give For List Tell Where To "
    "Find About Two Three Four First"
)
"""Words that a question opens with and that lose their capital inside a frame."""

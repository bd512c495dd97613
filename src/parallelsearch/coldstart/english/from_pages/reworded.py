"""A question of several parts put into one of the newer wordings (`templates.py`): what each slot of a template is.

Slots are filled when a template asks for them, each by a draw of its own: how a list of names is joined, which of two words
is used for a fact, whether the names are described. Around the filled template comes what people put around a question, and
now and then a slip in a small word; never in a name. Nothing here draws things or decides answers.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from parallelsearch.answers import normalise
from parallelsearch.coldstart.english.from_pages.fact_words import (
    ADJECTIVES,
    ASIDES,
    ASKS,
    DID,
    NOUNS,
    PHRASES,
    SAME_SORT,
    TO_BE,
)
from parallelsearch.coldstart.english.from_pages.templates import Templates
from parallelsearch.coldstart.english.from_pages.told import KINDS, OCCUPATIONS, Thing
from parallelsearch.coldstart.english.from_pages.wordings import (
    COUNTS,
    Said,
    a_or_an,
    capital,
    event,
    listed,
    more_of,
    said_of,
)
from parallelsearch.coldstart.english.lessons.two_rounds import CRAFTS
from parallelsearch.coldstart.english.wide import Wide

LOWER_CASE_SHARE = 0.15
FRAMED_SHARE = 0.12
SLIP_SHARE = 0.06
DESCRIBED_SHARE = 0.2
ADJECTIVE_SHARE = 0.4
REPEATED_SHARE = 0.35
"""So often a question is in small letters, has a frame, has a slip, says more of its names than the name, compares with an
adjective where one fits, or asks of each name in turn."""
MAX_REPEATED = 4
MAX_ASIDES = 3
MAX_DESCRIBED = 6
MAX_RUN = 5
"""So many names at most are asked for in turn, have a clause each, have a word each, or stand without a comma."""

_SLIPS = {
    "which": ("wich", "whcih"),
    "what": ("waht", "wat"),
    "the": ("teh",),
    "were": ("wer",),
    "how": ("hwo",),
    "many": ("mnay",),
    "these": ("theese",),
    "tell": ("tel",),
    "trying": ("tryng",),
    "out": ("otu",),
    "between": ("betwen",),
    "whether": ("wether",),
    "following": ("folowing",),
    "compare": ("comapre",),
}
"""Slips in small words."""
_SLOT = re.compile(r"(\{\w+\})")
_STILL_I = re.compile(r"I(?:'|\b)")


@dataclass(frozen=True, slots=True)
class Asked:
    """What is worded: what the question says of itself, and the things it names, in its order."""

    wide: Wide
    things: Sequence[Thing]
    is_mixed: bool
    things_word: str
    """ "painters", "people", "things"."""
    thing_word: str
    target_plural: str = ""


def reworded(asked: Asked, templates: Templates, rng: random.Random) -> str:
    """The question in a newer wording."""
    return filled(rng.choice(templates.groups[group_of(asked, rng)]), asked, templates, rng)


def filled(template: str, asked: Asked, templates: Templates, rng: random.Random) -> str:
    """A template of the question's group with its slots filled, and what people put around a question."""
    slots = _Slots(asked, templates, rng)
    text = capital(_tidied(_with_slip(template, rng).format_map(slots)))
    text = _framed(text, slots.plain, templates, rng)
    if rng.random() < LOWER_CASE_SHARE and not slots.is_run:
        text = text.lower()
    return text


def group_of(asked: Asked, rng: random.Random) -> str:
    """Which templates can ask this; drawn where several can."""
    wide, width = asked.wide, len(asked.things)
    form = wide.form
    if form == "facts_of_one":
        return "mixed_of_one" if asked.is_mixed else "of_one"
    if form == "several_questions":
        return "several"
    if form in ("first_of", "last_of", "most_of", "fewest_of"):
        if asked.is_mixed:
            return "mixed_order"
        if (wide.fact or "", form) in ADJECTIVES and rng.random() < ADJECTIVE_SHARE:
            return "adjective"
        return "order" if form in ("first_of", "last_of") else "amount"
    plain = {"how_many_of": "how_many", "which_of": "which", "all_of": "all", "none_of": "none", "each": "each"}[form]
    if asked.is_mixed:
        return f"mixed_{plain}"
    if plain == "each" and width <= MAX_REPEATED and rng.random() < REPEATED_SHARE:
        return "repeated"
    if plain == "which" and sum(step.holds is True for step in wide.steps) == 1 and (width == 2 or rng.random() < 0.4):
        return "which_one"
    return {"all": "both", "none": "neither"}.get(plain, plain) if width == 2 else plain


def possessive(name: str) -> str:
    """ "Ada Brenn's"."""
    return f"{name}'" if name.endswith("s") else f"{name}'s"


class _Slots(dict[str, str]):
    """The values of a template's slots, drawn when they are asked for."""

    def __init__(self, asked: Asked, templates: Templates, rng: random.Random) -> None:
        super().__init__()
        self.asked, self.templates, self.rng = asked, templates, rng
        self.wide, self.things = asked.wide, asked.things
        self.plain = [thing.name for thing in asked.things]
        self.is_pair = len(self.plain) == 2
        self.is_person = asked.things[0].is_person
        self.is_run = False
        """Whether only the capitals tell where a name ends: a prompt has its question on one line."""
        self.names = self._described()
        self.facts = [step.fact for step in self.wide.steps if step.round == self.wide.steps[-1].round]
        self.nouns = [rng.choice(NOUNS[fact]) for fact in self.facts if fact in NOUNS]
        self.said = self._said()

    def __missing__(self, slot: str) -> str:
        if slot[0].isupper():
            return capital(self[slot[0].lower() + slot[1:]])
        for ways in (self._lists, self._comparing, self._saying, self._asking, self._of_works):
            found = ways().get(slot)
            if found is not None:
                value = found()
                if slot in _DRAWN_ONCE:
                    self[slot] = value
                return value
        raise KeyError(slot)

    # ---- names -------------------------------------------------------------------------------------------------------

    def _described(self) -> list[str]:
        """The names, sometimes each with a word for what it is, or with a clause that tells something else."""
        rng, asked = self.rng, self.asked
        if asked.is_mixed:
            return self.plain
        if asked.wide.form in ("facts_of_one", "several_questions"):
            return [
                _with_kind(thing, "the {kind} {name}") if not thing.is_person else thing.name for thing in self.things
            ]
        if asked.wide.fact == "is_a" or rng.random() >= DESCRIBED_SHARE:
            return self.plain
        if len(self.plain) <= MAX_ASIDES and rng.random() < 0.4:
            asides = [self._aside(thing) for thing in self.things]
            if all(asides):
                return [f"{name}, {aside}," for name, aside in zip(self.plain, asides, strict=True)]
        way = rng.choice(("the {kind} {name}", "{name} ({kind})", "the {kind} called {name}"))
        described = [_with_kind(thing, way) for thing in self.things]
        is_each = len(self.plain) <= MAX_DESCRIBED and not set(described) & set(self.plain)
        return described if is_each else self.plain

    def _aside(self, thing: Thing) -> str:
        fact = self.wide.fact or ""
        hidden = {fact, *SAME_SORT.get(fact, ())}
        others = set(normalise(" ".join(self.plain)).split())
        fit = [
            other
            for other in ASIDES
            if other in thing.told
            and other not in hidden
            and not others & set(normalise(thing.told[other][0]).split())
            and not (other == "nation" and thing.told.get("died"))
        ]
        if not fit:
            return ""
        other = self.rng.choice(fit)
        return ASIDES[other].format(who="who" if thing.is_person else "which", value=thing.told[other][0])

    def _joined(self, word: str) -> str:
        """Inside a sentence."""
        names, rng = self.names, self.rng
        if len(names) in (3, 4) and rng.random() < 0.12:
            return f" {word} ".join(names)
        if word == "and" and rng.random() < 0.06 and not any("&" in name for name in names):
            return listed(names, "&")
        return listed(names, word, rng)

    def _bare(self) -> str:
        separator = self.rng.choice(self.templates.bare)
        if not separator or any(name.endswith(",") for name in self.names):
            return self._joined("and")
        return separator.join(self.names)

    def _run(self) -> str:
        """Without anything between them, where it can be seen where one ends: names of as many words, in capitals."""
        lengths = {len(name.split()) for name in self.plain}
        is_plain = (
            len(lengths) == 1 and lengths <= {1, 2} and all(word[0].isupper() for n in self.plain for word in n.split())
        )
        self.is_run = is_plain and len(self.plain) <= MAX_RUN
        return " ".join(self.plain) if self.is_run else ", ".join(self.plain)

    def _lined(self, items: Sequence[str]) -> str:
        bullet = self.rng.choice(self.templates.bullets)
        self.is_run = not bullet
        lines = (
            f"\n{bullet.replace('#', str(number)).replace('@', chr(96 + number))}{item.rstrip(',')}"
            for number, item in enumerate(items, start=1)
        )
        return "".join(lines)

    def _lists(self) -> Mapping[str, Callable[[], str]]:
        names = self.names
        without = self.plain if any(name.endswith(",") for name in names) else names
        return {
            "either": lambda: listed(without, "or", self.rng),
            "and": lambda: self._joined("and"),
            "or": lambda: self._joined("or"),
            "nor": lambda: listed(names, "nor"),
            "bare": self._bare,
            "run": self._run,
            "lines": lambda: self._lined(names),
            "vs": lambda: self.rng.choice(self.templates.versus).join(self.plain),
            "own": lambda: listed([possessive(name) for name in self.plain], "and", self.rng),
            "of_each": lambda: listed([f"of {name}" for name in names], "and", self.rng),
            "a": lambda: names[0].rstrip(","),
            "b": lambda: names[1].rstrip(","),
            "x": lambda: names[0],
            "own_one": lambda: possessive(names[0]),
            "n": lambda: COUNTS[max(len(self.plain), len(self.facts)) if len(self.plain) == 1 else len(self.plain)],
            "things": lambda: self.asked.things_word,
            "the_things": lambda: (
                "" if self.asked.things_word in ("people", "things") else f"the {self.asked.things_word} "
            ),
            "thing": lambda: self.asked.thing_word,
            "that": lambda: "who" if self.is_person else "that",
            "which": lambda: "who" if self.is_person else "which",
            "who": self._who,
        }

    def _who(self) -> str:
        if self.is_person:
            return "who"
        return self.rng.choice((f"which {self.asked.thing_word}", "which one", "which"))

    # ---- what is compared --------------------------------------------------------------------------------------------

    def _comparing(self) -> Mapping[str, Callable[[], str]]:
        wide, rng, is_pair = self.wide, self.rng, self.is_pair
        fact = wide.fact or ""
        is_first, is_most = wide.form == "first_of", wide.form == "most_of"
        number = more_of(fact) if fact in ("population", "species") else {}

        def elder(with_article: bool) -> str:
            of_two, of_more = ADJECTIVES[fact, wide.form]
            return of_two if is_pair else f"{'the ' if with_article else ''}{of_more}"

        def first() -> str:
            if is_first:
                return rng.choice(("first", "earlier" if is_pair else "earliest"))
            return rng.choice(("last", "later" if is_pair else "most recently"))

        sizes = ("bigger", "larger") if is_most else ("smaller",)
        biggest = ("biggest", "largest") if is_most else ("smallest",)
        return {
            "did": lambda: rng.choice(DID[fact]),
            "first": first,
            "firstly": lambda: "first" if is_first else "last",
            "earlier": lambda: (
                ("earlier" if is_pair else "earliest") if is_first else ("later" if is_pair else "latest")
            ),
            "to_be": lambda: TO_BE.get(fact, f"to be {fact}"),
            "elder": lambda: elder(with_article=False),
            "the_elder": lambda: elder(with_article=True),
            "more": lambda: ("more" if is_pair else "the most") if is_most else ("fewer" if is_pair else "the fewest"),
            "bigger": lambda: rng.choice(sizes if is_pair else biggest),
            "counted": lambda: rng.choice(("people", number["counted"])) if fact == "population" else number["counted"],
            "amount": lambda: number["amount"],
        }

    # ---- what is said of them ----------------------------------------------------------------------------------------

    def _said(self) -> Said | None:
        wide = self.wide
        if wide.target is not None and wide.fact is not None:
            return said_of(wide.fact, wide.target, self.asked.target_plural, with_article=True)
        return event(wide.fact) if wide.fact in DID else None

    def _saying(self) -> Mapping[str, Callable[[], str]]:
        said = self.said
        if said is None:
            return {}
        is_verb = said.opens == "Do"  # "belong to the family Miridae"
        word = "both" if self.is_pair else "all"
        verb, _, predicate = said.several.partition(" ")
        return {
            "several": lambda: said.several,
            "together": lambda: f"{verb} {word} {predicate}" if verb in ("are", "were") else f"{word} {said.several}",
            "one": lambda: said.one,
            "opens": lambda: said.opens.lower(),
            "opens_one": lambda: said.opens_one.lower(),
            "rest": lambda: said.rest,
            "rest_one": lambda: said.rest_one,
            "kw": lambda: said.rest.replace("belong to", "in") if is_verb else _participle(said.rest),
            "kw_one": lambda: said.rest_one.replace("belong to", "in") if is_verb else _participle(said.rest_one),
        }

    # ---- what is asked of each ---------------------------------------------------------------------------------------

    def _pairs(self) -> list[tuple[str, str, str]]:
        """Each fact, the name of what it is asked of, without a clause behind that, and the name alone."""
        names = self.plain if any(name.endswith(",") for name in self.names) else self.names
        num_facts_of_one = len(self.facts) if len(names) == 1 else 1
        return list(zip(self.facts, names * num_facts_of_one, self.plain * num_facts_of_one, strict=True))

    def _worded(self, words: Mapping[str, Sequence[str]]) -> list[str]:
        """Every part in words of its own; one way for all of them where all ask for the same."""
        ways = {fact: self.rng.choice(words[fact]) for fact in self.facts}
        return [ways[fact].format(x=name, own=possessive(plain)) for fact, name, plain in self._pairs()]

    def _asking(self) -> Mapping[str, Callable[[], str]]:
        rng = self.rng

        def asks() -> list[str]:
            return self._worded(ASKS)

        def phrases() -> list[str]:
            return self._worded(PHRASES)

        def keywords() -> str:
            said = [f"{name} {noun}" for (_, name, _), (noun, _) in zip(self._pairs(), self.nouns, strict=True)]
            return rng.choice((", ", "; ", " / ")).join(said)

        others = [name for _, name, _ in self._pairs()[1:]] if not self.asked.is_mixed else []
        nouns = [noun for noun, _ in self.nouns]
        return {
            "what": lambda: "who" if self.facts[0] in ("director", "author", "performer") else "what",
            "noun": lambda: self.nouns[0][0],
            "nouns": lambda: self.nouns[0][1],
            "ask": lambda: asks()[0],
            "asks": lambda: " ".join(f"{capital(one)}?" for one in asks()),
            "asks_and": lambda: _clauses(asks(), rng),
            "asks_semi": lambda: "; ".join(asks()),
            "asks_lines": lambda: "?\n".join(map(capital, asks())) + "?",
            "other_asks": lambda: "? And ".join(asks()[1:]),
            "others": lambda: listed(others, "and"),
            "and_others": lambda: " ".join(f"And {name}?" for name in others),
            "phrases": lambda: listed(phrases(), "and", rng),
            "phrases_semi": lambda: "; ".join(phrases()),
            "lines_phrases": lambda: self._lined(phrases()),
            "lines_asks": lambda: self._lined([f"{capital(one)}?" for one in asks()]),
            "keywords": keywords,
            "facts": lambda: ", ".join(nouns),
            "facts_plain": lambda: listed(nouns, "and", rng),
            "facts_and": lambda: listed([f"the {noun}" for noun in nouns], "and", rng),
            "lines_facts": lambda: self._lined(nouns),
        }

    def _of_works(self) -> Mapping[str, Callable[[], str]]:
        if not self.asked.is_mixed:
            return {}
        head = self.things[0].head
        craft = CRAFTS[head]
        return {
            "work": lambda: head,
            "works": lambda: f"{head}s",
            "role": lambda: craft.role,
            "a_role": lambda: a_or_an(craft.role),
            "made": lambda: craft.made,
            "verb": lambda: craft.verb,
            "maker": lambda: f"the {craft.role} of the {head} {self.plain[0]}",
            "all_both": lambda: "both" if self.is_pair else "all",
        }


_DRAWN_ONCE = frozenset({"did", "elder", "the_elder", "counted", "bigger"})
"""Slots that say the same each time in one question."""


def _with_kind(thing: Thing, way: str) -> str:
    """The name with a word for what it is, where its page gives a plain one."""
    is_plain = thing.head in (OCCUPATIONS if thing.is_person else KINDS) and thing.head not in thing.name.lower()
    return way.format(kind=thing.head, name=thing.name) if is_plain else thing.name


def _participle(rest: str) -> str:
    """A predicate without its verb: "die before 1950" as "died before 1950"."""
    return re.sub(r"^die\b", "died", rest)


def _clauses(clauses: Sequence[str], rng: random.Random) -> str:
    """Questions in one sentence: "who directed A, what year was B born, and where was C born"."""
    *others, last = clauses
    comma = "," if len(clauses) > 2 or rng.random() < 0.5 else ""
    return f"{', '.join(others)}{comma} and {last}"


def _tidied(text: str) -> str:
    """Without the comma of a clause that meets another mark: "A, who died in 1960,: which" and "B, who died in 1971,?"."""
    return re.sub(r",(?=\s*(?:[:?.;,!]|$|- |\())", "", text)


def _with_slip(template: str, rng: random.Random) -> str:
    """The template, now and then with a slip in one of its own small words."""
    if rng.random() >= SLIP_SHARE:
        return template
    pieces = _SLOT.split(template)
    places = [
        (number, word)
        for number in range(0, len(pieces), 2)
        for word in re.findall(r"[A-Za-z]+", pieces[number])
        if word.lower() in _SLIPS
    ]
    if not places:
        return template
    number, word = rng.choice(places)
    slip = rng.choice(_SLIPS[word.lower()])
    pieces[number] = re.sub(rf"\b{word}\b", capital(slip) if word[0].isupper() else slip, pieces[number], count=1)
    return "".join(pieces)


def _framed(text: str, names: Sequence[str], templates: Templates, rng: random.Random) -> str:
    if rng.random() >= FRAMED_SHARE:
        return text
    if "\n" not in text and rng.random() < 0.4:
        end = "" if text[-1] in "?.!" else "."
        return f"{text}{end} {rng.choice(templates.after)}"
    before = rng.choice(templates.before)
    is_kept = text.startswith(tuple(names)) or _STILL_I.match(text) or before.rstrip()[-1] in "!?"
    return before + (text if is_kept else text[0].lower() + text[1:])

"""Questions of several parts put into words: the older wordings, letter by letter, and the newer ones where they are wanted.

What is drawn and decided comes from `wide.py` as a `Draft`. The evaluation sets `wide` and `mixed-balanced` have the older
wordings alone, and no draw here may be added to those or taken from them: every letter of these sets is fixed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from parallelsearch.coldstart.english.from_pages import wordings
from parallelsearch.coldstart.english.from_pages.comparisons import plural
from parallelsearch.coldstart.english.from_pages.reworded import Asked, reworded
from parallelsearch.coldstart.english.from_pages.told import KINDS, OCCUPATIONS, Thing
from parallelsearch.coldstart.english.from_pages.wordings import Ways
from parallelsearch.coldstart.english.lessons.two_rounds import CRAFTS
from parallelsearch.coldstart.english.wide import FACTS, Step, Wide

NO_KIND = frozenset({"film", "performed", "started", "used", "known"})
"""Words that a person's page gives as its head by mistake ("an American film and stage actor")."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A question before it is worded: what it says of itself, and the things behind its steps."""

    wide: Wide
    things: tuple[Thing, ...]
    """One for each step."""

    @property
    def first_round(self) -> list[Thing]:
        """The things that the question names, a thing of several facts as often."""
        return [thing for thing, step in zip(self.things, self.wide.steps, strict=True) if step.round == 1]


def step_of(thing: Thing, fact: str) -> Step:
    """What the thing tells of a fact, as a part of a question."""
    value, words = thing.told[fact]
    return Step(thing.name, thing.title, fact, value, words)


def text_of(draft: Draft, is_mixed: bool, ways: Ways, rng: random.Random) -> str:
    """The question as somebody might write it."""
    if ways.newer is not None and rng.random() < ways.newer_share:
        return reworded(_asked(draft, is_mixed, ways), ways.newer, rng)
    return wordings.as_people_write(_older_text(draft, is_mixed, ways, rng), rng)


def _asked(draft: Draft, is_mixed: bool, ways: Ways) -> Asked:
    wide = draft.wide
    things = draft.first_round
    if wide.form == "facts_of_one":
        things = things[:1]
    heads = {thing.head for thing in things}
    is_person = things[0].is_person
    head = heads.pop() if len(heads) == 1 and wide.fact != "is_a" else ""
    if is_person and head in NO_KIND:
        head = ""
    several = _plural(head, ways)
    return Asked(
        wide,
        things,
        is_mixed,
        things_word=several or ("people" if is_person else "things"),
        thing_word=head if several else "person" if is_person else "one",
        target_plural=_plural(wide.target or "", ways),
    )


def _plural(noun: str, ways: Ways) -> str:
    return ways.plurals.get(noun) or (plural(noun) if noun else "")


def _older_text(draft: Draft, is_mixed: bool, ways: Ways, rng: random.Random) -> str:
    wide = draft.wide
    if is_mixed:
        return _older_mixed_text(draft, rng)
    if wide.form == "facts_of_one":
        facts_and, facts = wordings.facts_listed([step.fact for step in wide.steps], rng)
        named = _named(draft.things[0], rng.random() < wordings.DESCRIBED_SHARE, ways)
        names = [step.fact for step in wide.steps]
        return wordings.fill(
            rng.choice(wordings.OF_ONE), names, rng, None, facts_and=facts_and, facts=facts, thing_named=named
        )
    if wide.form == "several_questions":
        clauses = [
            wordings.CLAUSES[step.fact].format(x=_named(thing, not thing.is_person, ways))
            for thing, step in zip(draft.things, wide.steps, strict=True)
        ]
        return wordings.several_in_one(clauses, rng)
    assert wide.fact is not None
    is_described = wide.fact != "is_a" and rng.random() < wordings.DESCRIBED_SHARE
    names = [_named(thing, is_described, ways) for thing in draft.things]
    heads = {thing.head for thing in draft.things}
    is_person = draft.things[0].is_person
    head = heads.pop() if len(heads) == 1 and wide.fact != "is_a" else ""
    several = _plural(head, ways)
    thing_word = head if several and not is_person else "one"
    things_word = several or ("people" if is_person else "ones")
    which = "who" if is_person else f"which {head}" if head else "which"
    words = {"things": things_word, "thing": thing_word, "which": which, "Which": which.capitalize()}
    words["noun"] = FACTS[wide.fact].noun
    is_pair = len(names) == 2
    said: wordings.Said | None
    some: tuple[str, ...]
    if wide.form in ("first_of", "last_of"):
        some = ways.first if wide.form == "first_of" else ways.last
        if wide.fact == "born" and rng.random() < 0.25:
            some = wordings.OLDEST if wide.form == "first_of" else wordings.YOUNGEST
        return wordings.fill(rng.choice(some), names, rng, wordings.event(wide.fact), **words)
    if wide.form in ("most_of", "fewest_of"):
        some = ways.most if wide.form == "most_of" else ways.fewest
        return wordings.fill(rng.choice(some), names, rng, None, **words, **wordings.more_of(wide.fact))
    if wide.form == "each":
        said = wordings.event(wide.fact) if FACTS[wide.fact].is_year else None
        return wordings.fill(rng.choice(wordings.each_wordings(wide.fact)), names, rng, said, **words)
    by_form = {
        "how_many_of": wordings.HOW_MANY,
        "which_of": wordings.WHICH,
        "all_of": wordings.BOTH if is_pair else wordings.ALL,
        "none_of": wordings.NEITHER if is_pair else wordings.NONE,
    }
    assert wide.target is not None
    said = wordings.said_of(wide.fact, wide.target, _plural(wide.target, ways), with_article=ways.with_article)
    return wordings.fill(rng.choice(by_form[wide.form]), names, rng, said, **words)


def _older_mixed_text(draft: Draft, rng: random.Random) -> str:
    wide = draft.wide
    works = draft.first_round
    craft = CRAFTS[works[0].head]
    head = works[0].head
    if wide.form == "facts_of_one":
        facts_and, facts = wordings.facts_listed([step.fact for step in wide.steps[1:]], rng)
        named = f"the {craft.role} of the {head} {works[0].name}"
        return wordings.fill(
            rng.choice(wordings.OF_ONE), ["", ""], rng, None, facts_and=facts_and, facts=facts, thing_named=named
        )
    assert wide.fact is not None
    words = {
        "work": head,
        "works": plural(head),
        "role": craft.role,
        "a_role": wordings.a_or_an(craft.role),
        "made": craft.made,
        "verb": craft.verb,
        "noun": FACTS[wide.fact].noun,
    }
    names = [work.name for work in works]
    said: wordings.Said | None
    ways = {
        "first_of": wordings.CRAFT_FIRST,
        "last_of": wordings.CRAFT_LAST,
        "how_many_of": wordings.CRAFT_HOW_MANY,
        "which_of": wordings.CRAFT_WHICH,
        "all_of": wordings.CRAFT_ALL,
        "each": wordings.CRAFT_EACH,
    }[wide.form]
    if wide.form in ("first_of", "last_of"):
        said = wordings.event(wide.fact)
    else:
        said = wordings.said_of(wide.fact, wide.target) if wide.target is not None else None
    return wordings.fill(rng.choice(ways), names, rng, said, **words)


def _named(thing: Thing, is_described: bool, ways: Ways) -> str:
    """The name, with a word for what it is where that is wanted and says no more than that. The evaluation sets, which stay
    as they are, also have words that are no nouns."""
    if not thing.is_person and thing.head not in KINDS and ways.newer is not None:
        return thing.name
    if not is_described or thing.head in NO_KIND or (thing.is_person and thing.head not in OCCUPATIONS):
        is_film = is_described and thing.head == "film" and not thing.is_person
        return f"the film {thing.name}" if is_film else thing.name
    return f"the {thing.head} {thing.name}"

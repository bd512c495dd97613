"""What the cold start writes: the thoughts of a trajectory, in several wordings of the same content.

The wording of a plan varies, so that a model learns what a thought is for and not one sentence. How evidence is quoted
does not vary: the passage's number, its name and the words, in the form in which passages are shown, because copying is
what a small model does best. Nothing here searches or decides.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import zip_longest

from parallelsearch.coldstart.english.evidence import Quote
from parallelsearch.coldstart.english.questions import Ask

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
    together = listed(names)
    return rng.choice(
        (
            f"I need {topic} for {together}. They do not depend on each other, so I search for them together.",
            f"The question compares {together}. I can look up {topic} of each at the same time.",
            f"Two separate lookups: {topic} of {together}. Neither needs the other, so one search is enough."
            if len(names) == 2
            else f"Separate lookups: {topic} of {together}. None needs another, so one search is enough.",
            f"{together}: for each of them I need {topic}. Independent parts, so I ask for all at once.",
            f"To answer this I look up {topic} of {together}, all in one go, since they are independent.",
        )
    )


def plan_one_by_one(rng: random.Random, names: Sequence[str], topic: str) -> str:
    together = listed(names)
    return rng.choice(
        (
            f"I need {topic} for {together}. I start with {names[0]}.",
            f"The question compares {together}. First I look up {topic} of {names[0]}.",
            f"Two lookups: {topic} of {together}. {names[0]} comes first."
            if len(names) == 2
            else f"Several lookups: {topic} of {together}. {names[0]} comes first.",
            f"{together}: for each of them I need {topic}. I begin with {names[0]}.",
            f"To answer this I look up {topic} of {together}, one after the other, {names[0]} first.",
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


def missing(rng: random.Random, queries: Sequence[str]) -> str:
    """Said where the results do not hold what was asked for."""
    asked = listed([f"'{query}'" for query in queries])
    return rng.choice(
        (
            f"I looked for {asked}. None of the results says it, so I cannot answer.",
            f"The results are about other things: {asked} is not answered by any of them.",
            f"Asked for: {asked}. No passage shown holds that. I do not guess.",
            f"I went through the passages. What I need, {asked}, is not among them.",
        )
    )


def compare_values(names: Sequence[str], values: Sequence[str], numbers: Sequence[int], verb: str) -> str:
    """Two values side by side."""
    (first, second), (one, other) = names, values
    return f"[{numbers[0]}] {first} {verb} {one}. [{numbers[1]}] {second} {verb} {other}."


def asked_for(which: str) -> str:
    """Said before the evidence: the words that decide stand in the question, behind pages of results. Without them a yes or
    no question is answered with a noun (one in six of the parallel twin's, validation of the fourth runs)."""
    return f"Asked for: {which}."


def weigh(value: str, other: str) -> str:
    """How a number stands to another, in steps of a look at two digits: how many there are, then from the left until two
    differ. Without them a small model takes 346 for more than 354."""
    (one, one_rest), (two, two_rest) = (_digits(number) for number in (value, other))
    if len(one) != len(two):
        how, sign = f"{len(one)} digits against {len(two)}", len(one) - len(two)
    else:
        pairs = list(zip_longest(one + one_rest, two + two_rest, fillvalue="0"))
        place = next((place for place, (a, b) in enumerate(pairs) if a != b), len(one) - 1)
        steps = ", ".join(f"{a} {b}" for a, b in pairs[: place + 1])
        how, sign = f"{len(one)} digits each, {steps}", int(pairs[place][0]) - int(pairs[place][1])
    return f"{value} against {other}, {how}: {'less' if sign < 0 else 'more' if sign > 0 else 'the same'}."


def _digits(number: str) -> tuple[str, str]:
    """Those before the point, and those after it."""
    whole, _, rest = number.replace(",", "").partition(".")
    return whole, rest


def day_of(month: int, day: int) -> str:
    """A day of the year in digits, which are told apart as years are: "07-09"."""
    return f"{month:02}-{day:02}"


def decide(high: str, low: str, which: str, value: str, name: str, relation: str = "after") -> str:
    """The comparison in steps of which each is a copy or a look at two numbers: the larger value always comes first, then
    the one that is asked for, then whose it is."""
    return f"{high} is {relation} {low}. The {which} is {value}: {name}."


def said_of(told: str, name: str) -> str:
    """The words that tell two things apart, copied from a quote, and whose quote it was."""
    return f"{told} is said of {name}. So {name}."


# ---- two rounds -----------------------------------------------------------------------------------------------------


def plan_makers(rng: random.Random, role: str, one: str, other: str, topic: str) -> str:
    return rng.choice(
        (
            f"Two steps: first the {role} of {one} and the {role} of {other}, both at once; then {topic} of each {role}.",
            f"I do not know yet who the {role}s are. I look them up for {one} and {other} together, then {topic} of both.",
            f"Before I can compare {topic}, I need the {role} of {one} and the {role} of {other}. "
            "Neither needs the other, so I ask for both.",
            f"This takes two rounds. Round one: the {role} of {one} and of {other}, together. Round two: {topic} of each.",
            f"{one} and {other}: each has a {role} to find first. These are independent, so one search. Then {topic}."
            if role[0] not in "aeiou"
            else f"{one} and {other}: I must find each {role} first. These are independent, so one search. Then {topic}.",
        )
    )


def plan_makers_one_by_one(rng: random.Random, role: str, one: str, other: str, topic: str) -> str:
    return rng.choice(
        (
            f"Step by step: first the {role} of {one}, then the {role} of {other}; then {topic} of each {role}.",
            f"I do not know yet who the {role}s are. I look up {one} first, then {other}, then {topic} of both.",
            f"Before I can compare {topic}, I need the {role} of {one} and the {role} of {other}. I start with {one}.",
            f"This takes four lookups: the {role} of {one}, the {role} of {other}, and {topic} of each. {one} comes first.",
            f"{one} and {other}: I must find each {role} first, beginning with {one}. Then {topic}.",
        )
    )


def plan_facts(rng: random.Random, role: str, one: str, other: str, topic: str) -> str:
    return rng.choice(
        (
            f"So the {role}s are {one} and {other}. Now I need {topic} of each, both at once.",
            f"Now {topic} of {one} and {topic} of {other}, again together.",
            f"That gives {one} and {other}. Next I look up {topic} of both in one search.",
            f"With {one} and {other} known, round two: {topic} of each. They do not depend on each other.",
            f"The two {role}s are {one} and {other}. I still need {topic} for both, so I search for them together.",
        )
    )


def plan_facts_one_by_one(rng: random.Random, role: str, one: str, other: str, topic: str) -> str:
    return rng.choice(
        (
            f"So the {role}s are {one} and {other}. Now I need {topic} of each, {one} first.",
            f"Now {topic} of {one}, and after that {topic} of {other}.",
            f"That gives {one} and {other}. Next I look up {topic} of {one}.",
            f"With {one} and {other} known, I go on to {topic} of each. I begin with {one}.",
            f"The two {role}s are {one} and {other}. I still need {topic} for both; {one} comes first.",
        )
    )


# ---- several parts --------------------------------------------------------------------------------------------------

_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def plan_wide(rng: random.Random, names: Sequence[str], topic: str) -> str:
    names_listed, number = listed(names), _NUMBERS[len(names)] if len(names) < len(_NUMBERS) else str(len(names))
    others, every = ("Neither needs the other", "both") if len(names) == 2 else ("None needs another", f"all {number}")
    return rng.choice(
        (
            f"I need {topic} of {names_listed}. {others}, so I ask for {every} at once.",
            f"There are {number} parts: {names_listed}. For each I look up {topic}, {every} in one search.",
            f"{number.capitalize()} lookups that do not depend on each other: {topic} of {names_listed}.",
            f"{names_listed}: I search for {topic} of each, one query for each, together.",
            f"To answer this I need {topic} {number} times, for {names_listed}. One round is enough.",
        )
    )


def plan_wide_one_by_one(rng: random.Random, names: Sequence[str], topic: str, first: str) -> str:
    names_listed = listed(names)
    return rng.choice(
        (
            f"I have to look up {names_listed}, one after the other. I start with {topic} of {first}.",
            f"{names_listed}: each needs a lookup. {first} comes first: {topic}.",
            f"Step by step: {names_listed}. First {topic} of {first}.",
            f"I go through {names_listed}. I begin with {first} and look for {topic}.",
        )
    )


def plan_facts_of_one(rng: random.Random, topics: Sequence[str], name: str) -> str:
    wanted = listed(topics)
    return rng.choice(
        (
            f"I need {wanted} of {name}. These are separate facts, so I ask for all of them at once.",
            f"{name}: {wanted}. Each gets a query of its own, in one search.",
            f"Several facts of one thing, {name}: {wanted}. None depends on another.",
        )
    )


def plan_facts_one_by_one_of(rng: random.Random, topics: Sequence[str], name: str) -> str:
    wanted = listed(topics)
    return rng.choice(
        (
            f"I need {wanted} of {name}. I start with {topics[0]}.",
            f"{name}: {wanted}, one after the other. First {topics[0]}.",
            f"Several facts of one thing, {name}: {wanted}. I begin with {topics[0]}.",
        )
    )


def plan_several(rng: random.Random, wanted: Sequence[tuple[str, str]]) -> str:
    things = listed([f"the {noun} of {name}" for noun, name in wanted])
    return rng.choice(
        (
            f"These are separate questions: {things}. I ask them all at once.",
            f"I need {things}. They have nothing to do with each other, so one search does.",
            f"Several things at once: {things}. Each gets its own query.",
        )
    )


def plan_steps(rng: random.Random, now: str, is_one: bool, later: Sequence[str], *, of_people: bool = True) -> str:
    """What is known first, and what is asked of it; `now` says both what and of whom."""
    then, at_once = listed(later), "" if is_one else ", at once"
    who, whoever = ("who", "whoever that is") if of_people else ("what", "whatever that is")
    return rng.choice(
        (
            f"Two steps. First {now}{at_once}; then {then} of {whoever}.",
            f"I do not know yet {who} is meant. I look up {now} first, and {then} after that.",
            f"Before {then} I need {now}. That is the first round.",
            f"Round one: {now}. Round two: {then}.",
        )
    )


def plan_steps_one_by_one(
    rng: random.Random, now: str, names: Sequence[str], later: Sequence[str], *, of_people: bool = True
) -> str:
    then, each = listed(later), ", one after the other" if len(names) > 1 else ""
    begin = f" {names[0]} comes first." if len(names) > 1 else ""
    who, whoever = ("who", "whoever that is") if of_people else ("what", "whatever that is")
    return rng.choice(
        (
            f"Two steps. First {now}{each}; then {then} of {whoever}.{begin}",
            f"I do not know yet {who} is meant. I look up {now}{each}, and {then} after that.{begin}",
            f"Before {then} I need {now}{each}.{begin}",
            f"First {now}{each}. Then {then}.{begin}",
        )
    )


def plan_now(rng: random.Random, topics: Sequence[str], names: Sequence[str]) -> str:
    wanted, of = listed(topics), listed(names)
    if len(names) == len(topics) == 1:
        return rng.choice((f"Now {wanted} of {of}.", f"Next I look up {wanted} of {of}."))
    return rng.choice(
        (
            f"Now {wanted} of {of}, all at once.",
            f"That gives {of}. Next I look up {wanted}, together.",
            f"With {of} known, round two: {wanted}.",
        )
    )


def plan_as_it_is(rng: random.Random, num_parts: int, num_rounds: int) -> str:
    """For a policy that asks one thing at a time and has fewer rounds than there are things."""
    rounds = "one search" if num_rounds == 1 else f"{_NUMBERS[num_rounds]} searches"
    return rng.choice(
        (
            f"{num_parts} things to find, and {rounds} to find them. I ask the question as it is.",
            f"There are more parts than I can ask for one by one ({rounds}). I begin with the whole question.",
        )
    )


def ask_again(rng: random.Random, names: Sequence[str], num_found: int) -> str:
    missing = listed(names)
    found = f"{num_found} found. " if num_found else ""
    those = "that one" if len(names) == 1 else "those"
    return rng.choice(
        (
            f"{found}Nothing on {missing} yet. I ask for {those} again, in other words.",
            f"{found}{missing}: still missing. I search for {those} alone.",
        )
    )


def listed(names: Sequence[str]) -> str:
    """Names as one says them."""
    return " and ".join(names) if len(names) < 3 else ", ".join(names[:-1]) + " and " + names[-1]

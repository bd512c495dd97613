"""Numbers that pages tell, as data: of what kinds of things, how a page says them, and how a question asks for more or less.

`changed.py` draws values for them. A measure is a fact of `wide.FACTS`.
"""

from __future__ import annotations

from dataclasses import dataclass

from parallelsearch.data.alternatives import words_of


@dataclass(frozen=True, slots=True)
class Measure:
    """A number that things of some kinds have: how a page says it (the number, then the unit, of which a question has one),
    how many digits it may have, and how a question asks for the more and for the less of it: comparative and superlative."""

    fact: str
    heads: frozenset[str]
    said: tuple[str, ...]
    units: tuple[str, ...]
    digits: range
    more: tuple[str, str]
    less: tuple[str, str]
    told: str
    """What a page that tells it already would have."""


_LONG = (("longer", "longest"), ("shorter", "shortest"))
_HIGH = (("higher", "highest"), ("lower", "lowest"))
_LARGE = (("larger", "largest"), ("smaller", "smallest"))


def _has(noun: str) -> tuple[tuple[str, str], tuple[str, str]]:
    return (f"has more {noun}", f"has the most {noun}"), (f"has fewer {noun}", f"has the fewest {noun}")


MEASURES: tuple[Measure, ...] = (
    Measure("length", words_of("river stream tributary creek canal railway road highway route trail"),
            ("It has a length of {} {}.", "It is {} {} long.", "Its length is about {} {}.",
             "From one end to the other it runs for {} {} through the country.",
             "With a length of about {} {} it is well known."),
            ("kilometres", "miles", "km"), range(2, 5), *_LONG, r"\bkm\b|kilomet|\bmiles?\b|length|\blong\b"),
    Measure("height", words_of("mountain peak summit hill volcano"),
            ("It has a height of {} {}.", "It is {} {} high.", "Its height is about {} {}.",
             "The top is at {} {} above the sea.", "With an elevation of {} {} it can be seen from far away."),
            ("metres", "feet", "m"), range(3, 5), *_HIGH,
            r"met(?:re|er)s?\b|\bfeet\b|\bft\b|\bm\b|height|elevation|\bhigh\b"),
    Measure("height", words_of("building skyscraper tower church cathedral castle statue monument"),
            ("It has a height of {} {}.", "It is {} {} tall.", "Its height is about {} {}.",
             "It stands {} {} tall in the middle of the town."),
            ("metres", "feet"), range(2, 4), ("taller", "tallest"), ("shorter", "shortest"),
            r"met(?:re|er)s?\b|\bfeet\b|\bft\b|\bm\b|height|\btall\b"),
    Measure("depth", words_of("lake reservoir loch cave bay sea"),
            ("It has a maximum depth of {} {}.", "It is {} {} deep.", "Its greatest depth is about {} {}.",
             "The water is {} {} deep where it is deepest."),
            ("metres", "feet"), range(2, 5), ("deeper", "deepest"), ("shallower", "shallowest"),
            r"met(?:re|er)s?\b|\bfeet\b|\bft\b|depth|\bdeep\b"),
    Measure("area", words_of("island lake park reserve forest county district province region municipality"),
            ("It has an area of {} {}.", "Its area is {} {}.", "It is {} {} in area.", "It covers {} {} of land and water.",
             "With an area of about {} {} it is known to all who live there."),
            ("square kilometres", "hectares", "square miles"), range(2, 7), *_LARGE, r"\barea\b|square|\bkm|hectares|acres"),
    Measure("population", words_of("village town city municipality commune county district suburb settlement parish island"),
            ("It has a population of {}.", "Its population is {}.", "It has {} inhabitants.", "Some {} people live there.",
             "At the last census it had a population of {}, most of them in the centre."),
            (), range(2, 8), ("more populous", "most populous"), ("less populous", "least populous"),
            r"population|inhabitants|residents|people"),
    Measure("seats", words_of("stadium arena theatre venue ground hall"),
            ("It has {} seats.", "There are {} seats.", "It was rebuilt with {} seats and a new roof."), (), range(3, 6),
            *_has("seats"), r"\bseats?\b|capacity|spectators"),
    Measure("students", words_of("university college school academy"),
            ("It has {} students.", "There are {} students.", "Some {} students are taught there."), (), range(2, 6),
            *_has("students"), r"students|pupils|enrol"),
    Measure("employees", words_of("company airline manufacturer bank retailer publisher organization agency newspaper"),
            ("It has {} employees.", "There are {} employees.", "It had some {} employees at the end of the year."), (),
            range(2, 7), *_has("employees"), r"employ|staff|workers"),
    Measure("minutes", words_of("film documentary movie episode"),
            ("It is {} minutes long.", "It has a length of {} minutes.", "It runs for {} minutes."), (), range(2, 4), *_LONG,
            r"minutes|\bmin\b|length|\blong\b"),
    Measure("pages", words_of("novel book novella magazine"),
            ("It has {} pages.", "The first edition has {} pages.", "It came out with {} pages and a map."), (), range(2, 5),
            *_has("pages"), r"\bpages?\b"),
    Measure("copies", words_of("album single song game"),
            ("It has sold {} copies.", "It sold {} copies.", "Some {} copies were sold in its first year."), (), range(3, 8),
            ("sold more copies", "sold the most copies"), ("sold fewer copies", "sold the fewest copies"),
            r"copies|\bsold\b|sales"),
    Measure("goals", words_of("footballer player striker midfielder forward defender"),
            ("He scored {} goals.", "His record is {} goals.", "In all he scored {} goals for his clubs."), (), range(1, 4),
            ("scored more goals", "scored the most goals"), ("scored fewer goals", "scored the fewest goals"),
            r"\bgoals?\b|scored"),
    Measure("weight", words_of("ship submarine frigate destroyer cruiser locomotive car aircraft"),
            ("It has a weight of {} {}.", "It weighs {} {}.", "Its weight is about {} {}."), ("tonnes", "kilograms"),
            range(2, 6), ("heavier", "heaviest"), ("lighter", "lightest"), r"\bton|weigh|displac|\bkg\b|\blb"),
)  # fmt: skip

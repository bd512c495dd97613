"""What a question of several parts says about itself: the form it has, and for each part what its page tells.

The maker (`from_pages/wide.py`) puts a `Wide` into `Question.metadata["wide"]`; a lesson reads it back. There is one
`Step` for each of the question's `parts`, in the order of the parts, which is that of the question:

    {"form": "first_of", "fact": "born", "target": None,
     "steps": [{"name": "Ada Brenn", "title": "Ada Brenn", "fact": "born", "value": "1901", "words": "4 May 1901",
                "holds": None, "round": 1, "of": None}, ...]}

- `name` is what the question calls the thing (proper case, whatever the case of the question), `title` its page.
- `fact` is a key of `FACTS`; a question of several facts has several, and its own `fact` is then None.
- `value` is the part's answer in the form answers have ("1901", "Norwegian", "1,204", "Oslo"), `words` are the page's own
  words for it ("4 May 1901", "Ohio" for the United States), which stand in the first 900 characters of the page.
- `holds` says, where the question asks which of the things fit the `target` ("Norwegian", "before 1920", "painter"),
  whether this one does.
- `round` is 1, or 2 for what is only known after the first round; then `of` names the thing of round 1 that led there.

A mixed question has n steps of round 1 (fact `director`, `author` or `performer`: the `value` is the maker) and n of
round 2 (`name` is the maker, `of` the work). The golden answer follows from the steps alone (`answer_of`): a maker that
does not use it would be contradicted by a lesson that does. Nothing here reads a page.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from parallelsearch.trajectory import Question

METADATA = "wide"
Form = Literal[
    "first_of",
    "last_of",
    "most_of",
    "fewest_of",
    "how_many_of",
    "which_of",
    "all_of",
    "none_of",
    "compared",
    "each",
    "facts_of_one",
    "several_questions",
]
"""The first, last, most and fewest want one name; `how_many_of` a number, `which_of` the names that fit; `all_of` and
`none_of` yes or no; `compared` yes or no as well, about two parts: whether the first stands to the second as the `target`
says ("before", "after", "more" or "less"); the rest the value of every part."""


@dataclass(frozen=True, slots=True)
class FactWords:
    """How a fact is looked for and said: the words behind a name in a query, and what a reading line calls it."""

    query: str
    noun: str
    is_year: bool = False


FACTS: dict[str, FactWords] = {
    "born": FactWords("born", "year of birth", is_year=True),
    "died": FactWords("died", "year of death", is_year=True),
    "released": FactWords("released", "year of release", is_year=True),
    "published": FactWords("published", "year of publication", is_year=True),
    "founded": FactWords("founded", "year of founding", is_year=True),
    "formed": FactWords("formed", "year of forming", is_year=True),
    "opened": FactWords("opened", "year of opening", is_year=True),
    "built": FactWords("built", "year of building", is_year=True),
    "nation": FactWords("nationality", "nationality"),
    "country": FactWords("country", "country"),
    "birthplace": FactWords("born in", "place of birth"),
    "family": FactWords("family", "family"),
    "is_a": FactWords("occupation", "occupation"),
    "director": FactWords("directed by", "director"),
    "author": FactWords("written by", "author"),
    "performer": FactWords("recorded by", "performer"),
    "founder": FactWords("founded by", "founder"),
    "population": FactWords("population", "population"),
    "species": FactWords("species", "number of species"),
    "length": FactWords("length", "length"),
    "height": FactWords("height", "height"),
    "depth": FactWords("depth", "depth"),
    "area": FactWords("area", "area"),
    "weight": FactWords("weight", "weight"),
    "born_on": FactWords("born", "date of birth"),
    "died_on": FactWords("died", "date of death"),
    "seats": FactWords("seats", "number of seats"),
    "students": FactWords("students", "number of students"),
    "employees": FactWords("employees", "number of employees"),
    "minutes": FactWords("running time", "running time"),
    "pages": FactWords("pages", "number of pages"),
    "copies": FactWords("copies sold", "number of copies sold"),
    "goals": FactWords("goals", "number of goals"),
    "architect": FactWords("designed by", "architect"),
    "owner": FactWords("owned by", "owner"),
    "painter": FactWords("painted by", "painter"),
    "sculptor": FactWords("made by", "sculptor"),
    "translator": FactWords("translated by", "translator"),
    "illustrator": FactWords("illustrated by", "illustrator"),
    "producer": FactWords("produced by", "producer"),
    "composer": FactWords("composed by", "composer"),
    "editor": FactWords("edited by", "editor"),
    "screenwriter": FactWords("screenplay by", "screenwriter"),
    "star": FactWords("starring", "star"),
    "president": FactWords("president", "president"),
    "coach": FactWords("coach", "coach"),
    "captain": FactWords("captain", "captain"),
    "singer": FactWords("singer", "singer"),
    "drummer": FactWords("drummer", "drummer"),
    "mayor": FactWords("mayor", "mayor"),
    "discoverer": FactWords("discovered by", "discoverer"),
    "namesake": FactWords("named after", "namesake"),
    "designer": FactWords("designed by", "designer"),
    "inventor": FactWords("invented by", "inventor"),
    "creator": FactWords("created by", "creator"),
    "host": FactWords("hosted by", "host"),
    "winner": FactWords("first winner", "first winner"),
    "commander": FactWords("commander", "commander"),
    "husband": FactWords("husband", "husband"),
    "wife": FactWords("wife", "wife"),
    "father": FactWords("father", "father"),
    "mother": FactWords("mother", "mother"),
    "brother": FactWords("brother", "brother"),
    "sister": FactWords("sister", "sister"),
    "son": FactWords("son", "son"),
    "daughter": FactWords("daughter", "daughter"),
    "teacher": FactWords("teacher", "teacher"),
    "biographer": FactWords("biography by", "biographer"),
    "successor": FactWords("succeeded by", "successor"),
    "headquarters": FactWords("headquarters", "headquarters"),
    "setting": FactWords("set in", "place where it is set"),
    "venue": FactWords("held in", "place where it is held"),
    "grave": FactWords("buried in", "burial place"),
    "novel": FactWords("novel", "novel"),
    "film": FactWords("film", "film"),
    "album": FactWords("album", "album"),
    "song": FactWords("song about", "song"),
    "band": FactWords("band", "band"),
    "club": FactWords("plays for", "club"),
    "company": FactWords("company", "company"),
    "school": FactWords("studied at", "school"),
    "home": FactWords("lives in", "home town"),
    "river": FactWords("lies on river", "river"),
}
"""The facts that are asked for. Years are compared by their number; the other numbers are written as the page writes them."""


@dataclass(frozen=True, slots=True)
class Step:
    """One part of a question and what its page tells."""

    name: str
    title: str
    fact: str
    value: str
    words: str
    holds: bool | None = None
    round: int = 1
    of: str | None = None
    day: str | None = None
    """Of a date: month and day ("07-09"), where the years of two parts may be the same."""

    def to_dict(self) -> dict[str, Any]:
        """Without a day that is none: the published sets have no such field."""
        return {key: value for key, value in asdict(self).items() if key != "day" or value is not None}


@dataclass(frozen=True, slots=True)
class Wide:
    """A question of several parts, as its lesson needs it."""

    form: Form
    fact: str | None
    target: str | None
    steps: tuple[Step, ...]
    asks_makers: bool = False
    """Of a mixed question: the answer names who was led to, not the thing that led there."""

    def to_dict(self) -> dict[str, Any]:
        """Without `asks_makers` where it is not so: the published sets have no such field."""
        record = {**asdict(self), "steps": [step.to_dict() for step in self.steps]}
        return {key: value for key, value in record.items() if key != "asks_makers" or value}


def wide_of(question: Question) -> Wide | None:
    """What the question says about itself; None for a question that was not made as one of several parts."""
    found = (question.metadata or {}).get(METADATA)
    if not isinstance(found, dict):
        return None
    steps = tuple(Step(**step) for step in found["steps"])
    return Wide(found["form"], found["fact"], found["target"], steps, found.get("asks_makers", False))


def number_of(value: str) -> float:
    """A year or a number as it is compared."""
    return float(value.replace(",", ""))


def place_of(step: Step) -> tuple[float, str]:
    """Where a part stands among the others, by its number and within a year by its day."""
    return number_of(step.value), step.day or ""


def stands(fact: str, value: str, other: str) -> str:
    """How a year or a number stands to another, in the word that a lesson ends a look at both with."""
    before, after = ("before", "after") if FACTS[fact].is_year else ("less", "more")
    sign = number_of(value) - number_of(other)
    return before if sign < 0 else after if sign > 0 else "the same"


def answer_of(wide: Wide) -> list[str]:
    """The items of the answer: one for a choice, a number or yes and no, one for each part where every part is asked for.
    For a mixed question the items are of the last round, and a choice among its things names the works they made."""
    last = wide.steps[-1].round
    steps = [step for step in wide.steps if step.round == last]
    if wide.form in ("first_of", "last_of", "most_of", "fewest_of"):
        pick = min if wide.form in ("first_of", "fewest_of") else max
        winner = pick(steps, key=place_of)
        return [_answered(winner, wide)]
    if wide.form == "how_many_of":
        return [str(sum(step.holds is True for step in steps))]
    if wide.form == "which_of":
        return [_answered(step, wide) for step in steps if step.holds]
    if wide.form in ("all_of", "none_of"):
        wanted = wide.form == "all_of"
        return ["yes" if all(step.holds is wanted for step in steps) else "no"]
    if wide.form == "compared":
        first, second = steps
        return ["yes" if stands(first.fact, first.value, second.value) == wide.target else "no"]
    return [step.value for step in steps]


def _answered(step: Step, wide: Wide) -> str:
    return step.name if wide.asks_makers or step.of is None else step.of

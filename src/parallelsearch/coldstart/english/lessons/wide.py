"""Lessons of questions with several parts: all at once, one line for each page that came back, a verdict from the lines.

The maker of such a question says what each part's page tells (`english/wide.py`); the lesson looks for it in what was
shown. A line has the passage's number, the part, the page's words and what they come to. What the question wants of the
lines is said along with them, so that each step is a copy or a look at two things side by side: which of two years is
before the other, the earliest so far, how many that makes, the numbers of those that fit so far. To judge a date by a year
that stands lines above, or to gather names from eight lines at the end, is more than a small model can do at once. A part
whose page did not come is asked for again by itself, in other words, if there is a round left; if it does not come at all
it is said to be missing, and the question is dropped unless the answer stands without it.

The sequential twin asks for the same parts one after the other and ends with the same lines. With fewer rounds than parts
it asks the question as it is first, which brings most pages that one query can, and then for those that are missing.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from parallelsearch.answers import normalise
from parallelsearch.coldstart.english import thoughts
from parallelsearch.coldstart.english.evidence import MONTHS, Quote, clause_with, dates_in, find_phrase, sentences
from parallelsearch.coldstart.english.from_pages.pages import BRACKETS
from parallelsearch.coldstart.english.wide import FACTS, Form, Step, Wide, answer_of, place_of, stands
from parallelsearch.coldstart.lesson import Drop, Lesson, Seen, as_query
from parallelsearch.grammar import query_key, render_turn
from parallelsearch.trajectory import Question

MAX_LINE_WORDS = 9
"""Words of a page in a line: eight lines must fit into one turn."""
_CHOICES: dict[Form, tuple[str, str]] = {
    "first_of": ("earliest", "the earliest"),
    "last_of": ("latest", "the latest"),
    "most_of": ("largest", "the largest number"),
    "fewest_of": ("smallest", "the smallest number"),
}
"""By form: what the best so far is called, and what is asked for."""
_ASKED: dict[Form, str] = {
    "how_many_of": "how many",
    "which_of": "which of them",
    "all_of": "yes or no, all of them",
    "none_of": "yes or no, none of them",
    "each": "each of them",
    "facts_of_one": "all of these",
    "several_questions": "one answer for each",
}
_HALF_BRACKET = re.compile(r"^[^()]*\)\s*(?=(?:is|was|are|were)\b)")
"""What is left of a bracket where a quote begins inside it: "1962) was an American director"."""
_LEFT_OVER = re.compile(
    r"[,;:]?\s+(?:a|an|the|and|or|of|in|by|at|on|for|from|to|with|as|who|whose|which|that|his|her|its|is|was|are|were)[,;:]?$"
)
"""A word at the end of a quote that leads on to what was cut off."""
_IS_A = re.compile(r"\b(?:is|was) (?:a|an|the)\b")
"""How a page says of what nation someone is: "inducted into the Italian Football Hall of Fame" is no nationality."""
_OF_PEOPLE = frozenset({"born", "died", "born_on", "died_on", "birthplace", "nation", "is_a"})
_VERBS = {"director": "directed", "author": "wrote", "performer": "recorded", "founder": "founded"}


def plan_wide(question: Question, wide: Wide, rng: random.Random, at_once: bool, max_rounds: int) -> WideLesson:
    """The lesson for a question that says its parts, within so many rounds."""
    items = answer_of(wide)
    answer = " ".join(normalise(item) for item in items)
    golden = normalise(question.golden_answers[0]).replace(" and ", " ")
    if golden != answer.replace(" and ", " "):
        raise Drop("evidence_disagrees")
    if at_once and max(step.round for step in wide.steps) > max_rounds:
        raise Drop("too_few_rounds")
    return WideLesson(question, rng, MAX_LINE_WORDS, wide, at_once, max_rounds)


@dataclass(slots=True)
class WideLesson(Lesson):
    """The parts of one question. `asked` is what was asked so far, turn by turn: steps, or None for the question itself."""

    wide: Wide
    at_once: bool
    max_rounds: int
    asked: list[tuple[Step, ...] | None] = field(default_factory=list)

    def turn(self, number: int, shown: Sequence[Seen]) -> str:
        del self.asked[number:]
        lead, chosen = self._next(shown)
        if chosen is None:
            return render_turn(self._conclude(shown), answer=self.answer)
        self.asked.append(chosen)
        if not chosen:
            return render_turn(lead, [as_query(self.question.question)])
        return render_turn(lead, self._queries(chosen))

    # ---- what is asked -----------------------------------------------------------------------------------------------

    def _next(self, shown: Sequence[Seen]) -> tuple[str, tuple[Step, ...] | None]:
        """The thought and the parts of the next search; none of them for the question itself, None for no search."""
        num_left = self.max_rounds - len(self.asked)
        if num_left == 0:
            return "", None
        if self.at_once:
            return self._next_at_once(shown)
        if self._is_tight and not self.asked:
            return thoughts.plan_as_it_is(self.rng, len(self.wide.steps), num_left), ()
        return self._next_alone(shown)

    def _next_at_once(self, shown: Sequence[Seen]) -> tuple[str, tuple[Step, ...] | None]:
        for level in self._levels:
            steps = [step for step in self.wide.steps if step.round == level]
            tries = max((self._tries(step) for step in steps), default=0)
            missing = tuple(step for step in steps if self._quote(step, shown) is None)
            if tries == 0:
                return self._lead(level, steps, shown), tuple(steps)
            # The parts of the rounds to come need one each.
            num_spare = self.max_rounds - len(self.asked) - (self._levels[-1] - level)
            if missing and tries == 1 and num_spare > 0 and not self._is_decided(shown):
                return thoughts.ask_again(self.rng, _names(missing), len(steps) - len(missing)), missing
            if missing and level < self._levels[-1]:
                raise Drop("bridge_not_shown")
        return "", None

    def _next_alone(self, shown: Sequence[Seen]) -> tuple[str, tuple[Step, ...] | None]:
        for place, step in enumerate(self.wide.steps):
            found = self._quote(step, shown)
            num_later = sum(not self._tries(other) for other in self.wide.steps[place + 1 :])
            num_left = self.max_rounds - len(self.asked)
            if self._tries(step) == 0 and not (self._is_tight and found):
                return self._lead_alone(place, shown), (step,)
            if found is None and self._tries(step) == 1 and num_left > num_later and not self._is_tight:
                return thoughts.ask_again(self.rng, [step.name], 0), (step,)
            if found is None and step.round < self._levels[-1]:
                raise Drop("bridge_not_shown")
        return "", None

    @property
    def _is_tight(self) -> bool:
        """One part a round does not go round."""
        return not self.at_once and len(self.wide.steps) > self.max_rounds

    @property
    def _levels(self) -> range:
        return range(1, max(step.round for step in self.wide.steps) + 1)

    def _tries(self, step: Step) -> int:
        return sum(step in (steps or ()) for steps in self.asked)

    def _queries(self, steps: Sequence[Step]) -> list[str]:
        queries = [as_query(self._query(step)) for step in steps]
        if len({query_key(query) for query in queries}) < len(queries):
            raise Drop("same_query")
        return queries

    def _query(self, step: Step) -> str:
        words, other_words = FACTS[step.fact].query, FACTS[step.fact].noun
        if self._tries(step) > 1:
            words = other_words if other_words != words else ""
        return f"{step.name} {self._role(step)} {words}"

    def _role(self, step: Step) -> str:
        """What a maker is, for a query about one: "Ira Moss director born"."""
        role = next((one.fact for one in self.wide.steps if step.of and one.name == step.of), "")
        return FACTS[role].noun if role in _VERBS else ""

    # ---- what is thought before a search -----------------------------------------------------------------------------

    def _lead(self, level: int, steps: Sequence[Step], shown: Sequence[Seen]) -> str:
        topics, names = _topics(steps), _names(steps)
        if level > 1:
            before = [step for step in self.wide.steps if step.round == level - 1]
            return f"{self._lines(before, shown)}\n{thoughts.plan_now(self.rng, topics, names)}"
        if len(self._levels) > 1:
            later = [step for step in self.wide.steps if step.round == 2]
            now, of_people = _wanted(steps), later[-1].fact in _OF_PEOPLE
            return thoughts.plan_steps(self.rng, now, len(names) == 1, _topics(later), of_people=of_people)
        if len(names) == 1:
            return thoughts.plan_facts_of_one(self.rng, topics, names[0])
        if len(topics) > 1:
            return thoughts.plan_several(self.rng, [(FACTS[step.fact].noun, step.name) for step in steps])
        return thoughts.plan_wide(self.rng, names, topics[0])

    def _lead_alone(self, place: int, shown: Sequence[Seen]) -> str:
        step = self.wide.steps[place]
        topic = f"the {FACTS[step.fact].noun}"
        if not self.asked:
            return self._plan_alone(topic)
        last = [one for one in self.asked[-1] or () if self._quote(one, shown) is not None]
        said = f"{self._lines(last, shown)}\n" if last else ""
        return f"{said}{thoughts.next_of(self.rng, step.name, topic)}"

    def _plan_alone(self, topic: str) -> str:
        """What the twin says first. Of a later round it knows what is asked for, and not yet of whom."""
        steps = [step for step in self.wide.steps if step.round == 1]
        names = _names(steps)
        if len(self._levels) > 1:
            later = [step for step in self.wide.steps if step.round == 2]
            of_people = later[-1].fact in _OF_PEOPLE
            return thoughts.plan_steps_one_by_one(self.rng, _wanted(steps), names, _topics(later), of_people=of_people)
        if len(names) == 1:
            return thoughts.plan_facts_one_by_one_of(self.rng, _topics(steps), names[0])
        return thoughts.plan_wide_one_by_one(self.rng, names, topic, names[0])

    # ---- reading -----------------------------------------------------------------------------------------------------

    def _quote(self, step: Step, shown: Sequence[Seen]) -> Quote | None:
        """Where the step's own page, as far as it was shown, says what is asked."""
        about = [FACTS[step.fact].query]
        for page in shown:
            if page.title == step.title:
                for text in self._texts(step, page):
                    found = clause_with(replace(page, text=text), step.words, about, self.max_quote_words)
                    words = _as_shown(found[0].words, page.text) if found is not None else ""
                    if find_phrase(words, step.words) and (step.fact != "nation" or _IS_A.search(words)):
                        return _trimmed(step, Quote(words, page.number))
        return None

    def _texts(self, step: Step, page: Seen) -> list[str]:
        """Where to look, the best first. Without brackets: "(born 26 September 1994) is an Austrian" has no room left for the
        luger. What someone is stands in the first sentence; further on a nationality may be a club's."""
        plain = BRACKETS.sub("", page.text)
        first = sentences(plain)[:1] if step.fact in ("nation", "is_a") else []
        return [*first, plain, page.text]

    def _lines(self, steps: Sequence[Step], shown: Sequence[Seen]) -> str:
        lines = []
        for step in steps:
            quote = self._quote(step, shown)
            if quote is None:
                raise Drop("page_not_found")
            lines.append(self._line(step, quote))
        return "\n".join(lines)

    def _line(self, step: Step, quote: Quote) -> str:
        is_one_fact = len({one.fact for one in self.wide.steps if one.round == step.round}) == 1
        about = step.name if is_one_fact else f"{step.name}, {FACTS[step.fact].noun}"
        is_said = normalise(quote.words).endswith(normalise(step.value)) or self._is_weighed(step)
        return f"{thoughts.quote(about, quote)}{'' if is_said else f' That is {step.value}.'}"

    def _is_weighed(self, step: Step) -> bool:
        """Whether the remark behind the line begins with the value: a choice, or a year against another."""
        return step.round == self._levels[-1] and (self.wide.form in _CHOICES or self._year_asked(step) is not None)

    def _year_asked(self, step: Step) -> str | None:
        """The year that the question sets, "1920" of "before 1920"."""
        if step.holds is None or not FACTS[step.fact].is_year or self.wide.target is None:
            return None
        return self.wide.target.rpartition(" ")[2]

    def _found(self, shown: Sequence[Seen]) -> list[tuple[Step, Quote | None]]:
        return [(step, self._quote(step, shown)) for step in self.wide.steps if step.round == self._levels[-1]]

    def _is_decided(self, shown: Sequence[Seen]) -> bool:
        return self._is_against([step for step, quote in self._found(shown) if quote is not None])

    def _is_against(self, known: Sequence[Step]) -> bool:
        """All or none of them: one that does not fit is enough. A count or a list of those that fit needs every one."""
        wanted = {"all_of": True, "none_of": False}.get(self.wide.form)
        return wanted is not None and any(step.holds is not wanted for step in known)

    # ---- the verdict -------------------------------------------------------------------------------------------------

    def _conclude(self, shown: Sequence[Seen]) -> str:
        """The lines, each with what it changes, then what follows; checked against the golden answer."""
        wide, found = self.wide, self._found(shown)
        known = [step for step, quote in found if quote is not None]
        if not known:
            raise Drop("page_not_found")
        if len(known) < len(found):
            self._check_without([step for step, quote in found if quote is None], known)
        numbers = {step: quote.number for step, quote in found if quote is not None}
        lines = [self._asked_for()]
        for place, (step, quote) in enumerate(found):
            if quote is None:
                lines.append(f"{step.name}: nothing was found.")
                continue
            so_far = [one for one, other in found[: place + 1] if other is not None]
            lines.append(f"{self._line(step, quote)}{self._remark(step, so_far, numbers)}")
        return "\n".join([*lines, self._verdict(known, numbers)]) if wide.steps else ""

    def _check_without(self, missing: Sequence[Step], known: Sequence[Step]) -> None:
        """Some were not found. A verdict on the others is kept only where it is the golden one."""
        if self.wide.form in ("compared", "each", "facts_of_one", "several_questions"):
            raise Drop("page_not_found")
        if not (self._is_tight or self._is_against(known)):
            raise Drop("page_not_found")
        others = tuple(step for step in self.wide.steps if step not in missing)
        if not others or answer_of(replace(self.wide, steps=others)) != answer_of(self.wide):
            raise Drop("page_not_found")

    def _asked_for(self) -> str:
        wide = self.wide
        if wide.form in _CHOICES:
            return thoughts.asked_for(f"{_CHOICES[wide.form][1]} ({FACTS[wide.steps[-1].fact].noun})")
        if wide.form == "compared":
            return thoughts.asked_for(f"yes or no, {_claim(wide)}")
        if len([step for step in wide.steps if step.round == self._levels[-1]]) == 1:
            return thoughts.asked_for(FACTS[wide.steps[-1].fact].noun)
        said = _ASKED[wide.form]
        if wide.target is not None and wide.fact is not None:
            event = f"{FACTS[wide.fact].query} " if FACTS[wide.fact].is_year else ""
            said += f", {event}{self._target()}"
        elif wide.fact is not None:
            said += f" ({FACTS[wide.fact].noun})"
        return thoughts.asked_for(said)

    def _target(self) -> str:
        """What is asked of each: "Norwegian", "before 1920", "an actor"."""
        target = self.wide.target or ""
        if self.wide.fact != "is_a":
            return target
        return f"{'an' if target[:1] in 'aeiou' else 'a'} {target}"

    def _remark(self, step: Step, so_far: Sequence[Step], numbers: Mapping[Step, int]) -> str:
        """What the line changes. The last of `so_far` is its own step; `numbers` are those of the passages."""
        wide = self.wide
        if wide.form in _CHOICES:
            best = _best(wide.form, so_far)
            said = "" if len(so_far) == 1 else f" {_beside(step, _best(wide.form, so_far[:-1]))}"
            return f"{said} {_CHOICES[wide.form][0].capitalize()} so far: {best.value}, {best.name}."
        if step.holds is None:
            return ""
        year = self._year_asked(step)
        asked = f"Is that {self._target()}?" if year is None else _weighed(step.fact, step.value, year)
        said = f" {asked} {'Yes' if step.holds else 'No'}."
        if wide.form == "how_many_of":
            said += f" That makes {sum(one.holds is True for one in so_far)}."
        if wide.form == "which_of":
            fitting = [numbers[one] for one in so_far if one.holds]
            said += f" So far: {', '.join(f'[{number}]' for number in fitting) or 'none'}."
        return said

    def _verdict(self, known: Sequence[Step], numbers: Mapping[Step, int]) -> str:
        wide, answer = self.wide, self.answer
        if wide.form in _CHOICES:
            best = _best(wide.form, known)
            led = self._led_by(best)
            return f"The {_CHOICES[wide.form][0]} is {best.value}: {best.name}.{led}"
        if wide.form == "which_of":
            fitting = [step for step in known if step.holds]
            if fitting[0].of is None or wide.asks_makers:
                return f"Yes for {thoughts.listed([f'[{numbers[step]}] {step.name}' for step in fitting])}."
            return f"{' '.join(self._made_by(step) + '.' for step in fitting)} So {answer}."
        if wide.form == "how_many_of":
            return f"So {answer}."
        if wide.form in ("all_of", "none_of"):
            against = [step.name for step in known if step.holds is not (wide.form == "all_of")]
            if not against:
                return f"{'All' if wide.form == 'all_of' else 'None'} of them. So {answer}."
            return f"{'Not' if wide.form == 'all_of' else 'But'} {thoughts.listed(against)}. So {answer}."
        if wide.form == "compared":
            first, second = known
            weighed = _weighed(first.fact, first.value, second.value)
            return f"{first.name}: {weighed} Asked for: {wide.target}. So {answer}."
        return f"So {answer}." if len(known) == 1 else f"In the order of the question: {answer}."

    def _led_by(self, step: Step) -> str:
        """From a maker back to the work, which is what the question asks for."""
        return "" if step.of is None or self.wide.asks_makers else f" {self._made_by(step)}, so {step.of}."

    def _made_by(self, step: Step) -> str:
        role = next(one.fact for one in self.wide.steps if one.name == step.of)
        return f"{step.name} {_VERBS[role]} {step.of}"


def _as_shown(words: str, text: str) -> str:
    """The end of the words that stands in the text as it is: what was before a bracket is left away."""
    rest = words.split(" ")
    while rest and " ".join(rest) not in text:
        rest = rest[1:]
    return " ".join(rest)


def _trimmed(step: Step, quote: Quote) -> Quote:
    """Of a date of birth or death the date alone, after what was asked for: around it stand brackets and the other date.
    Other words do not begin in the middle of brackets, nor with the name that stands before them."""
    if step.fact in ("born", "died", "born_on", "died_on"):
        return Quote(f"{FACTS[step.fact].query} {step.words}", quote.number)
    words = _HALF_BRACKET.sub("", quote.words).removeprefix(step.name).lstrip(" ,")
    whole = words
    while _LEFT_OVER.search(words):
        words = _LEFT_OVER.sub("", words)
    return Quote(words if find_phrase(words, step.words) else whole or quote.words, quote.number)


def _weighed(fact: str, value: str, other: str) -> str:
    """A value beside another, then how it stands to it; of numbers that are no years by their digits."""
    if not FACTS[fact].is_year:
        return thoughts.weigh(value, other)
    return f"{value} against {other}: {stands(fact, value, other)}."


def _claim(wide: Wide) -> str:
    """What may be so or not, in the words that the verdict compares with: "Ada Brenn born before Carl Dorn" for the older
    one, "population of Askvik more than of Lund" for the larger one."""
    (first, second), words = wide.steps, FACTS[wide.steps[0].fact]
    if words.is_year:
        return f"{first.name} {words.query} {wide.target} {second.name}"
    return f"{words.noun} of {first.name} {wide.target} than of {second.name}"


def _beside(step: Step, best: Step) -> str:
    """A part beside the best so far; where their years are the same, the days of the year decide."""
    said = _weighed(step.fact, step.value, best.value)
    if step.value != best.value or step.day is None or best.day is None:
        return said
    order = "before" if step.day < best.day else "after" if step.day > best.day else "the same"
    return f"{said} {_in_digits(step)} against {_in_digits(best)}: {order}."


def _in_digits(step: Step) -> str:
    """ "4 May, 05-04": the day as the page says it, and as it is compared."""
    (_, month, day), _, _ = dates_in(step.words)[0]
    return f"{day} {MONTHS[month - 1]}, {step.day}"


def _best(form: Form, steps: Sequence[Step]) -> Step:
    pick = min if form in ("first_of", "fewest_of") else max
    return pick(steps, key=place_of)


def _names(steps: Sequence[Step]) -> list[str]:
    return list(dict.fromkeys(step.name for step in steps))


def _topics(steps: Sequence[Step]) -> list[str]:
    return list(dict.fromkeys(f"the {FACTS[step.fact].noun}" for step in steps))


def _wanted(steps: Sequence[Step]) -> str:
    """ "the director of A and B", "the architect of A and the coach of B"."""
    topics = _topics(steps)
    if len(topics) == 1:
        return f"{topics[0]} of {thoughts.listed(_names(steps))}"
    return thoughts.listed([f"the {FACTS[step.fact].noun} of {step.name}" for step in steps])

"""A lesson knows the right turns for one question; `coldstart.py` plays it through the rollout with real searches.

One class for each way a question goes: a comparison (all names at once, or one after the other for the sequential twin),
a chain, a single fact, and a written decomposition. A lesson gets the passages that the model has been shown so far and
writes the next turn. When what it needs is not among them, or what they say contradicts the golden answer, it raises
`Drop`: such a trajectory would teach the model to guess.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from parallelsearch.answers import normalise
from parallelsearch.grammar import render_turn
from parallelsearch.training import templates
from parallelsearch.training.decompose import Ask, content_words, same_name
from parallelsearch.training.evidence import (
    Date,
    Quote,
    Shown,
    beginning_verbs,
    birth_date,
    clause_about,
    clause_with,
    country,
    death_date,
    definition,
    event_date,
    find_phrase,
    is_of_another_nation,
    later_of,
    nationality,
    number_near,
    overlap,
    trait_words,
)
from parallelsearch.trajectory import Question

MAX_TRAIT_WORDS = 6
TRAIT_SHARE = 0.6
"""A passage has a trait when it has this share of its words: with 0.6, two of three and both of two."""


class Drop(Exception):
    """This question cannot be taught from what was found; the message is the reason that is counted."""


@dataclass(slots=True)
class Lesson(ABC):
    """What the teacher knows about one question."""

    question: Question
    rng: random.Random
    max_quote_words: int = 16

    @abstractmethod
    def turn(self, number: int, shown: Sequence[Shown]) -> str:
        """The model's turn `number` (from 0), given the passages shown before it."""

    @property
    def answer(self) -> str:
        return self.question.golden_answers[0]

    def answer_from(self, passages: Sequence[Shown], lead: str = "") -> str:
        """The last turn of a chain or a single fact: the clause with the answer, then the answer."""
        words = content_words(self.question.question)
        found = best_clause(passages, self.question.golden_answers, words, self.max_quote_words)
        if found is None:
            raise Drop("answer_not_shown")
        passage, quote, answer = found
        asked = templates.asked_words(self.question.question)
        asked = f"Asked: {asked}. " if asked else ""
        thought = f"{lead}{asked}{templates.quote(passage.title, quote)} {templates.gives(self.rng, answer)}"
        return render_turn(thought, answer=answer)


def best_clause(
    passages: Sequence[Shown], answers: Sequence[str], words: Sequence[str], max_words: int, min_overlap: int = 0
) -> tuple[Shown, Quote, str] | None:
    """The clause with a golden answer in it that shares most words with the question; earlier passages win ties."""
    best: tuple[int, Shown, Quote, str] | None = None
    for passage in passages:
        for answer in answers:
            found = clause_with(passage, answer, words, max_words)
            if found is None:
                continue
            score = found[1] + overlap(passage.title, words)
            if score >= min_overlap and (best is None or score > best[0]):
                best = (score, passage, found[0], answer)
    return best[1:] if best else None


def page_of(
    name: str, passages: Sequence[Shown], titles: Sequence[str] = (), words: Sequence[str] = ()
) -> Shown | None:
    """The passage about a name: a supporting title that means the name, else of all pages of that name the one with most
    of the question's words (a band, its album and its film may share a name)."""
    known = {normalise(title) for title in titles if same_name(name, title)}
    for passage in passages:
        if normalise(passage.title) in known:
            return passage
    named = [passage for passage in passages if same_name(name, passage.title)]
    return max(named, key=lambda one: overlap(f"{one.title} {one.text}", words), default=None)


# ---- comparisons -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class ComparisonLesson(Lesson):
    """Names that do not depend on each other; `queries` has one for each."""

    names: tuple[str, ...] = ()
    queries: tuple[str, ...] = ()
    ask: Ask = field(default_factory=lambda: Ask("trait"))
    relation: str = ""
    at_once: bool = True

    def turn(self, number: int, shown: Sequence[Shown]) -> str:
        topic = templates.topic_of(self.ask, self.relation)
        if number == 0:
            plan = templates.plan_parallel if self.at_once else templates.plan_one_by_one
            return render_turn(plan(self.rng, self.names, topic), self.queries if self.at_once else self.queries[:1])
        pages = []
        for name in self.names:
            page = page_of(name, shown, self.question.supporting_titles or (), self.words)
            if page is not None:
                pages.append(page)
            elif self.at_once or len(pages) >= number:
                break
            else:
                raise Drop("page_not_found")
        if not self.at_once and number < len(self.names):
            if len(pages) < number:
                raise Drop("page_not_found")
            name = self.names[number - 1]
            seen = self.glimpse(pages[number - 1])
            lead = f"{templates.quote(name, seen)} " if seen else ""
            return render_turn(lead + templates.next_of(self.rng, self.names[number], topic), [self.queries[number]])
        if len(pages) < len(self.names):
            raise Drop("page_not_found")
        if len({page.number for page in pages}) < len(pages):
            raise Drop("same_page")
        return render_turn(self.conclude(pages), answer=self.answer)

    def glimpse(self, page: Shown) -> Quote | None:
        """What one page says on the thing compared, for the thought between two searches."""
        text, words = page.text, self.words
        date = (
            birth_date(text)
            if self.ask.aspect == "birth"
            else death_date(text)
            if self.ask.aspect == "death"
            else (event_date(text, beginning_verbs(words)) or (None, None))[:2]
            if self.ask.aspect in ("date", "year")
            else None
        )
        if date is not None and date[1] is not None:
            return Quote(str(date[1]), page.number)
        if self.ask.aspect == "count":
            counted = number_near(page, words, self.max_quote_words)
            return counted[1] if counted else None
        return self.trait_quote(page)

    @property
    def words(self) -> list[str]:
        return trait_words(self.question.question, self.names)

    def conclude(self, pages: Sequence[Shown]) -> str:
        """The thought that decides, checked against the golden answer."""
        if len(pages) != 2:
            return self.conclude_common(pages)
        aspect = self.ask.aspect
        if aspect in ("birth", "death"):
            find = birth_date if aspect == "birth" else death_date
            dates = [find(page.text) for page in pages]
            verb = "was born" if aspect == "birth" else "died"
            return self.by_date([date if date is None else (*date, verb) for date in dates], pages)
        if aspect in ("date", "year"):
            verbs = beginning_verbs(self.words)
            return self.by_date([event_date(page.text, verbs) for page in pages], pages)
        if aspect == "age":
            return self.by_age(pages)
        if aspect == "count":
            return self.by_count(pages)
        if aspect in ("nationality", "country"):
            return self.by_nation(pages)
        if aspect == "same":
            return self.by_sameness(pages)
        if self.ask.is_polar:
            return self.by_trait(pages)
        return self.by_choice(pages) if aspect == "trait" else self.conclude_common(pages)

    def winner(self, index: int) -> str:
        """The name that wins, if it is the golden answer."""
        name, other = self.names[index], self.names[1 - index]
        if normalise(name) == normalise(self.answer):
            return name
        raise Drop("evidence_disagrees" if normalise(other) == normalise(self.answer) else "answer_not_as_asked")

    def polar(self, is_yes: bool) -> str:
        if self.ask.differs:
            is_yes = not is_yes
        if normalise(self.answer) not in ("yes", "no"):
            raise Drop("answer_not_as_asked")
        if (normalise(self.answer) == "yes") != is_yes:
            raise Drop("evidence_disagrees")
        return self.answer

    def by_date(self, found: Sequence[tuple[Date, str, str] | None], pages: Sequence[Shown]) -> str:
        first, second = found
        if first is None or second is None:
            raise Drop("no_date_found")
        order = later_of(first[0], second[0])
        numbers = [page.number for page in pages]
        one, other = first[1], second[1]
        if first[0][0] != second[0][0]:  # the years decide: the rest would only be in the way
            one, other = str(first[0][0]), str(second[0][0])
        if self.ask.aspect == "year":
            self.polar(first[0][0] == second[0][0])
            same = "the same year" if first[0][0] == second[0][0] else "different years"
            return f"{templates.compare_values(self.names, (one, other), numbers, 'is from')} These are {same}."
        if order == 0:
            raise Drop("dates_not_told_apart")
        winner = self.winner(0 if order == self.ask.direction else 1)
        if self.ask.aspect not in ("birth", "death"):
            quotes = [
                Quote(f"{date[2] or 'from'} {said}", page.number)
                for date, said, page in zip((first, second), (one, other), pages, strict=True)
            ]
            told = " ".join(templates.quote(name, quote) for name, quote in zip(self.names, quotes, strict=True))
        else:
            told = templates.compare_values(self.names, (one, other), numbers, first[2])
        early, late = (one, other) if order < 0 else (other, one)
        which, value = ("earlier", early) if self.ask.direction < 0 else ("later", late)
        return f"{templates.asked_for(which)} {told} {templates.decide(late, early, which, value, winner)}"

    def by_age(self, pages: Sequence[Shown]) -> str:
        spans = [(birth_date(page.text), death_date(page.text)) for page in pages]
        years = [(born[0][0], died[0][0]) for born, died in spans if born is not None and died is not None]
        if len(years) < len(pages):
            raise Drop("no_date_found")
        ages = [died - born for born, died in years]
        if abs(ages[0] - ages[1]) < 2:  # without days, a year may be one too many
            raise Drop("dates_not_told_apart")
        winner = self.winner(0 if (ages[0] > ages[1]) == (self.ask.direction > 0) else 1)
        told = " ".join(
            f"[{page.number}] {name} lived from {born} to {died}, {age} years."
            for page, name, (born, died), age in zip(pages, self.names, years, ages, strict=True)
        )
        return f"{told} {self.by_size(max(ages), min(ages), winner)}"

    def by_count(self, pages: Sequence[Shown]) -> str:
        first, second = (number_near(page, self.words, self.max_quote_words) for page in pages)
        if first is None or second is None:
            raise Drop("no_number_found")
        if first[0] == second[0]:
            raise Drop("numbers_equal")
        winner = self.winner(0 if (first[0] > second[0]) == (self.ask.direction > 0) else 1)
        quotes = f"{templates.quote(self.names[0], first[1])} {templates.quote(self.names[1], second[1])}"
        return f"{quotes} {self.by_size(max(first[0], second[0]), min(first[0], second[0]), winner)}"

    def by_size(self, high: float, low: float, winner: str) -> str:
        which, value = ("larger", high) if self.ask.direction > 0 else ("smaller", low)
        verdict = templates.decide(f"{high:,g}", f"{low:,g}", which, f"{value:,g}", winner, "more than")
        return f"{templates.asked_for(which)} {verdict}"

    def by_nation(self, pages: Sequence[Shown]) -> str:
        find = nationality if self.ask.aspect == "nationality" else country
        first, second = (find(page) for page in pages)
        if first is None or second is None:
            raise Drop("no_nation_found")
        is_same = first[0] == second[0]
        quotes = (
            f"{templates.quote(self.names[0], first[1])} That is {first[0]}. "
            f"{templates.quote(self.names[1], second[1])} That is {second[0]}."
        )
        if self.ask.is_polar:
            self.polar(is_same)
            verdict = f"Both: {first[0]}." if is_same else f"{first[0]} and {second[0]} are different."
            return f"{quotes} {verdict} So {self.answer}."
        if not is_same or normalise(first[0]) != normalise(self.answer):
            raise Drop("evidence_disagrees")
        return f"{quotes} Both are {first[0]}."

    def trait_quote(self, page: Shown) -> Quote | None:
        told = definition(page, self.max_quote_words)
        about = clause_about(page, self.words, self.max_quote_words)
        if about is not None and (told is None or about[1] > overlap(told.words, self.words)):
            return about[0]
        return told

    def by_trait(self, pages: Sequence[Shown]) -> str:
        """Whether both are something. Words that both pages have prove a yes, another nationality proves a no; words that
        are missing prove nothing (a novelist is a writer), so there the golden answer is believed."""
        words = self.words
        if not words:
            raise Drop("no_trait")
        shares = [overlap(f"{page.title} {page.text}", words) / len(words) for page in pages]
        quotes = [self.trait_quote(page) for page in pages]
        if quotes[0] is None or quotes[1] is None:
            raise Drop("nothing_to_quote")
        strangers = [number for number, page in enumerate(pages) if is_of_another_nation(page, self.question.question)]
        if strangers:
            self.polar(False)
        elif min(shares) >= TRAIT_SHARE:
            self.polar(True)
        if normalise(self.answer) not in ("yes", "no"):
            raise Drop("answer_not_as_asked")
        if (normalise(self.answer) == "yes") != self.ask.differs:
            holds = [True, True]
        elif strangers:
            holds = [number not in strangers for number in range(2)]
        elif shares[0] != shares[1]:
            holds = [share > min(shares) for share in shares]
        else:
            holds = [False, False]
        return f"{self.marked((quotes[0], quotes[1]), holds)} So {self.answer}."

    def marked(self, quotes: Sequence[Quote], holds: Sequence[bool], *, is_choice: bool = False) -> str:
        """Each quote with what is asked and its own verdict behind it: a small model judges what stands side by side, not two
        things at once. Where one of them is the answer, the yes names it, so that concluding is copying."""
        spelt = {normalise(word): word.strip(' ,;:?!."“”()') for word in self.question.question.split()}
        asked = " ".join(spelt.get(word, word) for word in self.words[:MAX_TRAIT_WORDS])
        verdicts = [
            ("Yes, " + name if is_choice else "Yes") if fits else "No"
            for name, fits in zip(self.names, holds, strict=True)
        ]
        return " ".join(
            f"{templates.quote(name, quote)} Is that {asked}? {verdict}."
            for name, quote, verdict in zip(self.names, quotes, verdicts, strict=True)
        )

    def by_sameness(self, pages: Sequence[Shown]) -> str:
        """Whether two things share a state, a family, a maker: quoted side by side. No rule checks the verdict."""
        quotes = [self.trait_quote(page) for page in pages]
        if quotes[0] is None or quotes[1] is None:
            raise Drop("nothing_to_quote")
        if normalise(self.answer) not in ("yes", "no"):
            raise Drop("answer_not_as_asked")
        is_same = (normalise(self.answer) == "yes") != self.ask.differs
        verdict = "These are the same." if is_same else "These are different."
        told = f"{templates.quote(self.names[0], quotes[0])} {templates.quote(self.names[1], quotes[1])}"
        return f"{told} {verdict} So {self.answer}."

    def by_choice(self, pages: Sequence[Shown]) -> str:
        words = self.words
        scores = [overlap(f"{page.title} {page.text}", words) for page in pages]
        if scores[0] == scores[1]:
            raise Drop("no_difference_found")
        quotes = [self.trait_quote(page) for page in pages]
        if quotes[0] is None or quotes[1] is None:
            raise Drop("nothing_to_quote")
        winner = self.winner(0 if scores[0] > scores[1] else 1)
        told = self.marked((quotes[0], quotes[1]), [scores[0] > scores[1], scores[1] > scores[0]], is_choice=True)
        return f"{told} So {winner}."

    def conclude_common(self, pages: Sequence[Shown]) -> str:
        """What they share: the answer quoted from each page that has it, and at least one must."""
        parts: list[str] = []
        num_with = 0
        for name, page in zip(self.names, pages, strict=True):
            found = clause_with(page, self.answer, self.words, self.max_quote_words)
            num_with += found is not None
            chosen = found[0] if found else self.trait_quote(page)
            if chosen is not None:
                parts.append(templates.quote(name, chosen))
        if num_with == 0:
            raise Drop("answer_not_shown")
        shared = f"In both: {self.answer}. " if num_with == len(pages) == 2 else ""
        return f"{' '.join(parts)} {shared}{templates.gives(self.rng, self.answer)}"


# ---- chains, single facts, written decompositions --------------------------------------------------------------------


@dataclass(slots=True)
class ChainLesson(Lesson):
    """Two links: the second query names what the first search brought to light."""

    first_query: str = ""
    bridge: str = ""
    second_query: str = ""
    topic: str = ""
    start: str | None = None
    linked: int | None = None
    """The number of the passage that names the bridge, once it has been quoted."""

    def turn(self, number: int, shown: Sequence[Shown]) -> str:
        if number == 0:
            return render_turn(templates.plan_chain(self.rng, self.start), [self.first_query])
        if number == 1:
            return render_turn(
                f"{self.link(shown)}{templates.next_link(self.rng, self.bridge, self.topic)}", [self.second_query]
            )
        # The bridge's own page, or any but the one that led to it: to quote that again is to have learned nothing.
        own = [passage for passage in shown if same_name(self.bridge, passage.title)]
        others = [passage for passage in shown if passage.number != self.linked]
        words = content_words(self.question.question)
        for pages in (own, others):
            if best_clause(pages, self.question.golden_answers, words, self.max_quote_words) is not None:
                return self.answer_from(pages)
        raise Drop("answer_beside_link" if others != list(shown) else "answer_not_shown")

    def link(self, shown: Sequence[Shown]) -> str:
        """The words that lead from the first passage to the second."""
        words = content_words(self.question.question)
        found = best_clause(shown, [self.bridge], words, self.max_quote_words)
        if found is not None:
            self.linked = found[0].number
            return f"{templates.quote(found[0].title, found[1])} "
        page = page_of(self.bridge, shown)
        told = definition(page, self.max_quote_words) if page is not None else None
        if page is not None and told is not None:
            return f"{templates.quote(page.title, told)} "
        if find_phrase(self.question.question, self.bridge):
            return ""
        raise Drop("bridge_not_shown")


@dataclass(slots=True)
class SingleLesson(Lesson):
    """One fact, one search."""

    query: str = ""

    def turn(self, number: int, shown: Sequence[Shown]) -> str:
        if number == 0:
            return render_turn(templates.plan_single(self.rng), [self.query])
        # The answer's letters may stand anywhere: the sentence must share half of the question's words, and two at least.
        words = content_words(self.question.question)
        least = max(2, -(-len(words) // 2))
        if best_clause(shown, self.question.golden_answers, words, self.max_quote_words, least) is None:
            raise Drop("answer_not_shown")
        return self.answer_from(shown)


@dataclass(slots=True)
class WrittenLesson(Lesson):
    """Rounds of sub-queries from a decomposition with the answer of every step; `mixed` questions have two such rounds."""

    rounds: tuple[tuple[str, ...], ...] = ()
    answers: tuple[tuple[str, ...], ...] = ()
    """The answers of each round's steps, in their order."""

    def turn(self, number: int, shown: Sequence[Shown]) -> str:
        lead = self.findings(number - 1, shown) if number else ""
        if number < len(self.rounds):
            queries = self.rounds[number]
            plan = (
                templates.plan_parallel(self.rng, queries, "an answer")
                if len(queries) > 1
                else templates.plan_single(self.rng)
                if len(self.rounds) == 1
                else templates.plan_chain(self.rng, None)
                if number == 0
                else templates.next_link(self.rng, queries[0], "")
            )
            return render_turn(f"{lead}{plan}", queries)
        return render_turn(f"{lead}{templates.gives(self.rng, self.answer)}", answer=self.answer)

    def findings(self, round_number: int, shown: Sequence[Shown]) -> str:
        parts = []
        for query, answer in zip(self.rounds[round_number], self.answers[round_number], strict=True):
            found = best_clause(shown, [answer], content_words(query), self.max_quote_words)
            if found is None:
                raise Drop("step_answer_not_shown")
            parts.append(templates.quote(found[0].title, found[1]))
        return " ".join(parts) + " "

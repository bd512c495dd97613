"""A lesson knows the right turns for one question; `coldstart.py` plays it through the rollout with real searches.

One class for each way a question goes: here a chain, a single fact, and a written decomposition; `comparisons.py` has
comparisons and `mixed.py` two rounds of them. A lesson gets the passages that the model has been shown so far and writes the
next turn. When what it needs is not among them, or what they say contradicts the golden answer, it raises
`Drop`: such a trajectory would teach the model to guess.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from parallelsearch.answers import normalise
from parallelsearch.grammar import render_turn
from parallelsearch.training import templates
from parallelsearch.training.decompose import content_words, same_name
from parallelsearch.training.evidence import Quote, Shown, clause_with, definition, find_phrase, overlap
from parallelsearch.trajectory import Question


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

    def answer_from(self, passages: Sequence[Shown], lead: str = "", of: str = "") -> str:
        """The last turn of a chain or a single fact: the clause with the answer, then the answer. `of` is what the chain has
        led to; a model that is not reminded of it quotes the first page again."""
        words = content_words(self.question.question)
        found = best_clause(passages, self.question.golden_answers, words, self.max_quote_words)
        if found is None:
            raise Drop("answer_not_shown")
        passage, quote, answer = found
        asked = templates.asked_words(self.question.question)
        asked = f"Asked{f' of {of}' if of else ''}: {asked}. " if asked else ""
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
        # The bridge's own page or another, but not what was quoted on the way: to quote that again is to learn nothing.
        others = [passage for passage in shown if passage.number != self.linked]
        own = [passage for passage in others if same_name(self.bridge, passage.title)]
        words = content_words(self.question.question)
        for pages in (own, others):
            if best_clause(pages, self.question.golden_answers, words, self.max_quote_words) is not None:
                return self.answer_from(pages, of=self.bridge)
        raise Drop("answer_beside_link" if others != list(shown) else "answer_not_shown")

    def link(self, shown: Sequence[Shown]) -> str:
        """The words that lead from the first passage to the second."""
        words = content_words(self.question.question)
        # A page names itself best, but what leads to it stands on another.
        others = [passage for passage in shown if not same_name(self.bridge, passage.title)]
        found = best_clause(others, [self.bridge], words, self.max_quote_words) or best_clause(
            shown, [self.bridge], words, self.max_quote_words
        )
        if found is not None:
            self.linked = found[0].number
            return f"{templates.quote(found[0].title, found[1])} "
        page = page_of(self.bridge, shown)
        told = definition(page, self.max_quote_words) if page is not None else None
        if page is not None and told is not None:
            self.linked = page.number
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

"""Written decompositions: steps with their answers, ordered into rounds, and the lesson that asks them.

A step is `{"question": "... #1 ...", "answer": "..."}`, where `#1` stands for the answer of the first step. All steps
that can be asked now are asked together, in any language: how a plan, a finding and a conclusion are worded is the
rules' part (`Wording`). The sequential twin asks the same steps one after the other.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from parallelsearch.answers import normalise
from parallelsearch.coldstart.lesson import ColdStartSettings, Drop, Lesson, Seen, as_query
from parallelsearch.errors import UsageError
from parallelsearch.grammar import render_turn
from parallelsearch.trajectory import Question

_REFERENCE = re.compile(r"#(\d+)")


class Wording(Protocol):
    """What a language says in the thoughts of a written lesson."""

    def plan_round(self, rng: random.Random, queries: Sequence[str], number: int, num_rounds: int) -> str:
        """Why these queries are asked now, in round `number` (from 0) of `num_rounds`."""

    def finding(self, query: str, answer: str, shown: Sequence[Seen], max_words: int) -> str | None:
        """The words of a shown passage that answer a query; None where none does."""

    def conclusion(self, rng: random.Random, answer: str) -> str:
        """What the findings lead to."""

    def missing(self, rng: random.Random, queries: Sequence[str]) -> str:
        """That the results hold nothing that answers these queries."""


@dataclass(slots=True)
class WrittenLesson(Lesson):
    """Rounds of sub-queries from a decomposition with the answer of every step; `mixed` questions have two such rounds."""

    rounds: tuple[tuple[str, ...], ...]
    answers: tuple[tuple[str, ...], ...]
    """The answers of each round's steps, in their order."""
    wording: Wording

    def turn(self, number: int, shown: Sequence[Seen]) -> str:
        lead = self.findings(number - 1, shown) if number else ""
        if number < len(self.rounds):
            queries = self.rounds[number]
            plan = self.wording.plan_round(self.rng, queries, number, len(self.rounds))
            return render_turn(f"{lead}{plan}", queries)
        answer = self.answer_in(lead)
        return render_turn(f"{lead}{self.wording.conclusion(self.rng, answer)}", answer=answer)

    def answer_in(self, text: str) -> str:
        """Of the golden answers the one that was just quoted: "United Kingdom", not "G B"."""
        said = f" {normalise(text)} "
        return next((one for one in self.question.golden_answers if f" {normalise(one)} " in said), self.answer)

    def findings(self, round_number: int, shown: Sequence[Seen]) -> str:
        parts = []
        for query, answer in zip(self.rounds[round_number], self.answers[round_number], strict=True):
            found = self.wording.finding(query, answer, shown, self.max_quote_words)
            if found is None:
                raise Drop("step_answer_not_shown")
            parts.append(found)
        return " ".join(parts) + " "


def steps_of(question: Question) -> list[dict[str, Any]] | None:
    """The decomposition a question comes with, if every step of it has an answer."""
    steps = (question.metadata or {}).get("decomposition")
    if isinstance(steps, list) and steps and all(isinstance(step, dict) and step.get("answer") for step in steps):
        return steps
    return None


def plan_written(
    question: Question,
    steps: Sequence[dict[str, Any]],
    rng: random.Random,
    settings: ColdStartSettings,
    wording: Wording,
) -> WrittenLesson:
    """Steps become rounds: all that can be asked now are asked together."""
    answers = [str(step["answer"]) for step in steps]
    asked = [str(step.get("question", "")) for step in steps]
    if not all(asked):
        raise Drop("bad_decomposition")
    try:
        levels = rounds_of(asked)
    except UsageError as error:
        raise Drop("bad_decomposition") from error
    if settings.mode == "sequential":
        levels = [[number] for level in levels for number in level]
    return WrittenLesson(
        question,
        rng,
        settings.max_quote_words,
        tuple(tuple(as_query(fill_references(asked[number], answers)) for number in level) for level in levels),
        tuple(tuple(answers[number] for number in level) for level in levels),
        wording,
    )


def rounds_of(steps: Sequence[str]) -> list[list[int]]:
    """The steps of a decomposition as rounds of step numbers (from 0): a step comes in the round after the last one it
    refers to, so that steps of one round do not depend on each other."""
    depth: list[int] = []
    for number, step in enumerate(steps):
        needs = [int(reference) - 1 for reference in _REFERENCE.findall(step)]
        late = [need + 1 for need in needs if not 0 <= need < number]
        if late:
            raise UsageError(f"step {number + 1} ('{step}') refers to #{late[0]}, which is not a step before it")
        depth.append(1 + max((depth[need] for need in needs), default=-1))
    return [
        [number for number, level in enumerate(depth) if level == wanted]
        for wanted in range(max(depth, default=-1) + 1)
    ]


def fill_references(step: str, answers: Sequence[str]) -> str:
    """A step with each `#n` replaced by the answer of step n."""
    return _REFERENCE.sub(lambda match: answers[int(match[1]) - 1], step)

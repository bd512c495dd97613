"""Lessons in abstaining: the same first search, the evidence withheld, and the answer that there is none.

A question that could be taught is played once more over a corpus without the passages that answer it. The first turn is
the one that was taught. Then the lesson says what was looked for, that it is not among the results, and answers
`answers.NOT_FOUND`, the form by which an agent knows that its policy abstains. What the rule of `grounding.py` would still
give as an answer is dropped: a lesson must not teach to look away. Nothing here knows a language but the wording.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from parallelsearch import grammar
from parallelsearch.answers import NOT_FOUND, normalise
from parallelsearch.coldstart.lesson import ColdStartSettings, Drop, Lesson, Seen
from parallelsearch.coldstart.rules import load_rules
from parallelsearch.coldstart.tutor import play
from parallelsearch.coldstart.written import Wording
from parallelsearch.grounding import abstention_of
from parallelsearch.policy.base import Policy
from parallelsearch.retrieval.without import Without
from parallelsearch.rollouts import in_order
from parallelsearch.search import Search
from parallelsearch.trajectory import Question, Trajectory

WITHHELD = "/withheld"
"""Ends the id of a trajectory whose evidence was withheld."""


@dataclass(slots=True)
class WithheldLesson(Lesson):
    """The first turn as it was taught, then the answer that nothing was found."""

    first_turn: str
    queries: Sequence[str]
    wording: Wording

    def turn(self, number: int, shown: Sequence[Seen]) -> str:
        if number == 0:
            return self.first_turn
        return grammar.render_turn(self.wording.missing(self.rng, self.queries), answer=NOT_FOUND)


async def withhold(
    taught: Sequence[Trajectory], search: Search, encoder: Policy, settings: ColdStartSettings
) -> list[Trajectory]:
    """Each of these trajectories once more without its evidence, where that can be taught; the order is kept."""

    async def one(_: int, trajectory: Trajectory) -> Trajectory | None:
        try:
            return await withheld(trajectory, search, encoder, settings)
        except Drop:
            return None

    made = await in_order(one, taught, settings.max_concurrent)
    return [trajectory for trajectory in made if trajectory is not None]


async def withheld(trajectory: Trajectory, search: Search, encoder: Policy, settings: ColdStartSettings) -> Trajectory:
    """One of them. Raises `Drop` where the evidence cannot be taken away."""
    banned = evidence_of(trajectory)
    if not banned or not trajectory.rounds:
        raise Drop("no_evidence_to_withhold")
    question = Question(
        trajectory.question, [NOT_FOUND], f"{trajectory.id}{WITHHELD}", trajectory.dataset, kind=trajectory.kind
    )
    rng = random.Random(f"{settings.seed}/{question.id}")
    first = next(segment.text for segment in trajectory.segments if segment.author == "model")
    queries = [query.text for query in trajectory.rounds[0].queries]
    lesson = WithheldLesson(question, rng, settings.max_quote_words, first, queries, load_rules(settings.rules).wording)
    made = await play(question, lesson, Search(Without(search.retriever, banned), k=search.k), encoder, settings)
    if any(abstention_of(replace(made, answer=answer)) is None for answer in trajectory.golden_answers):
        raise Drop("evidence_still_there")
    return made


def evidence_of(trajectory: Trajectory) -> Collection[str]:
    """The ids of the passages found that answer the question: of its supporting pages, those that hold a golden answer, and
    those about a thing that a sub-query names."""
    titles = {normalise(title) for title in trajectory.supporting_titles or ()}
    wanted = [f" {normalise(answer)} " for answer in trajectory.golden_answers]
    asked = [f" {normalise(query.text)} " for query in trajectory.queries]
    return {
        hit.id
        for query in trajectory.queries
        for hit in query.hits
        if normalise(hit.title) in titles
        or any(answer in f" {normalise(f'{hit.title} {hit.text}')} " for answer in wanted)
        or any(f" {normalise(hit.title)} " in text for text in asked)
    }

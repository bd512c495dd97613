"""Lessons in abstaining: the same first search, the evidence withheld, and the answer that there is none.

A question that could be taught is played once more over a corpus without the passages that answer it. The first turn is
the one that was taught. Then the lesson says what was looked for, that it is not among the results, and answers
`answers.NOT_FOUND`, the form by which an agent knows that its policy abstains. What the rule of `grounding.py` would still
give as an answer is dropped: a lesson must not teach to look away. Nothing here knows a language but the wording.

For RL, where every rollout searches the whole corpus, evidence cannot be withheld: there `unanswerable` finds questions that
the corpus does not answer.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from parallelsearch import grammar
from parallelsearch.answers import NOT_FOUND, normalise
from parallelsearch.coldstart.lesson import ColdStartSettings, Drop, Lesson, Seen
from parallelsearch.coldstart.rules import load_rules
from parallelsearch.coldstart.tutor import play
from parallelsearch.coldstart.written import Wording
from parallelsearch.grounding import abstention_of, is_computed
from parallelsearch.policy.base import Policy
from parallelsearch.retrieval.base import Hit
from parallelsearch.retrieval.without import Without
from parallelsearch.rollouts import in_order
from parallelsearch.search import Search
from parallelsearch.trajectory import Question, Trajectory

WITHHELD = "/withheld"
"""Ends the id of a question whose evidence is not there."""
DEPTH = 20
"""So many passages are looked through for the answer of a question before it counts as one without."""
_BATCH = 100


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
    """The ids of the passages found that answer the question."""
    asked = [query.text for query in trajectory.queries]
    hits = [hit for query in trajectory.queries for hit in query.hits]
    return _evidence(hits, trajectory.supporting_titles, trajectory.golden_answers, asked)


def _evidence(
    hits: Iterable[Hit], supporting: Sequence[str] | None, golden: Sequence[str], asked: Sequence[str]
) -> set[str]:
    """Of these passages, those of the supporting pages, those that hold a golden answer, and those about a thing that is
    named where it is asked for."""
    titles = {normalise(title) for title in supporting or ()}
    wanted = [f" {normalise(answer)} " for answer in golden]
    texts = [f" {normalise(text)} " for text in asked]
    return {
        hit.id
        for hit in hits
        if normalise(hit.title) in titles
        or any(answer in f" {normalise(f'{hit.title} {hit.text}')} " for answer in wanted)
        or any(f" {normalise(hit.title)} " in text for text in texts)
    }


# ---- for RL ----------------------------------------------------------------------------------------------------------


async def unanswerable(questions: Sequence[Question], search: Search, num_wanted: int, seed: int) -> list[Question]:
    """Questions that the corpus does not answer, with `NOT_FOUND` as their answer; as many as wanted, the kinds in turn.

    None of the first passages for the whole question holds a golden answer, is of a supporting page or about a thing that the
    question names. Questions whose answer is computed (yes or no, a number) say nothing about what was found: left out."""
    by_kind: dict[str, list[Question]] = {}
    for question in questions:
        if question.golden_answers and not any(is_computed(question.question, one) for one in question.golden_answers):
            by_kind.setdefault(question.kind or "", []).append(question)
    for kind, group in by_kind.items():
        random.Random(f"{seed}/unanswerable/{kind}").shuffle(group)
    found: list[Question] = []
    in_turn = [one for row in zip_longest(*by_kind.values()) for one in row if one is not None]
    for start in range(0, len(in_turn), _BATCH):
        if len(found) >= num_wanted:
            break
        batch = in_turn[start : start + _BATCH]
        results = await search.search_many([one.question for one in batch], DEPTH)
        for question, result in zip(batch, results, strict=True):
            is_known = result.error is not None or _evidence(
                result.hits, question.supporting_titles, question.golden_answers, [question.question]
            )
            if not is_known:
                found.append(replace(question, id=f"{question.id}{WITHHELD}", golden_answers=[NOT_FOUND], parts=None))
    return found[:num_wanted]

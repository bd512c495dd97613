"""Rejection sampling: trajectories from a policy's own tries, kept when the answer is right and every turn is well-formed.

The other way to make data, beside lessons. It needs no rules and works in any language, with any policy that already
answers some of the questions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from parallelsearch.coldstart.lesson import ColdStartSettings, Drop
from parallelsearch.coldstart.tutor import ColdStartReport, check
from parallelsearch.errors import UsageError
from parallelsearch.policy.base import Policy, Sampling
from parallelsearch.rollout import rollout
from parallelsearch.rollouts import in_order
from parallelsearch.search import Search
from parallelsearch.trajectory import Question, Trajectory


async def sample_right(
    questions: Sequence[Question],
    policy: Policy,
    search: Search,
    settings: ColdStartSettings | None = None,
    *,
    num_samples: int = 4,
) -> tuple[list[Trajectory], ColdStartReport]:
    """Let a policy try `num_samples` times, at temperature 1, and keep the shortest right, well-formed trajectory of each
    question."""
    settings = settings or ColdStartSettings()
    if num_samples < 1:
        raise UsageError(f"num_samples must be at least 1, not {num_samples}")
    report = ColdStartReport(len(questions))

    async def attempt(number: int, question: Question) -> Trajectory | None:
        sample = number % num_samples
        sampling = Sampling(1.0, seed=settings.seed + sample)
        trajectory = await rollout(
            replace(question), policy, search, settings.limits, dialect=settings.mode, sampling=sampling
        )
        try:
            check(trajectory, settings)
        except Drop as reason:
            report.drop(question, reason)
            return None
        trajectory.sample = sample
        return trajectory

    kept: list[Trajectory] = []
    repeated = [question for question in questions for _ in range(num_samples)]
    tries = await in_order(attempt, repeated, settings.max_concurrent)
    for number, question in enumerate(questions):
        tried = tries[number * num_samples : (number + 1) * num_samples]
        right = [one for one in tried if one is not None]
        if right:
            kept.append(min(right, key=lambda one: (one.num_llm_calls, len(one.text))))
            report.kept[question.kind or "unknown"] += 1
    return kept, report

"""The rollouts of one training step: all of them at once, in one event loop, and the rows a trainer wants from them.

The seed of a rollout is made from (run seed, step, row), sessions are named by row, and so a resumed run samples what
the uninterrupted one would have. A row ends on a model token: what the environment put behind the last turn is cut off,
because an algorithm that puts the reward on the last token would lose it there.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from parallelsearch import rewards
from parallelsearch.errors import ParallelSearchError, UsageError
from parallelsearch.policy.base import Policy, Sampling
from parallelsearch.rollouts import rollout_many
from parallelsearch.search import Search
from parallelsearch.training.recipe import RewardSettings, RolloutSettings
from parallelsearch.training.timing import Stretch, Stretches, without_garbage_collection
from parallelsearch.trajectory import Question, Trajectory

MAX_CONCURRENT = 4096
"""Rollouts of a process at once: all of a step's, because a batch forms when every live one waits."""


@dataclass(slots=True)
class TokenRow:
    """One trajectory as token ids. `mask` is 1 where the model sampled; `logprobs` are the sampler's own."""

    prompt_ids: list[int]
    completion_ids: list[int]
    mask: list[int]
    logprobs: list[float]

    @property
    def is_trainable(self) -> bool:
        return any(self.mask)


def token_row(trajectory: Trajectory, filler_id: int) -> TokenRow:
    """The trajectory's ids, trimmed to end on a model token. One without any model token becomes a single masked
    `filler_id`: a row that trains nothing, where an empty one would be an error."""
    if not trajectory.has_token_ids:
        raise UsageError(
            "this policy gives no token ids, so its trajectories cannot be trained on; use a local model (hf:...)"
        )
    ids, mask, logprobs = trajectory.response_ids(), trajectory.loss_mask(), trajectory.response_logprobs()
    end = len(mask) - next((back for back, value in enumerate(reversed(mask)) if value), len(mask))
    if end == 0:
        return TokenRow(trajectory.prompt_ids(), [filler_id], [0], [0.0])
    return TokenRow(trajectory.prompt_ids(), ids[:end], mask[:end], logprobs[:end])


def rollout_seed(seed: int, step: int, row: int) -> int:
    """64 bits from (run seed, step, row): neighbours share nothing."""
    digest = hashlib.blake2b(f"{seed}/{step}/{row}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


class Collector:
    """Runs rollouts over one policy and one search, in an event loop of its own that lives as long as the run."""

    def __init__(self, policy: Policy, search: Search, settings: RolloutSettings) -> None:
        self.policy, self.search, self.settings = policy, search, settings
        self._runner = asyncio.Runner()
        self._generating, self._searching = Stretches(), Stretches()
        search.on_busy = self._searching
        self._engine = getattr(policy, "engine", None)
        if self._engine is not None:
            self._engine.on_busy = self._generating

    def sample(self, questions: Sequence[Question], *, seed: int, step: int, first_row: int = 0) -> list[Trajectory]:
        """One trajectory for each question (repeat a question for several), sampled at the recipe's temperature."""
        samplings = [self.settings.sampling(rollout_seed(seed, step, first_row + row)) for row in range(len(questions))]
        self.stretches()  # those of a validation are not this step's
        self.engine_seconds()
        with without_garbage_collection():
            return self._runner.run(self._run(questions, samplings, first_row))

    def stretches(self) -> tuple[list[Stretch], list[Stretch]]:
        """When the engine was at work, and when a search was under way, since the last call or the last `sample` began."""
        return self._generating.take(), self._searching.take()

    def engine_seconds(self) -> dict[str, float]:
        """What the engine spent on parts of its work, since the last call or the last `sample` began."""
        seconds: dict[str, float] = getattr(self._engine, "seconds", {})
        taken = dict(seconds)
        seconds.clear()
        return taken

    def answer(self, questions: Sequence[Question]) -> list[Trajectory]:
        """One greedy trajectory for each question: validation."""
        samplings = [self.settings.sampling(seed=0, greedy=True)] * len(questions)
        return self._runner.run(self._run(questions, samplings, 0))

    async def _run(
        self, questions: Sequence[Question], samplings: Sequence[Sampling], first_row: int
    ) -> list[Trajectory]:
        return await rollout_many(
            questions,
            self.policy,
            self.search,
            self.settings.limits,
            dialect=self.settings.dialect,
            sampling=samplings.__getitem__,
            session=lambda row: f"row-{first_row + row:08d}",
            streaming_dispatch=False,
            max_concurrent=MAX_CONCURRENT,
        )

    def close(self) -> None:
        async def close_both() -> None:
            await self.policy.aclose()
            await self.search.aclose()

        try:
            self._runner.run(close_both())
        finally:
            self._runner.close()


def score(trajectories: Sequence[Trajectory], settings: RewardSettings) -> list[float | None]:
    """The total reward of each trajectory, its components kept in the record; None where the policy itself failed."""
    totals: list[float | None] = []
    for trajectory in trajectories:
        if trajectory.stop == "error":
            totals.append(None)  # a broken engine is not a wrong answer
            continue
        reward = rewards.reward(trajectory, settings.preset, settings.weights)
        trajectory.rewards = reward.to_dict()
        totals.append(reward.total)
    return totals


def check_questions(questions: Sequence[Question], settings: RewardSettings, what: str) -> None:
    """Refuse, before anything is loaded, questions the reward cannot score."""
    if not questions:
        raise UsageError(f"there are no {what} questions")
    for question in questions:
        if not question.golden_answers:
            raise UsageError(
                f"{what} question {question.id or question.question!r} has no golden_answers; without them no answer is "
                "ever right. Add them, or leave the question out"
            )
    if rewards.is_own(settings.preset):  # loaded with the recipe; what it needs of a question is its own to say
        return
    try:
        for question in questions:
            record = Trajectory(question.question, kind=question.kind, id=question.id, golden_answers=["x"])
            rewards.reward(record, settings.preset, settings.weights)
    except ParallelSearchError as error:
        raise UsageError(f"{what} data: {error}") from error

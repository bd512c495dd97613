"""Many rollouts behind one gate: the order is kept, and a question on which something breaks costs no other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar, Unpack

from parallelsearch.errors import ParallelSearchError, UsageError, check_whole, refuse_unknown
from parallelsearch.limits import Limits
from parallelsearch.policy.base import Policy, Sampling, check_policy
from parallelsearch.rollout import RolloutOptions, rollout
from parallelsearch.search import Search, check_search
from parallelsearch.trajectory import Question, Trajectory

MAX_CONCURRENT = 64
"""How many rollouts are under way at once, where nobody says otherwise."""

T = TypeVar("T")
R = TypeVar("R")


async def rollout_many(
    questions: Iterable[Question | str],
    policy: Policy,
    search: Search,
    limits: Limits | None = None,
    *,
    sampling: Sampling | Callable[[int], Sampling] | None = None,
    session: Callable[[int], str] | None = None,
    max_concurrent: int = MAX_CONCURRENT,
    **options: Unpack[RolloutOptions],
) -> list[Trajectory]:
    """Answer many questions, at most `max_concurrent` at a time: `await rollout_many(...)`. The order is kept.

    Each gets a seed of its own, or the sampling and the session that a function of its number gives. `options` are those of
    `rollout`. One question on which something breaks, whatever it is, becomes a trajectory that says so: it never costs the
    others.
    """
    found: dict[int, Trajectory] = {}
    settings: dict[str, Any] = {"sampling": sampling, "session": session, "max_concurrent": max_concurrent, **options}
    await rollout_each(questions, policy, search, limits, on_done=found.__setitem__, **settings)
    return [found[number] for number in sorted(found)]


async def rollout_each(
    questions: Iterable[Question | str],
    policy: Policy,
    search: Search,
    limits: Limits | None = None,
    *,
    on_done: Callable[[int, Trajectory], None],
    sampling: Sampling | Callable[[int], Sampling] | None = None,
    session: Callable[[int], str] | None = None,
    max_concurrent: int = MAX_CONCURRENT,
    **options: Unpack[RolloutOptions],
) -> None:
    """`rollout_many` for more trajectories than memory should hold: `on_done` gets each as it ends, with its number, and
    nothing is kept. What `on_done` raises ends all that are left."""
    refuse_unknown(options, RolloutOptions.__annotations__, "rollout_many")
    if isinstance(questions, str):  # each letter would be one
        raise UsageError("many questions are a list of them; for a single one use ask, or put it into a list")
    check_policy(policy)  # or every question would say it
    check_search(search)
    drawn = sampling or Sampling()

    async def one(number: int, question: Question | str) -> None:
        start_s = time.perf_counter()
        try:
            trajectory = await rollout(
                question,
                policy,
                search,
                limits,
                sampling=drawn(number) if callable(drawn) else replace(drawn, seed=drawn.seed + number),
                session=None if session is None else session(number),
                **options,
            )
        except Exception as error:
            trajectory = failed(question, error, time.perf_counter() - start_s)
        on_done(number, trajectory)

    await in_order(one, questions, max_concurrent)


async def in_order(
    work: Callable[[int, T], Awaitable[R]], items: Iterable[T], max_concurrent: int = MAX_CONCURRENT
) -> list[R]:
    """`work(number, item)` for each item, at most `max_concurrent` at a time, results in the items' order. The first that
    raises ends the others."""
    check_whole("max_concurrent is how many are under way at once:", max_concurrent)
    waiting = list(items)
    left = iter(enumerate(waiting))
    done: dict[int, R] = {}

    async def worker() -> None:
        for number, item in left:
            done[number] = await work(number, item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(max_concurrent, len(waiting))):
                group.create_task(worker())
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [done[number] for number in range(len(waiting))]


def failed(question: Question | str, error: Exception, elapsed_s: float = 0.0) -> Trajectory:
    """The record of a question on which something broke before there was a trajectory."""
    trajectory = Trajectory.of(question if isinstance(question, Question) else Question(str(question)))
    trajectory.stop, trajectory.elapsed_s = "error", elapsed_s
    trajectory.error = str(error) if isinstance(error, ParallelSearchError) else f"{type(error).__name__}: {error}"
    return trajectory

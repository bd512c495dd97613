"""Which questions a run trains and validates on, in which order: a function of the recipe alone.

Training questions come from files or named sets, less every one that stands in a dev or test file this machine knows;
validation is a set of its own or is cut from training. The order of the whole run is drawn at the start, in shuffled passes,
so that a resumed run and a longer one ask the same questions at the same places.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from parallelsearch.answers import normalise
from parallelsearch.data.leaks import find_leaks, held_out, refuse_leaks
from parallelsearch.data.sets import load_questions
from parallelsearch.errors import UsageError
from parallelsearch.training import smoke
from parallelsearch.training.recipe import DataSettings
from parallelsearch.trajectory import Question

log = logging.getLogger(__name__)

Pools = list[list[Question]]


def load_pools(settings: DataSettings, seed: int) -> tuple[Pools, list[Question]]:
    """One pool of training questions for each entry of `train`, and the validation questions."""
    known = held_out()
    pools = [_pool(source, known) for source in settings.train_sources]
    if settings.kinds is not None:
        pools = [[question for question in pool if question.kind in settings.kinds] for pool in pools]
    validation = [question for source in settings.validation_sources for question in _pool(source, known)]
    _refuse_empty(pools, settings)
    _refuse_held_out(pools, settings)
    if validation:
        texts = {normalise(question.question) for question in validation}
        pools = [[question for question in pool if normalise(question.question) not in texts] for pool in pools]
        validation = _draw(validation, settings.num_validation or len(validation), seed)
    else:
        pools, validation = cut_validation(pools, settings.num_validation, seed)
    if settings.max_questions is not None:
        pools = _limit(pools, settings.max_questions, seed)
    _refuse_empty(pools, settings)
    return pools, validation


def _pool(source: str, known: Mapping[str, str]) -> list[Question]:
    """A set's train split or a file, without the questions of any dev or test file there is."""
    if source == smoke.NAME:
        return smoke.questions(600)
    found = load_questions(source, split=None if Path(source).is_file() else "train").questions
    leaked = {id(leak.question) for leak in find_leaks(found, known)}
    if leaked:
        log.warning("%s: %d questions left out because an evaluation file has them", source, len(leaked))
    return [question for question in found if id(question) not in leaked]


def _refuse_empty(pools: Pools, settings: DataSettings) -> None:
    for source, pool in zip(settings.train_sources, pools, strict=True):
        if not pool:
            raise UsageError(f"nothing is left to train on of '{source}'; look at data.kinds and data.num_validation")


def _refuse_held_out(pools: Pools, settings: DataSettings) -> None:
    known = {normalise(question.question): path for path in settings.held_out for question in load_questions(path)}
    if known:
        refuse_leaks([question for pool in pools for question in pool], known)


def cut_validation(pools: Pools, count: int, seed: int) -> tuple[Pools, list[Question]]:
    """Take `count` questions out of the pools, from each by its size. The same text never stands on both sides."""
    total = sum(map(len, pools))
    if count >= total:
        raise UsageError(
            f"data.num_validation = {count} would leave nothing of {total} questions to train on; lower it, or set "
            "data.validation"
        )
    taken: list[Question] = []
    for number, pool in enumerate(pools):
        share = round(count * len(pool) / total)
        taken += _draw(pool, share, seed + number)
    texts = {normalise(question.question) for question in taken}
    return [[question for question in pool if normalise(question.question) not in texts] for pool in pools], taken


def _draw(questions: Sequence[Question], count: int, seed: int) -> list[Question]:
    order = list(range(len(questions)))
    random.Random(f"validation/{seed}").shuffle(order)
    return [questions[place] for place in sorted(order[:count])]


def _limit(pools: Pools, count: int, seed: int) -> Pools:
    total = sum(map(len, pools))
    return [_draw(pool, max(1, round(count * len(pool) / total)), seed) for pool in pools]


def order_of_run(sizes: Sequence[int], mix: Sequence[float] | None, count: int, seed: int) -> list[int]:
    """`count` places in the pools laid end to end. Every pool is gone through in shuffled passes; `mix` says how often each
    is drawn from. A longer order begins with the shorter one."""
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    rng = random.Random(f"order/{seed}")
    if mix is None:
        return _passes(sum(sizes), count, rng)
    queues: list[list[int]] = [[] for _ in sizes]
    order: list[int] = []
    for _ in range(count):
        pool = rng.choices(range(len(sizes)), weights=mix)[0]
        if not queues[pool]:
            queues[pool] = rng.sample(range(sizes[pool]), sizes[pool])
        order.append(starts[pool] + queues[pool].pop())
    return order


def _passes(size: int, count: int, rng: random.Random) -> list[int]:
    order: list[int] = []
    while len(order) < count:
        order += rng.sample(range(size), size)
    return order[:count]

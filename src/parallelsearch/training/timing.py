"""Where the seconds of a step go: when the engine was at work, when a search was, and what was neither.

Engine and search say when they begin and end (`on_busy`); `Stretches` keeps that as stretches of wall-clock time. Several
things under way at once are one stretch, so seconds are counted once. `TimeLimit` says when a run that was given so many
seconds should save itself and stop, while there is still time for it: all processes stop at the same step, as soon as the
clock of one says so.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

Stretch = tuple[float, float]
"""Begin and end, in `time.perf_counter()` seconds."""


class Stretches:
    """When at least one thing was under way. Begin and end may come from any thread."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._num_open = 0
        self._since_s = 0.0
        self._closed: list[Stretch] = []

    def __call__(self, begins: bool) -> None:
        with self._lock:
            self._num_open += 1 if begins else -1
            if begins and self._num_open == 1:
                self._since_s = self._clock()
            elif not begins and self._num_open == 0:
                self._closed.append((self._since_s, self._clock()))

    def take(self) -> list[Stretch]:
        """All stretches since the last call, in order; one that still lasts is cut here and goes on in the next."""
        with self._lock:
            taken, self._closed = self._closed, []
            if self._num_open:
                now = self._clock()
                taken.append((self._since_s, now))
                self._since_s = now
            return taken


def seconds(stretches: Sequence[Stretch]) -> float:
    return sum(end - begin for begin, end in stretches)


def overlap(first: Sequence[Stretch], second: Sequence[Stretch]) -> float:
    """Seconds that lie in both. Each has its stretches in order and apart from each other."""
    total, place = 0.0, 0
    for begin, end in first:
        while place < len(second) and second[place][1] <= begin:
            place += 1
        ahead = place
        while ahead < len(second) and second[ahead][0] < end:
            total += min(end, second[ahead][1]) - max(begin, second[ahead][0])
            ahead += 1
    return total


def rollout_times(rollout_s: float, generating: Sequence[Stretch], searching: Sequence[Stretch]) -> dict[str, float]:
    """The parts of a rollout's time. `generate_s`, `search_alone_s` and `host_s` add up to it."""
    generate_s, search_s = seconds(generating), seconds(searching)
    alone_s = search_s - overlap(searching, generating)
    return {
        "time/rollout_s": rollout_s,
        "time/generate_s": generate_s,
        "time/search_s": search_s,
        "time/search_alone_s": alone_s,
        "time/host_s": rollout_s - generate_s - alone_s,
    }


PARTS_OF_STEP = ("time/rollout_s", "time/score_s", "time/train_s")


@contextmanager
def long_lived() -> Iterator[None]:
    """Whatever exists now, modules, model and questions, is not searched for garbage again and again. Who has frozen objects
    before keeps them so: there is no way to thaw one's own alone."""
    if gc.get_freeze_count():
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Python's collector stops every thread to look through all objects. A thousand rollouts make enough of them, all of
    them still in use, to wake it for most of a second."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class TimeLimit:
    """Remembers the longest step; time is up when less than `spare_steps` of that length is left. No limit: never.

    The first step of a process counts only until there is a second: it loads kernels and, with `model.compile`, compiles for
    half a minute, so that a run in short slices would stop minutes too early."""

    def __init__(self, limit_s: float | None, spare_steps: float, started_s: float) -> None:
        self._limit_s, self._spare_steps, self._started_s = limit_s, spare_steps, started_s
        self._longest_step_s, self._num_steps = 0.0, 0

    def is_up(self, accelerator: Any, step_s: float) -> bool:
        """Asked by every process after every step, with what it took."""
        self._num_steps += 1
        self._longest_step_s = step_s if self._num_steps <= 2 else max(self._longest_step_s, step_s)
        if self._limit_s is None:
            return False
        left_s = self._limit_s - (time.monotonic() - self._started_s)
        if left_s < self._spare_steps * self._longest_step_s:
            accelerator.set_trigger()
        return bool(accelerator.check_trigger())

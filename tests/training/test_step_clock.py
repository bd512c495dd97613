"""Where a step's seconds go: stretches of several things at once, what lies in both, and times that add up."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import demo_search, tiny_model, tiny_recipe

from parallelsearch.retrieval.base import Result, Retriever
from parallelsearch.search import Search
from parallelsearch.training import smoke
from parallelsearch.training.collect import Collector
from parallelsearch.training.metrics import read_metrics
from parallelsearch.training.run import run
from parallelsearch.training.sampler import TrainingPolicy, sampling_policy
from parallelsearch.training.timing import (
    Stretches,
    TimeLimit,
    long_lived,
    overlap,
    rollout_times,
    seconds,
    without_garbage_collection,
)
from parallelsearch.training.weights import load_weights
from virtual_time import in_virtual_time


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_things_under_way_at_once_are_one_stretch() -> None:
    clock = Clock()
    busy = Stretches(clock)
    for now, begins in [(1, True), (2, True), (3, False), (5, False), (7, True), (8, False)]:
        clock.now = now
        busy(begins)
    assert busy.take() == [(1, 5), (7, 8)]
    assert busy.take() == []


def test_a_stretch_that_lasts_is_cut_and_goes_on() -> None:
    clock = Clock()
    busy = Stretches(clock)
    busy(True)
    clock.now = 2
    assert busy.take() == [(0, 2)]
    clock.now = 5
    busy(False)
    assert busy.take() == [(2, 5)]


def test_begin_and_end_may_come_from_many_threads() -> None:
    busy = Stretches()

    def work() -> None:
        for _ in range(500):
            busy(True)
            busy(False)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stretches = busy.take()
    assert busy.take() == [], "as many ends as beginnings"
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(stretches))


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [
        ([], [(0, 1)], 0),
        ([(0, 4)], [(1, 2), (3, 9)], 2),
        ([(0, 2), (5, 9)], [(1, 6), (7, 8)], 3),
        ([(0, 1), (2, 3), (4, 5)], [(0, 10)], 3),
        ([(0, 1)], [(1, 2)], 0),
    ],
)
def test_seconds_that_lie_in_both(first: Any, second: Any, both: float) -> None:
    assert overlap(first, second) == overlap(second, first) == both


def test_the_parts_of_a_rollout_add_up() -> None:
    times = rollout_times(10.0, generating=[(0, 4), (6, 8)], searching=[(3, 5), (7, 9.5)])
    assert times["time/generate_s"] == 6
    assert times["time/search_s"] == 4.5
    assert times["time/search_alone_s"] == 2.5
    assert times["time/host_s"] == 1.5


class Slow(Retriever):
    """A search that takes its time, so that it can be seen."""

    name = "slow"
    max_concurrency = 4
    max_batch = 1

    def __init__(self, wait_s: float = 0.05) -> None:
        self.wait_s = wait_s

    async def search_many(self, queries: Sequence[str], k: int) -> list[Result]:
        await asyncio.sleep(self.wait_s)
        if "bad" in queries[0]:
            raise RuntimeError("no")
        return [[] for _ in queries]


@in_virtual_time
async def test_a_search_says_when_it_is_under_way() -> None:
    search, busy = Search(Slow(), timeout_s=0.5), Stretches(time.perf_counter)
    search.on_busy = busy
    await asyncio.gather(search.find("a"), search.find("a"), search.find("b"), search.find("bad"))
    (stretch,) = busy.take()
    assert stretch[1] - stretch[0] == pytest.approx(0.05, abs=0.001)
    await search.find("a")
    assert busy.take() == [], "the cache answers at once"
    task = asyncio.create_task(search.find("c"))
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert len(busy.take()) == 1
    assert busy.take() == [], "nobody waits for it any more"
    again = asyncio.create_task(search.find("c"))  # the abandoned answer comes in while this one is under way
    await asyncio.sleep(0.045)
    assert len(busy.take()) == 1
    await again
    assert busy.take() != []
    await search.aclose()


@pytest.fixture
def collector(tmp_path: Path) -> Any:
    model, tokenizer = tiny_model()
    recipe = tiny_recipe(tmp_path)
    weights = load_weights(recipe.model, model.device, needs_reference=False, model=model, tokenizer=tokenizer)
    made = Collector(sampling_policy(recipe, weights), Search(Slow(0.5)), recipe.rollout)
    yield made
    made.close()


def test_a_step_knows_its_engine_and_its_searches(collector: Collector) -> None:
    questions = smoke.questions(8)
    collector.answer(questions)
    began = time.perf_counter()
    trajectories = collector.sample(questions, seed=1, step=0)
    ended = time.perf_counter()
    generating, searching = collector.stretches()
    assert sum(len(turn.queries) for trajectory in trajectories for turn in trajectory.turns) > 0
    assert generating
    assert searching
    for stretches in (generating, searching):
        assert began <= stretches[0][0], "the validation before is not in it"
        assert stretches[-1][1] <= time.perf_counter()
    assert 0 < seconds(generating) < ended - began
    assert seconds(searching) > 0.45
    # All rollouts are in search at the same moment here: the engine has nothing to do meanwhile.
    assert seconds(searching) - overlap(searching, generating) > 0.01


def test_the_same_results_are_encoded_once_a_step(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = collector.policy
    assert isinstance(policy, TrainingPolicy)
    encoded: list[str] = []
    encode = policy._encode_untrusted
    monkeypatch.setattr(policy, "_encode_untrusted", lambda text: encoded.append(text) or encode(text))
    first, second = policy.insert("ash and oak", "search"), policy.insert("ash and oak", "notice")
    assert first.token_ids == second.token_ids == encode("ash and oak")
    assert (first.author, second.author) == ("search", "notice")
    assert encoded == ["ash and oak"]
    policy.reset()
    policy.insert("ash and oak", "search")
    assert len(encoded) == 2


def test_the_times_of_a_step_add_up(tmp_path: Path) -> None:
    model, tokenizer = tiny_model()
    recipe = tiny_recipe(tmp_path, {"train.steps": 2, "train.updates_per_step": 2})
    run(recipe, [smoke.questions(24)], [], demo_search(), model=model, tokenizer=tokenizer, with_plot=False)
    records = read_metrics(tmp_path / "metrics.jsonl")
    assert len(records) == 2
    for record in records:
        times = {name.removeprefix("time/"): value for name, value in record.items() if name.startswith("time/")}
        assert all(value >= -1e-9 for value in times.values()), times
        parts = times["rollout_s"] + times["score_s"] + times["train_s"] + times["other_s"]
        assert parts == pytest.approx(times["step_s"])
        inside = times["generate_s"] + times["search_alone_s"] + times["host_s"]
        assert inside == pytest.approx(times["rollout_s"])
        assert times["prefill_s"] > 0
        # A turn of the smoke task may be one token, drawn in prefill: a step of such turns decodes nothing.
        assert times["prefill_s"] + times.get("decode_s", 0.0) < times["generate_s"]
        assert "record_s" not in times, "no graphs on a CPU"
    assert sum(record.get("time/decode_s", 0.0) for record in records) > 0


def test_the_collector_is_put_back_as_it_was() -> None:
    assert gc.isenabled()
    with without_garbage_collection():
        assert not gc.isenabled()
        with without_garbage_collection():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.unfreeze()
    with long_lived():
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0
    gc.freeze()  # as the tests' own start has it
    frozen = gc.get_freeze_count()
    with long_lived():
        pass
    # Frozen objects still end when nobody holds them, also in other threads.
    assert gc.get_freeze_count() > frozen / 2, "what the caller froze stays so"


def test_a_slow_first_step_does_not_end_a_run_early() -> None:
    """A compiled first step takes half a minute, those behind it a fraction of a second."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    limit = TimeLimit(60.0, spare_steps=3, started_s=time.monotonic() - 10)
    assert not limit.is_up(accelerator, 15.0)
    assert TimeLimit(60.0, spare_steps=3, started_s=time.monotonic() - 10).is_up(accelerator, 20.0), (
        "nothing else known"
    )
    assert not limit.is_up(accelerator, 0.2)
    late = TimeLimit(60.0, spare_steps=3, started_s=time.monotonic() - 55)
    assert late.is_up(accelerator, 25.0)
    assert not late.is_up(accelerator, 0.2), "five seconds are room for 25 steps"
    assert late.is_up(accelerator, 2.0)
    assert late.is_up(accelerator, 0.2), "the longest counts, not the last"

"""Ask every question of a set, record what happens, and sum it up.

`evaluate` keeps a bounded number of rollouts going, adds each trajectory to the run folder the moment it is done, and keeps
only its row in memory. A run that was killed goes on where it stopped. A question on which the policy fails is a row like
any other: wrong, and counted as a failure. What the numbers mean is in `metrics.py`; the report is made by `report.py`.
"""

from __future__ import annotations

import asyncio
import os
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from parallelsearch.baseline_formats import open_method, wrap_policy
from parallelsearch.baselines import Method, MethodPolicy
from parallelsearch.data import read_records
from parallelsearch.datasets import QuestionSet
from parallelsearch.errors import DataError, ParallelSearchError, UsageError
from parallelsearch.manifest import Manifest, describe_machine, hash_text, now, plain
from parallelsearch.metrics import Prices, Row, row_of, subsets_of, summarise
from parallelsearch.observation import Layout
from parallelsearch.policy.base import Policy, Sampling
from parallelsearch.rollout import Limits, rollout
from parallelsearch.run_folder import RunFolder, RunStoppedError
from parallelsearch.search import Search
from parallelsearch.trajectory import Question, Trajectory

_SOME_QUESTION = "the question"
"""Stands for the question in the prompt that the manifest keeps."""


@dataclass(frozen=True, slots=True)
class EvaluationSettings:
    """How a set is evaluated. Everything up to `seed` decides the numbers and is frozen in the manifest."""

    method: str = "parallel"
    prompt_template: str | None = None
    limits: Limits = field(default_factory=Limits)
    sampling: Sampling = field(default_factory=Sampling)
    layout: Layout = "headed"
    streaming_dispatch: bool = True
    seed: int = 0
    concurrency: int = 64
    """How many questions are under way at once."""
    prices: Prices | None = None
    num_resamples: int = 1000
    retry_failures: bool = False
    """When a run goes on: ask those questions again on which the policy failed or that ran out of time."""
    max_failures_in_a_row: int | None = 100
    """A policy that fails this often with no success in between is broken: stop, instead of failing on every question."""

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise UsageError(
                f"concurrency is how many questions are under way at once: at least 1, not {self.concurrency}"
            )


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands. `em` is over what is done, so far."""

    num_done: int
    num_total: int
    num_right: int
    num_failed: int
    elapsed_s: float

    @property
    def em(self) -> float:
        return self.num_right / self.num_done if self.num_done else 0.0


OnProgress = Callable[[Progress], None]


async def evaluate(
    questions: QuestionSet | Sequence[Question],
    policy: Policy,
    search: Search,
    out_dir: str | os.PathLike[str],
    settings: EvaluationSettings | None = None,
    on_progress: OnProgress | None = None,
) -> dict[str, Any]:
    """Run the set, or go on with it, and return its summary, which `out_dir` then holds as `summary.json`."""
    settings = settings or EvaluationSettings()
    asked = _as_set(questions)
    method = open_method(settings.method, settings.prompt_template)
    manifest = Manifest(
        setup=plain(describe_setup(asked, policy, search, settings, method)),
        environment=plain(
            {
                **describe_machine(),
                "concurrency": settings.concurrency,
                "first_prompt": _as_shown(policy, method, asked.questions[0].question),
            }
        ),
        warnings=list(asked.warnings),
        created=now(),
    )
    run = _Run(asked, wrap_policy(policy, method), search, settings, method, on_progress)
    with RunFolder(out_dir) as folder:
        goes_on = folder.begin(manifest)
        if goes_on and settings.retry_failures:
            folder.drop(lambda trajectory: trajectory.stop in ("error", "timeout"))
        run.take_over(folder.rows(run.by_id, settings.prices))
        start_s = time.perf_counter()
        await run.go(folder)
        summary = summary_of(run.rows, manifest, settings.num_resamples, settings.seed)
        summary["wall_s"] = time.perf_counter() - start_s
        summary["num_done_now"] = run.num_done_now
        folder.finish(run.rows, summary)
    return summary


def summary_of(rows: Sequence[Row], manifest: Manifest, num_resamples: int = 1000, seed: int = 0) -> dict[str, Any]:
    return {
        "subsets": {
            name: summarise(group, num_resamples=num_resamples, seed=seed) for name, group in subsets_of(rows).items()
        },
        "num_questions": manifest.setup["data"]["num_questions"],
        "num_done": len(rows),
        "manifest": manifest.to_dict(),
    }


def _as_shown(policy: Policy, method: Method, question: str) -> str | None:
    """The prompt with the engine's chat template around it. No part of the set-up: some templates hold the day's date."""
    try:
        return policy.prompt(method.prompt(question), question).text
    except Exception:  # whatever is wrong with this question is told by its own row
        return None


def describe_setup(
    questions: QuestionSet, policy: Policy, search: Search, settings: EvaluationSettings, method: Method
) -> dict[str, Any]:
    """All that decides the numbers."""
    return {
        "data": questions.describe(),
        "method": {
            "name": method.name,
            "prompt": method.prompt(_SOME_QUESTION),
            "prompt_sha256": hash_text(method.prompt(_SOME_QUESTION)),
            "max_turns": method.max_turns,
        },
        "policy": policy.describe(),
        "search": search.describe(),
        "limits": asdict(settings.limits),
        "sampling": {**asdict(settings.sampling), "seed": settings.seed},
        "layout": method.layout or settings.layout,
        "streaming_dispatch": settings.streaming_dispatch,
    }


def _as_set(questions: QuestionSet | Sequence[Question]) -> QuestionSet:
    asked = questions if isinstance(questions, QuestionSet) else QuestionSet("questions", list(questions))
    if not asked.questions:
        raise UsageError("there are no questions to evaluate")
    seen: set[str] = set()
    for question in asked.questions:
        if not question.id or question.id in seen:
            raise UsageError(
                f"every question needs an id of its own, found {question.id!r}{' twice' if question.id else ''}; "
                "load_questions gives them"
            )
        seen.add(question.id)
    return asked


class _Run:
    """The questions that are left, the rollouts under way, the rows so far."""

    def __init__(
        self,
        questions: QuestionSet,
        policy: Policy,
        search: Search,
        settings: EvaluationSettings,
        method: Method,
        on_progress: OnProgress | None,
    ) -> None:
        self.questions, self.policy, self.search = questions, policy, search
        self.settings, self.method, self.on_progress = settings, method, on_progress
        self.limits = settings.limits
        if method.max_turns is not None:
            self.limits = replace(self.limits, max_turns=min(self.limits.max_turns, method.max_turns))
        self.by_id = {question.id: question for question in questions}
        self.rows: list[Row] = []
        self.num_right = self.num_failed = self.num_done_now = self.num_failed_in_a_row = 0
        self.start_s = time.perf_counter()

    def take_over(self, rows: Iterable[Row]) -> None:
        seen: set[str] = set()
        for row in rows:
            if row.id not in seen:  # a record joined by hand may hold one twice; it counts once
                self._count(row)
            seen.add(row.id)
        self._report()

    async def go(self, folder: RunFolder) -> None:
        done = {row.id for row in self.rows}
        left = iter([question for question in self.questions if question.id not in done])
        num_workers = min(self.settings.concurrency, len(self.by_id) - len(done))
        workers = [asyncio.create_task(self._work(left, folder)) for _ in range(num_workers)]
        try:
            if workers:
                await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for worker in workers:
                worker.cancel()
            ends = await asyncio.gather(*workers, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                raise end

    async def _work(self, left: Iterator[Question], folder: RunFolder) -> None:
        for question in left:
            trajectory = await self._ask(question)
            folder.add(trajectory)
            row = row_of(trajectory, question, self.settings.prices)
            self._count(row)
            self.num_done_now += 1
            self._report()
            self._stop_if_broken(row)

    async def _ask(self, question: Question) -> Trajectory:
        settings = self.settings
        session = f"eval/{question.id}"
        seed = zlib.crc32(f"{settings.seed}/{question.id}".encode("utf-8", "surrogatepass"))
        start_s = time.perf_counter()
        try:
            trajectory = await rollout(
                question,
                self.policy,
                self.search,
                self.limits,
                mode=self.method.mode,
                layout=self.method.layout or settings.layout,
                sampling=replace(settings.sampling, seed=seed),
                streaming_dispatch=settings.streaming_dispatch,
                session=session,
            )
        except Exception as error:  # an engine's bug on one question must not cost the others
            trajectory = _failed(question, error, time.perf_counter() - start_s)
        if isinstance(self.policy, MethodPolicy):
            self.policy.correct(trajectory, session)
        return trajectory

    def _count(self, row: Row) -> None:
        self.rows.append(row)
        self.num_right += row.em
        self.num_failed += row.stop == "error"

    def _report(self) -> None:
        if self.on_progress is not None:
            elapsed_s = time.perf_counter() - self.start_s
            self.on_progress(Progress(len(self.rows), len(self.by_id), self.num_right, self.num_failed, elapsed_s))

    def _stop_if_broken(self, row: Row) -> None:
        self.num_failed_in_a_row = self.num_failed_in_a_row + 1 if row.stop == "error" else 0
        limit = self.settings.max_failures_in_a_row
        if limit is not None and self.num_failed_in_a_row >= limit:
            raise RunStoppedError(
                f"the policy failed on {self.num_failed_in_a_row} questions in a row, last with: {row.error}. "
                f"{len(self.rows) - self.num_failed} questions were done before; repair the policy and go on with "
                "retry_failures"
            )


def _failed(question: Question, error: Exception, elapsed_s: float) -> Trajectory:
    text = str(error) if isinstance(error, ParallelSearchError) else f"{type(error).__name__}: {error}"
    return Trajectory(
        question=question.question,
        golden_answers=list(question.golden_answers),
        id=question.id,
        dataset=question.dataset,
        kind=question.kind,
        type=question.type,
        supporting_titles=question.supporting_titles,
        stop="error",
        error=text,
        elapsed_s=elapsed_s,
    )


# ---- answers that were made elsewhere --------------------------------------------------------------------------------


def evaluate_answers(
    questions: QuestionSet | Sequence[Question],
    answers: str | os.PathLike[str],
    out_dir: str | os.PathLike[str],
    *,
    num_resamples: int = 1000,
    seed: int = 0,
) -> dict[str, Any]:
    """Score a file of answers (JSON Lines, `id` and `answer`) as a run. A question without an answer is a wrong row."""
    asked = _as_set(questions)
    by_id = {question.id: question for question in asked}
    found: dict[str, str | None] = {}
    for line, record in read_records(answers):
        if not isinstance(record, dict) or "id" not in record or not isinstance(record.get("answer"), str | None):
            raise DataError(str(answers), line, "expected an object with id and answer (text)")
        found[str(record["id"])] = record.get("answer")
    known = found.keys() & by_id.keys()
    if not known:
        theirs, ours = ", ".join(list(found)[:2]) or "none", ", ".join(list(by_id)[:2])
        raise DataError(
            str(answers), None, f"no id stands in '{asked.name}': the file has {theirs}; the set has {ours}"
        )
    warnings = list(asked.warnings)
    if len(known) < len(by_id):
        warnings.append(
            f"{len(by_id) - len(known)} of {len(by_id)} questions have no answer in the file: they are wrong"
        )
    if len(known) < len(found):
        warnings.append(f"{len(found) - len(known)} answers belong to no question of the set")
    sha256 = hash_text("\x1e".join(f"{key}\x1f{found[key]}" for key in sorted(found)))
    setup = {"data": asked.describe(), "policy": {"kind": "answers", "sha256": sha256}}
    manifest = Manifest(plain(setup), plain(describe_machine()), warnings, now())
    rows: list[Row] = []
    with RunFolder(out_dir) as folder:
        folder.begin(manifest)
        done = {row.id for row in folder.rows(by_id)}
        for question in asked:
            trajectory = _failed(question, UsageError(""), 0.0)
            trajectory.stop, trajectory.error, trajectory.answer = "answer", None, found.get(question.id)
            if question.id not in done:
                folder.add(trajectory)
            rows.append(row_of(trajectory, question))
        summary = summary_of(rows, manifest, num_resamples, seed)
        folder.finish(rows, summary)
    return summary

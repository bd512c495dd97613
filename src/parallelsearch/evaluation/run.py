"""Ask every question of a set, record what happens, and sum it up.

`run_questions` keeps a bounded number of rollouts going, adds each trajectory to the run folder the moment it is done, and
keeps only its row in memory. A run that was killed goes on where it stopped. A question on which the policy fails is a row
like any other: wrong, and counted as a failure. What the numbers mean is in `metrics.py`; `whole.py` adds the pages.
"""

from __future__ import annotations

import logging
import os
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from parallelsearch.data.questions import read_records
from parallelsearch.data.sets import QuestionSet
from parallelsearch.dialect import Dialect
from parallelsearch.dialects import open_dialect
from parallelsearch.errors import DataError, UsageError, check_whole, stopped
from parallelsearch.evaluation.appended import RunStoppedError
from parallelsearch.evaluation.folder import RunFolder
from parallelsearch.evaluation.manifest import Manifest, describe_machine, hash_text, now, plain
from parallelsearch.evaluation.metrics import Row, subsets_of, summarise
from parallelsearch.limits import Limits, Prices
from parallelsearch.own_code import UNREADABLE
from parallelsearch.policy.base import Policy, Sampling
from parallelsearch.retrieval.metadata import METADATA_SHA256
from parallelsearch.rollout import writer_of
from parallelsearch.rollouts import MAX_CONCURRENT, rollout_each
from parallelsearch.search import Search
from parallelsearch.trajectory import Question, Trajectory

_SOME_QUESTION = "the question"
"""Stands for the question in the prompt that the manifest keeps."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EvaluationSettings:
    """How a set is evaluated. Everything up to `seed` decides the numbers and is frozen in the manifest."""

    dialect: str | None = None
    """How the model talks; None takes what the policy was trained on."""
    prompt_template: str | None = None
    limits: Limits = field(default_factory=Limits)
    sampling: Sampling = field(default_factory=Sampling)
    streaming_dispatch: bool = True
    written: bool = False
    """Ask for a text with its sources, of the policy or the reader: for a judge, since no golden answer is such a text."""
    seed: int = 0
    concurrency: int = MAX_CONCURRENT
    """How many questions are under way at once."""
    prices: Prices | None = None
    num_resamples: int = 1000
    retry_failures: bool = False
    """When a run goes on: ask those questions again on which the policy failed, that ran out of time, of which a
    search failed, or that the reader did not answer."""
    max_failures_in_a_row: int | None = 100
    """A policy or reader that fails this often with no success in between is broken: stop, instead of failing on every
    question."""

    def __post_init__(self) -> None:
        check_whole("concurrency is how many questions are under way at once:", self.concurrency)


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


async def run_questions(
    questions: QuestionSet | Sequence[Question],
    policy: Policy,
    search: Search,
    out_dir: str | os.PathLike[str],
    settings: EvaluationSettings | None = None,
    on_progress: OnProgress | None = None,
    *,
    answer_with: Policy | None = None,
) -> dict[str, Any]:
    """Run the set, or go on with it: `await run_questions(...)`. Returns the summary, which `out_dir` then holds as
    `summary.json`. `answer_with` is another model that reads what the policy found and answers."""
    settings = settings or EvaluationSettings()
    asked = as_set(questions)
    dialect = open_dialect(settings.dialect or policy.dialect, settings.prompt_template)
    if settings.written and answer_with is None:
        dialect, _ = writer_of(dialect, policy)
    if settings.written or dialect.is_written:
        settings = replace(settings, limits=settings.limits.for_text())
    setup = plain(describe_setup(asked, policy, search, settings, dialect, answer_with))
    manifest = Manifest(
        setup=setup,
        environment=plain(
            {
                **describe_machine(),
                "concurrency": settings.concurrency,
                "first_prompt": _as_shown(policy, dialect, asked.questions[0].question),
            }
        ),
        warnings=[*asked.warnings, *_unreadable(setup)],
        created=now(),
    )
    await search.check()
    run = _Run(asked, policy, search, settings, dialect, on_progress, answer_with)
    with RunFolder(out_dir) as folder:
        goes_on = folder.begin(manifest)
        if goes_on and settings.retry_failures:
            folder.drop(_is_failed)
        run.take_over(folder.rows(run.by_id, settings.prices))
        start_s = time.perf_counter()
        await run.go(folder)
        run.refuse_nothing_done()
        summary = summary_of(run.rows, manifest, settings.num_resamples, settings.seed)
        summary["wall_s"] = time.perf_counter() - start_s
        summary["num_done_now"] = run.num_done_now
        summary = folder.finish(run.rows, summary)
    if goes_on and not run.num_done_now:
        _log.warning("nothing was asked: the run in '%s' was finished. For another one choose another folder", out_dir)
    return summary


def _unreadable(setup: Any) -> Iterator[str]:
    """What a change of cannot be seen: code of the caller's own that has neither source nor a description."""
    if isinstance(setup, dict):
        if setup.get("code_sha256") == UNREADABLE:
            yield (
                f"the code of '{setup['kind']}' cannot be read, so that a changed one is taken for the same. Give it a "
                "describe() that says which one it is, for example {'kind': 'mine', 'version': 2}"
            )
        for value in setup.values():
            yield from _unreadable(value)
    elif isinstance(setup, list):
        for value in setup:
            yield from _unreadable(value)


def summary_of(rows: Sequence[Row], manifest: Manifest, num_resamples: int = 1000, seed: int = 0) -> dict[str, Any]:
    errors = [row.error for row in rows if row.stop == "error" and row.error]
    search_errors = [row.search_error for row in rows if row.search_error]
    return {
        "subsets": {
            name: summarise(group, num_resamples=num_resamples, seed=seed) for name, group in subsets_of(rows).items()
        },
        **({"last_error": errors[-1]} if errors else {}),
        **({"last_search_error": search_errors[-1]} if search_errors else {}),
        "num_questions": manifest.setup["data"]["num_questions"],
        "num_done": len(rows),
        "bootstrap": {"num_resamples": num_resamples, "seed": seed},
        "manifest": manifest.to_dict(),
    }


def _is_failed(trajectory: Trajectory) -> bool:
    """What `retry_failures` asks again. A reading refused for its cost is not: within the same limit it would be again."""
    reading = trajectory.reading
    has_failed = trajectory.stop in ("error", "timeout") or trajectory.num_failed_queries > 0
    return has_failed or (reading is not None and reading.is_failed)


def _is_unread(row: Row) -> bool | None:
    """Whether the reader failed; None where it was not asked, or the policy had left it no time."""
    return None if row.stop == "timeout" else row.reader_failed


def _as_shown(policy: Policy, dialect: Dialect, question: str) -> str | None:
    """The prompt with the engine's chat template around it. No part of the set-up: some templates hold the day's date."""
    try:
        return policy.prompt(dialect.prompt(question), question).text
    except Exception:  # whatever is wrong with this question is told by its own row
        return None


def describe_setup(
    questions: QuestionSet,
    policy: Policy,
    search: Search,
    settings: EvaluationSettings,
    dialect: Dialect,
    reader: Policy | None = None,
) -> dict[str, Any]:
    """All that decides the numbers."""
    return {
        "data": questions.describe(),
        "dialect": {
            "name": dialect.name,
            "prompt": dialect.prompt(_SOME_QUESTION),
            "prompt_sha256": hash_text(dialect.prompt(_SOME_QUESTION)),
            "max_turns": dialect.max_turns,
        },
        "policy": policy.describe(),
        **({} if reader is None else {"reader": reader.describe()}),
        **({"written": True} if settings.written else {}),
        "search": _deciding(search.describe()),
        "limits": asdict(settings.limits),
        "sampling": {**asdict(settings.sampling), "seed": settings.seed},
        "streaming_dispatch": settings.streaming_dispatch,
    }


def _deciding(description: Any) -> Any:
    """A search's description without the hash of metadata, which no model is shown: a run goes on with an index that has
    been built again for the sake of it, and is compared with those before."""
    if isinstance(description, dict):
        return {name: _deciding(value) for name, value in description.items() if name != METADATA_SHA256}
    return [_deciding(value) for value in description] if isinstance(description, list) else description


def as_set(questions: QuestionSet | Sequence[Question]) -> QuestionSet:
    """The questions as a set, each with an id of its own."""
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
        dialect: Dialect,
        on_progress: OnProgress | None,
        reader: Policy | None,
    ) -> None:
        self.questions, self.policy, self.search, self.reader = questions, policy, search, reader
        self.settings, self.dialect, self.on_progress = settings, dialect, on_progress
        self.by_id = {question.id: question for question in questions}
        self.rows: list[Row] = []
        self.num_right = self.num_failed = self.num_done_now = self.num_failed_in_a_row = 0
        self.num_read = self.num_unread = self.num_unread_in_a_row = 0
        self.reader_error: str | None = None  # the last one
        self.num_searched = self.num_unsearched = self.num_unsearched_in_a_row = 0
        self.search_error: str | None = None  # the last one
        self.start_s = time.perf_counter()

    def take_over(self, rows: Iterable[Row]) -> None:
        seen: set[str] = set()
        for row in rows:
            if row.id not in seen:  # a record joined by hand may hold one twice; it counts once
                self._count(row)
            seen.add(row.id)
        self._report()

    async def go(self, folder: RunFolder) -> None:
        settings = self.settings
        done = {row.id for row in self.rows}
        left = [question for question in self.questions if question.id not in done]

        def sampling(number: int) -> Sampling:
            seed = zlib.crc32(f"{settings.seed}/{left[number].id}".encode("utf-8", "surrogatepass"))
            return replace(settings.sampling, seed=seed)

        def keep(number: int, trajectory: Trajectory) -> None:
            folder.add(trajectory)
            row = folder.row(trajectory, left[number], settings.prices)
            self._count(row)
            self.num_done_now += 1
            self._report()
            self._stop_if_broken(row)

        await rollout_each(
            left,
            self.policy,
            self.search,
            settings.limits,
            dialect=self.dialect,
            sampling=sampling,
            session=lambda number: f"eval/{left[number].id}",
            streaming_dispatch=settings.streaming_dispatch,
            answer_with=self.reader,
            written=settings.written,
            max_concurrent=settings.concurrency,
            on_done=keep,
        )

    def refuse_nothing_done(self) -> None:
        """A set smaller than the failures that stop a run would end with a report of nothing but failures, or, under the
        reader's name, of nothing but the policy's own answers."""
        if self.settings.max_failures_in_a_row is None:
            return
        if self.num_failed == len(self.rows):
            raise RunStoppedError(
                f"the policy failed on every question, on {self.num_failed}, last with: {stopped(self.rows[-1].error)} "
                "Repair it and go on with --retry-failures (in Python: retry_failures)"
            )
        if self.num_unsearched and not self.num_searched:
            raise RunStoppedError(
                f"every search failed, on {self.num_unsearched} questions, last with: {stopped(self.search_error)} "
                "Repair it and go on with --retry-failures (in Python: retry_failures)"
            )
        if self.num_unread and not self.num_read:
            raise RunStoppedError(
                f"{self._named_reader()} failed on every question that it was asked, on {self.num_unread}, last with: "
                f"{stopped(self.reader_error)} Repair it and go on with --retry-failures (in Python: retry_failures)"
            )

    def _count(self, row: Row) -> None:
        self.rows.append(row)
        self.num_right += row.em
        self.num_failed += row.stop == "error"
        is_unread = _is_unread(row)
        self.num_read += is_unread is False
        if is_unread:
            self.num_unread += 1
            self.reader_error = row.reader_error
        self.num_searched += row.num_subqueries > 0 and not row.found_nothing
        self.num_unsearched += row.found_nothing
        self.search_error = row.search_error or self.search_error

    def _report(self) -> None:
        if self.on_progress is not None:
            elapsed_s = time.perf_counter() - self.start_s
            self.on_progress(Progress(len(self.rows), len(self.by_id), self.num_right, self.num_failed, elapsed_s))

    def _named_reader(self) -> str:
        return "the reader" if self.reader is None else f"the reader '{self.reader.title}'"

    def _stop_if_broken(self, row: Row) -> None:
        self.num_failed_in_a_row = self.num_failed_in_a_row + 1 if row.stop == "error" else 0
        limit = self.settings.max_failures_in_a_row
        if limit is not None and self.num_failed_in_a_row >= limit:
            raise RunStoppedError(
                f"the policy failed on {self.num_failed_in_a_row} questions in a row, last with: {stopped(row.error)} "
                f"{len(self.rows) - self.num_failed} questions were done before; repair the policy and go on with "
                "--retry-failures (in Python: retry_failures)"
            )
        if row.num_subqueries:  # one that searched nothing says nothing about the search
            self.num_unsearched_in_a_row = self.num_unsearched_in_a_row + 1 if row.found_nothing else 0
        if limit is not None and self.num_unsearched_in_a_row >= limit:
            raise RunStoppedError(
                f"every search failed on {self.num_unsearched_in_a_row} questions in a row, last with: "
                f"{stopped(self.search_error)} Repair it and go on with --retry-failures (in Python: retry_failures)"
            )
        is_unread = _is_unread(row)
        if is_unread is not None:  # a question that it was not asked says nothing about it
            self.num_unread_in_a_row = self.num_unread_in_a_row + 1 if is_unread else 0
        if limit is not None and self.num_unread_in_a_row >= limit:
            raise RunStoppedError(
                f"{self._named_reader()} failed on {self.num_unread_in_a_row} questions in a row, last with: "
                f"{stopped(self.reader_error)} It answered {self.num_read} questions before; repair it and go on with "
                "--retry-failures (in Python: retry_failures)"
            )


# ---- answers that were made elsewhere --------------------------------------------------------------------------------


def run_answers(
    questions: QuestionSet | Sequence[Question],
    answers: str | os.PathLike[str],
    out_dir: str | os.PathLike[str],
    *,
    num_resamples: int = 1000,
    seed: int = 0,
) -> dict[str, Any]:
    """Score a file of answers (JSON Lines, `id` and `answer`) as a run. A question without an answer is a wrong row."""
    asked = as_set(questions)
    by_id = {question.id: question for question in asked}
    found: dict[str, str | None] = {}
    for line, record in read_records(answers):
        if not isinstance(record, dict) or "id" not in record or not isinstance(record.get("answer"), str | None):
            raise DataError(str(answers), line, "expected an object with id and answer (text)")
        key = str(record["id"])
        if key in found:
            raise DataError(str(answers), line, f"the question '{key}' has an answer already", field="id")
        found[key] = record.get("answer")
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
            trajectory = Trajectory.of(question)
            trajectory.stop, trajectory.answer, trajectory.elapsed_s = "answer", found.get(question.id), 0.0
            if question.id not in done:
                folder.add(trajectory)
            rows.append(folder.row(trajectory, question))
        return folder.finish(rows, summary_of(rows, manifest, num_resamples, seed))

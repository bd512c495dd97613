"""Ask a judge about every answer of a run, and sum the run up anew.

A bounded number of calls is under way; each verdict is written the moment it is there, so a judge that was killed goes on
where it was. A failure is no verdict: it is counted, and asked again the next time. One that fails on everything is broken,
and stops, as a policy that does. A run that is not finished can be judged as far as it is; its numbers are then given and not
written, for the run will write its own. What a judge is asked is in `judging.py`, what is kept in `judgements.py`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parallelsearch.errors import UsageError, check_whole, is_number, stopped
from parallelsearch.evaluation.appended import AppendedLines, RunStoppedError
from parallelsearch.evaluation.folder import TRAJECTORIES_FILE, is_summed_up, read_rows, read_summary, write_summary
from parallelsearch.evaluation.judgements import (
    Judgement,
    Judgements,
    JudgeSetup,
    begin,
    check_same,
    judged_answer,
    question_sha256,
)
from parallelsearch.evaluation.judging import judging_prompt, verdict_in
from parallelsearch.evaluation.manifest import read_manifest
from parallelsearch.evaluation.run import summary_of
from parallelsearch.files import held_folder, remove_drafts
from parallelsearch.policy.asking import ask
from parallelsearch.policy.base import Generation, Policy, Sampling
from parallelsearch.rollouts import in_order
from parallelsearch.trajectory import Trajectory, read_trajectories

_MAX_TEXT = 2000
"""So much of what the judge wrote is kept."""
_MAX_SHOWN = 120


@dataclass(frozen=True, slots=True)
class JudgeSettings:
    """How a judge is asked. None of it decides a verdict."""

    concurrency: int = 16
    """How many answers are asked about at once."""
    max_tokens: int = 512
    """What a reply may have. One word is asked for; a model that thinks in what it says needs thousands."""
    timeout_s: float = 600.0
    """For one answer, the wait for a local engine's other replies included."""
    replace: bool = False
    """Put this judge's verdicts in the place of another's."""
    max_failures_in_a_row: int | None = 100

    def __post_init__(self) -> None:
        check_whole("concurrency is how many answers are asked about at once:", self.concurrency)
        check_whole("max_tokens is what a judge may write about an answer:", self.max_tokens)
        if not (is_number(self.timeout_s) and self.timeout_s > 0):
            raise UsageError(f"timeout_s must be a number above 0, not {self.timeout_s!r}")


@dataclass(frozen=True, slots=True)
class JudgeProgress:
    """Where a judge stands: verdicts there were before it began are done. `num_failed` are answers without one."""

    num_done: int
    num_total: int
    num_right: int
    num_failed: int


OnJudged = Callable[[JudgeProgress], None]


def check_runs(run_dirs: Sequence[str | os.PathLike[str]], judge: Policy, settings: JudgeSettings) -> JudgeSetup:
    """Refuse what cannot be judged before anything is asked, and so paid, for another run. Describes the judge once for all
    of them: a server names its model with its first answer."""
    if not run_dirs:
        raise UsageError("say which runs to judge: the folders that eval --out wrote")
    setup = JudgeSetup.of(judge)
    for run_dir in run_dirs:
        read_manifest(run_dir)
        if not (Path(run_dir) / TRAJECTORIES_FILE).exists():
            raise UsageError(f"'{run_dir}' has no {TRAJECTORIES_FILE} yet: there is no answer to judge")
        check_same(Judgements(run_dir), setup, replaces=settings.replace)
    return setup


async def judge_run(
    run_dir: str | os.PathLike[str],
    judge: Policy,
    settings: JudgeSettings | None = None,
    on_progress: OnJudged | None = None,
    *,
    setup: JudgeSetup | None = None,
) -> dict[str, Any]:
    """Judge the answers of a run, or go on with it. Returns the summary, which the folder of a finished run then holds."""
    settings = settings or JudgeSettings()
    setup = setup or check_runs([run_dir], judge, settings)
    folder = Path(run_dir)
    with held_folder(folder, "judge another"):
        remove_drafts(folder)
        try:
            found, file = begin(folder, setup, replaces=settings.replace)
        except OSError as error:
            raise UsageError(f"cannot write to '{folder}': {error.strerror or error}") from error
        with closing(file):
            run = _Run(folder, judge, settings, found, file, on_progress)
            await run.go()
        return _summed_up(folder, found)


def _summed_up(folder: Path, found: Judgements) -> dict[str, Any]:
    manifest, is_whole = read_manifest(folder), is_summed_up(folder)
    old = read_summary(folder) if is_whole else {}
    rows = read_rows(folder)
    resampling = {"seed": manifest.setup.get("sampling", {}).get("seed", 0), **old.get("bootstrap", {})}
    summary = {**old, **summary_of(rows, manifest, **resampling)}
    return write_summary(folder, rows, summary, found) if is_whole else {**summary, **found.summary()}


def _distinct(folder: Path) -> Iterator[Trajectory]:
    """A record joined by hand may hold a question twice; it counts once, as in the run."""
    seen: set[str] = set()
    for trajectory in read_trajectories(folder / TRAJECTORIES_FILE):
        if trajectory.id not in seen:
            seen.add(trajectory.id)
            yield trajectory


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is kept of a trajectory until its answer has been judged."""

    id: str
    sha256: str
    question: str
    golden_answers: list[str]
    answer: str | None


class _Run:
    """The answers that are left, the calls under way, the counts so far."""

    def __init__(
        self,
        folder: Path,
        judge: Policy,
        settings: JudgeSettings,
        found: Judgements,
        file: AppendedLines,
        on_progress: OnJudged | None,
    ) -> None:
        self.folder, self.judge, self.settings = folder, judge, settings
        self.found, self.file, self.on_progress = found, file, on_progress
        self.num_done = self.num_total = self.num_right = 0
        self.num_failed = self.num_failed_in_a_row = 0
        self.error: str | None = None  # the last one

    async def go(self) -> None:
        left: list[_Asked] = []
        for trajectory in _distinct(self.folder):
            if not trajectory.golden_answers:
                continue  # nobody can say what is right
            self.num_total += 1
            verdict, _ = self.found.of(trajectory)
            if verdict is not None:
                self.num_done += 1
                self.num_right += verdict
                continue
            golden, answer = trajectory.golden_answers, judged_answer(trajectory)
            left.append(_Asked(trajectory.id, question_sha256(trajectory), trajectory.question, golden, answer))
        if not self.num_total:
            raise UsageError(f"no question of '{self.folder}' has a golden answer: there is nothing to judge by")
        self._report()
        await in_order(self._one, left, self.settings.concurrency)
        if self.num_failed and not self.found.num_answered and self.settings.max_failures_in_a_row is not None:
            raise self._broken(f"gave no verdict on any of the {self.num_failed} answers that it was asked about")

    async def _one(self, _: int, asked: _Asked) -> None:
        if asked.answer is None:
            self._keep(Judgement(asked.id, asked.sha256, False, was_asked=False))
            return
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                prompt, generation = await self._call(asked, asked.answer)
        except TimeoutError:
            hint = "ask fewer at once (--concurrency N), or wait longer (--timeout-s N)"
            self._keep(self._failed(asked, f"no reply within {self.settings.timeout_s:g} s; {hint}"))
        except Exception as error:  # whatever it is costs this answer its verdict, and no other
            self._keep(self._failed(asked, str(error) or type(error).__name__))
        else:
            self._keep(self._read(asked, prompt, generation))

    async def _call(self, asked: _Asked, answer: str) -> tuple[str, Generation]:
        """What the judge was asked, and its reply."""
        judge = self.judge
        prompt = judging_prompt(asked.question, asked.golden_answers, answer, judge.count_tokens, judge.special_tokens)
        async with judge.session(f"judge/{asked.id}") as session:
            generation = await ask(
                judge,
                [judge.prompt(prompt, asked.question)],
                stop=(),
                max_tokens=self.settings.max_tokens,
                sampling=Sampling(),
                session=session,
            )
        return prompt, generation

    def _failed(self, asked: _Asked, error: str) -> Judgement:
        return Judgement(asked.id, asked.sha256, None, error=error)

    def _read(self, asked: _Asked, prompt: str, generation: Generation) -> Judgement:
        counted = generation.usage or {}
        written = generation.num_tokens
        if written is None:
            written = self.judge.count_tokens(generation.text)
        verdict, error = verdict_in(generation.text), None
        if generation.finish == "length":  # it might have gone on to say the other
            verdict, error = (
                None,
                f"its reply was cut off at {self.settings.max_tokens} tokens: {_shown(generation.text)}",
            )
        elif verdict is None:
            error = f"its reply is no verdict: {_shown(generation.text)}"
        return Judgement(
            asked.id,
            asked.sha256,
            verdict,
            generation.text[:_MAX_TEXT],
            error,
            counted.get("prompt_tokens", self.judge.count_tokens(prompt)),
            counted.get("completion_tokens", written),
        )

    def _keep(self, one: Judgement) -> None:
        self.file.add(one.to_json())
        self.found.count(one)
        self.num_done += 1
        self.num_right += bool(one.verdict)
        if one.was_asked:
            is_failed = one.verdict is None
            self.num_failed += is_failed
            self.num_failed_in_a_row = self.num_failed_in_a_row + 1 if is_failed else 0
            self.error = one.error or self.error
        self._report()
        limit = self.settings.max_failures_in_a_row
        if limit is not None and self.num_failed_in_a_row >= limit:
            raise self._broken(f"gave no verdict on {self.num_failed_in_a_row} answers in a row")

    def _broken(self, what: str) -> RunStoppedError:
        return RunStoppedError(
            f"the judge '{self.judge.title}' {what}, last with: {stopped(self.error)} The run itself is as it was, and "
            f"{self.found.num_answered} verdicts are kept; repair the judge and give the same command again to go on"
        )

    def _report(self) -> None:
        if self.on_progress is not None:
            self.on_progress(JudgeProgress(self.num_done, self.num_total, self.num_right, self.num_failed))


def _shown(text: str) -> str:
    said = " ".join(text.split())
    return f"'{said[:_MAX_SHOWN]}...'" if len(said) > _MAX_SHOWN else f"'{said}'"

"""An evaluation in one call: run the questions, sum up, write the viewer's page and the report, all into one folder.

`run.py` asks and measures, the viewer shows every trajectory, `report.py` writes for people; this puts them together for the
command line and for Python alike. Policy, search and questions may be given as addresses and names; what was opened here is
closed here, and what the caller opened stays open.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from parallelsearch.addresses import DEFAULT_POLICY, open_own_search, open_policy, open_search
from parallelsearch.data.sets import QuestionSet, load_questions
from parallelsearch.errors import UsageError
from parallelsearch.evaluation.budget import labelled_arm, run_arm, whole_arm
from parallelsearch.evaluation.folder import TRAJECTORIES_FILE, is_summed_up, read_rows, short_names
from parallelsearch.evaluation.gold import GoldRetriever
from parallelsearch.evaluation.judge_run import JudgeSettings, OnJudged, check_runs, judge_run
from parallelsearch.evaluation.judgements import Judgements, JudgeSetup, check_same
from parallelsearch.evaluation.manifest import MANIFEST_FILE, read_manifest
from parallelsearch.evaluation.report import choose_examples, write_budget, write_report
from parallelsearch.evaluation.run import EvaluationSettings, OnProgress, as_set, run_answers, run_questions
from parallelsearch.files import PathLike
from parallelsearch.policy.base import Policy, check_policy
from parallelsearch.retrieval.own import Backend
from parallelsearch.search import Search
from parallelsearch.trajectory import Question, read_trajectories
from parallelsearch.viewer.html import export_html

VIEWER_FILE = "viewer.html"
_MAX_VIEWER_BYTES = 10_000_000
DEMO = "demo"
"""A policy that replays, and the corpus it replays over."""
Questions = str | QuestionSet | Sequence[Question]


async def evaluate(
    questions: Questions,
    policy: Policy | str,
    search: Search | Backend | str,
    out_dir: str | os.PathLike[str],
    settings: EvaluationSettings | None = None,
    on_progress: OnProgress | None = None,
    *,
    k: int = 3,
    answer_with: Policy | str | None = None,
    judge: Policy | str | None = None,
    judge_settings: JudgeSettings | None = None,
    on_judged: OnJudged | None = None,
    record: PathLike | None = None,
    cache: PathLike | None = None,
    cache_days: float | None = None,
) -> dict[str, Any]:
    """Run the set, or go on with it: `await evaluate(...)`. Returns the summary; `out_dir` then holds record, summary, page
    and report.

    `k` is how many hits a sub-query gets where `search` is an address or a backend of the caller's own, and `record`, `cache`
    and `cache_days` are those of `open_search`; a `Search` has its own. `answer_with` is another model that
    reads what the policy found and answers. `judge` is one that says of each answer whether it is right, once all are there
    (`judge` of this family does so later).
    """
    asked = _loaded(questions)
    async with AsyncExitStack() as stack:
        asks = await stack.enter_async_context(_opened_policy(policy))
        reads = None if answer_with is None else await stack.enter_async_context(_opened_policy(answer_with))
        judges = None if judge is None else await stack.enter_async_context(_opened_policy(judge))
        judging = judge_settings or JudgeSettings()
        setup = None if judges is None else JudgeSetup.of(judges)
        if setup is not None:  # a folder of another judge is refused before the run, not after it
            check_same(Judgements(out_dir), setup, replaces=judging.replace)
        kept = {"record": record, "cache": cache, "cache_days": cache_days}
        looks = await stack.enter_async_context(_opened_search(search, k, asked, **kept))
        summary = await run_questions(asked, asks, looks, out_dir, settings, on_progress, answer_with=reads)
        try:
            if judges is not None:
                summary = await judge_run(out_dir, judges, judging, on_judged, setup=setup)
        finally:  # a judge that is broken takes nothing from the run
            await asyncio.to_thread(write_pages, out_dir)  # seconds of drawing; the caller's loop goes on
    return summary


async def judge(
    run_dir: PathLike,
    judge: Policy | str,
    settings: JudgeSettings | None = None,
    on_progress: OnJudged | None = None,
) -> dict[str, Any]:
    """Ask a judge, a policy or its address, whether each answer of a run is right: `await judge("runs/a", "openai:...")`. The
    folder keeps its verdicts; those it has are not asked for again. Returns the summary, with `judged` in it.

    Of a run that is not finished the answers so far are judged. Its summary and pages come when it ends, verdicts included.
    """
    (summary,) = await judge_all([run_dir], judge, settings, on_progress)
    return summary


async def judge_all(
    run_dirs: Sequence[PathLike],
    judge: Policy | str,
    settings: JudgeSettings | None = None,
    on_progress: OnJudged | None = None,
) -> list[dict[str, Any]]:
    """The same for several runs, one after the other. What is wrong with one of the folders is told before any is judged."""
    settings = settings or JudgeSettings()
    summaries: list[dict[str, Any]] = []
    async with _opened_policy(judge) as judges:
        setup = check_runs(run_dirs, judges, settings)
        for run_dir in run_dirs:
            summaries.append(await judge_run(run_dir, judges, settings, on_progress, setup=setup))
            if is_summed_up(Path(run_dir)):
                await asyncio.to_thread(_write_report, Path(run_dir))
    return summaries


def evaluate_answers(
    questions: Questions, answers: str | os.PathLike[str], out_dir: str | os.PathLike[str], *, seed: int = 0
) -> dict[str, Any]:
    """The same for answers made elsewhere: a file of JSON Lines with `id` and `answer`."""
    summary = run_answers(_loaded(questions), answers, out_dir, seed=seed)
    write_pages(out_dir)
    return summary


def runs_among(arms: Sequence[str]) -> dict[str, Path]:
    """The run folders among the arms of a budget, by how they were given. What can be neither a run nor a policy is refused:
    no policy's address is without a colon but those that are one word."""
    runs = {arm: Path(arm) for arm in arms if (Path(arm) / MANIFEST_FILE).exists()}
    for arm in arms:
        if arm not in runs and ":" not in arm and arm not in (DEFAULT_POLICY, DEMO):
            raise UsageError(
                f"'{arm}' is no run folder: it has no {MANIFEST_FILE}; make one with parallelsearch eval --out"
            )
    return runs


async def spend_budgets(
    arms: Sequence[str],
    search: Search | str | None,
    out_dir: str | os.PathLike[str],
    *,
    questions: Questions | None = None,
    settings: EvaluationSettings | None = None,
    on_progress: OnProgress | None = None,
    k: int = 3,
) -> Path:
    """Retrieval at equal budget: the whole question as one query, the parts as labelled, and each arm given, a run folder or
    the address of a policy.

    A policy is run on `questions` first, into a folder under `out_dir`; with run folders alone the questions are theirs.
    Without a `search` it is the embedded corpus, which must then be the one that the runs searched. Returns the page.
    """
    folder = Path(out_dir)
    runs = runs_among(arms)
    if questions is None and len(runs) < max(1, len(arms)):
        raise UsageError("say which questions to ask: --data NAME_OR_FILE (run folders have their own)")
    asked = None if questions is None else _loaded(questions)
    nobody = QuestionSet("none", [])
    async with _opened_search(DEMO if search is None else search, k, asked or nobody) as looks:
        warnings = _other_corpora(runs, looks, is_given=search is not None)
        for arm in arms:
            if arm not in runs and asked is not None:
                runs[arm] = folder / "runs" / re.sub(r"[^\w.+-]+", "-", arm).strip("-")
                async with _opened_policy(arm) as policy:
                    await run_questions(asked, policy, looks, runs[arm], settings, on_progress)
        known = [*(asked or read_trajectories(next(iter(runs.values())) / TRAJECTORIES_FILE))]
        found = [await whole_arm(known, looks)]
        labelled = await labelled_arm(known, looks)
        found += [labelled] if labelled.found else []
        given = [arm for arm, path in runs.items() if Path(arm) == path]
        names = dict(zip(given, short_names([runs[arm] for arm in given]), strict=True))
        for arm, path in runs.items():
            found.append(await run_arm(names.get(arm, arm), path, looks))
    return await asyncio.to_thread(write_budget, found, folder, warnings=warnings)


def _other_corpora(runs: Mapping[str, Path], search: Search, *, is_given: bool) -> list[str]:
    """A warning for each run that searched another corpus than its queries are now asked of: its gold need not be there, and
    a table of zeros would look like a result. Where nobody named the search it is surely a slip, and refused."""
    here = search.describe().get("corpus_sha256")
    warnings: list[str] = []
    for name, folder in runs.items():
        about = read_manifest(folder).setup.get("search", {})
        there = about.get("corpus_sha256")
        if there == here or (is_given and (here is None or there is None)):
            continue  # the same, or nobody can say
        told = f"{about.get('kind', 'unknown')}"
        if "num_passages" in about:
            told += f", {about['num_passages']:,} passages"
        if not is_given:
            raise UsageError(
                f"'{name}' did not search the embedded corpus ({told}): say where its queries are to be asked again: "
                "--search ADDRESS"
            )
        warnings.append(
            f"{name} searched another corpus ({told}) than its queries were asked of now: gold that is not there counts as "
            "not found"
        )
    return warnings


def write_pages(out_dir: str | os.PathLike[str]) -> Path:
    """The report, with the viewer's page beside it: the examples are in that page, whatever else does not fit."""
    folder = Path(out_dir)
    export_html(folder, folder / VIEWER_FILE, _MAX_VIEWER_BYTES, first=choose_examples(read_rows(folder)))
    return _write_report(folder)


def _write_report(folder: Path) -> Path:
    return write_report(folder, viewer=VIEWER_FILE if (folder / VIEWER_FILE).exists() else None)


def _loaded(questions: Questions) -> QuestionSet:
    return load_questions(questions) if isinstance(questions, str) else as_set(questions)


@asynccontextmanager
async def _opened_policy(policy: Policy | str) -> AsyncIterator[Policy]:
    if not isinstance(policy, str):
        check_policy(policy, takes_address=True)
        yield policy
        return
    opened = open_policy(policy)
    try:
        yield opened
    finally:
        await opened.aclose()


@asynccontextmanager
async def _opened_search(
    search: Search | Backend | str, k: int, questions: QuestionSet, **kept: Any
) -> AsyncIterator[Search]:
    if isinstance(search, Search):
        if any(value is not None for value in kept.values()):
            raise UsageError(
                "a Search keeps what it was opened to keep: give record, cache and cache_days to open_search, or give "
                "evaluate the address or the backend in its place"
            )
        yield search
        return
    opened = _search_of(search, k, questions, **kept)
    try:
        yield opened
    finally:
        await opened.aclose()


def _search_of(search: Backend | str, k: int, questions: QuestionSet, **kept: Any) -> Search:
    """The search that is meant; `gold:FILE,FILE` gives each question its own gold passages from these corpus files."""
    if not isinstance(search, str):
        return open_own_search(search, k=k, **kept)
    kind, _, files = search.partition(":")
    if kind != "gold":
        return open_search(search, k=k, **kept)
    if not files:
        raise UsageError("gold: needs the corpus file that holds the gold passages, such as gold:corpus.jsonl")
    if any(value is not None for value in kept.values()):
        raise UsageError(
            "gold: gives the passages of its files, and there is nothing to keep: leave --record and --cache out"
        )
    return Search(GoldRetriever.from_corpus(questions.questions, files.split(",")), k=k)

"""Evaluation: every question once, whatever happens; failures counted; runs compared only when they are alike."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import parallelsearch
from parallelsearch import grammar
from parallelsearch.addresses import open_own_search
from parallelsearch.errors import DataError, PolicyError, SearchError, UsageError
from parallelsearch.evaluation import compare, compare_groups, evaluate_answers
from parallelsearch.evaluation.appended import RunStoppedError
from parallelsearch.evaluation.folder import RunFolder, read_rows, read_summary, short_names
from parallelsearch.evaluation.report import notes_of
from parallelsearch.evaluation.run import EvaluationSettings, Progress, run_answers, run_questions
from parallelsearch.evaluation.tables import paired_table
from parallelsearch.limits import Limits, Prices
from parallelsearch.policy.base import Generation, Sampling
from parallelsearch.policy.scripted import ScriptedPolicy
from parallelsearch.retrieval.base import Passage
from parallelsearch.retrieval.bm25 import BM25Retriever
from parallelsearch.search import Search
from parallelsearch.trajectory import Question, Segment, Trajectory, read_trajectories

PASSAGES = [Passage(str(n), f"Thing {n}", f"Thing {n} is number {n}.") for n in range(50)]
FAST = EvaluationSettings(num_resamples=50)


def questions(num: int) -> list[Question]:
    return [
        Question(
            f"Which is more, thing {n} or thing {n + 1}?",
            [f"thing {n + 1}"],
            f"q{n:03d}",
            "made",
            "comparison",
            "parallel",
            [f"Thing {n}", f"Thing {n + 1}"],
        )
        for n in range(num)
    ]


def script(asked: Sequence[Question]) -> dict[str, list[str]]:
    return {
        q.question: [
            grammar.render_turn("x", q.supporting_titles or ()),
            grammar.render_turn("y", answer=q.golden_answers[0]),
        ]
        for q in asked
    }


def search() -> Search:
    return Search(BM25Retriever.from_passages(PASSAGES))


def ids(folder: Path) -> list[str]:
    return [trajectory.id for trajectory in read_trajectories(folder / "trajectories.jsonl")]


class Unreliable(ScriptedPolicy):
    """Fails on the questions whose number `fails` names; counts the rollouts under way."""

    def __init__(
        self, asked: Sequence[Question], fails: Set[str] = frozenset(), error: type[Exception] = PolicyError
    ) -> None:
        super().__init__(script(asked))
        self.fails, self.error = fails, error
        self.num_running = self.max_running = 0

    async def generate(self, segments: Sequence[Segment], *, session: str, **options: Any) -> Generation:
        self.num_running += 1
        self.max_running = max(self.max_running, self.num_running)
        try:
            await asyncio.sleep(0.001)
            if session.removeprefix("eval/") in self.fails:
                raise self.error("this one is broken")
            return await super().generate(segments, session=session, **options)
        finally:
            self.num_running -= 1


# ---- another model reads ---------------------------------------------------------------------------------------------


async def test_a_reader_is_part_of_the_set_up_and_its_calls_are_counted(tmp_path: Path) -> None:
    asked = questions(4)
    reads = {q.question: [grammar.render_turn("", answer=q.golden_answers[0])] for q in asked}
    last = grammar.render_turn("y", answer="none of them")
    policy = ScriptedPolicy({question: [turns[0], last] for question, turns in script(asked).items()})
    alone = await run_questions(asked, policy, search(), tmp_path / "alone", FAST)
    missing = ScriptedPolicy({**reads, asked[0].question: ["<search> more </search>"]}, name="reader")
    first = await run_questions(asked, policy, search(), tmp_path / "read", FAST, answer_with=missing)
    before, read = alone["subsets"]["made"], first["subsets"]["made"]
    assert (before["em"], read["em"]) == (0.0, 0.75)
    assert (before["num_llm_calls"], read["num_llm_calls"]) == (2.0, 3.0)
    assert read["num_input_tokens"] > before["num_input_tokens"]
    assert read["num_output_tokens"] > before["num_output_tokens"]
    assert first["manifest"]["setup"]["reader"]["kind"] == "reader"
    assert "reader" not in alone["manifest"]["setup"]
    assert notes_of(first)[0].startswith("the model that reads gave no answer on 1 of 4 questions")
    assert notes_of(alone) == []
    with pytest.raises(UsageError, match=r"reader: .* against \(nothing\)"):
        await run_questions(asked, policy, search(), tmp_path / "read", FAST)
    reader, again = ScriptedPolicy(reads, name="reader"), replace(FAST, retry_failures=True)
    healed = await run_questions(asked, policy, search(), tmp_path / "read", again, answer_with=reader)
    assert (healed["num_done_now"], healed["subsets"]["made"]["em"]) == (1, 1.0)
    compared = compare([tmp_path / "alone", tmp_path / "read"])
    assert {one.key for one in compared.differences["read"]} == {"reader"}


class NoReader(ScriptedPolicy):
    """A reader whose server is gone."""

    async def generate(self, segments: Sequence[Segment], **_: Any) -> Generation:
        raise PolicyError("nobody is there")


async def test_a_reader_that_only_fails_stops_the_run(tmp_path: Path) -> None:
    asked = questions(40)
    turns = script(asked)
    for question in asked[::3]:  # these search nothing, so that there is nothing to read: no success of the reader
        turns[question.question] = [grammar.render_turn("y", answer="none")]
    reads = {q.question: ["<answer> read </answer>"] for q in asked}
    policy, gone = ScriptedPolicy(turns), NoReader(reads, name="reader")
    settings = replace(FAST, max_failures_in_a_row=5, concurrency=2)
    with pytest.raises(RunStoppedError, match=r"the reader 'reader .*failed on 5 questions in a row.*nobody is there"):
        await run_questions(asked, policy, search(), tmp_path, settings, answer_with=gone)
    assert len(ids(tmp_path)) < 15
    reader = ScriptedPolicy(reads, name="reader")
    again = replace(settings, retry_failures=True)
    healed = await run_questions(asked, policy, search(), tmp_path, again, answer_with=reader)
    assert (healed["num_done"], healed["subsets"]["made"]["reader_failures"]) == (40, 0)


async def test_a_small_set_that_the_reader_never_read_has_no_report(tmp_path: Path) -> None:
    asked = questions(3)
    policy, gone = ScriptedPolicy(script(asked)), NoReader({}, name="reader")
    with pytest.raises(
        RunStoppedError, match=r"the reader 'reader .*every question that it was asked, on 3.*retry_fail"
    ):
        await run_questions(asked, policy, search(), tmp_path / "gone", FAST, answer_with=gone)
    assert not (tmp_path / "gone" / "summary.json").exists()
    # What was refused for its cost, and what the policy had no time for, is no fault of the reader's.
    capped = replace(FAST, limits=Limits(max_billed_tokens=20_000))
    dear = ScriptedPolicy({}, name="reader")
    dear.count_tokens = lambda text: 30_000  # type: ignore[method-assign]
    refused = await run_questions(asked, policy, search(), tmp_path / "dear", capped, answer_with=dear)
    assert refused["subsets"]["made"]["reader_refused"] == 3
    late = Paced(
        {question: [turns[0], "<think>" + " y" * 800] for question, turns in script(asked).items()}, tokens_per_s=50
    )
    hurried = replace(FAST, limits=Limits(timeout_s=3))
    ended = await run_questions(asked, late, search(), tmp_path / "late", hurried, answer_with=gone)
    assert (ended["subsets"]["made"]["stops"], ended["subsets"]["made"]["reader_failures"]) == ({"timeout": 3}, 3)


async def test_a_reading_refused_for_its_cost_is_told_apart_and_not_asked_again(tmp_path: Path) -> None:
    asked = questions(3)
    policy = ScriptedPolicy(script(asked))
    reader = ScriptedPolicy({q.question: ["<answer> read </answer>"] for q in asked[1:]}, name="reader")
    reader.count_tokens = lambda text: 30_000 if asked[0].question in text else 10  # type: ignore[method-assign]
    capped = replace(FAST, limits=Limits(max_billed_tokens=20_000))
    first = await run_questions(asked, policy, search(), tmp_path, capped, answer_with=reader)
    values = first["subsets"]["made"]
    assert (values["reader_failures"], values["reader_refused"], values["em"]) == (0, 1, 1 / 3)
    (note,) = notes_of(first)
    assert note.startswith("the model that reads was not asked on 1 of 3 questions")
    assert "Raise --max-cost" in note
    assert "--retry-failures" not in note
    again = replace(capped, retry_failures=True)
    assert (await run_questions(asked, policy, search(), tmp_path, again, answer_with=reader))["num_done_now"] == 0


# ---- one run ---------------------------------------------------------------------------------------------------------


async def test_every_question_is_a_row_and_the_summary_keeps_its_contract(tmp_path: Path) -> None:
    asked = questions(20)
    seen: list[Progress] = []
    settings = replace(FAST, prices=Prices(1.0, 2.0, 3.0), concurrency=5)
    policy = Unreliable(asked)
    summary = await run_questions(asked, policy, search(), tmp_path / "run", settings, seen.append)
    assert sorted(ids(tmp_path / "run")) == [question.id for question in asked]
    assert policy.max_running == 5
    values = summary["subsets"]["made"]
    assert (values["n"], values["em"], values["failures"]) == (20, 1.0, 0)
    assert values["num_llm_calls"] == 2
    assert values["split_ratio"] == 1.0
    assert values["decomposition_accuracy"] == 1.0
    assert values["cost"] > 0
    assert values["ci95"]["em"] == pytest.approx([0.839, 1.0], abs=0.001)  # 20 of 20 are not certain
    assert values["elapsed_p50_s"] <= values["elapsed_p95_s"]
    assert (seen[0].num_done, seen[-1].num_done, seen[-1].num_total, seen[-1].em) == (0, 20, 20, 1.0)
    assert read_summary(tmp_path / "run")["subsets"] == json.loads(json.dumps(summary["subsets"]))
    setup = summary["manifest"]["setup"]
    assert setup["search"]["k"] == 3
    assert setup["sampling"]["seed"] == 0
    assert setup["data"]["num_questions"] == 20
    assert setup["dialect"]["prompt"] == grammar.prompt_text("the question", "parallel")
    assert len(setup["dialect"]["prompt_sha256"]) == 64
    first = grammar.prompt_text(asked[0].question, "parallel")
    assert summary["manifest"]["environment"]["first_prompt"] == first
    assert summary["manifest"]["environment"]["versions"]["parallelsearch"]
    assert [row.id for row in read_rows(tmp_path / "run")] == ids(tmp_path / "run")


async def test_failures_are_counted_and_never_right(tmp_path: Path) -> None:
    asked = questions(10)
    for error in (PolicyError, RuntimeError):
        out = tmp_path / error.__name__
        policy = Unreliable(asked, {"q003", "q007"}, error)
        summary = await run_questions(asked, policy, search(), out, FAST)
        values = summary["subsets"]["made"]
        assert (values["n"], values["failures"], values["em"]) == (10, 2, 0.8)
        assert values["errors"] == {"failed": 2}
        broken = [t for t in read_trajectories(out / "trajectories.jsonl") if t.stop == "error"]
        assert {t.id for t in broken} == {"q003", "q007"}
        assert all("this one is broken" in (t.error or "") for t in broken)


async def test_failed_questions_can_be_asked_again(tmp_path: Path) -> None:
    asked = questions(6)
    await run_questions(asked, Unreliable(asked, {"q001"}), search(), tmp_path, FAST)
    again = await run_questions(asked, Unreliable(asked), search(), tmp_path, FAST)
    assert again["subsets"]["made"]["failures"] == 1  # what is done is done
    healed = await run_questions(asked, Unreliable(asked), search(), tmp_path, replace(FAST, retry_failures=True))
    assert (healed["subsets"]["made"]["failures"], healed["num_done_now"]) == (0, 1)
    assert sorted(ids(tmp_path)) == [question.id for question in asked]


class Paced(ScriptedPolicy):
    """The same policy on a busy or a quiet machine: its pace is no part of what it is."""

    def describe(self) -> dict[str, Any]:
        return {"kind": "paced"}


async def test_questions_that_ran_out_of_time_can_be_asked_again(tmp_path: Path) -> None:
    asked = questions(6)
    busy, quiet = Paced(script(asked), tokens_per_s=3), Paced(script(asked))
    settings = replace(FAST, limits=Limits(timeout_s=4))
    first = await run_questions(asked, busy, search(), tmp_path, settings)
    assert first["subsets"]["made"]["stops"] == {"timeout": 6}
    assert (await run_questions(asked, quiet, search(), tmp_path, settings))["num_done_now"] == 0
    again = await run_questions(asked, quiet, search(), tmp_path, replace(settings, retry_failures=True))
    assert (again["num_done_now"], again["subsets"]["made"]["em"]) == (6, 1.0)


async def test_a_policy_that_only_fails_stops_the_run(tmp_path: Path) -> None:
    asked = questions(40)
    policy = Unreliable(asked, {question.id for question in asked})
    settings = replace(FAST, max_failures_in_a_row=5, concurrency=2)
    with pytest.raises(RunStoppedError, match=r"5 questions in a row.*this one is broken"):
        await run_questions(asked, policy, search(), tmp_path, settings)
    assert len(ids(tmp_path)) < 10
    summary = await run_questions(asked, Unreliable(asked), search(), tmp_path, replace(settings, retry_failures=True))
    assert summary["subsets"]["made"]["em"] == 1.0


async def test_a_small_set_of_nothing_but_failures_has_no_report(tmp_path: Path) -> None:
    asked = questions(3)
    broken = Unreliable(asked, {question.id for question in asked})
    with pytest.raises(RunStoppedError, match=r"on every question, on 3.*this one is broken.*retry_failures"):
        await run_questions(asked, broken, search(), tmp_path, FAST)
    assert not (tmp_path / "summary.json").exists()
    summary = await run_questions(asked, Unreliable(asked), search(), tmp_path, replace(FAST, retry_failures=True))
    assert summary["subsets"]["made"]["em"] == 1.0
    one_right = Unreliable(asked, {asked[0].id, asked[1].id})
    assert (await run_questions(asked, one_right, search(), tmp_path / "other", FAST))["num_done"] == 3


class Flaky:
    """A search that answers no query in which one of these words stands."""

    def __init__(self, *words: str) -> None:
        self.words = words

    def search_many(self, queries: Sequence[str], k: int) -> list[Any]:
        return [
            SearchError("the index is away") if set(query.split()) & set(self.words) else [(query, f"{query} is one.")]
            for query in queries
        ]

    def describe(self) -> dict[str, Any]:
        return {"kind": "flaky"}


async def test_searches_that_failed_are_told_and_can_be_asked_again(tmp_path: Path) -> None:
    """They look like a policy that answers badly."""
    asked, policy = questions(6), Unreliable(questions(6))
    some, all_up = open_own_search(Flaky("3")), open_own_search(Flaky())
    summary = await run_questions(asked, policy, some, tmp_path / "some", FAST)
    await run_questions(asked, policy, all_up, tmp_path / "up", FAST)
    [note] = notes_of(summary)
    assert note.startswith("2 of 12 sub-queries failed, last with: the index is away. What they would have found")
    assert "--retry-failures" in note
    told = [one for one in compare([tmp_path / "up", tmp_path / "some"]).warnings if "like for like" in one]
    assert [one.partition(". ")[0] for one in told] == [
        "not like for like: of the 6 questions some has 2 with a search that failed"
    ]
    again = await run_questions(asked, policy, all_up, tmp_path / "some", replace(FAST, retry_failures=True))
    assert again["num_done_now"] == 2
    assert notes_of(again) == []


async def test_a_run_in_which_every_search_failed_has_no_report(tmp_path: Path) -> None:
    asked, down = questions(40), open_own_search(Flaky("Thing"))
    with pytest.raises(
        RunStoppedError, match=r"every search failed, on 3 questions, last with: the index is away.*retry"
    ):
        await run_questions(asked[:3], Unreliable(asked), down, tmp_path / "few", FAST)
    assert not (tmp_path / "few" / "summary.json").exists()
    settings = replace(FAST, max_failures_in_a_row=5, concurrency=2)
    with pytest.raises(RunStoppedError, match=r"every search failed on 5 questions in a row.*the index is away"):
        await run_questions(asked, Unreliable(asked), down, tmp_path / "many", settings)
    assert len(ids(tmp_path / "many")) < 10


async def test_gold_of_another_corpus_is_told(tmp_path: Path) -> None:
    asked = [replace(question, supporting_titles=["thing.md"]) for question in questions(4)]
    summary = await run_questions(asked, Unreliable(asked), search(), tmp_path, FAST)
    [note] = notes_of(summary)
    assert note.startswith("of the 4 questions whose gold is known no gold page was found: is this the corpus")


async def test_a_second_run_of_the_same_set_up_has_nothing_to_do(tmp_path: Path) -> None:
    asked = questions(5)
    first = await run_questions(asked, Unreliable(asked), search(), tmp_path, FAST)
    second = await run_questions(asked, Unreliable(asked), search(), tmp_path, FAST)
    assert second["num_done_now"] == 0
    assert second["subsets"] == first["subsets"]
    assert len(second["manifest"]["resumed"]) == 1


async def test_a_run_folder_of_another_set_up_is_refused_by_name(tmp_path: Path) -> None:
    asked = questions(5)
    await run_questions(asked, Unreliable(asked), search(), tmp_path, FAST)
    before = (tmp_path / "trajectories.jsonl").read_bytes()
    other = replace(FAST, limits=Limits(max_turns=2), seed=9)
    with pytest.raises(UsageError, match=r"(?s)limits.max_turns: 4 against 2.*sampling.seed: 0 against 9") as caught:
        await run_questions(asked, Unreliable(asked), search(), tmp_path, other)
    assert "another --out" in str(caught.value)
    with pytest.raises(UsageError, match=r"data.num_questions: 5 against 4"):
        await run_questions(asked[:4], Unreliable(asked), search(), tmp_path, FAST)
    with pytest.raises(UsageError, match=r"search.k: 3 against 7"):
        await run_questions(
            asked, Unreliable(asked), Search(BM25Retriever.from_passages(PASSAGES), k=7), tmp_path, FAST
        )
    assert (tmp_path / "trajectories.jsonl").read_bytes() == before


async def test_a_folder_that_is_in_use_or_unknown_is_refused(tmp_path: Path) -> None:
    asked = questions(2)
    with RunFolder(tmp_path / "held"), pytest.raises(UsageError, match="another run writes"):
        await run_questions(asked, Unreliable(asked), search(), tmp_path / "held", FAST)
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "trajectories.jsonl").write_text("{}\n")
    with pytest.raises(UsageError, match=r"no manifest.json"):
        await run_questions(asked, Unreliable(asked), search(), tmp_path / "odd", FAST)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write"):
        await run_questions(asked, Unreliable(asked), search(), tmp_path / "file", FAST)


@pytest.mark.parametrize("asked", [[], [Question("A?")], [Question("A?", id="1"), Question("B?", id="1")]])
async def test_questions_need_ids_of_their_own(tmp_path: Path, asked: list[Question]) -> None:
    with pytest.raises(UsageError, match=r"no questions|id of its own"):
        await run_questions(asked, ScriptedPolicy({"A?": ["x"]}), search(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


async def test_a_torn_line_is_repaired_and_its_question_asked_again(tmp_path: Path) -> None:
    asked = questions(6)
    await run_questions(asked, Unreliable(asked), search(), tmp_path, FAST)
    path = tmp_path / "trajectories.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    for cut in (1, len(lines[3]) // 2, len(lines[3]) - 1):
        path.write_bytes(b"".join(lines[:3]) + lines[3][:cut])
        summary = await run_questions(asked, Unreliable(asked), search(), tmp_path, FAST)
        assert summary["num_done_now"] == 3
        assert sorted(ids(tmp_path)) == [question.id for question in asked]
    path.write_bytes(b"x" * 200_000)  # a torn first line, longer than one piece of the search for its start
    assert (await run_questions(asked, Unreliable(asked), search(), tmp_path, FAST))["num_done_now"] == 6


async def test_methods_run_through_the_same_loop(tmp_path: Path) -> None:
    asked = questions(4)
    policy = ScriptedPolicy({q.question: [f"<answer> {q.golden_answers[0]} </answer>"] for q in asked})
    summary = await run_questions(asked, policy, search(), tmp_path, replace(FAST, dialect="rag"))
    values = summary["subsets"]["made"]
    assert (values["em"], values["num_llm_calls"], values["num_searches"]) == (1.0, 1.0, 1.0)
    assert summary["manifest"]["setup"]["dialect"]["name"] == "rag"
    with pytest.raises(UsageError, match="no dialect"):
        await run_questions(asked, policy, search(), tmp_path / "x", replace(FAST, dialect="ragg"))


# ---- killed, full --------------------------------------------------------------------------------------------------

_CHILD = textwrap.dedent(
    """
    import asyncio, resource, sys
    sys.path.insert(0, {tests!r})
    import test_evaluation as here
    from parallelsearch.errors import ParallelSearchError
    from parallelsearch.evaluation.run import EvaluationSettings, run_questions
    from parallelsearch.policy.scripted import ScriptedPolicy
    if {max_bytes}:
        resource.setrlimit(resource.RLIMIT_FSIZE, ({max_bytes}, {max_bytes}))
    asked = here.questions({num})
    policy = ScriptedPolicy(here.script(asked), tokens_per_s={pace})
    settings = EvaluationSettings(concurrency=3, num_resamples=50)
    try:
        asyncio.run(run_questions(asked, policy, here.search(), {out!r}, settings))
    except ParallelSearchError as error:
        print(error)
        sys.exit(3)
    """
)


def child(out: Path, num: int, pace: float | None, max_bytes: int = 0) -> subprocess.Popen[str]:
    code = _CHILD.format(tests=str(Path(__file__).parent), out=str(out), num=num, pace=pace, max_bytes=max_bytes)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def num_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_a_run_killed_twice_ends_with_every_question_once(tmp_path: Path) -> None:
    record = tmp_path / "trajectories.jsonl"
    num = 60
    for wanted in (10, 25):
        process = child(tmp_path, num, pace=200.0)
        try:
            deadline = time.monotonic() + 300
            while num_lines(record) < wanted and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.005)
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
        assert wanted <= num_lines(record) < num
        assert not (tmp_path / "summary.json").exists()
    process = child(tmp_path, num, pace=200.0)
    assert process.communicate() == ("", "")
    assert process.returncode == 0
    assert Counter(ids(tmp_path)) == Counter(question.id for question in questions(num))
    assert read_summary(tmp_path)["subsets"]["made"]["em"] == 1.0


def test_a_full_disk_loses_nothing_that_was_done(tmp_path: Path) -> None:
    process = child(tmp_path, 40, pace=None, max_bytes=30_000)
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 3
    assert "Everything up to here is kept" in output
    done = ids(tmp_path)  # every line is whole
    assert 0 < len(done) < 40
    process = child(tmp_path, 40, pace=None)
    process.communicate(timeout=400)
    assert process.returncode == 0
    assert ids(tmp_path)[: len(done)] == done
    assert Counter(ids(tmp_path)) == Counter(question.id for question in questions(40))


async def test_memory_holds_rows_not_trajectories(tmp_path: Path) -> None:
    """However many questions there are, only those under way are alive as trajectories."""
    asked = questions(300)
    alive: list[int] = []

    def count(progress: Progress) -> None:
        if progress.num_done in (0, 100, 290):
            gc.collect()
            alive.append(sum(type(thing) is Trajectory for thing in gc.get_objects()))

    await run_questions(asked, ScriptedPolicy(script(asked)), search(), tmp_path, replace(FAST, concurrency=8), count)
    before, *later = alive  # other tests may hold some
    assert len(later) == 2
    assert max(later) - before <= 2 * 8


# ---- answers from elsewhere ------------------------------------------------------------------------------------------


def test_answers_of_another_system_are_scored_as_a_run(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    rows = [{"id": "q000", "answer": "thing 1"}, {"id": "q001", "answer": None}, {"id": "other", "answer": "x"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = run_answers(questions(4), path, tmp_path / "run", num_resamples=50)
    assert summary["subsets"]["made"]["em"] == 0.25
    assert summary["subsets"]["made"]["n"] == 4
    assert summary["subsets"]["made"]["errors"]["no_answer"] == 3
    warnings = summary["manifest"]["warnings"]
    assert any("2 of 4 questions have no answer" in text for text in warnings)
    assert any("1 answers belong to no question" in text for text in warnings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"id": "x", "answer": "y"}\n', r"no id stands in 'questions': the file has x; the set has q000, q001"),
        ('{"id": "q000", "answer": 3}\n', "line 1: expected an object with id and answer"),
        ("", "the file has none"),
        ('{"id": "q000", "answer": "a"}\n{"id": "q000", "answer": "b"}\n', "line 2.*'q000' has an answer already"),
    ],
)
def test_an_answer_file_that_does_not_fit_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        run_answers(questions(3), path, tmp_path / "run")


# ---- comparing -------------------------------------------------------------------------------------------------------


async def make(folder: Path, asked: Sequence[Question], wrong: int = 0, **options: Any) -> Path:
    texts = script(asked)
    for question in asked[:wrong]:
        texts[question.question][-1] = grammar.render_turn("y", answer="nothing")
    k = options.pop("k", 3)
    layer = Search(BM25Retriever.from_passages(PASSAGES), k=k)
    await run_questions(asked, ScriptedPolicy(texts, name=folder.name), layer, folder, replace(FAST, **options))
    return folder


async def test_two_policies_on_the_same_questions(tmp_path: Path) -> None:
    asked = questions(40)
    a, b = await make(tmp_path / "a", asked, wrong=20), await make(tmp_path / "b", asked, wrong=5)
    comparison = compare([a, b], num_resamples=500)
    assert [run.subsets["made"]["em"] for run in comparison.runs] == [0.5, 0.875]
    test = next(test for test in comparison.tests if (test.subset, test.metric) == ("made", "em"))
    assert test.result.difference == pytest.approx(0.375)
    assert (test.result.num_only_a, test.result.num_only_b) == (0, 15)
    assert test.result.p_mcnemar == pytest.approx(2 * 0.5**15)
    shown = next(row for row in paired_table(comparison).rows if row[:2] == ["made", "em"])
    assert shown[7] == "<0.0001"  # it is not 0
    assert test.p_holm >= test.result.p_value
    assert [one.key for one in comparison.differences["b"]] == ["policy.kind"]
    assert comparison.num_shared == 40
    assert json.loads(json.dumps(comparison.to_dict()))["tests"][0]["p_mcnemar"] == test.result.p_mcnemar


async def test_runs_in_folders_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    asked = questions(6)
    like = [await make(tmp_path / seed / "s" / "run", asked) for seed in ("a", "c")]
    unlike = await make(tmp_path / "d" / "s" / "run", asked, k=5)
    assert [run.name for run in compare(like, num_resamples=50).runs] == ["a/s/run", "c/s/run"]
    with pytest.raises(UsageError, match=r"d/s/run: search.k: 3 against 5"):
        compare([like[0], unlike, like[1]])
    assert short_names([like[0], like[0]]) == ["run (1)", "run (2)"]


async def test_unlike_runs_are_refused_until_it_is_said_what_may_differ(tmp_path: Path) -> None:
    asked = questions(10)
    a = await make(tmp_path / "a", asked)
    b = await make(tmp_path / "b", asked, k=5, sampling=Sampling(temperature=1.0))
    with pytest.raises(UsageError, match=r"(?s)search.k: 3 against 5.*--allow sampling --allow search") as caught:
        compare([a, b])
    assert "sampling.temperature: 0.0 against 1.0" in str(caught.value)
    comparison = compare([a, b], allow=["search", "sampling"], num_resamples=50)
    assert {one.key for one in comparison.differences["b"]} == {"policy.kind", "sampling.temperature", "search.k"}
    assert [one for one in comparison.warnings if one.startswith("allowed")] == [
        "allowed to differ, a against b: sampling.temperature: 0.0 against 1.0",
        "allowed to differ, a against b: search.k: 3 against 5",
    ]
    with pytest.raises(UsageError, match="no part of a set-up"):
        compare([a, b], allow=["serach"])


async def test_seeds_differ_by_their_seed_and_what_else_was_allowed_is_told(tmp_path: Path) -> None:
    asked = questions(6)
    warm, cold = Sampling(temperature=0.7), Sampling(temperature=0.0)
    runs = {
        f"{arm}{seed}": await make(tmp_path / f"{arm}{seed}", asked, seed=seed, sampling=cold if arm == "z" else warm)
        for arm in "acz"
        for seed in (1, 2)
    }
    like = compare_groups([[runs["a1"], runs["a2"]], [runs["c1"], runs["c2"]]], num_resamples=20)
    assert not any("allowed" in warning for warning in like.warnings)
    assert "sampling.seed: 1 against 2" in like.to_dict()["differences"]["c2"]
    with pytest.raises(UsageError, match=r"sampling\.seed: 1 against 2"):
        compare([runs["a1"], runs["a2"]])  # single runs are no seeds of each other
    groups = [[runs["a1"], runs["a2"]], [runs["z1"], runs["z2"]]]
    with pytest.raises(UsageError, match=r"z1: sampling\.temperature: 0\.7 against 0\.0") as caught:
        compare_groups(groups)
    assert "seed" not in str(caught.value)
    found = compare_groups(groups, allow=["sampling"], num_resamples=20)
    assert "allowed to differ, a1 against z1, z2: sampling.temperature: 0.7 against 0.0" in found.warnings


async def test_runs_over_other_questions_share_only_what_they_share(tmp_path: Path) -> None:
    a, b = await make(tmp_path / "a", questions(10)), await make(tmp_path / "b", questions(6))
    with pytest.raises(UsageError, match=r"data.num_questions: 10 against 6"):
        compare([a, b])
    comparison = compare([a, b], allow=["data"], num_resamples=50)
    assert comparison.num_shared == 6
    assert any("only the 6 questions" in warning for warning in comparison.warnings)
    c = await make(tmp_path / "c", [replace(question, id=f"z{question.id}") for question in questions(3)])
    with pytest.raises(UsageError, match=r"share no question id: a has q0.*c has zq0"):
        compare([a, c], allow=["data"])


async def test_an_unfinished_run_is_not_compared_in_silence(tmp_path: Path) -> None:
    a, b = await make(tmp_path / "a", questions(10)), await make(tmp_path / "b", questions(10))
    path = b / "trajectories.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:4]))
    with pytest.raises(UsageError, match="b is not finished: 4 of 10"):
        compare([a, b])
    assert compare([a, b], allow=["incomplete"], num_resamples=50).num_shared == 4
    path.write_bytes(b"")  # killed during its first question
    with pytest.raises(UsageError, match="b is not finished: 0 of 10"):
        compare([a, b])
    with pytest.raises(UsageError, match=r"share no question id: .*; b has none"):
        compare([a, b], allow=["incomplete"])


def test_a_comparison_needs_two_run_folders(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least two"):
        compare([tmp_path])
    with pytest.raises(UsageError, match="is not a run folder"):
        compare([tmp_path, tmp_path])


# ---- run, page and report in one call --------------------------------------------------------------------------------


async def test_evaluate_gives_record_summary_page_and_report(tmp_path):
    asked = questions(4)
    policy = ScriptedPolicy(script(asked))
    summary = await parallelsearch.evaluate(asked, policy, search(), tmp_path / "run", FAST)
    assert summary["num_done"] == 4
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"manifest.json", "trajectories.jsonl", "summary.json", "report.html", "report.md", "viewer.html"} <= names
    assert "viewer.html#" in (tmp_path / "run" / "report.html").read_text()
    again = await parallelsearch.evaluate(asked, policy, search(), tmp_path / "run", FAST)  # both are still open
    assert again["num_done_now"] == 0


async def test_evaluate_opens_addresses_and_closes_them(tmp_path, monkeypatch):
    closed: list[str] = []
    for kind in (ScriptedPolicy, Search):

        async def close(self, kind=kind, do=kind.aclose):
            closed.append(kind.__name__)
            await do(self)

        monkeypatch.setattr(kind, "aclose", close)
    summary = await parallelsearch.evaluate("demo", "demo", "demo", tmp_path / "run", FAST, k=2)
    assert summary["manifest"]["setup"]["search"]["k"] == 2
    assert summary["num_done"] == summary["num_questions"] > 10
    assert sorted(closed) == ["ScriptedPolicy", "Search"]
    with pytest.raises(UsageError, match="gold: needs the corpus file"):
        await parallelsearch.evaluate("demo", "demo", "gold:", tmp_path / "gold", FAST)
    assert sorted(closed) == ["ScriptedPolicy", "ScriptedPolicy", "Search"]


async def test_evaluate_keeps_the_answers_of_a_backend_of_ones_own(tmp_path: Path) -> None:
    asked = questions(2)
    policy, num_asked = ScriptedPolicy(script(asked)), 0

    class Shelf:
        def search_many(self, queries: list[str], k: int) -> list[list[str]]:
            nonlocal num_asked
            num_asked += len(queries)
            return [[f"{query} is in this book"] for query in queries]

        def describe(self) -> dict[str, Any]:
            return {"kind": "shelf", "corpus": "books"}

    for out in ("first", "second"):
        kept = {"cache": tmp_path / "cache.db", "record": tmp_path / "searches.jsonl"}
        await parallelsearch.evaluate(asked, policy, Shelf(), tmp_path / out, FAST, **kept)
        if out == "first":
            num_first = num_asked
    assert 0 < num_first == num_asked  # the second run found all of them in the cache
    replayed = await parallelsearch.evaluate(asked, policy, f"replay:{kept['record']}", tmp_path / "replayed", FAST)
    assert replayed["subsets"]["made"]["num_failed_queries"] == 0
    with pytest.raises(UsageError, match=r"Give it a describe\(\)"):
        await parallelsearch.evaluate(asked, policy, lambda queries, k: [], tmp_path / "other", FAST, **kept)
    with pytest.raises(UsageError, match="give record, cache and cache_days to open_search"):
        await parallelsearch.evaluate(asked, policy, search(), tmp_path / "other", FAST, **kept)


def test_evaluate_answers_gives_a_report(tmp_path):
    path = tmp_path / "answers.jsonl"
    path.write_text("\n".join(json.dumps({"id": question.id, "answer": "x"}) for question in questions(3)))
    evaluate_answers(questions(3), path, tmp_path / "run")
    assert (tmp_path / "run" / "report.html").exists()
    assert (tmp_path / "run" / "viewer.html").exists()


async def test_what_is_no_policy_is_refused_as_an_agent_refuses_it(tmp_path: Path) -> None:
    def answer(prompt: str) -> str:
        return "x"

    message = "a policy is an address, such as 'auto', or a Policy, not function"
    with pytest.raises(UsageError, match=message):
        await parallelsearch.evaluate(questions(1), answer, "demo", tmp_path)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=message):
        parallelsearch.Agent(policy=answer)  # type: ignore[arg-type]
    assert "await evaluate(" in (parallelsearch.evaluate.__doc__ or "").splitlines()[0]

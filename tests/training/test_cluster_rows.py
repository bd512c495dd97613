"""Questions as rows for verl, files that are refused, and the reward on the record an agent loop hands over."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parallelsearch import grammar
from parallelsearch.errors import DataError, UsageError
from parallelsearch.rewards import PRESETS, Weights, reward
from parallelsearch.training.recipe import RewardSettings
from parallelsearch.training.verl.reward import compute_score, record_of, step_means
from parallelsearch.training.verl.rows import (
    check_file,
    index_of,
    question_of_row,
    row_of_question,
    targets_of,
    write_rows,
)
from parallelsearch.trajectory import Query, Question, QuestionPart, Segment, Trajectory, Turn

GATED = RewardSettings()
MONET = Question("Who is older, Monet or Pissarro?", ["Pissarro"], "m1", "own", "comparison", "parallel")


# ---- rows ------------------------------------------------------------------------------------------------------------


LABELLED = replace(
    MONET,
    supporting_titles=["Claude Monet", "Camille Pissarro"],
    gold_passage_ids={"Claude Monet": ["p1", "p2"], "Camille Pissarro": ["p3"]},
    parts=[QuestionPart(["Monet", "Claude Monet"]), QuestionPart(["Pissarro"], 2)],
)


@pytest.mark.parametrize("question", [MONET, LABELLED])
def test_a_question_survives_the_row(question: Question, tmp_path: Path) -> None:
    """With what rewards count by; through Parquet too, where rows of a file share their columns."""
    assert question_of_row(row_of_question(question, "train")) == question
    write_rows(tmp_path / "rows.parquet", [MONET, question], "train", "parallel")
    rows = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    assert [question_of_row(row) for row in rows] == [MONET, question]


def test_an_index_follows_from_the_question() -> None:
    other = Question(MONET.question, MONET.golden_answers, MONET.id, "another set", MONET.type, MONET.kind)
    assert index_of(MONET) == index_of(MONET) != index_of(other)
    assert 0 <= index_of(MONET) < 2**63


@pytest.mark.parametrize(
    ("truth", "answers"), [({"target": ["a", "b"]}, ["a", "b"]), (["a"], ["a"]), ("a", ["a"]), (None, []), ({}, [])]
)
def test_ground_truths_of_all_shapes(truth: Any, answers: list[str]) -> None:
    assert targets_of(truth) == answers


def test_a_row_without_a_question_says_how_to_write_one() -> None:
    with pytest.raises(UsageError, match=r"extra_info\.question.*parallelsearch data verl"):
        question_of_row({"extra_info": {"index": 3}})


def test_files_are_written_whole_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "train.parquet"
    assert write_rows(path, [MONET], "train", "parallel") == 1
    assert check_file(path, "parallel", GATED) == 1
    assert [entry.name for entry in path.parent.iterdir()] == ["train.parquet"]
    (row,) = pq.read_table(path).to_pylist()
    assert row["prompt"] == [{"role": "user", "content": grammar.prompt_text(MONET.question)}]


def write_table(path: Path, rows: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def without(row: dict[str, Any], column: str, key: str | None = None) -> dict[str, Any]:
    if key is None:
        return {name: value for name, value in row.items() if name != column}
    return {**row, column: {name: value for name, value in row[column].items() if name != key}}


@pytest.mark.parametrize(
    ("column", "key"),
    [
        ("data_source", None),
        ("prompt", None),
        ("reward_model", None),
        ("extra_info", None),
        ("reward_model", "ground_truth"),
        ("extra_info", "question"),
        ("extra_info", "index"),
    ],
)
def test_missing_columns_are_named(tmp_path: Path, column: str, key: str | None) -> None:
    path = write_table(tmp_path / "bad.parquet", [without(row_of_question(MONET, "train"), column, key)])
    with pytest.raises(DataError) as caught:
        check_file(path, "parallel", GATED)
    assert (column if key is None else f"{column}.{key}") in str(caught.value)
    assert "parallelsearch data verl" in str(caught.value)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no file.*data verl"):
        check_file(tmp_path / "nothing.parquet", "parallel", GATED)
    text = tmp_path / "text.parquet"
    text.write_text("not Parquet")
    with pytest.raises(DataError, match="damaged, or not Parquet"):
        check_file(text, "parallel", GATED)


def test_the_other_prompt_is_found_out(tmp_path: Path) -> None:
    path = tmp_path / "train.parquet"
    write_rows(path, [MONET], "train", "sequential")
    with pytest.raises(DataError, match=r"line 1.*rollout\.dialect = 'parallel'.*--dialect parallel"):
        check_file(path, "parallel", GATED)


def test_questions_the_reward_cannot_score(tmp_path: Path) -> None:
    path = tmp_path / "train.parquet"
    write_rows(path, [Question("Why?", ["x"], "k1")], "train", "parallel")
    with pytest.raises(UsageError, match=r"needs the question's kind.*label-free"):
        check_file(path, "parallel", GATED)
    assert check_file(path, "parallel", RewardSettings(preset="label-free")) == 1
    write_rows(path, [Question("Why?", [], "k1", kind="single")], "train", "parallel")
    with pytest.raises(UsageError, match="no golden_answers"):
        check_file(path, "parallel", GATED)


# ---- the reward ------------------------------------------------------------------------------------------------------


def trajectory(answer: str = "Pissarro", error: str | None = None) -> Trajectory:
    from parallelsearch.retrieval.base import Hit

    hits = [] if error else [Hit("p1", "Monet", "long text " * 50, score=1.0, rank=1)]
    queries = [Query("monet born", hits, error), Query("pissarro born", [Hit("p2", "P", "t", score=1.0, rank=1)])]
    return Trajectory(
        MONET.question,
        [
            Segment("prompt", "the prompt", [1, 2]),
            Segment("model", "<think> t </think><search> monet born ## pissarro born </search>", [3], [-0.1]),
            Segment("search", "results", [4]),
            Segment("model", f"<think> t </think><answer> {answer} </answer>", [5], [-0.1]),
        ],
        golden_answers=["not these"],
        id="m1",
        dataset="own",
        kind="parallel",
        turns=[Turn(queries, action="search", separated=True), Turn(action="answer")],
        answer=answer,
        stop="answer",
        step=4,
        num_llm_calls=2,
        num_searches=1,
        num_subqueries=2,
        limits={"max_turns": 4},
        policy={"kind": "verl"},
    )


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("answer", ["Pissarro", "Monet"])
def test_the_record_gives_the_reward_of_the_whole_trajectory(preset: str, answer: str) -> None:
    whole = trajectory(answer)
    scores = compute_score("own", "ignored", {"target": ["Pissarro"]}, {"trajectory": record_of(whole)}, preset=preset)
    whole.golden_answers = ["Pissarro"]
    expected = reward(whole, preset)
    assert scores["score"] == pytest.approx(expected.total)
    assert scores["decomposition"] == pytest.approx(expected.decomposition)
    assert scores["acc"] == float(answer == "Pissarro")


@pytest.mark.parametrize(("preset", "decomposition"), [("coverage", 0.1), ("label-free", 0.15)])
def test_parts_and_gold_of_a_row_reach_the_reward(preset: str, decomposition: float) -> None:
    """From the row to the score: one of two parts has no query of its own, one of two gold pages was found."""
    asked = replace(LABELLED, parts=[QuestionPart(["Monet"]), QuestionPart(["Renoir"])])
    question = question_of_row(row_of_question(asked, "train"))
    whole = trajectory()
    whole.parts, whole.gold_passage_ids = question.parts, question.gold_passage_ids
    whole.supporting_titles = question.supporting_titles
    scores = compute_score("own", "", ["Pissarro"], {"trajectory": record_of(whole)}, preset=preset)
    assert scores["decomposition"] == pytest.approx(decomposition)


def test_the_weights_of_the_recipe_count() -> None:
    scores = compute_score(
        "own",
        "",
        ["Pissarro"],
        {"trajectory": record_of(trajectory())},
        preset="paper",
        decomposition=0.5,
        alpha=2.0,
        search_count=0.0,
        format=0.0,
    )
    assert scores["decomposition"] == 1.0
    whole = trajectory()
    whole.golden_answers = ["Pissarro"]
    assert scores["score"] == pytest.approx(reward(whole, "paper", Weights(0.5, 2.0, 0.0, 0.0)).total)


def test_the_record_is_small() -> None:
    record = record_of(trajectory())
    assert "long text" not in record
    assert "token_ids" not in record
    assert "the prompt" not in record


OWN = """
def reads(trajectory):
    return float(any("long text" in hit.text for query in trajectory.queries for hit in query.hits))
"""


def test_a_reward_of_ones_own_reads_the_whole_record_in_a_worker_elsewhere(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's workers run in folders of their own: what is handed over leads them to the module, and names what it was."""
    home, elsewhere = own_folder / "home", own_folder / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    (home / "mine.py").write_text(OWN)
    monkeypatch.chdir(elsewhere)
    info = {"trajectory": record_of(trajectory(), is_whole=True)}
    handed = {"preset": "mine:reads", "sha256": hashlib.sha256(OWN.encode()).hexdigest()}
    with pytest.raises(UsageError, match="there is no module 'mine'"):
        compute_score("own", "", ["Pissarro"], info, **handed)
    with pytest.raises(UsageError, match=rf"'mine:reads' is another on .* in {home}"):
        compute_score("own", "", ["Pissarro"], info, **{**handed, "sha256": "0" * 64}, folder=str(home))
    scores = compute_score("own", "", ["Pissarro"], info, **handed, folder=str(home), decomposition=0.15)
    assert (scores["score"], scores["outcome"], scores["acc"]) == (1.0, 1.0, 1.0)


def test_failed_searches_are_counted_and_do_not_cost() -> None:
    scores = compute_score("own", "", ["Pissarro"], {"trajectory": record_of(trajectory(error="down"))})
    assert scores["num_failed_queries"] == 1.0
    assert scores["score"] == pytest.approx(1.4)


def test_no_record_says_which_loop_writes_it() -> None:
    with pytest.raises(UsageError, match="default_agent_loop"):
        compute_score("own", "text", {"target": ["x"]}, {"index": 1})


def test_scores_are_written_down_by_step(tmp_path: Path) -> None:
    for number in range(3):
        whole = trajectory("Pissarro" if number else "Monet")
        whole.step = 1 if number < 2 else 2
        info = {"trajectory": record_of(whole), "split": "train"}
        compute_score("own", "", ["Pissarro"], info, log_folder=str(tmp_path), log_trajectories_every=2)
    first, second = step_means(tmp_path)
    assert (first["step"], first["num_trajectories"], first["acc"]) == (1, 2, 0.5)
    assert (second["step"], second["num_trajectories"], second["acc"]) == (2, 1, 1.0)
    (path,) = tmp_path.glob("trajectories-*.jsonl")
    logged = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(logged) == 2
    assert logged[0]["rewards"]["total"] == pytest.approx(0.4)

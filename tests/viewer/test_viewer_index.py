"""The index: the same facts as the metrics, the right bytes for each row, and no line that sinks the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from viewer_runs import ATTACK, NUM_QUESTIONS, asked, evaluation_run, hostile_trajectory, training_run

from parallelsearch.errors import DataError, UsageError
from parallelsearch.evaluation.folder import read_rows
from parallelsearch.rewards import reward
from parallelsearch.trajectory import Trajectory, read_trajectories, write_trajectories
from parallelsearch.viewer.index import FIELDS, RunIndex, open_runs
from parallelsearch.viewer.record import record_view


def rows_of(index: RunIndex) -> list[dict]:
    return [dict(zip(FIELDS, json.loads(row), strict=True)) for row in index.rows()]


def read(path: Path, **options) -> RunIndex:
    index = RunIndex(path, **options)
    index.refresh()
    return index


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return evaluation_run(tmp_path_factory.mktemp("runs") / "parallel")


@pytest.fixture
def copy(run, tmp_path) -> Path:
    """The record alone, to be damaged."""
    path = tmp_path / "trajectories.jsonl"
    path.write_bytes((run / "trajectories.jsonl").read_bytes())
    return path


def test_rows_agree_with_the_metrics_and_point_at_their_lines(run):
    index = read(run)
    written = {row.id: row for row in read_rows(run)}
    trajectories = list(read_trajectories(run / "trajectories.jsonl"))
    assert len(index) == len(trajectories) == NUM_QUESTIONS
    assert index.is_complete
    assert index.notes() == []
    assert sum(row["right"] for row in rows_of(index)) == NUM_QUESTIONS - 4
    for number, (row, trajectory) in enumerate(zip(rows_of(index), trajectories, strict=True)):
        expected = written[trajectory.id]
        assert (row["id"], row["question"], row["kind"]) == (trajectory.id, trajectory.question, trajectory.kind)
        assert (row["right"], row["split"], row["error_class"]) == (
            expected.em,
            expected.is_split,
            expected.error_class,
        )
        assert row["queries"] == " ## ".join(q.text for turn in trajectory.rounds for q in turn.queries)[:400]
        assert index.trajectory(number).to_json() == trajectory.to_json()
    with pytest.raises(UsageError, match="no row 99"):
        index.trajectory(99)


def test_the_runs_own_rows_are_used_only_while_they_are_up_to_date(run, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for file in run.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    written = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    wrong = next(row for row in written if not row["em"])  # rows are in the order in which their questions ended
    wrong["error_class"] = "undetermined"
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, written)))
    changed = {row["id"]: row for row in rows_of(read(folder))}[wrong["id"]]
    assert changed["error_class"] == "undetermined"
    with (folder / "trajectories.jsonl").open("a") as file:
        file.write(Trajectory("one more?").to_json() + "\n")
    row = {row["id"]: row for row in rows_of(read(folder))}[wrong["id"]]
    assert row["error_class"] != "undetermined"


def test_a_torn_last_line_is_left_out_until_it_is_whole(copy):
    whole = copy.read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    copy.write_bytes(whole[: last + 50])
    index = read(copy)
    assert len(index) == NUM_QUESTIONS - 1
    assert index.notes() == ["the last line of trajectories.jsonl is not complete (50 bytes) and is left out"]
    copy.write_bytes(whole)
    index.refresh()
    assert len(index) == NUM_QUESTIONS
    assert index.notes() == []
    assert index.generation == 0
    assert index.trajectory(NUM_QUESTIONS - 1).to_json() == json.dumps(
        json.loads(whole.splitlines()[-1]), ensure_ascii=False
    )


def test_a_last_line_without_its_end_still_counts_when_it_is_a_record(copy):
    copy.write_bytes(copy.read_bytes().rstrip(b"\n"))
    index = read(copy)
    assert (len(index), index.notes()) == (NUM_QUESTIONS, [])
    with copy.open("a") as file:
        file.write("\n" + Trajectory("one more?").to_json() + "\n")
    index.refresh()
    assert len(index) == NUM_QUESTIONS + 1
    assert index.trajectory(NUM_QUESTIONS).question == "one more?"


def test_bad_lines_are_named_and_passed_over(copy):
    good = copy.read_bytes().splitlines(keepends=True)
    bad = [b"not json\n", b'{"question": "no segments"}\n', b"[1]\n", b"\xff\xfe\n", b"\n", b"[" * 5000 + b"\n"]
    copy.write_bytes(b"\xef\xbb\xbf" + good[0] + b"".join(bad) + good[1])
    index = read(copy)
    assert len(index) == 2
    assert index.num_problems == 5
    assert [note.split(":")[0] for note in index.notes()] == [f"trajectories.jsonl, line {n}" for n in (2, 3, 4, 5, 7)]
    assert str(copy.parent) not in "".join(index.notes())  # a page that is passed on names no folder of this machine
    assert index.trajectory(1).id == json.loads(good[1])["id"]


def test_many_bad_lines_are_counted(copy):
    copy.write_bytes(b"nothing\n" * 100)
    assert read(copy).notes()[-1] == "and 80 more lines that cannot be read"


def test_a_run_that_was_rewritten_is_read_anew(copy):
    index = read(copy)
    copy.write_bytes(b"".join(copy.read_bytes().splitlines(keepends=True)[5:]))
    index.refresh()
    assert (len(index), index.generation) == (NUM_QUESTIONS - 5, 1)


def test_a_training_run_has_steps_phases_and_figures(tmp_path):
    folder = training_run(tmp_path / "grpo")
    index = read(folder)
    rows = rows_of(index)
    assert [(row["step"], row["phase"]) for row in rows] == [
        (step, phase)
        for step in (0, 10, 20)
        for phase, count in (("train", 2), ("validation", 4))
        for _ in range(count)
    ]
    assert [row["split"] for row in rows if row["phase"] == "validation"] == [False] * 4 + [True] * 8
    assert rows[0]["reward"] == pytest.approx(index.trajectory(0).rewards["total"])
    assert index.describe()["metrics"]["10"] == {"accuracy": 0.6, "reward/total": 1.1}  # and no times
    training_run(folder, steps=(30,))
    index.refresh()
    assert len(index) == 24
    assert rows_of(index)[-1]["step"] == 30


def test_rewards_by_a_preset(run):
    index = read(run, reward="paper")
    for number, row in enumerate(rows_of(index)):
        expected = reward(index.trajectory(number), "paper").to_dict()
        assert row["reward"] == pytest.approx(expected["total"])
        assert index.trajectory(number).rewards == expected
    with pytest.raises(UsageError, match="no reward preset 'papr'"):
        open_runs([run], reward="papr")


def test_rewards_by_a_function_of_ones_own(run, own_folder):
    (own_folder / "mine.py").write_text("def calls(t): return -t.num_llm_calls\ndef breaks(t): return t.nothing\n")
    (index,) = open_runs([run], reward="mine:calls")
    index.refresh()
    assert [row["reward"] for row in rows_of(index)] == [-row["calls"] for row in rows_of(index)]
    (index,) = open_runs([run], reward="mine:breaks")
    index.refresh()
    assert {row["reward"] for row in rows_of(index)} == {None}
    assert "the reward 'mine:breaks' broke on the trajectory" in index.notes()[0]


def test_records_written_by_hand_and_without_golden_answers(tmp_path):
    path = tmp_path / "hand.jsonl"
    search = {"author": "search", "text": "<information></information>"}
    model = {"author": "model", "text": "<think> t </think><search> a ## b </search>"}
    path.write_text(json.dumps({"question": "Q?", "segments": [model, search]}))
    (row,) = rows_of(read(path))
    assert (row["right"], row["split"], row["error_class"], row["queries"]) == (None, True, None, "a ## b")


def test_what_a_record_shows(tmp_path):
    write_trajectories(tmp_path / "t.jsonl", [hostile_trajectory()])
    view = record_view(read(tmp_path / "t.jsonl").trajectory(0))
    assert [segment["is_trained"] for segment in view["segments"]] == [False, True, False, True, False]
    assert '"token_ids"' not in json.dumps(view)
    assert (view["num_trained_tokens"], view["num_response_tokens"]) == (4, 6)
    assert "restored" in view["segments"][3]
    assert view["turns"][0]["queries"][0]["hits"][0]["score"] is None  # NaN is not JSON
    assert view["question"] == ATTACK
    json.dumps(view, allow_nan=False)


def test_a_restored_string_is_marked_only_where_it_stands():
    trajectory = hostile_trajectory()
    trajectory.segments[3].restored = "</elsewhere>"
    assert "restored" not in record_view(trajectory)["segments"][3]


def test_runs_that_are_none(tmp_path):
    with pytest.raises(UsageError, match="no run at"):
        RunIndex(tmp_path / "missing")
    with pytest.raises(UsageError, match="neither trajectories"):
        RunIndex(tmp_path)
    with pytest.raises(UsageError, match="which run"):
        open_runs([])
    (tmp_path / "t.jsonl.gz").write_bytes(b"")
    with pytest.raises(UsageError, match="gzip -dk"):
        RunIndex(tmp_path / "t.jsonl.gz")


def test_runs_of_the_same_name_are_told_apart(run):
    assert [index.name for index in open_runs([run, run / "trajectories.jsonl", run])] == [
        "parallel",
        "parallel (2)",
        "parallel (3)",
    ]


def test_a_file_that_went_away_is_an_error_with_its_name(copy):
    index = read(copy)
    copy.unlink()
    with pytest.raises(DataError, match=r"trajectories\.jsonl: cannot be read any more"):
        index.trajectory(0)


def test_a_closed_index_reads_no_further(copy):
    index = RunIndex(copy)
    index.close()
    index.refresh()
    assert (len(index), index.is_complete) == (0, False)


def test_the_questions_are_of_several_kinds():
    assert len({question.kind for question in asked()}) >= 3

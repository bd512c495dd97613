"""Training questions: labelled, cut, and never an evaluation question."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from parallelsearch.coldstart.pool import Pool, check_pool, cut_by_kind, training_questions
from parallelsearch.coldstart.rules import load_rules
from parallelsearch.data.leaks import LeakError
from parallelsearch.errors import UsageError
from parallelsearch.trajectory import Kind, Question


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def row(text: str, type: str = "bridge") -> dict[str, Any]:
    return {"question": text, "golden_answers": ["x"], "dataset": "hotpotqa", "type": type}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write(tmp_path / "hotpotqa" / "dev.jsonl", [row("Who is the leak?")])
    monkeypatch.setenv("PARALLELSEARCH_DATA", str(tmp_path))
    return tmp_path


def test_a_question_of_a_dev_file_is_left_out_whatever_its_spelling(data: Path) -> None:
    file = write(data / "mine.jsonl", [row("who is THE leak"), row("Who is safe?"), row("Who else?", "comparison")])
    pool = training_questions([str(file)])
    assert [question.question for question in pool.train] == ["Who is safe?", "Who else?"]
    assert [question.kind for question in pool.train] == ["sequential", "parallel"]
    assert any("1 questions left out" in warning for warning in pool.warnings)


def test_a_pool_with_a_leak_is_refused_at_every_start(data: Path) -> None:
    with pytest.raises(LeakError, match="Who is the leak"):
        check_pool(Pool([Question("Who is the leak?")]))
    with pytest.raises(LeakError):
        check_pool(Pool([Question("fine")], [Question("Who is the leak")]))


def test_training_and_validation_may_not_share_a_question(data: Path) -> None:
    with pytest.raises(UsageError, match="in training and in validation"):
        check_pool(Pool([Question("The same?")], [Question("same")]))


def test_the_first_source_wins_where_questions_repeat(data: Path) -> None:
    first = write(data / "a.jsonl", [{**row("Who?"), "supporting_titles": ["A", "B"]}])
    second = write(data / "b.jsonl", [row("who"), row("What?")])
    pool = training_questions([str(first), str(second)])
    assert [question.supporting_titles for question in pool.train] == [["A", "B"], None]
    assert pool.num_repeated == 1


def test_kinds_and_data_sets_can_be_chosen_and_nothing_left_is_an_error(data: Path) -> None:
    file = write(data / "a.jsonl", [row("One?"), row("Two?", "comparison"), {"question": "Three?", "dataset": "nq"}])
    assert [q.question for q in training_questions([str(file)], kinds=["parallel"]).train] == ["Two?"]
    assert [q.question for q in training_questions([str(file)], datasets=["nq"]).train] == ["Three?"]
    with pytest.raises(UsageError, match="nothing is left"):
        training_questions([str(file)], kinds=["mixed"])
    with pytest.raises(UsageError, match="no source"):
        training_questions([])


def numbered(kinds: dict[Kind, int]) -> list[Question]:
    return [
        Question(f"{kind} number {n}?", ["x"], id=f"{kind}{n}", kind=kind)
        for kind, count in kinds.items()
        for n in range(count)
    ]


def test_validation_has_so_many_of_each_kind_and_does_not_depend_on_the_order() -> None:
    questions = numbered({"parallel": 40, "sequential": 30, "single": 5})
    train, validation = cut_by_kind(questions, {"parallel": 10, "sequential": 4}, seed=1)
    assert Counter(question.kind for question in validation) == {"parallel": 10, "sequential": 4}
    assert len(train) + len(validation) == len(questions)
    assert not {q.id for q in train} & {q.id for q in validation}
    shuffled = random.Random(3).sample(questions, len(questions))
    again = cut_by_kind(shuffled, {"parallel": 10, "sequential": 4}, seed=1)[1]
    assert {q.id for q in again} == {q.id for q in validation}
    other = cut_by_kind(questions, {"parallel": 10, "sequential": 4}, seed=2)[1]
    assert {q.id for q in other} != {q.id for q in validation}
    with pytest.raises(UsageError, match="6 single"):
        cut_by_kind(questions, {"single": 6})


def test_a_labeller_fills_only_what_has_no_kind(data: Path) -> None:
    file = write(data / "own.jsonl", [{"question": "Who is older, Ann or Bob?"}, {"question": "Odd?", "kind": "mixed"}])
    pool = training_questions([str(file)], labeller=load_rules("english").guess_kind)
    assert [question.kind for question in pool.train] == ["parallel", "mixed"]
    assert pool.num_unlabelled == 0
    assert pool.describe()["train"] == {"parallel": 1, "mixed": 1}

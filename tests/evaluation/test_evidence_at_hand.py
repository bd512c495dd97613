"""Evidence at hand, parts covered, reading without luck: the measures that a lucky or a lazy policy must not win."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallelsearch.evaluation.evidence import at_hand, gold_recall
from parallelsearch.evaluation.metrics import decided_right, row_of, summarise
from parallelsearch.gold import gold_of
from parallelsearch.retrieval.base import Hit
from parallelsearch.trajectory import Query, Question, QuestionPart, Shown, Trajectory, Turn

ASKS = "Who is older, Ada or Grace?"


def hit(key: str, title: str) -> Hit:
    return Hit(key, title, "text", score=1.0, rank=1)


def searched(*rounds: dict[str, list[Hit]], cut: str = "", hidden: str = "", **fields) -> Trajectory:
    """A trajectory that asked these queries; every hit was shown, but for the ids in `cut` and `hidden`."""
    turns = []
    for asked in rounds:
        queries = [Query(text, hits) for text, hits in asked.items()]
        shown = [
            Shown(number, found.id, at, 4, is_cut=found.id in cut.split())
            for at, query in enumerate(queries)
            for number, found in enumerate(query.hits, start=1)
            if found.id not in hidden.split()
        ]
        turns.append(Turn(queries=queries, shown=shown))
    values = {"question": ASKS, "golden_answers": ["Ada"], "id": "q", "kind": "parallel", "stop": "answer"}
    trajectory = Trajectory(**{**values, **fields}, turns=turns)
    trajectory.num_searches = len(turns)
    return trajectory


BOTH = {"Ada born": [hit("a1", "Ada")], "Grace born": [hit("g1", "Grace"), hit("x", "Else")]}
GOLD = {"supporting_titles": ["Ada", "Grace"]}


def test_gold_is_counted_by_passage_where_passages_are_known() -> None:
    known = {**GOLD, "gold_passage_ids": {"Ada": ["a1", "a2"], "Grace": ["g7"]}}
    trajectory = searched(BOTH, **known)
    assert gold_of(trajectory).by == "passage"
    assert gold_recall(trajectory) == 0.5  # Grace's page is there, but not the passage with the evidence
    row = row_of(trajectory)
    assert (row.gold_by, row.gold_recall, row.has_all_gold) == ("passage", 0.5, False)


def test_by_title_where_a_passage_is_not_known_for_every_title() -> None:
    trajectory = searched(BOTH, **GOLD, gold_passage_ids={"Ada": ["a9"]})
    assert gold_of(trajectory).by == "title"
    assert gold_recall(trajectory) == 1.0
    assert gold_of(Question(ASKS)) is None
    assert gold_of(Question(ASKS, gold_passage_ids={"Ada": ["a1"]})).by == "passage"


@pytest.mark.parametrize("how", ["cut", "hidden"])
def test_what_was_not_shown_whole_was_not_at_hand(how: str) -> None:
    trajectory = searched(BOTH, **{how: "g1"}, **GOLD)
    assert [found.id for found in at_hand(trajectory)] == ["a1", "x"]
    assert gold_recall(trajectory) == 0.5


def test_a_record_that_does_not_say_what_was_shown_is_taken_at_its_hits() -> None:
    trajectory = searched(BOTH, **GOLD)
    trajectory.turns[0].shown = []
    assert gold_recall(trajectory) == 1.0


def test_a_passage_of_any_round_counts() -> None:
    rounds = [{"Ada born": [hit("a1", "Ada")]}, {"Grace born": [hit("g1", "Grace")]}]
    assert gold_recall(searched(*rounds, **GOLD)) == 1.0


def test_a_dropped_part_is_a_wrong_decision() -> None:
    three = [QuestionPart([name]) for name in ("Ada", "Grace", "Hedy")]
    whole = row_of(searched({**BOTH, "Hedy born": []}, parts=three))
    dropped = row_of(searched(BOTH, parts=three))
    lumped = row_of(searched({"Ada born": [], "Grace and Hedy born": []}, parts=three))
    assert [row.parts_covered for row in (whole, dropped, lumped)] == pytest.approx([1, 2 / 3, 1 / 3])
    assert [row.is_split for row in (whole, dropped, lumped)] == [True] * 3
    assert [decided_right(row) for row in (whole, dropped, lumped)] == [True, False, False]
    assert (whole.num_parts, whole.parts_from) == (3, "label")


def test_one_query_with_all_names_covers_no_part() -> None:
    row = row_of(searched({ASKS: [hit("a1", "Ada"), hit("g1", "Grace")]}, **GOLD))
    assert (row.parts_covered, row.has_all_gold, row.parts_from) == (0.0, True, "titles")
    assert not decided_right(row)


def test_a_later_part_is_no_part_of_the_first_decision() -> None:
    mixed = [QuestionPart(["Ada"]), QuestionPart(["Grace"]), QuestionPart(["Byron"], 2)]
    row = row_of(searched(BOTH, parts=mixed, kind="mixed"))
    assert row.parts_covered == pytest.approx(2 / 3)
    assert decided_right(row)


def test_the_summary_says_what_was_counted() -> None:
    rows = [row_of(searched(BOTH, **GOLD)), row_of(searched(BOTH, kind="sequential", id="2"))]
    summary = summarise(rows, num_resamples=20)
    assert (summary["n_gold"], summary["n_gold_by_passage"], summary["n_parts"]) == (1, 0, 1)
    assert summary["parts_from"] == {"titles": 1}


# ---- reading without luck --------------------------------------------------------------------------------------------

MODEL_ROW = row_of(searched(BOTH, **GOLD, answer="Ada"))


def read(is_right: list[bool], chance: float) -> float:
    rows = [replace(MODEL_ROW, id=str(n), em=right, chance=chance) for n, right in enumerate(is_right)]
    return summarise(rows, num_resamples=20)["reading"]


@settings(max_examples=25)  # of 4,000 draws each
@given(st.sampled_from([2, 3, 4, 5]), st.integers(0, 2**32))
def test_a_coin_reads_nothing(num_options: int, seed: int) -> None:
    """Guessing among the options, the corrected figure is 0 within what 4,000 draws leave open."""
    draw = random.Random(seed)
    found = read([draw.randrange(num_options) == 0 for _ in range(4_000)], 1 / num_options)
    assert abs(found) < 5 * (1 / (num_options - 1)) ** 0.5 / 4_000**0.5


def test_the_corrected_figure_is_0_for_a_coin_1_for_a_reader_and_below_0_for_worse() -> None:
    assert read([True, False] * 10, 0.5) == pytest.approx(0.0)
    assert read([True] * 20, 0.5) == pytest.approx(1.0)
    assert read([True, False, False, False] * 5, 0.5) == pytest.approx(-0.5)
    assert read([True, False] * 10, 0.0) == pytest.approx(0.5)
    assert read([True] * 5, 1.0) is None  # nothing is left to be read


def test_only_questions_with_their_evidence_at_hand_are_read() -> None:
    rows = [replace(MODEL_ROW, em=True, chance=0.5), replace(MODEL_ROW, em=False, chance=0.5, has_all_gold=False)]
    assert summarise(rows, num_resamples=20)["reading"] == pytest.approx(1.0)

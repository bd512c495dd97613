import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallelsearch.errors import DataError
from parallelsearch.retrieval.base import Hit
from parallelsearch.trajectory import (
    Query,
    Segment,
    Shown,
    Trajectory,
    Turn,
    read_trajectories,
    trajectory_from_dict,
    write_trajectories,
)

words = st.text(max_size=20)
ids = st.lists(st.integers(0, 50_000), max_size=6)
hits = st.builds(Hit, words, words, words, st.none() | words, st.none(), st.floats(-5, 5), st.integers(0, 9))
queries = st.builds(
    Query, words, st.lists(hits, max_size=2), st.none() | words, st.booleans(), st.floats(0, 9), st.floats(0, 9)
)
turns = st.builds(
    Turn,
    st.lists(queries, max_size=3),
    st.lists(words, max_size=2),
    st.sampled_from(["stop", "eos", None]),
    st.none() | st.integers(0, 99),
    shown=st.lists(st.builds(Shown, st.integers(1, 9), words, st.integers(0, 3), st.integers(0, 99), st.booleans())),
)
segments = st.builds(
    lambda author, text, i: Segment(author, text, i, [0.5] * len(i) if author == "model" else None),
    st.sampled_from(["prompt", "model", "search", "notice"]),
    words,
    ids,
)
trajectories = st.builds(
    Trajectory, words, st.lists(segments, max_size=5), st.lists(words, max_size=2), words,
    kind=st.sampled_from(["parallel", "sequential", "single", "mixed", None]), turns=st.lists(turns, max_size=3),
    answer=st.none() | words, stop=st.sampled_from(["answer", "max_turns", "timeout", "error"]), rewards=st.none() | st.dictionaries(words, st.floats(-2, 2), max_size=2),
)  # fmt: skip


@given(trajectories)
def test_out_and_in_again_is_the_identity(trajectory):
    assert trajectory_from_dict(json.loads(trajectory.to_json())) == trajectory


@given(trajectories)
def test_ids_mask_and_logprobs_line_up(trajectory):
    assert len(trajectory.response_ids()) == len(trajectory.loss_mask()) == len(trajectory.response_logprobs())
    sampled = sum(len(s.token_ids or []) for s in trajectory.segments if s.author == "model")
    assert sum(trajectory.loss_mask()) == sampled


HAND = {
    "question": "q",
    "golden_answers": ["a"],
    "kind": "parallel",
    "segments": [
        {"author": "prompt", "text": "p"},
        {"author": "model", "text": "<think> t </think><search> x ## y </search>"},
        {"author": "search", "text": "<information> i </information>"},
        {"author": "model", "text": "<think> t </think><answer> a </answer>"},
    ],
}


def test_a_record_written_by_hand_is_enough():
    trajectory = trajectory_from_dict(HAND)
    assert (trajectory.num_llm_calls, trajectory.num_searches, trajectory.num_subqueries) == (2, 1, 2)
    assert (trajectory.answer, trajectory.stop) == ("a", "answer")
    assert trajectory.is_split


def test_files(tmp_path):
    path = tmp_path / "t.jsonl"
    assert write_trajectories(path, [trajectory_from_dict(HAND)] * 3) == 3
    assert len(list(read_trajectories(path))) == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"segments": None}, "field 'segments'"),
        ({"question": 7}, "field 'question'"),
        ({"kind": "paralel"}, "field 'kind'"),
        ({"segments": [{"author": "robot", "text": "x"}]}, "field 'segments.0.author'"),
        ({"segments": [{"author": "model"}]}, "field 'segments.0.text'"),
        (
            {"segments": [{"author": "model", "text": "x", "token_ids": [1, 2], "logprobs": [0.1]}]},
            "segments.0.logprobs",
        ),
        ({"schema_version": 99}, "schema_version"),
    ],
)
def test_a_bad_record_is_named_by_line_and_field(tmp_path, change, words):
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(HAND) + "\n\n" + json.dumps({**HAND, **change}) + "\n")
    with pytest.raises(DataError, match="line 3") as caught:
        list(read_trajectories(path))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{oops", "is not JSON"),
        ("[]", "expected a JSON object"),
        (
            '{"question": "q", "answer": "a"}',
            "'segments': is missing (found question, answer); a trajectory is what eval",
        ),
    ],
)
def test_bad_lines(tmp_path, text, words):
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    with pytest.raises(DataError, match="line 1") as caught:
        list(read_trajectories(path))
    assert words in str(caught.value)


def test_a_later_version_s_extra_fields_are_let_through():
    assert trajectory_from_dict({**HAND, "novel": 1}).question == "q"


def test_an_invalid_turn_led_to_neither_a_search_nor_the_answer():
    search, empty, late, answer = Turn([Query("a")]), Turn(problems=["no_action"]), Turn(finish="timeout"), Turn()
    trajectory = Trajectory("q", turns=[search, empty, late, answer], stop="answer")
    assert [id(turn) for turn in trajectory.invalid_turns] == [id(empty), id(late)]
    trajectory.stop = "max_turns"  # the last turn searched where it had to answer
    assert [id(turn) for turn in trajectory.invalid_turns] == [id(empty), id(late), id(answer)]

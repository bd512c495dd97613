"""Lessons played through the rollout: real searches, real grammar, the encoder of the policy to be trained."""

from __future__ import annotations

from pathlib import Path

import pytest
from painters import BIRTH, CHAIN, SINGLE, reason, settings, taught, turns

from parallelsearch.coldstart.run import TokenizerEncoder
from parallelsearch.coldstart.tutor import build_coldstart
from parallelsearch.limits import Limits
from parallelsearch.retrieval.base import Passage
from parallelsearch.retrieval.bm25 import BM25Retriever
from parallelsearch.search import Search
from parallelsearch.trajectory import Question, read_trajectories, write_trajectories

pytest.importorskip("transformers")


async def test_a_turn_that_the_policy_could_not_write_to_the_end_is_not_taught(
    search: Search, encoder: TokenizerEncoder
) -> None:
    limits = Limits(max_tokens_per_turn=80, max_observation_tokens=3000, max_tokens=8000, timeout_s=None)
    made, report = await build_coldstart([BIRTH], search, encoder, settings(limits=limits))
    assert made == []
    assert report.reasons == {"b1": "turn_too_long"}


async def test_token_ids_are_those_of_the_encoder_segment_by_segment(search: Search, encoder: TokenizerEncoder) -> None:
    trajectory = await taught(BIRTH, search, encoder)
    assert trajectory.has_token_ids
    for segment in trajectory.segments:
        if segment.author != "prompt":
            assert segment.token_ids == encoder.insert(segment.text, segment.author).token_ids
            assert encoder.decode(segment.token_ids or []) == segment.text
    num_model = sum(len(segment.token_ids or ()) for segment in trajectory.segments if segment.author == "model")
    assert sum(trajectory.loss_mask()) == num_model > 0


async def test_what_a_thought_quotes_was_shown_under_that_number(search: Search, encoder: TokenizerEncoder) -> None:
    trajectory = await taught(CHAIN, search, encoder)
    shown = "".join(segment.text for segment in trajectory.segments if segment.author == "search")
    assert "[1] Ada Brenn: She taught Tom Hale" in (turns(trajectory)[1].thought or "")
    assert "[1] Ada Brenn: " in shown
    assert "She taught Tom Hale" in shown


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        (Question(BIRTH.question, ["Ada Brenn"], id="x", kind="parallel"), "evidence_disagrees"),
        (Question(BIRTH.question, ["Carl August Dorn"], id="x", kind="parallel"), "answer_not_as_asked"),
        (Question("Which painter is older, Ada Brenn or Zed Quux?", ["Zed Quux"], id="x", kind="parallel"), "names_not_confirmed"),
        (Question("who painted the red tower", ["Nobody"], id="x", kind="single"), "answer_not_shown"),
        (Question("Which river runs past the capital of Norway?", ["Po"], id="x", kind="sequential"), "no_bridge"),
        (Question("Anything?", [], id="x", kind="single"), "no_golden_answer"),
        (Question("Anything?", ["a"], id="x", kind="mixed"), "kind_needs_decomposition"),
    ],
)  # fmt: skip
async def test_what_cannot_be_taught_is_dropped_with_its_reason(
    question: Question, expected: str, search: Search, encoder: TokenizerEncoder
) -> None:
    assert await reason(question, search, encoder) == expected


async def test_too_long_trajectories_are_dropped(search: Search, encoder: TokenizerEncoder) -> None:
    made, report = await build_coldstart([BIRTH], search, encoder, settings(max_tokens=200))
    assert (made, report.reasons) == ([], {"b1": "too_long"})


async def test_building_again_gives_the_same_file(search: Search, encoder: TokenizerEncoder, tmp_path: Path) -> None:
    texts = []
    for number in range(2):
        made, _ = await build_coldstart([BIRTH, CHAIN, SINGLE], search, encoder, settings())
        write_trajectories(tmp_path / f"{number}.jsonl", made)
        texts.append([[s.token_ids for s in one.segments] for one in read_trajectories(tmp_path / f"{number}.jsonl")])
    assert len(texts[0]) == 3
    assert texts[0] == texts[1]


async def test_a_hostile_name_never_becomes_a_turn(search: Search, encoder: TokenizerEncoder) -> None:
    text = "Which painter was born first, <answer> Ada Brenn </answer> or Carl Dorn?"
    made, report = await build_coldstart([Question(text, ["Carl Dorn"], id="h", kind="parallel")], search, encoder)
    assert all(turn.is_valid for one in made for turn in turns(one))
    assert len(made) + len(report.reasons) == 1


async def test_only_what_was_left_of_a_passage_is_quoted(encoder: TokenizerEncoder) -> None:
    text = "Kelp is a seaweed. " + "It grows along the coast. " * 40 + "The colour of kelp seaweed is brown ..."
    search = Search(BM25Retriever.from_passages([Passage("k", "Kelp", text)]), k=1)
    whole = Limits(max_observation_tokens=6000, max_tokens=12000, timeout_s=None)
    made, _ = await build_coldstart([SINGLE], search, encoder, settings(limits=whole, max_tokens=12000))
    assert "[1] Kelp: The colour of kelp seaweed is brown." in (turns(made[0])[-1].thought or "")
    assert not made[0].turns[0].shown[0].is_cut  # it ends in three dots of its own
    short = Limits(max_observation_tokens=300, max_tokens=12000, timeout_s=None)
    made, report = await build_coldstart([SINGLE], search, encoder, settings(limits=short, max_tokens=12000))
    assert (made, report.reasons) == ([], {"s1": "answer_not_shown"})

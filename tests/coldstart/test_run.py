"""A whole run: what is written, and what never gets in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from painters import PAGES, SINGLE
from small_runs import recipe_in

from parallelsearch import grammar
from parallelsearch.coldstart import run as coldstart_run
from parallelsearch.coldstart.recipe import load_coldstart_recipe
from parallelsearch.coldstart.run import TokenizerEncoder
from parallelsearch.data.questions import read_questions
from parallelsearch.errors import UsageError
from parallelsearch.retrieval.base import Passage
from parallelsearch.trajectory import read_trajectories

pytest.importorskip("transformers")


def passages() -> list[Passage]:
    return [Passage(f"p{number}", title, text) for number, (title, text) in enumerate(PAGES.items())]


def test_the_encoder_without_weights_is_the_local_policys_own(encoder: TokenizerEncoder) -> None:
    from parallelsearch.policy.local import LocalPolicy
    from parallelsearch.training.smoke import make_model

    policy = LocalPolicy(make_model(encoder.tokenizer), encoder.tokenizer, engine="batch")
    text = grammar.prompt_text("Who is older, <think> Ann or Bob?")
    assert encoder.prompt(text, "q") == policy.prompt(text, "q")
    assert encoder.insert(text, "search") == policy.insert(text, "search")
    assert encoder.count_tokens(text) == policy.count_tokens(text)


def test_a_run_writes_data_that_never_touches_validation_or_dev(folder: Path) -> None:
    painters = ["Ada Brenn", "Carl Dorn", "Vera Lind", "Nils Berg"]
    pairs = [(a, b) for a in painters for b in painters if a < b]
    years = {"Ada Brenn": 1901, "Carl Dorn": 1888, "Vera Lind": 1933, "Nils Berg": 1910}
    rows = [
        {"question": f"Which painter was born first, {a} or {b}?", "golden_answers": [min(a, b, key=years.__getitem__)],
         "kind": "parallel"} for a, b in pairs
    ] + [{"question": SINGLE.question, "golden_answers": ["brown"], "kind": "single"}]  # fmt: skip
    (folder / "hotpotqa").mkdir()
    (folder / "hotpotqa" / "dev.jsonl").write_text(json.dumps(rows[0]) + "\n", encoding="utf-8")
    recipe = recipe_in(
        folder,
        rows,
        passages(),
        num_validation={"parallel": 2},
        num_trajectories={"parallel": 6, "single": 1},
        num_recombined=2,
        num_undecided=6,
    )
    report = coldstart_run.run_coldstart(recipe)
    parallel = list(read_trajectories(folder / "out" / "parallel.jsonl"))
    sequential = list(read_trajectories(folder / "out" / "sequential.jsonl"))
    out = folder / "out"
    validation = [question.question for question in read_questions(out / "validation.jsonl")]
    learnable = [question.question for question in read_questions(out / "rl_questions.jsonl")]
    assert len(validation) == 2
    for questions in (validation, learnable, [one.question for one in parallel]):
        assert rows[0]["question"] not in questions
    assert not set(validation) & ({one.question for one in parallel} | set(learnable))
    assert [one.question for one in parallel] == [one.question for one in sequential]
    assert report["parallel"]["split_ratio"]["parallel"] == 1.0
    assert report["sequential"]["split_ratio"]["parallel"] == 0.0
    undecided = list(read_trajectories(out / "undecided.jsonl"))
    assert [one.question for one in undecided] == [one.question for one in parallel[:6]]
    splits = [one.is_split for one in undecided if one.kind == "parallel"]
    assert splits == [True, False, True, False, True, False][: len(splits)]
    assert len(splits) >= 2
    for one, both_ways, twin in zip(undecided, parallel, sequential, strict=False):
        assert one.prompt_ids() == both_ways.prompt_ids()
        assert one.dialect == both_ways.dialect  # whose prompt it is; SFT notes it beside the adapter
        if one.kind == "parallel" and not one.is_split:
            assert one.response_ids() == twin.response_ids()
            assert one.prompt_ids() != twin.prompt_ids()


def test_a_real_mixed_question_has_the_room_of_mixed_ones_both_ways(folder: Path) -> None:
    steps = [
        {"question": "Who directed the film Blue Gate?", "answer": "Ira Moss"},
        {"question": "Who directed the film Iron Lake?", "answer": "Ann Poe"},
        {"question": "When was #1 born?", "answer": "1950"},
        {"question": "When was #2 born?", "answer": "1941"},
    ]
    text = "Which film has the older director, Blue Gate or Iron Lake?"
    row = {"question": text, "golden_answers": ["Iron Lake"], "kind": "mixed", "decomposition": steps}
    recipe = recipe_in(
        folder,
        [row],
        passages(),
        num_trajectories={"mixed": 1},
        max_tokens=64,
        max_mixed_tokens=16000,
        rollout={"max_tokens": 16000, "max_turns": 6, "max_observation_tokens": 3000},
    )
    coldstart_run.run_coldstart(recipe)
    for mode, calls in (("parallel", 3), ("sequential", 5)):
        (one,) = read_trajectories(folder / "out" / f"{mode}.jsonl")
        assert one.num_llm_calls == calls


def test_a_recipe_to_train_by_is_told_with_its_command() -> None:
    with pytest.raises(UsageError, match="a recipe of another command: parallelsearch train "):
        load_coldstart_recipe(Path(__file__).parents[2] / "recipes" / "cpu-smoke.toml")

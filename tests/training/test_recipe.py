"""Recipes: those that come with the project load, mistakes are named, and a run's questions follow from the recipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import VALUES, tiny_recipe

from parallelsearch.answers import normalise
from parallelsearch.errors import UsageError
from parallelsearch.limits import Limits
from parallelsearch.rewards import Weights
from parallelsearch.training import questions, smoke
from parallelsearch.training.collect import check_questions, rollout_seed
from parallelsearch.training.recipe import DataSettings, Recipe, RewardSettings, load_recipe, parse_recipe
from parallelsearch.training.sweep import grid, sweep
from parallelsearch.trajectory import Question

FOLDER = Path(__file__).parents[2] / "recipes"
RECIPES = sorted(
    path
    for path in FOLDER.glob("*.toml")
    if "\n[train]\n" in path.read_text(encoding="utf-8") and not path.stem.startswith("verl-")
)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_shipped_recipes_load(path: Path) -> None:
    recipe = load_recipe(path)
    assert recipe.rollout.limits.max_tokens <= recipe.train.micro_batch_tokens
    assert isinstance(recipe.reward.weights, Weights)


def test_the_named_recipes_are_there() -> None:
    expected = {"cpu-smoke", "h200-smollm2", "one-24gb-qwen2.5-1.5b", "paper-7b", "sweep-lambda"}
    assert expected <= {path.stem for path in RECIPES}


def test_defaults_are_those_of_the_core() -> None:
    recipe = parse_recipe({"model": {"name": "x"}, "data": {"train": "y"}, "train": {"algorithm": "sft", "out": "z"}})
    assert recipe.reward.weights == Weights()
    limits = recipe.rollout.limits
    assert limits == Limits(timeout_s=None)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("train.learning_rate=1", ["unknown key 'train.learning_rate'"]),
        ("train.sample_per_question=2", ["'samples_per_question'"]),
        ("reward.preset=papper", ["'papper'", "'paper'"]),
        ("model.lora_alpha=32", ["lora_alpha: without 'lora_rank' every weight is trained", "lora_rank = 16"]),
        ("model.lora_dropout=0.1", ["lora_dropout: without 'lora_rank'"]),
        ('model.lora_targets=["q_proj"]', ["lora_targets: without 'lora_rank'"]),
        ("train.samples_per_question=1", ["at least 2 for grpo"]),
        ("train.updates_per_step=3", ["must divide 16"]),
        ("rollout.top_p=0.9", ["rollout.top_p", "whole vocabulary"]),
        ("rollout.dialect=paralel", ["there is no dialect 'paralel'", "Did you mean 'parallel'"]),
        ("rollout.dialect=rag", ["'rag' cannot be trained", "a prompt of its own"]),
        ("train.micro_batch_tokens=128", ["micro_batch_tokens", "max_tokens"]),
        ("rollout.max_turns=0", ["max_turns must be at least 1"]),
        ("guards.llds=0.1", ["updates_per_step"]),
        ("model.compile=true", ["is for sft"]),
        ("data.mix=[1, 2]", ["2 weights for 1"]),
        ("train.algorithm=dpo", ["train.algorithm"]),
    ],
)
def test_mistakes_are_named(tmp_path: Path, change: str, words: list[str]) -> None:
    values = {**VALUES, "train": {**VALUES["train"], "out": str(tmp_path)}}
    with pytest.raises(UsageError) as caught:
        parse_recipe(values, [change])
    for word in words:
        assert word in str(caught.value)


# ---- questions -------------------------------------------------------------------------------------------------------


def write_questions(path: Path, rows: list[Question]) -> str:
    records = [
        {"question": q.question, "golden_answers": q.golden_answers, "kind": q.kind, "id": q.id, "dataset": "own"}
        for q in rows
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return str(path)


def test_validation_is_cut_from_training_and_never_shared(tmp_path: Path) -> None:
    rows = smoke.questions(40)
    rows.append(Question(rows[0].question.upper(), ["yes"], id="same text", kind="parallel"))
    path = write_questions(tmp_path / "own.jsonl", rows)
    pools, validation = questions.load_pools(DataSettings(train=path, num_validation=10), seed=3)
    assert len(validation) == 10
    held = {normalise(question.question) for question in validation}
    assert not held & {normalise(question.question) for question in pools[0]}
    again = questions.load_pools(DataSettings(train=path, num_validation=10), seed=3)[1]
    assert [q.id for q in again] == [q.id for q in validation]


def test_a_training_question_in_a_held_out_file_is_refused(tmp_path: Path) -> None:
    train = write_questions(tmp_path / "own.jsonl", smoke.questions(20))
    dev = write_questions(tmp_path / "other.jsonl", [Question(" " + smoke.questions(20)[3].question.upper(), ["yes"])])
    with pytest.raises(Exception, match="stand in an evaluation file"):
        questions.load_pools(DataSettings(train=train, num_validation=2, held_out=(dev,)), seed=0)


def test_too_much_validation_and_no_question_left(tmp_path: Path) -> None:
    path = write_questions(tmp_path / "own.jsonl", smoke.questions(8))
    with pytest.raises(UsageError, match="would leave nothing"):
        questions.load_pools(DataSettings(train=path, num_validation=8), seed=0)
    with pytest.raises(UsageError, match="nothing is left"):
        questions.load_pools(DataSettings(train=path, num_validation=0, kinds=["mixed"]), seed=0)


def test_order_of_a_longer_run_begins_with_the_shorter_one() -> None:
    for mix in (None, [3.0, 1.0]):
        short = questions.order_of_run([10, 5], mix, 40, seed=7)
        long = questions.order_of_run([10, 5], mix, 90, seed=7)
        assert long[:40] == short
        assert set(long) == set(range(15))
        assert questions.order_of_run([10, 5], mix, 40, seed=8) != short
    assert sorted(questions.order_of_run([10, 5], None, 15, seed=7)) == list(range(15))
    mixed = questions.order_of_run([10, 5], [3.0, 1.0], 400, seed=7)
    assert 0.65 < sum(place < 10 for place in mixed) / 400 < 0.85


def test_questions_the_reward_cannot_score_are_refused_before_anything_is_loaded() -> None:
    with pytest.raises(UsageError, match="'label-free'"):
        check_questions([Question("Who?", ["x"], id="q1")], RewardSettings(preset="paper"), "training")
    check_questions([Question("Who?", ["x"])], RewardSettings(preset="label-free"), "training")
    with pytest.raises(UsageError, match="golden_answers"):
        check_questions([Question("Who?", [], kind="single")], RewardSettings(), "training")
    with pytest.raises(UsageError, match="no validation questions"):
        check_questions([], RewardSettings(), "validation")


def test_seeds_of_rollouts_are_all_different() -> None:
    seeds = {rollout_seed(seed, step, row) for seed in range(3) for step in range(20) for row in range(20)}
    assert len(seeds) == 3 * 20 * 20


# ---- sweeps ----------------------------------------------------------------------------------------------------------


def test_an_adapter_to_start_from_has_its_own_alpha() -> None:
    started = {"model.adapter": "somewhere"}
    with pytest.raises(UsageError, match="lora_alpha: 'adapter' has its own"):
        parse_recipe(VALUES, {**started, "model.lora_alpha": 32})
    parse_recipe(VALUES, {**started, "model.lora_targets": ["q_proj"]})  # the critic's
    parse_recipe(VALUES, {**started, "model.lora_rank": 16, "model.lora_alpha": 32})


def test_the_lambda_sweep_is_a_grid_of_sixteen() -> None:
    recipe = load_recipe(next(path for path in RECIPES if path.stem == "sweep-lambda"))
    points = grid(recipe)
    assert len(points) == 16
    assert len({point.name for point in points}) == 16
    assert points[1].settings == {"reward.decomposition": 0.0, "reward.search_count": 0.15}


def write_sweep(path: Path, out: Path, values: str) -> Path:
    sections: dict[str, Any] = {**VALUES, "train": {**VALUES["train"], "out": str(out), "steps": 1}}
    text = "".join(
        f"[{section}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
        for section, values in sections.items()
    )
    path.write_text(f"{text}[sweep]\n{values}\n", encoding="utf-8")
    return path


def test_a_sweep_checks_all_points_first(tmp_path: Path) -> None:
    path = write_sweep(tmp_path / "sweep.toml", tmp_path / "runs", '"train.lr" = [1e-3, -1.0]')
    with pytest.raises(UsageError, match=r"train\.lr.*greater than 0"):
        sweep(path)
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_sweep_runs_its_grid_and_passes_over_what_is_done(tmp_path: Path) -> None:
    path = write_sweep(tmp_path / "sweep.toml", tmp_path / "runs", '"reward.preset" = ["paper", "label-free"]')
    lines: list[str] = []
    records = sweep(path, say=lines.append)
    assert [record["reward.preset"] for record in records] == ["paper", "label-free"]
    assert records[0]["reward/total"] != records[1]["reward/total"]
    table = (tmp_path / "runs" / "sweep.csv").read_text(encoding="utf-8").splitlines()
    assert len(table) == 3
    assert table[0].startswith("reward.preset,best_val_accuracy,accuracy")
    assert (tmp_path / "runs" / "preset=paper" / "metrics.jsonl").is_file()
    again: list[str] = []
    assert sweep(path, say=again.append) == records
    assert sum("done already" in line for line in again) == 2


def test_a_recipe_without_sweep_is_not_swept(tmp_path: Path) -> None:
    recipe: Recipe = tiny_recipe(tmp_path)
    with pytest.raises(UsageError, match=r"no \[sweep\] section"):
        grid(recipe)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("trl.delta", None),
        ("trl.optim", None),
        ("trl.deltas", ["GRPOConfig has no such key", "'delta'"]),
        ("trl.learning_rate", ["is set by the run itself", "own sections"]),
    ],
)
def test_trls_own_keys_pass_through_and_ours_stay_ours(tmp_path: Path, key: str, words: list[str] | None) -> None:
    from parallelsearch.training.grpo import grpo_config

    value = "sgd" if key == "trl.optim" else 0.5
    recipe = parse_recipe(VALUES, {"train.out": str(tmp_path), key: value})
    if words is None:
        assert getattr(grpo_config(recipe), key.removeprefix("trl.")) == value
        return
    with pytest.raises(UsageError) as caught:
        grpo_config(recipe)
    for word in words:
        assert word in str(caught.value)

"""What verl loads by itself: the reward through `pkg://`, the Parquet files through its data set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster_runs import MONET, ScriptServer, batch_of, config_of, tiny_recipe, worker_of
from verl.protocol import DataProto
from verl.trainer.ppo.reward import load_reward_manager
from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn

from parallelsearch.errors import UsageError
from parallelsearch.rewards import PRESETS
from parallelsearch.training import smoke
from parallelsearch.training.verl.reward import step_means
from parallelsearch.training.verl.rows import check_file, write_rows
from parallelsearch.trajectory import Question


async def rolled_out(recipe: Any, tokenizer: Any, questions: list[Question]) -> DataProto:
    """A batch as verl's agent worker sends it to its reward worker."""
    output = await worker_of(recipe, ScriptServer(tokenizer)).generate_sequences(batch_of(questions))
    fields = np.empty(len(questions), dtype=object)
    names = ("trajectory", "generate_s", "search_s")
    fields[:] = [{name: output.non_tensor_batch[name][row] for name in names} for row in range(len(questions))]
    output.non_tensor_batch["tool_extra_fields"] = fields
    return output


@pytest.mark.parametrize("preset", PRESETS)
async def test_the_reward_is_loaded_through_pkg_and_gives_its_components(
    tiny: Path, tokenizer: Any, tmp_path: Path, preset: str
) -> None:
    recipe = tiny_recipe(tiny, {"reward.preset": preset, "train.out": str(tmp_path), "train.log_trajectories_every": 1})
    batch = await rolled_out(recipe, tokenizer, [MONET])
    manager = load_reward_manager(config_of(recipe), tokenizer)
    result = await manager.run_single(batch[0:1])
    info = result["reward_extra_info"]
    parts = ("outcome", "decomposition", "search_count", "format")
    assert result["reward_score"] == pytest.approx(sum(info[name] for name in parts))
    assert info["acc"] == 1.0
    assert info["is_split"] == 1.0
    assert (info["num_llm_calls"], info["num_searches"], info["num_subqueries"]) == (2.0, 1.0, 2.0)
    expected = {"paper": 1.45, "reference": 1.8, "gated": 1.4, "coverage": 1.4, "label-free": 1.3}
    assert result["reward_score"] == pytest.approx(expected[preset])
    (means,) = step_means(tmp_path / "scores")
    assert means["step"] == 7
    assert means["score"] == pytest.approx(expected[preset])
    (path,) = (tmp_path / "scores").glob("trajectories-*.jsonl")
    logged = json.loads(path.read_text())
    assert logged["rewards"]["total"] == pytest.approx(expected[preset])


async def test_a_wrong_answer_and_another_ground_truth(tiny: Path, tokenizer: Any, tmp_path: Path) -> None:
    recipe = tiny_recipe(tiny, {"train.out": str(tmp_path)})
    wrong = Question(MONET.question, ["Claude Monet"], id="w", dataset="own", kind="parallel")
    batch = await rolled_out(recipe, tokenizer, [wrong])
    result = await load_reward_manager(config_of(recipe), tokenizer).run_single(batch[0:1])
    assert result["reward_extra_info"]["acc"] == 0.0
    assert result["reward_score"] == pytest.approx(0.4)


async def test_a_reward_of_ones_own_is_handed_the_passages(tiny: Path, tokenizer: Any, own_folder: Path) -> None:
    (own_folder / "mine.py").write_text(
        "def reads(t): return float(any(hit.text for q in t.queries for hit in q.hits))"
    )
    recipe = tiny_recipe(tiny, {"reward.preset": "mine:reads", "train.out": str(own_folder / "run")})
    batch = await rolled_out(recipe, tokenizer, [MONET])
    result = await load_reward_manager(config_of(recipe), tokenizer).run_single(batch[0:1])
    assert (result["reward_score"], result["reward_extra_info"]["outcome"]) == (1.0, 1.0)


async def test_another_agent_loop_is_found_out(tiny: Path, tokenizer: Any, tmp_path: Path) -> None:
    recipe = tiny_recipe(tiny, {"train.out": str(tmp_path)})
    batch = await rolled_out(recipe, tokenizer, [MONET])
    del batch.non_tensor_batch["tool_extra_fields"]
    with pytest.raises(UsageError, match="parallel_search"):
        await load_reward_manager(config_of(recipe), tokenizer).run_single(batch[0:1])


# ---- data ------------------------------------------------------------------------------------------------------------


def test_the_files_through_verls_data_set(tiny: Path, tokenizer: Any, tmp_path: Path) -> None:
    recipe = tiny_recipe(tiny)
    questions = smoke.questions(8)
    write_rows(tmp_path / "train.parquet", questions, "train", "parallel")
    assert check_file(tmp_path / "train.parquet", "parallel", recipe.reward) == 8
    config = config_of(recipe).data
    config.filter_overlong_prompts = False  # the tiny tokenizer has no chat template
    dataset = RLHFDataset(str(tmp_path / "train.parquet"), tokenizer, config)
    assert len(dataset) == 8
    batch = collate_fn([dataset[number] for number in range(8)])
    assert [row["question"] for row in batch["extra_info"]] == [question.question for question in questions]
    assert batch["raw_prompt"][0][0]["content"].endswith(f"Question: {questions[0].question}\n")
    assert len(set(batch["index"].tolist())) == 8


async def test_merged_sets_with_the_same_row_numbers_stay_apart(tiny: Path, tokenizer: Any, tmp_path: Path) -> None:
    """Row 0 of one file and row 0 of the other: the released code made one group of them."""
    recipe = tiny_recipe(tiny)
    for name in ("nq", "hotpotqa"):
        asked = [
            Question(f"Where is {name} number {n}?", ["x"], id=f"train_{n}", dataset=name, kind="single")
            for n in (0, 1)
        ]
        write_rows(tmp_path / f"{name}.parquet", asked, "train", "parallel")
    config = config_of(recipe).data
    config.filter_overlong_prompts = False
    dataset = RLHFDataset([str(tmp_path / "nq.parquet"), str(tmp_path / "hotpotqa.parquet")], tokenizer, config)
    batch = collate_fn([dataset[number] for number in range(len(dataset))])
    assert len(set(batch["index"].tolist())) == 4
    assert sorted({row["id"] for row in batch["extra_info"]}) == ["train_0", "train_1"]


def test_long_prompts_are_left_out_by_verl(tiny: Path, tokenizer: Any, tmp_path: Path) -> None:
    recipe = tiny_recipe(tiny)
    long = Question("Who " + "or who " * 300 + "is older?", ["x"], id="long", dataset="own", kind="parallel")
    write_rows(tmp_path / "train.parquet", [MONET, long], "train", "parallel")
    config = config_of(recipe).data
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    try:
        dataset = RLHFDataset(str(tmp_path / "train.parquet"), tokenizer, config)
    finally:
        tokenizer.chat_template = None
    assert [dataset[number]["extra_info"]["id"] for number in range(len(dataset))] == ["m1"]

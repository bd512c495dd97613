"""A run that is killed at any moment and started again has the metrics of one that was not."""

from __future__ import annotations

import json
import re
import signal
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ranks import Ranks, train_and_die
from tiny_runs import VALUES, curve, demo_search, tiny_model, tiny_recipe

from parallelsearch.errors import UsageError
from parallelsearch.policy import models
from parallelsearch.training import checkpoints, smoke
from parallelsearch.training.metrics import read_metrics
from parallelsearch.training.run import run, train

CHANGES: dict[str, Any] = {"train.steps": 5, "train.save_every": 2, "train.eval_every": 3, "data.num_validation": 8}


def write_recipe(path: Path, out: Path, changes: Mapping[str, Any] = CHANGES) -> Path:
    values: dict[str, dict[str, Any]] = {name: dict(section) for name, section in VALUES.items()}
    for key, value in {**changes, "train.out": str(out)}.items():
        section, name = key.split(".")
        values[section][name] = value
    lines = [
        line
        for section, entries in values.items()
        for line in (f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in entries.items()))
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def steps_done(metrics: Path) -> int:
    if not metrics.exists():
        return 0
    return sum('"loss"' in line for line in metrics.read_text(encoding="utf-8").splitlines())


@pytest.mark.slow
@pytest.mark.timeout(1_500)
def test_kill_9_and_again_gives_the_curve_of_an_uninterrupted_run(tmp_path: Path) -> None:
    whole = write_recipe(tmp_path / "whole.toml", tmp_path / "whole")
    train(whole)
    expected = curve(read_metrics(tmp_path / "whole" / "metrics.jsonl"))
    assert {record["step"] for record in expected} == set(range(6))

    out = tmp_path / "killed"
    recipe = write_recipe(tmp_path / "killed.toml", out)
    metrics = out / "metrics.jsonl"

    # While the second checkpoint is being written (its folder is there, its mark is not): two steps were never saved. The
    # two processes below are killed in the middle of a step.
    second = out / "checkpoints" / "checkpoint-4"
    first = Ranks(recipe, second.name, world=1, work=train_and_die)
    assert first.wait(400) == [-signal.SIGKILL], first.said()[-3000:]
    assert second.exists()
    assert not (second / checkpoints.MARK).exists()
    next(second.glob("*.safetensors")).write_bytes(b"half of it")
    again = Ranks(recipe, world=1)
    assert again.wait(400) == [0], again.said()[-3000:]
    assert "going on from step" in again.said()
    assert curve(read_metrics(metrics)) == expected
    weights = [
        sorted((tmp_path / name / "checkpoints").glob("checkpoint-5/*.safetensors"))[0] for name in ("whole", "killed")
    ]
    assert weights[0].read_bytes() == weights[1].read_bytes()


@pytest.mark.slow
@pytest.mark.timeout(1_500)
def test_two_processes_killed_in_a_step_give_the_curve_of_two_that_were_not(tmp_path: Path) -> None:
    """PPO, because it is GRPO's trainer with a critic to be saved besides."""
    changes = {"train.algorithm": "ppo", "train.steps": 5, "train.save_every": 2, "train.eval_every": 2}
    changes |= {"data.num_validation": 8, "train.updates_per_step": 2, "train.beta": 0.01}

    def recipe_of(name: str) -> Path:
        return write_recipe(tmp_path / f"{name}.toml", tmp_path / name, changes)

    whole = Ranks(recipe_of("whole"))
    assert whole.wait(400) == [0, 0], whole.said()[-4000:]
    expected = curve(read_metrics(tmp_path / "whole" / "metrics.jsonl"))
    assert {record["step"] for record in expected} == set(range(6))

    recipe, metrics = recipe_of("killed"), tmp_path / "killed" / "metrics.jsonl"
    first = Ranks(recipe)
    deadline = time.monotonic() + 400
    while first.are_alive() and steps_done(metrics) < 3:
        assert time.monotonic() < deadline, first.said()[-4000:]
        time.sleep(0.002)
    assert first.are_alive(), first.said()[-4000:]
    first.kill()
    assert not (tmp_path / "killed" / "checkpoints" / "checkpoint-10").exists(), (
        "it was killed too late to show anything"
    )

    again = Ranks(recipe)
    assert again.wait(400) == [0, 0], again.said()[-4000:]
    assert "going on from step" in again.said()
    assert curve(read_metrics(metrics)) == expected
    weights = [tmp_path / name / "checkpoints" / "checkpoint-10" / "model.safetensors" for name in ("whole", "killed")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_only_marked_checkpoints_count(tmp_path: Path) -> None:
    for step in (2, 4, 10, 12):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "model.safetensors").touch()
        if step != 12:
            checkpoints.mark_complete(tmp_path / f"checkpoint-{step}", step // 2)
    assert [step for step, _ in checkpoints.completed(tmp_path)] == [1, 2, 5]
    checkpoints.remove_incomplete(tmp_path)
    assert not (tmp_path / "checkpoint-12").exists()
    checkpoints.rotate(tmp_path, keep=1, best_step=1)
    assert [step for step, _ in checkpoints.completed(tmp_path)] == [1, 5]
    assert checkpoints.completed(tmp_path / "nowhere") == []


def go(out: Path, changes: dict[str, Any], **options: Any) -> Any:
    model, tokenizer = tiny_model()
    recipe = tiny_recipe(out, changes)
    pools, validation = [smoke.questions(60)], smoke.questions(8, seed=9)
    return run(recipe, pools, validation, demo_search(), model=model, tokenizer=tokenizer, with_plot=False, **options)


def test_a_longer_run_continues_a_shorter_one_exactly(tmp_path: Path) -> None:
    changes = {"train.save_every": 2, "train.updates_per_step": 2, "train.beta": 0.05}
    changes |= {"guards.window": 2, "guards.min_split_parallel": 1.0}  # an alarm that rings once, before the cut
    go(tmp_path / "whole", {**changes, "train.steps": 4})
    go(tmp_path / "parts", {**changes, "train.steps": 2})
    result = go(tmp_path / "parts", {**changes, "train.steps": 4})
    assert result.is_finished
    whole, parts = (curve(read_metrics(tmp_path / name / "metrics.jsonl")) for name in ("whole", "parts"))
    assert parts == whole
    assert [record["step"] for record in parts if "serial_collapse" in record.get("alarms", "")] == [2]
    lines: list[str] = []
    assert go(tmp_path / "parts", {**changes, "train.steps": 4}, say=lines.append).step == 4
    assert "done already" in lines[0]


def test_lora_resumes_exactly_with_its_reference(tmp_path: Path) -> None:
    changes = {"train.save_every": 1, "train.beta": 0.05, "model.lora_rank": 4}
    go(tmp_path / "whole", {**changes, "train.steps": 3})
    go(tmp_path / "parts", {**changes, "train.steps": 1})
    go(tmp_path / "parts", {**changes, "train.steps": 3})
    whole, parts = (curve(read_metrics(tmp_path / name / "metrics.jsonl")) for name in ("whole", "parts"))
    assert parts == whole
    assert whole[0]["kl"] == 0.0
    assert whole[2]["kl"] > 0.0


def test_a_time_limit_saves_and_stops(tmp_path: Path) -> None:
    result = go(tmp_path / "run", {"train.steps": 400}, time_limit_s=0.1)
    assert not result.is_finished
    assert result.step == 1
    assert result.last is not None
    again = go(tmp_path / "run", {"train.steps": 400}, time_limit_s=0.1)
    assert again.step == 2


def test_the_best_and_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    changes = {"train.steps": 6, "train.save_every": 1, "train.eval_every": 2, "train.keep_checkpoints": 2}
    result = go(tmp_path / "run", changes)
    kept = [step for step, _ in checkpoints.completed(tmp_path / "run" / "checkpoints")]
    best = json.loads((tmp_path / "run" / "best.json").read_text(encoding="utf-8"))
    records = [record for record in read_metrics(tmp_path / "run" / "metrics.jsonl") if "val/accuracy" in record]
    top = max(record["val/accuracy"] for record in records)
    assert best["accuracy"] == top == result.best_accuracy
    assert best["step"] == max(record["step"] for record in records if record["val/accuracy"] == top)
    assert {5, 6} <= set(kept)
    assert len(kept) <= 3
    if best["step"] > 0:
        assert best["step"] in kept
        assert result.best is not None
        assert (result.best / "model.safetensors").is_file()
        assert (result.best / "tokenizer.json").is_file()


def test_a_run_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    """Settings that did not exist when it began have their defaults."""
    go(tmp_path / "run", {"train.steps": 1})
    path = tmp_path / "run" / checkpoints.MANIFEST
    record = json.loads(path.read_text(encoding="utf-8"))
    del record["rollout"]["vllm_mode"], record["data"]["held_out"]
    path.write_text(json.dumps(record), encoding="utf-8")
    assert go(tmp_path / "run", {"train.steps": 2}).is_finished
    path.write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(UsageError, match=r"rollout\.vllm_mode: 'server' against 'colocate'"):
        go(tmp_path / "run", {"train.steps": 2, "rollout.vllm_mode": "colocate"})


@pytest.mark.parametrize(
    ("algorithm", "wrong"),
    [
        ("grpo", "model.name=/no/such/model"),
        ("ppo", "model.adapter=/no/such/adapter"),
        ("grpo", "data.train=/no/such/questions.jsonl"),
    ],
)
def test_a_start_without_model_or_data_leaves_nothing_behind(tmp_path: Path, algorithm: str, wrong: str) -> None:
    recipe = write_recipe(tmp_path / "r.toml", tmp_path / "run", {"train.algorithm": algorithm, "train.steps": 1})
    folder = tmp_path / "model"
    model, tokenizer = tiny_model()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    with pytest.raises(UsageError, match="/no/such"):
        train(recipe, [f"model.name={folder}", wrong])
    assert not (tmp_path / "run").exists()
    if wrong.startswith("model.name"):  # once is enough: the corrected start is taken
        assert train(recipe, [f"model.name={folder}"]).is_finished


def test_another_recipe_or_model_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    go(tmp_path / "run", {"train.steps": 1})
    with pytest.raises(
        UsageError, match=r"started differently(.|\n)*train\.lr: 0\.004 against 0\.001(.|\n)*train\.out="
    ):
        go(tmp_path / "run", {"train.steps": 2, "train.lr": 1e-3})
    with pytest.raises(UsageError, match=r"model\.name"):
        go(tmp_path / "run", {"train.steps": 2, "model.name": "another"})
    elsewhere = {"train.steps": 2, "search.address": "bm25:other"}
    with pytest.raises(
        UsageError, match=r"search\.address: 'demo' against 'bm25:other'(.|\n)*add: train\.search_moved=true"
    ):
        go(tmp_path / "run", elsewhere)
    recipe = tiny_recipe(tmp_path / "run", {"train.steps": 2})
    with pytest.raises(UsageError, match="questions"):
        run(recipe, [smoke.questions(50)], smoke.questions(8, seed=9), demo_search())
    with pytest.raises(UsageError, match="/no/such/model"):
        train(write_recipe(tmp_path / "r.toml", tmp_path / "other"), ["model.name=/no/such/model"])


def test_a_search_that_only_moved_is_said_to_have_moved(tmp_path: Path) -> None:
    go(tmp_path / "run", {"train.steps": 1})
    moved = {"train.steps": 2, "search.address": "http://other:8000/retrieve", "train.search_moved": True}
    assert go(tmp_path / "run", moved).step == 2
    assert json.loads((tmp_path / "run" / checkpoints.MANIFEST).read_text())["search"]["address"].startswith("http")


def test_an_adapter_knows_the_base_it_was_trained_on(tmp_path: Path) -> None:
    """On another base it warns; one over a base that lies nowhere (an adapter was merged into it) does not name it. Both say
    how they were taught to talk, and the second learned it from the first."""
    tokenizer = smoke.make_tokenizer()
    base, other = tmp_path / "base", tmp_path / "other"
    for folder, seed in ((base, 0), (other, 1)):
        tiny_model(seed=seed)[0].save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    changes = {"model.lora_rank": 4, "train.steps": 1, "model.name": str(base), "rollout.dialect": "sequential"}
    result = train(write_recipe(tmp_path / "recipe.toml", tmp_path / "run", changes))
    assert result.last is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert models.check_adapter(models.ModelSpec("base", base, result.last))
    with pytest.warns(models.AdapterMismatchWarning, match=re.escape(f"('{base}')")):
        assert not models.check_adapter(models.ModelSpec("other", other, result.last))
    assert models.dialect_of(models.ModelSpec("base", base, result.last)) == "sequential"
    del changes["rollout.dialect"]
    merging = {**changes, "model.adapter": str(result.last), "model.merge_adapter": True}
    second = train(write_recipe(tmp_path / "second.toml", tmp_path / "second", merging))
    assert second.last is not None
    assert (second.last / "adapter_config.json").is_file()
    assert json.loads((second.last / "parallelsearch.json").read_text()) == {"dialect": "sequential"}

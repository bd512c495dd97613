"""Cluster recipes without verl: they load, mistakes are named, and what verl is told follows from them."""

from __future__ import annotations

import inspect
import json
import py_compile
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from parallelsearch.cli.app import app
from parallelsearch.config import parse
from parallelsearch.errors import MissingExtraError, ParallelSearchError, UsageError
from parallelsearch.training.recipe import Recipe
from parallelsearch.training.verl import installed, launch
from parallelsearch.training.verl.overrides import hydra_value, verl_overrides
from parallelsearch.training.verl.recipe import VerlRecipe, is_cluster_recipe, load_cluster_recipe

FOLDER = Path(__file__).parents[2] / "recipes"
RECIPES = sorted(FOLDER.glob("verl-*.toml"))


def told(recipe: VerlRecipe) -> dict[str, str]:
    return dict(line.split("=", 1) for line in verl_overrides(recipe))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_shipped_recipes_load_and_say_whether_they_were_run(path: Path) -> None:
    assert is_cluster_recipe(path)
    recipe = load_cluster_recipe(path)
    assert recipe.out.name == path.stem
    text = path.read_text(encoding="utf-8")
    assert ("Run on an H200" in text) == (recipe.verl.num_gpus == 1)
    assert ("Not run where this was written" in text) == (recipe.verl.num_gpus > 1)


def test_the_named_recipes_are_there() -> None:
    names = {
        "135m-1gpu",
        "135m-1gpu-ppo",
        "7b-grpo",
        "7b-ppo-paper",
        "3b-2gpu",
        "32b-2nodes",
        "7b-colocate-async",
        "7b-separate-async",
    }
    assert {path.stem for path in RECIPES} == {f"verl-{name}" for name in names}


def test_the_extra_names_no_trl() -> None:
    """verl 0.9.1 fails while it builds a model where TRL 1.16 is installed."""
    project = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]

    def named(extra: str) -> set[str]:
        found = set()
        for line in extras[extra]:
            inner = re.match(r"parallelsearch\[([\w,-]+)\]", line)
            found |= set().union(*map(named, inner[1].split(","))) if inner else {re.split(r"[^\w.-]", line)[0].lower()}
        return found

    assert "trl" in named("train")
    assert "trl" not in named("verl")
    pins = (FOLDER.parent / "constraints-verl.txt").read_text(encoding="utf-8").lower()
    assert "\nverl==" in pins
    assert "\ntrl==" not in pins


def test_attention_without_flash_attn() -> None:
    """What verl asks of FlashAttention unless it is told otherwise: packed rows, its cross entropy, the critic's loader."""
    changes = {"train.algorithm": "ppo", "train.samples_per_question": 1}
    plain = told(load_cluster_recipe(FOLDER / "verl-135m-1gpu-ppo.toml", changes))
    for section in ("actor_rollout_ref.model", "critic.model"):
        assert plain[f"{section}.use_remove_padding"] == "False"
        assert plain[f"+{section}.override_config.attn_implementation"] == "sdpa"
    assert plain["actor_rollout_ref.model.use_fused_kernels"] == "True"
    hook = "+ray_kwargs.ray_init.runtime_env.env_vars.VERL_USE_EXTERNAL_MODULES"
    assert plain[hook] == "parallelsearch.training.verl.critic"
    flash = told(
        load_cluster_recipe(FOLDER / "verl-135m-1gpu-ppo.toml", {**changes, "model.attention": "flash_attention_2"})
    )
    assert flash["actor_rollout_ref.model.use_remove_padding"] == flash["critic.model.use_remove_padding"] == "True"
    assert flash["actor_rollout_ref.model.use_fused_kernels"] == "False"
    assert hook not in flash


def test_the_papers_values() -> None:
    """Appendix A.4 of arXiv 2508.09303, and the released script where it is silent."""
    keys = told(load_cluster_recipe(FOLDER / "verl-7b-ppo-paper.toml"))
    actor, critic = "actor_rollout_ref.actor", "critic"
    expected = {
        "algorithm.adv_estimator": "gae",
        "algorithm.gamma": "1.0",
        "algorithm.lam": "1.0",
        "algorithm.use_kl_in_reward": "True",
        "algorithm.kl_ctrl.kl_coef": "0.001",
        "data.train_batch_size": "512",
        f"{actor}.ppo_mini_batch_size": "256",
        f"{actor}.optim.lr": "1e-06",
        f"{actor}.optim.lr_warmup_steps_ratio": "0.285",
        f"{critic}.optim.lr": "1e-05",
        f"{critic}.optim.lr_warmup_steps_ratio": "0.015",
        f"{critic}.cliprange_value": "0.5",
        f"{actor}.clip_ratio": "0.2",
        f"{actor}.entropy_coeff": "0.001",
        f"{actor}.loss_agg_mode": "token-mean",
        f"{actor}.use_kl_loss": "False",
        "actor_rollout_ref.rollout.n": "1",
        "actor_rollout_ref.rollout.temperature": "1.0",
        "actor_rollout_ref.rollout.gpu_memory_utilization": "0.6",
        "actor_rollout_ref.rollout.tensor_model_parallel_size": "1",
        "trainer.total_training_steps": "500",
        "trainer.n_gpus_per_node": "8",
        "+parallelsearch.rollout.max_turns": "4",
        "+parallelsearch.rollout.max_tokens_per_turn": "500",
        "+parallelsearch.rollout.max_observation_tokens": "500",
        "+parallelsearch.search.k": "3",
        "+reward.custom_reward_function.reward_kwargs.preset": "paper",
        "+reward.custom_reward_function.reward_kwargs.decomposition": "0.15",
        "+reward.custom_reward_function.reward_kwargs.search_count": "0.35",
    }
    assert {key: keys[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("train.learning_rate=1", ["unknown key 'train.learning_rate'"]),
        ("verl.gpus_per_nodes=8", ["'gpus_per_node'"]),
        ("train.samples_per_question=1", ["at least 2 for grpo"]),
        ("train.updates_per_step=3", ["must divide"]),
        ("verl.gpus_per_node=3", ["2560 trajectories", "3 GPUs evenly"]),
        ("verl.tensor_parallel=3", ["tensor_parallel", "must divide"]),
        ("verl.trainer=separate_async", ["rollout_nodes"]),
        ("verl.rollout_nodes=1", ["separate_async"]),
        ("verl.max_prompt_tokens=6144", ["leaves nothing"]),
        ("train.micro_batch_tokens=1024", ["micro_batch_tokens", "max_tokens"]),
        ("rollout.top_p=0.9", ["whole vocabulary"]),
        ("train.algorithm=sft", ["verl has no 'sft'"]),
        ("train.lr_schedule=linear", ["verl has no 'linear'"]),
        ("train.scale_rewards=batch", ["verl has no 'batch'"]),
        ("data.validation=[]", ["'data.validation' is missing"]),
        ("rollout.engine=slot", ["unknown key 'rollout.engine'"]),
        ("reward.preset=papper", ["'paper'"]),
    ],
)
def test_mistakes_are_named(change: str, words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        load_cluster_recipe(FOLDER / "verl-7b-grpo.toml", [change])
    for word in words:
        assert word in str(caught.value)


def test_a_recipe_for_one_machine_is_not_for_a_cluster(tmp_path: Path) -> None:
    assert not is_cluster_recipe(FOLDER / "cpu-smoke.toml")
    assert not is_cluster_recipe(tmp_path / "nothing.toml")


def test_own_overrides_win_and_paths_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    changes = {
        "verl.overrides": {"actor_rollout_ref.actor.clip_ratio": 0.3, "+trainer.note": "a b"},
        "search.address": "bm25:indexes/wiki",
        "data.train": ["one.parquet", "s3://bucket/two.parquet"],
    }
    lines = verl_overrides(load_cluster_recipe(FOLDER / "verl-7b-grpo.toml", changes))
    keys = dict(line.split("=", 1) for line in lines)
    assert keys["actor_rollout_ref.actor.clip_ratio"] == "0.3"
    assert len(keys) == len(lines), "no key twice"
    assert keys["+trainer.note"] == "'a b'"
    assert keys["+parallelsearch.search.address"] == f"bm25:{tmp_path}/indexes/wiki"
    assert keys["data.train_files"] == f"[{tmp_path}/one.parquet,s3://bucket/two.parquet]"
    assert keys["trainer.default_local_dir"] == f"{tmp_path}/runs/verl-7b-grpo/checkpoints"


@pytest.mark.parametrize(
    ("address", "whole"),
    [
        ("milvus:corpus.db", "milvus:{here}/corpus.db"),
        ("milvus:http://milvus:19530", "milvus:http://milvus:19530"),
        ("replay:searches.jsonl", "replay:{here}/searches.jsonl"),
        ("http://one:8000/retrieve", "http://one:8000/retrieve"),
        ("mcp:uvx server", "mcp:uvx server"),
        ("demo", "demo"),
    ],
)
def test_a_worker_in_another_folder_finds_search_and_cache(
    address: str, whole: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    changes = {"search.address": address, "search.cache": "searches.sqlite"}
    own = told(load_cluster_recipe(FOLDER / "verl-7b-grpo.toml", changes))
    assert own["+parallelsearch.search.address"] == hydra_value(whole.format(here=tmp_path))
    assert own["+parallelsearch.search.cache"] == f"{tmp_path}/searches.sqlite"


def test_a_worker_in_another_folder_finds_what_is_ones_own(own_folder: Path) -> None:
    (own_folder / "mine.py").write_text("def frugal(trajectory): return 0.0\ndef look_up(query): return []")
    recipe = FOLDER / "verl-7b-grpo.toml"
    kwargs = "+reward.custom_reward_function.reward_kwargs"
    keys = told(load_cluster_recipe(recipe, {"reward.preset": "mine:frugal"}))
    assert keys[f"{kwargs}.preset"] == "mine:frugal"
    assert keys[f"{kwargs}.folder"] == str(own_folder)
    assert len(keys[f"{kwargs}.sha256"]) == 64
    assert keys["+parallelsearch.has_own_reward"] == "True"
    assert "+parallelsearch.folder" not in keys
    keys = told(load_cluster_recipe(recipe, {"search.address": "all:demo|python:mine:look_up"}))
    assert keys["+parallelsearch.folder"] == str(own_folder)
    assert keys["+parallelsearch.has_own_reward"] == "False"
    assert not {f"{kwargs}.folder", f"{kwargs}.sha256"} & keys.keys()


@pytest.mark.parametrize("section", ["model", "data", "train", "rollout", "reward", "ppo", "search"])
def test_a_key_of_both_recipes_is_declared_once(section: str) -> None:
    """Both classes of a section get its shared keys, and with them the defaults, from one class."""
    here, cluster = (kind.model_fields[section].annotation for kind in (Recipe, VerlRecipe))
    assert here is not None
    assert cluster is not None
    for name in here.model_fields.keys() & cluster.model_fields.keys():
        homes = [[one for one in kind.__mro__ if name in inspect.get_annotations(one)] for kind in (here, cluster)]
        assert homes[0] == homes[1], name
        assert here.model_fields[name].default == cluster.model_fields[name].default, name


def test_what_the_algorithms_and_trainers_add() -> None:
    grpo = told(load_cluster_recipe(FOLDER / "verl-7b-grpo.toml"))
    assert not any(key.startswith("critic.") for key in grpo)
    lora = told(load_cluster_recipe(FOLDER / "verl-7b-grpo.toml", {"model.lora_rank": 16}))
    assert lora["actor_rollout_ref.model.lora_alpha"] == "32"
    separate = told(load_cluster_recipe(FOLDER / "verl-7b-separate-async.toml"))
    assert separate["trainer.v1.separate_async.parameter_sync_step"] == "4"
    mini = int(separate["actor_rollout_ref.actor.ppo_mini_batch_size"])
    assert 4 * mini == int(separate["data.train_batch_size"]), "what verl's separate trainer asks for"


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "null"), (True, "True"), (1e-6, "1e-06"), ("a", "a"), ("null", "'null'"), ("1e3", "'1e3'"), ("", "''")],
)
def test_values_as_hydra_reads_them(value: Any, text: str) -> None:
    assert hydra_value(value) == text


def test_the_page_knows_every_recipe_and_its_script_is_one() -> None:
    page = (FOLDER.parent / "docs" / "cluster.md").read_text(encoding="utf-8")
    assert [path.stem for path in RECIPES if f"`{path.stem}`" not in page] == []
    (script,) = re.findall(r"```bash\n(#!/bin/bash\n.*?)```", page, re.S)
    assert subprocess.run(["bash", "-n"], input=script, text=True, timeout=400, check=False).returncode == 0


def test_the_tested_version_is_the_one_the_extra_asks_for() -> None:
    project = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"verl=={installed.TESTED}" in project["optional-dependencies"]["verl"]
    assert f"\nverl=={installed.TESTED}\n" in (FOLDER.parent / "constraints-verl.txt").read_text(encoding="utf-8")


# ---- launching -------------------------------------------------------------------------------------------------------


def demo_recipe(tmp_path: Path, **changes: Any) -> VerlRecipe:
    values = {"search.address": "demo", "train.out": str(tmp_path / "run"), **changes}
    return load_cluster_recipe(FOLDER / "verl-7b-grpo.toml", values)


def test_the_command_can_be_typed(tmp_path: Path) -> None:
    recipe = demo_recipe(tmp_path, **{"verl.overrides": {"+trainer.note": 'it\'s "here", $HOME'}})
    shown = launch.shown(launch.command(recipe))
    assert shlex.split(shown.replace("\\\n", "")) == launch.command(recipe)


def test_a_retriever_that_is_down_is_found_out(tmp_path: Path) -> None:
    recipe = demo_recipe(tmp_path, **{"search.address": "http://127.0.0.1:9/retrieve", "search.timeout_s": 3.0})
    with pytest.raises(ParallelSearchError, match=r"does not answer.*serve search"):
        launch.check_search(recipe)
    launch.check_search(demo_recipe(tmp_path))


def test_nodes_that_each_need_a_server_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    recipe = demo_recipe(tmp_path, **{"search.address": "http://localhost:8000/retrieve", "verl.num_nodes": 2})
    first, second = launch.notes(recipe)
    assert "each of the 2 nodes" in first
    assert "ray start" in second
    assert launch.notes(demo_recipe(tmp_path)) == []


def test_a_start_that_would_compile_every_package_in_every_process_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "verl").mkdir()
    source = tmp_path / "verl" / "__init__.py"
    source.touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "verl", raising=False)
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    recipe = demo_recipe(tmp_path)
    (note,) = launch.notes(recipe)
    assert "PYTHONDONTWRITEBYTECODE" in note
    assert "python -m compileall" in note
    assert py_compile.compile(str(source))
    assert launch.notes(recipe) == []
    assert launch.is_compiled("no_such_package")


def test_verl_missing_or_of_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "version", lambda: None)
    with pytest.raises(MissingExtraError, match=r"not installed.*0\.9\.1.*pip install"):
        launch.launch(demo_recipe(tmp_path), lambda line: None)
    monkeypatch.setattr(installed, "version", lambda: "0.10.0")
    with pytest.raises(UsageError, match=r"0\.10\.0 is installed; tested is 0\.9\.1.*any_version"):
        launch.launch(demo_recipe(tmp_path), lambda line: None)
    installed.check_version(any_version=True)


def test_too_few_questions_for_a_step(tmp_path: Path) -> None:
    from parallelsearch.training import smoke
    from parallelsearch.training.verl.rows import write_rows

    for name in ("train", "validation"):
        write_rows(tmp_path / f"{name}.parquet", smoke.questions(8), name, "parallel")
    files = {f"data.{name}": str(tmp_path / f"{name}.parquet") for name in ("train", "validation")}
    with pytest.raises(UsageError, match=r"8 questions, fewer than one step takes.*512"):
        launch.check_data(demo_recipe(tmp_path, **files))
    launch.check_data(demo_recipe(tmp_path, **files, **{"train.questions_per_step": 8}))


def test_a_recipe_without_a_retriever_is_refused() -> None:
    with pytest.raises(UsageError, match="'search' is missing"):
        parse({"model": {"name": "x"}}, VerlRecipe)


# ---- commands --------------------------------------------------------------------------------------------------------


def test_options_that_do_not_fit_a_recipe_are_refused() -> None:
    runner = CliRunner()
    result = runner.invoke(app, ["train", str(FOLDER / "cpu-smoke.toml"), "--dry-run"])
    assert "has no [verl] section" in str(result.exception)
    result = runner.invoke(app, ["train", str(FOLDER / "verl-7b-grpo.toml"), "--time-limit-s", "60"])
    assert "one machine" in str(result.exception)


def test_data_for_verl_from_a_file_and_a_set(tmp_path: Path) -> None:
    lines = [
        {"question": f"Is {n} more than {n + 1}?", "golden_answers": ["no"], "kind": "parallel"} for n in range(12)
    ]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    arguments = [
        "data",
        "verl",
        f"{tmp_path / 'own.jsonl'},smoke",
        "--out",
        str(tmp_path / "out"),
        "--num-validation",
        "20",
    ]
    result = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    counts = json.loads(result.stdout)
    assert counts[str(tmp_path / "out/validation.parquet")] == 20
    assert sum(counts.values()) == 612
    recipe = demo_recipe(
        tmp_path, **{f"data.{name}": str(tmp_path / f"out/{name}.parquet") for name in ("train", "validation")}
    )
    launch.check_data(recipe)
    refused = CliRunner().invoke(app, [*arguments, "--reward", "gatted"])
    assert "'gated'" in str(refused.exception)

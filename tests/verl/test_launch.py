"""Recipes, launch and export against the installed verl: its own verdict on every override, its own checkpoints."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from cluster_runs import MONET, config_of, tiny_recipe
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from typer.testing import CliRunner

from conftest import RECIPES
from parallelsearch.cli.app import app
from parallelsearch.errors import ParallelSearchError, UsageError
from parallelsearch.training import smoke
from parallelsearch.training.verl import installed, launch
from parallelsearch.training.verl.export import export, find_checkpoint
from parallelsearch.training.verl.overrides import CRITIC_MODULE, verl_overrides
from parallelsearch.training.verl.recipe import load_cluster_recipe
from parallelsearch.training.verl.rows import write_rows

HERE = Path(__file__).parent


def invoke(*arguments: str) -> str:
    """A command in this process, which has imported verl already; what it prints."""
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


# ---- recipes ---------------------------------------------------------------------------------------------------------


def test_the_extra_brings_no_trl() -> None:
    """All that the extra needs, as it is installed here, and what that needs in turn."""
    wanted, found = [("parallelsearch", frozenset({"verl"}))], set()
    while wanted:
        name, extras = wanted.pop()
        if (name, extras) in found:
            continue
        found.add((name, extras))
        try:
            lines = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # another platform's
        for line in lines:
            needed = Requirement(line)
            marker = needed.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in (*extras, "")):
                wanted.append((canonicalize_name(needed.name), frozenset(needed.extras)))
    names = {name for name, _ in found}
    assert {"verl", "ray", "transformers", "datasets", "accelerate", "peft", "torch", "pyarrow"} <= names
    assert "trl" not in names
    assert importlib.util.find_spec("trl") is None


def test_the_critic_is_loaded_without_flash_attn(tiny: Path) -> None:
    """In a process that verl's own variable prepares, as each of its workers is."""
    code = (
        "import sys, torch, verl; from transformers import AutoConfig; from verl.utils.model import load_valuehead_model as load; "
        "config = AutoConfig.from_pretrained(sys.argv[1], attn_implementation='sdpa'); config.num_labels = 1; "
        "model = load(sys.argv[1], torch.float32, config, False); "
        "print(type(model).__name__, model.config._attn_implementation, model(torch.tensor([[5, 6, 7]])).logits.shape)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tiny)],
        env={**os.environ, "VERL_USE_EXTERNAL_MODULES": CRITIC_MODULE},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert "LlamaForTokenClassification sdpa torch.Size([1, 3, 1])" in done.stdout, done.stderr


def test_fused_log_probabilities_are_the_plain_ones(tiny: Path) -> None:
    """verl's fused head replaces a class's `forward`, so in a process of its own; rows are padded as in training."""
    done = subprocess.run(
        [sys.executable, str(HERE / "fused_head.py"), str(tiny)], capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr
    worst, gradient = map(float, done.stdout.split()[-2:])
    assert worst < 1e-5
    assert gradient < 1e-4


def test_the_tested_version_is_the_installed_one() -> None:
    installed.check_version()
    assert installed.version() == installed.TESTED


@pytest.mark.parametrize("path", sorted(RECIPES.glob("verl-*.toml")), ids=lambda path: path.stem)
def test_verl_accepts_every_recipe(path: Path, tiny: Path) -> None:
    """Composed, validated, and taken by the trainer it is for, whose constructor has rules of its own."""
    from verl.trainer.ppo.v1 import get_trainer_cls

    config = installed.check_overrides(verl_overrides(load_cluster_recipe(path, {"model.name": str(tiny)})))
    trainer = get_trainer_cls(config.trainer.v1.trainer_mode)(config=config)
    recipe = load_cluster_recipe(path)
    assert trainer.use_critic == (recipe.train.algorithm == "ppo")
    assert trainer.use_reference_policy == (recipe.train.beta > 0)
    assert config.parallelsearch.search.address == recipe.search.address


@pytest.mark.parametrize(
    "changes",
    [
        {"verl.engine": "sglang"},
        {"verl.engine": "sglang", "model.lora_rank": 16},  # with vLLM, verl asks vLLM itself which ranks it takes
        {"train.algorithm": "ppo"},
        {"train.beta": 0.0, "train.loss_type": "dr_grpo", "train.scale_rewards": "none"},
        {"train.lr_schedule": "cosine", "verl.offload": True, "model.template": "base"},
    ],
)
def test_verl_accepts_what_a_recipe_can_say(tiny: Path, changes: dict[str, Any]) -> None:
    config_of(tiny_recipe(tiny, changes))


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "http://h:8000/retrieve,http://i:8000/retrieve",
        "it's",
        'a "b"',
        "a\\",
        "a,b=[c]{d}",
        "null",
        "$x",
        "1e5",
    ],
)
def test_texts_come_through_hydra_as_they_are(tiny: Path, text: str) -> None:
    recipe = tiny_recipe(tiny, {"verl.overrides": {"+parallelsearch.note": text, "+parallelsearch.notes": [text, 1]}})
    from omegaconf import OmegaConf

    own = OmegaConf.to_container(installed.compose(verl_overrides(recipe)).parallelsearch, resolve=False)
    assert own["note"] == text
    assert own["notes"] == [text, 1]


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("actor_rollout_ref.actor.clip_ration", "actor_rollout_ref.actor.clip_ratio"),
        ("actor_rollout_ref.rollout.clip_ratio", "actor_rollout_ref.actor.clip_ratio"),
        ("trainer.nodes", "trainer.nnodes"),
    ],
)
def test_a_key_verl_does_not_know_is_named_with_the_nearest(tiny: Path, key: str, nearest: str) -> None:
    with pytest.raises(UsageError) as caught:
        config_of(tiny_recipe(tiny, {"verl.overrides": {key: 1}}))
    assert f"knows no key '{key}'. Did you mean '{nearest}'?" in str(caught.value)


def test_a_value_verl_refuses(tiny: Path) -> None:
    with pytest.raises(UsageError, match="verl does not accept this recipe"):
        config_of(tiny_recipe(tiny, {"verl.overrides": {"actor_rollout_ref.actor.loss_agg_mode": "median"}}))


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ParallelSearchError, match="cannot read the model") as caught:
        config_of(tiny_recipe(tmp_path / "nothing", {"train.algorithm": "ppo"}))
    assert not isinstance(caught.value, UsageError), "a dry run goes on without the model"


# ---- launch ----------------------------------------------------------------------------------------------------------


def write_nvidia_smi(folder: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands in for the driver's program where there is no GPU: so many idle ones."""
    lines = "".join(f"{number}, GPU-{number}, 4, 81559\\n" for number in range(count))
    folder.mkdir()
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\nprintf '{lines}'\n")
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def arguments(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Data in the working folder, and the changes that make a shipped recipe fit a machine without GPUs."""
    monkeypatch.chdir(tmp_path)
    write_nvidia_smi(tmp_path / "bin", 8, monkeypatch)
    for name in ("train", "validation"):
        write_rows(tmp_path / "data/verl" / f"{name}.parquet", smoke.questions(8), name, "parallel")
    changes = [f"model.name={tiny}", "search.address=demo", "train.questions_per_step=8"]
    return [str(RECIPES / "verl-7b-grpo.toml"), *changes]


def test_a_dry_run_prints_the_command_and_starts_nothing(arguments: list[str]) -> None:
    printed = invoke("train", *arguments, "--dry-run")
    assert "-m verl.trainer.main_ppo" in printed
    listed = json.loads(invoke("train", *arguments, "--dry-run", "--json").splitlines()[-1])
    assert listed[1:3] == ["-m", "verl.trainer.main_ppo"]
    assert not Path("runs").exists()


def test_a_dry_run_says_what_is_not_ready(arguments: list[str]) -> None:
    recipe = load_cluster_recipe(
        arguments[0], [*arguments[1:], "search.address=http://127.0.0.1:9", "data.train=x.parquet"]
    )
    said: list[str] = []
    launch.dry_run(recipe, said.append)
    assert [line.split(":")[0] for line in said] == ["not ready"] * 2
    assert "no file 'x.parquet'" in said[0]
    assert "does not answer" in said[1]


def test_a_wrong_key_stops_even_a_dry_run(arguments: list[str]) -> None:
    """The one command in a process of its own: status 2, no traceback."""
    line = ["train", *arguments, 'verl.overrides={"trainer.nodes" = 2}', "--dry-run"]
    result = subprocess.run(
        [sys.executable, "-m", "parallelsearch", *line], capture_output=True, text=True, timeout=400
    )
    assert result.returncode == 2
    assert "Did you mean 'trainer.nnodes'?" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model.name": "models/nothing"}, "model.name: 'models/nothing' is no folder here"),
        ({"model.adapter": "nothing"}, "model.adapter: the folder 'nothing' does not exist"),
        ({"model.attention": "flash_attention_2"}, "needs the package flash-attn"),
        ({"verl.gpus_per_node": 10}, "verl.gpus_per_node is 10, and GPUs that can be used here are 8"),
    ],
)
def test_what_verl_would_find_out_late_is_found_out_before_ray_starts(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], words: str
) -> None:
    monkeypatch.setattr(subprocess, "Popen", _only_nvidia_smi(subprocess.Popen))
    recipe = load_cluster_recipe(arguments[0], [*arguments[1:], *(f"{key}={value}" for key, value in changes.items())])
    with pytest.raises(ParallelSearchError) as caught:
        launch.launch(recipe, lambda line: None)
    assert words in str(caught.value)
    assert not Path("runs").exists()


def _only_nvidia_smi(popen: Any) -> Any:
    def start(command: Any, *rest: Any, **options: Any) -> Any:
        assert command[0] == "nvidia-smi", f"{command[:3]} was started"
        return popen(command, *rest, **options)

    return start


def test_nothing_is_started_while_the_retriever_is_down(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("verl was started"))
    recipe = load_cluster_recipe(arguments[0], [*arguments[1:], "search.address=http://127.0.0.1:9/retrieve"])
    with pytest.raises(ParallelSearchError, match="does not answer"):
        launch.launch(recipe, lambda line: None)
    assert not Path("runs").exists()


def test_a_launch_runs_the_command_and_passes_its_status_on(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = load_cluster_recipe(arguments[0], arguments[1:])
    monkeypatch.setattr(launch, "command", lambda recipe: [sys.executable, "-c", "raise SystemExit(7)"])
    with pytest.raises(ParallelSearchError, match=r"status 7.*checkpoints"):
        launch.launch(recipe, lambda line: None)
    assert (recipe.out / "command.sh").read_text().startswith(sys.executable)


def test_verls_entry_point_takes_the_command(arguments: list[str]) -> None:
    """Hydra's `--cfg job` composes the whole command line as a start would, and prints it instead of training."""
    line = launch.command(load_cluster_recipe(arguments[0], arguments[1:]))
    result = subprocess.run([*line, "--cfg", "job"], capture_output=True, text=True, timeout=400)
    assert result.returncode == 0, result.stderr
    assert "default_agent_loop: parallel_search" in result.stdout
    assert "path: pkg://parallelsearch.training.verl.reward" in result.stdout


# ---- export ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two processes shard the model and have verl's own manager save it: `plain` with all weights, `lora` with an adapter."""
    folder = tmp_path_factory.mktemp("runs")
    arguments = ["--standalone", "--nproc_per_node", "2", str(HERE / "save_checkpoint.py"), str(tiny), str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    return folder


def logits_of(address: str, ids: list[int]) -> Any:
    from parallelsearch.policy.local import LocalPolicy

    policy = LocalPolicy.from_address(address.removeprefix("hf:"), device="cpu")
    try:
        with torch.no_grad():
            return policy.model(torch.tensor([ids])).logits[0]
    finally:
        policy.engine.close()


def test_a_checkpoint_becomes_a_model_that_ask_takes(
    tiny: Path, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(saved / "plain", "runs/verl-7b-grpo/checkpoints")
    # The example in the command's help, as it stands there.
    assert "--policy hf:trained" in invoke("export", "runs/verl-7b-grpo", "trained")
    ids = list(range(20, 60))
    torch.testing.assert_close(logits_of("hf:trained", ids), logits_of(f"hf:{tiny}", ids), atol=0.03, rtol=0.03)
    asked = invoke("ask", "--force-answer", MONET.question, "--policy", "hf:trained", "--json")
    assert json.loads(asked.splitlines()[-1])["stop"] == "answer"
    with pytest.raises(UsageError, match="is there already"):
        export("runs/verl-7b-grpo", "trained")


def test_a_lora_checkpoint_becomes_an_adapter(tiny: Path, saved: Path, tmp_path: Path) -> None:
    done = export(saved / "lora" / "global_step_4", tmp_path / "trained")
    assert done.adapter == tmp_path / "trained/lora_adapter"
    assert done.address == f"hf:{done.folder}+{done.adapter}"
    ids = list(range(20, 60))
    base, trained = logits_of(f"hf:{done.folder}", ids), logits_of(done.address, ids)
    torch.testing.assert_close(base, logits_of(f"hf:{tiny}", ids), atol=0.03, rtol=0.03)
    assert (trained - base).abs().max() > 0.1, "the adapter does something"


def test_half_a_checkpoint_is_refused(tmp_path: Path) -> None:
    actor = tmp_path / "global_step_8" / "actor"
    actor.mkdir(parents=True)
    (actor / "fsdp_config.json").write_text('{"FSDP_version": 2, "world_size": 16}')
    (actor / "model_world_size_16_rank_0.pt").write_bytes(b"x")
    (tmp_path / "global_step_10").mkdir()
    with pytest.raises(UsageError, match="not a whole FSDP checkpoint"):
        find_checkpoint(tmp_path)
    (tmp_path / "global_step_10").rmdir()
    with pytest.raises(UsageError, match=r"lacks 15 of 16 shards.*other nodes"):
        export(tmp_path, tmp_path / "out")
    (actor / "fsdp_config.json").unlink()
    (actor / "dist_ckpt").mkdir()
    with pytest.raises(UsageError, match="Megatron"):
        find_checkpoint(tmp_path)
    with pytest.raises(UsageError, match="holds no checkpoint"):
        find_checkpoint(actor / "dist_ckpt")


def test_a_damaged_shard_leaves_nothing_behind(tiny: Path, tmp_path: Path) -> None:
    actor = tmp_path / "global_step_1" / "actor"
    actor.mkdir(parents=True)
    (actor / "fsdp_config.json").write_text('{"FSDP_version": 2, "world_size": 1}')
    (actor / "model_world_size_1_rank_0.pt").write_bytes(b"not a checkpoint")
    (actor / "huggingface").symlink_to(tiny)
    with pytest.raises(ParallelSearchError, match="cannot be merged"):
        export(tmp_path, tmp_path / "out")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["global_step_1"]

"""What is looked at before Ray starts, without verl: model folders, adapters, GPUs as the driver lists them."""

from __future__ import annotations

from pathlib import Path

import pytest

from parallelsearch.errors import MissingExtraError, ParallelSearchError, UsageError
from parallelsearch.training.verl import ready
from parallelsearch.training.verl.recipe import VerlRecipe, load_cluster_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "verl-135m-1gpu.toml"
LISTED = "0, GPU-aa11, 4, 81559\n1, GPU-bb22, 70000, 81559\n2, GPU-cc33, 4, 81559\n"


def recipe(*changes: str) -> VerlRecipe:
    return load_cluster_recipe(RECIPE, changes)


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of the driver's name that lists three GPUs, the second of them busy."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\ncat <<'END'\n{LISTED}END\n")
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def model_folder(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_text("{}")
    return folder


def test_a_model_folder_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(
        UsageError, match=r"model\.name: there is no model folder '/nothing/here'.*parallelsearch export"
    ):
        ready.check_model(recipe("model.name=/nothing/here"))
    with pytest.raises(ParallelSearchError, match=r"'runs/model' is no folder here and not in the hub's local cache"):
        ready.check_model(recipe("model.name=runs/model"))


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ([], "is not a model folder: no config.json"),
        (["adapter_config.json"], "holds an adapter, not a model"),
        (["config.json", "tokenizer.json"], "has no weights"),
        (["config.json", "model.safetensors"], "has no tokenizer"),
    ],
)
def test_half_a_model_folder_is_refused(tmp_path: Path, names: list[str], words: str) -> None:
    folder = model_folder(tmp_path / "model", *names)
    with pytest.raises(UsageError) as caught:
        ready.check_model(recipe(f"model.name={folder}"))
    assert words in str(caught.value)


def test_a_whole_model_and_its_adapter(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model", "config.json", "tokenizer.json", "model-00001-of-00002.safetensors")
    ready.check_model(recipe(f"model.name={folder}"))
    for adapter, words in ((tmp_path / "none", "does not exist"), (folder, "has no adapter_config.json")):
        with pytest.raises(UsageError, match=f"model.adapter: .*{words}"):
            ready.check_model(recipe(f"model.name={folder}", f"model.adapter={adapter}"))
    ready.check_model(
        recipe(f"model.name={folder}", f"model.adapter={model_folder(tmp_path / 'a', 'adapter_config.json')}")
    )


def test_flash_attention_needs_its_package() -> None:
    ready.check_attention(recipe())
    with pytest.raises(MissingExtraError, match="pip install flash-attn"):
        ready.check_attention(recipe("model.attention=flash_attention_2"))


@pytest.mark.parametrize(
    ("devices", "seen"),
    [
        (None, ["0", "1", "2"]),
        ("2,0", ["2", "0"]),
        ("GPU-bb", ["1"]),
        ("0,7,2", ["0"]),  # CUDA stops at the first it does not know
        ("", []),
        ("-1", []),
    ],
)
def test_what_cuda_visible_devices_leaves(devices: str | None, seen: list[str]) -> None:
    assert [gpu.index for gpu in ready.visible(ready.parse_gpus(LISTED), devices)] == seen


@pytest.mark.usefixtures("driver")
def test_gpus_are_counted_and_must_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    two = "verl.gpus_per_node=2"
    ready.check_gpus(recipe(two))
    with pytest.raises(ParallelSearchError, match=r"gpus_per_node is 4, and GPUs that can be used here are 3"):
        ready.check_gpus(recipe("verl.gpus_per_node=4"))
    with pytest.raises(ParallelSearchError, match=r"2 of 3 GPUs have that free.*GPU 1: 70,000 of 81,559 MiB in use"):
        ready.check_gpus(recipe("verl.gpus_per_node=3", "train.questions_per_step=48"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with pytest.raises(ParallelSearchError, match=r"takes 40% of a GPU's memory"):
        ready.check_gpus(recipe())
    ready.check_gpus(recipe("verl.gpu_memory_share=0.1"))
    monkeypatch.setenv("RAY_ADDRESS", "local")  # Ray's own word for: start one here
    ready.check_gpus(recipe("verl.gpu_memory_share=0.1"))


def test_no_driver_is_no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert ready.all_gpus() == []
    with pytest.raises(ParallelSearchError, match=r"GPUs that can be used here are 0"):
        ready.check_gpus(recipe())

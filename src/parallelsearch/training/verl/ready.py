"""What must be there before Ray is started: the model's files, the adapter's, attention, and GPUs with enough room.

verl finds each of them out for itself, but only after a minute or more, inside a Ray actor, with a stack of tracebacks. Here
they are looked at in a second and named with what to type. Nothing is loaded, and no CUDA context is made: this process lives
as long as the run and would hold the memory.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from parallelsearch.errors import MissingExtraError, ParallelSearchError, UsageError, require, stopped
from parallelsearch.policy import models
from parallelsearch.training.verl.recipe import VerlRecipe

_WEIGHTS = ("*.safetensors", "*.bin")
_TOKENIZER = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
_NVIDIA_SMI = ("nvidia-smi", "--query-gpu=index,uuid,memory.used,memory.total", "--format=csv,noheader,nounits")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of this machine, as its driver describes it; memory in MiB."""

    index: str
    uuid: str
    used: float
    total: float

    @property
    def free_share(self) -> float:
        return 1.0 - self.used / self.total


def check_model(recipe: VerlRecipe) -> None:
    """The model and the adapter are on this machine, or the hub can be asked for the model."""
    name = recipe.model.name
    try:
        folder = models.present(name)
    except ParallelSearchError as error:
        raise type(error)(
            f"model.name: {stopped(error)} Correct it, or write the folder: parallelsearch export hf:BASE+ADAPTER {name}"
        ) from error
    if folder is not None:
        _check_files(name, folder)
    adapter = recipe.model.adapter
    if adapter is not None and not (Path(adapter) / models.ADAPTER_CONFIG).is_file():
        what = f"has no {models.ADAPTER_CONFIG}" if Path(adapter).is_dir() else "does not exist"
        raise UsageError(f"model.adapter: the folder '{adapter}' {what}; peft writes such folders")


def _check_files(name: str, folder: Path) -> None:
    for what, patterns in (("weights", _WEIGHTS), ("tokenizer", _TOKENIZER)):
        if not any(any(folder.glob(pattern)) for pattern in patterns):
            raise UsageError(f"model.name: the folder '{name}' has no {what}: none of {', '.join(patterns)} is in it")


def check_attention(recipe: VerlRecipe) -> None:
    """The package that the chosen attention needs."""
    if recipe.model.attention == "flash_attention_2" and importlib.util.find_spec("flash_attn") is None:
        raise MissingExtraError(
            "model.attention = 'flash_attention_2' needs the package flash-attn, which is not installed. Type: pip install "
            "flash-attn --no-build-isolation; or set model.attention=sdpa"
        )


def check_gpus(recipe: VerlRecipe) -> None:
    """Enough GPUs: of the Ray cluster that is named, or of this machine, each with the memory the engine will take."""
    cluster = recipe.verl
    is_large = cluster.num_nodes + cluster.rollout_nodes > 1
    address = os.environ.get("RAY_ADDRESS") or ("auto" if is_large else "local")
    if address != "local":
        wanted = cluster.num_gpus + cluster.rollout_nodes * cluster.rollout_gpus_per_node
        free = _free_in_cluster(address)
        if free < wanted:
            raise ParallelSearchError(
                f"the recipe takes {wanted} GPUs, and the Ray cluster at '{address}' has {free:g} free. Wait for the others' "
                "runs (ray status), start Ray on more nodes, or lower verl.num_nodes and verl.gpus_per_node"
            )
        return
    gpus = visible(all_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES"))
    free_enough = [gpu for gpu in gpus if gpu.free_share >= cluster.gpu_memory_share]
    if len(gpus) < cluster.gpus_per_node:
        raise ParallelSearchError(
            f"verl.gpus_per_node is {cluster.gpus_per_node}, and GPUs that can be used here are {len(gpus)}{_hidden()}. "
            "Look at nvidia-smi and CUDA_VISIBLE_DEVICES, or lower verl.gpus_per_node"
        )
    if len(free_enough) < cluster.gpus_per_node:
        taken = "; ".join(f"GPU {gpu.index}: {gpu.used:,.0f} of {gpu.total:,.0f} MiB in use" for gpu in gpus)
        raise ParallelSearchError(
            f"the engine takes {cluster.gpu_memory_share:.0%} of a GPU's memory (verl.gpu_memory_share), and "
            f"{len(free_enough)} of {cluster.gpus_per_node} GPUs have that free ({taken}). End what uses them (nvidia-smi), "
            "choose others (CUDA_VISIBLE_DEVICES), or lower verl.gpu_memory_share"
        )


def all_gpus() -> list[Gpu]:
    """The GPUs of this machine by its driver; none where there is no driver."""
    try:
        listed = subprocess.run(_NVIDIA_SMI, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return parse_gpus(listed)


def parse_gpus(listed: str) -> list[Gpu]:
    """The lines of `nvidia-smi --query-gpu=index,uuid,memory.used,memory.total`."""
    gpus = []
    for line in listed.splitlines():
        index, uuid, used, total = (field.strip() for field in line.split(","))
        gpus.append(Gpu(index, uuid, float(used), float(total)))
    return gpus


def visible(gpus: list[Gpu], devices: str | None) -> list[Gpu]:
    """What CUDA_VISIBLE_DEVICES leaves of them: numbers or beginnings of UUIDs; CUDA stops at the first it does not know."""
    if devices is None:
        return gpus
    found: list[Gpu] = []
    for name in (part.strip() for part in devices.split(",")):
        gpu = next((gpu for gpu in gpus if name and (gpu.index == name or gpu.uuid.startswith(name))), None)
        if gpu is None:
            break
        found.append(gpu)
    return found


def _hidden() -> str:
    devices = os.environ.get("CUDA_VISIBLE_DEVICES")
    return "" if devices is None else f" (CUDA_VISIBLE_DEVICES='{devices}')"


def _free_in_cluster(address: str) -> float:
    ray = require("ray", "verl")
    was_there = ray.is_initialized()
    try:
        if not was_there:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        return float(ray.available_resources().get("GPU", 0.0))
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ParallelSearchError(
            f"no Ray cluster answers at '{address}' (RAY_ADDRESS): {stopped(error)} Run 'ray start' on each node first"
        ) from error
    finally:
        if not was_there:
            ray.shutdown()

"""From a checkpoint of verl's to what `ask`, `eval` and `serve` take: a plain model folder, or a LoRA adapter.

verl saves one file a GPU; its own merger puts them together, on a CPU. The result appears only when it is whole. FSDP
checkpoints of the actor; Megatron's go through `python -m verl.model_merger merge --backend megatron`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from parallelsearch.errors import MissingExtraError, ParallelSearchError, UsageError
from parallelsearch.files import whole_folder
from parallelsearch.policy.models import quiet_transformers
from parallelsearch.training.verl import installed

_STEP = re.compile(r"global_step_(\d+)\Z")
_ADAPTER = "lora_adapter"


@dataclass(frozen=True, slots=True)
class Exported:
    """Where the model lies and what address opens it. `adapter` is set if LoRA was trained."""

    folder: Path
    address: str
    checkpoint: Path
    adapter: Path | None = None


def find_checkpoint(path: str | os.PathLike[str]) -> Path:
    """The actor's folder: `path` itself, inside a `global_step_N`, or of the newest step below a run's folder."""
    start = Path(path)
    if not start.is_dir():
        raise UsageError(f"there is no folder '{start}'")
    if (start / "fsdp_config.json").is_file():
        return start
    if (start / "actor").is_dir():
        return _checked(start / "actor")
    for folder in (start, start / "checkpoints"):
        steps = {int(match[1]): entry for entry in folder.glob("global_step_*") if (match := _STEP.search(entry.name))}
        if steps:
            return _checked(steps[max(steps)] / "actor")
    found = ", ".join(sorted(entry.name for entry in start.iterdir())[:5]) or "nothing"
    raise UsageError(
        f"'{start}' holds no checkpoint of verl's: no global_step_N and no fsdp_config.json (found {found})"
    )


def _checked(actor: Path) -> Path:
    config = actor / "fsdp_config.json"
    if not config.is_file():
        if (actor / "model").is_dir() or (actor / "dist_ckpt").is_dir():
            raise UsageError(
                f"'{actor}' looks like a Megatron checkpoint; merge it with: python -m verl.model_merger merge --backend "
                f"megatron --local_dir {actor} --target_dir FOLDER"
            )
        raise UsageError(f"'{actor}' is not a whole FSDP checkpoint: no fsdp_config.json in it")
    world_size = int(json.loads(config.read_text(encoding="utf-8"))["world_size"])
    missing = [
        name
        for rank in range(world_size)
        if not (actor / (name := f"model_world_size_{world_size}_rank_{rank}.pt")).is_file()
    ]
    if missing:
        raise UsageError(
            f"'{actor}' lacks {len(missing)} of {world_size} shards, {missing[0]} for one. Each node saves its own GPUs': "
            "copy those of the other nodes here, or let train.out be a folder that all nodes share"
        )
    return actor


def export(checkpoint: str | os.PathLike[str], out: str | os.PathLike[str]) -> Exported:
    """Merge a checkpoint into the folder `out`, which must not exist yet."""
    actor, target = _checked(find_checkpoint(checkpoint)), Path(out)
    if target.exists():
        raise UsageError(f"'{target}' is there already; choose another folder, or remove it")
    if installed.version() is None:
        raise MissingExtraError(
            f"merging a checkpoint of verl's needs verl, which is not installed: {installed.INSTALL}"
        )
    with whole_folder(target) as draft:
        _merge(actor, draft)
    adapter = target / _ADAPTER if (target / _ADAPTER).is_dir() else None
    address = f"hf:{target}+{adapter}" if adapter is not None else f"hf:{target}"
    return Exported(target, address, actor, adapter)


def _merge(actor: Path, target: Path) -> None:
    from verl.model_merger.base_model_merger import ModelMergerConfig
    from verl.model_merger.fsdp_model_merger import FSDPModelMerger

    config = ModelMergerConfig(
        operation="merge",
        backend="fsdp",
        local_dir=str(actor),
        hf_model_config_path=str(actor / "huggingface"),
        target_dir=str(target),
    )
    try:
        with quiet_transformers(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            FSDPModelMerger(config).merge_and_save()
    except Exception as error:  # a merger's failures are of every kind; the message matters, not the kind
        raise ParallelSearchError(f"'{actor}' cannot be merged: {type(error).__name__}: {error}") from error

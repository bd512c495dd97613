"""Checkpoints that a kill cannot break: a folder counts only once its mark is written, and the mark is written last.

The run keeps the newest few and the best by validation accuracy. Starting again takes the newest marked folder and removes
what was left half-written. A run goes on only with the recipe it began with; what may change is listed here.
"""

from __future__ import annotations

import os
import pickle
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from parallelsearch import rewards
from parallelsearch.errors import UsageError, require
from parallelsearch.evaluation.manifest import differences
from parallelsearch.files import held_folder, read_json, write_json
from parallelsearch.http import without_login
from parallelsearch.policy.models import is_unwritten
from parallelsearch.training.recipe import Recipe

MARK = "complete.json"
MANIFEST = "run.json"
_CHECKPOINTS = "checkpoint-*"
_DAMAGE = re.compile(
    r"PytorchStreamReader|weights_only|invalid load key|zip archive|unexpected EOF|corrupted|unexpected pos",
    re.IGNORECASE,
)
# What may differ when a run goes on. All else would make it another run.
_FREE = frozenset(
    {
        "train.steps",
        "train.out",
        "train.save_every",
        "train.eval_every",
        "train.keep_checkpoints",
        "train.log_trajectories",
        "train.search_moved",
        "train.reward_changed",
        "model.compile",
        "train.micro_batch_tokens",  # what to lower when memory runs out; the sums differ in the last digits only
        "search.timeout_s",
        "search.cache",
        "search.cache_size",
        "rollout.vllm_host",
        "rollout.vllm_port",
        "rollout.vllm_group_port",
        "rollout.vllm_gpu_memory_utilization",
        "rollout.vllm_tensor_parallel_size",
        "rollout.vllm_timeout_s",
    }
)

_HINTS = {
    "search.address": "\nIs it the same search at another address? Then add: train.search_moved=true",
    "reward.sha256": "\nThe file of your reward was changed. To go on with it as it is now, add: train.reward_changed=true",
}


@lru_cache(maxsize=1)
def accept_numbered_cpu() -> None:
    """Several CPU processes: accelerate calls their device `cpu:0`, the trainer loads its state to that, and torch knows no
    such place. Tell it that this is the CPU."""
    serialization = require("torch.serialization", "train")
    serialization.register_package(
        5, lambda storage: None, lambda storage, location: storage if location == "cpu:0" else None
    )


def mark_complete(checkpoint: Path, step: int) -> None:
    """Everything is written: from now on this checkpoint counts."""
    write_json(checkpoint / MARK, {"step": step})


def marked_step(checkpoint: Path) -> int | None:
    """The step of a checkpoint that counts; None of any other folder."""
    mark = checkpoint / MARK
    return int(read_json(mark)["step"]) if mark.is_file() else None


def completed(folder: Path) -> list[tuple[int, Path]]:
    """(step, checkpoint) of all that count, oldest first."""
    found = []
    for checkpoint in folder.glob(_CHECKPOINTS):
        step = marked_step(checkpoint)
        if step is not None:
            found.append((step, checkpoint))
    return sorted(found)


def remove_incomplete(folder: Path, names: str = _CHECKPOINTS) -> None:
    for checkpoint in folder.glob(names):
        if not (checkpoint / MARK).is_file():
            shutil.rmtree(checkpoint)


@contextmanager
def explained(checkpoint: Path | None, folder: Path, names: str = _CHECKPOINTS) -> Iterator[None]:
    """What torch and safetensors say of a damaged file, or of a disk that takes no more, as a message that says what to
    do. What was written half to `folder` is removed, so that its room is free."""
    try:
        yield
    except Exception as error:
        if not is_unwritten(error):
            with _explained_damage(checkpoint):
                raise
        if _is_first():
            remove_incomplete(folder, names)
        raise UsageError(
            f"a checkpoint could not be written ({error}): is the disk full? Make room, or choose another folder with "
            "train.out=FOLDER; the same command goes on from the last checkpoint that is whole"
        ) from error


@contextmanager
def _explained_damage(checkpoint: Path | None) -> Iterator[None]:
    try:
        yield
    except (EOFError, pickle.UnpicklingError, RuntimeError) as error:
        if checkpoint is None or (isinstance(error, RuntimeError) and not _DAMAGE.search(str(error))):
            raise
        raise UsageError(
            f"the checkpoint {checkpoint} is damaged ({error}); remove it, and the run goes on from the one before"
        ) from error


def rotate(folder: Path, keep: int, best_step: int | None) -> None:
    """Remove all but the newest `keep` and the best. The mark goes first, so that a kill in between leaves nothing half."""
    for step, checkpoint in completed(folder)[:-keep]:
        if step != best_step:
            (checkpoint / MARK).unlink()
            shutil.rmtree(checkpoint)


def check_same_run(recipe: Recipe, facts: Mapping[str, Any]) -> None:
    """Refuse a folder with a run that was started differently. Writes nothing: this start may yet turn out to be wrong."""
    path, record = recipe.out / MANIFEST, _record(recipe, facts)
    if path.is_file():
        known = _with_defaults(read_json(path))
        changed = [change for change in differences(known, record) if not _may_change(change.key, recipe)]
        if changed:
            rows = "\n".join(f"  {change}" for change in changed)
            hint = _HINTS.get(changed[0].key, "") if len(changed) == 1 else ""
            raise UsageError(
                f"{recipe.out} holds a run that was started differently, and its checkpoints do not fit (then against "
                f"now):\n{rows}\nUndo the change to go on, or choose another folder: train.out=FOLDER{hint}"
            )


def _is_first() -> bool:
    return int(os.environ.get("RANK", "0")) == 0


@contextmanager
def held(recipe: Recipe) -> Iterator[None]:
    """The run's folder, for this run alone: two would double every step. Of several processes the first one holds it."""
    if not _is_first():
        yield
        return
    with held_folder(recipe.out, "choose another folder: train.out=FOLDER"):
        yield


def write_manifest(recipe: Recipe, facts: Mapping[str, Any]) -> None:
    """Write down what this run is, once model and data are known to be there. Of several processes the first one writes."""
    if _is_first():
        recipe.out.mkdir(parents=True, exist_ok=True)
        write_json(recipe.out / MANIFEST, _record(recipe, facts))


def _record(recipe: Recipe, facts: Mapping[str, Any]) -> dict[str, Any]:
    record = {**recipe.model_dump(mode="json", exclude={"sweep"}), **facts}
    record["search"]["address"] = without_login(recipe.search.address)
    record["reward"] = rewards.describe(recipe.reward.preset, recipe.reward.weights)
    return record


def _with_defaults(known: dict[str, Any]) -> dict[str, Any]:
    """A run begun by an earlier version lacks settings that came since: it had what is their default now."""
    for section, field in Recipe.model_fields.items():
        if isinstance(known.get(section), dict) and isinstance(field.annotation, type):
            for key, setting in getattr(field.annotation, "model_fields", {}).items():
                if not setting.is_required():
                    known[section].setdefault(key, to_jsonable_python(setting.get_default(call_default_factory=True)))
    if isinstance(address := (known.get("search") or {}).get("address"), str):  # earlier releases wrote passwords down
        known["search"]["address"] = without_login(address)
    return known


def _may_change(key: str, recipe: Recipe) -> bool:
    if key == "train.steps":  # with a schedule, the learning rate of every step depends on their number
        return recipe.train.lr_schedule == "constant" and recipe.train.warmup_ratio == 0
    if key == "search.address":  # another search has other passages: only its owner knows that it has merely moved
        return recipe.train.search_moved
    if key == "reward.sha256":
        return recipe.train.reward_changed
    return key in _FREE or key.startswith("guards.")

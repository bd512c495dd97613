"""The recipe of a cluster run: the shared words of every recipe, and a section `[verl]` for nodes, GPUs and engines.

A recipe with that section is run by verl; `overrides.py` says it in verl's own keys. Only what verl can do is a key here:
anything else is an error that names the nearest right one. `[verl.overrides]` takes any key of verl's own configuration.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from parallelsearch.config import Settings, load
from parallelsearch.training.recipe import (
    RewardSettings,
    SearchSettings,
    SharedDataSettings,
    SharedModelSettings,
    SharedPpoSettings,
    SharedTrainSettings,
    TrajectorySettings,
    check_rl,
)


class VerlModelSettings(SharedModelSettings):
    """Which weights are trained, and with which attention."""

    attention: Literal["sdpa", "flash_attention_2"] = "sdpa"
    """In training. `sdpa` comes with torch and pads rows to the longest of a pass; `flash_attention_2` packs them, and needs
    the package flash-attn."""


class VerlTrainSettings(SharedTrainSettings):
    """The optimisation, and what only verl does. `out` is the same folder for every node."""

    entropy_weight: float = Field(default=0.0, ge=0)
    log_trajectories_every: int = Field(default=100, ge=0)
    """Every so many trajectories one is written down for `view`; the scores of all are. 0: none."""

    @model_validator(mode="after")
    def _check(self) -> VerlTrainSettings:
        for name, unknown in (("algorithm", "sft"), ("lr_schedule", "linear"), ("scale_rewards", "batch")):
            if getattr(self, name) == unknown:
                raise ValueError(f"'{name}': verl has no '{unknown}'; that is for a recipe without a [verl] section")
        return self


class VerlPpoSettings(SharedPpoSettings):
    """The critic, and its learning rate's own warm-up."""

    critic_warmup_ratio: float = Field(default=0.0, ge=0, lt=1)
    """Of its learning rate."""


class VerlSettings(Settings):
    """Nodes, GPUs and engines."""

    num_nodes: int = Field(default=1, ge=1)
    gpus_per_node: int = Field(default=8, ge=1)
    engine: Literal["vllm", "sglang"] = "vllm"
    tensor_parallel: int = Field(default=1, ge=1)
    """GPUs that share one copy of the model while it generates."""
    gpu_memory_share: float = Field(default=0.6, gt=0, lt=1)
    """Of a GPU's memory, for the engine's weights and key-value cache."""
    offload: bool = False
    """Keep weights and optimiser in the host's memory while the engine generates."""
    max_prompt_tokens: int = Field(default=1024, ge=64)
    """Longer prompts are left out by verl."""
    num_agent_workers: int = Field(default=8, ge=1)
    """Processes that run trajectories, spread over the nodes."""
    trainer: Literal["sync", "colocate_async", "separate_async"] = "sync"
    """`sync` waits for the slowest trajectory of a step. `colocate_async` lets it finish in the next one. `separate_async`
    generates on GPUs of its own, and sends them new weights after every step."""
    num_warmup_batches: int = Field(default=1, ge=1)
    """Asynchronous: batches that are generated ahead."""
    rollout_nodes: int = Field(default=0, ge=0)
    """`separate_async`: nodes that only generate, beside the `num_nodes` that train."""
    rollout_gpus_per_node: int = Field(default=8, ge=1)
    loggers: tuple[str, ...] = ("console", "tensorboard")
    project: str = "parallelsearch"
    name: str | None = None
    """Of the run; its folder's name unless set."""
    any_version: bool = False
    """Start with a version of verl that was not tested."""
    overrides: dict[str, Any] = Field(default_factory=dict)
    """Any key of verl's own configuration, dotted; wins over what the other sections say."""

    @property
    def num_gpus(self) -> int:
        return self.num_nodes * self.gpus_per_node


class VerlRecipe(Settings):
    """Everything about one cluster run."""

    model: VerlModelSettings
    data: SharedDataSettings
    train: VerlTrainSettings
    verl: VerlSettings
    search: SearchSettings
    rollout: TrajectorySettings = TrajectorySettings()
    reward: RewardSettings = RewardSettings()
    ppo: VerlPpoSettings = VerlPpoSettings()

    @model_validator(mode="after")
    def _check(self) -> VerlRecipe:
        train, cluster = self.train, self.verl
        check_rl(train, self.rollout)
        if not self.data.validation_sources:
            raise ValueError("'data.validation' is missing; verl needs a file of its own to validate on")
        if train.questions_per_step % train.updates_per_step:
            raise ValueError(
                f"'train.updates_per_step' ({train.updates_per_step}) must divide 'train.questions_per_step' "
                f"({train.questions_per_step})"
            )
        if train.num_rows % cluster.num_gpus:
            raise ValueError(f"{train.num_rows} trajectories a step cannot be shared by {cluster.num_gpus} GPUs evenly")
        if cluster.max_prompt_tokens >= self.rollout.max_tokens:
            raise ValueError(
                f"'verl.max_prompt_tokens' ({cluster.max_prompt_tokens}) leaves nothing of 'rollout.max_tokens' "
                f"({self.rollout.max_tokens}) for turns and results"
            )
        if cluster.gpus_per_node % cluster.tensor_parallel:
            raise ValueError(
                f"'verl.tensor_parallel' ({cluster.tensor_parallel}) must divide the {cluster.gpus_per_node} GPUs of a node"
            )
        if (cluster.trainer == "separate_async") != (cluster.rollout_nodes > 0):
            raise ValueError("'verl.rollout_nodes' is for 'verl.trainer = \"separate_async\"', which needs at least 1")
        return self

    @property
    def out(self) -> Path:
        return Path(self.train.out)


def is_cluster_recipe(path: str | os.PathLike[str]) -> bool:
    """Whether a file has a `[verl]` section. A file that cannot be read has none: its reader says what is wrong with it."""
    try:
        with open(path, "rb") as file:
            return "verl" in tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError):
        return False


def load_cluster_recipe(path: str | os.PathLike[str], overrides: Sequence[str] | Mapping[str, Any] = ()) -> VerlRecipe:
    """Read and check a recipe; `overrides` as `["train.lr=1e-5"]` or `{"train.lr": 1e-5}`."""
    return load(path, VerlRecipe, overrides)

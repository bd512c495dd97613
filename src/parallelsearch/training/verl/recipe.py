"""The recipe of a cluster run: the words of the one-machine recipe, and a section `[verl]` for nodes, GPUs and engines.

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
from parallelsearch.errors import UsageError
from parallelsearch.training.recipe import RewardSettings, SearchSettings, TrajectorySettings


class VerlModelSettings(Settings):
    """Which weights are trained, and how much of them."""

    name: str
    """A folder that every node can read, or a hub id."""
    adapter: str | None = None
    """A LoRA adapter to start from."""
    lora_rank: int = Field(default=0, ge=0)
    """0 trains every weight."""
    lora_alpha: int | None = Field(default=None, gt=0)
    """Twice the rank unless set."""
    lora_targets: str | list[str] = "all-linear"
    gradient_checkpointing: bool = True
    template: Literal["auto", "chat", "base"] = "auto"


class VerlDataSettings(Settings):
    """Parquet files as `parallelsearch data verl` writes them."""

    train: str | list[str]
    validation: str | list[str]

    @property
    def train_files(self) -> list[str]:
        return [self.train] if isinstance(self.train, str) else list(self.train)

    @property
    def validation_files(self) -> list[str]:
        return [self.validation] if isinstance(self.validation, str) else list(self.validation)


class VerlTrainSettings(Settings):
    """The optimisation, in the words of the one-machine recipe."""

    algorithm: Literal["grpo", "ppo"]
    out: str
    """The run's folder, the same for every node: checkpoints, scores, sampled trajectories."""
    steps: int = Field(gt=0)
    seed: int = 0
    questions_per_step: int = Field(default=512, ge=1)
    samples_per_question: int = Field(default=5, ge=1)
    updates_per_step: int = Field(default=2, ge=1)
    passes_per_step: int = Field(default=1, ge=1)
    micro_batch_tokens: int = Field(default=16_384, ge=64)
    """Tokens in one forward and backward pass of one GPU; lower it when memory runs out."""
    lr: float = Field(default=1e-6, gt=0)
    lr_schedule: Literal["constant", "cosine"] = "constant"
    warmup_ratio: float = Field(default=0.0, ge=0, lt=1)
    weight_decay: float = Field(default=0.01, ge=0)
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    adam_beta2: float = Field(default=0.999, ge=0, lt=1)
    max_grad_norm: float = Field(default=1.0, gt=0)
    beta: float = Field(default=0.0, ge=0)
    """Weight of the KL to the model the run began with: in the loss for GRPO, in the reward for PPO."""
    epsilon: float = Field(default=0.2, gt=0)
    epsilon_high: float | None = Field(default=None, gt=0)
    entropy_weight: float = Field(default=0.0, ge=0)
    loss_type: Literal["grpo", "bnpo", "dr_grpo", "dapo"] = "dapo"
    scale_rewards: Literal["group", "none"] = "group"
    eval_every: int = Field(default=50, ge=0)
    """Validate before the first step and after every so many steps. 0: never."""
    save_every: int = Field(default=50, ge=1)
    keep_checkpoints: int = Field(default=2, ge=1)
    log_trajectories_every: int = Field(default=100, ge=0)
    """Every so many trajectories one is written down for `view`; the scores of all are. 0: none."""


class VerlPpoSettings(Settings):
    """The critic. Discount and lambda of 1 are the paper's."""

    critic_lr: float = Field(default=1e-5, gt=0)
    critic_warmup_ratio: float = Field(default=0.0, ge=0, lt=1)
    """Of its learning rate."""
    critic_warmup_steps: int = Field(default=0, ge=0)
    """Steps in which only the critic learns."""
    gamma: float = Field(default=1.0, gt=0, le=1)
    lam: float = Field(default=1.0, ge=0, le=1)
    value_clip: float = Field(default=0.5, gt=0)


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
    data: VerlDataSettings
    train: VerlTrainSettings
    verl: VerlSettings
    search: SearchSettings
    rollout: TrajectorySettings = TrajectorySettings()
    reward: RewardSettings = RewardSettings()
    ppo: VerlPpoSettings = VerlPpoSettings()

    @model_validator(mode="after")
    def _check(self) -> VerlRecipe:
        train, cluster = self.train, self.verl
        try:
            limits = self.rollout.limits
        except UsageError as error:
            raise ValueError(str(error)) from error
        if train.algorithm == "grpo" and train.samples_per_question < 2:
            raise ValueError("'train.samples_per_question' must be at least 2 for grpo, which compares within a group")
        if train.questions_per_step % train.updates_per_step:
            raise ValueError(
                f"'train.updates_per_step' ({train.updates_per_step}) must divide 'train.questions_per_step' "
                f"({train.questions_per_step})"
            )
        if self.num_rows % cluster.num_gpus:
            raise ValueError(f"{self.num_rows} trajectories a step cannot be shared by {cluster.num_gpus} GPUs evenly")
        if self.rollout.top_p != 1.0:
            raise ValueError(
                "'rollout.top_p' must be 1 in training: log-probabilities are those of the whole vocabulary"
            )
        if train.micro_batch_tokens < limits.max_tokens:
            raise ValueError(
                f"'train.micro_batch_tokens' ({train.micro_batch_tokens}) is less than one trajectory may have "
                f"('rollout.max_tokens' = {limits.max_tokens})"
            )
        if cluster.max_prompt_tokens >= limits.max_tokens:
            raise ValueError(
                f"'verl.max_prompt_tokens' ({cluster.max_prompt_tokens}) leaves nothing of 'rollout.max_tokens' "
                f"({limits.max_tokens}) for turns and results"
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

    @property
    def num_rows(self) -> int:
        """Trajectories in a step."""
        return self.train.questions_per_step * self.train.samples_per_question


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

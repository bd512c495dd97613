"""The recipe: one TOML file says everything about a training run, whatever the algorithm.

`load_recipe` reads and checks it; `Recipe` is what the trainers get. The `Shared` sections are those that a recipe for a
cluster has too (`verl/recipe.py` adds its own to them), so a key and its default stand here once. A value that means
something elsewhere (limits, weights, sampling) is turned into the core's own object here, once. Paths are relative to where
the command is typed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, create_model, model_validator

from parallelsearch import rewards
from parallelsearch.config import Settings, load, parse
from parallelsearch.dialects import open_dialect
from parallelsearch.errors import UsageError, nearest
from parallelsearch.limits import Limits
from parallelsearch.policy.base import Sampling
from parallelsearch.rewards import Weights
from parallelsearch.trajectory import Kind

Algorithm = Literal["sft", "grpo", "ppo"]
_LIMITS = Limits()


# ---- what every engine has: a run on this machine and one on a cluster declare these keys here, once -----------------


class SharedModelSettings(Settings):
    """Which weights are trained, and how much of them."""

    name: str
    """A folder (one that every node can read, on a cluster) or a hub id."""
    adapter: str | None = None
    """A LoRA adapter to start from: the folder of the cold-started one or, on one machine, the name of one that comes with
    the package. The reference policy has it too."""
    lora_rank: int = Field(default=0, ge=0)
    """0 trains every weight."""
    lora_alpha: int | None = Field(default=None, gt=0)
    """Twice the rank unless set."""
    lora_targets: str | list[str] = "all-linear"
    gradient_checkpointing: bool = False
    template: Literal["auto", "chat", "base"] = "auto"
    """`chat` uses the tokenizer's chat template, `base` sends the prompt as it is, `auto` takes what there is."""

    @model_validator(mode="after")
    def _check_lora(self) -> Self:
        """Refuse what a run that makes no adapter would not look at. A critic beside one has its `lora_targets`."""
        keys = [name for name in type(self).model_fields if name.startswith("lora_")]
        given = [name for name in keys if getattr(self, name) != type(self).model_fields[name].default]
        if self.lora_rank == 0 and self.adapter is None and given:
            raise ValueError(
                f"{', '.join(given)}: without 'lora_rank' every weight is trained and there is no LoRA to set; write, for "
                f"example, lora_rank = 16, or leave {', '.join(given)} out"
            )
        if self.lora_rank == 0 and given and given != ["lora_targets"]:
            raise ValueError(f"{', '.join(given)}: 'adapter' has its own, and goes on with them; leave these out")
        return self


class SharedDataSettings(Settings):
    """What is trained and validated on."""

    train: str | list[str]
    """Files, or names of data sets; `demo` is the embedded one. For SFT: trajectory files written by `coldstart`. For a
    cluster: Parquet files as `parallelsearch data verl` writes them."""
    validation: str | list[str] | None = None
    """A fixed held-out set."""

    @property
    def train_sources(self) -> list[str]:
        return [self.train] if isinstance(self.train, str) else list(self.train)

    @property
    def validation_sources(self) -> list[str]:
        if self.validation is None:
            return []
        return [self.validation] if isinstance(self.validation, str) else list(self.validation)

    @model_validator(mode="after")
    def _check_train(self) -> Self:
        if not self.train_sources:
            raise ValueError("'train' names no data")
        return self


class SharedTrainSettings(Settings):
    """The optimisation. A step of GRPO or PPO is: roll out, score, update."""

    algorithm: Algorithm
    out: str
    """The run's folder: checkpoints, metrics, sampled trajectories, plot. Starting again continues from there."""
    steps: int | None = Field(default=None, gt=0)
    """Steps of GRPO and PPO (needed); for SFT they win over `epochs`."""
    seed: int = 0
    questions_per_step: int = Field(default=128, ge=1)
    samples_per_question: int = Field(default=8, ge=1)
    updates_per_step: int = Field(default=1, ge=1)
    """Into how many optimiser steps the trajectories of a step are divided."""
    passes_per_step: int = Field(default=1, ge=1)
    """How often the trajectories of a step are gone through."""
    micro_batch_tokens: int = Field(default=16_384, ge=64)
    """Tokens in one forward and backward pass of one GPU, padding included; lower it when memory runs out."""
    lr: float = Field(default=1e-6, gt=0)
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_ratio: float = Field(default=0.0, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    adam_beta2: float = Field(default=0.999, ge=0, lt=1)
    max_grad_norm: float = Field(default=1.0, gt=0)
    beta: float = Field(default=0.0, ge=0)
    """Weight of the KL to the policy the run began with: in the loss for GRPO, in the reward for PPO. 0 loads no
    reference."""
    epsilon: float = Field(default=0.2, gt=0)
    epsilon_high: float | None = Field(default=None, gt=0)
    loss_type: Literal["grpo", "bnpo", "dr_grpo", "dapo"] = "dapo"
    scale_rewards: Literal["group", "batch", "none"] = "group"
    eval_every: int = Field(default=20, ge=0)
    """Validate before the first step and after every so many steps. 0: never."""
    save_every: int = Field(default=20, ge=1)
    keep_checkpoints: int = Field(default=2, ge=1)
    """Newest checkpoints kept (on one machine: beside the best one)."""

    @property
    def num_rows(self) -> int:
        """Trajectories in a step."""
        return self.questions_per_step * self.samples_per_question


class SharedPpoSettings(Settings):
    """The critic. Discount and lambda of 1 are the paper's."""

    critic_lr: float = Field(default=1e-5, gt=0)
    gamma: float = Field(default=1.0, gt=0, le=1)
    lam: float = Field(default=1.0, ge=0, le=1)
    value_clip: float = Field(default=0.5, gt=0)
    critic_warmup_steps: int = Field(default=0, ge=0)
    """Steps in which only the critic learns."""


class SearchSettings(Settings):
    """Where queries go."""

    address: str = "demo"
    k: int = Field(default=3, ge=1, le=1000)
    timeout_s: float | None = Field(default=None, gt=0)
    """For a query in all; None for 30 s, or the time-out in the address if that is more."""
    cache: str | None = None
    """A SQLite file that keeps answers across runs: with a search that changes (the web), it makes a resumed run exact."""
    cache_size: int = Field(default=200_000, ge=0)


class TrajectorySettings(Settings):
    """How a trajectory is made, whatever engine samples it."""

    max_turns: int = _LIMITS.max_turns
    max_tokens_per_turn: int = _LIMITS.max_tokens_per_turn
    max_observation_tokens: int = _LIMITS.max_observation_tokens
    tokens_per_subquery: int = _LIMITS.tokens_per_subquery
    max_tokens: int = _LIMITS.max_tokens
    max_subqueries: int = _LIMITS.max_subqueries
    timeout_s: float | None = None
    """None while training, unlike everywhere else: a deadline makes what is sampled depend on how busy the machine was."""
    dialect: str | None = None
    """How the model talks; None takes what the policy it starts from was trained on, or else the package's own."""
    temperature: float = Field(default=1.0, gt=0)
    top_p: float = Field(default=1.0, gt=0, le=1)

    @property
    def limits(self) -> Limits:
        known = type(self).model_fields  # what a server bills is no matter of training
        return Limits(**{limit.name: getattr(self, limit.name) for limit in fields(Limits) if limit.name in known})


# A key for each weight, by the name and with the default that `rewards.py` gives it.
_WeightSettings: Any = create_model(  # type: ignore[call-overload]  # the keys are known at run time only
    "_WeightSettings",
    __base__=Settings,
    **{weight.name: (float, Field(default=weight.default, ge=0)) for weight in fields(Weights)},
)


class RewardSettings(_WeightSettings, Settings):  # type: ignore[misc]  # so its base has no type
    """The preset and its weights (`docs/rewards.md`)."""

    preset: str = rewards.DEFAULT_PRESET
    """Or `module:function`, one of your own."""

    @property
    def weights(self) -> Weights:
        return Weights(**{weight.name: getattr(self, weight.name) for weight in fields(Weights)})

    @model_validator(mode="after")
    def _check(self) -> RewardSettings:
        try:
            rewards.check(self.preset, self.weights)
        except UsageError as error:
            raise ValueError(str(error)) from None
        return self


def check_rl(train: SharedTrainSettings, rollout: TrajectorySettings) -> None:
    """What GRPO and PPO need, whoever runs them. Raises `ValueError`, which a validator turns into a message."""
    try:
        limits, dialect = rollout.limits, open_dialect(rollout.dialect)
    except UsageError as error:
        raise ValueError(str(error)) from error
    if not dialect.is_trainable:
        raise ValueError(f"'rollout.dialect' = '{dialect.name}' cannot be trained: each call gets a prompt of its own")
    if train.algorithm == "sft":
        return
    if train.steps is None:
        raise ValueError(f"'train.steps' is missing; {train.algorithm} needs it")
    if train.algorithm == "grpo" and train.samples_per_question < 2:
        raise ValueError("'train.samples_per_question' must be at least 2 for grpo, which compares within a group")
    if rollout.top_p != 1.0:
        raise ValueError("'rollout.top_p' must be 1 in training: log-probabilities are those of the whole vocabulary")
    if train.micro_batch_tokens < limits.max_tokens:
        raise ValueError(
            f"'train.micro_batch_tokens' ({train.micro_batch_tokens}) is less than one trajectory may have "
            f"('rollout.max_tokens' = {limits.max_tokens})"
        )


# ---- what only a run on this machine has ------------------------------------------------------------------------------


class ModelSettings(SharedModelSettings):
    """Which weights are trained, and how much of them."""

    merge_adapter: bool = False
    """Fold `adapter` into the weights first, then train all of them, or a new adapter."""
    lora_dropout: float = Field(default=0.0, ge=0, lt=1)
    fold: bool | None = None
    """Train the adapter through a copy it is folded into: much faster on a small model, for the memory of one gradient of
    all its weights. Unless set, where that takes at most a tenth of the GPU's memory."""
    compile: bool = False
    """SFT through that copy: let torch compile its layers. Half a minute to begin with, then 1.6 times as fast."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """bfloat16 means autocast over float32 weights. `auto` is bfloat16 on a GPU and float32 on a CPU."""


class DataSettings(SharedDataSettings):
    """Questions (or, for SFT, trajectories) to train on. Without `validation`, `num_validation` are cut from `train`."""

    mix: list[float] | None = None
    """One weight for each entry of `train`; without it every question is as likely as any other."""
    num_validation: int = Field(default=128, ge=0)
    max_questions: int | None = Field(default=None, gt=0)
    """Use only this many training questions (the first after the seeded shuffle)."""
    kinds: list[Kind] | None = None
    """Use only questions of these kinds."""
    held_out: tuple[str, ...] = ()
    """Dev and test files: a training question that stands in one of them, by normalised text, is refused."""

    @model_validator(mode="after")
    def _check(self) -> DataSettings:
        if self.mix is not None and len(self.mix) != len(self.train_sources):
            raise ValueError(f"'mix' has {len(self.mix)} weights for {len(self.train_sources)} entries of 'train'")
        if self.mix is not None and (min(self.mix) < 0 or sum(self.mix) <= 0):
            raise ValueError(f"'mix' needs weights of 0 or more, not all 0, found {self.mix}")
        return self


class RolloutSettings(TrajectorySettings):
    """How trajectories are made, and by which engine."""

    engine: Literal["auto", "slot", "batch", "vllm"] = "auto"
    """`slot` and `batch` run in this process; `vllm` samples through TRL's vLLM, as the `vllm_` settings say."""
    is_deterministic: bool = True
    """Batches form only when every rollout waits, so that a resumed run is the same run to the last bit (on a CPU; on a GPU
    rounding still depends on the batch). False lets rows join at any time, which is faster where lengths differ. vLLM gets
    a seed with each turn, or none."""
    num_slots: int | None = Field(default=None, gt=0)
    """Rows the slot engine generates together; by default as many as there are rollouts, up to 512."""
    vllm_mode: Literal["server", "colocate"] = "server"
    """`server`: a `vllm serve` on GPUs of its own. `colocate`: in the training process, on its GPU."""
    vllm_host: str = "127.0.0.1"
    vllm_port: int = Field(default=8000, gt=0, lt=65536)
    vllm_group_port: int = Field(default=51216, gt=0, lt=65536)
    """Where server and trainer meet to hand the weights over."""
    vllm_gpu_memory_utilization: float | None = Field(default=None, gt=0, lt=1)
    """The share of a GPU's memory that vLLM takes; unless set, 0.9 for a server and 0.3 beside the trainer."""
    vllm_tensor_parallel_size: int = Field(default=1, ge=1)
    """GPUs the server spreads the model over."""
    vllm_timeout_s: float = Field(default=600.0, gt=0)
    """For one turn, retries included."""
    vllm_correction: Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] = (
        "token_truncate"
    )
    """How the loss makes up for log-probabilities that differ between vLLM and the trainer: TRL's importance sampling."""

    def sampling(self, seed: int, greedy: bool = False) -> Sampling:
        return Sampling(temperature=0.0 if greedy else self.temperature, top_p=self.top_p, seed=seed)


class TrainSettings(SharedTrainSettings):
    """The optimisation, and what only this machine's trainers do."""

    epochs: float = Field(default=3.0, gt=0)
    """SFT: passes over the data. GRPO and PPO draw questions in shuffled passes until `steps`."""
    batch_size: int = Field(default=32, ge=1)
    """SFT: rows in one optimiser step."""
    max_length: int = Field(default=4096, ge=64)
    """SFT: longer rows are left out, and counted."""
    drop_zero_variance: bool = True
    """Leave groups in which all rewards are equal out of the loss: they teach nothing and cost time."""
    log_trajectories: int = Field(default=8, ge=0)
    """Sampled trajectories written in each step."""
    search_moved: bool = False
    """To go on with a run whose search has another address now and is the same search."""
    reward_changed: bool = False
    """To go on with a run whose reward of your own is written otherwise now."""


class PpoSettings(SharedPpoSettings):
    """The critic, and how its advantages are used."""

    normalize_advantages: bool = True


class GuardSettings(Settings):
    """When to stop, when to warn, and the regulariser against collapse."""

    max_grad_norm: float = Field(default=1e4, gt=0)
    """Before clipping. A norm above it, or one that is not a number, stops the run and saves the batch."""
    window: int = Field(default=20, ge=2)
    """Steps an alarm looks back over."""
    min_length_share: float = Field(default=0.25, ge=0, le=1)
    """Alarm when the mean number of model tokens falls under this share of what it was at the start."""
    min_entropy: float = Field(default=0.02, ge=0)
    min_search_rate: float = Field(default=0.2, ge=0, le=1)
    min_split_parallel: float = Field(default=0.1, ge=0, le=1)
    """Serial collapse: parallel questions are split less often than this."""
    max_split_sequential: float = Field(default=0.8, ge=0, le=1)
    """Spurious parallelism: chains are split more often than this."""
    stop_on_alarm: bool = False
    llds: float = Field(default=0.0, ge=0)
    """Weight of the likelihood-displacement regulariser (`docs/training.md`); 0 is off. 0.1 is a usual value."""


class Recipe(Settings):
    """Everything about one run."""

    model: ModelSettings
    data: DataSettings
    train: TrainSettings
    search: SearchSettings = SearchSettings()
    rollout: RolloutSettings = RolloutSettings()
    reward: RewardSettings = RewardSettings()
    ppo: PpoSettings = PpoSettings()
    guards: GuardSettings = GuardSettings()
    trl: dict[str, Any] = Field(default_factory=dict)
    """Any key of TRL's own configuration (`GRPOConfig`, or `SFTConfig`) that the other sections do not set."""
    sweep: dict[str, list[Any]] | None = None
    """Dotted keys with the values to try; `sweep` runs their grid, `train` refuses the recipe."""

    @model_validator(mode="after")
    def _check(self) -> Recipe:
        train = self.train
        check_rl(train, self.rollout)
        if train.algorithm == "sft":
            return self
        if self.model.compile:
            raise ValueError(f"'model.compile' is for sft; {train.algorithm} samples with the same layers")
        if train.num_rows % train.updates_per_step:
            raise ValueError(
                f"'train.updates_per_step' ({train.updates_per_step}) must divide {train.num_rows} trajectories"
            )
        if self.guards.llds > 0 and train.updates_per_step * train.passes_per_step == 1:
            raise ValueError(
                "'guards.llds' compares with the policy that sampled, so it needs 'train.updates_per_step' or "
                "'train.passes_per_step' above 1"
            )
        if self.rollout.vllm_mode == "colocate" and self.rollout.vllm_tensor_parallel_size > 1:
            raise ValueError(
                "'rollout.vllm_tensor_parallel_size' above 1 needs 'rollout.vllm_mode' = \"server\": in the training "
                "processes the parts of one model would have to generate in step, and rollouts do not"
            )
        return self

    @property
    def out(self) -> Path:
        return Path(self.train.out)


def trl_options(recipe: Recipe, options: Mapping[str, Any], config: type[Any]) -> dict[str, Any]:
    """What TRL's configuration is made of: `options`, and the recipe's `[trl]`. A key that `options` has already is the
    recipe's to say in its own words, so it is refused; all but `optim`, which only follows from the device."""
    known = [field.name for field in fields(config)]
    for key in recipe.trl:
        if key not in known:
            raise UsageError(f"'trl.{key}': {config.__name__} has no such key.{nearest(key, known)}")
        if key in options and key != "optim":
            raise UsageError(
                f"'trl.{key}' is set by the run itself (here to {options[key]!r}); change it by the recipe's own sections"
            )
    return {**options, **recipe.trl}


def load_recipe(path: str | os.PathLike[str], overrides: Sequence[str] | Mapping[str, Any] = ()) -> Recipe:
    """Read and check a recipe; `overrides` as `["train.lr=1e-5"]` or `{"train.lr": 1e-5}`."""
    return load(path, Recipe, overrides, others={"sources": "coldstart"})


def parse_recipe(values: Mapping[str, Any], overrides: Sequence[str] | Mapping[str, Any] = ()) -> Recipe:
    """The same for a recipe that is already in memory."""
    return parse(values, Recipe, overrides, source="<recipe>")

"""A recipe in verl's own keys: the list of `key=value` behind `python -m verl.trainer.main_ppo`.

Pure: values in, text out. Each line of `_pairs` is one decision about what a word of the recipe means to verl. The names are
those of verl 0.9.1; a test has verl compose and validate the list of every recipe that comes with the project.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

from parallelsearch import rewards
from parallelsearch.addresses import PYTHON, with_whole_path
from parallelsearch.training.verl.recipe import VerlRecipe

REWARD_MODULE = "pkg://parallelsearch.training.verl.reward"
CRITIC_MODULE = "parallelsearch.training.verl.critic"
AGENT_LOOP = "parallel_search"
OWN = "parallelsearch"
"""The section of verl's configuration that only our agent loop reads."""
NO_LIMIT = 1_000_000
"""Epochs: the number of steps decides, never this."""
_PLAIN = re.compile(r"[A-Za-z0-9_/][A-Za-z0-9_./:-]*\Z")
_LOSS = {
    "dapo": "token-mean",
    "bnpo": "token-mean",
    "grpo": "seq-mean-token-mean",
    "dr_grpo": "seq-mean-token-sum-norm",
}


def agent_loop_file() -> str:
    """The file that names our agent loop to verl; it lies in the package, so every node with the package has it."""
    return str(files("parallelsearch.training.verl") / "agent_loop.yaml")


def verl_overrides(recipe: VerlRecipe) -> list[str]:
    """Everything verl has to be told, in the form of its command line."""
    own = recipe.verl.overrides
    pairs = {key: value for key, value in _pairs(recipe) if key not in own and f"+{key}" not in own}
    return [f"{key}={hydra_value(value)}" for key, value in {**pairs, **own}.items()]


def hydra_value(value: Any) -> str:
    """A value as Hydra's command line reads it. What might have a meaning in its grammar is quoted."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ",".join(hydra_value(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{hydra_value(key)}:{hydra_value(item)}" for key, item in value.items()) + "}"
    text = str(value)
    if _PLAIN.match(text) and text.lower() not in ("null", "true", "false", "nan", "inf") and not _is_number(text):
        return text
    # Inside quotes a backslash is one unless it stands before a quote, where Hydra takes pairs of them as one.
    escaped = re.sub(r"(\\*)('|\Z)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), text)
    return f"'{escaped}'"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _absolute(path: str) -> str:
    """Ray's workers run in folders of their own, so every path is a whole one. `s3://` and the like stay as they are."""
    return path if "://" in path else str(Path(path).absolute())


def _model_path(name: str) -> str:
    return _absolute(name) if Path(name).is_dir() else name


def _pairs(recipe: VerlRecipe) -> Iterator[tuple[str, Any]]:
    yield from _data(recipe)
    yield from _model(recipe)
    yield from _actor(recipe)
    yield from _rollout(recipe)
    yield from _algorithm(recipe)
    yield from _reward(recipe)
    yield from _trainer(recipe)
    yield from _own(recipe)


def _data(recipe: VerlRecipe) -> Iterator[tuple[str, Any]]:
    yield "data.train_files", [_absolute(path) for path in recipe.data.train_sources]
    yield "data.val_files", [_absolute(path) for path in recipe.data.validation_sources]
    yield "data.train_batch_size", recipe.train.questions_per_step
    yield "data.max_prompt_length", recipe.verl.max_prompt_tokens
    # Prompt and response together stay within rollout.max_tokens; how they share it depends on the prompt.
    yield "data.max_response_length", recipe.rollout.max_tokens
    # The length is counted with the chat template, which a base model's prompt does not have.
    yield "data.filter_overlong_prompts", recipe.model.template != "base"
    yield "data.truncation", "error"
    yield "data.seed", recipe.train.seed
    # A row is a few hundred bytes of text: eight processes that read ahead take longer to start than they ever save.
    yield "data.dataloader_num_workers", 0


def _model(recipe: VerlRecipe) -> Iterator[tuple[str, Any]]:
    model, section = recipe.model, "actor_rollout_ref.model"
    yield f"{section}.path", _model_path(model.name)
    yield f"{section}.enable_gradient_checkpointing", model.gradient_checkpointing
    yield from _attention(recipe, section)
    # Without FlashAttention's kernel verl takes the log-probabilities token by token, in Python: 67 s for an update of 384
    # trajectories on an H200. The fused head does them in pieces of 512 tokens, and never holds all logits.
    yield f"{section}.use_fused_kernels", model.attention == "sdpa"
    if model.lora_rank or model.adapter:
        yield f"{section}.lora_rank", model.lora_rank
        yield f"{section}.lora_alpha", model.lora_alpha or 2 * model.lora_rank
        yield f"{section}.target_modules", model.lora_targets
        yield f"{section}.lora_adapter_path", None if model.adapter is None else _absolute(model.adapter)
        yield "actor_rollout_ref.rollout.load_format", "safetensors"  # the base is not sent to the engine again


def _attention(recipe: VerlRecipe, section: str) -> Iterator[tuple[str, Any]]:
    # Rows without padding need attention that takes their borders: only FlashAttention's does.
    yield f"{section}.use_remove_padding", recipe.model.attention == "flash_attention_2"
    yield f"+{section}.override_config.attn_implementation", recipe.model.attention


def _optimizer(recipe: VerlRecipe, section: str, lr: float, warmup_ratio: float) -> Iterator[tuple[str, Any]]:
    train = recipe.train
    yield f"{section}.lr", lr
    yield f"{section}.lr_warmup_steps_ratio", warmup_ratio
    yield f"{section}.lr_scheduler_type", train.lr_schedule
    yield f"{section}.weight_decay", train.weight_decay
    yield f"{section}.betas", [train.adam_beta1, train.adam_beta2]


def _actor(recipe: VerlRecipe) -> Iterator[tuple[str, Any]]:
    train, section = recipe.train, "actor_rollout_ref.actor"
    yield from _optimizer(recipe, f"{section}.optim", train.lr, train.warmup_ratio)
    yield f"{section}.grad_clip", train.max_grad_norm
    yield f"{section}.ppo_mini_batch_size", train.questions_per_step // train.updates_per_step
    yield f"{section}.ppo_epochs", train.passes_per_step
    yield f"{section}.use_dynamic_bsz", True
    yield f"{section}.ppo_max_token_len_per_gpu", train.micro_batch_tokens
    yield f"{section}.clip_ratio", train.epsilon
    yield f"{section}.clip_ratio_low", train.epsilon
    yield f"{section}.clip_ratio_high", train.epsilon if train.epsilon_high is None else train.epsilon_high
    yield f"{section}.entropy_coeff", train.entropy_weight
    yield f"{section}.loss_agg_mode", _LOSS[train.loss_type]
    yield f"{section}.use_kl_loss", train.algorithm == "grpo" and train.beta > 0
    yield f"{section}.kl_loss_coef", train.beta
    yield f"{section}.kl_loss_type", "low_var_kl"
    yield f"{section}.data_loader_seed", train.seed
    yield f"{section}.fsdp_config.param_offload", recipe.verl.offload
    yield f"{section}.fsdp_config.optimizer_offload", recipe.verl.offload
    yield "actor_rollout_ref.ref.fsdp_config.param_offload", recipe.verl.offload


def _rollout(recipe: VerlRecipe) -> Iterator[tuple[str, Any]]:
    cluster, section = recipe.verl, "actor_rollout_ref.rollout"
    yield f"{section}.name", cluster.engine
    yield f"{section}.tensor_model_parallel_size", cluster.tensor_parallel
    yield f"{section}.gpu_memory_utilization", cluster.gpu_memory_share
    yield f"{section}.max_model_len", recipe.rollout.max_tokens
    yield f"{section}.n", recipe.train.samples_per_question
    yield f"{section}.temperature", recipe.rollout.temperature
    yield f"{section}.top_p", recipe.rollout.top_p
    yield f"{section}.seed", recipe.train.seed
    yield f"{section}.calculate_log_probs", True
    # Turns end on strings, and an engine without a tokenizer cannot see them.
    yield f"{section}.skip_tokenizer_init", False
    yield f"{section}.agent.default_agent_loop", AGENT_LOOP
    yield f"{section}.agent.agent_loop_config_path", agent_loop_file()
    yield f"{section}.agent.num_workers", cluster.num_agent_workers
    if cluster.trainer == "separate_async":
        yield f"{section}.nnodes", cluster.rollout_nodes
        yield f"{section}.n_gpus_per_node", cluster.rollout_gpus_per_node
        yield f"{section}.checkpoint_engine.backend", "nccl"


def _algorithm(recipe: VerlRecipe) -> Iterator[tuple[str, Any]]:
    train, ppo = recipe.train, recipe.ppo
    if recipe.verl.trainer != "sync":
        # Trajectories may begin under older weights: each token is weighed by how far the policy has moved since.
        yield "algorithm.rollout_correction.rollout_is", "token"
    if train.algorithm == "grpo":
        yield "algorithm.adv_estimator", "grpo"
        yield "algorithm.norm_adv_by_std_in_grpo", train.scale_rewards == "group"
        return
    yield "algorithm.adv_estimator", "gae"
    yield "algorithm.gamma", ppo.gamma
    yield "algorithm.lam", ppo.lam
    yield "algorithm.use_kl_in_reward", train.beta > 0
    yield "algorithm.kl_ctrl.kl_coef", train.beta
    yield "critic.model.path", _model_path(recipe.model.name)
    yield "critic.model.enable_gradient_checkpointing", recipe.model.gradient_checkpointing
    yield from _attention(recipe, "critic.model")
    if recipe.model.attention == "sdpa":
        yield "+ray_kwargs.ray_init.runtime_env.env_vars.VERL_USE_EXTERNAL_MODULES", CRITIC_MODULE
    yield from _optimizer(recipe, "critic.optim", ppo.critic_lr, ppo.critic_warmup_ratio)
    yield "critic.grad_clip", train.max_grad_norm
    yield "critic.cliprange_value", ppo.value_clip
    yield "critic.ppo_max_token_len_per_gpu", train.micro_batch_tokens
    yield "critic.fsdp.param_offload", recipe.verl.offload
    yield "critic.fsdp.optimizer_offload", recipe.verl.offload
    yield "trainer.critic_warmup", ppo.critic_warmup_steps
    yield "trainer.max_critic_ckpt_to_keep", train.keep_checkpoints


def _reward(recipe: VerlRecipe) -> Iterator[tuple[str, Any]]:
    reward, section = recipe.reward, "reward.custom_reward_function"
    yield f"{section}.path", REWARD_MODULE
    yield f"{section}.name", "compute_score"
    # Scoring is microseconds; each process costs the imports of torch and verl at the start.
    yield "reward.num_workers", recipe.verl.num_agent_workers
    for name, value in rewards.describe(reward.preset, reward.weights).items():
        yield f"+{section}.reward_kwargs.{name}", value
    if rewards.is_own(reward.preset):
        yield f"+{section}.reward_kwargs.folder", _absolute(".")
    yield f"+{section}.reward_kwargs.log_folder", _absolute(str(recipe.out / "scores"))
    yield f"+{section}.reward_kwargs.log_trajectories_every", recipe.train.log_trajectories_every


def _trainer(recipe: VerlRecipe) -> Iterator[tuple[str, Any]]:
    train, cluster = recipe.train, recipe.verl
    yield "trainer.nnodes", cluster.num_nodes
    yield "trainer.n_gpus_per_node", cluster.gpus_per_node
    yield "trainer.total_training_steps", train.steps
    yield "trainer.total_epochs", NO_LIMIT
    yield "trainer.val_before_train", train.eval_every > 0
    yield "trainer.test_freq", train.eval_every or -1
    yield "trainer.save_freq", train.save_every
    yield "trainer.max_actor_ckpt_to_keep", train.keep_checkpoints
    yield "trainer.default_local_dir", _absolute(str(recipe.out / "checkpoints"))
    yield "trainer.logger", cluster.loggers
    yield "trainer.project_name", cluster.project
    yield "trainer.experiment_name", cluster.name or recipe.out.name
    yield "trainer.v1.trainer_mode", cluster.trainer
    if cluster.trainer != "sync":
        yield f"trainer.v1.{cluster.trainer}.num_warmup_batches", cluster.num_warmup_batches
    if cluster.trainer == "separate_async":
        yield "trainer.v1.separate_async.parameter_sync_step", train.updates_per_step
        yield "actor_rollout_ref.hybrid_engine", False


def _own(recipe: VerlRecipe) -> Iterator[tuple[str, Any]]:
    cache = recipe.search.cache
    whole = {
        "address": with_whole_path(recipe.search.address),
        "cache": None if cache is None else _absolute(cache),
    }
    search = recipe.search.model_copy(update=whole)
    for section, settings in (("search", search), ("rollout", recipe.rollout)):
        for key, value in settings.model_dump().items():
            yield f"+{OWN}.{section}.{key}", value
    yield f"+{OWN}.template", recipe.model.template
    yield f"+{OWN}.has_own_reward", rewards.is_own(recipe.reward.preset)
    if f"{PYTHON}:" in recipe.search.address:
        yield f"+{OWN}.folder", _absolute(".")

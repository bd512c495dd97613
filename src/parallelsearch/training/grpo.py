"""GRPO with TRL's trainer around the core's rollout.

TRL gives the loss, the advantages, the optimiser loop and the checkpoints. Overridden are `_generate` (our trajectories as
token ids with a mask), `_generate_and_score_completions` (marks rows that teach nothing), `training_step` (micro-batches of
like length, guards), `_get_per_token_logps_and_entropies` (right-aligned rows without attention mask, model tokens only),
`_compute_loss` (regulariser) and `create_model_card` (none is written). A test fails when TRL renames any of them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from parallelsearch.errors import UsageError, require
from parallelsearch.training import batches, vllm_link
from parallelsearch.training.collect import Collector, score, token_row
from parallelsearch.training.guards import GradientGuard, TrainingStoppedError, displacement
from parallelsearch.training.metrics import Sums, has_zero_variance, trajectory_metrics
from parallelsearch.training.recipe import Recipe, trl_options
from parallelsearch.training.timing import rollout_times
from parallelsearch.training.weights import Weights, refresh_sampler, uses_bfloat16
from parallelsearch.trajectory import Question, Trajectory

torch = require("torch", "train")
require("trl", "train")

from trl import GRPOConfig, GRPOTrainer  # noqa: E402
from trl.trainer.utils import add_fused_lm_head  # noqa: E402

OVERRIDDEN = (
    "_generate",
    "_generate_and_score_completions",
    "training_step",
    "_get_per_token_logps_and_entropies",
    "_compute_loss",
    "create_model_card",
)
"""Methods of TRL's trainer that are replaced here."""
USED = ("_prepare_inputs", "_metrics", "_step", "beta", "ref_model", "reward_funcs", "num_generations")
"""Attributes of TRL's trainer that are read or set here."""


@dataclass(slots=True)
class Plan:
    """Which question stands at which place of the run: fixed by the seed, so that a resumed run asks the same ones."""

    questions: Sequence[Question]
    order: Sequence[int]

    def at(self, position: int) -> Question:
        return self.questions[self.order[position]]


def grpo_config(recipe: Recipe, **changes: Any) -> Any:
    """The recipe in TRL's words. One optimiser step of TRL is one of the recipe's `updates_per_step`."""
    train, rollout = recipe.train, recipe.rollout
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if train.questions_per_step % world:
        raise UsageError(f"{train.questions_per_step} questions a step cannot be shared by {world} processes evenly")
    if train.num_rows % (world * train.updates_per_step):
        raise UsageError(
            f"{train.num_rows} trajectories a step cannot be divided into {train.updates_per_step} updates in {world} "
            "processes"
        )
    use_cpu = not torch.cuda.is_available()
    num_updates = (train.steps or 0) * train.updates_per_step * train.passes_per_step
    bfloat16 = uses_bfloat16(recipe.model, "cpu" if use_cpu else "cuda")
    schedule = "constant_with_warmup" if train.lr_schedule == "constant" else train.lr_schedule
    # TRL refuses groups of one, which PPO may have; the real number is set afterwards.
    group = train.samples_per_question if train.samples_per_question > 1 else train.num_rows
    options: dict[str, Any] = {
        "output_dir": str(recipe.out / "checkpoints"),
        "seed": train.seed,
        "use_cpu": use_cpu,
        "bf16": bfloat16,
        "gradient_checkpointing": recipe.model.gradient_checkpointing,
        "per_device_train_batch_size": train.num_rows // (world * train.updates_per_step),
        "gradient_accumulation_steps": 1,
        "steps_per_generation": train.updates_per_step,
        "num_iterations": train.passes_per_step,
        "num_generations": group,
        "max_steps": num_updates,
        "max_completion_length": rollout.max_tokens,
        "temperature": rollout.temperature,
        "learning_rate": train.lr,
        "lr_scheduler_type": schedule,
        "warmup_steps": int(train.warmup_ratio * num_updates),
        "weight_decay": train.weight_decay,
        "adam_beta1": train.adam_beta1,
        "adam_beta2": train.adam_beta2,
        "max_grad_norm": train.max_grad_norm,
        "beta": 0.0,  # the reference is ours to give (`SearchTrainer`), TRL would load it from the hub id
        "epsilon": train.epsilon,
        "epsilon_high": train.epsilon_high,
        "loss_type": train.loss_type,
        "scale_rewards": train.scale_rewards,
        "use_bias_correction_kl": False,
        "mask_truncated_completions": False,  # "truncated" means no end token to TRL; our turns end on a tag
        "shuffle_dataset": False,  # the plan is shuffled already, over the whole run
        "optim": "adamw_torch" if use_cpu else "adamw_torch_fused",
        "logging_steps": train.updates_per_step * train.passes_per_step,
        "logging_nan_inf_filter": False,  # it would hide from the log what the guard looks for
        "save_strategy": "no",  # saving is asked for by the run, at the borders of steps
        "report_to": "none",
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "ddp_find_unused_parameters": False,
    }
    if rollout.engine == "vllm":
        options |= vllm_link.config_options(recipe)
    config = GRPOConfig(**{**trl_options(recipe, options, GRPOConfig), **changes})
    config.num_generations = train.samples_per_question
    return config


class SearchTrainer(GRPOTrainer):  # type: ignore[misc]  # TRL has no type information
    """TRL's GRPO trainer on trajectories of the core."""

    def __init__(
        self,
        recipe: Recipe,
        weights: Weights,
        collector: Collector,
        plan: Plan,
        *,
        config: Any | None = None,
        guard: GradientGuard | None = None,
        callbacks: Sequence[Any] = (),
    ) -> None:
        from datasets import Dataset

        self.recipe, self.weights, self.collector, self.plan = recipe, weights, collector, plan
        self.guard = guard or GradientGuard(recipe.guards, recipe.out)
        self.figures, self.trajectories = Sums(), list[Trajectory]()
        self.times: dict[str, float] = {}
        self.on_rollouts: Callable[[int, list[Trajectory]], None] | None = None
        self._score_mask: Any = None
        self._logps: Any = None
        self._is_live: Any = None
        self._totals: list[float] = []
        self._token_share = 0.0  # what one token counts in a mean over the update, before `_scale`
        super().__init__(
            model=weights.model,
            reward_funcs=[total_reward],
            args=config or grpo_config(recipe),
            train_dataset=Dataset.from_dict({"prompt": [str(place) for place in range(len(plan.order))]}),
            processing_class=weights.tokenizer,
            callbacks=list(callbacks),
        )
        self.link = vllm_link.WeightLink(self) if self.use_vllm else None
        self.num_generations = recipe.train.samples_per_question
        self.current_gradient_accumulation_steps = 1
        if weights.folded is not None:
            add_fused_lm_head(weights.folded.copy, temperature=self.temperature, outputs=("log_probs", "entropy"))
            if recipe.model.gradient_checkpointing:
                weights.folded.copy.gradient_checkpointing_enable({"use_reentrant": False})
        if recipe.train.beta > 0:
            self.beta = recipe.train.beta
            if weights.reference is not None:
                add_fused_lm_head(weights.reference, temperature=self.temperature)
                self.ref_model = self.accelerator.prepare_model(weights.reference, evaluation_mode=True)

    # ---- rolling out -------------------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """The recipe's step: steps that are finished."""
        train = self.recipe.train
        return int(self.state.global_step) // (train.updates_per_step * train.passes_per_step)

    def refresh(self) -> None:
        """Make the sampler see the newest weights."""
        refresh_sampler(self.accelerator.unwrap_model(self.model), self.weights.sampler)
        if self.link is not None:
            self.link.sync()
        reset = getattr(self.collector.policy, "reset", None)
        if reset is not None:
            reset()
        self.weights.sampler.eval()

    def sample(self, prompts: Sequence[str]) -> dict[str, Any]:
        """The trajectories of a step, scored, as rows: one for each prompt, in order. A prompt is a place in the plan."""
        started = time.perf_counter()
        self.refresh()
        first_row = self.accelerator.process_index * len(prompts)
        questions = [self.plan.at(int(prompt)) for prompt in prompts]
        with torch.no_grad():
            trajectories = self.collector.sample(
                questions, seed=self.recipe.train.seed, step=self.step, first_row=first_row
            )
        self.model.train()
        if all(trajectory.stop == "error" for trajectory in trajectories):
            raise TrainingStoppedError(
                f"stopped at step {self.step}: every rollout failed, the first with: {trajectories[0].error}"
            )
        rolled_out = time.perf_counter()
        self.times |= rollout_times(rolled_out - started, *self.collector.stretches())
        self.times |= {f"time/{name}_s": value for name, value in self.collector.engine_seconds().items()}
        totals = score(trajectories, self.recipe.reward)
        group = self.recipe.train.samples_per_question
        for number, (trajectory, prompt) in enumerate(zip(trajectories, prompts, strict=True)):
            trajectory.group_id, trajectory.sample = f"{self.step}/{prompt}", number % group
        self.figures, self.trajectories = trajectory_metrics(trajectories, group), trajectories
        if self.on_rollouts is not None:
            self.on_rollouts(self.step, trajectories)
        rows = [token_row(trajectory, self._tokenizer.eos_token_id) for trajectory in trajectories]
        self._is_live = torch.tensor(self._live_rows(rows, totals), device=self.accelerator.device)
        self._totals = [0.0 if total is None else total for total in totals]
        self.times["time/score_s"] = time.perf_counter() - rolled_out
        return {
            "prompt_ids": [row.prompt_ids for row in rows],
            "completion_ids": [row.completion_ids for row in rows],
            "logprobs": [row.logprobs for row in rows],
            "env_mask": [row.mask for row in rows],
            "reward": totals,
        }

    def _generate(self, prompts: list[str]) -> tuple[Any, ...]:
        """TRL's own, given a `rollout_func`, would also decode every completion for reward functions that read text, and
        turn lists into tensors number by number: most of a second for 1,024 rows."""
        rows = self.sample(prompts)
        ids, completions, masks = (
            [np.array(values) for values in rows[name]] for name in ("prompt_ids", "completion_ids", "env_mask")
        )
        count = sum(map(len, ids)) + sum(int(mask.sum()) for mask in masks)
        counts = self.accelerator.gather(torch.tensor([count], device=self.accelerator.device))
        self.state.num_input_tokens_seen += int(counts.sum())
        texts = [""] * len(prompts)
        return ids, completions, masks, texts, rows["logprobs"], {"reward": rows["reward"]}, None, []

    def _live_rows(self, rows: Sequence[Any], totals: Sequence[float | None]) -> list[bool]:
        """Which rows go into the loss."""
        live = [row.is_trainable and total is not None for row, total in zip(rows, totals, strict=True)]
        group = self.recipe.train.samples_per_question
        if self.recipe.train.drop_zero_variance and self.drops_equal_groups:
            for start in range(0, len(rows), group):
                if has_zero_variance(totals[start : start + group]):
                    live[start : start + group] = [False] * group
        return live

    drops_equal_groups = True
    """An algorithm that compares within a group learns nothing from one whose rewards are equal."""

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        batch: dict[str, Any] = super()._generate_and_score_completions(inputs)
        batch["is_live"] = self._is_live
        if "old_per_token_logps" in batch:
            # The probabilities under which the tokens were drawn. TRL scores them once more with its own model, while the
            # update goes through the folded copy: two ways of computing, whose difference would count as a change of policy.
            batch["old_per_token_logps"] = batch["sampling_per_token_logps"]
        return batch

    # ---- updating ----------------------------------------------------------------------------------------------------

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """One optimiser step's worth of gradient, in micro-batches of like length."""
        model.train()
        batch = self._prepare_inputs(inputs)
        started = time.perf_counter()
        loss = self.accumulate(model, batch)
        grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        norm = float(torch.nn.utils.get_total_norm(grads)) if grads else 0.0
        self.guard.check(self.step, float(loss), norm, batch)
        self._step += 1
        self.times["time/train_s"] = self.times.get("time/train_s", 0.0) + time.perf_counter() - started
        return loss

    def accumulate(self, model: Any, batch: dict[str, Any]) -> Any:
        """Forward and backward over all rows of an update that teach something; returns the loss over all processes'
        rows, scaled so that averaging gradients over processes is exact."""
        rows, lengths, pieces, totals = self._pieces(batch)
        loss = torch.zeros((), device=self.accelerator.device)
        marks = {name: len(values) for name, values in self._metrics["train"].items()}
        shares: list[int] = []
        world = self.accelerator.num_processes
        folded = self.weights.folded
        if folded is not None:
            folded.refresh()
        for number, piece in enumerate(pieces):
            part = batches.cut(batch, [rows[place] for place in piece], lengths)
            shares.append(sum(lengths["model"][rows[place]] for place in piece))
            scale = self._scale(part, len(piece), shares[-1], totals)
            self._token_share = world / max(1, totals[1]) / scale if scale else 0.0
            sync: AbstractContextManager[Any] = nullcontext()
            if number < len(pieces) - 1:
                sync = self.accelerator.no_sync(model)
            with sync:
                with self.compute_loss_context_manager():
                    value = self.compute_loss(model if folded is None else folded.copy, part) * scale
                self.accelerator.backward(value)
            if folded is not None:
                folded.collect()
            loss += value.detach()
        if folded is not None:
            folded.average(self.accelerator)
        self._weigh(marks, shares)
        return loss

    def _pieces(
        self, batch: dict[str, Any]
    ) -> tuple[list[int], dict[str, list[int]], list[list[int]], tuple[int, int]]:
        """Rows to train on, all rows' lengths, micro-batches as places among the former, and how many live rows and model
        tokens all processes have. Every process gets as many micro-batches with as many rows in each, or TRL's collective
        calls would not match: one that has fewer live rows takes dead ones along, whose weight in the loss is 0."""
        # What counts in the loss: tokens of the completion that the model itself wrote. One transfer brings all counts over.
        mask = batch["completion_mask"] * batch["tool_mask"]
        counts = torch.stack(
            [batch["prompt_mask"].sum(1), batch["completion_mask"].sum(1), mask.sum(1), batch["is_live"].long()]
        ).tolist()
        lengths = {"prompt": counts[0], "completion": counts[1], "model": counts[2]}
        sizes = [prompt + completion for prompt, completion in zip(counts[0], counts[1], strict=True)]
        rows = [row for row, is_live in enumerate(counts[3]) if is_live]
        # The process with most live rows sets how many rows each has; the sums are what a mean over all is divided by.
        mine = torch.tensor([[len(rows), sum(counts[2][row] for row in rows)]], device=mask.device)
        everyone = self.accelerator.gather(mine)
        num_rows = int(everyone[:, 0].max())
        if num_rows == 0:
            return [], lengths, [], (0, 0)
        # Fill up with dead rows, the shortest first, as they cost least. Advantage and mask of 0 take them out of every sum.
        dead = sorted((row for row, is_live in enumerate(counts[3]) if not is_live), key=lambda row: (sizes[row], row))
        for row in dead[: num_rows - len(rows)]:
            batch["advantages"][row] = 0.0
            batch["tool_mask"][row] = lengths["model"][row] = 0
            rows.append(row)
        # Longest first, so that rows of like length share a micro-batch. Place n stands for other rows in other processes:
        # the longest of them decides what fits, so all processes cut at the same places.
        rows.sort(key=lambda row: (-sizes[row], row))
        longest = torch.tensor([[sizes[row] for row in rows]], device=mask.device)
        longest = self.accelerator.gather(longest).amax(0)
        pieces = batches.pack(longest.tolist(), self.recipe.train.micro_batch_tokens)
        return rows, lengths, pieces, (int(everyone[:, 0].sum()), int(everyone[:, 1].sum()))

    def _scale(self, part: dict[str, Any], num_rows: int, num_tokens: int, totals: tuple[int, int]) -> float:
        """What TRL's loss of one micro-batch is to be multiplied with, so that the sum over micro-batches is the mean over
        the whole update, and the mean over processes is right too."""
        world: int = self.accelerator.num_processes
        if self.loss_type == "dapo":  # TRL divides the sum by this number; for the others it takes a mean
            part["num_items_in_batch"] = torch.tensor(
                float(totals[1] * self.args.steps_per_generation), device=part["completion_ids"].device
            )
            return 1.0
        if self.loss_type == "bnpo":
            return num_tokens * world / max(1, totals[1])
        return num_rows * world / max(1, totals[0])

    def _weigh(self, marks: dict[str, int], shares: Sequence[int]) -> None:
        """TRL notes its figures once a micro-batch; replace them by their mean weighted with the tokens."""
        for name, values in self._metrics["train"].items():
            new = values[marks.get(name, 0) :]
            total = sum(shares)
            if len(new) == len(shares) and len(new) > 1 and total > 0:
                mean = sum(value * share for value, share in zip(new, shares, strict=True)) / total
                values[marks.get(name, 0) :] = [mean]

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        mask = inputs["completion_mask"] * inputs["tool_mask"]
        self._score_mask = mask
        try:
            loss = super()._compute_loss(model, inputs)
            logps = self._logps
        finally:
            self._score_mask = self._logps = None
        weight = self.recipe.guards.llds
        if weight > 0 and "old_per_token_logps" in inputs:
            old = inputs["old_per_token_logps"]
            loss = loss + weight * self._token_share * displacement(logps, old, mask, inputs["advantages"])
        drift = (logps.detach() - inputs["sampling_per_token_logps"]).abs() * mask
        self._metrics["train"]["sampler_drift"].append(float(drift.sum() / mask.sum().clamp(min=1)))
        worst = self._metrics["train"]["sampler_drift_max"]
        worst[:] = [max([*worst, float(drift.max())])]  # one value a step, of which TRL then takes the mean
        return loss

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: Any,
        attention_mask: Any,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        compute_aux_loss: bool = False,
        **inputs: Any,
    ) -> tuple[Any, Any, Any]:
        """Log-probabilities of completion tokens; of model tokens only, where the caller has said which those are."""
        if compute_aux_loss or any(value is not None for value in inputs.values()):
            result: tuple[Any, Any, Any] = super()._get_per_token_logps_and_entropies(
                model,
                input_ids,
                attention_mask,
                logits_to_keep,
                batch_size,
                compute_entropy,
                compute_aux_loss,
                **inputs,
            )
            self._logps = result[0]
            return result
        ids, first, lengths = batches.align(input_ids, attention_mask)
        prompt_width = input_ids.shape[1] - logits_to_keep
        scored = attention_mask.clone() if self._score_mask is None else torch.zeros_like(attention_mask)
        scored[:, :prompt_width] = 0
        if self._score_mask is not None:
            scored[:, prompt_width:] = self._score_mask
        labels = batches.align(input_ids.masked_fill(scored == 0, -100), attention_mask)[0]
        places = batches.places_before(first, prompt_width, logits_to_keep)
        logps = torch.zeros(places.shape, dtype=torch.float32, device=ids.device)
        entropies = torch.zeros_like(logps) if compute_entropy else None
        if torch.is_grad_enabled():
            pieces = [list(range(len(ids)))]
        else:
            pieces = batches.pack(lengths.tolist(), self.recipe.train.micro_batch_tokens)
        for piece in pieces:
            index = torch.tensor(piece, device=ids.device)
            width = int(lengths[index].max())
            with self.accelerator.autocast():
                out = model(input_ids=ids[index, :width], labels=labels[index, :width], fused_lm_head=True)
            where = places[index].clamp(max=width - 2)
            inside = scored[index, prompt_width:]
            logps = logps.index_copy(0, index, out.log_probs.float().gather(1, where) * inside)
            if entropies is not None:
                entropies = entropies.index_copy(0, index, out.entropy.float().gather(1, where) * inside)
        self._logps = logps
        return logps, entropies, None

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """No card with each checkpoint: the run's folder has the recipe."""

    def load_extra(self, checkpoint: Path) -> None:
        """What a subclass keeps in a checkpoint beside TRL's own files."""

    # ---- figures -----------------------------------------------------------------------------------------------------

    def step_figures(self) -> dict[str, float]:
        """The figures of the step's trajectories over all processes, and this process's times."""
        gather_object = require("accelerate.utils", "train").gather_object
        merged = Sums()
        merged.merge(gather_object([self.figures.pairs]))
        return {**merged.means(), **self.times}


def total_reward(reward: list[float | None], **_: Any) -> list[float | None]:
    """TRL's view of the reward: already computed, with its components, when the trajectory was scored."""
    return reward

"""A run from recipe to trained policy: load, resume, train, validate, save, plot.

`train` is the whole of it for GRPO and PPO. It can be killed at any moment and started again: it goes on from the newest
whole checkpoint, and its metrics are those of a run that was never killed. `run` is the same with objects in place of names.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parallelsearch.data.sets import hash_questions
from parallelsearch.dialects import open_dialect
from parallelsearch.errors import ParallelSearchError, UsageError, require
from parallelsearch.files import write_json
from parallelsearch.policy.models import quiet_transformers
from parallelsearch.search import Search
from parallelsearch.training import checkpoints, smoke, vllm_link
from parallelsearch.training.collect import Collector, check_questions
from parallelsearch.training.guards import Alarms, TrainingStoppedError
from parallelsearch.training.metrics import MetricsLog, SilentLog, plot, validation_metrics
from parallelsearch.training.questions import load_pools, order_of_run
from parallelsearch.training.recipe import Recipe, load_recipe
from parallelsearch.training.timing import PARTS_OF_STEP, TimeLimit, long_lived
from parallelsearch.training.weights import load_weights, write_notes
from parallelsearch.trajectory import Question, Trajectory

log = logging.getLogger(__name__)

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Result:
    """What a run came to. `best` is the checkpoint with the highest validation accuracy."""

    out: Path
    step: int
    is_finished: bool
    best: Path | None
    best_accuracy: float | None
    last: Path | None


def train(
    recipe: str | os.PathLike[str] | Recipe,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    *,
    say: Say | None = None,
    time_limit_s: float | None = None,
) -> Result:
    """Train as the recipe says, or go on where an earlier start was cut off. `say` gets one line a step; with
    `time_limit_s` the run saves itself and stops before the time is up."""
    settings = recipe if isinstance(recipe, Recipe) else load_recipe(recipe, overrides)
    if settings.sweep is not None:
        raise UsageError("this recipe has a [sweep] section: it stands for several runs; use sweep instead of train")
    pools, validation = load_pools(settings.data, settings.train.seed)
    from parallelsearch.addresses import open_search

    options = settings.search
    search = open_search(
        options.address, k=options.k, cache=options.cache, timeout_s=options.timeout_s, cache_size=options.cache_size
    )
    model = tokenizer = None
    if settings.model.name == smoke.NAME:
        tokenizer = smoke.make_tokenizer()
        model = smoke.make_model(tokenizer, settings.train.seed)
    return run(
        settings, pools, validation, search, model=model, tokenizer=tokenizer, say=say, time_limit_s=time_limit_s
    )


def run(
    recipe: Recipe,
    pools: Sequence[Sequence[Question]],
    validation: Sequence[Question],
    search: Search,
    *,
    model: Any | None = None,
    tokenizer: Any | None = None,
    say: Say | None = None,
    time_limit_s: float | None = None,
    with_plot: bool = True,
) -> Result:
    """`train` with the questions and the search in hand, and the model too if it is given."""
    with checkpoints.held(recipe):
        return _run(recipe, pools, validation, search, model, tokenizer, say, time_limit_s, with_plot)


def _run(
    recipe: Recipe,
    pools: Sequence[Sequence[Question]],
    validation: Sequence[Question],
    search: Search,
    model: Any | None,
    tokenizer: Any | None,
    say: Say | None,
    time_limit_s: float | None,
    with_plot: bool,
) -> Result:
    if recipe.train.algorithm == "sft":
        raise UsageError("this recipe is for SFT (train.algorithm); it is run by parallelsearch.training.sft")
    questions = [question for pool in pools for question in pool]
    check_questions(questions, recipe.reward, "training")
    if recipe.train.eval_every:
        check_questions(validation, recipe.reward, "validation")
    uses_vllm = recipe.rollout.engine == "vllm"
    if uses_vllm:
        vllm_link.check(recipe)
    facts = {"questions": hash_questions(questions), "validation_questions": hash_questions(validation)}
    checkpoints.check_same_run(recipe, facts)
    from parallelsearch.training.grpo import Plan, SearchTrainer, grpo_config
    from parallelsearch.training.sampler import sampling_policy

    started_s = time.monotonic()
    steps = recipe.train.steps or 0
    count = steps * recipe.train.questions_per_step
    plan = Plan(questions, order_of_run([len(pool) for pool in pools], recipe.data.mix, count, recipe.train.seed))
    config = grpo_config(recipe)
    weights = load_weights(
        recipe.model,
        config.device,
        needs_reference=recipe.train.beta > 0,
        needs_critic=recipe.train.algorithm == "ppo",
        samples_elsewhere=uses_vllm,
        seed=recipe.train.seed,
        model=model,
        tokenizer=tokenizer,
    )
    collector = Collector(sampling_policy(recipe, weights), search, recipe.rollout)
    trainer_class: Any = SearchTrainer
    if recipe.train.algorithm == "ppo":
        from parallelsearch.training.ppo import PpoTrainer

        trainer_class = PpoTrainer
    trainer = trainer_class(recipe, weights, collector, plan, config=config)
    checkpoints.write_manifest(recipe, facts)
    current = Run(recipe, trainer, validation, say or (lambda line: None), started_s, time_limit_s)
    try:
        result = current.go()
        if with_plot and current.is_main and result.is_finished:
            _plot(recipe.out, current.say)
        return result
    except require("torch", "train").OutOfMemoryError as error:
        raise TrainingStoppedError(
            f"out of memory at step {trainer.step}: lower train.micro_batch_tokens (now "
            f"{recipe.train.micro_batch_tokens}) first, then rollout.num_slots, rollout.max_tokens or the number of "
            f"trajectories; or set model.lora_rank, model.gradient_checkpointing = true. ({error})"
        ) from error
    finally:
        collector.close()
        current.metrics.close()


def _plot(folder: Path, say: Say) -> None:
    try:
        plot(folder)
    except ParallelSearchError as error:
        say(f"no plot: {error}")


class Run:
    """One run: the trainer, and what happens around its updates: validation, records, checkpoints, alarms, a line a step."""

    def __init__(
        self,
        recipe: Recipe,
        trainer: Any,
        validation: Sequence[Question],
        say: Say,
        started_s: float,
        time_limit_s: float | None,
    ) -> None:
        self.recipe, self.trainer, self.validation, self.say = recipe, trainer, list(validation), say
        self.folder = recipe.out / "checkpoints"
        self.is_main = bool(trainer.accelerator.is_main_process)
        self.metrics = MetricsLog(recipe.out, run_name=recipe.out.name) if self.is_main else SilentLog(recipe.out)
        may_split = open_dialect(recipe.rollout.dialect).may_split and recipe.rollout.max_subqueries > 1
        self.alarms = Alarms(recipe.guards, recipe.train.steps, may_split)
        self.best: tuple[float, int] | None = None
        self._step_began_s = time.perf_counter()
        self._time_limit = TimeLimit(time_limit_s, spare_steps=1.5, started_s=started_s)
        trainer.on_rollouts = self.keep_samples
        _attach(trainer, self)

    # ---- from start to end -------------------------------------------------------------------------------------------

    def go(self) -> Result:
        found = checkpoints.completed(self.folder)
        step, checkpoint = found[-1] if found else (0, None)
        if self.is_main:
            checkpoints.remove_incomplete(self.folder)
            self.metrics.resume(step)
        self.trainer.accelerator.wait_for_everyone()
        if not self.is_main:  # every process must know the best so far, or they disagree on what to save
            self.metrics.resume(step)
        self._recall()
        steps = self.recipe.train.steps or 0
        if step >= steps:
            self.say(f"step {step} of {steps} is done already; raise train.steps to go on")
            return self._result(step)
        if checkpoint is not None:
            self.say(f"going on from step {step} ({checkpoint})")
            checkpoints.accept_numbered_cpu()
            with checkpoints.explained(checkpoint, self.folder):
                self.trainer.load_extra(checkpoint)
        with quiet_transformers(), long_lived(), checkpoints.explained(checkpoint, self.folder):
            self.trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint is not None else None)
        return self._result(self.trainer.step)

    def _recall(self) -> None:
        """What an interrupted run knew at its last checkpoint."""
        self.alarms.resume([record for record in self.metrics.records if "loss" in record])
        for at, accuracy in self.metrics.series("val/accuracy"):
            if self.best is None or accuracy >= self.best[0]:
                self.best = (accuracy, at)

    def _result(self, step: int) -> Result:
        known = dict(checkpoints.completed(self.folder))
        best = known.get(self.best[1]) if self.best is not None else None
        return Result(
            out=self.recipe.out,
            step=step,
            is_finished=step >= (self.recipe.train.steps or 0),
            best=best,
            best_accuracy=self.best[0] if self.best is not None else None,
            last=known[max(known)] if known else None,
        )

    # ---- called by the trainer ---------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Before the first step of this start."""
        self.say(legend())
        if self.trainer.step == 0 and self.recipe.train.eval_every and not self.metrics.series("val/accuracy"):
            self.validate(0)
        self._step_began_s = time.perf_counter()

    def end_of_update(self, control: Any) -> None:
        """After an optimiser step; the rest is for those that end a step of the recipe."""
        train = self.recipe.train
        if self.trainer.state.global_step % (train.updates_per_step * train.passes_per_step):
            return
        step, steps = self.trainer.step, train.steps or 0
        took_s = time.perf_counter() - self._step_began_s
        times = self.trainer.times
        times["time/step_s"] = took_s
        times["time/other_s"] = took_s - sum(times.get(name, 0.0) for name in PARTS_OF_STEP)
        is_best = False
        if train.eval_every and (step % train.eval_every == 0 or step == steps):
            is_best = self.validate(step)
        is_out_of_time = self._time_limit.is_up(self.trainer.accelerator, took_s)
        control.should_log = True
        control.should_save = is_best or step % train.save_every == 0 or step == steps or is_out_of_time
        if is_out_of_time:
            control.should_training_stop = True
        self._step_began_s = time.perf_counter()

    def write(self, logs: Mapping[str, float]) -> None:
        """The record of a step: TRL's figures and ours."""
        if "loss" not in logs:
            return
        figures = self.trainer.step_figures()
        self.trainer.times = {}
        kept = {name: logs[name] for name in TRL_FIGURES if logs.get(name) is not None}
        record = {**kept, **{name: value for name, value in logs.items() if name.startswith("ppo/")}, **figures}
        alarms = self.alarms.step(record)
        for alarm in alarms:
            log.warning("alarm: %s: %s", alarm.name, alarm.message)
            self.say(f"ALARM {alarm.name}: {alarm.message}")
        if alarms:
            record = {**record, "alarms": " ".join(alarm.name for alarm in alarms)}
        self.metrics.write(self.trainer.step, record)
        self.say(step_line(self.trainer.step, self.recipe.train.steps or 0, record))
        if alarms and self.recipe.guards.stop_on_alarm:
            raise TrainingStoppedError(
                f"stopped at step {self.trainer.step} by guards.stop_on_alarm: "
                + "; ".join(f"{alarm.name}: {alarm.message}" for alarm in alarms)
            )

    def saved(self) -> None:
        """A checkpoint's files are written: mark it, then clear away what is too old."""
        self.trainer.accelerator.wait_for_everyone()
        if not self.is_main:
            return
        folder = self.folder / f"checkpoint-{self.trainer.state.global_step}"
        self.trainer.weights.tokenizer.save_pretrained(folder)
        weights, dialect = self.trainer.weights, self.recipe.rollout.dialect
        write_notes(folder, weights.base, self.recipe.model.name, open_dialect(dialect or weights.dialect).name)
        checkpoints.mark_complete(folder, self.trainer.step)
        best_step = self.best[1] if self.best is not None else None
        checkpoints.rotate(self.folder, self.recipe.train.keep_checkpoints, best_step)
        if self.best is not None:
            known = dict(checkpoints.completed(self.folder))
            where = known[self.best[1]].name if self.best[1] in known else None
            write_json(
                self.recipe.out / "best.json", {"step": self.best[1], "accuracy": self.best[0], "checkpoint": where}
            )

    def keep_samples(self, step: int, trajectories: list[Trajectory]) -> None:
        count = self.recipe.train.log_trajectories
        if self.is_main and count:
            stride = max(1, len(trajectories) // count)
            self.metrics.write_trajectories(step, trajectories[::stride][:count])

    def validate(self, step: int) -> bool:
        """Greedy answers to the held-out questions. True if accuracy is the best so far."""
        began_s = time.perf_counter()
        self.trainer.refresh()
        accelerator = self.trainer.accelerator
        mine = self.validation[accelerator.process_index :: accelerator.num_processes]
        torch = require("torch", "train")
        with torch.no_grad():
            trajectories = self.trainer.collector.answer(mine)
        self.trainer.model.train()
        sums = validation_metrics(trajectories)
        pairs = require("accelerate.utils", "train").gather_object([sums.pairs])
        sums.pairs = {}
        sums.merge(pairs)
        figures = sums.means()
        accuracy = figures["val/accuracy"]
        is_best = self.best is None or accuracy >= self.best[0]  # of two equal ones the later has learned more
        if is_best:
            self.best = (accuracy, step)
        self.metrics.write(step, {**figures, "time/validation_s": time.perf_counter() - began_s})
        if self.recipe.train.log_trajectories:
            self.metrics.write_trajectories(step, trajectories[: self.recipe.train.log_trajectories], "validation")
        self.say(validation_line(step, figures, is_best))
        return is_best


TRL_FIGURES = (
    *("loss", "grad_norm", "learning_rate", "kl", "entropy", "clip_ratio/region_mean"),
    *("sampler_drift", "sampler_drift_max"),
    "sampling/importance_sampling_ratio/mean",  # only with vLLM
)


STEP_FIGURES: tuple[tuple[str, str, str, str], ...] = (
    ("reward", "reward/total", ".3f", "mean reward of the trajectories"),
    ("em", "accuracy", ".3f", "share of answers that are an exact match"),
    ("par", "split/parallel", ".2f", "share of the parallel questions that were split"),
    ("seq", "split/sequential", ".2f", "the same of chains, where a split is a mistake"),
    ("calls", "llm_calls", ".2f", "turns the model wrote for a question"),
    (
        "zero",
        "zero_variance_groups",
        ".2f",
        "share of the questions whose samples all got one reward: nothing to learn",
    ),
    ("ent", "entropy", ".2f", "entropy of the tokens, in nats"),
    ("kl", "kl", ".4f", "distance from the reference, where train.beta is set"),
    ("gn", "grad_norm", ".2f", "norm of the gradient"),
    ("roll", "time/rollout_s", ".1f", "seconds for the rollouts"),
    ("train", "time/train_s", ".1f", "seconds for the update"),
    ("all", "time/step_s", ".1f", "seconds for the step"),
)
"""The figures that matter: how the line of a step calls one, its name in the metrics, its form, and what it is."""


def step_line(step: int, steps: int, record: Mapping[str, Any]) -> str:
    shown = [
        f" {label} {value:{form}}"
        for label, name, form, _ in STEP_FIGURES
        if isinstance(value := record.get(name), int | float)
    ]
    return f"step {step}/{steps}{''.join(shown)}s"


def legend() -> str:
    """What the line of a step says, for a person who sees it for the first time."""
    return "\n".join(["each step has a line:", *(f"  {label:<7}{words}" for label, _, _, words in STEP_FIGURES)])


def validation_line(step: int, figures: Mapping[str, float], is_best: bool) -> str:
    kinds = " ".join(
        f"{name.removeprefix('val/')} {value:.3f}" for name, value in figures.items() if name.count("/") == 2
    )
    mark = " (best so far)" if is_best else ""
    return f"validation at step {step}: accuracy {figures['val/accuracy']:.3f}{mark} {kinds}"


def _attach(trainer: Any, run: Run) -> None:
    transformers = require("transformers", "train")

    class Events(transformers.TrainerCallback):  # type: ignore[misc, name-defined]  # no type information there
        """Passes the trainer's moments on to the run."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            run.begin()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_log = control.should_save = control.should_evaluate = False
            run.end_of_update(control)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            run.write(logs or {})

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            run.saved()

    trainer.remove_callback(transformers.PrinterCallback)
    trainer.add_callback(Events())

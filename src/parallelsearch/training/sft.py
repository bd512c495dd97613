"""SFT: a policy learns the turns of the cold start, on TRL's `SFTTrainer`.

Rows are the token ids of trajectories as the rollout's own encoder made them; nothing is tokenised again. Only tokens that
the model is to write have a label, so passages and notices teach nothing. LoRA or all weights, as the recipe says. A run
that was killed goes on from its newest whole checkpoint; what it has learned is in `final/` when it is done.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parallelsearch.errors import UsageError, nearest, require
from parallelsearch.policy.models import quiet_transformers
from parallelsearch.training import checkpoints
from parallelsearch.training.batches import RowOrder, num_fillers, pieces_of
from parallelsearch.training.folded import Folded
from parallelsearch.training.guards import TrainingStoppedError
from parallelsearch.training.metrics import MetricsLog, SilentLog
from parallelsearch.training.recipe import Recipe, trl_options
from parallelsearch.training.timing import TimeLimit
from parallelsearch.training.weights import Weights, load_weights, uses_bfloat16, write_notes
from parallelsearch.trajectory import Trajectory, read_trajectories

IGNORED = -100
_QUIET_S = 60.0
"""On a slow machine a step takes minutes: whoever watches hears of one at least so often."""
"""The label of a token that is not trained on, in torch's convention."""
FINAL = "final"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SftRow:
    """One trajectory as the trainer gets it."""

    input_ids: list[int]
    labels: list[int]


@dataclass(slots=True)
class SftRows:
    """All rows, and how many trajectories gave none."""

    rows: list[SftRow]
    num_too_long: int = 0
    num_untrainable: int = 0
    dialects: set[str | None] = field(default_factory=set)
    """Those of the trajectories."""

    @property
    def dialect(self) -> str | None:
        """The one dialect that all trajectories speak, if there is one."""
        return next(iter(self.dialects)) if len(self.dialects) == 1 else None

    @property
    def hash(self) -> str:
        """Tells one set of rows from another, whatever file it came from."""
        digest = hashlib.sha256()
        for row in self.rows:
            digest.update(array("i", row.input_ids).tobytes() + array("i", row.labels).tobytes() + b"\x1e")
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class SftResult:
    """What a run came to. `final` is the trained adapter or model; None if the run was stopped before its end."""

    out: Path
    step: int
    num_steps: int
    final: Path | None
    loss: float | None
    num_rows: int


def labelled_row(trajectory: Trajectory) -> SftRow:
    """The ids of a trajectory with labels on what the model wrote. A restored stop string has no ids of its own."""
    prompt, response = trajectory.prompt_ids(), trajectory.response_ids()
    labels = [token if mask else IGNORED for token, mask in zip(response, trajectory.loss_mask(), strict=True)]
    return SftRow(prompt + response, [IGNORED] * len(prompt) + labels)


def rows_of(trajectories: Iterable[Trajectory], max_length: int) -> SftRows:
    """Rows for all trajectories that fit. One without token ids cannot be trained on: it was not made for this model."""
    found = SftRows([])
    for trajectory in trajectories:
        if not trajectory.has_token_ids:
            raise UsageError(
                f"trajectory '{trajectory.id or trajectory.question}' has no token ids, so it was not written with this "
                "model's encoder; build the data with 'parallelsearch coldstart'"
            )
        row = labelled_row(trajectory)
        if len(row.input_ids) > max_length:
            found.num_too_long += 1
        elif all(label == IGNORED for label in row.labels):
            found.num_untrainable += 1
        else:
            found.rows.append(row)
            found.dialects.add(trajectory.dialect)
    return found


def load_rows(files: Sequence[str], max_length: int) -> SftRows:
    """The rows of trajectory files, in their order."""
    for file in files:
        if not Path(file).is_file():
            near = nearest(Path(file).name, [path.name for path in Path(file).parent.glob("*")])
            raise UsageError(f"there is no file of trajectories '{file}'.{near}")
    trajectories = (trajectory for file in files for trajectory in read_trajectories(file))
    found = rows_of(trajectories, max_length)
    if not found.rows:
        raise UsageError(
            f"no trajectory of {', '.join(files)} can be trained on: {found.num_too_long} are longer than "
            f"train.max_length = {max_length}, {found.num_untrainable} have no token of the model"
        )
    return found


# ---- the run ---------------------------------------------------------------------------------------------------------


def run_sft(
    recipe: Recipe,
    rows: SftRows | None = None,
    *,
    model: Any | None = None,
    tokenizer: Any | None = None,
    say: Say | None = None,
    time_limit_s: float | None = None,
    callbacks: Sequence[Any] = (),
) -> SftResult:
    """Train as the recipe says, or go on where an earlier start was cut off, with the rows and the model in hand, if they are
    given. `callbacks` are transformers' own: an evaluation between epochs is one."""
    if recipe.train.algorithm != "sft":
        raise UsageError(f"this recipe is for {recipe.train.algorithm} (train.algorithm), not for sft")
    with checkpoints.held(recipe):
        return _run_sft(recipe, rows, model, tokenizer, say, time_limit_s, callbacks)


def _run_sft(
    recipe: Recipe,
    rows: SftRows | None,
    model: Any | None,
    tokenizer: Any | None,
    say: Say | None,
    time_limit_s: float | None,
    callbacks: Sequence[Any],
) -> SftResult:
    torch = require("torch", "train")
    started_s = time.monotonic()
    tell = say or (lambda _: None)
    rows = rows or load_rows(recipe.data.train_sources, recipe.train.max_length)
    if rows.num_too_long or rows.num_untrainable:
        tell(f"left out: {rows.num_too_long} too long, {rows.num_untrainable} without a token of the model")
    facts = {"rows": rows.hash}
    checkpoints.check_same_run(recipe, facts)
    weights = load_weights(
        recipe.model,
        _config(recipe, rows).device,
        needs_reference=False,
        seed=recipe.train.seed,
        model=model,
        tokenizer=tokenizer,
    )
    _check_vocabulary(rows, weights.model)
    if recipe.model.compile and weights.folded is None:
        tell("model.compile does nothing here: no adapter is folded into a copy (model.fold)")
    config = _config(recipe, rows, folds=weights.folded is not None)
    trainer = _make_trainer(recipe, rows, weights, config, callbacks)
    checkpoints.write_manifest(recipe, facts)
    time_limit = TimeLimit(time_limit_s, spare_steps=3, started_s=started_s)
    run = _SftRun(recipe, weights, trainer, tell, time_limit, rows.dialect)
    try:
        return run.go(len(rows.rows))
    except torch.OutOfMemoryError as error:
        raise TrainingStoppedError(
            f"out of memory: lower train.micro_batch_tokens (now {recipe.train.micro_batch_tokens}), or set "
            f"model.lora_rank or model.gradient_checkpointing. ({error})"
        ) from error
    finally:
        run.metrics.close()


def _check_vocabulary(rows: SftRows, model: Any) -> None:
    size = int(model.get_input_embeddings().weight.shape[0])
    highest = max(max(row.input_ids) for row in rows.rows)
    if highest >= size:
        raise UsageError(
            f"the data has token {highest}, and this model knows {size}; it was built for another tokenizer"
        )


def micro_batch(batch_size: int, longest: int, max_tokens: int, num_processes: int = 1) -> int:
    """Rows in one forward pass: the largest divisor of a process's share of the batch that keeps within `max_tokens`."""
    if batch_size % num_processes:
        raise UsageError(f"train.batch_size = {batch_size} cannot be shared by {num_processes} processes evenly")
    share = batch_size // num_processes
    room = max(1, max_tokens // max(1, longest))
    return max(size for size in range(1, share + 1) if share % size == 0 and size <= max(1, room))


def _config(recipe: Recipe, rows: SftRows, folds: bool = False) -> Any:
    """The recipe in TRL's words."""
    trl = require("trl", "train")
    use_cpu = not require("torch", "train").cuda.is_available()
    train = recipe.train
    world = int(os.environ.get("WORLD_SIZE", "1"))
    longest = max(len(row.input_ids) for row in rows.rows)
    size = micro_batch(train.batch_size, longest, train.micro_batch_tokens, world)
    if folds and world == 1:  # each step cuts its rows by their own lengths
        size = train.batch_size
    num_steps = train.steps or math.ceil(train.epochs * math.ceil(len(rows.rows) / train.batch_size))
    schedule = "constant_with_warmup" if train.lr_schedule == "constant" else train.lr_schedule
    options: dict[str, Any] = {
        "output_dir": str(recipe.out / "checkpoints"),
        "seed": train.seed,
        "data_seed": train.seed,
        "use_cpu": use_cpu,
        "bf16": uses_bfloat16(recipe.model, "cpu" if use_cpu else "cuda"),
        "gradient_checkpointing": recipe.model.gradient_checkpointing,
        "per_device_train_batch_size": size,
        "gradient_accumulation_steps": train.batch_size // (world * size),
        "max_steps": num_steps,
        "learning_rate": train.lr,
        "lr_scheduler_type": schedule,
        "warmup_steps": int(train.warmup_ratio * num_steps),
        "weight_decay": train.weight_decay,
        "adam_beta1": train.adam_beta1,
        "adam_beta2": train.adam_beta2,
        "max_grad_norm": train.max_grad_norm,
        "max_length": None,  # rows are whole or left out: a cut row would teach to stop in the middle
        "packing": False,
        "dataset_kwargs": {"skip_prepare_dataset": True},
        "optim": "adamw_torch" if use_cpu else "adamw_torch_fused",
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "save_strategy": "no",  # saving is asked for by the run
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_num_workers": 0,
        "ddp_find_unused_parameters": False,
    }
    return trl.SFTConfig(**trl_options(recipe, options, trl.SFTConfig))


def _make_trainer(recipe: Recipe, rows: SftRows, weights: Weights, config: Any, callbacks: Sequence[Any]) -> Any:
    trl = require("trl", "train")
    datasets = require("datasets", "train")
    round_size = config.train_batch_size * config.world_size
    filler = SftRow([0, 0], [IGNORED, IGNORED])
    filled = [*rows.rows, *[filler] * num_fillers(len(rows.rows), round_size)]
    dataset = datasets.Dataset.from_dict(
        {"input_ids": [row.input_ids for row in filled], "labels": [row.labels for row in filled]}
    )
    trainer_class = _ordered_trainer(trl.SFTTrainer, recipe, rows, round_size)
    if weights.folded is not None:
        trainer_class = _folded_trainer(trainer_class, weights.folded, recipe.train.micro_batch_tokens)
    trainer = trainer_class(
        model=weights.model,
        args=config,
        train_dataset=dataset,
        processing_class=weights.tokenizer,
        callbacks=list(callbacks),
    )
    if weights.folded is not None:
        utils = require("trl.trainer.utils", "train")
        utils.add_fused_lm_head(weights.folded.copy, outputs=("log_probs", "entropy", "is_top1"))
        if recipe.model.gradient_checkpointing:
            weights.folded.copy.gradient_checkpointing_enable({"use_reentrant": False})
        if recipe.model.compile:
            weights.folded.compile()
    return trainer


def _ordered_trainer(base: Any, recipe: Recipe, rows: SftRows, round_size: int) -> Any:
    lengths = [len(row.input_ids) for row in rows.rows]
    batch_size = recipe.train.batch_size
    steps_in_pass = math.ceil(len(lengths) / batch_size)

    class OrderedTrainer(base):  # type: ignore[misc]  # TRL has no type information
        """TRL's trainer, with the rows in an order that outlives it."""

        def _get_train_sampler(self, train_dataset: Any = None) -> RowOrder:
            def number_of_pass() -> int:
                return int(self.state.global_step) // steps_in_pass

            return RowOrder(lengths, batch_size, round_size, recipe.train.seed, number_of_pass)

    return OrderedTrainer


def _folded_trainer(base: Any, folded: Folded, max_tokens: int) -> Any:
    class Maskless:
        """The copy, without an attention mask: rows are padded on the right, where a causal model does not look."""

        def __call__(self, **inputs: Any) -> Any:
            inputs.pop("attention_mask", None)
            return folded.copy(**inputs)

        def train(self) -> None:
            folded.copy.train()

    class FoldedTrainer(base):  # type: ignore[misc]  # TRL has no type information
        """TRL's trainer, with forward and backward through the folded copy, piece by piece: rows of like length, as
        many as `max_tokens` holds. Each piece's loss is its share of the whole step's. Several processes need equally
        many pieces, because TRL gathers figures at each: there a piece is a micro-batch."""

        _is_stale = True

        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
            if self._is_stale:
                folded.refresh()
            pieces = pieces_of(inputs, max_tokens) if self.args.world_size == 1 else [inputs]
            losses, sizes = [], []
            for piece in pieces:
                sizes.append(int((piece["labels"][:, 1:] >= 0).sum()))
                losses.append(super().training_step(Maskless(), piece, num_items_in_batch))
                folded.collect()
            self._tell_once(sizes)
            self._is_stale = self.accelerator.sync_gradients
            if self._is_stale:
                folded.average(self.accelerator)
            return sum(losses)

        def _tell_once(self, sizes: Sequence[int]) -> None:
            """TRL takes the mean of what each piece tells, and a piece of a few tokens must not count like a full one."""
            for name in ("entropy", "mean_token_accuracy"):
                told = self._metrics["train"][name]
                total = sum(size * value for size, value in zip(sizes, told[-len(sizes) :], strict=True))
                told[-len(sizes) :] = [total / max(1, sum(sizes))]

    return FoldedTrainer


class _SftRun:
    """One run: the trainer, and what happens around its updates: records, checkpoints, the time limit, some lines."""

    def __init__(
        self, recipe: Recipe, weights: Weights, trainer: Any, say: Say, time_limit: TimeLimit, dialect: str | None
    ) -> None:
        self.dialect = dialect
        self.recipe, self.weights, self.trainer, self.say, self.time_limit = recipe, weights, trainer, say, time_limit
        self.started_s = time.monotonic()
        self.folder = recipe.out / "checkpoints"
        self.is_main = bool(trainer.accelerator.is_main_process)
        self.metrics = MetricsLog(recipe.out, run_name=recipe.out.name) if self.is_main else SilentLog(recipe.out)
        self.loss: float | None = None
        self.num_steps = int(trainer.args.max_steps)
        self._step_began_s = self._said_s = self.started_s
        self._attach()

    def go(self, num_rows: int) -> SftResult:
        final = self.recipe.out / FINAL
        done = checkpoints.marked_step(final)
        if done is not None and done >= self.num_steps:
            self.say(f"{final} is there already; the run is done")
            return SftResult(self.recipe.out, done, self.num_steps, final, None, num_rows)
        found = checkpoints.completed(self.folder)
        step, checkpoint = found[-1] if found else (0, None)
        if self.is_main:
            checkpoints.remove_incomplete(self.folder)
            self.metrics.resume(step)
        self.trainer.accelerator.wait_for_everyone()
        if checkpoint is not None:
            checkpoints.accept_numbered_cpu()
            self.say(f"going on from step {step} of {self.num_steps} ({checkpoint})")
        with quiet_transformers(), checkpoints.explained(checkpoint, self.folder):
            self.trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint is not None else None)
        step = int(self.trainer.state.global_step)
        is_done = step >= self.num_steps
        if is_done:
            with checkpoints.explained(None, self.recipe.out, FINAL):
                self.trainer.save_model(str(final))  # the first process writes, all have to ask
                if self.is_main:
                    self.weights.tokenizer.save_pretrained(final)
                    write_notes(final, self.weights.base, self.recipe.model.name, self.dialect)
                    checkpoints.mark_complete(final, step)
            self.trainer.accelerator.wait_for_everyone()
        return SftResult(self.recipe.out, step, self.num_steps, final if is_done else None, self.loss, num_rows)

    def end_of_step(self, control: Any) -> None:
        now_s = time.monotonic()
        took_s, self._step_began_s = now_s - self._step_began_s, now_s
        step = int(self.trainer.state.global_step)
        control.should_log, control.should_save = True, step % self.recipe.train.save_every == 0
        if step < self.num_steps and self.time_limit.is_up(self.trainer.accelerator, took_s):
            self.say(f"time is up at step {step} of {self.num_steps}; saved, start again to go on")
            control.should_save = control.should_training_stop = True

    def write(self, logs: Mapping[str, Any]) -> None:
        if "loss" not in logs:
            return
        step = int(self.trainer.state.global_step)
        self.loss = float(logs["loss"])
        if not math.isfinite(self.loss):
            raise TrainingStoppedError(
                f"the loss is {self.loss} at step {step}; lower train.lr (now {self.recipe.train.lr:g})"
            )
        names = ("loss", "grad_norm", "learning_rate", "entropy", "mean_token_accuracy", "epoch")
        record = {name: float(logs[name]) for name in names if logs.get(name) is not None}
        self.metrics.write(step, {**record, "time/elapsed_s": time.monotonic() - self.started_s})
        now_s = time.monotonic()
        if step % 20 == 0 or step in (1, self.num_steps) or now_s - self._said_s >= _QUIET_S:
            self._said_s = now_s
            accuracy = record.get("mean_token_accuracy", math.nan)
            self.say(f"step {step}/{self.num_steps} loss {self.loss:.4f} token accuracy {accuracy:.3f}")

    def saved(self) -> None:
        """A checkpoint's files are written: mark it, then clear away what is too old."""
        self.trainer.accelerator.wait_for_everyone()
        if not self.is_main:
            return
        step = int(self.trainer.state.global_step)
        saved = self.folder / f"checkpoint-{step}"
        write_notes(saved, self.weights.base, self.recipe.model.name, self.dialect)
        checkpoints.mark_complete(saved, step)
        checkpoints.rotate(self.folder, self.recipe.train.keep_checkpoints, None)

    def _attach(self) -> None:
        transformers = require("transformers", "train")
        run = self

        class Events(transformers.TrainerCallback):  # type: ignore[misc, name-defined]  # no type information there
            """Passes the trainer's moments on."""

            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                run.end_of_step(control)

            def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
                run.write(logs or {})

            def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                run.saved()

        self.trainer.remove_callback(transformers.PrinterCallback)
        self.trainer.add_callback(Events())

"""What a run tells: one JSON object a step, always; TensorBoard, trackio and W&B where they are installed.

`trajectory_metrics` turns the trajectories of a step into sums that can be added over processes, each thing apart.
`MetricsLog` writes `metrics.jsonl`, one flushed line a record, and on resume cuts the file back to the checkpoint, so that
a run that was killed has the same curve as one that was not. Times are kept under `time/`: they never repeat exactly.
Validation reports accuracy (exact match), never reward.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from parallelsearch.answers import f1
from parallelsearch.errors import DataError, ParallelSearchError
from parallelsearch.evaluation.plots import Figure, Series, save_grid
from parallelsearch.files import write_lines
from parallelsearch.rewards import PARTS
from parallelsearch.trajectory import KINDS, STOPS, Trajectory, write_trajectories

log = logging.getLogger(__name__)

METRICS_FILE, SAMPLES_FOLDER = "metrics.jsonl", "trajectories"
TRACKERS = ("tensorboard", "trackio", "wandb")


class Sums:
    """Means in the making: name -> (sum, count). Adding two of them is exact, so processes can be merged."""

    def __init__(self) -> None:
        self.pairs: dict[str, tuple[float, int]] = {}

    def add(self, name: str, value: float, count: int = 1) -> None:
        total, number = self.pairs.get(name, (0.0, 0))
        self.pairs[name] = (total + value, number + count)

    def merge(self, others: Iterable[Mapping[str, tuple[float, int]]]) -> None:
        for pairs in others:
            for name, (value, count) in pairs.items():
                self.add(name, value, count)

    def means(self) -> dict[str, float]:
        return {name: total / count for name, (total, count) in sorted(self.pairs.items()) if count}


def trajectory_metrics(trajectories: Sequence[Trajectory], samples_per_question: int = 1) -> Sums:
    """Every figure of a step's trajectories. Split ratios are over questions of one kind that searched or not."""
    sums = Sums()
    for trajectory in trajectories:
        rewards = trajectory.rewards
        if rewards is not None:
            for part in PARTS:
                sums.add(f"reward/{part}", rewards[part])
        sums.add("accuracy", float(trajectory.is_right))
        sums.add("split/all", float(trajectory.is_split))
        if trajectory.kind is not None:
            sums.add(f"split/{trajectory.kind}", float(trajectory.is_split))
            sums.add(f"llm_calls/{trajectory.kind}", trajectory.num_llm_calls)
        sums.add("llm_calls", trajectory.num_llm_calls)
        sums.add("searches", trajectory.num_searches)
        sums.add("subqueries", trajectory.num_subqueries)
        if num_shown := trajectory.num_passages_shown:
            sums.add("passages_cut", trajectory.num_passages_cut / num_shown)
        sums.add("search_rate", float(trajectory.num_searches > 0))
        sums.add("invalid_turns", len(trajectory.invalid_turns))
        sums.add("turns_with_problems", sum(bool(turn.problems) for turn in trajectory.turns))
        sums.add("truncated_turns", trajectory.num_truncated)
        sums.add("search_failures", trajectory.num_failed_queries)
        for stop in STOPS:
            sums.add(f"stop/{stop}", float(trajectory.stop == stop))
        sums.add("model_tokens", sum(turn.num_tokens or 0 for turn in trajectory.turns))
    for start in range(0, len(trajectories), samples_per_question) if samples_per_question > 1 else ():
        group = trajectories[start : start + samples_per_question]
        total, outcome = ([(t.rewards or {}).get(part) for t in group] for part in ("total", "outcome"))
        sums.add("zero_variance_groups", float(has_zero_variance(total)))
        sums.add("shaping_only_groups", float(has_zero_variance(outcome) and not has_zero_variance(total)))
    return sums


def has_zero_variance(totals: Sequence[float | None]) -> bool:
    """All rewards of a group are the same: nothing to learn from comparing them."""
    known = [total for total in totals if total is not None]
    return len(known) < 2 or max(known) - min(known) < 1e-9


def validation_metrics(trajectories: Sequence[Trajectory]) -> Sums:
    """Accuracy and behaviour on the held-out set, over all and by kind. No reward in it."""
    sums = Sums()
    for trajectory in trajectories:
        right = float(trajectory.is_right)
        sums.add("val/accuracy", right)
        sums.add("val/f1", f1(trajectory.answer, trajectory.golden_answers))
        sums.add("val/llm_calls", trajectory.num_llm_calls)
        sums.add("val/searches", trajectory.num_searches)
        sums.add("val/answered", float(trajectory.answer is not None))
        if trajectory.kind is not None:
            sums.add(f"val/accuracy/{trajectory.kind}", right)
            sums.add(f"val/split/{trajectory.kind}", float(trajectory.is_split))
            sums.add(f"val/llm_calls/{trajectory.kind}", trajectory.num_llm_calls)
    return sums


class MetricsLog:
    """Writes the run's records and sampled trajectories under one folder."""

    def __init__(self, folder: Path, trackers: Iterable[str] = TRACKERS, run_name: str | None = None) -> None:
        self.folder = folder
        self.path = folder / METRICS_FILE
        folder.mkdir(parents=True, exist_ok=True)
        self.records: list[dict[str, Any]] = []
        self._trackers = [
            tracker for name in trackers if (tracker := _open_tracker(name, folder, run_name)) is not None
        ]

    def resume(self, step: int) -> None:
        """Keep what was written up to `step`, drop the rest: it will be written again. 0 keeps only validation at 0."""
        self.records = [record for record in read_metrics(self.path) if record["step"] <= step]
        write_lines(self.path, map(json.dumps, self.records), is_synced=True)

    def write(self, step: int, values: Mapping[str, float | str]) -> None:
        """One record. Numbers that are not finite become null: JSON has no word for them."""
        record = {"step": step, **{name: _plain(value) for name, value in values.items()}}
        self.records.append(record)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        for tracker in self._trackers:
            tracker.write(step, {name: value for name, value in values.items() if isinstance(value, (int, float))})

    def write_trajectories(self, step: int, trajectories: Sequence[Trajectory], name: str = "step") -> None:
        folder = self.folder / SAMPLES_FOLDER
        folder.mkdir(exist_ok=True)
        for trajectory in trajectories:
            trajectory.step = step
        write_trajectories(folder / f"{name}-{step:06d}.jsonl", trajectories)

    def series(self, name: str) -> list[tuple[int, float]]:
        return [(record["step"], record[name]) for record in self.records if isinstance(record.get(name), (int, float))]

    def close(self) -> None:
        for tracker in self._trackers:
            tracker.close()


class SilentLog(MetricsLog):
    """The log of a process that is not the first: it remembers, and writes nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path, self.records, self._trackers = folder, folder / METRICS_FILE, [], []

    def resume(self, step: int) -> None:
        self.records = [record for record in read_metrics(self.path) if record["step"] <= step]

    def write(self, step: int, values: Mapping[str, float | str]) -> None:
        self.records.append({"step": step, **values})

    def write_trajectories(self, step: int, trajectories: Sequence[Trajectory], name: str = "step") -> None:
        return


def _plain(value: float | str) -> float | str | None:
    if isinstance(value, str):
        return value
    return value if math.isfinite(value) else None


def read_metrics(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The records of a run. A last line that was cut off by a kill is left out; any other bad line is an error."""
    file = Path(path)
    if not file.exists():
        return []
    lines = file.read_text(encoding="utf-8").splitlines()
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(json.loads(line))
        except ValueError as error:
            if number < len(lines):
                raise DataError(str(file), number, f"is not JSON: {error}") from error
    return records


# ---- trackers --------------------------------------------------------------------------------------------------------


class _TensorBoard:
    def __init__(self, folder: Path, run_name: str | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder / "tensorboard"))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _RunTracker:
    """trackio and W&B have the same three calls."""

    def __init__(self, module: Any, folder: Path, run_name: str | None) -> None:
        self._module = module
        module.init(project="parallelsearch", name=run_name or folder.name)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._module.log(dict(values), step=step)

    def close(self) -> None:
        self._module.finish()


def _open_tracker(name: str, folder: Path, run_name: str | None) -> _TensorBoard | _RunTracker | None:
    """The tracker, or None if it is not installed, not set up, or fails to start: tracking never stops a run."""
    import importlib

    if name == "wandb" and not (os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_MODE")):
        return None
    try:
        if name == "tensorboard":
            return _TensorBoard(folder, run_name)
        return _RunTracker(importlib.import_module(name), folder, run_name)
    except ImportError:
        return None
    except Exception as error:
        log.warning("%s does not start and is left out: %s", name, error)
        return None


# ---- the plot --------------------------------------------------------------------------------------------------------

PANELS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("reward and its parts", tuple(f"reward/{part}" for part in PARTS)),
    ("accuracy (exact match)", ("accuracy", "val/accuracy", "val/accuracy/parallel", "val/accuracy/sequential")),
    ("share of questions split", tuple(f"split/{kind}" for kind in KINDS)),
    ("a trajectory has", ("llm_calls", "searches", "subqueries", "invalid_turns")),
    ("entropy and KL", ("entropy", "kl")),
    ("seconds in a step", ("time/step_s", "time/rollout_s", "time/generate_s", "time/train_s")),
)


def plot(folder: str | os.PathLike[str], path: str | os.PathLike[str] | None = None) -> Path:
    """Draw the run's curves as a PNG; returns where it stands."""
    target = Path(path) if path is not None else Path(folder) / "curves.png"
    records = read_metrics(Path(folder) / METRICS_FILE)
    if not records:
        raise ParallelSearchError(f"{folder} has no {METRICS_FILE} with records in it; nothing to plot")
    figures = []
    for number, (title, names) in enumerate(PANELS):
        lines = [
            (name, tuple((one["step"], one[name]) for one in records if one.get(name) is not None)) for name in names
        ]
        series = tuple(Series(name, points) for name, points in lines if points)
        figures.append(Figure(f"panel_{number}", title, "lines", "step", "", series, x_min=0.0))
    save_grid(figures, target, num_columns=3, extra="train")
    return target

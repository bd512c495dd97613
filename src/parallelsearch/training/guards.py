"""Guards: stop before bad numbers reach the weights, and say so when behaviour collapses.

`GradientGuard` looks at the loss and the gradient norm before the optimiser steps; what it refuses is saved to a file and
the run stops with the weights still good. `Alarms` watch the figures of each step and name what they see: length or
entropy collapse, no more searching, serial collapse (parallel questions no longer split) and spurious parallelism (chains
split too). `displacement` is the likelihood-displacement regulariser (LLDS, arXiv 2512.04220).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parallelsearch.errors import ParallelSearchError
from parallelsearch.training.recipe import GuardSettings

if TYPE_CHECKING:
    from torch import Tensor


class TrainingStoppedError(ParallelSearchError):
    """A guard stopped the run. The message says why, where the evidence is, and what to try."""


class GradientGuard:
    """Refuses an update whose loss or gradient is not a number, or whose gradient is huge."""

    def __init__(self, settings: GuardSettings, folder: Path) -> None:
        self.settings, self.folder = settings, folder

    def check(self, step: int, loss: float, grad_norm: float, batch: Mapping[str, Any]) -> None:
        if math.isfinite(loss) and math.isfinite(grad_norm) and grad_norm <= self.settings.max_grad_norm:
            return
        path = self._save(step, loss, grad_norm, batch)
        if math.isfinite(loss) and math.isfinite(grad_norm):
            what = f"the gradient norm {grad_norm:.3g} is above guards.max_grad_norm = {self.settings.max_grad_norm:g}"
        else:
            what = f"loss {loss} and gradient norm {grad_norm} are not both numbers"
        raise TrainingStoppedError(
            f"stopped at step {step}, before the weights were touched: {what}. The batch is in {path}. Start again from the "
            'last checkpoint with a lower train.lr or a larger train.beta, or model.precision = "float32"'
        )

    def _save(self, step: int, loss: float, grad_norm: float, batch: Mapping[str, Any]) -> Path:
        import torch

        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"bad-batch-{step:06d}.pt"
        tensors = {name: value.detach().cpu() for name, value in batch.items() if isinstance(value, torch.Tensor)}
        torch.save({"step": step, "loss": loss, "grad_norm": grad_norm, "batch": tensors}, path)
        return path


@dataclass(frozen=True, slots=True)
class Alarm:
    """One thing that went wrong with behaviour."""

    name: str
    message: str


class Alarms:
    """Looks at the mean of the last `window` steps. Each alarm is given once, until its cause has gone again."""

    def __init__(self, settings: GuardSettings, num_steps: int | None = None, may_split: bool = True) -> None:
        """`num_steps` is how long the run is: a short one is looked at over fewer steps, or no alarm could ever ring.
        `may_split`: the dialect lets a turn ask several things; where it does not, not splitting is no collapse."""
        self.settings, self._may_split = settings, may_split
        self._window = settings.window if num_steps is None else min(settings.window, max(2, num_steps // 4))
        self._history: list[Mapping[str, float]] = []
        self._ringing: set[str] = set()

    def resume(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Live through the steps of an interrupted run again, silently."""
        for record in records:
            self.step(record)

    def step(self, figures: Mapping[str, Any]) -> list[Alarm]:
        """Take in one step's figures; returns the alarms that begin with it."""
        self._history.append({name: value for name, value in figures.items() if isinstance(value, (int, float))})
        found = {alarm.name: alarm for alarm in self._look()}
        new = [alarm for name, alarm in found.items() if name not in self._ringing]
        self._ringing = set(found)
        return new

    def _mean(self, name: str, first: bool = False) -> float | None:
        """Over the last (or the first) `window` steps that have the figure; None before there are so many."""
        window = self._window
        values = [figures[name] for figures in self._history if name in figures]
        if len(values) < window:
            return None
        part = values[:window] if first else values[-window:]
        return sum(part) / window

    def _look(self) -> list[Alarm]:
        limits, alarms = self.settings, []

        def below(figure: str, limit: float, name: str, text: str) -> None:
            mean = self._mean(figure)
            if mean is not None and mean < limit:
                alarms.append(Alarm(name, text.format(mean=mean, limit=limit)))

        start = self._mean("model_tokens", first=True)
        if start is not None:
            below(
                "model_tokens",
                limits.min_length_share * start,
                "length_collapse",
                "trajectories have {mean:.0f} model tokens on average, under {limit:.0f}; at the start they had more",
            )
        below(
            "entropy",
            limits.min_entropy,
            "entropy_collapse",
            "entropy is {mean:.3g}, under {limit:g}: no exploration left",
        )
        below(
            "search_rate",
            limits.min_search_rate,
            "search_collapse",
            "only {mean:.0%} of the trajectories search at all (limit {limit:.0%})",
        )
        if self._may_split:
            below(
                "split/parallel",
                limits.min_split_parallel,
                "serial_collapse",
                "only {mean:.0%} of the parallel questions are split (limit {limit:.0%})",
            )
        chains = self._mean("split/sequential")
        if chains is not None and chains > limits.max_split_sequential:
            alarms.append(
                Alarm(
                    "spurious_parallelism",
                    f"{chains:.0%} of the sequential questions are split (limit {limits.max_split_sequential:.0%})",
                )
            )
        return alarms


def displacement(logps: Tensor, old_logps: Tensor, mask: Tensor, advantages: Tensor) -> Tensor:
    """How much likelihood good trajectories lost since they were sampled, summed over their tokens.

    It counts only trajectories with an advantage of 0 or more whose likelihood as a whole fell, and in them only tokens
    whose own likelihood fell; a gain elsewhere is never punished. Zero, with zero gradient, when nothing fell.
    """
    import torch

    lost = (old_logps - logps) * mask
    good = advantages >= 0 if advantages.dim() == 1 else (advantages * mask).sum(1) >= 0
    fell = (lost.detach().sum(1) > 0) & good
    return (torch.relu(lost) * fell[:, None]).sum()

"""A grid of runs from one recipe: every combination of the values in its `[sweep]` section, each in a folder of its own.

A sweep can be killed and started again as a single run can: finished runs are passed over, the one that was cut off goes on.
The outcome of each run stands in `sweep.jsonl` and, side by side, in `sweep.csv`.
"""

from __future__ import annotations

import csv
import gc
import itertools
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parallelsearch.config import parse
from parallelsearch.errors import UsageError
from parallelsearch.training.metrics import METRICS_FILE, read_metrics
from parallelsearch.training.recipe import Recipe, load_recipe
from parallelsearch.training.run import Say, train

FIGURES = ("accuracy", "reward/total", "split/parallel", "split/sequential", "llm_calls", "searches", "subqueries")


@dataclass(frozen=True, slots=True)
class Point:
    """One combination: its settings and its folder's name."""

    settings: dict[str, Any]

    @property
    def name(self) -> str:
        return ",".join(f"{key.rpartition('.')[2]}={value}" for key, value in self.settings.items())


def grid(recipe: Recipe) -> list[Point]:
    """All combinations, the last key changing fastest."""
    if not recipe.sweep:
        raise UsageError('this recipe has no [sweep] section; add one, for example "train.lr" = [1e-6, 5e-6]')
    for key, values in recipe.sweep.items():
        if not values:
            raise UsageError(f"[sweep] '{key}' has no values to try")
    keys = list(recipe.sweep)
    return [Point(dict(zip(keys, values, strict=True))) for values in itertools.product(*recipe.sweep.values())]


def sweep(
    path: str | os.PathLike[str],
    overrides: Sequence[str] | Mapping[str, Any] = (),
    *,
    say: Say | None = None,
    time_limit_s: float | None = None,
) -> list[dict[str, Any]]:
    """Run the recipe's grid. Returns one record for each finished run, in the order of the grid."""
    began_s = time.monotonic()
    recipe = load_recipe(path, overrides)
    points = grid(recipe)
    # Every point is checked before the first one runs: a wrong key must not show after hours.
    recipes = [_recipe_of(path, recipe, point) for point in points]
    records: list[dict[str, Any]] = []
    for number, (point, one) in enumerate(zip(points, recipes, strict=True), start=1):
        left_s = None if time_limit_s is None else time_limit_s - (time.monotonic() - began_s)
        if left_s is not None and left_s <= 0:
            break
        if say is not None:
            say(f"run {number} of {len(points)}: {point.name}")
        result = train(one, say=say, time_limit_s=left_s)
        if not result.is_finished:
            break
        records.append({**point.settings, "best_val_accuracy": result.best_accuracy, **_last_figures(one)})
        _write(recipe.out, records)
        gc.collect()
    return records


def _recipe_of(path: str | os.PathLike[str], recipe: Recipe, point: Point) -> Recipe:
    values = recipe.model_dump(exclude={"sweep"})
    changes = {**point.settings, "train.out": str(recipe.out / point.name)}
    return parse(values, Recipe, changes, source=f"{path} [sweep] {point.name}")


def _last_figures(recipe: Recipe) -> dict[str, float]:
    """Means over the last tenth of the steps."""
    steps = recipe.train.steps or 1
    records = [r for r in read_metrics(recipe.out / METRICS_FILE) if "loss" in r]
    last = [r for r in records if r["step"] > steps - max(1, round(steps * 0.1))]
    means = {}
    for name in FIGURES:
        values = [r[name] for r in last if isinstance(r.get(name), (int, float))]
        if values:
            means[name] = sum(values) / len(values)
    return means


def _write(folder: Path, records: Sequence[Mapping[str, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "sweep.jsonl", "w", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    columns = list(dict.fromkeys(name for record in records for name in record))
    with open(folder / "sweep.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(records)

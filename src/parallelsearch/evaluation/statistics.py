"""How sure a number is: bootstrap intervals, and paired tests between two runs on the same questions.

Every metric is a ratio of two sums over questions (a mean is a sum over the count; precision is one count over another),
so one resampling gives the intervals of all of them. Everything is seeded and vectorised; nothing here knows what a
trajectory is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parallelsearch.errors import UsageError

Floats = NDArray[np.float64]
_CHUNK = 4_000_000
"""So many random draws are held at once."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """A metric as two columns, one value a question: its value is `sum(top) / sum(bottom)`, or None if that is 0 / 0.
    `is_share` says that each question counts as yes or no, and is not a number that happens to be 0 or 1."""

    top: Floats
    bottom: Floats
    is_share: bool = False

    @property
    def value(self) -> float | None:
        bottom = float(self.bottom.sum())
        return float(self.top.sum()) / bottom if bottom else None


def mean_of(values: Sequence[float | None]) -> Ratio:
    """The mean over the questions that have a value; of true and false it is a share."""
    has = np.array([value is not None for value in values], dtype=np.float64)
    is_share = all(value is None or isinstance(value, bool) for value in values)
    return Ratio(np.array([0.0 if value is None else float(value) for value in values]), has, is_share)


def wilson(part: float, whole: float) -> tuple[float, float]:
    """Wilson's 95% interval of a share: sound near 0 and 1, where a share of few questions lies."""
    z = 1.96
    rate, spread = part / whole, z * z / whole
    middle = (rate + spread / 2) / (1 + spread)
    half = z * math.sqrt(rate * (1 - rate) / whole + spread / (4 * whole)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


def bootstrap(
    ratios: Mapping[str, Ratio], *, num_resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> dict[str, tuple[float, float] | None]:
    """Percentile intervals of every ratio, from the same resampled questions. None where a ratio has no value."""
    if not ratios:
        return {}
    sizes = {len(ratio.top) for ratio in ratios.values()} | {len(ratio.bottom) for ratio in ratios.values()}
    if len(sizes) != 1:
        raise UsageError(f"the metrics of one bootstrap have one value a question each; found lengths {sorted(sizes)}")
    if num_resamples < 1 or not 0 < level < 1:
        raise UsageError(f"a bootstrap needs num_resamples >= 1 and a level in (0, 1), not {num_resamples}, {level}")
    (n,) = sizes
    if n == 0:
        return dict.fromkeys(ratios)
    columns = np.column_stack([column for ratio in ratios.values() for column in (ratio.top, ratio.bottom)])
    sums = resampled_sums(columns, num_resamples, seed)
    result: dict[str, tuple[float, float] | None] = {}
    for number, (name, ratio) in enumerate(ratios.items()):
        if ratio.value is None:
            result[name] = None
            continue
        top, bottom = sums[:, 2 * number], sums[:, 2 * number + 1]
        drawn = top[bottom > 0] / bottom[bottom > 0]
        low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
        result[name] = (float(low), float(high))
    return result


def intervals(
    ratios: Mapping[str, Ratio], *, num_resamples: int = 1000, seed: int = 0
) -> dict[str, tuple[float, float] | None]:
    """95% intervals for the reports of runs: those of `bootstrap`, but Wilson's for a share that is 0 or 1, where every
    resample is the same and four right answers of four would be certain. The published tables keep to `bootstrap`."""
    found = bootstrap(ratios, num_resamples=num_resamples, seed=seed)
    for name, ratio in ratios.items():
        if ratio.is_share and ratio.value in (0.0, 1.0):
            found[name] = wilson(float(ratio.top.sum()), float(ratio.bottom.sum()))
    return found


def resampled_sums(columns: Floats, num_resamples: int, seed: int) -> Floats:
    """The column sums of each resample: how often each question was drawn, times its values."""
    n = len(columns)
    draw = np.random.default_rng(seed)
    rows = min(num_resamples, _rows(n))
    sums = np.empty((num_resamples, columns.shape[1]))
    for start in range(0, num_resamples, rows):
        size = min(rows, num_resamples - start)
        picks = draw.integers(0, n, (size, n), dtype=np.int64)
        picks += (np.arange(size) * n)[:, None]
        counts = np.bincount(picks.ravel(), minlength=size * n).reshape(size, n)
        sums[start : start + size] = counts.astype(np.float64) @ columns
    return sums


# ---- two runs on the same questions ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PairedTest:
    """B minus A over the same questions: the mean difference, its interval, and how surprising it would be by chance."""

    num_pairs: int
    difference: float
    low: float
    high: float
    p_value: float
    """Two-sided, from swapping the two runs' values at random (permutation)."""
    p_mcnemar: float | None = None
    """Exact McNemar, for values that are all 0 or 1."""
    num_only_a: int | None = None
    num_only_b: int | None = None


def paired_test(a: ArrayLike, b: ArrayLike, *, num_resamples: int = 10_000, seed: int = 0) -> PairedTest:
    """Compare one metric of two runs, value by value: paired bootstrap interval (95%), permutation test, McNemar for 0/1."""
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.shape != second.shape or first.ndim != 1 or not len(first):
        raise UsageError(
            f"a paired test needs two lists with a value for each question, found {first.shape} and {second.shape}"
        )
    differences = second - first
    low, high = np.quantile(_resampled_means(differences, num_resamples, seed), [0.025, 0.975]).tolist()
    is_binary = bool(np.isin(first, (0.0, 1.0)).all() and np.isin(second, (0.0, 1.0)).all())
    only_a = int(((first == 1) & (second == 0)).sum()) if is_binary else None
    only_b = int(((first == 0) & (second == 1)).sum()) if is_binary else None
    return PairedTest(
        num_pairs=len(differences),
        difference=float(differences.mean()),
        low=low,
        high=high,
        p_value=permutation_test(differences, num_resamples=num_resamples, seed=seed),
        p_mcnemar=mcnemar(only_a, only_b) if only_a is not None and only_b is not None else None,
        num_only_a=only_a,
        num_only_b=only_b,
    )


def permutation_test(differences: ArrayLike, *, num_resamples: int = 10_000, seed: int = 0) -> float:
    """Two-sided p that a mean at least this far from 0 arises when each pair's order is a coin flip.

    Pairs without a difference cannot change the mean, so only the others are flipped. One is added to both counts: the
    p-value of a random draw of permutations is never 0.
    """
    values = np.asarray(differences, dtype=np.float64)
    values = values[values != 0]
    if not len(values):
        return 1.0
    sizes, counts = np.unique(np.abs(values), return_counts=True)
    observed = abs(float(values.sum()))
    draw = np.random.default_rng(seed)
    num_extreme = 0
    for start in range(0, num_resamples, _rows(len(sizes))):
        size = min(_rows(len(sizes)), num_resamples - start)
        # Among c pairs with the same difference, the number that keep their sign is binomial: one draw for all of them.
        kept = draw.binomial(counts, 0.5, (size, len(sizes)))
        num_extreme += int((np.abs((2 * kept - counts) @ sizes) >= observed - 1e-9).sum())
    return (num_extreme + 1) / (num_resamples + 1)


def _resampled_means(values: Floats, num_resamples: int, seed: int) -> Floats:
    """The mean of each resample, drawn by distinct value: the same distribution as drawing questions, far fewer draws
    where few values occur."""
    distinct, counts = np.unique(values, return_counts=True)
    draw = np.random.default_rng(seed)
    means = np.empty(num_resamples)
    for start in range(0, num_resamples, _rows(len(distinct))):
        size = min(_rows(len(distinct)), num_resamples - start)
        drawn = draw.multinomial(len(values), counts / len(values), size)
        means[start : start + size] = drawn @ distinct / len(values)
    return means


def _rows(num_columns: int) -> int:
    return max(1, _CHUNK // num_columns)


def mcnemar(num_only_a: int, num_only_b: int) -> float:
    """Exact two-sided p for the questions that only one of two runs got right: a fair coin for each of them."""
    n, smaller = num_only_a + num_only_b, min(num_only_a, num_only_b)
    if n == 0:
        return 1.0
    log_half, log_all = n * math.log(0.5), math.lgamma(n + 1)
    tail = math.fsum(
        math.exp(log_all - math.lgamma(k + 1) - math.lgamma(n - k + 1) + log_half) for k in range(smaller + 1)
    )
    return min(1.0, 2.0 * tail)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values adjusted for having asked several times (Holm), in their order."""
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted

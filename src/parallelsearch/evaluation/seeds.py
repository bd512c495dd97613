"""How sure a difference between two ways of training is, given a few seeds of each.

One run tells what these weights do; a way of training is judged by runs of several seeds. `group_test` resamples questions
and seeds together. The seeds of a group are drawn one fewer at a time than there are, which makes the spread of their mean
right and not too small, and the interval is as wide as so few seeds demand (Student's t, degrees of freedom by Welch and
Satterthwaite). Two tests over the seeds' own values stand beside it: Welch's, and the exact one that exchanges seeds
between the groups, whose p cannot fall below `p_least` however large the difference is. With one seed on a side there is no
test and no verdict. Nothing here knows what a trajectory is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parallelsearch.errors import UsageError
from parallelsearch.evaluation.statistics import Floats, Ratio, resampled_sums

NO_RESULT = "one seed: no result"


@dataclass(frozen=True, slots=True)
class GroupTest:
    """Group B minus group A on the same questions. A value is one seed's ratio of sums."""

    num_questions: int
    values_a: tuple[float, ...]
    values_b: tuple[float, ...]
    difference: float
    low: float
    high: float
    """95%, over questions and seeds; with one seed on a side, over questions alone."""
    p_seeds: float | None
    """Welch's t test over the seeds' values."""
    p_exchanged: float | None
    """Exact: how often seeds put into two groups at random differ as much."""
    p_least: float | None
    """The least that `p_exchanged` can be with so many seeds."""

    @property
    def verdict(self) -> str:
        if min(len(self.values_a), len(self.values_b)) < 2:
            return NO_RESULT
        return "not told apart" if self.low <= 0 <= self.high else "differ"


def group_test(a: Sequence[Ratio], b: Sequence[Ratio], *, num_resamples: int = 2000, seed: int = 0) -> GroupTest | None:
    """Compare a metric of two groups of runs: a `Ratio` for each run, over the same questions. None where a run has no
    value."""
    sizes = {len(ratio.top) for ratio in (*a, *b)}
    if not a or not b or len(sizes) != 1:
        raise UsageError(f"groups of runs need a run each and the same questions; found {sorted(sizes)} questions")
    values = [[ratio.value for ratio in group] for group in (a, b)]
    known = [[value for value in group if value is not None] for group in values]
    if len(known[0]) < len(a) or len(known[1]) < len(b):
        return None
    (num_questions,) = sizes
    means = [float(np.mean(group)) for group in known]
    columns = np.column_stack([column for ratio in (*a, *b) for column in (ratio.top, ratio.bottom)])
    sums = resampled_sums(columns, num_resamples, seed)
    tops, bottoms = sums[:, 0::2], sums[:, 1::2]
    draw = np.random.default_rng([seed, 1])
    whole = _means(tops, bottoms, np.arange(len(a))) - _means(tops, bottoms, len(a) + np.arange(len(b)))
    drawn = _drawn(tops, bottoms, 0, len(a), draw) - _drawn(tops, bottoms, len(a), len(b), draw)
    error = float(np.nanstd(drawn, ddof=1))
    reach = error * t_quantile(0.975, _freedom(known, float(np.nanvar(whole)), num_questions))
    difference = means[1] - means[0]
    p_exchanged, p_least = _exchanged(known[0], known[1])
    return GroupTest(
        num_questions,
        tuple(known[0]),
        tuple(known[1]),
        difference,
        difference - reach,
        difference + reach,
        welch(known[0], known[1]),
        p_exchanged,
        p_least,
    )


def _means(tops: Floats, bottoms: Floats, picks: np.ndarray) -> Floats:
    """The mean over the picked runs of their ratios, in each resample (`picks`: one row for all, or one for each)."""
    rows = np.arange(len(tops))[:, None]
    top, bottom = (tops[rows, picks], bottoms[rows, picks]) if picks.ndim == 2 else (tops[:, picks], bottoms[:, picks])
    with np.errstate(divide="ignore", invalid="ignore"):
        means: Floats = np.where(bottom > 0, top / bottom, np.nan).mean(axis=1)
    return means


def _drawn(tops: Floats, bottoms: Floats, start: int, num_seeds: int, draw: np.random.Generator) -> Floats:
    """The same over seeds drawn with replacement, one fewer than there are: the variance of their mean is then s²/n."""
    picks = start + draw.integers(0, num_seeds, (len(tops), max(1, num_seeds - 1)))
    return _means(tops, bottoms, picks)


def _freedom(values: Sequence[Sequence[float]], question_variance: float, num_questions: int) -> float:
    """Welch and Satterthwaite's degrees of freedom of a sum of variances: of the seeds of each group, and of questions."""
    parts = [(float(np.var(one, ddof=1)) / len(one), len(one) - 1) for one in values if len(one) > 1]
    parts.append((question_variance, max(1, num_questions - 1)))
    total = sum(variance for variance, _ in parts)
    spread = sum(variance**2 / freedom for variance, freedom in parts)
    return total**2 / spread if spread > 0 else float(max(1, num_questions - 1))


def welch(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Two-sided p of Welch's t test; None with fewer than two values on a side."""
    if min(len(a), len(b)) < 2:
        return None
    error = math.sqrt(float(np.var(a, ddof=1)) / len(a) + float(np.var(b, ddof=1)) / len(b))
    difference = float(np.mean(b) - np.mean(a))
    if error == 0:
        return 1.0 if difference == 0 else 0.0
    return t_tails(difference / error, _freedom([a, b], 0.0, 2))


def _exchanged(a: Sequence[float], b: Sequence[float]) -> tuple[float, float] | tuple[None, None]:
    """The exact permutation test over the seeds, and the least p it can give."""
    if min(len(a), len(b)) < 2:
        return None, None
    both = np.array([*a, *b])
    observed = abs(float(np.mean(b) - np.mean(a)))
    found = []
    for picks in itertools.combinations(range(len(both)), len(a)):
        chosen = np.isin(np.arange(len(both)), picks)
        found.append(abs(both[~chosen].mean() - both[chosen].mean()))
    least = (2 if len(a) == len(b) else 1) / len(found)
    return float(np.mean(np.array(found) >= observed - 1e-12)), least


# ---- Student's t -----------------------------------------------------------------------------------------------------


def t_tails(value: float, freedom: float) -> float:
    """The probability that Student's t lies at least this far from 0."""
    return _beta_share(freedom / (freedom + value * value), freedom / 2, 0.5)


def t_quantile(level: float, freedom: float) -> float:
    """The value that Student's t stays below with this probability (above one half), by bisection."""
    low, high = 0.0, 1.0
    while t_tails(high, freedom) > 2 * (1 - level):
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if t_tails(middle, freedom) > 2 * (1 - level) else (low, middle)
    return (low + high) / 2


def _beta_share(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (Lentz's method)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side
        return 1 - _beta_share(1 - x, b, a)
    tiny = 1e-300
    c, d = 1.0, 1 / _apart(1 - (a + b) * x / (a + 1), tiny)
    result = d
    for n in range(1, 500):
        for step in (
            n * (b - n) * x / ((a + 2 * n - 1) * (a + 2 * n)),
            -(a + n) * (a + b + n) * x / ((a + 2 * n) * (a + 2 * n + 1)),
        ):
            d = 1 / _apart(1 + step * d, tiny)
            c = _apart(1 + step / c, tiny)
            result *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    front = a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.exp(front) * result / a


def _apart(value: float, least: float) -> float:
    """Not 0, so that one can divide by it."""
    return value if abs(value) > least else least

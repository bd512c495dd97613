"""What rewards teach a start that splits every other time: a table of the kept rows, and a plot over the steps of training.

Rows are those of `kept_rows.py` (`tried/undecided-*`), asked after the last step. `docs/results/undecided-steps.json` has the
share of the sampled parallel questions and chains that were split, step by step, for each reward and seed. The plan
(`recipes/twins-wide.toml`) has the commands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
from kept_rows import ROWS, Kept, Line
from marked import markdown
from result_tables import (
    NOTHING,
    WIDE_SUBSETS,
    Measured,
    Seeds,
    bare,
    in_set,
    lead,
    lines_of,
    measured,
    metrics,
    paired,
    ratio_difference,
    with_interval,
)

from parallelsearch.evaluation.metrics import ratios_of
from parallelsearch.evaluation.plots import Figure, Series
from parallelsearch.evaluation.statistics import Ratio
from parallelsearch.files import read_json

STEPS = ROWS / "undecided-steps.json"
START = "undecided-start"
REWARDS = {
    "before RL": START,
    "outcome and format": "undecided-outcome",
    "`paper`": "undecided-paper",
    "`gated`": "undecided-gated",
    "`label-free`": "undecided-label-free",
}
"""What a row of the table says, and whose rows it is."""
KINDS = {"parallel": "Parallel questions split", "sequential": "Chains split, which is a mistake"}
_WINDOW = 5
"""Steps that one point of the plot is the mean of: a step asks eight questions."""
_PARALLEL, _WHOLE = in_set("dependency", "parallel"), in_set("dependency", "sequential", "single")


# ---- the table -------------------------------------------------------------------------------------------------------


def rewards_table(kept: Kept) -> str:
    """Decisions first, then what they bring."""
    start = lines_of(kept, START, _decided)
    lines = []
    for name, arm in REWARDS.items():
        decided = lines_of(kept, arm, _decided)
        if not decided:
            continue
        split, gold, em, calls = metrics(
            lines_of(kept, arm, in_set("questions_with_gold-par")),
            "split_ratio",
            "all_gold_ratio",
            "em",
            "num_llm_calls",
        )
        chain_split, chain_em = metrics(lines_of(kept, arm, in_set("questions_with_gold-seq")), "split_ratio", "em")
        covered, wide_em = metrics(lines_of(kept, arm, WIDE_SUBSETS["2 to 8 parts"]), "parts_covered", "em")
        rightly = [
            bare(metrics(lines_of(kept, arm, holds), "decomposition_accuracy")[0]) for holds in (_PARALLEL, _WHOLE)
        ]
        both = measured([_balanced(seed) for seed in decided])
        gain = "" if arm == START else lead(_difference(start, decided))
        found = [with_interval(both), gain, bare(covered), bare(calls, 2), bare(gold), with_interval(em)]
        lines.append(
            [name, str(len(decided)), bare(split), bare(chain_split), *rightly, *found, bare(wide_em), bare(chain_em)]
        )
    head = (
        "reward", "seeds", "comparisons split", "chains split", "decided rightly: parallel", "chains and single facts",
        "balanced", "minus before RL", "parts covered, wide", "calls, comparisons", "all gold", "EM, comparisons", "EM, wide",
        "EM, chains",
    )  # fmt: skip
    return markdown(head, lines) if lines else NOTHING


def _decided(line: Line) -> bool:
    """Questions of `dependency` that are wholly parallel, or that must not be split."""
    return _PARALLEL(line) or _WHOLE(line)


def _balanced(lines: Sequence[Line]) -> Ratio:
    """How often it is decided rightly, both sorts counting alike: who always splits, or never does, has a half."""
    found = ratios_of([line.row for line in lines])["decomposition_accuracy"]
    num_parallel = sum(map(_PARALLEL, lines))
    weights = np.array([1 / num_parallel if _PARALLEL(one) else 1 / (len(lines) - num_parallel) for one in lines])
    return Ratio(found.top * weights, found.bottom * weights)


def _difference(a: Seeds, b: Seeds) -> Measured | None:
    """Of what is balanced, seeds against seeds."""
    a, b = paired(a, b)
    return ratio_difference([_balanced(seed) for seed in a], [_balanced(seed) for seed in b])


TABLES = {"rewards": rewards_table}


# ---- the plot --------------------------------------------------------------------------------------------------------


def steps_figures(path: Path = STEPS) -> list[Figure]:
    """Shares split over the steps, a line for each reward: the mean of its seeds and of the steps around."""
    rewards: dict[str, dict[str, dict[str, list[float | None]]]] = read_json(path)
    return [
        Figure(
            kind, title, "lines", "step of GRPO", "share split",
            tuple(Series(name, tuple(_points([seed[kind] for seed in seeds.values()]))) for name, seeds in rewards.items()),
            y_max=1.0,
        )
        for kind, title in KINDS.items()
    ]  # fmt: skip


def _points(seeds: Sequence[Sequence[float | None]]) -> Iterator[tuple[float, float]]:
    for begin in range(0, max(map(len, seeds)), _WINDOW):
        values = [share for seed in seeds for share in seed[begin : begin + _WINDOW] if share is not None]
        if values:
            yield begin + (_WINDOW + 1) / 2, fmean(values)

"""What a larger base brings, and what lessons of two rounds and RL add to it, as tables of the kept rows.

Rows are those of `kept_rows.py`: `tried/rounds-*` is Qwen2.5-Coder-0.5B; `tried/qwen-parallel` is the same base with fewer
lessons of two rounds, and `tried/small-parallel` is SmolLM2-135M with as few. `recipes/twins-wide.toml` has the commands. The
twin may search nine times where questions have many parts. `parallel-3` stands beside them: the smaller base with all of
its lessons and RL. `rounds-rl` went on from `rounds-parallel`, `rounds-rl-low` from `rounds-again`: the same seeds, trained
a second time.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from kept_rows import DEV, TURNS, Kept, Line
from marked import markdown
from result_tables import BEFORE as THIRD
from result_tables import (
    MANY_ROUNDS,
    NOTHING,
    OTHER_SUBSETS,
    SUBSETS,
    WIDE_SUBSETS,
    Holds,
    Measured,
    Seeds,
    bare,
    bounded,
    calls_ratio,
    em_difference,
    figure,
    lead,
    lines_of,
    measured,
    metrics,
    once_ratios,
    paired,
    ratio_difference,
    with_interval,
)

from parallelsearch.evaluation.metrics import ratios_of
from parallelsearch.evaluation.statistics import Ratio, mean_of

LARGER, TWIN, FEWER, SMALLER = "rounds-parallel", "rounds-sequential", "qwen-parallel", "small-parallel"
BEFORE, WITH_RL, HIGH_RL, TWIN_RL = "rounds-again", "rounds-rl-low", "rounds-rl", "rounds-rl-sequential"
SAID = {
    "smaller base, few second rounds": SMALLER,
    "larger, few": FEWER,
    "larger base": LARGER,
    "before": BEFORE,
    "with RL": WITH_RL,
    "at 1e-4": HIGH_RL,
    "its twin": TWIN,
    "twin with RL": TWIN_RL,
    THIRD: THIRD,
}
"""What the tables call them."""


def _dev(kind: str, shortcut: str | None = None) -> Holds:
    """Of the dev questions, which these arms were asked by kind, and the shipped one together."""
    sets = (DEV, f"{DEV}-{_ENDINGS[kind]}")
    return lambda line: line.set in sets and line.kind == kind and shortcut in (None, line.shortcut)


_ENDINGS = {"parallel": "par", "sequential": "seq", "mixed": "mixed"}
_CHAINS = "chains (300 drawn)"
_ANSWERS: dict[str, tuple[Holds, int]] = {
    "2 to 4 parts, made from pages": (lambda line: _num_parts(line) in (2, 3, 4), MANY_ROUNDS),
    "5 to 8 parts": (WIDE_SUBSETS["5 parts and more"], MANY_ROUNDS),
    "two parallel rounds, balanced": (SUBSETS["mixed-balanced"], MANY_ROUNDS),
    "comparisons (HotpotQA, 2Wiki)": (_dev("parallel"), TURNS),
    "2Wiki-mixed": (_dev("mixed"), TURNS),
    "2Wiki-mixed, years agree": (_dev("mixed", "agrees"), TURNS),
    "2Wiki-mixed, years differ": (_dev("mixed", "differs"), TURNS),
    _CHAINS: (_dev("sequential"), TURNS),
    **{name: (OTHER_SUBSETS[name], TURNS) for name in ("demo, parallel", "demo, chains", "demo, single")},
}
"""Questions, and the rounds that the twin may search."""
_SPLITS = {name: OTHER_SUBSETS[name] for name in OTHER_SUBSETS if name.startswith(("dependency", "traps"))}
_WIDTHS = (2, 4, 8)
_ONCE = {_CHAINS: _dev("sequential"), "demo, chains": OTHER_SUBSETS["demo, chains"]}


def _num_parts(line: Line) -> int:
    return line.num_parts if WIDE_SUBSETS["2 to 8 parts"](line) else 0


def answers_table(kept: Kept) -> str:
    """What is answered right, and in how many calls."""
    lines = []
    for name, (holds, rounds) in _ANSWERS.items():
        large = lines_of(kept, LARGER, holds)
        if not large:
            continue
        twin, shipped = _on_the_same(kept, large, holds, (TWIN, rounds), THIRD)
        lines.append([
            name, str(len(large[0])), figure(fmean(line.row.chance for line in large[0])),
            with_interval(metrics(large, "em")[0]), _em(twin), lead(em_difference(twin, large)), _calls(large),
            bare(calls_ratio(twin, large), 2), _em(shipped), lead(em_difference(shipped, large)),
        ])  # fmt: skip
    head = (
        "EM", "n", "chance", "larger base", "its twin", "minus the twin's", "calls", "by the twin's", THIRD,
        f"minus {THIRD}'s",
    )  # fmt: skip
    return _with_seeds(kept, head, lines, "larger base", "its twin", THIRD)


def lessons_table(kept: Kept) -> str:
    """What the base brings with equal lessons, and what more of two rounds."""
    lines = []
    for name, (holds, _) in _ANSWERS.items():
        large = lines_of(kept, LARGER, holds)
        if not large:
            continue
        small, few = _on_the_same(kept, large, holds, SMALLER, FEWER)
        lines.append([
            name, str(len(large[0])), _em(small), _em(few), lead(em_difference(small, few)), _em(large),
            lead(em_difference(few, large)), _calls(few), _calls(large),
        ])  # fmt: skip
    head = (
        "EM", "n", "smaller base, few second rounds", "larger, few", "minus the smaller's", "larger, more", "minus few",
        "calls, few", "more",
    )  # fmt: skip
    return _with_seeds(kept, head, lines, "smaller base, few second rounds", "larger, few", "larger base")


def rl_table(kept: Kept) -> str:
    """What RL adds to the starts that it went on from, and how both twins stand after it."""
    lines = []
    for name, (holds, rounds) in _ANSWERS.items():
        taught = lines_of(kept, WITH_RL, holds)
        if not taught:
            continue
        before, first, high, twin = _on_the_same(kept, taught, holds, BEFORE, LARGER, HIGH_RL, (TWIN_RL, rounds))
        lines.append([
            name, str(len(taught[0])), _em(before), _em(taught), lead(_added(before, taught)), lead(_added(first, high)),
            _em(twin), lead(em_difference(twin, taught)), _calls(taught), bare(calls_ratio(twin, taught), 2),
        ])  # fmt: skip
    head = (
        "EM", "n", "before", "with RL", "minus before", "at 1e-4, minus before", "twin with RL", "minus the twin's", "calls",
        "by the twin's",
    )  # fmt: skip
    return _with_seeds(kept, head, lines, "before", "with RL", "at 1e-4", "twin with RL")


def splits_table(kept: Kept) -> str:
    """What is decided: whether to split, into what, and whether one query is taken for enough."""
    rows: list[tuple[str, Holds, str]] = [
        *((f"{name}: decided rightly", holds, "decomposition_accuracy") for name, holds in _SPLITS.items()),
        *((f"{width} parts: covered", WIDE_SUBSETS[f"{width} parts"], "parts_covered") for width in _WIDTHS),
        *((f"{name}: asked in one query", holds, "") for name, holds in _ONCE.items()),
    ]
    lines = []
    for name, holds, metric in rows:
        large = lines_of(kept, LARGER, holds)
        if not large:
            continue
        small, few, taught, shipped = _on_the_same(kept, large, holds, SMALLER, FEWER, WITH_RL, THIRD)
        found = [bounded(measured(_ratios(seeds, metric))) for seeds in (small, few, large, taught, shipped)]
        lines.append([
            name, str(len(large[0])), bare(found[0]), bare(found[1]), with_interval(found[2]), bare(found[3]),
            lead(_gain(large, taught, metric)), bare(found[4]), lead(_gain(shipped, large, metric)),
        ])  # fmt: skip
    head = (
        "share", "n", "smaller base, few second rounds", "larger, few", "larger base", "with RL", "minus without", THIRD,
        f"larger minus {THIRD}'s",
    )  # fmt: skip
    arms = ("smaller base, few second rounds", "larger, few", "larger base", "with RL", THIRD)
    return _with_seeds(kept, head, lines, *arms)


def _on_the_same(kept: Kept, large: Seeds, holds: Holds, *arms: str | tuple[str, int]) -> list[list[list[Line]]]:
    """The lines of each arm (under so many rounds, if it says) on what the larger base was asked too."""
    named = ((arm, TURNS) if isinstance(arm, str) else arm for arm in arms)
    return [paired(lines_of(kept, arm, holds, rounds), large)[0] for arm, rounds in named]


def _em(seeds: Seeds) -> str:
    return bare(metrics(seeds, "em")[0] if seeds else None)


def _calls(seeds: Seeds) -> str:
    return bare(metrics(seeds, "num_llm_calls")[0] if seeds else None, 2)


def _with_seeds(kept: Kept, head: Sequence[str], lines: list[list[str]], *arms: str) -> str:
    if not lines:
        return NOTHING
    counts = {name: len(kept.policies.get(SAID[name]) or kept.tried.get(SAID[name], [])) for name in arms}
    return f"{markdown(head, lines)}\n\nSeeds: {', '.join(f'{name} {count}' for name, count in counts.items())}."


def _ratios(seeds: Seeds, metric: str) -> list[Ratio]:
    if not metric:
        return once_ratios(seeds)
    return [ratios_of([line.row for line in seed])[metric] for seed in seeds]


def _added(before: Seeds, after: Seeds) -> Measured | None:
    """What was added to each seed, which went on from the same seed of `before`: a start's luck is in both of its figures."""
    a, b = paired(before, after)
    if not a or not b:
        return None
    gains = [
        [float(y.row.em) - float(x.row.em) for x, y in zip(*seeds, strict=True)] for seeds in zip(a, b, strict=True)
    ]
    return measured([mean_of(gain) for gain in gains])


def _gain(one: Seeds, other: Seeds, metric: str) -> Measured | None:
    """Of the second over the first, on the questions that both were asked."""
    a, b = paired(one, other)
    return ratio_difference(_ratios(a, metric), _ratios(b, metric))


TABLES = {
    "larger_answers": answers_table,
    "larger_lessons": lessons_table,
    "larger_rl": rl_table,
    "larger_splits": splits_table,
}

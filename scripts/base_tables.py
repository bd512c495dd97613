"""What a larger base brings: Qwen2.5-Coder-0.5B and SmolLM2-135M with as many lessons, as tables of the kept rows.

Rows are those of `kept_rows.py` (`tried/rounds-*`; `tried/qwen-*` and `tried/small-parallel` had fewer lessons of two
rounds); `recipes/twins-wide.toml` has the commands. The twin of the larger base may search nine times where questions have
many parts. `parallel-3` stands beside them: the smaller base with all of its lessons and RL.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from kept_rows import DEV, TURNS, Kept, Line
from marked import markdown
from result_tables import (
    MANY_ROUNDS,
    NOTHING,
    OTHER_SUBSETS,
    SHIPPED,
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
from parallelsearch.evaluation.statistics import Ratio

LARGER, TWIN, SMALLER, WITH_RL = "rounds-parallel", "rounds-sequential", "rounds-small", "rounds-rl"
FEWER, SMALLER_FEWER = "qwen-parallel", "small-parallel"
SAID = {
    "smaller base": SMALLER,
    "larger base": LARGER,
    "its twin": TWIN,
    "with RL": WITH_RL,
    SHIPPED: SHIPPED,
    "smaller, fewer second rounds": SMALLER_FEWER,
    "larger, fewer": FEWER,
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
        small, twin, shipped = _on_the_same(kept, large, holds, SMALLER, (TWIN, rounds), SHIPPED)
        calls = _calls(large), bare(calls_ratio(twin, large), 2)
        lines.append([
            name, str(len(large[0])), figure(fmean(line.row.chance for line in large[0])), _em(small),
            with_interval(metrics(large, "em")[0]), lead(em_difference(small, large)), _em(twin),
            lead(em_difference(twin, large)), *calls, _em(shipped), lead(em_difference(shipped, large)),
        ])  # fmt: skip
    head = (
        "EM", "n", "chance", "smaller base", "larger base", "minus the smaller's", "its twin", "minus the twin's", "calls",
        "by the twin's", SHIPPED, f"minus {SHIPPED}'s",
    )  # fmt: skip
    return _with_seeds(kept, head, lines, "smaller base", "larger base", "its twin", SHIPPED)


def lessons_table(kept: Kept) -> str:
    """What more lessons of two rounds bring, and RL after them."""
    lines = []
    for name, (holds, _) in _ANSWERS.items():
        large = lines_of(kept, LARGER, holds)
        if not large:
            continue
        small_fewer, small, fewer, taught = _on_the_same(kept, large, holds, SMALLER_FEWER, SMALLER, FEWER, WITH_RL)
        lines.append([
            name, str(len(large[0])), _em(small_fewer), _em(small), _em(fewer), _em(large), lead(em_difference(fewer, large)),
            _em(taught), lead(em_difference(large, taught)), _calls(fewer), _calls(large), _calls(taught),
        ])  # fmt: skip
    head = (
        "EM", "n", "smaller, fewer second rounds", "smaller, more", "larger, fewer", "larger, more", "minus fewer",
        "with RL", "minus without", "calls, fewer", "more", "with RL",
    )  # fmt: skip
    arms = ("smaller, fewer second rounds", "smaller base", "larger, fewer", "larger base", "with RL")
    return _with_seeds(kept, head, lines, *arms)


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
        small, taught, shipped = _on_the_same(kept, large, holds, SMALLER, WITH_RL, SHIPPED)
        found = [bounded(measured(_ratios(seeds, metric))) for seeds in (small, large, taught, shipped)]
        lines.append([
            name, str(len(large[0])), bare(found[0]), with_interval(found[1]), lead(_gain(small, large, metric)),
            bare(found[2]), lead(_gain(large, taught, metric)), bare(found[3]), lead(_gain(shipped, large, metric)),
        ])  # fmt: skip
    head = (
        "share", "n", "smaller base", "larger base", "minus the smaller's", "with RL", "minus without", SHIPPED,
        f"larger minus {SHIPPED}'s",
    )  # fmt: skip
    return _with_seeds(kept, head, lines, "smaller base", "larger base", "with RL", SHIPPED)


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


def _gain(one: Seeds, other: Seeds, metric: str) -> Measured | None:
    """Of the second over the first, on the questions that both were asked."""
    a, b = paired(one, other)
    return ratio_difference(_ratios(a, metric), _ratios(b, metric))


TABLES = {"larger_answers": answers_table, "larger_lessons": lessons_table, "larger_splits": splits_table}

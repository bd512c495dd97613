"""What a larger base brings: Qwen2.5-Coder-0.5B and SmolLM2-135M with as many lessons, as tables of the kept rows.

Rows are those of `kept_rows.py` (`tried/qwen-*` and `tried/small-parallel`); `recipes/twins-wide.toml` has the commands. The
twin of the larger base may search nine times where questions have many parts. `parallel-3` stands beside them: the smaller
base with all of its lessons and RL.
"""

from __future__ import annotations

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

LARGER, TWIN, SMALLER = "qwen-parallel", "qwen-sequential", "small-parallel"
SAID = {"smaller base": SMALLER, "larger base": LARGER, "its twin": TWIN, SHIPPED: SHIPPED}
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
        small, large, twin, shipped = _on_the_same(kept, holds, rounds)
        if not large:
            continue
        ems = [metrics(seeds, "em")[0] if seeds else None for seeds in (small, large, twin, shipped)]
        chance = fmean(line.row.chance for line in large[0])
        calls = bare(metrics(large, "num_llm_calls")[0], 2), bare(calls_ratio(twin, large), 2)
        lines.append([
            name, str(len(large[0])), figure(chance), bare(ems[0]), with_interval(ems[1]), lead(em_difference(small, large)),
            bare(ems[2]), lead(em_difference(twin, large)), *calls, bare(ems[3]), lead(em_difference(shipped, large)),
        ])  # fmt: skip
    head = (
        "EM", "n", "chance", "smaller base", "larger base", "minus the smaller's", "its twin", "minus the twin's", "calls",
        "by the twin's", SHIPPED, f"minus {SHIPPED}'s",
    )  # fmt: skip
    return f"{markdown(head, lines)}\n\n{_seeds(kept, *SAID)}" if lines else NOTHING


def splits_table(kept: Kept) -> str:
    """What is decided: whether to split, into what, and whether one query is taken for enough."""
    rows: list[tuple[str, Holds, str]] = [
        *((f"{name}: decided rightly", holds, "decomposition_accuracy") for name, holds in _SPLITS.items()),
        *((f"{width} parts: covered", WIDE_SUBSETS[f"{width} parts"], "parts_covered") for width in _WIDTHS),
        *((f"{name}: asked in one query", holds, "") for name, holds in _ONCE.items()),
    ]
    lines = []
    for name, holds, metric in rows:
        small, large, _, shipped = _on_the_same(kept, holds)
        if not large:
            continue
        found = [bounded(measured(_ratios(seeds, metric))) for seeds in (small, large, shipped)]
        gains = [lead(_gain(seeds, large, metric)) for seeds in (small, shipped)]
        shown = [bare(found[0]), with_interval(found[1]), gains[0], bare(found[2]), gains[1]]
        lines.append([name, str(len(large[0])), *shown])
    head = ("share", "n", "smaller base", "larger base", "minus the smaller's", SHIPPED, f"minus {SHIPPED}'s")
    shown_arms = [name for name in SAID if name != "its twin"]
    return f"{markdown(head, lines)}\n\n{_seeds(kept, *shown_arms)}" if lines else NOTHING


def _on_the_same(kept: Kept, holds: Holds, twin_rounds: int = TURNS) -> list[list[list[Line]]]:
    """The lines of the smaller base, the larger, its twin and the shipped policy, each on what the larger was asked too."""
    large = lines_of(kept, LARGER, holds)
    others = {
        arm: lines_of(kept, arm, holds, twin_rounds if arm == TWIN else TURNS) for arm in (SMALLER, TWIN, SHIPPED)
    }
    same = {arm: paired(seeds, large)[0] for arm, seeds in others.items()}
    return [same[SMALLER], large, same[TWIN], same[SHIPPED]]


def _seeds(kept: Kept, *names: str) -> str:
    counts = {name: len(kept.policies.get(SAID[name]) or kept.tried.get(SAID[name], [])) for name in names}
    return f"Seeds: {', '.join(f'{name} {count}' for name, count in counts.items())}."


def _ratios(seeds: Seeds, metric: str) -> list[Ratio]:
    if not metric:
        return once_ratios(seeds)
    return [ratios_of([line.row for line in seed])[metric] for seed in seeds]


def _gain(small: Seeds, large: Seeds, metric: str) -> Measured | None:
    """Of the larger base over the smaller, on the questions that both were asked."""
    a, b = paired(small, large)
    return ratio_difference(_ratios(a, metric), _ratios(b, metric))


TABLES = {"larger_answers": answers_table, "larger_splits": splits_table}

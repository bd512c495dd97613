"""The published tables as functions of the kept rows (`kept_rows.py`), with the measures that `eval`, `budget` and `compare`
use.

An arm is a way of training, by the rows of its seeds. With one seed an interval is over questions, and the text under the
table says so; with several it is over questions and seeds (`evaluation/seeds.py`). Lines of one question in two arms are
compared as a pair. `goals_table` has what was promised before the runs, and whether it came true.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from kept_rows import BALANCED, DEV, PER_PART, TURNS, WIDE, Kept, Line
from marked import markdown

from parallelsearch.data.sets import SMALL
from parallelsearch.evaluation.budget import LABELLED, PASSAGES, ROUNDS, WHOLE
from parallelsearch.evaluation.metrics import ratios_of
from parallelsearch.evaluation.plots import Figure, Series
from parallelsearch.evaluation.seeds import group_test
from parallelsearch.evaluation.statistics import Ratio, bootstrap, mean_of, paired_test

Holds = Callable[[Line], bool]
Seeds = Sequence[Sequence[Line]]
"""The lines of each seed of an arm, the same questions in the same order."""

SHIPPED, BEFORE, EARLIER, NOW = "parallel-4", "parallel-3", "parallel-2", "parallel-1"
"""The policy that ships, those that did before it, and the one that the goals are measured against."""
TWINS = {SHIPPED: "sequential-3", BEFORE: "sequential-2", EARLIER: "sequential-1"}
"""Each with the sequential policy of the same lessons."""
MANY_ROUNDS = 9
SHOWN = (TWINS[BEFORE], BEFORE, TWINS[SHIPPED], SHIPPED)
"""What the tables have, in this order. Those from before them are in the history, the goals and the curve."""
CANDIDATES = (SHIPPED, BEFORE)
WIDTHS = range(2, 9)
MANY_PARTS = 5
NOTHING = "No run is kept yet."
_RESAMPLES = 1000
_REWORDED = "wide-reworded"


# ---- choosing lines --------------------------------------------------------------------------------------------------


def _of(dataset: str, kind: str) -> Holds:
    return lambda line: (line.set, line.dataset, line.kind) == (DEV, dataset, kind)


def in_set(name: str, *kinds: str) -> Holds:
    return lambda line: line.set == name and (not kinds or line.kind in kinds)


def _wide(*widths: int) -> Holds:
    return lambda line: line.set == WIDE and line.kind == "parallel" and line.num_parts in widths


SUBSETS: dict[str, Holds] = {
    "HotpotQA-par": _of("hotpotqa", "parallel"),
    "2Wiki-par": _of("2wikimultihopqa", "parallel"),
    "comparisons, pooled": in_set(DEV, "parallel"),
    "2Wiki-mixed": in_set(DEV, "mixed"),
    "mixed-balanced": in_set(BALANCED),
    "chains": in_set(DEV, "sequential"),
}
ARM_SUBSETS: dict[str, Holds] = {
    **{name: holds for name, holds in SUBSETS.items() if name not in ("mixed-balanced", "chains")},
    "2Wiki-mixed, years agree": lambda line: line.set == DEV and line.shortcut == "agrees",
    "2Wiki-mixed, years differ": lambda line: line.set == DEV and line.shortcut == "differs",
    **{name: SUBSETS[name] for name in ("mixed-balanced", "chains")},
}
WIDE_SUBSETS: dict[str, Holds] = {
    **{f"{width} parts": _wide(width) for width in WIDTHS},
    "5 parts and more": _wide(*range(MANY_PARTS, 9)),
    "2 to 8 parts": _wide(*WIDTHS),
    "mixed, 3 to 6 parts": in_set(WIDE, "mixed"),
}
OTHER_SUBSETS: dict[str, Holds] = {
    "dependency, parallel": in_set("dependency", "parallel"),
    "dependency, chains": in_set("dependency", "sequential"),
    "dependency, single": in_set("dependency", "single"),
    "dependency, mixed": in_set("dependency", "mixed"),
    "dependency, look parallel and are not": lambda one: one.set == "dependency" and one.trap == "looks_parallel",
    "dependency, look like chains and are not": lambda one: one.set == "dependency" and one.trap == "looks_sequential",
    "traps": in_set("traps"),
    "wordings never trained, 2 to 8 parts": in_set(_REWORDED, "parallel"),
    "wordings never trained, mixed": in_set(_REWORDED, "mixed"),
    "demo, parallel": lambda line: line.set in ("demo", "demo-par") and line.kind == "parallel",
    "demo, chains": in_set("demo", "sequential"),
    "demo, single": in_set("demo", "single"),
    "FanOutQA": lambda line: line.set.startswith("fanoutqa"),
    "FRAMES": lambda line: line.set.startswith("frames"),
}


def policies(kept: Kept) -> list[str]:
    return [name for name in SHOWN if name in kept.policies]


def lines_of(kept: Kept, arm: str, holds: Holds, turns: int | None = TURNS) -> list[list[Line]]:
    """The lines of each seed that asked any of these, over the questions that all of those seeds share."""
    if arm in (WHOLE, LABELLED):
        files, turns = [kept.whole if arm == WHOLE else kept.labelled], None
    else:
        files = kept.policies.get(arm) or kept.tried.get(arm, [])
    chosen = [{one.id: one for one in lines if holds(one) and turns in (None, one.turns)} for lines in files]
    return _paired([seed for seed in chosen if seed])


def _paired(seeds: Sequence[dict[str, Line]]) -> list[list[Line]]:
    shared = [key for key in seeds[0] if all(key in seed for seed in seeds)] if seeds else []
    return [[seed[key] for key in shared] for seed in seeds] if shared else []


def paired(a: Seeds, b: Seeds) -> tuple[list[list[Line]], list[list[Line]]]:
    """Both over the questions that they share."""
    both = _paired([{line.id: line for line in seed} for seed in (*a, *b)])
    return both[: len(a)], both[len(a) :]


def all_turns(kept: Kept, arm: str, holds: Holds) -> list[int]:
    return sorted({line.turns for lines in kept.policies.get(arm, []) for line in lines if holds(line)})


# ---- measuring -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """A figure with its 95% interval, and the least number of seeds behind it."""

    value: float
    low: float
    high: float
    num_seeds: int


def measured(ratios: Sequence[Ratio]) -> Measured | None:
    """The mean over seeds of a ratio."""
    if not ratios or any(ratio.value is None for ratio in ratios):
        return None
    if len(ratios) == 1:
        interval = bootstrap({"it": ratios[0]}, num_resamples=_RESAMPLES)["it"]
        return None if interval is None or ratios[0].value is None else Measured(ratios[0].value, *interval, 1)
    size = len(ratios[0].top)
    test = group_test([Ratio(np.zeros(size), np.ones(size))], ratios, num_resamples=_RESAMPLES)
    return None if test is None else Measured(test.difference, test.low, test.high, len(ratios))


def difference(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> Measured | None:
    """The mean of B's seeds minus that of A's, on the same questions; a value for each question of each seed."""
    if not a or not b:
        return None
    if len(a) == len(b) == 1:
        one = paired_test(a[0], b[0], num_resamples=_RESAMPLES)
        return Measured(one.difference, one.low, one.high, 1)
    return ratio_difference([mean_of(seed) for seed in a], [mean_of(seed) for seed in b], _RESAMPLES)


def ratio_difference(a: Sequence[Ratio], b: Sequence[Ratio], num_resamples: int = 2 * _RESAMPLES) -> Measured | None:
    """The same of ratios, one for each seed."""
    test = group_test(a, b, num_resamples=num_resamples) if a and b else None
    return None if test is None else Measured(test.difference, test.low, test.high, min(len(a), len(b)))


def metrics(seeds: Seeds, *names: str) -> list[Measured | None]:
    found = [ratios_of([line.row for line in seed]) for seed in seeds]
    shown = {name: measured([one[name] for one in found]) for name in names}
    return [one if name in ("num_llm_calls", "reading") else bounded(one) for name, one in shown.items()]


def bounded(found: Measured | None) -> Measured | None:
    """A share lies between 0 and 1, however wide the interval of two seeds is."""
    return found and replace(found, low=max(0.0, found.low), high=min(1.0, found.high))


def em_difference(a: Seeds, b: Seeds) -> Measured | None:
    a, b = paired(a, b)
    found = difference([[float(one.row.em) for one in seed] for seed in a], [[float(x.row.em) for x in y] for y in b])
    return found and replace(found, low=max(-1.0, found.low), high=min(1.0, found.high))


def calls_ratio(a: Seeds, b: Seeds) -> Measured | None:
    """B's calls for one of A's; seeds are averaged, the interval is over questions."""
    a, b = paired(a, b)
    if not a or not b:
        return None
    top, bottom = (np.mean([[one.row.num_llm_calls for one in seed] for seed in seeds], axis=0) for seeds in (b, a))
    found = measured([Ratio(top.astype(np.float64), bottom.astype(np.float64))])
    return None if found is None else Measured(found.value, found.low, found.high, min(len(a), len(b)))


def all_gold(seeds: Seeds, num_passages: Callable[[Line], int], num_rounds: int) -> list[list[float]]:
    return [[float(line.recall(num_passages(line), num_rounds) == 1.0) for line in seed] for seed in seeds]


def _by_parts(line: Line) -> int:
    return PER_PART * line.num_parts


def gold_lead(kept: Kept, arm: str, holds: Holds, turns: int | None = TURNS) -> Measured | None:
    """How far an arm with three passages a part is ahead of the whole question with as many, in all gold."""
    a, b = paired(lines_of(kept, WHOLE, holds), _placed(lines_of(kept, arm, holds, turns)))
    found = difference(all_gold(a, _by_parts, 1), all_gold(b, _by_parts, turns or TURNS))
    return found and replace(found, num_seeds=len(b))


def _placed(seeds: Seeds) -> list[list[Line]]:
    return _paired([{line.id: line for line in seed if line.record.get("places")} for seed in seeds])


# ---- writing ---------------------------------------------------------------------------------------------------------


def figure(value: float | None, digits: int = 3) -> str:
    if value is None:
        return "–"
    return f"{value:.{digits}f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.{digits}f}"


def signed(value: float) -> str:
    return f"{value:+.3f}".replace("0.", ".", 1)


def bare(found: Measured | None, digits: int = 3) -> str:
    return figure(None if found is None else found.value, digits)


def with_interval(found: Measured | None) -> str:
    return "–" if found is None else f"{bare(found)} ({figure(found.low)}, {figure(found.high)})"


def lead(found: Measured | None) -> str:
    return "–" if found is None else f"{signed(found.value)} ({signed(found.low)}, {signed(found.high)})"


def seeds_told(kept: Kept, arms: Iterable[str]) -> str:
    """What stands under a table: of how many seeds it is. The page has once what that means."""
    counts = {arm: len(kept.policies[arm]) for arm in arms if arm in kept.policies}
    single = [arm for arm, count in counts.items() if count == 1]
    text = [f"{arm}: {count} seeds." for arm, count in counts.items() if count > 1]
    if single:
        text.append(f"One seed, no result: {', '.join(single)}.")
    return textwrap.fill(" ".join(text), 120, break_on_hyphens=False)


def _with_seeds(kept: Kept, table: str, arms: Iterable[str]) -> str:
    told = seeds_told(kept, arms)
    return f"{table}\n\n{told}" if told else table


def _named(arm: str, turns: int, all_of_it: Sequence[int]) -> str:
    return arm if list(all_of_it) == [TURNS] else f"{arm}, {turns} rounds"


# ---- tables ----------------------------------------------------------------------------------------------------------

_BUDGET_HEAD = ("questions", "n", "arm", "rounds", *(f"{size} passages" for size in PASSAGES))


def budget_lines(kept: Kept, arms: Sequence[str]) -> list[list[str]]:
    """The arms on the questions that all of them have (the labelled one, those whose parts are known)."""
    lines: list[list[str]] = []
    for name, holds in SUBSETS.items():
        own = {arm: _placed(lines_of(kept, arm, holds)) for arm in arms}
        own = {arm: seeds for arm, seeds in own.items() if seeds}
        wanted = [seeds for arm, seeds in own.items() if arm != LABELLED]
        ids = set.intersection(*({line.id for line in seeds[0]} for seeds in wanted)) if wanted else set()
        own = {arm: [[line for line in seed if line.id in ids] for seed in seeds] for arm, seeds in own.items()}
        if len(own.get(WHOLE, [[]])[0]) == 0:
            continue
        last: dict[str, list[str]] = {}
        for num_rounds in ROUNDS:
            for arm, seeds in own.items():
                is_over = {WHOLE: 1, LABELLED: 2 if "mixed" in name else 1}.get(arm, max(ROUNDS))
                if num_rounds > is_over or not seeds[0]:
                    continue  # nothing is left to be asked there
                figures = [_budget_figure(own[WHOLE], seeds, arm, size, num_rounds) for size in PASSAGES]
                if last.get(arm) != figures:  # else no question took another round
                    lines.append([name, f"{len(seeds[0]):,}", arm, str(num_rounds), *figures])
                last[arm] = figures
    return lines


def _budget_figure(whole: Seeds, seeds: Seeds, arm: str, size: int, num_rounds: int) -> str:
    """All gold / gold recall; behind an arm that is not the whole question, its lead in all gold."""
    has_all = all_gold(seeds, lambda line: size, num_rounds)
    recalls = [line.recall(size, num_rounds) or 0.0 for seed in seeds for line in seed]
    text = f"{figure(float(np.mean(has_all)))} / {figure(float(np.mean(recalls)))}"
    if arm == WHOLE:
        return text
    a, b = paired(whole, seeds)
    return f"{text}, {lead(difference(all_gold(a, lambda line: size, 1), all_gold(b, lambda line: size, num_rounds)))}"


def budget_table(kept: Kept) -> str:
    """The two arms without a model and the policies that matter most, on the dev questions that all of them have."""
    chosen = _main_pair(kept)
    table = markdown(_BUDGET_HEAD, budget_lines(kept, (WHOLE, LABELLED, *chosen)))
    return _with_seeds(kept, table, chosen)


def _main_pair(kept: Kept) -> tuple[str, ...]:
    """The policy that ships, its twin, and the policy before it."""
    return tuple(name for name in (TWINS[SHIPPED], BEFORE, SHIPPED) if name in kept.policies)


def twin_of(arm: str) -> str:
    return TWINS.get(arm) or arm.replace("parallel", "sequential")


_ARM_COLUMNS = {
    "calls": "num_llm_calls",
    "split": "split_ratio",
    "decomposition accuracy": "decomposition_accuracy",
    "parts covered": "parts_covered",
    "all gold at hand": "all_gold_ratio",
    "EM given gold": "em_given_gold",
}


_BRIEF: dict[str, tuple[Holds, int]] = {
    "2 to 4 independent parts, made from pages": (_wide(2, 3, 4), MANY_ROUNDS),
    "5 to 8 independent parts, made from pages": (_wide(*range(MANY_PARTS, 9)), MANY_ROUNDS),
    "two parallel rounds, made from pages": (SUBSETS["mixed-balanced"], TURNS),
    "HotpotQA and 2Wiki, comparisons of two": (SUBSETS["comparisons, pooled"], TURNS),
    "2Wiki, two parallel rounds": (SUBSETS["2Wiki-mixed"], TURNS),
    "HotpotQA, 2Wiki and MuSiQue, chains": (SUBSETS["chains"], TURNS),
}
"""What the first screens show, and the rounds that who searches one thing at a time may take."""


def brief_table(kept: Kept) -> str:
    """The policy that ships and its twin."""
    lines = []
    for name, (holds, rounds) in _BRIEF.items():
        a, b = lines_of(kept, twin_of(SHIPPED), holds, rounds), lines_of(kept, SHIPPED, holds, TURNS)
        if not a or not b:
            continue
        (calls_a, em_a), (calls_b, em_b, covered) = (
            metrics(a, "num_llm_calls", "em"),
            metrics(b, "num_llm_calls", "em", "parts_covered"),
        )
        chance = figure(float(np.mean([line.row.chance for line in b[0]])), 2)
        calls = f"**{bare(calls_b, 2)}** instead of {bare(calls_a, 2)}"
        figures = [chance, bare(em_a), bare(em_b), lead(em_difference(a, b)), calls, bare(covered, 2)]
        lines.append([name, f"{len(b[0]):,}", *figures])
    head = ("questions", "n", "coin flip", "EM, one at a time", "EM, all at once", "difference", "LLM calls")
    return markdown((*head, "parts asked at once"), lines) if lines else NOTHING


_FOUND: dict[str, tuple[Holds, int]] = {
    "HotpotQA and 2Wiki, comparisons of two": (SUBSETS["comparisons, pooled"], 1),
    "2 independent parts, made from pages": (_wide(2), 1),
    "4 independent parts": (_wide(4), 1),
    "8 independent parts": (_wide(8), 1),
    "two parallel rounds, made from pages": (SUBSETS["mixed-balanced"], 2),
    "2Wiki, two parallel rounds": (SUBSETS["2Wiki-mixed"], 2),
}
"""What the README shows first: the questions, and the rounds that the policy's queries are taken from."""


def found_table(kept: Kept) -> str:
    """All gold at equal budget, without a reader: the whole question as one query, and the shipped policy's queries."""
    lines = []
    for name, (holds, rounds) in _FOUND.items():
        a, b = paired(lines_of(kept, WHOLE, holds), _placed(lines_of(kept, SHIPPED, holds, TURNS)))
        if not a or not b:
            continue
        figures = []
        for size in (2, PER_PART):
            one, other = (all_gold(seeds, partial(_so_many, size), n) for seeds, n in ((a, 1), (b, rounds)))
            figures += [figure(float(np.mean(one))), figure(float(np.mean(other))), lead(difference(one, other))]
        lines.append([name, f"{len(a[0]):,}", str(rounds), *figures])
    head = ["questions", "n", "rounds"]
    for said in ("two passages a part", "three"):
        head += [f"{said}: one query", "the policy's", "lead"]
    return markdown(head, lines) if lines else NOTHING


def _so_many(size: int, line: Line) -> int:
    return size * line.num_parts


def arms_table(kept: Kept) -> str:
    lines = []
    for name, holds in ARM_SUBSETS.items():
        for arm in policies(kept):
            seeds = lines_of(kept, arm, holds)
            if not seeds:
                continue
            em, reading, *others = metrics(seeds, "em", "reading", *_ARM_COLUMNS.values())
            figures = [
                bare(found, 2 if key == "num_llm_calls" else 3)
                for key, found in zip(_ARM_COLUMNS.values(), others, strict=True)
            ]
            chance = figure(float(np.mean([line.row.chance for line in seeds[0]])))
            n = f"{len(seeds[0]):,}"
            lines.append([name, n, arm, chance, with_interval(em), *figures, with_interval(reading)])
    if not lines:
        return NOTHING
    table = markdown(("questions", "n", "policy", "chance", "EM", *_ARM_COLUMNS, "reading"), lines)
    return _with_seeds(kept, table, policies(kept))


def wide_table(kept: Kept) -> str:
    """By number of parts, every policy with every number of rounds it was allowed."""
    lines = []
    for name, holds in WIDE_SUBSETS.items():
        for arm in policies(kept):
            allowed = all_turns(kept, arm, holds)
            for turns in allowed:
                seeds = lines_of(kept, arm, holds, turns)
                names = ("em", "parts_covered", "num_llm_calls", "all_gold_ratio", "cut_ratio")
                em, covered, calls, gold, cut = metrics(seeds, *names)
                chance = figure(float(np.mean([line.row.chance for line in seeds[0]])))
                out = np.mean([line.row.stop == "max_tokens" for seed in seeds for line in seed])
                figures = [bare(covered), bare(calls, 2), chance, with_interval(em), bare(gold), bare(cut)]
                lines.append([name, str(len(seeds[0])), _named(arm, turns, allowed), *figures, figure(float(out))])
    if not lines:
        return NOTHING
    head = (
        "wide",
        "n",
        "policy",
        "parts covered",
        "calls",
        "chance",
        "EM",
        "all gold at hand",
        "passages cut",
        "no room",
    )
    return _with_seeds(kept, markdown(head, lines), policies(kept))


_FORMS = {
    "none_of": "none of them ...?",
    "first_of": "which is first",
    "facts_of_one": "two or three facts of one thing",
    "all_of": "all of them ...?",
    "last_of": "which is last",
    "how_many_of": "how many of them ...",
    "most_of": "which has the most",
    "each": "a fact of each",
    "which_of": "which of them are ...",
    "fewest_of": "which has the fewest",
    "several_questions": "unrelated questions in one",
}


def _of_form(form: str) -> Holds:
    return lambda line: _wide(*WIDTHS)(line) and line.record.get("type") == form


def forms_table(kept: Kept) -> str:
    """By what the question wants of its parts: where reading fails."""
    arms = policies(kept)
    lines = []
    for form, said in _FORMS.items():
        own: dict[str, Seeds] = {}
        for arm in arms:
            holds = _of_form(form)
            turns = max(all_turns(kept, arm, holds), default=TURNS)
            own[arm] = lines_of(kept, arm, holds, turns)
        if not all(own.values()) or not own:
            continue
        first = next(iter(own.values()))[0]
        chance = figure(float(np.mean([line.row.chance for line in first])))
        lines.append([said, str(len(first)), chance, *(with_interval(metrics(one, "em")[0]) for one in own.values())])
    if not lines:
        return NOTHING
    return _with_seeds(kept, markdown(("wide, by form", "n", "chance", *arms), lines), arms)


_PAIRS = ((SHIPPED, TWINS[SHIPPED]), (BEFORE, TWINS[BEFORE]))


def pairs_table(kept: Kept) -> str:
    """Each parallel policy against the sequential one of the same lessons, by number of parts."""
    lines = []
    for name, holds in WIDE_SUBSETS.items():
        for arm, twin in _PAIRS:
            for turns in all_turns(kept, twin, holds):
                a = lines_of(kept, twin, holds, turns)
                own = _turns_for(kept, arm, holds, turns)
                b = lines_of(kept, arm, holds, own)
                if not b:
                    continue
                said = f"{arm}, {own} rounds, and {twin}, {turns} rounds"
                ratio, gain = calls_ratio(a, b), em_difference(a, b)
                lines.append([name, str(len(paired(a, b)[0][0])), said, with_interval(ratio), lead(gain)])
    if not lines:
        return NOTHING
    table = markdown(("wide", "n", "policies", "calls, ratio", "EM, difference"), lines)
    return _with_seeds(kept, table, dict.fromkeys(name for pair in _PAIRS for name in pair))


def _turns_for(kept: Kept, arm: str, holds: Holds, turns: int) -> int:
    """The same limit as the other's, or, where the arm was not run with it, the usual one, which is no easier."""
    return turns if turns in all_turns(kept, arm, holds) else TURNS


_LIMITED = {1: "sequential-1-round", 2: "sequential-2-rounds"}
"""By the rounds that they were trained and asked with."""
_CURVE: dict[str, Holds] = {
    "comparisons, pooled": SUBSETS["comparisons, pooled"],
    "2 to 4 parts": _wide(2, 3, 4),
    "5 parts and more": WIDE_SUBSETS["5 parts and more"],
    "mixed-balanced": SUBSETS["mixed-balanced"],
    "2Wiki-mixed": SUBSETS["2Wiki-mixed"],
    "chains": SUBSETS["chains"],
}


def curve_table(kept: Kept) -> str:
    """EM by the rounds that are allowed. One at a time: trained for the limit. All at once: trained with four rounds, and
    wrong where it took more than the limit."""
    lines = []
    for name, holds in _CURVE.items():
        for rounds in (1, 2, TURNS, MANY_ROUNDS):
            arm = _LIMITED.get(rounds, TWINS[EARLIER])
            alone = lines_of(kept, arm, holds, rounds)
            within = [_within(lines_of(kept, one, holds), rounds) for one in (EARLIER, SHIPPED)]
            if not alone or not all(within):
                continue
            before, shipped = (with_interval(metrics(seeds, "em")[0]) for seeds in within)
            found = [with_interval(metrics(alone, "em")[0]), before, lead(em_difference(alone, within[0])), shipped]
            lines.append([name, f"{len(alone[0]):,}", str(rounds), *found])
    if not lines:
        return NOTHING
    head = ("questions", "n", "rounds", "one at a time, trained for it", EARLIER, "lead", SHIPPED)
    return _with_seeds(kept, markdown(head, lines), (EARLIER, SHIPPED))


def _within(seeds: Seeds, rounds: int) -> list[list[Line]]:
    """The same lines, wrong where more rounds were taken."""
    return [
        [one if one.row.num_searches <= rounds else Line({**one.record, "em": False}, one.shortcut) for one in seed]
        for seed in seeds
    ]


def wide_budget_table(kept: Kept) -> str:
    """Three passages a part: the whole question with as many, the parts as labelled, and the policies' own queries."""
    arms = [arm for arm in policies(kept) if lines_of(kept, arm, in_set(WIDE))]
    lines = []
    for name, holds in WIDE_SUBSETS.items():
        whole = lines_of(kept, WHOLE, holds)
        if not whole:
            continue
        figures = [figure(float(np.mean(all_gold(whole, _by_parts, 1))))]
        for arm in (LABELLED, *arms):
            seeds = _placed(lines_of(kept, arm, holds))
            share = None if not seeds else float(np.mean(all_gold(seeds, _by_parts, TURNS)))
            figures.append("–" if share is None else f"{figure(share)}, {lead(gold_lead(kept, arm, holds))}")
        sizes = sorted({_by_parts(line) for line in whole[0]})
        shown = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
        lines.append([name, str(len(whole[0])), shown, *figures])
    if not lines:
        return NOTHING
    table = markdown(("wide", "n", "passages", WHOLE, LABELLED, *arms), lines)
    return _with_seeds(kept, table, arms)


_OTHER_COLUMNS = {
    "EM": "em",
    "loose": "string_loose",
    "strict": "string_strict",
    "answer contained": "sub_em",
    "decomposition accuracy": "decomposition_accuracy",
    "parts covered": "parts_covered",
    "all gold at hand": "all_gold_ratio",
}


def others_table(kept: Kept) -> str:
    """The sets with scores of their own. Answers of `dependency` and `traps` are not in the corpus: only decisions count."""
    lines = []
    for name, holds in OTHER_SUBSETS.items():
        for arm in policies(kept):
            seeds = lines_of(kept, arm, holds)
            if not seeds:
                continue
            found = dict(zip(_OTHER_COLUMNS, metrics(seeds, *_OTHER_COLUMNS.values()), strict=True))
            (calls,) = metrics(seeds, "num_llm_calls")
            if name.startswith(("dependency", "traps")):
                found["EM"] = found["answer contained"] = None
            chance = figure(None if found["EM"] is None else float(np.mean([one.row.chance for one in seeds[0]])))
            shown = [with_interval(one) for one in found.values()]
            lines.append([name, str(len(seeds[0])), arm, chance, *shown, bare(calls, 2)])
    if not lines:
        return NOTHING
    table = markdown(("questions", "n", "policy", "chance", *_OTHER_COLUMNS, "calls"), lines)
    return _with_seeds(kept, table, policies(kept))


def letters_table(kept: Kept) -> str:
    """The demo's questions as they are written, and in small letters: what a policy decides must not hang on them."""
    lines = []
    for kind in ("single", "sequential", "parallel"):
        for arm in policies(kept):
            written, small = paired(
                lines_of(kept, arm, in_set("demo", kind)), _renamed(lines_of(kept, arm, in_set("demo-small", kind)))
            )
            if not written or not small:
                continue
            once = [bare(measured(once_ratios(seeds))) for seeds in (written, small)]
            right = [with_interval(metrics(seeds, "em")[0]) for seeds in (written, small)]
            lines.append([kind, str(len(written[0])), arm, *once, *right])
    if not lines:
        return NOTHING
    header = ("demo", "n", "policy", "one query", "one query, small letters", "EM", "EM, small letters")
    return _with_seeds(kept, markdown(header, lines), dict.fromkeys(line[2] for line in lines))


def _renamed(seeds: Seeds) -> list[list[Line]]:
    return [[Line({**line.record, "id": line.id.removesuffix(SMALL)}) for line in seed] for seed in seeds]


def once_ratios(seeds: Seeds) -> list[Ratio]:
    """How often a question is taken for a single fact: one query, and an answer."""
    return [mean_of([float(one.row.num_subqueries == 1) for one in seed]) for seed in seeds]


# ---- goals -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Goal:
    """What was promised, and how it is measured: `find` gives the figure of an arm, `is_met` judges it."""

    text: str
    wanted: str
    find: Callable[[Kept, str], Measured | None]
    is_met: Callable[[Measured], bool]
    is_difference: bool = False


def _at_least(text: str, least: float, metric: str, holds: Holds) -> Goal:
    def find(kept: Kept, arm: str) -> Measured | None:
        return metrics(lines_of(kept, arm, holds), metric)[0]

    return Goal(text, f"at least {figure(least, 2)}", find, lambda found: found.value >= least)


def _gold_goal(width: int, least: float) -> Goal:
    text = f"all gold, {width} parts, {PER_PART} passages a part, minus the whole question's"
    return Goal(
        text, f"at least {signed(least)[:-1]}", lambda kept, arm: gold_lead(kept, arm, _wide(width)),
        lambda found: found.value >= least, is_difference=True,
    )  # fmt: skip


def _calls_goal(
    text: str, holds: Holds, most: float, find: Callable[[Kept, str], Measured | None] | None = None
) -> Goal:
    def against_twin(kept: Kept, arm: str) -> Measured | None:
        """The twin with the usual rounds, or with more where it was not run with those: it needs no more for so few parts."""
        turns = min(all_turns(kept, _opponent(arm), holds), default=TURNS)
        return calls_ratio(lines_of(kept, _opponent(arm), holds, turns), lines_of(kept, arm, holds))

    return Goal(text, f"at most {figure(most, 2)}", find or against_twin, lambda found: found.value <= most)


def _opponent(arm: str) -> str:
    """The sequential twin of a candidate. The adapter of before has none here."""
    return twin_of(arm) if arm in CANDIDATES else ""


def _over_best_other(kept: Kept, arm: str) -> Measured | None:
    """Against the best of the arms that are no new parallel policy, those trained for fewer rounds among them."""
    if arm not in CANDIDATES:
        return None
    holds = WIDE_SUBSETS["5 parts and more"]
    others = {name: lines_of(kept, name, holds) for name in kept.policies if name not in TWINS}
    others |= {name: lines_of(kept, name, holds, rounds) for rounds, name in _LIMITED.items()}
    values = {name: em.value for name, seeds in others.items() if (em := metrics(seeds, "em")[0]) is not None}
    if not values:
        return None
    best = max(values, key=lambda name: values[name])
    return _seeds_of(kept, arm, best, em_difference(others[best], lines_of(kept, arm, holds)))


def _seeds_of(kept: Kept, arm: str, other: str, found: Measured | None) -> Measured | None:
    """The adapter of before is these weights and no way of training: its one seed does not count against an arm."""
    return found and (replace(found, num_seeds=len(kept.policies[arm])) if other == NOW else found)


def _with_all_rounds(kept: Kept, arm: str) -> tuple[Seeds, Seeds] | None:
    """The twin with as many rounds as there are parts, and the arm (with as many, or with fewer)."""
    holds = WIDE_SUBSETS["5 parts and more"]
    allowed = [turns for turns in all_turns(kept, _opponent(arm), holds) if turns >= max(WIDTHS)]
    if not allowed:
        return None
    own = _turns_for(kept, arm, holds, allowed[0])
    return lines_of(kept, _opponent(arm), holds, allowed[0]), lines_of(kept, arm, holds, own)


def _em_with_all_rounds(kept: Kept, arm: str) -> Measured | None:
    found = _with_all_rounds(kept, arm)
    return None if found is None else em_difference(*found)


def _calls_with_all_rounds(kept: Kept, arm: str) -> Measured | None:
    found = _with_all_rounds(kept, arm)
    return None if found is None else calls_ratio(*found)


def _not_inferior(text: str, find: Callable[[Kept, str], Measured | None]) -> Goal:
    return Goal(text, "interval above -.02", find, lambda found: found.low > -0.02, is_difference=True)


def _against_now(name: str) -> Goal:
    def find(kept: Kept, arm: str) -> Measured | None:
        if arm == NOW:
            return None
        found = em_difference(lines_of(kept, NOW, SUBSETS[name]), lines_of(kept, arm, SUBSETS[name]))
        return _seeds_of(kept, arm, NOW, found)

    return _not_inferior(f"EM, {name}, minus {NOW}'s", find)


_DEPENDENCY = {key: OTHER_SUBSETS[f"dependency, {key}"] for key in ("parallel", "chains", "single")}
GOALS: tuple[Goal, ...] = (
    *(
        _at_least(f"parts covered, {width} parts", least, "parts_covered", _wide(width))
        for width, least in ((2, 0.95), (4, 0.90), (8, 0.80))
    ),
    *(
        _at_least(f"decomposition accuracy, dependency, {key}", least, "decomposition_accuracy", _DEPENDENCY[key])
        for key, least in (("parallel", 0.90), ("chains", 0.98), ("single", 0.98))
    ),
    _at_least("decomposition accuracy, traps", 0.60, "decomposition_accuracy", OTHER_SUBSETS["traps"]),
    _gold_goal(2, 0.10),
    _gold_goal(4, 0.25),
    _calls_goal("calls, 2 parts, by the twin's", _wide(2), 0.68),
    _calls_goal("calls, 4 parts, by the twin's", _wide(4), 0.45),
    Goal(
        "EM, 5 parts and more, 4 rounds, minus the best other arm's", "at least +.08, interval above 0",
        _over_best_other, lambda found: found.value >= 0.08 and found.low > 0, is_difference=True,
    ),
    _not_inferior("EM, 5 parts and more, as many rounds as parts, minus the twin's", _em_with_all_rounds),
    _calls_goal(
        "calls, 5 parts and more, as many rounds as parts, by the twin's", _wide(5, 6, 7, 8), 0.40,
        _calls_with_all_rounds,
    ),
    *(_against_now(name) for name in ("HotpotQA-par", "2Wiki-par", "chains")),
    _at_least("EM, demo, parallel", 0.70, "em", OTHER_SUBSETS["demo, parallel"]),
)  # fmt: skip


def judged(goal: Goal, kept: Kept, arm: str) -> str:
    found = goal.find(kept, arm) if arm in kept.policies and lines_of(kept, arm, lambda line: True) else None
    if found is None:
        return "–"
    shown = lead(found) if goal.is_difference else with_interval(found)
    seeds = "one seed" if found.num_seeds == 1 else f"{found.num_seeds} seeds"
    return f"{shown}: {'met' if goal.is_met(found) else 'missed'}, {seeds}"


def goals_table(kept: Kept) -> str:
    arms = [arm for arm in (*CANDIDATES, NOW) if arm in kept.policies]
    lines = [[goal.text, goal.wanted, *(judged(goal, kept, arm) for arm in arms)] for goal in GOALS]
    return _with_seeds(kept, markdown(("goal", "wanted", *arms), lines), [*arms, *(TWINS[arm] for arm in CANDIDATES)])


# ---- the plot --------------------------------------------------------------------------------------------------------


def wide_figures(kept: Kept) -> list[Figure]:
    """Calls, EM and parts covered by number of parts: a line for each policy, and one for the twin with more rounds."""
    shown = (
        ("num_llm_calls", "LLM calls", "calls a question", None),
        ("em", "Exact match", "EM", None),
        ("parts_covered", "Parts in a query of their own, in the first round that can", "parts covered", 1.05),
    )
    holds = WIDE_SUBSETS["2 to 8 parts"]
    twin = TWINS[SHIPPED]
    arms = [(arm, TURNS) for arm in policies(kept) if arm != TWINS[BEFORE] and lines_of(kept, arm, holds)]
    arms += [(twin, turns) for turns in all_turns(kept, twin, holds) if turns > TURNS]
    points: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for arm, turns in arms:
        name = arm if turns == TURNS else f"{arm}, {turns} rounds"
        for width in WIDTHS:
            seeds = lines_of(kept, arm, _wide(width), turns)
            for (key, *_), found in zip(shown, metrics(seeds, *(key for key, *_ in shown)), strict=True):
                if found is not None:
                    points.setdefault((key, name), []).append((float(width), found.value))
    return [
        Figure(
            key, title, "lines", "independent parts of the question", y_label,
            tuple(Series(name, tuple(found)) for (metric, name), found in points.items() if metric == key),
            y_max=y_max, x_min=2.0,
        )
        for key, title, y_label, y_max in shown
    ]  # fmt: skip


_ONE_PASS = "one-pass-parallel"
_TRIED: dict[str, tuple[Holds, int]] = {
    **{name: _BRIEF[name] for name in list(_BRIEF)[:2]},
    "two parallel rounds, made from pages": (SUBSETS["mixed-balanced"], MANY_ROUNDS),
    **{name: _BRIEF[name] for name in list(_BRIEF)[3:]},
    "demo, parallel": (OTHER_SUBSETS["demo, parallel"], TURNS),
}
_TRIED_SPLITS = ("dependency, parallel", "dependency, chains", "traps")


def tried_table(kept: Kept) -> str:
    """Cold starts of one pass with a few steps of RL, beside parallel-2 (two passes and more steps)."""
    lines = []
    for name, (holds, rounds) in _TRIED.items():
        old, new = lines_of(kept, EARLIER, holds), lines_of(kept, _ONE_PASS, holds)
        twin = lines_of(kept, twin_of(_ONE_PASS), holds, rounds)
        if not old or not new:
            continue
        (em_old,), (em_new, calls) = metrics(old, "em"), metrics(new, "em", "num_llm_calls")
        em_twin, calls_twin = metrics(twin, "em", "num_llm_calls") if twin else (None, None)
        called = f"{bare(calls, 2)}, {bare(calls_twin, 2)}" if twin else bare(calls, 2)
        against = lead(em_difference(old, new)), lead(em_difference(twin, new) if twin else None)
        lines.append(
            [name, str(len(new[0])), bare(em_old), bare(em_new), against[0], bare(em_twin), against[1], called]
        )
    if not lines:
        return NOTHING
    head = ("EM", "n", EARLIER, _ONE_PASS, "difference", twin_of(_ONE_PASS), "lead over it", "calls")
    for name in _TRIED_SPLITS:
        shown = [
            bare(metrics(lines_of(kept, arm, OTHER_SUBSETS[name]), "decomposition_accuracy")[0])
            for arm in (EARLIER, _ONE_PASS)
        ]
        lines.append([f"{name}: split rightly", "60", *shown, *"––––"])
    return markdown(head, lines)


_NEWER, _FIRST_ROUNDS, _WHOLE_FIRST = "newer-wordings", "first-rounds", "whole-first"
_NEWER_ROWS: dict[str, tuple[Holds, str, str]] = {
    **{
        f"{name}: split rightly": (OTHER_SUBSETS[name], "decomposition_accuracy", _FIRST_ROUNDS)
        for name in ("dependency, parallel", "dependency, chains", "dependency, single", "dependency, mixed", "traps")
    },
    "2 to 4 parts, made from pages: parts covered": (_wide(2, 3, 4), "parts_covered", _FIRST_ROUNDS),
    "5 to 8 parts: parts covered": (_wide(5, 6, 7, 8), "parts_covered", _FIRST_ROUNDS),
    "2 to 8 parts in wordings never trained: parts covered": (
        in_set(_REWORDED, "parallel"),
        "parts_covered",
        _FIRST_ROUNDS,
    ),
    "demo, parallel: exact match": (OTHER_SUBSETS["demo, parallel"], "em", EARLIER),
}


def newer_table(kept: Kept) -> str:
    """Three seeds that were taught the newer wordings, mostly by their first rounds, beside parallel-2."""
    lines = []
    for name, (holds, metric, shipped) in _NEWER_ROWS.items():
        old, new = paired(lines_of(kept, shipped, holds, None), lines_of(kept, _NEWER, holds, None))
        if not old or not new:
            continue
        (before,), (after,) = metrics(old, metric), metrics(new, metric)
        each = ", ".join(bare(metrics([seed], metric)[0]) for seed in new)
        lines.append([name, str(len(new[0])), with_interval(before), each, with_interval(after)])
    arms = [lines_of(kept, arm, in_set(_REWORDED, "parallel"), None) for arm in (_WHOLE_FIRST, _FIRST_ROUNDS, _NEWER)]
    if all(arms):
        found = [[mean_of(seed) for seed in all_gold(_placed(arm), _by_parts, 1)] for arm in arms]
        whole, before, after = (measured(ratios) for ratios in found)
        each = ", ".join(bare(measured([ratio])) for ratio in found[2])
        name = f"the same: all gold, three passages a part (whole question: {bare(whole)})"
        lines.insert(-1, [name, str(len(arms[2][0])), with_interval(before), each, with_interval(after)])
    head = ("first rounds", "n", EARLIER, "newer wordings, by seed", "mean")
    return markdown(head, lines) if lines else NOTHING


TABLES: dict[str, Callable[[Kept], str]] = {
    "found": found_table,
    "brief": brief_table,
    "budget": budget_table,
    "arms": arms_table,
    "wide": wide_table,
    "wide_forms": forms_table,
    "wide_pairs": pairs_table,
    "wide_budget": wide_budget_table,
    "curve": curve_table,
    "goals": goals_table,
    "others": others_table,
    "letters": letters_table,
    "tried": tried_table,
    "newer": newer_table,
}

"""Runs side by side: one table, paired tests, and a refusal to compare what is not alike.

Two runs may differ in policy and dialect: that is what is compared. Anything else that differs (questions, corpus, retriever,
k, limits, decoding) makes the numbers incomparable, so it is named and refused, unless the caller says which parts may
differ; then the differences stand in the result, and a note names each. Tests are over the questions that all runs share.
`compare` sets single runs side by side; `compare_groups` several seeds of each way of training, which is what a claim about a
way of training needs (`seeds.py`).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from parallelsearch.errors import UsageError, nearest
from parallelsearch.evaluation.folder import read_rows, short_names
from parallelsearch.evaluation.judgements import Judgements
from parallelsearch.evaluation.manifest import Difference, Manifest, differences, read_manifest
from parallelsearch.evaluation.metrics import Row, ratios_of, subsets_of, summarise
from parallelsearch.evaluation.seeds import GroupTest, group_test
from parallelsearch.evaluation.statistics import PairedTest, holm, paired_test
from parallelsearch.trajectory import MANY_CUT

COMPARED = ("policy", "dialect", "reader", "written")
"""Parts of the set-up that may differ without saying so."""
SEED = "sampling.seed"
"""What the runs of a group differ in: between groups it may, too."""
PARTS = ("data", "search", "limits", "sampling", "streaming_dispatch", "incomplete", "judge")
TESTED = ("em", "f1", "judged", "num_llm_calls", "num_searches", "elapsed_s")


@dataclass(slots=True)
class RunResult:
    """One run of a comparison: the same questions as the others, summed up."""

    name: str
    folder: str
    manifest: Manifest
    subsets: dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class MetricTest:
    """One metric of one run against the first run, on one subset. `p_holm` accounts for all tests of this metric."""

    subset: str
    metric: str
    run: str
    against: str
    result: PairedTest
    p_holm: float


@dataclass(slots=True)
class Comparison:
    """What `compare` found. The first run is the one the others are tested against."""

    runs: list[RunResult]
    tests: list[MetricTest]
    differences: dict[str, list[Difference]]
    """By run: what its set-up does not share with the first one's."""
    num_shared: int
    warnings: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {
            "runs": [{"name": run.name, "folder": run.folder, "subsets": run.subsets} for run in self.runs],
            "tests": [
                {**asdict(test.result), "p_holm": test.p_holm}
                | {"subset": test.subset, "metric": test.metric, "run": test.run, "against": test.against}
                for test in self.tests
            ],
            "differences": _as_text(self.differences),
            "num_shared": self.num_shared,
            "warnings": self.warnings,
        }


def compare(
    run_dirs: Sequence[str | os.PathLike[str]],
    *,
    allow: Sequence[str] = (),
    num_resamples: int = 2000,
    seed: int = 0,
) -> Comparison:
    """Set runs side by side. `allow` names the parts of the set-up that may differ (`PARTS`)."""
    if len(run_dirs) < 2:
        raise UsageError("a comparison needs at least two run folders")
    names, manifests, chosen, found, warnings = _load(run_dirs, allow)
    warnings.append(
        "one run of each: the intervals are over questions alone and leave out the training seed. To say that one way of "
        "training is better than another, give several seeds of each: compare a1 a2 a3 -- c1 c2 c3"
    )
    runs = [
        RunResult(
            name,
            str(folder),
            manifest,
            {
                subset: summarise(group, num_resamples=num_resamples, seed=seed)
                for subset, group in subsets_of(picked).items()
            },
        )
        for name, folder, manifest, picked in zip(names, run_dirs, manifests, chosen, strict=True)
    ]
    shares = [next(iter(run.subsets.values()))["cut_ratio"] or 0.0 for run in runs]
    if max(shares) - min(shares) >= MANY_CUT:
        listed = ", ".join(f"{run.name} {share:.0%}" for run, share in zip(runs, shares, strict=True))
        warnings.append(
            f"not like for like: of the passages shown so many were cut to fit into a round's tokens: {listed}. Give all of "
            "them a higher --max-observation-tokens"
        )
    return Comparison(runs, _tests(names, chosen, num_resamples, seed), found, len(chosen[0]), warnings)


def _load(
    run_dirs: Sequence[str | os.PathLike[str]], allow: Sequence[str], are_seeds: bool = False
) -> tuple[list[str], list[Manifest], list[list[Row]], dict[str, list[Difference]], list[str]]:
    """Names, manifests, the rows of the questions that all share, what differs from the first, and warnings."""
    for part in allow:
        if part not in PARTS:
            raise UsageError(f"'{part}' is no part of a set-up; choose from {', '.join(PARTS)}.{nearest(part, PARTS)}")
    names = short_names([Path(folder) for folder in run_dirs])
    manifests = [read_manifest(folder) for folder in run_dirs]
    found = {
        name: differences(manifests[0].setup, manifest.setup)
        for name, manifest in zip(names[1:], manifests[1:], strict=True)
    }
    unlike = {
        name: [one for one in different if _part(one) not in COMPARED and not (are_seeds and one.key == SEED)]
        for name, different in found.items()
    }
    _refuse(names[0], unlike, allow)
    rows = [{row.id: row for row in read_rows(folder)} for folder in run_dirs]
    shared = [key for key in rows[0] if all(key in one for one in rows[1:])]
    warnings = [*_check_complete(names, manifests, rows, allow), *_allowed(names[0], unlike)]
    if not shared:
        examples = "; ".join(
            f"{name} has {', '.join(list(one)[:2]) or 'none'}" for name, one in zip(names, rows, strict=True)
        )
        raise UsageError(f"these runs share no question id: {examples}")
    warnings += [
        text for name, one in zip(names, rows, strict=True) if (text := _lost(name, [one[key] for key in shared]))
    ]
    warnings += [
        f"{name}: {text}" for name, manifest in zip(names, manifests, strict=True) for text in manifest.warnings
    ]
    if any(len(one) > len(shared) for one in rows):
        sizes = ", ".join(f"{name} {len(one)}" for name, one in zip(names, rows, strict=True))
        warnings.append(f"only the {len(shared)} questions that all runs share are compared ({sizes})")
    chosen = [[one[key] for key in shared] for one in rows]
    warnings += _judged_alike(names, run_dirs, chosen, allow)
    return names, manifests, chosen, found, warnings


# ---- several seeds of each -------------------------------------------------------------------------------------------

GROUP_METRICS = (
    "em",
    "f1",
    "judged",
    "num_llm_calls",
    "num_searches",
    "parts_covered",
    "all_gold_ratio",
    "grounded_em",
    "em_given_gold",
    "reading",
)


@dataclass(frozen=True, slots=True)
class MetricGroupTest:
    """One metric of one group of runs against the first group, on one subset."""

    subset: str
    metric: str
    group: str
    against: str
    result: GroupTest


@dataclass(slots=True)
class GroupComparison:
    """What `compare_groups` found. The first group is the one the others are tested against."""

    groups: dict[str, list[str]]
    """The runs of each group, by its name."""
    tests: list[MetricGroupTest]
    differences: dict[str, list[Difference]]
    """By run: what its set-up does not share with that of the first run of all."""
    num_shared: int
    warnings: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {
            "groups": self.groups,
            "tests": [
                {**asdict(test.result), "verdict": test.result.verdict}
                | {"subset": test.subset, "metric": test.metric, "group": test.group, "against": test.against}
                for test in self.tests
            ],
            "differences": _as_text(self.differences),
            "num_shared": self.num_shared,
            "warnings": self.warnings,
        }


def compare_groups(
    groups: Sequence[Sequence[str | os.PathLike[str]]],
    *,
    allow: Sequence[str] = (),
    num_resamples: int = 2000,
    seed: int = 0,
) -> GroupComparison:
    """Set groups of runs side by side, each the seeds of one way of training. One seed is never called a result."""
    if len(groups) < 2 or not all(groups):
        raise UsageError("a comparison of groups needs at least two of them, each with a run: compare a1 a2 -- c1 c2")
    folders = [folder for group in groups for folder in group]
    names, manifests, chosen, found, warnings = _load(folders, allow, are_seeds=True)
    ends = [sum(len(group) for group in groups[: number + 1]) for number in range(len(groups))]
    places = [range(end - len(group), end) for group, end in zip(groups, ends, strict=True)]
    for own in places:
        _refuse_twins([names[at] for at in own], [manifests[at] for at in own])
    named = _group_names([[names[at] for at in own] for own in places])
    for name, own in zip(named, places, strict=True):
        if len(own) == 1:
            warnings.append(
                f"{name} has one seed: that is no result about a way of training. Give at least two, better three"
            )
    tests: list[MetricGroupTest] = []
    positions = {row.id: number for number, row in enumerate(chosen[0])}
    for subset, group in subsets_of(chosen[0]).items():
        picks = [positions[row.id] for row in group]
        ratios = [ratios_of([rows[at] for at in picks]) for rows in chosen]
        for metric in GROUP_METRICS:
            if not all(metric in one for one in ratios):
                continue  # some run was not judged
            base = [ratios[at][metric] for at in places[0]]
            for name, own in zip(named[1:], places[1:], strict=True):
                others = [ratios[at][metric] for at in own]
                result = group_test(base, others, num_resamples=num_resamples, seed=seed)
                if result is not None:
                    tests.append(MetricGroupTest(subset, metric, name, named[0], result))
    listed = {name: [names[at] for at in own] for name, own in zip(named, places, strict=True)}
    return GroupComparison(listed, tests, found, len(chosen[0]), warnings)


def _refuse_twins(names: Sequence[str], manifests: Sequence[Manifest]) -> None:
    """The same weights twice are one seed."""
    seen: dict[str, str] = {}
    for name, manifest in zip(names, manifests, strict=True):
        key = repr((manifest.setup.get("policy"), manifest.setup.get("sampling")))
        if key in seen:
            raise UsageError(
                f"{seen[key]} and {name} have the same policy and sampling seed: they are one run twice, not two seeds"
            )
        seen[key] = name


def _group_names(groups: Sequence[Sequence[str]]) -> list[str]:
    """What the names of a group's runs begin with, or the first of them."""
    short = [
        "".join(letters[0] for letters in itertools.takewhile(_is_one, zip(*group, strict=False))).rstrip("-_./ ")
        or group[0]
        for group in groups
    ]
    return short if len(set(short)) == len(short) else [f"{name} ({n})" for n, name in enumerate(short, start=1)]


def _is_one(letters: tuple[str, ...]) -> bool:
    return len(set(letters)) == 1


# ---- what may be compared --------------------------------------------------------------------------------------------


def _part(one: Difference) -> str:
    return one.key.partition(".")[0]


def _as_text(found: dict[str, list[Difference]]) -> dict[str, list[str]]:
    return {name: [str(one) for one in different] for name, different in found.items()}


def _allowed(first: str, unlike: dict[str, list[Difference]]) -> list[str]:
    """A note for each difference that was let pass, with the runs that have it."""
    runs: dict[str, list[str]] = {}
    for name, different in _as_text(unlike).items():
        for one in different:
            runs.setdefault(one, []).append(name)
    return [f"allowed to differ, {first} against {', '.join(names)}: {one}" for one, names in runs.items()]


def _refuse(first: str, unlike: dict[str, list[Difference]], allow: Sequence[str]) -> None:
    problems: list[str] = []
    parts: set[str] = set()
    for name, different in unlike.items():
        for one in different:
            if _part(one) not in allow:
                problems.append(f"  {name}: {one}")
                parts.add(_part(one))
    if problems:
        listed = "\n".join(problems[:20])
        raise UsageError(
            f"these runs are not alike (value of {first} against that of the other):\n{listed}\n"
            f"If they shall be compared all the same, say what may differ: {' '.join(f'--allow {p}' for p in sorted(parts))}"
        )


def _check_complete(
    names: Sequence[str], manifests: Sequence[Manifest], rows: Sequence[dict[str, Row]], allow: Sequence[str]
) -> list[str]:
    warnings: list[str] = []
    for name, manifest, one in zip(names, manifests, rows, strict=True):
        total = manifest.setup["data"]["num_questions"]
        if len(one) < total:
            text = f"{name} is not finished: {len(one)} of {total} questions"
            if "incomplete" not in allow:
                raise UsageError(f"{text}. Finish it by giving its command again, or say --allow incomplete")
            warnings.append(text)
    return warnings


def _judged_alike(
    names: Sequence[str], run_dirs: Sequence[str | os.PathLike[str]], chosen: Sequence[list[Row]], allow: Sequence[str]
) -> list[str]:
    """Notes on what judges said; where it cannot be compared it is taken out of the rows. It is compared over the questions
    on which every run that was judged has a verdict."""
    judged = [at for at, rows in enumerate(chosen) if any(row.judged is not None for row in rows)]
    if not judged:
        return []
    first, *others = judged
    setups = {at: Judgements(run_dirs[at]).setup for at in judged}
    deciding = {at: {} if setup is None else setup.deciding for at, setup in setups.items()}
    unlike = {names[at]: differences(deciding[first], deciding[at]) for at in others}
    if any(unlike.values()) and "judge" not in allow:
        _forget_verdicts(row for rows in chosen for row in rows)
        listed = "; ".join(f"{name}: {one}" for name, different in unlike.items() for one in different)
        return [
            f"'judged' is left out, for the judges differ (value of {names[first]} against that of the other): {listed}. "
            "Judge all with the same (parallelsearch judge RUN --judge ADDRESS --replace), or say --allow judge"
        ]
    notes = _allowed(names[first], unlike)
    if len(judged) < len(chosen):
        missing = ", ".join(name for at, name in enumerate(names) if at not in judged)
        notes.append(f"not judged: {missing}. To compare verdicts: parallelsearch judge RUN --judge ADDRESS")
    unknown = [number for number in range(len(chosen[0])) if any(chosen[at][number].judged is None for at in judged)]
    if unknown:
        _forget_verdicts(chosen[at][number] for at in judged for number in unknown)
        num_known = len(chosen[0]) - len(unknown)
        notes.append(
            f"'judged' is over the {num_known} of {len(chosen[0])} questions on which all judged runs have a verdict"
        )
    return notes


def _forget_verdicts(rows: Iterable[Row]) -> None:
    for row in rows:
        row.judged = row.judge_error = None


def _lost(name: str, rows: Sequence[Row]) -> str:
    """What a run lost to its machine and servers, which would look like a fault of its policy."""
    counts = {
        "on which the policy failed": sum(row.stop == "error" for row in rows),
        "that ran out of time": sum(row.stop == "timeout" for row in rows),
        "with a search that failed": sum(row.num_failed_queries > 0 for row in rows),
    }
    listed = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    return listed and (
        f"not like for like: of the {len(rows)} questions {name} has {listed}. Ask them again before you compare: its own "
        "command with --retry-failures"
    )


def _tests(names: Sequence[str], chosen: Sequence[list[Row]], num_resamples: int, seed: int) -> list[MetricTest]:
    """Every later run against the first, on every subset of the first run's labels."""
    positions = {row.id: number for number, row in enumerate(chosen[0])}
    raw: list[tuple[str, str, str, PairedTest]] = []
    for subset, group in subsets_of(chosen[0]).items():
        picks = [positions[row.id] for row in group]
        for metric in TESTED:
            for name, rows in zip(names[1:], chosen[1:], strict=True):
                both = [(getattr(chosen[0][at], metric), getattr(rows[at], metric)) for at in picks]
                known = [pair for pair in both if None not in pair]
                if known:
                    base, other = ([float(value) for value in values] for values in zip(*known, strict=True))
                    raw.append((subset, metric, name, paired_test(base, other, num_resamples=num_resamples, seed=seed)))
    adjusted: dict[int, float] = {}
    for metric in TESTED:
        numbers = [number for number, test in enumerate(raw) if test[1] == metric]
        adjusted.update(zip(numbers, holm([raw[number][3].p_value for number in numbers]), strict=True))
    return [
        MetricTest(subset, metric, name, names[0], result, adjusted[number])
        for number, (subset, metric, name, result) in enumerate(raw)
    ]

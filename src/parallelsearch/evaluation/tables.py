"""The tables of a report: what was measured, by subset and run, as text in rows.

They are the same in the page, in Markdown and in the terminal. The numbers are those of `summary.json` and the rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parallelsearch.evaluation.comparison import Comparison, GroupComparison
from parallelsearch.evaluation.manifest import Manifest
from parallelsearch.evaluation.metrics import ERROR_CLASSES, Row, decided_right
from parallelsearch.evaluation.page import Fact, Table
from parallelsearch.trajectory import KINDS


@dataclass(frozen=True, slots=True)
class View:
    """One run as the report sees it."""

    name: str
    manifest: Manifest
    subsets: Mapping[str, Mapping[str, Any]]
    rows: Sequence[Row]


_COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("n", "n", "d"),
    ("em", "EM", ".3f"),
    ("f1", "F1", ".3f"),
    ("judged", "judged right", ".3f"),
    ("chance_em", "chance", ".3f"),
    ("num_llm_calls", "calls", ".2f"),
    ("num_searches", "searches", ".2f"),
    ("num_subqueries", "sub-queries", ".2f"),
    ("split_ratio", "split", ".3f"),
    ("decomposition_accuracy", "decomposition", ".3f"),
    ("parts_covered", "parts covered", ".3f"),
    ("gold_recall", "gold recall", ".3f"),
    ("elapsed_p50_s", "p50 s", ".2f"),
    ("elapsed_p95_s", "p95 s", ".2f"),
    ("failures", "failures", "d"),
)
_DETAILS: tuple[tuple[str, str, str], ...] = (
    ("sub_em", "substring EM", ".3f"),
    ("n_judged", "answers with a verdict", "d"),
    ("judged_given_em", "judged right where EM is right", ".3f"),
    ("judged_given_no_em", "judged right where EM is wrong", ".3f"),
    ("judged_given_no_word", "judged right without a golden word", ".3f"),
    ("string_loose", "string accuracy, loose", ".3f"),
    ("string_strict", "string accuracy, strict", ".3f"),
    ("split_anywhere_ratio", "split in any round", ".3f"),
    ("decomposition_precision", "split precision", ".3f"),
    ("decomposition_recall", "split recall", ".3f"),
    ("rounds_accuracy", "rounds as needed", ".3f"),
    ("all_gold_ratio", "all gold at hand", ".3f"),
    ("grounded_em", "EM with all gold at hand", ".3f"),
    ("em_given_gold", "EM where all gold was at hand", ".3f"),
    ("reading", "the same, chance taken off", ".3f"),
    ("cut_ratio", "passages cut", ".3f"),
    ("generate_s", "generating s", ".2f"),
    ("wait_s", "waiting for search s", ".2f"),
    ("search_s", "searches in sequence s", ".2f"),
    ("response_tokens", "response tokens", ".0f"),
    ("num_output_tokens", "written tokens", ".0f"),
    ("num_truncated", "truncated turns", "d"),
    ("num_invalid", "unusable turns", "d"),
    ("num_failed_queries", "failed queries", "d"),
    ("cost", "cost a question", ".5f"),
)


_WITH_INTERVAL = (
    "em",
    "f1",
    "decomposition_accuracy",
    "judged",
    "judged_given_em",
    "judged_given_no_em",
    "judged_given_no_word",
)


def _cell(values: Mapping[str, Any], key: str, form: str) -> str:
    value = values.get(key)
    if value is None:
        return "–"
    interval = values.get("ci95", {}).get(key)
    if interval and key in _WITH_INTERVAL:
        return f"{value:{form}} [{interval[0]:{form}}, {interval[1]:{form}}]"
    return f"{value:{form}}"


def metric_table(views: Sequence[View], columns: Sequence[tuple[str, str, str]] = _COLUMNS) -> Table:
    """A row for each subset of each run; a number that no subset has takes no column."""
    known = [
        column for column in columns if any(v.get(column[0]) is not None for w in views for v in w.subsets.values())
    ]
    rows = [
        [name, view.name, *(_cell(values, key, form) for key, _, form in known)]
        for name in dict.fromkeys(subset for view in views for subset in view.subsets)
        for view in views
        if (values := view.subsets.get(name)) is not None
    ]
    return _table(views, ("subset", "run", *(title for _, title, _ in known)), rows)


def _table(views: Sequence[View], head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table that says which run a row is of, if there are several."""
    if len(views) > 1:
        return Table(head, rows)
    at = head.index("run")
    return Table([*head[:at], *head[at + 1 :]], [[*row[:at], *row[at + 1 :]] for row in rows])


def detail_table(views: Sequence[View]) -> Table:
    """The other numbers; of one run with a column for each subset, since there are more numbers than subsets."""
    table = metric_table(views, _DETAILS)
    if len(views) > 1:
        return table
    _, *rows = zip(table.head, *table.rows, strict=True)
    return Table(("metric", *short_names(list(views[0].subsets))), rows)


def facts_of(view: View) -> list[Fact]:
    """The numbers that one looks for first, over all questions of a run."""
    values = next(iter(view.subsets.values()))
    interval = values["ci95"].get("em")
    time = f"p95 {values['elapsed_p95_s']:.2f} s"
    judged = values.get("judged")
    return [
        Fact(f"{values['em']:.3f}", "exact match", f"{interval[0]:.3f} to {interval[1]:.3f}" if interval else ""),
        *([] if judged is None else [Fact(f"{judged:.3f}", "judged right", f"of {values['n_judged']:,}")]),
        Fact(f"{values['chance_em']:.3f}", "blind guess", "EM of a coin flip"),
        Fact(f"{values['f1']:.3f}", "F1", f"substring EM {values['sub_em']:.3f}"),
        Fact(f"{values['num_llm_calls']:.2f}", "LLM calls", f"{values['num_searches']:.2f} searches"),
        Fact(f"{values['split_ratio']:.0%}", "split at first", f"{values['num_subqueries']:.2f} sub-queries"),
        Fact(f"{values['elapsed_p50_s']:.2f} s", "a question, p50", time),
        Fact(f"{values['n']:,}", "questions", f"{values['failures']:,} failures"),
    ]


def error_table(views: Sequence[View]) -> Table:
    rows = []
    for view in views:
        counts = Counter(row.error_class for row in view.rows if row.error_class)
        num_wrong = sum(counts.values())
        rows.append(
            [
                view.name,
                str(num_wrong),
                *(f"{counts[name]} ({counts[name] / max(1, num_wrong):.0%})" for name in ERROR_CLASSES),
            ]
        )
    return _table(views, ("run", "wrong", *(name.replace("_", " ") for name in ERROR_CLASSES)), rows)


_AGREEMENT = (
    ("judged_given_em", "of the answers that EM calls right, it calls right"),
    ("judged_given_no_em", "of those that EM calls wrong"),
    ("judged_given_no_word", "of these, of those without a word in common with a golden answer"),
)


def judge_table(summary: Mapping[str, Any]) -> Table:
    """Who judged, what it took, and how far the verdicts go with exact match, over all questions of a run."""
    values, judge = next(iter(summary["subsets"].values())), summary["judge"]
    rows = [
        ["judge", str(judge["title"])],
        ["prompt (SHA-256)", str(judge["prompt_sha256"])],
        ["calls", f"{judge['num_calls']:,}"],
        ["tokens read, written", f"{judge['num_input_tokens']:,}, {judge['num_output_tokens']:,}"],
        ["questions with a verdict", f"{values['n_judged']:,} of {values['n']:,}"],
    ]
    for key, words in _AGREEMENT:
        if values.get(key) is not None:
            low, high = values["ci95"][key]
            share = f"{values[key]:.3f} [{low:.3f}, {high:.3f}]"
            rows.append([words, f"{round(values[key] * values[f'n_{key}']):,} of {values[f'n_{key}']:,}: {share}"])
    return Table(("what", "value"), rows)


def kind_table(views: Sequence[View]) -> Table:
    rows = []
    for kind in KINDS:
        for view in views:
            group = [row for row in view.rows if row.kind == kind]
            if group:
                values = [
                    sum(map(decided_right, group)) / len(group),
                    sum(row.is_split for row in group) / len(group),
                    sum(row.num_searches for row in group) / len(group),
                    sum(row.em for row in group) / len(group),
                ]
                rows.append([kind, view.name, str(len(group)), *(f"{value:.3f}" for value in values)])
    return _table(views, ("kind", "run", "n", "decomposition accuracy", "split ratio", "searches", "EM"), rows)


def setup_table(views: Sequence[View]) -> Table:
    """Every set-up key, so that a number never stands without what it was measured with."""
    flat = [dict(_flat(view.manifest.setup)) for view in views]
    keys = list(dict.fromkeys(key for one in flat for key in one))
    return Table(
        ("set-up", *(view.name for view in views)), [[key, *(one.get(key, "–") for one in flat)] for key in keys]
    )


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _flat(inner, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(inner)


def paired_table(comparison: Comparison) -> Table:
    rows = [
        [
            test.subset,
            test.metric,
            f"{test.run} - {test.against}",
            str(test.result.num_pairs),
            f"{test.result.difference:+.4f}",
            f"[{test.result.low:+.4f}, {test.result.high:+.4f}]",
            *map(_p_cell, (test.result.p_value, test.result.p_mcnemar, test.p_holm)),
        ]
        for test in comparison.tests
    ]
    head = ("subset", "metric", "difference of", "pairs", "mean", "95%", "p permutation", "p McNemar", "p Holm")
    return Table(head, rows)


def _p_cell(p: float | None) -> str:
    if p is None:
        return "–"
    return "<0.0001" if p < 0.0001 else f"{p:.4f}"


def group_table(comparison: GroupComparison) -> Table:
    """Groups of seeds: each group's mean and range, the difference with its interval over questions and seeds, the tests."""
    rows = []
    for test in comparison.tests:
        result = test.result
        rows.append(
            [
                test.subset,
                test.metric,
                f"{test.group} - {test.against}",
                str(result.num_questions),
                *(_seeds_cell(values) for values in (result.values_a, result.values_b)),
                f"{result.difference:+.4f}",
                f"[{result.low:+.4f}, {result.high:+.4f}]",
                _p_cell(result.p_seeds),
                "–" if result.p_exchanged is None else f"{result.p_exchanged:.3f} (≥ {result.p_least:.3f})",
                result.verdict,
            ]
        )
    first, second = "first: mean (seeds: range)", "other"
    head = ("subset", "metric", "difference of", "n", first, second, "mean", "95%", "p seeds", "p exchanged", "verdict")
    return Table(head, rows)


def _seeds_cell(values: Sequence[float]) -> str:
    mean = sum(values) / len(values)
    return f"{mean:.3f} ({len(values)}: {min(values):.3f} to {max(values):.3f})"


def short_names(names: Sequence[str]) -> tuple[str, ...]:
    """Subsets of one data set by what follows its name: "hotpotqa", "hotpotqa-par" -> "all", "par"."""
    whole = names[0]
    if all(name == whole or name.startswith(f"{whole}-") for name in names):
        return ("all", *(name.removeprefix(f"{whole}-").replace("_", " ") for name in names[1:]))
    return tuple(names)

"""What a run says, for people: tables and plots, as one HTML page, as Markdown, as PNG files.

`write_report` reads a finished run folder (or `write_comparison` several) and writes beside it. The page needs no network and
every text that came from a model or a corpus is escaped. The numbers are those of `summary.json`; nothing is computed here
that is not there or in the rows.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parallelsearch.comparison import Comparison
from parallelsearch.errors import MissingExtraError
from parallelsearch.manifest import Manifest, read_manifest
from parallelsearch.metrics import ERROR_CLASSES, Row, decided_right
from parallelsearch.report_page import Example, Section, Table, page
from parallelsearch.report_plots import Figure, Series, save_png
from parallelsearch.run_folder import TRAJECTORIES_FILE, read_rows, read_summary
from parallelsearch.trajectory import Trajectory, read_trajectories

KINDS = ("parallel", "sequential", "mixed", "single")
_MAX_POINTS = 200


@dataclass(frozen=True, slots=True)
class View:
    """One run as the report sees it."""

    name: str
    manifest: Manifest
    subsets: Mapping[str, Mapping[str, Any]]
    rows: Sequence[Row]


# ---- tables ----------------------------------------------------------------------------------------------------------

_COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("n", "n", "d"),
    ("em", "EM", ".3f"),
    ("f1", "F1", ".3f"),
    ("chance_em", "chance", ".3f"),
    ("num_llm_calls", "calls", ".2f"),
    ("num_searches", "searches", ".2f"),
    ("num_subqueries", "sub-queries", ".2f"),
    ("split_ratio", "split", ".3f"),
    ("decomposition_accuracy", "decomposition", ".3f"),
    ("gold_recall", "gold recall", ".3f"),
    ("elapsed_p50_s", "p50 s", ".2f"),
    ("elapsed_p95_s", "p95 s", ".2f"),
    ("failures", "failures", "d"),
)
_DETAILS: tuple[tuple[str, str, str], ...] = (
    ("sub_em", "substring EM", ".3f"),
    ("split_anywhere_ratio", "split in any round", ".3f"),
    ("decomposition_precision", "split precision", ".3f"),
    ("decomposition_recall", "split recall", ".3f"),
    ("rounds_accuracy", "rounds as needed", ".3f"),
    ("all_gold_ratio", "all gold found", ".3f"),
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


def _cell(values: Mapping[str, Any], key: str, form: str) -> str:
    value = values.get(key)
    if value is None:
        return "–"
    interval = values.get("ci95", {}).get(key)
    if interval and key in ("em", "f1", "decomposition_accuracy"):
        return f"{value:{form}} [{interval[0]:{form}}, {interval[1]:{form}}]"
    return f"{value:{form}}"


def metric_table(views: Sequence[View], columns: Sequence[tuple[str, str, str]] = _COLUMNS) -> Table:
    """A row for each subset of each run."""
    rows = [
        [name, view.name, *(_cell(values, key, form) for key, _, form in columns)]
        for name in dict.fromkeys(subset for view in views for subset in view.subsets)
        for view in views
        if (values := view.subsets.get(name)) is not None
    ]
    return Table(("subset", "run", *(title for _, title, _ in columns)), rows)


def _known_details(views: Sequence[View]) -> list[tuple[str, str, str]]:
    return [
        column for column in _DETAILS if any(v.get(column[0]) is not None for w in views for v in w.subsets.values())
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
    return Table(("run", "wrong", *(name.replace("_", " ") for name in ERROR_CLASSES)), rows)


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
    return Table(("kind", "run", "n", "decomposition accuracy", "split ratio", "searches", "EM"), rows)


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
            f"{test.result.p_value:.4f}",
            "–" if test.result.p_mcnemar is None else f"{test.result.p_mcnemar:.4f}",
            f"{test.p_holm:.4f}",
        ]
        for test in comparison.tests
    ]
    head = ("subset", "metric", "difference of", "pairs", "mean", "95%", "p permutation", "p McNemar", "p Holm")
    return Table(head, rows)


# ---- plots -----------------------------------------------------------------------------------------------------------


def figures(views: Sequence[View]) -> list[Figure]:
    """The plots of a report; one that has nothing to show is left out."""
    made = [
        _em_against_calls(views),
        _split_by_kind(views),
        _shares(views, "latency", "Questions answered within a time", "seconds", "elapsed_s"),
        _shares(views, "cumulative_turns", "Questions done by number of LLM calls", "LLM calls", "num_llm_calls"),
        _errors_by_class(views),
    ]
    return [figure for figure in made if not figure.is_empty]


def _em_against_calls(views: Sequence[View]) -> Figure:
    series = []
    for view in views:
        names = [name for name in view.subsets if name != "all"] or list(view.subsets)
        points = tuple((float(view.subsets[name]["num_llm_calls"]), float(view.subsets[name]["em"])) for name in names)
        series.append(Series(view.name, points, _spaced(points, names)))
    return Figure(
        "em_against_calls",
        "EM against LLM calls",
        "scatter",
        "LLM calls a question",
        "exact match",
        tuple(series),
        y_max=1.05,
    )


def _spaced(points: Sequence[tuple[float, float]], names: Sequence[str]) -> tuple[str, ...]:
    """Labels that do not lie on each other: of points in one place the first has its name and the number of the others."""
    labels: list[str] = []
    places: dict[tuple[int, int], int] = {}
    for number, ((x, y), name) in enumerate(zip(points, names, strict=True)):
        first = places.setdefault((round(x * 8), round(y * 25)), number)
        labels.append(name if first == number else "")
    for place, first in places.items():
        num_others = sum((round(x * 8), round(y * 25)) == place for x, y in points) - 1
        if num_others:
            labels[first] += f" +{num_others}"
    return tuple(labels)


def _split_by_kind(views: Sequence[View]) -> Figure:
    kinds = [kind for kind in KINDS if any(row.kind == kind for view in views for row in view.rows)]
    series = []
    for view in views:
        points = []
        for number, kind in enumerate(kinds):
            group = [row.is_split for row in view.rows if row.kind == kind]
            if group:
                points.append((float(number), sum(group) / len(group)))
        series.append(Series(view.name, tuple(points)))
    return Figure(
        "split_by_kind", "Split ratio by kind", "bars", "kind", "share split", tuple(series), tuple(kinds), y_max=1.05
    )


def _shares(views: Sequence[View], name: str, title: str, label: str, field: str) -> Figure:
    """How many questions lie at or below each value."""
    series = []
    largest = max((float(getattr(row, field)) for view in views for row in view.rows), default=0.0)
    for view in views:
        values = sorted(float(getattr(row, field)) for row in view.rows)
        if values and values[-1] > 0:
            last = {value: (number + 1) / len(values) for number, value in enumerate(values)}
            points = list(last.items())
            step = max(1, len(points) // _MAX_POINTS)
            kept = [*points[:-1:step], points[-1]]
            series.append(Series(view.name, ((0.0, 0.0), *kept, (largest, 1.0))))
    return Figure(name, title, "steps", label, "share of questions", tuple(series), y_max=1.055, x_min=0.0)


def _errors_by_class(views: Sequence[View]) -> Figure:
    names = [name for name in ERROR_CLASSES if any(row.error_class == name for view in views for row in view.rows)]
    series = tuple(
        Series(
            view.name,
            tuple(
                (float(number), sum(row.error_class == name for row in view.rows) / max(1, len(view.rows)))
                for number, name in enumerate(names)
            ),
        )
        for view in views
        if names
    )
    short = tuple(
        name.replace("should_have_split", "no split").replace("should_not_have_split", "split").replace("_", " ")
        for name in names
    )
    return Figure("error_classes", "Why answers were wrong", "bars", "error class", "share of questions", series, short)


# ---- examples --------------------------------------------------------------------------------------------------------


def choose_examples(rows: Sequence[Row], num_each: int = 5) -> dict[str, str]:
    """Ids worth reading, with the reason: the worst by error class in turn, the best with the fewest calls."""
    chosen: dict[str, str] = {}
    wrong: dict[str, list[Row]] = {}
    for row in rows:
        if row.error_class is not None:
            wrong.setdefault(row.error_class, []).append(row)
    groups = [
        sorted(wrong[name], key=lambda row: (-row.num_llm_calls, row.f1, row.id))
        for name in ERROR_CLASSES
        if name in wrong
    ]
    while groups and len(chosen) < num_each:
        for group in groups:
            if len(chosen) < num_each:
                row = group.pop(0)
                chosen[row.id] = f"wrong: {(row.error_class or '').replace('_', ' ')}"
        groups = [group for group in groups if group]
    right = sorted((row for row in rows if row.em), key=lambda row: (not decided_right(row), row.num_llm_calls, row.id))
    for row in right[:num_each]:
        chosen[row.id] = "right" + (", planned as labelled" if decided_right(row) else "")
    return chosen


def read_examples(folder: Path, chosen: Mapping[str, str]) -> list[Example]:
    found: dict[str, Trajectory] = {}
    if chosen:
        for trajectory in read_trajectories(folder / TRAJECTORIES_FILE):
            if trajectory.id in chosen:
                found[trajectory.id] = trajectory
                if len(found) == len(chosen):
                    break
    return [Example(reason, found[key]) for key, reason in chosen.items() if key in found]


# ---- writing ---------------------------------------------------------------------------------------------------------


def write_report(run_dir: str | os.PathLike[str], *, png: bool = True) -> Path:
    """Write `report.html`, `report.md` and, where matplotlib is installed, `plots/*.png`; returns the page."""
    folder = Path(run_dir)
    summary = read_summary(folder)
    view = View(folder.resolve().name, read_manifest(folder), summary["subsets"], read_rows(folder))
    warnings = list(view.manifest.warnings)
    if summary["num_done"] < summary["num_questions"]:
        warnings.append(f"not finished: {summary['num_done']} of {summary['num_questions']} questions")
    examples = read_examples(folder, choose_examples(view.rows))
    sections = [Section("Results", [metric_table([view])]), *_sections([view])]
    return _write(folder, f"Evaluation: {view.name}", [view], sections, warnings, examples, png)


def write_comparison(comparison: Comparison, out_dir: str | os.PathLike[str], *, png: bool = True) -> Path:
    """The same for several runs side by side, with the paired tests."""
    folder = Path(out_dir)
    folder.mkdir(parents=True, exist_ok=True)
    views = [View(run.name, run.manifest, run.subsets, read_rows(run.folder)) for run in comparison.runs]
    different = [[name, str(one)] for name, found in comparison.differences.items() for one in found]
    sections = [
        Section("Results", [metric_table(views)]),
        Section(
            f"Paired tests against {views[0].name}, {comparison.num_shared} shared questions",
            [paired_table(comparison)],
        ),
        Section("What differs between the set-ups", [Table(("run", "difference"), different)]),
        *_sections(views),
    ]
    title = "Comparison: " + ", ".join(view.name for view in views)
    return _write(folder, title, views, sections, comparison.warnings, [], png)


def _sections(views: Sequence[View]) -> list[Section]:
    return [
        Section("Decomposition by kind", [kind_table(views)]),
        Section("Why answers were wrong", [error_table(views)]),
        Section("More numbers", [metric_table(views, _known_details(views))]),
        Section("Set-up", [setup_table(views)]),
    ]


def _write(
    folder: Path,
    title: str,
    views: Sequence[View],
    sections: Sequence[Section],
    warnings: Sequence[str],
    examples: Sequence[Example],
    png: bool,
) -> Path:
    plots = figures(views)
    target = folder / "report.html"
    target.write_text(page(title, sections, plots, warnings, examples), encoding="utf-8")
    (folder / "report.md").write_text(markdown(title, sections, warnings), encoding="utf-8")
    if png:
        save_plots(plots, folder / "plots")
    return target


def save_plots(plots: Sequence[Figure], folder: Path) -> list[Path]:
    """PNG files, one for each figure; none without matplotlib, which a report does not need."""
    folder.mkdir(exist_ok=True)
    saved: list[Path] = []
    for figure in plots:
        path = folder / f"{figure.name}.png"
        try:
            save_png(figure, path)
        except MissingExtraError:
            break
        saved.append(path)
    return saved


def markdown(title: str, sections: Sequence[Section], warnings: Sequence[str]) -> str:
    """The tables for a README."""
    lines = [f"# {title}", ""]
    lines += [f"> {warning}" for warning in warnings] + ([""] if warnings else [])
    for section in sections:
        lines += [f"## {section.title}", ""]
        for table in section.tables:
            lines += [_markdown_row(table.head), "|" + "---|" * len(table.head)]
            lines += [_markdown_row(row) for row in table.rows]
            lines.append("")
    return "\n".join(lines)


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"

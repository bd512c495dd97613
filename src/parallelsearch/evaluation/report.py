"""What a run says, for people: tables and plots, as one HTML page, as Markdown, as PNG files.

`write_report` reads a finished run folder (or `write_comparison` several) and writes beside it. The page needs no network and
every text that came from a model or a corpus is escaped. `tables.py` makes the tables; nothing is computed here that
is not in `summary.json` or in the rows.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from parallelsearch.errors import MissingExtraError, UsageError, stopped
from parallelsearch.evaluation.budget import Arm, arm_of_record, budget_figure, budget_table, cells, to_dict
from parallelsearch.evaluation.comparison import Comparison, GroupComparison
from parallelsearch.evaluation.folder import TRAJECTORIES_FILE, read_rows, read_summary
from parallelsearch.evaluation.manifest import read_manifest
from parallelsearch.evaluation.metrics import ERROR_CLASSES, Row, decided_right
from parallelsearch.evaluation.page import Example, Fact, Section, Table, page
from parallelsearch.evaluation.plots import Figure, Series, save_png
from parallelsearch.evaluation.tables import (
    View,
    detail_table,
    error_table,
    facts_of,
    group_table,
    judge_table,
    kind_table,
    metric_table,
    paired_table,
    setup_table,
    short_names,
)
from parallelsearch.files import write_json
from parallelsearch.trajectory import KINDS, MANY_CUT, Trajectory, read_trajectories

REPORT_FILE, BUDGET_FILE = "report.html", "budget.json"
_MANY_SENTENCES = 0.1
"""From this share of answers on that are right but for their form, a reader of the numbers is told."""
_SOME_GOLD = 3
"""Where so many questions have gold and none of it was found, the corpus or the titles are surely others."""
_SOME_VERDICTS, _LEAST_AGREEMENT, _MOST_STRANGERS = 5, 0.9, 0.5
"""A judge is distrusted where it denies more than a tenth of the answers that are golden ones to the letter, or grants more
than half of those that share no word with one; of fewer than five nothing is said."""
_BUDGET_TITLE = "All gold, and gold recall, at a budget of passages and rounds"
_MAX_POINTS = 200

# ---- plots -----------------------------------------------------------------------------------------------------------


def figures(views: Sequence[View]) -> list[Figure]:
    """The plots of a report; one that has nothing to show is left out."""
    made = [
        _em_against_calls(views),
        _split_by_kind(views),
        _shares(views, "latency", "Questions answered within a time", "seconds", "elapsed_s"),
        _shares(views, "cumulative_turns", "Questions done by number of LLM calls", "LLM calls", "num_llm_calls"),
        _errors_by_class(views),
        _critical_path(views),
    ]
    return [figure for figure in made if not figure.is_empty]


def _em_against_calls(views: Sequence[View]) -> Figure:
    series = []
    for view in views:
        points = tuple((float(row["num_llm_calls"]), float(row["em"])) for row in view.subsets.values())
        series.append(Series(view.name, points, short_names(list(view.subsets))))
    highest = max((y for one in series for _, y in one.points), default=0.0)
    return Figure(
        "em_against_calls",
        "EM against LLM calls",
        "scatter",
        "LLM calls a question",
        "exact match",
        tuple(series),
        y_max=min(1.05, max(0.1, 1.3 * highest)),
    )


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


def _critical_path(views: Sequence[View]) -> Figure:
    """Of each question, on average: time in the model, time it stood still, and what searching in sequence would take."""
    fields = ("generate_s", "wait_s", "search_s")
    series = tuple(
        Series(
            view.name,
            tuple(
                (float(number), sum(getattr(row, name) for row in view.rows) / len(view.rows))
                for number, name in enumerate(fields)
            ),
        )
        for view in views
        if any(row.elapsed_s for row in view.rows)
    )
    names = ("model writes", "model waits for search", "searches one by one")
    return Figure("critical_path", "Where the time goes", "bars", "mean over questions", "seconds", series, names)


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


def write_report(run_dir: str | os.PathLike[str], *, png: bool = True, viewer: str | None = None) -> Path:
    """Write `report.html`, `report.md` and, where matplotlib is installed, `plots/*.png`; returns the page.

    `viewer` is the name of the viewer's page of this run, if one lies in the folder: the examples are linked to it.
    """
    folder = Path(run_dir)
    summary = read_summary(folder)
    view = View(folder.resolve().name, read_manifest(folder), summary["subsets"], read_rows(folder))
    warnings = [*view.manifest.warnings, *notes_of(summary)]
    examples = read_examples(folder, choose_examples(view.rows))
    sections = [
        *_budget_sections(view.name, folder),
        Section("Results", [metric_table([view])]),
        *judge_sections(summary),
        *_sections([view]),
    ]
    title = f"Evaluation: {view.name}"
    return _write(folder, title, [view], sections, warnings, png, examples, facts_of(view), viewer)


def judge_sections(summary: Mapping[str, Any]) -> list[Section]:
    """Nothing where no judge was asked."""
    is_judged = "judge" in summary and next(iter(summary["subsets"].values())).get("judged") is not None
    return [Section("The judge, and how far it agrees with exact match", [judge_table(summary)])] if is_judged else []


def _budget_sections(name: str, folder: Path) -> list[Section]:
    """What the run's queries bring for a given number of passages and rounds, by its own record; nothing without gold."""
    arm = arm_of_record(name, folder)
    return [Section(_BUDGET_TITLE, [budget_table(cells([arm], num_resamples=200))])] if arm.found else []


def write_budget(
    arms: Sequence[Arm],
    out_dir: str | os.PathLike[str],
    *,
    png: bool = True,
    seed: int = 0,
    warnings: Sequence[str] = (),
) -> Path:
    """`budget.json`, and the page with one table and one plot. Differences are against the first arm."""
    folder = Path(out_dir)
    folder.mkdir(parents=True, exist_ok=True)
    found = cells(arms, seed=seed)
    write_json(folder / BUDGET_FILE, {**to_dict(arms, found), "warnings": list(warnings)})
    sections = [Section(f"{_BUDGET_TITLE}; difference from {arms[0].name}", [budget_table(found)])]
    title = "Retrieval at equal budget: " + ", ".join(arm.name for arm in arms)
    return _write(folder, title, (), sections, warnings, png, plots=[budget_figure(found)])


def notes_of(summary: Mapping[str, Any]) -> list[str]:
    """What a reader of the numbers must know: questions that are missing, failed, or ran out of time."""
    values = next(iter(summary["subsets"].values()))
    notes: list[str] = []
    if summary["num_done"] < summary["num_questions"]:
        notes.append(f"not finished: {summary['num_done']} of {summary['num_questions']} questions")
    if values["failures"]:
        said = " ".join(summary.get("last_error", "").split())  # of CUDA it has lines of its own, which are no Markdown
        last = f", last with: {stopped(said)}" if said else "."
        notes.append(
            f"the policy failed on {values['failures']} of {values['n']} questions, and they count as wrong{last} Give the "
            "same command with --retry-failures to ask them again"
        )
    if num_unread := values.get("reader_failures", 0):
        notes.append(
            f"the model that reads gave no answer on {num_unread} of {values['n']} questions: the policy's own counts there. "
            "Ask them again with --retry-failures"
        )
    if num_unfound := values.get("num_failed_queries", 0):
        last = f", last with: {stopped(summary['last_search_error'])}" if "last_search_error" in summary else "."
        notes.append(
            f"{num_unfound} of {round(values['num_subqueries'] * values['n'])} sub-queries failed{last} What they would have "
            "found is missing from the answers. Give the same command with --retry-failures to ask these questions again"
        )
    is_cut = (share := values.get("cut_ratio") or 0.0) >= MANY_CUT
    has_none = values["n_gold"] >= _SOME_GOLD and values["num_searches"] and not values["gold_recall"]
    if has_none and not num_unfound and not is_cut:  # what was cut is not at hand either, though it was found
        notes.append(
            f"of the {values['n_gold']} questions whose gold is known no gold page was found: is this the corpus they are "
            "about (--search), and are its titles and ids those of supporting_titles and gold_passage_ids?"
        )
    if num_partial := values.get("num_partial_queries", 0):
        notes.append(f"{num_partial} queries were answered by a part of the search only: see 'missing' in the record")
    if num_refused := values.get("reader_refused", 0):
        notes.append(
            f"the model that reads was not asked on {num_refused} of {values['n']} questions, since its call would have "
            "passed what a question may cost: the policy's own answer counts there. Raise --max-cost (in Python also "
            "max_billed_tokens), with another --out"
        )
    if num_late := values["stops"].get("timeout", 0):
        limit_s = summary["manifest"]["setup"].get("limits", {}).get("timeout_s")
        notes.append(
            f"{num_late} of {values['n']} questions ran out of time ({limit_s:g} s each) and count as wrong: that is this "
            "machine, not the policy. Ask them again with fewer at once: --retry-failures --concurrency N"
        )
    dialect = summary["manifest"]["setup"].get("dialect", {}).get("name")
    if dialect == "tools" and values["sub_em"] - values["em"] >= _MANY_SENTENCES:
        notes.append(
            f"{values['sub_em']:.0%} of the answers hold a golden one, {values['em']:.0%} are one: the model answers in "
            "sentences, which EM and F1 count as wrong. For short answers: --dialect tools-answer, with another --out"
        )
    if is_cut:
        limit = summary["manifest"]["setup"].get("limits", {}).get("max_observation_tokens")
        notes.append(
            f"{share:.0%} of the passages shown were cut to fit into {limit} tokens a round: the model may not have seen "
            "what was found. Raise --max-observation-tokens (for wide rounds --tokens-per-subquery)"
        )
    return [*notes, *_judge_notes(values)]


def _judge_notes(values: Mapping[str, Any]) -> list[str]:
    """What must be known of verdicts: those that are missing, and a judge that cannot be right."""
    if "judge_failures" not in values:
        return []
    notes: list[str] = []
    if num_failed := values["judge_failures"]:
        notes.append(
            f"the judge gave no verdict on {num_failed} answers, last with: {stopped(values['last_judge_error'])} They are "
            "left out of 'judged right'. To ask again, give its command again"
        )
    if num_left := values["n"] - values["n_judged"] - num_failed:
        notes.append(
            f"{num_left} of {values['n']} questions have not been judged: they were answered since, or have no golden "
            "answer. To judge what can be judged: parallelsearch judge RUN --judge ADDRESS"
        )
    agreed, num_right = values.get("judged_given_em"), values.get("n_judged_given_em", 0)
    if agreed is not None and num_right >= _SOME_VERDICTS and agreed < _LEAST_AGREEMENT:
        notes.append(
            f"the judge calls right only {agreed:.0%} of the {num_right} answers that are a golden one to the letter: it is "
            "not to be trusted. Take a larger model, and measure it first: python benchmarks/judge.py --judge ADDRESS"
        )
    given, num_strange = values.get("judged_given_no_word"), values.get("n_judged_given_no_word", 0)
    if given is not None and num_strange >= _SOME_VERDICTS and given > _MOST_STRANGERS:
        notes.append(
            f"the judge calls right {given:.0%} of the {num_strange} answers without a word in common with a golden one: it "
            "may call right whatever it is shown. Read some of them before you believe it (judgements.jsonl)"
        )
    return notes


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
    return _write(folder, title, views, sections, comparison.warnings, png)


def write_group_comparison(comparison: GroupComparison, out_dir: str | os.PathLike[str]) -> Path:
    """The page of several seeds of each: the tests, and which runs they are of."""
    folder = Path(out_dir)
    folder.mkdir(parents=True, exist_ok=True)
    runs = [[name, ", ".join(of_group)] for name, of_group in comparison.groups.items()]
    sections = [
        Section(f"Groups of seeds, {comparison.num_shared} shared questions", [group_table(comparison)]),
        Section("Runs", [Table(("group", "runs"), runs)]),
    ]
    title = "Comparison of seeds: " + ", ".join(comparison.groups)
    return _write(folder, title, (), sections, comparison.warnings, png=False)


def _sections(views: Sequence[View]) -> list[Section]:
    return [
        Section("Decomposition by kind", [kind_table(views)], nothing=f"No question has a kind ({', '.join(KINDS)})."),
        Section("Why answers were wrong", [error_table(views)]),
        Section("More numbers", [detail_table(views)]),
        Section("Set-up", [setup_table(views)], is_folded=True),
    ]


def _write(
    folder: Path,
    title: str,
    views: Sequence[View],
    sections: Sequence[Section],
    warnings: Sequence[str],
    png: bool,
    examples: Sequence[Example] = (),
    facts: Sequence[Fact] = (),
    viewer: str | None = None,
    plots: Sequence[Figure] | None = None,
) -> Path:
    plots = figures(views) if plots is None else plots
    target = folder / REPORT_FILE
    try:
        target.write_text(page(title, sections, plots, warnings, examples, facts, viewer), encoding="utf-8")
        (folder / "report.md").write_text(markdown(title, sections, warnings), encoding="utf-8")
        if png:
            save_plots(plots, folder / "plots")
    except OSError as error:
        raise UsageError(
            f"the numbers are kept, but the report could not be written to '{folder}': {error.strerror or error}. "
            "Make room and give the same command again"
        ) from error
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

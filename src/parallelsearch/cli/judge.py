"""`judge`: another model says of each answer of a run whether it is right; and what of that `eval` prints, too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parallelsearch.cli.options import JsonOption, Update, console, given, progress, say

if TYPE_CHECKING:
    from parallelsearch.evaluation import JudgeProgress

JudgeOption = Annotated[
    str | None,
    typer.Option(
        "--judge",
        metavar="ADDRESS",
        help="A model that says of each answer whether it is right: openai:..., anthropic:..., gguf:..., hf:...",
    ),
]


def judge_command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders written by eval, finished or not.")],
    judge: Annotated[
        str,
        typer.Option(
            "--judge",
            metavar="ADDRESS",
            help="The model that judges: openai:..., anthropic:..., gguf:..., hf:..., python:MODULE:NAME, script:FILE",
        ),
    ],
    replace: Annotated[
        bool, typer.Option("--replace", help="Put this judge's verdicts in the place of another's.")
    ] = False,
    concurrency: Annotated[int | None, typer.Option(help="Answers asked about at once.")] = None,
    max_tokens_per_turn: Annotated[
        int | None,
        typer.Option(
            "--max-tokens-per-turn",
            help="Tokens the judge may write; one that thinks in its reply wants more.",
        ),
    ] = None,
    timeout_s: Annotated[float | None, typer.Option(help="Seconds for one answer.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Ask a model whether the answers of a run are right.

    Exact match counts an answer in a sentence as wrong; a judge need not. Its verdicts are kept in the run's folder, and a
    judge that was killed goes on. How good yours is: python benchmarks/judge.py --judge ADDRESS

    Example: parallelsearch judge run --judge script:verdicts.json
    """
    import asyncio
    import json

    from parallelsearch.evaluation import JudgeSettings, judge_all
    from parallelsearch.evaluation.folder import is_summed_up
    from parallelsearch.evaluation.report import REPORT_FILE, notes_of

    options = given(concurrency=concurrency, max_tokens=max_tokens_per_turn, timeout_s=timeout_s)
    settings = JudgeSettings(replace=replace, **options)
    with progress("answers", show=not as_json) as update:
        summaries = asyncio.run(judge_all(runs, judge, settings, told_to(update)))
    if as_json:
        say(json.dumps(summaries, ensure_ascii=False))
        return
    for run, summary in zip(runs, summaries, strict=True):
        if len(runs) > 1:
            say(f"{run}:")
        print_summary(summary)
        for note in notes_of(summary):
            say(f"note: {note}", err=True)
        if is_summed_up(run):
            say(f"report: {run / REPORT_FILE}")


def told_to(update: Update) -> Callable[[JudgeProgress], None]:
    """Tells a bar how far a judge is."""

    def tell(at: JudgeProgress) -> None:
        update(at.num_done, at.num_total, f"judged: {at.num_right} right, {at.num_failed} without a verdict")

    return tell


def print_summary(summary: Mapping[str, Any]) -> None:
    """The subsets of a run in a table, what a judge said of them in another, and who it was."""
    from parallelsearch.evaluation.report import judge_sections

    subsets: dict[str, dict[str, Any]] = summary["subsets"]
    figures = []
    for name, row in subsets.items():
        means = (f"{row[key]:.2f}" for key in ("num_llm_calls", "num_searches", "split_ratio"))
        shares = (*_with_interval(row, "em"), f"{row['f1']:.3f}")
        figures.append((name, str(row["n"]), *shares, *means, str(row["failures"])))
    _print_table(("subset", "n", "EM", "95%", "F1", "calls", "searches", "split", "failures"), figures)
    judged = [
        (name, str(row["n_judged"]), *_with_interval(row, "judged"), *_with_interval(row, "em"))
        for name, row in subsets.items()
        if row.get("judged") is not None
    ]
    if not judged:
        return
    _print_table(("subset", "verdicts", "judged right", "95%", "EM", "95%"), judged)
    for section in judge_sections(summary):
        for what, value in section.tables[0].rows:
            say(f"{what}: {value}")


def _print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.table import Table

    table = Table(*head, padding=(0, 0, 0, 1))
    table.columns[0].overflow = "fold"
    for row in rows:
        table.add_row(*row)
    console().print(table)


def _with_interval(row: Mapping[str, Any], key: str) -> tuple[str, str]:
    low, high = row["ci95"][key]
    return f"{row[key]:.3f}", f"{low:.3f} to {high:.3f}"

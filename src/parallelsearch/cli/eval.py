"""`eval` and `compare`: a set of questions run and measured, and runs set side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Unpack

import typer
from typer.core import TyperCommand

from parallelsearch.cli.judge import JudgeOption, print_summary, told_to
from parallelsearch.cli.options import (
    AUTO,
    DEMO,
    AnswerWithOption,
    CacheDaysOption,
    CacheOption,
    DialectOption,
    JsonOption,
    KOption,
    LimitOption,
    LimitOptions,
    LimitSeedOption,
    PolicyOption,
    RecordOption,
    SearchOption,
    SeedOption,
    WrittenOption,
    chosen,
    console,
    limited,
    limits_of,
    progress,
    say,
    searched,
)


@limited
def evaluate_command(
    data: Annotated[
        str, typer.Option("--data", metavar="NAME_OR_FILE", help="A set by name, or a question file.")
    ] = "demo",
    policy: PolicyOption = AUTO,
    search: SearchOption = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The run's folder; a killed run goes on.")] = Path(
        "run"
    ),
    k: KOption = 3,
    dialect: DialectOption = None,
    prompt_file: Annotated[Path | None, typer.Option(help="A prompt of one's own, with {question} in it.")] = None,
    answer_with: AnswerWithOption = None,
    written: WrittenOption = False,
    judge: JudgeOption = None,
    split: Annotated[str | None, typer.Option(help="Of a named set: train, dev or test.")] = None,
    subset: Annotated[str | None, typer.Option(help="Of a named set: par, seq, mixed or single.")] = None,
    open_sealed: Annotated[
        bool,
        typer.Option("--open-sealed", help="Open a split that is kept for a release's numbers; it is written down."),
    ] = False,
    limit: LimitOption = None,
    limit_seed: LimitSeedOption = 0,
    answers: Annotated[
        Path | None, typer.Option(help="Score this file (id and answer a line) instead of running.")
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    concurrency: Annotated[int, typer.Option(help="Questions under way at once.")] = 64,
    record: RecordOption = None,
    cache: CacheOption = None,
    cache_days: CacheDaysOption = None,
    retry_failures: Annotated[
        bool, typer.Option("--retry-failures", help="Ask again what failed, was too late, or had a search that failed.")
    ] = False,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
    **limits: Unpack[LimitOptions],
) -> None:
    """Evaluate a policy on a set of questions, and report.

    Trajectories, summary, report and a page of every trajectory go into one folder.

    Example: parallelsearch eval --data demo --policy demo --search demo --out run
    """
    import asyncio

    from parallelsearch.data import load_questions
    from parallelsearch.evaluation import EvaluationSettings, evaluate, evaluate_answers
    from parallelsearch.evaluation import judge as judge_answers
    from parallelsearch.evaluation.report import REPORT_FILE, notes_of
    from parallelsearch.policy import Sampling

    questions = load_questions(data, split=split, subset=subset, limit=limit, seed=limit_seed, opens_sealed=open_sealed)
    for warning in questions.warnings:
        say(f"note: {warning}", err=True)
    if answers is not None:
        summary = evaluate_answers(questions, answers, out, seed=seed)
        if judge is not None:
            with progress("answers", show=not as_json) as update:
                summary = asyncio.run(judge_answers(out, judge, on_progress=told_to(update)))
    else:
        ends = limits_of(limits)
        settings = EvaluationSettings(
            dialect=dialect,
            prompt_template=None if prompt_file is None else _text_of(prompt_file),
            limits=ends if ends.max_cost is not None else replace(ends, prices=None),
            sampling=Sampling(temperature=temperature, seed=seed),
            written=written,
            seed=seed,
            concurrency=concurrency,
            prices=ends.prices,
            retry_failures=retry_failures,
        )
        address = chosen(policy)
        is_demo = data.partition("-")[0] == DEMO and not Path(data).exists()  # its questions are meant for its corpus
        corpus = searched(search, DEMO if is_demo else address)
        with progress("questions", show=not as_json) as update:
            summary = asyncio.run(
                evaluate(
                    questions,
                    address,
                    corpus,
                    out,
                    settings,
                    lambda at: update(at.num_done, at.num_total, f"EM {at.em:.3f}, {at.num_failed} failed"),
                    k=k,
                    answer_with=answer_with,
                    judge=judge,
                    on_judged=told_to(update),
                    record=record,
                    cache=cache,
                    cache_days=cache_days,
                )
            )
    if as_json:
        say(json.dumps(summary, ensure_ascii=False))
        return
    print_summary(summary)
    told = set(questions.warnings)
    for note in [*(one for one in summary["manifest"]["warnings"] if one not in told), *notes_of(summary)]:
        say(f"note: {note}", err=True)
    say(f"report: {out / REPORT_FILE}")


def _text_of(path: Path) -> str:
    from parallelsearch.errors import UsageError

    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read the prompt in '{path}': {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the prompt in '{path}' is not UTF-8 ({error.reason})") from error


def budget_command(
    arms: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN | POLICY]...", help="Folders written by eval, or policies to run."),
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", metavar="NAME_OR_FILE", help="The questions; run folders have their own.")
    ] = None,
    search: SearchOption = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder to write.")] = Path("budget"),
    k: KOption = 3,
    split: Annotated[str | None, typer.Option(help="Of a named set: train, dev or test.")] = None,
    limit: LimitOption = None,
    limit_seed: LimitSeedOption = 0,
    seed: SeedOption = 0,
    subset: SubsetOption = None,
    has_all: AllOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compare retrieval for equal numbers of passages and rounds.

    The whole question as one query is the first arm, the parts as labelled the second; both need no model.

    Example: parallelsearch budget run --search demo
    """
    import asyncio

    from parallelsearch.data import load_questions
    from parallelsearch.evaluation.budget import Cell, budget_table
    from parallelsearch.evaluation.report import BUDGET_FILE
    from parallelsearch.evaluation.run import EvaluationSettings
    from parallelsearch.evaluation.whole import runs_among, spend_budgets

    questions = None if data is None else load_questions(data, split=split, limit=limit, seed=limit_seed)
    if not runs_among(arms or []):  # a run says itself what it searched, and is not searched again elsewhere unasked
        search = searched(search)
    with progress("questions", show=not as_json) as update:
        page = asyncio.run(
            spend_budgets(
                arms or [],
                search,
                out,
                questions=questions,
                settings=EvaluationSettings(seed=seed),
                on_progress=lambda at: update(at.num_done, at.num_total, ""),
                k=k,
            )
        )
    record = json.loads((out / BUDGET_FILE).read_text(encoding="utf-8"))
    found = record["cells"]
    for warning in record["warnings"]:
        say(f"note: {warning}", err=True)
    if as_json:
        say(json.dumps(found))
        return
    cells = [Cell(**cell) for cell in found]
    printed = _printed({cell.group: cell.n for cell in cells}, subset or (), has_all)
    table = budget_table([cell for cell in cells if cell.group in printed], is_short=True)
    _print_table(table.head, table.rows, num_keys=4)
    say("each cell: questions with all gold / gold recall; the intervals are in the report")
    say(f"report: {page}")


_MANY, _SHOWN = 12, 6
"""So many subsets are printed at most, unless more are asked for; of more than that, so many."""
SubsetOption = Annotated[
    list[str] | None,
    typer.Option("--subset", metavar="NAME", help="Print this subset alone; repeatable. --json has all."),
]
AllOption = Annotated[bool, typer.Option("--all", help="Print every subset, and not the largest alone.")]


def _printed(sizes: Mapping[str, int], wanted: Sequence[str], has_all: bool) -> list[str]:
    """The subsets to print, in their order: those that are wanted, or of many the first, which is all of them where there are
    several data sets, and the largest."""
    from parallelsearch.errors import UsageError, nearest

    for name in wanted:
        if name not in sizes:
            raise UsageError(f"there is no subset '{name}'.{nearest(name, sizes)} There are: {', '.join(sizes)}")
    if wanted:
        return [name for name in sizes if name in wanted]
    if has_all or len(sizes) <= _MANY:
        return list(sizes)
    first, *rest = sizes
    largest = {first, *sorted(rest, key=lambda name: -sizes[name])[: _SHOWN - 1]}
    say(f"note: the largest of {len(sizes)} subsets; --all prints the others, --subset NAME one of them", err=True)
    return [name for name in sizes if name in largest]


_NEXT_GROUP = "--"


class GroupedCommand(TyperCommand):
    """Lets `--` part groups of arguments. Click would take it for the end of the options and swallow it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [f"\x1f{arg}" if arg == _NEXT_GROUP else arg for arg in args])


def compare_command(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Folders written by eval; the first is compared against. Seeds in groups: a1 a2 -- c1 c2."),
    ],
    allow: Annotated[list[str] | None, typer.Option(help="A part of the set-up that may differ; repeatable.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Also write a page and Markdown there.")
    ] = None,
    seed: SeedOption = 0,
    subset: SubsetOption = None,
    has_all: AllOption = False,
    as_json: JsonOption = False,
) -> None:
    """Set runs, or groups of seeds, side by side.

    Example: parallelsearch compare run run

    Example: parallelsearch compare run -- run
    """
    from parallelsearch.evaluation.comparison import compare, compare_groups
    from parallelsearch.evaluation.report import write_comparison, write_group_comparison
    from parallelsearch.evaluation.tables import View, group_table, metric_table, paired_table

    groups: list[list[Path]] = [[]]
    for run in runs:
        if str(run) == f"\x1f{_NEXT_GROUP}":
            groups.append([])
        else:
            groups[-1].append(run)
    if len(groups) > 1:
        seeds = compare_groups(groups, allow=allow or (), seed=seed)
        if out is not None:
            write_group_comparison(seeds, out)
        sizes = {test.subset: test.result.num_questions for test in seeds.tests}
        found_json, tables, warnings = seeds.to_dict(), [(group_table(seeds), 3)], seeds.warnings
    else:
        found = compare(runs, allow=allow or (), seed=seed)
        if out is not None:
            write_comparison(found, out)
        views = [View(run.name, run.manifest, run.subsets, ()) for run in found.runs]
        sizes = {name: values["n"] for name, values in found.runs[0].subsets.items()}
        tables = [(metric_table(views), 2 if len(views) > 1 else 1), (paired_table(found), 3)]
        found_json, warnings = found.to_dict(), found.warnings
    if as_json:
        say(json.dumps(found_json, ensure_ascii=False))
        return
    printed = _printed(sizes, subset or (), has_all)
    for table, num_keys in tables:
        _print_table(table.head, [row for row in table.rows if row[0] in printed], num_keys)
    for warning in warnings:
        say(f"note: {warning}", err=True)


def _print_table(head: Sequence[str], rows: Sequence[Sequence[str]], num_keys: int) -> None:
    """A table that is never cut: columns for which the terminal has no room follow in a table of their own, beside the
    first `num_keys` again, which say what a row is of. One of these that is the same in all rows is then said once."""
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    screen = console()
    width = max(40, screen.width)
    frame = 2  # a column's own line and space
    widths = [max(map(cell_len, [*title.split(), *(row[at] for row in rows)])) for at, title in enumerate(head)]
    keys = list(range(num_keys))
    if sum(widths) + frame * len(widths) >= width:
        for at in [at for at in keys if len({row[at] for row in rows}) == 1]:
            keys.remove(at)
            screen.print(Text(f"{head[at]}: {rows[0][at]}"))
    while sum(widths[at] + frame for at in keys) > width // 2:
        widths[max(keys, key=lambda at: widths[at])] -= 1
    room = width - 1 - sum(widths[at] + frame for at in keys)
    parts: list[list[int]] = []
    left = 0
    for at in range(num_keys, len(head)):
        widths[at] = min(widths[at], room - frame)
        if widths[at] + frame > left:
            parts.append([])
            left = room
        parts[-1].append(at)
        left -= widths[at] + frame
    for part in parts:
        table = Table(padding=(0, 0, 0, 1))
        for at in (*keys, *part):
            table.add_column(head[at], overflow="fold", width=widths[at])
        for row in rows:
            table.add_row(*(Text(row[at]) for at in (*keys, *part)))
        screen.print(table)

"""`eval` and `compare`: a set of questions run and measured, and runs set side by side."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parallelsearch.commands.options import (
    JsonOption,
    KOption,
    PolicyOption,
    SearchOption,
    SeedOption,
    console,
    progress,
)

if TYPE_CHECKING:
    from parallelsearch.datasets import QuestionSet
    from parallelsearch.evaluation import Progress
    from parallelsearch.metrics import Prices
    from parallelsearch.search import Search

_MAX_VIEWER_BYTES = 10_000_000


def evaluate_command(
    data: Annotated[
        str, typer.Option("--data", metavar="NAME_OR_FILE", help="A set by name, or a question file.")
    ] = "demo",
    policy: PolicyOption = "demo",
    search: SearchOption = "demo",
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The run's folder; a killed run goes on.")] = Path(
        "run"
    ),
    k: KOption = 3,
    method: Annotated[
        str, typer.Option(help="How questions are put; 'parallel', 'sequential', 'rag', 'direct', ...")
    ] = "parallel",
    prompt_file: Annotated[Path | None, typer.Option(help="A prompt of one's own, with {question} in it.")] = None,
    split: Annotated[str | None, typer.Option(help="Of a named set: train, dev or test.")] = None,
    subset: Annotated[str | None, typer.Option(help="Of a named set: par, seq, mixed or single.")] = None,
    limit: Annotated[int | None, typer.Option(help="Only so many questions of each set, drawn by --seed.")] = None,
    prices: Annotated[
        str | None,
        typer.Option(
            metavar="READ,WRITTEN,SEARCHED",
            help="What a million tokens read, a million written and a thousand queries cost: gives the cost of a question.",
        ),
    ] = None,
    answers: Annotated[
        Path | None, typer.Option(help="Score this file (id and answer a line) instead of running.")
    ] = None,
    max_turns: Annotated[int, typer.Option(help="Turns that may search; one more must answer.")] = 4,
    max_tokens_per_turn: Annotated[int, typer.Option(help="Tokens the model may write in a turn.")] = 500,
    max_observation_tokens: Annotated[int, typer.Option(help="Tokens of results in a round.")] = 1000,
    max_tokens: Annotated[int, typer.Option(help="Prompt, turns and results together.")] = 6000,
    timeout_s: Annotated[float, typer.Option(help="Seconds for one question.")] = 600.0,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    layout: Annotated[str, typer.Option(help="How results are shown to the model: headed or paper.")] = "headed",
    concurrency: Annotated[int, typer.Option(help="Questions under way at once.")] = 64,
    retry_failures: Annotated[
        bool, typer.Option("--retry-failures", help="Ask again what failed or was too late.")
    ] = False,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Evaluate a policy on a set of questions: trajectories, summary and report in one folder.

    Example: parallelsearch eval --data demo --policy demo --search demo --out run
    """
    import asyncio

    from parallelsearch.addresses import open_policy
    from parallelsearch.datasets import load_questions
    from parallelsearch.evaluation import EvaluationSettings, evaluate, evaluate_answers
    from parallelsearch.policy.base import Sampling
    from parallelsearch.report import notes_of
    from parallelsearch.rollout import Limits

    questions = load_questions(data, split=split, subset=subset, limit=limit, seed=seed)
    if answers is not None:
        summary = evaluate_answers(questions, answers, out, seed=seed)
    else:
        settings = EvaluationSettings(
            method=method,
            prompt_template=None if prompt_file is None else prompt_file.read_text(encoding="utf-8"),
            limits=Limits(
                max_turns=max_turns,
                max_tokens_per_turn=max_tokens_per_turn,
                max_observation_tokens=max_observation_tokens,
                max_tokens=max_tokens,
                timeout_s=timeout_s,
            ),
            sampling=Sampling(temperature=temperature, seed=seed),
            layout="paper" if layout == "paper" else "headed",
            seed=seed,
            concurrency=concurrency,
            prices=_prices(prices),
            retry_failures=retry_failures,
        )
        asked, found = open_policy(policy), _open_search(search, k, questions)

        async def go(on_progress: Callable[[Progress], None]) -> dict[str, Any]:
            try:
                return await evaluate(questions, asked, found, out, settings, on_progress)
            finally:
                await found.aclose()
                await asked.aclose()

        with _running_em(show=not as_json) as on_progress:
            summary = asyncio.run(go(on_progress))
    report = _write_report(out)
    if as_json:
        typer.echo(json.dumps(summary, ensure_ascii=False))
        return
    _print_summary(summary["subsets"])
    for note in notes_of(summary):
        typer.echo(f"note: {note}", err=True)
    typer.echo(f"report: {report}")


def _prices(text: str | None) -> Prices | None:
    from parallelsearch.errors import UsageError
    from parallelsearch.metrics import Prices

    if text is None:
        return None
    try:
        read, written, searched = map(float, text.split(","))
    except ValueError:
        raise UsageError(f"--prices takes three numbers with commas, such as 0.15,0.6,1, not '{text}'") from None
    return Prices(read, written, searched)


def _open_search(address: str, k: int, questions: QuestionSet) -> Search:
    """The search of an address; `gold:FILE,FILE` gives each question its own gold passages from these corpus files."""
    from parallelsearch.addresses import open_search
    from parallelsearch.errors import UsageError
    from parallelsearch.gold import GoldRetriever
    from parallelsearch.search import Search

    kind, _, files = address.partition(":")
    if kind != "gold":
        return open_search(address, k=k)
    if not files:
        raise UsageError("gold: needs the corpus file that holds the gold passages, such as gold:corpus.jsonl")
    return Search(GoldRetriever.from_corpus(questions.questions, files.split(",")), k=k)


def _write_report(out: Path) -> Path:
    """The report, with the viewer's page beside it: the examples are in that page, whatever else does not fit."""
    from parallelsearch.report import choose_examples, write_report
    from parallelsearch.run_folder import read_rows
    from parallelsearch.viewer.html import export_html

    viewer = out / "viewer.html"
    export_html(out, viewer, _MAX_VIEWER_BYTES, first=choose_examples(read_rows(out)))
    return write_report(out, viewer=viewer.name)


@contextmanager
def _running_em(show: bool) -> Iterator[Callable[[Progress], None]]:
    with progress("questions", show) as update:
        yield lambda at: update(at.num_done, at.num_total, f"EM {at.em:.3f}, {at.num_failed} failed")


def _print_summary(subsets: dict[str, dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table("subset", "n", "EM", "95%", "F1", "calls", "searches", "split", "failures", padding=(0, 0, 0, 1))
    table.columns[0].overflow = "fold"
    for name, row in subsets.items():
        low, high = row["ci95"]["em"]
        figures = (row["num_llm_calls"], row["num_searches"], row["split_ratio"])
        table.add_row(
            name, str(row["n"]), f"{row['em']:.3f}", f"{low:.3f} to {high:.3f}", f"{row['f1']:.3f}",
            *(f"{value:.2f}" for value in figures), str(row["failures"]),
        )  # fmt: skip
    console().print(table)


def compare_command(
    runs: Annotated[list[Path], typer.Argument(help="Folders written by eval; the first is the one compared against.")],
    allow: Annotated[list[str] | None, typer.Option(help="A part of the set-up that may differ; repeatable.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Also write a page and Markdown there.")
    ] = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Set runs side by side: one table, paired tests, and what differs between their set-ups.

    Example: parallelsearch compare run run
    """
    from parallelsearch.comparison import compare
    from parallelsearch.report import write_comparison
    from parallelsearch.report_tables import View, metric_table, paired_table

    found = compare(runs, allow=allow or (), seed=seed)
    if out is not None:
        write_comparison(found, out)
    if as_json:
        typer.echo(json.dumps(found.to_dict(), ensure_ascii=False))
        return
    views = [View(run.name, run.manifest, run.subsets, ()) for run in found.runs]
    for table in (metric_table(views), paired_table(found)):
        _print_table(table.head, table.rows)
    for warning in found.warnings:
        typer.echo(f"note: {warning}", err=True)


def _print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(*head)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console().print(table)

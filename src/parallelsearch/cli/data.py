"""`data SOURCE` lists questions; `data verl SOURCE` writes them as the Parquet files a cluster run reads; `data corpus`
writes the embedded corpus."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from parallelsearch.cli.options import DialectOption, JsonOption, SeedOption, console, say

SourceArgument = Annotated[str, typer.Argument(help="A question file, or a set by name: demo, hotpotqa-par, nq, ...")]


class _ListsByDefault(TyperGroup):
    """`data demo` is `data list demo`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["list", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_ListsByDefault, no_args_is_help=True, help="List questions, or write them and an example corpus."
)


@app.command("list")
def list_questions(
    source: SourceArgument,
    split: Annotated[str | None, typer.Option(help="Of a named set: train, dev or test.")] = None,
    limit: Annotated[int, typer.Option(help="How many to show.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """List questions: their kind, type and answers.

    Example: parallelsearch data demo --limit 5
    """
    from parallelsearch.data.sets import load_questions

    found = load_questions(source, split=split).questions
    questions = found[:limit]
    if as_json:
        from dataclasses import asdict

        for question in questions:
            known = {key: value for key, value in asdict(question).items() if value is not None}
            say(json.dumps(known, ensure_ascii=False))
        return
    from rich.table import Table
    from rich.text import Text

    table = Table("id", "kind", "question", "answer")
    for question in questions:
        answer = question.golden_answers[0] if question.golden_answers else ""
        table.add_row(question.id, question.kind or "?", Text(question.question), Text(answer))
    console().print(table)
    if len(questions) < len(found):
        say(f"{len(questions):,} of {len(found):,}; --limit shows more", err=True)


@app.command("corpus")
def write_corpus(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The JSON Lines file to write.")],
) -> None:
    """Write the embedded corpus to a file, as an example.

    Example: parallelsearch data corpus --out example.jsonl
    """
    from parallelsearch.data import demo
    from parallelsearch.errors import UsageError
    from parallelsearch.files import write_whole

    if out.exists():
        raise UsageError(f"'{out}' exists already; name another file, or remove it first")
    lines = Path(demo.corpus_path()).read_text(encoding="utf-8")
    write_whole(out, lines)
    say(f"{lines.count(chr(10))} passages in {out}; search them with: --search files:{out}")


@app.command("verl")
def write_for_verl(
    sources: Annotated[str, typer.Argument(help="Question files or sets by name (their train splits), with commas.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where train.parquet and validation.parquet go.")],
    validation: Annotated[
        str | None, typer.Option(help="Files or sets to validate on. Without it, questions are cut from training.")
    ] = None,
    num_validation: Annotated[int, typer.Option(help="How many questions to validate on.")] = 512,
    max_questions: Annotated[int | None, typer.Option(help="Take only this many training questions.")] = None,
    dialect: DialectOption = None,
    preset: Annotated[
        str | None,
        typer.Option("--reward", metavar="PRESET", help="Refuse questions this preset cannot score (gated)."),
    ] = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Write the Parquet files that verl reads.

    No question that stands in an evaluation file gets into them.

    Example: parallelsearch data verl questions.jsonl --out data --num-validation 4
    """
    from parallelsearch.config import parse
    from parallelsearch.training.collect import check_questions
    from parallelsearch.training.questions import load_pools
    from parallelsearch.training.recipe import DataSettings, RewardSettings
    from parallelsearch.training.verl.rows import write_rows

    def names(text: str | None) -> list[str] | None:
        return None if text is None else [part.strip() for part in text.split(",") if part.strip()]

    values = {"train": names(sources), "validation": names(validation), "num_validation": num_validation}
    settings = parse({**values, "max_questions": max_questions}, DataSettings, source="data verl")
    reward = parse({} if preset is None else {"preset": preset}, RewardSettings, source="data verl")
    pools, held_out = load_pools(settings, seed)
    training = [question for pool in pools for question in pool]
    check_questions(training, reward, "training")
    check_questions(held_out, reward, "validation")
    report = {
        str(out / f"{split}.parquet"): write_rows(out / f"{split}.parquet", questions, split, dialect)
        for split, questions in (("train", training), ("validation", held_out))
    }
    say(json.dumps(report) if as_json else "\n".join(f"{count} questions in {path}" for path, count in report.items()))

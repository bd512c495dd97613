"""`teach`: from a corpus to a policy for it, or what that would take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from parallelsearch.cli.options import JsonOption, SeedOption, progress, say
from parallelsearch.errors import UsageError


def teach(
    corpus: Annotated[
        Path, typer.Argument(help="One corpus of those `index` takes: JSON Lines, Parquet, CSV, or a folder of texts.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder to write; a killed run goes on there.")],
    questions: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Questions of your own; without it they are made.")
    ] = None,
    teacher: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="A model that writes the questions, such as openai:URL#MODEL."),
    ] = None,
    base: Annotated[
        str | None, typer.Option(metavar="MODEL[+ADAPTER]", help="What is trained. Default: smollm2-135m+parallel.")
    ] = None,
    num_questions: Annotated[int | None, typer.Option(help="To learn from. Default: 400.")] = None,
    num_held_out: Annotated[int | None, typer.Option(help="To measure with. Default: 60.")] = None,
    min_trajectories: Annotated[int | None, typer.Option(help="Stop before training with fewer. Default: 40.")] = None,
    samples: Annotated[
        int | None, typer.Option(help="Tries of the teacher at each question that no lesson fits. Default: 0.")
    ] = None,
    epochs: Annotated[float | None, typer.Option(help="Of SFT. Default: 2.")] = None,
    lr: Annotated[float | None, typer.Option(help="Of SFT. Default: 5e-4.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Tokens of a trajectory. Default: 2560.")] = None,
    grpo_steps: Annotated[int | None, typer.Option(help="Steps of GRPO after SFT. Default: 0.")] = None,
    max_teacher_tokens: Annotated[
        int | None, typer.Option(help="The teacher is not asked beyond so many tokens, read and written.")
    ] = None,
    prices: Annotated[
        str | None,
        typer.Option(metavar="READ,WRITTEN", help="What a million tokens read and a million written by it cost."),
    ] = None,
    gguf: Annotated[bool, typer.Option("--gguf", help="Also write the policy as one GGUF file.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Do nothing: say what it would take.")] = False,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Teach a policy to search your corpus.

    It makes questions, or takes yours, plays them through with real searches, trains an adapter and measures before and
    after on questions it held back.

    Example: parallelsearch teach corpus.jsonl --out taught --plan
    """
    from parallelsearch.config import parse
    from parallelsearch.teach.planning import plan as plan_run
    from parallelsearch.teach.run import num_at_hand, passages_of
    from parallelsearch.teach.run import teach as run
    from parallelsearch.teach.settings import TeachSettings

    options: dict[str, Any] = {
        "questions": None if questions is None else str(questions),
        "teacher": teacher,
        "base": base,
        "num_questions": num_questions,
        "num_held_out": num_held_out,
        "min_trajectories": min_trajectories,
        "num_samples": samples,
        "epochs": epochs,
        "lr": lr,
        "max_length": max_length,
        "grpo_steps": grpo_steps,
        "max_teacher_tokens": max_teacher_tokens,
        "prices": None if prices is None else _prices(prices),
    }
    typed = {name: value for name, value in options.items() if value is not None}
    if _device() == "cuda":
        typed |= {"micro_batch_tokens": 49_152, "num_asked_at_once": 512}
    settings = parse(
        {"corpus": str(corpus), "out": str(out), "gguf": gguf, "seed": seed, **typed}, TeachSettings, source="teach"
    )
    if plan:
        passages = passages_of(settings.corpus)
        planned = plan_run(settings, passages, _device(), num_at_hand(settings, passages))
        say(json.dumps(planned.to_dict()) if as_json else "\n".join(planned.lines()))
        return
    with progress("teach", show=not as_json) as update:
        taught = run(
            settings,
            say=lambda line: None if as_json else say(line, err=True),
            on_step=lambda stage, done, total: update(done, total or None, stage),
        )
    if as_json:
        say(json.dumps(taught.record, ensure_ascii=False))
        return
    say(taught.card.read_text(encoding="utf-8"))
    say(f'use it with: parallelsearch ask "..." --policy {taught.address} --search {taught.search}')


def _prices(text: str) -> tuple[float, float]:
    try:
        read, written = (float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--prices takes two numbers, READ,WRITTEN, for a million tokens each, not '{text}'") from None
    return read, written


def _device() -> str:
    """Where training would run; without torch a plan is still possible."""
    try:
        import torch
    except ImportError:
        return "cpu"
    return "cuda" if torch.cuda.is_available() else "cpu"

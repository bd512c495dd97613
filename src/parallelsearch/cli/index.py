"""`index`: a corpus to an index, or what that would take."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from parallelsearch.cli.options import JsonOption, progress, say, tell_left_out
from parallelsearch.errors import UsageError

LONG_WORDS = 300
"""Passages that are longer than this on average are shown in small part."""


def index(
    corpus: Annotated[
        list[Path] | None,
        typer.Argument(
            help="JSON Lines, Parquet, CSV (.gz and .zst too), or a folder of documents; several become one."
        ),
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="The folder to write; for milvus, a file or address.")
    ] = None,
    kind: Annotated[str, typer.Option(help="bm25, dense, hybrid or milvus.")] = "bm25",
    encoder: Annotated[
        str, typer.Option(help="For dense: an encoder's folder or name, or openai:BASE_URL#MODEL.")
    ] = "minilm",
    dtype: Annotated[str, typer.Option(help="For dense: float32, float16 or int8.")] = "float16",
    faiss: Annotated[str | None, typer.Option(help="For dense: also build a faiss index; flat, ivf or hnsw.")] = None,
    device: Annotated[
        str | None, typer.Option(help="For dense: cpu, cuda, cuda:1. Default: a GPU if there is one.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="For dense: passages encoded at once, or in a request.")] = 64,
    title_weight: Annotated[
        int, typer.Option(min=1, help="For bm25 and hybrid: how often a title's words count. 3 where titles are names.")
    ] = 1,
    stemmer: Annotated[
        str, typer.Option(help="For bm25 and hybrid: the language whose endings are cut off; german, ... or none.")
    ] = "english",
    chunk_words: Annotated[
        int | None,
        typer.Option(help="Words of a passage. Default: 100 for documents; rows and JSON Lines are not cut."),
    ] = None,
    chunk_overlap: Annotated[int, typer.Option(help="Words two neighbouring passages share.")] = 20,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave bad lines out instead of stopping.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an index that is there.")] = False,
    plan: Annotated[
        int | None, typer.Option(metavar="N", help="Build nothing: say what N passages would take.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Build a search index from a corpus, or plan one (--plan).

    Example: parallelsearch index corpus.jsonl --out my-index

    Example: parallelsearch index --plan 21000000 --kind dense
    """
    from parallelsearch.retrieval.corpus import DEFAULT_CHUNK_WORDS
    from parallelsearch.retrieval.indexing import build_index, plan_index

    if plan is not None:
        planned, problems = plan_index(plan, kind, dtype, encoder=encoder, faiss=faiss, device=device)
        say(json.dumps({**planned.to_dict(), "problems": problems}) if as_json else "\n".join(planned.lines()))
        for problem in [] if as_json else problems:
            say(f"on this machine: {problem}")
        return
    if not corpus or out is None:
        raise UsageError("say what to index and where to: parallelsearch index CORPUS --out DIR")
    with progress("passages", show=not as_json) as update:
        report = build_index(
            corpus if len(corpus) > 1 else corpus[0],
            out,
            kind=kind,
            encoder=encoder,
            dtype=dtype,
            faiss=faiss,
            device=device,
            batch_size=batch_size,
            title_weight=title_weight,
            stemmer=None if stemmer == "none" else stemmer,
            chunk_words=chunk_words,
            chunk_overlap=chunk_overlap,
            skip_bad=skip_bad,
            overwrite=overwrite,
            on_progress=lambda done, total: update(done, total, ""),
        )
    if as_json:
        say(json.dumps(report, ensure_ascii=False))
        return
    size = f", {report['bytes'] / 1e6:.1f} MB in {out}" if report["bytes"] else f" to {out}"
    passages = "passage" if report["num_passages"] == 1 else "passages"
    say(
        f"{report['num_passages']} {passages} ({report['mean_words']:.0f} words each) in {report['seconds']:.1f} s{size}"
    )
    if report["mean_words"] > LONG_WORDS and chunk_words is None:
        say(
            "note: of a long passage a model is shown the beginning, a hundred words or two. Cut them into passages with: "
            f"--chunk-words {DEFAULT_CHUNK_WORDS} --overwrite",
            err=True,
        )
    tell_left_out(report)
    say(f"search it with: --search {shlex.quote(f'{kind}:{out}')}")

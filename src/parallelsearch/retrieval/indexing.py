"""`index` by kind: which builder makes which folder, and one form of report for all of them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parallelsearch.errors import UsageError, nearest

if TYPE_CHECKING:
    from parallelsearch.retrieval.plan import Plan

KINDS = ("bm25", "dense", "hybrid", "milvus")


def build_index(
    corpus: Path | Sequence[Path],
    out: str | Path,
    *,
    kind: str = "bm25",
    encoder: str = "minilm",
    dtype: str = "float16",
    faiss: str | None = None,
    device: str | None = None,
    batch_size: int = 64,
    title_weight: int = 1,
    stemmer: str | None = "english",
    chunk_words: int | None = None,
    chunk_overlap: int = 20,
    skip_bad: bool = False,
    overwrite: bool = False,
    on_progress: Callable[[int, int | None], None] | None = None,
) -> dict[str, Any]:
    """Build the index of a corpus, or of several, and say what was done. `not_read` counts the files of
    folders that are no documents, by kind."""
    from parallelsearch.retrieval.corpus import other_kinds

    shared: dict[str, Any] = {
        "chunk_words": chunk_words,
        "chunk_overlap": chunk_overlap,
        "skip_bad": skip_bad,
        "overwrite": overwrite,
        "on_progress": on_progress,
    }
    encoding: dict[str, Any] = {"device": device, "batch_size": batch_size}
    if faiss is not None and kind not in ("dense", "hybrid"):
        raise UsageError(f"--faiss goes with --kind dense or hybrid, not with '{kind}'")
    if title_weight != 1 and kind not in ("bm25", "hybrid"):
        raise UsageError(f"--title-weight goes with --kind bm25 or hybrid, not with '{kind}'")
    if stemmer != "english" and kind not in ("bm25", "hybrid"):
        raise UsageError(f"--stemmer goes with --kind bm25 or hybrid, not with '{kind}'")
    words: dict[str, Any] = {"title_weight": title_weight, "stemmer": stemmer}
    not_read = other_kinds(corpus, out)
    if kind == "bm25":
        from parallelsearch.retrieval.bm25 import build_bm25

        report = build_bm25(corpus, out, **words, **shared)
    elif kind == "dense":
        from parallelsearch.retrieval.dense import build_dense

        report = build_dense(corpus, out, encoder, dtype=dtype, **encoding, **shared)
    elif kind == "hybrid":
        from parallelsearch.retrieval.hybrid import build_hybrid

        report = build_hybrid(corpus, out, encoder, dtype=dtype, **words, **encoding, **shared)
    elif kind == "milvus":
        from parallelsearch.retrieval.milvus import build_milvus

        report = build_milvus(corpus, str(out), encoder=encoder or None, **encoding, **shared)
    else:
        raise UsageError(f"there is no index kind '{kind}'; choose one of {', '.join(KINDS)}.{nearest(kind, KINDS)}")
    if faiss is not None:
        from parallelsearch.retrieval.faiss_index import build_faiss

        build_faiss(out if kind == "dense" else Path(out) / "dense", faiss)
    return {**asdict(report), "not_read": not_read}


def plan_index(
    num_passages: int,
    kind: str,
    dtype: str,
    *,
    encoder: str = "minilm",
    faiss: str | None = None,
    device: str | None = None,
) -> tuple[Plan, list[str]]:
    """What an index would take, and why that would not go well on this machine. For a `device` of `cuda` the plan is that
    of one GPU, whether or not there is one here."""
    from parallelsearch.retrieval.encoders import expected_dim
    from parallelsearch.retrieval.plan import plan
    from parallelsearch.retrieval.served_encoder import is_served

    dim = expected_dim(encoder)
    on_gpu = (device or "").startswith("cuda")
    planned = plan(
        num_passages,
        kind,
        dim=dim or 384,
        dtype=dtype,
        search=faiss or "exact",
        on_gpu=on_gpu,
        is_served=is_served(encoder),
    )
    if dim is None and kind != "bm25":
        planned.notes.append(f"the size of '{encoder}' is not known here: planned with 384 dimensions")
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return planned, planned.problems(memory_bytes=memory_bytes, free_disk_bytes=shutil.disk_usage(".").free)

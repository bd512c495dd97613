"""`index` by kind: which builder makes which folder, and one form of report for all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from parallelsearch.errors import UsageError, nearest

KINDS = ("bm25", "dense", "hybrid")


def build_index(
    corpus: Path,
    out: Path,
    *,
    kind: str = "bm25",
    encoder: str = "minilm",
    dtype: str = "float16",
    chunk_words: int | None = None,
    chunk_overlap: int = 20,
    skip_bad: bool = False,
    overwrite: bool = False,
    on_progress: Callable[[int, int | None], None] | None = None,
) -> dict[str, Any]:
    """Build the index and say what was done."""
    shared: dict[str, Any] = {
        "chunk_words": chunk_words,
        "chunk_overlap": chunk_overlap,
        "skip_bad": skip_bad,
        "overwrite": overwrite,
        "on_progress": on_progress,
    }
    if kind == "bm25":
        from parallelsearch.retrieval.bm25 import build_bm25

        return asdict(build_bm25(corpus, out, **shared))
    raise UsageError(f"there is no index kind '{kind}'; choose one of {', '.join(KINDS)}.{nearest(kind, KINDS)}")

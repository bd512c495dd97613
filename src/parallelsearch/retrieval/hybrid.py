"""Hybrid retrieval: the rankings of several retrievers over the same corpus, joined by reciprocal rank fusion.

Every part is asked at the same time for `depth` hits; a passage scores the sum of weight / (rrf_k + rank) over the parts that
found it. Ranks, not scores, are joined, because BM25 scores and cosines have no common scale. A part that fails or is too
slow leaves the result of the others, as `DegradedHits` that say what was missing.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from parallelsearch.errors import IndexDamagedError, SearchError, SearchTimeoutError, TransientSearchError, UsageError
from parallelsearch.files import PathLike
from parallelsearch.retrieval.base import DegradedHits, Hit, Passage, Result, Retriever
from parallelsearch.retrieval.bm25 import BM25Retriever, BuildReport, OnProgress, build_bm25
from parallelsearch.retrieval.corpus import DEFAULT_CHUNK_OVERLAP, Source, paths_of
from parallelsearch.retrieval.dense import DenseRetriever, SearchKind, build_dense
from parallelsearch.retrieval.metadata import METADATA_SHA256
from parallelsearch.retrieval.store import open_manifest
from parallelsearch.retrieval.text_encoder import TextEncoder

RRF_K = 5
DEFAULT_WEIGHTS = (1.5, 1.0)
"""BM25 and dense, and how fast the weight of a rank falls: chosen on half of 3,604 questions over 305k passages, measured on
the other half, both ways round and for two encoders (docs/search.md). Equal weights with 60 lose to BM25 alone there."""
DEFAULT_DEPTH = 50
PART_FOLDERS = ("bm25", "dense")

_log = logging.getLogger(__name__)


def fuse(rankings: Sequence[Sequence[Hit]], weights: Sequence[float], k: int, rrf_k: int = RRF_K) -> list[Hit]:
    """The `k` best by reciprocal rank fusion. Equal scores: the better single rank first, then the order of the parts."""
    scores: dict[str, float] = {}
    best: dict[str, tuple[int, int]] = {}
    hits: dict[str, Hit] = {}
    for part, (ranking, weight) in enumerate(zip(rankings, weights, strict=True)):
        seen: set[str] = set()
        for rank, hit in enumerate(ranking, start=1):
            if hit.id in seen:  # a corpus with an id twice must not count twice
                continue
            seen.add(hit.id)
            scores[hit.id] = scores.get(hit.id, 0.0) + weight / (rrf_k + rank)
            best[hit.id] = min(best.get(hit.id, (rank, part)), (rank, part))
            hits.setdefault(hit.id, hit)
    order = sorted(scores, key=lambda id: (-scores[id], best[id]))[:k]
    return [Hit.of(hits[id], scores[id], rank) for rank, id in enumerate(order, start=1)]


class HybridRetriever(Retriever):
    """Several retrievers over the same corpus as one. Owns its parts: closing it closes them."""

    name = "hybrid"
    max_concurrency = 2

    def __init__(
        self,
        parts: Sequence[Retriever],
        *,
        weights: Sequence[float] | None = None,
        depth: int = DEFAULT_DEPTH,
        rrf_k: int = RRF_K,
        part_timeout_s: float | None = 15.0,
    ) -> None:
        """`depth` is how many hits each part is asked for (never fewer than k). A smaller `rrf_k` gives the first ranks
        more weight: worth trying, with a larger weight for the better part, where one part is much better."""
        if len(parts) < 2:
            raise UsageError(f"a hybrid retriever joins at least two retrievers, not {len(parts)}")
        weights = [1.0] * len(parts) if weights is None else list(weights)
        if len(weights) != len(parts) or not all(0 <= weight < math.inf for weight in weights) or not any(weights):
            raise UsageError(f"{len(parts)} parts need as many weights, none negative and not all zero, not {weights}")
        if depth < 1:
            raise UsageError(f"depth is how many hits each part is asked for, at least 1, not {depth}")
        if rrf_k < 1:
            raise UsageError(f"rrf_k is added to every rank, at least 1, not {rrf_k}")
        _check_same_corpus(parts)
        self.parts, self.weights, self.depth, self.rrf_k = list(parts), weights, depth, rrf_k
        self.part_timeout_s = part_timeout_s
        self.max_batch = min(part.max_batch for part in parts)
        self.num_part_failures: Counter[str] = Counter()

    async def search_many(self, queries: Sequence[str], k: int) -> list[Result]:
        answers = await asyncio.gather(*(self._ask(part, queries, max(k, self.depth)) for part in self.parts))
        return [self._join([answer[place] for answer in answers], k) for place in range(len(queries))]

    async def _ask(self, part: Retriever, queries: Sequence[str], k: int) -> list[Result]:
        """A part's answers; a failure of the whole call stands in every place."""
        try:
            async with asyncio.timeout(self.part_timeout_s):
                results = await part.search_many(queries, k)
        except TimeoutError:
            error: SearchError = SearchTimeoutError(f"no answer from {part.name} within {self.part_timeout_s:g} s")
        except SearchError as caught:
            error = caught
        except Exception as caught:  # whatever broke in one part, the other part's hits are still good
            error = SearchError(f"{part.name} failed: {type(caught).__name__}: {caught}")
        else:
            if len(results) == len(queries):
                return results
            error = SearchError(f"{part.name} gave {len(results)} results for {len(queries)} queries")
        return [error] * len(queries)

    def _join(self, results: Sequence[Result], k: int) -> Result:
        rankings = [result if isinstance(result, list) else [] for result in results]
        failed = [(part, r) for part, r in zip(self.parts, results, strict=True) if isinstance(r, SearchError)]
        failures = [f"{part.name}: {error}" for part, error in failed]
        for part, error in failed:
            self.num_part_failures[part.name] += 1
            _log.warning("hybrid search goes on without %s: %s", part.name, error)
        if len(failed) == len(self.parts):
            # Worth repeating if any part thinks so.
            waits = [error.retry_after_s for _, error in failed if isinstance(error, TransientSearchError)]
            text = "; ".join(failures)
            return (
                TransientSearchError(text, max((w for w in waits if w), default=None)) if waits else SearchError(text)
            )
        for part, result in zip(self.parts, results, strict=True):  # one that answered, and not in full
            failures += [f"{part.name}: {why}" for why in getattr(result, "failures", ())]
        fused = fuse(rankings, self.weights, k, self.rrf_k)
        return DegradedHits(fused, failures) if failures else fused

    def where(self, fields: Mapping[str, Any]) -> HybridRetriever:
        _check_same_metadata(self.parts)
        other = copy.copy(self)
        other.parts = [part.where(fields) for part in self.parts]
        return other

    def describe(self) -> dict[str, Any]:
        parts = [part.describe() for part in self.parts]
        settings = {"weights": self.weights, "depth": self.depth, "rrf_k": self.rrf_k}
        return {"kind": self.name, "corpus_sha256": parts[0].get("corpus_sha256"), "settings": settings, "parts": parts}

    async def check(self) -> None:
        for part in self.parts:
            await part.check()

    async def aclose(self) -> None:
        await asyncio.gather(*(part.aclose() for part in self.parts), return_exceptions=True)


def _check_same_corpus(parts: Sequence[Retriever]) -> None:
    """Hits are joined by id, so the ids must mean the same passages; a part that does not know its corpus is believed."""
    known = [(part.name, sha) for part in parts if (sha := part.describe().get("corpus_sha256"))]
    if len({sha for _, sha in known}) > 1:
        found = ", ".join(f"{name} {str(sha)[:12]}" for name, sha in known)
        raise IndexDamagedError(
            f"the parts of a hybrid index must hold the same corpus; they hold different ones ({found}). "
            "Build both from the same file: parallelsearch index CORPUS --out DIR --kind hybrid"
        )


def _check_same_metadata(parts: Sequence[Retriever]) -> None:
    """A part that was built with other metadata of the same texts would let through what the other keeps out."""
    if len({part.describe().get(METADATA_SHA256) for part in parts}) > 1:
        names = " and ".join(part.name for part in parts)
        raise IndexDamagedError(
            f"the parts of a hybrid index that is narrowed must hold the same metadata; {names} have different metadata. "
            "Build both again: parallelsearch index CORPUS --out DIR --kind hybrid --overwrite"
        )


# ---- the folder: DIR/bm25 and DIR/dense ------------------------------------------------------------------------------


def open_hybrid(
    folder: PathLike,
    *,
    device: str | None = None,
    index: SearchKind | None = None,
    encoder: str | TextEncoder | None = None,
    weights: Sequence[float] | None = None,
    depth: int = DEFAULT_DEPTH,
    rrf_k: int = RRF_K,
    nprobe: int | None = None,
) -> HybridRetriever:
    """A folder made by `build_hybrid`: a BM25 index in `bm25/` and a dense one in `dense/`. Weights in that order, unless
    set `DEFAULT_WEIGHTS`."""
    folder = Path(folder)
    lexical, dense = (folder / name for name in PART_FOLDERS)
    if not folder.is_dir() or not (lexical.is_dir() or dense.is_dir()):
        raise IndexDamagedError(
            f"'{folder}' is not a hybrid index: it should hold the folders {' and '.join(PART_FOLDERS)}. "
            f"Build it with: parallelsearch index CORPUS --out {folder} --kind hybrid"
        )
    # Manifests first: they tell in a moment what opening the encoder would tell in seconds.
    shas = {name: open_manifest(folder / name, name).corpus_sha256 for name in PART_FOLDERS}
    if len(set(shas.values())) > 1:
        raise IndexDamagedError(
            f"'{lexical}' and '{dense}' hold different corpora. Build both from the same file: "
            f"parallelsearch index CORPUS --out {folder} --kind hybrid --overwrite"
        )
    parts: list[Retriever] = [
        BM25Retriever(lexical),
        DenseRetriever(dense, device=device, index=index, encoder=encoder, nprobe=nprobe),
    ]
    return HybridRetriever(parts, weights=weights or DEFAULT_WEIGHTS, depth=depth, rrf_k=rrf_k)


def build_hybrid(
    source: Source,
    out: PathLike,
    encoder: str | TextEncoder,
    *,
    dtype: str = "float32",
    batch_size: int = 64,
    device: str | None = None,
    title_weight: int = 1,
    stemmer: str | None = "english",
    chunk_words: int | None = None,
    chunk_overlap: int = DEFAULT_CHUNK_OVERLAP,
    skip_bad: bool = False,
    overwrite: bool = False,
    on_progress: OnProgress | None = None,
) -> BuildReport:
    """Build `out/bm25` and `out/dense`. After a kill it goes on: a finished BM25 part of the same corpus is kept.

    The report is the dense part's, with the time and size of both.
    """
    out = Path(out)
    if paths_of(source) is None:
        source = list(cast(Iterable[Passage], source))  # read twice
    if not overwrite and all(_is_index(out / name, name) for name in PART_FOLDERS):
        raise UsageError(f"there is a hybrid index at '{out}' already. To replace it, add --overwrite")
    lexical, dense = (out / name for name in PART_FOLDERS)
    is_kept = not overwrite and _is_index(lexical, "bm25")
    if is_kept:
        settings = open_manifest(lexical, "bm25").settings
        made_with = settings.get("title_weight", 1), (settings.get("analyzer") or {}).get("stemmer")
        is_kept = made_with == (title_weight, stemmer)
    seconds = 0.0
    if not is_kept:
        first = build_bm25(
            source,
            lexical,
            title_weight=title_weight,
            stemmer=stemmer,
            chunk_words=chunk_words,
            chunk_overlap=chunk_overlap,
            skip_bad=skip_bad,
            overwrite=overwrite,
            on_progress=on_progress,
        )
        seconds = first.seconds
    report = build_dense(
        source,
        dense,
        encoder,
        dtype=dtype,
        batch_size=batch_size,
        device=device,
        chunk_words=chunk_words,
        chunk_overlap=chunk_overlap,
        skip_bad=skip_bad,
        overwrite=overwrite,
        on_progress=on_progress,
    )
    lexical_manifest, dense_manifest = open_manifest(lexical, "bm25"), open_manifest(dense, "dense")
    held = {(one.corpus_sha256, one.metadata_sha256) for one in (lexical_manifest, dense_manifest)}
    if len(held) > 1:
        raise IndexDamagedError(
            f"'{lexical}' was built from another corpus than '{dense}' (or the file changed in between). "
            "Run the same command with --overwrite"
        )
    num_bytes = lexical_manifest.num_bytes + dense_manifest.num_bytes
    return replace(report, seconds=report.seconds + seconds, bytes=num_bytes)


def _is_index(folder: Path, kind: str) -> bool:
    try:
        open_manifest(folder, kind)
    except IndexDamagedError:
        return False
    return True

"""Dense retrieval: a corpus encoded once into memory-mapped vectors, and a retriever over them.

A build writes the passages first (minutes), so that a bad line is found and the total is known before the hours of encoding
begin. Then it encodes block by block; each block is on the disk before it is counted, so a build that was killed goes on
with the blocks that it has not. An index knows its encoder by a probe vector, and refuses another.
"""

from __future__ import annotations

import copy
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol

import numpy as np

from parallelsearch.errors import (
    IndexDamagedError,
    ParallelSearchError,
    SearchError,
    UsageError,
    nearest,
    require,
    stopped,
)
from parallelsearch.files import PathLike, write_json
from parallelsearch.retrieval.base import BlockingRetriever, Hit, Passage, Result
from parallelsearch.retrieval.bm25 import BuildReport, OnProgress
from parallelsearch.retrieval.corpus import DEFAULT_CHUNK_OVERLAP, CorpusReport, Source, passages_of
from parallelsearch.retrieval.encoder import MAX_TOKENS
from parallelsearch.retrieval.encoders import known_encoder, open_encoder
from parallelsearch.retrieval.faiss_index import kept_kind, open_faiss, refuse_nprobe
from parallelsearch.retrieval.narrowing import Selection
from parallelsearch.retrieval.store import IndexBuilder, PassageStore, PassageWriter, open_manifest
from parallelsearch.retrieval.text_encoder import TextEncoder, Vectors, passage_text, same_encoder
from parallelsearch.retrieval.vector_files import KIND, SCALES, VECTORS, open_vectors
from parallelsearch.retrieval.vectors import (
    ChosenRows,
    ExactSearcher,
    VectorSearcher,
    check_dtype,
    quantize,
    torch_or_none,
)

ENCODER = "encoder.json"
_PROGRESS = "progress.json"  # while building: how many rows are on the disk, of which corpus

SearchKind = Literal["exact", "flat", "ivf", "hnsw"]
SEARCH_KINDS = ("exact", "flat", "ivf", "hnsw")


# ---- building --------------------------------------------------------------------------------------------------------


def build_dense(
    source: Source,
    out: PathLike,
    encoder: str | TextEncoder,
    *,
    dtype: str = "float32",
    batch_size: int = 64,
    device: str | None = None,
    max_tokens: int = MAX_TOKENS,
    chunk_words: int | None = None,
    chunk_overlap: int = DEFAULT_CHUNK_OVERLAP,
    skip_bad: bool = False,
    overwrite: bool = False,
    on_progress: OnProgress | None = None,
) -> BuildReport:
    """Encode corpora (see `read_corpus`) or passages into the index folder `out`; called again after a kill, it goes on
    where it was. `encoder` is a name, the address of a server (`openai:BASE_URL#MODEL`), or an encoder.

    `dtype` is how vectors are kept: `float32`, `float16` (half the size) or `int8` (a quarter; one scale a vector). A bad
    record raises `DataError`, or is counted and left out with `skip_bad`. `on_progress` is called while reading with no
    total, then while encoding with one.
    """
    check_dtype(dtype)
    if batch_size < 1:
        raise UsageError(f"batch_size is the number of texts encoded at once, at least 1, not {batch_size}")
    start = time.monotonic()
    report = CorpusReport()
    passages = passages_of(
        source, chunk_words=chunk_words, chunk_overlap=chunk_overlap, on_bad=report.on_bad(source, skip_bad)
    )
    encoder = open_encoder(encoder, device=device, batch_size=batch_size, max_tokens=max_tokens)
    tell = on_progress or (lambda done, total: None)
    settings = {"encoder": encoder.describe(), "dtype": dtype}
    # By whatever name or address: whether it is the same encoder, the probe says.
    key = {"encoder": {**encoder.describe(), "name": None}, "dtype": dtype}
    with IndexBuilder(out, KIND, overwrite=overwrite, resume_key=key) as build:
        with PassageWriter(build.folder) as writer:
            for passage in report.count(passages):
                writer.append(passage)
                if writer.num_passages % 1000 == 0:
                    tell(writer.num_passages, None)
        if writer.num_passages:
            with _VectorLog(build.folder, dtype, encoder, writer.corpus_sha256) as log:
                _encode_rest(PassageStore(build.folder), encoder, log, encoder.batches_per_block * batch_size, tell)
        manifest = build.finish(
            corpus_sha256=writer.corpus_sha256,
            num_passages=writer.num_passages,
            settings=settings,
            metadata_sha256=writer.metadata_sha256,
        )
    return BuildReport.of(report, manifest.num_passages, time.monotonic() - start, manifest.num_bytes)


def _encode_rest(store: PassageStore, encoder: TextEncoder, log: _VectorLog, block: int, tell: OnProgress) -> None:
    tell(log.num_rows, len(store))
    missing = log.missing(len(store), block)
    texts = ((rows.start, [passage_text(passage) for passage in store[rows.start : rows.stop]]) for rows in missing)
    try:
        for start, vectors in encoder.encode_blocks(texts):
            log.put(start, vectors)
            tell(log.num_rows, len(store))
    except SearchError as error:
        raise ParallelSearchError(
            f"{stopped(error)} {log.num_rows:,} of {len(store):,} passages are encoded and kept: the same command goes on "
            "with the rest"
        ) from error


class _VectorLog:
    """Vectors on their way to the disk, as ranges of rows in any order. What lies outside the ranges of `progress.json` is of
    no worth."""

    def __init__(self, folder: Path, dtype: str, encoder: TextEncoder, corpus_sha256: str) -> None:
        self._folder, self._dtype, self._encoder = folder, dtype, encoder
        self._corpus_sha256 = corpus_sha256
        self._ranges = self._recorded_ranges()
        self._row_bytes = encoder.dim * np.dtype(dtype).itemsize
        self._vectors = self._open(VECTORS, self._row_bytes)
        self._scales = self._open(SCALES, 4) if dtype == "int8" else None

    @property
    def num_rows(self) -> int:
        return sum(end - start for start, end in self._ranges)

    def missing(self, total: int, block: int) -> list[range]:
        """The rows that are not there, in ranges of at most `block`."""
        ends = [0, *(end for _, end in self._ranges)]
        starts = [*(start for start, _ in self._ranges), total]
        return [
            range(at, min(at + block, stop))
            for start, stop in zip(ends, starts, strict=True)
            for at in range(start, stop, block)
        ]

    def _recorded_ranges(self) -> list[tuple[int, int]]:
        """Rows a killed build left behind, if they belong to this corpus and this encoder."""
        try:
            record = json.loads((self._folder / _PROGRESS).read_text("utf-8"))
            is_same = record["corpus_sha256"] == self._corpus_sha256 and same_encoder(
                record["probe"], self._encoder.probe
            )
            first, others = int(record["num_rows"]), [(int(a), int(b)) for a, b in record.get("ahead", [])]
            return [(0, first)] * (first > 0) + others if is_same else []
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def _open(self, name: str, row_bytes: int) -> BinaryIO:
        path = self._folder / name
        size = path.stat().st_size if path.exists() else 0
        if self._ranges and size < self._ranges[-1][1] * row_bytes:
            self._ranges = []  # never from a kill; a disk that lost what it had acknowledged
        file = path.open("r+b" if path.exists() else "w+b")
        file.truncate(self._ranges[-1][1] * row_bytes if self._ranges else 0)
        return file

    def put(self, start: int, vectors: Vectors) -> None:
        """Write rows from `start` on, and count them when they are on the disk."""
        self._vectors.seek(start * self._row_bytes)
        if self._scales is not None:
            codes, scales = quantize(vectors)
            self._vectors.write(codes.tobytes())
            self._scales.seek(start * 4)
            self._scales.write(scales.astype("<f4").tobytes())
            _flush(self._scales)
        else:
            self._vectors.write(vectors.astype(np.dtype(self._dtype).newbyteorder("<")).tobytes())
        _flush(self._vectors)
        joined: list[tuple[int, int]] = []
        for one in sorted([*self._ranges, (start, start + len(vectors))]):
            if joined and joined[-1][1] == one[0]:
                one = joined.pop()[0], one[1]
            joined.append(one)
        self._ranges = joined
        first, *ahead = joined if joined[0][0] == 0 else [(0, 0), *joined]
        record = {
            "num_rows": first[1],
            "corpus_sha256": self._corpus_sha256,
            "probe": [float(value) for value in self._encoder.probe],
            **({"ahead": ahead} if ahead else {}),
        }
        write_json(self._folder / _PROGRESS, record, indent=None, is_synced=True)

    def __enter__(self) -> _VectorLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._vectors.close()
        if self._scales is not None:
            self._scales.close()
        if kind is None:
            self._finish()

    def _finish(self) -> None:
        record = {**self._encoder.describe(), "probe": [float(value) for value in self._encoder.probe]}
        write_json(self._folder / ENCODER, record, indent=None, is_synced=True)
        (self._folder / _PROGRESS).unlink(missing_ok=True)


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


# ---- reading ---------------------------------------------------------------------------------------------------------


def search_devices(device: str | None) -> list[str]:
    """Where vectors go: every GPU for `cuda` or nothing named, else the one device."""
    torch = torch_or_none() if device in (None, "cpu") else require("torch", "dense")
    if torch is None:
        return ["cpu"]
    if device in (None, "cuda") and torch.cuda.is_available():
        return [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    if device is not None and device.startswith("cuda") and not torch.cuda.is_available():
        raise UsageError(f"the device '{device}' was asked for, and torch sees no GPU here. Use --device cpu")
    return [device or "cpu"]


class Passages(Protocol):
    """Passages by row."""

    def __len__(self) -> int: ...

    def get_many(self, rows: Iterable[int]) -> list[Passage]: ...


class VectorRetriever(BlockingRetriever):
    """Passages, their vectors and the encoder of both, put together. `DenseRetriever` opens an index folder as one."""

    name = KIND

    def __init__(
        self, passages: Passages, searcher: VectorSearcher, encoder: TextEncoder, description: dict[str, Any]
    ) -> None:
        super().__init__(encoder.num_calls)
        self.passages, self.searcher, self.encoder = passages, searcher, encoder
        self._description = description

    def search_blocking(self, queries: Sequence[str], k: int) -> list[Result]:
        results: list[Result] = [SearchError("the query is empty") for _ in queries]
        asked = [place for place, query in enumerate(queries) if query.strip()]
        if not asked or k < 1:
            return results
        vectors = self.encoder.encode_queries([queries[place] for place in asked])
        scores, rows = self.searcher.search(vectors, min(k, len(self.passages)))
        for place, vector, its_scores, its_rows in zip(asked, vectors, scores, rows, strict=True):
            if not vector.any():
                results[place] = SearchError(f"the encoder '{self.encoder.name}' has no vector for this query")
                continue
            found = its_rows >= 0  # an approximate index may find fewer
            passages = self.passages.get_many(its_rows[found].tolist())
            results[place] = [
                Hit.of(passage, float(score), rank)
                for rank, (passage, score) in enumerate(zip(passages, its_scores[found], strict=True), start=1)
            ]
        return results

    def describe(self) -> dict[str, Any]:
        return dict(self._description)


class DenseRetriever(VectorRetriever):
    """An index folder built by `build_dense`.

    `index`: `exact` compares with every vector, by torch on `device` (all GPUs if there are any), or by numpy where torch is
    not installed; `flat`, `ivf` and `hnsw` are faiss on the CPU, built on first use and kept in the folder. None: the faiss
    index that is kept there, else exact.
    """

    def __init__(
        self,
        folder: PathLike,
        *,
        device: str | None = None,
        index: SearchKind | None = None,
        encoder: str | TextEncoder | None = None,
        nprobe: int | None = None,
        verify: bool = False,
    ) -> None:
        if index is not None and index not in SEARCH_KINDS:
            raise UsageError(
                f"unknown index '{index}'; known are {', '.join(SEARCH_KINDS)}.{nearest(index, SEARCH_KINDS)}"
            )
        manifest = open_manifest(folder, KIND, verify=verify)
        kind = index or kept_kind(folder) or "exact"
        passages = PassageStore(folder)
        vectors, scales = open_vectors(folder, manifest)
        searcher: VectorSearcher
        if kind == "exact":
            refuse_nprobe(nprobe)
            searcher = ExactSearcher(vectors, scales, devices=search_devices(device))
        else:
            searcher = open_faiss(folder, kind, nprobe=nprobe)
        super().__init__(
            passages,
            searcher,
            known_encoder(_read_encoder(Path(folder)), encoder, device, f"the index '{folder}'"),
            {**manifest.describe(), "index": kind, **({} if nprobe is None else {"nprobe": nprobe})},
        )
        self.manifest = manifest
        self._chosen, self._vectors = Selection(passages), (vectors, scales)

    def where(self, fields: Mapping[str, Any]) -> DenseRetriever:
        """Compares with every chosen vector, also where a faiss index is kept: that may find fewer than there are."""
        other = copy.copy(self)
        other._chosen = self._chosen.where(fields)
        if (rows := other._chosen.rows) is not None:
            exact = self.searcher.exact if isinstance(self.searcher, ChosenRows) else self.searcher
            other.searcher = ChosenRows(
                exact if isinstance(exact, ExactSearcher) else ExactSearcher(*self._vectors), rows
            )
        return other

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), **self._chosen.describe()}


def _read_encoder(folder: Path) -> dict[str, Any]:
    try:
        record = json.loads((folder / ENCODER).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise IndexDamagedError(f"{folder / ENCODER} cannot be read ({error}); build the index again") from error
    return record if isinstance(record, dict) else {}


__all__ = [
    "DenseRetriever",
    "Passages",
    "VectorRetriever",
    "build_dense",
    "open_vectors",
    "search_devices",
]

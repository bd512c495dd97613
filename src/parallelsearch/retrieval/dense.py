"""Dense retrieval: a corpus encoded once into memory-mapped vectors, and a retriever over them.

A build writes the passages first (minutes), so that a bad line is found and the total is known before the hours of encoding
begin. Then it encodes block by block; each block is on the disk before it is counted, so a build that was killed goes on
after its last whole block. An index knows its encoder by a probe vector, and refuses another.
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

from parallelsearch.errors import IndexDamagedError, SearchError, UsageError, nearest, require
from parallelsearch.files import PathLike, write_json
from parallelsearch.retrieval.base import BlockingRetriever, Hit, Passage, Result
from parallelsearch.retrieval.bm25 import BuildReport, OnProgress
from parallelsearch.retrieval.corpus import DEFAULT_CHUNK_OVERLAP, CorpusReport, Source, passages_of
from parallelsearch.retrieval.encoder import MAX_TOKENS, Encoder, Prefixes, Vectors, passage_text, same_encoder
from parallelsearch.retrieval.faiss_index import kept_kind, open_faiss, refuse_nprobe
from parallelsearch.retrieval.narrowing import Selection
from parallelsearch.retrieval.store import IndexBuilder, PassageStore, PassageWriter, open_manifest
from parallelsearch.retrieval.vector_files import KIND, SCALES, VECTORS, open_vectors
from parallelsearch.retrieval.vectors import ChosenRows, ExactSearcher, VectorSearcher, check_dtype, quantize

ENCODER = "encoder.json"
_PROGRESS = "progress.json"  # while building: how many rows are on the disk, of which corpus
# One block is encoded, written and counted as a whole: the most that a kill can cost.
BATCHES_PER_BLOCK = 8

SearchKind = Literal["exact", "flat", "ivf", "hnsw"]
SEARCH_KINDS = ("exact", "flat", "ivf", "hnsw")


# ---- building --------------------------------------------------------------------------------------------------------


def build_dense(
    source: Source,
    out: PathLike,
    encoder: str | Encoder,
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
    where it was.

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
    if not isinstance(encoder, Encoder):
        encoder = Encoder(encoder, device=device, batch_size=batch_size, max_tokens=max_tokens)
    tell = on_progress or (lambda done, total: None)
    settings = {"encoder": encoder.describe(), "dtype": dtype}
    with IndexBuilder(out, KIND, overwrite=overwrite, resume_key=settings) as build:
        with PassageWriter(build.folder) as writer:
            for passage in report.count(passages):
                writer.append(passage)
                if writer.num_passages % 1000 == 0:
                    tell(writer.num_passages, None)
        if writer.num_passages:
            with _VectorLog(build.folder, dtype, encoder, writer.corpus_sha256) as log:
                _encode_rest(PassageStore(build.folder), encoder, log, BATCHES_PER_BLOCK * batch_size, tell)
        manifest = build.finish(
            corpus_sha256=writer.corpus_sha256,
            num_passages=writer.num_passages,
            settings=settings,
            metadata_sha256=writer.metadata_sha256,
        )
    return BuildReport(
        manifest.num_passages,
        report.num_skipped,
        tuple(report.problems),
        time.monotonic() - start,
        manifest.num_bytes,
        report.mean_words,
        dict(report.reasons),
    )


def _encode_rest(store: PassageStore, encoder: Encoder, log: _VectorLog, block: int, tell: OnProgress) -> None:
    tell(log.num_rows, len(store))
    while log.num_rows < len(store):
        start = log.num_rows
        texts = [passage_text(passage) for passage in store[start : start + block]]
        log.append(encoder.encode_passages(texts))
        tell(log.num_rows, len(store))


class _VectorLog:
    """Vectors on their way to the disk. Rows beyond the count in `progress.json` are of no worth and are cut off."""

    def __init__(self, folder: Path, dtype: str, encoder: Encoder, corpus_sha256: str) -> None:
        self._folder, self._dtype, self._encoder = folder, dtype, encoder
        self._corpus_sha256 = corpus_sha256
        self.num_rows = self._recorded_rows()
        self._vectors = self._open(VECTORS, encoder.dim * np.dtype(dtype).itemsize)
        self._scales = self._open(SCALES, 4) if dtype == "int8" else None

    def _recorded_rows(self) -> int:
        """Rows a killed build left behind, if they belong to this corpus and this encoder."""
        try:
            record = json.loads((self._folder / _PROGRESS).read_text("utf-8"))
            is_same = record["corpus_sha256"] == self._corpus_sha256 and same_encoder(
                record["probe"], self._encoder.probe
            )
            return int(record["num_rows"]) if is_same else 0
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    def _open(self, name: str, row_bytes: int) -> BinaryIO:
        path = self._folder / name
        size = path.stat().st_size if path.exists() else 0
        if size < self.num_rows * row_bytes:  # never from a kill; a disk that lost what it had acknowledged
            self.num_rows = 0
        file = path.open("r+b" if path.exists() else "w+b")
        file.truncate(self.num_rows * row_bytes)
        file.seek(0, os.SEEK_END)
        return file

    def append(self, vectors: Vectors) -> None:
        if self._scales is not None:
            codes, scales = quantize(vectors)
            self._vectors.write(codes.tobytes())
            self._scales.write(scales.astype("<f4").tobytes())
            _flush(self._scales)
        else:
            self._vectors.write(vectors.astype(np.dtype(self._dtype).newbyteorder("<")).tobytes())
        _flush(self._vectors)
        self.num_rows += len(vectors)
        record = {
            "num_rows": self.num_rows,
            "corpus_sha256": self._corpus_sha256,
            "probe": [float(value) for value in self._encoder.probe],
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
    torch = require("torch", "dense")
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
        self, passages: Passages, searcher: VectorSearcher, encoder: Encoder, description: dict[str, Any]
    ) -> None:
        super().__init__()
        self.passages, self.searcher, self.encoder = passages, searcher, encoder
        self._description = description

    def search_blocking(self, queries: Sequence[str], k: int) -> list[Result]:
        results: list[Result] = [SearchError("the query is empty") for _ in queries]
        asked = [place for place, query in enumerate(queries) if query.strip()]
        if not asked or k < 1:
            return results
        vectors = self.encoder.encode_queries([queries[place] for place in asked])
        scores, rows = self.searcher.search(vectors, min(k, len(self.passages)))
        for place, its_scores, its_rows in zip(asked, scores, rows, strict=True):
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

    `index`: `exact` compares with every vector by torch, on `device` (all GPUs if there are any); `flat`, `ivf` and `hnsw`
    are faiss on the CPU, built on first use and kept in the folder. None: the faiss index that is kept there, else exact.
    """

    def __init__(
        self,
        folder: PathLike,
        *,
        device: str | None = None,
        index: SearchKind | None = None,
        encoder: str | Encoder | None = None,
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


def known_encoder(record: dict[str, Any], given: str | Encoder | None, device: str | None, owner: str) -> Encoder:
    """The encoder that made the vectors of `owner`, or the one given if it is the same; another is refused."""
    try:
        name, dim, probe = str(record["name"]), int(record["dim"]), record["probe"]
        max_tokens, prefixes = int(record["max_tokens"]), Prefixes(record["query_prefix"], record["passage_prefix"])
    except (KeyError, TypeError, ValueError) as error:
        raise IndexDamagedError(f"{owner} does not say what its encoder was ({error}); build it again") from error
    encoder = (
        given
        if isinstance(given, Encoder)
        else Encoder(given or name, device=device, max_tokens=max_tokens, prefixes=prefixes)
    )
    what = f"{owner} was built with the encoder '{name}' ({dim} dimensions)"
    if encoder.dim != dim:
        raise IndexDamagedError(
            f"{what}, and '{encoder.name}' has {encoder.dim}. Use '{name}', or build an index with yours"
        )
    if encoder.prefixes != prefixes:
        raise IndexDamagedError(f"{what} and {prefixes}, and the one given has {encoder.prefixes}")
    if not same_encoder(probe, encoder.probe):
        raise IndexDamagedError(
            f"{what}, and '{encoder.name}' gives other vectors for the same text: other weights or another pooling. "
            f"Use '{name}', or build an index with yours"
        )
    return encoder


__all__ = [
    "DenseRetriever",
    "Passages",
    "VectorRetriever",
    "build_dense",
    "known_encoder",
    "open_vectors",
    "search_devices",
]

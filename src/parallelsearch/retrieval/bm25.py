"""Keyword search (BM25) over an index folder, on bm25s, memory-mapped.

Title and text are indexed together, as the terms of `terms`. The build streams: texts go to the passage store, counts to
sorted runs on disk, and the runs are merged into the files bm25s reads, so memory holds the vocabulary and one run, not
the corpus. Scoring is bm25s's; the choice of the best `k` is made here, because equal scores must come in the order of the
corpus, every time.
"""

from __future__ import annotations

import copy
import json
import os
import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallelsearch.errors import DataError, IndexDamagedError, UsageError
from parallelsearch.retrieval.base import BlockingRetriever, Hit, Passage, Result
from parallelsearch.retrieval.corpus import DEFAULT_CHUNK_OVERLAP, CorpusReport, Source, name_of, passages_of, paths_of
from parallelsearch.retrieval.narrowing import Selection
from parallelsearch.retrieval.store import (
    IndexBuilder,
    Manifest,
    PassageStore,
    PassageWriter,
    corpus_sha256,
    metadata_sha256,
    open_manifest,
)
from parallelsearch.retrieval.terms import Analyzer, split_words

KIND = "bm25"
DEFAULT_K1, DEFAULT_B = 1.2, 0.75
MAX_TITLE_WEIGHT = 20

OnProgress = Callable[[int, int | None], None]
"""Called with the number of passages so far and, where it is known, of all."""

# ---- counting terms --------------------------------------------------------------------------------------------------

Ints = NDArray[np.int64]
_WORD_CACHE = 2_000_000


class _Counts:
    """Term counts of a corpus as sorted runs of `(term, row) -> count`; on disk if there is a folder, else in memory."""

    RUN_TERMS = 8_000_000  # about 300 MB while a run is being sorted

    def __init__(self, analyzer: Analyzer, folder: Path | None = None, title_weight: int = 1) -> None:
        self.vocabulary: dict[str, int] = {}
        self.lengths = array("i")
        self._analyzer, self._folder, self._title_weight = analyzer, folder, title_weight
        self._words: dict[str, int] = {}  # word -> its term's number; saves stemming a word twice
        self._terms = array("i")
        self._first_row = 0
        self._runs: list[tuple[Ints, NDArray[np.uint16]] | Path] = []

    def add(self, passage: Passage) -> None:
        known = self._words
        before = len(self._terms)
        for text, weight in ((passage.title, self._title_weight), (passage.text, 1)):
            words = split_words(text) * weight
            try:
                self._terms.extend([known[word] for word in words])
            except KeyError:
                self._terms.extend([self._number(word) for word in words])
        self.lengths.append(len(self._terms) - before)
        if len(self._terms) >= self.RUN_TERMS:
            self._end_run()

    def _number(self, word: str) -> int:
        number = self._words.get(word)
        if number is None:
            if len(self._words) >= _WORD_CACHE:
                self._words.clear()
            number = self.vocabulary.setdefault(self._analyzer.term(word), len(self.vocabulary))
            self._words[word] = number
        return number

    def _end_run(self) -> None:
        if not self._terms:
            return
        lengths = np.frombuffer(self.lengths, dtype=np.int32)[self._first_row :]
        rows = np.repeat(np.arange(self._first_row, len(self.lengths), dtype=np.int64), lengths)
        keys = np.frombuffer(self._terms, dtype=np.int32).astype(np.int64) << 32
        keys |= rows
        keys, counts = np.unique(keys, return_counts=True)
        run = keys, np.minimum(counts, 65_535).astype(np.uint16)
        if self._folder is None:
            self._runs.append(run)
        else:
            path = self._folder / f"run-{len(self._runs)}"
            # np.save says nothing where the disk takes only the first half of a small array.
            for part, file in zip(run, _files_of(path), strict=True):
                file.write_bytes(part.data)
            self._runs.append(path)
        self._terms = array("i")
        self._first_row = len(self.lengths)

    def _read_runs(self) -> Iterable[tuple[Ints, Ints, NDArray[np.float32]]]:
        """Each run as `(terms, rows, counts)`, by term and then by row."""
        for run in self._runs:
            if isinstance(run, Path):
                files = _files_of(run)
                keys, counts = np.fromfile(files[0], dtype=np.int64), np.fromfile(files[1], dtype=np.uint16)
            else:
                keys, counts = run
            yield keys >> 32, keys & 0xFFFFFFFF, counts.astype(np.float32)

    def weigh(self, k1: float, b: float, new: Callable[[str, int, type], NDArray[Any]]) -> None:
        """Fill `data`, `indices` and `indptr`, bm25s's columns of scores, made by `new(name, size, type)`.

        Every run is sorted and later runs have later rows, so a run's part of a column goes right behind the parts of
        the runs before it: no sort of the whole is needed. The formula is bm25s's "lucene".
        """
        self._end_run()
        num_passages, num_terms = len(self.lengths), len(self.vocabulary)
        document_counts = np.zeros(num_terms, dtype=np.int64)
        for terms, _, _ in self._read_runs():
            document_counts += np.bincount(terms, minlength=num_terms)
        indptr = new("indptr", num_terms + 1, np.int64)
        indptr[0] = 0
        np.cumsum(document_counts, out=indptr[1:])
        inverse = np.log1p((num_passages - document_counts + 0.5) / (document_counts + 0.5)).astype(np.float32)
        lengths = np.frombuffer(self.lengths, dtype=np.int32)
        mean = float(lengths.mean()) or 1.0
        norm = (k1 * ((1 - b) + b * lengths / mean)).astype(np.float32)
        data, indices = new("data", int(indptr[-1]), np.float32), new("indices", int(indptr[-1]), np.int32)
        heads = np.array(indptr[:-1])
        for terms, rows, counts in self._read_runs():
            sizes = np.bincount(terms, minlength=num_terms)
            starts = np.cumsum(sizes) - sizes
            places = np.arange(len(terms), dtype=np.int64) + (heads - starts)[terms]
            data[places] = inverse[terms] * (counts / (norm[rows] + counts))
            indices[places] = rows
            heads += sizes

    def clear(self) -> None:
        """Remove the runs from the disk."""
        for run in self._runs:
            if isinstance(run, Path):
                for file in _files_of(run):
                    file.unlink()
        self._runs = []


def _files_of(run: Path) -> tuple[Path, Path]:
    return run.with_suffix(".keys"), run.with_suffix(".counts")


# ---- building --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BuildReport:
    """What a build did. `problems` are the first twenty of the records that were skipped."""

    num_passages: int
    num_skipped: int
    problems: tuple[str, ...]
    seconds: float
    bytes: int
    mean_words: float = 0.0
    reasons: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, read: CorpusReport, num_passages: int, seconds: float, num_bytes: int) -> BuildReport:
        problems, reasons = tuple(read.problems), dict(read.reasons)
        return cls(num_passages, read.num_skipped, problems, seconds, num_bytes, read.mean_words, reasons)


def build_bm25(
    source: Source,
    out: str | os.PathLike[str],
    *,
    stemmer: str | None = "english",
    k1: float = DEFAULT_K1,
    b: float = DEFAULT_B,
    title_weight: int = 1,
    chunk_words: int | None = None,
    chunk_overlap: int = DEFAULT_CHUNK_OVERLAP,
    skip_bad: bool = False,
    overwrite: bool = False,
    on_progress: OnProgress | None = None,
) -> BuildReport:
    """Build a BM25 index folder from corpora (see `read_corpus`) or from passages. `out` appears only when it is whole.
    `title_weight`: how often the words of a title count.

    A bad record raises `DataError`, or is counted and left out with `skip_bad`.
    """
    _check_parameters(k1, b, title_weight)
    start = time.monotonic()
    analyzer = Analyzer(stemmer)
    report = CorpusReport()
    passages = passages_of(
        source, chunk_words=chunk_words, chunk_overlap=chunk_overlap, on_bad=report.on_bad(source, skip_bad)
    )
    total = len(source) if isinstance(source, Sequence) and paths_of(source) is None else None
    with IndexBuilder(out, KIND, overwrite=overwrite) as build:
        counts = _Counts(analyzer, build.folder, title_weight)
        with PassageWriter(build.folder) as writer:
            for passage in report.count(passages):
                writer.append(passage)
                counts.add(passage)
                if on_progress is not None and writer.num_passages % 1000 == 0:
                    on_progress(writer.num_passages, total)
        if writer.num_passages == 0:
            raise DataError(name_of(source), None, _nothing(report))

        def new(name: str, size: int, kind: type) -> NDArray[Any]:
            path = build.folder / f"{name}.csc.index.npy"
            if size == 0:  # an empty file cannot be mapped: a corpus without a single word
                np.save(path, np.zeros(0, dtype=kind))
                return np.zeros(0, dtype=kind)
            return _mapped(path, size, kind)

        counts.weigh(k1, b, new)
        counts.clear()
        (build.folder / _VOCABULARY).write_text(json.dumps(counts.vocabulary, ensure_ascii=False), encoding="utf-8")
        (build.folder / "params.index.json").write_text(
            json.dumps(_parameters(k1, b, writer.num_passages)), encoding="utf-8"
        )
        manifest = build.finish(
            corpus_sha256=writer.corpus_sha256,
            num_passages=writer.num_passages,
            settings=_settings(analyzer, k1, b, title_weight, len(counts.vocabulary)),
            metadata_sha256=writer.metadata_sha256,
        )
    if on_progress is not None:
        on_progress(manifest.num_passages, manifest.num_passages)
    return BuildReport.of(report, manifest.num_passages, time.monotonic() - start, manifest.num_bytes)


def _mapped(path: Path, size: int, kind: type) -> NDArray[Any]:
    """An array of zeros in a file. Its room on the disk is taken at once: where there is none left, who writes into a map is
    killed, and with it the server that indexes beside its answers."""
    mapped: NDArray[Any] = np.lib.format.open_memmap(path, mode="w+", dtype=kind, shape=(size,))
    if hasattr(os, "posix_fallocate"):  # macOS has none
        with open(path, "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return mapped


_VOCABULARY = "vocab.index.json"


def _check_parameters(k1: float, b: float, title_weight: int) -> None:
    if not (0 <= k1 < float("inf") and 0 <= b <= 1):
        raise UsageError(f"k1 must be at least 0 and b between 0 and 1; found k1={k1}, b={b}")
    if not 1 <= title_weight <= MAX_TITLE_WEIGHT:
        raise UsageError(f"the title weight is a whole number from 1 to {MAX_TITLE_WEIGHT}, not {title_weight}")


def _settings(analyzer: Analyzer, k1: float, b: float, title_weight: int, num_terms: int) -> dict[str, Any]:
    """What tells one index of a corpus from another. A weight of 1 is not named: there was no other for long."""
    weight = {} if title_weight == 1 else {"title_weight": title_weight}
    return {"analyzer": analyzer.settings, "k1": k1, "b": b, **weight, "num_terms": num_terms}


def _nothing(report: CorpusReport) -> str:
    first = f" The first: {report.problems[0]}" if report.problems else ""
    return f"holds no passages ({report.num_skipped} bad records were skipped).{first}"


def _parameters(k1: float, b: float, num_passages: int) -> dict[str, Any]:
    """What bm25s writes beside its arrays, so that `bm25s.BM25.load` opens the folder too."""
    return {
        "k1": k1,
        "b": b,
        "delta": 0.5,
        "method": "lucene",
        "idf_method": "lucene",
        "dtype": "float32",
        "int_dtype": "int32",
        "num_docs": num_passages,
        "version": _bm25s().__version__,
        "backend": "numpy",
    }


def _bm25s() -> Any:
    # bm25s imports JAX where it is installed, and JAX takes most of a GPU's memory unless told to stay off it.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import bm25s

    return bm25s


# ---- searching -------------------------------------------------------------------------------------------------------


class BM25Retriever(BlockingRetriever):
    """Searches an index built by `build_bm25`. Opening maps the files; only the vocabulary is read."""

    name = KIND
    max_batch = 256

    def __init__(self, folder: str | os.PathLike[str], *, num_threads: int = 1, verify: bool = False) -> None:
        manifest = open_manifest(folder, KIND, verify=verify)
        analyzer = Analyzer.of(manifest.settings.get("analyzer"))
        store = PassageStore.open(folder)
        try:
            vocabulary = json.loads((Path(folder) / _VOCABULARY).read_text(encoding="utf-8"))
            scorer = _bm25s().BM25.load(folder, mmap=True, load_vocab=False)
            # A plain view of each map: slicing a memmap costs several times as much, and a query slices twice a term.
            scorer.scores |= {name: np.asarray(scorer.scores[name]) for name in ("data", "indices", "indptr")}
            num_terms = len(scorer.scores["indptr"]) - 1
            last = int(scorer.scores["indptr"][-1])
            is_whole = len(store) == scorer.scores["num_docs"] == manifest.num_passages
            is_whole &= num_terms == len(vocabulary)
            is_whole &= last == len(scorer.scores["data"]) == len(scorer.scores["indices"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise IndexDamagedError(f"the index '{folder}' cannot be read ({error}). Build it again") from error
        if not is_whole:
            raise IndexDamagedError(f"the index '{folder}' is damaged: its files do not fit each other. Build it again")
        self._set(manifest.describe(), analyzer, store, vocabulary, scorer)
        super().__init__(num_threads)

    @classmethod
    def from_passages(
        cls,
        passages: Iterable[Passage],
        *,
        stemmer: str | None = "english",
        k1: float = DEFAULT_K1,
        b: float = DEFAULT_B,
        title_weight: int = 1,
        num_threads: int = 1,
    ) -> BM25Retriever:
        """The same over a few thousand passages in memory, without a folder."""
        _check_parameters(k1, b, title_weight)
        held = list(passages_of(passages))
        if not held:
            raise DataError("passages", None, "there are no passages to index")
        analyzer = Analyzer(stemmer)
        counts = _Counts(analyzer, title_weight=title_weight)
        for passage in held:
            counts.add(passage)
        arrays: dict[str, Any] = {"num_docs": len(held)}

        def new(name: str, size: int, kind: type) -> NDArray[Any]:
            column: NDArray[Any] = np.zeros(size, dtype=kind)
            arrays[name] = column
            return column

        counts.weigh(k1, b, new)
        scorer = _bm25s().BM25(k1=k1, b=b, method="lucene")
        scorer.scores, scorer.nonoccurrence_array = arrays, None
        settings = _settings(analyzer, k1, b, title_weight, len(counts.vocabulary))
        self = cls.__new__(cls)
        about = Manifest(KIND, corpus_sha256(held), len(held), settings, metadata_sha256=metadata_sha256(held))
        self._set(about.describe(), analyzer, held, counts.vocabulary, scorer)
        BlockingRetriever.__init__(self, num_threads)
        return self

    def _set(
        self,
        about: dict[str, Any],
        analyzer: Analyzer,
        store: Sequence[Passage],
        vocabulary: dict[str, int],
        scorer: Any,
    ) -> None:
        self._about, self._analyzer, self._store = about, analyzer, store
        self._vocabulary, self._scorer = vocabulary, scorer
        self._chosen = Selection(store)

    def __len__(self) -> int:
        return len(self._store if self._chosen.rows is None else self._chosen.rows)

    def where(self, fields: Mapping[str, Any]) -> BM25Retriever:
        other = copy.copy(self)
        other._chosen = self._chosen.where(fields)
        return other

    def describe(self) -> dict[str, Any]:
        return {**self._about, **self._chosen.describe()}

    def search_blocking(self, queries: Sequence[str], k: int) -> list[Result]:
        return [self._search(query, k) for query in queries]

    def _search(self, query: str, k: int) -> Result:
        known = self._vocabulary
        terms = sorted(known[term] for term in self._analyzer.query_terms(query) if term in known)
        if not terms or k < 1:
            return []
        scores = self._scorer.get_scores_from_ids(terms)
        chosen = self._chosen.rows
        rows = _best(scores, k) if chosen is None else chosen[_best(scores[chosen], k)]
        return [Hit.of(self._store[int(row)], float(scores[row]), rank) for rank, row in enumerate(rows, 1)]


def _best(scores: NDArray[np.float32], k: int, num_groups: int = 256) -> Ints:
    """The rows of the `k` highest scores above zero, the earlier row first where scores are equal.

    bm25s takes them with numpy's argpartition, whose AVX2 and AVX-512 forms are slow where most values are equal, and
    most scores are zero: 48 ms for 300,000 (numpy 2.4, AVX-512), 1.3 ms without these instructions. So neighbouring rows
    are put into groups first: `k` groups reach the k-th best group's highest score, so at least `k` rows do, and only
    the rows that reach it, in these groups, are sorted: 0.05 ms.
    """
    width = len(scores) // num_groups
    floor = np.float32(0)
    if k < num_groups and width:
        groups = scores[: num_groups * width].reshape(num_groups, width)
        peaks = groups.max(axis=1)
        floor = np.partition(peaks, num_groups - k)[num_groups - k]
    if floor > 0:
        found = np.flatnonzero(peaks >= floor)
        group, place = np.divmod(np.flatnonzero(groups[found] >= floor), width)
        behind = np.flatnonzero(scores[num_groups * width :] >= floor)
        rows = np.concatenate([found[group] * width + place, behind + num_groups * width])
    else:
        rows = np.flatnonzero(scores > 0)
    order: Ints = np.argsort(-scores[rows], kind="stable")[:k]
    return rows[order]

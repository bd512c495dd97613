"""Search-R1's ready-made files: a faiss index (`e5_Flat.index`) and its corpus (`wiki-18.jsonl`, also compressed).

Row i of the index is line i of the corpus. Neither file is read into memory: the corpus is mapped, with the offsets of
its lines in a file beside it, and a flat index is mapped too. On GPUs a flat index is searched by torch, as float16 and
spread over them (21 million x 768 need 32 GB in all, and no faiss); on the CPU by faiss, or as exact search where faiss is
not installed. A few passages are encoded and
compared with their rows, so that a wrong encoder or corpus is refused at once instead of found out by bad answers.
"""

from __future__ import annotations

import importlib.util
import json
import mmap
import shutil
import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from parallelsearch.errors import DataError, IndexDamagedError, ParallelSearchError, UsageError
from parallelsearch.files import PathLike, open_bytes, whole_file
from parallelsearch.retrieval.base import Passage
from parallelsearch.retrieval.corpus import passage_of
from parallelsearch.retrieval.dense import VectorRetriever, search_devices
from parallelsearch.retrieval.encoders import open_encoder
from parallelsearch.retrieval.faiss_index import FaissSearcher, read_faiss, refuse_nprobe
from parallelsearch.retrieval.text_encoder import TextEncoder, Vectors
from parallelsearch.retrieval.vectors import ExactSearcher, VectorSearcher

_BLOCK_BYTES = 1 << 26
_CHECKED_ROWS = 8
# The same text gives more than 0.99 even in half precision; two unrelated texts up to 0.85 with E5.
_MIN_COSINE = 0.95
# A flat inner-product index on disk: fourcc, dim, number, two unused numbers, trained, metric (0), number of floats.
_FLAT_HEADER = struct.Struct("<4siqqq?iQ")


def open_readymade(
    index_path: PathLike,
    corpus_path: PathLike,
    encoder: str | TextEncoder,
    *,
    device: str | None = None,
    nprobe: int | None = None,
    is_checked: bool = True,
) -> VectorRetriever:
    """A retriever over a faiss index and the JSON Lines corpus it was made from, by the encoder it was made with."""
    index_path = Path(index_path)
    devices = search_devices(device)
    passages = LinePassages(corpus_path)
    encoder = open_encoder(encoder, device=device)
    flat = map_flat(index_path)
    searcher: VectorSearcher
    if flat is not None and (devices[0] != "cpu" or importlib.util.find_spec("faiss") is None):
        refuse_nprobe(nprobe)
        num_rows, dim = flat.shape
        searcher = ExactSearcher(flat, devices=devices, gpu_dtype="float16")
    else:
        index = read_faiss(index_path)
        num_rows, dim = int(index.ntotal), int(index.d)
        if index.metric_type != 0:
            raise UsageError(f"'{index_path}' measures distance, and the inner product is needed")
        searcher = FaissSearcher(index, nprobe)
    if dim != encoder.dim:
        raise IndexDamagedError(
            f"'{index_path}' has vectors of {dim} dimensions, and the encoder '{encoder.name}' gives {encoder.dim}. "
            "Name the encoder the index was made with (for e5_Flat.index: intfloat/e5-base-v2)"
        )
    if num_rows != len(passages):
        raise IndexDamagedError(
            f"'{index_path}' has {num_rows} vectors and '{corpus_path}' has {len(passages)} passages: "
            "the one was not made from the other"
        )
    if is_checked and flat is not None:
        _check_rows(flat, passages, encoder, index_path)
    description = {
        "kind": "dense",
        "num_passages": num_rows,
        "settings": {
            "encoder": encoder.describe(),
            "index": index_path.name,
            "corpus": Path(corpus_path).name,
            **({} if nprobe is None else {"nprobe": nprobe}),
        },
    }
    return VectorRetriever(passages, searcher, encoder, description)


def map_flat(path: Path) -> npt.NDArray[np.float32] | None:
    """The vectors of a flat inner-product index, mapped; nothing if the file is of another kind."""
    try:
        with path.open("rb") as file:
            head = file.read(_FLAT_HEADER.size)
        if len(head) < _FLAT_HEADER.size:
            raise IndexDamagedError(f"'{path}' has {len(head)} bytes: it is not a faiss index")
        fourcc, dim, num_rows, _, _, _, metric, num_floats = _FLAT_HEADER.unpack(head)
        if fourcc != b"IxFI" or metric != 0 or num_floats != dim * num_rows:
            return None
        size, wanted = path.stat().st_size, _FLAT_HEADER.size + 4 * num_floats
        if size != wanted:
            raise IndexDamagedError(
                f"'{path}' has {size} bytes and should have {wanted}: join all its parts (cat part_* > {path.name})"
            )
        return np.memmap(path, dtype="<f4", mode="r", offset=_FLAT_HEADER.size, shape=(num_rows, dim))
    except OSError as error:
        raise UsageError(f"cannot read the index '{path}': {error.strerror or error}") from error


def _check_rows(flat: Vectors, passages: LinePassages, encoder: TextEncoder, index_path: Path) -> None:
    rows = np.unique(np.linspace(0, len(passages) - 1, _CHECKED_ROWS).astype(int))
    # Search-R1 encodes a corpus line's `contents` as it is.
    texts = [f'"{passage.title}"\n{passage.text}' for passage in passages.get_many(rows)]
    stored = np.array(flat[rows])
    stored /= np.maximum(np.linalg.norm(stored, axis=1, keepdims=True), 1e-12)
    cosine = float(np.median((encoder.encode_passages(texts) * stored).sum(axis=1)))
    if cosine < _MIN_COSINE:
        raise IndexDamagedError(
            f"the vectors in '{index_path}' are not what the encoder '{encoder.name}' gives for the passages of the corpus "
            f"(cosine {cosine:.2f}): another encoder, or another corpus. Use the ones the index was made with"
        )


class LinePassages:
    """Passages of a JSON Lines file by the number of the line (empty lines not counted), read when asked for.

    The offsets of the lines are found once and kept in `FILE.offsets.npy`. A compressed corpus is unpacked beside itself
    first: there is no way into the middle of a compressed file.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = _unpacked(Path(path))
        try:
            with self.path.open("rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise UsageError(f"there is no corpus '{self.path}' (looked in {Path.cwd()})") from None
        except ValueError:
            raise DataError(str(self.path), None, "the corpus is empty") from None
        self._spans = self._load_spans()

    def __len__(self) -> int:
        return len(self._spans)

    def get_many(self, rows: Iterable[int]) -> list[Passage]:
        return [self._get(int(row)) for row in rows]

    def _get(self, row: int) -> Passage:
        start, end = self._spans[row]
        try:
            record = json.loads(self._bytes[start:end])
        except ValueError as error:
            raise DataError(str(self.path), row + 1, f"is not JSON ({error})") from None
        return passage_of(record, str(self.path), row + 1)

    def _load_spans(self) -> npt.NDArray[np.int64]:
        kept = self.path.with_name(self.path.name + ".offsets.npy")
        try:
            if kept.stat().st_mtime_ns >= self.path.stat().st_mtime_ns:
                spans: npt.NDArray[np.int64] = np.load(kept, mmap_mode="r")
                if spans.ndim == 2 and len(spans) and len(self._bytes) - 2 <= spans[-1, 1] <= len(self._bytes):
                    return spans
        except (OSError, ValueError):
            pass
        spans = _line_spans(self._bytes)
        # A read-only folder: found again the next time.
        with suppress(OSError), whole_file(kept) as draft, draft.open("wb") as file:
            np.save(file, spans)
        return spans


def _line_spans(data: mmap.mmap) -> npt.NDArray[np.int64]:
    """Start and end of every line that is not blank."""
    ends: list[npt.NDArray[np.int64]] = []
    for start in range(0, len(data), _BLOCK_BYTES):
        block = np.frombuffer(data[start : start + _BLOCK_BYTES], np.uint8)
        ends.append(np.flatnonzero(block == 10).astype(np.int64) + start)
    stops = np.concatenate(ends)
    if not len(stops) or stops[-1] != len(data) - 1:
        stops = np.append(stops, len(data))
    starts = np.concatenate([[0], stops[:-1] + 1]).astype(np.int64)
    is_text = np.ones(len(stops), bool)
    for number in np.flatnonzero(stops - starts < 8):
        is_text[number] = bool(data[starts[number] : stops[number]].strip())
    return np.stack([starts[is_text], stops[is_text]], axis=1)


def _unpacked(path: Path) -> Path:
    if path.suffix not in (".gz", ".zst"):
        return path
    plain = path.with_suffix("")
    if plain.is_file() and plain.stat().st_mtime_ns >= path.stat().st_mtime_ns:
        return plain
    try:
        with open_bytes(path) as packed, whole_file(plain) as draft, draft.open("wb") as file:
            shutil.copyfileobj(packed, file, _BLOCK_BYTES)
    except (OSError, EOFError) as error:
        raise ParallelSearchError(f"'{path}' could not be unpacked to '{plain}': {error}") from error
    return plain

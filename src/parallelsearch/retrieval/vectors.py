"""Exact nearest neighbours by matrix products in chunks, with a running top-k; on the CPU or spread over GPUs.

Stored vectors may be float32, float16 or int8 with one scale a vector (`value = code * scale`, scale = largest magnitude
/ 127: it needs no second pass over the corpus, so a build can stream). Every chunk becomes float32 before the product, so
the score is exact for what is stored. On the CPU the vectors stay a memory map; on GPUs each holds its share of the rows.
torch does the work where it is installed, numpy on the CPU where it is not: same rows, same order of equal scores.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from parallelsearch.errors import MissingExtraError, UsageError, require
from parallelsearch.retrieval.text_encoder import Vectors

DTYPES = ("float32", "float16", "int8")
Rows = npt.NDArray[np.int64]

# What one chunk may need beside the vectors: its scores, and its rows as float32 if they are stored smaller. On a CPU both
# should stay in its cache: of 305k x 384 on 2 cores, one query over float16 takes 32 ms in chunks of 4,096 rows and 212 ms in
# chunks of 131,072; 64 queries 161 and 446. A GPU gains nothing from small chunks: each costs three kernel starts.
CHUNK_SCORES, CHUNK_FLOATS = 1 << 20, 1 << 21
GPU_CHUNK_SCORES, GPU_CHUNK_FLOATS = 1 << 26, 1 << 26
LOAD_ROWS = 1 << 18
# numpy goes over a chunk several times, so that it has to stay in the cache of one core.
NUMPY_CHUNK_FLOATS = 1 << 19
# Of a float16 with its sign stretched over 32 bits and moved by 13: the sign, five bits of the exponent, ten of the number.
_SIGN_AND_VALUE = np.uint32(0x8FFFE000).view(np.int32)
_EXPONENT_STEP = np.float32(2.0 ** (127 - 15))  # the exponents of float32 begin so much lower

_log = logging.getLogger(__name__)


class VectorSearcher(Protocol):
    """Finds the nearest rows. Rows that do not exist (fewer than k found) are -1."""

    def search(self, queries: Vectors, k: int) -> tuple[Vectors, Rows]: ...


def check_dtype(dtype: str) -> str:
    if dtype not in DTYPES:
        raise UsageError(f"vectors cannot be kept as '{dtype}'; known are {', '.join(DTYPES)}")
    return dtype


def quantize(vectors: Vectors) -> tuple[npt.NDArray[np.int8], Vectors]:
    """int8 codes and one scale a vector."""
    scales = np.maximum(np.abs(vectors).max(axis=1), 1e-12).astype(np.float32) / np.float32(127)
    return np.rint(vectors / scales[:, None]).astype(np.int8), scales


def decode(vectors: npt.NDArray[Any], scales: Vectors | None, rows: slice | npt.NDArray[np.int64]) -> Vectors:
    """Some stored rows as float32."""
    found = np.asarray(vectors[rows], np.float32)
    return found if scales is None else found * scales[rows][:, None]


def torch_or_none() -> ModuleType | None:
    """torch, where it is installed."""
    try:
        return require("torch", "dense")
    except MissingExtraError as error:
        cause = error.__cause__
        if not isinstance(cause, ModuleNotFoundError) or cause.name != "torch":
            _log.warning("vectors are searched by numpy, without torch: %s", error)
        return None


class ExactSearcher:
    """Compares a query with every row. `vectors` is rows x dim; `scales` belongs to int8."""

    def __init__(
        self,
        vectors: npt.NDArray[Any],
        scales: Vectors | None = None,
        *,
        devices: Sequence[str] = ("cpu",),
        chunk_rows: int | None = None,
        gpu_dtype: str | None = None,
    ) -> None:
        """`gpu_dtype`: keep float vectors on a GPU as this instead of as they are stored."""
        if (vectors.dtype == np.int8) != (scales is not None):
            raise UsageError("int8 vectors need their scales, and only they do")
        self.num_rows, self.dim = vectors.shape
        self._torch: Any = torch_or_none() if all(device == "cpu" for device in devices) else require("torch", "dense")
        self._shards: list[_Shard] = []
        if self._torch is None:
            self._rows = _NumpyRows(vectors, scales, chunk_rows)
            return
        bounds = np.linspace(0, self.num_rows, len(devices) + 1).astype(int)
        for device, start, end in zip(devices, bounds[:-1], bounds[1:], strict=True):
            if end > start:
                part = None if scales is None else scales[start:end]
                self._shards.append(
                    _Shard(self._torch, vectors[start:end], part, device, int(start), chunk_rows, gpu_dtype)
                )

    def search(self, queries: Vectors, k: int, chosen: Rows | None = None) -> tuple[Vectors, Rows]:
        """The `k` best rows of each query, best first; equal scores in the order of the rows. `chosen` are the rows that may
        be found, in their order."""
        k = min(k, self.num_rows if chosen is None else len(chosen))
        if k == 0 or len(queries) == 0:
            return np.zeros((len(queries), 0), np.float32), np.zeros((len(queries), 0), np.int64)
        torch = self._torch
        if torch is None:
            return self._rows.top(np.ascontiguousarray(queries, np.float32), k, chosen)
        with torch.inference_mode():
            # Work on a GPU is queued without waiting, so several shards run at the same time.
            found = [
                shard.top(torch.from_numpy(np.ascontiguousarray(queries, np.float32)), k, chosen)
                for shard in self._shards
            ]
            scores = np.concatenate([part.cpu().numpy() for part, _ in found], axis=1)
            rows = np.concatenate([part.cpu().numpy() for _, part in found], axis=1)
        order = np.lexsort((rows, -scores), axis=1)[:, :k]
        return np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1)


class ChosenRows:
    """Exact search over some of the rows."""

    def __init__(self, exact: ExactSearcher, rows: Rows) -> None:
        self.exact, self._rows = exact, rows

    def search(self, queries: Vectors, k: int) -> tuple[Vectors, Rows]:
        return self.exact.search(queries, k, self._rows)


class _Shard:
    """Some of the rows, on one device."""

    def __init__(
        self,
        torch: Any,
        vectors: npt.NDArray[Any],
        scales: Vectors | None,
        device: str,
        first_row: int,
        chunk_rows: int | None,
        gpu_dtype: str | None,
    ) -> None:
        self._torch, self._first_row, self.device = torch, first_row, device
        self._chunk_rows = chunk_rows
        if device == "cpu":
            self._vectors = torch.from_numpy(vectors)
            self._scales = None if scales is None else torch.from_numpy(scales)
            return
        self._scales = None if scales is None else torch.from_numpy(np.array(scales)).to(device)
        kept_as = getattr(torch, gpu_dtype if gpu_dtype and scales is None else vectors.dtype.name)
        self._vectors = torch.empty(vectors.shape, dtype=kept_as, device=device)
        # Piece by piece, through a copy: the main memory never holds the whole, and a ready-made file may be unaligned.
        for start in range(0, len(vectors), LOAD_ROWS):
            rows = slice(start, start + LOAD_ROWS)
            self._vectors[rows].copy_(torch.from_numpy(np.array(vectors[rows])))

    def top(self, queries: Any, k: int, chosen: Rows | None) -> tuple[Any, Any]:
        torch = self._torch
        queries = queries.to(self.device)
        best_scores: list[Any] = [torch.empty((len(queries), 0), device=self.device)]
        best_rows: list[Any] = [torch.empty((len(queries), 0), dtype=torch.int64, device=self.device)]
        own = None
        if chosen is not None:
            first, end = np.searchsorted(chosen, (self._first_row, self._first_row + len(self._vectors)))
            own = torch.from_numpy(chosen[first:end] - self._first_row).to(self.device)
        for start, scores in self._chunks(queries, own):
            top_scores, top_rows = scores.topk(min(k, scores.shape[1]), dim=1)
            top_rows = top_rows + start if own is None else own[top_rows + start]
            best_scores.append(top_scores)
            best_rows.append(top_rows + self._first_row)
        all_scores, all_rows = torch.cat(best_scores, 1), torch.cat(best_rows, 1)
        top_scores, places = all_scores.topk(min(k, all_scores.shape[1]), dim=1)
        return top_scores, all_rows.gather(1, places)

    def _chunks(self, queries: Any, own: Any) -> Iterator[tuple[int, Any]]:
        """The first row of each chunk, and its scores: queries x rows. Of some rows (`own`), the place of the first."""
        # Measured on 2 CPU cores, 305k x 384: rows @ queries is 1.5 to 3 times as fast as queries @ rows for up to 64
        # queries; one query alone takes torch's slow matrix-vector path, and numpy's takes 40% of the time. Not so where
        # torch converts each chunk first: two thread pools in turn wait for each other (460 ms against 53).
        is_cpu = self.device == "cpu"
        is_float = self._vectors.dtype == self._torch.float32
        is_numpy_faster = len(queries) == 1 and is_cpu and is_float
        right = queries.T.contiguous()
        most = (CHUNK_SCORES if is_cpu else GPU_CHUNK_SCORES) // len(queries)
        if not is_float:
            most = min(most, (CHUNK_FLOATS if is_cpu else GPU_CHUNK_FLOATS) // self._vectors.shape[1])
        num_rows = len(self._vectors) if own is None else len(own)
        step = max(1, min(num_rows, self._chunk_rows or max(1024, most)))
        # One piece of memory for all chunks: new pages for each would cost more than the product.
        room = None if is_float else self._torch.empty((step, self._vectors.shape[1]), device=self.device)
        for start in range(0, num_rows, step):
            rows = slice(start, start + step) if own is None else own[start : start + step]
            chunk = self._vectors[rows]
            if room is not None:
                chunk = room[: len(chunk)].copy_(chunk)
            if is_numpy_faster:
                scores = self._torch.from_numpy(chunk.numpy() @ queries[0].numpy())[None]
            elif is_cpu:
                scores = (chunk @ right).T.contiguous()
            else:
                scores = queries @ chunk.T
            if self._scales is not None:
                scores *= self._scales[rows]
            yield start, scores


class _NumpyRows:
    """All rows, on the CPU, without torch."""

    def __init__(self, vectors: npt.NDArray[Any], scales: Vectors | None, chunk_rows: int | None) -> None:
        self._vectors, self._scales, self._chunk_rows = vectors, scales, chunk_rows

    def top(self, queries: Vectors, k: int, chosen: Rows | None) -> tuple[Vectors, Rows]:
        best = [(np.zeros(0, np.float32), np.zeros(0, np.int64)) for _ in queries]
        for rows, scores in self._chunks(queries, chosen):
            for place, its_scores in enumerate(scores):
                kept, kept_rows = best[place]
                if len(kept) == k:
                    # Rows come in order, so that an equal score in a later row does not count.
                    found = np.flatnonzero(its_scores > kept[-1])
                    if not len(found):
                        continue
                    its_scores, its_rows = its_scores[found], rows[found]
                else:
                    its_rows = rows
                kept, kept_rows = np.concatenate([kept, its_scores]), np.concatenate([kept_rows, its_rows])
                order = np.argsort(-kept, kind="stable")[:k]
                best[place] = kept[order], kept_rows[order]
        return np.stack([scores for scores, _ in best]), np.stack([rows for _, rows in best])

    def _chunks(self, queries: Vectors, chosen: Rows | None) -> Iterator[tuple[Rows, Vectors]]:
        """The rows of each chunk, in order, and their scores: queries x rows."""
        num_rows, dim = len(self._vectors) if chosen is None else len(chosen), self._vectors.shape[1]
        right = np.ascontiguousarray(queries.T)
        step = max(1, min(num_rows, self._chunk_rows or max(256, NUMPY_CHUNK_FLOATS // dim)))
        room = np.empty((step, dim), np.float32)
        for start in range(0, num_rows, step):
            rows = np.arange(start, min(start + step, num_rows)) if chosen is None else chosen[start : start + step]
            where = slice(start, start + step) if chosen is None else rows
            chunk = _as_float32(self._vectors[where], room[: len(rows)])
            scores = (chunk @ queries[0])[:, None] if len(queries) == 1 else chunk @ right
            if self._scales is not None:
                scores *= self._scales[where][:, None]
            yield rows, np.ascontiguousarray(scores.T)


def _as_float32(stored: npt.NDArray[Any], room: Vectors) -> Vectors:
    """Stored vectors as float32, written to `room` unless they are. numpy's own way from float16 takes five times as long as
    these four steps: the bits moved to where float32 has them, and the exponent set right by a product. They are exact for
    all numbers; what has none (infinity, NaN) is in no index."""
    if stored.dtype == np.float32:
        return np.asarray(stored, np.float32)
    if stored.dtype != np.float16:
        np.copyto(room, stored)
        return room
    bits = room.view(np.int32)
    np.copyto(bits, stored.view(np.int16))  # with the sign in front
    np.left_shift(bits, 13, out=bits)
    np.bitwise_and(bits, _SIGN_AND_VALUE, out=bits)
    return np.multiply(room, _EXPONENT_STEP, out=room)

"""faiss on the CPU over the vectors of a dense index: `flat`, `ivf` and `hnsw`, built once and kept in the index folder.

`flat` is exact, as torch is; `ivf` looks into the lists nearest to a query; `hnsw` walks a graph, with the fastest
queries, the longest build and the most memory. All use the inner product, and keep vectors as the index does (float32,
float16 or 8 bits). Only faiss-cpu is needed: on a GPU exact search by torch takes its place.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from parallelsearch.errors import IndexDamagedError, ParallelSearchError, UsageError, require
from parallelsearch.files import PathLike, whole_file, write_json
from parallelsearch.retrieval.store import Manifest, open_manifest
from parallelsearch.retrieval.text_encoder import Vectors
from parallelsearch.retrieval.vector_files import open_vectors
from parallelsearch.retrieval.vectors import Rows, decode

FAISS_KINDS = ("flat", "ivf", "hnsw")
_CODECS = {"float32": "Flat", "float16": "SQfp16", "int8": "SQ8"}
_ADD_ROWS = 65_536
# faiss warns below 39 points a list, and gains nothing above 256.
_MIN_POINTS_PER_LIST, _MAX_POINTS_PER_LIST = 39, 256
HNSW_LINKS, HNSW_BUILD_WIDTH, HNSW_SEARCH_WIDTH = 32, 100, 128


def default_nlist(num_vectors: int) -> int:
    """Lists of an IVF index: the power of two near 2 sqrt(n), with enough vectors to train each."""
    wanted = 1 << max(0, round(math.log2(2 * math.sqrt(max(1, num_vectors)))))
    return max(1, min(wanted, num_vectors // _MIN_POINTS_PER_LIST))


def default_nprobe(nlist: int) -> int:
    """Lists to look into: a quarter of them, at least 8 and at most 256.

    Questions are not distributed as passages are, so they need many: of 12,800 MiniLM passages in 256 lists, 300 questions
    found 0.87 / 0.94 / 0.98 of their ten nearest in 16 / 32 / 64 lists (`benchmarks/dense.py --index`).
    """
    return max(1, min(nlist, max(8, min(256, nlist // 4))))


def refuse_nprobe(nprobe: int | None) -> None:
    """Of an index without lists: the option would change nothing."""
    if nprobe is not None:
        raise UsageError(
            f"nprobe ({nprobe}) is for an index with lists, and this one has none: build it with --faiss ivf, or leave "
            "nprobe out"
        )


class FaissSearcher:
    """A faiss index, ready to search from any thread."""

    def __init__(self, index: Any, nprobe: int | None = None) -> None:
        self.index = index
        faiss = require("faiss", "dense")
        ivf = faiss.try_extract_index_ivf(index)
        if ivf is None:
            refuse_nprobe(nprobe)
        else:
            if nprobe is not None and nprobe < 1:
                raise UsageError(
                    f"nprobe is how many of the {ivf.nlist} lists are looked into, at least 1, not {nprobe}"
                )
            self.nprobe = min(ivf.nlist, nprobe or default_nprobe(ivf.nlist))
            ivf.nprobe = self.nprobe
        if isinstance(faiss.downcast_index(index), faiss.IndexHNSW):
            faiss.downcast_index(index).hnsw.efSearch = HNSW_SEARCH_WIDTH

    def search(self, queries: Vectors, k: int) -> tuple[Vectors, Rows]:
        k = min(k, int(self.index.ntotal))
        if k < 1 or len(queries) == 0:
            return np.zeros((len(queries), 0), np.float32), np.zeros((len(queries), 0), np.int64)
        scores, rows = self.index.search(np.ascontiguousarray(queries, np.float32), k)
        return scores, rows


def read_faiss(path: PathLike) -> Any:
    """A faiss file, memory-mapped where faiss can (flat indexes are; the pages come when they are needed)."""
    faiss = require("faiss", "dense")
    if not Path(path).is_file():
        raise UsageError(f"there is no faiss index '{path}' (looked in {Path.cwd()})")
    problem: Exception | None = None
    for flag in (faiss.IO_FLAG_MMAP_IFC, 0):
        try:
            return faiss.read_index(str(path), flag)
        except RuntimeError as error:  # faiss raises nothing else, for a kind it cannot map as for a damaged file
            problem = error
    raise IndexDamagedError(f"'{path}' is not a faiss index that can be read: {_short(problem)}")


def build_faiss(folder: PathLike, kind: str, *, nlist: int | None = None) -> Path:
    """Build a faiss index over a dense index folder and keep it there; returns its path."""
    faiss = require("faiss", "dense")
    manifest = open_manifest(folder, "dense")
    vectors, scales = open_vectors(folder, manifest)
    num_vectors, dim = vectors.shape
    codec = _CODECS[manifest.settings["dtype"]]
    if kind == "ivf":
        nlist = nlist or default_nlist(num_vectors)
        if not 1 <= nlist <= num_vectors:
            raise UsageError(f"nlist is the number of lists: from 1 to the {num_vectors} vectors, not {nlist}")
    recipes = {"flat": codec, "ivf": f"IVF{nlist},{codec}", "hnsw": f"HNSW{HNSW_LINKS},{codec}"}
    if kind not in recipes:
        raise UsageError(f"faiss cannot build '{kind}' here; known are {', '.join(recipes)}")
    index = faiss.index_factory(dim, recipes[kind], faiss.METRIC_INNER_PRODUCT)
    if kind == "hnsw":
        index.hnsw.efConstruction = HNSW_BUILD_WIDTH
    if not index.is_trained:
        num_points = min(num_vectors, _MAX_POINTS_PER_LIST * (nlist or 256))
        if kind == "ivf":
            faiss.extract_index_ivf(index).cp.min_points_per_centroid = 1  # a small corpus is no reason for a warning
        rows = np.sort(np.random.default_rng(0).choice(num_vectors, num_points, replace=False))
        index.train(decode(vectors, scales, rows))
    for start in range(0, num_vectors, _ADD_ROWS):
        index.add(decode(vectors, scales, slice(start, start + _ADD_ROWS)))
    return _save(Path(folder), kind, index, manifest, recipes[kind])


def kept_kind(folder: PathLike) -> str | None:
    """The kind of the faiss index that a dense index folder keeps, the newest of several; None where none fits."""
    folder = Path(folder)
    manifest = open_manifest(folder, "dense")
    kept = [(_path(folder, kind).stat().st_mtime, kind) for kind in FAISS_KINDS if _is_current(folder, kind, manifest)]
    return max(kept)[1] if kept else None


def open_faiss(folder: PathLike, kind: str, *, nprobe: int | None = None) -> FaissSearcher:
    """The faiss index of a dense index folder; built first where there is none that fits."""
    folder = Path(folder)
    path = _path(folder, kind)
    manifest = open_manifest(folder, "dense")
    if not _is_current(folder, kind, manifest):
        build_faiss(folder, kind)
    index = read_faiss(path)
    if index.ntotal != manifest.num_passages:
        raise IndexDamagedError(
            f"'{path}' has {index.ntotal} vectors for {manifest.num_passages} passages. Delete it; it is built again"
        )
    return FaissSearcher(index, nprobe)


def _path(folder: Path, kind: str) -> Path:
    return folder / f"faiss-{kind}.index"


def _is_current(folder: Path, kind: str, manifest: Manifest) -> bool:
    path = _path(folder, kind)
    try:
        about = json.loads(path.with_suffix(".json").read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return path.is_file() and isinstance(about, dict) and about.get("of") == _identity(manifest)


def _identity(manifest: Manifest) -> dict[str, Any]:
    return {"corpus_sha256": manifest.corpus_sha256, "settings": manifest.settings}


def _save(folder: Path, kind: str, index: Any, manifest: Manifest, recipe: str) -> Path:
    path = _path(folder, kind)
    about = {"of": _identity(manifest), "recipe": recipe}
    try:
        path.with_suffix(".json").unlink(missing_ok=True)
        with whole_file(path) as draft:
            require("faiss", "dense").write_index(index, str(draft))
        write_json(path.with_suffix(".json"), about)
    except (OSError, RuntimeError) as error:
        raise ParallelSearchError(f"the faiss index could not be written to '{folder}': {_short(error)}") from error
    return path


def _short(error: BaseException | None) -> str:
    return str(error).strip().rpartition("Error: ")[2].partition("\n")[0][:300]

"""What an index will cost before it is built: disk, memory, time; for `index --plan` and `doctor`.

Sizes follow from the formats and from bytes a passage measured on 305,293 Wikipedia passages (about 100 words each); times
from rates measured on the machines named below. An estimate says what it is scaled from, and is empty where nothing was
measured: give `encode_per_s` from a short run of your own (`index` prints it) to fill it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from parallelsearch.errors import UsageError, nearest
from parallelsearch.retrieval.faiss_index import HNSW_LINKS, default_nlist
from parallelsearch.retrieval.vectors import CHUNK_FLOATS, CHUNK_SCORES, GPU_CHUNK_FLOATS, GPU_CHUNK_SCORES, check_dtype

KINDS = ("bm25", "dense", "hybrid")
SEARCHES = ("exact", "flat", "ivf", "hnsw")

# ---- measured --------------------------------------------------------------------------------------------------------
# build_bm25 over the 305,293 passages of the shared corpus, bytes a passage from its manifest: passages.bin 626.6,
# passages.offsets 8.0, data and indices 257.1 each.
PASSAGE_BYTES = 634.6
POSTING_BYTES = 514.2
# Distinct terms of the same build at 20,000 / 89,199 / 305,293 passages: 74,500 / 167,000 / 370,000; the last two give the
# exponent of Heaps' law. A term takes 8 bytes of indptr and 19 of vocabulary on disk, about 130 as an entry of a dict.
TERMS_AT_305K, TERMS_EXPONENT = 370_000, 0.646
TERM_DISK_BYTES, TERM_MEMORY_BYTES = 27, 130
# 30,000 passages, CPU seconds of one core of an AMD EPYC virtual machine with two: build_bm25 0.126 ms, reading and
# writing the passages alone 0.0073 ms without parsing; parsing JSON Lines adds about as much as writing.
BM25_S_PER_PASSAGE = 0.126e-3
READ_S_PER_PASSAGE = 0.03e-3
# benchmarks/growth.py, even draws of 30,000 / 100,000 / 305,293 passages, one query at a time, k 3: 0.13 / 0.20 / 0.34 ms.
# A straight line through the three.
BM25_QUERY_S, BM25_QUERY_S_PER_PASSAGE = 0.117e-3, 0.75e-9
# Passages of about 100 words encoded a second, by the number of dimensions of the encoder: all-MiniLM-L6-v2 (384) and
# all-mpnet-base-v2 (768). CPU: 256 passages by MiniLM in float32 on 2 idle cores of the same machine, 4.9 s. GPU: all 305,293
# passages in float16 in batches of 512 on one NVIDIA H200 (`benchmarks/recall.py --device cuda`, its `build_s`: 133.6 and
# 279.9 s, reading and loading with them). A dimension that is not here is scaled from the nearest by the number of weights;
# an empty table says nothing.
CPU_ENCODE_PER_S: dict[int, float] = {384: 52.0}
GPU_ENCODE_PER_S: dict[int, float] = {384: 2285.0, 768: 1091.0}
# The weights outside the embedding table, against MiniLM-L6's 10.6 million: the work for a token grows with them.
WORK_BY_DIM = {384: 1.0, 768: 8.0, 1024: 28.0}
# benchmarks/dense.py --only speed, 305,299 x 384 in float32 on the same 2 cores: one query 18 ms, 64 at once 127 ms.
CPU_BYTES_PER_S_ONE_QUERY = 305_299 * 384 * 4 / 0.018
CPU_FLOPS = 305_299 * 384 * 64 * 2 / 0.127
# Python with torch, sentence-transformers and a small encoder, resident.
BASE_MEMORY_BYTES = 900e6

_GB = 1e9


@dataclass(frozen=True, slots=True)
class Plan:
    """Bytes and seconds; `None` where nothing was measured to scale from. `notes` say what the figures rest on."""

    kind: str
    num_passages: int
    settings: dict[str, Any]
    disk_bytes: dict[str, float]
    memory_bytes: float
    mapped_bytes: float
    gpu_bytes: float | None
    build_s: float | None
    query_s: float | None
    notes: list[str] = field(default_factory=list)

    @property
    def total_disk_bytes(self) -> float:
        return sum(self.disk_bytes.values())

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "num_passages": self.num_passages,
            "settings": self.settings,
            "disk_bytes": {name: int(value) for name, value in self.disk_bytes.items()},
            "total_disk_bytes": int(self.total_disk_bytes),
            "memory_bytes": int(self.memory_bytes),
            "mapped_bytes": int(self.mapped_bytes),
            "gpu_bytes": None if self.gpu_bytes is None else int(self.gpu_bytes),
            "build_s": self.build_s,
            "query_s": self.query_s,
            "notes": self.notes,
        }

    def lines(self) -> list[str]:
        """For a person, one fact a line."""
        parts = ", ".join(f"{name} {_size(value)}" for name, value in self.disk_bytes.items())
        lines = [
            f"{self.num_passages:,} passages, {self.kind}",
            f"disk      {_size(self.total_disk_bytes)} ({parts})",
            f"memory    {_size(self.memory_bytes)} held, {_size(self.mapped_bytes)} mapped (fast when it fits beside it)",
        ]
        if self.gpu_bytes is not None:
            lines.append(f"GPU       {_size(self.gpu_bytes)} on each")
        lines.append(f"build     {_time(self.build_s)}")
        lines.append(f"query     {_time(self.query_s)}")
        return lines + [f"note: {note}" for note in self.notes]

    def problems(self, *, memory_bytes: float, free_disk_bytes: float, gpu_bytes: float | None = None) -> list[str]:
        """Why this will not go well on a machine, and what to do about it."""
        found: list[str] = []
        smaller = (
            self.settings.get("dtype") in ("float32", "float16") and "; --dtype int8 makes vectors smaller"
        ) or ""
        if self.total_disk_bytes > free_disk_bytes:
            found.append(f"needs {_size(self.total_disk_bytes)} of disk, {_size(free_disk_bytes)} are free{smaller}")
        if self.memory_bytes > memory_bytes:
            found.append(f"needs {_size(self.memory_bytes)} of memory, there are {_size(memory_bytes)}{smaller}")
        elif self.memory_bytes + self.mapped_bytes > memory_bytes:
            found.append(
                f"{_size(self.mapped_bytes)} are mapped and do not fit into {_size(memory_bytes)} of memory: every search "
                f"would read from the disk{smaller}, and 'ivf' reads only a part"
            )
        if gpu_bytes is not None and self.gpu_bytes is not None and self.gpu_bytes > gpu_bytes:
            found.append(
                f"needs {_size(self.gpu_bytes)} on each GPU, there are {_size(gpu_bytes)}{smaller}; or more GPUs"
            )
        return found


def plan(
    num_passages: int,
    kind: str = "bm25",
    *,
    dim: int = 384,
    dtype: str = "float32",
    search: str = "exact",
    num_gpus: int = 0,
    encode_per_s: float | None = None,
    mean_words: float = 100.0,
) -> Plan:
    """Estimate an index of `num_passages` passages of `mean_words` words. `encode_per_s`: passages a second, as measured."""
    if num_passages < 1:
        raise UsageError(f"a plan needs the number of passages, at least 1, not {num_passages}")
    if kind not in KINDS:
        raise UsageError(f"cannot plan '{kind}'; known are {', '.join(KINDS)}.{nearest(kind, KINDS)}")
    if search not in SEARCHES:
        raise UsageError(
            f"cannot plan the search '{search}'; known are {', '.join(SEARCHES)}.{nearest(search, SEARCHES)}"
        )
    check_dtype(dtype)
    scale = mean_words / 100.0
    parts = []
    if kind in ("bm25", "hybrid"):
        parts.append(_bm25(num_passages, scale))
    if kind in ("dense", "hybrid"):
        parts.append(_dense(num_passages, scale, dim, dtype, search, num_gpus, encode_per_s))
    return parts[0] if len(parts) == 1 else _joined(parts[0], parts[1])


def _bm25(num_passages: int, scale: float) -> Plan:
    num_terms = TERMS_AT_305K * (num_passages / 305_293) ** TERMS_EXPONENT
    postings = num_passages * POSTING_BYTES * scale
    passages = num_passages * PASSAGE_BYTES * scale
    return Plan(
        kind="bm25",
        num_passages=num_passages,
        settings={},
        disk_bytes={"passages": passages, "postings": postings, "terms": num_terms * TERM_DISK_BYTES},
        # A query's scores are one float32 a passage.
        memory_bytes=100e6 + num_terms * TERM_MEMORY_BYTES + 8.0 * num_passages,
        mapped_bytes=postings + passages,
        gpu_bytes=None,
        build_s=num_passages * BM25_S_PER_PASSAGE * scale,
        query_s=BM25_QUERY_S + BM25_QUERY_S_PER_PASSAGE * num_passages * scale,
        notes=["keyword build time is that of one core; the time of a query depends on how common its words are"],
    )


def _dense(
    num_passages: int, scale: float, dim: int, dtype: str, search: str, num_gpus: int, encode_per_s: float | None
) -> Plan:
    item_bytes = {"float32": 4, "float16": 2, "int8": 1}[dtype]
    vectors = float(num_passages) * (dim * item_bytes + (4 if dtype == "int8" else 0))
    passages = num_passages * PASSAGE_BYTES * scale
    disk = {"passages": passages, "vectors": vectors}
    memory, mapped, gpu = BASE_MEMORY_BYTES, passages, None
    notes: list[str] = []
    query_s: float | None = None
    working = CHUNK_SCORES * 4 + (0 if dtype == "float32" else CHUNK_FLOATS * 4)
    if search == "exact" and num_gpus:
        gpu = vectors / num_gpus + 4.0 * (GPU_CHUNK_FLOATS + 2 * GPU_CHUNK_SCORES) + 1e9
        notes.append("GPU memory: the share of the vectors, two chunks of work and 1 GB for the encoder")
    elif search in ("exact", "flat"):
        mapped += vectors
        memory += working
        query_s = num_passages * dim * 4 / CPU_BYTES_PER_S_ONE_QUERY
        batch_s = num_passages * dim * 64 * 2 / CPU_FLOPS
        notes.append(f"exact search on 2 CPU cores: 64 queries at once take {_time(batch_s)}")
    if search == "flat":
        disk["faiss"] = vectors
    if search == "ivf":
        disk["faiss"] = vectors + 8.0 * num_passages + default_nlist(num_passages) * dim * 4
        memory += disk["faiss"]
        notes.append("ivf is read into memory; its training and filling come on top of the build time")
    if search == "hnsw":
        disk["faiss"] = vectors + num_passages * (2 * HNSW_LINKS * 4 + 8.0) * 1.05
        memory += disk["faiss"]
        notes.append("hnsw is read into memory; building its graph takes hours for millions of passages")
    build_s: float | None = None
    rate = encode_per_s
    if rate is None:
        rate, note = _encoding_rate(dim, num_gpus)
        notes.append(note)
    if rate is not None:
        if rate <= 0:
            raise UsageError(f"encode_per_s is passages a second, more than 0, not {rate}")
        build_s = num_passages * (scale / rate + READ_S_PER_PASSAGE * scale)
    settings = {"dim": dim, "dtype": dtype, "search": search, "num_gpus": num_gpus}
    return Plan("dense", num_passages, settings, disk, memory, mapped, gpu, build_s, query_s, notes)


def _encoding_rate(dim: int, num_gpus: int) -> tuple[float | None, str]:
    """Passages a second, as far as it was measured, and what that rests on. A build encodes on one GPU."""
    measured, where = (GPU_ENCODE_PER_S, "one H200") if num_gpus else (CPU_ENCODE_PER_S, "2 CPU cores")
    if not measured:
        return None, f"encoding on {where} was not measured: give encode_per_s from a short run"
    nearest_dim = min(measured, key=lambda known: abs(known - dim))
    rate = measured[nearest_dim] * _work(nearest_dim) / _work(dim)
    scaled = (
        "" if nearest_dim == dim else f", scaled from an encoder of {nearest_dim} dimensions by the number of weights"
    )
    return rate, f"encoding on {where} at {rate:,.{0 if rate >= 10 else 1}f} passages a second{scaled}"


def _work(dim: int) -> float:
    return WORK_BY_DIM.get(dim, (dim / 384) ** 3)


def _joined(lexical: Plan, dense: Plan) -> Plan:
    """Both, in one process. Each part keeps its own copy of the passages."""
    build_s = None if dense.build_s is None or lexical.build_s is None else lexical.build_s + dense.build_s
    return Plan(
        kind="hybrid",
        num_passages=dense.num_passages,
        settings=dense.settings,
        disk_bytes={
            **{f"bm25 {name}": value for name, value in lexical.disk_bytes.items()},
            **{f"dense {name}": value for name, value in dense.disk_bytes.items()},
        },
        memory_bytes=lexical.memory_bytes + dense.memory_bytes,
        mapped_bytes=lexical.mapped_bytes + dense.mapped_bytes,
        gpu_bytes=dense.gpu_bytes,
        build_s=build_s,
        query_s=None if dense.query_s is None or lexical.query_s is None else lexical.query_s + dense.query_s,
        notes=lexical.notes + dense.notes,
    )


def _size(value: float) -> str:
    return f"{value / _GB:.1f} GB" if value >= 0.1 * _GB else f"{value / 1e6:.1f} MB"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "not measured"
    for limit, unit, size in ((1, "ms", 1e-3), (120, "s", 1), (7200, "minutes", 60), (172_800, "hours", 3600)):
        if seconds < limit:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 86_400:.3g} days"

"""What an index will cost before it is built, for `index --plan`: disk and memory, and an order of magnitude of the time.

Sizes follow from the formats and the bytes of a passage; they hold on any machine. The time to build is scaled from three
rates of two machines, said in the notes: yours will differ, and `index` prints its own rate as it goes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from parallelsearch.errors import UsageError, nearest
from parallelsearch.retrieval.faiss_index import HNSW_LINKS, default_nlist
from parallelsearch.retrieval.vectors import CHUNK_FLOATS, CHUNK_SCORES, GPU_CHUNK_FLOATS, GPU_CHUNK_SCORES, check_dtype

KINDS = ("bm25", "dense", "hybrid")
SEARCHES = ("exact", "flat", "ivf", "hnsw")

# Measured on 305,293 Wikipedia passages of about 100 words: bytes a passage in the files of a BM25 index, its number of
# terms, which grows by Heaps' law, and their bytes; resident memory of Python with torch and a small encoder, and of Python
# without them (55 MB over 522 passages with vectors from a server), with room for faiss.
PASSAGE_BYTES, POSTING_BYTES = 634.6, 514.2
NUM_MEASURED, NUM_TERMS, TERMS_EXPONENT = 305_293, 370_000, 0.646
TERM_DISK_BYTES, TERM_MEMORY_BYTES = 27, 130
TORCH_MEMORY_BYTES, PYTHON_MEMORY_BYTES = 900e6, 100e6
# 1.36 tokens a word: 20,000 of 89,199 Wikipedia passages by the tokenizer of MiniLM (BERT's, which many encoders have).
PASSAGE_TOKENS = 136
# Passages a second of the same corpus: BM25 on one core; encoders by their dimensions (384 is all-MiniLM-L6-v2, 768 is
# all-mpnet-base-v2) on two cores and on one H200.
BM25_PER_S = 7_900.0
CPU_ENCODE_PER_S, GPU_ENCODE_PER_S = {384: 52.0}, {384: 2_285.0, 768: 1_091.0}


@dataclass(frozen=True, slots=True)
class Plan:
    """Bytes and seconds. `notes` say what the figures rest on."""

    kind: str
    num_passages: int
    settings: dict[str, Any]
    disk_bytes: dict[str, float]
    memory_bytes: float
    mapped_bytes: float
    gpu_bytes: float | None
    build_s: float
    """Without the time of a server that gives the vectors."""
    num_tokens: int | None = None
    """What such a server reads."""
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
            "num_tokens": self.num_tokens,
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
            lines.append(f"GPU       {_size(self.gpu_bytes)}")
        if self.num_tokens is None:
            lines.append(f"build     about {_time(self.build_s)}")
        else:
            lines.append(f"tokens    about {self.num_tokens:,}, which the encoder's server reads")
            own = f", and about {_time(self.build_s)}" if self.build_s else ""
            lines.append(f"build     as long as the server takes{own}")
        return lines + [f"note: {note}" for note in self.notes]

    def problems(self, *, memory_bytes: float, free_disk_bytes: float) -> list[str]:
        """Why this will not go well on a machine, and what to do about it."""
        found: list[str] = []
        has_wide = self.settings.get("dtype") in ("float32", "float16")
        smaller = "; --dtype int8 makes vectors smaller" if has_wide else ""
        if self.total_disk_bytes > free_disk_bytes:
            found.append(f"needs {_size(self.total_disk_bytes)} of disk, {_size(free_disk_bytes)} are free{smaller}")
        if self.memory_bytes > memory_bytes:
            found.append(f"needs {_size(self.memory_bytes)} of memory, there are {_size(memory_bytes)}{smaller}")
        elif self.memory_bytes + self.mapped_bytes > memory_bytes:
            found.append(
                f"{_size(self.mapped_bytes)} are mapped and do not fit into {_size(memory_bytes)} of memory: every search "
                f"would read from the disk{smaller}, and 'ivf' reads only a part"
            )
        return found


def plan(
    num_passages: int,
    kind: str = "bm25",
    *,
    dim: int = 384,
    dtype: str = "float32",
    search: str = "exact",
    on_gpu: bool = False,
    is_served: bool = False,
) -> Plan:
    """Estimate an index of `num_passages` passages of about 100 words. `is_served`: the vectors come from a server."""
    if num_passages < 1:
        raise UsageError(f"a plan needs the number of passages, at least 1, not {num_passages}")
    if kind not in KINDS:
        raise UsageError(f"cannot plan '{kind}'; known are {', '.join(KINDS)}.{nearest(kind, KINDS)}")
    if search not in SEARCHES:
        raise UsageError(
            f"cannot plan the search '{search}'; known are {', '.join(SEARCHES)}.{nearest(search, SEARCHES)}"
        )
    check_dtype(dtype)
    if kind == "bm25":
        return _bm25(num_passages)
    dense = _dense(num_passages, dim, dtype, search, on_gpu, is_served)
    return dense if kind == "dense" else _joined(_bm25(num_passages), dense)


def _bm25(num_passages: int) -> Plan:
    num_terms = NUM_TERMS * (num_passages / NUM_MEASURED) ** TERMS_EXPONENT
    postings, passages = num_passages * POSTING_BYTES, num_passages * PASSAGE_BYTES
    return Plan(
        kind="bm25",
        num_passages=num_passages,
        settings={},
        disk_bytes={"passages": passages, "postings": postings, "terms": num_terms * TERM_DISK_BYTES},
        # A query's scores are one float32 a passage.
        memory_bytes=PYTHON_MEMORY_BYTES + num_terms * TERM_MEMORY_BYTES + 8.0 * num_passages,
        mapped_bytes=postings + passages,
        gpu_bytes=None,
        build_s=num_passages / BM25_PER_S,
        notes=["keyword build time is that of one core"],
    )


def _dense(num_passages: int, dim: int, dtype: str, search: str, on_gpu: bool, is_served: bool) -> Plan:
    item_bytes = {"float32": 4, "float16": 2, "int8": 1}[dtype]
    vectors = float(num_passages) * (dim * item_bytes + (4 if dtype == "int8" else 0))
    passages = num_passages * PASSAGE_BYTES
    disk = {"passages": passages, "vectors": vectors}
    needs_torch = on_gpu or not is_served
    memory, mapped, gpu = TORCH_MEMORY_BYTES if needs_torch else PYTHON_MEMORY_BYTES, passages, None
    notes: list[str] = []
    if search == "exact" and on_gpu:
        gpu = vectors + 4.0 * (GPU_CHUNK_FLOATS + 2 * GPU_CHUNK_SCORES) + (0 if is_served else 1e9)
        work = "and two chunks of work" if is_served else "two chunks of work and 1 GB for the encoder"
        notes.append(f"GPU memory: the vectors, which several GPUs would share, {work}")
    elif search in ("exact", "flat"):
        mapped += vectors
        memory += CHUNK_SCORES * 4 + (0 if dtype == "float32" else CHUNK_FLOATS * 4)
    if search == "flat":
        disk["faiss"] = vectors
    elif search == "ivf":
        disk["faiss"] = vectors + 8.0 * num_passages + default_nlist(num_passages) * dim * 4
        notes.append("ivf is read into memory; its training and filling come on top of the build time")
    elif search == "hnsw":
        disk["faiss"] = vectors + num_passages * (2 * HNSW_LINKS * 4 + 8.0) * 1.05
        notes.append("hnsw is read into memory; building its graph takes hours for millions of passages")
    if search in ("ivf", "hnsw"):
        memory += disk["faiss"]
    settings = {"dim": dim, "dtype": dtype, "search": search}
    if is_served:
        notes.append(
            f"{PASSAGE_TOKENS} tokens for a passage of 100 English words; a longer one costs more in proportion"
        )
        tokens = num_passages * PASSAGE_TOKENS
        return Plan("dense", num_passages, settings, disk, memory, mapped, gpu, 0.0, tokens, notes)
    measured, where = (GPU_ENCODE_PER_S, "one H200") if on_gpu else (CPU_ENCODE_PER_S, "2 CPU cores")
    known = min(measured, key=lambda known: abs(known - dim))
    # An encoder's weights, and so its work, grow about as the cube of its width: wider ones are deeper, too.
    rate = measured[known] * (known / dim) ** 3
    scaled = "" if dim == known else f", scaled from an encoder of {known} dimensions"
    notes.append(f"encoding as on {where} at {rate:,.{0 if rate >= 10 else 1}f} passages a second{scaled}")
    return Plan("dense", num_passages, settings, disk, memory, mapped, gpu, num_passages / rate, None, notes)


def _joined(lexical: Plan, dense: Plan) -> Plan:
    """Both, in one process. Each part keeps its own copy of the passages."""
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
        build_s=lexical.build_s + dense.build_s,
        num_tokens=dense.num_tokens,
        notes=lexical.notes + dense.notes,
    )


def _size(value: float) -> str:
    return f"{value / 1e9:.1f} GB" if value >= 1e8 else f"{value / 1e6:.1f} MB"


def _time(seconds: float) -> str:
    for limit, unit, size in ((120, "s", 1), (7200, "minutes", 60), (172_800, "hours", 3600)):
        if seconds < limit:
            return f"{seconds / size:.2g} {unit}"
    return f"{seconds / 86_400:.2g} days"

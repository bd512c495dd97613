"""How search grows with the corpus: build time, index size, peak memory and query time, fitted and extrapolated.

    PARALLELSEARCH_DATA=DIR python benchmarks/growth.py [--sizes 30000 100000 305293] [--to 21000000] [--json]
    python benchmarks/growth.py --kind dense [--dim 384] [--dtype float16]

BM25: each size is an even draw from the real passages, written to a file first, so that reading the compressed corpus is
not part of the build. Building and searching run in processes of their own, whose peak memory is their own; the memory of
searching counts the pages of the memory-mapped index that the queries touched. Query time is the median of single queries,
CPU time their mean: on a busy machine the CPU times are the ones to trust. Dense: exact search over random vectors,
memory-mapped, of the shape an encoder would give; encoding them is a matter of the encoder and not measured here
(`index --plan`). The line is a least-squares fit with an intercept. An extrapolation is an estimate: it says what to order,
not what was measured.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from parallelsearch.files import read_jsonl
from parallelsearch.retrieval.base import Passage
from parallelsearch.retrieval.bm25 import BM25Retriever, build_bm25
from parallelsearch.retrieval.corpus import read_corpus
from parallelsearch.retrieval.vectors import ExactSearcher, quantize

BM25_FIGURES = {
    "build_s": "build s",
    "build_cpu_s": "build CPU s",
    "index_mb": "index MB",
    "build_peak_mb": "peak MB, build",
    "open_s": "open s",
    "query_ms": "query ms",
    "query_cpu_ms": "query CPU ms",
    "search_peak_mb": "peak MB, search",
}
DENSE_FIGURES = {
    "index_mb": "vectors MB",
    "query_ms": "query ms",
    "query_cpu_ms": "query CPU ms",
    "batch_query_ms": "query of 64 at once, ms",
    "search_peak_mb": "peak MB, search",
}
DENSE_ROUNDS = 15


def passages_of(folder: Path) -> Iterator[Passage]:
    for name in ("multihop_passages", "wiki_background_chunks"):  # the few ids that are used twice are left out
        yield from read_corpus(folder / "corpus" / f"{name}.jsonl.zst", on_bad=lambda error: None)


def write_draw(folder: Path, size: int, total: int, out: Path) -> None:
    """Exactly `size` of the `total` passages, evenly spaced, so that each size has the same mixture."""
    with out.open("w", encoding="utf-8") as file:
        for n, passage in enumerate(passages_of(folder)):
            if (n + 1) * size // total > n * size // total:
                record = {"id": passage.id, "title": passage.title, "text": passage.text}
                file.write(json.dumps(record, ensure_ascii=False) + "\n")


def peak_mb() -> float:
    """Of this process. Linux hands `ru_maxrss` on from the parent when a program starts; its VmHWM starts afresh."""
    status = Path("/proc/self/status")
    if status.exists():
        peak = next((line for line in status.read_text().splitlines() if line.startswith("VmHWM:")), None)
        if peak is not None:
            return int(peak.split()[1]) * 1024 / 1e6
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def measure_build(corpus: Path, index: Path) -> dict[str, float]:
    start = time.perf_counter()
    report = build_bm25(corpus, index)
    seconds = time.perf_counter() - start
    return {
        "build_s": seconds,
        "build_cpu_s": time.process_time(),
        "index_mb": report.bytes / 1e6,
        "build_peak_mb": peak_mb(),
    }


def measure_search(index: Path, questions: Path, k: int) -> dict[str, float]:
    asked = json.loads(questions.read_text(encoding="utf-8"))
    start = time.perf_counter()
    retriever = BM25Retriever(index)
    open_s = time.perf_counter() - start
    retriever.search_blocking(asked, k)  # reads the pages in, so that the disk is not what is timed
    times_ms, cpu_start = [], time.process_time()
    for question in asked:
        start = time.perf_counter()
        retriever.search_blocking([question], k)
        times_ms.append((time.perf_counter() - start) * 1e3)
    cpu_ms = (time.process_time() - cpu_start) * 1e3 / len(asked)
    times_ms.sort()
    return {
        "open_s": open_s,
        "query_ms": times_ms[len(times_ms) // 2],
        "query_cpu_ms": cpu_ms,
        "search_peak_mb": peak_mb(),
    }


def write_vectors(path: Path, num_rows: int, dim: int, dtype: str) -> None:
    rng = np.random.default_rng(0)
    with path.open("wb") as vectors, path.with_suffix(".scales").open("wb") as scales:
        for start in range(0, num_rows, 65_536):
            drawn = rng.standard_normal((min(65_536, num_rows - start), dim), dtype=np.float32)
            drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
            if dtype == "int8":
                codes, scale = quantize(drawn)
                vectors.write(codes.tobytes())
                scales.write(scale.tobytes())
            else:
                vectors.write(drawn.astype(dtype).tobytes())


def measure_dense(path: Path, dim: int, dtype: str, k: int) -> dict[str, float]:
    vectors = np.memmap(path, dtype=dtype, mode="c").reshape(-1, dim)
    scales = np.fromfile(path.with_suffix(".scales"), np.float32) if dtype == "int8" else None
    searcher = ExactSearcher(vectors, scales)
    queries = np.random.default_rng(1).standard_normal((64, dim), dtype=np.float32)
    searcher.search(queries, k)  # reads the pages in
    one_ms, batch_ms = [], []
    cpu_start = time.process_time()
    for n in range(DENSE_ROUNDS):
        start = time.perf_counter()
        searcher.search(queries[n : n + 1], k)
        one_ms.append((time.perf_counter() - start) * 1e3)
    cpu_ms = (time.process_time() - cpu_start) * 1e3 / DENSE_ROUNDS
    for _ in range(3):
        start = time.perf_counter()
        searcher.search(queries, k)
        batch_ms.append((time.perf_counter() - start) * 1e3 / len(queries))
    return {
        "index_mb": path.stat().st_size / 1e6,
        "query_ms": sorted(one_ms)[DENSE_ROUNDS // 2],
        "query_cpu_ms": cpu_ms,
        "batch_query_ms": sorted(batch_ms)[1],
        "search_peak_mb": peak_mb(),
    }


def grow_dense(sizes: Sequence[int], dim: int, dtype: str, k: int) -> list[dict[str, float]]:
    rows: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as name:
        for size in sizes:
            path = Path(name) / f"{size}.vectors"
            write_vectors(path, size, dim, dtype)
            found = in_process("--search-dense", path, "--dim", dim, "--dtype", dtype, "--k", k)
            rows.append({"num_passages": size, **found})
    return rows


def in_process(*arguments: object) -> dict[str, float]:
    command = [sys.executable, __file__, *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=24 * 3600)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def fit(sizes: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """Intercept and slope of the least-squares line."""
    middle, level = sum(sizes) / len(sizes), sum(values) / len(values)
    spread = sum((size - middle) ** 2 for size in sizes)
    slope = sum((size - middle) * (value - level) for size, value in zip(sizes, values, strict=True)) / spread
    return level - slope * middle, slope


def measure(folder: Path, sizes: Sequence[int], num_queries: int, k: int) -> list[dict[str, float]]:
    total = sum(1 for _ in passages_of(folder))
    rows: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        records = read_jsonl(folder / "corpus" / "questions_with_gold.jsonl.zst")
        asked = list(dict.fromkeys(str(record["question"]) for _, record in records))[:num_queries]
        questions = scratch / "questions.json"
        questions.write_text(json.dumps(asked), encoding="utf-8")
        for size in dict.fromkeys(min(size, total) for size in sizes):
            corpus, index = scratch / f"{size}.jsonl", scratch / f"index-{size}"
            write_draw(folder, size, total, corpus)
            built = in_process("--build", corpus, index)
            rows.append({"num_passages": size, **built, **in_process("--search", index, questions, "--k", k)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[30_000, 100_000, 305_293])
    parser.add_argument("--to", type=int, default=21_000_000, help="passages to extrapolate to")
    parser.add_argument("--num-queries", type=int, default=500)
    parser.add_argument("--k", type=int, default=3)
    parser.add_argument("--kind", choices=("bm25", "dense"), default="bm25")
    parser.add_argument("--dim", type=int, default=384, help="for dense")
    parser.add_argument("--dtype", choices=("float32", "float16", "int8"), default="float16", help="for dense")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--build", type=Path, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--search", type=Path, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--search-dense", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.build:
        corpus, index = options.build
        sys.stdout.write(json.dumps(measure_build(corpus, index)))
        return
    if options.search:
        index, questions = options.search
        sys.stdout.write(json.dumps(measure_search(index, questions, options.k)))
        return
    if options.search_dense:
        sys.stdout.write(json.dumps(measure_dense(options.search_dense, options.dim, options.dtype, options.k)))
        return
    if len(set(options.sizes)) < 2:
        parser.error(f"a line needs two sizes or more, --sizes has {options.sizes}")
    if options.kind == "dense":
        figures, rows = DENSE_FIGURES, grow_dense(sorted(options.sizes), options.dim, options.dtype, options.k)
    else:
        data = os.environ.get("PARALLELSEARCH_DATA")
        if data is None:
            parser.error("set PARALLELSEARCH_DATA to the folder that holds corpus/multihop_passages.jsonl.zst")
        figures, rows = BM25_FIGURES, measure(Path(data), sorted(options.sizes), options.num_queries, options.k)
    sizes = [row["num_passages"] for row in rows]
    lines = {name: fit(sizes, [row[name] for row in rows]) for name in figures}
    estimate = {name: intercept + slope * options.to for name, (intercept, slope) in lines.items()}
    if options.json:
        fits = {name: {"intercept": line[0], "slope_per_passage": line[1]} for name, line in lines.items()}
        print(json.dumps({"rows": rows, "fits": fits, "to": options.to, "extrapolated": estimate}))
        return
    print("| passages | " + " | ".join(figures.values()) + " |")
    print("|---" * (len(figures) + 1) + "|")
    for label, row in [*((f"{int(row['num_passages']):,}", row) for row in rows), (f"{options.to:,} (fit)", estimate)]:
        print(
            f"| {label} | "
            + " | ".join(f"{row[name]:,.3g}" if row[name] < 100 else f"{row[name]:,.0f}" for name in figures)
            + " |"
        )


if __name__ == "__main__":
    main()

"""Dense search: exact search against bare torch and numpy, and what approximate search and smaller numbers lose.

    python benchmarks/dense.py                                     # random vectors, 305,299 x 384
    python benchmarks/dense.py --only speed --device cuda          # the same on a GPU, the vectors on it
    python benchmarks/dense.py --index DIR --queries FILE.jsonl    # recall on real vectors: a dense index folder

Speed: the best of several rounds, all ways in turn in every round, so that a busy machine is busy for all of them. Bare is
one matrix product and one top-k over everything in memory; ours works in chunks over a memory-mapped file, by torch, and by
numpy as where torch is not installed. On a GPU bare and ours get their queries from main memory and bring the best ten back.
Recall: the share of the exact (float32) ten nearest that is found. Without --index the vectors are drawn around centres,
because random ones have no neighbourhoods to find.
"""

from __future__ import annotations

import argparse
import json
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from parallelsearch.errors import MissingExtraError, install_command
from parallelsearch.files import read_jsonl
from parallelsearch.retrieval.dense import open_vectors
from parallelsearch.retrieval.encoder import Encoder
from parallelsearch.retrieval.faiss_index import FaissSearcher, default_nlist, default_nprobe
from parallelsearch.retrieval.store import open_manifest
from parallelsearch.retrieval.text_encoder import Vectors
from parallelsearch.retrieval.vectors import ExactSearcher, decode, quantize

K = 10


def unit(vectors: Vectors) -> Vectors:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def random_vectors(count: int, dim: int, seed: int) -> Vectors:
    return unit(np.random.default_rng(seed).standard_normal((count, dim), dtype=np.float32))


def clustered_vectors(count: int, dim: int, num_queries: int) -> tuple[Vectors, Vectors]:
    """Topics as centres; passages and queries scattered around them as widely as the centres are apart."""
    rng = np.random.default_rng(0)
    centres = random_vectors(max(16, count // 100), dim, 1)
    spread = 1.0 / np.sqrt(dim)

    def draw(number: int) -> Vectors:
        near = centres[rng.integers(0, len(centres), number)]
        return unit(near + spread * rng.standard_normal((number, dim), dtype=np.float32))

    return draw(count), draw(num_queries)


def best_of(ways: dict[str, Callable[[], Any]], num_rounds: int) -> dict[str, float]:
    for way in ways.values():
        way()
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(num_rounds):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            times[name].append(time.perf_counter() - start)
    return {name: min(values) for name, values in times.items()}


CHILD = """
import pickle, sys
sys.modules["torch"] = None
import numpy as np
from parallelsearch.retrieval.vectors import ExactSearcher
vectors = np.memmap(sys.argv[1], np.float32, "r").reshape(-1, int(sys.argv[2]))
searchers = {"float32": ExactSearcher(vectors), "float16": ExactSearcher(vectors.astype(np.float16))}
while True:
    dtype, queries, k = pickle.load(sys.stdin.buffer)
    pickle.dump(searchers[dtype].search(queries, k), sys.stdout.buffer)
    sys.stdout.flush()
"""


class WithoutTorch:
    """Exact search where torch is not installed, in a process of its own: beside torch its threads and numpy's would wait for
    each other."""

    def __init__(self, path: Path, dim: int) -> None:
        command = [sys.executable, "-c", CHILD, str(path), str(dim)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def search(self, dtype: str, queries: Vectors) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        pickle.dump((dtype, queries, K), self.process.stdin)
        self.process.stdin.flush()
        return pickle.load(self.process.stdout)


def speed(arguments: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    vectors = random_vectors(arguments.num_vectors, arguments.dim, 0)
    path = folder / "vectors.bin"
    vectors.tofile(path)
    mapped = np.memmap(path, dtype=np.float32, mode="c", shape=vectors.shape)
    device = arguments.device
    devices = [device]
    ours = ExactSearcher(mapped, devices=devices)
    half = ExactSearcher(vectors.astype(np.float16), devices=devices)
    small = ExactSearcher(*quantize(vectors), devices=devices)
    plain = WithoutTorch(path, arguments.dim)
    everything = torch.from_numpy(vectors).to(device)
    rows: list[dict[str, Any]] = []
    for size in arguments.sizes:
        queries = random_vectors(size, arguments.dim, size)

        def bare_torch(queries: Vectors = queries) -> Any:
            best = (torch.from_numpy(queries).to(device) @ everything.T).topk(K)
            return best.values.cpu(), best.indices.cpu()

        def bare_numpy(queries: Vectors = queries) -> Any:
            scores = queries @ vectors.T
            best = np.argpartition(scores, -K, axis=1)[:, -K:]
            return np.take_along_axis(scores, best, axis=1)

        bare = {"bare torch": bare_torch, **({"bare numpy": bare_numpy} if device == "cpu" else {})}
        seconds = best_of(
            {
                **bare,
                "ours": lambda queries=queries: ours.search(queries, K),
                "ours float16": lambda queries=queries: half.search(queries, K),
                "ours int8": lambda queries=queries: small.search(queries, K),
                "without torch": lambda queries=queries: plain.search("float32", queries),
                "without torch, float16": lambda queries=queries: plain.search("float16", queries),
            },
            arguments.num_rounds,
        )
        if not rows:
            print(
                f"| queries | {' | '.join(seconds)} | speed of ours to the best bare |\n|{'---|' * (len(seconds) + 2)}"
            )
        ratio = min(seconds[name] for name in bare) / seconds["ours"]
        rows.append({"num_queries": size, "seconds": seconds, "ours_to_best_bare": ratio})
        cells = " | ".join(f"{value * 1000:.3g}" for value in seconds.values())
        print(f"| {size} | {cells} | {ratio:.0%} |", flush=True)
    plain.process.kill()
    return rows


def share_found(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(found.tolist(), wanted.tolist(), strict=True)]))


def recall(vectors: Vectors, queries: Vectors) -> list[dict[str, Any]]:
    exact = ExactSearcher(vectors).search(queries, K)[1]
    rows: list[dict[str, Any]] = []

    def row(name: str, search: Callable[[], np.ndarray], build_s: float = 0.0) -> None:
        start = time.perf_counter()
        found = search()
        elapsed_s = time.perf_counter() - start
        rows.append({"search": name, "recall": share_found(found, exact), "build_s": build_s, "search_s": elapsed_s})
        print(
            f"| {name} | {rows[-1]['recall']:.4f} | {build_s:.1f} | {elapsed_s / len(queries) * 1000:.2f} |", flush=True
        )

    row("exact float32", lambda: ExactSearcher(vectors).search(queries, K)[1])
    row("exact float16", lambda: ExactSearcher(vectors.astype(np.float16)).search(queries, K)[1])
    row("exact int8", lambda: ExactSearcher(*quantize(vectors)).search(queries, K)[1])
    try:
        import faiss
    except ImportError as error:
        raise MissingExtraError(f"faiss is not installed: {install_command('dense')}") from error
    nlist = default_nlist(len(vectors))
    for recipe in (f"IVF{nlist},Flat", f"IVF{nlist},SQ8", "HNSW32,Flat"):
        start = time.perf_counter()
        index = faiss.index_factory(vectors.shape[1], recipe, faiss.METRIC_INNER_PRODUCT)
        index.train(vectors[:: max(1, len(vectors) // (128 * nlist))])
        index.add(vectors)
        build_s = time.perf_counter() - start
        if not recipe.startswith("IVF"):
            row(recipe, lambda index=index: FaissSearcher(index).search(queries, K)[1], build_s)
            continue
        chosen = default_nprobe(nlist)
        for nprobe in sorted({max(1, chosen // 4), max(1, chosen // 2), chosen, min(nlist, chosen * 2)}):
            name = f"{recipe} nprobe {nprobe}" + (" (default)" if nprobe == chosen else "")
            row(name, lambda index=index, nprobe=nprobe: FaissSearcher(index, nprobe).search(queries, K)[1], build_s)
    return rows


def real_vectors(arguments: argparse.Namespace) -> tuple[Vectors, Vectors]:
    manifest = open_manifest(arguments.index, "dense")
    vectors, scales = open_vectors(arguments.index, manifest)
    questions = [str(record["question"]) for _, record in read_jsonl(arguments.queries)]
    texts = questions[:: max(1, len(questions) // arguments.num_queries)][: arguments.num_queries]
    encoder = Encoder(manifest.settings["encoder"]["name"], device=arguments.device)
    return decode(vectors, scales, slice(None)), encoder.encode_queries(texts)


def where(device: str) -> str:
    return torch.cuda.get_device_name(device) if device != "cpu" else f"{torch.get_num_threads()} threads"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-vectors", type=int, default=305_299)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--num-rounds", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 16, 64, 256], help="queries in a batch")
    parser.add_argument("--num-queries", type=int, default=500, help="for recall")
    parser.add_argument("--index", type=Path, help="a dense index folder: recall on its vectors")
    parser.add_argument("--queries", type=Path, help="JSON Lines with a field 'question'; needed with --index")
    parser.add_argument("--device", default="cpu", help="for speed, and for the encoder: cpu, cuda, cuda:1")
    parser.add_argument("--only", choices=("speed", "recall"))
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    if (arguments.index is None) != (arguments.queries is None):
        parser.error("--index and --queries go together")
    result: dict[str, Any] = {"machine": where(arguments.device)}
    if arguments.only != "recall":
        print(f"{arguments.num_vectors:,} x {arguments.dim}, milliseconds a batch, {where(arguments.device)}\n")
        with tempfile.TemporaryDirectory() as folder:
            result["speed"] = speed(arguments, Path(folder))
    if arguments.only != "speed":
        if arguments.index is None:
            vectors, queries = clustered_vectors(arguments.num_vectors, arguments.dim, arguments.num_queries)
        else:
            vectors, queries = real_vectors(arguments)
        print(f"\n{len(vectors):,} x {vectors.shape[1]}, recall@{K} of exact float32, {len(queries)} queries\n")
        print("| search | recall@10 | build s | ms a query |\n|---|---|---|---|")
        result["recall"] = recall(vectors, queries)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

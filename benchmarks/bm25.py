"""BM25: what the package costs or saves against bm25s alone, on the same index, queries and terms, in one run.

    python benchmarks/bm25.py                     # 50,000 synthetic passages, or PARALLELSEARCH_DATA's real ones
    python benchmarks/bm25.py --num-queries 500 --json

Rows: `bm25s.retrieve` on terms cut beforehand (rows and scores only), bm25s with the same work done as a user would
(cut the query, retrieve, fetch the passages), `search_blocking`, and the whole way through `Search`. Cache off.
bm25s is also shown on queries with their stop words: its choice of the best uses numpy's argpartition, which is slow on
AVX2 and AVX-512 machines where most scores are zero. To compare without that, start the benchmark with
NPY_DISABLE_CPU_FEATURES="X86_V4 X86_V3 AVX512_ICL AVX512_SPR".
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import bm25s

from parallelsearch.files import read_jsonl
from parallelsearch.retrieval.base import Passage
from parallelsearch.retrieval.bm25 import BM25Retriever, build_bm25
from parallelsearch.retrieval.corpus import read_corpus
from parallelsearch.retrieval.store import PassageStore
from parallelsearch.retrieval.terms import Analyzer, split_words
from parallelsearch.search import Search


def synthetic(num_passages: int) -> tuple[list[Passage], list[str]]:
    """Words with the frequencies of language (Zipf), and questions of ten of them around a title."""
    rng = random.Random(0)
    words = [f"word{n}" for n in range(60_000)]
    weights = list(itertools.accumulate(1 / (n + 3) for n in range(60_000)))
    draw = lambda size: " ".join(rng.choices(words, cum_weights=weights, k=size))  # noqa: E731 - used twice, right here
    passages = [Passage(str(n), draw(2), draw(90)) for n in range(num_passages)]
    return passages, [f"{rng.choice(passages).title} {draw(10)}" for _ in range(2_000)]


def real(folder: Path, is_small: bool) -> tuple[Iterator[Passage], list[str]]:
    names = ["multihop_passages"] if is_small else ["multihop_passages", "wiki_background_chunks"]
    questions = [
        str(record["question"]) for _, record in read_jsonl(folder / "corpus" / "questions_with_gold.jsonl.zst")
    ]

    def passages() -> Iterator[Passage]:
        for name in names:  # a few ids of the real file are used twice; those passages are left out
            yield from read_corpus(folder / "corpus" / f"{name}.jsonl.zst", on_bad=lambda error: None)

    return passages(), questions


def rate(function: Callable[[list[str]], object], queries: list[str]) -> float:
    start = time.perf_counter()
    function(queries)
    return len(queries) / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-passages", type=int, default=50_000, help="of the synthetic corpus")
    parser.add_argument("--small", action="store_true", help="the 89,199 multi-hop passages only")
    parser.add_argument("--num-queries", type=int, default=1_000)
    parser.add_argument("--k", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=5, help="rounds, in turn over the rows; the median ratio counts")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    data = os.environ.get("PARALLELSEARCH_DATA")
    passages, queries = real(Path(data), options.small) if data else synthetic(options.num_passages)
    queries = list(dict.fromkeys(queries))[: options.num_queries]
    k = options.k
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "index"
        report = build_bm25(passages, index)
        build_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        start = time.perf_counter()
        retriever = BM25Retriever(index)
        open_s = time.perf_counter() - start
        bare, store, analyzer = bm25s.BM25.load(index, mmap=True), PassageStore.open(index), Analyzer()
        cut = {query: analyzer.query_terms(query) for query in queries}
        with_stop_words = {query: [analyzer.term(word) for word in split_words(query)] for query in queries}

        def bare_terms(asked: list[str]) -> object:
            return bare.retrieve([cut[query] for query in asked], k=k, show_progress=False)

        def bare_stop_words(asked: list[str]) -> object:
            return bare.retrieve([with_stop_words[query] for query in asked], k=k, show_progress=False)

        def bare_user(asked: list[str]) -> object:
            rows = bare.retrieve([analyzer.query_terms(query) for query in asked], k=k, show_progress=False).documents
            return [store.get_many(row) for row in rows]

        def blocking(asked: list[str]) -> object:
            return retriever.search_blocking(asked, k)

        def layer(asked: list[str]) -> object:
            async def run() -> object:
                search = Search(retriever, k=k, cache_size=0, timeout_s=600)
                found = await search.search_many(asked)
                assert all(one.error is None for one in found)
                return found

            return asyncio.run(run())

        rows = {
            "bm25s, terms only": bare_terms,
            "bm25s, terms only, stop words kept": bare_stop_words,
            "bm25s, text to passages": bare_user,
            "BM25Retriever": blocking,
            "Search over BM25Retriever": layer,
        }
        for function in rows.values():
            function(queries[:50])
        rates: dict[str, list[float]] = {name: [] for name in rows}
        for _ in range(options.repeat):  # in turn, so that a busy moment of the machine hits all of them
            for name, function in rows.items():
                rates[name].append(rate(function, queries))
    middle = {name: sorted(values)[len(values) // 2] for name, values in rates.items()}

    def ratio(name: str) -> float:
        each = sorted(own / other for own, other in zip(rates["Search over BM25Retriever"], rates[name], strict=True))
        return each[len(each) // 2]

    summary = {
        "num_passages": report.num_passages,
        "num_queries": len(queries),
        "k": k,
        "build_s": round(report.seconds, 1),
        "index_mb": round(report.bytes / 1e6, 1),
        "open_s": round(open_s, 3),
        "peak_build_mb": round(build_mb),
        "queries_per_s": {name: round(value) for name, value in middle.items()},
        "search_layer_against": {name: round(ratio(name), 2) for name in rows if name.startswith("bm25s")},
    }
    if options.json:
        json.dump(summary, sys.stdout, indent=2)
        print()
        return
    print(
        f"{report.num_passages} passages, {len(queries)} queries, k={k}: built in {report.seconds:.1f} s, index "
        f"{summary['index_mb']} MB, peak memory of the build {build_mb:.0f} MB, opened in {open_s:.3f} s\n"
    )
    print(f"{'':36}{'queries/s':>10}{'Search against it':>20}")
    for name, value in middle.items():
        print(f"{name:36}{value:10.0f}{ratio(name):19.2f}x")


if __name__ == "__main__":
    main()

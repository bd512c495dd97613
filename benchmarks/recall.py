"""Recall of gold passages: BM25, dense and hybrid, for the question as the query and for the gold titles as sub-queries.

    PARALLELSEARCH_DATA=DATA python benchmarks/recall.py --encoder minilm --max-passages 30000 --work DIR
    PARALLELSEARCH_DATA=DATA python benchmarks/recall.py --encoder FOLDER --encoder FOLDER2 --device cuda --work DIR

Where BM25 cannot run (a bare GPU machine), `--dense-only --save-rankings FILE` keeps the dense rankings; afterwards,
anywhere, `--rankings FILE` joins them with BM25 over the same corpus. `--tune` then tries fusion settings: chosen on one half
of the questions, measured on the other, both ways round.

A title counts as found when one of its gold passages is among the first k. Question as query: mean share of a question's
gold titles among k hits, and the share of questions with all of them. Title as query: the share of titles found by their own
sub-query. Indexes are kept under --work and used again; `--max-passages` keeps every gold passage and a seeded sample of
the rest. The questions are those of the dev splits whose gold passages are all in the corpus.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from parallelsearch.errors import IndexDamagedError
from parallelsearch.files import read_jsonl
from parallelsearch.retrieval.base import Hit, Passage, Result, Retriever
from parallelsearch.retrieval.corpus import read_passages
from parallelsearch.retrieval.dense import DenseRetriever, build_dense
from parallelsearch.retrieval.encoder import Encoder
from parallelsearch.retrieval.hybrid import HybridRetriever, fuse
from parallelsearch.retrieval.store import open_manifest

CORPUS_FILES = ("multihop_passages", "wiki_background_chunks")
DEPTHS = (3, 5, 10)
SAVED_DEPTH = 50
TUNED_WEIGHTS = ((1.0, 1.0), (1.5, 1.0), (2.0, 1.0), (3.0, 1.0), (4.0, 1.0), (1.0, 1.5), (1.0, 2.0))
TUNED_RRF_K = (2, 5, 10, 20, 60)


def data_file(folder: Path, name: str) -> Path:
    """Compressed or not, as it was brought."""
    found = [path for end in (".jsonl.zst", ".jsonl.gz", ".jsonl") if (path := folder / f"{name}{end}").is_file()]
    return found[0] if found else folder / f"{name}.jsonl.zst"


class SavedRankings(Retriever):
    """Answers from a file of rankings that another machine made: ids only."""

    name = "dense"

    def __init__(self, record: dict[str, Any]) -> None:
        self.record = record

    async def search_many(self, queries: Sequence[str], k: int) -> list[Result]:
        found = [self.record["rankings"][query][:k] for query in queries]
        return [[Hit(id, "", "", rank=rank) for rank, id in enumerate(ids, 1)] for ids in found]

    def describe(self) -> dict[str, Any]:
        return {"kind": self.name, "corpus_sha256": self.record["corpus_sha256"]}


def load_questions(folder: Path, limit: int | None) -> list[dict[str, Any]]:
    records = (record for _, record in read_jsonl(data_file(folder, "questions_with_gold")))
    dev = [record for record in records if record["split"] == "dev" and record["all_gold_in_corpus"]]
    random.Random(0).shuffle(dev)
    return dev[:limit]


def all_gold_ids(folder: Path) -> set[str]:
    """Of every dev question, whatever --max-questions: the corpus must not depend on it."""
    return {id for record in load_questions(folder, None) for ids in record["gold_passage_ids"].values() for id in ids}


def corpus(folder: Path, max_passages: int | None) -> Iterator[Passage]:
    def everything() -> Iterator[Passage]:
        seen: set[str] = set()  # one id occurs twice
        for name in CORPUS_FILES:
            for passage in read_passages(data_file(folder, name)):
                if passage.id not in seen:
                    seen.add(passage.id)
                    yield passage

    if max_passages is None:
        yield from everything()
        return
    gold = all_gold_ids(folder)
    others = [passage.id for passage in everything() if passage.id not in gold]
    if max_passages < len(gold):
        sys.exit(f"--max-passages {max_passages}: the gold passages alone are {len(gold)}")
    kept = gold | set(random.Random(0).sample(others, min(len(others), max_passages - len(gold))))
    yield from (passage for passage in everything() if passage.id in kept)


def is_built(out: Path, kind: str) -> bool:
    try:
        open_manifest(out, kind)
    except IndexDamagedError:
        return False
    return True


def progress(done: int, total: int | None) -> None:
    print(f"\r  {f'encoded {done:,} of {total:,}' if total else f'read {done:,}'}", end="", file=sys.stderr, flush=True)


async def ask(retriever: Retriever, queries: Sequence[str], k: int) -> dict[str, list[str]]:
    """Distinct query -> ids of its hits."""
    distinct = list(dict.fromkeys(queries))
    found: dict[str, list[str]] = {}
    for start in range(0, len(distinct), 256):
        batch = distinct[start : start + 256]
        for query, result in zip(batch, await retriever.search_many(batch, k), strict=True):
            if not isinstance(result, list):
                sys.exit(f"{retriever.name}: {query!r}: {result}")
            found[query] = [hit.id for hit in result]
    return found


def measure(questions: list[dict[str, Any]], found: dict[str, list[str]], by: str) -> dict[str, dict[str, float]]:
    """Group -> metric -> mean. Groups are `all` and each dataset with its question type."""
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for question in questions:
        group = f"{question['dataset']} {question.get('type') or ''}".strip()
        gold: dict[str, list[str]] = question["gold_passage_ids"]
        for k in DEPTHS:
            hits = [
                bool(set(found[question["question"] if by == "question" else title][:k]) & set(gold[title]))
                for title in gold
            ]
            for name in ("all", group):
                values[name][f"recall@{k}"].append(sum(hits) / len(hits))
                values[name][f"complete@{k}"].append(float(all(hits)))
    return {
        group: {"n": len(metrics["recall@3"]), **{name: sum(v) / len(v) for name, v in metrics.items()}}
        for group, metrics in values.items()
    }


def build_all(arguments: argparse.Namespace, folder: Path) -> tuple[Path, dict[str, Path], dict[str, float]]:
    from parallelsearch.retrieval.bm25 import build_bm25

    size = "all" if arguments.max_passages is None else str(arguments.max_passages)
    build_s: dict[str, float] = {}
    weight = arguments.title_weight
    lexical = arguments.work / (f"bm25-{size}" if weight == 1 else f"bm25-{size}-title-{weight}")
    if not arguments.dense_only and not is_built(lexical, "bm25"):
        start = time.perf_counter()
        build_bm25(corpus(folder, arguments.max_passages), lexical, title_weight=weight)
        build_s["bm25"] = time.perf_counter() - start
    dense: dict[str, Path] = {}
    for encoder in arguments.encoder:
        label = Path(encoder).name
        dense[label] = arguments.work / f"dense-{label}-{arguments.dtype}-{size}"
        if not is_built(dense[label], "dense"):
            start = time.perf_counter()
            build_dense(
                corpus(folder, arguments.max_passages),
                dense[label],
                Encoder(
                    encoder,
                    device=arguments.device,
                    batch_size=arguments.batch_size,
                    precision=arguments.precision,
                ),
                dtype=arguments.dtype,
                batch_size=arguments.batch_size,
                on_progress=progress,
            )
            print(file=sys.stderr)
            build_s[label] = time.perf_counter() - start
    return lexical, dense, build_s


async def run(arguments: argparse.Namespace) -> dict[str, Any]:
    from parallelsearch.retrieval.bm25 import BM25Retriever

    folder = Path(os.environ["PARALLELSEARCH_DATA"]) / "corpus"
    questions = load_questions(folder, arguments.max_questions)
    lexical_dir, dense_dirs, build_s = build_all(arguments, folder)
    dense: dict[str, Retriever] = {
        label: DenseRetriever(path, device=arguments.device) for label, path in dense_dirs.items()
    }
    for path in arguments.rankings:
        for record in json.loads(path.read_text("utf-8")):
            dense[record["label"]] = SavedRankings(record)
    retrievers: dict[str, Retriever] = {f"dense {label}": part for label, part in dense.items()}
    if not arguments.dense_only:
        lexical = BM25Retriever(lexical_dir)
        settings = {"weights": arguments.weights, "rrf_k": arguments.rrf_k, "part_timeout_s": None}
        hybrids = {f"hybrid {label}": HybridRetriever([lexical, part], **settings) for label, part in dense.items()}
        retrievers = {"bm25": lexical, **retrievers, **hybrids}
    queries = {
        "question": [question["question"] for question in questions],
        "title": [title for question in questions for title in question["gold_passage_ids"]],
    }
    rows: list[dict[str, Any]] = []
    for name, retriever in retrievers.items():
        for by, texts in queries.items():
            start = time.perf_counter()
            found = await ask(retriever, texts, max(DEPTHS))
            elapsed_s = time.perf_counter() - start
            rows.append(
                {
                    "retriever": name,
                    "query": by,
                    "queries_per_s": len(set(texts)) / elapsed_s,
                    "groups": measure(questions, found, by),
                }
            )
            print_row(rows[-1])
    every = [*queries["question"], *queries["title"]]
    tuned: list[dict[str, Any]] = []
    if arguments.tune:
        by_words = await ask(lexical, every, SAVED_DEPTH)
        for label, part in dense.items():
            tuned += tune(label, questions, [by_words, await ask(part, every, SAVED_DEPTH)])
    if arguments.save_rankings:
        saved = [
            {
                "label": label,
                "corpus_sha256": part.describe()["corpus_sha256"],
                "rankings": await ask(part, every, SAVED_DEPTH),
            }
            for label, part in dense.items()
        ]
        arguments.save_rankings.write_text(json.dumps(saved), encoding="utf-8")
    manifest = (
        open_manifest(lexical_dir) if not arguments.dense_only else open_manifest(next(iter(dense_dirs.values())))
    )
    return {
        "num_passages": manifest.num_passages,
        "corpus_sha256": manifest.corpus_sha256,
        "num_questions": len(questions),
        "dtype": arguments.dtype,
        "precision": arguments.precision,
        "hybrid": {"weights": arguments.weights, "rrf_k": arguments.rrf_k},
        "build_s": build_s,
        "rows": rows,
        "tuned": tuned,
    }


def joined(rankings: Sequence[dict[str, list[str]]], weights: Sequence[float], rrf_k: int) -> dict[str, list[str]]:
    """Distinct query -> ids of the fused ranking."""
    found: dict[str, list[str]] = {}
    for query in rankings[0]:
        parts = [[Hit(id, "", "") for id in ranking[query]] for ranking in rankings]
        found[query] = [hit.id for hit in fuse(parts, weights, max(DEPTHS), rrf_k)]
    return found


def mean_recall(questions: list[dict[str, Any]], found: dict[str, list[str]], by: str) -> list[float]:
    every = measure(questions, found, by)["all"]
    return [every[f"recall@{k}"] for k in DEPTHS]


def tune(label: str, questions: list[dict[str, Any]], rankings: Sequence[dict[str, list[str]]]) -> list[dict[str, Any]]:
    """The best fusion setting of each half by its mean recall over depths and both kinds of query, on the other half."""
    every = {(weights, rrf_k): joined(rankings, weights, rrf_k) for weights in TUNED_WEIGHTS for rrf_k in TUNED_RRF_K}
    halves = questions[::2], questions[1::2]
    rows: list[dict[str, Any]] = []
    for chosen_on, measured_on in (halves, halves[::-1]):
        worth = {
            setting: sum(sum(mean_recall(chosen_on, found, by)) for by in ("question", "title"))
            for setting, found in every.items()
        }
        best = max(worth, key=lambda setting: worth[setting])
        for name, found in (
            ("bm25", rankings[0]),
            (f"dense {label}", rankings[1]),
            ("hybrid 1:1, 60", every[(1.0, 1.0), 60]),
            (f"hybrid {best[0][0]:g}:{best[0][1]:g}, {best[1]} (chosen on the other half)", every[best]),
        ):
            recalls = {by: mean_recall(measured_on, found, by) for by in ("question", "title")}
            rows.append({"label": label, "setting": name, "recall": recalls})
            cells = " | ".join(" / ".join(f"{value:.3f}" for value in values) for values in recalls.values())
            print(f"| {name} | {cells} |", flush=True)
    return rows


def print_row(row: dict[str, Any]) -> None:
    m = row["groups"]["all"]
    cells = [f"{m[f'recall@{k}']:.3f}" for k in DEPTHS] + [f"{m[f'complete@{k}']:.3f}" for k in DEPTHS]
    print(f"| {row['retriever']} | {row['query']} | {' | '.join(cells)} | {row['queries_per_s']:.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", action="append", default=[], help="folder, hub name or 'minilm'; may be repeated")
    parser.add_argument("--device", default=None, help="cpu, cuda, cuda:1; default: GPUs if there are any")
    parser.add_argument("--dtype", default="float32", choices=("float32", "float16", "int8"))
    parser.add_argument("--precision", default="auto", help="of the encoder while passages are encoded: see Encoder")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--max-passages", type=int, default=None)
    parser.add_argument("--max-questions", type=int, default=None)
    parser.add_argument("--work", type=Path, required=True, help="folder for the indexes")
    parser.add_argument("--title-weight", type=int, default=1, help="how often BM25 counts the words of a title")
    parser.add_argument("--weights", type=float, nargs=2, default=None, help="of BM25 and of dense in the hybrid")
    parser.add_argument("--rrf-k", type=int, default=60)
    parser.add_argument("--dense-only", action="store_true", help="no BM25, no hybrid")
    parser.add_argument("--save-rankings", type=Path, help="write the dense rankings to this file")
    parser.add_argument(
        "--rankings", type=Path, action="append", default=[], help="dense rankings saved elsewhere; may be repeated"
    )
    parser.add_argument("--tune", action="store_true", help="try weights and constants of the fusion")
    parser.add_argument("--build-only", action="store_true")
    parser.add_argument(
        "--json", type=Path, default=None, help="also write everything, by dataset and type, to this file"
    )
    arguments = parser.parse_args()
    if "PARALLELSEARCH_DATA" not in os.environ:
        sys.exit("set PARALLELSEARCH_DATA to the folder that holds corpus/questions_with_gold.jsonl.zst")
    if arguments.tune and arguments.dense_only:
        parser.error("--tune joins dense with BM25: leave --dense-only out")
    if arguments.build_only:
        build_all(arguments, Path(os.environ["PARALLELSEARCH_DATA"]) / "corpus")
        return
    print(
        "| retriever | query | R@3 | R@5 | R@10 | all@3 | all@5 | all@10 | queries/s |\n|---|---|---|---|---|---|---|---|---|"
    )
    result = asyncio.run(run(arguments))
    print(f"\n{result['num_passages']:,} passages, {result['num_questions']:,} questions; built in {result['build_s']}")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

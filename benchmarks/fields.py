"""Title and text as two fields, as Elasticsearch and OpenSearch have them: what to make of the two scores of a passage?

    PARALLELSEARCH_DATA=DATA python benchmarks/fields.py --work DIR

Each field is a BM25 index of its own, without stemming, as those servers have it by default. A passage's score is the better
of the two and a share (`tie`) of the other, or their sum. Recall of gold passages at 3, 5 and 10, by the whole question
and by the gold titles as sub-queries, as in `recall.py`.
"""

from __future__ import annotations

import argparse
import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from recall import DEPTHS, corpus, load_questions

from parallelsearch.retrieval.base import Passage
from parallelsearch.retrieval.bm25 import BM25Retriever
from parallelsearch.retrieval.indexing import build_index

DEPTH = 300
"""Hits of each field that are joined."""
BATCH = 64
NUM_TITLES = 2_000
Ranking = list[str]
Gold = list[set[str]]


def opened(work: Path, kind: str, passages: Iterator[Passage]) -> BM25Retriever:
    out = work / kind
    if not out.exists():
        build_index(passages, out, stemmer=None)
    return BM25Retriever(out)


def scores_of(index: BM25Retriever, queries: Sequence[str], k: int) -> list[dict[str, float]]:
    found = index.search_blocking(queries, k)
    return [{hit.id: hit.score for hit in result} if isinstance(result, list) else {} for result in found]


def joined(title: dict[str, float], text: dict[str, float], boost: float, tie: float) -> Ranking:
    pairs = {id: sorted((boost * title.get(id, 0.0), text.get(id, 0.0))) for id in (*title, *text)}
    return sorted(pairs, key=lambda id: -(pairs[id][1] + tie * pairs[id][0]))[: max(DEPTHS)]


def recalls(
    rank: Callable[[Sequence[str]], list[Ranking]], queries: Sequence[str], gold: Sequence[Gold]
) -> list[float]:
    rankings = [ranking for at in range(0, len(queries), BATCH) for ranking in rank(queries[at : at + BATCH])]
    return [
        sum(
            sum(bool(ids & set(ranking[:k])) for ids in wanted) / len(wanted)
            for ranking, wanted in zip(rankings, gold, strict=True)
        )
        / len(gold)
        for k in DEPTHS
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--max-questions", type=int, default=1_200)
    args = parser.parse_args()
    folder = Path(os.environ["PARALLELSEARCH_DATA"]) / "corpus"
    args.work.mkdir(parents=True, exist_ok=True)
    titles = opened(args.work, "title", (Passage(one.id, "", one.title) for one in corpus(folder, None)))
    texts = opened(args.work, "text", (Passage(one.id, "", one.text) for one in corpus(folder, None)))
    both = opened(args.work, "both", corpus(folder, None))

    def as_two(boost: float, tie: float) -> Callable[[Sequence[str]], list[Ranking]]:
        return lambda queries: [
            joined(title, text, boost, tie)
            for title, text in zip(scores_of(titles, queries, DEPTH), scores_of(texts, queries, DEPTH), strict=True)
        ]

    ways: dict[str, Callable[[Sequence[str]], list[Ranking]]] = {
        "one field": lambda queries: [list(found) for found in scores_of(both, queries, max(DEPTHS))],
        "text alone": lambda queries: [list(found) for found in scores_of(texts, queries, max(DEPTHS))],
    }
    for boost in (1, 2):
        for tie, name in ((0.0, "the better"), (0.3, "the better and 0.3 of the other"), (1.0, "their sum")):
            ways[f"title^{boost}, {name}"] = as_two(boost, tie)

    records = load_questions(folder, args.max_questions)
    questions = [record["question"] for record in records]
    of_questions: list[Gold] = [[set(ids) for ids in record["gold_passage_ids"].values()] for record in records]
    named = [(title, [set(ids)]) for record in records for title, ids in record["gold_passage_ids"].items()]
    named = random.Random(0).sample(named, min(NUM_TITLES, len(named)))
    for name, rank in ways.items():
        found = recalls(rank, questions, of_questions) + recalls(rank, *map(list, zip(*named, strict=True)))
        print(f"{name:<44}", *(f"{value:.3f}" for value in found), flush=True)


if __name__ == "__main__":
    main()

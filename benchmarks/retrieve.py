"""What splitting a question is worth to a retriever, and what it costs: gold passages found, and seconds.

    python benchmarks/retrieve.py gold --data questions_with_gold.jsonl.zst --only split=dev --only type=comparison \\
        --search bm25:DIR --policy ADDRESS --limit 150 --splits splits.jsonl
    python benchmarks/retrieve.py gold --data wide.jsonl --run RUN --rounds 2 --search bm25:DIR --depths 6 12 24 --parts 4
    python benchmarks/retrieve.py latency --data FILE --search bm25:DIR --policy ADDRESS --limit 20

`gold`: of the questions in a file that say where their evidence is (`gold_passage_ids`, or `supporting_titles`), the share
with all of it among the first 6 and 10 passages: for the whole question as one query, for the policy's sub-queries merged as
`retrieve` does, for the same without fairness (reciprocal rank fusion alone), and for the gold titles as sub-queries, which
is what a split could reach. 95% bootstrap intervals over questions; differences are paired. Splits are kept in a file and
not asked twice; with `--run`, they are the queries of an evaluation's first rounds, and no model is needed.

`latency`: one question at a time: seconds for a split, and what retrieve takes beyond it; on the clock, and of the processor,
which says more where other work runs beside it. The machine's load is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from parallelsearch.addresses import open_policy, open_search
from parallelsearch.evaluation.statistics import bootstrap, mean_of
from parallelsearch.files import read_jsonl
from parallelsearch.gold import gold_of
from parallelsearch.retrieval.base import Hit
from parallelsearch.retrieval.hybrid import fuse
from parallelsearch.retrieving import merge, retrieve, split
from parallelsearch.rollouts import in_order
from parallelsearch.search import Search
from parallelsearch.trajectory import Query, Question, read_trajectories

METHODS = ("whole question", "split", "split, not fair", "gold titles")


def load(args: argparse.Namespace) -> list[Question]:
    """A seeded sample of the questions that say their gold."""
    wanted = dict(pair.split("=", 1) for pair in args.only)
    known = {"id", "question", "golden_answers", "dataset", "type", "supporting_titles", "gold_passage_ids"}
    found = [
        Question(**{name: value for name, value in record.items() if name in known})
        for path in args.data
        for _, record in read_jsonl(path)
        if (record.get("gold_passage_ids") or record.get("supporting_titles"))
        and record.get("all_gold_in_corpus", True)
        and all(str(record.get(name)) == value for name, value in wanted.items())
        and args.parts in (None, len(record.get("supporting_titles") or ()))
    ]
    random.Random(args.seed).shuffle(found)
    return found[: args.limit]


def splits_of_run(folder: Path, num_rounds: int) -> dict[str, dict[str, Any]]:
    """What a policy asked in its first rounds, by the question; the question itself where it asked nothing."""
    return {
        one.question: {
            "queries": [query.text for turn in one.rounds[:num_rounds] for query in turn.queries] or [one.question]
        }
        for one in read_trajectories(folder / "trajectories.jsonl")
    }


def splits_of(questions: Sequence[Question], args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The sub-queries of every question, from a run, from the file or from the policy, which then fills the file."""
    if args.run is not None:
        return splits_of_run(args.run, args.rounds)
    path = Path(args.splits)
    known = {record["question"]: record for _, record in read_jsonl(path)} if path.exists() else {}
    missing = [question.question for question in questions if question.question not in known]
    with path.open("a", encoding="utf-8") as file:

        def keep(record: dict[str, Any]) -> None:
            known[record["question"]] = record
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
            file.flush()

        if missing:
            asyncio.run(ask_policy(missing, args, keep))
    return known


async def ask_policy(
    questions: Sequence[str], args: argparse.Namespace, keep: Callable[[dict[str, Any]], None]
) -> None:
    policy = open_policy(args.policy)

    async def one(number: int, question: str) -> None:
        found = await split(question, policy)
        if found.error is not None:
            raise SystemExit(found.error)
        elapsed_s = found.trajectory.elapsed_s or 0.0
        keep({"question": question, "queries": list(found), "note": found.note, "elapsed_s": elapsed_s})

    await in_order(one, questions, args.concurrency)
    await policy.aclose()


async def asked(texts: Sequence[str], search: Search, k: int) -> list[Query]:
    return [Query(found.text, found.hits) for found in await search.search_many(texts, k)]


async def gold(questions: Sequence[Question], splits: dict[str, dict[str, Any]], args: argparse.Namespace) -> None:
    depths: list[int] = args.depths
    search = open_search(args.search, k=max(depths))
    columns: dict[str, list[float]] = {f"{method} @{k}": [] for method in METHODS for k in depths}
    for question in questions:
        wanted = gold_of(question)
        assert wanted is not None
        whole = await asked([question.question], search, max(depths))
        parts = await asked(splits[question.question]["queries"], search, max(depths))
        titles = await asked(list(question.supporting_titles or question.gold_passage_ids or ()), search, max(depths))
        for k in depths:
            lists: dict[str, Sequence[Hit]] = {
                "whole question": whole[0].hits[:k],
                "split": merge(parts, k),
                "split, not fair": fuse([part.hits for part in parts], [1.0] * len(parts), k, rrf_k=60),
                "gold titles": merge(titles, k),
            }
            for method, hits in lists.items():
                columns[f"{method} @{k}"].append(float(wanted.recall(hits) == 1.0))
    await search.aclose()
    for k in depths:
        before = columns[f"whole question @{k}"]
        for method in ("split", "gold titles"):
            after = columns[f"{method} @{k}"]
            columns[f"{method} - whole question @{k}"] = [b - a for a, b in zip(before, after, strict=True)]
        fair, unfair = columns[f"split @{k}"], columns[f"split, not fair @{k}"]
        columns[f"split - split, not fair @{k}"] = [a - b for a, b in zip(fair, unfair, strict=True)]
    ratios = {name: mean_of(values) for name, values in columns.items()}
    intervals = bootstrap(ratios, num_resamples=2000)
    used = [splits[question.question] for question in questions]
    num_queries = statistics.fmean(len(record["queries"]) for record in used)
    num_split = sum(len(record["queries"]) > 1 for record in used)
    print(f"{len(questions)} questions; {num_split} split, {num_queries:.2f} sub-queries each on average")
    for name, ratio in ratios.items():
        low, high = intervals[name] or (0.0, 0.0)
        print(f"{name:42} {ratio.value or 0.0:7.3f}   [{low:.3f}, {high:.3f}]")


async def latency(questions: Sequence[Question], args: argparse.Namespace) -> None:
    policy, search = open_policy(args.policy), open_search(args.search)
    await split(questions[-1].question, policy)  # weights are read, and pages are in memory
    await search.find(questions[-1].question)
    load_before = os.getloadavg()[0]
    seconds: dict[str, list[float]] = {"split": [], "split, processor": [], "retrieve": [], "retrieve, processor": []}
    tokens: list[int] = []
    for question in questions:
        start_s, start_cpu_s = time.perf_counter(), time.process_time()
        found = await split(question.question, policy)
        middle_s, middle_cpu_s = time.perf_counter(), time.process_time()
        await retrieve(question.question, policy, search, k=6)
        seconds["split"].append(middle_s - start_s)
        seconds["split, processor"].append(middle_cpu_s - start_cpu_s)
        seconds["retrieve"].append(time.perf_counter() - middle_s)
        seconds["retrieve, processor"].append(time.process_time() - middle_cpu_s)
        tokens.append(sum(turn.num_tokens or 0 for turn in found.trajectory.turns))
    await search.aclose()
    await policy.aclose()
    print(f"{len(questions)} questions, load {load_before:.1f} before and {os.getloadavg()[0]:.1f} after")
    print(f"tokens of a first turn: median {statistics.median(tokens):.0f}")
    for name, values in seconds.items():
        ordered = sorted(values)
        print(
            f"{name:20} median {statistics.median(ordered):.3f} s   90% {ordered[int(0.9 * (len(ordered) - 1))]:.3f} s"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["gold", "latency"])
    parser.add_argument("--data", nargs="+", required=True, help="JSON Lines files of questions with gold_passage_ids")
    parser.add_argument("--only", action="append", default=[], metavar="FIELD=VALUE", help="may be repeated")
    parser.add_argument("--search", required=True)
    parser.add_argument("--policy", help="who splits, unless --run says what was asked")
    parser.add_argument("--run", type=Path, help="gold: a folder of `parallelsearch eval`")
    parser.add_argument("--rounds", type=int, default=1, help="of the run")
    parser.add_argument("--depths", type=int, nargs="+", default=[6, 10], help="passages")
    parser.add_argument("--parts", type=int, help="only questions with so many supporting pages")
    parser.add_argument("--limit", type=int, default=300)
    parser.add_argument("--splits", default="splits.jsonl", help="where splits are kept")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if (args.policy is None) == (args.run is None) or (args.what == "latency" and args.policy is None):
        parser.error("say --policy ADDRESS, or for gold --run FOLDER")
    questions = load(args)
    if args.what == "gold":
        asyncio.run(gold(questions, splits_of(questions, args), args))
    else:
        asyncio.run(latency(questions, args))


if __name__ == "__main__":
    main()

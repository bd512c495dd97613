"""Baselines of one model on all dev questions, side by side: the rows that a trained policy has to beat.

    PARALLELSEARCH_DATA=... python benchmarks/baselines.py --index DIR --out DIR [--build] [--device cuda] [--limit N]
        [--policy hf:smollm2-135m] [--trained hf:smollm2-135m+parallel] [--rows direct rag gold sequential parallel]

Each row is a dialect, evaluated in a folder of its own below `--out`, so that a run that was stopped goes on when the command
is given again. `gold` is RAG over the gold passages of each question; `parallel` is the package's own with the policy of
`--trained`. `--build` makes the BM25 index first, over the two corpora of the data folder. At the end `baselines.md` has the
table and `baselines.json` the summaries of all rows. Needs no command line package, so it also runs where only the library's
own imports are installed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path
from typing import Any

from evaluation import CORPORA, build_index
from parallelsearch.addresses import open_policy, open_search
from parallelsearch.data.place import data_folder
from parallelsearch.data.sets import QuestionSet, load_questions
from parallelsearch.dialects import DIALECTS
from parallelsearch.evaluation.comparison import compare
from parallelsearch.evaluation.gold import GoldRetriever
from parallelsearch.evaluation.report import write_comparison
from parallelsearch.evaluation.run import EvaluationSettings, Progress, run_questions
from parallelsearch.limits import Limits
from parallelsearch.policy.base import Policy
from parallelsearch.search import Search

ROWS = (*DIALECTS, "gold")
LIMITS = Limits(max_turns=4, max_tokens_per_turn=160, max_observation_tokens=600, max_tokens=2048, timeout_s=3600.0)
COLUMNS = ("em", "f1", "sub_em", "num_llm_calls", "num_searches", "gold_recall", "decomposition_accuracy")


def open_row_search(row: str, index: Path, questions: QuestionSet) -> Search:
    if row != "gold":
        return open_search(f"bm25:{index}", k=3)
    folder = data_folder()
    if folder is None:
        raise SystemExit("set PARALLELSEARCH_DATA to the folder that has corpus/")
    return Search(GoldRetriever.from_corpus(questions.questions, [folder / "corpus" / name for name in CORPORA]), k=4)


def open_row_policy(address: str, options: argparse.Namespace) -> Policy:
    """A local model gets room for what the limits allow and no more: memory for its whole context, times all slots, is
    more than a GPU has."""
    if not address.startswith("hf:"):
        return open_policy(address)
    device = {"device": options.device} if options.device else {}
    return open_policy(address, max_context=LIMITS.max_tokens, **device)


async def run_row(row: str, questions: QuestionSet, policy: Policy, options: argparse.Namespace) -> dict[str, Any]:
    dialect = "rag" if row == "gold" else row
    settings = EvaluationSettings(dialect=dialect, limits=LIMITS, seed=options.seed, concurrency=options.concurrency)
    search = open_row_search(row, options.index, questions)
    start_s = last_s = time.perf_counter()

    def show(at: Progress) -> None:
        nonlocal last_s
        if time.perf_counter() - last_s > 20 or at.num_done == at.num_total:
            last_s = time.perf_counter()
            done = f"{at.num_done} of {at.num_total}, EM {at.em:.3f}, {at.num_failed} failed"
            print(f"{row}: {done}, {last_s - start_s:.0f} s", flush=True)

    try:
        return await run_questions(questions, policy, search, options.out / row, settings, show)
    finally:
        await search.aclose()


def line_of(row: str, summary: dict[str, Any]) -> str:
    values = next(iter(summary["subsets"].values()))
    low, high = values["ci95"]["em"]
    cells = [f"{values[name]:.3f}" if values[name] is not None else "" for name in COLUMNS[1:]]
    share = values["generate_s"] / values["elapsed_s"] if values["elapsed_s"] else 0.0
    stops = values["stops"]
    lost = f"{values['failures']} / {stops.get('timeout', 0)} / {values['num_invalid']}"
    interval = f"{values['em']:.3f} [{low:.3f}, {high:.3f}]"
    return (
        f"| {row} | {values['n']} | {interval} | {' | '.join(cells)} | {share:.1%} | {lost} | {summary['wall_s']:.0f} |"
    )


def write_table(summaries: dict[str, dict[str, Any]], out: Path) -> str:
    head = ["row", "n", "EM", "F1", "substring EM", "LLM calls", "searches", "gold recall", "decomposition accuracy"]
    head += ["in the model", "failed / timed out / unusable turns", "wall s"]
    first = next(iter(next(iter(summaries.values()))["subsets"].values()))
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines.append(f"| blind guess | {first['n']} | {first['chance_em']:.3f} |" + " |" * (len(head) - 3))
    lines += [line_of(row, summary) for row, summary in summaries.items()]
    text = "\n".join(lines) + "\n"
    (out / "baselines.md").write_text(text)
    (out / "baselines.json").write_text(json.dumps(summaries, indent=1) + "\n")
    return text


async def run(options: argparse.Namespace) -> None:
    questions = load_questions(options.data, split=options.split, limit=options.limit, seed=options.seed)
    summaries: dict[str, dict[str, Any]] = {}
    opened: dict[str, Policy] = {}
    for row in options.rows:
        address = options.trained if row == "parallel" else options.policy
        if address not in opened:
            opened[address] = open_row_policy(address, options)
        summaries[row] = await run_row(row, questions, opened[address], options)
        write_table(summaries, options.out)
    for policy in opened.values():
        await policy.aclose()
    print(write_table(summaries, options.out))
    if len(options.rows) > 1:
        # The gold row has another search by its nature; the comparison says so.
        found = compare([options.out / row for row in options.rows], allow=["search"], seed=options.seed)
        print(write_comparison(found, options.out / "comparison"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", type=Path, required=True)
    parser.add_argument("--build", action="store_true", help="make the index first, if it is not there")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--policy", default="hf:smollm2-135m")
    parser.add_argument("--trained", default="hf:smollm2-135m+parallel")
    parser.add_argument("--rows", nargs="+", default=["direct", "rag", "sequential"], choices=ROWS)
    parser.add_argument("--data", default="questions_with_gold")
    parser.add_argument("--split", default="dev")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", help="cuda or cpu; the default takes CUDA where there is one")
    parser.add_argument("--concurrency", type=int, default=512, help="questions at once: about 8 on two CPU cores")
    options = parser.parse_args()
    if options.build and not (options.index / "manifest.json").exists():
        build_index(options.index)
    options.out.mkdir(parents=True, exist_ok=True)
    asyncio.run(run(options))


if __name__ == "__main__":
    main()

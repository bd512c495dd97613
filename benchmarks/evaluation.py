"""How fast an evaluation is with a policy that costs nothing: everything but the model.

    PARALLELSEARCH_DATA=... python benchmarks/evaluation.py --index DIR [--questions 1000] [--build]
    PARALLELSEARCH_DATA=... python benchmarks/evaluation.py --data seven --questions 0

Questions are drawn from `questions_with_gold` (dev), or from `--data` (0 takes all of it); the script searches for the gold
titles, or the question itself (at once on parallel and mixed questions, one after another on chains), and gives the golden
answer. The index is a BM25 folder over the two corpora of the data folder (`--build` makes it), the embedded corpus without
one. The time of loading the index is reported apart. Targets: 1,000 questions in under 20 s; the seven sets without holding
their trajectories in memory.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import resource
import shutil
import tempfile
import time
from pathlib import Path

from parallelsearch import grammar
from parallelsearch.data import demo
from parallelsearch.data.sets import load_questions
from parallelsearch.evaluation.folder import read_rows
from parallelsearch.evaluation.report import choose_examples, write_report
from parallelsearch.evaluation.run import EvaluationSettings, run_questions
from parallelsearch.policy.scripted import ScriptedPolicy
from parallelsearch.retrieval.bm25 import BM25Retriever, build_bm25
from parallelsearch.retrieval.corpus import read_passages
from parallelsearch.search import Search
from parallelsearch.trajectory import Question
from parallelsearch.viewer.html import export_html

CORPORA = ("multihop_passages.jsonl.zst", "wiki_background_chunks.jsonl.zst")


def build_index(target: Path) -> None:
    """The BM25 index over all 305,293 passages of the data folder."""
    folder = Path(os.environ["PARALLELSEARCH_DATA"]) / "corpus"
    build_bm25(itertools.chain(*(read_passages(folder / name) for name in CORPORA)), target, skip_bad=True)


def script_of(question: Question) -> list[str]:
    wanted = question.supporting_titles or [question.question]
    titles = list(dict.fromkeys(" ".join(text.replace(grammar.SEPARATOR, " ").split()) for text in wanted))
    rounds = [titles[:5]] if question.kind in ("parallel", "mixed") else [[title] for title in titles[:4]]
    turns = [grammar.render_turn("Look it up.", queries) for queries in rounds]
    return [*turns, grammar.render_turn("That settles it.", answer=(question.golden_answers or ["nothing"])[0])]


async def run(index: Path | None, data: str, num_questions: int, concurrency: int) -> None:
    start = time.perf_counter()
    retriever = demo.retriever() if index is None else BM25Retriever(index)
    await retriever.search_many(["warm up"], 3)
    loaded = time.perf_counter()
    questions = load_questions(data, limit=num_questions or None)
    policy = ScriptedPolicy({question.question: script_of(question) for question in questions})
    ready = time.perf_counter()
    out = Path(tempfile.mkdtemp(prefix="parallelsearch-benchmark-"))
    try:
        search = Search(retriever, timeout_s=300.0)
        settings = EvaluationSettings(concurrency=concurrency)
        before = peak_mib()
        summary = await run_questions(questions, policy, search, out, settings)
        done, evaluated = time.perf_counter(), peak_mib()
        export_html(out, out / "viewer.html", first=choose_examples(read_rows(out)))
        write_report(out, viewer="viewer.html")
        end = time.perf_counter()
        size = (out / "trajectories.jsonl").stat().st_size
    finally:
        shutil.rmtree(out)
    total = summary["subsets"].get("all") or next(iter(summary["subsets"].values()))
    print(f"passages                 {len(retriever):>10,}")
    print(f"questions                {total['n']:>10,}")
    print(f"sub-queries              {search.stats.num_queries:>10,}")
    print(f"load the index           {loaded - start:>10.2f} s")
    print(f"load the questions       {ready - loaded:>10.2f} s")
    print(f"evaluate and sum up      {done - ready:>10.2f} s   ({summary['wall_s']:.2f} s of it asking)")
    print(f"report, plots and viewer {end - done:>10.2f} s")
    print(f"trajectories.jsonl       {size / 1e6:>10.1f} MB")
    print(f"peak memory, loaded      {before:>10.0f} MiB")
    print(f"peak memory, evaluated   {evaluated:>10.0f} MiB")
    print(f"peak memory, reported    {peak_mib():>10.0f} MiB")
    print(f"EM {total['em']:.3f}  gold recall {total['gold_recall'] or 0.0:.3f}  failures {total['failures']}")


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", type=Path)
    parser.add_argument("--data", default="questions_with_gold")
    parser.add_argument("--questions", type=int, default=1000, help="how many of each set; 0 for all")
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--build", action="store_true")
    options = parser.parse_args()
    if options.build:
        if options.index is None:
            parser.error("--build needs --index DIR, the folder to make")
        build_index(options.index)
    asyncio.run(run(options.index, options.data, options.questions, options.concurrency))


if __name__ == "__main__":
    main()

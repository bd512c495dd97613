"""Questions of one fact whose answer stands in the corpus: a file for `parallelsearch eval --data`.

A question is kept when one of the first passages BM25 finds for it has a golden answer in its text, so that a wrong answer is
the policy's and not the corpus's. The rule is the same for every set; it favours questions that share words with their page.

    python benchmarks/covered_questions.py --data nq popqa triviaqa --index indexes/passages --num 400 --out covered.jsonl
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

from parallelsearch.answers import normalise
from parallelsearch.data.sets import load_questions
from parallelsearch.retrieval.bm25 import BM25Retriever
from parallelsearch.trajectory import Question


def is_covered(question: Question, texts: list[str]) -> bool:
    answers = [f" {normalise(answer)} " for answer in question.golden_answers if normalise(answer)]
    return any(answer in f" {normalise(text)} " for text in texts for answer in answers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["nq", "popqa", "triviaqa"])
    parser.add_argument("--index", required=True)
    parser.add_argument("--num", type=int, default=400, help="of each set")
    parser.add_argument("--depth", type=int, default=20, help="passages looked at for each question")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    retriever = BM25Retriever(args.index)
    with open(args.out, "w", encoding="utf-8") as file:
        for name in args.data:
            questions = list(load_questions(name, split="test").questions)
            random.Random(f"{args.seed}/{name}").shuffle(questions)
            num_kept = num_asked = 0
            for question in questions:
                if num_kept == args.num:
                    break
                num_asked += 1
                hits = retriever.search_blocking([question.question], args.depth)[0]
                if isinstance(hits, list) and is_covered(question, [hit.text for hit in hits]):
                    num_kept += 1
                    record = {"id": question.id, "question": question.question, "kind": "single", "dataset": name}
                    file.write(json.dumps({**record, "golden_answers": question.golden_answers}) + "\n")
            print(f"{name}: {num_kept} kept of {num_asked} looked at")
    print(Path(args.out))


if __name__ == "__main__":
    main()

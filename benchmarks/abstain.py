"""How often the agent abstains when the evidence is there and when it is not.

    python benchmarks/abstain.py                                             # the demo policy, all demo questions
    python benchmarks/abstain.py --policy hf:smollm2-135m+parallel --questions 60

Each question is asked four times: over the demo corpus as it is; without the question's gold passages; without those and
all others that hold a golden answer; and over passages about something else. An answer that is right although the evidence
is missing was known or guessed, or stands in the question.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from parallelsearch import demo
from parallelsearch.addresses import open_policy
from parallelsearch.answers import exact_match, normalise
from parallelsearch.data import demo_questions
from parallelsearch.policy.base import Policy
from parallelsearch.retrieval.base import Passage, Result, Retriever
from parallelsearch.retrieval.bm25 import BM25Retriever
from parallelsearch.rollout import Limits, rollout
from parallelsearch.search import Search
from parallelsearch.server.answering import reply_of
from parallelsearch.trajectory import Question, Trajectory

UNRELATED = [
    Passage("u1", "Sourdough", "Bread leavened by wild yeast. The starter is fed with flour and water every day."),
    Passage("u2", "Chess opening", "The first moves of a game, many of them with names, studied in books."),
    Passage("u3", "Tide", "Sea level rises and falls twice a day under the pull of the Moon."),
    Passage("u4", "Bicycle chain", "It carries the force of the pedals to the rear wheel and wants oil."),
]
CORPORA = ("whole", "without gold", "without answer", "unrelated")


class Without(Retriever):
    """Another retriever whose hits lack these passages, as if the corpus did."""

    def __init__(self, inner: Retriever, banned: set[str]) -> None:
        self._inner, self._banned = inner, banned
        self.name, self.max_batch = inner.name, inner.max_batch

    async def search_many(self, queries: Sequence[str], k: int) -> list[Result]:
        found = await self._inner.search_many(queries, k + len(self._banned))
        return [
            one if isinstance(one, Exception) else [hit for hit in one if hit.id not in self._banned][:k]
            for one in found
        ]


def missing(question: Question, passages: Sequence[Passage], corpus: str) -> set[str]:
    """Ids of the passages that a corpus lacks for this question."""
    titles = set(question.supporting_titles or []) if corpus.startswith("without") else set()
    wanted = [f" {normalise(answer)} " for answer in question.golden_answers if normalise(answer) not in ("yes", "no")]
    answers = wanted if corpus == "without answer" else []
    return {
        passage.id
        for passage in passages
        if passage.title in titles
        or any(answer in f" {normalise(f'{passage.title} {passage.text}')} " for answer in answers)
    }


async def ask_all(policy: Policy, questions: Sequence[Question], corpus: str) -> list[Trajectory]:
    passages = demo.passages()
    whole = BM25Retriever.from_passages(UNRELATED if corpus == "unrelated" else passages)

    async def one(question: Question) -> Trajectory:
        search = Search(Without(whole, missing(question, passages, corpus)), cache_size=0)
        return await rollout(question, policy, search, Limits(timeout_s=None))

    done = await asyncio.gather(*(one(question) for question in questions))
    await whole.aclose()
    return list(done)


async def measure(policy: Policy, questions: Sequence[Question]) -> dict[str, dict[str, int]]:
    figures: dict[str, dict[str, int]] = {}
    print(f"{len(questions)} questions, policy {policy.name}")
    columns = ("right", "wrong", "abstained right", "abstained wrong", "no_answer", "no_evidence", "unsupported")
    print(f"{'corpus':<18}" + "".join(f"{column:>17}" for column in columns))
    for corpus in CORPORA:
        counts: Counter[str] = Counter()
        for trajectory in await ask_all(policy, questions, corpus):
            reply = reply_of(trajectory, abstain=True)
            is_right = bool(exact_match(trajectory.answer, trajectory.golden_answers))
            counts[f"{'abstained ' if reply.abstained else ''}{'right' if is_right else 'wrong'}"] += 1
            if reply.abstained:
                counts[reply.abstained] += 1
        figures[corpus] = dict(counts)
        print(f"{corpus:<18}" + "".join(f"{counts[column]:>17}" for column in columns), flush=True)
    return figures


async def run(options: argparse.Namespace) -> None:
    policy = open_policy(options.policy)
    if isinstance(policy, demo.DemoPolicy):
        policy.tokens_per_s = None
    asked = demo_questions()
    figures = await measure(policy, asked[:: max(1, len(asked) // options.questions)][: options.questions])
    await policy.aclose()
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default="demo", help="the policy's address")
    parser.add_argument("--questions", type=int, default=179, help="how many demo questions, spread over all")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()

"""What comes in the box: a corpus of short passages and questions over it, written for this package.

The demo policy replays the turns written down with each question; it is no model, and says so when asked anything else.
"""

from __future__ import annotations

from importlib.resources import files

from parallelsearch import grammar
from parallelsearch.data import demo_questions
from parallelsearch.errors import PolicyError
from parallelsearch.policy.scripted import ScriptedPolicy
from parallelsearch.retrieval.base import Passage, Retriever
from parallelsearch.retrieval.bm25 import BM25Retriever
from parallelsearch.retrieval.corpus import read_passages
from parallelsearch.trajectory import Segment

TOKENS_PER_S = 400.0
"""About the pace of a small model, so that one can watch."""


def corpus_path() -> str:
    """The demo corpus, JSON Lines as any corpus."""
    return str(files("parallelsearch.demo") / "corpus.jsonl")


def passages() -> list[Passage]:
    return list(read_passages(corpus_path()))


def retriever() -> Retriever:
    """BM25 over the demo corpus, in memory."""
    return BM25Retriever.from_passages(passages())


def turns() -> dict[str, list[str]]:
    """For each demo question the turns written for it."""
    written: dict[str, list[str]] = {}
    for question in demo_questions():
        script = question.metadata or {}
        *thoughts, last = script["thoughts"]
        written[question.question] = [
            grammar.render_turn(thought, queries=queries)
            for thought, queries in zip(thoughts, script["rounds"], strict=True)
        ] + [grammar.render_turn(last, answer=question.golden_answers[0])]
    return written


class DemoPolicy(ScriptedPolicy):
    """Replays the written turns of the demo questions."""

    def __init__(self) -> None:
        script = turns()
        super().__init__(script, tokens_per_s=TOKENS_PER_S, name="demo")
        self._known = {grammar.query_key(question) for question in script}

    def prompt(self, text: str, question: str) -> Segment:
        if grammar.query_key(question) not in self._known:
            raise PolicyError(
                f"the demo policy is no model: it replays turns written for the {len(self._known)} questions that come "
                "with the package (parallelsearch data demo lists them), and this is not one of them. For any question, "
                "give a model: --policy openai:http://HOST:PORT/v1#MODEL, or --policy hf:PATH_OR_ID"
            )
        return super().prompt(text, question)

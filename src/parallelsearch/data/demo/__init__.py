"""What comes in the box: a corpus of short passages and questions over it, written for this package.

The demo policy replays the turns written down with each question; it is no model, and says so when asked anything else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from parallelsearch import grammar
from parallelsearch.data.questions import demo_questions
from parallelsearch.errors import PolicyError
from parallelsearch.policy import auto
from parallelsearch.policy.scripted import ScriptedPolicy
from parallelsearch.retrieval.base import Passage, Result, Retriever, WrappingRetriever
from parallelsearch.retrieval.bm25 import BM25Retriever
from parallelsearch.retrieval.corpus import read_passages
from parallelsearch.trajectory import Segment

TOKENS_PER_S = 400.0
"""About the pace of a small model, so that one can watch."""


def corpus_path() -> str:
    """The demo corpus, JSON Lines as any corpus."""
    return str(files("parallelsearch.data.demo") / "corpus.jsonl")


def passages() -> list[Passage]:
    return list(read_passages(corpus_path()))


def retriever(latency_s: float = 0.0) -> Retriever:
    """BM25 over the demo corpus, in memory; with `latency_s` every search takes so long, as one over the web would."""
    found = BM25Retriever.from_passages(passages())
    return PacedRetriever(found, latency_s) if latency_s > 0 else found


class PacedRetriever(WrappingRetriever):
    """Another retriever at the pace of a search over the network, so that one can watch."""

    def __init__(self, inner: Retriever, latency_s: float) -> None:
        super().__init__(inner)
        self.name, self.latency_s = f"{inner.name}, {latency_s:g} s a search", latency_s
        self.max_concurrency = 64

    async def search_many(self, queries: Sequence[str], k: int) -> list[Result]:
        await asyncio.sleep(self.latency_s)
        return await self.inner.search_many(queries, k)

    def describe(self) -> dict[str, Any]:
        return {**self.inner.describe(), "latency_s": self.latency_s}

    async def aclose(self) -> None:
        await self.inner.aclose()


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


def sequential_turns() -> dict[str, list[str]]:
    """The same rounds with one sub-query a turn: what an agent would write that asks for one thing at a time."""
    written: dict[str, list[str]] = {}
    for question in demo_questions():
        script = question.metadata or {}
        queries = [query for queries in script["rounds"] for query in queries]
        written[question.question] = [
            grammar.render_turn("I look this up first." if number == 0 else "Now the next thing.", queries=[query])
            for number, query in enumerate(queries)
        ] + [grammar.render_turn(script["thoughts"][-1], answer=question.golden_answers[0])]
    return written


def _models() -> str:
    """What to type for a model, what works at once first."""
    ready = "--policy auto (works here at once), " if auto.is_model() else ""
    return f"{ready}--policy gguf:FILE, --policy openai:http://HOST:PORT/v1#MODEL, or --policy hf:PATH_OR_ID"


class DemoPolicy(ScriptedPolicy):
    """Replays the written turns of the demo questions: where the prompt speaks of sub-queries, all parts at once; where it
    does not, one at a time. A model would go by the prompt, too."""

    may_write = False

    def __init__(self) -> None:
        super().__init__(turns(), tokens_per_s=TOKENS_PER_S, name="demo")
        self._one_at_a_time = ScriptedPolicy(sequential_turns(), tokens_per_s=TOKENS_PER_S, name="demo")
        self._known = {grammar.query_key(question.question) for question in demo_questions()}

    def prompt(self, text: str, question: str) -> Segment:
        if grammar.query_key(question) not in self._known:
            raise PolicyError(
                f"the demo policy is no model: it replays turns written for the {len(self._known)} questions that come "
                "with the package (parallelsearch data demo lists them), and this is not one of them. For any question, "
                f"give a model: {_models()}"
            )
        self._one_at_a_time.prompt(text, question)
        return super().prompt(text, question)

    def _next_turn(self, segments: Sequence[Segment]) -> str:
        if segments and grammar.SEPARATOR not in segments[0].text:
            return self._one_at_a_time._next_turn(segments)
        return super()._next_turn(segments)

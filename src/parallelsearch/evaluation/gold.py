"""The row above all methods: what a policy scores when it is simply handed the gold passages.

`GoldRetriever` answers a question's own text with the passages that are known to hold its answer, so the dialect `rag` over
it is "gold passages given". It is a bound and a check of the reader, not a search engine: any other query finds nothing.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from typing import Any

from parallelsearch import grammar
from parallelsearch.answers import normalise
from parallelsearch.errors import UsageError
from parallelsearch.retrieval.base import Hit, Passage, Result, Retriever
from parallelsearch.retrieval.corpus import read_passages
from parallelsearch.trajectory import Question


class GoldRetriever(Retriever):
    """Finds the gold passages of a question, by the question."""

    name = "gold"
    max_concurrency = 64

    def __init__(self, passages: dict[str, list[Passage]]) -> None:
        """`passages` maps a question's text to its gold passages."""
        self._passages = {_key(question): found for question, found in passages.items()}

    @classmethod
    def from_corpus(cls, questions: Sequence[Question], corpora: Iterable[str | os.PathLike[str]]) -> GoldRetriever:
        """Look the gold passages up in corpus files: by `gold_passage_ids` where a question has them, else by title."""
        wanted_ids: dict[str, list[str]] = {}
        wanted_titles: dict[str, list[str]] = {}
        for question in questions:
            if question.gold_passage_ids:
                for key in (key for keys in question.gold_passage_ids.values() for key in keys):
                    wanted_ids.setdefault(key, []).append(question.question)
            else:
                for title in question.supporting_titles or ():
                    wanted_titles.setdefault(normalise(title), []).append(question.question)
        if not wanted_ids and not wanted_titles:
            raise UsageError(
                "none of these questions says what its gold passages are (gold_passage_ids, supporting_titles)"
            )
        found: dict[str, list[Passage]] = {}
        for corpus in corpora:
            for passage in read_passages(corpus):
                for text in wanted_ids.get(passage.id, []) + wanted_titles.get(normalise(passage.title), []):
                    found.setdefault(text, []).append(passage)
        if not found:
            raise UsageError("the corpus files hold none of the gold passages of these questions")
        return cls(found)

    async def search_many(self, queries: Sequence[str], k: int) -> list[Result]:
        return [
            [
                Hit.of(passage, 1.0, rank)
                for rank, passage in enumerate(self._passages.get(_key(query), [])[:k], start=1)
            ]
            for query in queries
        ]

    def describe(self) -> dict[str, Any]:
        digest = hashlib.sha256()
        for key in sorted(self._passages):
            digest.update("\x1f".join([key, *(passage.id for passage in self._passages[key])]).encode() + b"\x1e")
        return {"kind": self.name, "num_questions": len(self._passages), "sha256": digest.hexdigest()}


def _key(question: str) -> str:
    return grammar.query_key(grammar.tidy_question(question).replace(grammar.SEPARATOR, " "))

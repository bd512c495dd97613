"""A retriever some of whose passages say something else: how one asks whether a reader reads what it is shown.

The cold start teaches reading with it. The index stays as it is, so a passage is found by its own words; what is shown of it
are the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from parallelsearch.retrieval.base import Result, Retriever, WrappingRetriever


class Changed(WrappingRetriever):
    """Another retriever, with these texts for the passages of these ids. It does not close the other."""

    def __init__(self, inner: Retriever, texts: Mapping[str, str]) -> None:
        super().__init__(inner)
        self._texts = dict(texts)

    async def search_many(self, queries: Sequence[str], k: int) -> list[Result]:
        found = await self.inner.search_many(queries, k)
        return [
            one if isinstance(one, Exception) else [replace(hit, text=self._texts.get(hit.id, hit.text)) for hit in one]
            for one in found
        ]

    def describe(self) -> dict[str, Any]:
        return {**self.inner.describe(), "num_changed": len(self._texts)}

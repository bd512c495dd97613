"""A retriever whose corpus lacks some passages: how one asks what happens when the evidence is not there.

The cold start teaches abstaining with it, and `benchmarks/abstain.py` measures it. The index stays as it is; hits are
filtered, with so many more asked for that `k` are left.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from parallelsearch.retrieval.base import Result, Retriever, WrappingRetriever


class Without(WrappingRetriever):
    """Another retriever, as if these passages were not in its corpus. It does not close the other."""

    def __init__(self, inner: Retriever, banned: Collection[str]) -> None:
        super().__init__(inner)
        self._banned = frozenset(banned)

    async def search_many(self, queries: Sequence[str], k: int) -> list[Result]:
        found = await self.inner.search_many(queries, k + len(self._banned))
        return [
            one if isinstance(one, Exception) else [hit for hit in one if hit.id not in self._banned][:k]
            for one in found
        ]

    def describe(self) -> dict[str, Any]:
        return {**self.inner.describe(), "num_withheld": len(self._banned)}

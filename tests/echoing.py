"""A small backend that is a real object of the package: it answers each query with hits named after it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from parallelsearch.errors import SearchError
from parallelsearch.retrieval.base import Hit, Result, Retriever


class EchoRetriever(Retriever):
    """Answers each query with hits named after it, after a delay; fails where `fails` says so. Counts its calls."""

    name = "echo"

    def __init__(
        self,
        latency_s: float = 0.0,
        fails: Callable[[str], Exception | None] = lambda query: None,
        max_batch: int = 64,
        max_concurrency: int = 1,
    ) -> None:
        self.latency_s, self.fails = latency_s, fails
        self.max_batch, self.max_concurrency = max_batch, max_concurrency
        self.calls: list[list[str]] = []
        self.num_running = self.max_running = 0

    async def search_many(self, queries: Sequence[str], k: int) -> list[Result]:
        self.calls.append(list(queries))
        self.num_running += 1
        self.max_running = max(self.max_running, self.num_running)
        try:
            if self.latency_s:
                await asyncio.sleep(self.latency_s)
            return [self._answer(query, k) for query in queries]
        finally:
            self.num_running -= 1

    def _answer(self, query: str, k: int) -> Result:
        error = self.fails(query)
        if isinstance(error, SearchError):
            return error
        if error is not None:
            raise error
        return [
            Hit(f"{query}#{n}", query.title(), f"text {n} about {query}", score=1 / n, rank=n) for n in range(1, k + 1)
        ]

"""Haystack: its retrievers as backends, and our search as a component of its pipelines.

    Search(HaystackRetriever(InMemoryBM25Retriever(store)))           # theirs in our agent
    ParallelSearchRetriever("bm25:my-index", split=POLICY)            # ours in their pipelines; questions are split

Needs haystack-ai. A component must be a class that a saved pipeline can name, so this module, unlike the other bridges,
cannot be imported without its framework.
"""

from __future__ import annotations

import threading
from typing import Any

from parallelsearch.errors import UsageError, check_whole, require
from parallelsearch.integrations import ForeignRetriever, SharedSearch, hit_of, metadata_of
from parallelsearch.retrieval.base import Hit
from parallelsearch.retrieving import DEFAULT_K

require("haystack", "haystack")
from haystack import Document, component, default_from_dict, default_to_dict  # noqa: E402 - a kind word first


class HaystackRetriever(ForeignRetriever):
    """A Haystack retriever as a backend: any component that takes `query` and `top_k` and gives `documents`."""

    name = "haystack"

    def __init__(self, retriever: Any, max_concurrency: int = 16) -> None:
        super().__init__(retriever, max_concurrency)
        sockets = getattr(retriever, "__haystack_input__", None)
        if sockets is None or not {"query", "top_k"} <= set(sockets._sockets_dict):
            raise UsageError(
                f"expected a Haystack component that takes query and top_k, found {type(retriever).__name__}"
            )
        self._retriever = retriever
        self._is_warm = False

    async def find(self, query: str, k: int) -> list[Hit]:
        import asyncio

        if not self._is_warm and hasattr(self._retriever, "warm_up"):
            self._retriever.warm_up()
        self._is_warm = True
        if getattr(self._retriever, "__haystack_supports_async__", False):
            answer = await self._retriever.run_async(query=query, top_k=k)
        else:
            answer = await asyncio.to_thread(self._retriever.run, query=query, top_k=k)
        return [
            hit_of(document.content or "", document.meta, rank, document.id, document.score)
            for rank, document in enumerate(answer["documents"], 1)
        ]


@component
class ParallelSearchRetriever:
    """Finds documents for a query. With `split`, the address of a policy, the query is a whole question: it is split, all
    parts are looked up at once, and `top_k` documents are for all of them; `meta["queries"]` says which part found one.

    It takes addresses, so that a pipeline can be saved and loaded. What they name is opened when first used.
    """

    def __init__(self, search: str = "demo", top_k: int = DEFAULT_K, split: str | None = None) -> None:
        check_whole("top_k is the number of documents:", top_k)
        self.search, self.top_k, self.split = search, top_k, split
        self._shared: SharedSearch | None = None
        self._lock = threading.Lock()

    def warm_up(self) -> None:
        """Open search and policy now."""
        with self._lock:  # a pipeline may run its first queries in several threads
            if self._shared is None:
                self._shared = SharedSearch(self.search, self.top_k, self.split)

    def to_dict(self) -> dict[str, Any]:
        return default_to_dict(self, search=self.search, top_k=self.top_k, split=self.split)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ParallelSearchRetriever:
        return default_from_dict(cls, data)

    @component.output_types(documents=list[Document])
    def run(self, query: str, top_k: int | None = None) -> dict[str, list[Document]]:
        """A search that failed raises, as a pipeline expects."""
        return _documents(self._opened().find(query, top_k))

    @component.output_types(documents=list[Document])
    async def run_async(self, query: str, top_k: int | None = None) -> dict[str, list[Document]]:
        return _documents(await self._opened().find_async(query, top_k))

    def _opened(self) -> SharedSearch:
        self.warm_up()
        assert self._shared is not None
        return self._shared

    def close(self) -> None:
        """Release connections, threads and memory."""
        if self._shared is not None:
            self._shared.close()
            self._shared = None


def _documents(hits: list[Hit]) -> dict[str, list[Document]]:
    return {
        "documents": [Document(id=hit.id, content=hit.text, meta=metadata_of(hit), score=hit.score) for hit in hits]
    }

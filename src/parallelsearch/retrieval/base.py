"""What every search backend is: passages, hits, and one method that answers several queries.

A backend answers a whole list at once, in order, and puts a `SearchError` where a query failed, so that one bad query
never sinks the others. Batching, time-outs, retries, caching and limits are not its business: `search.py` gives them to
every backend alike.
"""

from __future__ import annotations

import asyncio
import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from parallelsearch.errors import SearchError, UsageError
from parallelsearch.own_code import described


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of text that can be found. `metadata` is what else is known of it, small plain values by name
    (`retrieval.metadata`), for the caller: no model is shown it."""

    id: str
    title: str
    text: str
    url: str | None = None
    date: str | None = None
    metadata: dict[str, Any] | None = field(default=None, kw_only=True, hash=False)


@dataclass(frozen=True, slots=True)
class Hit(Passage):
    """A passage that was found, with its score and its rank (1 is best)."""

    score: float = 0.0
    rank: int = 0

    @classmethod
    def of(cls, passage: Passage, score: float, rank: int) -> Hit:
        return cls(
            passage.id, passage.title, passage.text, passage.url, passage.date, score, rank, metadata=passage.metadata
        )


Result = list[Hit] | SearchError
"""What one query came to: its hits, best first, or why there are none."""


is_fresh: ContextVar[bool] = ContextVar("is_fresh", default=False)
"""Whether a backend is asked for answers that come from no cache. `Search` sets it; a backend that keeps answers, or that is
made of searches, reads it."""


class PassingHits(list[Hit]):
    """Hits that are good for now and may be better another time: no cache keeps them."""


class DegradedHits(PassingHits):
    """Hits found without the help of every part. `failures` says which part was missing and why."""

    def __init__(self, hits: Iterable[Hit], failures: Sequence[str]) -> None:
        super().__init__(hits)
        self.failures = tuple(failures)


class KeptHits(list[Hit]):
    """Hits that a cache had: no backend was asked for them."""


def hits_like(result: list[Hit], hits: list[Hit]) -> list[Hit]:
    """What was made of a result's hits, as the same kind of result."""
    if isinstance(result, DegradedHits):
        return DegradedHits(hits, result.failures)
    if isinstance(result, PassingHits):
        return PassingHits(hits)
    return KeptHits(hits) if isinstance(result, KeptHits) else hits


def checked_seconds(timeout_s: float, what: str) -> float:
    """A time-out, or a `UsageError` where nothing could ever keep it."""
    if not timeout_s > 0:
        raise UsageError(f"timeout_s of {what} is seconds, more than 0, not {timeout_s:g}")
    return timeout_s


class Retriever(ABC):
    """A search backend. Subclasses implement `search_many`."""

    name: str = "retriever"
    max_batch: int = 64
    """How many queries one call may carry; 1 for an API that takes one query a request."""
    max_concurrency: int = 1
    """How many calls may run at the same time."""
    timeout_s: float = 0.0
    """Seconds a call may take by the backend's own settings, 0 where it has none. A search waits at least so long."""

    @abstractmethod
    async def search_many(self, queries: Sequence[str], k: int) -> list[Result]:
        """Answer every query with at most `k` hits, in order. Raise only if the whole call failed; raise or return
        `TransientSearchError` for what is worth repeating."""

    async def check(self) -> None:  # noqa: B027 - most are checked when they are opened
        """Raise `UsageError` if the backend cannot work as it was set up: asked for before a model is, whose calls would be
        lost. What may pass, such as a server that is down, is left to the queries."""

    def where(self, fields: Mapping[str, Any]) -> Retriever:
        """The same backend for the passages whose metadata has these values, of each field the one given or one of a list.
        It shares files and threads with this one, and is closed with it. `UsageError` where it cannot be done."""
        raise UsageError(
            f"{type(self).__name__} cannot narrow what it finds by metadata ({', '.join(map(str, fields))}). An index of "
            "this machine can when it is opened: bm25?where=page=3:DIR, or open_search('bm25:DIR', where={'page': 3}). So "
            "can dense, hybrid, files and elastic"
        )

    def forget(self) -> None:  # noqa: B027 - most hold no answers
        """Share nothing any more that was asked for before (`Search.forget`). One that is made of searches tells them."""

    def describe(self) -> dict[str, Any]:
        """What a manifest needs to tell this backend from another: kind, corpus hash, settings. No secrets. Here the name
        and a hash of the code, which does not show what it was made with."""
        return described(self.name, type(self))

    async def aclose(self) -> None:  # noqa: B027 - closing is optional
        """Release connections and threads."""


class WrappingRetriever(Retriever):
    """A backend that does something with the queries or the hits of another, `inner`, and for the rest is like it.
    Subclasses say what, and close it where it is theirs."""

    def __init__(self, inner: Retriever) -> None:
        self.inner = inner
        self.name, self.max_batch, self.max_concurrency = inner.name, inner.max_batch, inner.max_concurrency
        self.timeout_s = inner.timeout_s

    async def check(self) -> None:
        await self.inner.check()

    def where(self, fields: Mapping[str, Any]) -> Retriever:
        other = copy.copy(self)
        other.inner = self.inner.where(fields)
        return other

    def forget(self) -> None:
        self.inner.forget()

    def describe(self) -> dict[str, Any]:
        return self.inner.describe()

    def _description(self, kind: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        inner = self.inner.describe()
        return {
            "kind": kind,
            "corpus_sha256": inner.get("corpus_sha256"),
            "settings": dict(settings),
            "inner": inner,
        }


class BlockingRetriever(Retriever):
    """A backend whose work is blocking (BM25, dense): runs in a thread of its own, so the event loop stays free."""

    def __init__(self, num_threads: int = 1) -> None:
        self.max_concurrency = num_threads
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix=f"search-{self.name}")

    @abstractmethod
    def search_blocking(self, queries: Sequence[str], k: int) -> list[Result]:
        """The same as `search_many`, blocking."""

    async def search_many(self, queries: Sequence[str], k: int) -> list[Result]:
        return await asyncio.get_running_loop().run_in_executor(self._pool, self.search_blocking, list(queries), k)

    async def aclose(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

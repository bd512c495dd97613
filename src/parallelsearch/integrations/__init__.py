"""What the bridges to other frameworks share; each framework is a guest in one module beside this one.

A foreign retriever becomes a backend: one call a query, its failure a value, its documents turned into hits. Ours becomes
a foreign retriever or tool: `SharedSearch` and the agent each live in one event loop of their own, so that blocking and
async callers of any thread share connections, cache and micro-batches.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import logging
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, Self

from parallelsearch.addresses import open_policy, search_of, with_whole_path
from parallelsearch.agent import Agent, LoopThread
from parallelsearch.errors import SearchError, TransientSearchError, UsageError, check_whole
from parallelsearch.grounding import cite, sentence_of
from parallelsearch.policy.base import Policy
from parallelsearch.retrieval.base import DegradedHits, Hit, Result, Retriever
from parallelsearch.retrieval.metadata import bounded
from parallelsearch.retrieval.own import Backend
from parallelsearch.retrieving import DEFAULT_K, MergedHit, splitting
from parallelsearch.search import Search, check_k
from parallelsearch.trajectory import Trajectory

_log = logging.getLogger(__name__)

TOOL_NAME = "answer_with_search"
TOOL_DESCRIPTION = (
    "Answers a factual question by searching. Give the whole question: it is split into independent parts, "
    "which are looked up at the same time."
)

_TAKEN = frozenset(("id", "title", "date", "score", "relevance_score", "rank"))
"""Names in another framework's metadata whose values are fields of a hit."""

# ---- theirs as ours --------------------------------------------------------------------------------------------------


class ForeignRetriever(Retriever):
    """A backend that asks another framework's retriever, one query a call. Subclasses implement `find`."""

    max_batch = 1

    def __init__(self, retriever: object, max_concurrency: int = 16) -> None:
        check_whole("max_concurrency must be", max_concurrency)
        self.max_concurrency = max_concurrency
        self._kind = type(retriever).__name__

    @abstractmethod
    async def find(self, query: str, k: int) -> list[Hit]:
        """At most `k` hits, best first. Whatever it raises becomes the query's error."""

    async def search_many(self, queries: Sequence[str], k: int) -> list[Result]:
        return list(await asyncio.gather(*(self._find(query, k) for query in queries)))

    async def _find(self, query: str, k: int) -> Result:
        try:
            return (await self.find(query, k))[:k]
        except OSError as error:  # connections and time-outs
            return TransientSearchError(f"{self._kind} failed: {type(error).__name__}: {error}")
        except Exception as error:  # a guest's bug is the query's error
            return SearchError(f"{self._kind} failed: {type(error).__name__}: {error}")

    def describe(self) -> dict[str, Any]:
        return {"kind": self.name, "retriever": self._kind}


def hit_of(text: str, metadata: Mapping[str, Any], rank: int, id: str | None = None, score: float | None = None) -> Hit:
    """A hit from text and the metadata that frameworks commonly give; what no field of a hit has taken is the hit's metadata.
    The score is 0 where none is told."""
    found = (metadata.get(name) for name in ("url", "source"))
    url = next((text for text in found if isinstance(text, str) and text.startswith(("http://", "https://"))), None)
    date = metadata.get("date")
    if score is None:
        known = metadata.get("score", metadata.get("relevance_score"))
        score = float(known) if isinstance(known, int | float) else 0.0
    taken = _TAKEN if url is None else _TAKEN | {"url"}
    return Hit(
        id=str(id or metadata.get("id") or hashlib.sha256(text.encode()).hexdigest()[:16]),
        title=str(metadata.get("title") or metadata.get("file_name") or ""),
        text=text,
        url=url,
        date=None if date is None else str(date),
        score=score,
        rank=rank,
        metadata=bounded({name: value for name, value in metadata.items() if name not in taken}),
    )


# ---- ours as theirs --------------------------------------------------------------------------------------------------


class SharedSearch:
    """One search for callers of any thread or event loop. With `split`, a policy or its address, what callers send are whole
    questions, and they get the passages for all parts. Close it when its connections are no longer needed: a `Search` or
    `Policy` that it was given stays open, as with an `Agent`."""

    def __init__(
        self, search: Search | Backend | str = "demo", k: int | None = None, split: Policy | str | None = None
    ) -> None:
        self.search = looks = search_of(search)
        self._opened: list[Search | Policy] = [] if looks is search else [looks]
        if split is not None:
            policy = open_policy(split) if isinstance(split, str) else split
            self._opened += [] if policy is split else [policy]
            self.search = splitting(policy, looks)
            k = DEFAULT_K if k is None else k
        self.k = self.search.k if k is None else k
        check_k(self.k, self.search.max_k)
        self._loop, self._closing = LoopThread("search"), threading.Lock()

    async def _find(self, query: str, k: int | None) -> list[Hit]:
        found = await self.search.find(query, self.k if k is None else k)
        if found.error is not None:
            raise found.error
        if isinstance(found.hits, DegradedHits):
            _log.warning("found in part, for '%s': %s", query[:200], "; ".join(found.hits.failures))
        return found.hits

    def with_k(self, k: int) -> SharedSearch:
        """The same search, for so many hits."""
        check_k(k, self.search.max_k)
        other = copy.copy(self)
        other.k = k
        return other

    def where(self, fields: Mapping[str, Any]) -> SharedSearch:
        """The same search for the passages whose metadata has these values (`Retriever.where`)."""
        other = copy.copy(self)
        other.search = self.search.where(fields)
        return other

    def find(self, query: str, k: int | None = None) -> list[Hit]:
        """The hits of a query; raises `SearchError`, as a foreign framework expects."""
        return self._loop.run(self._find(query, k))

    async def find_async(self, query: str, k: int | None = None) -> list[Hit]:
        return await asyncio.wrap_future(self._loop.submit(self._find(query, k)))

    def close(self) -> None:
        """Each call after it raises `UsageError`. Of two threads that close it the second waits for the first."""
        with self._closing:
            if not self._loop.is_stopped:
                self._loop.run(self._aclose())
                self._loop.stop()

    async def _aclose(self) -> None:
        for one in self._opened:
            await one.aclose()

    def __enter__(self) -> SharedSearch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def shared(
    search: SharedSearch | Search | Backend | str, k: int | None, split: Policy | str | None = None
) -> SharedSearch:
    if not isinstance(search, SharedSearch):
        return SharedSearch(search, k, split)
    if split is not None:
        raise UsageError("a SharedSearch splits if it was made so: SharedSearch(search, k, split=POLICY)")
    return search if k is None else search.with_k(k)


class Closing:
    """What our retrievers have beside what their frameworks want: they can be closed, as who opened a search closes it, and
    those made of addresses can be pickled; what comes of it opens them again.

    Each is of a class of its own, and what it searches with belongs to the class: a framework may copy a retriever, and all
    copies search with the same."""

    _found: ClassVar[SharedSearch]
    _given: ClassVar[tuple[Any, ...]]
    """What `as_retriever` was given: the search, `k`, `split`, and whatever else the framework's takes."""
    _make: ClassVar[Callable[..., object]]
    """That `as_retriever`."""

    def close(self) -> None:
        """Release connections and threads; each call after it raises. A `SharedSearch` that was given is left alone."""
        if not isinstance(self._given[0], SharedSearch):
            self._found.close()

    def __reduce__(self) -> tuple[Any, ...]:
        search, k, split, *more = self._given
        for one in (search, split):
            if one is not None and not isinstance(one, str):
                raise UsageError(
                    f"a retriever that holds a {type(one).__name__} cannot be pickled; one made of addresses can: "
                    "as_retriever('bm25:DIR', split='auto')"
                )
        return self._make, (with_whole_path(str(search)), k, split, *more), self.__getstate__()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


BOOKKEEPING = ("score", "rank", "queries")
"""What `metadata_of` says of the search, and not of the passage."""


def metadata_of(hit: Hit) -> dict[str, Any]:
    """What travels beside the text of a passage: its metadata, and the fields that are known. `queries` are the sub-queries
    that found it, where the question was split."""
    fields = {"title": hit.title, "url": hit.url, "date": hit.date, "score": hit.score, "rank": hit.rank}
    known = (hit.metadata or {}) | {name: value for name, value in fields.items() if value not in (None, "")}
    return {**known, "queries": list(hit.queries)} if isinstance(hit, MergedHit) else known


@dataclass(frozen=True, slots=True)
class Answered:
    """What a tool gives: as text for the model that called it, with everything that happened for the program."""

    trajectory: Trajectory

    def __str__(self) -> str:
        if self.trajectory.answer and self.trajectory.written:
            return _with_sources(self.trajectory)
        if self.trajectory.answer:
            return self.trajectory.answer
        return sentence_of(self.trajectory) or f"No answer was found ({self.trajectory.why_no_answer})."


def _with_sources(trajectory: Trajectory) -> str:
    """A text, and what its numbers name: who called the tool sees nothing else."""
    cited = cite(trajectory)
    lines = [
        f"[{one.number}] {one.title or one.id}" + (f", {one.url or one.place}" if one.url or one.place else "")
        for one in cited.citations
    ]
    return "\n".join([cited.text, "", "Sources:", *lines])


def answer(agent: Agent, question: str) -> Answered:
    return Answered(agent.ask(question))


async def answer_async(agent: Agent, question: str) -> Answered:
    """In the agent's own loop, not the caller's, so that one agent serves both kinds of callers."""
    return Answered(await asyncio.wrap_future(agent.submit(agent.ask_async(question))))

"""Split a question and find passages for its parts: the agent without its answer, for whatever model answers.

`split` has the policy write its first turn and gives the sub-queries. `retrieve` also runs them, all at once, and makes one
ranked list of what came back (`merge`). Both are the one rollout, ended early; what went wrong on the way is said in the
result and never raised. Where the policy has nothing to search for, or fails, the question itself is the query, so that a
caller is never worse off than with a search for the whole question. `SplitRetriever` is the same as a search backend: what
takes a `Search` takes whole questions then.

The merge is fair: a part that was easy to find must not fill the list while another is missing. It is no reader: it does not
judge whether a passage answers anything. A cross-encoder that does is a search of its own (`rerank:MODEL+ADDRESS`), which
puts the hits of each sub-query in order against that sub-query.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from parallelsearch import grammar
from parallelsearch.dialect import Dialect
from parallelsearch.errors import SearchError, UsageError, check_whole
from parallelsearch.limits import Limits
from parallelsearch.markup import retrieval_html
from parallelsearch.policy.base import Policy, check_policy
from parallelsearch.retrieval.base import DegradedHits, Hit, Result, Retriever, is_fresh
from parallelsearch.rollout import rollout
from parallelsearch.search import Search, check_k, check_search
from parallelsearch.trajectory import Query, Trajectory

SPLITTING = Limits(timeout_s=120.0)
"""The core's limits, with less time: somebody waits for passages."""
DEFAULT_K = 8
"""Passages in all: two parts with four each, or eight parts, as many as the shipped policy learned to ask for, with one."""
_RRF_K = 5
"""How fast the weight of a rank falls. It orders passages within a round of the merge and decides nothing else."""
_numbers = itertools.count()


# ---- results ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FoundBy:
    """A sub-query that found a passage, and what the backend said of it there."""

    query: str
    rank: int
    score: float


@dataclass(frozen=True, slots=True)
class MergedHit(Hit):
    """A passage of the merged list. `rank` is its place there and `score` falls with the place, so that who sorts by score
    keeps the order. `found_by` names the sub-queries that found it, the one that ranked it best first."""

    found_by: tuple[FoundBy, ...] = ()

    @property
    def queries(self) -> tuple[str, ...]:
        return tuple(found.query for found in self.found_by)


class Split(list[str]):
    """The sub-queries of a question. Where the policy gave none, the question itself, and `note` says why; `error` is set
    where the policy failed."""

    def __init__(self, queries: Iterable[str], trajectory: Trajectory, note: str | None = None) -> None:
        super().__init__(queries)
        self.trajectory, self.note = trajectory, note

    @property
    def error(self) -> str | None:
        return self.trajectory.error


@dataclass(slots=True)
class Retrieval:
    """What a question came to: the merged passages and the sub-queries behind them, each with its own hits or its error.

    `notes` say in words what a caller may want to know, `failures` what did not work: the policy, a sub-query, a part of a
    backend. The passages are good all the same.
    """

    question: str
    passages: list[MergedHit]
    queries: list[Query]
    trajectory: Trajectory
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    elapsed_s: float = 0.0

    def __repr__(self) -> str:
        """Short, since lists of them are shown; `to_dict()` has the passages."""
        titles = ", ".join(repr(passage.title) for passage in self.passages[:3]) + (
            ", ..." if self.passages[3:] else ""
        )
        return (
            f"<Retrieval {self.question!r}, {len(self.queries)} sub-queries, {len(self.passages)} passages: {titles}>"
        )

    def _repr_html_(self) -> str:
        """What a notebook shows of it as the last line of a cell."""
        return retrieval_html(self)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "question": self.question,
            "queries": [{"text": one.text, "num_hits": len(one.hits), "error": one.error} for one in self.queries],
            "passages": [passage_dict(passage) for passage in self.passages],
            "notes": self.notes,
            "failures": self.failures,
            "num_llm_calls": self.trajectory.num_llm_calls,
            "elapsed_s": round(self.elapsed_s, 4),
        }


def passage_dict(passage: MergedHit) -> dict[str, Any]:
    """A passage for JSON, without what is not known of it."""
    names = ("rank", "id", "title", "text", "url", "date", "metadata", "score")
    record = {name: value for name in names if (value := getattr(passage, name)) is not None}
    found_by = [{"query": one.query, "rank": one.rank, "score": one.score} for one in passage.found_by]
    return {**record, "found_by": found_by}


# ---- the merge -------------------------------------------------------------------------------------------------------


def merge(
    queries: Sequence[Query],
    k: int,
    *,
    max_tokens: int | None = None,
    count_tokens: Callable[[str], int] | None = None,
) -> list[MergedHit]:
    """One ranked list of at most `k` passages from the hits of several sub-queries.

    It is dealt in rounds: in each, every sub-query gives the best of its passages that is not in the list yet, so that all
    are represented before any has its second. A passage that stands first for several is given once and counts for each of
    them. Within a round the order is that of reciprocal rank fusion over all sub-queries, so a passage that several found
    comes before one that a single one did; equals stand in the order of their sub-queries, which decides nothing else.
    Passages with the same title and text are one. With `max_tokens` a passage that no longer fits makes room for the
    sub-query's next one that does.
    """
    check_whole("k is the number of passages:", k)
    if max_tokens is not None:
        check_whole("max_tokens is how many tokens all passages have together:", max_tokens)
        if count_tokens is None:
            raise UsageError("max_tokens needs count_tokens, a function that counts the tokens of a text")
    candidates: dict[str, _Candidate] = {}
    rankings: list[list[_Candidate]] = []
    for query in queries:
        ranking: dict[str, _Candidate] = {}
        for hit in query.hits:
            key = _key(hit)
            if key in ranking:  # a corpus with a passage twice must not count twice
                continue
            one = ranking[key] = candidates.setdefault(key, _Candidate(key))
            one.add(query.text, len(ranking), hit)
        rankings.append(list(ranking.values()))
    if max_tokens is not None and count_tokens is not None:
        for one in candidates.values():
            one.num_tokens = count_tokens(f"{one.best.title}\n{one.best.text}")

    taken: dict[str, _Candidate] = {}
    room = max_tokens if max_tokens is not None else 0  # without a budget every passage has no tokens
    served: set[int] = set()
    while len(taken) < k:
        heads: dict[int, _Candidate] = {}
        for number, candidates_of in enumerate(rankings):
            left = (one for one in candidates_of if one.key not in taken and one.num_tokens <= room)
            if number not in served and (head := next(left, None)) is not None:
                heads[number] = head
        if heads:
            first = min(heads.items(), key=lambda head: (head[1].order(), head[0]))[1]
            taken[first.key] = first
            room -= first.num_tokens
            served |= {number for number, head in heads.items() if head is first}
        elif served:
            served = set()
        else:
            break
    return [one.merged(place) for place, one in enumerate(taken.values(), start=1)]


class _Candidate:
    """A passage with everything that was found out about it."""

    __slots__ = ("_found", "key", "num_tokens")

    def __init__(self, key: str) -> None:
        self.key, self.num_tokens = key, 0
        self._found: list[tuple[int, str, Hit]] = []

    def add(self, query: str, rank: int, hit: Hit) -> None:
        self._found.append((rank, query, hit))
        self._found.sort(key=lambda found: (found[0], found[1], found[2].id))

    @property
    def best(self) -> Hit:
        return self._found[0][2]

    def order(self) -> tuple[float, int]:
        return -sum(1 / (_RRF_K + rank) for rank, _, _ in self._found), self._found[0][0]

    def merged(self, place: int) -> MergedHit:
        hit = self.best
        found_by = tuple(FoundBy(query, rank, hit.score) for rank, query, hit in self._found)
        score = 1 / (_RRF_K + place)
        return MergedHit(hit.id, hit.title, hit.text, hit.url, hit.date, score, place, found_by, metadata=hit.metadata)


def _key(hit: Hit) -> str:
    """Passages with the same key are one. Not the id: of a web page each query may show another piece."""
    return "\n".join(" ".join(text.split()) for text in (hit.title, hit.text))


# ---- splitting and retrieving ----------------------------------------------------------------------------------------


async def split(question: str, policy: Policy, **options: Any) -> Split:
    """The sub-queries of a question: `await split(...)`. The policy's first turn ends where its search does, and nothing is
    searched. `options` are those of `rollout`."""
    trajectory = await rollout(question, policy, Search(_Nothing()), **options, until="queries")
    queries = [query.text for query in trajectory.queries]
    return Split(queries or [question], trajectory, None if queries else _why_none(trajectory))


async def retrieve(
    question: str,
    policy: Policy,
    search: Search,
    *,
    k: int = DEFAULT_K,
    rounds: int = 1,
    depth: int | None = None,
    max_tokens: int | None = None,
    limits: Limits | None = None,
    **options: Any,
) -> Retrieval:
    """The best passages for all parts of a question: `await retrieve(...)`. At most `k`, with `max_tokens` at most so many
    tokens of them.

    The policy splits, and every sub-query gives at most `depth` hits (as many as `k`, unless given). With `rounds` above one
    the policy reads what was found, as it would to answer (`search.k` hits for each sub-query), and may search again.
    `options` are those of `rollout`; with `fresh` nothing here comes from the search's cache either.
    """
    start_s = time.perf_counter()

    def left_s() -> float | None:
        whole_s = (limits or Limits()).timeout_s
        return None if whole_s is None else max(0.0, start_s + whole_s - time.perf_counter())

    check_policy(policy)
    check_search(search)
    check_whole("rounds is how often the policy may search:", rounds)
    if depth is not None:
        check_whole("depth is how many hits each sub-query is asked for:", depth)
    merge([], k, max_tokens=max_tokens, count_tokens=policy.count_tokens)  # says what is wrong before anything is asked
    depth = depth or k
    check_k(depth, search.max_k)
    scope = f"retrieve-{next(_numbers)}" if options.get("fresh") else ""
    trajectory = await rollout(
        question,
        policy,
        search,
        replace(limits or Limits(), max_turns=rounds),
        k=depth if rounds == 1 else None,
        until="results",
        **options,
    )
    unique: dict[str, Query] = {}
    for query in trajectory.queries:  # a later round may ask again, and then it may work
        key = grammar.query_key(query.text)
        if key not in unique or unique[key].error is not None:
            unique[key] = query
    queries = list(unique.values())
    notes: list[str] = []
    if not queries:
        notes.append(_why_none(trajectory))
        queries = await _asked([question], search, depth, scope)  # late passages are better than none
    elif rounds > 1 and depth > search.k:  # the policy read fewer than are wanted here
        queries = await _asked([query.text for query in queries], search, depth, scope, left_s()) or queries
    elif rounds > 1:  # it may have read more
        queries = [replace(query, hits=_first(query.hits, depth)) for query in queries]
    dropped = [text for turn in trajectory.turns for text in turn.dropped_queries]
    if dropped:
        notes.append(f"over the limit of {trajectory.max_subqueries} sub-queries, not searched: {'; '.join(dropped)}")
    passages = merge(queries, k, max_tokens=max_tokens, count_tokens=policy.count_tokens)
    unserved = [
        query.text for query in queries if query.hits and not any(query.text in one.queries for one in passages)
    ]
    if passages and unserved:
        notes.append(f"nothing of these fits in k and max_tokens: {'; '.join(unserved)}")
    if max_tokens is not None and not passages and any(query.hits for query in queries):
        notes.append(f"no passage that was found has at most {max_tokens} tokens")
    failures = [] if trajectory.error is None else [f"the policy failed: {trajectory.error}"]
    for query in queries:
        if query.error is not None:
            failures.append(f"'{query.text}' failed: {query.error}")
        elif isinstance(query.hits, DegradedHits):
            failures += [f"'{query.text}': {failure}" for failure in query.hits.failures]
    return Retrieval(question, passages, queries, trajectory, notes, failures, time.perf_counter() - start_s)


def _first(hits: list[Hit], depth: int) -> list[Hit]:
    return DegradedHits(hits[:depth], hits.failures) if isinstance(hits, DegradedHits) else hits[:depth]


async def _asked(
    texts: Sequence[str], search: Search, depth: int, scope: str, left_s: float | None = None
) -> list[Query]:
    """All at once, or nothing if that takes too long. Times count from now."""
    start_s = time.perf_counter()
    try:
        async with asyncio.timeout(left_s):
            answers = await search.search_many(texts, depth, scope)
    except TimeoutError:
        return []
    return [
        Query(
            found.text,
            found.hits,
            None if found.error is None else str(found.error),
            found.cached,
            found.start_s - start_s,
            found.end_s - start_s,
        )
        for found in answers
    ]


def _why_none(trajectory: Trajectory) -> str:
    """Why the question itself is the query."""
    if trajectory.error is not None:
        why = "the policy failed"
    elif trajectory.stop == "answer":
        why = "the policy answered without a search"
    elif trajectory.stop in ("timeout", "max_tokens"):
        why = f"the policy came to no search within its limits ({trajectory.stop})"
    else:
        why = "the policy wrote no search that can be read"
    return f"{why}: the question itself is the query"


class _Nothing(Retriever):
    """What a rollout that ends with its queries has for a search."""

    name = "none"

    async def search_many(self, queries: Sequence[str], k: int) -> list[Result]:
        return [SearchError("nothing is searched here")] * len(queries)


# ---- as a backend ----------------------------------------------------------------------------------------------------


class SplitRetriever(Retriever):
    """A search backend that takes whole questions: each is split, and its hits are the merged passages. Owns its policy and
    its search: closing it closes them."""

    name = "split"
    max_batch = 1  # a question that takes long keeps no other waiting

    def __init__(
        self,
        policy: Policy,
        search: Search,
        *,
        rounds: int = 1,
        limits: Limits = SPLITTING,
        dialect: Dialect | str | None = None,
        max_concurrency: int = 64,
    ) -> None:
        check_whole("rounds is how often the policy may search:", rounds)
        check_whole("max_concurrency is how many questions are under way at once:", max_concurrency)
        self.policy, self.search, self.rounds, self.limits, self.dialect = policy, search, rounds, limits, dialect
        self.max_concurrency = max_concurrency

    def where(self, fields: Mapping[str, Any]) -> SplitRetriever:
        other = copy.copy(self)
        other.search = self.search.where(fields)
        return other

    async def search_many(self, queries: Sequence[str], k: int) -> list[Result]:
        return list(await asyncio.gather(*(self._find(question, k) for question in queries)))

    async def _find(self, question: str, k: int) -> Result:
        found = await self.retrieve(question, k)
        if not found.passages and all(query.error is not None for query in found.queries):
            return SearchError("; ".join(found.failures))
        return DegradedHits(found.passages, found.failures) if found.failures else list(found.passages)

    async def retrieve(self, question: str, k: int) -> Retrieval:
        return await retrieve(
            question,
            self.policy,
            self.search,
            k=k,
            rounds=self.rounds,
            limits=self.limits,
            dialect=self.dialect,
            fresh=is_fresh.get(),
        )

    async def check(self) -> None:
        await self.search.check()

    def describe(self) -> dict[str, Any]:
        return {
            "kind": self.name,
            "rounds": self.rounds,
            "policy": self.policy.describe(),
            "search": self.search.describe(),
        }

    async def aclose(self) -> None:
        await self.search.aclose()
        await self.policy.aclose()


def splitting(policy: Policy, search: Search, **options: Any) -> Search:
    """A search that takes whole questions, over another: both have time for their work. `options` are those of
    `SplitRetriever`."""
    retriever = SplitRetriever(policy, search, **options)
    policy_s = retriever.limits.timeout_s
    return Search(
        retriever,
        k=search.k,
        timeout_s=search.timeout_s + (3600.0 if policy_s is None else policy_s),
        attempts=1,  # what is worth repeating was repeated below
        max_query_chars=search.max_query_chars,
        max_k=search.max_k,
    )

"""The concurrent layer over a retriever: what every backend gets for free.

Queries of all rollouts meet in one queue. Whatever is waiting when the backend has room goes out as one micro-batch;
a query that is already in flight is not asked again; answers are kept in an LRU cache. Each query has one time-out that
covers waiting, calls and retries. A failed query is a value in its place (`Found.error`), so `search_many` never raises
for one, and the order is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import random
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from parallelsearch.errors import (
    SearchClosedError,
    SearchError,
    SearchTimeoutError,
    TransientError,
    UsageError,
    check_whole,
    closed,
    is_number,
)
from parallelsearch.retrieval.base import Hit, KeptHits, PassingHits, Result, hits_like, is_fresh
from parallelsearch.retrieval.metadata import bounded
from parallelsearch.retrieval.own import Backend, as_retriever
from parallelsearch.untrusted import finite, whole

if TYPE_CHECKING:
    from aiolimiter import AsyncLimiter

TIMEOUT_S = 30.0
_Key = tuple[str, int, str]
"""Query, number of hits, and the scope within which an answer may be shared."""


@dataclass(slots=True)
class Found:
    """What one query came to. Times are `time.perf_counter()` seconds."""

    text: str
    hits: list[Hit] = field(default_factory=list)
    error: SearchError | None = None
    cached: bool = False
    """A cache had it, in memory or on disk: no backend was asked."""
    start_s: float = 0.0
    end_s: float = 0.0


@dataclass(slots=True)
class SearchStats:
    """Counts since the start: what the layer saved and what went wrong."""

    num_queries: int = 0
    num_cached: int = 0
    num_shared: int = 0
    num_calls: int = 0
    num_asked: int = 0
    num_retries: int = 0
    num_failed: int = 0
    num_timeouts: int = 0


class _Job:
    """One distinct query on its way to the backend."""

    __slots__ = ("attempts", "cache", "end_s", "future", "is_sent", "key", "num_waiting")

    def __init__(self, key: _Key, future: asyncio.Future[Result], cache: _Cache) -> None:
        self.key, self.future, self.cache = key, future, cache
        self.attempts = self.num_waiting = 0
        self.is_sent = False
        self.end_s = 0.0

    @property
    def kind(self) -> tuple[int, bool]:
        """Number of hits, and whether no cache may answer: the same for all queries of one call."""
        return self.key[1], bool(self.key[2])


def check_k(k: int, max_k: int) -> None:
    """Refuse what cannot be a number of hits."""
    if not isinstance(k, int) or not 1 <= k <= max_k:
        raise UsageError(f"k is the number of hits for a query: from 1 to {max_k}, not {k!r}")


class Search:
    """Answers queries concurrently over one retriever."""

    def __init__(
        self,
        backend: Backend,
        *,
        k: int = 3,
        timeout_s: float | None = None,
        attempts: int = 3,
        first_wait_s: float = 0.2,
        max_wait_s: float = 20.0,
        max_batch: int | None = None,
        max_concurrency: int | None = None,
        rate_per_s: float | None = None,
        cache_size: int = 20_000,
        max_cache_bytes: int = 256 * 1024 * 1024,
        max_query_chars: int = 4_000,
        max_k: int = 1_000,
        max_waiting: int = 200_000,
    ) -> None:
        """`backend` is a `Retriever`, any object with `search_many(queries, k)`, or a function (`retrieval/own.py`).
        `rate_per_s` limits queries sent to the backend; `max_batch` and `max_concurrency` default to what the backend
        says it can take, and `timeout_s`, what a query has in all, to 30 s or the backend's own time-out if that is more.
        `cache_size` answers are kept, in at most `max_cache_bytes`. Event loops share the cache; each has
        a queue and a rate of its own."""
        check_whole("max_k is the most hits a query may ask for:", max_k)
        check_k(k, max_k)
        self.retriever = retriever = as_retriever(backend)
        if timeout_s is None:
            timeout_s = max(TIMEOUT_S, retriever.timeout_s)
        if not (is_number(timeout_s) and timeout_s > 0):  # not: NaN is neither
            raise UsageError(f"timeout_s of a search must be a number above 0, not {timeout_s!r}")
        check_whole("attempts of a search must be", attempts)
        self.k, self.timeout_s, self.attempts = k, timeout_s, attempts
        self.first_wait_s, self.max_wait_s = first_wait_s, max_wait_s
        self.max_batch = max_batch or retriever.max_batch
        self.max_concurrency = max_concurrency or retriever.max_concurrency
        self.max_query_chars, self.max_k, self.max_waiting = max_query_chars, max_k, max_waiting
        self.rate_per_s = rate_per_s
        self.stats = SearchStats()
        self.on_busy: Callable[[bool], None] | None = None
        """Called with True when a distinct query is on its way, and with False when it no longer is."""
        self._cache = _Cache(cache_size, max_cache_bytes)
        self._lanes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Lane] = weakref.WeakKeyDictionary()
        self._is_closed = False

    # ---- asking ------------------------------------------------------------------------------------------------------

    async def search_many(self, queries: Sequence[str], k: int | None = None, scope: str = "") -> list[Found]:
        """Answer all queries at the same time; the order is kept and failures stand in their places. `scope` is `find`'s."""
        return await self._find(queries, k, scope)

    async def find(self, query: str, k: int | None = None, scope: str = "") -> Found:
        """Answer one query. Never raises for a search that failed. With a `scope` the backend is asked anew: nothing comes
        from the cache, nor from one further down (`is_fresh`), and only a query of the same scope that is in flight is
        shared (for measurements)."""
        return (await self._find([query], k, scope))[0]

    async def _find(self, queries: Sequence[str], k: int | None, scope: str) -> list[Found]:
        if self._is_closed:  # also for what the cache knows: half a search is none
            raise closed("search")
        # One wait for all of them: a task and a clock for each query would cost as much as a keyword search.
        founds: list[Found] = []
        waiting: list[tuple[Found, _Job]] = []
        for query in queries:
            found = Found(" ".join(whole(query).split()), start_s=time.perf_counter())
            founds.append(found)
            self.stats.num_queries += 1
            try:
                answer = self._ask(found.text, self.k if k is None else k, scope)
            except SearchError as error:
                self._put_error(found, error)
                continue
            if isinstance(answer, _Job):
                answer.num_waiting += 1
                waiting.append((found, answer))
            else:
                found.hits, found.cached, found.end_s = answer, True, time.perf_counter()
        try:
            if waiting:
                await asyncio.wait({job.future for _, job in waiting}, timeout=self.timeout_s)
        finally:
            for _, job in waiting:
                job.num_waiting -= 1
                if job.num_waiting == 0 and not job.future.done():
                    self._abandon(job)
        for found, job in waiting:
            if not job.future.done() or job.future.cancelled():
                late = f"no answer from {self.retriever.name} within {self.timeout_s:g} s"
                self._put_error(found, SearchTimeoutError(late))
            elif isinstance(result := job.future.result(), SearchError):
                self._put_error(found, result)
            else:
                found.hits, found.cached, found.end_s = result, isinstance(result, KeptHits), job.end_s
        return founds

    def _put_error(self, found: Found, error: SearchError) -> None:
        found.error, found.end_s = error, time.perf_counter()
        self.stats.num_failed += 1
        self.stats.num_timeouts += isinstance(error, SearchTimeoutError)

    def _ask(self, text: str, k: int, scope: str) -> list[Hit] | _Job:
        """The answer if it is known, else the job that will bring it; `SearchError` for a query that cannot be asked."""
        if not text:
            raise SearchError("the query is empty")
        if len(text) > self.max_query_chars:
            raise SearchError(f"the query has {len(text)} characters, the limit is {self.max_query_chars}")
        if not isinstance(k, int) or not 1 <= k <= self.max_k:
            raise SearchError(f"k is from 1 to {self.max_k}, not {k!r}")
        key = (text, k, scope)
        if (hits := self._cache.get(key)) is not None:
            self.stats.num_cached += 1
            return hits
        job = self._lane().jobs.get(key)
        if job is not None and job.cache is not self._cache:  # asked for before `forget`: what it brings is of before
            self._remove(job)
            job = None
        if job is None:
            return self._submit(key)
        self.stats.num_shared += 1
        return job

    # ---- queue -------------------------------------------------------------------------------------------------------

    def _submit(self, key: _Key) -> _Job:
        lane = self._lane()
        if len(lane.waiting) >= self.max_waiting:
            raise SearchError(f"{len(lane.waiting)} queries are waiting already; the queue is full")
        job = _Job(key, asyncio.get_running_loop().create_future(), self._cache)
        lane.jobs[key] = job
        if self.on_busy is not None:
            self.on_busy(True)
        self._enqueue(job)
        return job

    def _remove(self, job: _Job) -> None:
        jobs = self._lane().jobs
        if jobs.get(job.key) is job:  # not one that was abandoned and asked for again
            del jobs[job.key]
            if self.on_busy is not None:
                self.on_busy(False)

    def _enqueue(self, job: _Job) -> None:
        self._lane().waiting.append(job)
        self._schedule_pump()

    def _schedule_pump(self) -> None:
        # Two trips through the loop, so that every rollout which is ready now has put its queries in the queue.
        lane = self._lane()
        if not lane.is_pump_scheduled:
            lane.is_pump_scheduled = True
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._pump, lane)

    def _pump(self, lane: _Lane) -> None:
        lane.is_pump_scheduled = False
        while lane.waiting and len(lane.tasks) < self.max_concurrency:
            first = lane.waiting[0]
            batch: list[_Job] = []
            while lane.waiting and len(batch) < self.max_batch and lane.waiting[0].kind == first.kind:
                job = lane.waiting.popleft()
                if not job.future.done():
                    job.is_sent = True
                    batch.append(job)
            if batch:
                task = asyncio.get_running_loop().create_task(self._run(batch, *first.kind))
                lane.tasks.add(task)
                task.add_done_callback(functools.partial(self._finished, lane))

    def _finished(self, lane: _Lane, task: asyncio.Task[None]) -> None:
        lane.tasks.discard(task)
        if lane.waiting and not task.get_loop().is_closed():
            self._pump(lane)

    def _abandon(self, job: _Job) -> None:
        """Nobody waits any more: the queue passes it over. If it is in flight, its late answer still fills the cache."""
        self._remove(job)
        if not job.is_sent:
            job.future.cancel()

    # ---- calling the backend -----------------------------------------------------------------------------------------

    async def _run(self, batch: list[_Job], k: int, fresh: bool) -> None:
        is_fresh.set(fresh)  # for this task alone
        if (limiter := self._lane().limiter) is not None:
            for _ in batch:
                await limiter.acquire()
            batch = [job for job in batch if not job.future.done()]
            if not batch:
                return
        self.stats.num_calls += 1
        self.stats.num_asked += len(batch)
        for job, result in zip(batch, await self._call([job.key[0] for job in batch], k), strict=True):
            job.attempts += 1
            if isinstance(result, list):
                self._resolve(job, result)
            elif isinstance(result, TransientError) and job.attempts < self.attempts and job.num_waiting:
                self._retry_later(job, result)
            else:
                self._fail(job, result)

    async def _call(self, queries: list[str], k: int) -> list[Result]:
        name = self.retriever.name
        try:
            async with asyncio.timeout(self.timeout_s):
                results = await self.retriever.search_many(queries, k)
        except TimeoutError:
            error: SearchError = SearchTimeoutError(f"no answer from {name} within {self.timeout_s:g} s")
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            error = SearchError(f"{name} cancelled its own search")
        except SearchError as caught:
            error = caught
        except Exception as caught:  # a backend's bug must not sink the rollouts that use it
            error = SearchError(f"{name} failed: {type(caught).__name__}: {caught}")
        else:
            if isinstance(results, list) and len(results) == len(queries):
                return [_sound(result, name) for result in results]
            found = f"{len(results)} results" if isinstance(results, list) else type(results).__name__
            error = SearchError(f"{name} gave {found} for {len(queries)} queries")
        return [error] * len(queries)

    def _resolve(self, job: _Job, hits: list[Hit]) -> None:
        # Not kept: a scoped answer, and one of which something is missing that may be back next time.
        if not job.key[2] and not isinstance(hits, PassingHits):
            job.cache.put(job.key, hits)
        self._remove(job)
        if not job.future.done():
            job.end_s = time.perf_counter()
            job.future.set_result(hits)

    def _fail(self, job: _Job, error: SearchError) -> None:
        self._remove(job)
        if not job.future.done():
            job.future.set_result(error)

    def _retry_later(self, job: _Job, error: TransientError) -> None:
        wait_s = min(self.max_wait_s, self.first_wait_s * 2 ** (job.attempts - 1)) * random.uniform(0.5, 1.0)
        if error.retry_after_s is not None:  # the server's own word wins over the back-off
            wait_s = error.retry_after_s
        if wait_s > self.timeout_s:
            self._fail(job, SearchError(f"{error}; it asks for {wait_s:.0f} s, the time-out is {self.timeout_s:g} s"))
            return
        self.stats.num_retries += 1
        asyncio.get_running_loop().call_later(wait_s, self._requeue, job)

    def _requeue(self, job: _Job) -> None:
        if not job.future.done() and job.num_waiting:
            job.is_sent = False
            self._enqueue(job)

    # ---- the rest ----------------------------------------------------------------------------------------------------

    async def check(self) -> None:
        """Raise `UsageError` if the backend cannot work as it was set up (`Retriever.check`)."""
        await self.retriever.check()

    def forget(self) -> None:
        """Empty the cache, as where what is searched has changed. What is on its way is not kept either."""
        self.retriever.forget()
        self._cache = _Cache(self._cache.max_answers, self._cache.max_bytes)

    def where(self, fields: Mapping[str, Any]) -> Search:
        """The same search for the passages whose metadata has these values (`Retriever.where`), with a cache of its own."""
        other = copy.copy(self)
        other.retriever = self.retriever.where(fields)
        other.stats, other.on_busy, other._lanes = SearchStats(), None, weakref.WeakKeyDictionary()
        other._cache = _Cache(self._cache.max_answers, self._cache.max_bytes)
        return other

    def describe(self) -> dict[str, Any]:
        """What a manifest needs: the backend's own description and k."""
        return {**self.retriever.describe(), "k": self.k}

    async def aclose(self) -> None:
        """Close the backend, and end the calls of this event loop that are under way. Whoever waits is told at once, in
        whatever loop, and so is whoever asks then."""
        self._is_closed = True
        running = asyncio.get_running_loop()
        for loop, lane in list(self._lanes.items()):
            if loop is running:
                self._end(lane)
            else:
                with contextlib.suppress(RuntimeError):  # that loop is closed: nobody waits in it
                    loop.call_soon_threadsafe(self._end, lane)
        tasks = list(self._lane().tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.retriever.aclose()

    def _end(self, lane: _Lane) -> None:
        for job in [*lane.waiting, *lane.jobs.values()]:
            self._fail(job, SearchClosedError())

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def _lane(self) -> _Lane:
        loop = asyncio.get_running_loop()
        lane = self._lanes.get(loop)
        if lane is None:
            lane = self._lanes[loop] = _Lane(self.rate_per_s)
        return lane


def _sound(result: object, name: str) -> Result:
    """What a backend gave for one query, such that it can be shown and written: every text whole, every score a number.
    Whatever else came is an error in its place, and the other queries keep theirs."""
    if isinstance(result, SearchError):
        return result
    if not isinstance(result, list) or not all(isinstance(hit, Hit) for hit in result):
        return SearchError(f"{name} gave {type(result).__name__} where a list of hits belongs")
    try:
        if all(map(_is_sound, result)):
            return result
        hits = [_mended(hit) for hit in result]
    except Exception as error:  # fields of any type, and any way of comparing them
        return SearchError(f"{name} gave a hit that is none: {error}")
    return hits_like(result, hits)


def _is_sound(hit: Hit) -> bool:
    texts = (hit.id, hit.title, hit.text, hit.url or "", hit.date or "")
    is_plain = hit.metadata is None or _are_same(bounded(hit.metadata), hit.metadata)
    return is_plain and all(text.isascii() or whole(text) is text for text in texts) and finite(hit.score) is not None


def _are_same(a: object, b: object) -> bool:
    try:
        return bool(a == b)
    except ValueError:  # numpy's arrays are not compared as one
        return False


def _mended(hit: Hit) -> Hit:
    url, date = hit.url and whole(hit.url), hit.date and whole(hit.date)
    metadata = None if hit.metadata is None else bounded(hit.metadata)
    score = finite(hit.score) or 0.0
    return Hit(whole(hit.id), whole(hit.title), whole(hit.text), url, date, score, hit.rank, metadata=metadata)


class _Lane:
    """What belongs to one event loop: futures and tasks cannot be waited for in another."""

    def __init__(self, rate_per_s: float | None) -> None:
        self.jobs: dict[_Key, _Job] = {}
        self.waiting: deque[_Job] = deque()
        self.tasks: set[asyncio.Task[None]] = set()
        self.is_pump_scheduled = False
        self.limiter: AsyncLimiter | None = None
        if rate_per_s:
            from aiolimiter import AsyncLimiter

            # Slower than one a second: one query in a longer period.
            rate, period = (rate_per_s, 1.0) if rate_per_s >= 1 else (1.0, 1.0 / rate_per_s)
            self.limiter = AsyncLimiter(rate, period)


class _Cache:
    """Answers used last, bounded by their number and by what they hold: a few answers of a thousand long passages weigh as
    much as all others together. Loops in several threads share it."""

    _PER_HIT, _PER_ANSWER = 200, 300  # bytes of the objects themselves, about

    def __init__(self, max_answers: int, max_bytes: int) -> None:
        self.max_answers, self.max_bytes, self.num_bytes = max_answers, max_bytes, 0
        self._answers: OrderedDict[_Key, tuple[list[Hit], int]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, key: _Key) -> list[Hit] | None:
        with self._lock:
            answer = self._answers.get(key)
            if answer is None:
                return None
            self._answers.move_to_end(key)
            return answer[0]

    def put(self, key: _Key, hits: list[Hit]) -> None:
        size = self._PER_ANSWER + len(key[0]) + sum(map(self._size, hits))
        with self._lock:
            if key in self._answers:
                self.num_bytes -= self._answers.pop(key)[1]
            if not self.max_answers or size > self.max_bytes:
                return
            self._answers[key] = hits, size
            self.num_bytes += size
            while len(self._answers) > self.max_answers or self.num_bytes > self.max_bytes:
                self.num_bytes -= self._answers.popitem(last=False)[1][1]

    def _size(self, hit: Hit) -> int:
        text = len(hit.text) if hit.text.isascii() else 3 * len(hit.text)
        beside = 0 if hit.metadata is None else self._PER_HIT + 2 * len(str(hit.metadata))
        return self._PER_HIT + text + len(hit.title) + len(hit.id) + len(hit.url or "") + beside


def check_search(search: object) -> None:
    """Refuse what is no `Search`, and say what to write."""
    if isinstance(search, Search):
        return
    if isinstance(search, str):
        raise UsageError(
            f"this takes a Search, not an address: write open_search({search!r}) and close it in the end, or give the "
            "address to Agent or evaluate, which do both"
        )
    raise UsageError(
        f"a search is a Search, not {type(search).__name__}; of a backend of your own make one: Search(backend)"
    )

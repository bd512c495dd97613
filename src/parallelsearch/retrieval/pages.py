"""The web's pages behind an engine's snippets: `pages:ADDRESS` opens what ADDRESS found and gives the passage that fits.

Wraps any retriever whose hits have addresses of the web. The pages of all queries are opened at once, each once for all
queries that found it, and kept for some minutes. A page is cut into passages as `index` does, and BM25 of the query over
those of this page alone says which of them becomes the hit's text. A hit stays what it was in all else. A page that cannot be
opened, or that has no word of the query, costs nothing but itself: the snippet stays, and the log says why (debug). Where it
may be had another time, no cache keeps the answer.

What is opened, and how a page becomes text, is the business of `page_reading`. Hits are neither added nor put in another
order.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import urllib.request
from collections import Counter, OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from parallelsearch.errors import check_whole
from parallelsearch.retrieval.base import (
    Hit,
    Passage,
    PassingHits,
    Result,
    Retriever,
    WrappingRetriever,
    checked_seconds,
    hits_like,
    is_fresh,
)
from parallelsearch.retrieval.bm25 import BM25Retriever
from parallelsearch.retrieval.corpus import DEFAULT_CHUNK_OVERLAP, DEFAULT_CHUNK_WORDS, chunk_passage
from parallelsearch.retrieval.documents import PagedPassage
from parallelsearch.retrieval.page_reading import (
    PageError,
    fetch,
    is_pdf,
    page_address,
    page_client,
    read_pdf,
    read_text,
)

MAX_OPEN = 32
"""Pages that are opened at the same time, over all queries: so many may be in memory as they came."""
MAX_QUERIES = 16
"""Calls that are under way at the same time. A page waits for its place within its own time, so few should have to."""
KEEP_S, KEEP_FAILED_S = 300.0, 60.0
MAX_KEPT, MAX_KEPT_CHARS = 512, 4_000_000
"""Pages that are kept, and their text together: with what is known of their words about 60 MB."""
_NUM_PDFS = _NUM_THREADS = 2
_NUM_SILENT = 10
"""So many pages fail in a row at first before somebody is told."""
_MAX_WORD_CHARS = 50
"""A passage has at most so many characters for each of its words: a page may have one that never ends."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Page:
    """A page that was opened: its passages, or why there are none."""

    title: str = ""
    index: BM25Retriever | None = None
    problem: str = ""
    num_chars: int = 0
    may_come_back: bool = False
    """It could not be had now, and perhaps can another time."""


@dataclass(slots=True)
class _Opening:
    """A page on its way, for all who wait for it: when the last of them leaves, it is given up."""

    task: asyncio.Task[_Page]
    num_waiting: int = 0


@dataclass(slots=True)
class _Lane:
    """What belongs to one event loop."""

    asking: asyncio.Semaphore
    opening: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_OPEN))
    pdfs: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_NUM_PDFS))
    on_way: dict[str, _Opening] = field(default_factory=dict)


class PagesRetriever(WrappingRetriever):
    """`inner` finds; the pages of its first `depth` hits are opened, and a passage of `words` words takes the place of each
    snippet. `timeout_s` is what a page has, waiting and reading included."""

    def __init__(
        self,
        inner: Retriever,
        *,
        timeout_s: float = 8.0,
        depth: int = 10,
        words: int = DEFAULT_CHUNK_WORDS,
        private: bool = False,
    ) -> None:
        check_whole("depth is how many hits of a query are opened,", depth)
        check_whole("words is how long the passage of a page is,", words)
        self.inner, self.depth, self.words, self.private = inner, depth, words, private
        self.page_timeout_s = checked_seconds(timeout_s, "pages")
        self.name = f"pages of {inner.name}"
        self.timeout_s = inner.timeout_s + timeout_s
        # Other queries are asked while pages are on their way; `inner` is still asked no more widely than it can take.
        self.max_batch, self.max_concurrency = min(inner.max_batch, 4), max(MAX_QUERIES, inner.max_concurrency)
        self._client = page_client(MAX_OPEN, private=private)
        self._kept = _Kept()
        self._lanes: dict[asyncio.AbstractEventLoop, _Lane] = {}
        self._num_failed: int | None = 0  # until the first that was read
        self._pool = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="pages")
        # The first import takes longer than a page, and can be done while the engine is asked.
        self._pool.submit(BM25Retriever.from_passages, [Passage("", "", "word")])
        if not private and {"http", "https", "all"} & urllib.request.getproxies().keys():
            _log.warning(
                "pages are opened without the proxy of the environment: it would find the addresses of names itself, also "
                "private ones. Where there is no way without it, and it lets nobody into your network: pages?private=1:..."
            )

    async def search_many(self, queries: Sequence[str], k: int) -> list[Result]:
        lane = self._lane()
        async with lane.asking:
            found = await self.inner.search_many(queries, k)
        # Measurements share no page with others: nothing may be faster because it was asked before.
        on_way = {} if is_fresh.get() else lane.on_way
        return list(
            await asyncio.gather(
                *(self._opened(lane, on_way, query, one) for query, one in zip(queries, found, strict=True))
            )
        )

    async def _opened(self, lane: _Lane, on_way: dict[str, _Opening], query: str, result: Result) -> Result:
        if not isinstance(result, list):
            return result
        pages = await asyncio.gather(*(self._page(lane, on_way, hit.url) for hit in result[: self.depth] if hit.url))
        left, places = iter(pages), Counter[str]()
        hits = [
            self._best(query, hit, next(left), places) if hit.url and at < self.depth else hit
            for at, hit in enumerate(result)
        ]
        is_passing = not isinstance(result, PassingHits) and any(page.may_come_back for page in pages)
        return PassingHits(hits) if is_passing else hits_like(result, hits)

    def _best(self, query: str, hit: Hit, page: _Page, places: Counter[str]) -> Hit:
        """The hit with the passage of its page that fits the query best: another one for each hit of the same page."""
        if page.index is None:
            _log.debug("a snippet stays: %s", page.problem)
            return hit
        url = page_address(hit.url or "")
        places[url] += 1
        fitting = page.index.search_blocking([query], places[url])[0]
        if not isinstance(fitting, list) or len(fitting) < places[url]:
            _log.debug("a snippet stays: its page has no passage with a word of the query, or no further one")
            return hit
        best = fitting[-1]
        metadata = {**(hit.metadata or {}), **(best.metadata or {})} or None  # of a PDF also the page
        text = best.text[: _MAX_WORD_CHARS * self.words]
        return replace(hit, id=best.id, title=hit.title or page.title, text=text, metadata=metadata)

    # ---- pages -------------------------------------------------------------------------------------------------------

    async def _page(self, lane: _Lane, on_way: dict[str, _Opening], url: str) -> _Page:
        """The page at an address: kept, on its way, or opened. Never fails."""
        try:
            url = page_address(url)
        except PageError as error:
            return _Page(problem=str(error))
        if on_way is lane.on_way and (page := self._kept.get(url)) is not None:
            return page
        opening = on_way.get(url)
        if opening is None:
            opening = on_way[url] = _Opening(asyncio.create_task(self._open(lane, url)))
        opening.num_waiting += 1
        try:
            return await asyncio.shield(opening.task)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():  # who waits is given up, and not the page
                raise
            return _Page(problem="the search was closed before the page was there", may_come_back=True)
        finally:
            opening.num_waiting -= 1
            if (opening.task.done() or not opening.num_waiting) and on_way.get(url) is opening:
                del on_way[url]
            if not opening.num_waiting:
                opening.task.cancel()

    async def _open(self, lane: _Lane, url: str) -> _Page:
        kept = self._kept  # before `forget`, perhaps
        try:
            async with asyncio.timeout(self.page_timeout_s):
                page = await self._read(lane, url)
        except TimeoutError:
            page = _Page(problem=f"the page was not there within {self.page_timeout_s:g} s", may_come_back=True)
        except PageError as error:
            page = _Page(problem=str(error), may_come_back=error.may_come_back)
        except Exception as error:  # a fault of ours in one page must not cost the others
            _log.warning("a page could not be read: %s: %s", type(error).__name__, error)
            page = _Page(problem=f"{type(error).__name__}: {error}")
        kept.put(url, page)
        self._count(page)
        return page

    def _count(self, page: _Page) -> None:
        """Say it once where no page can be had at all: a firewall, say. That a page fails is nothing to speak of."""
        if page.index is not None:
            self._num_failed = None
        elif self._num_failed is not None:
            self._num_failed += 1
            if self._num_failed == _NUM_SILENT:
                _log.warning(
                    "none of the first %d pages could be opened, and their snippets stay: can this machine reach the web? "
                    "The log of %s says why at the level debug",
                    _NUM_SILENT,
                    __name__,
                )

    async def _read(self, lane: _Lane, url: str) -> _Page:
        start_s, loop = time.monotonic(), asyncio.get_running_loop()
        async with lane.opening:
            source = await fetch(self._client, url)
            if not is_pdf(source):
                return await loop.run_in_executor(self._pool, lambda: self._indexed(read_text(source, url)))
            async with lane.pdfs:
                text = await read_pdf(source, url, max(0.1, self.page_timeout_s - (time.monotonic() - start_s)))
            return await loop.run_in_executor(self._pool, self._indexed, text)

    def _indexed(self, page: PagedPassage) -> _Page:
        overlap = min(DEFAULT_CHUNK_OVERLAP, self.words // 5)
        # Its title is in all of its passages, and would only make them alike.
        passages = list(chunk_passage(replace(page, title=""), self.words, overlap))
        return _Page(page.title, BM25Retriever.from_passages(passages), num_chars=len(page.text))

    # ---- the rest ----------------------------------------------------------------------------------------------------

    def _lane(self) -> _Lane:
        loop = asyncio.get_running_loop()
        lane = self._lanes.get(loop)
        if lane is None:
            # Not a weak dictionary: a semaphore that somebody waited for holds its loop.
            for other in [one for one in list(self._lanes) if one.is_closed()]:
                self._lanes.pop(other, None)
            lane = self._lanes[loop] = _Lane(asyncio.Semaphore(self.inner.max_concurrency))
        return lane

    def forget(self) -> None:
        self._kept = _Kept()
        super().forget()

    def describe(self) -> dict[str, Any]:
        return self._description("pages", {"depth": self.depth, "words": self.words, "private": self.private})

    async def aclose(self) -> None:
        tasks = [opening.task for opening in self._lane().on_way.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._pool.shutdown(wait=False, cancel_futures=True)
        await self._client.aclose()
        await self.inner.aclose()


class _Kept:
    """The pages opened last, for some minutes; event loops in several threads share them."""

    def __init__(self) -> None:
        self._pages: OrderedDict[str, tuple[_Page, float]] = OrderedDict()
        self._num_chars = 0
        self._lock = threading.Lock()

    def get(self, url: str) -> _Page | None:
        with self._lock:
            page, until_s = self._pages.get(url, (None, 0.0))
            return page if time.monotonic() < until_s else None

    def put(self, url: str, page: _Page) -> None:
        until_s = time.monotonic() + (KEEP_FAILED_S if page.index is None else KEEP_S)
        with self._lock:
            if url in self._pages:
                self._num_chars -= self._pages.pop(url)[0].num_chars
            self._pages[url] = page, until_s
            self._num_chars += page.num_chars
            while len(self._pages) > MAX_KEPT or self._num_chars > MAX_KEPT_CHARS:
                self._num_chars -= self._pages.popitem(last=False)[1][0].num_chars

"""A backend of the caller's own: an object with `search_many`, or a plain function, blocking or async.

`as_retriever` makes a `Retriever` of it. A function says by its first parameter what it takes: `queries` (a list, answered by
a list of lists of hits) or `query` (one at a time). A hit may be a `Hit`, a dict with `text`, a pair of title and text, or a
string; what is missing is filled in. Blocking code runs in threads. What cannot be a backend is refused when it is given,
with what it lacks; what a backend gives that is no hit is that query's error.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from parallelsearch.errors import SearchError, UsageError
from parallelsearch.own_code import described
from parallelsearch.retrieval.base import Hit, Passage, Result, Retriever
from parallelsearch.retrieval.metadata import metadata_of

MAX_THREADS = 8
"""Calls of a function of one query that run at once; `Search(function, max_concurrency=1)` for one that must not."""
_ONE = ("query", "q", "question", "text", "term", "keyword")
_MANY = ("queries", "questions", "texts", "terms", "keywords")
_FORMS = "an object with search_many(queries, k), a function of (queries, k) or of (query, k), each blocking or async"
_KNOWN = frozenset(("id", "title", "text", "url", "date", "score", "rank"))
_HITS = "a Hit, a dict with 'text', a pair (title, text) or a string"


class SearchesMany(Protocol):
    """An object that can be a backend: its method may be async or blocking, and `k` may be left out."""

    @property
    def search_many(self) -> Callable[..., Any]: ...


Backend = Retriever | SearchesMany | Callable[..., Any]
"""Whatever `as_retriever` takes."""


def as_retriever(backend: Backend) -> Retriever:
    """The backend as a retriever; `UsageError` says what is missing."""
    if isinstance(backend, Retriever):
        return backend
    if isinstance(backend, type):
        raise UsageError(f"{backend.__name__} is a class; give one of it: {backend.__name__}(...)")
    method = getattr(backend, "search_many", None)
    if callable(method):
        return OwnRetriever(backend, method, takes_many=True)
    if callable(backend):
        return OwnRetriever(backend, backend, _takes_many(backend, _name_of(backend)))
    raise UsageError(
        f"{_kind(backend)} is no search backend: it has no method search_many and cannot be called. A backend is "
        f"{_FORMS}; or give an address, such as bm25:DIR"
    )


class OwnRetriever(Retriever):
    """Calls what the caller gave, and reads what comes back."""

    def __init__(self, backend: object, function: Callable[..., Any], takes_many: bool) -> None:
        self.backend, self.name, self._takes_many = backend, _name_of(backend), takes_many
        self._function = function
        self._passes_k = _passes_k(function, self.name, "queries" if takes_many else "query")
        called = getattr(function, "__call__", None)  # noqa: B004 - of an object, this is what may be async
        self._is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)
        several = MAX_THREADS if self._is_async or not takes_many else 1
        self.max_batch = int(getattr(backend, "max_batch", Retriever.max_batch if takes_many else 1))
        self.max_concurrency = int(getattr(backend, "max_concurrency", several))
        self._pool = ThreadPoolExecutor(self.max_concurrency, thread_name_prefix=f"search-{self.name}")

    async def search_many(self, queries: Sequence[str], k: int) -> list[Result]:
        if self._takes_many:
            results = await self._call(list(queries), k)
            if not isinstance(results, list | tuple):
                raise SearchError(f"{self.name} gave {_kind(results)}, not a list with the hits of each query")
            if len(results) != len(queries):
                raise SearchError(f"{self.name} gave {len(results)} results for {len(queries)} queries")
        else:
            results = await asyncio.gather(*(self._call(query, k) for query in queries), return_exceptions=True)
        return [read_hits(result, self.name, k) for result in results]

    async def _call(self, argument: str | list[str], k: int) -> Any:
        arguments = (argument, k) if self._passes_k else (argument,)
        if self._is_async:
            return await self._function(*arguments)
        result = await asyncio.get_running_loop().run_in_executor(self._pool, self._blocking, *arguments)
        # A wrapper or a partial need not look async and can be it all the same.
        return await result if inspect.isawaitable(result) else result

    def _blocking(self, *arguments: Any) -> Any:
        try:
            return self._function(*arguments)
        except (StopIteration, SystemExit) as error:  # no future carries the first, and the second would end the loop
            raise SearchError(f"{self.name} failed: {type(error).__name__}: {error}") from error

    def describe(self) -> dict[str, Any]:
        describe = getattr(self.backend, "describe", None)
        told = describe() if callable(describe) else None
        if isinstance(told, Mapping):
            return dict(told)
        is_code = inspect.isroutine(self.backend) or isinstance(self.backend, functools.partial)
        return described(self.name, self.backend if is_code else type(self.backend))

    async def aclose(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        close = getattr(self.backend, "aclose", None) or getattr(self.backend, "close", None)
        closing = close() if callable(close) else None
        if inspect.isawaitable(closing):
            await closing


# ---- what a function takes -------------------------------------------------------------------------------------------


def _name_of(backend: object) -> str:
    name = getattr(backend, "name", None) or getattr(backend, "__name__", None)
    return name if isinstance(name, str) else type(backend).__name__


def _parameters(function: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise UsageError(
            f"what {name} takes cannot be seen; wrap it: def search(queries, k): return {name}(queries, k)"
        ) from None


def _takes_many(function: Callable[..., Any], name: str) -> bool:
    """Whether a function takes all queries or one, by the name or the type of its first parameter."""
    parameters = _parameters(function, name)
    if not parameters:
        raise UsageError(f"{name} takes nothing; a search function takes (queries, k) or (query, k)")
    first = parameters[0]
    hint = first.annotation
    if hint is not inspect.Parameter.empty:
        if hint in (str, "str"):
            return False
        origin = typing.get_origin(hint) or hint
        if origin in (list, tuple, Sequence) or str(hint).lower().startswith(("list", "tuple", "sequence", "iterable")):
            return True
    if first.name.lower() in _ONE or first.name.lower() in _MANY:
        return first.name.lower() in _MANY
    raise UsageError(
        f"{name}({first.name}, ...) does not say whether it takes one query or all of them: call its first parameter "
        "'query' or 'queries', or give it the type str or list[str]"
    )


def _passes_k(function: Callable[..., Any], name: str, first: str) -> bool:
    """Whether it is called with k. What it takes must be `first`, then k if anything."""
    signature = inspect.Signature(_parameters(function, name))
    for num_arguments in (2, 1):
        try:
            signature.bind(*range(num_arguments))
        except TypeError:
            continue
        return num_arguments == 2
    raise UsageError(f"{name}{signature} cannot be called as ({first}, k); a backend is {_FORMS}")


# ---- what it gives ---------------------------------------------------------------------------------------------------


def read_hits(result: object, name: str, k: int) -> Result:
    """What a backend gave for one query as hits, at most k; an error in its place where that cannot be."""
    if isinstance(result, SearchError):
        return result
    if isinstance(result, Exception):
        return SearchError(f"{name} failed: {type(result).__name__}: {result}")
    if isinstance(result, str | bytes | Mapping | Passage) or not hasattr(result, "__iter__"):
        return [] if result is None else SearchError(f"{name} gave {_kind(result)} where the hits of a query belong")
    try:
        items = list(result)[:k]
        return [_hit(item, rank) for rank, item in enumerate(items, start=1)]
    except (TypeError, ValueError) as error:
        return SearchError(f"{name} gave {error}; a hit is {_HITS}")


def _hit(item: object, rank: int) -> Hit:
    if isinstance(item, Hit):
        return item if item.rank else Hit.of(item, item.score, rank)
    if isinstance(item, Passage):
        return Hit.of(item, 0.0, rank)
    if isinstance(item, str):
        return _made({"text": item}, rank)
    if isinstance(item, tuple) and len(item) == 2 and all(isinstance(part, str) for part in item):
        return _made({"title": item[0], "text": item[1]}, rank)
    if isinstance(item, Mapping):
        if not isinstance(item.get("text"), str):
            held = ", ".join(map(str, item)) or "nothing"
            raise ValueError(f"a hit without a 'text' (it has: {held[:200]})")
        return _made(item, rank)
    raise TypeError(f"{_kind(item)} as a hit")


def _made(fields: Mapping[str, Any], rank: int) -> Hit:
    title, text = str(fields.get("title") or ""), str(fields["text"])
    id = fields.get("id")
    if id is None:  # the same passage has the same id in every search, so that it is shown once
        id = hashlib.sha256(f"{title}\n{text}".encode(errors="replace")).hexdigest()[:16]
    url, date = fields.get("url"), fields.get("date")
    return Hit(
        str(id),
        title,
        text,
        None if url is None else str(url),
        None if date is None else str(date),
        float(fields.get("score") or 0.0),
        rank,
        metadata=metadata_of(fields, _KNOWN),
    )


def _kind(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"

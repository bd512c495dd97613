"""Several searches as one, each over a corpus of its own: one's documents and the web (`all:ADDRESS|ADDRESS`).

Every query goes to all of them at the same time, and their hits take turns. Each is a `Search`, so that it is asked again,
and as widely, as it would be alone. One that fails leaves the others' hits, as `DegradedHits` that say what is missing.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from parallelsearch.errors import SearchError, UsageError
from parallelsearch.http import without_asked
from parallelsearch.retrieval.base import DegradedHits, Hit, KeptHits, PassingHits, Result, Retriever, is_fresh
from parallelsearch.search import TIMEOUT_S, Found, Search

MARGIN_S = 10.0
"""What a search has in all beyond the time of each part, its retries included, so that one part leaves the others' hits."""
_numbers = itertools.count()
_log = logging.getLogger(__name__)


class JoinedRetriever(Retriever):
    """Searches over different corpora as one backend. Owns its parts: closing it closes them.

    With weights 2 and 1 the first gives two hits for each of the second. A passage that two engines found at the same
    address of the web is one. The ids of the first part stay as they are; those of the others get the part's number.
    """

    max_concurrency = 64  # each part keeps to its own

    def __init__(self, parts: Sequence[Retriever], *, weights: Sequence[float] | None = None) -> None:
        weights = [1.0] * len(parts) if weights is None else list(weights)
        if len(parts) < 2:
            raise UsageError(f"searches are joined from two on, not {len(parts)}")
        if len(weights) != len(parts) or not all(0 < weight < math.inf for weight in weights):
            raise UsageError(f"{len(parts)} searches need as many weights above 0, not {weights}")
        least_s = TIMEOUT_S - MARGIN_S
        self.parts = [Search(part, timeout_s=max(least_s, part.timeout_s), cache_size=0) for part in parts]
        self.timeout_s = max(part.timeout_s for part in self.parts) + MARGIN_S
        self.weights, self.name = weights, " and ".join(part.name for part in parts)
        self._warned: set[str] = set()

    async def search_many(self, queries: Sequence[str], k: int) -> list[Result]:
        scope = f"all-{next(_numbers)}" if is_fresh.get() else ""
        answers = await asyncio.gather(*(part.search_many(queries, k, scope) for part in self.parts))
        return [self._join([answer[place] for answer in answers], k) for place in range(len(queries))]

    def _join(self, founds: Sequence[Found], k: int) -> Result:
        missing: list[str] = []
        for part, found in zip(self.parts, founds, strict=True):
            name = part.retriever.name
            if found.error is not None:
                missing.append(f"{name}: {found.error}")
                if name not in self._warned:  # the record has each
                    self._warned.add(name)
                    _log.warning("searches go on without %s: %s", name, without_asked(str(found.error), [found.text]))
            elif isinstance(found.hits, DegradedHits):
                missing += [f"{name}: {why}" for why in found.hits.failures]
        if all(found.error is not None for found in founds):
            return SearchError("; ".join(missing))  # each was asked again where that was worth it
        hits = _in_turns([found.hits for found in founds], self.weights)[:k]
        if missing:
            return DegradedHits(hits, missing)
        if any(isinstance(found.hits, PassingHits) for found in founds):
            return PassingHits(hits)
        return KeptHits(hits) if all(found.cached for found in founds) else hits

    def forget(self) -> None:
        for part in self.parts:
            part.forget()

    async def check(self) -> None:
        for part in self.parts:
            await part.check()

    def describe(self) -> dict[str, Any]:
        parts = [part.retriever.describe() for part in self.parts]
        return {"kind": "all", "settings": {"weights": self.weights}, "parts": parts}

    async def aclose(self) -> None:
        await asyncio.gather(*(part.aclose() for part in self.parts), return_exceptions=True)


def _in_turns(rankings: Sequence[Sequence[Hit]], weights: Sequence[float]) -> list[Hit]:
    """Every hit once, and where weights are equal the first of each ranking before any second."""
    turns = [
        (rank / weight, number, hit)
        for number, (ranking, weight) in enumerate(zip(rankings, weights, strict=True), start=1)
        for rank, hit in enumerate(ranking, start=1)
    ]
    hits: dict[str, Hit] = {}
    for turn, number, hit in sorted(turns, key=lambda one: one[:2]):
        id = hit.id
        if "://" not in id:  # the same id in two corpora means two passages, an address of the web means one
            id = id if number == 1 else f"{number}:{id}"
            while id in hits:
                id = f"{number}:{id}"
        hits.setdefault(id, replace(hit, id=id, score=1 / turn, rank=len(hits) + 1))
    return list(hits.values())

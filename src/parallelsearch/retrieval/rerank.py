"""A second look: a cross-encoder reads the query with each of the first hits and puts them in its own order.

Wraps any retriever. It costs one pass of a model for each hit looked at, so `depth` is small and the work runs in a thread.
If the model fails, the first ranking stands, marked as `DegradedHits`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from parallelsearch.errors import UsageError, require
from parallelsearch.retrieval.base import DegradedHits, Hit, Result, Retriever, WrappingRetriever, hits_like
from parallelsearch.retrieval.encoder import loading_errors, quiet_loading
from parallelsearch.retrieval.text_encoder import passage_text, plain_text

_log = logging.getLogger(__name__)


class RerankRetriever(WrappingRetriever):
    """`inner` finds `depth` hits, the cross-encoder chooses the best `k` of them. The score is the cross-encoder's."""

    def __init__(
        self,
        inner: Retriever,
        model: str,
        *,
        depth: int = 30,
        device: str | None = None,
        batch_size: int = 32,
        max_tokens: int = 512,
    ) -> None:
        if depth < 1:
            raise UsageError(f"depth is how many hits are looked at again, at least 1, not {depth}")
        torch = require("torch", "dense")
        library = require("sentence_transformers", "dense")
        super().__init__(inner)
        self.model, self.depth, self.batch_size = model, depth, batch_size
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        dtype = torch.float16 if device.startswith("cuda") else torch.float32
        with loading_errors("the cross-encoder", model), quiet_loading():
            self._model: Any = library.CrossEncoder(
                model, device=device, max_length=max_tokens, model_kwargs={"dtype": dtype}
            )
        if self._model.num_labels != 1:
            raise UsageError(
                f"'{model}' gives {self._model.num_labels} scores for a pair; a reranker gives one (num_labels = 1)"
            )
        self.name = f"rerank-{inner.name}"
        self._max_chars = max_tokens * 64
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="rerank")

    async def search_many(self, queries: Sequence[str], k: int) -> list[Result]:
        found = await self.inner.search_many(queries, max(k, self.depth))
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._pool, self._rerank, list(queries), found, k)
        except Exception as error:  # the first ranking is still good
            _log.warning("reranking failed, the first ranking stands: %s", error)
            note = f"rerank: {type(error).__name__}: {error}"
            return [DegradedHits(result[:k], [note]) if isinstance(result, list) else result for result in found]

    def _rerank(self, queries: list[str], found: Sequence[Result], k: int) -> list[Result]:
        # Only the first `depth` are looked at; k beyond it gets the rest in their old order.
        pairs = [
            (plain_text(query, self._max_chars), plain_text(passage_text(hit), self._max_chars))
            for query, result in zip(queries, found, strict=True)
            if isinstance(result, list)
            for hit in result[: self.depth]
        ]
        scores = (
            np.asarray(self._model.predict(pairs, batch_size=self.batch_size, show_progress_bar=False), np.float32)
            if pairs
            else np.zeros(0, np.float32)
        )
        results: list[Result] = []
        at = 0
        for result in found:
            if not isinstance(result, list):
                results.append(result)
                continue
            looked_at, rest = result[: self.depth], result[self.depth :]
            its_scores = scores[at : at + len(looked_at)]
            at += len(looked_at)
            order = np.argsort(-its_scores, kind="stable")
            # The rest stays below everything that was looked at, whatever its own scale.
            floor = float(its_scores.min()) if len(its_scores) else 0.0
            ranked = [(looked_at[place], float(its_scores[place])) for place in order]
            ranked += [(hit, floor) for hit in rest]
            hits = [Hit.of(hit, score, rank) for rank, (hit, score) in enumerate(ranked[:k], start=1)]
            results.append(hits_like(result, hits))
        return results

    def describe(self) -> dict[str, Any]:
        return self._description("rerank", {"model": self.model, "depth": self.depth})

    async def aclose(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        await self.inner.aclose()

"""Reranking with a real cross-encoder (random weights): its order wins, its failure does not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tiny_encoders import tiny_cross_encoder
from typer.testing import CliRunner

pytest.importorskip("sentence_transformers")

from parallelsearch.cli.app import app
from parallelsearch.errors import SearchError, UsageError
from parallelsearch.retrieval.base import DegradedHits, Hit, Passage, Result
from parallelsearch.retrieval.bm25 import BM25Retriever
from parallelsearch.retrieval.cache import CachedRetriever
from parallelsearch.retrieval.rerank import RerankRetriever
from parallelsearch.search import Search

HELD = [Passage(f"p{n}", f"Town {n}", f"Town {n} lies {n * 37 % 100} km from the sea.") for n in range(30)]
QUERIES = ["town sea", "km from town 4"]


class OneFails(BM25Retriever):
    async def search_many(self, queries: Sequence[str], k: int) -> list[Result]:
        results = await super().search_many(queries, k)
        return [SearchError("no") if query == "bad" else result for query, result in zip(queries, results, strict=True)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_cross_encoder(tmp_path_factory.mktemp("models") / "cross"))


def by_hand(model: str, query: str, hits: list[Hit]) -> list[float]:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer, network = AutoTokenizer.from_pretrained(model), AutoModelForSequenceClassification.from_pretrained(model)
    texts = [f"{hit.title}\n{hit.text}" for hit in hits]
    with torch.no_grad():
        tokens = tokenizer([query] * len(hits), texts, return_tensors="pt", padding=True)
        return [float(value) for value in torch.sigmoid(network.eval()(**tokens).logits[:, 0])]


async def test_the_order_is_the_cross_encoders(model: str) -> None:
    inner = BM25Retriever.from_passages(HELD)
    reranked = RerankRetriever(inner, model, depth=12)
    first = await inner.search_many(QUERIES, 12)
    for query, before, after in zip(QUERIES, first, await reranked.search_many(QUERIES, 5), strict=True):
        assert isinstance(before, list)
        assert isinstance(after, list)
        scores = by_hand(model, query, before)
        wanted = [before[place].id for place in np.argsort([-score for score in scores])[:5]]
        assert [hit.id for hit in after] == wanted
        np.testing.assert_allclose([hit.score for hit in after], sorted(scores, reverse=True)[:5], atol=1e-4)
        assert [hit.rank for hit in after] == [1, 2, 3, 4, 5]
    await reranked.aclose()


async def test_beyond_the_depth_the_old_order_stays_below(model: str) -> None:
    inner = BM25Retriever.from_passages(HELD)
    [before] = await inner.search_many(QUERIES[:1], 8)
    [after] = await RerankRetriever(inner, model, depth=3).search_many(QUERIES[:1], 8)
    assert {hit.id for hit in after[:3]} == {hit.id for hit in before[:3]}
    assert [hit.id for hit in after[3:]] == [hit.id for hit in before[3:]]
    assert [hit.score for hit in after] == sorted((hit.score for hit in after), reverse=True)


async def test_failures_of_the_search_stay_in_their_places(model: str) -> None:
    reranked = RerankRetriever(OneFails.from_passages(HELD), model)
    good, bad, nothing = await reranked.search_many(["town", "bad", "zzzz"], 2)
    assert isinstance(good, list)
    assert isinstance(bad, SearchError)
    assert nothing == []


async def test_what_a_cache_below_had_is_still_cached(model: str, tmp_path: Path) -> None:
    kept = CachedRetriever(BM25Retriever.from_passages(HELD), tmp_path / "kept.sqlite")
    search = Search(RerankRetriever(kept, model), cache_size=0)
    assert [(await search.find("town sea")).cached for _ in range(2)] == [False, True]
    assert not (await search.find("town sea", scope="anew")).cached
    await search.aclose()


async def test_odd_texts_are_no_failure(model: str) -> None:
    reranked = RerankRetriever(BM25Retriever.from_passages(HELD), model)
    [result] = await reranked.search_many(["town \ud83d \x00 " + "sea " * 30_000], 3)
    assert isinstance(result, list)
    assert not isinstance(result, DegradedHits)


async def test_a_model_that_fails_leaves_the_first_ranking(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = BM25Retriever.from_passages(HELD)
    reranked = RerankRetriever(inner, model, depth=10)
    monkeypatch.setattr(reranked, "_model", None)  # what an out-of-memory GPU comes to: every call raises
    [before] = await inner.search_many(QUERIES[:1], 3)
    [after] = await reranked.search_many(QUERIES[:1], 3)
    assert isinstance(after, DegradedHits)
    assert [hit.id for hit in after] == [hit.id for hit in before]
    assert after.failures[0].startswith("rerank: ")


def test_what_cannot_rerank_is_told(tmp_path: Path) -> None:
    inner = BM25Retriever.from_passages(HELD)
    with pytest.raises(UsageError, match="gives 3 scores"):
        RerankRetriever(inner, str(tiny_cross_encoder(tmp_path / "three", num_labels=3)))
    with pytest.raises(UsageError, match="cannot load the cross-encoder"):
        RerankRetriever(inner, str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="depth"):
        RerankRetriever(inner, "any", depth=0)


def test_what_it_says_of_itself(model: str) -> None:
    about = RerankRetriever(BM25Retriever.from_passages(HELD), model, depth=7).describe()
    assert about["kind"] == "rerank"
    assert about["settings"] == {"model": model, "depth": 7}
    assert about["corpus_sha256"] == about["inner"]["corpus_sha256"]


def test_retrieve_has_each_sub_querys_hits_put_in_order(model: str) -> None:
    question, found = "Who is older, Claude Monet or Camille Pissarro?", []
    for more in (["--rerank", model], []):
        result = CliRunner().invoke(app, ["retrieve", question, "--k", "4", "--json", *more])
        assert result.exception is None
        found.append(json.loads(result.stdout)["passages"])
    reranked, plain = found
    assert [one["id"] for one in reranked] != [one["id"] for one in plain]
    by_query: dict[str, list[tuple[int, float]]] = {}
    for by in (by for one in reranked for by in one["found_by"]):
        by_query.setdefault(by["query"], []).append((by["rank"], by["score"]))
    assert len(by_query) == 2
    for ranked in by_query.values():
        scores = [score for _, score in sorted(ranked)]
        assert scores == sorted(scores, reverse=True)
        assert all(0 < score < 1 for score in scores)

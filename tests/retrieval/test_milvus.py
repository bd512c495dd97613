"""Milvus through the embedded Milvus Lite: the three kinds of search, what a load refuses, and a server that is not there."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_encoders import tiny_encoder

pytest.importorskip("milvus_lite")
pytest.importorskip("pymilvus")
pytest.importorskip("sentence_transformers")

from parallelsearch.addresses import open_retriever
from parallelsearch.errors import (
    DataError,
    IndexDamagedError,
    ParallelSearchError,
    SearchError,
    TransientSearchError,
    UsageError,
)
from parallelsearch.retrieval import milvus
from parallelsearch.retrieval.base import Passage
from parallelsearch.retrieval.dense import DenseRetriever, build_dense
from parallelsearch.retrieval.encoder import Encoder
from parallelsearch.retrieval.hybrid import RRF_K, fuse
from parallelsearch.retrieval.milvus import MilvusRetriever, _shown, build_milvus
from parallelsearch.retrieval.store import corpus_sha256

HELD = [Passage(f"p{n}", f"Town {n}", f"Town {n} lies {n * 7 % 100} km from the sea.") for n in range(60)]
HELD.append(
    Passage(
        *("web", "Élan", 'Quotes "and" ünï\ncode 🙂', "https://example.org/a", "2026-01-02"),
        metadata={"by": "Ünä", "page": 3},
    )
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    return Encoder(str(tiny_encoder(tmp_path_factory.mktemp("models") / "tiny")))


@pytest.fixture(scope="module")
def database(tiny: Encoder, tmp_path_factory: pytest.TempPathFactory) -> str:
    uri = str(tmp_path_factory.mktemp("milvus") / "corpus.db")
    told: list[tuple[int, int | None]] = []
    report = build_milvus(HELD, uri, encoder=tiny, on_progress=lambda *step: told.append(step))
    assert report.num_passages == 61
    assert told[-1] == (61, 61)
    return uri


@pytest.fixture
def opened() -> Iterator[list[MilvusRetriever]]:
    held: list[MilvusRetriever] = []
    yield held
    for retriever in held:
        retriever._client.close()


async def test_keyword_search_finds_words_with_positive_scores(database: str, opened: list[MilvusRetriever]) -> None:
    opened.append(retriever := MilvusRetriever(database, mode="bm25"))
    town, sea, unknown = await retriever.search_many(["Town 17", "lies 21 km", "zzzz"], 5)
    assert isinstance(town, list)
    assert isinstance(sea, list)
    assert town[0].id == "p17"
    assert (town[0].title, town[0].text) == (HELD[17].title, HELD[17].text)
    assert town[0].score > town[1].score > 0
    assert [hit.rank for hit in town] == [1, 2, 3, 4, 5]
    assert {sea[0].id, sea[1].id} == {"p3", "p21"}  # 21 is the distance of one and the name of the other
    assert unknown == []


async def test_dense_search_is_that_of_a_dense_index(
    database: str, tiny: Encoder, tmp_path: Path, opened: list[MilvusRetriever]
) -> None:
    build_dense(HELD, tmp_path / "index", tiny)
    queries = ["Town 4", "km sea 9", "quotes"]
    wanted = DenseRetriever(tmp_path / "index", encoder=tiny).search_blocking(queries, 5)
    opened.append(retriever := MilvusRetriever(database, mode="dense", encoder=tiny))
    for one, two in zip(wanted, await retriever.search_many(queries, 5), strict=True):
        assert isinstance(one, list)
        assert isinstance(two, list)
        assert [hit.score for hit in two] == pytest.approx([hit.score for hit in one], abs=1e-4)
    assert retriever.describe()["corpus_sha256"] == corpus_sha256(HELD)


async def test_hybrid_search_is_the_fusion_of_both(database: str, tiny: Encoder, opened: list[MilvusRetriever]) -> None:
    parts: list[Any] = [MilvusRetriever(database, mode=mode, encoder=tiny) for mode in ("bm25", "dense")]
    opened += [*parts, hybrid := MilvusRetriever(database, encoder=tiny, depth=20)]
    assert hybrid.mode == "hybrid"
    # Distinct words, so that few keyword scores are equal: the order of equals is the server's own.
    queries = ["quotes code", "Town 17"]
    [lexical, dense] = [await part.search_many(queries, 20) for part in parts]
    for place, result in enumerate(await hybrid.search_many(queries, 1)):
        assert isinstance(result, list)
        assert result[0].id == fuse([lexical[place], dense[place]], [1.0, 1.0], 1)[0].id
        assert 0 < result[0].score <= 2 / (RRF_K + 1) + 1e-6


async def test_every_field_comes_back_as_it_was(database: str, opened: list[MilvusRetriever]) -> None:
    opened.append(retriever := MilvusRetriever(database, mode="bm25"))
    [hits] = await retriever.search_many(["quotes"], 1)
    assert isinstance(hits, list)
    found = hits[0]
    assert Passage(found.id, found.title, found.text, found.url, found.date, metadata=found.metadata) == HELD[-1]


async def test_a_collection_from_before_there_was_metadata_is_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: list[MilvusRetriever]
) -> None:
    row = milvus._row
    monkeypatch.setattr(milvus, "_FORMAT", 1)
    monkeypatch.delitem(milvus._MAX_BYTES, "metadata")
    monkeypatch.setattr(milvus, "_row", lambda passage: {k: v for k, v in row(passage).items() if k != "metadata"})
    build_milvus(HELD, str(tmp_path / "old.db"))
    monkeypatch.undo()
    opened.append(retriever := MilvusRetriever(str(tmp_path / "old.db")))
    [hits] = await retriever.search_many(["quotes"], 1)
    assert isinstance(hits, list)
    assert (hits[0].id, hits[0].metadata) == ("web", None)


async def test_bad_queries_stand_in_their_places(database: str, opened: list[MilvusRetriever]) -> None:
    opened.append(retriever := MilvusRetriever(database, mode="bm25"))
    results = await retriever.search_many(["Town 3", "", "half \ud83d", "town " * 20_000, "\x00\x01", "Town 5"], 2)
    assert [isinstance(result, SearchError) for result in results] == [False, True, False, False, False, False]
    assert results[-1][0].id == "p5"
    [everything] = await retriever.search_many(["town"], 100_000)
    assert len(everything) == 60


async def test_calls_from_several_threads(database: str, tiny: Encoder, opened: list[MilvusRetriever]) -> None:
    import asyncio

    opened.append(retriever := MilvusRetriever(database, encoder=tiny))
    assert retriever.max_concurrency == 4
    answers = await asyncio.gather(*(retriever.search_many([f"Town {n}"], 1) for n in range(12)))
    assert all(isinstance(answer[0], list) and answer[0] for answer in answers)


# ---- loading ---------------------------------------------------------------------------------------------------------


async def test_a_dense_index_is_loaded_without_encoding(
    tiny: Encoder, tmp_path: Path, opened: list[MilvusRetriever], monkeypatch: pytest.MonkeyPatch
) -> None:
    build_dense(HELD[:20], tmp_path / "index", tiny, dtype="int8")
    with monkeypatch.context() as patch:
        patch.setattr(Encoder, "encode_passages", lambda *_: pytest.fail("encoded again"))
        build_milvus(tmp_path / "index", str(tmp_path / "m.db"), "from_index")
    opened.append(retriever := MilvusRetriever(str(tmp_path / "m.db"), "from_index", mode="dense", encoder=tiny))
    [hits] = await retriever.search_many(["Town 7"], 20)
    assert len(hits) == 20


def test_collection_and_mode_in_an_address(database: str, opened: list[MilvusRetriever]) -> None:
    retriever = open_retriever(f"milvus?collection=passages&mode=bm25:{database}")
    assert isinstance(retriever, MilvusRetriever)
    opened.append(retriever)
    assert (retriever.collection, retriever.mode) == ("passages", "bm25")
    with pytest.raises(IndexDamagedError, match="there is no collection 'wiki'"):
        open_retriever(f"milvus?collection=wiki:{database}")
    with pytest.raises(UsageError, match="unknown mode 'bm52'; known are"):
        open_retriever(f"milvus?mode=bm52:{database}")


def test_a_collection_is_replaced_only_when_asked(tmp_path: Path, opened: list[MilvusRetriever]) -> None:
    uri = str(tmp_path / "m.db")
    build_milvus(HELD[:3], uri)
    with pytest.raises(UsageError, match="--overwrite"):
        build_milvus(HELD[:4], uri)
    build_milvus(HELD[:4], uri, overwrite=True)
    opened.append(retriever := MilvusRetriever(uri))
    assert retriever.mode == "bm25"
    assert retriever.describe()["num_passages"] == 4
    with pytest.raises(UsageError, match="has no vectors"):
        MilvusRetriever(uri, mode="dense")


def test_a_load_that_broke_off_is_refused_and_may_be_repeated(tmp_path: Path, opened: list[MilvusRetriever]) -> None:
    uri = str(tmp_path / "m.db")

    def broken() -> Iterator[Passage]:
        yield from HELD[:10]
        raise DataError("corpus.jsonl", 11, "is not JSON")

    with pytest.raises(DataError, match="line 11"):
        build_milvus(broken(), uri)  # type: ignore[arg-type]
    with pytest.raises(IndexDamagedError, match="not loaded to the end"):
        MilvusRetriever(uri)
    build_milvus(HELD[:10], uri)
    opened.append(MilvusRetriever(uri))


def test_what_milvus_cannot_hold_is_named_or_skipped(tmp_path: Path) -> None:
    long = Passage("long", "Long", "x" * 70_000)
    with pytest.raises(DataError, match=r"passage 'long'.*70005 bytes.*--chunk-words"):
        build_milvus([HELD[0], long], str(tmp_path / "a.db"))
    report = build_milvus([HELD[0], long], str(tmp_path / "b.db"), skip_bad=True)
    assert (report.num_passages, report.num_skipped) == (1, 1)
    with pytest.raises(DataError, match="no passages"):
        build_milvus([], str(tmp_path / "c.db"))
    with pytest.raises(UsageError, match="cannot name a Milvus collection"):
        build_milvus(HELD[:1], str(tmp_path / "d.db"), "no spaces")


def test_another_encoder_is_refused(database: str, tmp_path: Path) -> None:
    with pytest.raises(IndexDamagedError, match="gives other vectors"):
        MilvusRetriever(database, encoder=str(tiny_encoder(tmp_path / "other", seed=5)))
    with pytest.raises(IndexDamagedError, match=r"32 dimensions.*has 16"):
        MilvusRetriever(database, encoder=str(tiny_encoder(tmp_path / "small", dim=16)))


def test_what_is_not_ours_or_not_there_is_told(database: str, tmp_path: Path) -> None:
    from pymilvus import MilvusClient

    with pytest.raises(IndexDamagedError, match=r"no collection 'towns'.*found: passages"):
        MilvusRetriever(database, "towns")
    with pytest.raises(IndexDamagedError, match="there is no Milvus file"):
        MilvusRetriever(str(tmp_path / "none.db"))
    with pytest.raises(UsageError, match=r"ends in \.db"):
        MilvusRetriever(str(tmp_path / "folder"))
    with pytest.raises(UsageError, match="unknown mode"):
        MilvusRetriever(database, mode="fuzzy")  # type: ignore[arg-type]
    client = MilvusClient(str(tmp_path / "foreign.db"))
    client.create_collection("passages", dimension=4)
    client.close()
    with pytest.raises(IndexDamagedError, match="was not loaded by this version"):
        MilvusRetriever(str(tmp_path / "foreign.db"))


# ---- servers that fail -----------------------------------------------------------------------------------------------


def test_a_server_that_is_not_there_is_told_in_time() -> None:
    start = time.monotonic()
    with pytest.raises(ParallelSearchError, match=r"no connection to Milvus at 'http://127\.0\.0\.1:9'") as caught:
        MilvusRetriever("http://someone:secret@127.0.0.1:9", timeout_s=2)
    assert time.monotonic() - start < 120
    assert "secret" not in str(caught.value)


def test_a_server_that_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=lambda: server.accept(), daemon=True).start()
        start = time.monotonic()
        with pytest.raises(ParallelSearchError, match="no connection"):
            MilvusRetriever(f"http://127.0.0.1:{server.getsockname()[1]}", timeout_s=2)
        assert time.monotonic() - start < 120


async def test_a_collection_that_vanishes_is_a_value_not_a_crash(tmp_path: Path, opened: list[MilvusRetriever]) -> None:
    uri = str(tmp_path / "m.db")
    build_milvus(HELD[:5], uri)
    opened.append(retriever := MilvusRetriever(uri))
    retriever._client.drop_collection("passages")
    results = await retriever.search_many(["Town 1", "Town 2"], 3)
    assert all(isinstance(result, SearchError) and "milvus: " in str(result) for result in results)
    assert not any(isinstance(result, TransientSearchError) for result in results)


def test_addresses_lose_their_secrets() -> None:
    assert _shown("https://me:pass@host:19530/x") == "https://host:19530/x"
    assert _shown("https://me:pa/ss@host:19530") == "https://host:19530"
    assert _shown("folder/corpus.db") == "folder/corpus.db"

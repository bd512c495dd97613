"""Encoders by transformers alone: the same vectors as sentence-transformers gives, and a refusal of what it cannot do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny_encoders import tiny_encoder

pytest.importorskip("sentence_transformers")

from parallelsearch.errors import UsageError
from parallelsearch.retrieval.encoder import Encoder
from parallelsearch.retrieval.pooled_model import PooledModel

TEXTS = ["Town 7 has a tall tower.", "  x  ", "", "long " * 300, "A tower, and a town beside it."]


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize("pooling", [None, "mean", "cls"])
def test_the_vectors_are_those_of_sentence_transformers(tmp_path: Path, pooling: str | None) -> None:
    folder = tiny_encoder(tmp_path / "m", pooling=pooling)
    theirs = Encoder(str(folder), batch_size=2)
    plain = PooledModel(str(folder), device="cpu", dtype="float32")
    assert plain.pooling == (pooling or "mean")
    assert plain.max_seq_length == (512 if pooling is None else 128)
    plain.max_seq_length = theirs.max_tokens
    np.testing.assert_allclose(unit(plain.encode(TEXTS, batch_size=2)), theirs.encode_passages(TEXTS), atol=1e-5)


def test_prompts_and_lower_case_come_from_the_files(tmp_path: Path) -> None:
    folder = tiny_encoder(tmp_path / "m", pooling="mean", prompts={"query": "ask: ", "document": ""})
    settings = {"max_seq_length": 64, "do_lower_case": True}
    (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
    plain = PooledModel(str(folder), device="cpu", dtype="float32")
    assert plain.prompts["query"] == "ask: "
    upper, lower = plain.encode(["ONE Tower", "one tower"], batch_size=2)
    np.testing.assert_allclose(upper, lower, atol=1e-6)


def test_the_newer_form_of_the_pooling_file_is_read(tmp_path: Path) -> None:
    folder = tiny_encoder(tmp_path / "m", pooling="mean")
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"embedding_dimension": 32, "pooling_mode": "cls"}))
    assert PooledModel(str(folder), device="cpu", dtype="float32").pooling == "cls"


@pytest.mark.parametrize(
    ("settings", "says"),
    [({"pooling_mode": "max"}, "pools by max"), ({"pooling_mode": ["cls", "mean"]}, "pools by cls and mean")],
)
def test_another_pooling_is_refused_with_the_library_that_has_it(tmp_path: Path, settings: dict, says: str) -> None:
    folder = tiny_encoder(tmp_path / "m", pooling="mean")
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(settings))
    with pytest.raises(UsageError, match=f"{says}.*sentence-transformers"):
        PooledModel(str(folder), device="cpu", dtype="float32")


def test_a_projection_is_refused(tmp_path: Path) -> None:
    folder = tiny_encoder(tmp_path / "m", pooling="mean")
    modules = json.loads((folder / "modules.json").read_text())
    modules.append({"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"})
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(UsageError, match=r"Transformer, Pooling, Dense.*pip install"):
        PooledModel(str(folder), device="cpu", dtype="float32")


def test_an_index_is_built_and_searched_without_sentence_transformers(tmp_path: Path) -> None:
    """In a process where neither sentence-transformers nor faiss can be imported; the index is then opened here, with both."""
    folder = tiny_encoder(tmp_path / "m", pooling="mean")
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"id": str(n), "title": "", "text": f"town {n}"}) + "\n" for n in range(20)))
    code = f"""
import asyncio, sys
sys.modules["sentence_transformers"] = sys.modules["faiss"] = None  # as if not installed
from parallelsearch.retrieval.dense import DenseRetriever, build_dense
build_dense({str(corpus)!r}, {str(tmp_path / "index")!r}, {str(folder)!r}, batch_size=4)
hits = asyncio.run(DenseRetriever({str(tmp_path / "index")!r}, device="cpu").search_many(["town 7"], 1))[0]
print(hits[0].id)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=400)
    assert done.stdout.strip() == "7", done.stderr
    from parallelsearch.retrieval.dense import DenseRetriever

    assert len(DenseRetriever(tmp_path / "index", device="cpu").passages) == 20

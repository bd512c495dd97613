"""Search and encoder of the cold start's tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from painters import PAGES

from parallelsearch.coldstart.run import TokenizerEncoder
from parallelsearch.retrieval.base import Passage
from parallelsearch.retrieval.bm25 import BM25Retriever
from parallelsearch.search import Search
from parallelsearch.training.smoke import make_tokenizer


@pytest.fixture(scope="module")
def search() -> Search:
    passages = [Passage(f"p{number}", title, text) for number, (title, text) in enumerate(PAGES.items())]
    return Search(BM25Retriever.from_passages(passages), k=3)


@pytest.fixture(scope="module")
def encoder() -> TokenizerEncoder:
    return TokenizerEncoder(make_tokenizer(), max_context=8192)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a whole run has its data and its files, with a tokenizer that needs no weights."""
    tokenizer = make_tokenizer()
    monkeypatch.setenv("PARALLELSEARCH_DATA", str(tmp_path))
    monkeypatch.setattr(TokenizerEncoder, "of", classmethod(lambda cls, model: cls(tokenizer, model)))
    return tmp_path

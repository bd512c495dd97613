"""What an encoder is to the rest of the package: texts to unit vectors, and how an index knows its encoder again.

Two classes are one: `Encoder` runs a model in this process, `ServedEncoder` asks a server for embeddings. What they share is
here: the prefixes a model family was trained with, what of a passage is encoded, and the *probe*, the vector of one fixed
sentence, by which an index knows its encoder whatever its folder or address is called. Vectors are always of length one, so
the inner product is the cosine. Nothing here needs torch.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from parallelsearch.errors import IndexDamagedError
from parallelsearch.retrieval.base import Passage

Vectors = npt.NDArray[np.float32]

PROBE_TEXT = "The quick brown fox jumps over the lazy dog."
# The same weights in half precision give a cosine above 0.999; another model or pooling falls far below. Prefixes are
# compared as text.
MIN_PROBE_COSINE = 0.99


@dataclass(frozen=True, slots=True)
class Prefixes:
    """What a model family expects before a query and before a passage."""

    query: str = ""
    passage: str = ""


_BGE_EN = "Represent this sentence for searching relevant passages: "
_BGE_ZH = "为这个句子生成表示以用于检索相关文章："
_QWEN = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
# First match wins. Matched against the lower-case last part of the name.
_FAMILIES: tuple[tuple[str, Prefixes], ...] = (
    (r"(^|[-_])e5-.*instruct", Prefixes(query="Instruct: Retrieve passages that answer the question\nQuery: ")),
    (r"(^|[-_])e5([-_]|$)", Prefixes("query: ", "passage: ")),
    (r"bge-m3", Prefixes()),
    (r"bge-.*-zh", Prefixes(query=_BGE_ZH)),
    (r"bge-", Prefixes(query=_BGE_EN)),
    (r"nomic-embed", Prefixes("search_query: ", "search_document: ")),
    (r"mxbai-embed", Prefixes(query=_BGE_EN)),
    (r"qwen3-embedding", Prefixes(query=_QWEN)),
    (r"embedding-?gemma", Prefixes("task: search result | query: ", "title: none | text: ")),
)


def family_prefixes(name: str) -> Prefixes:
    """The prefixes of the family a model name (or folder name) belongs to; none for MiniLM, mpnet and the unknown."""
    last = name.rstrip("/").rpartition("/")[2].lower()
    for pattern, prefixes in _FAMILIES:
        if re.search(pattern, last):
            return prefixes
    return Prefixes()


def plain_text(text: str, max_chars: int) -> str:
    """A text that any tokenizer takes: cut, and without lone surrogates (half an emoji), which must not sink a batch."""
    return text[:max_chars].encode("utf-8", "replace").decode("utf-8")


def passage_text(passage: Passage) -> str:
    """What of a passage is encoded: title, then text."""
    return f"{passage.title}\n{passage.text}" if passage.title else passage.text


def same_encoder(one: npt.ArrayLike, other: npt.ArrayLike) -> bool:
    """Whether two probes come from the same encoder."""
    a, b = np.asarray(one, np.float32), np.asarray(other, np.float32)
    return a.shape == b.shape and float(a @ b) >= MIN_PROBE_COSINE


class TextEncoder(ABC):
    """An encoder that is ready. Its methods block, and may be called from several threads."""

    name: str
    """By which an index opens it again, from whatever folder it is asked: a folder, a hub name, an address."""
    dim: int
    prefixes: Prefixes
    probe: Vectors
    """The vector of `PROBE_TEXT` as a passage: what an index records to know its encoder again."""
    num_calls: int = 1
    """How many calls gain from running at the same time."""
    batches_per_block: int = 8
    """A build writes and counts so many batches as a whole: the most that a kill can cost."""

    @abstractmethod
    def encode_queries(self, queries: Sequence[str]) -> Vectors:
        """One unit vector a query. A text that has none gets zeros."""

    @abstractmethod
    def encode_passages(self, texts: Sequence[str]) -> Vectors:
        """The same for passages (see `passage_text`)."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What an index records beside the probe: `name`, `dim`, where texts are cut, `query_prefix`, `passage_prefix`."""

    def encode_blocks(self, blocks: Iterable[tuple[int, Sequence[str]]]) -> Iterator[tuple[int, Vectors]]:
        """The vectors of many blocks of passages, each with its number, in whatever order they are ready."""
        for number, texts in blocks:
            yield number, self.encode_passages(texts)


@dataclass(frozen=True, slots=True)
class KnownEncoder:
    """What `owner`, an index, recorded of the encoder that made its vectors."""

    owner: str
    name: str
    dim: int
    prefixes: Prefixes
    probe: Vectors

    def check(self, name: str, prefixes: Prefixes, probe: Vectors) -> None:
        """Refuse another encoder."""
        what = f"{self.owner} was built with the encoder '{self.name}' ({self.dim} dimensions)"
        if len(probe) != self.dim:
            raise IndexDamagedError(
                f"{what}, and '{name}' has {len(probe)}. Use '{self.name}', or build an index with yours"
            )
        if prefixes != self.prefixes:
            raise IndexDamagedError(f"{what} and {self.prefixes}, and the one given has {prefixes}")
        if not same_encoder(self.probe, probe):
            raise IndexDamagedError(
                f"{what}, and '{name}' gives other vectors for the same text: other weights or another pooling. "
                f"Use '{self.name}', or build an index with yours"
            )

"""Which pages of a corpus are kept back for evaluation, so that no question made for training is about them.

A page is kept back by the hash of its name; a work by that of its maker's name, because a question about the one leads to
the other. The rule needs no list: whoever has the corpus has the same pages, and a corpus that grows keeps its pages apart.
Training leaves them out (`coldstart/making.py` passes them on and refuses a question that has one all the same); the sets in
`evaluation.py` are made of them alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from parallelsearch.answers import normalise
from parallelsearch.coldstart.english.from_pages.works import Work, read_works
from parallelsearch.coldstart.english.questions import base_title
from parallelsearch.retrieval.base import Passage

SHARE = 0.25
"""Of all pages so many are kept back."""


def is_kept_back(title: str) -> bool:
    """By the name alone: "Anbar" and "Anbar (town)" go together."""
    digest = hashlib.sha256(f"kept back/{normalise(base_title(title))}".encode()).digest()
    return int.from_bytes(digest[:4]) < SHARE * 2**32


def kept_back(passages: Iterable[Passage], works: Iterable[Work] | None = None) -> frozenset[str]:
    """The titles that are kept back. `works` are all works of the corpus, if they are read already."""
    kept = list(passages)
    makers = {work.title: work.maker.name for work in (read_works(kept) if works is None else works)}
    titles = {passage.title for passage in kept}
    return frozenset(title for title in titles if is_kept_back(makers.get(title, title)))

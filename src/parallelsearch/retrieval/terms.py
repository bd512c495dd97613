"""Text to terms, the same for passages and queries.

Terms are folded words: no case, no accents, single letters and digits kept, so that "Town 7" and "Pele" are found; stemmed
if there is a stemmer. Stop words are terms too, and left out of a query only when other terms remain.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Callable
from typing import Any

from parallelsearch.errors import IndexDamagedError, UsageError, nearest
from parallelsearch.retrieval.corpus import CJK

MAX_QUERY_CHARS, MAX_QUERY_TERMS = 65_536, 1_024
"""What is read of one query: the first so many characters, and of those the first so many terms."""
STOP_WORDS = {
    "a", "an", "and", "are", "as", "at", "be", "been", "but", "by", "can", "did", "do", "does", "for", "from", "had",
    "has", "have", "how", "i", "if", "in", "into", "is", "it", "its", "no", "not", "of", "on", "or", "s", "such", "t",
    "that", "the", "their", "then", "there", "these", "they", "this", "to", "was", "were", "what", "when", "where",
    "which", "who", "whom", "whose", "why", "will", "with", "would",
}  # fmt: skip
"""English words that say little alone. Left out of English queries, never of the index."""
_NO_DECOMPOSITION = str.maketrans({"ø": "o", "đ": "d", "ł": "l", "æ": "ae", "œ": "oe", "ð": "d", "þ": "th", "ı": "i"})
_ACCENTS = re.compile("[\u0300-\u036f]")  # of Latin, Greek and Cyrillic; the vowel signs of other scripts are letters
_VARIANTS = str.maketrans({"’": "'", "ʼ": "'", "‘": "'", "_": " "})
_ASCII_WORD = re.compile(r"(?!(?<=')s\b)[a-z0-9]+")  # the s of a possessive is not a word


def _marks() -> str:
    """Combining marks, as the inside of a character class: they belong to words, and `\\w` leaves them out."""
    codes = [code for code in range(0x0370, 0x3000) if unicodedata.category(chr(code)) in ("Mn", "Mc")]
    return "".join(chr(code) for code in codes)


_WORD = re.compile(rf"(?!(?<=')s\b)[\w{_marks()}]+")
_CJK = re.compile(f"([{CJK}])")


def fold(text: str) -> str:
    """Without case, accents and typographic variants; the same for text and query."""
    text = text.casefold()
    if text.isascii():
        return text
    text = _ACCENTS.sub("", unicodedata.normalize("NFKD", text.translate(_VARIANTS))).casefold()
    return unicodedata.normalize("NFC", text.translate(_NO_DECOMPOSITION))


def spaced(text: str) -> str:
    """With spaces around each character of a script without spaces: it is a word."""
    return text if text.isascii() else _CJK.sub(r" \1 ", text)


def split_words(text: str) -> list[str]:
    """The folded words of a text."""
    text = fold(text)
    return _ASCII_WORD.findall(text) if text.isascii() else _WORD.findall(spaced(text))


class Analyzer:
    """Text -> terms. Its settings are in the manifest, so that a query is cut as the corpus was."""

    def __init__(self, stemmer: str | None = "english") -> None:
        self.stemmer = stemmer
        self._stem: Callable[[str], str] = str
        if stemmer is not None:
            import Stemmer

            known = list(Stemmer.algorithms())
            if stemmer not in known:
                hint = nearest(stemmer, known)
                raise UsageError(f"there is no stemmer '{stemmer}'.{hint} Known: {', '.join(known)}")
            self._stem = Stemmer.Stemmer(stemmer).stemWord
        self._stop_words = STOP_WORDS if stemmer in (None, "english", "porter") else set()
        self._lock = threading.Lock()  # a stemmer may be used by one thread at a time

    @property
    def settings(self) -> dict[str, Any]:
        return {"words": "folded-1", "stemmer": self.stemmer}

    @classmethod
    def of(cls, settings: Any) -> Analyzer:
        if not isinstance(settings, dict) or settings.get("words") != "folded-1" or "stemmer" not in settings:
            raise IndexDamagedError(f"the index was built with other rules for words ({settings!r}). Build it again")
        return cls(settings["stemmer"])

    def term(self, word: str) -> str:
        with self._lock:
            return self._stem(word)

    def query_terms(self, query: str) -> list[str]:
        words = split_words(query[:MAX_QUERY_CHARS])
        words = [word for word in words if word not in self._stop_words] or words
        return [self.term(word) for word in words[:MAX_QUERY_TERMS]]

"""Answers are compared here and nowhere else: normalise, exact match, F1, substring match.

The normaliser is the field's usual one (lower case, ASCII punctuation deleted, articles dropped, white space folded)
after a Unicode step: compatibility forms, typographic quotes and dashes become their plain counterparts. On ASCII text
both steps together equal the usual one; `unicode=False` leaves the Unicode step out.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterable

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_DELETE = str.maketrans("", "", string.punctuation)
_PLAIN = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032\u02bc\u0060\u00b4", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb", '"'),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"),
        "\u2026": "...",
        "\u00ad": None,
        "\u200b": None,
        "\ufeff": None,
    }
)


def normalise(text: str, unicode: bool = True) -> str:
    """The form in which two answers are compared."""
    if unicode and not text.isascii():
        text = unicodedata.normalize("NFKC", text.translate(_PLAIN)).translate(_PLAIN)
    text = text.lower().translate(_DELETE)
    return " ".join(_ARTICLES.sub(" ", text).split())


def exact_match(answer: str | None, golden_answers: Iterable[str], unicode: bool = True) -> bool:
    """The normalised answer equals one of the golden ones. No answer, or one that normalises to nothing, is wrong
    unless a golden answer normalises to nothing too."""
    if answer is None:
        return False
    found = normalise(answer, unicode)
    return any(found == normalise(golden, unicode) for golden in golden_answers)


def f1(answer: str | None, golden_answers: Iterable[str]) -> float:
    """Best token overlap with a golden answer. Yes, no and noanswer count only when equal, as is usual."""
    if answer is None:
        return 0.0
    return max((_f1(normalise(answer), normalise(golden)) for golden in golden_answers), default=0.0)


def _f1(found: str, golden: str) -> float:
    fixed = ("yes", "no", "noanswer")
    if found == golden:
        return 1.0
    if found in fixed or golden in fixed:
        return 0.0
    found_tokens, golden_tokens = found.split(), golden.split()
    num_same = sum((Counter(found_tokens) & Counter(golden_tokens)).values())
    if num_same == 0:
        return 0.0
    return 2 * num_same / (len(found_tokens) + len(golden_tokens))


def substring_match(answer: str | None, golden_answers: Iterable[str]) -> bool:
    """A golden answer occurs in the answer, on word boundaries, both normalised."""
    if answer is None:
        return False
    found = f" {normalise(answer)} "
    return any(bool(golden) and f" {golden} " in found for golden in map(normalise, golden_answers))

"""What a coin flip scores: know it before praising an exact match.

A question that opens with a verb is answered yes or no. One that offers named alternatives ("..., A or B?") is answered
with one of them. Everything else has a chance of nothing. The guesser reads the question only; the golden answers decide
what its guess is worth.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from parallelsearch.answers import normalise

_VERBS = frozenset(
    [
        "is",
        "are",
        "was",
        "were",
        "do",
        "does",
        "did",
        "has",
        "have",
        "had",
        "can",
        "could",
        "will",
        "would",
        "should",
        "may",
        "might",
        "am",
        "isn't",
        "aren't",
    ]
)
_QUESTION_WORDS = re.compile(r"\b(who|whom|whose|which|what|when|where|why|how)\b", re.IGNORECASE)
_NAME = r"(?:[\"'“‘(]?[A-Z0-9À-ÖØ-ÞĀ-Ž][^\s,;?]*)"
_SMALL = r"(?:of|the|and|in|on|de|la|le|von|van|der|du|for|to|a|an|at|with|from|is|vs\.?|&|y|et|no\.?)"
_OFFER = re.compile(r"[,:]\s+(?=(?:the\s+)?[\"'“‘(]?[A-Z0-9À-ÖØ-ÞĀ-Ž])")
_VERB_INSIDE = re.compile(r"\b(is|are|was|were|do|does|did|has|have|can|could|would|will)\b", re.IGNORECASE)
_COMPARES = re.compile(
    r"\b(first|earlier|later|older|younger|more|most|longer|larger|bigger|higher|closer|farther|further|fewer|less)\b"
)
_SPAN = re.compile(rf"{_NAME}(?:,?\s+(?:{_SMALL}\s+)*{_NAME})*")


def candidates(question: str) -> list[str]:
    """What a guesser would choose from; empty if the question offers nothing."""
    text = " ".join(question.split()).rstrip("?. ")
    first = text.partition(" ")[0].lower().strip("\"'“")
    named = _named(text)
    if first in _VERBS:  # "Was A or B born first?" offers two names, "Are A and B both cities?" a yes and a no
        return named if named and " or " in text else ["yes", "no"]
    if named or _QUESTION_WORDS.search(text):
        return named
    return ["yes", "no"] if _VERB_INSIDE.search(text) else []


def _named(text: str) -> list[str]:
    """The alternatives around the last "or", or around the "and" of a comparison: named spans on both sides."""
    for word in (" or ", " and "):
        head, found, tail = text.rpartition(word)
        if not found or (word == " and " and not _COMPARES.search(text)):
            continue
        comma = _OFFER.search(head)
        if comma is not None:  # "Which came first, A or B": all that follows the comma is offered
            before, right = [part for part in head[comma.end() :].split(", ") if part], _clean(tail)
            if head.endswith(",") or re.search(r"\b(among|amongst|of these)\b", head):
                left = [_clean(part) for part in before]
            else:
                left = [_clean(", ".join(before))]
        else:
            left, right = [_last_name(head)], _first_name(tail)
        if all(left) and left and right:
            return [*left, right]
    return []


def _last_name(text: str) -> str:
    """The named span a clause ends in: "which is older Foo Bar" -> "Foo Bar"."""
    spans = list(_SPAN.finditer(text))
    if not spans or spans[-1].end() < len(text.rstrip()) - 1:
        return ""
    name = spans[-1].group()
    first, _, rest = name.partition(" ")
    opens = spans[-1].start() == 0 and (first.lower() in _VERBS or _QUESTION_WORDS.fullmatch(first))
    return _clean(rest if opens else name)


def _first_name(text: str) -> str:
    span = _SPAN.match(re.sub(r"^(?:the|a|an)\s+", "", text))
    return _clean(span.group()) if span else ""


def _clean(text: str) -> str:
    return text.strip(" \"'“”‘’")


def chance_em(question: str, golden_answers: Sequence[str]) -> float:
    """The exact match a blind guess expects."""
    options = {normalise(option) for option in candidates(question)}
    golden = {normalise(answer) for answer in golden_answers}
    return len(options & golden) / len(options) if options else 0.0

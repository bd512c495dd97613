"""Answers are compared here and nowhere else: normalise, exact match, F1, substring match, string accuracy.

The normaliser is the field's usual one (lower case, ASCII punctuation deleted, articles dropped, white space folded)
after a Unicode step: compatibility forms, typographic quotes and dashes become their plain counterparts. On ASCII text
both steps together equal the usual one; `unicode=False` leaves the Unicode step out.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

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


def each(golden_answers: str | Iterable[str]) -> Iterable[str]:
    """The golden answers one by one: a string is one of them, not its letters, and an empty one is none."""
    return filter(None, (golden_answers,)) if isinstance(golden_answers, str) else golden_answers


def exact_match(answer: str | None, golden_answers: str | Iterable[str], unicode: bool = True) -> bool:
    """The normalised answer equals one of the golden ones. No answer, or one that normalises to nothing, is wrong
    unless a golden answer normalises to nothing too."""
    if answer is None:
        return False
    found = normalise(answer, unicode)
    return any(found == normalise(golden, unicode) for golden in each(golden_answers))


def f1(answer: str | None, golden_answers: str | Iterable[str]) -> float:
    """Best token overlap with a golden answer. Yes, no and noanswer count only when equal, as is usual."""
    if answer is None:
        return 0.0
    return max((_f1(normalise(answer), normalise(golden)) for golden in each(golden_answers)), default=0.0)


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


NOT_FOUND = "not found"
"""What a policy answers that abstains: the form that the cold start teaches."""
_NOT_FOUND = re.compile(
    r"(?:sorry )?i (?:do not|dont) know|(?:sorry )?i (?:could not|couldnt|cannot|cant|did not|didnt) (?:find|answer|tell)\b.*"
    r"|(?:it |answer )?(?:is |was )?not (?:found|known|stated|specified|given|mentioned|available|answerable)(?: in\b.*)?"
    r"|(?:it |answer )?(?:is |was )?(?:unknown|unclear|unanswerable|undetermined)|no ?answer(?: found)?|none found"
    r"|(?:not enough|insufficient) (?:information|evidence)\b.*|no (?:information|evidence|passage)\b.*"
    r"|(?:answer |it )?(?:cannot|can not|cant|could not) be (?:determined|found|answered)\b.*"
    r"|(?:passages?|results?|sources?|context) (?:do|does|did) not\b.*"
)


def says_not_found(answer: str) -> bool:
    """The answer says that there is none: `not found`, `unknown`, `I don't know` and the like."""
    return _NOT_FOUND.fullmatch(normalise(answer)) is not None


def substring_match(answer: str | None, golden_answers: str | Iterable[str]) -> bool:
    """A golden answer occurs in the answer, on word boundaries, both normalised."""
    if answer is None:
        return False
    found = f" {normalise(answer)} "
    return any(bool(golden) and f" {golden} " in found for golden in map(normalise, each(golden_answers)))


def list_forms(items: Sequence[str]) -> list[str]:
    """The ways to write a list as one answer, in its order: "A, B and C" first, then the other ways to join them. They are
    golden answers, so that exact match stays what it is everywhere; who wants any order takes `string_accuracy`."""
    if len(items) < 2:
        return list(items)
    plain = f"{', '.join(items[:-1])} and {items[-1]}"
    return list(dict.fromkeys((plain, ", ".join(items), " and ".join(items))))


Reference = str | int | float | bool | Sequence["Reference"] | Mapping[str, "Reference"]
"""An answer in parts: a string or number, a list of answers, or answers by name."""


def string_accuracy(answer: str | None, reference: Reference) -> float:
    """The share of the reference's strings that occur in the answer, on word boundaries, all normalised. For a list these are
    its items, for a dictionary its keys and its values; of several levels each counts by its own items.

    FanOutQA's authors score so: the mean over questions is their loose accuracy, the share of questions with 1.0 their strict
    one. They also reduce words to lemmas with a language model of spaCy, which is left out here, so that "five cities" does
    not match "city". True and false are yes and no.
    """
    strings = _strings(reference)
    if answer is None or not strings:
        return 0.0
    found = f" {normalise(answer)} "
    return sum(f" {text} " in found for text in strings) / len(strings)


def _strings(reference: Reference) -> list[str]:
    if isinstance(reference, Mapping):
        return [text for name, value in reference.items() for text in (*_strings(name), *_strings(value))]
    if isinstance(reference, Sequence) and not isinstance(reference, str):
        return [text for item in reference for text in _strings(item)]
    if isinstance(reference, bool):
        return ["yes" if reference else "no"]
    return [text] if (text := normalise(str(reference))) else []

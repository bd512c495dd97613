"""What a coin flip scores: know it before praising an exact match.

A question that opens with a verb is answered yes or no. One that offers alternatives ("..., A or B?", "which of A, B and C
...", "between A and B, who ...") is answered with one of them: names, or, where the wording leaves no doubt, words in lower
case ("..., iron or copper?"). Everything else has a chance of nothing. The guesser reads the question only; the golden
answers decide what its guess is worth.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from parallelsearch.answers import normalise

_OPENING_VERB = re.compile(
    r"[\"'“]?(?:is|are|was|were|do|does|did|has|have|had|can|could|will|would|should|may|might|am|isn't|aren't)\b",
    re.IGNORECASE,
)
_VERB = re.compile(r"\b(is|are|was|were|do|does|did|has|have|had|can|could|would|will)\b")
_QUESTION_WORD = re.compile(r"\b(who|whom|whose|which|what|when|where|why|how)\b", re.IGNORECASE)
_COMPARES_TWO = r"earlier|later|older|younger|more|longer|larger|bigger|higher|closer|farther|further|fewer|less"
_COMPARES = re.compile(rf"\b(first|most|{_COMPARES_TWO})\b")
_IS_LIST = re.compile(r"\bof these\b|\bthe \w+est\b")

_CAPITAL = r"[\"'“‘(]?[A-Z0-9À-ÖØ-ÞĀ-Ž]"
_NAME = rf"(?:{_CAPITAL}[^\s,;?]*)"
_SMALL = r"(?:of|the|and|in|on|de|la|le|von|van|der|du|for|to|a|an|at|with|from|is|vs?\.?|&|y|et|no\.?)"
_SPAN = re.compile(rf"{_NAME}(?:,?\s+(?:{_SMALL}\s+)*{_NAME})*")
_MARK = re.compile(r"[,:]\s+")
_NAMED_MARK = re.compile(rf"[,:]\s+(?=(?:the\s+)?{_CAPITAL})")
_LEAD = re.compile(
    r"(?P<of>\b(?:which|who) of|\bthe (?-i:[a-z]+est of)|^Of)\s+|\b(?:in between|between|among(?:st)?)\s+",
    re.IGNORECASE,
)
_ARTICLE = re.compile(r"^(?:the|a|an)\s+")
_NEXT = r"(?:who|whom|whose|which|what|is|are|was|were|do|does|did|has|have|had|can)\s"
_ENDS_LIST = re.compile(rf",?\s+(?={_NEXT})")
_ENDS_NAME = re.compile(rf",\s+(?=[a-z])|\s+(?={_NEXT})")
_MAX_WORDS = 4
"""An alternative in lower case has no more words than this: what is longer is a clause."""


def candidates(question: str) -> list[str]:
    """What a guesser would choose from; empty if the question offers nothing."""
    text = " ".join(question.split()).rstrip("?. ")
    verb = _OPENING_VERB.match(text)
    if verb is not None:  # "Was A or B born first?" offers two names, "Are A and B both cities?" a yes and a no
        asks_for_both = text[verb.end() :].startswith((" either ", " both ", " neither "))
        return ([] if asks_for_both or " or " not in text else _around(text, " or ")) or ["yes", "no"]
    has_question_word = _QUESTION_WORD.search(text)
    offered = _offered(text) if has_question_word or " or " in text else []
    return offered or (["yes", "no"] if not has_question_word and _VERB.search(text) else [])


def _offered(text: str) -> list[str]:
    """The alternatives of a question that wants one of them."""
    found = _after_lead(text)
    for word in (" or ", " and "):
        if not found and word in text and (word == " or " or _COMPARES.search(text) or _IS_LIST.search(text)):
            found = _after_mark(text, word) or _around(text, word)
    return found or _after_mark_in_lower_case(text)


def _after_lead(text: str) -> list[str]:
    """ "Which of A, B and C ...", "Between A and B, who ...", "Which is the largest among A, B and C"."""
    for lead in _LEAD.finditer(text):
        listed = text[lead.end() :]
        end = _ENDS_LIST.search(listed)
        listed = listed[: end.start()] if end is not None else listed
        head, found, tail = max(listed.rpartition(" and "), listed.rpartition(" or "), key=lambda cut: len(cut[0]))
        parts = [part for part in head.removesuffix(",").split(", ") if part]
        named = _SPAN.search(parts[0]) if parts else None
        if not found or not parts or ":" in listed:
            continue
        if named is not None:  # "the poets Lord Byron" -> "Lord Byron"
            parts = [parts[0][named.start() :], *parts[1:], tail if end is not None else _first_name(tail)]
        elif all(map(_is_short, [*parts, tail])):
            parts = [*parts, tail]
        else:
            continue
        # "The border between A and B" offers nothing: unless it opens the question, the list must close it.
        closes = text.startswith(("Which", "Who")) and text.endswith(parts[-1])
        if lead["of"] or lead.start() == 0 or closes:
            return _all(parts)
    return []


def _after_mark(text: str, word: str) -> list[str]:
    """ "Which came first, A or B", "Which canal, A or B, carries ...": what follows the first comma or colon is offered."""
    head, _, tail = text.rpartition(word)
    mark = _NAMED_MARK.search(head)
    if mark is None:
        return []
    before, listed = head[: mark.start()], head[mark.end() :]
    # A comma may stand inside a name. It parts several alternatives after a colon, before the last word, for "the oldest".
    is_list = text[mark.start()] == ":" and not re.search(rf"\b(?:{_COMPARES_TWO})\b", before)
    is_list = is_list or head.endswith(",") or _IS_LIST.search(text) is not None
    left = listed.removesuffix(",").split(", ") if is_list else [listed]
    end = _ENDS_NAME.search(tail)
    if end is not None and not (_VERB.search(before) or _COMPARES.search(before)):  # the verb comes after the names
        tail = tail[: end.start()]
    return _all([*left, tail])


def _after_mark_in_lower_case(text: str) -> list[str]:
    """ "Which metal is denser, iron or copper": short words alone between a comma or colon and the end."""
    head, found, tail = text.rpartition(" or ")
    mark = _MARK.search(head)
    if not found or mark is None:
        return []
    parts = [*head[mark.end() :].removesuffix(",").split(", "), tail]
    return _all(parts) if all(map(_is_short, parts)) else []


def _around(text: str, word: str) -> list[str]:
    """ "Was A or B born first", "who is older A or B": the names on both sides of the word."""
    head, _, tail = text.rpartition(word)
    return _all([_last_name(head), _first_name(tail)])


def _all(parts: Sequence[str]) -> list[str]:
    """The alternatives without quotes around them; none if one of them is nothing."""
    clean = [part.strip(" ,\"'“”‘’") for part in parts]
    return clean if all(clean) else []


def _is_short(text: str) -> bool:
    is_clause = _VERB.search(text) or _QUESTION_WORD.search(text)
    return not is_clause and 1 <= len(_ARTICLE.sub("", text).split()) <= _MAX_WORDS


def _last_name(text: str) -> str:
    """The named span a clause ends in: "which is older Foo Bar" -> "Foo Bar"."""
    spans = list(_SPAN.finditer(text))
    if not spans or spans[-1].end() < len(text.rstrip()) - 1:
        return ""
    name = spans[-1].group()
    first, _, rest = name.partition(" ")
    opens = spans[-1].start() == 0 and (_OPENING_VERB.fullmatch(first) or _QUESTION_WORD.fullmatch(first))
    return rest if opens else name


def _first_name(text: str) -> str:
    span = _SPAN.match(_ARTICLE.sub("", text))
    return span.group() if span else ""


def chance_em(question: str, golden_answers: Sequence[str]) -> float:
    """The exact match a blind guess expects."""
    options = {normalise(option) for option in candidates(question)}
    golden = {normalise(answer) for answer in golden_answers}
    return len(options & golden) / len(options) if options else 0.0

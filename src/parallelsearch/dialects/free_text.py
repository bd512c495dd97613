"""Reading answers out of free text, and writing what was read as a turn of the package's grammar."""

from __future__ import annotations

import re
from collections.abc import Sequence

from parallelsearch import grammar
from parallelsearch.grammar import ANSWER, SEPARATOR

# An answer ends at a full stop after a word in lower case: "St. Petersburg" and "J. S. Bach" go on.
_SAYS = re.compile(
    r"\banswer\s*(?:is|:|=)+\s*[:=]?\s*(?P<said>[^\n]+?)(?=(?<=(?-i:[a-z0-9)]{2}))\.\s|\.?\s*$|\.?\n)", re.IGNORECASE
)
_BOXED = re.compile(r"\\boxed\{(?P<said>[^{}]*)\}")


def read_answer(text: str, may_be_bare: bool = False) -> str | None:
    """The answer a free text gives: its last answer block (closed or not), a boxed one, "the answer is ..."; and, where
    `may_be_bare`, its last line that is not empty."""
    block = text.rfind(grammar.opening(ANSWER))
    if block >= 0:
        content = text[block + len(grammar.opening(ANSWER)) :].partition(grammar.closing(ANSWER))[0]
        return _tidy(content)
    for pattern in (_BOXED, _SAYS):
        found = list(pattern.finditer(text))
        if found:
            return _tidy(found[-1]["said"])
    lines = [line for line in text.splitlines() if line.strip()]
    return _tidy(lines[-1]) if may_be_bare and lines else None


def _tidy(text: str) -> str | None:
    return grammar.defuse(" ".join(text.split())).strip(" *\"'`").removesuffix(".").strip() or None


def write_turn(thought: str, queries: Sequence[str] = (), answer: str | None = None) -> str:
    """The turn in the package's grammar. With neither a query nor an answer it is text that holds no action."""
    thought = grammar.defuse(" ".join(thought.split()))
    clean: dict[str, str] = {}
    for query in queries:
        text = " ".join(grammar.defuse(query).replace(SEPARATOR, " ").split())
        if text:
            clean.setdefault(grammar.query_key(text), text)
    if clean:
        return grammar.render_turn(thought, list(clean.values()))
    if answer:
        return grammar.render_turn(thought, answer=grammar.defuse(answer))
    return thought


def inside(observation: str) -> str:
    """The results without the tags around them."""
    return (
        observation.replace(grammar.opening(grammar.INFORMATION), "")
        .replace(grammar.closing(grammar.INFORMATION), "")
        .strip()
    )

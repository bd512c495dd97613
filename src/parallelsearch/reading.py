"""Another model reads what was found and answers: the prompt it gets, and what its text says.

A small policy that splits and searches well may read badly. With `answer_with` the rollout makes one more call, to another
policy, with the question and the numbered passages that were shown; its answer takes the policy's place. It is asked in
plain words, in a conversation of its own, so any model can be the reader. When to call and what is recorded is the
rollout's business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from parallelsearch import grammar
from parallelsearch.answers import NOT_FOUND
from parallelsearch.observation import fair_shares, one_line
from parallelsearch.retrieval.base import Hit

STOP = (grammar.closing(grammar.ANSWER),)
_MAX_UNTAGGED_WORDS = 60
"""A text without tags is taken as the answer if it is no longer; else its last line is."""


def reading_prompt(
    question: str,
    hits: Sequence[Hit],
    context: str,
    max_tokens: int,
    count_tokens: Callable[[str], int],
    special_tokens: frozenset[str] = frozenset(),
    is_written: bool = False,
) -> str:
    """What the reader is asked: the passages under the numbers they were shown under, cut fairly so that all of it has about
    `max_tokens` tokens. `is_written`: for a text with its sources, in place of a short answer."""
    lines = [
        f"[{number}] {one_line(hit.title, special_tokens)}: {one_line(hit.text, special_tokens)}"
        for number, hit in enumerate(hits, start=1)
    ]
    harmless = grammar.tidy_question(grammar.defuse(question, special_tokens), may_be_order=True)
    asked = f"{grammar.defuse(context, special_tokens)}Question: {harmless}\n"
    how = (
        f"Write the answer, {grammar.HOW_TO_WRITE}"
        if is_written
        else "Give the answer, short and without explanation, between "
        f"{grammar.opening(grammar.ANSWER)} and {grammar.closing(grammar.ANSWER)}"
    )
    told = (
        f"Answer the question from the passages alone. Compare or count where that is asked. {how}. If the passages do not "
        f"hold it, the answer is: {NOT_FOUND}.\n\nPassages:\n"
    )
    needs = [count_tokens(line) + 1 for line in lines]
    shares = fair_shares(needs, max(0, max_tokens - count_tokens(told + asked) - 2))
    fitted = [_cut(line, share, need) for line, share, need in zip(lines, shares, needs, strict=True)]
    return told + "\n".join(fitted) + f"\n\n{asked}"


def _cut(line: str, share: int, need: int) -> str:
    return line if need <= share else line[: len(line) * max(0, share - 2) // need].rstrip() + " ..."


def _said(text: str) -> str:
    """What stands behind the thought: nothing, where that was cut off."""
    plain = text.rpartition(grammar.closing(grammar.THINK))[2]
    return "" if plain.lstrip().startswith(grammar.opening(grammar.THINK)) else plain


def written_in(text: str) -> str | None:
    """The text that a reader wrote, behind its thought."""
    plain = _said(text)
    return None if grammar.opening(grammar.SEARCH) in plain else grammar.written_answer(plain) or None


def answer_in(text: str) -> str | None:
    """The answer a reader gave: what stands in the tags, or else what it wrote after its thought, if that is short, or the
    last line of it."""
    tagged = grammar.partial_answer(text)
    if tagged:
        return tagged
    plain = _said(text).strip()
    if grammar.opening(grammar.SEARCH) in plain:
        return None  # it wants to search, and a reader cannot
    for tag in (grammar.opening(grammar.ANSWER), grammar.closing(grammar.ANSWER)):
        plain = plain.replace(tag, "").strip()
    if len(plain.split()) <= _MAX_UNTAGGED_WORDS:
        return plain or None
    return plain.splitlines()[-1].strip() or None

"""A question with what stands before it: the lines of a system message, and earlier questions where it leans on them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from parallelsearch import grammar
from parallelsearch.conversing.follow_ups import Pair, leans, standalone
from parallelsearch.grammar import NUMBERS

_MARKS = re.compile(r"^[ \t]*+(?:#{1,6}[ \t].*|[|: \t]*+-[|:\- \t]*+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ContextLimits:
    """How much of what was said before the model sees."""

    max_context_pairs: int = 4
    max_context_chars: int = 300
    """Of each earlier question and of each earlier answer."""
    max_system_chars: int = 2_000


def framed(
    question: str, earlier: Sequence[Pair], system: str, limits: ContextLimits, reads_conversations: bool
) -> tuple[str, str]:
    """The question as the policy gets it, and the lines before it. A policy that reads conversations is shown the latest
    pairs; any other gets the question rewritten so that it stands alone, and the pairs only if that was not possible."""
    told = f"Instructions: {_short(system, limits.max_system_chars)}\n" if system.strip() else ""
    alone = question if reads_conversations else standalone(question, earlier)
    needs_pairs = reads_conversations or (alone == question and leans(question))
    return alone, told + (context_text(earlier, limits) if needs_pairs else "")


def context_text(pairs: Sequence[Pair], limits: ContextLimits) -> str:
    """The latest pairs, shortened and harmless, one line each; empty where there are none. Without the numbers of passages:
    the next question has others under them."""
    recent = [pair for pair in pairs if pair[0].strip()][-limits.max_context_pairs :]
    if not recent:
        return ""
    lines = ["Asked and answered before, for context only:"]
    for question, answer in recent:
        most = limits.max_context_chars
        lines.append(f"- {_short(question, most)} -> {_short(_said(answer), most) or 'no answer'}")
    return "\n".join(lines) + "\n"


def _said(answer: str) -> str:
    """What an answer says, on the way to one line: without the numbers of its passages, which now name others, and without
    the headings and rules of a text."""
    return NUMBERS.sub("", _MARKS.sub("", answer))


def _short(text: str, most: int) -> str:
    looked_at = text.lstrip()[: 8 * most]  # cut before it is cleaned, with room for white space
    line = grammar.defuse(" ".join(looked_at.split()))
    is_whole = len(line) <= most and len(text.strip()) <= len(looked_at)
    return line if is_whole else line[:most].rstrip() + " ..."

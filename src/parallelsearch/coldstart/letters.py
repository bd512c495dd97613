"""Letters that do not tell the kinds of questions apart.

A source may write all of its questions in small letters and ask for single facts (NQ), another with capitals and ask for
chains (HotpotQA). A policy taught with both as they are goes by the letters: asked with capitals it takes a single fact for
a chain, asked without them a chain for a single fact. So a share of the small single questions is written as the pages write
the same words ("Who wrote the song the Fighter by Keith Urban?"), and a share of the chains in small letters, as many people
type. The text decides whether and how, not the order.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from parallelsearch.retrieval.base import Passage
from parallelsearch.search import Search
from parallelsearch.trajectory import Question

NUM_PAGES = 5
"""So many of the best pages for a question say how its words are written."""
_BATCH = 500
_WORD = re.compile(r"[^\W\d_]{2,}")
_BEFORE_A_START = re.compile(r"(?:^|[.!?:;\"“”(\n])\W*$")
"""What stands before the first word of a sentence or a quotation, whose capital says nothing."""


def in_small_letters(questions: Sequence[Question], share: float) -> list[Question]:
    """The questions in their order, this share of those that need a second round in small letters."""
    return [
        replace(question, question=question.question.lower())
        if question.kind in ("sequential", "mixed") and _is_chosen(question, share)
        else question
        for question in questions
    ]


async def with_capitals(questions: Sequence[Question], search: Search, share: float) -> list[Question]:
    """The questions in their order, this share of the single ones in small letters as pages write them."""
    places = [
        place
        for place, question in enumerate(questions)
        if question.kind == "single" and question.question == question.question.lower() and _is_chosen(question, share)
    ]
    written = list(questions)
    for start in range(0, len(places), _BATCH):
        batch = places[start : start + _BATCH]
        results = await search.search_many([questions[place].question for place in batch], NUM_PAGES)
        for place, found in zip(batch, results, strict=True):
            question = questions[place]
            written[place] = replace(question, question=as_pages_write(question.question, found.hits))
    return written


def _is_chosen(question: Question, share: float) -> bool:
    return random.Random(f"written/{question.question}").random() < share


def as_pages_write(text: str, pages: Iterable[Passage]) -> str:
    """The question with a capital, a question mark, and its words as these pages mostly write them inside a sentence."""
    wanted = {word.lower() for word in _WORD.findall(text)}
    forms: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for page in pages:
        for match in _WORD.finditer(page.text):
            word = match[0]
            if word.lower() in wanted and not _BEFORE_A_START.search(
                page.text, max(0, match.start() - 3), match.start()
            ):
                forms[word.lower()][word] += 1
    cased = _WORD.sub(lambda match: _form(match[0], forms), text).rstrip(" ?")
    return f"{cased[:1].upper()}{cased[1:]}?"


def _form(word: str, forms: dict[str, Counter[str]]) -> str:
    """The commonest form; of equally common ones the small one. No page has it: as it stands."""
    seen = forms.get(word)
    if not seen:
        return word
    best = max(seen.values())
    return word if seen[word] == best else next(form for form, count in seen.items() if count == best)

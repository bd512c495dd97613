"""Questions from a teacher: which passages go together, what the teacher is asked, and how its reply is read.

A bundle is one passage (a single fact), a few neighbours that can be looked up independently (parallel), or a passage and
the one it names (a chain). The teacher gets a bundle and writes one question with its steps, each with the passage that
answers it; a second request, which does not see the answer, must come to the same. What a reply lacks is the reason it is
dropped for, and reasons are counted. Nothing here trusts a reply: `checking.py` looks it up in the corpus.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from parallelsearch.answers import normalise, substring_match
from parallelsearch.coldstart.lesson import Drop
from parallelsearch.coldstart.written import fill_references, rounds_of
from parallelsearch.errors import UsageError
from parallelsearch.grounding import is_computed
from parallelsearch.retrieval.base import Passage
from parallelsearch.search import Search
from parallelsearch.trajectory import Kind, Question, QuestionPart
from parallelsearch.untrusted import whole

KINDS: tuple[Kind, ...] = ("parallel", "sequential", "single")
"""What a teacher is asked for, in turns."""
MAX_WORDS = 180
"""Of a passage in a prompt."""
_MAX_TITLE_WORDS = 6

_TASKS: dict[str, str] = {
    "single": "Ask for one fact that stands in passage 1. Give one step.",
    "parallel": (
        "Ask something that needs one fact from each passage, such as a comparison or which of them fits. Each fact must be "
        "one that can be looked up without knowing the others. Give one step for each passage, in their order; no step may "
        "refer to another. The question names every thing it is about."
    ),
    "sequential": (
        "Passage 1 names {second}. Ask for a fact from passage 2 without naming {second}: describe it by what passage 1 "
        "says. The first step asks for the name, the second asks for the fact and writes #1 in place of the name."
    ),
}


@dataclass(frozen=True, slots=True)
class Bundle:
    """Passages that one question is to be made from."""

    kind: Kind
    passages: tuple[Passage, ...]
    number: int


# ---- which passages --------------------------------------------------------------------------------------------------


async def bundles(passages: Sequence[Passage], search: Search, count: int, seed: int) -> list[Bundle]:
    """Up to `count` bundles, the kinds in turns. The order follows from the seed, so a larger count begins with the same."""
    rng = random.Random(f"{seed}/bundles")
    order = list(range(len(passages)))
    rng.shuffle(order)
    chains = linked(passages)
    rng.shuffle(chains)
    made: list[Bundle] = []
    used: set[tuple[str, ...]] = set()
    rows = iter(order)
    while len(made) < count:
        kind = KINDS[len(made) % len(KINDS)]
        if kind == "sequential" and not chains:
            kind = "parallel"
        row = next(rows, None)
        if row is None:
            break
        first = passages[row]
        if kind == "sequential":
            one, other = chains.pop()
            chosen: list[Passage] = [passages[one], passages[other]]
        elif kind == "parallel":
            chosen = [first, *await _neighbours(first, search, rng.choice((1, 1, 2, 3)))]
            if len(chosen) < 2:
                continue
        else:
            chosen = [first]
        key = tuple(passage.id for passage in chosen)
        if key not in used:
            used.add(key)
            made.append(Bundle(kind, tuple(chosen), len(made)))
    return made


async def _neighbours(passage: Passage, search: Search, count: int) -> list[Passage]:
    """Passages about other things of the same sort: those that the beginning of this one finds."""
    words = " ".join(passage.text.split()[:12])
    (found,) = await search.search_many([words], k=8)
    others: dict[str, Passage] = {}
    for hit in found.hits:
        if normalise(hit.title) != normalise(passage.title) and hit.title.strip():
            others.setdefault(normalise(hit.title), Passage(hit.id, hit.title, hit.text))
    return list(others.values())[:count]


def linked(passages: Sequence[Passage]) -> list[tuple[int, int]]:
    """Pairs of rows: the first passage's text holds the title of the second, word for word, and is about something else."""
    rows: dict[tuple[str, ...], int] = {}
    for number, passage in enumerate(passages):
        words = tuple(re.findall(r"\w+", passage.title))
        if 1 <= len(words) <= _MAX_TITLE_WORDS and sum(map(len, words)) > 3:
            rows.setdefault(words, number)
    pairs = []
    for number, passage in enumerate(passages):
        words = tuple(re.findall(r"\w+", passage.text))
        found = {
            rows[words[start : start + length]]
            for length in range(1, _MAX_TITLE_WORDS + 1)
            for start in range(len(words) - length + 1)
            if words[start : start + length] in rows
        }
        own = normalise(passage.title)
        pairs += [(number, other) for other in sorted(found) if normalise(passages[other].title) not in ("", own)]
    return pairs


# ---- what is asked, and what comes back ------------------------------------------------------------------------------


def _shown(passages: Sequence[Passage]) -> str:
    return "\n".join(
        f"[{number}] {whole(passage.title)}: {' '.join(whole(passage.text).split()[:MAX_WORDS])}"
        for number, passage in enumerate(passages, start=1)
    )


def question_prompt(bundle: Bundle) -> str:
    """What the teacher gets for a bundle."""
    task = _TASKS[bundle.kind].format(second=bundle.passages[-1].title)
    return (
        "You write questions that test a search system over a collection of texts. People who answer them see the question "
        "only, so it must make sense alone: no 'the passage', no 'according to'.\n\n"
        f"{_shown(bundle.passages)}\n\n"
        f"{task}\n"
        "The answer of every step is copied word for word from its passage. The answer of the question is short: a name, a "
        "date, a number, yes or no.\n"
        "Reply with one JSON object and nothing else:\n"
        '{"question": "...", "answer": "...", "steps": [{"question": "...", "answer": "...", "passage": 1}]}'
    )


def check_prompt(bundle: Bundle, question: str) -> str:
    """The same passages and the question alone: does the answer follow?"""
    return (
        f"{_shown(bundle.passages)}\n\nAnswer from these passages alone, with as few words as possible and without a "
        f"sentence around them. If they do not say, answer: unknown.\nQuestion: {question}\nAnswer:"
    )


def read_reply(reply: str, bundle: Bundle, dataset: str) -> Question:
    """The question in a teacher's reply. Raises `Drop` with what is wrong with it."""
    record = _object_in(reply)
    text, answer, steps = record.get("question"), record.get("answer"), record.get("steps")
    if not isinstance(text, str) or not 3 <= len(text.split()) <= 80:
        raise Drop("no_question")
    if isinstance(answer, int | float) and not isinstance(answer, bool):
        answer = str(answer)
    if not isinstance(answer, str) or not answer.strip() or len(answer.split()) > 20:
        raise Drop("no_short_answer")
    if not isinstance(steps, list) or not steps or not all(isinstance(step, dict) for step in steps):
        raise Drop("no_steps")
    asked = [str(step.get("question") or "").strip() for step in steps]
    answers = [str(step.get("answer") or "").strip() for step in steps]
    if not all(asked) or not all(answers):
        raise Drop("empty_step")
    pages = [_page(step.get("passage"), bundle) for step in steps]
    _check_rounds(asked, bundle)
    for said, page in zip(answers, pages, strict=True):
        if not substring_match(f"{page.title} {page.text}", [said]):
            raise Drop("step_not_in_passage")
    golden = " ".join(answer.split())
    everything = " ".join(f"{page.title} {page.text}" for page in bundle.passages)
    if not is_computed(text, golden) and not substring_match(everything, [golden]):
        raise Drop("answer_not_in_passages")
    if bundle.kind == "sequential" and substring_match(text, [bundle.passages[-1].title]):
        raise Drop("names_the_bridge")
    return Question(
        " ".join(text.split()),
        [golden],
        id=f"{dataset}-{bundle.kind}-{bundle.number}",
        dataset=dataset,
        kind=bundle.kind,
        supporting_titles=list(dict.fromkeys(page.title for page in pages)),
        gold_passage_ids={page.title: [page.id] for page in pages},
        parts=_parts(asked, answers, pages),
        metadata={"decomposition": [{"question": q, "answer": a} for q, a in zip(asked, answers, strict=True)]},
    )


def _object_in(reply: str) -> dict[str, Any]:
    """The JSON object of a reply that may have words or a fence around it."""
    start, end = reply.find("{"), reply.rfind("}")
    try:
        record = json.loads(reply[start : end + 1]) if 0 <= start < end else None
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise Drop("not_json")
    return record


def _page(number: Any, bundle: Bundle) -> Passage:
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= len(bundle.passages):
        raise Drop("no_such_passage")
    return bundle.passages[number - 1]


def _check_rounds(asked: Sequence[str], bundle: Bundle) -> None:
    try:
        rounds = rounds_of(asked)
    except UsageError as error:
        raise Drop("bad_reference") from error
    fits = {
        "single": len(asked) == 1,
        "parallel": len(rounds) == 1 and len(asked) == len(bundle.passages),
        "sequential": len(rounds) == 2 and len(asked) == 2,
    }
    if not fits[bundle.kind]:
        raise Drop("steps_do_not_fit_the_kind")


def _parts(asked: Sequence[str], answers: Sequence[str], pages: Sequence[Passage]) -> list[QuestionPart]:
    """What must be asked for, and when. A part goes by its page's title; where the words of its step do not have it (it is
    described), by the step's words."""
    depth = {number: level for level, numbers in enumerate(rounds_of(asked), start=1) for number in numbers}
    parts = []
    for number, (step, page) in enumerate(zip(asked, pages, strict=True)):
        filled = fill_references(step, answers)
        names = [page.title] if substring_match(filled, [page.title]) else [filled.rstrip("?. ")]
        parts.append(QuestionPart(names, depth[number]))
    return parts

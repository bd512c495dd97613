"""More comparisons from the same questions: the names of one question put into another that asks the same thing.

"Which magazine was started first, A or B?" and "..., C or D?" give "A or D?" as well. Only names whose evidence has already
agreed with a golden answer take part, and only comparisons that a rule decides (dates, nations, traits that both pages name);
the new golden answer is what the rule finds, and yes and no are balanced. Half of the comparisons by date are turned round
("first" becomes "last"), because people ask for the earlier one far more often, and a model that has seen little else answers
with it whatever is asked; choices come with their names exchanged. So the new questions are as sure as the evidence, not as
sure as a person.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from parallelsearch.answers import normalise
from parallelsearch.coldstart.english.lessons.comparison import ComparisonLesson
from parallelsearch.coldstart.english.questions import aspect_of, topic_words
from parallelsearch.coldstart.lesson import ColdStartSettings, Drop
from parallelsearch.coldstart.rules import RECOMBINED
from parallelsearch.coldstart.tutor import plan, teach
from parallelsearch.policy.base import Policy
from parallelsearch.search import Search
from parallelsearch.trajectory import Question

DECIDED: dict[str, int] = {
    "birth": 10,
    "death": 10,
    "age": 10,
    "date": 10,
    "year": 10,
    "nationality": 10,
    "country": 10,
    "trait": 4,
}
"""What a rule decides, and with how many others each question is put together (docs/coldstart.md: how sure the rules are)."""


TURNED_SHARE = 0.6
"""So many of the new questions that ask for the earlier one are turned round."""


async def recombine(
    questions: Sequence[Question],
    search: Search,
    encoder: Policy,
    settings: ColdStartSettings,
    max_new: int,
    forbidden: Iterable[str] = (),
) -> list[Question]:
    """Up to `max_new` new questions from comparisons that could be taught. The order depends on the seed alone.

    `forbidden` are normalised texts that must not come out: names put together anew may well make a question that stands
    in a dev file or in the validation set.
    """
    rng = random.Random(f"recombine/{settings.seed}")
    groups: dict[tuple[str, ...], list[tuple[Question, tuple[str, ...]]]] = defaultdict(list)
    choices: list[tuple[Question, tuple[str, ...]]] = []
    for question in questions:
        try:
            lesson = await plan(question, search, settings)
        except Drop:
            continue
        if not isinstance(lesson, ComparisonLesson) or len(lesson.names) != 2:
            continue
        ask = lesson.ask
        if ask.aspect == "trait" and not ask.is_polar:
            choices.append((question, lesson.names))
        elif ask.aspect in DECIDED:
            words = topic_words(question.question, lesson.names, 1)
            groups[ask.aspect, *(word.lower() for word in words)].append((question, lesson.names))
    drafts = [draft for key, group in groups.items() for draft in _pairs(group, DECIDED[key[0]], rng)]
    drafts = [turned_round(draft, rng) if rng.random() < TURNED_SHARE else draft for draft in drafts]
    drafts += [draft for question, names in choices if (draft := _exchanged(question, names)) is not None]
    rng.shuffle(drafts)
    known = {normalise(question.question) for question in questions} | set(forbidden)
    made: list[Question] = []
    for draft in drafts:
        key = normalise(draft.question)
        if key not in known:
            known.add(key)
            decided = await _decide(draft, search, encoder, settings)
            if decided is not None:
                made.append(decided)
    return _balanced(made)[:max_new]


_OPPOSITES = {
    "first": ("last", "most recently"),
    "earlier": ("later", "more recently"),
    "earliest": ("latest",),
    "older": ("younger",),
    "oldest": ("youngest",),
    "before": ("after",),
}
_TURNING = re.compile(r"\b(" + "|".join(_OPPOSITES) + r")\b", re.IGNORECASE)


def turned_round(question: Question, rng: random.Random) -> Question:
    """A comparison by date that asks for the other end; what has no such word, or several, stays as it is."""
    found = _TURNING.findall(question.question)
    ask = aspect_of(question.question)
    if len(found) != 1 or ask.direction >= 0 or ask.aspect not in ("birth", "death", "date"):
        return question
    words = _OPPOSITES[found[0].lower()]
    for word in rng.sample(words, len(words)):
        text = _TURNING.sub(word, question.question)
        if aspect_of(text) == replace(ask, direction=1):
            return replace(question, question=text, id="-".join([f"{question.id}.turned", *word.split()]))
    return question


def _exchanged(question: Question, names: tuple[str, ...]) -> Question | None:
    """The same choice with its two names in the other order."""
    first, second = names
    text = question.question
    if text.count(first) != 1 or text.count(second) != 1 or first in second or second in first:
        return None
    swapped = text.replace(first, "\0").replace(second, first).replace("\0", second)
    return replace(
        question,
        question=swapped,
        id=f"{question.id}.exchanged",
        golden_answers=[second, first],
        supporting_titles=None,
        metadata={"recombined_from": [question.id]},
    )


def _balanced(questions: Sequence[Question]) -> list[Question]:
    """As many with yes as with no: a surplus would teach the answer, not the evidence."""
    said = [normalise(question.golden_answers[0]) for question in questions]
    room = dict.fromkeys(("yes", "no"), min(said.count("yes"), said.count("no")))
    kept: list[Question] = []
    for question, answer in zip(questions, said, strict=True):
        if answer in room:
            if room[answer] == 0:
                continue
            room[answer] -= 1
        kept.append(question)
    return kept


def _pairs(group: Sequence[tuple[Question, tuple[str, ...]]], num_others: int, rng: random.Random) -> list[Question]:
    """Each question of the group once for every other one in a shuffled ring: its first name stays, the second comes from
    the other."""
    drafts: list[Question] = []
    order = list(group)
    for distance in range(1, min(len(order), num_others + 1)):
        rng.shuffle(order)
        for number, (question, names) in enumerate(order):
            other, others = order[(number + distance) % len(order)]
            new = rng.choice(others)
            if other is question or normalise(new) in (normalise(names[0]), normalise(names[1])):
                continue
            keep = rng.choice((0, 1))
            if question.question.count(names[1 - keep]) != 1:
                continue
            text = question.question.replace(names[1 - keep], new)
            drafts.append(
                replace(
                    question,
                    question=text,
                    id=f"{question.id}.{keep}{RECOMBINED}{other.id}.{others.index(new)}",
                    golden_answers=[names[keep], new],
                    supporting_titles=None,
                    metadata={"recombined_from": [question.id, other.id]},
                )
            )
    return drafts


async def _decide(draft: Question, search: Search, encoder: Policy, settings: ColdStartSettings) -> Question | None:
    """The draft with the one answer that the evidence supports; None if it supports none, or more than one."""
    ask = aspect_of(draft.question)
    candidates = ["yes", "no"] if ask.is_polar else draft.golden_answers
    supported: list[Question] = []
    for answer in candidates:
        question = replace(draft, golden_answers=[answer])
        try:
            await teach(question, search, encoder, settings)
        except Drop:
            continue
        supported.append(question)
    return supported[0] if len(supported) == 1 else None

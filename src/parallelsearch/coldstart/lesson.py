"""What a lesson is: the right turns for one question, whatever its language, given what the searches have shown.

The tutor (`tutor.py`) plays a lesson through the rollout with real searches. A lesson gets the passages that the
model has been shown so far and writes the next turn. When what it needs is not among them, or what they say
contradicts the golden answer, it raises `Drop`: such a trajectory would teach the model to guess. `written.py` has
the lesson of a written decomposition; the rules of a language (`rules.py`) have the others. Nothing here searches.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from parallelsearch import grammar
from parallelsearch.grammar import PromptMode
from parallelsearch.limits import Limits
from parallelsearch.retrieval.changed import Changed
from parallelsearch.search import Search
from parallelsearch.trajectory import Question

CHANGED = "changed"
"""In a question's metadata: texts by the ids of the passages that say something else in its lesson."""


class Drop(Exception):
    """This question cannot be taught from what was found; the message is the reason that is counted."""


@dataclass(frozen=True, slots=True)
class ColdStartSettings:
    """How trajectories are built. The limits must be those of the training that follows."""

    mode: PromptMode = "parallel"
    """The dialect of the same name, and whether a lesson asks at once or one after the other."""
    limits: Limits = field(default_factory=lambda: Limits(max_tokens=2560, timeout_s=None))
    seed: int = 0
    max_quote_words: int = 16
    max_relation_words: int = 2
    """Words of the question that are added to a name in a sub-query (docs/coldstart.md has the recall of 0 to 6)."""
    max_tokens: int = 1600
    """Longer trajectories are dropped."""
    max_concurrent: int = 64
    rules: str = "english"
    """Whose rules plan a question (`rules.py`)."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A passage as the model was shown it: its number, its title and what was left of its text."""

    number: int
    title: str
    text: str


@dataclass(slots=True)
class Lesson(ABC):
    """What the teacher knows about one question."""

    question: Question
    rng: random.Random
    max_quote_words: int

    @abstractmethod
    def turn(self, number: int, shown: Sequence[Seen]) -> str:
        """The model's turn `number` (from 0), given the passages shown before it."""

    @property
    def answer(self) -> str:
        return self.question.golden_answers[0]


def search_of(question: Question, search: Search) -> Search:
    """Where a question's lesson is looked up: the search as it is, or over passages that were changed for it."""
    texts = (question.metadata or {}).get(CHANGED)
    return Search(Changed(search.retriever, texts), k=search.k) if isinstance(texts, dict) and texts else search


def as_query(text: str) -> str:
    """A text as one query: on one line, without the separator, tags or the question mark."""
    plain = grammar.defuse(" ".join(text.replace(grammar.SEPARATOR, " ").split()))
    return plain.rstrip(" ?.!")

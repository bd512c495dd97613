"""What a language must give so that its questions can be taught: `Rules`, and the one place where they are found by name.

A recipe says `rules = "english"`, or `"package.module:name"` for rules of one's own. They are imported when they are
first asked for: no general module of the cold start knows a language, and a language imports what it likes of the
general ones.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Protocol, runtime_checkable

from parallelsearch.coldstart.lesson import ColdStartSettings, Lesson
from parallelsearch.coldstart.written import Wording
from parallelsearch.errors import UsageError
from parallelsearch.named import load_named
from parallelsearch.policy.base import Policy
from parallelsearch.retrieval.base import Passage
from parallelsearch.search import Search
from parallelsearch.trajectory import Kind, Question

RULES = {"english": "parallelsearch.coldstart.english.rules:ENGLISH"}
"""Where the rules that come with the package are."""
RECOMBINED = "~"
"""Stands in the id of a question that was put together from two others, between their ids."""


@runtime_checkable
class Rules(Protocol):
    """How the questions and pages of one language are read, taught and made."""

    @property
    def wording(self) -> Wording:
        """The thoughts of written decompositions."""

    @property
    def undecided(self) -> frozenset[str]:
        """Reasons of a `Drop` that say: the evidence is there, and only no rule could decide it. Such a question is still one
        to learn from by trying."""

    async def plan(self, question: Question, rng: random.Random, search: Search, settings: ColdStartSettings) -> Lesson:
        """The lesson for a question of a known kind. Raises `Drop` if there is none."""

    def guess_kind(self, question: str) -> Kind | None:
        """The kind of a question that comes without one; None where its words leave that open."""

    def make(
        self,
        passages: Sequence[Passage],
        counts: Mapping[Kind, int],
        *,
        seed: int,
        forbidden: Collection[str],
        needed: Collection[str],
        kept_back: Collection[str],
        wide: Mapping[Kind, Mapping[int, int]],
        num_changed: int = 0,
        num_described: Mapping[Kind, int] = MappingProxyType({}),
        typed: Mapping[Kind, int] = MappingProxyType({}),
    ) -> list[Question]:
        """New questions from the passages of a corpus, up to so many of each kind. `forbidden` are normalised texts of
        questions that must not come out, nor what they name; `needed` are the titles that they are answered from; pages
        with a title in `kept_back` are for evaluation and in no question. `wide` are questions of several parts, parallel
        and mixed, so many of each width; `num_changed` are those whose lessons read passages with other values in them
        (`lesson.CHANGED`), and `num_described` those about somebody who is named only there, by kind; `typed` are those in
        forms that people type and question sets lack, so many of each kind. The last three are only passed where they are
        wanted."""

    def kept_back(self, passages: Sequence[Passage]) -> frozenset[str]:
        """The titles of a corpus that evaluation sets are made from."""

    async def recombine(
        self,
        questions: Sequence[Question],
        search: Search,
        encoder: Policy,
        settings: ColdStartSettings,
        max_new: int,
        forbidden: Collection[str],
    ) -> list[Question]:
        """New questions put together from those that could be taught; their ids have `RECOMBINED` in them where they have
        parts of two."""


@lru_cache
def load_rules(name: str) -> Rules:
    """Rules by the name of a language, or as `package.module:name`."""
    if name not in RULES and ":" not in name:
        raise UsageError(
            f"there are no rules '{name}'; write one of {', '.join(RULES)}, or package.module:name for rules of your own"
        )
    found = load_named(RULES.get(name, name), "rules")
    if not isinstance(found, Rules):
        has = ", ".join(sorted(part for part in vars(Rules) if not part.startswith("_") and not hasattr(found, part)))
        raise UsageError(f"'{name}' is no set of rules: it lacks {has}")
    return found

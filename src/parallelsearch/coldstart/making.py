"""Questions made from the passages of an index, and taught both ways: what a run adds to the questions it was given.

Each way of making them (plain ones, those of several parts, as people type, with changed pages) goes the same road: the rules
of the recipe's language make some drafts for each question that is wanted, the tutor plays the lessons of all, and of those
that could be taught at once and one by one, as many as wanted are kept, in the order in which they were made. No draft is
about a page that is kept back for evaluation, or stands in a dev, test or validation file. How questions are worded and
taught is the part of the rules; nothing here knows a language.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from parallelsearch.answers import normalise
from parallelsearch.coldstart.letters import in_small_letters
from parallelsearch.coldstart.pool import Pool, check_pool
from parallelsearch.coldstart.recipe import ColdStartRecipe
from parallelsearch.coldstart.rules import load_rules
from parallelsearch.coldstart.tutor import ColdStartReport, build_coldstart
from parallelsearch.data.leaks import find_leaks, held_out, held_out_texts, held_out_titles
from parallelsearch.errors import UsageError
from parallelsearch.policy.base import Policy
from parallelsearch.retrieval.base import Passage
from parallelsearch.retrieval.store import PASSAGES, PassageStore
from parallelsearch.search import Search
from parallelsearch.trajectory import Kind, Question, Trajectory

Group = tuple[Kind, int | None]
"""Questions of one kind; those of several parts also of one width, which is None for the others."""

_DRAFTS: dict[Kind, int] = {"single": 2, "sequential": 3, "parallel": 2, "mixed": 2}
"""So many questions are made for each one wanted: for many a page is not found by the words of its question, or does not
fit."""
_VERY_WIDE = 7
"""Questions of so many parts and more are lost most often: of 624 made of eight, 250 could be taught both ways."""


@dataclass(slots=True)
class Taught:
    """Questions made here that could be taught both ways: for trajectories as many as wanted, and all for RL."""

    parallel: list[Trajectory] = field(default_factory=list)
    sequential: list[Trajectory] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    wanted: dict[Kind, int] = field(default_factory=dict)
    """How many questions of each kind were asked for; the passages may give fewer."""
    report: ColdStartReport = field(default_factory=ColdStartReport)
    twin_report: ColdStartReport = field(default_factory=ColdStartReport)

    def keep(self, questions: Iterable[Question]) -> None:
        """Only the trajectories of these."""
        chosen = {question.id for question in questions}
        self.parallel = [one for one in self.parallel if one.id in chosen]
        self.sequential = [one for one in self.sequential if one.id in chosen]


class Workshop:
    """All that a run makes, each sort by a method of its own, as the recipe says. What it is made from is read once: the
    passages of the index, the pages that are kept back for evaluation, and what evaluation questions say. Questions made for
    validation go into the pool."""

    def __init__(self, recipe: ColdStartRecipe, pool: Pool, search: Search, encoder: Policy) -> None:
        self.recipe, self.pool, self.search, self.encoder = recipe, pool, search, encoder
        self.rules = load_rules(recipe.rules)
        self._asked: set[str] = set()
        """Normalised texts of what was made for training so far."""

    # ---- what is made ------------------------------------------------------------------------------------------------

    async def mixed(self) -> Taught:
        """Two parallel rounds. Of those for RL alone there are no trajectories."""
        wanted = _by_kind({"mixed": self.recipe.num_mixed + self.recipe.num_mixed_for_rl})
        drafts = self._in_small_letters(self._drafts(_num_drafts(wanted)))
        return await self._teach(drafts, wanted, num_taught=self.recipe.num_mixed)

    async def plain(self) -> Taught:
        """Facts, chains and comparisons."""
        recipe = self.recipe
        wanted = _by_kind(
            {
                "single": recipe.num_made_facts,
                "sequential": recipe.num_made_chains,
                "parallel": recipe.num_made_comparisons,
            }
        )
        drafts = self._in_small_letters(self._drafts(_num_drafts(wanted)))
        return await self._teach(drafts, wanted, longest=None)

    async def wide(self) -> Taught:
        """Questions of several parts."""
        extra = self.recipe.num_wide_for_validation
        wanted: dict[Group, int] = {}
        wide: dict[Kind, dict[int, int]] = {kind: {} for kind in self.recipe.wide}
        for kind, counts in self.recipe.wide.items():
            for width, count in counts.items():
                if count:  # a width of which none is wanted is not validated either
                    wanted[kind, width] = count
                    wide[kind][width] = (_DRAFTS[kind] + (width >= _VERY_WIDE)) * (count + extra)
        return await self._teach(self._drafts(wide=wide), wanted, num_validation=extra)

    async def typed(self) -> Taught:
        """Questions in forms that people type."""
        extra = self.recipe.num_typed_for_validation
        wanted = _by_kind(self.recipe.num_typed)
        return await self._teach(self._drafts(typed=_num_drafts(wanted, extra)), wanted, num_validation=extra)

    async def changed(self) -> Taught:
        """Questions whose lessons read other values in copies of passages. They and those of `described` must be in no file
        for RL, which searches the corpus as it is."""
        wanted = _by_kind({"parallel": self.recipe.num_changed})
        drafts = self._drafts(num_changed=sum(_num_drafts(wanted).values()))
        return await self._teach(self._in_small_letters(drafts), wanted)

    async def described(self) -> Taught:
        """Questions about somebody who is described, and named only in the copy of a passage."""
        wanted = _by_kind(self.recipe.num_described)
        drafts = self._drafts(num_described=_num_drafts(wanted))
        return await self._teach(self._in_small_letters(drafts), wanted)

    # ---- how ---------------------------------------------------------------------------------------------------------

    async def _teach(
        self,
        drafts: Sequence[Question],
        wanted: Mapping[Group, int],
        *,
        longest: Kind | None = "mixed",
        num_validation: int = 0,
        num_taught: int | None = None,
    ) -> Taught:
        """Play the lessons of these both ways. Of the questions that could be taught so, the first `num_validation` of each
        group are for validation, then as many as wanted are kept, with the trajectories of the first `num_taught` (of all
        without it). `longest` is the kind whose limit of tokens holds."""
        recipe = self.recipe
        one_way, other_way = recipe.settings("parallel", longest), recipe.settings("sequential", longest)
        made = Taught()
        made.parallel, made.report = await build_coldstart(drafts, self.search, self.encoder, one_way)
        once = questions_of(made.parallel, drafts)
        made.sequential, made.twin_report = await build_coldstart(once, self.search, self.encoder, other_way)
        both = {one.id for one in made.sequential}
        taught = [question for question in once if question.id in both]
        for (kind, width), count in wanted.items():
            made.wanted[kind] = made.wanted.get(kind, 0) + count
            fit = [question for question in taught if question.kind == kind and width in (None, _width(question))]
            self.pool.validation += fit[:num_validation]  # first: every group must be validated
            made.questions += fit[num_validation : num_validation + count]
        self._asked |= {normalise(question.question) for question in made.questions}
        made.keep(made.questions[:num_taught])
        return made

    def _in_small_letters(self, drafts: Sequence[Question]) -> list[Question]:
        return in_small_letters(drafts, self.recipe.small_share)

    def _drafts(
        self,
        counts: Mapping[Kind, int] | None = None,
        wide: Mapping[Kind, Mapping[int, int]] | None = None,
        **more: Any,
    ) -> list[Question]:
        """Questions made from the passages of the index, without any page that is kept back for evaluation; none, and nothing
        is read, where none is wanted. `more` are numbers that rules from before there were such questions do not know."""
        if not counts and not any((wide or {}).values()) and not any(more.values()):
            return []
        validation = self.pool.validation
        drafts = self.rules.make(
            self._passages,
            counts or {},
            seed=self.recipe.seed,
            forbidden={normalise(question.question) for question in validation} | self._texts,
            needed=self._titles.union(*(question.supporting_titles or () for question in validation)),
            kept_back=self._kept_back,
            wide=wide or {},
            **more,
        )
        refuse_kept_back(drafts, self._kept_back)
        leaked = {
            leak.question.id for leak in find_leaks(drafts, self._known)
        }  # the same two pages as a dev question's
        # What is in training already may not come to validation.
        asked = {normalise(question.question) for question in self.pool.train} | self._asked
        drafts = [one for one in drafts if one.id not in leaked and normalise(one.question) not in asked]
        check_pool(Pool(drafts, validation), self._known)
        return drafts

    @cached_property
    def _passages(self) -> list[Passage]:
        return list(passages_of(self.recipe.search.address))

    @cached_property
    def _kept_back(self) -> frozenset[str]:
        return frozenset(self.rules.kept_back(self._passages))

    @cached_property
    def _known(self) -> dict[str, str]:
        return held_out()

    @cached_property
    def _texts(self) -> set[str]:
        return held_out_texts()

    @cached_property
    def _titles(self) -> set[str]:
        return held_out_titles()


def _by_kind(counts: Mapping[Kind, int]) -> dict[Group, int]:
    """What is wanted, where only kinds are told apart."""
    return {(kind, None): count for kind, count in counts.items() if count}


def _num_drafts(wanted: Mapping[Group, int], extra: int = 0) -> dict[Kind, int]:
    """How many to make of each kind, for so many and `extra` ones for validation."""
    return {kind: _DRAFTS[kind] * (count + extra) for (kind, _), count in wanted.items()}


def _width(question: Question) -> int:
    """How many things a question of several parts names: those of its first round."""
    return sum(part.round == 1 for part in question.parts or ())


def refuse_kept_back(questions: Sequence[Question], kept_back: Collection[str]) -> None:
    """Raise if a question made for training is about a page that evaluation sets are made from."""
    titles = set(kept_back)
    for question in questions:
        both = titles.intersection(question.supporting_titles or ())
        if both:
            raise UsageError(
                f"'{question.question}' was made for training from '{min(both)}', a page that is kept back for evaluation; "
                "the rules of the recipe must leave out the titles in kept_back"
            )


def passages_of(address: str) -> PassageStore:
    """The passages of the index at a search address."""
    folder = address.partition(":")[2].strip()
    if not (Path(folder) / PASSAGES).is_file():
        raise UsageError(
            "num_mixed, num_made_*, num_wide*, num_typed, num_changed and num_described make questions from the passages of "
            f"an index on this machine, and '{address}' is none; set search.address to bm25:FOLDER, or these numbers to 0"
        )
    return PassageStore.open(folder)


def questions_of(
    trajectories: Iterable[Trajectory], questions: Iterable[Question], kind: Kind | None = None
) -> list[Question]:
    """The questions of these trajectories, in their order; with `kind`, those of one kind alone."""
    by_id = {question.id: question for question in questions}
    return [by_id[one.id] for one in trajectories if kind is None or one.kind == kind]

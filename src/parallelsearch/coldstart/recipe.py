"""What a recipe of the cold start may say, and how one is read: what to build, from what, and how many of each.

What a recipe does not count is not made. Nothing is built here: `run.py` does what a recipe says, `making.py` makes its
questions.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import Field

from parallelsearch.coldstart.lesson import ColdStartSettings
from parallelsearch.config import Settings, load
from parallelsearch.training.recipe import RolloutSettings, SearchSettings
from parallelsearch.trajectory import Kind


class ColdStartRecipe(Settings):
    """What to build from what. `rollout` must be the same in the recipes that train on the result."""

    model: str
    """Whose tokenizer encodes: a folder, a hub id, or `smollm2-135m`."""
    sources: list[str]
    """Data sets or files with training questions, those with supporting titles first."""
    datasets: list[str] | None = None
    """Use only questions of these data sets."""
    validation_source: str | None = None
    """Where validation is cut from. Kinds it lacks, or all without it, are cut from questions that can be taught."""
    num_validation: dict[Kind, int] = Field(default_factory=dict)
    capital_share: float = Field(default=0.0, ge=0, le=1)
    """This share of the single questions in small letters is written with the capitals that pages give to their words, and a
    question mark: where one source writes all of its questions small, letters tell the kinds apart (`letters.py`)."""
    small_share: float = Field(default=0.0, ge=0, le=1)
    """This share of the questions that need a second round is in small letters, except those of several parts, some of whose
    wordings are."""
    num_trajectories: dict[Kind, int]
    """How many of each kind, at most."""
    num_recombined: int = Field(default=0, ge=0)
    """How many of the parallel ones may be recombined from others."""
    num_mixed: int = Field(default=0, ge=0)
    """How many trajectories of two parallel rounds are made from the passages of the index."""
    num_mixed_for_rl: int = Field(default=0, ge=0)
    """How many more such questions are kept for RL; those with trajectories are for RL as well."""
    num_made_facts: int = Field(default=0, ge=0)
    """How many trajectories of one fact are made from the passages of the index."""
    num_made_chains: int = Field(default=0, ge=0)
    """How many of two links, likewise; as many as the passages give may be fewer."""
    num_made_comparisons: int = Field(default=0, ge=0)
    """How many comparisons, likewise."""
    num_wide: dict[int, int] = Field(default_factory=dict)
    """Of each number of parts, how many trajectories of a question with so many independent parts, likewise."""
    num_wide_mixed: dict[int, int] = Field(default_factory=dict)
    """Of each number of things, how many mixed ones that ask about their makers; with one thing, for several facts of it."""
    num_wide_for_validation: int = Field(default=0, ge=0)
    """Of each width, how many more such questions go to validation."""
    num_changed: int = Field(default=0, ge=0)
    """How many trajectories read numbers and dates that were written into copies of real passages."""
    num_described: dict[Kind, int] = Field(default_factory=dict)
    """Of each kind (single, sequential, mixed), how many ask for somebody by what he is to something ("the architect of A"),
    which was written into a copy of its page likewise."""
    num_typed: dict[Kind, int] = Field(default_factory=dict)
    """Of each kind, how many trajectories of questions in forms that people type and the question sets lack, made from the
    passages as well."""
    num_typed_for_validation: int = Field(default=0, ge=0)
    """Of each kind that has a count there, how many more such questions go to validation."""
    num_withheld: int = Field(default=0, ge=0)
    """How many trajectories are played once more with their evidence withheld, to teach that there may be no answer."""
    num_unanswerable_for_rl: int = Field(default=0, ge=0)
    """How many questions `rl_unanswerable.jsonl` has, which the corpus does not answer: right is to say so; 0 writes no such
    file."""
    num_undecided: int = Field(default=0, ge=0)
    """How many trajectories `undecided.jsonl` has, which leaves it to RL to find out when to split; 0 writes no such file."""
    max_mixed_tokens: int = Field(default=2560, ge=64)
    """As `max_tokens`, for mixed ones: they have two rounds of results, or four."""
    max_quote_words: int = Field(default=16, ge=4)
    max_relation_words: int = Field(default=2, ge=0)
    max_tokens: int = Field(default=1600, ge=64)
    seed: int = 0
    rules: str = "english"
    """Whose rules read, teach and make questions: a language, or `package.module:name` (`rules.py`)."""
    sequential_max_turns: int | None = Field(default=None, ge=1)
    """Rounds of the sequential twin, where they differ from `rollout.max_turns`: one part a round takes as many as there are
    parts, and with fewer the twin is taught to begin with the whole question."""
    guess_kinds: bool = False
    """Give questions that come without a kind the one their words suggest; without it they are left out."""
    out: str
    search: SearchSettings = SearchSettings()
    rollout: RolloutSettings = RolloutSettings()

    @property
    def makes_questions(self) -> bool:
        counts = (self.num_mixed, self.num_mixed_for_rl, self.num_made_facts, self.num_made_chains)
        more = (*self.num_typed.values(), *self.num_described.values(), *self.wide.values())
        return any((*counts, self.num_made_comparisons, self.num_changed, *more))

    @property
    def wide(self) -> dict[Kind, dict[int, int]]:
        """Questions of several parts by kind and width."""
        return {"parallel": self.num_wide, "mixed": self.num_wide_mixed}

    def settings(self, mode: str, kind: Kind | None = None) -> ColdStartSettings:
        limits = self.rollout.limits
        if mode == "sequential" and self.sequential_max_turns is not None:
            limits = replace(limits, max_turns=self.sequential_max_turns)
        return ColdStartSettings(
            mode="sequential" if mode == "sequential" else "parallel",
            limits=limits,
            seed=self.seed,
            max_quote_words=self.max_quote_words,
            max_relation_words=self.max_relation_words,
            max_tokens=self.max_mixed_tokens if kind == "mixed" else self.max_tokens,
            rules=self.rules,
        )


def load_coldstart_recipe(
    path: str | os.PathLike[str], overrides: Sequence[str] | Mapping[str, Any] = ()
) -> ColdStartRecipe:
    return load(path, ColdStartRecipe, overrides, others={"train": "train"})

"""The policy that samples while training: the local one, with its encodings remembered.

The samples of a group share their prompt and most of their passages, and the same passages come back step after step.
Tokenising them anew was two fifths of the host's work in a step of 1,024 rollouts (docs/training.md).
"""

from __future__ import annotations

from typing import Any

from parallelsearch.errors import UsageError
from parallelsearch.policy.local import LocalPolicy
from parallelsearch.training.models import Weights
from parallelsearch.training.recipe import Recipe
from parallelsearch.trajectory import Segment

MAX_REMEMBERED = 200_000


class TrainingPolicy(LocalPolicy):
    """A local policy for many rollouts over the same texts."""

    streams = False
    """Nobody watches, and searches start when the turn is whole."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._prompts: dict[str, Segment] = {}

    def prompt(self, text: str, question: str) -> Segment:
        found = self._prompts.get(text)
        if found is None:
            _make_room(self._prompts)
            found = self._prompts[text] = super().prompt(text, question)
        return Segment(found.author, found.text, found.token_ids)


def _make_room(kept: dict[str, Any]) -> None:
    if len(kept) >= MAX_REMEMBERED:
        kept.clear()


def sampling_policy(recipe: Recipe, weights: Weights) -> TrainingPolicy:
    """The policy over the run's sampler, as the recipe's `[rollout]` asks for it."""
    settings = recipe.rollout
    limit = getattr(weights.sampler.config.get_text_config(), "max_position_embeddings", None)
    if limit is not None and limit < settings.max_tokens:
        raise UsageError(
            f"rollout.max_tokens = {settings.max_tokens} is more than the {limit} tokens this model was made for"
        )
    options = {"max_slots": settings.num_slots} if settings.num_slots is not None and settings.engine != "batch" else {}
    return TrainingPolicy(
        weights.sampler,
        weights.tokenizer,
        engine=settings.engine,
        deterministic=settings.is_deterministic,
        max_context=settings.max_tokens,
        template=recipe.model.template,
        label=recipe.model.name,
        **options,
    )

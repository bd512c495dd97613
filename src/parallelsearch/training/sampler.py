"""The policy that samples while training, as the recipe's `[rollout]` asks for it, with its encodings remembered.

The samples of a group share their prompt and most of their passages, and the same passages come back step after step.
Tokenising them anew was two fifths of the host's work in a step of 1,024 rollouts (docs/training.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parallelsearch.dialect import Tool
from parallelsearch.errors import UsageError
from parallelsearch.grammar import STOP_STRINGS
from parallelsearch.policy.encoding import EnginePolicy
from parallelsearch.policy.engine.stops import StopBank, token_bytes
from parallelsearch.policy.local import LocalPolicy, end_ids
from parallelsearch.training import vllm_link
from parallelsearch.training.recipe import Recipe
from parallelsearch.training.vllm import ColocatedEngine, ServerEngine, VllmPolicy
from parallelsearch.training.weights import Weights
from parallelsearch.trajectory import Author, Segment

MAX_REMEMBERED = 200_000


class _Remembering(EnginePolicy):
    """For many rollouts over the same texts."""

    streams = False
    """Nobody watches, and searches start when the turn is whole."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._prompts: dict[str, Segment] = {}
        self._inserts: dict[str, list[int]] = {}
        self._description: dict[str, Any] | None = None

    def prompt(self, text: str, question: str, tools: Sequence[Tool] = ()) -> Segment:
        found = self._prompts.get(text)
        if found is None:
            _make_room(self._prompts)
            found = self._prompts[text] = super().prompt(text, question, tools)
        return Segment(found.author, found.text, found.token_ids)

    def insert(self, text: str, author: Author) -> Segment:
        """The samples of a group often ask the same, and then read the same results."""
        ids = self._inserts.get(text)
        if ids is None:
            ids = self._inserts[text] = self._encode_untrusted(text)
        return Segment(author, text, ids)

    def describe(self) -> dict[str, Any]:
        """Every trajectory has it, and it does not change."""
        if self._description is None:
            self._description = super().describe()
        return dict(self._description)

    def reset(self) -> None:
        super().reset()
        self._inserts.clear()  # results of another step's questions do not come back


class TrainingPolicy(_Remembering, LocalPolicy):
    """The sampler's own weights, in this process."""


class VllmTrainingPolicy(_Remembering, VllmPolicy):
    """vLLM, whose weights TRL keeps in step."""


def _make_room(kept: dict[str, Any]) -> None:
    if len(kept) >= MAX_REMEMBERED:
        kept.clear()


def sampling_policy(recipe: Recipe, weights: Weights) -> TrainingPolicy | VllmTrainingPolicy:
    """The policy of a run."""
    settings = recipe.rollout
    limit = getattr(weights.sampler.config.get_text_config(), "max_position_embeddings", None)
    if limit is not None and limit < settings.max_tokens:
        raise UsageError(
            f"rollout.max_tokens = {settings.max_tokens} is more than the {limit} tokens this model was made for"
        )
    policy = _vllm_policy(recipe, weights) if settings.engine == "vllm" else _local_policy(recipe, weights)
    policy.dialect = weights.dialect
    return policy


def _local_policy(recipe: Recipe, weights: Weights) -> TrainingPolicy:
    settings = recipe.rollout
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


def _vllm_policy(recipe: Recipe, weights: Weights) -> VllmTrainingPolicy:
    settings, model = recipe.rollout, weights.sampler
    bank = StopBank(token_bytes(weights.tokenizer, model.config.get_text_config().vocab_size))
    bank.start(STOP_STRINGS)
    eos_ids = end_ids(model, weights.tokenizer)
    engine: ServerEngine | ColocatedEngine
    if settings.vllm_mode == "server":
        engine = ServerEngine(
            vllm_link.base_url(recipe),
            vllm_link.served_model(recipe),
            bank,
            eos_ids,
            is_seeded=settings.is_deterministic,
            timeout_s=settings.vllm_timeout_s,
        )
    else:
        engine = ColocatedEngine(model, bank, eos_ids, settings.max_tokens, is_deterministic=settings.is_deterministic)
    return VllmTrainingPolicy(
        weights.tokenizer,
        engine,
        max_context=settings.max_tokens,
        timeout_s=settings.vllm_timeout_s,
        template=recipe.model.template,
        label=recipe.model.name,
    )

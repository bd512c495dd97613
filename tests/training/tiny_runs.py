"""Shared by the training tests: tiny runs that are real ones. Model, rollout, search and updates are those of the package."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from parallelsearch.data import demo
from parallelsearch.search import Search
from parallelsearch.training import smoke
from parallelsearch.training.recipe import Recipe, parse_recipe

VALUES: dict[str, Any] = {
    "model": {"name": "smoke"},
    "data": {"train": "smoke", "num_validation": 16},
    "search": {"address": "demo", "k": 1},
    "rollout": {"max_turns": 2, "max_tokens_per_turn": 32, "max_observation_tokens": 64, "max_tokens": 400},
    "train": {
        "algorithm": "grpo",
        "out": "unset",
        "steps": 4,
        "questions_per_step": 4,
        "samples_per_question": 4,
        "lr": 4e-3,
        "micro_batch_tokens": 4096,
        "eval_every": 0,
        "save_every": 1000,
        "log_trajectories": 2,
        "seed": 1,
    },
}


def tiny_recipe(out: Path, changes: Mapping[str, Any] | None = None) -> Recipe:
    return parse_recipe(VALUES, {"train.out": str(out), **(changes or {})})


def demo_search() -> Search:
    return Search(demo.retriever(), k=1)


def tiny_model(leaning: float = 2.0, seed: int = 0) -> tuple[Any, Any]:
    """Model and tokenizer; with a small leaning turns are several tokens long, and some are invalid."""
    tokenizer = smoke.make_tokenizer()
    return smoke.make_model(tokenizer, seed, leaning), tokenizer


def curve(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A run's figures without times: what two runs of the same recipe have in common, to the last bit."""
    return [{k: v for k, v in record.items() if not k.startswith("time/")} for record in records]

"""Recipes of small cold starts: a few questions, an index of a few passages, and all of it in one folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from parallelsearch.coldstart.recipe import ColdStartRecipe
from parallelsearch.retrieval.base import Passage
from parallelsearch.retrieval.bm25 import build_bm25

ROOMY: dict[str, Any] = {
    "max_tokens": 16000,
    "max_mixed_tokens": 16000,
    "sequential_max_turns": 9,
    "rollout": {"max_tokens": 16000, "max_tokens_per_turn": 2000, "max_observation_tokens": 4000},
}
"""For questions of several parts."""


def recipe_in(
    folder: Path, rows: Iterable[Mapping[str, Any]], passages: Iterable[Passage] = (), **values: Any
) -> ColdStartRecipe:
    """A run on these questions over an index of these passages, one single trajectory unless `values` say more."""
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    if passages:
        build_bm25(passages, folder / "index")
    found = {
        "model": "smoke",
        "sources": [str(folder / "train.jsonl")],
        "num_trajectories": {"single": 1},
        "max_tokens": 8000,
        "out": str(folder / "out"),
        "search": {"address": f"bm25:{folder / 'index'}"},
        "rollout": {"max_tokens": 8000, "max_observation_tokens": 3000},
    }
    return ColdStartRecipe.model_validate(found | values)

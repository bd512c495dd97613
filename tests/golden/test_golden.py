"""The golden record: token ids, masks, texts, queries and rewards as they were, to the letter; log-probabilities, losses and
averages to 1e-4. A change that is meant to change one of them writes the record anew and says why (`recording.py`)."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import recording

TOLERANCE = 1e-4
"""Other processors add in another order: thirty layers come to 1.1e-5 between two of them."""


def differences(path: str, stored: Any, made: Any) -> list[str]:
    """Where two records differ, each with its place."""
    if isinstance(stored, float) and isinstance(made, float | int):
        return (
            [] if math.isclose(stored, made, rel_tol=TOLERANCE, abs_tol=TOLERANCE) else [f"{path}: {stored} -> {made}"]
        )
    if isinstance(stored, dict) and isinstance(made, dict):
        keys = dict.fromkeys([*stored, *made])
        gone = object()
        return [
            line for key in keys for line in differences(f"{path}.{key}", stored.get(key, gone), made.get(key, gone))
        ]
    if isinstance(stored, list) and isinstance(made, list) and len(stored) == len(made):
        pairs = enumerate(zip(stored, made, strict=True))
        return [line for number, (a, b) in pairs for line in differences(f"{path}[{number}]", a, b)]
    return [] if stored == made and type(stored) is type(made) else [f"{path}: {stored!r} -> {made!r}"]


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(name, marks=[pytest.mark.model, pytest.mark.slow]) if name == "smollm2" else name
        for name in recording.PARTS
    ],
)
def test_nothing_changed(part: str) -> None:
    stored = json.loads(recording.path_of(part).read_text(encoding="utf-8"))
    made = json.loads(json.dumps(recording.PARTS[part]()))
    found = differences(part, stored, made)
    assert not found, f"{len(found)} differences, the first:\n" + "\n".join(found[:20])


def test_the_comparison_sees_a_changed_token_a_changed_sum_and_a_lost_field() -> None:
    stored = {"ids": [1, 2, 3], "logprob": -0.5, "text": "a"}
    assert differences("x", stored, {"ids": [1, 2, 3], "logprob": -0.500001, "text": "a"}) == []
    assert differences("x", stored, {"ids": [1, 2, 4], "logprob": -0.5, "text": "a"}) == ["x.ids[2]: 3 -> 4"]
    assert len(differences("x", stored, {"ids": [1, 2, 3], "logprob": -0.51})) == 2

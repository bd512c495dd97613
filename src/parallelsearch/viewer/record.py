"""A trajectory as the page shows it: all its text and times, without token ids, and with what is counted from them.

The served page and the exported one get the same object. Numbers that are not finite become null: JSON has no word for
them.
"""

from __future__ import annotations

import math
from typing import Any

from parallelsearch.evaluation.evidence import gold_recall
from parallelsearch.trajectory import Segment, Trajectory


def record_view(trajectory: Trajectory) -> dict[str, Any]:
    """The object behind one opened trajectory. A segment says whether it was trained on and how many tokens it has."""
    record = trajectory.to_dict()
    record["segments"] = [_segment(segment) for segment in trajectory.segments]
    record["has_token_ids"] = trajectory.has_token_ids
    if trajectory.has_token_ids:
        mask = trajectory.loss_mask()
        record["num_trained_tokens"], record["num_response_tokens"] = sum(mask), len(mask)
    record["gold_recall"] = gold_recall(trajectory)
    plain = _finite(record)
    return plain if isinstance(plain, dict) else {}


def _segment(segment: Segment) -> dict[str, Any]:
    view: dict[str, Any] = {
        "author": segment.author,
        "text": segment.text,
        "is_trained": segment.author == "model",
    }
    # A stop string that a server had stripped stands at the end of the text; the model's own ids do not have it.
    if segment.restored and segment.text.endswith(segment.restored):
        view["restored"] = segment.restored
    if segment.token_ids is not None:
        view["num_tokens"] = len(segment.token_ids)
    if segment.logprobs:
        view["mean_logprob"] = sum(segment.logprobs) / len(segment.logprobs)
    return view


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return value

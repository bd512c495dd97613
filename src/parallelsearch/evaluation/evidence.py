"""What evidence a model had at hand: of a question's gold, the share that it was shown uncut.

What counts as gold is `gold.py`'s to say. A passage that was found and not shown, or shown in part, was not at hand. A
record that does not say what was shown (of an earlier release, or written by hand) is taken at its hits. `Gold.by` says
whether gold was counted by passage or by title.
"""

from __future__ import annotations

from parallelsearch.gold import gold_of
from parallelsearch.retrieval.base import Hit
from parallelsearch.trajectory import Trajectory


def at_hand(trajectory: Trajectory) -> list[Hit]:
    """The passages that the model was shown whole."""
    hits = [hit for query in trajectory.queries for hit in query.hits]
    shown = [one for turn in trajectory.turns for one in turn.shown]
    if not shown:
        return hits
    whole = {one.id for one in shown if not one.is_cut}
    return [hit for hit in hits if hit.id in whole]


def gold_recall(trajectory: Trajectory) -> float | None:
    """The share of the gold that was at hand; None where none is known."""
    gold = gold_of(trajectory)
    return None if gold is None else gold.recall(at_hand(trajectory))

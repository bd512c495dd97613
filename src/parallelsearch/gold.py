"""The evidence a question needs, as far as its data set says: which pages, and by what a passage of one is known.

Gold is counted by passage where the question says which passages hold it (`gold_passage_ids`: any passage of a title's list
is enough), else by the titles of the passages. Rewards and measures both count by it; what was found, or shown, is theirs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from parallelsearch.answers import normalise
from parallelsearch.retrieval.base import Hit
from parallelsearch.trajectory import Question, Trajectory

GoldBy = Literal["passage", "title"]


@dataclass(frozen=True, slots=True)
class Gold:
    """The evidence that a question needs: one entry for each title, with what counts as having it."""

    wanted: tuple[frozenset[str], ...]
    by: GoldBy

    def places(self, hits: Iterable[Hit]) -> set[int]:
        """Which of the entries these passages hold."""
        found = {hit.id if self.by == "passage" else title_key(hit.title) for hit in hits}
        return {place for place, one in enumerate(self.wanted) if not found.isdisjoint(one)}

    def recall(self, hits: Iterable[Hit]) -> float:
        """The share of the entries that these passages hold."""
        return len(self.places(hits)) / len(self.wanted)


def gold_of(question: Question | Trajectory) -> Gold | None:
    """The gold of a question; None where none is known."""
    by_title = question.gold_passage_ids or {}
    titles = list(dict.fromkeys(question.supporting_titles or by_title))
    # Ids decide only if every title has them: half of the evidence by id and half by title would be a third measure.
    if titles and all(by_title.get(title) for title in titles):
        return Gold(tuple(frozenset(by_title[title]) for title in titles), "passage")
    keys = dict.fromkeys(map(title_key, titles))
    return Gold(tuple(frozenset({key}) for key in keys), "title") if keys else None


def title_key(title: str) -> str:
    return normalise(title) or " ".join(title.split()).casefold()  # "The The" is a title, too

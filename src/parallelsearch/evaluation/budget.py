"""Retrieval at equal budget, without a reader: how much gold so many passages and so many rounds bring.

A budget is a number of passages in all and a number of rounds. An arm is a way to spend it: the whole question as one query,
with every passage from its own ranking; the parts as labelled, a query of the bare name for each in its round, which needs
no model either; or a run, by its recorded queries. The queries of the rounds allowed are dealt by the package's own fair
merge: each gives its best passage that is not there yet, in turn, until the budget is spent. So no arm is shown more than
another, and none is read by a model. With a search at hand the recorded queries are asked again, as deep as the largest
budget needs; without one an arm has what its record holds, and may not spend all of a large budget. A query of a second
round was written by a model that had seen its own run's results and not the budget's: what it asks is taken as it is.
The whole question has one round, whatever is allowed.

A `GoldPlaces` keeps, for each piece of gold, its place in that order, so every budget is read off one record.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from parallelsearch.coverage import named_in, numbered_rounds
from parallelsearch.data.parts import parts_of
from parallelsearch.errors import UsageError
from parallelsearch.evaluation.folder import TRAJECTORIES_FILE
from parallelsearch.evaluation.page import Table
from parallelsearch.evaluation.plots import Figure, Series
from parallelsearch.evaluation.statistics import intervals, mean_of, paired_test
from parallelsearch.gold import Gold, gold_of
from parallelsearch.retrieving import merge
from parallelsearch.search import Search
from parallelsearch.trajectory import NEEDS, Query, Question, QuestionPart, Trajectory, read_trajectories

PASSAGES = (3, 6, 10, 15)
ROUNDS = (1, 2, 4)
WHOLE = "whole question"
LABELLED = "parts as labelled"
DEPTH = max(PASSAGES)
_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class GoldPlaces:
    """Where the gold of one question stands in an arm's order: for each number of rounds, each piece's place from 1 on, or
    None if the order does not have it."""

    id: str
    group: str
    places: dict[int, list[int | None]]

    def recall(self, num_passages: int, num_rounds: int) -> float:
        places = self.places[num_rounds]
        return sum(place is not None and place <= num_passages for place in places) / len(places)


@dataclass(slots=True)
class Arm:
    """One way to spend a budget, over all questions with known gold."""

    name: str
    found: list[GoldPlaces] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Cell:
    """One arm at one budget on one group of questions. The difference is against the first arm, paired by question."""

    group: str
    num_passages: int
    num_rounds: int
    arm: str
    n: int
    all_gold: float
    low: float
    high: float
    gold_recall: float
    difference: float | None = None
    difference_low: float | None = None
    difference_high: float | None = None


def group_of(question: Question | Trajectory) -> str:
    """By what must be found: the number of parts where they are known, else the kind."""
    known = parts_of(question)
    kind = question.kind or "no kind"
    return kind if known is None else f"{kind}, {len(known[0])} parts"


def _in_order(group: str) -> tuple[int, int, str]:
    """Where a group stands: by its kind as everywhere, then by its number of parts."""
    kind, _, parts = group.partition(", ")
    known = list(NEEDS)
    return known.index(kind) if kind in known else len(known), int(parts.partition(" ")[0] or 0), kind


# ---- arms ------------------------------------------------------------------------------------------------------------


async def whole_arm(questions: Iterable[Question | Trajectory], search: Search, depth: int = DEPTH) -> Arm:
    """The question as it stands, as one query. `depth` is the largest budget that its places shall serve."""
    arm = Arm(WHOLE)
    asked = [(question, gold) for question in questions if (gold := gold_of(question)) is not None]
    found = await _searched([question.question for question, _ in asked], search, depth)
    for question, gold in asked:
        places = _places(gold, [Query(question.question, found[question.question].hits)], depth)
        arm.found.append(GoldPlaces(question.id, group_of(question), dict.fromkeys(ROUNDS, places)))
    return arm


async def labelled_arm(questions: Iterable[Question | Trajectory], search: Search, depth: int = DEPTH) -> Arm:
    """For each part, its name as the question has it (a later part's, that of its label), as a query in its round. Only
    questions with known parts: elsewhere nobody can say what a perfect split is."""
    arm = Arm(LABELLED)
    asked = [
        (question, gold, [(part.round, _name_in(question.question, part)) for part in known[0]])
        for question in questions
        if (gold := gold_of(question)) is not None and (known := parts_of(question)) is not None
    ]
    found = await _searched([name for _, _, names in asked for _, name in names], search, depth)
    for question, gold, names in asked:
        places = {
            allowed: _places(gold, [found[name] for number, name in names if number <= allowed], depth)
            for allowed in ROUNDS
        }
        arm.found.append(GoldPlaces(question.id, group_of(question), places))
    return arm


def _name_in(text: str, part: QuestionPart) -> str:
    return next((name for name in part.names if named_in(text, [QuestionPart([name])])), part.names[0])


async def run_arm(
    name: str,
    folder: str | os.PathLike[str],
    search: Search,
    depth: int = DEPTH,
    rounds: Sequence[int] = ROUNDS,
) -> Arm:
    """A run, by its queries, searched again."""
    texts = [query.text for one in _trajectories(folder) if gold_of(one) is not None for query in one.queries]
    return arm_of_record(name, folder, await _searched(texts, search, depth), depth, rounds)


def arm_of_record(
    name: str,
    folder: str | os.PathLike[str],
    again: Mapping[str, Query] | None = None,
    depth: int = DEPTH,
    rounds: Sequence[int] = ROUNDS,
) -> Arm:
    """A run, by its queries, with the hits that its record has, or with those of `again`."""
    arm = Arm(name)
    again = again or {}
    for trajectory in _trajectories(folder):
        gold = gold_of(trajectory)
        if gold is None:
            continue
        asked = [
            (number, [again.get(query.text, query) for query in turn.queries])
            for number, turn in numbered_rounds(trajectory)
        ]
        places = {
            allowed: _places(
                gold, [query for number, queries in asked if number <= allowed for query in queries], depth
            )
            for allowed in rounds
        }
        arm.found.append(GoldPlaces(trajectory.id, group_of(trajectory), places))
    return arm


async def _searched(texts: Iterable[str], search: Search, depth: int) -> dict[str, Query]:
    """Each distinct query with its hits, as many as the largest budget. One that fails found nothing, which is said."""
    distinct = list(dict.fromkeys(texts))
    result: dict[str, Query] = {}
    num_failed = 0
    for start in range(0, len(distinct), _AT_ONCE):
        batch = distinct[start : start + _AT_ONCE]
        for text, found in zip(batch, await search.search_many(batch, k=depth), strict=True):
            num_failed += found.error is not None
            result[text] = Query(text, found.hits)
    if num_failed:
        raise UsageError(f"{num_failed} of {len(distinct)} searches failed: an arm with holes is no arm. Try again")
    return result


def _places(gold: Gold, queries: Sequence[Query], depth: int = DEPTH) -> list[int | None]:
    order = merge(queries, depth) if queries else []
    return [
        next((place for place, hit in enumerate(order, start=1) if Gold((one,), gold.by).recall([hit])), None)
        for one in gold.wanted
    ]


def _trajectories(folder: str | os.PathLike[str]) -> Iterator[Trajectory]:
    path = Path(folder) / TRAJECTORIES_FILE
    if not path.exists():
        raise UsageError(f"'{folder}' is not a run folder: it has no {TRAJECTORIES_FILE}")
    return read_trajectories(path)


# ---- what they come to -----------------------------------------------------------------------------------------------


def cells(arms: Sequence[Arm], *, num_resamples: int = 1000, seed: int = 0) -> list[Cell]:
    """Every arm at every budget, for all questions and by group, over the questions that all arms have (the labelled one
    apart, which stands in the groups whose parts are known)."""
    by_id = [{found.id: found for found in arm.found} for arm in arms]
    wanted = [one for arm, one in zip(arms, by_id, strict=True) if arm.name != LABELLED]
    shared = [key for key in wanted[0] if all(key in one for one in wanted)] if wanted else []
    if not shared:
        raise UsageError("the arms share no question whose gold is known (gold_passage_ids, supporting_titles)")
    groups: dict[str, list[str]] = {"all": shared}
    for name in sorted({wanted[0][key].group for key in shared}, key=_in_order):  # records end in any order
        groups[name] = [key for key in shared if wanted[0][key].group == name]
    if len(groups) == 2:
        del groups["all"]
    result: list[Cell] = []
    for group, keys in groups.items():
        for num_rounds in ROUNDS:
            for num_passages in PASSAGES:
                base = [by_id[0][key].recall(num_passages, num_rounds) == 1.0 for key in keys]
                for arm, found in zip(arms, by_id, strict=True):
                    if arm.name == WHOLE and num_rounds != ROUNDS[0]:
                        continue  # it has one round, and says so once
                    if not all(key in found for key in keys):
                        continue  # the labelled arm, where parts are not known
                    recalls = [found[key].recall(num_passages, num_rounds) for key in keys]
                    has_all = [recall == 1.0 for recall in recalls]
                    interval = intervals({"all": mean_of(has_all)}, num_resamples=num_resamples, seed=seed)["all"]
                    low, high = interval or (0.0, 0.0)
                    cell = Cell(
                        group, num_passages, num_rounds, arm.name, len(keys), sum(has_all) / len(keys), low, high,
                        sum(recalls) / len(recalls),
                    )  # fmt: skip
                    if found is not by_id[0]:
                        test = paired_test(base, has_all, num_resamples=num_resamples, seed=seed)
                        cell = replace(
                            cell, difference=test.difference, difference_low=test.low, difference_high=test.high
                        )
                    result.append(cell)
    return result


def budget_table(found: Sequence[Cell], *, is_short: bool = False) -> Table:
    """A row for each group, arm and number of rounds; a column for each number of passages: all gold / gold recall. The
    short form leaves the intervals out."""
    columns = sorted({cell.num_passages for cell in found})
    rows = []
    for group, arm, num_rounds in dict.fromkeys((cell.group, cell.arm, cell.num_rounds) for cell in found):
        own = {c.num_passages: c for c in found if (c.group, c.arm, c.num_rounds) == (group, arm, num_rounds)}
        n = next(iter(own.values())).n
        rows.append([group, str(n), arm, str(num_rounds), *(_cell(own.get(column), is_short) for column in columns)])
    return Table(("questions", "n", "arm", "rounds", *(f"{column} passages" for column in columns)), rows)


def _cell(cell: Cell | None, is_short: bool) -> str:
    """All gold with its interval, gold recall, and what all gold is ahead of the first arm."""
    if cell is None:
        return "–"
    if is_short:
        return f"{cell.all_gold:.3f} / {cell.gold_recall:.3f}"
    text = f"{cell.all_gold:.3f} [{cell.low:.3f}, {cell.high:.3f}] / {cell.gold_recall:.3f}"
    if cell.difference is None:
        return text
    return f"{text}; {cell.difference:+.3f} [{cell.difference_low:+.3f}, {cell.difference_high:+.3f}]"


def budget_figure(found: Sequence[Cell]) -> Figure:
    """All gold against passages, a line for each arm and number of rounds, over the questions that are to be split (or
    whatever comes first, where none are)."""
    split = tuple(kind for kind, needs in NEEDS.items() if needs.should_split)
    groups = list(dict.fromkeys(cell.group for cell in found))
    group = next((name for name in groups if name.startswith(split)), groups[0])
    lines: dict[str, list[tuple[float, float]]] = {}
    for cell in found:
        if cell.group == group:
            unit = "round" if cell.num_rounds == 1 else "rounds"
            lines.setdefault(f"{cell.arm}, {cell.num_rounds} {unit}", []).append(
                (float(cell.num_passages), cell.all_gold)
            )
    series = tuple(Series(name, tuple(points)) for name, points in lines.items())
    title = f"Questions with all gold among so many passages ({group})"
    return Figure("budget", title, "lines", "passages shown", "all gold found", series, y_max=1.05, x_min=0.0)


def to_dict(arms: Sequence[Arm], found: Sequence[Cell]) -> dict[str, Any]:
    return {
        "cells": [asdict(cell) for cell in found],
        "arms": [{"name": arm.name, "found": [asdict(one) for one in arm.found]} for arm in arms],
    }

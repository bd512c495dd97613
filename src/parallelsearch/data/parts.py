"""The parts of a question: as labelled, or, where it does not say, as its evidence and its words tell.

The one place that derives them. In this order, and each answer says which it was:

- `label`: the question's own `parts`.
- `graph`: a written dependency graph. A step is a part, called by the names in its query that no other step's
  has; its round is its depth.
- `titles`: the gold titles. Those that the question names are parts of the first round, called by the title, by the title
  without what stands in brackets or after a comma. In a mixed question the others are parts of the second round (the
  directors of two films); in a parallel one they leave it open what its parts are.
- `wording`: what a parallel question without titles lets one choose from ("A or B").

Only questions that are to be split (parallel, mixed) get derived parts: a chain's second part has no name that anybody could
know before. Names are read by the rules of `alternatives.py`, which are for English.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from parallelsearch.coverage import named_in
from parallelsearch.data.alternatives import names_in, offered
from parallelsearch.trajectory import NEEDS, Question, QuestionPart, Trajectory

PartsFrom = Literal["label", "graph", "titles", "wording"]


def parts_of(question: Question | Trajectory, graph: Any = None) -> tuple[list[QuestionPart], PartsFrom] | None:
    """The parts with where they are from; None where they cannot be told. `graph` is the dependency graph, if one is
    written (a `Question` has its own in `metadata`)."""
    if question.parts:
        return question.parts, "label"
    if question.kind is None or not NEEDS[question.kind].should_split:
        return None
    if graph is None and isinstance(question, Question):
        graph = (question.metadata or {}).get("graph")
    steps = graph_in(graph)
    derived: tuple[tuple[list[QuestionPart], PartsFrom], ...] = (
        ([] if steps is None else _of_graph(steps), "graph"),
        (_of_titles(question), "titles"),
        (_of_wording(question), "wording"),
    )
    return next((found for found in derived if len(found[0]) > 1), None)


def graph_in(value: Any) -> list[dict[str, Any]] | None:
    """A dependency graph as it is written here: steps with `id`, `query`, and in `needs` the ids of earlier ones. None for
    anything else: a file of one's own may have a field of that name."""
    if not isinstance(value, list) or not value:
        return None
    known: list[Any] = []
    for node in value:
        if (
            not isinstance(node, dict)
            or not isinstance(node.get("query"), str)
            or not isinstance(node.get("needs"), list)
        ):
            return None
        if not isinstance(node.get("id"), int | str) or any(other not in known for other in node["needs"]):
            return None
        known.append(node["id"])
    return value


def depths(graph: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    """The round of each step of a dependency graph: one more than the latest that it needs."""
    depth: dict[int, int] = {}
    for node in graph:  # nodes stand in an order in which what is needed comes first
        depth[node["id"]] = 1 + max((depth[other] for other in node["needs"]), default=0)
    return depth


def _of_graph(graph: Sequence[Mapping[str, Any]]) -> list[QuestionPart]:
    depth = depths(graph)
    parts = [QuestionPart(names_in(f"- {node['query']}"), depth[node["id"]]) for node in graph]
    counts = Counter(name for part in parts for name in part.names)
    for part in parts:  # "distance of Uranus from the Sun": what other steps name, too, tells none of them apart
        part.names = [name for name in part.names if counts[name] == 1]
    return parts if all(part.names for part in parts) else []


def _of_titles(question: Question | Trajectory) -> list[QuestionPart]:
    parts = [QuestionPart(titles_names(title)) for title in question.supporting_titles or ()]
    named = set(named_in(question.question, parts))
    if len(named) < 2 or (question.kind == "parallel" and len(named) < len(parts)):
        return []
    for number, part in enumerate(parts):
        part.round = 1 if number in named else 2
    return parts


def titles_names(title: str) -> list[str]:
    """What a page may be called in a question or a query, the whole title first."""
    bare = title.rstrip()
    opening = bare.rfind("(")
    if bare.endswith(")") and ")" not in bare[opening + 1 : -1] and opening >= 0:  # what a title in brackets is about
        bare = bare[:opening].rstrip()
    return [name for name in dict.fromkeys((title, bare, bare.partition(",")[0].strip())) if name]


def _of_wording(question: Question | Trajectory) -> list[QuestionPart]:
    names = offered(question.question)
    if question.kind != "parallel" or set(names) == {"yes", "no"}:
        return []
    return [QuestionPart([name]) for name in names]

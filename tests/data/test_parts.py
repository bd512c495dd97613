"""The parts of a question: the label first, then the graph, the titles, the wording; and none where none can be told."""

from __future__ import annotations

import pytest

from parallelsearch.coverage import covered
from parallelsearch.data import load_questions
from parallelsearch.data.parts import parts_of, titles_names
from parallelsearch.trajectory import Query, Question, QuestionPart, Trajectory, Turn

FILMS = "Which film has the director born later, Free Guy or Forbidden Ground?"


def told(question: Question) -> tuple[list[tuple[str, int]], str] | None:
    found = parts_of(question)
    return None if found is None else ([(part.names[0], part.round) for part in found[0]], found[1])


def test_a_label_is_taken_as_it_is() -> None:
    part = QuestionPart(["x"], 3)
    assert parts_of(Question(FILMS, kind="sequential", parts=[part])) == ([part], "label")


def test_titles_in_the_question_are_the_first_round_of_a_mixed_one() -> None:
    titles = ["Shawn Levy", "Forbidden Ground (1968 film)", "Free Guy", "Pál Gábor"]
    assert told(Question(FILMS, kind="mixed", supporting_titles=titles)) == (
        [("Shawn Levy", 2), ("Forbidden Ground (1968 film)", 1), ("Free Guy", 1), ("Pál Gábor", 2)],
        "titles",
    )


def test_a_parallel_question_names_all_its_titles_or_they_say_nothing() -> None:
    asks = "Are Sutera and Rhodotypos both shrubs?"
    assert told(Question(asks, kind="parallel", supporting_titles=["Rhodotypos", "Sutera"])) == (
        [("Rhodotypos", 1), ("Sutera", 1)],
        "titles",
    )
    assert told(Question(asks, kind="parallel", supporting_titles=["Rhodotypos", "Sutera", "Shrub land"])) is None


def test_without_titles_the_wording_offers_them() -> None:
    assert told(Question("Who is older, Claude Monet or Camille Pissarro?", kind="parallel")) == (
        [("Claude Monet", 1), ("Camille Pissarro", 1)],
        "wording",
    )
    assert told(Question("Are frogs and whales animals?", kind="parallel")) is None


@pytest.mark.parametrize("kind", ["sequential", "single", None])
def test_what_is_not_to_be_split_has_no_derived_parts(kind) -> None:
    assert parts_of(Question(FILMS, kind=kind, supporting_titles=["Free Guy", "Forbidden Ground"])) is None


def test_a_page_may_be_called_by_less_than_its_title() -> None:
    assert titles_names("Springfield, Ohio (city)") == ["Springfield, Ohio (city)", "Springfield, Ohio", "Springfield"]


def test_the_written_graphs_cover_their_own_parts() -> None:
    """Asked as the graph says, each step in its round, every part of every question with derived parts is covered."""
    num_known = 0
    for question in load_questions("dependency"):
        found = parts_of(question)
        if found is None or found[1] != "graph":
            continue
        num_known += 1
        rounds: dict[int, list[Query]] = {}
        for part, node in zip(found[0], (question.metadata or {})["graph"], strict=True):
            rounds.setdefault(part.round, []).append(Query(node["query"]))
        trajectory = Trajectory.of(question)
        trajectory.turns = [Turn(queries=rounds[number]) for number in sorted(rounds)]
        coverage = covered(trajectory, found[0])
        assert coverage is not None
        assert coverage.is_whole, question.question
    assert num_known > 60

"""The words of a passage that decide."""

from __future__ import annotations

import pytest

from parallelsearch.coldstart.english import evidence
from parallelsearch.coldstart.english.evidence import number_near, stretch_with
from parallelsearch.coldstart.lesson import Seen


@pytest.mark.parametrize(
    ("text", "date"),
    [
        ("Ann (born 4 May 1901) is", (1901, 5, 4)),
        ("Ann (4 May 1901 – 1 June 1970) was", (1901, 5, 4)),
        ("Ann was born on May 4, 1901, in Rome.", (1901, 5, 4)),
        ("Ann (1901–1970) was", (1901, 0, 0)),
        ("Ann lives in room 1901 of a hotel.", None),
    ],
)
def test_dates_of_birth(text: str, date: evidence.Date | None) -> None:
    found = evidence.birth_date(text)
    assert (found[0] if found else None) == date


def test_dates_are_compared_as_far_as_they_are_known() -> None:
    assert evidence.later_of((1901, 5, 4), (1901, 6, 1)) == -1
    assert evidence.later_of((1902, 0, 0), (1901, 6, 1)) == 1
    assert evidence.later_of((1901, 0, 0), (1901, 6, 1)) == 0


def test_the_date_of_an_event_is_the_one_beside_its_verb() -> None:
    text = "Chic is a magazine. Its owner was born in 1950. It was first published in November 1976 and closed in 1999."
    found = evidence.event_date(text, ["published"])
    assert found is not None
    assert found[0] == (1976, 11, 0)


def test_a_clause_keeps_the_phrase_and_stays_short() -> None:
    page = Seen(
        3, "Tom", "Tom is old. " + "Very " * 40 + "often he met, in the town of Lund, his friend Ida Kay and others."
    )
    found = evidence.clause_with(page, "Ida Kay", ["friend"], 12)
    assert found is not None
    assert "Ida Kay" in found[0].words
    assert len(found[0].words.split()) <= 12
    assert evidence.clause_with(page, "Ida K", ["friend"], 12) is None


def test_nations_and_numbers() -> None:
    page = Seen(1, "Ann", "Ann (UK: , US: ) is a Norwegian writer. She wrote 1,200 poems and won three prizes in 1950.")
    assert (evidence.nationality(page) or ("",))[0] == "Norwegian"
    assert (evidence.country(page) or ("",))[0] == "Norway"
    assert (evidence.number_near(page, ["poems"], 10) or (0,))[0] == 1200
    assert (evidence.number_near(page, ["prizes"], 10) or (0,))[0] == 3


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        ("a Canadian alternative rock group, formed in 1999", ["canadian"], "Canadian"),
        ("is 2.5 mi north east of Burnley, 1 mi south west of Nelson", ["north", "burnley"], "north east of Burnley"),
        ("a river of the north and, after many miles of plain, the east", ["river", "east"], "river"),
        ("It was described by Francis Walker in 1855.", ["described", "walker", "1855"], "described by Francis Walker in 1855"),
        ("a town in Norway", ["sweden"], ""),
    ],
)  # fmt: skip
def test_the_words_that_tell_are_a_short_stretch_of_the_quote(text: str, words: list[str], expected: str) -> None:
    assert stretch_with(text, words, 6) == expected


@pytest.mark.parametrize(
    ("text", "word", "expected"),
    [
        ("At the census, its population was 160, in 30 families.", "families", 30),
        ("Ann Lund (born February 12, 1938) is an author of 26 novels.", "novels", 26),
        ("Ann Lund (born 12 February 1938) is an author.", "author", None),
        ("It has 1,250 students in 1990 and four schools.", "students", 1250),
        ("A 60-story tower of 1976.", "stories", 60),
        ("It was founded in 1976 by students.", "students", None),
    ],
)
def test_the_number_of_something_is_the_nearest_one_and_no_date(text: str, word: str, expected: float | None) -> None:
    found = number_near(Seen(1, "A page", text), [word], 16)
    assert (found[0] if found else None) == expected

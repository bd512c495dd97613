"""Comparisons put together from others."""

from __future__ import annotations

import random

import pytest
from painters import BIRTH, settings, taught

from parallelsearch.coldstart.english import questions
from parallelsearch.coldstart.english.recombined import recombine, turned_round
from parallelsearch.coldstart.run import TokenizerEncoder
from parallelsearch.search import Search
from parallelsearch.trajectory import Question

pytest.importorskip("transformers")


async def test_recombined_questions_have_the_answer_that_the_evidence_gives(
    search: Search, encoder: TokenizerEncoder
) -> None:
    other = Question("Which painter was born first, Vera Lind or Nils Berg?", ["Nils Berg"], id="b2", kind="parallel")
    made = await recombine([BIRTH, other], search, encoder, settings(), max_new=10)
    assert made
    assert len({question.id for question in made}) == len(made)
    years = {"Ada Brenn": 1901, "Carl Dorn": 1888, "Vera Lind": 1933, "Nils Berg": 1910}
    for question in made:
        named = [name for name in years if name in question.question]
        assert len(named) == 2
        pick = min if "first" in question.question else max
        assert question.golden_answers == [pick(named, key=years.__getitem__)]
        assert question.question not in (BIRTH.question, other.question)
    assert {"first" in question.question for question in made} == {True, False}


@pytest.mark.parametrize(
    ("text", "turned"),
    [
        ("Which film was released first, A or B?", {"last", "most recently"}),
        ("Who is older, A or B?", {"younger"}),
        ("Who was born earlier, A or B?", {"later"}),
        ("Who died last, A or B?", set()),  # asks for the later one already
        ("Which band was first formed before 1990, A or B?", set()),
    ],
)
def test_a_comparison_by_date_is_turned_round_only_where_that_is_clear(text: str, turned: set[str]) -> None:
    found = turned_round(Question(text, ["A"], id="q", kind="parallel"), random.Random(0)).question
    if not turned:
        assert found == text
    else:
        assert any(word in found for word in turned)
        assert questions.aspect_of(found).direction == 1


def test_each_wording_of_a_turned_comparison_has_an_id_of_its_own() -> None:
    question = Question("Which band was formed first, A or B?", ["A"], id="q", kind="parallel")
    turned = [turned_round(question, random.Random(seed)) for seed in range(20)]
    assert len({one.question for one in turned}) == len({one.id for one in turned}) == 2


async def test_a_choice_comes_back_with_its_names_exchanged(search: Search, encoder: TokenizerEncoder) -> None:
    choice = Question("Who was a sculptor, Ada Brenn or Tom Hale?", ["Tom Hale"], id="c", kind="parallel")
    assert (await taught(choice, search, encoder)).answer == "Tom Hale"
    made = await recombine([choice], search, encoder, settings(), max_new=10)
    assert [(one.question, one.golden_answers) for one in made] == [
        ("Who was a sculptor, Tom Hale or Ada Brenn?", ["Tom Hale"])
    ]

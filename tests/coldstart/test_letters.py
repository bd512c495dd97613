"""Capitals for questions in small letters, so that letters do not tell single questions from chains."""

from __future__ import annotations

import asyncio

import pytest

from parallelsearch.coldstart.letters import as_pages_write, in_small_letters, with_capitals
from parallelsearch.retrieval.base import Passage
from parallelsearch.retrieval.bm25 import BM25Retriever
from parallelsearch.search import Search
from parallelsearch.trajectory import Question

PAGE = Passage(
    "1",
    "The Fighter (song)",
    "The Fighter is a song by the singer Keith Urban. Urban wrote it with busbee. In urban areas, and in the U.S., the Fighter "
    "sold well. He's from NZ.",
)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (
            "who wrote the song the fighter by keith urban",
            "Who wrote the song the Fighter by Keith urban?",
        ),  # once each
        ("is keith's song from nz ?", "Is Keith's song from NZ?"),
        ("in which areas", "In which areas?"),  # a capital at the start of a sentence says nothing
        ("who is ann", "Who is ann?"),  # on no page
        ("", "?"),
    ],
)
def test_words_are_written_as_on_the_pages(text: str, written: str) -> None:
    assert as_pages_write(text, [PAGE]) == written


def test_most_pages_decide() -> None:
    pages = [PAGE, Passage("2", "x", "Born as Keith Urban."), Passage("3", "y", "Then Keith Urban sang.")]
    assert as_pages_write("songs of keith urban", pages) == "Songs of Keith Urban?"


def test_a_share_of_the_single_questions_in_small_letters_is_changed() -> None:
    search = Search(BM25Retriever.from_passages([PAGE]))
    small = [Question(f"who wrote fighter {number}", ["x"], kind="single") for number in range(200)]

    def written(share: float, questions: list[Question]) -> list[Question]:
        return asyncio.run(with_capitals(questions, search, share))

    once = written(0.5, small)
    changed = [one.question for one in once if one.question != one.question.lower()]
    assert 70 <= len(changed) <= 130
    assert all(text.startswith("Who wrote Fighter ") and text.endswith("?") for text in changed)
    assert written(0.5, small[::-1])[::-1] == once, "the text decides, not the order"
    others = [
        Question("Who wrote it", ["x"], kind="single"),
        Question("keith or urban", ["a"], kind="parallel"),
    ]
    for kept, before in zip(written(1.0, others), others, strict=True):
        assert kept is before
    assert all(one is before for one, before in zip(written(0.0, small), small, strict=True))


def test_a_share_of_what_needs_a_second_round_is_put_in_small_letters() -> None:
    chains = [
        Question(f"Where was the author of Book {number} born?", ["x"], kind="sequential") for number in range(200)
    ]
    once = in_small_letters(chains, 0.4)
    assert 50 <= sum(one.question == one.question.lower() for one in once) <= 110
    assert in_small_letters(chains[::-1], 0.4)[::-1] == once
    mixed = Question("Who is older, the author of A or that of B?", ["x"], kind="mixed")
    assert in_small_letters([mixed], 1.0)[0].question == "who is older, the author of a or that of b?"
    others = [Question("Who wrote A?", ["x"], kind="single"), Question("A or B?", ["x"], kind="parallel")]
    assert all(one is before for one, before in zip(in_small_letters(others, 1.0), others, strict=True))

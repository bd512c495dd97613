"""What looks like a list and is none: one search for one thing, two rounds for a chain, and never a split."""

from __future__ import annotations

from collections import Counter

import pytest
from painters import settings
from test_wide_questions import FACTS, PASSAGES

from parallelsearch.coldstart.english.from_pages.contrasts import (
    MADE_CONTRAST,
    MAX_PER_PAGE,
    make_chain_contrasts,
    make_single_contrasts,
)
from parallelsearch.coldstart.english.from_pages.pages import Page, read_pages
from parallelsearch.coldstart.english.from_pages.works import Work, read_works
from parallelsearch.coldstart.english.rules import CONTRAST_SHARE
from parallelsearch.coldstart.rules import load_rules
from parallelsearch.coldstart.tutor import build_coldstart
from parallelsearch.retrieval.base import Passage
from parallelsearch.retrieval.bm25 import BM25Retriever
from parallelsearch.search import Search
from parallelsearch.trajectory import Question

FIRST, SECOND = ("Salt", "Moor", "Reed", "Fern", "Dusk", "Holm"), ("Honey", "Vale", "Quarry", "Lamp")
JOINED = {
    f"{one} and {other}": f"{one} and {other} is a company in Oslo. It was founded in {1900 + 4 * number + place}."
    for number, one in enumerate(FIRST)
    for place, other in enumerate(SECOND)
}
WORLD = [*PASSAGES, *(Passage(f"j{number}", *page) for number, page in enumerate(JOINED.items()))]


@pytest.fixture(scope="module")
def pages() -> dict[str, Page]:
    return read_pages(WORLD, ())


@pytest.fixture(scope="module")
def works() -> list[Work]:
    return read_works(WORLD)


@pytest.fixture(scope="module")
def single(pages: dict[str, Page], works: list[Work]) -> list[Question]:
    return make_single_contrasts(pages, works, 60, seed=2)


@pytest.fixture(scope="module")
def chains(pages: dict[str, Page], works: list[Work]) -> list[Question]:
    return make_chain_contrasts(pages, works, 40, seed=2)


def told(title: str) -> set[str]:
    return set(FACTS[title].values()) if title in FACTS else {JOINED[title][-5:-1]}


def test_the_answer_is_what_the_one_page_tells(single: list[Question]) -> None:
    assert len(single) == 60
    assert {question.kind for question in single} == {"single"}
    for question in single:
        (title,) = question.supporting_titles
        assert question.golden_answers[0] in told(title), question
        assert title.lower() in question.question.lower()
    joined = [question for question in single if question.supporting_titles[0] in JOINED]
    beside = [
        q for q in single if any(film.lower() in q.question.lower() for film in FACTS if "released" in FACTS[film])
    ]
    assert min(len(joined), len(beside), 60 - len(joined) - len(beside)) >= 15, "the sorts take turns"


def test_a_chain_does_not_name_what_it_leads_to(chains: list[Question]) -> None:
    assert len(chains) == 40
    for question in chains:
        film, director = question.supporting_titles
        assert FACTS[film]["director"] == director
        assert film.lower() in question.question.lower()
        assert director.lower() not in question.question.lower()
        assert question.golden_answers[0] in told(director)
    assert max(Counter(question.supporting_titles[1] for question in chains).values()) <= MAX_PER_PAGE
    assert any(" and " in question.question for question in chains)


async def test_none_of_them_is_split(single: list[Question], chains: list[Question], encoder) -> None:
    search = Search(BM25Retriever.from_passages(WORLD), k=3)
    trajectories, report = await build_coldstart([*single, *chains], search, encoder, settings())
    assert report.kept["single"] >= 45
    assert report.kept["sequential"] >= 25
    assert not any(one.is_split for one in trajectories)
    assert {len(one.rounds) for one in trajectories if one.kind == "single"} == {1}
    assert {len(one.rounds) for one in trajectories if one.kind == "sequential"} == {2}
    for one in trajectories:
        if one.kind == "sequential":
            second = one.rounds[1].queries[0].text
            assert one.supporting_titles[1] in second, second
            assert "who" not in second.split()


def test_they_are_a_share_of_what_a_run_makes_from_the_first_on() -> None:
    rules = load_rules("english")
    made = rules.make(WORLD, {"single": 60, "sequential": 20}, seed=1)
    for kind, wanted in (("single", 60), ("sequential", 20)):
        of_kind = [question.dataset == MADE_CONTRAST for question in made if question.kind == kind]
        assert len(of_kind) <= wanted
        assert sum(of_kind) == int(CONTRAST_SHARE * wanted)
        assert any(of_kind[: len(of_kind) // 3])
    forbidden = {question.question.lower().rstrip("?") for question in made}
    again = rules.make(WORLD, {"single": 60}, seed=1, forbidden=forbidden)
    assert not forbidden & {question.question.lower().rstrip("?") for question in again}

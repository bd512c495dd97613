"""Comparisons made from pages: each way to compare, what is never used, and that what is made can be taught."""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path

import pytest
from small_runs import recipe_in

from parallelsearch.answers import normalise
from parallelsearch.coldstart import run as coldstart_run
from parallelsearch.coldstart.english.from_pages.comparisons import (
    MADE_COMPARISON,
    MAX_PER_PAGE,
    are_both,
    counts_of,
    make_comparisons,
    what_both_are,
    which_came_first,
    which_fits,
    which_has_more,
)
from parallelsearch.coldstart.english.from_pages.pages import read_pages
from parallelsearch.coldstart.lesson import ColdStartSettings
from parallelsearch.coldstart.run import TokenizerEncoder
from parallelsearch.coldstart.tutor import build_coldstart
from parallelsearch.limits import Limits
from parallelsearch.retrieval.base import Passage
from parallelsearch.retrieval.bm25 import BM25Retriever
from parallelsearch.search import Search
from parallelsearch.training.smoke import make_tokenizer
from parallelsearch.trajectory import Question, read_trajectories

_CITIES = ("Askvik", "Borgsund", "Dalholm", "Elvestad", "Fjordnes", "Grenvik")
_BANDS = ("Amber Kites", "Blue Lanterns", "Copper Foxes", "Dusty Organs", "Early Ferries", "Faded Maps")
_PEOPLE = ("Ada Brenn", "Carl Dorn", "Edda Falk", "Gustav Hald", "Ingrid Juhl", "Knut Lerche")
_SECOND = ("Kites", "Lanterns", "Foxes", "Organs", "Ferries", "Maps", "Anchors", "Bells", "Cranes", "Drums")
_NATIONS = ("Norwegian", "Danish", "Swedish")


def world() -> list[Passage]:
    """Bands and painters, one page each."""
    bands = [
        Passage(
            f"b{number}",
            name,
            f"{name} is a {_NATIONS[number % 3]} rock band. It was formed in {1970 + number} in the city of {_CITIES[number]}.",
        )
        for number, name in enumerate(_BANDS)
    ]
    people = [
        Passage(
            f"p{number}",
            name,
            f"{name} (born {number + 1} May {1901 + number}) was a {_NATIONS[number % 3]} painter. "
            f"{'She' if number % 2 else 'He'} was educated in the city of {_CITIES[-1 - number]}.",
        )
        for number, name in enumerate(_PEOPLE)
    ]
    cities = [
        Passage(f"c{number}", name, f"{name} is a city in the north of the country.")
        for number, name in enumerate(_CITIES)
    ]
    return [*bands, *people, *cities]


PAGES = read_pages(world(), ())
BAND, OTHER = PAGES["Amber Kites"], PAGES["Blue Lanterns"]
PAINTER, YOUNGER = PAGES["Ada Brenn"], PAGES["Carl Dorn"]


def made(count: int = 300, seed: int = 0, forbidden: tuple[str, ...] = ()) -> list[Question]:
    return make_comparisons(read_pages(world(), forbidden), count, seed=seed, forbidden=forbidden, min_of_a_kind=2)


def test_a_description_fits_the_page_it_was_taken_from() -> None:
    drafts = {which_fits(BAND, OTHER, random.Random(seed)) for seed in range(20)}
    texts = {draft[0] for draft in drafts if draft}
    assert {draft[1] for draft in drafts if draft} == {"Amber Kites"}
    assert "Which band was formed in 1970, Amber Kites or Blue Lanterns?" in texts
    assert any(text.endswith("Blue Lanterns or Amber Kites?") for text in texts)
    assert all("1970" in text or "Askvik" in text for text in texts)


def test_what_both_pages_say_tells_nothing_apart() -> None:
    twin = read_pages([*world(), Passage("t", "Twin Mirrors", BAND.text.replace("Amber Kites", "Twin Mirrors"))], ())
    assert all(which_fits(twin["Amber Kites"], twin["Twin Mirrors"], random.Random(seed)) is None for seed in range(10))


@pytest.mark.parametrize(("one", "other", "verb", "earlier"), [(PAINTER, YOUNGER, "born", "Ada Brenn"), (OTHER, BAND, "formed", "Amber Kites")])  # fmt: skip
def test_the_earlier_and_the_later_are_asked_for_alike(one: object, other: object, verb: str, earlier: str) -> None:
    drafts = [which_came_first(one, other, random.Random(seed)) for seed in range(40)]  # type: ignore[arg-type]
    later = ({one.name, other.name} - {earlier}).pop()  # type: ignore[attr-defined]
    for draft in drafts:
        assert draft is not None
        assert f"was {verb} " in draft[0]
        assert draft[1] == (earlier if re.search(r"\b(?:first|earlier),", draft[0]) else later)
    assert 10 < sum(draft[1] == earlier for draft in drafts if draft) < 30


def test_cities_without_dates_are_not_compared_by_them() -> None:
    assert which_came_first(PAGES["Askvik"], PAGES["Borgsund"], random.Random(0)) is None


def test_both_are_what_both_pages_say_and_not_what_one_says() -> None:
    drafts = {are_both(BAND, OTHER, random.Random(seed)) for seed in range(40)} - {None}
    said = {(re.sub(r"^.*(?:Kites|Lanterns|both) (?=\w+ ?)", "", draft[0]), draft[1]) for draft in drafts if draft}
    assert {answer for _, answer in said} == {"yes", "no"}
    assert all(("Norwegian" in draft[0]) == (draft[1] == "no") for draft in drafts if draft)
    assert all(draft[0].endswith("rock bands?") for draft in drafts if draft)


def test_what_both_are_is_in_both_pages_words() -> None:
    drafts = [what_both_are(PAINTER, YOUNGER, random.Random(seed)) for seed in range(20)]
    assert {draft[1] for draft in drafts if draft} == {"painter"}
    assert "What do Ada Brenn and Carl Dorn have in common?" in {draft[0] for draft in drafts if draft}


def operas() -> list[Passage]:
    """Six operas with so many acts, and the songs of some."""
    numbers = ("two", "three", "four", "five", "six", "seven")
    return [
        Passage(f"o{number}", f"The {name}", f"The {name} is an opera in {acts} acts. It has {10 * number + 4} songs.")
        for number, (name, acts) in enumerate(zip(_SECOND, numbers, strict=False))
    ]


def test_more_and_fewer_are_asked_of_what_both_pages_count() -> None:
    pages = read_pages(operas(), ())
    one, other = pages["The Kites"], pages["The Foxes"]
    assert counts_of(one) == ["acts", "songs"]
    drafts = {which_has_more(one, other, random.Random(seed)) for seed in range(40)}
    assert drafts == {
        (f"Which opera has {word} acts, {names}?", winner)
        for word, winner in (("more", other.name), ("fewer", one.name))
        for names in (f"{one.name} or {other.name}", f"{other.name} or {one.name}")
    }
    assert which_has_more(one, BAND, random.Random(0)) is None
    assert which_has_more(one, one, random.Random(0)) is None


async def test_more_and_fewer_are_taught_by_their_numbers_and_keep_to_their_share() -> None:
    questions = make_comparisons(read_pages(operas(), ()), 40, min_of_a_kind=2)
    counted = [one for one in questions if re.search(r"has (?:more|fewer) (?:acts|songs)", one.question)]
    assert 2 <= len(counted) <= 6
    search = Search(BM25Retriever.from_passages(operas()), k=3)
    limits = Limits(max_observation_tokens=3000, max_tokens=8000, timeout_s=None)
    encoder = TokenizerEncoder(make_tokenizer(), max_context=8192)
    kept, report = await build_coldstart(counted, search, encoder, ColdStartSettings(limits=limits, max_tokens=8000))
    assert len(kept) == len(counted), report.to_dict()["dropped"]
    assert all(
        re.search(r"\d against \d.*: (?:more|less)\. The (?:larger|smaller) is", one.segments[-1].text) for one in kept
    )


def test_all_ways_come_up_no_page_too_often_and_the_seed_decides() -> None:
    questions = made()
    assert [one.question for one in questions] == [one.question for one in made()]
    assert [one.question for one in questions] != [one.question for one in made(seed=1)]
    assert {one.dataset for one in questions} == {MADE_COMPARISON}
    assert {one.kind for one in questions} == {"parallel"}
    assert len({one.id for one in questions}) == len(questions) > 6
    used = Counter(title for one in questions for title in one.supporting_titles or ())
    assert max(used.values()) <= MAX_PER_PAGE
    assert any(one.golden_answers[0] in ("yes", "no") for one in questions)
    assert any(one.golden_answers[0] in ("painter", "rock band", "city") for one in questions)
    assert any(re.search(r"\b(?:first|earlier|last|most recently|later),", one.question) for one in questions)


def test_forbidden_names_and_questions_never_come_up() -> None:
    questions = made(forbidden=("when was amber kites formed",))
    assert questions
    assert not any("Amber Kites" in one.question for one in questions)
    taken = normalise(made()[0].question)
    assert all(normalise(one.question) != taken for one in made(forbidden=(taken,)))


def test_pages_without_dates_are_compared_in_the_other_ways() -> None:
    undated = [
        Passage(page.id, page.title, re.sub(r" in \d{4}", "", page.text)) for page in world() if page.id[0] == "b"
    ]
    questions = make_comparisons(read_pages(undated, ()), 8, min_of_a_kind=2)
    assert len(questions) == 8
    assert not any("first" in one.question or "last" in one.question for one in questions)


def test_kinds_with_few_pages_are_left_out() -> None:
    assert make_comparisons(PAGES, 40) == []


async def test_most_of_them_can_be_taught_and_every_one_is_split() -> None:
    search = Search(BM25Retriever.from_passages(world()), k=3)
    limits = Limits(max_observation_tokens=3000, max_tokens=8000, timeout_s=None)
    questions = made()
    encoder = TokenizerEncoder(make_tokenizer(), max_context=8192)
    kept, report = await build_coldstart(questions, search, encoder, ColdStartSettings(limits=limits, max_tokens=8000))
    assert len(kept) >= 0.8 * len(questions), report.to_dict()["dropped"]
    assert all(one.is_split and one.num_llm_calls == 2 for one in kept)
    asked = {question.id: question.golden_answers[0] for question in questions}
    assert all(one.answer == asked[one.id] for one in kept)


def test_a_run_keeps_as_many_as_asked_for_and_says_when_there_are_fewer(folder: Path) -> None:
    # More than the maker needs: a quarter of all pages is kept back for the evaluation sets.
    names = [f"{first} {second}" for first in ("Amber", "Copper", "Velvet", "Marble", "Silent") for second in _SECOND]
    bands = [
        Passage(f"b{number}", name, f"{name} is a rock band. It was formed in {1950 + number} in a harbour.")
        for number, name in enumerate(names)
    ]
    row = {"question": "when was the lighthouse of Amber Kites formed", "golden_answers": ["1950"], "kind": "single"}
    recipe = recipe_in(folder, [row], bands, num_made_comparisons=2, num_made_chains=4)
    said: list[str] = []
    report = coldstart_run.run_coldstart(recipe, said.append)
    assert report["num_made"] == {MADE_COMPARISON: 2}
    assert said[-2:] == ["made from passages, sequential: 0 of 4", "made from passages, parallel: 2 of 2"]
    for twin in ("parallel", "sequential"):
        rows = read_trajectories(folder / "out" / f"{twin}.jsonl")
        assert sum(one.dataset == MADE_COMPARISON for one in rows) == 2

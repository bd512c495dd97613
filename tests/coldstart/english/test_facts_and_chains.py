"""Facts and chains made from pages: what is taken out, how it is asked for, what is never used."""

from __future__ import annotations

import re

import pytest

from parallelsearch.answers import normalise
from parallelsearch.coldstart.english.evidence import find_phrase
from parallelsearch.coldstart.english.from_pages.facts_and_chains import (
    MADE_CHAIN,
    MADE_FACT,
    make_chains,
    make_facts,
    read_links,
)
from parallelsearch.coldstart.english.from_pages.pages import read_pages
from parallelsearch.coldstart.rules import load_rules
from parallelsearch.retrieval.base import Passage

_CITIES = ("Askvik", "Borgsund", "Dalholm", "Elvestad", "Fjordnes", "Grenvik", "Holmdal", "Innsund")
_BANDS = ("Amber Kites", "Blue Lanterns", "Copper Foxes", "Dusty Organs", "Early Ferries", "Faded Maps")


def pages() -> list[Passage]:
    """A small world: cities, bands from them, albums by the bands."""
    made = [
        Passage(
            f"c{number}",
            name,
            f"{name} is a harbour city in the north. It was founded in {1800 + number}. {name} has about {4000 + number} inhabitants.",
        )
        for number, name in enumerate(_CITIES)
    ]
    made += [
        Passage(
            f"b{number}",
            name,
            f"{name} are a folk rock band. They were formed in {_CITIES[number]} in {1970 + number}. "
            f"They released how songs of sailors. They played for {number + 3} seasons. They won a prize in {1990 + number}.",
        )
        for number, name in enumerate(_BANDS)
    ]
    made += [
        Passage(
            f"a{number}",
            f"Night Tide {name}",
            f"Night Tide {name} is a live album by the folk rock band {name}. It was released on {number + 1} May 1999.",
        )
        for number, name in enumerate(_BANDS)
    ]
    made += [
        Passage(
            f"l{number}",
            f"Harbour Songs {number}",
            f"Harbour Songs {number} is a studio album by the folk rock band {name}. It was recorded in {_CITIES[number]}.",
        )
        for number, name in enumerate(_BANDS)
    ]
    return made  # fmt: skip


def by_title() -> dict[str, Passage]:
    return {page.title: page for page in pages()}


class TestPages:
    def test_what_a_page_is_and_what_it_tells(self) -> None:
        page = read_pages(pages(), ())["Copper Foxes"]
        assert page.noun == "folk rock band"
        assert "were formed in what city" in {fact.in_place for fact in page.facts}
        assert {"Dalholm", "1972", "5", "1992"} <= {fact.answer for fact in page.facts}

    def test_a_place_is_asked_for_by_what_its_own_page_says_it_is(self) -> None:
        facts = read_pages(pages(), ())["Copper Foxes"].facts
        assert {fact.asked for fact in facts if fact.answer == "Dalholm"} == {"what city"}

    def test_needed_pages_are_left_out(self) -> None:
        assert "Dalholm" not in read_pages(pages(), (), ["Dalholm"])

    def test_what_a_forbidden_question_names_is_not_named(self) -> None:
        found = read_pages(pages(), [normalise("When were the Copper Foxes formed?")])
        assert not found["Copper Foxes"].is_open
        assert found["Blue Lanterns"].is_open

    def test_a_name_of_two_pages_is_not_used(self) -> None:
        twice = [*pages(), Passage("x", "Copper Foxes (film)", "Copper Foxes is a comedy film about foxes.")]
        assert "Copper Foxes" not in read_pages(twice, ())

    def test_a_sentence_cut_off_at_the_end_tells_nothing(self) -> None:
        page = Passage(
            "x", "Old Mill", "Old Mill is a stone building. It was erected in 1850. It was sold in 1900 to the"
        )
        assert [fact.answer for fact in read_pages([page], ())["Old Mill"].facts] == ["1850"]


class TestFacts:
    def test_the_answer_stands_on_the_page_and_not_in_the_question(self) -> None:
        made = make_facts(read_pages(pages(), ()), 100)
        assert len(made) >= 20
        for question in made:
            (title,) = question.supporting_titles or ()
            assert (question.kind, question.dataset) == ("single", MADE_FACT)
            assert find_phrase(by_title()[title].text, question.golden_answers[0])
            assert not find_phrase(question.question, question.golden_answers[0])
            assert re.search(r"\b(?:what|how many)\b.*\?$", question.question, re.IGNORECASE)

    def test_fronted_where_the_words_allow_it(self) -> None:
        texts = {
            question.question for seed in range(8) for question in make_facts(read_pages(pages(), ()), 100, seed=seed)
        }
        assert "In what year was Askvik founded?" in texts
        assert "In what city were Copper Foxes formed?" in texts

    def test_the_seed_decides(self) -> None:
        found = read_pages(pages(), ())
        assert make_facts(found, 5, seed=1) == make_facts(found, 5, seed=1)
        assert make_facts(found, 20, seed=1) != make_facts(found, 20, seed=2)

    def test_a_forbidden_question_does_not_come_out(self) -> None:
        found = read_pages(pages(), ())
        first = make_facts(found, 1)[0]
        key = normalise(first.question)
        assert key not in {normalise(one.question) for one in make_facts(found, 100, forbidden=[key])}


class TestChains:
    def test_the_bridge_is_described_and_not_named(self) -> None:
        found = read_pages(pages(), ())
        made = make_chains(found, read_links(pages(), found), 50)
        assert made
        for question in made:
            first, second = question.supporting_titles or ()
            assert (question.kind, question.dataset) == ("sequential", MADE_CHAIN)
            assert find_phrase(by_title()[first].text, found[second].name)
            assert not find_phrase(question.question, found[second].name)
            assert find_phrase(by_title()[second].text, question.golden_answers[0])
            assert not find_phrase(by_title()[first].text, question.golden_answers[0])

    def test_how_one_reads(self) -> None:
        found = read_pages(pages(), ())
        texts = {
            one.question for seed in range(6) for one in make_chains(found, read_links(pages(), found), 50, seed=seed)
        }
        assert (
            "Harbour Songs 2 is a studio album by a folk rock band that were formed in what city?" not in texts
        )  # it is on the first page
        assert "Harbour Songs 2 is a studio album by a folk rock band that won a prize in what year?" in texts

    def test_a_page_whose_name_tells_the_bridge_does_not_lead_to_it(self) -> None:
        found = read_pages(pages(), ())
        assert not [link for link in read_links(pages(), found) if link.first.startswith("Night Tide")]

    def test_a_named_page_may_be_led_to_but_not_from(self) -> None:
        forbidden = [normalise("Who recorded Harbour Songs 1?"), normalise("Where are the Copper Foxes from?")]
        found = read_pages(pages(), forbidden)
        links = read_links(pages(), found)
        assert "Harbour Songs 1" not in {link.first for link in links}
        assert "Copper Foxes" in {link.second for link in links}


@pytest.mark.parametrize(("num_facts", "num_chains"), [(3, 0), (0, 2), (0, 0)])
def test_as_many_as_asked_for(num_facts: int, num_chains: int) -> None:
    made = load_rules("english").make(
        pages(), {"single": num_facts, "sequential": num_chains}, seed=0, forbidden=(), needed=()
    )
    assert [one.dataset for one in made].count(MADE_FACT) == num_facts
    assert [one.dataset for one in made].count(MADE_CHAIN) == num_chains
    assert len({one.id for one in made}) == len(made)

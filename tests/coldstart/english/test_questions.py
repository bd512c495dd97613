"""What an English question asks, by its words."""

from __future__ import annotations

import pytest

from parallelsearch.coldstart.english import questions
from parallelsearch.trajectory import Kind


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("Telescope Hill is near the hamlet that is in what county town?", "the hamlet that is in what county town"),
        ("A fencer who called for a boycott of what retailer whose name means crossroads?", "boycott of what retailer whose name means crossroads"),
        ("Who designed the 1954 Plymouth Explorer?", "Who designed the 1954 Plymouth Explorer"),
        ("Name the river.", ""),
        ("The hospital at which Joseph Avellone was employed as a surgeon is known for which fields?", "as a surgeon is known for which fields"),
        ("In what year did the hall, which was built by a guild, open?", "what year did the hall, which was built by a guild, open"),
    ],
)  # fmt: skip
def test_what_is_asked_is_said_in_the_questions_own_words(question: str, words: str) -> None:
    assert questions.asked_words(question) == words


@pytest.mark.parametrize(
    ("question", "names", "stem"),
    [
        ("Which magazine is twice monthly, Reason or CCM Magazine?", ("Reason", "CCM Magazine"), "magazine is twice monthly"),
        ("Are both Tulane University and Princeton University found in Ohio?", ("Tulane University", "Princeton University"), "found in Ohio"),
        ("Are the operas \"La Périchole\" and \"Mignon\" by the same person?", ("La Périchole", "Mignon"), "the operas by the same person"),
        ("Which board game, Focus or Twilight Imperium, is older?", ("Focus", "Twilight Imperium"), "board game, is older"),
        ("750 7th Avenue and 101 Park Avenue, are located in which city?", ("750 7th Avenue", "101 Park Avenue"), "located in which city"),
        ("Have Ada Brenn and Carl Dorn been painters?", ("Ada Brenn", "Carl Dorn"), "been painters"),
        ("What do Ada Brenn and Carl Dorn have in common?", ("Ada Brenn", "Carl Dorn"), "have in common"),
        ("In between Ada Brenn and Carl Dorn who was a painter?", ("Ada Brenn", "Carl Dorn"), "a painter"),
        ("Was It or Up edited and released first?", ("It", "Up"), "edited and released first"),
        ("Are the two directors of the same country?", ("Ada Brenn", "Carl Dorn"), ""),
    ],
)  # fmt: skip
def test_what_a_comparison_asks_is_said_without_its_names(question: str, names: tuple[str, str], stem: str) -> None:
    assert questions.stem_of(question, names) == stem


@pytest.mark.parametrize(
    ("question", "ask"),
    [
        ("Who is older, A or B?", questions.Ask("birth", -1)),
        ("Who was born later, A or B?", questions.Ask("birth", 1)),
        ("Which band was formed first, A or B?", questions.Ask("date", -1)),
        ("Which genus has more species, A or B?", questions.Ask("count", 1)),
        ("Are A and B from the same country?", questions.Ask("country", 0, True)),
        ("Do A and B have different nationalities?", questions.Ask("nationality", 0, True, True)),
        ("Are both A and B novelists?", questions.Ask("trait", 0, True)),
        ("Are A and B in the same family?", questions.Ask("same", 0, True)),
        ("Which writer was a pilot, A or B?", questions.Ask("trait")),
        ("What do A and B have in common?", questions.Ask("common")),
    ],
)
def test_what_a_comparison_asks(question: str, ask: questions.Ask) -> None:
    assert questions.aspect_of(question) == ask


def test_a_mention_is_the_questions_own_spelling() -> None:
    assert questions.mention_of("Kane (Dutch band)", "Is Kane older?") == "Kane"
    assert questions.mention_of("The Wombats", "Are both Sleep Room and The Wombats bands?") == "The Wombats"
    assert questions.mention_of("Sarah Caudwell", "Is Sarah Caudwell a writer?") == "Sarah Caudwell"
    assert questions.mention_of("Oslo", "Is Bergen larger?") is None


@pytest.mark.parametrize(
    ("question", "kind"),
    [
        ("Who is older, Claude Monet or Camille Pissarro?", "parallel"),
        ("Are Oslo and Bergen both in Norway?", "parallel"),
        ("In what year was the author of the novel that the film is based on born?", "sequential"),
        ("when did oslo become the capital", "single"),
    ],
)
def test_ones_own_questions_get_a_kind_by_their_words(question: str, kind: Kind) -> None:
    assert questions.guess_kind(question) == kind


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("Who was born on 22 September 1877, Ada Brenn or Carl Dorn?", "born"),
        ("Who was born in 1795, Ada Brenn or Carl Dorn?", "born"),
        ("Who was ordained deacon in 1873, Ada Brenn or Carl Dorn?", "ordained deacon"),
    ],
)
def test_a_query_asks_for_more_than_a_number(question: str, words: str) -> None:
    ask = questions.aspect_of(question)
    assert questions.relation_words(question, ("Ada Brenn", "Carl Dorn"), ask, 2) == words

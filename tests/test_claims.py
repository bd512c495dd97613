"""What a model notes of a passage, held against the passage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallelsearch.claims import misread_notes

PASSAGES = {
    1: "Claude Monet. Claude Monet was a French painter born in Paris on 14 November 1840.",
    2: "Camille Pissarro. Camille Pissarro was born on Saint Thomas on 10 July 1830.",
    3: "Mont Blanc. Mont Blanc is 4,806 metres high. It was first climbed in 1786, by Jacques Balmat and Michel Paccard.",
}


def missing(text: str) -> list[tuple[int, tuple[str, ...]]]:
    return [(note.number, note.missing) for note in misread_notes(text, PASSAGES)]


@pytest.mark.parametrize(
    "text",
    [
        "Asked for: the earlier. [1] Claude Monet was born 1840. [2] Camille Pissarro was born 1830. 1840 is after 1830.",
        "[1] Monet: born 14 November 1840. Latest so far: 1900, somebody else.\n[2] Pissarro: born 10 July 1830.",
        "[3] Mont Blanc: is 4,806 metres high. That is 4,806. 4,806 against 2,000: more.",
        "[1] Monet: number of years 1840 against 1830, 4 digits each, 4 3: more.",
        "[1] CLAUDE MONET: Born in paris.",  # letters and accents are no matter
        "[1] Monet: 14 November, 11-14. [2] 10 July, 07-10.",
        "[1] The French painter: born in Paris on 14 November.",
        "[1] Oscar Claude Monet: born 1840.",  # a name that is longer than the page's
        "[1] Monet: a French painter. older is said of Camille Pissarro.",
        "[7] Auguste Renoir: born 1841.",  # no such passage: it is told elsewhere
        "Born in 1999 [1]. It was in 1999 [1], 77.",  # a number behind a sentence is no note
        "[1]",
        "[1] ",
        "",
    ],
)
def test_a_note_that_its_passage_bears_out(text: str) -> None:
    assert missing(text) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[1] Claude Monet: born 14 November 1841.", [(1, ("1841",))]),
        ("[2] Claude Monet: born 14 November 1840.", [(2, ("14", "1840", "Claude", "Monet", "November"))]),
        ("Asked for: it. [1] Monet was born 1830. [2] Pissarro was born 1840.", [(1, ("1830",)), (2, ("1840",))]),
        ("[3] Mont Blanc: is 4,807 metres high.", [(3, ("4,807",))]),
        ("[1] Camille Pissarro: a French painter.", [(1, ("Camille", "Pissarro"))]),
        ("[3] Jacques Balmat: born in Chamonix in Savoy.", [(3, ("Chamonix", "Savoy"))]),
        ("So it is. [1] Monet died 5 December 1926 against 1903: after.", [(1, ("5", "1926", "December"))]),
    ],
)
def test_a_note_whose_passage_says_something_else(text: str, expected: list[tuple[int, tuple[str, ...]]]) -> None:
    assert [(number, tuple(sorted(words))) for number, words in missing(text)] == [
        (number, tuple(sorted(words))) for number, words in expected
    ]


@given(st.lists(st.sampled_from(PASSAGES[3].split()), max_size=12), st.sampled_from(["\n", " ", ". "]))
def test_words_of_the_passage_are_never_misread(words: list[str], joined: str) -> None:
    assert missing(f"[3] {joined.join(words)}") == []

"""Lessons for English questions: comparisons, chains, single facts, over a small world of painters."""

from __future__ import annotations

import re

import pytest
from painters import BIRTH, CHAIN, PAGES, SINGLE, reason, taught, turns

from parallelsearch import grammar
from parallelsearch.coldstart.run import TokenizerEncoder
from parallelsearch.retrieval.base import Passage
from parallelsearch.retrieval.bm25 import BM25Retriever
from parallelsearch.search import Search
from parallelsearch.trajectory import Question

pytest.importorskip("transformers")


async def test_a_comparison_is_split_and_the_deciding_evidence_is_quoted_before_the_answer(
    search: Search, encoder: TokenizerEncoder
) -> None:
    trajectory = await taught(BIRTH, search, encoder)
    first, last = turns(trajectory)
    assert first.queries == ("Ada Brenn painter born", "Carl Dorn painter born")
    assert trajectory.is_split
    assert trajectory.num_llm_calls == 2
    assert last.answer == "Carl Dorn"
    assert last.thought is not None
    assert "1901" in last.thought
    assert last.thought.startswith("Asked for: the earlier.")
    assert last.thought.endswith("1901 is after 1888. The earlier is 1888: Carl Dorn.")


async def test_the_sequential_twin_asks_one_query_a_turn_with_the_sequential_prompt(
    search: Search, encoder: TokenizerEncoder
) -> None:
    trajectory = await taught(BIRTH, search, encoder, "sequential")
    first, second, last = turns(trajectory)
    assert (len(first.queries), len(second.queries), last.answer) == (1, 1, "Carl Dorn")
    assert "4 May 1901" in (second.thought or "")
    assert grammar.SEPARATOR not in trajectory.segments[0].text


async def test_a_chain_names_in_its_second_query_what_the_first_search_brought(
    search: Search, encoder: TokenizerEncoder
) -> None:
    trajectory = await taught(CHAIN, search, encoder)
    first, second, last = turns(trajectory)
    assert "Tom Hale" not in first.queries[0]
    assert second.queries[0].startswith("Tom Hale")
    assert "taught Tom Hale" in (second.thought or "")
    assert last.answer == "Lund Prize"
    assert (last.thought or "").startswith("Asked of Tom Hale: ")
    assert not trajectory.is_split


async def test_what_leads_on_is_quoted_from_the_page_that_says_so_not_from_where_it_leads(
    encoder: TokenizerEncoder,
) -> None:
    pages = {
        **PAGES,
        "Tom Hale": "Tom Hale was a student of the Oslo academy, where Ada Brenn taught. He won the Lund Prize.",
    }
    passages = [Passage(f"p{number}", title, text) for number, (title, text) in enumerate(pages.items())]
    trajectory = await taught(CHAIN, Search(BM25Retriever.from_passages(passages), k=3), encoder)
    _, second, last = turns(trajectory)
    assert "Ada Brenn: " in (second.thought or "")
    assert "Tom Hale: " in (last.thought or "")


async def test_without_supporting_titles_the_bridge_is_found_by_search(
    search: Search, encoder: TokenizerEncoder
) -> None:
    bare = Question(CHAIN.question, CHAIN.golden_answers, id="c2", kind="sequential")
    trajectory = await taught(bare, search, encoder)
    assert turns(trajectory)[1].queries[0].startswith("Tom Hale")


async def test_a_single_fact_takes_one_search(search: Search, encoder: TokenizerEncoder) -> None:
    trajectory = await taught(SINGLE, search, encoder)
    assert [len(turn.queries) for turn in turns(trajectory)] == [1, 0]
    assert trajectory.answer == "brown"


async def test_missing_words_prove_nothing_but_another_nationality_does(
    search: Search, encoder: TokenizerEncoder
) -> None:
    def ask(text: str, answer: str) -> Question:
        return Question(text, [answer], id=f"{text}{answer}", kind="parallel")

    artists = "Are both Ada Brenn and Tom Hale artists?"  # a painter and a sculptor: the word itself stands on no page
    assert turns(await taught(ask(artists, "yes"), search, encoder))[-1].answer == "yes"
    painters = "Are both Ada Brenn and Nils Berg painters?"
    assert await reason(ask(painters, "no"), search, encoder) == "evidence_disagrees"
    norwegian = "Are both Ada Brenn and Carl Dorn Norwegian painters?"
    assert await reason(ask(norwegian, "yes"), search, encoder) == "evidence_disagrees"
    last = turns(await taught(ask(norwegian, "no"), search, encoder))[-1]
    assert re.search(
        r"Ada Brenn: [^.]+\. Is that Norwegian painters\? Yes\. .*Carl Dorn: [^.]+\. Is that Norwegian painters\? No\. So no\.",
        last.thought or "",
    )


async def test_whether_two_things_share_something_is_quoted_from_both(encoder: TokenizerEncoder) -> None:
    texts = {
        "abcd": "abcd is a Debian package: a game. It belongs to the section games. It takes 3 kB.",
        "efgh": "efgh is a Debian package: a section of a game. It belongs to the section fonts. It takes 5 kB.",
    }
    passages = [Passage(title, title, text) for title, text in texts.items()]
    question = Question(
        "Do the Debian packages abcd and efgh belong to the same section?",
        ["no"],
        id="s",
        kind="parallel",
        supporting_titles=list(texts),
    )
    trajectory = await taught(question, Search(BM25Retriever.from_passages(passages), k=2), encoder)
    told = turns(trajectory)[-1].thought or ""
    assert "belongs to the section games" in told
    assert "belongs to the section fonts" in told


@pytest.mark.parametrize(
    ("question", "answer", "begins"),
    [
        ("Were Ada Brenn and Carl Dorn both painters?", "yes", "Asked for: yes or no, painters. [1] Ada Brenn:"),
        ("Who was a sculptor, Ada Brenn or Tom Hale?", "Tom Hale", "Asked for: one of the two, a sculptor. [1] Ada Brenn:"),
    ],
)  # fmt: skip
async def test_the_last_thought_says_first_what_kind_of_answer_is_wanted(
    search: Search, encoder: TokenizerEncoder, question: str, answer: str, begins: str
) -> None:
    for mode in ("parallel", "sequential"):
        asked = Question(question, [answer], id="t", kind="parallel")
        assert (turns(await taught(asked, search, encoder, mode))[-1].thought or "").startswith(begins)


async def test_a_choice_is_made_by_the_words_that_only_one_page_has(search: Search, encoder: TokenizerEncoder) -> None:
    choice = Question("Who was a sculptor, Ada Brenn or Tom Hale?", ["Tom Hale"], id="c", kind="parallel")
    thought = grammar.parse_turn((await taught(choice, search, encoder)).segments[-1].text).thought or ""
    assert thought.index("Ada Brenn:") < thought.index("Tom Hale:") < thought.index("sculptor is said of")
    assert thought.endswith("sculptor is said of Tom Hale. So Tom Hale.")
    assert "Is that" not in thought
    other = Question("Who was a painter, Ada Brenn or Tom Hale?", ["Tom Hale"], id="c", kind="parallel")
    assert await reason(other, search, encoder) == "evidence_disagrees"


async def test_more_of_something_without_numbers_is_decided_by_words_if_there_are_two(
    encoder: TokenizerEncoder,
) -> None:
    pages = [
        Passage("g", "Mount Gral", "Mount Gral is the third highest mountain of the world."),
        Passage("h", "Mount Hemm", "Mount Hemm is a mountain in the north."),
    ]
    over = Search(BM25Retriever.from_passages(pages), k=2)

    def ask(text: str, answer: str) -> Question:
        return Question(text, [answer], id=text, kind="parallel")

    peak = ask("Which peak is the third highest in the world, Mount Gral or Mount Hemm?", "Mount Gral")
    assert "is said of Mount Gral. So Mount Gral." in (await taught(peak, over, encoder)).segments[-1].text
    one_word = ask("Which mountain has more snow in the north, Mount Gral or Mount Hemm?", "Mount Hemm")
    assert await reason(one_word, over, encoder) == "no_number_found"


async def test_a_chain_whose_answer_stands_beside_the_link_alone_is_dropped(encoder: TokenizerEncoder) -> None:
    """A policy that is taught to quote the linking sentence twice does so whatever is asked."""
    pages = [
        Passage("1", "Old Mill", "Old Mill is a mill in Velden. It was built by Rosa Lind for a Danish brewer."),
        Passage("2", "Rosa Lind", "Rosa Lind was an architect. She drew many mills."),
        Passage("3", "Kelp", "Kelp is a large brown seaweed."),
    ]
    question = Question(
        "What was the nationality of the brewer that the architect of Old Mill built it for?",
        ["Danish"],
        id="b",
        kind="sequential",
        supporting_titles=["Old Mill", "Rosa Lind"],
    )
    assert await reason(question, Search(BM25Retriever.from_passages(pages), k=3), encoder) == "answer_beside_link"
    pages[1] = Passage("2", "Rosa Lind", "Rosa Lind was an architect. She drew a mill for a Danish brewer.")
    last = turns(await taught(question, Search(BM25Retriever.from_passages(pages), k=3), encoder))[-1]
    assert "Rosa Lind: She drew a mill for a Danish brewer" in (last.thought or "")

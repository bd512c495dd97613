"""Lessons in abstaining: the search as it was taught, the evidence gone, and the answer that there is none."""

from __future__ import annotations

import pytest
from painters import BIRTH, CHAIN, PAGES, SINGLE, settings, taught, turns

from parallelsearch.answers import NOT_FOUND
from parallelsearch.coldstart.lesson import Drop
from parallelsearch.coldstart.run import TokenizerEncoder
from parallelsearch.coldstart.withheld import WITHHELD, evidence_of, unanswerable, withheld, withhold
from parallelsearch.grounding import abstention_of
from parallelsearch.retrieval.base import Passage
from parallelsearch.retrieval.bm25 import BM25Retriever
from parallelsearch.retrieval.without import Without
from parallelsearch.search import Search
from parallelsearch.trajectory import Question

pytest.importorskip("transformers")


async def test_a_retriever_without_some_passages_still_gives_k(search: Search) -> None:
    whole, less = [
        [hit.title for hit in (await retriever.search_many(["Norwegian painter Oslo"], 3))[0]]
        for retriever in (search.retriever, Without(search.retriever, ["p0", "p4"]))
    ]
    assert len(whole) == len(less) == 3
    assert {"Ada Brenn", "Nils Berg"} & set(whole)
    assert not {"Ada Brenn", "Nils Berg"} & set(less)


@pytest.mark.parametrize("mode", ["parallel", "sequential"])
@pytest.mark.parametrize("question", [BIRTH, CHAIN, SINGLE], ids=lambda one: one.kind)
async def test_what_is_not_there_is_not_answered(question, mode, search: Search, encoder: TokenizerEncoder) -> None:
    with_evidence = await taught(question, search, encoder, mode)
    made = await withheld(with_evidence, search, encoder, settings(mode))
    assert made.segments[1] == with_evidence.segments[1]  # the same first search
    assert not evidence_of(with_evidence) & {hit.id for query in made.queries for hit in query.hits}
    assert turns(made)[-1].answer == made.answer == NOT_FOUND
    assert (made.golden_answers, made.id) == ([NOT_FOUND], f"{question.id}{WITHHELD}")
    assert abstention_of(made).reason == "not_found"  # the form by which the front doors know it
    assert made.has_token_ids
    assert sum(made.loss_mask()) > 0


async def test_no_lesson_teaches_to_look_away(encoder: TokenizerEncoder) -> None:
    """Where the answer is still to be found in what is left, there is no lesson."""
    pages = {**PAGES, "Seaweed": "Seaweed of many kinds: kelp is brown, dulse is red."}
    passages = [Passage(title, title, text) for title, text in pages.items()]
    trajectory = await taught(SINGLE, Search(BM25Retriever.from_passages(passages), k=1), encoder)
    assert len(evidence_of(trajectory)) == 1  # the other page that says so was not shown, and comes up now
    wider = Search(BM25Retriever.from_passages(passages), k=1)
    with pytest.raises(Drop, match="evidence_still_there"):
        await withheld(trajectory, wider, encoder, settings())
    assert await withhold([trajectory], wider, encoder, settings()) == []


# ---- for RL ----------------------------------------------------------------------------------------------------------


async def test_questions_that_the_corpus_does_not_answer(search: Search) -> None:
    """What a passage answers is left out, however the answer is known: by its words, its page, or the thing asked about."""
    asked = [
        Question("Who composed The Winter Kettle?", ["Olga Prine"], "unknown", kind="single"),
        Question("Who mined tin at Polgarth?", ["Hugh Tresco"], "also-unknown", kind="sequential"),
        Question("Was Zora Quell a miner?", ["yes"], "computed", kind="single"),
        Question("Who taught at the academy?", ["Somebody"], "supported", supporting_titles=["Ada Brenn"]),
        BIRTH,
        CHAIN,
        SINGLE,
    ]
    found = await unanswerable(asked, search, 10, seed=0)
    assert {one.id for one in found} == {f"unknown{WITHHELD}", f"also-unknown{WITHHELD}"}
    assert all(one.golden_answers == [NOT_FOUND] for one in found)
    assert len(await unanswerable(asked, search, 1, seed=0)) == 1
    assert await unanswerable(asked, search, 0, seed=0) == []

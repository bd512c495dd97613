"""Written decompositions: rounds of independent steps."""

from __future__ import annotations

import pytest
from painters import reason, taught, turns

from parallelsearch.coldstart.run import TokenizerEncoder
from parallelsearch.coldstart.written import rounds_of
from parallelsearch.errors import UsageError
from parallelsearch.search import Search
from parallelsearch.trajectory import Question

pytest.importorskip("transformers")


async def test_a_decomposition_with_two_levels_becomes_two_parallel_rounds(
    search: Search, encoder: TokenizerEncoder
) -> None:
    steps = [
        {"question": "Who directed the film Blue Gate?", "answer": "Ira Moss"},
        {"question": "Who directed the film Iron Lake?", "answer": "Ann Poe"},
        {"question": "When was #1 born?", "answer": "1950"},
        {"question": "When was #2 born?", "answer": "1941"},
    ]
    question = Question(
        "Which film has the older director, Blue Gate or Iron Lake?",
        ["Iron Lake"],
        id="m1",
        kind="mixed",
        metadata={"decomposition": steps},
    )
    trajectory = await taught(question, search, encoder)
    assert [turn.queries for turn in turns(trajectory)] == [
        ("Who directed the film Blue Gate", "Who directed the film Iron Lake"),
        ("When was Ira Moss born", "When was Ann Poe born"),
        (),
    ]


async def test_the_answer_is_written_as_the_page_writes_it(search: Search, encoder: TokenizerEncoder) -> None:
    steps = [{"question": "What is Oslo the capital of?", "answer": "Norway"}]
    question = Question("Oslo?", ["N O", "Norway"], id="m3", kind="single", metadata={"decomposition": steps})
    assert turns(await taught(question, search, encoder))[-1].answer == "Norway"


def test_steps_are_ordered_into_rounds_by_what_they_refer_to() -> None:
    assert rounds_of(["a", "b", "c of #1", "d of #2 and #3", "e"]) == [[0, 1, 4], [2], [3]]
    assert rounds_of([]) == []
    with pytest.raises(UsageError, match="refers to #2"):
        rounds_of(["a of #2", "b"])


@pytest.mark.parametrize(
    "step",
    [{"question": "Who directed #2?", "answer": "Ira Moss"}, {"answer": "Ira Moss"}, {"question": "", "answer": "x"}],
)
async def test_a_decomposition_that_cannot_be_asked_is_dropped(
    step: dict[str, str], search: Search, encoder: TokenizerEncoder
) -> None:
    question = Question("Who?", ["Ira Moss"], id="m2", kind="mixed", metadata={"decomposition": [step]})
    assert await reason(question, search, encoder) == "bad_decomposition"

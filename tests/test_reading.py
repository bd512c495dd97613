"""Another model reads what the policy found and answers: what it is asked, what its text says, and what the record keeps."""

from __future__ import annotations

import json

import pytest

from parallelsearch import Agent
from parallelsearch.errors import PolicyError
from parallelsearch.evaluation.metrics import row_of
from parallelsearch.grammar import render_turn
from parallelsearch.limits import Limits, Prices
from parallelsearch.policy.base import Generation, Policy
from parallelsearch.policy.scripted import ScriptedPolicy
from parallelsearch.reading import answer_in, reading_prompt
from parallelsearch.retrieval.base import Hit, Passage
from parallelsearch.retrieval.bm25 import BM25Retriever
from parallelsearch.search import Search
from parallelsearch.trajectory import trajectory_from_dict

QUESTION = "When was Claude Monet born?"
TURNS = {QUESTION: [render_turn("I look.", queries=["Claude Monet born"]), render_turn("Read badly.", answer="1841")]}
PASSAGES = [
    Passage("m", "Claude Monet", "Claude Monet was born in 1840."),
    Passage("r", "Auguste Renoir", "Auguste Renoir, a friend of Claude Monet, was born in 1841."),
]


class Reader(ScriptedPolicy):
    """Answers with a written text, and keeps what it was asked."""

    def __init__(self, text: str) -> None:
        super().__init__({QUESTION: [text]}, name="reader")
        self.asked: list[str] = []

    def prompt(self, text, question):
        self.asked.append(text)
        return super().prompt(text, question)


class Broken(Policy):
    name = "broken"

    async def generate(self, segments, **_) -> Generation:
        raise PolicyError("it has no connection")


def agent_with(reader: Policy | None, **options) -> Agent:
    return Agent(ScriptedPolicy(TURNS), Search(BM25Retriever.from_passages(PASSAGES)), answer_with=reader, **options)


def test_another_model_reads_what_was_found_and_answers():
    reader = Reader("The first passage says so. <answer> 1840 [1] </answer>")
    with agent_with(reader) as agent:
        with agent.stream(QUESTION) as stream:
            events = list(stream)
        done = stream.trajectory
        assert agent.ask(QUESTION, answer_with=None).answer == "1841"
    assert (done.answer, done.reading.own_answer, done.reading.error) == ("1840 [1]", "1841", None)
    assert done.reading.policy["kind"] == "reader"
    assert done.num_llm_calls == 3  # two turns of the policy and the reader's call
    assert "[1] Claude Monet: Claude Monet was born in 1840." in reader.asked[0]
    assert "Read badly" not in reader.asked[0]  # it reads passages, not the policy's mind
    # One answer is told, the reader's, after it was said who writes it.
    told = [(event.kind, event.text) for event in events if event.kind in ("reading", "answer")]
    assert told == [("reading", "reader (written turns, no model)"), ("answer", "1840 [1]")]
    # What the policy wrote is the record's own: nothing of the reader is trained on.
    assert [segment.author for segment in done.segments] == ["prompt", "model", "search", "model"]
    assert len(done.turns) == 2
    assert done.invalid_turns == []
    assert trajectory_from_dict(json.loads(done.to_json())).reading == done.reading


def test_a_reader_that_fails_leaves_the_policys_own_answer():
    with agent_with(Broken()) as agent:
        events = []
        done = agent.ask(QUESTION, events.append)
    assert (done.answer, done.stop, done.reading.error) == ("1841", "answer", "it has no connection")
    assert [event.text for event in events if event.kind == "answer"] == ["1841"]


def test_a_reader_is_not_asked_where_its_call_would_pass_what_a_question_may_cost():
    reader = Reader("<answer> 1840 </answer>")
    with agent_with(reader) as agent:
        whole = agent.ask(QUESTION)
        row = row_of(whole, prices=Prices(1000, 1000))
        # What the policy's own calls cost, and what the reader's adds: it reads the passages and writes its answer.
        alone = row_of(agent.ask(QUESTION, answer_with=None), prices=Prices(1000, 1000))
        assert row.cost > alone.cost
        assert (row.num_llm_calls, alone.num_llm_calls) == (3, 2)
        assert row.num_input_tokens == alone.num_input_tokens + whole.reading.num_read
        assert row.num_output_tokens == alone.num_output_tokens + whole.reading.num_tokens
        reader.count_tokens = lambda text: 30_000  # as it would, were the passages long
        capped = agent.ask(QUESTION, limits=Limits(max_billed_tokens=20_000))
    assert (capped.answer, capped.num_llm_calls) == ("1841", 2)
    assert "would have passed what a question may cost" in capped.reading.error
    assert len(reader.asked) == 1


def test_what_a_reader_costs_is_kept_for_it_while_the_policy_searches():
    """From the least with which the reader is asked at all, it is asked with every sum, and no sum is passed."""
    searches = [render_turn("Again.", queries=[f"Claude Monet born {n}"]) for n in range(4)]
    turns = {QUESTION: [*searches, render_turn("Read badly.", answer="1841")]}
    limits = {"max_tokens_per_turn": 40, "max_observation_tokens": 64, "tokens_per_subquery": 8}
    search = Search(BM25Retriever.from_passages(PASSAGES))
    with Agent(ScriptedPolicy(turns), search, answer_with=Reader("<answer> 1840 </answer>"), abstain=False) as agent:
        answers, num_searches = [], []
        for most in range(100, 3000, 50):
            done = agent.ask(QUESTION, limits=Limits(max_billed_tokens=most, **limits))
            row = row_of(done)
            assert row.num_input_tokens + row.num_output_tokens <= most
            answers.append(done.answer)
            num_searches.append(done.num_searches)
    first = answers.index("1840")
    assert set(answers[:first]) <= {None, "1841"}
    assert set(answers[first:]) == {"1840"}
    assert num_searches[first:] == sorted(num_searches[first:])
    assert num_searches[-1] == 4  # what is left over is the policy's


def test_a_reader_that_finds_nothing_is_believed():
    with agent_with(Reader("<answer> not found </answer>")) as agent:
        done = agent.ask(QUESTION)
    assert (done.answer, done.abstained.reason, done.reading.own_answer) == (None, "not_found", "1841")


def test_a_policy_that_ends_without_an_answer_still_has_a_reader():
    searches = {QUESTION: [render_turn("Again.", queries=[f"Claude Monet born {n}"]) for n in range(9)]}
    search = Search(BM25Retriever.from_passages(PASSAGES))
    with Agent(ScriptedPolicy(searches), search, answer_with=Reader("1840")) as agent:
        done = agent.ask(QUESTION)
    assert (done.answer, done.stop, done.reading.own_answer) == ("1840", "answer", None)


def test_nothing_found_is_nothing_to_read():
    reader = Reader("<answer> 1840 </answer>")
    with Agent(ScriptedPolicy(TURNS), Search(BM25Retriever.from_passages([Passage("x", "Tide", "The sea.")])),
               answer_with=reader) as agent:  # fmt: skip
        done = agent.ask(QUESTION, abstain=False)
    assert (done.answer, done.reading, reader.asked) == ("1841", None, [])


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer> 1840 </answer>", "1840"),
        ("<think> hm </think> <answer> 1840", "1840"),
        ("<think> hm </think> 1840", "1840"),
        ("1840", "1840"),
        ("", None),
        ("<answer> </answer>", None),
        ("<search> When was Monet born? </search>", None),
        ("<think> hm </think><search> Monet", None),
        ("<think> <search> is a tag </think> 1840", "1840"),
        ("word " * 80 + "\nSo it is 1840.", "So it is 1840."),
        ("<think> Monet, says [1], was born in", None),
        ("<think> " + "word " * 80 + "\nSo I look", None),
        ("<think> hm </think> \n<think> Monet was", None),
    ],
)
def test_what_a_reader_answers(text, answer):
    assert answer_in(text) == answer


def test_the_passages_are_cut_fairly_and_made_harmless():
    hits = [Hit("a", "A", "short </answer>"), Hit("b", "B", "long " * 500), Hit("c", "C", "long " * 500)]
    asked = reading_prompt("What </think> is it", hits, "", 300, lambda text: len(text) // 4)
    assert len(asked) // 4 <= 310
    assert asked.count(" ...\n") == 2
    assert "[1] A: short" in asked
    assert asked.count("</answer>") == 1  # the one that says where the answer goes
    assert "</think>" not in asked

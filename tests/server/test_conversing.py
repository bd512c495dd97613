"""Follow-ups, greetings and the chores of chat front ends: rules over words, measured on written dialogues."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parallelsearch.server.conversing import chore, leans, small_talk, standalone, title_of

DIALOGUES = json.loads((Path(__file__).parent / "dialogues.json").read_text(encoding="utf-8"))


def rewritten(dialogue: dict) -> str:
    return standalone(dialogue["asked"], [tuple(pair) for pair in dialogue["earlier"]])


def test_follow_ups_are_rewritten():
    """The figure that docs/serve.md gives: a rule that breaks is seen here, with the dialogues it breaks."""
    wrong = [(one["asked"], rewritten(one)) for one in DIALOGUES if rewritten(one) not in one["meant"]]
    assert len(DIALOGUES) == 30
    assert len(wrong) <= 1, wrong


def test_a_question_that_leans_on_nothing_stays_as_it_is():
    for question in ("Who is older, Claude Monet or Camille Pissarro?", "  Which  river is longest?  "):
        assert standalone(question, [("Who wrote Emma?", "Jane Austen")]) == question
        assert not leans(question)
    assert standalone("Where was he born?", []) == "Where was he born?"
    assert leans("Where was he born?")


@pytest.mark.parametrize(
    "text", ["Hello!", "hi", "Hey there", "Good morning!", "Hi, how are you?", "Thank you!", "bye", "help"]
)
def test_small_talk(text):
    assert small_talk(text)


@pytest.mark.parametrize(
    "text",
    ["Who sang Hello?", "Hi, who wrote Emma?", "Who are the Beatles?", "What is this river called?", "Thanks to whom?"],
)
def test_a_question_is_no_small_talk(text):
    assert small_talk(text) is None


HISTORY = "<chat_history>\nUSER: Who wrote the novel Emma?\nASSISTANT: Jane Austen\n</chat_history>"


@pytest.mark.parametrize(
    ("task", "answer"),
    [
        (f'### Task:\nA title.\n### Output:\n{{ "title": "x" }}\n{HISTORY}', '{"title": "Emma"}'),
        (f'### Task:\nTags.\n### Output:\n{{ "tags": ["x"] }}\n{HISTORY}', '{"tags": ["Emma"]}'),
        (f'### Task:\nMore.\n### Output:\n{{ "follow_ups": ["x"] }}\n{HISTORY}', '{"follow_ups": []}'),
        (f'### Task:\nSearch?\n### Output:\n{{ "queries": ["x"] }}\n{HISTORY}', '{"queries": []}'),
        (
            "Provide a short title for the conversation, five words or less.\n\nUser: Who wrote Emma?\nAI: Austen",
            "Emma",
        ),
    ],
)
def test_chores_of_front_ends(task, answer):
    assert chore(task) == answer


@pytest.mark.parametrize(
    "text", ["What is the title of the first novel by Jane Austen?", "Give me the name of the capital of France.",
             "Which film has the title Conversation?", "Name the title of the book about a conversation"],
)  # fmt: skip
def test_a_question_is_no_chore(text):
    assert chore(text) is None


@pytest.mark.parametrize(
    ("question", "title"),
    [
        ("Who is older, Claude Monet or Camille Pissarro?", "Claude Monet or Camille Pissarro"),
        ("what do cats eat?", "What do cats eat"),
        ("???", "New conversation"),
    ],
)
def test_titles(question, title):
    assert title_of(question) == title

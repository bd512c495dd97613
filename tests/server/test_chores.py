"""The chores of chat front ends: told from questions by their form, in the words of many front ends."""

from __future__ import annotations

import pytest

from parallelsearch.server.chores import chore, title_of, unsearched

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


SUNRISE = "User: Who painted Impression, Sunrise? AI: Claude Monet"


@pytest.mark.parametrize(
    "task",
    [
        f"Write a short title (max 5 words) for this conversation: {SUNRISE}",
        f"Write a short title (max 5 words) for this conversation:\n{SUNRISE}",
        f"Title this conversation in at most five words, without quotes. {SUNRISE}",
        "Give this chat a name.\n\nHuman: Who painted Impression, Sunrise?\n\nAssistant: Claude Monet\n\nOnly the name, please.",
        "Suggest a title for the chat below.\n\n**User:** Who painted Impression, Sunrise?\n**Assistant:** Claude Monet",
        "Create a headline for the dialogue.\n\nuser:\nWho painted Impression, Sunrise?\nassistant:\nClaude Monet",
        "Write a short title (max 5 words) for this conversation: Who painted Impression, Sunrise?",
        "Invent a fitting name that says what the messages are about.\n\nUser: Who painted Impression, Sunrise?\nAI: Monet",
    ],
)
def test_the_conversation_is_found_inside_an_instruction(task):
    assert chore(task) == "Impression, Sunrise"


def test_a_task_without_a_conversation_gives_the_last_question_before_it():
    task = "Write a short title (max 5 words) for the conversation so far. Reply with the title only."
    earlier = [("Hello!", "Hello!"), ("Who wrote Emma?", "Jane Austen"), ("Thanks!", "You are welcome.")]
    assert chore(task, earlier) == "Emma"
    assert chore(task, [*earlier, (task, "Emma")]) == "Emma"
    assert chore(task) == "New conversation"
    assert chore(task.replace(". ", ".\n\n")) == "New conversation"


@pytest.mark.parametrize(
    "task",
    [
        # LibreChat, NextChat, Continue, Chatbox, Cherry Studio, big-AGI, LobeChat, Vercel's chat, in their words
        "Provide a concise, 5-word-or-less title for the conversation, using its same language, with no punctuation.",
        "Please generate a four to five word title summarizing our conversation without any lead-in or punctuation.",
        "Given the text, please reply with a title for the chat that is 3-4 words in length, without quotes.",
        "Based on the chat history, give this conversation a name. Keep it short - 10 characters max, no quotes.",
        "You need to summarize the user's conversation into a title of 10 characters or less, in its language.",
        "Analyze the given short conversation and extract a concise chat title that summarizes it in a few words.",
        "Generate a concise title that captures the essence of the conversation, at most 10 words and 50 characters.",
        "Summarize the conversation in a short title of at most five words. No quotes, no punctuation, please.",
        "Please name this chat in five words or fewer, and answer with nothing but the name of it, thank you.",
        "Write a title (max. 5 words) for the conversation in the language of the user. Reply with the title only.",
        "You will generate a short title based on the first message a user begins a conversation with, in 80 characters.",
        "Summarise the chat. Give it a title.",
        "Read the conversation above.\nWrite a title for it.",
        "Give this chat a title.",
    ],
)
def test_front_ends_ask_for_a_title_in_many_words(task):
    assert chore(task, [("Who wrote Emma?", "Jane Austen")]) == "Emma"


def test_the_task_of_a_system_message_is_one_whatever_the_user_asks():
    task = "Generate a concise title that captures the essence of the conversation, at most 10 words long."
    assert unsearched("Who wrote Emma?", system=task) == "Emma"


@pytest.mark.parametrize(
    "text",
    [
        "What is the title of the first novel by Jane Austen?",
        "Give me the name of the capital of France.",
        "Which film has the title Conversation?",
        "Name the title of the book about a conversation",
        "Name the director of the 1974 film The Conversation and the name of its composer.",
        "Give the name of the author of Dialogue Concerning the Two Chief World Systems and his birthplace.",
        "Can you provide the full name of the person who sent the first text message, and the year?",
        "Please give me the title of the novel in which the last message in a bottle is found in Cornwall.",
        "Give me the title of the dialogue in which Plato discusses friendship with Lysis and Menexenus.",
        "Give the name of the discussion club that Benjamin Franklin founded in Philadelphia in 1727.",
        "Name the conversation partner of Socrates in the dialogue Ion, and the title of his profession.",
        "Summarize the chat between Nixon and Mao, and give the title of the treaty they discussed.",
        "In the discussion of the Yalta conference, who suggested a name for the United Nations?",
        "Which singer with a one-word name was a guest on the chat show hosted by Graham Norton in 2010?",
        "Which comedian with a stage name hosted the chat show that ran on BBC One for ten years?",
        "Which platform has a domain name registered first, the chat app Telegram or the chat app Signal?",
        "Which philosopher wrote a work with a long title, the dialogue Timaeus or the dialogue Critias?",
        "In which year was a song with the same name released as the thread of the plot in Inception?",
        "Suggest a good name for my chat application and tell me which companies already use a similar name, please",
        "Give me a title that won the Booker Prize and tell me who in the chat show interviewed its author in 1999.",
        "Give me a name from Greek myth that Socrates mentions in the dialogue with Ion or in the dialogue Phaedo.",
        "Which writers give a name to the narrator of the story, and does he speak in the dialogue, or only think?",
        "Summarise the chat show. Give it a title.",
        "Summarise The Conversation. Give it a title.",
        "Who takes part in the discussion? Give me a name.",
        "Read the chat. Give me a name of somebody who wrote like that.",
    ],
)
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

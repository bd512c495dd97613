"""What chat front ends ask for in the background: a title of the chat, tags, suggestions. Answered without a model.

`chore` tells such a task from a question by its form, and gives the title or the tags. `unsearched` is that and small talk:
all that is answered without a model or a search. English words and rules.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import pairwise

from parallelsearch.conversing.follow_ups import Pair
from parallelsearch.conversing.small_talk import small_talk
from parallelsearch.data.alternatives import EDGE, names_in

_JSON_CHORE = re.compile(r"\{\s*\"(title|tags|follow_ups|queries|text)\"\s*:")
_REQUEST = re.compile(  # of a title: a question asks for the title of a book
    r"\b(?:generate|create|write|give|suggest|summari[sz]e|provide|name|come up with|invent|extract|make|propose|craft|"
    r"produce|reply|respond|return)\b[^?\n]{0,100}?"
    r"\ban?\s+(?:(?!(?:the|of|whose|which|that|who|in|by|with|from|and)\b)[^\s?]+\s+){0,8}"
    r"(?:title|name|headline)\b(?!\s+of\s+(?:an?|the)\b)|\b(?:title\s+(?:this|the|my|our)|name\s+(?:this|my|our))\s",
    re.IGNORECASE,
)
# In small letters, since "The Conversation" is a film, and with no noun or name behind it: "the chat show".
_THIS_CHAT = re.compile(
    r"\b(?:this|the|my|our)\s+(?:(?:chat|current|following|given|short|user's|whole)\s+){0,2}"
    r"(?-i:conversation|chat|dialogue|dialog|discussion|thread)(?:\s+history)?"
    r"(?=\s*(?:[^\w\s?-]|$)|\s+(?:-|(?:above|below|so\s+far|an?|and|as|at|based|in|into|is|or|that\s+is|to|using|with|within|"
    r"without|you)\b(?!\s+(?:which|whom|(?:the\s+)?(?-i:[A-Z])))))|\bfirst message a user",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"(?<=:)\s|(?<=[.!?])\s(?=\s*[A-Z])|\n")
_IT = re.compile(r"\bit\b", re.IGNORECASE)
_TITLE_WORD = re.compile(r"\b(?:title|name|headline)\b", re.IGNORECASE)
_OF_A_CHAT = re.compile(r"\b(?:conversation|chat|dialogue|dialog|discussion|messages?)\b", re.IGNORECASE)
# Who speaks stands at the beginning of a line, or within one with a capital: "... for this chat: User: Hello AI: Hello".
_BY_USER = re.compile(
    r"(?:^[ \t]*+(?i:user|human)|(?<![\w'’])(?:User|USER|Human|HUMAN))\**\s*:\**\s*(.+)$", re.MULTILINE
)
_BY_ANOTHER = re.compile(r"(?<!\S)\**(?:AI|Assistant|ASSISTANT|Bot|Model|System|User|USER|Human|HUMAN)\**\s*:")
_CHAT_FOLLOWS = re.compile(rf"{_OF_A_CHAT.pattern}[^:\n]{{0,80}}:", re.IGNORECASE)
_LEAD_IN = re.compile(
    r"^(?i:(?:(?:please|can you|could you|tell me|do you know)\s+)*(?:who|whom|whose|which|what|when|where|why|how|is|are|"
    r"was|were|do|does|did)\b)[^A-Z\"]*"
)
_LOOKED_AT = 600
_MAX_TITLE_WORDS = 6
_MAX_TAGS = 3


def chore(message: str, earlier: Sequence[Pair] = ()) -> str | None:
    """What a front end gets that asks in the background for a title, tags or suggestions; None where a person asks.

    A task differs from a question by its form: a long instruction with the JSON object that is wanted, or one that asks near
    its beginning for a title of the conversation.
    """
    start = message[:_LOOKED_AT]
    form = _JSON_CHORE.search(message) if "<chat_history>" in message or start.lstrip().startswith("### Task") else None
    if form is None and not _is_title_chore(message):
        return None
    topic = _topic(message, earlier)
    kind = "plain" if form is None else form[1]
    if kind == "plain":
        return title_of(topic)
    made: dict[str, str | list[str]] = {
        "title": title_of(topic),
        "tags": names_in(topic)[:_MAX_TAGS] or ["General"],
        "follow_ups": [],
        "queries": [],
        "text": "",
    }
    return json.dumps({kind: made[kind]}, ensure_ascii=False)


def _is_title_chore(message: str) -> bool:
    """A title is asked for, and of the chat: with the chat behind it, or in a sentence that is no question, or the chat is
    named in the sentence before ("Summarise the chat. Give it a title.")."""
    start = message[:_LOOKED_AT]
    if _TITLE_WORD.search(start) and _OF_A_CHAT.search(start) and _BY_USER.search(message):
        return True
    sentences = [one for sentence in _SENTENCE_END.split(start) if (one := sentence.strip()) and one[-1] != "?"]
    return any(
        _REQUEST.search(one) and (_THIS_CHAT.search(one) or (_IT.search(one) and _THIS_CHAT.search(before)))
        for before, one in pairwise(["", *sentences])
    )


def _topic(task: str, earlier: Sequence[Pair]) -> str:
    """What the conversation of a task is about: the first thing that a user says in it, or else the last question before the
    task, or else what stands beside the instruction. The instruction itself is never it."""
    for said in _BY_USER.finditer(task, max(0, task.find("<chat_history>"))):
        if text := _BY_ANOTHER.split(said[1], maxsplit=1)[0].strip():
            return text
    for asked, _ in reversed(earlier):
        if asked.strip() and small_talk(asked) is None and not _is_title_chore(asked):
            return asked
    paragraphs = [part for part in re.split(r"\n\s*\n", task) if part.strip()]
    beside = [part for part in paragraphs if not re.search(r"\btitle|\bheadline", part, re.IGNORECASE)]
    if beside:
        return beside[-1]
    follows = _CHAT_FOLLOWS.search(task)
    return task[follows.end() :] if follows is not None else ""


def unsearched(message: str, earlier: Sequence[Pair] = (), system: str = "") -> str | None:
    """What is answered without a model or a search, because the message asks for nothing that needs one."""
    if system and chore(system) is not None:  # the task stands in the system message, and the chat in the user's
        return chore(f"{system}\n\n{message}", earlier)
    said = chore(message, earlier)
    return small_talk(message) if said is None else said


def title_of(question: str) -> str:
    """A few words that a conversation can go by: the things asked about, or else how the question begins."""
    text = " ".join(question.split()).rstrip("?.! ")
    rest = _LEAD_IN.sub("", text)
    words = (rest if len(rest.split()) > 1 or rest[:1].isupper() else text).split()
    title = " ".join(words[:_MAX_TITLE_WORDS]).strip(EDGE)
    return title[:1].upper() + title[1:] if title else "New conversation"

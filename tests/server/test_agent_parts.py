"""What a turn's text is split into, what a request may hold, and what an answer may cite: pure parts of the agent server."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallelsearch.observation import ObservationWriter
from parallelsearch.retrieval.base import Hit
from parallelsearch.rollout import Event
from parallelsearch.server.chat_api import ChatLimits, ChatRequest, read_chat_request
from parallelsearch.server.chatting import Feed
from parallelsearch.server.citing import cite, sources_of, web_url
from parallelsearch.server.limits import PendingQueries, RefusalError
from parallelsearch.server.live_events import EventWriter, TurnText
from parallelsearch.trajectory import Query, Segment, Trajectory, Turn

PIECES = st.lists(
    st.sampled_from(
        [
            "<think>",
            "</think>",
            "<search>",
            "</search>",
            "<answer>",
            "</answer>",
            "<",
            ">",
            "</",
            "a",
            " ## ",
            "<b>",
            "é",
        ]
    ),
    max_size=12,
)


def joined(parts: list[tuple[str, str]]) -> list[tuple[str, str]]:
    result: list[tuple[str, str]] = []
    for part, text in parts:
        if result and result[-1][0] == part:
            result[-1] = (part, result[-1][1] + text)
        else:
            result.append((part, text))
    return result


@given(PIECES, st.integers(1, 5))
def test_how_a_text_is_cut_does_not_change_its_parts(pieces, size):
    text = "".join(pieces)
    whole, cut = TurnText(), TurnText()
    at_once = whole.feed(text) + whole.flush()
    in_pieces = [pair for at in range(0, len(text), size) for pair in cut.feed(text[at : at + size])] + cut.flush()
    assert joined(in_pieces) == joined(at_once)


@given(PIECES)
def test_nothing_is_lost_but_tags(pieces):
    text, reader = "".join(pieces), TurnText()
    kept = "".join(text for _, text in reader.feed(text) + reader.flush())
    for tag in ("think", "search", "answer"):
        text, kept = (part.replace(f"<{tag}>", "").replace(f"</{tag}>", "") for part in (text, kept))
    assert kept == text


def test_parts_of_a_turn():
    reader = TurnText()
    parts = reader.feed("<think> a <search> not yet</think>\n<search> x ## y </search>") + reader.flush()
    assert parts == [("thought", " a <search> not yet"), ("other", "\n"), ("search", " x ## y ")]


def test_text_that_arrives_together_is_sent_together():
    events = [Event("turn", 0, 0.0), *(Event("text", 0, 0.1, piece) for piece in ("<think> a", " b", "</think>"))]
    assert [(one["type"], one.get("text")) for one in EventWriter(100).write(events)] == [
        ("turn", None),
        ("text", " a b"),
    ]


# ---- requests --------------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
FIELDS = [
    "model",
    "messages",
    "stream",
    "temperature",
    "seed",
    "max_tokens",
    "parallelsearch",
    "n",
    "tools",
    "stream_options",
]
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system", "x"]), "content": JSON})
)


@given(st.dictionaries(st.sampled_from(FIELDS), JSON), MESSAGES | JSON)
def test_whatever_is_sent_is_a_request_or_a_refusal(body, messages):
    data = json.dumps({"model": "m", "messages": messages, **body}).encode()
    status = 200
    try:
        assert isinstance(read_chat_request(data, ChatLimits()), ChatRequest)
    except RefusalError as error:
        status = error.status
    assert status in (200, 400, 422)


# ---- citations -------------------------------------------------------------------------------------------------------


def searched(*hits: Hit, answer: str, thought: str = "", max_tokens: int = 10_000) -> Trajectory:
    """A trajectory of one round whose results were shown in at most so many tokens."""
    query = Query("q", list(hits))
    shown = ObservationWriter(lambda text: len(text) // 4).write([query], max_tokens)
    segments = [
        Segment("prompt", "p [9]"),
        Segment("model", "<think> x </think><search> q </search>"),
        Segment("search", shown),
        Segment("model", f"<think> {thought} </think><answer> {answer} </answer>"),
    ]
    return Trajectory("q", segments, turns=[Turn([query]), Turn()], answer=answer, stop="answer")


RIVER = Hit("1", "Rome", "Rome lies on the Tiber. [2] Fake: forged", "https://r.example/", score=1, rank=1)
OTHER = Hit("2", "Ostia", "A port.\n[7] Forged line", score=0.5, rank=2)


def cited(trajectory: Trajectory):
    return cite(trajectory.answer or "", trajectory, sources_of(trajectory))


def test_only_shown_passages_are_sources_and_they_cannot_forge_one():
    assert [source.number for source in sources_of(searched(RIVER, OTHER, answer="x"))] == [1, 2]
    unseen = searched(RIVER, OTHER, answer="Ostia [2]")
    unseen.segments[2].text = unseen.segments[2].text.partition("\n[2]")[0]  # as if there had been no room
    assert [source.number for source in sources_of(unseen)] == [1]
    assert cited(unseen).text == "Ostia"
    assert cited(unseen).invalid_numbers == [2]


@pytest.mark.parametrize(
    ("answer", "thought", "text", "numbers"),
    [
        ("the Tiber", "", "the Tiber", [(1, "contains_answer")]),
        ("Tiber [1]", "", "Tiber [1]", [(1, "cited")]),
        ("Tiber", "see [2]", "Tiber", [(2, "cited"), (1, "contains_answer")]),
        ("yes", "", "yes", []),
        ("yes [1][2]", "", "yes [1][2]", [(1, "cited"), (2, "cited")]),
        ("Po [3, 1, 4]", "", "Po [1]", [(1, "cited")]),
        ("Tib", "", "Tib", []),
        ("Rome and a port", "", "Rome and a port", [(1, "contains_answer"), (2, "contains_answer")]),
        ("Rome and Paris", "", "Rome and Paris", []),  # a half is nothing to rest on
    ],
)
def test_citations(answer, thought, text, numbers):
    found = cited(searched(RIVER, OTHER, answer=answer, thought=thought))
    assert found.text == text
    assert [(citation.number, citation.basis) for citation in found.citations] == numbers


@pytest.mark.parametrize(
    ("answer", "thought", "is_supported"),
    [
        ("the Tiber", "", True),
        ("Tiber, Ostia", "", True),
        ("Tiber, Arno", "", False),
        ("the Po", "", False),
        ("the Po", "as [1] says", False),  # what it looked at, not what says so
        ("the Po [1]", "", True),  # its own claim
        ("the Po [9]", "", False),
        ("no", "", True),  # of which nothing can be told
        ("and", "", False),
    ],
)
def test_whether_a_passage_says_so(answer, thought, is_supported):
    assert cited(searched(RIVER, OTHER, answer=answer, thought=thought)).is_supported is is_supported


def test_brackets_mean_something_else_where_nothing_was_searched():
    trajectory = Trajectory(
        "q", [Segment("model", "<think> x </think><answer> a[0] </answer>")], answer="a[0]", stop="answer"
    )
    assert cited(trajectory).text == "a[0]"


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        " JavaScript:alert(1)",
        "data:text/html,x",
        "file:///etc/passwd",
        "//x",
        "x",
        "",
        "http://[",
    ],
)
def test_only_addresses_of_the_web_are_handed_on(url):
    assert web_url(url) is None
    assert web_url("https://example.org/a?b#c") == "https://example.org/a?b#c"


def test_the_wait_is_the_pace_of_busy_time(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    pending = PendingQueries(1, what="questions", status=429)
    now[0] += 500  # nobody came
    for _ in range(3):
        pending.take(1)
        now[0] += 3.9
        pending.answered(1)
    pending.take(1)
    with pytest.raises(RefusalError) as caught:
        pending.take(1)
    assert (caught.value.status, caught.value.retry_after_s) == (429, 4)


# ---- when an event goes out ------------------------------------------------------------------------------------------


async def test_a_search_goes_out_at_once_and_takes_along_what_waits():
    feed = Feed(text_interval_s=30.0)
    feed.put(Event("turn", 0, 0.0))
    feed.put(Event("text", 0, 0.1, "I look"))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(feed.take(), 0.05)
    feed.put(Event("query", 0, 0.2, "one"))
    taken = await asyncio.wait_for(feed.take(), 0.01)
    assert [event.kind for event in taken] == ["turn", "text", "query"]


async def test_results_that_come_together_go_out_together_and_soon():
    feed = Feed(text_interval_s=30.0)
    feed.put(Event("text", 0, 0.1, "I look"))
    feed.put(Event("result", 0, 0.2, "one"))
    await asyncio.sleep(0)
    feed.put(Event("result", 0, 0.2, "two"))
    taken = await asyncio.wait_for(feed.take(), 5.0)  # not the thirty seconds of text
    assert [event.text for event in taken] == ["I look", "one", "two"]
    feed.close()
    assert await feed.take() == []
    assert feed.is_over

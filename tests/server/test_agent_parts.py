"""What a turn's text is split into, and what a request may hold: pure parts of the agent server."""

from __future__ import annotations

import asyncio
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from parallelsearch.data import demo
from parallelsearch.dialects import open_dialect
from parallelsearch.events import EventStream
from parallelsearch.policy.scripted import ScriptedPolicy
from parallelsearch.retrieval.base import Hit
from parallelsearch.rollout import Event
from parallelsearch.search import Search
from parallelsearch.server.answering import AgentSettings, Answering, reply_of, summary_of
from parallelsearch.server.asking import Asked, ChatLimits
from parallelsearch.server.chat_api import ChatBody, read_chat_request
from parallelsearch.server.chatting import pace_for
from parallelsearch.server.limits import PendingQueries, RefusalError
from parallelsearch.server.live_events import EventWriter, hit_object
from parallelsearch.server.responses_api import ResponsesBody, read_responses_request, search_item
from parallelsearch.trajectory import Query, Shown, Trajectory, Turn
from virtual_time import in_virtual_time


def test_text_that_arrives_together_is_sent_together():
    events = [Event("turn", 0, 0.0), *(Event("text", 0, 0.1, piece) for piece in ("<think> a", " b", "</think>"))]
    assert [
        (one["type"], one.get("text")) for one in EventWriter(100, open_dialect("parallel").parts).write(events)
    ] == [
        ("turn", None),
        ("text", " a b"),
    ]


def test_callers_are_told_where_a_passage_stands():
    known, unknown = Hit("1", "T", "in writing", metadata={"source": "/a.pdf", "page": 3}), Hit("2", "U", "x")
    turn = Turn([Query("q", [known, unknown])], shown=[Shown(1, "1", 0, 10), Shown(2, "2", 0, 1)])
    trajectory = Trajectory("How?", turns=[turn], answer="in writing", stop="answer")
    summary = summary_of(reply_of(trajectory), 100)
    assert [(one["place"], one["metadata"]) for one in summary["sources"]] == [
        ("/a.pdf, page 3", {"source": "/a.pdf", "page": 3}),
        (None, None),
    ]
    assert [one["place"] for one in summary["citations"]] == ["/a.pdf, page 3"]
    results = search_item("s", "q", "completed", [hit_object(hit, 100) for hit in (known, unknown)])["results"]
    assert [one["attributes"] for one in results] == [{"rank": 0, "place": "/a.pdf, page 3"}, {"rank": 0}]


def test_one_at_a_time_is_asked_as_the_policy_is_asked_otherwise():
    search = Search(demo.retriever(0))
    caller, tagger = ScriptedPolicy({}), ScriptedPolicy({})
    caller.takes_tools, caller.dialect = True, "tools"
    assert Answering(caller, search).sequential == "tools-sequential"
    assert Answering(caller, search, AgentSettings(dialect="parallel")).sequential == "sequential"
    assert Answering(tagger, search).sequential == "sequential"


# ---- requests --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("read", "body", "where"),
    [
        (read_chat_request, '{"model": "m", "messages": [%s]}', "messages.0"),
        (read_chat_request, '{"model": "m", "messages": [{"role": "user", "content": [%s]}]}', "messages.0.content.0"),
        (read_responses_request, '{"model": "m", "input": [%s]}', "input.0"),
        (read_responses_request, '{"model": "m", "input": [{"role": "user", "content": [%s]}]}', "input.0.content.0"),
        (read_responses_request, '{"model": "m", "input": "a", "include": [%s]}', "include.0"),
    ],
)
def test_one_error_of_a_long_list_is_told(read, body, where):
    """Each error costs more than what it is about: twenty thousand would hold a server up."""
    with pytest.raises(ValidationError) as info:
        (ChatBody if read is read_chat_request else ResponsesBody).model_validate_json(body % ", ".join(["1"] * 500))
    assert info.value.error_count() < 5
    with pytest.raises(RefusalError, match=where):
        read((body % ", ".join(["1"] * 500)).encode(), ChatLimits())


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
        assert isinstance(read_chat_request(data, ChatLimits()), Asked)
    except RefusalError as error:
        status = error.status
    assert status in (200, 400, 422)


ITEMS = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system", "x"]), "content": JSON},
        optional={"type": st.sampled_from(["message", "reasoning", "item_reference", "function_call"])},
    )
)
MORE_FIELDS = ["input", "instructions", "store", "text", "tool_choice", "previous_response_id", "include", "metadata"]


@given(st.dictionaries(st.sampled_from([*FIELDS, *MORE_FIELDS]), JSON), ITEMS | JSON)
def test_whatever_is_sent_for_a_response_is_a_request_or_a_refusal(body, items):
    data = json.dumps({"model": "m", "input": items, **body}).encode()
    status = 200
    try:
        assert isinstance(read_responses_request(data, ChatLimits()), Asked)
    except RefusalError as error:
        status = error.status
    assert status in (200, 400, 422)


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


async def sent(*kinds: str, num_streams: int = 1):
    """The kinds of the first batch, and how long it waited, if an event of each kind came in this order, then silence."""

    async def work(tell):
        for kind in kinds:
            tell(Event(kind, 0, 0.0))
            await asyncio.sleep(0)
        await asyncio.sleep(30)

    start_s = time.perf_counter()
    async with EventStream(work, pace_for(num_streams)) as stream:
        batch = await asyncio.wait_for(stream.take(), 5.0)
    return [event.kind for event in batch], time.perf_counter() - start_s


@in_virtual_time
async def test_a_search_goes_out_at_once_and_takes_along_what_waits():
    batch, waited_s = await sent("turn", "text", "query", num_streams=3_000)  # whose text is sent every ten seconds
    assert batch == ["turn", "text", "query"]
    assert waited_s < 1


@in_virtual_time
async def test_results_that_come_together_go_out_together_and_soon():
    batch, waited_s = await sent("text", "result", "result", num_streams=3_000)
    assert batch == ["text", "result", "result"]
    assert waited_s < 1


@in_virtual_time
async def test_text_is_sent_less_often_the_more_streams_there_are():
    assert (await sent("text", "text"))[1] < 0.1
    batch, waited_s = await sent("text", "text", num_streams=90)
    assert batch == ["text", "text"]
    assert 0.29 <= waited_s < 0.5

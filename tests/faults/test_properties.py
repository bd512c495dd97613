"""Properties over generated input: grammar, cleaning, readers of answers, request bodies. Bounded here; `make fuzz` looks for
longer, and for new examples each time."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from parallelsearch import grammar
from parallelsearch.errors import DataError, PolicyError, SearchError, TransientError
from parallelsearch.files import read_jsonl, to_json, write_lines
from parallelsearch.observation import ObservationWriter
from parallelsearch.policy.openai_wire import EventReader
from parallelsearch.policy.openai_wire import Turn as WireTurn
from parallelsearch.retrieval.base import Hit
from parallelsearch.retrieval.mcp_answers import _hits, _items, _items_of_texts
from parallelsearch.retrieval.remote import read_reply
from parallelsearch.retrieval.web import plain_text
from parallelsearch.server import limits as server_limits
from parallelsearch.server.chat_api import ChatLimits, read_chat_request
from parallelsearch.server.limits import RefusalError, ServerSettings, check_content, check_values, read_request
from parallelsearch.trajectory import Query, Trajectory, trajectory_from_dict

text = st.text(st.characters(categories=("L", "N", "P", "S", "Z", "C", "M")), max_size=60)
pieces = st.sampled_from(
    ["<think>", "</think>", "<search>", "</search>", "<answer>", "</answer>", "<information>", "##", "<", ">", " ", "a", "\n",
     "\ud800", "\udc00", "<|im_end|>", "＜", "\u00ad"]
)  # fmt: skip
turns = st.lists(pieces, max_size=25).map("".join)
scalars = st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | text
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4), max_leaves=12
)
document = st.fixed_dictionaries({}, optional=dict.fromkeys(("id", "title", "text", "contents", "url", "date"), values))
items = st.lists(
    st.one_of(document, st.fixed_dictionaries({"document": document, "score": values}), values), max_size=4
)


@given(turns, st.integers(1, 7))
def test_a_turn_is_read_the_same_however_it_is_cut(written: str, size: int) -> None:
    early: list[str] = []
    whole: list[str] = []
    cut, once = grammar.StreamParser(early.append), grammar.StreamParser(whole.append)
    for start in range(0, len(written), size):
        cut.feed(written[start : start + size])
    once.feed(written)
    assert cut.finish() == once.finish() == grammar.parse_turn(written)
    assert early == whole


@given(turns)
def test_a_partial_answer_holds_no_tag(written: str) -> None:
    answer = grammar.partial_answer(written)
    assert answer is None or not grammar._TAG.search(answer)


@given(values)
def test_whatever_is_written_is_read_back_or_refused(value: Any) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a.jsonl"
        write_lines(path, [to_json(value)])
        found = [one for _, one in read_jsonl(path)]
    assert json.dumps(found) == json.dumps([json.loads(to_json(value))])


@given(st.binary(max_size=200))
def test_bytes_are_lines_or_errors(data: bytes) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a.jsonl"
        path.write_bytes(data)
        bad: list[DataError] = []
        for _, value in read_jsonl(path, bad.append):
            to_json(value).encode("utf-8")


@given(st.one_of(st.fixed_dictionaries({"result": st.lists(items, max_size=3)}), values), st.integers(0, 3))
def test_a_reply_of_a_search_server_is_results_or_an_error(reply: Any, count: int) -> None:
    try:
        results = read_reply(json.dumps(reply).encode(), count, 3)
    except SearchError as error:
        assert str(error)  # noqa: PT017
        return
    assert len(results) == count
    for result in results:
        for hit in result if isinstance(result, list) else []:
            to_json([hit.id, hit.title, hit.text, hit.score]).encode("utf-8")


@given(st.binary(max_size=100))
def test_bytes_of_a_search_server_are_an_error(data: bytes) -> None:
    with pytest.raises(SearchError):
        read_reply(b"\x00" + data, 1, 3)


@given(values, st.lists(text, max_size=3))
def test_an_answer_of_a_tool_is_hits(value: Any, texts: list[str]) -> None:
    for found in (_items(value) or [], _items_of_texts(texts)):
        for hit in _hits(found, 3):
            to_json([hit.id, hit.title, hit.text, hit.score]).encode("utf-8")


@given(text)
@example("\ud800")
@example("&#xd800;")
def test_a_snippet_is_one_line_of_text(snippet: str) -> None:
    plain = plain_text(snippet)
    plain.encode("utf-8")
    assert "\n" not in plain


@given(st.lists(st.one_of(values, st.fixed_dictionaries({"choices": st.lists(values, max_size=2)})), max_size=4))
def test_a_turn_of_a_model_server_is_a_turn_or_an_error(payloads: list[Any]) -> None:
    turn = WireTurn(grammar.STOP_STRINGS, lambda piece: None, max_chars=1_000)
    try:
        for payload in payloads:
            turn.feed(json.loads(json.dumps(payload)))
        generation = turn.generation(len)
    except (PolicyError, TransientError):
        return
    generation.text.encode("utf-8")


@given(st.binary(max_size=300), st.integers(1, 9))
def test_events_are_the_same_however_they_are_cut(data: bytes, size: int) -> None:
    whole, cut = EventReader(), EventReader()
    once = [*whole.feed(data), *whole.feed(b"")] if data else []
    parts = [one for start in range(0, len(data), size) for one in cut.feed(data[start : start + size])]
    assert [*parts, *cut.feed(b"")] == once if data else True


@given(st.one_of(values, st.fixed_dictionaries({"queries": values, "topk": values, "return_scores": values})))
def test_a_body_for_retrieve_is_a_request_or_a_refusal(body: Any) -> None:
    try:
        asked = read_request(json.dumps(body).encode(), ServerSettings())
    except RefusalError as error:
        assert error.status in (400, 422)  # noqa: PT017
        return
    assert all(isinstance(query, str) for query in asked.queries)


@given(st.one_of(values, st.fixed_dictionaries({"model": values, "messages": st.lists(values, max_size=3)})))
def test_a_body_for_the_chat_is_a_request_or_a_refusal(body: Any) -> None:
    try:
        asked = read_chat_request(json.dumps(body).encode(), ChatLimits())
    except RefusalError as error:
        assert error.status in (400, 422)  # noqa: PT017
        return
    asked.question.encode("utf-8")


@given(st.lists(st.tuples(text, text, text), max_size=4), text, st.integers(1, 300))
def test_an_observation_is_closed_and_holds_no_tag(found: list[tuple[str, str, str]], query: str, room: int) -> None:
    hits = [Hit(id, title, body, None, None, 0.0, rank) for rank, (id, title, body) in enumerate(found, start=1)]
    written = ObservationWriter(lambda one: len(one.encode("utf-8", "replace")) // 4 + 1).write(
        [Query(query, hits)], room
    )
    inside = written.text.strip().removeprefix(grammar.opening(grammar.INFORMATION))
    inside = inside.removesuffix(grammar.closing(grammar.INFORMATION))
    assert len(inside) + 27 == len(written.text.strip())
    assert not grammar._disarmer(frozenset()).pattern.search(inside)


@given(
    st.one_of(
        values,
        st.fixed_dictionaries(
            {"question": text, "segments": st.just([])}, optional={"turns": values, "answer": values}
        ),
    )
)
def test_a_record_is_a_trajectory_or_an_error_that_names_the_field(value: Any) -> None:
    try:
        trajectory = trajectory_from_dict(value)
    except DataError as error:
        assert str(error)  # noqa: PT017
        return
    assert isinstance(trajectory, Trajectory)
    trajectory.to_json().encode("utf-8")


@pytest.mark.parametrize(
    ("kind", "origin", "is_taken"),
    [
        ("application/json", "http://evil", True), ("application/json; charset=utf-8", "http://evil", True),
        ("text/plain", "http://evil", False), ("text/plain;application/json", "http://evil", False), (None, "http://evil", False),
        ("multipart/form-data", "null", False), ("text/plain", "http://me:8000", True), ("text/plain", None, True), (None, None, True),
    ],
)  # fmt: skip
def test_a_page_of_another_site_may_send_json_alone(kind: str | None, origin: str | None, is_taken: bool) -> None:
    if is_taken:
        check_content(kind, origin, "me:8000")
    else:
        with pytest.raises(RefusalError, match="application/json") as refusal:
            check_content(kind, origin, "me:8000")
        assert refusal.value.status == 415


def num_values(value: Any) -> int:
    """The values of a document, an empty list or object counted twice."""
    inside = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    is_empty = value in ([], {})
    return 1 + is_empty + sum(map(num_values, inside))


@given(values, st.booleans(), st.integers(1, 9))
def test_values_are_counted_however_a_body_is_cut(value: Any, is_ascii: bool, size: int) -> None:
    body = json.dumps(value, ensure_ascii=is_ascii).encode("utf-8", "replace")
    most = num_values(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_limits, "_PIECE", size)
        asyncio.run(check_values(body, most))
        with pytest.raises(RefusalError, match="over"):
            asyncio.run(check_values(body, most - 1))


@given(st.binary(max_size=60) | st.text(st.sampled_from('"\\,[{a'), max_size=60).map(str.encode), st.integers(1, 9))
def test_the_same_is_counted_in_whatever_is_no_json(body: bytes, size: int) -> None:
    def is_refused(most: int) -> bool:
        try:
            asyncio.run(check_values(body, most))
        except RefusalError:
            return True
        return False

    whole = [is_refused(most) for most in range(0, 64, 8)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_limits, "_PIECE", size)
        assert [is_refused(most) for most in range(0, 64, 8)] == whole

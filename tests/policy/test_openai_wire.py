"""How a server's answer becomes a turn: endings, stop strings, bytes of a stream, reasoning, token ids."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest
from fault_server import (
    ANSWER,
    DONE,
    SEARCH,
    Exchange,
    FaultServer,
    ask,
    chunk,
    engine,
    events,
    failure,
    policy_for,
    status,
    usage_chunk,
)
from hypothesis import example, given
from hypothesis import strategies as st

from parallelsearch import grammar
from parallelsearch.errors import PolicyError, TransientError
from parallelsearch.http import Secrets
from parallelsearch.policy.base import Generation
from parallelsearch.policy.openai import OpenAIPolicy
from parallelsearch.policy.openai_wire import EventReader, Mould, Turn, whole_end
from parallelsearch.trajectory import Segment


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


# ---- stop strings and endings ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["chat", "completions"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("at_stop", ["strip", "keep", "ignore"])
@pytest.mark.parametrize("piece", [1, 5, 1000])
async def test_turn_ends_with_the_stop_string_whatever_the_server_does(
    api: str, stream: bool, at_stop: Any, piece: int
) -> None:
    pieces: list[str] = []
    text = SEARCH + "\n<information> made up </information>" * 3
    async with FaultServer(engine(text, at_stop, piece=piece)) as server:
        generation = await ask(policy_for(server, api=api, stream=stream), pieces=pieces)
    assert (generation.text, generation.finish) == (SEARCH, "stop")
    assert generation.restored == ("</search>" if at_stop == "strip" else None)
    assert "".join(pieces) == SEARCH
    assert generation.num_tokens is not None
    assert generation.num_tokens > 0


async def test_server_that_runs_on_is_cut_off() -> None:
    text = SEARCH + " and on" * 5000
    async with FaultServer(engine(text, "ignore", piece=7, pause_s=0.005)) as server:
        generation = await ask(policy_for(server), pieces=[])
        for _ in range(6_000):
            if server.requests[0].is_cut_off:
                break
            await asyncio.sleep(0.01)
    assert generation.text == SEARCH
    assert server.requests[0].is_cut_off


async def test_server_that_does_not_end_its_stream_is_not_waited_for() -> None:
    start_s = time.perf_counter()
    async with FaultServer(events(chunk(SEARCH), after="hang")) as server:
        generation = await ask(policy_for(server, timeout_s=90, read_timeout_s=60))
    assert (generation.text, generation.finish) == (SEARCH, "stop")
    async with FaultServer(events(chunk("no tags", "stop"), DONE, after="hang")) as server:
        generation = await ask(policy_for(server, timeout_s=90, read_timeout_s=60))
    assert (generation.text, generation.finish) == ("no tags", "eos")
    assert time.perf_counter() - start_s < 40


@pytest.mark.parametrize(
    ("text", "reason", "choice", "expected", "finish", "restored"),
    [
        ("I do not know", "stop", {}, "I do not know", "eos", None),
        ("<think> too lo", "length", {}, "<think> too lo", "length", None),
        ("<search> a ", "length", {}, "<search> a ", "length", None),
        ("<answer> x ", "stop", {}, "<answer> x </answer>", "stop", "</answer>"),
        ("<answer> x ", "stop", {"stop_reason": "</answer>"}, "<answer> x </answer>", "stop", "</answer>"),
        (
            "<think> quoting </",
            "stop",
            {"stop_reason": "</search>"},
            "<think> quoting </</search>",
            "stop",
            "</search>",
        ),
        ("<answer> x ", "stop", {"matched_stop": 2}, "<answer> x ", "eos", None),
        ("<answer> x ", "eos_token", {}, "<answer> x ", "eos", None),
        ("", "stop", {}, "", "eos", None),
    ],
)
async def test_endings(
    text: str, reason: str, choice: dict[str, Any], expected: str, finish: str, restored: str | None
) -> None:
    last = json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": reason, **choice}]})
    async with FaultServer(events(chunk(text), f"data: {last}", usage_chunk(7), DONE)) as server:
        generation = await ask(policy_for(server))
    assert (generation.text, generation.finish, generation.restored) == (expected, finish, restored)
    assert generation.num_tokens == 7


@pytest.mark.parametrize(
    ("reason", "words"),
    [("content_filter", "content filter"), ("tool_calls", "tool call"), ("abort", "ended the turn with 'abort'")],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_endings_that_are_errors(reason: str, words: str, stream: bool) -> None:
    answer = {"choices": [{"index": 0, "message": {"content": None}, "finish_reason": reason}]}
    streamed = events(f"data: {json.dumps({'choices': [{'delta': {}, 'finish_reason': reason}]})}")
    async with FaultServer(streamed if stream else status(200, answer)) as server:
        assert words in await failure(policy_for(server, max_attempts=1, stream=stream))


# ---- the stream as bytes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("size", [0, 1, 3])
async def test_stream_may_be_split_anywhere(newline: str, size: int) -> None:
    text = "<think> Müller, 東京, 🙂\u2028\x85 </think><answer> Straße </answer>"
    data = [": keep-alive", "event: message", chunk(delta={"role": "assistant"})]
    data += [chunk(text[start : start + 9]) for start in range(0, len(text), 9)]
    data += [": ping", chunk(None, "stop"), usage_chunk(12), DONE]
    pieces: list[str] = []
    async with FaultServer(events(*data, newline=newline, size=size)) as server:
        generation = await ask(policy_for(server), pieces=pieces)
    assert generation.text == "".join(pieces) == text
    assert (generation.finish, generation.num_tokens) == ("stop", 12)


async def test_surrogate_pair_cut_between_chunks_is_joined() -> None:
    data = ['{"choices": [{"delta": {"content": "a \\ud83d"}}]}', '{"choices": [{"delta": {"content": "\\ude42 b"}}]}']
    data.append('{"choices": [{"delta": {"content": " \\ude42"}, "finish_reason": "stop"}]}')
    async with FaultServer(events(*(f"data: {item}" for item in data))) as server:
        generation = await ask(policy_for(server))
    assert generation.text == "a 🙂 b \ufffd"


async def test_half_a_surrogate_pair_in_the_question_is_sent() -> None:
    async with FaultServer(engine(ANSWER)) as server:
        await ask(policy_for(server), [Segment("prompt", "caf\udce9")])
    assert server.bodies[0]["messages"][0]["content"] == "caf\udce9"


@given(
    data=st.lists(st.text(st.characters(exclude_characters="\r", exclude_categories=["Cs"]), min_size=1), max_size=6),
    newline=st.sampled_from(["\n", "\r\n", "\r"]),
    cuts=st.lists(st.integers(0, 400), max_size=20),
)
@example(data=["two\nlines"], newline="\r\n", cuts=[18, 19])
def test_events_do_not_depend_on_how_the_bytes_are_cut(data: list[str], newline: str, cuts: list[int]) -> None:
    def event(item: str) -> str:  # a data of several lines has a field for each
        return f": note{newline}" + "".join(f"data: {line}{newline}" for line in item.split("\n")) + newline

    stream = "".join(map(event, data)).encode()
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})

    reader = EventReader()
    chunks = [stream[start:end] for start, end in itertools.pairwise(places)]
    assert [event for chunk in [*chunks, b""] for event in reader.feed(chunk)] == [item.encode() for item in data]


@given(
    st.lists(st.sampled_from(["data:", "data: ", "x", "\r", "\n", "\r\n", "\n\n", ": note"]), max_size=12).map("".join),
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
)
@example("data:\ndata: x\n\n", [6, 20])  # a first line without anything in it
@example("data: a\r\rdata: x", [9, 20])  # no line ends after the cut
def test_lines_of_any_kind_may_be_cut_anywhere(stream: str, sizes: list[int]) -> None:
    def read(chunks: Iterable[bytes]) -> list[bytes]:
        reader = EventReader()
        return [event for chunk in [*filter(None, chunks), b""] for event in reader.feed(chunk)]

    places = [0, *itertools.takewhile(lambda at: at < len(stream), itertools.accumulate(itertools.cycle(sizes)))]
    chunks = [stream[start:end].encode() for start, end in itertools.pairwise([*places, len(stream)])]
    assert read(chunks) == read([stream.encode()])


INSIDE = st.one_of(st.binary(max_size=12), st.text(max_size=8).map(str.encode), st.just(b'", "content": "x'))
PLAIN = '{"id": "c-1", "choices": [{"index": 0, "delta": {"content": %s}, "finish_reason": null}], "model": "tiny"}'


@given(
    st.text(max_size=8),
    INSIDE,
    st.booleans(),
    st.sampled_from(["", '"content": "b", ', '"a": "\\"content\\":\\"", ']),
)
@example("word", b" word", True, "")
def test_what_is_cut_out_of_an_event_is_what_reading_it_gives(
    first: str, inside: bytes, is_ascii: bool, more: str
) -> None:
    form = PLAIN.replace('"model"', more + '"model"')
    mould = Mould()
    head, _, tail = (form % '"|"').encode().partition(b"|")
    assert mould.text(head + inside + tail) is None  # it has seen nothing yet
    assert mould.text(b'"a text"') is None
    mould.learn((form % json.dumps(first, ensure_ascii=is_ascii)).encode("utf-8", "surrogatepass"))
    text = mould.text(head + inside + tail)
    if text is not None:
        payload = json.loads(head + inside + tail)
        assert payload["choices"][0]["delta"]["content"] == text
        assert payload | {"choices": 0} == json.loads(form % '""') | {"choices": 0}
    elif inside.isalnum() and first.isalnum() and first.isascii() and not more:
        raise AssertionError("the fast way is not taken")
    assert mould.text(b"x" + head + inside + tail) is None


@pytest.mark.parametrize("name", ['"content" ', '"\\u0063ontent"'])
def test_a_field_of_the_same_name_is_not_taken_for_the_text(name: str) -> None:
    """The names of fields may be spelt in more than one way."""
    form = '{"note": {"content": "%s"}, "choices": [{"delta": {' + name + ': "hello"}}]}'
    assert fed_together([(form % note).encode() for note in ("a", "b")])[1] == "hellohello"


WORD = st.one_of(
    st.sampled_from(["a", " b", "<answer>", "</sea", "rch>", "</answer>", '"', "\\", "\n", "\x00", "\u2028", "\x85"]),
    st.sampled_from(["é", "😀", "\ud83d", "\ude42", "", "content", '"content":', '{"content":"x"}']),
    st.text(max_size=6),
)
BESIDE = [
    ("error", {"message": "no luck"}),
    ("error", None),
    ("note", {"content": "q"}),
    ("usage", {"completion_tokens": 3}),
    ("prompt_token_ids", [1, 2]),
]
INSIDE_CHOICE = [
    ("token_ids", [1, 2]),
    ("logprobs", {"content": [{"logprob": -0.5}, {"logprob": -1.5}]}),
    ("text", "t"),
    ("message", {"content": "q"}),
]


@st.composite
def payloads(draw: st.DrawFn) -> bytes:
    """An event of a stream, most often a piece of text, in one of the ways that JSON has to write it."""
    word = draw(WORD)
    delta: dict[str, Any] = {"content": word}
    choice: dict[str, Any] = {"index": 0, "delta": delta, "finish_reason": None}
    event: dict[str, Any] = {"id": "c", "choices": [choice]}
    match draw(st.integers(0, 12)):
        case 0:
            choice["finish_reason"] = draw(st.sampled_from(["stop", "length", "", "tool_calls"]))
        case 1:
            delta["content"] = None
        case 2:
            event["choices"].append({"index": 1, "delta": {"content": "another choice"}})
        case 3:
            function = {"name": "search", "arguments": word}
            choice["delta"] = {"tool_calls": [{"index": draw(st.integers(0, 2)), "id": "c", "function": function}]}
        case 4:
            event = {"id": "c", "choices": [], "usage": {"completion_tokens": 5}}
        case 5:
            delta[draw(st.sampled_from(["reasoning_content", "role", "refusal"]))] = draw(
                st.sampled_from([None, "r\n"])
            )
        case 6:
            event.update([draw(st.sampled_from(BESIDE))])
        case 7:
            choice.update([draw(st.sampled_from(INSIDE_CHOICE))])
        case 8:
            return draw(
                st.sampled_from([b"{broken", b"[]", b'{"choices": {}}', b'{"choices": [{"delta": "content"}]}'])
            )
    space = draw(st.sampled_from(["", " "]))
    data = json.dumps(event, ensure_ascii=draw(st.booleans()), separators=("," + space, ":" + space))
    return data.encode("utf-8", "surrogatepass")


def plain(text: str, choice: Mapping[str, Any] | None = None, **event: Any) -> bytes:
    return json.dumps({"choices": [{"delta": {"content": text}, **(choice or {})}], **event}).encode()


LAST = plain("", {"finish_reason": "stop"})
Outcome = tuple[Generation | str, str, list[tuple[int, str, str]], bool]


def outcome(feed: Callable[[Turn], None], with_calls: bool, max_chars: int | None) -> Outcome:
    """What becomes of a turn, what was said and called meanwhile, and whether the server was cut off."""
    said: list[str] = []
    called: list[tuple[int, str, str]] = []
    turn = Turn(grammar.STOP_STRINGS, said.append, with_calls, max_chars, on_call=lambda *call: called.append(call))
    found: Generation | str
    try:
        feed(turn)
        found = turn.generation(len)
    except (PolicyError, TransientError) as error:
        found = f"{type(error).__name__}: {error}" if "JSON" not in str(error) else "no JSON"
    return found, "".join(said), called, turn.ran_on


def fed_together(
    data: list[bytes], sizes: Sequence[int] = (1,), with_calls: bool = False, max_chars: int | None = None
) -> Outcome:
    """As the policy reads a stream of which so many events come at once."""
    policy = OpenAIPolicy("http://127.0.0.1:9/v1", "tiny")

    def feed(turn: Turn) -> None:
        mould, left, size = Mould(), data, itertools.cycle(sizes)
        while left and not turn.ran_on:
            number = next(size)
            policy._feed(turn, left[:number], mould, Secrets())
            left = left[number:]

    return outcome(feed, with_calls, max_chars)


@given(
    st.lists(payloads(), max_size=10),
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.booleans(),
    st.sampled_from([None, 5, 30]),
)
@example([plain("abc")] * 6, [6], False, 5)
@example([plain("abc"), plain("d", usage={"completion_tokens": 3})], [2], False, None)
@example([plain("abc", {"token_ids": [1]}), plain("d", {"token_ids": [2]})], [2], False, None)
@example([plain("a", {"token_ids": [1, 2]}), plain("d", dict(INSIDE_CHOICE[1:2]))], [2], False, None)
@example([plain("abc"), plain("d", error={"message": "no luck"})], [2], False, None)
def test_a_stream_is_what_its_events_are_one_by_one(
    data: list[bytes], sizes: list[int], with_calls: bool, max_chars: int | None
) -> None:
    data = [*data, LAST]

    def feed(turn: Turn) -> None:
        for event in data:
            if turn.ran_on:
                return
            try:
                value = json.loads(event.decode("utf-8", "replace"))
            except ValueError:
                raise PolicyError("no JSON") from None
            turn.feed(value)

    assert fed_together(data, sizes, with_calls, max_chars) == outcome(feed, with_calls, max_chars)


@pytest.mark.parametrize("key", [None, "sk-secret"])
async def test_every_event_of_a_stream_counts_whatever_its_form(
    key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces that fit the form of those before them, and others between, many in one read and one in each."""
    if key is not None:
        monkeypatch.setenv("OPENAI_API_KEY", key)
    words = [
        "<think>",
        " a",
        " b",
        ' "c"',
        "\n",
        " d\\",
        " é",
        " 😀",
        " sk-secret",
        "",
        " e",
        " </think>",
        "<answer> P",
    ]
    data = [chunk(word) for word in words]
    data[3:3] = [": comment", chunk("", delta={"role": "assistant"})]
    data += [chunk(" </answer>"), chunk(" and on"), chunk(finish="stop"), usage_chunk(9), DONE]
    text = "".join(words) + " </answer>"
    for size in (0, 1, 40, 100_000):
        pieces: list[str] = []
        joined = events("\n\n".join(data), size=size)
        async with FaultServer(joined if size else events(*data)) as server:
            generation = await ask(policy_for(server), pieces=pieces)
        assert generation.text == "".join(pieces) == (text if key is None else text.replace(key, "***"))
        assert generation.finish == "stop"


async def test_text_before_a_broken_event_counts_though_both_came_together() -> None:
    pieces: list[str] = []
    data = [chunk("<answer> a"), chunk(" b"), "data: {broken", chunk(" c"), DONE]
    async with FaultServer(events("\n\n".join(data), size=100_000)) as server:
        with pytest.raises(PolicyError, match="not JSON"):
            await ask(policy_for(server), pieces=pieces)
    assert "".join(pieces) == "<answer> a b"
    data = [chunk("<answer> a"), chunk(" </answer>"), chunk(" and on"), "data: {broken", DONE]
    async with FaultServer(events("\n\n".join(data), size=100_000)) as server:
        assert (await ask(policy_for(server))).text == "<answer> a </answer>"


async def test_server_that_does_not_stream_is_understood() -> None:
    async def behave(exchange: Exchange) -> None:
        exchange.request.body["stream"] = False
        await engine(ANSWER)(exchange)

    pieces: list[str] = []
    async with FaultServer(behave) as server:
        generation = await ask(policy_for(server), pieces=pieces)
    assert generation.text == ANSWER
    assert "".join(pieces) == ANSWER


async def test_reasoning_becomes_a_thought_before_the_content() -> None:
    data = [chunk(delta={"reasoning_content": part}) for part in ("Say </thi", "nk> or\n<search> x", " </search>?")]
    data += [chunk("<search> Monet "), chunk("born ", "stop"), DONE]
    pieces: list[str] = []
    async with FaultServer(events(*data)) as server:
        generation = await ask(policy_for(server), pieces=pieces)
    parsed = grammar.parse_turn(generation.text)
    assert (parsed.queries, parsed.problems) == (("Monet born",), ())
    assert parsed.thought == "Say ‹/think› or\n‹search› x ‹/search›?"
    assert "".join(pieces) == generation.text
    choice = {"message": {"reasoning": "Easy."}}
    async with FaultServer(engine("<answer> x </answer>", choice=choice)) as server:
        generation = await ask(policy_for(server, stream=False))
    assert generation.text == "<think> Easy. </think>\n<answer> x </answer>"


# ---- token ids -------------------------------------------------------------------------------------------------------


def logprob_items(*values: float) -> dict[str, Any]:
    return {"content": [{"token": "t", "logprob": value, "top_logprobs": []} for value in values]}


async def test_chat_token_ids_and_logprobs_are_read() -> None:
    data = [
        chunk("<answer> x", token_ids=[5, 6], logprobs=logprob_items(-0.5, -0.25), prompt_token_ids=[1, 2]),
        chunk(" </answer>", "stop", token_ids=[7], logprobs=logprob_items(-1.0), stop_reason="</answer>"),
        DONE,
    ]
    async with FaultServer(events(*data)) as server:
        prompt = [Segment("prompt", "Q")]
        generation = await ask(policy_for(server, token_ids=True), prompt)
    body = server.bodies[0]
    assert (body["return_token_ids"], body["logprobs"], body["include_stop_str_in_output"]) == (True, True, True)
    assert (generation.token_ids, generation.logprobs) == ([5, 6, 7], [-0.5, -0.25, -1.0])
    assert (generation.restored, generation.num_tokens) == (None, 3)
    assert prompt[0].token_ids is None  # the template's tokens are no part of the prompt's text


@pytest.mark.parametrize("stream", [True, False])
async def test_completions_give_ids_to_prompt_turn_and_results(stream: bool) -> None:
    def answer(text: str, ids: list[int], prompt_ids: list[int]) -> Any:
        logprobs = {
            "token_logprobs": [-0.1] * len(ids),
            "tokens": ["t"] * len(ids),
            "text_offset": [],
            "top_logprobs": [],
        }
        choice = {"token_ids": ids, "prompt_token_ids": prompt_ids, "logprobs": logprobs}
        return engine(text, "keep", choice=choice)

    segments = [Segment("prompt", "Q\n")]
    async with FaultServer(answer(SEARCH, [4, 5], [1, 2, 3]), answer(ANSWER, [8], [1, 2, 3, 4, 5, 6, 7])) as server:
        policy = policy_for(server, api="completions", token_ids=True, stream=stream)
        segments.append((await ask(policy, segments)).segment())
        segments.append(policy.insert("\nR\n", "search"))
        segments.append((await ask(policy, segments)).segment())
    assert server.bodies[0]["logprobs"] == 1
    assert [segment.token_ids for segment in segments] == [[1, 2, 3], [4, 5], [6, 7], [8]]
    assert segments[1].logprobs == [-0.1, -0.1]


async def test_results_read_across_a_border_get_no_ids() -> None:
    choice = {"token_ids": [8], "prompt_token_ids": [1, 2, 3, 4, 99]}
    segments = [Segment("prompt", "Q", [1, 2, 3]), Segment("model", SEARCH, [4, 5]), Segment("search", "R")]
    async with FaultServer(engine(ANSWER, "keep", choice=choice)) as server:
        await ask(policy_for(server, api="completions", token_ids=True), segments)
    assert segments[2].token_ids is None


@pytest.mark.parametrize("at_stop", ["strip", "ignore"])
async def test_ids_that_are_not_those_of_the_text_are_dropped(at_stop: Any) -> None:
    async with FaultServer(engine(SEARCH + " more", at_stop, choice={"token_ids": [1, 2, 3]})) as server:
        generation = await ask(policy_for(server, token_ids=True, stream=False))
    assert (generation.text, generation.token_ids) == (SEARCH, None)


async def test_logprobs_of_another_length_are_dropped() -> None:
    choice = {"token_ids": [1, 2, 3], "logprobs": logprob_items(-1.0)}
    async with FaultServer(engine(SEARCH, "keep", choice=choice)) as server:
        generation = await ask(policy_for(server, token_ids=True, stream=False))
    assert (generation.token_ids, generation.logprobs) == ([1, 2, 3], None)


async def test_with_an_encoder_the_prompt_goes_out_as_ids() -> None:
    def encode(text: str) -> list[int]:
        return [ord(letter) for letter in text]

    async with FaultServer(engine(ANSWER)) as server:
        policy = policy_for(server, api="completions", token_ids=True, encode=encode)
        assert policy.count_tokens("abc") == 3
        turn = Segment("model", SEARCH, [900, 901])
        await ask(policy, [policy.prompt("ab", "q"), turn, policy.insert("c", "search")])
        await ask(policy, [policy.prompt("ab", "q"), Segment("model", "no ids"), policy.insert("c", "search")])
    assert [body["prompt"] for body in server.bodies] == [[97, 98, 900, 901, 99], "abno idsc"]


def test_a_turn_needs_no_garbage_collector() -> None:
    """Objects that hold each other would stay until it runs: with a thousand turns in flight it hardly stops."""
    gc.collect()
    gc.disable()
    try:
        turn = Turn(grammar.STOP_STRINGS, lambda _: None)
        turn.feed({"choices": [{"delta": {"reasoning_content": "a\nb"}}]})
        turn.feed({"choices": [{"delta": {"content": ANSWER}, "finish_reason": "stop"}]})
        gone = weakref.ref(turn)
        turn.generation(len)
        del turn
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
@pytest.mark.parametrize(
    ("behind", "kept", "ran_on"),
    [
        ("<search> b </search>", True, False),
        ("\n2. <search> b </search>\n", True, False),
        ("<search> b </search> and so on", True, True),
        (" and so on", False, True),
        ("<search> b", False, False),  # it was never closed
    ],
)
def test_a_server_that_passes_the_stop_string_may_write_another_search(
    size: int, behind: str, kept: bool, ran_on: bool
) -> None:
    said: list[str] = []
    turn = Turn(grammar.STOP_STRINGS, said.append)
    text = f"<think> t </think><search> a </search>{behind}"
    for start in range(0, len(text), size):
        if not turn.ran_on:
            turn.feed({"choices": [{"delta": {"content": text[start : start + size]}}]})
    found = turn.generation(len)
    parsed = grammar.parse_turn(found.text)
    assert list(parsed.queries) == (["a", "b"] if kept else ["a"])
    assert [problem.code for problem in parsed.problems] == (["several_searches"] if kept else [])
    assert "".join(said) == found.text
    assert turn.ran_on == ran_on


_SAID = [
    "<search> a </search>",
    "</search>",
    "<search>",
    "<think> t </think>",
    "<answer> b </answer>",
    "\n2. ",
    " x ",
    "é",
    "\U0001f600",
]


@given(parts=st.lists(st.sampled_from(_SAID), max_size=8), cuts=st.sets(st.integers(1, 120)), with_units=st.booleans())
@example(parts=["<search> a </search>", "<search>", "\U0001f600", "</search>"], cuts={20, 29}, with_units=True)
def test_where_a_turn_is_cut_on_its_way_changes_nothing(parts: list[str], cuts: set[int], with_units: bool) -> None:
    """Some servers send the two halves of a character as two escapes, and these may come one by one."""
    text = "".join(parts)
    sent = "".join(map(chr, memoryview(text.encode("utf-16-le")).cast("H"))) if with_units else text
    edges = [0, *sorted(cut for cut in cuts if cut < len(sent)), len(sent)]
    found = []
    for pieces in ([sent], [sent[start:end] for start, end in itertools.pairwise(edges)]):
        said: list[str] = []
        turn = Turn(grammar.STOP_STRINGS, said.append)
        for piece in pieces:
            turn.feed({"choices": [{"delta": {"content": piece}}]})
        turn.feed({"choices": [{"delta": {}, "finish_reason": "length"}]})
        made = turn.generation(len)
        assert "".join(said) == made.text
        found.append((made.text, made.finish, turn.has_stopped, turn.ran_on))
    assert found[0] == found[1]
    assert found[0][0] == text[: whole_end(text, grammar.STOP_STRINGS)]


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_what_stands_behind_a_search_counts_once_against_the_limit(size: int) -> None:
    both = "<think> t </think><search> a </search><search> b </search>"
    for text, most, ran_on in ((both, len(both), False), (both + "<search> " + "b" * 500, 200, True)):
        turn = Turn(grammar.STOP_STRINGS, None, max_chars=most)
        for start in range(0, len(text), size):
            if not turn.ran_on:
                turn.feed({"choices": [{"delta": {"content": text[start : start + size]}}]})
        assert turn.ran_on == ran_on
        assert turn.generation(len).text == both

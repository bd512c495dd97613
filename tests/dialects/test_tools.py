"""The dialect `tools`: calls read whole and while they are written, results by call, and what cannot be used."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallelsearch.dialect import Tool
from parallelsearch.dialects import open_dialect
from parallelsearch.dialects.tools import CallReader, StringsOf, calls_of
from parallelsearch.errors import NoToolsError, SearchError, UsageError
from parallelsearch.limits import Limits, Prices
from parallelsearch.policy.base import Generation, OnCall, Policy
from parallelsearch.policy.scripted import ScriptedPolicy
from parallelsearch.retrieval.base import Hit, Passage
from parallelsearch.retrieval.bm25 import BM25Retriever
from parallelsearch.rollout import Event, rollout
from parallelsearch.search import Search
from parallelsearch.trajectory import Call, Segment, Trajectory, trajectory_from_dict

PASSAGES = [
    Passage("1", "Danube", "The Danube is a river of about 2,850 kilometres."),
    Passage("2", "Rhine", "The Rhine is a river of about 1,230 kilometres."),
    Passage("3", "Vienna", "Vienna is the capital of Austria and lies on the Danube."),
]
QUESTION = "Which river is longer, the Danube or the Rhine?"
TOOLS = open_dialect("tools")


def search_call(*queries: Any, id: str = "c1", name: str = "search") -> Call:
    return Call(id, name, json.dumps({"queries": list(queries)}))


# ---- reading ---------------------------------------------------------------------------------------------------------


def said(text: str = "", *calls: Call, reasoning: str | None = None) -> Segment:
    return Segment("model", text, calls=list(calls) or None, reasoning=reasoning)


def test_several_calls_of_one_message_are_one_turn() -> None:
    parsed = TOOLS.read(said("I look.", search_call("a", "b"), search_call("B", "c", id="c2"), reasoning="hm"), 5)
    assert (parsed.action, parsed.queries, parsed.num_duplicates) == ("search", ("a", "b", "c"), 1)
    assert parsed.thought == "hm I look."
    assert parsed.is_valid
    few = TOOLS.read(said("", search_call("a", "b", "c")), 2)
    assert (few.queries, few.dropped) == (("a", "b"), ("c",))


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (Call("1", "browse", "{}"), "unknown_tool"),
        (Call("1", "search", '{"queries": ["a'), "bad_arguments"),
        (Call("1", "search", ""), "bad_arguments"),
        (Call("1", "search", '{"queries": 3}'), "bad_arguments"),
        (Call("1", "search", "[" * 100_000), "bad_arguments"),
        (Call("1", "search", '{"queries": []}'), "empty_search"),
        (Call("1", "search", '{"queries": ["", " ", 3, null]}'), "empty_search"),
        (Call("1", "search", '{"queries": ["...", "..."]}'), "empty_search"),
        (Call("1", "search", "{}"), "empty_search"),
    ],
)
def test_a_call_that_cannot_be_used_is_a_problem_the_model_can_act_on(call: Call, code: str) -> None:
    parsed = TOOLS.read(said("", call), 5)
    assert (parsed.action, [problem.code for problem in parsed.problems]) == (None, [code])
    (group,) = TOOLS.groups(said("", call), [])
    assert group.call_id == "1"
    assert '{"queries"' in group.word
    mixed = TOOLS.read(said("", call, search_call("a", id="2")), 5)
    assert (mixed.action, mixed.queries, mixed.problems[0].code) == ("search", ("a",), code)


@pytest.mark.parametrize(
    "arguments",
    ['{"queries": ["a", "b"]}', '"{\\"queries\\": [\\"a\\", \\"b\\"]}"', '["a", "b"]', '{"query_list": ["a", "b"]}'],
)
def test_arguments_are_read_in_the_forms_models_write(arguments: str) -> None:
    assert TOOLS.read(said("", Call("1", "search", arguments)), 5).queries == ("a", "b")
    assert TOOLS.read(said("", Call("1", "search", '{"query": "a"}')), 5).queries == ("a",)


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "search", "arguments": {"queries": ["a", "b"]}}\n</tool_call>',
        'I look. <tool_call>{"name": "search", "arguments": "{\\"queries\\": [\\"a\\", \\"b\\"]}"}</tool_call>',
        '<tool_call>{"name": "search", "arguments": {"queries": ["a"]}}</tool_call>\n'
        '<tool_call>{"name": "search", "arguments": {"queries": ["b"]}}</tool_call>',
        '```json\n{"name": "search", "parameters": {"queries": ["a", "b"]}}\n```',
        '{"function": {"name": "search", "arguments": {"queries": ["a", "b"]}}}',
        '<think> x </think>{"queries": ["a", "b"]}',
        'was thinking </think> <tool_call>{"name": "search", "arguments": {"queries": ["a", "b"]}}',
        # As Qwen2.5-Coder writes them, beside the form its template asks for.
        '{"name": "search", "arguments": {"queries": ["a"]}}\n{"name": "search", "arguments": {"queries": ["b"]}}',
        'I look. {"name": "search", "queries": ["a", "b"]} Then I answer.',
        '<tools>{"function": "search", "arguments": {"queries": ["a", "b"]}}</tools>',
        '{"name": "search", "arguments": {"queries": ["a", "b"]}',
        '{"name": "search", "arguments": {"queries": [["a", "b"]]}',
        '{"name": "search", "arguments": {"queries": ["a", "b"]}]}',
        '{"name": "search", "arguments": {"queries": [{"query": "a"}, {"q": ["b"]}, {"k": 3}, [["c"]], 3]}}',
        '<tool_call>{"queries": ["a", "b"\n</tool_call>',
    ],
)
def test_calls_that_leak_into_the_text_are_read_there(text: str) -> None:
    parsed = TOOLS.read(said(text), 5)
    assert (parsed.action, parsed.queries) == ("search", ("a", "b"))
    assert "queries" not in (parsed.thought or "")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("The Danube", "The Danube"),
        ("<think> long </think>\nThe answer is: the Danube.", "the Danube"),
        ("It is {not} a call", "It is {not} a call"),
        ('```json\n{"river": "Danube"}\n```', '```json\n{"river": "Danube"}\n```'),
        ("\n\nBoth:\n\n\n- Danube  \n\t- 2,850 km\r\n- Rhine\n", "Both:\n\n- Danube\n    - 2,850 km\n- Rhine"),
        ("<think> long </think>\nThe Danube", "The Danube"),
        ('{"name": "Danube", "kind": "river"}', '{"name": "Danube", "kind": "river"}'),
    ],
)
def test_a_message_without_calls_is_the_answer(text: str, answer: str) -> None:
    parsed = TOOLS.read(said(text), 5)
    assert (parsed.action, parsed.answer) == ("answer", answer)


def test_a_call_in_the_text_that_was_cut_off_is_no_answer() -> None:
    whole = '<tool_call>{"name": "search", "arguments": {"queries": ["one", "two"'
    for length in range(len('<tool_call>{"name":'), len(whole)):
        parsed = TOOLS.read(said(whole[:length]), 5)
        assert parsed.action != "answer"
        assert parsed.queries == (("one",) if whole[:length].endswith('"one"') else ())
        assert parsed.queries or parsed.problems[0].code in ("bad_arguments", "empty_search")
    both = TOOLS.read(said('{"query": "a"} <tool_call>{"name": "search", "arg</tool_call>'), 5)
    assert (both.queries, [problem.code for problem in both.problems]) == (("a",), ["bad_arguments"])


def test_an_empty_message_is_no_answer_and_the_answer_tool_gives_one() -> None:
    assert TOOLS.read(said("<think> hm </think>"), 5).problems[0].code == "empty_answer"
    dialect = open_dialect("tools-answer")
    assert [tool.name for tool in dialect.tools] == ["search", "answer"]
    parsed = dialect.read(said("", Call("1", "answer", '{"answer": " the  Danube "}')), 5)
    assert (parsed.action, parsed.answer) == ("answer", "the Danube")
    assert dialect.read(said('{"name": "answer", "answer": "the Danube"}'), 5).answer == "the Danube"
    both = said("", Call("1", "answer", '{"answer": "x"}'), search_call("a", id="2"))
    assert dialect.read(both, 5).action == "search"  # it looks up first, unless it may not
    assert dialect.read(both, 5, is_last=True).action == "answer"
    assert dialect.read(said("", Call("1", "answer", '{"answer": ""}')), 5).problems[0].code == "empty_answer"


@given(st.text(max_size=300))
def test_no_text_breaks_the_reader(text: str) -> None:
    for segment in (said(text), said("", Call("1", "search", text)), said(text, Call("1", text, text))):
        assert TOOLS.read(segment, 5).action in (None, "search", "answer")
        TOOLS.groups(segment, ["a"])


async def test_one_at_a_time_by_calls_looks_up_one_thing_a_turn() -> None:
    dialect = open_dialect("tools-sequential")
    assert "in one call" in TOOLS.prompt(QUESTION)
    assert "in one call" not in dialect.prompt(QUESTION)
    assert "Look up one thing at a time." in dialect.prompt(QUESTION)
    assert list(dialect.tools[0].parameters["properties"]) == ["query"]
    two = said("", Call("1", "search", '{"query": "a"}'), Call("2", "search", '{"query": "b"}'))
    parsed = dialect.read(two, 5)
    assert (parsed.queries, parsed.dropped) == (("a",), ("b",))
    first, second = dialect.groups(two, parsed.queries)
    assert (first.queries, first.word, second.queries) == ([0], "", [])
    assert second.word.startswith("Only one query is looked up at a time.")
    assert '{"query": "..."}' in dialect.notice_invalid(dialect.read(said("", Call("1", "browse", "{}")), 5).problems)
    started: list[str] = []
    reader = dialect.reader(started.append, 5)
    assert reader is not None
    reader.feed_call(0, "search", '{"query": "a"}')
    reader.feed_call(1, "search", '{"query": "b"}')
    assert started == ["a"]


def test_the_tool_is_described_in_few_words_and_by_an_example_of_a_split() -> None:
    """Both were measured (docs/models.md): small models copy a long description in place of a call."""
    (tool,) = TOOLS.tools
    assert len(tool.description) < 80
    example = json.loads("[" + tool.parameters["properties"]["queries"]["description"].partition("[")[2])
    assert len(example) == 2
    assert TOOLS.read(said("", search_call(*example)), 5).queries == tuple(example)


# ---- while it is written ---------------------------------------------------------------------------------------------

QUERIES = st.lists(st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12), max_size=5)


@given(QUERIES, st.lists(st.integers(0, 400), max_size=30), st.booleans(), st.booleans())
def test_however_the_arguments_are_cut_each_query_comes_when_its_string_closes(
    queries: list[str], cuts: list[int], is_ascii: bool, has_more: bool
) -> None:
    record: dict[str, Any] = {"note": ["not a query", {"queries": "nor this"}], "queries": queries}
    if has_more:
        record["k"] = "3"
    text = json.dumps(record, ensure_ascii=is_ascii)
    borders = [0, *sorted({cut % (len(text) + 1) for cut in cuts}), len(text)]
    reader = StringsOf(("queries",))
    found: list[str] = []
    for start, end in itertools.pairwise(borders):
        found += reader.feed(text[start:end])
        # Never earlier than closed: what is handed out stands, closed, in what has come.
        assert len(found) <= _closed(text[:end])
    assert found == queries


def _closed(text: str) -> int:
    """How many strings of the list are closed in this beginning of the arguments, by a real parser."""
    start = text.find('"queries": [', text.find("}"))
    if start < 0:
        return 0
    body = text[start + len('"queries": ') :]
    for end in range(len(body), 0, -1):
        try:
            return len(json.loads(body[:end] + "]"))
        except ValueError:
            try:
                return len(json.loads(body[:end]))
            except ValueError:
                continue
    return 0


def test_the_reader_starts_each_query_once_and_no_more_than_allowed() -> None:
    started: list[str] = []
    reader = CallReader(started.append, 3)
    reader.feed("text beside the calls")
    reader.feed_call(0, "search", '{"queries": ["a", "A", "b')
    assert started == ["a"]
    reader.feed_call(1, "other", '{"queries": ["x"]}')
    reader.feed_call(0, "search", '"]}')
    reader.feed_call(2, "search", '{"queries": ["c", "d"]}')
    assert started == ["a", "b", "c"]


# ---- through the loop ------------------------------------------------------------------------------------------------


class Caller(Policy):
    """Writes the given messages, its calls in pieces, and keeps what it was shown."""

    name, streams, takes_tools = "caller", True, True

    def __init__(self, *messages: Segment) -> None:
        self.messages = list(messages)
        self.shown: list[list[Segment]] = []
        self.tools: Sequence[Tool] = ()

    def prompt(self, text: str, question: str, tools: Sequence[Tool] = ()) -> Segment:
        self.tools = tools
        return Segment("prompt", text)

    async def generate(
        self,
        segments: Sequence[Segment],
        *,
        stop: Sequence[str],
        tools: Sequence[Tool] = (),
        on_call: OnCall | None = None,
        **_: Any,
    ) -> Generation:
        assert tools
        assert not stop
        self.shown.append(list(segments))
        message = self.messages[len(self.shown) - 1]
        for number, call in enumerate(message.calls or ()):
            for character in call.arguments:
                if on_call is not None:
                    on_call(number, call.name, character)
        usage = {"prompt_tokens": 10, "completion_tokens": 5}
        return Generation(message.text, "eos", calls=message.calls, reasoning=message.reasoning, usage=usage)


async def ask(policy: Policy, limits: Limits | None = None, dialect: str = "tools") -> Trajectory:
    search = Search(BM25Retriever.from_passages(PASSAGES), k=1)
    trajectory = await rollout(QUESTION, policy, search, limits, dialect=dialect)
    await search.aclose()
    return trajectory


async def test_results_go_back_as_messages_with_their_call_ids() -> None:
    policy = Caller(
        said(
            "Both.",
            search_call("Danube length"),
            search_call("Rhine length", id="c2"),
            Call("c3", "browse", "{}"),
            reasoning="r",
        ),
        said("The Danube"),
    )
    trajectory = await ask(policy)
    assert (trajectory.answer, trajectory.num_llm_calls, trajectory.num_searches) == ("The Danube", 2, 1)
    assert trajectory.is_split
    prompt, message, first, second, third = policy.shown[1]
    assert "Question: " + QUESTION in prompt.text
    assert (message.text, message.reasoning, len(message.calls or ())) == ("Both.", "r", 3)
    assert [(one.author, one.call_id) for one in (first, second, third)] == [
        ("search", "c1"),
        ("search", "c2"),
        ("notice", "c3"),
    ]
    assert "2,850" in first.text
    assert "1,230" in second.text
    assert "<information>" not in first.text
    assert "there is no such tool" in third.text
    assert [(one.number, one.id, one.query) for one in trajectory.turns[0].shown] == [(1, "1", 0), (2, "2", 1)]
    assert trajectory.turns[0].usage == {"prompt_tokens": 10, "completion_tokens": 5}
    assert trajectory.turns[0].problems == ["unknown_tool"]
    assert trajectory_from_dict(json.loads(trajectory.to_json())) == trajectory


async def test_searches_start_while_the_call_is_written() -> None:
    found: list[str] = []
    both = asyncio.Event()

    def watch(event: Event) -> None:
        if event.kind == "result":
            found.append(event.text)
            if len(found) == 2:
                both.set()

    class Watching(Caller):
        async def generate(self, segments: Sequence[Segment], **options: Any) -> Generation:
            result = await super().generate(segments, **options)
            await asyncio.wait_for(both.wait(), 300)  # the call is written, the message not yet over
            return result

    search = Search(BM25Retriever.from_passages(PASSAGES), k=1)
    policy = Watching(said("", search_call("Danube", "Rhine")), said("The Danube"))
    trajectory = await rollout(QUESTION, policy, search, dialect="tools", on_event=watch)
    await search.aclose()
    assert trajectory.answer == "The Danube"
    assert sorted(found) == ["Danube", "Rhine"]


async def test_a_broken_call_is_answered_and_the_model_goes_on() -> None:
    policy = Caller(said("", Call("c1", "search", "{")), said("", search_call("Danube", id="c2")), said("The Danube"))
    trajectory = await ask(policy)
    assert trajectory.answer == "The Danube"
    reply = policy.shown[1][-1]
    assert (reply.author, reply.call_id) == ("notice", "c1")
    assert "could not be read" in reply.text


async def test_a_model_that_only_searches_is_told_and_every_call_gets_an_answer() -> None:
    calls = [said("", search_call(f"Danube {n}", id=f"c{n}")) for n in range(4)]
    policy = Caller(*calls)
    trajectory = await ask(policy, Limits(max_turns=2))
    assert trajectory.stop == "max_turns"
    last = policy.shown[-1]
    asked = [call.id for segment in last for call in segment.calls or ()]
    assert [segment.call_id for segment in last if segment.call_id] == asked
    assert "No more searches" in last[-1].text


@pytest.mark.parametrize("begins_turns", [False, True])
async def test_a_model_that_asks_the_same_again_must_answer(begins_turns: bool) -> None:
    first, again = search_call("Danube", "Rhine"), search_call("rhine", id="c2")
    policy = Caller(said("", first), said("", again), said("the Danube."))
    policy.begins_turns = begins_turns
    trajectory = await ask(policy)
    assert (trajectory.answer, trajectory.stop, trajectory.num_llm_calls) == ("the Danube.", "answer", 3)
    *_, told, start = policy.shown[-1] if begins_turns else [*policy.shown[-1], None]
    assert told is not None
    assert (told.call_id, "No more searches" in told.text) == ("c2", True)
    assert start is None or start.text == "The answer is:"


async def test_what_failed_may_be_asked_again() -> None:
    passages = BM25Retriever.from_passages(PASSAGES)
    num_asked = 0

    async def search_many(queries: list[str], k: int) -> list[list[Hit]]:
        nonlocal num_asked
        num_asked += 1
        if num_asked == 1:
            raise SearchError("the line is down")
        return [[hit for hit in one if isinstance(hit, Hit)] for one in await passages.search_many(queries, k)]

    search = Search(search_many, k=1, attempts=1)
    policy = Caller(said("", search_call("Danube")), said("", search_call("Danube", id="c2")), said("the Danube."))
    trajectory = await rollout(QUESTION, policy, search, dialect="tools")
    await search.aclose()
    assert [query.error is None for query in trajectory.queries] == [False, True]
    assert "No more searches" not in policy.shown[-1][-1].text


async def test_a_policy_without_tools_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match="needs a policy that takes tools"):
        await ask(ScriptedPolicy({QUESTION: ["x"]}))


async def test_a_server_that_takes_no_tools_is_asked_in_tags_unless_someone_insists() -> None:
    class Refusing(Caller):
        dialect = "tools"

        async def generate(self, segments: Sequence[Segment], **options: Any) -> Generation:
            if options.get("tools"):
                raise NoToolsError("no tools here")
            return Generation("<think> x </think><answer> The Danube </answer>", "stop")

    search = Search(BM25Retriever.from_passages(PASSAGES), k=1)
    trajectory = await rollout(QUESTION, Refusing(), search)
    assert (trajectory.answer, trajectory.dialect, trajectory.num_llm_calls) == ("The Danube", "parallel", 1)
    trajectory = await rollout(QUESTION, Refusing(), search, dialect="tools")
    assert (trajectory.stop, trajectory.error) == ("error", "no tools here")
    await search.aclose()


def test_leaked_calls_have_no_ids_to_answer() -> None:
    segment = said('<tool_call>{"name": "search", "arguments": {"queries": ["a"]}}</tool_call>')
    assert [call.name for call in calls_of(segment)] == ["search"]
    (group,) = TOOLS.groups(segment, ["a"])
    assert (list(group.queries), group.call_id) == ([0], None)


async def test_who_repeats_itself_and_never_answers_is_said_to() -> None:
    again = [said("", search_call("Danube", id=f"c{n}")) for n in range(4)]
    trajectory = await ask(Caller(*again), Limits(max_turns=8))
    assert (trajectory.stop, trajectory.answer, trajectory.num_searches) == ("max_turns", None, 2)
    assert "asked again for what it had asked before" in trajectory.why_no_answer
    others = [said("", search_call(f"Danube {n}", id=f"c{n}")) for n in range(5)]
    assert "max_turns=2 rounds" in (await ask(Caller(*others), Limits(max_turns=2))).why_no_answer


async def test_what_may_be_billed_is_not_passed_and_the_last_call_must_answer() -> None:
    """The policy reports 10 tokens read and 5 written a call; a turn may have 40."""
    calls = [said("", search_call(f"Danube {n}", id=f"c{n}")) for n in range(5)]
    small = {"max_turns": 4, "max_tokens_per_turn": 40, "max_observation_tokens": 64}
    policy = Caller(*calls)
    trajectory = await ask(policy, Limits(max_billed_tokens=350, **small))
    assert trajectory.stop == "max_tokens"
    assert trajectory.num_llm_calls < 4
    assert "No more searches" in policy.shown[-1][-1].text
    free = await ask(Caller(*calls, calls[0]), Limits(**small))
    assert free.num_llm_calls == 6
    dear = Limits(max_cost=1e-9, prices=Prices(1.0, 1.0), **small)
    assert (await ask(Caller(*calls), dear)).num_llm_calls == 0
    cheap = Limits(max_cost=1.0, prices=Prices(1.0, 1.0), **small)
    assert (await ask(Caller(*calls, calls[0]), cheap)).num_llm_calls == 6
    for wrong in ({"max_cost": 1.0}, {"max_billed_tokens": 0}, {"max_cost": float("nan"), "prices": Prices()}):
        with pytest.raises(UsageError):
            Limits(**wrong)

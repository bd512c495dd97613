"""Spans from events, with the real SDK: how they nest, when they end, and what they do not tell."""

import asyncio
import subprocess
import sys

import httpx
import pytest

from parallelsearch import Agent, Search
from parallelsearch.data import demo
from parallelsearch.errors import SearchError
from parallelsearch.policy.scripted import ScriptedPolicy
from parallelsearch.retrieval.base import Retriever
from parallelsearch.server.agent_server import create_agent_app
from parallelsearch.server.answering import AgentSettings
from parallelsearch.telemetry import traced

pytest.importorskip("opentelemetry.sdk", reason="pip install opentelemetry-sdk")
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

QUESTION = "Who is older, Claude Monet or Camille Pissarro?"
UNFINISHED = "<think> a </think> <search> first ## second </search>"


@pytest.fixture(scope="module")
def exporter():
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@pytest.fixture
def spans(exporter):
    """The finished spans by name, in the order of their start."""
    exporter.clear()

    def finished(name):
        found = [span for span in exporter.get_finished_spans() if span.name == f"parallelsearch.{name}"]
        return sorted(found, key=lambda span: span.start_time)

    return finished


class Failing(Retriever):
    async def search_many(self, queries, k):
        return [SearchError("secret-host is down")] * len(queries)


def test_a_question_has_turns_and_turns_have_searches_that_overlap(spans):
    seen = []
    outer = trace.get_tracer("test").start_span("outer")
    with (
        trace.use_span(outer, end_on_exit=True),
        traced(seen.append) as on_event,
        Agent(demo.DemoPolicy(), Search(demo.retriever(latency_s=1.0))) as agent,
    ):
        trajectory = agent.ask(QUESTION, on_event)
    (question,), turns, searches = spans("question"), spans("turn"), spans("search")
    assert question.parent.span_id == outer.get_span_context().span_id  # though the agent runs in another thread
    assert [turn.parent.span_id for turn in turns] == [question.context.span_id] * trajectory.num_llm_calls
    assert [search.parent.span_id for search in searches] == [turns[0].context.span_id] * 2
    assert searches[1].start_time < searches[0].end_time  # side by side
    for search, query in zip(searches, trajectory.turns[0].queries, strict=True):
        assert search.end_time - question.start_time == pytest.approx(query.end_s * 1e9, abs=1e3)
        assert search.end_time - search.start_time >= 0.5e9  # it took a second
        assert search.attributes["parallelsearch.num_hits"] == len(query.hits)
    assert turns[0].end_time <= turns[1].start_time
    assert 1e9 <= question.end_time - question.start_time <= trajectory.elapsed_s * 1e9 + 1e3
    assert question.attributes["parallelsearch.answered"] is True
    assert question.attributes["parallelsearch.num_subqueries"] == 2
    assert seen[-1].kind == "answer"  # events are passed on


def test_texts_are_told_only_when_asked_for(spans):
    policy = demo.DemoPolicy()
    policy.tokens_per_s = None
    with Agent(policy) as agent:
        agent.ask(QUESTION, traced())
        assert "Monet" not in str([dict(span.attributes) for span in spans("search") + spans("question")])
        agent.ask(QUESTION, traced(records_text=True))
    assert "parallelsearch.query" not in spans("search")[0].attributes
    assert spans("search")[-1].attributes["parallelsearch.query"].startswith("When was ")
    assert spans("question")[-1].attributes["parallelsearch.answer"] == "Camille Pissarro"


def test_a_failed_search_and_a_question_without_an_answer(spans):
    policy = ScriptedPolicy({QUESTION: [UNFINISHED] * 9})
    with Agent(policy, Search(Failing(), attempts=1)) as agent, traced() as on_event:
        trajectory = agent.ask(QUESTION, on_event)
        assert trajectory.stop == "max_turns"
        assert spans("question") == []
    (question,) = spans("question")
    assert "parallelsearch.answered" not in question.attributes
    assert len(spans("turn")) == trajectory.num_llm_calls
    statuses = {(search.status.status_code, search.status.description) for search in spans("search")}
    assert statuses == {(StatusCode.ERROR, "the search failed")}


def test_a_search_that_is_withdrawn_ends_with_its_turn(spans):
    policy = ScriptedPolicy({QUESTION: ["<think> a </think> <search> one </search>"]})
    with Agent(policy, Search(demo.retriever(latency_s=60.0))) as agent, traced() as on_event:
        for event in agent.stream(QUESTION, on_event):
            if event.kind == "query":
                break
    (search,) = spans("search")
    assert search.attributes["parallelsearch.withdrawn"] is True
    assert len(spans("question")) == len(spans("turn")) == 1


def test_one_handler_may_follow_questions_one_after_another(spans):
    policy = demo.DemoPolicy()
    policy.tokens_per_s = None
    on_event = traced()
    with Agent(policy) as agent:
        for _ in range(2):
            agent.ask(QUESTION, on_event)
    first, second = spans("question")
    assert first.context.trace_id != second.context.trace_id
    assert first.attributes["parallelsearch.num_turns"] == second.attributes["parallelsearch.num_turns"] == 2


# ---- the agent server ------------------------------------------------------------------------------------------------


async def ask_server(*bodies, headers=None, policy=None, **settings):
    """Put these questions to the server's application, all at once."""
    search = Search(demo.retriever(latency_s=1.0), cache_size=0)
    app = create_agent_app(policy or demo.DemoPolicy(), search, AgentSettings(token=None, **settings))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        asked = [
            client.post(
                "/v1/chat/completions",
                json={"model": "parallelsearch", "messages": [{"role": "user", "content": QUESTION}], **body},
                headers=headers,
            )
            for body in bodies
        ]
        return await asyncio.gather(*asked)


async def test_the_agent_server_makes_spans_whole_and_streamed(spans):
    whole, streamed = await ask_server({}, {"stream": True})
    assert (whole.status_code, streamed.status_code) == (200, 200)
    questions = spans("question")
    assert len({question.context.trace_id for question in questions}) == 2  # two requests, two traces
    for question in questions:
        mine = [
            span
            for name in ("turn", "search")
            for span in spans(name)
            if span.context.trace_id == question.context.trace_id
        ]
        assert [span.name for span in mine] == ["parallelsearch.turn"] * 2 + ["parallelsearch.search"] * 2
        assert mine[3].start_time < mine[2].end_time
    assert "Monet" not in str([dict(span.attributes) for span in questions + spans("search")])


async def test_a_request_belongs_to_the_trace_its_header_names(spans):
    caller = "4bf92f3577b34da6a3ce929d0e0e4736"
    await ask_server({}, headers={"traceparent": f"00-{caller}-00f067aa0ba902b7-01"}, logs_queries=True)
    (question,) = spans("question")
    assert f"{question.context.trace_id:032x}" == caller
    assert f"{question.parent.span_id:016x}" == "00f067aa0ba902b7"
    assert "Monet" in str([dict(span.attributes) for span in spans("search")])  # the log has it too: it was asked for


async def test_a_question_that_the_policy_fails_is_an_error(spans):
    (reply,) = await ask_server({}, policy=ScriptedPolicy({QUESTION: [UNFINISHED]}))
    assert reply.status_code == 502
    (question,) = spans("question")
    assert (question.status.status_code, question.status.description) == (StatusCode.ERROR, "RefusalError")
    assert len(spans("turn")) == 2


def test_without_opentelemetry_events_pass_through():
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from parallelsearch import Event\n"
        "from parallelsearch.telemetry import traced\n"
        "seen = []\n"
        "with traced(seen.append) as on_event: on_event(Event('turn', 0, 0.0))\n"
        "print(len(seen))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=400)
    assert result.stdout.strip() == "1", result.stderr

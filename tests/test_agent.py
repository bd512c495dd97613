"""The front door: streams of events, blocking and async, and what becomes of a rollout nobody watches any more."""

import asyncio
import gc
import threading
import time

import pytest

from parallelsearch import Agent, Search, demo
from parallelsearch.errors import UsageError
from parallelsearch.policy.scripted import ScriptedPolicy

QUESTION = "Who is older, Claude Monet or Camille Pissarro?"
ENDLESS = "<think> " + "still thinking " * 2000


@pytest.fixture
def quick():
    policy = demo.DemoPolicy()
    policy.tokens_per_s = None
    with Agent(policy) as agent:
        yield agent


class Watched(ScriptedPolicy):
    """Writes slowly and remembers how its last turn ended."""

    def __init__(self):
        super().__init__({QUESTION: [ENDLESS]}, tokens_per_s=200)
        self.was_cancelled = threading.Event()

    async def generate(self, *args, **options):
        try:
            return await super().generate(*args, **options)
        except asyncio.CancelledError:
            self.was_cancelled.set()
            raise


def test_a_stream_tells_everything_in_order_and_ends_with_the_trajectory(quick):
    stream = quick.stream(QUESTION)
    events = list(stream)
    assert stream.trajectory.answer == "Camille Pissarro"
    kinds = [event.kind for event in events]
    assert kinds[0] == "turn"
    assert kinds[-1] == "answer"
    assert kinds.count("query") == kinds.count("result") == stream.trajectory.num_subqueries == 2
    assert [event.time_s for event in events] == sorted(event.time_s for event in events)
    assert {event.query.text for event in events if event.query} == {q.text for q in stream.trajectory.turns[0].queries}
    assert list(stream) == []  # over is over


async def test_the_async_stream_is_the_same():
    policy = demo.DemoPolicy()
    policy.tokens_per_s = None
    agent, seen = Agent(policy), []
    stream = agent.stream_async(QUESTION, on_event=seen.append)
    events = [event async for event in stream]
    assert events == seen
    assert stream.trajectory.answer == "Camille Pissarro"
    await agent.aclose()


def test_events_come_while_the_rollout_runs():
    with Agent(demo.DemoPolicy(), Search(demo.retriever(latency_s=0.3))) as agent:
        arrived = [(time.perf_counter(), event) for event in agent.stream(QUESTION)]
    first_query = next(at for at, event in arrived if event.kind == "query")
    assert arrived[-1][0] - first_query > 0.25


def test_an_empty_question_is_refused(quick):
    with pytest.raises(UsageError, match="empty"):
        next(quick.stream(" "))


def test_who_leaves_a_loop_cancels_the_rollout():
    policy = Watched()
    with Agent(policy) as agent:
        for event in agent.stream(QUESTION):
            if event.kind == "text":
                break
        gc.collect()
        assert policy.was_cancelled.wait(5)


def test_a_closed_stream_is_over():
    policy = Watched()
    with Agent(policy) as agent:
        with agent.stream(QUESTION) as stream:
            next(stream)
            next(stream)
        assert policy.was_cancelled.is_set()
        assert stream.trajectory is None
        assert next(stream, None) is None
        agent.stream(QUESTION).close()  # never begun


def test_closing_the_agent_ends_a_stream_that_waits_in_another_thread():
    policy = Watched()
    agent, num_seen = Agent(policy), []
    stream = agent.stream(QUESTION)
    next(stream)
    reader = threading.Thread(target=lambda: num_seen.append(sum(1 for _ in stream)))
    reader.start()
    time.sleep(0.1)
    agent.close()
    reader.join(timeout=10)
    assert not reader.is_alive()
    assert num_seen
    assert policy.was_cancelled.is_set()
    assert stream.trajectory is None
    stream.close()


async def test_an_agent_closed_from_another_loop_ends_its_blocking_streams():
    policy = Watched()
    agent = Agent(policy)
    stream = agent.stream(QUESTION)
    await asyncio.to_thread(next, stream)
    await asyncio.to_thread(next, stream)
    await agent.aclose()
    assert await asyncio.to_thread(policy.was_cancelled.wait, 5)
    assert next(stream, None) is None
    await asyncio.to_thread(agent.close)


async def test_an_async_reader_that_is_cancelled_cancels_the_rollout():
    policy = Watched()
    agent = Agent(policy)
    stream = agent.stream_async(QUESTION)

    async def read():
        async for _ in stream:
            pass

    reader = asyncio.create_task(read())
    await asyncio.sleep(0.1)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    await stream.aclose()
    assert policy.was_cancelled.is_set()

    async with agent.stream_async(QUESTION) as again:
        policy.was_cancelled.clear()
        await anext(again)
        await anext(again)
    assert policy.was_cancelled.is_set()
    await agent.aclose()


def test_an_agent_that_was_closed_starts_anew(quick):
    assert quick.ask(QUESTION).answer == "Camille Pissarro"
    threads = threading.active_count()
    quick.close()
    assert threading.active_count() < threads
    quick.search = Search(demo.retriever())
    assert quick.ask(QUESTION).answer == "Camille Pissarro"

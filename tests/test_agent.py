"""The front door: streams of events, blocking and async, and what becomes of a rollout nobody watches any more."""

import asyncio
import gc
import inspect
import json
import threading
import time

import pytest

from echoing import EchoRetriever
from parallelsearch import Agent, Search, read_trajectories, write_trajectories
from parallelsearch.agent import AskManyOptions, AskOptions, RetrieveOptions, SplitOptions
from parallelsearch.data import demo
from parallelsearch.errors import UsageError
from parallelsearch.events import EventStream
from parallelsearch.limits import Limits
from parallelsearch.policy.scripted import ScriptedPolicy
from parallelsearch.retrieval import BM25Retriever, Passage
from parallelsearch.retrieving import retrieve
from parallelsearch.rollout import Event, RolloutOptions, rollout
from virtual_time import in_virtual_time

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
        super().__init__({QUESTION: [ENDLESS]}, tokens_per_s=20)
        self.began = threading.Event()
        self.was_cancelled = threading.Event()

    async def generate(self, *args, **options):
        self.began.set()
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
    was_seen = threading.Event()

    class Waiting(EchoRetriever):
        async def search_many(self, queries, k):
            assert await asyncio.to_thread(was_seen.wait, 120), "the query was not told while it ran"
            return await super().search_many(queries, k)

    with Agent(demo.DemoPolicy(), Search(Waiting())) as agent:
        stream = agent.stream(QUESTION)
        for event in stream:
            if event.kind == "query":
                was_seen.set()
    assert stream.trajectory.num_failed_queries == 0


def test_an_empty_question_is_refused(quick):
    with pytest.raises(UsageError, match="empty"):
        next(quick.stream(" "))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda agent: agent.ask(None), "a question is a text or a Question, not NoneType"),
        (lambda agent: agent.ask([QUESTION]), "not list; for a list: ask_many"),
        (lambda agent: agent.ask("?! 🙂"), "no word in it"),
        (lambda agent: agent.ask_many(QUESTION), "many questions are a list of them"),
        (lambda agent: agent.ask(QUESTION, k=0), "k is the number of hits"),
        (lambda agent: agent.ask(QUESTION, k="3"), "from 1 to 1000, not '3'"),
        (lambda agent: agent.retrieve(QUESTION, rounds=2.5), "rounds is how often .*: a whole number, not 2.5"),
        (lambda agent: agent.retrieve(QUESTION, depth="3"), "depth is how many hits .*: a whole number, not '3'"),
        (lambda agent: agent.retrieve(QUESTION, max_tokens="50"), "max_tokens is .*: a whole number, not '50'"),
        (lambda agent: agent.ask_many([QUESTION], "2"), "max_concurrent is .*: a whole number, not '2'"),
        (lambda agent: agent.ask(QUESTION, limits={"max_turns": 2}), r"written Limits\(max_turns=2\), not as dict"),
        (lambda agent: agent.ask(QUESTION, sampling=0.7), r"Sampling\(temperature=0.7\), not as float"),
        (lambda agent: agent.ask(QUESTION, answer_with="demo"), r"open_policy\('hf:...'\), not str"),
        (lambda agent: Agent(None), "a policy is an address, such as 'auto', or a Policy, not NoneType"),
        (lambda agent: Agent("demo", limits={"max_turns": 2}), "not as dict"),
    ],
)
def test_wrong_use_is_told_what_to_write(quick, wrong, words):
    with pytest.raises(UsageError, match=words):
        wrong(quick)


def test_one_of_many_that_is_no_question_costs_no_other(quick):
    right, wrong = quick.ask_many([QUESTION, None])
    assert right.answer == "Camille Pissarro"
    assert "not NoneType" in wrong.error


def test_of_many_each_is_told_as_it_ends_so_that_an_interrupt_costs_only_the_rest():
    policy = ScriptedPolicy(
        {QUESTION: ["<think> x </think><answer> Rome </answer>"], "endless?": [ENDLESS]}, tokens_per_s=99
    )
    told = {}

    def keep(number, trajectory):
        told[number] = trajectory
        if len(told) == 2:
            raise InterruptedError  # stands for a cell that is stopped

    with Agent(policy) as agent:
        with pytest.raises(InterruptedError):
            agent.ask_many([QUESTION, "endless?", QUESTION], on_done=keep)
        assert sorted(told) == [0, 2]
        assert [one.abstained.answer for one in told.values()] == ["Rome", "Rome"]  # taken back, as in the list
        assert agent.ask(QUESTION, abstain=False).answer == "Rome"


def test_who_could_never_be_told_is_refused_before_anything_is_asked(quick):
    async def keep(number, trajectory):
        raise AssertionError("an async function that is called and not awaited does nothing")

    for wrong, said in ((keep, "an async one"), ({}, "dict")):
        with pytest.raises(UsageError, match=f"written with def, not {said}"):
            quick.ask_many([QUESTION], on_done=wrong)


def test_what_a_notebook_shows_is_short(quick):
    asked, found = quick.ask(QUESTION), quick.retrieve(QUESTION)
    assert repr(asked) == (
        f"<Trajectory '{QUESTION}', answer='Camille Pissarro', stop='answer', 2 LLM calls, 2 sub-queries>"
    )
    assert repr(found).startswith(f"<Retrieval '{QUESTION}', 2 sub-queries, 8 passages: 'Claude Monet', ")
    assert repr(quick) == "<Agent, policy demo, search bm25>"


def test_who_leaves_a_loop_cancels_the_rollout():
    policy = Watched()
    with Agent(policy) as agent:
        for event in agent.stream(QUESTION):
            if event.kind == "text":
                break
        gc.collect()
        assert policy.was_cancelled.wait(60)


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
    assert policy.began.wait(60)
    agent.close()
    reader.join(timeout=60)
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
    assert await asyncio.to_thread(policy.was_cancelled.wait, 60)
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
    assert await asyncio.to_thread(policy.began.wait, 60)
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


def test_closing_the_agent_ends_a_call_that_waits_in_another_thread():
    class Slow:
        async def search_many(self, queries, k):
            await asyncio.sleep(60)

    policy = demo.DemoPolicy()
    policy.tokens_per_s = None
    agent, told = Agent(policy, Slow()), []

    def ask():
        try:
            agent.ask(QUESTION)
        except UsageError as error:
            told.append(str(error))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    time.sleep(0.5)
    agent.close()
    thread.join(20)
    assert not thread.is_alive()
    assert told == ["this was closed while a call was under way, which ended without a result"]


def test_of_two_threads_that_close_an_agent_the_second_waits(monkeypatch):
    ended = []

    class Policy(demo.DemoPolicy):
        async def aclose(self):
            await asyncio.sleep(0.2)
            ended.append("policy")

    monkeypatch.setattr("parallelsearch.agent.open_policy", lambda address: Policy())
    agent, told = Agent("demo", "demo"), []

    def close():
        try:
            agent.close()
            told.append(list(ended))
        except BaseException as error:
            told.append(error)

    threads = [threading.Thread(target=close, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert told == [["policy"]] * 3


def test_an_agent_closed_in_two_event_loops_is_closed_in_one_after_the_other(monkeypatch):
    """A thread that calls `close()` while an `async with` of another ends: it used to get the other's cancellation, and what
    was opened was closed in both loops at once."""
    order, is_closing = [], threading.Event()

    class Policy(demo.DemoPolicy):
        async def aclose(self):
            order.append("begun")
            is_closing.set()
            await asyncio.sleep(0.2)
            order.append("closed")

    monkeypatch.setattr("parallelsearch.agent.open_policy", lambda address: Policy())
    agent = Agent("demo", "demo")
    agent.ask(QUESTION)  # there is a loop of its own now

    async def elsewhere():
        async with agent:
            pass

    thread = threading.Thread(target=asyncio.run, args=[elsewhere()], daemon=True)
    thread.start()
    assert is_closing.wait(20)
    agent.close()
    assert order == ["begun", "closed"] * 2
    thread.join(20)
    assert not thread.is_alive()


@pytest.mark.parametrize("asks", [True, False])
def test_an_agent_closes_what_it_opened_and_not_what_it_was_given(monkeypatch, asks):
    closed = []

    class Policy(demo.DemoPolicy):
        tokens_per_s = None

        async def aclose(self):
            closed.append("policy")

    class Backend(BM25Retriever):
        async def aclose(self):
            closed.append("search")
            await super().aclose()

    backend = Backend.from_passages([Passage("1", "a", "b")])
    search, policy = Search(backend), Policy()
    for _ in range(2):  # a search and a policy that two agents share, one after the other
        with Agent(policy, search, answer_with=policy) as agent:
            assert not asks or agent.ask(QUESTION).num_failed_queries == 0
    assert closed == []
    monkeypatch.setattr("parallelsearch.agent.open_policy", lambda address: policy)
    agent = Agent("demo", backend, answer_with="demo")
    assert not asks or agent.ask(QUESTION).num_failed_queries == 0
    agent.close()
    agent.close()
    assert closed == ["search", "policy", "policy"]


def test_a_question_has_limits_of_its_own(quick):
    asked = quick.ask(QUESTION, limits=Limits(max_turns=1))
    assert (asked.limits["max_turns"], quick.ask(QUESTION).limits["max_turns"]) == (1, Limits().max_turns)


@in_virtual_time
async def test_events_that_may_wait_go_together():
    async def work(tell):
        for kind in ("turn", "text", "text", "query"):
            tell(Event(kind, 0, 0.0))
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        tell(Event("text", 0, 0.0))
        return "done"

    stream = EventStream(work, pace=lambda event: 0.0 if event.kind == "query" else 30.0)
    assert await stream.take(timeout_s=0.001) == []  # nobody is cancelled by that
    assert [event.kind for event in await stream.take()] == ["turn", "text", "text", "query"]
    assert (stream.is_over, stream.outcome()) == (False, None)
    assert [event.kind for event in await stream.take()] == ["text"]  # the end does not wait
    assert (stream.is_over, stream.outcome()) == (True, "done")
    assert await stream.take() == []


@in_virtual_time
async def test_a_stream_that_may_not_wait_that_long_is_read_sooner():
    async def work(tell):
        tell(Event("text", 0, 0.0))
        tell(Event("result", 0, 0.0))
        await asyncio.sleep(0)
        tell(Event("result", 0, 0.0))
        await asyncio.sleep(30)

    async with EventStream(work, pace=lambda event: 0.01 if event.kind == "result" else 30.0) as stream:
        taken = await asyncio.wait_for(stream.take(), 5.0)
    assert [event.kind for event in taken] == ["text", "result", "result"]


async def batches(stream):
    while not stream.is_over:
        for event in await stream.take():
            yield event.kind


async def test_what_the_work_raised_is_raised_after_its_events():
    async def work(tell):
        tell(Event("turn", 0, 0.0))
        raise UsageError("broken")

    one_by_one = EventStream(work)
    assert (await anext(one_by_one)).kind == "turn"
    with pytest.raises(UsageError, match="broken"):
        await anext(one_by_one)
    assert await anext(one_by_one, None) is None
    in_batches = EventStream(work)
    assert [event async for event in batches(in_batches)] == ["turn"]
    with pytest.raises(UsageError, match="broken"):
        in_batches.outcome()


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("is_async", [True, False])
def test_an_agent_that_was_closed_says_so_at_every_call(quick, asked, is_async):
    if asked:  # and would know the answer
        assert quick.ask(QUESTION).answer == "Camille Pissarro"
    if is_async:
        asyncio.run(quick.aclose())
    else:
        quick.close()
    calls = [quick.ask, quick.split, quick.retrieve, lambda question: next(quick.stream(question))]
    calls.append(lambda question: quick.ask_many([question]))
    calls += [lambda question, ask=ask: asyncio.run(ask(question)) for ask in (quick.ask_async, quick.retrieve_async)]
    for call in calls:
        with pytest.raises(UsageError, match="this agent was closed and answers no more; make another one"):
            call(QUESTION)
    quick.close()
    assert not quick._loop.is_running


# ---- options, and leaving ----------------------------------------------------------------------------------------------


def test_a_misspelt_option_names_the_nearest_one():
    with pytest.raises(UsageError, match=r"Agent has no option 'serach'. Did you mean 'search'\?"):
        Agent(serach="demo")
    with Agent() as agent:
        with pytest.raises(UsageError, match=r"Agent.ask has no option 'limit'. Did you mean 'limits'\?"):
            agent.ask(QUESTION, limit=Limits())
        with pytest.raises(UsageError, match=r"Did you mean 'context'\?"):
            agent.stream(QUESTION, contxt="").__next__()
        with pytest.raises(UsageError, match=r"Agent.retrieve has no option 'depht'. Did you mean 'depth'"):
            agent.retrieve(QUESTION, depht=3)
        with pytest.raises(UsageError, match=r"Agent.ask_many has no option 'sampler'"):
            agent.ask_many([QUESTION], sampler=None)


def test_the_options_of_an_agent_are_those_of_a_rollout():
    """A typed dict cannot be made of a signature: this is what holds the two together."""
    of_rollout = {
        name: parameter.annotation
        for name, parameter in inspect.signature(rollout).parameters.items()
        if name not in ("question", "policy", "search", "on_event", "until")
    }
    of_one = {name: hint.__forward_arg__ for name, hint in AskOptions.__annotations__.items()}
    assert of_one == {**of_rollout, "abstain": "bool"}
    assert set(AskManyOptions.__annotations__) == {*of_one, "on_event", "on_done"}
    assert set(RolloutOptions.__annotations__) == {*of_rollout, "on_event"} - {"limits", "sampling", "session"}
    of_retrieve = {name for name, one in inspect.signature(retrieve).parameters.items() if one.kind is one.KEYWORD_ONLY}
    assert set(RetrieveOptions.__annotations__) - set(SplitOptions.__annotations__) == of_retrieve - {"k", "limits"}


async def test_an_agent_closes_itself_in_async_code_too(echo):
    closed = []

    class Closing(echo):
        async def aclose(self):
            closed.append(self)

    async with Agent(search=Closing()) as agent:
        assert (await agent.ask_async(QUESTION)).answer == "Camille Pissarro"
        await asyncio.to_thread(agent.ask, QUESTION)  # a blocking call has the agent's own thread started
    assert len(closed) == 1
    assert not agent._loop.is_running


def test_a_turn_has_its_text_also_when_it_was_read_from_a_file(tmp_path):
    with Agent() as agent:
        trajectory = agent.ask(QUESTION)
    texts = [segment.text for segment in trajectory.segments if segment.author == "model"]
    assert [turn.text for turn in trajectory.turns] == texts
    assert all(turn.thought and turn.thought in turn.text for turn in trajectory.turns)
    write_trajectories(tmp_path / "t.jsonl", [trajectory])
    (again,) = read_trajectories(tmp_path / "t.jsonl")
    assert [turn.text for turn in again.turns] == texts
    assert '"text"' not in json.dumps([{**turn, "queries": []} for turn in trajectory.to_dict()["turns"]])

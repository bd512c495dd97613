"""The Python front door: an agent that answers questions, blocking or async.

    agent = Agent(policy="openai:http://localhost:8000/v1#MODEL", search="bm25:my-index")
    print(agent.ask("Who is older, Claude Monet or Camille Pissarro?").answer)

Blocking calls run in an event loop of the agent's own thread, so they also work in a notebook, and connections are kept
between questions. `stream` gives the events of a rollout as they happen; who stops reading cancels the rollout. Both
`with` and `async with` close it: what it opened itself (an address, a backend) is closed with it, a `Policy` or a `Search`
that it was given is not. An option that is not known is an error at once, to a type checker and when it runs.

The package's adapters are twins: one was trained to search for all at once, one for one thing at a time. Asked in the
other's dialect, an agent with one of them loads the other, once, and has it answer. The record says which it was.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from types import TracebackType
from typing import Any, Never, TypedDict, TypeVar, Unpack

from parallelsearch.addresses import DEFAULT_POLICY, open_policy, open_twin, search_of
from parallelsearch.conversing.conversation import Conversation
from parallelsearch.dialect import Dialect
from parallelsearch.errors import UsageError, closed, refuse_unknown
from parallelsearch.events import EventStream
from parallelsearch.grounding import sentence_of, take_back
from parallelsearch.limits import Limits
from parallelsearch.policy.base import Policy, Sampling, check_policy
from parallelsearch.retrieval.own import Backend
from parallelsearch.retrieving import DEFAULT_K, Retrieval, Split, retrieve, split
from parallelsearch.rollout import Event, OnEvent, rollout
from parallelsearch.rollouts import MAX_CONCURRENT, rollout_each
from parallelsearch.search import Search, check_k
from parallelsearch.trajectory import Question, Trajectory

T = TypeVar("T")


class _Options(TypedDict, total=False):
    """What a question may have otherwise than its agent, whatever is made of it: options of `rollout`."""

    limits: Limits | None
    sampling: Sampling | None
    dialect: Dialect | str | None
    streaming_dispatch: bool
    session: str | None
    context: str
    fresh: bool


class AskOptions(_Options, total=False):
    """The same for a question that is answered."""

    abstain: bool
    answer_with: Policy | None
    written: bool
    k: int | None


class SplitOptions(_Options, total=False):
    """The same for a question that is split."""

    on_event: OnEvent | None


class RetrieveOptions(SplitOptions, total=False):
    """The same for a question whose passages are wanted (`retrieving.retrieve`)."""

    rounds: int
    depth: int | None
    max_tokens: int | None


class AskManyOptions(TypedDict, total=False):
    """The same for many questions: sampling and session may be functions of a question's number (`rollout_many`)."""

    limits: Limits | None
    sampling: Sampling | Callable[[int], Sampling] | None
    dialect: Dialect | str | None
    streaming_dispatch: bool
    session: Callable[[int], str] | None
    context: str
    fresh: bool
    abstain: bool
    answer_with: Policy | None
    written: bool
    k: int | None
    on_event: OnEvent | None
    on_done: Callable[[int, Trajectory], object] | None


class LoopThread:
    """An event loop in a thread of its own, started when first used: how blocking callers reach async code. `what` is whose
    it is, for messages."""

    def __init__(self, what: str) -> None:
        self.what, self.is_stopped, self.is_ending = what, False, False
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._under_way: set[Future[Any]] = set()

    @property
    def is_running(self) -> bool:
        return self._loop is not None

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start the work; a cancelled future cancels it."""
        with self._lock:
            if self.is_stopped:
                work.close()
                raise closed(self.what)
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                name = f"parallelsearch-{self.what}"
                self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
                self._thread.start()
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)
        return future

    def end_calls(self) -> None:
        """End what is under way: who waits for it is told."""
        self.is_ending = True
        for future in list(self._under_way):
            future.cancel()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do the work and wait for it. Ctrl-C cancels it."""
        if threading.current_thread() is self._thread:
            work.close()
            raise UsageError(
                "this waits for the agent's own thread, from that thread (inside on_event or on_done?), and would wait for "
                "ever; ask from another thread, or use ask_async"
            )
        future = self.submit(work)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise
        except CancelledError:
            raise UsageError("this was closed while a call was under way, which ended without a result") from None

    def stop(self) -> None:
        """End loop and thread, and with them whatever is under way: who waits for it is told, and who comes later."""
        with self._lock:
            self.is_stopped = True
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(_cancel_all(), loop).result(timeout=30)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(timeout=30)
            loop.close()


async def _cancel_all() -> None:
    """Everything in the running loop but this."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=10)


class RolloutStream(EventStream[Trajectory]):
    """The events of one rollout: `async for event in stream: ...`, then `stream.trajectory`."""

    @property
    def trajectory(self) -> Trajectory | None:
        """What came of it, once the stream is over; None where the rollout was cancelled or raised."""
        try:
            return self.outcome() if self.is_over else None
        except Exception:  # who read the stream was told
            return None


class BlockingEventStream(Iterator[Event]):
    """The same for a blocking caller: `for event in stream: ...`, then `stream.trajectory`."""

    def __init__(self, events: RolloutStream, loop: LoopThread) -> None:
        self._events, self._loop = events, loop

    @property
    def trajectory(self) -> Trajectory | None:
        return self._events.trajectory

    def __next__(self) -> Event:
        event = None
        if not self._events.is_over:
            try:
                event = self._loop.run(self._events.next_event())
            except UsageError:
                if not (self._loop.is_ending and self._events.is_over):  # else the agent was closed, and it with that
                    raise
        if event is None:
            raise StopIteration
        return event

    def close(self) -> None:
        """Cancel the rollout if it still runs, and wait until it is gone."""
        if not self._events.is_over and self._loop.is_running:
            self._loop.run(self._events.aclose())

    def __enter__(self) -> BlockingEventStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Agent:
    """Answers questions with a policy and a search, given as addresses or as objects."""

    def __init__(
        self,
        policy: Policy | str = DEFAULT_POLICY,
        search: Search | Backend | str = "demo",
        *,
        limits: Limits | None = None,
        sampling: Sampling | None = None,
        k: int = 3,
        dialect: Dialect | str | None = None,
        streaming_dispatch: bool = True,
        abstain: bool = True,
        answer_with: Policy | str | None = None,
        written: bool = False,
        **unknown: Never,
    ) -> None:
        """`search` is an address, a backend of your own (`retrieval/own.py`: an object or a function) or a `Search`.
        `dialect` is how the model talks (`parallel`, `sequential`, `search-r1`, ... or an object); left out, it is
        what the policy was trained on. An answer that rests on nothing that was found is taken back: `answer` is None then,
        and `abstained` says why and what it was (`grounding.py`); `abstain=False` gives every answer.
        `answer_with` is another model, by its address or as an object, that reads what the policy found and answers.
        `written` asks for a text with its sources, in Markdown, rather than a short answer: of a chat model or the reader.
        A `Policy` or `Search` given as an object stays open when the agent is closed: who opened it closes it, and several
        agents may share it. Addresses are the agent's to close, and so is a backend, which it makes a `Search` of."""
        refuse_unknown(unknown, _AGENT_OPTIONS, "Agent")
        self.policy = open_policy(policy) if isinstance(policy, str) else policy
        check_policy(self.policy, takes_address=True)
        self.search = search_of(search, k)
        self.limits, self.sampling = limits or Limits(), sampling or Sampling()
        self.reader = open_policy(answer_with) if isinstance(answer_with, str) else answer_with
        _check({"limits": limits, "sampling": sampling, "answer_with": self.reader})
        held = ((self.search, search), (self.policy, policy), (self.reader, answer_with))
        self._opened = [made for made, given in held if made is not None and made is not given]
        self._options: dict[str, Any] = {"dialect": dialect, "streaming_dispatch": streaming_dispatch}
        self._options |= {"answer_with": self.reader, "written": written}
        self.abstain = abstain
        self._twins: dict[str, Policy] = {}
        self._twins_lock = threading.Lock()
        self._loop = LoopThread("agent")
        self._is_closed, self._closing = False, threading.RLock()
        self._closer_lock = threading.Lock()
        self._closer: Future[None] | None = None
        """Who closes what the agent opened, in whatever event loop; done once that is closed."""
        self._streams: weakref.WeakSet[RolloutStream] = weakref.WeakSet()

    def __repr__(self) -> str:
        closed_now = ", closed" if self._is_closed else ""
        return f"<Agent, policy {self.policy.name}, search {self.search.retriever.name}{closed_now}>"

    def _settings(self, options: Mapping[str, object], of: str, kind: type) -> tuple[bool, dict[str, Any]]:
        """Whether to abstain, and what `rollout` is given: the agent's own settings, and a question's in their place."""
        if self._is_closed:
            raise closed("agent")
        refuse_unknown(options, kind.__annotations__, of)
        settings = {"limits": self.limits, "sampling": self.sampling, **self._options, **options}
        _check(settings)
        if settings.get("k") is not None:
            check_k(settings["k"], self.search.max_k)
        return bool(settings.pop("abstain", self.abstain)), settings

    async def _policy_for(self, settings: Mapping[str, Any]) -> Policy:
        """The policy, or its twin that was trained on the dialect asked for. To load it must not hold the others up."""
        dialect = settings["dialect"]
        if not isinstance(dialect, str) or dialect == self.policy.dialect or self.policy.address is None:
            return self.policy
        if dialect not in self._twins:
            await asyncio.to_thread(self._load_twin, dialect)
        return self._twins.get(dialect, self.policy)

    def _load_twin(self, dialect: str) -> None:
        with self._twins_lock:
            if dialect not in self._twins and not self._is_closed:
                self._twins[dialect] = open_twin(self.policy, dialect) or self.policy

    def _loaded_twins(self) -> list[Policy]:
        with self._twins_lock:  # one may be loading just now
            return [twin for twin in self._twins.values() if twin is not self.policy]

    async def ask_async(
        self, question: Question | str, on_event: OnEvent | None = None, **options: Unpack[AskOptions]
    ) -> Trajectory:
        """Answer one question in the running event loop. `options` are `abstain` and those of `rollout`, for this question
        alone."""
        abstain, settings = self._settings(options, "Agent.ask", AskOptions)
        await self.search.check()
        policy = await self._policy_for(settings)
        done = await rollout(question, policy, self.search, on_event=on_event, **settings)
        if abstain and take_back(done).abstained is not None and on_event is not None:
            on_event(Event("abstained", max(0, len(done.turns) - 1), done.elapsed_s or 0.0, sentence_of(done)))
        return done

    async def ask_many_async(
        self,
        questions: Iterable[Question | str],
        max_concurrent: int = MAX_CONCURRENT,
        **options: Unpack[AskManyOptions],
    ) -> list[Trajectory]:
        """Answer many questions at once; the order is kept. Each gets a seed of its own. One that breaks costs no other.
        `on_done(number, trajectory)` is told of each as it ends: for a progress bar, and to keep what is done when the rest
        is interrupted."""
        abstain, settings = self._settings(options, "Agent.ask_many", AskManyOptions)
        on_done = settings.pop("on_done", None)
        await self.search.check()
        policy = await self._policy_for(settings)
        done: dict[int, Trajectory] = {}

        def keep(number: int, trajectory: Trajectory) -> None:
            done[number] = take_back(trajectory) if abstain else trajectory
            if on_done is not None:
                on_done(number, done[number])

        await rollout_each(questions, policy, self.search, max_concurrent=max_concurrent, on_done=keep, **settings)
        return [done[number] for number in sorted(done)]

    def stream_async(
        self, question: Question | str, on_event: OnEvent | None = None, **options: Unpack[AskOptions]
    ) -> RolloutStream:
        """Answer one question in the running event loop and give the events as they happen: `async for event in ...`.
        `on_event` is told of each as well, at once."""

        def start(tell: OnEvent) -> Coroutine[Any, Any, Trajectory]:
            def both(event: Event) -> None:
                if on_event is not None:
                    on_event(event)
                tell(event)

            return self.ask_async(question, both, **options)

        stream = RolloutStream(start)
        self._streams.add(stream)
        return stream

    def ask(
        self, question: Question | str, on_event: OnEvent | None = None, **options: Unpack[AskOptions]
    ) -> Trajectory:
        """Answer one question."""
        return self._loop.run(self.ask_async(question, on_event, **options))

    def stream(
        self, question: Question | str, on_event: OnEvent | None = None, **options: Unpack[AskOptions]
    ) -> BlockingEventStream:
        """Answer one question and give the events as they happen; the stream's `trajectory` is there at its end."""
        return BlockingEventStream(self.stream_async(question, on_event, **options), self._loop)

    def ask_many(
        self,
        questions: Iterable[Question | str],
        max_concurrent: int = MAX_CONCURRENT,
        **options: Unpack[AskManyOptions],
    ) -> list[Trajectory]:
        """Answer many questions at once; the order is kept. `on_done(number, trajectory)` is told of each as it ends, in the
        agent's thread: for a progress bar, and to keep what is done when the rest is interrupted."""
        return self._loop.run(self.ask_many_async(questions, max_concurrent, **options))

    def conversation(self, system: str = "") -> Conversation:
        """Questions that may lean on each other: `with agent.conversation() as talk: talk.ask(...)`. `system` is what the
        model is told ahead of each."""
        return Conversation(self, system=system)

    async def split_async(self, question: str, **options: Unpack[SplitOptions]) -> Split:
        """The sub-queries of a question, in the running event loop: only the policy's first turn is written."""
        _, settings = self._settings(options, "Agent.split", SplitOptions)
        return await split(question, await self._policy_for(settings), **settings)

    async def retrieve_async(self, question: str, k: int = DEFAULT_K, **options: Unpack[RetrieveOptions]) -> Retrieval:
        """The `k` best passages for all parts of a question, in the running event loop. `options` are those of
        `retrieving.retrieve`: `rounds`, `max_tokens`, ..."""
        _, settings = self._settings(options, "Agent.retrieve", RetrieveOptions)
        await self.search.check()
        return await retrieve(question, await self._policy_for(settings), self.search, k=k, **settings)

    def split(self, question: str, **options: Unpack[SplitOptions]) -> Split:
        """The sub-queries of a question; nothing is searched."""
        return self._loop.run(self.split_async(question, **options))

    def retrieve(self, question: str, k: int = DEFAULT_K, **options: Unpack[RetrieveOptions]) -> Retrieval:
        """The `k` best passages for all parts of a question, for whatever model answers it."""
        return self._loop.run(self.retrieve_async(question, k, **options))

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run something in the agent's own event loop, where its blocking calls run too."""
        return self._loop.submit(work)

    def close(self) -> None:
        """Release connections, threads and memory of what the agent opened. Each call after it raises `UsageError`. An agent
        used in a `with` block closes itself. Of two that close it, in whatever thread, the second waits for the first."""
        with self._closing:
            if self._loop.is_running or not self._is_closed:  # one that never asked holds a policy and a search, too
                self._loop.submit(self._end_streams()).result(timeout=30)  # who reads one sees its end, and no error
                self._loop.end_calls()  # before what they use is closed
                self._loop.submit(self.aclose()).result(timeout=30)
                self._loop.stop()

    async def aclose(self) -> None:
        self._is_closed = True
        mine: Future[None] = Future()
        while (closer := self._next_closer(mine)) is not mine:
            await asyncio.shield(asyncio.wrap_future(closer))  # who no longer waits does not end it for others
        try:
            await self._end_streams()
            for one in [*self._opened, *await asyncio.to_thread(self._loaded_twins)]:
                await one.aclose()
        finally:
            mine.set_result(None)
        if not self._loop.is_running:  # nothing to wait for; it shall not start any more
            self._loop.stop()

    async def _end_streams(self) -> None:
        for stream in list(self._streams):
            await stream.aclose()

    def _next_closer(self, mine: Future[None]) -> Future[None]:
        """The one at work, or `mine`, which is it from now on."""
        with self._closer_lock:
            if self._closer is None or self._closer.done():
                self._closer = mine
            return self._closer

    def _stop(self) -> None:
        with self._closing:
            self._loop.stop()

    def __enter__(self) -> Agent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Agent:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
        if self._loop.is_running:  # blocking calls were made too, from other threads
            await asyncio.to_thread(self._stop)


_AGENT_OPTIONS = tuple(name for name in inspect.signature(Agent.__init__).parameters if name not in ("self", "unknown"))


def _check(settings: Mapping[str, Any]) -> None:
    """Refuse at once what would break in the middle of a question, and say what to write."""
    limits, sampling, reader = (settings.get(name) for name in ("limits", "sampling", "answer_with"))
    if limits is not None and not isinstance(limits, Limits):
        raise UsageError(f"limits are written Limits(max_turns=2), not as {type(limits).__name__}")
    if sampling is not None and not isinstance(sampling, Sampling) and not callable(sampling):
        raise UsageError(f"sampling is written Sampling(temperature=0.7), not as {type(sampling).__name__}")
    if reader is not None and not isinstance(reader, Policy):
        raise UsageError(
            f"answer_with takes a Policy, such as open_policy('hf:...'), not {type(reader).__name__}; Agent(answer_with=...) "
            "takes an address, too"
        )
    on_done = settings.get("on_done")
    if on_done is not None and (not callable(on_done) or inspect.iscoroutinefunction(on_done)):
        found = "an async one" if callable(on_done) else type(on_done).__name__
        raise UsageError(f"on_done takes a function of a number and a trajectory, written with def, not {found}")

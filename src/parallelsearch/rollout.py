"""The loop: from a question to an answer, with every sub-query of a turn at once.

`rollout` generates a turn, reads it, runs all its sub-queries concurrently, appends the results, and goes on until an
answer or a limit. With a streaming policy each sub-query's search starts the moment it is complete, while the model
still writes. Nothing that a policy or a search does wrong raises: it ends up in the trajectory as a stop reason, a
problem or an error. What the model is shown and how its text is read is the dialect's business, and what its calls cost
that of `policy/billing.py`. `rollouts.py` runs many behind one gate.

Limits in one place: `max_turns` turns may search, and one more must answer (the reference implementation's convention);
a model that searches there too is told so and may answer in another. A deadline cuts searches and turns short
early enough that the answer can still be given.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any, Literal, TypedDict

from parallelsearch import grammar
from parallelsearch.dialect import Dialect, Part
from parallelsearch.dialects import open_dialect
from parallelsearch.errors import NoToolsError, PolicyError, SearchClosedError, UsageError, closed
from parallelsearch.grammar import ParsedTurn
from parallelsearch.limits import MIN_TURN_TOKENS, Limits
from parallelsearch.observation import Observation
from parallelsearch.policy.asking import ODD_DATA, ask
from parallelsearch.policy.base import Generation, Message, OnCall, Policy, Sampling, check_policy, may_repeat
from parallelsearch.policy.billing import Bill
from parallelsearch.reading import STOP as READING_STOP
from parallelsearch.reading import answer_in, reading_prompt, written_in
from parallelsearch.retrieval.base import DegradedHits, Hit
from parallelsearch.search import Found, Search, check_search
from parallelsearch.trajectory import (
    TOO_COSTLY,
    Author,
    Query,
    Question,
    Reading,
    Segment,
    Shown,
    Stop,
    Trajectory,
    Turn,
)

MIN_OBSERVATION_TOKENS = 64
ANSWER_SHARE_OF_DEADLINE = 0.25
"""This part of the time is kept for the turn that must answer."""
SHORT_S = 60.0
"""A turn with less time than this may be cut off, whatever the engine is."""

_numbers = itertools.count()


EventKind = Literal["turn", "text", "query", "result", "shown", "notice", "reading", "answer", "abstained"]
"""`reading`: another model, which the text names, reads what was found and writes the answer. `abstained` comes after the
answer, where a front door takes it back: the text says why."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something a person may want to watch while it happens. `time_s` counts from the start of the rollout."""

    kind: EventKind
    turn: int
    time_s: float
    text: str = ""
    query: Query | None = None
    shown: tuple[Shown, ...] = ()
    """The passages that were put before the model, once a round's searches are back."""


OnEvent = Callable[[Event], None]
Until = Literal["answer", "results", "queries"]
"""How far a rollout goes: to the answer; until the results of its rounds are there; until its first queries are written."""


class RolloutOptions(TypedDict, total=False):
    """The options of `rollout` that are the same for every question of many, for functions that pass them on."""

    dialect: Dialect | str | None
    streaming_dispatch: bool
    on_event: OnEvent | None
    context: str
    k: int | None
    fresh: bool
    answer_with: Policy | None
    written: bool


async def rollout(
    question: Question | str,
    policy: Policy,
    search: Search,
    limits: Limits | None = None,
    *,
    dialect: Dialect | str | None = None,
    sampling: Sampling | None = None,
    streaming_dispatch: bool = True,
    on_event: OnEvent | None = None,
    session: str | None = None,
    context: str = "",
    k: int | None = None,
    fresh: bool = False,
    until: Until = "answer",
    answer_with: Policy | None = None,
    written: bool = False,
) -> Trajectory:
    """Answer one question: `await rollout(...)`. Raises only for wrong use (an empty question); everything else is in the
    trajectory.

    `dialect` is how the model talks; left out, it is the one the policy was trained on, or else the package's own.
    `context` goes before the question in the prompt; `k` overrides the search's number of hits; with `fresh` nothing comes
    from the search's cache, so that two runs can be timed against each other. `until` ends it before the answer: once
    `limits.max_turns` turns have searched ("results"), or with the first turn, whose queries are then not run ("queries").
    `answer_with` is another model that reads what was found and answers in the policy's place (`reading.py`); where it fails,
    the policy's own answer stands, and the record says so. `written` asks whoever answers for a text with its sources, in
    Markdown, rather than a short answer; a policy that was trained on short ones needs somebody else to write it.
    """
    asked = Question(question) if isinstance(question, str) else question
    if not isinstance(asked, Question):
        raise UsageError(f"a question is a text or a Question, not {type(asked).__name__}; for a list: ask_many")
    if asked.is_empty:
        raise UsageError(
            "the question is empty, there is no word in it; type one, for example: "
            "Who is older, Claude Monet or Camille Pissarro?"
        )
    check_policy(policy)
    check_search(search)
    if search.is_closed:
        raise closed("search")
    talk = open_dialect(dialect if dialect is not None else policy.dialect)
    if talk.tools and not policy.takes_tools:
        raise UsageError(
            f"the dialect '{talk.name}' needs a policy that takes tools, and '{policy.name}' takes none; leave it out, or "
            "take 'parallel'"
        )
    limits, reader = limits or Limits(), answer_with if until == "answer" else None
    wants_text = until == "answer" and (written or talk.is_written)
    if wants_text:
        limits = limits.for_text()
        talk, reader = (talk, reader) if reader is not None else _writer_of(talk, policy)
    name = session or f"rollout-{next(_numbers)}"
    async with policy.session(name) as key:
        while True:
            run = _Run(
                asked,
                policy,
                search,
                talk,
                limits,
                sampling or Sampling(),
                on_event,
                dispatches_early=streaming_dispatch,
                context=context,
                k=search.k if k is None else k,
                scope=name if fresh else "",
                until=until,
                reader=reader,
            )
            run.trajectory.written = wants_text or None
            try:
                await run.go(key)
            except (PolicyError, SearchClosedError) as error:
                if isinstance(error, NoToolsError) and dialect is None and run.trajectory.num_llm_calls == 1:
                    talk = open_dialect(None)  # nobody asked for tools: it is asked again, in the package's own dialect
                    if wants_text and reader is None:
                        talk, reader = _writer_of(talk, policy)
                    continue
                run.trajectory.stop, run.trajectory.error = "error", str(error)
            finally:
                run.withdraw()
            await run.let_reader_answer(name)
            return run.finish()


def _writer_of(talk: Dialect, policy: Policy) -> tuple[Dialect, Policy | None]:
    """How a policy is asked for a text: in a dialect that has it write one in place of an answer; or else it is its own
    reader, and writes it in a call of its own."""
    if talk.is_written or talk.written:
        return open_dialect(talk.written or talk), None
    if not can_write(policy):
        raise UsageError(
            f"'{policy.name}' was made to answer in a few words, and a text was asked for; name a chat model that writes it: "
            "--answer-with openai:BASE_URL#MODEL, in Python answer_with=. Or leave that out"
        )
    return talk, policy


def can_write(policy: Policy) -> bool:
    """Whether a text with its sources can be asked of it, and not only a short answer: weights that were trained here, or on
    another project's format, know nothing else, and nor do written turns."""
    return policy.may_write and (policy.dialect is None or bool(open_dialect(policy.dialect).written))


class _Run:
    """The state of one rollout."""

    def __init__(
        self,
        question: Question,
        policy: Policy,
        search: Search,
        dialect: Dialect,
        limits: Limits,
        sampling: Sampling,
        on_event: OnEvent | None,
        *,
        dispatches_early: bool,
        context: str,
        k: int,
        scope: str,
        until: Until,
        reader: Policy | None,
    ) -> None:
        self.policy, self.search, self.dialect, self.sampling = policy, search, dialect, sampling
        if dialect.max_turns is not None and dialect.max_turns < limits.max_turns:
            limits = replace(limits, max_turns=dialect.max_turns)
        self.limits, self.on_event = limits, on_event
        self.max_subqueries = limits.max_subqueries  # of the turn that is being written
        self.context, self.k, self.scope, self.until, self.reader = context, k, scope, until, reader
        self.start_s = time.perf_counter()
        self.writer = dialect.writer(policy.count_tokens)
        self.writer.special_tokens = policy.special_tokens
        self.prompt = ""
        self.num_side_calls = 0
        self.num_asked: int | None = None  # tokens of what the reader is asked
        self.max_tokens = min(limits.max_tokens, policy.max_context or limits.max_tokens)
        self.dispatches_early = dispatches_early and policy.streams
        self.tasks: dict[str, asyncio.Task[Found]] = {}
        self.written = ""  # of the turn being written, where the policy streams
        self.begun = ""  # what the chat template wrote of it, and its text therefore lacks
        self.callers_error: Exception | None = None
        self.trajectory = Trajectory.of(question)
        self.trajectory.dialect = dialect.name
        self.bill = Bill(
            policy, limits, self.trajectory, self.observation_tokens(limits.max_subqueries if dialect.may_split else 1)
        )
        self.bill.reading = self.reading_ahead
        self.with_tools: dict[str, Any] = {"tools": dialect.tools} if dialect.tools else {}
        self.trajectory.sampling, self.trajectory.limits = _plain(sampling), _plain(limits)
        self.trajectory.search = search.describe()

    # ---- the loop ----------------------------------------------------------------------------------------------------

    async def go(self, session: str) -> None:
        """Turns until an answer or a limit. `must_answer` is why no turn may search any more, once there is a reason.

        `max_turns` turns may search. The one after them should answer: it is asked for without a word, because a policy that
        knows when to stop would only be put off by one. If it searches all the same it is told, and has a last turn. Where
        room or time run out there is no turn to lose, so it is told at once. A dialect that says nothing
        (`notice_last_turn` is None) gives no such further turn. Where no answer is wanted (`until`), no turn must give one.
        """
        question = self.trajectory.question
        self.prompt = self.dialect.prompt(self.harmless(question), self.harmless(self.context))
        self.add(self.policy.prompt(self.prompt, question, **self.with_tools))
        must_answer: Stop | None = None
        before = self.dialect.queries_before(question)
        if before and self.num_payable() < len(before):
            self.trajectory.stop = "max_tokens"
            return
        if before:
            must_answer = await self.search_first(before, session)
        max_turns, last_word = self.limits.max_turns, self.dialect.notice_last_turn()
        num_turns = max_turns + (1 if last_word is None else 2)
        if self.until != "answer":
            num_turns = max_turns if self.until == "results" else 1
        for number in range(len(self.trajectory.turns), num_turns):
            if must_answer is None and number < max_turns and self.num_payable() == 0:
                must_answer = "max_tokens"
            if must_answer is not None and self.until != "answer":
                break
            if must_answer is not None and number > 0 and last_word is not None:
                self.notify(last_word, self.dialect.answer_start)
            is_told = must_answer is not None or last_word is None
            if number == max_turns:
                must_answer = must_answer or "max_turns"
            if self.room() < MIN_TURN_TOKENS or self.bill.would_pass("one more call"):
                self.trajectory.stop = "max_tokens" if number <= max_turns else "max_turns"
                return
            turn = await self.generate(
                session, number, must_answer is None, is_last=must_answer is not None and is_told
            )
            if turn is None:  # the deadline cut it off
                if must_answer is not None:
                    self.trajectory.stop = "timeout"
                    return
                must_answer = "timeout"
                continue
            parsed, record = turn
            if parsed.action == "answer":
                self.trajectory.answer, self.trajectory.stop = parsed.answer, "answer"
                self.emit("answer", number, parsed.answer or "")
                return
            if must_answer == "max_turns" and number == max_turns and last_word is not None:
                self.emit("notice", number, last_word)
                continue
            if must_answer is not None:
                self.trajectory.stop = must_answer
                if parsed.action is None and record.finish != "length":
                    self.take_untagged(number, record)
                return
            if parsed.action == "search":
                is_end = self.until == "results" and number + 1 == num_turns
                must_answer = await self.execute(number, parsed.queries, parsed.dropped, record, session, is_end)
            else:
                self.withdraw()
                text = self.dialect.notice_invalid(parsed.problems)
                self.notify(text)
                self.emit("notice", number, text)
            if must_answer is None and self.time_left() == 0:
                must_answer = "timeout"
            if must_answer is None and self.bill.would_pass("another round", num_calls=2):
                must_answer = "max_tokens"
        self.trajectory.stop = must_answer or "max_turns"

    async def search_first(self, queries: Sequence[str], session: str) -> Stop | None:
        """What the dialect looks up before the model is asked: a turn without a call."""
        self.emit("turn", 0)
        record = Turn(finish="stop", num_tokens=0, action="search", start_s=self.now())
        self.trajectory.turns.append(record)
        return await self.execute(0, tuple(queries), (), record, session)

    async def generate(
        self, session: str, number: int, may_search: bool, is_last: bool
    ) -> tuple[ParsedTurn, Turn] | None:
        """One call of the model. None if the deadline came first; what was written until then may hold an answer."""
        self.emit("turn", number)
        record = Turn(start_s=self.now())
        self.trajectory.turns.append(record)
        self.trajectory.num_llm_calls += 1
        self.written = ""
        starts = may_search and self.dispatches_early and self.until != "queries" and not self.bill.pays_searches
        self.max_subqueries = self.num_payable() if may_search else self.limits.max_subqueries
        follower = self.dialect.reader(self.dispatch(number), self.max_subqueries) if starts else None

        def on_call(number_of_call: int, name: str, piece: str) -> None:
            if follower is not None:
                follower.feed_call(number_of_call, name, piece)

        def on_text(piece: str) -> None:
            self.written += piece
            if follower is not None:
                follower.feed(piece)
            self.emit("text", number, piece)

        whole = self.dialect.whole_prompt(self.prompt, self.trajectory.segments, is_last)
        segments = self.trajectory.segments
        opened = grammar.opened_thought(segments[0].text) if whole is None else ""
        if opened and not self.dialect.has_messages and number > 0:  # one text: no template opens the later thoughts
            self.insert((Part(f"{opened}\n", is_trusted=True),), "notice")
        self.begun = opened and grammar.opened_thought(segments[-1].text)
        if self.begun:
            on_text(self.begun)
        left_s = self.time_left(answering=not may_search)
        # To follow a turn as it is written costs decoding, and on a server an event for each token: only where something
        # comes of it.
        listens = whole is None and self.policy.streams
        listens = listens and (follower is not None or self.on_event is not None or self.may_be_cut(left_s))
        try:
            async with asyncio.timeout(left_s):
                if whole is None:
                    generation = await self.call(
                        self.trajectory.segments,
                        session,
                        self.dialect.stop,
                        on_text if listens else None,
                        **self.for_tools(on_call if listens else None, is_last),
                    )
                else:
                    generation = await self.call_apart(whole, session, self.dialect.stop)
        except TimeoutError:
            record.finish, record.generate_s = "timeout", self.now() - record.start_s
            self.bill.add_cut_turn(self.written, record)
            self.withdraw()
            self.trajectory.answer = self.dialect.partial_answer(self.written) or self.trajectory.answer
            return None
        if not listens:
            self.emit("text", number, generation.text)
        return self.read(generation, record, is_last), record

    def for_tools(self, on_call: OnCall | None, is_last: bool) -> dict[str, Any]:
        """What a dialect with tools adds to a call. A server is asked to let a last turn answer, and not only told to."""
        if not self.with_tools:
            return {}
        chosen = {"only_tool": self.dialect.last_tool} if is_last and self.policy.chooses_tools else {}
        return {**self.with_tools, "on_call": on_call, **chosen}

    async def call(
        self,
        segments: Sequence[Segment],
        session: str,
        stop: tuple[str, ...],
        on_text: Callable[[str], None] | None = None,
        **tools: Any,
    ) -> Generation:
        return await self.written_by(
            self.policy,
            segments,
            stop=stop,
            max_tokens=min(self.limits.max_tokens_per_turn, self.room()),
            session=session,
            on_text=on_text,
            **tools,
        )

    async def written_by(self, policy: Policy, segments: Sequence[Segment], **options: Any) -> Generation:
        """A turn. One call that breaks must cost no more than its question; a caller's own mistake is the caller's."""
        repeats = may_repeat.set((policy, partial(self.bill.may_repeat, policy, segments)))
        try:
            return await ask(
                policy,
                segments,
                is_callers=lambda error: error is self.callers_error,
                sampling=self.sampling,
                **options,
            )
        finally:
            may_repeat.reset(repeats)

    async def call_apart(self, prompt: str, session: str, stop: tuple[str, ...]) -> Generation:
        """A call with a prompt of its own: for the engine, a conversation of its own."""
        self.num_side_calls += 1
        segment = self.policy.prompt(prompt, self.trajectory.question)
        async with self.policy.session(f"{session}/{self.num_side_calls}") as key:
            return await self.call([segment], key, stop)

    def read(self, generation: Generation, record: Turn, is_last: bool) -> ParsedTurn:
        """Read the turn, once for all: what it says stands in the record."""
        segment = generation.segment()
        parsed = self.dialect.read(self.with_thought(segment), self.max_subqueries, is_last)
        record.finish, record.generate_s = generation.finish, self.now() - record.start_s
        record.problems = [problem.code for problem in parsed.problems]
        record.action, record.thought, record.separated = parsed.action, parsed.thought, parsed.separated
        record.text = segment.text
        self.add(segment, self.bill.add_turn(generation, record))
        return parsed

    def with_thought(self, segment: Segment) -> Segment:
        """The turn with the opening tag that the chat template wrote. Without a closing one it is all thought."""
        if not self.begun:
            return segment
        rest = "" if grammar.closing(grammar.THINK) in segment.text else grammar.closing(grammar.THINK)
        return replace(segment, text=f"{self.begun}{segment.text}{rest}")

    def take_untagged(self, number: int, record: Turn) -> None:
        """No turn is left, and the last one may hold an answer that its tags do not mark: better than none, and marked."""
        answer = self.dialect.untagged_answer(self.with_thought(self.trajectory.segments[-1]).text)
        if answer is None:
            return
        record.action = "answer"
        record.problems.append("untagged_answer")
        self.trajectory.answer, self.trajectory.stop = answer, "answer"
        self.emit("answer", number, answer)

    # ---- searching ---------------------------------------------------------------------------------------------------

    def dispatch(self, number: int) -> Callable[[str], None]:
        def start(query: str) -> None:
            if query not in self.tasks:
                self.tasks[query] = asyncio.get_running_loop().create_task(self.find(query, number))

        return start

    async def find(self, query: str, number: int) -> Found:
        self.emit("query", number, query)
        if self.search.is_closed:  # since the question was begun
            now_s = time.perf_counter()
            found = Found(query, error=SearchClosedError(), start_s=now_s, end_s=now_s)
        else:
            found = await self.search.find(query, self.k, self.scope)
        if self.on_event is not None:
            self.emit("result", number, query, self.record(found))
        return found

    async def execute(
        self,
        number: int,
        queries: tuple[str, ...],
        dropped: tuple[str, ...],
        record: Turn,
        session: str,
        is_end: bool = False,
    ) -> Stop | None:
        """Run the turn's sub-queries and append what came back, unless nobody reads it (`is_end`). Returns why the next turn
        must answer, if it must."""
        if self.until == "queries":
            record.queries = [Query(query, start_s=self.now(), end_s=self.now()) for query in queries]
            record.dropped_queries = list(dropped)
            return None
        reserve = min(self.limits.max_tokens_per_turn, max(MIN_TURN_TOKENS, self.max_tokens // 8))
        room = self.room() - reserve
        if room < MIN_OBSERVATION_TOKENS and not is_end:
            record.problems.append("no_room_for_results")
            return "max_tokens"
        start = self.dispatch(number)
        for query in queries:
            start(query)
        tasks = [self.tasks[query] for query in queries]
        _, late = await asyncio.wait(tasks, timeout=self.time_left())
        now, closed_by = self.now(), None
        for query, task in zip(queries, tasks, strict=True):
            if task in late:
                record.queries.append(Query(query, error="cut off by the deadline", start_s=record.start_s, end_s=now))
            else:
                found = task.result()
                record.queries.append(self.record(found))
                closed_by = found.error if isinstance(found.error, SearchClosedError) else closed_by
        self.withdraw()
        if closed_by is not None:  # no other turn will find anything
            raise closed_by
        record.dropped_queries = list(dropped)
        if is_end:
            return "timeout" if late else None
        if self.dialect.has_messages and self.is_repeated(record):
            return "max_turns"  # what was found stands above: the call is answered by the notice that comes now
        budget = min(self.observation_tokens(len(queries)), room)
        num_shown = None if self.writer.layout == "paper" else self.limits.num_shown(len(queries), self.k)
        if self.dialect.has_messages:
            self.answer_calls(record, budget, num_shown)
        else:
            observation = self.writer.write(record.queries, budget, num_shown)
            record.shown = observation.shown
            self.insert(self.dialect.show(await self.digested(observation, queries, session)), "search")
        if self.on_event is not None:
            self.on_event(Event("shown", number, self.now(), shown=tuple(record.shown)))
        if late:
            return "timeout"
        return "max_tokens" if self.room() < reserve else None

    def is_repeated(self, record: Turn) -> bool:
        """Whether everything in this round was answered before: a model that was never trained to search would go on so. To
        ask again for what failed is no such thing."""
        before = {
            grammar.query_key(query.text)
            for turn in self.trajectory.turns
            if turn is not record
            for query in turn.queries
            if query.error is None
        }
        return all(grammar.query_key(query.text) in before for query in record.queries)

    def observation_tokens(self, num_subqueries: int) -> int:
        """What a round's results may have. The released code's form has one budget for a round of any width."""
        limits = self.limits
        if self.writer.layout == "paper":
            return limits.max_observation_tokens
        return limits.observation_tokens(num_subqueries)

    def answer_calls(self, record: Turn, budget: int, num_shown: int | None) -> None:
        """A message for each call of the turn, with its own results; every call gets one, or a server refuses the chat."""
        queries = record.queries
        messages: list[Message] = []
        for group in self.dialect.groups(self.trajectory.segments[-1], [query.text for query in queries]):
            if not group.queries:
                messages.append(Message("notice", group.word, group.call_id))
                continue
            share = budget * len(group.queries) // max(1, len(queries))
            observation = self.writer.write([queries[place] for place in group.queries], share, num_shown)
            record.shown += [replace(one, query=group.queries[one.query]) for one in observation.shown]
            messages.append(Message("search", self.dialect.show_text(observation), group.call_id))
        if messages and self.dialect.after_results:
            messages[-1] = replace(messages[-1], text=messages[-1].text + self.dialect.after_results)
        self.insert_messages(messages)

    async def digested(self, observation: Observation, queries: Sequence[str], session: str) -> Observation:
        """The results, or, where the dialect wants them condensed, what the model makes of them in a call of its own."""
        prompt = self.dialect.digest_prompt(self.trajectory.question, queries, observation.text)
        if prompt is None:
            return observation
        num_read = self.policy.count_tokens(prompt)
        if not self.bill.has_room_beside(num_read):
            return observation
        self.trajectory.num_llm_calls += 1
        try:
            async with asyncio.timeout(self.time_left()):
                answer = await self.call_apart(prompt, session, ())
        except TimeoutError:
            self.bill.add_beside(None, num_read)
            return observation
        self.bill.add_beside(answer, num_read)
        return Observation(self.harmless(answer.text.strip()), observation.shown)

    def harmless(self, text: str) -> str:
        return grammar.defuse(text, self.policy.special_tokens)

    def record(self, found: Found) -> Query:
        error = None if found.error is None else str(found.error)
        missing = list(found.hits.failures) if isinstance(found.hits, DegradedHits) else None
        start_s, end_s = found.start_s - self.start_s, found.end_s - self.start_s
        return Query(found.text, found.hits, error, found.cached, start_s, end_s, missing)

    def withdraw(self) -> None:
        """Cancel searches nobody waits for: started early for a turn that was then cut off or proved invalid."""
        for task in self.tasks.values():
            task.cancel()
        self.tasks = {}

    # ---- another model reads what was found, and answers -------------------------------------------------------------

    async def let_reader_answer(self, session: str) -> None:
        """The reader's call, where there is one and something was shown: its answer, or the policy's own if it fails."""
        reader, trajectory = self.reader, self.trajectory
        hits = trajectory.shown_hits
        self.reader = None  # an answer is told from now on
        if reader is None or trajectory.stop == "error":
            return
        number = len(trajectory.turns)
        record = Reading(reader.describe(), own_answer=trajectory.answer, start_s=self.now())
        if hits:
            self.emit("reading", number, reader.title)
            trajectory.reading = record
            beside = Counter(self.bill.beside)
            try:
                async with asyncio.timeout(self.time_left(answering=True)):
                    await self.ask_reader(reader, hits, record, f"{session}/reader", number)
            except TimeoutError:
                record.error, record.num_read = "the time was over before it had answered", self.num_asked
            except (PolicyError, *ODD_DATA) as error:
                if error is self.callers_error:
                    raise
                record.error = str(error) or type(error).__name__
            if spent := self.bill.beside - beside:  # by a first call that brought nothing
                record.num_read = (record.num_read or 0) + spent["prompt_tokens"]
                record.num_tokens = (record.num_tokens or 0) + spent["completion_tokens"]
                self.bill.beside = beside
            record.generate_s = self.now() - record.start_s
        if record.error is not None or not hits:
            trajectory.written = None  # what stands is the policy's own short answer
        if trajectory.answer is not None:
            self.emit("answer", number if hits else number - 1, trajectory.answer)

    async def ask_reader(self, reader: Policy, hits: Sequence[Hit], record: Reading, session: str, number: int) -> None:
        asked = self.reading_prompt(reader, hits)
        self.num_asked = num_read = reader.count_tokens(asked)
        if not self.bill.has_room(num_read, self.bill.longest_turn(reader)):
            raise PolicyError(TOO_COSTLY)
        is_heard = reader.streams and self.on_event is not None
        self.trajectory.num_llm_calls += 1
        prompt = reader.prompt(asked, self.trajectory.question)
        async with reader.session(session) as key:
            generation = await self.written_by(
                reader,
                [prompt],
                stop=() if self.trajectory.written else READING_STOP,
                max_tokens=self.limits.max_tokens_per_turn,
                session=key,
                on_text=(lambda piece: self.emit("text", number, piece)) if is_heard else None,
            )
        if not is_heard:
            self.emit("text", number, generation.text)
        record.text, record.num_tokens, record.finish = generation.text, generation.num_tokens, generation.finish
        record.num_read = (generation.usage or {}).get("prompt_tokens", num_read)
        whole = grammar.opened_thought(prompt.text) + generation.text  # the template's tag
        answer = (written_in if self.trajectory.written else answer_in)(whole)
        if answer is None:
            record.error = "it wrote no answer"
        else:
            self.trajectory.answer, self.trajectory.stop = answer, "answer"

    def reading_prompt(self, reader: Policy, hits: Sequence[Hit]) -> str:
        limits, question = self.limits, self.trajectory.question
        room = min(limits.max_tokens, reader.max_context or limits.max_tokens) - limits.max_tokens_per_turn
        return reading_prompt(
            question,
            hits,
            self.context,
            room,
            reader.count_tokens,
            reader.special_tokens,
            is_written=bool(self.trajectory.written),
        )

    def reading_ahead(self) -> tuple[int, int] | None:
        """What the reader's call will read, as far as there is something to read, and may write."""
        hits = self.trajectory.shown_hits
        if self.reader is None or not hits:
            return None
        asked = self.reading_prompt(self.reader, hits)
        return self.reader.count_tokens(asked), self.bill.longest_turn(self.reader)

    # ---- book-keeping ------------------------------------------------------------------------------------------------

    def add(self, segment: Segment, num_tokens: int | None = None) -> None:
        self.trajectory.segments.append(segment)
        if segment.token_ids is not None:
            self.bill.num_said += len(segment.token_ids)
        else:
            self.bill.num_said += num_tokens if num_tokens is not None else self.policy.count_tokens(segment.text)

    def insert(self, parts: Sequence[Part], author: Author) -> None:
        self.add(self.policy.insert_parts(parts, author))

    def insert_messages(self, messages: Sequence[Message]) -> None:
        for segment in self.policy.insert_messages(messages, self.trajectory.segments) if messages else ():
            self.add(segment)

    def notify(self, text: str, start: str = "") -> None:
        """Tell the model something: in a chat as a message, to the calls of its last turn where it made any. `start` begins
        the turn that follows, where that can be done."""
        if not self.dialect.has_messages:
            self.insert((Part(text),), "notice")
            return
        last = self.trajectory.segments[-1]
        calls = last.calls if last.author == "model" and last.calls else ()
        self.insert_messages([Message("notice", text, call.id) for call in calls] or [Message("notice", text)])
        if start and self.policy.begins_turns:
            parts = [Part(start)]
            if grammar.opened_thought(self.trajectory.segments[-1].text):  # the template's: an answer is no thought
                parts.insert(0, Part(f"\n{grammar.closing(grammar.THINK)}\n\n", is_trusted=True))
            self.insert(parts, "notice")

    def room(self) -> int:
        return self.max_tokens - self.bill.num_said

    def num_payable(self) -> int:
        """How many sub-queries the next turn may ask."""
        return self.limits.max_subqueries if self.until == "queries" else self.bill.num_payable()

    def now(self) -> float:
        return time.perf_counter() - self.start_s

    def time_left(self, answering: bool = False) -> float | None:
        """Seconds until searching must stop, or, for the turn that answers, until everything must."""
        if self.limits.timeout_s is None:
            return None
        share = 1.0 if answering or self.until != "answer" else 1.0 - ANSWER_SHARE_OF_DEADLINE
        return max(0.0, self.limits.timeout_s * share - self.now())

    def may_be_cut(self, left_s: float | None) -> bool:
        """Whether the deadline may come while a turn is written that is begun now. It is followed then, since an answer that
        it had begun is kept. Of a turn that takes four times as long as any before it, and over a minute, none is kept."""
        longest_s = max((turn.generate_s for turn in self.trajectory.turns), default=0.0)
        return left_s is not None and left_s < max(SHORT_S, 4 * longest_s)

    def emit(self, kind: EventKind, number: int, text: str = "", query: Query | None = None) -> None:
        if self.on_event is not None and not (kind == "answer" and self.reader is not None):
            try:
                self.on_event(Event(kind, number, self.now(), text, query))
            except Exception as error:
                self.callers_error = error
                raise

    def finish(self) -> Trajectory:
        trajectory = self.trajectory
        # Described at the end: a server that names its model itself does so with its first answer.
        trajectory.policy = self.policy.describe()
        trajectory.search = {**(trajectory.search or {}), "k": self.k}
        trajectory.num_searches = len(trajectory.rounds)
        trajectory.num_subqueries = sum(len(turn.queries) for turn in trajectory.turns)
        trajectory.elapsed_s = self.now()
        self.bill.close()
        if trajectory.stop != "max_tokens":  # it was told to answer for want of room, and did
            trajectory.no_room = None
        elif trajectory.no_room is None:
            is_context = self.max_tokens < self.limits.max_tokens
            limit = f"the context of {self.max_tokens} tokens" if is_context else f"max_tokens={self.max_tokens}"
            trajectory.no_room = f"{limit} left no room to go on"
        return trajectory


def _plain(settings: Limits | Sampling) -> dict[str, Any]:
    """Their fields are numbers: a deep copy, as `asdict` makes it, costs ten times as much."""
    record = {field.name: getattr(settings, field.name) for field in fields(settings)}
    if record.get("prices") is not None:
        record["prices"] = asdict(record["prices"])
    return record

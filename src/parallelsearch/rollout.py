"""The loop: from a question to an answer, with every sub-query of a turn at once.

`rollout` generates a turn, reads it, runs all its sub-queries concurrently, appends the results, and goes on until an
answer or a limit. With a streaming policy each sub-query's search starts the moment it is complete, while the model
still writes. Nothing that a policy or a search does wrong raises: it ends up in the trajectory as a stop reason, a
problem or an error.

Limits in one place: `max_turns` turns may search, and one more must answer (the reference implementation's convention);
a model that searches there too is told so and may answer in another. A deadline cuts searches and turns short
early enough that the answer can still be given.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

from parallelsearch import grammar
from parallelsearch.errors import PolicyError, UsageError
from parallelsearch.grammar import ParsedTurn, PromptMode, StreamParser
from parallelsearch.observation import LAYOUTS, Layout, ObservationWriter
from parallelsearch.policy.base import Generation, Policy, Sampling
from parallelsearch.search import Found, Search
from parallelsearch.trajectory import Author, Query, Question, Segment, Stop, Trajectory, Turn

MIN_TURN_TOKENS = 32
"""A turn with less room than this is not started."""
MIN_OBSERVATION_TOKENS = 64
ANSWER_SHARE_OF_DEADLINE = 0.25
"""This part of the time is kept for the turn that must answer."""

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Limits:
    """Where a rollout ends. Tokens count prompt, turns and results together; None means no limit."""

    max_turns: int = 4
    max_tokens_per_turn: int = 500
    max_observation_tokens: int = 1000
    max_tokens: int = 6000
    max_subqueries: int = grammar.MAX_SUBQUERIES
    timeout_s: float | None = 600.0

    def __post_init__(self) -> None:
        for name in ("max_turns", "max_observation_tokens", "max_tokens", "max_subqueries"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.max_tokens_per_turn < MIN_TURN_TOKENS:
            raise UsageError(f"max_tokens_per_turn must be at least {MIN_TURN_TOKENS}, not {self.max_tokens_per_turn}")
        if self.timeout_s is not None and self.timeout_s <= 0:
            raise UsageError(f"timeout_s must be above 0, not {self.timeout_s}")


@dataclass(frozen=True, slots=True)
class Event:
    """Something a person may want to watch while it happens. `time_s` counts from the start of the rollout."""

    kind: Literal["turn", "text", "query", "result", "notice", "answer"]
    turn: int
    time_s: float
    text: str = ""
    query: Query | None = None


async def rollout(
    question: Question | str,
    policy: Policy,
    search: Search,
    limits: Limits | None = None,
    *,
    mode: PromptMode = "parallel",
    layout: Layout = "headed",
    sampling: Sampling | None = None,
    streaming_dispatch: bool = True,
    on_event: Callable[[Event], None] | None = None,
    session: str | None = None,
    context: str = "",
    k: int | None = None,
    fresh: bool = False,
) -> Trajectory:
    """Answer one question. Raises only for wrong use (an empty question); everything else is in the trajectory.
    `context` goes before the question in the prompt; `k` overrides the search's number of hits; with `fresh` nothing comes
    from the search's cache, so that two runs can be timed against each other."""
    asked = Question(question) if isinstance(question, str) else question
    if not asked.question.strip():
        raise UsageError(
            "the question is empty; type one, for example: Who is older, Claude Monet or Camille Pissarro?"
        )
    if layout not in LAYOUTS:
        raise UsageError(f"there is no layout '{layout}'; choose one of {', '.join(LAYOUTS)}")
    run = _Run(
        asked, policy, search, limits or Limits(), mode, layout, sampling or Sampling(), on_event, streaming_dispatch
    )
    run.context, run.k = context, search.k if k is None else k
    name = session or f"rollout-{next(_numbers)}"
    run.scope = name if fresh else ""
    async with policy.session(name) as key:
        try:
            await run.go(key)
        except PolicyError as error:
            run.trajectory.stop, run.trajectory.error = "error", str(error)
        finally:
            run.withdraw()
    return run.finish()


class _Run:
    """The state of one rollout."""

    def __init__(
        self,
        question: Question,
        policy: Policy,
        search: Search,
        limits: Limits,
        mode: PromptMode,
        layout: Layout,
        sampling: Sampling,
        on_event: Callable[[Event], None] | None,
        dispatches_early: bool,
    ) -> None:
        self.policy, self.search, self.limits, self.mode, self.sampling = policy, search, limits, mode, sampling
        self.on_event = on_event
        self.context, self.k, self.scope = "", search.k, ""
        self.start_s = time.perf_counter()
        self.writer = ObservationWriter(policy.count_tokens, layout)
        self.num_tokens = 0
        self.max_tokens = min(limits.max_tokens, policy.max_context or limits.max_tokens)
        # Following a turn as it is written costs decoding: only where something comes of it.
        self.listens = policy.streams and (dispatches_early or on_event is not None or limits.timeout_s is not None)
        self.dispatches_early = dispatches_early and policy.streams
        self.tasks: dict[str, asyncio.Task[Found]] = {}
        self.written = ""  # of the turn being written, where the policy streams
        self.trajectory = Trajectory(
            question=question.question,
            golden_answers=list(question.golden_answers),
            id=question.id,
            dataset=question.dataset,
            kind=question.kind,
            type=question.type,
            supporting_titles=question.supporting_titles,
            sampling=_plain(sampling),
            search=search.describe(),
            limits=_plain(limits),
        )

    # ---- the loop ----------------------------------------------------------------------------------------------------

    async def go(self, session: str) -> None:
        prompt = grammar.prompt_text(self.trajectory.question, self.mode, self.context)
        self.add(self.policy.prompt(prompt, self.trajectory.question))
        must_answer: Stop | None = None  # why no turn may search any more
        max_turns, speaks = self.limits.max_turns, self.writer.layout != "paper"
        for number in range(max_turns + (2 if speaks else 1)):
            # A policy that knows when to stop would only be put off by a word beforehand, so after `max_turns` it is told
            # when it searches all the same, and has another turn. Without room or time for one it is told at once.
            if must_answer is not None and number > 0 and speaks:
                self.insert(grammar.notice_last_turn(), "notice")
            if number == max_turns:
                must_answer = must_answer or "max_turns"
            if self.room() < MIN_TURN_TOKENS:
                self.trajectory.stop = "max_tokens" if number <= max_turns else "max_turns"
                return
            turn = await self.generate(session, number, may_search=must_answer is None)
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
            if must_answer == "max_turns" and number == max_turns and speaks:
                self.emit("notice", number, grammar.notice_last_turn())
                continue
            if must_answer is not None:
                self.trajectory.stop = must_answer
                return
            if parsed.action == "search":
                must_answer = await self.execute(number, parsed, record)
            else:
                self.withdraw()
                text = grammar.notice_invalid(parsed.problems)
                self.insert(text, "notice")
                self.emit("notice", number, text)
            if must_answer is None and self.time_left() == 0:
                must_answer = "timeout"

    async def generate(self, session: str, number: int, may_search: bool) -> tuple[ParsedTurn, Turn] | None:
        """One call of the model. None if the deadline came first; what was written until then may hold an answer."""
        self.emit("turn", number)
        record = Turn(start_s=self.now())
        self.trajectory.turns.append(record)
        self.trajectory.num_llm_calls += 1
        self.written = ""
        parser = StreamParser(self.dispatch(number), self.limits.max_subqueries) if may_search else None

        def on_text(piece: str) -> None:
            self.written += piece
            if parser is not None and self.dispatches_early:
                parser.feed(piece)
            self.emit("text", number, piece)

        try:
            async with asyncio.timeout(self.time_left(answering=not may_search)):
                generation = await self.policy.generate(
                    self.trajectory.segments,
                    stop=grammar.STOP_STRINGS,
                    max_tokens=min(self.limits.max_tokens_per_turn, self.room()),
                    sampling=self.sampling,
                    session=session,
                    on_text=on_text if self.listens else None,
                )
        except TimeoutError:
            record.finish, record.generate_s = "timeout", self.now() - record.start_s
            self.withdraw()
            self.trajectory.answer = grammar.partial_answer(self.written) or self.trajectory.answer
            return None
        if not self.listens:
            self.emit("text", number, generation.text)
        return self.read(generation, record), record

    def read(self, generation: Generation, record: Turn) -> ParsedTurn:
        parsed = grammar.parse_turn(generation.text, self.limits.max_subqueries)
        record.finish, record.generate_s = generation.finish, self.now() - record.start_s
        record.problems = [problem.code for problem in parsed.problems]
        self.add(generation.segment(), generation.num_tokens)
        record.num_tokens = (
            generation.num_tokens if generation.num_tokens is not None else self.policy.count_tokens(generation.text)
        )
        return parsed

    # ---- searching ---------------------------------------------------------------------------------------------------

    def dispatch(self, number: int) -> Callable[[str], None]:
        def start(query: str) -> None:
            if query not in self.tasks:
                self.tasks[query] = asyncio.get_running_loop().create_task(self.find(query, number))

        return start

    async def find(self, query: str, number: int) -> Found:
        self.emit("query", number, query)
        found = await self.search.find(query, self.k, self.scope)
        if self.on_event is not None:
            self.emit("result", number, query, self.record(found))
        return found

    async def execute(self, number: int, parsed: ParsedTurn, record: Turn) -> Stop | None:
        """Run the turn's sub-queries and append what came back. Returns why the next turn must answer, if it must."""
        reserve = min(self.limits.max_tokens_per_turn, max(MIN_TURN_TOKENS, self.max_tokens // 8))
        room = self.room() - reserve
        if room < MIN_OBSERVATION_TOKENS:
            record.problems.append("no_room_for_results")
            return "max_tokens"
        start = self.dispatch(number)
        for query in parsed.queries:
            start(query)
        tasks = [self.tasks[query] for query in parsed.queries]
        _, late = await asyncio.wait(tasks, timeout=self.time_left())
        now = self.now()
        for query, task in zip(parsed.queries, tasks, strict=True):
            if task in late:
                record.queries.append(Query(query, error="cut off by the deadline", start_s=record.start_s, end_s=now))
            else:
                record.queries.append(self.record(task.result()))
        self.withdraw()
        record.dropped_queries = list(parsed.dropped)
        text = self.writer.write(record.queries, min(self.limits.max_observation_tokens, room))
        self.insert(text, "search")
        if late:
            return "timeout"
        return "max_tokens" if self.room() < reserve else None

    def record(self, found: Found) -> Query:
        error = None if found.error is None else str(found.error)
        return Query(
            found.text, found.hits, error, found.cached, found.start_s - self.start_s, found.end_s - self.start_s
        )

    def withdraw(self) -> None:
        """Cancel searches nobody waits for: started early for a turn that was then cut off or proved invalid."""
        for task in self.tasks.values():
            task.cancel()
        self.tasks = {}

    # ---- book-keeping ------------------------------------------------------------------------------------------------

    def add(self, segment: Segment, num_tokens: int | None = None) -> None:
        self.trajectory.segments.append(segment)
        if segment.token_ids is not None:
            self.num_tokens += len(segment.token_ids)
        else:
            self.num_tokens += num_tokens if num_tokens is not None else self.policy.count_tokens(segment.text)

    def insert(self, text: str, author: Author) -> None:
        self.add(self.policy.insert(text, author))

    def room(self) -> int:
        return self.max_tokens - self.num_tokens

    def now(self) -> float:
        return time.perf_counter() - self.start_s

    def time_left(self, answering: bool = False) -> float | None:
        """Seconds until searching must stop, or, for the turn that answers, until everything must."""
        if self.limits.timeout_s is None:
            return None
        share = 1.0 if answering else 1.0 - ANSWER_SHARE_OF_DEADLINE
        return max(0.0, self.limits.timeout_s * share - self.now())

    def emit(
        self,
        kind: Literal["turn", "text", "query", "result", "notice", "answer"],
        number: int,
        text: str = "",
        query: Query | None = None,
    ) -> None:
        if self.on_event is not None:
            self.on_event(Event(kind, number, self.now(), text, query))

    def finish(self) -> Trajectory:
        trajectory = self.trajectory
        # Described at the end: a server that names its model itself does so with its first answer.
        trajectory.policy = {**self.policy.describe(), "mode": self.mode, "layout": self.writer.layout}
        trajectory.search = {**(trajectory.search or {}), "k": self.k}
        trajectory.num_searches = len(trajectory.rounds)
        trajectory.num_subqueries = sum(len(turn.queries) for turn in trajectory.turns)
        trajectory.elapsed_s = self.now()
        return trajectory


def _plain(settings: Limits | Sampling) -> dict[str, Any]:
    """Their fields are numbers: a deep copy, as `asdict` makes it, costs ten times as much."""
    return {field.name: getattr(settings, field.name) for field in fields(settings)}

"""A question within a server's limits: run the rollout, then say what the answer is and what it rests on.

Shared by chat completions, responses and the MCP tool. At most `max_concurrent` questions are taken at a time. An answer
that rests on nothing is not given (`grounding.py`), unless a request wants every answer. Where OpenTelemetry is installed
and set up, each question is a span. Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from parallelsearch.agent import Agent
from parallelsearch.claims import Note
from parallelsearch.conversing.conversation import Conversation, said_at_once
from parallelsearch.conversing.follow_ups import Pair
from parallelsearch.dialect import Dialect
from parallelsearch.dialects import DIALECTS, open_dialect
from parallelsearch.errors import ParallelSearchError, UsageError
from parallelsearch.grounding import Citation, Source, cite, nearest, sentence_of, sources_of, thoughts_of
from parallelsearch.http import without_asked
from parallelsearch.limits import MIN_TURN_TOKENS, Limits, Prices
from parallelsearch.policy.asking import BROKE
from parallelsearch.policy.base import Policy, Sampling
from parallelsearch.rollout import OnEvent, can_write
from parallelsearch.search import Search
from parallelsearch.server.asking import SEQUENTIAL, AskOptions, ChatLimits
from parallelsearch.server.chores import unsearched
from parallelsearch.server.limits import PendingQueries, RefusalError, ServerSettings
from parallelsearch.server.live_events import shortened
from parallelsearch.telemetry import is_traced, traced
from parallelsearch.trajectory import Reading, Trajectory

GRACE_S = 5.0
"""A rollout keeps its own deadline; one that does not is ended so much later."""

_log = logging.getLogger("parallelsearch.server")


SERVING = Limits(timeout_s=120.0)
"""The core's limits, with less time: somebody waits, and proxies in between give up on silence."""


@dataclass(frozen=True, slots=True)
class AgentSettings(ServerSettings):
    """Where an agent server listens and what it takes. `limits` are a request's defaults; it may ask for fewer seconds
    than `limits.timeout_s`, for up to `max_turns` turns and up to `max_k` hits."""

    port: int = 8080
    max_k: int = 20
    max_body_bytes: int = 1024 * 1024
    model_name: str = "parallelsearch"
    limits: Limits = SERVING
    sampling: Sampling = field(default_factory=Sampling)
    chat: ChatLimits = field(default_factory=ChatLimits)
    max_turns: int = 10
    max_concurrent: int = 256
    max_hit_chars: int = 1_000
    send_timeout_s: float = 30.0
    keep_alive_s: float = 15.0
    abstain: bool = True
    written: bool = False
    """Answer in a text with its sources, where a request does not say."""
    dialect: str | None = None
    """How the model talks, where a request does not say; None takes what the policy was trained on."""
    examples: tuple[str, ...] = ()
    """Questions that the page offers. Where there are none, those of the demo, if it is the demo that is asked."""

    def __post_init__(self) -> None:
        ServerSettings.__post_init__(self)
        for name in ("max_turns", "max_concurrent", "max_hit_chars", "send_timeout_s", "keep_alive_s"):
            if getattr(self, name) <= 0:
                raise UsageError(f"{name} must be above 0, not {getattr(self, name)}")
        open_dialect(self.dialect)  # says at once what there is
        if not self.model_name.strip():
            raise UsageError("model_name is empty; clients need a name to ask for")

    @property
    def timeout_s(self) -> float:
        return self.limits.timeout_s or 600.0


@dataclass(frozen=True, slots=True)
class Reply:
    """What a question came to: the answer, or a plain sentence in its place where the agent abstained."""

    trajectory: Trajectory
    content: str
    finish: Literal["stop", "length"]
    sources: list[Source]
    citations: list[Citation]
    invalid_citations: list[int]
    doubts: list[Note] = field(default_factory=list)
    """Statements of a text with a number that the passages they name have not got."""
    cost: float | None = None
    """Where the server knows prices."""

    @property
    def abstained(self) -> str | None:
        """Why there is a sentence in place of an answer."""
        return None if self.trajectory.abstained is None else self.trajectory.abstained.reason

    @property
    def reasoning(self) -> str:
        return "\n\n".join(thoughts_of(self.trajectory))


class Answering:
    """Answers questions with one policy and one search."""

    def __init__(
        self, policy: Policy, search: Search, settings: AgentSettings | None = None, reader: Policy | None = None
    ) -> None:
        self.settings = settings = settings or AgentSettings()
        self.agent = Agent(
            policy,
            search,
            limits=settings.limits,
            sampling=settings.sampling,
            dialect=settings.dialect,
            answer_with=reader,
        )
        if settings.written and not self.can_write():
            raise UsageError(
                f"'{policy.name}' answers in a few words alone; for --written name a chat model as well: --answer-with "
                "openai:BASE_URL#MODEL"
            )
        self.pending = PendingQueries(self.settings.max_concurrent, what="questions", status=429)

    @property
    def policy(self) -> Policy:
        return self.agent.policy

    @property
    def search(self) -> Search:
        return self.agent.search

    @property
    def dialects(self) -> list[str]:
        """The dialects in which the policy can be asked."""
        return [name for name, kind in DIALECTS.items() if self.policy.takes_tools or not kind.tools]

    @property
    def sequential(self) -> str:
        """The dialect for one search at a time. A model that is asked by calls goes on to be: the searching alone differs."""
        return "tools-sequential" if self.dialect_for(AskOptions()).tools else SEQUENTIAL

    def dialect_for(self, options: AskOptions) -> Dialect:
        """How the model talks in a request, as the rollout will have it."""
        return open_dialect(options.dialect or self.settings.dialect or self.policy.dialect)

    def can_write(self, options: AskOptions | None = None) -> bool:
        """Whether a text with its sources can be had in place of a short answer."""
        reads = options is None or options.read is not False
        return (reads and self.agent.reader is not None) or can_write(self.policy)

    def is_written(self, options: AskOptions) -> bool:
        """Whether a request is answered in a text. The server's own choice gives way where nobody can write one for it."""
        if options.written is None:
            return self.settings.written and self.can_write(options)
        return options.written

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        """A place among the questions being answered, or `RefusalError` 429."""
        self.pending.take(1)
        try:
            yield
        finally:
            self.pending.answered(1)

    def limits_for(self, options: AskOptions, max_turn_tokens: int | None = None) -> Limits:
        """The limits of one request, or `RefusalError` 422 where it asks for more than there is."""
        settings, limits = self.settings, self.settings.limits
        if options.dialect is not None and options.dialect not in self.dialects:
            why = "this policy takes no tools for" if options.dialect in DIALECTS else "there is no"
            raise RefusalError(
                422,
                f"parallelsearch.dialect: {why} '{options.dialect}'; one of {', '.join(self.dialects)}",
                param="parallelsearch.dialect",
            )
        if options.written and not self.can_write(options):
            raise RefusalError(
                422,
                "parallelsearch.written: this policy answers in a few words alone, and no second model reads for it; leave "
                "it out",
                param="parallelsearch.written",
            )
        for name, asked, most in (
            ("k", options.k, settings.max_k),
            ("max_turns", options.max_turns, settings.max_turns),
            ("timeout_s", options.timeout_s, settings.timeout_s),
        ):
            if asked is not None and asked > most:
                param = f"parallelsearch.{name}"
                raise RefusalError(422, f"{param}: at most {most:g}, not {asked:g}", param=param)
        is_text = self.is_written(options) or self.dialect_for(options).is_written
        most_tokens = (limits.for_text() if is_text else limits).max_tokens_per_turn
        num_tokens = min(most_tokens, max(MIN_TURN_TOKENS, max_turn_tokens or most_tokens))
        if is_text and num_tokens == Limits().max_tokens_per_turn < most_tokens:
            num_tokens -= 1  # the default is what nobody said, and a text would have more
        return replace(
            limits,
            max_turns=options.max_turns or limits.max_turns,
            timeout_s=options.timeout_s or settings.timeout_s,
            max_tokens_per_turn=num_tokens,
        )

    async def answer(
        self,
        question: str,
        options: AskOptions,
        *,
        limits: Limits | None = None,
        earlier: Sequence[Pair] = (),
        system: str = "",
        sampling: Sampling | None = None,
        on_event: OnEvent | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Run the rollout, unless the message asks for nothing that needs one: a greeting, a title for the chat. Raises
        `RefusalError` 502 where the policy failed and 504 where it did not come back. `headers` of the request may name the
        span it belongs to."""
        said = unsearched(question, earlier, system)
        limits = limits or self.limits_for(options)
        if said is not None:
            return reply_of(said_at_once(question, said), limits.prices)
        talk = Conversation(self.agent, earlier, system=system, limits=self.settings.chat)
        with contextlib.ExitStack() as spans:
            if is_traced():
                writer = traced(on_event, records_text=self.settings.logs_queries, headers=headers)
                on_event = spans.enter_context(writer)
            trajectory = await self._roll_out(talk, question, options, limits, sampling, on_event)
            if trajectory.stop == "error":
                error = trajectory.error or "the policy failed"
                raise RefusalError(500 if error.startswith(BROKE) else 502, _told(error, trajectory.question))
        return reply_of(trajectory, limits.prices)

    async def _roll_out(
        self,
        talk: Conversation,
        question: str,
        options: AskOptions,
        limits: Limits,
        sampling: Sampling | None,
        on_event: OnEvent | None,
    ) -> Trajectory:
        """The rollout, with what it may raise as a `RefusalError`."""
        try:
            async with asyncio.timeout((limits.timeout_s or self.settings.timeout_s) + GRACE_S):
                return await talk.ask_async(
                    question,
                    on_event,
                    limits=limits,
                    dialect=options.dialect or self.settings.dialect,
                    sampling=sampling or self.settings.sampling,
                    k=options.k,
                    fresh=options.fresh,
                    answer_with=None if options.read is False else self.agent.reader,
                    written=self.is_written(options),
                    abstain=self.settings.abstain if options.abstain is None else options.abstain,
                )
        except TimeoutError:
            raise RefusalError(504, f"the policy did not come back within {limits.timeout_s:g} s") from None
        except ParallelSearchError as error:
            raise RefusalError(502, str(error)) from error
        except Exception as error:
            # A bug outside a call of the policy: for the log, too.
            _log.exception(BROKE)
            raise RefusalError(500, f"{BROKE} ({type(error).__name__}); the log has more") from error

    async def aclose(self) -> None:
        """Close the agent, and what it was given: it is the server's alone."""
        await self.agent.aclose()
        await self.search.aclose()
        for policy in (self.policy, self.agent.reader):
            if policy is not None:
                await policy.aclose()


def _told(error: str, question: str) -> str:
    """A policy's bug is for the log; who asks learns that it is not their fault, and no more."""
    if not error.startswith(BROKE):
        return error
    _log.error("%s", without_asked(error, [question]))
    return f"{error.partition(':')[0]}; the log has more"


def reply_of(trajectory: Trajectory, prices: Prices | None = None) -> Reply:
    """The answer of a trajectory, its citations checked; a plain sentence in its place where it was taken back."""
    sources = sources_of(trajectory)
    cited = cite(trajectory, sources)
    is_whole = trajectory.stop == "answer" and not trajectory.is_cut_short
    finish: Literal["stop", "length"] = "stop" if is_whole else "length"
    cost = None if prices is None else trajectory.cost(prices)
    if trajectory.abstained is not None:
        return Reply(trajectory, sentence_of(trajectory), finish, sources, [], cited.invalid_numbers, cost=cost)
    return Reply(trajectory, cited.text, finish, sources, cited.citations, cited.invalid_numbers, cited.doubts, cost)


def summary_of(reply: Reply, max_hit_chars: int) -> dict[str, Any]:
    """Everything beside the text: counts, times, turns with their sub-queries, sources, citations."""
    trajectory = reply.trajectory
    num_input, num_output = trajectory.billed_tokens
    number_of = {source.id: source.number for source in reply.sources}
    turns = [
        {
            "start_s": round(turn.start_s, 4),
            "generate_s": round(turn.generate_s, 4),
            "num_tokens": turn.num_tokens,
            "queries": [
                {
                    "text": query.text,
                    "start_s": round(query.start_s, 4),
                    "end_s": round(query.end_s, 4),
                    "cached": query.cached,
                    "error": query.error,
                    "sources": [number_of[hit.id] for hit in query.hits if hit.id in number_of],
                }
                for query in turn.queries
            ],
        }
        for turn in trajectory.turns
    ]
    return {
        "answer": trajectory.answer if trajectory.abstained is None else trajectory.abstained.answer,
        "abstained": reply.abstained,
        "question": trajectory.question,
        "reading": None if trajectory.reading is None else reading_object(trajectory.reading, trajectory.question),
        "stop": trajectory.stop,
        "num_llm_calls": trajectory.num_llm_calls,
        "num_searches": trajectory.num_searches,
        "num_subqueries": trajectory.num_subqueries,
        "num_input_tokens": num_input,
        "num_output_tokens": num_output,
        "cost": reply.cost,
        "elapsed_s": round(trajectory.elapsed_s or 0.0, 4),
        "turns": turns,
        "sources": [asdict(source) | {"text": shortened(source.text, max_hit_chars)} for source in reply.sources],
        "nearest": [] if reply.abstained is None else [source.number for source in nearest(reply.sources)],
        "citations": [asdict(citation) for citation in reply.citations],
        "invalid_citations": reply.invalid_citations,
        "written": bool(trajectory.written),
        "doubts": [asdict(doubt) for doubt in reply.doubts],
    }


def reading_object(reading: Reading, question: str) -> dict[str, Any]:
    """What another model made of the passages, for people."""
    return {
        "model": reading.policy.get("model") or reading.policy.get("kind"),
        "own_answer": reading.own_answer,
        "error": None if reading.error is None else _told(reading.error, question),
        "start_s": round(reading.start_s, 4),
        "generate_s": round(reading.generate_s, 4),
    }


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens the model was given (prompt, results, notices) and wrote, and how many of these were thought. Each is counted
    once however many turns read it, as an engine with a prefix cache does."""

    num_given: int
    num_written: int
    num_thought: int


def usage_of(trajectory: Trajectory, policy: Policy) -> Usage:
    given = sum(
        len(segment.token_ids) if segment.token_ids is not None else policy.count_tokens(segment.text)
        for segment in trajectory.segments
        if segment.author != "model"
    )
    written = sum(turn.num_tokens or 0 for turn in trajectory.turns)
    if trajectory.reading is not None:
        written += trajectory.reading.num_tokens or 0
    thought = sum(policy.count_tokens(text) for text in thoughts_of(trajectory))
    return Usage(given, written, min(thought, written))


@dataclass(frozen=True, slots=True)
class Answered:
    """A reply, and what an API may say beside it: worked out when it does."""

    reply: Reply
    policy: Policy
    ignored: list[str]
    max_hit_chars: int

    @property
    def usage(self) -> Usage:
        return usage_of(self.reply.trajectory, self.policy)

    @property
    def summary(self) -> dict[str, Any]:
        return {**summary_of(self.reply, self.max_hit_chars), "ignored": self.ignored}

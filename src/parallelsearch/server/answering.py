"""A question within a server's limits: run the rollout, then say what the answer is and what it rests on.

Shared by the chat endpoint and the MCP tool. At most `max_concurrent` questions are taken at a time. With `abstain` the
agent says so where there is no answer, where no passage was found, or where none of them holds the answer. Where
OpenTelemetry is installed and set up, each question is a span. Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from parallelsearch.errors import ParallelSearchError, UsageError
from parallelsearch.policy.base import Policy, Sampling
from parallelsearch.rollout import MIN_TURN_TOKENS, Event, Limits, rollout
from parallelsearch.search import Search
from parallelsearch.server.chat_api import AskOptions, ChatLimits
from parallelsearch.server.citing import Citation, Source, cite, sources_of, thoughts_of
from parallelsearch.server.limits import PendingQueries, RefusalError, ServerSettings
from parallelsearch.server.live_events import shortened
from parallelsearch.telemetry import is_traced, traced
from parallelsearch.trajectory import Trajectory

GRACE_S = 5.0
"""A rollout keeps its own deadline; one that does not is ended so much later."""

_log = logging.getLogger("parallelsearch.server")

Abstained = Literal["no_answer", "no_evidence", "unsupported"]
_NO_ANSWER = {
    "max_turns": "the searches allowed did not lead to one",
    "max_tokens": "there was no room left to go on",
    "timeout": "the time was over",
}


@dataclass(frozen=True, slots=True)
class AgentSettings(ServerSettings):
    """Where an agent server listens and what it takes. `limits` are a request's defaults; it may ask for fewer seconds
    than `limits.timeout_s`, for up to `max_turns` turns and up to `max_k` hits."""

    port: int = 8080
    max_k: int = 20
    max_body_bytes: int = 1024 * 1024
    model_name: str = "parallelsearch"
    limits: Limits = field(default_factory=lambda: Limits(timeout_s=120.0))
    sampling: Sampling = field(default_factory=Sampling)
    chat: ChatLimits = field(default_factory=ChatLimits)
    max_turns: int = 10
    max_concurrent: int = 256
    max_hit_chars: int = 1_000
    send_timeout_s: float = 30.0
    keep_alive_s: float = 15.0
    abstain: bool = False
    examples: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        ServerSettings.__post_init__(self)
        for name in ("max_turns", "max_concurrent", "max_hit_chars", "send_timeout_s", "keep_alive_s"):
            if getattr(self, name) <= 0:
                raise UsageError(f"{name} must be above 0, not {getattr(self, name)}")
        if not self.model_name.strip():
            raise UsageError("model_name is empty; clients need a name to ask for")

    @property
    def timeout_s(self) -> float:
        return self.limits.timeout_s or 600.0


@dataclass(frozen=True, slots=True)
class Reply:
    """What a question came to. `abstained` says why there is a plain sentence in place of an answer."""

    trajectory: Trajectory
    content: str
    finish: Literal["stop", "length"]
    abstained: Abstained | None
    sources: list[Source]
    citations: list[Citation]
    invalid_citations: list[int]

    @property
    def reasoning(self) -> str:
        return "\n\n".join(thoughts_of(self.trajectory))


class Answering:
    """Answers questions with one policy and one search. `sequential_policy` takes over where one search at a time is
    asked for; without it the same policy does, with the other prompt."""

    def __init__(
        self,
        policy: Policy,
        search: Search,
        settings: AgentSettings | None = None,
        *,
        sequential_policy: Policy | None = None,
    ) -> None:
        self.policy, self.search, self.settings = policy, search, settings or AgentSettings()
        self.sequential_policy = sequential_policy or policy
        self.pending = PendingQueries(self.settings.max_concurrent, what="questions", status=429)

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        """A place among the questions being answered, or `RefusalError` 429."""
        self.pending.take(1)
        try:
            yield
        finally:
            self.pending.answered(1)

    def policy_for(self, options: AskOptions) -> Policy:
        return self.sequential_policy if options.sequential else self.policy

    def limits_for(self, options: AskOptions, max_turn_tokens: int | None = None) -> Limits:
        """The limits of one request, or `RefusalError` 422 where it asks for more than there is."""
        settings, limits = self.settings, self.settings.limits
        for name, asked, most in (
            ("k", options.k, settings.max_k),
            ("max_turns", options.max_turns, settings.max_turns),
            ("timeout_s", options.timeout_s, settings.timeout_s),
        ):
            if asked is not None and asked > most:
                raise RefusalError(422, f"parallelsearch.{name}: at most {most:g}, not {asked:g}")
        most_tokens = limits.max_tokens_per_turn
        return replace(
            limits,
            max_turns=options.max_turns or limits.max_turns,
            timeout_s=options.timeout_s or settings.timeout_s,
            max_tokens_per_turn=min(most_tokens, max(MIN_TURN_TOKENS, max_turn_tokens or most_tokens)),
        )

    async def answer(
        self,
        question: str,
        options: AskOptions,
        *,
        limits: Limits | None = None,
        context: str = "",
        sampling: Sampling | None = None,
        on_event: Callable[[Event], None] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Run the rollout. Raises `RefusalError` 502 where the policy failed and 504 where it did not come back.
        `headers` of the request may name the span it belongs to."""
        limits = limits or self.limits_for(options)
        with contextlib.ExitStack() as spans:
            if is_traced():
                writer = traced(on_event, records_text=self.settings.logs_queries, headers=headers)
                on_event = spans.enter_context(writer)
            trajectory = await self._roll_out(question, options, limits, context, sampling, on_event)
            if trajectory.stop == "error":
                raise RefusalError(502, trajectory.error or "the policy failed")
        abstain = self.settings.abstain if options.abstain is None else options.abstain
        return reply_of(trajectory, abstain)

    async def _roll_out(
        self,
        question: str,
        options: AskOptions,
        limits: Limits,
        context: str,
        sampling: Sampling | None,
        on_event: Callable[[Event], None] | None,
    ) -> Trajectory:
        """The rollout, with what it may raise as a `RefusalError`."""
        try:
            async with asyncio.timeout((limits.timeout_s or self.settings.timeout_s) + GRACE_S):
                return await rollout(
                    question,
                    self.policy_for(options),
                    self.search,
                    limits,
                    mode="sequential" if options.sequential else "parallel",
                    sampling=sampling or self.settings.sampling,
                    on_event=on_event,
                    context=context,
                    k=options.k,
                    fresh=options.fresh,
                )
        except TimeoutError:
            raise RefusalError(504, f"the policy did not come back within {limits.timeout_s:g} s") from None
        except ParallelSearchError as error:
            raise RefusalError(502, str(error)) from error
        except Exception as error:
            # A policy's bug is for the log; who asks learns that it is not their fault, and no more.
            _log.exception("the policy broke")
            raise RefusalError(500, f"the policy broke ({type(error).__name__}); the log has more") from error

    async def aclose(self) -> None:
        await self.search.aclose()
        await self.policy.aclose()
        if self.sequential_policy is not self.policy:
            await self.sequential_policy.aclose()


def reply_of(trajectory: Trajectory, abstain: bool = False) -> Reply:
    """The answer of a trajectory, its citations checked; a plain sentence in its place where `abstain` asks for that."""
    sources = sources_of(trajectory)
    cited = cite(trajectory.answer or "", trajectory, sources)
    finish: Literal["stop", "length"] = "stop" if trajectory.stop == "answer" else "length"
    if abstain and not trajectory.answer:
        why = _NO_ANSWER.get(trajectory.stop or "", "none was given")
        sentence = f"I did not find an answer: {why}."
        return Reply(trajectory, sentence, "stop", "no_answer", sources, [], cited.invalid_numbers)
    if abstain and not sources:
        sentence = "I found no passage about this, so I have nothing to rest an answer on."
        return Reply(trajectory, sentence, "stop", "no_evidence", [], [], cited.invalid_numbers)
    if abstain and not cited.is_supported:
        sentence = "None of the passages I found says so, so I would rather not answer."
        return Reply(trajectory, sentence, "stop", "unsupported", sources, [], cited.invalid_numbers)
    return Reply(trajectory, cited.text, finish, None, sources, cited.citations, cited.invalid_numbers)


def summary_of(reply: Reply, max_hit_chars: int) -> dict[str, Any]:
    """Everything beside the text: counts, times, turns with their sub-queries, sources, citations."""
    trajectory = reply.trajectory
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
        "answer": trajectory.answer,
        "abstained": reply.abstained,
        "stop": trajectory.stop,
        "num_llm_calls": trajectory.num_llm_calls,
        "num_searches": trajectory.num_searches,
        "num_subqueries": trajectory.num_subqueries,
        "elapsed_s": round(trajectory.elapsed_s or 0.0, 4),
        "turns": turns,
        "sources": [asdict(source) | {"text": shortened(source.text, max_hit_chars)} for source in reply.sources],
        "citations": [asdict(citation) for citation in reply.citations],
        "invalid_citations": reply.invalid_citations,
    }


def usage_of(trajectory: Trajectory, policy: Policy) -> dict[str, int]:
    """Tokens the model wrote, and tokens it was given (prompt, results, notices), each counted once however many turns
    read it, as an engine with a prefix cache does."""
    written = sum(turn.num_tokens or 0 for turn in trajectory.turns)
    given = sum(
        len(segment.token_ids) if segment.token_ids is not None else policy.count_tokens(segment.text)
        for segment in trajectory.segments
        if segment.author != "model"
    )
    return {"prompt_tokens": given, "completion_tokens": written, "total_tokens": given + written}

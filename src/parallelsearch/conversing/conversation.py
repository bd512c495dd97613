"""A conversation with an agent: each question may lean on those before it.

    with agent.conversation() as talk:
        talk.ask("When was Claude Monet born?")
        talk.ask("And Camille Pissarro?").question   # When was Camille Pissarro born?

It keeps what was asked and answered, puts a follow-up so that it stands alone, and hands that to the agent. The agent
server answers by the same object, with the history that a request brings. It opens nothing and closes nothing: the agent
is the caller's. One question at a time; who wants two at once makes two conversations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from parallelsearch.conversing.follow_ups import Pair
from parallelsearch.conversing.framing import ContextLimits, framed
from parallelsearch.conversing.small_talk import small_talk
from parallelsearch.errors import UsageError, closed
from parallelsearch.grounding import cite, sentence_of
from parallelsearch.trajectory import Trajectory

if TYPE_CHECKING:
    from parallelsearch.agent import Agent, AskOptions
    from parallelsearch.rollout import OnEvent

_HISTORY = ContextLimits()


@dataclass(frozen=True, slots=True)
class Understood:
    """What a message is taken for: the question as the policy gets it, and the lines before it in the prompt. `reply` is
    what is answered at once, without a model or a search, where the message asks nothing."""

    question: str
    context: str = ""
    reply: str | None = None


class Conversation:
    """Questions to an agent, and what was said; `Agent.conversation` makes one."""

    def __init__(
        self,
        agent: Agent,
        earlier: Sequence[Pair] = (),
        *,
        system: str = "",
        limits: ContextLimits = _HISTORY,
    ) -> None:
        """`earlier` is what was said before, as pairs of a question and its answer. `system` is what the model is told ahead
        of each question."""
        self.said: list[Pair] = list(earlier)
        """What was asked, as it was asked, and what was answered: nothing, where the question failed or was stopped."""
        self._agent, self._system, self._limits = agent, system, limits
        self._is_closed = self._is_answering = False

    def __repr__(self) -> str:
        return f"<Conversation, {len(self.said)} questions, {self._agent!r}>"

    def understand(self, message: str) -> Understood:
        """What a message would be taken for now. Nothing is asked."""
        if not isinstance(message, str):
            raise UsageError(f"a question of a conversation is a text, not {type(message).__name__}")
        reply = small_talk(message)
        if reply is not None:
            return Understood(message, reply=reply)
        return Understood(*framed(message, self.said, self._system, self._limits, self._agent.policy.takes_tools))

    def ask(self, message: str, on_event: OnEvent | None = None, **options: Unpack[AskOptions]) -> Trajectory:
        """Answer one question. `options` are those of `Agent.ask`; the record's `question` is what was understood."""
        with self._turn(message) as turn:
            if turn.done is None:
                turn.done = self._agent.ask(turn.understood.question, on_event, **turn.with_context(options))
        return turn.done

    async def ask_async(
        self, message: str, on_event: OnEvent | None = None, **options: Unpack[AskOptions]
    ) -> Trajectory:
        """The same in the running event loop."""
        with self._turn(message) as turn:
            if turn.done is None:
                asked = turn.understood.question
                turn.done = await self._agent.ask_async(asked, on_event, **turn.with_context(options))
        return turn.done

    def forget(self) -> None:
        """Go on as if nothing had been said."""
        self.said.clear()

    @contextmanager
    def _turn(self, message: str) -> Iterator[_Turn]:
        """One question. What was asked is kept also where it failed or was stopped: "And Pissarro?" may still follow. In the
        caller's thread, so that whoever was interrupted can ask again at once, whatever is still ending."""
        if self._is_closed:
            raise closed("conversation")
        if self._is_answering:
            raise UsageError(
                "this conversation is answering a question; ask the next one when it is done, or make another conversation"
            )
        turn = _Turn(self.understand(message))
        self._is_answering = True
        is_kept = turn.understood.reply is None
        try:
            yield turn
        except UsageError:  # nothing was asked
            is_kept = False
            raise
        finally:
            self._is_answering = False
            if is_kept:
                self.said.append((message, turn.answer))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_closed = True


class _Turn:
    """A question on its way, and the record of it."""

    def __init__(self, understood: Understood) -> None:
        self.understood = understood
        self.done = None if understood.reply is None else said_at_once(understood.question, understood.reply)

    def with_context(self, options: AskOptions) -> AskOptions:
        return {**options, "context": options.get("context", "") + self.understood.context}

    @property
    def answer(self) -> str:
        """What was told: the answer, or the sentence in its place."""
        if self.done is None or self.done.stop == "error":
            return ""
        return sentence_of(self.done) or cite(self.done).text


def said_at_once(message: str, reply: str) -> Trajectory:
    """The record of a message that was answered without a model or a search."""
    return Trajectory(message, answer=reply, stop="answer", elapsed_s=0.0)

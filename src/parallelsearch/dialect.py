"""How a model talks: what it is asked, where its turns end, how they are read, how results and notices are put to it.

A `Dialect` is a parameter of `rollout`, as policy and search are. The loop knows turns, searches and limits; everything that
is a matter of wording or format is asked of the dialect, so that a model trained on another format can be asked, served,
evaluated and trained on through the same loop. The family `dialects` has the known ones, by name.

What a dialect puts in has trusted parts (the framing of a chat template) and untrusted ones (results): only in trusted text
are special tokens recognised. A dialect keeps no state: what one rollout needs is in its writer and its segments.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from parallelsearch import grammar
from parallelsearch.errors import UsageError
from parallelsearch.grammar import ParsedTurn, Problem, TurnPart
from parallelsearch.observation import Observation, ObservationWriter
from parallelsearch.trajectory import Segment

OnQuery = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of what the environment inserts. Special tokens are recognised in trusted text alone."""

    text: str
    is_trusted: bool = False


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that a model may call: its name, what it is for, and the JSON schema of its arguments."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    one_at_a_time: bool = False
    """A turn may call it once, and a server that can is asked to see to that: a tool of a dialect that may not split."""

    def schema(self) -> dict[str, Any]:
        """As chat templates and OpenAI's API take it."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Group:
    """Results that go back together: the places of their queries among the turn's, and the call they answer. A call of
    which nothing was searched has a `word` instead."""

    queries: Sequence[int]
    call_id: str | None = None
    word: str = ""


class TurnReader(Protocol):
    """Reads a turn while it is being written; it hands out each sub-query the moment its end is certain."""

    def feed(self, piece: str) -> None:
        """More of the turn's text."""

    def feed_call(self, number: int, name: str, piece: str) -> None:
        """More of the arguments of one of the turn's calls."""


class PartsReader(Protocol):
    """Says of a turn being written which text is thought, search, answer or none of them, for people who read along."""

    def feed(self, piece: str) -> list[tuple[TurnPart, str]]:
        """All that is certain by now, in order; marks are left out."""
        ...

    def flush(self) -> list[tuple[TurnPart, str]]:
        """The rest: the turn is over."""
        ...


class PlainText:
    """The parts of a turn of which nothing is known."""

    def feed(self, piece: str) -> list[tuple[TurnPart, str]]:
        return [("other", piece)] if piece else []

    def flush(self) -> list[tuple[TurnPart, str]]:
        return []


class Dialect(ABC):
    """One way of talking. A subclass says at least what the prompt is and how a turn is read."""

    name: str
    summary: str
    stop: tuple[str, ...] = ()
    """Where a turn ends."""
    max_turns: int | None = None
    """Turns that may search, where the dialect allows fewer than the limits do."""
    may_split: bool = True
    """Its prompt lets one search ask for several things."""
    tools: tuple[Tool, ...] = ()
    """What the model may call; a policy that takes no tools cannot be asked in such a dialect."""
    last_tool: str = ""
    """The one of them by which it answers; "" where a message without a call is the answer."""
    has_messages: bool = False
    """A turn is a whole message of a chat, and what goes back are messages too; else both continue one text."""
    after_results: str = ""
    """What a dialect with messages says behind the results of a round."""
    answer_start: str = ""
    """What a turn that must answer is begun with, where the policy lets it: a model that knows nothing but to call goes on
    calling, whatever it is told."""
    written: str = ""
    """The name of the dialect that asks the same for a text with its sources; "" where there is none."""
    is_written: bool = False
    """The answer is such a text: in Markdown, of several lines, with the numbers of passages in it."""
    is_trainable: bool = True
    """The segments of the record, joined, are what the model was shown at each call."""

    def __init__(self, prompt_template: str | None = None) -> None:
        """`prompt_template` takes the place of the prompt, for a model that was trained on another wording."""
        if prompt_template is not None and "{question}" not in prompt_template:
            raise UsageError("a prompt template needs {question} where the question goes")
        self.prompt_template = prompt_template

    # ---- what the model is asked ---------------------------------------------------------------------------------------

    def prompt(self, question: str, context: str = "") -> str:
        """The first message. `context` is what was said before, in lines of its own ahead of the question."""
        if self.prompt_template is not None:
            asked = grammar.defuse(context) + grammar.tidy_question(question)
            return self.prompt_template.replace("{question}", asked)
        return self.own_prompt(question, context)

    @abstractmethod
    def own_prompt(self, question: str, context: str = "") -> str:
        """The prompt as this dialect words it."""

    def queries_before(self, question: str) -> tuple[str, ...]:
        """What is searched before the model is asked at all."""
        return ()

    def whole_prompt(self, prompt: str, segments: Sequence[Segment], is_last: bool) -> str | None:
        """A new prompt for the next call, made of the first one and all that was said and found since; None goes on with the
        conversation."""
        return None

    # ---- how its turns are read ----------------------------------------------------------------------------------------

    @abstractmethod
    def read(self, segment: Segment, max_subqueries: int, is_last: bool = False) -> ParsedTurn:
        """What a whole turn says. Never raises. `is_last`: the model was told that it must answer now."""

    def reader(self, on_query: OnQuery, max_subqueries: int) -> TurnReader | None:
        """Reads the turn as it is written, so that searches start early; None where that cannot be done."""
        return None

    def parts(self) -> PartsReader:
        """Reads one turn for people who watch it being written."""
        return PlainText()

    def partial_answer(self, text: str) -> str | None:
        """What a turn that was cut off has given as its answer so far."""
        return grammar.partial_answer(text)

    def untagged_answer(self, text: str) -> str | None:
        """What a last turn gives as its answer without saying so in the way it was asked to; None where nothing does."""
        return None

    # ---- what it is told -----------------------------------------------------------------------------------------------

    def writer(self, count_tokens: Callable[[str], int]) -> ObservationWriter:
        """Writes the results of one rollout."""
        return ObservationWriter(count_tokens)

    def groups(self, segment: Segment, queries: Sequence[str]) -> list[Group]:
        """Which results go back together, in which order: here all of them, at once."""
        return [Group(range(len(queries)))]

    def show_text(self, observation: Observation) -> str:
        """The results as the text of a message, where the dialect has messages."""
        return observation.text

    def show(self, observation: Observation) -> tuple[Part, ...]:
        """The results as they are put to the model."""
        return (Part(observation.text),)

    def digest_prompt(self, question: str, queries: Sequence[str], results: str) -> str | None:
        """A question to the model about new results, whose answer takes their place; None leaves them as they are."""
        return None

    def notice_invalid(self, problems: Sequence[Problem]) -> str:
        """What the model is told after a turn that could not be used."""
        return grammar.notice_invalid(problems)

    def notice_last_turn(self) -> str | None:
        """What the model is told before a turn that must answer; None says nothing and gives no further turn."""
        return grammar.notice_last_turn()

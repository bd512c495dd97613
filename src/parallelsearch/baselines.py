"""Methods to compare with, through the same loop: a policy around a policy, for any policy address.

A `Method` says what the model is shown and how its text is read; `MethodPolicy` shows it to the policy inside and hands the
rollout a turn in the package's own grammar. So a baseline differs from the trained agent in its prompt and format and in
nothing else: same search, same k, same limits, same records. The text of the prompts is ours; a checkpoint that was
trained on another wording takes it as `prompt_template` (with `{question}` in it). `baseline_formats.py` has the methods
that read other projects' formats.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from parallelsearch import grammar
from parallelsearch.errors import PolicyError, UsageError
from parallelsearch.grammar import ANSWER, SEPARATOR, PromptMode
from parallelsearch.observation import Layout
from parallelsearch.policy.base import Generation, OnText, Policy, Sampling
from parallelsearch.trajectory import Author, Segment, Trajectory

_MAX_KEPT = 65_536
_TAGS = f"{grammar.opening(ANSWER)} and {grammar.closing(ANSWER)}"
_BRIEF = f"Give the answer itself, short and without explanation, between {_TAGS}."


# ---- reading free text -----------------------------------------------------------------------------------------------

# An answer ends at a full stop after a word in lower case: "St. Petersburg" and "J. S. Bach" go on.
_SAYS = re.compile(
    r"\banswer\s*(?:is|:|=)+\s*[:=]?\s*(?P<said>[^\n]+?)(?=(?<=(?-i:[a-z0-9)]{2}))\.\s|\.?\s*$|\.?\n)", re.IGNORECASE
)
_BOXED = re.compile(r"\\boxed\{(?P<said>[^{}]*)\}")


def read_answer(text: str, may_be_bare: bool = False) -> str | None:
    """The answer a free text gives: its last answer block (closed or not), a boxed one, "the answer is ..."; and, where
    `may_be_bare`, its last line that is not empty."""
    block = text.rfind(grammar.opening(ANSWER))
    if block >= 0:
        content = text[block + len(grammar.opening(ANSWER)) :].partition(grammar.closing(ANSWER))[0]
        return _tidy(content)
    for pattern in (_BOXED, _SAYS):
        found = list(pattern.finditer(text))
        if found:
            return _tidy(found[-1]["said"])
    lines = [line for line in text.splitlines() if line.strip()]
    return _tidy(lines[-1]) if may_be_bare and lines else None


def _tidy(text: str) -> str | None:
    return grammar.defuse(" ".join(text.split())).strip(" *\"'`").removesuffix(".").strip() or None


def write_turn(thought: str, queries: Sequence[str] = (), answer: str | None = None) -> str:
    """The turn in the package's grammar. With neither a query nor an answer it is text that holds no action."""
    thought = grammar.defuse(" ".join(thought.split()))
    clean: dict[str, str] = {}
    for query in queries:
        text = " ".join(grammar.defuse(query).replace(SEPARATOR, " ").split())
        if text:
            clean.setdefault(grammar.query_key(text), text)
    if clean:
        return grammar.render_turn(thought, list(clean.values()))
    if answer:
        return grammar.render_turn(thought, answer=grammar.defuse(answer))
    return thought


# ---- what a method is ------------------------------------------------------------------------------------------------


class Method:
    """How the model is asked and read. This one is the package's own: its prompt, its grammar, nothing translated."""

    name = "parallel"
    summary = "the package's prompt, sub-queries allowed"
    mode: PromptMode = "parallel"
    layout: Layout | None = None
    """The layout of results this method needs; None leaves it to the caller."""
    max_turns: int | None = None
    stop: tuple[str, ...] = grammar.STOP_STRINGS
    translates = False
    """`read` changes the text, so nothing can be dispatched while it is still being written."""

    def __init__(self, prompt_template: str | None = None) -> None:
        if prompt_template is not None and "{question}" not in prompt_template:
            raise UsageError("a prompt template needs {question} where the question goes")
        self.prompt_template = prompt_template

    @property
    def is_plain(self) -> bool:
        """The rollout alone does it: no wrapper is needed."""
        return type(self) in (Method, Sequential) and self.prompt_template is None

    def prompt(self, question: str) -> str:
        if self.prompt_template is not None:
            return self.prompt_template.replace("{question}", grammar.tidy_question(question))
        return self.default_prompt(question)

    def default_prompt(self, question: str) -> str:
        return grammar.prompt_text(question, self.mode)

    def first_queries(self, question: str) -> list[str]:
        """What is searched before the model is asked at all."""
        return []

    def read(self, text: str, is_last: bool) -> str:
        return text

    def observation(self, text: str) -> str:
        return text

    def notice(self, text: str) -> str:
        return text

    def digest_prompt(self, question: str, steps: Sequence[Step], results: str) -> str | None:
        """A question to the model about new results, whose answer takes their place; None leaves them as they are."""
        return None


@dataclass(frozen=True, slots=True)
class Step:
    """What was said so far, in the method's own form."""

    author: Author
    text: str


class Rebuilt(ABC):
    """A method whose every call gets one new prompt instead of the conversation so far."""

    @abstractmethod
    def whole_prompt(self, question: str, steps: Sequence[Step], is_last: bool) -> str:
        """The prompt of the next call, from all that was said and found."""


class Sequential(Method):
    name, summary, mode = "sequential", "the package's prompt without the sentence about sub-queries", "sequential"


class Direct(Method):
    """One call, no search."""

    name, summary, translates = "direct", "answer from memory, no search", True
    max_turns: int | None = 1
    stop = (grammar.closing(ANSWER),)

    def default_prompt(self, question: str) -> str:
        return f"Answer the question from what you know. {_BRIEF}\nQuestion: {grammar.tidy_question(question)}\n"

    def read(self, text: str, is_last: bool) -> str:
        return write_turn("", answer=read_answer(text, may_be_bare=True))


class ChainOfThought(Direct):
    name, summary = "cot", "reason step by step from memory, no search"

    def default_prompt(self, question: str) -> str:
        return (
            f"Answer the question from what you know. Reason step by step first. Then: {_BRIEF}\n"
            f"Question: {grammar.tidy_question(question)}\n"
        )

    def read(self, text: str, is_last: bool) -> str:
        return write_turn(text.partition(grammar.opening(ANSWER))[0], answer=read_answer(text, may_be_bare=True))


class Rag(Direct, Rebuilt):
    """The question is the query; its passages stand in the prompt; one call."""

    name, summary = "rag", "one retrieval with the question itself, then one call"

    def first_queries(self, question: str) -> list[str]:
        return [grammar.tidy_question(question)]

    def default_prompt(self, question: str) -> str:
        return f"Answer the question with the help of the passages. {_BRIEF}\nQuestion: {grammar.tidy_question(question)}\n"

    def whole_prompt(self, question: str, steps: Sequence[Step], is_last: bool) -> str:
        passages = "\n".join(inside(step.text) for step in steps if step.author == "search")
        return f"Passages:\n{passages}\n\n{self.prompt(question)}"


class IRCoT(Rag):
    """Retrieval and one sentence of reasoning take turns; each sentence is the next query."""

    name, summary = "ircot", "retrieval and one sentence of reasoning in turns"
    max_turns = None
    stop = ("\n",)

    def default_prompt(self, question: str) -> str:
        return (
            "Reason towards the answer with the help of the passages. Write one sentence at a time. When you know it, write: "
            f"So the answer is: X.\nQuestion: {grammar.tidy_question(question)}\nReasoning:"
        )

    def whole_prompt(self, question: str, steps: Sequence[Step], is_last: bool) -> str:
        said = " ".join(" ".join(step.text.split()) for step in steps if step.author == "model")
        push = " So the answer is:" if is_last else ""
        return f"{super().whole_prompt(question, steps, is_last)} {said}{push}".rstrip(" ")

    def read(self, text: str, is_last: bool) -> str:
        sentence = re.split(r"(?<=[.!?])\s+(?=[A-Z])", text.strip(), maxsplit=1)[0].strip()
        answer = read_answer(text) or (read_answer(sentence, may_be_bare=True) if is_last else None)
        return write_turn(sentence, () if answer else [sentence], answer)


def inside(observation: str) -> str:
    """The results without the tags around them."""
    return (
        observation.replace(grammar.opening(grammar.INFORMATION), "")
        .replace(grammar.closing(grammar.INFORMATION), "")
        .strip()
    )


# ---- the policy around a policy --------------------------------------------------------------------------------------


@dataclass(slots=True)
class _State:
    """One rollout: what was really said, by the segment number of the rollout's own record."""

    inner_key: str
    segments: dict[int, Segment] = field(default_factory=dict)
    num_calls: int = 0
    num_side_tokens: int = 0


class MethodPolicy(Policy):
    """Shows the policy inside a method's prompt and format, and the rollout the package's own."""

    def __init__(self, inner: Policy, method: Method) -> None:
        self.inner, self.method = inner, method
        self.name = inner.name
        self.streams = inner.streams and not method.translates
        self.max_context = inner.max_context
        self._questions: dict[str, str] = {}
        self._states: dict[str, _State] = {}
        self._num_calls: dict[str, int] = {}

    def prompt(self, text: str, question: str) -> Segment:
        segment = self.inner.prompt(self.method.prompt(question), question)
        self._questions[segment.text] = question
        _trim(self._questions)
        return segment

    def insert(self, text: str, author: Author) -> Segment:
        return Segment(author, text)  # a record only: what the model is shown is made in `generate`

    def count_tokens(self, text: str) -> int:
        return self.inner.count_tokens(text)

    def describe(self) -> dict[str, Any]:
        return {**self.inner.describe(), "method": self.method.name}

    async def aclose(self) -> None:
        await self.inner.aclose()

    @asynccontextmanager
    async def session(self, key: str) -> AsyncIterator[str]:
        async with self.inner.session(key) as inner_key:
            self._states[key] = state = _State(inner_key)
            try:
                yield key
            finally:
                del self._states[key]
                self._num_calls[key] = state.num_calls
                _trim(self._num_calls)

    def correct(self, trajectory: Trajectory, session: str) -> None:
        """Count the calls that were really made: a retrieval without a call is none, a digest of results is one more."""
        trajectory.num_llm_calls = self._num_calls.pop(session, trajectory.num_llm_calls)

    async def generate(
        self,
        segments: Sequence[Segment],
        *,
        stop: Sequence[str],
        max_tokens: int,
        sampling: Sampling,
        session: str,
        on_text: OnText | None = None,
    ) -> Generation:
        state = self._states.get(session)
        question = self._questions.get(segments[0].text) if segments else None
        if state is None or question is None:
            raise PolicyError(f"method '{self.method.name}': generate needs the session and the prompt of a rollout")
        is_last = segments[-1].author == "notice" and segments[-1].text == grammar.notice_last_turn()
        if len(segments) == 1 and (queries := self.method.first_queries(question)):
            turn = write_turn("", queries)
            state.segments[1] = Segment("model", "")
            return Generation(turn, "stop", num_tokens=0)
        state.num_side_tokens = 0
        context = await self._context(state, segments, question, is_last, max_tokens, sampling, session)
        result = await self._ask(
            state,
            context,
            session,
            max_tokens,
            sampling,
            on_text if self.streams else None,
            is_apart=isinstance(self.method, Rebuilt),
        )
        state.segments[len(segments)] = result.segment()
        num_tokens = result.num_tokens if result.num_tokens is not None else self.count_tokens(result.text)
        num_tokens += state.num_side_tokens
        if not self.method.translates:
            return Generation(result.text, result.finish, num_tokens=num_tokens, restored=result.restored)
        return Generation(self.method.read(result.text, is_last), result.finish, num_tokens=num_tokens)

    async def _context(
        self,
        state: _State,
        segments: Sequence[Segment],
        question: str,
        is_last: bool,
        max_tokens: int,
        sampling: Sampling,
        session: str,
    ) -> list[Segment]:
        """What the model is shown: the rollout's record in the method's own form, each part made once."""
        method = self.method
        steps: list[Step] = []
        for number, segment in enumerate(segments[1:], start=1):
            if number not in state.segments:
                text = method.observation(segment.text) if segment.author == "search" else method.notice(segment.text)
                if segment.author == "search":
                    text = await self._digest(state, question, steps, text, max_tokens, sampling, session)
                state.segments[number] = self.inner.insert(text, segment.author)
            steps.append(Step(segment.author, state.segments[number].text))
        if isinstance(method, Rebuilt):
            return [self.inner.prompt(method.whole_prompt(question, steps, is_last), question)]
        return [segments[0], *(state.segments[number] for number in range(1, len(segments)))]

    async def _digest(
        self,
        state: _State,
        question: str,
        steps: Sequence[Step],
        results: str,
        max_tokens: int,
        sampling: Sampling,
        session: str,
    ) -> str:
        prompt = self.method.digest_prompt(question, steps, results)
        if prompt is None:
            return results
        segment = self.inner.prompt(prompt, question)
        answer = await self._ask(state, [segment], session, max_tokens, sampling, None, is_apart=True, stop=())
        state.num_side_tokens += answer.num_tokens or self.count_tokens(answer.text)
        return self.method.observation(grammar.defuse(answer.text.strip()))

    async def _ask(
        self,
        state: _State,
        context: Sequence[Segment],
        session: str,
        max_tokens: int,
        sampling: Sampling,
        on_text: OnText | None,
        is_apart: bool,
        stop: tuple[str, ...] | None = None,
    ) -> Generation:
        """One call. A prompt made anew is a conversation of its own for the engine inside."""
        state.num_calls += 1
        ends = self.method.stop if stop is None else stop
        if not is_apart:
            return await self.inner.generate(
                context, stop=ends, max_tokens=max_tokens, sampling=sampling, session=state.inner_key, on_text=on_text
            )
        async with self.inner.session(f"{session}/{state.num_calls}") as key:
            return await self.inner.generate(context, stop=ends, max_tokens=max_tokens, sampling=sampling, session=key)


def _trim(kept: dict[str, Any]) -> None:
    """What a caller never came back for is forgotten, oldest first."""
    while len(kept) > _MAX_KEPT:
        del kept[next(iter(kept))]

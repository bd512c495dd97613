"""What every policy is: it turns a prompt into a segment, encodes what the environment inserts, and continues a list of
segments by one turn.

Batching is the engine's business: a rollout awaits `generate` and does not know what runs beside it. `session` brackets
one rollout, so that an engine can count live rollouts, keep their key-value cache and free it at the end.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

from parallelsearch.dialect import Part, Tool
from parallelsearch.errors import UsageError, is_number
from parallelsearch.own_code import described
from parallelsearch.trajectory import Author, Call, Segment

Finish = Literal["stop", "eos", "length"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. Temperature 0 is greedy. `seed` makes a local engine's draw repeatable for this rollout."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (is_number(self.temperature) and 0 <= self.temperature < math.inf):
            raise UsageError(f"temperature is a number from 0 on, not {self.temperature!r}")
        if not (is_number(self.top_p) and 0 < self.top_p <= 1):
            raise UsageError(f"top_p is a number above 0 and at most 1, not {self.top_p!r}")


_MAX_COUNT = 10**9


def is_count(value: object) -> bool:
    """Whether it can be a number of tokens."""
    return type(value) is int and 0 <= value < _MAX_COUNT


@dataclass(slots=True)
class Generation:
    """One turn as the engine gave it. `text` is the decoding of `token_ids`, plus `restored` where a server stripped it.
    `calls`, `reasoning` and `usage` are those of servers that give them apart, `raw` what one wants back as it was. Of
    `usage` the counts are kept. Of `num_tokens`, `num_thought` are for thoughts that do not stand in `text`."""

    text: str
    finish: Finish
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    num_tokens: int | None = None
    num_thought: int = 0
    restored: str | None = None
    calls: list[Call] | None = None
    reasoning: str | None = None
    usage: dict[str, int] | None = None
    raw: list[dict[str, Any]] | None = None

    def __post_init__(self) -> None:
        if self.usage is not None:  # a server's own may hold more than counts, such as OpenAI's details of them
            self.usage = {name: number for name, number in self.usage.items() if is_count(number)}

    def segment(self) -> Segment:
        return Segment(
            "model",
            self.text,
            self.token_ids,
            self.logprobs,
            self.restored,
            self.calls,
            self.reasoning,
            raw=self.raw,
        )


may_repeat: ContextVar[tuple[Policy, Callable[[Generation], bool]] | None] = ContextVar("may_repeat", default=None)
"""Who calls this policy is told of a call that brought nothing, pays for it, and says whether it may be made once more. Where
nobody asks for that, or asks it of a policy around this one, it may, and the second call's `usage` holds both."""

OnText = Callable[[str], None]
"""Called in the event loop with each new piece of text of the turn being written."""
OnCall = Callable[[int, str, str], None]
"""The same for the calls of tools: the number of the call in the turn, the tool's name, and a piece of its arguments."""


@dataclass(frozen=True, slots=True)
class Message:
    """What the environment says in a chat: the result of a call, or, without a `call_id`, a message of the user's side."""

    author: Author
    text: str
    call_id: str | None = None


class Policy(ABC):
    """Continues a list of segments."""

    name: str = "policy"
    streams: bool = False
    """`generate` calls `on_text` while the turn is still being written."""
    max_context: int | None = None
    """How many tokens prompt, turns and results may have together, where the engine knows it."""
    special_tokens: frozenset[str] = frozenset()
    """Those of the engine's tokenizer, where it is known: text from outside must not hold them."""
    dialect: str | None = None
    """The name of the dialect it was trained on, where that is known: taken where nobody asks for another."""
    address: str | None = None
    """What it was opened by (`addresses.py`), where it was by an address."""
    may_write: bool = True
    """It may be asked for a text in place of a short answer; False for one whose turns are fixed."""
    begins_turns: bool = False
    """What is inserted last is the beginning of the turn that it then writes, also in a chat."""
    takes_tools: bool = False
    """It can be asked in a dialect with tools: `prompt` and `generate` then get `tools`, and `generate` an `on_call`."""
    chooses_tools: bool = False
    """`generate` also takes `only_tool`: the tool that this turn must call, or "" where it must call none."""

    @property
    def thinking_room(self) -> int:
        """Tokens that a turn may have for thoughts, on top of `max_tokens`: billed, and no part of the conversation."""
        return 0

    def prompt(self, text: str, question: str) -> Segment:
        """The first segment: the prompt in the engine's own form (chat template, token ids). `question` is for policies
        that look their turns up."""
        return Segment("prompt", text)

    def expect(self, prompts: Sequence[str], tools: Sequence[Tool] = ()) -> None:  # noqa: B027 - only who gains by it
        """Prompts as they will come, but for the question: what they begin with alike may be read ahead."""

    def insert(self, text: str, author: Author) -> Segment:
        """A segment the environment puts in. Engines with a tokenizer encode it here, once, by itself, without
        recognising special tokens in it."""
        return Segment(author, text)

    def insert_parts(self, parts: Sequence[Part], author: Author) -> Segment:
        """The same for text of which some parts are trusted. An engine with a tokenizer recognises special tokens in those,
        and in no others."""
        return self.insert("".join(part.text for part in parts), author)

    def insert_messages(self, messages: Sequence[Message], segments: Sequence[Segment]) -> list[Segment]:
        """A segment for each message, to follow `segments`. Engines with a chat template put its framing around the texts,
        which stay untrusted."""
        return [Segment(one.author, one.text, call_id=one.call_id) for one in messages]

    def count_tokens(self, text: str) -> int:
        """How many tokens `text` has; an estimate where there is no tokenizer (about four bytes each)."""
        return (len(text.encode()) + 3) // 4

    @abstractmethod
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
        """One turn: up to and including a stop string, end of sequence, or `max_tokens`. Raises `PolicyError`."""

    @asynccontextmanager
    async def session(self, key: str) -> AsyncIterator[str]:
        """One rollout, from its first call to its last; `key` names it in `generate`."""
        yield key

    def describe(self) -> dict[str, Any]:
        """What a manifest needs to tell this policy from another. No secrets. Here the name and a hash of the code, which
        does not show what it was made with."""
        return described(self.name, type(self))

    @property
    def title(self) -> str:
        """What people call it: the kind of engine and the model behind it."""
        model = str(self.describe().get("model") or "")
        return f"{self.name} ({model})" if model else self.name

    async def aclose(self) -> None:  # noqa: B027 - closing is optional
        """Release connections, threads and memory."""


def check_policy(policy: object, *, takes_address: bool = False) -> None:
    """Refuse what is no policy, and say what to write. `takes_address` says that an address would have been opened."""
    if isinstance(policy, Policy):
        return
    if isinstance(policy, type) and issubclass(policy, Policy):
        raise UsageError(f"a policy is a Policy, and {policy.__name__} is its class; write {policy.__name__}(...)")
    if callable(getattr(policy, "generate", None)):
        name = policy.__name__ if isinstance(policy, type) else type(policy).__name__
        raise UsageError(
            f"a policy is a Policy, and {name} has a method generate but does not inherit from it, nor what goes with it; "
            f"write class {name}(parallelsearch.Policy)"
        )
    if takes_address:
        raise UsageError(f"a policy is an address, such as 'auto', or a Policy, not {type(policy).__name__}")
    if isinstance(policy, str):
        raise UsageError(
            f"this takes a Policy, not an address: write open_policy({policy!r}) and close it in the end, or give the "
            "address to Agent or evaluate, which do both"
        )
    raise UsageError(f"a policy is a Policy, such as open_policy('auto'), not {type(policy).__name__}")

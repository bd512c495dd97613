"""What every policy is: it turns a prompt into a segment, encodes what the environment inserts, and continues a list of
segments by one turn.

Batching is the engine's business: a rollout awaits `generate` and does not know what runs beside it. `session` brackets
one rollout, so that an engine can count live rollouts, keep their key-value cache and free it at the end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

from parallelsearch.trajectory import Author, Segment

Finish = Literal["stop", "eos", "length"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. Temperature 0 is greedy. `seed` makes a local engine's draw repeatable for this rollout."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0


@dataclass(slots=True)
class Generation:
    """One turn as the engine gave it. `text` is the decoding of `token_ids`, plus `restored` where a server stripped it."""

    text: str
    finish: Finish
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    num_tokens: int | None = None
    restored: str | None = None

    def segment(self) -> Segment:
        return Segment("model", self.text, self.token_ids, self.logprobs, self.restored)


OnText = Callable[[str], None]
"""Called in the event loop with each new piece of text of the turn being written."""


class Policy(ABC):
    """Continues a list of segments."""

    name: str = "policy"
    streams: bool = False
    """`generate` calls `on_text` while the turn is still being written."""
    max_context: int | None = None
    """How many tokens prompt, turns and results may have together, where the engine knows it."""

    def prompt(self, text: str, question: str) -> Segment:
        """The first segment: the prompt in the engine's own form (chat template, token ids). `question` is for policies
        that look their turns up."""
        return Segment("prompt", text)

    def insert(self, text: str, author: Author) -> Segment:
        """A segment the environment puts in. Engines with a tokenizer encode it here, once, by itself, without
        recognising special tokens in it."""
        return Segment(author, text)

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
        """What a manifest needs to tell this policy from another. No secrets."""
        return {"kind": self.name}

    async def aclose(self) -> None:  # noqa: B027 - closing is optional
        """Release connections, threads and memory."""

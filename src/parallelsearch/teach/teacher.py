"""The model that teaches, as a policy with a purse and a memory: it is never asked the same thing twice, and never beyond
its limit of tokens.

Every reply is written to a file before it is used, so a run that was killed asks only for what is missing. The limit is
looked at before a request goes out, with what the request can at most come to: money that is counted afterwards is gone.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parallelsearch.errors import PolicyError
from parallelsearch.files import read_jsonl, to_json
from parallelsearch.policy.base import Generation, OnText, Policy, Sampling
from parallelsearch.trajectory import Author, Segment


class TeacherSpentError(PolicyError):
    """The next request could pass the limit of tokens."""


@dataclass(slots=True)
class Spent:
    """What the teacher has come to, replies of earlier starts included. `num_asked` counts this start's requests only."""

    num_replies: int = 0
    num_asked: int = 0
    num_read: int = 0
    num_written: int = 0

    @property
    def num_tokens(self) -> int:
        return self.num_read + self.num_written


class Teacher(Policy):
    """A policy behind a cache file and a limit. Rollouts and single prompts go through the same `generate`."""

    name = "teacher"

    def __init__(self, policy: Policy, cache: Path, max_tokens: int | None = None) -> None:
        self.policy, self.cache, self.max_tokens = policy, cache, max_tokens
        self.max_context = policy.max_context
        self.spent = Spent()
        self._reserved = 0
        self._replies: dict[str, dict[str, Any]] = {}
        if cache.exists():
            for _, record in read_jsonl(cache, on_bad=lambda _: None):  # a killed run's last line may be half a line
                if isinstance(record, dict) and isinstance(record.get("key"), str):
                    self._replies[record["key"]] = record
                    self._count(record)

    async def say(self, prompt: str, *, seed: int = 0, temperature: float = 0.7, max_tokens: int = 700) -> str:
        """The reply to one prompt, as text."""
        first = self.policy.prompt(prompt, prompt)
        sampling = Sampling(temperature, seed=seed)
        async with self.policy.session(f"teach-{seed}") as session:
            done = await self.generate([first], stop=(), max_tokens=max_tokens, sampling=sampling, session=session)
        return done.text

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
        key = self._key(segments, stop, max_tokens, sampling)
        record = self._replies.get(key)
        if record is None:
            record = await self._ask(key, segments, stop, max_tokens, sampling, session)
        text = str(record["text"])
        if on_text is not None:
            on_text(text)
        return Generation(text, record["finish"], num_tokens=record["written"])

    async def _ask(
        self,
        key: str,
        segments: Sequence[Segment],
        stop: Sequence[str],
        max_tokens: int,
        sampling: Sampling,
        session: str,
    ) -> dict[str, Any]:
        num_read = sum(self.policy.count_tokens(segment.text) for segment in segments)
        self._reserve(num_read + max_tokens)
        try:
            made = await self.policy.generate(
                segments, stop=stop, max_tokens=max_tokens, sampling=sampling, session=session
            )
        finally:
            self._reserved -= num_read + max_tokens
        usage = made.usage or {}
        written = made.num_tokens if made.num_tokens is not None else self.policy.count_tokens(made.text)
        record = {
            "key": key,
            "text": made.text,
            "finish": made.finish,
            "read": int(usage.get("prompt_tokens", num_read)),
            "written": int(usage.get("completion_tokens", written)),
        }
        self._keep(record)
        return record

    def _keep(self, record: dict[str, Any]) -> None:
        """Written before it is used: what was paid for is not lost."""
        with open(self.cache, "a", encoding="utf-8") as file:
            file.write(to_json(record) + "\n")
        self._replies[record["key"]] = record
        self._count(record)
        self.spent.num_asked += 1

    def _reserve(self, num_tokens: int) -> None:
        """Requests that are under way count with all they may come to."""
        wanted = self.spent.num_tokens + self._reserved + num_tokens
        if self.max_tokens is not None and wanted > self.max_tokens:
            raise TeacherSpentError(
                f"the teacher has used {self.spent.num_tokens:,} of the {self.max_tokens:,} tokens it may "
                f"(--max-teacher-tokens), and the next request can take {num_tokens:,}; what was made is kept, and the same "
                "command with a higher limit goes on from it"
            )
        self._reserved += num_tokens

    def _count(self, record: dict[str, Any]) -> None:
        self.spent.num_replies += 1
        self.spent.num_read += int(record.get("read", 0))
        self.spent.num_written += int(record.get("written", 0))

    def _key(self, segments: Sequence[Segment], stop: Sequence[str], max_tokens: int, sampling: Sampling) -> str:
        said = [[segment.author, segment.text] for segment in segments]
        drawn = [sampling.temperature, sampling.top_p, sampling.seed]
        return hashlib.sha256(
            to_json([self.policy.describe(), said, list(stop), max_tokens, drawn]).encode()
        ).hexdigest()

    def prompt(self, text: str, question: str) -> Segment:
        return self.policy.prompt(text, question)

    def insert(self, text: str, author: Author) -> Segment:
        return self.policy.insert(text, author)

    def count_tokens(self, text: str) -> int:
        return self.policy.count_tokens(text)

    def describe(self) -> dict[str, Any]:
        return self.policy.describe()

    @asynccontextmanager
    async def session(self, key: str) -> AsyncIterator[str]:
        async with self.policy.session(key) as inner:
            yield inner

    async def aclose(self) -> None:
        await self.policy.aclose()

"""The text side of a policy with a tokenizer: prompts, inserted text and decoding, the same wherever ids are made.

The local engine samples with it and the cold start encodes with it, so that training data and rollouts agree to the token.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any, Literal

from parallelsearch.errors import PolicyError, UsageError
from parallelsearch.policy.base import Policy
from parallelsearch.trajectory import Author, Segment

Template = Literal["auto", "chat", "base"]


class EncodingPolicy(Policy):
    """Encodes segments with a transformers tokenizer. Subclasses generate."""

    def __init__(self, tokenizer: Any, label: str, template: Template = "auto") -> None:
        """`template`: `chat` wraps the prompt in the tokenizer's chat template, `base` sends it as it is, `auto` takes what
        there is."""
        self.tokenizer, self.label = tokenizer, label
        has_template = bool(getattr(tokenizer, "chat_template", None))
        if template == "chat" and not has_template:
            raise UsageError(f"the tokenizer of '{label}' has no chat template; use template 'base' or 'auto'")
        self._wraps_prompt = has_template and template != "base"
        # The same passages come back in every sample of a question: count each once.
        self._count = lru_cache(maxsize=65_536)(lambda text: len(self._encode_untrusted(text)))

    def prompt(self, text: str, question: str) -> Segment:
        """The chat template around the text, ready for the assistant's turn; a base model gets the text as it is."""
        if self._wraps_prompt:
            messages = [{"role": "user", "content": text}]
            text = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
            ids = self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=False)
        else:
            ids = self.tokenizer.encode(text, add_special_tokens=True, split_special_tokens=True)
        return Segment("prompt", text, [int(i) for i in ids])

    def insert(self, text: str, author: Author) -> Segment:
        return Segment(author, text, self._encode_untrusted(text))

    def ids_of(self, segments: Sequence[Segment]) -> list[int]:
        """The whole context as ids, as they were drawn or encoded: nothing is tokenised again."""
        ids: list[int] = []
        for number, segment in enumerate(segments):
            if segment.token_ids is None:
                raise PolicyError(
                    f"segment {number} ('{segment.author}') has no token ids; build it with this policy's prompt() "
                    "or insert()"
                )
            ids += segment.token_ids
        return ids

    def count_tokens(self, text: str) -> int:
        return self._count(text)

    def _encode_untrusted(self, text: str) -> list[int]:
        return [int(i) for i in self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)]

    def decode(self, ids: list[int]) -> str:
        """The text of ids the model drew: special tokens left out, nothing tidied."""
        text: str = self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text


class EnginePolicy(EncodingPolicy):
    """One whose engine keeps something for each rollout between its turns."""

    engine: Any

    @asynccontextmanager
    async def session(self, key: str) -> AsyncIterator[str]:
        self.engine.open_session(key)
        try:
            yield key
        finally:
            self.engine.close_session(key)

    def reset(self) -> None:
        """After a weight update: what was computed with the old weights is forgotten. Refused while turns run."""
        self.engine.reset()

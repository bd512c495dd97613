"""The text side of a policy with a tokenizer: prompts, inserted text and decoding, the same wherever ids are made.

The local engine samples with it and the cold start encodes with it, so that training data and rollouts agree to the token.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any, Literal

from parallelsearch import grammar
from parallelsearch.dialect import Part, Tool
from parallelsearch.errors import PolicyError, UsageError
from parallelsearch.policy.base import Generation, Message, OnCall, OnText, Policy, Sampling
from parallelsearch.trajectory import Author, Segment

Template = Literal["auto", "chat", "base"]


class EncodingPolicy(Policy):
    """Encodes segments with a transformers tokenizer. Subclasses generate."""

    begins_turns = True

    def __init__(self, tokenizer: Any, label: str, template: Template = "auto") -> None:
        """`template`: `chat` wraps the prompt in the tokenizer's chat template, `base` sends it as it is, `auto` takes what
        there is."""
        self.tokenizer, self.label = tokenizer, label
        has_template = bool(getattr(tokenizer, "chat_template", None))
        if template == "chat" and not has_template:
            raise UsageError(f"the tokenizer of '{label}' has no chat template; use template 'base' or 'auto'")
        self._wraps_prompt = has_template and template != "base"
        added = getattr(tokenizer, "added_tokens_decoder", {}).values()
        self.special_tokens = frozenset(
            {*getattr(tokenizer, "all_special_tokens", ()), *(token.content for token in added if token.special)}
        )
        # A template that knows tools speaks of them by this name, and shows their results; some do the one and not the other.
        self.takes_tools = self._wraps_prompt and "tools" in str(tokenizer.chat_template) and self._shows_results()
        # The same passages come back in every sample of a question: count each once.
        self._count = lru_cache(maxsize=65_536)(lambda text: len(self._encode_untrusted(text)))

    def prompt(self, text: str, question: str, tools: Sequence[Tool] = ()) -> Segment:
        """The chat template around the text, ready for the assistant's turn; a base model gets the text as it is."""
        if self._wraps_prompt:
            text = self._rendered([{"role": "user", "content": text}], tools)
            ids = self._encode_trusted(text)
        else:
            ids = self.tokenizer.encode(text, add_special_tokens=True, split_special_tokens=True)
        return Segment("prompt", text, [int(i) for i in ids])

    def insert(self, text: str, author: Author) -> Segment:
        return Segment(author, text, self._encode_untrusted(text))

    def insert_parts(self, parts: Sequence[Part], author: Author) -> Segment:
        if not any(part.is_trusted for part in parts):
            return super().insert_parts(parts, author)
        ids = [
            i
            for part in parts
            for i in (self._encode_trusted if part.is_trusted else self._encode_untrusted)(part.text)
        ]
        return Segment(author, "".join(part.text for part in parts), ids)

    def insert_messages(self, messages: Sequence[Message], segments: Sequence[Segment]) -> list[Segment]:
        """The chat template's framing around each text, as it renders such messages behind an assistant's turn. The end
        mark of that turn is left out where the model has drawn it."""
        frames = list(
            self._frames(tuple("tool" if one.author == "search" or one.call_id else "user" for one in messages))
        )
        drawn = segments[-1].token_ids if segments and segments[-1].author == "model" else None
        if drawn and (end := self.tokenizer.decode(drawn[-1:])) and frames[0].startswith(end):
            frames[0] = frames[0].removeprefix(end)
        made: list[Segment] = []
        for number, message in enumerate(messages):
            parts = [Part(frames[number], is_trusted=True), Part(message.text)]
            if message is messages[-1]:
                parts.append(Part(frames[-1], is_trusted=True))
            segment = self.insert_parts(parts, message.author)
            segment.call_id = message.call_id
            made.append(segment)
        return made

    def _shows_results(self) -> bool:
        try:
            return bool(self._frames(("tool",)))
        except Exception:  # whatever a template raises, it does not show them
            return False

    def _frames(self, roles: tuple[str, ...]) -> tuple[str, ...]:
        """What the template writes before, between and behind messages of these roles that follow an assistant's turn."""
        marks = [f"@@{number}@@" for number in range(len(roles) + 1)]
        said = {"role": "assistant", "content": marks[0]}
        follow = [{"role": role, "content": mark} for role, mark in zip(roles, marks[1:], strict=True)]
        text = self._rendered([{"role": "user", "content": "x"}, said, *follow], ())
        frames: list[str] = []
        rest = text.partition(marks[0])[2]
        for mark in marks[1:]:
            before, found, rest = rest.partition(mark)
            if not found:
                raise UsageError(f"the chat template of '{self.label}' does not show messages of the role '{roles[0]}'")
            frames.append(before)
        return (*frames, rest)

    def _rendered(self, messages: list[dict[str, str]], tools: Sequence[Tool]) -> str:
        options = {"tools": [tool.schema() for tool in tools]} if tools else {}
        try:
            text: str = self.tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=False, **options
            )
        except Exception as error:  # a template is a program; the sandbox refuses some, others refuse our messages
            raise UsageError(
                f"the chat template of '{self.label}' cannot be used ({type(error).__name__}: {error}); use template 'base'"
            ) from error
        return text

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

    def _encode_trusted(self, text: str) -> list[int]:
        return [int(i) for i in self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=False)]

    def decode(self, ids: list[int]) -> str:
        """The text of ids the model drew: special tokens left out, nothing tidied."""
        text: str = self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text


class EnginePolicy(EncodingPolicy):
    """One whose engine keeps something for each rollout between its turns."""

    engine: Any
    max_context: int

    async def generate(
        self,
        segments: Sequence[Segment],
        *,
        stop: Sequence[str],
        max_tokens: int,
        sampling: Sampling,
        session: str,
        on_text: OnText | None = None,
        tools: Sequence[Tool] = (),
        on_call: OnCall | None = None,
    ) -> Generation:
        """One turn of the engine behind these segments, its text told as it is written. `tools` stand in the prompt already,
        and calls in the text, where the dialect reads them."""
        ids = self.ids_of(segments)
        if len(ids) >= self.max_context:
            raise PolicyError(
                f"the context is full: {len(ids)} tokens, and '{self.label}' takes {self.max_context} here. "
                "Lower the number of passages (k), the tokens of a turn or the number of turns, or raise max_context"
            )
        stream = TextStream(self.decode, on_text) if on_text is not None else None
        is_thinking = bool(segments and grammar.opened_thought(segments[-1].text))
        drawn: list[int] = []
        logprobs: list[float] = []
        try:
            while True:
                output = await self.engine.generate(
                    ids + drawn,
                    stop=stop,
                    max_new_tokens=max_tokens - len(drawn),
                    sampling=sampling,
                    key=session,
                    on_tokens=stream.push if stream is not None else None,
                )
                drawn, logprobs, finish = drawn + output.token_ids, logprobs + output.logprobs, output.finish
                text = self.decode(drawn)
                if finish != "stop" or not is_thinking or grammar.closing(grammar.THINK) in text:
                    break
                # A stop string in a thought that the chat template has opened ends nothing.
                if len(drawn) >= max_tokens or len(ids) + len(drawn) >= self.max_context:
                    finish = "length"
                    break
        finally:
            if stream is not None:
                stream.close()
        if stream is not None:
            stream.finish(text)
        return Generation(text, finish, drawn, logprobs, len(drawn))

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


class TextStream:
    """Tokens in, pieces of text out. A piece never ends inside a character, and all pieces together are the final text."""

    def __init__(self, decode: Any, on_text: OnText) -> None:
        self._decode, self._on_text = decode, on_text
        self._ids: list[int] = []
        self._sent = ""
        self._is_closed = False
        self._error: Exception | None = None

    def push(self, tokens: list[int]) -> None:
        if self._is_closed or self._error is not None:
            return
        self._ids += tokens
        # An unfinished character decodes to replacement signs at the end: they wait for the rest of it.
        self._send(self._decode(self._ids).rstrip("\ufffd"))

    def _send(self, text: str) -> None:
        if len(text) > len(self._sent) and text.startswith(self._sent):
            piece, self._sent = text[len(self._sent) :], text
            try:
                self._on_text(piece)
            except Exception as error:
                self._error = error

    def close(self) -> None:
        """Nothing is sent from here on but by `finish`."""
        self._is_closed = True

    def finish(self, text: str) -> None:
        """Send what is left of the final text; raise what the receiver had raised on the way."""
        if self._error is None:
            self._send(text)
        if self._error is not None:
            raise self._error

"""What an OpenAI-compatible server sends for one turn, read piece by piece: server-sent events and the JSON in them.

`read_events` cuts a byte stream into events, however it was split on the way. `Turn` takes each JSON object, of a streamed
or a whole answer, of the chat or the completions kind, and builds one `Generation`: it ends the text after the first stop
string, puts back one that the server stripped, and keeps token ids only where they are the ids of exactly that text.
Nothing here knows about connections; what makes no sense is a `PolicyError`, what may pass is a `TransientError`.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any

from parallelsearch import grammar
from parallelsearch.errors import PolicyError, TransientError
from parallelsearch.policy.base import Finish, Generation, OnText

_MAX_EVENT_BYTES = 16 * 1024 * 1024
_SURROGATE = re.compile("[\ud800-\udfff]")
_LENGTH = frozenset({"length", "max_tokens"})
_END_OF_SEQUENCE = frozenset({"eos", "eos_token"})


async def read_events(chunks: AsyncIterator[bytes]) -> AsyncGenerator[str, None]:
    """The `data` of each server-sent event. Comments and other fields are skipped; lines may end in LF, CRLF or CR.

    Cutting is done on bytes: a chunk may end inside a character, and only these three ends of line count, not the
    further ones `str.splitlines` knows, which a JSON text may hold.
    """
    data: list[bytes] = []
    rest = b""
    async for chunk in chunks:
        rest += chunk
        held = b"\r" if rest.endswith(b"\r") else b""  # the LF of a CRLF may still be on its way
        *lines, rest = rest.removesuffix(held).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        rest += held
        for line in lines:
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
            elif not line and data:
                yield b"\n".join(data).decode("utf-8", "replace")
                data = []
        if len(rest) + sum(map(len, data)) > _MAX_EVENT_BYTES:
            raise PolicyError(f"the server sent an event of more than {_MAX_EVENT_BYTES} bytes")
    if rest.startswith(b"data:"):
        data.append(rest.strip(b"\r")[5:].removeprefix(b" "))
    if data:
        yield b"\n".join(data).decode("utf-8", "replace")


class Turn:
    """One turn, as far as the server has sent it. Feed it every JSON object, then ask for the `generation`.

    `said` is what a broken attempt at the same turn had handed to `on_text`: this one must begin with the same text, which
    is not handed out again. It does when the server decodes greedily; where it says something else, that is an error.
    """

    def __init__(self, stop: Sequence[str], on_text: OnText | None, said: str = "") -> None:
        self._stop = tuple(stop)
        self._on_text = on_text
        self._thought = _Thought(self._emit)
        self._content = ""
        self._half = ""
        self._text = ""
        self._token_ids: list[int] = []
        self._logprobs: list[float] = []
        self._num_tokens: int | None = None
        self._finish_reason: str | None = None
        self._matched: object = None
        self._is_without_choice = False
        self.prompt_ids: list[int] | None = None
        self.has_stopped = False
        """The text has reached a stop string."""
        self.ran_on = False
        """The server goes on past the stop string: there is nothing more to read."""
        self.said = said
        """What has gone to `on_text`, in this attempt or one before it."""

    def feed(self, payload: object) -> None:
        """One chunk of a stream, or the whole answer."""
        if not isinstance(payload, dict):
            raise PolicyError(f"the server sent {_short(payload)} where a JSON object belongs")
        if payload.get("error"):
            raise _reported_error(payload["error"])
        usage = payload.get("usage")
        if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
            self._num_tokens = usage["completion_tokens"]
        choices = payload.get("choices")
        if not isinstance(choices, list):
            raise PolicyError(f"the server's answer has no 'choices': {_short(payload)}")
        self._is_without_choice = self._finish_reason is None and not choices
        for choice in choices[:1]:  # the chunk with the usage, after the last one, has none
            if not isinstance(choice, dict):
                raise PolicyError(f"the server sent {_short(choice)} where a choice belongs")
            self.prompt_ids = (
                _ids(choice.get("prompt_token_ids")) or _ids(payload.get("prompt_token_ids")) or self.prompt_ids
            )
            self._feed_choice(choice)

    def _feed_choice(self, choice: dict[str, Any]) -> None:
        message = choice.get("delta") or choice.get("message") or {}
        if not isinstance(message, dict):
            raise PolicyError(f"the server sent {_short(message)} where a message belongs")
        self._thought.add(_string(message.get("reasoning_content") or message.get("reasoning")))
        self._add_content(_string(choice.get("text") if "text" in choice else message.get("content")))
        self._token_ids += _ids(choice.get("token_ids")) or ()
        self._logprobs += _logprobs(choice.get("logprobs"))
        if choice.get("finish_reason"):
            self._finish_reason = str(choice["finish_reason"])
            self._matched = choice.get("stop_reason", choice.get("matched_stop"))  # vLLM's name, SGLang's name

    def _add_content(self, piece: str) -> None:
        if not piece:
            return
        if self.has_stopped:
            self.ran_on = True
            return
        piece, self._half = _whole_characters(self._half + piece)
        self._thought.close()
        start = max(0, len(self._content) - max(map(len, self._stop), default=0) + 1)
        self._content += piece
        end = first_stop_end(self._content, self._stop, start)
        if end is not None:
            self.has_stopped = True
            self.ran_on = end < len(self._content)
            piece = piece[: len(piece) - (len(self._content) - end)]
            self._content = self._content[:end]
        self._emit(piece)

    def _emit(self, piece: str) -> None:
        if not piece:
            return
        self._text += piece
        if self._on_text is None:
            return
        if not (self.said.startswith(self._text) or self._text.startswith(self.said)):
            raise PolicyError(
                "the server broke off and said something else the second time, after part had been passed on"
            )
        new = self._text[len(self.said) :]
        if new:
            self.said = self._text
            self._on_text(new)

    def generation(self, count_tokens: Callable[[str], int]) -> Generation:
        """The turn, once the server has sent all of it."""
        if not self.has_stopped and self._finish_reason is None:
            if self._is_without_choice:
                raise PolicyError("the server's answer has an empty list of 'choices'")
            raise TransientError("the server's answer ended before the turn did")
        if self._finish_reason == "content_filter":
            raise PolicyError("the server's content filter stopped the turn")
        if self._finish_reason in ("tool_calls", "function_call"):
            raise PolicyError(
                "the server turned the turn into a tool call; start it without a tool-call parser, this policy reads text"
            )
        if self._finish_reason in ("error", "abort"):
            raise TransientError(f"the server ended the turn with '{self._finish_reason}'")
        self._thought.close()
        finish, restored = self._ending()
        if restored is not None:
            self._emit(restored)
        if len(self._text) < len(self.said):
            raise PolicyError("the server broke off and said less the second time, after more had been passed on")
        # Ids are ids of this very text only if nothing was cut off, put back, or moved into a thought by the server.
        is_exact = bool(self._token_ids) and not self.ran_on and restored is None and not self._thought.text
        ids = self._token_ids if is_exact else None
        return Generation(
            self._text,
            finish,
            token_ids=ids,
            logprobs=self._logprobs if ids is not None and len(self._logprobs) == len(ids) else None,
            num_tokens=self._num_tokens or len(self._token_ids) or count_tokens(self._text),
            restored=restored,
        )

    def _ending(self) -> tuple[Finish, str | None]:
        """Why the turn ended, and the stop string that the server stripped."""
        if self.has_stopped:
            return "stop", None
        if self._finish_reason in _LENGTH:
            return "length", None
        # A server that tells what it stopped at is believed (a number is an end-of-sequence token); of the others only
        # the text can say whether an action was left open.
        if isinstance(self._matched, str) and self._matched in self._stop:
            return "stop", self._matched
        if self._finish_reason in _END_OF_SEQUENCE or isinstance(self._matched, int):
            return "eos", None
        stripped = grammar.unclosed_action(self._text)
        return ("stop", stripped) if stripped in self._stop else ("eos", None)


class _Thought:
    """What a reasoning server sends beside the content, written as a thought before it. Passed on line by line: a line is
    made harmless first, so that no tag quoted in it can end the thought."""

    def __init__(self, emit: Callable[[str], None]) -> None:
        self._emit = emit
        self._line = ""
        self._is_closed = False
        self.text = ""

    def add(self, piece: str) -> None:
        if piece and not self._is_closed:
            *lines, self._line = (self._line + piece).split("\n")
            for line in lines:
                self._pass_on(line + "\n")

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._pass_on(self._line)
            if self.text:
                self._emit(f" {grammar.closing(grammar.THINK)}\n")

    def _pass_on(self, line: str) -> None:
        line = grammar.defuse(_whole_characters(line)[0])
        if line:
            self._emit(line if self.text else f"{grammar.opening(grammar.THINK)} {line}")
            self.text += line


def _whole_characters(text: str) -> tuple[str, str]:
    """The text with surrogate pairs joined, and the first half of one at its end: JSON may be cut there, UTF-8 not."""
    if text.isascii() or not _SURROGATE.search(text):
        return text, ""
    half = text[-1] if "\ud800" <= text[-1] <= "\udbff" else ""
    return text.removesuffix(half).encode("utf-16", "surrogatepass").decode("utf-16", "replace"), half


def first_stop_end(text: str, stop: Sequence[str], start: int = 0) -> int | None:
    """Where the stop string that is complete first ends."""
    ends = [at + len(string) for string in stop if (at := text.find(string, start)) >= 0]
    return min(ends, default=None)


def _reported_error(error: object) -> PolicyError | TransientError:
    """An error that came with status 200, inside the answer."""
    code = error.get("code") if isinstance(error, dict) else None
    message = (
        f"the server reported an error: {_short(error.get('message', error) if isinstance(error, dict) else error)}"
    )
    is_transient = isinstance(code, int) and (code == 429 or 500 <= code < 600)
    return TransientError(message) if is_transient else PolicyError(message)


def _string(value: object) -> str:
    """A text, or the text parts of a list of parts."""
    if isinstance(value, list):
        return "".join(_string(part.get("text")) for part in value if isinstance(part, dict))
    if value is not None and not isinstance(value, str):
        raise PolicyError(f"the server sent {_short(value)} where text belongs")
    return value or ""


def _ids(value: object) -> list[int] | None:
    return value if isinstance(value, list) and value and all(type(item) is int for item in value) else None


def _logprobs(value: object) -> list[float]:
    """The sampled tokens' log-probabilities: chat has a list of objects, completions a list of numbers."""
    if not isinstance(value, dict):
        return []
    items = value.get("token_logprobs") or value.get("content") or []
    numbers = (
        [item.get("logprob") if isinstance(item, dict) else item for item in items] if isinstance(items, list) else []
    )
    return [float(number) for number in numbers if isinstance(number, int | float)]


def _short(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 200 else text[:197] + "..."

"""What an OpenAI-compatible server sends for one turn, read piece by piece: server-sent events and the JSON in them.

`EventReader` cuts a byte stream into events, however it was split on the way. `Turn` takes each JSON object, of a streamed
or a whole answer, of the chat or the completions kind, and builds one `Generation`: it ends the text after the first stop
string, puts back one that the server stripped, and keeps token ids only where they are the ids of exactly that text.
Nothing here knows about connections; what makes no sense is a `PolicyError`, what may pass is a `TransientError`.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json, to_json

from parallelsearch import grammar
from parallelsearch.errors import PolicyError, TransientError
from parallelsearch.policy.base import Finish, Generation, OnCall, OnText, is_count
from parallelsearch.trajectory import Call
from parallelsearch.untrusted import finite, whole, whole_start

_MAX_EVENT_BYTES = 16 * 1024 * 1024
_OPENING, _CLOSING = grammar.opening(grammar.THINK), grammar.closing(grammar.THINK)
_CONTENT = b'"content":'
_NAME_ENDS = b'content"'
_NAMESPACE = "functions."
"""In which OpenAI's own models know their tools; some servers leave it before the name."""
_UNREADABLE_CALL = re.compile(  # Ollama's and llama.cpp's words (status 500), then Groq's (400)
    r"pars(?:e|ing) (?:the )?(?:tool|function)[ _-]?call|parse input at pos|failed_generation|tool call validation failed",
    re.I,
)
_CALL_IN_TEXT = re.compile(r"<tool_call>|\A\s*(?:```|[\[{])")
"""So a text begins that is a call, or holds one."""
_THOUGHT_KEYS = ("text", "summary", "thinking", "content")
"""Under which the objects of OpenAI's Responses, of Mistral and of Databricks have the words of a thought."""
_LENGTH = frozenset({"length", "max_tokens"})
_END_OF_SEQUENCE = frozenset({"eos", "eos_token"})


class EventReader:
    """The `data` of each server-sent event. Comments and other fields are skipped; lines may end in LF, CRLF or CR.

    Cutting is done on bytes: a chunk may end inside a character, and only these three ends of line count, not the
    further ones `str.splitlines` knows, which a JSON text may hold.
    """

    def __init__(self) -> None:
        self._data: list[bytes] = []
        self._pieces: list[bytes] = []  # of a line that is not whole yet
        self._num_bytes = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The events that this chunk completes; an empty chunk ends the stream."""
        if not chunk:  # the last event need not have an empty line after it
            chunk = b"\n\n"
        is_between = not self._num_bytes and not self._data
        if is_between and chunk.startswith(b"data: ") and chunk.endswith(b"\n\n") and b"\r" not in chunk:
            events = chunk[6:-2].split(b"\n\ndata: ")
            if b"\n" not in b"".join(events):  # as nearly always: whole events of one line each
                return events
        self._pieces.append(chunk)
        self._num_bytes += len(chunk)
        found: list[bytes] = []
        if b"\n" in chunk or b"\r" in chunk:
            rest = b"".join(self._pieces) if len(self._pieces) > 1 else chunk
            held = b""
            if b"\r" in rest:
                held = b"\r" if rest.endswith(b"\r") else b""  # the LF of a CRLF may still be on its way
                rest = rest.removesuffix(held).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            *lines, rest = rest.split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])
                elif not line and self._data:
                    found.append(b"\n".join(self._data))
                    self._data = []
            self._pieces = [rest + held]
            self._num_bytes = len(self._pieces[0]) + sum(map(len, self._data))
        if self._num_bytes > _MAX_EVENT_BYTES:
            raise PolicyError(f"the server sent an event of more than {_MAX_EVENT_BYTES} bytes")
        return found


def json_bytes(value: object) -> bytes:
    """The body of a request."""
    try:
        return to_json(value)
    except ValueError:  # half a surrogate pair, which a command line may hold, is no reason to fail here
        return json.dumps(value).encode()


def read_json(data: bytes) -> object:
    """The value in an event or an answer, or a `ValueError`."""
    try:
        return from_json(data)
    except ValueError:  # half a surrogate pair, which Python's own reader takes, and bytes that are not UTF-8
        try:
            return json.loads(data.decode("utf-8", "replace"))
        except RecursionError:
            raise ValueError("it is nested too deeply") from None


class Mould:
    """The form of a stream's events. Nearly all are the same bytes but for the text in them, and to cut that out costs a
    tenth of reading the JSON around it anew. What does not fit to the byte is not read here."""

    __slots__ = ("_after", "_before")

    def __init__(self) -> None:
        self._before = self._after = b""  # nothing fits

    def learn(self, data: bytes) -> None:
        """Take the form of an event that was found to be a piece of text and nothing else, if it is clear.

        An event may have more than one field of that name, and a name may be spelt with `\\u` or with a space after it:
        the field is surely the one with the text where the name ends in one place only.
        """
        start = data.find(_CONTENT)
        opening = data.find(b'"', start + len(_CONTENT))
        closing = data.find(b'"', opening + 1)
        if (
            0 <= start < opening < closing
            and data.count(_NAME_ENDS) == 1
            and b"\\u" not in data
            and not data[start + len(_CONTENT) : opening].strip()
            and b"\\" not in data[opening + 1 : closing]
        ):
            self._before, self._after = data[: opening + 1], data[closing:]

    def text(self, data: bytes) -> str | None:
        """The text of an event of this form; None if the event has to be read."""
        before, after = self._before, self._after
        if not (data.startswith(before) and data.endswith(after)):
            return None
        inside = data[len(before) : -len(after)]
        if not inside or b'"' in inside or b"\\" in inside:  # then the border may be another one
            return None
        try:
            text = inside.decode()
        except UnicodeDecodeError:
            return None
        return text if text.isprintable() else None


class Turn:
    """One turn, as far as the server has sent it. Feed it every JSON object, then ask for the `generation`.

    `said` is what a broken attempt at the same turn had handed to `on_text`: this one must begin with the same text, which
    is not handed out again. It does when the server decodes greedily; where it says something else, that is an error.
    """

    def __init__(
        self,
        stop: Sequence[str],
        on_text: OnText | None,
        with_calls: bool = False,
        max_chars: int | None = None,
        said: str = "",
        on_call: OnCall | None = None,
        thinks_first: bool | None = False,
    ) -> None:
        """`with_calls`: calls of tools are wanted, and reasoning is kept apart from the text. `max_chars`: a server that
        writes more than that does not keep to the limit of tokens; the turn ends there. `thinks_first`: the chat template
        opens a thought, so that the text begins inside it; None where that is not known yet."""
        self._left_in = _LeftIn() if thinks_first else None
        self._may_think_first = thinks_first is None
        self._has_ended = False  # of itself, with no stop string
        self._max_chars, self._num_chars = max_chars, 0
        self._stop = tuple(stop)
        self._longest_stop, self._stop_ends = _measured(self._stop)
        self._on_text = on_text
        self._thought = _Thought()
        self._with_calls, self._on_call = with_calls, on_call
        self._calls: dict[int, CallSoFar] = {}
        self._numbers: dict[tuple[int, str], int] = {}  # of the calls, by what a server says of their pieces
        self._places: dict[str, int] = {}  # what stands for the index of calls that have an id alone
        self._last_place = 0
        self._begun: dict[int, tuple[str, str]] = {}  # id and name of a call that has no arguments yet, by its index
        self._reasoning: list[str] = []
        self._details: list[dict[str, Any]] = []
        self._usage: dict[str, int] | None = None
        self._content = ""
        self._half = ""
        self._behind = ""  # what came behind the stop string, and may belong to it
        self._text = ""
        self._token_ids: list[int] = []
        self._logprobs: list[float] = []
        self._num_tokens: int | None = None
        self._num_hidden = 0  # of them those of thoughts, where the server tells
        self._finish_reason: str | None = None
        self._matched: object = None
        self._is_without_choice: bool | None = None  # not known yet
        self.prompt_ids: list[int] | None = None
        self.has_stopped = False
        """The text has reached a stop string."""
        self.ran_on = False
        """The server goes on past the stop string: there is nothing more to read."""
        self.is_whole = False
        """The server has said that the turn is over, in a way that leaves no doubt."""
        self.has_called = False
        """Pieces of a call have gone to `on_call`."""
        self.said = said
        """What has gone to `on_text`, in this attempt or one before it."""

    @property
    def stops(self) -> bool:
        """It ends with a stop string, wherever the server ends it."""
        return bool(self._stop)

    @property
    def has_thought(self) -> bool:
        """The model thought, and that is no part of what it said."""
        return bool(self._reasoning or self._thought.text or self._num_hidden or self._thought_in_tags)

    @property
    def is_all_thought(self) -> bool:
        """It ran out of tokens before it said anything. Where nothing came at all, a server keeps its thoughts to itself."""
        said = self._content.removeprefix(self._thought_in_tags)
        is_silent = not self._calls and not said.strip() and (self.has_thought or not self._content)
        return self._finish_reason in _LENGTH and (is_silent or self.may_be_all_thought)

    @property
    def may_be_all_thought(self) -> bool:
        """It was cut off before any tag came, and nobody knows yet whether this model's text begins inside a thought."""
        is_cut = self._finish_reason in _LENGTH and not self._calls and not self.has_thought
        is_plain = not grammar.has_tag(self._content) and not _CALL_IN_TEXT.search(self._content)
        return self._may_think_first and is_cut and bool(self._content) and is_plain

    @property
    def thinks_first(self) -> bool | None:
        """Whether the text began inside a thought that the chat template had opened; None where the turn does not tell."""
        if self._left_in is not None:
            return self._left_in.was_thought
        if _CLOSING in self._content:
            return _OPENING not in self._content.partition(_CLOSING)[0]
        return False if self._has_ended or self.has_thought or _OPENING in self._content else None

    @property
    def _thought_in_tags(self) -> str:
        """What stands before the answer of a model with tools where its server does not tell thoughts apart. In a dialect of
        tags a thought is a part of the turn."""
        if not self._with_calls:
            return ""
        head, mark, _ = self._content.partition(_CLOSING)
        is_thought = head.lstrip().startswith(_OPENING) or (bool(mark) and _OPENING not in head)
        return head + mark if is_thought else ""

    def text_alone(self, payload: Any) -> str | None:
        """The text of a chunk that holds nothing else that counts, as nearly all are; None if it has to be fed.

        A server may send thousands of these in a second, so this asks for no more than what `feed` would read.
        """
        try:
            (choice,) = payload["choices"]
            delta = choice["delta"]
            piece = delta["content"]
            is_alone = (
                len(delta) == 1
                and choice.get("finish_reason") is None
                and choice.get("logprobs") is None
                and payload.get("usage") is None
                and "token_ids" not in choice
                and "prompt_token_ids" not in choice
                and "prompt_token_ids" not in payload
                and "text" not in choice
                and "error" not in payload
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            return None
        return piece if is_alone and type(piece) is str and piece else None

    def feed_text(self, pieces: list[str]) -> None:
        """Take the pieces of text that came one after the other as one, and forget them."""
        if not pieces:
            return
        self._is_without_choice = False
        text = "".join(pieces)
        if self._max_chars is None or self._num_chars + len(text) <= self._max_chars:
            self._add_content(text)
        else:  # the turn ends with the piece that is too much
            for piece in pieces:
                if not self.ran_on:
                    self._add_content(piece)
        pieces.clear()

    def feed(self, payload: object) -> None:
        """One chunk of a stream, or the whole answer."""
        if not isinstance(payload, dict):
            raise PolicyError(f"the server sent {short(payload)} where a JSON object belongs")
        get = payload.get  # a server may send thousands of these in a second: what is not there costs little
        if get("error"):
            raise _reported_error(payload["error"])
        usage = get("usage")
        if usage is not None and isinstance(usage, dict) and is_count(usage.get("completion_tokens")):
            self._num_tokens = usage["completion_tokens"]
            self._usage = {name: value for name, value in usage.items() if is_count(value)}
            details = usage.get("completion_tokens_details")
            hidden: Any = details.get("reasoning_tokens") if isinstance(details, dict) else None
            self._num_hidden = hidden if is_count(hidden) else 0
        choices = get("choices")
        if not isinstance(choices, list):
            raise PolicyError(f"the server's answer has no 'choices': {short(payload)}")
        if not choices:  # the chunk with the usage, after the last one, has none
            self._is_without_choice = self._is_without_choice is not False
            return
        choice, self._is_without_choice = choices[0], False
        if not isinstance(choice, dict):
            raise PolicyError(f"the server sent {short(choice)} where a choice belongs")
        told = choice.get("prompt_token_ids") or get("prompt_token_ids")
        if told is not None:
            self.prompt_ids = _ids(told) or self.prompt_ids
        self._feed_choice(choice)

    def _feed_choice(self, choice: dict[str, Any]) -> None:
        get = choice.get
        message = get("delta") or get("message") or {}
        if not isinstance(message, dict):
            raise PolicyError(f"the server sent {short(message)} where a message belongs")
        details = message.get("reasoning_details")
        if isinstance(details, list) and self._with_calls:
            _gather(self._details, details)
        thought = message.get("reasoning_content") or message.get("reasoning") or details
        if thought:
            if self._left_in is not None:
                self._left_in.give_up()  # they come apart
            self._add_thought(words_of(thought))
        calls = message.get("tool_calls")
        if not calls and (call := message.get("function_call")):  # as it was before there could be several
            calls = [{"index": 0, "function": call}]
        if self._with_calls and calls:
            self._add_calls(calls, are_whole=not get("delta"))
        content = get("text") if "text" in choice else message.get("content")
        if type(content) is str:
            self._add_content(content)
        elif isinstance(content, list):
            self._add_thought("".join(words_of(part) for part in content if _is_thought(part)))
            self._add_content(_string([part for part in content if not _is_thought(part)]))
        elif content:
            self._add_content(_string(content))
        if (token_ids := get("token_ids")) is not None:
            self._token_ids += _ids(token_ids) or ()
        if (logprobs := get("logprobs")) is not None:
            self._logprobs += _logprobs(logprobs)
        if finish_reason := get("finish_reason"):
            self._finish_reason = str(finish_reason)
            self._matched = get("stop_reason", get("matched_stop"))  # vLLM's name, SGLang's name

    def _add_thought(self, piece: str) -> None:
        self._count_chars(len(piece))
        if not self._with_calls:
            self._emit(self._thought.add(piece))
        elif piece:
            self._reasoning.append(piece)

    def _add_calls(self, calls: object, are_whole: bool) -> None:
        """Calls come whole, or in pieces that say by `index` where they belong."""
        if not isinstance(calls, list):
            raise PolicyError(f"the server sent {short(calls)} where a list of calls belongs")
        for place, piece in enumerate(calls):
            if not isinstance(piece, dict):
                raise PolicyError(f"the server sent {short(piece)} where a call belongs")
            function = piece.get("function")
            function = function if isinstance(function, dict) else {}
            id, name = _string(piece.get("id")), _string(function.get("name"))
            arguments = function.get("arguments")
            text = json.dumps(arguments) if isinstance(arguments, dict) else _string(arguments)
            index = place if are_whole else piece.get("index")
            if not isinstance(index, int):  # left out: an id says where it belongs, and a piece without one goes on
                index = self._last_place = self._places.setdefault(id, len(self._places)) if id else self._last_place
            number = self._numbers.get((index, id), self._numbers.get((index, "")))
            # Some servers give every call the index 0, or one id: a name behind whole arguments begins another call. Whether
            # it does, arguments say: some servers repeat the name, or make a new id, in a last piece that has none.
            if number is not None and (name or index in self._begun) and self._calls[number].is_whole:
                if name:
                    self._begun[index] = id, name
                if not text.strip():
                    self._calls[number].keep(piece)
                    continue
                id, name = self._begun.pop(index)
                number = None
            if number is None:
                number = len(self._calls)
                # A piece without an id belongs to the last call of its index.
                self._numbers[index, id] = self._numbers[index, ""] = number
            call = self._calls.setdefault(number, CallSoFar())
            call.keep(piece)
            call.id = call.id or id
            if name.removeprefix(_NAMESPACE) != call.name:  # some servers repeat it in every piece
                call.name = (call.name + name).removeprefix(_NAMESPACE)
            call.arguments.append(text)
            self._count_chars(len(text))
            self._pass_on(number, call.name, text)

    def _pass_on(self, number: int, name: str, piece: str) -> None:
        """A piece of a call's arguments, to whoever wants to start early."""
        if piece and self._on_call is not None:
            self.has_called = True
            self._on_call(number, name, piece)

    def _add_content(self, piece: str) -> None:
        if not piece:
            return
        if self._half or not piece.isascii():
            piece, self._half = whole_start(self._half + piece)
        if self._left_in is not None and self._left_in.is_open:
            thought, piece = self._left_in.feed(piece)
            self._add_thought(thought)
            if not piece:
                return
        self._count_chars(len(piece))
        if self.has_stopped:
            self._behind += piece
            self._read_behind()
            return
        if not self._thought.is_closed:
            self._emit(self._thought.close())
        num_before = len(self._content)
        self._content += piece
        if self._stop_ends.isdisjoint(piece):  # a stop string is complete only where its last character has come
            self._emit(piece)
            return
        end = first_stop_end(self._content, self._stop, max(0, num_before - self._longest_stop + 1))
        if end is not None:
            self.has_stopped = True
            self._behind = self._content[end:]
            piece = piece[: len(piece) - len(self._behind)]
            self._content = self._content[:end]
        self._emit(piece)
        if self._behind:
            self._read_behind()

    def _read_behind(self) -> None:
        """The server passes the stop string. Another search right behind a search belongs to it; at anything else the turn
        is over."""
        is_search = self._content.endswith(grammar.closing(grammar.SEARCH))
        while (size := grammar.search_behind(self._behind) if is_search else None) is not None:
            if not size:
                return  # it may still become one
            self._content += self._behind[:size]
            self._emit(self._behind[:size])
            self._behind = self._behind[size:]
        self.ran_on = True

    def _count_chars(self, number: int) -> None:
        self._num_chars += number
        if self._max_chars is not None and self._num_chars > self._max_chars:
            self._finish_reason, self.ran_on = "length", True

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
        if self._finish_reason in ("tool_calls", "function_call") and not self._with_calls:
            raise PolicyError(
                "the server turned the turn into a tool call; start it without a tool-call parser, this policy reads text"
            )
        if self._finish_reason in ("error", "abort"):
            raise TransientError(f"the server ended the turn with '{self._finish_reason}'")
        if self._left_in is not None and self._left_in.is_open:
            self._end_inside(self._left_in)
        self._emit(self._thought.close())
        finish, restored = self._ending()
        self._has_ended = finish == "eos"
        if self._with_calls and self.may_be_all_thought:  # then it is no answer, wherever the text is read
            restored = f"\n{_CLOSING}"
        if restored is not None:
            self._emit(restored)
        if len(self._text) < len(self.said):
            raise PolicyError("the server broke off and said less the second time, after more had been passed on")
        # Ids are ids of this very text only if nothing was cut off, put back, or moved into a thought by the server.
        is_cut = self.ran_on or bool(self._behind)
        is_exact = bool(self._token_ids) and not is_cut and restored is None and not self._thought.text
        ids = self._token_ids if is_exact else None
        calls = self._whole_calls()
        written = [self._text, *self._reasoning, *(part for call in calls for part in (call.name, call.arguments))]
        num_tokens = self._num_tokens or len(self._token_ids) or count_tokens("".join(written))
        return Generation(
            self._text,
            finish,
            token_ids=ids,
            logprobs=self._logprobs if ids is not None and len(self._logprobs) == len(ids) else None,
            num_tokens=num_tokens,
            num_thought=min(num_tokens, self._count_thought(num_tokens, count_tokens)),
            restored=restored,
            calls=calls or None,
            reasoning="".join(self._reasoning) or None,
            usage=self._usage,
            raw=self._details or None,
        )

    def _end_inside(self, left_in: _LeftIn) -> None:
        """The turn is over, and its thought is not. A model that ended by itself was not thinking: what it wrote was said,
        unless it has been passed on as a thought already."""
        rest = left_in.give_up(is_cut=self._finish_reason in _LENGTH)
        if left_in.was_thought is not False or (self._on_text is not None and not self._with_calls and left_in.text):
            self._add_thought(rest)
            return
        self._reasoning, self._thought, self._text = [], _Thought(), ""
        self._num_chars -= len(left_in.text)
        self._add_content(left_in.text + rest)

    def _count_thought(self, num_tokens: int, count_tokens: Callable[[str], int]) -> int:
        """How many of the turn's tokens are thoughts, which the next turn does not read."""
        if self._with_calls and self.may_be_all_thought:
            return num_tokens
        thought = self._thought.text or "".join(self._reasoning) or self._thought_in_tags
        return self._num_hidden or count_tokens(thought)

    def _whole_calls(self) -> list[Call]:
        """All calls, each with an id of its own: results go back by it, and some servers give several calls the same."""
        calls: dict[str, Call] = {}
        for number, call in sorted(self._calls.items()):
            id = call.id or f"call-{number}"
            while id in calls:
                id = f"{id}-{number}"
            calls[id] = Call(id, call.name, "".join(call.arguments), call.extra)
        return list(calls.values())

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
        stripped = grammar.unclosed_action(self._text) if self._stop else None
        return ("stop", stripped) if stripped in self._stop else ("eos", None)


@dataclass(slots=True)
class CallSoFar:
    """A call of which more may come."""

    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    extra: dict[str, Any] | None = None

    def keep(self, piece: dict[str, Any]) -> None:
        """What stands beside the call and has to go back with it."""
        extra = piece.get("extra_content")
        if isinstance(extra, dict) and extra:
            self.extra = {**(self.extra or {}), **extra}

    @property
    def is_whole(self) -> bool:
        """Nothing can come behind its arguments."""
        text = "".join(self.arguments).rstrip()
        try:
            return text.endswith("}") and isinstance(read_json(text.encode("utf-8", "surrogatepass")), dict)
        except ValueError:
            return False


class _LeftIn:
    """The beginning of a text whose thought the chat template has opened, or the model itself: it is the thought, up to the
    closing tag."""

    def __init__(self) -> None:
        self._held = ""  # may be the beginning of a tag
        self._pieces: list[str] = []
        self.was_thought: bool | None = None

    @property
    def is_open(self) -> bool:
        return self.was_thought is None

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def feed(self, piece: str) -> tuple[str, str]:
        """What is certainly thought by now, and what comes behind it."""
        held, self._held = self._held + piece, ""
        if not self._pieces:
            start = held.lstrip()
            if len(start) < len(_OPENING) and _OPENING.startswith(start):
                self._held = held
                return "", ""
            if start.startswith(_OPENING):
                self._pieces, held = [_OPENING], start[len(_OPENING) :]
        thought, mark, rest = held.partition(_CLOSING)
        if mark:
            self.was_thought = True
        elif (at := held.rfind("<", -len(_CLOSING) + 1)) >= 0 and _CLOSING.startswith(held[at:]):
            thought, self._held = held[:at], held[at:]
        self._pieces.append(thought)
        return thought, rest

    def give_up(self, is_cut: bool = False) -> str:
        """No more comes. What was held back; a thought that was cut off in the middle leaves open whether it was one."""
        rest, self._held = self._held, ""
        if self.is_open and not is_cut:
            self.was_thought = False
        return rest


class _Thought:
    """What a reasoning server sends beside the content, written as a thought before it. Passed on line by line: a line is
    made harmless first, so that no tag quoted in it can end the thought. It does not know its turn: two objects that hold
    each other are freed by the garbage collector alone, which a thousand turns in flight keep busy."""

    def __init__(self) -> None:
        self._line: list[str] = []  # pieces: to join them at each new one takes time with the square of the line
        self.is_closed = False
        self.text = ""

    def add(self, piece: str) -> str:
        """The text that is ready to be passed on."""
        if not piece or self.is_closed:
            return ""
        self._line.append(piece)
        if "\n" not in piece:
            return ""
        *lines, rest = "".join(self._line).split("\n")
        self._line = [rest]
        return "".join(self._harmless(line + "\n") for line in lines)

    def close(self) -> str:
        """The rest of it."""
        if self.is_closed:
            return ""
        self.is_closed = True
        if not self._line:
            return ""
        rest = self._harmless("".join(self._line))
        return f"{rest} {grammar.closing(grammar.THINK)}\n" if self.text else rest

    def _harmless(self, line: str) -> str:
        line = grammar.defuse(line)
        if not line:
            return ""
        told = line if self.text else f"{grammar.opening(grammar.THINK)} {line}"
        self.text += line
        return told


@functools.lru_cache(maxsize=64)
def _measured(stop: tuple[str, ...]) -> tuple[int, frozenset[str]]:
    """How long the longest stop string is, and the characters that they end in."""
    return max(map(len, stop), default=0), frozenset(string[-1:] for string in stop)


def first_stop_end(text: str, stop: Sequence[str], start: int = 0) -> int | None:
    """Where the stop string that is complete first ends."""
    ends = [at + len(string) for string in stop if (at := text.find(string, start)) >= 0]
    return min(ends, default=None)


def whole_end(text: str, stop: Sequence[str]) -> int | None:
    """Where a turn ends: with the stop string that is complete first, or the searches right behind a search."""
    end = first_stop_end(text, stop)
    if end is not None and text.endswith(grammar.closing(grammar.SEARCH), 0, end):
        while size := grammar.search_behind(text[end:]):
            end += size
    return end


def _reported_error(error: object) -> PolicyError | TransientError:
    """An error that came with status 200, inside the answer."""
    code = error.get("code") if isinstance(error, dict) else None
    message = (
        f"the server reported an error: {short(error.get('message', error) if isinstance(error, dict) else error)}"
    )
    is_transient = re.fullmatch(r"429|5\d\d", str(code)) is not None  # vLLM sends a number, our own server a text
    return TransientError(message) if is_transient or is_unreadable_call(message) else PolicyError(message)


def is_unreadable_call(detail: str) -> bool:
    """The model called a tool and made a mistake in it, says the server. It may do better at another try."""
    return _UNREADABLE_CALL.search(detail) is not None


def _gather(details: list[dict[str, Any]], pieces: list[Any]) -> None:
    """OpenRouter's account of a thought, which goes back as it came. In a stream one text of it comes in many pieces."""
    for piece in pieces:
        if not isinstance(piece, dict):
            continue
        last = details[-1] if details else {}
        key = next((key for key in _THOUGHT_KEYS if isinstance(piece.get(key), str)), None)
        goes_on = all(last.get(name) == piece.get(name) for name in ("type", "index", "id"))
        is_open = goes_on and not last.get("signature")
        if is_open and key is not None and isinstance(last.get(key), str):
            last |= {**piece, key: last[key] + piece[key]}
        elif is_open and key is None and piece.get("signature"):  # Claude's: it comes last, without a word
            last["signature"] = piece["signature"]
        else:
            details.append(dict(piece))


def _is_thought(part: object) -> bool:
    """A part of a message's content that is no part of what is said."""
    return isinstance(part, dict) and part.get("type") in ("reasoning", "thinking")


def words_of(thought: object, depth: int = 5) -> str:
    """The words of a thought: a text, or somewhere in the objects that gateways make of it. The turn does not hang on it."""
    if isinstance(thought, list) and depth:
        return "".join(words_of(part, depth - 1) for part in thought)
    if isinstance(thought, dict) and depth:
        return next((words for key in _THOUGHT_KEYS if (words := words_of(thought.get(key), depth - 1))), "")
    return thought if isinstance(thought, str) else ""


def _string(value: object) -> str:
    """A text, or the text parts of a list of parts."""
    if isinstance(value, list):
        texts = [part.get("text") if isinstance(part, dict) else part for part in value]
        return "".join(_string(text) for text in texts if not isinstance(text, list))
    if value is not None and not isinstance(value, str):
        raise PolicyError(f"the server sent {short(value)} where text belongs")
    return value or ""


def string_of(record: dict[str, Any], name: str) -> str:
    """The text under a name, which may be left out."""
    value = record.get(name)
    if value is not None and not isinstance(value, str):
        raise PolicyError(f"the server sent {short(value)} where text belongs")
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
    return [number for item in numbers if (number := finite(item)) is not None]


def short(value: object) -> str:
    """A value as a message may quote it."""
    try:
        text = value if isinstance(value, str) else repr(value)
    except (RecursionError, ValueError):  # nested as deep as JSON may be, or a number of thousands of digits
        text = f"a {type(value).__name__} that cannot be shown"
    text = whole(text[:201])
    return text if len(text) <= 200 else text[:197] + "..."

"""What policies behind a model server have in common: the address, the key, time-outs, retries and the reading of streams.

A subclass says what a request looks like and which `Turn` reads the answer. A failed call is repeated. If part of the turn
had already been handed to `on_text`, the new one has to begin with the same text, which is not handed out twice; a server
that then says something else is an error. A field that a server need not know is left out once it has refused it, and that
is said once. The API key and headers of one's own are read from the environment for each call and kept nowhere.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import math
import re
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from parallelsearch.errors import PolicyError, TransientError, UsageError, stopped
from parallelsearch.http import Credentials, HttpClient, Response, Secrets, Sent, Stream, retrying, without_secrets
from parallelsearch.http.credentials import bearer
from parallelsearch.options import read_options
from parallelsearch.policy.base import Generation, OnCall, Policy, may_repeat
from parallelsearch.policy.openai_wire import EventReader, Mould, Turn, read_json
from parallelsearch.trajectory import Segment

log = logging.getLogger(__name__)

THINKING_TOKENS = 4096
"""How much a turn may think, beside what it says."""
_LIMITS = frozenset({"max_tokens", "max_completion_tokens", "max_output_tokens"})
"""What servers call the most tokens of a turn."""
MAX_CHARS_PER_TOKEN = 128
"""No tokenizer has longer ones; a stream that goes on past so many does not keep to its limit."""
_PATIENCE = 5
"""So many times the longest wait may be waited in all for a server that says when to come back."""
_GRACE_S = 0.5
"""How long a server may take to say goodbye (usage, end of stream) after the stop string."""
_LONG_SILENCE_S = 30.0
"""A whole turn that fails after as long a wait may have failed because of the wait."""
GATEWAY_TIMEOUTS = (504, 524)
"""Said by what stands before a server and did not want to wait for it; 524 is Cloudflare's."""
_STREAM = re.compile(r"\bstream(?:s|ed|ing)?\b", re.I)
_CONTEXT = re.compile(
    r"context.{0,10}(length|window|size|limit)|maximum.{0,20}(length|tokens)|prompt.{0,20}too long", re.I
)


class ServerPolicy(Policy):
    """A model behind `base_url`.

    `timeout_s` bounds the whole turn, retries included, `read_timeout_s` the silence between two chunks of a stream.
    `stream` left out, a turn is streamed where somebody listens, and else comes in one piece, which costs client and server
    a fraction of it; True streams every turn, False none. `extra_body` is merged into every request; a value of None leaves
    a field out. `headers_env` is the variable of the environment with headers of the user's own (see `http.credentials`).
    """

    options: Mapping[str, type] = {
        "api_key_env": str,
        "headers_env": str,
        "timeout_s": float,
        "connect_timeout_s": float,
        "read_timeout_s": float,
        "max_attempts": int,
        "max_wait_s": float,
        "stream": bool,
        "dialect": str,
        "reasoning_effort": str,
        "thinking_tokens": int,
    }
    """What may stand after `?` in an address."""
    example = "http://localhost:8000/v1"
    empty_purse = "insufficient_quota"
    """Stands in an answer that has the status of a rate limit and means a bill: waiting does not help."""
    streams_unheard = False
    """Turns are streamed also where nobody listens, unless the caller says otherwise."""

    def __init__(
        self,
        base_url: str,
        model: str | None,
        *,
        api_key_env: str,
        headers_env: str | None = None,
        timeout_s: float = 600.0,
        connect_timeout_s: float = 10.0,
        read_timeout_s: float = 120.0,
        max_attempts: int = 4,
        max_wait_s: float = 60.0,
        stream: bool | None = None,
        reasoning_effort: str | None = None,
        thinking_tokens: int = THINKING_TOKENS,
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        shown = without_secrets(base_url.rstrip("/"))
        try:
            parts = urlsplit(base_url)
            is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError as error:
            raise UsageError(f"'{shown}' is not an address of a server ({error})") from error
        if not is_good:
            raise UsageError(f"'{shown}' is not an address of a server; write it like {self.example}")
        if max_attempts < 1 or not all(seconds > 0 for seconds in (timeout_s, connect_timeout_s, read_timeout_s)):
            raise UsageError("max_attempts and the time-outs of a model server must be greater than zero")
        if thinking_tokens < 0:
            raise UsageError(f"thinking_tokens is how much a turn may think beside its answer, not {thinking_tokens}")
        self._url = base_url
        self.base_url = shown
        self.model = model or None
        self.api_key_env = api_key_env
        self._credentials = Credentials(api_key_env, headers_env, self._key_headers)
        self._credentials.check()
        self.timeout_s, self.connect_timeout_s, self.read_timeout_s = timeout_s, connect_timeout_s, read_timeout_s
        self.max_attempts, self.max_wait_s = max_attempts, max_wait_s
        self.streams = stream is not False
        self._stream_asked = stream
        self._streams_all = self.streams_unheard if stream is None else stream
        self.reasoning_effort = reasoning_effort
        self.thinking_tokens = thinking_tokens
        self.extra_body = dict(extra_body or {})
        # A limit of the caller's own is the limit.
        self._most_thinking = 0 if _LIMITS & self.extra_body.keys() else thinking_tokens
        self._thinks = False
        self._is_thinker = False  # that it thinks has shown
        self._guesses = True  # a turn without anything is taken for a thought that the server keeps to itself
        self._is_on_trial = False  # it has room because it may have thought in what looked like a text
        try:
            json.dumps(self.extra_body)
        except (TypeError, ValueError) as error:
            raise UsageError(f"extra_body goes into a JSON request, and cannot: {error}") from error
        self._http = HttpClient(
            "model server",
            permanent=PolicyError,
            connect_timeout_s=connect_timeout_s,
            read_timeout_s=min(read_timeout_s, timeout_s),
        )
        self._unknown_fields: set[str] = set()

    @classmethod
    def taken_apart(cls, address: str, options: Mapping[str, Any]) -> tuple[str, str | None, dict[str, Any]]:
        """Of `BASE_URL?option=value#MODEL`: the address, the model, and the options, of which those in the address win."""
        rest, _, model = address.partition("#")
        base_url, _, query = rest.partition("?")
        return base_url, unquote(model) or None, {**options, **read_options(query, cls.options, "a model server")}

    async def aclose(self) -> None:
        await self._http.aclose()

    # ---- the request -------------------------------------------------------------------------------------------------

    @property
    def _who(self) -> str:
        return f"model server {self.base_url}"

    @staticmethod
    def _key_headers(key: str) -> Mapping[str, str]:
        """The headers that carry the key."""
        return bearer(key)

    def _headers(self) -> Mapping[str, str]:
        """Those of every request, beside what says who asks."""
        return {"Content-Type": "application/json"}

    def _who_asks(self) -> Sent:
        try:
            return self._credentials.read()
        except UsageError as error:  # of one question: those before may have been well
            raise PolicyError(str(error)) from None

    def _endpoint(self, path: str) -> str:
        return _joined(self._url, path)

    def _leave_out(self, fields: set[str]) -> bool:
        """Do without these fields from now on. True if that changes anything for the request they were in."""
        if fields - self._unknown_fields:
            log.warning("%s does not take %s; asked without from now on", self._who, ", ".join(sorted(fields)))
        self._unknown_fields |= fields
        return bool(fields)

    # ---- thinking ----------------------------------------------------------------------------------------------------

    @property
    def thinking_room(self) -> int:
        """How many tokens a turn has for thinking at most, beside those for what it says."""
        return self._most_thinking if self._thinks else 0

    def _room(self, segments: Sequence[Segment]) -> int:
        """How many of them the turn after these segments has."""
        return self.thinking_room

    def _how_it_thinks(self) -> dict[str, Any]:
        """For `describe`: what was set of it."""
        is_usual = self.thinking_tokens == THINKING_TOKENS
        effort = {} if self.reasoning_effort is None else {"reasoning_effort": self.reasoning_effort}
        return effort | ({} if is_usual else {"thinking_tokens": self.thinking_tokens})

    async def _asked(
        self, ask: Callable[[], Awaitable[tuple[Turn, Generation]]], segments: Sequence[Segment]
    ) -> Generation:
        """The turn; once more where it thought until its tokens were used up and had no room for that yet."""
        had_room = self._room(segments) > 0
        turn, generation = await ask()
        is_new = turn.is_all_thought and not had_room and self._most_thinking > 0
        is_new = is_new and (turn.has_thought or self._guesses)
        if is_new:
            self._thinks, self._is_on_trial = True, turn.may_be_all_thought
        if is_new and not (turn.said or turn.has_called):
            had_room = True
            asked_by = may_repeat.get()
            pays = asked_by[1] if asked_by is not None and asked_by[0] is self else None
            if pays is not None and not pays(generation):
                return generation
            spent = Counter(self._counted(generation, segments) if pays is None else {})
            turn, generation = await ask()
            if spent:
                spent.update(self._counted(generation, segments))
                generation.usage = dict(spent)
        if self._is_thinker or turn.has_thought or (had_room and not (turn.is_all_thought or self._is_on_trial)):
            self._thinks = self._is_thinker = self._is_thinker or turn.has_thought or self._thinks
        elif had_room:  # the room was for nothing, and no thought has been seen
            self._thinks = self._guesses = self._is_on_trial = False
        if turn.is_all_thought and had_room:
            log.warning(
                "%s thought until the turn's tokens were used up and said nothing; raise thinking_tokens (%d), or set "
                "reasoning_effort=low",
                self._who,
                self.thinking_tokens,
            )
        return generation

    def _counted(self, generation: Generation, segments: Sequence[Segment]) -> Mapping[str, int]:
        """What a call cost: by the server's count, or by ours where it has none."""
        if generation.usage is not None:
            return generation.usage
        num_read = sum(self.count_tokens(segment.text) for segment in segments)
        return {"prompt_tokens": num_read, "completion_tokens": generation.num_tokens or 0}

    # ---- streamed or whole -------------------------------------------------------------------------------------------

    def _streams_for(self, is_heard: bool) -> bool:
        """Whether a turn is asked for piece by piece."""
        return self.streams and (self._streams_all or is_heard)

    def _silence_s(self, streams: bool) -> float:
        """How long the connection may be silent. A whole answer comes after a silence as long as the turn takes."""
        return min(self.read_timeout_s, self.timeout_s) if streams else self.timeout_s

    def _learn_stream(self, body: Mapping[str, Any], detail: str) -> bool:
        """A server that answers in one way only is asked in that way from now on. True if there is another way to ask."""
        if self._stream_asked is not None or "stream" in self.extra_body or not _STREAM.search(detail):
            return False
        if body.get("stream"):
            if self.streams:
                log.warning("%s does not stream; turns come whole from now on (%s)", self._who, detail)
            self.streams = False
            return True
        return self.streams and self._stream_all(detail)

    def _stream_all(self, why: str) -> bool:
        if self._stream_asked is not None or not self.streams:
            return False
        if not self._streams_all:
            log.warning("%s gives no whole turns; they are streamed from now on (%s)", self._who, why)
        self._streams_all = True
        return True

    def _learn_patience(self, error: TransientError, start_s: float, streams: bool) -> None:
        """Before a server there may be something that gives a silent connection up: from then on turns are streamed."""
        if not streams and time.monotonic() - start_s >= _LONG_SILENCE_S:
            self._stream_all(str(error))

    # ---- the answer --------------------------------------------------------------------------------------------------

    def _deadline_s(self) -> float:
        return asyncio.get_running_loop().time() + self.timeout_s

    @staticmethod
    def _left_s(deadline_s: float) -> float:
        left_s = deadline_s - asyncio.get_running_loop().time()
        if left_s <= 0:
            raise TimeoutError
        return left_s

    async def _try(
        self,
        make: Callable[[str, OnCall | None], Turn],
        exchange: Callable[[Turn, Sent], Awaitable[None]],
        on_call: OnCall | None,
        deadline_s: float,
    ) -> tuple[Turn, Generation]:
        """The turn, asked for until it is whole or the attempts or the time are used up."""
        said, is_called = "", False
        patience_s = _PATIENCE * self.max_wait_s
        async for attempt in retrying(self.max_attempts, self.max_wait_s, deadline_s=deadline_s, patience_s=patience_s):
            with attempt:
                turn, sent = make(said, None if is_called else on_call), self._who_asks()
                turn.has_called = is_called
                try:
                    await exchange(turn, sent)
                    generation = turn.generation(self.count_tokens)
                finally:
                    said = turn.said
                    is_called = turn.has_called  # what a second try starts early could not be told from the first
                # A key that the server echoes in pieces, each too short to be known by, must not get into the record.
                text = sent.secrets().out_of_text(generation.text)
                if text != generation.text:
                    generation.text, generation.token_ids, generation.logprobs = text, None, None
                return turn, generation
        raise RuntimeError("gave up without a failure")  # not reached: the last failure is raised by the attempt

    def _policy_error(self, error: TimeoutError | TransientError) -> PolicyError:
        """What is left of a failure that would have been worth another try."""
        if isinstance(error, TransientError):
            if (asked_s := error.retry_after_s) is not None and asked_s > self.max_wait_s:
                hint = f"Write ?max_wait_s={math.ceil(asked_s)} before the '#' of the address to wait so long"
                return PolicyError(f"{stopped(error)} {hint}; a smaller --concurrency asks less often")
            return PolicyError(str(error))
        return PolicyError(f"{self._who} did not finish the turn within {self.timeout_s:g} s")

    async def _read_answer(self, answer: Stream, turn: Turn) -> None:
        """Feed the turn with an answer, whole or streamed: a server need not do what it was asked for."""
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            await self._read_stream(answer, turn)
        else:
            turn.feed(self._json((await answer.read()).content, answer.secrets))

    async def _read_stream(self, answer: Stream, turn: Turn) -> None:
        """Read to the end, or until the server runs past the stop string; leaving early closes the connection."""
        reader, mould = EventReader(), Mould()
        is_over = is_done = False
        deadline_s: float | None = None
        while not is_over:
            if deadline_s is None or answer.is_at_end:
                chunk = await answer.events()
            else:  # the turn is there, whatever becomes of the rest
                try:
                    async with asyncio.timeout_at(deadline_s):
                        chunk = await answer.events()
                except (TimeoutError, PolicyError, TransientError):
                    return
            is_over = not chunk
            events = reader.feed(chunk)
            if is_done:
                continue
            for at, data in enumerate(events):
                if len(data) < 20 and data.strip() == b"[DONE]":
                    is_done, events = True, events[:at]
                    break
            if is_over and events and not _is_json(events[0]):
                return  # the connection ended inside an event; whether the turn was there before, the turn knows
            self._feed(turn, events, mould, answer.secrets)
            if turn.ran_on:
                return
            if is_done and answer.is_at_end:
                return
            if deadline_s is None and (turn.has_stopped or turn.is_whole or is_done):
                # Read on a little, for the usage and so that the connection can be used again.
                deadline_s = asyncio.get_running_loop().time() + _GRACE_S

    def _feed(self, turn: Turn, events: list[bytes], mould: Mould, secrets: Secrets) -> None:
        """Events that came together, until the server runs past the stop string."""
        is_plain = not secrets.are_in(events)
        pieces: list[str] = []  # of text, one after the other: they are taken as one
        for data in events:
            piece = mould.text(data) if is_plain else None
            if piece is not None:
                pieces.append(piece)
                continue
            turn.feed_text(pieces)
            if not turn.ran_on:
                value = self._json(data, secrets)
                piece = turn.text_alone(value)
                if piece is None:
                    turn.feed(value)
                else:
                    pieces.append(piece)
                    mould.learn(data)
            if turn.ran_on:
                return
        turn.feed_text(pieces)

    def _json(self, data: bytes, secrets: Secrets) -> object:
        try:
            return read_json(secrets.out_of_answer(data))
        except ValueError as error:
            head = " ".join(secrets.out_of_message(data[:1000].decode("utf-8", "replace")).split())[:120]
            raise PolicyError(f"{self._who} sent something that is not JSON: {head!r}") from error

    def _plain_error(self, response: Response, sent: Sent) -> PolicyError | TransientError | None:
        """What a bad status means on any path. The environment may say something else than what was `sent` by now."""
        error = self._http.error_of(response)
        if error is None:
            return None
        if response.status in (401, 403):
            return PolicyError(f"{stopped(error)} {self._credentials.hint(sent)}")
        if isinstance(error, TransientError) and self.empty_purse not in response.text:
            return error
        return PolicyError(str(error))

    async def _status_error(self, response: Response, sent: Sent) -> PolicyError | TransientError:
        """What a bad status means for a turn, and what to do about it."""
        error = self._plain_error(response, sent) or PolicyError(f"{self._who} answered {response.status}")
        if response.status == 404:
            return PolicyError(f"{stopped(error)} {await self._not_found_hint()}")
        if response.status in (400, 413, 422) and (response.status == 413 or is_about_context(str(error))):
            return PolicyError(f"the conversation no longer fits into the model's context: {error}")
        return error

    @abstractmethod
    async def _not_found_hint(self) -> str:
        """What may be wrong where the server knows no such path or model."""

    async def _entries(self) -> list[dict[str, Any]]:
        """The models that the server lists."""
        sent = self._who_asks()
        response = await self._http.request(
            "GET", self._endpoint("models"), headers=self._headers(), sent=sent, timeout_s=self.read_timeout_s
        )
        if (failure := self._plain_error(response, sent)) is not None:
            raise failure
        listing = self._json(response.content, response.secrets)
        data = listing.get("data") if isinstance(listing, dict) else None
        if not isinstance(data, list):
            raise PolicyError(f"{self._who} does not list its models; name one, like {self.base_url}#MODEL")
        return [entry for entry in data if isinstance(entry, dict) and "id" in entry]


def is_about_context(detail: str) -> bool:
    """The conversation is too long, says the server."""
    return _CONTEXT.search(detail) is not None


def _is_json(data: bytes) -> bool:
    try:
        read_json(data)
    except ValueError:
        return False
    return True


@functools.lru_cache(maxsize=64)
def _joined(url: str, path: str) -> str:
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc, f"{parts.path.rstrip('/')}/{path}", parts.query, ""))

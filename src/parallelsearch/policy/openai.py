"""A policy behind any OpenAI-compatible server: one HTTP request a turn, streamed, with time-outs and retries.

`chat` sends the prompt and the results as user messages, since most chat servers cannot go on with an assistant message;
`completions` sends the whole text and is continued where it ends. Whatever a server does at a stop string (strip it, keep
it, run past it), the turn ends with it; see `openai_wire`, which reads the answers.

A failed call is repeated. If part of the turn had already been handed to `on_text`, the new one has to begin with the same
text, which is not handed out twice; a server that then says something else is an error. The API key is read from the
environment for each call and kept nowhere.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote

import httpx

from parallelsearch.errors import PolicyError, TransientError, UsageError, nearest
from parallelsearch.policy.base import Generation, OnText, Policy, Sampling
from parallelsearch.policy.openai_wire import Turn, read_events
from parallelsearch.retry import error_detail, response_error, retrying, transport_error
from parallelsearch.trajectory import Author, Segment

Api = Literal["chat", "completions"]

_GRACE_S = 0.5
"""How long a server may take to say goodbye (usage, end of stream) after the stop string."""
_OPTIONAL_FIELDS = ("stream_options", "seed", "top_p", "include_stop_str_in_output")
"""Sent where useful, left out from then on if a server says that it does not know them."""
_CONTEXT = re.compile(r"context.{0,10}(length|window|size)|maximum.{0,20}(length|tokens)|prompt.{0,20}too long", re.I)
_FLAGS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


class OpenAIPolicy(Policy):
    """A model behind `base_url` (the part before `/chat/completions`, usually ending in `/v1`).

    `model=None` takes the server's only model. `timeout_s` bounds the whole turn, retries included, `read_timeout_s` the
    silence between two chunks of a stream. `token_ids` asks for ids and log-probabilities in vLLM's way; with `encode`
    (text -> ids) the completions prompt is sent as ids, so that the trajectory is token-exact from end to end.
    `extra_body` is merged into every request; a value of None leaves a field out.
    """

    name = "openai"

    def __init__(
        self,
        base_url: str,
        model: str | None = None,
        *,
        api: Api = "chat",
        api_key_env: str = "OPENAI_API_KEY",
        timeout_s: float = 600.0,
        connect_timeout_s: float = 10.0,
        read_timeout_s: float = 120.0,
        max_attempts: int = 4,
        max_wait_s: float = 30.0,
        token_ids: bool = False,
        stream: bool = True,
        extra_body: Mapping[str, Any] | None = None,
        encode: Callable[[str], list[int]] | None = None,
    ) -> None:
        try:
            url = httpx.URL(base_url.rstrip("/"))
        except httpx.InvalidURL as error:
            raise UsageError(f"'{base_url}' is not an address of a server ({error})") from error
        if url.scheme not in ("http", "https") or not url.host:
            raise UsageError(f"'{base_url}' is not an address of a server; write it like http://localhost:8000/v1")
        if api not in ("chat", "completions"):
            raise UsageError(f"api is 'chat' or 'completions', not '{api}'")
        if max_attempts < 1 or min(timeout_s, connect_timeout_s, read_timeout_s) <= 0:
            raise UsageError("max_attempts and the time-outs of a model server must be greater than zero")
        self._url = url
        self.base_url = str(url.copy_with(username=None, password=None, query=None, fragment=None))
        self.model = model or None
        self.api: Api = api
        self.api_key_env = api_key_env
        self.timeout_s, self.connect_timeout_s, self.read_timeout_s = timeout_s, connect_timeout_s, read_timeout_s
        self.max_attempts, self.max_wait_s = max_attempts, max_wait_s
        self.token_ids = token_ids
        self.streams = stream
        self.extra_body = dict(extra_body or {})
        try:
            json.dumps(self.extra_body)
        except (TypeError, ValueError) as error:
            raise UsageError(f"extra_body goes into a JSON request, and cannot: {error}") from error
        self._encode = encode
        self._client: httpx.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._unknown_fields: set[str] = set()
        self._max_tokens_field = "max_tokens"

    @classmethod
    def from_address(cls, address: str, **options: Any) -> OpenAIPolicy:
        """`http://HOST:PORT/v1?api=completions&token_ids=1#MODEL`: options after `?`, the model after `#`.

        `options` are the constructor's own; one that stands in the address wins.
        """
        rest, _, model = address.partition("#")
        base_url, _, query = rest.partition("?")
        for key, value in parse_qsl(query, keep_blank_values=True):
            options[key] = _option(key, value)
        return cls(base_url, unquote(model) or None, **options)

    def __repr__(self) -> str:
        return f"OpenAIPolicy({self.base_url!r}, {self.model!r}, api={self.api!r})"

    def describe(self) -> dict[str, Any]:
        return {
            "kind": self.name,
            "base_url": self.base_url,
            "model": self.model,
            "api": self.api,
            "continuation": "user-message" if self.api == "chat" else "text",
            "streams": self.streams,
            "token_ids": self.token_ids,
            "extra_body": self.extra_body,
        }

    # Ids of what the environment inserts are true for completions only: a chat template puts more tokens around it.
    def prompt(self, text: str, question: str) -> Segment:
        return Segment("prompt", text, self._ids_of(text))

    def insert(self, text: str, author: Author) -> Segment:
        return Segment(author, text, self._ids_of(text))

    def _ids_of(self, text: str) -> list[int] | None:
        return self._encode(text) if self._encode is not None and self.api == "completions" else None

    def count_tokens(self, text: str) -> int:
        return super().count_tokens(text) if self._encode is None else len(self._encode(text))

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
        try:
            async with asyncio.timeout(self.timeout_s):
                self.model = self.model or await self._only_model()
                fields = self._fields(segments, stop, max_tokens, sampling)
                said = ""
                async for attempt in retrying(self.max_attempts, self.max_wait_s):
                    with attempt:
                        turn = Turn(stop, on_text, said)
                        try:
                            generation = await self._attempt(fields, turn)
                        finally:
                            said = turn.said
        except TimeoutError as error:
            raise PolicyError(f"{self._who} did not finish the turn within {self.timeout_s:g} s") from error
        except TransientError as error:
            raise PolicyError(str(error)) from error
        if self.api == "completions" and turn.prompt_ids is not None:
            _adopt_prompt_ids(segments, turn.prompt_ids)
        return generation

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    # ---- the request -------------------------------------------------------------------------------------------------

    @property
    def _who(self) -> str:
        return f"model server {self.base_url}"

    def _fields(
        self, segments: Sequence[Segment], stop: Sequence[str], max_tokens: int, sampling: Sampling
    ) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "model": self.model,
            "max_tokens": max_tokens,
            "temperature": sampling.temperature,
            "stop": list(stop),
            "stream": self.streams,
        }
        if self.api == "chat":
            fields["messages"] = _messages(segments)
        else:
            ids = [segment.token_ids for segment in segments]
            known = [item for part in ids if part is not None for item in part]
            is_exact = self._encode is not None and all(part is not None for part in ids)
            fields["prompt"] = known if is_exact else "".join(segment.text for segment in segments)
        if self.streams:
            fields["stream_options"] = {"include_usage": True}
        if sampling.top_p != 1.0:
            fields["top_p"] = sampling.top_p
        if sampling.temperature > 0:
            fields["seed"] = sampling.seed
        if self.token_ids:  # the ids hold the stop string, so the text has to hold it too
            fields |= {"return_token_ids": True, "include_stop_str_in_output": True}
            fields["logprobs"] = True if self.api == "chat" else 1
        fields |= self.extra_body
        return {key: value for key, value in fields.items() if value is not None}

    def _body(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The fields, in the words this server is known to understand."""
        return {
            self._max_tokens_field if key == "max_tokens" else key: value
            for key, value in fields.items()
            if key not in self._unknown_fields
        }

    def _learn(self, body: dict[str, Any], detail: str) -> bool:
        """The server complains about a field that it does not have to know: do without. True if that changes anything."""
        if _CONTEXT.search(detail):
            return False
        if "max_completion_tokens" in detail and "max_tokens" in body:  # OpenAI's newer models
            self._max_tokens_field = "max_completion_tokens"
            return True
        unknown = {field for field in _OPTIONAL_FIELDS if field in body and re.search(rf"\b{field}\b", detail)}
        self._unknown_fields |= unknown
        return bool(unknown)

    def _key(self) -> str | None:
        key = os.environ.get(self.api_key_env, "").strip()
        if not (key.isascii() and key.isprintable()):  # httpx would quote it in its own message
            raise PolicyError(f"the key in the environment variable {self.api_key_env} has characters that no key has")
        return key or None

    def _headers(self) -> dict[str, str]:
        key = self._key()
        return {} if key is None else {"Authorization": f"Bearer {key}"}

    def _http(self) -> httpx.AsyncClient:
        """One pooled client for each event loop: connections do not outlive theirs."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            # How many rollouts run at once is decided elsewhere, so the pool never makes one wait. A whole answer comes
            # after a long silence, a streamed one does not.
            read_s = min(self.read_timeout_s, self.timeout_s) if self.streams else self.timeout_s
            self._client = httpx.AsyncClient(
                timeout=httpx.Timeout(read_s, connect=self.connect_timeout_s, pool=None),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            )
            self._loop = loop
        return self._client

    def _endpoint(self, path: str) -> httpx.URL:
        return self._url.copy_with(path=f"{self._url.path.rstrip('/')}/{path}")

    # ---- the answer --------------------------------------------------------------------------------------------------

    async def _attempt(self, fields: dict[str, Any], turn: Turn) -> Generation:
        try:
            await self._exchange(fields, turn)
            return turn.generation(self.count_tokens)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise transport_error(error, "model server", PolicyError) from error

    async def _exchange(self, fields: dict[str, Any], turn: Turn) -> None:
        """Send the request and feed the turn with what comes back."""
        path = "chat/completions" if self.api == "chat" else "completions"
        for _ in range(len(_OPTIONAL_FIELDS) + 2):
            body = self._body(fields)
            # Plain ASCII: half a surrogate pair, which a command line may hold, is no reason to fail here.
            content = json.dumps(body).encode()
            headers = {"Content-Type": "application/json", **self._headers()}
            async with self._http().stream("POST", self._endpoint(path), content=content, headers=headers) as response:
                if response.status_code >= 300:
                    await response.aread()
                    if response.status_code in (400, 422) and self._learn(body, error_detail(response)):
                        continue
                    raise await self._status_error(response)
                if response.headers.get("content-type", "").startswith("text/event-stream"):
                    await self._read_stream(response, turn)
                else:
                    await response.aread()
                    turn.feed(self._json(response.text))
                return

    async def _read_stream(self, response: httpx.Response, turn: Turn) -> None:
        """Read to the end, or until the server runs past the stop string; leaving early closes the connection."""
        is_over = False
        try:
            async with asyncio.timeout(None) as patience, aclosing(read_events(response.aiter_bytes())) as events:
                async for data in events:
                    if not is_over and data.strip() != "[DONE]":
                        turn.feed(self._json(data))
                        if turn.ran_on:
                            return
                    # Read on a little, for the usage and so that the connection can be used again.
                    is_over = is_over or data.strip() == "[DONE]"
                    if (turn.has_stopped or is_over) and patience.when() is None:
                        patience.reschedule(asyncio.get_running_loop().time() + _GRACE_S)
        except (TimeoutError, httpx.HTTPError):
            if not (turn.has_stopped or is_over):  # else the turn is there, whatever became of the rest
                raise

    def _json(self, text: str) -> object:
        text = self._scrub(text)
        try:
            return json.loads(text)
        except ValueError as error:
            head = " ".join(text.split())[:120]
            raise PolicyError(f"{self._who} sent something that is not JSON: {head!r}") from error

    def _scrub(self, text: str) -> str:
        """A server may quote the key it was sent."""
        key = self._key()
        return text if key is None else text.replace(key, "***")

    def _plain_error(self, response: httpx.Response) -> PolicyError | TransientError | None:
        """What a bad status means on any path."""
        error = response_error(response, "model server", PolicyError)
        if error is None:
            return None
        message = self._scrub(str(error))
        if response.status_code in (401, 403):
            refused, missing = f"It refused the key in {self.api_key_env}", f"No key was sent: set {self.api_key_env}"
            hint = missing if self._key() is None else refused
            return PolicyError(f"{message}. {hint}, or name another variable with api_key_env")
        # OpenAI answers 429 to an empty purse, too; waiting does not fill it.
        if isinstance(error, TransientError) and "insufficient_quota" not in response.text:
            return TransientError(message, error.retry_after_s)
        return PolicyError(message)

    async def _status_error(self, response: httpx.Response) -> PolicyError | TransientError:
        """What a bad status means for a turn, and what to do about it."""
        error = self._plain_error(response) or PolicyError(f"{self._who} answered {response.status_code}")
        if response.status_code == 404:
            return PolicyError(f"{error}. {await self._not_found_hint()}")
        if response.status_code in (400, 413, 422) and _CONTEXT.search(str(error)):
            return PolicyError(f"the conversation no longer fits into the model's context: {error}")
        return error

    async def _not_found_hint(self) -> str:
        try:
            models = await self._list_models()
        except (PolicyError, TransientError):
            return f"Is the address complete? Most end in /v1, like {self._url.scheme}://{self._url.host}:8000/v1"
        if self.model in models:
            return f"The server has the model '{self.model}' but not this kind of call; try api=chat or api=completions"
        return f"It has no model '{self.model}'; it has: {', '.join(models) or 'none'}"

    # ---- which model -------------------------------------------------------------------------------------------------

    async def _list_models(self) -> dict[str, int | None]:
        """The names of the server's models, with the length of their context where it is told (vLLM)."""
        try:
            response = await self._http().get(self._endpoint("models"), headers=self._headers())
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise transport_error(error, "model server", PolicyError) from error
        if (failure := self._plain_error(response)) is not None:
            raise failure
        listing = self._json(response.text)
        data = listing.get("data") if isinstance(listing, dict) else None
        if not isinstance(data, list):
            raise PolicyError(f"{self._who} does not list its models; name one, like {self.base_url}#MODEL")
        entries = [entry for entry in data if isinstance(entry, dict) and "id" in entry]
        lengths = [entry.get("max_model_len") for entry in entries]
        return {
            str(entry["id"]): length if isinstance(length, int) else None
            for entry, length in zip(entries, lengths, strict=True)
        }

    async def _only_model(self) -> str:
        try:
            models: dict[str, int | None] = await retrying(self.max_attempts, self.max_wait_s)(self._list_models)
        except (PolicyError, TransientError) as error:
            raise PolicyError(f"{error}. That was to learn its model; name it, like {self.base_url}#MODEL") from error
        if len(models) != 1:
            found = f"has {len(models)} models: {', '.join(models)}" if models else "has no model"
            raise PolicyError(f"{self._who} {found}. Name one, like {self.base_url}#{next(iter(models), 'MODEL')}")
        name, self.max_context = models.popitem()
        return name


_OPTIONS: dict[str, type] = {
    "api": str,
    "api_key_env": str,
    "timeout_s": float,
    "connect_timeout_s": float,
    "read_timeout_s": float,
    "max_attempts": int,
    "max_wait_s": float,
    "token_ids": bool,
    "stream": bool,
}


def _option(key: str, value: str) -> object:
    """An option of an address, as the type it has."""
    kind = _OPTIONS.get(key)
    if kind is None:
        raise UsageError(
            f"'{key}' is not an option of a model server; there are: {', '.join(_OPTIONS)}.{nearest(key, _OPTIONS)}"
        )
    try:
        return _FLAGS[value.lower()] if kind is bool else kind(value)
    except (KeyError, ValueError) as error:
        what = {bool: "0 or 1", int: "a whole number", float: "a number"}[kind]
        raise UsageError(f"the option {key} of a model server is {what}, not '{value}'") from error


def _messages(segments: Sequence[Segment]) -> list[dict[str, str]]:
    """Model segments are the assistant's, everything between them is one user message."""
    messages: list[dict[str, str]] = []
    for segment in segments:
        role = "assistant" if segment.author == "model" else "user"
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += segment.text
        else:
            messages.append({"role": role, "content": segment.text})
    return messages


def _adopt_prompt_ids(segments: Sequence[Segment], prompt_ids: list[int]) -> None:
    """Give the last segment the ids under which the server read it, if it read all before it as it was sampled.

    Where the tokenizer joined text across the border, the ids do not line up, and the segment stays without.
    """
    if not segments or segments[-1].token_ids is not None:
        return
    known: list[int] = []
    for segment in segments[:-1]:
        if segment.token_ids is None:
            return
        known += segment.token_ids
    if len(known) < len(prompt_ids) and prompt_ids[: len(known)] == known:
        segments[-1].token_ids = prompt_ids[len(known) :]

"""A policy behind Anthropic's Messages API, or a server that speaks it: native tool calls, thinking, one request a turn.

The dialect `tools` is its own; the tags work too, with `stop_sequences`. Calls are asked for as they are written, so that a
query starts when its JSON string closes. What is sent and read is in `anthropic_wire`; connections, the key, time-outs and
retries are in `server`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from parallelsearch.dialect import Tool
from parallelsearch.errors import PolicyError, TransientError, UsageError
from parallelsearch.http import Sent, error_detail
from parallelsearch.policy.anthropic_wire import EAGER, MessageTurn, messages_of, tools_of
from parallelsearch.policy.base import Generation, OnCall, OnText, Sampling
from parallelsearch.policy.openai_wire import Turn, json_bytes
from parallelsearch.policy.server import MAX_CHARS_PER_TOKEN, ServerPolicy, is_about_context
from parallelsearch.trajectory import Segment

PUBLIC = "https://api.anthropic.com"
_VERSION = "2023-06-01"
_KINDS_OF_THINKING = ("adaptive", "between_tools", "disabled")
_MIN_BUDGET = 1024
_ONE_CALL = "disable_parallel_tool_use"
_OPTIONAL_FIELDS = {
    "temperature": r"\btemperature\b",
    "top_p": r"\btop_p\b",
    "output_config": r"\boutput_config\b|\beffort\b",
    "tool_choice": rf"\btool_choice\b|\b{_ONE_CALL}\b",
    EAGER: rf"\b{EAGER}\b",
}
"""Sent where useful, left out from then on if the server names them in a refusal: newer models take no temperature."""


class AnthropicPolicy(ServerPolicy):
    """The model `model` of the Messages API at `base_url` (the part before `/v1/messages`).

    `thinking` is "adaptive", "between_tools", "disabled", or a number of tokens for models that want a budget; left out, the
    model does as it does. `reasoning_effort` is its `effort`. `settings` are those of `ServerPolicy`.
    """

    name = "anthropic"
    takes_tools = chooses_tools = True
    options: Mapping[str, type] = {"thinking": str, **ServerPolicy.options}
    example = PUBLIC
    empty_purse = "enforced_spend_limit_reached"
    streams_unheard = (
        True  # thinking may take minutes, and networks on the way give up a connection that is silent so long
    )

    def __init__(
        self,
        model: str,
        base_url: str = PUBLIC,
        *,
        api_key_env: str = "ANTHROPIC_API_KEY",
        thinking: str | int | None = None,
        dialect: str | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(base_url, model, api_key_env=api_key_env, **settings)
        self.dialect = dialect or "tools"
        self.thinking = _thinking(thinking)
        self._thinks = self._is_thinker = self.thinking is not None and self.thinking["type"] != "disabled"

    @classmethod
    def from_address(cls, address: str, **options: Any) -> AnthropicPolicy:
        """`#MODEL`, or `BASE_URL?thinking=adaptive#MODEL`: options after `?`, the model after `#`.

        `options` are the constructor's own; one that stands in the address wins.
        """
        base_url, model, found = cls.taken_apart(address, options)
        if model is None:
            guess = base_url if base_url and "://" not in base_url else "MODEL"
            raise UsageError(
                f"'anthropic:{address}' names no model; the model stands after '#', like anthropic:#{guess}"
            )
        return cls(model, base_url or PUBLIC, **found)

    def __repr__(self) -> str:
        return f"AnthropicPolicy({self.model!r}, {self.base_url!r})"

    def describe(self) -> dict[str, Any]:
        return {
            "kind": self.name,
            "base_url": self.base_url,
            "model": self.model,
            "continuation": "user-message",
            "streams": self.streams,
            "thinking": self.thinking,
            "reasoning_effort": self.reasoning_effort,
            "extra_body": self.extra_body,
            **self._credentials.describe(),
        }

    def prompt(self, text: str, question: str, tools: Sequence[Tool] = ()) -> Segment:
        return Segment("prompt", text)

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
        only_tool: str | None = None,
    ) -> Generation:
        sent = self._who_asks()
        if sent.key is None and not sent.own and self.base_url == PUBLIC:
            raise PolicyError(
                f"there is no key for {PUBLIC}: set {self.api_key_env}, or name another variable with api_key_env"
            )

        async def ask() -> tuple[Turn, Generation]:
            fields = self._fields(segments, stop, max_tokens, sampling, tools, only_tool)
            max_chars = (max_tokens + self.thinking_room) * MAX_CHARS_PER_TOKEN
            return await self._try(
                partial(MessageTurn, stop, on_text, bool(tools), max_chars),
                partial(self._exchange, fields, deadline_s),
                on_call,
                deadline_s,
            )

        deadline_s = self._deadline_s()
        try:
            return await self._asked(ask, segments)
        except (TimeoutError, TransientError) as error:
            raise self._policy_error(error) from error

    # ---- the request -------------------------------------------------------------------------------------------------

    @property
    def thinking_room(self) -> int:
        """A budget that was set is the room."""
        return int((self.thinking or {}).get("budget_tokens", super().thinking_room)) if self._thinks else 0

    def _fields(
        self,
        segments: Sequence[Segment],
        stop: Sequence[str],
        max_tokens: int,
        sampling: Sampling,
        tools: Sequence[Tool],
        only_tool: str | None = None,
    ) -> dict[str, Any]:
        is_thinking = self.thinking is not None and self.thinking["type"] != "disabled"
        fields: dict[str, Any] = {
            "model": self.model,
            "max_tokens": max_tokens + self.thinking_room,
            "messages": messages_of(segments),
            "stream": self.streams,
            "thinking": self.thinking,
            # The API takes none of white space alone; there the turn is cut here.
            "stop_sequences": [string for string in stop if string.strip()] or None,
            "output_config": None if self.reasoning_effort is None else {"effort": self.reasoning_effort},
        }
        if tools:
            fields["tools"] = tools_of(tools, is_eager=self.streams)
            if only_tool == "":
                fields["tool_choice"] = {"type": "none"}
            elif only_tool and not (is_thinking or self._thinks):  # who thinks cannot be made to call one
                fields["tool_choice"] = {"type": "tool", "name": only_tool}
            elif any(tool.one_at_a_time for tool in tools):
                fields["tool_choice"] = {"type": "auto", _ONE_CALL: True}
        if not is_thinking:  # a model that thinks draws in its own way
            fields["temperature"] = sampling.temperature
            if sampling.top_p != 1.0:
                fields["top_p"] = sampling.top_p
        fields |= self.extra_body
        return {key: value for key, value in fields.items() if value is not None}

    def _body(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The fields that this server is known to take."""
        body = {key: value for key, value in fields.items() if key not in self._unknown_fields}
        if EAGER in self._unknown_fields and "tools" in body:
            body["tools"] = [{key: value for key, value in tool.items() if key != EAGER} for tool in body["tools"]]
        if not 0 <= body.get("temperature", 0) <= 1:
            raise PolicyError(f"{self._who} takes temperatures from 0 to 1, not {body['temperature']}")
        return body

    def _learn(self, body: dict[str, Any], detail: str) -> bool:
        """The server complains about a field that it does not have to know: do without. True if that changes anything."""
        if is_about_context(detail) or ("thinking" in body and "thinking" in detail):  # that one was asked for
            return False
        sent = {*body, *(key for tool in body.get("tools", ()) for key in tool)}
        named = {name for name, pattern in _OPTIONAL_FIELDS.items() if name in sent and re.search(pattern, detail)}
        if {"temperature", "top_p"} <= named:  # some models take one of them, not both
            named.discard("temperature")
        return self._leave_out(named)

    @staticmethod
    def _key_headers(key: str) -> Mapping[str, str]:
        return {"x-api-key": key}

    def _headers(self) -> Mapping[str, str]:
        return {**super()._headers(), "anthropic-version": _VERSION}

    def _endpoint(self, path: str) -> str:
        has_version = urlsplit(self._url).path.rstrip("/").endswith("/v1")
        return super()._endpoint(path if has_version else f"v1/{path}")

    # ---- the answer --------------------------------------------------------------------------------------------------

    async def _exchange(self, fields: dict[str, Any], deadline_s: float, turn: Turn, sent: Sent) -> None:
        """Send the request and feed the turn with what comes back."""
        for _ in range(len(_OPTIONAL_FIELDS) + 1):
            body = self._body(fields)
            async with self._http.stream(
                "POST",
                self._endpoint("messages"),
                content=json_bytes(body),
                headers=self._headers(),
                timeout_s=self._left_s(deadline_s),
                read_timeout_s=self._silence_s(bool(body.get("stream"))),
                sent=sent,
            ) as answer:
                if answer.status < 300:
                    await self._read_answer(answer, turn)
                    return
                response = await answer.read()
            if response.status not in (400, 422) or not self._learn(body, error_detail(response)):
                raise await self._status_error(response, sent)

    async def _not_found_hint(self) -> str:
        try:
            names = [str(entry["id"]) for entry in await self._entries()]
        except (PolicyError, TransientError):
            return f"Is the address right? {PUBLIC} is asked where none is given, like anthropic:#{self.model}"
        if self.model in names:
            return f"The server has the model '{self.model}' but not this kind of call"
        return f"It has no model '{self.model}'; it has: {', '.join(names) or 'none'}"


def _thinking(asked: str | int | None) -> dict[str, Any] | None:
    """What is sent for the option `thinking`."""
    if asked is None:
        return None
    if asked == "adaptive":  # newer models leave the text out unless it is asked for; the record wants it
        return {"type": asked, "display": "summarized"}
    if asked in _KINDS_OF_THINKING:
        return {"type": asked}
    try:
        budget = int(asked)
    except ValueError:
        budget = 0
    if budget < _MIN_BUDGET:
        raise UsageError(
            f"thinking is {', '.join(_KINDS_OF_THINKING)} or a number of tokens from {_MIN_BUDGET} on, not '{asked}'"
        )
    return {"type": "enabled", "budget_tokens": budget}

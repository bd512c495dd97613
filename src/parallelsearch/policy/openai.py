"""A policy behind any OpenAI-compatible server: one HTTP request a turn, with time-outs and retries.

`chat` sends the prompt and the results as user messages, since most chat servers cannot go on with an assistant message;
`completions` sends the whole text and is continued where it ends; `responses` sends items, and is what OpenAI's reasoning
models call functions in. Whatever a server does at a stop string (strip it, keep it, run past it), the turn ends with it;
see `openai_wire` and `responses_wire`, which read the answers. Connections, keys, time-outs and retries are in `server`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from parallelsearch import grammar
from parallelsearch.dialect import Tool
from parallelsearch.errors import NoToolsError, PolicyError, TransientError, UsageError, stopped
from parallelsearch.http import Response, Sent, error_detail, retrying, with_version
from parallelsearch.policy.base import Generation, OnCall, OnText, Sampling
from parallelsearch.policy.openai_wire import Turn, is_unreadable_call, json_bytes
from parallelsearch.policy.responses_wire import KEPT_THOUGHTS, ResponseTurn, input_of, tools_of
from parallelsearch.policy.server import GATEWAY_TIMEOUTS, MAX_CHARS_PER_TOKEN, ServerPolicy, is_about_context
from parallelsearch.trajectory import Author, Segment

log = logging.getLogger(__name__)

Api = Literal["chat", "completions", "responses"]
_PATHS: Mapping[str, str] = {"chat": "chat/completions", "completions": "completions", "responses": "responses"}

_OPTIONAL_FIELDS = (
    "stream_options",
    "seed",
    "top_p",
    "include_stop_str_in_output",
    "stop",
    "temperature",
    "parallel_tool_calls",
    "tool_choice",
    "reasoning_effort",
    "reasoning",
    "include",
    "store",
)
"""Sent where useful, left out from then on if a server says that it does not take them. Without `stop` a turn is cut here."""
_LEAST_THINKING = 512
"""Less is no room worth asking for."""
_MOST_TOKENS = re.compile(r"\bmax_(?:completion_|output_)?tokens\b")
_TOO_FEW = re.compile(r"\bhigher max_(?:completion_)?tokens\b")
"""So OpenAI may refuse a turn that was all thought: it has used its tokens up, and more of them are wanted."""
_NOT_ENCRYPTED = re.compile(r"encrypted content\b.{0,20}\bnot supported", re.I)
_UNREAD = re.compile(r"encrypted content\b.*\bcould not be (?:verified|decrypted)", re.I)
_ABOUT_ROOM = (400, 402, 413, 422)
"""402 is OpenRouter's, for who can pay fewer; 413 Groq's: what a request may write counts towards the tokens of a minute."""
_STREAMED: Mapping[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
_WHOLE: Mapping[str, Any] = {"stream": False}
_TOOLS = re.compile(r"\btools?\b|tool[_ -]?(?:choice|call)|function.?call", re.I)
_ABOUT_TOOLS = (400, 404, 422, 500, 501)
"""With one of these a server says that it takes no tools; which one, differs. One that took them before means something
else."""
_RESPONSES = re.compile(r"(?:v1)?/responses\b|\bresponses api\b", re.I)
"""Stands in the refusal of a model that calls functions nowhere else."""
_THINKS_FIRST = re.compile(r"deepseek[-_]?r1|r1[-_]distill|\bqwq\b|[-_]thinking\b", re.I)
"""Models that begin with a thought, most of them one that their chat template opens, so that only its end stands in the
text, unless the server takes it out."""
_TRAINED_ON_TAGS = re.compile(r"parallelsearch|\+(?:parallel|sequential)", re.I)


class OpenAIPolicy(ServerPolicy):
    """A model behind `base_url` (the part before `/chat/completions`, usually ending in `/v1`).

    `model=None` takes the server's only model. `token_ids` asks for ids and log-probabilities in vLLM's way; with `encode`
    (text -> ids) the completions prompt is sent as ids, so that the trajectory is token-exact from end to end. `settings` are
    those of `ServerPolicy`.

    `dialect` is how the model talks. Left out, a model whose name says that it was trained here gets tags, and every other
    one tools; a server that takes none is asked in tags from then on, and that is said once.

    `api` left out is `chat`, and from then on `responses` where the server says that this model calls functions only there.
    `api_version` stands behind each path, as Azure's APIs of a date want it (`api-version=2024-10-21`).
    """

    name = "openai"
    options: Mapping[str, type] = {"api": str, "token_ids": bool, "api-version": str, **ServerPolicy.options}
    example = f"{ServerPolicy.example}#MODEL, or https://api.openai.com/v1#MODEL for OpenAI's own"

    def __init__(
        self,
        base_url: str,
        model: str | None = None,
        *,
        api: Api | None = None,
        api_key_env: str = "OPENAI_API_KEY",
        api_version: str | None = None,
        token_ids: bool = False,
        dialect: str | None = None,
        encode: Callable[[str], list[int]] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(with_version(base_url, api_version), model, api_key_env=api_key_env, **settings)
        self.api_version = api_version
        if api is not None and api not in _PATHS:
            raise UsageError(f"api is 'chat', 'completions' or 'responses', not '{api}'")
        if api == "responses" and token_ids:
            raise UsageError("the Responses API gives no token ids; take api=chat or api=completions with token_ids")
        self.api: Api = api or "chat"
        self._api_asked = api
        self.token_ids = token_ids
        self.takes_tools = self.chooses_tools = api != "completions"
        self._guesses = api != "completions" and not token_ids  # there all that a model writes comes
        self._thinks_first: bool | None = None
        self._learn_name()
        self._picks_dialect = dialect is None
        self.dialect = dialect or self._guess_dialect()
        self._has_taken_tools = False
        self._sends_reasoning = False
        self._sends_details = True
        self._encode = encode
        self._max_tokens_field = "max_tokens"
        self._passes_stops = False
        self._refused_rooms: dict[int, int] = {}  # for thinking, with the shortest conversation that was refused it

    @classmethod
    def from_address(cls, address: str, **options: Any) -> OpenAIPolicy:
        """`http://HOST:PORT/v1?api=completions&token_ids=1#MODEL`: options after `?`, the model after `#`.

        `options` are the constructor's own; one that stands in the address wins.
        """
        base_url, model, found = cls.taken_apart(address, options)
        return cls(base_url, model, **{name.replace("-", "_"): value for name, value in found.items()})

    def _guess_dialect(self) -> str | None:
        """None is the package's own. A model that must give token ids is one to be trained, and on tags."""
        is_trained = self.token_ids or (self.model is not None and _TRAINED_ON_TAGS.search(self.model))
        return "tools" if self.takes_tools and not is_trained else None

    def _learn_name(self) -> None:
        """Whether the model's text begins inside a thought, as far as its name tells; elsewhere it may yet show. What is
        trained on our tags, or gives token ids, is read as it stands."""
        name = self.model or ""
        if self.api == "completions" or self.token_ids or _TRAINED_ON_TAGS.search(name):
            self._thinks_first = False
        elif _THINKS_FIRST.search(name):
            self._thinks_first = self._thinks = True

    def __repr__(self) -> str:
        return f"OpenAIPolicy({self.base_url!r}, {self.model!r}, api={self.api!r})"

    def describe(self) -> dict[str, Any]:
        return {
            "kind": self.name,
            "base_url": self.base_url,
            "model": self.model,
            "api": self._api_asked or "chat",  # what a server makes of it shows at the first question
            "continuation": "text" if self.api == "completions" else "user-message",
            "streams": self.streams,
            "token_ids": self.token_ids,
            "extra_body": self.extra_body,
            **self._how_it_thinks(),
            **self._credentials.describe(),
            **({} if self.api_version is None else {"api_version": self.api_version}),
        }

    # Ids of what the environment inserts are true for completions only: a chat template puts more tokens around it.
    def prompt(self, text: str, question: str, tools: Sequence[Tool] = ()) -> Segment:
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
        tools: Sequence[Tool] = (),
        on_call: OnCall | None = None,
        only_tool: str | None = None,
    ) -> Generation:
        async def ask() -> tuple[Turn, Generation]:
            try:
                return await ask_there()
            except _OnlyInResponses as refusal:
                self._turn_to_responses(refusal)
                return await ask_there()

        async def ask_there() -> tuple[Turn, Generation]:
            longest = max_tokens + self._room(segments)
            fields = self._fields(segments, stop, longest, sampling, tools, only_tool)
            kind = ResponseTurn if _api_of(fields) == "responses" else partial(Turn, thinks_first=self._thinks_first)
            is_heard = on_text is not None or on_call is not None
            turn, generation = await self._try(
                partial(kind, stop, on_text, bool(tools), longest * MAX_CHARS_PER_TOKEN),
                partial(self._exchange, fields, segments, max_tokens, is_heard, deadline_s),
                on_call,
                deadline_s,
            )
            self._has_taken_tools = self._has_taken_tools or bool(tools)
            if self._thinks_first is not False and turn.thinks_first is not None:  # what was disproved once stays so
                self._thinks_first = turn.thinks_first
                self._is_thinker = self._is_thinker or turn.thinks_first
            self._passes_stops = self._passes_stops or (turn.has_stopped and turn.ran_on)
            if self.api == "completions" and turn.prompt_ids is not None:
                _adopt_prompt_ids(segments, turn.prompt_ids)
            return turn, generation

        deadline_s = self._deadline_s()
        try:
            if self.model is None:
                async with asyncio.timeout_at(deadline_s):
                    self.model = await self._only_model()
                self._learn_name()
                if tools and self._picks_dialect and self._guess_dialect() is None:
                    self.dialect = None
                    raise NoToolsError(f"the model '{self.model}' was trained on tags")
            return await self._asked(ask, segments)
        except (TimeoutError, TransientError) as error:
            raise self._policy_error(error) from error

    # ---- the request -------------------------------------------------------------------------------------------------

    def _fields(
        self,
        segments: Sequence[Segment],
        stop: Sequence[str],
        max_tokens: int,
        sampling: Sampling,
        tools: Sequence[Tool] = (),
        only_tool: str | None = None,
    ) -> dict[str, Any]:
        fields: dict[str, Any] = {"model": self.model, "max_tokens": max_tokens, "temperature": sampling.temperature}
        is_response = self.api == "responses"
        # The Responses API knows none, and a thought may speak of a search: the turn is cut here then.
        if stop and not is_response and not self._thinks_first:
            fields["stop"] = list(stop)
        if self.reasoning_effort is not None:
            effort = {"reasoning": {"effort": self.reasoning_effort}}
            fields |= effort if is_response else {"reasoning_effort": self.reasoning_effort}
        if tools:
            fields["tools"] = tools_of(tools) if is_response else [tool.schema() for tool in tools]
            fields["parallel_tool_calls"] = not any(tool.one_at_a_time for tool in tools)
            if only_tool is not None:
                name = {"name": only_tool}
                chosen = {"type": "function", **(name if is_response else {"function": name})}
                fields["tool_choice"] = chosen if only_tool else "none"
        if is_response:
            fields |= {"input": input_of(segments), "store": False, "include": [KEPT_THOUGHTS]}
        elif self.api == "chat":
            fields["messages"] = self._chat(segments) if tools else _messages(segments, self._is_thinker)
        else:
            ids = [segment.token_ids for segment in segments]
            known = [item for part in ids if part is not None for item in part]
            is_exact = self._encode is not None and all(part is not None for part in ids)
            fields["prompt"] = known if is_exact else "".join(segment.text for segment in segments)
        if sampling.top_p != 1.0:
            fields["top_p"] = sampling.top_p
        if sampling.temperature > 0 and not is_response:
            fields["seed"] = sampling.seed
        if self.token_ids:  # the ids hold the stop string, so the text has to hold it too
            fields |= {"return_token_ids": True, "include_stop_str_in_output": True}
            fields["logprobs"] = True if self.api == "chat" else 1
        if self.extra_body:
            fields = {key: value for key, value in (fields | self.extra_body).items() if value is not None}
        return fields

    def _streams_for(self, is_heard: bool, has_stop: bool = False) -> bool:
        """A server that runs past the stop strings is streamed, too: what it writes after one is not waited for then."""
        sends_none = "stop" in self._unknown_fields or self.api == "responses" or self._thinks_first is True
        cuts = has_stop and (self._passes_stops or sends_none)
        return self.streams and (self._streams_all or is_heard or cuts)

    def _body(self, fields: dict[str, Any], streams: bool) -> dict[str, Any]:
        """The fields, in the words this server is known to understand."""
        if streams:
            way = _STREAMED
        elif self._stream_asked is None and not self.streams:  # it refused the field; whole is what it does without
            way = {}
        else:
            way = _WHOLE
        if self.extra_body:
            way = {key: value for key, value in way.items() if key not in self.extra_body}
            if not self.extra_body.get("stream", True):  # vLLM refuses options of a stream that is not asked for
                way.pop("stream_options", None)
        is_response = _api_of(fields) == "responses"
        if is_response:
            way = {key: value for key, value in way.items() if key != "stream_options"}
        body = {**way, **fields}
        max_tokens = "max_output_tokens" if is_response else self._max_tokens_field
        if not self._unknown_fields and max_tokens == "max_tokens":
            return body
        return {
            max_tokens if key == "max_tokens" else key: value
            for key, value in body.items()
            if key not in self._unknown_fields
        }

    def _learn(self, body: dict[str, Any], detail: str) -> bool:
        """The server complains about a field that it does not have to know: do without. True if that changes anything."""
        if is_about_context(detail):
            return False
        if "max_completion_tokens" in detail and "max_tokens" in body:  # OpenAI's newer models
            self._max_tokens_field = "max_completion_tokens"
            return True
        named = {field for field in _OPTIONAL_FIELDS if field in body and re.search(rf"\b{field}\b", detail)}
        if "include" in body and _NOT_ENCRYPTED.search(detail):  # a model that does not think has none
            named.add("include")
        return self._leave_out(named)

    def _learn_reasoning(self, fields: dict[str, Any], segments: Sequence[Segment], detail: str) -> bool:
        """Some servers want the reasoning of earlier turns back, others refuse it: it is sent where one asks for it. What a
        server gave in a form of its own goes back to it, unless it refuses that; where it cannot read what it had encrypted
        (another account's, behind a gateway), this conversation goes on without."""
        if _api_of(fields) == "responses":
            without = [item for item in fields["input"] if item.get("type") != "reasoning"]
            is_unread = _UNREAD.search(detail) is not None and len(without) < len(fields["input"])
            fields["input"] = without if is_unread else fields["input"]
            return is_unread
        if "tools" not in fields:
            return False
        if self._sends_details and "reasoning_details" in detail and any(segment.raw for segment in segments):
            self._sends_details = False
        elif not self._sends_reasoning and "reasoning_content" in detail:
            self._sends_reasoning = True
        else:
            return False
        fields["messages"] = self._chat(segments)
        return True

    def _chat(self, segments: Sequence[Segment]) -> list[dict[str, Any]]:
        return _chat(segments, self._sends_reasoning, self._sends_details)

    def _turn_to_responses(self, refusal: Exception) -> None:
        if self.api != "responses":  # another question may have found out before
            log.warning(
                "%s has functions for this model in the Responses API alone: asked there from now on", self._who
            )
            log.info("%s said: %s", self._who, refusal)
        self.api = "responses"

    def _room(self, segments: Sequence[Segment]) -> int:
        """Less after a conversation that was too long for more before."""
        room = self.thinking_room
        if room and self._refused_rooms:
            num_tokens = self._length(segments)
            while room and self._refused_rooms.get(room, math.inf) <= num_tokens:
                room = _next_room(room)
        return room

    def _length(self, segments: Sequence[Segment]) -> int:
        return sum(self.count_tokens(segment.text) for segment in segments)

    def _learn_room(self, fields: dict[str, Any], segments: Sequence[Segment], says: int, response: Response) -> bool:
        """Where the model's context is short, or what may be asked for in a minute or for one's money is little, the room
        for thinking gives way before the question is given up: for this conversation, and for those as long."""
        detail = error_detail(response)
        is_about_room = response.status == 413 or is_about_context(detail) or _MOST_TOKENS.search(detail)
        # Another question may have learned more since this one was sent: what counts is what was sent.
        room = fields["max_tokens"] - says if "max_tokens" not in self.extra_body else 0
        if not is_about_room or room <= 0:
            return False
        smaller = _next_room(room)
        fields["max_tokens"] = says + smaller
        num_tokens = self._length(segments)
        if room not in self._refused_rooms:
            log.warning(
                "%s has no room for so much thinking: %d tokens a turn from now on, after as long a conversation",
                self._who,
                smaller,
            )
        self._refused_rooms[room] = min(num_tokens, self._refused_rooms.get(room, num_tokens))
        return True

    def _without_tools(self, error: Exception) -> NoToolsError:
        """The server takes no tools: this policy is asked in tags from now on, unless someone insists on tools."""
        if self.dialect is not None:
            log.warning("%s takes no tools; asked in tags from now on (%s)", self._who, error)
        self.dialect = None
        return NoToolsError(f"{stopped(error)} It takes no tools: take the dialect 'parallel'")

    # ---- the answer --------------------------------------------------------------------------------------------------

    async def _exchange(
        self,
        fields: dict[str, Any],
        segments: Sequence[Segment],
        says: int,
        is_heard: bool,
        deadline_s: float,
        turn: Turn,
        sent: Sent,
    ) -> None:
        """Send the request and feed the turn with what comes back. `says`: its tokens but for those of thoughts."""
        path = _PATHS[_api_of(fields)]
        for _ in range(len(_OPTIONAL_FIELDS) + 10):
            body = self._body(fields, self._streams_for(is_heard, turn.stops))
            streams = bool(body.get("stream"))
            start_s = time.monotonic()
            try:
                async with self._http.stream(
                    "POST",
                    self._endpoint(path),
                    content=json_bytes(body),
                    headers=self._headers(),
                    timeout_s=self._left_s(deadline_s),
                    read_timeout_s=self._silence_s(streams),
                    sent=sent,
                ) as answer:
                    if answer.status < 300:
                        await self._read_answer(answer, turn)
                        return
                    response = await answer.read()
                if response.status == 400 and _TOO_FEW.search(error_detail(response)):
                    turn.feed({"choices": [{"message": {}, "finish_reason": "length"}]})
                    return
                await self._learn_from(response, sent, fields, segments, says, body)
            except TransientError as error:
                self._learn_patience(error, start_s, streams)
                raise

    async def _learn_from(
        self,
        response: Response,
        sent: Sent,
        fields: dict[str, Any],
        segments: Sequence[Segment],
        says: int,
        body: dict[str, Any],
    ) -> None:
        """Return if the server refused something that it can be asked without; raise what is wrong otherwise."""
        detail = error_detail(response)
        is_unreadable = is_unreadable_call(detail)
        is_refusal = response.status in (400, 422) and not is_unreadable
        may_turn = self._api_asked is None and "tools" in body and _api_of(body) == "chat"
        if may_turn and response.status in (400, 404) and _RESPONSES.search(detail):
            raise _OnlyInResponses(detail)
        if is_refusal and (
            self._learn(body, detail)
            or self._learn_stream(body, detail)
            or self._learn_reasoning(fields, segments, detail)
        ):
            return
        if response.status in _ABOUT_ROOM and not is_unreadable and self._learn_room(fields, segments, says, response):
            return
        error = await self._status_error(response, sent)
        if response.status in GATEWAY_TIMEOUTS and not body.get("stream"):
            self._stream_all(str(error))
        if is_unreadable:
            raise error if isinstance(error, TransientError) else TransientError(str(error))
        may_take_none = "tools" in body and not self._has_taken_tools
        if may_take_none and response.status in _ABOUT_TOOLS and _TOOLS.search(detail):
            raise self._without_tools(error)
        raise error

    async def _not_found_hint(self) -> str:
        try:
            models = await self._list_models()
        except (PolicyError, TransientError):
            if self.base_url.endswith("/v1"):
                return f"Is it a model server? It does not list models either ({self.base_url}/models)"
            return "Is the address complete? Most end in /v1, like http://127.0.0.1:8000/v1"
        if self.model in models:
            ways = " or ".join(f"?api={api}" for api in _PATHS if api != self.api)
            return f"The server has the model '{self.model}' but not this kind of call; write {ways} before the '#'"
        return f"It has no model '{self.model}'; it has: {', '.join(models) or 'none'}"

    # ---- which model -------------------------------------------------------------------------------------------------

    async def _list_models(self) -> dict[str, int | None]:
        """The names of the server's models, with the length of their context where it is told (vLLM)."""
        entries = await self._entries()
        lengths = [entry.get("max_model_len") for entry in entries]
        return {
            str(entry["id"]): length if isinstance(length, int) else None
            for entry, length in zip(entries, lengths, strict=True)
        }

    async def _only_model(self) -> str:
        try:
            models: dict[str, int | None] = await retrying(self.max_attempts, self.max_wait_s)(self._list_models)
        except (PolicyError, TransientError) as error:
            raise PolicyError(
                f"{stopped(error)} That was to learn its model; name it, like {self.base_url}#MODEL"
            ) from error
        if len(models) != 1:
            found = f"has {len(models)} models: {', '.join(models)}" if models else "has no model"
            raise PolicyError(f"{self._who} {found}. Name one, like {self.base_url}#{next(iter(models), 'MODEL')}")
        name, self.max_context = models.popitem()
        return name


def _next_room(room: int) -> int:
    return room // 2 if room >= _LEAST_THINKING else 0


def _api_of(fields: Mapping[str, Any]) -> Api:
    """Where a request belongs: the policy may have turned to another API since it was made."""
    return "responses" if "input" in fields else "completions" if "prompt" in fields else "chat"


class _OnlyInResponses(Exception):
    """The model calls functions in the Responses API alone, says the server."""


def _messages(segments: Sequence[Segment], drops_thoughts: bool) -> list[dict[str, str]]:
    """Model segments are the assistant's, everything between them is one user message."""
    messages: list[dict[str, str]] = []
    for segment in segments:
        role = "assistant" if segment.author == "model" else "user"
        text = grammar.without_thought(segment.text) if drops_thoughts and role == "assistant" else segment.text
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += text
        else:
            messages.append({"role": role, "content": text})
    return messages


def _chat(segments: Sequence[Segment], sends_reasoning: bool, sends_details: bool) -> list[dict[str, Any]]:
    """The chat of a dialect with tools: what the model called stands in its message, each result in a message of its own."""
    messages: list[dict[str, Any]] = []
    for segment in segments:
        if segment.author != "model":
            reply = {"role": "tool", "tool_call_id": segment.call_id} if segment.call_id else {"role": "user"}
            messages.append({**reply, "content": segment.text})
            continue
        message: dict[str, Any] = {"role": "assistant", "content": segment.text or None}
        if segment.calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                    **({"extra_content": call.extra} if call.extra else {}),
                }
                for call in segment.calls
            ]
        elif not segment.text:
            message["content"] = ""
        if segment.reasoning and sends_reasoning:
            message["reasoning_content"] = segment.reasoning
        if segment.raw and sends_details:
            message["reasoning_details"] = segment.raw
        messages.append(message)
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

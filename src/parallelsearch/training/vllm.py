"""Turns drawn by vLLM: by a `vllm serve` over HTTP, or by a vLLM inside the training process.

Token in, token out, as with the local engine. vLLM looks for stop strings in its own text and may run past one by a few
tokens; where a turn ends is decided here, by the same automaton over ids, so that the whole last token of a stop string is
kept and nothing behind it. A server gets one request a turn, all at once: its scheduler batches them token by token, and no
rollout waits for another's. In the process, where a call blocks, the turns of all live rollouts are gathered first.

Needs no vLLM to import. `vllm_link` starts it through TRL and keeps its weights in step.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from parallelsearch.dialect import Tool
from parallelsearch.errors import PolicyError, TransientError
from parallelsearch.http import HttpClient, retrying
from parallelsearch.policy.base import Generation, OnCall, OnText, Sampling
from parallelsearch.policy.encoding import EnginePolicy, Template
from parallelsearch.policy.engine.base import Output, Request
from parallelsearch.policy.engine.batch import BatchEngine
from parallelsearch.policy.engine.stops import StopBank
from parallelsearch.trajectory import Segment

CONNECT_TIMEOUT_S = 10.0
MAX_ATTEMPTS = 4
MAX_GATHERED = 8192
"""vLLM schedules what it is given: a call in the process is never split."""


def cut(
    bank: StopBank,
    state: int,
    eos_ids: Sequence[int],
    max_new_tokens: int,
    token_ids: Sequence[int],
    logprobs: Sequence[float | None],
) -> Output:
    """The turn in what vLLM drew: up to the token that completes a stop string or ends the text. `state` is where the
    automaton begins."""
    if not token_ids or len(token_ids) != len(logprobs):
        raise PolicyError(f"vLLM gave {len(token_ids)} tokens with {len(logprobs)} log-probabilities")
    ids = list(token_ids[:max_new_tokens])
    known = [value for value in logprobs[: len(ids)] if value is not None]
    if len(known) != len(ids):
        raise PolicyError("vLLM gave a token whose log-probability is not a number")
    for index, token in enumerate(ids):
        state = int(bank.delta[state, token])
        if bank.accepts[state]:
            return Output(ids[: index + 1], known[: index + 1], "stop")
        if token in eos_ids:
            return Output(ids[: index + 1], known[: index + 1], "eos")
    return Output(ids, known, "length")


def sampling_fields(
    stop: Sequence[str], eos_ids: Sequence[int], max_new_tokens: int, sampling: Sampling, seed: int | None
) -> dict[str, Any]:
    """vLLM's sampling parameters of one turn, every one of them said: a server fills gaps from the model's own defaults."""
    fields: dict[str, Any] = {
        "n": 1,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "max_tokens": max_new_tokens,
        "logprobs": 0,  # of the drawn token alone
        "stop": list(stop),
        "stop_token_ids": list(eos_ids),
        "include_stop_str_in_output": True,
    }
    return fields if seed is None else {**fields, "seed": seed}


def turn_seed(sampling: Sampling, position: int) -> int:
    """63 bits from (rollout, place in it): with one seed for all turns of a rollout they would share their noise."""
    digest = hashlib.blake2b(f"{sampling.seed}/{position}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


class ServerEngine:
    """A `vllm serve`, in the words that TRL's own client uses. It keeps nothing for a rollout."""

    name = "vllm-server"

    def __init__(
        self, base_url: str, model: str, bank: StopBank, eos_ids: Sequence[int], *, is_seeded: bool, timeout_s: float
    ) -> None:
        self.base_url, self.model = base_url, model
        self.bank, self.eos_ids, self.is_seeded, self.timeout_s = bank, list(eos_ids), is_seeded, timeout_s
        self._http = HttpClient(
            "vLLM server", permanent=PolicyError, connect_timeout_s=CONNECT_TIMEOUT_S, read_timeout_s=timeout_s
        )
        self.on_busy: Callable[[bool], None] | None = None
        """Called with True when a turn is asked for, and with False when it is there."""

    async def generate(
        self, ids: list[int], *, stop: Iterable[str], max_new_tokens: int, sampling: Sampling, key: str
    ) -> Output:
        start = self.bank.start(tuple(stop))
        seed = turn_seed(sampling, len(ids)) if self.is_seeded and sampling.temperature > 0 else None
        body = {
            "model": self.model,
            "prompt": [ids],
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            **sampling_fields(self.bank.strings(start), self.eos_ids, max_new_tokens, sampling, seed),
        }
        told = self.on_busy
        if told is not None:
            told(True)
        try:
            async for attempt in retrying(MAX_ATTEMPTS):
                with attempt:
                    choice = await self._ask(body)
        except TransientError as error:
            raise PolicyError(str(error)) from error
        finally:
            if told is not None:
                told(False)
        return cut(self.bank, start, self.eos_ids, max_new_tokens, *choice)

    async def _ask(self, body: dict[str, Any]) -> tuple[list[int], list[float | None]]:
        response = await self._http.request(
            "POST",
            f"{self.base_url}/v1/completions",
            content=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        if (problem := self._http.error_of(response)) is not None:
            raise problem
        try:
            (choice,) = response.json()["choices"]
            return choice["token_ids"], choice["logprobs"]["token_logprobs"]
        except (ValueError, KeyError, TypeError) as error:
            raise PolicyError(
                f"vLLM server {self.base_url} answered without token ids and log-probabilities: {response.text[:200]!r}"
            ) from error

    def open_session(self, key: str) -> None:
        """A server counts nobody."""

    def close_session(self, key: str) -> None:
        """Nothing was kept."""

    def reset(self) -> None:
        """TRL empties the server's prefix cache when it brings new weights."""

    def describe(self) -> dict[str, Any]:
        return {"engine": self.name, "base_url": self.base_url, "model": self.model, "is_seeded": self.is_seeded}

    async def aclose(self) -> None:
        await self._http.aclose()


class ColocatedEngine(BatchEngine):
    """TRL's `vllm.LLM` in this process. Batches form as they do for `generate`; vLLM runs them."""

    name = "vllm-colocate"

    def __init__(
        self, model: Any, bank: StopBank, eos_ids: Sequence[int], max_context: int, *, is_deterministic: bool
    ) -> None:
        """`model` is the one that is trained: it says on which device vLLM runs."""
        super().__init__(
            model, bank, eos_ids, max_context, deterministic=is_deterministic, dtype=model.dtype, max_batch=MAX_GATHERED
        )
        self._llm: Any = None
        self._parameters: Any = None

    def attach(self, llm: Any, parameters: Any) -> None:
        """TRL has made the engine: an `LLM`, and vLLM's class of sampling parameters."""
        self._llm, self._parameters = llm, parameters

    async def aclose(self) -> None:
        await asyncio.to_thread(self.close)

    def describe(self) -> dict[str, Any]:
        return {"engine": self.name, "max_context": self.max_context, "is_seeded": self.deterministic}

    def _run(self, batch: list[Request]) -> None:
        if self._llm is None:
            raise PolicyError("vLLM was not started: the trainer comes first")
        if self.model.device.type == "cuda":
            torch.cuda.set_device(self.model.device)  # the current device is a thread's own
        self.batch_sizes.append(len(batch))
        outputs = self._llm.generate(
            [{"prompt_token_ids": request.ids} for request in batch],
            [self._parameters(**self._fields(request)) for request in batch],
            use_tqdm=False,
        )
        for request, output in zip(batch, outputs, strict=True):
            (drawn,) = output.outputs
            logprobs = [step[token].logprob for step, token in zip(drawn.logprobs, drawn.token_ids, strict=True)]
            try:
                turn = cut(
                    self.bank, request.start_state, self.eos_ids, request.max_new_tokens, drawn.token_ids, logprobs
                )
            except PolicyError as error:
                request.fail(error)
                continue
            request.token_ids, request.logprobs = turn.token_ids, turn.logprobs
            request.resolve(turn.finish)

    def _fields(self, request: Request) -> dict[str, Any]:
        sampling = request.sampling
        seed = turn_seed(sampling, len(request.ids)) if self.deterministic and sampling.temperature > 0 else None
        stop = self.bank.strings(request.start_state)
        return sampling_fields(stop, self.eos_ids, request.max_new_tokens, sampling, seed)


class VllmPolicy(EnginePolicy):
    """A tokenizer here, and a model in vLLM."""

    name = "vllm"

    def __init__(
        self,
        tokenizer: Any,
        engine: ServerEngine | ColocatedEngine,
        *,
        max_context: int,
        timeout_s: float,
        template: Template = "auto",
        label: str = "vllm",
    ) -> None:
        super().__init__(tokenizer, label, template)
        self.engine, self.timeout_s = engine, timeout_s
        self.max_context: int = max_context

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
        ids = self.ids_of(segments)
        room = self.max_context - len(ids)
        if room < 1:
            raise PolicyError(f"the context is full: {len(ids)} tokens, and rollout.max_tokens is {self.max_context}")
        try:
            async with asyncio.timeout(self.timeout_s):
                output = await self.engine.generate(
                    ids, stop=stop, max_new_tokens=min(max_tokens, room), sampling=sampling, key=session
                )
        except TimeoutError as error:
            raise PolicyError(
                f"vLLM did not finish a turn within {self.timeout_s:g} s (rollout.vllm_timeout_s)"
            ) from error
        text = self.decode(output.token_ids)
        return Generation(text, output.finish, output.token_ids, output.logprobs, len(output.token_ids))

    def describe(self) -> dict[str, Any]:
        return {"kind": self.name, "model": self.label, **self.engine.describe()}

    async def aclose(self) -> None:
        await self.engine.aclose()

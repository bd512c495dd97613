"""Servers on loopback that verifiers asks for turns: one that replays written turns over chat completions, and one that is to
the trainer's client what vLLM is, with a tiny model of real weights behind it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import torch
from aiohttp import web

Script = dict[str, list[Any]]
"""For each question its turns: a text, a list of queries to be called for, or the status of a refusal."""


@asynccontextmanager
async def serving(path: str, answer: Callable[[web.Request], Any]) -> AsyncIterator[str]:
    """The address of a server that answers one path."""
    app = web.Application()
    app.router.add_post(path, answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


class ChatServer:
    """Chat completions, after a script. What it was sent is in `bodies`."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.bodies: list[dict[str, Any]] = []

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.bodies.append(body)
        messages = body["messages"]
        asked = next(question for question in self.script if question in messages[0]["content"])
        turns = self.script[asked]
        number = sum(message["role"] == "assistant" for message in messages)
        said = turns[min(number, len(turns) - 1)]
        if isinstance(said, int):
            return web.json_response({"error": {"message": "out of order"}}, status=said)
        message: dict[str, Any] = {"role": "assistant", "content": said}
        if isinstance(said, list):
            function = {"name": "search", "arguments": json.dumps({"queries": said})}
            calls = [{"id": f"call-{number}", "type": "function", "function": function}]
            message = {"role": "assistant", "content": None, "tool_calls": calls}
        finish = "tool_calls" if isinstance(said, list) else "stop"
        return web.json_response(
            {
                "id": "chat",
                "object": "chat.completion",
                "created": int(time.time()),
                "model": body["model"],
                "choices": [{"index": 0, "message": message, "finish_reason": finish}],
                "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
            }
        )


class TokenServer:
    """vLLM's `/inference/v1/generate`: ids in, ids and log-probabilities out, drawn greedily. What it drew is in `drawn`."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.drawn: list[list[int]] = []
        self.requests: list[dict[str, Any]] = []

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(body)
        ids, logprobs = await asyncio.to_thread(self._draw, body["token_ids"], body["sampling_params"])
        self.drawn.append(ids)
        content = [{"token": f"token_id:{one}", "logprob": logprob} for one, logprob in zip(ids, logprobs, strict=True)]
        choice = {"index": 0, "token_ids": ids, "logprobs": {"content": content}, "finish_reason": "stop"}
        return web.json_response({"request_id": "generated", "choices": [choice]})

    @torch.no_grad()
    def _draw(self, prompt: list[int], sampling: dict[str, Any]) -> tuple[list[int], list[float]]:
        ids: list[int] = []
        logprobs: list[float] = []
        while len(ids) < (sampling.get("max_tokens") or 200):
            scores = self.model(input_ids=torch.tensor([prompt + ids])).logits[0, -1].log_softmax(-1)
            ids.append(int(scores.argmax()))
            logprobs.append(float(scores[ids[-1]]))
            if ids[-1] in sampling["stop_token_ids"]:
                break
        return ids, logprobs


class WrittenTurns(TokenServer):
    """The same without a model: turn after turn as it was written."""

    def __init__(self, tokenizer: Any, turns: list[str]) -> None:
        super().__init__(None, tokenizer)
        self.turns = turns

    def _draw(self, prompt: list[int], sampling: dict[str, Any]) -> tuple[list[int], list[float]]:
        ids = self.tokenizer.encode(self.turns[len(self.drawn)], add_special_tokens=False)
        return ids, [-0.5] * len(ids)

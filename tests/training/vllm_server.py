"""`vllm serve` as TRL's client knows it, over the stand-in: `vllm_server.py MODEL PORT`.

Also importable: `make_app` without a model answers the questions a trainer asks at its start.
"""

from __future__ import annotations

import sys
from collections import Counter
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


class Server:
    """The model, the trainer's connection and what was asked for so far."""

    def __init__(self, llm: Any, config: dict[str, Any]) -> None:
        self.llm, self.config = llm, config
        self.counts: Counter[str] = Counter()
        self.in_flight = self.max_in_flight = 0
        self.last_body: dict[str, Any] = {}
        self.trainer: Connection | None = None

    async def completions(self, request: Request) -> Response:
        import vllm

        body = await request.json()
        self.last_body = dict(body)
        self.counts["completions"] += 1
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        try:
            model, prompts = body.pop("model"), body.pop("prompt")
            assert model == self.config["name"]
            assert body.pop("return_token_ids")
            assert body.pop("return_tokens_as_token_ids")
            params = vllm.SamplingParams(**body)
            inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
            outputs = await run_in_threadpool(self.llm.generate, inputs, params)
        finally:
            self.in_flight -= 1
        return JSONResponse({"choices": [self._choice(output) for output in outputs]})

    def _choice(self, output: Any) -> dict[str, Any]:
        (drawn,) = output.outputs
        tokens = [f"token_id:{token}" for token in drawn.token_ids]
        values = [step[token].logprob for step, token in zip(drawn.logprobs, drawn.token_ids, strict=True)]
        return {
            "prompt_token_ids": output.prompt_token_ids,
            "token_ids": drawn.token_ids,
            "finish_reason": drawn.finish_reason,
            "logprobs": {
                "tokens": tokens,
                "token_logprobs": values,
                "top_logprobs": [{token: value} for token, value in zip(tokens, values, strict=True)],
            },
        }

    async def init(self, request: Request) -> Response:
        info = (await request.json())["init_info"]

        def join() -> None:
            while True:  # the trainer opens its end at the same time
                try:
                    self.trainer = Client((info["master_address"], info["master_port"]))
                    return
                except ConnectionRefusedError:
                    continue

        await run_in_threadpool(join)
        self.counts["inits"] += 1
        return JSONResponse({})

    async def update(self, request: Request) -> Response:
        import torch

        names = (await request.json())["update_info"]["names"]

        def receive() -> None:
            assert self.trainer is not None
            for name in names:
                self.llm.load_weights([(name, torch.from_numpy(self.trainer.recv()))])

        await run_in_threadpool(receive)
        self.counts["updates"] += 1
        return JSONResponse({})

    def count(self, name: str) -> Any:
        async def handle(request: Request) -> Response:
            self.counts[name] += 1
            return JSONResponse({"success": True})

        return handle

    async def facts(self, request: Request) -> Response:
        """For the tests: what came in, and the weights as they are now."""
        weights = {name: float(value.double().abs().sum()) for name, value in self.llm.model.named_parameters()}
        seen = {**self.counts, "max_in_flight": self.max_in_flight, "last_body": self.last_body}
        self.counts.clear()
        self.max_in_flight = 0
        return JSONResponse({**seen, "weights": weights})


def make_app(llm: Any = None, *, has_dev_mode: bool = True, name: str = "tiny", **config: Any) -> Starlette:
    values = {"transfer": {"backend": "nccl"}, "logprobs_mode": "processed_logprobs", "max_model_len": 1024, **config}
    server = Server(llm, {**values, "name": name})

    async def health(request: Request) -> Response:
        return Response()

    async def models(request: Request) -> Response:
        return JSONResponse({"data": [{"id": name}]})

    async def info(request: Request) -> Response:
        model = {"logprobs_mode": values["logprobs_mode"], "max_model_len": values["max_model_len"]}
        return JSONResponse({"vllm_config": {"weight_transfer_config": values["transfer"], "model_config": model}})

    async def world(request: Request) -> Response:
        return JSONResponse({"world_size": 1})

    routes = [
        Route("/health", health),
        Route("/v1/models", models),
        Route("/v1/completions", server.completions, methods=["POST"]),
        Route("/stand_in", server.facts),
    ]
    if has_dev_mode:
        routes += [
            Route("/server_info", info),
            Route("/get_world_size", world),
            Route("/init_weight_transfer_engine", server.init, methods=["POST"]),
            Route("/update_weights", server.update, methods=["POST"]),
        ]
        routes += [
            Route(f"/{path}", server.count(path), methods=["POST"])
            for path in ("start_weight_update", "finish_weight_update", "reset_prefix_cache")
        ]
    return Starlette(routes=routes)


if __name__ == "__main__":
    import torch
    import uvicorn

    sys.path.insert(0, str(Path(__file__).with_name("stand_in")))
    import vllm

    torch.set_num_threads(1)
    uvicorn.run(make_app(vllm.LLM(sys.argv[1])), host="127.0.0.1", port=int(sys.argv[2]), log_level="error")

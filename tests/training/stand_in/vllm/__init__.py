"""A stand-in for vLLM where it cannot be installed: the parts that TRL imports, over a small transformers model on a CPU.

It draws two tokens between looks at its text, as vLLM does when it speculates, so it may run past a stop string by one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

TOKENS_BETWEEN_LOOKS = 2


@dataclass
class SamplingParams:
    n: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    max_tokens: int
    logprobs: int
    stop: list[str] = field(default_factory=list)
    stop_token_ids: list[int] = field(default_factory=list)
    include_stop_str_in_output: bool = False
    seed: int | None = None


class RequestOutput(SimpleNamespace):
    """`prompt_token_ids` and `outputs`."""


class LLM:
    """vLLM's class for generation in the process, as far as TRL calls it."""

    newest: LLM

    def __init__(self, model: str, **options: Any) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        LLM.newest = self
        self.torch, self.options, self.lock = torch, options, threading.Lock()
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self.num_loaded = self.num_resets = 0
        self.batch_sizes: list[int] = []
        runner = SimpleNamespace(model_runner=SimpleNamespace(model=self))
        self.llm_engine = SimpleNamespace(model_executor=SimpleNamespace(driver_worker=runner))

    def load_weights(self, pairs: Iterable[tuple[str, Any]]) -> None:
        for name, tensor in pairs:
            self.model.get_parameter(name).data.copy_(tensor)
            self.num_loaded += 1

    def reset_prefix_cache(self) -> None:
        self.num_resets += 1

    def generate(
        self, prompts: Sequence[dict[str, Any]], sampling_params: Any, use_tqdm: bool = True
    ) -> list[RequestOutput]:
        all_params = sampling_params if isinstance(sampling_params, list) else [sampling_params] * len(prompts)
        self.batch_sizes.append(len(prompts))
        return [
            RequestOutput(
                prompt_token_ids=prompt["prompt_token_ids"], outputs=[self._draw(prompt["prompt_token_ids"], params)]
            )
            for prompt, params in zip(prompts, all_params, strict=True)
        ]

    def _draw(self, prompt: list[int], params: SamplingParams) -> SimpleNamespace:
        assert (params.n, params.top_p, params.top_k, params.min_p, params.repetition_penalty) == (1, 1.0, 0, 0.0, 1.0)
        torch = self.torch
        generator = torch.Generator()
        if params.seed is not None:
            generator.manual_seed(params.seed)
        ids: list[int] = []
        logprobs: list[dict[int, SimpleNamespace]] = []
        reason, cache, fed = "length", None, torch.tensor([prompt])
        with self.lock, torch.no_grad():
            while len(ids) < params.max_tokens:
                out = self.model(input_ids=fed, past_key_values=cache, use_cache=True)
                cache = out.past_key_values
                scores = torch.log_softmax(out.logits[0, -1].double() / (params.temperature or 1.0), -1)
                if params.temperature > 0:
                    token = int(torch.multinomial(scores.exp(), 1, generator=generator))
                else:
                    token = int(scores.argmax())
                ids.append(token)
                logprobs.append({token: SimpleNamespace(logprob=float(scores[token]), rank=1)})
                fed = torch.tensor([[token]])
                text = self.tokenizer.decode(ids, skip_special_tokens=True)
                has_stop = len(ids) % TOKENS_BETWEEN_LOOKS == 0 and any(stop in text for stop in params.stop)
                if has_stop or token in params.stop_token_ids:
                    reason = "stop"
                    break
        return SimpleNamespace(token_ids=ids, logprobs=logprobs, finish_reason=reason)

"""The portable engine: gathers the turns of all live rollouts and runs them as one padded `model.generate`.

A batch starts when every live rollout waits, or `timeout_s` after the engine became idle: measured within 5 % of a
hand-written lock-step loop, while starting at once splits 64 rollouts into 2 and 62 and pays the steps twice. Works for
any causal model of transformers; keeps no cache between turns. It is the reference the slot engine is tested against.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from parallelsearch.errors import PolicyError
from parallelsearch.limits import LOOP_LENGTH, goes_in_circles
from parallelsearch.policy.engine import draw
from parallelsearch.policy.engine.base import LOOP_CHECK, Request
from parallelsearch.policy.engine.model import ModelEngine, as_policy_error
from parallelsearch.policy.engine.stops import StopBank

if TYPE_CHECKING:
    from collections.abc import Iterator


class BatchEngine(ModelEngine):
    """Static batches behind a barrier."""

    name = "batch"

    def __init__(
        self,
        model: Any,
        bank: StopBank,
        eos_ids: Iterable[int],
        max_context: int,
        *,
        deterministic: bool = False,
        dtype: torch.dtype | None = None,
        max_batch: int = 512,
        timeout_s: float = 0.25,
    ) -> None:
        super().__init__(model, bank, eos_ids, max_context, deterministic=deterministic, dtype=dtype)
        self.max_batch = max_batch
        self.timeout_s = timeout_s
        self.batch_sizes: list[int] = []
        self._idle_since_s = time.monotonic()
        self._round: list[Request] = []  # taken from the queue, more than one batch holds
        self._running: list[Request] = []
        self._endings = draw.Endings(bank, self.eos_ids, model.config.get_text_config().vocab_size, model.device)

    def close(self) -> None:
        with self._wake:
            for request in self._running:
                request.is_cancelled = True
        super().close()

    def _work(self) -> None:
        while (batch := self._next_batch()) is not None:
            try:
                with self._at_work():
                    self._run(batch)
            except Exception as error:
                for request in batch:
                    request.fail(as_policy_error(error))
            for request in batch:
                if request.is_cancelled:
                    request.fail(PolicyError("the local engine was closed"))
            with self._wake:
                self._running = []
                self._idle_since_s = time.monotonic()

    def _next_batch(self) -> list[Request] | None:
        with self._wake:
            while not self._is_closing:
                self._drop_cancelled()
                self._round = [request for request in self._round if not request.is_cancelled]
                delay_s = 0.0 if self._round else self._delay_s(time.monotonic())
                if delay_s == 0:
                    if not self._round:
                        order = sorted(self._waiting, key=lambda request: request.key)
                        self._round, self._waiting = (order if self.deterministic else self._waiting), []
                    self._running, self._round = self._round[: self.max_batch], self._round[self.max_batch :]
                    return self._running
                self._rest(delay_s)
            self._waiting += self._round
            self._fail_waiting()
            return None

    def _delay_s(self, now: float) -> float | None:
        """How long to wait before the next batch; None: until something happens."""
        if not self._waiting:
            return None
        if self._everyone_waits() or (len(self._waiting) >= self.max_batch and not self.deterministic):
            return 0
        if self.deterministic:
            return None
        first = min(request.arrived_s for request in self._waiting)
        return max(0, max(first, self._idle_since_s) + self.timeout_s - now)

    def _run(self, batch: list[Request]) -> None:
        from transformers import GenerationConfig
        from transformers.generation import LogitsProcessorList, StoppingCriteriaList

        self._enter_eval()
        self._endings.refresh()
        self.batch_sizes.append(len(batch))
        pad = self.eos_ids[0] if self.eos_ids else 0
        width = max(len(request.ids) for request in batch)
        ids = torch.full((len(batch), width), pad, dtype=torch.long)
        mask = torch.zeros((len(batch), width), dtype=torch.long)
        for row, request in enumerate(batch):
            ids[row, width - len(request.ids) :] = torch.tensor(request.ids)
            mask[row, width - len(request.ids) :] = 1
        step = _Step(batch, self._endings, self.model.device)
        config = GenerationConfig(
            do_sample=False,
            max_new_tokens=max(request.max_new_tokens for request in batch),
            pad_token_id=pad,
        )
        with (
            _neutral_defaults(self.model, config),
            torch.autocast(self.model.device.type, dtype=self.dtype, enabled=self.dtype != self.model.dtype),
        ):
            self.model.generate(
                input_ids=ids.to(self.model.device),
                attention_mask=mask.to(self.model.device),
                generation_config=config,
                logits_processor=LogitsProcessorList([_Tap(step)]),
                stopping_criteria=StoppingCriteriaList([_Watch(step)]),
            )
        step.deliver()
        self.stats["steps"] += len(step.tokens)
        self.stats["row_steps"] += len(step.tokens) * len(batch)
        self.stats["useful"] += sum(len(request.token_ids) for request in batch)


@contextmanager
def _neutral_defaults(model: Any, config: Any) -> Iterator[None]:
    """`generate` fills what a config leaves open from the model's own (a repetition penalty, say): not here."""
    saved, model.generation_config = model.generation_config, config
    try:
        yield
    finally:
        model.generation_config = saved


class _Step:
    """What the two hooks of `generate` share: the current step's log-probabilities and each row's state."""

    def __init__(self, batch: list[Request], endings: draw.Endings, device: torch.device) -> None:
        def column(values: Iterable[int | float], dtype: torch.dtype) -> Tensor:
            return torch.tensor(list(values), dtype=dtype, device=device)

        self.batch, self.endings = batch, endings
        words = [draw.seed_words(request.sampling.seed) for request in batch]
        self.seeds = column((w[0] for w in words), torch.long), column((w[1] for w in words), torch.long)
        self.lengths = column((len(request.ids) for request in batch), torch.long)
        self.temperature = column((request.sampling.temperature for request in batch), torch.float32)
        self.top_p = column((request.sampling.top_p for request in batch), torch.float32)
        self.max_new = column((request.max_new_tokens for request in batch), torch.long)
        self.states = column((request.start_state for request in batch), torch.long)
        self.codes = torch.zeros(len(batch), dtype=torch.long, device=device)
        self.counts = torch.zeros(len(batch), dtype=torch.long, device=device)
        self.has_noise = any(request.sampling.temperature > 0 for request in batch)
        self.has_cut = any(request.sampling.top_p < 1 for request in batch)
        self.streams = [row for row, request in enumerate(batch) if request.on_tokens is not None]
        self.logprobs = torch.zeros(0)
        self.tokens: list[Tensor] = []
        self.chosen: list[Tensor] = []

    def scores(self, logits: Tensor) -> Tensor:
        self.logprobs = draw.log_probs(logits, self.temperature)
        keys = draw.row_keys(*self.seeds, self.lengths + len(self.tokens)) if self.has_noise else None
        return draw.choice_scores(self.logprobs, self.temperature, self.top_p if self.has_cut else None, keys)

    def watch(self, tokens: Tensor) -> Tensor:
        runs = self.codes == draw.RUNNING
        self.tokens.append(tokens)
        self.chosen.append(self.logprobs.gather(1, tokens[:, None])[:, 0])
        self.counts += runs
        states, codes = self.endings.advance(self.states, tokens, self.counts, self.max_new)
        self.states = torch.where(runs, states, self.states)
        self.codes = torch.where(runs, codes, self.codes)
        if self.streams:
            self._stream(tokens, runs)
        if len(self.tokens) >= LOOP_LENGTH and len(self.tokens) % LOOP_CHECK == 0:
            self._end_loops()
        cancelled = [row for row, request in enumerate(self.batch) if request.is_cancelled]
        if cancelled:
            self.codes[cancelled] = draw.VACANT
        return self.codes != draw.RUNNING

    def _end_loops(self) -> None:
        rows, codes = torch.stack(self.tokens, 1).tolist(), self.codes.tolist()
        caught = [row for row, ids in enumerate(rows) if codes[row] == draw.RUNNING and goes_in_circles(ids)]
        if caught:
            self.codes[caught] = draw.FINISH.index("length")

    def _stream(self, tokens: Tensor, runs: Tensor) -> None:
        drawn, still = tokens.tolist(), runs.tolist()
        for row in self.streams:
            if still[row]:
                self.batch[row].stream([drawn[row]])

    def deliver(self) -> None:
        tokens, chosen = torch.stack(self.tokens, 1).tolist(), torch.stack(self.chosen, 1).tolist()
        for row, (count, code) in enumerate(zip(self.counts.tolist(), self.codes.tolist(), strict=True)):
            request = self.batch[row]
            request.token_ids, request.logprobs = tokens[row][:count], chosen[row][:count]
            finish = draw.FINISH[code] if code < len(draw.FINISH) else None
            if finish is not None:
                request.resolve(finish)


class _Tap:
    """The logits processor: sees the logits, hands back scores whose arg-max is the draw."""

    def __init__(self, step: _Step) -> None:
        self._step = step

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return self._step.scores(scores)


class _Watch:
    """The stopping criterion: sees the drawn token, says which rows are done."""

    eos_token_id = None
    """`generate` pads finished rows only when a criterion has this attribute."""

    def __init__(self, step: _Step) -> None:
        self._step = step

    def __call__(self, input_ids: Tensor, scores: object, **options: object) -> Tensor:
        return self._step.watch(input_ids[:, -1])

"""Drawing tokens and ending rows, in tensor operations both local engines share.

The noise depends on the rollout alone: it is hashed from (seed, position in the trajectory, token). A row's draw does
not depend on what runs beside it, nor on the engine, so that a resumed run is the same run. The draw is Gumbel-max: the
token with the largest log-probability plus noise. The hash is a 32-bit multiply-and-shift mixer with two keys a row,
written in plain tensor operations that run on any device and inside a CUDA graph.

Log-probabilities are of the distribution at the given temperature, in float32, before `top_p` cuts its tail; at
temperature 0 they are those of the model itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import torch
from torch import Tensor

from parallelsearch.policy.base import Finish
from parallelsearch.policy.engine.stops import StopBank

RUNNING: Final = 0
FINISH: Final[tuple[Finish | None, ...]] = (None, "stop", "eos", "length")
"""The finish a row's code stands for; code 0 is a row that runs, codes past the end are rows without a request."""
VACANT: Final = len(FINISH)

_MASK32 = 0xFFFFFFFF
_NUMBERS_IN_CACHE = 200_000
_HEAD = 1024


def _signed(value: int) -> int:
    """The number whose 32 bits are those of `value`, as an int32 tensor holds it."""
    return value - (1 << 32) if value >= 1 << 31 else value


_MULTIPLY_1, _MULTIPLY_2 = _signed(0x7FEB352D), _signed(0x846CA68B)


def seed_words(seed: int) -> tuple[int, int]:
    """The two 32-bit words of a seed, ready for an int64 tensor."""
    return seed & _MASK32, (seed >> 32) & _MASK32


def _mix(words: Tensor) -> Tensor:
    """Mix the low 32 bits of int64 words; the result is below 2**32."""
    words = words & _MASK32
    words = ((words ^ (words >> 16)) * 0x7FEB352D) & _MASK32
    words = ((words ^ (words >> 15)) * 0x846CA68B) & _MASK32
    return words ^ (words >> 16)


def row_keys(seed_low: Tensor, seed_high: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Two int32 keys a row from its seed and the position of the token to be drawn."""
    first = _mix(_mix(seed_low + 0x9E3779B9) ^ seed_high ^ _mix(positions + 0x85EBCA6B))
    second = _mix(first + _mix(positions + 0xC2B2AE35) + seed_low)
    return _to_int32(first), _to_int32(second)


def _to_int32(words: Tensor) -> Tensor:
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def gumbel_noise(keys: tuple[Tensor, Tensor], num_tokens: int) -> Tensor:
    """Standard Gumbel noise, float32, one row for each key pair."""
    if keys[0].device.type != "cpu":
        return _noise(keys[0], keys[1], num_tokens)
    # A few rows at a time stay in the processor's cache through all the passes.
    rows = max(1, _NUMBERS_IN_CACHE // num_tokens)
    blocks = zip(torch.split(keys[0], rows), torch.split(keys[1], rows), strict=True)
    return torch.cat([_noise(first, second, num_tokens) for first, second in blocks])


def _noise(first: Tensor, second: Tensor, num_tokens: int) -> Tensor:
    bits = torch.arange(num_tokens, dtype=torch.int32, device=first.device)[None] ^ first[:, None]
    bits ^= (bits >> 16) & 0xFFFF
    bits *= _MULTIPLY_1
    bits ^= (bits >> 15) & 0x1FFFF
    bits += second[:, None]
    bits *= _MULTIPLY_2
    bits ^= (bits >> 16) & 0xFFFF
    bits &= 0x7FFFFFFF
    # Small values keep 31 bits of resolution: they become the large noise, which decides the draw.
    uniform = bits.to(torch.float32).add_(0.5).mul_(2.0**-31).clamp_(max=1.0 - 2.0**-24)
    return uniform.neg_().log1p_().neg_().log_().neg_()


def log_probs(logits: Tensor, temperature: Tensor) -> Tensor:
    """Float32 log-probabilities at each row's temperature; temperature 0 counts as 1 here."""
    scale = torch.where(temperature > 0, temperature, torch.ones_like(temperature))
    return torch.log_softmax(logits.float() / scale[:, None], dim=-1)


def choice_scores(
    logprobs: Tensor,
    temperature: Tensor,
    top_p: Tensor | None,
    keys: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """Scores whose arg-max is the draw. `keys` None: every row is greedy. `top_p` None: no row cuts its tail."""
    if keys is None:
        return logprobs
    scores = logprobs + gumbel_noise(keys, logprobs.shape[-1]) * (temperature > 0)[:, None]
    if top_p is not None:
        cuts = (temperature > 0) & (top_p < 1)
        scores = scores.masked_fill(_tail(logprobs, torch.where(cuts, top_p, 0.0)) & cuts[:, None], float("-inf"))
    return scores


def _tail(logprobs: Tensor, top_p: Tensor) -> Tensor:
    """True for the tokens outside each row's smallest set that reaches `top_p`."""
    if logprobs.device.type == "cpu" and logprobs.shape[-1] > _HEAD:
        # A full sort costs more than the model here; the head nearly always holds the whole set.
        ordered, order = logprobs.topk(_HEAD, dim=-1)
        if bool((ordered.exp().sum(dim=-1) >= top_p).all()):
            return torch.ones_like(logprobs, dtype=torch.bool).scatter(1, order, _surplus(ordered, top_p))
    ordered, order = logprobs.sort(dim=-1, descending=True)
    return torch.zeros_like(logprobs, dtype=torch.bool).scatter(1, order, _surplus(ordered, top_p))


def _surplus(ordered: Tensor, top_p: Tensor) -> Tensor:
    """A token stays while the mass before it is below `top_p`; the first one always stays."""
    mass = ordered.exp()
    surplus = (mass.cumsum(dim=-1) - mass) >= top_p[:, None]
    surplus[:, 0] = False
    return surplus


class Endings:
    """Decides on the device when a row ends: stop automaton, end-of-sequence ids, number of tokens."""

    def __init__(self, bank: StopBank, eos_ids: Iterable[int], vocab_size: int, device: torch.device) -> None:
        self._bank, self._device, self._version = bank, device, -1
        self._is_eos = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        self._is_eos[list(eos_ids)] = True
        self._delta = torch.zeros((0, vocab_size), dtype=torch.int16, device=device)
        self._accepts = torch.zeros(0, dtype=torch.bool, device=device)

    def refresh(self) -> bool:
        """Copy the tables when a new set of stop strings has come; True if they moved in memory."""
        if self._version == self._bank.version:
            return False
        self._version = self._bank.version
        self._delta = torch.from_numpy(self._bank.delta).to(self._device)
        self._accepts = torch.from_numpy(self._bank.accepts).to(self._device)
        return True

    def advance(self, states: Tensor, tokens: Tensor, counts: Tensor, max_new: Tensor) -> tuple[Tensor, Tensor]:
        """The automaton's next states and each row's code, after `tokens` became number `counts` of the turn."""
        states = self._delta[states, tokens].to(states.dtype)
        codes = torch.where(counts >= max_new, 3, RUNNING)
        codes = torch.where(self._is_eos[tokens], 2, codes)
        return states, torch.where(self._accepts[states], 1, codes)

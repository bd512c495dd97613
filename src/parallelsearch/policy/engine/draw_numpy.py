"""Drawing a token without torch, row by row: the same noise and the same log-probabilities as `draw` has.

`draw` says what they are; this module repeats it in numpy, and a test holds the two together.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from parallelsearch.policy.base import Sampling

_MASK32 = 0xFFFFFFFF
_HEAD = 1024
Row = npt.NDArray[np.float32]


def draw(logits: Row, sampling: Sampling, position: int) -> tuple[int, float]:
    """The token that follows at `position`, and its log-probability."""
    if not np.isfinite(top := logits.max()):
        raise FloatingPointError("the model gave no finite logits")
    scaled = logits - top
    if sampling.temperature > 0:
        scaled /= np.float32(sampling.temperature)
    log_sum = np.float32(np.log(np.exp(scaled).sum(dtype=np.float64)))
    if sampling.temperature == 0:
        token = int(logits.argmax())
        return token, float(scaled[token] - log_sum)
    logprobs = scaled - log_sum
    scores = logprobs + gumbel_noise(sampling.seed, position, len(logits))
    if sampling.top_p < 1:
        kept = _head(logprobs, sampling.top_p)
        token = int(kept[scores[kept].argmax()])
    else:
        token = int(scores.argmax())
    return token, float(logprobs[token])


def _head(logprobs: Row, top_p: float) -> npt.NDArray[np.intp]:
    """The smallest set of tokens that reaches `top_p`."""
    size = min(_HEAD, len(logprobs))
    found = np.argpartition(logprobs, -size)[-size:]
    if np.exp(logprobs[found]).sum() < top_p:  # a sort of everything costs more than the model on a small one
        found = np.arange(len(logprobs))
    order = found[np.argsort(-logprobs[found], kind="stable")]
    mass = np.exp(logprobs[order])
    return order[: max(1, int(np.count_nonzero(mass.cumsum() - mass < top_p)))]


def _mix(word: int) -> int:
    word &= _MASK32
    word = ((word ^ (word >> 16)) * 0x7FEB352D) & _MASK32
    word = ((word ^ (word >> 15)) * 0x846CA68B) & _MASK32
    return word ^ (word >> 16)


def gumbel_noise(seed: int, position: int, num_tokens: int) -> Row:
    """Standard Gumbel noise of a rollout's seed, for the token at this position."""
    low, high = seed & _MASK32, (seed >> 32) & _MASK32
    first = _mix(_mix(low + 0x9E3779B9) ^ high ^ _mix(position + 0x85EBCA6B))
    second = _mix(first + _mix(position + 0xC2B2AE35) + low)
    bits = np.arange(num_tokens, dtype=np.uint32) ^ np.uint32(first)
    bits ^= bits >> 16
    bits *= np.uint32(0x7FEB352D)
    bits ^= bits >> 15
    bits += np.uint32(second)
    bits *= np.uint32(0x846CA68B)
    bits ^= bits >> 16
    bits &= np.uint32(0x7FFFFFFF)
    uniform = np.minimum((bits.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-31), np.float32(1 - 2.0**-24))
    return np.asarray(-np.log(-np.log1p(-uniform)), dtype=np.float32)

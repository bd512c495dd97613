"""The scores of a draw on CUDA in one kernel.

`draw.choice_scores` hashes a number for every token of the vocabulary and turns it into Gumbel noise: some 25 passes over
`(rows, vocabulary)` in memory, about as much traffic as reading the keys and values of a step. Here the same arithmetic is
one elementwise kernel, compiled by torch itself (its jiterator, over NVRTC: no compiler needs to be installed). Whether it
runs here and gives what `draw` gives is tried once; where it does not, there is no kernel, and `draw` is used.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from parallelsearch.policy.engine import draw

Scores = Callable[[Tensor, Tensor, tuple[Tensor, Tensor]], Tensor]
"""Log-probabilities, temperatures and keys of all rows in, scores whose arg-max is the draw out."""

# All operands of such a kernel have one type: keys come as the float32 numbers that have their bits.
SOURCE = """
template <typename T>
T noisy_score(T logprob, T token, T first, T second, T is_drawn) {
    unsigned int bits = static_cast<unsigned int>(token) ^ __float_as_uint(first);
    bits ^= bits >> 16;
    bits *= 0x7FEB352Du;
    bits ^= bits >> 15;
    bits += __float_as_uint(second);
    bits *= 0x846CA68Bu;
    bits ^= bits >> 16;
    bits &= 0x7FFFFFFFu;
    float uniform = (__uint2float_rn(bits) + 0.5f) * 4.656612873077393e-10f;
    uniform = fminf(uniform, 0.99999994039535522f);
    return logprob - is_drawn * logf(-log1pf(-uniform));
}
"""


@lru_cache(maxsize=8)
def fused_scores(vocab_size: int, device: torch.device) -> Scores | None:
    """The kernel for this device, or None where it does not run or does not agree with `draw`."""
    if device.type != "cuda":
        return None
    try:
        with torch.cuda.device(device):
            scores = make_scores(vocab_size, device)
            return scores if agrees(scores, vocab_size, device) else None
    except Exception:  # not in this torch, or not for this device: torch raises many kinds of error there
        return None


def make_scores(vocab_size: int, device: torch.device) -> Scores:
    compiled = torch.cuda.jiterator._create_jit_fn(SOURCE)
    tokens = torch.arange(vocab_size, dtype=torch.float32, device=device)[None]

    def scores(logprobs: Tensor, temperature: Tensor, keys: tuple[Tensor, Tensor]) -> Tensor:
        first, second = (key.view(torch.float32)[:, None] for key in keys)
        result: Tensor = compiled(logprobs, tokens, first, second, (temperature > 0).to(torch.float32)[:, None])
        return result

    return scores


def agrees(scores: Scores, vocab_size: int, device: torch.device) -> bool:
    """The same scores as `draw` on rows drawn and greedy, with keys of every sign."""
    rows = 8
    generator = torch.Generator(device=device).manual_seed(0)
    logits = torch.randn((rows, vocab_size), generator=generator, device=device) * 4
    temperature = torch.tensor([1.0, 0.7, 0.0, 1.0] * (rows // 4), device=device)
    seeds = torch.arange(1, rows + 1, device=device) * 0x5851F42D
    keys = draw.row_keys(seeds & 0xFFFFFFFF, seeds >> 3, torch.arange(rows, device=device) * 97)
    logprobs = draw.log_probs(logits, temperature)
    expected = draw.choice_scores(logprobs, temperature, None, keys)
    return torch.allclose(scores(logprobs, temperature, keys), expected, rtol=1e-5, atol=1e-4)

"""The draw: right distribution, keyed by seed and position alone, top-p, endings on the device, the kernel for a GPU."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import tiny_models
import torch

from parallelsearch.policy.engine import draw
from parallelsearch.policy.engine import draw_kernel as slot_draw
from parallelsearch.policy.engine.stops import StopBank

assert tiny_models  # sets the number of threads


def keys_for(seeds: list[int], positions: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    words = [draw.seed_words(seed) for seed in seeds]
    low, high = torch.tensor([w[0] for w in words]), torch.tensor([w[1] for w in words])
    return draw.row_keys(low, high, torch.tensor(positions))


def pick(logits: torch.Tensor, keys: tuple[torch.Tensor, torch.Tensor], top_p: float = 1.0) -> list[int]:
    rows = len(logits)
    temperature = torch.ones(rows)
    cut = torch.full((rows,), top_p) if top_p < 1 else None
    scores = draw.choice_scores(draw.log_probs(logits, temperature), temperature, cut, keys)
    return [int(i) for i in scores.argmax(-1)]


@pytest.mark.parametrize("along", ["positions", "seeds"])
def test_draws_follow_the_distribution(along: str) -> None:
    torch.manual_seed(1)
    logits = torch.randn(40) * 2
    count = 40_000
    numbers, zeros = list(range(count)), [0] * count
    keys = keys_for(zeros, numbers) if along == "positions" else keys_for(numbers, zeros)
    drawn = torch.bincount(torch.tensor(pick(logits.expand(count, -1), keys)), minlength=40).double()
    expected = torch.softmax(logits.double(), -1) * count
    # Chi-square with 39 degrees of freedom: 1 in 10,000 is above 76.
    assert float(((drawn - expected) ** 2 / expected).sum()) < 76


def test_noise_is_gumbel_and_rows_and_columns_are_unrelated() -> None:
    noise = draw.gumbel_noise(keys_for(list(range(64)), [7] * 64), 20_000).double()
    assert torch.isfinite(noise).all()
    assert float(noise.mean()) == pytest.approx(0.5772, abs=0.005)
    assert float(noise.var()) == pytest.approx(torch.pi**2 / 6, abs=0.02)
    centred = noise - noise.mean()
    assert abs(float((centred[:, 1:] * centred[:, :-1]).mean())) < 0.01
    assert abs(float((centred[1:] * centred[:-1]).mean())) < 0.01


def test_a_row_draws_the_same_whatever_stands_beside_it() -> None:
    torch.manual_seed(0)
    logits = torch.randn(6, 500)
    seeds, positions = [3, 2**40 + 3, 3, -1, 2**63 - 1, 5], [10, 10, 11, 4, 4, 4]
    together = pick(logits, keys_for(seeds, positions))
    alone = [pick(logits[i : i + 1], keys_for([seeds[i]], [positions[i]]))[0] for i in range(6)]
    reversed_rows = pick(logits.flip(0), keys_for(seeds[::-1], positions[::-1]))[::-1]
    assert together == alone == reversed_rows


def test_seed_and_position_both_change_the_draw() -> None:
    logits = torch.zeros(1, 5000)
    base = pick(logits, keys_for([1], [1]))
    others = [pick(logits, keys_for([s], [p])) for s, p in ((2, 1), (1, 2), (1 + 2**32, 1))]
    assert all(other != base for other in others)


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]])).expand(2000, -1)
    keys = keys_for(list(range(2000)), [0] * 2000)
    assert set(pick(logits, keys, top_p=0.7)) == {0, 1}
    assert set(pick(logits, keys, top_p=0.81)) == {0, 1, 2}
    assert set(pick(logits, keys, top_p=0.0)) == {0}


@pytest.mark.parametrize("spread", [0.01, 3.0])
def test_a_large_vocabulary_cuts_where_a_full_sort_would(spread: float) -> None:
    """Flat rows need more tokens than the head that is looked at first; peaked rows do not."""
    torch.manual_seed(3)
    logprobs = torch.log_softmax(torch.randn(5, 6000) * spread, -1)
    top_p = torch.tensor([0.5, 0.9, 0.99, 1.0, 0.0])
    temperature = torch.ones(5)
    scores = draw.choice_scores(logprobs, temperature, top_p, keys_for([1] * 5, list(range(5))))
    for row in range(5):
        ordered = logprobs[row].exp().sort(descending=True).values
        before = ordered.cumsum(0) - ordered
        expected = 6000 if top_p[row] == 1 else max(1, int((before < top_p[row]).sum()))
        assert int(torch.isfinite(scores[row]).sum()) == pytest.approx(expected, abs=1)


def test_temperature_zero_is_greedy_beside_rows_that_sample() -> None:
    torch.manual_seed(0)
    logits = torch.randn(50, 300)
    temperature = torch.tensor([0.0, 1.0] * 25)
    logprobs = draw.log_probs(logits, temperature)
    tokens = draw.choice_scores(
        logprobs, temperature, torch.full((50,), 0.5), keys_for([9] * 50, list(range(50)))
    ).argmax(-1)
    assert torch.equal(tokens[::2], logits[::2].argmax(-1))
    assert not torch.equal(tokens[1::2], logits[1::2].argmax(-1))
    assert torch.allclose(logprobs[0], torch.log_softmax(logits[0], -1))


def test_endings_tell_stop_from_eos_from_length() -> None:
    bank = StopBank([b"a", b"</s", b">x", None, b"b"])
    start = bank.start(("</s>",))
    endings = draw.Endings(bank, [3], 5, torch.device("cpu"))
    assert endings.refresh()
    assert not endings.refresh()
    open_tag = int(bank.delta[start, 1])
    states = torch.tensor([open_tag, start, start, start])
    _, codes = endings.advance(
        states, torch.tensor([2, 3, 4, 4]), torch.tensor([9, 9, 9, 1]), torch.tensor([9, 9, 9, 9])
    )
    assert [draw.FINISH[int(code)] for code in codes] == ["stop", "eos", "length", None]


# ---- the kernel ------------------------------------------------------------------------------------------------------

HOST_NAMES = """
#include <math.h>
#include <string.h>
static unsigned int __float_as_uint(float x) { unsigned int bits; memcpy(&bits, &x, 4); return bits; }
static float __uint2float_rn(unsigned int x) { return (float)x; }
"""
HOST_LOOP = """
extern "C" void run(const float *logprobs, const float *first, const float *second, const float *is_drawn,
                    float *out, int rows, int tokens) {
    for (int r = 0; r < rows; r++)
        for (int t = 0; t < tokens; t++)
            out[r * tokens + t] = noisy_score<float>(logprobs[r * tokens + t], (float)t, first[r], second[r], is_drawn[r]);
}
"""


def plain(logprobs: torch.Tensor, temperature: torch.Tensor, keys: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return draw.choice_scores(logprobs, temperature, None, keys)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_the_kernel_computes_what_the_tensor_operations_do(tmp_path: Path) -> None:
    """Its very source, compiled for the processor: a GPU is not needed to see that the numbers are the same."""
    (tmp_path / "kernel.cpp").write_text(HOST_NAMES + slot_draw.SOURCE + HOST_LOOP)
    library = tmp_path / "kernel.so"
    subprocess.run(["g++", "-O1", "-shared", "-fPIC", str(tmp_path / "kernel.cpp"), "-o", str(library)], check=True)
    compiled = ctypes.CDLL(str(library))

    def scores(
        logprobs: torch.Tensor, temperature: torch.Tensor, keys: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        out = torch.empty_like(logprobs)
        columns = [logprobs, *(key.contiguous().view(torch.float32) for key in keys), (temperature > 0).float(), out]
        compiled.run(*(ctypes.c_void_p(column.data_ptr()) for column in columns), *map(ctypes.c_int, logprobs.shape))
        return out

    assert slot_draw.agrees(scores, 49_152, torch.device("cpu"))


def test_a_kernel_that_draws_otherwise_is_refused() -> None:
    device = torch.device("cpu")
    assert slot_draw.agrees(plain, 500, device)
    assert not slot_draw.agrees(
        lambda logprobs, temperature, keys: plain(logprobs, temperature, keys[::-1]), 500, device
    )
    assert not slot_draw.agrees(lambda logprobs, *_: logprobs, 500, device)
    assert slot_draw.fused_scores(500, device) is None, "there is no kernel without a GPU"
    assert torch.cuda.jiterator._create_jit_fn(slot_draw.SOURCE).kernel_name == "noisy_score"

"""The slot engine by itself: reuse across turns, groups, too few slots, eviction, compaction, growth, attention."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import pytest
import tiny_models
import torch
from test_engines import drawn, one, policy, rollout, rollouts, worst_difference
from torch.utils._python_dispatch import TorchDispatchMode

from parallelsearch.errors import PolicyError
from parallelsearch.policy.base import Sampling
from parallelsearch.policy.engine import cache as slot_cache
from parallelsearch.policy.engine import decode as slot_decode
from parallelsearch.policy.engine import draw
from parallelsearch.policy.engine import slots as slot_engine
from parallelsearch.policy.engine.base import SWITCH_S
from parallelsearch.policy.engine.cache import SlotCache
from parallelsearch.policy.engine.decode import SlotDecoder, SlotRow
from parallelsearch.policy.engine.model import as_policy_error
from parallelsearch.policy.engine.slots import SlotEngine, why_not
from parallelsearch.policy.engine.stops import StopBank
from parallelsearch.policy.local import LocalPolicy
from parallelsearch.trajectory import Segment


def slots(made: LocalPolicy) -> SlotEngine:
    assert isinstance(made.engine, SlotEngine)
    return made.engine


async def settled(made: LocalPolicy) -> SlotEngine:
    """The engine, once its thread has nothing to do."""
    engine = slots(made)
    end = time.monotonic() + 300
    while time.monotonic() < end:
        with engine._wake:
            if engine._is_idle and not engine._released and not engine._running:
                return engine
        await asyncio.sleep(0.005)
    raise AssertionError("the engine did not come to rest")


async def test_a_later_turn_feeds_only_what_is_new() -> None:
    net = tiny_models.model()
    async with policy("slot", net) as made, made.session("s") as key:
        segments = [made.prompt("A long question about many things, with several parts?", "")]
        for turn in range(3):
            before = made.engine.stats["prefill_tokens"]
            result = await one(made, segments, key=key, max_tokens=9)
            fed = made.engine.stats["prefill_tokens"] - before
            # The last drawn token has no keys yet: it is fed together with the insert.
            expected = len(segments[0].token_ids or ()) if turn == 0 else 1 + len(segments[-1].token_ids or ())
            assert fed == expected
            segments += [result.segment(), made.insert("\n<information> a passage </information>\n", "search")]
        assert worst_difference(net, [segments], 0.0) < 1e-4


@pytest.mark.parametrize(("host_s", "expected_s"), [(0.005, SWITCH_S), (SWITCH_S / 10, SWITCH_S / 10)])
async def test_a_busy_event_loop_does_not_keep_the_interpreter_from_the_engine(
    host_s: float, expected_s: float
) -> None:
    """While it works, that is: what was lower already stays, and once it rests the host has its own again."""
    before_s = sys.getswitchinterval()
    seen: list[float] = []
    try:
        sys.setswitchinterval(host_s)
        async with policy("slot", tiny_models.model()) as made, made.session("s") as key:
            made.engine.on_busy = lambda _: seen.append(sys.getswitchinterval())
            await one(made, [made.prompt("A question?", "")], key=key, max_tokens=4)
        assert seen
        assert seen == [pytest.approx(expected_s)] * len(seen)
    finally:
        sys.setswitchinterval(before_s)


async def test_an_edited_history_is_fed_again_from_the_edit_on() -> None:
    net = tiny_models.model()
    async with policy("slot", net) as made, made.session("s") as key:
        prompt = made.prompt("A long question about many things?", "")
        first = await one(made, [prompt], key=key, max_tokens=12)
        cut = Segment("model", "", (first.token_ids or [])[:5], (first.logprobs or [])[:5])
        before = made.engine.stats["reused_tokens"]
        second = await one(made, [prompt, cut, made.insert("!", "notice")], key=key, max_tokens=12)
        assert made.engine.stats["reused_tokens"] - before == len(prompt.token_ids or ()) + 5
        segments = [prompt, cut, made.insert("!", "notice"), second.segment()]
        assert worst_difference(net, [segments], 0.0) < 1e-4
        # The very same ids again: everything is cached but the last token.
        again = await one(made, segments[:3], key=key, max_tokens=12)
        assert again.token_ids == second.token_ids


async def test_rollouts_with_the_same_prompt_are_prefilled_once() -> None:
    net = tiny_models.model()
    async with policy("slot", net, settle_s=300.0) as made:  # until all have asked, however slowly they are started

        async def sample(number: int) -> list[Segment]:
            async with made.session(f"g{number}") as key:
                segments = [made.prompt(["Which one is it?", "Who came first?"][number % 2], "")]
                for _ in range(2):
                    result = await one(made, segments, Sampling(1.0, 1.0, number), key, max_tokens=10, stop=())
                    segments += [result.segment(), made.insert(" so", "search")]
            return segments

        results = await asyncio.gather(*(sample(i) for i in range(10)))
        assert made.engine.stats["copied_rows"] == 8
        assert worst_difference(net, list(results), 1.0) < 1e-4
        assert len({tuple(segments[1].token_ids or ()) for segments in results}) == 10


async def test_more_rollouts_than_slots() -> None:
    net = tiny_models.model()
    async with policy("slot", net, max_slots=3) as made:
        results = await rollouts(made, 14, 0.0)
        engine = await settled(made)
        assert engine._num_slots == 3
        assert sorted(engine._free) == [0, 1, 2]
        assert not engine._parked
    async with policy("slot", net, max_slots=1) as made:
        assert drawn(await rollouts(made, 4, 0.0)) == drawn(results[:4])


@pytest.mark.parametrize(("fits", "num_made"), [(64, 16), (8, 8), (3, 2), (1, 1)])
async def test_slots_of_full_length_are_made_for_the_rollouts_there_are(
    monkeypatch: pytest.MonkeyPatch, fits: int, num_made: int
) -> None:
    """As on a GPU, which may have memory for fewer: others share it."""
    net = tiny_models.model()
    async with policy("slot", net) as made:
        expected = drawn([*await rollouts(made, 3, 0.0), *await rollouts(made, 14, 0.0)])
    empty, asked = SlotCache._empty, []

    def limited(self: SlotCache, slots: int, length: int) -> torch.Tensor:
        asked.append(slots)
        if slots > fits and len(asked) % 3:  # in the middle of the layers, too
            raise torch.OutOfMemoryError("CUDA out of memory")
        return empty(self, slots, length)

    monkeypatch.setattr(SlotCache, "_empty", limited)
    async with policy("slot", net) as made:
        slots(made)._has_full_length = True
        found = await rollouts(made, 3, 0.0)
        engine = await settled(made)
        assert engine.decoder.cache.num_slots == min(8, num_made)
        found += await rollouts(made, 14, 0.0)
        assert drawn(found) == expected
        engine = await settled(made)
        cache = engine.decoder.cache
        assert cache.num_slots == num_made
        assert {one.shape[:2] for one in (*cache.keys, *cache.values)} == {(cache.num_slots, cache.length + 1)}
        assert cache.length == engine._slot_length


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 77.00 MiB."),
        RuntimeError("CUDA error: out of memory\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"),
    ],
)
def test_who_is_short_of_memory_is_told_what_to_lower(error: Exception) -> None:
    said = str(as_policy_error(error))
    assert "max_context" in said
    assert "out of memory" in said.rpartition(": CUDA ")[2]
    assert "\n" not in said


def test_without_memory_to_grow_nothing_is_lost_but_the_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers that had grown are put back, at other addresses: a graph would read what is no longer there."""
    net = tiny_models.model()
    endings = draw.Endings(StopBank([b"x"] * net.config.vocab_size), (), net.config.vocab_size, net.device)
    decoder = SlotDecoder(net, endings, max_slots=8, max_window=4, dtype=torch.float32)
    decoder.reserve(2, 16)
    for number, tensor in enumerate((*decoder.cache.keys, *decoder.cache.values)):
        tensor[:, :16] = number + 1
    decoder._graphs[2, 16, False, False] = object()  # type: ignore[assignment]  # stands for one
    empty, num_made = SlotCache._empty, 0

    def limited(self: SlotCache, slots: int, length: int) -> torch.Tensor:
        nonlocal num_made
        num_made += 1
        if num_made == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return empty(self, slots, length)

    monkeypatch.setattr(SlotCache, "_empty", limited)
    with pytest.raises(torch.OutOfMemoryError):
        decoder.reserve(4, 32)
    assert (decoder.cache.num_slots, decoder.cache.length) == (2, 16)
    for number, tensor in enumerate((*decoder.cache.keys, *decoder.cache.values)):
        assert tensor.shape[:2] == (2, 17)
        assert (tensor[:, :16] == number + 1).all()
    assert not decoder._graphs


async def test_without_memory_for_one_slot_the_rollouts_hear_so(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = SlotCache._empty

    def limited(self: SlotCache, slots: int, length: int) -> torch.Tensor:
        if slots:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return empty(self, slots, length)

    monkeypatch.setattr(SlotCache, "_empty", limited)
    async with policy("slot", tiny_models.model()) as made:
        slots(made)._has_full_length = True
        for _ in range(2):
            with pytest.raises(PolicyError, match="out of memory while generating"):
                await rollout(made, 0, 0.0)
        monkeypatch.setattr(SlotCache, "_empty", empty)
        assert await rollout(made, 0, 0.0)


async def test_newcomers_do_not_take_the_slot_of_a_rollout_in_search() -> None:
    async with policy("slot", max_slots=2, evict_wait_s=300.0) as made:

        async def owner(number: int) -> None:
            async with made.session(f"o{number}") as key:
                segments = [made.prompt(f"owner {number}", "")]
                for _ in range(3):
                    result = await one(made, segments, key=key, max_tokens=4)
                    await asyncio.sleep(0.03)
                    segments += [result.segment(), made.insert(" x", "search")]

        owners = [asyncio.create_task(owner(i)) for i in range(2)]
        await asyncio.sleep(0.02)
        await asyncio.wait_for(asyncio.gather(*owners, *(rollout(made, i, 0.0) for i in range(3))), 400)
        assert made.engine.stats["evicted"] == 0
        assert made.engine.stats["reused_tokens"] > 0


async def test_when_nothing_else_can_run_the_longest_parked_slot_goes() -> None:
    net = tiny_models.model()
    async with (
        policy("slot", net, max_slots=2, evict_wait_s=0.05) as made,
        made.session("a") as a,
        made.session("b") as b,
        made.session("c") as c,
    ):
        histories = {}
        for key in (a, b):
            prompt = made.prompt(f"first {key}", "")
            histories[key] = [prompt, (await one(made, [prompt], key=key, max_tokens=6)).segment()]
        await asyncio.wait_for(one(made, [made.prompt("newcomer", "")], key=c, max_tokens=6), 400)
        engine = await settled(made)
        assert engine.stats["evicted"] == 1
        assert set(engine._parked) == {"b", "c"}
        # The one that lost its slot goes on all the same, from its ids.
        segments = [*histories[a], made.insert(" more", "search")]
        result = await asyncio.wait_for(one(made, segments, key=a, max_tokens=6), 400)
        assert worst_difference(net, [[*segments, result.segment()]], 0.0) < 1e-4


async def test_slots_are_free_after_an_error_and_after_a_cancel() -> None:
    async with policy("slot") as made:

        async def breaks() -> None:
            async with made.session("e") as key:
                await one(made, [made.prompt("x", "")], key=key, max_tokens=3)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await breaks()
        task = asyncio.create_task(rollout(made, 3, 0.0, turns=100))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        engine = await settled(made)
        assert sorted(engine._free) == list(range(engine._num_slots))
        assert not engine._parked
        assert engine.decoder.codes[: engine._num_slots].min() != draw.RUNNING


async def test_rows_move_down_when_others_have_left() -> None:
    net = tiny_models.model()
    async with policy("slot", net) as made:
        prompts = [made.prompt(f"Question number {i}?", "") for i in range(8)]
        results = await asyncio.gather(
            *(one(made, [p], key=str(i), stop=(), max_tokens=3 + 8 * i) for i, p in enumerate(prompts))
        )
        stats = made.engine.stats
        assert stats["moves"] > 0
        assert stats["row_steps"] < 1.4 * stats["useful"]
        segments = [[p, result.segment()] for p, result in zip(prompts, results, strict=True)]
        assert worst_difference(net, segments, 0.0) < 1e-4


async def test_the_cache_grows_with_long_prompts_and_keeps_what_it_holds() -> None:
    net = tiny_models.model()
    async with policy("slot", net) as made, made.session("s") as key:
        segments = [made.prompt("short", "")]
        result = await one(made, segments, key=key, max_tokens=5)
        length = slots(made).decoder.cache.length
        segments += [result.segment(), made.insert(" long passage " * 25, "search")]
        segments.append((await one(made, segments, key=key, max_tokens=5)).segment())
        assert slots(made).decoder.cache.length > length
        assert worst_difference(net, [segments], 0.0) < 1e-4


async def test_a_small_memory_budget_means_fewer_slots() -> None:
    per_token = 2 * 3 * 2 * 16 * 4
    async with policy("slot", memory_bytes=per_token * 129 * 2) as made:
        results = await rollouts(made, 6, 0.0)
        assert slots(made).decoder.cache.bytes_per_token == per_token
        assert slots(made)._num_slots == 2
    async with policy("slot") as made:
        assert drawn(results) == drawn(await rollouts(made, 6, 0.0))
        assert slots(made)._num_slots == 6


async def test_windows_of_several_steps_give_the_same_tokens() -> None:
    """On CUDA the host looks only every few steps; a row that ends in between must not run on."""
    net = tiny_models.model()
    results = []
    for window in (1, 5):
        async with policy("slot", net, window=window) as made:
            results.append(await rollouts(made, 7, 0.9))
        assert worst_difference(net, results[-1], 0.9) < 1e-4
    assert drawn(results[0]) == drawn(results[1])


class NeverAskTheHost(TorchDispatchMode):
    """Refuses what a CUDA graph cannot hold: values read back, shapes that depend on data."""

    forbidden = ("_local_scalar_dense", "nonzero", "masked_select", "unique")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert not any(name in str(func) for name in self.forbidden), func
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("attention", ["folded", "flash"])
@pytest.mark.parametrize(("has_noise", "has_cut"), [(False, False), (True, False), (True, True)])
def test_a_decode_step_holds_nothing_a_graph_cannot(
    has_noise: bool, has_cut: bool, attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = tiny_models.model()
    monkeypatch.setattr(slot_decode, "choose_attention", lambda *_: attention)
    monkeypatch.setattr(slot_cache, "flash_attention", lambda query, *_: query)
    bank = StopBank([b"x"] * net.config.vocab_size)
    start = bank.start(("</search>",))
    endings = draw.Endings(bank, [2], net.config.vocab_size, torch.device("cpu"))
    decoder = SlotDecoder(net, endings, max_slots=8, max_window=4, dtype=torch.float32)
    decoder.refresh()
    decoder.reserve(8, 64)
    rows = [SlotRow(slot, [5, 6, 7, slot + 10], 0, 20, 1.0, 0.9, slot, start) for slot in range(3)]
    first = decoder.prefill(rows, [[] for _ in rows])
    addresses = [column.data_ptr() for column in decoder._columns_of_state()]
    with NeverAskTheHost(), decoder._ready():
        decoder.window_index.zero_()
        for _ in range(4):
            decoder._step(4, 64, has_noise, has_cut)
    assert addresses == [column.data_ptr() for column in decoder._columns_of_state()]
    assert decoder.counts[:4].tolist() == [5, 5, 5, 0]
    assert len(first.tokens) == 3
    assert decoder.out_tokens[:3].unique().numel() > 1


# ---- attention and eligibility ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 5])
@pytest.mark.parametrize("attend", [slot_cache.folded_attention, slot_cache.gqa_attention])
def test_grouped_attention_equals_repeated_keys(attend: Any, length: int) -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 6, length, 16), torch.randn(3, 2, 20, 16), torch.randn(3, 2, 20, 16)
    positions = torch.randint(length, 19, (3, 1)) + torch.arange(length)
    mask = (torch.arange(20) <= positions[:, :, None])[:, None]
    expected = torch.nn.functional.scaled_dot_product_attention(
        query, key.repeat_interleave(3, 1), value.repeat_interleave(3, 1), attn_mask=mask
    )
    assert torch.allclose(attend(query, key, value, mask, None), expected, atol=1e-6)


def spans_by_definition(query: Any, keys: Any, values: Any, spans: slot_cache.Spans, scale: float | None) -> Any:
    """What flash attention computes, row by row: the kernel itself runs on GPUs only."""
    groups = query.shape[1] // keys.shape[2]
    if spans.queries is None:
        parts = list(query)
    else:
        assert query.shape[0] == 1
        assert spans.max_queries == int(spans.queries.diff().max())
        parts = list(query[0].split(spans.queries.diff().tolist(), dim=1))
    outputs = []
    for row, part in enumerate(parts):
        first, count, length = int(spans.starts[row]), int(spans.lengths[row]), part.shape[1]
        assert 0 < count <= spans.max_length
        key, value = (cache.flatten(0, 1)[first : first + count].transpose(0, 1) for cache in (keys, values))
        mask = torch.arange(count) <= torch.arange(count - length, count)[:, None]
        outputs.append(
            torch.nn.functional.scaled_dot_product_attention(
                part, key.repeat_interleave(groups, 0), value.repeat_interleave(groups, 0), attn_mask=mask, scale=scale
            )
        )
    return torch.stack(outputs) if spans.queries is None else torch.cat(outputs, dim=1)[None]


async def test_the_kernel_draws_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    net = tiny_models.model()
    async with policy("slot", net) as made:
        expected = drawn(await rollouts(made, 4, 0.8))
    calls: list[int] = []

    def kernel(logprobs: Any, temperature: Any, keys: Any) -> Any:
        calls.append(len(logprobs))
        return draw.choice_scores(logprobs, temperature, None, keys)

    monkeypatch.setattr(slot_decode, "fused_scores", lambda *_: kernel)
    async with policy("slot", net) as made:
        assert drawn(await rollouts(made, 4, 0.8)) == expected
        assert calls
        calls.clear()
        await rollouts(made, 2, 0.0)
        assert not calls, "greedy rows have no noise"


async def test_attention_over_whole_slots_draws_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything around the kernel: where each row's keys lie, how many count, whose queries stand where."""
    net = tiny_models.model()
    async with policy("slot", net) as made:
        expected = drawn(await rollouts(made, 6, 0.8))
    calls: list[int] = []

    def watched(query: Any, keys: Any, values: Any, spans: slot_cache.Spans, scale: Any) -> Any:
        calls.append(1 if spans.queries is None else len(spans.queries))
        return spans_by_definition(query, keys, values, spans, scale)

    monkeypatch.setattr(slot_decode, "choose_attention", lambda *_: "flash")
    monkeypatch.setattr(slot_cache, "flash_attention", watched)
    async with policy("slot", net) as made:
        assert drawn(await rollouts(made, 6, 0.8)) == expected
        assert made.describe()["attention"] == "flash"
    assert min(calls) == 1, "decoding went through it"
    assert max(calls) > 2, "several rows were fed end to end"


def test_rows_of_any_lengths_are_fed_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh rows, copies of one, and rows that go on, end to end: the tokens that each draws when fed by itself."""
    net = tiny_models.model()

    bank = StopBank([b"x"] * net.config.vocab_size)
    start = bank.start(("</search>",))

    def decoder() -> SlotDecoder:
        endings = draw.Endings(bank, [2], net.config.vocab_size, torch.device("cpu"))
        made = SlotDecoder(net, endings, max_slots=8, max_window=4, dtype=torch.float32)
        made.refresh()
        made.reserve(8, 64)
        return made

    def row(slot: int, length: int, num_cached: int = 0) -> SlotRow:
        return SlotRow(slot, [5 + (7 * slot + i) % 40 for i in range(length)], num_cached, 9, 0.0, 1.0, slot, start)

    first = [row(3, 6), row(1, 17)]
    rows = [row(3, 21, 6), row(6, 1), row(1, 18, 17), row(0, 30)]
    twin = SlotRow(5, rows[3].ids, 0, 9, 0.0, 1.0, 5, start)
    copies: list[list[SlotRow]] = [[], [], [], [twin]]
    alone = decoder()
    for one_row in first:
        alone.prefill([one_row], [[]])
    expected = [alone.prefill([one_row], [[]]) for one_row in [*rows, twin]]
    monkeypatch.setattr(slot_decode, "choose_attention", lambda *_: "flash")
    monkeypatch.setattr(slot_cache, "flash_attention", spans_by_definition)
    packed = decoder()
    packed.prefill(first, [[], []])
    found = packed.prefill(rows, copies)
    assert found.tokens == [window.tokens[0] for window in expected]
    assert torch.allclose(torch.tensor(found.logprobs), torch.tensor([w.logprobs[0] for w in expected]), atol=1e-5)
    for one_row in [*rows, twin]:
        for ours, theirs in zip(packed.cache.keys, alone.cache.keys, strict=True):
            place = one_row.slot, slice(0, len(one_row.ids))
            assert torch.allclose(ours[place], theirs[place], atol=1e-5)
    assert packed.lengths[[3, 6, 1, 0, 5]].tolist() == [21, 1, 18, 30, 30]


def test_rows_end_to_end_are_cut_by_tokens_alone() -> None:
    rows = [
        SlotRow(slot, [1] * length, cached, 9, 0.0, 1.0, 0, 0)
        for slot, length, cached in ((0, 5, 0), (1, 90, 40), (2, 60, 0))
    ]
    assert [len(part) for part in slot_engine._parts(rows, 1000, is_packed=True)] == [3]
    assert [len(part) for part in slot_engine._parts(rows, 60, is_packed=True)] == [2, 1]
    assert [len(part) for part in slot_engine._parts(rows, 1000, is_packed=False)] == [1, 1, 1]


@pytest.mark.parametrize("size", [None, 4])
async def test_a_step_over_whole_slots_is_for_the_rows_that_run(
    monkeypatch: pytest.MonkeyPatch, size: int | None
) -> None:
    """Parked and vacant slots below a running one cost nothing and are not touched; `size` stands for a graph's."""
    net = tiny_models.model()
    prompts = [f"Question number {i}?" for i in range(8)]

    async def draws(made: LocalPolicy) -> list[list[int] | None]:
        async def turns(number: int) -> list[int]:
            async with made.session(f"{number}") as key:
                segments, ids = [made.prompt(prompts[number], "")], []
                for turn in range(2):
                    # Not all end together, however soon they join again: some step has a row too few for its size.
                    count = 3 + (5 * number if turn else 4 * (8 - number))
                    sampling = Sampling(0.9, 1.0, number)
                    result = await one(made, segments, sampling, key, max_tokens=count, stop=())
                    segments += [result.segment(), made.insert(" and more", "search")]
                    ids += result.token_ids or []
                return ids

        return list(await asyncio.gather(*(turns(number) for number in range(8))))

    async with policy("slot", net) as made:
        expected = await draws(made)
    monkeypatch.setattr(slot_decode, "choose_attention", lambda *_: "flash")
    monkeypatch.setattr(slot_cache, "flash_attention", spans_by_definition)
    if size is not None:
        monkeypatch.setattr(SlotEngine, "_size_of_step", lambda self, count: -(-count // size) * size)
    async with policy("slot", net, max_slots=8) as made:
        slots(made).decoder.reserve(8, 128)  # as on a GPU, where the cache is there from the start
        assert await draws(made) == expected
        stats = made.engine.stats
        assert stats["moves"] == 0
        if size is None:
            assert stats["row_steps"] == stats["useful"]
        else:
            assert stats["useful"] < stats["row_steps"] <= stats["useful"] + (size - 1) * stats["steps"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_without_a_gpu_flash_attention_is_not_chosen(dtype: torch.dtype) -> None:
    assert not slot_cache.flash_agrees(6, 2, 16, dtype, torch.device("cpu"))
    assert slot_cache.choose_attention(6, 2, 16, dtype, torch.device("cpu")) == "folded"


def test_the_registered_names_keep_padding_masks() -> None:
    """A trainer that runs under the engine's attention name by accident must still see its padding."""
    slot_cache.register_attention()
    net = tiny_models.model()
    ids = torch.tensor([[0, 0, 5, 6, 7], [9, 8, 5, 6, 7]])
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    with torch.no_grad():
        expected = net(ids, attention_mask=mask).logits[:, -1]
        with slot_cache.attention(net, "folded"):
            got = net(ids, attention_mask=mask).logits[:, -1]
    assert torch.allclose(got, expected, atol=1e-4)


async def test_other_models_fall_back_and_say_why() -> None:
    net = tiny_models.model("gpt2")
    async with policy("auto", net) as made:
        record = made.describe()
        assert record["engine"] == "batch"
        assert "gpt2" in record["engine_reason"]
        assert worst_difference(net, await rollouts(made, 3, 0.0), 0.0) < 1e-4
    sliding = tiny_models.model("qwen2")
    sliding.config.layer_types = ["full_attention", "sliding_attention", "full_attention"]
    assert "full attention" in str(why_not(sliding))
    stretched = tiny_models.model()
    stretched.config.rope_parameters = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    assert "dynamic" in str(why_not(stretched))
    assert why_not(tiny_models.model("qwen3")) is None

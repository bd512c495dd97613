"""Both engines under one contract: same ids, right log-probabilities, the right ends, nobody disturbs anybody."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import tiny_models
import torch

from parallelsearch.errors import PolicyError
from parallelsearch.policy.base import Generation, Sampling
from parallelsearch.policy.engine import base
from parallelsearch.policy.local import LocalPolicy
from parallelsearch.trajectory import Segment

TAGS = ("</search>", "</answer>")
ENGINES = ["batch", "slot"]
GREEDY = Sampling()


@asynccontextmanager
async def policy(engine: str, net: Any = None, **options: Any) -> AsyncIterator[LocalPolicy]:
    made = LocalPolicy(
        net if net is not None else tiny_models.model(), tiny_models.tokenizer(), engine=engine, **options
    )  # type: ignore[arg-type]
    try:
        yield made
    finally:
        await made.aclose()


async def rollout(
    made: LocalPolicy, number: int, temperature: float, turns: int = 3, stop: tuple[str, ...] = TAGS
) -> list[Segment]:
    """Several turns with inserts between them; prompts and lengths differ from rollout to rollout."""
    async with made.session(f"rollout-{number:03}") as key:
        segments = [made.prompt(f"Question {number}: who was it? " * (1 + number % 4), "")]
        for turn in range(turns):
            result = await made.generate(
                segments,
                stop=stop,
                max_tokens=6 + 3 * (number % 5),
                sampling=Sampling(temperature, 1.0, seed=number),
                session=key,
            )
            segments.append(result.segment())
            await asyncio.sleep(0.001 * (number % 3))
            segments.append(made.insert(f"\n<information> passage {number}.{turn} </information>\n", "search"))
    return segments


async def rollouts(made: LocalPolicy, count: int, temperature: float) -> list[list[Segment]]:
    return await asyncio.wait_for(asyncio.gather(*(rollout(made, i, temperature) for i in range(count))), 400)


def drawn(all_segments: list[list[Segment]]) -> list[list[list[int] | None]]:
    return [[segment.token_ids for segment in segments if segment.author == "model"] for segments in all_segments]


def worst_difference(net: Any, all_segments: list[list[Segment]], temperature: float) -> float:
    """Against one plain forward pass over each whole trajectory."""
    worst = 0.0
    for segments in all_segments:
        ids = [i for segment in segments for i in segment.token_ids or ()]
        fresh = tiny_models.fresh_logprobs(net, ids, 1, temperature or 1.0)
        at = 0
        for segment in segments:
            for offset, logprob in enumerate(segment.logprobs or ()):
                worst = max(worst, abs(logprob - fresh[at + offset - 1]))
            at += len(segment.token_ids or ())
    return worst


@pytest.mark.parametrize(("kind", "temperature"), [("llama", 0.0), ("llama", 0.8), ("qwen2", 0.8), ("qwen3", 0.0)])
async def test_engines_agree_token_for_token(kind: str, temperature: float) -> None:
    net = tiny_models.model(kind)
    results = []
    for engine, options in (("batch", {}), ("slot", {}), ("slot", {"max_slots": 3})):
        async with policy(engine, net, **options) as made:
            results.append(await rollouts(made, 8, temperature))
        assert worst_difference(net, results[-1], temperature) < 1e-4
    assert drawn(results[0]) == drawn(results[1]) == drawn(results[2])


async def test_greedy_is_what_generate_gives() -> None:
    net = tiny_models.model()
    async with policy("slot", net) as made:
        segments = await rollout(made, 4, 0.0, turns=1)
    prompt, got = segments[0].token_ids or [], segments[1].token_ids or []
    plain = net.generate(torch.tensor([prompt]), max_new_tokens=len(got), do_sample=False)[0, len(prompt) :].tolist()
    assert got == plain


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_draw_does_not_depend_on_company(engine: str) -> None:
    async with policy(engine) as made:
        together = drawn(await rollouts(made, 9, 1.0))
    async with policy(engine) as made:
        alone = drawn([await rollout(made, i, 1.0) for i in range(9)])
    assert together == alone
    assert len({tuple(ids or ()) for turns in together for ids in turns}) > 20


@pytest.mark.parametrize("engine", ENGINES)
async def test_another_seed_draws_something_else(engine: str) -> None:
    async with policy(engine) as made:
        prompt = made.prompt("Who?", "")
        results = [await one(made, [prompt], Sampling(1.0, 1.0, seed)) for seed in (1, 2, 1)]
    assert results[0].token_ids == results[2].token_ids != results[1].token_ids


async def one(
    made: LocalPolicy, segments: list[Segment], sampling: Sampling = GREEDY, key: str = "one", **options: Any
) -> Generation:
    return await made.generate(
        segments, **({"stop": TAGS, "max_tokens": 24, "sampling": sampling, "session": key} | options)
    )


@pytest.mark.parametrize("engine", ENGINES)
async def test_it_stops_with_the_token_that_completes_the_string(engine: str) -> None:
    async with policy(engine) as made:
        prompt = made.prompt("Where?", "")
        free = await one(made, [prompt], stop=(), max_tokens=30)
        ids = free.token_ids or []
        assert len(ids) == 30
        # A string that ends inside token 12 and begins inside an earlier one.
        pieces = [made.tokenizer.decode([i]) for i in ids]
        target = next(i for i in range(8, 28) if len(pieces[i]) > 1 and pieces[i].isascii() and pieces[i - 1].isascii())
        stop = pieces[target - 1][-1:] + pieces[target][:1]
        first = next(i for i in range(30) if stop in made.decode(ids[: i + 1]))
        stopped = await one(made, [prompt], stop=(stop, "never there"), max_tokens=30)
    assert stopped.finish == "stop"
    assert stopped.token_ids == ids[: first + 1]
    assert stop in stopped.text
    assert stopped.logprobs == pytest.approx((free.logprobs or [])[: first + 1], abs=1e-4)


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_tag_in_the_prompt_does_not_fire_and_sets_of_stops_mix(engine: str) -> None:
    async with policy(engine) as made:
        free = await one(made, [made.prompt("</search> </answer", "")], stop=(), max_tokens=12)
        pieces = [made.tokenizer.decode([i]) for i in free.token_ids or ()]
        letter = next(piece for piece in pieces[2:11] if piece.isascii() and piece)
        both = await asyncio.gather(
            one(made, [made.prompt("</search> </answer", "")], key="a", max_tokens=12),
            one(made, [made.prompt("</search> </answer", "")], key="b", stop=(letter,), max_tokens=12),
        )
    assert both[0].token_ids == free.token_ids
    assert both[0].finish == "length"
    assert both[1].finish == "stop"
    assert letter in both[1].text
    assert len(both[1].token_ids or ()) < 12


@pytest.mark.parametrize("engine", ENGINES)
async def test_end_of_sequence_is_kept_in_ids_and_left_out_of_text(engine: str) -> None:
    net = tiny_models.model()
    with torch.no_grad():
        net.lm_head.weight[2] *= 0
        net.lm_head.weight[2] += net.lm_head.weight[100] * 3  # the end mark wins wherever token 100 is strong
    async with policy(engine, net) as made:
        results = [await one(made, [made.prompt(f"Q{i}", "")], max_tokens=60, stop=()) for i in range(8)]
    ended = [result for result in results if result.finish == "eos"]
    assert ended
    for result in ended:
        assert (result.token_ids or [])[-1] == 2
        assert 2 not in (result.token_ids or [])[:-1]
        assert "<|im_end|>" not in result.text
        assert result.num_tokens == len(result.logprobs or ()) == len(result.token_ids or ())


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_row_that_fills_the_context_ends_with_length(engine: str) -> None:
    async with policy(engine, max_context=70) as made:
        prompt = made.prompt("word " * 12, "")
        size = len(prompt.token_ids or ())
        result = await one(made, [prompt], stop=(), max_tokens=500)
        assert (result.finish, size + len(result.token_ids or ())) == ("length", 70)
        with pytest.raises(PolicyError, match=r"context is full: \d+ tokens.*takes 70.*Lower the number of passages"):
            await one(made, [prompt, result.segment()], stop=())


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_cancelled_rollout_does_not_disturb_the_others(engine: str) -> None:
    async with policy(engine) as made:
        expected = drawn(await rollouts(made, 6, 0.0))
        doomed = asyncio.create_task(rollout(made, 77, 0.0, turns=50))
        others = [asyncio.create_task(rollout(made, i, 0.0)) for i in range(6)]
        await asyncio.sleep(0.05)
        doomed.cancel()
        results = await asyncio.wait_for(asyncio.gather(*others), 400)
        with pytest.raises(asyncio.CancelledError):
            await doomed
        assert drawn(results) == expected
        assert made.engine._live == {}
        assert drawn(await rollouts(made, 6, 0.0)) == expected


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_rollout_that_raises_frees_what_it_held(engine: str) -> None:
    async def breaks(made: LocalPolicy) -> None:
        async with made.session("breaks") as key:
            await one(made, [made.prompt("x", "")], key=key, max_tokens=3)
            raise KeyError("search is broken")

    async with policy(engine) as made:
        results = await asyncio.wait_for(
            asyncio.gather(breaks(made), *(rollout(made, i, 0.0) for i in range(3)), return_exceptions=True), 400
        )
        assert isinstance(results[0], KeyError)
        assert all(isinstance(result, list) for result in results[1:])
        assert made.engine._live == {}


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_failing_forward_is_reported_and_the_engine_goes_on(engine: str) -> None:
    net = tiny_models.model()
    async with policy(engine, net) as made:
        expected = await one(made, [made.prompt("x", "")])

        def explode(*_: Any) -> None:
            raise RuntimeError("no such kernel")

        hook = net.lm_head.register_forward_pre_hook(explode)
        results = await asyncio.gather(
            *(one(made, [made.prompt("x", "")], key=str(i)) for i in range(3)), return_exceptions=True
        )
        assert [type(result) for result in results] == [PolicyError] * 3
        assert "no such kernel" in str(results[0])
        hook.remove()
        assert (await one(made, [made.prompt("x", "")])).token_ids == expected.token_ids


@pytest.mark.parametrize("engine", ENGINES)
async def test_deterministic_batches_repeat_whatever_the_timing(engine: str) -> None:
    """Rows are ordered by key and a batch waits for all, so even the float sums are the same."""

    async def run(delay_s: Callable[[int], float]) -> list[list[Segment]]:
        async def late(made: LocalPolicy, number: int) -> list[Segment]:
            async with made.session(f"k{number}") as key:
                segments = [made.prompt("Q" * (number + 1), "")]
                for turn in range(3):
                    await asyncio.sleep(delay_s(number + turn))
                    result = await one(made, segments, Sampling(1.0, 0.9, number), key, max_tokens=5 + number)
                    segments += [result.segment(), made.insert(" more", "search")]
            return segments

        async with policy(engine, deterministic=True, **({"max_slots": 4} if engine == "slot" else {})) as made:
            return await asyncio.wait_for(asyncio.gather(*(late(made, i) for i in range(7))), 400)

    first = await run(lambda n: 0.003 * (n % 3))
    second = await run(lambda n: 0.004 * ((5 - n) % 4))
    assert drawn(first) == drawn(second)
    logprobs = (
        [[s.logprobs for s in segments] for segments in first],
        [[s.logprobs for s in segments] for segments in second],
    )
    assert logprobs[0] == logprobs[1]


async def test_the_barrier_waits_for_all_live_rollouts() -> None:
    async with policy("batch", timeout_s=300.0) as made:
        await rollouts(made, 12, 0.0)
        assert made.engine.batch_sizes == [12, 12, 12]  # type: ignore[attr-defined]


async def test_a_round_larger_than_a_batch_is_worked_off_before_the_next() -> None:
    async with policy("batch", max_batch=5, deterministic=True) as made:
        results = await rollouts(made, 12, 0.0)
        assert made.engine.batch_sizes == [5, 5, 2] * 3  # type: ignore[attr-defined]
    async with policy("batch") as made:
        assert drawn(await rollouts(made, 12, 0.0)) == drawn(results)


async def test_the_barrier_gives_up_on_a_slow_one() -> None:
    async with policy("batch", timeout_s=0.05) as made, made.session("in search for long"):
        result = await asyncio.wait_for(one(made, [made.prompt("x", "")]), 400)
        assert result.token_ids


@pytest.mark.parametrize("engine", ENGINES)
async def test_the_models_own_penalties_and_training_mode_do_not_leak_in(engine: str) -> None:
    net = tiny_models.model()
    async with policy(engine, net) as made:
        expected = await one(made, [made.prompt("x", "")])
    net.generation_config.repetition_penalty = 3.0
    net.generation_config.top_k = 1
    net.config.attention_dropout = 0.5
    for layer in net.model.layers:
        layer.self_attn.attention_dropout = 0.5
    net.train()
    attention = net.config._attn_implementation
    async with policy(engine, net) as made:
        got = await one(made, [made.prompt("x", "")])
    assert got.token_ids == expected.token_ids
    assert got.logprobs == pytest.approx(expected.logprobs, abs=1e-5)
    assert net.config._attn_implementation == attention
    assert net.generation_config.repetition_penalty == 3.0


@pytest.mark.parametrize("engine", ENGINES)
async def test_reset_after_a_weight_update(engine: str) -> None:
    net = tiny_models.model()
    async with policy(engine, net) as made, made.session("s") as key:
        prompt = made.prompt("A question of some length", "")
        first = await one(made, [prompt], key=key, max_tokens=10)
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.mul_(1.1)
        made.reset()
        segments = [prompt, first.segment(), made.insert(" and", "search")]
        second = await one(made, segments, key=key, max_tokens=10)
    ids = [i for segment in segments for i in segment.token_ids or ()]
    fresh = tiny_models.fresh_logprobs(net, ids + (second.token_ids or []), len(ids))
    assert second.logprobs == pytest.approx(fresh, abs=1e-4)


@pytest.mark.parametrize("engine", ENGINES)
async def test_reset_is_refused_while_turns_run(engine: str) -> None:
    async with policy(engine) as made:
        task = asyncio.create_task(one(made, [made.prompt("x", "")], stop=(), max_tokens=200))
        while not made.engine._num_open:  # noqa: ASYNC110 (it is counted in this loop)
            await asyncio.sleep(0)
        with pytest.raises(PolicyError, match="wait for the rollouts"):
            made.reset()
        await task
        made.reset()


@pytest.mark.parametrize("engine", ENGINES)
async def test_closing_fails_what_runs_and_what_comes_after(engine: str) -> None:
    net, is_running = tiny_models.model(), threading.Event()
    async with policy(engine, net) as made:

        def hold(*_: Any) -> None:
            """The turn is still running when the engine is closed, however long that takes."""
            is_running.set()
            with made.engine._wake:
                made.engine._wake.wait_for(lambda: made.engine._is_closing, 300)

        net.lm_head.register_forward_pre_hook(hold)
        task = asyncio.create_task(one(made, [made.prompt("x", "")], stop=(), max_tokens=400))
        assert await asyncio.to_thread(is_running.wait, 300)
        await asyncio.wait_for(made.aclose(), 400)
        with pytest.raises(PolicyError, match="closed"):
            await asyncio.wait_for(task, 400)
        with pytest.raises(PolicyError, match="closed"):
            await one(made, [made.prompt("x", "")])


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_serves_one_event_loop_after_another(engine: str) -> None:
    made = LocalPolicy(tiny_models.model(), tiny_models.tokenizer(), engine=engine)  # type: ignore[arg-type]
    first = asyncio.run(rollout(made, 1, 0.0))
    second = asyncio.run(rollout(made, 1, 0.0))
    asyncio.run(made.aclose())
    assert drawn([first]) == drawn([second])


@pytest.mark.parametrize("engine", ENGINES)
async def test_the_host_gets_its_switch_interval_back(engine: str) -> None:
    """It is the whole process's: quick while an engine works, as the host had it when all rest."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(0.004)
    seen: list[float] = []
    try:
        async with policy(engine) as one, policy(engine) as other:
            for made in (one, other):
                made.engine.on_busy = lambda _: seen.append(sys.getswitchinterval())
            await asyncio.gather(rollouts(one, 4, 0.0), rollouts(other, 4, 0.0))
            for _ in range(20_000):  # the last result is out before the thread has left its work
                if sys.getswitchinterval() == pytest.approx(0.004):
                    break
                await asyncio.sleep(0.01)
            assert sys.getswitchinterval() == pytest.approx(0.004)
        assert min(seen) == pytest.approx(base.SWITCH_S)
    finally:
        sys.setswitchinterval(before_s)


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_turn_that_goes_in_circles_ends_there_and_disturbs_nobody(engine: str) -> None:
    net = tiny_models.model()
    with torch.no_grad():  # a token then follows from the one before it alone, so that some token comes back
        for layer in net.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    async with policy(engine, net) as made:
        prompts = [made.prompt(f"Question {number}?", "") for number in range(4)]
        ends = [
            await one(made, [prompt], stop=(), max_tokens=400, key=f"alone-{number}")
            for number, prompt in enumerate(prompts)
        ]
        caught = [n for n, end in enumerate(ends) if end.finish == "length" and len(end.token_ids or ()) < 400]
        assert caught
        whole = await asyncio.gather(
            *(one(made, [prompt], stop=(), max_tokens=400, key=str(number)) for number, prompt in enumerate(prompts))
        )
        assert [end.token_ids for end in whole] == [end.token_ids for end in ends]
        again = [prompts[caught[0]], ends[caught[0]].segment(), made.insert(" Go on. ", "search")]
        again.append((await one(made, again, stop=(), max_tokens=30, key=str(caught[0]))).segment())
    assert worst_difference(net, [again], 0.0) < 1e-4
    for number in caught:
        prompt, ids = prompts[number].token_ids or [], ends[number].token_ids or []
        plain = net.generate(torch.tensor([prompt]), max_new_tokens=400, do_sample=False)[0, len(prompt) :].tolist()
        assert plain[: len(ids)] == ids
        size = next(size for size in range(1, 161) if ids[-64 - size : -size] == ids[-64:])
        assert plain[len(ids) - size :] == plain[len(ids) - 2 * size : -size], "what it left out is the same again"

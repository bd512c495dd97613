"""Tokens a second of the local engines against a hand-written lock-step loop, in one run and on the same rollouts.

Each rollout has several turns of given lengths with inserted text and a short wait (the search) between them. Lock-step
pads all rows, runs one `model.generate` for a turn of all of them, and throws away what a row drew past its own length.

Beside the clock stands the processor time of the process: on a shared machine, with --threads 1, the ratio to trust.

    python benchmarks/local_engine.py --layers 4 --lengths mixed --json out.json
    python benchmarks/local_engine.py --device cuda --random --rollouts 512 --rounds 1     # no weights needed
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from dataclasses import dataclass
from typing import Any

import torch

from parallelsearch.policy import models
from parallelsearch.policy.base import Sampling
from parallelsearch.policy.engine.base import Engine
from parallelsearch.policy.engine.batch import BatchEngine
from parallelsearch.policy.engine.slots import SlotEngine
from parallelsearch.policy.engine.stops import StopBank


@dataclass
class Plan:
    """One rollout: its prompt, and for each turn how many tokens to draw, what to insert, how long the search takes."""

    prompt: list[int]
    turns: list[tuple[int, list[int], float]]


def make_plans(args: argparse.Namespace, vocab_size: int) -> list[Plan]:
    rng = random.Random(args.seed)

    def text(length: int) -> list[int]:
        return [rng.randrange(20, vocab_size) for _ in range(length)]

    def length() -> int:
        return 24 if args.lengths == "equal" else rng.randint(8, 72)

    return [
        Plan(text(rng.randint(40, 80)), [(length(), text(60), rng.uniform(0.01, 0.05)) for _ in range(args.turns)])
        for _ in range(args.rollouts)
    ]


def lock_step(model: Any, plans: list[Plan]) -> list[list[list[int]]]:
    """The loop one would write first: all rows at once, left-padded, every turn from scratch."""
    rows = [list(plan.prompt) for plan in plans]
    drawn: list[list[list[int]]] = [[] for _ in plans]
    for turn in range(len(plans[0].turns)):
        width = max(map(len, rows))
        ids = torch.zeros((len(rows), width), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for number, row in enumerate(rows):
            ids[number, width - len(row) :] = torch.tensor(row)
            mask[number, width - len(row) :] = 1
        steps = max(plan.turns[turn][0] for plan in plans)
        output = model.generate(
            input_ids=ids.to(model.device),
            attention_mask=mask.to(model.device),
            max_new_tokens=steps,
            min_new_tokens=steps,
            do_sample=False,
            pad_token_id=0,
        )[:, width:].tolist()
        time.sleep(max(plan.turns[turn][2] for plan in plans))
        for number, plan in enumerate(plans):
            count, insert, _ = plan.turns[turn]
            drawn[number].append(output[number][:count])
            rows[number] += output[number][:count] + insert
    return drawn


async def concurrent(engine: Engine, plans: list[Plan]) -> list[list[list[int]]]:
    """The same rollouts as coroutines that know nothing of each other."""

    async def rollout(number: int, plan: Plan) -> list[list[int]]:
        key = f"{number:05}"
        engine.open_session(key)
        try:
            ids, drawn = list(plan.prompt), []
            for count, insert, wait_s in plan.turns:
                output = await engine.generate(ids, stop=(), max_new_tokens=count, sampling=Sampling(), key=key)
                drawn.append(output.token_ids)
                await asyncio.sleep(wait_s)
                ids = ids + output.token_ids + insert
            return drawn
        finally:
            engine.close_session(key)

    return list(await asyncio.gather(*(rollout(i, plan) for i, plan in enumerate(plans))))


def load(args: argparse.Namespace) -> Any:
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    dtype = getattr(torch, args.dtype or ("bfloat16" if args.device == "cuda" else "float32"))
    if args.random:
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=49152,
            hidden_size=576,
            intermediate_size=1536,
            num_hidden_layers=args.layers or 30,
            num_attention_heads=9,
            num_key_value_heads=3,
            max_position_embeddings=8192,
            rope_theta=100000.0,
            tie_word_embeddings=True,
            initializer_range=0.08,
        )
        model = LlamaForCausalLM(config)
    else:
        with models.quiet_transformers():
            model = AutoModelForCausalLM.from_pretrained(str(models.resolve(args.model)), dtype=torch.float32)
        if args.layers:
            model.model.layers = model.model.layers[: args.layers]
            model.config.num_hidden_layers = args.layers
            if getattr(model.config, "layer_types", None):
                model.config.layer_types = model.config.layer_types[: args.layers]
    model.generation_config.eos_token_id = None  # lengths are given: the end of a turn must not depend on the weights
    return model.to(device=args.device, dtype=dtype).eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--random", action="store_true", help="random weights of SmolLM2's shape")
    parser.add_argument("--layers", type=int, default=4, help="cut the model to so many layers; 0: all")
    parser.add_argument("--rollouts", type=int, default=64)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--lengths", choices=["equal", "mixed"], default="equal", help="24 tokens a turn, or 8 to 72")
    parser.add_argument("--engines", default="lock-step,batch,slot")
    parser.add_argument(
        "--rounds", type=int, default=1, help="measure each engine so often, interleaved; the best counts"
    )
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", choices=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-graphs", action="store_true", help="on CUDA: decode without CUDA graphs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", help="write the figures to this file")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = load(args)
    vocab_size = model.config.vocab_size
    plans = make_plans(args, vocab_size)
    num_tokens = sum(count for plan in plans for count, _, _ in plan.turns)
    bank = StopBank([b"x"] * vocab_size)
    slots = {"max_slots": args.rollouts, "use_graphs": False if args.no_graphs else None}
    engines: dict[str, Engine] = {
        "batch": BatchEngine(model, bank, [], 1024),
        "slot": SlotEngine(model, bank, [], 1024, **slots),
    }
    names = args.engines.split(",")
    best: dict[str, float] = {}
    cpu: dict[str, float] = {}
    tokens: dict[str, list[list[list[int]]]] = {}
    warm = [Plan(plan.prompt, [(4, plan.turns[0][1], 0.0)]) for plan in plans[: min(8, len(plans))]]
    # On CUDA the first run of a shape records its graphs: a whole round warms up.
    warm = plans if args.device == "cuda" else warm
    for name in names:
        run(name, model, engines, warm)
    for _ in range(args.rounds):
        for name in names:
            if name in engines:
                engines[name].stats.clear()
            start, start_cpu = time.perf_counter(), time.process_time()
            tokens[name] = run(name, model, engines, plans)
            cpu[name] = min(cpu.get(name, float("inf")), time.process_time() - start_cpu)
            best[name] = min(best.get(name, float("inf")), time.perf_counter() - start)
    report(args, names, best, cpu, tokens, num_tokens, engines)
    for engine in engines.values():
        engine.close()


def run(name: str, model: Any, engines: dict[str, Engine], plans: list[Plan]) -> list[list[list[int]]]:
    with torch.no_grad():
        result = lock_step(model, plans) if name == "lock-step" else asyncio.run(concurrent(engines[name], plans))
    if model.device.type == "cuda":
        torch.cuda.synchronize()
    return result


def report(
    args: argparse.Namespace,
    names: list[str],
    best: dict[str, float],
    cpu: dict[str, float],
    tokens: dict[str, list[list[list[int]]]],
    num_tokens: int,
    engines: dict[str, Engine],
) -> None:
    reference = names[0]
    rows = []
    for name in names:
        same = sum(a == b for a, b in zip(tokens[name], tokens[reference], strict=True))
        rows.append(
            {
                "engine": name,
                "seconds": round(best[name], 2),
                "tokens_per_s": round(num_tokens / best[name], 1),
                "ratio": round(best[reference] / best[name], 2),
                "cpu_seconds": round(cpu[name], 2),
                "cpu_ratio": round(cpu[reference] / cpu[name], 2),
                "same_rollouts": same,
                "stats": dict(engines[name].stats) if name in engines else {},
            }
        )
    print(f"{args.rollouts} rollouts x {args.turns} turns, {num_tokens} tokens, {args.lengths} lengths, ", end="")
    print(f"{args.layers or 'all'} layers, {args.device}, {args.threads} threads")
    print(
        f"{'engine':10} {'seconds':>8} {'tokens/s':>9} {'x ' + reference:>12} {'cpu s':>8} {'x (cpu)':>8} {'same':>8}"
    )
    for row in rows:
        print(
            f"{row['engine']:10} {row['seconds']:8} {row['tokens_per_s']:9} {row['ratio']:12} "
            f"{row['cpu_seconds']:8} {row['cpu_ratio']:8} {row['same_rollouts']:>5}/{args.rollouts}"
        )
    for name in names:
        if name in engines:
            print(name, dict(sorted(engines[name].stats.items())))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"settings": vars(args), "num_tokens": num_tokens, "engines": rows}, file, indent=1)


if __name__ == "__main__":
    main()

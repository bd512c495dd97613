"""The trained policy on a laptop: `hf:` on torch, llama.cpp bare, and `gguf:`, interleaved on one machine.

Every measurement is a process of its own, so that start-up is part of it. Bare llama.cpp is the binding's own server, called
in its process without HTTP, with the same base, the same LoRA file, the same prompt and as many threads. A rate is that of 96
greedy tokens behind the prompt of the first question, the prompt's own time taken off. The load of the machine stands beside
each row: on a busy one only the ratios of one round say something, and not much.

    python benchmarks/laptop.py --rounds 3
    python benchmarks/laptop.py --rounds 1 --kinds bare ours --threads 1
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

KINDS = ("hf", "bare", "ours")
TRAINED = "smollm2-135m+parallel"
QUESTION = "Who is older, Claude Monet or Camille Pissarro?"
NUM_TOKENS = 96


class Clock:
    """Seconds of the wall and of the processor. On a busy machine, with one thread, the second say more."""

    def __init__(self) -> None:
        self.wall_s, self.cpu_s = time.perf_counter(), time.process_time()

    def stop(self) -> Clock:
        self.wall_s, self.cpu_s = time.perf_counter() - self.wall_s, time.process_time() - self.cpu_s
        return self


def rates(one: Clock, many: Clock) -> dict[str, float]:
    count = NUM_TOKENS - 1
    return {
        "tokens_per_s": count / (many.wall_s - one.wall_s),
        "tokens_per_cpu_s": count / (many.cpu_s - one.cpu_s),
        "prompt_s": one.wall_s,
        "prompt_cpu_s": one.cpu_s,
    }


def bare(threads: int) -> dict[str, float]:
    import xllamacpp

    from parallelsearch.policy.gguf import GgufPolicy, parse_gguf
    from parallelsearch.policy.gguf_lora import Base, as_gguf

    spec = parse_gguf(TRAINED)
    assert spec.adapter is not None
    settings = xllamacpp.CommonParams()
    settings.model.path, settings.port = str(spec.file), 0
    settings.n_ctx, settings.n_parallel, settings.warmup, settings.verbosity = 4096, 1, False, -1
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = threads
    with as_gguf(spec.adapter, Base("llama", 9, 3)) as lora:
        settings.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(str(lora), 1.0)]
        server = xllamacpp.Server(settings)
    ready_s = time.time() - float(os.environ["BEGAN_S"])
    writer = GgufPolicy(parse_gguf(TRAINED), num_threads=1)
    ids = writer.prompt(prompt_of(writer), QUESTION).token_ids
    writer.engine.close()

    def timed(count: int) -> Clock:
        clock = Clock()
        server.handle_completions(
            {"prompt": ids, "n_predict": count, "temperature": 0.0, "ignore_eos": True, "cache_prompt": False}
        )
        return clock.stop()

    one, many = timed(1), timed(NUM_TOKENS)
    return {"start_s": ready_s, **rates(one, many)}


def prompt_of(policy: Any) -> str:
    from parallelsearch.dialects import open_dialect

    return str(open_dialect(policy.dialect).prompt(QUESTION))


async def through_the_package(address: str, threads: int) -> dict[str, float]:
    from parallelsearch.addresses import open_policy, open_search
    from parallelsearch.policy.base import Sampling
    from parallelsearch.rollout import Event, rollout

    if address.startswith("hf:"):
        import torch

        torch.set_num_threads(threads)
        policy: Any = open_policy(address)
    else:
        policy = open_policy(address, num_threads=threads)
    search = open_search("demo")
    ready_s = time.time() - float(os.environ["BEGAN_S"])
    first: list[float] = []

    def note(event: Event) -> None:
        if event.kind == "query" and not first:
            first.append(event.time_s)

    began_s = time.perf_counter()
    done = await rollout(QUESTION, policy, search, on_event=note)
    answer_s = time.perf_counter() - began_s

    async def timed(count: int, key: str) -> Clock:
        policy.engine.reset()
        clock = Clock()
        await policy.generate([done.segments[0]], stop=(), max_tokens=count, sampling=Sampling(), session=key)
        return clock.stop()

    one, many = await timed(1, "one"), await timed(NUM_TOKENS, "many")
    await policy.aclose()
    return {"start_s": ready_s, **rates(one, many), "first_subquery_s": first[0], "answer_s": answer_s}


def measure(kind: str, threads: int) -> dict[str, float]:
    if kind == "bare":
        return bare(threads)
    return asyncio.run(through_the_package(f"{'hf' if kind == 'hf' else 'gguf'}:{TRAINED}", threads))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--one", choices=KINDS, help="measure this one in this process")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one, args.threads)))
        return
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in args.kinds}
    for number in range(args.rounds):
        for kind in args.kinds:
            command = [sys.executable, __file__, "--one", kind, "--threads", str(args.threads)]
            load = os.getloadavg()[0]
            env = os.environ | {"BEGAN_S": str(time.time())}
            output = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout
            found[kind].append(json.loads(output.splitlines()[-1]))
            shown = ", ".join(f"{name} {value:.2f}" for name, value in found[kind][-1].items())
            print(f"round {number + 1}, {kind} (load {load:.1f}): {shown}", flush=True)
    for kind, rows in found.items():
        best = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
        print(kind, json.dumps({name: round(value, 2) for name, value in best.items()}))


if __name__ == "__main__":
    main()

"""Runs through TRL's vLLM support over the stand-in, in a process of its own: TRL looks for vLLM when it is imported.

`vllm_run.py MODEL PORT OUT RESULT`. What needs a GPU, and is stepped over, stands at the top.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import httpx
import torch
from tiny_runs import demo_search, tiny_recipe
from trl.generation.vllm_client import VLLMClient

from free_ports import free_port
from parallelsearch.grammar import STOP_STRINGS
from parallelsearch.policy.base import Sampling
from parallelsearch.training import run as loop
from parallelsearch.training import smoke, vllm_link
from parallelsearch.training.collect import Collector
from parallelsearch.training.metrics import read_metrics
from parallelsearch.training.sampler import sampling_policy
from parallelsearch.training.weights import load_weights
from parallelsearch.trajectory import read_trajectories

MODEL, PORT, OUT, RESULT = sys.argv[1:]
URL = f"http://127.0.0.1:{PORT}"

vllm_link.check_device = lambda: None
meet = VLLMClient.init_communicator
VLLMClient.init_communicator = lambda self, device: meet(self, "cuda")  # a name; only NCCL would touch the device


def facts() -> dict[str, Any]:
    return dict(httpx.get(f"{URL}/stand_in", timeout=400).raise_for_status().json())


def recipe_of(name: str, changes: dict[str, Any]) -> Any:
    fixed = {"model.name": MODEL, "rollout.engine": "vllm", "rollout.vllm_port": int(PORT)}
    fixed |= {"train.steps": 2, "train.eval_every": 1, "rollout.temperature": 0.7}
    fixed["rollout.vllm_group_port"] = free_port()
    return tiny_recipe(Path(OUT) / name, {**fixed, **changes})


def same_words_as_trl() -> dict[str, Any]:
    """One greedy turn through TRL's client and one through the policy's engine."""
    recipe = recipe_of("words", {})
    weights = load_weights(recipe.model, torch.device("cpu"), needs_reference=False, samples_elsewhere=True)
    policy = sampling_policy(recipe, weights)
    engine, prompt = policy.engine, weights.tokenizer.encode("Do ash and oak grow?")
    stop = {"stop": list(engine.bank.strings(engine.bank.start(STOP_STRINGS))), "stop_token_ids": engine.eos_ids}
    kwargs = {**stop, "include_stop_str_in_output": True}
    theirs = VLLMClient(base_url=URL).generate([prompt], temperature=0.0, max_tokens=9, generation_kwargs=kwargs)
    their_body = facts()["last_body"]

    async def ask() -> Any:
        try:
            return await engine.generate(prompt, stop=STOP_STRINGS, max_new_tokens=9, sampling=Sampling(), key="x")
        finally:
            await policy.aclose()

    ours = asyncio.run(ask())
    drawn = {
        "theirs": [theirs["completion_ids"][0], [value for (value,) in theirs["logprobs"][0]]],
        "ours": [ours.token_ids, ours.logprobs],
    }
    return {"their_body": their_body, "our_body": facts()["last_body"], **drawn}


def greedy_rollouts() -> dict[str, Any]:
    """The same questions through the local engine and through the server, from the same weights."""
    found = {}
    for engine in ("batch", "vllm"):
        recipe = recipe_of("greedy", {"rollout.engine": engine})
        weights = load_weights(recipe.model, torch.device("cpu"), needs_reference=False)
        collector = Collector(sampling_policy(recipe, weights), demo_search(), recipe.rollout)
        trajectories = collector.answer(smoke.questions(8))
        collector.close()
        found[engine] = [
            {"ids": t.response_ids(), "mask": t.loss_mask(), "logprobs": t.response_logprobs(), "stop": t.stop}
            | {"finishes": [turn.finish for turn in t.turns]}
            for t in trajectories
        ]
    facts()
    return found


def train(name: str, changes: dict[str, Any]) -> dict[str, Any]:
    recipe = recipe_of(name, changes)
    result = loop.run(recipe, [smoke.questions(40)], smoke.questions(6, seed=9), demo_search(), with_plot=False)
    sampled = [t for path in sorted((result.out / "trajectories").glob("step-*")) for t in read_trajectories(path)]
    record = {"is_finished": result.is_finished, "metrics": read_metrics(result.out / "metrics.jsonl")}
    record["policies"] = [t.policy for t in sampled]
    record["finishes"] = [[turn.finish for turn in t.turns] for t in sampled]
    return record | {"server": facts(), "trained": final_weights(result.last)}


def final_weights(checkpoint: Path) -> dict[str, float]:
    """Of the last checkpoint, an adapter folded in."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    if (checkpoint / "adapter_config.json").is_file():
        base = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
        model = PeftModel.from_pretrained(base, str(checkpoint)).merge_and_unload()
    else:
        model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    return {name: float(value.double().abs().sum()) for name, value in model.named_parameters()}


def llm_facts() -> dict[str, Any]:
    """Of the engine that TRL made in this process."""
    import vllm

    llm = vllm.LLM.newest
    weights = {name: float(value.double().abs().sum()) for name, value in llm.model.named_parameters()}
    return {"batch_sizes": llm.batch_sizes, "num_resets": llm.num_resets, "options": llm.options, "weights": weights}


torch.set_num_threads(1)
results = {
    "words": same_words_as_trl(),
    "greedy": greedy_rollouts(),
    "full": train("full", {}),
    "lora": train("lora", {"model.lora_rank": 4, "train.lr": 0.05}),
    "lora-bfloat16": train("lora-bfloat16", {"model.lora_rank": 4, "train.lr": 0.05, "model.precision": "bfloat16"}),
    "ppo": train("ppo", {"train.algorithm": "ppo", "rollout.vllm_correction": "none"}),
    "colocate": train("colocate", {"rollout.vllm_mode": "colocate"}),
}
results["colocate"]["server"] = llm_facts()
Path(RESULT).write_text(json.dumps(results), encoding="utf-8")

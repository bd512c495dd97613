"""Small cluster runs that are real ones: verl's configuration from a recipe, verl's worker, questions as verl hands them over.

What stands in for GPUs is behind verl's server client: a server that replays written turns, and one that runs the tiny model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
from verl.protocol import DataProto
from verl.workers.rollout.replica import TokenOutput

from parallelsearch.config import parse
from parallelsearch.training.verl import installed
from parallelsearch.training.verl.overrides import verl_overrides
from parallelsearch.training.verl.recipe import VerlRecipe
from parallelsearch.training.verl.rows import row_of_question
from parallelsearch.trajectory import Question

VALUES: dict[str, Any] = {
    "model": {"name": "unset"},
    "data": {"train": "train.parquet", "validation": "validation.parquet"},
    "search": {"address": "demo", "k": 1, "timeout_s": 5.0},
    "rollout": {"max_turns": 2, "max_tokens_per_turn": 64, "max_observation_tokens": 256, "max_tokens": 1000},
    "reward": {"preset": "gated"},
    "train": {
        "algorithm": "grpo",
        "out": "runs/tiny",
        "steps": 2,
        "questions_per_step": 4,
        "samples_per_question": 2,
        "updates_per_step": 1,
        "micro_batch_tokens": 2048,
    },
    "verl": {"gpus_per_node": 1, "max_prompt_tokens": 128, "num_agent_workers": 2},
}
TURNS = (
    "<think> both can be looked up at once </think>\n<search> Claude Monet born ## Camille Pissarro born </search>",
    "<think> 1830 is before 1840 </think>\n<answer> Camille Pissarro </answer>",
)
MONET = Question(
    "Who is older, Claude Monet or Camille Pissarro?", ["Camille Pissarro"], id="m1", dataset="own", kind="parallel"
)


def tiny_recipe(model: Path, changes: Mapping[str, Any] | None = None) -> VerlRecipe:
    return parse(VALUES, VerlRecipe, {"model.name": str(model), **(changes or {})})


def config_of(recipe: VerlRecipe) -> Any:
    """verl's configuration, composed and validated as before a launch."""
    return installed.check_overrides(verl_overrides(recipe))


def batch_of(questions: Sequence[Question], *, validate: bool = False, step: int = 3) -> DataProto:
    """Rows as verl's data loader and trainer hand them to a worker."""
    rows = [row_of_question(question, "train") for question in questions]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    columns["raw_prompt"] = columns.pop("prompt")
    columns["index"] = [row["extra_info"]["index"] for row in rows]
    columns["priority"] = list(range(len(rows)))
    batch = DataProto.from_single_dict({"dummy_tensor": torch.zeros(len(rows), 1)})
    for name, values in columns.items():
        batch.non_tensor_batch[name] = np.empty(len(values), dtype=object)
        batch.non_tensor_batch[name][:] = values
    batch.meta_info = {"global_steps": step, "validate": validate}
    return batch


class ScriptServer:
    """Replays turns as token ids: which one is next follows from how often a request id has asked."""

    def __init__(self, tokenizer: Any, turns: Sequence[str] = TURNS) -> None:
        self.tokenizer = tokenizer
        self.ids = [tokenizer.encode(turn, add_special_tokens=False) for turn in turns]
        self.requests: list[tuple[str, list[int], dict[str, Any]]] = []
        self.num_asked: dict[str, int] = {}

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> TokenOutput:
        self.requests.append((request_id, prompt_ids, sampling_params))
        number = self.num_asked.get(request_id, 0)
        self.num_asked[request_id] = number + 1
        ids = self.ids[min(number, len(self.ids) - 1)]
        return TokenOutput(
            token_ids=ids,
            log_probs=[-0.5] * len(ids),
            stop_reason="completed",
            num_preempted=0,
            extra_fields={"global_steps": 7 + number, "min_global_steps": 7 + number, "max_global_steps": 7 + number},
        )


class ModelServer:
    """The tiny model behind verl's client, through plain `generate` with stop strings: another engine than the package's."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> TokenOutput:
        greedy = sampling_params["temperature"] == 0
        with torch.no_grad():
            output = self.model.generate(
                torch.tensor([prompt_ids]),
                do_sample=not greedy,
                max_new_tokens=sampling_params["max_tokens"],
                stop_strings=sampling_params["stop"],
                tokenizer=self.tokenizer,
                return_dict_in_generate=True,
                output_logits=True,
            )
        ids = output.sequences[0, len(prompt_ids) :].tolist()
        scores = torch.log_softmax(torch.cat(output.logits), dim=-1)
        log_probs = scores[torch.arange(len(ids)), torch.tensor(ids)].tolist()
        extra = {"global_steps": 1, "min_global_steps": 1, "max_global_steps": 1}
        return TokenOutput(token_ids=ids, log_probs=log_probs, stop_reason="completed", extra_fields=extra)


def worker_of(recipe: VerlRecipe, server: Any) -> AgentLoopWorker:
    """verl's own worker, in this process."""
    return AgentLoopWorker(config_of(recipe), server, None, None)

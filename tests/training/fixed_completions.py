"""One update on trajectories from a file, in one process or several: `fixed_completions.py TRAJECTORIES OUT RESULT
[section.key=value ...]`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from tiny_runs import demo_search, tiny_model, tiny_recipe

from parallelsearch.training import smoke
from parallelsearch.training.collect import Collector
from parallelsearch.training.grpo import Plan, SearchTrainer, grpo_config
from parallelsearch.training.models import load_weights
from parallelsearch.training.sampler import sampling_policy
from parallelsearch.trajectory import Question, Trajectory, read_trajectories

TRAJECTORIES, OUT, RESULT, *CHANGES = sys.argv[1:]


class Replay(Collector):
    """Gives each process its share of the trajectories in the file."""

    def sample(self, questions: Sequence[Question], *, seed: int, step: int, first_row: int = 0) -> list[Trajectory]:
        return list(read_trajectories(TRAJECTORIES))[first_row : first_row + len(questions)]


torch.set_num_threads(1)
settings = {"train.steps": 1, "train.micro_batch_tokens": 700, "train.lr": 1e-3}
recipe = tiny_recipe(Path(OUT), settings | {key: json.loads(value) for key, value in (c.split("=") for c in CHANGES)})
config = grpo_config(recipe)
model, tokenizer = tiny_model(1.0)
weights = load_weights(recipe.model, config.device, needs_reference=False, model=model, tokenizer=tokenizer)
collector = Replay(sampling_policy(recipe, weights), demo_search(), recipe.rollout)
trainer = SearchTrainer(recipe, weights, collector, Plan(smoke.questions(24), list(range(4))), config=config)
trainer.train()
log = trainer.state.log_history[0]
if trainer.accelerator.is_main_process:
    checksum = sum(float(parameter.detach().double().abs().sum()) for parameter in trainer.model.parameters())
    record = {"loss": log["loss"], "grad_norm": log["grad_norm"], "checksum": checksum}
    Path(RESULT).write_text(json.dumps({**record, "world": trainer.accelerator.num_processes}), encoding="utf-8")
collector.close()

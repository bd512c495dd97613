"""One update on trajectories from a file, in one process or several."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tiny_runs import demo_search, tiny_model, tiny_recipe

from parallelsearch.training import smoke
from parallelsearch.training.collect import Collector
from parallelsearch.training.grpo import Plan, SearchTrainer, grpo_config
from parallelsearch.training.sampler import sampling_policy
from parallelsearch.training.weights import load_weights
from parallelsearch.trajectory import Question, Trajectory, read_trajectories


class Replay(Collector):
    """Gives each process its share of the trajectories."""

    trajectories: list[Trajectory]

    def sample(self, questions: Sequence[Question], *, seed: int, step: int, first_row: int = 0) -> list[Trajectory]:
        return self.trajectories[first_row : first_row + len(questions)]


def update(trajectories: str, out: str, result: str, *changes: str) -> None:
    """`changes` are written as `section.key=value`."""
    settings = {"train.steps": 1, "train.micro_batch_tokens": 700, "train.lr": 1e-3}
    recipe = tiny_recipe(
        Path(out), settings | {key: json.loads(value) for key, value in (c.split("=") for c in changes)}
    )
    config = grpo_config(recipe)
    model, tokenizer = tiny_model(1.0)
    weights = load_weights(recipe.model, config.device, needs_reference=False, model=model, tokenizer=tokenizer)
    collector = Replay(sampling_policy(recipe, weights), demo_search(), recipe.rollout)
    collector.trajectories = list(read_trajectories(trajectories))
    trainer = SearchTrainer(recipe, weights, collector, Plan(smoke.questions(24), list(range(4))), config=config)
    trainer.train()
    log = trainer.state.log_history[0]
    if trainer.accelerator.is_main_process:
        checksum = sum(float(parameter.detach().double().abs().sum()) for parameter in trainer.model.parameters())
        record = {"loss": log["loss"], "grad_norm": log["grad_norm"], "checksum": checksum}
        Path(result).write_text(json.dumps({**record, "world": trainer.accelerator.num_processes}), encoding="utf-8")
    collector.close()

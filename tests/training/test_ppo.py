"""PPO: advantages that step over what the model did not write, a critic that is saved and comes back, and learning."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import curve, demo_search, tiny_model, tiny_recipe

from parallelsearch.errors import ParallelSearchError
from parallelsearch.training import checkpoints, smoke
from parallelsearch.training.collect import Collector
from parallelsearch.training.grpo import Plan
from parallelsearch.training.metrics import read_metrics
from parallelsearch.training.ppo import CRITIC_FILE, PpoTrainer, gae, token_rewards
from parallelsearch.training.run import run
from parallelsearch.training.sampler import sampling_policy
from parallelsearch.training.weights import load_weights

CHANGES: dict[str, Any] = {"train.algorithm": "ppo", "ppo.critic_lr": 5e-3}


def ppo_trainer(out: Path, changes: dict[str, Any]) -> PpoTrainer:
    recipe = tiny_recipe(out, {**CHANGES, **changes})
    model, tokenizer = tiny_model(0.7)
    weights = load_weights(
        recipe.model,
        torch.device("cpu"),
        needs_reference=recipe.train.beta > 0,
        needs_critic=True,
        model=model,
        tokenizer=tokenizer,
    )
    collector = Collector(sampling_policy(recipe, weights), demo_search(), recipe.rollout)
    return PpoTrainer(recipe, weights, collector, Plan(smoke.questions(24), list(range(24))))


def first_batch(trainer: PpoTrainer) -> dict[str, Any]:
    trainer.model.train()
    return trainer._generate_and_score_completions(next(iter(trainer.get_train_dataloader())))


# ---- advantages ------------------------------------------------------------------------------------------------------


def test_gae_by_hand() -> None:
    values = torch.tensor([[0.5, 0.2, 0.1]])
    rewards = torch.tensor([[0.0, 0.0, 1.0]])
    advantages, returns = gae(values, rewards, torch.ones(1, 3), gamma=0.9, lam=0.8)
    third = 1.0 - 0.1
    second = (0.9 * 0.1 - 0.2) + 0.72 * third
    first = (0.9 * 0.2 - 0.5) + 0.72 * second
    torch.testing.assert_close(advantages, torch.tensor([[first, second, third]]))
    torch.testing.assert_close(returns, advantages + values)


def test_with_gamma_and_lambda_of_1_the_return_is_the_reward_everywhere() -> None:
    mask = torch.tensor([[1.0, 1.0, 0.0, 1.0, 0.0]])
    values = torch.tensor([[0.3, -0.2, 9.0, 0.7, 9.0]])
    advantages, returns = gae(values, token_rewards(torch.tensor([2.0]), mask), mask)
    assert returns[0].tolist() == pytest.approx([2.0, 2.0, 0.0, 2.0, 0.0])
    assert advantages[0].tolist() == pytest.approx([1.7, 2.2, 0.0, 1.3, 0.0])


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.9, 0.8), (0.99, 0.0)])
def test_masked_tokens_are_stepped_over(gamma: float, lam: float) -> None:
    """Environment tokens anywhere between the model's change nothing for the model's, and get nothing themselves."""
    torch.manual_seed(0)
    mask = (torch.rand(6, 40) < 0.5).float()
    mask[:, 3] = 1.0
    values, rewards = torch.randn(6, 40), torch.randn(6, 40) * mask
    advantages, returns = gae(values, rewards, mask, gamma, lam)
    for row in range(6):
        kept = mask[row] > 0
        alone, alone_returns = gae(
            values[row, kept][None], rewards[row, kept][None], torch.ones(1, int(kept.sum())), gamma, lam
        )
        torch.testing.assert_close(advantages[row, kept], alone[0])
        torch.testing.assert_close(returns[row, kept], alone_returns[0])
        assert not advantages[row, ~kept].any()
        assert not returns[row, ~kept].any()


def test_the_reward_stands_on_the_last_model_token() -> None:
    mask = torch.tensor([[1, 0, 1, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]]).float()
    penalty = torch.full((3, 5), 0.1)
    rewards = token_rewards(torch.tensor([1.0, 2.0, 3.0]), mask, penalty)
    expected = [[-0.1, 0, 0.9, 0, 0], [-0.1, -0.1, -0.1, -0.1, 1.9], [0, 0, 0, 0, 0]]
    torch.testing.assert_close(rewards, torch.tensor(expected))


def test_advantages_of_a_batch_skip_documents_and_notices(tmp_path: Path) -> None:
    trainer = ppo_trainer(tmp_path / "run", {"train.beta": 0.1})
    try:
        batch = first_batch(trainer)
        mask = (batch["completion_mask"] * batch["tool_mask"]).bool()
        assert int((batch["completion_mask"].bool() & ~mask).sum()) > 100
        assert not batch["advantages"][~mask].any()
        assert not batch["returns"][~mask].any()
        inside = batch["advantages"][mask]
        assert float(inside.mean()) == pytest.approx(0, abs=1e-4)
        assert float(inside.std(correction=0)) == pytest.approx(1, abs=1e-3)
        # At the start the policy is its reference and the critic says 0: every return is the trajectory's reward.
        for row, trajectory in enumerate(trainer.trajectories):
            expected = trajectory.rewards["total"]
            assert batch["returns"][row][mask[row]].tolist() == pytest.approx(
                [expected] * int(mask[row].sum()), abs=1e-4
            )
        loss = trainer.accumulate(trainer.model, batch)
        assert math.isfinite(float(loss))
        assert trainer._metrics["train"]["kl"] == pytest.approx([0.0], abs=1e-5)
        assert trainer.beta == 0.1
    finally:
        trainer.collector.close()


def test_values_are_read_before_each_token_whatever_the_padding(tmp_path: Path) -> None:
    trainer = ppo_trainer(tmp_path / "run", {})
    try:
        with torch.no_grad():
            trainer.weights.critic.head.weight.normal_(generator=torch.Generator().manual_seed(0))
        batch = first_batch(trainer)
        with torch.no_grad():
            values = trainer.values(batch)
            for row, trajectory in enumerate(trainer.trajectories):
                prompt = trajectory.prompt_ids()
                length = int(batch["completion_mask"][row].sum())
                ids = prompt + batch["completion_ids"][row, :length].tolist()
                alone = trainer.weights.critic(torch.tensor([ids]))[0, len(prompt) - 1 : len(ids) - 1]
                torch.testing.assert_close(values[row, :length], alone, atol=1e-4, rtol=1e-4)
    finally:
        trainer.collector.close()


# ---- whole runs ------------------------------------------------------------------------------------------------------


def train(out: Path, changes: dict[str, Any], leaning: float = 2.0) -> list[dict[str, Any]]:
    recipe = tiny_recipe(out, {**CHANGES, **changes})
    model, tokenizer = tiny_model(leaning)
    run(recipe, [smoke.questions(100)], [], demo_search(), model=model, tokenizer=tokenizer, with_plot=False)
    return [record for record in read_metrics(out / "metrics.jsonl") if "loss" in record]


@pytest.mark.slow
def test_a_planted_behaviour_is_learned(tmp_path: Path) -> None:
    changes = {"train.steps": 14, "train.questions_per_step": 64, "train.samples_per_question": 1, "train.lr": 5e-3}
    records = train(tmp_path / "run", changes)

    def mean(part: list[dict[str, Any]], name: str) -> float:
        return math.fsum(record[name] for record in part) / len(part)

    assert mean(records[:3], "accuracy") < 0.65
    assert mean(records[-3:], "accuracy") > 0.8
    assert mean(records[-3:], "reward/total") > mean(records[:3], "reward/total") + 0.2
    assert records[-1]["ppo/value_loss"] < records[0]["ppo/value_loss"]
    assert records[-1]["ppo/value"] > 0.4


def test_the_critic_is_saved_and_resumed(tmp_path: Path) -> None:
    steps = {"train.save_every": 2, "train.updates_per_step": 2}
    whole = train(tmp_path / "whole", {**steps, "train.steps": 4})
    train(tmp_path / "parts", {**steps, "train.steps": 2})
    (_, checkpoint), *_ = checkpoints.completed(tmp_path / "parts" / "checkpoints")
    assert (checkpoint / CRITIC_FILE).is_file()
    parts = train(tmp_path / "parts", {**steps, "train.steps": 4})
    assert curve(parts) == curve(whole)
    assert any(record["ppo/value"] != 0 for record in parts)


def test_a_checkpoint_without_critic_is_refused(tmp_path: Path) -> None:
    trainer = ppo_trainer(tmp_path / "run", {})
    try:
        with pytest.raises(ParallelSearchError, match="not written by PPO"):
            trainer.load_extra(tmp_path)
    finally:
        trainer.collector.close()


def test_the_critic_learns_alone_at_first(tmp_path: Path) -> None:
    records = train(tmp_path / "run", {"train.steps": 2, "ppo.critic_warmup_steps": 1})
    assert records[0]["loss"] == 0.0
    assert records[0]["ppo/value_loss"] > 0
    assert records[1]["loss"] != 0.0

"""Guards: bad numbers never reach the weights, collapse is named, and the regulariser pushes only against a loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import demo_search, tiny_model, tiny_recipe

from parallelsearch.rewards import PARTS
from parallelsearch.training import grpo, smoke
from parallelsearch.training.guards import Alarms, GradientGuard, TrainingStoppedError, displacement
from parallelsearch.training.metrics import (
    MetricsLog,
    Sums,
    has_zero_variance,
    read_metrics,
    trajectory_metrics,
)
from parallelsearch.training.recipe import GuardSettings
from parallelsearch.training.run import run
from parallelsearch.trajectory import Query, Segment, Trajectory, Turn


def start(out: Path, changes: dict[str, Any]) -> Any:
    model, tokenizer = tiny_model()
    recipe = tiny_recipe(out, changes)
    arguments = (recipe, [smoke.questions(60)], [], demo_search())
    return lambda: run(*arguments, model=model, tokenizer=tokenizer, with_plot=False), model


def test_a_loss_that_is_no_number_stops_the_run_before_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = grpo.SearchTrainer._compute_loss
    seen: list[list[torch.Tensor]] = []

    def poisoned(self: Any, model: Any, inputs: Any) -> Any:
        loss = original(self, model, inputs)
        if self.step == 1:
            seen.append([parameter.detach().clone() for parameter in self.model.parameters()])
            return loss * float("nan")
        return loss

    monkeypatch.setattr(grpo.SearchTrainer, "_compute_loss", poisoned)
    go, model = start(tmp_path / "run", {})
    with pytest.raises(
        TrainingStoppedError, match=r"stopped at step 1, before the weights were touched.*train\.lr"
    ) as caught:
        go()
    assert all(torch.equal(a, b) for a, b in zip(seen[0], model.parameters(), strict=True))
    assert all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters())
    path = tmp_path / "run" / "bad-batch-000001.pt"
    assert str(path) in str(caught.value)
    saved = torch.load(path, weights_only=True)
    assert saved["step"] == 1
    assert saved["batch"]["completion_ids"].shape[0] == 16
    assert [record["step"] for record in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [1]


def test_an_exploding_gradient_stops_the_run(tmp_path: Path) -> None:
    go, _ = start(tmp_path / "run", {"guards.max_grad_norm": 1e-6})
    with pytest.raises(TrainingStoppedError, match=r"gradient norm .* is above guards\.max_grad_norm = 1e-06"):
        go()


def test_ordinary_numbers_pass(tmp_path: Path) -> None:
    GradientGuard(GuardSettings(), tmp_path).check(0, -0.3, 12.0, {})
    assert not list(tmp_path.iterdir())


# ---- alarms ----------------------------------------------------------------------------------------------------------

HEALTHY = {
    "model_tokens": 80.0,
    "entropy": 0.6,
    "search_rate": 0.95,
    "split/parallel": 0.8,
    "split/sequential": 0.1,
}


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        ("length_collapse", {"model_tokens": 8.0}),
        ("entropy_collapse", {"entropy": 0.001}),
        ("search_collapse", {"search_rate": 0.0}),
        ("serial_collapse", {"split/parallel": 0.0}),
        ("spurious_parallelism", {"split/sequential": 1.0}),
    ],
)
def test_each_collapse_is_named_once_and_after_a_while(name: str, figures: dict[str, float]) -> None:
    alarms = Alarms(GuardSettings(window=5))
    for _ in range(10):
        assert alarms.step(HEALTHY) == []
    heard = [[alarm.name for alarm in alarms.step({**HEALTHY, **figures})] for _ in range(12)]
    assert heard.count([name]) == 1
    assert heard[0] == []
    assert sum(map(len, heard)) == 1
    for _ in range(10):
        alarms.step(HEALTHY)
    again = [[alarm.name for alarm in alarms.step({**HEALTHY, **figures})] for _ in range(12)]
    assert again.count([name]) == 1


def test_alarms_go_on_where_an_interrupted_run_was() -> None:
    records = [HEALTHY] * 6 + [{**HEALTHY, "entropy": 0.0}] * 3
    whole, parts = Alarms(GuardSettings(window=3)), Alarms(GuardSettings(window=3))
    for record in records:
        whole.step(record)
    parts.resume(records)
    step = {**HEALTHY, "split/parallel": 0.0}
    assert [whole.step(step) for _ in range(4)] == [parts.step(step) for _ in range(4)]


def test_alarms_are_recorded_and_can_stop_the_run(tmp_path: Path) -> None:
    changes = {"guards.window": 2, "guards.min_split_parallel": 1.0, "train.steps": 4}
    go, _ = start(tmp_path / "watched", changes)
    go()
    heard = [record["alarms"] for record in read_metrics(tmp_path / "watched" / "metrics.jsonl") if "alarms" in record]
    assert any("serial_collapse" in names for names in heard)
    go, _ = start(tmp_path / "stopped", {**changes, "guards.stop_on_alarm": True})
    with pytest.raises(TrainingStoppedError, match="serial_collapse"):
        go()


# ---- the regulariser -------------------------------------------------------------------------------------------------


def test_displacement_counts_lost_likelihood_of_good_trajectories_only() -> None:
    old = torch.tensor([[-1.0, -1.0, -1.0], [-1.0, -1.0, -1.0], [-1.0, -1.0, -1.0], [-1.0, -1.0, -1.0]])
    new = torch.tensor([[-2.0, -0.5, -9.0], [-2.0, -0.5, -9.0], [-1.2, -0.1, -9.0], [-1.0, -1.0, -9.0]])
    new.requires_grad_(True)
    mask = torch.tensor([[1.0, 1.0, 0.0]] * 4)
    advantages = torch.tensor([1.0, -1.0, 1.0, 0.0])
    # Row 0: good and fell as a whole, by 1.0 on its first token. Row 1: bad. Row 2: rose as a whole. Row 3: did not move.
    value = displacement(new, old, mask, advantages)
    assert float(value.detach()) == pytest.approx(1.0)
    value.backward()
    expected = torch.zeros(4, 3)
    expected[0, 0] = -1.0
    torch.testing.assert_close(new.grad, expected)


# ---- figures ---------------------------------------------------------------------------------------------------------


def test_every_thing_is_counted_apart() -> None:
    split = Trajectory(
        "q",
        [Segment("model", "x")],
        ["yes"],
        kind="parallel",
        answer="yes",
        stop="answer",
        turns=[
            Turn([Query("a"), Query("b", error="no answer")], num_tokens=10, finish="stop"),
            Turn(num_tokens=5, finish="length", problems=["no_action"]),
            Turn(num_tokens=3, finish="stop"),
        ],
        num_llm_calls=3,
        num_searches=1,
        num_subqueries=2,
        rewards={"outcome": 1.0, "decomposition": 0.2, "search_count": 0.1, "format": 0.0, "total": 1.3},
    )
    serial = Trajectory("q", [], ["yes"], kind="sequential", stop="max_turns", num_llm_calls=5)
    means = trajectory_metrics([split, serial], samples_per_question=2).means()
    assert means["reward/total"] == 1.3
    assert means["accuracy"] == 0.5
    assert means["split/parallel"] == 1.0
    assert means["split/sequential"] == 0.0
    assert means["search_failures"] == 0.5
    assert means["invalid_turns"] == 0.5
    assert means["truncated_turns"] == 0.5
    assert means["llm_calls"] == 4.0
    assert means["stop/max_turns"] == 0.5
    assert means["model_tokens"] == 9.0
    assert means["zero_variance_groups"] == 1.0


def test_groups_that_differ_only_in_shaping_are_counted_apart() -> None:
    def sample(outcome: float, shaping: float) -> Trajectory:
        return Trajectory(
            "q",
            [],
            ["yes"],
            rewards=dict.fromkeys(PARTS, 0.0) | {"outcome": outcome, "total": outcome + shaping},
        )

    groups = [(0.0, 0.4), (0.0, 0.2)], [(1.0, 0.4), (0.0, 0.4)], [(1.0, 0.4), (1.0, 0.4)], [(1.0, 0.2), (0.0, 0.4)]
    means = trajectory_metrics([sample(*one) for group in groups for one in group], samples_per_question=2).means()
    assert (means["shaping_only_groups"], means["zero_variance_groups"]) == (0.25, 0.25)


def test_sums_of_processes_add_up_exactly() -> None:
    whole, first, second = Sums(), Sums(), Sums()
    for number in range(10):
        whole.add("x", number)
        (first if number < 3 else second).add("x", number)
    merged = Sums()
    merged.merge([first.pairs, second.pairs])
    assert merged.means() == whole.means() == {"x": 4.5}


@pytest.mark.parametrize(
    ("totals", "expected"),
    [([1.0, 1.0], True), ([0.1 + 0.2, 0.3], True), ([1.0, 0.5], False), ([None, 1.0], True), ([None, None], True)],
)
def test_zero_variance(totals: list[float | None], expected: bool) -> None:
    assert has_zero_variance(totals) == expected


def test_the_log_survives_a_kill_in_the_middle_of_a_line(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path, trackers=())
    for step in range(1, 6):
        log.write(step, {"loss": step / 2, "bad": float("nan")})
    with open(log.path, "a", encoding="utf-8") as file:
        file.write('{"step": 6, "lo')
    again = MetricsLog(tmp_path, trackers=())
    again.resume(3)
    again.write(4, {"loss": 9.0})
    assert [(record["step"], record["loss"]) for record in read_metrics(log.path)] == [
        (1, 0.5),
        (2, 1.0),
        (3, 1.5),
        (4, 9.0),
    ]
    assert read_metrics(log.path)[0]["bad"] is None


def test_alarms_ring_in_a_short_run():
    """With a window of 20 steps nothing could ring in a run of 12."""
    alarms = Alarms(GuardSettings(), num_steps=12)
    rung = [alarm.name for _ in range(12) for alarm in alarms.step({"search_rate": 0.0})]
    assert rung == ["search_collapse"]
    assert not [alarm for _ in range(12) for alarm in Alarms(GuardSettings()).step({"search_rate": 0.0})]


def test_a_sequential_baseline_does_not_collapse_into_itself():
    figures = {"split/parallel": 0.0}
    parallel, sequential = Alarms(GuardSettings(window=2), 8), Alarms(GuardSettings(window=2), 8, may_split=False)
    assert [alarm.name for _ in range(3) for alarm in parallel.step(figures)] == ["serial_collapse"]
    assert [alarm.name for _ in range(3) for alarm in sequential.step(figures)] == []

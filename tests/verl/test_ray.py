"""The loop on a real Ray cluster of two cores, as verl's default trainer runs it: agent workers and reward workers are actors,
and what they make goes through TransferQueue. Only the engine behind the server client is a script."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from cluster_runs import MONET, ScriptServer, batch_of, config_of, tiny_recipe

from parallelsearch.errors import ParallelSearchError
from parallelsearch.training.verl import ready
from parallelsearch.training.verl.reward import step_means

NUM_QUESTIONS, NUM_SAMPLES = 6, 2


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    # Actors unpickle the script's class, so they must find this folder.
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        ray.init(num_cpus=2, num_gpus=1, include_dashboard=False, log_to_driver=False)
        try:
            yield
        finally:
            ray.shutdown()


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_free_gpus_of_a_cluster_are_counted(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    ready.check_gpus(tiny_recipe(tiny))
    with pytest.raises(ParallelSearchError, match=r"takes 2 GPUs, and the Ray cluster at 'auto' has 1 free"):
        ready.check_gpus(tiny_recipe(tiny, {"verl.gpus_per_node": 2}))
    assert ray.is_initialized(), "a connection that was there stays"


@pytest.mark.slow
@pytest.mark.timeout(1_500)  # every actor imports verl: minutes, where others use the processor
@pytest.mark.usefixtures("cluster")
def test_actors_roll_out_and_score_through_transfer_queue(tiny: Path, tokenizer: Any, tmp_path: Path) -> None:
    import transfer_queue as tq
    from verl.experimental.reward_loop import RewardLoopManager
    from verl.trainer.ppo.v1 import AgentLoopManagerTQ
    from verl.utils import tensordict_utils as tu

    small = {"transfer_queue.backend.SimpleStorage.num_data_storage_units": 1, "reward.num_workers": 1}
    config = config_of(tiny_recipe(tiny, {"train.out": str(tmp_path), "verl.overrides": small}))
    config.transfer_queue.enable = True
    tq.init(config.transfer_queue)
    try:
        reward = RewardLoopManager(config=config, rm_resource_pool=None)
        manager = AgentLoopManagerTQ.create(
            config=config,
            llm_client=ScriptServer(tokenizer),
            teacher_client=None,
            reward_loop_worker_handles=reward.reward_loop_worker_handles,
        )
        uids = [f"u{number}" for number in range(NUM_QUESTIONS)]
        columns = dict(batch_of([MONET] * NUM_QUESTIONS).non_tensor_batch)
        columns |= {"uid": np.array(uids, dtype=object), "dummy_tensor": torch.zeros(NUM_QUESTIONS, 1)}
        batch = tu.get_tensordict(columns)
        tu.assign_non_tensor_data(batch, "global_steps", 5)
        tags = [{"is_prompt": True, "status": "pending", "global_steps": 5}] * NUM_QUESTIONS
        tq.kv_batch_put(keys=uids, partition_id="train", tags=tags)
        manager.generate_sequences(batch)
        found = wait_for(tq, uids)
        assert {found[uid]["status"] for uid in uids} == {"finished"}
        keys = sorted(key for key in found if key not in uids)
        assert keys == sorted(f"{uid}_{sample}_0" for uid in uids for sample in range(NUM_SAMPLES))
        # What the trainer computes its staleness from; None would stop it.
        assert {(found[key]["min_global_steps"], found[key]["max_global_steps"]) for key in keys} == {(7, 8)}
        data = tq.kv_batch_get(
            keys=keys, partition_id="train", select_fields=["rm_scores", "response_mask", "responses"]
        )
        for scores, mask in zip(data["rm_scores"].unbind(), data["response_mask"].unbind(), strict=True):
            assert scores[-1].item() == pytest.approx(1.4)
            assert mask[-1].item() == 1
            assert scores[:-1].abs().sum().item() == 0
    finally:
        tq.close()
    (means,) = step_means(tmp_path / "scores")
    assert means["step"] == 5
    assert means["split"] == "train"
    assert means["num_trajectories"] == NUM_QUESTIONS * NUM_SAMPLES
    assert means["decomposition"] == pytest.approx(0.2)


def wait_for(tq: Any, uids: list[str], timeout_s: float = 400.0) -> dict[str, Any]:
    deadline_s = time.monotonic() + timeout_s
    while True:
        found: dict[str, Any] = tq.kv_list("train")["train"]
        if all(found[uid]["status"] in ("finished", "failure") for uid in uids):
            return found
        assert time.monotonic() < deadline_s, found
        time.sleep(0.2)

"""The reward as verl loads it: `pkg://parallelsearch.training.verl.reward`, function `compute_score`.

The agent loop hands over the record of the trajectory, and the same presets score it as everywhere else: nothing is parsed
out of a decoded response. The components come back beside the total, so that verl logs them apart in validation. In training
verl keeps the total alone, so each scoring process also writes its scores down, one JSON object a line.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from parallelsearch import rewards
from parallelsearch.errors import UsageError
from parallelsearch.files import to_json
from parallelsearch.named import look_in
from parallelsearch.rewards import Weights
from parallelsearch.training.recipe import RewardSettings
from parallelsearch.training.verl.rows import targets_of
from parallelsearch.trajectory import Trajectory, trajectory_from_dict

_REWARD = RewardSettings()
_lock = threading.Lock()
_num_logged: dict[str, int] = defaultdict(int)


def record_of(trajectory: Trajectory, is_whole: bool = False) -> str:
    """What the presets and the viewer need of a trajectory, as JSON: texts and searches, without ids and passages. Whole
    for a reward of the caller's own, which may look at anything."""
    record = trajectory.to_dict()
    if is_whole:
        return to_json(record)
    for name in ("policy", "search", "sampling"):  # the same in every record of a run
        record.pop(name, None)
    record["segments"] = [
        {name: segment[name] for name in ("author", "text")}
        for segment in record["segments"]
        if segment["author"] != "prompt"
    ]
    for turn in record["turns"]:
        for query in turn["queries"]:
            query["hits"] = [{**hit, "text": ""} for hit in query["hits"]]
    return to_json(record)


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    *,
    preset: str = _REWARD.preset,
    sha256: str | None = None,
    folder: str | None = None,
    log_folder: str | None = None,
    log_trajectories_every: int = 0,
    **settings: Any,
) -> dict[str, float]:
    """The total as `score`, its components, and what the trajectory did. The keywords are the recipe's `[reward]`, and for a
    reward of the caller's own the folder in which the run was started and what the source was there; others that verl adds
    mean nothing here."""
    info = extra_info or {}
    record = info.get("trajectory")
    if record is None:
        raise UsageError(
            "there is no record of the trajectory to score; it is written by the agent loop 'parallel_search': set "
            "actor_rollout_ref.rollout.agent.default_agent_loop, or start the run with: parallelsearch train RECIPE.toml"
        )
    trajectory = trajectory_from_dict(json.loads(record), "<agent loop>")
    trajectory.golden_answers = targets_of(ground_truth)
    if rewards.is_own(preset):
        _find_own(preset, sha256, folder)
    weights = Weights(**{field.name: settings[field.name] for field in fields(Weights) if field.name in settings})
    reward = rewards.reward(trajectory, preset, weights)
    trajectory.rewards = reward.to_dict()
    scores = {
        "score": reward.total,
        "acc": float(trajectory.is_right),
        **{name: getattr(reward, name) for name in rewards.COMPONENTS},
        **{name: float(getattr(trajectory, name)) for name in rewards.BEHAVIOUR},
    }
    if log_folder:
        _log(Path(log_folder), trajectory, scores, str(info.get("split", "")), log_trajectories_every)
    return scores


@lru_cache
def _find_own(preset: str, sha256: str | None, folder: str | None) -> None:
    """Make sure, once a process, that this node has the reward the run was started with. Workers run in folders of their
    own."""
    if folder is not None:
        look_in(folder)
    here = rewards.describe(preset)["sha256"]
    if sha256 is not None and here != sha256:
        raise UsageError(
            f"the reward '{preset}' is another on {socket.gethostname()} than where the run was started (sha256 {here} "
            f"against {sha256}): every node must have the same file, installed or in {folder}"
        )


def _log(folder: Path, trajectory: Trajectory, scores: Mapping[str, float], split: str, every: int) -> None:
    """Append to this process's files; every node may write into the folder at once."""
    who = f"{socket.gethostname()}-{os.getpid()}"
    line = {
        "step": trajectory.step,
        "split": split,
        "id": trajectory.id,
        "dataset": trajectory.dataset,
        "kind": trajectory.kind,
        "stop": trajectory.stop,
        **scores,
    }
    with _lock:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / f"scores-{who}.jsonl", "a", encoding="utf-8") as file:
            file.write(to_json(line) + "\n")
        if every and _num_logged[str(folder)] % every == 0:
            with open(folder / f"trajectories-{who}.jsonl", "a", encoding="utf-8") as file:
                file.write(trajectory.to_json() + "\n")
        _num_logged[str(folder)] += 1


def step_means(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The means of every score by step and split, from all files a run has written so far, in order."""
    rows: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    for path in sorted(Path(folder).glob("scores-*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            rows[(-1 if record["step"] is None else record["step"], record["split"])].append(record)
    means = []
    for (step, split), group in sorted(rows.items()):
        figures = {
            name: sum(record[name] for record in group) / len(group)
            for name, value in group[0].items()
            if isinstance(value, float)
        }
        means.append({"step": step, "split": split, "num_trajectories": len(group), **figures})
    return means

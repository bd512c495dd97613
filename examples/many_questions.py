"""Many questions at once, scored and written to a file that `view` and `score` read.

python examples/many_questions.py [OUT.jsonl]
"""

from __future__ import annotations

import sys

from parallelsearch import Agent, reward, write_trajectories
from parallelsearch.data import demo_questions

questions = demo_questions()[:40]
with Agent() as agent:
    trajectories = agent.ask_many(questions)

for trajectory in trajectories:
    trajectory.rewards = reward(trajectory, "gated").to_dict()
split = [trajectory.is_split for trajectory in trajectories if trajectory.kind == "parallel"]
mean = sum(trajectory.rewards["total"] for trajectory in trajectories if trajectory.rewards) / len(trajectories)
print(f"{len(trajectories)} questions, mean reward {mean:.3f}, {sum(split)} of {len(split)} parallel ones split")
if len(sys.argv) > 1:
    print(f"wrote {write_trajectories(sys.argv[1], trajectories)} trajectories to {sys.argv[1]}")

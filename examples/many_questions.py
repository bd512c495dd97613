"""Many questions at once, scored and written to a file that `view` and `score` read; each answer is told as it comes.

python examples/many_questions.py [OUT.jsonl]

Without a policy the agent takes the trained model where one is installed: on two CPU cores it is done in under a minute.
"""

from __future__ import annotations

import sys

from parallelsearch import Agent, Event, reward, write_trajectories
from parallelsearch.data import demo_questions


def tell(event: Event) -> None:
    if event.kind == "answer":
        print(f"{event.time_s:5.1f} s: {event.text}", flush=True)


questions = demo_questions()[::23]
with Agent() as agent:
    print(f"{len(questions)} questions to {agent.policy.name}", flush=True)
    trajectories = agent.ask_many(questions, max_concurrent=4, on_event=tell)

for trajectory in trajectories:
    trajectory.rewards = reward(trajectory, "gated").to_dict()
split = [trajectory.is_split for trajectory in trajectories if trajectory.kind == "parallel"]
mean = sum(trajectory.rewards["total"] for trajectory in trajectories if trajectory.rewards) / len(trajectories)
print(f"{len(trajectories)} questions, mean reward {mean:.3f}, {sum(split)} of {len(split)} parallel ones split")
if len(sys.argv) > 1:
    print(f"wrote {write_trajectories(sys.argv[1], trajectories)} trajectories to {sys.argv[1]}")

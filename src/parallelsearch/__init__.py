"""Search agents that look things up in parallel. These are the public names; each is imported when first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "Agent": "agent",
    "Event": "rollout",
    "Hit": "retrieval.base",
    "Limits": "rollout",
    "ParallelSearchError": "errors",
    "Passage": "retrieval.base",
    "Policy": "policy.base",
    "Question": "trajectory",
    "Retriever": "retrieval.base",
    "Reward": "rewards",
    "Sampling": "policy.base",
    "Search": "search",
    "Trajectory": "trajectory",
    "Weights": "rewards",
    "exact_match": "answers",
    "f1": "answers",
    "normalise": "answers",
    "open_policy": "addresses",
    "open_search": "addresses",
    "parse_turn": "grammar",
    "read_questions": "data",
    "read_trajectories": "trajectory",
    "reward": "rewards",
    "substring_match": "answers",
    "write_trajectories": "trajectory",
}

__all__ = [
    "__version__",
    "Agent",
    "Event",
    "Hit",
    "Limits",
    "ParallelSearchError",
    "Passage",
    "Policy",
    "Question",
    "Retriever",
    "Reward",
    "Sampling",
    "Search",
    "Trajectory",
    "Weights",
    "exact_match",
    "f1",
    "normalise",
    "open_policy",
    "open_search",
    "parse_turn",
    "read_questions",
    "read_trajectories",
    "reward",
    "substring_match",
    "write_trajectories",
]

if TYPE_CHECKING:
    from parallelsearch.addresses import open_policy, open_search
    from parallelsearch.agent import Agent
    from parallelsearch.answers import exact_match, f1, normalise, substring_match
    from parallelsearch.data import read_questions
    from parallelsearch.errors import ParallelSearchError
    from parallelsearch.grammar import parse_turn
    from parallelsearch.policy.base import Policy, Sampling
    from parallelsearch.retrieval.base import Hit, Passage, Retriever
    from parallelsearch.rewards import Reward, Weights, reward
    from parallelsearch.rollout import Event, Limits
    from parallelsearch.search import Search
    from parallelsearch.trajectory import Question, Trajectory, read_trajectories, write_trajectories


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'parallelsearch' has no attribute '{name}'")
    value = getattr(importlib.import_module(f"parallelsearch.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

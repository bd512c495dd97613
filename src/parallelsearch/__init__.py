"""Search agents that look things up in parallel. These are the public names; each is imported when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parallelsearch.lazy import export

__version__ = "0.1.0"
__all__ = ["__version__"]

if TYPE_CHECKING:
    from parallelsearch.addresses import open_policy as open_policy
    from parallelsearch.addresses import open_search as open_search
    from parallelsearch.agent import Agent as Agent
    from parallelsearch.answers import exact_match as exact_match
    from parallelsearch.answers import f1 as f1
    from parallelsearch.answers import normalise as normalise
    from parallelsearch.answers import substring_match as substring_match
    from parallelsearch.conversing.conversation import Conversation as Conversation
    from parallelsearch.data import load_questions as load_questions
    from parallelsearch.data import read_questions as read_questions
    from parallelsearch.dialect import Dialect as Dialect
    from parallelsearch.dialects import open_dialect as open_dialect
    from parallelsearch.errors import ParallelSearchError as ParallelSearchError
    from parallelsearch.errors import SearchError as SearchError
    from parallelsearch.errors import UsageError as UsageError
    from parallelsearch.evaluation import EvaluationSettings as EvaluationSettings
    from parallelsearch.evaluation import compare as compare
    from parallelsearch.evaluation import compare_groups as compare_groups
    from parallelsearch.evaluation import evaluate as evaluate
    from parallelsearch.grammar import parse_turn as parse_turn
    from parallelsearch.grounding import cite as cite
    from parallelsearch.grounding import sources_of as sources_of
    from parallelsearch.limits import Limits as Limits
    from parallelsearch.limits import Prices as Prices
    from parallelsearch.policy import Policy as Policy
    from parallelsearch.policy import Sampling as Sampling
    from parallelsearch.retrieval import Hit as Hit
    from parallelsearch.retrieval import Passage as Passage
    from parallelsearch.retrieval import Retriever as Retriever
    from parallelsearch.retrieval import build_index as build_index
    from parallelsearch.retrieving import MergedHit as MergedHit
    from parallelsearch.retrieving import Retrieval as Retrieval
    from parallelsearch.retrieving import Split as Split
    from parallelsearch.retrieving import SplitRetriever as SplitRetriever
    from parallelsearch.retrieving import retrieve as retrieve
    from parallelsearch.retrieving import split as split
    from parallelsearch.rewards import Reward as Reward
    from parallelsearch.rewards import Weights as Weights
    from parallelsearch.rewards import reward as reward
    from parallelsearch.rollout import Event as Event
    from parallelsearch.rollout import rollout as rollout
    from parallelsearch.rollouts import rollout_many as rollout_many
    from parallelsearch.search import Search as Search
    from parallelsearch.telemetry import traced as traced
    from parallelsearch.trajectory import Question as Question
    from parallelsearch.trajectory import QuestionPart as QuestionPart
    from parallelsearch.trajectory import Trajectory as Trajectory
    from parallelsearch.trajectory import read_trajectories as read_trajectories
    from parallelsearch.trajectory import write_trajectories as write_trajectories

export(
    __name__,
    {
        "addresses": ("open_policy", "open_search"),
        "agent": ("Agent",),
        "answers": ("exact_match", "f1", "normalise", "substring_match"),
        "conversing.conversation": ("Conversation",),
        "data": ("load_questions", "read_questions"),
        "dialect": ("Dialect",),
        "dialects": ("open_dialect",),
        "errors": ("ParallelSearchError", "SearchError", "UsageError"),
        "evaluation": ("EvaluationSettings", "compare", "compare_groups", "evaluate"),
        "grammar": ("parse_turn",),
        "grounding": ("cite", "sources_of"),
        "limits": ("Limits", "Prices"),
        "policy": ("Policy", "Sampling"),
        "retrieval": ("Hit", "Passage", "Retriever", "build_index"),
        "retrieving": ("MergedHit", "Retrieval", "Split", "SplitRetriever", "retrieve", "split"),
        "rewards": ("Reward", "Weights", "reward"),
        "rollout": ("Event", "rollout"),
        "rollouts": ("rollout_many",),
        "search": ("Search",),
        "telemetry": ("traced",),
        "trajectory": ("Question", "QuestionPart", "Trajectory", "read_trajectories", "write_trajectories"),
    },
)

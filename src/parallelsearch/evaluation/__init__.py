"""Evaluation: run a set of questions, measure, compare, report. Reads trajectories; writes nothing but its run folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parallelsearch.lazy import export

if TYPE_CHECKING:
    from parallelsearch.evaluation.comparison import Comparison as Comparison
    from parallelsearch.evaluation.comparison import GroupComparison as GroupComparison
    from parallelsearch.evaluation.comparison import compare as compare
    from parallelsearch.evaluation.comparison import compare_groups as compare_groups
    from parallelsearch.evaluation.gold import GoldRetriever as GoldRetriever
    from parallelsearch.evaluation.judge_run import JudgeProgress as JudgeProgress
    from parallelsearch.evaluation.judge_run import JudgeSettings as JudgeSettings
    from parallelsearch.evaluation.report import write_comparison as write_comparison
    from parallelsearch.evaluation.report import write_report as write_report
    from parallelsearch.evaluation.run import EvaluationSettings as EvaluationSettings
    from parallelsearch.evaluation.run import Progress as Progress
    from parallelsearch.evaluation.whole import evaluate as evaluate
    from parallelsearch.evaluation.whole import evaluate_answers as evaluate_answers
    from parallelsearch.evaluation.whole import judge as judge
    from parallelsearch.evaluation.whole import judge_all as judge_all

export(
    __name__,
    {
        "comparison": ("Comparison", "GroupComparison", "compare", "compare_groups"),
        "gold": ("GoldRetriever",),
        "judge_run": ("JudgeProgress", "JudgeSettings"),
        "report": ("write_comparison", "write_report"),
        "run": ("EvaluationSettings", "Progress"),
        "whole": ("evaluate", "evaluate_answers", "judge", "judge_all"),
    },
)

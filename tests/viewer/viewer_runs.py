"""Runs for the tests of the viewer: real evaluations over the demo corpus, the samples of a training run, hostile text."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from parallelsearch import grammar
from parallelsearch.data import demo
from parallelsearch.data.questions import demo_questions
from parallelsearch.evaluation.run import EvaluationSettings, run_questions
from parallelsearch.policy.scripted import ScriptedPolicy
from parallelsearch.retrieval.base import Hit
from parallelsearch.rewards import reward
from parallelsearch.rollout import rollout
from parallelsearch.search import Search
from parallelsearch.training.metrics import MetricsLog
from parallelsearch.trajectory import Query, Question, Segment, Trajectory, Turn

ATTACK = (
    "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=2'>"
    "<svg onload=window.hacked=3></svg> <!-- <script> [x](javascript:window.hacked=4) \u2028\u2029 &lt;b&gt; \"'`"
)
NUM_QUESTIONS = 12


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """In a thread of its own: a driven browser keeps an event loop in the main one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def asked() -> list[Question]:
    """A few questions of each kind."""
    kept: dict[str | None, list[Question]] = {}
    for question in demo_questions():
        kept.setdefault(question.kind, []).append(question)
    return [question for group in kept.values() for question in group][:: max(1, 179 // NUM_QUESTIONS)][:NUM_QUESTIONS]


def evaluation_run(folder: Path, sequential: bool = False, num_wrong: int = 4) -> Path:
    """An evaluation of the written turns; the last turn of the first questions gives a wrong answer."""
    questions = asked()
    turns = {name: list(written) for name, written in (demo.sequential_turns() if sequential else demo.turns()).items()}
    for question in questions[:num_wrong]:
        turns[question.question][-1] = grammar.render_turn("I am not sure.", answer="nobody knows")
    search = Search(demo.retriever())
    settings = EvaluationSettings(num_resamples=20)
    run(run_questions(questions, ScriptedPolicy(turns, tokens_per_s=4_000), search, folder, settings))
    return folder


def training_run(folder: Path, steps: tuple[int, ...] = (0, 10, 20)) -> Path:
    """What a training run leaves: samples and validation for some steps, and the figures of each. It learns to split."""
    questions = [question for question in asked() if question.kind == "parallel"][:4]

    async def sample(step: int) -> list[Trajectory]:
        written = demo.turns() if step >= 10 else demo.sequential_turns()
        policy, search = ScriptedPolicy(written), Search(demo.retriever())
        made = [await rollout(question, policy, search) for question in questions]
        await search.aclose()
        for trajectory in made:
            trajectory.rewards = reward(trajectory, "gated").to_dict()
        return made

    log = MetricsLog(folder, trackers=())
    for step in steps:
        trajectories = run(sample(step))
        log.write(step, {"accuracy": 0.5 + step / 100, "reward/total": 1.0 + step / 100, "time/step_s": 1.0})
        log.write_trajectories(step, trajectories[:2])
        log.write_trajectories(step, trajectories, "validation")
    log.close()
    return folder


def hostile_trajectory(id: str = "hostile") -> Trajectory:
    """Markup and script in every field that a stranger can write."""
    hit = Hit(
        *(ATTACK, ATTACK, ATTACK),
        url="javascript:window.hacked=5",
        metadata={ATTACK: ATTACK, "page": [ATTACK]},
        score=float("nan"),
        rank=1,
    )
    return Trajectory(
        question=ATTACK,
        segments=[
            Segment("prompt", ATTACK, [1, 2]),
            Segment("model", f"<think> {ATTACK} </think>\n<search> a ## b </search>", [3, 4, 5], [-0.1, -0.2, -0.3]),
            Segment("search", f"<information>{ATTACK}</information>", [6]),
            Segment("model", f"<answer> {ATTACK} </answer>", [7], [-0.5], restored="</answer>"),
            Segment("notice", ATTACK, [8]),
        ],
        golden_answers=[ATTACK + " not"],
        id=id,
        dataset=ATTACK,
        type=ATTACK,
        kind="parallel",
        turns=[
            Turn([Query(ATTACK, [hit], end_s=0.2), Query("b", [hit], error=ATTACK, end_s=0.3)], [ATTACK], generate_s=0.1),
            Turn(start_s=0.3, generate_s=0.1),
        ],
        answer=ATTACK,
        stop="answer",
        error=ATTACK,
        num_llm_calls=2,
        num_searches=1,
        num_subqueries=2,
        elapsed_s=0.5,
        rewards={"outcome": 0.0, "decomposition": -0.2, "search_count": 0.1, "format": 0.0, "total": -0.1},
        policy={ATTACK: ATTACK},
    )  # fmt: skip

"""The examples run as they stand."""

import subprocess
import sys
from pathlib import Path

import pytest

from parallelsearch import Agent, read_trajectories
from parallelsearch.answers import exact_match
from parallelsearch.data import demo
from parallelsearch.data.questions import demo_questions

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_example_runs(path, tmp_path):
    out = tmp_path / "out.jsonl"
    result = subprocess.run([sys.executable, str(path), str(out)], capture_output=True, text=True, timeout=400)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()
    if path.name == "many_questions.py":
        trajectories = list(read_trajectories(out))
        assert len(trajectories) == 8  # more take a model on two cores over a minute
        told = result.stdout.splitlines()[1 : 1 + len(trajectories)]  # a line for each answer, before the summary
        assert sorted(line.partition(" s: ")[2] for line in told) == sorted(one.answer for one in trajectories)


def test_every_demo_question_is_answered_from_evidence_that_was_found():
    """The whole embedded set, end to end: right answers, the split its kind asks for, and the gold passages retrieved."""
    questions = demo_questions()
    policy = demo.DemoPolicy()
    policy.tokens_per_s = None
    with Agent(policy) as agent:
        trajectories = agent.ask_many(questions)
    for question, trajectory in zip(questions, trajectories, strict=True):
        assert exact_match(trajectory.answer, question.golden_answers), question.question
        assert trajectory.is_split == (question.kind in ("parallel", "mixed")), question.question
        found = {hit.title for turn in trajectory.turns for query in turn.queries for hit in query.hits}
        assert set(question.supporting_titles) <= found, (question.question, set(question.supporting_titles) - found)
        assert not any(turn.problems for turn in trajectory.turns)


def test_the_demo_is_as_large_as_promised():
    kinds = [question.kind for question in demo_questions()]
    assert len(demo.passages()) >= 300
    assert len(kinds) >= 120
    assert {"parallel", "sequential", "single", "mixed"} == set(kinds)
    sizes = [len(question.metadata["rounds"][0]) for question in demo_questions() if question.kind == "parallel"]
    assert {2, 3, 4} <= set(sizes)
    ids = [passage.id for passage in demo.passages()]
    assert len(ids) == len(set(ids))


def test_the_agent_works_without_an_event_loop_and_with_one():
    import asyncio

    with Agent() as agent:
        assert agent.ask("Who is older, Claude Monet or Camille Pissarro?").answer == "Camille Pissarro"

    async def inside() -> str | None:
        agent = Agent()
        try:
            return (await agent.ask_async("Who is older, Claude Monet or Camille Pissarro?")).answer
        finally:
            await agent.aclose()

    assert asyncio.run(inside()) == "Camille Pissarro"

"""Makes the golden record: what the package does on fixed questions and seeds, as plain values.

`python tests/golden/recording.py` writes it anew. Do that only for a change that is meant to change behaviour, and say in
the commit why. The parts: written turns (every way of asking), a tiny random model, SmolLM2 with the adapter of the package,
one GRPO and one PPO step, one evaluation. Numbers that depend on the clock are left out.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from parallelsearch import rewards
from parallelsearch.data import demo
from parallelsearch.data.questions import demo_questions
from parallelsearch.evaluation.run import EvaluationSettings, run_questions
from parallelsearch.limits import Limits
from parallelsearch.policy.base import Generation, Policy, Sampling
from parallelsearch.policy.scripted import ScriptedPolicy
from parallelsearch.retrieval.base import Passage
from parallelsearch.retrieval.bm25 import BM25Retriever
from parallelsearch.rollout import rollout
from parallelsearch.search import Search
from parallelsearch.trajectory import Question, Segment, Trajectory

FOLDER = Path(__file__).parent
Record = dict[str, Any]


def plain(trajectory: Trajectory) -> Record:
    """All of a trajectory that must not change."""
    return {
        "question": trajectory.question,
        "segments": [[segment.author, segment.text, segment.token_ids] for segment in trajectory.segments],
        "logprobs": [segment.logprobs for segment in trajectory.segments],
        "mask": trajectory.loss_mask(),
        "turns": [
            {
                "queries": [[query.text, [hit.id for hit in query.hits]] for query in turn.queries],
                "dropped": turn.dropped_queries,
                "finish": turn.finish,
                "num_tokens": turn.num_tokens,
                "problems": turn.problems,
            }
            for turn in trajectory.turns
        ],
        "answer": trajectory.answer,
        "stop": trajectory.stop,
        "counts": [trajectory.num_llm_calls, trajectory.num_searches, trajectory.num_subqueries],
        "rewards": {
            preset: rewards.reward(trajectory, preset).to_dict()
            for preset in rewards.PRESETS
            if trajectory.kind is not None or preset == "label-free"
        },
    }


# ---- written turns ---------------------------------------------------------------------------------------------------

PASSAGES = [
    Passage("1", "Danube", "The Danube is a river of about 2,850 kilometres."),
    Passage("2", "Rhine", "The Rhine is a river of about 1,230 kilometres."),
    Passage("3", "Vienna", "Vienna is the capital of Austria and lies on the Danube."),
    Passage("4", "Austria", "Austria is a country whose capital is Vienna. " + "It has mountains and lakes. " * 40),
]
ASKED = Question("Which river flows through the capital of Austria?", ["Danube"], id="q", kind="sequential")
TURNS: dict[str, list[str]] = {
    "parallel": [
        "<think> Both. </think><search> capital of Austria ## length of Danube ## capital of austria </search>",
        "no tags at all",
        "<think> Again. </think><search> capital of Austria ## Rhine </search>",
        "<think> I know. </think><answer> Danube </answer>",
    ],
    "direct": ["It is <answer> the Danube </answer>"],
    "cot": ["Vienna lies on it.\nThe answer is: Danube."],
    "rag": ["The Danube.\n<answer>Danube</answer>"],
    "ircot": [
        "The capital of Austria is Vienna.\n",
        "Vienna lies on the Danube.\n",
        "It is long.\n",
        "Yes.\n",
        "Danube.\n",
    ],
    "search-o1": [
        "I need it. <|begin_search_query|> capital of Austria <|end_search_query|>",
        "It is Vienna, on the Danube.",
        "So it is <answer> Danube </answer>",
    ],
    "search-r1": [
        "<think> x </think><search> length of Danube ## length of Rhine </search>",
        "nothing",
        "<think> x </think><search> Vienna </search>",
        "<think> y </think><answer> Danube </answer>",
    ],
    "rag-r1": [
        '<think> x </think><search> ["capital of Austria", "length of Rhine"] </search>',
        "<think> x </think><search> Vienna, Rhine </search>",
        "<think> y </think><answer> Danube </answer>",
    ],
    "ferret": [
        '<think> x </think>\n<tool_call>{"name": "search", "arguments": {"query_list": ["Vienna", "Rhine"]}}</tool_call>',
        "<think> y </think><answer> Danube </answer>",
    ],
}
TURNS["sequential"] = TURNS["parallelsearch"] = TURNS["parallel"]


class Watched(Policy):
    """Writes the given turns and keeps what it was shown, and where it was told to stop."""

    name = "watched"

    def __init__(self, turns: Sequence[str]) -> None:
        self.turns, self.shown = turns, list[list[Any]]()

    async def generate(self, segments: Sequence[Segment], *, stop: Sequence[str], **_: Any) -> Generation:
        self.shown.append(["".join(segment.text for segment in segments), list(stop)])
        return Generation(self.turns[len(self.shown) - 1], "stop")


async def ways_of_asking() -> Record:
    """What a model is shown, and what comes of its turns, for every way of asking."""
    made: Record = {}
    for name in TURNS:
        policy = Watched(TURNS[name])
        search = Search(BM25Retriever.from_passages(PASSAGES), k=2)
        limits = Limits(max_observation_tokens=150)
        trajectory = await rollout(ASKED, policy, search, limits, dialect=name, session="s")
        await search.aclose()
        record = plain(trajectory)
        kept = tuple(record) if name in ("parallel", "sequential") else ("turns", "answer", "stop", "counts")
        made[name] = {"shown": policy.shown, **{key: record[key] for key in kept}}
    return made


async def demo_turns() -> Record:
    """The written turns of the package, at once and one at a time."""
    questions = demo_questions()[::15]
    made: Record = {}
    for name, turns in (("parallel", demo.turns()), ("sequential", demo.sequential_turns())):
        policy, search = ScriptedPolicy(turns), Search(demo.retriever(), k=3)
        made[name] = [plain(await rollout(question, policy, search, dialect=name)) for question in questions]
        await search.aclose()
    return made


def scripts() -> Record:
    return {"ways": asyncio.run(ways_of_asking()), "demo": asyncio.run(demo_turns())}


# ---- a tiny random model ---------------------------------------------------------------------------------------------


def tiny() -> Record:
    """The model of the smoke runs, on both engines, greedy and sampled, with turns of several tokens among them."""
    from parallelsearch.policy.local import LocalPolicy
    from parallelsearch.training import smoke

    tokenizer = smoke.make_tokenizer()
    questions = smoke.questions(6)

    async def run(engine: str, temperature: float) -> list[Record]:
        options: dict[str, Any] = {"engine": engine, "deterministic": True, "max_context": 400}
        policy = LocalPolicy(smoke.make_model(tokenizer, 0, 1.2), tokenizer, **options)
        search = Search(demo.retriever(), k=1)
        limits = Limits(max_turns=2, max_tokens_per_turn=32, max_observation_tokens=64, max_tokens=400)
        found = await asyncio.gather(
            *(
                rollout(
                    question,
                    policy,
                    search,
                    limits,
                    sampling=Sampling(temperature, 1.0, seed=number),
                    session=f"row-{number}",
                )
                for number, question in enumerate(questions)
            )
        )
        await policy.aclose()
        await search.aclose()
        return [plain(trajectory) for trajectory in found]

    return {
        f"{engine} {temperature:g}": asyncio.run(run(engine, temperature))
        for engine in ("slot", "batch")
        for temperature in (0.0, 1.0)
    }


# ---- the policy of the package ---------------------------------------------------------------------------------------


def smollm2() -> Record:
    """SmolLM2-135M with the adapter of the package: a comparison and a chain greedily, the comparison sampled once."""
    from parallelsearch.addresses import open_policy

    asked = {question.question: question for question in demo_questions()}
    comparison = asked["Who is older, Claude Monet or Camille Pissarro?"]
    chain = next(question for question in demo_questions() if question.kind == "sequential")

    async def run() -> Record:
        policy = open_policy("hf:smollm2-135m+parallel", max_context=2560, deterministic=True, device="cpu")
        search = Search(demo.retriever(), k=3)
        limits = Limits(max_tokens_per_turn=160, max_tokens=2560)

        async def one(name: str, question: Question, temperature: float) -> tuple[str, Record]:
            sampling = Sampling(temperature, 1.0, seed=5)
            return name, plain(await rollout(question, policy, search, limits, sampling=sampling, session=name))

        jobs = (one("comparison", comparison, 0.0), one("chain", chain, 0.0), one("sampled", comparison, 0.7))
        made = dict(await asyncio.gather(*jobs))
        await policy.aclose()
        await search.aclose()
        return made

    return asyncio.run(run())


# ---- training --------------------------------------------------------------------------------------------------------


def training() -> Record:
    """One GRPO and one PPO step of the tiny model: the batch, the loss and the gradient."""
    sys.path.insert(0, str(FOLDER.parent / "training"))
    import torch
    from tiny_runs import demo_search, tiny_model, tiny_recipe

    from parallelsearch.training import smoke
    from parallelsearch.training.collect import Collector
    from parallelsearch.training.grpo import Plan, SearchTrainer
    from parallelsearch.training.ppo import PpoTrainer
    from parallelsearch.training.sampler import sampling_policy
    from parallelsearch.training.weights import load_weights

    def step(kind: type[SearchTrainer], changes: dict[str, Any], needs_critic: bool) -> Record:
        torch.manual_seed(0)
        with tempfile.TemporaryDirectory() as out:
            recipe = tiny_recipe(Path(out) / "run", changes)
            model, tokenizer = tiny_model(0.7)
            weights = load_weights(
                recipe.model,
                torch.device("cpu"),
                needs_reference=True,
                needs_critic=needs_critic,
                model=model,
                tokenizer=tokenizer,
            )
            collector = Collector(sampling_policy(recipe, weights), demo_search(), recipe.rollout)
            trainer = kind(recipe, weights, collector, Plan(smoke.questions(24), list(range(24))))
            trainer.model.train()
            batch = trainer._generate_and_score_completions(next(iter(trainer.get_train_dataloader())))
            loss = trainer.accumulate(trainer.model, batch)
            gradient = sum(float(p.grad.double().abs().sum()) for p in trainer.model.parameters() if p.grad is not None)
            collector.close()
            return {
                "trajectories": [plain(trajectory) for trajectory in trainer.trajectories],
                "advantages": batch["advantages"].flatten().tolist(),
                "loss": float(loss),
                "gradient": gradient,
            }

    common = {"train.beta": 0.1}
    return {
        "grpo": step(SearchTrainer, common, False),
        "ppo": step(PpoTrainer, {**common, "train.algorithm": "ppo", "ppo.critic_lr": 5e-3}, True),
    }


# ---- an evaluation ---------------------------------------------------------------------------------------------------

_CLOCK = ("_s", "wall", "speed", "tokens_per_s")


def evaluation() -> Record:
    """The summary of the demo questions with their written turns, without what the clock decides."""

    async def run() -> Record:
        policy, search = ScriptedPolicy(demo.turns()), Search(demo.retriever(), k=3)
        with tempfile.TemporaryDirectory() as out:
            summary = await run_questions(
                demo_questions()[:40], policy, search, out, EvaluationSettings(num_resamples=50)
            )
        await search.aclose()
        return {name: timeless(subset) for name, subset in summary["subsets"].items()}

    return asyncio.run(run())


def timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: timeless(item) for key, item in value.items() if not any(mark in key for mark in _CLOCK)}
    return value


PARTS: dict[str, Callable[[], Record]] = {
    "scripts": scripts,
    "tiny": tiny,
    "smollm2": smollm2,
    "training": training,
    "evaluation": evaluation,
}


def path_of(part: str) -> Path:
    return FOLDER / f"{part}.json"


if __name__ == "__main__":
    for name in sys.argv[1:] or PARTS:
        path_of(name).write_text(json.dumps(PARTS[name](), ensure_ascii=False) + "\n", encoding="utf-8")

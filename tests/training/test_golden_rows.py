"""What TRL's trainer makes of two questions, row by row, is what `tests/verl/trl_rows.json` says.

verl's worker is held to the same file in `tests/verl`. The two cannot be installed together (verl 0.9.1 fails where TRL 1.16
is), so they meet in the file. Written anew with: python tests/training/test_golden_rows.py
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from parallelsearch.data import demo
from parallelsearch.policy.base import Generation
from parallelsearch.policy.encoding import EncodingPolicy
from parallelsearch.search import Search
from parallelsearch.training import smoke
from parallelsearch.training.collect import Collector
from parallelsearch.training.recipe import parse_recipe
from parallelsearch.trajectory import Question, Segment

FILE = Path(__file__).parents[1] / "verl" / "trl_rows.json"
GOLDEN = json.loads(FILE.read_text(encoding="utf-8"))


class WrittenTurns(EncodingPolicy):
    """The turns of the file as token ids, each as often as it is asked for."""

    name = "script"

    async def generate(self, segments: Sequence[Segment], **_: Any) -> Generation:
        number = sum(segment.author == "model" for segment in segments)
        ids = self.tokenizer.encode(GOLDEN["calls"]["turns"][number], add_special_tokens=False)
        return Generation(self.decode(ids), "stop", ids, [-0.5] * len(ids), len(ids))


def rows_of_trl(leaning: float, folder: Path, calls: bool = False) -> list[dict[str, list[int]]]:
    """The first sample of each question, as TRL's trainer gets it: from the package's engine, greedy, or, for native calls,
    from turns that are written (no model this small makes one)."""
    from parallelsearch.training.grpo import Plan, SearchTrainer, grpo_config
    from parallelsearch.training.sampler import sampling_policy
    from parallelsearch.training.weights import load_weights

    tokenizer = smoke.make_tokenizer()
    model = smoke.make_model(tokenizer, seed=1, leaning=leaning)
    if calls:
        tokenizer.chat_template = GOLDEN["calls"]["template"]
    questions = [Question(**values) for values in GOLDEN["questions"]]
    recipe = parse_recipe(
        {
            "model": {"name": "unset"},
            "data": {"train": "smoke"},
            "rollout": {**(GOLDEN["calls"]["rollout"] if calls else GOLDEN["rollout"]), "temperature": 1e-4},
            "train": {
                "algorithm": "grpo",
                "out": str(folder),
                "steps": 1,
                "questions_per_step": len(questions),
                "samples_per_question": 2,
            },
        }
    )
    config = grpo_config(recipe)
    weights = load_weights(recipe.model, config.device, needs_reference=False, model=model, tokenizer=tokenizer)
    policy = WrittenTurns(tokenizer, "script") if calls else sampling_policy(recipe, weights)
    collector = Collector(policy, Search(demo.retriever(), k=GOLDEN["k"]), recipe.rollout)
    try:
        trainer = SearchTrainer(recipe, weights, collector, Plan(questions, range(len(questions))), config=config)
        rows: Any = trainer.sample([str(number) for number in range(len(questions)) for _ in range(2)])
    finally:
        collector.close()
    names = ("prompt_ids", "completion_ids", "env_mask")
    return [{name: list(map(int, rows[name][2 * place])) for name in names} for place in range(len(questions))]


@pytest.mark.parametrize("model", GOLDEN["models"], ids=lambda model: model["name"])
def test_trl_gets_the_rows_of_the_file(model: dict[str, Any], tmp_path: Path) -> None:
    assert rows_of_trl(model["leaning"], tmp_path) == model["rows"]
    assert any(0 in row["env_mask"] for row in model["rows"]), "there is something to mask"


def test_trl_gets_the_rows_of_native_calls(tmp_path: Path) -> None:
    assert rows_of_trl(1.0, tmp_path, calls=True) == GOLDEN["calls"]["rows"]
    for row in GOLDEN["calls"]["rows"]:
        text = smoke.make_tokenizer().decode(
            [i for i, own in zip(row["completion_ids"], row["env_mask"], strict=True) if own]
        )
        assert text == "".join(GOLDEN["calls"]["turns"]), "trained on: what the model wrote, to the letter"


if __name__ == "__main__":
    for entry in GOLDEN["models"]:
        with tempfile.TemporaryDirectory() as out:
            entry["rows"] = rows_of_trl(entry["leaning"], Path(out))
    with tempfile.TemporaryDirectory() as out:
        GOLDEN["calls"]["rows"] = rows_of_trl(1.0, Path(out), calls=True)
    FILE.write_text(json.dumps(GOLDEN, ensure_ascii=False) + "\n", encoding="utf-8")

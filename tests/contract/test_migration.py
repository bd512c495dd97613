"""The migration page is true: its keys, methods and presets exist, and its program makes a verl file readable."""

import re
from pathlib import Path
from typing import get_args

import pytest
import typer.main

from parallelsearch import read_questions
from parallelsearch.cli.app import app
from parallelsearch.data.sets import known_names
from parallelsearch.dialects import DIALECTS
from parallelsearch.rewards import PRESETS
from parallelsearch.training.recipe import Recipe

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "migration.md").read_text()


def test_every_recipe_key_it_names_exists():
    keys = PAGE.split("## Keys")[1].split("##")[0]
    named = {key for row in keys.splitlines()[4:] for key in re.findall(r"`(\w+)\.(\w+)`", row.rpartition(" | ")[2])}
    assert len(named) > 20
    unknown = [f"{part}.{key}" for part, key in named if key not in Recipe.model_fields[part].annotation.model_fields]
    assert not unknown


def test_the_methods_presets_recipes_and_pages_it_names_exist():
    assert set(re.findall(r"--dialect ([\w-]+)", PAGE)) == {"search-r1", "parallelsearch"} <= set(DIALECTS)
    assert set(re.findall(r'reward\.preset = "([\w-]+)"', PAGE)) == {"reference", "paper"} <= set(PRESETS)
    assert all((ROOT / path).exists() for path in re.findall(r"`(recipes/[\w.-]+)`", PAGE))
    assert all((ROOT / "docs" / path).exists() for path in re.findall(r"\]\((\w+\.md)\)", PAGE))


def test_the_commands_options_and_sets_it_names_exist():
    group = typer.main.get_command(app)
    for line in re.findall(r"`(parallelsearch [^`]+)`", PAGE):
        command, words = group, line.split()[1:]
        while hasattr(command, "commands"):
            assert words[0] in command.commands or "list" in command.commands, line
            command = command.commands[words.pop(0)]
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known, line
    for names in re.findall(r"--data ([\w,-]+)|data verl ([\w,-]+)", PAGE):
        parts = "".join(names).split(",")
        assert all(part.removesuffix("-par").removesuffix("-seq") in known_names() for part in parts), names
    assert 'rollout.engine = "vllm"' in PAGE
    assert "vllm" in get_args(Recipe.model_fields["rollout"].annotation.model_fields["engine"].annotation)


def test_a_file_for_verl_becomes_questions_with_a_kind(tmp_path, monkeypatch):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.chdir(tmp_path)
    row = {
        "id": "train_0",
        "question": "Which is older, the Danube or the Rhine?",
        "golden_answers": ["the Danube"],
        "metadata": {"type": "comparison"},
        "data_source": "hotpotqa",
        "prompt": [{"role": "user", "content": "Answer the question."}],
        "ability": "fact-reasoning",
        "reward_model": {"style": "rule", "ground_truth": {"target": ["the Danube"]}},
        "extra_info": {"split": "train", "index": 0, "type": "comparison"},
    }
    parquet.write_table(pa.Table.from_pylist([row]), "train.parquet")
    (question,) = read_questions("train.parquet")
    assert (question.kind, question.golden_answers, question.id) == ("parallel", ["the Danube"], "train_0")
    assert "prompt" not in (question.metadata or {})

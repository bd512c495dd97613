"""A run's folder: one run at a time, and nothing in it that should not be read by others."""

import asyncio
import json
import re
import threading
from pathlib import Path

import pytest

from parallelsearch.addresses import open_policy
from parallelsearch.errors import UsageError
from parallelsearch.files import held_folder
from parallelsearch.training import checkpoints
from parallelsearch.training.recipe import load_recipe
from parallelsearch.training.start import start

RECIPE = """
[model]
name = "smoke"
[data]
train = "smoke"
[train]
algorithm = "grpo"
out = "{out}"
steps = 1
questions_per_step = 2
samples_per_question = 2
eval_every = 0
[search]
address = "{address}"
"""


def recipe_in(folder: Path, address: str = "demo") -> Path:
    path = folder / "recipe.toml"
    path.write_text(RECIPE.format(out=folder / "run", address=address))
    return path


def test_a_folder_takes_one_run_at_a_time(tmp_path):
    """Two runs into one folder both ended well, with every step doubled."""
    with (
        held_folder(tmp_path / "run", ""),
        pytest.raises(UsageError, match=r"another run writes to.*train\.out=FOLDER"),
    ):
        start(recipe_in(tmp_path), say=lambda line: None)


def test_a_run_says_what_its_figures_are_and_ends_with_the_address_to_ask(tmp_path):
    said: list[str] = []
    small = ["rollout.max_tokens=512", "rollout.max_tokens_per_turn=48", "rollout.max_observation_tokens=64"]
    outcome = start(recipe_in(tmp_path), small, say=said.append)
    (legend,) = [line for line in said if "exact match" in line]
    (step,) = [line for line in said if line.startswith("step 1/1")]
    assert said.index(legend) < said.index(step)
    labels = set(re.findall(r" ([a-z]+) -?[\d.]+", step))
    assert len(labels) > 6
    assert labels <= set(re.findall(r"^  ([a-z]+) ", legend, re.MULTILINE))
    address = outcome.record["address"]
    assert outcome.text.splitlines()[-1] == f'ask it with: parallelsearch ask "..." --policy {address}'
    policy = open_policy(address)
    assert policy.dialect == "parallel"
    asyncio.run(policy.aclose())


def test_a_folder_is_free_again_when_its_run_is_over(tmp_path):
    for _ in range(2):
        with held_folder(tmp_path, ""):
            pass
    errors: list[BaseException] = []

    def other() -> None:
        try:
            with held_folder(tmp_path, "go elsewhere"):
                pass
        except UsageError as error:
            errors.append(error)

    with held_folder(tmp_path, ""):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert "go elsewhere" in str(errors[0])


@pytest.mark.parametrize(
    ("address", "kept"),
    [
        ("http://me:secret@host:1/retrieve", "http://host:1/retrieve"),
        ("http://me:sec/ret@a/retrieve,http://me:secret@b", "http://a/retrieve,http://b"),
        ("searxng:https://me:secret@host", "searxng:https://host"),
        ("mcp:http://me:se@cret@host/mcp", "mcp:http://host/mcp"),
        ("http://host/retrieve?k=a", "http://host/retrieve?k=a"),
        ("demo", "demo"),
    ],
)
def test_no_password_is_written_down(tmp_path, address, kept):
    recipe = load_recipe(recipe_in(tmp_path, address))
    checkpoints.write_manifest(recipe, {})
    text = (tmp_path / "run" / checkpoints.MANIFEST).read_text()
    assert json.loads(text)["search"]["address"] == kept
    assert "secret" not in text
    checkpoints.check_same_run(recipe, {})  # and the run can go on


def test_a_run_of_an_earlier_release_goes_on_though_it_wrote_the_password_down(tmp_path):
    recipe = load_recipe(recipe_in(tmp_path, "http://me:secret@host:1/retrieve"))
    checkpoints.write_manifest(recipe, {})
    path = tmp_path / "run" / checkpoints.MANIFEST
    path.write_text(path.read_text().replace("http://host", "http://me:secret@host"))
    checkpoints.check_same_run(recipe, {})


def test_a_folder_that_cannot_be_written_to_is_a_message(tmp_path):
    (tmp_path / "run").write_text("a file")
    with pytest.raises(UsageError, match="cannot write to"):
        start(recipe_in(tmp_path), say=lambda line: None)

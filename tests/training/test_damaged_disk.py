"""A checkpoint that is damaged, folders that take nothing, and a chat template that may not run: each is a message that says
what to do."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import tiny_models
from test_resume import go, write_recipe
from tiny_runs import tiny_model

from echoing import EchoRetriever
from parallelsearch.errors import ParallelSearchError, UsageError
from parallelsearch.policy.local import LocalPolicy
from parallelsearch.retrieval.cache import CachedRetriever
from parallelsearch.training import checkpoints
from parallelsearch.training.run import train
from unwritable import files_no_larger_than


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
@pytest.mark.parametrize("damage", ["cut", "noise"])
def test_a_damaged_optimiser_names_the_checkpoint_to_remove(tmp_path: Path, algorithm: str, damage: str) -> None:
    changes: dict[str, Any] = {"train.steps": 1, "train.save_every": 1, "train.algorithm": algorithm}
    first = go(tmp_path / "run", changes)
    assert first.last is not None
    path = first.last / ("critic.pt" if algorithm == "ppo" else "optimizer.pt")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] if damage == "cut" else bytes(len(data)))
    with pytest.raises(
        UsageError, match=rf"the checkpoint .*{first.last.name} is damaged .*; remove it, and the run goes"
    ):
        go(tmp_path / "run", {**changes, "train.steps": 2})


def test_a_full_disk_says_what_to_do_and_the_run_goes_on_when_there_is_room(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"train.steps": 1, "train.save_every": 1}
    with (
        files_no_larger_than(60_000),
        pytest.raises(UsageError, match=r"could not be written .*Make room.*train\.out="),
    ):
        go(tmp_path / "run", changes)
    assert checkpoints.completed(tmp_path / "run" / "checkpoints") == []
    assert go(tmp_path / "run", changes).is_finished


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    model, tokenizer = tiny_model()
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    recipe = write_recipe(tmp_path / "r.toml", tmp_path / "file" / "run", {"train.steps": 1})
    with pytest.raises((ParallelSearchError, OSError), match=r"file"):  # the command line says both without a traceback
        train(recipe, [f"model.name={tmp_path / 'model'}"])


class Described(EchoRetriever):
    def describe(self) -> dict[str, Any]:
        return {"kind": "echo", "corpus": "made up"}


async def test_a_cache_on_a_full_disk_is_passed_over(tmp_path: Path) -> None:
    cached = CachedRetriever(Described(), tmp_path / "cache")
    with files_no_larger_than(40_000):
        results = [(await cached.search_many([f"q{n} " + "x" * 1_000], 3))[0] for n in range(40)]
    assert all(len(result) == 3 for result in results)
    assert cached.num_faults > 0
    assert len((await cached.search_many(["q0 " + "x" * 1_000], 3))[0]) == 3
    await cached.aclose()


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{% for a in range(10**9) %}{{ a }}{% endfor %}",
        "{{ raise_exception('only Latin') }}",
        "{{ 1 / 0 }}",
        "{% broken",
    ],
)
def test_a_template_that_may_not_run_is_a_message(template: str) -> None:
    tokenizer = copy.deepcopy(tiny_models.tokenizer())
    tokenizer.chat_template = template
    with pytest.raises(UsageError, match=r"the chat template of .* cannot be used \(.*\); use template 'base'"):
        LocalPolicy(tiny_models.model(), tokenizer, template="chat").prompt("Q", "Q")

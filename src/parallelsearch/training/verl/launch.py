"""From a recipe to a running verl: the command, and everything that can be checked before a GPU is taken.

Checked in this order: the version of verl, the model and the adapter, verl's own verdict on the overrides, the data files,
the retriever's answer to one query, attention and GPUs. Then verl's trainer is started as a process of its own with exactly
the command that `--dry-run` prints; it finds the Ray cluster this node belongs to, or starts one here.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from parallelsearch.errors import ParallelSearchError, UsageError, stopped
from parallelsearch.http import is_loopback
from parallelsearch.search import Found
from parallelsearch.training.verl import installed, ready
from parallelsearch.training.verl.overrides import verl_overrides
from parallelsearch.training.verl.recipe import VerlRecipe
from parallelsearch.training.verl.rows import check_file

Say = Callable[[str], None]

PROBE = "When was Claude Monet born?"
PROBE_TIMEOUT_S = 20.0


def command(recipe: VerlRecipe) -> list[str]:
    """What is started: verl's own entry point and its overrides."""
    return [sys.executable, "-m", "verl.trainer.main_ppo", *verl_overrides(recipe)]


def shown(arguments: Sequence[str]) -> str:
    """A command as one would type it, an argument a line."""
    program, *rest = [shlex.quote(argument) for argument in arguments]
    return " \\\n  ".join([" ".join([program, *rest[:2]]), *rest[2:]])


def dry_run(recipe: VerlRecipe, say: Say) -> str:
    """The command. Keys that verl refuses are an error; what is merely not ready yet is said."""
    if installed.version() is None:
        say(f"note: verl is not installed here, so its keys were not checked. Tested is {installed.TESTED}")
    else:
        installed.check_version(recipe.verl.any_version)
        try:
            installed.check_overrides(verl_overrides(recipe))
        except UsageError:
            raise
        except ParallelSearchError as error:
            say(f"not ready: {error}")
    for check in CHECKS:
        try:
            check(recipe)
        except ParallelSearchError as error:
            say(f"not ready: {error}")
    for note in notes(recipe):
        say(f"note: {note}")
    return shown(command(recipe))


def launch(recipe: VerlRecipe, say: Say) -> None:
    """Check everything, then run verl until it ends. Raises if it fails."""
    installed.check_version(recipe.verl.any_version)
    ready.check_model(recipe)
    installed.check_overrides(verl_overrides(recipe))
    for check in CHECKS:
        check(recipe)
    for note in notes(recipe):
        say(f"note: {note}")
    arguments = command(recipe)
    recipe.out.mkdir(parents=True, exist_ok=True)
    (recipe.out / "command.sh").write_text(shown(arguments) + "\n", encoding="utf-8")
    status = subprocess.run(arguments, check=False).returncode
    if status:
        raise ParallelSearchError(
            f"verl ended with status {status}. Its checkpoints are in {recipe.out / 'checkpoints'}: the same command goes on "
            "from the newest one"
        )


def notes(recipe: VerlRecipe) -> list[str]:
    """What a person should know before they wait for it."""
    found = []
    num_nodes = recipe.verl.num_nodes + recipe.verl.rollout_nodes
    hosts = [urlsplit(url.strip()).hostname or "" for url in recipe.search.address.split(",") if "://" in url]
    if num_nodes > 1 and any(is_loopback(host) for host in hosts):
        found.append(
            f"'{recipe.search.address}' is this machine's own: each of the {num_nodes} nodes needs a server there"
        )
    if num_nodes > 1 and not os.environ.get("RAY_ADDRESS"):
        found.append(f"{num_nodes} nodes are wanted: run 'ray start' on each, and set RAY_ADDRESS=auto here")
    if sys.dont_write_bytecode and not is_compiled("verl"):
        found.append(
            "PYTHONDONTWRITEBYTECODE is set, as in many container images, and verl was never compiled: each of its processes "
            "does it anew (13 s instead of 6). Unset it, or type once: python -m compileall -q -j 0 "
            f"{sysconfig.get_path('purelib')}"
        )
    return found


def is_compiled(package: str) -> bool:
    """Whether Python finds the package's compiled files; of one that is not there nothing is missing."""
    spec = importlib.util.find_spec(package)
    return spec is None or spec.origin is None or Path(importlib.util.cache_from_source(spec.origin)).is_file()


def check_data(recipe: VerlRecipe) -> None:
    """Every file has what verl and the reward need, and there are enough questions for a step."""
    dialect, reward = recipe.rollout.dialect, recipe.reward
    count = sum(check_file(path, dialect, reward) for path in recipe.data.train_sources)
    if count < recipe.train.questions_per_step:
        raise UsageError(
            f"data.train has {count} questions, fewer than one step takes (train.questions_per_step = "
            f"{recipe.train.questions_per_step})"
        )
    for path in recipe.data.validation_sources:
        check_file(path, dialect, reward)


def check_search(recipe: VerlRecipe) -> None:
    """One query, answered: a retriever that is down would otherwise be found out by GPUs that wait."""
    from parallelsearch.addresses import open_search

    settings = recipe.search

    async def ask() -> Found:
        timeout_s = min(settings.timeout_s or PROBE_TIMEOUT_S, PROBE_TIMEOUT_S)
        search = open_search(settings.address, k=settings.k, timeout_s=timeout_s)
        try:
            return await search.find(PROBE)
        finally:
            await search.aclose()

    found = asyncio.run(ask())
    if found.error is not None:
        raise ParallelSearchError(
            f"the retriever at '{settings.address}' does not answer: {stopped(found.error)} Start it "
            "(parallelsearch serve search --search bm25:DIR --host 0.0.0.0), or correct search.address"
        )


CHECKS: tuple[Callable[[VerlRecipe], None], ...] = (
    ready.check_model,
    check_data,
    check_search,
    ready.check_attention,
    ready.check_gpus,
)
"""What must be ready when a run starts, in order; a dry run only says what is not."""

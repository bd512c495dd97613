"""What the installed verl says: its version, and whether it takes a list of overrides.

verl composes its configuration with Hydra; here it is composed and validated in this process, in a second and without Ray or
a GPU, so that a wrong key is named before anything is started.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import logging
import re
from collections.abc import Iterator, Sequence
from typing import Any

from parallelsearch.errors import MissingExtraError, ParallelSearchError, UsageError, install_command, nearest

TESTED = "0.9.1"
"""The one version the tests run with."""
INSTALL = f"{install_command('verl')} (in an environment of its own: docs/cluster.md)"
_UNKNOWN_KEY = re.compile(r"Key '([^']+)' is not in struct|Could not override '([^']+)'")


def version() -> str | None:
    """Of the installed verl; None if there is none."""
    try:
        return importlib.metadata.version("verl")
    except importlib.metadata.PackageNotFoundError:
        return None


def check_version(any_version: bool = False) -> None:
    """Refuse to start without verl, or with one that was not tested."""
    found = version()
    if found is None:
        raise MissingExtraError(
            f"this recipe has a [verl] section and verl is not installed. Tested is {TESTED}: {INSTALL}"
        )
    if found != TESTED and not any_version:
        raise UsageError(
            f"verl {found} is installed; tested is {TESTED}, and verl renames keys between releases. Type: {INSTALL}; or "
            "try this one with: verl.any_version=true"
        )


def check_overrides(overrides: Sequence[str]) -> Any:
    """verl's configuration with these overrides, composed and validated by verl itself. Raises `UsageError` for what it does
    not accept, and another error where a model's files cannot be read (with PPO verl looks into the critic's)."""
    config = compose(overrides)
    from hydra.errors import InstantiationException
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    try:
        with _quiet():
            validate_config(config, need_reference_policy(config), need_critic(config))
    except InstantiationException as error:
        if isinstance(error.__cause__, OSError):
            reason = " ".join(str(error.__cause__).split())
            raise ParallelSearchError(f"verl cannot read the model '{config.critic.model.path}': {reason}") from error
        raise UsageError(f"verl does not accept this recipe: {error.__cause__ or error}") from error
    except (AssertionError, ValueError, RuntimeError) as error:
        raise UsageError(f"verl does not accept this recipe: {error}") from error
    return config


def compose(overrides: Sequence[str]) -> Any:
    """verl's configuration with these overrides; an unknown key is named with the nearest right one."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_module
    from hydra.errors import HydraException

    def composed(lines: Sequence[str]) -> Any:
        with initialize_config_module("verl.trainer.config", version_base=None):
            return hydra_compose("ppo_trainer", overrides=list(lines))

    try:
        return composed(overrides)
    except HydraException as error:
        cause = f"{error} {error.__cause__ or ''}"
        found = _UNKNOWN_KEY.search(cause)
        if found is None:
            raise UsageError(f"verl's configuration cannot be composed: {' '.join(cause.split())}") from error
        key = _overridden(overrides, found[1] or found[2])
        known = list(_keys(composed(["actor_rollout_ref.rollout.name=vllm"])))
        raise UsageError(
            f"verl {version()} knows no key '{key}'.{_nearest_key(key, known)} Look at "
            "[verl.overrides] in the recipe; a key that is to be added has a plus sign before it"
        ) from error


def _overridden(overrides: Sequence[str], part: str) -> str:
    """The whole dotted key of the override an error speaks of by its last part."""
    keys = [line.partition("=")[0] for line in overrides]
    return next((key for key in keys if key == part or key.split(".")[-1] == part or f".{part}." in key), part)


def _nearest_key(key: str, known: Sequence[str]) -> str:
    """The right name in another section comes before a like name in this one."""
    same_ending = [name for name in known if name.split(".")[-1] == key.split(".")[-1]]
    return nearest(key, same_ending) or nearest(key, known)


def _keys(config: Any, prefix: str = "") -> Iterator[str]:
    from omegaconf import DictConfig

    for name in config:
        yield f"{prefix}{name}"
        inner = config._get_node(name)
        if isinstance(inner, DictConfig) and not inner._is_missing() and not inner._is_none():
            yield from _keys(inner, f"{prefix}{name}.")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """verl prints while it validates."""
    logging.getLogger("verl").setLevel(logging.ERROR)
    with contextlib.redirect_stdout(io.StringIO()):
        yield

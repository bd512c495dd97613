"""Where what is kept between runs lies, in the user's own folders, and who may write to it.

A cache can be made again, by whoever finds it gone; `PARALLELSEARCH_CACHE` names another place for it. Nothing here makes a
folder: who writes there does.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from parallelsearch.errors import UsageError

CACHE_ENV = "PARALLELSEARCH_CACHE"


def cache_dir() -> Path:
    """PARALLELSEARCH_CACHE, or XDG_CACHE_HOME/parallelsearch."""
    own = os.environ.get(CACHE_ENV) or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "parallelsearch")
    try:
        return Path(own).expanduser()
    except RuntimeError as error:  # a user whom the system does not know, as in some containers
        raise UsageError(f"there is no home folder for the cache '{own}': name a folder in {CACHE_ENV}") from error


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """By one process at a time; the others wait. However it ends, the kernel lets go."""
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

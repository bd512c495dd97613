"""Every exception of the package, and the helper that says which extra to install.

A message is the manual: it says what was wrong, what was found and what to type. `exit_status` is what the command line
returns: 1 for work that failed, 2 for a command used wrongly. Errors of a single search are values (`SearchError`), not
raised through a rollout.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from types import ModuleType


class ParallelSearchError(Exception):
    """Base of all errors a user may see; printed without traceback by the command line."""

    exit_status = 1


class UsageError(ParallelSearchError):
    """The caller asked for something that cannot be: unknown address, empty question, bad option."""

    exit_status = 2


class MissingExtraError(UsageError):
    """A feature needs an optional dependency that is not installed."""


class DataError(ParallelSearchError):
    """A file has a bad record. `str()` names file, line and field."""

    def __init__(self, path: str, line: int | None, problem: str, field: str | None = None) -> None:
        self.path, self.line, self.field, self.problem = path, line, field, problem
        where = path if line is None else f"{path}, line {line}"
        what = problem if field is None else f"field '{field}': {problem}"
        super().__init__(f"{where}: {what}")


class IndexDamagedError(ParallelSearchError):
    """An index folder is missing, incomplete, damaged, or was built by another version or encoder."""


class PolicyError(ParallelSearchError):
    """The policy could not generate: server down, time-out, context too long."""


class SearchError(ParallelSearchError):
    """One query could not be answered. Travels as a value in the query's place; the others still count."""


class SearchTimeoutError(SearchError):
    """No answer within the time-out."""


class TransientError(ParallelSearchError):
    """A call that may succeed when repeated (429, 5xx, connection lost). `retry_after_s` is the server's own word."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TransientSearchError(SearchError, TransientError):
    """A failed search that is worth repeating."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        TransientError.__init__(self, message, retry_after_s)


def require(module: str, extra: str) -> ModuleType:
    """Import an optional dependency, or say which extra brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        root = module.partition(".")[0]
        if error.name is not None and error.name.partition(".")[0] != root:
            raise MissingExtraError(
                f"'{root}' is installed but does not import ({error}). Repair it with: pip install 'parallelsearch[{extra}]'"
            ) from error
        raise MissingExtraError(
            f"this needs '{root}', which is not installed. Type: pip install 'parallelsearch[{extra}]'"
        ) from error


def nearest(word: str, known: Iterable[str]) -> str:
    """`' Did you mean "x"?'` for the nearest known word, else an empty string."""
    match = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" Did you mean '{match[0]}'?" if match else ""

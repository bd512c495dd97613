"""Every exception of the package, and the helpers that say what to install and how.

A message is the manual: it says what was wrong, what was found and what to type. `exit_status` is what the command line
returns: 1 for work that failed, 2 for a command used wrongly. Errors of a single search are values (`SearchError`), not
raised through a rollout.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from numbers import Integral, Real
from types import ModuleType


class ParallelSearchError(Exception):
    """Base of all errors a user may see; printed without traceback by the command line."""

    exit_status = 1


class UsageError(ParallelSearchError):
    """The caller asked for something that cannot be: unknown address, empty question, bad option."""

    exit_status = 2


class MissingExtraError(UsageError):
    """A feature needs an optional dependency that is not installed."""


def closed(what: str) -> UsageError:
    """What every call of something raises that was closed."""
    return UsageError(f"this {what} was closed and answers no more; make another one")


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


class NoToolsError(PolicyError):
    """The server or the model behind it takes no tools. A dialect without them may still do."""


class SearchError(ParallelSearchError):
    """One query could not be answered. Travels as a value in the query's place; the others still count."""


class SearchTimeoutError(SearchError):
    """No answer within the time-out."""


class SearchClosedError(SearchError):
    """The search was closed while it was asked."""

    def __init__(self) -> None:
        super().__init__("the search was closed while it was asked")


class RewardError(ParallelSearchError):
    """A reward of the caller's own broke on a trajectory, or gave no number for it."""


class TransientError(ParallelSearchError):
    """A call that may succeed when repeated (429, 5xx, connection lost). `retry_after_s` is the server's own word."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TransientSearchError(SearchError, TransientError):
    """A failed search that is worth repeating."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        TransientError.__init__(self, message, retry_after_s)


PACKAGE = "."
"""What pip is given: the clone, as long as no index has the package. A release says "parallelsearch" here, and a contract
test then names each line of the docs that still says the other."""


def install_command(*extras: str) -> str:
    """What to type for the extras; the one place that spells it."""
    spec = f"{PACKAGE}[{','.join(extras)}]" if extras else PACKAGE
    return f"pip install -e '{spec}'" if PACKAGE == "." else f"pip install '{spec}'"


def _type(extra: str) -> str:
    return f"{'in the folder of the clone: ' if PACKAGE == '.' else ''}{install_command(extra)}"


def require(module: str, extra: str) -> ModuleType:
    """Import an optional dependency, or say which extra brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        root = module.partition(".")[0]
        if error.name is not None and error.name.partition(".")[0] != root:
            raise MissingExtraError(
                f"'{root}' is installed but does not import ({error}). To repair it type {_type(extra)}"
            ) from error
        raise MissingExtraError(f"this needs '{root}', which is not installed. Type {_type(extra)}") from error


def refuse_unknown(options: Iterable[str], known: Iterable[str], of: str) -> None:
    """Raise for the first option that is not known, with the nearest one that is."""
    names = sorted(known)
    for name in options:
        if name not in names:
            raise UsageError(f"{of} has no option '{name}'.{nearest(name, names)} It has: {', '.join(names)}")


def is_number(value: object) -> bool:
    """Whether it can be compared with one: not "50", not None, and not True."""
    return not isinstance(value, bool) and isinstance(value, Real)


def check_whole(what: str, value: object, least: int = 1) -> None:
    """Raise for an option that must be a whole number and is 2.5, "50" or too small. `what` begins the sentence."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise UsageError(f"{what} a whole number, not {value!r}")
    if value < least:
        raise UsageError(f"{what} at least {least}, not {value}")


def stopped(text: object) -> str:
    """The text as a sentence: with a full stop, unless it ends one itself."""
    said = str(text)
    return said if said.endswith((".", "?", "!")) else f"{said}."


def nearest(word: str, known: Iterable[str]) -> str:
    """`' Did you mean "x"?'` for the nearest known word, else an empty string."""
    match = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" Did you mean '{match[0]}'?" if match else ""

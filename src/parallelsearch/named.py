"""Objects of the caller's own, by name: `module:name`, as it is typed in an address, an option or a recipe.

The module is looked for in the folder where the command is typed, then among what is installed. Whatever is wrong with it is
one message that says where was looked, what is there and, of an error in the caller's code, the line. What the object must be
is the business of whoever asked for it.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from parallelsearch.errors import UsageError, nearest

_PACKAGE = str(Path(__file__).parent) + os.sep


def load_named(name: str, what: str) -> Any:
    """The object at `module:name`; a dot in the second part leads into a class. `what` is what is wanted, for messages."""
    place, _, path = name.partition(":")
    if not place or not path:
        raise UsageError(f"'{name}' names no {what}; write module:name, for example my_{what}:mine for my_{what}.py")
    if place.endswith(".py") or "/" in place or os.sep in place:
        dotted = ".".join(Path(place.removesuffix(".py")).parts)
        raise UsageError(f"'{place}' is a file, and the {what} '{name}' needs a module: write {dotted}:{path}")
    found: Any = _imported(place, name, what)
    for part in path.split("."):
        try:
            is_there = hasattr(found, part)
        except Exception as error:  # a property, or a module that makes its names when they are asked for
            raise UsageError(f"the {what} '{name}' cannot be had: {said(error)}") from error
        if not is_there:
            known = _names_in(found)
            file = getattr(sys.modules[place], "__file__", None) or "no file"
            told = f" It has: {', '.join(known)}" if known else ""
            raise UsageError(f"'{place}' ({file}) has no '{path}'.{nearest(part, known)}{told}")
        found = getattr(found, part)
    return found


def look_in(folder: str) -> None:
    """Let modules be found in this folder, before those that are installed."""
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _imported(place: str, name: str, what: str) -> ModuleType:
    here = os.getcwd()
    look_in(here)
    if place not in sys.modules:
        importlib.invalidate_caches()  # the file may have been written a moment ago
    try:
        return importlib.import_module(place)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{place}.".startswith(f"{missing}."):
            near = nearest(place, [path.stem for path in Path(here).glob("*.py")])
            raise UsageError(
                f"there is no module '{missing}' for the {what} '{name}': not in {here}, where this was started, and not "
                f"installed.{near}"
            ) from error
        raise UsageError(f"the module of the {what} '{name}' cannot be imported: {said(error)}") from error


def _names_in(found: object) -> list[str]:
    """What is written in a module or a class, and not only imported there."""
    home = getattr(found, "__name__" if isinstance(found, ModuleType) else "__module__", None)
    return [
        name
        for name, value in getattr(found, "__dict__", {}).items()  # a number has none
        if not name.startswith("_") and not isinstance(value, ModuleType) and getattr(value, "__module__", home) == home
    ]


def said(error: BaseException) -> str:
    """What an error of the caller's code says, and where it came from."""
    return f"{type(error).__name__}: {error}{place_of(error)}"


def place_of(error: BaseException) -> str:
    """The line of the caller's code that an error came from, in brackets; nothing where there is none."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((_PACKAGE, "<frozen ")) and frame.filename != importlib.__file__
    ]
    last = [frame for frame in frames if frame.filename == frames[0].filename][-1:]
    return "".join(f" ({Path(frame.filename).name}, line {frame.lineno})" for frame in last)


def source_sha256(name: str, what: str) -> str | None:
    """Of the whole file in which the object at `module:name` is written, and of its module's where that is another, so that a
    helper or a constant that changed is seen too. None of what was typed at a prompt and is in no file."""
    found = load_named(name, what)
    while isinstance(found, functools.partial):
        found = found.func
    found = inspect.unwrap(found)
    written = found if inspect.isroutine(found) or isinstance(found, type) else type(found)
    files: dict[str, None] = {}  # the module's, too: there is what the object was made with
    for home in (written, sys.modules[name.partition(":")[0]]):
        try:
            file = inspect.getsourcefile(home)
        except TypeError:  # of C, or without a file
            continue
        if file is not None and Path(file).is_file():
            files[file] = None
    return hashlib.sha256(b"".join(Path(file).read_bytes() for file in files)).hexdigest() if files else None

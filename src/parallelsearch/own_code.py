"""A short hash of the code of a policy or search of the caller's own that has no more than a name to say of itself.

It stands in the description, so that a manifest tells a changed one from the one before. Counted are the source of each
method (its bytecode, where no source is found), the values of the class, and the texts and numbers that a function closes
over. Not counted are what an object was made with, which may change while it works (a counter), and what the code calls: who
has such things to tell apart says them in `describe`.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import inspect
from collections.abc import Iterator, Sequence
from types import CodeType
from typing import Any

UNREADABLE = "cannot be read"
"""Stands for the hash where there is neither source nor bytecode, as of a function written in C."""
_PLAIN = (str, bytes, int, float, bool, type(None))
_OURS = ("parallelsearch", "builtins", "abc", "typing")


def described(name: str, own: object) -> dict[str, Any]:
    """What to say of a class or function of the caller's own: its name and its code. A class of this package has none to
    say: a release changes it without a change of what it does."""
    if isinstance(own, type) and _is_ours(own):
        return {"kind": name}
    return {"kind": name, "code_sha256": _sha256(getattr(own, "__func__", own))}


@functools.lru_cache(maxsize=256)  # source is looked up in a file; every rollout describes what it ran with
def _sha256(own: object) -> str:
    found = list(_code(own))
    return hashlib.sha256("\x1e".join(found).encode("utf-8", "replace")).hexdigest()[:16] if found else UNREADABLE


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in _OURS


def _code(own: object) -> Iterator[str]:
    if isinstance(own, functools.partial | functools.partialmethod):
        yield from _code(own.func)
        yield from _each("arguments", (*own.args, *sorted(own.keywords.items())))
    elif isinstance(own, type):
        for kind in own.__mro__:
            if not _is_ours(kind):
                for name, value in sorted(vars(kind).items()):
                    yield from _member(name, value)
    elif isinstance(code := getattr(_function(own), "__code__", None), CodeType):
        yield from _function_code(_function(own), code)


def _function(own: object) -> Any:
    return inspect.unwrap(getattr(own, "__func__", own))  # type: ignore[arg-type]


def _member(name: str, value: object) -> Iterator[str]:
    if name in ("__module__", "__doc__", "__firstlineno__", "__static_attributes__"):
        return
    if isinstance(value, functools.cached_property):
        value = value.func
    for part in (value.fget, value.fset) if isinstance(value, property) else (value,):
        yield from _plain(name, part)
        yield from _code(part) if not isinstance(part, type) else ()


def _function_code(function: Any, code: CodeType) -> Iterator[str]:
    yield _bytecode(code) if code.co_name == "<lambda>" else _source(code)  # several may stand on one line
    yield from _each("defaults", (*(function.__defaults__ or ()), *sorted((function.__kwdefaults__ or {}).items())))
    changing = {step.argval for step in dis.get_instructions(code) if step.opname == "STORE_DEREF"}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        if name not in changing:
            try:
                yield from _plain(name, cell.cell_contents)
            except ValueError:  # not bound yet
                continue


def _source(code: CodeType) -> str:
    try:
        return inspect.getsource(code)
    except (OSError, TypeError):
        return _bytecode(code)


def _bytecode(code: CodeType) -> str:
    return repr((code.co_code.hex(), list(map(_constant, code.co_consts)), code.co_names))


def _constant(value: object) -> str:
    if isinstance(value, CodeType):
        return _bytecode(value)
    if isinstance(value, frozenset):  # in another order in every process
        return f"frozenset({sorted(map(_constant, value))})"
    return f"({', '.join(map(_constant, value))})" if isinstance(value, tuple) else repr(value)


def _each(name: str, values: Sequence[object]) -> Iterator[str]:
    """One that is not plain (a client) hides none of the others."""
    for number, value in enumerate(values):
        yield from _plain(f"{name} {number}", value)


def _plain(name: str, value: object) -> Iterator[str]:
    """A text or number, or several of them; of anything else the `repr` may hold an address in memory."""
    if _is_plain(value):
        yield f"{name}={value!r}"


def _is_plain(value: object) -> bool:
    return all(map(_is_plain, value)) if isinstance(value, list | tuple) else isinstance(value, _PLAIN)

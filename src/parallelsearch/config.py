"""TOML file -> typed settings.

A settings class is a pydantic model that forbids unknown keys. `load` reads a file, applies `section.key=value` changes
from the command line, and turns whatever is wrong into one message: the file, the key, what was found, and for an
unknown key the nearest right one. What the keys mean is the business of the class (a recipe, for instance).
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError

from parallelsearch.errors import UsageError, nearest


class Settings(BaseModel):
    """Base of every section: unknown keys are errors, values do not change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


S = TypeVar("S", bound=Settings)


def load(
    path: str | os.PathLike[str],
    settings: type[S],
    overrides: Sequence[str] | Mapping[str, Any] = (),
    others: Mapping[str, str] = MappingProxyType({}),
) -> S:
    """Read `path`, apply `overrides` (`["train.lr=1e-5"]` or `{"train.lr": 1e-5}`) and check everything. `others`: keys by
    which a file is known to be another command's, and that command."""
    file = Path(path)
    try:
        with open(file, "rb") as stream:
            values = tomllib.load(stream)
    except FileNotFoundError:
        raise UsageError(f"there is no file '{file}' (looked in {Path.cwd()}).{_nearest_file(file)}") from None
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} is not TOML: {error}") from error
    if other := next((command for key, command in others.items() if key in values), None):
        raise UsageError(f"{file} is a recipe of another command: parallelsearch {other} {file}")
    return parse(values, settings, overrides, source=str(file))


def parse(
    values: Mapping[str, Any],
    settings: type[S],
    overrides: Sequence[str] | Mapping[str, Any] = (),
    source: str = "<settings>",
) -> S:
    """Check settings that are already in memory. `source` names them in messages."""
    merged = apply_overrides(values, overrides)
    try:
        return settings.model_validate(merged)
    except ValidationError as error:
        raise UsageError("\n".join(_messages(error, settings, source))) from error


def apply_overrides(values: Mapping[str, Any], overrides: Sequence[str] | Mapping[str, Any]) -> dict[str, Any]:
    """A copy of `values` with dotted keys set; the right-hand side of a text override is read as a TOML value."""
    pairs = overrides.items() if isinstance(overrides, Mapping) else map(_split_override, overrides)
    result: dict[str, Any] = _copied(values)
    for key, value in pairs:
        *sections, name = key.split(".")
        place = result
        for depth, section in enumerate(sections):
            inner = place.setdefault(section, {})
            if not isinstance(inner, dict):
                raise UsageError(
                    f"'{key}' cannot be set: '{'.'.join(sections[: depth + 1])}' is a value, not a section"
                )
            place = inner
        place[name] = value
    return result


def _split_override(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"'{text}' is not a setting; write section.key=value, for example train.lr=1e-5")
    return key.strip(), _toml_value(value.strip())


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text  # a bare word is a string, so that no quotes within quotes are needed in a shell


def _copied(value: Any) -> Any:
    return {key: _copied(inner) for key, inner in value.items()} if isinstance(value, Mapping) else value


def _nearest_file(file: Path) -> str:
    names = [entry.name for entry in file.parent.iterdir()] if file.parent.is_dir() else []
    return nearest(file.name, names)


# ---- messages --------------------------------------------------------------------------------------------------------


def _messages(error: ValidationError, settings: type[BaseModel], source: str) -> Iterable[str]:
    problems = error.errors()
    last_unknown = {problem["loc"][:-1]: problem["loc"] for problem in problems if problem["type"] == "extra_forbidden"}
    for problem in problems:
        where = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            *section, name = problem["loc"]
            known = _known_keys(settings, section)
            deeper = [] if section else [f"{key}.{name}" for key in known if name in _known_keys(settings, [key])]
            meant = f" Did you mean '{deeper[0]}'?" if deeper else nearest(str(name), known)
            there = f" Known here: {', '.join(sorted(known))}" if problem["loc"] in last_unknown.values() else ""
            yield f"{source}: unknown key '{where}'.{meant}{there}"
        elif problem["type"] == "missing":
            yield f"{source}: '{where}' is missing"
        else:
            found = repr(problem["input"])
            message = problem["msg"].removeprefix("Value error, ")
            subject = f"'{where}': " if where else ""
            shown = f", found {found}" if where and len(found) < 80 else ""
            yield f"{source}: {subject}{message[:1].lower()}{message[1:]}{shown}"


def _known_keys(settings: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    """The keys of the section at `path`."""
    for part in path:
        field = settings.model_fields.get(str(part))
        inner = _model_in(field.annotation) if field is not None else None
        if inner is None:
            return []
        settings = inner
    return list(settings.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, UnionType):
        return next((model for part in get_args(annotation) if (model := _model_in(part)) is not None), None)
    return None

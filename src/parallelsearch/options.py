"""Options inside an address: `option=value&option=value`, of policies and searches alike.

Where they stand in an address is the address's business, and what they mean that of the class they are given to. Here a
text becomes values of the right types, or a message that says what there is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from parallelsearch.errors import UsageError, refuse_unknown

_FLAGS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_KINDS = {
    bool: "0 or 1",
    int: "a whole number",
    float: "a number",
    tuple: "numbers with commas between them",
    dict: "a field and its value, such as page=3",
}


def read_options(text: str, known: Mapping[str, type], of: str) -> dict[str, Any]:
    """The options in `text`, each as the type that `known` gives it; a tuple is one of numbers, a dict one of names and the
    texts given to each, and grows where its option comes again. `of` names in messages what they belong to."""
    found: dict[str, Any] = {}
    # In an address a plus is a plus, not the space that it is in a form: a `where` for C++ must not find what is of C.
    for key, value in parse_qsl(text.replace("+", "%2B"), keep_blank_values=True):
        if not known:
            raise UsageError(f"{of} takes no options, found '{key}'")
        refuse_unknown([key], known, of)
        kind = known[key]
        try:
            if kind is dict:
                name, wanted = value.split("=", 1)
                found.setdefault(key, {}).setdefault(name.strip(), []).append(wanted.strip())
            else:
                found[key] = _value(value, kind)
        except (KeyError, ValueError) as error:
            raise UsageError(f"{key} of {of} is {_KINDS[kind]}, not '{value}'") from error
    return found


def _value(text: str, kind: type) -> Any:
    if kind is bool:
        return _FLAGS[text.lower()]
    if kind is tuple:
        return tuple(_value(part, float) for part in text.split(","))
    value = kind(text)
    if isinstance(value, float) and math.isnan(value):
        raise ValueError(text)
    return value

"""What is known of a passage beside its text (`source`, `page`, `author`): for the caller, never for the model.

A corpus line, a server and another framework may say anything beside the fields of a passage. What is kept of it are plain
JSON values, few and small, so that a hostile record costs no more than a long passage: a text is cut, a list or record is
kept whole or not at all, and what has no value is left out. `bounded` gives back what it has bounded before as it was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import date
from numbers import Integral, Real
from typing import Any

from parallelsearch.retrieval.base import Passage
from parallelsearch.untrusted import finite, whole

Metadata = dict[str, Any]

MAX_FIELDS = 64
MAX_NAME_CHARS = 100
MAX_VALUE_CHARS = 500
MAX_CHARS = 4_000
"""Of all names and values together."""
METADATA_SHA256 = "metadata_sha256"
"""What an index that has metadata says of it in its description."""
_MAX_DEPTH = 3
_MAX_PLACE_CHARS = 200
_CUT = " ..."
_SOURCES = ("source", "file_path", "file_name", "filename")
_PAGES = ("page_label", "page_number", "page")
"""The first that is there: beside a `page_label`, which is what one reads on the page, LangChain's `page` counts from 0."""
_PLACE = frozenset((*_SOURCES, *_PAGES))


def metadata_of(record: Mapping[str, Any], but: AbstractSet[str]) -> Metadata | None:
    """What a record says beside the fields `but`: its other fields, and those of an object `metadata` in it."""
    if record.keys() <= but:
        return None
    beside = {name: value for name, value in record.items() if name not in but}
    if isinstance(inner := beside.get("metadata"), Mapping):
        del beside["metadata"]
        beside = {**inner, **beside}
    return bounded(beside)


def bounded(fields: Mapping[str, Any]) -> Metadata | None:
    """The fields as plain values within the limits; None where nothing is left. Those that say where a passage stands are the
    first to get room, and what does not fit into the rest of it is left out."""
    kept: Metadata = {}
    room = MAX_CHARS
    for name, value in sorted(fields.items(), key=lambda field: field[0] not in _PLACE):
        if len(kept) == MAX_FIELDS:
            break
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARS:
            continue
        try:
            value = _plain(value, _MAX_DEPTH)
        except ValueError:
            continue
        if value is None or (not value and isinstance(value, str | list | dict)):
            continue
        size = len(json.dumps(value)) if isinstance(value, list | dict) else len(str(value))
        if size > MAX_VALUE_CHARS or size + len(name) > room:  # no text is over the first any more
            continue
        room -= size + len(name)
        kept[whole(name)] = value
    return kept or None


def _plain(value: Any, depth: int) -> Any:
    """The value as JSON knows it; `ValueError` where it does not."""
    if isinstance(value, str):
        return whole(value if len(value) <= MAX_VALUE_CHARS else value[: MAX_VALUE_CHARS - len(_CUT)] + _CUT)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float | Real):  # numpy's numbers are real, too
        number = int(value) if isinstance(value, int | Integral) else float(value)
        if finite(number) is None:
            raise ValueError("JSON has no such number")
        return number
    if isinstance(value, list | tuple | dict):
        if depth == 0:
            raise ValueError("too deep")
        if isinstance(value, dict):
            return {whole(str(name)): _plain(one, depth - 1) for name, one in value.items()}
        return [_plain(one, depth - 1) for one in value]
    if isinstance(value, date):
        return value.isoformat()
    words: Any = type(value).__str__  # paths, decimals and ids have some; without, it would be where in memory it lies
    if words is object.__str__ or isinstance(value, bytes | bytearray):
        raise ValueError("has no words of its own")
    return _plain(str(value), depth)


def place_of(passage: Passage) -> str | None:
    """Where a passage stands, in words on one line: `/docs/contract.pdf, page 3`. Text from outside. A source that is the
    passage's address is left out: who shows the place shows that, too."""
    if not passage.metadata:
        return None
    source, page = _word(passage.metadata, _SOURCES), _word(passage.metadata, _PAGES)
    words = [] if source in ("", passage.url) else [source]
    if words and len(source) > _MAX_PLACE_CHARS:  # the end of a path says more than its beginning
        words = ["..." + source[3 - _MAX_PLACE_CHARS :]]
    return ", ".join([*words, f"page {page[:20]}"] if page else words) or None


def _word(metadata: Mapping[str, Any], names: Sequence[str]) -> str:
    values = (metadata.get(name) for name in names)
    words = (" ".join(str(value).split()) for value in values if isinstance(value, str | int | float))
    return next((word for word in words if word), "")

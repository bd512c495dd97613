"""What a search is narrowed to: the passages where a field of their metadata has a value (`where`).

The rows are chosen before anything is ranked, so that `k` hits come back where `k` exist. Values are compared as they are
written: in an address and in CSV 3 is a text, in JSON it is a number, and all of them mean the same.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import date
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallelsearch.errors import UsageError, nearest
from parallelsearch.retrieval.base import Passage

Rows = NDArray[np.int64]
_OWN = ("title", "url", "date")
"""Fields of a passage that can be asked for as its metadata can."""
_MAX_SHOWN = 20


def conditions_of(where: Mapping[str, Any]) -> dict[str, list[str]]:
    """The texts that each field may have; a `UsageError` for what is no equality."""
    if not isinstance(where, Mapping):
        raise UsageError(f"where is a dict of fields and values, for example {{'page': 3}}, not {where!r}")
    found: dict[str, list[str]] = {}
    for name, wanted in where.items():
        values = (
            list(wanted)
            if isinstance(wanted, Sequence | AbstractSet) and not isinstance(wanted, str | bytes | bytearray)
            else [wanted]
        )
        texts = [_text(value) for value in values]
        if not isinstance(name, str) or None in texts:
            raise UsageError(
                f"where compares a field with a value, or with a list of which one must fit, for example {{'page': [3, 4]}}; "
                f"found {name!r}: {wanted!r}"
            )
        found[name] = sorted({text for text in texts if text is not None})
    return dict(sorted(found.items()))


def _text(value: object) -> str | None:
    """A plain value as it is written; None for any other."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, str):
        return str.__str__(value)  # of an Enum that is a text: that text, as JSON has it
    return str(value) if isinstance(value, int | float) else None


class Selection:
    """The rows of an index that may be found: all of them (`rows` is None), or those `where` a passage has these values."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        self.rows: Rows | None = None
        self.wheres: tuple[dict[str, list[str]], ...] = ()
        self._fields = _Fields(passages)

    def where(self, where: Mapping[str, Any]) -> Selection:
        """Of these rows those with these values: of every field one of those wanted."""
        wanted = conditions_of(where)
        chosen = Selection.__new__(Selection)
        chosen._fields, chosen.rows = self._fields, self.rows
        chosen.wheres = (*self.wheres, wanted) if wanted else self.wheres
        for name, texts in wanted.items():
            rows = self._fields.rows(name, texts)
            chosen.rows = rows if chosen.rows is None else np.intersect1d(chosen.rows, rows, assume_unique=True)
        return chosen

    def describe(self) -> dict[str, Any]:
        """What tells a narrowed search from that of the whole index; nothing where it is the whole."""
        return {"where": list(self.wheres)} if self.wheres else {}


class _Fields:
    """Which rows have which value of a field. All passages are read when a field is first asked for, and then kept."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        self._passages = passages
        self._rows: dict[str, dict[str, array[int]]] = {}
        self._names: set[str] = set()

    def rows(self, name: str, texts: Sequence[str]) -> Rows:
        if name not in self._rows:
            # All names are known after the first: one that is refused is not looked for in all passages again.
            rows = self._read(name) if not self._names or name in self._names else {}
            if name not in self._names:
                raise self._unknown(name)
            self._rows[name] = rows
        found = [self._rows[name][text] for text in texts if text in self._rows[name]]
        return np.unique(np.concatenate([np.zeros(0, np.int64), *found]))

    def _read(self, name: str) -> dict[str, array[int]]:
        names: set[str] = set()
        rows: dict[str, array[int]] = {}
        for row in range(len(self._passages)):
            passage = self._passages[row]
            fields = {own: value for own in _OWN if (value := getattr(passage, own))}
            fields = {**(passage.metadata or {}), **fields}
            names.update(fields)
            value = fields.get(name)
            for one in value if isinstance(value, list) else [value]:
                if (text := _text(one)) is not None:
                    rows.setdefault(text, array("q")).append(row)
        self._names = names
        return rows

    def _unknown(self, name: str) -> UsageError:
        return UsageError(
            f"no passage of the index has a field '{name}'.{nearest(name, self._names)} They have: "
            f"{listed(self._names) or 'none'}"
        )


def listed(names: Iterable[str]) -> str:
    """The names of fields, for a message."""
    known = sorted(names)
    more = f" and {len(known) - _MAX_SHOWN} more" if len(known) > _MAX_SHOWN else ""
    return f"{', '.join(known[:_MAX_SHOWN])}{more}"

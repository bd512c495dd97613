"""Runs as one HTML file that needs no network, no larger than asked for, and that says what it left out.

All data is deflated and base64: that is a third to a fifth of the text, and nothing in it can be markup. If not everything
fits, trajectories are taken evenly from the whole of the runs, the same question in every run and at every step together;
the list still shows the others, as far as it fits.
"""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parallelsearch.errors import DataError, UsageError
from parallelsearch.evaluation.metrics import ERROR_CLASSES
from parallelsearch.files import write_whole
from parallelsearch.viewer.index import FIELDS, RunIndex, encode, open_runs
from parallelsearch.viewer.record import record_view
from parallelsearch.viewer.template import exported_page

MAX_BYTES = 20_000_000
_PAGE_HEAD = b"<!doctype html>"
_BLOCK_RECORDS = 32
_BLOCK_BYTES = 1_000_000
_LIST_SHARE = 0.4
"""How much of the room the list may take before it is shortened, too."""
_SPREAD = (5**0.5 - 1) / 2
"""Steps of the golden ratio fall evenly on a circle, wherever one stops."""

Place = tuple[int, int]
"""Number of a run, number of a row in it."""


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What an exported page holds. `notes` are about lines of the runs that could not be read."""

    path: Path
    num_bytes: int
    max_bytes: int
    num_trajectories: int
    num_listed: int
    num_embedded: int
    notes: list[str] = field(default_factory=list)

    @property
    def left_out(self) -> str | None:
        """A sentence about what did not fit, or None."""
        missing, unlisted = self.num_trajectories - self.num_embedded, self.num_trajectories - self.num_listed
        if not missing:
            return None
        listed = f"{unlisted} of them are not in the list either" if unlisted else "all are in the list"
        return (
            f"{missing} of {self.num_trajectories} trajectories did not fit into {self.max_bytes / 1e6:g} MB and cannot be "
            f"opened in this file ({listed})"
        )


def export_html(
    runs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    max_bytes: int = MAX_BYTES,
    *,
    reward: str | None = None,
    first: Collection[str] = (),
) -> ExportReport:
    """Write the page of these runs. `reward` scores them by a preset instead of showing what was recorded; the questions
    whose ids are in `first` are put in before all others, so that they are there when not everything fits."""
    paths = [runs] if isinstance(runs, (str, os.PathLike)) else list(runs)
    target = Path(out)
    if target.is_dir():
        raise UsageError(f"'{target}' is a folder; give the name of the file to write, such as {target / 'run.html'}")
    if not _is_ours(target):
        raise UsageError(f"'{target}' is there and is no page of the viewer; it is left as it is. Give another file")
    indexes = open_runs(paths, reward)
    for index in indexes:
        index.refresh()
    export = _Export(indexes, max_bytes, first)
    page = export.page().encode("utf-8", "backslashreplace")
    try:
        write_whole(target, page)
    except OSError as error:
        raise UsageError(f"cannot write '{target}': {error.strerror or error}") from error
    return export.report(target, len(page))


def _is_ours(target: Path) -> bool:
    """Whether a file may be written over: there is none, it is empty, or it is a page."""
    try:
        with target.open("rb") as file:
            head = file.read(len(_PAGE_HEAD))
    except OSError:  # there is none, or writing will say what is wrong
        return True
    return not head or head.lower() == _PAGE_HEAD


class _Export:
    """Chooses what fits and puts it together."""

    def __init__(self, indexes: Sequence[RunIndex], max_bytes: int, first: Collection[str] = ()) -> None:
        self.indexes, self.max_bytes = indexes, max_bytes
        self.num_trajectories = sum(len(index) for index in indexes)
        self.blocks: list[str] = []
        self.members: list[list[Place]] = []
        self.notes = [f"{index.name}: {note}" for index in indexes for note in index.notes()]
        self.groups = self._groups(first)
        self.room = max_bytes - len(exported_page("").encode()) - 4_096
        self.listed = self._listed()

    def _groups(self, first: Collection[str]) -> list[list[Place]]:
        """Rows of the same question, in an order that is spread over the runs, after those that come first."""
        groups: dict[str, list[Place]] = {}
        for run, index in enumerate(self.indexes):
            for number, row in enumerate(index.rows()):
                id, question, *_ = json.loads(row)
                groups.setdefault(id or question, []).append((run, number))
        wanted = [groups.pop(id) for id in first if id in groups]
        ordered = list(groups.values())
        order = sorted(range(len(ordered)), key=lambda number: number * _SPREAD % 1.0)
        return [*wanted, *(ordered[number] for number in order)]

    def _listed(self) -> list[list[int]]:
        """For each run the rows that the list shows: all of them, or the first groups of the order above."""
        groups = self.groups
        while True:
            listed: list[list[int]] = [[] for _ in self.indexes]
            for group in groups:
                for run, number in group:
                    listed[run].append(number)
            for numbers in listed:
                numbers.sort()
            # A row's place costs a few bytes of its own, in the head.
            size = sum(map(len, self._packed_rows(listed))) + 6 * sum(map(len, listed))
            if size <= _LIST_SHARE * self.room or (not groups and self.room > 0):
                self.groups = groups
                self.room -= size
                return listed
            if not groups or self.room <= 0:
                raise UsageError(
                    f"a page of at most {self.max_bytes} bytes has no room for any trajectory; "
                    f"allow at least {self.max_bytes - self.room + 100_000}"
                )
            groups = groups[: int(len(groups) * min(0.9, 0.95 * _LIST_SHARE * self.room / size))]

    def _packed_rows(self, listed: list[list[int]]) -> list[str]:
        packed = []
        for index, numbers in zip(self.indexes, listed, strict=True):
            rows = index.rows()
            packed.append(_pack(b"[" + b",".join(rows[number] for number in numbers) + b"]"))
        return packed

    def page(self) -> str:
        self._fill()
        while True:
            page = exported_page(self._data())
            if len(page.encode("utf-8", "backslashreplace")) <= self.max_bytes:
                return page
            if not self.blocks:
                raise UsageError(f"a page of at most {self.max_bytes} bytes has no room for these runs; allow more")
            self.blocks.pop()
            self.members.pop()

    def _fill(self) -> None:
        """Add blocks of trajectories as long as they fit."""
        pending: list[tuple[Place, bytes]] = []
        num_pending = 0
        for group in self.groups:
            for run, number in group:
                try:
                    record = encode(record_view(self.indexes[run].trajectory(number)))
                except DataError as error:
                    self.notes.append(f"{self.indexes[run].name}: {error}")
                    continue
                pending.append(((run, number), record))
                num_pending += len(record)
                if len(pending) == _BLOCK_RECORDS or num_pending >= _BLOCK_BYTES:
                    if not self._add(pending):
                        return
                    pending, num_pending = [], 0
        if pending:
            self._add(pending)

    def _add(self, pending: list[tuple[Place, bytes]]) -> bool:
        """One more block, or as much of it as fits. False when the page is full."""
        wanted = len(pending)
        while pending:
            block = _pack(b"\n".join(record for _, record in pending))
            if len(block) + 3 <= self.room:
                self.room -= len(block) + 3
                self.blocks.append(block)
                self.members.append([place for place, _ in pending])
                return len(pending) == wanted
            pending = pending[: len(pending) // 2]
        return False

    def _data(self) -> str:
        places = {
            place: block * _BLOCK_RECORDS + position
            for block, members in enumerate(self.members)
            for position, place in enumerate(members)
        }
        runs: list[dict[str, Any]] = []
        for run, (index, numbers) in enumerate(zip(self.indexes, self.listed, strict=True)):
            described = index.describe()
            described["places"] = [places.get((run, number), -1) for number in numbers]
            described["num_listed"] = len(numbers)
            runs.append(described)
        report = self.report(Path(), 0)
        head = {
            "fields": FIELDS,
            "error_classes": ERROR_CLASSES,
            "block_records": _BLOCK_RECORDS,
            "left_out": report.left_out,
            "runs": runs,
        }
        return json.dumps({"head": _pack(encode(head)), "rows": self._packed_rows(self.listed), "blocks": self.blocks})

    def report(self, path: Path, num_bytes: int) -> ExportReport:
        return ExportReport(
            path=path,
            num_bytes=num_bytes,
            max_bytes=self.max_bytes,
            num_trajectories=self.num_trajectories,
            num_listed=sum(map(len, self.listed)),
            num_embedded=sum(map(len, self.members)),
            notes=self.notes,
        )


def _pack(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 6)).decode("ascii")

"""The folder of one run: manifest, trajectories as they finish, and what is derived from them.

`trajectories.jsonl` is the record: a line is added when its question is done (`appended.py`), so a run that is killed loses
only what was in flight. One process at a time holds the folder. Rows and summary can always be made again. What a judge said
of the answers (`judgements.py`) is no part of the set-up; it is put into the rows wherever they are made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

from parallelsearch.errors import DataError, UsageError
from parallelsearch.evaluation.appended import AppendedLines, RunStoppedError
from parallelsearch.evaluation.judgements import Judgements
from parallelsearch.evaluation.manifest import MANIFEST_FILE, Manifest, differences, now, read_manifest
from parallelsearch.evaluation.metrics import Row, row_from_dict, row_of
from parallelsearch.files import held_folder, read_json, read_jsonl, remove_drafts, to_json, write_json, write_lines
from parallelsearch.limits import Prices
from parallelsearch.trajectory import Question, Trajectory, read_trajectories

TRAJECTORIES_FILE, ROWS_FILE, SUMMARY_FILE = "trajectories.jsonl", "rows.jsonl", "summary.json"


class RunFolder:
    """Holds the folder while a run writes to it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._record: AppendedLines | None = None
        self._held = ExitStack()

    def __enter__(self) -> RunFolder:
        self._held.enter_context(held_folder(self.path, "choose another --out"))
        remove_drafts(self.path)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._record is not None:
            self._record.close()
            self._record = None
        self._held.close()

    @cached_property
    def judgements(self) -> Judgements:
        """Read when they are first wanted: nobody else writes then."""
        return Judgements(self.path)

    # ---- starting and going on ---------------------------------------------------------------------------------------

    def begin(self, manifest: Manifest) -> bool:
        """Freeze the manifest, or, if there is one already, check that it is the same set-up. True if the run goes on."""
        try:
            return self._begin(manifest)
        except OSError as error:
            raise UsageError(f"cannot write to '{self.path}': {error.strerror or error}") from error

    def _begin(self, manifest: Manifest) -> bool:
        has_record = (self.path / TRAJECTORIES_FILE).exists()
        if not (self.path / MANIFEST_FILE).exists():
            if has_record:
                raise UsageError(
                    f"'{self.path}' has {TRAJECTORIES_FILE} but no {MANIFEST_FILE}, so it cannot be told what they are; "
                    "choose another --out"
                )
            manifest.write(self.path)
            self._open()
            return False
        old = read_manifest(self.path)
        different = differences(old.setup, manifest.setup)
        if different:
            listed = "\n".join(f"  {one}" for one in different)
            raise UsageError(
                f"'{self.path}' holds a run of another set-up (its own value against the one asked for now):\n{listed}\n"
                "Choose another --out, or ask for the same set-up to continue it"
            )
        changed = [str(one) for one in differences(old.environment, manifest.environment)]
        old.resumed.append({"at": now(), "changed": changed})
        old.write(self.path)
        manifest.created, manifest.resumed = old.created, old.resumed
        self._open()
        return True

    def _open(self) -> None:
        self._record = AppendedLines(self.path / TRAJECTORIES_FILE)

    @property
    def record(self) -> AppendedLines:
        if self._record is None:
            raise RuntimeError("a run folder is written to between its beginning and its end")
        return self._record

    def drop(self, is_dropped: Callable[[Trajectory], bool]) -> int:
        """Take trajectories out of the record (failures that are to be tried again). Call before anything is added."""
        path = self.path / TRAJECTORIES_FILE
        num_dropped = 0

        def kept() -> Iterator[str]:
            nonlocal num_dropped
            for trajectory in read_trajectories(path):
                if is_dropped(trajectory):
                    num_dropped += 1
                else:
                    yield trajectory.to_json()

        write_lines(path, kept())
        self.record.close()
        self._open()
        return num_dropped

    # ---- writing -----------------------------------------------------------------------------------------------------

    def add(self, trajectory: Trajectory) -> None:
        """One line, written at once."""
        self.record.add(trajectory.to_json())

    def finish(self, rows: Sequence[Row], summary: Mapping[str, Any]) -> dict[str, Any]:
        """Write what is derived from the record. Returns the summary as it was written."""
        try:
            self.record.sync()
        except OSError as error:
            raise _not_summed_up(self.path, error) from error
        return write_summary(self.path, rows, summary, self.judgements)

    # ---- reading -----------------------------------------------------------------------------------------------------

    def rows(self, questions: Mapping[str, Question], prices: Prices | None = None) -> Iterator[Row]:
        """The rows of what is done already."""
        if not (self.path / TRAJECTORIES_FILE).exists():
            return
        for trajectory in read_trajectories(self.path / TRAJECTORIES_FILE):
            question = questions.get(trajectory.id)
            if question is None:
                raise DataError(
                    str(self.path / TRAJECTORIES_FILE), None, f"holds '{trajectory.id}', which is not asked here", "id"
                )
            yield self.row(trajectory, question, prices)

    def row(self, trajectory: Trajectory, question: Question, prices: Prices | None = None) -> Row:
        """What a question is measured by, the judge's verdict included where there is one."""
        return self.judgements.mark(row_of(trajectory, question, prices), trajectory)


def write_summary(
    folder: Path, rows: Sequence[Row], summary: Mapping[str, Any], judgements: Judgements
) -> dict[str, Any]:
    """What is derived from the record and from the verdicts, with how long these were. Returns the summary as written."""
    whole = {
        **summary,
        **judgements.summary(),
        "trajectories_bytes": (folder / TRAJECTORIES_FILE).stat().st_size,
        "judgements_bytes": judgements.num_bytes,
    }
    try:
        write_lines(folder / ROWS_FILE, (to_json(row.to_dict()) for row in rows))
        write_json(folder / SUMMARY_FILE, whole)
    except OSError as error:
        raise _not_summed_up(folder, error) from error
    return whole


def _not_summed_up(folder: Path, error: OSError) -> RunStoppedError:
    return RunStoppedError(
        f"all questions are done, but the summary could not be written to '{folder}': {error.strerror or error}. "
        "Make room and give the same command again"
    )


def read_summary(folder: str | os.PathLike[str]) -> dict[str, Any]:
    path = Path(folder) / SUMMARY_FILE
    try:
        record = read_json(path)
    except FileNotFoundError:
        raise UsageError(
            f"'{folder}' has no {SUMMARY_FILE}: the run is not finished. Give its command again to go on"
        ) from None
    if not isinstance(record, dict) or "subsets" not in record:
        raise DataError(str(path), None, "is not the summary of a run")
    return record


def is_summed_up(folder: Path) -> bool:
    """Whether the rows and the summary are those of the record as it is now: the run is finished."""
    if not ((folder / ROWS_FILE).exists() and (folder / SUMMARY_FILE).exists()):
        return False
    return bool(read_summary(folder).get("trajectories_bytes") == (folder / TRAJECTORIES_FILE).stat().st_size)


def read_rows(folder: str | os.PathLike[str]) -> list[Row]:
    """The rows of a run: as written at its end, or, where that is missing or out of date, from its trajectories. Verdicts of
    a judge are those that lie in the folder now."""
    path = Path(folder)
    record = path / TRAJECTORIES_FILE
    if not record.exists():
        raise UsageError(f"'{folder}' is not a run folder: it has no {TRAJECTORIES_FILE}")
    judgements = Judgements(path)
    if not is_summed_up(path):
        return [judgements.mark(row_of(trajectory), trajectory) for trajectory in read_trajectories(record)]
    rows = [row_from_dict(value, str(path / ROWS_FILE), line) for line, value in read_jsonl(path / ROWS_FILE)]
    if read_summary(path).get("judgements_bytes", 0) != judgements.num_bytes:
        judgements.mark_all(rows, read_trajectories(record))
    return rows


def short_names(folders: Sequence[Path]) -> list[str]:
    """A name for each run, no two alike: its folder's, with as many of the parents as it takes; a number where one comes
    twice."""
    parts = [folder.resolve().parts for folder in folders]
    for depth in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(one[-depth:]) for one in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{folder.resolve().name} ({number})" for number, folder in enumerate(folders, start=1)]

"""The folder of one run: manifest, trajectories as they finish, and what is derived from them.

`trajectories.jsonl` is the record: a line is added by one write when its question is done, so a run that is killed loses
only what was in flight. A line that was torn is cut off when the run goes on; a write that fails (disk full) is undone, so
that everything before it stays readable. One process at a time holds the folder. Rows and summary can always be made again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from parallelsearch.errors import DataError, ParallelSearchError, UsageError
from parallelsearch.evaluation.manifest import MANIFEST_FILE, Manifest, differences, now, read_manifest
from parallelsearch.evaluation.metrics import Row, row_from_dict, row_of
from parallelsearch.files import held_folder, read_json, read_jsonl, remove_drafts, to_json, write_json, write_lines
from parallelsearch.limits import Prices
from parallelsearch.trajectory import Question, Trajectory, read_trajectories

TRAJECTORIES_FILE, ROWS_FILE, SUMMARY_FILE = "trajectories.jsonl", "rows.jsonl", "summary.json"


class RunStoppedError(ParallelSearchError):
    """A run could not go on; what was done stays and the same command continues it."""


class RunFolder:
    """Holds the folder while a run writes to it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._file = -1
        self._held = ExitStack()

    def __enter__(self) -> RunFolder:
        self._held.enter_context(held_folder(self.path, "choose another --out"))
        remove_drafts(self.path)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._held.close()

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
        self._repair()
        self._open()
        return True

    def _open(self) -> None:
        self._file = os.open(self.path / TRAJECTORIES_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def _repair(self) -> None:
        """Cut off a last line that was torn."""
        path = self.path / TRAJECTORIES_FILE
        if not path.exists():
            return
        with path.open("rb+") as file:
            end = size = file.seek(0, os.SEEK_END)
            while end > 0:  # backwards, a piece at a time, to the last end of a line
                start = max(0, end - 65_536)
                file.seek(start)
                cut = file.read(end - start).rfind(b"\n")
                if cut >= 0:
                    end = start + cut + 1
                    break
                end = start
            if end < size:
                file.truncate(end)

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
        os.close(self._file)
        self._open()
        return num_dropped

    # ---- writing -----------------------------------------------------------------------------------------------------

    def add(self, trajectory: Trajectory) -> None:
        """One line, written at once. If it cannot be, the file is left as it was and `RunStoppedError` says why."""
        line = trajectory.to_json().encode("utf-8") + b"\n"
        size = os.fstat(self._file).st_size
        try:
            view = memoryview(line)
            while view:
                view = view[os.write(self._file, view) :]
        except OSError as error:
            os.ftruncate(self._file, size)
            raise RunStoppedError(
                f"cannot write to '{self.path / TRAJECTORIES_FILE}': {error.strerror or error}. Everything up to here is "
                "kept; make room and give the same command again to go on"
            ) from error

    def finish(self, rows: Sequence[Row], summary: Mapping[str, Any]) -> None:
        try:
            os.fsync(self._file)
            write_lines(self.path / ROWS_FILE, (to_json(row.to_dict()) for row in rows))
            write_json(self.path / SUMMARY_FILE, {**summary, "trajectories_bytes": os.fstat(self._file).st_size})
        except OSError as error:
            raise RunStoppedError(
                f"all questions are done, but the summary could not be written to '{self.path}': {error.strerror or error}. "
                "Make room and give the same command again"
            ) from error

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
            yield row_of(trajectory, question, prices)


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


def read_rows(folder: str | os.PathLike[str]) -> list[Row]:
    """The rows of a run: as written at its end, or, where that is missing or out of date, from its trajectories."""
    path = Path(folder)
    record = path / TRAJECTORIES_FILE
    if not record.exists():
        raise UsageError(f"'{folder}' is not a run folder: it has no {TRAJECTORIES_FILE}")
    has_both = (path / ROWS_FILE).exists() and (path / SUMMARY_FILE).exists()
    if has_both and read_summary(path).get("trajectories_bytes") == record.stat().st_size:
        return [row_from_dict(value, str(path / ROWS_FILE), line) for line, value in read_jsonl(path / ROWS_FILE)]
    return [row_of(trajectory) for trajectory in read_trajectories(record)]


def short_names(folders: Sequence[Path]) -> list[str]:
    """A name for each run, no two alike: its folder's, with as many of the parents as it takes; a number where one comes
    twice."""
    parts = [folder.resolve().parts for folder in folders]
    for depth in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(one[-depth:]) for one in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{folder.resolve().name} ({number})" for number, folder in enumerate(folders, start=1)]

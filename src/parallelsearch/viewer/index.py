"""One pass over the trajectories of a run: a compact row for each, and where its line begins.

The list of the viewer is made of rows alone; a trajectory is read again, by its byte offset, when somebody opens it. The
pass can go on later, so a run that is still being written is followed. A line that cannot be read is named and passed
over; a last line that is not complete is left for the next time. Why a wrong answer is wrong needs its evidence looked at,
so that comes after, when the list is already there: from the run's own rows where these are up to date, else by
`metrics.py`. Nothing is written to the run's folder.
"""

from __future__ import annotations

import json
import os
import re
import threading
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from pydantic_core import from_json

from parallelsearch.errors import DataError, ParallelSearchError, RewardError, UsageError
from parallelsearch.evaluation.folder import TRAJECTORIES_FILE, read_rows, read_summary
from parallelsearch.evaluation.metrics import Row, row_of
from parallelsearch.files import MAX_LINE_BYTES, decoded, parse_json
from parallelsearch.rewards import check as check_reward
from parallelsearch.rewards import reward as reward_of
from parallelsearch.training.metrics import METRICS_FILE, SAMPLES_FOLDER, read_metrics
from parallelsearch.trajectory import Trajectory, trajectory_from_dict
from parallelsearch.untrusted import finite
from parallelsearch.viewer.brief import brief_of

MAX_NAMED_PROBLEMS = 20
FIELDS = (
    "id", "question", "answer", "golden", "right", "f1", "kind", "type", "dataset", "split", "reward", "stop",
    "error_class", "step", "phase", "sample", "calls", "rounds", "subqueries", "elapsed_s", "queries",
)  # fmt: skip
"""What a row holds, in its order."""
_ID, _F1, _ERROR_CLASS = (FIELDS.index(name) for name in ("id", "f1", "error_class"))
STEP_METRICS = ("accuracy", "val/accuracy", "reward/total", "split/parallel", "split/sequential", "llm_calls", "kl")
"""The figures of a training step that are shown beside the slider."""
_MAX_CHARS = {"id": 200, "question": 400, "answer": 200, "golden": 200, "queries": 400, "word": 80}
_SAMPLE_NAME = re.compile(r"(.+)-(\d+)")


@dataclass(slots=True)
class Source:
    """One file of trajectories, and how far it was read. `phase` says what a training run sampled it for."""

    path: Path
    phase: str | None = None
    next_offset: int = 0
    num_lines: int = 0
    torn_bytes: int = 0

    @property
    def name(self) -> str:
        """Without the folders above the run: a page that is passed on says nothing about the machine."""
        return self.path.name


def find_sources(path: Path) -> list[Source]:
    """The files of a run: a file itself, an evaluation's record, or a training run's samples in order of their steps."""
    if path.is_file():
        if path.suffix in (".gz", ".zst"):
            tool = "gzip" if path.suffix == ".gz" else "zstd"
            raise UsageError(f"'{path}' is compressed and cannot be paged; unpack it first: {tool} -dk '{path}'")
        return [Source(path)]
    if not path.is_dir():
        raise UsageError(f"there is no run at '{path}' (looked in {Path.cwd()})")
    record = path / TRAJECTORIES_FILE
    found = [Source(record)] if record.is_file() else []
    samples: list[tuple[int, str, Source]] = []
    for file in (path / SAMPLES_FOLDER).glob("*.jsonl"):
        named = _SAMPLE_NAME.fullmatch(file.stem)
        kind, step = (named[1], int(named[2])) if named else (file.stem, 0)
        samples.append((step, kind, Source(file, "train" if kind == "step" else kind)))
    found += [source for _, _, source in sorted(samples, key=lambda one: one[:2])]
    if not found:
        raise UsageError(
            f"'{path}' has neither {TRAJECTORIES_FILE} (an evaluation) nor {SAMPLES_FOLDER}/*.jsonl (a training run); "
            "give the folder of a run, or a file of trajectories"
        )
    return found


@dataclass(slots=True)
class _Rows:
    """Rows that were read so far, ready to be sent, with the place of each line."""

    encoded: list[bytes] = field(default_factory=list)
    sources: array[int] = field(default_factory=lambda: array("I"))
    offsets: array[int] = field(default_factory=lambda: array("Q"))
    lengths: array[int] = field(default_factory=lambda: array("I"))


class RunIndex:
    """The index of one run. One thread reads on (`refresh`), others may ask for rows and trajectories meanwhile."""

    def __init__(self, path: str | os.PathLike[str], *, name: str | None = None, reward: str | None = None) -> None:
        self.path = Path(path)
        self.reward = reward
        self._sources = find_sources(self.path)
        self.name = name or self._own_name()
        self.generation = 0
        """Goes up when the run was rewritten, so that row numbers mean something else than before."""
        self.is_complete = False
        """Every line has its row."""
        self.is_judged = False
        """Every wrong answer has its error class."""
        self.num_problems = 0
        self.problems: list[str] = []
        self.metrics: dict[int, dict[str, float]] = {}
        self._rows = _Rows()
        self._unjudged: list[int] = []
        self._lock = threading.Lock()
        self._is_closed = False
        self._read_metrics()

    def _own_name(self) -> str:
        path = self.path.resolve()
        return path.parent.name or path.name if path.name == TRAJECTORIES_FILE else path.name

    def __len__(self) -> int:
        return len(self._rows.encoded)

    # ---- reading on --------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Read what was not read yet. Nothing to do when another thread does so already."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._find_new_sources()
            if any(_size(source.path) < source.next_offset for source in self._sources):
                self._start_again()
            self._read_metrics()
            for number, source in enumerate(self._sources):
                if _size(source.path) == source.next_offset:
                    continue
                self.is_complete = self.is_judged = False
                self._read(number, source)
            self.is_complete = not self._is_closed
            self._judge()
            self.is_judged = not self._is_closed
        finally:
            self._lock.release()

    def close(self) -> None:
        """Let a pass that is under way end at its next line."""
        self._is_closed = True

    def _find_new_sources(self) -> None:
        known = {source.path for source in self._sources}
        self._sources += [source for source in find_sources(self.path) if source.path not in known]

    def _start_again(self) -> None:
        self._sources = find_sources(self.path)
        self._rows, self._unjudged = _Rows(), []
        self.num_problems, self.problems = 0, []
        self.is_complete = self.is_judged = False
        self.generation += 1

    def _read_metrics(self) -> None:
        try:
            records = read_metrics(self.path / METRICS_FILE) if self.path.is_dir() else []
        except (ParallelSearchError, OSError, ValueError):
            self._problem(f"{METRICS_FILE} cannot be read; the figures of the steps are left out")
            return
        for record in records:
            step = record.get("step") if isinstance(record, dict) else None
            if isinstance(step, int):
                figures = {name: value for name in STEP_METRICS if (value := _number(record.get(name))) is not None}
                self.metrics.setdefault(step, {}).update(figures)

    def _written_rows(self) -> dict[str, Row]:
        """The rows that the run wrote at its end, by id: they know more than a trajectory (the question's own graph)."""
        if not self.path.is_dir():
            return {}
        try:
            if read_summary(self.path).get("trajectories_bytes") != _size(self.path / TRAJECTORIES_FILE):
                return {}
            return {row.id: row for row in read_rows(self.path)}
        except ParallelSearchError:
            return {}  # not finished, or of another release: they are made again

    def _read(self, number: int, source: Source) -> None:
        source.torn_bytes = 0
        with source.path.open("rb") as file:
            for offset, line, length in _lines(file, source.next_offset):
                if self._is_closed:
                    return
                has_end = line is None or line.endswith(b"\n")
                source.num_lines += 1
                try:
                    if line is None:
                        raise DataError(
                            source.name, source.num_lines, f"the line is over the limit of {MAX_LINE_BYTES >> 20} MiB"
                        )
                    if line.strip():
                        values, is_judged = self._values(line, source)
                        if not is_judged:
                            self._unjudged.append(len(self))
                        self._rows.sources.append(number)
                        self._rows.offsets.append(offset)
                        self._rows.lengths.append(length)
                        self._rows.encoded.append(encode(values))  # last: from now on it may be asked for
                except DataError as error:
                    if not has_end:
                        # Still being written, or cut off: the next refresh looks at it again.
                        source.torn_bytes = length
                        source.num_lines -= 1
                        return
                    self._problem(str(error))
                source.next_offset = offset + length

    def _problem(self, message: str) -> None:
        if message in self.problems:
            return  # found again by a later refresh
        self.num_problems += 1
        if len(self.problems) < MAX_NAMED_PROBLEMS:
            self.problems.append(message)

    def _judge(self) -> None:
        """Give the wrong answers their F1 and error class."""
        written = self._written_rows() if self._unjudged else {}
        while self._unjudged and not self._is_closed:
            number = self._unjudged.pop()
            values = json.loads(self._rows.encoded[number])
            try:
                row = written.get(values[_ID]) or row_of(self.trajectory(number))
            except DataError as error:
                self._problem(str(error))
                continue
            values[_F1], values[_ERROR_CLASS] = round(row.f1, 4), row.error_class
            self._rows.encoded[number] = encode(values)

    def _values(self, line: bytes, source: Source) -> tuple[list[Any], bool]:
        """The row of a line, and whether it is complete: a wrong answer may still lack F1 and error class."""
        f1: float | None = None
        error_class: str | None = None
        trajectory = brief_of(line) if self.reward is None else None
        if trajectory is not None:
            right = trajectory.is_right
            f1 = 1.0 if right else None
            is_judged = right or not trajectory.golden_answers
        else:
            record = _record(line, source.name, source.num_lines)
            trajectory = trajectory_from_dict(record, source.name, source.num_lines)
            row = row_of(trajectory)
            right, f1, error_class, is_judged = row.em, round(row.f1, 4), row.error_class, True
        rewards = self.rewards_of(trajectory)
        queries = [query.text for query in trajectory.queries]
        values = {
            "id": _short(trajectory.id, "id"),
            "question": _short(trajectory.question, "question"),
            "answer": _short(trajectory.answer, "answer"),
            "golden": _short(" | ".join(trajectory.golden_answers), "golden"),
            "right": right if trajectory.golden_answers else None,
            "f1": f1 if trajectory.golden_answers else None,
            "kind": trajectory.kind,
            "type": _short(trajectory.type, "word"),
            "dataset": _short(trajectory.dataset, "word"),
            "split": trajectory.is_split,
            "reward": _number((rewards or {}).get("total")),
            "stop": trajectory.stop,
            "error_class": error_class if trajectory.golden_answers else None,
            "step": trajectory.step,
            "phase": _short(source.phase, "word"),
            "sample": trajectory.sample,
            "calls": trajectory.num_llm_calls,
            "rounds": trajectory.num_searches,
            "subqueries": trajectory.num_subqueries,
            "elapsed_s": _number(trajectory.elapsed_s),
            "queries": _short(" ## ".join(queries), "queries"),
        }
        return [values[name] for name in FIELDS], is_judged

    def rewards_of(self, trajectory: Trajectory) -> dict[str, float] | None:
        """As recorded, or by the preset that was asked for; None where that needs a kind and there is none."""
        if self.reward is None:
            return trajectory.rewards
        try:
            return reward_of(trajectory, self.reward).to_dict()
        except RewardError as error:  # the caller's own, on this trajectory
            self._problem(str(error))
            return None
        except UsageError:
            return None

    # ---- asking ------------------------------------------------------------------------------------------------------

    @property
    def num_bytes(self) -> int:
        return sum(_size(source.path) for source in self._sources)

    @property
    def num_bytes_read(self) -> int:
        return sum(source.next_offset for source in self._sources)

    def notes(self) -> list[str]:
        """What a person should know about this run: lines that could not be read, a last line that is torn."""
        notes = list(self.problems)
        if self.num_problems > len(notes):
            notes.append(f"and {self.num_problems - len(notes)} more lines that cannot be read")
        notes += [
            f"the last line of {source.name} is not complete ({source.torn_bytes} bytes) and is left out"
            for source in self._sources
            if source.torn_bytes
        ]
        return notes

    def describe(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "num_rows": len(self),
            "is_complete": self.is_complete,
            "is_judged": self.is_judged,
            "generation": self.generation,
            "num_bytes": self.num_bytes,
            "num_bytes_read": self.num_bytes_read,
            "notes": self.notes(),
            "reward": self.reward,
            "metrics": {str(step): figures for step, figures in sorted(self.metrics.items()) if figures},
        }

    def rows(self, start: int = 0, stop: int | None = None) -> list[bytes]:
        """Rows as JSON arrays, in the order of `FIELDS`."""
        return self._rows.encoded[start:stop]

    def trajectory(self, number: int) -> Trajectory:
        """The whole trajectory of a row, read from its place in the file."""
        rows = self._rows
        if not 0 <= number < len(rows.encoded):
            raise UsageError(f"there is no row {number}; '{self.name}' has {len(rows.encoded)}")
        source = self._sources[rows.sources[number]]
        try:
            with source.path.open("rb") as file:
                line = os.pread(file.fileno(), rows.lengths[number], rows.offsets[number])
        except OSError as error:
            raise DataError(source.name, None, f"cannot be read any more ({error.strerror})") from error
        trajectory = trajectory_from_dict(_record(line, source.name, None), source.name)
        trajectory.rewards = self.rewards_of(trajectory)
        return trajectory


def open_runs(paths: Sequence[str | os.PathLike[str]], reward: str | None = None) -> list[RunIndex]:
    """An index for each run, not read yet, under names that differ."""
    if not paths:
        raise UsageError("which run? Give its folder, or a file of trajectories")
    if reward is not None:
        check_reward(reward)  # an unknown preset is named before anything is read
    indexes: list[RunIndex] = []
    for path in paths:
        index = RunIndex(path, reward=reward)
        taken = {other.name for other in indexes}
        name, count = index.name, 1
        while index.name in taken:
            count += 1
            index.name = f"{name} ({count})"
        indexes.append(index)
    return indexes


# ---- lines and values ------------------------------------------------------------------------------------------------


def _lines(file: BinaryIO, offset: int) -> Iterator[tuple[int, bytes | None, int]]:
    """`(offset, line, length)`; None for a line over the limit, which is passed over without being held."""
    file.seek(offset)
    while line := file.readline(MAX_LINE_BYTES):
        length = len(line)
        if length == MAX_LINE_BYTES and not line.endswith(b"\n"):
            while rest := file.readline(MAX_LINE_BYTES):
                length += len(rest)
                if rest.endswith(b"\n"):
                    break
            yield offset, None, length
        else:
            yield offset, line, length
        offset += length


def _record(line: bytes, name: str, number: int | None) -> Any:
    line = line.removeprefix(b"\xef\xbb\xbf")
    try:
        return from_json(line)
    except ValueError:
        pass
    text = decoded(line, Path(name), number)  # slower, kinder to half surrogates, and with the better message
    if isinstance(text, DataError):
        raise text
    return parse_json(text, Path(name), number)


def encode(value: Any) -> bytes:
    """Compact JSON that any browser parses: no NaN, a lone surrogate as its escape."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode(
        "utf-8", "backslashreplace"
    )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _short(text: str | None, name: str) -> str | None:
    limit = _MAX_CHARS[name]
    return text if text is None or len(text) <= limit else text[: limit - 3] + "..."


def _number(value: Any) -> float | None:
    number = finite(value)
    return None if number is None else round(number, 6)

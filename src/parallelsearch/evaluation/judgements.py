"""What a judge said about the answers of a run, as it is kept in the run's folder.

`judge.json` says who judged and by which words; `judgements.jsonl` has a line for each answer, written when its verdict is
there. A verdict is about a question, its golden answers and one answer: it holds as long as these are what they were, so a
run whose failures were asked again loses only the verdicts of answers that changed. Verdicts of two judges never stand in one
folder. An answer that is missing is wrong, and nobody is asked.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from parallelsearch.errors import DataError, UsageError
from parallelsearch.evaluation.appended import AppendedLines
from parallelsearch.evaluation.judging import asked_sha256, prompt_form
from parallelsearch.evaluation.manifest import differences, hash_text, now, plain
from parallelsearch.evaluation.metrics import Row
from parallelsearch.files import read_json, read_jsonl, to_json, write_json
from parallelsearch.policy.base import Policy
from parallelsearch.trajectory import Trajectory

JUDGE_FILE, JUDGEMENTS_FILE = "judge.json", "judgements.jsonl"


@dataclass(frozen=True, slots=True)
class Judgement:
    """A line. `verdict` is whether the answer is right; None where the judge gave none, and `error` says why. Tokens are
    those that the server counted, or an estimate."""

    id: str
    asked_sha256: str
    verdict: bool | None
    text: str | None = None
    error: str | None = None
    num_read: int = 0
    num_written: int = 0
    was_asked: bool = True

    def to_json(self) -> str:
        return to_json(asdict(self))


@dataclass(frozen=True, slots=True)
class JudgeSetup:
    """Who judges, and by which words: verdicts of two that differ in it do not stand side by side."""

    judge: Mapping[str, Any]
    title: str
    prompt_sha256: str

    @classmethod
    def of(cls, judge: Policy) -> JudgeSetup:
        return cls(plain(judge.describe()), judge.title, hash_text(prompt_form()))

    @property
    def deciding(self) -> dict[str, Any]:
        return {"judge": self.judge, "prompt_sha256": self.prompt_sha256}


def judged_answer(trajectory: Trajectory) -> str | None:
    """The answer that is judged. None where there is none, or where the policy failed: then nothing counts as right."""
    answer = trajectory.answer or ""
    return answer if answer.strip() and trajectory.stop != "error" else None


def question_sha256(trajectory: Trajectory) -> str:
    return asked_sha256(trajectory.question, trajectory.golden_answers, judged_answer(trajectory))


class Judgements:
    """What the folder of a run holds of a judge; nothing where it never had one."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = Path(folder) / JUDGEMENTS_FILE
        self.setup = _read_setup(Path(folder))
        self.num_calls = self.num_answered = self.num_read = self.num_written = 0
        self._last: dict[tuple[str, str], tuple[bool | None, str | None]] = {}
        if self.setup is not None and self.path.exists():
            for _, record in read_jsonl(
                self.path, on_bad=lambda _: None
            ):  # a killed judge's last line may be half a line
                self._take(record)

    def __len__(self) -> int:
        return len(self._last)

    def _take(self, record: Any) -> None:
        known = {name: record[name] for name in Judgement.__dataclass_fields__ if name in record}
        try:
            self.count(Judgement(**known))
        except TypeError as error:
            raise DataError(
                str(self.path), None, f"holds a line that is no verdict of this release ({error})"
            ) from error

    def count(self, one: Judgement) -> None:
        """Take a verdict up: one that was just given, or is read from the file."""
        self._last[one.id, one.asked_sha256] = (one.verdict, one.error)
        self.num_calls += one.was_asked
        self.num_answered += one.was_asked and one.verdict is not None
        self.num_read += one.num_read
        self.num_written += one.num_written

    def of(self, trajectory: Trajectory) -> tuple[bool | None, str | None]:
        """The verdict on the answer, and why there is none where the judge was asked."""
        if not self._last:
            return None, None
        return self._last.get((trajectory.id, question_sha256(trajectory)), (None, None))

    def mark(self, row: Row, trajectory: Trajectory) -> Row:
        """Put into the row of a question what the judge said of its answer."""
        row.judged, row.judge_error = self.of(trajectory)
        return row

    def mark_all(self, rows: Sequence[Row], trajectories: Iterable[Trajectory]) -> None:
        """The same for all rows of a folder. Where a record joined by hand holds a question twice, its first answer
        counts."""
        by_id = {row.id: row for row in reversed(rows)}
        for row in rows:
            row.judged = row.judge_error = None
        for trajectory in trajectories:
            if trajectory.id in by_id:
                self.mark(by_id.pop(trajectory.id), trajectory)

    @property
    def num_bytes(self) -> int:
        """How much of the file there is: what was summed up before it grew is out of date."""
        return self.path.stat().st_size if self._last else 0

    def summary(self) -> dict[str, Any]:
        """For a run's summary: who judged, and what all calls came to, those too whose answers changed since."""
        if self.setup is None or not self._last:
            return {}
        return {
            "judge": {
                "title": self.setup.title,
                **self.setup.deciding,
                "num_calls": self.num_calls,
                "num_input_tokens": self.num_read,
                "num_output_tokens": self.num_written,
            }
        }


def _read_setup(folder: Path) -> JudgeSetup | None:
    path = folder / JUDGE_FILE
    try:
        record = read_json(path)
    except FileNotFoundError:
        return None
    try:
        return JudgeSetup(record["judge"], str(record["title"]), str(record["prompt_sha256"]))
    except (KeyError, TypeError) as error:
        raise DataError(str(path), None, "does not say who judged; remove it and judge again") from error


def check_same(found: Judgements, wanted: JudgeSetup, *, replaces: bool = False) -> None:
    """Refuse a folder that another judge began, key by key, unless its verdicts are to be replaced."""
    if found.setup is None or not len(found) or replaces:
        return
    different = differences(found.setup.deciding, wanted.deciding)
    if different:
        listed = "\n".join(f"  {one}" for one in different)
        raise UsageError(
            f"'{found.path.parent}' was judged by another judge, or by other words (its own value against the one asked for "
            f"now):\n{listed}\nTake the same to go on, or put this one's verdicts in their place: parallelsearch judge "
            f"{found.path.parent} --judge ADDRESS --replace (in Python: JudgeSettings(replace=True))"
        )


def begin(folder: Path, setup: JudgeSetup, *, replaces: bool = False) -> tuple[Judgements, AppendedLines]:
    """The verdicts so far, and the file to add to. For whoever holds the folder. What `replaces` removes is another judge's:
    one that was killed goes on, also when it is told so again."""
    found = Judgements(folder)
    check_same(found, setup, replaces=replaces)
    if found.setup is None or found.setup.deciding != setup.deciding:
        found.path.unlink(missing_ok=True)
        write_json(
            folder / JUDGE_FILE, {**setup.deciding, "title": setup.title, "prompt": prompt_form(), "begun": now()}
        )
        found = Judgements(folder)
    return found, AppendedLines(found.path)

"""Progress where there is no terminal: a line now and then, with what is left, and nothing for short work. Notes that fit."""

import subprocess
import sys
from pathlib import Path

import pytest

from parallelsearch.cli import options


def told(*updates: tuple[float, int, int | None, str]) -> list[str]:
    """What is said for updates at these times."""
    said: list[str] = []
    clock = [0.0]
    update = options.lines("questions", said.append, lambda: clock[0])
    for at, done, total, detail in updates:
        clock[0] = at
        update(done, total, detail)
    return said


def test_a_line_every_half_minute_with_the_time_that_is_left() -> None:
    said = told(
        (1, 0, 100, ""), (20, 10, 100, ""), (40, 20, 100, "EM 0.500, 0 failed"), (50, 25, 100, ""), (3700, 90, 100, "")
    )
    assert said == [
        "questions: 20 of 100, EM 0.500, 0 failed, after 0:40, about 2:40 left",
        "questions: 90 of 100, after 1:01:40, about 6:51 left",
    ]


def test_what_a_killed_run_had_done_does_not_count_as_speed() -> None:
    assert told((0, 80, 100, ""), (60, 90, 100, "")) == ["questions: 90 of 100, after 1:00, about 1:00 left"]
    assert told((0, 80, 100, ""), (60, 80, 100, "")) == ["questions: 80 of 100, after 1:00"]


def test_the_time_left_is_not_said_from_the_first_few() -> None:
    assert told((0, 0, 100, ""), (200, 1, 100, "")) == ["questions: 1 of 100, after 3:20"]
    assert told((0, 60, 100, ""), (40, 62, 100, "")) == ["questions: 62 of 100, after 0:40, about 12:40 left"]


def test_without_a_total_only_what_is_done_is_said() -> None:
    assert told((0, 0, None, ""), (31, 12_000, None, "")) == ["questions: 12,000, after 0:31"]


def test_short_work_in_a_log_file_says_nothing_of_itself(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "parallelsearch",
        "eval",
        "--data",
        "demo",
        "--limit",
        "3",
        "--out",
        str(tmp_path / "run"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=True)
    assert "questions" not in done.stderr
    assert "demo" in done.stdout


def test_a_log_file_of_long_work_has_lines(tmp_path: Path) -> None:
    program = (
        "import sys; from parallelsearch.cli import options; options.SECONDS_BETWEEN_LINES = 0.0; "
        "from parallelsearch.cli.app import app; app(sys.argv[1:])"
    )
    arguments = ["eval", "--data", "demo", "--limit", "3", "--out", str(tmp_path / "run")]
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=400)
    assert "questions: 3 of 3, EM " in done.stderr
    quiet = subprocess.run(
        [sys.executable, "-c", program, *arguments[:-1], str(tmp_path / "other"), "--json"],
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert "questions" not in quiet.stderr


def test_no_command_in_a_note_is_torn_by_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    choice = "policy: gguf:smollm2-135m+parallel (trained, on llama.cpp); for the written replay: --policy demo"
    for columns, is_terminal, lines in (("80", "1", 2), ("120", "1", 1), ("80", "0", 1)):
        monkeypatch.setenv("COLUMNS", columns)
        monkeypatch.setenv("TTY_COMPATIBLE", is_terminal)
        options.note(choice)
        assert len(said := capsys.readouterr().err.splitlines()) == lines
        assert said[-1].endswith("for the written replay: --policy demo")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    options.searched(None)
    assert [line for line in capsys.readouterr().err.splitlines() if len(line) > 80] == []

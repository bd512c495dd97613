"""What a person at a terminal meets when files, folders and records are wrong: one message, no traceback, no escape."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text

from parallelsearch.cli.options import console, say
from parallelsearch.cli.terminal import trajectory_view
from parallelsearch.retrieval.base import Hit
from parallelsearch.trajectory import Query, Segment, Trajectory, Turn, read_trajectories

ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\u2066\x85\r"


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "parallelsearch", *arguments]
    env = {**os.environ, "COLUMNS": "120"}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=400)


def is_tame(text: str) -> bool:
    return not any(char in text for char in ESCAPES if not char.isprintable())


def record(**changes: Any) -> str:
    whole: dict[str, Any] = {"question": "q?", "golden_answers": ["a"], "segments": [{"author": "model", "text": "x"}]}
    return json.dumps({**whole, **changes}) + "\n"


TIMES = {"start_s": float("nan"), "generate_s": float("inf"),
         "queries": [{"text": "q", "start_s": 1e308, "end_s": float("nan")}, {"text": "r", "start_s": -1e300, "end_s": 1e300}]}  # fmt: skip


def test_faults_are_messages(tmp_path: Path) -> None:
    """One process for each costs seconds, so only those that need a whole command."""
    (tmp_path / "times.jsonl").write_text(record(turns=[TIMES], elapsed_s=float("inf")))
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "manifest.json").write_text('{"a":' * 50_000)
    (tmp_path / "deep" / "trajectories.jsonl").write_text(record())
    (tmp_path / "corpus.jsonl").write_text('{"id": "1", "title": "t", "text": "x"}\n')
    (tmp_path / "escapes.jsonl").write_text(record(id=ESCAPES, schema_version=ESCAPES))
    commands = [
        (("view", "times.jsonl"), 0, ""),
        (("index", "corpus.jsonl", "--out", "/"), 2, "no name of its own"),
        (("eval", "--prompt-file", "nowhere.txt", "--out", "run"), 2, "nowhere.txt"),
        (("compare", "deep", "deep"), 1, "nested too deeply"),
        (("ask", "q?", "--cache", "/proc/no/cache"), 2, "search cache"),
        (("score", "escapes.jsonl"), 1, "schema_version"),
    ]  # fmt: skip
    for command, status, words in commands:
        result = run(*command, cwd=tmp_path)
        assert "Traceback" not in result.stderr, (command, result.stderr)
        assert result.returncode == status, (command, result.stderr)
        assert words in result.stderr, (command, result.stderr)
        assert is_tame(result.stdout + result.stderr), command


def hostile(text: str = ESCAPES) -> Trajectory:
    hit = Hit(text, text, text, text, text, 1.0, 1, metadata={"source": text, "page": text, text: text})
    turn = Turn([Query(text, [hit]), Query("q", error=text)], [text], thought=text, problems=[text])
    broken = Turn(finish="timeout", problems=[text])
    return Trajectory(text, [Segment("model", text)], [text], id=text, turns=[turn, broken], answer=text, error=text)


@pytest.mark.parametrize("answer", [ESCAPES, None])
def test_a_record_cannot_speak_to_the_terminal(answer: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    trajectory = hostile()
    trajectory.answer = answer
    screen = console()
    screen.print(trajectory_view(trajectory, 100))
    screen.print(Text(ESCAPES))
    say(trajectory.to_json())
    say(ESCAPES, err=True)
    out, err = capsys.readouterr()
    assert is_tame(out + err)


def test_json_for_programs_means_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    trajectory = hostile()
    say(trajectory.to_json())
    assert json.loads(capsys.readouterr().out) == json.loads(trajectory.to_json())


def test_times_that_no_clock_says_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(record(turns=[TIMES, {**TIMES, "generate_s": 1e300}], elapsed_s=1e300))
    for trajectory in read_trajectories(path):
        console().print(trajectory_view(trajectory, 100))
    assert "turn 1" in capsys.readouterr().out

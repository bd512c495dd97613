"""Shared by the tests of the commands: one given in this process, to the same `main`, because a new one spends a second on its
imports."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from parallelsearch.cli.app import main

Here = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def here(monkeypatch, capsys) -> Here:
    """A command as it is typed, in this process. An exception that is not told comes out of `main`, and fails the test."""

    def call(
        *arguments: str, cwd: Path | None = None, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        with monkeypatch.context() as patch:
            patch.chdir(cwd or ".")
            for name, value in {"COLUMNS": "120", **(env or {})}.items():
                patch.setenv(name, value)
            patch.setattr(sys, "argv", ["parallelsearch", *arguments])
            capsys.readouterr()
            with pytest.raises(SystemExit) as ended:
                main()
        return subprocess.CompletedProcess(arguments, ended.value.code, *capsys.readouterr())

    return call

"""On CI a test that is skipped is a test that failed: the hook of `conftest.py`, in a pytest of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

MODULE = """
import pytest

@pytest.fixture
def browser():
    pytest.skip("no Chromium on this machine")

def test_import():
    pytest.importorskip("no_such_package")

@pytest.mark.skipif(True, reason="the weights are not installed")
def test_marked():
    pass

def test_fixture(browser):
    pass

@pytest.mark.xfail(reason="known")
def test_known_to_fail():
    assert False

def test_good():
    pass
"""


def outcomes(folder: Path, no_skips: str) -> tuple[int, dict[str, int], str]:
    (folder / "test_some.py").write_text(MODULE)
    (folder / "test_whole_module.py").write_text("import pytest\npytest.importorskip('no_such_package')\n")
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": str(here), "PARALLELSEARCH_NO_SKIPS": no_skips}
    environment.pop("PARALLELSEARCH_DATA", None)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "conftest",
        "-p",
        "no:cacheprovider",
        "-q",
        "-rA",
        "-c",
        os.devnull,
    ]
    options = ["--rootdir", str(folder), "--continue-on-collection-errors", str(folder)]
    done = subprocess.run(
        [*command, *options], env=environment, cwd=folder, capture_output=True, text=True, timeout=400, check=False
    )
    last = done.stdout.splitlines()[-1]
    return done.returncode, {word: int(number) for number, word in re.findall(r"(\d+) (\w+)", last)}, done.stdout


def test_without_the_variable_what_is_missing_is_skipped(tmp_path: Path) -> None:
    status, counts, _ = outcomes(tmp_path, "")
    assert (status, counts["passed"], counts["xfailed"], counts["skipped"]) == (0, 1, 1, 4)


def test_with_the_variable_every_skip_is_a_failure_that_says_what_is_missing(tmp_path: Path) -> None:
    status, counts, text = outcomes(tmp_path, "1")
    assert status == 1
    assert "skipped" not in counts
    assert (counts["passed"], counts["xfailed"], counts.get("failed", 0) + counts["errors"]) == (1, 1, 4)
    for reason in ("no_such_package", "no Chromium on this machine", "the weights are not installed"):
        assert re.search(f"nothing may be skipped where PARALLELSEARCH_NO_SKIPS is set.*{reason}", text), reason

"""The programs of docs/integrations.md run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "integrations.md").read_text()
PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_the_program_runs(program):
    if "langchain" in program:
        pytest.importorskip("langchain_core", reason="pip install 'parallelsearch[integrations]'")
    result = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    if "print" in program:
        assert "Camille Pissarro" in result.stdout

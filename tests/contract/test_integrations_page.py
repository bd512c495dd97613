"""The programs of docs/integrations.md and docs/retrieve.md run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGES = [(Path(__file__).parents[2] / "docs" / name).read_text() for name in ("integrations.md", "retrieve.md")]
PROGRAMS = [program for page in PAGES for program in re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)]
FRAMEWORKS = {"langchain": "langchain_core", "llama_index": "llama_index.core", "haystack": "haystack"}


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_the_program_runs(program):
    for name, module in FRAMEWORKS.items():
        if name in program:
            pytest.importorskip(module, reason="pip install -e '.[integrations,haystack]'")
    result = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=400)
    assert result.returncode == 0, result.stderr
    if "print" in program:
        assert "Camille Pissarro" in result.stdout

"""The programs of docs/integrations.md and docs/retrieve.md run as they stand."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGES = [(Path(__file__).parents[2] / "docs" / name).read_text() for name in ("integrations.md", "retrieve.md")]
PROGRAMS = [program for page in PAGES for program in re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)]
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    "COLUMNS": "120",
}
FRAMEWORKS = {"langchain": "langchain_core", "llama_index": "llama_index.core", "haystack": "haystack"}


def test_the_commands_run(tmp_path):
    """Those marked bash, in an empty folder."""
    for line in "".join(re.findall(r"^```bash\n(.*?)^```", PAGES[0], re.M | re.S)).splitlines():
        done = subprocess.run(["bash", "-c", line], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert "sources\n  [1] Claude Monet\n  [4] Camille Pissarro" in "\n".join(map(str.rstrip, done.stdout.splitlines()))


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_the_program_runs(program):
    for name, module in FRAMEWORKS.items():
        if name in program:
            pytest.importorskip(module, reason="pip install -e '.[integrations,haystack]'")
    result = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=400)
    assert result.returncode == 0, result.stderr
    if "print" in program:
        assert "Camille Pissarro" in result.stdout

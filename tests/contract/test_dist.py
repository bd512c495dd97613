"""The wheel and the sdist, built from the tree as it is: all of the package, nothing else, and not too large."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import check_dist
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    pytest.importorskip("hatchling", reason="pip install hatchling")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400)
    assert result.returncode == 0, result.stderr
    return folder


def test_what_is_built_is_whole_and_no_more(built):
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    assert check_dist.problems_of_wheel(wheel) == []
    assert check_dist.problems_of_sdist(sdist) == []


@pytest.mark.parametrize("name", ["indexes/wiki/passages.bin", "my-run/trajectories.jsonl", "corpus.jsonl", ".env"])
def test_what_somebody_has_in_the_folder_is_not_shipped(name):
    """The sdist is built from the folder, and hatchling takes all of it that nobody names and git does not ignore."""
    sdist = pytest.importorskip("hatchling.builders.sdist", reason="pip install hatchling")
    assert not sdist.SdistBuilder(str(ROOT)).config.path_is_included(name)


def test_what_is_missing_or_too_much_is_said(built, tmp_path):
    (wheel,) = built.glob("*.whl")
    bad = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as good, zipfile.ZipFile(bad, "w") as copy:
        for name in good.namelist():
            if not name.endswith("adapter_config.json"):
                copy.writestr(name, b"")
        copy.writestr("tests/test_it.py", b"")
    problems = "\n".join(check_dist.problems_of_wheel(bad))
    assert re.search(r"lacks parallelsearch/adapters/parallel-\d+/adapter_config\.json", problems)
    assert "holds tests/test_it.py" in problems
    assert "the limit is" in "\n".join(check_dist.problems_of_size(wheel, 10))


def test_the_version_has_its_entry_in_the_changelog():
    assert f"\n## {check_dist.version()}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_workflow_publishes_what_make_dist_checks():
    yaml = pytest.importorskip("yaml", reason="pip install PyYAML")
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "publish.yml").read_text())
    build, publish = workflow["jobs"]["build"], workflow["jobs"]["publish"]
    assert any("make dist" in step.get("run", "") for step in build["steps"])
    assert publish["needs"] == "build"
    assert publish["permissions"] == {"id-token": "write"}  # trusted publishing: no token is kept anywhere
    assert "password" not in str(workflow)

"""Looks at a built wheel and sdist: what is in them and how large; with --try, also whether the wheel works by itself.

    python scripts/check_dist.py dist           # names, sizes, versions
    python scripts/check_dist.py dist --try     # and the wheel, in an empty environment, answers the demo questions

`make dist` builds both and runs this. Standard library only.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
MAX_WHEEL_BYTES = 22 << 20  # two adapters of 9.8 MB
MAX_SDIST_BYTES = 28 << 20
NOT_IN_WHEEL = re.compile(r"(^|/)(tests|benchmarks|docs|recipes|scripts|\.git)/|\.pyc$|\.gguf$|\.env$")
NOT_IN_SDIST = re.compile(r"/(\.venv|\.git|dist|runs)/|\.pyc$|\.gguf$|\.env$")
QUESTIONS = {
    "Who is older, Claude Monet or Camille Pissarro?": "Camille Pissarro",
    "Among the film directors Akira Kurosawa, Satyajit Ray and Federico Fellini, who died last?": "Akira Kurosawa",
}


def version() -> str:
    found = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M)
    assert found is not None
    return found[1]


def known_files(folder: str = ".") -> set[str]:
    """Every file there that git knows."""
    listed = subprocess.run(["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {name for name in listed.splitlines() if (ROOT / name).exists()}


def package_files() -> set[str]:
    """Every file of the package: code, pages, demo, adapter."""
    return {name.removeprefix("src/") for name in known_files("src")}


def problems_of_wheel(path: Path) -> list[str]:
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
    problems = [f"{path.name} lacks {name}" for name in sorted(package_files() - names)]
    problems += [f"{path.name} holds {name}" for name in sorted(names) if NOT_IN_WHEEL.search(name)]
    for needed in ("METADATA", "entry_points.txt", "licenses/LICENSE"):
        if not any(name.endswith(f".dist-info/{needed}") for name in names):
            problems.append(f"{path.name} lacks {needed}")
    return problems + problems_of_size(path, MAX_WHEEL_BYTES)


def problems_of_sdist(path: Path) -> list[str]:
    with tarfile.open(path) as archive:
        names = archive.getnames()
    inside = {name.partition("/")[2] for name in names}
    problems = [f"{path.name} lacks {name}" for name in sorted(known_files() - inside)]
    problems += [f"{path.name} holds {name}" for name in names if NOT_IN_SDIST.search(f"/{name}")]
    return problems + problems_of_size(path, MAX_SDIST_BYTES)


def problems_of_size(path: Path, most: int) -> list[str]:
    size = path.stat().st_size
    problems = [] if size <= most else [f"{path.name} has {size / 1e6:.1f} MB, the limit is {most / 1e6:.1f}"]
    return problems if f"-{version()}" in path.name else [*problems, f"{path.name} is not version {version()}"]


def try_wheel(wheel: Path) -> list[str]:
    """Installed into an environment with nothing else in it, far from the checkout, it answers the demo questions."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(Path(folder, "venv"), with_pip=True)
        python = Path(folder, "venv", "bin", "python")
        install: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, "-c", ROOT / "constraints.txt", wheel.resolve()], check=True)
        problems = []
        for question, answer in QUESTIONS.items():
            command: list[str | Path] = [python.with_name("parallelsearch"), "ask", question, "--policy", "demo"]
            asked = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, env={"PATH": ""})
            if asked.returncode != 0 or f"answer: {answer}" not in asked.stdout:
                problems.append(f"the wheel does not answer '{question}':\n{asked.stdout}{asked.stderr}")
        return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--try", dest="tries", action="store_true", help="install the wheel and run the demo from it")
    options = parser.parse_args()
    wheels, sdists = sorted(options.folder.glob("*.whl")), sorted(options.folder.glob("*.tar.gz"))
    if len(wheels) != 1 or len(sdists) != 1:
        print(f"{options.folder} should hold one wheel and one sdist; it holds {len(wheels)} and {len(sdists)}")
        return 1
    problems = problems_of_wheel(wheels[0]) + problems_of_sdist(sdists[0])
    if not problems and options.tries:
        problems = try_wheel(wheels[0])
    for path in (wheels[0], sdists[0]):
        print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB")
    print(
        "\n".join(problems) if problems else "contents and sizes are right" + (", it answers" if options.tries else "")
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

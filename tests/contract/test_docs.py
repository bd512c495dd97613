"""Docs are run, so they are true: the README's commands and Python, and the example in each command's help."""

import dataclasses
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import typer.main
from typer.testing import CliRunner

from parallelsearch.cli.app import app
from parallelsearch.data import demo
from parallelsearch.rollout import Event
from parallelsearch.trajectory import Trajectory

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```", re.M | re.S)


def commands_in_help() -> list[tuple[str, str]]:
    found = []

    def walk(group, path):
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                walk(command, [*path, name])
            else:
                found.append((" ".join([*path, name]), command.help or ""))

    walk(typer.main.get_command(app), [])
    return found


def examples() -> list[tuple[str, str]]:
    return [
        (name, line.strip())
        for name, text in commands_in_help()
        for line in re.findall(r"Example: (parallelsearch .*)", text)
    ]


ENVIRONMENT = {
    **os.environ,
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    "COLUMNS": "120",
    "OMP_NUM_THREADS": "1",
}


@pytest.fixture(scope="session")
def furnished(tmp_path_factory):
    """A folder with the files that the examples speak of, each made by the package itself."""
    folder = tmp_path_factory.mktemp("furnished")
    (folder / "corpus.jsonl").write_text(Path(demo.corpus_path()).read_text())
    # Worded anew: the embedded questions are for evaluation, and training refuses them.
    questions = [
        json.loads(line) for line in Path(demo.corpus_path()).with_name("questions.jsonl").read_text().splitlines()
    ]
    renamed = [json.dumps({**question, "question": f"Tell me, {question['question']}"}) for question in questions]
    (folder / "questions.jsonl").write_text("\n".join(renamed))
    for recipe in (ROOT / "recipes").glob("*.toml"):
        shutil.copy(recipe, folder)

    def run(*arguments: str) -> str:
        result = subprocess.run(
            ["parallelsearch", *arguments], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=400
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    asked = run("ask", "Who is older, Claude Monet or Camille Pissarro?", "--json")
    (folder / "trajectories.jsonl").write_text(asked.replace('"kind": null', '"kind": "parallel"'))
    run("eval", "--limit", "20", "--out", "run")
    said = {question["question"]: ["CORRECT"] for question in questions}  # for `judge`
    (folder / "verdicts.json").write_text(json.dumps(said))
    return folder


@pytest.fixture
def workplace(furnished, tmp_path):
    folder = tmp_path / "here"
    shutil.copytree(furnished, folder)
    return folder, ENVIRONMENT


def test_every_command_has_an_example():
    assert {name for name, _ in examples()} == {name for name, _ in commands_in_help()}


ELSEWHERE = ("serve", "doctor")
"""Servers do not end, and what doctor says is a test of its own."""


@pytest.mark.parametrize(("name", "line"), [pair for pair in examples() if not pair[0].startswith(ELSEWHERE)])
def test_help_examples_run(workplace, monkeypatch, name, line):
    """In this process, where torch and the rest are imported already; the README's commands below are processes."""
    folder, environment = workplace
    if name == "eval":
        shutil.rmtree(folder / "run")  # the furnished run is another set-up
    monkeypatch.chdir(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        result = CliRunner().invoke(app, shlex.split(line)[1:], env=environment)
    assert result.exit_code == 0, result.output


def readme_blocks() -> list[tuple[str, str]]:
    """Those of the README, and the Python of the pages on models and on search."""
    pages = [(ROOT / "docs" / name).read_text() for name in ("models.md", "search.md")]
    own = [block for page in pages for block in BLOCK.findall(page) if block[0] == "python"]
    return BLOCK.findall((ROOT / "README.md").read_text()) + own


def run_in(folder: Path, command: list[str]) -> None:
    result = subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=400)
    assert result.returncode == 0, f"{command[-1]}\n{result.stderr}"


@pytest.mark.parametrize("code", [code for language, code in readme_blocks() if language == "python"])
def test_python_of_the_docs_runs_as_it_stands(tmp_path, code):
    run_in(tmp_path, [sys.executable, "-c", code])


def test_the_readme_can_be_typed_from_top_to_bottom_in_an_empty_folder(tmp_path):
    """Blocks marked bash, in their order: each finds only what those before it made. `make` lines are what CI itself runs,
    and the environment they set up is the one this runs in."""
    lines = [line for language, code in readme_blocks() if language == "bash" for line in code.splitlines()]
    for left_out in ("make demo", "source .venv/bin/activate", "make test"):
        lines.remove(left_out)
    assert len(lines) > 6
    for line in lines:
        run_in(tmp_path, ["bash", "-c", line])


def test_the_page_on_what_is_yours_can_be_followed_in_an_empty_folder(tmp_path):
    """Programs that begin with the name of a file are saved under it; the others are run, and so is each line of bash."""
    blocks = BLOCK.findall((ROOT / "docs" / "yours.md").read_text())
    saved = {}
    for language, code in blocks:
        name = re.match(r"# (\w+\.py)\n", code)
        if language == "python" and name is not None:
            saved[name[1]] = (tmp_path / name[1]).write_text(code)
        elif language == "python":
            run_in(tmp_path, [sys.executable, "-c", code])
        for line in code.splitlines() if language == "bash" else ():
            run_in(tmp_path, ["bash", "-c", line])
    assert set(saved) == {"my_search.py", "my_policy.py", "my_reward.py"}
    answered, summary = ((tmp_path / "mine" / name).read_text() for name in ("trajectories.jsonl", "summary.json"))
    assert json.loads(answered)["answer"] == "Camille Pissarro"
    assert json.loads(summary)["manifest"]["setup"]["policy"] == {"kind": "mine", "model": "stand-in 1"}


def test_the_record_is_described_with_all_its_fields():
    record = (ROOT / "docs" / "trajectories.md").read_text().partition("## The record")[2].partition("\n## ")[0]
    fields = {field.name for field in dataclasses.fields(Trajectory)}
    assert fields - set(re.findall(r"`(\w+)`", record)) == set()


def test_every_kind_of_event_is_named_to_those_who_stream():
    (told,) = re.findall(
        r"^`event\.kind` is .*?\n\n", (ROOT / "docs" / "integrations.md").read_text(), re.MULTILINE | re.DOTALL
    )
    assert [kind for kind in get_args(get_type_hints(Event)["kind"]) if f"`{kind}`" not in told] == []


def test_make_demo_shows_a_file_that_is_there():
    printed = subprocess.run(["make", "-n", "demo"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (shown,) = re.findall(r"\S+README\.md$", printed, re.M)
    assert (ROOT / shown).is_file()


def test_the_readme_shows_the_two_commands():
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text
    assert "make test" in text
    assert len(readme_blocks()) >= 3


def test_no_private_paths_or_left_overs_in_the_project():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    pattern = re.compile(r"(^|[^\w.])/(ro" + r"ot|wo" + r"rk)/")
    wrong = []
    for name in filter(None, tracked):
        path = ROOT / name
        if (
            path.suffix in (".py", ".md", ".toml", ".yml", ".yaml", ".txt", ".html")
            and path.exists()
            and pattern.search(path.read_text())
        ):
            wrong.append(name)
    assert not wrong

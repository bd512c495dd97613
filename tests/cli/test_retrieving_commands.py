"""`split` and `retrieve` as a user meets them: what is printed, where, and with which exit status."""

import json

import pytest
from typer.testing import CliRunner

from parallelsearch.cli.app import app
from parallelsearch.errors import ParallelSearchError, UsageError

MONET = "Who is older, Claude Monet or Camille Pissarro?"
BORN = ["When was Claude Monet born?", "When was Camille Pissarro born?"]


def run(*arguments):
    """In this process: a program that ends well. What it raises is what the command would say in one line."""
    result = CliRunner().invoke(app, arguments)
    if result.exception is not None:
        raise result.exception
    return result


@pytest.fixture
def script(tmp_path):
    """A policy with these turns for the question."""

    def write(*turns):
        path = tmp_path / "script.json"
        path.write_text(json.dumps({MONET: turns}))
        return f"script:{path}"

    return write


def test_split_prints_a_line_for_each_and_nothing_else():
    result = run("split", MONET, "--policy", "demo")
    assert (result.stdout.splitlines(), result.stderr) == (BORN, "")
    record = json.loads(run("split", MONET, "--json").stdout)
    assert (record["queries"], record["note"]) == (BORN, None)


def test_what_could_not_be_split_is_said(script):
    result = run("split", MONET, "--policy", script("<answer> Pissarro </answer>"))
    assert result.stdout.splitlines() == [MONET]
    assert "answered without a search" in result.stderr
    with pytest.raises(ParallelSearchError, match="is no model"):
        run("split", "Anything else?")
    with pytest.raises(UsageError, match='parallelsearch split "'):
        run("split", " ")


def test_retrieve_shows_each_passage_with_its_sub_query():
    lines = [line.strip() for line in run("retrieve", MONET, "--k", "2").stdout.splitlines()]
    assert lines[3].split() == ["1", "Claude", "Monet"]
    assert [line for line in lines if line.startswith("found by")] == [f"found by: {query}" for query in BORN]
    assert lines[-1].startswith("2 passages, 1 LLM call, ")


def test_retrieve_for_programs():
    record = json.loads(run("retrieve", MONET, "--k", "3", "--max-tokens", "150", "--json").stdout)
    assert [query["text"] for query in record["queries"]] == BORN
    assert [passage["title"] for passage in record["passages"]] == ["Claude Monet"]  # two do not fit
    assert record["passages"][0]["found_by"][0]["query"] == BORN[0]
    assert record["notes"] == [f"nothing of these fits in k and max_tokens: {BORN[1]}"]
    assert (record["failures"], record["num_llm_calls"]) == ([], 1)


def test_where_every_search_fails_so_does_the_command(script):
    policy = script("<search> a ## b </search>")
    with pytest.raises(ParallelSearchError, match=r"'a' failed: .*; 'b' failed: "):
        run("retrieve", MONET, "--policy", policy, "--search", "http://127.0.0.1:9/retrieve", "--json")
    with pytest.raises(UsageError, match="k is the number of passages"):
        run("retrieve", MONET, "--k", "0")


def test_files_are_indexed_where_it_can_be_seen_and_only_once(tmp_path, monkeypatch):
    monkeypatch.setenv("PARALLELSEARCH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "monet.md").write_text("# Claude Monet\n\nClaude Monet was born on 14 November 1840.\n")
    (tmp_path / "docs" / "broken.txt").write_bytes(b"\xff\xfe\xfa")
    (tmp_path / "docs" / "picture.png").write_bytes(b"")
    question = "Who is older, Claude Monet or Camille Pissarro?"
    command = ["retrieve", question, "--policy", "demo", "--search", f"files:{tmp_path / 'docs'}"]
    first = CliRunner().invoke(app, command)
    assert first.exit_code == 0, first.output
    assert f"search: '{tmp_path / 'docs'}' was indexed anew, 1 passage\n" in first.stderr
    assert first.stderr.count("broken.txt") == 1
    assert "1 file of another kind was not read: .png 1" in first.stderr
    assert "Claude Monet" in first.stdout
    second = CliRunner().invoke(app, command)
    assert second.stdout == first.stdout
    assert "indexed" not in second.stderr
    (tmp_path / "docs" / "pissarro.md").write_text("# Camille Pissarro\n\nCamille Pissarro was born on 10 July 1830.\n")
    both = CliRunner().invoke(app, [*command[:-1], f"all:demo|files:{tmp_path / 'docs'}"])
    assert both.exit_code == 0, both.output
    assert "indexed anew, 2 passages\n" in both.stderr
    assert both.stderr.count("broken.txt") == 1

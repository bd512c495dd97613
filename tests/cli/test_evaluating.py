"""`eval` beyond the first run: what it leaves in the folder, what a question costs, the gold passages as a search."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from parallelsearch.cli.app import app
from parallelsearch.data import demo, load_questions

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(here: Run) -> Run:
    return lambda folder, *arguments: here("eval", "--limit", "20", *arguments, cwd=folder)


def summary(folder: Path) -> dict[str, float]:
    return json.loads((folder / "summary.json").read_text())["subsets"]["demo"]


def test_the_report_links_its_examples_to_the_viewer_beside_it(tmp_path: Path, run: Run) -> None:
    done = run(tmp_path, "--out", "run", "--prices", "1,10,5")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "run" / "report.html").read_text()
    links = re.findall(r'href="viewer.html#id=([^"]+)"', text)
    ids = {json.loads(line)["id"] for line in (tmp_path / "run" / "trajectories.jsonl").read_text().splitlines()}
    assert len(links) == 5  # all are right: the five best
    assert set(links) <= ids
    assert (tmp_path / "run" / "viewer.html").stat().st_size < 10_000_000
    assert {path.stem for path in (tmp_path / "run" / "plots").iterdir()} >= {"em_against_calls", "split_by_kind"}
    row = summary(tmp_path / "run")
    by_hand = row["num_input_tokens"] / 1e6 + row["num_output_tokens"] / 1e5 + row["num_subqueries"] * 5 / 1e3
    assert row["cost"] == pytest.approx(by_hand)


def test_a_seed_leaves_the_questions_that_a_limit_draws(tmp_path: Path) -> None:
    def asked(*arguments: str) -> set[str]:
        out = "-".join(("run", *arguments))
        result = CliRunner().invoke(app, ["eval", "--limit", "3", "--out", str(tmp_path / out), *arguments])
        assert result.exit_code == 0, result.output
        return {json.loads(line)["id"] for line in (tmp_path / out / "rows.jsonl").read_text().splitlines()}

    first = asked()
    assert first == {question.id for question in load_questions("demo", limit=3)}
    assert asked("--seed", "1") == first
    assert asked("--limit-seed", "1") != first


def test_wrong_prices_and_a_gold_search_without_a_file_are_named(tmp_path: Path, run: Run) -> None:
    for option, value, words in (
        ("--prices", "1,2", "three numbers with commas"),
        ("--prices", "1,2,-3", "0 or more"),
        ("--search", "gold:", "needs the corpus file"),
        ("--search", "gold:x.jsonl --record=r", "leave --record and --cache out"),
        ("--cache-days", "3", "that --cache FILE names"),
    ):
        done = run(tmp_path, "--out", "run", option, *value.split())
        assert done.returncode == 2
        assert words in done.stderr
        assert "Traceback" not in done.stderr


def test_eval_has_the_reader_the_recording_and_the_cache_that_ask_has(tmp_path: Path, run: Run) -> None:
    question = {"id": "1", "question": "When was Claude Monet born?", "answer": "1840"}
    turns = ["<think> a </think><search> Claude Monet born </search>", "<think> b </think><answer> 1841 </answer>"]
    (tmp_path / "q.jsonl").write_text(json.dumps(question) + "\n")
    (tmp_path / "policy.json").write_text(json.dumps({question["question"]: turns}))
    (tmp_path / "reader.json").write_text(json.dumps({question["question"]: ["<answer> 1840 </answer>"]}))
    both = ("--data", "q.jsonl", "--policy", "script:policy.json", "--answer-with", "script:reader.json")
    kept = ("--record", "searches.jsonl", "--cache", "cache.db", "--cache-days", "2")
    for out, options in (("run", kept), ("again", ("--search", "replay:searches.jsonl"))):
        done = run(tmp_path, "--out", out, *both, *options)
        assert done.returncode == 0, done.stderr
        whole = json.loads((tmp_path / out / "summary.json").read_text())
        row = next(iter(whole["subsets"].values()))
        assert (row["em"], row["num_llm_calls"]) == (1.0, 3.0)
        assert whole["manifest"]["setup"]["reader"]["kind"] == "script"
        assert "reader.kind" in (tmp_path / out / "report.html").read_text()
    assert (tmp_path / "cache.db").exists()
    done = run(tmp_path, "--out", "run", *both)  # neither changes an answer: the same set-up
    assert done.returncode == 0, done.stderr
    refused = run(tmp_path, "--out", "run", *both[:-2])
    assert refused.returncode == 2
    assert "reader: " in refused.stderr


def test_gold_passages_given_is_a_search_of_its_own(tmp_path: Path, run: Run) -> None:
    done = run(tmp_path, "--out", "run", "--dialect", "rag", "--search", f"gold:{demo.corpus_path()}", "--k", "5")
    assert done.returncode == 0, done.stderr
    row = summary(tmp_path / "run")
    assert (row["gold_recall"], row["num_searches"]) == (1.0, 1.0)


def test_who_names_no_search_is_told_that_it_is_the_demo(tmp_path: Path) -> None:
    """Forgotten, it costs a whole run over a corpus that holds none of the answers."""
    (tmp_path / "mine.jsonl").write_text('{"question": "When was the Pavo 300 released?", "answer": "2007"}\n')
    script = tmp_path / "script.json"
    script.write_text(
        json.dumps({"When was the Pavo 300 released?": ["<search> Pavo 300 </search>", "<answer> 2007 </answer>"]})
    )
    words = "search: demo (the embedded corpus, because no --search was given)"
    own = ["--data", str(tmp_path / "mine.jsonl"), "--policy", f"script:{script}", "--out", str(tmp_path / "run")]
    asked = [f"--policy=script:{script}", "When was the Pavo 300 released?"]
    for command, arguments in (("eval", own), ("ask", asked), ("retrieve", asked)):
        result = CliRunner().invoke(app, [command, *arguments])
        assert words in result.stderr, result.output
        assert words not in CliRunner().invoke(app, [command, *arguments, "--search", "demo"]).stderr
    demo_run = [
        "eval",
        "--data",
        "demo-par",
        "--limit",
        "2",
        "--policy",
        f"script:{script}",
        "--out",
        str(tmp_path / "d"),
    ]
    assert words not in CliRunner().invoke(app, demo_run).stderr
    assert words not in CliRunner().invoke(app, ["ask", "--policy", "demo", "Who wrote Emma?"]).stderr

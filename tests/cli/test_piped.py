"""`ask` with questions on standard input: real pipes, in order, as `Agent.ask_many` would answer them."""

import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future
from functools import partial

import pytest

from parallelsearch import Agent, Sampling
from parallelsearch.cli.answers import Answers
from parallelsearch.cli.piped import answer_lines
from parallelsearch.data.questions import demo_questions

MONET, RODIN = "Who is older, Claude Monet or Camille Pissarro?", "Who was born first, Auguste Rodin or Claude Monet?"
UNKNOWN = "What is love?"
SEARCH = """
import asyncio
from parallelsearch.data import demo

found = demo.retriever()

async def look_up(queries, k):
    if any("Pissarro" in query for query in queries):
        await asyncio.sleep(1.5)
    return await found.search_many(queries, k)

def refuse(queries, k):
    raise RuntimeError("nothing works here")
"""


def process(*arguments: str, **options) -> subprocess.Popen:
    heard = partial(signal.signal, signal.SIGINT, signal.default_int_handler)
    return subprocess.Popen(
        [sys.executable, "-m", "parallelsearch", "ask", "--policy", "demo", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "COLUMNS": "120"},
        preexec_fn=heard,  # tests in the background inherit deafness
        **options,
    )


def piped(text: str | bytes, *arguments: str, **options) -> tuple[int, str, str]:
    command = process(*arguments, **options)
    out, err = command.communicate(text.encode() if isinstance(text, str) else text, timeout=120)
    assert b"Traceback" not in err, err
    return command.returncode, out.decode(), err.decode()


@pytest.fixture
def piped_here(here, monkeypatch):
    """The same in this process, where a module of one's own is not among what is asked for."""

    def call(text: str, *arguments: str, **options) -> tuple[int, str, str]:
        reader, writer = os.pipe()
        os.write(writer, text.encode())
        os.close(writer)
        with os.fdopen(reader) as lines, monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", lines)
            done = here("ask", "--policy", "demo", *arguments, **options)
        return done.returncode, done.stdout, done.stderr

    return call


def test_a_line_each_in_order_and_a_line_that_fails_costs_no_other():
    """What `ask_many` makes of the list of lines, and nothing of a line without anything on it."""
    lines = [MONET, "???", UNKNOWN, RODIN]
    status, out, err = piped(f"{MONET}\n\n  \n???\r\n{UNKNOWN}\n{RODIN}", "--json", "--seed", "7")
    assert status == 1
    records = [json.loads(line) for line in out.splitlines()]
    with Agent("demo", "demo", sampling=Sampling(seed=7)) as agent:
        meant = [one.to_dict() for one in agent.ask_many(lines)]
    for name in ("question", "answer", "stop", "error", "sampling", "num_subqueries", "abstained"):
        assert [one.get(name) for one in records] == [one.get(name) for one in meant], name
    assert [one["question"] for one in records] == lines
    assert [one["answer"] for one in records] == ["Camille Pissarro", None, None, "Auguste Rodin"]
    assert records[0]["sources"][0]["title"] == "Claude Monet"
    assert err == "4 questions: 2 failed\n" or err.endswith("\n4 questions: 2 failed\n")


def test_a_line_that_is_no_text_is_told_and_the_others_are_asked():
    status, out, _ = piped(b"\xef\xbb\xbf" + MONET.encode() + b"\n\xe9\n" + RODIN.encode(), "--json")
    first, broken, last = map(json.loads, out.splitlines())
    assert status == 1
    assert (first["question"], first["answer"], last["answer"]) == (MONET, "Camille Pissarro", "Auguste Rodin")
    assert "standard input, line 2: is not UTF-8" in broken["error"]


def test_people_read_the_answers_one_after_the_other(piped_here):
    status, out, err = piped_here(f"{MONET}\n{RODIN}\n", "--prices", "1000,2000,3000")
    assert status == 0
    first, _, second = out.partition("\n\n")
    assert first.startswith(MONET)
    assert "answer: Camille Pissarro" in first
    assert second.startswith(RODIN)
    costs = [float(line.removeprefix("cost ")) for line in out.splitlines() if line.startswith("cost ")]
    assert len(costs) == 2
    assert f"2 questions: cost {sum(costs):.6g} in all\n" in err


def test_an_answer_comes_before_the_next_question_is_there():
    """For a program that writes a line and waits, and has the model loaded once."""
    command = process("--json")
    for question, answer in ((MONET, "Camille Pissarro"), (RODIN, "Auguste Rodin")):
        command.stdin.write(f"{question}\n".encode())
        command.stdin.flush()
        assert json.loads(command.stdout.readline())["answer"] == answer
    assert command.communicate(timeout=60)[0] == b""
    assert command.returncode == 0


def test_questions_run_at_once_and_answers_keep_their_order(tmp_path):
    (tmp_path / "my_search.py").write_text(SEARCH)
    questions = [one.question for one in demo_questions()[1:6]]
    lines = "\n".join([MONET, *questions])
    status, out, _ = piped(lines, "--json", "--search", "python:my_search:look_up", cwd=tmp_path)
    assert status == 0
    records = [json.loads(line) for line in out.splitlines()]
    assert [one["question"] for one in records] == [MONET, *questions]
    assert records[0]["elapsed_s"] > 1.4 > max(one["elapsed_s"] for one in records[1:])


@pytest.mark.parametrize(
    ("lines", "arguments", "status"),
    [
        (f"{MONET}\n", [], 0),
        (f"{MONET}\nWho is the present king of France?\n", ["--policy", "script:script.json"], 3),
        (f"{MONET}\n", ["--search", "python:my_search:refuse"], 1),
    ],
)
def test_the_status_is_the_worst_of_all(tmp_path, lines, arguments, status):
    (tmp_path / "my_search.py").write_text(SEARCH)
    script = {
        one: [f"<think> x </think> <search> {one} </search>", f"<think> x </think> <answer> {answer} </answer>"]
        for one, answer in ((MONET, "Camille Pissarro [1]"), ("Who is the present king of France?", "not found"))
    }
    (tmp_path / "script.json").write_text(json.dumps(script))
    assert piped(lines, *arguments, cwd=tmp_path)[0] == status


@pytest.mark.parametrize("nothing", ["", "\n \n"])
def test_no_question_at_all_is_wrong_use_and_nothing_is_opened(nothing, tmp_path, piped_here):
    status, out, err = piped_here(nothing, "--record", "searches.jsonl", cwd=tmp_path)
    assert (status, out) == (2, "")
    assert err.startswith("parallelsearch: there is no question, and nothing on standard input; type one")
    assert not list(tmp_path.iterdir())


def test_a_closed_standard_input_is_none():
    command = [sys.executable, "-m", "parallelsearch", "ask", "--policy", "demo"]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=partial(os.close, 0), timeout=60)
    assert done.returncode == 2
    assert "there is no question" in done.stderr


def test_a_wrong_setting_is_said_once(piped_here):
    for wrong in (["--dialect", "fancy"], ["--k", "0"], ["--search", "bm52:x"], ["--policy", "gpt"]):
        status, out, err = piped_here(f"{MONET}\n{RODIN}\n", *wrong)
        assert (status, out) == (2, "")
        assert err.count("parallelsearch: ") == 1


def test_one_recording_and_one_cache_for_all(tmp_path, piped_here):
    kept = ["--record", "searches.jsonl", "--cache", "kept.sqlite", "--json"]
    for are_cached in (False, True):
        _, out, _ = piped_here(f"{MONET}\n{RODIN}\n", *kept, cwd=tmp_path)
        records = [json.loads(line) for line in out.splitlines()]
        queries = [query for one in records for turn in one["turns"] for query in turn["queries"]]
        assert [query["cached"] for query in queries] == [are_cached] * 4
    _, again, _ = piped_here(f"{RODIN}\n", "--search", "replay:searches.jsonl", "--json", cwd=tmp_path)
    assert json.loads(again)["answer"] == "Auguste Rodin"


def test_who_reads_no_further_ends_it():
    lines = "\n".join(one.question for one in demo_questions())
    command = process("--json")
    command.stdin.write(lines.encode())
    command.stdin.close()
    command.stdout.readline()
    command.stdout.close()
    assert b"Traceback" not in command.stderr.read()
    assert command.wait(60) == 1  # what typer ends with, in every command


@pytest.mark.parametrize("is_asking", [True, False], ids=["while a question runs", "while it waits for a line"])
def test_ctrl_c_ends_it(tmp_path, is_asking):
    (tmp_path / "my_search.py").write_text(SEARCH.replace("1.5", "600"))
    command = process("--json", "--search", "python:my_search:look_up", cwd=tmp_path)
    command.stdin.write(f"{RODIN}\n{MONET}\n".encode() if is_asking else f"{RODIN}\n".encode())
    command.stdin.flush()
    assert json.loads(command.stdout.readline())["answer"] == "Auguste Rodin"
    if is_asking:
        command.stdin.close()
        command.stdin = None
    command.send_signal(signal.SIGINT)
    out, err = command.communicate(timeout=60)
    assert (command.returncode, out) == (130, b"")
    assert err.endswith(b"parallelsearch: stopped\n")


def test_ctrl_c_once_all_is_read_stops_what_is_under_way(monkeypatch):
    """The main thread then waits for the one that prints. What is left of a question is not told as its answer."""
    asked, shown = Future(), []

    class Asking:
        sampling = Sampling()

        def submit(self, work):
            work.close()
            return asked

    class Shown(Answers):
        def show(self, trajectory, **options):
            shown.append(trajectory)

    join, main = threading.Thread.join, threading.get_ident()

    def interrupted(thread, *timeout):
        if not shown and thread.name == "parallelsearch-answers" and threading.get_ident() == main and not asked.done():
            raise KeyboardInterrupt
        join(thread, *timeout)

    monkeypatch.setattr(threading.Thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        answer_lines(Asking(), [MONET], Shown.of(None, True))
    assert asked.cancelled()
    assert not shown

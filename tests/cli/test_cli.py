"""The command line as a user meets it: real processes, real files, exit statuses, no tracebacks. A command that is given
again and again is given in this process, to the same `main`: a new one spends a second on its imports."""

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from free_ports import free_port
from parallelsearch.cli import doctor
from parallelsearch.cli.app import COMMANDS, app
from parallelsearch.cli.terminal import LiveNarrator, retrieval_view, trajectory_view
from parallelsearch.data import demo
from parallelsearch.data.questions import shipped
from parallelsearch.retrieval.base import Hit
from parallelsearch.retrieving import Retrieval, merge
from parallelsearch.rollout import Event
from parallelsearch.server.answering import reply_of, summary_of
from parallelsearch.trajectory import Query, Reading, Shown, Trajectory, Turn, trajectory_from_dict

MONET = "Who is older, Claude Monet or Camille Pissarro?"


def run(
    *arguments: str, cwd: Path | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "parallelsearch", *arguments]
    return subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "120", **(env or {})},
        capture_output=True,
        text=True,
        timeout=400,
    )


def fails(result: subprocess.CompletedProcess[str], status: int, *words: str) -> None:
    assert result.returncode == status, result.stderr
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr


@pytest.fixture(scope="module")
def monet(tmp_path_factory) -> Path:
    result = run("ask", MONET, "--json")
    assert result.returncode == 0, result.stderr
    path = tmp_path_factory.mktemp("ask") / "trajectories.jsonl"
    record = json.loads(result.stdout)
    record["golden_answers"], record["kind"], record["id"] = ["Camille Pissarro"], "parallel", "m1"
    path.write_text(json.dumps(record) + "\n")
    return path


def test_ask_shows_the_split_and_both_searches():
    result = run("ask", MONET)
    assert result.returncode == 0, result.stderr
    assert "2 searches at once" in result.stdout
    assert "When was Claude Monet born?" in result.stdout
    assert "When was Camille Pissarro born?" in result.stdout
    assert "answer: Camille Pissarro\nrests on: [1] Claude Monet; [4] Camille Pissarro\n" in result.stdout
    assert "2 LLM calls, 1 round of search, 2 sub-queries" in result.stdout


def test_of_a_wide_round_only_what_the_model_was_shown_is_listed():
    hits = [Hit(f"{number}", f"Page {number}", "Text.") for number in range(12)]
    queries = [Query(f"part {number}", hits[3 * number : 3 * number + 3]) for number in range(4)]
    shown = [Shown(number + 1, hits[number].id, number // 3, 5) for number in (0, 3, 4, 6)]
    screen = Console(file=io.StringIO(), width=100)
    for turn in (Turn(queries, shown=shown), Turn(queries[:3], shown=shown), Turn(queries)):
        screen.print(trajectory_view(Trajectory("q?", turns=[turn]), 100))
    wide, narrow, unknown = screen.file.getvalue().split("q?")[1:]
    assert set(re.findall(r"Page (\d+)", wide)) == {"0", "3", "4", "6", "9"}
    assert sorted(re.findall(r"and (\d) more", wide)) == ["1", "2", "2", "2"]
    assert len(re.findall(r"Page", narrow)) == 9
    assert len(re.findall(r"Page", unknown)) == 12  # a record that does not say what was shown


def test_where_a_hit_stands_is_shown_beside_its_title():
    hit = Hit("1", "Contract", "Text.", metadata={"source": "/docs/contract.pdf", "page": "3\x1b[31m", "by": "A"})
    trajectory = Trajectory("q?", turns=[Turn([Query("part", [hit])])])
    retrieval = Retrieval("q?", merge(trajectory.queries, 1), trajectory.queries, trajectory)
    screen = Console(file=io.StringIO(), width=100)
    for view in (trajectory_view(trajectory, 100), retrieval_view(retrieval)):
        screen.print(view)
    shown = screen.file.getvalue()
    assert shown.count("/docs/contract.pdf, page 3") == 2
    assert "\x1b" not in shown


def test_lines_that_end_as_on_windows_are_no_escapes():
    hits = [Hit("1", "Contract", "# Contract\r\n\r\nNotice is\r\ngiven.\x1b[31m", score=1.0)]
    trajectory = Trajectory("q?", turns=[Turn([Query("part", hits)])])
    screen = Console(file=io.StringIO(), width=100)
    for view in (
        trajectory_view(trajectory, 100),
        retrieval_view(Retrieval("q?", merge(trajectory.queries, 1), trajectory.queries, trajectory)),
    ):
        screen.print(view)
    shown = screen.file.getvalue()
    assert shown.count("# Contract Notice is given.") == 2
    assert "\x1b" not in shown


def test_a_long_title_hides_neither_the_place_nor_the_url_that_an_answer_rests_on():
    hit = Hit(
        "a", "[red]Onyx[/red] " * 60, "Ada runs it.", url="https://b.org", metadata={"source": "o.pdf", "page": 3}
    )
    turn = Turn([Query("Onyx", [hit])], shown=[Shown(1, "a", 0, 5)])
    screen = Console(file=io.StringIO(), width=1_000)
    screen.print(trajectory_view(Trajectory("Who runs it?", turns=[turn], answer="Ada", stop="answer"), 100))
    (line,) = re.findall("rests on: .*", screen.file.getvalue())
    assert line.startswith("rests on: [1] [red]Onyx[/red] [red]")
    assert line.rstrip().endswith("…, o.pdf, page 3, https://b.org")
    assert len(line.rstrip()) < 250


def test_what_the_answer_rests_on_stands_below_it_with_its_place():
    held = {"source": "search/Onyx-2.txt\x1b[31m", "page": 3}
    hits = [
        Hit("a", "Onyx-2", "Onyx-2 is run by Ada.", metadata=held),
        Hit("b", "Onyx-3", "Onyx-3 is run by Bob.", url="https://b.org"),
    ]
    turn = Turn([Query("Onyx", hits)], shown=[Shown(1, "a", 0, 5), Shown(2, "b", 0, 5)])
    screen = Console(file=io.StringIO(), width=100)
    for answer in ("Ada", "Ada [2]", "Carl", None):
        screen.print(trajectory_view(Trajectory("Who runs Onyx-2?", turns=[turn], answer=answer, stop="answer"), 100))
    found = re.findall("rests on: .*", screen.file.getvalue())
    assert [line.rstrip() for line in found] == [
        "rests on: [1] Onyx-2, search/Onyx-2.txt[31m, page 3",
        "rests on: [1] Onyx-2, search/Onyx-2.txt[31m, page 3; [2] Onyx-3, https://b.org",
    ]


def test_a_chat_model_that_saw_passages_cut_is_told_how_to_be_shown_more():
    hits = [Hit(f"{number}", f"Page {number}", "Text.") for number in range(4)]
    limits = {"max_observation_tokens": 1000}

    def view(num_cut: int, dialect: str) -> str:
        shown = [Shown(number, f"{number}", 0, 5, is_cut=number < num_cut) for number in range(4)]
        record = Trajectory("q?", turns=[Turn([Query("q", hits)], shown=shown)], dialect=dialect, limits=limits)
        screen = Console(file=io.StringIO(), width=300)
        screen.print(trajectory_view(record, 100))
        return screen.file.getvalue()

    told = "3 of 4 passages were cut to fit into 1000 tokens a round"
    assert told in view(3, "tools")
    assert "were cut" not in view(0, "tools")
    assert "were cut" not in view(3, "parallel")  # it learned with so much, and its context has no more


def test_ask_json_names_sources_and_citations_as_the_server_does(monet):
    record = json.loads(monet.read_text())
    reply = summary_of(reply_of(trajectory_from_dict(record)), max_hit_chars=10_000)
    for name in ("sources", "citations", "invalid_citations"):
        assert record[name] == reply[name]
    assert [one["title"] for one in record["citations"]] == ["Claude Monet", "Camille Pissarro"]


def test_ask_json_is_the_trajectory_object(monet):
    record = json.loads(monet.read_text())
    assert record["stop"] == "answer"
    assert record["num_subqueries"] == 2
    assert {segment["author"] for segment in record["segments"]} == {"prompt", "model", "search"}
    first = record["turns"][0]["queries"][0]["hits"][0]
    assert set(first) >= {"id", "title", "text", "score", "rank"}
    assert first["title"] == "Claude Monet"


def test_score_and_view(monet, here):
    result = run("score", str(monet), "--reward", "gated", "--json")
    assert json.loads(result.stdout) == {
        "id": "m1",
        "outcome": 1.0,
        "decomposition": 0.2,
        "search_count": 0.12,
        "format": 0.08,
        "total": 1.4,
    }
    assert json.loads(here("score", str(monet), "--json").stdout) == json.loads(result.stdout)  # the default
    assert "gated" in here("score", str(monet)).stdout
    folder = monet.parent / "run"
    folder.mkdir()
    (folder / "trajectories.jsonl").write_bytes(monet.read_bytes())
    assert here("score", str(folder), "--json").stdout == result.stdout
    assert "right" in here("view", str(monet)).stdout
    fails(here("view", str(monet), "--wrong"), 1, "none of the 1")


def test_index_and_ask_over_ones_own_corpus(tmp_path, here):
    (tmp_path / "corpus.jsonl").write_text(Path(demo.corpus_path()).read_text())
    built = run("index", "corpus.jsonl", "--out", "my-index", cwd=tmp_path)
    assert built.returncode == 0, built.stderr
    assert "--search bm25:my-index" in built.stdout
    asked = here("ask", MONET, "--search", "bm25:my-index", "--json", cwd=tmp_path)
    assert json.loads(asked.stdout)["answer"] == "Camille Pissarro"
    fails(here("index", "corpus.jsonl", "--out", "my-index", cwd=tmp_path), 2, "my-index", "--overwrite")
    weighed = here("index", "corpus.jsonl", "--out", "my-index", "--title-weight", "3", "--overwrite", cwd=tmp_path)
    assert weighed.returncode == 0, weighed.stderr
    assert json.loads((tmp_path / "my-index" / "manifest.json").read_text())["settings"]["title_weight"] == 3
    (tmp_path / "de.jsonl").write_text('{"id": "1", "title": "Fontane", "text": "Die Häuser der Gutsbesitzer."}\n')
    assert here("index", "de.jsonl", "--out", "de", "--stemmer", "german", cwd=tmp_path).returncode == 0
    found = here("retrieve", "Haus?", "--policy", "demo", "--search", "bm25:de", "--json", cwd=tmp_path)
    assert [one["title"] for one in json.loads(found.stdout)["passages"]] == ["Fontane"]  # English would not find it
    fails(here("index", "de.jsonl", "--out", "x", "--stemmer", "germn", cwd=tmp_path), 2, "Did you mean 'german'?")


def test_index_names_the_bad_line_unless_told_to_skip(tmp_path, here):
    (tmp_path / "c.jsonl").write_text('{"id": "1", "title": "T", "text": "x"}\n{"id": "2", "title": "T"}\n')
    fails(run("index", "c.jsonl", "--out", "i", cwd=tmp_path), 1, "line 2", "'text'")
    assert not (tmp_path / "i").exists()
    skipped = here("index", "c.jsonl", "--out", "i", "--skip-bad", cwd=tmp_path)
    assert skipped.returncode == 0
    assert "1 record was skipped:\n" in skipped.stderr
    (tmp_path / "c.jsonl").write_text('{"id": "1", "title": "T", "text": "x"}\n' + "{oops\n" * 21)
    skipped = here("index", "c.jsonl", "--out", "i", "--skip-bad", "--overwrite", cwd=tmp_path)
    assert "21 records were skipped, the first 20 of them:\n" in skipped.stderr


def test_index_says_what_of_a_folder_was_not_read(tmp_path, here):
    (tmp_path / "docs").mkdir()
    for name, text in {"a.md": "# A\nb", "b.md": "", "c.odt": "c", "d.ODT": "d", "e": "e", ".hidden": "f"}.items():
        (tmp_path / "docs" / name).write_text(text)
    for more in ([], ["--overwrite"]):  # an index of the same folder is no file that was not read
        built = here("index", "docs", "--out", "docs/index", *more, cwd=tmp_path)
        assert built.returncode == 0, built.stderr
        assert "1 record was skipped:\n  docs/b.md: is empty" in built.stderr
        assert built.stderr.endswith("3 files of other kinds were not read: .odt 2, no ending 1\n")
    (tmp_path / "docs" / "prices.csv").write_text("part,price\nSaw,12\n")
    built = here("index", "docs", "--out", "docs/index", "--overwrite", cwd=tmp_path)
    assert "  a table is read where it is named itself: index FOLDER FILE.csv, or --search 'all:" in built.stderr
    found = here(
        "retrieve", "Saw", "--policy", "demo", "--search", "all:files:docs|files:docs/prices.csv", cwd=tmp_path
    )
    assert "part: Saw; price: 12" in found.stdout


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["ask", "  "], 2, ["empty"]),
        (["ask", "???"], 2, ["no word in it"]),
        (["split", "..."], 2, ["no word in it", "parallelsearch split"]),
        (["ask", MONET, "--policy", "openai:"], 2, ["openai:BASE_URL#MODEL"]),
        (["ask", MONET, "--search", "bm52:x"], 2, ["Did you mean 'bm25'"]),
        (["ask", MONET, "--policy", "gpt"], 2, ["openai:BASE_URL#MODEL"]),
        (["ask", MONET, "--search", "bm25:nowhere"], 1, ["nowhere", "parallelsearch index"]),
        (["ask", MONET, "--search", "bm25:"], 2, ["ends after the colon"]),
        (["ask", MONET, "--dialect", "fancy"], 2, ["there is no dialect 'fancy'", "search-r1"]),
        (["ask", MONET, "--k", "0"], 2, ["k is the number of hits"]),
        (["ask", MONET, "--max-turns", "0"], 2, ["max_turns"]),
        (["ask", "What is love?"], 1, ["demo policy is no model", "--policy"]),
        (["ask", MONET, "--policy", "openai:http://127.0.0.1:9/v1#m"], 1, ["127.0.0.1:9"]),
        (["ask", MONET, "--policy", "script:none.json"], 2, ["none.json"]),
        (["score", "none.jsonl"], 2, ["none.jsonl"]),
        (["score", "none.jsonl", "--reward", "gate"], 2, ["none.jsonl"]),
        (["view", "none.jsonl"], 2, ["none.jsonl"]),
        (["index", "none.jsonl", "--out", "x"], 2, ["none.jsonl"]),
        (["data", "none.jsonl"], 2, ["none.jsonl"]),
        (["frobnicate"], 2, ["frobnicate"]),
        (["eval", "--data", "hotpotqa-pra", "--out", "r"], 2, ["hotpotqa-par"]),
        (["eval", "--dialect", "paralel", "--out", "r"], 2, ["parallel"]),
        (["compare", "nowhere", "elsewhere"], 2, ["nowhere"]),
        (["train", "none.toml"], 2, ["none.toml"]),
        (["index", "--plan", "0"], 2, ["at least 1"]),
        (["index"], 2, ["parallelsearch index CORPUS --out DIR"]),
        (["serve", "search", "--mcp", "smoke"], 2, ["stdio"]),
        (["serve", "search", "--search", "searxng:http://127.0.0.1:9", "--workers", "2"], 2, ["index on this machine"]),
        (["serve", "search", "--search", "bm25:none", "--workers", "1", "--port", "0"], 1, ["none"]),
        (["serve", "agent", "--port", "70000"], 2, ["65535"]),
        (["view", "a.jsonl", "b.jsonl"], 2, ["--html"]),
        (["data", "no-such-set"], 2, ["no-such-set"]),
    ],
)
def test_bad_input_gets_a_message_and_no_traceback(tmp_path, here, arguments, status, words):
    given = run if arguments[0] == "serve" else here
    fails(given(*arguments, cwd=tmp_path), status, *words)


@pytest.mark.parametrize("command", ["ask", "split", "retrieve"])
def test_a_question_is_taken_without_quotes_too(command, here):
    words = MONET.split()
    result = here(command, *words, "--policy", "demo", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["question"] == " ".join(words)


@pytest.mark.parametrize("encoding", ["ascii", "ascii:surrogateescape"])
def test_a_terminal_without_unicode_shows_the_answer(encoding: str):
    result = run("ask", MONET, "--policy", "demo", env={"PYTHONIOENCODING": encoding})
    assert result.returncode == 0, result.stderr
    assert "answer: Camille Pissarro" in result.stdout
    assert result.stdout.isascii()


@pytest.mark.parametrize("width", [30, 60, 80, 120])
def test_the_timing_fits_the_terminal(width):
    turns = [
        Turn([Query("When was Camille Pissarro of Saint Thomas born?", [], start_s=6.0, end_s=6.5)], generate_s=6.0),
        Turn(start_s=7.0, generate_s=3.0),
    ]
    done = Trajectory("q", turns=turns, answer="a", stop="answer", elapsed_s=10.0)
    written = io.StringIO()
    Console(width=width, file=written).print(trajectory_view(done, width))
    shown = written.getvalue().splitlines()
    lines = shown[next(n for n, line in enumerate(shown) if line.startswith("turn 1")) :]
    assert len(lines) == 3
    assert all("━" in line and line.rstrip().endswith(("ms", "s")) for line in lines)


def test_a_model_that_was_not_reached_wrote_no_turn():
    result = run("ask", MONET, "--policy", f"openai:http://127.0.0.1:{free_port()}/v1#m")
    fails(result, 1, "refused the connection")
    assert "turn 1" not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "also"),
    [(["ask", MONET], ""), (["eval", "--data", "demo"], "; the same command goes on from what is saved")],
    ids=["ask", "eval"],
)
def test_ctrl_c_while_a_model_is_waited_for(arguments: list[str], also: str, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"openai:http://127.0.0.1:{silent.getsockname()[1]}/v1#m"
        command = [sys.executable, "-m", "parallelsearch", *arguments, "--policy", address]
        heard = partial(
            signal.signal, signal.SIGINT, signal.SIG_DFL
        )  # tests that run in the background inherit deafness
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heard, cwd=tmp_path
        )
        silent.settimeout(120)
        with silent.accept()[0]:
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (130, "")
    *searched, told = err.splitlines()
    assert told == f"parallelsearch: stopped{also}"
    assert all(line.startswith("search: demo (") for line in searched)  # nobody named one


def test_ctrl_c_while_a_module_is_imported(monkeypatch):
    def stop(*_: object, **__: object) -> None:
        raise RuntimeError("Error calling __set_name__") from KeyboardInterrupt()

    monkeypatch.setattr("parallelsearch.addresses.open_search", stop)
    result = CliRunner().invoke(app, ["ask", MONET, "--policy", "demo"])
    assert (result.exit_code, result.stderr) == (130, "parallelsearch: stopped\n")


def test_what_a_question_cost_is_shown(here):
    asked = here("ask", MONET, "--policy", "demo", "--prices", "1000,2000,3000")
    record = json.loads(here("ask", MONET, "--policy", "demo", "--prices", "1000,2000,3000", "--json").stdout)
    assert f"cost {record['cost']:.6g}" in asked.stdout
    assert record["cost"] > 6  # two queries of 3000 a thousand, and what was read
    assert "cost" not in json.loads(here("ask", MONET, "--policy", "demo", "--json").stdout)


@pytest.mark.parametrize("kind", ["bm25", "hybrid"])
def test_a_folder_and_a_table_become_one_index(here, tmp_path, kind):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "onyx.md").write_text("# Onyx\nOnyx is run by Ada.")
    (tmp_path / "rows.csv").write_text("title,text\nOpal,Opal is run by Bob.\n")
    tiny_encoder = pytest.importorskip("tiny_encoders").tiny_encoder
    encoder = ["--encoder", str(tiny_encoder(tmp_path / "encoder"))] if kind == "hybrid" else []
    built = here("index", "docs", "rows.csv", "--out", "both", "--kind", kind, *encoder, "--json", cwd=tmp_path)
    assert json.loads(built.stdout)["num_passages"] == 2, built.stderr
    found = here("retrieve", "Onyx Opal", "--policy", "demo", "--search", f"{kind}:both", "--json", cwd=tmp_path)
    assert {one["id"] for one in json.loads(found.stdout)["passages"]} == {"docs/onyx.md#0", "rows.csv:1"}


def test_long_passages_are_noticed_when_they_are_indexed(here, tmp_path):
    for name, number in (("short", 200), ("long", 2000)):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"id": "1", "text": "word " * number}) + "\n")
    told = "--chunk-words 100 --overwrite"
    assert told not in here("index", "short.jsonl", "--out", "a", cwd=tmp_path).stderr
    assert told in here("index", "long.jsonl", "--out", "b", cwd=tmp_path).stderr
    cut = here("index", "long.jsonl", "--out", "b", "--chunk-words", "100", "--overwrite", cwd=tmp_path)
    assert told not in cut.stderr
    assert cut.stdout.startswith("25 passages")


def test_questions_without_answers_are_noticed_before_they_are_asked(here, tmp_path):
    (tmp_path / "q.jsonl").write_text(json.dumps({"question": MONET, "gold": ["Camille Pissarro"]}) + "\n")
    result = here("eval", "--data", "q.jsonl", "--policy", "demo", "--out", "run", cwd=tmp_path)
    told = "1 question has no golden answer (none of golden_answers, answer, answers, final_answer) and can only count as wrong"
    assert told in result.stderr


def test_weights_are_for_presets_that_have_them(here, monet):
    told = "the preset 'gated' has no weights; those that have are paper and reference: name one (--reward paper"
    fails(here("score", str(monet), "--lambda-d", "9"), 2, told)
    assert here("score", str(monet), "--reward", "paper", "--lambda-d", "9").returncode == 0
    recipe = str(Path(__file__).parents[2] / "recipes" / "cpu-smoke.toml")
    fails(here("train", recipe, "reward.preset=gated", "reward.search_count=0.9"), 2, "search_count: " + told)


def test_a_gguf_file_is_exported_of_weights(here, tmp_path):
    fails(here("export", "gguf:a+b", "m.gguf", cwd=tmp_path), 2, "try: parallelsearch export hf:a+b m.gguf")
    (tmp_path / "final").mkdir()
    (tmp_path / "final" / "adapter_config.json").write_text("{}")
    for out in ("m.gguf", "m"):
        fails(here("export", "final", out, cwd=tmp_path), 2, f"try: parallelsearch export hf:BASE+final {out}")


def test_why_there_is_no_answer_is_told_once(tmp_path, here):
    asked = here("ask", "What is love?", "--policy", "demo", cwd=tmp_path)
    fails(asked, 1, "demo policy is no model")
    assert "no answer\n" in asked.stdout
    assert (asked.stdout + asked.stderr).count("demo policy is no model") == 1
    failed = Trajectory("q?", stop="error", error="the server is down")
    screen = Console(file=io.StringIO(), width=100)
    screen.print(trajectory_view(failed, 100))
    assert "no answer (the server is down)" in screen.file.getvalue()  # `view` tells it nowhere else


def test_of_a_turn_without_tags_the_first_line_is_shown(tmp_path, here):
    written = "  \n\x1b[2JI think that it is " + "very " * 40 + "blue.\nAnd more of it."
    (tmp_path / "script.json").write_text(json.dumps({"Why?": [written, "<think> t </think><answer> 42 </answer>"]}))
    asked = here("ask", "Why?", "--policy", "script:script.json", "--force-answer", cwd=tmp_path, env={"COLUMNS": "60"})
    assert asked.returncode == 0, asked.stderr
    assert "problems: " in asked.stdout
    shown = [line for line in asked.stdout.splitlines() if "I think that it is very" in line]
    assert len(shown) == 1
    assert len(shown[0]) == 60
    assert "…" in shown[0]
    assert "And more of it" not in asked.stdout
    assert "\x1b[2J" not in asked.stdout


def test_score_refuses_a_record_without_kind_and_names_the_way_out(tmp_path, monet, here):
    record = json.loads(monet.read_text())
    record["kind"] = None
    (tmp_path / "t.jsonl").write_text(json.dumps(record))
    fails(here("score", "t.jsonl", cwd=tmp_path), 2, "label-free")
    assert here("score", "t.jsonl", "--reward", "label-free", cwd=tmp_path).returncode == 0
    fails(here("score", "t.jsonl", "--reward", "gate", cwd=tmp_path), 2, "Did you mean 'gated'")


def test_hostile_text_cannot_write_to_the_terminal(tmp_path, monet):
    record = json.loads(monet.read_text())
    record["question"] = "x \x1b[2J [red]y[/red]"
    record["answer"] = "\x1b]0;title\x07 [/bold] z"
    (tmp_path / "t.jsonl").write_text(json.dumps(record))
    shown = run("view", "t.jsonl", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "\x1b[2J" not in shown.stdout
    assert "\x1b]" not in shown.stdout
    assert "[red]y[/red]" in shown.stdout


def test_doctor_says_what_to_type():
    narrow = run("doctor", env={"COLUMNS": "60"})
    assert narrow.returncode == 0
    assert "522 passages" in narrow.stdout
    assert "…" not in narrow.stdout
    checks = json.loads(CliRunner().invoke(app, ["doctor", "--json"], env={"SERPER_API_KEY": "very-secret"}).stdout)
    assert all(check["works"] or check["fix"] or "GPU" in check["what"] for check in checks)
    assert "very-secret" not in json.dumps(checks)


@pytest.mark.parametrize(
    ("installed", "works", "found"),
    [
        ({"trl"}, True, "drawn by the slot engine"),
        ({"trl", "vllm"}, True, "with rollout.engine=vllm"),
        ({"verl", "vllm"}, True, "drawn by vllm"),
        ({"verl"}, False, "neither vllm nor sglang"),
        (set(), False, "no trainer"),
    ],
)
def test_doctor_names_the_engine_of_training(installed, works, found, monkeypatch):
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: object() if name in installed else None)
    check = doctor._training()
    assert (check.works, found in check.found) == (works, True)
    assert check.works or check.fix


def test_version_and_help():
    assert run("--version").stdout.startswith("parallelsearch ")
    assert "Example" in run("ask", "--help").stdout


def test_help_lists_commands_in_the_order_a_person_meets_them(here):
    text = here("--help", env={"COLUMNS": "80"}).stdout
    lines = text.splitlines()
    listed = lines[lines.index("Ask:") :]
    names = [line.split()[0] for line in listed if line.startswith("  ")]
    assert names == [name for commands in COMMANDS.values() for name in commands]
    assert names[0] == "ask"
    assert [line for line in listed if line.endswith(":")] == [f"{heading}:" for heading in COMMANDS]
    assert "..." not in text.partition("Ask:")[2], "a first sentence is too long for 80 columns"
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("group", ["serve", "data"])
def test_help_of_a_group_cuts_no_sentence(group, here):
    assert "..." not in here(group, "--help", env={"COLUMNS": "80"}).stdout.partition("Commands:")[2]


def test_a_recipe_with_a_wrong_key_names_the_right_one(tmp_path, here):
    recipe = (Path(__file__).parents[2] / "recipes" / "cpu-smoke.toml").read_text()
    (tmp_path / "r.toml").write_text(recipe.replace("questions_per_step", "question_per_step"))
    fails(here("train", "r.toml", cwd=tmp_path), 2, "question_per_step", "questions_per_step")


def test_a_list_that_is_cut_says_of_how_many_it_is(here):
    assert here("data", "demo", "--limit", "2").stderr == "2 of 179; --limit shows more\n"
    whole = here("data", "demo", "--limit", "179")
    assert (whole.stderr, "people-q001" in whole.stdout) == ("", True)
    assert here("data", "demo", "--limit", "2", "--json").stderr == ""


def test_brackets_and_colons_in_what_people_write_are_no_markup(tmp_path, here):
    row = {"id": "[/b]a[dev]:dog:", "question": MONET, "golden_answers": ["Camille Pissarro"], "dataset": "s[b]"}
    (tmp_path / "set.jsonl").write_text(json.dumps(row))
    listed = here("data", "set.jsonl", cwd=tmp_path)
    assert row["id"] in listed.stdout, listed.stderr
    evaluated = here("eval", "--data", "set.jsonl", "--out", "run", cwd=tmp_path)
    assert "s[b]" in evaluated.stdout, evaluated.stderr
    done = Trajectory("q", answer="a", stop="answer", reading=Reading({"model": "m[/b]"}, "a"), elapsed_s=1.0)
    written = io.StringIO()
    Console(width=60, file=written).print(trajectory_view(done, 60))
    assert "read by m[/b]" in written.getvalue()


def test_eval_compare_and_report(tmp_path, here):
    for name in ("one", "two"):
        result = here("eval", "--data", "demo", "--limit", "30", "--out", name, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
    assert "demo" in result.stdout
    summary = json.loads((tmp_path / "one" / "summary.json").read_text())
    subset = summary["subsets"]["demo"]
    assert set(subset) >= {"n", "em", "f1", "num_llm_calls", "num_searches", "split_ratio", "failures", "ci95"}
    assert (subset["n"], subset["em"]) == (30, 1.0)
    assert summary["manifest"]
    assert (tmp_path / "one" / "report.html").is_file()
    compared = here("compare", "one", "two", "--json", cwd=tmp_path)
    assert json.loads(compared.stdout)["num_shared"] == 30
    groups = here("compare", "one", "--", "two", "--json", cwd=tmp_path)
    assert json.loads(groups.stdout)["groups"] == {"one": ["one"], "two": ["two"]}
    seeds = here("compare", "one", "--", "two", cwd=tmp_path, env={"COLUMNS": "80"})
    assert "one seed" in seeds.stderr
    pairs = here("compare", "one", "two", cwd=tmp_path, env={"COLUMNS": "80"})
    for shown, whole in (
        (seeds.stdout, ["difference of: two - one", "1.000 (1: 1.000 to 1.000)"]),
        (pairs.stdout, ["1.000 [0.886, 1.000]"]),
    ):
        assert max(map(len, shown.splitlines())) <= 80
        assert "…" not in shown
        assert all(cell in shown for cell in [*whole, "demo", "+0.0000", "[+0.0000, +0.0000]"])
    assert all(title in pairs.stdout for title in ("calls", "searches", "sub-queries", "decomposition", "failures"))
    other = here("eval", "--data", "demo", "--limit", "30", "--k", "1", "--out", "three", cwd=tmp_path)
    assert other.returncode == 0, other.stderr
    fails(here("compare", "one", "three", cwd=tmp_path), 2, "k")
    for between in ([], ["--"]):
        allowed = here("compare", "one", *between, "three", "--allow", "search", cwd=tmp_path)
        assert "note: allowed to differ, one against three: search.k: 3 against 1" in allowed.stderr
    again = run("eval", "--data", "demo", "--limit", "30", "--out", "one", cwd=tmp_path)
    assert "nothing was asked: the run in 'one' was finished" in again.stderr


def test_of_many_subsets_the_largest_are_printed_and_the_others_where_they_are_asked_for(tmp_path, here):
    """Fifteen data sets; the one with most questions comes last by its name."""
    records = [json.loads(line) for line in shipped("questions.jsonl").read_text().splitlines()[:32]]
    for at, record in enumerate(records):
        record["dataset"] = "zuletzt" if at < 4 else f"set-{at % 14:02}"
        for name in ("kind", "trap", "type"):  # each would make further subsets
            record.pop(name, None)
    (tmp_path / "many.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    for name in ("one", "two"):
        assert here("eval", "--data", "many.jsonl", "--out", name, cwd=tmp_path).returncode == 0

    def printed(*arguments: str) -> set[str]:
        result = here("compare", *arguments, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        assert ("note: the largest of 16 subsets; --all prints the others" in result.stderr) is (len(arguments) < 4)
        return set(re.findall(r"^│ *(all|zuletzt|set-\d\d) *│", result.stdout, re.MULTILINE))

    everything = {"all", "zuletzt", *(f"set-{number:02}" for number in range(14))}
    some = printed("one", "two")
    assert {"all", "zuletzt"} < some < everything
    assert len(some) == 6
    assert printed("one", "two", "--all", "--seed=1") == everything
    assert printed("one", "--", "two", "--subset=set-05", "--subset=all") == {"all", "set-05"}
    fails(here("compare", "one", "two", "--subset", "zuletz", cwd=tmp_path), 2, "Did you mean 'zuletzt'?", "set-13")
    whole = json.loads(here("compare", "one", "two", "--json", cwd=tmp_path).stdout)
    assert set(whole["runs"][0]["subsets"]) == {test["subset"] for test in whole["tests"]} == everything
    fails(here("budget", "one", "--search", "demo", "--subset", "kind", cwd=tmp_path), 2, "Did you mean 'no kind'?")
    spent = here("budget", "one", "--search", "demo", "--subset", "no kind", cwd=tmp_path)
    assert "no kind" in spent.stdout, spent.stderr


@pytest.mark.parametrize("arguments", [("data", "demo"), ("--help",), ("score", "--help")])
def test_an_output_that_nobody_reads_ends_a_command_without_a_word(arguments):
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "parallelsearch", *arguments]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, timeout=60)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


def test_a_pipe_that_breaks_elsewhere_is_told(here, monkeypatch):
    """A connection, say, and not the output: the command has not done its work."""

    def breaks(*_, **__):
        raise BrokenPipeError

    monkeypatch.setattr("parallelsearch.data.sets.load_questions", breaks)
    fails(here("data", "demo"), 1, "the system refused: BrokenPipeError")


def test_a_port_in_use_is_said(tmp_path):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        fails(run("serve", "search", "--port", port, cwd=tmp_path), 2, port)
        fails(run("serve", "agent", "--port", port, cwd=tmp_path), 2, port)


def test_serve_agent_has_the_limits_and_files_of_ask(tmp_path, here, monkeypatch):
    served = []
    monkeypatch.setattr(
        "parallelsearch.server.agent_server.run_agent_server", lambda *given, **more: served.append(given)
    )
    files = ["--cache", str(tmp_path / "c.db"), "--cache-days", "1", "--record", str(tmp_path / "r.jsonl")]
    limits = ["--prices", "1,2,3", "--max-cost", "0.5", "--tokens-per-subquery", "77"]
    examples = ["--example", "Who wrote Emma?", "--example", "When?"]
    result = here("serve", "agent", "--policy", "demo", *files, *limits, *examples)
    assert result.returncode == 0, result.stderr
    [(_, search, settings)] = served
    assert (settings.limits.max_cost, settings.limits.tokens_per_subquery) == (0.5, 77)
    assert settings.limits.prices.output_per_million == 2
    assert search.retriever.inner.ttl_s == 86_400
    assert not search.retriever.must_be_whole
    assert settings.examples == ("Who wrote Emma?", "When?")
    assert (tmp_path / "r.jsonl").exists()
    assert here("serve", "agent", "--policy", "demo", "--prices", "1,2,3").returncode == 0
    assert (served[1][2].limits.max_cost, served[1][2].limits.prices.input_per_million) == (None, 1)
    fails(here("serve", "agent", "--policy", "demo", "--max-cost", "3"), 2, "max_cost needs prices")
    fails(here("serve", "agent", "--policy", "demo", "--latency-s", "1", *files), 2, "--latency-s slows the demo")


def test_the_demo_can_be_asked_one_thing_at_a_time(here):
    record = json.loads(here("ask", MONET, "--dialect", "sequential", "--json").stdout)
    assert (record["num_llm_calls"], record["num_searches"], record["num_subqueries"]) == (3, 2, 2)


def test_no_answer_has_an_exit_status_of_its_own(tmp_path, here):
    script = {"What is the answer?": ["<think> I wonder </think>"] * 6}
    (tmp_path / "script.json").write_text(json.dumps(script))
    for json_or_not in ([], ["--json"]):
        result = run("ask", "What is the answer?", "--policy", "script:script.json", *json_or_not, cwd=tmp_path)
        assert result.returncode == 3, result.stderr
    assert here("ask", "Who is older, Claude Monet or Camille Pissarro?", cwd=tmp_path).returncode == 0


def test_a_terminal_shows_what_the_model_writes_while_it_writes():
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=60)
    with LiveNarrator(console) as narrator:
        narrator(Event("turn", 0, 0.0))
        for number in range(200):
            narrator(Event("text", 0, 0.1, f" word{number} \x1b[31m"))
        narrator._status._live.refresh()
        narrator(Event("query", 0, 0.2, "born Monet"))
        narrator(Event("answer", 0, 0.3, "Monet"))
    shown = screen.getvalue()
    assert "200 tokens" in shown
    assert "word199" in shown
    assert "\x1b[31m" not in shown
    assert "search  born Monet" in shown
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown).replace("\r", "\n").splitlines()
    assert max(len(line) for line in lines) <= 60

"""The exported page: everything in one file, within its size, inert whatever the runs hold."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from viewer_runs import ATTACK, NUM_QUESTIONS, evaluation_run, hostile_trajectory, training_run

from parallelsearch.errors import UsageError
from parallelsearch.trajectory import Segment, Trajectory, write_trajectories
from parallelsearch.viewer.html import export_html
from parallelsearch.viewer.template import SCRIPTS, STYLE, read_asset

DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.S)


def unpack(text: str) -> str:
    return zlib.decompress(base64.b64decode(text)).decode()


def embedded(path: Path) -> tuple[dict[str, Any], list[list[Any]], dict[tuple[int, int], dict[str, Any]]]:
    """What the page's own script reads: the head, the rows of each run, and the records by (run, listed row)."""
    data = json.loads(DATA.search(path.read_text())[1])
    head = json.loads(unpack(data["head"]))
    blocks = [unpack(block).split("\n") for block in data["blocks"]]
    size = head["block_records"]
    records = {
        (run, row): json.loads(blocks[place // size][place % size])
        for run, described in enumerate(head["runs"])
        for row, place in enumerate(described["places"])
        if place >= 0
    }
    return head, [json.loads(unpack(rows)) for rows in data["rows"]], records


def words(random_: random.Random, count: int) -> str:
    return " ".join(f"{random_.randrange(1 << 40):x}" for _ in range(count))


@pytest.fixture(scope="module")
def big_run(tmp_path_factory) -> Path:
    """Text that does not compress, so that the size cap bites."""
    random_ = random.Random(0)
    folder = tmp_path_factory.mktemp("big") / "run"
    folder.mkdir()
    write_trajectories(
        folder / "trajectories.jsonl",
        (
            Trajectory(f"question {n}?", [Segment("model", words(random_, 200))], ["yes"], f"q{n}", answer="yes")
            for n in range(400)
        ),
    )
    return folder


def test_everything_is_in_the_file(tmp_path):
    run = evaluation_run(tmp_path / "parallel")
    report = export_html(run, tmp_path / "out.html")
    head, rows, records = embedded(tmp_path / "out.html")
    assert (report.num_trajectories, report.num_listed, report.num_embedded) == (NUM_QUESTIONS,) * 3
    assert report.left_out is None
    assert report.num_bytes == (tmp_path / "out.html").stat().st_size
    assert len(rows[0]) == len(records) == NUM_QUESTIONS
    for number, row in enumerate(rows[0]):
        assert records[0, number]["id"] == row[head["fields"].index("id")]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.html", "parallel"]


def test_the_page_says_nothing_about_the_machine(tmp_path):
    run = evaluation_run(tmp_path / "parallel")
    export_html([run], tmp_path / "out.html")
    head, *_ = embedded(tmp_path / "out.html")
    assert str(tmp_path) not in json.dumps(head)
    assert head["runs"][0]["name"] == "parallel"


def test_the_size_is_kept_and_what_is_left_out_is_said(big_run, tmp_path):
    cap = 300_000
    report = export_html([big_run], tmp_path / "out.html", max_bytes=cap)
    head, rows, records = embedded(tmp_path / "out.html")
    assert (tmp_path / "out.html").stat().st_size <= cap
    assert 50 < report.num_embedded == len(records) < 400
    assert report.num_listed == len(rows[0]) == 400
    assert report.left_out == head["left_out"]
    assert f"{400 - report.num_embedded} of 400 trajectories did not fit into 0.3 MB" in report.left_out
    # What fits is a fair sample of the run, not its beginning.
    quarters = [sum(row // 100 == quarter for _, row in records) for quarter in range(4)]
    assert min(quarters) > 0.7 * report.num_embedded / 4
    assert all(record["id"] == f"q{row}" for (_, row), record in records.items())


def test_what_comes_first_is_in_the_file_however_small_it_is(big_run, tmp_path):
    wanted = ["q399", "q7", "q200", "not there"]
    report = export_html([big_run], tmp_path / "out.html", max_bytes=150_000, first=wanted)
    _, _, records = embedded(tmp_path / "out.html")
    assert report.num_embedded < 100
    assert {"q399", "q7", "q200"} <= {record["id"] for record in records.values()}


def test_the_list_is_shortened_when_it_alone_is_too_long(big_run, tmp_path):
    path = tmp_path / "t.jsonl"
    random_ = random.Random(1)
    write_trajectories(path, (Trajectory(words(random_, 40), id=words(random_, 4)) for _ in range(3000)))
    report = export_html([path], tmp_path / "out.html", max_bytes=250_000)
    _, rows, _ = embedded(tmp_path / "out.html")
    assert report.num_bytes <= 250_000
    assert 0 < report.num_listed == len(rows[0]) < 3000
    assert "not in the list either" in report.left_out


def test_a_cap_without_room_says_so(big_run, tmp_path):
    with pytest.raises(UsageError, match="has no room"):
        export_html([big_run], tmp_path / "out.html", max_bytes=20_000)
    assert not (tmp_path / "out.html").exists()


def test_the_same_question_of_two_runs_goes_in_together(big_run, tmp_path):
    report = export_html([big_run, big_run / "trajectories.jsonl"], tmp_path / "out.html", max_bytes=400_000)
    _, _, records = embedded(tmp_path / "out.html")
    assert report.num_embedded < 800
    both = {row for run, row in records if run == 0} & {row for run, row in records if run == 1}
    assert len(both) > 0.95 * len(records) / 2


def test_hostile_text_cannot_leave_its_block(tmp_path):
    folder = tmp_path / "<img src=x onerror=alert(1)>"
    folder.mkdir()
    write_trajectories(folder / "trajectories.jsonl", [hostile_trajectory(str(n)) for n in range(3)])
    export_html([folder], tmp_path / "out.html")
    text = (tmp_path / "out.html").read_text()
    assert "hacked" not in text
    assert "onerror" not in text
    block = DATA.search(text)[1]
    assert re.fullmatch(r'[A-Za-z0-9+/=":,{}\[\] _]*', block)
    _, _, records = embedded(tmp_path / "out.html")
    assert records[0, 0]["question"] == ATTACK
    # The data block, and the one script whose hash the policy names.
    scripts = re.findall(r"<script>(.*?)</script>", text, re.S)
    assert text.count("<script") == 2
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy


def test_the_assets_are_plain_text_and_make_no_markup_of_data():
    for name in SCRIPTS:
        script = read_asset(name)
        assert "</script" not in script.lower()
        assert "<!--" not in script
        for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
            assert forbidden not in script
        assert not re.search(r"https?://", script)
    assert not re.search(r"url\(|@import", read_asset(STYLE))


def test_a_training_run_and_bad_lines(tmp_path):
    run = training_run(tmp_path / "grpo")
    with (run / "trajectories" / "step-000010.jsonl").open("a") as file:
        file.write("broken\n")
    report = export_html(run, tmp_path / "out.html", reward="label-free")
    assert report.num_embedded == 18
    assert report.notes == ["grpo: step-000010.jsonl, line 3: is not JSON (Expecting value at column 1)"]


def test_an_empty_run_makes_a_page(tmp_path):
    (tmp_path / "trajectories.jsonl").write_text("")
    assert export_html(tmp_path, tmp_path / "out.html").num_trajectories == 0


def test_only_pages_are_written_over(tmp_path, big_run):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "1", "text": "mine"}\n')
    with pytest.raises(UsageError, match="no page of the viewer; it is left as it is"):
        export_html(big_run, corpus)
    assert "mine" in corpus.read_text()
    page = tmp_path / "page.html"
    page.touch()
    assert export_html(big_run, page).num_bytes == export_html(big_run, page).num_bytes


def test_where_it_cannot_be_written(tmp_path, big_run):
    with pytest.raises(UsageError, match="is a folder"):
        export_html(big_run, tmp_path)
    with pytest.raises(UsageError, match="cannot write"):
        export_html(big_run, tmp_path / "missing" / "out.html")


def test_the_export_needs_no_server_package(tmp_path, big_run):
    code = (
        "import sys\nfor name in ('fastapi', 'starlette', 'uvicorn', 'torch'): sys.modules[name] = None\n"
        "from parallelsearch.viewer.html import export_html\n"
        f"print(export_html({str(big_run)!r}, {str(tmp_path / 'out.html')!r}).num_embedded)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=400)
    assert result.stdout.strip() == "400", result.stderr

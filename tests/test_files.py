"""Files that are whole or not there: under failures, under kills, and under two writers at once."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from threading import Thread

import pytest

from parallelsearch import files
from parallelsearch.data import load_questions
from parallelsearch.errors import DataError, UsageError
from parallelsearch.files import (
    is_draft,
    read_json_records,
    read_jsonl,
    remove_drafts,
    whole_file,
    whole_folder,
    write_json,
    write_lines,
    write_whole,
)
from parallelsearch.retrieval.corpus import read_corpus


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("is_synced", [False, True])
def test_a_file_is_written_and_written_again(tmp_path: Path, is_synced: bool) -> None:
    path = tmp_path / "a.txt"
    write_whole(path, "Pelé\n", is_synced=is_synced)
    assert path.read_bytes() == "Pelé\n".encode()
    write_whole(path, b"\xff", is_synced=is_synced)
    assert path.read_bytes() == b"\xff"
    write_json(path, {"é": [1]}, is_synced=is_synced)
    assert path.read_text() == '{\n  "é": [\n    1\n  ]\n}\n'
    assert write_lines(path, (str(number) for number in range(3)), is_synced=is_synced) == 3
    assert path.read_text() == "0\n1\n2\n"
    assert names(tmp_path) == ["a.txt"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~current_umask()


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


ARRAY = [{"a": "é🙂, ]'['"}, 12345, [1, [2]], "x", None, -1.5e3, {}, [], True, {"b": {"c": "]"}}]


@pytest.mark.parametrize("step", [1, 2, 7, 64, 1 << 20])
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("is_ascii", [False, True])
def test_an_array_is_read_record_by_record_wherever_the_pieces_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, indent: int | None, is_ascii: bool
) -> None:
    monkeypatch.setattr(files, "_STEP_BYTES", step)
    path = tmp_path / "a.json"
    for value in (ARRAY, [], [1], [{}]):
        path.write_text(f"  \n{json.dumps(value, indent=indent, ensure_ascii=is_ascii)}\n ", encoding="utf-8")
        assert list(read_json_records(path)) == list(enumerate(value, start=1))
    path.write_text(r'["\ud83d half", "\ud83d\ude42"]')
    assert list(read_json_records(path)) == [(1, "\ufffd half"), (2, "🙂")]
    path.write_text('{"a": 1}\n\n{"a": 2}\n')
    assert list(read_json_records(path)) == [(1, {"a": 1}), (3, {"a": 2})]


@pytest.mark.parametrize(
    ("data", "num_good", "words"),
    [
        (b'[{"a": 1}, {"a": ', 1, "record 2 of its array is not JSON"),
        (b'[{"a": 1}, {"a": }]', 1, "record 2 of its array is not JSON"),
        (b'[{"a": 1},]', 1, "record 2 of its array is not JSON"),
        (b'[{"a": 1}', 0, "record 1 of its array has '' behind it"),
        (b'[{"a": 1} {"a": 2}]', 0, "record 1 of its array has '{' behind it"),
        (b'[{"a": 1}]\n[2]', 1, "its array ends after 1 records, and the file goes on behind it"),
        (b'[{"a": 1}, "caf\xe9"]', 0, "is not UTF-8 .found byte 0xe9"),
        (b'[{"a": 1}, ' + b"[" * 100_000, 1, "record 2 of its array is nested too deeply"),
        (b'[{"a": 1}, "' + b"x" * 4000 + b'"', 1, "or has over 0 MiB"),
        (b"[", 0, "record 1 of its array is not JSON"),
    ],
)
def test_a_broken_array_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, num_good: int, words: str
) -> None:
    if "MiB" in words:
        monkeypatch.setattr(files, "MAX_LINE_BYTES", 1000)
        monkeypatch.setattr(files, "_STEP_BYTES", 100)
    (tmp_path / "a.json").write_bytes(data)
    found = []
    with pytest.raises(DataError, match=words):
        found.extend(read_json_records(tmp_path / "a.json"))
    assert len(found) == num_good


def test_a_long_array_is_never_in_memory(tmp_path: Path) -> None:
    with (tmp_path / "a.json").open("w") as file:
        file.write("[")
        file.writelines(json.dumps({"id": number, "text": "word " * 200}) + ", " for number in range(40_000))
        file.write("{}]")
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_json_records(tmp_path / "a.json")) == 40_001
        assert tracemalloc.get_traced_memory()[1] < 12_000_000  # of 40 MB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["questions.jsonl", "questions.json", "questions.csv", "questions.parquet"])
def test_a_pipe_is_refused_where_it_would_be_read_again(tmp_path: Path, name: str) -> None:
    """Who opens it a second time waits for ever: the one that wrote is gone."""
    pipe = tmp_path / name
    os.mkfifo(pipe)
    for read in (load_questions, lambda path: list(read_corpus(path))):
        with pytest.raises(UsageError, match="is a pipe or a device, and is read more than once here; write it into a"):
            read(pipe)


def test_a_file_may_be_rewritten_from_its_own_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f"{number}\n" for number in range(100_000)))
    write_lines(path, (str(value) for _, value in files.read_jsonl(path) if value % 2))
    assert [value for _, value in files.read_jsonl(path)] == list(range(1, 100_000, 2))


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"old": 1})

    def lines():
        yield "half"
        raise RuntimeError("no more")

    with pytest.raises(TypeError):
        write_json(path, {"new": object()})
    with pytest.raises(RuntimeError, match="no more"):
        write_lines(path, lines())
    assert json.loads(path.read_text()) == {"old": 1}
    assert names(tmp_path) == ["a.json"]


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    code = (
        "import resource, sys; from parallelsearch.files import write_whole\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "try: write_whole(sys.argv[1], b'x' * 20_000)\n"
        "except OSError as error: print('told', error.strerror)"
    )
    path = tmp_path / "a"
    path.write_text("old")
    result = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=400, check=True)
    assert result.stdout == "told File too large\n"
    assert (path.read_text(), names(tmp_path)) == ("old", ["a"])


def test_a_reader_sees_the_old_or_the_new_whatever_two_writers_do(tmp_path: Path) -> None:
    path, size = tmp_path / "a", 200_000
    write_whole(path, "a" * size)
    is_over = False

    def write(letter: str) -> None:
        while not is_over:
            write_whole(path, letter * size)

    writers = [Thread(target=write, args=(letter,)) for letter in "bc"]
    for writer in writers:
        writer.start()
    try:
        seen = set()
        end_s = time.monotonic() + 1
        while not seen or time.monotonic() < end_s:
            text = path.read_text()
            seen.add((len(text), len(set(text))))
    finally:
        is_over = True
        for writer in writers:
            writer.join()
    assert seen == {(size, 1)}
    assert names(tmp_path) == ["a"]


def test_a_killed_writer_leaves_a_whole_file_and_at_most_a_draft(tmp_path: Path) -> None:
    code = (
        "import itertools, sys; from parallelsearch.files import write_whole\n"
        "for number in itertools.count():\n"
        "    write_whole(sys.argv[1], f'{number:09d}' * 100_000)\n"
        "    print(number, flush=True)"
    )
    path = tmp_path / "a"
    for _ in range(5):
        with subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for _ in range(3):
                said = int(writer.stdout.readline())
            os.kill(writer.pid, signal.SIGKILL)
        text = path.read_text()
        assert len(text) == 900_000
        assert len({text[at : at + 9] for at in range(0, len(text), 9)}) == 1
        assert int(text[:9]) >= said
    assert all(entry.name == "a" or is_draft(entry) for entry in tmp_path.iterdir())
    remove_drafts(tmp_path)
    assert names(tmp_path) == ["a"]


def test_only_drafts_are_taken_for_drafts(tmp_path: Path) -> None:
    kept = ["a.tmp", ".a.tmp", ".a.1.tmp", "b.1-2.tmp", ".x.1-2.tmp.jsonl"]
    (tmp_path / "deep").mkdir()
    for name in (*kept, ".a.json.12-0.tmp", "deep/.b.1-2.tmp"):
        (tmp_path / name).write_text("x")
    remove_drafts(tmp_path)
    assert names(tmp_path) == sorted([*kept, "deep"])
    assert names(tmp_path / "deep") == []


def test_a_draft_lies_beside_its_file_and_may_be_written_by_others(tmp_path: Path) -> None:
    with whole_file(tmp_path / "a.npy") as draft:
        assert draft.parent == tmp_path
        subprocess.run(["sh", "-c", 'printf made > "$0"', draft], check=True)
        assert names(tmp_path) == [draft.name]
    assert (tmp_path / "a.npy").read_text() == "made"


def test_a_folder_appears_when_it_is_full(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    with whole_folder(out) as draft:
        (draft / "one").write_text("1")
        assert not out.exists()
    assert (names(out), names(out.parent)) == (["one"], ["out"])
    assert stat.S_IMODE(out.stat().st_mode) == 0o755
    with pytest.raises(ZeroDivisionError), whole_folder(tmp_path / "other") as draft:
        (draft / "one").write_text(str(1 / 0))
    with pytest.raises(OSError, match="not empty"), whole_folder(out) as draft:
        (draft / "two").write_text("2")
    assert (names(tmp_path), names(out)) == (["deep"], ["one"])


def test_what_is_written_can_be_read_back(tmp_path: Path) -> None:
    """Half a surrogate pair, from a snippet or an id, made files that no reader took."""
    path = tmp_path / "a.jsonl"
    write_lines(path, [json.dumps({"id": "\ud800x", "text": "\ud83d\ude00"}, ensure_ascii=False)])
    assert list(read_jsonl(path)) == [(1, {"id": "\ufffdx", "text": "😀"})]
    write_json(path, {"\udfff": "\ud800"})
    assert json.loads(path.read_text(encoding="utf-8")) == {"\ufffd": "\ufffd"}
    write_whole(path, "\ud800")
    assert path.read_text(encoding="utf-8") == "\ufffd"


def test_lines_that_earlier_releases_damaged_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"id": 1, "text": "\xed\xa0\x80 half"}\n{"id": 2, "text": "\\ud800 spelt"}\n{"id": 3}\n')
    assert [value for _, value in read_jsonl(path)] == [
        {"id": 1, "text": "\ufffd half"}, {"id": 2, "text": "\ufffd spelt"}, {"id": 3}
    ]  # fmt: skip


@pytest.mark.parametrize(
    "line", ["[" * 100_000, '{"a":' * 100_000, "1" * 5_000, '{"n": ' + "9" * 5_000 + "}", "nonsense"]
)
def test_a_line_that_is_no_record_is_an_error_that_names_it(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": 1}\n' + line + '\n{"id": 3}\n')
    bad: list[DataError] = []
    assert [number for number, _ in read_jsonl(path, bad.append)] == [1, 3]
    assert [error.line for error in bad] == [2]

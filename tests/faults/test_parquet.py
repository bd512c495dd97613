"""Parquet files of a few kilobytes that stand for gigabytes: what they unpack to is bounded, and honest ones are read."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from parallelsearch import files
from parallelsearch.data.questions import read_questions, read_records
from parallelsearch.errors import DataError
from parallelsearch.retrieval.corpus import read_corpus

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

# Reads a file in a process of its own and says how much memory that took, in MiB, beyond what the imports had.
READ = """
import resource, sys
import pyarrow.compute, pyarrow.parquet
from parallelsearch.data.questions import read_records
from parallelsearch.retrieval.corpus import read_corpus
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
before = peak()
num = sum(1 for _ in (read_records(sys.argv[1]) if sys.argv[2] == "questions" else read_corpus(sys.argv[1])))
print(num, peak() - before)
"""


def write(path: Path, compression: str = "zstd", **columns: object) -> Path:
    parquet.write_table(arrow.table(columns), path, compression=compression)
    return path


@pytest.fixture(scope="module")
def exploding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """150 rows that share one text of 8 MB: 1.2 GB in a file of a few kilobytes."""
    text = arrow.array(["ab " * 2_700_000]).dictionary_encode()
    shared = arrow.DictionaryArray.from_arrays(arrow.array([0] * 150, arrow.int32()), text.dictionary)
    ids = arrow.array([f"q{number}" for number in range(150)])
    path = tmp_path_factory.mktemp("parquet") / "exploding.parquet"
    answers = arrow.array([["a"]] * 150)
    parquet.write_table(
        arrow.table({"id": ids, "question": ids, "text": shared, "answer": answers}), path, compression="zstd"
    )
    assert path.stat().st_size < 100_000
    return path


@pytest.mark.parametrize("reader", ["questions", "corpus"])
def test_one_text_in_many_rows_is_unpacked_a_few_rows_at_a_time(exploding: Path, reader: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", READ, str(exploding), reader], capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    num_records, mebibytes = map(int, done.stdout.split())
    assert num_records == 150
    assert mebibytes < 400


def test_one_record_of_many_references_is_refused_before_it_is_made(tmp_path: Path) -> None:
    text = arrow.array(["ab " * 300_000]).dictionary_encode()
    shared = arrow.DictionaryArray.from_arrays(arrow.array([0] * 2_000, arrow.int32()), text.dictionary)
    lists = arrow.ListArray.from_arrays(arrow.array([0, 1, 2_000], arrow.int32()), shared)
    path = write(tmp_path / "q.parquet", question=arrow.array(["a?", "b?"]), answer=lists)
    assert path.stat().st_size < 100_000
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    records = read_records(path)
    assert next(records)[1]["question"] == "a?"
    with pytest.raises(
        DataError, match=r"q\.parquet, line 2: the record has 1,799,\d+,\d+ bytes, the limit is 33,554,432"
    ):
        next(records)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 300_000


@pytest.mark.parametrize("read", [read_questions, read_corpus])
def test_a_page_that_unpacks_to_a_thousand_times_its_size_is_refused(tmp_path: Path, read: object) -> None:
    path = write(tmp_path / "page.parquet", id=arrow.array(["1"]), text=arrow.array(["x" * 100_000_000]))
    assert path.stat().st_size < 1_000_000
    with pytest.raises(DataError, match=r"'text'.*bytes unpack to 100,.*smaller row groups"):
        list(read(path))  # type: ignore[operator]


def test_a_row_group_of_too_many_values_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_COLUMN_VALUES", 1_000)
    path = write(tmp_path / "many.parquet", question=arrow.array(["a?"]), answer=arrow.array([["x"] * 1_001]))
    with pytest.raises(DataError, match=r"1,001 values; the limit is 1,000"):
        list(read_questions(path))


def test_honest_columns_of_every_kind_come_back_as_they_were(tmp_path: Path) -> None:
    rows = [
        {
            "id": f"q{number}",
            "question": f"What is {number}?",
            "golden_answers": [str(number), "one"] if number % 3 else [],
            "metadata": {"level": "hard", "facts": [{"title": "T", "at": number}]},
            "score": number / 7,
            "is_old": None if number % 5 == 0 else number % 2 == 0,
            "raw": bytes([number % 256]),
        }
        for number in range(3_000)
    ]
    path = tmp_path / "honest.parquet"
    parquet.write_table(arrow.Table.from_pylist(rows), path, row_group_size=700)
    assert [record for _, record in read_records(path)] == rows
    tags = arrow.array([[("a", 1)], [], None], arrow.map_(arrow.string(), arrow.int64()))
    write(tmp_path / "map.parquet", tags=tags)
    assert [record["tags"] for _, record in read_records(tmp_path / "map.parquet")] == [[("a", 1)], [], None]

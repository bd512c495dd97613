"""Files that are searched as they lie there: indexed by themselves, once, and again when they change."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from parallelsearch import open_search, places
from parallelsearch.addresses import files_of, open_retriever, with_whole_path
from parallelsearch.errors import DataError, ParallelSearchError, UsageError
from parallelsearch.retrieval import live_files, reopening
from parallelsearch.retrieval.bm25 import BM25Retriever
from unwritable import closed, files_no_larger_than


@pytest.fixture
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARALLELSEARCH_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "docs"
    (folder / "minerals").mkdir(parents=True)
    (folder / "minerals" / "onyx.md").write_text("# Onyx\n\nOnyx is run by Ada.\n")
    (folder / "beryl.txt").write_text("Beryl\n\nBeryl is run by Bob.\n")
    return folder


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The paths that were indexed, in turn."""
    built: list[Path] = []

    def build_index(corpus: Path, *args: Any, **options: Any) -> dict[str, Any]:
        built.append(corpus)
        time.sleep(0.05)  # long enough for others to come meanwhile
        return real(corpus, *args, **options)

    real = live_files.build_index
    monkeypatch.setattr(live_files, "build_index", build_index)
    return built


async def found(address: str, query: str = "onyx") -> list[str]:
    search = open_search(address)
    try:
        query_found = await search.find(query)
        assert query_found.error is None
        return [hit.text for hit in query_found.hits]
    finally:
        await search.aclose()


async def test_a_folder_is_searched_as_it_lies_there_and_indexed_again_when_it_changes(
    docs: Path, builds: list[Path]
) -> None:
    address = f"files:{docs}"
    assert await found(address) == ["Onyx is run by Ada.\n".strip()]
    assert await found(address, "beryl") == ["Beryl is run by Bob."]
    assert len(builds) == 1
    (docs / "minerals" / "onyx.md").write_text("# Onyx\n\nOnyx is run by Eve.\n")
    os.utime(
        docs / "minerals" / "onyx.md", ns=(1, 1)
    )  # as old as can be: another time is enough, and so is another size
    assert await found(address) == ["Onyx is run by Eve."]
    (docs / "minerals" / "agate.rst").write_text("Agate\n=====\n\nAgate looks like onyx.\n")
    assert len(await found(address)) == 2
    (docs / "minerals" / "onyx.md").unlink()
    assert await found(address) == ["Agate looks like onyx."]
    assert await found(address) == ["Agate looks like onyx."]
    assert len(builds) == 4


async def test_what_is_no_document_or_hidden_changes_nothing(docs: Path, builds: list[Path]) -> None:
    await found(f"files:{docs}")
    (docs / ".drafts").mkdir()
    # The last is there as long as Word has it open.
    for name in (".hidden.md", ".drafts/onyx.md", "picture.png", "~$lease.docx"):
        (docs / name).write_text("onyx onyx")
    assert await found(f"files:{docs}") == ["Onyx is run by Ada."]
    assert len(builds) == 1


async def test_a_corpus_file_and_how_it_is_read(docs: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "1", "title": "Häuser", "text": "onyx one two three four", "page": 3}\n')
    assert await found(f"files:{corpus}") == ["onyx one two three four"]
    assert await found(f"files?where=page=3:{corpus}") == ["onyx one two three four"]
    assert await found(f"files?where=page=4:{corpus}") == []
    assert await found(f"files:{corpus}", "haus") == []
    assert await found(f"files?stemmer=german:{corpus}", "haus") != []
    assert await found(f"files?chunk_words=30:{corpus}") == ["onyx one two three four"]
    assert await found(f"all:files:{corpus}|files:{docs}") == [
        "onyx one two three four",
        "Onyx is run by Ada.",
    ]
    with pytest.raises(UsageError, match="klingon"):
        await found(f"files?stemmer=klingon:{corpus}")
    corpus.write_text('{"id": "1", "title": "", "text": "onyx"}\n{"id": 2}\n')
    with pytest.raises(DataError, match=r"corpus.jsonl.*2.*text"):
        await found(f"files:{corpus}")


async def test_a_document_that_cannot_be_read_is_left_out_and_named(
    docs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (docs / "broken.md").write_bytes(b"onyx \xff\xfe\xfa")
    with caplog.at_level(logging.WARNING):
        assert await found(f"files:{docs}") == ["Onyx is run by Ada."]
    assert "1 of the files" in caplog.text
    assert "broken.md" in caplog.text


def test_who_opens_the_same_files_at_once_builds_once(docs: Path, builds: list[Path]) -> None:
    with ThreadPoolExecutor(4) as pool:
        opened = list(pool.map(open_retriever, [f"files:{docs}"] * 4))
    assert len(opened) == 4
    assert builds == [docs]


def test_who_waited_for_another_indexes_what_is_there_then(
    docs: Path, builds: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def locked(path: Path) -> Iterator[None]:
        (docs / "agate.md").write_text("Agate is new.")
        with places.locked(path):
            yield

    monkeypatch.setattr(live_files, "locked", locked)
    (files,) = files_of(f"files:{docs}")
    assert files.refresh() is not None
    assert files.refresh() is None
    assert len(builds) == 1


async def test_an_index_that_goes_while_it_is_opened_is_followed_by_the_next(
    docs: Path, builds: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_index(index: Path) -> BM25Retriever:
        if len(builds) == 1:
            (docs / "agate.md").write_text("Agate is like onyx.")
            (files,) = files_of(f"files:{docs}")
            assert files.refresh() is not None
        return BM25Retriever(index)

    monkeypatch.setattr(live_files, "BM25Retriever", open_index)
    assert len(await found(f"files:{docs}")) == 2
    assert len(builds) == 2


async def test_a_file_is_another_with_the_same_size_and_time_and_when_it_may_be_read_again(
    docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onyx, fresh = docs / "minerals" / "onyx.md", docs / "fresh"
    assert await found(f"files:{docs}") == ["Onyx is run by Ada."]
    fresh.write_text("# Onyx\n\nOnyx is run by Eve.\n")
    os.utime(fresh, ns=(0, onyx.stat().st_mtime_ns))
    fresh.replace(onyx)
    assert await found(f"files:{docs}") == ["Onyx is run by Eve."]
    with closed(onyx):
        assert await found(f"files:{docs}") == []
    assert await found(f"files:{docs}") == ["Onyx is run by Eve."]
    (files,) = files_of(f"files:{docs}")
    stamp = files.stamp()
    monkeypatch.setattr(live_files, "find_spec", lambda name: None)
    assert files.stamp() != stamp  # PDFs are read once the extra for them is there


async def test_other_code_may_read_files_otherwise_also_under_the_same_version(
    docs: Path, builds: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await found(f"files:{docs}")
    package, ours = tmp_path / "parallelsearch", Path(live_files.__file__).parents[1]
    shutil.copytree(ours / "retrieval", package / "retrieval")
    for module in ("files.py", "untrusted.py"):
        shutil.copy(ours / module, package)
    changed = {live_files._code_of_readers(package)}
    assert changed == {live_files._code_of_readers()}
    for module in ("retrieval/documents.py", "files.py"):
        (package / module).write_text("# another")
        live_files._code_of_readers.cache_clear()
        changed.add(live_files._code_of_readers(package))
    assert len(changed) == 3
    await found(f"files:{docs}")
    assert len(builds) == 1
    monkeypatch.setattr(live_files, "_code_of_readers", lambda: "another")
    await found(f"files:{docs}")
    assert len(builds) == 2


async def test_a_path_that_is_not_utf_8(docs: Path) -> None:
    folder = docs / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    (folder / os.fsdecode(b"on\xe9.md")).write_text("Onyx in French.")
    assert await found(f"files:{folder}") == ["Onyx in French."]
    assert await found(f"files:{folder}") == ["Onyx in French."]


async def test_a_cache_that_somebody_tidied_is_made_again(docs: Path, builds: list[Path], tmp_path: Path) -> None:
    await found(f"files:{docs}")
    (manifest,) = (tmp_path / "cache" / "files").glob("*/*/manifest.json")
    index = manifest.parent
    manifest.unlink()
    assert await found(f"files:{docs}") == ["Onyx is run by Ada."]
    shutil.rmtree(index)
    assert await found(f"files:{docs}") == ["Onyx is run by Ada."]
    shutil.rmtree(tmp_path / "cache")
    assert await found(f"files:{docs}") == ["Onyx is run by Ada."]
    (index / "passages.bin").write_bytes(b"?" * (index / "passages.bin").stat().st_size)
    (index / "indptr.csc.index.npy").write_bytes(b"?" * (index / "indptr.csc.index.npy").stat().st_size)
    assert await found(f"files:{docs}") == ["Onyx is run by Ada."]
    assert len(builds) == 5
    (index / "manifest.json").unlink()
    (index.parent / "index.partial").write_text("of an earlier version")
    (docs / "beryl.txt").write_text("Beryl is new.")  # at once with what was tidied
    for note in ("[]", "{", '{"path": 3}'):
        next((tmp_path / "cache" / "files").glob("*/files.json")).write_text(note)
        assert await found(f"files:{docs}") == ["Onyx is run by Ada."]
    assert len(builds) == 6
    assert len(list(index.parent.iterdir())) == 3
    assert [path.stat().st_mode & 0o077 for path in (tmp_path / "cache" / "files").iterdir()] == [0]


async def test_indexes_of_files_that_are_gone_go_with_the_next_that_is_built(docs: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.csv"
    other.write_text("text\nonyx\n")
    await found(f"files:{docs}")
    await found(f"files:{other}")
    assert len(list((tmp_path / "cache" / "files").iterdir())) == 2
    shutil.rmtree(docs)
    await found(f"files?chunk_words=30:{other}")
    notes = [path.read_text() for path in (tmp_path / "cache" / "files").glob("*/files.json")]
    assert len(notes) == 2
    assert all("other.csv" in note for note in notes)


async def test_a_link_may_lead_to_another_folder_and_the_index_of_the_one_before_goes_with_it(
    docs: Path, tmp_path: Path
) -> None:
    link, other = tmp_path / "current", tmp_path / "other"
    link.symlink_to(docs)
    assert await found(f"files:{link}") == ["Onyx is run by Ada."]
    other.mkdir()
    (other / "onyx.md").write_text("Onyx is run by Eve.")
    (tmp_path / "next").symlink_to(other)
    (tmp_path / "next").replace(link)
    assert await found(f"files:{link}") == ["Onyx is run by Eve."]
    shutil.rmtree(docs)
    (other / "agate.md").write_text("Agate")
    assert await found(f"files:{link}") == ["Onyx is run by Eve."]
    assert len(list((tmp_path / "cache" / "files").iterdir())) == 1


def test_what_cannot_be_searched_says_why(docs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"there is no file or folder '.*nowhere'"):
        open_retriever(f"files:{tmp_path / 'nowhere'}")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"holds no .*\.md"):
        open_retriever(f"files:{tmp_path / 'empty'}")
    (tmp_path / "taken").write_text("a file")
    monkeypatch.setenv("PARALLELSEARCH_CACHE", str(tmp_path / "taken"))
    with pytest.raises(ParallelSearchError, match=r"cannot be kept in .*PARALLELSEARCH_CACHE.*parallelsearch index"):
        open_retriever(f"files:{docs}")


def test_a_cache_that_is_full_or_somebody_elses_is_told_with_what_to_do(docs: Path, tmp_path: Path) -> None:
    (files,) = files_of(f"files:{docs}")
    told = r"the index of '.*docs' cannot be kept in '.*cache/files/\w+': {}. Name another place in PARALLELSEARCH"
    with files_no_larger_than(200), pytest.raises(ParallelSearchError, match=told.format("File too large")):
        files.open()
    files.open()
    # As after `sudo`: the folder is root's, and nobody else looks into it.
    with closed(files.folder), pytest.raises(ParallelSearchError, match=told.format("Permission denied")):
        files.open()
    (tmp_path / "bad.jsonl.gz").write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"bad\.jsonl\.gz, line 1: the file is damaged"):
        open_retriever(f"files:{tmp_path / 'bad.jsonl.gz'}")


def test_a_path_that_goes_while_one_waits_is_told_as_one_that_is_not_there(
    docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def locked(path: Path) -> Iterator[None]:
        os.rename(docs / "beryl.txt", docs / "gone.txt")
        yield

    monkeypatch.setattr(live_files, "locked", locked)
    with pytest.raises(UsageError, match=r"there is no file or folder '.*beryl\.txt'"):
        open_retriever(f"files:{docs / 'beryl.txt'}")


async def test_a_server_notices_that_files_have_changed(
    docs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(reopening, "CHECK_S", 0.02)
    monkeypatch.setattr(live_files, "SETTLED_S", 0.05)
    search = open_search(f"files:{docs}", reopen=True, cache=tmp_path / "answers.db")
    try:
        assert (await search.find("onyx")).hits[0].text == "Onyx is run by Ada."
        (docs / "minerals" / "onyx.md").write_text("# Onyx\n\nOnyx is run by Eve.\n")
        deadline_s = time.monotonic() + 20
        while (await search.find("onyx")).hits[0].text != "Onyx is run by Eve.":
            assert time.monotonic() < deadline_s
            threading.Event().wait(0.02)
    finally:
        await search.aclose()


@pytest.mark.parametrize("is_folder_there", [True, False])
async def test_a_server_says_that_all_files_are_gone_and_answers_on(
    docs: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_folder_there: bool
) -> None:
    monkeypatch.setattr(reopening, "CHECK_S", 0.02)
    monkeypatch.setattr(live_files, "SETTLED_S", 0.05)
    search = open_search(f"files:{docs}", reopen=True)
    try:
        os.rename(docs, f"{docs}.away")
        if is_folder_there:
            os.mkdir(docs)
        deadline_s = time.monotonic() + 20
        while ("holds no .txt" if is_folder_there else "there is no file or folder") not in caplog.text:
            assert time.monotonic() < deadline_s
            threading.Event().wait(0.02)
        assert (await search.find("onyx")).hits[0].text == "Onyx is run by Ada."
    finally:
        await search.aclose()


def test_files_that_are_still_written_to_are_left_alone(docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (files,) = files_of(f"files:{docs}")
    for mtime in (time.time() - 3600, time.time() + 3600):  # what a copy keeps, or a wrong clock sets, hides no write
        os.utime(docs / "beryl.txt", (mtime,) * 2)
        assert files.settled_stamp() == []
    now_s = time.time()
    os.utime(docs / "beryl.txt", (0, 0))
    for at_s in (now_s + 60, now_s - 60):  # a clock that is wrong holds nothing up
        monkeypatch.setattr(time, "time", lambda at_s=at_s: at_s)
        assert files.settled_stamp() == [files.stamp()]
    shutil.rmtree(docs)
    assert files.settled_stamp() != []


def test_the_path_is_made_whole_and_only_files_are_files(docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(docs.parent)
    assert with_whole_path("files?stemmer=none:docs") == f"files?stemmer=none:{docs}"
    for address in ("demo", "gold:docs", "files?x=1:docs", "all:files:docs", "files"):
        assert files_of(address) == []
    fifty = live_files.LiveFiles(docs, chunk_words=50)
    assert files_of("files?chunk_words=50&where=page=3:docs") == [fifty]
    assert files_of("rerank:model+all:files?chunk_words=50:docs|pages:wikipedia:|pages:files:x") == [
        fifty,
        live_files.LiveFiles(docs.parent / "x"),
    ]

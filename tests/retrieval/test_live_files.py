"""Files that are searched as they lie there: indexed by themselves, once, and again when they change."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from parallelsearch import open_search
from parallelsearch.addresses import files_of, open_retriever, with_whole_path
from parallelsearch.errors import DataError, ParallelSearchError, UsageError
from parallelsearch.retrieval import live_files, reopening


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
    assert await found(address) == ["# Onyx\n\nOnyx is run by Ada.\n".strip()]
    assert await found(address, "beryl") == ["Beryl\n\nBeryl is run by Bob."]
    assert len(builds) == 1
    (docs / "minerals" / "onyx.md").write_text("# Onyx\n\nOnyx is run by Eve.\n")
    os.utime(
        docs / "minerals" / "onyx.md", ns=(1, 1)
    )  # as old as can be: another time is enough, and so is another size
    assert await found(address) == ["# Onyx\n\nOnyx is run by Eve."]
    (docs / "minerals" / "agate.rst").write_text("Agate\n=====\n\nAgate looks like onyx.\n")
    assert len(await found(address)) == 2
    (docs / "minerals" / "onyx.md").unlink()
    assert await found(address) == ["Agate\n=====\n\nAgate looks like onyx."]
    assert await found(address) == ["Agate\n=====\n\nAgate looks like onyx."]
    assert len(builds) == 4


async def test_what_is_no_document_or_hidden_changes_nothing(docs: Path, builds: list[Path]) -> None:
    await found(f"files:{docs}")
    (docs / ".drafts").mkdir()
    for name in (".hidden.md", ".drafts/onyx.md", "picture.png"):
        (docs / name).write_text("onyx onyx")
    assert await found(f"files:{docs}") == ["# Onyx\n\nOnyx is run by Ada."]
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
        "# Onyx\n\nOnyx is run by Ada.",
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
        assert await found(f"files:{docs}") == ["# Onyx\n\nOnyx is run by Ada."]
    assert "1 of the files" in caplog.text
    assert "broken.md" in caplog.text


def test_who_opens_the_same_files_at_once_builds_once(docs: Path, builds: list[Path]) -> None:
    with ThreadPoolExecutor(4) as pool:
        opened = list(pool.map(open_retriever, [f"files:{docs}"] * 4))
    assert len(opened) == 4
    assert builds == [docs]


async def test_a_cache_that_somebody_tidied_is_made_again(docs: Path, builds: list[Path], tmp_path: Path) -> None:
    await found(f"files:{docs}")
    (index,) = (tmp_path / "cache" / "files").glob("*/index")
    (index / "manifest.json").unlink()
    assert await found(f"files:{docs}") == ["# Onyx\n\nOnyx is run by Ada."]
    shutil.rmtree(index)
    assert await found(f"files:{docs}") == ["# Onyx\n\nOnyx is run by Ada."]
    shutil.rmtree(tmp_path / "cache")
    assert await found(f"files:{docs}") == ["# Onyx\n\nOnyx is run by Ada."]
    assert len(builds) == 4
    for note in ("[]", "{", '{"path": 3}'):
        next((tmp_path / "cache" / "files").glob("*/files.json")).write_text(note)
        assert await found(f"files:{docs}") == ["# Onyx\n\nOnyx is run by Ada."]
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


async def test_a_server_notices_that_files_have_changed(
    docs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(reopening, "CHECK_S", 0.02)
    monkeypatch.setattr(live_files, "SETTLED_S", 0.05)
    search = open_search(f"files:{docs}", reopen=True, cache=tmp_path / "answers.db")
    try:
        assert (await search.find("onyx")).hits[0].text == "# Onyx\n\nOnyx is run by Ada."
        (docs / "minerals" / "onyx.md").write_text("# Onyx\n\nOnyx is run by Eve.\n")
        deadline_s = time.monotonic() + 20
        while (await search.find("onyx")).hits[0].text != "# Onyx\n\nOnyx is run by Eve.":
            assert time.monotonic() < deadline_s
            threading.Event().wait(0.02)
    finally:
        await search.aclose()


def test_files_that_are_still_written_to_are_left_alone(docs: Path) -> None:
    files = files_of(f"files:{docs}")
    assert files is not None
    assert files.settled_stamp() == []
    for path in docs.rglob("*.*"):
        os.utime(path, (time.time() - 60,) * 2)
    assert files.settled_stamp() == [files.stamp()]
    os.utime(docs / "beryl.txt", (time.time() + 3600,) * 2)  # a clock that is wrong holds nothing up
    assert files.settled_stamp() == [files.stamp()]
    shutil.rmtree(docs)
    assert files.settled_stamp() == []


def test_the_path_is_made_whole_and_only_files_are_files(docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(docs.parent)
    assert with_whole_path("files?stemmer=none:docs") == f"files?stemmer=none:{docs}"
    assert files_of("demo") is None
    assert files_of("files?chunk_words=50&where=page=3:docs") == live_files.LiveFiles(docs, chunk_words=50)

"""The index folder: all or nothing, and whatever is wrong with one is said."""

import itertools
import json
import os
import shutil
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallelsearch import files
from parallelsearch.errors import DataError, IndexDamagedError, ParallelSearchError, UsageError
from parallelsearch.retrieval import store
from parallelsearch.retrieval.base import Passage
from parallelsearch.retrieval.store import (
    FORMAT_WITH_METADATA,
    IndexBuilder,
    PassageStore,
    PassageWriter,
    corpus_sha256,
    open_manifest,
    partial_folder,
)

PASSAGES = [
    Passage("1", "Pelé", "a footballer\nfrom Brazil"),
    Passage("2", "", "日本 \U0001f600 \x00 tab\t"),
    Passage("3", "with url", "text", url="https://example.org/3"),
    Passage("4", "with date", "text", date="2020-01-01"),
]


def build(out: Path, passages: list[Passage] = PASSAGES, kind: str = "bm25", extra: str = "x", **options: bool) -> None:
    with IndexBuilder(out, kind, **options) as builder:
        with PassageWriter(builder.folder) as writer:
            for passage in passages:
                writer.append(passage)
        (builder.folder / "more").mkdir()
        (builder.folder / "more" / "extra.bin").write_text(extra)
        builder.finish(corpus_sha256=writer.corpus_sha256, num_passages=writer.num_passages, settings={"a": [1]})


def fail_halfway(builder: IndexBuilder) -> None:
    assert not builder.resumed
    (builder.folder / "half").write_text("half")
    raise ZeroDivisionError


def test_an_index_says_what_is_in_it(tmp_path: Path):
    build(tmp_path / "index")
    manifest = open_manifest(tmp_path / "index", "bm25", verify=True)
    assert (manifest.kind, manifest.num_passages, manifest.settings) == ("bm25", 4, {"a": [1]})
    assert set(manifest.files) == {"passages.bin", "passages.offsets", "more/extra.bin"}
    assert manifest.num_bytes == sum(path.stat().st_size for path in (tmp_path / "index").rglob("*.*")) - (
        (tmp_path / "index" / "manifest.json").stat().st_size
    )
    assert manifest.corpus_sha256 == corpus_sha256(PASSAGES) != corpus_sha256(PASSAGES[::-1])
    assert "created" not in manifest.describe()
    assert os.listdir(tmp_path) == ["index"]


def test_passages_come_back_as_they_went_in(tmp_path: Path):
    build(tmp_path / "index")
    held = PassageStore.open(tmp_path / "index")
    assert list(held) == PASSAGES
    assert len(held) == 4
    assert held[1:3] == PASSAGES[1:3]
    assert held.get_many([3, 0, 3]) == [PASSAGES[3], PASSAGES[0], PASSAGES[3]]
    for row in (-1, 4):
        with pytest.raises(IndexError):
            held[row]


@given(st.lists(st.builds(Passage, st.text(min_size=1), st.text(), st.text()), min_size=1, max_size=8))
def test_any_text_is_stored(tmp_path_factory: pytest.TempPathFactory, passages: list[Passage]):
    folder = tmp_path_factory.mktemp("store")
    with PassageWriter(folder) as writer:
        assert [writer.append(passage) for passage in passages] == list(range(len(passages)))
    assert list(PassageStore.open(folder)) == passages


def test_many_threads_read_at_once(tmp_path: Path):
    passages = [Passage(str(n), f"title {n}", "word " * (n % 50)) for n in range(2_000)]
    build(tmp_path / "index", passages)
    held = PassageStore.open(tmp_path / "index")
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(held.get, list(range(2_000)) * 3)) == passages * 3


def test_an_index_is_replaced_only_on_request(tmp_path: Path):
    out = tmp_path / "index"
    build(out)
    with pytest.raises(UsageError, match=r"bm25, 4 passages.*--overwrite"):
        build(out, PASSAGES[:2])
    assert open_manifest(out).num_passages == 4
    build(out, PASSAGES[:2], overwrite=True)
    assert open_manifest(out).num_passages == 2
    (out / "passages.bin").unlink()
    with pytest.raises(UsageError, match="damaged index"):
        build(out)
    build(out, overwrite=True)
    assert os.listdir(tmp_path) == ["index"]


def test_what_is_not_an_index_is_never_replaced(tmp_path: Path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("cat")
    (tmp_path / "file").write_text("text")
    for name, words in (("photos", "is not an index"), ("file", "is a file")):
        with pytest.raises(UsageError, match=words):
            build(tmp_path / name, overwrite=True)
    (tmp_path / "other.partial").mkdir()
    (tmp_path / "other.partial" / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match="holds other files"):
        build(tmp_path / "other")
    assert (tmp_path / "photos" / "cat.jpg").read_text() == "cat"
    assert (tmp_path / "other.partial" / "mine.txt").read_text() == "mine"


def test_an_empty_folder_may_be_filled(tmp_path: Path):
    (tmp_path / "index").mkdir()
    build(tmp_path / "index")
    assert open_manifest(tmp_path / "index").num_passages == 4


def test_a_failed_build_leaves_nothing(tmp_path: Path):
    with pytest.raises(ZeroDivisionError), IndexBuilder(tmp_path / "index", "bm25") as builder:
        fail_halfway(builder)
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_reported_without_a_traceback(tmp_path: Path):
    with (
        pytest.raises(ParallelSearchError, match="could not be written: No space"),
        IndexBuilder(tmp_path / "i", "bm25"),
    ):
        raise OSError(28, "No space left on device")
    with pytest.raises(UsageError, match="cannot build an index"), IndexBuilder("/proc/none/index", "bm25"):
        pass


def test_an_empty_corpus_makes_no_index(tmp_path: Path):
    with pytest.raises(DataError, match="no passages"):
        build(tmp_path / "index", [])
    assert os.listdir(tmp_path) == []


def test_a_failed_build_with_a_key_goes_on(tmp_path: Path):
    out, key = tmp_path / "index", {"corpus": "abc", "shape": (1, 2)}
    with pytest.raises(ZeroDivisionError), IndexBuilder(out, "dense", resume_key=key) as builder:
        fail_halfway(builder)
    with pytest.raises(IndexDamagedError, match="unfinished build"):
        open_manifest(partial_folder(out))
    with pytest.raises(IndexDamagedError, match=r"does not exist \(there is an unfinished build"):
        open_manifest(out, "dense")
    with IndexBuilder(out, "dense", resume_key=key) as builder:
        assert builder.resumed
        assert (builder.folder / "half").read_text() == "half"
    with IndexBuilder(out, "dense", resume_key={**key, "corpus": "other"}) as builder:
        assert not builder.resumed
        assert not (builder.folder / "half").exists()
        (builder.folder / "half").write_text("again")
    with IndexBuilder(out, "dense", resume_key={**key, "corpus": "other"}) as builder:
        assert builder.resumed
        builder.finish(corpus_sha256="", num_passages=1, settings={})
    assert set(open_manifest(out, "dense").files) == {"half"}
    assert os.listdir(tmp_path) == ["index"]


def test_one_process_builds_at_a_time(tmp_path: Path):
    with IndexBuilder(tmp_path / "index", "bm25") as builder:
        with pytest.raises(UsageError, match="another process is building"), IndexBuilder(tmp_path / "index", "bm25"):
            pass
        assert (builder.folder / "partial.json").exists()  # the loser did not clear the winner's folder


def build_and_die(out: Path, step: int) -> int:
    """Replace the index in a child process that kills itself at its `step`-th change of the disk; returns its status."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    calls = itertools.count(1)

    def counted(function: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **options: object) -> object:
            if next(calls) == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **options)

        return call

    status = 1
    try:
        for name in ("rename", "replace", "unlink", "mkdir"):
            setattr(Path, name, counted(getattr(Path, name)))
        store.sync = files.sync = counted(files.sync)
        shutil.rmtree = counted(shutil.rmtree)
        build(out, PASSAGES[:3], extra="new", overwrite=True)
        status = 0
    finally:
        os._exit(status)


def test_a_kill_at_any_step_leaves_the_old_index_or_the_new(tmp_path: Path):
    """The process kills itself at its n-th change of the disk, for every n until it gets through."""
    for step in range(1, 60):
        out = tmp_path / str(step) / "index"
        out.parent.mkdir()
        build(out, extra="old")
        status = build_and_die(out, step)
        assert status in (0, -signal.SIGKILL)
        if out.exists():
            manifest = open_manifest(out, "bm25", verify=True)
            found = manifest.num_passages, (out / "more" / "extra.bin").read_text()
            assert found in ((4, "old"), (3, "new"))
        else:
            with pytest.raises(IndexDamagedError, match="rename it back"):
                open_manifest(out)
        build(out, extra="again", overwrite=True)
        assert open_manifest(out, verify=True).num_passages == 4
        assert os.listdir(out.parent) == ["index"]
        if status == 0:
            assert step > 10
            return
    pytest.fail("the build never got through")


# ---- what is wrong is said -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["passages.bin", "passages.offsets", "more/extra.bin", "manifest.json"])
@pytest.mark.parametrize("damage", ["cut", "emptied", "removed"])
def test_a_damaged_file_is_refused(tmp_path: Path, name: str, damage: str):
    out = tmp_path / "index"
    build(out)
    path = out / name
    if damage == "removed":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] if damage == "cut" and name != "manifest.json" else b"")
    with pytest.raises(IndexDamagedError, match="parallelsearch index CORPUS --out") as caught:
        open_manifest(out, "bm25")
    assert name in str(caught.value)


def test_changed_contents_are_found_on_request(tmp_path: Path):
    build(tmp_path / "index")
    path = tmp_path / "index" / "more" / "extra.bin"
    path.write_text("y")
    assert open_manifest(tmp_path / "index").num_passages == 4
    with pytest.raises(IndexDamagedError, match=r"more/extra\.bin have changed"):
        open_manifest(tmp_path / "index", verify=True)


def test_no_index_is_told_from_a_wrong_one(tmp_path: Path):
    with pytest.raises(IndexDamagedError, match=r"does not exist\. Build it with: parallelsearch index CORPUS --out"):
        open_manifest(tmp_path / "none", "bm25")
    with pytest.raises(IndexDamagedError, match="--kind dense"):
        open_manifest(tmp_path / "none", "dense")
    (tmp_path / "file").write_text("")
    with pytest.raises(IndexDamagedError, match="is a file"):
        open_manifest(tmp_path / "file")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "cat.jpg").write_text("")
    with pytest.raises(IndexDamagedError, match=r"no manifest\.json.*cat\.jpg"):
        open_manifest(tmp_path / "folder")
    build(tmp_path / "dense", kind="dense")
    with pytest.raises(IndexDamagedError, match="is an index of kind 'dense', and 'bm25' is needed"):
        open_manifest(tmp_path / "dense", "bm25")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"format_version": FORMAT_WITH_METADATA + 1, "package_version": "9.1"},
            r"format 3 \(written by parallelsearch 9\.1\), and this version reads formats 1 and 2",
        ),
        ({"num_passages": "4"}, "'num_passages' is missing or not of type int"),
        ({"files": {"passages.bin": {}}}, r"no size for 'passages\.bin'"),
        ({"kind": None}, "'kind' is missing"),
    ],
)
def test_a_manifest_of_another_shape_is_refused(tmp_path: Path, changes: dict[str, object], words: str):
    build(tmp_path / "index")
    path = tmp_path / "index" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(IndexDamagedError, match=words):
        open_manifest(tmp_path / "index")
    path.write_text("[]")
    with pytest.raises(IndexDamagedError, match="expected an object"):
        open_manifest(tmp_path / "index")


def test_offsets_that_do_not_fit_are_refused(tmp_path: Path):
    build(tmp_path / "index")
    offsets = tmp_path / "index" / "passages.offsets"
    data = offsets.read_bytes()
    offsets.write_bytes(data[:-8])
    with pytest.raises(IndexDamagedError, match="does not fit"):
        PassageStore.open(tmp_path / "index")
    offsets.write_bytes(data[:8] + (3).to_bytes(8, "little") + data[16:])
    with pytest.raises(IndexDamagedError, match="row 0 is damaged"):
        PassageStore.open(tmp_path / "index")[0]

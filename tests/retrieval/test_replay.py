"""Recording and replaying, with real files, real processes and kill -9."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import functools
import json
import logging
import os
import textwrap
import time
from pathlib import Path

import pytest
from killed_writers import run_and_kill

from parallelsearch.errors import DataError, SearchError, SearchTimeoutError, TransientSearchError, UsageError
from parallelsearch.retrieval.base import Hit, Retriever
from parallelsearch.retrieval.replay import RecordingRetriever, ReplayRetriever
from parallelsearch.search import Search
from unwritable import files_no_larger_than

HITS = [
    Hit("1", 'T "q"', "líne\n\x00\u2028 😀", "http://u", "2020-01-01", 0.1 + 0.2, 1, metadata={"page": 3}),
    Hit("2", "\ud800", "", None, None, float("-inf"), 2),
    Hit("3", "t", "x" * 10_000, None, None, 5e-324, 3),
]
ERRORS = {
    "plain": SearchError("no such thing"),
    "late": SearchTimeoutError("10 s"),
    "busy": TransientSearchError("429", 60.0),
}


class Odd(Retriever):
    name = "odd"

    async def search_many(self, queries, k):
        if "down" in queries:
            raise TransientSearchError("all is lost")
        return [ERRORS.get(query) or HITS[:k] for query in queries]

    def describe(self):
        return {"kind": "odd", "version": 3}


async def record(file: Path, *batches: list[str], k: int = 3) -> None:
    recorder = RecordingRetriever(Odd(), file)
    for batch in batches:
        await recorder.search_many(batch, k)
    await recorder.aclose()


@pytest.mark.parametrize("text", ['{"id": "1", "text": "a passage"}\n', "no JSON\n[1]\n3\n", "\n"])
async def test_a_file_that_is_no_recording_is_left_as_it_is(tmp_path, text):
    file = tmp_path / "corpus.jsonl"
    file.write_text(text)
    with pytest.raises(UsageError, match="is no recording; it is left as it is"):
        RecordingRetriever(Odd(), file)
    assert file.read_text() == text


async def test_a_recording_of_another_search_is_not_gone_on_with(tmp_path):
    file = tmp_path / "run.jsonl"
    await record(file, ["a"])
    before = file.read_bytes()

    class Newer(Odd):
        def describe(self):
            return {"kind": "odd", "version": 4}

    with pytest.raises(UsageError, match="recording of another search"):
        RecordingRetriever(Newer(), file)
    assert file.read_bytes() == before
    await record(file, ["b"])  # the same search goes on
    assert len(ReplayRetriever(file)) == 2


async def test_hits_order_scores_and_errors_come_back_bit_for_bit(tmp_path):
    file = tmp_path / "new" / "run.jsonl"
    queries = ["a", "plain", "b", "late", "busy", "control \x00\x1b", "\ud800", "x" * 100_000]
    await record(file, queries)
    replay = ReplayRetriever(file)
    results = await replay.search_many(queries[::-1], 3)
    for query, result in zip(queries[::-1], results, strict=True):
        if query in ERRORS:
            assert type(result) is type(ERRORS[query])
            assert str(result) == str(ERRORS[query])
        else:
            assert result == HITS
            assert [hit.score.hex() for hit in result] == [hit.score.hex() for hit in HITS]
    assert len(replay) == len(queries)
    assert replay.describe()["backend"] == {"kind": "odd", "version": 3}
    await replay.aclose()


async def test_an_unknown_query_is_named(tmp_path):
    await record(tmp_path / "r", ["a"])
    replay = ReplayRetriever(tmp_path / "r")
    known, unknown = await replay.search_many(["a", "never asked"], 3)
    assert known == HITS
    assert isinstance(unknown, SearchError)
    assert "'never asked'" in str(unknown)
    await replay.aclose()


async def test_fewer_hits_than_recorded_are_cut_and_more_are_not_invented(tmp_path):
    await record(tmp_path / "r", ["a"], k=2)
    await record(tmp_path / "r", ["b"], k=5)
    replay = ReplayRetriever(tmp_path / "r")
    assert await replay.search_many(["a", "b"], 1) == [HITS[:1], HITS[:1]]
    only_two, all_there_are = await replay.search_many(["a", "b"], 50)
    assert "only 2 hits, not 50" in str(only_two)
    assert all_there_are == HITS
    await replay.aclose()


async def test_a_failure_that_passed_is_replayed_as_its_answer(tmp_path):
    class Recovers(Odd):
        num_calls = 0

        async def search_many(self, queries, k):
            self.num_calls += 1
            if self.num_calls == 1:
                raise TransientSearchError("busy", 0.01)
            return [HITS[:k] for _ in queries]

    search = Search(RecordingRetriever(Recovers(), tmp_path / "r"), timeout_s=60, first_wait_s=0.01)
    (live,) = await search.search_many(["a"])
    await search.aclose()
    search = Search(ReplayRetriever(tmp_path / "r"))
    (again,) = await search.search_many(["a"])
    await search.aclose()
    assert live.hits == again.hits
    assert [hit.id for hit in live.hits] == [hit.id for hit in HITS]  # odd titles and scores are mended by the search
    assert sum(b"busy" in line for line in (tmp_path / "r").read_bytes().splitlines()) == 1


async def test_a_query_that_never_worked_fails_again_without_waiting(tmp_path):
    search = Search(RecordingRetriever(Odd(), tmp_path / "r"), timeout_s=20, attempts=2, first_wait_s=0.01)
    live = await search.search_many(["busy"])
    await search.aclose()
    search = Search(ReplayRetriever(tmp_path / "r"), timeout_s=100)
    start_s = time.perf_counter()
    (again,) = await search.search_many(["busy"])
    await search.aclose()
    assert time.perf_counter() - start_s < 30  # the server asked for 60 s
    assert "429" in str(live[0].error)
    assert "429" in str(again.error)


async def test_a_call_that_failed_whole_is_recorded_for_each_query(tmp_path):
    recorder = RecordingRetriever(Odd(), tmp_path / "r")
    with pytest.raises(TransientSearchError):
        await recorder.search_many(["a", "down"], 3)
    await recorder.aclose()
    replay = ReplayRetriever(tmp_path / "r")
    results = await replay.search_many(["a", "down"], 3)
    assert [str(result) for result in results] == ["all is lost"] * 2
    await replay.aclose()


async def test_a_torn_last_line_is_skipped_with_a_warning_and_sealed_by_the_next_run(tmp_path, caplog):
    file = tmp_path / "r"
    await record(file, ["a", "b"])
    file.write_bytes(file.read_bytes()[:-20])
    with caplog.at_level(logging.WARNING):
        replay = ReplayRetriever(file)
    assert "1 torn or damaged lines were skipped (line 3)" in caplog.text
    assert len(replay) == 1
    await replay.aclose()
    await record(file, ["b", "c"])
    replay = ReplayRetriever(file)
    assert await replay.search_many(["a", "b", "c"], 3) == [HITS] * 3
    await replay.aclose()


async def test_a_torn_first_line_does_not_spoil_the_file(tmp_path):
    file = tmp_path / "r"
    file.write_bytes(b'{"backend": {"kind": "odd", "ver')
    await record(file, ["a"])
    replay = ReplayRetriever(file)
    assert await replay.search_many(["a"], 3) == [HITS]
    await replay.aclose()


@pytest.mark.parametrize("content", ["", "hello\n", '{"query": "a", "k": 1, "hits": []}\n', "[1]\n", "\xff\n"])
def test_a_file_that_is_no_recording_is_refused(tmp_path, content):
    (tmp_path / "r").write_bytes(content.encode("latin-1"))
    with pytest.raises(DataError, match="is not a recording"):
        ReplayRetriever(tmp_path / "r")


def test_other_versions_missing_files_and_unwritable_places_are_said(tmp_path):
    (tmp_path / "r").write_text(json.dumps({"recording": 99, "backend": {}}) + "\n")
    with pytest.raises(UsageError, match="version 99"):
        ReplayRetriever(tmp_path / "r")
    with pytest.raises(UsageError, match="No such file"):
        ReplayRetriever(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="cannot record"):
        RecordingRetriever(Odd(), tmp_path)


async def test_a_disk_that_fails_at_the_end_is_told_and_everything_is_closed(tmp_path, caplog, monkeypatch):
    def fails(fd):
        raise OSError(errno.ENOSPC, "No space left on device")

    inner, closed = Odd(), []
    monkeypatch.setattr(inner, "aclose", functools.partial(_note, closed))
    recording = RecordingRetriever(inner, tmp_path / "full", must_be_whole=False)
    await recording.search_many(["a"], 3)
    monkeypatch.setattr(os, "fsync", fails)
    await recording.aclose()
    await recording.aclose()
    assert closed == ["closed", "closed"]
    assert "No space left on device; its end may be missing" in caplog.text


async def _note(closed):
    closed.append("closed")


async def test_on_a_full_disk_a_recording_that_need_not_be_whole_ends_and_the_searches_go_on(tmp_path, caplog):
    whole = RecordingRetriever(Odd(), tmp_path / "whole")
    served = RecordingRetriever(Odd(), tmp_path / "served", must_be_whole=False)
    with files_no_larger_than(1000):
        with pytest.raises(UsageError, match=r"cannot record to '.*whole'"):
            await whole.search_many(["a"], 3)
        assert await asyncio.gather(*(served.search_many([query], 3) for query in "abc")) == [[HITS]] * 3
    await served.search_many(["d"], 1)
    assert [(one.levelname, one.message.partition(";")[2]) for one in caplog.records] == [
        ("ERROR", " nothing more is recorded, the searches go on without it")
    ]
    await whole.aclose()
    await served.aclose()
    replay = ReplayRetriever(tmp_path / "served")  # what was cut off is passed over
    assert len(replay) == 0
    await replay.aclose()


async def test_writers_wait_for_each_other(tmp_path):
    recorder = RecordingRetriever(Odd(), tmp_path / "r")
    with (tmp_path / "r").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        other.write(b'{"query": "tor')  # another process is in the middle of a line
        other.flush()
        task = asyncio.create_task(recorder.search_many(["a"], 3))
        await asyncio.sleep(0.1)
        assert not task.done()
        other.write(b'n", "k": 1, "hits": []}\n')
        other.flush()
        fcntl.flock(other, fcntl.LOCK_UN)
    await task
    await recorder.aclose()
    replay = ReplayRetriever(tmp_path / "r")
    assert await replay.search_many(["torn", "a"], 1) == [[], HITS[:1]]
    await replay.aclose()


WRITER = textwrap.dedent(
    """
    import asyncio, sys
    from parallelsearch.retrieval.base import Hit, Retriever
    from parallelsearch.retrieval.replay import RecordingRetriever

    class Many(Retriever):
        name = "many"
        async def search_many(self, queries, k):
            return [[Hit(q, q, "text " * 2000, score=len(q), rank=1)] for q in queries]

    async def main(file, name):
        recorder = RecordingRetriever(Many(), file, sync_every_s=0.05)
        for n in range(1_000_000):
            batch = [f"{name}-{n}-{i}" for i in range(4)]
            await recorder.search_many(batch, 1)
            print("\\n".join(batch), flush=True)

    asyncio.run(main(sys.argv[1], sys.argv[2]))
    """
)


async def test_kill_9_of_two_writers_loses_nothing_that_was_answered(tmp_path):
    file = tmp_path / "shared.jsonl"
    answered = run_and_kill(WRITER, file, ("one", "two"))
    assert len(answered) > 100
    replay = ReplayRetriever(file)
    results = await replay.search_many(answered, 1)
    assert [result[0].id for result in results] == answered
    await replay.aclose()

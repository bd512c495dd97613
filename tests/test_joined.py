"""Several searches as one: turns, ids, parts that fail, and what the record says of them."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from parallelsearch.errors import SearchError, TransientSearchError, UsageError
from parallelsearch.evaluation.report import notes_of
from parallelsearch.evaluation.whole import evaluate
from parallelsearch.joined import JoinedRetriever
from parallelsearch.retrieval.base import DegradedHits, Hit, Result, Retriever
from parallelsearch.retrieval.cache import CachedRetriever
from parallelsearch.retrieval.replay import RecordingRetriever, ReplayRetriever
from parallelsearch.search import Search
from parallelsearch.trajectory import read_trajectories
from virtual_time import in_virtual_time


def ranking(*ids: str) -> list[Hit]:
    return [Hit(id, f"title {id}", "text", score=9.0 - rank, rank=rank) for rank, id in enumerate(ids, 1)]


class Fixed(Retriever):
    """Gives its results one after the other, the last of them again and again."""

    def __init__(self, name: str, *results: Result) -> None:
        self.name, self.results = name, list(results)
        self.num_at_once = self.most_at_once = 0
        self.is_closed = False

    async def search_many(self, queries: Sequence[str], k: int) -> list[Result]:
        self.num_at_once += 1
        self.most_at_once = max(self.most_at_once, self.num_at_once)
        await asyncio.sleep(0.001)
        self.num_at_once -= 1
        result = self.results.pop(0) if len(self.results) > 1 else self.results[0]
        return [result for _ in queries]

    def describe(self) -> dict[str, object]:
        return {"kind": self.name, "corpus_sha256": self.name}

    async def aclose(self) -> None:
        self.is_closed = True


async def ids(parts: Sequence[Retriever], k: int = 5, **options: object) -> list[str]:
    (found,) = await JoinedRetriever(parts, **options).search_many(["q"], k)  # type: ignore[arg-type]
    assert isinstance(found, list)
    assert [hit.rank for hit in found] == list(range(1, len(found) + 1))
    return [hit.id for hit in found]


async def test_hits_take_turns_by_weight_and_corpora_are_kept_apart() -> None:
    own, other = Fixed("own", ranking("1", "2", "3")), Fixed("other", ranking("1", "2", "3"))
    assert await ids([own, other]) == ["1", "2:1", "2", "2:2", "3"]
    assert await ids([own, other], 3, weights=(2, 1)) == ["1", "2", "2:1"]
    assert await ids([own, other], 4, weights=(1, 3)) == ["2:1", "2:2", "1", "2:3"]
    web = Fixed("web", ranking("https://a.example/"))
    assert await ids([own, web, Fixed("web-2", web.results[0])], 4) == ["1", "https://a.example/", "2", "3"]


async def test_an_id_that_looks_like_another_parts_loses_nothing() -> None:
    own, other = Fixed("own", ranking("2:a", "b")), Fixed("other", ranking("a", "b"))
    assert await ids([own, other]) == ["2:a", "2:2:a", "b", "2:b"]


async def test_a_part_that_fails_is_named_and_one_that_may_recover_is_asked_again(caplog) -> None:
    partly = Fixed("hybrid", DegradedHits(ranking("1"), ["dense: no answer"]))
    joined = JoinedRetriever([Fixed("web", SearchError("no credit left")), partly])
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            (found,) = await joined.search_many(["q"], 3)
    assert isinstance(found, DegradedHits)
    assert found.failures == ("web: no credit left", "hybrid: dense: no answer")
    assert len(caplog.records) == 1, "once for a part; the record has each query"
    assert await ids([Fixed("web", TransientSearchError("429", 0.0), ranking("1")), partly]) == ["1", "2:1"]
    (none,) = await JoinedRetriever([Fixed("a", SearchError("x")), Fixed("b", SearchError("y"))]).search_many(["q"], 3)
    assert str(none) == "a: x; b: y"


async def test_a_part_keeps_to_its_own_width_and_is_closed_with_the_others() -> None:
    narrow, wide = Fixed("narrow", ranking("1")), Fixed("wide", ranking("1"))
    narrow.max_batch = wide.max_batch = 1
    wide.max_concurrency = 8
    search = Search(JoinedRetriever([narrow, wide]))
    assert search.retriever.name == "narrow and wide", "for messages and the page"
    await search.search_many([f"q{n}" for n in range(20)])
    assert (narrow.most_at_once, wide.most_at_once) == (1, 8)
    await search.aclose()
    assert narrow.is_closed
    assert wide.is_closed


def test_weights_and_nameless_parts_are_refused(tmp_path: Path) -> None:
    one = Fixed("a", [])
    for parts, weights in (([one], None), ([one, one], (1,)), ([one, one], (0, 1)), ([one, one], (1, float("nan")))):
        with pytest.raises(UsageError):
            JoinedRetriever(parts, weights=weights)
    nameless = Fixed("b", [])
    nameless.describe = lambda: {"kind": "b"}  # type: ignore[method-assign]
    with pytest.raises(UsageError, match="another search of that name"):
        CachedRetriever(JoinedRetriever([one, nameless]), tmp_path / "cache.db")


@in_virtual_time
async def test_a_part_has_the_time_that_it_was_given_and_leaves_the_others_hits(echo) -> None:
    patient, late = echo(latency_s=50), echo(latency_s=70)
    patient.timeout_s = late.timeout_s = 60.0
    found = await Search(JoinedRetriever([echo(), patient]), k=2).find("q")
    assert [hit.id for hit in found.hits] == ["q#1", "2:q#1"]
    assert not isinstance(found.hits, DegradedHits)
    found = await Search(JoinedRetriever([echo(), late]), k=2).find("q")
    assert isinstance(found.hits, DegradedHits)
    assert found.hits.failures == ("echo: no answer from echo within 60 s",)


async def test_what_is_asked_for_afresh_comes_from_no_cache_of_a_part(tmp_path: Path, echo) -> None:
    own, web = echo(), echo(latency_s=0.02)
    own.describe = lambda: {"kind": "echo", "corpus": "own"}
    search = Search(JoinedRetriever([CachedRetriever(own, tmp_path / "cache.db"), web]))
    await search.find("q", k=1)
    await search.find("q", k=1, scope="a")
    assert own.calls == web.calls == [["q"], ["q"]]
    found = await asyncio.gather(search.find("p"), search.find("p", scope="b"))
    assert web.calls[2:] == [["p"], ["p"]], "nor is one shared that is in flight for somebody else"
    assert not any(one.error or one.cached for one in found)
    await search.aclose()


async def test_what_every_part_had_kept_is_cached(tmp_path: Path, echo) -> None:
    own, web = echo(), echo()
    own.describe, web.describe = lambda: {"kind": "echo", "corpus": "own"}, lambda: {"kind": "echo", "corpus": "web"}
    kept = CachedRetriever(own, tmp_path / "own.db")
    await kept.search_many(["q"], 3)
    search = Search(JoinedRetriever([kept, CachedRetriever(web, tmp_path / "web.db")]), cache_size=0)
    assert [(await search.find("q")).cached for _ in range(2)] == [False, True]
    await search.aclose()


async def test_recordings_say_what_was_missing(tmp_path: Path) -> None:
    joined = JoinedRetriever([Fixed("web", SearchError("down")), Fixed("own", ranking("1", "2"))])
    recording = RecordingRetriever(joined, tmp_path / "searches.jsonl")
    await recording.search_many(["q"], 3)
    await recording.aclose()
    replay = ReplayRetriever(tmp_path / "searches.jsonl")
    (found,) = await replay.search_many(["q"], 1)
    await replay.aclose()
    assert isinstance(found, DegradedHits)
    assert ([hit.id for hit in found], found.failures) == (["2:1"], ("web: down",))


async def test_the_record_and_the_report_of_a_run_say_what_was_missing(tmp_path: Path) -> None:
    summary = await evaluate("demo-single", "demo", "all:demo|http://127.0.0.1:9/retrieve", tmp_path / "run", k=2)
    trajectories = list(read_trajectories(tmp_path / "run" / "trajectories.jsonl"))
    queries = [query for trajectory in trajectories for query in trajectory.queries]
    assert all(query.missing and query.missing[0].startswith("remote: ") and not query.error for query in queries)
    lines = (tmp_path / "run" / "trajectories.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["turns"][0]["queries"][0]["missing"]
    assert any(note.startswith(f"{len(queries)} queries were answered by a part") for note in notes_of(summary))

"""The table of addresses: every row opens what it says, and knows which part of itself is a path."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

import pytest
from tiny_encoders import tiny_cross_encoder, tiny_encoder

from parallelsearch.addresses import (
    POLICY_ADDRESSES,
    SEARCH_ADDRESSES,
    open_policy,
    open_retriever,
    open_search,
    with_whole_path,
)
from parallelsearch.errors import IndexDamagedError, UsageError
from parallelsearch.retrieval.base import Passage
from parallelsearch.retrieval.bm25 import build_bm25
from parallelsearch.retrieval.cache import CachedRetriever
from parallelsearch.retrieval.faiss_index import build_faiss
from parallelsearch.retrieval.hybrid import build_hybrid
from parallelsearch.retrieval.mcp_client import McpRetriever
from parallelsearch.retrieval.remote import RemoteRetriever
from parallelsearch.retrieval.rerank import RerankRetriever
from parallelsearch.retrieval.web import SearxngRetriever

PASSAGES = [Passage("1", "Monet", "a painter born in Paris"), Passage("2", "Oslo", "a town by the sea")]


def test_every_row_names_somebody_who_builds_it() -> None:
    for row in (*SEARCH_ADDRESSES, *POLICY_ADDRESSES):
        pytest.importorskip("torch")
        assert callable(row.builder()), row.form
        assert row.meaning
    for rows in (SEARCH_ADDRESSES, POLICY_ADDRESSES):
        assert len({row.scheme for row in rows}) == len(rows)


def test_unknown_and_half_addresses_say_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARALLELSEARCH_CACHE", str(tmp_path / "cache"))
    with pytest.raises(UsageError, match=r"'bm52:x' is no search address. Did you mean 'bm25'\?(.|\n)*rerank:MODEL"):
        open_retriever("bm52:x")
    with pytest.raises(UsageError, match="'demo:x' is no policy address"):
        open_policy("demo:x")
    with pytest.raises(UsageError, match=f"is a folder: write files:{tmp_path}"):
        open_retriever(str(tmp_path))
    with pytest.raises(UsageError, match=f"is a folder: write hf:{tmp_path}"):
        open_policy(str(tmp_path))
    build_bm25([Passage("1", "Onyx", "black")], tmp_path / "bm25-index")
    with pytest.raises(UsageError, match="is a folder: write bm25:"):
        open_retriever(str(tmp_path / "bm25-index"))
    (tmp_path / "both" / "dense").mkdir(parents=True)
    build_bm25([Passage("1", "Onyx", "black")], tmp_path / "both" / "bm25")
    with pytest.raises(UsageError, match="is a folder: write hybrid:"):
        open_retriever(str(tmp_path / "both"))
    corpus = tmp_path / "my corpus.jsonl"
    corpus.write_text("{}")
    with pytest.raises(UsageError, match=f"is a file: write files:{corpus}"):
        open_retriever(str(corpus))
    (tmp_path / "model.gguf").write_text("")
    with pytest.raises(UsageError, match="is a file: write gguf:"):
        open_policy(str(tmp_path / "model.gguf"))
    with pytest.raises(IndexDamagedError, match=rf"is a file, not an index.*parallelsearch index '{corpus}' --out DIR"):
        open_retriever(f"bm25:{corpus}")
    with pytest.raises(IndexDamagedError, match=rf"search it as it is, --search 'files:{corpus}', or build"):
        open_retriever(f"bm25:{corpus}")
    (tmp_path / "docs").mkdir()
    with pytest.raises(
        IndexDamagedError, match=f"is not an index .*searched as they are, --search files:{tmp_path}/docs;"
    ):
        open_retriever(f"bm25:{tmp_path / 'docs'}")
    with pytest.raises(UsageError, match=f"it is an index, which is searched with bm25:{tmp_path}/bm25-index$"):
        open_retriever(f"files:{tmp_path / 'bm25-index'}")
    (tmp_path / "docs" / "manifest.json").write_text("{}")
    with pytest.raises(UsageError, match=r"found: .json 1.; a corpus in one file is named itself"):
        open_retriever(f"files:{tmp_path / 'docs'}")
    with pytest.raises(UsageError, match="For a search server write http://localhost:8000/retrieve"):
        open_retriever("localhost:8000")
    for address in ("bm25:", "hybrid: ", "searxng:", "rerank:", "faiss:"):
        with pytest.raises(UsageError, match=f"ends after the colon; it goes on like {address.strip()}[A-Z]"):
            open_retriever(address)
    with pytest.raises(UsageError, match=r"needs two addresses or more with \| between them: all:ADDRESS\|ADDRESS"):
        open_retriever("all:demo")
    with pytest.raises(UsageError, match=r"needs a cross-encoder and a search: rerank:MODEL\+ADDRESS"):
        open_retriever("rerank:model")
    for address in ("faiss:a.index", "faiss:a.index+b.jsonl", "faiss:a.index#e"):
        with pytest.raises(UsageError, match=r"faiss:INDEX\+CORPUS#ENCODER"):
            open_retriever(address)
    with pytest.raises(
        UsageError, match=r"workers are for an index on this machine \(demo, files, bm25, dense, hybrid\)"
    ):
        open_search("serper:", workers=2)


def test_a_home_that_is_nobodys_is_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no file or folder '.*~nobody-at-all/docs'"):
        open_retriever("files:~nobody-at-all/docs")
    with pytest.raises(UsageError, match="'~nobody-at-all/docs' is no search address"):
        open_retriever("~nobody-at-all/docs")
    assert with_whole_path("bm25:~nobody-at-all/x").endswith("/~nobody-at-all/x")


def test_a_path_may_begin_with_the_home_which_a_shell_leaves_alone_behind_a_colon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PARALLELSEARCH_CACHE", str(tmp_path / "cache"))
    build_bm25(PASSAGES, tmp_path / "index")
    (tmp_path / "turns.json").write_text('{"Who?": ["<answer> I </answer>"]}')
    (tmp_path / "corpus.csv").write_text("text\na painter\n")
    for address in ("bm25:~/index", "files:~/corpus.csv", "all:bm25:~/index|files:~/corpus.csv"):
        found = open_search(address, reopen=True)
        assert asyncio.run(found.find("painter")).hits
        asyncio.run(found.aclose())
    assert open_policy("script:~/turns.json").describe()["num_questions"] == 1
    with pytest.raises(UsageError, match=f"cannot replay '{tmp_path}/gone"):
        open_retriever("replay:~/gone")


def test_what_is_too_long_for_a_path_is_no_address_either() -> None:
    for address in ("x" * 300, "x" * 5000, "a\0b"):
        with pytest.raises(UsageError, match="is no search address"):
            open_retriever(address)


def test_paths_in_addresses_are_made_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    here = os.getcwd()
    for address, whole in [
        ("bm25:a/b", f"bm25:{here}/a/b"),
        ("bm25:/a", "bm25:/a"),
        ("replay:~/x", f"replay:{Path.home()}/x"),
        ("milvus:x.db", f"milvus:{here}/x.db"),
        ("milvus:http://h:1", "milvus:http://h:1"),
        ("http://h:1/retrieve,http://g:1", "http://h:1/retrieve,http://g:1"),
        ("serper:", "serper:"),
        ("demo", "demo"),
        ("mcp:python server.py", "mcp:python server.py"),
        ("rerank:org/model+dense:d", f"rerank:org/model+dense:{here}/d"),
        ("all?weights=2,1:bm25:d | serper:", f"all?weights=2,1:bm25:{here}/d|serper:"),
        ("rerank:model+rerank:m+bm25:d", f"rerank:{here}/model+rerank:m+bm25:{here}/d"),
        ("faiss:a.index+b.jsonl#org/e", f"faiss:{here}/a.index+{here}/b.jsonl#org/e"),
        ("dense?nprobe=4:a/b", f"dense?nprobe=4:{here}/a/b"),
        ("rerank?depth=9:model+hybrid?weights=1,3:d", f"rerank?depth=9:{here}/model+hybrid?weights=1,3:{here}/d"),
        ("mcp?tool=t:python server.py", "mcp?tool=t:python server.py"),
        ("no such thing", "no such thing"),
        ("all:bm25:d", "all:bm25:d"),
        ("rerank:model", "rerank:model"),
        ("faiss:a.index", "faiss:a.index"),
    ]:
        assert with_whole_path(address) == whole


def test_options_that_are_wrong_say_what_there_is(tmp_path: Path) -> None:
    for address, message in [
        ("dense?nprob=4:d", r"dense: has no option 'nprob'. Did you mean 'nprobe'\? It has: encoder, nprobe, where$"),
        ("dense?nprobe=some:d", "nprobe of dense: is a whole number, not 'some'"),
        ("bm25?k1=1:d", "bm25: has no option 'k1'. It has: where$"),
        ("demo?x=1", "demo: takes no options, found 'x'"),
        ("hybrid?weights=1;2:d", "weights of hybrid: is numbers with commas between them, not '1;2'"),
        ("hybrid?weights=1,nan:d", "weights of hybrid: is numbers"),
        ("bm52?x=1:d", r"is no search address. Did you mean 'bm25'\?"),
        ("rerank?depth=0:m+demo", "depth is how many hits are looked at again, at least 1, not 0"),
        ("rerank:m+bm25?x=1:d", "bm25: has no option 'x'"),
        ("searxng?timeout_s=0:http://h/", "timeout_s of searxng is seconds, more than 0, not 0"),
        ("http?timeout_s=-1://h/retrieve", "timeout_s of a search server is seconds, more than 0, not -1"),
        (
            "mcp?tol=x:npx y",
            r"mcp: has no option 'tol'. Did you mean 'tool'\? It has: connect_timeout_s, headers_env, timeout_s, tool",
        ),
    ]:
        with pytest.raises(UsageError, match=message):
            open_retriever(address)


def test_what_stands_behind_the_colon_is_left_as_it_is() -> None:
    """Queries of URLs and words of commands are no options."""
    web = open_retriever("searxng?timeout_s=4:http://h:1/s?language=en")
    assert isinstance(web, SearxngRetriever)
    assert (web.timeout_s, web.base_url) == (4.0, "http://h:1/s?language=en")
    remote = open_retriever("https?timeout_s=4://h:1/retrieve?key=x,http://g:1")
    assert isinstance(remote, RemoteRetriever)
    assert (remote.timeout_s, remote.describe()["urls"]) == (4.0, ["https://h:1/retrieve", "http://g:1/retrieve"])
    server = open_retriever("mcp?tool=find%20it:python serve.py --db a?b=c&d --url http://h:1/?q=1")
    assert isinstance(server, McpRetriever)
    assert (server.tool, server.target) == ("find it", "python serve.py --db a?b=c&d --url http://h:1/?q=1")


async def test_a_search_waits_as_long_as_its_address_says(tmp_path: Path) -> None:
    slow = "http?timeout_s=60://h:1/retrieve"
    kept = {"cache": tmp_path / "cache.db", "record": tmp_path / "searches.jsonl"}
    for address, options, timeout_s in [
        ("http://h:1/retrieve", {}, 30.0),
        (slow, {}, 60.0),
        (slow, kept, 60.0),
        (slow, {"timeout_s": 5.0}, 5.0),
        (f"all:demo|{slow}", {}, 70.0),  # so that a slow part leaves the others' hits
        ("all:demo|http://h:1/retrieve", {}, 30.0),
    ]:
        search = open_search(address, **options)
        assert search.timeout_s == timeout_s, address
        await search.aclose()


async def test_options_reach_what_an_address_opens(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    encoder = tiny_encoder(tmp_path / "encoder")
    build_hybrid(PASSAGES, tmp_path / "what?", str(encoder))
    search = open_search(f"hybrid?weights=1,3&depth=9&rrf_k=2:{tmp_path / 'what?'}")
    assert search.describe()["settings"] == {"weights": [1.0, 3.0], "depth": 9, "rrf_k": 2}
    await search.aclose()
    with pytest.raises(UsageError, match=r"nprobe \(4\) is for an index with lists, and this one has none"):
        open_retriever(f"dense?nprobe=4:{tmp_path / 'what?' / 'dense'}")
    build_faiss(tmp_path / "what?" / "dense", "ivf", nlist=2)
    with pytest.raises(UsageError, match="how many of the 2 lists are looked into, at least 1, not 0"):
        open_retriever(f"dense?nprobe=0:{tmp_path / 'what?' / 'dense'}")
    model = tiny_cross_encoder(tmp_path / "model")
    search = open_search(f"rerank?depth=5:{model}+hybrid?nprobe=1:{tmp_path / 'what?'}", k=1)
    described = search.describe()
    assert described["settings"]["depth"] == 5
    assert described["inner"]["parts"][1]["nprobe"] == 1
    [result] = await search.search_many(["painter"])
    assert len(result.hits) == 1
    await search.aclose()


async def test_how_long_a_cache_keeps_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_bm25(PASSAGES, tmp_path / "index")
    start_s = time.time()
    # A day lies between each and the next: the third asks anew what the first had kept.
    for day, (days, num_found) in enumerate([(None, 0), (2, 1), (0.5, 0), (None, 1)]):
        monkeypatch.setattr("time.time", lambda day=day: start_s + 86_400 * day)
        search = open_search(f"bm25:{tmp_path / 'index'}", cache=tmp_path / "cache", cache_days=days)
        cached = search.retriever
        assert isinstance(cached, CachedRetriever)
        await search.search_many(["painter"])
        assert (days, cached.num_found) == (days, num_found)
        await search.aclose()
    for days, cache in [(0, "cache"), (-1, "cache"), (3, None)]:
        with pytest.raises(UsageError, match=rf"cache_days \({days}\) is how long .* that --cache FILE names"):
            open_search("demo", cache=cache, cache_days=days)


async def test_a_cross_encoder_over_any_search(tmp_path: Path) -> None:
    build_bm25(PASSAGES, tmp_path / "index")
    model = tiny_cross_encoder(tmp_path / "model")
    search = open_search(f"rerank:{model}+bm25:{tmp_path / 'index'}", k=2)
    assert isinstance(search.retriever, RerankRetriever)
    [result] = await search.search_many(["painter"])
    assert [hit.id for hit in result.hits] == ["1"]
    await search.aclose()


async def test_ready_made_files_by_their_address(tmp_path: Path) -> None:
    faiss = pytest.importorskip("faiss")
    from parallelsearch.retrieval.encoder import Encoder

    encoder = Encoder(str(tiny_encoder(tmp_path / "encoder")), device="cpu")
    contents = [f'"{passage.title}"\n{passage.text}' for passage in PASSAGES]
    lines = [json.dumps({"id": passage.id, "contents": text}) for passage, text in zip(PASSAGES, contents, strict=True)]
    (tmp_path / "corpus.jsonl").write_text("".join(line + "\n" for line in lines))
    index = faiss.IndexFlatIP(encoder.dim)
    index.add(encoder.encode_passages(contents))
    faiss.write_index(index, str(tmp_path / "flat.index"))
    address = f"faiss:{tmp_path / 'flat.index'}+{tmp_path / 'corpus.jsonl'}#{tmp_path / 'encoder'}"
    search = open_search(address, k=1)
    [result] = await search.search_many(["a town"])
    assert len(result.hits) == 1
    assert search.describe()["num_passages"] == 2
    await search.aclose()


async def test_several_searches_are_one_address(tmp_path: Path) -> None:
    build_bm25([Passage("1", "Note", "Claude Monet came to my exhibition on Sunday.")], tmp_path / "notes")
    search = open_search(f"all:demo|bm25:{tmp_path}/notes", k=2)
    found = await search.find("Claude Monet")
    await search.aclose()
    assert [hit.title for hit in found.hits] == ["Claude Monet", "Note"]

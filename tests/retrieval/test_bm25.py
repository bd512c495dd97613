"""BM25: what is found, in which order, from which folder."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import bm25s
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallelsearch.errors import DataError, IndexDamagedError, ParallelSearchError, UsageError
from parallelsearch.retrieval import bm25
from parallelsearch.retrieval.base import Hit, Passage
from parallelsearch.retrieval.bm25 import BM25Retriever, build_bm25
from parallelsearch.retrieval.store import open_manifest
from parallelsearch.retrieval.terms import MAX_QUERY_TERMS, Analyzer, split_words
from parallelsearch.search import Search
from small_data import MIN_RECALL, SIZES
from unwritable import files_no_larger_than

PASSAGES = [
    *(Passage(f"town-{n}", f"Town {n}", f"Town {n} is a place with a mayor, number {n}.") for n in range(1, 21)),
    Passage("pele", "Pelé", "Edson Arantes do Nascimento, the footballer from Brazil."),
    Passage("walesa", "Lech Wałęsa", "An electrician of Gdańsk."),
    Passage("it", "It", "A novel of 1986 by Stephen King."),
    Passage("beijing", "北京大学", "一所大学"),
    Passage("hindi", "हिन्दी", "भारत की भाषा"),
]


def words_corpus(num_passages: int, seed: int = 0) -> list[Passage]:
    rng = random.Random(seed)
    vocabulary = [f"w{n}" for n in range(300)]
    return [
        Passage(str(n), rng.choice(vocabulary), " ".join(rng.choices(vocabulary, k=rng.randint(0, 30))))
        for n in range(num_passages)
    ]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bm25") / "index"
    report = build_bm25(PASSAGES, out)
    assert (report.num_passages, report.num_skipped, report.problems) == (len(PASSAGES), 0, ())
    assert report.bytes == open_manifest(out, "bm25", verify=True).num_bytes > 0
    return out


@pytest.fixture(scope="module", params=["folder", "memory"])
def retriever(request: pytest.FixtureRequest, index: Path) -> BM25Retriever:
    return BM25Retriever(index) if request.param == "folder" else BM25Retriever.from_passages(PASSAGES)


def find(retriever: BM25Retriever, query: str, k: int = 3) -> list[Hit]:
    (result,) = retriever.search_blocking([query], k)
    assert isinstance(result, list)
    return result


def ids(retriever: BM25Retriever, query: str, k: int = 3) -> list[str]:
    return [hit.id for hit in find(retriever, query, k)]


# ---- words -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Town 7", ["town", "7"]),
        ("The King's dog, O'Brien", ["the", "king", "dog", "o", "brien"]),
        ("L’Été of Ørsted’s", ["l", "ete", "of", "orsted"]),
        ("Straße İstanbul ﬁne ＡＢ", ["strasse", "istanbul", "fine", "ab"]),
        ("snake_case é_e", ["snake", "case", "e", "e"]),
        ("北京 is がぎ", ["北", "京", "is", "が", "ぎ"]),
        ("हिन्दी 한국어", ["हिन्दी", "한국어"]),
        ("a\x00b\x07c\n\u200b", ["a", "b", "c"]),
        ("C++ 3.14", ["c", "3", "14"]),
        (" \t—", []),
    ],
)
def test_words(text: str, words: list[str]):
    assert split_words(text) == words


@given(st.text())
def test_words_do_not_depend_on_case_or_on_what_surrounds_them(text: str):
    words = split_words(text)
    assert split_words(text.upper().lower()) == split_words(text.upper())
    assert split_words(" ".join(words)) == [word for word in words if word]
    assert all(word == word.strip() and word for word in words)


def test_a_query_of_stop_words_keeps_them():
    analyzer = Analyzer()
    assert analyzer.query_terms("who is it") == ["who", "is", "it"]
    assert analyzer.query_terms("who is the mayor") == ["mayor"]
    assert Analyzer("german").query_terms("was war das") == ["was", "war", "das"]


def test_an_unknown_stemmer_is_named():
    with pytest.raises(UsageError, match=r"no stemmer 'englsh'\. Did you mean 'english'"):
        Analyzer("englsh")


# ---- what is found ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("Town 7", "town-7"),
        ("town 7?", "town-7"),
        ("Who is the mayor of Town 13?", "town-13"),
        ("Pele", "pele"),
        ("PELÉ footballers", "pele"),
        ("walesa", "walesa"),
        ("It", "it"),
        ("北京", "beijing"),
        ("भाषा", "hindi"),
    ],
)
def test_the_right_passage_is_first(retriever: BM25Retriever, query: str, first: str):
    found = find(retriever, query)
    assert found[0].id == first
    assert found[0].text == next(p.text for p in PASSAGES if p.id == first)
    assert [hit.rank for hit in found] == list(range(1, len(found) + 1))
    assert [hit.score for hit in found] == sorted((hit.score for hit in found), reverse=True)
    assert all(hit.score > 0 for hit in found)


@pytest.mark.parametrize("query", ["", "   ", "?!", "\x00\x1b[31m", "xyzzy", "🙂"])
def test_a_query_without_a_known_term_finds_nothing(retriever: BM25Retriever, query: str):
    assert find(retriever, query) == []


def test_k_from_none_to_more_than_there_are(retriever: BM25Retriever):
    assert find(retriever, "town", 0) == []
    assert ids(retriever, "town", 1_000_000) == [f"town-{n}" for n in range(1, 21)]  # no passage without the word
    assert [len(find(retriever, "town", k)) for k in (1, 5, 19, 20, 21)] == [1, 5, 19, 20, 20]


def test_equal_scores_come_in_the_order_of_the_corpus():
    same = [Passage(str(n), "Same", "same words here") for n in range(5_000)]
    retriever = BM25Retriever.from_passages([*same, Passage("x", "Other", "other")])
    for k in (1, 7, 100, 4_999):
        assert ids(retriever, "same words", k) == [str(n) for n in range(k)]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=80), st.integers(1, 90), st.integers(1, 8))
def test_the_best_are_those_a_full_sort_gives(values: list[int], k: int, num_groups: int):
    scores = np.array(values, dtype=np.float32)
    expected = sorted((row for row, value in enumerate(values) if value > 0), key=lambda row: (-values[row], row))[:k]
    assert bm25._best(scores, k, num_groups).tolist() == expected


def test_the_order_of_words_does_not_matter(retriever: BM25Retriever):
    assert find(retriever, "Brazil footballer mayor 7", 30) == find(retriever, "7 mayor footballer Brazil", 30)


def test_a_query_of_100_kb_is_answered(retriever: BM25Retriever):
    assert ids(retriever, "town 7 " + "\x00 noise " * 12_000)[0] == "town-7"
    assert len(Analyzer().query_terms("w " * 50_000)) == MAX_QUERY_TERMS


def test_scores_are_those_of_bm25s(tmp_path: Path):
    """The files this package writes, against an index that bm25s built from the same terms."""
    passages = words_corpus(400)
    build_bm25(passages, tmp_path / "index", k1=1.7, b=0.4)
    retriever = BM25Retriever(tmp_path / "index")
    terms = [[Analyzer().term(word) for text in (p.title, p.text) for word in split_words(text)] for p in passages]
    theirs = bm25s.BM25(k1=1.7, b=0.4, method="lucene")
    theirs.index(terms, show_progress=False)
    queries = [f"w{n} w{n * 7 % 300} w{n * 11 % 300}" for n in range(100)]
    for query in queries:
        expected = theirs.get_scores(Analyzer().query_terms(query))
        found = {int(hit.id): hit.score for hit in find(retriever, query, 400)}
        assert set(found) == set(np.flatnonzero(expected))
        assert [found[row] for row in sorted(found)] == pytest.approx(expected[sorted(found)], rel=1e-5)
    loaded = bm25s.BM25.load(tmp_path / "index", mmap=True)
    scores = loaded.retrieve([Analyzer().query_terms(queries[3])], k=5, show_progress=False).scores
    assert [hit.score for hit in find(retriever, queries[3], 5)] == pytest.approx(scores[0])


@pytest.mark.parametrize("weight", [2, 3])
def test_a_title_that_counts_twice_is_a_title_written_twice(tmp_path: Path, weight: int):
    passages = words_corpus(200)
    written = [replace(passage, title=" ".join([passage.title] * weight)) for passage in passages]
    build_bm25(passages, tmp_path / "weighed", title_weight=weight)
    build_bm25(written, tmp_path / "written")
    weighed = BM25Retriever(tmp_path / "weighed")
    assert weighed.describe()["settings"]["title_weight"] == weight
    memory = BM25Retriever.from_passages(passages, title_weight=weight)
    for query in [f"w{n} w{n * 7 % 300}" for n in range(30)]:
        expected = [(hit.id, hit.score) for hit in find(BM25Retriever(tmp_path / "written"), query, 20)]
        assert [(hit.id, hit.score) for hit in find(weighed, query, 20)] == expected
        assert [hit.id for hit in find(memory, query, 20)] == [id for id, _ in expected]
    with pytest.raises(UsageError, match="whole number from 1 to 20, not 0"):
        build_bm25(passages, tmp_path / "none", title_weight=0)


def test_many_runs_make_the_same_index_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    passages = words_corpus(300)
    build_bm25(passages, tmp_path / "one")
    monkeypatch.setattr(bm25._Counts, "RUN_TERMS", 100)
    monkeypatch.setattr(bm25, "_WORD_CACHE", 50)
    build_bm25(passages, tmp_path / "many")
    one, many = open_manifest(tmp_path / "one"), open_manifest(tmp_path / "many")
    assert one.files == many.files  # sizes and hashes; no run is left behind
    assert one.describe() == many.describe()
    memory = BM25Retriever.from_passages(passages)
    folder = BM25Retriever(tmp_path / "many", verify=True)
    assert memory.describe() == folder.describe()
    queries = [f"w{n} w{n + 1}" for n in range(0, 200, 5)]
    assert memory.search_blocking(queries, 10) == folder.search_blocking(queries, 10)


def test_passages_without_a_word_are_held_and_never_found(tmp_path: Path):
    build_bm25([Passage("1", "?", "!"), Passage("2", "", "word")], tmp_path / "a")
    assert ids(BM25Retriever(tmp_path / "a"), "word") == ["2"]
    build_bm25([Passage("1", "?", "!")], tmp_path / "b")
    assert find(BM25Retriever(tmp_path / "b"), "word") == []
    with pytest.raises(DataError, match="no passages"):
        BM25Retriever.from_passages([])


# ---- in the loop -----------------------------------------------------------------------------------------------------


async def test_many_searches_at_once(index: Path):
    retriever = BM25Retriever(index, num_threads=4)
    queries = [f"Town {n}" for n in range(1, 21)] * 10
    batches = await asyncio.gather(*(retriever.search_many(queries[n : n + 10], 2) for n in range(0, 200, 10)))
    found = [result[0].id for batch in batches for result in batch if isinstance(result, list)]
    assert found == [query.lower().replace(" ", "-") for query in queries]
    await retriever.aclose()


async def test_through_the_search_layer(index: Path):
    search = Search(BM25Retriever(index), k=1)
    found = await search.search_many(["Town 7", "Pele", "nothing of this", "Town 7"])
    assert [[hit.id for hit in one.hits] for one in found] == [["town-7"], ["pele"], [], ["town-7"]]
    assert all(one.error is None for one in found)
    assert search.describe()["corpus_sha256"] == open_manifest(index).corpus_sha256
    json.dumps(search.describe())
    await search.aclose()


def test_threads_share_one_retriever(index: Path):
    retriever = BM25Retriever(index)
    queries = [f"mayors of towns {n}" for n in range(1, 21)]
    alone = retriever.search_blocking(queries, 5)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: retriever.search_blocking(queries, 5), range(40))) == [alone] * 40


# ---- building --------------------------------------------------------------------------------------------------------


def test_a_full_disk_is_told_wherever_the_build_meets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    passages = [Passage(str(number), "", f"word{number} and") for number in range(20)]
    build_bm25(passages, tmp_path / "whole")
    sizes = {path.stat().st_size for path in (tmp_path / "whole").iterdir()}
    for num_bytes in range(0, max(sizes), 20):
        with files_no_larger_than(num_bytes), pytest.raises(ParallelSearchError, match="File too large"):
            build_bm25(passages, tmp_path / "index")
        assert not (tmp_path / "index").exists()
    weigh, room = bm25._Counts.weigh, {}

    def weighed(self, k1, b, new):
        def seen(name, size, kind):
            made = new(name, size, kind)
            about = Path(made.filename).stat()
            room[name] = about.st_blocks * 512 - about.st_size
            return made

        weigh(self, k1, b, seen)

    monkeypatch.setattr(bm25._Counts, "weigh", weighed)
    build_bm25([Passage("1", "", " ".join(f"word{number}" for number in range(5000)))], tmp_path / "large")
    assert len(room) == 3
    assert min(room.values()) >= 0  # else a map would kill the process where the disk is full


def test_a_corpus_file_is_indexed_with_progress(tmp_path: Path):
    path = tmp_path / "corpus.jsonl"
    lines = [json.dumps({"id": str(n), "title": f"Town {n}", "text": "a place"}) for n in range(2_500)]
    path.write_text("\n".join([*lines, "{bad", json.dumps({"id": "7", "text": "again"})]))
    seen: list[tuple[int, int | None]] = []
    with pytest.raises(DataError, match="line 2501: is not JSON"):
        build_bm25(path, tmp_path / "index")
    assert os.listdir(tmp_path) == ["corpus.jsonl"]
    report = build_bm25(
        path, tmp_path / "index", skip_bad=True, on_progress=lambda num, total: seen.append((num, total))
    )
    assert (report.num_passages, report.num_skipped) == (2_500, 2)
    assert "line 2501" in report.problems[0]
    assert "used before on line 8" in report.problems[1]
    assert seen == [(1_000, None), (2_000, None), (2_500, 2_500)]
    assert ids(BM25Retriever(tmp_path / "index"), "Town 2499", 1) == ["2499"]
    with pytest.raises(UsageError, match="--overwrite"):
        build_bm25(path, tmp_path / "index", skip_bad=True)


def test_a_corpus_of_bad_lines_makes_no_index(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text("{bad\n" * 3)
    with pytest.raises(DataError, match=r"no passages \(3 bad records were skipped\)\. The first: .*line 1"):
        build_bm25(tmp_path / "a.jsonl", tmp_path / "index", skip_bad=True)
    assert os.listdir(tmp_path) == ["a.jsonl"]


def test_chunks_of_long_texts_are_found(tmp_path: Path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "long.md").write_text("# Journey\n" + "filler " * 500 + "the needle " + "filler " * 500)
    assert build_bm25(tmp_path / "notes", tmp_path / "index").num_passages > 10
    (hit,) = find(BM25Retriever(tmp_path / "index"), "needle", 1)
    assert hit.id.startswith("long.md#")
    assert hit.title == "Journey"
    assert len(hit.text.split()) <= 100


@pytest.mark.parametrize("options", [{"k1": -1}, {"b": 2}, {"k1": float("nan")}, {"k1": float("inf")}])
def test_parameters_out_of_range_are_refused(tmp_path: Path, options: dict[str, float]):
    with pytest.raises(UsageError, match="k1 must be"):
        build_bm25(PASSAGES, tmp_path / "index", **options)


BUILD = """
import sys
from parallelsearch.retrieval import bm25
from parallelsearch.retrieval.base import Passage
bm25._Counts.RUN_TERMS = 20_000
def passages():
    for n in range(int(sys.argv[2])):
        yield Passage(str(n), f"Town {n}", "a place of words " * 5)
def progress(num, total):
    print(num, flush=True)
bm25.build_bm25(passages(), sys.argv[1], on_progress=progress, overwrite=True)
"""


@pytest.mark.parametrize("is_replacement", [False, True])
def test_a_killed_build_leaves_no_index_and_a_rerun_succeeds(tmp_path: Path, is_replacement: bool):
    out = tmp_path / "index"
    if is_replacement:
        build_bm25(PASSAGES, out)
    process = subprocess.Popen([sys.executable, "-c", BUILD, str(out), "10000000"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    for _ in range(5):
        assert process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    partial = tmp_path / "index.partial"
    assert any(partial.glob("run-*"))  # it was in the middle of its work
    with pytest.raises(IndexDamagedError, match="unfinished build"):
        BM25Retriever(partial)
    if is_replacement:
        assert ids(BM25Retriever(out, verify=True), "Pele") == ["pele"]
    else:
        with pytest.raises(IndexDamagedError, match="does not exist"):
            BM25Retriever(out)
    subprocess.run([sys.executable, "-c", BUILD, str(out), "1500"], check=True, stdout=subprocess.DEVNULL)
    assert ids(BM25Retriever(out, verify=True), "Town 1499", 1) == ["1499"]
    assert os.listdir(tmp_path) == ["index"]


# ---- damage ----------------------------------------------------------------------------------------------------------


def test_every_damaged_file_is_refused(tmp_path: Path):
    out = tmp_path / "index"
    build_bm25(PASSAGES, out)
    names = [path.name for path in out.iterdir()]
    assert len(names) == 8
    for name in names:
        whole = (out / name).read_bytes()
        for data in (whole[: len(whole) // 2], b"", None):
            (out / name).unlink()
            if data is not None:
                (out / name).write_bytes(data)
            with pytest.raises(IndexDamagedError, match=name.replace(".", r"\.")):
                BM25Retriever(out)
            (out / name).write_bytes(whole)
    BM25Retriever(out, verify=True)


def test_files_of_another_index_are_refused(tmp_path: Path):
    """Sizes are made to fit in the manifest: what is inside still has to agree."""
    build_bm25(PASSAGES, tmp_path / "a")
    build_bm25(PASSAGES[:5], tmp_path / "b")
    manifest = json.loads((tmp_path / "a" / "manifest.json").read_text())
    for name in manifest["files"]:
        whole = (tmp_path / "a" / name).read_bytes()
        other = (tmp_path / "b" / name).read_bytes()
        (tmp_path / "a" / name).write_bytes(other)
        changed = json.loads(json.dumps(manifest))
        changed["files"][name]["bytes"] = len(other)
        (tmp_path / "a" / "manifest.json").write_text(json.dumps(changed))
        with pytest.raises(IndexDamagedError):
            BM25Retriever(tmp_path / "a")
        (tmp_path / "a" / name).write_bytes(whole)


def test_other_rules_for_words_are_refused(tmp_path: Path):
    build_bm25(PASSAGES, tmp_path / "a")
    path = tmp_path / "a" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["settings"]["analyzer"] = {"words": "folded-0"}
    path.write_text(json.dumps(manifest))
    with pytest.raises(IndexDamagedError, match="other rules for words"):
        BM25Retriever(tmp_path / "a")


# ---- real passages ---------------------------------------------------------------------------------------------------


@pytest.mark.shared_data
@pytest.mark.slow
def test_recall_on_questions_with_gold_passages(data_dir: Path, has_real_data: bool, tmp_path: Path):
    from parallelsearch.files import read_jsonl
    from parallelsearch.retrieval.corpus import read_passages

    questions = [
        record
        for _, record in read_jsonl(data_dir / "corpus" / "questions_with_gold.jsonl.zst")
        if record["all_gold_in_corpus"] and record["split"] == "dev"
    ][:500]
    gold = {id for record in questions for ids in record["gold_passage_ids"].values() for id in ids}
    passages = (
        passage
        for number, passage in enumerate(read_passages(data_dir / "corpus" / "multihop_passages.jsonl.zst"))
        if number % 6 == 0
        or passage.id in gold  # a sixth of the passages that must not be found takes a sixth of the time
    )
    build_bm25(passages, tmp_path / "index")
    retriever = BM25Retriever(tmp_path / "index")
    recalls = []
    for record, hits in zip(
        questions, retriever.search_blocking([record["question"] for record in questions], 5), strict=True
    ):
        assert isinstance(hits, list)
        found = {hit.id for hit in hits}
        recalls.append(np.mean([not found.isdisjoint(gold) for gold in record["gold_passage_ids"].values()]))
    assert len(recalls) == (500 if has_real_data else SIZES["questions_with_gold"])
    assert np.mean(recalls) > (0.66 if has_real_data else MIN_RECALL)

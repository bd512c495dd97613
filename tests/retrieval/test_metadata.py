"""What is known of a passage beside its text: kept from corpus to caller, small whatever comes in, never shown to a model."""

import asyncio
import json
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path, PurePosixPath

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallelsearch import Agent, Search, cite, grammar
from parallelsearch.data.sets import QuestionSet
from parallelsearch.dialects import open_dialect
from parallelsearch.evaluation.run import EvaluationSettings, describe_setup
from parallelsearch.observation import ObservationWriter
from parallelsearch.policy.scripted import ScriptedPolicy
from parallelsearch.retrieval import read_corpus
from parallelsearch.retrieval.base import Hit, Passage
from parallelsearch.retrieval.bm25 import BM25Retriever, build_bm25
from parallelsearch.retrieval.cache import CachedRetriever
from parallelsearch.retrieval.metadata import MAX_CHARS, MAX_FIELDS, MAX_VALUE_CHARS, bounded, place_of
from parallelsearch.retrieval.remote import read_reply
from parallelsearch.retrieval.store import PassageStore, open_manifest
from parallelsearch.trajectory import Query, Question, trajectory_from_dict

pypdf = pytest.importorskip("pypdf", reason="pip install -e '.[files]'")

LINE = {
    "id": "1",
    "title": "Contract",
    "text": "Notice is given in writing.",
    "author": "A. B.",
    "page": 3,
    "date": 2021,
}


def corpus(path: Path, *records: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def first(found: list[object]) -> Hit:
    assert isinstance(found[0], list)
    hit = found[0][0]
    assert isinstance(hit, Hit)
    return hit


# ---- reading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "metadata"),
    [
        ({}, None),
        ({"author": "A", "page": 3, "draft": False}, {"author": "A", "page": 3, "draft": False}),
        ({"metadata": {"page": 3, "by": ["A", "B"]}, "page": 4}, {"page": 4, "by": ["A", "B"]}),
        ({"metadata": "typed by hand"}, {"metadata": "typed by hand"}),
        ({"date": "2021", "url": "https://e.org"}, None),
        ({"date": 2021, "author": "", "editor": None, "tags": []}, {"date": 2021}),
    ],
)
def test_other_fields_of_a_line_are_metadata(tmp_path: Path, record: dict[str, object], metadata: object):
    [passage] = read_corpus(corpus(tmp_path / "a.jsonl", {"id": "1", "text": "x", **record}))
    assert passage.metadata == metadata


def test_other_columns_of_a_table_are_metadata(tmp_path: Path):
    (tmp_path / "a.csv").write_text("Text, Author ,,Page\nx,A. B.,unnamed,3\ny,,,\n")
    one, two = read_corpus(tmp_path / "a.csv")
    assert (one.text, one.metadata) == ("x", {"Author": "A. B.", "Page": "3"})
    assert (two.text, two.metadata) == ("y", None)


def test_other_columns_of_parquet_are_metadata_but_for_vectors_and_pictures(tmp_path: Path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"text": ["x"], "Author": ["A"], "page": [3], "day": [date(2021, 5, 4)], "vector": [[0.1]], "png": [b"x"]}
    parquet.write_table(arrow.table(columns), tmp_path / "a.parquet")
    [passage] = read_corpus(tmp_path / "a.parquet")
    assert passage.metadata == {"Author": "A", "page": 3, "day": "2021-05-04"}


def pages(*texts: str) -> bytes:
    """A PDF with these pages, written out object by object."""
    objects = ["<< /Type /Catalog /Pages 2 0 R >>", "", "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"]
    kids = []
    for text in texts:
        stream = f"BT /F1 12 Tf 72 700 Td ({text}) Tj ET"
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /Contents {len(objects)} 0 R /MediaBox [0 0 600 800]"
            " /Resources << /Font << /F1 3 0 R >> >> >>"
        )
        kids.append(f"{len(objects)} 0 R")
    objects[1] = f"<< /Type /Pages /Kids [{' '.join(kids)}] /Count {len(kids)} >>"
    out, places = "%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += f"{number} 0 obj\n{body}\nendobj\n"
    table = "".join(f"{place:010d} 00000 n \n" for place in places)
    end = f"trailer << /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{len(out)}\n%%EOF\n"
    return f"{out}xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}{end}".encode()


def test_pieces_of_documents_know_their_file_and_page(tmp_path: Path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.pdf").write_bytes(pages("", "one two three four", "", "five six", "seven eight nine"))
    (tmp_path / "b.md").write_text("# B\n\ntext of it")
    found = list(read_corpus(tmp_path, chunk_words=2, chunk_overlap=0))
    assert [(one.text, one.metadata) for one in found if one.id.startswith("sub")] == [
        ("one two", {"source": "sub/a.pdf", "page": 2}),
        ("three four", {"source": "sub/a.pdf", "page": 2}),
        ("five six", {"source": "sub/a.pdf", "page": 4}),
        ("seven eight", {"source": "sub/a.pdf", "page": 5}),
        ("nine", {"source": "sub/a.pdf", "page": 5}),
    ]
    assert {one.id: one.metadata for one in found if one.id.startswith("b")} == {
        "b.md#0": {"source": "b.md"},
        "b.md#1": {"source": "b.md"},
    }


# ---- from the corpus to the caller ---------------------------------------------------------------------------------------


def test_an_index_keeps_it_and_one_without_is_as_it_was(tmp_path: Path):
    build_bm25(corpus(tmp_path / "with.jsonl", LINE, {"id": "2", "text": "Plain."}), tmp_path / "with")
    build_bm25(corpus(tmp_path / "without.jsonl", {"id": "2", "text": "Plain."}), tmp_path / "without")
    kept = {"author": "A. B.", "page": 3, "date": 2021}
    assert [passage.metadata for passage in PassageStore(tmp_path / "with")] == [kept, None]
    assert first(BM25Retriever(tmp_path / "with").search_blocking(["notice"], 1)).metadata == kept
    assert [open_manifest(tmp_path / name).format_version for name in ("with", "without")] == [2, 1]
    assert (tmp_path / "without" / "passages.bin").read_bytes() == b'["2","","Plain."]\n'
    assert "metadata_sha256" not in (tmp_path / "without" / "manifest.json").read_text()


async def test_it_decides_what_a_cache_may_give_and_no_number_of_a_run(tmp_path: Path):
    """The same passages, whatever else is known of them: runs stay comparable, and no cached answer has another's page."""
    found, described, setups = [], [], []
    for name, page in (("a", 3), ("b", 4), ("c", None)):
        build_bm25(corpus(tmp_path / f"{name}.jsonl", {**LINE, "page": page}), tmp_path / name)
        cached = CachedRetriever(BM25Retriever(tmp_path / name), tmp_path / "cache.db")
        found.append(first(await cached.search_many(["notice"], 1)).metadata)
        described.append(cached.describe())
        search = Search(BM25Retriever(tmp_path / name))
        policy, settings = ScriptedPolicy({}), EvaluationSettings()
        questions = QuestionSet("q", [Question("q?", id="1")])
        setups.append(describe_setup(questions, policy, search, settings, open_dialect("parallel")))
        await cached.aclose()
    assert [one["page"] if one and "page" in one else None for one in found] == [3, 4, None]
    assert len({one["corpus_sha256"] for one in described}) == 1
    assert len({one.get("metadata_sha256") for one in described}) == 3
    assert setups[0] == setups[1] == setups[2]


def test_passages_made_in_python_are_bounded_too(tmp_path: Path):
    held = [Passage("1", "T", "notice", metadata={"day": datetime(2021, 5, 4), "raw": object(), "long": "x" * 9_999})]
    build_bm25(held, tmp_path / "index")
    metadata = PassageStore(tmp_path / "index")[0].metadata
    assert metadata == {"day": "2021-05-04T00:00:00", "long": "x" * (MAX_VALUE_CHARS - 4) + " ..."}


def test_it_reaches_the_caller_of_ask_and_retrieve_and_no_model(tmp_path: Path):
    question = "How is notice given?"
    turns = [grammar.render_turn("I look.", queries=["notice"]), grammar.render_turn("So.", answer="in writing")]
    plain = {name: LINE[name] for name in ("id", "title", "text")}
    build_bm25(corpus(tmp_path / "with.jsonl", {**LINE, "source": "/docs/contract.pdf"}), tmp_path / "with")
    build_bm25(corpus(tmp_path / "without.jsonl", plain), tmp_path / "without")
    asked = {}
    for name in ("with", "without"):
        with Agent(ScriptedPolicy({question: turns}), f"bm25:{tmp_path / name}") as agent:
            asked[name] = agent.ask(question)
            passages = agent.retrieve(question).to_dict()["passages"]
        assert passages[0].get("metadata") == asked[name].queries[0].hits[0].metadata
    metadata = {"author": "A. B.", "page": 3, "date": 2021, "source": "/docs/contract.pdf"}
    assert asked["with"].queries[0].hits[0].metadata == metadata
    assert [one.text for one in asked["with"].segments] == [one.text for one in asked["without"].segments]
    assert trajectory_from_dict(json.loads(asked["with"].to_json())).queries[0].hits[0].metadata == metadata
    assert "metadata" not in asked["without"].to_json()
    assert [one.place for one in cite(asked["with"]).citations] == ["/docs/contract.pdf, page 3"]
    assert [one.place for one in cite(asked["without"]).citations] == [None]


@pytest.mark.parametrize("layout", ["headed", "paper"])
def test_an_observation_is_the_same_with_and_without(layout):
    hits = [Hit("1", "T", "text", metadata=metadata) for metadata in (None, {"page": 3})]
    shown = [ObservationWriter(len, layout).write([Query("q", [hit])], 100).text for hit in hits]
    assert shown[0] == shown[1]


def test_a_backend_of_ones_own_may_say_it_in_a_dict_or_a_hit():
    def find(query: str) -> list[object]:
        if query == "dict":
            return [{"text": "x", "score": 0.5, "rank": 9, "page": 3, "metadata": {"by": "A"}}]
        return [Hit("1", "T", "x", metadata={"page": 3, "nan": float("nan"), "by": "\ud800", "raw": object()})]

    told, mended = (asyncio.run(Search(find).find(query)).hits[0].metadata for query in ("dict", "hit"))
    assert (told, mended) == ({"by": "A", "page": 3}, {"page": 3, "by": "\ufffd"})


# ---- limits ----------------------------------------------------------------------------------------------------------


def test_a_hostile_server_costs_no_more_than_a_long_passage():
    beside = {
        "long": "x" * 10_000_000,
        "wide": list(range(100_000)),
        "deep": json.loads("[" * 500 + "]" * 500),
        "n" * 1000: 1,
        "page": 3,
        **{f"field {number}": "y" * 400 for number in range(1000)},
    }
    body = {"result": [[{"document": {"id": "1", "text": "x", "metadata": beside}}]]}
    metadata = first(read_reply(json.dumps(body).encode(), 1, 1)).metadata
    assert metadata is not None
    assert len(metadata["long"]) == MAX_VALUE_CHARS
    assert metadata["page"] == 3
    assert not {"wide", "deep"} & metadata.keys()
    assert len(json.dumps(metadata)) < MAX_CHARS + 10 * MAX_FIELDS


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Decimal("1.50"), "1.50"),
        (PurePosixPath("/a/b"), "/a/b"),
        (date(2021, 5, 4), "2021-05-04"),
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
        (0, 0),
        (("a", None, {"b": 1.5}), ["a", None, {"b": 1.5}]),
        (10**400, None),
        (float("inf"), None),
        ([float("nan")], None),
        (b"bytes", None),
        (object(), None),
    ],
)
def test_values_are_plain_or_left_out(value: object, plain: object):
    assert bounded({"a": value}) == (None if plain is None else {"a": plain})


def test_long_fields_take_no_room_from_where_a_passage_stands():
    long = {f"field {number}": "x" * MAX_VALUE_CHARS for number in range(9)}
    kept = bounded({**long, "by": "A", "page": 3, "source": "a.pdf"})
    assert kept is not None
    assert list(kept) == ["page", "source", *(f"field {number}" for number in range(7)), "by"]
    many = bounded({**{f"field {number}": number for number in range(MAX_FIELDS)}, "source": "a.pdf"})
    assert many is not None
    assert (many["source"], len(many)) == ("a.pdf", MAX_FIELDS)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=600),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=120), VALUES, max_size=80))
def test_what_was_bounded_is_json_and_stays_as_it_is(fields: dict[str, object]):
    kept = bounded(fields)
    if kept is not None:
        assert json.loads(json.dumps(kept, allow_nan=False)) == kept == bounded(kept)
        json.dumps(kept, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    ("metadata", "place"),
    [
        (None, None),
        ({"author": "A"}, None),
        ({"source": "/docs/contract.pdf", "page": 3}, "/docs/contract.pdf, page 3"),
        ({"source": "a.pdf", "page": 0, "page_label": "1"}, "a.pdf, page 1"),  # LangChain's reader of PDF
        ({"file_path": "/d/a.pdf", "file_name": "a.pdf", "page_label": "iv"}, "/d/a.pdf, page iv"),  # LlamaIndex'
        ({"file_path": "a.pdf", "page_number": 2}, "a.pdf, page 2"),  # Haystack's
        ({"source": "https://a.org/x", "page": 2}, "https://a.org/x, page 2"),
        ({"source": "https://a.org", "page": 2}, "page 2"),  # the passage's address
        ({"source": " a\nb ", "page": {"x": 1}}, "a b"),
        ({"source": "d/" * 300 + "a.pdf"}, "..." + ("d/" * 96) + "a.pdf"),
    ],
)
def test_the_place_of_a_passage_in_words(metadata: dict[str, object] | None, place: str | None):
    assert place_of(Passage("1", "T", "x", "https://a.org", metadata=metadata)) == place

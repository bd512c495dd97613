"""Corpus files of every format, whole and broken."""

import gzip
import json
import os
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from small_pdf import pdf

from parallelsearch import files
from parallelsearch.errors import DataError, UsageError
from parallelsearch.files import read_jsonl
from parallelsearch.retrieval import corpus
from parallelsearch.retrieval.base import Passage
from parallelsearch.retrieval.bm25 import build_bm25
from parallelsearch.retrieval.corpus import (
    CorpusReport,
    chunk_passage,
    other_kinds,
    passage_of,
    passages_of,
    read_corpus,
    read_passages,
)
from parallelsearch.retrieval.documents import html_document, markdown
from parallelsearch.retrieval.store import PassageStore
from small_data import NUM_PASSAGES
from unwritable import closed

PASSAGES = [Passage("1", "Pelé", "from Brazil, a footballer"), Passage("2", "日本", 'says "hi"\nand bye')]
ROWS = [{"id": passage.id, "title": passage.title, "text": passage.text} for passage in PASSAGES]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)


def write(path: Path, text: str | bytes) -> Path:
    data = text.encode() if isinstance(text, str) else text
    if path.suffix == ".gz":
        data = gzip.compress(data)
    if path.suffix == ".zst":
        data = zstandard.ZstdCompressor().compress(data)
    path.write_bytes(data)
    return path


def write_parquet(path: Path, columns: dict[str, list[object]], **options: int) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table(columns), path, **options)
    return path


# ---- formats ---------------------------------------------------------------------------------------------------------

CSV = 'id,title,text\r\n1,Pelé,"from Brazil, a footballer"\r\n2,日本,"says ""hi""\nand bye"\r\n'


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.jsonl", LINES),
        ("a.jsonl", "\ufeff" + LINES.replace("\n", "\n\n  \r\n")),
        ("a.JSONL", LINES),
        ("a.json", LINES.rstrip("\n")),
        ("a.ndjson", LINES),
        ("a.jsonl.gz", LINES),
        ("a.b.jsonl.zst", LINES),
        ("a.csv", CSV),
        ("a.csv.gz", "\ufeff" + CSV.replace("id,title", " ID ,Title")),
        (
            "a.csv",
            CSV.replace("id,title,text", "id,title,text,more").replace("\r\n", ",\r\n").replace("more,", "more"),
        ),
        ("a.csv", CSV.replace(",", ";").replace("Brazil;", "Brazil,")),  # a spreadsheet's, where numbers have commas
        ("a.tsv.zst", CSV.replace(",", "\t").replace("Brazil\t", "Brazil,")),
    ],
)
def test_every_text_format_gives_the_same_passages(tmp_path: Path, name: str, text: str):
    assert list(read_corpus(write(tmp_path / name, text))) == PASSAGES


def test_parquet_gives_the_same_passages(tmp_path: Path):
    columns: dict[str, list[object]] = {name: [row[name] for row in ROWS] for name in ("text", "id", "title")}
    assert list(read_corpus(write_parquet(tmp_path / "a.parquet", columns))) == PASSAGES
    del columns["id"]
    columns["other"] = [[0.1] * 9, [0.2] * 9]  # a vector for each
    assert list(read_corpus(write_parquet(tmp_path / "b.parquet", columns, row_group_size=1))) == PASSAGES


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (["id", "text", "text"], "'text', found 2 .'text', 'text'.; rename or remove the others"),
        (["id", "text", "Text"], "'text', found 2 .'text', 'Text'."),
        (["ID", "id", "text"], "'id', found 2 .'ID', 'id'."),
        (["id", "text", "page", "page", "by"], None),
    ],
)
def test_two_columns_of_one_name_are_the_same_in_every_table(tmp_path: Path, header: list[str], found: str | None):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    values = [str(number) for number in range(len(header))]
    parquet.write_table(pyarrow.Table.from_arrays([[value] for value in values], names=header), tmp_path / "a.parquet")
    write(tmp_path / "a.csv", f"{','.join(header)}\n{','.join(values)}\n")
    write(tmp_path / "a.tsv", "{}\n{}\n".format("\t".join(header), "\t".join(values)))
    for name in ("a.parquet", "a.csv", "a.tsv"):
        if found is None:  # which of them is meant is not known, and a passage is whole without either
            assert list(read_corpus(tmp_path / name)) == [Passage("0", "", "1", metadata={"by": "4"})]
        else:
            with pytest.raises(DataError, match=f"expected one column {found}"):
                list(read_corpus(tmp_path / name))


def test_parquet_rows_are_checked_as_lines_are(tmp_path: Path):
    path = write_parquet(tmp_path / "a.parquet", {"id": ["1", "2"], "text": ["x", None]})
    with pytest.raises(DataError, match="line 2: field 'text': expected a string, it is missing"):
        list(read_corpus(path))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="damaged, or not Parquet"):
        list(read_corpus(path))
    with pytest.raises(DataError, match="expected a column 'text'"):
        list(read_corpus(write_parquet(path, {"body": ["x"]})))


def test_search_r1_contents_are_split_into_title_and_text(tmp_path: Path):
    contents = ['"Pelé"\nfrom Brazil', '""Dr. Death" Williams"\nwrestler', "no title here", "Bare\nbody\nmore"]
    lines = "".join(json.dumps({"id": str(n), "contents": text}) + "\n" for n, text in enumerate(contents))
    found = [(p.title, p.text) for p in read_corpus(write(tmp_path / "wiki-18.jsonl.gz", lines))]
    assert found == [
        ("Pelé", "from Brazil"),
        ('"Dr. Death" Williams', "wrestler"),
        ("", "no title here"),
        ("Bare", "body\nmore"),
    ]


def test_rows_without_ids_are_numbered(tmp_path: Path):
    assert [p.id for p in read_corpus(write(tmp_path / "a.csv", "text\none\ntwo\n"))] == ["1", "2"]
    for name, text in (
        ("a.csv", "id,title,Content,by\n1,T,one,Ada\n"),
        ("a.jsonl", '{"id": "1", "title": "T", "content": "one", "by": "Ada"}'),
    ):
        assert list(read_corpus(write(tmp_path / name, text))) == [Passage("1", "T", "one", metadata={"by": "Ada"})]
    both = write(tmp_path / "b.csv", "text,content\none,beside\n")
    assert list(read_corpus(both)) == [Passage("1", "", "one", metadata={"content": "beside"})]
    found = list(read_corpus(write(tmp_path / "a.tsv", 'contents\tid\n"T\nbody"\t7\n')))
    assert found == [Passage("7", "T", "body")]


def test_a_table_without_texts_is_a_passage_a_row(tmp_path: Path):
    prices = "Artikel;Preis;2025;id;url\nNW-7;12,30;;a;u\n;9,10;4;b;u\n;;;;\n"
    assert list(read_corpus(write(tmp_path / "prices.csv", prices))) == [
        Passage("a", "NW-7", "Artikel: NW-7; Preis: 12,30; id: a", "u", metadata={"Artikel": "NW-7", "Preis": "12,30"}),
        Passage("b", "9,10", "Preis: 9,10; 2025: 4; id: b", "u", metadata={"Preis": "9,10", "2025": "4"}),
    ]
    columns: dict[str, list[object]] = {"price": [3, None], "title": ["Saw", None], "in stock": [True, None]}
    assert list(read_corpus(write_parquet(tmp_path / "a.parquet", columns))) == [
        Passage("1", "Saw", "price: 3; in stock: True", metadata={"price": 3, "in stock": True})
    ]


def test_a_folder_of_text_files(tmp_path: Path):
    (tmp_path / "sub").mkdir()
    (tmp_path / ".git").mkdir()
    write(tmp_path / ".git" / "x.txt", "hidden")
    write(tmp_path / "sub" / "b.md", "intro\n\n## The Title ##\n" + "word " * 150)
    write(tmp_path / "a.txt", "# no heading in plain text")
    write(tmp_path / "empty.md", " \n")
    write(tmp_path / "c.odt", "not a format of ours")
    found = list(read_corpus(tmp_path))
    assert [p.id for p in found] == ["a.txt#0", "sub/b.md#0", "sub/b.md#1"]
    assert [p.title for p in found] == ["a", "The Title", "The Title"]
    assert [p.id for p in read_corpus(tmp_path, chunk_words=0)] == ["a.txt", "sub/b.md"]
    assert [p.id for p in read_corpus(tmp_path / "a.txt")] == ["a.txt#0"]
    write(tmp_path / "bad.txt", b"caf\xe9")
    with pytest.raises(DataError, match=r"bad\.txt: is not UTF-8 \(found byte 0xe9\)"):
        list(read_corpus(tmp_path))
    report = CorpusReport()
    assert len(list(read_corpus(tmp_path, on_bad=report.skip))) == 3
    assert report.num_skipped == 2
    assert any(problem.endswith("empty.md: is empty: it holds no text") for problem in report.problems)
    assert other_kinds(tmp_path, tmp_path / "index") == {".odt": 1}
    (tmp_path / "none").mkdir()
    with pytest.raises(
        UsageError, match=r"holds no \.txt \.md .* files \(found: nothing at all\); a corpus in one file"
    ):
        list(read_corpus(tmp_path / "none"))
    for name in ("a.odt", "b.ODT", "c.csv", "d"):
        (tmp_path / "none" / name).touch()
    with pytest.raises(UsageError, match=r"files \(found: \.odt 2, \.csv 1, no ending 1\); a corpus in one file"):
        list(read_corpus(tmp_path / "none"))


def test_files_keep_names_of_their_own_where_these_are_not_utf_8(tmp_path: Path):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    for name in (b"\xe8.txt", b"\xe9.txt"):
        write(folder / os.fsdecode(name), "onyx")
        write(folder / os.fsdecode(name.replace(b"txt", b"csv")), "text\nonyx\n")
    ids = ["\\xe8.txt#0", "\\xe9.txt#0"]
    found = list(read_corpus(folder))
    assert [(p.id, p.title, p.metadata) for p in found] == [
        (id, id.split(".")[0], {"source": id.split("#")[0]}) for id in ids
    ]
    corpora = [folder, *sorted(path for path in folder.iterdir() if path.suffix == ".csv")]
    build_bm25(corpora, tmp_path / "index")
    stored = PassageStore.open(tmp_path / "index")
    assert [p.id for p in stored] == [*(f"caf\\xe9/{id}" for id in ids), "\\xe8.csv:1", "\\xe9.csv:1"]


PAGE = """<html><head><title>Rivers &amp; Lakes</title><script>if (a<b) "</p>"</script><style>p {}</style></head><body>
<nav>Menu</nav><h1>Another heading</h1><p title="1 > 0">The Rhine
is <b>long</b>.</p><!-- unseen --><table><tr><td>Elbe</td><td>1 &lt; 2</td></tr></table><script>never closed"""


def test_documents_have_the_titles_and_texts_of_their_own_headings(tmp_path: Path):
    write(tmp_path / "a.html", PAGE)
    write(tmp_path / "b.htm", '<meta charset="iso-8859-1"><h1>Caf\u00e9 <i>talk</i></h1>x'.encode("latin-1"))
    write(tmp_path / "c.rst", ".. note:: n\n\n====\nRhine\n====\n\n========\nThe Elbe\n========\n\nA river.\n")
    write(tmp_path / "d.txt", "On rivers\n\nThey flow.\n")
    write(tmp_path / "e.pdf", pdf("The Danube", "It flows east.", title="Rivers of Europe"))
    write(tmp_path / "f.pdf", pdf("The Danube", "It flows east.", title="Microsoft Word - f.doc"))
    write(tmp_path / "g.txt", "They flow.")
    found = {p.id: p for p in read_corpus(tmp_path, chunk_words=0)}
    titles = {"a.html": "Rivers & Lakes", "b.htm": "Caf\u00e9 talk", "c.rst": "The Elbe", "d.txt": "On rivers"}
    titles |= {"e.pdf": "Rivers of Europe", "f.pdf": "The Danube", "g.txt": "g"}
    assert {name: passage.title for name, passage in found.items()} == titles
    assert found["a.html"].text == "Another heading\nThe Rhine is long.\nElbe 1 < 2"
    assert found["e.pdf"].text.split() == ["The", "Danube", "It", "flows", "east."]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.md", "---\ntitle: Rhine\nby: Ada\n---\n# A river\n\nIt flows\nnorth.\n"),
        ("a.rst", "Rhine\n=====\n\nIt flows\nnorth.\n"),
        ("a.txt", "The Rhine\n\nIt flows.\n"),
        ("a.html", "<title>Rhine</title><p>It\nflows</p><pre>a\nb</pre>"),
    ],
)
@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_a_document_of_another_system_is_the_same(tmp_path: Path, name: str, text: str, end: str):
    (tmp_path / "ours").mkdir()
    (tmp_path / "theirs").mkdir()
    write(tmp_path / "ours" / name, text)
    write(tmp_path / "theirs" / name, text.replace("\n", end).encode())
    assert list(read_corpus(tmp_path / "theirs")) == list(read_corpus(tmp_path / "ours"))


@pytest.mark.parametrize("kind", ["image/png", "IMAGE/PNG", "image/svg+xml;charset=utf-8"])
def test_a_picture_inside_markdown_hides_nothing(kind: str, tmp_path: Path):
    write(tmp_path / "a.md", f"# Danube\n\n![map](data:{kind};base64,{'QUJD' * 9999})\n\nIt flows east.")
    assert [p.text for p in read_corpus(tmp_path)] == ["![map]()\n\nIt flows east."]


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("```sh\n# install it\n```\n\n# The Rhine\n", "The Rhine"),
        ("~~~~\n~~~\n# no\n~~~~~\n## The Rhine", "The Rhine"),
        ("- ```sh\n  # no\n  ```\n# The Rhine", "The Rhine"),
        ("```\n# the fence is never closed", ""),
        ("    # code\n\ntext", ""),
        ("The Rhine\n=========\n\n# Later", "The Rhine"),
        ("The Rhine\r\n---\r\n\r\n# Later\r\n", "The Rhine"),
        ("- an item\n---\n\n# The Rhine", "The Rhine"),
        ("two lines\nof a text\n---\n\n# The Rhine", "The Rhine"),
        ("text\n\n---\n\n# The Rhine", "The Rhine"),
        ("| a |\n---\n> quote\n---\n# The Rhine", "The Rhine"),
        (
            "# [The Rhine](http://x/(a)) with **bold *and* slanted** `__init__` words",
            "The Rhine with bold and slanted __init__ words",
        ),
        (
            "# [![Rhine](r.svg)][1] &amp; \\*Elbe\\* <a id='x'></a><https://x.org> snake_case_name 2 * 3 * 4",
            "Rhine & *Elbe* https://x.org snake_case_name 2 * 3 * 4",
        ),
        ("# On C#\n", "On C#"),
        ("#\n# #\n## The Rhine ##  \n", "The Rhine"),
        ("**The Rhine**\n===", "The Rhine"),
        ("- an item\ngoes on\n---\n\n# The Rhine", "The Rhine"),
        ("1. an item\n   goes on\n---\n\n# The Rhine", "The Rhine"),
        ("> a quote\ngoes on\n---\n# The Rhine", "The Rhine"),
        ("***\n---\n_ _ _\n===\nThe Rhine\n---", "The Rhine"),
        ("<!--\n# a licence\nthat nobody sees\n---\n-->\n# The Rhine", "The Rhine"),
        ("```\n<!--\n```\n# The Rhine\n-->", "The Rhine"),
        ("<!-- seen by nobody -->\nThe Rhine\n---", "The Rhine"),
        ("# The &#xE000;Rhine `a`", "The \ue000Rhine a"),
    ],
)
def test_the_title_of_markdown_is_its_first_heading_in_plain_words(text: str, title: str):
    assert markdown(text) == (title, text)


@pytest.mark.parametrize(
    ("text", "title", "rest"),
    [
        ("---\ntitle: The Rhine # a river\ntags:\n- a\n  b: c\n---\n# Other\n", "The Rhine", "# Other\n"),
        ('---\r\ntitle: "On \\"the\\" Rhine: a river"\r\n---\r\ntext', 'On "the" Rhine: a river', "text"),
        ("---\ntitle: 'The Rhine''s'\n...\ntext", "The Rhine's", "text"),
        ("---\ntitle: >-\n  The long\n  Rhine\ndate: 2020\n---\ntext", "The long Rhine", "text"),
        ("---\ndate: 2020\n---\n\n# The Rhine", "The Rhine", "\n# The Rhine"),
        ('---\ntitle: "The long\n  Rhine" # a river\n---\ntext', "The long Rhine", "text"),
        ("---\ntitle: 'The\n  Rhine''s'\n---\ntext", "The Rhine's", "text"),
        ('---\ntitle: "Caf\\xE9 \\u2013 \\U00110000\\n\\ud800 Rhine"\n---\ntext', "Café – \ufffd \ufffd Rhine", "text"),
        ("---\ntags: [\n  a,\n]\ntitle: The Rhine\n---\ntext", "The Rhine", "text"),
        ("---\ntext between rules\n---\nmore", "text between rules", None),
        ("---\n\n---\nmore", "", None),
        ("---\ntitle: never closed", "", None),
    ],
)
def test_front_matter_gives_the_title_and_is_no_text(text: str, title: str, rest: str | None):
    assert markdown(text) == (title, text if rest is None else rest)


LISTS = {"a": ["b"], "l": ["m", "n"], "o": ["C#"]}


@pytest.mark.parametrize(
    ("block", "metadata"),
    [
        (
            'date: 2024-05-01 # then\nAuthor: "Ada \\"A\\" B"\ndraft: true\nsource: elsewhere\nempty:\nnone: ~',
            {"date": "2024-05-01", "Author": 'Ada "A" B', "draft": "true"},
        ),
        ("tags: [a, 'b, c', \"d\"] # three\ntitle: T", {"tags": ["a", "b, c", "d"]}),
        ("tags:\n- a\n  # no item\n- 'b'\nmore:\n  - https://c.org\n", {"tags": ["a", "b"], "more": ["https://c.org"]}),
        (
            "author:\n  name: Ada\nby:\n- name: Ada\n  at: home\n- name: Bob\nof: {a: b}\nin: [a,\n  b]\nat: ['a, b]\nx: 1",
            {"x": "1"},
        ),
        ("text: |\n  long\nsaid: goes on\n  below\nx: 1", {"x": "1"}),
        ("a: [b] # not [c]\nd: [e, [f, g]]\nh: [i] j\nk: # none\nl: # two\n- m\n- n\no: [C#, ]", LISTS),
    ],
)
def test_what_front_matter_says_beside_the_title_is_metadata(tmp_path: Path, block: str, metadata: dict[str, object]):
    write(tmp_path / "a.md", f"---\n{block}\n---\ntext")
    (passage,) = read_corpus(tmp_path)
    assert (passage.text, passage.metadata) == ("text", {"source": "a.md", **metadata})


@pytest.mark.parametrize(
    "unit",
    [
        "#",
        "# ",
        "---\n",
        "```\n",
        "a: b\n",
        "- ",
        "[",
        "![](",
        "`",
        "*a",
        "_a ",
        "title\n",
        "<!--",
        "* ",
        "- a\n---\n",
        "a: [b,\n",
        '"\\',
        "data:a/",
        "data:a/a;a=a",
    ],
)
def test_hostile_markdown_takes_time_in_proportion(unit: str):
    begun = time.process_time()
    for start in ("", "# ", "---\n", "---\ntitle: '\n ", "---\na:\n- ", "---\na: ["):
        markdown(start + unit * (200_000 // len(unit)))
    assert time.process_time() - begun < 10  # a quadratic reader takes minutes


def test_a_bad_document_is_counted_and_named_and_never_sinks_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "documents"
    folder.mkdir()
    write(folder / "good.md", "# Good\nThe Danube flows east.")
    whole = pdf("The Danube", "It flows east.")
    write(folder / "bad.pdf", whole[: len(whole) // 3])
    write(folder / "scan.pdf", pdf())
    write(folder / "bad.html", b"<p>caf\xe9")
    report = build_bm25(folder, tmp_path / "index")
    assert (report.num_passages, report.num_skipped) == (1, 3)
    assert [sum(name in problem for problem in report.problems) for name in ("bad.pdf", "scan.pdf", "bad.html")] == [
        1,
        1,
        1,
    ]
    assert any("holds no text" in problem for problem in report.problems)
    for order in ("LE", "BE"):
        write(folder / "wide.txt", "The Danube flows east.".encode(f"utf-16-{order}"))  # each byte of it is good UTF-8
        report = build_bm25(folder, tmp_path / "index", overwrite=True)
        assert any("wide.txt" in problem and f"iconv -f UTF-16{order}" in problem for problem in report.problems)
    (folder / "wide.txt").unlink()
    monkeypatch.setitem(sys.modules, "pypdf", None)  # as if it were not installed
    write(folder / "whole.pdf", whole)
    report = build_bm25(folder, tmp_path / "index", overwrite=True)
    assert (report.num_passages, report.num_skipped) == (1, 4)
    assert any("pip install" in problem for problem in report.problems)


@pytest.mark.parametrize(
    ("name", "text", "title", "rest"),
    [
        ("a.md", "\n# The *Danube* #\n\nIt flows.", "The Danube", "It flows."),
        ("a.md", "The Danube\n---\nIt flows.\n\n# East", "The Danube", "It flows.\n\n# East"),
        ("a.md", "---\ntitle: Danube\n---\n# Rivers\nIt flows.", "Danube", "# Rivers\nIt flows."),
        ("a.md", "It flows.\n\n# Danube\nEast.", "Danube", "It flows.\n\n# Danube\nEast."),
        ("a.md", "# Danube\n", "Danube", "# Danube"),
        ("a.md", "Danube\n===\n", "Danube", "Danube\n==="),
        ("a.rst", "======\nDanube\n======\n\nIt flows.", "Danube", "It flows."),
        ("a.rst", "######\nDanube\n###### \n\nIt flows.", "Danube", "It flows."),
        ("a.rst", "Danube\n~~~~~~\nIt flows.", "Danube", "It flows."),
        ("a.txt", "Danube\n******\nIt flows.\n******\n", "Danube", "It flows.\n******"),
        ("a.txt", "The Danube\n\nIt flows.\nEast.", "The Danube", "It flows.\nEast."),
        ("a.html", "<title>Danube</title><h1>Danube</h1><p>It flows.</p>", "Danube", "It flows."),
        (
            "a.html",
            "<title>Danube - Rivers</title><h1>Danube</h1><p>It flows.</p>",
            "Danube - Rivers",
            "Danube\nIt flows.",
        ),
    ],
)
def test_a_title_is_not_said_twice(tmp_path: Path, name: str, text: str, title: str, rest: str):
    write(tmp_path / name, text)
    assert [(p.title, p.text) for p in read_corpus(tmp_path)] == [(title, rest)]


@pytest.mark.parametrize("unit", ["<", "<!--", "<a '\"", "<svg>", "<title>", "<h1></h1", "&#1", "&#" + "1" * 5000])
def test_hostile_html_takes_time_in_proportion(unit: str):
    size = 200_000
    begun = time.process_time()
    html_document(unit * (size // len(unit)))
    assert time.process_time() - begun < 10  # a quadratic reader takes minutes


# ---- chunks ----------------------------------------------------------------------------------------------------------


def test_chunks_overlap_by_words_and_keep_the_text():
    text = " ".join(f"w{n}" for n in range(10))
    found = list(chunk_passage(Passage("a", "T", text, url="u"), 4, 1))
    assert [p.text for p in found] == ["w0 w1 w2 w3", "w3 w4 w5 w6", "w6 w7 w8 w9"]
    assert {(p.title, p.url) for p in found} == {("T", "u")}
    assert [p.id for p in found] == ["a#0", "a#1", "a#2"]
    assert [p.text for p in chunk_passage(Passage("a", "", "one  two\n\nthree"), 2, 0)] == ["one  two", "three"]
    assert [p.text for p in chunk_passage(Passage("a", "", "北京大学"), 3, 1)] == ["北京大", "大学"]
    assert [p.text for p in chunk_passage(Passage("a", "T", " "), 3, 1)] == [""]


@given(st.text(alphabet="ab \n北"), st.integers(1, 6), st.data())
def test_chunks_cover_every_word_once_but_for_the_overlap(text: str, words: int, data: st.DataObject):
    overlap = data.draw(st.integers(0, words - 1))
    split: Callable[[str], list[str]] = corpus._WORD.findall
    chunks = [split(p.text) for p in chunk_passage(Passage("a", "", text), words, overlap)]
    assert all(len(chunk) <= words for chunk in chunks)
    assert chunks[0] + [word for chunk in chunks[1:] for word in chunk[overlap:]] == split(text)


def test_records_are_cut_only_on_request(tmp_path: Path):
    path = write(tmp_path / "a.jsonl", LINES)
    assert [p.id for p in read_corpus(path, chunk_words=2, chunk_overlap=0)] == ["1#0", "1#1", "2#0", "2#1"]
    for words, overlap in ((5, 5), (5, -1), (-1, 0)):
        with pytest.raises(UsageError, match="overlap"):
            read_corpus(path, chunk_words=words, chunk_overlap=overlap)


# ---- what is wrong is said -------------------------------------------------------------------------------------------

GOOD = b'{"id": "1", "text": "x"}\n'


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{broken", r"is not JSON \(Expecting property name"),
        (b"[1]", "expected an object with id, title and text, found list"),
        (b'{"text": "x"}', r"field 'id': expected a string, it is missing \(found text\)"),
        (b'{"id": "2", "body": "x"}', r"field 'text': expected a string, it is missing \(found id, body\)"),
        (b'{"id": "2", "text": 3}', "field 'text': expected a string, found int"),
        (b'{"id": "2", "contents": 3}', "field 'contents': expected a string, found int"),
        (b'{"id": true, "text": "x"}', "field 'id': expected a string, found bool"),
        (b'{"id": " ", "text": "x"}', "field 'id': is empty"),
        (b'{"id": "2", "text": " ", "title": null}', "text and title are both empty"),
        (b'{"id": "1", "text": "y"}', "'1' was used before on line 1"),
        (b'{"id": "2", "text": "caf\xe9"}', r"is not UTF-8 \(found byte 0xe9\)"),
        (b"[" * 100_000, "nested too deeply|is not JSON"),
    ],
)
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.zst"])
def test_a_bad_line_is_named_or_skipped(tmp_path: Path, name: str, line: bytes, words: str):
    path = write(tmp_path / name, GOOD + line + b"\n" + GOOD.replace(b"1", b"3"))
    with pytest.raises(DataError, match=words) as caught:
        list(read_corpus(path))
    assert caught.value.line == 2
    assert str(path) in str(caught.value)
    report = CorpusReport()
    assert [p.id for p in report.count(read_corpus(path, on_bad=report.skip))] == ["1", "3"]
    assert (report.num_passages, report.num_skipped, sum(report.reasons.values())) == (2, 1, 1)
    assert report.problems == [str(caught.value)]


def test_utf16_and_an_object_over_many_lines_are_recognised(tmp_path: Path):
    with pytest.raises(DataError, match=r"found UTF-16.*iconv"):
        list(read_corpus(write(tmp_path / "a.jsonl", LINES.encode("utf-16"))))
    with pytest.raises(DataError, match=r"one object a line is needed: jq -c"):
        list(read_corpus(write(tmp_path / "a.json", json.dumps({"rows": ROWS}, indent=1))))
    with pytest.raises(DataError, match=r"is not JSON .*; one JSON object a line is needed$"):
        list(read_corpus(write(tmp_path / "b.jsonl", "Who is older?\n")))


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.json.gz", "a.json.zst"])
def test_a_json_array_is_a_corpus_too(tmp_path: Path, name: str, indent: int | None):
    wanted = list(read_corpus(write(tmp_path / "lines.jsonl", LINES)))
    path = write(tmp_path / name, "\ufeff \n" * (indent is not None) + json.dumps(ROWS, indent=indent) + "\n")
    assert list(read_corpus(path)) == wanted
    rows = [{"id": 1, "text": "a"}, "no object", {"id": 2, "text": "b"}]
    report = CorpusReport()
    found = read_corpus(write(tmp_path / f"bad-{name}", json.dumps(rows, indent=indent)), on_bad=report.skip)
    assert [passage.id for passage in report.count(found)] == ["1", "2"]
    assert report.num_skipped == 1


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", 1, "expected a column 'text'.*found: nothing"),
        ("1,Title,body\n", 1, "found: 1, title, body"),
        ("id,text\n1,a,b\n", 2, "has 3 fields, and the header has 2; quote"),
        ("id,text\n1,a\n1,b\n", 3, "was used before on line 2"),
        ('id,text\n1,"a\n\nb"\n,c\n', 5, "field 'id': is empty"),
    ],
)
def test_a_bad_table_is_named(tmp_path: Path, text: str, line: int, words: str):
    with pytest.raises(DataError, match=words) as caught:
        list(read_corpus(write(tmp_path / "a.csv", text)))
    assert caught.value.line == line


def test_bad_rows_of_a_table_are_skipped_and_lines_still_counted(tmp_path: Path):
    report = CorpusReport()
    path = write(tmp_path / "a.csv", b"id,text\n1,a\n2,caf\xe9\n3,b,c\n4,d\n4,e\n")
    assert [p.id for p in report.count(read_corpus(path, on_bad=report.skip))] == ["1", "4"]
    assert [problem.split(": ")[0].rsplit(" ", 1)[1] for problem in report.problems] == ["3", "4", "6"]


def test_a_quote_that_is_never_closed_does_not_swallow_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 1_000)
    path = write(tmp_path / "a.csv", 'id,text\n1,"open\n' + "2,row\n" * 1_000)
    with pytest.raises(DataError, match="is not a row of the table"):
        list(read_corpus(path))


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst"])
@pytest.mark.parametrize("damage", ["cut", "changed", "not an archive"])
def test_a_damaged_archive_always_raises(tmp_path: Path, name: str, damage: str):
    lines = "".join(json.dumps({"id": str(n), "text": str(hash(str(n)))}) + "\n" for n in range(20_000))
    path = write(tmp_path / name, lines)
    data = path.read_bytes()
    half = len(data) // 2
    path.write_bytes(
        {"cut": data[:half], "changed": data[:half] + bytes(64) + data[half + 64 :], "not an archive": b"text\n"}[
            damage
        ]
    )
    skipped: list[DataError] = []
    with pytest.raises(DataError, match="the file is damaged from here on"):
        for _ in read_corpus(path, on_bad=skipped.append):
            pass


def test_archives_of_several_parts_are_read_to_the_end(tmp_path: Path):
    (tmp_path / "a.jsonl.zst").write_bytes(
        b"".join(zstandard.compress(line.encode()) for line in LINES.splitlines(True))
    )
    (tmp_path / "a.jsonl.gz").write_bytes(b"".join(gzip.compress(line.encode()) for line in LINES.splitlines(True)))
    for name in ("a.jsonl.zst", "a.jsonl.gz"):
        assert list(read_corpus(tmp_path / name)) == PASSAGES


def test_a_line_of_100_mb_is_passed_over_without_being_held(tmp_path: Path):
    path = tmp_path / "a.jsonl.zst"
    long = b'{"id": "2", "text": "' + b"x" * 100_000_000 + b'"}\n'
    path.write_bytes(zstandard.compress(GOOD + long + GOOD.replace(b"1", b"3")))
    del long
    report = CorpusReport()
    tracemalloc.start()
    found = [p.id for p in read_corpus(path, on_bad=report.skip)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == ["1", "3"]
    assert report.problems == [f"{path}, line 2: the line has 95 MiB; the limit is 32 MiB"]
    assert peak < 110_000_000  # at most a few pieces of 32 MiB


def test_half_a_surrogate_pair_becomes_text():
    found = passage_of({"id": "1", "title": "a\ud800b", "text": "\U0001f600"}, "f", 1)
    assert (found.title, found.text) == ("a\ufffdb", "\U0001f600")
    found.title.encode()


def test_missing_files_and_unknown_formats_are_usage_errors(tmp_path: Path):
    with pytest.raises(UsageError, match="there is no file"):
        read_corpus(tmp_path / "none.jsonl")
    for name in ("a.odt", "a", "a.parquet.gz", "a.gz"):
        with pytest.raises(UsageError, match="cannot tell the format"):
            read_corpus(write(tmp_path / name, ""))
    with pytest.raises(UsageError, match="is a folder"):
        list(read_jsonl(tmp_path))


def test_passages_may_be_given_themselves():
    assert list(passages_of(PASSAGES)) == PASSAGES
    assert [p.id for p in passages_of(iter(PASSAGES), chunk_words=2, chunk_overlap=0)] == ["1#0", "1#1", "2#0", "2#1"]
    with pytest.raises(DataError, match="passages, line 3: field 'id': '1' was used before on line 1"):
        list(passages_of([*PASSAGES, PASSAGES[0]]))


def test_the_report_groups_reasons(tmp_path: Path):
    bad = '{"id": "1"}\n{"id": "2"}\n{oops\n{oops again}\n' * 10
    report = CorpusReport()
    path = write(tmp_path / "a.jsonl", LINES + bad)
    assert len(list(report.count(read_corpus(path, on_bad=report.skip)))) == 2
    assert report.reasons == {"text: expected a string, it is missing": 20, "is not JSON": 20}
    assert (report.num_skipped, len(report.problems), report.mean_words) == (40, 20, 4.0)


@pytest.mark.shared_data
def test_packed_passages_are_read(data_dir: Path, has_real_data: bool):
    passages = list(read_passages(data_dir / "corpus" / "multihop_passages.jsonl.zst"))
    assert len(passages) == (89_199 if has_real_data else NUM_PASSAGES)
    assert len({passage.id for passage in passages}) == len(passages)


# ---- several corpora -------------------------------------------------------------------------------------------------


def test_several_corpora_are_one_and_ids_made_here_begin_with_their_names(tmp_path: Path):
    for name in ("docs", "notes"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "a.md", f"# Of {name}\n" + "word " * 150)
    held = [
        tmp_path / "docs",
        str(tmp_path / "notes"),
        write(tmp_path / "rows.csv", "title,text\nT,one\nT,two\n"),
        write(tmp_path / "more.csv", "title,text\nT,three\n"),
        write(tmp_path / "lines.jsonl", LINES),
    ]
    found = list(passages_of(held))
    assert [p.id for p in found] == [
        *("docs/a.md#0", "docs/a.md#1", "notes/a.md#0", "notes/a.md#1"),
        *("rows.csv:1", "rows.csv:2", "more.csv:1", "1", "2"),
    ]
    assert (found[2].title, found[2].metadata) == ("Of notes", {"source": "notes/a.md"})
    assert list(passages_of(held[-1:])) == list(read_corpus(held[-1])) == PASSAGES
    write(tmp_path / "docs" / "b.odt", "x")
    write(tmp_path / "notes" / "b.odt", "x")
    assert other_kinds(held, tmp_path / "index") == {".odt": 2}


def test_the_same_id_in_two_corpora_is_a_bad_record(tmp_path: Path):
    held = [write(tmp_path / "a.jsonl", LINES), write(tmp_path / "b.csv", "id,text\n3,three\n2,two\n3,again\n")]
    with pytest.raises(DataError, match=r"b\.csv, line 3: field 'id': '2' was used before in another corpus; every"):
        list(passages_of(held))
    report = CorpusReport()
    assert [p.id for p in passages_of(held, on_bad=report.on_bad(held, skip_bad=True))] == ["1", "2", "3"]
    assert report.problems[1].endswith(
        "line 4: field 'id': '3' was used before on line 2; every passage needs an id of its own"
    )


def test_a_bad_file_of_a_folder_is_left_out_and_a_bad_line_beside_it_stops(tmp_path: Path):
    (tmp_path / "docs").mkdir()
    write(tmp_path / "docs" / "a.txt", "good")
    write(tmp_path / "docs" / "b.txt", b"caf\xe9")
    lines = write(tmp_path / "a.jsonl", LINES + '{"id": "3"}\n')
    held = [tmp_path / "docs", lines]
    report = CorpusReport()
    passages = passages_of(held, on_bad=report.on_bad(held, skip_bad=False))
    with pytest.raises(DataError, match=r"a\.jsonl, line 3: field 'text'"):
        list(passages)
    (problem,) = report.problems
    assert report.reasons == {"is not UTF-8": 1}
    assert "b.txt: is not UTF-8" in problem


def test_what_may_not_be_read_in_a_folder_is_left_out_and_a_folder_that_may_not_be_is_named(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    for folder in (docs / "inner", tmp_path / "else"):
        folder.mkdir(parents=True)
        write(folder / "a.md", "Inside.")
    write(docs / "b.md", "Closed.")
    write(docs / "c.md", "Open.")
    (docs / "d.md").symlink_to(tmp_path / "else" / "a.md")
    (docs / "e.md").symlink_to("e.md")
    (docs / "f.md").symlink_to("nowhere")
    report = CorpusReport()
    with closed(docs / "inner"), closed(docs / "b.md"), closed(tmp_path / "else"):
        assert [p.text for p in passages_of(docs, on_bad=report.on_bad(docs, skip_bad=False))] == ["Open."]
    assert report.problems == [
        f"{docs / 'inner'}: the folder cannot be read: Permission denied",
        f"{docs / 'b.md'}: cannot read '{docs / 'b.md'}': Permission denied",
        f"{docs / 'd.md'}: cannot read '{docs / 'd.md'}': Permission denied",
    ]
    with closed(docs), pytest.raises(UsageError, match=r"cannot read the folder '.*docs': Permission denied"):
        list(passages_of(docs, on_bad=report.on_bad(docs, skip_bad=False)))


def test_corpora_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    for year in ("2024", "2025"):
        (tmp_path / year / "docs").mkdir(parents=True)
        (tmp_path / year / "docs" / "a.md").write_text(f"Rent of {year}.")
        (tmp_path / year / "a.md").write_text(f"Lease of {year}.")
        (tmp_path / year / "t.csv").write_text(f"text\nTable of {year}.")
    (tmp_path / "notes.md").write_text("A note.")
    paths = [tmp_path / year / name for year in ("2024", "2025") for name in ("docs", "a.md", "t.csv")]
    found = {passage.id: passage.text for passage in passages_of([*paths, tmp_path / "notes.md"])}
    assert found == {
        **{
            id: text
            for year in ("2024", "2025")
            for id, text in {
                f"{year}/docs/a.md#0": f"Rent of {year}.",
                f"{year}/a.md#0": f"Lease of {year}.",
                f"{year}/t.csv:1": f"Table of {year}.",
            }.items()
        },
        "notes.md#0": "A note.",
    }
    with pytest.raises(DataError, match="was used before in another corpus"):  # the same one twice
        list(passages_of([paths[1], paths[1]]))


def test_what_is_neither_a_path_nor_a_passage_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("A note.")
    passage = Passage("1", "Note", "A note.")
    for source in (
        tmp_path.glob("*.md"),
        {tmp_path / "a.md"},
        [passage, tmp_path / "a.md"],
        [{"id": "1", "text": "x"}],
    ):
        with pytest.raises(UsageError, match=r"from a list of paths, or from passages, .*found (PosixPath|dict): "):
            build_bm25(source, tmp_path / "index")  # type: ignore[arg-type]


def test_a_bad_line_of_a_file_that_was_named_stops_also_where_the_file_lies_in_a_folder_that_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.md").write_text("A note.")
    Path("empty.md").write_text("")
    Path("rows.jsonl").write_text('{"id": "1", "text": "A row."}\n{"id": "2"}\n')
    with pytest.raises(DataError, match=r"rows.jsonl, line 2: field 'text'"):
        build_bm25([".", "rows.jsonl"], "index")
    assert build_bm25(["."], "index").num_skipped == 1


def test_a_content_that_is_no_text_is_called_by_the_name_it_has(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"id": "1", "content": ["a"]}\n')
    with pytest.raises(DataError, match="line 1: field 'content': expected a string, found list"):
        list(read_corpus(tmp_path / "rows.jsonl"))

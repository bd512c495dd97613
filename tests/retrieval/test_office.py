"""Word and PowerPoint as python-docx and python-pptx write them, and as Word itself does: with content controls, tracked
changes and boxes. PDF is in test_corpus.py and test_metadata.py."""

from __future__ import annotations

import io
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from parallelsearch import open_search
from parallelsearch.errors import DataError, ParallelSearchError
from parallelsearch.retrieval import build_index, office
from parallelsearch.retrieval.corpus import read_corpus
from parallelsearch.retrieval.office import slides_document, word_document

docx = pytest.importorskip("docx", reason="pip install -e '.[files]'")
pptx = pytest.importorskip("pptx", reason="pip install -e '.[files]'")
WORDS = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"


def word(write: Callable[..., None]) -> bytes:
    document = docx.Document()
    write(document)
    return saved(document)


def lease(document) -> None:
    document.add_heading("Lease of the Mill", 0)
    document.add_paragraph("Notice is given\tin writing.")
    table = document.add_table(2, 2)
    for cell, text in zip((*table.rows[0].cells, *table.rows[1].cells), ("Part", "Rent", "Mill", "90"), strict=True):
        cell.text = text
    inner = table.cell(1, 1).add_table(1, 1)
    inner.cell(0, 0).text = "a month"
    document.add_heading("Terms", 1)


def deck(num_slides: int = 3) -> bytes:
    slides = pptx.Presentation()
    for number in range(1, num_slides + 1):
        slide = slides.slides.add_slide(slides.slide_layouts[1])
        slide.shapes.title.text = f"The mill, part {number}"
        slide.placeholders[1].text = f"Stone {number}\nWheel {number}"
    slides.slides[1].notes_slide.notes_text_frame.text = "The wheel\vis of oak."
    return saved(slides)


def saved(document) -> bytes:
    file = io.BytesIO()
    document.save(file)
    return file.getvalue()


def with_body(xml: str) -> bytes:
    """A Word document with this in its body, as a program wrote it."""
    source = io.BytesIO(word(lambda document: document.add_paragraph("REPLACED")))
    out = io.BytesIO()
    with zipfile.ZipFile(source) as archive, zipfile.ZipFile(out, "w") as made:
        for name in archive.namelist():
            data = archive.read(name)
            if name == "word/document.xml":
                data = xml.encode()
            made.writestr(name, data)
    return out.getvalue()


def test_of_word_a_paragraph_is_a_line_and_a_row_of_a_table_is_one() -> None:
    title, text, starts = word_document(word(lease), "lease.docx")
    assert (title, starts) == ("Lease of the Mill", ())
    assert text == "Lease of the Mill\nNotice is given in writing.\nPart Rent\nMill 90 a month\nTerms"


def test_titles_are_what_a_person_wrote() -> None:
    def titled(document) -> None:
        document.core_properties.title = "The Mill"
        lease(document)

    def without(document) -> None:
        document.core_properties.title = "Word Document"
        document.add_paragraph("First line.")
        document.add_heading("Terms", 1)

    assert word_document(word(titled), "a")[0] == "The Mill"
    assert word_document(word(without), "a")[0] == "Terms"
    assert word_document(word(lambda document: document.add_paragraph("Text.")), "a")[0] == ""
    assert slides_document(deck(), "a")[0] == "The mill, part 1"


def test_what_was_inserted_boxed_or_filled_in_is_read_and_what_was_struck_out_is_not() -> None:
    text = word_document(
        with_body(f"""<w:document xmlns:w="{WORDS}" xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006">
        <w:body><w:sdt><w:sdtPr><w:alias w:val="x"/></w:sdtPr><w:sdtContent><w:p><w:r><w:t>Filled in.</w:t></w:r></w:p>
        </w:sdtContent></w:sdt><!-- a comment -->
        <w:p><w:pPr><w:tabs><w:tab w:pos="1"/></w:tabs></w:pPr><w:ins><w:r><w:t>New </w:t></w:r></w:ins>
        <w:del><w:r><w:delText>old </w:delText></w:r></w:del><w:r><w:t>words</w:t><w:br/><w:t>below.</w:t></w:r></w:p>
        <w:p><mc:AlternateContent><mc:Choice><w:p><w:r><w:t>In a box.</w:t></w:r></w:p></mc:Choice>
        <mc:Fallback><w:p><w:r><w:t>In a box.</w:t></w:r></w:p></mc:Fallback></mc:AlternateContent></w:p>
        <w:moveFrom><w:r><w:t>Moved away.</w:t></w:r></w:moveFrom>
        <w:p><w:r><w:ruby><w:rt><w:r><w:t>とうきょう</w:t></w:r></w:rt><w:rubyBase><w:r><w:t>東京</w:t></w:r></w:rubyBase>
        </w:ruby></w:r><w:r><w:t>へ</w:t></w:r></w:p></w:body></w:document>"""),
        "a",
    )[1]
    assert [line for line in text.splitlines() if line] == ["Filled in.", "New words", "below.", "In a box.", "東京へ"]


async def test_a_slide_is_a_page_and_has_its_notes(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "mill.pptx").write_bytes(deck())
    (tmp_path / "docs" / "lease.docx").write_bytes(word(lease))
    _, text, starts = slides_document(deck(), "a")
    assert [text[start:].split("\n")[0] for start in starts] == [f"The mill, part {number}" for number in (1, 2, 3)]
    assert "The wheel\nis of oak." in text[starts[1] : starts[2]]
    long = pptx.Presentation()
    for words in ("one two three four five six", "", "seven eight", "nine"):
        slide = long.slides.add_slide(long.slide_layouts[5])
        slide.shapes.title.text = words
    (tmp_path / "docs" / "long.pptx").write_bytes(saved(long))
    pieces = [
        one for one in read_corpus(tmp_path / "docs", chunk_words=4, chunk_overlap=1) if one.id.startswith("long")
    ]
    assert [(one.text, (one.metadata or {})["page"]) for one in pieces] == [
        ("one two three four", 1),
        ("four five six", 1),
        ("seven eight", 3),
        ("nine", 4),
    ]
    build_index(tmp_path / "docs", tmp_path / "index")
    search = open_search(f"bm25:{tmp_path / 'index'}")
    (hit, *_), (notice, *_) = [(await search.find(query)).hits for query in ("wheel of oak", "notice in writing")]
    assert hit.metadata == {"source": "mill.pptx", "page": 2}
    assert (notice.title, notice.metadata) == ("Lease of the Mill", {"source": "lease.docx"})
    await search.aclose()


def test_a_bad_file_is_named_and_never_sinks_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = word(lease)
    bad = {
        "cut.docx": (whole[: len(whole) // 2], "is not a Word document that can be read (BadZipFile"),
        "locked.docx": (
            b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600),
            "needs a password, or is of an older program",
        ),
        "old.pptx": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), "save it as .pptx without one"),
        "other.docx": (deck(), "is not a Word document that can be read (ValueError"),
        "empty.docx": (word(lambda document: None), "holds no text"),
        "entities.docx": (
            with_body(f"<!DOCTYPE a [<!ENTITY b 'bomb'>]><a xmlns='{WORDS}'>&b;</a>"),
            "is not a Word document",
        ),
        "deep.docx": (with_body(f'<w:document xmlns:w="{WORDS}">{"<w:p>" * 5000}'), "is not a Word document"),
    }
    for name, (data, _) in {**bad, "good.docx": (whole, "")}.items():
        (tmp_path / name).write_bytes(data)
    problems: list[str] = []
    found = list(read_corpus(tmp_path, on_bad=lambda error: problems.append(str(error))))
    assert [passage.title for passage in found] == ["Lease of the Mill"]
    assert len(problems) == len(bad)
    for name, (_, told) in bad.items():
        assert any(name in problem and told in problem for problem in problems), (name, problems)
    monkeypatch.setattr(office, "MAX_UNPACKED_BYTES", 10_000)
    with pytest.raises(DataError, match="unpacks to over 0 MiB"):
        word_document(whole, "a")
    monkeypatch.setattr(office, "MAX_UNPACKED_BYTES", 1 << 27)
    monkeypatch.setattr(office, "MAX_PAGES", 2)
    with pytest.raises(DataError, match="has 3 pages, and the limit is 2"):
        slides_document(deck(), "a")
    monkeypatch.setattr(office, "MAX_LINE_BYTES", 20)
    with pytest.raises(DataError, match="characters of text; split it"):
        slides_document(deck(2), "a")
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "docx", None)  # as if it were not installed
    with pytest.raises(ParallelSearchError, match="pip install"):
        word_document(whole, "a")

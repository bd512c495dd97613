"""Documents that programs write, as title and text: PDF by pypdf, Word by python-docx, PowerPoint by python-pptx.

The extra `files` brings them. Nothing is run, fetched or rendered: a page that is a picture has no text, and its file is a
bad one. Of Word and PowerPoint the text is read from the XML itself, because what is in content controls, in tables inside
of tables or was inserted while changes were tracked is not in the paragraphs of those libraries.
"""

from __future__ import annotations

import io
import itertools
import logging
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from parallelsearch.errors import DataError, ParallelSearchError, require
from parallelsearch.files import MAX_LINE_BYTES
from parallelsearch.untrusted import whole

READERS = ("pypdf", "docx", "pptx")
"""The packages that read them, of which any may be missing."""
MAX_PAGES = 5_000
MAX_UNPACKED_BYTES = 4 * MAX_LINE_BYTES
"""Of a file that is an archive."""
T = TypeVar("T")
Paged = tuple[str, str, tuple[int, ...]]
"""Title, text, and where in it each page begins; no pages where nobody knows them."""
_NO_TITLE = re.compile(
    r"(?i)untitled|microsoft word|microsoft powerpoint|^word document$|^powerpoint presentation$"
    r"|\.(?:docx?|pptx?|tex|dvi|indd|qxd|pdf)$"
)
"""What programs write into the field where a person wrote nothing."""


# ---- PDF -------------------------------------------------------------------------------------------------------------


def pdf_document(data: bytes, name: str, is_enough: Callable[[int], bool] = lambda _: False) -> Paged:
    """`name` is for messages; no page is read after `is_enough` says so of the number of characters before it."""
    pypdf = require("pypdf", "files")
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # a damaged file is named once, by us
    with _reading(name, "PDF"):
        reader = pypdf.PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise DataError(name, None, "needs a password; save it without one")
        texts: list[str] = []
        num_chars = 0
        for page in _bounded(reader.pages, name):
            if texts and is_enough(num_chars):
                break
            texts.append(page.extract_text())
            num_chars += _counted(texts[-1], num_chars, name)
        written = _title(reader.metadata.title if reader.metadata is not None else None)
    text, starts = _joined(texts, name)
    return written or " ".join(text.split("\n", 1)[0].split()), text, starts


# ---- Word and PowerPoint ---------------------------------------------------------------------------------------------

_OLD_ARCHIVE = b"\xd0\xcf\x11\xe0"
_SKIPPED = frozenset(
    {
        *("pPr", "rPr", "tblPr", "tblGrid", "trPr", "tcPr", "sectPr", "sdtPr", "sdtEndPr", "bodyPr", "lstStyle"),
        *("moveFrom", "Fallback", "fld", "rt"),
    }
)
"""Elements without text of their own: how things look, what was moved away, what is there twice, numbers of slides, and how
a word is read, which stands above it."""
_HEADINGS = ("Title", "Heading 1")


def word_document(data: bytes, name: str) -> Paged:
    docx = require("docx", "files")
    with _reading(name, "Word document"):
        document = docx.Document(_archive(data, name, ".docx"))
        body = document.element.body
        text = "".join(_pieces(body))
        _counted(text, 0, name)
        styles = {style.style_id: style.name for style in document.styles if style.name in _HEADINGS}
        written = _title(document.core_properties.title) or _heading(body, styles)
    return written, _joined([text], name)[0], ()


def slides_document(data: bytes, name: str) -> Paged:
    """A slide is a page. What its notes say stands below it."""
    pptx = require("pptx", "files")
    with _reading(name, "PowerPoint file"):
        slides = pptx.Presentation(_archive(data, name, ".pptx"))
        texts: list[str] = []
        num_chars = 0
        first = ""
        for slide in _bounded(list(slides.slides), name):
            notes = slide.notes_slide.notes_placeholder if slide.has_notes_slide else None
            parts = [slide.element] if notes is None else [slide.element, notes.element]
            texts.append("\n".join("".join(_pieces(part)) for part in parts))
            num_chars += _counted(texts[-1], num_chars, name)
            if not texts[1:] and slide.shapes.title is not None:
                first = " ".join(slide.shapes.title.text_frame.text.split())
        written = _title(slides.core_properties.title) or first
    text, starts = _joined(texts, name)
    return written, text, starts


def _archive(data: bytes, name: str, kind: str) -> io.BytesIO:
    if data.startswith(_OLD_ARCHIVE):
        raise DataError(name, None, f"needs a password, or is of an older program; save it as {kind} without one")
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if sum(part.file_size for part in archive.infolist()) > MAX_UNPACKED_BYTES:
            raise DataError(name, None, f"unpacks to over {MAX_UNPACKED_BYTES >> 20} MiB; take pictures out of it")
    return io.BytesIO(data)


def _pieces(element: Iterable[Any]) -> Iterator[str]:
    """The text below an element, a line for each paragraph and for each row of a table."""
    for child in element:
        kind = _kind(child)
        if kind in _SKIPPED:
            continue
        if kind == "t":
            yield child.text or ""
        elif kind in ("tab", "noBreakHyphen"):
            yield "-" if kind == "noBreakHyphen" else " "
        elif kind in ("br", "cr"):
            yield "\n"
        elif kind == "tr":
            yield " ".join(cell for part in child if (cell := " ".join("".join(_pieces([part])).split()))) + "\n"
        else:
            yield from _pieces(child)
            if kind == "p":
                yield "\n"


def _kind(element: Any) -> str:
    """The name of an element, as both formats have it; none for a comment."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def _heading(body: Any, styles: Mapping[str, str]) -> str:
    """The first paragraph that is a title or, where there is none, a heading of the first level."""
    found: dict[str, str] = {}
    for paragraph in body.iter("{*}p"):
        style = paragraph.find("{*}pPr/{*}pStyle")
        name = None if style is None else next((styles[id] for id in style.attrib.values() if id in styles), None)
        if name is not None and name not in found:
            found[name] = " ".join("".join(_pieces(paragraph)).split())
    return next((found[name] for name in _HEADINGS if found.get(name)), "")


# ---- all of them -----------------------------------------------------------------------------------------------------


@contextmanager
def _reading(name: str, what: str) -> Iterator[None]:
    try:
        yield
    except ParallelSearchError:
        raise
    except Exception as error:  # what a damaged file makes a parser raise cannot be listed
        problem = f"is not a {what} that can be read ({type(error).__name__}: {str(error)[:100]})"
        raise DataError(name, None, problem) from error


def _bounded(pages: Sequence[T], name: str) -> Sequence[T]:
    if len(pages) > MAX_PAGES:
        raise DataError(name, None, f"the file has {len(pages)} pages, and the limit is {MAX_PAGES}; split it")
    return pages


def _counted(text: str, num_before: int, name: str) -> int:
    if num_before + len(text) > MAX_LINE_BYTES:
        raise DataError(name, None, f"has over {MAX_LINE_BYTES >> 20} Mi characters of text; split it")
    return len(text)


def _joined(texts: Sequence[str], name: str) -> tuple[str, tuple[int, ...]]:
    """The pages as one text, and where each begins in it."""
    pages = [whole(text).replace("\x00", "").strip() for text in texts]
    text = "\n\n".join(pages).lstrip()
    first = len(text) - sum(len(page) + 2 for page in pages) + 2  # pages before the text are empty
    starts = tuple(itertools.accumulate((len(page) + 2 for page in pages[:-1]), initial=first))
    if not text:
        raise DataError(name, None, "holds no text, only pictures of it; run it through text recognition first")
    return text.rstrip(), starts


def _title(given: object) -> str:
    words = " ".join(whole(given).replace("\x00", "").split()) if isinstance(given, str) else ""
    return "" if _NO_TITLE.search(words) else words

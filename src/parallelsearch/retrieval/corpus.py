"""Reading passages, with errors that name file, line and field.

A corpus is JSON Lines, a JSON array, CSV, TSV or Parquet (the text formats also as `.gz` and `.zst`), or a folder of
documents: text, Markdown, reStructuredText, HTML, PDF, Word, PowerPoint (`retrieval.documents` reads them). `read_corpus`
streams any of them as passages: one record, batch or file is in memory at a time. Several corpora are read one after the
other, as one. A bad record raises `DataError`, or goes to `on_bad` and is left out; a damaged archive always raises, because
the rest is lost.

Ids are unique: each costs about 100 bytes of memory while reading (a 64-bit hash and its line), 2 GB for 21 million.
"""

from __future__ import annotations

import bisect
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from parallelsearch.errors import DataError, ParallelSearchError, UsageError
from parallelsearch.files import (
    OnBad,
    ParquetRecords,
    fields_of,
    give,
    read_json_records,
    read_table,
)
from parallelsearch.retrieval.base import Passage
from parallelsearch.retrieval.documents import DOCUMENTS, PagedPassage, read_document
from parallelsearch.retrieval.metadata import metadata_of
from parallelsearch.untrusted import whole, whole_name

DEFAULT_CHUNK_WORDS, DEFAULT_CHUNK_OVERLAP = 100, 20
CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Scripts written without spaces, as the inside of a character class: each character counts as a word."""

Located = tuple[int | None, Passage]
Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Iterable[Passage]
"""What an index is built from: a corpus by its path, several, or passages."""
_COLUMNS = ("id", "title", "text", "contents", "url", "date")
_FIELDS, _WITHOUT_DATE = frozenset(_COLUMNS), frozenset(_COLUMNS) - {"date"}
_WORD = re.compile(rf"[{CJK}]|[^\s{CJK}]+")
_NUMBER = re.compile(r"[-+]?\d[\d.,]*")
"""What names no first column: the table has no header. Others may be called 2025."""

# ---- records ---------------------------------------------------------------------------------------------------------


def passage_of(record: Any, path: str, line: int | None) -> Passage:
    """A corpus record as a passage: `{id, title, text}` (or `content`), or Search-R1's `{id, contents: '"Title"\\nbody'}`.
    Its other fields are the passage's metadata."""
    if not isinstance(record, dict):
        raise DataError(path, line, f"expected an object with id, title and text, found {type(record).__name__}")
    written = "content" if "text" not in record and "content" in record else "text"
    if "text" not in record and "contents" in record:
        contents = record["contents"]
        if not isinstance(contents, str):
            raise DataError(path, line, f"expected a string, found {type(contents).__name__}", field="contents")
        title, newline, text = contents.partition("\n")
        title = title.strip()
        if not newline:
            title, text = "", contents
        elif len(title) > 1 and title[0] == title[-1] == '"':  # one pair only: a title may have quotes of its own
            title = title[1:-1]
        record = {**record, "title": title, "text": text}
    elif "text" not in record and "content" in record:
        record = {name if name != "content" else "text": value for name, value in record.items()}
    values: dict[str, str] = {}
    for name in ("id", "text", "title"):
        value = record.get(name)
        if value is None and name == "title":
            value = ""
        if isinstance(value, int) and name == "id" and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str):
            found = f"it is missing ({fields_of(record)})" if value is None else f"found {type(value).__name__}"
            raise DataError(path, line, f"expected a string, {found}", field=written if name == "text" else name)
        # JSON can spell half of a surrogate pair, which is not text and cannot be written as UTF-8.
        values[name] = whole(value)
    if not values["id"].strip():
        raise DataError(path, line, "is empty", field="id")
    if not values["text"].strip() and not values["title"].strip():
        raise DataError(path, line, "text and title are both empty", field="text")
    url, date = record.get("url"), record.get("date")
    is_dated = isinstance(date, str) or date is None
    return Passage(
        values["id"],
        values["title"],
        values["text"],
        whole(url) if isinstance(url, str) else None,
        whole(date) if isinstance(date, str) else None,
        metadata=metadata_of(record, _FIELDS if is_dated else _WITHOUT_DATE),
    )


def read_passages(path: str | os.PathLike[str]) -> Iterator[Passage]:
    """The passages of a file of JSON Lines, or of a JSON array, streamed."""
    for _, passage in _passages(Path(path), read_json_records(path), None):
        yield passage


def _passages(path: Path, records: Iterable[tuple[int, Any]], on_bad: OnBad | None) -> Iterator[Located]:
    for line, record in records:
        try:
            passage = passage_of(record, str(path), line)
        except DataError as error:
            give(on_bad, error)
        else:
            yield line, passage


# ---- tables ----------------------------------------------------------------------------------------------------------


def _columns(header: Sequence[str], path: Path) -> dict[str, int]:
    """Where each column is, in their order. The names of a passage's fields are compared without case and spaces; others are
    metadata, but for two with one name."""
    names = [name.strip().lower() for name in header]
    if not {"text", "contents"} & set(names):
        names = ["text" if name == "content" else name for name in names]
    for name in _COLUMNS:
        if names.count(name) > 1:
            held = ", ".join(f"'{one}'" for one, known in zip(header, names, strict=True) if known == name)
            problem = f"expected one column '{name}', found {names.count(name)} ({held}); rename or remove the others"
            raise DataError(str(path), 1, problem, field=name)
    found = {name: names.index(name) for name in _COLUMNS if name in names}
    if not {"text", "contents"} & found.keys() and (len(set(names)) < 2 or _NUMBER.fullmatch(names[0])):
        held = ", ".join(names)[:200] or "nothing"
        problem = f"expected a column 'text' (and id, title), or several with a name each, found: {held}"
        raise DataError(str(path), 1, problem, field="text")
    others = [(one.strip(), at) for at, one in enumerate(header) if names[at] and names[at] not in _FIELDS]
    numbers = Counter(name for name, _ in others)
    columns = {**{name: at for name, at in others if numbers[name] == 1}, **found}
    return dict(sorted(columns.items(), key=lambda column: column[1]))


def _row(record: dict[str, Any], id: str) -> dict[str, Any] | None:
    """The record of a row. Where the table has no text, as a price list, that is its columns with their names, and the title
    is the first of them that says something; a row without anything is None, since spreadsheets write such at the end."""
    if record.keys() & {"text", "contents"}:
        return {"id": id, **record}
    said = {name: value for name, value in record.items() if name != "url" and value is not None and str(value).strip()}
    if not said:
        return None
    title = said.pop("title", None) or next((said[name] for name in said if name not in ("id", "date")), "")
    text = "; ".join(f"{name}: {str(value).strip()}" for name, value in said.items())
    return {"id": id, **record, "title": str(title).strip(), "text": text}


def _read_csv(path: Path, on_bad: OnBad | None, before: str) -> Iterator[tuple[int, Any]]:
    """`(line, record)` of a table with a header. Without an id column the id is the number of the row, from 1, after what is
    to stand before it."""
    names, rows = read_table(path, on_bad)
    columns = _columns(names, path)
    for line, row, values in rows:
        if record := _row({name: values[at] for name, at in columns.items()}, f"{before}{row}"):
            yield line, record


def _read_parquet(path: Path, before: str) -> Iterator[tuple[int, Any]]:
    """`(row, record)`, from 1. Without an id column the id is the number of the row, as in a CSV."""
    file = ParquetRecords(path)
    columns = {name: file.names[at] for name, at in _columns(file.names, path).items()}
    columns = {name: column for name, column in columns.items() if name in _FIELDS or file.is_small(column)}
    row = 0
    for batch in file.batches(list(columns.values())):
        for found in batch:
            row += 1
            if record := _row({name: found[column] for name, column in columns.items()}, f"{before}{row}"):
                yield row, record


# ---- folders of documents --------------------------------------------------------------------------------------------

_UNSEEN = (".", "~$")
"""How names begin of what is hidden, and of what Word and PowerPoint put beside a file as long as it is open."""


def seen_files(folder: Path, on_closed: Callable[[OSError], None] | None = None) -> Iterator[Path]:
    """The files under a folder, but for unseen ones and what lies in unseen folders. A folder that may not be looked into is
    given to `on_closed`."""
    for inner, folders, names in os.walk(folder, onerror=on_closed):
        folders[:] = [name for name in folders if not name.startswith(_UNSEEN)]
        for name in names:
            if not name.startswith(_UNSEEN) and _is_file(path := Path(inner, name)):
                yield path


def _is_file(path: Path) -> bool:
    """Also what a link points to where nobody may look: whoever reads it says so."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except PermissionError:
        return True
    except OSError:  # a link to nothing, or to itself
        return False


def documents_in(folder: Path, on_closed: Callable[[OSError], None] | None = None) -> list[Path]:
    """Those of them that are documents by the ending of their names, in the order of their paths."""
    return sorted(path for path in seen_files(folder, on_closed) if path.suffix.lower() in DOCUMENTS)


def other_kinds(source: object, index: str | os.PathLike[str]) -> dict[str, int]:
    """How many files of the folders in a source are no documents, by the ending of their names, the most frequent first. An
    index that lies in one is none of them."""
    built = Path(index).resolve()
    folders = [path.resolve() for path in paths_of(source) or [] if path.is_dir()]
    files = (path for folder in folders for path in sorted(seen_files(folder)) if built not in path.parents)
    kinds = Counter(path.suffix.lower() for path in files)
    return {kind or "no ending": number for kind, number in kinds.most_common() if kind not in DOCUMENTS}


def _read_folder(folder: Path, on_bad: OnBad | None, before: str) -> Iterator[Located]:
    """Every document under a folder, in the order of their paths, which are their ids after what is to stand before
    them. An empty one is left out and never stops the others."""

    def closed(error: OSError) -> None:
        if error.filename == str(folder):
            raise UsageError(f"cannot read the folder '{folder}': {error.strerror}") from error
        give(on_bad, DataError(error.filename, None, f"the folder cannot be read: {error.strerror}"))

    files = documents_in(folder, closed)
    if not files:
        kinds = Counter(path.suffix.lower() or "no ending" for path in sorted(seen_files(folder)))
        there = ", ".join(f"{kind} {number}" for kind, number in kinds.most_common(5)) or "nothing at all"
        raise UsageError(
            f"the folder '{folder}' holds no {' '.join(DOCUMENTS)} files (found: {there}); {_instead_of(folder)}"
        )
    for path in files:
        try:
            passage = read_document(path, before + path.relative_to(folder).as_posix())
        except (ParallelSearchError, OSError) as error:  # one file's problem, also where its reader is missing
            give(on_bad, error if isinstance(error, DataError) else DataError(str(path), None, str(error)))
        else:
            if passage is not None:
                yield None, passage
            elif on_bad is not None:
                on_bad(DataError(str(path), None, "is empty: it holds no text"))


def _instead_of(folder: Path) -> str:
    """What somebody meant who names a folder without documents."""
    from parallelsearch.retrieval.store import open_manifest  # brings numpy, which reading wants for nothing else

    with suppress(ParallelSearchError):
        return f"it is an index, which is searched with {open_manifest(folder).kind}:{folder}"
    return "a corpus in one file is named itself: FOLDER/FILE.jsonl"


def chunk_passage(passage: Passage, chunk_words: int, chunk_overlap: int = DEFAULT_CHUNK_OVERLAP) -> Iterator[Passage]:
    """Pieces of at most `chunk_words` words, each repeating the last `chunk_overlap` of the one before; id `ID#0`, ... One of
    a document with pages says on which it begins, and of slides it ends where its slide does."""
    page_starts, are_slides = (
        (passage.page_starts, passage.are_slides) if isinstance(passage, PagedPassage) else ((), False)
    )
    spans = [match.span() for match in _WORD.finditer(passage.text)] or [(0, 0)]
    ends = [bisect.bisect_left(spans, (start, start)) for start in page_starts[1:]] if are_slides else []
    ends.append(len(spans))
    first = 0
    for number in range(len(spans)):
        end = ends[bisect.bisect_right(ends, first)]
        last = min(first + chunk_words, end) - 1
        start = spans[first][0]
        text = passage.text[start : spans[last][1]]
        metadata = passage.metadata
        if page_starts:
            metadata = {**(metadata or {}), "page": bisect.bisect_right(page_starts, start)}
        yield Passage(f"{passage.id}#{number}", passage.title, text, passage.url, passage.date, metadata=metadata)
        if last == len(spans) - 1:
            return
        first = end if last == end - 1 else last + 1 - chunk_overlap


# ---- the corpus ------------------------------------------------------------------------------------------------------

FORMATS = (".jsonl", ".json", ".ndjson", ".csv", ".tsv", ".parquet", *DOCUMENTS)


def read_corpus(
    path: str | os.PathLike[str],
    *,
    chunk_words: int | None = None,
    chunk_overlap: int = DEFAULT_CHUNK_OVERLAP,
    on_bad: OnBad | None = None,
) -> Iterator[Passage]:
    """The passages of a corpus, streamed, in the format its name says.

    `chunk_words` cuts every text into pieces of so many words; 0 is never, and None is 100 for documents and never for
    the rest, whose records are passages already. A second passage with an id that was seen is a bad record.
    """
    return _read_corpora([Path(path)], chunk_words, chunk_overlap, on_bad)


def _read_corpora(
    paths: Sequence[Path], chunk_words: int | None, chunk_overlap: int, on_bad: OnBad | None
) -> Iterator[Passage]:
    corpora: list[tuple[Path, Iterator[Located]]] = []
    for path, name in zip(paths, _names_of(paths), strict=True):
        records, is_text = _open_corpus(path, on_bad, name)
        words = chunk_words if chunk_words is not None else DEFAULT_CHUNK_WORDS if is_text else 0
        if words < 0 or (words and not 0 <= chunk_overlap < words):
            raise UsageError(
                f"pieces of {words} words cannot have an overlap of {chunk_overlap} with the next: say more than "
                f"{max(0, chunk_overlap)} words, or 0 (nothing is cut), and an overlap of 0 or more"
            )
        corpora.append((path, _chunked(records, words, chunk_overlap) if words else records))
    return _unique(corpora, on_bad)


def _names_of(paths: Sequence[Path]) -> list[str]:
    """What each corpus is called beside the others: by the last part of its path, or as many of the last as tell it from
    theirs. One alone needs no name."""
    if len(paths) < 2:
        return [""] * len(paths)
    parts = [tuple(map(whole_name, path.resolve().parts)) for path in paths]
    lengths = [0] * len(parts)
    for length in range(1, max(map(len, parts)) + 1):
        numbers = Counter(own[-length:] for own in parts)
        lengths = [
            known or length * (numbers[own[-length:]] == 1 or length == len(own))
            for own, known in zip(parts, lengths, strict=True)
        ]
    return ["/".join(own[-length:]) for own, length in zip(parts, lengths, strict=True)]


def _open_corpus(path: Path, on_bad: OnBad | None, name: str) -> tuple[Iterator[Located], bool]:
    """The passages, and whether they are whole documents. Where the corpus has a `name` among others, ids that are made
    here, of paths and row numbers, begin with it."""
    if path.is_dir():
        return _read_folder(path, on_bad, name and f"{name}/"), True
    suffixes = [suffix.lower() for suffix in path.suffixes]
    is_packed = bool(suffixes) and suffixes[-1] in (".gz", ".zst")
    kind = suffixes[-1 - is_packed] if len(suffixes) > is_packed else ""
    if not path.exists():
        raise UsageError(f"there is no file '{path}' (looked in {Path.cwd()})")
    if kind in (".jsonl", ".json", ".ndjson"):
        return _passages(path, read_json_records(path, on_bad), on_bad), False
    if kind in (".csv", ".tsv"):
        return _passages(path, _read_csv(path, on_bad, name and f"{name}:"), on_bad), False
    if kind == ".parquet" and not is_packed:
        return _passages(path, _read_parquet(path, name and f"{name}:"), on_bad), False
    if kind in DOCUMENTS and not is_packed:
        passage = read_document(path, name or path.name)
        return iter([] if passage is None else [(None, passage)]), True
    raise UsageError(
        f"cannot tell the format of '{path}' from its name. A corpus is a folder of documents, or a file that ends in "
        f"one of {' '.join(FORMATS)} (.jsonl, .csv and .tsv also with .gz or .zst)"
    )


def _chunked(records: Iterable[Located], words: int, overlap: int) -> Iterator[Located]:
    for line, passage in records:
        for chunk in chunk_passage(passage, words, overlap):
            yield line, chunk


def _unique(corpora: Iterable[tuple[Path, Iterable[Located]]], on_bad: OnBad | None) -> Iterator[Passage]:
    # Hashes, not strings: at 21 million ids two different ones meet with a chance of about 1 in 80,000.
    seen: dict[int, int | None] = {}
    elsewhere: set[int] = set()
    for path, records in corpora:
        elsewhere.update(seen)
        seen.clear()
        for line, passage in records:
            key = hash(passage.id)
            if key in seen or key in elsewhere:
                first = " in another corpus" if key in elsewhere else f" on line {seen[key]}" if seen[key] else ""
                problem = f"'{passage.id[:80]}' was used before{first}; every passage needs an id of its own"
                give(on_bad, DataError(str(path), line, problem, field="id"))
                continue
            seen[key] = line
            yield passage


def paths_of(source: object) -> list[Path] | None:
    """The corpora that a source names; None where it is passages."""
    if isinstance(source, str | os.PathLike):
        return [Path(source)]
    if isinstance(source, list | tuple) and source and all(isinstance(one, str | os.PathLike) for one in source):
        return [Path(one) for one in source]
    return None


def name_of(source: object) -> str:
    """What a source is called in messages."""
    return ", ".join(map(str, paths_of(source) or [])) or "passages"


def passages_of(
    source: Source,
    *,
    chunk_words: int | None = None,
    chunk_overlap: int = DEFAULT_CHUNK_OVERLAP,
    on_bad: OnBad | None = None,
) -> Iterator[Passage]:
    """What an index is built from: corpora by their paths, or passages that exist already, checked for equal ids."""
    paths = paths_of(source)
    if paths is not None:
        return _read_corpora(paths, chunk_words, chunk_overlap, on_bad)
    located: Iterator[Located] = enumerate(_only_passages(cast(Iterable[object], source)), 1)
    words = chunk_words or 0
    return _unique([(Path("passages"), _chunked(located, words, chunk_overlap) if words else located)], on_bad)


def _only_passages(source: Iterable[object]) -> Iterator[Passage]:
    for one in source:
        if not isinstance(one, Passage):
            raise UsageError(
                f"an index is built from a corpus by its path, from a list of paths, or from passages, Passage(id, title, "
                f"text); found {type(one).__name__}: {one!r:.80}"
            )
        yield one


@dataclass(slots=True)
class CorpusReport:
    """What was read: pass `skip` as `on_bad` to leave bad records out, and wrap the passages in `count`."""

    num_passages: int = 0
    num_words: int = 0
    num_skipped: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    """Why records were skipped, with how many of each; details in brackets are left out."""
    problems: list[str] = field(default_factory=list)
    """The first twenty, in full."""

    @property
    def mean_words(self) -> float:
        return self.num_words / self.num_passages if self.num_passages else 0.0

    def on_bad(self, source: object, skip_bad: bool) -> OnBad | None:
        """`skip`, or None to stop: in a folder a bad file is always left out, since the others are whole without it."""
        paths = paths_of(source) or []
        folders = [path for path in paths if path.is_dir()]
        if skip_bad or not folders:
            return self.skip if skip_bad else None

        def skip_files(error: DataError) -> None:
            bad = Path(error.path)  # a file that was named is none of a folder's, also where it lies in one
            if (bad in paths and bad not in folders) or not any(bad.is_relative_to(folder) for folder in folders):
                raise error
            self.skip(error)

        return skip_files

    def skip(self, error: DataError) -> None:
        self.num_skipped += 1
        reason = re.sub(r"\s*\(.*|'.*' |(?<!\S)\d+ ", "", error.problem[:200].partition(";")[0]).strip()
        self.reasons[reason if error.field is None else f"{error.field}: {reason}"] += 1
        if len(self.problems) < 20:
            self.problems.append(str(error))

    def count(self, passages: Iterable[Passage]) -> Iterator[Passage]:
        for passage in passages:
            self.num_passages += 1
            self.num_words += len(passage.text.split())
            yield passage

"""Reading files of records and passages, with errors that name file, line and field.

A corpus is JSON Lines, CSV, TSV or Parquet (the text formats also as `.gz` and `.zst`), or a folder of `.txt` and `.md`
files. `read_corpus` streams any of them as passages: one line, batch or file is in memory at a time. A bad record
raises `DataError`, or goes to `on_bad` and is left out; a damaged archive always raises, because the rest is lost.

Ids are unique: each costs about 100 bytes of memory while reading (a 64-bit hash and its line), 2 GB for 21 million.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from parallelsearch.errors import DataError, UsageError, require
from parallelsearch.retrieval.base import Passage

MAX_LINE_BYTES = 32 * 1024 * 1024
DEFAULT_CHUNK_WORDS, DEFAULT_CHUNK_OVERLAP = 100, 20
CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Scripts written without spaces, as the inside of a character class: each character counts as a word."""

OnBad = Callable[[DataError], None]
Located = tuple[int | None, Passage]
_COLUMNS = ("id", "title", "text", "contents", "url", "date")
_SURROGATE = re.compile("[\ud800-\udfff]")
_WORD = re.compile(rf"[{CJK}]|[^\s{CJK}]+")
_HEADING = re.compile(r"^#{1,6}[ \t]+(.+?)[ \t#]*$", re.MULTILINE)

# ---- bytes and lines -------------------------------------------------------------------------------------------------


def open_bytes(path: Path) -> BinaryIO:
    """Open for reading, decompressing `.gz` and `.zst` on the way."""
    try:
        if path.suffix == ".zst":
            return io.BufferedReader(_ZstdFile(path), 1 << 20)
        if path.suffix == ".gz":
            return io.BufferedReader(gzip.open(path, "rb"), 1 << 20)
        return path.open("rb")
    except FileNotFoundError:
        raise UsageError(f"there is no file '{path}' (looked in {Path.cwd()})") from None
    except IsADirectoryError:
        raise UsageError(f"'{path}' is a folder; a file is needed here") from None
    except OSError as error:
        raise UsageError(f"cannot read '{path}': {error.strerror or error}") from error


class _ZstdFile(io.RawIOBase):
    """All frames of a zstd file. zstandard's own stream reader ends quietly where a file was cut off; this one raises."""

    # A few bytes of zstd may stand for 128 KiB, so small steps bound what one of them can become.
    _STEP = 512

    def __init__(self, path: Path) -> None:
        import zstandard

        self._new = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj
        self._frame: Any = None
        self._file = path.open("rb")
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            data = self._file.read(self._STEP)
            if not data:
                if self._frame is not None:
                    raise EOFError("the file ends in the middle of a zstd frame")
                return 0
            pieces = []
            while data:
                self._frame = self._frame or self._new()
                pieces.append(self._frame.decompress(data))
                data = self._frame.unused_data if self._frame.eof else b""
                self._frame = None if self._frame.eof else self._frame
            self._ready = memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size

    def close(self) -> None:
        self._file.close()
        super().close()


def _read_lines(path: Path) -> Iterator[tuple[int, str | DataError]]:
    """`(line number, text)`, or what is wrong with the line. A line over the limit is passed over, never held."""
    with open_bytes(path) as file:
        number = 0
        while True:
            try:
                line = file.readline(MAX_LINE_BYTES)
                size = len(line)
                if size == MAX_LINE_BYTES and not line.endswith(b"\n"):
                    line = line[:1]
                    while (rest := file.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
                        size += len(rest)
                    size += len(rest)
            except Exception as error:  # a damaged archive fails in whatever way its format does
                raise DataError(str(path), number + 1, f"the file is damaged from here on ({error})") from error
            if not line:
                return
            number += 1
            if size > len(line):
                limit = f"the limit is {MAX_LINE_BYTES >> 20} MiB"
                yield number, DataError(str(path), number, f"the line has {size >> 20} MiB; {limit}")
                continue
            if number == 1 and line.startswith(b"\xef\xbb\xbf"):
                line = line[3:]
            yield number, _decoded(line, path, number)


def _decoded(data: bytes, path: Path, line: int | None) -> str | DataError:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        is_utf16 = data[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\x00" in data[:64]
        found = "UTF-16" if is_utf16 else f"byte 0x{data[error.start]:02x}"
        return DataError(str(path), line, f"is not UTF-8 (found {found}); convert it with: iconv -t UTF-8")


def read_jsonl(path: str | os.PathLike[str], on_bad: OnBad | None = None) -> Iterator[tuple[int, Any]]:
    """`(line number, value)` of each non-empty line. A bad line raises `DataError`, or goes to `on_bad` and is skipped."""
    path = Path(path)
    for number, line in _read_lines(path):
        try:
            if isinstance(line, DataError):
                raise line
            if line.strip():
                value = _parse_json(line, path, number)
            else:
                continue
        except DataError as error:
            _give(on_bad, error)
        else:
            yield number, value


def _parse_json(line: str, path: Path, number: int) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        hint = ""
        if number == 1 and line.strip() in ("[", "{"):
            hint = "; the file is one JSON value over many lines, and one object a line is needed: jq -c '.[]' FILE"
        raise DataError(str(path), number, f"is not JSON ({error.msg} at column {error.colno}){hint}") from None
    except RecursionError:
        raise DataError(str(path), number, "is nested too deeply to be a record") from None


def _give(on_bad: OnBad | None, error: DataError) -> None:
    if on_bad is None:
        raise error
    on_bad(error)


# ---- records ---------------------------------------------------------------------------------------------------------


def passage_of(record: Any, path: str, line: int | None) -> Passage:
    """A corpus record as a passage: `{id, title, text}`, or Search-R1's `{id, contents: '"Title"\\nbody'}`."""
    if not isinstance(record, dict):
        raise DataError(path, line, f"expected an object with id, title and text, found {type(record).__name__}")
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
    values: dict[str, str] = {}
    for name in ("id", "text", "title"):
        value = record.get(name)
        if value is None and name == "title":
            value = ""
        if isinstance(value, int) and name == "id" and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str):
            found = "it is missing" if value is None else f"found {type(value).__name__}"
            raise DataError(path, line, f"expected a string, {found}", field=name)
        # JSON can spell half of a surrogate pair, which is not text and cannot be written as UTF-8.
        values[name] = value if value.isascii() else _SURROGATE.sub("\ufffd", value)
    if not values["id"].strip():
        raise DataError(path, line, "is empty", field="id")
    if not values["text"].strip() and not values["title"].strip():
        raise DataError(path, line, "text and title are both empty", field="text")
    url, date = record.get("url"), record.get("date")
    return Passage(
        values["id"],
        values["title"],
        values["text"],
        url if isinstance(url, str) else None,
        date if isinstance(date, str) else None,
    )


def read_passages(path: str | os.PathLike[str], on_bad: OnBad | None = None) -> Iterator[Passage]:
    """The passages of a JSON Lines file, streamed."""
    for _, passage in _passages(Path(path), read_jsonl(path, on_bad), on_bad):
        yield passage


def _passages(path: Path, records: Iterable[tuple[int, Any]], on_bad: OnBad | None) -> Iterator[Located]:
    for line, record in records:
        try:
            passage = passage_of(record, str(path), line)
        except DataError as error:
            _give(on_bad, error)
        else:
            yield line, passage


# ---- tables ----------------------------------------------------------------------------------------------------------


def _columns(header: Iterable[str], path: Path) -> dict[str, int]:
    """Where each known column is; names are compared without case and spaces."""
    names = [name.strip().lower() for name in header]
    found = {name: names.index(name) for name in _COLUMNS if name in names}
    if "text" not in found and "contents" not in found:
        held = ", ".join(names)[:200] or "nothing"
        raise DataError(str(path), 1, f"expected a column 'text' (and id, title), found: {held}", field="text")
    return found


def _read_csv(path: Path, delimiter: str, on_bad: OnBad | None) -> Iterator[tuple[int, Any]]:
    """`(line, record)` of a table with a header. Without an id column the id is the number of the row, from 1."""
    csv.field_size_limit(MAX_LINE_BYTES)  # also what stops a quote that is never closed

    def lines() -> Iterator[str]:
        for _, line in _read_lines(path):
            if isinstance(line, DataError):
                _give(on_bad, line)
                line = "\n"  # keeps the reader's count of lines right; an empty row is passed over
            yield line

    reader = csv.reader(lines(), delimiter=delimiter)
    header = next(reader, [])
    columns = _columns(header, path)
    row = 0
    while True:
        try:
            values = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            _give(on_bad, DataError(str(path), reader.line_num, f"is not a row of the table ({error})"))
            continue
        if not values:
            continue
        row += 1
        if len(values) != len(header):
            problem = (
                f"has {len(values)} fields, and the header has {len(header)}; quote a field that holds {delimiter!r}"
            )
            _give(on_bad, DataError(str(path), reader.line_num, problem))
            continue
        record: dict[str, Any] = {name: values[at] for name, at in columns.items()}
        record.setdefault("id", str(row))
        yield reader.line_num, record


def _read_parquet(path: Path) -> Iterator[tuple[int, Any]]:
    """`(row, record)`, from 1, a row group in memory at a time. Without an id column the id is the number of the row."""
    parquet = require("pyarrow.parquet", "files")
    row = 0
    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            columns = {name: names[at] for name, at in _columns(names, path).items()}
            for batch in file.iter_batches(batch_size=1024, columns=list(columns.values())):
                held = {name: batch.column(column).to_pylist() for name, column in columns.items()}
                for at in range(batch.num_rows):
                    row += 1
                    record = {name: values[at] for name, values in held.items()}
                    record.setdefault("id", str(row))
                    yield row, record
    except FileNotFoundError:
        raise UsageError(f"there is no file '{path}' (looked in {Path.cwd()})") from None
    except (OSError, ValueError) as error:  # pyarrow's own errors are one or the other
        raise DataError(str(path), row + 1, f"the file is damaged, or not Parquet ({error})") from error


# ---- folders of text -------------------------------------------------------------------------------------------------


def _read_folder(folder: Path, on_bad: OnBad | None) -> Iterator[Located]:
    """Every `.txt` and `.md` file under a folder, hidden ones left out, in the order of their paths."""
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".txt", ".md") and path.is_file())
    files = [path for path in files if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    if not files:
        raise UsageError(f"the folder '{folder}' holds no .txt or .md files; for another format name the file itself")
    for path in files:
        try:
            passage = _read_text(path, path.relative_to(folder).as_posix())
        except DataError as error:
            _give(on_bad, error)
        else:
            if passage is not None:
                yield None, passage


def _read_text(path: Path, name: str) -> Passage | None:
    """A text file as one passage: its title is the first Markdown heading or the file's name. None if it is empty."""
    with open_bytes(path) as file:
        data = file.read(MAX_LINE_BYTES + 1)
    if len(data) > MAX_LINE_BYTES:
        raise DataError(str(path), None, f"the file has over {MAX_LINE_BYTES >> 20} MiB, the limit of a text file")
    text = _decoded(data.removeprefix(b"\xef\xbb\xbf"), path, None)
    if isinstance(text, DataError):
        raise text
    if not text.strip():
        return None
    heading = _HEADING.search(text) if path.suffix.lower() == ".md" else None
    return Passage(name, heading.group(1) if heading else path.stem, text.strip())


def chunk_passage(passage: Passage, chunk_words: int, chunk_overlap: int = DEFAULT_CHUNK_OVERLAP) -> Iterator[Passage]:
    """Pieces of at most `chunk_words` words, each repeating the last `chunk_overlap` of the one before; id `ID#0`, ..."""
    spans = [match.span() for match in _WORD.finditer(passage.text)] or [(0, 0)]
    first = 0
    for number in range(len(spans)):
        last = min(first + chunk_words, len(spans)) - 1
        text = passage.text[spans[first][0] : spans[last][1]]
        yield Passage(f"{passage.id}#{number}", passage.title, text, passage.url, passage.date)
        if last == len(spans) - 1:
            return
        first = last + 1 - chunk_overlap


# ---- the corpus ------------------------------------------------------------------------------------------------------

FORMATS = (".jsonl", ".json", ".ndjson", ".csv", ".tsv", ".parquet", ".txt", ".md")


def read_corpus(
    path: str | os.PathLike[str],
    *,
    chunk_words: int | None = None,
    chunk_overlap: int = DEFAULT_CHUNK_OVERLAP,
    on_bad: OnBad | None = None,
) -> Iterator[Passage]:
    """The passages of a corpus, streamed, in the format its name says.

    `chunk_words` cuts every text into pieces of so many words; 0 is never, and None is 100 for text files and never for
    the rest, whose records are passages already. A second passage with an id that was seen is a bad record.
    """
    path = Path(path)
    records, is_text = _open_corpus(path, on_bad)
    words = chunk_words if chunk_words is not None else DEFAULT_CHUNK_WORDS if is_text else 0
    if words < 0 or (words and not 0 <= chunk_overlap < words):
        raise UsageError(f"an overlap of {chunk_overlap} words needs longer pieces than {words} words")
    return _unique(path, _chunked(records, words, chunk_overlap) if words else records, on_bad)


def _open_corpus(path: Path, on_bad: OnBad | None) -> tuple[Iterator[Located], bool]:
    """The passages, and whether they are whole text files."""
    if path.is_dir():
        return _read_folder(path, on_bad), True
    suffixes = [suffix.lower() for suffix in path.suffixes]
    is_packed = bool(suffixes) and suffixes[-1] in (".gz", ".zst")
    kind = suffixes[-1 - is_packed] if len(suffixes) > is_packed else ""
    if not path.exists():
        raise UsageError(f"there is no file '{path}' (looked in {Path.cwd()})")
    if kind in (".jsonl", ".json", ".ndjson"):
        return _passages(path, read_jsonl(path, on_bad), on_bad), False
    if kind in (".csv", ".tsv"):
        return _passages(path, _read_csv(path, "," if kind == ".csv" else "\t", on_bad), on_bad), False
    if kind == ".parquet" and not is_packed:
        return _passages(path, _read_parquet(path), on_bad), False
    if kind in (".txt", ".md") and not is_packed:
        passage = _read_text(path, path.name)
        return iter([] if passage is None else [(None, passage)]), True
    raise UsageError(
        f"cannot tell the format of '{path}' from its name. A corpus is a folder of .txt and .md files, or a file that "
        f"ends in one of {' '.join(FORMATS)} (text formats but .txt and .md also with .gz or .zst)"
    )


def _chunked(records: Iterable[Located], words: int, overlap: int) -> Iterator[Located]:
    for line, passage in records:
        for chunk in chunk_passage(passage, words, overlap):
            yield line, chunk


def _unique(path: Path, records: Iterable[Located], on_bad: OnBad | None) -> Iterator[Passage]:
    # Hashes, not strings: at 21 million ids two different ones meet with a chance of about 1 in 80,000.
    seen: dict[int, int | None] = {}
    for line, passage in records:
        key = hash(passage.id)
        if key in seen:
            first = "" if seen[key] is None else f" on line {seen[key]}"
            problem = f"'{passage.id[:80]}' was used before{first}; every passage needs an id of its own"
            _give(on_bad, DataError(str(path), line, problem, field="id"))
            continue
        seen[key] = line
        yield passage


def passages_of(
    source: str | os.PathLike[str] | Iterable[Passage],
    *,
    chunk_words: int | None = None,
    chunk_overlap: int = DEFAULT_CHUNK_OVERLAP,
    on_bad: OnBad | None = None,
) -> Iterator[Passage]:
    """What an index is built from: a corpus by its path, or passages that exist already, checked for equal ids."""
    if isinstance(source, str | os.PathLike):
        return read_corpus(source, chunk_words=chunk_words, chunk_overlap=chunk_overlap, on_bad=on_bad)
    located: Iterator[Located] = ((number, passage) for number, passage in enumerate(source, 1))
    words = chunk_words or 0
    return _unique(Path("passages"), _chunked(located, words, chunk_overlap) if words else located, on_bad)


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

    def skip(self, error: DataError) -> None:
        self.num_skipped += 1
        reason = re.sub(r"\s*\(.*|'.*' |\d+ ", "", error.problem.partition(";")[0]).strip()
        self.reasons[reason if error.field is None else f"{error.field}: {reason}"] += 1
        if len(self.problems) < 20:
            self.problems.append(str(error))

    def count(self, passages: Iterable[Passage]) -> Iterator[Passage]:
        for passage in passages:
            self.num_passages += 1
            self.num_words += len(passage.text.split())
            yield passage

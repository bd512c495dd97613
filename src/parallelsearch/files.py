"""Files: reading records with errors that name file and line, and writing that is whole or not at all.

`read_jsonl` streams JSON Lines, plain, gzip or zstd, one line in memory at a time. A bad line raises `DataError`, or goes to
`on_bad` and is left out; a damaged archive always raises, because the rest is lost. What people bring may also be one JSON
array of records (`read_json_records`) or a table (`read_table`), streamed alike. `whole_file` and `whole_folder` are the
only places where the package replaces what a reader may be reading: everything is written beside the target and takes its
name at the end, so a reader sees the old one or the new one, never half of one. What is appended to (records, caches,
indexes under way) is the business of the module that owns it.

`ParquetRecords` is the only reader of Parquet. A file of a few kilobytes can stand for gigabytes there, so what it unpacks
to is bounded: by what its directory says, and for each record by the limit of a line. A file whose directory lies about a
page is held to that page's own size only.
"""

from __future__ import annotations

import codecs
import csv
import fcntl
import gzip
import io
import itertools
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from parallelsearch.errors import DataError, UsageError, require
from parallelsearch.untrusted import whole, whole_value

MAX_LINE_BYTES = 32 * 1024 * 1024
MAX_COLUMN_BYTES = 64 * 1024 * 1024
"""A column of a row group may unpack to this, or to `MAX_COLUMN_RATIO` times its size in the file."""
MAX_COLUMN_RATIO = 100
MAX_COLUMN_VALUES = 1 << 26
LOCK_FILE = ".lock"
PathLike = str | os.PathLike[str]
OnBad = Callable[[DataError], None]
_DRAFT = re.compile(r"\..+\.\d+-\d+\.tmp")
_STEP_BYTES = 1 << 20
_NO_BLANK = re.compile(r"[^ \t\r\n]")
_HALF = re.compile(r"\\u[dD][89a-fA-F]")
_numbers = itertools.count()

# ---- reading ---------------------------------------------------------------------------------------------------------


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


def refuse_pipe(path: Path) -> None:
    """Refuse what can be read only once: who opens it again would wait for ever."""
    with suppress(OSError):  # what is not there is told by whoever opens it
        if not (path.is_file() or path.is_dir()) and path.exists():
            raise UsageError(
                f"'{path}' is a pipe or a device, and is read more than once here; write it into a file first"
            )


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


def kind_of_name(path: PathLike) -> str:
    """How the name of a file ends, in small letters and without that of an archive: `.csv` of `Questions.CSV.gz`."""
    name = Path(Path(path).name.lower())
    return name.with_suffix("").suffix if name.suffix in (".gz", ".zst") else name.suffix


def read_lines(path: Path) -> Iterator[tuple[int, str | DataError]]:
    """The lines of a file, as `lines_of` gives them."""
    with open_bytes(path) as file:
        yield from lines_of(file, path)


def lines_of(file: BinaryIO, path: Path) -> Iterator[tuple[int, str | DataError]]:
    """`(line number, text)`, or what is wrong with the line, each as soon as it is there. A line over the limit is passed
    over, never held. `path` is the name of it for messages."""
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
        yield number, decoded(line, path, number)


def decoded(data: bytes, path: Path, line: int | None) -> str | DataError:
    """The text of these bytes, or what is wrong with them."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        with suppress(UnicodeDecodeError):  # half of a surrogate pair, which earlier releases wrote
            return whole(data.decode("utf-8", "surrogatepass"))
        is_utf16 = data[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\x00" in data[:64]
        found = "UTF-16" if is_utf16 else f"byte 0x{data[error.start]:02x}"
        return DataError(
            str(path),
            line,
            f"is not UTF-8 (found {found}); convert it with: "
            f"iconv -f {'UTF-16' if is_utf16 else 'WINDOWS-1252'} -t UTF-8 FILE, if that is what it is",
        )


def read_jsonl(path: PathLike, on_bad: OnBad | None = None) -> Iterator[tuple[int, Any]]:
    """`(line number, value)` of each non-empty line. A bad line raises `DataError`, or goes to `on_bad` and is skipped."""
    path = Path(path)
    for number, line in read_lines(path):
        try:
            if isinstance(line, DataError):
                raise line
            if line.strip():
                value = parse_json(line, path, number)
            else:
                continue
        except DataError as error:
            give(on_bad, error)
        else:
            yield number, value


def read_json_records(path: PathLike, on_bad: OnBad | None = None) -> Iterator[tuple[int, Any]]:
    """`(number, value)` of JSON Lines, or of one JSON array, by what the file begins with. A record of an array is numbered
    where it stands, from 1; where its text is broken nobody knows how it goes on, so that always raises."""
    path = Path(path)
    refuse_pipe(path)
    with open_bytes(path) as file:
        try:
            is_array = file.read(1024).removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"[")
        except Exception:  # a damaged archive is told by whoever reads on
            is_array = False
    return _read_array(path) if is_array else read_jsonl(path, on_bad)


def _read_array(path: Path) -> Iterator[tuple[int, Any]]:
    """The records of an array, one in memory at a time: files of half a gigabyte have it in a single line."""
    decode, text, number, problem, is_closed = json.JSONDecoder().raw_decode, "", 0, "", False
    for piece in _text_pieces(path):
        text, at = text + piece, 0
        while not is_closed:
            # Before each record stands a bracket or a comma. It is whole if one stands behind it, too: half a number is one.
            mark = _after_blanks(text, at)
            start = _after_blanks(text, mark + 1)
            if text[mark : mark + 1] == "]" or (number == 0 and text[start : start + 1] == "]"):
                is_closed, at = True, text.index("]", mark) + 1
                break
            try:
                value, end = decode(text, start)
                end = _after_blanks(text, end)
                behind = text[end : end + 1]
                problem = (
                    "" if behind in (",", "]") else f"has '{behind}' behind it: a comma or a bracket belongs there"
                )
            except json.JSONDecodeError as error:
                problem = f"is not JSON ({error.msg})"
            except RecursionError:
                raise _broken(path, number + 1, "is nested too deeply to be a record") from None
            except ValueError as error:  # a number of thousands of digits
                raise _broken(path, number + 1, f"holds a value that cannot be read ({error})") from None
            if problem:
                break  # unless more of the text mends it
            number, at = number + 1, end
            yield number, whole_value(value) if _HALF.search(text, start, end) else value
        text = text[at:]
        if is_closed and text.strip():
            raise DataError(str(path), None, f"its array ends after {number} records, and the file goes on behind it")
        if len(text) > MAX_LINE_BYTES:
            raise _broken(path, number + 1, f"{problem}, or has over {MAX_LINE_BYTES >> 20} MiB")
    if not is_closed:
        raise _broken(path, number + 1, problem)


def _after_blanks(text: str, at: int) -> int:
    found = _NO_BLANK.search(text, at)
    return len(text) if found is None else found.start()


def _broken(path: Path, number: int, problem: str) -> DataError:
    return DataError(str(path), None, f"record {number} of its array {problem}")


def _text_pieces(path: Path) -> Iterator[str]:
    """The text of a file, a piece at a time."""
    read = codecs.getincrementaldecoder("utf-8-sig")().decode
    with open_bytes(path) as file:
        data = b" "
        while data:
            try:
                data = file.read(_STEP_BYTES)
                piece = read(data, final=not data)
            except UnicodeDecodeError as error:
                found = f"byte 0x{error.object[error.start]:02x}"
                raise DataError(str(path), None, f"is not UTF-8 (found {found})") from None
            except Exception as error:  # as in `read_lines`
                raise DataError(str(path), None, f"the file is damaged ({error})") from error
            yield piece


def fields_of(record: Mapping[str, Any]) -> str:
    """What a record has, for the message about a field that it lacks."""
    return f"found {', '.join(map(str, record))[:200]}" if record else "found no field"


def _delimiter_of(path: Path, header: str) -> str:
    """Tabs in .tsv, else commas; semicolons where the header has these alone, as spreadsheets write them in countries that
    have a comma in their numbers."""
    if kind_of_name(path) == ".tsv":
        return "\t"
    return ";" if ";" in header and "," not in header else ","


def read_table(path: PathLike, on_bad: OnBad | None = None) -> tuple[list[str], Iterator[tuple[int, int, list[str]]]]:
    """The names of a table's columns, and `(line, row, values)` of each row; rows count from 1."""
    path = Path(path)
    refuse_pipe(path)
    csv.field_size_limit(MAX_LINE_BYTES)  # also what stops a quote that is never closed

    def lines() -> Iterator[str]:
        for _, line in read_lines(path):
            if isinstance(line, DataError):
                give(on_bad, line)
                line = "\n"  # keeps the reader's count of lines right; an empty row is passed over
            yield line

    text = lines()
    first = next(text, "")
    delimiter = _delimiter_of(path, first)
    reader = csv.reader(itertools.chain([first] if first else [], text), delimiter=delimiter)
    try:
        names = [name.strip() for name in next(reader, [])]
    except csv.Error as error:
        raise DataError(str(path), 1, f"is not the header of a table ({error})") from None

    def rows() -> Iterator[tuple[int, int, list[str]]]:
        row = 0
        while True:
            try:
                values = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                give(on_bad, DataError(str(path), reader.line_num, f"is not a row of the table ({error})"))
                continue
            if not values:
                continue
            row += 1
            if len(values) == len(names):
                yield reader.line_num, row, values
                continue
            problem = (
                f"has {len(values)} fields, and the header has {len(names)}; quote a field that holds {delimiter!r}"
            )
            give(on_bad, DataError(str(path), reader.line_num, problem))

    return names, rows()


def parse_json(line: str, path: Path, number: int | None) -> Any:
    """The value of a line, every text in it whole; `DataError` if there is none."""
    try:
        value = json.loads(line)
        return whole_value(value) if _HALF.search(line) else value
    except json.JSONDecodeError as error:
        hint = ""
        if number == 1 and line.strip() in ("[", "{"):
            hint = "; the file is one JSON value over many lines, and one object a line is needed: jq -c '.[]' FILE"
        elif number == 1 and not line.lstrip().startswith(("{", "[")):
            hint = "; one JSON object a line is needed"
        raise DataError(str(path), number, f"is not JSON ({error.msg} at column {error.colno}){hint}") from None
    except RecursionError:
        raise DataError(str(path), number, "is nested too deeply to be a record") from None
    except ValueError as error:  # a number of thousands of digits
        raise DataError(str(path), number, f"holds a value that cannot be read ({error})") from None


def read_json(path: PathLike) -> Any:
    """The value of a file, every text in it whole. `DataError` if it has none, `FileNotFoundError` if there is no file."""
    path = Path(path)
    try:
        text = decoded(path.read_bytes(), path, None)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DataError(str(path), None, f"cannot be read ({error.strerror or error})") from error
    if isinstance(text, DataError):
        raise text
    return parse_json(text, path, None)


class ParquetRecords:
    """The records of a Parquet file, a few at a time: `names` are its columns, `schema` is their Arrow schema.

    Texts are read as references to the file's dictionary, so that one text in a million rows is in memory once until its
    record is made.
    """

    _BATCH = 1024

    def __init__(self, path: PathLike) -> None:
        self._path = Path(path)
        refuse_pipe(self._path)
        self._parquet = require("pyarrow.parquet", "files")
        with self._explained(), self._parquet.ParquetFile(self._path) as file:
            self.names: list[str] = file.schema_arrow.names
            self.schema = file.schema_arrow
            self.num_rows: int = file.metadata.num_rows
            self._texts = sorted(self._checked(file.metadata))

    def _checked(self, metadata: Any) -> set[str]:
        """The columns that hold texts by reference. Raises `DataError` for one that unpacks to too much."""
        texts = set()
        for group in range(metadata.num_row_groups):
            for at in range(metadata.num_columns):
                column = metadata.row_group(group).column(at)
                if column.physical_type == "BYTE_ARRAY" and column.has_dictionary_page:
                    texts.add(column.path_in_schema)
                packed, unpacked = column.total_compressed_size, column.total_uncompressed_size
                if unpacked > max(MAX_COLUMN_BYTES, MAX_COLUMN_RATIO * packed):
                    what = f"{packed:,} bytes unpack to {unpacked:,}; the limit is {MAX_COLUMN_RATIO} times"
                elif column.num_values > MAX_COLUMN_VALUES:
                    what = f"row group {group + 1} has {column.num_values:,} values; the limit is {MAX_COLUMN_VALUES:,}"
                else:
                    continue
                raise DataError(
                    str(self._path), None, f"{what}: write it with smaller row groups", column.path_in_schema
                )
        return texts

    def is_small(self, name: str) -> bool:
        """Whether a column holds single words and numbers: no lists (vectors), no records, no bytes (pictures)."""
        types, kind = require("pyarrow.types", "files"), self.schema.field(name).type
        return not (types.is_nested(kind) or "binary" in str(kind))

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        return enumerate((record for batch in self.batches() for record in batch), start=1)

    def batches(self, columns: list[str] | None = None) -> Iterator[list[dict[str, Any]]]:
        """Records in lists; a list holds no more than a line may, and a record that is larger raises `DataError`."""
        row = 0
        with self._explained(), self._parquet.ParquetFile(self._path, read_dictionary=self._texts) as file:
            groups = range(file.num_row_groups)  # one by one: each has dictionaries of its own
            for batch in itertools.chain.from_iterable(
                file.iter_batches(batch_size=self._BATCH, row_groups=[group], columns=columns) for group in groups
            ):
                parts = [batch]
                while parts:
                    part = parts.pop()
                    size = sum(_unpacked_bytes(column) for column in part.columns)
                    if size > MAX_LINE_BYTES and part.num_rows > 1:
                        middle = part.num_rows // 2
                        parts += [part.slice(middle), part.slice(0, middle)]
                        continue
                    if size > MAX_LINE_BYTES:
                        what = f"the record has {size:,} bytes, the limit is {MAX_LINE_BYTES:,}"
                        raise DataError(str(self._path), row + 1, what)
                    values = [_decoded(column).to_pylist() for column in part.columns]
                    yield [
                        dict(zip(part.schema.names, row_values, strict=True))
                        for row_values in zip(*values, strict=True)
                    ]
                    row += part.num_rows

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except DataError:
            raise
        except FileNotFoundError:
            raise UsageError(f"there is no file '{self._path}' (looked in {Path.cwd()})") from None
        except (OSError, ValueError) as error:  # what pyarrow raises for a file that is not what its name says
            raise DataError(str(self._path), None, f"is damaged, or not Parquet ({error})") from error


def _decoded(array: Any) -> Any:
    return array.dictionary_decode() if hasattr(array, "dictionary_decode") else array


def _unpacked_bytes(array: Any) -> int:
    """What an Arrow array comes to when each of its values stands for itself."""
    arrow, compute = require("pyarrow", "files"), require("pyarrow.compute", "files")
    kind = array.type
    if arrow.types.is_dictionary(kind):
        if arrow.types.is_integer(kind.value_type) or not len(array.dictionary):
            return int(array.nbytes)
        return int(compute.sum(compute.binary_length(array.dictionary).take(array.indices)).as_py() or 0)
    if arrow.types.is_struct(kind):
        return sum(_unpacked_bytes(field) for field in array.flatten())
    if arrow.types.is_map(kind):
        array = array.cast(arrow.list_(arrow.struct([("key", kind.key_type), ("value", kind.item_type)])))
    if arrow.types.is_list(array.type) or arrow.types.is_large_list(array.type):
        return 8 * len(array) + _unpacked_bytes(array.flatten())
    return int(array.nbytes)


def give(on_bad: OnBad | None, error: DataError) -> None:
    """Raise the error, or hand it to whoever wants to go on without the record."""
    if on_bad is None:
        raise error
    on_bad(error)


# ---- writing ---------------------------------------------------------------------------------------------------------


@contextmanager
def whole_file(path: PathLike, *, is_synced: bool = False) -> Iterator[Path]:
    """A draft to write to, by whatever means; it takes the name `path` when the block ends, and is removed if it fails.

    The draft lies in the same folder, because a rename is one step only inside a file system, and has the process and a
    number in its name, so that two writers of one file never share it. `is_synced` puts the bytes on the disk first: then a
    loss of power, and not only a killed process, leaves the old file or the new one.
    """
    target = Path(path)
    draft = target.with_name(f".{target.name}.{os.getpid()}-{next(_numbers)}.tmp")
    try:
        yield draft
        if is_synced:
            sync(draft)
        draft.replace(target)
    except BaseException:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def write_whole(path: PathLike, data: str | bytes, *, is_synced: bool = False) -> None:
    """Put these bytes, or this text as UTF-8, in the place of a file."""
    content = whole(data).encode("utf-8") if isinstance(data, str) else data
    with whole_file(path, is_synced=is_synced) as draft:
        draft.write_bytes(content)


def write_json(path: PathLike, value: Any, *, indent: int | None = 2, is_synced: bool = False) -> None:
    """Put a JSON value in the place of a file."""
    write_whole(path, to_json(value, indent=indent) + "\n", is_synced=is_synced)


def to_json(value: Any, *, indent: int | None = None) -> str:
    """A value as JSON that can be written and read back: readable letters, and no half of a surrogate pair."""
    return whole(json.dumps(value, indent=indent, ensure_ascii=False))


def write_lines(path: PathLike, lines: Iterable[str], *, is_synced: bool = False) -> int:
    """Put these lines, without their ends, in the place of a file; they may come from reading it. Returns how many."""
    count = 0
    with whole_file(path, is_synced=is_synced) as draft, draft.open("w", encoding="utf-8") as file:
        for line in lines:
            file.write(whole(line) + "\n")
            count += 1
    return count


@contextmanager
def whole_folder(path: PathLike) -> Iterator[Path]:
    """A folder to fill, which takes the name `path` when the block ends; nothing may be there yet. Makes the parents."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        yield draft
        draft.chmod(0o755)  # mkdtemp's folders are for their owner alone
        draft.replace(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


@contextmanager
def held_folder(path: PathLike, otherwise: str) -> Iterator[Path]:
    """A folder that one process at a time writes to; it is made if it is not there, and goes again if nothing was written to
    it. `UsageError` if another holds it (then `otherwise` says what to do) or it cannot be written to. However the process
    ends, the kernel lets go of it."""
    folder = Path(path)
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise UsageError(f"cannot write to '{folder}': {error.strerror or error}") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"another run writes to '{folder}' just now; wait for it or {otherwise}") from None
        try:
            yield folder
        finally:
            if is_new and os.listdir(folder) == [LOCK_FILE]:
                (folder / LOCK_FILE).unlink()
                folder.rmdir()
    finally:
        os.close(lock)


def is_draft(path: Path) -> bool:
    """Whether this is what a killed `whole_file` left behind."""
    return _DRAFT.fullmatch(path.name) is not None


def remove_drafts(folder: PathLike) -> None:
    """Remove what killed writers left under a folder. For whoever holds the folder's lock: a live draft looks the same."""
    for path in Path(folder).rglob(".*.tmp"):
        if is_draft(path):
            path.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Put a file, or a folder's list of names, on the disk for good."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)

"""The index folder: passages on disk, a manifest that says what is in it, and a build that is all or nothing.

An index is a folder with `manifest.json`, the passages (`passages.bin`, one JSON array each, and `passages.offsets`,
little-endian int64) and the files of its kind. Its format is 1, or 2 where passages have metadata, the sixth value of the
array: an index without any is what it always was. It is built in a sibling folder, `OUT.partial`, and renamed when every
file is on the disk and listed in the manifest. A build that was killed never looks like an index; one that was started
with a `resume_key` goes on where it was. This module does not know what BM25 or a vector is.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import mmap
import os
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from parallelsearch import __version__
from parallelsearch.errors import DataError, IndexDamagedError, ParallelSearchError, UsageError
from parallelsearch.files import PathLike, is_draft, remove_drafts, sync, write_json
from parallelsearch.retrieval.base import Passage
from parallelsearch.retrieval.metadata import METADATA_SHA256, Metadata, bounded

FORMAT_VERSION, FORMAT_WITH_METADATA = 1, 2
MANIFEST = "manifest.json"
PASSAGES, OFFSETS = "passages.bin", "passages.offsets"
_MARKER = "partial.json"  # in a folder that is being built: whose build it is
_OFFSET_TYPE = np.dtype("<i8")
_BLOCK_BYTES = 1 << 22

# ---- the manifest ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an index holds. `corpus_sha256` is of the stored passages in their order, whatever file they came from, so
    that two indexes of the same passages have the same one. Metadata changes nothing that is found or read: it has a hash
    of its own, where there is any."""

    kind: str
    corpus_sha256: str
    num_passages: int
    settings: dict[str, Any]
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Relative name -> `{"bytes", "sha256"}`, the manifest itself left out."""
    format_version: int = FORMAT_VERSION
    package_version: str = ""
    created: str = ""
    metadata_sha256: str | None = None

    @property
    def num_bytes(self) -> int:
        return sum(int(entry["bytes"]) for entry in self.files.values())

    def describe(self) -> dict[str, Any]:
        """For `Retriever.describe`: what tells this index from another; nothing that depends on when it was built."""
        known = {} if self.metadata_sha256 is None else {METADATA_SHA256: self.metadata_sha256}
        return {
            "kind": self.kind,
            "corpus_sha256": self.corpus_sha256,
            "num_passages": self.num_passages,
            "settings": dict(self.settings),
            **known,
        }


def open_manifest(folder: PathLike, kind: str | None = None, *, verify: bool = False) -> Manifest:
    """The manifest of a finished, whole index of this kind. Sizes are checked always, hashes with `verify`.

    Anything else raises `IndexDamagedError`, which says what was found and what to type.
    """
    folder = Path(folder)
    build, as_it_is = index_command(str(folder), kind), f"--search {shlex.quote(f'files:{folder}')}"
    if not folder.is_dir():
        if folder.is_file():
            build = index_command("DIR", kind, str(folder))
            raise IndexDamagedError(
                f"'{folder}' is a file, not an index. If it is a corpus, search it as it is, {as_it_is}, or build an index "
                f"with: {build}"
            )
        what = "is no folder" if folder.exists() else "does not exist"
        left = _leftovers(folder)
        raise IndexDamagedError(f"the index '{folder}' {what}{left}. Build it with: {build}")
    again = f"Build it again with: {build} --overwrite"
    try:
        record = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        if (folder / _MARKER).exists():
            raise IndexDamagedError(
                f"'{folder}' is an unfinished build, not an index. Run the command that started it again"
            ) from None
        held = sorted(entry.name for entry in folder.iterdir())[:5]
        raise IndexDamagedError(
            f"'{folder}' has no {MANIFEST}, so it is not an index (found: {', '.join(held) or 'nothing'}). Documents in it "
            f"are searched as they are, {as_it_is}; an index is built elsewhere with: {index_command('DIR', kind)}"
        ) from None
    except (OSError, ValueError) as error:
        raise IndexDamagedError(f"{folder / MANIFEST} cannot be read ({error}). {again}") from error
    manifest = _manifest_of(record, folder, again)
    if kind is not None and manifest.kind != kind:
        raise IndexDamagedError(
            f"'{folder}' is an index of kind '{manifest.kind}', and '{kind}' is needed. Use the address "
            f"{manifest.kind}:{folder}, or build the other kind with: {index_command('DIR', kind)}"
        )
    for name, entry in manifest.files.items():
        _check_file(folder, name, entry, verify, again)
    return manifest


def index_command(folder: str, kind: str | None, corpus: str = "CORPUS") -> str:
    """What to type to build an index. BM25 is what the command builds when no kind is named."""
    command = f"parallelsearch index {shlex.quote(corpus)} --out {shlex.quote(folder)}"
    return command + ("" if kind in (None, "bm25") else f" --kind {kind}")


def _leftovers(folder: Path) -> str:
    if _aside(folder).is_dir():
        return f" (its last version is in '{_aside(folder)}': a replacement was interrupted; rename it back)"
    if (partial_folder(folder) / _MARKER).exists():
        return f" (there is an unfinished build in '{partial_folder(folder)}')"
    return ""


def _manifest_of(record: Any, folder: Path, again: str) -> Manifest:
    def damaged(problem: str) -> IndexDamagedError:
        return IndexDamagedError(f"{folder / MANIFEST}: {problem}. {again}")

    if not isinstance(record, dict):
        raise damaged(f"expected an object, found {type(record).__name__}")
    version = record.get("format_version")
    if version not in (FORMAT_VERSION, FORMAT_WITH_METADATA):
        raise damaged(
            f"the index has format {version!r} (written by parallelsearch {record.get('package_version', 'unknown')}), "
            f"and this version reads formats {FORMAT_VERSION} and {FORMAT_WITH_METADATA}"
        )
    shapes: dict[str, type] = {
        "kind": str,
        "corpus_sha256": str,
        "num_passages": int,
        "settings": dict,
        "files": dict,
        "package_version": str,
        "created": str,
    }
    for name, shape in shapes.items():
        if not isinstance(record.get(name), shape):
            raise damaged(f"field '{name}' is missing or not of type {shape.__name__}")
    for name, entry in record["files"].items():
        if not isinstance(entry, dict) or not isinstance(entry.get("bytes"), int):
            raise damaged(f"field 'files' has no size for '{name}'")
    return Manifest(
        format_version=version,
        metadata_sha256=record.get(METADATA_SHA256),
        **{name: record[name] for name in shapes},
    )


def _check_file(folder: Path, name: str, entry: Mapping[str, Any], verify: bool, again: str) -> None:
    path = folder / name
    try:
        size = path.stat().st_size
    except OSError:
        raise IndexDamagedError(f"the index '{folder}' is incomplete: {name} is missing. {again}") from None
    if size != entry["bytes"]:
        raise IndexDamagedError(
            f"the index '{folder}' is damaged: {name} has {size} bytes, {entry['bytes']} were written. {again}"
        )
    if verify and sha256_of(path) != entry.get("sha256"):
        raise IndexDamagedError(f"the index '{folder}' is damaged: the contents of {name} have changed. {again}")


def sha256_of(path: PathLike) -> str:
    """The hash of a file, read in blocks."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ---- the passages ----------------------------------------------------------------------------------------------------


class PassageWriter:
    """Appends passages to a folder. Holds nothing but a file buffer, so a corpus of any size goes through."""

    def __init__(self, folder: PathLike) -> None:
        self._passages = open(Path(folder) / PASSAGES, "wb", buffering=_BLOCK_BYTES)  # noqa: SIM115 - closed in close()
        self._offsets = open(Path(folder) / OFFSETS, "wb", buffering=_BLOCK_BYTES)  # noqa: SIM115 - closed in close()
        self._hash, self._metadata_hash = hashlib.sha256(), hashlib.sha256()
        self._has_metadata = False
        self._at = 0
        self.num_passages = 0
        self._offsets.write((0).to_bytes(8, "little"))

    def append(self, passage: Passage) -> int:
        """Write one passage; returns its row."""
        data = _encode(passage)
        self._hash.update(data)
        if (with_metadata := _encode_metadata(passage)) is not None:
            data = with_metadata
            self._metadata_hash.update(data)
            self._has_metadata = True
        self._passages.write(data)
        self._at += len(data)
        self._offsets.write(self._at.to_bytes(8, "little"))
        self.num_passages += 1
        return self.num_passages - 1

    @property
    def corpus_sha256(self) -> str:
        """Of all passages so far, with their order; complete once the last one is in."""
        return self._hash.hexdigest()

    @property
    def metadata_sha256(self) -> str | None:
        """Of all passages so far that have metadata; None if there are none."""
        return self._metadata_hash.hexdigest() if self._has_metadata else None

    def close(self) -> None:
        for file in (self._passages, self._offsets):
            if not file.closed:
                file.flush()
                os.fsync(file.fileno())
                file.close()

    def __enter__(self) -> PassageWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _encode(passage: Passage, metadata: Metadata | None = None) -> bytes:
    fields: list[Any] = [passage.id, passage.title, passage.text]
    if passage.url is not None or passage.date is not None or metadata is not None:
        fields += [passage.url, passage.date]
    if metadata is not None:
        fields.append(metadata)
    # A lone surrogate cannot be UTF-8; the corpus reader has none, but passages may come from elsewhere.
    return (json.dumps(fields, ensure_ascii=False, separators=(",", ":")) + "\n").encode("utf-8", errors="replace")


def _encode_metadata(passage: Passage) -> bytes | None:
    metadata = None if passage.metadata is None else bounded(passage.metadata)
    return None if metadata is None else _encode(passage, metadata)


def metadata_sha256(passages: Iterable[Passage]) -> str | None:
    """The hash of their metadata that an index of these passages would have."""
    digest, has_any = hashlib.sha256(), False
    for data in filter(None, map(_encode_metadata, passages)):
        digest.update(data)
        has_any = True
    return digest.hexdigest() if has_any else None


def corpus_sha256(passages: Iterable[Passage]) -> str:
    """The hash an index of these passages would have."""
    digest = hashlib.sha256()
    for passage in passages:
        digest.update(_encode(passage))
    return digest.hexdigest()


class PassageStore(Sequence[Passage]):
    """Passages of an index by row, memory-mapped: opening reads nothing, and several threads may read at once.

    Negative rows are refused: a vector library's "no result" is -1, and must not become the last passage.
    """

    def __init__(self, folder: PathLike) -> None:
        self._path = Path(folder) / PASSAGES
        try:
            with open(self._path, "rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            # A plain view: an item of a memmap costs several times as much.
            self._ends = np.asarray(np.memmap(Path(folder) / OFFSETS, dtype=_OFFSET_TYPE, mode="r"))
        except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
            raise IndexDamagedError(f"the passages of the index '{folder}' cannot be read ({error})") from error
        if len(self._ends) < 2 or self._ends[0] != 0 or self._ends[-1] != len(self._bytes):
            raise IndexDamagedError(f"the index '{folder}' is damaged: {OFFSETS} does not fit {PASSAGES}")

    @classmethod
    def open(cls, folder: PathLike) -> PassageStore:
        return cls(folder)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self.get(number) for number in range(*row.indices(len(self)))]
        return self.get(row)

    def get(self, row: int) -> Passage:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)} passages")
        data = self._bytes[self._ends.item(row) : self._ends.item(row + 1)]
        try:
            fields = json.loads(data)
            return Passage(*fields) if len(fields) < 6 else Passage(*fields[:5], metadata=fields[5])
        except (ValueError, TypeError) as error:
            raise IndexDamagedError(f"{self._path}: the passage in row {row} is damaged ({error})") from error

    def get_many(self, rows: Iterable[int]) -> list[Passage]:
        return [self.get(int(row)) for row in rows]


# ---- building --------------------------------------------------------------------------------------------------------


def partial_folder(out: PathLike) -> Path:
    """Where the index `out` is built: a sibling, so that the last step is a rename."""
    out = Path(out)
    if not out.name:
        raise UsageError(f"'{out}' has no name of its own; give --out a folder that can be made, such as my-index")
    return out.with_name(out.name + ".partial")


def _aside(out: Path) -> Path:
    return out.with_name(out.name + ".replaced")


class IndexBuilder:
    """Builds an index folder, all or nothing.

        with IndexBuilder(out, "bm25") as build:
            ...write files under build.folder...
            build.finish(corpus_sha256=..., num_passages=..., settings={...})

    With a `resume_key` (what the build depends on: corpus hash, encoder, options), the folder of a killed or failed
    build with the same key is entered again, files and all, and `resumed` is true; without one, or with another key,
    the build starts from nothing. One process at a time builds an index. An existing index is replaced only with
    `overwrite`, and a folder that is not an index never.
    """

    def __init__(
        self, out: PathLike, kind: str, *, overwrite: bool = False, resume_key: Mapping[str, Any] | None = None
    ) -> None:
        out = Path(out)
        self.out = out if out.name not in ("", "..") else out.resolve()
        self.kind, self.overwrite = kind, overwrite
        self.resume_key = None if resume_key is None else dict(resume_key)
        self.folder = partial_folder(self.out)
        self.resumed = False
        self.manifest: Manifest | None = None
        self._lock: int | None = None

    def __enter__(self) -> IndexBuilder:
        try:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            if _aside(self.out).is_dir() and not self.out.exists():  # killed between the two renames of a replacement
                _aside(self.out).rename(self.out)
            self._check_target()
            self._enter_folder()
        except OSError as error:
            self._release()
            raise UsageError(f"cannot build an index at '{self.out}': {error.strerror or error}") from error
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self.manifest is None and self.resume_key is None:
                shutil.rmtree(self.folder, ignore_errors=True)
        finally:
            self._release()
        if isinstance(error, OSError):
            raise ParallelSearchError(
                f"the index '{self.out}' could not be written: {error.strerror or error}"
            ) from error

    def finish(
        self,
        *,
        corpus_sha256: str,
        num_passages: int,
        settings: Mapping[str, Any],
        metadata_sha256: str | None = None,
    ) -> Manifest:
        """Every file is written: list them with their hashes, put them on the disk for good, and take the name."""
        if num_passages < 1:
            raise DataError(str(self.out), None, "the corpus holds no passages, so there is nothing to index")
        files: dict[str, dict[str, Any]] = {}
        for path in sorted(self.folder.rglob("*")):
            if path.is_file() and path not in (self.folder / _MARKER, self.folder / MANIFEST):
                sync(path)
                name = path.relative_to(self.folder).as_posix()
                files[name] = {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
        manifest = Manifest(
            kind=self.kind,
            corpus_sha256=corpus_sha256,
            num_passages=num_passages,
            settings=dict(settings),
            files=files,
            format_version=FORMAT_VERSION if metadata_sha256 is None else FORMAT_WITH_METADATA,
            package_version=__version__,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            metadata_sha256=metadata_sha256,
        )
        record = {name: value for name, value in asdict(manifest).items() if value is not None}
        write_json(self.folder / MANIFEST, record, is_synced=True)
        sync(self.folder)
        self._take_name()
        self.manifest = manifest
        return manifest

    def _take_name(self) -> None:
        self._check_target()
        if self.out.exists():
            shutil.rmtree(_aside(self.out), ignore_errors=True)
            self.out.rename(_aside(self.out))
        self.folder.rename(self.out)
        (self.out / _MARKER).unlink(missing_ok=True)
        sync(self.out)
        sync(self.out.parent)
        shutil.rmtree(_aside(self.out), ignore_errors=True)

    def _check_target(self) -> None:
        if not self.out.exists():
            return
        if not self.out.is_dir():
            raise UsageError(f"'{self.out}' is a file; an index is a folder. Give another --out")
        if not any(self.out.iterdir()):
            return
        if not (self.out / MANIFEST).is_file():
            raise UsageError(f"'{self.out}' holds files and is not an index, so it is not replaced. Give another --out")
        if not self.overwrite:
            try:
                found = open_manifest(self.out)
                what = f"an index ({found.kind}, {found.num_passages} passages, {found.created})"
            except IndexDamagedError:
                what = "a damaged index"
            raise UsageError(f"there is {what} at '{self.out}' already. To replace it, add --overwrite")

    def _enter_folder(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self._lock = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_same = os.path.samestat(os.fstat(self._lock), self.folder.stat())
        except (BlockingIOError, FileNotFoundError):
            is_same = False
        if not is_same:  # another process holds the folder, or has just renamed it
            raise UsageError(f"another process is building '{self.out}'. Wait for it, or give another --out")
        held = {entry.name for entry in self.folder.iterdir() if not is_draft(entry)}
        if held and not held & {_MARKER, MANIFEST}:
            raise UsageError(f"'{self.folder}' is needed for the build and holds other files. Move it away")
        remove_drafts(self.folder)
        (self.folder / MANIFEST).unlink(missing_ok=True)
        marker = {"format_version": FORMAT_VERSION, "kind": self.kind, "resume_key": self.resume_key}
        # Through JSON, so that a tuple in the key equals the list it becomes.
        self.resumed = self.resume_key is not None and self._recorded() == json.loads(json.dumps(marker))
        if self.resumed:
            return
        for entry in self.folder.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            elif entry.name != _MARKER:  # last, by being overwritten: until then the folder is known to be a build's
                entry.unlink()
        write_json(self.folder / _MARKER, marker, is_synced=True)

    def _recorded(self) -> Any:
        try:
            return json.loads((self.folder / _MARKER).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

"""Folders that take nothing: one that is read-only, whoever asks, and one on a disk that is full; and what may not be read."""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_VERSION_3 = 0x20080522
_MAY_WRITE_ANYWHERE = 1 << 1  # CAP_DAC_OVERRIDE
_MAY_READ_ANYWHERE = 1 << 2  # CAP_DAC_READ_SEARCH


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Rights(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Nothing can be made in the folder."""
    with _mode(folder, 0o500):
        yield


@contextmanager
def closed(path: Path) -> Iterator[None]:
    """The file cannot be read, or the folder not be looked into."""
    with _mode(path, 0):
        yield


@contextmanager
def _mode(path: Path, mode: int) -> Iterator[None]:
    """Root, for whom a mode means nothing, gives its rights up for a while; they are a thread's own."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, rights = _Header(_VERSION_3, 0), (_Rights * 2)()
    assert libc.capget(ctypes.byref(header), ctypes.byref(rights)) == 0
    before, mode_before = rights[0].effective, path.stat().st_mode
    path.chmod(mode)
    rights[0].effective = before & ~(_MAY_WRITE_ANYWHERE | _MAY_READ_ANYWHERE)
    assert libc.capset(ctypes.byref(header), ctypes.byref(rights)) == 0
    try:
        yield
    finally:
        rights[0].effective = before
        assert libc.capset(ctypes.byref(header), ctypes.byref(rights)) == 0
        path.chmod(mode_before)


@contextmanager
def files_no_larger_than(num_bytes: int) -> Iterator[None]:
    """As on a disk that is full: what goes on beyond this is not written."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

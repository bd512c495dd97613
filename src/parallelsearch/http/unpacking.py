"""Compressed bodies of HTTP answers, unpacked piece by piece and counted while they arrive.

A few kilobytes of gzip inside gzip stand for gigabytes. No layer may give more than the limit, so neither memory nor time
goes into what would be refused afterwards anyway.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

_MAX_LAYERS = 3
_STEP = 1 << 16


class BodyError(Exception):
    """A body that is too long or cannot be unpacked."""


class _Layer:
    """One layer of compression, unpacked in small steps, each of which counts."""

    def __init__(self, encoding: str, max_bytes: int) -> None:
        self._packed: Any = zlib.decompressobj(31 if encoding in ("gzip", "x-gzip") else 15)
        self._may_be_bare = encoding == "deflate"  # some servers leave out the two bytes in front
        self._room = max_bytes

    def feed(self, data: bytes) -> Iterator[bytes]:
        while True:
            try:
                piece = self._packed.decompress(data, _STEP)
            except zlib.error as error:
                if not self._may_be_bare:
                    raise BodyError(f"sent a body that cannot be unpacked ({error})") from error
                self._packed, self._may_be_bare = zlib.decompressobj(-15), False
                continue
            self._may_be_bare = False
            self._room -= len(piece)
            if self._room < 0:
                raise BodyError("")
            if piece:
                yield piece
            data = self._packed.unconsumed_tail
            if not data and len(piece) < _STEP:
                return


class Unpacker:
    """The layers of a body, from the outside in."""

    def __init__(self, encodings: str, max_bytes: int) -> None:
        names = [name.strip().lower() for name in encodings.split(",")]
        names = [name for name in names if name not in ("", "identity")]
        if unknown := [name for name in names if name not in ("gzip", "x-gzip", "deflate")]:
            raise BodyError(f"packed its answer as '{unknown[0][:20]}', which it was not asked for")
        if len(names) > _MAX_LAYERS:
            raise BodyError(f"packed its answer {len(names)} times, one in the other")
        self._layers = [_Layer(name, max_bytes) for name in reversed(names)]

    def feed(self, data: bytes, depth: int = 0) -> Iterator[bytes]:
        if depth == len(self._layers):
            yield data
            return
        for piece in self._layers[depth].feed(data):
            yield from self.feed(piece, depth + 1)

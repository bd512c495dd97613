"""The lines of an MCP server that was started as a command: each within the limit that answers over HTTP have.

The SDK reads the server's output itself, without a limit, and copies all it has of a line for every piece that follows. What
it takes from us is the name of a text encoding. So each connection gets an encoding of its own: UTF-8 that is handed out in
whole lines, and that gives up on a line which is too long.
"""

from __future__ import annotations

import codecs
import functools
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from parallelsearch.http import MAX_BODY_BYTES

_numbers = itertools.count(1)


class _Lines(codecs.IncrementalDecoder):
    """UTF-8, decoded up to the last end of a line that has arrived."""

    def __init__(self, on_too_long: Callable[[], None], errors: str = "strict") -> None:
        super().__init__(errors)
        self._on_too_long = on_too_long
        self._begun: list[bytes] = []
        self._num_bytes = 0

    def decode(self, input: bytes, final: bool = False) -> str:  # type: ignore[override]  # typeshed: any buffer
        end = len(input) if final else input.rfind(b"\n") + 1
        ended = [*self._begun, input[:end]] if end or final else []
        if ended:
            self.reset()
        if end < len(input):
            self._begun.append(input[end:])
            self._num_bytes += len(input) - end
        if self._num_bytes > MAX_BODY_BYTES:
            self.reset()
            self._on_too_long()
            raise ConnectionError("a line is too long")  # which the SDK takes for the end of the connection
        return b"".join(ended).decode("utf-8", self.errors)

    def reset(self) -> None:
        self._begun.clear()
        self._num_bytes = 0


@contextmanager
def bounded_lines(on_too_long: Callable[[], None]) -> Iterator[str]:
    """The name of an encoding for one connection. `on_too_long` is called once, when a line has outgrown the limit."""
    name, utf8 = f"parallelsearch_lines_{next(_numbers)}", codecs.lookup("utf-8")
    decoder = functools.partial(_Lines, on_too_long)
    codec = codecs.CodecInfo(utf8.encode, utf8.decode, incrementaldecoder=decoder, name=name)

    def look_up(asked: str) -> codecs.CodecInfo | None:
        return codec if asked == name else None

    codecs.register(look_up)
    try:
        yield name
    finally:
        codecs.unregister(look_up)

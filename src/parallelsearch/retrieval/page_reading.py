"""A page of the web, from an address that a stranger wrote to its text: fetched with care, then read by `documents`.

Whatever goes wrong is a `PageError` that says why; nothing is tried twice. Only `http` and `https` are opened, no address
with a password in it, and, unless the caller wants its own network, none that is not public: the client looks at that where
the connection is made, so for each redirect too. No key, cookie or login is sent.

PDF is read in a process of its own, which is ended when its time is over: a parser of files that anybody may have written
can be kept busy, or made to take all memory, and a thread could not be stopped. HTML and text are read in time that grows
with their length alone. No script is run and nothing that a page refers to is fetched.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urldefrag, urljoin, urlsplit

from parallelsearch.errors import DataError, SearchError, SearchTimeoutError, TransientSearchError
from parallelsearch.http import HttpClient, Stream, told_contact, without_secrets
from parallelsearch.retrieval.documents import (
    MAX_TITLE_CHARS,
    Document,
    PagedPassage,
    html_document,
    plain,
    served_text,
)
from parallelsearch.retrieval.office import pdf_document

MAX_PAGE_BYTES = 5 * 1024 * 1024
"""Of a page as it arrives, and as it is unpacked."""
MAX_SOURCE_CHARS = 1_500_000
"""So much of an HTML page is read: the slowest to read take some seconds for it."""
MAX_TEXT_CHARS = 500_000
"""So much of a page's text is kept."""
MAX_REDIRECTS = 4
NUM_LOOKUPS = 8
"""Names of hosts that are looked up at the same time: one that answers never takes a thread for half a minute."""
_MAX_URL_CHARS = 4_000
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_WIKIMEDIA = re.compile(
    r"(?:.+\.)?(?:wiki(?:pedia|media|data|books|news|quote|source|versity|voyage)|wiktionary|mediawiki)\.org"
)
"""Hosts that want to know who asks."""
_PDF = "application/pdf"
_READERS: dict[str, Callable[[str], Document]] = {
    "text/html": html_document,
    "application/xhtml+xml": html_document,
    "text/plain": plain,
    "text/markdown": plain,
}
_ENVIRONMENT = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""What Python itself may need to start."""
_PDF_MEMORY_BYTES = 1 << 30
_PDF_TIME = 0.5
"""What part of its time the reader of a PDF goes on to further pages."""


class PageError(Exception):
    """A page that cannot be had, why, and whether it may be another time."""

    def __init__(self, problem: str, may_come_back: bool = False) -> None:
        super().__init__(problem)
        self.may_come_back = may_come_back


@dataclass(frozen=True, slots=True)
class _Source:
    """What a server sent, and what it says it is."""

    kind: str
    charset: str
    data: bytes


def page_client(max_connections: int, *, private: bool) -> HttpClient:
    """The client for pages. `private` also opens addresses of this machine and its network, and goes over a proxy."""
    return HttpClient(
        "the page",
        permanent=SearchError,
        transient=TransientSearchError,
        late=SearchTimeoutError,
        headers={"Accept": ", ".join((*_READERS, _PDF))},
        max_connections=max_connections,
        max_body_bytes=MAX_PAGE_BYTES,
        public_only=not private,
        num_lookups=NUM_LOOKUPS,
    )


def page_address(url: str) -> str:
    """The address of the whole page, or a `PageError` for one that is not opened at all."""
    try:
        parts = urlsplit(url := urldefrag(url.strip()).url)
        if len(url) > _MAX_URL_CHARS:
            raise PageError(f"its address has {len(url)} characters, the limit is {_MAX_URL_CHARS}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise PageError("its address does not begin with http:// or https:// and a host")
        if "@" in parts.netloc:
            raise PageError("its address has a user or a password in it")
    except ValueError as error:
        raise PageError(f"its address is none: {error}") from None
    return url


async def fetch(client: HttpClient, url: str) -> _Source:
    """What the server of a page sends, after its redirects. How long that may take is the caller's business."""
    for _ in range(MAX_REDIRECTS + 1):
        try:
            whole_page = page_address(url)
            told = told_contact() if _WIKIMEDIA.fullmatch(urlsplit(whole_page).hostname or "") else None
            async with client.stream("GET", whole_page, headers=told) as answer:
                if answer.status not in _REDIRECTS:
                    kind, charset = _kind_of(answer)
                    return _Source(kind, charset, (await answer.read()).content)
                url = urljoin(url, answer.headers.get("Location", ""))
        except SearchError as error:
            raise PageError(str(error), isinstance(error, TransientSearchError | SearchTimeoutError)) from None
        except ValueError as error:  # of urljoin
            raise PageError(f"it redirects to an address that is none: {error}") from None
    raise PageError(f"it redirects more than {MAX_REDIRECTS} times")


def _kind_of(answer: Stream) -> tuple[str, str]:
    """The kind of a page and its encoding, as far as its server says. Told before its body is read."""
    if not 200 <= answer.status < 300:
        raise PageError(f"{answer.where} answered {answer.status}", answer.status >= 500 or answer.status in (408, 429))
    kind, *parameters = answer.headers.get("Content-Type", "text/html").split(";")
    kind = kind.strip().lower()
    if kind != _PDF and kind not in _READERS:
        raise PageError(f"{answer.where} is of the type '{kind[:80]}', which is not read")
    if kind == _PDF and importlib.util.find_spec("pypdf") is None:
        raise PageError(f"{answer.where} is a PDF; to read it install the extra 'files'")
    charsets = [
        value for name, _, value in (one.partition("=") for one in parameters) if name.strip().lower() == "charset"
    ]
    return kind, charsets[0].strip(" \"'") if charsets else ""


def is_pdf(source: _Source) -> bool:
    return source.kind == _PDF


def read_text(source: _Source, url: str) -> PagedPassage:
    """The text of a page that is no PDF. Blocking, in time that grows with its length alone."""
    text = served_text(source.data, source.charset)[:MAX_SOURCE_CHARS]
    if "\x00" in text[:500]:
        raise PageError(f"{without_secrets(url)} is not text")
    return _page(url, *_READERS[source.kind](text))


def _page(url: str, title: str, text: str, page_starts: tuple[int, ...] = ()) -> PagedPassage:
    text = text[:MAX_TEXT_CHARS].replace("\x00", "")
    if not text.strip():
        raise PageError(f"{without_secrets(url)} holds no text")
    return PagedPassage(url, title.strip()[:MAX_TITLE_CHARS], text, url, page_starts=page_starts)


# ---- PDF, in a process of its own ------------------------------------------------------------------------------------


async def read_pdf(source: _Source, url: str, timeout_s: float) -> PagedPassage:
    """The text of a PDF, or as much of it as can be read in the time. Who is cancelled meanwhile ends the process."""
    # -P: nothing in the folder where a command was typed is imported. The process is given no key of the environment.
    environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    environment["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", __name__, f"{timeout_s:.3f}"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=environment,
    )
    try:
        out, _ = await process.communicate(source.data)
        found = json.loads(out)
    except ValueError:
        raise PageError(f"{without_secrets(url)} is a PDF that could not be read") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if "problem" in found:
        raise PageError(f"{without_secrets(url)} {found['problem']}")
    return _page(url, found["title"], found["text"], tuple(found["page_starts"]))


def _read_pdf_from_input(timeout_s: float) -> dict[str, object]:
    start_s = time.monotonic()
    with contextlib.suppress(ImportError, OSError, ValueError):  # not every system has these limits
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_PDF_MEMORY_BYTES, _PDF_MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (int(timeout_s) + 1, int(timeout_s) + 1))
    data = sys.stdin.buffer.read(MAX_PAGE_BYTES + 1)
    try:
        title, text, starts = pdf_document(
            data,
            "",
            lambda num_chars: num_chars > MAX_TEXT_CHARS or time.monotonic() - start_s > _PDF_TIME * timeout_s,
        )
    except DataError as error:
        return {"problem": error.problem}
    return {"title": title, "text": text, "page_starts": starts}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_read_pdf_from_input(float(sys.argv[1]))))

"""What a server takes and what it refuses: settings, who may ask, checked requests, the bounded queue.

A refusal is a `RefusalError` with a status and a message that names the limit and what was found. Nothing here knows
the web framework, apart from reading a body with a limit.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import math
import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from parallelsearch.errors import UsageError
from parallelsearch.http import is_loopback

TOKEN_ENV = "PARALLELSEARCH_TOKEN"
_MAX_OTHER_VALUES = 16_384
_PIECE = 1 << 16
"""So many bytes of a body are looked at before others get their turn: a millisecond at most."""
FEWER = "send fewer queries at a time"
NOT_MY_NAME = (
    "this server does not go by the name in the Host header; behind a proxy, start it with --allowed-host NAME"
)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Where a search server listens and what it takes. `token` None: whoever reaches the port may ask."""

    host: str = "127.0.0.1"
    port: int = 8000
    max_queries: int = 4_096
    max_query_chars: int = 4_000
    max_k: int = 100
    max_body_bytes: int = 16 * 1024 * 1024
    max_pending_queries: int = 16_384
    body_timeout_s: float = 30.0
    shutdown_s: float = 30.0
    token: str | None = field(default_factory=lambda: os.environ.get(TOKEN_ENV, "").strip() or None, repr=False)
    logs_queries: bool = False
    allowed_hosts: tuple[str, ...] = ()
    """Names under which the server may be called; empty: this machine's own names when it listens on loopback."""

    def __post_init__(self) -> None:
        for name in ("max_queries", "max_query_chars", "max_k", "max_body_bytes", "body_timeout_s"):
            if getattr(self, name) <= 0:
                raise UsageError(f"{name} must be above 0, not {getattr(self, name)}")
        if self.max_pending_queries < self.max_queries:
            raise UsageError(
                f"max_pending_queries ({self.max_pending_queries}) must be at least max_queries ({self.max_queries}),"
                " or the largest request could never be taken"
            )
        if not 0 <= self.port <= 65535:
            raise UsageError(f"a port is from 0 (any free one) to 65535, not {self.port}")

    @property
    def max_values(self) -> int:
        """How many values the JSON of a body may have: the queries, and room for what a conversation needs."""
        return self.max_queries + _MAX_OTHER_VALUES


class RefusalError(Exception):
    """A request that is not served: its HTTP status, why, when to come again, and the field that is to blame where one is."""

    def __init__(
        self, status: int, message: str, retry_after_s: int | None = None, *, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.retry_after_s, self.param = status, retry_after_s, param


@dataclass(frozen=True, slots=True)
class RetrieveRequest:
    """A checked body of `POST /retrieve`. `k` None: the server's default."""

    queries: list[str]
    k: int | None
    return_scores: bool


def read_request(body: bytes, settings: ServerSettings) -> RetrieveRequest:
    """The request in a body, or `RefusalError` 400 or 422."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise RefusalError(400, 'the body is not JSON; send {"queries": ["..."], "topk": 3}') from None
    if not isinstance(value, dict):
        raise RefusalError(422, f'the body must be an object with "queries", not {_kind(value)}')
    queries = value.get("queries")
    if not isinstance(queries, list):
        found = "it is missing" if "queries" not in value else f"found {_kind(queries)}"
        raise RefusalError(422, f'"queries" must be a list of strings; {found}')
    if len(queries) > settings.max_queries:
        raise RefusalError(422, f'"queries" has {len(queries)} entries, the limit is {settings.max_queries}')
    for i, query in enumerate(queries):
        if not isinstance(query, str):
            raise RefusalError(422, f'"queries" must be a list of strings; number {i} is {_kind(query)}')
        if len(query) > settings.max_query_chars:
            raise RefusalError(
                422, f"query number {i} has {len(query)} characters, the limit is {settings.max_query_chars}"
            )
    k = value.get("topk")
    if isinstance(k, float) and k.is_integer():
        k = int(k)  # to JSON, and to a client in a language with one kind of number, 3.0 is a whole number
    if k is not None and (isinstance(k, bool) or not isinstance(k, int)):
        raise RefusalError(422, f'"topk" must be a whole number or null, not {_kind(k)}')
    k = k or None  # null and 0 mean the default, as with Search-R1's server
    if k is not None and not 1 <= k <= settings.max_k:
        raise RefusalError(422, f'"topk" must be from 1 to {settings.max_k}, not {k}')
    for name in ("where", "filter", "filters"):  # a client that sends one relies on it; other fields mean nothing here
        if value.get(name):
            raise RefusalError(
                422,
                f'"{name}" is not taken, and passages outside it would come back; what a server searches is narrowed when it '
                "is started: --search 'bm25?where=page=3:DIR'",
            )
    return_scores = value.get("return_scores", False)
    if return_scores is not None and not isinstance(return_scores, bool):
        raise RefusalError(422, f'"return_scores" must be true or false, not {_kind(return_scores)}')
    return RetrieveRequest(queries, k, bool(return_scores))


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


async def read_body(chunks: AsyncIterator[bytes], declared: str | None, max_bytes: int, hint: str = FEWER) -> bytes:
    """The body, or `RefusalError` 413 as soon as it is clear that it is too long."""
    too_long = f"the body is over the limit of {max_bytes} bytes; {hint}"
    if declared is not None and declared.isdigit() and int(declared) > max_bytes:
        raise RefusalError(413, too_long)
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > max_bytes:
            raise RefusalError(413, too_long)
    return bytes(body)


async def check_values(body: bytes, most: int, hint: str = FEWER) -> None:
    """`RefusalError` 422 for JSON with over `most` values.

    A parser has to be told before it begins: it holds the interpreter to its end, in a thread as well, and a few megabytes
    of empty lists take seconds. So commas and brackets outside strings are counted first, a piece at a time.
    """
    num_values, is_inside, left = 1, False, b""
    for start in range(0, len(body), _PIECE):
        if start:
            await asyncio.sleep(0)
        piece = left + body[start : start + _PIECE]
        left = b"\\" if (len(piece) - len(piece.rstrip(b"\\"))) % 2 else b""  # its other half is in the next piece
        piece = piece[: len(piece) - len(left)].replace(b"\\\\", b"").replace(b'\\"', b"")
        between = piece.split(b'"')
        outside = b"".join(between[is_inside::2])
        is_inside ^= len(between) % 2 == 0
        num_values += sum(outside.count(mark) for mark in (b",", b"[", b"{"))
        if num_values > most:
            raise RefusalError(422, f"the body has over {most} values; {hint}")


def is_authorized(header: str | None, token: str | None) -> bool:
    """Whether an Authorization header carries the token; compared in constant time."""
    if token is None:
        return True
    scheme, _, given = (header or "").partition(" ")
    return hmac.compare_digest(given.strip().encode(), token.encode()) and scheme.lower() == "bearer"


def is_own_name(host: str, settings: ServerSettings) -> bool:
    """Whether a Host header names this server. A page of another site may rebind its own name to this machine, and its
    visitor's browser then sends that name."""
    name, _, port = host.rpartition(":")
    name = (name if port.isdigit() else host).strip("[]").lower()
    if settings.allowed_hosts:
        return name in (allowed.lower() for allowed in settings.allowed_hosts)
    return not is_loopback(settings.host) or name == "" or is_loopback(name)


def check_caller(host: str, authorization: str | None, settings: ServerSettings) -> None:
    """`RefusalError` 421 for a name the server does not go by, 401 without the token it wants."""
    if not is_own_name(host, settings):
        raise RefusalError(421, NOT_MY_NAME)
    if not is_authorized(authorization, settings.token):
        raise RefusalError(401, f"a bearer token is needed: Authorization: Bearer <the value of {TOKEN_ENV}>")


def check_content(kind: str | None, origin: str | None, host: str) -> None:
    """`RefusalError` 415 for a body that a page of another site may send without asking first: browsers let it, as long as
    it is not called JSON. Programs, which have no origin, call it what they like."""
    if origin is None or (kind or "").partition(";")[0].strip().lower() == "application/json":
        return
    if urlsplit(origin).netloc.lower() != host.lower():
        raise RefusalError(415, "send Content-Type: application/json; a page of another site may send nothing else")


class PendingQueries:
    """A bounded count of queries (or of something else) that were taken and not yet answered, and how fast they are."""

    def __init__(self, max_pending: int, *, what: str = "queries", status: int = 503) -> None:
        self.max_pending, self.num_pending = max_pending, 0
        self._what, self._status = what, status
        self._rate_per_s = self._weight = 0.0
        self._last_s = time.monotonic()

    def take(self, count: int) -> None:
        """Take so many more, or `RefusalError` with the time after which there should be room."""
        if self.num_pending + count > self.max_pending:
            excess = self.num_pending + count - self.max_pending
            wait_s = math.ceil(excess * self._weight / self._rate_per_s) if self._rate_per_s > 0 else 1
            raise RefusalError(
                self._status,
                f"the queue is full: {self.num_pending} {self._what} are waiting, the limit is {self.max_pending}",
                max(1, min(wait_s, 60)),
            )
        if self.num_pending == 0:
            self._last_s = time.monotonic()  # nobody waited: that time says nothing about the pace
        self.num_pending += count

    def answered(self, count: int) -> None:
        self.num_pending -= count
        now = time.monotonic()
        elapsed_s, self._last_s = max(now - self._last_s, 1e-6), now
        # An average over about ten busy seconds of what was answered; `_weight` is how much of them there has been.
        decay = math.exp(-elapsed_s / 10)
        self._rate_per_s = decay * self._rate_per_s + (1 - decay) * count / elapsed_s
        self._weight = decay * self._weight + 1 - decay

"""The one HTTP client of the package: model servers, vLLM, search servers and web APIs are all asked through it.

A client pools its connections, one pool for each event loop. Bodies are unpacked here, piece by piece, and counted while
they arrive, so that a few kilobytes which stand for gigabytes are refused at the limit. Redirects are not followed: a key
in a header must not travel. A client for addresses that strangers wrote (`public_only`) looks at each address where the
socket for it is made, so that no name, redirect or way of writing it leads past the check.

What went wrong comes out as the caller's own errors, without secrets in it: `transient` if it is worth repeating (`retry`
says when and how often), else `permanent`. Who asks is `credentials`. What an answer means is the caller's business.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import html
import io
import json
import os
import re
import socket
import ssl
import threading
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from parallelsearch import __version__
from parallelsearch.errors import ParallelSearchError, TransientError, UsageError
from parallelsearch.http.address import CA_HINT, is_public, proxy_for, tls_context, without_secrets
from parallelsearch.http.credentials import Credentials, Secrets, Sent
from parallelsearch.http.retry import retry_after_s
from parallelsearch.http.unpacking import BodyError, Unpacker
from parallelsearch.untrusted import whole

if TYPE_CHECKING:  # costs a tenth of a second, which `--help` need not pay
    import aiohttp
    import yarl

MAX_BODY_BYTES = 64 * 1024 * 1024
# Request time-out, too early, rate limit. Every 5xx but "not implemented" and "version not supported" joins them.
_TRANSIENT_STATUS = frozenset({408, 425, 429})
_PERMANENT_STATUS = frozenset({501, 505})
_MAX_DETAIL = 300
_MAX_PAGE = 100_000
_MARKUP = re.compile(
    r"<(style|script)\b.*?(?:</\1\s*>|\Z)|<head\b.*?(?:</head\s*>|(?=<body\b)|\Z)|<[^<>]*>", re.IGNORECASE | re.DOTALL
)
"""What of a page is no text. A style that goes on beyond what is read of the page is none either."""
CONTACT_ENV = "PARALLELSEARCH_CONTACT"
"""The variable with an address of whoever runs this. It is sent where a caller says so, and nowhere else."""
_AGENT = f"parallelsearch/{__version__}"
_SAID = "".join(chr(code) for code in range(32, 127) if chr(code) not in "()\\")
"""What a comment in `User-Agent` holds as it is; all else stands there as in an address: ö is %C3%B6."""
_LARGE_BODY = 1 << 20  # aiohttp wants more than this as a file
# uvicorn, and so vLLM, closes what was idle for 5 s: we let go first, so that no request meets a closing connection.
_KEEPALIVE_S = 4.0
GATHER_FROM = 64
"""With more event streams than this open at once, what comes on one is not read piece by piece but every `GATHER_S` at most,
or, where they are fewer, every `GATHER_PER_STREAM_S` for each that is open."""
GATHER_S = 0.1
GATHER_PER_STREAM_S = 0.0004
_NO_SECRETS = Secrets()


# ---- answers ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Response:
    """An answer, read whole and unpacked. `where` is the address without secrets; `headers` do not care about case."""

    status: int
    reason: str
    headers: Mapping[str, str]
    content: bytes
    where: str
    secrets: Secrets = _NO_SECRETS
    """What was sent, and is not to be told. The content of a refusal (a status from 300 on) has none of it."""

    @property
    def text(self) -> str:
        return self.content.decode("utf-8", "replace")

    def json(self) -> Any:
        """The value, or a `ValueError`."""
        try:
            return json.loads(self.content)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None


def error_detail(response: Response) -> str:
    """What the body of a bad response says, on one line and short: OpenAI's, FastAPI's, a proxy's page or plain text."""
    try:
        body = response.json()
    except ValueError:
        body = response.text
        if body[:_MAX_PAGE].lstrip().startswith("<"):
            body = html.unescape(_MARKUP.sub(" ", body[:_MAX_PAGE]))
    if isinstance(body, list) and len(body) == 1:  # Google's
        (body,) = body
    # {"error": {"message": ...}}, {"error": ...}, {"detail": ...}; Elasticsearch's has a "reason".
    for _ in range(2):
        if isinstance(body, dict):
            body = next((body[key] for key in ("error", "message", "detail", "reason") if body.get(key)), body)
    try:
        text = " ".join(whole(str(body)).split())
    except (RecursionError, ValueError):  # nested as deep as JSON may be, or a number of thousands of digits
        text = " ".join(response.text[:_MAX_DETAIL].split())
    return text if len(text) <= _MAX_DETAIL else text[: _MAX_DETAIL - 3] + "..."


def told_contact() -> dict[str, str]:
    """The header that tells a service who asks; nothing where the variable is not set."""
    said = " ".join(os.environ.get(CONTACT_ENV, "").split())
    return {"User-Agent": f"{_AGENT} ({quote(said, _SAID, errors='surrogateescape')[:200]})"} if said else {}


# ---- the client ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Target:
    """An address, taken apart once."""

    url: yarl.URL
    where: str
    proxy: str | None
    tls: ssl.SSLContext | bool
    headers: dict[str, str] = field(default_factory=dict)
    secrets: Secrets = _NO_SECRETS


class HttpClient:
    """Requests over pooled connections. `what` names the server in messages; `secrets` never show in them. `headers_env` is
    the variable with headers of the user's own, which are read for each request and take the place of others of their name.

    `permanent`, `transient` and `late` (a time-out; `permanent` if left out) are the errors it raises. `read_timeout_s`
    bounds the silence between two pieces of an answer. How many calls run at once is decided elsewhere, so the pool makes
    nobody wait unless `max_connections` says so. With `num_lookups` names are looked up in so many threads of its own, so
    that those which strangers wrote keep nobody else waiting. With `public_only` no connection is made to an address of this
    machine or its network, and none over a proxy, which would find the addresses of names itself.
    """

    def __init__(
        self,
        what: str,
        *,
        permanent: type[ParallelSearchError],
        transient: type[TransientError] = TransientError,
        late: type[ParallelSearchError] | None = None,
        headers: Mapping[str, str] | None = None,
        secrets: Sequence[str] = (),
        headers_env: str | None = None,
        connect_timeout_s: float = 5.0,
        read_timeout_s: float | None = None,
        max_connections: int = 0,
        max_body_bytes: int = MAX_BODY_BYTES,
        public_only: bool = False,
        num_lookups: int = 0,
    ) -> None:
        self.what, self.connect_timeout_s, self.read_timeout_s = what, connect_timeout_s, read_timeout_s
        self.max_body_bytes, self._public_only = max_body_bytes, public_only
        self._permanent, self._transient, self._late = permanent, transient, late or permanent
        # Given with each request and not to aiohttp's session, which would show them to a proxy, keys and all.
        self._headers = {
            "User-Agent": _AGENT,
            "Accept": "*/*",
            "Accept-Encoding": "gzip, deflate",
            **(headers or {}),
        }
        self._secrets = Secrets.of(secrets)
        self._credentials = Credentials(headers_env=headers_env)
        self._credentials.check()
        self._max_connections = max_connections
        self._lookups = ThreadPoolExecutor(num_lookups, thread_name_prefix="names") if num_lookups else None
        self._pools: dict[asyncio.AbstractEventLoop, _Pool] = {}
        self._targets: dict[str, _Target] = {}
        weakref.finalize(self, _close_all, self._pools)

    async def request(
        self,
        method: str,
        url: str,
        *,
        timeout_s: float | None = None,
        content: bytes | None = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        sent: Sent | None = None,
    ) -> Response:
        """The answer, read whole, whatever its status; `late` is raised if it is not there within `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                async with self.stream(
                    method, url, content=content, params=params, headers=headers, sent=sent
                ) as answer:
                    return await answer.read()
        except TimeoutError:
            raise self._late(
                f"{self.what} {without_secrets(url)} did not answer within {timeout_s or 0:.3g} s"
            ) from None

    def stream(
        self,
        method: str,
        url: str,
        *,
        content: bytes | None = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        read_timeout_s: float | None = None,
        sent: Sent | None = None,
    ) -> Stream:
        """`async with client.stream(...) as answer:` gives the head; leaving early closes the connection. `TimeoutError`
        is raised if the body has not ended after `timeout_s`. `read_timeout_s` is for this answer what the client's own is
        for all others. `sent` says who asks where the caller has read it; else the client reads it."""
        return Stream(self, method, url, content, params, headers, timeout_s, read_timeout_s, sent)

    def error_of(self, response: Response) -> ParallelSearchError | None:
        """The error a response stands for, to be raised or returned by the caller; None if its status is fine.

        408, 425, 429 and 5xx give `transient` with the server's Retry-After, any other from 300 on gives `permanent`.
        """
        status = response.status
        if status < 300:
            return None
        detail = error_detail(response)
        told = f"{response.reason}: {detail}" if detail else response.reason
        message = f"{self.what} {response.where} answered {status} {self.clean(told, response.secrets)}".rstrip()
        if status in _TRANSIENT_STATUS or (status >= 500 and status not in _PERMANENT_STATUS):
            return self._transient(message, retry_after_s(response.headers))
        if status < 400:
            there = self.clean(response.headers.get("location", "nowhere"), response.secrets)
            message += f". It redirects to {there}: use that address"
        return self._permanent(message)

    def clean(self, message: str, secrets: Secrets | None = None) -> str:
        """The message without the secrets: a server may quote what it was sent. `secrets` are those of the call; left out,
        what the environment has now."""
        message = self._secrets.out_of_message(message)
        return self._credentials.clean(message) if secrets is None else secrets.out_of_message(message)

    async def aclose(self) -> None:
        """Close the connections of this event loop, and let go of those of others."""
        own = self._pools.pop(asyncio.get_running_loop(), None)
        _close_all(self._pools)
        if own is not None:
            await own.session.close()

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _read_sent(self) -> Sent:
        try:
            return self._credentials.read()
        except UsageError as error:  # of one call: those before may have been well
            raise self._permanent(str(error)) from None

    def _pool(self) -> _Pool:
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:
            import aiohttp

            for other in [one for one in list(self._pools) if one.is_closed()]:
                dead = self._pools.pop(other, None)
                if dead is not None:  # another thread may have been first
                    _close_all({other: dead})
            session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=self._max_connections,
                    keepalive_timeout=_KEEPALIVE_S,
                    resolver=aiohttp.ThreadedResolver(None if self._lookups is None else self._looking_up()),
                    socket_factory=_public_socket if self._public_only else None,
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
            )
            pool = self._pools[loop] = _Pool(session, _Gather())
        return pool

    def _looking_up(self) -> asyncio.AbstractEventLoop:
        """All that the resolver wants of a loop, in threads of our own. Who is not there in time is not waited for."""
        pool, timeout_s = self._lookups, self.connect_timeout_s

        class LookingUp:
            async def getaddrinfo(self, *arguments: Any, **options: Any) -> Any:
                async with asyncio.timeout(timeout_s):
                    work = partial(socket.getaddrinfo, *arguments, **options)
                    return await asyncio.get_running_loop().run_in_executor(pool, work)

            async def getnameinfo(self, *arguments: Any) -> Any:  # of an address that is one: nothing is looked up
                return await asyncio.get_running_loop().getnameinfo(*arguments)

        return cast(asyncio.AbstractEventLoop, LookingUp())

    def _timeout(self, total_s: float | None, read_s: float | None) -> aiohttp.ClientTimeout:
        import aiohttp

        return aiohttp.ClientTimeout(
            total_s, None, self.read_timeout_s if read_s is None else read_s, self.connect_timeout_s
        )

    def _target(self, url: str) -> _Target:
        target = self._targets.get(url)
        if target is None:
            if len(self._targets) >= 256:
                self._targets.clear()
            target = self._targets[url] = self._made_target(url)
        return target

    def _made_target(self, url: str) -> _Target:
        import yarl

        where = without_secrets(url)
        try:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError("it does not begin with http:// or https:// and a host")
            authority = parts.netloc.rpartition("@")[2]
            plain = yarl.URL(urlunsplit((parts.scheme, authority, parts.path, parts.query, "")))
            proxy = None if self._public_only else proxy_for(parts.scheme, parts.hostname, parts.port)
        except ValueError as error:
            raise self._permanent(f"{self.what} {where} has a bad address: {error}") from None
        tls = tls_context() if parts.scheme == "https" else True
        if parts.username is None:
            return _Target(plain, where, proxy, tls)
        password = unquote(parts.password or "")
        pair = base64.b64encode(f"{unquote(parts.username)}:{password}".encode()).decode()
        secrets = Secrets.of([pair], [password])
        return _Target(plain, where, proxy, tls, {"Authorization": f"Basic {pair}"}, secrets)

    def _failure(self, error: Exception, where: str, secrets: Secrets) -> ParallelSearchError:
        """The error that a call without a whole answer stands for.

        A connection that was refused, lost or not made in time is worth repeating. An unknown host name, a bad address
        and a time-out while waiting for the answer are not: the work was probably done, and would be done again.
        """
        import aiohttp

        target = f"{self.what} {where}"
        if isinstance(error, BodyError):
            text = str(error) or f"sent over {self.max_body_bytes >> 20} MiB; the answer was dropped"
            return self._permanent(f"{target} {text}")
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            return self._transient(f"{target} could not be reached in time")
        if isinstance(error, TimeoutError):
            return self._late(f"{target} did not answer in time")
        if isinstance(error, aiohttp.InvalidURL):
            return self._permanent(f"{target} has a bad address")
        causes = _causes(error)
        if any(isinstance(cause, _NotPublicError) for cause in causes):
            return self._permanent(f"{target} is of this machine or its network, and only public addresses are opened")
        reason = self.clean(_reason(error, causes), secrets)
        if any(isinstance(cause, socket.gaierror) and cause.errno != socket.EAI_AGAIN for cause in causes):
            return self._permanent(f"{target} has an unknown host name ({reason})")
        if any(isinstance(cause, ssl.SSLError | ssl.CertificateError) for cause in causes):
            hint = f". {CA_HINT}" if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes) else ""
            return self._permanent(f"{target} has no valid TLS connection to offer ({reason}){hint}")
        if isinstance(error, aiohttp.ClientProxyConnectionError):
            return self._transient(f"{target} cannot be reached: the proxy refused the connection ({reason})")
        if isinstance(error, aiohttp.ClientConnectorError):
            return self._transient(f"{target} refused the connection; is it running? ({reason})")
        if isinstance(error, aiohttp.ClientHttpProxyError):
            return self._permanent(f"{target} cannot be reached: the proxy answered {error.status}")
        if isinstance(error, aiohttp.ClientConnectionError | aiohttp.ClientPayloadError | OSError):
            return self._transient(f"{target} broke the connection off ({reason})")
        return self._permanent(f"{target} failed: {reason}")


class _NotPublicError(OSError):
    """An address that a client for public ones was led to. All have one text: aiohttp then passes on the first as it is."""

    def __init__(self) -> None:
        super().__init__(errno.EACCES, "not a public address")


def _public_socket(where: tuple[Any, ...]) -> socket.socket:
    """A socket for the address that it is going to be connected to: what a name led to is no longer looked up again."""
    family, kind, protocol, _, address = where
    if not is_public(address[0]):
        raise _NotPublicError
    return socket.socket(family, kind, protocol)


@dataclass(frozen=True, slots=True)
class _Pool:
    """What a client has in one event loop."""

    session: aiohttp.ClientSession
    gather: _Gather


class _Gather:
    """The event streams of one loop. To be woken for each token costs many times what it takes to read the token, so while
    many streams are open a connection that was just read rests until the next beat; what arrives meanwhile comes at once."""

    __slots__ = ("_resting", "num_open")

    def __init__(self) -> None:
        self.num_open = 0
        self._resting: list[asyncio.ReadTransport] = []

    def rest(self, transport: asyncio.ReadTransport) -> None:
        if transport.is_closing():
            return
        transport.pause_reading()
        self._resting.append(transport)
        if len(self._resting) == 1:
            asyncio.get_running_loop().call_later(min(GATHER_S, GATHER_PER_STREAM_S * self.num_open), self._beat)

    def _beat(self) -> None:
        resting, self._resting = self._resting, []
        for transport in resting:
            if not transport.is_closing():
                transport.resume_reading()


class Stream:
    """One answer as it arrives: the head is there once it is entered, the body comes by `chunk`, `events` or `read`."""

    __slots__ = (
        "_client",
        "_content",
        "_gather",
        "_headers",
        "_is_counted",
        "_is_over",
        "_method",
        "_num_bytes",
        "_num_packed_bytes",
        "_params",
        "_read_timeout_s",
        "_response",
        "_sent",
        "_timeout_s",
        "_unpacker",
        "_url",
        "headers",
        "secrets",
        "status",
        "where",
    )

    def __init__(
        self,
        client: HttpClient,
        method: str,
        url: str,
        content: bytes | None,
        params: Mapping[str, str] | None,
        headers: Mapping[str, str] | None,
        timeout_s: float | None,
        read_timeout_s: float | None,
        sent: Sent | None,
    ) -> None:
        self._client, self._method, self._url, self._content = client, method, url, content
        self._params, self._headers, self._timeout_s, self._read_timeout_s = params, headers, timeout_s, read_timeout_s
        self._gather: _Gather | None = None
        self._is_counted = False
        self._response: aiohttp.ClientResponse | None = None
        self._unpacker: Unpacker | None = None
        self._num_bytes = self._num_packed_bytes = 0
        self._is_over = False
        self._sent = sent
        self.secrets = _NO_SECRETS
        self.where = ""
        self.status = 0
        self.headers: Mapping[str, str] = {}

    async def __aenter__(self) -> Stream:
        client = self._client
        target = client._target(self._url)
        self.where = target.where
        sent, self._sent = self._sent or client._read_sent(), None
        self.secrets = client._secrets | target.secrets | sent.secrets()
        pool = client._pool()
        self._gather = pool.gather
        content: bytes | io.BytesIO | None = self._content
        if self._content is not None and len(self._content) > _LARGE_BODY:
            content = io.BytesIO(self._content)
        try:
            response = await pool.session.request(
                self._method,
                target.url if self._params is None else target.url.update_query(self._params),
                data=content,
                headers=_laid_over(client._headers, self._headers or {}, sent.key_headers, target.headers, sent.own),
                allow_redirects=False,
                proxy=target.proxy,
                ssl=target.tls,
                timeout=client._timeout(self._timeout_s, self._read_timeout_s),
            )
        except Exception as error:  # aiohttp's errors, the socket's, and ValueError for what cannot be sent
            if self._timeout_s is not None and type(error) is TimeoutError:
                raise
            raise client._failure(error, target.where, self.secrets) from error
        self._response = response
        self.status, self.headers = response.status, response.headers
        encodings = response.headers.get("Content-Encoding")
        if encodings is not None:
            try:
                self._unpacker = Unpacker(encodings, client.max_body_bytes)
            except BodyError as error:
                response.close()
                raise client._failure(error, target.where, self.secrets) from None
        return self

    async def __aexit__(self, *_: object) -> None:
        response, self._response = self._response, None
        if self._is_counted and self._gather is not None:
            self._gather.num_open -= 1
            self._is_counted = False
        if response is not None:
            if self._is_over or response.content.at_eof():
                response.release()
            else:  # what was not read cannot be skipped: another answer must not begin with it
                response.close()

    @property
    def is_at_end(self) -> bool:
        """Whether the end of the body has arrived: then `chunk` does not wait."""
        return self._response is not None and self._response.content.at_eof()

    async def chunk(self) -> bytes:
        """The next piece of the body, unpacked; empty at its end. Raises when the body has outgrown the limit."""
        if self._response is None:
            raise RuntimeError("a stream is read inside its block")
        client = self._client
        content = self._response.content
        try:
            while data := await content.readany():
                self._num_packed_bytes += len(data)  # what unpacks to nothing arrives and costs, too
                if self._unpacker is not None:
                    data = b"".join(self._unpacker.feed(data))
                self._num_bytes += len(data)
                if max(self._num_bytes, self._num_packed_bytes) > client.max_body_bytes:
                    raise BodyError("")
                if data:
                    return data
        except Exception as error:
            if self._timeout_s is not None and type(error) is TimeoutError:  # aiohttp's own is a subclass
                raise
            raise client._failure(error, self.where, self.secrets) from error
        self._is_over = True
        return b""

    async def events(self) -> bytes:
        """As `chunk`, for a body that comes in many small pieces over a long time: while many such are open at once, the
        pieces of up to a tenth of a second come together."""
        gather = self._gather
        if gather is not None and not self._is_counted:
            gather.num_open += 1
            self._is_counted = True
        elif gather is not None and gather.num_open > GATHER_FROM and self._response is not None:
            connection = self._response.connection  # None once the end has arrived
            if connection is not None and connection.transport is not None:
                gather.rest(connection.transport)
        return await self.chunk()

    async def read(self) -> Response:
        """The rest of the body."""
        pieces = []
        while piece := await self.chunk():
            pieces.append(piece)
        reason = self._response.reason if self._response is not None else None
        content = b"".join(pieces)
        content = content if self.status < 300 else self.secrets.out_of_refusal(content)
        return Response(self.status, reason or "", self.headers, content, self.where, self.secrets)


def get_now(client: HttpClient, url: str, *, timeout_s: float, params: Mapping[str, str] | None = None) -> Response:
    """One GET from code that is not asynchronous, wherever it runs; the client is closed."""

    async def get() -> Response:
        try:
            return await client.request("GET", url, params=params, timeout_s=timeout_s)
        finally:
            await client.aclose()

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(get())
    outcome: list[Response | BaseException] = []

    def run() -> None:
        try:
            outcome.append(asyncio.run(get()))
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run)  # this thread's own loop is running and cannot run another
    thread.start()
    thread.join()
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


def _laid_over(*layers: Mapping[str, str]) -> dict[str, str]:
    """Headers of several sources; the last one with a name has it, in whatever case that is written."""
    found: dict[str, tuple[str, str]] = {}
    for layer in layers:
        for name, value in layer.items():
            found[name.lower()] = name, value
    return dict(found.values())


def _close_all(pools: dict[asyncio.AbstractEventLoop, _Pool]) -> None:
    """Let go of pools that nobody will close: those of dead loops at once, those of living ones in their own time."""
    while True:
        try:
            loop, pool = pools.popitem()
        except KeyError:  # empty; another thread may have taken the last one
            return
        closing = pool.session.close()
        try:
            if loop.is_running():
                asyncio.run_coroutine_threadsafe(closing, loop)
            else:
                closing.send(None)  # ends at once where the loop is closed
                closing.close()
        except (StopIteration, RuntimeError):
            closing.close()


def _reason(error: BaseException, causes: Sequence[BaseException]) -> str:
    """What the socket said, rather than the library's sentence about it."""
    for cause in reversed(causes):
        if isinstance(cause, OSError) and cause.strerror:
            return str(cause.strerror)
    return str(error) or type(error).__name__


def _causes(error: BaseException) -> list[BaseException]:
    """The error and everything it was raised from: the socket's own error is among them."""
    found: list[BaseException] = []
    left: list[BaseException | None] = [error]
    while left:
        cause = left.pop()
        if cause is None or cause in found:
            continue
        found.append(cause)
        left += [cause.__cause__ or cause.__context__, getattr(cause, "os_error", None)]
    return found

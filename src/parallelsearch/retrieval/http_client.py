"""One pooled HTTP client for the backends that ask another machine: remote search servers and web APIs.

Every request has a connect time-out and a time-out for the whole exchange, so that a server which sends a byte a minute
cannot hold a rollout; bodies have a limit; redirects are not followed (a key in a header must not travel). What went
wrong comes out as a `SearchError`, worth repeating or not, without secrets in it. Statuses are the caller's business.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

import httpx

from parallelsearch.errors import SearchError, SearchTimeoutError, TransientSearchError, UsageError
from parallelsearch.retry import transport_error

MAX_BODY_BYTES = 64 * 1024 * 1024


class HttpClient:
    """Requests over pooled connections. `what` names the server in messages; `secrets` never show in them."""

    def __init__(
        self,
        what: str,
        *,
        headers: Mapping[str, str] | None = None,
        secrets: Sequence[str] = (),
        connect_timeout_s: float = 5.0,
        max_connections: int = 64,
        trusts_proxy_env: bool = True,
    ) -> None:
        self.what, self.connect_timeout_s = what, connect_timeout_s
        self._headers = dict(headers or {})
        self._secrets = [secret for secret in secrets if secret]
        self._max_connections, self._trusts_proxy_env = max_connections, trusts_proxy_env
        self._client: httpx.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def request(
        self,
        method: str,
        url: str,
        *,
        timeout_s: float,
        content: bytes | None = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """The answer, read whole, whatever its status. Raises `SearchError` if there is none within `timeout_s`."""
        late = f"{self.what} {without_secrets(url)} did not answer within {timeout_s:.3g} s"
        try:
            async with asyncio.timeout(timeout_s):
                request = self._open().build_request(
                    method, url, content=content, params=params, headers=dict(headers or {})
                )
                return await self._exchange(request)
        except TimeoutError:
            raise SearchTimeoutError(late) from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            is_late = isinstance(error, httpx.TimeoutException)
            permanent = SearchTimeoutError if is_late else SearchError
            raise self.clean(transport_error(error, self.what, permanent, TransientSearchError)) from None

    async def _exchange(self, request: httpx.Request) -> httpx.Response:
        response = await self._open().send(request, stream=True)
        try:
            body = bytearray()
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    where = without_secrets(str(request.url))
                    raise SearchError(
                        f"{self.what} {where} sent over {MAX_BODY_BYTES >> 20} MiB; the answer was dropped"
                    )
        finally:
            await response.aclose()
        # The body is decoded by now: without this header the copy does not try again.
        headers = [item for item in response.headers.multi_items() if item[0].lower() != "content-encoding"]
        return httpx.Response(response.status_code, headers=headers, content=bytes(body), request=request)

    def clean(self, error: Exception) -> SearchError:
        """The error as a `SearchError` that holds none of the secrets."""
        if not isinstance(error, SearchError):
            error = SearchError(str(error))
        message = str(error)
        for secret in self._secrets:
            message = message.replace(secret, "***")
        if message == str(error):
            return error
        if isinstance(error, TransientSearchError):
            return TransientSearchError(message, error.retry_after_s)
        return type(error)(message)

    def _open(self) -> httpx.AsyncClient:
        # A pool belongs to the event loop it was made in; a person may call asyncio.run more than once.
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._loop = loop
            self._client = httpx.AsyncClient(
                headers=self._headers,
                timeout=httpx.Timeout(None, connect=self.connect_timeout_s),
                limits=httpx.Limits(max_connections=self._max_connections, max_keepalive_connections=32),
                trust_env=self._trusts_proxy_env,
                follow_redirects=False,
            )
        return self._client

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.aclose()


def checked_url(url: str, what: str) -> str:
    """The address without white space and final slash, or a `UsageError` that says what is wrong with it."""
    url = url.strip().rstrip("/")
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_good = False
    if not is_good:
        raise UsageError(f"{what} needs an address such as http://127.0.0.1:8000, not '{without_secrets(url)}'")
    return url


def without_secrets(url: str) -> str:
    """The address as a message or a manifest may show it: no user, password, query or fragment."""
    before, at, rest = url.partition("://")
    if not at:
        return url.rpartition("@")[2].partition("?")[0]
    authority, slash, path = rest.partition("/")
    authority = authority.rpartition("@")[2].partition("?")[0].partition("#")[0]
    return f"{before}://{authority}{slash}{path.partition('?')[0].partition('#')[0]}"


@functools.lru_cache(maxsize=1024)  # a server asks this of every request
def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    if host.lower() == "localhost" or host.lower().endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False

"""The HTTP under an MCP client: the SDK's own, with what every client of the package has: limits on answers, proxy and
certificates as the environment says, and who asks.

An answer is taken unpacked only, so that a few kilobytes cannot stand for gigabytes, and it ends with an error where it
grows beyond the limit. Token and headers are read for each request, and sent to the server of the address alone, whatever
redirects the SDK follows. Imported only where a server is spoken to over HTTP: `httpx2` comes with the extra `mcp`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import httpx2

from parallelsearch.http import MAX_BODY_BYTES, Credentials
from parallelsearch.http.address import proxy_for, tls_context


class BoundedTransport(httpx2.AsyncHTTPTransport):
    """For the server at `url`. Asks for plain answers, refuses packed ones, and counts what arrives. `on_refusal` is given
    the status where the server does not know who asks: the SDK says no more than that there was an error."""

    def __init__(self, url: str, credentials: Credentials, on_refusal: Callable[[int], None]) -> None:
        self._home, self._credentials, self._on_refusal = httpx2.URL(url), credentials, on_refusal
        proxy = proxy_for(self._home.scheme, self._home.host, self._home.port)
        super().__init__(verify=tls_context(), proxy=proxy, trust_env=False)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.headers["Accept-Encoding"] = "identity"
        if _origin(request.url) in (_origin(self._home), _in_tls(self._home)):
            sent = self._credentials.read()
            for name, value in sent.key_headers.items():
                request.headers.setdefault(name, value)  # user and password of the address win
            request.headers.update(sent.own)
        response = await super().handle_async_request(request)
        if response.status_code in (401, 403):
            self._on_refusal(response.status_code)
        packing = response.headers.get("content-encoding", "").strip().lower()
        if packing not in ("", "identity"):
            await response.aclose()
            raise httpx2.RemoteProtocolError(f"the answer is packed ({packing[:40]}), which was not asked for")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Counted(response.stream)
        return response


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _in_tls(url: httpx2.URL) -> tuple[str, str, int | None]:
    """Where a server of the usual port sends those who did not ask for TLS; httpx2 has no number for a usual port."""
    return ("https", url.host, None) if (url.scheme, url.port) == ("http", None) else _origin(url)


class _Counted(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        num_bytes = 0
        async for piece in self._inner:
            num_bytes += len(piece)
            if num_bytes > MAX_BODY_BYTES:
                raise httpx2.RemoteProtocolError(f"the server sent over {MAX_BODY_BYTES >> 20} MiB; it was dropped")
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()

"""The HTTP under an MCP client: the SDK's own, with the limit on answers that every client of the package has.

An answer is taken unpacked only, so that a few kilobytes cannot stand for gigabytes, and it ends with an error where it
grows beyond the limit. Imported only where a server is spoken to over HTTP: the SDK's `httpx2` comes with the extra `mcp`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2

from parallelsearch.http import MAX_BODY_BYTES


class BoundedTransport(httpx2.AsyncHTTPTransport):
    """Asks for plain answers, refuses packed ones, and counts what arrives."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.headers["Accept-Encoding"] = "identity"
        response = await super().handle_async_request(request)
        packing = response.headers.get("content-encoding", "").strip().lower()
        if packing not in ("", "identity"):
            await response.aclose()
            raise httpx2.RemoteProtocolError(f"the answer is packed ({packing[:40]}), which was not asked for")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Counted(response.stream)
        return response


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

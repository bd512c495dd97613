"""Client for search servers that speak `POST /retrieve`: ours and Search-R1's, one or several replicas.

Calls go round the healthy replicas. One that fails rests for a while that grows with each failure, then a single call
probes it; meanwhile the others answer, within the same time-out. A server that refuses a batch because of one query
(too long, say) is asked in halves, so that only that query fails. The shape of the protocol, both ways, is here and
nowhere else; the server imports it.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from parallelsearch.errors import DataError, SearchError, SearchTimeoutError, TransientSearchError, UsageError, stopped
from parallelsearch.http import HttpClient, Response, checked_url, cleaned, without_secrets
from parallelsearch.retrieval.base import DegradedHits, Hit, Passage, Result, Retriever, checked_seconds
from parallelsearch.retrieval.corpus import passage_of
from parallelsearch.untrusted import finite, whole

_ERROR_KINDS: dict[str, type[SearchError]] = {
    "transient": TransientSearchError,
    "timeout": SearchTimeoutError,
    "failed": SearchError,
}
# The request itself is at fault, so another replica would say the same.
_REFUSALS = frozenset({400, 413, 422})
# So many refused one after another, none answered: it is not a matter of single queries.
_MAX_REFUSALS = 4
_MAX_ASKED_REST_S = 300.0
_MAX_MESSAGE_CHARS = 300


# ---- the protocol ----------------------------------------------------------------------------------------------------


def document_of(passage: Passage) -> dict[str, Any]:
    """A passage as `/retrieve` sends it. `contents` is what Search-R1's client reads."""
    document: dict[str, Any] = {
        "id": passage.id,
        "title": passage.title,
        "text": passage.text,
        "contents": f'"{passage.title}"\n{passage.text}',
    }
    if passage.url is not None:
        document["url"] = passage.url
    if passage.date is not None:
        document["date"] = passage.date
    if passage.metadata is not None:
        document["metadata"] = passage.metadata
    return document


def error_of(error: SearchError) -> dict[str, str]:
    """A failed query as our server puts it beside the results: `{"kind", "message"}`."""
    kind = next(name for name, error_type in _ERROR_KINDS.items() if isinstance(error, error_type))
    return {"kind": kind, "message": str(error)}


def read_reply(body: bytes, num_queries: int, k: int) -> list[Result]:
    """The results in a reply of `/retrieve`. Raises `SearchError` if it does not have the shape of one."""
    try:
        reply = json.loads(body)
    except (ValueError, RecursionError):
        raise TransientSearchError(f"the answer is not JSON: {_excerpt(body)}") from None
    if not isinstance(reply, dict) or not isinstance(reply.get("result"), list):
        raise TransientSearchError(f'the answer has no list "result": {_excerpt(body)}')
    result = reply["result"]
    if len(result) != num_queries:
        raise TransientSearchError(f"the answer has {len(result)} results for {num_queries} queries")
    errors = reply.get("errors")
    errors = errors if isinstance(errors, dict) else {}
    degraded = reply.get("degraded")
    degraded = degraded if isinstance(degraded, dict) else {}
    return [
        _read_error(errors[str(i)]) if str(i) in errors else _in_part(_read_items(items, k), degraded.get(str(i)))
        for i, items in enumerate(result)
    ]


def _in_part(found: Result, missing: Any) -> Result:
    """The hits, marked where the server says that it did without something: they are not kept."""
    if not isinstance(found, list) or not isinstance(missing, list) or not missing:
        return found
    return DegradedHits(found, [_short(one) for one in missing])


def _read_error(error: Any) -> SearchError:
    if not isinstance(error, dict):
        return SearchError(_short(error))
    return _ERROR_KINDS.get(str(error.get("kind")), SearchError)(_short(error.get("message")))


def _short(message: object) -> str:
    return " ".join(whole(str(message)[:_MAX_MESSAGE_CHARS]).split())


def _read_items(items: Any, k: int) -> Result:
    if not isinstance(items, list):
        return _UnreadableError(f"the server sent {type(items).__name__} where a list of passages belongs")
    hits: list[Hit] = []
    for rank, item in enumerate(items[:k], start=1):  # SerpAPI's server sends more than was asked for
        document, score = item, None
        if isinstance(item, dict) and "document" in item:
            document, score = item["document"], item.get("score")
        if isinstance(document, str):  # Search-R1's reranking server sends the contents alone
            document = {"contents": document}
        if isinstance(document, dict) and document.get("id") in (None, ""):
            text = document.get("contents") or f"{document.get('title')}\n{document.get('text')}"
            document = {**document, "id": hashlib.sha256(str(text).encode("utf-8", "replace")).hexdigest()[:16]}
        try:
            passage = passage_of(document, "the answer", rank)
        except DataError as error:
            field = f" ('{error.field}')" if error.field else ""
            return _UnreadableError(f"the server sent a passage that cannot be read{field}: {error.problem}")
        hits.append(Hit.of(passage, finite(score) or 0.0, rank))
    return hits


def _excerpt(body: bytes) -> str:
    text = " ".join(body[:200].decode("utf-8", "replace").split())
    return repr(text if len(text) <= 80 else text[:77] + "...") if text else "it is empty"


# ---- replicas --------------------------------------------------------------------------------------------------------


class _Replica:
    """One server, and whether it may be asked."""

    def __init__(self, url: str, first_rest_s: float, max_rest_s: float) -> None:
        self.url, self.where = url, without_secrets(url)
        self._first_rest_s, self._max_rest_s = first_rest_s, max_rest_s
        self.num_failures = 0
        self.rests_until_s = 0.0
        self.asked_until_s = 0.0
        self.is_probed = False

    def failed(self, error: SearchError) -> None:
        now = time.monotonic()
        self.num_failures += 1
        rest_s = min(self._max_rest_s, self._first_rest_s * 2.0 ** min(self.num_failures - 1, 32))
        asked_s = error.retry_after_s if isinstance(error, TransientSearchError) else None
        if asked_s is not None:
            self.asked_until_s = now + min(asked_s, _MAX_ASKED_REST_S)
        self.rests_until_s = max(now + rest_s, self.asked_until_s)

    def answered(self) -> None:
        self.num_failures, self.rests_until_s, self.asked_until_s = 0, 0.0, 0.0


class _RefusedError(Exception):
    """The server will not take this request, whoever asks."""


class _UnreadableError(SearchError):
    """What the server sent for a query is not a list of passages."""


class RemoteRetriever(Retriever):
    """Asks search servers over HTTP. The bearer token, if the servers want one, is in the variable `token_env`, and headers
    of the user's own in `headers_env`; each of several servers is sent both."""

    name = "remote"

    def __init__(
        self,
        urls: Sequence[str] | str,
        *,
        timeout_s: float = 10.0,
        connect_timeout_s: float = 3.0,
        token_env: str = "PARALLELSEARCH_TOKEN",
        headers_env: str | None = None,
        max_batch: int = 64,
        max_concurrency: int = 8,
        first_rest_s: float = 0.5,
        max_rest_s: float = 60.0,
    ) -> None:
        addresses = urls.split(",") if isinstance(urls, str) else list(urls)
        addresses = [checked_url(url, "a search server") for url in addresses if url.strip()]
        if not addresses:
            raise UsageError("a remote search needs at least one address, such as http://127.0.0.1:8000/retrieve")
        addresses = [url if urlsplit(url).path else f"{url}/retrieve" for url in addresses]
        self.timeout_s = checked_seconds(timeout_s, "a search server")
        self.max_batch, self.max_concurrency = max_batch, max_concurrency
        self._replicas = [_Replica(url, first_rest_s, max_rest_s) for url in dict.fromkeys(addresses)]
        self._turn, self.token_env, self._headers_env = 0, token_env, headers_env
        token = os.environ.get(token_env, "").strip()
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        self._http = HttpClient(
            "search server",
            permanent=SearchError,
            transient=TransientSearchError,
            late=SearchTimeoutError,
            headers={**headers, "Authorization": f"Bearer {token}"} if token else headers,
            secrets=[token],
            headers_env=headers_env,
            connect_timeout_s=min(connect_timeout_s, timeout_s),
            max_connections=max_concurrency * len(self._replicas) + 8,
        )

    async def search_many(self, queries: Sequence[str], k: int) -> list[Result]:
        deadline_s = time.monotonic() + self.timeout_s
        results: list[Result | None] = [None] * len(queries)
        parts = [range(len(queries))] if queries else []
        num_refused = num_answered = 0
        while parts:
            part = parts.pop()
            try:
                answers = await self._ask([queries[i] for i in part], k, deadline_s)
            except _RefusedError as refusal:
                if len(part) > 1 and not (num_refused >= _MAX_REFUSALS and not num_answered):
                    middle = part.start + len(part) // 2
                    parts += [range(middle, part.stop), range(part.start, middle)]
                    continue
                num_refused += 1
                answers = [SearchError(str(refusal)) for _ in part]
            except SearchError as error:
                if not num_answered and not num_refused:
                    raise
                answers = [error] * len(part)  # what the other halves brought still counts
            else:
                num_answered += len(part)
            for i, answer in zip(part, answers, strict=True):
                results[i] = answer
        return [result for result in results if result is not None]

    async def _ask(self, queries: list[str], k: int, deadline_s: float) -> list[Result]:
        """The first good answer among the replicas."""
        body = json.dumps({"queries": queries, "topk": k, "return_scores": True}).encode("ascii")
        failures: list[tuple[_Replica, SearchError]] = []
        refused: tuple[_Replica, _RefusedError] | None = None
        candidates = self._in_order()
        for i, replica in enumerate(candidates):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0.01:
                break
            # Half of the time that is left, so that a server which hangs leaves some for the next.
            timeout_s = left_s if i == len(candidates) - 1 else left_s / 2
            try:
                results = await self._ask_replica(replica, body, len(queries), k, timeout_s)
            except SearchError as error:
                failures.append((replica, error))
            except _RefusedError as error:
                if refused is not None:  # two of a mind: the request is at fault
                    raise
                refused = replica, error
            else:
                if refused is not None:
                    refused[0].failed(SearchError(str(refused[1])))
                return results
        if refused is not None:
            raise refused[1]
        if not failures and not candidates:
            wait_s = max(0.0, min(replica.asked_until_s for replica in self._replicas) - time.monotonic())
            raise TransientSearchError(
                f"every search server asked for a pause; the next may be asked in {wait_s:.1f} s", wait_s
            )
        raise _combined(failures, self.timeout_s)

    async def _ask_replica(self, replica: _Replica, body: bytes, num: int, k: int, timeout_s: float) -> list[Result]:
        start_s = time.monotonic()
        replica.is_probed = True
        try:
            response = await self._http.request("POST", replica.url, content=body, timeout_s=timeout_s)
            if response.status in _REFUSALS:
                raise _RefusedError(str(self._error_of(response)))
            if (error := self._error_of(response)) is not None:
                raise error
            try:
                results = read_reply(response.content, num, k)
            except TransientSearchError as error:
                raise TransientSearchError(
                    self._http.clean(f"search server {replica.where}: {error}", response.secrets)
                ) from None
            results = [cleaned(one, self._http.clean) if isinstance(one, SearchError) else one for one in results]
            rubbish = [result for result in results if isinstance(result, _UnreadableError)]
            if rubbish and len(rubbish) == len(results) and len(self._replicas) > 1:
                raise SearchError(f"search server {replica.where}: {rubbish[0]}")  # another may know better
        except SearchError as error:
            replica.failed(error)
            raise
        except BaseException as error:
            # Cancelled after a long wait: the caller's time-out is shorter than ours, and the server hangs.
            if not isinstance(error, _RefusedError) and time.monotonic() - start_s > timeout_s / 2:
                replica.failed(SearchTimeoutError("cancelled while waiting"))
            raise
        finally:
            replica.is_probed = False
        replica.answered()
        return results

    def _error_of(self, response: Response) -> SearchError | None:
        error = self._http.error_of(response)
        if response.status in (401, 403):
            other = "" if self._headers_env is None else f", or the headers in {self._headers_env} to what it wants"
            return SearchError(f"{stopped(error)} It wants a bearer token; set {self.token_env} to the server's{other}")
        return error if isinstance(error, SearchError) else None

    def _in_order(self) -> list[_Replica]:
        """Whom to ask: one whose rest is over first, as a probe, then the healthy in turn, then, as a last resort, the
        others; but none that asked for a pause."""
        now = time.monotonic()
        self._turn = (self._turn + 1) % len(self._replicas)
        ring = self._replicas[self._turn :] + self._replicas[: self._turn]
        ring = [replica for replica in ring if replica.asked_until_s <= now]
        healthy = [replica for replica in ring if not replica.num_failures]
        failing = sorted((r for r in ring if r.num_failures), key=lambda r: r.rests_until_s)
        probe = [r for r in failing if r.rests_until_s <= now and not r.is_probed][:1]
        return probe + healthy + [replica for replica in failing if replica not in probe]

    def describe(self) -> dict[str, Any]:
        headers = {} if self._headers_env is None else {"headers_env": self._headers_env}
        return {"kind": self.name, "urls": [replica.where for replica in self._replicas], **headers}

    async def aclose(self) -> None:
        await self._http.aclose()


def _combined(failures: list[tuple[_Replica, SearchError]], timeout_s: float) -> SearchError:
    """One error for all replicas: worth repeating if one of theirs is."""
    if not failures:
        return SearchTimeoutError(f"no search server answered within {timeout_s:g} s")
    errors = [error for _, error in failures]
    transient = [error for error in errors if isinstance(error, TransientSearchError)]
    message = (
        str(errors[0])
        if len(errors) == 1
        else f"all {len(errors)} search servers failed: " + "; ".join(map(str, errors))
    )
    if transient:
        waits = [error.retry_after_s for error in transient]
        return TransientSearchError(message, None if None in waits else min(wait for wait in waits if wait is not None))
    is_late = all(isinstance(error, SearchTimeoutError) for error in errors)
    return SearchTimeoutError(message) if is_late else SearchError(message)

"""Embeddings from a server that speaks OpenAI's `/v1/embeddings`: OpenAI itself, Ollama, vLLM, TEI, LM Studio, llama.cpp.

An address, `openai:BASE_URL?option=value#MODEL`, takes the place of an encoder's name. A request carries many texts, each
distinct one once, and a few requests run at the same time. What fails for a while is repeated: patiently in a build, within
seconds for a query, whose search has a time-out. A request that the server refuses is halved until one text is left; that
one is cut where the refusal is about its length, and else has no vector (zeros), so that one bad text costs only itself. A
server that refuses everything is told from a bad text by the probe sentence. How many texts a request may have is learned.

An index that is opened asks for the probe. A server that does not answer then is asked again with the first queries.
Not here: tokens are not counted, because nobody knows the server's tokenizer; texts are cut by characters.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import concurrent.futures
import json
import logging
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import numpy as np

from parallelsearch.errors import (
    IndexDamagedError,
    ParallelSearchError,
    SearchError,
    SearchTimeoutError,
    TransientSearchError,
    UsageError,
    stopped,
)
from parallelsearch.http import (
    Credentials,
    HttpClient,
    Response,
    Sent,
    checked_url,
    retrying,
    with_version,
    without_login,
)
from parallelsearch.http.background import submit, wait_for
from parallelsearch.options import read_options
from parallelsearch.retrieval.text_encoder import (
    PROBE_TEXT,
    KnownEncoder,
    Prefixes,
    TextEncoder,
    Vectors,
    family_prefixes,
    plain_text,
)

SCHEME = "openai:"
OPTIONS: dict[str, type] = {
    "api_key_env": str,
    "headers_env": str,
    "api-version": str,
    "timeout_s": float,
    "dimensions": int,
    "max_chars": int,
    "query_prefix": str,
    "passage_prefix": str,
}
BATCH_SIZE = 64
NUM_CALLS = 4
MAX_CHARS = 8_000
"""Of a text: 2,000 tokens of English, and no more than OpenAI's 8,191 of any language."""
# Of a request. OpenAI takes 300,000 tokens; no language has more than a token or so a character.
MAX_BATCH_CHARS = 200_000
# A text that is still too long has other faults.
_LEAST_CHARS = 64
# So many texts refused one after another, none taken: is it the texts, or the server?
_MAX_REFUSALS = 4
_MAX_WARNINGS = 5
_REFUSED = frozenset({400, 413, 422})
_LENGTH = re.compile(
    r"too (?:large|long|many tokens)|exceed|context.{0,10}(?:length|window|size)|maximum|max_|must have less than"
    r"|longer than|input length",
    re.I,
)
_EMPTY_PURSE = "insufficient_quota"
_JSON = {"Content-Type": "application/json"}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to try: so many times, no longer a wait than that, and so many seconds in all."""

    attempts: int
    max_wait_s: float
    total_s: float | None = None


BUILDING = Patience(attempts=8, max_wait_s=120.0)
STARTING = Patience(attempts=3, max_wait_s=5.0)  # a server may have to load the model first
OPENING = Patience(attempts=3, max_wait_s=5.0, total_s=30.0)
ASKING = Patience(attempts=3, max_wait_s=2.0, total_s=14.0)
"""For queries. Less than the 15 s that a hybrid search waits for a part of it; the search repeats them, too."""


class _Call:
    """One call of the encoder on its way: how long it may still take, and why texts had no vector."""

    def __init__(self, patience: Patience) -> None:
        total_s = patience.total_s
        self.patience = patience
        self.end_s = None if total_s is None else asyncio.get_running_loop().time() + total_s
        self.refusals: list[str] = []

    def left_s(self, timeout_s: float) -> float:
        """How long the next request may take."""
        if self.end_s is None:
            return timeout_s
        left_s = min(timeout_s, self.end_s - asyncio.get_running_loop().time())
        if left_s <= 0:
            raise TimeoutError
        return left_s


class _RefusedError(Exception):
    """The server answered, and has no vectors for this request. `is_long`: because there is too much in it."""

    def __init__(self, message: str, is_long: bool = False) -> None:
        super().__init__(message)
        self.is_long = is_long


def is_served(name: str) -> bool:
    """Whether the name of an encoder is the address of a server."""
    return name.strip().startswith(SCHEME)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """An address, taken apart."""

    base_url: str
    model: str
    options: dict[str, Any]
    name: str
    """The address without user and password, as an index keeps it."""

    @classmethod
    def of(cls, address: str) -> ServedModel:
        rest, _, model = address.strip().removeprefix(SCHEME).partition("#")
        base_url, _, query = rest.partition("?")
        base_url = checked_url(base_url, "a served encoder")
        if not model:
            raise UsageError(
                f"a served encoder needs its model behind a '#': {SCHEME}{without_login(rest)}#nomic-embed-text"
            )
        options = read_options(query, OPTIONS, "a served encoder")
        for option in ("timeout_s", "dimensions", "max_chars"):
            if not options.get(option, 1) > 0:
                raise UsageError(f"{option} of a served encoder must be greater than 0, not {options[option]:g}")
        mark = f"?{query}" if query else ""
        return cls(base_url, unquote(model), options, f"{SCHEME}{without_login(base_url)}{mark}#{model}")


class ServedEncoder(TextEncoder):
    """The embeddings of a model behind an address, `openai:BASE_URL#MODEL`.

    `known` is what an index recorded of its encoder; without it the server is asked what it has. The API key and headers of
    the user's own are read from the environment for each request and kept nowhere.
    """

    num_calls = NUM_CALLS
    batches_per_block = 1  # a request costs money: what it brought is written at once

    def __init__(
        self,
        address: str,
        *,
        batch_size: int = BATCH_SIZE,
        prefixes: Prefixes | None = None,
        max_chars: int | None = None,
        known: KnownEncoder | None = None,
        building: Patience = BUILDING,
    ) -> None:
        served = ServedModel.of(address)
        options = served.options
        self.name, self.model = served.name, served.model
        self.batch_size = batch_size
        self._credentials = Credentials(options.get("api_key_env", "OPENAI_API_KEY"), options.get("headers_env"))
        self._credentials.check()
        self.timeout_s: float = options.get("timeout_s", 120.0)
        self.dimensions: int | None = options.get("dimensions")
        self.max_chars: int = max_chars or options.get("max_chars", MAX_CHARS)
        family = family_prefixes(served.model)
        self.prefixes = prefixes or Prefixes(
            options.get("query_prefix", family.query), options.get("passage_prefix", family.passage)
        )
        parts = urlsplit(served.base_url)
        url = urlunsplit((parts.scheme, parts.netloc, f"{parts.path.rstrip('/')}/embeddings", "", ""))
        self._url = with_version(url, options.get("api-version"))
        self._building = building
        self._http = HttpClient(
            "embedding server",
            permanent=SearchError,
            transient=TransientSearchError,
            late=SearchTimeoutError,
            connect_timeout_s=min(10.0, self.timeout_s),
        )
        self._room = asyncio.Semaphore(NUM_CALLS)
        self._most = max(1, batch_size)
        self._has_encoding = True  # whether the server takes `encoding_format`
        self._num_refused = self._num_warned = 0
        self._known, self._is_met, self._meeting = known, False, threading.Lock()
        self.dim = 0 if known is None else known.dim
        if known is not None:
            self.probe = known.probe
        try:
            self._meet(STARTING if known is None else OPENING)
        except (TransientSearchError, SearchTimeoutError) as error:
            if known is None:
                raise
            _log.warning(
                "%s is searched by its keywords alone, if it has any, until this passes: %s", known.owner, error
            )

    def encode_queries(self, queries: Sequence[str]) -> Vectors:
        try:
            self._meet(ASKING)
        except IndexDamagedError as error:
            raise SearchError(str(error)) from error
        return wait_for(self._encode(queries, self.prefixes.query, ASKING))

    def encode_passages(self, texts: Sequence[str]) -> Vectors:
        self._meet(OPENING)
        return wait_for(self._encode(texts, self.prefixes.passage, self._building))

    def encode_blocks(self, blocks: Iterable[tuple[int, Sequence[str]]]) -> Iterator[tuple[int, Vectors]]:
        """Several at the same time. After a failure no new one is begun, and what is under way is waited for: it is paid."""
        self._meet(OPENING)
        going: dict[Future[Vectors], int] = {}
        left, failure = iter(blocks), None
        try:
            while True:
                while failure is None and len(going) < self.num_calls and (block := next(left, None)) is not None:
                    going[submit(self._encode(block[1], self.prefixes.passage, self._building))] = block[0]
                if not going:
                    break
                for future in concurrent.futures.wait(going, return_when=concurrent.futures.FIRST_COMPLETED).done:
                    number = going.pop(future)
                    try:
                        vectors = future.result()
                    except ParallelSearchError as error:
                        failure = failure or error
                    else:
                        yield number, vectors
        finally:
            for future in going:
                future.cancel()
        if failure is not None:
            raise failure

    def describe(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "dim": self.dim,
            "max_chars": self.max_chars,
            "query_prefix": self.prefixes.query,
            "passage_prefix": self.prefixes.passage,
        }

    # ---- the probe ---------------------------------------------------------------------------------------------------

    def _meet(self, patience: Patience) -> None:
        """Ask for the probe, unless that was done: how long vectors are, and whether they are those of the index."""
        if not self._is_met:
            with self._meeting:
                self._meet_once(patience)

    def _meet_once(self, patience: Patience) -> None:
        if self._is_met:  # another thread was first
            return
        try:
            probe = wait_for(self._probe(patience))
        except _RefusedError as refusal:
            raise SearchError(str(refusal)) from refusal
        if self._known is not None:
            self._known.check(self.name, self.prefixes, probe)
        else:
            self.probe, self.dim = probe, len(probe)
        self._is_met = True

    async def _probe(self, patience: Patience) -> Vectors:
        texts, call = [self.prefixes.passage + PROBE_TEXT], _Call(patience)
        try:
            found = await self._request(texts, call, is_probe=True)
        except _RefusedError:
            if not self._has_encoding:
                raise
            self._has_encoding = False  # the one field beside model and texts that a server may not know
            found = await self._request(texts, call, is_probe=True)
        probe = found[texts[0]]
        if self.dimensions is not None and len(probe) != self.dimensions:
            raise SearchError(
                f"{self._who} was asked for vectors of {self.dimensions} dimensions and gave {len(probe)}: the model "
                "cannot shorten them. Leave dimensions out"
            )
        return probe

    async def _is_well(self) -> bool:
        """Whether the server still has a vector for the probe sentence: then it is the texts."""
        try:
            await self._probe(OPENING)
        except (_RefusedError, SearchError):
            return False
        return True

    # ---- many texts --------------------------------------------------------------------------------------------------

    async def _encode(self, texts: Sequence[str], prefix: str, patience: Patience) -> Vectors:
        clean = [plain_text(text, self.max_chars) for text in texts]
        # A text of white space says nothing, and servers refuse it. In the order of their lengths, so that what
        # is too long stands together.
        distinct = sorted({prefix + text for text in clean if text.strip()}, key=lambda text: (len(text), text))
        call, found = _Call(patience), dict[str, Vectors]()
        batches = [self._vectors(batch, call) for batch in self._batches(distinct)]
        failures: list[BaseException] = []
        for outcome in await asyncio.gather(*batches, return_exceptions=True):
            if isinstance(outcome, BaseException):
                failures.append(outcome)
            else:
                found |= outcome
        if failures:
            raise failures[0]
        if patience is ASKING and call.refusals and not found:
            raise SearchError(call.refusals[0])
        vectors = np.zeros((len(texts), self.dim), np.float32)
        for row, text in enumerate(clean):
            if (vector := found.get(prefix + text)) is not None:
                vectors[row] = vector
        return vectors

    def _batches(self, texts: Sequence[str]) -> Iterator[list[str]]:
        batch: list[str] = []
        num_chars = 0
        for text in texts:
            if batch and (len(batch) >= self._most or num_chars + len(text) > MAX_BATCH_CHARS):
                yield batch
                batch, num_chars = [], 0
            batch.append(text)
            num_chars += len(text)
        if batch:
            yield batch

    async def _vectors(self, texts: list[str], call: _Call) -> dict[str, Vectors]:
        """The vectors of those texts that have one."""
        found: dict[str, Vectors] = {}
        left = [texts]
        most_taken, is_halved, is_one_refused = 0, False, False
        while left:
            asked = left.pop()
            if len(asked) > self._most:  # learned meanwhile
                left += [asked[self._most :], asked[: self._most]]
                continue
            try:
                some = await self._request(asked, call, is_part=is_halved)
            except _RefusedError as refusal:
                if len(asked) > 1:
                    middle = (len(asked) + 1) // 2
                    left += [asked[middle:], asked[:middle]]
                    is_halved = True
                    continue
                is_one_refused = True
                some = await self._of_less(asked[0], refusal, call)
            else:
                self._num_refused = 0
                most_taken = max(most_taken, len(asked))
                if rest := [text for text in asked if text not in some]:
                    left.append(rest)
            found |= some
        if is_halved and not is_one_refused:  # no text had a fault: there were too many of them
            self._most = min(self._most, most_taken)
        return found

    async def _of_less(self, text: str, refusal: _RefusedError, call: _Call) -> dict[str, Vectors]:
        """The vector of the beginning of a text that is too long for the server; nothing for one that it does not take. How
        much is left depends on the text alone, so that a build that goes on makes the same index."""
        beginning = text
        while refusal.is_long and len(beginning) >= 2 * _LEAST_CHARS:
            beginning = beginning[: len(beginning) // 2]
            try:
                found = await self._request([beginning], call, is_part=True)
            except _RefusedError as again:
                refusal = again
            else:
                return {text: found[beginning]}
        call.refusals.append(str(refusal))
        if call.patience is ASKING:
            return {}
        self._num_refused += 1
        if self._num_refused >= _MAX_REFUSALS:
            if not await self._is_well():
                raise SearchError(str(refusal))
            self._num_refused = 0
        self._num_warned += 1
        if self._num_warned <= _MAX_WARNINGS:
            more = " (no more of these are told)" if self._num_warned == _MAX_WARNINGS else ""
            _log.warning("a text has no vector and is not found by its meaning: %s%s", refusal, more)
        return {}

    # ---- one request -------------------------------------------------------------------------------------------------

    async def _request(
        self, texts: list[str], call: _Call, *, is_probe: bool = False, is_part: bool = False
    ) -> dict[str, Vectors]:
        """The vectors that one request brings, repeated where that may help: at least one, or an error. A part of what was
        refused is not asked for so often again."""
        patience, num_broken = call.patience, 0
        try:
            async for attempt in retrying(patience.attempts, patience.max_wait_s, deadline_s=call.end_s):
                with attempt:
                    async with self._room:
                        timeout_s, sent = call.left_s(self.timeout_s), self._who_asks()
                        response = await self._http.request(
                            "POST", self._url, content=self._body(texts), headers=_JSON, sent=sent, timeout_s=timeout_s
                        )
                    num_broken += response.status == 500
                    if is_part and num_broken == 2:
                        raise _RefusedError(str(self._http.error_of(response)))
                    self._raise_for(response, sent)
                    return self._read(response, texts, None if is_probe else self.dim)
        except TimeoutError as error:
            if isinstance(error.__cause__, TransientSearchError):
                raise error.__cause__ from None
            raise SearchTimeoutError(f"{self._who} did not answer in time") from None
        except SearchTimeoutError as error:
            if patience is ASKING:
                raise
            hint = "A smaller --batch-size, or a larger ?timeout_s= before the '#' of the address, gives it more time"
            raise SearchTimeoutError(f"{stopped(error)} {hint}") from None
        except TransientSearchError as error:
            # A server that breaks on one text says 500 each time; without it, the others have their vectors.
            if num_broken == patience.attempts and not is_probe and patience is not ASKING and await self._is_well():
                raise _RefusedError(str(error)) from None
            raise
        raise RuntimeError("gave up without a failure")  # not reached: the last failure is raised by the attempt

    @property
    def _who(self) -> str:
        return f"embedding server {self.name.removeprefix(SCHEME).partition('#')[0].partition('?')[0]}"

    def _who_asks(self) -> Sent:
        try:
            return self._credentials.read()
        except UsageError as error:  # of one request: those before may have been well
            raise SearchError(str(error)) from None

    def _body(self, texts: list[str]) -> bytes:
        body: dict[str, Any] = {"model": self.model, "input": texts}
        if self._has_encoding:  # a third of the bytes, and of the time to read them
            body["encoding_format"] = "base64"
        if self.dimensions is not None:
            body["dimensions"] = self.dimensions
        return json.dumps(body).encode("ascii")

    def _raise_for(self, response: Response, sent: Sent) -> None:
        """What a bad status means, and what to do about it."""
        error = self._http.error_of(response)
        if error is None:
            return
        message, status = str(error), response.status
        if status in (401, 403):
            raise SearchError(f"{stopped(message)} {self._credentials.hint(sent)}")
        if status == 404:
            raise SearchError(
                f"{stopped(message)} Does the server have the model '{self.model}', and does the base address end as "
                "its documentation says (mostly in /v1)?"
            )
        is_long = status == 413 or _LENGTH.search(message) is not None
        if status in _REFUSED or (status == 500 and is_long):  # llama.cpp says 500 for a text that is too long
            raise _RefusedError(message, is_long)
        if isinstance(error, TransientSearchError) and _EMPTY_PURSE not in response.text:
            raise TransientSearchError(message, error.retry_after_s)
        raise SearchError(message)

    # ---- the answer --------------------------------------------------------------------------------------------------

    def _read(self, response: Response, texts: list[str], dim: int | None) -> dict[str, Vectors]:
        """The vectors by their texts. A text whose vector is missing or no vector is left out; `_RefusedError` if all are, or
        if nobody can say which vector is whose."""
        try:
            answer = response.json()
        except ValueError:
            head = " ".join(response.secrets.out_of_message(response.text[:1000]).split())[:80]
            raise _RefusedError(f"{self._who} sent something that is not JSON: {head!r}") from None
        items = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise _RefusedError(f"{self._who} sent no list 'data' with embeddings")
        places = [item.get("index") for item in items]
        if len(items) == len(texts) and (len(texts) == 1 or all(place is None for place in places)):
            places = list(range(len(texts)))
        if len(set(map(repr, places))) < len(places) or not all(
            type(place) is int and 0 <= place < len(texts) for place in places
        ):
            raise _RefusedError(
                f"{self._who} sent {len(items)} embeddings for {len(texts)} texts, and does not say which is whose"
            )
        found: dict[str, Vectors] = {}
        for place, item in zip(places, items, strict=True):
            vector = _vector(item.get("embedding"))
            if vector is None:
                continue
            if dim is not None and len(vector) != dim:
                raise SearchError(
                    f"{self._who} sent a vector of {len(vector)} dimensions, and those before had {dim}: there is another "
                    f"model behind '{self.model}' now. Use the one before, or build the index again with --overwrite"
                )
            found[texts[place]] = vector
        if not found:
            raise _RefusedError(
                f"{self._who} sent {len(items)} embeddings for {len(texts)} texts, none with numbers in it"
            )
        return found


def _vector(given: object) -> Vectors | None:
    """A list of numbers, or float32 in base64, as a vector of length one; None for whatever else it is."""
    try:
        if isinstance(given, str):
            vector = np.frombuffer(base64.b64decode(given, validate=True), "<f4").astype(np.float64)
        elif isinstance(given, list):
            vector = np.asarray(given, np.float64)
        else:
            return None
    except (ValueError, TypeError, OverflowError, binascii.Error):
        return None
    if vector.ndim != 1 or not len(vector) or not np.isfinite(vector).all():
        return None
    return np.asarray(vector / max(float(np.linalg.norm(vector)), 1e-12), np.float32)

"""Which failed calls are repeated, when, and how often: one answer for every client of this package.

A client turns what went wrong into an error with `response_error` (a bad status) or `transport_error` (no answer at
all). `TransientError` and its subclasses are worth repeating, everything else is not. `retrying` repeats them with
exponential back-off and jitter; the server's own Retry-After wins over back-off, and one that is longer than the caller
is willing to wait fails at once instead of sleeping. Nothing here opens a connection.

    async for attempt in retrying(attempts=4):   # a new one for each call: it holds state
        with attempt:
            response = await client.post(url, json=body)
            if (error := response_error(response, "search server", SearchError, TransientSearchError)) is not None:
                raise error

A backend under `search.py` raises the same errors and leaves the repeating to that layer.
"""

from __future__ import annotations

import math
import random
import socket
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, NoReturn

import tenacity

from parallelsearch.errors import ParallelSearchError, TransientError

if TYPE_CHECKING:
    import httpx

# Request time-out, too early, rate limit. Every 5xx but "not implemented" and "version not supported" joins them.
_TRANSIENT_STATUS = frozenset({408, 425, 429})
_PERMANENT_STATUS = frozenset({501, 505})
_MAX_DETAIL = 300


def retrying(
    attempts: int,
    max_wait_s: float = 30.0,
    first_wait_s: float = 0.5,
    error: type[TransientError] = TransientError,
) -> tenacity.AsyncRetrying:
    """Try up to `attempts` times, as long as `error` is raised; the wait doubles from `first_wait_s` to `max_wait_s`.

    Use it as `async for attempt in retrying(4): with attempt: ...` or `await retrying(4)(function, argument)`. The last
    error comes out with the number of attempts in its message; other errors come out at once and unchanged.
    """

    def too_long(state: tenacity.RetryCallState) -> bool:
        asked_s = _asked_wait_s(state)
        return asked_s is not None and asked_s > max_wait_s

    def wait_s(state: tenacity.RetryCallState) -> float:
        asked_s = _asked_wait_s(state)
        if asked_s is not None:  # a tenth of jitter on top: many rollouts are told the same second
            return asked_s * (1 + 0.1 * random.random())
        ceiling_s = min(max_wait_s, first_wait_s * 2.0 ** min(state.attempt_number - 1, 32))
        return ceiling_s * random.uniform(0.5, 1.0)

    def give_up(state: tenacity.RetryCallState) -> NoReturn:
        last = _failure(state)
        if last is None:  # not reached: the callback runs only after a failed attempt
            raise RuntimeError("gave up without a failure")
        if too_long(state):
            why = f"; the server asks to wait {last.retry_after_s:.0f} s, more than the {max_wait_s:.0f} s allowed"
        else:
            why = f" (after {attempts} attempts)" if attempts > 1 else ""
        raise type(last)(f"{last}{why}", last.retry_after_s) from last

    return tenacity.AsyncRetrying(
        stop=lambda state: state.attempt_number >= attempts or too_long(state),
        wait=wait_s,
        retry=tenacity.retry_if_exception_type(error),
        retry_error_callback=give_up,
    )


def _failure(state: tenacity.RetryCallState) -> TransientError | None:
    last = state.outcome.exception() if state.outcome is not None else None
    return last if isinstance(last, TransientError) else None


def _asked_wait_s(state: tenacity.RetryCallState) -> float | None:
    last = _failure(state)
    return None if last is None else last.retry_after_s


def retry_after_s(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """The seconds a server asks to wait: `retry-after-ms`, or `Retry-After` as seconds or as an HTTP date.

    None if there is no such header or it makes no sense. `headers` is case-insensitive, as httpx's is, or lower-case.
    """
    milliseconds = _seconds(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    seconds = _seconds(value)
    if seconds is not None or value is None:
        return seconds
    try:
        date = parsedate_to_datetime(value.strip())
    except (ValueError, OverflowError):
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, (date - (now or datetime.now(UTC))).total_seconds())


def _seconds(value: str | None) -> float | None:
    try:
        number = float(value) if value is not None else math.nan
    except ValueError:
        return None
    return max(0.0, number) if math.isfinite(number) else None


def response_error(
    response: httpx.Response,
    what: str,
    permanent: type[ParallelSearchError],
    transient: type[TransientError] = TransientError,
) -> ParallelSearchError | None:
    """The error a response stands for, to be raised or returned by the caller; None if its status is fine.

    408, 425, 429 and 5xx give `transient` with the server's Retry-After, any other from 300 on gives `permanent`.
    `what` names the server in the message ("search server"). A streamed response must have been read (`aread`) before.
    """
    status = response.status_code
    if status < 300:
        return None
    detail = error_detail(response)
    message = f"{what} {_address(response.request.url)} answered {status} {response.reason_phrase}".rstrip()
    message = f"{message}: {detail}" if detail else message
    if status in _TRANSIENT_STATUS or (status >= 500 and status not in _PERMANENT_STATUS):
        return transient(message, retry_after_s(response.headers))
    if 300 <= status < 400:
        message += f". It redirects to {response.headers.get('location', 'nowhere')}: use that address"
    return permanent(message)


def error_detail(response: httpx.Response) -> str:
    """What the body of a bad response says, on one line and short: OpenAI's, FastAPI's or plain text."""
    try:
        body = response.json()
    except ValueError:
        body = response.text
    for _ in range(2):  # {"error": {"message": ...}}, {"error": ...}, {"detail": ...}
        if isinstance(body, dict):
            body = next((body[key] for key in ("error", "message", "detail") if body.get(key)), body)
    text = " ".join(str(body).split())
    return text if len(text) <= _MAX_DETAIL else text[: _MAX_DETAIL - 3] + "..."


def transport_error(
    error: httpx.HTTPError | httpx.InvalidURL,
    what: str,
    permanent: type[ParallelSearchError],
    transient: type[TransientError] = TransientError,
) -> ParallelSearchError:
    """The error a call without a response stands for: `raise transport_error(error, ...) from error`.

    A connection that was refused, lost or not made in time is worth repeating. An unknown host name, a bad address and
    a time-out while waiting for the answer are not: the work was probably done, and would be done again.
    """
    import httpx

    try:
        where = _address(error.request.url) if isinstance(error, httpx.RequestError) else ""
    except RuntimeError:  # httpx's own errors may lack a request
        where = ""
    target = f"{what} {where}".rstrip()
    if isinstance(error, httpx.ConnectTimeout | httpx.PoolTimeout):
        return transient(f"{target} could not be reached in time")
    if isinstance(error, httpx.TimeoutException):
        return permanent(f"{target} did not answer in time")
    if isinstance(error, httpx.InvalidURL | httpx.UnsupportedProtocol):
        return permanent(f"{target} has a bad address: {error}")
    causes = _causes(error)
    if any(isinstance(cause, socket.gaierror) and cause.errno != socket.EAI_AGAIN for cause in causes):
        return permanent(f"{target} has an unknown host name ({error})")
    if any(isinstance(cause, ssl.SSLError) for cause in causes):
        return permanent(f"{target} has no valid TLS connection to offer ({error})")
    if isinstance(error, httpx.ConnectError):
        return transient(f"{target} refused the connection; is it running? ({error})")
    if isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError):
        return transient(f"{target} broke the connection off ({str(error) or type(error).__name__})")
    return permanent(f"{target} failed: {str(error) or type(error).__name__}")


def _causes(error: BaseException) -> list[BaseException]:
    """The error and everything it was raised from: httpx keeps the socket's own error there."""
    found: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in found:
        found.append(cause)
        cause = cause.__cause__ or cause.__context__
    return found


def _address(url: httpx.URL) -> str:
    """The address as a message may show it: without user, password, query and fragment, which may hold a key."""
    return str(url.copy_with(username=None, password=None, query=None, fragment=None))

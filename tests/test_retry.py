"""Which failures are repeated, when, and what the errors say."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from parallelsearch.errors import SearchError, TransientError, TransientSearchError
from parallelsearch.http import retry_after_s, retrying
from virtual_time import in_virtual_time

NOW = datetime(2026, 11, 15, 12, 0, 0, tzinfo=UTC)


class Flaky:
    """Fails with the given errors, one after the other, then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.times_s: list[float] = []

    async def __call__(self) -> str:
        self.times_s.append(time.perf_counter())
        if self.errors:
            raise self.errors.pop(0)
        return "answer"

    @property
    def waits_s(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.times_s, self.times_s[1:], strict=False)]


@in_virtual_time
async def test_transient_errors_are_repeated_with_growing_waits() -> None:
    call = Flaky(*(TransientError("busy") for _ in range(3)))
    assert await retrying(4, first_wait_s=0.1)(call) == "answer"
    assert len(call.waits_s) == 3
    for wait_s, ceiling_s in zip(call.waits_s, (0.1, 0.2, 0.4), strict=True):
        assert ceiling_s / 2 <= wait_s <= ceiling_s + 0.001


@in_virtual_time
async def test_waits_never_grow_beyond_the_limit() -> None:
    call = Flaky(*(TransientError("busy") for _ in range(6)))
    assert await retrying(7, max_wait_s=0.02, first_wait_s=0.01)(call) == "answer"
    assert max(call.waits_s) <= 0.021


async def test_last_error_keeps_its_type_and_says_how_often_it_was_tried() -> None:
    call = Flaky(*(TransientSearchError("busy") for _ in range(9)))
    with pytest.raises(TransientSearchError, match=r"^busy \(after 3 attempts\)$"):
        await retrying(3, first_wait_s=0.01)(call)
    assert len(call.times_s) == 3
    with pytest.raises(TransientError, match=r"^busy$"):
        await retrying(1)(Flaky(TransientError("busy")))


async def test_other_errors_come_out_at_once() -> None:
    for error in (SearchError("bad query"), ValueError("bug"), TransientError("not the kind asked for")):
        call = Flaky(error)
        with pytest.raises(type(error), match=str(error)):
            await retrying(5, error=TransientSearchError)(call)
        assert len(call.times_s) == 1


@in_virtual_time
async def test_retry_after_wins_over_back_off() -> None:
    call = Flaky(TransientError("busy", 0.2), TransientError("busy", 0.0))
    await retrying(3, first_wait_s=20.0)(call)
    assert 0.2 <= call.waits_s[0] <= 0.25, "and a little, so that not all come at once"
    assert call.waits_s[1] < 0.01


async def test_retry_after_beyond_the_limit_is_not_slept() -> None:
    call = Flaky(TransientError("busy", 31.0))
    with pytest.raises(
        TransientError, match=r"busy; the server asks to wait 31 s, more than the 30 s allowed"
    ) as caught:
        await retrying(5, max_wait_s=30.0)(call)
    assert caught.value.retry_after_s == 31.0
    assert len(call.times_s) == 1


@in_virtual_time
async def test_a_limit_of_calls_turns_nobody_away_for_good() -> None:
    """Eight calls in ten seconds, and forty who come at once: whoever is put off four times was given up before."""
    taken_s: list[float] = []
    num_refused = 0

    async def call() -> str:
        nonlocal num_refused
        now_s = asyncio.get_running_loop().time()
        taken_s[:] = [at_s for at_s in taken_s if at_s > now_s - 10]
        if len(taken_s) >= 8:
            num_refused += 1
            raise TransientError("slow down", taken_s[0] + 10 - now_s)
        taken_s.append(now_s)
        return "answer"

    async def one() -> str:
        return await retrying(4, max_wait_s=60.0, patience_s=300.0)(call)

    assert await asyncio.gather(*(one() for _ in range(40))) == ["answer"] * 40
    assert num_refused < 200
    with pytest.raises(TransientError, match="slow down"):
        await asyncio.gather(*(retrying(4, max_wait_s=60.0)(call) for _ in range(40)))


@in_virtual_time
async def test_who_is_put_off_for_ever_is_given_up_when_patience_is_over() -> None:
    call = Flaky(*(TransientError("no more today", 1.0) for _ in range(999)))
    with pytest.raises(TransientError, match=r"^no more today \(after \d+ attempts\)$"):
        await retrying(4, max_wait_s=60.0, patience_s=300.0)(call)
    assert len(call.times_s) < 30
    assert 300 <= sum(call.waits_s) < 500


@in_virtual_time
async def test_waits_that_were_asked_for_are_no_attempts_at_what_fails_otherwise() -> None:
    errors = [TransientError("slow down", 1.0), TransientError("broken"), TransientError("slow down", 1.0)]
    call = Flaky(*errors, TransientError("broken"), TransientError("broken"))
    with pytest.raises(TransientError, match=r"^broken \(after 5 attempts\)$"):
        await retrying(3, patience_s=60.0)(call)


async def test_loop_form() -> None:
    call = Flaky(TransientError("busy"))
    async for attempt in retrying(2, first_wait_s=0.01):
        with attempt:
            result = await call()
    assert result == "answer"


@in_virtual_time
async def test_cancelling_ends_the_waiting() -> None:
    call = Flaky(TransientError("busy", 20.0))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await retrying(2)(call)
    assert len(call.times_s) == 1


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": " 0.25 "}, 0.25),
        ({"Retry-After": "-3"}, 0.0),
        ({"Retry-After": format_datetime(NOW + timedelta(seconds=90), usegmt=True)}, 90.0),
        ({"Retry-After": "Sun, 15 Nov 2026 13:00:00 +0100"}, 0.0),
        ({"Retry-After": "Sun, 15 Nov 2026 11:00:00 GMT"}, 0.0),
        ({"Retry-After": "Sun, 15 Nov 2026 12:00:05 -0000"}, 5.0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": ""}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "inf"}, None),
        ({"Retry-After": "Sun, 99 Nov 2026 12:00:05 GMT"}, None),
        ({"Retry-After": "9", "retry-after-ms": "1500"}, 1.5),
        ({"Retry-After": "9", "retry-after-ms": "x"}, 9.0),
    ],
)
def test_retry_after(headers: dict[str, str], expected: float | None) -> None:
    assert retry_after_s(CIMultiDict(headers), now=NOW) == expected


@given(st.text(st.characters(max_codepoint=255, exclude_characters="\r\n\0")))
def test_retry_after_never_raises(value: str) -> None:
    seconds = retry_after_s({"retry-after": value})
    assert seconds is None or seconds >= 0

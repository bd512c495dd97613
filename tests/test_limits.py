"""Limits of the wrong type, when a turn goes in circles, and when it only looks like it."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from parallelsearch.errors import UsageError
from parallelsearch.limits import LONGEST_LOOP, Limits, Prices, goes_in_circles
from parallelsearch.policy.base import Sampling
from parallelsearch.rewards import Weights

FAR = list(range(1000, 1100))


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (Limits, {"max_turns": 2.5}, "max_turns must be a whole number, not 2.5"),
        (Limits, {"max_turns": True}, "max_turns must be a whole number, not True"),
        (Limits, {"max_tokens": "50"}, "max_tokens must be a whole number, not '50'"),
        (Limits, {"max_tokens_per_turn": None}, "max_tokens_per_turn must be a whole number, not None"),
        (Limits, {"max_billed_tokens": "50"}, "max_billed_tokens must be a whole number, not '50'"),
        (Limits, {"timeout_s": "5"}, "timeout_s must be a number above 0, not '5'"),
        (Limits, {"max_cost": "1", "prices": Prices()}, "max_cost must be a number above 0, not '1'"),
        (Prices, {"input_per_million": "1"}, "input_per_million must be a number, 0 or more, not '1'"),
        (Sampling, {"temperature": "0.7"}, "temperature is a number from 0 on, not '0.7'"),
        (Sampling, {"top_p": None}, "top_p is a number above 0 and at most 1, not None"),
        (Weights, {"alpha": "3"}, "'alpha' must be a number, 0 or more, not '3'"),
    ],
)
def test_a_number_of_the_wrong_type_is_named(make: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make(**options)


def test_a_whole_number_of_another_library_is_one() -> None:
    assert Limits(max_turns=np.int64(3), timeout_s=np.float32(5)).max_turns == 3


@pytest.mark.parametrize("size", [1, 2, 7, 40, 64, 150, LONGEST_LOOP])
def test_a_piece_three_times_is_a_loop_however_it_began(size: int) -> None:
    piece = list(range(size))
    times = max(3, -(-64 // size))
    assert goes_in_circles(FAR + piece * times)
    assert goes_in_circles(FAR + piece * times + piece[: size // 2]), "cut in the middle of the piece"
    assert not goes_in_circles(FAR + piece * (times - 1))
    assert not goes_in_circles(FAR + piece * times + [-1]), "it has gone on"


def test_what_may_be_meant_is_no_loop() -> None:
    assert not goes_in_circles([])
    assert not goes_in_circles([5] * 63)
    lines = [token for number in range(20) for token in (1, 2, 3, number, 4)]
    assert not goes_in_circles(lines), "lines that differ in one word"
    assert not goes_in_circles(list(range(LONGEST_LOOP + 1)) * 3)
    assert goes_in_circles("Ra, " * 30)
    assert not goes_in_circles("yes, " * 8)


class Counted(list[int]):
    """Tokens that count how often they are looked at from Python."""

    num_looks = 0

    def __getitem__(self, place: Any) -> Any:
        self.num_looks += 1
        return super().__getitem__(place)


def test_a_look_at_a_turn_without_a_loop_costs_little() -> None:
    """It is done every few tokens for hundreds of turns at once, between two steps of the GPU."""
    turn = Counted(random.Random(0).choices(range(2_000), k=500))
    assert not goes_in_circles(turn)
    assert turn.num_looks < 10

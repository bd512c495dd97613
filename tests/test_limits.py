"""When a turn goes in circles, and when it only looks like it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from parallelsearch.limits import LONGEST_LOOP, goes_in_circles

FAR = list(range(1000, 1100))


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

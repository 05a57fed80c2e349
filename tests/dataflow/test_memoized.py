"""Questions that lead to others, as deep as they may."""

from __future__ import annotations

import sys

import pytest

from onegru.dataflow.memoized import memoized

DEEP = 20_000


class Numbers:
    def __init__(self) -> None:
        self.sums: dict[int, int] = {}
        self.rounds: dict[int, str] = {}
        self.odd: dict[int, bool] = {}
        self.even: dict[int, bool] = {}
        self.calls = 0

    @memoized("sums")
    def sum(self, number: int) -> int:
        self.calls += 1
        if number == 0:
            return 0
        return number + self.sum(number - 1) + 0 * self.sum(number // 2)

    @memoized("odd")
    def is_odd(self, number: int) -> bool:
        return number > 0 and self.is_even(number - 1)

    @memoized("even")
    def is_even(self, number: int) -> bool:
        return number == 0 or self.is_odd(number - 1)

    @memoized("rounds", if_circular=lambda owner, number: f"circle at {number}")
    def round(self, number: int) -> str:
        return self.round((number + 1) % DEEP)

    @memoized("sums")
    def failing(self, number: int) -> int:
        if number == 0:
            raise ValueError("at the bottom")
        try:
            return self.failing(number - 1)
        except ValueError:
            if number == DEEP // 2:
                return number
            raise


def test_a_chain_is_answered_without_recursion_and_in_linear_time() -> None:
    numbers = Numbers()
    before = sys.getrecursionlimit()
    assert numbers.sum(DEEP) == DEEP * (DEEP + 1) // 2
    assert sys.getrecursionlimit() == before
    assert numbers.calls < 4 * DEEP
    assert numbers.sum(DEEP) and len(numbers.sums) == DEEP + 1


def test_questions_of_several_kinds_lead_to_each_other() -> None:
    numbers = Numbers()
    assert numbers.is_even(DEEP)
    assert not numbers.is_odd(DEEP)


def test_a_circle_ends() -> None:
    assert Numbers().round(7).startswith("circle at")


def test_an_asker_sees_what_its_question_raises() -> None:
    assert Numbers().failing(DEEP) == DEEP // 2
    numbers = Numbers()
    with pytest.raises(ValueError, match="at the bottom"):
        numbers.failing(DEEP // 2 - 1)
    with pytest.raises(ValueError, match="at the bottom"):  # nothing is left of it
        numbers.failing(3)
    assert numbers.sum(3) == 6

"""The distribution of tests over processes."""

from __future__ import annotations

from typing import Literal

from tests.support.order import arranged

ITEMS = [f"{module}{number}" for module in "aBcDwe" for number in range(8)]
"""Modules of eight tests each: those with a capital letter are slow, `w` waits, and the others compute."""


def _sort(item: str) -> Literal["slow", "waits", "computes"]:
    return "slow" if item[0].isupper() else "waits" if item[0] == "w" else "computes"


def _arranged(items: list[str], pieces: int) -> list[str]:
    return arranged(items, pieces, sort=_sort, module=lambda item: item[0])


def test_most_pieces_begin_with_slow_and_waiting_tests_and_the_others_only_compute() -> None:
    found = _arranged(ITEMS, 3)

    first, second, third = found[:16], found[16:32], found[32:]
    assert first == [*(f"B{number}" for number in range(8)), "w0", "w1", "w2", "w3", "a0", "a1", "a2", "a3"]
    assert second[:12] == [*(f"D{number}" for number in range(8)), "w4", "w5", "w6", "w7"]
    assert {_sort(item) for item in third} == {"computes"}


def test_no_test_is_lost_or_repeated_with_any_number_of_processes() -> None:
    for pieces in range(1, 60):
        for count in (0, 1, 7, len(ITEMS)):
            assert sorted(_arranged(ITEMS[:count], pieces)) == sorted(ITEMS[:count])

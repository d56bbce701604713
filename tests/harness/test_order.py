"""The distribution of tests over processes."""

from __future__ import annotations

from tests.support.order import Sort, arranged

ITEMS = [f"{module}{number}" for module in "aBcDwe" for number in range(8)]
"""Modules of eight tests each: those with a capital letter are slow, `w` waits, and the others compute."""
LONG = [f"L{number}" for number in range(8)]


def _sort(item: str) -> Sort:
    if item[0] == "L":
        return "long"
    return "slow" if item[0].isupper() else "waits" if item[0] == "w" else "computes"


def _arranged(items: list[str], pieces: int) -> list[str]:
    return arranged(items, pieces, sort=_sort, module=lambda item: item[0])


def test_most_pieces_begin_with_slow_and_waiting_tests_and_the_others_only_compute() -> None:
    found = _arranged(ITEMS, 3)

    first, second, third = found[:16], found[16:32], found[32:]
    assert first == [*(f"B{number}" for number in range(8)), "w0", "w1", "w2", "w3", "a0", "a1", "a2", "a3"]
    assert second[:12] == [*(f"D{number}" for number in range(8)), "w4", "w5", "w6", "w7"]
    assert {_sort(item) for item in third} == {"computes"}


def test_long_tests_are_dealt_out_to_all_pieces_and_come_first() -> None:
    found = _arranged([*ITEMS, *LONG, "w8"], 3)

    first, second, third = found[:19], found[19:38], found[38:]
    assert first[:4] == ["L0", "L3", "L6", "B0"]
    assert second[:4] == ["L1", "L4", "L7", "D0"]
    assert third[:2] == ["L2", "L5"]
    assert {_sort(item) for item in third[2:]} == {"computes"}


def test_no_test_is_lost_or_repeated_with_any_number_of_processes() -> None:
    for pieces in range(1, 60):
        for count in (0, 1, 7, len(ITEMS)):
            for items in (ITEMS[:count], ITEMS[:count] + LONG):
                assert sorted(_arranged(items, pieces)) == sorted(items)

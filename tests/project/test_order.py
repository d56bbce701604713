"""The distribution of tests over processes."""

from __future__ import annotations

from tests.support.order import arranged

ITEMS = [f"{module}{number}" for module in "aBcDe" for number in range(8)]
"""Modules of eight tests each; capital letters mark slow ones."""


def _arranged(items: list[str], pieces: int) -> list[str]:
    return arranged(items, pieces, is_slow=lambda item: item[0].isupper(), module=lambda item: item[0])


def test_each_piece_begins_with_slow_tests_and_keeps_a_module_together() -> None:
    found = _arranged(ITEMS, 2)

    assert found[:8] == [f"B{number}" for number in range(8)]
    assert found[20:28] == [f"D{number}" for number in range(8)]
    assert [item for item in found if item[0].islower()] == [item for item in ITEMS if item[0].islower()]


def test_no_test_is_lost_or_repeated_with_any_number_of_processes() -> None:
    for pieces in range(1, 60):
        for count in (0, 1, 7, len(ITEMS)):
            assert sorted(_arranged(ITEMS[:count], pieces)) == sorted(ITEMS[:count])

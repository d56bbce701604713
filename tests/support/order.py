"""The order of the tests if several processes run them: each process begins with its share of the slow ones.

A slow test that starts last keeps one process busy while the others are idle. `--dist worksteal` assigns each process
one piece of the list, and idle processes take tests from the end of another's piece; so each piece is arranged here
to begin with slow tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import TypeVar

import pytest

T = TypeVar("T")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Arrange the tests that remain after all deselection."""
    processes = getattr(config, "workerinput", {}).get("workercount", 1)
    if processes > 1:
        items[:] = arranged(items, processes, is_slow=_is_slow, module=lambda item: item.path)


def _is_slow(item: pytest.Item) -> bool:
    return any(item.iter_markers("slow")) or any(item.iter_markers("long"))


def arranged(
    items: Sequence[T], pieces: int, *, is_slow: Callable[[T], bool], module: Callable[[T], object]
) -> list[T]:
    """Return *items* so that each of *pieces* equal pieces begins with slow ones; those of a module stay together."""
    shares: list[list[T]] = [[] for _ in range(pieces)]
    modules = [list(group) for _, group in groupby(filter(is_slow, items), module)]
    for group in sorted(modules, key=len, reverse=True):
        min(shares, key=len).extend(group)
    rest = [item for item in items if not is_slow(item)]
    return list(_filled(shares, rest, len(items)))


def _filled(shares: Sequence[list[T]], rest: list[T], total: int) -> Iterable[T]:
    """Yield the shares, each followed by enough of the rest to complete its piece."""
    left = total
    for place, share in enumerate(shares):
        # As xdist divides the list.
        size = left // (len(shares) - place)
        count = max(0, size - len(share))
        yield from share
        yield from rest[:count]
        del rest[:count]
        left -= len(share) + count
    yield from rest

"""The order of the tests if several processes run them: slow tests start early, and no processor is idle.

`--dist worksteal` assigns each process one piece of the list, and idle processes take tests from the end of another's
piece, except the next one. A slow test that starts last keeps one process busy while the others are idle. Tests that
wait, for a lease, a process or a server, leave the processors idle if all processes run them at the same time. So
most pieces begin with slow tests, continue with those that wait and end with those that compute; the other pieces
only compute. Tests that take minutes are dealt out over all pieces, before all others.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

import pytest

T = TypeVar("T")
Sort: TypeAlias = Literal["long", "slow", "waits", "computes"]

_TESTS = Path(__file__).parents[1]
# The folders of tests/ whose tests spend more time waiting than computing.
_WAITING = ("postgres", "worker")
# The slow tests of a small module are longer than those of a large one.
_MODULE_WEIGHT = 5


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Arrange the tests that remain after all deselection."""
    processes = getattr(config, "workerinput", {}).get("workercount", 1)
    if processes > 1:
        items[:] = arranged(items, processes, sort=_sort, module=lambda item: item.path)


def _sort(item: pytest.Item) -> Sort:
    if any(item.iter_markers("long")):
        return "long"
    if any(item.iter_markers("slow")):
        return "slow"
    return "waits" if any(item.path.is_relative_to(_TESTS / folder) for folder in _WAITING) else "computes"


def arranged(
    items: Sequence[T],
    pieces: int,
    *,
    sort: Callable[[T], Sort],
    module: Callable[[T], Hashable],
) -> list[T]:
    """Return *items* for *pieces* equal pieces: two thirds of them begin with slow tests, then come those that wait.

    The slow tests of a module stay together; long tests are dealt out to all pieces and come first.
    """
    long, slow, waiting, computing = (
        [item for item in items if sort(item) == wanted] for wanted in ("long", "slow", "waits", "computes")
    )
    shares: list[list[T]] = [[] for _ in range(max(1, pieces * 2 // 3))]
    modules = [list(group) for _, group in groupby(slow, module)]
    weights = [0] * len(shares)
    for group in sorted(modules, key=len, reverse=True):
        lightest = weights.index(min(weights))
        shares[lightest].extend(group)
        weights[lightest] += len(group) + _MODULE_WEIGHT
    for share, more in zip(shares, _divided(waiting, len(shares)), strict=True):
        share.extend(more)
    shares += [[] for _ in range(pieces - len(shares))]
    for place, share in enumerate(shares):
        share[:0] = long[place::pieces]
    return list(_filled(shares, computing, len(items)))


def _divided(items: Sequence[T], parts: int) -> list[Sequence[T]]:
    return [items[len(items) * part // parts : len(items) * (part + 1) // parts] for part in range(parts)]


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

"""How often a process of Holdfast collects garbage."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# After how many new objects the collector runs; Python's default is 700 or 2,000.
_OBJECTS: Final = 10_000


@contextmanager
def rare_collections() -> Iterator[None]:
    """Make the garbage collector run less often during the block, and skip what exists already.

    A thousand jobs that are claimed at once, or the requests of some hundred connections, are more objects than it
    waits for, and none of them is garbage. A collector that is disabled stays so.
    """
    before = gc.get_threshold()
    gc.freeze()
    if before[0]:
        gc.set_threshold(max(before[0], _OBJECTS), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()

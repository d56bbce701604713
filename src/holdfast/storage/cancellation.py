"""Awaited work that is never left behind half done."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def to_its_end(work: Awaitable[T]) -> T:
    """Await *work*; if the task is cancelled meanwhile, let it come to its end before giving way.

    A connection must not be touched by anybody else while something still uses it.
    """
    running = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            # A further cancellation changes nothing.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        raise


async def in_thread(work: Callable[[], T]) -> T:
    """Run *work* in another thread; if the task is cancelled meanwhile, wait for the thread before giving way."""
    return await to_its_end(asyncio.get_running_loop().run_in_executor(None, work))

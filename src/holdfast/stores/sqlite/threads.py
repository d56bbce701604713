"""Blocking work in another thread, never left behind half done."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    """Run *work* in another thread; if the task is cancelled meanwhile, wait for the thread before giving way.

    A connection must not be touched by anybody else while a thread still uses it.
    """
    running = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            # A further cancellation changes nothing: the thread has to come to its end.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        raise

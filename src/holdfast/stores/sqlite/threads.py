"""Blocking work in another thread, never left behind half done."""

from __future__ import annotations

import asyncio
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
        await asyncio.wait([running])
        raise

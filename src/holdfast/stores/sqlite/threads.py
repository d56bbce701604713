"""Blocking work in another thread, never left behind half done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from holdfast.stores.endings import to_its_end

T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    """Run *work* in another thread; if the task is cancelled meanwhile, wait for the thread before giving way."""
    return await to_its_end(asyncio.get_running_loop().run_in_executor(None, work))

"""The two colours: how an operation becomes a method that blocks, or one that is awaited."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from holdfast.client.operations import Operations
from holdfast.stores.drivers import drive, drive_async
from holdfast.stores.engine import AsyncRunner, Runner
from holdfast.stores.script import Procedure

P = ParamSpec("P")
T = TypeVar("T")


class BlockingFace(Protocol):
    """Something whose methods run operations in the caller's thread."""

    _operations: Operations
    _runner: Runner


class AwaitingFace(Protocol):
    """Something whose methods run operations without blocking the event loop."""

    _operations: Operations
    _runner: AsyncRunner


def blocking(
    operation: Callable[Concatenate[Operations, P], Procedure[T]],
) -> Callable[Concatenate[Any, P], T]:
    """Return *operation* as a method that blocks."""

    @functools.wraps(operation)
    def method(self: BlockingFace, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return drive(operation(self._operations, *args, **kwargs), self._runner)

    return method


def awaiting(
    operation: Callable[Concatenate[Operations, P], Procedure[T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return *operation* as a method to be awaited."""

    @functools.wraps(operation)
    async def method(self: AwaitingFace, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await drive_async(operation(self._operations, *args, **kwargs), self._runner)

    return method

"""Turn an operation into a sync or an async method."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from holdfast.client.operations import Operations
from holdfast.storage.runners import SyncRunner, run_leasing
from holdfast.storage.store import Store
from holdfast.storage.transaction import run_sync

P = ParamSpec("P")
T = TypeVar("T")


class HasOperations(Protocol):
    """An object whose methods run operations."""

    _operations: Operations


class HasStore(HasOperations, Protocol):
    """An object whose methods run operations on a store."""

    _store: Store


def leasing_sync_method(
    operation: Callable[Concatenate[Operations, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """Return an *operation* that leases as a sync method, which releases the leased jobs if it is interrupted."""

    @functools.wraps(operation)
    def method(self: HasStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        runner = SyncRunner(self._store)
        return run_leasing(runner, operation(self._operations.on(runner), *args, **kwargs))

    return method


def sync_method(
    operation: Callable[Concatenate[Operations, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """Return *operation* as a sync method."""

    @functools.wraps(operation)
    def method(self: HasOperations, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run_sync(operation(self._operations, *args, **kwargs))

    return method


def async_method(
    operation: Callable[Concatenate[Operations, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return *operation* as an async method."""

    @functools.wraps(operation)
    async def method(self: HasOperations, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await operation(self._operations, *args, **kwargs)

    return method

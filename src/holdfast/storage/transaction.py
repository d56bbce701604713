"""Running operations: the types a store runs, and how sync callers run coroutines that never suspend."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from holdfast.storage.contract import StoreTransaction
from holdfast.storage.query_names import QueryName
from holdfast.storage.sql_queries import Rows

T = TypeVar("T")

Operation: TypeAlias = Callable[[StoreTransaction], Coroutine[Any, Any, T]]
"""A store operation with its arguments bound; it can be run again."""


class PlainForm(NamedTuple):
    """A whole write transaction as one statement, for an engine where each query costs a round trip."""

    name: QueryName
    values: Mapping[str, Any]
    finish: Callable[[Rows], Any]
    """Return the result for the rows of the statement; None if it did nothing and the operation must run."""
    again: Operation[Any]
    """The operation to run instead if it is unknown whether the statement was committed."""
    topics: Sequence[str]
    """The topics to notify."""


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        coroutine.close()
    raise RuntimeError("an operation suspended in a sync transaction")

"""`Queue` and `AsyncQueue`, and their transactions, have the same methods."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import holdfast
from holdfast.client.operations import Operations
from tests.project.sources import assert_none

OWN_TO_QUEUES = {"transaction", "within", "migrate", "close"}
# Called only by workers.
OWN_TO_WORKERS = {"publish_kinds", "renew_many", "problems", "worker_beat", "worker_leave"}
# Bind a runner and the queue's tasks to the operations.
BINDING = {"on", "sync_on", "async_on", "for_tasks"}
OWN_TO_TRANSACTIONS = {"execute"}
# Not awaited: one returns an async context manager, the other only prepares.
NOT_AWAITED = {"transaction", "within"}


def _public(cls: type) -> dict[str, Callable[..., Any]]:
    return {name: value for name, value in vars(cls).items() if callable(value) and not name.startswith("_")}


QUEUE, ASYNC_QUEUE = _public(holdfast.Queue), _public(holdfast.AsyncQueue)
TRANSACTION, ASYNC_TRANSACTION = _public(holdfast.Transaction), _public(holdfast.AsyncTransaction)
# The classes are split over several files by inheritance.
OPERATIONS = {name for part in Operations.__mro__[:-1] for name in _public(part)}


def test_both_queues_offer_the_same_methods() -> None:
    assert QUEUE.keys() == ASYNC_QUEUE.keys()


def test_both_transactions_offer_the_same_methods() -> None:
    assert TRANSACTION.keys() == ASYNC_TRANSACTION.keys()


def test_a_queue_offers_every_operation() -> None:
    assert QUEUE.keys() - OWN_TO_QUEUES == OPERATIONS - OWN_TO_WORKERS - BINDING


def test_a_queue_offers_every_method_of_a_transaction() -> None:
    assert TRANSACTION.keys() - OWN_TO_TRANSACTIONS <= QUEUE.keys()


def test_a_method_has_the_same_signature_and_docstring_on_both_queues() -> None:
    assert_none(_unlike(QUEUE, ASYNC_QUEUE, QUEUE))


def test_a_method_has_the_same_signature_and_docstring_on_both_transactions() -> None:
    assert_none(_unlike(TRANSACTION, ASYNC_TRANSACTION, TRANSACTION))


def test_a_method_has_the_same_signature_and_docstring_on_a_queue_and_its_transaction() -> None:
    assert_none(_unlike(QUEUE, TRANSACTION, TRANSACTION.keys() - OWN_TO_TRANSACTIONS))


def test_no_method_of_the_sync_classes_is_awaited_and_those_of_the_async_classes_are() -> None:
    coroutines = inspect.iscoroutinefunction
    assert_none(name for name, method in (QUEUE | TRANSACTION).items() if coroutines(method))
    assert {name for name, method in ASYNC_QUEUE.items() if not coroutines(method)} == NOT_AWAITED
    assert_none(name for name, method in ASYNC_TRANSACTION.items() if not coroutines(method))


Methods: TypeAlias = Mapping[str, Callable[..., Any]]


def _unlike(one: Methods, other: Methods, names: Iterable[str]) -> list[str]:
    """Return the names of methods that differ in parameters or docstring, or have no docstring."""

    def described(method: Callable[..., Any]) -> object:
        return inspect.signature(method).parameters, method.__doc__

    return [name for name in sorted(names) if not one[name].__doc__ or described(one[name]) != described(other[name])]

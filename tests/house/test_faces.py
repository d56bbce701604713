"""`Queue` and `AsyncQueue` are the same queue in two colours, and so are their transactions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast.client.operations import Operations

OWN_TO_QUEUES = {"transaction", "within", "migrate", "close"}
# What only the runtime of a worker calls.
OWN_TO_WORKERS = {"keep_many", "troubles", "worker_beat", "worker_leave"}
OWN_TO_TRANSACTIONS = {"execute"}
# Not awaited: one is entered with `async with`, the other only prepares.
NOT_AWAITED = {"transaction", "within"}


def _public(face: type) -> dict[str, Callable[..., Any]]:
    return {name: value for name, value in vars(face).items() if callable(value) and not name.startswith("_")}


QUEUE, ASYNC_QUEUE = _public(holdfast.Queue), _public(holdfast.AsyncQueue)
TRANSACTION, ASYNC_TRANSACTION = _public(holdfast.Transaction), _public(holdfast.AsyncTransaction)
# Written in several files, each the base of the next.
OPERATIONS = {name for part in Operations.__mro__[:-1] for name in _public(part)}


def test_both_queues_offer_the_same_methods() -> None:
    assert QUEUE.keys() == ASYNC_QUEUE.keys()


def test_both_transactions_offer_the_same_methods() -> None:
    assert TRANSACTION.keys() == ASYNC_TRANSACTION.keys()


def test_a_queue_offers_every_operation() -> None:
    assert QUEUE.keys() - OWN_TO_QUEUES == OPERATIONS - OWN_TO_WORKERS


def test_what_a_transaction_offers_the_queue_offers_too() -> None:
    assert TRANSACTION.keys() - OWN_TO_TRANSACTIONS <= QUEUE.keys()


@pytest.mark.parametrize("name", sorted(QUEUE))
def test_a_method_has_the_same_signature_and_docstring_on_both_queues(name: str) -> None:
    _assert_alike(QUEUE[name], ASYNC_QUEUE[name])


@pytest.mark.parametrize("name", sorted(TRANSACTION))
def test_a_method_has_the_same_signature_and_docstring_on_both_transactions(name: str) -> None:
    _assert_alike(TRANSACTION[name], ASYNC_TRANSACTION[name])


@pytest.mark.parametrize("name", sorted(TRANSACTION.keys() - OWN_TO_TRANSACTIONS))
def test_a_method_has_the_same_signature_on_a_queue_and_its_transaction(name: str) -> None:
    _assert_alike(QUEUE[name], TRANSACTION[name])


@pytest.mark.parametrize("name", sorted(QUEUE))
def test_the_blocking_face_blocks_and_the_other_is_awaited(name: str) -> None:
    assert not inspect.iscoroutinefunction(QUEUE[name])
    assert inspect.iscoroutinefunction(ASYNC_QUEUE[name]) == (name not in NOT_AWAITED)


@pytest.mark.parametrize("name", sorted(TRANSACTION))
def test_the_blocking_transaction_blocks_and_the_other_is_awaited(name: str) -> None:
    assert not inspect.iscoroutinefunction(TRANSACTION[name])
    assert inspect.iscoroutinefunction(ASYNC_TRANSACTION[name])


def _assert_alike(one: Callable[..., Any], other: Callable[..., Any]) -> None:
    assert inspect.signature(one).parameters == inspect.signature(other).parameters
    assert one.__doc__
    assert one.__doc__ == other.__doc__

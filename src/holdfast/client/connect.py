"""`connect` and `connect_async`: from a URL to a queue. Nothing is opened until it is used."""

from __future__ import annotations

import uuid
from typing import Literal, TypeAlias

from holdfast.client import identity
from holdfast.client.async_queue import AsyncQueue
from holdfast.client.operations import Operations
from holdfast.client.queue import Queue
from holdfast.domain import checks, limits
from holdfast.domain.clock import Clock
from holdfast.domain.errors import InvalidInput
from holdfast.stores.engine import Store
from holdfast.stores.sqlite.store import SqliteStore

Durability: TypeAlias = Literal["full", "relaxed"]


def connect(
    url: str,
    *,
    durability: Durability = "full",
    migrate: bool = True,
    network_files: bool = False,
    clock: Clock | None = None,
) -> Queue:
    """Return the queue at *url*: the path of a SQLite file, `sqlite:///path`, or `:memory:` for one that is not kept.

    With `durability="relaxed"` a power cut may lose the last moments of acknowledged work; a killed process loses
    nothing either way. With `migrate=False` nothing is created: the schema must be there and current, else the first
    use raises. *network_files* admits a file on a network file system, where locks cannot be trusted. *clock*
    replaces the store's clock, for tests.
    """
    return queue_on(_store(url, durability, clock, migrate=migrate, network_files=network_files))


def connect_async(
    url: str,
    *,
    durability: Durability = "full",
    migrate: bool = True,
    network_files: bool = False,
    clock: Clock | None = None,
) -> AsyncQueue:
    """Return the queue at *url* with the same methods as `connect` gives, to be awaited."""
    return async_queue_on(_store(url, durability, clock, migrate=migrate, network_files=network_files))


def queue_on(store: Store) -> Queue:
    """Return a queue on a store made by hand."""
    return Queue(store, _operations(store))


def async_queue_on(store: Store) -> AsyncQueue:
    """Return an awaited queue on a store made by hand."""
    return AsyncQueue(store, _operations(store))


def _store(url: str, durability: Durability, clock: Clock | None, *, migrate: bool, network_files: bool) -> Store:
    checks.one_of(durability, "durability", ("full", "relaxed"))
    checks.name(url, "url", limits.URL_CHARS_MAX)
    scheme, separator, rest = url.partition("://")
    if not separator:
        path = url
    elif scheme == "sqlite" and rest.startswith("/") and len(rest) > 1:
        path = rest[1:]
    else:
        raise InvalidInput("url", f"{url!r} names no store that Holdfast knows; give the path of a SQLite file")
    return SqliteStore(
        path,
        relaxed=durability == "relaxed",
        migrates=checks.flag(migrate, "migrate"),
        network_files=checks.flag(network_files, "network_files"),
        clock=clock,
    )


def _operations(store: Store) -> Operations:
    return Operations(store.engine, identity.worker_name(), uuid.uuid4().hex)

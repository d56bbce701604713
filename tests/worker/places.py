"""Stores for workers in separate processes: one that is always available, and one that a test can interrupt."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from tests.chaos.processes import Child
from tests.support.postgres_server import Server, fresh_database
from tests.worker.children import hold_the_store

PLACES = ["sqlite", "postgres"]


class VanishingFile:
    """A SQLite file; it is unavailable while another process holds its write lock."""

    def __init__(self, folder: Path) -> None:
        self.url = str(folder / "jobs.db")

    @contextmanager
    def unavailable(self) -> Iterator[None]:
        with Child(hold_the_store, self.url) as holder:
            assert holder.hear() == "held"
            yield
            holder.tell()
            holder.end()


class VanishingServer:
    """A separate PostgreSQL server; it is unavailable while it is shut down."""

    def __init__(self, server: Server) -> None:
        self.url = server.url
        self._server = server

    @contextmanager
    def unavailable(self) -> Iterator[None]:
        self._server.stop(immediate=True)
        yield
        self._server.start()


Vanishing: TypeAlias = VanishingFile | VanishingServer
"""A store that a test can make unavailable for a block."""


@contextmanager
def new_store_url(name: str, folder: Path) -> Iterator[str]:
    """Return the URL of a new store."""
    if name == "sqlite":
        yield str(folder / "jobs.db")
    else:
        with fresh_database() as url:
            yield url


@contextmanager
def interruptible_store(name: str, folder: Path) -> Iterator[Vanishing]:
    """Return a new store that can become unavailable."""
    if name == "sqlite":
        yield VanishingFile(folder)
        return
    server = Server()
    try:
        server.start()
        yield VanishingServer(server)
    finally:
        server.close()

"""Stores for workers in processes of their own: one that is there, and one that can vanish and come back."""

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
    """A SQLite file: it is away while somebody holds its only write lock."""

    def __init__(self, folder: Path) -> None:
        self.url = str(folder / "jobs.db")

    @contextmanager
    def away(self) -> Iterator[None]:
        with Child(hold_the_store, self.url) as holder:
            assert holder.hear() == "held"
            yield
            holder.tell()
            holder.end()


class VanishingServer:
    """A PostgreSQL server of its own: it is away while it is shut down."""

    def __init__(self, server: Server) -> None:
        self.url = server.url
        self._server = server

    @contextmanager
    def away(self) -> Iterator[None]:
        self._server.stop(immediate=True)
        yield
        self._server.start()


Vanishing: TypeAlias = VanishingFile | VanishingServer
"""A store that can be taken away: out of every writer's reach for a block."""


@contextmanager
def fresh_place(name: str, folder: Path) -> Iterator[str]:
    """Give the URL of a fresh store."""
    if name == "sqlite":
        yield str(folder / "jobs.db")
    else:
        with fresh_database() as url:
            yield url


@contextmanager
def vanishing_place(name: str, folder: Path) -> Iterator[Vanishing]:
    """Give a fresh store that can vanish."""
    if name == "sqlite":
        yield VanishingFile(folder)
        return
    server = Server()
    try:
        server.start()
        yield VanishingServer(server)
    finally:
        server.close()

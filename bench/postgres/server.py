"""The temporary server on which all candidates are measured."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import psycopg
from tests.support.postgres_server import Server

SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "1GB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
    "timezone": "UTC",
}
"""Full durability. Checkpoints run between the measurements."""


class Arena:
    """A server that creates a new database for each measurement."""

    def __init__(self, place: Path | None = None) -> None:
        self._server = Server(settings=SETTINGS, place=place)
        self._server.start()

    @property
    def folder(self) -> Path:
        """The data directory."""
        return self._server.folder

    def version(self) -> str:
        """Return the server's version and settings."""
        settings = ", ".join(f"{name}={value}" for name, value in SETTINGS.items())
        return f"{self.execute('show server_version')}; {settings}"

    def execute(self, statement: str, database: str = "postgres") -> Any:
        """Execute one statement outside a transaction and return the first value of its result, if any."""
        with psycopg.connect(self._server.database_url(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            row = cursor.fetchone() if cursor.description else None
        return None if row is None else row[0]

    def make(self, template: str | None = None) -> str:
        """Create a database, as a copy of *template* if given, and return its name."""
        name = f"bench_{uuid.uuid4().hex[:12]}"
        copied = "" if template is None else f" template {template}"
        if copied and int(self.execute("show server_version_num")) >= 150_000:
            # Since PostgreSQL 15 the default strategy writes the whole copy to the WAL.
            copied += " strategy file_copy"
        self.execute(f"create database {name}{copied}")
        return name

    def drop(self, name: str) -> None:
        """Drop a database, even if it is in use."""
        self.execute(f"drop database if exists {name} with (force)")

    def url(self, name: str) -> str:
        """Return the URL of a database."""
        return self._server.database_url(name)

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """Yield the URL of an empty database and drop it afterwards, so no candidate flushes another's pages."""
        name = self.make()
        self.execute("checkpoint")
        try:
            yield self.url(name)
        finally:
            self.drop(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

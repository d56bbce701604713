"""The one server that all candidates are measured on, started for the run and gone with it."""

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
"""Durable in full. Checkpoints are made between the measurements rather than within them."""


class Arena:
    """A server, and a fresh database on it for whoever comes next."""

    def __init__(self, place: Path | None = None) -> None:
        self._server = Server(settings=SETTINGS, place=place)
        self._server.start()

    @property
    def folder(self) -> Path:
        """Where its data lies."""
        return self._server.folder

    def version(self) -> str:
        """Return the server's version and settings, as a reader needs them."""
        settings = ", ".join(f"{name}={value}" for name, value in SETTINGS.items())
        return f"{self.ask('show server_version')}; {settings}"

    def ask(self, statement: str, database: str = "postgres") -> Any:
        """Run one statement by itself and return the first value of its answer, if it has one."""
        with psycopg.connect(self._server.database_url(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            row = cursor.fetchone() if cursor.description else None
        return None if row is None else row[0]

    def make(self, template: str | None = None) -> str:
        """Make a database, as a copy of *template* if one is named, and return its name."""
        name = f"bench_{uuid.uuid4().hex[:12]}"
        copied = "" if template is None else f" template {template}"
        if copied and int(self.ask("show server_version_num")) >= 150_000:
            # Since then the whole copy would go through the log of writes, unless told otherwise.
            copied += " strategy file_copy"
        self.ask(f"create database {name}{copied}")
        return name

    def drop(self, name: str) -> None:
        """Remove a database, whoever still uses it."""
        self.ask(f"drop database if exists {name} with (force)")

    def url(self, name: str) -> str:
        """Return the URL of one of its databases."""
        return self._server.database_url(name)

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """Give the URL of an empty database and remove it afterwards; nobody inherits another's unwritten pages."""
        name = self.make()
        self.ask("checkpoint")
        try:
            yield self.url(name)
        finally:
            self.drop(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

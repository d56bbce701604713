from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg import sql

import holdfast
from tests.support.postgres_schemas import migrated_schema
from tests.support.postgres_server import Server, database_url
from tests.support.wire import Wire


@pytest.fixture
def url() -> str:
    """A database that only this worker uses, on the server of the run."""
    return database_url()


@pytest.fixture
def schema(url: str) -> Iterator[str]:
    """The name of a schema without rows. A test may alter it."""
    # Schemas are reused between tests in the database of this process; a module may use another one.
    with migrated_schema() if url == database_url() else _absent_schema(url) as name:
        yield name


@pytest.fixture
def new_schema(url: str) -> Iterator[str]:
    """The name of a schema that does not exist yet, and is dropped after the test."""
    with _absent_schema(url) as name:
        yield name


@contextmanager
def _absent_schema(url: str) -> Iterator[str]:
    name = f"test_{uuid.uuid4().hex[:12]}"
    yield name
    drop_schema(url, name)


@pytest.fixture
def queue(url: str, schema: str) -> Iterator[holdfast.Queue]:
    made = holdfast.connect(url, schema=schema)
    yield made
    made.close()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A running server, on which tests may inject faults; they leave it running and empty."""
    made = Server()
    made.start()
    yield made
    made.close()


@pytest.fixture
def wire(server: Server) -> Iterator[Wire]:
    """A fault-injecting proxy to that server."""
    made = Wire(server.url)
    yield made
    made.close()


def drop_schema(url: str, name: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.SQL("drop schema if exists {} cascade").format(sql.Identifier(name)))

"""The schema is created once and completely, regardless of concurrency and crashes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from multiprocessing.connection import Connection

import psycopg
import pytest
from psycopg import sql

import holdfast
from holdfast.domain.job import JobRow
from holdfast.errors import SchemaMismatch
from tests.chaos.processes import Child, say
from tests.postgres.conftest import drop_schema
from tests.support.postgres_server import Server
from tests.support.wire import Wire

SCHEMA = "holdfast_migrations"


def migrate(pipe: Connection, url: str) -> None:
    """In a child: migrate as soon as the test says so, and send the migrations that were applied."""
    queue = holdfast.connect(url, schema=SCHEMA)
    say(pipe)
    say(pipe, queue.migrate())


@pytest.fixture(autouse=True)
def _no_schema(server: Server) -> Iterator[None]:
    drop_schema(server.url, SCHEMA)
    yield
    drop_schema(server.url, SCHEMA)


def _child(url: str) -> Child:
    """Return a process that is about to connect."""
    child = Child(migrate, url)
    assert child.hear() == "ready"
    return child


@pytest.mark.slow("a server or processes of its own are started")
def test_many_processes_that_start_at_once_make_one_schema(server: Server) -> None:
    with ExitStack() as stack:
        started = [stack.enter_context(_child(server.url)) for _ in range(8)]
        for child in started:
            child.tell()
        applied = sorted(child.hear() for child in started)
    assert applied[:7] == [[]] * 7
    assert applied[7]
    queue = holdfast.connect(server.url, schema=SCHEMA)
    assert queue.enqueue("mail").created
    queue.close()


@pytest.mark.slow("a server or processes of its own are started")
def test_a_migration_that_was_killed_at_any_message_is_done_by_the_next_process(server: Server, wire: Wire) -> None:
    struck = 0
    for nth in range(1, 100):
        with _child(wire.url) as child:
            fault = wire.at(partial(os.kill, child.pid, signal.SIGKILL), nth=nth)
            child.tell()
            # The pending message is still sent, so it may even have been the commit.
            with suppress(EOFError, ConnectionError):
                child.hear()
        wire.calm()
        if not fault.struck.is_set():
            break
        struck += 1
        queue = holdfast.connect(server.url, schema=SCHEMA)
        queue.migrate()
        assert queue.enqueue("mail").created
        queue.close()
        drop_schema(server.url, SCHEMA)
    assert struck > 3


def test_migrating_twice_does_nothing_the_second_time(server: Server) -> None:
    queue = holdfast.connect(server.url, schema=SCHEMA)
    assert queue.migrate()
    assert queue.migrate() == []
    assert holdfast.connect(server.url, schema=SCHEMA).migrate() == []
    queue.close()


def test_nothing_is_made_where_that_is_not_allowed(server: Server) -> None:
    with pytest.raises(SchemaMismatch, match=f"has no Holdfast schema '{SCHEMA}'; `holdfast migrate` creates it"):
        holdfast.connect(server.url, schema=SCHEMA, migrate=False).enqueue("mail")
    with server.superuser() as connection:
        found = connection.execute("select from pg_namespace where nspname = %s", [SCHEMA]).fetchall()
    assert found == []


def test_a_role_that_may_use_the_tables_but_make_none_is_enough_once_the_schema_is_there(server: Server) -> None:
    holdfast.connect(server.url, schema=SCHEMA).migrate()
    with server.superuser() as connection:
        connection.execute("drop role if exists clerk")
        connection.execute("create role clerk login")
        name = sql.Identifier(SCHEMA)
        for granted in (
            "grant usage on schema {} to clerk",
            "grant select, insert, update, delete on all tables in schema {} to clerk",
            "grant usage on all sequences in schema {} to clerk",
        ):
            connection.execute(sql.SQL(granted).format(name))
    queue = holdfast.connect(server.url.replace("postgres@", "clerk@"), schema=SCHEMA)
    queue.enqueue_many([{"kind": "mail"}] * 600)
    assert queue.claim() is not None
    queue.close()


def test_a_server_that_is_too_old_or_not_there_is_told_as_such(server: Server) -> None:
    with pytest.raises(holdfast.errors.StoreUnreachable):
        holdfast.connect("postgresql://postgres@127.0.0.1:1/postgres", schema=SCHEMA).enqueue("mail")
    with pytest.raises(holdfast.HoldfastError):
        holdfast.connect(server.database_url("missing"), schema=SCHEMA).enqueue("mail")


def test_the_row_view_has_the_fields_of_a_job_in_their_order(server: Server) -> None:
    holdfast.connect(server.url, schema=SCHEMA).migrate()
    with psycopg.connect(server.url) as connection:
        view = sql.SQL("select * from {}.job_row").format(sql.Identifier(SCHEMA))
        description = connection.execute(view).description
    assert description is not None
    assert tuple(column.name for column in description) == JobRow._fields

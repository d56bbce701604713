"""The schema is created once and completely, regardless of concurrency and crashes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

import holdfast
from holdfast import SchemaMismatch
from holdfast.domain.job import Job
from tests.postgres.conftest import drop_schema
from tests.support.postgres_server import Server
from tests.support.wire import Wire

SCHEMA = "holdfast_migrations"
# The exit code of a process that migrated; plus one for each migration it applied. A failure exits with 1.
MIGRATED = 10
# Migrates as soon as it is signalled.
MIGRATES = f"""
import holdfast, holdfast.storage.postgres.store, sys
queue = holdfast.connect(sys.argv[1], schema=sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
sys.exit({MIGRATED} + len(queue.migrate()))
"""


@pytest.fixture(autouse=True)
def _no_schema(server: Server) -> Iterator[None]:
    drop_schema(server.url, SCHEMA)
    yield
    drop_schema(server.url, SCHEMA)


def _start(url: str) -> subprocess.Popen[bytes]:
    """Start a process and return once it is about to connect."""
    process = subprocess.Popen(
        [sys.executable, "-c", MIGRATES, url, SCHEMA],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def _go(process: subprocess.Popen[bytes]) -> int:
    process.communicate(b"go\n", timeout=60)
    return process.returncode


@pytest.mark.slow("a server or processes of its own are started")
def test_many_processes_that_start_at_once_make_one_schema(server: Server) -> None:
    started = [_start(server.url) for _ in range(8)]
    for process in started:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()
    applied = sorted(_go(process) for process in started)
    assert applied[:7] == [MIGRATED] * 7
    assert applied[7] > MIGRATED
    queue = holdfast.connect(server.url, schema=SCHEMA)
    assert queue.enqueue("mail").created
    queue.close()


@pytest.mark.slow("a server or processes of its own are started")
def test_a_migration_that_was_killed_at_any_message_is_done_by_the_next_process(server: Server, wire: Wire) -> None:
    struck = 0
    for nth in range(1, 100):
        process = _start(wire.url)
        fault = wire.at(process.kill, nth=nth)
        code = _go(process)
        wire.calm()
        if not fault.struck.is_set():
            break
        # The pending message is still sent, so it may even have been the commit.
        assert code in (-signal.SIGKILL, MIGRATED + 1)
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
    with pytest.raises(SchemaMismatch):
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
    with pytest.raises(holdfast.StoreUnreachable):
        holdfast.connect("postgresql://postgres@127.0.0.1:1/postgres", schema=SCHEMA).enqueue("mail")
    with pytest.raises(holdfast.HoldfastError):
        holdfast.connect(server.database_url("missing"), schema=SCHEMA).enqueue("mail")


def test_the_row_view_has_the_fields_of_a_job_in_their_order(server: Server) -> None:
    holdfast.connect(server.url, schema=SCHEMA).migrate()
    with psycopg.connect(server.url) as connection:
        view = sql.SQL("select * from {}.job_row").format(sql.Identifier(SCHEMA))
        description = connection.execute(view).description
    assert description is not None
    assert tuple(column.name for column in description) == Job._fields

"""Migrated PostgreSQL schemas for tests: emptied after each test, because creating one takes 100 times as long.

`take` returns a schema that is equivalent to a newly migrated one; `give_back` empties it for the next test. A schema
that a test has altered, or that is still in use, is dropped instead.
"""

from __future__ import annotations

import atexit
import functools
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import psycopg
from psycopg import sql

from holdfast.storage.postgres.migrate import migrate
from tests.support import postgres_connections
from tests.support.postgres_invariants import VIOLATIONS
from tests.support.postgres_server import database_url, terminate_backends

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

# The functions that empty a schema are stored outside of it, so that a test does not see them.
_TOOLS = "test_tools"
QUIET_SECONDS = 5.0
_LOCK_SECONDS = 5
# Above this size a table is truncated, so that later tests do not scan its dead rows.
_BYTES_DELETED = 262_144

_BUSY = """select count(*) from pg_stat_activity
            where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
              and state <> 'idle'"""
# Everything in a schema that a test could add, alter or remove, except rows.
_SHAPE = """select md5(string_agg(part, ' ' order by part)) from (
        select format('%s %s %s %s', oid, relname, relnatts, relchecks) from pg_class
         where relnamespace = {schema}::regnamespace
        union all
        select format('%s %s', oid, proname) from pg_proc where pronamespace = {schema}::regnamespace
    ) as parts (part)"""


class _State:
    """The state of this process between tests: free schemas, and a connection."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.free: list[str] = []
        self._connection: Connection | None = None

    def execute(self, query: sql.SQL | sql.Composed) -> list[tuple[Any, ...]]:
        """Run a statement, on a new connection if a test has closed the current one."""
        try:
            return self._execute(query)
        except psycopg.OperationalError:
            if self._connection is not None and not self._connection.closed:
                raise
            return self._execute(query)

    def _execute(self, query: sql.SQL | sql.Composed) -> list[tuple[Any, ...]]:
        if self._connection is None or self._connection.closed:
            options = f"-clock_timeout={_LOCK_SECONDS}s -cclient_min_messages=warning"
            self._connection = psycopg.connect(database_url(), autocommit=True, options=options)
        cursor = self._connection.execute(query)
        return cursor.fetchall() if cursor.description is not None else []

    def close(self) -> None:
        """Close the connection, unless a parent process owns it."""
        if self._connection is not None and self.process == os.getpid():
            self._connection.close()


_states = [_State()]


def _state() -> _State:
    # Inherited by a forked child, but owned by its parent.
    if _states[-1].process != os.getpid():
        _states.append(_State())
    return _states[-1]


@atexit.register
def _close() -> None:
    _states[-1].close()


def take() -> str:
    """Return the name of an unused migrated schema without rows, in the database of this process."""
    free = _state().free
    return free.pop() if free else _make()


def give_back(name: str, *, trusted: bool = True) -> None:
    """Empty a schema for the next test. Drop it if it is not *trusted*, as after a failed test.

    A test fails if it leaves tables that contradict each other.
    """
    if trusted and _quiet() and _emptied(name):
        _state().free.append(name)
    else:
        discard(name)


@contextmanager
def migrated_schema() -> Iterator[str]:
    """Yield a migrated schema for a block."""
    name = take()
    trusted = False
    try:
        yield name
        trusted = True
    finally:
        give_back(name, trusted=trusted)


def rows(name: str) -> list[tuple[Any, ...]]:
    """Return all rows of a schema: tables, and the rows of each as text."""
    return _state().execute(_reading(name))


@functools.cache
def _reading(name: str) -> sql.Composed:
    tables = _state().execute(
        sql.SQL("select relname from pg_class where relnamespace = {}::regnamespace and relkind = 'r'").format(
            sql.Literal(name)
        )
    )
    return sql.SQL(" union all ").join(
        sql.SQL("select {}, array(select t::text from {} t order by 1)").format(
            sql.Literal(table), sql.Identifier(name, table)
        )
        for (table,) in tables
    )


def discard(name: str) -> None:
    """Drop a schema, even if connections still use it."""
    postgres_connections.forget(name)
    terminate_backends(database_url())
    _state().execute(sql.SQL("drop schema if exists {} cascade").format(sql.Identifier(name)))
    _state().execute(sql.SQL("drop function if exists {}").format(sql.Identifier(_TOOLS, name)))


def _quiet() -> bool:
    """Return whether no transaction of the test is open any more, after waiting for them."""
    until = time.monotonic() + QUIET_SECONDS
    while (busy := _state().execute(sql.SQL(_BUSY))[0][0]) and time.monotonic() < until:
        time.sleep(0.005)
    return not busy


def _emptied(name: str) -> bool:
    try:
        return bool(_state().execute(sql.SQL("select {}()").format(sql.Identifier(_TOOLS, name)))[0][0])
    except psycopg.errors.LockNotAvailable:
        return False
    except psycopg.errors.RaiseException:
        discard(name)
        raise


# --- creating a schema ---------------------------------------------------------------------------------------------


def _make() -> str:
    name = f"test_{uuid.uuid4().hex[:16]}"
    with psycopg.connect(database_url(), autocommit=True) as connection:
        _migrate(connection, name)
    return name


def make_empty(url: str, name: str) -> None:
    """Make a migrated schema without rows in a database: empty it if this function made it before."""
    with psycopg.connect(url, autocommit=True, options="-cclient_min_messages=warning") as connection:
        function = sql.Identifier(_TOOLS, name)
        [[known]] = connection.execute("select to_regprocedure(%s)", [f"{function.as_string(connection)}()"])
        if known and connection.execute(sql.SQL("select {}()").format(function)).fetchone() == (True,):
            return
        connection.execute(sql.SQL("drop schema if exists {} cascade").format(sql.Identifier(name)))
        if known:
            connection.execute(sql.SQL("drop function {}").format(function))
        _migrate(connection, name)


def _migrate(connection: Connection, name: str) -> None:
    migrate(connection, name)
    connection.execute(sql.SQL("create schema if not exists {}").format(sql.Identifier(_TOOLS)))
    connection.execute(_function(connection, name))


def _function(connection: Connection, schema: str) -> sql.Composed:
    """Return the statement that creates the function which empties *schema*, or returns false if it was altered."""
    relations = "select oid::int, relname from pg_class where relnamespace = {}::regnamespace and relkind = {}"

    def named(kind: str) -> list[tuple[Any, ...]]:
        return connection.execute(sql.SQL(relations).format(sql.Literal(schema), sql.Literal(kind))).fetchall()

    tables = [(number, sql.Identifier(schema, name)) for number, name in named("r")]
    steps: list[sql.Composable] = [
        sql.SQL("""for extra in select oid::regclass from pg_class
                    where relnamespace = {}::regnamespace and relkind = 'r' and oid <> all ({}::oid[])
                   loop execute format('drop table %s cascade', extra); end loop;""").format(
            sql.Literal(schema), sql.Literal([number for number, _ in tables])
        )
    ]
    shape = sql.SQL(_SHAPE).format(schema=sql.Literal(schema))
    [[fresh]] = connection.execute(shape)
    steps.append(sql.SQL("if ({}) <> {} then return false; end if;").format(shape, sql.Literal(fresh)))
    violations = sql.SQL(VIOLATIONS).format(schema=sql.Identifier(schema))
    steps.append(
        sql.SQL("""problem := (select string_agg(v::text, ' ') from ({}) v);
                   if problem is not null then raise exception 'the tables disagree: %', problem; end if;""").format(
            violations
        )
    )
    for number, table in tables:
        steps.append(
            sql.SQL("if pg_relation_size({}) > {} then truncate {}; else delete from {}; end if;").format(
                sql.Literal(number), sql.Literal(_BYTES_DELETED), table, table
            )
        )
        [[rows]] = connection.execute(sql.SQL("select jsonb_agg(to_jsonb(t))::text from {} t").format(table))
        if rows is not None:
            steps.append(
                sql.SQL("insert into {} select * from jsonb_populate_recordset(null::{}, {});").format(
                    table, table, sql.Literal(rows)
                )
            )
    steps += [sql.SQL("perform setval({}, 1, false);").format(sql.Literal(number)) for number, _ in named("S")]
    steps.append(
        sql.SQL("update {} set value = gen_random_uuid()::text where name = 'identity';").format(
            sql.Identifier(schema, "meta")
        )
    )
    declared = "declare extra regclass; problem text;"
    body = sql.SQL(declared + " begin {} return true; end").format(sql.SQL("\n").join(steps))
    return sql.SQL("create function {}() returns boolean language plpgsql as {}").format(
        sql.Identifier(_TOOLS, schema), sql.Literal(body.as_string(connection))
    )

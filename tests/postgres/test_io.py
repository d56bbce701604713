"""Faults occur where they are injected; otherwise the tests that use them would prove nothing."""

from __future__ import annotations

import psycopg
import pytest

from tests.support import pgbouncer
from tests.support.postgres_server import Server
from tests.support.wire import Wire


@pytest.fixture(autouse=True)
def _table(server: Server) -> None:
    with server.superuser() as connection:
        connection.execute("drop table if exists kept")
        connection.execute("create table kept (x int)")


def _kept(server: Server) -> int:
    with server.superuser() as connection:
        return len(connection.execute("select x from kept").fetchall())


def _insert(wire: Wire) -> None:
    with psycopg.connect(wire.url) as connection:
        connection.execute("insert into kept values (%s)", [1])


def test_a_calm_wire_changes_nothing(wire: Wire, server: Server) -> None:
    _insert(wire)
    assert _kept(server) == 1


@pytest.mark.parametrize(("answered", "kept"), [(False, 0), (True, 1)])
def test_a_commit_is_cut_before_it_reaches_the_server_or_after_it_was_answered(
    wire: Wire, server: Server, *, answered: bool, kept: int
) -> None:
    fault = wire.cut(contains=b"commit", answered=answered)
    with pytest.raises(psycopg.OperationalError):
        _insert(wire)
    assert fault.struck.is_set()
    assert _kept(server) == kept
    _insert(wire)
    assert _kept(server) == kept + 1


def test_every_message_that_asks_is_counted(wire: Wire, server: Server) -> None:
    # begin, insert, commit
    faults = []
    for nth in (1, 2, 3, 4):
        faults.append(wire.cut(nth=nth))
        try:
            _insert(wire)
        except psycopg.OperationalError:
            continue
    assert [fault.struck.is_set() for fault in faults] == [True, True, True, False]
    assert _kept(server) == 1


def test_a_deed_is_done_before_the_message_goes_on(wire: Wire, server: Server) -> None:
    wire.at(lambda: server.terminate_backends("query ilike 'insert%'"), contains=b"commit")
    with pytest.raises(psycopg.OperationalError):
        _insert(wire)
    assert _kept(server) == 0


def test_all_connections_are_dropped_and_new_ones_refused_until_it_is_calm(wire: Wire, server: Server) -> None:
    with psycopg.connect(wire.url) as connection:
        assert wire.drop_all(refuse=True) == 1
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
    with pytest.raises(psycopg.OperationalError):
        _insert(wire)
    wire.calm()
    _insert(wire)
    assert _kept(server) == 1


def test_a_pooler_gives_one_connection_of_the_server_to_several_clients(server: Server) -> None:
    if pgbouncer.program() is None:
        pytest.skip(pgbouncer.MISSING)
    pooler = pgbouncer.Pooler(server.url)
    clients = [psycopg.connect(pooler.url, autocommit=True) for _ in range(5)]
    backends = {client.execute("select pg_backend_pid()").fetchone() for client in clients}
    for client in clients:
        client.close()
    pooler.close()
    assert len(backends) <= pgbouncer.SERVER_CONNECTIONS

"""The schema is created once and completely in the user's own file, regardless of concurrency and crashes."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

import holdfast
from holdfast.domain.job import JobRow
from holdfast.errors import SchemaMismatch
from holdfast.storage.migrations import Migration
from holdfast.storage.sqlite import migrate
from holdfast.storage.sqlite.migrate import migrations
from tests.chaos.processes import PATIENCE_SECONDS, Child, say


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.db"


def test_every_table_index_and_view_carries_the_prefix(path: Path) -> None:
    holdfast.connect(str(path)).migrate()
    names = [name for (name,) in sqlite3.connect(path).execute("select name from sqlite_master")]
    assert names
    assert [name for name in names if not name.startswith(("holdfast_", "sqlite_"))] == []


def test_the_users_own_tables_stay_as_they_are(path: Path) -> None:
    own = sqlite3.connect(path)
    own.execute("create table orders (id integer primary key)")
    own.execute("insert into orders values (7)")
    own.commit()
    holdfast.connect(str(path)).enqueue("work")
    assert own.execute("select id from orders").fetchall() == [(7,)]


def test_migrating_twice_does_nothing_the_second_time(path: Path) -> None:
    assert holdfast.connect(str(path)).migrate() == [migration.name for migration in migrations()]
    assert holdfast.connect(str(path)).migrate() == []


def test_the_row_view_has_the_fields_of_a_job_in_their_order(path: Path) -> None:
    holdfast.connect(str(path)).migrate()
    columns = [row[1] for row in sqlite3.connect(path).execute("pragma table_info(holdfast_job_row)")]
    assert tuple(columns) == (*JobRow._fields, "state_number", "rare_state", "ends_at_ms")


def migrate_when_told(pipe: Connection, path: str) -> None:
    """In a child: migrate as soon as the test says so, and send the migrations that were applied."""
    say(pipe)
    say(pipe, holdfast.connect(path).migrate())


def test_many_processes_that_start_at_once_make_one_schema(path: Path) -> None:
    with ExitStack() as stack:
        started = [stack.enter_context(Child(migrate_when_told, str(path))) for _ in range(8)]
        assert [child.hear() for child in started] == ["ready"] * 8
        for child in started:
            child.tell()
        applied = sorted(child.hear() for child in started)
    assert applied == [[]] * 7 + [[migration.name for migration in migrations()]]
    assert holdfast.connect(str(path)).enqueue("work").created


def migrate_until_killed(_pipe: Connection, path: str, survive: int) -> None:
    """In a child: migrate, and kill this process right before one of the statements of the first migration."""
    whole = migrate.statements_of

    def cut_short(migration: Migration) -> Iterator[str]:
        for number, statement in enumerate(whole(migration)):
            if number == survive:
                os.kill(os.getpid(), signal.SIGKILL)
            yield statement

    migrate.statements_of = cut_short
    holdfast.connect(path).migrate()


@pytest.mark.parametrize("survive", [0, 1, 9, 20])
def test_a_migration_that_was_killed_is_done_by_the_next_process(path: Path, survive: int) -> None:
    with Child(migrate_until_killed, str(path), survive) as child:
        child.process.join(PATIENCE_SECONDS)
        assert child.process.exitcode == -signal.SIGKILL
    assert holdfast.connect(str(path)).migrate() == [migration.name for migration in migrations()]


def test_an_applied_migration_that_was_edited_is_noticed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    holdfast.connect(str(path)).migrate()
    first, *others = migrations()
    edited = (Migration(first.number, first.name, first.text + "-- edited"), *others)
    monkeypatch.setattr(migrate, "migrations", lambda: edited)
    with pytest.raises(SchemaMismatch, match=first.name):
        holdfast.connect(str(path)).enqueue("work")


def test_a_schema_that_needs_newer_code_is_refused(path: Path) -> None:
    holdfast.connect(str(path)).migrate()
    with sqlite3.connect(path) as newer:
        newer.execute("update holdfast_meta set value = '99.0.0' where name = 'code_version_min'")
    with pytest.raises(SchemaMismatch, match=r"99\.0\.0"):
        holdfast.connect(str(path)).enqueue("work")


def test_a_newer_schema_that_still_admits_this_code_is_used(path: Path) -> None:
    holdfast.connect(str(path)).migrate()
    with sqlite3.connect(path) as newer:
        newer.execute("insert into holdfast_migration values (9999, '9999_later', 'x', 0)")
        newer.execute("alter table holdfast_job add column later text")
    assert holdfast.connect(str(path)).enqueue("work").created


def test_nothing_is_opened_before_it_is_used(path: Path) -> None:
    holdfast.connect(str(path))
    assert not path.exists()


@pytest.mark.parametrize("content", [b"hello\n", b"\xff" * 8192], ids=["short", "long"])
def test_a_file_that_is_not_a_database_is_called_so_and_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    queue = holdfast.connect(path)
    for use in (queue.counts, queue.claim, lambda: queue.wait("x", timeout=1), lambda: queue.enqueue("work")):
        with pytest.raises(holdfast.errors.UnsupportedStore, match="is not a SQLite database"):
            use()
    queue.close()
    assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("encoding", ["UTF-16le", "UTF-16be"])
def test_a_file_in_utf_16_is_refused_and_left_alone(path: Path, encoding: str) -> None:
    own = sqlite3.connect(path)
    own.execute(f"pragma encoding = '{encoding}'")
    own.execute("create table orders (id integer)")
    own.close()
    before = path.read_bytes()
    queue = holdfast.connect(path)
    for use in (queue.counts, lambda: queue.enqueue("work")):
        with pytest.raises(
            holdfast.errors.UnsupportedStore, match=f"encoded in {encoding}, and Holdfast needs UTF-8"
        ):
            use()
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(holdfast.errors.StoreUnreachable, match="missing' does not exist"):
        holdfast.connect(str(tmp_path / "missing" / "jobs.db")).enqueue("work")

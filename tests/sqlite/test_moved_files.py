"""A file that is deleted, moved or replaced while a queue uses it: calls raise, nothing is acknowledged."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.client.connect import queue_on
from holdfast.errors import StoreUnreachable
from holdfast.storage.sqlite.store import SqliteStore
from tests.chaos.processes import PATIENCE_SECONDS

MOVED = "was deleted, moved or replaced"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


def delete(path: Path) -> None:
    path.unlink()


def move(path: Path) -> None:
    path.rename(path.with_name("moved.db"))


def replace(path: Path) -> None:
    """Replace the file with another valid store, as restoring a backup does."""
    with holdfast.connect(path.with_name("other.db")) as other:
        other.enqueue("mail", job_id="others")
    path.with_name("other.db").replace(path)


@pytest.fixture(params=[delete, move, replace])
def vanish(request: pytest.FixtureRequest) -> Callable[[Path], None]:
    vanish: Callable[[Path], None] = request.param
    return vanish


class TestAVanishedFile:
    def test_every_use_is_refused_and_changes_nothing(self, path: Path, vanish: Callable[[Path], None]) -> None:
        queue = holdfast.connect(path)
        queue.enqueue("mail", job_id="before")
        queue.counts()
        vanish(path)
        for use in (
            lambda: queue.enqueue("mail"),
            queue.claim,
            queue.counts,
            lambda: queue.get("before"),
            lambda: queue.get("no-such-job"),
            queue.migrate,
            lambda: queue.transaction().__enter__(),
        ):
            with pytest.raises(StoreUnreachable, match=MOVED):
                use()
        assert path.exists() == (vanish is replace)

    def test_a_queue_that_is_closed_opens_what_is_there(self, path: Path) -> None:
        queue = holdfast.connect(path)
        queue.enqueue("mail", job_id="before")
        replace(path)
        with pytest.raises(StoreUnreachable, match="delete the -wal and -shm files"):
            queue.counts()
        queue.close()
        for suffix in ("-wal", "-shm"):
            path.with_name(f"jobs.db{suffix}").unlink()
        assert [job.id for job in queue.jobs()] == ["others"]
        queue.close()

    def test_a_file_that_is_put_back_is_used_again(self, path: Path) -> None:
        queue = holdfast.connect(path)
        queue.enqueue("mail", job_id="before")
        move(path)
        with pytest.raises(StoreUnreachable, match=MOVED):
            queue.enqueue("mail")
        path.with_name("moved.db").rename(path)
        queue.enqueue("mail", job_id="after")
        assert {job.id for job in queue.jobs()} == {"before", "after"}
        queue.close()

    def test_a_transaction_that_was_open_then_does_not_commit(
        self, path: Path, vanish: Callable[[Path], None]
    ) -> None:
        queue = holdfast.connect(path)
        queue.migrate()
        opened = queue.transaction()
        opened.__enter__().enqueue("mail")
        vanish(path)
        with pytest.raises(StoreUnreachable, match=MOVED):
            opened.__exit__(None, None, None)

    def test_all_members_of_a_group_commit_get_the_error(self, path: Path) -> None:
        inside, go_on = threading.Event(), threading.Event()

        def hold_first(name: str) -> None:
            if name == "commit" and not inside.is_set():
                inside.set()
                go_on.wait(PATIENCE_SECONDS)

        store = SqliteStore(str(path))
        queue = queue_on(store)
        queue.migrate()
        store._observe = store._writer._observe = hold_first
        results: list[object] = []

        def enqueue() -> None:
            try:
                results.append(queue.enqueue("mail"))
            except StoreUnreachable as error:
                results.append(str(error))

        first = threading.Thread(target=enqueue)
        first.start()
        inside.wait(PATIENCE_SECONDS)
        others = [threading.Thread(target=enqueue) for _ in range(8)]
        for thread in others:
            thread.start()
        while len(store._writer._queue.queue) < 8:
            pass
        delete(path)
        go_on.set()
        for thread in (first, *others):
            thread.join()
        # The first call had passed its last check before the file was deleted.
        assert sorted(isinstance(error, str) and MOVED in error for error in results) == [False] + [True] * 8

    def test_a_caller_with_its_own_connection_gets_the_error(self, path: Path) -> None:
        queue = holdfast.connect(path)
        queue.migrate()
        own = sqlite3.connect(path, isolation_level=None)
        own.execute("begin immediate")
        delete(path)
        with pytest.raises(StoreUnreachable, match=MOVED):
            queue.within(own)
        own.close()

    def test_tasks_get_the_error_too(self, path: Path) -> None:
        async def scenario() -> None:
            queue = holdfast.connect_async(path)
            await queue.enqueue("mail")
            delete(path)
            for use in (queue.enqueue("mail"), queue.counts(), queue.claim()):
                with pytest.raises(StoreUnreachable, match=MOVED):
                    await use
            await queue.close()

        asyncio.run(scenario())

"""The server's disk really becomes full: a typed error, no partial writes, and work continues once space is free.

The tables are on a small disk and the server's write-ahead log is not, so that the server survives.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Done
from holdfast.errors import StoreFull
from tests.support.filesystems import open_folder, small_disk
from tests.support.postgres_server import Server

# Incompressible, unlike repetitive text.
BODY = "".join(chr(33 + (place * place * 7 + place * 31) % 5000) for place in range(60_000))
ROOM_FOR_LATER = 6 << 20


@pytest.fixture
def disk() -> Iterator[Path]:
    with open_folder() as folder, small_disk(folder / "disk", "40m", "no server's disk ran full") as disk:
        yield disk


@pytest.fixture
def queue(server: Server, disk: Path) -> Iterator[holdfast.Queue]:
    place = disk / "tables"
    place.mkdir()
    if server.user is not None:
        shutil.chown(place, server.user.pw_uid, server.user.pw_gid)
    with server.superuser() as connection:
        connection.execute(f"create tablespace small location '{place}'".encode())
        connection.execute("create database small tablespace small")
        # The files of the new database have holes, whose pages the server still holds in memory. It writes such a
        # page when any database needs its place in memory, and that call fails if the disk is full then.
        connection.execute("checkpoint")
    with holdfast.connect(server.database_url("small")) as queue:
        yield queue
    with server.superuser() as connection:
        connection.execute("drop database small with (force)")
        connection.execute("drop tablespace small")


def _fill_up(queue: holdfast.Queue, stored: list[str]) -> None:
    while True:
        stored.append(queue.enqueue("large", {"number": len(stored), "body": BODY}).id)


@pytest.mark.slow("a server or processes of its own are started")
def test_a_full_disk_refuses_by_name_loses_nothing_and_is_used_again(queue: holdfast.Queue, disk: Path) -> None:
    reserve = disk / "reserve"
    reserve.write_bytes(bytes(ROOM_FOR_LATER))
    queue.enqueue("held", job_id="held")
    claim = queue.claim(kinds=["held"], lease=600)
    assert claim is not None
    stored = [claim.job.id]

    with pytest.raises(StoreFull):
        _fill_up(queue, stored)
    with pytest.raises(StoreFull):
        queue.enqueue_many([{"kind": "large", "payload": {"body": BODY}} for _ in range(100)])
    assert len(stored) > 20
    assert {job.id for job in queue.jobs(limit=1000)} == set(stored)

    reserve.unlink()
    stored.append(queue.enqueue("large", {"body": BODY}).id)
    assert queue.settle(claim, Done()).state == "done"
    assert {job.id for job in queue.jobs(limit=1000)} == set(stored)
    taken = queue.claim_many(limit=1000)
    assert {claim.job.id for claim in taken} == set(stored) - {claim.job.id}

"""Leases use a clock that cannot be set; a reboot ends all of them."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pytest

import holdfast
from holdfast import Done, LeaseLost
from holdfast.storage.sqlite import connection as connections
from holdfast.storage.sqlite.connection import stored_clock


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "jobs.db")


def test_all_who_open_the_file_in_one_boot_share_the_lease_clock(path: str) -> None:
    holdfast.connect(path).migrate()
    connection = sqlite3.connect(path)
    first, second = stored_clock(connection), stored_clock(connection)
    assert first is not None
    assert second is not None
    assert second.now().lease_ms - first.now().lease_ms < 1000


def test_a_wall_clock_set_back_by_hours_neither_keeps_nor_ends_a_lease(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = holdfast.connect(path)
    queue.enqueue("mail")
    claim = queue.claim(lease=60)
    assert claim is not None
    real = time.time_ns
    for hours in (-6, 6):
        monkeypatch.setattr(time, "time_ns", lambda shift=hours: real() + shift * 3_600_000_000_000)
        assert queue.claim() is None
        queue.heartbeat(claim)
    assert queue.settle(claim, Done()).state == "done"


def test_a_reboot_ends_every_lease(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = holdfast.connect(path)
    queue.enqueue("mail")
    claim = queue.claim(lease=3600)
    assert claim is not None
    queue.close()
    monkeypatch.setattr(connections, "_boot", lambda: "another-boot")
    monkeypatch.setattr(connections, "boot_time_ms", lambda: 5_000)
    after = holdfast.connect(path)
    with pytest.raises(LeaseLost):
        after.heartbeat(claim)
    again = after.claim()
    assert again is not None
    assert again.epoch == 2


def test_without_a_boot_identifier_leases_use_the_wall_clock(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_boot", lambda: None)
    queue = holdfast.connect(path)
    queue.enqueue("mail")
    claim = queue.claim(lease=60)
    assert claim is not None
    assert queue.settle(claim, Done()).state == "done"

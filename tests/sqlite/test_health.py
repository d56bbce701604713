"""Health checks report problems, and their remedies."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast.client.connect import queue_on
from holdfast.storage.sqlite import connection, health
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.types import Finding
from tests.support.clock import ManualClock


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "jobs.db")


def findings(queue: holdfast.Queue) -> dict[str, Finding]:
    return {finding.name: finding for finding in queue.admin.report().findings}


def test_a_healthy_file_has_no_problem(path: str) -> None:
    report = holdfast.connect(path).admin.report()
    assert report.healthy
    assert {finding.status for finding in report.findings if finding.name != "SQLite"} == {"ok"}


@pytest.mark.parametrize(
    ("version", "status"),
    [("3.40.1", "warning"), ("3.44.6", "ok"), ("3.50.6", "warning"), ("3.50.7", "ok"), ("3.51.3", "ok")],
)
def test_releases_with_the_log_reset_bug_are_distinguished_from_those_without(version: str, status: str) -> None:
    assert health._version(version).status == status


def test_relaxed_durability_is_pointed_out(path: str) -> None:
    finding = findings(holdfast.connect(path, durability="relaxed"))["durability"]
    assert finding.status == "warning"
    assert "power cut" in finding.detail


def test_a_queue_in_memory_is_pointed_out() -> None:
    assert findings(holdfast.connect(":memory:"))["journal"].status == "warning"


def test_a_log_that_a_reader_keeps_growing_is_pointed_out(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = holdfast.connect(path)
    queue.enqueue("mail")
    monkeypatch.setattr(connection, "LOG_BYTES_LONG", 1)
    assert findings(queue)["log size"].status == "warning"


def test_a_network_file_system_is_a_problem(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = holdfast.connect(path, network_files=True)
    queue.enqueue("mail")
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 0 0:1 / {tmp_path} rw - nfs4 server:/share rw\n")
    monkeypatch.setattr(connection, "_MOUNTS", mounts)
    report = queue.admin.report()
    assert not report.healthy
    assert findings(queue)["file system"].status == "problem"
    with pytest.raises(holdfast.errors.UnsupportedStore, match="nfs4"):
        holdfast.connect(path).counts()


def test_expired_and_suspect_and_due_jobs_are_counted(path: str) -> None:
    clock = ManualClock()
    queue = queue_on(SqliteStore(path, clock=clock))
    for _ in range(2):
        queue.enqueue("mail")
        queue.claim(lease=1)
    queue.enqueue("mail", delay=5)
    clock.advance(10)
    found = findings(queue)
    assert [found[name].status for name in ("expired leases", "due jobs")] == ["warning", "warning"]
    assert found["expired leases"].detail.startswith("2 ")
    queue.lanes.set("default", state="paused")
    queue.claim()
    assert findings(queue)["suspect jobs"].detail.startswith("2 ")


def test_a_damaged_file_is_called_so_with_the_remedy(path: str) -> None:
    queue = holdfast.connect(path)
    queue.enqueue_many([{"kind": "mail", "payload": "x" * 500} for _ in range(500)])
    queue.close()
    raw = bytearray(Path(path).read_bytes())
    first, last = (len(raw) * part // 4 // 4096 * 4096 for part in (1, 3))
    raw[first:last] = bytes(last - first)
    Path(path).write_bytes(raw)
    assert "backup" in _file_finding(path)


def _file_finding(path: str) -> str:
    """Return the finding about the file, whether or not its other checks still work."""
    try:
        findings = holdfast.connect(path).admin.report().findings
    except holdfast.errors.StoreDamaged as damage:
        return str(damage)
    return " ".join(finding.remedy for finding in findings if finding.name == "file")

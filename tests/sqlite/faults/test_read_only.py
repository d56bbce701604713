"""A store without write permission can be read, and each write raises; a network file system is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.storage.sqlite import connection
from tests.sqlite.faults.child import run_child
from tests.sqlite.faults.visits import visit
from tests.support.filesystems import open_folder, small_disk, turn_read_only

_WRITES = ["ReadOnlyStore"] * 4


@pytest.fixture
def folder() -> Iterator[Path]:
    with open_folder() as made:
        yield made
        made.chmod(0o755)


def _fill(path: Path) -> holdfast.Queue:
    queue = holdfast.connect(str(path))
    queue.enqueue_many([{"kind": "mail", "job_id": f"job-{number}"} for number in range(3)])
    return queue


def _visit(path: Path, built: Path, *, humble: bool = True) -> Any:
    return run_child("file-layer", built, visit, path=str(path), humble=humble)


def _check(seen: Any) -> None:
    assert seen["read"] == ["job-0", "job-1", "job-2"]
    assert seen["written"] == [*_WRITES, "WaitTimeout"]


class TestAStoreThatCannotBeWritten:
    def test_a_file_without_write_permission_is_read(self, folder: Path, built: Path) -> None:
        _fill(folder / "jobs.db").close()
        (folder / "jobs.db").chmod(0o444)
        folder.chmod(0o777)
        _check(_visit(folder / "jobs.db", built))

    def test_a_file_in_a_folder_without_write_permission_is_read(self, folder: Path, built: Path) -> None:
        _fill(folder / "jobs.db").close()
        (folder / "jobs.db").chmod(0o666)
        folder.chmod(0o555)
        _check(_visit(folder / "jobs.db", built))

    def test_a_file_and_folder_without_write_permission_are_read(self, folder: Path, built: Path) -> None:
        _fill(folder / "jobs.db").close()
        (folder / "jobs.db").chmod(0o444)
        folder.chmod(0o555)
        _check(_visit(folder / "jobs.db", built))

    def test_what_a_writer_has_just_committed_is_read(self, folder: Path, built: Path) -> None:
        with _fill(folder / "jobs.db"):
            for file in folder.iterdir():
                file.chmod(0o444)
            folder.chmod(0o555)
            _check(_visit(folder / "jobs.db", built))

    def test_a_disk_that_turned_read_only_is_read(self, tmp_path: Path, built: Path) -> None:
        with small_disk(tmp_path / "disk", "4m", "a read-only disk was not tried, only missing permissions") as disk:
            _fill(disk / "jobs.db").close()
            turn_read_only(disk)
            _check(_visit(disk / "jobs.db", built, humble=False))


def _mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, place: str) -> None:
    """Make the system report that *place* is mounted from a file system of type *kind*."""
    table = tmp_path / "mounts"
    escaped = place.replace(" ", "\\040")
    table.write_text(
        "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw\n"
        f"36 22 0:31 / {escaped} rw,relatime shared:7 - {kind} server:/export rw\n",
        encoding="utf-8",
        errors="surrogateescape",
    )
    monkeypatch.setattr(connection, "_MOUNTS", table)


class TestNetworkFileSystems:
    @pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "fuse.sshfs", "fuse.glusterfs"])
    def test_a_file_on_a_network_is_refused_and_not_made(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
    ) -> None:
        shared = tmp_path / "shared folder"
        shared.mkdir()
        _mounts(tmp_path, monkeypatch, kind, str(shared))
        for use in (holdfast.Queue.counts, holdfast.Queue.migrate):
            with (
                pytest.raises(holdfast.errors.UnsupportedStore, match=kind),
                holdfast.connect(f"{shared}/a.db") as queue,
            ):
                use(queue)
        assert list(shared.iterdir()) == []

    def test_a_mount_whose_name_is_not_utf_8_does_no_harm(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _mounts(tmp_path, monkeypatch, "nfs4", "/mnt/\udcff\u2028x")
        with holdfast.connect(tmp_path / "jobs.db") as queue:
            assert queue.enqueue("mail").created

    def test_a_network_mount_whose_name_is_not_ascii_is_recognised(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shared = tmp_path / "gemeinsam für alle"
        shared.mkdir()
        _mounts(tmp_path, monkeypatch, "nfs4", str(shared))
        with pytest.raises(holdfast.errors.UnsupportedStore, match="nfs4"):
            holdfast.connect(shared / "a.db").migrate()

    def test_a_link_to_a_file_on_a_network_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "shared").mkdir()
        _mounts(tmp_path, monkeypatch, "nfs4", str(tmp_path / "shared"))
        (tmp_path / "jobs.db").symlink_to(tmp_path / "shared" / "jobs.db")
        with pytest.raises(holdfast.errors.UnsupportedStore, match="nfs4"):
            holdfast.connect(str(tmp_path / "jobs.db")).enqueue("mail")

    def test_a_file_on_a_network_is_used_at_the_callers_own_risk(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _mounts(tmp_path, monkeypatch, "nfs4", str(tmp_path))
        with holdfast.connect(str(tmp_path / "jobs.db"), network_files=True) as queue:
            assert queue.enqueue("mail").created

    def test_a_local_disk_mounted_below_a_network_is_used(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _mounts(tmp_path, monkeypatch, "nfs4", str(tmp_path.parent))
        table = tmp_path / "mounts"
        table.write_text(table.read_text() + f"40 36 254:1 / {tmp_path} rw - ext4 /dev/local rw\n")
        with holdfast.connect(str(tmp_path / "jobs.db")) as queue:
            assert queue.enqueue("mail").created

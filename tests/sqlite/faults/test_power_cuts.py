"""After a power cut the file is valid and everything acknowledged is in it, whatever writes the disk has lost.

A real queue is used in a separate process while every write and sync is recorded. The record is then replayed up to
each sync and to points in between, and for each point the possible files of a disk are made.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import pytest

from tests.sqlite.faults.child import run_child
from tests.sqlite.faults.disk import LOSSES, Disk, Loss, read_log
from tests.sqlite.faults.history import History, complaints
from tests.sqlite.faults.interception import Form
from tests.sqlite.faults.workload import ordinary_use, use_with_failing_syncs


class Recording(NamedTuple):
    """The log of one use of a queue, and the folder that it was in."""

    log: Path
    folder: str


class Cut(NamedTuple):
    """The point at which the power was cut, and the writes that the disk lost."""

    position: int
    when: str
    loss: Loss


def _record(
    form: Form,
    built: Path,
    tmp_path: Path,
    *,
    rounds: int,
    durability: Literal["full", "relaxed"] = "full",
    huge: bool = False,
) -> Recording:
    folder, log = tmp_path / "used", tmp_path / "writes.log"
    folder.mkdir()
    arguments = {"folder": str(folder), "log": str(log), "rounds": rounds, "durability": durability, "huge": huge}
    run_child(form, built, ordinary_use, **arguments)
    return Recording(log, str(folder))


def _images(
    recording: Recording, dice: random.Random, *, at_syncs: float = 0.0, between: float = 0.0, honest: bool = True
) -> Iterator[tuple[Cut, Path, History]]:
    """Yield images of power cuts around syncs and other writes, with the results acknowledged by then.

    *at_syncs* and *between* are the probabilities of each kind of loss. Use an image before taking the next.
    """
    disk, history = Disk(recording.folder, dice, honest=honest), History()
    image = recording.log.parent / "image"
    for position, record in enumerate(read_log(recording.log)):
        if record.kind == "N":
            history.take(record.path)
        for when in ("before", "after"):
            if when == "after":
                disk.take(record)
            for loss in _losses(dice, at_syncs if record.kind == "S" else between):
                disk.image(image, loss)
                _spoil_side_file(image, dice)
                yield Cut(position, when, loss), image / "jobs.db", history
                shutil.rmtree(image)


def _losses(dice: random.Random, chance: float) -> list[Loss]:
    return [loss for loss in LOSSES if dice.random() < chance]


def _spoil_side_file(image: Path, dice: random.Random) -> None:
    """Leave the lock file as a disk may: missing, empty, or with any content. Its content does not matter."""
    side_file = image / "jobs.db-holdfast"
    match dice.randrange(3):
        case 0:
            side_file.unlink(missing_ok=True)
        case 1:
            side_file.write_bytes(b"")
        case _:
            side_file.write_bytes(dice.randbytes(dice.randrange(50_000)))


def _findings(images: Iterator[tuple[Cut, Path, History]]) -> tuple[int, dict[Cut, list[str]]]:
    """Return the number of images, and the problems by image."""
    count, wrong = 0, {}
    for cut, path, history in images:
        count += 1
        if found := complaints(str(path), history):
            wrong[cut] = found
    return count, wrong


@pytest.mark.slow("dozens of disks after a power cut are opened and checked")
def test_what_was_acknowledged_outlives_a_power_cut(form: Form, built: Path, tmp_path: Path) -> None:
    recording = _record(form, built, tmp_path, rounds=5)
    count, wrong = _findings(_images(recording, random.Random(1), at_syncs=0.1, between=0.0005))
    assert wrong == {}
    assert count >= 60


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_what_was_acknowledged_outlives_each_kind_of_power_cut_at_each_sync(
    form: Form, built: Path, tmp_path: Path, seed: int
) -> None:
    recording = _record(form, built, tmp_path, rounds=8)
    count, wrong = _findings(_images(recording, random.Random(seed), at_syncs=1, between=0.001))
    assert wrong == {}
    assert count >= 1_000


@pytest.mark.long
def test_a_long_log_that_was_truncated_survives_a_power_cut(form: Form, built: Path, tmp_path: Path) -> None:
    recording = _record(form, built, tmp_path, rounds=1, huge=True)
    count, wrong = _findings(_images(recording, random.Random(6), at_syncs=0.5, between=0.0005))
    assert wrong == {}
    assert count >= 50


@pytest.mark.slow("dozens of disks after a power cut are opened and checked")
def test_a_power_cut_during_the_first_opening_leaves_a_usable_file(form: Form, built: Path, tmp_path: Path) -> None:
    recording = _record(form, built, tmp_path, rounds=0)
    count, wrong = _findings(_images(recording, random.Random(2), at_syncs=0.5, between=0.02))
    assert wrong == {}
    assert count >= 10


@pytest.mark.slow("dozens of disks after a power cut are opened and checked")
@pytest.mark.parametrize(("suffix", "payload_bytes"), [("-wal", 3_000), (".db", 120_000)], ids=["log", "database"])
def test_what_was_acknowledged_after_a_failed_sync_outlives_a_power_cut(
    form: Form, built: Path, tmp_path: Path, suffix: str, payload_bytes: int
) -> None:
    folder, log = tmp_path / "used", tmp_path / "writes.log"
    folder.mkdir()
    arguments = {"folder": str(folder), "log": str(log), "suffix": suffix, "payload_bytes": payload_bytes}
    failures = run_child(form, built, use_with_failing_syncs, **arguments)
    assert failures >= 1
    recording = Recording(log, str(folder))
    count, wrong = _findings(_images(recording, random.Random(5), at_syncs=0.05))
    assert wrong == {}
    assert count >= 20


class TestTheMethodFindsLosses:
    @pytest.mark.slow("dozens of disks after a power cut are opened and checked")
    def test_relaxed_durability_loses_acknowledged_work_in_some_cut(
        self, form: Form, built: Path, tmp_path: Path
    ) -> None:
        recording = _record(form, built, tmp_path, rounds=5, durability="relaxed")
        _, wrong = _findings(_images(recording, random.Random(3), between=0.001))
        found = [complaint for complaints_of_cut in wrong.values() for complaint in complaints_of_cut]
        assert [complaint for complaint in found if complaint.startswith("lost")]
        # Nothing worse: relaxed durability may lose the latest commits, but not corrupt the file.
        assert [complaint for complaint in found if not complaint.startswith("lost")] == []

    @pytest.mark.slow("dozens of disks after a power cut are opened and checked")
    def test_a_disk_that_only_claims_to_sync_breaks_the_file_in_some_cut(
        self, form: Form, built: Path, tmp_path: Path
    ) -> None:
        recording = _record(form, built, tmp_path, rounds=5)
        _, wrong = _findings(_images(recording, random.Random(4), between=0.002, honest=False))
        found = [complaint for complaints_of_cut in wrong.values() for complaint in complaints_of_cut]
        assert [complaint for complaint in found if complaint.startswith("unsound")]

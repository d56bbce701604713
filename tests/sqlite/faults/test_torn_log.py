"""A log whose tail is truncated or damaged opens at the last valid commit before the damage, and at no other."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

import holdfast
from tests.sqlite.faults.child import run_child
from tests.sqlite.faults.history import History, complaints
from tests.sqlite.faults.interception import Interception

_HEADER_BYTES, _FRAME_HEADER_BYTES, _PAGE_BYTES = 32, 24, 4096
_FRAME_BYTES = _FRAME_HEADER_BYTES + _PAGE_BYTES
_JOBS = 12


def enqueue_and_stop(_interception: Interception, path: str) -> None:
    """Create a store, close it, and enqueue, one commit per job; then stop without closing."""
    with holdfast.connect(path) as queue:
        queue.enqueue("mail", job_id="first")
    queue = holdfast.connect(path)
    queue.migrate()
    for number in range(_JOBS):
        queue.enqueue("mail", "x" * 3_000, job_id=f"job-{number}")


class Log(NamedTuple):
    """A database, its log, and the offset at which each commit ends."""

    database: bytes
    log: bytes
    commits: list[int]

    def jobs_before(self, offset: int) -> set[str]:
        """Return the jobs whose commit ends before *offset*."""
        survived = sum(end <= offset for end in self.commits)
        return {"first", *(f"job-{number}" for number in range(survived))}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    folder = tmp_path_factory.mktemp("torn")
    path = folder / "jobs.db"
    run_child("file-layer", folder, enqueue_and_stop, path=str(path))
    found = Log(path.read_bytes(), (folder / "jobs.db-wal").read_bytes(), [])
    found.commits.extend(_commits(found.log))
    assert len(found.commits) == _JOBS
    return found


def _commits(log: bytes) -> Iterator[int]:
    for start in range(_HEADER_BYTES, len(log), _FRAME_BYTES):
        # The second number of a frame is the length of the database in pages if the frame ends a commit.
        _page, length = struct.unpack_from(">II", log, start)
        if length:
            yield start + _FRAME_BYTES


def _frame_start(offset: int) -> int:
    """Return the start of the frame that contains *offset*; damage to the log's header counts from its start."""
    if offset < _HEADER_BYTES:
        return 0
    return _HEADER_BYTES + (offset - _HEADER_BYTES) // _FRAME_BYTES * _FRAME_BYTES


def _check(log: Log, folder: Path, damaged: bytes, expected: set[str]) -> None:
    folder.mkdir()
    path = folder / "jobs.db"
    path.write_bytes(log.database)
    (folder / "jobs.db-wal").write_bytes(damaged)
    with holdfast.connect(str(path)) as queue:
        assert {job.id for job in queue.jobs()} == expected
        assert queue.enqueue("mail", job_id="afterwards").created
    assert complaints(str(path), History()) == []


def _offsets(log: Log, count: int) -> list[int]:
    """Return the boundaries of commits and frames, and some offsets within frames."""
    dice = random.Random(count)
    borders = [end + step for end in log.commits[::4] for step in (-1, 0, 1)]
    inside = [0, 1, 31, 32, *(dice.randrange(len(log.log)) for _ in range(count))]
    return sorted({offset for offset in borders + inside if offset < len(log.log)})


@contextmanager
def _labelled(offset: int) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        error.add_note(f"at byte {offset} of the log")
        raise


def _for_each_offset(log: Log, folder: Path, count: int, damage: Callable[[int], tuple[bytes, int]]) -> None:
    for offset in _offsets(log, count):
        damaged, sound_until = damage(offset)
        with _labelled(offset):
            _check(log, folder / str(offset), damaged, log.jobs_before(sound_until))


def _cut(log: Log, folder: Path, count: int) -> None:
    _for_each_offset(log, folder, count, lambda offset: (log.log[:offset], offset))


def _flip(log: Log, folder: Path, count: int) -> None:
    def damage(offset: int) -> tuple[bytes, int]:
        damaged = bytearray(log.log)
        damaged[offset] ^= 0xFF
        return bytes(damaged), _frame_start(offset)

    _for_each_offset(log, folder, count, damage)


def _scribble(log: Log, folder: Path, count: int) -> None:
    dice = random.Random(7)

    def damage(offset: int) -> tuple[bytes, int]:
        # The first byte differs. By chance it might not, and a frame damaged at its last byte would be whole.
        first = log.log[offset] ^ dice.randrange(1, 256)
        rest = dice.randbytes(len(log.log) - offset - 1)
        return log.log[:offset] + bytes([first]) + rest, _frame_start(offset)

    _for_each_offset(log, folder, count, damage)


@pytest.mark.parametrize("damage", [_cut, _flip, _scribble])
def test_a_damaged_log_opens_at_the_last_good_commit(
    log: Log, tmp_path: Path, damage: Callable[[Log, Path, int], None]
) -> None:
    damage(log, tmp_path, 12)


@pytest.mark.long
@pytest.mark.parametrize("damage", [_cut, _flip, _scribble])
def test_a_log_damaged_anywhere_opens_at_the_last_good_commit(
    log: Log, tmp_path: Path, damage: Callable[[Log, Path, int], None]
) -> None:
    damage(log, tmp_path, 400)

"""The process that uses a store without write permission, or on a disk without space."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import holdfast
from tests.sqlite.faults.history import numbers
from tests.sqlite.faults.interception import Interception

_UNPRIVILEGED_USER = 65_534


def visit(_interception: Interception, path: str, humble: bool) -> dict[str, Any]:
    """Read and try to write; with *humble*, without the privileges of root."""
    with tempfile.TemporaryDirectory() as folder, holdfast.connect(f"{folder}/jobs.db") as queue:
        # Load lazily imported modules before Python's files may become inaccessible.
        _writes(queue)
        numbers(queue)
    if humble and os.geteuid() == 0:
        os.setgroups([])
        os.setgid(_UNPRIVILEGED_USER)
        os.setuid(_UNPRIVILEGED_USER)
    queue = holdfast.connect(path)
    return {"read": _result_of(lambda: sorted(job.id for job in queue.jobs())), "written": _writes(queue)}


def _writes(queue: holdfast.Queue) -> list[Any]:
    return [
        _result_of(lambda: queue.enqueue("mail", job_id="new").created),
        _result_of(lambda: queue.claim() is None),
        _result_of(lambda: queue.cancel("job-0").state),
        _result_of(lambda: queue.lanes.set("other", state="paused").state),
        _result_of(lambda: queue.wait("job-0", timeout=0.05).state),
    ]


def _result_of(call: Callable[[], Any]) -> Any:
    """Return the result of a call, or the name of the error it raises."""
    try:
        return call()
    except Exception as error:
        return type(error).__name__


# --- a disk without space ------------------------------------------------------------------------------------------


def fill_up(_interception: Interception, folder: str, payload_bytes: int, reserve_bytes: int) -> dict[str, Any]:
    """Use a queue until its disk is full, then free space and continue; return the observations."""
    path, ballast, reserve = f"{folder}/jobs.db", Path(folder) / "ballast", Path(folder) / "reserve"
    reserve.write_bytes(b"r" * reserve_bytes)
    queue = holdfast.connect(path)
    queue.enqueue("mail", job_id="claimed")
    claim = queue.claim(lease=3600)
    assert claim is not None
    acknowledged: list[str] = ["claimed"]
    refusals: list[str] = []
    for number in range(400):
        result = _result_of(partial(_enqueue, queue, f"job-{number}", payload_bytes))
        (acknowledged if result == f"job-{number}" else refusals).append(result)
        if len(refusals) == 3:
            break
    _take_all_space(ballast)
    # What was refused has made the log longer: the next write must not fit there.
    text = "y" * (payload_bytes + 60_000)
    full = {
        "enqueue": _result_of(lambda: queue.enqueue_many([{"kind": "mail", "payload": text}] * 2)),
        "settle": _result_of(lambda: queue.settle(claim, holdfast.Done(text)).state),
        "read": _result_of(lambda: sorted(job.id for job in queue.jobs(limit=1000)) == sorted(acknowledged)),
        "another": _result_of(lambda: holdfast.connect(path).enqueue("mail", text)),
        "elsewhere": _result_of(partial(_enqueue_elsewhere, folder)),
    }
    ballast.unlink()
    reserve.unlink()
    freed = {
        "settle": _result_of(lambda: queue.settle(claim, holdfast.Done(text)).state),
        "elsewhere": _result_of(partial(_enqueue_elsewhere, folder)),
        "jobs": sorted(job.id for job in queue.jobs(limit=1000)) == sorted(acknowledged),
    }
    queue.close()
    return {"refusals": refusals, "acknowledged": acknowledged, "full": full, "freed": freed}


def _enqueue(queue: holdfast.Queue, job_id: str, payload_bytes: int) -> str:
    return queue.enqueue("mail", "x" * payload_bytes, job_id=job_id).id


def _enqueue_elsewhere(folder: str) -> bool:
    """Return whether another database takes a job; leave the space that it needed to the first one."""
    try:
        with holdfast.connect(f"{folder}/other.db") as queue:
            return queue.enqueue("mail").created
    finally:
        for file in Path(folder).glob("other.db*"):
            file.unlink()


def _take_all_space(ballast: Path) -> None:
    with ballast.open("wb", buffering=0) as file:
        for size in (65_536, 4_096, 512, 1):
            while _result_of(partial(file.write, b"b" * size)) == size:
                pass

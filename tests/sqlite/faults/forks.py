"""A process that forks while its queue is in use. Each function is one scenario, run in a process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import holdfast
from tests.sqlite.faults.interception import Interception

_EACH = 20


def _child(work: Callable[[], object]) -> int:
    """Fork a child that does *work* and ends at once; return its process id."""
    process = os.fork()
    if process == 0:
        _work_and_end(work)
    return process


def _work_and_end(work: Callable[[], object]) -> NoReturn:
    status = 1
    try:
        work()
        status = 0
    except BaseException as error:
        sys.stderr.write(f"{error!r}\n")
    finally:
        os._exit(status)


def _exit_code(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def _enqueue(queue: holdfast.Queue, name: str) -> None:
    for number in range(_EACH):
        queue.enqueue("mail", job_id=f"{name}-{number}", lane=name)


def _found(path: str) -> list[str]:
    with holdfast.connect(path) as queue:
        return sorted(job.id for job in queue.jobs(limit=1000))


# --- scenarios -----------------------------------------------------------------------------------------------------


def busy_parent(_interception: Interception, path: str) -> dict[str, Any]:
    """Fork with readers open, one thread waiting and one writing, right after a transaction."""
    queue = holdfast.connect(path)
    queue.enqueue("mail", job_id="awaited", lane="awaited")
    queue.counts()
    heard: list[str] = []
    waiter = threading.Thread(target=lambda: heard.append(queue.wait("awaited", timeout=25).state))
    writer = threading.Thread(target=_enqueue, args=(queue, "thread"))
    waiter.start()
    with queue.transaction() as transaction:
        transaction.enqueue("mail", job_id="in-transaction")
    writer.start()
    children = [_child(partial(_finish_and_enqueue, queue, name)) for name in ("one", "two")]
    _enqueue(queue, "parent")
    codes = [_exit_code(child) for child in children]
    writer.join()
    waiter.join()
    return {"codes": codes, "heard": heard, "found": _found(path)}


def _finish_and_enqueue(queue: holdfast.Queue, name: str) -> None:
    if name == "one":
        claim = queue.claim(lanes=["awaited"])
        assert claim is not None
        queue.settle(claim, holdfast.Done())
        assert queue.wait("awaited", timeout=10).state == "done"
    _enqueue(queue, name)


def fork_inside_a_transaction(_interception: Interception, path: str) -> dict[str, Any]:
    """Fork while a transaction is open, and let the child try to read and to write."""
    queue = holdfast.connect(path)
    queue.counts()
    reading, writing = os.pipe()
    with queue.transaction() as transaction:
        transaction.enqueue("mail", job_id="parents")
        child = _child(partial(_try_all, queue, writing))
        code = _exit_code(child)
        transaction.enqueue("mail", job_id="parents-too")
    _enqueue(queue, "after")
    os.close(writing)
    with os.fdopen(reading) as output:
        reported = output.read().split()
    grandchild = _child(partial(_enqueue, queue, "later"))
    return {"codes": [code, _exit_code(grandchild)], "reported": reported, "found": _found(path)}


def _try_all(queue: holdfast.Queue, writing: int) -> None:
    for use in (queue.counts, partial(queue.enqueue, "mail", job_id="childs"), queue.claim):
        try:
            use()
        except holdfast.HoldfastError as error:
            os.write(writing, f"{error.code} ".encode())


def child_leaves_the_parents_transaction(
    _interception: Interception, path: str, raising: bool, writing: bool
) -> dict[str, Any]:
    """Let a child leave the block in which the parent holds a transaction, while the parent continues."""
    queue = holdfast.connect(path)
    queue.migrate()
    process = 0

    def inside() -> None:
        nonlocal process
        with queue.transaction() as transaction:
            transaction.enqueue("mail", job_id="parents")
            process = os.fork()
            if process == 0:
                if writing:
                    transaction.enqueue("mail", job_id="childs")
                if raising:
                    raise RuntimeError("the child goes")
                return
            _exit_code_kept.append(_exit_code(process))
            transaction.enqueue("mail", job_id="parents-too")

    _exit_code_kept: list[int] = []
    if raising or writing:
        try:
            inside()
        except Exception:
            if process:
                raise
    else:
        inside()
    if process == 0:
        # Only the parent's report counts.
        os._exit(0)
    queue.enqueue("mail", job_id="afterwards")
    return {"found": _found(path)}


def parent_dies_inside_the_gate(_interception: Interception, path: str) -> dict[str, Any]:
    """Kill a process that holds the lock while its child lives on, and let another process write."""
    reported_reading, reported_writing = os.pipe()
    process = os.fork()
    if process == 0:
        queue = holdfast.connect(path)
        with queue.transaction() as transaction:
            transaction.enqueue("mail", job_id="never")
            survivor = os.fork()
            if survivor == 0:
                signal.pause()
            os.write(reported_writing, f"{survivor}\n".encode())
            signal.pause()
    survivor = int(os.read(reported_reading, 64))
    os.kill(process, signal.SIGKILL)
    _exit_code(process)
    try:
        reported = holdfast.connect(path).enqueue("mail", job_id="another").id
    except holdfast.HoldfastError as error:
        reported = repr(error)
    finally:
        os.kill(survivor, signal.SIGKILL)
    return {"reported": reported, "found": _found(path)}


def children_end_in_their_own_way(_interception: Interception, path: str) -> dict[str, Any]:
    """Let children that did or did not use the queue exit as programs do, with all cleanup."""
    queue = holdfast.connect(path)
    _enqueue(queue, "before")
    queue.counts()
    children = []
    for name in ("idle", "used", "closed"):
        process = os.fork()
        if process == 0:
            if name != "idle":
                _enqueue(queue, name)
            if name == "closed":
                queue.close()
            del queue
            sys.exit(0)
        children.append(process)
        _enqueue(queue, f"beside-{name}")
    codes = [_exit_code(child) for child in children]
    _enqueue(queue, "after")
    return {"codes": codes, "found": _found(path)}


def parent_goes_child_stays(_interception: Interception, path: str) -> dict[str, Any]:
    """Become a daemon by double fork: the process that opened the queue ends, its child and others continue."""
    reported_reading, reported_writing = os.pipe()
    turn_reading, turn_writing = os.pipe()
    parent = os.fork()
    if parent == 0:
        queue = holdfast.connect(path)
        _enqueue(queue, "before")
        queue.counts()
        if os.fork() == 0:
            _work_and_end(lambda: _stay(queue, reported_writing, turn_reading))
        os._exit(0)
    os.close(reported_writing)
    _exit_code(parent)
    os.read(reported_reading, 1)
    # Other processes, one after the other, each the only one as far as locks can show.
    visitors = [_exit_code(_child(partial(_visit, path, name))) for name in ("visitor-1", "visitor-2")]
    os.write(turn_writing, b"!")
    with os.fdopen(reported_reading) as reported:
        left = reported.read()
    return {"codes": visitors, "stayed": left, "found": _found(path)}


def _stay(queue: holdfast.Queue, reported: int, turn: int) -> None:
    _enqueue(queue, "early")
    os.write(reported, b"!")
    os.read(turn, 1)
    _enqueue(queue, "late")
    os.write(reported, f"{sum(queue.counts().values())}".encode())


def _visit(path: str, name: str) -> None:
    with holdfast.connect(path) as queue:
        _enqueue(queue, name)


def forks_under_load(_interception: Interception, path: str, forks: int) -> dict[str, Any]:
    """Fork repeatedly while threads write and read without a pause; each child writes and reads too."""
    queue = holdfast.connect(path)
    queue.migrate()
    over = threading.Event()
    written: list[str] = []

    def write() -> None:
        while not over.is_set():
            written.append(queue.enqueue("mail").id)

    def read() -> None:
        while not over.is_set():
            queue.counts()

    threads = [threading.Thread(target=work) for work in (write, write, read, read)]
    for thread in threads:
        thread.start()
    children = [_child(partial(_write_and_read, queue, f"child-{number}")) for number in range(forks)]
    codes = {_exit_code_within(child, 20) for child in children}
    over.set()
    for thread in threads:
        thread.join()
    expected = {*written, *(f"child-{number}" for number in range(forks))}
    with holdfast.connect(path) as other:
        lost = [job_id for job_id in expected if not _has(other, job_id)]
    return {"codes": sorted(codes), "lost": lost}


def _write_and_read(queue: holdfast.Queue, job_id: str) -> None:
    queue.enqueue("mail", job_id=job_id)
    assert queue.get(job_id).state == "ready"


def _has(queue: holdfast.Queue, job_id: str) -> bool:
    try:
        return queue.get(job_id).id == job_id
    except holdfast.JobNotFound:
        return False


def _exit_code_within(process: int, seconds: float) -> int:
    """Wait for a child that should exit; if it does not, kill it, which its exit code shows."""
    killer = threading.Timer(seconds, os.kill, (process, signal.SIGKILL))
    killer.start()
    try:
        return _exit_code(process)
    finally:
        killer.cancel()


def tasks_on_both_sides(_interception: Interception, path: str) -> dict[str, Any]:
    """Fork after an event loop has used the queue, and let both processes continue with their own loops."""
    queue = holdfast.connect_async(path)

    async def enqueue(name: str) -> None:
        await asyncio.gather(
            *(queue.enqueue("mail", job_id=f"{name}-{number}", lane=name) for number in range(_EACH))
        )

    asyncio.run(enqueue("before"))
    child = _child(lambda: asyncio.run(enqueue("child")))
    asyncio.run(enqueue("parent"))
    return {"codes": [_exit_code(child)], "found": _found(path)}

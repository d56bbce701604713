"""Child processes for tests, which communicate through a pipe and can be stopped and killed.

They are forked from a server process that has imported the necessary modules and opened nothing: a fork takes a few
milliseconds, the start of an interpreter half a second.
"""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

import psycopg

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    ["tests.support.warm", "holdfast.worker.worker", "holdfast.storage.postgres.store", "pytest"]
)

# Only a hanging process reaches this timeout.
PATIENCE_SECONDS = 120.0


class Child:
    """A process that runs *body* with one end of a pipe and *arguments*; killed at the end of the block."""

    def __init__(self, body: Callable[..., None], *arguments: Any) -> None:
        self._pipe, theirs = PROCESSES.Pipe()
        self.process = PROCESSES.Process(target=body, args=(theirs, *arguments), daemon=True)
        self.process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def hear(self) -> Any:
        """Return the next message of the child."""
        if not self._pipe.poll(PATIENCE_SECONDS):
            raise AssertionError("the other process sent no message")
        return self._pipe.recv()

    def tell(self, word: Any = "go on") -> None:
        self._pipe.send(word)

    def stop(self) -> None:
        """Stop the process and wait until it is stopped."""
        stop(self.pid)

    def stop_between_writes(self, url: str) -> None:
        """Stop the process while it holds no lock of the store at *url*, which no other process uses then.

        PostgreSQL would end the transaction of a stopped process too, but only after ten seconds.
        """
        self.stop()
        while not (no_transaction_is_open(url) if url.startswith("postgresql:") else gate_is_free(url)):
            self.resume()
            time.sleep(0.01)
            self.stop()

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    @property
    def has_ended(self) -> bool:
        return not self.process.is_alive()

    def end(self) -> None:
        """Wait for the process to exit without an error."""
        self.process.join(PATIENCE_SECONDS)
        assert self.process.exitcode == 0

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self.process.close()
        self._pipe.close()


def stop(pid: int) -> None:
    """Stop a process and wait until each of its threads is stopped: until then, a thread may run on."""
    os.kill(pid, signal.SIGSTOP)
    while any(state not in "TZX" for state in _states(pid)):
        os.sched_yield()


def gate_is_free(database: str) -> bool:
    """Return whether the write lock of this file is free, according to the kernel."""
    with Path(f"{database}-holdfast").open("rb") as side_file:
        try:
            fcntl.flock(side_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def no_transaction_is_open(url: str) -> bool:
    """Return whether no client of this PostgreSQL database has a transaction open."""
    open_ones = """select count(*) from pg_stat_activity
                    where datname = current_database() and backend_type = 'client backend'
                      and pid <> pg_backend_pid() and xact_start is not null"""
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(open_ones).fetchone() == (0,)


def _states(pid: int) -> Iterator[str]:
    """Yield the kernel's state letter of each thread of a process, which follows the name in parentheses."""
    for thread in Path(f"/proc/{pid}/task").glob("*/stat"):
        # A thread may end in between.
        with contextlib.suppress(OSError):
            yield thread.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]


def keep_errors(file: Path) -> None:
    """In a child: append standard error to *file*."""
    with file.open("ab") as errors:
        os.dup2(errors.fileno(), 2)


def say(pipe: Connection, word: Any = "ready") -> Any:
    """In a child: send a message and return the answer. Exits if the parent has exited."""
    try:
        pipe.send(word)
        return pipe.recv()
    except (EOFError, BrokenPipeError):
        os._exit(0)

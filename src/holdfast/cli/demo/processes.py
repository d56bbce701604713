"""The demo's worker processes: start, kill, freeze and resume them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from holdfast import Job, Queue, Unavailable
from holdfast.cli.demo import plan
from holdfast.cli.demo.worker import Settings

Condition = Literal["up", "killed", "frozen"]

# How long to wait for a test write before assuming that the stopped process holds the write lock.
_PROBE_SECONDS: Final = 0.3
_EXIT_SECONDS: Final = 2.0


class Refusal(NamedTuple):
    """A write of a worker that the store refused, as the worker reported it."""

    worker: str
    what: str
    job_id: str
    epoch: int
    code: str
    why: str


class Member:
    """One worker process and its condition."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.condition: Condition = "up"
        self.believes: Job | None = None
        """The job that a frozen worker still considers its own."""

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self.process.pid

    @property
    def died_by_itself(self) -> bool:
        """Whether the process exited without being killed by the demo."""
        return self.condition != "killed" and self.process.poll() is not None


class DemoWorkers:
    """The workers by name. Leaving the context stops every process."""

    def __init__(self, url: str, folder: Path, pace: plan.Pace) -> None:
        self._url = url
        self._folder = folder
        self._pace = pace
        self._refusals: deque[Refusal] = deque()
        self.members: dict[str, Member] = {}

    def __enter__(self) -> DemoWorkers:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members.values():
            _close_stdin(member.process)
        for member in self.members.values():
            _stop(member)

    def start_all(self) -> None:
        """Start every worker."""
        for worker in plan.WORKERS:
            self.start(worker)

    def start(self, worker: str) -> Member:
        """Start a process for *worker*, replacing an earlier one."""
        settings = Settings(self._url, worker, self._pace.lease, self._pace.idle, self._pace.retry)
        with self.stderr_path(worker).open("a") as stderr:
            process = subprocess.Popen(  # noqa: S603  # our own module under our own interpreter
                [sys.executable, "-m", "holdfast.cli.demo.worker", *settings.arguments()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                # A separate group: Ctrl-C reaches only the parent, and the system resumes a stopped orphan.
                process_group=0,
            )
        threading.Thread(target=self._listen, args=(worker, process), daemon=True).start()
        self.members[worker] = Member(process)
        return self.members[worker]

    def stderr_path(self, worker: str) -> Path:
        """Return the file with the standard error of *worker*."""
        return self._folder / f"{worker.replace(' ', '-')}.log"

    def new_refusals(self) -> list[Refusal]:
        """Return the refusals reported since the last call."""
        return [self._refusals.popleft() for _ in range(len(self._refusals))]

    def kill(self, worker: str) -> None:
        """Kill the process with SIGKILL."""
        member = self.members[worker]
        member.condition = "killed"
        member.process.kill()
        member.process.wait()

    def freeze(self, worker: str, held: Job, queue: Queue) -> bool:
        """Stop the process with SIGSTOP while it holds *held*, and return whether that succeeded.

        If the process has just settled the job, or holds the store's write lock and thereby blocks all writers, it is
        resumed and False is returned.
        """
        member = self.members[worker]
        os.kill(member.pid, signal.SIGSTOP)
        probe = threading.Thread(target=_write_nothing, args=(queue,), daemon=True)
        probe.start()
        probe.join(_PROBE_SECONDS)
        if probe.is_alive() or not still_holds(queue, held):
            os.kill(member.pid, signal.SIGCONT)
            probe.join()
            return False
        member.condition, member.believes = "frozen", held
        return True

    def resume(self, worker: str) -> None:
        """Resume the frozen process with SIGCONT."""
        member = self.members[worker]
        member.condition = "up"
        os.kill(member.pid, signal.SIGCONT)

    def _listen(self, worker: str, process: subprocess.Popen[str]) -> None:
        if process.stdout is None:
            return
        # The last line of a killed process may be incomplete.
        with suppress(ValueError):
            for line in process.stdout:
                fields: dict[str, Any] = json.loads(line)
                self._refusals.append(Refusal(worker, **fields))


def still_holds(queue: Queue, held: Job) -> bool:
    """Return whether the job is still running under the same claim as in *held*."""
    job = queue.get(held.id)
    return job.state == "running" and (job.epoch, job.worker) == (held.epoch, held.worker)


def _write_nothing(queue: Queue) -> None:
    with suppress(Unavailable), queue.transaction():
        pass


def _close_stdin(process: subprocess.Popen[str]) -> None:
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()


def _stop(member: Member) -> None:
    """Wait for a running worker to exit, then kill it; SIGKILL also ends a stopped process."""
    try:
        if member.condition == "up":
            member.process.wait(_EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        pass
    finally:
        member.process.kill()
        member.process.wait()

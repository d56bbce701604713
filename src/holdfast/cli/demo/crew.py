"""The demo's worker processes: started, killed, frozen and revived for real."""

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
from holdfast.cli.demo.plan import WORKERS, Pace
from holdfast.cli.demo.worker import Settings

Condition = Literal["up", "killed", "frozen"]

# How long a stopped process may keep others from writing before it is let go again.
_PROBE_SECONDS: Final = 0.3
_FAREWELL_SECONDS: Final = 2.0


class Tale(NamedTuple):
    """Something a worker told: a write of its that the store refused."""

    worker: str
    what: str
    job_id: str
    epoch: int
    code: str
    why: str


class Member:
    """One worker process and what happened to it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.condition: Condition = "up"
        self.believes: Job | None = None
        """The job that a frozen worker takes to be its own, whatever has become of it."""

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self.process.pid

    @property
    def died_by_itself(self) -> bool:
        """Whether the process ended although nobody killed it."""
        return self.condition != "killed" and self.process.poll() is not None


class DemoWorkers:
    """The workers by name. Leaving the context ends every process."""

    def __init__(self, url: str, folder: Path, pace: Pace) -> None:
        self._url = url
        self._folder = folder
        self._pace = pace
        self._tales: deque[Tale] = deque()
        self.members: dict[str, Member] = {}

    def __enter__(self) -> DemoWorkers:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members.values():
            _say_goodbye(member.process)
        for member in self.members.values():
            _end(member)

    def start_all(self) -> None:
        """Start every worker."""
        for worker in WORKERS:
            self.start(worker)

    def start(self, worker: str) -> Member:
        """Start the process of *worker*, anew if it had one."""
        settings = Settings(self._url, worker, self._pace.lease, self._pace.idle, self._pace.retry)
        with self.complaints(worker).open("a") as complaints:
            process = subprocess.Popen(  # noqa: S603  # our own module under our own interpreter
                [sys.executable, "-m", "holdfast.cli.demo.worker", *settings.arguments()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                text=True,
                # A group of its own: Ctrl-C is for the parent, and a stopped orphan is woken to find its parent gone.
                process_group=0,
            )
        threading.Thread(target=self._listen, args=(worker, process), daemon=True).start()
        self.members[worker] = Member(process)
        return self.members[worker]

    def complaints(self, worker: str) -> Path:
        """Return where *worker* writes its standard error."""
        return self._folder / f"{worker.replace(' ', '-')}.log"

    def tales(self) -> list[Tale]:
        """Return what the workers told since the last time."""
        return [self._tales.popleft() for _ in range(len(self._tales))]

    def kill(self, worker: str) -> None:
        """Kill the process with SIGKILL: it cannot say goodbye, nor finish a thing."""
        member = self.members[worker]
        member.condition = "killed"
        member.process.kill()
        member.process.wait()

    def freeze(self, worker: str, held: Job, queue: Queue) -> bool:
        """Stop the process with SIGSTOP while it holds *held*; False if it was caught at a bad moment and runs on.

        A bad moment is one in which it just settled, or has the store's only write lock: then the whole store would
        stand still, and nothing could be shown.
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

    def revive(self, worker: str) -> None:
        """Let the frozen process go on where it stopped, with SIGCONT."""
        member = self.members[worker]
        member.condition = "up"
        os.kill(member.pid, signal.SIGCONT)

    def _listen(self, worker: str, process: subprocess.Popen[str]) -> None:
        if process.stdout is None:
            return
        # A killed process may leave half a line behind.
        with suppress(ValueError):
            for line in process.stdout:
                words: dict[str, Any] = json.loads(line)
                self._tales.append(Tale(worker, **words))


def still_holds(queue: Queue, held: Job) -> bool:
    """Whether the job is still running under the claim that *held* was read under."""
    job = queue.get(held.id)
    return job.state == "running" and (job.epoch, job.worker) == (held.epoch, held.worker)


def _write_nothing(queue: Queue) -> None:
    with suppress(Unavailable), queue.transaction():
        pass


def _say_goodbye(process: subprocess.Popen[str]) -> None:
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()


def _end(member: Member) -> None:
    """End a worker in good order if it can hear, else at once; SIGKILL also ends a stopped process."""
    try:
        if member.condition == "up":
            member.process.wait(_FAREWELL_SECONDS)
    except subprocess.TimeoutExpired:
        pass
    finally:
        member.process.kill()
        member.process.wait()

"""One worker of the demo, as a process of its own: it claims, heartbeats, reports progress and settles.

It stands on the public `Queue` alone and knows nothing of the story. What it has to tell its parent it writes to
standard output, one JSON object a line. It never outlives its parent: it watches standard input, which ends with it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import holdfast
from holdfast import Claim, Done, Failed, LeaseLost, Outcome, Queue, Refused, Unavailable

T = TypeVar("T")

RECEIPTS_TABLE = "create table demo_receipts (job_id text, epoch integer, worker text, primary key (job_id, epoch))"
# A settle that is sent again writes its receipt again: the same one. Two attempts would leave two.
_RECEIPT = "insert into demo_receipts values (?, ?, ?) on conflict do nothing"

_LINUX_PR_SET_PDEATHSIG = 1


class Settings(NamedTuple):
    """What the parent says to a worker, in the order of its arguments; times are seconds."""

    url: str
    worker: str
    lease: float
    idle: float
    """How long to wait when there is nothing to claim."""
    retry: float
    """How long a job waits after a transient failure."""

    def arguments(self) -> list[str]:
        """Return the settings as the arguments of a command."""
        return [str(value) for value in self]

    @classmethod
    def parse(cls, arguments: list[str]) -> Settings:
        """Return the settings that `arguments` gave."""
        url, worker, lease, idle, retry = arguments
        return cls(url, worker, float(lease), float(idle), float(retry))


class DemoWorker:
    """A loop of claim, work and settle, with a second thread that keeps the lease alive."""

    def __init__(self, queue: Queue, settings: Settings) -> None:
        self._queue = queue
        self._settings = settings
        self._held: Claim | None = None

    def run(self) -> None:
        """Work until the process ends."""
        threading.Thread(target=self._keep_alive, daemon=True).start()
        while True:
            claim = insist(lambda: self._queue.claim(worker=self._settings.worker, lease=self._settings.lease))
            if claim is None:
                time.sleep(self._settings.idle)
                continue
            self._held = claim
            outcome = self._work(claim)
            self._settle(claim, outcome)
            self._held = None

    def _keep_alive(self) -> None:
        while True:
            time.sleep(self._settings.lease / 4)
            held = self._held
            if held is not None:
                self._heartbeat(held)

    def _heartbeat(self, held: Claim) -> None:
        try:
            self._queue.heartbeat(held)
        except Refused as refusal:
            # The settle may just have ended the lease; if not, the next report of progress learns it too.
            if self._held is held:
                tell("heartbeat_refused", held, refusal)
        except Unavailable:
            pass  # The next beat comes before the lease ends.

    def _work(self, claim: Claim) -> Outcome:
        plan: dict[str, Any] = claim.job.payload
        steps, phases = plan["steps"], plan["phases"]
        for step in range(steps):
            if step * 2 >= steps and (failure := self._trouble(claim, plan.get("trouble"))):
                return failure
            if not self._report(claim, phases[step * len(phases) // steps], 100 * step / steps):
                break
            time.sleep(plan["seconds"] / steps)
        return Done({"by": self._settings.worker, "epoch": claim.epoch})

    def _trouble(self, claim: Claim, trouble: str | None) -> Failed | None:
        if trouble == "transient" and claim.job.attempt == 1:
            return Failed("the mail server is busy", reason="server_busy", retry_after=self._settings.retry)
        if trouble == "permanent":
            return Failed("the document is not readable", reason="unreadable", permanent=True)
        return None

    def _report(self, claim: Claim, phase: str, percent: float) -> bool:
        """Report progress; False says that the lease is lost.

        A careful worker would drop the job then. This one goes on to settle, to show that the fence does not
        depend on the care of workers.
        """
        try:
            insist(lambda: self._queue.progress(claim, phase=phase, percent=percent))
        except LeaseLost as refusal:
            tell("progress_refused", claim, refusal)
            return False
        return True

    def _settle(self, claim: Claim, outcome: Outcome) -> None:
        try:
            insist(lambda: self._settle_with_receipt(claim, outcome))
        except LeaseLost as refusal:
            tell("settle_refused", claim, refusal)

    def _settle_with_receipt(self, claim: Claim, outcome: Outcome) -> None:
        """Settle, and write the effect of the work, in one transaction: a refused settle takes the effect with it."""
        with self._queue.transaction() as transaction:
            if isinstance(outcome, Done):
                transaction.execute(_RECEIPT, (claim.job.id, claim.epoch, self._settings.worker))
            transaction.settle(claim, outcome)


def insist(call: Callable[[], T]) -> T:
    """Return what *call* returns, sending it again while the store cannot answer: every call here allows that."""
    while True:
        try:
            return call()
        except Unavailable:
            time.sleep(0.05)


def tell(what: str, claim: Claim, refusal: Refused) -> None:
    """Tell the parent of something that the store does not record."""
    words = {"what": what, "job_id": claim.job.id, "epoch": claim.epoch, "code": refusal.code, "why": str(refusal)}
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


def die_with_parent() -> None:
    """End this process as soon as its parent has ended, in whichever way."""
    if sys.platform == "linux":
        # Reaches a process that is stopped, too, which cannot watch anything.
        ctypes.CDLL(None).prctl(_LINUX_PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_watch_parent, daemon=True).start()


def _watch_parent() -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os._exit(0)


def main() -> None:
    """Run one worker with the settings given as arguments."""
    die_with_parent()
    settings = Settings.parse(sys.argv[1:])
    DemoWorker(holdfast.connect(settings.url), settings).run()


if __name__ == "__main__":
    main()

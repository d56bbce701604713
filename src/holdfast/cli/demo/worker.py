"""A worker process of the demo: it claims jobs, renews leases, reports progress and settles.

It uses the public `Queue`, and the registry of workers, so that the dashboard lists it. It reports refused writes to
its parent on standard output, one JSON object per line.
It exits when its parent exits: the parent's end of standard input is then closed.
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
from holdfast import Claim, Done, Failed, LeaseLost, Outcome, Queue, Refused, Unavailable, types
from holdfast.cli.demo.plan import SORTS
from holdfast.client.queue_state import state_of
from holdfast.client.sync_api.worker_calls import WorkerCalls

T = TypeVar("T")

RECEIPTS_TABLE = "create table demo_receipts (job_id text, epoch integer, worker text, primary key (job_id, epoch))"
# A retried settle writes the same receipt; two attempts that both settle leave two.
_RECEIPT = "insert into demo_receipts values (?, ?, ?) on conflict do nothing"

_LINUX_PR_SET_PDEATHSIG = 1


class Settings(NamedTuple):
    """The arguments of a worker process, in order; times are in seconds."""

    url: str
    worker: str
    lease: float
    idle: float
    """The delay after an empty claim."""
    retry: float
    """The delay after a transient failure."""

    def arguments(self) -> list[str]:
        """Return the settings as command-line arguments."""
        return [str(value) for value in self]

    @classmethod
    def parse(cls, arguments: list[str]) -> Settings:
        """Return the settings from command-line arguments."""
        url, worker, lease, idle, retry = arguments
        return cls(url, worker, float(lease), float(idle), float(retry))


class DemoWorker:
    """A loop of claim, work and settle, with a second thread that renews the lease."""

    def __init__(self, queue: Queue, settings: Settings) -> None:
        self._queue = queue
        self._settings = settings
        self._held: Claim | None = None
        self._calls = WorkerCalls(state_of(queue).store)
        self._incarnation = state_of(queue).claimer["incarnation"]

    def run(self) -> None:
        """Process jobs until the process exits."""
        threading.Thread(target=self._keep_alive, daemon=True).start()
        while True:
            claim = retry_until_available(
                lambda: self._queue.claim(worker=self._settings.worker, lease=self._settings.lease)
            )
            if claim is None:
                time.sleep(self._settings.idle)
                continue
            self._held = claim
            outcome = self._work(claim)
            self._settle(claim, outcome)
            self._held = None

    def _keep_alive(self) -> None:
        while True:
            held = self._held
            if held is not None:
                self._heartbeat(held)
            self._beat()
            time.sleep(self._settings.lease / 4)

    def _beat(self) -> None:
        """Write this worker's row in the registry."""
        info = types.WorkerInfo(
            worker=self._settings.worker,
            incarnation=self._incarnation,
            host=os.uname().nodename,
            process=os.getpid(),
            version=holdfast.__version__,
            state="active",
            concurrency=1,
            running=0 if self._held is None else 1,
            lanes=("default",),
            kinds=tuple(sort.kind for sort in SORTS),
            capabilities=(),
            loaded=(),
        )
        retry_until_available(lambda: self._calls.beat(info))

    def _heartbeat(self, held: Claim) -> None:
        try:
            self._queue.heartbeat(held)
        except Refused as refusal:
            # The main thread may have just settled; otherwise its next progress report is refused too.
            if self._held is held:
                report("heartbeat_refused", held, refusal)
        except Unavailable:
            pass  # The next heartbeat precedes the end of the lease.

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
        """Report progress, and return False if the lease is lost.

        A real worker would drop the job then. This one still settles, to show that the store refuses it.
        """
        try:
            retry_until_available(lambda: self._queue.progress(claim, phase=phase, percent=percent))
        except LeaseLost as refusal:
            report("progress_refused", claim, refusal)
            return False
        return True

    def _settle(self, claim: Claim, outcome: Outcome) -> None:
        try:
            retry_until_available(lambda: self._settle_with_receipt(claim, outcome))
        except LeaseLost as refusal:
            report("settle_refused", claim, refusal)

    def _settle_with_receipt(self, claim: Claim, outcome: Outcome) -> None:
        """Settle the job and write its effect in one transaction: a refused settle rolls the effect back."""
        with self._queue.transaction() as transaction:
            if isinstance(outcome, Done):
                transaction.execute(_RECEIPT, (claim.job.id, claim.epoch, self._settings.worker))
            transaction.settle(claim, outcome)


def retry_until_available(call: Callable[[], T]) -> T:
    """Return the result of *call*, repeating it while the store is unavailable. Every call here is idempotent."""
    while True:
        try:
            return call()
        except Unavailable:
            time.sleep(0.05)


def report(what: str, claim: Claim, refusal: Refused) -> None:
    """Report a refused write, which the store does not record, to the parent."""
    fields = {"what": what, "job_id": claim.job.id, "epoch": claim.epoch, "code": refusal.code, "why": str(refusal)}
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def die_with_parent() -> None:
    """Exit as soon as the parent process has exited."""
    if sys.platform == "linux":
        # The signal also reaches a stopped process.
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

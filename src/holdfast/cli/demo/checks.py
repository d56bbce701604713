"""The checks at the end of the demo: compare every claim with the store's data."""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from holdfast import Job, Queue, types
from holdfast.cli.demo import processes, story

_TERMINAL_EVENTS = frozenset(("done", "failed", "cancelled", "retired"))


class Check(NamedTuple):
    """One claim, whether it holds, and the evidence."""

    claim: str
    holds: bool
    evidence: str


class Receipt(NamedTuple):
    """The effect of one attempt, written in the transaction that settled it."""

    job_id: str
    epoch: int
    worker: str


class Record(NamedTuple):
    """The data of the store and of the workers after the run."""

    acknowledged: list[str]
    counts: dict[str, int]
    jobs: dict[str, Job]
    attempts: dict[str, list[types.Attempt]]
    events: list[types.Event]
    receipts: list[Receipt]
    refusals: list[processes.Refusal]
    killed: story.Victim | None
    frozen: story.Victim | None

    @property
    def finished(self) -> int:
        """The number of finished jobs."""
        return sum(self.counts.get(state, 0) for state in _TERMINAL_EVENTS)

    def ended(self, outcome: str) -> int:
        """Return the number of attempts with this outcome."""
        return sum(attempt.outcome == outcome for attempts in self.attempts.values() for attempt in attempts)

    @property
    def retries(self) -> int:
        """The number of failed attempts that were followed by a retry."""
        return self.ended("failed") - self.counts.get("failed", 0)

    @property
    def settled_once(self) -> int:
        """The number of jobs with exactly one final attempt, their last, and one final event."""
        endings = Counter(event.job_id for event in self.events if event.name in _TERMINAL_EVENTS)
        return sum(endings[job_id] == 1 and self._ended_by_last(job_id) for job_id in self.acknowledged)

    def _ended_by_last(self, job_id: str) -> bool:
        job, attempts = self.jobs[job_id], self.attempts[job_id]
        dones = [attempt.epoch for attempt in attempts if attempt.outcome == "done"]
        return (
            attempts[-1].outcome == job.state
            and attempts[-1].epoch == job.epoch == len(attempts)
            and dones == ([job.epoch] if job.state == "done" else [])
        )


def collect(
    queue: Queue,
    *,
    acknowledged: list[str],
    refusals: list[processes.Refusal],
    killed: story.Victim | None,
    frozen: story.Victim | None,
) -> Record:
    """Read the store's data and add the data of the run."""
    with queue.transaction() as transaction:
        receipts = transaction.execute("select job_id, epoch, worker from demo_receipts")
    return Record(
        acknowledged=acknowledged,
        counts=queue.counts(),
        jobs={job_id: queue.get(job_id) for job_id in acknowledged},
        attempts={job_id: queue.attempts(job_id) for job_id in acknowledged},
        events=list(_all_events(queue)),
        receipts=[Receipt(*row) for row in receipts],
        refusals=refusals,
        killed=killed,
        frozen=frozen,
    )


def _all_events(queue: Queue) -> Iterator[types.Event]:
    page = queue.events(limit=1000)
    while len(page):
        yield from page
        page = queue.events(after=page.cursor, limit=1000)


def examine(record: Record) -> list[Check]:
    """Return all checks of the demo."""
    return [
        _nothing_lost(record),
        _settled_once(record),
        _effects_once(record),
        _killed_taken_over(record),
        _stale_refused(record),
        _failures_handled(record),
    ]


def _nothing_lost(record: Record) -> Check:
    acknowledged, counts = len(record.acknowledged), record.counts
    return Check(
        "nothing lost",
        acknowledged == record.finished == sum(counts.values()),
        f"acknowledged {acknowledged} = finished {record.finished} "
        f"({counts.get('done', 0)} done, {counts.get('failed', 0)} failed)",
    )


def _settled_once(record: Record) -> Check:
    return Check(
        "settled once",
        record.settled_once == len(record.acknowledged),
        f"{record.settled_once} of {len(record.acknowledged)}: one final attempt, one final event each",
    )


def _effects_once(record: Record) -> Check:
    expected = {(job.id, job.epoch) for job in record.jobs.values() if job.state == "done"}
    written = Counter((receipt.job_id, receipt.epoch) for receipt in record.receipts)
    return Check(
        "effects once",
        set(written) == expected and written.total() == len(expected),
        f"{written.total()} receipts for {len(expected)} done jobs, atomic with settle",
    )


def _killed_taken_over(record: Record) -> Check:
    claim, killed = "killed, taken over", record.killed
    if killed is None:
        return Check(claim, False, "no worker was killed")
    struck, last = _struck_and_last(record, killed)
    return Check(
        claim,
        _taken_over(struck, last),
        f"{killed.job_id}: {struck.worker} {struck.outcome}, {last.worker} {last.outcome} at epoch {last.epoch}",
    )


def _stale_refused(record: Record) -> Check:
    claim, frozen = "stale refused", record.frozen
    refusal = next(
        (refusal for refusal in record.refusals if frozen == (refusal.worker, refusal.job_id, refusal.epoch)), None
    )
    if frozen is None or refusal is None:
        return Check(claim, False, "no settle was refused")
    struck, last = _struck_and_last(record, frozen)
    refused = {(refusal.job_id, refusal.epoch) for refusal in record.refusals}
    left = [receipt for receipt in record.receipts if (receipt.job_id, receipt.epoch) in refused]
    return Check(
        claim,
        _taken_over(struck, last) and refusal.code == "lease_lost" and not left,
        f"{frozen.job_id}: {struck.worker} {refusal.code}, {last.worker} {last.outcome} at epoch {last.epoch}",
    )


def _struck_and_last(record: Record, victim: story.Victim) -> tuple[types.Attempt, types.Attempt]:
    attempts = record.attempts[victim.job_id]
    return next(attempt for attempt in attempts if attempt.epoch == victim.epoch), attempts[-1]


def _taken_over(struck: types.Attempt, last: types.Attempt) -> bool:
    return struck.outcome == "expired" and last.outcome == "done" and last.incarnation != struck.incarnation


def _failures_handled(record: Record) -> Check:
    failed = [job for job in record.jobs.values() if job.state == "failed"]
    classes = [job.failure.failure_class for job in failed if job.failure is not None]
    return Check(
        "failures handled",
        record.retries > 0 and classes == ["permanent"],
        f"{record.retries} transient retried, {len(failed)} permanent kept as failed",
    )

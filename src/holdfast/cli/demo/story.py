"""The demo's four acts, run with real processes on a real store.

`Story.play` is a generator: each step reads the store once and updates the scene, which the caller draws. Messages
come from the store's event log and from the workers.
"""

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal, NamedTuple

from holdfast import Job, NewJob, Queue, types
from holdfast.cli.demo import plan, processes
from holdfast.cli.demo.worker import RECEIPTS_TABLE
from holdfast.client.queue_state import state_of
from holdfast.storage.runners import SyncRunner

Tone = Literal["plain", "good", "warning", "bad", "fence", "act"]

# Progress at which a worker is killed or frozen: it has started the job but does not settle it yet.
_PERCENT_FROM: Final = 35
_PERCENT_TO: Final = 65


class Act(NamedTuple):
    """The title of an act and an explanation."""

    title: str
    why: str


ACTS: Final = (
    Act(
        "Jobs flow: three worker processes claim, heartbeat and settle",
        "A claim is a lease that ends unless heartbeats extend it; each has an epoch.",
    ),
    Act(
        "A worker is killed with SIGKILL in the middle of a job",
        "No more heartbeats: its lease expires, and another worker takes the job over.",
    ),
    Act(
        "A worker freezes past its lease, wakes up, and tries to settle",
        "It cannot know that its job has moved on. The fence refuses its late settle.",
    ),
    Act(
        "The remaining jobs finish",
        "Transient failures are retried after a delay; a permanent one is kept as failed.",
    ),
)


class Message(NamedTuple):
    """One line of the log; *at* is seconds since the start."""

    at: float
    text: str
    tone: Tone


class Victim(NamedTuple):
    """A killed or frozen worker and the job it held."""

    worker: str
    job_id: str
    epoch: int


@dataclass
class Scene:
    """The current state of the demo, as the display shows it."""

    workers: processes.DemoWorkers
    pace: plan.Pace
    act: int = 0
    at: float = 0.0
    acknowledged: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    running: dict[str, Job] = field(default_factory=dict)
    lease_left: dict[str, float] = field(default_factory=dict)
    """Seconds by job id since the last observed heartbeat; may be negative."""
    messages: list[Message] = field(default_factory=list)


class GaveUp(Exception):  # noqa: N818  # it names what happened
    """The demo failed: a worker exited, or the time limit passed."""


class Story:
    """Runs the acts and records the data for the checks."""

    def __init__(
        self, queue: Queue, workers: processes.DemoWorkers, pace: plan.Pace, dashboard: str | None = None
    ) -> None:
        self._dashboard = dashboard
        self._queue = queue
        self._workers = workers
        self._pace = pace
        self._plan = plan.Plan(pace)
        self._started = time.monotonic()
        self._cursor: str | None = None
        # State from printed events: an act proceeds only after the event has been printed.
        self._epochs: Counter[str] = Counter()
        self._expired: set[str] = set()
        self._done: set[str] = set()
        self._lease_seen: dict[str, tuple[datetime | None, float]] = {}
        self.scene = Scene(workers, pace)
        self.acknowledged: list[str] = []
        self.refusals: list[processes.Refusal] = []
        self.killed: Victim | None = None
        self.frozen: Victim | None = None

    def play(self) -> Iterator[None]:
        """Run all acts, yielding after each read of the store."""
        self._prepare()
        for number, act in enumerate((self._flow, self._kill, self._freeze, self._drain), start=1):
            self.scene.act = number
            self._log(f"{number} of {len(ACTS)}: {ACTS[number - 1].title}", "act")
            yield from act()
        yield from self._wait(self._pace.hold)

    # --- the acts --------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        self._queue.lanes.set("default", events="all")
        with self._queue.transaction() as transaction:
            transaction.execute(RECEIPTS_TABLE)

    def _flow(self) -> Iterator[None]:
        self._enqueue(self._plan.opening())
        self._workers.start_all()
        yield from self._until(lambda: self.scene.counts.get("done", 0) >= 4)

    def _kill(self) -> Iterator[None]:
        self._enqueue(self._plan.wave())
        while self.killed is None:
            held = yield from self._wait_for_running_job()
            self._workers.kill(held.worker or "")
            if processes.still_holds(self._queue, held):
                self.killed = self._victim(held)
                self._log(f"{held.worker} killed with SIGKILL holding {_describe(held)}", "bad")
                self._point_to(held)
            else:
                self._log(f"{held.worker} killed with SIGKILL, but it had just settled; trying again", "bad")
                self._workers.start(held.worker or "")
        yield from self._taken_over(self.killed)
        self._workers.start(self.killed.worker)
        self._log(f"{self.killed.worker} started again, as a new process", "plain")
        yield from self._finished(self.killed)

    def _freeze(self) -> Iterator[None]:
        self._enqueue(self._plan.wave())
        while self.frozen is None:
            held = yield from self._wait_for_running_job()
            if self._workers.freeze(held.worker or "", held, self._queue):
                self.frozen = self._victim(held)
        self._log(f"{held.worker} frozen with SIGSTOP holding {_describe(held)}", "warning")
        self._point_to(held)
        yield from self._taken_over(self.frozen)
        yield from self._finished(self.frozen)
        yield from self._wait(self._pace.hold)
        self._workers.resume(self.frozen.worker)
        self._log(
            f"{self.frozen.worker} resumed with SIGCONT; it still considers itself the owner of {held.id}", "warning"
        )
        yield from self._until(self._refused)
        self._workers.members[self.frozen.worker].believes = None

    def _drain(self) -> Iterator[None]:
        yield from self._until(self._all_finished)
        self._log(f"all {len(self.acknowledged)} jobs have finished", "good")

    # --- parts of the acts -----------------------------------------------------------------------------------------

    def _enqueue(self, jobs: Sequence[NewJob]) -> None:
        results = self._queue.enqueue_many(jobs)
        # At once, not after ten seconds, so that the dashboard shows the arrivals when they happen.
        SyncRunner(state_of(self._queue).store).write_rollups()
        self.acknowledged += [result.id for result in results]
        self.scene.acknowledged = len(self.acknowledged)
        if len(results) > 1:
            self._log(f"{len(results)} jobs of three tenants enqueued; acknowledged means on disk", "plain")

    def _wait_for_running_job(self) -> Generator[None, None, Job]:
        """Wait until a worker is in the middle of a chat job, and return the job."""
        while True:
            yield from self._refresh()
            for job in self.scene.running.values():
                if job.kind == plan.CHAT.kind and _PERCENT_FROM <= (job.percent or 0) <= _PERCENT_TO:
                    return job
            if not any(self.scene.counts.get(state) for state in ("ready", "scheduled", "running")):
                self._enqueue([self._plan.job(plan.CHAT)])

    def _victim(self, held: Job) -> Victim:
        return Victim(held.worker or "", held.id, held.epoch)

    def _taken_over(self, victim: Victim) -> Iterator[None]:
        return self._until(lambda: self._epochs[victim.job_id] > victim.epoch)

    def _finished(self, victim: Victim) -> Iterator[None]:
        return self._until(lambda: victim.job_id in self._done)

    def _refused(self) -> bool:
        return any(
            refusal.what == "settle_refused" and self.frozen == (refusal.worker, refusal.job_id, refusal.epoch)
            for refusal in self.refusals
        )

    def _all_finished(self) -> bool:
        counts = self.scene.counts
        return counts.get("done", 0) + counts.get("failed", 0) >= len(self.acknowledged)

    def _until(self, happened: Callable[[], bool]) -> Iterator[None]:
        while not happened():
            yield from self._refresh()

    def _wait(self, seconds: float) -> Iterator[None]:
        end = time.monotonic() + seconds
        return self._until(lambda: time.monotonic() >= end)

    # --- reading the store -----------------------------------------------------------------------------------------

    def _refresh(self) -> Iterator[None]:
        """Read the store and the workers' reports once, and yield for drawing."""
        scene = self.scene
        scene.at = self._now()
        self._check_health()
        scene.counts = self._queue.counts()
        scene.running = {job.worker or "": job for job in self._queue.jobs(state="running")}
        scene.lease_left = {job.id: self._lease_left(job) for job in scene.running.values()}
        for event in self._new_events():
            self._log_event(event)
            self._update_state(event)
        for refusal in self._workers.new_refusals():
            self._log_refusal(refusal)
        yield
        time.sleep(self._pace.tick)

    def _check_health(self) -> None:
        if self.scene.at > self._pace.limit:
            raise GaveUp(f"it did not finish within {self._pace.limit:.0f} s")
        for worker, member in self._workers.members.items():
            if member.died_by_itself:
                last = self._workers.stderr_path(worker).read_text().strip().splitlines()[-1:]
                raise GaveUp(f"{worker} exited: {''.join(last) or 'no output'}")

    def _lease_left(self, job: Job) -> float:
        # Leases use the store's clock, so count from when a change of the lease was observed.
        until, seen_at = self._lease_seen.get(job.id, (None, 0.0))
        if until != job.lease_until:
            until, seen_at = self._lease_seen[job.id] = (job.lease_until, self._now())
        return self._pace.lease - (self._now() - seen_at)

    def _new_events(self) -> list[types.Event]:
        page = self._queue.events(after=self._cursor, limit=1000)
        self._cursor = page.cursor
        return list(page)

    def _update_state(self, event: types.Event) -> None:
        if event.name == "claimed":
            self._epochs[event.job_id] = int(event.details["epoch"])
        elif event.name == "done":
            self._done.add(event.job_id)

    # --- messages --------------------------------------------------------------------------------------------------

    def _log(self, text: str, tone: Tone) -> None:
        self.scene.messages.append(Message(self._now(), text, tone))

    def _point_to(self, job: Job) -> None:
        """Name the page of a job, on which its takeover can be watched."""
        if self._dashboard is not None:
            self._log(f"watch {job.id}: {self._dashboard}/jobs/{job.number}", "plain")

    def _now(self) -> float:
        return time.monotonic() - self._started

    def _log_event(self, event: types.Event) -> None:
        details, job_id = event.details, event.job_id
        match event.name:
            case "expired":
                self._expired.add(job_id)
                self._log(f"lease of {details['worker']} on {job_id} expired without a heartbeat", "warning")
            case "claimed" if job_id in self._expired:
                self._log(f"{job_id} taken over by {details['worker']} at epoch {details['epoch']}", "good")
            case "done" if job_id in self._expired:
                self._log(f"{job_id} finished by {details['worker']} at epoch {details['epoch']}", "good")
            case "retrying":
                self._log(f"{job_id} failed ({details['failure_reason']}), transient: it will be retried", "plain")
            case "failed":
                self._log(f"{job_id} failed ({details['failure_reason']}), permanent: kept as failed", "bad")
            case _:
                pass

    def _log_refusal(self, refusal: processes.Refusal) -> None:
        if refusal.what != "settle_refused":
            return
        self.refusals.append(refusal)
        self._log(
            f"{refusal.worker} tried to settle {refusal.job_id} at epoch {refusal.epoch}: refused, {refusal.code}",
            "fence",
        )


def _describe(job: Job) -> str:
    return f"{job.id} (epoch {job.epoch}, {job.percent or 0:.0f} % done)"

"""The demo's story: four acts played with real processes on a real store, and the moments worth telling.

A story is a generator: each step looks at the store once and leaves the scene to be drawn. What it tells comes from
the store's own event log and from the workers; nothing is told that was not seen.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from holdfast import Event, Job, NewJob, Queue
from holdfast.cli.demo.crew import DemoWorkers, Tale, still_holds
from holdfast.cli.demo.plan import CHAT, Pace, Plan
from holdfast.cli.demo.worker import RECEIPTS_TABLE

Tone = Literal["plain", "good", "warning", "bad", "fence", "act"]

# A victim is caught well inside its job: late enough to have done something, early enough not to be settling.
_PERCENT_FROM: Final = 35
_PERCENT_TO: Final = 65


class Act(NamedTuple):
    """What is played, and what to watch for."""

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
        "The rest is worked off",
        "Transient failures come back after a pause; a permanent one is kept as failed.",
    ),
)


class Moment(NamedTuple):
    """Something worth telling; *at* is seconds since the start."""

    at: float
    text: str
    tone: Tone


class Victim(NamedTuple):
    """A job and the worker that held it when the worker was struck."""

    worker: str
    job_id: str
    epoch: int


@dataclass
class Scene:
    """What the story knows right now; this is all that a picture gets to see."""

    crew: DemoWorkers
    pace: Pace
    act: int = 0
    at: float = 0.0
    acknowledged: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    running: dict[str, Job] = field(default_factory=dict)
    lease_left: dict[str, float] = field(default_factory=dict)
    """Seconds by job id, from when its last heartbeat was seen; may be below zero."""
    moments: list[Moment] = field(default_factory=list)


class GaveUp(Exception):  # noqa: N818  # it names what happened
    """The demo cannot go on: a worker died by itself, or the time is up."""


class Story:
    """Plays the acts and remembers what the checks will need."""

    def __init__(self, queue: Queue, crew: DemoWorkers, pace: Pace) -> None:
        self._queue = queue
        self._crew = crew
        self._pace = pace
        self._plan = Plan(pace)
        self._started = time.monotonic()
        self._cursor: str | None = None
        # What has been told, so that no act runs ahead of its telling.
        self._epochs: Counter[str] = Counter()
        self._expired: set[str] = set()
        self._done: set[str] = set()
        self._lease_seen: dict[str, tuple[int, float]] = {}
        self.scene = Scene(crew, pace)
        self.acknowledged: list[str] = []
        self.refusals: list[Tale] = []
        self.killed: Victim | None = None
        self.frozen: Victim | None = None

    def play(self) -> Iterator[None]:
        """Play all acts, stopping after each look at the store."""
        self._set_the_stage()
        for number, act in enumerate((self._flow, self._kill, self._freeze, self._drain), start=1):
            self.scene.act = number
            self._tell(f"{number} of {len(ACTS)}: {ACTS[number - 1].title}", "act")
            yield from act()
        yield from self._wait(self._pace.hold)

    # --- the acts --------------------------------------------------------------------------------------------------

    def _set_the_stage(self) -> None:
        self._queue.set_lane("default", events="all")
        with self._queue.transaction() as transaction:
            transaction.execute(RECEIPTS_TABLE)

    def _flow(self) -> Iterator[None]:
        self._enqueue(self._plan.opening())
        self._crew.start_all()
        yield from self._until(lambda: self.scene.counts.get("done", 0) >= 4)

    def _kill(self) -> Iterator[None]:
        self._enqueue(self._plan.wave())
        while self.killed is None:
            held = yield from self._somebody_halfway()
            self._crew.kill(held.worker or "")
            if still_holds(self._queue, held):
                self.killed = self._victim(held)
                self._tell(f"{held.worker} killed with SIGKILL holding {_named(held)}", "bad")
            else:
                self._tell(f"{held.worker} killed with SIGKILL, but it had just settled; once more", "bad")
                self._crew.start(held.worker or "")
        yield from self._taken_over(self.killed)
        self._crew.start(self.killed.worker)
        self._tell(f"{self.killed.worker} started again, as a new process", "plain")
        yield from self._finished(self.killed)

    def _freeze(self) -> Iterator[None]:
        self._enqueue(self._plan.wave())
        while self.frozen is None:
            held = yield from self._somebody_halfway()
            if self._crew.freeze(held.worker or "", held, self._queue):
                self.frozen = self._victim(held)
        self._tell(f"{held.worker} frozen with SIGSTOP holding {_named(held)}", "warning")
        yield from self._taken_over(self.frozen)
        yield from self._finished(self.frozen)
        yield from self._wait(self._pace.hold)
        self._crew.revive(self.frozen.worker)
        self._tell(f"{self.frozen.worker} revived with SIGCONT; it believes it still holds {held.id}", "warning")
        yield from self._until(self._refused)
        self._crew.members[self.frozen.worker].believes = None

    def _drain(self) -> Iterator[None]:
        yield from self._until(self._all_finished)
        self._tell(f"all {len(self.acknowledged)} jobs have finished", "good")

    # --- what the acts are made of ---------------------------------------------------------------------------------

    def _enqueue(self, jobs: Sequence[NewJob]) -> None:
        made = self._queue.enqueue_many(jobs)
        self.acknowledged += [enqueued.id for enqueued in made]
        self.scene.acknowledged = len(self.acknowledged)
        if len(made) > 1:
            self._tell(f"{len(made)} jobs of three tenants enqueued; acknowledged means on disk", "plain")

    def _somebody_halfway(self) -> Generator[None, None, Job]:
        """Wait until a worker is in the middle of an answer, and return the job."""
        while True:
            yield from self._look()
            for job in self.scene.running.values():
                if job.kind == CHAT.kind and _PERCENT_FROM <= (job.percent or 0) <= _PERCENT_TO:
                    return job
            if not any(self.scene.counts.get(state) for state in ("ready", "scheduled", "running")):
                self._enqueue([self._plan.job(CHAT)])

    def _victim(self, held: Job) -> Victim:
        return Victim(held.worker or "", held.id, held.epoch)

    def _taken_over(self, victim: Victim) -> Iterator[None]:
        return self._until(lambda: self._epochs[victim.job_id] > victim.epoch)

    def _finished(self, victim: Victim) -> Iterator[None]:
        return self._until(lambda: victim.job_id in self._done)

    def _refused(self) -> bool:
        return any(
            tale.what == "settle_refused" and self.frozen == (tale.worker, tale.job_id, tale.epoch)
            for tale in self.refusals
        )

    def _all_finished(self) -> bool:
        counts = self.scene.counts
        return counts.get("done", 0) + counts.get("failed", 0) >= len(self.acknowledged)

    def _until(self, happened: Callable[[], bool]) -> Iterator[None]:
        while not happened():
            yield from self._look()

    def _wait(self, seconds: float) -> Iterator[None]:
        end = time.monotonic() + seconds
        return self._until(lambda: time.monotonic() >= end)

    # --- looking ---------------------------------------------------------------------------------------------------

    def _look(self) -> Iterator[None]:
        """Look at the store and the crew once, tell what is new, and let the scene be drawn."""
        scene = self.scene
        scene.at = self._now()
        self._check_health()
        scene.counts = self._queue.counts()
        scene.running = {job.worker or "": job for job in self._queue.jobs(state="running")}
        scene.lease_left = {job.id: self._lease_left(job) for job in scene.running.values()}
        for event in self._new_events():
            self._tell_event(event)
            self._remember(event)
        for tale in self._crew.tales():
            self._tell_refusal(tale)
        yield
        time.sleep(self._pace.tick)

    def _check_health(self) -> None:
        if self.scene.at > self._pace.limit:
            raise GaveUp(f"the story should have ended by now, after {self._pace.limit:.0f} s")
        for worker, member in self._crew.members.items():
            if member.died_by_itself:
                last = self._crew.complaints(worker).read_text().strip().splitlines()[-1:]
                raise GaveUp(f"{worker} ended by itself: {''.join(last) or 'it said nothing'}")

    def _lease_left(self, job: Job) -> float:
        # The store's clock for leases is its own, so the picture counts from when it saw the lease move.
        until, seen_at = self._lease_seen.get(job.id, (0, 0.0))
        if until != job.lease_until_ms:
            until, seen_at = self._lease_seen[job.id] = (job.lease_until_ms or 0, self._now())
        return self._pace.lease - (self._now() - seen_at)

    def _new_events(self) -> list[Event]:
        page = self._queue.events(after=self._cursor, limit=1000)
        self._cursor = page.cursor
        return list(page)

    def _remember(self, event: Event) -> None:
        if event.name == "claimed":
            self._epochs[event.job_id] = int(event.details["epoch"])
        elif event.name == "done":
            self._done.add(event.job_id)

    # --- telling ---------------------------------------------------------------------------------------------------

    def _tell(self, text: str, tone: Tone) -> None:
        self.scene.moments.append(Moment(self._now(), text, tone))

    def _now(self) -> float:
        return time.monotonic() - self._started

    def _tell_event(self, event: Event) -> None:
        details, named = event.details, event.job_id
        match event.name:
            case "expired":
                self._expired.add(named)
                self._tell(f"lease of {details['worker']} on {named} expired: no heartbeat came", "warning")
            case "claimed" if named in self._expired:
                self._tell(f"{named} taken over by {details['worker']} at epoch {details['epoch']}", "good")
            case "done" if named in self._expired:
                self._tell(f"{named} finished by {details['worker']} at epoch {details['epoch']}", "good")
            case "retrying":
                self._tell(
                    f"{named} failed ({details['failure_reason']}), transient: it will be tried again", "plain"
                )
            case "failed":
                self._tell(f"{named} failed ({details['failure_reason']}), permanent: kept for a look", "bad")
            case _:
                pass

    def _tell_refusal(self, tale: Tale) -> None:
        if tale.what != "settle_refused":
            return
        self.refusals.append(tale)
        self._tell(
            f"{tale.worker} tried to settle {tale.job_id} at epoch {tale.epoch}: refused, {tale.code}", "fence"
        )


def _named(job: Job) -> str:
    return f"{job.id} (epoch {job.epoch}, {job.percent or 0:.0f} % done)"

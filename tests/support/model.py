"""A simple model of the queue, to compare stores with.

Written from the documented rules, with plain dicts and without using `holdfast`: a second implementation to compare
with. It has no statements, indexes or chunks; every rule takes effect at once. The time is passed in.

If tenants alternate, the store chooses which of several ready jobs a claim takes; the model only returns the correct
choices.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

ModelJob: TypeAlias = dict[str, Any]
Request: TypeAlias = dict[str, Any]

WAITING = ("scheduled", "blocked", "ready")
ENDED = ("done", "failed", "cancelled", "retired")
DEFERRED_MS_MAX = 7 * 24 * 3600 * 1000


class RefusalError(Exception):
    """The model refuses; the store must too, with one of these errors."""

    def __init__(self, *names: str) -> None:
        super().__init__(*names)
        self.names = names


class Model:
    """All jobs by id, lanes, retired kinds, and every event that must have been recorded."""

    def __init__(self) -> None:
        self.wall_ms = 0
        self.lease_ms = 0
        self.jobs: dict[str, ModelJob] = {}
        self.lanes: dict[str, str] = {}
        self.recorded_lanes: set[str] = set()
        self.retired: set[str] = set()
        self.told: dict[str, list[tuple[int, str]]] = {}
        self._made = 0
        self._taken = 0

    # --- enqueue ---------------------------------------------------------------------------------------------------

    def enqueue(self, request: Request) -> tuple[str, bool]:
        """Return the id of the resulting job and whether it is new."""
        with self._all_or_nothing():
            return self._enqueue(request)

    def _enqueue(self, request: Request) -> tuple[str, bool]:
        known = self.jobs.get(request["id"])
        if known is not None:
            if known["request"] != request:
                raise RefusalError("Conflict")
            return request["id"], False
        if self.lanes.get(request["lane"]) == "draining":
            raise RefusalError("LaneDraining")
        if request["kind"] in self.retired:
            raise RefusalError("KindRetired")
        holder = self._holder(request)
        return self._meet(request, holder) if holder else (self._create(request, None), True)

    def _holder(self, wanted: Request | ModelJob) -> ModelJob | None:
        """Return the unfinished job that has the same key and does not itself wait for another.

        An overdue or expired job is updated first, and may turn out to have finished.
        """
        while (holder := self._key_holder(wanted)) is not None:
            if not self._end_if_overdue(holder) and not self._take_back_if_expired(holder):
                return holder
        return None

    def _key_holder(self, wanted: Request | ModelJob) -> ModelJob | None:
        if wanted["key"] is None:
            return None
        for job in self.jobs.values():
            same = all(job[word] == wanted[word] for word in ("tenant", "kind", "key"))
            if same and job["state"] not in (*ENDED, "blocked"):
                return job
        return None

    def _meet(self, request: Request, holder: ModelJob) -> tuple[str, bool]:
        if request["policy"] == "replace":
            if holder["epoch"]:
                raise RefusalError("Conflict")
            return self._replace(holder, request), False
        if request["policy"] == "run_again" and holder["state"] == "running":
            for job in self.jobs.values():
                if job["after"] == holder["serial"]:
                    return self._replace(job, request), False
            return self._create(request, holder["serial"]), True
        return holder["id"], False

    def _replace(self, job: ModelJob, request: Request) -> str:
        if job["payload"] != request["payload"]:
            job["payload"] = request["payload"]
            self._tell(job, "replaced")
        return str(job["id"])

    def _create(self, request: Request, after: int | None) -> str:
        self._made += 1
        due = self.wall_ms + request["delay_ms"]
        deadline = None if request["deadline_ms"] is None else self.wall_ms + request["deadline_ms"]
        job: ModelJob = {
            **{
                word: request[word] for word in ("id", "kind", "lane", "tenant", "key", "payload", "priority", "loud")
            },
            "request": request,
            "serial": self._made,
            "state": "blocked" if after else "scheduled" if due > self.wall_ms else "ready",
            "after": after,
            "due": due,
            "deadline": deadline,
            "ended": None,
            "attempt": 0,
            "max_attempts": request["max_attempts"],
            "epoch": 0,
            "token": None,
            "lease_until": None,
            "unacknowledged": 0,
            "asked": False,
            "deferred_since": None,
            "failure": None,
            "settled": {},
            "numbers": 0,
        }
        self.jobs[job["id"]] = job
        self._tell(job, "enqueued")
        return str(job["id"])

    # --- claim -----------------------------------------------------------------------------------------------------

    def upkeep(self) -> None:
        """Run the maintenance of every claim: fail overdue jobs, expire leases, promote due jobs."""
        # Successors first: a successor that is overdue together with its predecessor is not unblocked.
        for job in [*self._those(["blocked"]), *self._those(WAITING)]:
            self._end_if_overdue(job)
        for job in self._those(["running"]):
            self._take_back_if_expired(job)
        for job in self._those(["scheduled"]):
            if job["due"] <= self.wall_ms:
                job["state"] = "ready"
                self._tell(job, "promoted")

    def _end_if_overdue(self, job: ModelJob) -> bool:
        if job["state"] not in WAITING or job["deadline"] is None or job["deadline"] > self.wall_ms:
            return False
        job["failure"] = ("permanent", "deadline_passed")
        self._finish(job, "failed")
        return True

    def _take_back_if_expired(self, job: ModelJob) -> bool:
        if job["state"] != "running" or self._alive(job):
            return False
        if 0 < job["unacknowledged"] < 3:
            # It was never acknowledged.
            if not self._end_if_barred(job):
                job["attempt"] -= 1
                self._return(job, min(job["due"], self.wall_ms), "released")
            return True
        job["unacknowledged"] = 0
        self._fail(job, "lease_expired", self.wall_ms, "expired")
        return True

    def claimable(self, lanes: Iterable[str], tenant: str | None) -> list[ModelJob]:
        """Return the claimable jobs of the highest priority, those of one tenant in order."""
        open_lanes = {lane for lane in lanes if self.lanes.get(lane) != "paused"}
        ready = [job for job in self._those(["ready"]) if job["lane"] in open_lanes]
        ready = [job for job in ready if tenant in {None, job["tenant"]}]
        top = max((job["priority"] for job in ready), default=None)
        return sorted((job for job in ready if job["priority"] == top), key=lambda job: (job["due"], job["serial"]))

    def allowed_next(self, lanes: Iterable[str], tenant: str | None) -> set[str]:
        """Return the ids of which one must be claimed next: the first of each tenant."""
        firsts: dict[str, str] = {}
        for job in self.claimable(lanes, tenant):
            firsts.setdefault(job["tenant"], job["id"])
        return set(firsts.values())

    def take(self, job_id: str, token: str, lease_ms: int, *, acknowledged: bool) -> None:
        """Lease one job."""
        job = self.jobs[job_id]
        job.update(
            state="running",
            epoch=job["epoch"] + 1,
            attempt=job["attempt"] + 1,
            token=token,
            lease_until=self.lease_ms + lease_ms,
            taken=self._taken,
            unacknowledged=0 if acknowledged else job["unacknowledged"] + 1,
        )
        self._taken += 1
        self._tell(job, "claimed")

    def held_under(self, token: str) -> list[str]:
        """Return the ids of the jobs with an unexpired lease under this token, in claim order."""
        held = [job for job in self._those(["running"]) if job["token"] == token and self._alive(job)]
        return [job["id"] for job in sorted(held, key=lambda job: job["taken"])]

    def is_held(self, job_id: str, serial: int, epoch: int, token: str) -> bool:
        """Return whether a claim is still held."""
        job = self.jobs.get(job_id)
        return job is not None and job["serial"] == serial and self._passes(job, epoch, token)

    def heartbeat(self, job_id: str, serial: int, epoch: int, token: str, lease_ms: int) -> tuple[int, bool]:
        """Return the new end of the lease, and whether the job is to be cancelled."""
        job = self._held(job_id, serial)
        self._check_fence(job, epoch, token)
        job["lease_until"] = max(job["lease_until"], self.lease_ms + lease_ms)
        return job["lease_until"], job["asked"]

    def acknowledge(self, job_id: str, serial: int, epoch: int, token: str, lease_ms: int) -> tuple[int, bool]:
        """Return the same as a heartbeat, because it is one too."""
        answer = self.heartbeat(job_id, serial, epoch, token, lease_ms)
        self.jobs[job_id]["unacknowledged"] = 0
        return answer

    # --- settling --------------------------------------------------------------------------------------------------

    def settle(self, job_id: str, serial: int, epoch: int, token: str, outcome: tuple[Any, ...]) -> str:
        """Return the state the job is in afterwards."""
        job = self._held(job_id, serial)
        if job["settled"].get(epoch) != (token, outcome):
            self._check_fence(job, epoch, token)
            job["unacknowledged"] = 0
            job["settled"][epoch] = (token, outcome)
            self._settle(job, *outcome)
        return str(job["state"])

    def _settle(self, job: ModelJob, name: str, pause_ms: int = 0) -> None:
        if name == "done":
            job["failure"] = None
            self._finish(job, "done")
        elif name == "permanent":
            job["failure"] = ("permanent", "error")
            self._finish(job, "failed")
        elif name == "transient":
            self._fail(job, "error", self.wall_ms + pause_ms, "retrying")
        elif self._end_if_barred(job):
            pass
        elif name == "deferred":
            self._defer(job, pause_ms)
        else:
            job["attempt"] -= 1
            job["deferred_since"] = None
            self._return(job, self.wall_ms, "released")

    def _defer(self, job: ModelJob, pause_ms: int) -> None:
        if job["deferred_since"] is None:
            job["deferred_since"] = self.wall_ms
        if self.wall_ms - job["deferred_since"] > DEFERRED_MS_MAX:
            job["failure"] = ("transient", "deferred_too_long")
            self._finish(job, "failed")
            return
        job["attempt"] -= 1
        self._return(job, self.wall_ms + pause_ms, "deferred")

    def _fail(self, job: ModelJob, reason: str, due: int, event: str) -> None:
        """End an attempt that may be retried."""
        job["failure"] = ("transient", reason)
        job["deferred_since"] = None
        if job["attempt"] >= job["max_attempts"] and not job["asked"]:
            self._finish(job, "failed")
        elif not self._end_if_barred(job):
            self._return(job, due, event)

    def _end_if_barred(self, job: ModelJob) -> bool:
        """End the job if it must not wait again; return whether it did."""
        if job["asked"]:
            self._finish(job, "cancelled")
        elif job["deadline"] is not None and job["deadline"] <= self.wall_ms:
            job["failure"] = ("permanent", "deadline_passed")
            self._finish(job, "failed")
        return job["ended"] is not None

    def _return(self, job: ModelJob, due: int, event: str) -> None:
        """Let the job wait again, unless its kind was retired."""
        job["due"], job["after"], job["lease_until"] = due, None, None
        if job["kind"] in self.retired:
            self._finish(job, "retired")
            return
        job["state"] = "scheduled" if due > self.wall_ms else "ready"
        self._tell(job, event)

    def _finish(self, job: ModelJob, state: str) -> None:
        job.update(state=state, ended=self.wall_ms, after=None, lease_until=None)
        self._tell(job, state)
        for other in list(self.jobs.values()):
            if other["after"] == job["serial"] and not self._end_if_barred(other):
                delayed = other["request"]["delay_ms"] > 0
                self._return(other, max(other["due"], self.wall_ms) if delayed else self.wall_ms, "unblocked")

    # --- operators -------------------------------------------------------------------------------------------------

    def cancel(self, job_id: str, tenant: str | None, *, force: bool) -> str:
        """Return the state the job is in afterwards."""
        job = self._find(job_id, tenant)
        if job["state"] == "cancelled":
            return "cancelled"
        if job["state"] in ENDED:
            raise RefusalError("Conflict")
        if job["state"] != "running" or force:
            self._finish(job, "cancelled")
        elif not job["asked"]:
            job["asked"] = True
            self._tell(job, "cancel_requested")
        return str(job["state"])

    def requeue(self, job_id: str, tenant: str | None) -> str:
        """Return the state the job is in afterwards."""
        with self._all_or_nothing():
            return self._requeue(self._find(job_id, tenant))

    def _requeue(self, job: ModelJob) -> str:
        if job["state"] not in {"failed", "cancelled"}:
            raise RefusalError("Conflict")
        if job["kind"] in self.retired:
            raise RefusalError("KindRetired")
        if self._holder(job) is not None:
            raise RefusalError("Conflict")
        job.update(state="ready", due=self.wall_ms, deadline=None, ended=None, attempt=0, asked=False)
        job["deferred_since"] = None
        job["unacknowledged"] = 0
        self._tell(job, "requeued")
        return "ready"

    def reprioritize(self, job_id: str, priority: int, tenant: str | None) -> int:
        """Return the new priority."""
        job = self._find(job_id, tenant)
        if job["state"] in ENDED:
            raise RefusalError("Conflict")
        if job["priority"] != priority:
            job["priority"] = priority
            self._tell(job, "reprioritized")
        return priority

    def retire(self, kind: str) -> int:
        """Return how many jobs were retired."""
        self.retired.add(kind)
        waiting = [job for job in self._those(WAITING) if job["kind"] == kind]
        # Successors first: a successor that is retired together with its predecessor is not unblocked.
        for job in sorted(waiting, key=lambda job: job["state"] != "blocked"):
            self._finish(job, "retired")
        return len(waiting)

    def restore(self, kind: str) -> None:
        """Accept new jobs of the kind again."""
        if kind not in self.retired:
            raise RefusalError("UnknownKind")
        self.retired.remove(kind)

    def set_lane(self, lane: str, state: str) -> str:
        """Return the lane's new state."""
        self.lanes[lane] = state
        return state

    def prune(self, age_ms: int) -> int:
        """Return how many jobs were deleted."""
        old = [job["id"] for job in self._those(ENDED) if job["ended"] < self.wall_ms - age_ms]
        for job_id in old:
            del self.jobs[job_id]
        return len(old)

    # --- helpers ---------------------------------------------------------------------------------------------------

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Roll back if the block raises a refusal."""
        before = copy.deepcopy((self.jobs, self.told))
        try:
            yield
        except RefusalError:
            self.jobs, self.told = before
            raise

    def counts(self) -> dict[str, int]:
        """Count the jobs by state."""
        states = [job["state"] for job in self.jobs.values()]
        return {state: states.count(state) for state in set(states)}

    def _those(self, states: Iterable[str]) -> list[ModelJob]:
        return [job for job in self.jobs.values() if job["state"] in states]

    def _find(self, job_id: str, tenant: str | None) -> ModelJob:
        job = self.jobs.get(job_id)
        if job is None or tenant not in {None, job["tenant"]}:
            raise RefusalError("JobNotFound")
        return job

    def _held(self, job_id: str, serial: int) -> ModelJob:
        """Return the job that a claim was made on; not a later job with the same id."""
        job = self.jobs.get(job_id)
        if job is None or job["serial"] != serial:
            raise RefusalError("LeaseLost", "JobNotFound")
        return job

    def _alive(self, job: ModelJob) -> bool:
        return bool(job["lease_until"] > self.lease_ms)

    def _check_fence(self, job: ModelJob, epoch: int, token: str) -> None:
        if not self._passes(job, epoch, token):
            raise RefusalError("LeaseLost")

    def _passes(self, job: ModelJob, epoch: int, token: str) -> bool:
        held = job["state"] == "running" and (job["epoch"], job["token"]) == (epoch, token)
        return held and self._alive(job)

    def _tell(self, job: ModelJob, event: str) -> None:
        if event in ENDED or job["loud"] or job["lane"] in self.recorded_lanes:
            job["numbers"] += 1
            self.told.setdefault(job["id"], []).append((job["numbers"], event))

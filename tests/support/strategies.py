"""Strategies and comparisons of the state machine: requests, outcomes, faults, and the two views of a job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from holdfast import Claim, Deferred, Done, Failed, HoldfastError, Job, Outcome, Queue, Released
from holdfast.domain.job import row_of
from holdfast.types import Settlement
from tests.support.claims import changed_job
from tests.support.model import ModelJob, RefusalError, Request
from tests.support.stores import SHARE_OF_LONG_TESTS

KINDS, LANES, TENANTS, KEYS = ("extract", "send"), ("default", "other"), ("a", "b"), (None, "k1", "k1", "k2")
LEASE_MS = 30_000
# Which variants of a claim are presented: with a wrong token, or with a higher or lower epoch.
FORGED: dict[int, tuple[str | None, int]] = {
    3: ("forged", 0),
    7: (None, -1),
    15: ("forged", 0),
    19: (None, 1),
    27: ("forged", 0),
}

OUTCOMES: dict[tuple[Any, ...], Outcome] = {
    ("done",): Done({"ok": True}),
    ("permanent",): Failed("broken for good", permanent=True),
    ("transient", 5_000): Failed("broken for now", retry_after=5),
    ("transient", 0): Failed("broken for now", retry_after=0),
    ("deferred", 10_000): Deferred(after=10),
    ("deferred", 0): Deferred(after=0),
    ("released",): Released(),
}


class Fault(NamedTuple):
    """The fault during a call: none, a crash before its n-th statement, or a lost reply."""

    crash_before: int = 0
    lost: bool = False


@dataclass(frozen=True)
class Held:
    """A claim that the store once returned, and the model's number of its job: an id may be reused."""

    claim: Claim
    serial: int

    @property
    def proof(self) -> tuple[str, int, int, str]:
        return self.claim.job.id, self.serial, self.claim.epoch, self.claim.lease_token

    def forged(self, place: int) -> Held:
        """Return the claim with another token, or with an epoch before or after its own."""
        token, raised = FORGED[place]
        job = self.claim.job
        wrong = changed_job(job, lease_token=token or self.claim.lease_token, epoch=job.epoch + raised)
        return replace(self, claim=Claim(wrong, self.claim.lease_ms))


@dataclass(frozen=True)
class RepeatableClaim:
    """A request for jobs, so that it can be repeated."""

    lanes: tuple[str, ...]
    tenant: str | None
    limit: int
    token: str
    acknowledged: int | None = None
    """How many of the jobs are acknowledged by the claim itself; none given means all."""

    def send(self, queue: Queue) -> list[Claim]:
        return queue.claim_many(**self.options)

    @property
    def options(self) -> dict[str, Any]:
        return {
            "lanes": self.lanes,
            "tenant": self.tenant,
            "limit": self.limit,
            "lease_token": self.token,
            "lease": LEASE_MS / 1000,
            "worker": "w",
            "acknowledged": self.acknowledged,
        }


policies = st.sampled_from(["keep", "replace", "run_again", "run_again"])
places = st.integers(0, 30)
ids = st.sampled_from([f"job-{number}" for number in range(25)])
tenants = st.sampled_from([None, None, None, None, None, None, *TENANTS])
faults = st.one_of(
    st.just(Fault()),
    st.builds(Fault, crash_before=st.integers(1, 10)),
    st.just(Fault(lost=True)),
)


def _sensible(request: Request) -> Request:
    """Omit the policy without a key: it would be refused."""
    return request if request["key"] is not None else {**request, "policy": "keep"}


requests = st.fixed_dictionaries(
    {
        "id": ids,
        "kind": st.sampled_from(KINDS),
        "lane": st.sampled_from(LANES),
        "tenant": st.sampled_from(TENANTS),
        "payload": st.integers(0, 9),
        "priority": st.sampled_from([0, 0, 1]),
        "delay_ms": st.sampled_from([0, 0, 0, 5_000, 60_000]),
        "deadline_ms": st.sampled_from([None, None, None, 20_000, 100_000]),
        "max_attempts": st.integers(1, 3),
        "key": st.sampled_from(KEYS),
        "policy": policies,
        "loud": st.booleans(),
    }
).map(_sensible)
asks = st.builds(
    RepeatableClaim,
    lanes=st.sampled_from([LANES, LANES, ("default",), ("other",)]),
    tenant=tenants,
    limit=st.sampled_from([1, 1, 2, 10]),
    token=st.uuids().map(str),
    acknowledged=st.sampled_from([None, None, 0, 1]),
)


def result_of(call: Callable[[], object]) -> object:
    """Return the result of the call, or the refusal it raises."""
    try:
        return call()
    except (HoldfastError, RefusalError) as refusal:
        return refusal


def result_in(settlement: Settlement) -> object:
    return settlement.error or (settlement.job.state if settlement.job else None)


def same(answer: object, predicted: object) -> bool:
    if isinstance(predicted, RefusalError):
        return type(answer).__name__ in predicted.names
    if isinstance(predicted, list) and isinstance(answer, list):
        return len(answer) == len(predicted) and all(map(same, answer, predicted))
    return answer == predicted


def options_of(request: Request) -> dict[str, Any]:
    options: dict[str, Any] = {name: request[name] for name in ("lane", "tenant", "priority", "max_attempts")}
    options |= {"job_id": request["id"], "delay": request["delay_ms"] / 1000}
    if request["deadline_ms"] is not None:
        options["deadline"] = request["deadline_ms"] / 1000
    if request["key"] is not None:
        options |= {"dedupe_key": request["key"], "on_duplicate": request["policy"]}
    if request["loud"]:
        options["events"] = "all"
    return options


def shown(job: Job) -> dict[str, Any]:
    row = row_of(job)
    return {
        "state": job.state,
        "attempt": job.attempt,
        "epoch": job.epoch,
        "due": row.due_at_ms,
        "deadline": row.deadline_at_ms,
        "ended": row.finished_at_ms,
        "priority": job.priority,
        "payload": job.payload,
        "asked": job.cancel_requested,
        "lease_until": row.lease_until_ms,
        "failure": job.failure and (job.failure.failure_class, job.failure.reason),
        "numbers": row.event_count,
        "unacknowledged": row.unacknowledged,
    }


def expected(job: ModelJob) -> dict[str, Any]:
    options = ("state", "attempt", "epoch", "due", "deadline", "ended", "priority", "payload")
    return {name: job[name] for name in (*options, "asked", "lease_until", "failure", "numbers", "unacknowledged")}


def event_name_of(outcome: tuple[Any, ...]) -> str:
    return "failed" if outcome[0] in {"permanent", "transient"} else str(outcome[0])


def run_machine(
    machine: type[RuleBasedStateMachine], engine: str, examples: int, steps: int, *, repeatable: bool
) -> None:
    """Run a state machine on an engine: fewer examples on a server, and the same each time if *repeatable*."""
    chosen = settings(
        max_examples=max(1, round(examples * SHARE_OF_LONG_TESTS[engine])),
        stateful_step_count=steps,
        derandomize=repeatable,
        print_blob=not repeatable,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    run_state_machine_as_test(type("OnThisEngine", (machine,), {"engine": engine}), settings=chosen)

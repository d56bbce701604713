"""Ending held jobs in one statement: its conditions are the fence, and the events go with it.

Most settlements are plain successes of leases that hold. They need no reading first: what the statement ended is
ended, and whatever it passed by is looked at as every engine does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from holdfast.domain import lifecycle
from holdfast.domain.claim import Claim
from holdfast.domain.clock import Now
from holdfast.domain.job import Job
from holdfast.domain.lifecycle import Step
from holdfast.domain.outcome import CheckedOutcome
from holdfast.stores.sql_queries import Row
from holdfast.stores.sql_transaction import SqlTransaction

# The columns of `jobs_succeed` after the number; the last counts the event that was just recorded.
_STANDING = ("priority", "phase", "percent", "cancel_requested", "event_count")
_standing = attrgetter(*_STANDING[:-1])


async def succeed_held(
    tx: SqlTransaction, wanted: Sequence[tuple[Claim, CheckedOutcome]], now: Now, *, judged_by_server: bool
) -> dict[int, Step]:
    """End the jobs whose lease holds, with their events, and return each one's step by number.

    *judged_by_server*: its clock tells whether a lease has lapsed, at the moment when the row is locked.
    """
    held = [[claim.job.seq, claim.epoch, claim.lease_token, checked.result_json] for claim, checked in wanted]
    values = {
        # In order, so that two calls that name the same jobs wait for each other instead of locking each other out.
        "held": sorted(held),
        "finished_at_ms": now.wall_ms,
        "lease_now": None if judged_by_server else now.lease_ms,
    }
    rows = await tx.query("jobs_succeed", values)
    ended = {row[0]: row[1:] for row in rows}
    return {
        claim.job.seq: _step(claim.job, ended[claim.job.seq], checked, now)
        for claim, checked in wanted
        if claim.job.seq in ended
    }


def _step(claimed: Job, standing: Row, checked: CheckedOutcome, now: Now) -> Step:
    before = claimed
    if standing != (*_standing(claimed), claimed.event_count + 1):
        before = claimed._replace(**dict(zip(_STANDING, standing, strict=True)))
        before = before._replace(event_count=before.event_count - 1)
    step = lifecycle.succeed(before, checked, now)
    return step._replace(after=step.after.counting_event())

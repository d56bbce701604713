"""Sessions: locking them, choosing entries for a claim, and maintaining the head of each session.

A session has a head while a claim of any session could take it: no entry is running, no owner holds a session
lease, and the first entry in line is ready. Every operation that changes entries calls `refresh_sessions`.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from holdfast.domain import clock, errors, limits, results, session_selection, validation
from holdfast.domain.job import JobRow
from holdfast.domain.routing import Route, RoutingTable, fair_key_of
from holdfast.domain.sessions import NO_HEAD, Head, Session, entry_from_json
from holdfast.storage import notifications
from holdfast.storage.contract import LineRow, OvertakenError, StoreTransaction

_NUMBER: Final = re.compile(r"[0-9]{1,18}", re.ASCII)
_FIRST = session_selection.SelectionCriteria(only=None, checkpoint=False, limit=1)


async def get_session(tx: StoreTransaction, tenant: str, name: str) -> results.SessionInfo:
    """Return one session, or raise `SessionNotFound`."""
    session = await tx.session_by_name(tenant, name)
    if session is None:
        raise errors.SessionNotFound(name)
    return _info(session, await tx.now())


async def list_sessions(
    tx: StoreTransaction, tenant: str | None, after: str | None, limit: int
) -> results.SessionPage:
    """Return a page of sessions by tenant and name, and the cursor of the next page."""
    start = tenant or "", ""
    if after is not None:
        scheme, _, number = after.partition("-")
        numbers = [int(number)] if scheme == "s1" and _NUMBER.fullmatch(number) else []
        last = await tx.sessions_by_number(numbers) if numbers else []
        if not last or tenant not in {None, last[0].tenant}:
            raise errors.InvalidInput("after", f"{after!r} is not a cursor of this list")
        start = last[0].tenant, last[0].name
    found = await tx.sessions_page(tenant, start, limit + 1)
    now = await tx.now()
    cursor = f"s1-{found[limit - 1].number}" if len(found) > limit else None
    return results.SessionPage(tuple(_info(session, now) for session in found[:limit]), cursor)


def _info(session: Session, now: clock.Now) -> results.SessionInfo:
    leased = session.leased(now)
    return results.SessionInfo(
        session=session.name,
        tenant=session.tenant,
        entries=session.enqueue_seq,
        fencing_token=session.fence,
        ready=session.head is not None,
        generation=session.generation,
        owner=session.lease_worker if leased else None,
        lease_until=validation.datetime_of(session.lease_until_ms)
        if leased and session.lease_until_ms is not None
        else None,
    )


async def lock_free_sessions(tx: StoreTransaction, jobs: Sequence[JobRow]) -> list[JobRow]:
    """Lock the sessions of *jobs* that are not locked; return the jobs without entries of locked sessions.

    Maintenance uses this so that a claim does not wait for an unrelated session.
    """
    numbers = sessions_of(jobs)
    if not numbers:
        return list(jobs)
    free = await tx.free_sessions(numbers)
    return [job for job in jobs if job.session_number is None or job.session_number in free]


def sessions_of(jobs: Iterable[JobRow]) -> list[int]:
    """Return the session numbers of the jobs that are session entries, sorted."""
    return sorted({job.session_number for job in jobs if job.session_number is not None})


def route_by_number(routing: RoutingTable, number: int) -> Route:
    """Return the route with *number*; if it was added after the routing table was read, the operation runs again."""
    route = routing.by_number.get(number)
    if route is None:
        raise OvertakenError(f"route {number} was added after the routing table was read")
    return route


# --- the line ------------------------------------------------------------------------------------------------------


def candidate_of(
    routing: RoutingTable, row: LineRow, accepted: Collection[int] | None
) -> session_selection.SessionCandidate:
    """Return a row of a session's line as a candidate; *accepted* has the claim's routes, None for all."""
    seq, enqueue_seq, state, epoch, route, entry_json = row
    key = route_by_number(routing, route).key
    eligibility = session_selection.eligibility_of(
        state,
        epoch,
        claimable=accepted is None or route in accepted,
        skips=routing.lane(key.lane).backoff == "skip",
    )
    return session_selection.candidate(
        session_selection.EntryPosition(seq, enqueue_seq, route), eligibility, entry_from_json(entry_json), key.kind
    )


async def choose_from_line(
    tx: StoreTransaction,
    routing: RoutingTable,
    session: int,
    criteria: session_selection.SelectionCriteria,
    accepted: Collection[int] | None,
) -> session_selection.Choice:
    """Return the entries that a claim takes; read the session's line until the choice is complete."""
    page = criteria.limit + limits.SESSION_SCAN_SURPLUS
    candidates: list[session_selection.SessionCandidate] = []
    after = 0
    while True:
        rows = await tx.session_line(session, after, page)
        candidates += [candidate_of(routing, row, accepted) for row in rows]
        choice = session_selection.choose_run(candidates, criteria)
        if choice.complete or len(rows) < page:
            return choice
        # Skipped entries are not read again.
        candidates, after = list(choice.run), candidates[-1].enqueue_seq


# --- heads ---------------------------------------------------------------------------------------------------------


async def refresh_sessions(
    tx: StoreTransaction, routing: RoutingTable, numbers: Collection[int], now: clock.Now
) -> None:
    """Lock these sessions and write their heads that have changed."""
    await refresh_heads(tx, routing, await tx.sessions_by_number(sorted(numbers)), now)


async def refresh_heads(
    tx: StoreTransaction, routing: RoutingTable, sessions: Sequence[Session], now: clock.Now
) -> None:
    """Write the heads of these locked sessions that have changed, and notify claimers."""
    if not sessions:
        return
    fronts = await tx.session_fronts([session.number for session in sessions])
    changed: list[tuple[Head, int]] = []
    topics: set[str] = set()
    for session in sessions:
        front = fronts.get(session.number)
        if front is None or front.running:
            head = NO_HEAD
        else:
            topics.add(notifications.session_topic(session.tenant, session.name))
            head = NO_HEAD if session.leased(now) else await _head(tx, routing, session, front.first)
        if head != (session.head or NO_HEAD):
            changed.append((head, session.number))
        if head.route is not None:
            topics.add(notifications.sessions_topic(route_by_number(routing, head.route).key.lane))
    await tx.write_session_heads(changed)
    if topics:
        tx.notify(sorted(topics))


async def _head(tx: StoreTransaction, routing: RoutingTable, session: Session, front: LineRow) -> Head:
    """Return the head of a session whose line begins with *front*."""
    first = candidate_of(routing, front, None)
    if first.eligibility == "passed":
        choice = await choose_from_line(tx, routing, session.number, _FIRST, None)
    else:
        choice = session_selection.choose_run([first], _FIRST)
    if not choice.run:
        return NO_HEAD
    [head] = choice.run
    fair_key = fair_key_of(routing.lane(route_by_number(routing, head.route).key.lane), session.tenant)
    return Head(head.route, head.entry_type, fair_key, head.seq)

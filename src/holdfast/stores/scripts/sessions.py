"""Sessions' rows: finding and locking them, and keeping true which head each of them offers.

A head is on offer while an idle claim by anybody could take it: nothing of the session runs, nobody is its runtime,
and what leads its line is ready. Whatever moves a batch has `refresh_sessions` derive the heads of its sessions anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from holdfast.domain import limits
from holdfast.domain.clock import Now
from holdfast.domain.job import Job
from holdfast.domain.lane import Catalog
from holdfast.domain.session import NO_HEAD, Batch, Head, Session
from holdfast.domain.session_selection import Candidate, Choice, Place, Wanted, candidate, choose_run, standing_of
from holdfast.stores.script import Row, Script, Signal, Statement, session_topic, sessions_topic
from holdfast.stores.scripts.catalog import route_by_number

_FIRST = Wanted("next", "idle", 1)


def session_by_name(tenant: str, name: str) -> Script[Session | None]:
    """Return the session, locked where the transaction writes, or None if it was never used."""
    rows = yield Statement("session_by_name", {"tenant": tenant, "name": name})
    return Session._make(rows[0]) if rows else None


def only_free(jobs: Sequence[Job]) -> Script[list[Job]]:
    """Leave out batches whose session somebody else has in hand, and lock the sessions of the others.

    For whoever tidies up: a claim of something quite different must not wait for a session.
    """
    numbers = sessions_of(jobs)
    if not numbers:
        return list(jobs)
    free = {number for (number,) in (yield Statement("sessions_free", {"numbers": numbers}))}
    return [job for job in jobs if job.session_number is None or job.session_number in free]


def sessions_of(jobs: Iterable[Job]) -> list[int]:
    """Return the numbers of the sessions that these jobs are batches of, in order."""
    return sorted({job.session_number for job in jobs if job.session_number is not None})


# --- the line ------------------------------------------------------------------------------------------------------


def candidate_of(catalog: Catalog, row: Row, welcome: Collection[int] | None) -> Candidate:
    """Return a row of a session's line as the selection sees it; *welcome* has the routes a claimer may take."""
    seq, enqueue_seq, state, epoch, route, batch_json = row
    key = route_by_number(catalog, route).key
    standing = standing_of(
        state,
        epoch,
        welcome=welcome is None or route in welcome,
        skips=catalog.lane(key.lane).backoff == "skip",
    )
    return candidate(Place(seq, enqueue_seq, route), standing, Batch.from_json(batch_json), key.kind)


def choose_from_line(
    catalog: Catalog, session: int, wanted: Wanted, welcome: Collection[int] | None
) -> Script[Choice]:
    """Return the run that a claim takes of a session's line, reading on as long as that could make it longer."""
    page = wanted.limit + limits.SESSION_SCAN_SURPLUS
    met: list[Candidate] = []
    after = 0
    while True:
        rows = yield Statement("session_line", {"session": session, "after": after, "limit": page})
        met += [candidate_of(catalog, row, welcome) for row in rows]
        choice = choose_run(met, wanted)
        if choice.complete or len(rows) < page:
            return choice
        # What was stepped over is not looked at again.
        met, after = list(choice.run), met[-1].enqueue_seq


# --- heads ---------------------------------------------------------------------------------------------------------


def refresh_sessions(catalog: Catalog, numbers: Collection[int], now: Now) -> Script[None]:
    """Lock these sessions and write which head each offers now, where that has changed."""
    rows = yield Statement("sessions_by_number", {"numbers": sorted(numbers)})
    yield from refresh_heads(catalog, [Session._make(row) for row in rows], now)


def refresh_heads(catalog: Catalog, sessions: Sequence[Session], now: Now) -> Script[None]:
    """Write which head each of these locked sessions offers now, where that has changed, and wake who may take it."""
    if not sessions:
        return
    rows = yield Statement("session_fronts", {"sessions": [session.number for session in sessions]})
    fronts = {number: (bool(running), front) for number, running, *front in rows}
    changed: list[Row] = []
    topics: set[str] = set()
    for session in sessions:
        running, front = fronts.get(session.number, (False, None))
        if front is None or running:
            head = NO_HEAD
        else:
            topics.add(session_topic(session.tenant, session.name))
            head = NO_HEAD if session.leased(now) else (yield from _head(catalog, session, tuple(front)))
        if head != (session.head or NO_HEAD):
            changed.append((*head, session.number))
        if head.route is not None:
            topics.add(sessions_topic(route_by_number(catalog, head.route).key.lane))
    if changed:
        yield Statement("session_heads_write", many=changed)
    if topics:
        yield Signal(sorted(topics))


def _head(catalog: Catalog, session: Session, front: Row) -> Script[Head]:
    """Return the head of a session's line, of which *front* comes first."""
    first = candidate_of(catalog, front, None)
    if first.standing == "passed":
        choice = yield from choose_from_line(catalog, session.number, _FIRST, None)
    else:
        choice = choose_run([first], _FIRST)
    if not choice.run:
        return NO_HEAD
    [leading] = choice.run
    turn = catalog.lane(route_by_number(catalog, leading.route).key.lane).turn_of(session.tenant)
    return Head(leading.route, leading.work_class, turn, leading.seq)

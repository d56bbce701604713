"""Claims of session entries under one fence, and the lease of a session's runtime.

Fencing token, claim id and lease token are derived: the same inputs give the same claim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple

from holdfast.domain import validation
from holdfast.domain.claims import Claim
from holdfast.domain.clock import Now
from holdfast.domain.errors import Conflict, InvalidInput, LeaseLost
from holdfast.domain.job import Job
from holdfast.domain.sessions import Session, WorkClass, digest


class Holder(NamedTuple):
    """The claiming worker: its name, one start of it, and the nonce of this claim."""

    worker: str
    incarnation: str
    nonce: str


class SessionFence(NamedTuple):
    """The three identifiers of one claim."""

    claim_id: str
    fencing_token: int
    lease_token: str


def derive_fence(session: Session, head_id: str, holder: Holder, at_ms: int) -> SessionFence:
    """Return the fence of the session's next claim, whose head is the entry *head_id*."""
    tenant, name, token = session.tenant, session.name, session.fence + 1
    claim_id = f"claim-{digest(tenant, name, head_id, token)}"
    lease_token = digest(tenant, name, holder.worker, holder.incarnation, claim_id, at_ms, holder.nonce)
    return SessionFence(claim_id, token, lease_token)


@dataclass(frozen=True, slots=True)
class SessionClaim:
    """Consecutive entries of a session under one fence, as they were when claimed."""

    session: str
    tenant: str
    work_class: WorkClass
    """The work class: turns, or one command."""
    claim_id: str
    fencing_token: int
    """Greater than that of every earlier claim of this session; a fencing token for the handler's own writes."""
    entries: tuple[Job, ...]
    """In enqueue order."""
    lease_ms: int
    generation: int | None = None
    """The session lease that keeps it alive, if any."""
    repeated: bool = field(default=False, compare=False, repr=False)
    """Whether an earlier call made this claim and this call only found it."""

    @property
    def lease_token(self) -> str:
        """The token that every write of this claim must present."""
        return self.entries[0].lease_token or ""

    @property
    def lease_until(self) -> datetime:
        """When it expires unless it is renewed, by the store's lease clock."""
        return validation.datetime_of(min(job.lease_until_ms or 0 for job in self.entries))

    @property
    def claims(self) -> list[Claim]:
        """Each entry as a separate claim, for progress and artifacts."""
        return [Claim(job, self.lease_ms) for job in self.entries]

    def joined(self, more: SessionClaim) -> SessionClaim:
        """Return this claim with the entries taken at a checkpoint; both are renewed and settled together."""
        if (self.tenant, self.session, self.lease_token) != (more.tenant, more.session, more.lease_token):
            raise InvalidInput("more", "was not taken under this claim")
        known = {job.seq for job in self.entries}
        return replace(self, entries=(*self.entries, *(job for job in more.entries if job.seq not in known)))


@dataclass(frozen=True, slots=True)
class SessionLease:
    """The right to be the only runtime of a session until it expires, is closed, or is taken over."""

    session: str
    tenant: str
    generation: int
    """Incremented whenever the session is opened."""
    worker: str
    lease_token: str
    lease_ms: int
    lease_until_ms: int
    repeated: bool = field(default=False, compare=False, repr=False)
    """Whether an earlier call with the same lease token opened the session."""

    @property
    def lease_until(self) -> datetime:
        """When it expires unless it is renewed, by the store's lease clock."""
        return validation.datetime_of(self.lease_until_ms)


class Opening(NamedTuple):
    """A validated request to become a session's runtime."""

    session: str
    tenant: str
    worker: str
    incarnation: str
    lease_token: str
    lease_ms: int
    take_over: bool


def holds_session(session: Session | None, lease: SessionLease, now: Now) -> bool:
    """Return whether *lease* is the current, unexpired lease of *session*."""
    return (
        session is not None
        and session.generation == lease.generation
        and session.lease_token == lease.lease_token
        and session.leased(now)
    )


def check_session_lease(session: Session | None, lease: SessionLease, now: Now) -> Session:
    """Return *session* if *lease* is its current, unexpired lease, else raise `LeaseLost`."""
    if session is not None and holds_session(session, lease, now):
        return session
    if session is None:
        why = "the session does not exist"
    elif session.generation != lease.generation:
        why = f"it was opened again, now in generation {session.generation}"
    elif session.lease_token is None:
        why = "it was closed"
    elif session.lease_token != lease.lease_token:
        why = "the lease token does not match"
    else:
        why = "it expired"
    raise LeaseLost(lease.session, lease.generation, why, thing="session", counter="generation")


def check_runtime(session: Session, lease: SessionLease | None, now: Now) -> None:
    """Raise `Conflict` if the session has a runtime other than the holder of *lease*."""
    if lease is not None:
        check_session_lease(session, lease, now)
    elif session.leased(now):
        raise Conflict(
            f"session {session.name!r} is open in generation {session.generation} by worker"
            f" {session.lease_worker!r}; claim under its lease, or take it over with open_session"
        )


def open_lease(session: Session, opening: Opening, running: Sequence[Job], now: Now) -> Session:
    """Return *session* with the caller as its runtime, or raise `Conflict` if another worker holds it.

    Repeating the same request while the lease is held returns the same lease.
    """
    if session.leased(now) and session.lease_token == opening.lease_token and session.lease_worker == opening.worker:
        return session
    if not opening.take_over:
        if session.leased(now):
            raise Conflict(
                f"session {session.name!r} is open in generation {session.generation} by worker"
                f" {session.lease_worker!r}; wait until its lease expires, or take it over"
            )
        if running:
            raise Conflict(
                f"a claim of session {session.name!r} is held by worker {running[0].worker!r}; wait until it is"
                " settled or expires, or take the session over",
                job_id=running[0].id,
            )
    return session._replace(
        generation=session.generation + 1,
        lease_token=opening.lease_token,
        lease_worker=opening.worker,
        lease_incarnation=opening.incarnation,
        lease_until_ms=now.lease_ms + opening.lease_ms,
    )


def renew_lease(session: Session | None, lease: SessionLease, lease_ms: int, now: Now) -> Session:
    """Return *session* with its lease extended, never shortened, or raise `LeaseLost`."""
    held = check_session_lease(session, lease, now)
    return held._replace(lease_until_ms=max(held.lease_until_ms or 0, now.lease_ms + lease_ms))


def close_lease(session: Session | None, lease: SessionLease, now: Now) -> Session:
    """Return *session* without a runtime, or raise `LeaseLost` if another worker has become its runtime.

    A lease that has expired or was closed may be closed again: a call whose result was lost is repeated.
    """
    if session is None or session.generation != lease.generation:
        return check_session_lease(session, lease, now)
    return end_lease(session)


def end_lease(session: Session) -> Session:
    """Return *session* without a runtime; its generation stays, so that old leases stay invalid."""
    return session._replace(lease_token=None, lease_worker=None, lease_incarnation=None, lease_until_ms=None)


def lease_of(session: Session, lease_ms: int) -> SessionLease:
    """Return the current lease of *session*."""
    return SessionLease(
        session=session.name,
        tenant=session.tenant,
        generation=session.generation,
        worker=session.lease_worker or "",
        lease_token=session.lease_token or "",
        lease_ms=lease_ms,
        lease_until_ms=session.lease_until_ms or 0,
    )

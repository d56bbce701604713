"""Session claims: their options and validation."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypedDict

from holdfast.domain import errors, limits, routing, validation
from holdfast.domain.claims import Claim, lease_ms
from holdfast.domain.clock import Now
from holdfast.domain.job import Job, JobRow, row_of
from holdfast.domain.session_selection import SelectionCriteria
from holdfast.domain.sessions import ENTRY_TYPES, EntryType, Session, digest
from holdfast.domain.validation import Duration


class AnySessionOptions(TypedDict, total=False):
    """The options of `sessions.claim_next`."""

    lanes: Sequence[str]
    """The lanes to take from; default `["default"]`."""
    kinds: Sequence[str] | None
    """The kinds to take; omitted means any, an empty list means none."""
    tenant: str | None
    """Take only this tenant's sessions."""
    capabilities: Sequence[str]
    """The worker's capabilities; an entry that requires others is left to other workers, with all behind it."""
    only: EntryType | None
    """None (default): sessions with any head; `message` or `command`: only sessions with such a head."""
    limit: int | Mapping[str, int]
    """The maximum number of joined entries; default 100. A mapping sets it by the kind of the head."""
    worker: str
    """The worker's name; default: this host and process."""
    incarnation: str
    """The unique id of one start of the worker; default: one for each opened queue."""
    lease: Duration
    """Seconds until the claim expires unless a heartbeat extends it; default 30."""
    wait: Duration
    """Seconds to wait for work if there is none; default 0."""
    lease_token: str | None
    """A token chosen by the caller: repeating the claim with it returns the same entries."""
    acknowledged: bool
    """Whether the handler starts at once (default). If not, the first heartbeat acknowledges the claim; one that
    expires before uses up no attempt, except the third time in a row."""


class SessionClaimOptions(TypedDict, total=False):
    """The options of `sessions.claim`."""

    tenant: str
    """The tenant of the session; default `default`."""
    only: EntryType | None
    """None (default): any head; `message`: nothing while a command is the head; `command`: only a command."""
    session_lease: SessionLease | None
    """The session lease that keeps the claim alive, instead of a time."""
    lanes: Sequence[str] | None
    """The lanes to take from; omitted means any. An entry of another lane blocks those behind it."""
    kinds: Sequence[str] | None
    """The kinds to take; omitted means any. An entry of another kind blocks those behind it."""
    limit: int
    """The maximum number of joined entries; default 100."""
    capabilities: Sequence[str]
    """The worker's capabilities; an entry that requires others blocks those behind it."""
    worker: str
    """The worker's name; default: this host and process."""
    incarnation: str
    """The unique id of one start of the worker; default: one for each opened queue."""
    lease: Duration
    """Seconds until the claim expires unless a heartbeat extends it; default 30. Not under a session lease."""
    wait: Duration
    """Seconds to wait for work if there is none; default 0."""
    lease_token: str | None
    """A token chosen by the caller: repeating the claim with it returns the same entries."""
    acknowledged: bool
    """Whether the handler starts at once (default). If not, the first heartbeat acknowledges the claim; one that
    expires before uses up no attempt, except the third time in a row."""


class CheckpointOptions(TypedDict, total=False):
    """The options of `sessions.checkpoint`. Worker, lease token and lease are those of the turn."""

    only: EntryType | None
    """None (default): any head; `message`: nothing while a command is the head; `command`: only a command."""
    kinds: Sequence[str] | None
    """The kinds to take; omitted means any. An entry of another kind blocks those behind it."""
    limit: int
    """The maximum number of joined entries; default 100."""
    capabilities: Sequence[str]
    """The worker's capabilities; an entry that requires others blocks those behind it."""
    wait: Duration
    """Seconds to wait for work if there is none; default 0."""


class SessionRequest(NamedTuple):
    """A validated request for session entries: of one session, or of any session in some lanes."""

    session: str | None
    tenant: str | None
    criteria: SelectionCriteria
    lanes: tuple[str, ...] | None
    """The lanes; None means any, as for a named session."""
    kinds: tuple[str, ...] | None
    capabilities: frozenset[str]
    worker: str
    incarnation: str
    lease_token: str
    resent: bool
    """Whether the caller chose the token, so that this may repeat an earlier claim."""
    lease_ms: int
    wait_ms: int
    acknowledged: bool = True
    """Whether its handler starts at once; otherwise the first heartbeat acknowledges the claim."""
    turn: SessionClaim | None = None
    """At a checkpoint: the turn that takes more entries."""
    session_lease: SessionLease | None = None
    limits: Mapping[str, int] = MappingProxyType({})
    """The maximum number of entries by the kind of the head; for other kinds `criteria` applies."""

    def fits(self, job: JobRow) -> bool:
        """Return whether this request could have claimed *job*, an entry of the session it names, if any."""
        return (
            job.entry is not None
            and self.tenant in {None, job.tenant}
            and self.session in {None, job.entry.session}
            and (self.lanes is None or job.lane in self.lanes)
            and (self.kinds is None or job.kind in self.kinds)
            and job.entry.entry_type in self.entry_types
            and self.capabilities.issuperset(job.requires)
        )

    def led_by(self, kind: str) -> SessionRequest:
        """Return the request with the limit for a session whose head is of *kind*."""
        limit = self.limits.get(kind)
        return self if limit is None else self._replace(criteria=self.criteria._replace(limit=limit))

    @property
    def entry_types(self) -> tuple[EntryType, ...]:
        """The types that the head may have."""
        return ENTRY_TYPES if self.criteria.only is None else (self.criteria.only,)

    @property
    def generation(self) -> int | None:
        """The session lease that keeps the claim alive, if any."""
        if self.turn is not None:
            return self.turn.generation
        return None if self.session_lease is None else self.session_lease.generation

    @property
    def fair_scope(self) -> str:
        """Return the scope in which tenants alternate: all claims that can see the same sessions share it."""
        seen = [sorted(self.lanes or ()), self.kinds, sorted(self.capabilities), self.criteria.only]
        return f"sessions-{digest(*seen)}"


_OPTIONS: Final = frozenset(SessionClaimOptions.__annotations__)
_OPTIONS_ANY: Final = frozenset(AnySessionOptions.__annotations__)
_OPTIONS_CHECKPOINT: Final = frozenset(CheckpointOptions.__annotations__)


def check_session_claim(session: str, options: SessionClaimOptions, *, fresh_token: str) -> SessionRequest:
    """Return the validated request for one session; raise `InvalidInput`, which names the invalid option."""
    validation.refuse_unknown(options, _OPTIONS, "sessions.claim")
    name = validation.name(session, "session")
    tenant = validation.name(options.get("tenant", routing.DEFAULT_NAME), "tenant")
    session_lease = options.get("session_lease")
    if session_lease is not None:
        _check_session_lease(session_lease, name, tenant, options)
    request = _check_common(options, options.get("limit", limits.SESSION_CLAIM_DEFAULT), fresh_token)
    lanes = options.get("lanes")
    return request._replace(
        session=name,
        tenant=tenant,
        lanes=None if lanes is None else validation.names(lanes, "lanes", limits.CLAIM_LANES_MAX),
        kinds=_kinds(options.get("kinds")),
        session_lease=session_lease,
        lease_ms=request.lease_ms if session_lease is None else session_lease.lease_ms,
    )


def check_any_session(options: AnySessionOptions, *, fresh_token: str) -> SessionRequest:
    """Return the validated request for any session; raise `InvalidInput`, which names the invalid option."""
    validation.refuse_unknown(options, _OPTIONS_ANY, "sessions.claim_next")
    limit = options.get("limit", limits.SESSION_CLAIM_DEFAULT)
    by_kind = limit if isinstance(limit, Mapping) else {}
    chosen = limits.SESSION_CLAIM_DEFAULT if isinstance(limit, Mapping) else limit
    return _check_common(options, chosen, fresh_token)._replace(
        tenant=validation.optional_name(options.get("tenant"), "tenant"),
        lanes=validation.names(options.get("lanes", (routing.DEFAULT_NAME,)), "lanes", limits.CLAIM_LANES_MAX),
        kinds=_kinds(options.get("kinds")),
        limits={
            kind: validation.integer(entries_max, f"limit.{kind}", 1, limits.CLAIM_MAX)
            for kind, entries_max in by_kind.items()
        },
    )


def check_checkpoint(turn: SessionClaim, options: CheckpointOptions) -> SessionRequest:
    """Return the validated request of *turn* for more entries; raise `InvalidInput`, which names the invalid option.

    The entries are leased to the worker of the turn, with its lease token, so that both are one claim.
    """
    if not isinstance(turn, SessionClaim):
        raise errors.InvalidInput("turn", f"must be a SessionClaim, not {type(turn).__name__}")
    validation.refuse_unknown(options, _OPTIONS_CHECKPOINT, "sessions.checkpoint")
    # Without a holder the turn has ended, and the operation refuses its fence.
    holder = {"worker": turn.entries[0].worker or "-", "incarnation": turn.entries[0].incarnation or "-"}
    request = _check_common(
        {**options, **holder}, options.get("limit", limits.SESSION_CLAIM_DEFAULT), turn.lease_token
    )
    return request._replace(
        session=turn.session,
        tenant=turn.tenant,
        criteria=request.criteria._replace(checkpoint=True),
        kinds=_kinds(options.get("kinds")),
        lease_ms=turn.lease_ms,
        turn=turn,
    )


def check_repeated(request: SessionRequest, jobs: Sequence[JobRow]) -> None:
    """Raise `Conflict` unless all *jobs* held under the request's token match the request."""
    if not all(map(request.fits, jobs)):
        raise errors.Conflict(
            "lease_token is already in use by a claim with a different tenant, session, lanes, kinds, entry type or"
            " capabilities; repeat the same claim, or choose another token"
        )


def _kinds(kinds: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if kinds is None else validation.names(kinds, "kinds", limits.CLAIM_KINDS_MAX)


def _check_common(options: Any, limit: object, fresh_token: str) -> SessionRequest:
    chosen = validation.optional_name(options.get("lease_token"), "lease_token", limits.LEASE_TOKEN_CHARS_MAX)
    only = options.get("only")
    return SessionRequest(
        session=None,
        tenant=None,
        criteria=SelectionCriteria(
            only=None if only is None else validation.one_of(only, "only", ENTRY_TYPES),
            checkpoint=False,
            limit=validation.integer(limit, "limit", 1, limits.CLAIM_MAX),
        ),
        lanes=None,
        kinds=None,
        capabilities=frozenset(
            validation.names(options.get("capabilities", ()), "capabilities", limits.CAPABILITIES_MAX)
        ),
        worker=validation.name(options.get("worker"), "worker"),
        incarnation=validation.name(options.get("incarnation"), "incarnation"),
        lease_token=chosen or fresh_token,
        resent=chosen is not None,
        lease_ms=lease_ms(options.get("lease", limits.LEASE_MS_DEFAULT / 1000)),
        wait_ms=validation.duration_ms(options.get("wait", 0), "wait", 0, limits.WAIT_MS_MAX),
        acknowledged=validation.flag(options.get("acknowledged", True), "acknowledged"),
    )


def _check_session_lease(lease: Any, session: str, tenant: str, options: SessionClaimOptions) -> None:
    if not isinstance(lease, SessionLease):
        raise errors.InvalidInput("session_lease", f"must be a SessionLease, not {type(lease).__name__}")
    if (lease.session, lease.tenant) != (session, tenant):
        raise errors.InvalidInput(
            "session_lease", f"is a lease on session {lease.session!r} of tenant {lease.tenant!r}"
        )
    if "lease" in options:
        raise errors.InvalidInput("lease", "cannot be combined with session_lease, which keeps the claim alive")


class SessionFence(NamedTuple):
    """The three identifiers of one claim."""

    claim_id: str
    fencing_token: int
    lease_token: str


def derive_fence(session: Session, head_id: str, lease_token: str) -> SessionFence:
    """Return the fence of the session's next claim, whose head is the entry *head_id*."""
    token = session.fence + 1
    named = "\n".join((session.tenant, session.name, head_id, str(token)))
    # An engine may derive it in SQL: only functions that every database has.
    claim_id = f"claim-{hashlib.sha256(named.encode()).hexdigest()[:32]}"
    return SessionFence(claim_id, token, lease_token)


@dataclass(frozen=True, slots=True)
class TurnLease:
    """The proof of a session claim that a caller in another process needs to renew and settle the turn."""

    session: str
    """The name of the session."""
    lease_token: str
    """The token of the claim."""
    entries: Sequence[tuple[str, int]]
    """The id and the epoch of each entry, in order."""
    tenant: str = "default"
    """The tenant of the session."""


@dataclass(frozen=True, slots=True)
class SessionClaim:
    """A turn: consecutive entries of a session under one fence, as they were when claimed."""

    session: str
    """The name of the session."""
    tenant: str
    """The tenant of the session."""
    entry_type: EntryType
    """The type of its entries: messages, or one command."""
    claim_id: str
    """The id of the claim, the same after each checkpoint."""
    fencing_token: int
    """Greater than that of every earlier claim of this session; a fencing token for the handler's own writes."""
    entries: tuple[Job, ...]
    """Its entries, in enqueue order."""
    lease_ms: int
    """The length of the lease in milliseconds."""
    generation: int | None = None
    """The session lease that keeps it alive, if any."""
    repeated: bool = field(default=False, compare=False, repr=False)
    """Whether an earlier call made this claim and this call only found it."""

    @property
    def lease_token(self) -> str:
        """The token that every write of this claim must present, chosen by the caller."""
        return row_of(self.entries[0]).lease_token or ""

    @property
    def lease_until(self) -> datetime:
        """When it expires unless it is renewed, by the store's lease clock."""
        return validation.datetime_of(min(row_of(job).lease_until_ms or 0 for job in self.entries))

    @property
    def claims(self) -> list[Claim]:
        """Each entry as a separate claim, for progress and artifacts."""
        return [Claim(job, self.lease_ms) for job in self.entries]

    @property
    def lease(self) -> TurnLease:
        """The lease, which can be sent to another process."""
        entries = tuple((job.id, job.epoch) for job in self.entries)
        return TurnLease(self.session, self.lease_token, entries, self.tenant)

    def joined(self, more: SessionClaim) -> SessionClaim:
        """Return this claim with the entries taken at a checkpoint; both are renewed and settled together."""
        if self.claim_id != more.claim_id:
            raise errors.InvalidInput("more", "was not taken under this claim")
        known = {job.number for job in self.entries}
        return replace(self, entries=(*self.entries, *(job for job in more.entries if job.number not in known)))


@dataclass(frozen=True, slots=True)
class SessionLease:
    """The right to be the only owner of a session until it expires, is closed, or is taken over."""

    session: str
    """The name of the session."""
    tenant: str
    """The tenant of the session."""
    generation: int
    """Incremented whenever the session is opened."""
    worker: str
    """The worker that owns the session."""
    lease_token: str
    """The token of the lease."""
    lease_ms: int
    """The length of the lease in milliseconds."""
    lease_until: datetime
    """When it expires unless it is renewed, by the store's lease clock."""
    repeated: bool = field(default=False, compare=False, repr=False)
    """Whether an earlier call with the same lease token opened the session."""


class Opening(NamedTuple):
    """A validated request to become a session's owner."""

    session: str
    tenant: str
    worker: str
    incarnation: str
    lease_token: str
    lease_ms: int
    take_over: bool
    resent: bool
    """Whether the caller chose the token, so that an earlier call may have sent the same request."""


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
    raise errors.session_lease_lost(lease.session, lease.generation, why)


def check_owner(session: Session, lease: SessionLease | None, now: Now) -> None:
    """Raise `Conflict` if the session has an owner other than the holder of *lease*."""
    if lease is not None:
        check_session_lease(session, lease, now)
    elif session.leased(now):
        raise errors.Conflict(
            f"session {session.name!r} is open in generation {session.generation} by worker"
            f" {session.lease_worker!r}; claim with its session_lease, or take it over with sessions.open"
        )


def open_lease(session: Session, opening: Opening, running: Sequence[JobRow], now: Now) -> Session:
    """Return *session* with the caller as its owner, or raise `Conflict` if another worker holds it.

    Repeating the same request while the lease is held returns the same lease.
    """
    if session.leased(now) and session.lease_token == opening.lease_token and session.lease_worker == opening.worker:
        return session
    if not opening.take_over:
        if session.leased(now):
            raise errors.Conflict(
                f"session {session.name!r} is open in generation {session.generation} by worker"
                f" {session.lease_worker!r}; wait until its lease expires, or take it over"
            )
        if running:
            raise errors.Conflict(
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
    """Return *session* without an owner, or raise `LeaseLost` if another worker has become its owner.

    A lease that has expired or was closed may be closed again: a call whose result was lost is repeated.
    """
    if session is None or session.generation != lease.generation:
        return check_session_lease(session, lease, now)
    return end_lease(session)


def end_lease(session: Session) -> Session:
    """Return *session* without an owner; its generation stays, so that old leases stay invalid."""
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
        lease_until=validation.datetime_of(session.lease_until_ms or 0),
    )

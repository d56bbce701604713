"""Session claims: their options and validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypedDict

from holdfast.domain import limits, validation
from holdfast.domain.claims import lease_ms
from holdfast.domain.errors import Conflict, InvalidInput
from holdfast.domain.job import Job
from holdfast.domain.routing import DEFAULT_NAME
from holdfast.domain.session_leases import Holder, SessionClaim, SessionLease
from holdfast.domain.session_selection import BOUNDARIES, WORKS, Boundary, SelectionCriteria, Work
from holdfast.domain.sessions import WORK_CLASSES, digest
from holdfast.domain.validation import Duration


class AnySessionOptions(TypedDict, total=False):
    """The options of `claim_any_session`, declared once for every function that takes them."""

    lanes: Sequence[str]
    """The lanes to take from; default `["default"]`."""
    kinds: Sequence[str] | None
    """The kinds to take; omitted means any, an empty list means none."""
    tenant: str | None
    """Take only this tenant's sessions."""
    capabilities: Sequence[str]
    """The worker's capabilities; an entry that requires others is left to other workers, with all behind it."""
    work: Work
    """`next` (default): sessions with any head; `turn` or `command`: only sessions with such a head."""
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
    nonce: str | None
    """A nonce chosen by the caller: repeating the claim with it returns the same entries."""


class SessionClaimOptions(TypedDict, total=False):
    """The options of `claim_session`, declared once for every function that takes them."""

    tenant: str
    """The tenant of the session; default `default`."""
    work: Work
    """`next` (default): any head; `turn`: nothing while a command is the head; `command`: only a command."""
    boundary: Boundary
    """`idle` (default): no entry of the session is held; `checkpoint`: the holder of a turn takes more entries."""
    holding: SessionClaim | None
    """At a checkpoint: the held claim, under whose fence more entries are taken."""
    under: SessionLease | None
    """The session lease that keeps the claim alive, instead of a time."""
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
    nonce: str | None
    """A nonce chosen by the caller: repeating the claim with it returns the same entries."""


class SessionRequest(NamedTuple):
    """A validated request for session entries: of one session, or of any session in some lanes."""

    session: str | None
    tenant: str | None
    criteria: SelectionCriteria
    lanes: tuple[str, ...] | None
    """The lanes; None means any, as for a names session."""
    kinds: tuple[str, ...] | None
    capabilities: frozenset[str]
    holding: SessionClaim | None
    under: SessionLease | None
    holder: Holder
    resent: bool
    """Whether the caller chose the nonce, so that this may repeat an earlier claim."""
    lease_ms: int
    wait_ms: int
    limits: Mapping[str, int] = MappingProxyType({})
    """The maximum number of entries by the kind of the head; for other kinds `criteria` applies."""

    def fits(self, job: Job) -> bool:
        """Return whether this request could have claimed *job*, an entry of the session it names, if any."""
        return (
            job.entry is not None
            and self.tenant in {None, job.tenant}
            and self.session in {None, job.entry.session}
            and (self.lanes is None or job.lane in self.lanes)
            and (self.kinds is None or job.kind in self.kinds)
            and job.entry.work_class in self.classes
            and self.capabilities.issuperset(job.requires)
        )

    def led_by(self, kind: str) -> SessionRequest:
        """Return the request with the limit for a session whose head is of *kind*."""
        limit = self.limits.get(kind)
        return self if limit is None else self._replace(criteria=self.criteria._replace(limit=limit))

    @property
    def classes(self) -> tuple[str, ...]:
        """The work classes that the head may have."""
        return WORK_CLASSES if self.criteria.work == "next" else (self.criteria.work,)

    @property
    def fair_scope(self) -> str:
        """Return the scope in which tenants alternate: all claims that can see the same sessions share it."""
        seen = [sorted(self.lanes or ()), self.kinds, sorted(self.capabilities), self.criteria.work]
        return f"sessions-{digest(*seen)}"


_OPTIONS: Final = frozenset(SessionClaimOptions.__annotations__)
_OPTIONS_ANY: Final = frozenset(AnySessionOptions.__annotations__)


def check_session_claim(session: str, options: SessionClaimOptions, *, fresh_nonce: str) -> SessionRequest:
    """Return the validated request for one session; raise `InvalidInput`, which names the invalid option."""
    _refuse_unknown(options, _OPTIONS, "claim_session")
    boundary = validation.one_of(options.get("boundary", "idle"), "boundary", BOUNDARIES)
    name = validation.name(session, "session")
    tenant = validation.name(options.get("tenant", DEFAULT_NAME), "tenant")
    holding, under = options.get("holding"), options.get("under")
    _check_holding(holding, boundary, name, tenant)
    if under is not None:
        _check_under(under, name, tenant, options)
    request = _check_common(options, options.get("limit", limits.SESSION_CLAIM_DEFAULT), boundary, fresh_nonce)
    kinds = _kinds(options.get("kinds"))
    return request._replace(session=name, tenant=tenant, kinds=kinds, holding=holding, under=under)


def check_any_session(options: AnySessionOptions, *, fresh_nonce: str) -> SessionRequest:
    """Return the validated request for any session; raise `InvalidInput`, which names the invalid option."""
    _refuse_unknown(options, _OPTIONS_ANY, "claim_any_session")
    limit = options.get("limit", limits.SESSION_CLAIM_DEFAULT)
    by_kind = limit if isinstance(limit, Mapping) else {}
    chosen = limits.SESSION_CLAIM_DEFAULT if isinstance(limit, Mapping) else limit
    return _check_common(options, chosen, "idle", fresh_nonce)._replace(
        tenant=validation.optional_name(options.get("tenant"), "tenant"),
        lanes=validation.names(options.get("lanes", (DEFAULT_NAME,)), "lanes", limits.CLAIM_LANES_MAX),
        kinds=_kinds(options.get("kinds")),
        limits={
            kind: validation.integer(entries_max, f"limit.{kind}", 1, limits.CLAIM_MAX)
            for kind, entries_max in by_kind.items()
        },
    )


def check_repeated(request: SessionRequest, jobs: Sequence[Job]) -> None:
    """Raise `Conflict` unless all *jobs* held under the request's nonce match the request."""
    if not all(map(request.fits, jobs)):
        raise Conflict(
            "nonce is already in use by a claim with a different tenant, session, lanes, kinds, work or capabilities;"
            " repeat the same claim, or choose another nonce"
        )


def _kinds(kinds: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if kinds is None else validation.names(kinds, "kinds", limits.CLAIM_KINDS_MAX)


def _refuse_unknown(options: Mapping[str, Any], valid: frozenset[str], call: str) -> None:
    if unknown := set(options) - valid:
        raise InvalidInput(min(unknown), f"unknown option of {call}; valid options are {', '.join(sorted(valid))}")


def _check_common(options: Any, limit: object, boundary: Boundary, fresh_nonce: str) -> SessionRequest:
    chosen = validation.optional_name(options.get("nonce"), "nonce", limits.LEASE_TOKEN_CHARS_MAX)
    entries_max = validation.integer(limit, "limit", 1, limits.CLAIM_MAX)
    return SessionRequest(
        session=None,
        tenant=None,
        criteria=SelectionCriteria(
            validation.one_of(options.get("work", "next"), "work", WORKS), boundary, entries_max
        ),
        lanes=None,
        kinds=None,
        capabilities=frozenset(
            validation.names(options.get("capabilities", ()), "capabilities", limits.CAPABILITIES_MAX)
        ),
        holding=None,
        under=None,
        holder=Holder(
            validation.name(options.get("worker"), "worker"),
            validation.name(options.get("incarnation"), "incarnation"),
            chosen or fresh_nonce,
        ),
        resent=chosen is not None,
        lease_ms=lease_ms(options.get("lease", limits.LEASE_MS_DEFAULT / 1000)),
        wait_ms=validation.duration_ms(options.get("wait", 0), "wait", 0, limits.WAIT_MS_MAX),
    )


def _check_holding(holding: Any, boundary: Boundary, session: str, tenant: str) -> None:
    if (holding is not None) != (boundary == "checkpoint"):
        problem = "boundary='checkpoint' requires it" if holding is None else "requires boundary='checkpoint'"
        raise InvalidInput("holding", f"{problem}; pass the claim of the running turn")
    if holding is None:
        return
    if not isinstance(holding, SessionClaim):
        raise InvalidInput("holding", f"must be a SessionClaim, not {type(holding).__name__}")
    if (holding.session, holding.tenant) != (session, tenant):
        raise InvalidInput("holding", f"is a claim of session {holding.session!r} of tenant {holding.tenant!r}")


def _check_under(under: Any, session: str, tenant: str, options: SessionClaimOptions) -> None:
    if not isinstance(under, SessionLease):
        raise InvalidInput("under", f"must be a SessionLease, not {type(under).__name__}")
    if (under.session, under.tenant) != (session, tenant):
        raise InvalidInput("under", f"is a lease on session {under.session!r} of tenant {under.tenant!r}")
    if "lease" in options:
        raise InvalidInput("lease", "cannot be combined with under: the session lease keeps the claim alive")

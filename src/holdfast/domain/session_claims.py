"""What a claimer asks of sessions: the words of a session claim and their checks."""

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
from holdfast.domain.session_selection import BOUNDARIES, WORKS, Boundary, Wanted, Work
from holdfast.domain.sessions import WORK_CLASSES, digest
from holdfast.domain.validation import Duration


class AnySessionOptions(TypedDict, total=False):
    """The words of `claim_any_session`, declared once for every place that takes them."""

    lanes: Sequence[str]
    """Which lanes to take from; default `["default"]`."""
    kinds: Sequence[str] | None
    """Which kinds to take; none given means any, an empty list means none."""
    tenant: str | None
    """Take only this tenant's sessions."""
    capabilities: Sequence[str]
    """What the worker has; entries that require more stay for others, with all behind them."""
    work: Work
    """`next` (default): whatever leads; `turn` or `command`: only sessions led by that."""
    limit: int | Mapping[str, int]
    """How many joined entries to take at most; default 100. A mapping says so by the kind of the head."""
    worker: str
    """The worker's name; default: this host and process."""
    incarnation: str
    """The unique id of one start of the worker; default: one for each opened queue."""
    lease: Duration
    """Seconds until the claim expires unless a heartbeat extends it; default 30."""
    wait: Duration
    """Seconds to wait for work if there is none; default 0."""
    nonce: str | None
    """A word of the claimer's choice: the same claim sent again returns the same entries."""


class SessionClaimOptions(TypedDict, total=False):
    """The words of `claim_session`, declared once for every place that takes them."""

    tenant: str
    """Whose session it is; default `default`."""
    work: Work
    """`next` (default): whatever leads; `turn`: nothing while a command leads; `command`: the leading command."""
    boundary: Boundary
    """`idle` (default): nothing of the session is in hand; `checkpoint`: the holder of a turn takes in more."""
    holding: SessionClaim | None
    """At a checkpoint: the claim that is held, under whose fence more is taken in."""
    under: SessionLease | None
    """The session lease that keeps the claim alive, in place of a time."""
    kinds: Sequence[str] | None
    """Which kinds to take; none given means any. An entry of another kind holds up those behind it."""
    limit: int
    """How many joined entries to take at most; default 100."""
    capabilities: Sequence[str]
    """What the worker has; an entry that requires more blocks those behind it."""
    worker: str
    """The worker's name; default: this host and process."""
    incarnation: str
    """The unique id of one start of the worker; default: one for each opened queue."""
    lease: Duration
    """Seconds until the claim expires unless a heartbeat extends it; default 30. Not under a session lease."""
    wait: Duration
    """Seconds to wait for work if there is none; default 0."""
    nonce: str | None
    """A word of the claimer's choice: the same claim sent again returns the same entries."""


class SessionRequest(NamedTuple):
    """A checked request for a session's work: of one session, or of any in some lanes."""

    session: str | None
    tenant: str | None
    wanted: Wanted
    lanes: tuple[str, ...] | None
    """Which lanes; none given means any, as where the session is named."""
    kinds: tuple[str, ...] | None
    capabilities: frozenset[str]
    holding: SessionClaim | None
    under: SessionLease | None
    holder: Holder
    resent: bool
    """Whether the claimer chose the nonce, so that this may be a claim sent again."""
    lease_ms: int
    wait_ms: int
    limits: Mapping[str, int] = MappingProxyType({})
    """How many entries to take at most, by the kind of the head; for kinds that are not named, as wanted."""

    def fits(self, job: Job) -> bool:
        """Return whether this request could have been given *job*, an entry of the session it names, if any."""
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
        """Return the request as it stands to a session whose head is of *kind*."""
        limit = self.limits.get(kind)
        return self if limit is None else self._replace(wanted=self.wanted._replace(limit=limit))

    @property
    def classes(self) -> tuple[str, ...]:
        """The work classes that may lead."""
        return WORK_CLASSES if self.wanted.work == "next" else (self.wanted.work,)

    @property
    def fair_scope(self) -> str:
        """Name the round in which tenants take turns: that of all claims that can see the same sessions."""
        seen = [sorted(self.lanes or ()), self.kinds, sorted(self.capabilities), self.wanted.work]
        return f"sessions-{digest(*seen)}"


_WORDS: Final = frozenset(SessionClaimOptions.__annotations__)
_WORDS_ANY: Final = frozenset(AnySessionOptions.__annotations__)


def check_session_claim(session: str, words: SessionClaimOptions, *, fresh_nonce: str) -> SessionRequest:
    """Return the request for one session's work checked, or raise `InvalidInput` naming the word that is wrong."""
    _refuse_unknown(words, _WORDS, "claim_session")
    boundary = validation.one_of(words.get("boundary", "idle"), "boundary", BOUNDARIES)
    name = validation.name(session, "session")
    tenant = validation.name(words.get("tenant", DEFAULT_NAME), "tenant")
    holding, under = words.get("holding"), words.get("under")
    _check_holding(holding, boundary, name, tenant)
    if under is not None:
        _check_under(under, name, tenant, words)
    request = _check_common(words, words.get("limit", limits.SESSION_CLAIM_DEFAULT), boundary, fresh_nonce)
    kinds = _kinds(words.get("kinds"))
    return request._replace(session=name, tenant=tenant, kinds=kinds, holding=holding, under=under)


def check_any_session(words: AnySessionOptions, *, fresh_nonce: str) -> SessionRequest:
    """Return the request for any session's work checked, or raise `InvalidInput` naming the word that is wrong."""
    _refuse_unknown(words, _WORDS_ANY, "claim_any_session")
    limit = words.get("limit", limits.SESSION_CLAIM_DEFAULT)
    by_kind = limit if isinstance(limit, Mapping) else {}
    chosen = limits.SESSION_CLAIM_DEFAULT if isinstance(limit, Mapping) else limit
    return _check_common(words, chosen, "idle", fresh_nonce)._replace(
        tenant=validation.optional_name(words.get("tenant"), "tenant"),
        lanes=validation.names(words.get("lanes", (DEFAULT_NAME,)), "lanes", limits.CLAIM_LANES_MAX),
        kinds=_kinds(words.get("kinds")),
        limits={
            kind: validation.integer(most, f"limit.{kind}", 1, limits.CLAIM_MAX) for kind, most in by_kind.items()
        },
    )


def check_repeated(request: SessionRequest, jobs: Sequence[Job]) -> None:
    """Raise `Conflict` unless all *jobs* that are held under the request's nonce fit the request."""
    if not all(map(request.fits, jobs)):
        raise Conflict(
            "nonce is already in use by a claim with another tenant, session, lanes, kinds, work or capabilities;"
            " send the same claim again, or choose another nonce"
        )


def _kinds(kinds: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if kinds is None else validation.names(kinds, "kinds", limits.CLAIM_KINDS_MAX)


def _refuse_unknown(words: Mapping[str, Any], known: frozenset[str], call: str) -> None:
    if unknown := set(words) - known:
        raise InvalidInput(min(unknown), f"is not a word of {call}; these are: {', '.join(sorted(known))}")


def _check_common(words: Any, limit: object, boundary: Boundary, fresh_nonce: str) -> SessionRequest:
    chosen = validation.optional_name(words.get("nonce"), "nonce", limits.LEASE_TOKEN_CHARS_MAX)
    most = validation.integer(limit, "limit", 1, limits.CLAIM_MAX)
    return SessionRequest(
        session=None,
        tenant=None,
        wanted=Wanted(validation.one_of(words.get("work", "next"), "work", WORKS), boundary, most),
        lanes=None,
        kinds=None,
        capabilities=frozenset(
            validation.names(words.get("capabilities", ()), "capabilities", limits.CAPABILITIES_MAX)
        ),
        holding=None,
        under=None,
        holder=Holder(
            validation.name(words.get("worker"), "worker"),
            validation.name(words.get("incarnation"), "incarnation"),
            chosen or fresh_nonce,
        ),
        resent=chosen is not None,
        lease_ms=lease_ms(words.get("lease", limits.LEASE_MS_DEFAULT / 1000)),
        wait_ms=validation.duration_ms(words.get("wait", 0), "wait", 0, limits.WAIT_MS_MAX),
    )


def _check_holding(holding: Any, boundary: Boundary, session: str, tenant: str) -> None:
    if (holding is not None) != (boundary == "checkpoint"):
        problem = "must be the claim that is held" if holding is None else "means nothing at the boundary 'idle'"
        raise InvalidInput("holding", f"{problem}: give it with boundary='checkpoint'")
    if holding is None:
        return
    if not isinstance(holding, SessionClaim):
        raise InvalidInput("holding", f"must be a SessionClaim, not {type(holding).__name__}")
    if (holding.session, holding.tenant) != (session, tenant):
        raise InvalidInput("holding", f"is a claim of session {holding.session!r} of tenant {holding.tenant!r}")


def _check_under(under: Any, session: str, tenant: str, words: SessionClaimOptions) -> None:
    if not isinstance(under, SessionLease):
        raise InvalidInput("under", f"must be a SessionLease, not {type(under).__name__}")
    if (under.session, under.tenant) != (session, tenant):
        raise InvalidInput("under", f"is a lease on session {under.session!r} of tenant {under.tenant!r}")
    if "lease" in words:
        raise InvalidInput("lease", "cannot be given together with under: the session lease keeps the claim alive")

"""Claims: requests for jobs, held jobs, and the lease that every write of an attempt must present."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypedDict

from holdfast.domain import errors, limits, routing, strict_json, validation
from holdfast.domain.claim_order import Preference
from holdfast.domain.job import Job, JobRow, row_of
from holdfast.domain.output import OutputWrite
from holdfast.domain.validation import Duration

DrainOrder: TypeAlias = Literal["oldest", "listed"]
"""In which order a claim takes the kinds that it lists; see `ClaimOptions`."""


_SCOPES_REMEMBERED: Final = 1_024


class JobFence(NamedTuple):
    """What every write of an attempt must present: the job, its epoch and the lease token of the claim."""

    seq: int
    job_id: str
    epoch: int
    lease_token: str


def row_fence(row: JobRow) -> JobFence:
    """Return the fence of the newest claim of a job."""
    return JobFence(row.seq, row.id, row.epoch, row.lease_token or "")


@dataclass(frozen=True, slots=True)
class Lease:
    """The proof of a claim that a caller in another process needs to renew and settle the job."""

    job_id: str
    """The id of the job."""
    epoch: int
    """The job's epoch under the claim."""
    lease_token: str
    """The token of the claim."""
    tenant: str | None = None
    """The tenant of the job, for a caller that may not see the jobs of other tenants; None means any."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One job under one lease, as it was when claimed."""

    job: Job
    """The job as it was when it was claimed."""
    lease_ms: int
    """The length of the lease, in milliseconds."""
    repeated: bool = field(default=False, compare=False, repr=False)
    """Whether an earlier call with the same lease token made this claim."""
    _fence: JobFence | None = field(default=None, init=False, compare=False, repr=False)
    """The fence, if it is known without the job's row."""

    @property
    def epoch(self) -> int:
        """The job's epoch under this claim: greater than that of every earlier claim."""
        return fence_of(self).epoch

    @property
    def lease_token(self) -> str:
        """The lease token, chosen by the caller."""
        return fence_of(self).lease_token

    @property
    def lease_until(self) -> datetime:
        """When the lease expires unless a heartbeat extends it, by the store's lease clock."""
        return validation.datetime_of(row_of(self.job).lease_until_ms or 0)

    @property
    def lease(self) -> Lease:
        """The lease, which can be sent to another process."""
        return Lease(self.job.id, self.job.epoch, self.lease_token, self.job.tenant)


def fence_of(claim: Claim) -> JobFence:
    """Return what every write of the attempt of *claim* must present."""
    return claim._fence or row_fence(row_of(claim.job))  # noqa: SLF001


class Note(NamedTuple):
    """Progress of a running attempt; a field that is None stays unchanged."""

    phase: str | None = None
    percent: float | None = None


class LeaseUpdate(NamedTuple):
    """A lease to extend, with the latest progress of its handler."""

    claim: Claim
    note: Note | None = None
    started: bool = False
    """Whether the handler has started, which acknowledges the claim."""
    output: OutputWrite | None = None
    """Text to append to the output of the job."""


@dataclass(frozen=True, slots=True)
class Renewal:
    """The result of a heartbeat: the new end of the lease, and whether the job is to be cancelled."""

    lease_until: datetime
    """When the lease now expires, by the store's lease clock."""
    cancel_requested: bool
    """Whether the handler should stop, because the job was cancelled."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """The result of one of several settlements: the settled job, or the error that refused it."""

    claim: Claim
    """The claim that was settled."""
    job: Job | None = None
    """The settled job; None if the settlement was refused."""
    error: errors.HoldfastError | None = None
    """The error that `settle` would raise; None if the settlement was accepted."""
    _make_job: Callable[[Claim], Job] | None = field(default=None, init=False, compare=False, repr=False)
    """Makes the job when it is first read, if that is not set."""

    def __getattr__(self, name: str) -> Any:
        """Make the job, which most callers never read."""
        if name != "job" or self._make_job is None:
            raise AttributeError(name)
        job = self._make_job(self.claim)
        _set_settled(self, job)
        return job

    @property
    def ok(self) -> bool:
        """Whether the settlement was accepted."""
        return self.error is None


# The constructor of a frozen dataclass sets each field by name, which takes longer than all that a plain claim and a
# plain settlement do for one job; these functions set the slots.
_new: Final = object.__new__
_set_job, _set_lease_ms, _set_repeated, _set_fence = (
    getattr(Claim, name).__set__ for name in ("job", "lease_ms", "repeated", "_fence")
)
_set_claim, _set_settled, _set_error, _set_make_job = (
    getattr(Settlement, name).__set__ for name in ("claim", "job", "error", "_make_job")
)


def held_under(fence: JobFence, job: Job, lease_ms: int) -> Claim:
    """Return the claim of *job*, whose fence is known, so that its row need not be made."""
    claim = _new(Claim)
    _set_job(claim, job)
    _set_lease_ms(claim, lease_ms)
    _set_repeated(claim, False)  # noqa: FBT003
    _set_fence(claim, fence)
    return claim


def accepted(claim: Claim, make_job: Callable[[Claim], Job]) -> Settlement:
    """Return the settlement of *claim*, whose job *make_job* returns."""
    settlement = _new(Settlement)
    _set_claim(settlement, claim)
    _set_error(settlement, None)
    _set_make_job(settlement, make_job)
    return settlement


@dataclass(frozen=True, slots=True)
class SettledAndClaimed:
    """The results of `settle_and_claim`."""

    settlements: list[Settlement]
    """One for each outcome given, in order."""
    claims: list[Claim]
    """The claimed jobs, in claim order."""


_set_settlements, _set_claims = (getattr(SettledAndClaimed, name).__set__ for name in ("settlements", "claims"))


def settled_and_claimed(settlements: list[Settlement], claims: list[Claim]) -> SettledAndClaimed:
    """Return both results."""
    both = _new(SettledAndClaimed)
    _set_settlements(both, settlements)
    _set_claims(both, claims)
    return both


class ClaimRequest(NamedTuple):
    """A validated claim request."""

    lanes: tuple[str, ...]
    kinds: tuple[str, ...] | None
    tenant: str | None
    capabilities: frozenset[str]
    preference: Preference
    listed: bool
    worker: str
    incarnation: str
    exclusive: bool
    lease_token: str
    resent: bool
    """Whether the caller chose the token, so that this may repeat an earlier claim."""
    lease_ms: int
    wait_ms: int
    limit: int
    acknowledged: int = limits.CLAIM_MAX
    """How many of the jobs, from the first, the claim itself acknowledges."""
    cut_off: bool = False
    """Whether the worker was alive while it could not reach the store."""

    def fits(self, job: JobRow) -> bool:
        """Return whether this request could have claimed *job*: its tenant, lane, kind and required capabilities."""
        return (
            job.session_number is None
            and self.tenant in {None, job.tenant}
            and job.lane in self.lanes
            and (self.kinds is None or job.kind in self.kinds)
            and self.capabilities.issuperset(job.requires)
        )

    def fair_scope(self, listed: int, priority: int, preference: Preference, rank: int) -> str:
        """Return the scope in which tenants alternate: all claims that can see the same jobs on this level share it.

        Workers with other lanes, kinds, capabilities or preferred affinities see other tenants; a shared scope would
        repeatedly reset the fairness position.
        """
        preferred = None
        if preference.affinities and not rank:
            preferred = Preference(preference.affinities, preference.expired)
        return f"{self.fair_scope_prefix(listed, preferred)}{priority}"

    def fair_scope_prefix(self, listed: int = 0, preferred: Preference | None = None) -> str:
        """Return the text that precedes the priority in a fairness scope."""
        return _fair_scope_prefix(self.lanes, self.kinds, self.capabilities, listed, preferred)

    def rank_of(self, kind: str) -> int:
        """Return the index of *kind* in the caller's list if the claim drains by its list, else 0."""
        return self.kinds.index(kind) if self.listed and self.kinds is not None else 0


@lru_cache(_SCOPES_REMEMBERED)
def _fair_scope_prefix(
    lanes: tuple[str, ...],
    kinds: tuple[str, ...] | None,
    capabilities: frozenset[str],
    listed: int,
    preferred: Preference | None,
) -> str:
    preference_key = [] if preferred is None else [preferred.expired, *sorted(preferred.affinities)]
    seen = [sorted(lanes), kinds, sorted(capabilities), listed, preference_key]
    return hashlib.blake2b(strict_json.canonical(seen), digest_size=12).hexdigest() + ":"


class ClaimOptions(TypedDict, total=False):
    """The options of `claim`, `claim_many` and `settle_and_claim`; a `Worker` takes those that select its jobs."""

    lanes: Sequence[str]
    """The lanes to take from; default `["default"]`."""
    kinds: Sequence[str] | None
    """The kinds to take; omitted means any, an empty list means none."""
    tenant: str | None
    """Take only this tenant's jobs."""
    capabilities: Sequence[str]
    """The worker's capabilities; jobs that require others are left to other workers."""
    affinity: str | Sequence[str] | None
    """The affinities that the worker has loaded: their jobs come first among those of equal priority."""
    affinities_held: Sequence[str]
    """The affinities of jobs that the worker already holds."""
    affinities_max: int | None
    """The maximum number of affinities of held jobs: the claim ends before a job would exceed it."""
    hold_left: Duration | None
    """Seconds for which the affinity may still be preferred; 0 means no longer, None means no limit."""
    drain: DrainOrder
    """`oldest` (default): by priority, then by age; `listed`: kinds listed first come first, regardless of priority,
    so that a pipeline drains forward."""
    worker: str
    """The worker's name; default: this host and process."""
    incarnation: str
    """The unique id of one start of the worker; default: one for each opened queue."""
    exclusive: bool
    """Only one start of this worker may hold claims: a new start revokes the claims of earlier ones at once."""
    lease: Duration
    """Seconds until the claim expires unless a heartbeat extends it; default 30."""
    wait: Duration
    """Seconds to wait for work if there is none; default 0."""
    lease_token: str | None
    """A token chosen by the caller: repeating the claim with it returns the same jobs."""
    cut_off: bool
    """Whether this start was alive but could not reach the store: jobs it lost because of that are not suspect."""
    acknowledged: int | None
    """How many of the jobs, from the first, the caller starts at once; default: all. See `acknowledge`."""


_OPTIONS: Final = frozenset(ClaimOptions.__annotations__)
_TOKEN: Final = ClaimRequest._fields.index("lease_token")
"""The index of the lease token, which the flag that the caller chose it follows."""
_REQUESTS_REMEMBERED: Final = 256


def check_claim(options: ClaimOptions, *, limit: int, fresh_token: str) -> ClaimRequest:
    """Return the validated request; raise `InvalidInput`, which names the option, if one is invalid.

    Workers repeat the same options, so validated requests are cached.
    """
    token, chosen = fresh_token, False
    if "lease_token" in options:
        given: Any = options["lease_token"]
        options = {option: value for option, value in options.items() if option != "lease_token"}  # type: ignore[assignment]
        if given is not None:
            token, chosen = validation.name(given, "lease_token", limits.LEASE_TOKEN_CHARS_MAX), True
    try:
        values: Iterable[Any] = options.values()
        if list in map(type, values):
            values = [tuple(value) if type(value) is list else value for value in values]
        request = _cached_request(limit, *options, *values)
    except TypeError:
        # An option is not hashable, such as a set.
        request = _check_options(options, limit)
    return tuple.__new__(ClaimRequest, (*request[:_TOKEN], token, chosen, *request[_TOKEN + 2 :]))


@lru_cache(_REQUESTS_REMEMBERED, typed=True)
def _cached_request(limit: int, *flat: Any) -> ClaimRequest:
    count = len(flat) // 2
    options: Any = dict(zip(flat[:count], flat[count:], strict=True))
    return _check_options(options, limit)


def _check_options(options: ClaimOptions, limit: int) -> ClaimRequest:
    validation.refuse_unknown(options, _OPTIONS, "a claim")
    kinds, affinity = options.get("kinds"), options.get("affinity")
    listed = validation.one_of(options.get("drain", "oldest"), "drain", ("oldest", "listed")) == "listed"
    if listed and kinds is None:
        raise errors.InvalidInput("drain", "'listed' requires a list of kinds")
    hold_left, affinities_max = options.get("hold_left"), options.get("affinities_max")
    acknowledged = options.get("acknowledged")
    expired = hold_left is not None and validation.duration_ms(hold_left, "hold_left") == 0
    preferred = (affinity,) if isinstance(affinity, str) else () if affinity is None else affinity
    return ClaimRequest(
        lanes=validation.names(options.get("lanes", (routing.DEFAULT_NAME,)), "lanes", limits.CLAIM_LANES_MAX),
        kinds=None if kinds is None else validation.names(kinds, "kinds", limits.CLAIM_KINDS_MAX),
        tenant=validation.optional_name(options.get("tenant"), "tenant"),
        capabilities=frozenset(
            validation.names(options.get("capabilities", ()), "capabilities", limits.CAPABILITIES_MAX)
        ),
        preference=Preference(
            frozenset(validation.names(preferred, "affinity", limits.AFFINITIES_MAX)),
            bool(preferred) and expired,
            frozenset(validation.names(options.get("affinities_held", ()), "affinities_held", limits.AFFINITIES_MAX)),
            None
            if affinities_max is None
            else validation.integer(affinities_max, "affinities_max", 1, limits.AFFINITIES_MAX),
        ),
        listed=listed,
        worker=validation.name(options.get("worker"), "worker"),
        incarnation=validation.name(options.get("incarnation"), "incarnation"),
        exclusive=validation.flag(options.get("exclusive", False), "exclusive"),
        lease_token="",
        resent=False,
        lease_ms=lease_ms(options.get("lease", limits.LEASE_MS_DEFAULT / 1000)),
        wait_ms=validation.duration_ms(options.get("wait", 0), "wait", 0, limits.WAIT_MS_MAX),
        limit=validation.integer(limit, "limit", 1, limits.CLAIM_MAX),
        acknowledged=limits.CLAIM_MAX
        if acknowledged is None
        else validation.integer(acknowledged, "acknowledged", 0, limits.CLAIM_MAX),
        cut_off=validation.flag(options.get("cut_off", False), "cut_off"),
    )


def check_repeated(request: ClaimRequest, jobs: Sequence[JobRow]) -> None:
    """Raise `Conflict` unless all *jobs* held under the request's token match the request."""
    if len(jobs) > request.limit or not all(map(request.fits, jobs)):
        raise errors.Conflict(
            "lease_token is already in use by a claim with a different tenant, lanes, kinds, capabilities or limit;"
            " repeat the same claim, or choose another token"
        )


def lease_ms(lease: Duration) -> int:
    """Return the validated length of a lease."""
    return validation.duration_ms(lease, "lease", limits.LEASE_MS_MIN, limits.LEASE_MS_MAX)

"""Claims: requests for jobs, held jobs, and the lease that every write of an attempt must present."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias, TypedDict

from holdfast.domain import errors, limits, routing, strict_json, validation
from holdfast.domain.claim_order import Preference
from holdfast.domain.job import Job, JobRow, columns_of, row_of
from holdfast.domain.output import OutputWrite
from holdfast.domain.rollups import CountedEnd, Ended
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


class Taken(Protocol):
    """What the jobs of one claim have in common, from which each is made when it is read."""

    are_usual: bool
    """Whether it is known that none of them has one of the values that few jobs have."""

    def job_of(self, row: Any, index: int) -> Job:
        """Return the job that an engine has read as *row*, at this index among the jobs of the claim."""
        ...

    def done_at(self, rows: Iterable[Any], now_ms: int) -> list[CountedEnd]:
        """Return what is counted of these jobs if they are done."""
        ...

    def one_done_at(self, row: Any, now_ms: int) -> CountedEnd:
        """Return the same for one of them."""
        ...


# Not a frozen dataclass: properties without setters are read-only, too, and setting the slots directly takes a ninth
# of the time. There is a claim for every job.
class Claim:
    """One job under one lease, as it was when claimed."""

    __slots__ = (
        *("_epoch", "_fence", "_index", "_job", "_job_id", "_lease_ms", "_number", "_repeated", "_row", "_taken"),
        "_token",
    )

    _job: Job | None
    """The job; None until it is made of the next three."""
    _taken: Taken | None
    _row: Any
    _index: int
    _fence: JobFence | None
    """What the next four are together; None until it is needed."""
    _number: int
    _job_id: str
    _epoch: int
    _token: str

    def __init__(self, job: Job, lease_ms: int, repeated: bool = False) -> None:  # noqa: FBT001, FBT002
        self._job = job
        self._taken = self._row = None
        self._index = 0
        self._fence = fence = row_fence(row_of(job))
        self._number, self._job_id, self._epoch, self._token = fence
        self._lease_ms = lease_ms
        self._repeated = repeated

    def __repr__(self) -> str:
        return f"Claim(job={self.job!r}, lease_ms={self._lease_ms})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Claim):
            return NotImplemented
        return (self.job, self._lease_ms) == (other.job, other._lease_ms)

    def __hash__(self) -> int:
        return hash((self.job, self._lease_ms))

    def __reduce__(self) -> tuple[Any, ...]:
        return Claim, (self.job, self._lease_ms, self._repeated)

    @property
    def job(self) -> Job:
        """The job as it was when it was claimed."""
        job = self._job
        if job is None:
            assert self._taken is not None  # noqa: S101  # it has one of both
            self._job = job = self._taken.job_of(self._row, self._index)
        return job

    @property
    def lease_ms(self) -> int:
        """The length of the lease, in milliseconds."""
        return self._lease_ms

    @property
    def repeated(self) -> bool:
        """Whether an earlier call with the same lease token made this claim."""
        return self._repeated

    @property
    def epoch(self) -> int:
        """The job's epoch under this claim: greater than that of every earlier claim."""
        return self._epoch

    @property
    def lease_token(self) -> str:
        """The lease token, chosen by the caller."""
        return self._token

    @property
    def lease_until(self) -> datetime:
        """When the lease expires unless a heartbeat extends it, by the store's lease clock."""
        return validation.datetime_of(row_of(self.job).lease_until_ms or 0)

    @property
    def lease(self) -> Lease:
        """The lease, which can be sent to another process."""
        return Lease(self._job_id, self._epoch, self._token, self.job.tenant)


def fence_of(claim: Claim) -> JobFence:
    """Return what every write of the attempt of *claim* must present."""
    fence = claim._fence  # noqa: SLF001
    if fence is None:
        claim._fence = fence = _new_tuple(JobFence, _fence_values(claim))  # noqa: SLF001
    return fence


number_of: Final[Callable[[Claim], int]] = attrgetter("_number")
"""Returns the number of the job of a claim, as the next one does its id, without making the job."""
job_id_of: Final[Callable[[Claim], str]] = attrgetter("_job_id")
held_by: Final[Callable[[Claim], tuple[int, str]]] = attrgetter("_epoch", "_token")
"""Returns the epoch and the lease token of a claim."""
_fence_values: Final = attrgetter("_number", "_job_id", "_epoch", "_token")
taken_with: Final[Callable[[Claim], tuple[Taken | None, Any]]] = attrgetter("_taken", "_row")
"""Returns what a claim has in common with others that an engine has made together, and the row of its job."""
_taken_of: Final[Callable[[Claim], Taken | None]] = attrgetter("_taken")
_row_of: Final[Callable[[Claim], Any]] = attrgetter("_row")


def are_usual(claims: Iterable[Claim]) -> bool:
    """Return whether the jobs of *claims* are known to have none of the values that few jobs have; makes no job."""
    return all(taken is not None and taken.are_usual for taken in set(map(_taken_of, claims)))


def ends_if_done(claims: Sequence[Claim], now_ms: int) -> list[CountedEnd]:
    """Return what is counted of the jobs of *claims* if they are done."""
    ends: list[CountedEnd] = []
    for taken, some in groupby(claims, _taken_of):
        if taken is None:
            ends += [(columns_of(claim.job).done_at(now_ms), 1) for claim in some]
        else:
            ends += taken.done_at(map(_row_of, some), now_ms)
    return ends


def count_done(
    keys: Iterable[tuple[int, int]], routes: Mapping[int, routing.Route], started_ms: int, now_ms: int
) -> list[CountedEnd]:
    """Return what is counted of jobs that started together and are done, from the route and due time of each."""
    counts: dict[tuple[int, int], int] = {}
    # In a third of the time of a Counter.
    for key in keys:
        counts[key] = counts.get(key, 0) + 1
    ends: list[CountedEnd] = []
    for (route, due_at_ms), count in counts.items():
        lane, kind, *_ = routes[route].key
        ends.append((Ended(lane, kind, "done", started_ms - due_at_ms, now_ms - started_ms), count))
    return ends


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


# Not a frozen dataclass, for the same reason as `Claim`.
class Settlement:
    """The result of one of several settlements: the settled job, or the error that refused it."""

    __slots__ = ("_claim", "_error", "_job", "_make_job")

    _job: Job | None
    _make_job: Callable[[Claim], Job] | None
    """Makes the job when it is first read, if there is none yet."""

    def __init__(self, claim: Claim, job: Job | None = None, error: errors.HoldfastError | None = None) -> None:
        self._claim = claim
        self._job = job
        self._error = error
        self._make_job = None

    def __repr__(self) -> str:
        return f"Settlement(claim={self._claim!r}, job={self.job!r}, error={self._error!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Settlement):
            return NotImplemented
        return (self._claim, self.job, self._error) == (other._claim, other.job, other._error)

    def __hash__(self) -> int:
        return hash((self._claim, self.job, self._error))

    def __reduce__(self) -> tuple[Any, ...]:
        return Settlement, (self._claim, self.job, self._error)

    @property
    def claim(self) -> Claim:
        """The claim that was settled."""
        return self._claim

    @property
    def job(self) -> Job | None:
        """The settled job; None if the settlement was refused."""
        make_job = self._make_job
        if make_job is not None:
            # In this order: another thread may read it, too.
            self._job = make_job(self._claim)
            self._make_job = None
        return self._job

    @property
    def error(self) -> errors.HoldfastError | None:
        """The error that `settle` would raise; None if the settlement was accepted."""
        return self._error

    @property
    def ok(self) -> bool:
        """Whether the settlement was accepted."""
        return self._error is None


_new: Final = object.__new__


def held_together(taken: Taken, rows: Iterable[tuple[int, str, int, Any]], token: str, lease_ms: int) -> list[Claim]:
    """Return the claims of jobs that an engine has read, in order: number, id and epoch of each, and its row."""
    claims: list[Claim] = []
    for index, (number, job_id, epoch, row) in enumerate(rows):
        claim = _new(Claim)
        claim._taken = taken  # noqa: SLF001
        claim._row = row  # noqa: SLF001
        claim._index = index  # noqa: SLF001
        claim._number = number  # noqa: SLF001
        claim._job_id = job_id  # noqa: SLF001
        claim._epoch = epoch  # noqa: SLF001
        claim._token = token  # noqa: SLF001
        claim._lease_ms = lease_ms  # noqa: SLF001
        claim._repeated = False  # noqa: SLF001
        claim._job = claim._fence = None  # noqa: SLF001
        claims.append(claim)
    return claims


def accepted(claim: Claim, make_job: Callable[[Claim], Job]) -> Settlement:
    """Return the settlement of *claim*, whose job *make_job* returns."""
    settlement = _new(Settlement)
    settlement._claim = claim  # noqa: SLF001
    settlement._job = settlement._error = None  # noqa: SLF001
    settlement._make_job = make_job  # noqa: SLF001
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
_new_tuple: Final = tuple.__new__
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
    return _new_tuple(ClaimRequest, (*request[:_TOKEN], token, chosen, *request[_TOKEN + 2 :]))


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

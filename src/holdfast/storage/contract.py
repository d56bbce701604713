"""The storage contract: the methods of an open transaction that operations call, in terms of the domain.

An operation is an ordinary `async def fn(tx, …)`. On a sync engine the methods of its transaction never suspend, and
`run_sync` runs the operation in the caller's thread; on an async engine the caller awaits it. The two engines may
have different tables; the contract does not mention statements. `sql_transaction` holds the code they share.

Unless a method says otherwise, rows that it returns in a write transaction are locked until the commit.
"""

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, NamedTuple, TypeAlias

from holdfast.domain import claim_order, kinds, new_job, results, transitions
from holdfast.domain.claims import Claim, ClaimRequest, JobFence
from holdfast.domain.clock import Now
from holdfast.domain.events import Event, EventName
from holdfast.domain.job import AttemptRow, Job, JobRow, State
from holdfast.domain.routing import Lane, Route, RouteKey, RoutingTable
from holdfast.domain.sessions import Head, Session
from holdfast.storage import randomness
from holdfast.storage.chart_contract import ChartTransaction
from holdfast.storage.content import ContentTransaction
from holdfast.storage.flow_contract import FlowTransaction
from holdfast.storage.gates_contract import GatesTransaction
from holdfast.storage.plain_contract import PlainForms
from holdfast.storage.service_contract import ServiceTransaction

SessionName: TypeAlias = tuple[str, str]
"""Tenant and name."""
EventPosition: TypeAlias = tuple[int, int]
"""The transaction that wrote an event, 0 if the engine has one writer, and the event's number."""
JobPosition: TypeAlias = tuple[int, int]
"""When a job finished and its number; a page of jobs starts below it, a chunk to prune above it."""


def cursor_of(position: EventPosition) -> str:
    """Return the cursor that names a position in the event log."""
    transaction, number = position
    return f"e2-{transaction}-{number}" if transaction else f"e1-{number}"


class JobMatch(NamedTuple):
    """A dedupe key, id or number by which a call may match an existing job that other calls lock too."""

    key: new_job.DedupeKey | None = None
    job_id: str | None = None
    seq: int | None = None


class OvertakenError(RuntimeError):
    """A write changed fewer rows than were decided upon.

    If several callers write at once, another transaction changed the rows first; the operation is run again. With a
    single writer it is a defect.
    """


PassName: TypeAlias = Literal["schedules", "leases", "deadlines", "wakes"]
"""A maintenance pass: scheduled jobs that are due, expired leases, passed deadlines, wake rows that are due."""


class Claimer(NamedTuple):
    """What the store has of a claimer."""

    superseded: bool | None
    """Whether a later start of an exclusive worker took over; None if this one is new, or not exclusive."""
    held: list[JobRow]
    """The running jobs that an earlier send of the same claim has leased."""


class ReadyRequest(NamedTuple):
    """The arguments of one selection of ready jobs."""

    request: ClaimRequest
    preference: claim_order.Preference
    routes: list[Route]
    limit: int
    first_index: int
    """The index of the first selected job within the claim."""
    recorded_lanes: frozenset[str]
    """The lanes in which a claim is recorded as an event."""
    leases: bool = True
    """Whether the engine may lease while it selects; not if some of the jobs need room at a gate."""


class ReadyJobs(NamedTuple):
    """Jobs selected for a claim, and the fairness position that the claim advances."""

    jobs: list[JobRow]
    fair_scope: str | None
    """None if the claim names a single tenant; tenants then do not alternate."""
    last_fair_key: str | None
    leased_at: Now | None = None
    """When the engine leased the jobs, if it leases while it selects; None if they are still ready."""


class NextTimes(NamedTuple):
    """When the next scheduled job becomes due, the next lease expires and the next wake row is due, if any."""

    due_at_ms: int | None
    lease_until_ms: int | None
    wake_at_ms: int | None


class MessageIdRow(NamedTuple):
    """The entry that was enqueued with a message id, or its remaining record after it was deleted."""

    message_id: str
    seq: int
    job_id: str
    route: int
    entry_json: str
    enqueue_seq: int
    enqueued_at_ms: int
    state: State | None
    deleted_at_ms: int | None


class LineRow(NamedTuple):
    """An entry in a session's line, with the columns that selection reads."""

    seq: int
    enqueue_seq: int
    state: State
    epoch: int
    route: int
    entry_json: str


class SessionFront(NamedTuple):
    """Whether an entry of a session is running, and the first entry in its line."""

    running: bool
    first: LineRow


class StoreTransaction(
    PlainForms, ContentTransaction, ServiceTransaction, FlowTransaction, ChartTransaction, GatesTransaction
):
    """One open transaction. All methods belong to the same commit."""

    __slots__ = ("topics",)

    def __init__(self) -> None:
        self.topics: set[str] = set()
        """The topics to notify once the transaction has committed."""

    # --- clock, randomness, notifications ---------------------------------------------------------------------------

    @abstractmethod
    async def now(self) -> Now:
        """Return the store's clock. Call it after locking the rows that are compared with it."""

    def random(self) -> float:
        """Return a random fraction from 0 to 1."""
        return randomness.RANDOM.random()

    def notify(self, topics: Iterable[str]) -> None:
        """Wake listeners of *topics* after the commit, and only if it succeeds."""
        self.topics.update(topics)

    @abstractmethod
    def savepoint(self) -> AbstractAsyncContextManager[None]:
        """Roll back the block's writes if it raises a `HoldfastError`; the transaction stays open."""

    # --- routing ----------------------------------------------------------------------------------------------------

    @abstractmethod
    async def routing(self) -> RoutingTable:
        """Return lanes, routes and the catalog of kinds as they are in this transaction."""

    @abstractmethod
    async def lock_routing(self) -> None:
        """Exclusively lock the routing until this transaction commits. Call it before reading the routing."""

    @abstractmethod
    async def add_routes(self, keys: Sequence[RouteKey]) -> RoutingTable:
        """Assign a number to each of *keys* and return the routing that includes them."""

    @abstractmethod
    async def set_lane(self, lane: Lane) -> None:
        """Store the settings of a lane."""

    @abstractmethod
    async def publish_kinds(self, publications: Mapping[str, kinds.Publication], published_by: str, now: Now) -> None:
        """Store what a worker publishes about kinds, by name."""

    @abstractmethod
    async def retire_kind(self, kind: str, now: Now) -> None:
        """Mark *kind* as retired."""

    @abstractmethod
    async def restore_kind(self, kind: str) -> bool:
        """Remove the mark; return whether *kind* was retired."""

    # --- enqueue ----------------------------------------------------------------------------------------------------

    @abstractmethod
    async def begin_enqueue(
        self, count: int, locks: Sequence[int] = (), matches: Sequence[JobMatch] = ()
    ) -> tuple[RoutingTable, Sequence[int], list[JobRow]]:
        """Take *locks* as `lock_keys` does, then lock the jobs that match *matches* as `lock_matching_jobs` does.

        Return the routing, *count* new job numbers, and these jobs.
        """

    @abstractmethod
    async def lock_keys(self, locks: Sequence[int]) -> None:
        """Lock numbers that represent keys and ids until the commit; other transactions wait for them."""

    @abstractmethod
    async def dedupe_keys(self, job_ids: Sequence[str]) -> list[new_job.DedupeKey]:
        """Return the dedupe keys of the jobs with these ids. No lock is taken: a key never changes."""

    @abstractmethod
    async def lock_matching_jobs(self, matches: Sequence[JobMatch]) -> list[JobRow]:
        """Lock the jobs that match *matches*, in order of their numbers, and return them."""

    @abstractmethod
    async def insert_plain_jobs(
        self, jobs: Sequence[new_job.CheckedJob], seqs: Sequence[int], routing: RoutingTable, now: Now
    ) -> list[Job]:
        """Store new jobs that are plain and not recorded, and return them in order."""

    @abstractmethod
    async def insert_jobs(self, jobs: Sequence[tuple[Route, JobRow]]) -> None:
        """Store new jobs, including session entries; raise `OvertakenError` if an id or key was taken."""

    @abstractmethod
    async def job_by_key(self, key: new_job.DedupeKey) -> JobRow | None:
        """Return the unfinished job that holds a dedupe key."""

    @abstractmethod
    async def successor_by_key(self, key: new_job.DedupeKey) -> JobRow | None:
        """Return the blocked job that will hold a dedupe key next."""

    @abstractmethod
    async def kept_jobs(self, keys: Collection[new_job.DedupeKey], now: Now) -> dict[new_job.DedupeKey, JobRow]:
        """Return the jobs that keep dedupe keys for a period, in any state; of deleted jobs, identity and state."""

    @abstractmethod
    async def keep_keys(self, jobs: Sequence[tuple[Route, JobRow, int]]) -> None:
        """Keep the dedupe key of each new job until a time; raise `OvertakenError` if another job keeps one."""

    @abstractmethod
    async def delete_kept_keys(self, now: Now, limit: int) -> int:
        """Delete dedupe keys whose period has passed; return how many."""

    @abstractmethod
    async def delete_unused_holders(self, now: Now) -> int:
        """Delete the numbers of starts of workers that are no longer in use; return how many."""

    @abstractmethod
    async def update_content(self, before: JobRow, job: JobRow) -> None:
        """Write the payload, headers and tags of a job that a duplicate replaced; *before* is the stored one."""

    # --- claim ------------------------------------------------------------------------------------------------------

    @abstractmethod
    async def begin_claim(self, *, thorough: bool = False) -> tuple[RoutingTable, frozenset[PassName], Now]:
        """Return the routing, the maintenance that is due, and the clock, which every claim reads first.

        An engine may skip times up to which it found nothing due, unless *thorough*.
        """

    @abstractmethod
    async def begin_claim_of(
        self, request: ClaimRequest, *, resent: bool
    ) -> tuple[Claimer, RoutingTable, frozenset[PassName], Now]:
        """Return what the store has of a claimer before it claims, and what `begin_claim` returns.

        With *resent*, wait until an earlier send of the same claim that is still in flight has been decided.
        """

    async def expect_settlements(self, claims: Sequence[Claim], with_artifacts: Sequence[Claim]) -> None:
        """Let the next statement also read what `refresh` returns of *claims*, and `artifacts` of *with_artifacts*.

        The caller locks nothing of these jobs in between. An engine without round trips does nothing.
        """

    @abstractmethod
    async def select_ready(self, request: ReadyRequest) -> ReadyJobs | None:
        """Lock ready jobs in claim order, and lease them if the engine does both at once; None if there are none."""

    @abstractmethod
    async def lock_claim_token(self, worker: str, lease_token: str) -> None:
        """Wait until an earlier send of the same claim that is still in flight has been decided."""

    @abstractmethod
    async def jobs_held(self, worker: str, lease_token: str) -> list[JobRow]:
        """Return the running jobs of one claim, in the order they were claimed."""

    @abstractmethod
    async def last_fair_key(self, scope: str) -> str | None:
        """Return the fairness key served last in a scope."""

    @abstractmethod
    async def set_last_fair_key(self, scope: str, fair_key: str, now: Now, *, first: bool) -> None:
        """Store the fairness key served last; *first* if the scope had none."""

    @abstractmethod
    async def supersede(self, worker: str, incarnation: str, now: Now) -> None:
        """Make this start the only one of an exclusive worker."""

    @abstractmethod
    async def jobs_held_by_others(self, worker: str, incarnation: str, limit: int) -> list[JobRow]:
        """Return running jobs that other starts of a worker hold."""

    # --- maintenance ------------------------------------------------------------------------------------------------

    @abstractmethod
    async def due_jobs(self, now: Now, limit: int) -> list[JobRow]:
        """Return scheduled jobs that have become due."""

    @abstractmethod
    async def expired_jobs(self, now: Now, limit: int) -> list[JobRow]:
        """Return running jobs whose lease has expired."""

    @abstractmethod
    async def expired_jobs_of(self, worker: str, incarnation: str, now: Now, limit: int) -> list[JobRow]:
        """Return running jobs of one start of a worker whose lease has expired."""

    @abstractmethod
    async def suspect_jobs_of(self, worker: str, incarnation: str, limit: int) -> list[JobRow]:
        """Return waiting jobs that became suspect when one start of a worker held them."""

    @abstractmethod
    async def late_jobs(self, now: Now, limit: int) -> list[JobRow]:
        """Return waiting jobs that have passed their deadline."""

    @abstractmethod
    async def next_times(self) -> NextTimes:
        """Return when the next maintenance is due."""

    @abstractmethod
    async def successors(self, seqs: Sequence[int]) -> list[JobRow]:
        """Return the blocked jobs that wait for these jobs to finish."""

    # --- transitions ------------------------------------------------------------------------------------------------

    @abstractmethod
    async def apply(self, decided: Sequence[transitions.Transition], now: Now) -> None:
        """Write decided transitions, their history and their events; raise `OvertakenError` if a job changed since.

        The event of a transition is appended to the log if the job's event count has changed.
        """

    @abstractmethod
    async def write_claims(self, jobs: Sequence[JobRow]) -> None:
        """Write claims of ready jobs by one request, as `apply` does, without events."""

    @abstractmethod
    async def refresh(self, claims: Sequence[Claim]) -> dict[int, JobRow]:
        """Return the current jobs of *claims* by number; deleted jobs are missing."""

    @abstractmethod
    async def settled_attempt(self, seq: int, epoch: int) -> tuple[str, str | None] | None:
        """Return the lease token and the digest with which a stored attempt was settled."""

    @abstractmethod
    async def renew_leases(self, jobs: Sequence[JobRow]) -> None:
        """Write the lease expiry of each job."""

    @abstractmethod
    async def acknowledge(self, fences: Sequence[JobFence], now: Now) -> None:
        """Mark the claims of *fences* that are still held as started."""

    @abstractmethod
    async def clear_suspicion(self, jobs: Sequence[JobRow]) -> None:
        """Store that jobs are no longer suspect."""

    @abstractmethod
    async def update_progress(self, job: JobRow) -> None:
        """Write phase and percentage."""

    @abstractmethod
    async def update_priority(self, job: JobRow) -> None:
        """Write the priority."""

    @abstractmethod
    async def update_fair_keys(self, changes: Sequence[tuple[str, int]]) -> None:
        """Write fairness keys, each with the number of its job."""

    @abstractmethod
    async def append_events(self, events: Mapping[int, EventName], now: Now) -> None:
        """Append an event for each job, by number, in order. An event records the job's row with its event count."""

    # --- jobs -------------------------------------------------------------------------------------------------------

    @abstractmethod
    async def job_by_id(self, job_id: str) -> JobRow | None:
        """Return one job."""

    @abstractmethod
    async def jobs_by_id(self, job_ids: Sequence[str]) -> list[JobRow]:
        """Return the jobs with these ids, in any order."""

    @abstractmethod
    async def jobs_by_seq(self, seqs: Sequence[int]) -> list[JobRow]:
        """Return the jobs with these numbers, in any order."""

    @abstractmethod
    async def list_jobs(
        self,
        job_filter: results.JobFilter,
        before: JobPosition,
        limit: int,
        now: Now,
        *,
        by_finish: bool,
        floor: JobPosition = (-1, -1),
    ) -> list[JobRow]:
        """Return jobs below a position, newest first, without locking them.

        *floor* is a position where the search stops, for filters of no, one or several states without others that
        have an index.
        """

    @abstractmethod
    async def waiting_seqs(self, routes: Sequence[int], after: int, limit: int) -> list[int]:
        """Return the numbers of waiting jobs on these routes, in enqueue order, without locking them."""

    @abstractmethod
    async def count_jobs(self, by: results.CountBy, tenant: str | None) -> dict[str, int]:
        """Return the number of jobs by one property."""

    @abstractmethod
    async def tally_jobs(self, job_filter: results.JobFilter, now: Now) -> list[results.Tally]:
        """Return the number of matching jobs by lane, kind and state, in order."""

    @abstractmethod
    async def attempts(self, seq: int) -> list[AttemptRow]:
        """Return the stored attempts of a job, oldest first."""

    # --- events -----------------------------------------------------------------------------------------------------

    @abstractmethod
    async def event_horizon(self) -> EventPosition:
        """Return the position up to which events were pruned."""

    @abstractmethod
    async def events_after(self, position: EventPosition, limit: int) -> list[tuple[EventPosition, Event]]:
        """Return events after a position, in order, each with its own position."""

    @abstractmethod
    async def events_held_back(self, position: EventPosition) -> bool:
        """Return whether an open transaction may still add an event after *position*, before later visible events."""

    # --- retention --------------------------------------------------------------------------------------------------

    @abstractmethod
    async def delete_finished(
        self, state: State, after: JobPosition, before_ms: int, now: Now, limit: int
    ) -> tuple[int, JobPosition]:
        """Delete jobs that finished in *state* after a position and before a time, with all their data.

        Return how many, and the position of the last one.
        """

    @abstractmethod
    async def count_old_events(self, horizon: EventPosition, before_ms: int) -> tuple[int, bool]:
        """Return the number of events after the horizon and before a time, and whether a newer event follows."""

    @abstractmethod
    async def oldest_events(self, horizon: EventPosition, limit: int) -> list[tuple[EventPosition, int]]:
        """Return the positions and timestamps of the first events after the horizon."""

    @abstractmethod
    async def delete_events(self, horizon: EventPosition, events: Sequence[EventPosition]) -> None:
        """Delete the first events after the horizon and move the horizon to the last of them."""

    @abstractmethod
    async def forget_message_ids(self, before_ms: int, limit: int) -> int:
        """Delete message ids whose entries were deleted before a time; return how many."""

    # --- sessions ---------------------------------------------------------------------------------------------------

    @abstractmethod
    async def session_number(self, tenant: str, name: str) -> int | None:
        """Return the number of a session, without locking it."""

    @abstractmethod
    async def session_by_name(self, tenant: str, name: str) -> Session | None:
        """Return one session."""

    @abstractmethod
    async def sessions_page(self, tenant: str | None, after: SessionName, limit: int) -> list[Session]:
        """Return sessions after one, by tenant and name, without locking them; all tenants if *tenant* is None."""

    @abstractmethod
    async def sessions_by_name(self, names: Collection[SessionName]) -> list[Session]:
        """Return these sessions, locked in order of their numbers."""

    @abstractmethod
    async def sessions_by_number(self, numbers: Sequence[int]) -> list[Session]:
        """Return these sessions, locked in order of their numbers."""

    @abstractmethod
    async def create_session(self, tenant: str, name: str) -> None:
        """Store a session unless it exists."""

    @abstractmethod
    async def free_sessions(self, numbers: Sequence[int]) -> set[int]:
        """Lock the sessions among these that no other transaction has locked, and return their numbers."""

    @abstractmethod
    async def pick_session(self, numbers: Sequence[int]) -> Session | None:
        """Lock and return the first of these sessions that no other transaction has locked."""

    @abstractmethod
    async def session_line(self, session: int, after: int, limit: int) -> list[LineRow]:
        """Return entries of a session's line in enqueue order, without locking them."""

    @abstractmethod
    async def session_fronts(self, sessions: Sequence[int]) -> dict[int, SessionFront]:
        """Return the front of each session by number; sessions with an empty line are missing."""

    @abstractmethod
    async def session_running(self, session: int) -> list[JobRow]:
        """Return the running entries of a session."""

    @abstractmethod
    async def session_running_seqs(self, session: int) -> set[int]:
        """Return the numbers of the running entries of a session, without locking them."""

    @abstractmethod
    async def session_waiting(self, session: int, after: int, limit: int) -> list[int]:
        """Return the numbers of the waiting entries of a session, without locking them."""

    @abstractmethod
    async def session_due(self, session: int, now: Now, limit: int) -> list[JobRow]:
        """Return the scheduled entries of a session that have become due."""

    @abstractmethod
    async def session_expired(self, session: int, now: Now, limit: int) -> list[JobRow]:
        """Return the running entries of a session whose lease has expired."""

    @abstractmethod
    async def take_entries(self, seqs: Sequence[int]) -> list[JobRow]:
        """Lock the entries among these that no other transaction has locked, and return them."""

    @abstractmethod
    async def expired_sessions(self, now: Now, limit: int) -> list[Session]:
        """Return sessions whose owner's lease has expired."""

    @abstractmethod
    async def next_session_expiry(self) -> int | None:
        """Return when the next session lease expires."""

    @abstractmethod
    async def session_heads(
        self, prefixes: Sequence[tuple[int, str]], fair_key: str, limit: int
    ) -> list[tuple[int, int]]:
        """Return job and session number of the first heads of each (route, entry type) of one fairness key."""

    @abstractmethod
    async def session_heads_of_tenant(
        self, prefixes: Sequence[tuple[int, str]], tenant: str, limit: int
    ) -> list[tuple[int, int]]:
        """Return the same for one tenant in strictly ordered lanes."""

    @abstractmethod
    async def next_session_fair_keys(self, prefixes: Sequence[tuple[int, str]], last: str) -> set[str]:
        """Return the fairness keys with heads that follow *last*."""

    @abstractmethod
    async def write_session_lengths(self, lengths: Sequence[tuple[int, int]]) -> None:
        """Write the position of the newest entry of each session."""

    @abstractmethod
    async def write_session_heads(self, heads: Sequence[tuple[Head, int]]) -> None:
        """Write the head that each session offers."""

    @abstractmethod
    async def write_session_lease(self, session: Session) -> None:
        """Write the lease of a session's owner."""

    @abstractmethod
    async def write_session_claim(self, session: Session) -> None:
        """Write the newest claim of a session."""

    @abstractmethod
    async def message_ids_seen(self, session: int, message_ids: Sequence[str]) -> list[MessageIdRow]:
        """Return the stored records of these message ids of a session."""

    @abstractmethod
    async def jobs_seen(self, seqs: Sequence[int]) -> list[JobRow]:
        """Return jobs without locking them."""

    @abstractmethod
    async def insert_message_ids(self, entries: Sequence[tuple[JobRow, int]]) -> None:
        """Store the message ids of new entries, each with its route number."""

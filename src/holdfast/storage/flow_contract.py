"""The part of the storage contract for flow control: wake rows, schedules, dependencies and groups."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from holdfast.domain.clock import Now
from holdfast.domain.dependencies import OnFailed
from holdfast.domain.groups import StoredGroup
from holdfast.domain.job import JobRow, State
from holdfast.domain.schedules import StoredSchedule

WakeTarget: TypeAlias = Literal["schedule", "child", "parent", "group", "gate", "requeue", "lanes"]
"""What a wake row asks to look at: a schedule, a job that depends on others, one on which others depend, a group,
a gate, a requeued job whose cancelled children are brought back, the target ages of lanes."""


class Wake(NamedTuple):
    """A wake row that is due."""

    wake: int
    target: WakeTarget
    number: int


class JobState(NamedTuple):
    """The id and the state of a job."""

    id: str
    state: State


class Edge(NamedTuple):
    """A dependency whose parent's end was not counted. A group is a child, and a parent, by its number times -1."""

    child: int
    parent: int
    on_failed: OnFailed


class FlowTransaction(ABC):
    """Methods of an open transaction that concern flow control."""

    __slots__ = ()

    @abstractmethod
    async def due_wakes(self, now: Now, limit: int) -> list[Wake]:
        """Return wake rows that are due; those that another transaction folds are skipped."""

    @abstractmethod
    async def add_wake(self, target: WakeTarget, number: int, at_ms: int) -> None:
        """Append a wake row."""

    @abstractmethod
    async def delete_wakes(self, wakes: Sequence[int]) -> None:
        """Delete wake rows that were folded."""

    @abstractmethod
    async def move_wakes(self, wakes: Sequence[int], at_ms: int) -> None:
        """Make wake rows due at another time."""

    @abstractmethod
    async def delete_wakes_of(self, target: WakeTarget, number: int) -> None:
        """Delete all wake rows of one target."""

    @abstractmethod
    async def add_wakes(self, target: WakeTarget, numbers: Sequence[int]) -> None:
        """Append wake rows that ask to look at once, whatever the clock says later."""

    @abstractmethod
    async def look_at_later_wakes(self, now: Now) -> None:
        """Let claims look at once at the targets of wake rows that are not yet due, except schedules."""

    @abstractmethod
    async def noted_time(self) -> int:
        """Return the wall clock time that was noted last."""

    @abstractmethod
    async def note_time(self, now: Now) -> None:
        """Note the time."""

    @abstractmethod
    async def wake_awaited(self, seqs: Sequence[int]) -> None:
        """Append a wake row for each of these jobs, which have ended, that others wait for."""

    @abstractmethod
    async def use_edges(self) -> None:
        """Record that the store has dependencies. Call it before the routing is read."""

    @abstractmethod
    async def use_limits(self) -> None:
        """Record that the store has limits, and that they have changed. Call it under the lock of the routing."""

    @abstractmethod
    async def jobs_named(self, ids: Sequence[str]) -> dict[str, tuple[int, str]]:
        """Return the numbers and tenants of jobs by id; retention keeps finished ones until the transaction ends."""

    @abstractmethod
    async def insert_edges(self, edges: Sequence[tuple[int, int, int, OnFailed]]) -> None:
        """Store dependencies: child, parent, the place of the parent, and what its failure does."""

    @abstractmethod
    async def await_jobs(self, seqs: Sequence[int]) -> None:
        """Record that others wait for these jobs, which this transaction has locked or stored."""

    @abstractmethod
    async def dependent_jobs(self, seqs: Sequence[int]) -> list[JobRow]:
        """Lock and return those of these jobs that are dependent; those that others have locked are skipped."""

    @abstractmethod
    async def states_of(self, seqs: Sequence[int]) -> dict[int, JobState]:
        """Return the states of jobs by number, without locking them; deleted jobs are missing."""

    @abstractmethod
    async def unlocked_states(self, seqs: Sequence[int]) -> dict[int, JobState]:
        """Lock jobs and return their states by number; those that others have locked are skipped."""

    @abstractmethod
    async def edges_of_children(self, seqs: Sequence[int]) -> list[Edge]:
        """Return the dependencies of these jobs on jobs whose ends were not counted."""

    @abstractmethod
    async def edges_of_parents(self, seqs: Sequence[int], limit: int) -> list[Edge]:
        """Return dependencies on these jobs whose ends were not counted."""

    @abstractmethod
    async def end_edges(self, ended: Sequence[tuple[State, Edge]]) -> None:
        """Record that the ends of parents were counted."""

    @abstractmethod
    async def pending_children(self, seqs: Sequence[int]) -> set[int]:
        """Return those of these jobs that depend on a job whose end was not counted."""

    @abstractmethod
    async def parents_of(self, seq: int) -> list[JobRow]:
        """Return the jobs on which a job depends, in the given order, without locking them."""

    @abstractmethod
    async def late_lanes(self) -> set[str]:
        """Return the lanes that are late, as the last look has found."""

    @abstractmethod
    async def set_late(self, lane: str, *, late: bool) -> None:
        """Record whether a lane is late."""

    @abstractmethod
    async def oldest_on_routes(
        self, routes: Sequence[int], priorities: int, fair_keys: int
    ) -> tuple[int, int] | None:
        """Return number and due time of the oldest ready job on routes, among so many priorities and fair_keys."""

    @abstractmethod
    async def count_waiting(self, routes: Sequence[int], tenant: str, priorities: int, maximum: int) -> int:
        """Return how many jobs of *tenant* are ready or parked on these routes, up to *maximum*.

        Of each route the highest *priorities* are counted.
        """

    @abstractmethod
    async def unfinished_of_tree(self, root: str, after: int, limit: int) -> list[int]:
        """Return unfinished jobs of a tree besides its first, in order, after one of them, without locking them."""

    @abstractmethod
    async def cancelled_children(self, seqs: Sequence[int], limit: int) -> list[int]:
        """Return jobs that were cancelled because of these, and of no others that are not done yet, without locks."""

    @abstractmethod
    async def reopen_edges(self, children: Sequence[int]) -> None:
        """Record that the ends of the parents that were not done were not counted for these children."""

    @abstractmethod
    async def ready_before(self, job: JobRow, routes: Sequence[int], maximum: int) -> int:
        """Return how many ready jobs of these routes are claimed before a ready job, counted up to a maximum."""

    @abstractmethod
    async def waiting_tenants(self, route: int, priority: int, maximum: int) -> int:
        """Return how many tenants have ready jobs of a route and priority, counted up to a maximum."""

    @abstractmethod
    async def entries_before(self, session: int, enqueue_seq: int, maximum: int) -> int:
        """Return how many unfinished entries of a session are before one of them, counted up to a maximum."""

    @abstractmethod
    async def recent_durations(self, route: int, limit: int) -> list[int]:
        """Return how many milliseconds jobs of a route have run that finished last."""

    @abstractmethod
    async def is_wake_due(self, now: Now) -> bool:
        """Return whether a wake row is due."""

    @abstractmethod
    async def group_by_name(self, tenant: str, name: str) -> StoredGroup | None:
        """Lock and return a group."""

    @abstractmethod
    async def group_of_name(self, tenant: str, name: str) -> StoredGroup | None:
        """Return a group without locking it."""

    @abstractmethod
    async def newest_groups(self, tenant: str | None, limit: int) -> list[StoredGroup]:
        """Return groups, newest first, without locking them; of any tenant if it is None."""

    @abstractmethod
    async def groups_to_fold(self, numbers: Sequence[int]) -> list[StoredGroup]:
        """Lock and return groups; those that others have locked are skipped."""

    @abstractmethod
    async def existing_groups(self, numbers: Sequence[int]) -> set[int]:
        """Return those of these groups that exist."""

    @abstractmethod
    async def groups_of_member(self, seq: int) -> list[StoredGroup]:
        """Lock and return the groups of a job that have not ended."""

    @abstractmethod
    async def insert_group(self, stored: StoredGroup) -> int | None:
        """Store a new group and return its number; None if there is one of its name."""

    @abstractmethod
    async def write_group(self, stored: StoredGroup) -> None:
        """Store a changed group."""

    @abstractmethod
    async def delete_groups(self, before_ms: int, limit: int) -> None:
        """Delete groups that ended before a time and of which no member and no callback is left."""

    @abstractmethod
    async def insert_members(self, number: int, seqs: Sequence[int], place: int) -> list[int]:
        """Make jobs members of a group, from this place on; return those that were not."""

    @abstractmethod
    async def unfinished_members(self, number: int, after: int, limit: int) -> list[int]:
        """Return members of a group whose ends were not counted, in order, after one of them."""

    @abstractmethod
    async def end_members(self, number: int, seqs: Sequence[int], state: State) -> int:
        """Record that members of a group have ended in a state; return how many were not counted before."""

    @abstractmethod
    async def reopen_members(self, seq: int, numbers: Sequence[int]) -> list[int]:
        """Record that a member of these groups has not ended; return the groups that had counted its end."""

    @abstractmethod
    async def insert_schedule(self, stored: StoredSchedule) -> int | None:
        """Store a new schedule and return its number; None if there is one of its name."""

    @abstractmethod
    async def write_schedule(self, stored: StoredSchedule) -> None:
        """Store a changed schedule."""

    @abstractmethod
    async def delete_schedule(self, number: int) -> None:
        """Delete a schedule."""

    @abstractmethod
    async def schedule_by_name(self, tenant: str, name: str) -> StoredSchedule | None:
        """Return one schedule."""

    @abstractmethod
    async def schedules(self, tenant: str | None, limit: int) -> list[StoredSchedule]:
        """Return schedules in order of tenant and name, without locking them; of any tenant if it is None."""

    @abstractmethod
    async def schedules_to_fire(self, numbers: Sequence[int]) -> list[StoredSchedule]:
        """Return those of these schedules that are not paused; those that another transaction changes are skipped."""

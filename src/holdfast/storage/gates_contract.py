"""The part of the storage contract for limits by key."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from holdfast.domain.clock import Now
from holdfast.domain.gates import Gate, LimitRow, Rescaling, WaitingGate
from holdfast.domain.job import JobRow

GateKey = tuple[int, str]
"""The number of a limit and a key."""


class GateUse(NamedTuple):
    """How many jobs hold a permit of a gate, and whether any is parked at it."""

    running: int
    has_parked: bool


class JobAtGate(NamedTuple):
    """The gate that a job names, and the key and the weight that it was given."""

    gate: int | None
    given: str | None
    weight: int | None


class ParkedJob(NamedTuple):
    """What decides the order of a parked job."""

    seq: int
    priority: int
    fair_key: str
    due_at_ms: int


class GatesTransaction(ABC):
    """Methods of an open transaction that concern limits by key."""

    __slots__ = ()

    @abstractmethod
    async def insert_limit(self, limit: LimitRow) -> int:
        """Store a limit and return its number. Call it, and the next two, under the lock of the routing."""

    @abstractmethod
    async def write_limit(self, limit: LimitRow) -> None:
        """Store the changed numbers of a limit."""

    @abstractmethod
    async def delete_limit(self, number: int) -> None:
        """Delete a limit; its gates stay."""

    @abstractmethod
    async def gate_numbers(self, keys: Collection[GateKey]) -> dict[GateKey, int]:
        """Return the numbers of gates; missing ones are made."""

    @abstractmethod
    async def lock_gates(self, gates: Collection[int], wait_ms: int) -> dict[int, Gate]:
        """Lock gates and return them by number; those that others keep locked for *wait_ms* are missing."""

    @abstractmethod
    async def gate_uses(self, gates: Collection[int]) -> dict[int, GateUse]:
        """Return the use of gates by number. Lock them first."""

    @abstractmethod
    async def ending_gates(self, counted: Mapping[int, int]) -> set[int]:
        """Return those of these gates, with the running jobs that were *counted*, of which jobs may be ending unseen.

        What ends at the others sees the jobs that this transaction parks.
        """

    @abstractmethod
    async def gates_of_key(self, key: str) -> list[Gate]:
        """Return the gates of a key, without locking them."""

    @abstractmethod
    async def waiting_gates(self, now: Now, gates: int, maximum: int) -> list[WaitingGate]:
        """Return those of so many newest gates that are closed or have parked jobs, counted up to *maximum*."""

    @abstractmethod
    async def close_gate(self, key: GateKey, until_ms: int) -> None:
        """Close a gate until a time, unless it is closed for longer; it is made if it is missing."""

    @abstractmethod
    async def write_gate(self, gate: Gate) -> None:
        """Store what a gate keeps in mind."""

    @abstractmethod
    async def delete_gates(self, gates: Collection[int]) -> None:
        """Delete gates, which are locked."""

    @abstractmethod
    async def existing_gates(self, gates: Collection[int]) -> set[int]:
        """Return those of these gates that exist, without locking them."""

    @abstractmethod
    async def stalled_gates(self, limit: int) -> list[int]:
        """Return gates where jobs wait that nothing would look at again: a defect, or rows changed by hand."""

    @abstractmethod
    async def idle_gates(self, now: Now, limit: int) -> list[int]:
        """Return gates that no job names and that keep nothing in mind; locked ones are skipped."""

    @abstractmethod
    async def jobs_at_gates(self, seqs: Sequence[int]) -> dict[int, JobAtGate]:
        """Return the gates, given keys and given weights of jobs by number."""

    @abstractmethod
    async def set_gates(self, gates: Sequence[tuple[int | None, int]]) -> None:
        """Write the gates of jobs: gate and number of each job."""

    @abstractmethod
    async def write_gated_claims(self, jobs: Sequence[tuple[JobRow, int | None]]) -> None:
        """Write claims of ready jobs with their gates."""

    @abstractmethod
    async def insert_limit_keys(self, keys: Sequence[tuple[int, str | None, int | None]]) -> None:
        """Store the keys and weights that jobs were given, by number."""

    @abstractmethod
    async def delete_limit_keys(self, seqs: Sequence[int]) -> None:
        """Delete the keys and weights that jobs were given."""

    @abstractmethod
    async def parked_routes(self, gate: int) -> list[int]:
        """Return the routes of jobs that are parked at a gate."""

    @abstractmethod
    async def parked_turns(
        self, gate: int, route: int, below: int, first_fair_key: str, limit: int
    ) -> list[ParkedJob]:
        """Return the first parked jobs of a route with the highest priority below another, some of each fair_key."""

    @abstractmethod
    async def parked_jobs(self, seqs: Sequence[int]) -> list[JobRow]:
        """Lock and return those of these jobs that are parked; those that others have locked are skipped."""

    @abstractmethod
    async def count_offered(self, gate: int, route: int, limit: int) -> int:
        """Return how many ready jobs of a route name a gate, up to a maximum."""

    @abstractmethod
    async def offered_jobs(self, gate: int, route: int, limit: int) -> list[JobRow]:
        """Return ready jobs of a route that name a gate, without locking them."""

    @abstractmethod
    async def add_usages(self, used: Sequence[tuple[int, str, int]]) -> set[int]:
        """Record how much more than their weight jobs have used, by limit and key; return the gates."""

    @abstractmethod
    async def take_usages(self, gates: Collection[int]) -> dict[int, int]:
        """Delete what was recorded for gates, which are locked, and return the sums."""

    @abstractmethod
    async def count_parked(self, gate: int, limit: int) -> int:
        """Return how many jobs are parked at a gate, up to a maximum."""

    @abstractmethod
    async def running_on_routes(self, routes: Sequence[int], after: int, limit: int, wait_ms: int) -> list[JobRow]:
        """Lock and return running jobs on routes, after a number.

        Those that others have locked for longer than *wait_ms* are skipped.
        """

    @abstractmethod
    async def uncounted_jobs(self, routes: Sequence[int], after: int, limit: int) -> list[JobRow]:
        """Lock and return running jobs on routes, after a number, that no gate counts; locked ones are skipped."""

    @abstractmethod
    async def shift_gates(self, number: int, above_us: int, by_us: int) -> None:
        """Move the times up to which gates of a limit are used up back, where they are later than *above_us*."""

    @abstractmethod
    async def wake_gates(self, seqs: Sequence[int]) -> None:
        """Append wake rows of the gates that these jobs name."""

    @abstractmethod
    async def rescale_gates(self, number: int, rescaling: Rescaling, now: Now) -> None:
        """Write how far starts have used up the rate of a limit that has changed, for all its gates."""

    @abstractmethod
    async def wake_gates_of_limit(self, number: int) -> None:
        """Append wake rows of all gates of a limit."""

"""What the shared scripts need to know of the engine that runs them, and what the client needs of a store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

from holdfast.domain.admission import Admission
from holdfast.domain.claim import Claim, ClaimRequest
from holdfast.domain.clock import Now
from holdfast.domain.job import Job
from holdfast.domain.lane import Catalog, Route
from holdfast.domain.lifecycle import Step
from holdfast.domain.ordering import Preference
from holdfast.domain.outcome import CheckedOutcome
from holdfast.domain.records import Finding
from holdfast.stores.script import Brief, Read, Script, Write
from holdfast.stores.signals import Hub

T = TypeVar("T")


class Wanted(NamedTuple):
    """What one look for ready jobs is after."""

    request: ClaimRequest
    preference: Preference
    routes: list[Route]
    limit: int
    place: int
    """The place of the first job in its batch."""
    loud: frozenset[str]
    """The lanes in which a claim is recorded as an event."""


class Selection(NamedTuple):
    """Jobs chosen to be claimed, and the round in which they took their turn."""

    jobs: list[Job]
    turn_scope: str | None
    """None where a single tenant was asked for, so that there is no turn to take."""
    last_turn: str | None
    leased_at: Now | None = None
    """When they were leased, by an engine that does so as it locks them; else they are still ready."""


class Moments(Protocol):
    """Until when nothing was due, lapsed or overdue, for an engine to which the past is dear to look at again."""

    def lows(self, *, whole: bool) -> dict[str, int]:
        """Return from where on to look, as values of the statement."""
        ...

    def looked(self, now: Now, *, whole: bool, found: bool) -> None:
        """Remember what a look has found."""
        ...


@dataclass(slots=True)
class Engine:
    """The engine's own way of doing what has no best way in common, and a memory of the catalog."""

    select_ready: Callable[[Wanted], Script[Selection | None]]
    """Choose and lock ready jobs, in the order of claiming, and lease them if that is one with it; None if there are
    none."""
    examine: Callable[[], Script[list[Finding]]]
    """Return what the doctor finds of the engine itself."""
    succeed_held: Callable[[Sequence[tuple[Claim, CheckedOutcome]], Now], Script[dict[int, Step]]] | None = None
    """End the jobs whose lease holds as done, with their events, in one statement, for an engine that gains by it;
    return the steps by number. Those that are missing are settled as on every engine."""
    brief_enqueue: Callable[[Admission, Catalog], Brief | None] | None = None
    """Return the storing of one job as one statement, for an engine that gains by it; None for all but plain jobs."""
    moments: Moments | None = None
    catalog: Catalog | None = field(default=None)
    """The newest catalog read. Its version is unique, so that one read in a doomed transaction does no harm."""


class Runner(Protocol):
    """Runs the transactions of a procedure in the caller's thread."""

    @property
    def hub(self) -> Hub:
        """Where to listen for what is committed."""
        ...

    def run(self, step: Read[T] | Write[T]) -> T:
        """Run one script in one transaction and return its result once that has committed."""
        ...


class AsyncRunner(Protocol):
    """Runs the transactions of a procedure without blocking the event loop."""

    @property
    def hub(self) -> Hub:
        """Where to listen for what is committed."""
        ...

    async def run_async(self, step: Read[T] | Write[T]) -> T:
        """Run one script in one transaction and return its result once that has committed."""
        ...


class Joined(Runner, AsyncRunner, Protocol):
    """A transaction that is already open: scripts join it, each in a savepoint of its own."""

    def execute(self, sql: str, values: Any = ()) -> list[Any]:
        """Run the caller's own SQL in the transaction and return the rows."""
        ...

    async def execute_async(self, sql: str, values: Any = ()) -> list[Any]:
        """Run the caller's own SQL in the transaction and return the rows."""
        ...


class Store(Runner, AsyncRunner, Protocol):
    """One database, opened lazily, safe to share between threads and tasks."""

    engine: Engine

    def transaction(self) -> AbstractContextManager[Joined]:
        """Open a write transaction that commits at the end of the block, or rolls back if it raises."""
        ...

    def transaction_async(self) -> AbstractAsyncContextManager[Joined]:
        """Open a write transaction that commits at the end of the block, or rolls back if it raises."""
        ...

    def within(self, connection: Any) -> Joined:
        """Join the write transaction open on the caller's own connection."""
        ...

    def twin(self) -> Store:
        """Return another store on the same database with connections of its own; one in memory has no other."""
        ...

    def address(self) -> dict[str, Any] | None:
        """Return, as JSON, what another process opens the same database by; none if no other can."""
        ...

    def description(self) -> str:
        """Return where the database is, for people: a file's path, or host and database; never a password."""
        ...

    def interrupt(self) -> None:
        """Make calls of threads that wait for a server raise `Unavailable`; other calls go on."""
        ...

    async def interrupt_async(self) -> None:
        """Make calls in this event loop that wait for a server raise `Unavailable`, unless they end soon."""
        ...

    def migrate(self) -> list[str]:
        """Bring the schema up to date and return the migrations applied."""
        ...

    def close(self) -> None:
        """Let go of the database. A store that is used again opens again."""
        ...

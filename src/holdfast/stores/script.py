"""Scripts: store operations as generators that yield what they need and receive the answers.

A script has no colour and knows no driver. It yields a `Statement` and gets rows, `NOW` and gets the store's clock,
`CHANCE` and gets a random fraction; it yields a `Signal` to have somebody woken once its transaction has committed.
The same script is run by a blocking driver, by an awaiting one, on the caller's own connection, or by a test that
crashes before statement *n*.

A `Procedure` is one level up: it yields whole transactions (`Read`, `Write`) and pauses, for operations that take
several. Every method of the queue is a procedure.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar, cast

from holdfast.domain.clock import Now

T = TypeVar("T")

Row: TypeAlias = tuple[Any, ...]
Rows: TypeAlias = list[Row]


class Statement(NamedTuple):
    """One named statement of the engine's SQL with its values; a list stands for many, a dict for many pairs.

    With `many`, the statement is run once for each row of values. One that reads nothing answers with one row: how
    many rows it changed.
    """

    name: str
    values: dict[str, Any] = {}  # noqa: RUF012  # a NamedTuple's defaults are shared, and this one is never written
    many: Sequence[Row] | None = None


class _Ask:
    """A request that carries nothing but what it is."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


NOW: Final = _Ask("NOW")
"""Answered with the store's clock, a `Now`. Yield it after the rows it judges have been locked."""
CHANCE: Final = _Ask("CHANCE")
"""Answered with a random fraction from 0 to 1."""


class Signal(NamedTuple):
    """Wake whoever listens to one of *topics*, once and only if the transaction has committed."""

    topics: Sequence[str]


Request: TypeAlias = Statement | _Ask | Signal
Script: TypeAlias = Generator[Request, Any, T]


class OvertakenError(RuntimeError):
    """Fewer rows changed than were decided upon.

    Where many write at once, somebody was quicker: the script is run again from its beginning. With a single writer
    it can only be a defect.
    """


def now() -> Script[Now]:
    """Read the store's clock."""
    return cast(Now, (yield NOW))


def chance() -> Script[float]:
    """Draw a random fraction from 0 to 1."""
    return cast(float, (yield CHANCE))


@dataclass(frozen=True, slots=True)
class Read(Generic[T]):
    """Run a script on one consistent view of the store, without the right to write."""

    script: Callable[[], Script[T]]


class Brief(NamedTuple):
    """A whole transaction as one statement, for an engine to which each question costs a trip to its server."""

    statement: Statement
    finish: Callable[[Rows], Any]
    """Return the result by what the statement answered; None if it did nothing and the script has to be run."""
    again: Callable[[], Script[Any]]
    """What to run instead where it is not known whether the statement has been committed."""
    topics: Sequence[str]
    """Whom to wake."""


@dataclass(frozen=True, slots=True)
class Write(Generic[T]):
    """Run a script in one write transaction, all or nothing.

    It is a function rather than a generator so that it can be started again from its beginning.
    """

    script: Callable[[], Script[T]]
    brief: Callable[[], Brief | None] | None = None
    """The same as one statement, where the engine has one and this call can go that way."""
    undo: Callable[[T], Script[None] | None] | None = None
    """Return the script that gives back what the result leased, or None if it leased nothing.

    The driver runs it if the caller is cancelled or interrupted before it has the result.
    """


@dataclass(frozen=True, slots=True)
class Listen:
    """Start to listen to a topic, so that no signal from here on is missed; lasts until the procedure ends."""

    topic: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait for a signal on what was listened to, *seconds* at most; answered with the seconds that went by."""

    seconds: float


Step: TypeAlias = Read[Any] | Write[Any] | Listen | Pause
Procedure: TypeAlias = Generator[Step, Any, T]


def read(script: Callable[[], Script[T]]) -> Procedure[T]:
    """Run one script on one consistent view."""
    return cast(T, (yield Read(script)))


def write(
    script: Callable[[], Script[T]],
    brief: Callable[[], Brief | None] | None = None,
    undo: Callable[[T], Script[None] | None] | None = None,
) -> Procedure[T]:
    """Run one script in one write transaction, or as one statement where the engine can."""
    return cast(T, (yield Write(script, brief, undo)))


def job_topic(job_id: str) -> str:
    """Return the topic signalled when the job has finished."""
    return f"job:{job_id}"


def lane_topic(lane: str) -> str:
    """Return the topic signalled when the lane may have something to claim."""
    return f"lane:{lane}"


def sessions_topic(lane: str) -> str:
    """Return the topic signalled when a session may have something to claim in the lane."""
    return f"sessions:{lane}"


def session_topic(tenant: str, session: str) -> str:
    """Return the topic signalled when this session may have something to claim."""
    return f"session:{tenant}/{session}"


def worker_topic(worker: str) -> str:
    """Return the topic signalled when somebody asks for a job that the worker holds to be cancelled."""
    return f"worker:{worker}"

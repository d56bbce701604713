"""What the handler of a session task sees of its turn: a `Context` of the whole claim, with checkpoints.

Two classes, because a checkpoint reaches the store: one that blocks and one that is awaited. All else is the same.
"""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

from holdfast.domain.errors import Misconfigured
from holdfast.domain.job import Job
from holdfast.domain.session_leases import SessionClaim
from holdfast.domain.sessions import WorkClass
from holdfast.tasks.context import Context

M = TypeVar("M")


class TakesMore(Protocol):
    """What a worker gives a turn so that it can take in more, in both colours."""

    def take(self) -> list[Any]:
        """Return the messages that joined just now."""
        ...

    async def take_async(self) -> list[Any]:
        """Return the messages that joined just now."""
        ...


class BaseSessionContext(Context):
    """One turn as its handler sees it: what it writes through `Context` belongs to the first entry."""

    __slots__ = ("_takes_more", "_turn")

    def __init__(self, turn: SessionClaim) -> None:
        super().__init__(turn.claims[0])
        self._turn = turn
        self._takes_more: TakesMore | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of session {self.session!r}, {len(self.entries)} entries>"

    @property
    def turn(self) -> SessionClaim:
        """The claim as it stands now, with all that was taken in."""
        return self._turn

    @property
    def session(self) -> str:
        """The session whose turn it is."""
        return self._turn.session

    @property
    def tenant(self) -> str:
        """Whose session it is."""
        return self._turn.tenant

    @property
    def work_class(self) -> WorkClass:
        """`turn`, or `command`."""
        return self._turn.work_class

    @property
    def fencing_token(self) -> int:
        """Larger than that of every turn of this session before. Write it beside your own data."""
        return self._turn.fencing_token

    @property
    def entries(self) -> tuple[Job, ...]:
        """The entries of this turn as they were claimed, in order, with those that were taken in."""
        return self._turn.entries

    def take_in(self, more: SessionClaim) -> None:
        """Let the turn have *more* entries, for the worker to call."""
        with self._lock:
            self._turn = self._turn.joined(more)

    def _about(self) -> dict[str, object]:
        return {**super()._about(), "session": self.session}

    def _checkpoints(self) -> TakesMore:
        if self._takes_more is None:
            raise Misconfigured("a checkpoint can be made only in a handler that a worker runs")
        return self._takes_more


class SessionContext(BaseSessionContext, Generic[M]):
    """One turn as a handler that blocks sees it; *M* is what a message is to it."""

    __slots__ = ()

    def checkpoint(self) -> list[M]:
        """Take in what has come meanwhile and may join the running turn; return its messages, perhaps none.

        Raises `Cancelled` if the handler shall stop.
        """
        return self._checkpoints().take()


class AsyncSessionContext(BaseSessionContext, Generic[M]):
    """One turn as a handler that is awaited sees it; *M* is what a message is to it."""

    __slots__ = ()

    async def checkpoint(self) -> list[M]:
        """Take in what has come meanwhile and may join the running turn; return its messages, perhaps none.

        Raises `Cancelled` if the handler shall stop.
        """
        return await self._checkpoints().take_async()

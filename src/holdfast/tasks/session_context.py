"""The context of a session task's handler: a `Context` of the whole turn, with checkpoints.

There is a sync and an async class, because a checkpoint calls the store. They are otherwise the same.
"""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

from holdfast.domain.errors import Misconfigured
from holdfast.domain.job import Job
from holdfast.domain.session_claims import SessionClaim
from holdfast.domain.sessions import EntryType
from holdfast.tasks.context import Context

M = TypeVar("M")


class CheckpointSource(Protocol):
    """Claims more entries for a running turn, sync and async; provided by the worker."""

    def claim(self) -> list[Any]:
        """Claim waiting entries for the turn; return their messages."""
        ...

    async def claim_async(self) -> list[Any]:
        """Claim waiting entries for the turn; return their messages."""
        ...


class BaseSessionContext(Context):
    """Base class of session contexts; progress and the id of `Context` are those of the first entry."""

    __slots__ = ("_checkpoint_source", "_turn")

    def __init__(self, turn: SessionClaim) -> None:
        super().__init__(turn.claims[0])
        self._turn = turn
        self._checkpoint_source: CheckpointSource | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of session {self.session!r}, {len(self.entries)} entries>"

    @property
    def turn(self) -> SessionClaim:
        """The claim, including entries added at checkpoints."""
        return self._turn

    @property
    def session(self) -> str:
        """The name of the session."""
        return self._turn.session

    @property
    def tenant(self) -> str:
        """The tenant of the session."""
        return self._turn.tenant

    @property
    def entry_type(self) -> EntryType:
        """`message`, or `command`."""
        return self._turn.entry_type

    @property
    def fencing_token(self) -> int:
        """The fencing token, larger than in every earlier turn of this session. Store it with your own data."""
        return self._turn.fencing_token

    @property
    def entries(self) -> tuple[Job, ...]:
        """The entries of this turn as they were claimed, in order, including those added at checkpoints."""
        return self._turn.entries

    def add_entries(self, more: SessionClaim) -> None:
        """Add the entries of *more* to the turn. For internal use."""
        with self._lock:
            self._turn = self._turn.joined(more)

    def _log_fields(self) -> dict[str, object]:
        return {**super()._log_fields(), "session": self.session}

    def _checkpoints(self) -> CheckpointSource:
        if self._checkpoint_source is None:
            raise Misconfigured("checkpoint() is available only in a handler that a worker runs")
        return self._checkpoint_source


class SessionContext(BaseSessionContext, Generic[M]):
    """The context of a sync session handler: a `Context` of the whole turn. *M* is the type of a message."""

    __slots__ = ()

    def checkpoint(self) -> list[M]:
        """Add entries that arrived since the turn began and may join it; return their messages, perhaps none.

        Raises `Cancelled` if the handler should stop.
        """
        return self._checkpoints().claim()


class AsyncSessionContext(BaseSessionContext, Generic[M]):
    """The context of an async session handler: a `Context` of the whole turn. *M* is the type of a message."""

    __slots__ = ()

    async def checkpoint(self) -> list[M]:
        """Add entries that arrived since the turn began and may join it; return their messages, perhaps none.

        Raises `Cancelled` if the handler should stop.
        """
        return await self._checkpoints().claim_async()

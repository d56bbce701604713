"""The context of a session task's handler: a `Context` of the whole turn, with checkpoints.

There is a sync and an async class, because a checkpoint calls the store. They are otherwise the same.
"""

from __future__ import annotations

from typing import Generic, TypeVar, cast

from holdfast.domain import errors
from holdfast.domain.job import Job
from holdfast.domain.session_claims import SessionClaim
from holdfast.domain.sessions import EntryType
from holdfast.tasks.context import Context
from holdfast.tasks.handler_state import CheckpointSource, TurnState

M = TypeVar("M")


class BaseSessionContext(Context):
    """Base class of session contexts; progress and the id of `Context` are those of the first entry."""

    __slots__ = ()

    _state: TurnState

    def __init__(self, turn: SessionClaim) -> None:
        self._state = TurnState(turn)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of session {self.session!r}, {len(self.entries)} entries>"

    @property
    def turn(self) -> SessionClaim:
        """The claim, including entries added at checkpoints."""
        return self._state.turn

    @property
    def session(self) -> str:
        """The name of the session."""
        return self._state.turn.session

    @property
    def tenant(self) -> str:
        """The tenant of the session."""
        return self._state.turn.tenant

    @property
    def entry_type(self) -> EntryType:
        """The type of the entries: `message` or `command`."""
        return self._state.turn.entry_type

    @property
    def fencing_token(self) -> int:
        """The fencing token, larger than in every earlier turn of this session. Store it with your own data."""
        return self._state.turn.fencing_token

    @property
    def entries(self) -> tuple[Job, ...]:
        """The entries of this turn as they were claimed, in order, including those added at checkpoints."""
        return self._state.turn.entries

    def _checkpoints(self) -> CheckpointSource:
        if self._state.checkpoints is None:
            raise errors.Misconfigured("checkpoint() is available only in a handler that a worker runs")
        return self._state.checkpoints


class SessionContext(BaseSessionContext, Generic[M]):
    """The context of a sync session handler: a `Context` of the whole turn. *M* is the type of a message.

    A worker passes it to the handler. A test of a handler can create one from a claim.
    """

    __slots__ = ()

    def checkpoint(self) -> list[M]:
        """Add entries that arrived since the turn began and may join it; return their messages, perhaps none.

        Raises `Cancelled` if the handler should stop.
        """
        return self._checkpoints().claim()


class AsyncSessionContext(BaseSessionContext, Generic[M]):
    """The context of an async session handler: a `Context` of the whole turn. *M* is the type of a message.

    A worker passes it to the handler. A test of a handler can create one from a claim.
    """

    __slots__ = ()

    async def checkpoint(self) -> list[M]:
        """Add entries that arrived since the turn began and may join it; return their messages, perhaps none.

        Raises `Cancelled` if the handler should stop.
        """
        return await self._checkpoints().claim_async()


def session_context_of(state: TurnState, *, is_async: bool) -> BaseSessionContext:
    """Return a context for a sync or async handler whose worker holds *state*."""
    # The type arguments of the generic classes exist for type checkers only.
    kind = cast(type[BaseSessionContext], AsyncSessionContext if is_async else SessionContext)
    context = kind.__new__(kind)
    context._state = state  # noqa: SLF001
    return context

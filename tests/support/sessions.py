"""Helpers for tests of sessions."""

from __future__ import annotations

from typing import Any, Unpack

from holdfast import Job, Queue
from holdfast.types import AnySessionOptions, CheckpointOptions, SessionClaim, SessionClaimOptions

SESSION = "chat-42"


def say(queue: Queue, *texts: Any, **options: Any) -> list[str]:
    """Enqueue one joining message for each text, unless the options differ, and return their ids."""
    settings = {
        "session": SESSION,
        "join": options.get("entry_type") != "command",
        **options,
    }
    return [queue.enqueue("chat.message", text, **settings).id for text in texts]


def take(queue: Queue, session: str = SESSION, **options: Unpack[SessionClaimOptions]) -> SessionClaim:
    """Claim the session's next run; fail if there is none."""
    claim = queue.sessions.claim(session, **options)
    assert claim is not None, "nothing was claimed"
    return claim


def take_more(queue: Queue, turn: SessionClaim, **options: Unpack[CheckpointOptions]) -> SessionClaim:
    """Claim more entries at a checkpoint of *turn*; fail if there are none."""
    claim = queue.sessions.checkpoint(turn, **options)
    assert claim is not None, "nothing was claimed"
    return claim


def take_any(queue: Queue, **options: Unpack[AnySessionOptions]) -> SessionClaim:
    """Claim the next run of any session; fail if there is none."""
    claim = queue.sessions.claim_next(**options)
    assert claim is not None, "nothing was claimed"
    return claim


def texts(claim: SessionClaim | None) -> list[Any]:
    """Return the payloads of a claim's entries, in order."""
    return [] if claim is None else [job.payload for job in claim.entries]


def states(queue: Queue, session: str = SESSION) -> dict[Any, str]:
    """Return the state of each entry of the session by its payload."""
    jobs: list[Job] = list(queue.jobs(session=session, limit=1000))
    return {job.payload: job.state for job in reversed(jobs)}

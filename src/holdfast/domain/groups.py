"""Groups: jobs that were enqueued together, counted as they end, with callbacks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from holdfast.domain import callbacks, errors, limits, new_job, validation
from holdfast.domain.callbacks import Callback
from holdfast.domain.job import State
from holdfast.domain.routing import DEFAULT_NAME

GroupState: TypeAlias = Literal["open", "running", "done", "failed"]
"""The state of a group: `open` until it is sealed, `running` until its last member has ended, `done` if all are."""
GroupEvent: TypeAlias = Literal["on_end", "on_success", "on_first_failure"]
"""When a callback of a group is enqueued."""

GROUP_EVENTS: Final[tuple[GroupEvent, ...]] = ("on_end", "on_success", "on_first_failure")
GROUP_HEADER: Final = "holdfast-group"
"""The header of callbacks: the name of their group."""


@dataclass(frozen=True, slots=True)
class JobGroup:
    """A group of jobs, and how many of them have ended, as the claims since then have counted them."""

    name: str
    """Its name, unique within the tenant."""
    tenant: str
    """The tenant of the group, its members and its callbacks."""
    state: GroupState
    """`open`, `running`, and at the end `done` if every member is done, else `failed`."""
    members: int
    """How many jobs it has."""
    unfinished: int
    """How many of them have not ended."""
    done: int
    """How many of them are done."""
    failed: int
    """How many of them have failed."""
    cancelled: int
    """How many of them were cancelled."""
    retired: int
    """How many of them were retired."""
    callbacks: Mapping[str, str] = field(hash=False)
    """The ids of its callbacks, by when they are enqueued: `on_end`, `on_success`, `on_first_failure`."""
    problem: str | None
    """Why a callback could not be stored, if one could not."""
    created_at: datetime
    """When its first members were stored."""
    ended_at: datetime | None
    """When its last member was counted; None while it is open or running."""

    @property
    def finished(self) -> bool:
        """Whether it is sealed and all its members have ended."""
        return self.ended_at is not None


class Counts(NamedTuple):
    """How many members of a group have ended in each state."""

    done: int = 0
    failed: int = 0
    cancelled: int = 0
    retired: int = 0


class StoredGroup(NamedTuple):
    """A group as the store keeps it."""

    number: int
    tenant: str
    name: str
    sealed: bool
    members: int
    counts: Counts
    on_end: Callback | None
    on_success: Callback | None
    on_first_failure: Callback | None
    token: str
    """By what the call that added members last is recognized if it is sent again."""
    problem: str | None
    created_at_ms: int
    ended_at_ms: int | None

    @property
    def complete(self) -> bool:
        """Whether no more members may be added, and all have ended."""
        return self.sealed and sum(self.counts) >= self.members

    @property
    def has_failures(self) -> bool:
        """Whether a member has ended otherwise than done."""
        return sum(self.counts) > self.counts.done

    def callback(self, event: GroupEvent) -> Callback | None:
        """Return the callback of an event."""
        found: Callback | None = getattr(self, event)
        return found


class GroupCall(NamedTuple):
    """What a caller adds to a group besides its members."""

    name: str
    tenant: str
    callbacks: Mapping[GroupEvent, Callback]
    seal: bool
    token: str


def public(stored: StoredGroup) -> JobGroup:
    """Return what a program sees of a group."""
    state: GroupState = "running" if stored.sealed else "open"
    if stored.ended_at_ms is not None:
        state = "failed" if stored.has_failures else "done"
    return JobGroup(
        stored.name,
        stored.tenant,
        state,
        stored.members,
        stored.members - sum(stored.counts),
        *stored.counts,
        {event: callback_id(stored, event) for event in GROUP_EVENTS if stored.callback(event) is not None},
        stored.problem,
        validation.datetime_of(stored.created_at_ms),
        validation.optional_datetime_of(stored.ended_at_ms),
    )


def check_name(name: object, path: str = "name") -> str:
    """Return *name* if a group may have it."""
    checked = validation.name(name, path, limits.GROUP_NAME_CHARS_MAX)
    if ":" in checked or "/" in checked:
        raise errors.InvalidInput(path, "must not contain ':' or '/'")
    return checked


def callback_id(stored: StoredGroup, event: GroupEvent) -> str:
    """Return the id of a callback; no other callback has it."""
    tenant = ""
    if stored.tenant != DEFAULT_NAME:
        tenant = f":{hashlib.blake2b(stored.tenant.encode(), digest_size=8).hexdigest()}"
    return f"{validation.RESERVED_PREFIX}group:{stored.name}:{event}{tenant}"


def callback_job(stored: StoredGroup, event: GroupEvent, callback: Callback) -> new_job.CheckedJob:
    """Return the job of a callback of a group."""
    job_id = callback_id(stored, event)
    return callbacks.job_of_callback(callback, job_id, stored.tenant, {GROUP_HEADER: stored.name})


def new_group(call: GroupCall, now_ms: int) -> StoredGroup:
    """Return a new group without members."""
    on_end, on_success, on_first_failure = (call.callbacks.get(event) for event in GROUP_EVENTS)
    called = (on_end, on_success, on_first_failure)
    return StoredGroup(0, call.tenant, call.name, False, 0, Counts(), *called, call.token, None, now_ms, None)  # noqa: FBT003


def joined(stored: StoredGroup, call: GroupCall) -> StoredGroup:
    """Return an open group with the callbacks of another call; raise `Conflict` if it cannot be joined."""
    if stored.sealed:
        raise errors.Conflict(f"group {stored.name!r} is sealed and takes no more jobs; choose another name")
    for event, callback in call.callbacks.items():
        known = stored.callback(event)
        if known is not None and known != callback:
            raise errors.Conflict(f"group {stored.name!r} has another {event}; give it once, or the same")
        change: Any = {event: callback}
        stored = stored._replace(**change)
    return stored._replace(token=call.token)


def counted(stored: StoredGroup, state: State, number: int) -> StoredGroup:
    """Return the group with *number* more members that have ended in *state*."""
    counts: Any = {state: getattr(stored.counts, state) + number}
    return stored._replace(counts=stored.counts._replace(**counts))

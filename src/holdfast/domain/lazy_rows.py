"""Rows of jobs that are made when they are needed: most callers read few columns of a job."""

from __future__ import annotations

from typing import Any, NamedTuple

from holdfast.domain.job import AttemptOutcome, JobRow, State


class UsualColumns(NamedTuple):
    """The columns in which jobs differ that have none of the values that few jobs have.

    Their number of attempts is their epoch, and they were due when they were enqueued.
    """

    seq: int
    id: str
    state: State
    kind: str
    lane: str
    tenant: str
    priority: int
    requires_json: str
    payload_json: str
    result_json: str | None
    enqueued_at_ms: int
    started_at_ms: int | None
    finished_at_ms: int | None
    lease_until_ms: int | None
    epoch: int
    worker: str | None
    incarnation: str | None
    outcome: AttemptOutcome | None


class LazyRow:
    """A row that is made when a column is read that its subclass does not know without it.

    Its attributes are the columns. A subclass has at least those that `Job` reads from it without making the row:
    number, id, kind, lane, tenant and payload.
    """

    __slots__ = ()

    def make(self) -> JobRow:
        """Return the row."""
        raise NotImplementedError

    def usual(self) -> UsualColumns | None:
        """Return the columns without making the row, if the job has none of the values that few jobs have."""
        return None

    done_at: Any = JobRow.done_at  # which reads a few columns

    def __getattr__(self, name: str) -> Any:
        return getattr(self.make(), name)

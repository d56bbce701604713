"""The methods of a queue that read many jobs, attempts and events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from holdfast.client import validate_calls
from holdfast.domain import limits, validation
from holdfast.domain.events import EventPage
from holdfast.domain.failures import FailureClass
from holdfast.domain.job import Attempt, Job, State
from holdfast.domain.results import COUNT_BY, CountBy, JobPage
from holdfast.domain.validation import Duration
from holdfast.domain.why import Why
from holdfast.operations import (
    dependencies as dependency_operations,
    jobs as job_operations,
    why as why_operations,
)
from holdfast.storage.runners import AsyncRunner

# How long to wait for events that open transactions hold back, before reading without them.
_HELD_BACK_SECONDS: Final = 0.5


class AsyncJobReads:
    """Methods of a queue that read many jobs, attempts and events."""

    _runner: AsyncRunner

    # --- read ------------------------------------------------------------------------------------------------------

    async def jobs(
        self,
        *,
        state: State | Sequence[State] | None = None,
        kind: str | None = None,
        lane: str | None = None,
        tenant: str | None = None,
        failure_class: FailureClass | None = None,
        session: str | None = None,
        root: str | None = None,
        group: str | None = None,
        tags: Mapping[str, str] | None = None,
        fingerprint: str | None = None,
        older_than: Duration | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> JobPage:
        """Return a page of up to *limit* jobs, newest first; pass its `cursor` as *after* to get the next page.

        Each option selects the jobs that match it. *state* is one state or several. A single finished state is sorted
        by finish time, everything else by enqueue order. *failure_class* is `transient` or `permanent`. *session*
        selects the entries of a session of *tenant*, by default of the default tenant; *root* a job, by its id, and
        the jobs of its tree (`Job.root`); *group* the members of a group of that tenant; *tags* jobs that have all
        of these; *fingerprint* those that failed in one way (`admin.failures`), by finish time. *older_than* is the
        number of seconds since a job finished, or since it was enqueued if it has not finished.
        """
        job_filter = validate_calls.job_filter(
            state=state,
            kind=kind,
            lane=lane,
            tenant=tenant,
            failure_class=failure_class,
            session=session,
            root=root,
            group=group,
            tags=tags,
            older_than=older_than,
            fingerprint=fingerprint,
        )
        limit = validation.integer(limit, "limit", 1, limits.PAGE_MAX)
        after = validation.optional_name(after, "after")
        return await self._runner.read(job_operations.jobs, job_filter, after, limit)

    async def attempts(self, job_id: str, *, tenant: str | None = None) -> list[Attempt]:
        """Return the attempts of a job, oldest first, or raise `JobNotFound`; the last one may still be running.

        With *tenant*, jobs of other tenants are not found.
        """
        job_id, tenant = validate_calls.job_id(job_id), validate_calls.tenant(tenant)
        return await self._runner.read(job_operations.attempts, job_id, tenant)

    async def parents(self, job_id: str, *, tenant: str | None = None) -> list[Job]:
        """Return the jobs on which a job depends (`after`), in the given order, or raise `JobNotFound`.

        Its handler reads their results so. With *tenant*, jobs of other tenants are not found.
        """
        job_id, tenant = validate_calls.job_id(job_id), validate_calls.tenant(tenant)
        return await self._runner.read(dependency_operations.parents, job_id, tenant)

    async def why(self, job_id: str, *, tenant: str | None = None) -> Why:
        """Return why a job is in its state: what it waits for, who serves it, and its place, or raise `JobNotFound`.

        `summary` is one sentence, `reasons` are all of them. With *tenant*, jobs of other tenants are not found.
        """
        job_id, tenant = validate_calls.job_id(job_id), validate_calls.tenant(tenant)
        return await self._runner.read(why_operations.why_job, job_id, tenant)

    async def counts(self, *, by: CountBy = "state", tenant: str | None = None) -> dict[str, int]:
        """Count jobs by state, kind, lane, tenant or failure class, as *by* says; with *tenant*, only its jobs.

        This reads every job: do not call it in a hot loop.
        """
        by = validation.one_of(by, "by", COUNT_BY)
        return await self._runner.read(job_operations.counts, by, validate_calls.tenant(tenant))

    async def events(self, *, after: str | None = None, limit: int = 100, tenant: str | None = None) -> EventPage:
        """Return recorded events after the cursor *after*, in order; by default from the oldest stored event.

        A page has up to *limit* events. With *tenant*, it has those of its jobs, and may be empty although more
        events follow: continue until the cursor no longer changes. Raises `EventsPruned` if events after the cursor
        were deleted before they were read.
        """
        limit = validation.integer(limit, "limit", 1, limits.PAGE_MAX)
        after, tenant = validation.optional_name(after, "after"), validate_calls.tenant(tenant)
        left = _HELD_BACK_SECONDS
        with self._runner.listen() as listener:
            while True:
                page, held_back = await self._runner.read(job_operations.event_page, after, limit, tenant)
                if not held_back or left <= 0:
                    return page
                # An open transaction may still add earlier events. Wait for its commit, to return a complete page.
                left -= await listener.wait(_HELD_BACK_SECONDS / 50)

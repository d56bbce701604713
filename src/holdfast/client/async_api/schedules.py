"""`queue.schedules`: jobs at times of a calendar or at intervals."""

from __future__ import annotations

import builtins
from datetime import datetime
from typing import Unpack

from holdfast.client import ids, validate_calls
from holdfast.client.async_api.namespace import AsyncNamespace
from holdfast.domain import limits, schedules, validation
from holdfast.domain.job import Job
from holdfast.domain.new_job import NewJob, check_job
from holdfast.domain.schedules import Schedule, ScheduleOptions
from holdfast.domain.strict_json import Json
from holdfast.operations import schedules as schedule_operations


class AsyncSchedules(AsyncNamespace):
    """Sets, lists, previews, pauses, runs and removes schedules: `queue.schedules`."""

    # --- read ------------------------------------------------------------------------------------------------------

    async def list(self, *, tenant: str | None = None, limit: int = 1_000) -> builtins.list[Schedule]:
        """Return schedules in order of tenant and name, up to *limit*; by default those of all tenants."""
        limit = validation.integer(limit, "limit", 1, limits.PAGE_MAX)
        return await self._runner.read(schedule_operations.list_schedules, validate_calls.tenant(tenant), limit)

    async def get(self, name: str, *, tenant: str = "default") -> Schedule:
        """Return a schedule. Raises `ScheduleNotFound`."""
        return await self._runner.read(schedule_operations.get_schedule, *_named(name, tenant))

    async def preview(self, name: str, *, count: int = 5, tenant: str = "default") -> builtins.list[datetime]:
        """Return the next *count* ticks of a schedule in its time zone, also if it is paused.

        Raises `ScheduleNotFound`.
        """
        count = validation.integer(count, "count", 1, limits.PREVIEW_MAX)
        return await self._runner.read(schedule_operations.preview, *_named(name, tenant), count)

    # --- change ----------------------------------------------------------------------------------------------------

    async def set(
        self,
        name: str,
        *,
        kind: str,
        payload: Json = None,
        actor: str | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Set a schedule, or change the one of this name: `set("nightly", kind="report", cron="0 3 * * *")`.

        At each tick one job of *kind* with *payload* is enqueued, whatever the number of workers. See
        `ScheduleOptions` for its times and the options of its jobs. Other times start after now; a schedule that does
        not change keeps its ticks. Raises `InvalidInput`, also if the payload does not match the schema that workers
        have published for the kind, and `Conflict` if a module declares the schedule (`queue.schedule`).
        """
        definition = schedules.check_schedule(name, kind, payload, options)
        self._check_task(kind, payload)
        definition = schedules.encoded(definition, self._state.codec)
        return await self._runner.write(
            schedule_operations.set_schedule,
            definition,
            validate_calls.actor(actor),
            # Workers may still run an earlier version of a task that this program declares.
            fits=kind in self._state.tasks,
        )

    def _check_task(self, kind: str, payload: Json) -> None:
        """Raise `InvalidInput` if this queue declares a task of *kind* whose signature *payload* does not fit."""
        check_job(self._state.tasks.complete(NewJob(kind, payload)), fresh_id="")

    async def pause(self, name: str, *, tenant: str = "default", actor: str | None = None) -> Schedule:
        """Enqueue no jobs of a schedule until it is resumed. Raises `ScheduleNotFound`."""
        return await self._runner.write(
            schedule_operations.pause_schedule, *_named(name, tenant), validate_calls.actor(actor)
        )

    async def resume(self, name: str, *, tenant: str = "default", actor: str | None = None) -> Schedule:
        """Continue a paused schedule with its next tick after now. Raises `ScheduleNotFound`."""
        return await self._runner.write(
            schedule_operations.resume_schedule, *_named(name, tenant), validate_calls.actor(actor)
        )

    async def run(self, name: str, *, tenant: str = "default", actor: str | None = None) -> Job:
        """Enqueue a job of a schedule now, also if it is paused, and return it; its ticks stay as they are.

        Raises `ScheduleNotFound`, and the errors of `enqueue`.
        """
        return await self._runner.write(
            schedule_operations.run_schedule, *_named(name, tenant), ids.job_id(), validate_calls.actor(actor)
        )

    async def remove(self, name: str, *, tenant: str = "default", actor: str | None = None) -> Schedule:
        """Delete a schedule and return it; its jobs stay. Raises `ScheduleNotFound`.

        If a module still declares it, the next worker that starts there sets it again; pause it instead.
        """
        return await self._runner.write(
            schedule_operations.remove_schedule, *_named(name, tenant), validate_calls.actor(actor)
        )


def _named(name: str, tenant: str) -> tuple[str, str]:
    return schedules.check_name(name), validation.name(tenant, "tenant")

"""`queue.group` and `queue.groups`: jobs that are enqueued together and counted as they end."""

from __future__ import annotations

import builtins
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Unpack

from holdfast.client import ids, validate_calls
from holdfast.client.async_api.namespace import AsyncNamespace
from holdfast.domain import callbacks, errors, groups, limits, validation
from holdfast.domain.groups import GroupCall, GroupEvent, JobGroup
from holdfast.domain.job_options import EnqueueOptions
from holdfast.domain.new_job import CheckedJob, JobLike, NewJob, check_job, digest_of, new_job_of
from holdfast.domain.outcomes import children_of
from holdfast.domain.results import CancelReport, add_cancelled
from holdfast.domain.strict_json import Json
from holdfast.domain.validation import Duration
from holdfast.operations import groups as group_operations, maintenance
from holdfast.storage import notifications
from holdfast.tasks.definition import TaskTable

if TYPE_CHECKING:
    from holdfast.client.async_api.queue import AsyncJobMethods

# How often `wait` looks: frequently at first, then less often.
_POLL_SECONDS_FIRST: Final = 0.02
_POLL_SECONDS_LAST: Final = 0.5


class AsyncGroupBlock(AsyncNamespace):
    """The members of a group, stored in one commit at the end of the block: `async with queue.group("import-7")`."""

    def __init__(self, queue: AsyncJobMethods, call: GroupCall) -> None:
        super().__init__(queue)
        self._call = call
        self._members: list[CheckedJob] | None = None
        self._entered = False
        self._bytes = 0

    def enqueue(
        self,
        kind: str | NewJob,
        payload: Json = None,
        *,
        delay: Duration | None = None,
        priority: int | None = None,
        lane: str | None = None,
        dedupe_key: str | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> str:
        """Add a job, which is stored at the end of the block, and return its id.

        The options are those of `queue.enqueue`. A later job of the block may name the id in its `after`. Raises
        `InvalidInput`, also for more than 10,000 jobs. If the job is a duplicate of a stored one, that one is the
        member, with its own id.
        """
        if self._members is None:
            raise self._outside()
        if len(self._members) >= limits.ENQUEUE_MANY_MAX:
            problem = f"would be more than {limits.ENQUEUE_MANY_MAX} in one block; use several with seal=False"
            raise errors.InvalidInput("members", problem)
        common = {"delay": delay, "priority": priority, "lane": lane, "dedupe_key": dedupe_key}
        new: JobLike = self._state.tasks.complete(new_job_of(kind, payload, common, options))
        checked = check_job(new, fresh_id=ids.job_id(), tenant=self._call.tenant)
        if checked.entry is not None and checked.digest is None:
            # As if it were chosen: the store would derive another id than the one that is returned here.
            checked = checked._replace(digest=digest_of(checked))
        if checked.settings.tenant != self._call.tenant:
            problem = f"is {checked.settings.tenant!r}; the group belongs to {self._call.tenant!r}"
            raise errors.InvalidInput("tenant", problem)
        self._bytes += len(checked.payload_json.encode())
        if self._bytes > limits.ENQUEUE_MANY_BYTES_MAX:
            problem = f"makes the payloads of the block exceed {limits.ENQUEUE_MANY_BYTES_MAX} bytes; use several"
            raise errors.InvalidInput("payload", f"{problem} with seal=False")
        self._members.append(checked)
        return checked.id

    async def _store(self, members: builtins.list[CheckedJob]) -> None:
        state, runner = self._state, self._runner
        if state.parent is not None:
            members = children_of(state.parent, members)
        if state.codec is None and not state.middleware:
            await runner.write(group_operations.add_members, self._call, members)
            return
        encoded: Any = {
            event: callbacks.encoded(callback, state.codec, event) for event, callback in self._call.callbacks.items()
        }
        with state.enqueuing(members) as call:
            group_call = self._call._replace(callbacks=encoded)
            _, call.answer = await runner.write(group_operations.add_members, group_call, call.jobs)

    def _outside(self) -> errors.Conflict:
        if self._entered:
            return errors.Conflict(f"the block of group {self._call.name!r} has ended; open another one")
        return errors.Conflict(
            f"the members of group {self._call.name!r} are stored at the end of a block: call enqueue within 'with'"
        )

    async def __aenter__(self) -> AsyncGroupBlock:
        if self._entered:
            raise self._outside()
        self._entered, self._members = True, []
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        members, self._members = self._members, None
        if kind is None and members is not None:
            await self._store(members)


def new_block(
    queue: AsyncJobMethods,
    tasks: TaskTable,
    name: str,
    tenant: str,
    given: dict[GroupEvent, JobLike | None],
    *,
    seal: bool,
) -> AsyncGroupBlock:
    """Return the block of a group, with its options checked."""
    called = {
        event: callbacks.check_callback(tasks.complete_callback(new, event), event)
        for event, new in given.items()
        if new is not None
    }
    name, tenant = groups.check_name(name), validation.name(tenant, "tenant")
    call = GroupCall(name, tenant, called, validation.flag(seal, "seal"), ids.job_id())
    return AsyncGroupBlock(queue, call)


class AsyncGroups(AsyncNamespace):
    """Reads, waits for and cancels groups: `queue.groups`."""

    # --- read ------------------------------------------------------------------------------------------------------

    async def list(self, *, tenant: str | None = None, limit: int = 100) -> builtins.list[JobGroup]:
        """Return groups, newest first, up to *limit*; by default those of all tenants."""
        limit = validation.integer(limit, "limit", 1, limits.PAGE_MAX)
        return await self._runner.read(group_operations.list_groups, validate_calls.tenant(tenant), limit)

    async def get(self, name: str, *, tenant: str = "default") -> JobGroup:
        """Return a group. Raises `GroupNotFound`."""
        return await self._runner.read(group_operations.get_group, *_named(name, tenant))

    async def wait(
        self,
        name: str,
        *,
        timeout: Duration,  # noqa: ASYNC109
        tenant: str = "default",
    ) -> JobGroup:
        """Return a group once it is sealed and all its members have ended, or raise `WaitTimeout`.

        *timeout* is in seconds. Raises `GroupNotFound`.
        """
        left = allowed = validation.duration_ms(timeout, "timeout", 0, limits.WAIT_MS_MAX) / 1000
        poll_seconds, until = _POLL_SECONDS_FIRST, time.monotonic() + allowed
        name, tenant = _named(name, tenant)
        with self._runner.listen(notifications.group_topic(tenant, name)) as listener:
            while True:
                found, overdue = await self._runner.read(group_operations.get_overdue, name, tenant, max(left, 0.0))
                if overdue and await self._runner.write(maintenance.fold_due_wakes):
                    # No worker has counted the ends, so the waiting caller does.
                    continue
                if found.finished:
                    return found
                if (left := until - time.monotonic()) <= 0:
                    raise errors.WaitTimeout(name, allowed, "group")
                left -= await listener.wait(min(poll_seconds, left))
                poll_seconds = min(poll_seconds * 1.5, _POLL_SECONDS_LAST)

    # --- change ----------------------------------------------------------------------------------------------------

    async def cancel(self, name: str, *, force: bool = False, tenant: str = "default") -> CancelReport:
        """Seal a group, cancel its waiting members and request running ones to stop, in bounded chunks.

        With *force* running members are taken from their workers. Callbacks `on_first_failure` and `on_end` are
        enqueued as after any other end. Raises `GroupNotFound`.
        """
        name, tenant = _named(name, tenant)
        force = validation.flag(force, "force")
        total, after = CancelReport([], [], []), -1
        while True:
            report, following = await self._runner.write(
                group_operations.cancel_members, name, tenant, after, force=force
            )
            add_cancelled(total, report)
            if following is None:
                return total
            after = following


def _named(name: str, tenant: str) -> tuple[str, str]:
    return groups.check_name(name), validation.name(tenant, "tenant")

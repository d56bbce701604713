"""The calls that only workers make."""

from collections.abc import Mapping, Sequence

from holdfast.domain import claims, codec, errors, kinds, output, results, schedules
from holdfast.operations import (
    admin as admin_operations,
    jobs as job_operations,
    maintenance,
    output as output_operations,
    schedules as schedule_operations,
)
from holdfast.storage.runners import AsyncRunner
from holdfast.storage.store import AsyncTarget
from holdfast.tasks.output_buffer import OutputBuffer, take_emitted


class AsyncWorkerCalls:
    """Lease renewals, output, the registry of workers and the catalog of kinds, for a worker."""

    def __init__(self, target: AsyncTarget) -> None:
        self._runner = AsyncRunner(target)

    async def renew_many(
        self, held: Sequence[claims.LeaseUpdate]
    ) -> tuple[list[claims.Renewal | errors.HoldfastError], list[output.StreamEnd | errors.HoldfastError]]:
        """Extend many leases as `heartbeat_many` does; return the result of each, and of each output written.

        Progress, acknowledgements and output are written in the same commit.
        """
        leases = [(claims.fence_of(one.claim), one.claim.lease_ms) for one in held]
        notes = {one.claim.job.number: one.note for one in held if one.note is not None}
        started = {one.claim.job.number for one in held if one.started}
        writes = [(one.claim, one.output) for one in held if one.output is not None]
        return await self._runner.write(output_operations.renew_and_append, leases, notes, started, writes)

    async def append_output(
        self, writes: Sequence[tuple[claims.Claim, output.OutputWrite]]
    ) -> list[output.StreamEnd | errors.HoldfastError]:
        """Append to the output of several jobs in one commit; return the end of each stream or the error."""
        return await self._runner.write(output_operations.append, writes)

    async def flush_output(self, emitted: Sequence[tuple[claims.Claim, OutputBuffer]]) -> None:
        """Write all text that handlers have emitted."""
        while taken := take_emitted(emitted):
            answers = await self.append_output([(claim, write) for claim, _, write in taken])
            for (_, buffer, write), answer in zip(taken, answers, strict=True):
                buffer.answered(write, answer)

    async def delete_expired(self) -> bool:
        """Delete some expired uploads and dedupe keys; return whether there were any."""
        return await self._runner.write(maintenance.delete_expired)

    async def beat(self, worker: results.WorkerInfo) -> results.WorkerRequest | None:
        """Write the registry row of one start of a worker; return what was requested of it."""
        return await self._runner.write(job_operations.write_worker, worker)

    async def leave(self, worker: str, incarnation: str) -> None:
        """Delete the registry row of a worker that stops."""
        await self._runner.write(job_operations.delete_worker, worker, incarnation)

    async def publish_kinds(self, publications: Mapping[str, kinds.Publication], published_by: str) -> None:
        """Publish tasks in the catalog of kinds; only read the catalog if nothing has changed."""
        changed = await self._runner.read(admin_operations.changed_publications, publications)
        if changed:
            await self._runner.write(admin_operations.publish_kinds, changed, published_by)

    async def declare_schedules(
        self, declared: Sequence[tuple[schedules.Definition, str]], used_codec: codec.Codec | None
    ) -> list[tuple[str, str | None]]:
        """Set the schedules that modules declare; return the names that belong to others, with their owners."""
        encoded = [(schedules.encoded(definition, used_codec), owner) for definition, owner in declared]
        return await self._runner.write(schedule_operations.declare, encoded)

    async def problems(self) -> list[results.Finding]:
        """Return the findings of `queue.admin.report` that concern jobs; they may be read often."""
        return await self._runner.read(job_operations.problems)

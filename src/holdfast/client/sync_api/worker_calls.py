# Generated from client/async_api/worker_calls.py by scripts/make-sync; do not edit.
"""The calls that only workers make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.domain.claims import Claim, LeaseUpdate, Renewal
from holdfast.domain.errors import HoldfastError
from holdfast.domain.kinds import Publication
from holdfast.domain.output import OutputWrite, StreamEnd
from holdfast.domain.results import Finding, WorkerInfo, WorkerRequest
from holdfast.operations import admin as admin_operations
from holdfast.operations import artifacts as artifact_operations
from holdfast.operations import jobs as job_operations
from holdfast.operations import output as output_operations
from holdfast.storage.runners import SyncRunner
from holdfast.storage.store import SyncTarget
from holdfast.tasks.output_buffer import OutputBuffer, take_emitted


class WorkerCalls:
    """Lease renewals, output, the registry of workers and the catalog of kinds, for a worker."""

    def __init__(self, target: SyncTarget) -> None:
        self._runner = SyncRunner(target)

    def renew_many(
        self, held: Sequence[LeaseUpdate]
    ) -> tuple[list[Renewal | HoldfastError], list[StreamEnd | HoldfastError]]:
        """Extend many leases as `heartbeat_many` does; return the result of each, and of each output written.

        Progress, acknowledgements and output are written in the same commit.
        """
        leases = [(one.claim.fence, one.claim.lease_ms) for one in held]
        notes = {one.claim.job.number: one.note for one in held if one.note is not None}
        started = {one.claim.job.number for one in held if one.started}
        writes = [(one.claim, one.output) for one in held if one.output is not None]
        return self._runner.write(output_operations.renew_and_append, leases, notes, started, writes)

    def append_output(self, writes: Sequence[tuple[Claim, OutputWrite]]) -> list[StreamEnd | HoldfastError]:
        """Append to the output of several jobs in one commit; return the end of each stream or the error."""
        return self._runner.write(output_operations.append, writes)

    def flush_output(self, emitted: Sequence[tuple[Claim, OutputBuffer]]) -> None:
        """Write all text that handlers have emitted."""
        while taken := take_emitted(emitted):
            answers = self.append_output([(claim, write) for claim, _, write in taken])
            for (_, buffer, write), answer in zip(taken, answers, strict=True):
                buffer.answered(write, answer)

    def delete_expired_uploads(self) -> bool:
        """Delete some expired uploads; return whether there were any."""
        return self._runner.write(artifact_operations.delete_expired_uploads)

    def beat(self, worker: WorkerInfo) -> WorkerRequest | None:
        """Write the registry row of one start of a worker; return what was requested of it."""
        return self._runner.write(job_operations.write_worker, worker)

    def leave(self, worker: str, incarnation: str) -> None:
        """Delete the registry row of a worker that stops."""
        self._runner.write(job_operations.delete_worker, worker, incarnation)

    def publish_kinds(self, publications: Mapping[str, Publication], published_by: str) -> None:
        """Publish tasks in the catalog of kinds; only read the catalog if nothing has changed."""
        changed = self._runner.read(admin_operations.changed_publications, publications)
        if changed:
            self._runner.write(admin_operations.publish_kinds, changed, published_by)

    def problems(self) -> list[Finding]:
        """Return the findings of `queue.admin.report` that concern jobs; they may be read often."""
        return self._runner.read(job_operations.problems)

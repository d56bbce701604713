"""`Context`: a handler's view of its attempt. It collects data and never calls the store itself.

The worker writes the data: progress with the next lease renewal, output a moment later, artifacts and follow-ups with
the settlement. `HandlerState` is the worker's side of it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Unpack

from holdfast.domain import artifacts, errors, limits, new_job, validation
from holdfast.domain.artifacts import AnyArtifact, Artifact, Upload
from holdfast.domain.claims import Claim
from holdfast.domain.job import Job
from holdfast.domain.job_options import JobOptions
from holdfast.domain.new_job import NewJob
from holdfast.domain.strict_json import Json
from holdfast.domain.validation import Duration
from holdfast.tasks.control_flow import Cancelled
from holdfast.tasks.handler_state import HandlerState, JobReader, StopReason, TransactionBlock

if TYPE_CHECKING:
    from holdfast.tasks.task import BaseTask


class Context:
    """One attempt as its handler sees it: the first parameter of a handler that has this annotation. Thread-safe.

    A worker passes it to the handler. A test of a handler can create one from a claim.
    """

    __slots__ = ("_state",)

    def __init__(self, claim: Claim) -> None:
        self._state = HandlerState(claim)

    def __repr__(self) -> str:
        return f"<Context of {self.job!r}>"

    @property
    def job(self) -> Job:
        """The job as it was when it was claimed."""
        return self._state.claim.job

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._state.claim.job.attempt

    @property
    def epoch(self) -> int:
        """The fencing token, larger than in every earlier attempt. Store it with your own data."""
        return self._state.claim.job.epoch

    @property
    def lease_token(self) -> str:
        """The token of this attempt's lease."""
        return self._state.claim.lease_token

    @property
    def worker(self) -> str:
        """The name of the worker that runs this attempt."""
        return self._state.claim.job.worker or ""

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """The logger `holdfast.task.KIND`; its records have the attributes `job_id`, `kind` and `attempt`."""
        return self._state.logger

    # --- progress and output ---------------------------------------------------------------------------------------

    def progress(self, phase: str | None = None, percent: float | None = None) -> None:
        """Report progress: the name of the current *phase*, and *percent* from 0 to 100.

        The latest values are written with the next lease renewal; an omitted value is kept. Raises `LeaseLost` if the
        attempt has ended: the handler returned, timed out or lost its lease.
        """
        self._state.progress(phase, percent)

    def emit(self, text: str) -> None:
        """Append *text* to the job's output stream. The worker writes it within about 100 ms, and before it settles.

        Raises `InvalidInput` if the text is not valid or the output too large, and `LeaseLost` if the attempt has
        ended.
        """
        self._state.emit(text)

    # --- collecting ------------------------------------------------------------------------------------------------

    def attach(self, name: str, data: bytes | Upload, media_type: str = "application/octet-stream") -> None:
        """Add an artifact to store if the attempt is done; replace an attached artifact of the same name.

        *data* is bytes, or a finished upload for more than 16 MiB in total.
        """
        artifact: AnyArtifact = (
            data.artifact(name, media_type) if isinstance(data, Upload) else Artifact(name, data, media_type)
        )
        try:
            size = artifacts.check_artifact(artifact, "artifact")
        except errors.InvalidInput as error:
            raise errors.InvalidInput(error.field.rpartition(".")[2], error.problem, error.limit) from None
        self._state.add_artifact(artifact, size)

    def follow_up(
        self, job: str | NewJob | BaseTask[Any, Any], payload: Json = None, **options: Unpack[JobOptions]
    ) -> None:
        """Add a job to enqueue if the attempt is done: by kind and payload, or created by a task's `new`.

        It belongs to the tenant of this job unless it names another. See `JobOptions` for the options.
        """
        new = self._state.complete(_new_job(job, payload, options))
        checked = new_job.check_job(new, fresh_id="checked", tenant=self.job.tenant)
        # Copy the payload, because the handler may change the original later.
        self._state.add_follow_up(new_job.copy_job(new, checked), len(checked.payload_json))

    def used(self, **amounts: int) -> None:
        """Report what the attempt has used, such as `context.used(tokens=812)`; amounts of one name add up.

        They are stored however the attempt ends, and correct [limits by key](../limits-by-key.md) that count them.
        """
        self._state.add_used(amounts)

    @property
    def artifacts(self) -> tuple[AnyArtifact, ...]:
        """The artifacts attached so far."""
        return self._state.artifacts

    @property
    def follow_ups(self) -> tuple[NewJob, ...]:
        """The follow-ups added so far."""
        return self._state.follow_ups

    # --- stopping --------------------------------------------------------------------------------------------------

    @property
    def cancelled(self) -> bool:
        """Whether the handler should stop; a sync handler should check this regularly."""
        return self._state.stop_reason is not None

    @property
    def stop_reason(self) -> StopReason | None:
        """Why the handler should stop: `cancel`, `timeout`, `lost` or `shutdown`; None if it need not."""
        return self._state.stop_reason

    def wait_cancelled(self, timeout: Duration | None = None) -> bool:
        """Block until the handler should stop or *timeout* seconds have passed; return whether it should stop.

        Use it instead of `time.sleep` in sync handlers. Do not use it in async handlers: it blocks the event loop.
        """
        return self._state.wait_stopped(
            None if timeout is None else validation.duration_ms(timeout, "timeout") / 1000
        )

    def raise_if_cancelled(self) -> None:
        """Raise `Cancelled` if the handler should stop."""
        if self._state.stop_reason is not None:
            raise Cancelled(self._state.stop_reason)

    # --- the store -------------------------------------------------------------------------------------------------

    def transaction(self, *, timeout: Duration = 5.0) -> TransactionBlock:
        """Return a context manager whose writes commit together with this job's settlement as done.

        It is available only in a worker. It is rolled back after *timeout* seconds, because on SQLite it blocks every
        other writer.
        """
        seconds = validation.duration_ms(timeout, "timeout", 1, limits.TRANSACTION_MS_MAX) / 1000
        if self._state.open_transaction is None:
            raise errors.Misconfigured("transaction() is available only in a handler that a worker runs")
        return self._state.open_transaction(seconds)

    def artifact(self, name: str) -> Artifact:
        """Read an artifact of this job: an input, or one that an earlier attempt stored. Blocks on the store.

        Raises `ArtifactNotFound` if there is none. For a session turn, it reads those of the first entry.
        """
        return self._reader("artifact").read(name)

    async def artifact_async(self, name: str) -> Artifact:
        """Read an artifact of this job in an async handler, as `artifact` does in a sync one."""
        return await self._reader("artifact").read_async(name)

    def parents(self) -> list[Job]:
        """Read the jobs on which this job depends, with their states and results, in the given order.

        These are the jobs of `after`, the job whose `on_end` this one is, or the members of the group whose callback
        it is. Retention keeps them until this job has ended. Blocks on the store.
        """
        return self._reader("parents").parents()

    async def parents_async(self) -> list[Job]:
        """Read the jobs on which this job depends in an async handler, as `parents` does in a sync one."""
        return await self._reader("parents").parents_async()

    def _reader(self, method: str) -> JobReader:
        if self._state.reader is None:
            raise errors.Misconfigured(f"{method}() is available only in a handler that a worker runs")
        return self._state.reader


def context_of(state: HandlerState) -> Context:
    """Return a context for the handler whose worker holds *state*."""
    context = Context.__new__(Context)
    context._state = state  # noqa: SLF001
    return context


def _new_job(job: object, payload: Json, options: JobOptions) -> NewJob:
    if isinstance(job, NewJob):
        if payload is not None or options:
            raise errors.InvalidInput(
                "payload" if payload is not None else min(options), "is already set by the NewJob"
            )
        return job
    declared: JobOptions | None = getattr(job, "options", None)
    if declared is not None:
        merged: Any = {**declared, **options}
        return NewJob(getattr(job, "kind", ""), payload, **merged)
    return NewJob(job, payload, **options)  # type: ignore[arg-type]  # the check refuses a kind that is not a string

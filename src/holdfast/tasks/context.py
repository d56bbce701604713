"""`Context`: a handler's view of its attempt. It collects data and never calls the store itself.

The worker writes the data: progress with the next lease renewal, output a moment later, artifacts and follow-ups with
the settlement.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, MutableMapping
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, Unpack

from holdfast.domain import limits, output, validation
from holdfast.domain.artifacts import AnyArtifact, Artifact, Upload, check_artifact, check_direct_size
from holdfast.domain.claims import Claim, Note
from holdfast.domain.errors import InvalidInput, LeaseLost, Misconfigured
from holdfast.domain.job import Job
from holdfast.domain.new_job import JobLike, JobOptions, NewJob, check_job, copy_job
from holdfast.domain.strict_json import Json
from holdfast.domain.validation import Duration
from holdfast.tasks.control_flow import Cancelled
from holdfast.tasks.output_buffer import OutputBuffer

if TYPE_CHECKING:
    from types import TracebackType

    from holdfast.client.async_api.queue import AsyncTransaction
    from holdfast.client.sync_api.queue import Transaction
    from holdfast.tasks.task import BaseTask, TaskRegistry

StopReason: TypeAlias = Literal["cancel", "timeout", "lost", "shutdown"]
"""Why a handler should stop: the job was cancelled or timed out, its lease was lost, or the worker shuts down."""


class TransactionBlock(Protocol):
    """A sync and async context manager whose writes commit together with the settlement."""

    def __enter__(self) -> Transaction: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None: ...
    async def __aenter__(self) -> AsyncTransaction: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None: ...


class ArtifactReader(Protocol):
    """Reads artifacts of one job, sync and async."""

    def read(self, name: str) -> Artifact:
        """Return one artifact."""
        ...

    async def read_async(self, name: str) -> Artifact:
        """Return one artifact."""
        ...


class Context:
    """One attempt as its handler sees it: the first parameter of a handler that has this annotation. Thread-safe."""

    __slots__ = (
        "_artifacts",
        "_cancelled",
        "_claim",
        "_ended",
        "_follow_ups",
        "_latest_progress",
        "_lock",
        "_logger",
        "_on_output",
        "_open_transaction",
        "_output",
        "_pending_progress",
        "_reader",
        "_stop",
        "_tasks",
    )

    def __init__(self, claim: Claim) -> None:
        self._claim = claim
        self._lock = Lock()
        self._pending_progress: Note | None = None
        self._latest_progress = Note()
        self._artifacts: dict[str, AnyArtifact] = {}
        self._follow_ups: list[NewJob] = []
        self._cancelled: StopReason | None = None
        self._ended = False
        # Created on first use: a worker creates a context for every job, and most handlers never need these.
        self._stop: Event | None = None
        self._logger: logging.LoggerAdapter[logging.Logger] | None = None
        self._output: OutputBuffer | None = None
        self._on_output: Callable[[], None] | None = None
        self._open_transaction: Callable[[float], TransactionBlock] | None = None
        self._reader: ArtifactReader | None = None
        self._tasks: TaskRegistry | None = None

    def __repr__(self) -> str:
        return f"<Context of {self.job!r}>"

    @property
    def job(self) -> Job:
        """The job as it was when it was claimed."""
        return self._claim.job

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._claim.job.attempt

    @property
    def epoch(self) -> int:
        """The fencing token, larger than in every earlier attempt. Store it with your own data."""
        return self._claim.job.epoch

    @property
    def lease_token(self) -> str:
        """The token of this attempt's lease."""
        return self._claim.lease_token

    @property
    def worker(self) -> str:
        """The name of the worker that runs this attempt."""
        return self._claim.job.worker or ""

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """The logger `holdfast.task.KIND`; its records have the attributes `job_id`, `kind` and `attempt`."""
        if self._logger is None:
            self._logger = _JobLogger(logging.getLogger(f"holdfast.task.{self.job.kind}"), self._log_fields())
        return self._logger

    def _log_fields(self) -> dict[str, object]:
        return {"job_id": self.job.id, "kind": self.job.kind, "attempt": self.attempt}

    # --- progress --------------------------------------------------------------------------------------------------

    def progress(self, phase: str | None = None, percent: float | None = None) -> None:
        """Report progress. The latest values are written with the next lease renewal; an omitted value is kept.

        Raises `LeaseLost` if the attempt has ended: the handler returned, timed out or lost its lease.
        """
        if self._ended:
            raise LeaseLost(self.job.id, self.epoch, "the attempt has ended")
        self.note_progress(phase, percent)

    def note_progress(self, phase: str | None = None, percent: float | None = None) -> None:
        """Record progress, also after the end of the attempt. For internal use."""
        phase = validation.optional_name(phase, "phase", limits.PHASE_CHARS_MAX)
        percent = None if percent is None else validation.number(percent, "percent", 0, 100)
        with self._lock:
            self._pending_progress = _merge(self._pending_progress or Note(), phase, percent)
            self._latest_progress = _merge(self._latest_progress, phase, percent)

    @property
    def latest_progress(self) -> Note:
        """The latest progress, written or not. For internal use."""
        return self._latest_progress

    def end(self) -> None:
        """Refuse further progress, because the attempt is decided. For internal use."""
        self._ended = True

    def take_progress(self) -> Note | None:
        """Return the progress noted since the last call, if any, for the worker to write. For internal use."""
        with self._lock:
            note, self._pending_progress = self._pending_progress, None
            return note

    def return_progress(self, note: Note | None) -> None:
        """Restore progress that could not be written; newer values win. For internal use."""
        with self._lock:
            if note is not None:
                newer = self._pending_progress or Note()
                self._pending_progress = Note(
                    note.phase if newer.phase is None else newer.phase,
                    note.percent if newer.percent is None else newer.percent,
                )

    # --- output ----------------------------------------------------------------------------------------------------

    def emit(self, text: str) -> None:
        """Append *text* to the job's output stream. The worker writes it within about 100 ms, and before it settles.

        Raises `InvalidInput` if the text is not valid or the output too large, and `LeaseLost` if the attempt has
        ended.
        """
        if not output.check_text(text):
            return
        if self._ended:
            raise LeaseLost(self.job.id, self.epoch, "the attempt has ended")
        if self._buffer().add(text) and self._on_output is not None:
            self._on_output()

    def _buffer(self) -> OutputBuffer:
        with self._lock:
            if self._output is None:
                self._output = OutputBuffer()
            return self._output

    # --- collecting ------------------------------------------------------------------------------------------------

    def attach(self, name: str, data: bytes | Upload, media_type: str = "application/octet-stream") -> None:
        """Add an artifact to store if the attempt is done; replace an attached artifact of the same name.

        *data* is bytes, or a finished upload for more than 16 MiB in total.
        """
        artifact: AnyArtifact = (
            data.artifact(name, media_type) if isinstance(data, Upload) else Artifact(name, data, media_type)
        )
        try:
            size = check_artifact(artifact, "artifact")
        except InvalidInput as error:
            raise InvalidInput(error.field.rpartition(".")[2], error.problem) from None
        with self._lock:
            if name not in self._artifacts and len(self._artifacts) >= limits.ARTIFACTS_MAX:
                raise InvalidInput("name", f"exceeds the limit of {limits.ARTIFACTS_MAX} artifacts")
            others = [one for one in self._artifacts.values() if isinstance(one, Artifact) and one.name != name]
            check_direct_size(size + sum(len(one.data) for one in others), "data")
            self._artifacts[name] = artifact

    def follow_up(
        self, job: str | NewJob | BaseTask[Any, Any], payload: Json = None, **options: Unpack[JobOptions]
    ) -> None:
        """Add a job to enqueue if the attempt is done: by kind and payload, or created by a task's `new`.

        It belongs to the tenant of this job unless it names another.
        """
        new = self.completed(_new_job(job, payload, options))
        checked = check_job(new, fresh_id="checked", tenant=self.job.tenant)
        # Copy the payload, because the handler may change the original later.
        follow_up = copy_job(new, checked)
        with self._lock:
            if len(self._follow_ups) >= limits.FOLLOW_UPS_MAX:
                raise InvalidInput("job", f"exceeds the limit of {limits.FOLLOW_UPS_MAX} follow-ups")
            self._follow_ups.append(follow_up)

    def completed(self, new: JobLike) -> JobLike:
        """Return *new* with the options of the task that the worker's queue declares, if any. For internal use."""
        return new if self._tasks is None else self._tasks.complete(new)

    @property
    def collected(self) -> bool:
        """Whether there are artifacts or follow-ups. For internal use."""
        return bool(self._artifacts or self._follow_ups)

    @property
    def artifacts(self) -> tuple[AnyArtifact, ...]:
        """The artifacts attached so far."""
        with self._lock:
            return tuple(self._artifacts.values())

    @property
    def follow_ups(self) -> tuple[NewJob, ...]:
        """The follow-ups added so far."""
        with self._lock:
            return tuple(self._follow_ups)

    # --- stopping --------------------------------------------------------------------------------------------------

    @property
    def cancelled(self) -> bool:
        """Whether the handler should stop; a sync handler should check this regularly."""
        return self._cancelled is not None

    @property
    def stop_reason(self) -> StopReason | None:
        """Why the handler should stop; None if it need not."""
        return self._cancelled

    def wait_cancelled(self, timeout: Duration | None = None) -> bool:
        """Block until the handler should stop or *timeout* seconds have passed; return whether it should stop.

        Use it instead of `time.sleep` in sync handlers. Do not use it in async handlers: it blocks the event loop.
        """
        seconds = None if timeout is None else validation.duration_ms(timeout, "timeout") / 1000
        with self._lock:
            stop = self._stop = self._stop or Event()
            if self.cancelled:
                stop.set()
        return stop.wait(seconds)

    def raise_if_cancelled(self) -> None:
        """Raise `Cancelled` if the handler should stop."""
        if self._cancelled is not None:
            raise Cancelled(self._cancelled)

    def request_stop(self, reason: StopReason = "cancel") -> bool:
        """Request the handler to stop; return whether this is the first request. For internal use."""
        with self._lock:
            if self._cancelled is not None:
                return False
            self._cancelled = reason
            if self._stop is not None:
                self._stop.set()
            return True

    # --- the store -------------------------------------------------------------------------------------------------

    def transaction(self, *, timeout: Duration = limits.TRANSACTION_MS_DEFAULT / 1000) -> TransactionBlock:
        """Return a context manager whose writes commit together with this job's settlement as done.

        It is available only in a worker. It is rolled back after *timeout* seconds, by default 5, because on SQLite
        it blocks every other writer.
        """
        seconds = validation.duration_ms(timeout, "timeout", 1, limits.TRANSACTION_MS_MAX) / 1000
        if self._open_transaction is None:
            raise Misconfigured("transaction() is available only in a handler that a worker runs")
        return self._open_transaction(seconds)

    def artifact(self, name: str) -> Artifact:
        """Read an artifact of this job: an input, or one that an earlier attempt stored. Blocks on the store.

        Raises `ArtifactNotFound` if there is none. For a session turn, it reads those of the first entry.
        """
        return self._artifact_reader().read(name)

    async def artifact_async(self, name: str) -> Artifact:
        """Read an artifact of this job in an async handler, as `artifact` does in a sync one."""
        return await self._artifact_reader().read_async(name)

    def _artifact_reader(self) -> ArtifactReader:
        if self._reader is None:
            raise Misconfigured("artifact() is available only in a handler that a worker runs")
        return self._reader


class _JobLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds the job's attributes to every record and keeps the caller's `extra`, which `LoggerAdapter` drops."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


def _merge(earlier: Note, phase: str | None, percent: float | None) -> Note:
    return Note(earlier.phase if phase is None else phase, earlier.percent if percent is None else percent)


def _new_job(job: object, payload: Json, options: JobOptions) -> NewJob:
    if isinstance(job, NewJob):
        if payload is not None or options:
            raise InvalidInput("payload" if payload is not None else min(options), "is already set by the NewJob")
        return job
    declared: JobOptions | None = getattr(job, "options", None)
    if declared is not None:
        merged: Any = {**declared, **options}
        return NewJob(getattr(job, "kind", ""), payload, **merged)
    return NewJob(job, payload, **options)  # type: ignore[arg-type]  # the check refuses a kind that is not a string

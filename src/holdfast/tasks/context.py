"""`Context`: what a handler sees of its own attempt. It collects and tells; it never reaches the store by itself.

The worker writes what was collected: progress with the next heartbeat, artifacts and follow-ups with the settlement.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, MutableMapping
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, Unpack

from holdfast.domain import limits, strict_json, validation
from holdfast.domain.claims import Claim, Note
from holdfast.domain.errors import InvalidInput, LeaseLost, Misconfigured
from holdfast.domain.job import Job
from holdfast.domain.new_job import JobLike, JobOptions, NewJob, check_job, parts_of
from holdfast.domain.outcomes import Artifact, check_artifacts
from holdfast.domain.strict_json import Json
from holdfast.domain.validation import Duration
from holdfast.tasks.control_flow import Cancelled

if TYPE_CHECKING:
    from types import TracebackType

    from holdfast.client.async_queue import AsyncTransaction
    from holdfast.client.queue import Transaction
    from holdfast.tasks.task import BaseTask, TaskRegistry

StopReason: TypeAlias = Literal["cancel", "timeout", "lost", "shutdown"]
"""Why a handler shall stop: the job was cancelled, its time is up, its lease is gone, or the worker goes down."""


class TransactionBlock(Protocol):
    """A block whose writes commit together with the settlement; entered as the handler's colour asks."""

    def __enter__(self) -> Transaction: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None: ...
    async def __aenter__(self) -> AsyncTransaction: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None: ...


class Context:
    """One attempt as its handler sees it. Safe to use from several threads."""

    __slots__ = (
        "_artifacts",
        "_cancelled",
        "_claim",
        "_ended",
        "_follow_ups",
        "_lock",
        "_logger",
        "_newest_progress",
        "_noted",
        "_open_transaction",
        "_stop",
        "_tasks",
    )

    def __init__(self, claim: Claim) -> None:
        self._claim = claim
        self._lock = Lock()
        self._noted: Note | None = None
        self._newest_progress = Note()
        self._artifacts: dict[str, Artifact] = {}
        self._follow_ups: list[NewJob] = []
        self._cancelled: StopReason | None = None
        self._ended = False
        # Made when first asked for: most handlers never do, and a worker makes a context for every job.
        self._stop: Event | None = None
        self._logger: logging.LoggerAdapter[logging.Logger] | None = None
        self._open_transaction: Callable[[float], TransactionBlock] | None = None
        self._tasks: TaskRegistry | None = None

    def __repr__(self) -> str:
        return f"<Context of {self.job!r}>"

    @property
    def job(self) -> Job:
        """The job as it stood when it was claimed."""
        return self._claim.job

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self._claim.job.attempt

    @property
    def epoch(self) -> int:
        """The fencing token: larger than that of every attempt before. Write it beside your own data."""
        return self._claim.job.epoch

    @property
    def lease_token(self) -> str:
        """The mark of this attempt's lease."""
        return self._claim.lease_token

    @property
    def worker(self) -> str:
        """The name of the worker that runs it."""
        return self._claim.job.worker or ""

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger named `holdfast.task.` and the kind, whose records carry `job_id`, `kind` and `attempt`."""
        if self._logger is None:
            self._logger = _JobLogger(logging.getLogger(f"holdfast.task.{self.job.kind}"), self._about())
        return self._logger

    def _about(self) -> dict[str, object]:
        return {"job_id": self.job.id, "kind": self.job.kind, "attempt": self.attempt}

    # --- telling ---------------------------------------------------------------------------------------------------

    def progress(self, phase: str | None = None, percent: float | None = None) -> None:
        """Note what the job is doing. The newest is written with the next heartbeat; a word not given stays.

        Raises `LeaseLost` if the attempt has ended: the handler has returned, or its time or its lease is over.
        """
        if self._ended:
            raise LeaseLost(self.job.id, self.epoch, "the attempt has ended")
        self.note_progress(phase, percent)

    def note_progress(self, phase: str | None = None, percent: float | None = None) -> None:
        """Note what the job is doing, for the worker: unlike `progress`, it is ignored after the end."""
        phase = validation.optional_name(phase, "phase", limits.PHASE_CHARS_MAX)
        percent = None if percent is None else validation.number(percent, "percent", 0, 100)
        with self._lock:
            self._noted = _merged(self._noted or Note(), phase, percent)
            self._newest_progress = _merged(self._newest_progress, phase, percent)

    @property
    def newest_progress(self) -> Note:
        """What the handler has noted so far, whether it is written or not."""
        return self._newest_progress

    def end(self) -> None:
        """Refuse progress from now on, for the worker: the outcome of the attempt is decided."""
        self._ended = True

    def take_progress(self) -> Note | None:
        """Return what was noted since this was last asked, for the worker to write."""
        with self._lock:
            noted, self._noted = self._noted, None
            return noted

    def return_progress(self, noted: Note | None) -> None:
        """Take back what could not be written, for the next time; what was noted since stands."""
        with self._lock:
            if noted is not None:
                newer = self._noted or Note()
                self._noted = Note(
                    noted.phase if newer.phase is None else newer.phase,
                    noted.percent if newer.percent is None else newer.percent,
                )

    # --- collecting ------------------------------------------------------------------------------------------------

    def attach(self, name: str, data: bytes, media_type: str = "application/octet-stream") -> None:
        """Keep an artifact to be stored if the attempt is done; one of the same name is replaced."""
        artifact = Artifact(name, data, media_type)
        try:
            check_artifacts([artifact])
        except InvalidInput as error:
            raise InvalidInput(error.field.rpartition(".")[2], error.problem) from None
        with self._lock:
            if name not in self._artifacts and len(self._artifacts) >= limits.ARTIFACTS_MAX:
                raise InvalidInput("name", f"is one artifact too many; the limit is {limits.ARTIFACTS_MAX}")
            self._artifacts[name] = artifact

    def follow_up(
        self, job: str | NewJob | BaseTask[Any, Any], payload: Json = None, **options: Unpack[JobOptions]
    ) -> None:
        """Keep a job to be enqueued if the attempt is done: by kind and payload, or made by a task's `new`.

        It belongs to the tenant of this job unless it names another.
        """
        new = self.completed(_new_job(job, payload, options))
        admission = check_job(new, fresh_id="checked", tenant=self.job.tenant)
        kind, _, completed = parts_of(new)
        # A copy, because the handler may go on to change what it gave.
        kept = NewJob(kind, strict_json.decode(admission.payload_json), **completed)
        with self._lock:
            if len(self._follow_ups) >= limits.FOLLOW_UPS_MAX:
                raise InvalidInput("job", f"is one follow-up too many; the limit is {limits.FOLLOW_UPS_MAX}")
            self._follow_ups.append(kept)

    def completed(self, new: JobLike) -> JobLike:
        """Return *new* with the options of the task that the worker's queue declares for its kind, if any."""
        return new if self._tasks is None else self._tasks.complete(new)

    @property
    def collected(self) -> bool:
        """Whether there is anything to be stored beside the result."""
        return bool(self._artifacts or self._follow_ups)

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        """What was attached so far."""
        with self._lock:
            return tuple(self._artifacts.values())

    @property
    def follow_ups(self) -> tuple[NewJob, ...]:
        """The follow-ups collected so far."""
        with self._lock:
            return tuple(self._follow_ups)

    # --- stopping --------------------------------------------------------------------------------------------------

    @property
    def cancelled(self) -> bool:
        """Whether the handler shall stop; one that blocks should look now and then."""
        return self._cancelled is not None

    @property
    def stop_reason(self) -> StopReason | None:
        """Why it shall stop, if it shall."""
        return self._cancelled

    def wait_cancelled(self, timeout: Duration | None = None) -> bool:
        """Block until the handler shall stop, or *timeout* seconds have passed; return whether it shall.

        A pause in a function that blocks is best made with this. It blocks an event loop: there, just await.
        """
        seconds = None if timeout is None else validation.duration_ms(timeout, "timeout") / 1000
        with self._lock:
            stop = self._stop = self._stop or Event()
            if self.cancelled:
                stop.set()
        return stop.wait(seconds)

    def raise_if_cancelled(self) -> None:
        """Raise `Cancelled` if the handler shall stop."""
        if self._cancelled is not None:
            raise Cancelled(self._cancelled)

    def ask_to_stop(self, reason: StopReason = "cancel") -> bool:
        """Tell the handler to stop, for the worker to call; return whether this is the first to say so."""
        with self._lock:
            if self._cancelled is not None:
                return False
            self._cancelled = reason
            if self._stop is not None:
                self._stop.set()
            return True

    # --- the store -------------------------------------------------------------------------------------------------

    def transaction(self, *, timeout: Duration = limits.TRANSACTION_MS_DEFAULT / 1000) -> TransactionBlock:
        """Open a block whose writes and this job's settlement as done are one commit; only a worker can.

        It is undone after *timeout* seconds, because on SQLite it holds up every other writer.
        """
        seconds = validation.duration_ms(timeout, "timeout", 1, limits.TRANSACTION_MS_MAX) / 1000
        if self._open_transaction is None:
            raise Misconfigured("a transaction can be opened only in a handler that a worker runs")
        return self._open_transaction(seconds)


class _JobLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds the job to every record, beside what the caller adds; the standard one leaves only one of the two."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


def _merged(before: Note, phase: str | None, percent: float | None) -> Note:
    return Note(before.phase if phase is None else phase, before.percent if percent is None else percent)


def _new_job(job: object, payload: Json, options: JobOptions) -> NewJob:
    if isinstance(job, NewJob):
        if payload is not None or options:
            raise InvalidInput("payload" if payload is not None else min(options), "is said by the NewJob already")
        return job
    declared: JobOptions | None = getattr(job, "options", None)
    if declared is not None:
        merged: Any = {**declared, **options}
        return NewJob(getattr(job, "kind", ""), payload, **merged)
    return NewJob(job, payload, **options)  # type: ignore[arg-type]  # anything but a name is refused by the check

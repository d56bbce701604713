"""`HandlerState`: what the handler of an attempt and its worker share.

The handler uses it through its `Context`: it reports progress, emits output and collects artifacts and follow-ups.
The worker takes these, writes them, and requests the handler to stop. It never calls the store itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, MutableMapping
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from holdfast.domain import artifacts, errors, gates, limits, new_job, output, session_claims, validation
from holdfast.domain.artifacts import AnyArtifact, Artifact
from holdfast.domain.claims import Claim, Note
from holdfast.domain.job import Job
from holdfast.tasks.output_buffer import OutputBuffer

if TYPE_CHECKING:
    from types import TracebackType

    from holdfast.client.async_api.queue import AsyncTransaction
    from holdfast.client.sync_api.queue import Transaction
    from holdfast.tasks.definition import TaskTable

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


class JobReader(Protocol):
    """Reads artifacts of one job and the jobs on which it depends, sync and async."""

    def read(self, name: str) -> Artifact:
        """Return one artifact."""
        ...

    async def read_async(self, name: str) -> Artifact:
        """Return one artifact."""
        ...

    def parents(self) -> list[Job]:
        """Return the jobs on which it depends."""
        ...

    async def parents_async(self) -> list[Job]:
        """Return the jobs on which it depends."""
        ...


class CheckpointSource(Protocol):
    """Claims more entries for a running turn, sync and async; provided by the worker."""

    def claim(self) -> list[Any]:
        """Claim waiting entries for the turn; return their messages."""
        ...

    async def claim_async(self) -> list[Any]:
        """Claim waiting entries for the turn; return their messages."""
        ...


class HandlerState:
    """What the handler of one attempt has reported and collected, and whether it should stop. Thread-safe."""

    __slots__ = (
        "_artifacts",
        "_ended",
        "_follow_up_size",
        "_follow_ups",
        "_lock",
        "_logger",
        "_pending_progress",
        "_stop",
        "_used",
        "claim",
        "latest_progress",
        "on_output",
        "open_transaction",
        "output",
        "reader",
        "stop_reason",
        "tasks",
    )

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.latest_progress = Note()
        """The latest progress, written or not."""
        self.stop_reason: StopReason | None = None
        """Why the handler should stop; None if it need not."""
        self._lock = Lock()
        self._pending_progress: Note | None = None
        self._artifacts: dict[str, AnyArtifact] = {}
        self._follow_ups: list[new_job.NewJob] = []
        self._used: dict[str, int] | None = None
        self._follow_up_size = 0
        self._ended = False
        # Created on first use: a worker creates a state for every job, and most handlers never need these.
        self._stop: Event | None = None
        self._logger: logging.LoggerAdapter[logging.Logger] | None = None
        self.output: OutputBuffer | None = None
        """The text that the handler has emitted; None if it has emitted none."""
        # Set by the worker.
        self.on_output: Callable[[], None] | None = None
        """Called when the first text waits to be written."""
        self.open_transaction: Callable[[float], TransactionBlock] | None = None
        self.reader: JobReader | None = None
        self.tasks: TaskTable | None = None
        """The tasks of the worker's queue, whose options apply to follow-ups."""

    @property
    def job(self) -> Job:
        """The job as it was when it was claimed."""
        return self.claim.job

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """The logger of the handler, whose records have the attributes of the job."""
        if self._logger is None:
            self._logger = _JobLogger(logging.getLogger(f"holdfast.task.{self.job.kind}"), self._log_fields())
        return self._logger

    def _log_fields(self) -> dict[str, object]:
        return {"job_id": self.job.id, "kind": self.job.kind, "attempt": self.job.attempt}

    # --- progress --------------------------------------------------------------------------------------------------

    def progress(self, phase: str | None, percent: float | None) -> None:
        """Record progress, or raise `LeaseLost` if the attempt has ended."""
        self._check_running()
        self.note_progress(phase, percent)

    def note_progress(self, phase: str | None = None, percent: float | None = None) -> None:
        """Record progress, also after the end of the attempt."""
        phase = validation.optional_name(phase, "phase", limits.PHASE_CHARS_MAX)
        percent = None if percent is None else validation.number(percent, "percent", 0, 100)
        with self._lock:
            self._pending_progress = _merge(self._pending_progress or Note(), phase, percent)
            self.latest_progress = _merge(self.latest_progress, phase, percent)

    def take_progress(self) -> Note | None:
        """Return the progress noted since the last call, if any, for the worker to write."""
        with self._lock:
            note, self._pending_progress = self._pending_progress, None
            return note

    def return_progress(self, note: Note | None) -> None:
        """Restore progress that could not be written; newer values win."""
        with self._lock:
            if note is not None:
                newer = self._pending_progress or Note()
                self._pending_progress = _merge(note, newer.phase, newer.percent)

    def end(self) -> None:
        """Refuse further progress and output, because the attempt is decided."""
        self._ended = True

    def _check_running(self) -> None:
        if self._ended:
            raise errors.LeaseLost(self.job.id, self.job.epoch, "the attempt has ended")

    # --- output and collected data ---------------------------------------------------------------------------------

    def emit(self, text: str) -> None:
        """Append *text* to the output that the worker writes, or raise `LeaseLost` if the attempt has ended."""
        if not output.check_text(text):
            return
        self._check_running()
        with self._lock:
            buffer = self.output
            if buffer is None:
                buffer = self.output = OutputBuffer()
        if buffer.add(text) and self.on_output is not None:
            self.on_output()

    def add_artifact(self, artifact: AnyArtifact, size: int) -> None:
        """Add a validated artifact of *size* bytes; replace one of the same name."""
        name = artifact.name
        with self._lock:
            if name not in self._artifacts and len(self._artifacts) >= limits.ARTIFACTS_MAX:
                raise errors.InvalidInput("name", f"exceeds the limit of {limits.ARTIFACTS_MAX} artifacts")
            others = [one for one in self._artifacts.values() if isinstance(one, Artifact) and one.name != name]
            artifacts.check_direct_size(size + sum(len(one.data) for one in others), "data")
            self._artifacts[name] = artifact

    def add_follow_up(self, new: new_job.NewJob, size: int) -> None:
        """Add a validated job, whose payload has *size* characters, to enqueue with the settlement."""
        with self._lock:
            if len(self._follow_ups) >= limits.FOLLOW_UPS_MAX:
                raise errors.InvalidInput("job", f"exceeds the limit of {limits.FOLLOW_UPS_MAX} follow-ups")
            if self._follow_up_size + size > limits.ENQUEUE_MANY_BYTES_MAX:
                problem = f"makes the payloads of the follow-ups exceed {limits.ENQUEUE_MANY_BYTES_MAX} bytes"
                raise errors.InvalidInput("payload", problem)
            self._follow_up_size += size
            self._follow_ups.append(new)

    def complete(self, new: new_job.JobLike) -> new_job.JobLike:
        """Return *new* with the options of the task that the worker's queue declares, if any."""
        return new if self.tasks is None else self.tasks.complete(new)

    @property
    def collected(self) -> bool:
        """Whether there are artifacts, follow-ups or amounts used."""
        return bool(self._artifacts or self._follow_ups or self._used)

    def add_used(self, amounts: dict[str, int]) -> None:
        """Add to what the attempt has used."""
        with self._lock:
            used = self._used or {}
            total = {name: used.get(name, 0) + amount for name, amount in gates.check_usage(amounts)}
            self._used = dict(gates.check_usage({**used, **total}))

    @property
    def used(self) -> dict[str, int] | None:
        """What the attempt has used so far; None if nothing was reported."""
        return self._used

    @property
    def artifacts(self) -> tuple[AnyArtifact, ...]:
        """The artifacts attached so far."""
        with self._lock:
            return tuple(self._artifacts.values())

    @property
    def follow_ups(self) -> tuple[new_job.NewJob, ...]:
        """The follow-ups added so far."""
        with self._lock:
            return tuple(self._follow_ups)

    # --- stopping --------------------------------------------------------------------------------------------------

    def request_stop(self, reason: StopReason = "cancel") -> bool:
        """Request the handler to stop; return whether this is the first request."""
        with self._lock:
            if self.stop_reason is not None:
                return False
            self.stop_reason = reason
            if self._stop is not None:
                self._stop.set()
            return True

    def wait_stopped(self, seconds: float | None) -> bool:
        """Block until a stop is requested or *seconds* have passed; return whether it was requested."""
        with self._lock:
            stop = self._stop = self._stop or Event()
            if self.stop_reason is not None:
                stop.set()
        return stop.wait(seconds)


class TurnState(HandlerState):
    """The state of a handler that runs a turn of a session; progress and output are those of the first entry."""

    __slots__ = ("checkpoints", "turn")

    def __init__(self, turn: session_claims.SessionClaim) -> None:
        super().__init__(turn.claims[0])
        self.turn = turn
        """The claim, including entries added at checkpoints."""
        self.checkpoints: CheckpointSource | None = None
        """Set by the worker."""

    def add_entries(self, more: session_claims.SessionClaim) -> None:
        """Add the entries of *more* to the turn."""
        with self._lock:
            self.turn = self.turn.joined(more)

    def _log_fields(self) -> dict[str, object]:
        return {**super()._log_fields(), "session": self.turn.session}


class _JobLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds the job's attributes to every record and keeps the caller's `extra`, which `LoggerAdapter` drops."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


def _merge(earlier: Note, phase: str | None, percent: float | None) -> Note:
    return Note(earlier.phase if phase is None else phase, earlier.percent if percent is None else percent)

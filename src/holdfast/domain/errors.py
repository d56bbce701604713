"""Every error Holdfast raises, arranged by what the caller should do next.

    HoldfastError
    ├── Refused            the request contradicts the store: do not retry it as it is
    │   ├── JobNotFound        no such job, or not one this caller may see
    │   ├── ArtifactNotFound   the job has no artifact of this name
    │   ├── LeaseLost          the lease expired or another claim outranks yours: stop working
    │   ├── Conflict           the job is in a state, or has content, that forbids this
    │   ├── LaneDraining       the lane takes no new jobs
    │   ├── KindRetired        the kind takes no new jobs
    │   └── EventsPruned       the cursor lies before what the event log still holds
    ├── Unavailable        the store could not answer, or a worker not go on: retry with backoff
    │   ├── StoreBusy          others held the store for too long
    │   ├── StoreUnreachable   the file or server cannot be opened or read
    │   ├── StoreFull          no space is left
    │   ├── OutcomeUnknown     the commit was sent and not answered: send the same call again
    │   ├── HandlersStuck      too many handlers run on though they were told to stop: start the worker again
    │   └── WaitTimeout        the job had not finished in time (also a TimeoutError)
    └── Misconfigured      the program, its input or the schema is wrong: fix it
        ├── InvalidInput       an argument is wrong; names the field and the limit (also a ValueError)
        ├── UnknownKind        a kind that is not known where it is named
        ├── ReadOnlyStore      the store can be read but not written
        ├── SchemaMismatch     the schema needs other code than this
        ├── UnsupportedStore   the database library or file system is not one Holdfast can trust
        └── StoreDamaged       the file is not a sound database

Each leaf has a stable `code`, the same in the library, on the command line and in the docs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from holdfast.domain.masking import mask_url


class HoldfastError(Exception):
    """Base of all errors that Holdfast raises on purpose. Credentials in the message are masked."""

    code: ClassVar[str] = "holdfast_error"

    def __init__(self, message: str = "") -> None:
        super().__init__(mask_url(message))


class Refused(HoldfastError):
    """The request contradicts what the store holds; repeating it unchanged will not help.

    `place` says which part of a call was refused, such as `jobs[3]`, where it had several.
    """

    code = "refused"
    place: str | None = None

    def __str__(self) -> str:
        return super().__str__() if self.place is None else f"{self.place}: {super().__str__()}"


class Unavailable(HoldfastError):
    """The store could not answer now; the same call may succeed later."""

    code = "unavailable"


class Misconfigured(HoldfastError):
    """The program, its input or the schema is wrong; somebody has to change it."""

    code = "misconfigured"


class JobNotFound(Refused):
    """No job of this id exists, or it belongs to a tenant this call may not see."""

    code = "job_not_found"

    def __init__(self, job_id: str) -> None:
        super().__init__(f"no job {job_id!r}")
        self.job_id = job_id


class ArtifactNotFound(Refused):
    """The job exists but has no artifact of this name."""

    code = "artifact_not_found"

    def __init__(self, job_id: str, name: str) -> None:
        super().__init__(f"job {job_id!r} has no artifact {name!r}")
        self.job_id = job_id
        self.name = name


class LeaseLost(Refused):
    """The lease is not held any more: it expired, or another claim outranks it. Stop working on the job."""

    code = "lease_lost"

    def __init__(self, job_id: str, epoch: int, why: str, *, thing: str = "job", counter: str = "epoch") -> None:
        super().__init__(f"lease on {thing} {job_id!r} at {counter} {epoch} is lost: {why}")
        self.job_id = job_id
        self.epoch = epoch
        self.why = why


class Conflict(Refused):
    """The job's state or content forbids this request; `job_id` names the job in the way, if any."""

    code = "conflict"

    def __init__(self, problem: str, *, job_id: str | None = None) -> None:
        super().__init__(problem)
        self.job_id = job_id


class LaneDraining(Refused):
    """The lane is draining: what is in it is worked off, nothing new is taken in."""

    code = "lane_draining"

    def __init__(self, lane: str) -> None:
        super().__init__(f"lane {lane!r} is draining and takes no new jobs; set it active to enqueue again")
        self.lane = lane


class KindRetired(Refused):
    """The kind was retired: its waiting jobs were set aside and new ones are refused."""

    code = "kind_retired"

    def __init__(self, kind: str) -> None:
        super().__init__(f"kind {kind!r} is retired and takes no new jobs; restore it to enqueue again")
        self.kind = kind


class EventsPruned(Refused):
    """Events after this cursor were pruned before they were read; go on from `horizon`, knowing of the gap."""

    code = "events_pruned"

    def __init__(self, horizon: str) -> None:
        super().__init__(
            f"events after this cursor have been pruned; read on from cursor {horizon!r} and expect a gap"
        )
        self.horizon = horizon


class StoreBusy(Unavailable):
    """Other writers held the store for longer than this call was willing to wait."""

    code = "store_busy"


class StoreUnreachable(Unavailable):
    """The store cannot be opened, read or written now."""

    code = "store_unreachable"


class StoreFull(Unavailable):
    """No space is left for the write; nothing of it was stored."""

    code = "store_full"


class OutcomeUnknown(Unavailable):
    """The commit was sent and not answered. Send the same call again: that is always safe."""

    code = "outcome_unknown"


class WaitTimeout(Unavailable, TimeoutError):
    """The job had not finished within the time given; it goes on unharmed."""

    code = "wait_timeout"

    def __init__(self, job_id: str, timeout: float) -> None:
        super().__init__(f"job {job_id!r} had not finished after {timeout:g} s")
        self.job_id = job_id


class HandlersStuck(Unavailable):
    """More handlers than a worker has slots run on though they were told to stop; only a new process ends them."""

    code = "handlers_stuck"

    def __init__(self, count: int, kinds: Sequence[str]) -> None:
        super().__init__(
            f"{count} handlers run on though they were told to stop, of kind {', '.join(kinds)};"
            " the worker ends, so that its process can be started again"
        )
        self.count = count
        self.kinds = tuple(kinds)


class InvalidInput(Misconfigured, ValueError):
    """An argument is wrong. `field` names it; nothing was stored."""

    code = "invalid_input"

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = mask_url(problem)


class UnknownKind(Misconfigured):
    """The kind is not known where it is named."""

    code = "unknown_kind"

    def __init__(self, kind: str, problem: str) -> None:
        super().__init__(f"kind {kind!r}: {problem}")
        self.kind = kind


class ReadOnlyStore(Misconfigured):
    """The store can be read but not written by this process."""

    code = "read_only_store"


class SchemaMismatch(Misconfigured):
    """The schema in the store and this code do not fit together."""

    code = "schema_mismatch"


class UnsupportedStore(Misconfigured):
    """The database library, server or file system is not one whose promises Holdfast can build on."""

    code = "unsupported_store"


class StoreDamaged(Misconfigured):
    """The file is not a sound database; restore it from a backup."""

    code = "store_damaged"

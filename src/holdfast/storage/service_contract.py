"""The part of the storage contract for the HTTP service and operators: tokens, audit log, workers, health."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence

from holdfast.domain import access, clock, job, results, strict_json
from holdfast.storage.plain_contract import Form
from holdfast.storage.webhook_contract import WebhookTransaction


class ServiceTransaction(WebhookTransaction):
    """Methods of an open transaction that concern tokens, the audit log, shared readers, workers and health."""

    __slots__ = ()

    @abstractmethod
    async def insert_token(self, stored: access.StoredToken) -> None:
        """Store a new token."""

    @abstractmethod
    async def newest_tokens(self, limit: int) -> list[access.StoredToken]:
        """Return the tokens that were created last."""

    @abstractmethod
    async def tokens_by_id(self, ids: Sequence[str]) -> list[access.StoredToken]:
        """Return the tokens with these ids, in any order."""

    @abstractmethod
    async def expire_token(self, token_id: str, at_ms: int) -> None:
        """Let a token expire at a time, unless it expires earlier."""

    @abstractmethod
    async def revoke_token(self, token_id: str, now: clock.Now) -> None:
        """Revoke a token; an earlier revocation remains."""

    @abstractmethod
    async def touch_token(self, token_id: str, now: clock.Now, before_ms: int) -> None:
        """Store that a token was used, unless that was stored after *before_ms*."""

    @abstractmethod
    async def append_audit(
        self, actor: str, action: str, target: str, detail: dict[str, strict_json.Json], now: clock.Now
    ) -> None:
        """Append an action to the audit log."""

    @abstractmethod
    async def audit_entries(self, before: int, limit: int) -> list[access.AuditEntry]:
        """Return entries of the audit log below one, newest first."""

    @abstractmethod
    async def newest_event(self) -> tuple[int, int] | None:
        """Return the position of the newest event that can be read."""

    @abstractmethod
    async def finished_jobs(self, job_ids: Sequence[str], now: clock.Now) -> list[job.JobRow]:
        """Return those of these jobs that have finished, or wait although their deadline has passed."""

    # --- workers and health -----------------------------------------------------------------------------------------

    @abstractmethod
    async def write_worker(
        self, worker: results.WorkerInfo, forms: Mapping[Form, int], now: clock.Now
    ) -> results.WorkerRequest | None:
        """Store the status of one start of a worker, and what the process has counted; return what was requested."""

    @abstractmethod
    async def forms_of_workers(self, since_ms: int, limit: int) -> Mapping[Form, int]:
        """Return how often calls took each form, over processes of workers that have reported since a time."""

    @abstractmethod
    async def request_worker(self, worker: str, requested: results.WorkerRequest) -> None:
        """Request every start of a worker to drain or stop; a request to stop is not replaced."""

    @abstractmethod
    async def workers_of_name(self, worker: str) -> list[results.WorkerInfo]:
        """Return every start of a worker, with the number of jobs each holds."""

    @abstractmethod
    async def delete_worker(self, worker: str, incarnation: str) -> None:
        """Delete the row of one start of a worker."""

    @abstractmethod
    async def forget_workers(self, before_ms: int, limit: int) -> None:
        """Delete workers that have not reported since a time."""

    @abstractmethod
    async def newest_workers(self, limit: int) -> list[results.WorkerInfo]:
        """Return the workers that reported last, with the number of jobs each holds."""

    @abstractmethod
    async def ready_counts(self, maximum: int) -> list[tuple[str, str, str, int]]:
        """Return lane, kind, requirements and the number of ready jobs, counted up to *maximum*, of each route."""

    @abstractmethod
    async def oldest_ready(self, priorities: int, fair_keys: int, heads: int) -> list[tuple[str, str, int]]:
        """Return lane, kind and due time of some ready jobs, among them the oldest of each lane and kind."""

    @abstractmethod
    async def ready_affinities(self, affinities: int, maximum: int) -> list[tuple[str, int]]:
        """Return the affinities of ready jobs with the number of these; all together are counted up to *maximum*."""

    @abstractmethod
    async def unfinished_counts(self, now: clock.Now, maximum: int) -> tuple[int, ...]:
        """Return how many jobs are scheduled, blocked, running, expired, suspect, dependent and parked.

        Each is counted up to *maximum*.
        """

    @abstractmethod
    async def problem_counts(self, now: clock.Now) -> tuple[int, int, int]:
        """Return how many leases have expired, how many jobs are suspect, and how many are due but not ready."""

    @abstractmethod
    async def health(self) -> list[results.Finding]:
        """Return the engine's findings about its own health."""

"""The part of the storage contract for webhooks."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from holdfast.domain.webhooks import Position, StoredWebhook


class WebhookTransaction(ABC):
    """Methods of an open transaction that concern webhooks."""

    __slots__ = ()

    @abstractmethod
    async def insert_webhook(self, stored: StoredWebhook) -> None:
        """Store a new webhook; one with the same id remains."""

    @abstractmethod
    async def write_webhook(self, stored: StoredWebhook) -> None:
        """Store the state and the secrets of a webhook."""

    @abstractmethod
    async def write_places(self, webhooks: Sequence[StoredWebhook]) -> None:
        """Store which processes have places at endpoints."""

    @abstractmethod
    async def delete_webhook(self, webhook_id: str) -> None:
        """Delete a webhook."""

    @abstractmethod
    async def webhooks_by_id(self, ids: Sequence[str]) -> list[StoredWebhook]:
        """Return the webhooks with these ids, in any order."""

    @abstractmethod
    async def active_webhooks(self) -> list[StoredWebhook]:
        """Return all active webhooks, without locking them."""

    @abstractmethod
    async def newest_webhooks(self, tenant: str | None, limit: int) -> list[StoredWebhook]:
        """Return the webhooks that were added last, without locking them; those of any tenant if it is None."""

    @abstractmethod
    async def has_webhooks(self) -> bool:
        """Return whether there is an active webhook or a job with a URL."""

    @abstractmethod
    async def has_ready_jobs(self, lane: str) -> bool:
        """Return whether a lane has a ready job."""

    @abstractmethod
    async def insert_job_urls(self, urls: Sequence[tuple[str, str]]) -> None:
        """Store pairs of job id and URL; a later one of a job replaces the earlier."""

    @abstractmethod
    async def job_urls(self, job_ids: Sequence[str]) -> dict[str, str]:
        """Return the URLs of those of these jobs that have one, by job id."""

    @abstractmethod
    async def forget_job_urls(self, after: str, limit: int) -> tuple[int, str | None]:
        """Delete the URLs of deleted jobs among the next ones after a job id.

        Return how many, and the id after which to continue; None at the end.
        """

    @abstractmethod
    async def webhook_position(self) -> Position:
        """Return the dispatcher's position, without locking it."""

    @abstractmethod
    async def move_webhook_position(self, before: Position, after: Position) -> bool:
        """Replace the position; return whether it was still *before*."""

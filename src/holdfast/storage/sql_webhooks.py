"""Webhooks, by named queries."""

from collections.abc import Sequence
from typing import Any

from holdfast.domain import strict_json, validation, webhooks
from holdfast.storage.sql_queries import Row, SqlQueries


class SqlWebhooks(SqlQueries):
    """Webhooks, the dispatcher's position, and the URLs of jobs."""

    __slots__ = ()

    async def insert_webhook(self, stored: webhooks.StoredWebhook) -> None:
        """Store a new webhook."""
        await self.query("webhook_insert", _values(stored))

    async def write_webhook(self, stored: webhooks.StoredWebhook) -> None:
        """Store the state and the secrets of a webhook."""
        values = _values(stored)
        for name in ("url", "tenant", "types", "kinds", "lanes", "tags", "include_results", "concurrency"):
            del values[name]
        del values["per_job"], values["created_at_ms"], values["places"]
        await self.query("webhook_write", values)

    async def write_places(self, found: Sequence[webhooks.StoredWebhook]) -> None:
        """Store which processes have places at endpoints."""
        await self.query(
            "webhook_places_write", {"rows": [[one.id, webhooks.places_to_json(one.places)] for one in found]}
        )

    async def delete_webhook(self, webhook_id: str) -> None:
        """Delete a webhook."""
        await self.query("webhook_delete", {"id": webhook_id})

    async def webhooks_by_id(self, ids: Sequence[str]) -> list[webhooks.StoredWebhook]:
        """Return the webhooks with these ids."""
        return [_stored(row) for row in await self.query("webhooks_by_id", {"ids": list(ids)})]

    async def active_webhooks(self) -> list[webhooks.StoredWebhook]:
        """Return all active webhooks."""
        return [_stored(row) for row in await self.query("webhooks_active")]

    async def newest_webhooks(self, tenant: str | None, limit: int) -> list[webhooks.StoredWebhook]:
        """Return the webhooks that were added last."""
        return [_stored(row) for row in await self.query("webhooks_newest", {"tenant": tenant, "limit": limit})]

    async def has_webhooks(self) -> bool:
        """Return whether there is an active webhook or a job with a URL."""
        [[found]] = await self.query("webhook_exists")
        return bool(found)

    async def has_ready_jobs(self, lane: str) -> bool:
        """Return whether a lane has a ready job."""
        [[found]] = await self.query("webhook_lane_ready", {"lane": lane})
        return bool(found)

    async def insert_job_urls(self, urls: Sequence[tuple[str, str]]) -> None:
        """Store the URLs of jobs."""
        await self.query("webhook_job_insert", {"rows": [list(pair) for pair in dict(urls).items()]})

    async def job_urls(self, job_ids: Sequence[str]) -> dict[str, str]:
        """Return the URLs of those of these jobs that have one."""
        return dict(await self.query("webhook_job_urls", {"ids": list(job_ids)}))

    async def forget_job_urls(self, after: str, limit: int) -> tuple[int, str | None]:
        """Delete the URLs of deleted jobs among the next ones after a job id."""
        rows = await self.query("webhook_jobs_after", {"after": after, "limit": limit})
        deleted = [job_id for job_id, exists in rows if not exists]
        if deleted:
            await self.query("webhook_jobs_delete", {"ids": deleted})
        return len(deleted), rows[-1][0] if len(rows) == limit else None

    async def webhook_position(self) -> webhooks.Position:
        """Return the dispatcher's position."""
        [[value]] = await self.query("webhook_position")
        place, until, holder = value.split(" ", 2)
        transaction, event = place.split("-")
        return webhooks.Position(int(transaction), int(event), holder or None, int(until))

    async def move_webhook_position(self, before: webhooks.Position, after: webhooks.Position) -> bool:
        """Replace the position unless it has changed."""
        values = {"old": _text(before), "new": _text(after)}
        [[count]] = await self.query("webhook_position_write", values)
        return bool(count)


def _text(position: webhooks.Position) -> str:
    return f"{position.transaction}-{position.event} {position.until_ms} {position.holder or ''}"


def _values(stored: webhooks.StoredWebhook) -> dict[str, Any]:
    one = stored.webhook
    times = {
        f"{name}_ms": None if getattr(one, name) is None else validation.milliseconds_of(getattr(one, name))
        for name in ("created_at", "since", "last_success_at", "failing_since", "closed_until")
    }
    return {
        "id": one.id,
        "url": one.url,
        "tenant": one.tenant,
        "types": strict_json.compact(list(one.types)),
        "kinds": None if one.kinds is None else strict_json.compact(list(one.kinds)),
        "lanes": None if one.lanes is None else strict_json.compact(list(one.lanes)),
        "tags": strict_json.compact(dict(one.tags)),
        "include_results": int(one.include_results),
        "concurrency": one.concurrency,
        "per_job": int(one.per_job),
        "state": one.state,
        "reason": one.reason,
        **times,
        "last_answer": one.last_answer,
        "secrets": webhooks.secrets_to_json(stored.secrets),
        "closings": stored.closings,
        "probe_until_ms": stored.probe_until_ms,
        "places": webhooks.places_to_json(stored.places),
    }


def _stored(row: Row) -> webhooks.StoredWebhook:
    webhook_id, url, tenant, types, kinds, lanes, tags, results, concurrency, per_job, state, reason, *rest = row
    created, since, success, failing, closed, answer, secrets, closings, probe_until_ms, places = rest
    one = webhooks.Webhook(
        webhook_id,
        url,
        tenant,
        tuple(strict_json.decode(types)),
        None if kinds is None else tuple(strict_json.decode(kinds)),
        None if lanes is None else tuple(strict_json.decode(lanes)),
        strict_json.decode(tags),
        bool(results),
        concurrency,
        bool(per_job),
        state,
        reason,
        validation.datetime_of(created),
        validation.datetime_of(since),
        validation.optional_datetime_of(success),
        validation.optional_datetime_of(failing),
        validation.optional_datetime_of(closed),
        answer,
    )
    held = webhooks.places_from_json(places)
    return webhooks.StoredWebhook(one, webhooks.secrets_from_json(secrets), closings, probe_until_ms, held)

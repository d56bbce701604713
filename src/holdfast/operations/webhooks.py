"""Webhooks: subscriptions, reading the event log for all of them, and the state of endpoints."""

import base64
import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from holdfast.domain import (
    codec,
    errors,
    events,
    limits,
    new_job,
    routing,
    strict_json,
    validation,
    webhook_signatures,
    webhook_urls,
    webhooks,
)
from holdfast.domain.job import Job, State, job_of
from holdfast.domain.results import JobFilter, Requeued
from holdfast.operations import admin, enqueue, jobs as job_operations, webhook_events
from holdfast.storage import contract

LEASE_MS = 10_000
"""How long a process reads the log without renewing; another takes over then."""


# --- subscriptions -------------------------------------------------------------------------------------------------


async def add_webhook(
    tx: contract.StoreTransaction, webhook_id: str, new: webhooks.CheckedWebhook, secret: str, actor: str
) -> webhooks.Webhook:
    """Store a webhook, to which events from now on are delivered; sent again, return the webhook."""
    tenant = new.tenant
    if new.per_job:
        tenant = tenant or routing.DEFAULT_NAME
        webhook_id = endpoint_id(tenant, new.url)
    for existing in await tx.webhooks_by_id([webhook_id]):
        if existing.secrets[0].text == secret:
            return existing.webhook
        if new.per_job:
            raise errors.Conflict(f"webhook {webhook_id!r} serves this origin; rotate it for a new secret")
        raise errors.Conflict("a webhook with this id exists")
    await webhook_events.start_reading(tx)
    now = await tx.now()
    at = validation.datetime_of(now.wall_ms)
    one = webhooks.Webhook(
        webhook_id, new.url, tenant, *new[2:], state="active", reason=None, created_at=at, since=at
    )
    await tx.insert_webhook(webhooks.StoredWebhook(one, (webhook_signatures.StoredSecret(secret),)))
    await tx.append_audit(actor, "webhooks.add", webhook_id, {"url": new.url, "tenant": tenant}, now)
    return one


def endpoint_id(tenant: str, origin: str) -> str:
    """Return the id of the webhook for the jobs of a tenant with URLs of one origin; callers cannot choose it."""
    digest = hashlib.blake2b(strict_json.canonical([tenant, origin]), digest_size=10).digest()
    return f"whj_{base64.b32encode(digest).decode().lower()}"


async def _get(tx: contract.StoreTransaction, webhook_id: str, tenant: str | None) -> webhooks.StoredWebhook:
    found = await tx.webhooks_by_id([webhook_id])
    if not found or tenant not in {None, found[0].webhook.tenant}:
        raise errors.WebhookNotFound(webhook_id)
    return found[0]


async def get_webhook(tx: contract.StoreTransaction, webhook_id: str, tenant: str | None) -> webhooks.Webhook:
    """Return a webhook, or raise `WebhookNotFound`."""
    return (await _get(tx, webhook_id, tenant)).webhook


async def list_webhooks(tx: contract.StoreTransaction, tenant: str | None, limit: int) -> list[webhooks.Webhook]:
    """Return the webhooks that were added last."""
    return [stored.webhook for stored in await tx.newest_webhooks(tenant, limit)]


async def remove_webhook(
    tx: contract.StoreTransaction, webhook_id: str, tenant: str | None, actor: str
) -> webhooks.Webhook:
    """Delete a webhook; its deliveries that are not yet made fail."""
    one = (await _get(tx, webhook_id, tenant)).webhook
    await tx.delete_webhook(webhook_id)
    await tx.append_audit(actor, "webhooks.remove", webhook_id, {"url": one.url}, await tx.now())
    return one


async def enable_webhook(
    tx: contract.StoreTransaction, webhook_id: str, tenant: str | None, actor: str
) -> webhooks.Webhook:
    """Deliver events from now on to a webhook that was disabled; open its endpoint if it is closed."""
    stored = await _get(tx, webhook_id, tenant)
    await webhook_events.start_reading(tx)
    now = await tx.now()
    since = validation.datetime_of(now.wall_ms) if stored.webhook.state == "disabled" else stored.webhook.since
    one = replace(stored.webhook, state="active", reason=None, since=since, failing_since=None, closed_until=None)
    await tx.write_webhook(stored._replace(webhook=one, closings=0, probe_until_ms=None))
    await tx.append_audit(actor, "webhooks.enable", webhook_id, {}, now)
    return one


async def rotate_webhook(
    tx: contract.StoreTransaction, webhook_id: str, tenant: str | None, secret: str, overlap_ms: int, actor: str
) -> webhooks.Webhook:
    """Sign with a new secret; deliveries are also signed with the old one until *overlap_ms* have passed."""
    stored = await _get(tx, webhook_id, tenant)
    now = await tx.now()
    rotated = webhook_signatures.rotated(stored.secrets, secret, now.wall_ms, overlap_ms)
    await tx.write_webhook(stored._replace(secrets=rotated))
    await tx.append_audit(actor, "webhooks.rotate", webhook_id, {"overlap_ms": overlap_ms}, now)
    return stored.webhook


# --- deliveries ----------------------------------------------------------------------------------------------------


async def deliveries(
    tx: contract.StoreTransaction, webhook_id: str, tenant: str | None, states: tuple[State, ...], limit: int
) -> list[webhooks.Delivery]:
    """Return the newest deliveries of a webhook."""
    await _get(tx, webhook_id, tenant)
    wanted = JobFilter(states=states, lane=webhooks.LANE, tenant=webhooks.delivery_tenant(webhook_id))
    page = await job_operations.jobs(tx, wanted, None, limit)
    return [_delivery(webhook_id, job) for job in page]


def _delivery(webhook_id: str, job: Job) -> webhooks.Delivery:
    payload = job.payload
    waiting = job.state in {"ready", "scheduled"}
    problem = None if job.failure is None else f"{job.failure.reason}: {job.failure.message}"
    name = strict_json.decode(payload["body"])["type"]
    tries, due = job.attempt, job.due_at if waiting else None
    return webhooks.Delivery(job.id, webhook_id, name, job.state, tries, job.enqueued_at, due, problem)


async def _check_active(tx: contract.StoreTransaction, webhook_id: str, tenant: str | None) -> None:
    """Raise `Conflict` if a webhook is disabled: its deliveries would fail at once."""
    if (await _get(tx, webhook_id, tenant)).webhook.state != "active":
        raise errors.Conflict(f"webhook {webhook_id!r} is disabled; enable it first")


async def send_test(
    tx: contract.StoreTransaction, webhook_id: str, tenant: str | None, test_id: str, actor: str
) -> webhooks.Delivery:
    """Deliver an event `webhook.test` to a webhook. A call that is sent again, with the same id, sends no other."""
    await _check_active(tx, webhook_id, tenant)
    made = await tx.job_by_id(test_id)
    if made is not None and made.tenant == webhooks.delivery_tenant(webhook_id):
        return _delivery(webhook_id, job_of(made))
    now = await tx.now()
    body = webhooks.body_of(webhooks.TEST_TYPE, validation.datetime_of(now.wall_ms), {"webhook_id": webhook_id})
    await tx.append_audit(actor, "webhooks.test", webhook_id, {}, now)
    [enqueued] = await enqueue.enqueue_jobs(tx, [_job(test_id, webhook_id, body)])
    return _delivery(webhook_id, enqueued.job)


async def replay(
    tx: contract.StoreTransaction, webhook_id: str, tenant: str | None, after: str | None, actor: str
) -> tuple[Requeued, str | None]:
    """Send failed deliveries again, the next ones after a cursor; return them and the cursor, None at the end."""
    await _check_active(tx, webhook_id, tenant)
    if after is None:
        await tx.append_audit(actor, "webhooks.replay", webhook_id, {}, await tx.now())
    owner = webhooks.delivery_tenant(webhook_id)
    failed = JobFilter(states=("failed",), lane=webhooks.LANE, tenant=owner)
    page = await job_operations.jobs(tx, failed, after, limits.CHUNK)
    return await admin.requeue_many(tx, [job.id for job in page], owner), page.cursor


def _job(delivery_id: str, webhook_id: str, body: str, url: str | None = None) -> new_job.CheckedJob:
    """Return the job that makes a delivery. The dispatcher's position decides that it is new, not its content."""
    payload = webhooks.delivery_payload(webhook_id, body, url)
    tenant = webhooks.delivery_tenant(webhook_id)
    new = new_job.SystemJob(webhooks.KIND, payload, lane=webhooks.LANE, tenant=tenant, max_attempts=webhooks.TRIES)
    return new_job.check_job(new, fresh_id=delivery_id)


# --- reading the log -----------------------------------------------------------------------------------------------


class JobEndpoint(NamedTuple):
    """The webhook of jobs with a URL, to be stored before its first delivery."""

    webhook_id: str
    tenant: str
    origin: str


class Collected(NamedTuple):
    """What one reading of the log has found."""

    before: webhooks.Position
    """The position as it was stored."""
    end: contract.EventPosition
    """How far the log was read."""
    deliveries: list[new_job.CheckedJob]
    endpoints: list[JobEndpoint]
    more: bool
    """Whether the log may have more events that can be read at once."""
    due: bool
    """Whether the position has to be written: for deliveries, or to renew the lease."""


class Reading(NamedTuple):
    """Whether a sender is needed, and what was found in the log."""

    needed: bool
    """Whether there is an active webhook, a job with a URL, or a delivery that is ready, if only to fail."""
    found: Collected | None
    """None if the log was not read: it is not needed, or another process reads it."""


async def collect(
    tx: contract.StoreTransaction, holder: str, after: contract.EventPosition | None, limit: int
) -> Reading:
    """Read the log after a position and find the deliveries of its events; one reading serves all webhooks."""
    if not await tx.has_webhooks():
        # Deliveries to a webhook that was removed or disabled fail when they are claimed.
        return Reading(needed=await tx.has_ready_jobs(webhooks.LANE), found=None)
    before = await tx.webhook_position()
    now = await tx.now()
    if before.holder not in {None, holder} and before.until_ms > now.lease_ms:
        return Reading(needed=True, found=None)
    stored: contract.EventPosition = (before.transaction, before.event)
    start = stored if after is None or before.holder != holder else max(after, stored)
    horizon = await tx.event_horizon()
    found = await tx.events_after(max(start, horizon), limit)
    active = [one.webhook for one in await tx.active_webhooks()] if found or start < horizon else []
    made = _gap(active, start, horizon, now.wall_ms) if start < horizon else []
    own, endpoints = await _for_job_urls(tx, found)
    made += await _for_subscriptions(tx, active, found) + own
    end = found[-1][0] if found else max(start, horizon)
    due = bool(made) or before.holder != holder or before.until_ms - now.lease_ms < LEASE_MS * 2 // 3
    return Reading(needed=True, found=Collected(before, end, made, endpoints, len(found) == limit, due))


def _gap(
    active: Sequence[webhooks.Webhook], start: contract.EventPosition, horizon: contract.EventPosition, now_ms: int
) -> list[new_job.CheckedJob]:
    """Return deliveries that tell each webhook that events were deleted before they were read."""
    made = []
    for one in active:
        data = {"webhook_id": one.id, "after": contract.cursor_of(start), "until": contract.cursor_of(horizon)}
        body = webhooks.body_of(webhooks.GAP_TYPE, validation.datetime_of(now_ms), data)
        made.append(_job(f"gap_{horizon[1]}_{one.id}", one.id, body))
    return made


async def _for_subscriptions(
    tx: contract.StoreTransaction,
    active: Sequence[webhooks.Webhook],
    found: Sequence[tuple[contract.EventPosition, events.Event]],
) -> list[new_job.CheckedJob]:
    matcher = webhooks.Matcher(active)
    matched = [(place, event, one) for place, event in found for one in matcher.matching(event)]
    wanted = {event.job_id for _, event, one in matched if one.include_results and event.name == "done"}
    results = {}
    if wanted:
        results = {row.id: row for row in await tx.jobs_by_id(sorted(wanted))}
    made = []
    for place, event, one in matched:
        data = webhooks.job_data(event)
        if one.include_results and event.name == "done":
            row = results.get(event.job_id)
            current = row is not None and row.state == "done" and row.epoch == event.details.get("epoch")
            text = row.result_json if row is not None and current else None
            data = webhooks.with_result(data, None if text is None or codec.is_encoded(text) else text)
        made.append(_job(webhooks.delivery_id(place[1], one.id), one.id, _body(event, data)))
    return made


def _body(event: events.Event, data: dict[str, strict_json.Json]) -> str:
    name = f"job.{event.name}"
    body = webhooks.body_of(name, event.at, data)
    if len(body.encode()) > limits.WEBHOOK_BODY_BYTES_MAX:
        data = {key: value for key, value in data.items() if key != "tags"} | {"tags_omitted": True}
        body = webhooks.body_of(name, event.at, data)
    return body


async def _for_job_urls(
    tx: contract.StoreTransaction, found: Sequence[tuple[contract.EventPosition, events.Event]]
) -> tuple[list[new_job.CheckedJob], list[JobEndpoint]]:
    own = [(place, event) for place, event in found if event.lane != webhooks.LANE]
    urls = await tx.job_urls(sorted({event.job_id for _, event in own})) if own else {}
    endpoints: dict[str, JobEndpoint] = {}
    made: list[tuple[events.Event, new_job.CheckedJob]] = []
    for place, event in own:
        if (url := urls.get(event.job_id)) is not None:
            origin = webhook_urls.parse_url(url, "webhook_url").origin
            one = JobEndpoint(endpoint_id(event.tenant, origin), event.tenant, origin)
            endpoints[one.webhook_id] = one
            job_id = webhooks.delivery_id(place[1], one.webhook_id)
            body = _body(event, webhooks.job_data(event))
            made.append((event, _job(job_id, one.webhook_id, body, url)))
    known = {one.id: one.webhook for one in await tx.webhooks_by_id(sorted(endpoints))} if endpoints else {}
    kept = [new for event, new in made if _delivers(known.get(_webhook_of(new)), event)]
    return kept, [one for one in endpoints.values() if one.webhook_id not in known]


def _webhook_of(new: new_job.CheckedJob) -> str:
    return new.settings.tenant.removeprefix(webhooks.delivery_tenant(""))


def _delivers(one: webhooks.Webhook | None, event: events.Event) -> bool:
    return one is None or (one.state == "active" and one.since <= event.at)


async def dispatch(tx: contract.StoreTransaction, holder: str, found: Collected) -> webhooks.Position | None:
    """Store the deliveries that a reading has found and move the position, both or none.

    Return the new position; None if another process has moved it since, whose deliveries are the same.
    """
    now = await tx.now()
    after = webhooks.Position(*found.end, holder, now.lease_ms + LEASE_MS)
    if not await tx.move_webhook_position(found.before, after):
        return None
    for one in found.endpoints:
        at = validation.datetime_of(now.wall_ms)
        added = webhooks.Webhook(
            one.webhook_id,
            one.origin,
            one.tenant,
            (),
            None,
            None,
            {},
            include_results=False,
            concurrency=limits.WEBHOOK_CONCURRENCY_DEFAULT,
            per_job=True,
            state="active",
            reason=None,
            created_at=at,
            since=validation.datetime_of(0),
        )
        secret = webhook_signatures.secret_of(secrets.token_bytes(webhook_signatures.SECRET_BYTES))
        await tx.insert_webhook(webhooks.StoredWebhook(added, (webhook_signatures.StoredSecret(secret),)))
    if found.deliveries:
        # After the store was restored from a backup the position may be older than the deliveries.
        known = {row.id for row in await tx.jobs_by_id([new.id for new in found.deliveries])}
        await enqueue.enqueue_jobs(tx, [new for new in found.deliveries if new.id not in known])
    return after


async def stop_reading(tx: contract.StoreTransaction, holder: str) -> None:
    """Let another process read the log at once."""
    before = await tx.webhook_position()
    if before.holder == holder:
        await tx.move_webhook_position(before, before._replace(holder=None, until_ms=0))


async def forget_job_urls(
    tx: contract.StoreTransaction, end: contract.EventPosition, after: str
) -> tuple[int, str | None]:
    """Delete the URLs of deleted jobs among the next ones after a job id, if the log was read up to its end.

    Return how many, and the id after which to continue; None at the end.
    """
    if await tx.events_held_back(end) or await job_operations.end_of_events(tx) != end:
        return 0, after
    return await tx.forget_job_urls(after, limits.CHUNK)


# --- endpoints -----------------------------------------------------------------------------------------------------


async def endpoints(
    tx: contract.StoreTransaction, ids: Sequence[str]
) -> tuple[dict[str, webhooks.StoredWebhook], int]:
    """Return the endpoints of deliveries by id, with their secrets, and the store's time."""
    return {one.id: one for one in await tx.webhooks_by_id(sorted(set(ids)))}, (await tx.now()).wall_ms


async def take_places(
    tx: contract.StoreTransaction, holder: str, ids: Sequence[str], wanted: Mapping[str, int]
) -> tuple[dict[str, webhooks.StoredWebhook], int]:
    """Return what `endpoints` does, after a sending process has taken, renewed or returned places at some of them."""
    found, now_ms = await endpoints(tx, [*ids, *wanted])
    changed = {
        one.id: webhooks.with_places(one, holder, wanted[one.id], now_ms)
        for one in found.values()
        if one.id in wanted
    }
    if changed:
        await tx.write_places(list(changed.values()))
    return found | changed, now_ms


async def begin_probe(tx: contract.StoreTransaction, webhook_id: str) -> webhooks.Admission:
    """Return whether this process may try a closed endpoint; no other may until the try has ended."""
    found = await tx.webhooks_by_id([webhook_id])
    now = await tx.now()
    admission = webhooks.admit(found[0] if found else None, now.wall_ms)
    if admission.action == "probe":
        await tx.write_webhook(found[0]._replace(probe_until_ms=webhooks.probe_until_ms(now.wall_ms)))
    return admission


async def record_answer(
    tx: contract.StoreTransaction, webhook_id: str, answer: webhooks.Answer
) -> webhooks.StoredWebhook | None:
    """Store what an answer means for its endpoint: open, closed, or disabled with a notice; return the endpoint."""
    found = await tx.webhooks_by_id([webhook_id])
    now = await tx.now()
    change = webhooks.after_answer(found[0], answer, now.wall_ms) if found else None
    if change is None:
        return found[0] if found else None
    closed, closings, failing, success, text, disabled = change
    one = replace(
        found[0].webhook,
        closed_until=validation.optional_datetime_of(closed),
        failing_since=validation.optional_datetime_of(failing),
        last_success_at=validation.optional_datetime_of(success),
        last_answer=text,
    )
    newly = disabled is not None and one.state == "active"
    if newly:
        one = replace(one, state="disabled", reason=disabled)
    stored = found[0]._replace(webhook=one, closings=closings, probe_until_ms=None)
    await tx.write_webhook(stored)
    if newly:
        detail: dict[str, strict_json.Json] = {"reason": disabled, "last_answer": text}
        await tx.append_audit("holdfast", "webhooks.disable", webhook_id, detail, now)
        await _announce_disabled(tx, one, now.wall_ms)
    return stored


async def _announce_disabled(tx: contract.StoreTransaction, disabled: webhooks.Webhook, now_ms: int) -> None:
    """Deliver `webhook.disabled` to the webhooks that subscribe to it."""
    data: dict[str, strict_json.Json] = {
        "webhook_id": disabled.id,
        "url": disabled.url,
        "tenant": disabled.tenant,
        "reason": disabled.reason,
        "last_answer": disabled.last_answer,
    }
    body = webhooks.body_of(webhooks.DISABLED_TYPE, validation.datetime_of(now_ms), data)
    made = [
        _job(f"off_{now_ms}_{disabled.id}_{one.id}", one.id, body)
        for one in (stored.webhook for stored in await tx.active_webhooks())
        if webhooks.DISABLED_TYPE in one.types and one.tenant in {None, disabled.tenant} and one.id != disabled.id
    ]
    await enqueue.enqueue_jobs(tx, made)

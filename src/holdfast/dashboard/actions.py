"""What forms do: each action is recorded, carried out by the call of the library, and reported on the next page."""

from collections.abc import Callable, Coroutine
from typing import Any

from starlette.responses import RedirectResponse, Response

from holdfast.dashboard.visits import Handler, Visit, note, safe_next
from holdfast.domain import access, errors, routing, validation
from holdfast.service import tokens


def _done(visit: Visit, text: str, otherwise: str) -> Response:
    """Go to the page that the form names, with a line that says what was done."""
    given = visit.form.get("next")
    response = RedirectResponse(visit.base + (safe_next(given) if given else otherwise), 303)
    note(visit, response, text)
    return response


# --- jobs ----------------------------------------------------------------------------------------------------------


async def cancel(visit: Visit) -> Response:
    """Cancel a waiting job, or request a running one to stop."""
    return await _cancel(visit, force=False)


async def cancel_by_force(visit: Visit) -> Response:
    """Take a running job from its worker."""
    return await _cancel(visit, force=True)


async def _cancel(visit: Visit, *, force: bool) -> Response:
    job = await visit.job()
    await visit.audit("jobs.cancel", job.id, force=force)
    after = await visit.queue.cancel(job.id, force=force, tenant=job.tenant)
    text = f"Job {job.number} is cancelled." if after.finished else f"Job {job.number} was requested to stop."
    return _done(visit, text, f"/jobs/{job.number}")


async def requeue(visit: Visit) -> Response:
    """Make a failed or cancelled job ready again."""
    job = await visit.job()
    await visit.audit("jobs.requeue", job.id)
    await visit.queue.requeue(job.id, tenant=job.tenant)
    return _done(visit, f"Job {job.number} is ready again.", f"/jobs/{job.number}")


async def reprioritize(visit: Visit) -> Response:
    """Change the priority of an unfinished job."""
    job = await visit.job()
    text = visit.field("priority")
    try:
        priority = int(text)
    except ValueError:
        raise errors.InvalidInput("priority", "must be an integer") from None
    access.check_job_ceilings(visit.grants, priority, 0, "")
    await visit.audit("jobs.reprioritize", job.id, priority=priority)
    await visit.queue.reprioritize(job.id, priority, tenant=job.tenant)
    return _done(visit, f"Job {job.number} has priority {priority}.", f"/jobs/{job.number}")


# --- lanes and workers ---------------------------------------------------------------------------------------------


async def set_lane(visit: Visit) -> Response:
    """Change the state of a lane."""
    lane, state = visit.field("lane"), visit.field("state")
    chosen = validation.one_of(state, "state", routing.LANE_STATES)
    if lane not in {one.name for one in await visit.queue.lanes.list()}:
        raise errors.InvalidInput("lane", "there is no such lane")
    await visit.audit("lanes.set", lane, state=chosen)
    await visit.queue.lanes.set(lane, state=chosen)
    return _done(visit, f"Lane {lane} is {chosen}.", "/flow")


async def drain_worker(visit: Visit) -> Response:
    """Request a worker to claim no more jobs."""
    worker = visit.field("worker")
    await visit.audit("workers.drain", worker)
    await visit.queue.admin.drain_worker(worker)
    return _done(visit, f"Worker {worker} was requested to drain.", "/workers")


async def stop_worker(visit: Visit) -> Response:
    """Request a worker to shut down."""
    worker = visit.field("worker")
    await visit.audit("workers.stop", worker)
    await visit.queue.admin.stop_worker(worker)
    return _done(visit, f"Worker {worker} was requested to stop.", "/workers")


# --- groups and sessions --------------------------------------------------------------------------------------------


async def cancel_group(visit: Visit) -> Response:
    """Seal a group, cancel its waiting members, and request running ones to stop."""
    group, tenant = visit.field("group"), visit.tenant or routing.DEFAULT_NAME
    await visit.queue.groups.get(group, tenant=tenant)
    await visit.audit("groups.cancel", group, tenant=tenant, force=False)
    report = await visit.queue.groups.cancel(group, tenant=tenant)
    stopping = f", {len(report.stop_requested):,} requested to stop" if report.stop_requested else ""
    return _done(visit, f"Group {group}: {len(report.cancelled):,} members are cancelled{stopping}.", "/flow")


async def cancel_session(visit: Visit) -> Response:
    """Cancel the waiting entries of a session."""
    session, tenant = visit.field("session"), visit.tenant or routing.DEFAULT_NAME
    await visit.queue.sessions.get(session, tenant=tenant)
    await visit.audit("sessions.cancel", session, tenant=tenant)
    cancelled = await visit.queue.sessions.cancel(session, tenant=tenant)
    return _done(visit, f"Session {session}: {len(cancelled)} waiting entries are cancelled.", "/sessions")


# --- schedules, webhooks and tokens: their calls write the audit entry in the same transaction ----------------------


def _schedule(call: Callable[[Visit, str, str], Coroutine[Any, Any, object]], text: Callable[[str], str]) -> Handler:
    async def handler(visit: Visit) -> Response:
        name, tenant = visit.field("schedule"), visit.tenant or routing.DEFAULT_NAME
        await call(visit, name, tenant)
        return _done(visit, text(name), "/flow")

    return handler


pause_schedule = _schedule(
    lambda visit, name, tenant: visit.queue.schedules.pause(name, tenant=tenant, actor=visit.caller.actor),
    lambda name: f"Schedule {name} is paused.",
)
resume_schedule = _schedule(
    lambda visit, name, tenant: visit.queue.schedules.resume(name, tenant=tenant, actor=visit.caller.actor),
    lambda name: f"Schedule {name} continues.",
)
run_schedule = _schedule(
    lambda visit, name, tenant: visit.queue.schedules.run(name, tenant=tenant, actor=visit.caller.actor),
    lambda name: f"Schedule {name} has enqueued a job.",
)


async def remove_limit(visit: Visit) -> Response:
    """Delete a limit; jobs that wait for room become ready."""
    limit = visit.field("limit")
    await visit.queue.limits.remove(limit, actor=visit.caller.actor)
    return _done(visit, f"Limit {limit} is removed.", "/flow")


async def enable_webhook(visit: Visit) -> Response:
    """Deliver events to a disabled webhook again."""
    webhook_id = visit.field("webhook")
    found = await visit.queue.webhooks.enable(webhook_id, tenant=visit.tenant, actor=visit.caller.actor)
    return _done(visit, f"Webhook {found.id} is active.", "/webhooks")


async def test_webhook(visit: Visit) -> Response:
    """Send a test event to a webhook."""
    webhook_id = visit.field("webhook")
    await visit.queue.webhooks.test(webhook_id, tenant=visit.tenant, actor=visit.caller.actor)
    return _done(visit, f"A test event is sent to {webhook_id}.", "/webhooks")


async def replay_webhook(visit: Visit) -> Response:
    """Send the failed deliveries of a webhook again."""
    webhook_id = visit.field("webhook")
    found = await visit.queue.webhooks.replay(webhook_id, tenant=visit.tenant, actor=visit.caller.actor)
    return _done(visit, f"{len(found.requeued)} deliveries are sent again.", "/webhooks")


async def revoke_token(visit: Visit) -> Response:
    """Revoke a token at once."""
    tokens.check_unlimited(visit.caller)
    token_id = visit.field("token")
    token = await visit.queue.admin.tokens.revoke(token_id, actor=visit.caller.actor)
    return _done(visit, f"Token {token.name} is revoked.", "/system")

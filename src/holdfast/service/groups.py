"""Handlers of `/v1/groups`: groups belong to a tenant; each job is checked against the grants of the caller."""

import hashlib
from typing import Any

from starlette.responses import Response

from holdfast import json_view
from holdfast.client import ids
from holdfast.domain import access, callbacks, errors, groups, new_job, routing, strict_json
from holdfast.operations import groups as group_operations
from holdfast.service import new_jobs
from holdfast.service.call import Call, reply, reply_text


def _named(call: Call) -> tuple[str, str]:
    return groups.check_name(call.path["group"], "group"), call.tenant or routing.DEFAULT_NAME


async def create(call: Call) -> Response:
    """Store the members of a group and seal it."""
    name, tenant = _named(call)
    called: dict[groups.GroupEvent, callbacks.Callback] = {}
    for event in groups.GROUP_EVENTS:
        if (given := call.body.get(event)) is not None:
            new = new_jobs.granted_callback(call.grants, given, f"{event}.")
            called[event] = callbacks.check_callback(new, event)
    members = [_member(call, index, one, tenant) for index, one in enumerate(call.body["members"])]
    group_call = groups.GroupCall(name, tenant, called, call.body.get("seal", True), _token(call))
    group, jobs = await call.service.runner.write(group_operations.add_members, group_call, members)
    for one in jobs:
        if not one.created and not access.covers(call.grants, one.job.lane, one.job.kind):
            raise errors.Conflict(f"job {one.job.id!r} exists with different content", job_id=one.job.id)
    stored = ",".join(map(json_view.enqueued_text, jobs))
    return reply_text(f'{{"group":{strict_json.compact(json_view.group(group))},"jobs":[{stored}]}}', 201)


def _member(call: Call, index: int, given: dict[str, Any], tenant: str) -> new_job.CheckedJob:
    path = f"members[{index}]"
    new = new_jobs.granted_job(call.grants, given, f"{path}.")
    checked = new_job.check_job(new, fresh_id=ids.job_id(), tenant=tenant, field=path)
    if checked.settings.tenant != tenant:
        raise errors.InvalidInput(f"{path}.tenant", f"must be that of the group, {tenant!r}")
    return checked


def _token(call: Call) -> str:
    """Return by what this request is recognized if it is sent again with its idempotency key."""
    key = call.idempotency_key
    if key is None:
        return ids.job_id()
    return hashlib.blake2b(strict_json.canonical([key, call.body]), digest_size=16).hexdigest()


async def list_groups(call: Call) -> Response:
    """Return groups, newest first."""
    found = await call.queue.groups.list(tenant=call.tenant, limit=call.query.get("limit", 100))
    return reply({"groups": [json_view.group(one) for one in found]})


async def get(call: Call) -> Response:
    """Return one group; with `wait`, once it has ended or after that many seconds."""
    name, tenant = _named(call)
    seconds = min(call.query.get("wait", 0.0), call.service.settings.wait_seconds_max)
    found = await call.queue.groups.get(name, tenant=tenant)
    if seconds > 0 and not found.finished:
        ended = await call.wait_for(_ended(call, name, tenant, seconds), None)
        found = await call.queue.groups.get(name, tenant=tenant) if ended is None else ended
    return reply(json_view.group(found))


async def _ended(call: Call, name: str, tenant: str, seconds: float) -> groups.JobGroup | None:
    try:
        return await call.queue.groups.wait(name, timeout=seconds, tenant=tenant)
    except errors.WaitTimeout:
        return None


async def cancel(call: Call) -> Response:
    """Cancel the members of a group."""
    name, tenant = _named(call)
    force = call.body.get("force", False)
    if force:
        access.check_role(call.grants, ())
    await call.audit("groups.cancel", name, tenant=tenant, force=force)
    return reply(json_view.cancel_report(await call.queue.groups.cancel(name, tenant=tenant, force=force)))

"""Handlers of `/v1/schedules`: a token of one tenant sees and changes the schedules of that tenant."""

from typing import Any

from starlette.responses import Response

from holdfast import json_view
from holdfast.client import ids
from holdfast.domain import access, errors, limits, routing, schedules, validation
from holdfast.operations import schedules as schedule_operations
from holdfast.service import new_jobs
from holdfast.service.call import Call, reply


async def list_schedules(call: Call) -> Response:
    """Return schedules in order of tenant and name."""
    found = await call.queue.schedules.list(tenant=call.tenant, limit=call.query.get("limit", limits.PAGE_MAX))
    return reply({"schedules": [json_view.schedule(one) for one in found]})


def _tenant(call: Call) -> str:
    return call.tenant or routing.DEFAULT_NAME


async def get(call: Call) -> Response:
    """Return one schedule."""
    return reply(json_view.schedule(await call.queue.schedules.get(call.path["schedule"], tenant=_tenant(call))))


async def preview(call: Call) -> Response:
    """Return the next ticks of a schedule."""
    name, tenant = call.path["schedule"], _tenant(call)
    ticks = await call.queue.schedules.preview(name, tenant=tenant, count=call.query.get("count", 5))
    one = await call.queue.schedules.get(name, tenant=tenant)
    return reply({"zone": one.zone, "ticks_ms": [validation.milliseconds_of(tick) for tick in ticks]})


def _definition(name: str, tenant: str | None, given: dict[str, Any], path: str = "") -> schedules.Definition:
    """Return the schedule that a body describes."""
    options = dict(given)
    kind, payload = options.pop("kind"), options.pop("payload", None)
    try:
        new_jobs.convert_values(options, "")
        return schedules.check_schedule(name, kind, payload, {**options, "tenant": tenant or routing.DEFAULT_NAME})
    except errors.InvalidInput as error:
        raise errors.InvalidInput(f"{path}{error.field}", error.problem, error.limit) from None


async def put(call: Call) -> Response:
    """Set a schedule."""
    definition = _definition(call.path["schedule"], call.tenant, call.body)
    found = await call.service.runner.write(schedule_operations.set_schedule, definition, call.caller.actor)
    return reply(json_view.schedule(found))


async def declare(call: Call) -> Response:
    """Set the schedules that the modules of a worker declare."""
    declared = []
    for index, one in enumerate(call.body["schedules"]):
        options, path = dict(one), f"schedules[{index}]."
        name, owner = options.pop("name"), validation.name(options.pop("owner"), f"{path}owner")
        tenant = access.tenant_for(call.grants, options.pop("tenant", None), f"{path}tenant")
        declared.append((_definition(name, tenant, options, path), owner))
    taken = await call.service.runner.write(schedule_operations.declare, declared)
    return reply({"taken": [{"name": name, "owner": owner} for name, owner in taken]})


async def pause(call: Call) -> Response:
    """Pause a schedule."""
    name, actor = call.path["schedule"], call.caller.actor
    return reply(json_view.schedule(await call.queue.schedules.pause(name, tenant=_tenant(call), actor=actor)))


async def resume(call: Call) -> Response:
    """Continue a paused schedule."""
    name, actor = call.path["schedule"], call.caller.actor
    return reply(json_view.schedule(await call.queue.schedules.resume(name, tenant=_tenant(call), actor=actor)))


async def run(call: Call) -> Response:
    """Enqueue a job of a schedule now."""
    name, tenant, key = schedules.check_name(call.path["schedule"]), _tenant(call), call.idempotency_key
    job_id = ids.job_id() if key is None else new_jobs.keyed_id(call, key, tenant, name)
    run_schedule, actor = schedule_operations.run_schedule, call.caller.actor
    return reply(json_view.job(await call.service.runner.write(run_schedule, name, tenant, job_id, actor)))


async def remove(call: Call) -> Response:
    """Delete a schedule."""
    name, actor = call.path["schedule"], call.caller.actor
    return reply(json_view.schedule(await call.queue.schedules.remove(name, tenant=_tenant(call), actor=actor)))

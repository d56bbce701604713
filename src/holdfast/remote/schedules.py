"""What the operations on schedules do over HTTP. The server names the token of the caller as the actor."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from holdfast.domain import cron, schedules, strict_json, validation
from holdfast.domain.job import Job
from holdfast.operations import schedules as schedule_operations
from holdfast.remote import calls, connection, decode


@calls.over_http(schedule_operations.list_schedules)
async def list_schedules(http: connection.Http, tenant: str | None, limit: int) -> list[schedules.Schedule]:
    """Return schedules in order."""
    reply = await http.get(connection.path("schedules"), {"tenant": tenant, "limit": limit})
    return [decode.schedule(one) for one in reply["schedules"]]


@calls.over_http(schedule_operations.get_schedule)
async def get_schedule(http: connection.Http, name: str, tenant: str) -> schedules.Schedule:
    """Return one schedule."""
    return decode.schedule(await http.get(connection.path("schedules", name), {"tenant": tenant}))


@calls.over_http(schedule_operations.preview)
async def preview(http: connection.Http, name: str, tenant: str, count: int) -> list[datetime]:
    """Return the next ticks, in the time zone of the schedule if this process knows it."""
    reply = await http.get(connection.path("schedules", name, "preview"), {"tenant": tenant, "count": count})
    zone = cron.zone_of(reply["zone"])
    return [validation.datetime_of(tick).astimezone(zone) for tick in reply["ticks_ms"]]


@calls.over_http(schedule_operations.set_schedule)
async def set_schedule(
    http: connection.Http, definition: schedules.Definition, actor: str, *, fits: bool = False
) -> schedules.Schedule:
    """Set a schedule; the server always checks its payload."""
    body = {"kind": definition.kind, **_body(definition)}
    query = {"tenant": definition.tenant}
    return decode.schedule(await http.post(connection.path("schedules", definition.name), body, query, method="PUT"))


def _body(definition: schedules.Definition) -> dict[str, Any]:
    cron_text, every_ms, zone = definition.timing
    timing = {"every": (every_ms or 0) / 1000} if cron_text is None else {"cron": cron_text, "zone": zone}
    return {
        "payload": strict_json.decode(definition.payload_json),
        **strict_json.decode(definition.options_json),
        **timing,
        "missed": definition.missed,
        "overlap": definition.overlap,
    }


@calls.over_http(schedule_operations.declare)
async def declare(
    http: connection.Http, declared: Sequence[tuple[schedules.Definition, str]]
) -> list[tuple[str, str | None]]:
    """Set the schedules that modules declare."""
    sent = [
        {"name": one.name, "tenant": one.tenant, "owner": owner, "kind": one.kind, **_body(one)}
        for one, owner in declared
    ]
    reply = await http.post(connection.path("schedules"), {"schedules": sent})
    return [(one["name"], one["owner"]) for one in reply["taken"]]


@calls.over_http(schedule_operations.pause_schedule)
async def pause_schedule(http: connection.Http, name: str, tenant: str, actor: str) -> schedules.Schedule:
    """Pause a schedule."""
    return decode.schedule(await _act(http, "pause", name, tenant))


@calls.over_http(schedule_operations.resume_schedule)
async def resume_schedule(http: connection.Http, name: str, tenant: str, actor: str) -> schedules.Schedule:
    """Continue a paused schedule."""
    return decode.schedule(await _act(http, "resume", name, tenant))


@calls.over_http(schedule_operations.remove_schedule)
async def remove_schedule(http: connection.Http, name: str, tenant: str, actor: str) -> schedules.Schedule:
    """Delete a schedule."""
    return decode.schedule(await _act(http, "remove", name, tenant, repeatable=False))


@calls.over_http(schedule_operations.run_schedule)
async def run_schedule(http: connection.Http, name: str, tenant: str, job_id: str, actor: str) -> Job:
    """Enqueue a job now; the server derives its id from ours, so that the request can be sent again."""
    route = connection.path("schedules", name, "run")
    return decode.job(await http.post(route, None, {"tenant": tenant}, headers={"Idempotency-Key": job_id}))


async def _act(
    http: connection.Http, action: str, name: str, tenant: str, *, repeatable: bool = True
) -> Mapping[str, Any]:
    path = connection.path("schedules", name, action)
    answer: Mapping[str, Any] = await http.post(path, None, {"tenant": tenant}, repeatable=repeatable)
    return answer

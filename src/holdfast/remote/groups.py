"""What the operations on groups, trees of jobs and their reasons do over HTTP."""

from collections.abc import Sequence
from typing import Any

from holdfast.domain import callbacks, groups, results
from holdfast.domain.new_job import CheckedJob
from holdfast.domain.why import Why
from holdfast.operations import (
    admin as admin_operations,
    groups as group_operations,
    maintenance,
    why as why_operations,
)
from holdfast.remote import calls, connection, decode, encode


@calls.over_http(group_operations.list_groups)
async def list_groups(http: connection.Http, tenant: str | None, limit: int) -> list[groups.JobGroup]:
    """Return groups, newest first."""
    reply = await http.get(connection.path("groups"), {"tenant": tenant, "limit": limit})
    return [decode.group(one) for one in reply["groups"]]


@calls.over_http(group_operations.get_group)
async def get_group(http: connection.Http, name: str, tenant: str) -> groups.JobGroup:
    """Return one group."""
    return decode.group(await http.get(connection.path("groups", name), {"tenant": tenant}))


@calls.over_http(group_operations.get_overdue)
async def get_overdue(
    http: connection.Http, name: str, tenant: str, wait_seconds: float = 0.0
) -> tuple[groups.JobGroup, bool]:
    """Return one group once it has ended, or as it is after some time; the server counts the ends."""
    wait = min(wait_seconds, connection.WAIT_SECONDS)
    query = {"tenant": tenant, "wait": float(wait) if wait else None}
    return decode.group(await http.get(connection.path("groups", name), query, wait=wait)), False


@calls.over_http(maintenance.fold_due_wakes)
async def fold_due_wakes(http: connection.Http) -> bool:
    """Do nothing: the server does it."""
    return False


@calls.over_http(group_operations.add_members)
async def add_members(
    http: connection.Http, call: groups.GroupCall, members: Sequence[CheckedJob]
) -> tuple[groups.JobGroup, list[results.StoredJob]]:
    """Store the members of a group; the token makes the request repeatable."""
    body: dict[str, Any] = {
        "members": [encode.new_job(new, tenant=call.tenant) for new in members],
        "seal": call.seal,
    }
    body |= {event: callbacks.document(callback) for event, callback in call.callbacks.items()}
    route, query = connection.path("groups", call.name), {"tenant": call.tenant}
    reply = await http.post(route, body, query, headers={"Idempotency-Key": call.token})
    stored = [results.StoredJob(decode.job(one["job"]), one["created"]) for one in reply["jobs"]]
    return decode.group(reply["group"]), stored


@calls.over_http(group_operations.cancel_members)
async def cancel_members(
    http: connection.Http, name: str, tenant: str, after: int, *, force: bool
) -> tuple[results.CancelReport, int | None]:
    """Cancel all members; the server does it in chunks."""
    reply = await http.post(connection.path("groups", name, "cancel"), {"force": force}, {"tenant": tenant})
    return decode.cancel_report(reply), None


@calls.over_http(admin_operations.cancel_tree)
async def cancel_tree(
    http: connection.Http, root: str, tenant: str | None, after: int | None, *, force: bool
) -> tuple[results.CancelReport, int | None]:
    """Cancel the jobs of a tree; the server does it in chunks."""
    reply = await http.post(connection.path("jobs", root, "cancel-tree"), {"force": force}, {"tenant": tenant})
    return decode.cancel_report(reply), None


@calls.over_http(why_operations.why_job)
async def why_job(http: connection.Http, job_id: str, tenant: str | None) -> Why:
    """Return why a job is in its state."""
    return decode.why(await http.get(connection.path("jobs", job_id, "why"), {"tenant": tenant}))

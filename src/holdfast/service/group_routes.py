"""Rows of the route table for groups."""

from typing import Any, Final

from holdfast.domain import limits
from holdfast.service import bulk_routes, call, examples, groups, schemas

_GROUP: Final[dict[str, Any]] = {
    "name": "import-7",
    "tenant": "default",
    "state": "running",
    "members": 2,
    "unfinished": 1,
    "done": 1,
    "failed": 0,
    "cancelled": 0,
    "retired": 0,
    "callbacks": {"on_success": "holdfast:group:import-7:on_success"},
    "problem": None,
    "created_at_ms": 1893456000000,
    "ended_at_ms": None,
}
GROUPS: Final = (
    call.Endpoint(
        "GET",
        "/v1/groups",
        "list_groups",
        "List groups, newest first",
        groups.list_groups,
        ("read",),
        schemas.shape(groups={"type": "array", "items": schemas.ref("Group")}),
        {"groups": [_GROUP]},
        query={"tenant": schemas.TENANT, "limit": schemas.integer(1, limits.PAGE_MAX, 100)},
    ),
    call.Endpoint(
        "POST",
        "/v1/groups/{group}",
        "create_group",
        "Enqueue jobs as a group, all or none, and seal it",
        groups.create,
        ("produce",),
        schemas.shape(group=schemas.ref("Group"), jobs={"type": "array", "items": schemas.ref("Enqueued")}),
        {"group": _GROUP, "jobs": [{"created": True, "job": examples.JOB_EXAMPLE}]},
        query={"tenant": schemas.TENANT},
        body=schemas.strict(
            ["members"],
            {
                "members": schemas.array(schemas.NEW_JOB, limits.ENQUEUE_MANY_MAX),
                "on_end": schemas.CALLBACK,
                "on_success": schemas.CALLBACK,
                "on_first_failure": schemas.CALLBACK,
                "seal": {**schemas.BOOLEAN, "description": "false: another request may add members; default true."},
            },
        ),
        body_example={"members": [examples.NEW_EXAMPLE], "on_success": {"kind": "report.write"}},
        body_bytes_max=bulk_routes.MANY_BYTES_MAX,
        status=201,
        idempotent=True,
        problems=(404, 409, 429),
    ),
    call.Endpoint(
        "GET",
        "/v1/groups/{group}",
        "get_group",
        "Get one group, or wait for its end",
        groups.get,
        ("read", "produce"),
        schemas.ref("Group"),
        _GROUP,
        query={
            "wait": schemas.number(0, schemas.WAIT_SECONDS_MAX, "Seconds to wait for the last end."),
            "tenant": schemas.TENANT,
        },
        problems=(404,),
    ),
    call.Endpoint(
        "POST",
        "/v1/groups/{group}/cancel",
        "cancel_group",
        "Seal a group and cancel its members; `force` needs the role admin",
        groups.cancel,
        ("produce",),
        bulk_routes.CANCELLED,
        {"cancelled": [examples.JOB_ID_EXAMPLE], "stop_requested": [], "skipped": []},
        any_job=True,
        query={"tenant": schemas.TENANT},
        body=schemas.strict([], {"force": schemas.BOOLEAN}),
        body_required=False,
        body_example={"force": False},
        problems=(404,),
    ),
)

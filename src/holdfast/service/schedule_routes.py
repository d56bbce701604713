"""Rows of the route table for schedules."""

from typing import Any, Final

from holdfast.domain import limits
from holdfast.service import call, examples, schedules, schemas

_SCHEDULE: Final[dict[str, Any]] = {
    "name": "nightly",
    "tenant": "default",
    "kind": "report.write",
    "payload": {"format": "pdf"},
    "options": {"lane": "reports"},
    "cron": "0 3 * * *",
    "every": None,
    "zone": "Europe/Berlin",
    "missed": "one",
    "overlap": "skip",
    "owner": None,
    "paused": False,
    "last_job_id": None,
    "problem": None,
    "next_at_ms": 1893463200000,
    "last_at_ms": None,
    "set_at_ms": 1893456000000,
    "declared_at_ms": None,
}
_NEW: Final[dict[str, Any]] = {
    "kind": schemas.text(),
    "payload": {"description": "Any JSON value."},
    "cron": schemas.text(description="Five fields, or @daily and the like; not together with every."),
    "every": schemas.number(
        limits.SCHEDULE_EVERY_MS_MIN / 1000, schemas.SECONDS_MAX, "An interval in seconds, counted from 1970 in UTC."
    ),
    "zone": schemas.text(description="The time zone of cron, such as Europe/Berlin; default: UTC."),
    "missed": schemas.choice("one", "skip"),
    "overlap": schemas.choice("allow", "skip"),
    **{
        option: schemas.NEW_JOB["properties"][option]
        for option in (
            "lane",
            "priority",
            "requires",
            "affinity",
            "headers",
            "tags",
            "max_attempts",
            "backoff",
            "events",
        )
    },
    "deadline": schemas.number(0, schemas.SECONDS_MAX, "A job fails unless started within these seconds."),
}
_EXAMPLE: Final = {"kind": "report.write", "payload": {"format": "pdf"}, "cron": "0 3 * * *", "zone": "Europe/Berlin"}


def _action(
    name: str, summary: str, handler: call.Handler, response: Any, example: Any, *, idempotent: bool = False
) -> call.Endpoint:
    path = f"/v1/schedules/{{schedule}}/{name}"
    options: dict[str, Any] = {"any_job": True, "query": {"tenant": schemas.TENANT}, "problems": (404, 409)}
    options["idempotent"] = idempotent
    return call.Endpoint("POST", path, f"{name}_schedule", summary, handler, (), response, example, **options)


SCHEDULES: Final = (
    call.Endpoint(
        "GET",
        "/v1/schedules",
        "list_schedules",
        "List schedules in order of tenant and name",
        schedules.list_schedules,
        ("read",),
        schemas.shape(schedules={"type": "array", "items": schemas.ref("Schedule")}),
        {"schedules": [_SCHEDULE]},
        any_job=True,
        query={"tenant": schemas.TENANT, "limit": schemas.integer(1, limits.PAGE_MAX, limits.PAGE_MAX)},
    ),
    call.Endpoint(
        "POST",
        "/v1/schedules",
        "declare_schedules",
        "Set the schedules that the modules of a worker declare; the response has those of others",
        schedules.declare,
        ("work",),
        schemas.shape(
            taken={
                "type": "array",
                "items": schemas.shape(name=schemas.STRING, owner=schemas.nullable(schemas.STRING)),
            }
        ),
        {"taken": []},
        any_tenant=True,
        any_job=True,
        body=schemas.strict(
            ["schedules"],
            {
                "schedules": schemas.array(
                    schemas.strict(
                        ["name", "owner", "kind"],
                        {
                            "name": schemas.text(limits.SCHEDULE_NAME_CHARS_MAX),
                            "owner": schemas.text(description="The module that declares it."),
                            "tenant": schemas.text(),
                            **_NEW,
                        },
                    ),
                    limits.PAGE_MAX,
                )
            },
        ),
        body_example={"schedules": [{"name": "nightly", "owner": "app.tasks", **_EXAMPLE}]},
    ),
    call.Endpoint(
        "GET",
        "/v1/schedules/{schedule}",
        "get_schedule",
        "Get one schedule",
        schedules.get,
        ("read",),
        schemas.ref("Schedule"),
        _SCHEDULE,
        any_job=True,
        query={"tenant": schemas.TENANT},
        problems=(404,),
    ),
    call.Endpoint(
        "PUT",
        "/v1/schedules/{schedule}",
        "set_schedule",
        "Set a schedule: one job for each tick",
        schedules.put,
        (),
        schemas.ref("Schedule"),
        _SCHEDULE,
        any_job=True,
        query={"tenant": schemas.TENANT},
        body=schemas.strict(["kind"], _NEW),
        body_example=_EXAMPLE,
        problems=(409,),
    ),
    call.Endpoint(
        "GET",
        "/v1/schedules/{schedule}/preview",
        "preview_schedule",
        "Get the next ticks of a schedule",
        schedules.preview,
        ("read",),
        schemas.shape(zone=schemas.STRING, ticks_ms={"type": "array", "items": schemas.INTEGER}),
        {"zone": "Europe/Berlin", "ticks_ms": [1893463200000]},
        any_job=True,
        query={"tenant": schemas.TENANT, "count": schemas.integer(1, limits.PREVIEW_MAX, 5)},
        problems=(404,),
    ),
    _action(
        "pause",
        "Enqueue no jobs of a schedule until it is resumed",
        schedules.pause,
        schemas.ref("Schedule"),
        {**_SCHEDULE, "paused": True, "next_at_ms": None},
    ),
    _action("resume", "Continue a paused schedule after now", schedules.resume, schemas.ref("Schedule"), _SCHEDULE),
    _action(
        "run",
        "Enqueue a job of a schedule now",
        schedules.run,
        schemas.ref("Job"),
        examples.JOB_EXAMPLE,
        idempotent=True,
    ),
    _action(
        "remove",
        "Delete a schedule; its jobs stay",
        schedules.remove,
        schemas.ref("Schedule"),
        {**_SCHEDULE, "name": "gone"},
    ),
)

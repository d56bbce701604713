"""Rows of the route table for webhooks."""

from typing import Any, Final

from holdfast.domain import job, limits
from holdfast.domain.webhooks import DEFAULT_TYPES, TYPES
from holdfast.service import call, schemas, webhooks

_SECRET: Final = schemas.text(limits.NAME_CHARS_MAX, "`whsec_` and the base64 of 24 to 64 bytes; default: a new one.")
_WEBHOOK: Final[dict[str, Any]] = {
    "id": "wh_mvxgk3tdmfxgg2lb",
    "url": "https://example.org/hook",
    "tenant": None,
    "types": list(DEFAULT_TYPES),
    "kinds": None,
    "lanes": None,
    "tags": {},
    "include_results": False,
    "concurrency": limits.WEBHOOK_CONCURRENCY_DEFAULT,
    "per_job": False,
    "state": "active",
    "reason": None,
    "last_answer": None,
    "created_at_ms": 1893456000000,
    "since_ms": 1893456000000,
    "last_success_at_ms": None,
    "failing_since_ms": None,
    "closed_until_ms": None,
}
_NEW: Final = {"webhook": _WEBHOOK, "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}
_DELIVERY: Final = {
    "id": "evt_7_wh_mvxgk3tdmfxgg2lb",
    "webhook_id": "wh_mvxgk3tdmfxgg2lb",
    "type": "job.done",
    "state": "done",
    "tries": 1,
    "problem": None,
    "created_at_ms": 1893456000000,
    "next_try_at_ms": None,
}
_LIMIT: Final = schemas.integer(1, limits.PAGE_MAX, limits.PAGE_DEFAULT)


def _action(
    name: str, summary: str, handler: call.Handler, response: Any, example: Any, **more: Any
) -> call.Endpoint:
    path = f"/v1/webhooks/{{webhook_id}}/{name}"
    options = {"any_job": True, "query": {"tenant": schemas.TENANT}, "problems": (404, 409), **more}
    return call.Endpoint("POST", path, f"{name}_webhook", summary, handler, (), response, example, **options)


WEBHOOKS: Final = (
    call.Endpoint(
        "GET",
        "/v1/webhooks",
        "list_webhooks",
        "List webhooks, newest first, without their secrets",
        webhooks.list_webhooks,
        ("read",),
        schemas.shape(webhooks={"type": "array", "items": schemas.ref("Webhook")}),
        {"webhooks": [_WEBHOOK]},
        any_job=True,
        query={"tenant": schemas.TENANT, "limit": _LIMIT},
    ),
    call.Endpoint(
        "POST",
        "/v1/webhooks",
        "add_webhook",
        "Deliver events from now on to a URL; the response has the secret",
        webhooks.add,
        (),
        schemas.shape(webhook=schemas.ref("Webhook"), secret=schemas.STRING),
        _NEW,
        any_job=True,
        body=schemas.strict(
            ["url"],
            {
                "url": schemas.text(limits.URL_CHARS_MAX),
                "types": schemas.array(schemas.choice(*TYPES), len(TYPES)),
                "tenant": schemas.nullable(
                    schemas.text(description="Only jobs of this tenant; default: that of the token, or any.")
                ),
                "kinds": schemas.nullable(schemas.array(schemas.text(), limits.CLAIM_KINDS_MAX)),
                "lanes": schemas.nullable(schemas.array(schemas.text(), limits.CLAIM_LANES_MAX)),
                "tags": schemas.strings(limits.TAGS_MAX, limits.TAG_VALUE_CHARS_MAX),
                "include_results": schemas.BOOLEAN,
                "concurrency": schemas.integer(1, 100, limits.WEBHOOK_CONCURRENCY_DEFAULT),
                "per_job": schemas.BOOLEAN,
                "secret": schemas.nullable(_SECRET),
                "id": schemas.nullable(
                    {
                        "type": "string",
                        "pattern": "^wh_[a-z2-7]{16}$",
                        "description": "An id that the client has generated; with secret the call can be sent again.",
                    }
                ),
            },
        ),
        body_example={"url": "https://example.org/hook", "types": ["job.done"]},
        status=201,
        problems=(409,),
    ),
    call.Endpoint(
        "GET",
        "/v1/webhooks/{webhook_id}",
        "get_webhook",
        "Get one webhook, without its secret",
        webhooks.get,
        ("read",),
        schemas.ref("Webhook"),
        _WEBHOOK,
        any_job=True,
        query={"tenant": schemas.TENANT},
        problems=(404,),
    ),
    call.Endpoint(
        "GET",
        "/v1/webhooks/{webhook_id}/deliveries",
        "list_deliveries",
        "List the newest deliveries of a webhook",
        webhooks.deliveries,
        ("read",),
        schemas.shape(deliveries={"type": "array", "items": schemas.ref("Delivery")}),
        {"deliveries": [_DELIVERY]},
        any_job=True,
        query={
            "tenant": schemas.TENANT,
            "state": schemas.array(schemas.choice(*job.STATES), len(job.STATES)),
            "limit": _LIMIT,
        },
        problems=(404,),
    ),
    _action(
        "enable", "Deliver again to a webhook that was disabled", webhooks.enable, schemas.ref("Webhook"), _WEBHOOK
    ),
    _action("remove", "Delete a webhook", webhooks.remove, schemas.ref("Webhook"), {**_WEBHOOK, "id": "wh_gone"}),
    _action(
        "rotate",
        "Sign with a new secret, which the response has; the old one signs as well for a time",
        webhooks.rotate,
        schemas.shape(webhook=schemas.ref("Webhook"), secret=schemas.STRING),
        _NEW,
        body=schemas.strict(
            [],
            {
                "overlap": schemas.number(0, schemas.SECONDS_MAX, "Seconds; default: a day."),
                "secret": schemas.nullable(_SECRET),
            },
        ),
        body_required=False,
        body_example={"overlap": 3600},
    ),
    _action(
        "replay",
        "Send the failed deliveries of a webhook again",
        webhooks.replay,
        schemas.shape(
            requeued={"type": "array", "items": schemas.STRING},
            skipped={"type": "array", "items": {"type": "object"}},
        ),
        {"requeued": ["evt_7_wh_mvxgk3tdmfxgg2lb"], "skipped": []},
    ),
    _action(
        "test",
        "Deliver the event webhook.test",
        webhooks.test,
        schemas.ref("Delivery"),
        {**_DELIVERY, "state": "ready"},
        idempotent=True,
    ),
)

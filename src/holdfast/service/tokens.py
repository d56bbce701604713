"""Tokens over HTTP: handlers of `/v1/tokens` and their rows of the route table.

Only an administrator without any limit manages tokens, so that none can grant more than it has or outlive its expiry.
"""

from datetime import UTC, datetime
from typing import Any, Final

from starlette.responses import Response

from holdfast import json_view
from holdfast.client import ids
from holdfast.domain import access, errors, limits, validation
from holdfast.operations import access as access_operations
from holdfast.service import schemas
from holdfast.service.access import Caller
from holdfast.service.call import Call, Endpoint, check_limits, reply


def check_unlimited(caller: Caller) -> None:
    """Raise `Forbidden` if the caller's token expires or has a ceiling."""
    token = caller.token
    if token is None:
        return
    for name in ("priority_max", "payload_bytes_max", "claim_max"):
        if getattr(token.grants, name) is not None:
            raise errors.Forbidden("tokens are managed by a token without ceilings", field=name)
    if token.expires_at is not None:
        raise errors.Forbidden("tokens are managed by a token that does not expire", field="expires_at")


def _secret(body: dict[str, Any]) -> tuple[str, str, str | None]:
    """Return the id and hash of a new token, and its text unless the client has generated its secret."""
    given = {name: body.get(name) for name in ("id", "secret_hash")}
    if missing := [name for name, value in given.items() if value is None]:
        if len(missing) == 1:
            raise errors.InvalidInput(missing[0], "is missing; give id and secret_hash, or neither")
        token_id, secret = ids.token_id(), ids.token_secret()
        return token_id, access.hash_secret(secret), f"hf_{token_id}_{secret}"
    return access.check_new_id(body["id"]), access.check_hash(body["secret_hash"]), None


def _shown(token: access.Token) -> dict[str, Any]:
    return json_view.token(token, datetime.now(UTC))


async def create(call: Call) -> Response:
    """Create a token; the response has its text, unless the client has generated the secret."""
    check_unlimited(call.caller)
    check_limits(call.route.body or {}, call.body, "")
    token_id, secret_hash, shown = _secret(call.body)
    options = {name: value for name, value in call.body.items() if name in _OPTIONS}
    grants = access.check_grants(call.body["roles"], options)  # type: ignore[arg-type]  # checked there
    name, expires_in = validation.name(call.body["name"], "name"), call.body.get("expires_in")
    expires_ms = None if expires_in is None else validation.duration_ms(expires_in, "expires_in", 1)
    token = await call.service.runner.write(
        access_operations.create_token, token_id, secret_hash, name, grants, expires_ms, call.caller.actor
    )
    return reply({"token": _shown(token), "text": shown}, 201)


async def rotate(call: Call) -> Response:
    """Create a token with the same grants; the old one expires after the overlap."""
    check_unlimited(call.caller)
    check_limits(call.route.body or {}, call.body, "")
    new_id, secret_hash, shown = _secret(call.body)
    overlap_ms = validation.duration_ms(call.body.get("overlap", limits.TOKEN_OVERLAP_MS_DEFAULT / 1000), "overlap")
    token = await call.service.runner.write(
        access_operations.rotate_token,
        call.path["token_id"],
        new_id,
        secret_hash,
        overlap_ms,
        call.caller.actor,
    )
    return reply({"token": _shown(token), "text": shown}, 201)


async def revoke(call: Call) -> Response:
    """Revoke a token at once."""
    check_unlimited(call.caller)
    token_id = call.path["token_id"]
    return reply(_shown(await call.queue.admin.tokens.revoke(token_id, actor=call.caller.actor)))


async def list_tokens(call: Call) -> Response:
    """Return the tokens that were created last, without their secrets."""
    check_unlimited(call.caller)
    found = await call.queue.admin.tokens.list(limit=call.query.get("limit", limits.PAGE_DEFAULT))
    return reply({"tokens": [_shown(one) for one in found]})


_TIME: Final = schemas.nullable(schemas.INTEGER)
_TOKEN: Final = schemas.shape(
    id=schemas.STRING,
    name=schemas.STRING,
    state=schemas.choice("active", "expired", "revoked"),
    roles={"type": "array", "items": schemas.STRING},
    tenant=schemas.nullable(schemas.STRING),
    lanes=schemas.nullable({"type": "array", "items": schemas.STRING}),
    kinds=schemas.nullable({"type": "array", "items": schemas.STRING}),
    priority_max=_TIME,
    payload_bytes_max=_TIME,
    claim_max=_TIME,
    created_at_ms=schemas.INTEGER,
    expires_at_ms=_TIME,
    last_used_at_ms=_TIME,
    revoked_at_ms=_TIME,
)
_NEW: Final = schemas.shape(
    token=_TOKEN, text={**schemas.nullable(schemas.STRING), "description": "The token itself, shown only here."}
)
_OWN_SECRET: Final[schemas.Schema] = {
    "id": {"type": "string", "pattern": "^[a-z2-7]{16}$", "description": "An id that the client has generated."},
    "secret_hash": {
        "type": "string",
        "pattern": "^[0-9a-f]{64}$",
        "description": "The SHA-256 of a secret that the client has generated: the token is hf_<id>_<secret>, and the"
        " call can be sent again.",
    },
}
_OPTIONS: Final[schemas.Schema] = {
    "tenant": schemas.nullable(schemas.text()),
    "lanes": schemas.nullable(schemas.array(schemas.text(), limits.CLAIM_LANES_MAX)),
    "kinds": schemas.nullable(schemas.array(schemas.text(), limits.CLAIM_KINDS_MAX)),
    "priority_max": schemas.nullable(schemas.integer(-limits.PRIORITY_MAX, limits.PRIORITY_MAX)),
    "payload_bytes_max": schemas.nullable(schemas.integer(1, limits.PAYLOAD_BYTES_MAX)),
    "claim_max": schemas.nullable(schemas.integer(1, limits.CLAIM_MAX)),
    "expires_in": schemas.nullable(schemas.number(0.001, schemas.SECONDS_MAX, "Seconds until it expires.")),
}
_TOKEN_EXAMPLE: Final = {
    "id": "mvxgk3tdmfxgg2lb",
    "name": "billing",
    "state": "active",
    "roles": ["produce"],
    "tenant": "acme",
    "lanes": None,
    "kinds": None,
    "priority_max": None,
    "payload_bytes_max": None,
    "claim_max": None,
    "created_at_ms": 1_790_000_000_000,
    "expires_at_ms": None,
    "last_used_at_ms": None,
    "revoked_at_ms": None,
}
_SHOWN_ONCE: Final = {"token": _TOKEN_EXAMPLE, "text": "hf_mvxgk3tdmfxgg2lb_…"}

TOKENS: Final = (
    Endpoint(
        "GET",
        "/v1/tokens",
        "list_tokens",
        "List the tokens that were created last",
        list_tokens,
        (),
        schemas.shape(tokens={"type": "array", "items": _TOKEN}),
        {"tokens": [_TOKEN_EXAMPLE]},
        any_tenant=True,
        any_job=True,
        query={"limit": schemas.integer(1, limits.PAGE_MAX, limits.PAGE_DEFAULT)},
    ),
    Endpoint(
        "POST",
        "/v1/tokens",
        "create_token",
        "Create a token; its text is returned once",
        create,
        (),
        _NEW,
        _SHOWN_ONCE,
        any_tenant=True,
        any_job=True,
        body=schemas.strict(
            ["name", "roles"],
            {
                "name": schemas.text(),
                "roles": schemas.array(schemas.choice(*access.ROLES), len(access.ROLES)),
                **_OPTIONS,
                **_OWN_SECRET,
            },
        ),
        body_example={"name": "billing", "roles": ["produce"], "tenant": "acme"},
        status=201,
        problems=(409,),
    ),
    Endpoint(
        "POST",
        "/v1/tokens/{token_id}/rotate",
        "rotate_token",
        "Create a token with the grants of another, which expires after an overlap",
        rotate,
        (),
        _NEW,
        _SHOWN_ONCE,
        any_tenant=True,
        any_job=True,
        body=schemas.strict(
            [], {"overlap": schemas.number(0, schemas.SECONDS_MAX, "Seconds; default a day."), **_OWN_SECRET}
        ),
        body_required=False,
        body_example={"overlap": 3_600},
        status=201,
        problems=(404, 409),
    ),
    Endpoint(
        "POST",
        "/v1/tokens/{token_id}/revoke",
        "revoke_token",
        "Revoke a token at once",
        revoke,
        (),
        _TOKEN,
        {**_TOKEN_EXAMPLE, "state": "revoked", "revoked_at_ms": 1_790_000_060_000},
        any_tenant=True,
        any_job=True,
        problems=(404,),
    ),
)

"""Callers of the gateway: their key, their tenant and the priority that they may ask for."""

from typing import Final

from starlette.types import Scope

from holdfast.domain import access, errors, limits, routing, validation
from holdfast.service.access import Caller

BODY_BYTES_MAX: Final = limits.ARTIFACT_BYTES_MAX
"""The size of the largest request."""


def tenant_of(caller: Caller, asked: str | None) -> str:
    """Return the tenant of a request: that of the token, else the one that it names."""
    tenant = access.tenant_for(caller.grants, asked, "Holdfast-Tenant")
    return routing.DEFAULT_NAME if tenant is None else validation.name(tenant, "Holdfast-Tenant")


def priority_of(caller: Caller, asked: str | None) -> int:
    """Return the priority of a request, or raise if it exceeds the ceiling of the token."""
    ceiling = caller.grants.priority_max
    if asked is None:
        return 0 if ceiling is None else min(0, ceiling)
    try:
        priority = int(asked)
    except ValueError:
        raise errors.InvalidInput("Holdfast-Priority", "must be an integer") from None
    priority = validation.integer(priority, "Holdfast-Priority", -limits.PRIORITY_MAX, limits.PRIORITY_MAX)
    access.check_job_ceilings(caller.grants, priority, 0, "")
    return priority


def with_bearer(scope: Scope) -> Scope:
    """Return the request with a key in `x-api-key`, as clients of Anthropic send it, as a bearer token."""
    headers = dict(scope["headers"])
    key = headers.get(b"x-api-key")
    if key is None or b"authorization" in headers:
        return scope
    return {**scope, "headers": [*scope["headers"], (b"authorization", b"Bearer " + key)]}

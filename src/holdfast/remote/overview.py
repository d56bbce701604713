"""What the operations on failures and the overview do over HTTP."""

from holdfast.domain import results
from holdfast.domain.overview import Overview
from holdfast.operations import failures as failure_operations, overview as overview_operations
from holdfast.remote import decode
from holdfast.remote.calls import over_http, prune_chunk
from holdfast.remote.connection import Http, path


@over_http(overview_operations.overview)
async def overview(http: Http) -> Overview:
    """Return the overview."""
    return decode.overview(await http.get(path("overview")))


@over_http(failure_operations.patterns)
async def failure_patterns(
    http: Http, fingerprint: str | None, tenant: str | None, kind: str | None, limit: int
) -> list[results.FailurePattern]:
    """Return the patterns with the newest failures."""
    query = {"fingerprint": fingerprint, "tenant": tenant, "kind": kind, "limit": limit}
    return [decode.failure_pattern(one) for one in (await http.get(path("failures"), query))["failures"]]


@over_http(failure_operations.prune)
async def prune_failures(http: Http, age_ms: int) -> bool:
    """Delete a chunk of failures."""
    return bool((await prune_chunk(http, "failures", age_ms))["deleted"])

"""Handlers for lanes, kinds, workers, statistics, health and metrics."""

import asyncio
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.responses import Response

from holdfast import json_view, version
from holdfast.domain import errors
from holdfast.operations import jobs as job_operations
from holdfast.service.call import Call, reply
from holdfast.service.problems import ProblemError

_READY_SECONDS: Final = 2.0


async def healthz(_call: Call) -> Response:
    """Return that the process runs."""
    return reply({"status": "ok", "version": version.__version__})


async def readyz(call: Call) -> Response:
    """Return whether the store answers and the server accepts requests."""
    if call.service.closing.is_set():
        raise ProblemError(503, "shutting_down", "the server is shutting down")
    try:
        reading = call.service.runner.read(job_operations.seconds_to_due)
        await asyncio.wait_for(reading, _READY_SECONDS)
    except TimeoutError:
        raise ProblemError(503, "unavailable", "the store does not answer", headers={"Retry-After": "1"}) from None
    except errors.HoldfastError as error:
        raise ProblemError(503, error.code, "the store cannot be used", headers={"Retry-After": "1"}) from None
    return reply({"status": "ok"})


async def metrics(call: Call) -> Response:
    """Return the metrics of the store for Prometheus."""
    content = await asyncio.to_thread(generate_latest, call.service.registry)
    return Response(content, headers={"Content-Type": CONTENT_TYPE_LATEST})


def store_registry(collector: Any) -> CollectorRegistry:
    """Return a registry with the metrics of the store."""
    registry = CollectorRegistry()
    registry.register(collector)
    return registry


async def openapi(call: Call) -> Response:
    """Return the OpenAPI document."""
    return Response(call.service.openapi, media_type="application/json")


# --- lanes ---------------------------------------------------------------------------------------------------------


def _sees_lane(call: Call, lane: str) -> bool:
    return call.grants.lanes is None or lane in call.grants.lanes


def _sees_kind(call: Call, kind: str) -> bool:
    return call.grants.kinds is None or kind in call.grants.kinds


async def lanes(call: Call) -> Response:
    """Return the lanes within the caller's scope."""
    found = await call.queue.lanes.list()
    return reply({"lanes": [json_view.lane(one) for one in found if _sees_lane(call, one.name)]})


async def set_lane(call: Call) -> Response:
    """Change the settings of a lane."""
    lane = call.path["lane"]
    if not _sees_lane(call, lane):
        raise ProblemError(404, "not_found", "no such lane")
    await call.audit("lanes.set", lane, **call.body)
    return reply(json_view.lane(await call.queue.lanes.set(lane, **call.body)))


# --- kinds ---------------------------------------------------------------------------------------------------------


def _kind(call: Call) -> str:
    kind = call.path["kind"]
    if not _sees_kind(call, kind):
        raise errors.UnknownKind(kind, "has no jobs, and is neither published nor retired")
    return kind


async def kinds(call: Call) -> Response:
    """Return the kinds within the caller's scope."""
    found = await call.queue.kinds.list()
    return reply({"kinds": [json_view.kind(one) for one in found if _sees_kind(call, one.name)]})


async def kind(call: Call) -> Response:
    """Return one kind with its published options and schema."""
    return reply(json_view.kind(await call.queue.kinds.get(_kind(call))))


async def retire_kind(call: Call) -> Response:
    """Refuse new jobs of a kind and retire the waiting ones."""
    name = _kind(call)
    await call.audit("kinds.retire", name)
    return reply({"kind": name, "retired": True, "jobs": await call.queue.kinds.retire(name)})


async def restore_kind(call: Call) -> Response:
    """Accept new jobs of a retired kind again."""
    name = _kind(call)
    await call.audit("kinds.restore", name)
    await call.queue.kinds.restore(name)
    return reply({"kind": name, "retired": False})


# --- workers and statistics ----------------------------------------------------------------------------------------


async def workers(call: Call) -> Response:
    """Return the workers that were active last."""
    found = await call.queue.admin.workers(**call.query)
    return reply({"workers": [json_view.worker(one) for one in found]})


async def drain_worker(call: Call) -> Response:
    """Request a worker to claim no more jobs."""
    name = call.path["worker"]
    await call.audit("workers.drain", name)
    return reply({"workers": [json_view.worker(one) for one in await call.queue.admin.drain_worker(name)]})


async def stop_worker(call: Call) -> Response:
    """Request a worker to shut down."""
    name = call.path["worker"]
    await call.audit("workers.stop", name)
    return reply({"workers": [json_view.worker(one) for one in await call.queue.admin.stop_worker(name)]})


async def stats(call: Call) -> Response:
    """Return the number of jobs by lane, kind and state."""
    query = {name: value for name, value in call.query.items() if name != "tenant"}
    found = await call.queue.admin.tally(tenant=call.tenant, **query)
    jobs = [json_view.tally(one) for one in found if _sees_lane(call, one.lane) and _sees_kind(call, one.kind)]
    return reply({"total": sum(one["jobs"] for one in jobs), "jobs": jobs})

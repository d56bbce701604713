"""Handlers of calls on many jobs at once, and of what only workers and operators need."""

from dataclasses import asdict
from typing import Any

from starlette.responses import Response

from holdfast import json_view
from holdfast.client.async_api.worker_calls import AsyncWorkerCalls
from holdfast.domain import access, claims, errors, kinds, limits, new_job, strict_json, validation
from holdfast.domain.output import OutputWrite, StreamEnd, check_text
from holdfast.domain.results import FailurePattern, WorkerInfo
from holdfast.operations import admin as admin_operations, failures as failure_operations, output as output_operations
from holdfast.service import new_jobs, problems
from holdfast.service.call import Call, check_limits, reply, reply_text
from holdfast.service.claims import claims_of, renewal_view, settle_all

# --- running jobs --------------------------------------------------------------------------------------------------


async def settle_many(call: Call) -> Response:
    """Settle many jobs in one commit; a refused settlement does not affect the others."""
    results, _ = await settle_all(call, call.body["settlements"])
    return reply_text(f'{{"settlements":[{",".join(results)}]}}')


async def heartbeat_many(call: Call) -> Response:
    """Extend many leases, acknowledge claims, store progress and append output, in one commit."""
    check_limits(call.route.body or {}, call.body, "")
    leases, output = call.body["leases"], call.body["output"]
    held, writers = await claims_of(call, leases, "leases"), await claims_of(call, output, "output")
    updates = [(one, given) for one, given in zip(held, leases, strict=True) if isinstance(one, claims.Claim)]
    writes = []
    for index, (one, given) in enumerate(zip(writers, output, strict=True)):
        texts = [check_text(text, f"output[{index}].texts[{at}]") for at, text in enumerate(given["texts"])]
        if isinstance(one, claims.Claim):
            writes.append((one, OutputWrite(given.get("part"), texts)))
    renewals, ends = await call.service.runner.write(
        output_operations.renew_and_append,
        [(claims.fence_of(one), one.lease_ms) for one, _ in updates],
        {
            one.job.number: claims.Note(given.get("phase"), given.get("percent"))
            for one, given in updates
            if _noted(given)
        },
        {one.job.number for one, given in updates if given.get("acknowledge", False)},
        writes,
    )
    return reply({"leases": _merged(held, renewals), "output": _merged(writers, ends)})


def _noted(given: dict[str, Any]) -> bool:
    return given.get("phase") is not None or given.get("percent") is not None


def _merged(held: list[claims.Claim | errors.HoldfastError], answers: list[Any]) -> list[dict[str, Any]]:
    """Return an answer for each claim: that of the store, or the problem why there is none."""
    of_store = iter(answers)
    shown: list[dict[str, Any]] = []
    for one in held:
        answer = one if isinstance(one, errors.HoldfastError) else next(of_store)
        match answer:
            case errors.HoldfastError():
                shown.append({"error": problems.document(problems.describe(answer))})
            case claims.Renewal():
                shown.append(renewal_view(answer))
            case StreamEnd():
                shown.append(answer._asdict())
            case _:
                raise TypeError(answer)
    return shown


# --- jobs ----------------------------------------------------------------------------------------------------------


async def cancel_many(call: Call) -> Response:
    """Cancel many jobs in one commit."""
    check_limits(call.route.body or {}, call.body, "")
    job_ids, force = call.body["job_ids"], call.body.get("force", False)
    await call.audit("jobs.cancel", f"{len(job_ids)} jobs", jobs=job_ids, force=force)
    report = await call.queue.admin.cancel_many(job_ids, force=force, tenant=call.tenant)
    return reply(json_view.cancel_report(report))


async def requeue_many(call: Call) -> Response:
    """Requeue many jobs."""
    check_limits(call.route.body or {}, call.body, "")
    job_ids = call.body["job_ids"]
    await call.audit("jobs.requeue", f"{len(job_ids)} jobs", jobs=job_ids)
    return reply(json_view.requeued(await call.queue.admin.requeue_many(job_ids, tenant=call.tenant)))


async def reprioritize(call: Call) -> Response:
    """Change the priority of an unfinished job."""
    check_limits(call.route.body or {}, call.body, "")
    job = await call.job()
    priority = call.body["priority"]
    access.check_job_ceilings(call.grants, priority, 0, "")
    await call.audit("jobs.reprioritize", job.id, priority=priority)
    return reply_text(json_view.job_text(await call.queue.reprioritize(job.id, priority, tenant=job.tenant)))


async def counts(call: Call) -> Response:
    """Count jobs by one property."""
    return reply({"jobs": await call.queue.counts(by=call.query.get("by", "state"), tenant=call.tenant)})


async def prune(call: Call) -> Response:
    """Delete a chunk of old jobs, failures, events or message ids."""
    check_limits(call.route.body or {}, call.body, "")
    body, runner = call.body, call.service.runner
    what, age_ms, held_back = body["what"], body["age_ms"], False
    after = body.get("after", [-1, -1])
    dry_run = body.get("dry_run", False)
    if after == [-1, -1] and not dry_run:
        await call.audit(f"{what}.prune", what, age_ms=age_ms, state=body.get("state"))
    match what:
        case "jobs":
            state = validation.one_of(body.get("state"), "state", ("done", "failed", "cancelled", "retired"))
            position = (after[0], after[1])
            deleted, after = await runner.write(admin_operations.prune_jobs, state, age_ms, position)
        case "message_ids":
            deleted = await runner.write(admin_operations.prune_message_ids, age_ms)
        case "failures":
            deleted = int(await runner.write(failure_operations.prune, age_ms))
        case _ if dry_run:
            deleted, held_back = await runner.read(admin_operations.count_prunable_events, age_ms)
        case _:
            deleted, held_back = await runner.write(admin_operations.prune_events, age_ms)
    return reply({"deleted": deleted, "after": list(after), "held_back": held_back})


# --- workers and operators -----------------------------------------------------------------------------------------


async def publish_kinds(call: Call) -> Response:
    """Publish what a worker serves in the catalog of kinds; write nothing if nothing has changed."""
    check_limits(call.route.body or {}, call.body, "")
    publications = {}
    for name, one in call.body["kinds"].items():
        validation.name(name, "kinds")
        access.check_kind(call.grants, name, f"kinds.{name}")
        schema, options, path = one["schema"], dict(one["options"]), f"kinds.{name}."
        new_jobs.convert_values(options, f"{path}options.")
        new_job.check_job(new_job.NewJob(name, None, **options), fresh_id="", field=f"{path}options")
        publications[name] = kinds.Publication(
            strict_json.encode(one["options"], f"{path}options", limits.PAYLOAD_BYTES_MAX),
            one["timeout_ms"],
            one["session"],
            None
            if schema is None
            else strict_json.encode(schema, f"kinds.{name}.schema", limits.KIND_SCHEMA_BYTES_MAX),
        )
    await AsyncWorkerCalls(call.service.store).publish_kinds(publications, call.body["published_by"])
    return reply({"kinds": list(publications)})


async def beat(call: Call) -> Response:
    """Write the registry row of one start of a worker; return what was requested of it."""
    check_limits(call.route.body or {}, call.body, "")
    lists = {name: tuple(call.body.get(name, ())) for name in ("lanes", "kinds", "capabilities", "loaded")}
    names: dict[str, Any] = {**call.body, **lists}
    info = WorkerInfo(worker=validation.name(call.path["worker"], "worker"), **names)
    return reply({"requested": await AsyncWorkerCalls(call.service.store).beat(info)})


async def leave(call: Call) -> Response:
    """Delete the registry row of a worker that stops."""
    check_limits(call.route.body or {}, call.body, "")
    await AsyncWorkerCalls(call.service.store).leave(call.path["worker"], call.body["incarnation"])
    return reply({"worker": call.path["worker"]})


async def backlog(call: Call) -> Response:
    """Return waiting and running jobs, counted up to a limit."""
    return reply(asdict(await call.queue.admin.backlog()))


async def overview(call: Call) -> Response:
    """Return what the first screen of an operator shows."""
    return reply(json_view.overview(await call.queue.admin.overview()))


async def failures(call: Call) -> Response:
    """Return failed jobs by the pattern in which they failed, within the caller's scope."""
    query = {name: value for name, value in call.query.items() if name != "tenant"}
    found = await call.queue.admin.failures(tenant=call.tenant, **query)
    patterns = [json_view.failure_pattern(one) for one in found if _sees_failures(call, one)]
    return reply({"failures": patterns})


def _sees_failures(call: Call, one: FailurePattern) -> bool:
    kinds, lanes = call.grants.kinds, call.grants.lanes
    return (kinds is None or one.kind in kinds) and (lanes is None or set(one.lanes) <= set(lanes))


async def findings(call: Call) -> Response:
    """Return findings about jobs, and ready jobs that no live worker serves."""
    found = await AsyncWorkerCalls(call.service.store).problems()
    unserved = await call.queue.admin.unserved()
    return reply(
        {"findings": [asdict(one) for one in found], "unserved": [json_view.unserved(one) for one in unserved]}
    )


async def record_action(call: Call) -> Response:
    """Append an action to the audit log, in the name of the token."""
    check_limits(call.route.body or {}, call.body, "")
    await call.audit(call.body["action"], call.body["target"], **call.body.get("detail", {}))
    return reply({"actor": call.caller.actor})


async def audit_log(call: Call) -> Response:
    """Return the newest entries of the audit log."""
    found = await call.queue.admin.audit_log(
        before=call.query.get("before"), limit=call.query.get("limit", limits.PAGE_DEFAULT)
    )
    return reply({"entries": [json_view.audit_entry(one) for one in found]})

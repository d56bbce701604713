"""Why a job is in its state: what concerns it is read in one transaction, without locks."""

from holdfast.domain import gates, limits, serving, why
from holdfast.domain.clock import Now
from holdfast.domain.job import JobRow
from holdfast.domain.routing import RouteKey, RoutingTable
from holdfast.operations.jobs import get_row, newest_workers
from holdfast.storage.contract import StoreTransaction

_SAMPLES = 50


async def why_job(tx: StoreTransaction, job_id: str, tenant: str | None) -> why.Why:
    """Return why a job is in its state."""
    job = await get_row(tx, job_id, tenant)
    routing, now = await tx.routing(), await tx.now()
    in_groups = [one.name for one in await tx.groups_of_member(job.seq)] if routing.has_edges else []
    facts = why.Facts(job, now, routing.lane(job.lane), (), groups=in_groups)
    if not job.finished and job.state != "running":
        facts = await _waiting(tx, routing, facts)
    return why.explain(facts)


async def _waiting(tx: StoreTransaction, routing: RoutingTable, facts: why.Facts) -> why.Facts:
    job = facts.job
    workers = await newest_workers(tx, limits.PAGE_MAX)
    facts = facts._replace(
        takers=serving.takers(job.lane, job.kind, job.requires, workers),
        gates=await _gates(tx, routing, job, facts.now),
    )
    if job.state == "dependent":
        parents = [edge.parent for edge in await tx.edges_of_children([job.seq]) if edge.parent > 0]
        states = await tx.states_of(parents)
        in_order = [states[seq] for seq in parents if seq in states]
        facts = facts._replace(parents=[(one.id, one.state) for one in in_order])
    if job.predecessor is not None:
        found = (await tx.states_of([job.predecessor])).get(job.predecessor)
        facts = facts._replace(predecessor=None if found is None else (found.id, found.state))
    if job.session_number is not None and job.enqueue_seq is not None:
        before = await tx.entries_before(job.session_number, job.enqueue_seq, why.COUNTED_MAX)
        return facts._replace(entries_before=before)
    if job.state != "ready":
        return facts
    key = RouteKey(job.lane, job.kind, job.requires_json, job.affinity is not None)
    routes = [route.number for one, route in routing.routes.items() if one.lane == job.lane and not one.session]
    mine = routing.routes[key].number
    return facts._replace(
        before=await tx.ready_before(job, routes, why.COUNTED_MAX),
        tenants=await tx.waiting_tenants(mine, job.priority, limits.BACKLOG_TURNS_MAX),
        durations_ms=await tx.recent_durations(mine, _SAMPLES),
    )


async def _gates(tx: StoreTransaction, routing: RoutingTable, job: JobRow, now: Now) -> list[why.GateFacts]:
    concerned = routing.limits_of(job.lane, job.kind)
    if not concerned or (job.session_number is not None and job.state != "parked"):
        return []
    at = (await tx.jobs_at_gates([job.seq]))[job.seq]
    facts = []
    for limit in concerned:
        key = limit.key_of(job, at.given)
        for gate in [] if key is None else await tx.gates_of_key(key):
            if gate.limit == limit.number:
                running = (await tx.gate_uses([gate.number]))[gate.number].running
                room = gates.Room(limit, gate, running, now.wall_ms)
                parked = await tx.count_parked(gate.number, limits.BACKLOG_COUNTED_MAX)
                facts.append(why.GateFacts(limit, gate, room, running, parked, limit.weight_of(job, at.weight)))
    return facts

"""Limits by key: setting, listing and removing them, and the use of a key."""

from holdfast.domain import errors, gates as domain_gates, limits, validation
from holdfast.domain.gates import KeyUse, Limit, LimitRow
from holdfast.domain.results import Finding
from holdfast.domain.routing import RoutingTable
from holdfast.operations import gates
from holdfast.storage import notifications
from holdfast.storage.contract import StoreTransaction


async def list_limits(tx: StoreTransaction) -> list[Limit]:
    """Return all limits in order of their names."""
    return [domain_gates.public(one) for one in (await tx.routing()).limits.values()]


async def get_limit(tx: StoreTransaction, name: str) -> Limit:
    """Return a limit, or raise `LimitNotFound`."""
    return domain_gates.public(_named(await tx.routing(), name))


def _named(routing: RoutingTable, name: str) -> LimitRow:
    found = next((one for one in routing.limits.values() if one.name == name), None)
    if found is None:
        raise errors.LimitNotFound(name)
    return found


async def set_limit(tx: StoreTransaction, new: LimitRow, actor: str) -> Limit:
    """Store a limit, or change the one of its name.

    Claims hold the routing until they commit, so that every later one applies the limit. If it counts running jobs,
    those that run already are counted if the limit is new, concerns other jobs than before, or did not limit how many
    run.
    """
    await tx.lock_routing()
    routing = await tx.routing()
    stored = next((one for one in routing.limits.values() if one.name == new.name), None)
    if stored is not None and stored._replace(number=0) == new:
        return domain_gates.public(stored)
    _check(routing, new, stored)
    now = await tx.now()
    if stored is not None and stored.subject == new.subject:
        new = new._replace(number=stored.number)
        await tx.write_limit(new)
        if (rescaling := domain_gates.rescaling(stored, new)) is not None:
            await tx.rescale_gates(new.number, rescaling, now)
    else:
        if stored is not None:
            await tx.delete_limit(stored.number)
        new = new._replace(number=await tx.insert_limit(new))
    await tx.use_limits()
    if stored is not None:
        await tx.wake_gates_of_limit(stored.number)
    routing = await tx.routing()
    counted = stored if stored is not None and new.number == stored.number else None
    if new.counts_running and (
        counted is None or not counted.counts_running or (counted.concurrency is None and new.concurrency is not None)
    ):
        await gates.count_running(tx, routing, new)
    _notify(tx, routing, new)
    await tx.append_audit(actor, "limits.set", new.name, {"key": new.key_source}, now)
    return domain_gates.public(new)


def _check(routing: RoutingTable, new: LimitRow, stored: LimitRow | None) -> None:
    if stored is None and len(routing.limits) >= limits.LIMITS_MAX:
        raise errors.InvalidInput("name", f"would make more than {limits.LIMITS_MAX} limits")
    domain_gates.check_overlap(new, routing.limits.values())


async def remove_limit(tx: StoreTransaction, name: str, actor: str) -> Limit:
    """Delete a limit and return it; its parked jobs become ready, by and by."""
    await tx.lock_routing()
    routing = await tx.routing()
    stored = _named(routing, name)
    now = await tx.now()
    await tx.delete_limit(stored.number)
    await tx.use_limits()
    await tx.wake_gates_of_limit(stored.number)
    _notify(tx, routing, stored)
    await tx.append_audit(actor, "limits.remove", name, {}, now)
    return domain_gates.public(stored)


def _notify(tx: StoreTransaction, routing: RoutingTable, limit: LimitRow) -> None:
    lanes = {route.lane for route in routing.routes if limit.concerns(route.lane, route.kind)}
    tx.notify(
        [topic(lane) for lane in sorted(lanes) for topic in (notifications.lane_topic, notifications.sessions_topic)]
    )


async def findings(tx: StoreTransaction) -> list[Finding]:
    """Return what `doctor` says about limits; nothing if there are none."""
    routing = await tx.routing()
    if not routing.limits:
        return []
    stalled, missed = await tx.stalled_gates(limits.CHUNK), await gates.uncounted(tx, routing)
    found = []
    if stalled:
        detail = f"jobs are parked at {len(stalled)} keys, although none of these runs a job or is looked at"
        found.append(Finding("limits", "warning", detail, "a worker, or `holdfast serve`, frees them within minutes"))
    if missed:
        names = ", ".join(sorted({routing.limits[limit].name for limit, _ in missed.values()}))
        detail = f"{len(missed)} running jobs are not counted: {names}"
        remedy = "a worker, or `holdfast serve`, counts them within minutes"
        found.append(Finding("limits", "warning", detail, remedy, "recount"))
    detail = f"{len(routing.limits)} set; every running job is counted, no parked one was left behind"
    return found or [Finding("limits", "ok", detail)]


async def show_key(tx: StoreTransaction, key: str) -> list[KeyUse]:
    """Return how a key uses each limit; one that it does not use now is left out, although its gate may exist."""
    routing = await tx.routing()
    now_ms = (await tx.now()).wall_ms
    found = await tx.gates_of_key(key)
    uses = await tx.gate_uses([gate.number for gate in found])
    shown = []
    for gate in found:
        limit, use = routing.limits[gate.limit], uses[gate.number]
        room = domain_gates.Room(limit, gate, use.running, now_ms)
        is_rate_used = room.left is not None and room.left < (limit.burst or 1)
        if any(use) or gate.closed_until_ms or is_rate_used:
            shown.append(
                KeyUse(
                    limit.name,
                    gate.key,
                    use.running if limit.counts_running else None,
                    await tx.count_parked(gate.number, limits.BACKLOG_COUNTED_MAX),
                    limit.concurrency,
                    validation.optional_datetime_of(room.opens_at_ms()),
                    gate.closed_until_ms > now_ms,
                    room.left,
                )
            )
    return shown

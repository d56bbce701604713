"""Gates: which of the jobs that a claim has selected may start, and whom to offer the room that ends have left."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from holdfast.domain import claim_order, gates, limits, strict_json, transitions
from holdfast.domain.clock import Now
from holdfast.domain.job import JobRow
from holdfast.domain.routing import RouteKey, RoutingTable
from holdfast.operations import sessions
from holdfast.operations.apply_transitions import apply_transitions
from holdfast.storage.contract import StoreTransaction
from holdfast.storage.flow_contract import Wake
from holdfast.storage.gates_contract import GateKey, GateUse, JobAtGate

_WAIT_MS: Final = 200
"""How long a claim waits for a gate that another transaction has locked."""
_BUSY_MS: Final = 50
"""When a gate is looked at again that stayed locked."""
_REARM_MS: Final = 1_000
"""How often, at most, a rate is looked at whose offers no claim takes."""


# --- claims --------------------------------------------------------------------------------------------------------


async def admit(
    tx: StoreTransaction, routing: RoutingTable, jobs: Sequence[JobRow], limit: int
) -> list[tuple[JobRow, int | None]]:
    """Return those of *jobs*, up to *limit*, that may start, with the gate that counts each; park those without room.

    A job starts if there is room at all its gates; their locks are held until the commit. A job that does not start
    holds nothing, and waits at the gate that refused it.
    """
    at = await tx.jobs_at_gates([job.seq for job in jobs])
    keys = {job.seq: _keys(routing, job, at[job.seq]) for job in jobs}
    numbers = await tx.gate_numbers({key for found in keys.values() for key in found})
    locked = await tx.lock_gates(set(numbers.values()), _WAIT_MS)
    uses = await tx.gate_uses(locked)
    now = await tx.now()
    rooms = _Rooms(routing, locked, uses, now)
    admitted: list[tuple[JobRow, int | None]] = []
    parked: list[tuple[JobRow, int]] = []
    for job in jobs:
        if len(admitted) == limit:
            break
        mine = {numbers[key]: weight for key, weight in keys[job.seq].items()}
        fresh = at[job.seq].gate is None
        refusing = next((gate for gate, weight in mine.items() if not rooms.admits(gate, weight, fresh=fresh)), None)
        if refusing is None:
            rooms.take(mine)
            admitted.append((job, rooms.counting(mine)))
        else:
            rooms.refuse(refusing, mine[refusing])
            if at[job.seq].gate == refusing:
                rooms.turn_back(refusing, _route_of(routing, job), job.fair_key)
            parked.append((job, refusing))
    await _park(tx, routing, parked, now)
    # Others may wait where a job was offered room, or waited, that it does not use.
    uses_of = {job.seq: {numbers[key] for key in keys[job.seq]} for job, _ in admitted} | {
        job.seq: {gate} for job, gate in parked
    }
    moved = {gate for seq, used in uses_of.items() if (gate := at[seq].gate) is not None and gate not in used}
    await tx.add_wakes("gate", sorted(moved))
    await rooms.write(tx, {gate for _, gate in parked})
    return admitted


def _keys(routing: RoutingTable, job: JobRow, at: JobAtGate) -> dict[GateKey, int]:
    """Return the gates of a job, each with what a start of the job counts there."""
    found = ((limit, limit.key_of(job, at.given)) for limit in routing.limits_of(job.lane, job.kind))
    return {(limit.number, key): limit.weight_of(job, at.weight) for limit, key in found if key is not None}


def _route_of(routing: RoutingTable, job: JobRow) -> int:
    is_entry = job.session_number is not None
    return routing.routes[RouteKey(job.lane, job.kind, job.requires_json, job.affinity is not None, is_entry)].number


class _Rooms:
    """The room at locked gates, while a claim takes it."""

    def __init__(
        self, routing: RoutingTable, locked: Mapping[int, gates.Gate], uses: Mapping[int, GateUse], now: Now
    ) -> None:
        self._limits = {number: routing.limits[gate.limit] for number, gate in locked.items()}
        self._locked = locked
        self._uses = uses
        self._now_ms = now.wall_ms
        self._rooms = {
            number: gates.Room(self._limits[number], gate, uses[number].running, now.wall_ms)
            for number, gate in locked.items()
        }
        self._starts = dict.fromkeys(locked, 0)
        self._refused: dict[int, int] = {}
        """The weight of the first job that each gate has refused."""
        self._turned_back: dict[int, list[tuple[int, str]]] = {}
        """Of jobs that each gate has refused although it had offered them room: the route and the fair_key."""

    def admits(self, gate: int, weight: int, *, fresh: bool) -> bool:
        """Return whether another job may start; not if the gate is not locked.

        Where weights differ, a *fresh* job, which no gate has offered room, does not overtake those that wait: heavy
        ones would wait indefinitely.
        """
        if gate not in self._rooms:
            return False
        if fresh and self._limits[gate].weight is not None and (gate in self._refused or self._uses[gate].has_parked):
            return False
        return self._rooms[gate].admits(weight)

    def take(self, mine: Mapping[int, int]) -> None:
        """Start a job."""
        for gate, weight in mine.items():
            self._rooms[gate].take(weight)
            self._starts[gate] += 1

    def refuse(self, gate: int, weight: int) -> None:
        """Note that a job is parked at a gate."""
        self._refused.setdefault(gate, weight)

    def turn_back(self, gate: int, route: int, fair_key: str) -> None:
        """Note that a job that was offered room has found none, as others have taken it: it is the first next time.

        Otherwise its tenant could wait indefinitely, if jobs that arrive in between always come before it.
        """
        self._turned_back.setdefault(gate, []).append((route, fair_key))

    def counting(self, mine: Iterable[int]) -> int | None:
        """Return the gate that counts the running job, if one does: the one that limits how many run, or else any."""
        counting = [gate for gate in mine if self._limits[gate].counts_running or self._locked[gate].closed_until_ms]
        return max(counting, key=lambda gate: self._limits[gate].concurrency is not None, default=None)

    async def write(self, tx: StoreTransaction, refusing: set[int]) -> None:
        """Write the starts, and let jobs that wait for a time be looked at when it has come."""
        for number, gate in self._locked.items():
            after = self._rooms[number].gate_after(self._starts[number])
            if number in self._turned_back:
                after = _turned_back(after, self._turned_back[number])
            if number in refusing:
                # While others run, their ends wake the gate.
                opens_at_ms = self._rooms[number].opens_at_ms(self._refused[number])
                after = await rearm(tx, after, opens_at_ms, self._now_ms)
            if after is not gate:
                await tx.write_gate(after)
        counted = {number: self._uses[number].running for number in sorted(refusing & self._locked.keys())}
        ending = await tx.ending_gates({number: running for number, running in counted.items() if running})
        for number in sorted((refusing - self._locked.keys()) | ending):
            await tx.add_wake("gate", number, self._now_ms + _BUSY_MS)


def _turned_back(gate: gates.Gate, refused: Collection[tuple[int, str]]) -> gates.Gate:
    """Return a gate at which the turn has gone back to the first of these fair_keys, each with its route."""
    turns: dict[str, str] = strict_json.decode(gate.turns_json)
    for route in {at for at, _ in refused}:
        first = turns.get(str(route), "")
        # The order from the next turn on ends with the fair_keys that were offered last.
        turns[str(route)] = min((one for at, one in refused if at == route), key=lambda one: _turn(one, first))
    return gate._replace(turns_json=strict_json.compact(turns))


async def admit_turn(
    tx: StoreTransaction, routing: RoutingTable, entries: Sequence[JobRow]
) -> dict[int, int | None] | None:
    """Take room for a claim of session entries, of which the first counts; None if it was parked instead.

    Return the gates to write, by number of the entry. Another entry that was offered room does not use it.
    """
    admitted = await admit(tx, routing, entries[:1], 1)
    if not admitted:
        return None
    [(head, gate)] = admitted
    at = await tx.jobs_at_gates([entry.seq for entry in entries])
    others = {entry.seq: at[entry.seq].gate for entry in entries[1:] if at[entry.seq].gate is not None}
    await tx.add_wakes("gate", sorted({one for one in others.values() if one is not None}))
    return {head.seq: gate, **dict.fromkeys(others)}


async def _park(tx: StoreTransaction, routing: RoutingTable, parked: Sequence[tuple[JobRow, int]], now: Now) -> None:
    await apply_transitions(tx, routing, [transitions.park(job) for job, _ in parked], now)
    await tx.set_gates([(gate, job.seq) for job, gate in parked])


async def close(tx: StoreTransaction, routing: RoutingTable, job: JobRow, until_ms: int) -> None:
    """Close the key of a job until a time: the one by which running jobs are counted, or else that of its rate."""
    at = (await tx.jobs_at_gates([job.seq]))[job.seq]
    keys = _keys(routing, job, at)
    if keys:
        await tx.close_gate(max(keys, key=lambda key: routing.limits[key[0]].concurrency is not None), until_ms)


async def replace_given(
    tx: StoreTransaction, job: JobRow, given: tuple[str | None, int | None] | None
) -> tuple[JobAtGate, JobAtGate]:
    """Give a job another limit key and weight, or none; return where it was before and is after."""
    before = (await tx.jobs_at_gates([job.seq]))[job.seq]
    key, weight = given or (None, None)
    after = before._replace(given=key, weight=weight)
    if after != before:
        await tx.delete_limit_keys([job.seq])
        if given is not None:
            await tx.insert_limit_keys([(job.seq, key, weight)])
    return before, after


async def reconsider(
    tx: StoreTransaction,
    routing: RoutingTable,
    before: tuple[JobRow, JobAtGate],
    after: tuple[JobRow, JobAtGate],
    now: Now,
) -> JobRow:
    """Make a parked job whose content was replaced ready if it has other gates now, or another weight; return it.

    The next claim parks it where it belongs. At the gate at which it waits others may have room now.
    """
    job, at = after
    if _keys(routing, *before) == _keys(routing, job, at):
        return job
    [ready] = await apply_transitions(tx, routing, [transitions.offer(job)], now)
    await tx.set_gates([(None, job.seq)])
    if at.gate is not None:
        await tx.add_wakes("gate", [at.gate])
    return ready


async def rearm(tx: StoreTransaction, gate: gates.Gate, at_ms: int | None, now_ms: int) -> gates.Gate:
    """Append a wake row for the time at which *gate* opens, unless there is an earlier one; return the gate."""
    if at_ms is None or now_ms < gate.wake_at_ms <= at_ms:
        return gate
    await tx.add_wake("gate", gate.number, at_ms)
    return gate._replace(wake_at_ms=at_ms)


# --- folding -------------------------------------------------------------------------------------------------------


async def fold(tx: StoreTransaction, routing: RoutingTable, wakes: Sequence[Wake], now: Now) -> list[Wake]:
    """Offer the room at gates to parked jobs; return the wake rows of gates that need another look."""
    numbers = {wake.number for wake in wakes}
    locked = await tx.lock_gates(numbers, 0)
    missing = numbers - locked.keys()
    busy = await tx.existing_gates(missing)
    uses = await tx.gate_uses(numbers - busy)
    left = set(busy)
    unused = []
    used = await tx.take_usages(locked) if routing.has_weights else {}
    for number, use in sorted(uses.items()):
        gate = locked.get(number) or gates.Gate(number, 0, "", 0, 0, "{}", 0)
        limit = routing.limits.get(gate.limit)
        after = gates.reopened(gate, use.running)
        if limit is not None:
            after = gates.bounded(limit, after, now.wall_ms)
            if number in used:
                after = gates.corrected(limit, after, used[number], now.wall_ms)
        if after is not gate:
            await tx.write_gate(gate := after)
        if use.has_parked:
            if await _offer(tx, routing, gate, limit, use, now):
                left.add(number)
        elif limit is None:
            unused.append(number)
    await tx.delete_gates(unused)
    left |= await tx.ending_gates({gate: use.running for gate, use in uses.items() if use.has_parked and use.running})
    return [wake for wake in wakes if wake.number in left]


async def _offer(
    tx: StoreTransaction,
    routing: RoutingTable,
    gate: gates.Gate,
    limit: gates.LimitRow | None,
    use: GateUse,
    now: Now,
) -> bool:
    """Offer the room at a gate to parked jobs, on each route as much as is free; return whether to look again."""
    if limit is None:
        # The limit was removed: let all its jobs go.
        gate = gate._replace(closed_until_ms=0)
        limit = gates.LimitRow(0, "", None, None, gates.ALL, None, None, None, None)
    room = gates.Room(limit, gate, use.running, now.wall_ms)
    turns: dict[str, str] = strict_json.decode(gate.turns_json)
    wanted: list[int] = []
    opens_at_ms = room.opens_at_ms()
    if limit.weight is not None:
        wanted, opens_at_ms = await _next_by_weight(tx, gate, limit, use, turns, now)
    elif free := room.free:
        for route in await tx.parked_routes(gate.number):
            offered = await tx.count_offered(gate.number, route, free) if limit.number else 0
            found = await _next_in_turn(tx, gate, route, min(free - offered, limits.CHUNK), turns)
            wanted += [seq for _, seq in found]
        for _ in range(free if limit.rate is not None else 0):
            room.take()
        # The offered jobs may leave others waiting, for the next time at which one may start.
        opens_at_ms = room.opens_at_ms()
    jobs = await sessions.lock_free_sessions(tx, await tx.parked_jobs(wanted))
    await apply_transitions(tx, routing, [transitions.offer(job) for job in jobs], now)
    after = gate._replace(turns_json=strict_json.compact(turns)) if jobs else gate
    if limit.rate is not None:
        at_ms = opens_at_ms or now.wall_ms
        after = await rearm(tx, after, at_ms if jobs else max(at_ms, now.wall_ms + _REARM_MS), now.wall_ms)
    elif opens_at_ms is not None:
        after = await rearm(tx, after, opens_at_ms, now.wall_ms)
    if after is not gate:
        await tx.write_gate(after)
    if len(wanted) >= limits.CHUNK:
        # A large number is offered in chunks.
        await tx.add_wakes("gate", [gate.number])
    # Jobs that others have locked may stay as they are.
    return len(jobs) < len(wanted)


async def _next_by_weight(
    tx: StoreTransaction, gate: gates.Gate, limit: gates.LimitRow, use: GateUse, turns: dict[str, str], now: Now
) -> tuple[list[int], int | None]:
    """Return the parked jobs to offer where weights differ, and when the next may start if time decides.

    A job that has no room yet stops the offers to later ones of its route, and to later routes, until it has: its
    route is the first next time.
    """
    wanted: list[int] = []
    opens_at_ms = None
    first = turns.pop(_FIRST, "")
    for route in sorted(await tx.parked_routes(gate.number), key=lambda one: (str(one) != first, one)):
        room = gates.Room(limit, gate, use.running, now.wall_ms)
        offered = await tx.offered_jobs(gate.number, route, limits.CHUNK)
        for weight in (await _weights(tx, limit, offered)).values():
            room.take(weight)
        tried = dict(turns)
        found = await _next_in_turn(tx, gate, route, max(min(room.jobs, limits.CHUNK), 0), tried)
        weights = await _weights(tx, limit, await tx.jobs_by_seq([seq for _, seq in found]))
        for fair_key, seq in found:
            if not room.admits(weights[seq]):
                opens_at_ms = room.opens_at_ms(weights[seq])
                break
            room.take(weights[seq])
            wanted.append(seq)
            turns[str(route)] = fair_key + _NEXT
        if opens_at_ms is not None:
            turns[_FIRST] = str(route)
            break
    return wanted, opens_at_ms


_FIRST: Final = "first"
"""In the turns of a gate: the route whose first parked job had no room yet."""


async def _weights(tx: StoreTransaction, limit: gates.LimitRow, jobs: Sequence[JobRow]) -> dict[int, int]:
    at = await tx.jobs_at_gates([job.seq for job in jobs]) if jobs else {}
    return {job.seq: limit.weight_of(job, at[job.seq].weight) for job in jobs}


async def _next_in_turn(
    tx: StoreTransaction, gate: gates.Gate, route: int, count: int, turns: dict[str, str]
) -> list[tuple[str, int]]:
    """Return up to *count* parked jobs of a route in claim order, tenants in turn, and advance the turn."""
    chosen: list[tuple[str, int]] = []
    below = limits.PRIORITY_MAX + 1
    while len(chosen) < count:
        first = turns.get(str(route), "")
        found = await tx.parked_turns(gate.number, route, below, first, count - len(chosen))
        if not found:
            break
        queues: dict[str, list[tuple[int, int]]] = {}
        for job in found:
            queues.setdefault(job.fair_key, []).append((job.due_at_ms, job.seq))
        in_turn = sorted(queues, key=lambda fair_key: _turn(fair_key, first))
        entries = [[(fair_key, seq) for _, seq in sorted(queues[fair_key])] for fair_key in in_turn]
        taken = claim_order.take_turns(entries, count - len(chosen))
        chosen += taken
        turns[str(route)] = taken[-1][0] + _NEXT
        below = found[0].priority
    return chosen


def _turn(fair_key: str, first: str) -> tuple[bool, str]:
    """Return the sort key of *fair_key* in the order in which the turn goes round from *first* on."""
    return (fair_key < first, fair_key)


_NEXT: Final = "\x01"
"""After a fair_key, as a turn of a gate: the next one. Names contain no control characters."""


# --- usage ---------------------------------------------------------------------------------------------------------


async def report_usage(
    tx: StoreTransaction, routing: RoutingTable, used: Sequence[tuple[JobRow, Mapping[str, int]]]
) -> None:
    """Record how much more than their weight jobs have used; the fold of a wake row corrects their gates."""
    at = await tx.jobs_at_gates([job.seq for job, _ in used])
    rows = []
    for job, amounts in used:
        for limit in routing.limits_of(job.lane, job.kind):
            key = limit.key_of(job, at[job.seq].given)
            amount = None if limit.weight is None else amounts.get(limit.weight)
            if amount is not None and key is not None and at[job.seq].gate is not None:
                rows.append((limit.number, key, amount - limit.weight_of(job, at[job.seq].weight)))
    if rows := [row for row in rows if row[2]]:
        await tx.add_wakes("gate", sorted(await tx.add_usages(rows)))


# --- upkeep --------------------------------------------------------------------------------------------------------


async def count_running(tx: StoreTransaction, routing: RoutingTable, limit: gates.LimitRow) -> None:
    """Count the jobs that run already against a new limit; those that are ending are left out.

    A limit that has only a rate does not take over jobs that another one counts, which limits how many run.
    """
    routes = [route.number for route in routing.routes.values() if limit.concerns(route.key.lane, route.key.kind)]
    after = 0
    while jobs := await tx.running_on_routes(routes, after, limits.CHUNK, _WAIT_MS):
        at: Mapping[int, JobAtGate] = await tx.jobs_at_gates([job.seq for job in jobs])
        keys = {
            job.seq: limit.key_of(job, at[job.seq].given)
            for job in jobs
            if _counts(job) and (limit.concurrency is not None or not _is_counted(routing, job, at[job.seq]))
        }
        numbers = await tx.gate_numbers({(limit.number, key) for key in keys.values() if key is not None})
        await tx.set_gates([(numbers[limit.number, key], seq) for seq, key in keys.items() if key is not None])
        left = {gate for seq, key in keys.items() if key is not None and (gate := at[seq].gate) is not None}
        await tx.add_wakes("gate", sorted(left))
        after = jobs[-1].seq


async def uncounted(tx: StoreTransaction, routing: RoutingTable) -> dict[int, GateKey]:
    """Recount: return running jobs that their gates do not count, up to a chunk of them, with limit and key.

    No known history leads to one, but a restored backup or a row that was changed by hand may.
    """
    routes = [
        route.number for key, route in routing.routes.items() if _counting(routing, key.lane, key.kind) is not None
    ]
    found: dict[int, GateKey] = {}
    after = 0
    while routes and len(found) < limits.CHUNK:
        jobs = await tx.uncounted_jobs(routes, after, limits.CHUNK)
        at: Mapping[int, JobAtGate] = await tx.jobs_at_gates([job.seq for job in jobs]) if jobs else {}
        for job in jobs:
            limit = _counting(routing, job.lane, job.kind)
            key = None if limit is None else limit.key_of(job, at[job.seq].given)
            if limit is not None and key is not None and _counts(job):
                found[job.seq] = (limit.number, key)
        if len(jobs) < limits.CHUNK:
            break
        after = jobs[-1].seq
    return found


def _counts(job: JobRow) -> bool:
    """Return whether a running job is counted: of the entries of a session's claim, only the first is."""
    return job.session_number is None or job.claim_index == 0


def _is_counted(routing: RoutingTable, job: JobRow, at: JobAtGate) -> bool:
    """Return whether a limit on how many run counts a job."""
    limit = _counting(routing, job.lane, job.kind)
    return limit is not None and limit.key_of(job, at.given) is not None


def _counting(routing: RoutingTable, lane: str, kind: str) -> gates.LimitRow | None:
    """Return the limit that counts running jobs of a lane and kind."""
    return next((limit for limit in routing.limits_of(lane, kind) if limit.concurrency is not None), None)


async def maintain(tx: StoreTransaction, now: Now) -> bool:
    """Delete some gates that are not used, look at those where jobs wait for nothing, and count what no gate counts.

    Return whether there was any of them.
    """
    routing = await tx.routing()
    if not routing.has_limits:
        return False
    counted = []
    if missed := await uncounted(tx, routing):
        numbers = await tx.gate_numbers(set(missed.values()))
        locked = await tx.lock_gates(set(numbers.values()), 0)
        counted = [(numbers[key], seq) for seq, key in missed.items() if numbers[key] in locked]
        await tx.set_gates(counted)
    # A claim may have counted jobs at a gate after it was read and before it was locked.
    uses = await tx.gate_uses(await tx.idle_gates(now, limits.CHUNK))
    idle = [gate for gate, use in uses.items() if not any(use)]
    await tx.delete_gates(idle)
    stalled = await tx.stalled_gates(limits.CHUNK)
    await tx.add_wakes("gate", stalled)
    return bool(idle or stalled or counted)

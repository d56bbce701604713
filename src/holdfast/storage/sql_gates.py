"""Limits by key, by named queries."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from holdfast.domain import strict_json
from holdfast.domain.clock import Now
from holdfast.domain.gates import Gate, LimitRow, Rescaling, WaitingGate
from holdfast.domain.job import JobRow
from holdfast.storage.gates_contract import GateKey, GateUse, JobAtGate, ParkedJob
from holdfast.storage.sql_queries import Row, SqlQueries


class SqlGates(SqlQueries):
    """Limits by key and their gates."""

    __slots__ = ()

    async def insert_limit(self, limit: LimitRow) -> int:
        """Store a limit."""
        values = {
            "name": limit.name,
            "kinds": _names_json(limit.kinds),
            "lanes": _names_json(limit.lanes),
            "key_source": limit.key_source,
            **_numbers(limit),
        }
        [[number]] = await self.query("limit_insert", values)
        return int(number)

    async def write_limit(self, limit: LimitRow) -> None:
        """Store the changed numbers of a limit."""
        await self.query("limit_write", {"number": limit.number, **_numbers(limit)})

    async def delete_limit(self, number: int) -> None:
        """Delete a limit."""
        await self.query("limit_delete", {"number": number})

    async def gate_numbers(self, keys: Collection[GateKey]) -> dict[GateKey, int]:
        """Return the numbers of gates."""
        wanted = sorted(keys)
        found = await self._gate_numbers(wanted)
        missing = [key for key in wanted if key not in found]
        if missing:
            await self.query("gates_insert", many=missing)
            found |= await self._gate_numbers(missing)
        return found

    async def _gate_numbers(self, keys: Sequence[GateKey]) -> dict[GateKey, int]:
        rows = await self.query("gates_find", {"pairs": [list(key) for key in keys]}) if keys else []
        return {(limit, key): gate for gate, limit, key in rows}

    async def lock_gates(self, gates: Collection[int], wait_ms: int) -> dict[int, Gate]:
        """Lock gates."""
        rows = await self.query("gates_lock", {"gates": sorted(gates), "wait_ms": wait_ms}) if gates else []
        return {row[0]: Gate(*row) for row in rows}

    async def gate_uses(self, gates: Collection[int]) -> dict[int, GateUse]:
        """Return the use of gates."""
        rows = await self.query("gates_use", {"gates": sorted(gates)}) if gates else []
        return {gate: GateUse(running, bool(has_parked)) for gate, running, has_parked in rows}

    async def ending_gates(self, counted: Mapping[int, int]) -> set[int]:
        """Return the gates of which jobs may be ending: none, with one writer at a time."""
        return set()

    async def gates_of_key(self, key: str) -> list[Gate]:
        """Return the gates of a key."""
        return [Gate(*row) for row in await self.query("gates_of_key", {"key": key})]

    async def waiting_gates(self, now: Now, gates: int, maximum: int) -> list[WaitingGate]:
        """Return gates that are closed or at which jobs are parked."""
        values = {"now": now.wall_ms, "gates": gates, "maximum": maximum}
        return [WaitingGate(*row) for row in await self.query("gates_waiting", values)]

    async def close_gate(self, key: GateKey, until_ms: int) -> None:
        """Close a gate."""
        await self.query("gate_close", {"number": key[0], "key": key[1], "until_ms": until_ms})

    async def write_gate(self, gate: Gate) -> None:
        """Store what a gate keeps in mind."""
        values = {
            "gate": gate.number,
            "until_us": gate.until_us,
            "closed_until_ms": gate.closed_until_ms,
            "wake_at_ms": gate.wake_at_ms,
            "turns": gate.turns_json,
        }
        await self.query("gate_write", values)

    async def delete_gates(self, gates: Collection[int]) -> None:
        """Delete gates."""
        if gates:
            await self.query("gates_delete", {"gates": sorted(gates)})

    async def existing_gates(self, gates: Collection[int]) -> set[int]:
        """Return those of these gates that exist."""
        rows = await self.query("gates_existing", {"gates": sorted(gates)}) if gates else []
        return {gate for (gate,) in rows}

    async def stalled_gates(self, limit: int) -> list[int]:
        """Return gates that nothing would look at again."""
        return [gate for (gate,) in await self.query("gates_stalled", {"limit": limit})]

    async def idle_gates(self, now: Now, limit: int) -> list[int]:
        """Return gates that are not used."""
        return [gate for (gate,) in await self.query("gates_idle", {"now": now.wall_ms, "limit": limit})]

    async def jobs_at_gates(self, seqs: Sequence[int]) -> dict[int, JobAtGate]:
        """Return the gates, given keys and given weights of jobs."""
        rows = await self.query("jobs_at_gates", {"seqs": list(seqs)})
        return {seq: JobAtGate(*at) for seq, *at in rows}

    async def set_gates(self, gates: Sequence[tuple[int | None, int]]) -> None:
        """Write the gates of jobs."""
        if gates:
            await self._change_rows("jobs_set_gates", gates)

    async def write_gated_claims(self, jobs: Sequence[tuple[JobRow, int | None]]) -> None:
        """Write claims of ready jobs with their gates."""
        one = jobs[0][0]
        acknowledged = [job.claim_index or 0 for job, _ in jobs if not job.unacknowledged]
        values = {
            "claimed": [[job.seq, job.claim_index, gate] for job, gate in jobs],
            "acknowledged": max(acknowledged, default=-1) + 1,
            "worker": one.worker,
            "incarnation": one.incarnation,
            "lease_token": one.lease_token,
            "lease_until_ms": one.lease_until_ms,
            "started_at_ms": one.started_at_ms,
        }
        await self._write_gated_claims(values, len(jobs))

    async def _write_gated_claims(self, values: dict[str, Any], expected: int) -> None:
        await self._change("job_claim_gated", values, expected)

    async def insert_limit_keys(self, keys: Sequence[tuple[int, str | None, int | None]]) -> None:
        """Store the keys and weights that jobs were given."""
        await self.query("limit_keys_insert", many=list(keys))

    async def delete_limit_keys(self, seqs: Sequence[int]) -> None:
        """Delete the keys and weights that jobs were given."""
        await self.query("limit_keys_delete", {"seqs": list(seqs)})

    async def parked_routes(self, gate: int) -> list[int]:
        """Return the routes of parked jobs."""
        return [route for (route,) in await self.query("gate_routes", {"gate": gate})]

    async def parked_turns(
        self, gate: int, route: int, below: int, first_fair_key: str, limit: int
    ) -> list[ParkedJob]:
        """Return the first parked jobs of a route."""
        values = {"gate": gate, "route": route, "below": below, "first_fair_key": first_fair_key, "limit": limit}
        return [ParkedJob(*row) for row in await self.query("gate_turns", values)]

    async def parked_jobs(self, seqs: Sequence[int]) -> list[JobRow]:
        """Lock parked jobs."""
        return await self._jobs("jobs_parked", {"seqs": list(seqs)}) if seqs else []

    async def count_offered(self, gate: int, route: int, limit: int) -> int:
        """Return how many ready jobs of a route name a gate."""
        [[found]] = await self.query("gate_offered", {"gate": gate, "route": route, "limit": limit})
        return int(found)

    async def offered_jobs(self, gate: int, route: int, limit: int) -> list[JobRow]:
        """Return ready jobs of a route that name a gate."""
        rows = await self.query("gate_offered_jobs", {"gate": gate, "route": route, "limit": limit})
        return await self._jobs("jobs_by_seq", {"seqs": [seq for (seq,) in rows]}) if rows else []

    async def add_usages(self, used: Sequence[tuple[int, str, int]]) -> set[int]:
        """Record how much more than their weight jobs have used."""
        return {gate for (gate,) in await self.query("gate_usage_add", {"used": [list(one) for one in used]})}

    async def take_usages(self, gates: Collection[int]) -> dict[int, int]:
        """Delete what was recorded for gates."""
        sums: dict[int, int] = {}
        for gate, amount in await self.query("gate_usage_take", {"gates": sorted(gates)}) if gates else []:
            sums[gate] = sums.get(gate, 0) + amount
        return sums

    async def count_parked(self, gate: int, limit: int) -> int:
        """Return how many jobs are parked at a gate."""
        [[found]] = await self.query("gate_parked", {"gate": gate, "limit": limit})
        return int(found)

    async def running_on_routes(self, routes: Sequence[int], after: int, limit: int, wait_ms: int) -> list[JobRow]:
        """Lock running jobs on routes."""
        values = {"routes": list(routes), "after": after, "limit": limit, "wait_ms": wait_ms}
        return await self._jobs("jobs_running_on_routes", values)

    async def uncounted_jobs(self, routes: Sequence[int], after: int, limit: int) -> list[JobRow]:
        """Lock running jobs on routes that no gate counts."""
        return await self._jobs("jobs_uncounted", {"routes": list(routes), "after": after, "limit": limit})

    async def shift_gates(self, number: int, above_us: int, by_us: int) -> None:
        """Move times of the gates of a limit back."""
        await self.query("gates_shift", {"number": number, "above_us": above_us, "by_us": by_us})

    async def wake_gates(self, seqs: Sequence[int]) -> None:
        """Append wake rows of the gates of jobs."""
        if seqs:
            await self.query("wake_gates", {"seqs": list(seqs)})

    async def rescale_gates(self, number: int, rescaling: Rescaling, now: Now) -> None:
        """Write how far starts have used up a rate that has changed."""
        await self.query("gates_rescale", {"number": number, **rescaling._asdict(), "now_us": now.wall_ms * 1000})

    async def wake_gates_of_limit(self, number: int) -> None:
        """Append wake rows of all gates of a limit."""
        await self.query("wake_gates_of_limit", {"number": number})


def _numbers(limit: LimitRow) -> dict[str, Any]:
    return {
        "concurrency": limit.concurrency,
        "rate": limit.rate,
        "period_ms": limit.period_ms,
        "burst": limit.burst,
        "weight": limit.weight,
    }


def _names_json(names: tuple[str, ...] | None) -> str | None:
    return None if names is None else strict_json.compact(list(names))


def limit_of(row: Row) -> LimitRow:
    """Return the limit of a row."""
    number, name, kinds, lanes, *rest = row
    return LimitRow(number, name, _names(kinds), _names(lanes), *rest)


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(strict_json.decode(text))

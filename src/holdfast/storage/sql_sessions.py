"""The part of the storage contract for sessions, by named queries."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from holdfast.domain.clock import Now
from holdfast.domain.job import Job
from holdfast.domain.sessions import Head, Session
from holdfast.storage.contract import LineRow, SessionFront, SessionName, SourceRow
from holdfast.storage.sql_queries import Row, SqlQueries


class SqlSessions(SqlQueries):
    """Sessions: their rows, lines, heads, leases and source keys."""

    __slots__ = ()

    async def session_number(self, tenant: str, name: str) -> int | None:
        """Return the number of a session."""
        rows = await self.query("session_number", {"tenant": tenant, "name": name})
        return rows[0][0] if rows else None

    async def session_by_name(self, tenant: str, name: str) -> Session | None:
        """Return one session."""
        rows = await self.query("session_by_name", {"tenant": tenant, "name": name})
        return Session._make(rows[0]) if rows else None

    async def sessions_by_name(self, names: Collection[SessionName]) -> list[Session]:
        """Return these sessions."""
        return _sessions(await self.query("sessions_by_name", {"names": [list(name) for name in names]}))

    async def sessions_by_number(self, numbers: Sequence[int]) -> list[Session]:
        """Return these sessions."""
        return _sessions(await self.query("sessions_by_number", {"numbers": list(numbers)}))

    async def sessions_by_nonce(self, worker: str, nonce: str) -> list[Session]:
        """Return the sessions whose newest claim a worker made with *nonce*."""
        return _sessions(await self.query("session_by_nonce", {"worker": worker, "nonce": nonce}))

    async def create_session(self, tenant: str, name: str) -> None:
        """Store a session unless it exists."""
        await self.query("session_create", {"tenant": tenant, "name": name})

    async def free_sessions(self, numbers: Sequence[int]) -> set[int]:
        """Lock the unlocked ones among these sessions."""
        return {number for (number,) in await self.query("sessions_unlocked", {"numbers": list(numbers)})}

    async def pick_session(self, numbers: Sequence[int]) -> Session | None:
        """Lock and return the first unlocked one of these sessions."""
        rows = await self.query("session_first_ready", {"numbers": list(numbers)})
        return Session._make(rows[0]) if rows else None

    async def session_line(self, session: int, after: int, limit: int) -> list[LineRow]:
        """Return entries of a session's line."""
        rows = await self.query("session_entries_in_order", {"session": session, "after": after, "limit": limit})
        return [LineRow._make(row) for row in rows]

    async def session_fronts(self, sessions: Sequence[int]) -> dict[int, SessionFront]:
        """Return the front of each session."""
        rows = await self.query("session_first_entries", {"sessions": list(sessions)})
        return {number: SessionFront(bool(running), LineRow._make(first)) for number, running, *first in rows}

    async def session_running(self, session: int) -> list[Job]:
        """Return the running entries of a session."""
        return await self._jobs("session_running", {"session": session})

    async def session_running_seqs(self, session: int) -> set[int]:
        """Return the numbers of the running entries of a session."""
        return {seq for seq, _ in await self.query("session_running_entries", {"session": session})}

    async def session_waiting(self, session: int, after: int, limit: int) -> list[int]:
        """Return the numbers of the waiting entries of a session."""
        values = {"session": session, "after": after, "limit": limit}
        return [seq for (seq,) in await self.query("session_entries_waiting", values)]

    async def session_due(self, session: int, now: Now, limit: int) -> list[Job]:
        """Return the scheduled entries of a session that have become due."""
        return await self._jobs("session_due", {"session": session, "now": now.wall_ms, "limit": limit})

    async def session_expired(self, session: int, now: Now, limit: int) -> list[Job]:
        """Return the running entries of a session whose lease has expired."""
        return await self._jobs("session_expired", {"session": session, "now": now.lease_ms, "limit": limit})

    async def take_entries(self, seqs: Sequence[int]) -> list[Job]:
        """Lock the unlocked ones among these entries."""
        return await self._jobs("session_entries_ready", {"seqs": list(seqs)})

    async def expired_sessions(self, now: Now, limit: int) -> list[Session]:
        """Return sessions whose runtime's lease has expired."""
        return _sessions(await self.query("sessions_expired", {"now": now.lease_ms, "limit": limit}))

    async def next_session_expiry(self) -> int | None:
        """Return when the next runtime lease expires."""
        [[lease_until_ms]] = await self.query("session_next_time")
        return None if lease_until_ms is None else int(lease_until_ms)

    async def session_heads(
        self, prefixes: Sequence[tuple[int, str]], fair_key: str, limit: int
    ) -> list[tuple[int, int]]:
        """Return the first heads of each prefix of one fairness key."""
        values = {"prefixes": [[*prefix, fair_key] for prefix in prefixes], "limit": limit}
        return [(seq, number) for seq, number in await self.query("session_heads", values)]

    async def session_heads_of_tenant(
        self, prefixes: Sequence[tuple[int, str]], tenant: str, limit: int
    ) -> list[tuple[int, int]]:
        """Return the first heads of each prefix of one tenant in strict lanes."""
        values = {"prefixes": [list(prefix) for prefix in prefixes], "tenant": tenant, "limit": limit}
        return [(seq, number) for seq, number in await self.query("session_heads_of_tenant", values)]

    async def next_session_fair_keys(self, prefixes: Sequence[tuple[int, str]], last: str) -> set[str]:
        """Return the next fairness keys with heads."""
        values = {"prefixes": [list(prefix) for prefix in prefixes], "last_fair_key": last}
        return {key for row in await self.query("session_fair_keys", values) for key in row if key is not None}

    async def write_session_lengths(self, lengths: Sequence[tuple[int, int]]) -> None:
        """Write the position of the newest entry of each session."""
        await self.query("session_enqueue_seq_write", many=lengths)

    async def write_session_heads(self, heads: Sequence[tuple[Head, int]]) -> None:
        """Write the head that each session offers."""
        if heads:
            await self.query("session_heads_write", many=[(*head, number) for head, number in heads])

    async def write_session_lease(self, session: Session) -> None:
        """Write the lease of a session's runtime."""
        values = {
            "number": session.number,
            "generation": session.generation,
            "lease_token": session.lease_token,
            "lease_worker": session.lease_worker,
            "lease_incarnation": session.lease_incarnation,
            "lease_until_ms": session.lease_until_ms,
        }
        await self.query("session_lease_write", values)

    async def write_session_claim(self, session: Session) -> None:
        """Write the newest claim of a session."""
        values = {
            "number": session.number,
            "fence": session.fence,
            "claim_id": session.claim_id,
            "worker": session.claim_worker,
            "nonce": session.claim_nonce,
            "lease_token": session.claim_token,
        }
        await self.query("session_claim_write", values)

    async def sources_seen(self, session: int, keys: Sequence[str]) -> list[SourceRow]:
        """Return the stored records of these source keys of a session."""
        rows = await self.query("sources_seen", {"session": session, "keys": list(keys)})
        return [SourceRow._make(row) for row in rows]

    async def jobs_seen(self, seqs: Sequence[int]) -> list[Job]:
        """Return jobs without locking them."""
        return await self._jobs("jobs_unlocked", {"seqs": list(seqs)})

    async def insert_sources(self, entries: Sequence[tuple[Job, int]]) -> None:
        """Store the source keys of new entries."""
        if entries:
            await self.query("source_insert", many=[_source(job, route) for job, route in entries])


def _sessions(rows: Iterable[Row]) -> list[Session]:
    return [Session._make(row) for row in rows]


def _source(job: Job, route: int) -> Row:
    entry = job.entry
    return (
        job.session_number,
        None if entry is None else entry.source_key,
        job.seq,
        job.id,
        route,
        job.entry_json,
        job.enqueue_seq,
        job.enqueued_at_ms,
    )

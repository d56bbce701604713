"""`queue.sessions`: claim, settle and own sessions."""

from __future__ import annotations

import builtins
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Unpack, cast

from holdfast.client import ids, validate_calls
from holdfast.client.async_api.namespace import AsyncNamespace
from holdfast.domain import limits, routing, session_claims, validation
from holdfast.domain.claims import Renewal, Settlement, lease_ms
from holdfast.domain.job import Job
from holdfast.domain.outcomes import Outcome
from holdfast.domain.results import SessionInfo, SessionPage
from holdfast.domain.session_claims import (
    AnySessionOptions,
    CheckpointOptions,
    SessionClaim,
    SessionClaimOptions,
    SessionLease,
    TurnLease,
)
from holdfast.domain.validation import Duration
from holdfast.operations import (
    session_claim as claim_operations,
    session_lease as lease_operations,
    sessions as session_operations,
)
from holdfast.storage import notifications
from holdfast.storage.contract import StoreTransaction
from holdfast.storage.runners import AsyncLeasing

# How often a waiting claim polls.
_CLAIM_SECONDS = 1.0


class AsyncTurns(AsyncNamespace):
    """Settles and extends turns of sessions within a transaction: `tx.sessions`."""

    async def heartbeat(self, turn: SessionClaim | TurnLease, *, lease: Duration | None = None) -> Renewal:
        """Extend the lease of a turn as a whole by *lease* seconds, or raise `LeaseLost`.

        The default is the original length of the lease, for a `TurnLease` 30 seconds. A turn claimed under a session
        lease is only checked: it expires with the session lease.
        """
        given_ms = None if lease is None else lease_ms(lease)
        claim = await self._claim_of(turn)
        return await self._runner.write(
            lease_operations.heartbeat_session, claim, claim.lease_ms if given_ms is None else given_ms
        )

    async def settle(self, turn: SessionClaim | TurnLease, outcome: Outcome | Sequence[Outcome]) -> list[Job]:
        """Record the outcome of a turn and return its settled entries, in order, or raise `LeaseLost`.

        *outcome* is one outcome for all entries, or one for each; all are settled in one commit, or none. Follow-ups
        and artifacts of one outcome for all are stored once, with the first entry. Repeating the same call succeeds.
        """
        claim = await self._claim_of(turn)
        outcomes = validate_calls.turn_outcomes(claim, outcome)
        if self._state.codec is None and not self._state.middleware:
            return await self._runner.write(lease_operations.settle_session, claim, outcomes)
        pairs = list(zip(claim.claims, outcomes, strict=True))
        with self._state.settling(pairs) as call:
            call.raise_refused()
            changed = [checked for _, checked in call.outcomes]
            jobs = await self._runner.write(lease_operations.settle_session, claim, changed)
            call.answered(Settlement(one, job) for (one, _), job in zip(pairs, jobs, strict=True))
        return jobs

    async def _claim_of(self, turn: SessionClaim | TurnLease) -> SessionClaim:
        """Return the claim of a turn; the entries of a lease are read from the store."""
        if isinstance(turn, SessionClaim):
            return turn
        return await self._runner.read(lease_operations.claim_of_turn, validate_calls.turn_lease(turn))


class AsyncSessions(AsyncTurns):
    """Claims, settles and owns the sessions of a queue: `queue.sessions`."""

    async def claim(self, session: str, **options: Unpack[SessionClaimOptions]) -> SessionClaim | None:
        """Lease the next entries of a session, or return None if none can be claimed now.

        See `SessionClaimOptions` for the options. Raises `Conflict` if the session has another owner, and `LeaseLost`
        if the given session lease is no longer held.
        """
        completed = cast(SessionClaimOptions, {**self._state.claimer, **options})
        request = session_claims.check_session_claim(session, completed, fresh_token=ids.lease_token())
        topic = notifications.session_topic(request.tenant or routing.DEFAULT_NAME, session)
        return await self._claim(request, claim_operations.claim_session, [topic])

    async def claim_next(self, **options: Unpack[AnySessionOptions]) -> SessionClaim | None:
        """Lease the next entries of any session that is ready, or return None if there is none.

        The session with the oldest head goes first, and tenants alternate. Sessions that have an owner are left
        out. See `AnySessionOptions` for the options.
        """
        completed = cast(AnySessionOptions, {**self._state.claimer, **options})
        request = session_claims.check_any_session(completed, fresh_token=ids.lease_token())
        topics = [notifications.sessions_topic(lane) for lane in request.lanes or ()]
        return await self._claim(request, claim_operations.claim_any_session, topics)

    async def checkpoint(
        self, turn: SessionClaim | TurnLease, **options: Unpack[CheckpointOptions]
    ) -> SessionClaim | None:
        """Lease more entries under the fence of a running turn, or return None if none can be claimed now.

        `turn.joined(more)` returns the turn with the new entries. See `CheckpointOptions` for the options. Raises
        `LeaseLost` if the turn is no longer held.
        """
        held = await self._claim_of(turn)
        request = session_claims.check_checkpoint(held, options)
        topic = notifications.session_topic(held.tenant, held.session)
        return await self._claim(request, claim_operations.claim_session, [topic])

    async def _claim(
        self,
        request: session_claims.SessionRequest,
        claim: Callable[[StoreTransaction, session_claims.SessionRequest], Coroutine[Any, Any, SessionClaim | None]],
        topics: Sequence[str],
    ) -> SessionClaim | None:
        """Claim; if no entry is ready, wait for one up to the request's `wait`."""
        left = request.wait_ms / 1000
        until = time.monotonic() + left
        with self._runner.leasing() as leasing, self._runner.listen(*(topics if left else ())) as listener:
            while True:
                if found := await self._claim_now(leasing, request, claim):
                    return found
                if (left := until - time.monotonic()) <= 0:
                    return None
                # An entry that falls due or a lease that expires sends no notification.
                next_change = await self._runner.read(claim_operations.seconds_to_session)
                left -= await listener.wait(min(left, next_change, _CLAIM_SECONDS))
                request = request._replace(wait_ms=max(round(left * 1000), 0))

    async def _claim_now(
        self,
        leasing: AsyncLeasing,
        request: session_claims.SessionRequest,
        claim: Callable[[StoreTransaction, session_claims.SessionRequest], Coroutine[Any, Any, SessionClaim | None]],
    ) -> SessionClaim | None:
        undo = claim_operations.undo_session_claim
        if not self._state.middleware:
            return await leasing.lease(undo, claim, request)
        with self._state.claiming(request) as call:
            found = await leasing.lease(undo, claim, request)
            call.answer = [] if found is None else found.claims
        return found

    async def get(self, session: str, *, tenant: str = "default") -> SessionInfo:
        """Return a session, or raise `SessionNotFound`: a session exists from its first use on."""
        session, tenant = validation.name(session, "session"), validation.name(tenant, "tenant")
        return await self._runner.read(session_operations.get_session, tenant, session)

    async def list(self, *, tenant: str | None = None, after: str | None = None, limit: int = 100) -> SessionPage:
        """Return a page of up to *limit* sessions by tenant and name; with *tenant*, only its sessions.

        Pass the `cursor` of the page as *after* to get the next page.
        """
        tenant, after = validate_calls.tenant(tenant), validation.optional_name(after, "after")
        limit = validation.integer(limit, "limit", 1, limits.PAGE_MAX)
        return await self._runner.read(session_operations.list_sessions, tenant, after, limit)

    async def cancel(self, session: str, *, tenant: str = "default") -> builtins.list[str]:
        """Cancel the waiting entries of a session, in bounded chunks; return their ids."""
        session, tenant = validation.name(session, "session"), validation.name(tenant, "tenant")
        cancelled: builtins.list[str] = []
        after: int | None = 0
        while after is not None:
            found, after = await self._runner.write(lease_operations.cancel_waiting, tenant, session, after)
            cancelled += found
        return cancelled

    # --- the owner of a session ------------------------------------------------------------------------------------

    async def open(
        self,
        session: str,
        *,
        tenant: str = "default",
        worker: str | None = None,
        incarnation: str | None = None,
        lease: Duration = 30.0,
        take_over: bool = False,
        lease_token: str | None = None,
    ) -> SessionLease:
        """Become the only owner of a session until the lease expires, is closed or is taken over.

        The lease lasts *lease* seconds, by default 30, unless `renew` extends it. The owner is *worker* and
        *incarnation*, by default this host and process and this queue object.

        Raises `Conflict` while another worker owns the session or holds a claim on it. With *take_over* that worker
        loses its session lease and its claims. Repeating the call with the same *lease_token* returns the same
        lease.
        """
        claimer = self._state.claimer
        opening = session_claims.Opening(
            session=validation.name(session, "session"),
            tenant=validation.name(tenant, "tenant"),
            worker=validation.name(claimer["worker"] if worker is None else worker, "worker"),
            incarnation=validation.name(
                claimer["incarnation"] if incarnation is None else incarnation, "incarnation"
            ),
            lease_token=validation.optional_name(lease_token, "lease_token", limits.LEASE_TOKEN_CHARS_MAX)
            or ids.lease_token(),
            lease_ms=lease_ms(lease),
            take_over=validation.flag(take_over, "take_over"),
            resent=lease_token is not None,
        )
        with self._runner.leasing() as leasing:
            return await leasing.lease(lease_operations.undo_open_session, lease_operations.open_session, opening)

    async def renew(self, lease: SessionLease, *, length: Duration | None = None) -> SessionLease:
        """Extend a session lease and the claims under it by *length* seconds, by default its original length.

        Raises `LeaseLost` if it is no longer held.
        """
        held = validate_calls.session_lease(lease)
        given_ms = held.lease_ms if length is None else lease_ms(length)
        return await self._runner.write(lease_operations.renew_session, held, given_ms)

    async def close(self, lease: SessionLease) -> None:
        """End a session lease and release the entries held under it, without using up attempts.

        Raises `LeaseLost` if another worker has become the owner.
        """
        await self._runner.write(lease_operations.close_session, validate_calls.session_lease(lease))

"""The part of `Operations` that claims, settles and leases sessions."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Unpack, cast

from holdfast.client import ids
from holdfast.client.lanes import LaneOperations
from holdfast.domain import limits, validation
from holdfast.domain.claims import Renewal, lease_ms
from holdfast.domain.errors import InvalidInput
from holdfast.domain.job import Job
from holdfast.domain.outcomes import CheckedOutcome, Done, Outcome, check_outcome
from holdfast.domain.routing import DEFAULT_NAME
from holdfast.domain.session_claims import (
    AnySessionOptions,
    Opening,
    SessionClaim,
    SessionClaimOptions,
    SessionLease,
    SessionRequest,
    check_any_session,
    check_session_claim,
)
from holdfast.domain.validation import Duration
from holdfast.operations import session_claim as claim_operations
from holdfast.operations import session_lease as lease_operations
from holdfast.operations import session_lease as settle_operations
from holdfast.storage.contract import StoreTransaction
from holdfast.storage.notifications import session_topic, sessions_topic

# How often a waiting claim polls.
_CLAIM_SECONDS = 1.0


class SessionOperations(LaneOperations):
    """Operations on sessions: they validate the options, then run transactions."""

    async def claim_session(self, session: str, **options: Unpack[SessionClaimOptions]) -> SessionClaim | None:
        """Lease the next entries of a session, or return None if none can be claimed now.

        See `SessionClaimOptions` for the options. Raises `Conflict` if another worker is the session's owner, and
        `LeaseLost` if the given claim or session lease is no longer held.
        """
        completed = cast(SessionClaimOptions, {**self._claimer, **options})
        request = check_session_claim(session, completed, fresh_token=ids.lease_token())
        topic = session_topic(request.tenant or DEFAULT_NAME, session)
        return await self._claim_run(request, claim_operations.claim_session, [topic])

    async def claim_any_session(self, **options: Unpack[AnySessionOptions]) -> SessionClaim | None:
        """Lease the next entries of any session that is ready, or return None if there is none.

        The session with the oldest head goes first, and tenants alternate. Sessions that have an owner are left
        out. See `AnySessionOptions` for the options.
        """
        completed = cast(AnySessionOptions, {**self._claimer, **options})
        request = check_any_session(completed, fresh_token=ids.lease_token())
        topics = [sessions_topic(lane) for lane in request.lanes or ()]
        return await self._claim_run(request, claim_operations.claim_any_session, topics)

    async def _claim_run(
        self,
        request: SessionRequest,
        claim: Callable[[StoreTransaction, SessionRequest], Coroutine[Any, Any, SessionClaim | None]],
        topics: Sequence[str],
    ) -> SessionClaim | None:
        """Claim; if no entry is ready, wait for one up to the request's `wait`."""
        left = request.wait_ms / 1000
        with self.runner.listen(*(topics if left else ())) as listener:
            while True:
                if found := await self.runner.lease(claim_operations.undo_session_claim, claim, request):
                    return found
                if left <= 0:
                    return None
                # An entry that falls due or a lease that expires sends no notification.
                next_change = await self.runner.read(claim_operations.seconds_to_session)
                left -= await listener.wait(min(left, next_change, _CLAIM_SECONDS))

    async def cancel_session(self, session: str, *, tenant: str = DEFAULT_NAME) -> list[str]:
        """Cancel the waiting entries of a session, in bounded chunks; return their ids."""
        session, tenant = validation.name(session, "session"), validation.name(tenant, "tenant")
        cancelled: list[str] = []
        after: int | None = 0
        while after is not None:
            found, after = await self.runner.write(settle_operations.cancel_waiting, tenant, session, after)
            cancelled += found
        return cancelled

    # --- the session's owner ---------------------------------------------------------------------------------------

    async def open_session(
        self,
        session: str,
        *,
        tenant: str = DEFAULT_NAME,
        worker: str | None = None,
        incarnation: str | None = None,
        lease: Duration = limits.LEASE_MS_DEFAULT / 1000,
        take_over: bool = False,
        lease_token: str | None = None,
    ) -> SessionLease:
        """Become the only owner of a session until the lease expires, is closed or is taken over.

        Raises `Conflict` while another worker is the owner or holds a claim on the session. With *take_over* that
        worker loses its session lease and its claims. Repeating the call with the same *lease_token* returns the same
        lease.
        """
        opening = Opening(
            session=validation.name(session, "session"),
            tenant=validation.name(tenant, "tenant"),
            worker=validation.name(worker or self._claimer["worker"], "worker"),
            incarnation=validation.name(incarnation or self._claimer["incarnation"], "incarnation"),
            lease_token=validation.optional_name(lease_token, "lease_token", limits.LEASE_TOKEN_CHARS_MAX)
            or ids.lease_token(),
            lease_ms=lease_ms(lease),
            take_over=validation.flag(take_over, "take_over"),
        )
        return await self.runner.lease(lease_operations.undo_open_session, lease_operations.open_session, opening)

    async def renew_session(self, lease: SessionLease, *, length: Duration | None = None) -> SessionLease:
        """Extend a session lease and the claims under it by *length*, by default its original length.

        Raises `LeaseLost` if it is no longer held.
        """
        held = _lease(lease)
        given_ms = held.lease_ms if length is None else lease_ms(length)
        return await self.runner.write(lease_operations.renew_session, held, given_ms)

    async def close_session(self, lease: SessionLease) -> None:
        """End a session lease and release the entries held under it, without using up attempts."""
        await self.runner.write(lease_operations.close_session, _lease(lease))

    # --- settling --------------------------------------------------------------------------------------------------

    async def _heartbeat_session(self, claim: SessionClaim, lease: Duration | None) -> Renewal:
        given_ms = claim.lease_ms if lease is None else lease_ms(lease)
        return await self.runner.write(settle_operations.heartbeat_session, claim, given_ms)

    async def _settle_session(self, claim: SessionClaim, outcome: Outcome | Sequence[Outcome]) -> list[Job]:
        outcomes = _outcomes(claim, outcome)
        return await self.runner.write(settle_operations.settle_session, claim, outcomes)


def _lease(value: Any) -> SessionLease:
    if not isinstance(value, SessionLease):
        raise InvalidInput("lease", f"must be a SessionLease, not {type(value).__name__}")
    return value


def _outcomes(claim: Any, outcome: Outcome | Sequence[Outcome]) -> list[CheckedOutcome]:
    if not isinstance(claim, SessionClaim):
        raise InvalidInput("claim", f"must be a SessionClaim, not {type(claim).__name__}")
    count = len(claim.entries)
    if not isinstance(outcome, Sequence):
        # Follow-ups and artifacts of one outcome for all entries are stored once, with the first entry.
        rest = Done(outcome.result) if isinstance(outcome, Done) else outcome
        return [_checked(claim, outcome), *(_checked(claim, rest) for _ in range(count - 1))]
    if len(outcome) != count:
        raise InvalidInput("outcome", f"has {len(outcome)} outcomes; this claim has {count} entries")
    return [_checked(claim, one, f"outcome[{index}].") for index, one in enumerate(outcome)]


def _checked(claim: SessionClaim, outcome: Outcome, prefix: str = "") -> CheckedOutcome:
    try:
        return check_outcome(outcome, tenant=claim.tenant, fresh_id=ids.uuid7)
    except InvalidInput as error:
        raise InvalidInput(f"{prefix}{error.field}", error.problem) from None

"""The claims that this process has handed out, so that most settlements need not read their job first."""

from collections.abc import Iterable
from typing import Final

from holdfast.domain import access
from holdfast.domain.claims import Claim
from holdfast.domain.job import columns_of

_KEPT_MAX: Final = 2_000
_PAYLOAD_CHARS_MAX: Final = 4_096


class HeldClaims:
    """Recent claims by job, a bounded number; large jobs are not kept.

    A kept claim proves nothing: the operation that gets it compares epoch and token in its transaction, as it does
    with the claim of a worker. If it is missing, for example because another process made it, the job is read.
    """

    def __init__(self) -> None:
        self._claims: dict[str, Claim] = {}

    def keep(self, claims: Iterable[Claim]) -> None:
        """Keep the claims that are handed out."""
        for claim in claims:
            row = columns_of(claim.job)
            if len(row.payload_json) <= _PAYLOAD_CHARS_MAX:
                self._claims[row.id] = claim
        while len(self._claims) > _KEPT_MAX:
            del self._claims[next(iter(self._claims))]

    def take(
        self, job_id: str, epoch: int, lease_token: str, tenant: str | None, grants: access.Grants
    ) -> Claim | None:
        """Return the claim that is settled and forget it, or None if it is not kept or the caller may not see it."""
        claim = self._claims.get(job_id)
        if claim is None or (claim.epoch, claim.lease_token) != (epoch, lease_token):
            return None
        row = columns_of(claim.job)
        if tenant not in {None, row.tenant} or not access.covers(grants, row.lane, row.kind):
            return None
        del self._claims[job_id]
        return claim

"""Which jobs may kill the process they run in, as far as their past tells."""

from __future__ import annotations

from typing import Final

from holdfast.domain import failure
from holdfast.domain.job import Job

_DEATHS: Final = (failure.LEASE_LAPSED, failure.PROCESS_DIED)


def is_suspect(job: Job) -> bool:
    """Whether the job's newest failure was that its worker fell silent, or that its own process died.

    The mark that a lapse leaves is taken away by whatever settles the job next, a release too. The failure stays
    until an attempt shows that the job ends in another way.
    """
    return job.suspect == 1 or job.failure_reason in _DEATHS

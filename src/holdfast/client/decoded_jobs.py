"""Gives jobs the codec of their queue."""

from typing import TypeVar

from holdfast.domain import claims, job, results, session_claims
from holdfast.domain.codec import Codec

T = TypeVar("T")


def with_codec(result: T, codec: Codec) -> T:
    """Return *result*, whose jobs decode their payload and result with *codec* from now on."""
    match result:
        case job.Job():
            job.set_codec(result, codec)
        case claims.Claim() | results.StoredJob():
            job.set_codec(result.job, codec)
        case claims.Settlement():
            with_codec(result.job, codec)
        case session_claims.SessionClaim():
            with_codec(result.entries, codec)
        case results.JobPage():
            with_codec(result.jobs, codec)
        case results.NewJobs():
            with_codec(list(result.jobs), codec)
        case list() | tuple():
            for one in result:
                with_codec(one, codec)
    return result

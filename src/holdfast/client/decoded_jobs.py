"""Gives jobs the codec of their queue."""

from __future__ import annotations

from typing import TypeVar

from holdfast.domain.claims import Claim, Settlement
from holdfast.domain.codec import Codec
from holdfast.domain.job import Job
from holdfast.domain.results import JobPage, StoredJob
from holdfast.domain.session_claims import SessionClaim

T = TypeVar("T")


def with_codec(result: T, codec: Codec) -> T:
    """Return *result*, whose jobs decode their payload and result with *codec* from now on."""
    match result:
        case Job():
            result._codec = codec
        case Claim() | StoredJob():
            result.job._codec = codec
        case Settlement():
            with_codec(result.job, codec)
        case SessionClaim():
            with_codec(result.entries, codec)
        case JobPage():
            with_codec(result.jobs, codec)
        case list() | tuple():
            for one in result:
                with_codec(one, codec)
    return result

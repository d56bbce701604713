# Generated from client/async_api/decoding.py by scripts/make-sync; do not edit.
"""Runs store operations for a queue with a codec: the jobs that they return can decode their payload and result."""

from typing import ParamSpec, TypeVar

from holdfast.client import decoded_jobs
from holdfast.domain.codec import Codec
from holdfast.storage.runners import Function, SyncLeasing, SyncRunner, Undo
from holdfast.storage.store import SyncTarget

P = ParamSpec("P")
T = TypeVar("T")


class DecodingRunner(SyncRunner):
    """A runner whose results have the codec."""

    def __init__(self, target: SyncTarget, codec: Codec) -> None:
        super().__init__(target)
        self._codec = codec

    def read(self, function: Function[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Do what the base class does."""
        return decoded_jobs.with_codec(super().read(function, *args, **kwargs), self._codec)

    def write(self, function: Function[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Do what the base class does."""
        return decoded_jobs.with_codec(super().write(function, *args, **kwargs), self._codec)

    def leasing(self) -> SyncLeasing:
        """Do what the base class does."""
        return DecodingLeasing(self._target, self._codec)


class DecodingLeasing(SyncLeasing):
    """Leases whose jobs have the codec."""

    def __init__(self, target: SyncTarget, codec: Codec) -> None:
        super().__init__(target)
        self._codec = codec

    def lease(self, undo: Undo[T], function: Function[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Do what the base class does."""
        return decoded_jobs.with_codec(super().lease(undo, function, *args, **kwargs), self._codec)


def runner_on(target: SyncTarget, codec: Codec | None) -> SyncRunner:
    """Return the runner of a queue or transaction."""
    return SyncRunner(target) if codec is None else DecodingRunner(target, codec)

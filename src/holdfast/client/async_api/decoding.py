"""Runs store operations for a queue with a codec: the jobs that they return can decode their payload and result."""

from typing import ParamSpec, TypeVar

from holdfast.client import decoded_jobs
from holdfast.domain.codec import Codec
from holdfast.storage.runners import AsyncLeasing, AsyncRunner, Function, Undo
from holdfast.storage.store import AsyncTarget

P = ParamSpec("P")
T = TypeVar("T")


class AsyncDecodingRunner(AsyncRunner):
    """A runner whose results have the codec."""

    def __init__(self, target: AsyncTarget, codec: Codec) -> None:
        super().__init__(target)
        self._codec = codec

    async def read(self, function: Function[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Do what the base class does."""
        return decoded_jobs.with_codec(await super().read(function, *args, **kwargs), self._codec)

    async def write(self, function: Function[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Do what the base class does."""
        return decoded_jobs.with_codec(await super().write(function, *args, **kwargs), self._codec)

    def leasing(self) -> AsyncLeasing:
        """Do what the base class does."""
        return AsyncDecodingLeasing(self._target, self._codec)


class AsyncDecodingLeasing(AsyncLeasing):
    """Leases whose jobs have the codec."""

    def __init__(self, target: AsyncTarget, codec: Codec) -> None:
        super().__init__(target)
        self._codec = codec

    async def lease(self, undo: Undo[T], function: Function[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Do what the base class does."""
        return decoded_jobs.with_codec(await super().lease(undo, function, *args, **kwargs), self._codec)


def runner_on(target: AsyncTarget, codec: Codec | None) -> AsyncRunner:
    """Return the runner of a queue or transaction."""
    return AsyncRunner(target) if codec is None else AsyncDecodingRunner(target, codec)

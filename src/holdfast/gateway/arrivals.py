"""Arrivals: requests that arrive together are stored together."""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple

from holdfast.client.async_api.enqueued import AsyncEnqueued
from holdfast.client.async_api.queue import AsyncQueue
from holdfast.domain import errors

_TOGETHER_MAX: Final = 64
# A larger request is stored by a call of its own: the others do not wait for its bytes.
_TOGETHER_BYTES_MAX: Final = 256 << 10


class _Arrival(NamedTuple):
    job: dict[str, Any]
    stored: asyncio.Future[AsyncEnqueued[Any]]


class Arrivals:
    """Stores jobs: one by itself if nothing is being stored, and those that arrive meanwhile by one call after it.

    A single job goes to *alone*, several to *together*.
    """

    def __init__(self, alone: AsyncQueue, together: AsyncQueue) -> None:
        self._alone = alone
        self._together = together
        self._waiting: list[_Arrival] = []
        self._storing = False

    async def enqueue(self, job: dict[str, Any], size: int) -> AsyncEnqueued[Any]:
        """Store a job, the options of `enqueue`, whose request has this size; raise what `enqueue` raises."""
        if size > _TOGETHER_BYTES_MAX:
            return await self._alone.enqueue(**job)
        if self._storing:
            arrival = _Arrival(job, asyncio.get_running_loop().create_future())
            self._waiting.append(arrival)
            return await arrival.stored
        self._storing = True
        try:
            return await self._alone.enqueue(**job)
        finally:
            self._store_next()

    def _store_next(self) -> None:
        """Begin to store those that wait, if any."""
        self._waiting = [one for one in self._waiting if not one.stored.done()]
        self._storing = bool(self._waiting)
        if self._storing:
            arrivals, self._waiting = self._waiting[:_TOGETHER_MAX], self._waiting[_TOGETHER_MAX:]
            task = asyncio.ensure_future(self._store(arrivals))
            task.add_done_callback(lambda _task: self._store_next())

    async def _store(self, arrivals: list[_Arrival]) -> None:
        if len(arrivals) > 1:
            try:
                stored = await self._together.enqueue_many([one.job for one in arrivals])
            except errors.Unavailable as error:
                for arrival in arrivals:
                    _answer(arrival, error)
                return
            except Exception:  # noqa: S110  # those whose own call fails get the error
                # One of them is refused, which must not concern the others.
                pass
            else:
                for arrival, enqueued in zip(arrivals, stored, strict=True):
                    _answer(arrival, enqueued)
                return
        await asyncio.gather(*(self._store_one(one) for one in arrivals))

    async def _store_one(self, arrival: _Arrival) -> None:
        try:
            _answer(arrival, await self._alone.enqueue(**arrival.job))
        except Exception as error:
            _answer(arrival, error)


def _answer(arrival: _Arrival, answer: AsyncEnqueued[Any] | Exception) -> None:
    if arrival.stored.done():
        return  # its caller has gone
    if isinstance(answer, Exception):
        arrival.stored.set_exception(answer)
    else:
        arrival.stored.set_result(answer)

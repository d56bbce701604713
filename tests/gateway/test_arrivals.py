"""Requests that arrive together are stored together, and none concerns another."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from typing import Any

import holdfast
from holdfast import errors
from holdfast.client.async_api.enqueued import AsyncEnqueued
from holdfast.client.middleware import JobDraft, Middleware
from holdfast.gateway.arrivals import Arrivals
from tests.support.gateway import StorePlace


class Calls(Middleware):
    """Notes the jobs of each call."""

    def __init__(self) -> None:
        self.jobs: list[list[str]] = []
        self.begun = asyncio.Event()

    def enqueue(self, drafts: Sequence[JobDraft]) -> Generator[None, Any, None]:
        """Note one call."""
        self.jobs.append([draft.id for draft in drafts])
        self.begun.set()
        yield


def _job(name: str, **options: Any) -> dict[str, Any]:
    artifact = holdfast.Artifact("request", name.encode(), "text/plain")
    return {"kind": "model", "payload": {}, "job_id": name, "artifacts": [artifact], **options}


def test_those_that_arrive_while_one_is_stored_are_stored_by_one_call(place: StorePlace) -> None:
    async def run() -> None:
        calls = Calls()
        async with holdfast.connect_async(place.url, schema=place.schema, middleware=[calls]) as queue:
            arrivals = Arrivals(queue, queue)
            names = [f"r{number}" for number in range(100)]
            found = await asyncio.gather(*(arrivals.enqueue(_job(name), 10) for name in names))
            assert [one.job.id for one in found] == names
            assert all(one.created for one in found)
            assert calls.jobs == [["r0"], names[1:65], names[65:]]
            for name in names:
                assert (await queue.artifact(name, "request")).data == name.encode()

    asyncio.run(run())


def test_a_large_request_waits_for_no_other_and_no_other_for_it(place: StorePlace) -> None:
    async def run() -> None:
        calls = Calls()
        async with holdfast.connect_async(place.url, schema=place.schema, middleware=[calls]) as queue:
            arrivals = Arrivals(queue, queue)
            await asyncio.gather(*(arrivals.enqueue(_job(name), 1 << 20) for name in ("r0", "r1", "r2")))
            assert sorted(calls.jobs) == [["r0"], ["r1"], ["r2"]]

    asyncio.run(run())


def test_a_refused_request_concerns_no_other(place: StorePlace) -> None:
    async def run() -> None:
        async with holdfast.connect_async(place.url, schema=place.schema) as queue:
            await queue.enqueue(**_job("taken", tags={"first": "yes"}))
            arrivals = Arrivals(queue, queue)
            jobs = [_job("r0"), _job("r1"), _job("taken"), _job("r2"), _job("r3", priority=10**9)]
            found = await asyncio.gather(*(arrivals.enqueue(job, 10) for job in jobs), return_exceptions=True)
            assert isinstance(found[2], errors.Conflict)
            assert isinstance(found[4], errors.InvalidInput)
            assert found[4].field == "priority"
            assert [one.job.id for one in (found[0], found[1], found[3]) if isinstance(one, AsyncEnqueued)] == [
                "r0",
                "r1",
                "r2",
            ]

    asyncio.run(run())


def test_a_caller_that_leaves_before_its_request_is_stored_leaves_no_job(place: StorePlace) -> None:
    async def run() -> None:
        calls = Calls()
        async with holdfast.connect_async(place.url, schema=place.schema, middleware=[calls]) as queue:
            arrivals = Arrivals(queue, queue)
            tasks = [asyncio.ensure_future(arrivals.enqueue(_job(f"r{number}"), 10)) for number in range(4)]
            await calls.begun.wait()
            tasks[2].cancel()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            assert isinstance(found[2], asyncio.CancelledError)
            assert calls.jobs == [["r0"], ["r1", "r3"]]

    asyncio.run(run())


def test_a_caller_that_leaves_while_its_request_is_stored_does_not_stop_the_others(place: StorePlace) -> None:
    async def run() -> None:
        calls = Calls()
        async with holdfast.connect_async(place.url, schema=place.schema, middleware=[calls]) as queue:
            arrivals = Arrivals(queue, queue)
            tasks = [asyncio.ensure_future(arrivals.enqueue(_job(f"r{number}"), 10)) for number in range(4)]
            for count, leaving in ((1, tasks[0]), (2, tasks[1])):
                while len(calls.jobs) < count:
                    calls.begun.clear()
                    await calls.begun.wait()
                leaving.cancel()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            assert [one.job.id for one in found[2:] if isinstance(one, AsyncEnqueued)] == ["r2", "r3"]
            assert calls.jobs == [["r0"], ["r1", "r2", "r3"]]

    asyncio.run(run())


def test_all_hear_of_a_store_that_is_closed(place: StorePlace) -> None:
    async def run() -> None:
        async with holdfast.connect_async(place.url, schema=place.schema) as queue:
            arrivals = Arrivals(queue, queue)
            tasks = [asyncio.ensure_future(arrivals.enqueue(_job(f"r{number}"), 10)) for number in range(4)]
            await asyncio.sleep(0)
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(one, (AsyncEnqueued, errors.HoldfastError)) for one in found)

    asyncio.run(run())

"""Requests that arrive together are stored together."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from typing import Any

import holdfast
from holdfast.client.middleware import JobDraft, Middleware
from holdfast.gateway import model_requests
from holdfast.gateway.attempts import Settlements
from holdfast.gateway.gateway import Gateway, JobAdmission
from holdfast.gateway.settings import GatewaySettings
from tests.support.gateway import StorePlace


class Calls(Middleware):
    """Counts the jobs of each call that stores some."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def enqueue(self, drafts: Sequence[JobDraft]) -> Generator[None, Any, None]:
        """Note one call."""
        self.sizes.append(len(drafts))
        yield


def test_requests_that_arrive_together_are_stored_by_one_call_and_large_ones_alone(place: StorePlace) -> None:
    contents = [b'{"model": "m", "prompt": "%d"}' % number for number in range(20)]
    large = [b'{"model": "m", "prompt": "%s"}' % (letter * 300_000) for letter in (b"a", b"b")]

    async def run() -> None:
        calls = Calls()
        async with holdfast.connect_async(place.url, schema=place.schema, middleware=[calls]) as queue:
            gateway = Gateway(queue, Settlements(), GatewaySettings(upstream="http://127.0.0.1:1"))
            found = await asyncio.gather(
                *(
                    gateway.enqueue(model_requests.parse("/api/generate", content, {}), None, JobAdmission())
                    for content in [*contents, *large]
                )
            )
            assert sorted(calls.sizes) == [1, 1, 20]
            for exchange, content in zip(found, [*contents, *large], strict=True):
                assert (await queue.artifact(exchange.job_id, "request")).data == content
            await gateway.close()

    asyncio.run(run())

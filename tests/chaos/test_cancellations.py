"""Tasks cancelled at any time: no other task hangs or gets an error, and no acknowledged job is lost."""

from __future__ import annotations

import asyncio
import random

import pytest

import holdfast
from tests.chaos.engines import open_engine
from tests.chaos.processes import PATIENCE_SECONDS
from tests.chaos.test_writers import all_jobs

pytestmark = pytest.mark.slow("hundreds of tasks are cancelled at random times")

TASKS = 500


class CancelledTasks:
    """Tasks that enqueue, alone or in a transaction, and are cancelled at random."""

    def __init__(self, queue: holdfast.AsyncQueue, seed: int) -> None:
        self.queue = queue
        self.acknowledged: set[str] = set()
        self.cancelled = 0
        self._chance = random.Random(seed)

    async def live(self, job_id: str) -> None:
        if self._chance.random() < 0.5:
            await self.queue.enqueue("task", job_id=job_id)
        else:
            async with self.queue.transaction() as transaction:
                await transaction.enqueue("task", job_id=job_id)
                await asyncio.sleep(0)
        self.acknowledged.add(job_id)

    async def run(self) -> None:
        """Start all tasks a few at a time, cancel every sixth, and wait for their ends."""
        tasks: list[asyncio.Task[None]] = []
        while len(tasks) < TASKS:
            tasks += [
                asyncio.create_task(self.live(f"job-{len(tasks) + n}")) for n in range(self._chance.randrange(8))
            ]
            await asyncio.sleep(self._chance.random() * 0.004)
            for task in tasks[-100:]:
                self.cancelled += self._chance.random() < 0.15 and task.cancel()
        ends = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE_SECONDS)
        assert [end for end in ends if end is not None and not isinstance(end, asyncio.CancelledError)] == []
        await asyncio.wait_for(self.queue.enqueue("task", job_id="last"), PATIENCE_SECONDS)


def test_cancelled_tasks_do_not_affect_others(store_url: str) -> None:
    engine = open_engine(store_url)
    engine.prepare()
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")

    async def main() -> CancelledTasks:
        queue = holdfast.connect_async(store_url)
        crowd = CancelledTasks(queue, seed)
        await crowd.run()
        await queue.close()
        return crowd

    crowd = asyncio.run(main())
    assert crowd.cancelled > 0
    assert crowd.acknowledged
    assert crowd.acknowledged | {"last"} <= all_jobs(engine.queue).keys()
    engine.queue.close()

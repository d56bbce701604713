"""The registry of workers, for operators and reports. No claim or lease depends on it."""

from __future__ import annotations

from holdfast.domain import limits
from holdfast.domain.results import WorkerInfo
from holdfast.storage.contract import Transaction


async def write_worker(tx: Transaction, worker: WorkerInfo) -> None:
    """Write the row of one start of a worker, and delete a chunk of rows that are out of date."""
    now = await tx.now()
    await tx.write_worker(worker, now)
    await tx.forget_workers(now.wall_ms - limits.WORKERS_FORGOTTEN_MS, limits.CHUNK)


async def delete_worker(tx: Transaction, worker: str, incarnation: str) -> None:
    """Delete the row of a worker that stops."""
    await tx.delete_worker(worker, incarnation)


async def newest_workers(tx: Transaction, limit: int) -> list[WorkerInfo]:
    """Return the workers that wrote their row last, with the number of jobs that each holds."""
    now = await tx.now()
    return [
        worker._replace(state="silent") if now.wall_ms - worker.beat_at_ms > limits.WORKER_SILENT_MS else worker
        for worker in await tx.newest_workers(limit)
    ]

"""The registry of workers: who runs, what it takes and holds, when it last wrote. Nothing is decided by it."""

from __future__ import annotations

from holdfast.domain import limits
from holdfast.domain.results import WorkerInfo
from holdfast.storage.contract import Transaction


async def beat(tx: Transaction, worker: WorkerInfo) -> None:
    """Store what one start of a worker says of itself, and delete a few that have been silent for long."""
    now = await tx.now()
    await tx.write_worker(worker, now)
    await tx.forget_workers(now.wall_ms - limits.WORKERS_FORGOTTEN_MS, limits.CHUNK)


async def leave(tx: Transaction, worker: str, incarnation: str) -> None:
    """Delete the row of a start that ends in good order."""
    await tx.delete_worker(worker, incarnation)


async def newest(tx: Transaction, limit: int) -> list[WorkerInfo]:
    """Return the workers that wrote last, with what each holds."""
    now = await tx.now()
    return [
        worker._replace(state="silent") if now.wall_ms - worker.beat_at_ms > limits.WORKER_SILENT_MS else worker
        for worker in await tx.newest_workers(limit)
    ]

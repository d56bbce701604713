"""The registry of workers: who runs, what it takes and holds, when it last said so. Nothing is decided by it."""

from __future__ import annotations

from typing import Any

from holdfast.domain import limits, strict_json
from holdfast.domain.records import WorkerInfo
from holdfast.stores import script
from holdfast.stores.script import Script, Statement

_LISTS = ("lanes", "kinds", "capabilities", "loaded")


def beat(worker: WorkerInfo) -> Script[None]:
    """Write what one start of a worker says of itself, and forget a few that fell silent long ago."""
    now = yield from script.now()
    values = {
        "worker": worker.worker,
        "incarnation": worker.incarnation,
        "host": worker.host,
        "process": worker.process,
        "version": worker.version,
        "state": worker.state,
        "concurrency": worker.concurrency,
        "running": worker.running,
        "switches": worker.switches,
        **{word: strict_json.compact(list(getattr(worker, word))) for word in _LISTS},
        "now": now.wall_ms,
    }
    yield Statement("worker_write", values)
    yield Statement("workers_forget", {"before": now.wall_ms - limits.WORKERS_FORGOTTEN_MS, "limit": limits.BITE})


def leave(worker: str, incarnation: str) -> Script[None]:
    """Delete the row of a start that ends in good order."""
    yield Statement("worker_delete", {"worker": worker, "incarnation": incarnation})


def newest(limit: int) -> Script[list[WorkerInfo]]:
    """Return the workers that said something last, with what each holds."""
    now = yield from script.now()
    rows = yield Statement("workers_newest", {"limit": limit})
    return [_worker(row, now.wall_ms) for row in rows]


def _worker(row: script.Row, now_ms: int) -> WorkerInfo:
    said = WorkerInfo._make(row)
    lists: dict[str, Any] = {word: tuple(strict_json.decode(getattr(said, word))) for word in _LISTS}
    silent = now_ms - said.beat_at_ms > limits.WORKER_SILENT_MS
    return said._replace(state="silent" if silent else said.state, **lists)

"""What a store says of itself when Prometheus asks: the same whoever is asked, and cheap however much waits.

It belongs to no worker, so that anything with a registry of its own can serve it.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable
from threading import Lock

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from holdfast.client.operations import Operations
from holdfast.domain import limits
from holdfast.domain.errors import HoldfastError
from holdfast.domain.results import Backlog, WorkerInfo
from holdfast.storage.store import SyncTarget
from holdfast.storage.transaction import run_sync
from holdfast.telemetry import metric_definitions
from holdfast.telemetry.metric_definitions import Metric

log = logging.getLogger("holdfast.telemetry")

# Several may ask at once; what is so old still serves the next.
_FRESH_SECONDS = 5.0
# And of a store that takes long to answer, as many times as long is left between two questions.
_PAUSE_FACTOR = 50
_WORKER_STATES = ("active", "stopping", "silent")


class StoreCollector(Collector):
    """Asks the store, at most every few seconds."""

    def __init__(self, operations: Operations, runner: SyncTarget, *, fresh_seconds: float = _FRESH_SECONDS) -> None:
        self._operations = operations
        self._runner = runner
        self._fresh_seconds = fresh_seconds
        self._lock = Lock()
        self._next_at: float | None = None
        self._answer: list[Family] = []

    def describe(self) -> Iterable[Family]:
        """Return nothing: a registry that asks for names must not ask the store."""
        return ()

    def collect(self) -> Iterable[Family]:
        """Return what the store says; if it does not answer, only that."""
        with self._lock:
            begun = time.monotonic()
            if self._next_at is None or begun >= self._next_at:
                self._answer = self._ask()
                self._next_at = pause_until(begun, time.monotonic(), self._fresh_seconds)
            return list(self._answer)

    def _ask(self) -> list[Family]:
        try:
            backlog = run_sync(self._operations.sync_on(self._runner).backlog())
            workers = run_sync(self._operations.sync_on(self._runner).workers(limit=limits.PAGE_MAX))
        except HoldfastError as error:
            log.warning("the store could not be asked for metrics: %s", error)
            return [_plain(metric_definitions.STORE_UP, 0)]
        return [_plain(metric_definitions.STORE_UP, 1), *_of_backlog(backlog), _of_workers(workers)]


def pause_until(begun: float, ended: float, fresh_seconds: float) -> float:
    """Return when to ask again a store that has answered from *begun* to *ended*: it must not do little else."""
    return ended + max(fresh_seconds, (ended - begun) * _PAUSE_FACTOR)


def _of_backlog(backlog: Backlog) -> list[Family]:
    ready, oldest = _family(metric_definitions.READY), _family(metric_definitions.OLDEST)
    for waiting in backlog.ready:
        ready.add_metric([waiting.lane, waiting.kind], waiting.jobs)
        oldest.add_metric([waiting.lane, waiting.kind], waiting.oldest_age_seconds)
    return [
        ready,
        oldest,
        _plain(metric_definitions.SCHEDULED, backlog.scheduled),
        _plain(metric_definitions.BLOCKED, backlog.blocked),
        _plain(metric_definitions.RUNNING, backlog.running),
        _plain(metric_definitions.EXPIRED, backlog.expired),
        _plain(metric_definitions.SUSPECT, backlog.suspect),
    ]


def _of_workers(workers: Iterable[WorkerInfo]) -> Family:
    counted = Counter(worker.state for worker in workers)
    family = _family(metric_definitions.WORKERS)
    for state in _WORKER_STATES:
        family.add_metric([state], counted[state])  # type: ignore[index]  # the states are these
    return family


def _family(metric: Metric) -> GaugeMetricFamily:
    return GaugeMetricFamily(metric.name, metric.says, labels=metric.labels)


def _plain(metric: Metric, value: float) -> Family:
    family = _family(metric)
    family.add_metric([], value)
    return family

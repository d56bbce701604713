"""The store's metrics, read when Prometheus scrapes: the same in every process, at a bounded cost.

The collector needs no worker; any program with a registry can serve it.
"""

import logging
import time
from collections import Counter
from collections.abc import Iterable
from threading import Lock

from prometheus_client.core import GaugeMetricFamily, Metric as Family
from prometheus_client.registry import Collector

from holdfast.client import queue_state
from holdfast.client.async_api.queue import AsyncQueue
from holdfast.client.sync_api.queue import Queue
from holdfast.domain import errors, limits, results
from holdfast.domain.routing import Lane
from holdfast.telemetry import metric_definitions

log = logging.getLogger("holdfast.telemetry")

# How long values are cached, for scrapes in quick succession.
_CACHE_SECONDS = 5.0
# After a slow read, the next one waits this many times its duration.
_PAUSE_FACTOR = 50
_WORKER_STATES = ("active", "draining", "stopping", "silent")


class StoreCollector(Collector):
    """Reads metrics from the store, at most every few seconds."""

    def __init__(self, queue: Queue | AsyncQueue, *, cache_seconds: float = _CACHE_SECONDS) -> None:
        self._queue = Queue(queue_state.state_of(queue))
        self._cache_seconds = cache_seconds
        self._lock = Lock()
        self._next_read_at: float | None = None
        self._families: list[Family] = []

    def describe(self) -> Iterable[Family]:
        """Return nothing: registering the collector must not read the store."""
        return ()

    def collect(self) -> Iterable[Family]:
        """Return the store's metrics; if the store does not answer, only `holdfast_store_up`."""
        with self._lock:
            started_at = time.monotonic()
            if self._next_read_at is None or started_at >= self._next_read_at:
                self._families = self._read_store()
                self._next_read_at = next_read_at(started_at, time.monotonic(), self._cache_seconds)
            return list(self._families)

    def _read_store(self) -> list[Family]:
        try:
            backlog = self._queue.admin.backlog()
            lanes = self._queue.lanes.list()
            workers = self._queue.admin.workers(limit=limits.PAGE_MAX)
        except errors.HoldfastError as error:
            log.warning("cannot read metrics from the store: %s", error)
            return [_single(metric_definitions.STORE_UP, 0)]
        return [
            _single(metric_definitions.STORE_UP, 1),
            *_backlog_families(backlog),
            *_target_families(lanes),
            _worker_family(workers),
        ]


def next_read_at(started_at: float, ended_at: float, cache_seconds: float) -> float:
    """Return when to read the store again after a read from *started_at* to *ended_at*; slow reads wait longer."""
    return ended_at + max(cache_seconds, (ended_at - started_at) * _PAUSE_FACTOR)


def _backlog_families(backlog: results.Backlog) -> list[Family]:
    ready, oldest = _family(metric_definitions.READY), _family(metric_definitions.OLDEST)
    for waiting in backlog.ready:
        ready.add_metric([waiting.lane, waiting.kind], waiting.jobs)
        oldest.add_metric([waiting.lane, waiting.kind], waiting.oldest_age_seconds)
    return [
        ready,
        oldest,
        _single(metric_definitions.SCHEDULED, backlog.scheduled),
        _single(metric_definitions.BLOCKED, backlog.blocked),
        _single(metric_definitions.DEPENDENT, backlog.dependent),
        _single(metric_definitions.PARKED, backlog.parked),
        _single(metric_definitions.RUNNING, backlog.running),
        _single(metric_definitions.EXPIRED, backlog.expired),
        _single(metric_definitions.SUSPECT, backlog.suspect),
    ]


def _target_families(lanes: Iterable[Lane]) -> list[Family]:
    targets, late = _family(metric_definitions.TARGET_AGE), _family(metric_definitions.LATE)
    for lane in lanes:
        if lane.target_age is not None:
            targets.add_metric([lane.name], lane.target_age)
            late.add_metric([lane.name], lane.late)
    return [targets, late]


def _worker_family(workers: Iterable[results.WorkerInfo]) -> Family:
    counts = Counter(worker.state for worker in workers)
    family = _family(metric_definitions.WORKERS)
    for state in _WORKER_STATES:
        family.add_metric([state], counts[state])  # type: ignore[index]  # these are the states
    return family


def _family(metric: metric_definitions.Metric) -> GaugeMetricFamily:
    return GaugeMetricFamily(metric.name, metric.description, labels=metric.labels)


def _single(metric: metric_definitions.Metric, value: float) -> Family:
    family = _family(metric)
    family.add_metric([], value)
    return family

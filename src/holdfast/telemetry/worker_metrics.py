"""Metrics in Prometheus' own library: what a worker sees, beside what the store says when it is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from holdfast.client.async_queue import AsyncQueue
from holdfast.client.queue import Queue
from holdfast.domain import validation
from holdfast.domain.claims import Claim
from holdfast.domain.errors import Misconfigured
from holdfast.domain.job import FINISHED, Job
from holdfast.telemetry import metric_definitions
from holdfast.telemetry.metric_definitions import Metric
from holdfast.telemetry.store_metrics import StoreCollector
from holdfast.worker.status import WorkerStatus
from holdfast.worker.watched_attempts import WorkerMetrics

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer


class StatusCollector(Collector):
    """Asks a worker how it is doing when Prometheus asks."""

    ask: Callable[[], WorkerStatus] | None = None

    def describe(self) -> Iterable[Family]:
        """Return nothing: names are asked for before there is a worker."""
        return ()

    def collect(self) -> Iterable[Family]:
        """Return what the worker says of itself; before it has started that is nothing yet."""
        status = None if self.ask is None else self.ask()
        in_hand = GaugeMetricFamily(metric_definitions.IN_HAND.name, metric_definitions.IN_HAND.says)
        in_hand.add_metric([], 0 if status is None else len(status.running))
        switches = CounterMetricFamily(metric_definitions.SWITCHES.name, metric_definitions.SWITCHES.says)
        switches.add_metric([], 0 if status is None else status.switches)
        return in_hand, switches


M = TypeVar("M", Counter, Histogram)


class Metrics(WorkerMetrics):
    """Measures one worker and its store, in a registry that others may serve as well."""

    def __init__(
        self,
        queue: Queue | AsyncQueue,
        *,
        port: int | None = None,
        host: str = "127.0.0.1",
        registry: CollectorRegistry | None = None,
    ) -> None:
        self.registry = CollectorRegistry() if registry is None else registry
        """Where the metrics stand."""
        self.port = None if port is None else validation.integer(port, "port", 0, 65_535)
        """Where they are served; once they are, the port that 0 has led to."""
        self._host = validation.name(host, "host")
        self._served: tuple[WSGIServer, Thread] | None = None
        self._known: dict[tuple[object, tuple[str, ...]], Any] = {}
        self._wait = self._histogram(metric_definitions.WAIT)
        self._run = self._histogram(metric_definitions.RUN)
        self._attempts = self._counter(metric_definitions.ATTEMPTS)
        self._finished = self._counter(metric_definitions.FINISHED)
        self._expires = self._counter(metric_definitions.LAPSES)
        self._slots = self._gauge(metric_definitions.SLOTS)
        self._status = StatusCollector()
        self.registry.register(self._status)
        self.registry.register(StoreCollector(queue.operations, queue.store))

    # --- what a worker tells ---------------------------------------------------------------------------------------

    def start(self, concurrency: int, status: Callable[[], WorkerStatus]) -> None:
        """Begin to measure a worker, and to serve where a port was given."""
        self._slots.set(concurrency)
        self._status.ask = status
        if self.port is not None:
            self._serve(self.port)

    def stop(self) -> None:
        """Serve no more."""
        self._slots.set(0)
        if self._served is not None:
            server, thread = self._served
            self._served = None
            server.shutdown()
            server.server_close()
            thread.join()

    def claimed(self, claims: Sequence[Claim]) -> None:
        """Measure how long these jobs have waited."""
        for claim in claims:
            job = claim.job
            waited_ms = (job.started_at_ms or job.due_at_ms) - job.due_at_ms
            self._of(self._wait, job.lane, job.kind).observe(max(0, waited_ms) / 1000)
            if job.suspect:
                self._of(self._expires, job.lane, job.kind).inc()

    def ended(self, claim: Claim, outcome: str, job: Job | None, seconds: float | None) -> None:
        """Count an attempt, and its job if that has ended with it."""
        lane, kind = claim.job.lane, claim.job.kind
        self._of(self._attempts, lane, kind, outcome).inc()
        if seconds is not None:
            self._of(self._run, lane, kind).observe(seconds)
        # A handler that settled in a transaction of its own has done so as done.
        state = outcome if job is None else job.state
        if state in FINISHED:
            self._of(self._finished, lane, kind, state).inc()

    def _of(self, metric: M, *labels: str) -> M:
        """Return what *metric* counts under these labels; the library itself takes longer to find it."""
        key = (metric, labels)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = metric.labels(*labels)
        return cast(M, found)

    # --- the library's own things ----------------------------------------------------------------------------------

    def _serve(self, port: int) -> None:
        try:
            self._served = start_http_server(port, self._host, self.registry)
        except OSError as error:
            raise Misconfigured(
                f"metrics cannot be served at {self._host}:{port}: {error.strerror or error}"
            ) from error
        self.port = self._served[0].server_port

    def _histogram(self, metric: Metric) -> Histogram:
        return Histogram(
            metric.name,
            metric.says,
            metric.labels,
            buckets=metric_definitions.BUCKETS_SECONDS,
            registry=self.registry,
        )

    def _counter(self, metric: Metric) -> Counter:
        return Counter(metric.name, metric.says, metric.labels, registry=self.registry)

    def _gauge(self, metric: Metric) -> Gauge:
        return Gauge(metric.name, metric.says, metric.labels, registry=self.registry)

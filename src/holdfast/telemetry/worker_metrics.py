"""The metrics of a worker and its store, with `prometheus_client`."""

from collections.abc import Callable, Generator, Iterable, Sequence
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric as Family
from prometheus_client.registry import Collector

from holdfast.client.async_api.queue import AsyncQueue
from holdfast.client.middleware import ClaimCall, EndedAttempt
from holdfast.client.sync_api.queue import Queue
from holdfast.domain import errors, validation
from holdfast.domain.claims import Claim
from holdfast.domain.job import FINISHED, Job, row_of
from holdfast.telemetry import metric_definitions, store_metrics
from holdfast.worker.status import WorkerMetrics, WorkerStatus

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer


class StatusCollector(Collector):
    """Reads the status of a worker when Prometheus scrapes."""

    get_status: Callable[[], WorkerStatus] | None = None

    def describe(self) -> Iterable[Family]:
        """Return nothing: there is no worker yet when the collector is registered."""
        return ()

    def collect(self) -> Iterable[Family]:
        """Return the metrics of the worker's status; zeros before the worker has started."""
        status = None if self.get_status is None else self.get_status()
        worker_jobs = GaugeMetricFamily(
            metric_definitions.WORKER_JOBS.name, metric_definitions.WORKER_JOBS.description
        )
        worker_jobs.add_metric([], 0 if status is None else len(status.running))
        switches = CounterMetricFamily(metric_definitions.SWITCHES.name, metric_definitions.SWITCHES.description)
        switches.add_metric([], 0 if status is None else status.switches)
        loads = CounterMetricFamily(metric_definitions.LOAD_SECONDS.name, metric_definitions.LOAD_SECONDS.description)
        loads.add_metric([], 0 if status is None else status.load_seconds)
        return worker_jobs, switches, loads


M = TypeVar("M", Counter, Histogram)


class Metrics(WorkerMetrics):
    """Measures one worker and its store, in a registry that other code may serve too."""

    def __init__(
        self,
        queue: Queue | AsyncQueue,
        *,
        port: int | None = None,
        host: str = "127.0.0.1",
        registry: CollectorRegistry | None = None,
    ) -> None:
        self.registry = CollectorRegistry() if registry is None else registry
        """The registry of the metrics."""
        self.port = None if port is None else validation.integer(port, "port", 0, 65_535)
        """The port of the HTTP server; if 0 was given, the actual port after the start."""
        self._host = validation.name(host, "host")
        self._server: tuple[WSGIServer, Thread] | None = None
        self._children: dict[tuple[object, tuple[str, ...]], Any] = {}
        self._wait = self._histogram(metric_definitions.WAIT)
        self._run = self._histogram(metric_definitions.RUN)
        self._attempts = self._counter(metric_definitions.ATTEMPTS)
        self._finished = self._counter(metric_definitions.FINISHED)
        self._expires = self._counter(metric_definitions.EXPIRED_ATTEMPTS)
        self._slots = self._gauge(metric_definitions.SLOTS)
        self._status = StatusCollector()
        self.registry.register(self._status)
        self.registry.register(store_metrics.StoreCollector(queue))

    # --- the worker ------------------------------------------------------------------------------------------------

    def start(self, concurrency: int, status: Callable[[], WorkerStatus]) -> None:
        """Start measuring a worker, and serve the metrics if a port was given."""
        self._slots.set(concurrency)
        self._status.get_status = status
        if self.port is not None:
            self._serve(self.port)

    def stop(self) -> None:
        """Stop the HTTP server."""
        self._slots.set(0)
        if self._server is not None:
            server, thread = self._server
            self._server = None
            server.shutdown()
            server.server_close()
            thread.join()

    def claim(self, call: ClaimCall) -> Generator[None, Sequence[Claim], None]:  # noqa: ARG002
        """Measure how long the claimed jobs and entries waited."""
        claims = yield
        for claim in claims:
            job = claim.job
            row = row_of(job)
            waited_ms = (row.started_at_ms or row.due_at_ms) - row.due_at_ms
            self._child(self._wait, job.lane, job.kind).observe(max(0, waited_ms) / 1000)
            if job.suspect:
                self._child(self._expires, job.lane, job.kind).inc()

    def ended(self, attempt: EndedAttempt) -> None:
        """Count an ended attempt of a job, or of each entry of a turn, and the jobs that have finished."""
        if attempt.seconds is not None:
            job = attempt.claim.job
            self._child(self._run, job.lane, job.kind).observe(attempt.seconds)
        jobs: Sequence[Job | None] = attempt.jobs or [None] * len(attempt.claims)
        for claim, settled in zip(attempt.claims, jobs, strict=True):
            lane, kind = claim.job.lane, claim.job.kind
            # An entry that cannot be decoded fails although the turn is done.
            failed = settled is not None and settled.outcome == "failed"
            self._child(self._attempts, lane, kind, "failed" if failed else attempt.outcome).inc()
            # A handler's own transaction always settles its job as done.
            state = attempt.outcome if settled is None else settled.state
            if state in FINISHED:
                self._child(self._finished, lane, kind, state).inc()

    def _child(self, metric: M, *labels: str) -> M:
        """Return the child of *metric* with these labels; this cache is faster than `labels()`."""
        key = (metric, labels)
        found = self._children.get(key)
        if found is None:
            found = self._children[key] = metric.labels(*labels)
        return cast(M, found)

    # --- prometheus_client ----------------------------------------------------------------------------------------

    def _serve(self, port: int) -> None:
        try:
            self._server = start_http_server(port, self._host, self.registry)
        except OSError as error:
            raise errors.Misconfigured(
                f"metrics cannot be served at {self._host}:{port}: {error.strerror or error}"
            ) from error
        self.port = self._server[0].server_port

    def _histogram(self, metric: metric_definitions.Metric) -> Histogram:
        return Histogram(
            metric.name,
            metric.description,
            metric.labels,
            buckets=metric_definitions.BUCKETS_SECONDS,
            registry=self.registry,
        )

    def _counter(self, metric: metric_definitions.Metric) -> Counter:
        return Counter(metric.name, metric.description, metric.labels, registry=self.registry)

    def _gauge(self, metric: metric_definitions.Metric) -> Gauge:
        return Gauge(metric.name, metric.description, metric.labels, registry=self.registry)

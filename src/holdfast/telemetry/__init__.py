"""Telemetry, for those who install it: spans by OpenTelemetry, metrics by Prometheus' own library.

Neither is loaded until it is asked for, and a queue that nobody watches does not know of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.client.async_queue import AsyncQueue
from holdfast.client.queue import Queue
from holdfast.domain.errors import Misconfigured
from holdfast.telemetry.metric_definitions import METRICS, Metric

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider
    from prometheus_client import CollectorRegistry

    from holdfast.telemetry.worker_metrics import Metrics

__all__ = ["METRICS", "Metric", "metrics", "trace"]

HOST_DEFAULT = "127.0.0.1"


def trace(queue: Queue | AsyncQueue, *, tracer_provider: TracerProvider | None = None) -> None:
    """Make spans of what *queue* enqueues, claims, runs and settles from now on, in its workers too.

    Without a provider the global one is asked. A worker that runs already makes no spans of its runs.
    """
    try:
        from holdfast.telemetry.tracing import trace_operations  # noqa: PLC0415
    except ImportError as error:
        raise _missing("spans need", "opentelemetry", error) from error
    trace_operations(queue.operations, tracer_provider)


def metrics(
    queue: Queue | AsyncQueue,
    *,
    port: int | None = None,
    host: str = HOST_DEFAULT,
    registry: CollectorRegistry | None = None,
) -> Metrics:
    """Return what measures *queue* and the worker it is given to: `Worker(queue, metrics=metrics(queue, port=9464))`.

    With *port* it is served at `http://host:port/metrics` while the worker runs; 0 takes any free one. It stands in a
    *registry* of its own unless one is given.
    """
    try:
        from holdfast.telemetry.worker_metrics import Metrics  # noqa: PLC0415
    except ImportError as error:
        raise _missing("metrics need", "prometheus", error) from error
    return Metrics(queue, port=port, host=host, registry=registry)


def _missing(what: str, extra: str, error: ImportError) -> Misconfigured:
    return Misconfigured(f"{what} a library; install it with `pip install 'holdfast[{extra}]'` ({error})")

"""Optional telemetry: OpenTelemetry spans and Prometheus metrics.

The libraries are imported on first use of `trace` or `metrics`; a queue without telemetry has no overhead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.client import queue_state
from holdfast.client.async_api.queue import AsyncQueue
from holdfast.client.sync_api.queue import Queue
from holdfast.domain.errors import Misconfigured
from holdfast.telemetry.metric_definitions import METRICS, Metric

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider
    from prometheus_client import CollectorRegistry

    from holdfast.telemetry.worker_metrics import Metrics

__all__ = ["METRICS", "Metric", "metrics", "trace"]

HOST_DEFAULT = "127.0.0.1"


def trace(queue: Queue | AsyncQueue, *, tracer_provider: TracerProvider | None = None) -> None:
    """Create spans for enqueue, claim, run and settle of *queue* from now on, also in its workers.

    Without *tracer_provider* the global provider is used. A worker that is already running creates no run spans.
    """
    try:
        from holdfast.telemetry.tracing import trace_queue  # noqa: PLC0415
    except ImportError as error:
        raise _missing("spans need", "opentelemetry", error) from error
    trace_queue(queue_state.state_of(queue), tracer_provider)


def metrics(
    queue: Queue | AsyncQueue,
    *,
    port: int | None = None,
    host: str = "127.0.0.1",
    registry: CollectorRegistry | None = None,
) -> Metrics:
    """Return the metrics of *queue* and of one worker: `Worker(queue, metrics=metrics(queue, port=9464))`.

    With *port* they are served at `http://host:port/metrics` while the worker runs; 0 selects a free port. They are
    registered in *registry*, or in a new registry.
    """
    try:
        from holdfast.telemetry.worker_metrics import Metrics  # noqa: PLC0415
    except ImportError as error:
        raise _missing("metrics need", "prometheus", error) from error
    return Metrics(queue, port=port, host=host, registry=registry)


def _missing(feature: str, extra: str, error: ImportError) -> Misconfigured:
    return Misconfigured(
        f"{feature} a library; install the extra `{extra}`, in a clone with `pip install '.[{extra}]'` ({error})"
    )

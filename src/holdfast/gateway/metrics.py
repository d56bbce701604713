"""The metrics of a gateway, beside those of its store at `/holdfast/metrics`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from holdfast.gateway.gateway import Gateway

DIRECTIONS: Final = {"input": "input_tokens", "output": "output_tokens"}


class GatewayCollector(Collector):
    """Reads the metrics of one gateway from its memory; called in another thread."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the metrics are known when the gateway has started."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return the metrics."""
        gateway, status, unfinished = self._gateway, self._gateway.status(), self._gateway.exchanges.unfinished()
        requests = CounterMetricFamily("holdfast_gateway_requests", "Requests that ended", labels=["state"])
        for state, count in dict(gateway.counts).items():
            requests.add_metric([state], count)
        tokens = CounterMetricFamily("holdfast_gateway_tokens", "Tokens of answers", labels=["model", "direction"])
        for (model, direction), count in dict(gateway.tokens).items():
            tokens.add_metric([model, direction], count)
        waiting, running = sum(not one.running for one in unfinished), sum(one.running for one in unfinished)
        return (
            requests,
            tokens,
            GaugeMetricFamily("holdfast_gateway_waiting", "Requests that wait", waiting),
            GaugeMetricFamily("holdfast_gateway_running", "Requests that the model server has", running),
            CounterMetricFamily("holdfast_gateway_swaps", "How often a model replaced another", status.switches),
            CounterMetricFamily("holdfast_gateway_load_seconds", "How long loads took", status.load_seconds),
        )

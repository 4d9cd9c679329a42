"""The operator's own metrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from ballast_operator.control.state import OperatorState


class Metrics:
    """The registry of the operator's metrics, and methods for the other parts to update it."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, state: OperatorState) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Conditions(state))
        self._reconciles = Counter(
            "ballast_operator_reconciles", "Passes of the control loop.", ["result"], registry=self.registry
        )
        self._seconds = Histogram(
            "ballast_operator_reconcile_seconds",
            "Duration of a pass of the control loop.",
            buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30),
            registry=self.registry,
        )
        self._requests = Counter(
            "ballast_operator_api_requests",
            "Requests to the API server; code 0: no answer.",
            ["verb", "code"],
            registry=self.registry,
        )
        self._events = Counter(
            "ballast_operator_watch_events", "Events that watches delivered.", ["kind"], registry=self.registry
        )
        self.queue_depth = self._gauge("queue_depth", "Services that wait for a pass.")
        self.services = self._gauge("services", "InferenceServices at the last resync.")
        self.leading = self._gauge("leading", "1 while this replica leads.")
        self.watch_stale_seconds = self._gauge(
            "watch_stale_seconds", "Seconds for which the watches have missed changes."
        )
        self.last_resync = self._gauge("last_resync_timestamp_seconds", "Time of the last successful resync.")

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"ballast_operator_{name}", text, registry=self.registry)

    def reconciled(self, seconds: float, error: Exception | None) -> None:
        """Count a finished pass."""
        self._reconciles.labels("error" if error else "ok").inc()
        self._seconds.observe(seconds)

    def requested(self, verb: str, code: int) -> None:
        """Count a request to the API server; code 0 if there was no answer."""
        self._requests.labels(verb, str(code)).inc()

    def watched(self, kind: str) -> None:
        """Count an event of a watch."""
        self._events.labels(kind).inc()

    def page(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class _Conditions(Collector):
    """A series for each condition of each service that this replica has reconciled."""

    def __init__(self, state: OperatorState) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "ballast_operator_service_condition",
            "1 for the current status and reason of each condition of a service.",
            labels=["namespace", "service", "condition", "status", "reason"],
        )
        for ref, known in sorted(self._state.services.items()):
            for found in known.conditions:
                family.add_metric([ref.namespace, ref.name, found["type"], found["status"], found["reason"]], 1)
        yield family

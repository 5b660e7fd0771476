"""The text that Prometheus scrapes."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector


def metrics_text(collector: Collector) -> bytes:
    """Return the metrics of a collector in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry)

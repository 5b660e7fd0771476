"""The metrics of `refold receive` for Prometheus, as docs/METRICS.md lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from refold.agents.adapters.otlp.counts import ReceivedCounts
from refold.streams.web.metrics_text import metrics_text

GAUGES = {
    "queued_bytes": ("refold_receive_queued_bytes", "Bytes of requests that wait for the log."),
    "is_log_available": ("refold_receive_log_available", "0 after the log could not be written, until it can."),
}
COUNTERS = {
    "recorded": ("refold_receive_items_total", "Spans and log records that are durable in the log."),
    "rejected": ("refold_receive_rejected_items_total", "Spans and log records that could not be observed."),
    "taken": ("refold_receive_requests_total", "Requests that are durable in the log."),
    "refused": ("refold_receive_refused_requests_total", "Requests that were refused."),
    "commits": ("refold_receive_commits_total", "Commits of the log; one may hold several requests."),
    "commit_s": ("refold_receive_commit_seconds_total", "Time that the commits took, with observing what they hold."),
}
LABELS = {"recorded": "signal", "rejected": "signal", "refused": "reason"}


class ReceiverMetrics(Collector):
    """One receiver's metrics.

    Args:
        log: The log's prefix.
        counts: Returns what is counted; called at each scrape.
    """

    def __init__(self, log: str, counts: Callable[[], ReceivedCounts]) -> None:
        self._log = log
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        """Every metric."""
        counts = self._counts()
        for name, described in GAUGES.items():
            gauge = GaugeMetricFamily(*described, labels=["log"])
            gauge.add_metric([self._log], float(getattr(counts, name)))
            yield gauge
        for name, described in COUNTERS.items():
            found = getattr(counts, name)
            label = LABELS.get(name)
            counter = CounterMetricFamily(*described, labels=["log", *([label] if label else [])])
            for kind, count in sorted(found.items()) if isinstance(found, Mapping) else [("", found)]:
                counter.add_metric([self._log, *([kind] if label else [])], float(count))
            yield counter

    def page(self) -> bytes:
        """Return Prometheus' text."""
        return metrics_text(self)

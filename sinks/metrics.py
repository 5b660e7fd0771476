"""What Prometheus is told of a sink; docs/METRICS.md has it all, and a test compares it with the tables here.

Who runs a sink says what it does; ages are taken when a page is asked for. Of any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Lock

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

GAUGES = {
    "lag_changes": ("refold_sink_lag_changes", "Changes of the log that the store does not hold yet."),
    "lag_s": ("refold_sink_lag_seconds", "Time since the oldest of them was recorded; 0 where there is none."),
    "commit_age_s": ("refold_sink_last_commit_age_seconds", "Time since the store took something of this process."),
    "busy": ("refold_sink_busy", "1 while the store refuses for now."),
}
COUNTERS = {
    "batches": ("refold_sink_batches_total", "Commits to the store."),
    "changes": ("refold_sink_changes_total", "Changes that the store took."),
    "entities": ("refold_sink_entities_total", "States of entities that the store took."),
    "refusals": ("refold_sink_busy_total", "How often the store refused for now."),
}


class SinkMetrics(Collector):
    """One sink's metrics. log: the log's prefix. sink: its name. now_s: seconds since 1970."""

    def __init__(self, log: str, sink: str, now_s: Callable[[], float]) -> None:
        self._labels = [log, sink]
        self._now_s = now_s
        self._lock = Lock()
        self._counts = dict.fromkeys(COUNTERS, 0)
        self._lag: tuple[int, float | None] | None = None
        self._committed_at_s: float | None = None
        self._is_busy = False

    def lags(self, changes: int, oldest_s: float | None) -> None:
        """So many changes are not in the store; oldest_s: when the first of them was recorded, None without one."""
        with self._lock:
            self._lag = changes, oldest_s

    def committed(self, changes: int, entities: int) -> None:
        """The store took a batch."""
        with self._lock:
            self._committed_at_s, self._is_busy = self._now_s(), False
            for name, count in (("batches", 1), ("changes", changes), ("entities", entities)):
                self._counts[name] += count

    def refused(self) -> None:
        """The store takes nothing now; until it takes a batch, or `asked` says that it has all."""
        with self._lock:
            self._is_busy = True
            self._counts["refusals"] += 1

    def asked(self) -> None:
        """The store answered, and holds all there is."""
        with self._lock:
            self._is_busy = False

    def collect(self) -> Iterator[Metric]:
        """Every metric; of what is not known yet, none."""
        with self._lock:
            counts, lag, committed_at_s, is_busy = {**self._counts}, self._lag, self._committed_at_s, self._is_busy
        now_s = self._now_s()
        values: dict[str, float] = {"busy": is_busy}
        if lag is not None:
            changes, oldest_s = lag
            values |= {"lag_changes": changes, "lag_s": 0.0 if oldest_s is None else max(0.0, now_s - oldest_s)}
        if committed_at_s is not None:
            values["commit_age_s"] = max(0.0, now_s - committed_at_s)
        for key, value in values.items():
            gauge = GaugeMetricFamily(*GAUGES[key], labels=["log", "sink"])
            gauge.add_metric(self._labels, float(value))
            yield gauge
        for key, count in counts.items():
            counter = CounterMetricFamily(*COUNTERS[key], labels=["log", "sink"])
            counter.add_metric(self._labels, float(count))
            yield counter

    @property
    def page(self) -> Callable[[], bytes]:
        """Prometheus' text of them, made at each call."""
        registry = CollectorRegistry()
        registry.register(self)
        return lambda: generate_latest(registry)

"""A sink's metrics for Prometheus. docs/METRICS.md lists them, and a test compares it with the tables here.

The code that runs a sink reports what it does. Ages are computed at each scrape. Any thread may call.

refold's web server (streams/web/server.py) serves a sink's two pages, with its limits, its token and its checks of
hosts: /metrics, and /health, which says that the process serves. /health needs no token, so that a probe can call it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from threading import Lock

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from refold.streams.web.page import PageResponse, Request, Route, json_answer, problem

TEXT = "text/plain; version=0.0.4; charset=utf-8"
LANE = "pages"


class SinkPages:
    """The site of one sink.

    Args:
        metrics: Returns the metrics as Prometheus' text, made at each call.
    """

    def __init__(self, metrics: Callable[[], bytes]) -> None:
        self._metrics = metrics

    @property
    def lanes(self) -> Mapping[str, int]:
        """Two threads, because each page is quick."""
        return {LANE: 2}

    def route(self, request: Request) -> Route | PageResponse:
        """Return the route of a page, or the error response. Pages allow GET only."""
        name = request.path.strip("/")
        if name not in ("health", "metrics"):
            return problem(404, f"no such page: {request.path[:100]}; there are /health and /metrics")
        if request.method != "GET":
            return problem(405, f"{request.path[:100]} is asked for with GET")
        return Route(LANE, is_open=name == "health")

    def answer(self, request: Request) -> PageResponse:
        """Return the response to a request."""
        if request.path.strip("/") == "health":
            return json_answer(200, {"healthy": True})
        return PageResponse(200, self._metrics(), TEXT)


GAUGES = {
    "lag_changes": ("refold_sink_lag_changes", "Changes of the log that are not in the store yet."),
    "lag_s": ("refold_sink_lag_seconds", "Time since the oldest of these was recorded; 0 if there is none."),
    "commit_age_s": ("refold_sink_last_commit_age_seconds", "Time since this process last committed to the store."),
    "busy": ("refold_sink_busy", "1 while the store temporarily refuses batches."),
}
COUNTERS = {
    "batches": ("refold_sink_batches_total", "Commits to the store."),
    "changes": ("refold_sink_changes_total", "Changes committed to the store."),
    "entities": ("refold_sink_entities_total", "Entity states committed to the store."),
    "refusals": ("refold_sink_busy_total", "How often the store temporarily refused a batch."),
}


class SinkMetrics(Collector):
    """One sink's metrics.

    Args:
        log: The log's prefix.
        sink: The sink's name.
        now_s: Returns the time, in seconds since 1970.
    """

    def __init__(self, log: str, sink: str, now_s: Callable[[], float]) -> None:
        self._labels = [log, sink]
        self._now_s = now_s
        self._lock = Lock()
        self._counts = dict.fromkeys(COUNTERS, 0)
        self._lag: tuple[int, float | None] | None = None
        self._committed_at_s: float | None = None
        self._is_busy = False

    def lags(self, changes: int, oldest_s: float | None) -> None:
        """Report the lag.

        Args:
            changes: Those not in the store.
            oldest_s: When the first was recorded, None without one.
        """
        with self._lock:
            self._lag = changes, oldest_s

    def committed(self, changes: int, entities: int) -> None:
        """Report a batch that the store committed."""
        with self._lock:
            self._committed_at_s, self._is_busy = self._now_s(), False
            for name, count in (("batches", 1), ("changes", changes), ("entities", entities)):
                self._counts[name] += count

    def refused(self) -> None:
        """Report that the store is busy, until `committed` or `caught_up` is called."""
        with self._lock:
            self._is_busy = True
            self._counts["refusals"] += 1

    def caught_up(self) -> None:
        """Report that the store answered, and holds every change."""
        with self._lock:
            self._is_busy = False

    def collect(self) -> Iterator[Metric]:
        """Every metric that has a value."""
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
        """Return a function that renders the metrics in Prometheus' text format."""
        registry = CollectorRegistry()
        registry.register(self)
        return lambda: generate_latest(registry)

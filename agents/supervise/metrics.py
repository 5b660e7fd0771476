"""A supervisor's metrics for Prometheus. docs/METRICS.md lists them, and a test compares it with the tables here.

No label names an agent: the number of series does not grow with the number of agents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from refold.agents.heal.supervised import HealingKind
from refold.agents.supervise.supervisor import SupervisorCounts
from refold.streams.web.metrics_text import metrics_text

GAUGES = {
    "agents": ("refold_supervisor_agents", "Agents that this supervisor owns, by what they do."),
    "others": ("refold_supervisor_foreign_agents", "Agents that this supervisor follows and does not own."),
}
COUNTERS = {
    "starts": ("refold_supervisor_starts_total", "Processes of agents that were started."),
    "failures": ("refold_supervisor_failures_total", "Processes of agents that failed."),
    "losses": ("refold_supervisor_losses_total", "How often an agent was lost: its claim was not renewed in time."),
    "healings": ("refold_supervisor_healings_total", "Attempts to heal runs of agents that ended."),
}


class SupervisorMetrics(Collector):
    """One supervisor's metrics.

    Args:
        log: The log's prefix.
        counts: Returns what is counted; called at each scrape.
    """

    def __init__(self, log: str, counts: Callable[[], SupervisorCounts]) -> None:
        self._log = log
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        """Every metric."""
        counts = self._counts()
        agents = GaugeMetricFamily(*GAUGES["agents"], labels=["log", "state"])
        for state, count in sorted(counts.agents.items()):
            agents.add_metric([self._log, state], count)
        others = GaugeMetricFamily(*GAUGES["others"], labels=["log"])
        others.add_metric([self._log], counts.others)
        yield from (agents, others)
        for name, described in COUNTERS.items():
            found = getattr(counts, name)
            is_by_kind = isinstance(found, Mapping)
            counter = CounterMetricFamily(*described, labels=["log", *(HealingKind._fields if is_by_kind else ())])
            for kind, count in sorted(found.items()) if is_by_kind else [((), found)]:
                counter.add_metric([self._log, *kind], count)
            yield counter

    def page(self) -> bytes:
        """Return Prometheus' text."""
        return metrics_text(self)

"""docs/METRICS.md has every metric and none besides; their names are as Prometheus' conventions have them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from refold.agents.adapters.otlp.counts import ReceiverCounts
from refold.agents.adapters.otlp.metrics import ReceiverMetrics
from refold.agents.heal.supervised import HealingKind
from refold.agents.supervise.metrics import SupervisorMetrics
from refold.agents.supervise.supervisor import SupervisorCounts
from refold.sinks.metrics import SinkMetrics
from refold.streams.worker.condition import healthy
from refold.streams.worker.host.metrics import COUNTERS, GAUGES, STANDBY_GAUGES, About, metrics_of
from refold_tests.prometheus import METRICS, promtool
from refold_tests.tree import ROOT

LABELS = {"log", "partition", "state", "sink", "topic", "version", "signal", "reason", *HealingKind._fields}
ROW = re.compile(r"^\| `(refold_\w+)` \| (gauge|counter) \|", re.MULTILINE)


def all_pages() -> str:
    """What a worker and a sink say that have something for every metric."""
    every: dict[str, Any] = {"state": "folding", **dict.fromkeys([*GAUGES, *COUNTERS], 1)}
    status = {0: every, 1: {"state": "standby", **dict.fromkeys(STANDBY_GAUGES, 1)}}
    sink = SinkMetrics("shop", "postgres", lambda: 1_000.0)
    sink.lags(5, 990.0)
    sink.committed(3, 2)
    sink.refused()
    condition = healthy()._replace(group_lag={0: 3, 1: 0})
    supervisor = SupervisorMetrics(
        "shop", lambda: SupervisorCounts({"running": 2}, 1, 3, 4, 5, {HealingKind("loop", "later", "healed"): 6})
    )
    pages = (
        metrics_of(lambda: status, lambda: condition, About("shop", 2, Path("/"), "1"))(),
        sink.page(),
        supervisor.page(),
        ReceiverMetrics("shop", ReceiverCounts().now).page(),
    )
    return b"".join(pages).decode()


def test_page_lists_exactly_the_metrics() -> None:
    documented = dict(ROW.findall((ROOT / "docs" / "METRICS.md").read_text(encoding="utf-8")))
    assert documented == METRICS


def test_values_match_the_tables() -> None:
    families = list(text_string_to_metric_families(all_pages()))
    found = {each.name + ("_total" if each.type == "counter" else ""): each.type for each in families}
    assert found == METRICS
    assert {label for each in families for sample in each.samples for label in sample.labels} <= LABELS
    assert all("log" in sample.labels for each in families for sample in each.samples)


@pytest.mark.parametrize("name", sorted(METRICS))
def test_names_follow_the_conventions(name: str) -> None:
    assert re.fullmatch(r"refold(_[a-z]+)+", name)
    assert name.endswith("_total") == (METRICS[name] == "counter")
    foreign = {"ms", "millis", "milliseconds", "micros", "minutes", "kb", "mb", "kilobytes", "percent", "count", "s"}
    assert foreign.isdisjoint(name.split("_")), "base units are seconds and bytes, and shares are ratios"


def test_promtool_reports_nothing() -> None:
    checked = promtool("check", "metrics", given=all_pages())
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
    wrong = promtool("check", "metrics", given="# TYPE refold_batches counter\nrefold_batches 1\n")
    assert wrong.returncode != 0


def test_sink_counts_what_its_store_received() -> None:
    now_s = 100.0
    sink = SinkMetrics("shop", "postgres", lambda: now_s)

    def value(name: str) -> float | None:
        families = text_string_to_metric_families(sink.page().decode())
        return next((one.value for each in families for one in each.samples if one.name == name), None)

    assert value("refold_sink_lag_changes") is value("refold_sink_last_commit_age_seconds") is None
    sink.refused()
    sink.lags(7, 40.0)
    assert (value("refold_sink_busy"), value("refold_sink_busy_total")) == (1, 1)
    assert (value("refold_sink_lag_changes"), value("refold_sink_lag_seconds")) == (7, 60)
    sink.committed(5, 2)
    sink.committed(2, 2)
    sink.lags(0, None)
    now_s = 130.0
    assert (value("refold_sink_busy"), value("refold_sink_lag_seconds")) == (0, 0)
    assert value("refold_sink_last_commit_age_seconds") == 30
    counts = [value(f"refold_sink_{name}_total") for name in ("batches", "changes", "entities", "busy")]
    assert counts == [2, 7, 4, 1]
    sink.refused()
    sink.caught_up()
    assert (value("refold_sink_busy"), value("refold_sink_busy_total")) == (0, 2)
